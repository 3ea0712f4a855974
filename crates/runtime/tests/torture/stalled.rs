//! Peers that stop reading, and programs that stop reading.

use brisk_runtime::TcpConfig;
use brisk_runtime::{Endpoint, TcpListener, TcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::heap;
use super::{Duration, LIMIT, assert_nothing_left, builders, pair, pattern, server_address};

const PEERS: usize = 500;
const BYTES: usize = 60_000;
const PIECE: usize = 1_000;
/// Limit of the buffers of the stack under test, bytes: an eighth of the data of all connections.
const BOUND: usize = PEERS * BYTES / 8;

/// Returns two endpoints, and both ends of 500 connections. The second endpoint has the limit; the first has
/// short receive buffers, so that it cannot take data that a peer does not read.
async fn many() -> (Endpoint, Endpoint, Vec<(TcpStream, TcpStream)>) {
    let mut short = TcpConfig::default();
    (short.receive_buffer.initial, short.receive_buffer.max) = (8_192, 8_192);
    let (a, b) = builders("--rtt 4ms");
    let (a, b) = (a.tcp(short), b.stack(|stack| stack.max_buffer_bytes = BOUND));
    let (a, b) = (a.build().unwrap(), b.build().unwrap());
    let listener = TcpListener::bind(&b, server_address()).unwrap();
    let mut streams = Vec::new();
    for _ in 0..PEERS {
        streams.push(pair(&a, &listener).await);
    }
    (a, b, streams)
}

/// Each `from` writes, and `to` begins to read after a minute; all streams arrive complete. Returns the
/// maximum memory of the buffers of `bounded`, and the growth of the heap, in that minute.
async fn stall(bounded: &Endpoint, streams: impl Iterator<Item = (TcpStream, TcpStream)>) -> (usize, isize) {
    let mut tasks = JoinSet::new();
    for (n, (mut from, mut to)) in streams.enumerate() {
        tasks.spawn(async move {
            // Written in pieces, so that waiting data is in the buffers and not here.
            for start in (0..BYTES).step_by(PIECE) {
                from.write_all(&pattern(start..start + PIECE, n)).await.unwrap();
            }
            from.shutdown().await.unwrap();
            assert_eq!(from.read(&mut [0]).await.unwrap(), 0);
        });
        tasks.spawn(async move {
            tokio::time::sleep(Duration::from_secs(60)).await;
            let mut received = Vec::new();
            to.read_to_end(&mut received).await.unwrap();
            assert!(received == pattern(0..BYTES, n), "stream {n}: {} bytes", received.len());
        });
    }
    let before = heap::live();
    let mut most = (0, 0);
    for _ in 0..590 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        most = (bounded.buffered_bytes().max(most.0), (heap::live() - before).max(most.1));
    }
    while let Some(ended) = timeout(10 * LIMIT, tasks.join_next()).await.expect("all streams complete") {
        ended.unwrap();
    }
    most
}

#[tokio::test(start_paused = true)]
async fn five_hundred_stalled_readers_stay_within_the_limit_and_lose_nothing() {
    let (a, b, streams) = many().await;
    let (buffered, heap) = stall(&b, streams.into_iter().map(|(peer, own)| (own, peer))).await;
    assert!((BOUND / 2..=BOUND).contains(&buffered), "{buffered} of {BOUND}");
    // The receive buffers of the peers and the tasks of the test come on top of the limit.
    let most = BOUND + PEERS * (8_192 + 8_192);
    assert!(heap <= most as isize, "{heap} of {most}");
    assert_nothing_left(&[&a, &b]).await;
}

#[tokio::test(start_paused = true)]
async fn five_hundred_writers_to_a_stalled_program_stay_within_the_limit() {
    let (a, b, streams) = many().await;
    let (buffered, _) = stall(&b, streams.into_iter()).await;
    // If its program has nothing to read, a connection accepts one segment beyond the limit.
    let most = BOUND + PEERS * 1_448;
    assert!((BOUND / 2..=most).contains(&buffered), "{buffered} of {most}");
    assert_nothing_left(&[&a, &b]).await;
}
