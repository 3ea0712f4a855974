//! Futures that are dropped after each number of polls, and after each wake-up without a poll.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use brisk_runtime::{Endpoint, Forwarder, TcpConfig, TcpListener, TcpStream};
use bytes::{Buf, Bytes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::{Duration, LIMIT, assert_nothing_left, builders, pair, pattern, server_address};

/// When a future is dropped, unless it is ready earlier.
#[derive(Clone, Copy, Debug)]
enum Dropped {
    /// After this number of polls.
    AfterPolls(usize),
    /// When it is woken after this number of polls, without another poll.
    WhenWoken(usize),
}

use Dropped::{AfterPolls, WhenWoken};

/// Every way to drop a future that is ready at its third poll; the last one does not drop it.
const SCHEDULE: [Dropped; 6] =
    [AfterPolls(0), AfterPolls(1), WhenWoken(1), AfterPolls(2), WhenWoken(2), WhenWoken(1_000)];

/// The waker of a future that may be dropped. Every copy of the waker keeps this alive.
struct Relay {
    task: Mutex<Waker>,
    is_woken: AtomicBool,
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Relaxed);
        self.task.lock().unwrap().wake_by_ref();
    }
}

/// Polls `future` until it is ready or to be dropped. Returns the result and the relay, which has no other
/// owner unless a copy of its waker is left.
async fn relayed<T>(future: impl Future<Output = T>, dropped: Dropped) -> (Option<T>, Arc<Relay>) {
    let relay = Arc::new(Relay { task: Mutex::new(Waker::noop().clone()), is_woken: AtomicBool::new(true) });
    let waker = Waker::from(relay.clone());
    let mut future = pin!(future);
    let mut polls = 0;
    let result = poll_fn(|cx| {
        relay.task.lock().unwrap().clone_from(cx.waker());
        if !relay.is_woken.swap(false, Ordering::Relaxed) {
            return Poll::Pending;
        }
        let (AfterPolls(most) | WhenWoken(most)) = dropped;
        if polls == most {
            return Poll::Ready(None);
        }
        polls += 1;
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending if matches!(dropped, AfterPolls(most) if most == polls) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    });
    let result = timeout(LIMIT, result).await.unwrap_or_else(|_| panic!("never woken, {dropped:?}"));
    (result, relay)
}

/// Like [`relayed`], for a future that removes its waker when it is dropped.
async fn cancel<T>(future: impl Future<Output = T>, dropped: Dropped) -> Option<T> {
    let (result, relay) = relayed(future, dropped).await;
    assert_eq!(Arc::strong_count(&relay), 1, "the waker is left somewhere, {dropped:?}");
    result
}

async fn network() -> (Endpoint, Endpoint, TcpListener) {
    let (a, b) = builders("--rtt 10ms");
    // Buffers that a few writes fill.
    let mut short = TcpConfig::default();
    for buffer in [&mut short.send_buffer, &mut short.receive_buffer] {
        (buffer.initial, buffer.max) = (8_192, 8_192);
    }
    let (a, b) = (a.tcp(short.clone()).build().unwrap(), b.tcp(short).build().unwrap());
    let listener = TcpListener::bind(&b, server_address()).unwrap();
    (a, b, listener)
}

async fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    timeout(LIMIT, stream.read_to_end(&mut received)).await.expect("the stream ends").unwrap();
    received
}

