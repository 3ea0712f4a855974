//! Wakers of the program that call the endpoint when they are woken and when they are dropped.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use brisk_device::memory::MemoryDevice;
use brisk_runtime::{Endpoint, Forwarder, TcpListener};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

/// Longer than any of these tests takes; a deadlock exceeds it.
const LIMIT: Duration = Duration::from_secs(20);

/// A waker that calls the endpoint when it is woken and when it is dropped.
struct Asking {
    endpoint: Endpoint,
    woken: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
}

impl Wake for Asking {
    fn wake(self: Arc<Self>) {
        self.endpoint.connections();
        self.woken.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.endpoint.connections();
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// A source of wakers that counts how many are woken and dropped.
#[derive(Clone)]
struct Tasks {
    endpoint: Endpoint,
    woken: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
}

impl Tasks {
    fn of(endpoint: &Endpoint) -> Tasks {
        Tasks { endpoint: endpoint.clone(), woken: Arc::default(), dropped: Arc::default() }
    }

    /// Polls with a new waker; afterwards only the polled object has a copy of it.
    fn poll<T>(&self, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        let Tasks { endpoint, woken, dropped } = self.clone();
        let waker = Waker::from(Arc::new(Asking { endpoint, woken, dropped }));
        poll(&mut Context::from_waker(&waker))
    }

    /// Polls twice with different wakers; returns how many have been dropped.
    fn poll_twice<T>(&self, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> usize {
        let before = self.dropped();
        assert!(self.poll(&mut poll).is_pending() && self.poll(&mut poll).is_pending());
        self.dropped() - before
    }

    fn dropped(&self) -> usize {
        self.dropped.load(Ordering::Relaxed)
    }

    fn woken(&self) -> usize {
        self.woken.load(Ordering::Relaxed)
    }

    /// Checks that a waiting future drops its first waker for the second, and the second when it is dropped.
    fn check_future(&self, future: impl Future) {
        let before = self.dropped();
        {
            let mut future = pin!(future);
            assert_eq!(self.poll_twice(|cx| future.as_mut().poll(cx)), 1);
        }
        assert_eq!(self.dropped() - before, 2);
    }
}

/// Runs `test` on its own thread, because a deadlock would block it without end.
fn within_the_limit(test: impl AsyncFnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
        done.send(()).unwrap();
    });
    ended.recv_timeout(LIMIT).expect("no deadlock and no panic");
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn endpoints() -> (Endpoint, Endpoint) {
    let (a, b) = MemoryDevice::pair();
    let build = |device, address: &str| {
        Endpoint::builder(Box::new(device)).address(address.parse().unwrap()).build().unwrap()
    };
    (build(a, "10.0.0.1"), build(b, "10.0.0.2"))
}

#[test]
fn waker_of_a_connection_may_use_the_endpoint() {
    within_the_limit(async || {
        let (client, server) = endpoints();
        let listener = TcpListener::bind(&server, at("10.0.0.2:80")).unwrap();
        let (stream, accepted) = tokio::join!(client.connect(at("10.0.0.2:80")), listener.accept());
        let (mut stream, mut peer) = (stream.unwrap(), accepted.unwrap().0);
        let tasks = Tasks::of(&client);
        let mut byte = [0];
        tasks.check_future(stream.peek(&mut byte));
        tasks.check_future(stream.read_bytes(1));
        tasks.check_future(stream.failed());
        tasks.check_future(stream.handle().closed());
        let mut read = |cx: &mut Context<'_>| {
            let mut byte = [0];
            Pin::new(&mut stream).poll_read(cx, &mut ReadBuf::new(&mut byte))
        };
        assert_eq!(tasks.poll_twice(&mut read), 1);
        peer.write_all(b"x").await.unwrap();
        while tasks.woken() == 0 {
            tokio::task::yield_now().await;
        }
        assert!(tasks.poll(&mut read).is_ready());
        assert_eq!(tasks.poll_twice(&mut read), 1);
        while tasks.poll(|cx| Pin::new(&mut stream).poll_write(cx, &[0; 100_000])).is_ready() {}
        assert_eq!(tasks.poll_twice(|cx| Pin::new(&mut stream).poll_write(cx, &[0])), 2);
        let before = tasks.dropped();
        drop(stream);
        assert_eq!(tasks.dropped() - before, 2, "a reader and a writer");
    });
}

#[test]
fn waker_of_a_listener_may_use_the_endpoint() {
    within_the_limit(async || {
        let (_client, server) = endpoints();
        let listener = TcpListener::bind(&server, at("10.0.0.2:80")).unwrap();
        let tasks = Tasks::of(&server);
        tasks.check_future(listener.accept());
        assert_eq!(tasks.poll_twice(|cx| listener.poll_accept(cx)), 1);
        drop(listener);
        assert_eq!(tasks.dropped(), 4);
        let forwarder = Forwarder::bind(&server, 1).unwrap();
        tasks.check_future(forwarder.request());
        assert_eq!(tasks.poll_twice(|cx| forwarder.poll_request(cx)), 1);
        drop(forwarder);
        assert_eq!(tasks.dropped(), 8);
    });
}

#[test]
fn waker_of_an_endpoint_may_use_it() {
    within_the_limit(async || {
        let (client, _server) = endpoints();
        let tasks = Tasks::of(&client);
        let (stream, _) = client.connect_with_data(at("10.0.0.9:80"), &[], &Default::default()).unwrap();
        tasks.check_future(stream.connected());
        tasks.check_future(client.wait_idle());
        let mut idle = pin!(client.wait_idle());
        assert!(tasks.poll(|cx| idle.as_mut().poll(cx)).is_pending());
        stream.abort();
        while tasks.woken() == 0 {
            tokio::task::yield_now().await;
        }
    });
}
