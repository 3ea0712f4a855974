//! Short-lived connections, ended in every way that a program can use.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use brisk_runtime::memory::{self, LinkSpec};
use brisk_runtime::{Endpoint, TcpListener, TcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::heap;
use super::watched::{Watched, builder};
use super::{Duration, MSL, assert_nothing_left, server_address};

/// Tasks that open connections one after the other.
const TASKS: usize = 20;
/// Connections of one batch; two batches make 20,000.
const BATCH: usize = 10_000;
/// Maximum number of connections, TIME-WAITs included, of an endpoint: a few leaked ones exhaust it.
const MAX_CONNECTIONS: usize = 5 * TASKS;

/// Returns two endpoints, and the number of times that their drivers have polled the devices for packets.
fn network() -> (Endpoint, Endpoint, Arc<AtomicUsize>) {
    let (a, b) = memory::devices(&LinkSpec::parse("--rtt 2ms").unwrap(), 1);
    let rounds = Arc::new(AtomicUsize::new(0));
    let mut seed = 0;
    let [a, b] = [(a, "10.0.0.1"), (b, "10.0.0.2")].map(|(inner, address)| {
        seed += 1;
        let rounds = rounds.clone();
        let on_look = move || {
            rounds.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let device = Watched { inner, on_look: Box::new(on_look), on_send: Box::new(|_| ()) };
        let limits = builder(device, address)
            .seed(seed)
            .stack(|stack| (stack.msl, stack.max_connections) = (MSL, MAX_CONNECTIONS));
        limits.build().unwrap()
    });
    (a, b, rounds)
}

/// Sends four bytes back on each connection that sends them.
async fn serve(listener: TcpListener) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let mut request = [0; 4];
            if stream.read_exact(&mut request).await.is_ok() {
                // The client may be gone.
                let _ = stream.write_all(&request).await;
            }
        });
    }
}

async fn exchange(mut stream: TcpStream, n: usize) {
    let request = (n as u32).to_be_bytes();
    stream.write_all(&request).await.unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await.unwrap();
    assert_eq!(response, request);
}

/// Opens the `n`th connection, and ends it in one of ten ways.
async fn open_and_end(client: &Endpoint, n: usize) {
    let connect = client.connect(server_address());
    match n % 10 {
        0 => connect.await.unwrap().abort(),
        1 => drop(connect.await.unwrap()),
        2 => {
            let refused = client.connect("10.0.0.2:81".parse().unwrap()).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        }
        3 => drop(tokio::time::timeout(Duration::from_millis(1), connect).await),
        4 => {
            // The future is dropped after one poll, which sends the SYN.
            let mut connect = pin!(connect);
            assert!(std::future::poll_fn(|cx| Poll::Ready(connect.as_mut().poll(cx))).await.is_pending());
        }
        5 => {
            let (mut reading, mut writing) = connect.await.unwrap().into_split();
            writing.write_all(&[1; 4]).await.unwrap();
            drop(writing);
            assert_eq!(reading.read_to_end(&mut Vec::new()).await.unwrap(), 4);
        }
        6 => connect.await.unwrap().write_all(b"request that is too long").await.unwrap(),
        _ => exchange(connect.await.unwrap(), n).await,
    }
}

async fn batch(client: &Endpoint) {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let client = client.clone();
        tasks.spawn(async move {
            for n in 0..BATCH / TASKS {
                open_and_end(&client, task + n).await;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn twenty_thousand_connections_leak_no_slots_memory_or_timers() {
    let (client, server, rounds) = network();
    let serving = tokio::spawn(serve(TcpListener::bind(&server, server_address()).unwrap()));
    let mut held = Vec::new();
    for _ in 0..2 {
        batch(&client).await;
        assert_nothing_left(&[&client, &server]).await;
        held.push(heap::live());
    }
    let opened = client.stats().active_opens;
    assert_eq!(opened, 2 * BATCH as u64);
    let grown = held[1] - held[0];
    assert!(grown < 4_096, "{grown} bytes more after the second {BATCH} connections: {held:?}");

    let before = rounds.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    let woken = rounds.load(Ordering::Relaxed) - before;
    assert!(woken <= 4, "a timer is left: the drivers of two idle endpoints ran {woken} times in an hour");
    serving.abort();
}

#[tokio::test(start_paused = true)]
async fn closed_endpoints_free_all_their_memory() {
    let use_them = || async {
        let (client, server, _) = network();
        let serving = tokio::spawn(serve(TcpListener::bind(&server, server_address()).unwrap()));
        for n in 0..100 {
            open_and_end(&client, n).await;
        }
        serving.abort();
        assert_eq!(client.close(Duration::from_secs(10)).await, 0);
        assert_eq!(server.close(Duration::from_secs(10)).await, 0);
        drop((client, server));
        tokio::time::sleep(Duration::from_secs(10)).await;
        heap::live()
    };
    // The first time allocates memory that tokio and the library keep.
    let first = use_them().await;
    let grown = use_them().await - first;
    assert!(grown < 1_024, "{grown} bytes");
}
