//! Ends of connections: both sides close at once, an endpoint with idle connections closes, an endpoint's
//! runtime shuts down or is dropped.

use std::io;
use std::time::Instant as RealInstant;

use brisk_runtime::memory::{self, LinkSpec};
use brisk_runtime::{Endpoint, TcpListener, TcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::heap;
use super::{Duration, LIMIT, assert_nothing_left, builders, pair, pattern, server_address};

const IDLE: usize = 500;

/// Returns two endpoints and both ends of `count` connections, the client's end first.
async fn connected(count: usize) -> (Endpoint, Endpoint, Vec<(TcpStream, TcpStream)>) {
    let (a, b) = builders("--rtt 10ms");
    let (a, b) = (a.build().unwrap(), b.build().unwrap());
    let listener = TcpListener::bind(&b, server_address()).unwrap();
    let mut pairs = Vec::new();
    for _ in 0..count {
        pairs.push(pair(&a, &listener).await);
    }
    (a, b, pairs)
}

#[tokio::test(start_paused = true)]
async fn simultaneous_close_delivers_all_data_and_the_end_of_stream() {
    for sent in [0, 1, 50_000] {
        let (a, b, mut pairs) = connected(1).await;
        let (mut client, mut server) = pairs.remove(0);
        let end = async |stream: &mut TcpStream, own, other| {
            stream.write_all(&pattern(0..sent, own)).await.unwrap();
            // Both FINs are in flight before either arrives.
            stream.shutdown().await.unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).await.unwrap();
            assert!(received == pattern(0..sent, other), "{} of {sent} bytes", received.len());
        };
        let both = async { tokio::join!(end(&mut client, 1, 2), end(&mut server, 2, 1)) };
        timeout(LIMIT, both).await.expect("both end");
        drop((client, server));
        tokio::time::sleep(Duration::from_millis(100)).await;
        if sent == 0 {
            assert_eq!((a.connections(), b.connections()), (1, 1), "FINs that cross leave both in TIME-WAIT");
        }
        assert_nothing_left(&[&a, &b]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn closed_endpoint_closes_its_idle_connections_gracefully() {
    let (a, b, pairs) = connected(IDLE).await;
    let mut tasks = JoinSet::new();
    let mut held = Vec::new();
    for (mut client, server) in pairs {
        held.push(server);
        tasks.spawn(async move { assert_eq!(client.read(&mut [0]).await.unwrap(), 0) });
    }
    let began = Instant::now();
    assert_eq!(b.close(Duration::from_secs(30)).await, 0, "the peers close when they read the end");
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    timeout(LIMIT, tasks.join_all()).await.expect("every peer reads the end");
    for mut server in held {
        assert_eq!(server.write(b"x").await.unwrap_err().kind(), io::ErrorKind::NotConnected);
    }
    assert_nothing_left(&[&a]).await;
}

#[tokio::test(start_paused = true)]
async fn closed_endpoint_resets_connections_that_peers_keep_open() {
    let (a, b, pairs) = connected(IDLE).await;
    let began = Instant::now();
    assert_eq!(b.close(Duration::from_secs(5)).await, IDLE);
    assert!((5_000..6_000).contains(&began.elapsed().as_millis()), "{:?}", began.elapsed());
    for (mut client, mut server) in pairs {
        let failed = timeout(LIMIT, client.failed()).await.expect("it hears of the reset");
        assert_eq!(failed.kind(), io::ErrorKind::ConnectionReset);
        assert!(client.write(b"x").await.is_err() && server.read(&mut [0]).await.is_err());
    }
    assert_nothing_left(&[&a]).await;
}

/// The driver runs on a runtime that shuts down, the program on another.
#[test]
fn runtime_that_ends_under_an_endpoint_fails_every_wait() {
    let new = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (own, of_endpoint) = (new(), new());
    let (a, b, mut pairs, listener) = of_endpoint.block_on(async {
        let (a, b) = memory::network(&LinkSpec::parse("--rtt 10ms").unwrap(), 1).unwrap();
        let listener = TcpListener::bind(&b, server_address()).unwrap();
        let pairs = vec![pair(&a, &listener).await, pair(&a, &listener).await];
        (a, b, pairs, listener)
    });
    let kinds = own.block_on(async {
        let (mut reader, _peer) = pairs.remove(0);
        let (mut writer, _stalled) = pairs.remove(0);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { reader.read(&mut [0]).await.map(drop) });
        tasks.spawn(async move { writer.write_all(&vec![0; 64 << 20]).await });
        tasks.spawn(async move { listener.accept().await.map(drop) });
        let connecting = a.clone();
        tasks.spawn(async move { connecting.connect("10.0.0.9:80".parse().unwrap()).await.map(drop) });
        // Every task waits by then. This is a real second, because the clock is not paused here.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(tasks.try_join_next().map(drop), None, "all wait");
        of_endpoint.shutdown_background();
        let ended = timeout(LIMIT, tasks.join_all()).await.expect("a task waits without end");
        timeout(LIMIT, b.wait_idle()).await.expect("nothing moves any more");
        assert!(a.connect(server_address()).await.is_err() && b.close(LIMIT).await <= 2);
        ended.into_iter().map(|result| result.unwrap_err().to_string()).collect::<Vec<_>>()
    });
    for text in kinds {
        assert!(text.contains("runtime that this endpoint ran on was shut down"), "{text}");
    }
}

/// Everything runs on one runtime. It is dropped with its tasks while handles outside are left.
#[test]
fn dropped_runtime_frees_all_memory_and_handles_outside_fail() {
    let use_it = || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let (endpoints, listener, outside, peer) = runtime.block_on(async {
            let (a, b, mut pairs) = connected(20).await;
            let (outside, peer) = pairs.remove(0);
            for (mut client, mut server) in pairs {
                // Both write until the buffers are full.
                tokio::spawn(async move { while client.write_all(&[0; 10_000]).await.is_ok() {} });
                tokio::spawn(async move {
                    server.read_exact(&mut [0; 1_000]).await.unwrap();
                    while server.write_all(&[0; 10_000]).await.is_ok() {}
                });
            }
            let listener = TcpListener::bind(&b, "10.0.0.2:81".parse().unwrap()).unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
            ([a, b], listener, outside, peer)
        });
        drop(runtime);
        let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        other.block_on(async {
            let failing = async {
                assert!(outside.read_bytes(1).await.is_err() && listener.accept().await.is_err());
                assert!(endpoints[0].connect(server_address()).await.is_err());
            };
            timeout(LIMIT, failing).await.expect("a task waits without end");
        });
        drop((endpoints, listener, outside, peer, other));
        heap::live()
    };
    // The first time allocates memory that tokio and the library keep.
    let first = use_it();
    let grown = use_it() - first;
    assert!(grown < 1_024, "{grown} bytes");
}

/// Runs a transfer over a slow link; returns when it ended.
async fn slow_transfer() -> (Duration, u64, u64) {
    let (a, b) = builders("--rtt 600ms --rate 256kbit --loss 5%");
    let (a, b) = (a.build().unwrap(), b.build().unwrap());
    let listener = TcpListener::bind(&b, server_address()).unwrap();
    let began = Instant::now();
    let (client, mut server) = pair(&a, &listener).await;
    let sending = tokio::spawn(async move {
        server.write_all(&pattern(0..2_000_000, 3)).await.unwrap();
    });
    let (mut received, mut client) = (Vec::new(), client);
    client.read_to_end(&mut received).await.unwrap();
    assert!(received == pattern(0..2_000_000, 3));
    sending.await.unwrap();
    drop(client);
    assert_nothing_left(&[&a, &b]).await;
    (began.elapsed(), a.device_counters().received, b.device_counters().received)
}

#[tokio::test(start_paused = true)]
async fn paused_clock_skips_a_minute_and_repeats_each_run() {
    let real = RealInstant::now();
    let first = slow_transfer().await;
    assert!(first.0 > Duration::from_secs(60), "{:?}", first.0);
    assert_eq!(slow_transfer().await, first);
    assert!(real.elapsed() < Duration::from_secs(60), "{:?}", real.elapsed());
}