/// Checks that bytes pass in both directions.
async fn assert_works(client: &mut TcpStream, server: &mut TcpStream) {
    for is_up in [true, false] {
        let (from, to) = if is_up { (&mut *client, &mut *server) } else { (&mut *server, &mut *client) };
        from.write_all(b"works").await.unwrap();
        let mut received = [0; 5];
        timeout(LIMIT, to.read_exact(&mut received)).await.expect("it arrives").unwrap();
        assert_eq!(&received, b"works");
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_connects_end_their_connections_and_no_other() {
    let (a, b, listener) = network().await;
    let (mut opened, mut greeted) = (0, 0);
    for dropped in SCHEDULE {
        if let Some(stream) = cancel(a.connect(server_address()), dropped).await {
            stream.unwrap().write_all(b"hello").await.unwrap();
            opened += 1;
        }
        while let Ok(accepted) = timeout(Duration::from_secs(1), listener.accept()).await {
            let mut received = Vec::new();
            let read = timeout(LIMIT, accepted.unwrap().0.read_to_end(&mut received)).await;
            greeted += usize::from(read.expect("the client has gone").is_ok() && received == b"hello");
        }
    }
    assert!((2..SCHEDULE.len()).contains(&opened) && greeted == opened, "{greeted} of {opened}");
    assert_nothing_left(&[&a, &b]).await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_accepts_leave_the_connection_to_the_next() {
    let (a, b, listener) = network().await;
    for dropped in SCHEDULE {
        let (client, accepted) =
            tokio::join!(a.connect(server_address()), cancel(listener.accept(), dropped));
        let accepted = match accepted {
            Some(accepted) => accepted,
            None => timeout(LIMIT, listener.accept()).await.expect("it waits"),
        };
        assert_works(&mut client.unwrap(), &mut accepted.unwrap().0).await;
        assert!(timeout(Duration::from_secs(1), listener.accept()).await.is_err(), "{dropped:?}");
    }
    assert_nothing_left(&[&a, &b]).await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_waiter_leaves_the_wakeup_to_the_others() {
    let (a, b, listener) = network().await;
    let (client, gone, accepted) = tokio::join!(
        a.connect(server_address()),
        cancel(listener.accept(), WhenWoken(1)),
        timeout(LIMIT, listener.accept())
    );
    assert!(gone.is_none(), "both were woken");
    let (mut client, server) = (client.unwrap(), accepted.expect("the other takes it").unwrap().0);
    let (gone, read, written) = tokio::join!(
        cancel(server.read_bytes(100), WhenWoken(1)),
        timeout(LIMIT, server.read_bytes(100)),
        client.write_all(b"for one of two")
    );
    written.unwrap();
    assert!(gone.is_none(), "both were woken");
    assert_eq!(read.expect("the other takes it").unwrap(), "for one of two");
    drop((client, server));
    assert_nothing_left(&[&a, &b]).await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_reads_take_nothing() {
    let (a, b, listener) = network().await;
    let (mut client, mut server) = pair(&a, &listener).await;
    let data = pattern(0..100_000, 1);
    let sent = data.clone();
    let writing = tokio::spawn(async move {
        for piece in sent.chunks(500) {
            client.write_all(piece).await.unwrap();
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    });
    let (mut received, mut cancelled, mut relays) = (Vec::new(), 0, Vec::new());
    for (n, dropped) in SCHEDULE.into_iter().cycle().enumerate() {
        let mut buffer = [0; 700];
        let read = match n / SCHEDULE.len() % 3 {
            0 => cancel(server.read_bytes(700), dropped).await.map(|read| read.map(|bytes| bytes.to_vec())),
            1 => cancel(server.peek(&mut buffer), dropped).await.map(|read| {
                read.map(|count| assert_eq!(buffer[..count], data[received.len()..][..count])).unwrap();
                Ok(Vec::from(b"not taken"))
            }),
            _ => {
                // A poll function cannot remove its waker; the waker is dropped with the stream.
                let (read, relay) = relayed(server.read(&mut buffer), dropped).await;
                relays.push(relay);
                read.map(|read| read.map(|count| buffer[..count].to_vec()))
            }
        };
        match read {
            None => cancelled += usize::from(!matches!(dropped, AfterPolls(0))),
            Some(Ok(bytes)) if bytes == b"not taken" => {}
            Some(Ok(bytes)) if bytes.is_empty() => break,
            Some(read) => received.extend(read.unwrap()),
        }
    }
    assert!(received == data && cancelled > 50, "{} bytes, {cancelled} cancelled", received.len());
    writing.await.unwrap();
    drop(server);
    assert!(relays.iter().all(|relay| Arc::strong_count(relay) == 1), "a waker outlives its stream");
    assert_nothing_left(&[&a, &b]).await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_writes_have_sent_exactly_the_removed_bytes() {
    let (a, b, listener) = network().await;
    let (mut client, mut server) = pair(&a, &listener).await;
    let data = pattern(0..200_000, 2);
    let reading = tokio::spawn(async move { read_all(&mut server).await });
    let (mut left, mut cancelled, mut relays) = (Bytes::from(data.clone()), 0, Vec::new());
    for (n, dropped) in SCHEDULE.into_iter().cycle().enumerate() {
        if left.is_empty() {
            break;
        }
        // Lengths vary, so that the buffer is full with each way to drop a future.
        let mut piece = left.slice(..left.len().min(500 + n * 131 % 3_000));
        let is_done = if (n / SCHEDULE.len()).is_multiple_of(2) {
            let len = piece.len();
            let written = cancel(client.write_bytes(&mut piece), dropped).await;
            // Bytes that were removed from the piece were sent, even if the future was dropped.
            left.advance(len - piece.len());
            written.transpose().unwrap().is_some()
        } else {
            let (written, relay) = relayed(client.write(&piece), dropped).await;
            relays.push(relay);
            let written = written.transpose().unwrap();
            left.advance(written.unwrap_or(0));
            written.is_some()
        };
        cancelled += usize::from(!is_done && !matches!(dropped, AfterPolls(0)));
    }
    client.shutdown().await.unwrap();
    let received = reading.await.unwrap();
    assert!(received == data && cancelled > 10, "{} bytes, {cancelled} cancelled", received.len());
    drop(client);
    assert!(relays.iter().all(|relay| Arc::strong_count(relay) == 1), "a waker outlives its stream");

    for polls in 0..10 {
        let (mut client, mut server) = pair(&a, &listener).await;
        let reading = tokio::spawn(async move { read_all(&mut server).await });
        cancel(client.write_all_bytes(Bytes::from(data.clone())), AfterPolls(polls)).await;
        client.shutdown().await.unwrap();
        drop(client);
        let received = reading.await.unwrap();
        assert!(data.starts_with(&received), "no byte is sent twice or left out");
        assert!(received.len() < data.len() && received.is_empty() == (polls == 0), "{}", received.len());
    }
    assert_nothing_left(&[&a, &b]).await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_waits_for_a_connection_miss_no_change() {
    let (a, b, listener) = network().await;
    for dropped in SCHEDULE {
        let (stream, _) = a.connect_with_data(server_address(), b"", &Default::default()).unwrap();
        if cancel(stream.connected(), dropped).await.is_none() {
            timeout(LIMIT, stream.connected()).await.expect("it opens").unwrap();
        }
        let (server, _) = timeout(LIMIT, listener.accept()).await.unwrap().unwrap();
        let handle = stream.handle();
        server.abort();
        let (failed, closed) =
            tokio::join!(cancel(stream.failed(), dropped), cancel(handle.closed(), dropped));
        let error = match failed {
            Some(error) => error,
            None => timeout(LIMIT, stream.failed()).await.expect("the connection is not reset"),
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        if closed.is_none() {
            timeout(LIMIT, handle.closed()).await.expect("the connection does not end");
        }
    }
    assert_nothing_left(&[&a, &b]).await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_requests_wait_for_the_next_and_cancelled_answers_end() {
    let (a, b, listener) = network().await;
    drop(listener);
    let forwarder = Forwarder::bind(&b, 8).unwrap();
    for dropped in SCHEDULE {
        let client = a.clone();
        let connecting = tokio::spawn(async move { client.connect(server_address()).await });
        let request = match cancel(forwarder.request(), dropped).await {
            Some(request) => request,
            None => timeout(LIMIT, forwarder.request()).await.expect("it waits"),
        };
        match cancel(request.unwrap().accept(), dropped).await {
            Some(server) => {
                let client = timeout(LIMIT, connecting).await.unwrap().unwrap();
                assert_works(&mut client.unwrap(), &mut server.unwrap()).await;
            }
            // The connection was refused, or closed at once.
            None => {
                if let Ok(mut client) = timeout(LIMIT, connecting).await.expect("an answer").unwrap() {
                    let read = timeout(LIMIT, client.read(&mut [0])).await.expect("the end");
                    assert!(matches!(read, Ok(0) | Err(_)));
                }
            }
        }
    }
    assert_nothing_left(&[&a, &b]).await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_waits_for_the_end_of_an_endpoint_can_be_repeated() {
    for dropped in SCHEDULE {
        let (a, b, listener) = network().await;
        let (client, server) = pair(&a, &listener).await;
        drop(client);
        let dropping = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(server);
        };
        let (idle, ()) = tokio::join!(cancel(b.wait_idle(), dropped), dropping);
        if idle.is_none() {
            timeout(LIMIT, b.wait_idle()).await.expect("the endpoint is not idle");
        }
        let _open = pair(&a, &listener).await;
        let deadline = Duration::from_secs(5);
        if cancel(b.close(deadline), dropped).await.is_none() {
            timeout(LIMIT, b.close(deadline)).await.expect("it closes");
        }
        let error = b.connect("10.0.0.1:80".parse().unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotConnected, "{dropped:?}");
        assert_eq!(listener.accept().await.map(drop).unwrap_err().kind(), io::ErrorKind::NotConnected);
    }
}

#[tokio::test(start_paused = true)]
async fn wakers_of_poll_functions_are_dropped_with_their_object() {
    let (a, b, listener) = network().await;
    let forwarder = Forwarder::bind(&b, 8).unwrap();
    let (client, mut server) = pair(&a, &listener).await;
    let polled = AfterPolls(1);
    let (_, reading) = relayed(server.read(&mut [0]), polled).await;
    let (_, peeking) = relayed(poll_fn(|cx| client.poll_peek(cx, &mut [0])), polled).await;
    let (_, accepting) = relayed(poll_fn(|cx| listener.poll_accept(cx)), polled).await;
    let (_, asking) = relayed(poll_fn(|cx| forwarder.poll_request(cx)), polled).await;
    let relays = [reading, peeking, accepting, asking];
    assert!(relays.iter().all(|relay| Arc::strong_count(relay) == 2), "all wait");
    drop((client, server, listener, forwarder));
    assert!(relays.iter().all(|relay| Arc::strong_count(relay) == 1), "a waker is left");
    assert_nothing_left(&[&a, &b]).await;
}
