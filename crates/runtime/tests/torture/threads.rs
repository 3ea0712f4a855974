//! Tasks of four threads that share a stream, and tasks that another thread aborts. In real time.

use std::sync::Arc;

use brisk_runtime::{TcpListener, TcpStream};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Duration, LIMIT, assert_nothing_left, builders, pair, server_address};

const SHARING: usize = 4;
const BYTES: usize = 300_000;
const ABORTED: usize = 400;

/// Several tasks write by shared reference, each a byte of its own, and several tasks read.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn four_readers_and_four_writers_of_one_stream_lose_and_repeat_no_byte() {
    let (a, b) = builders("--rtt 2ms --loss 1%");
    let (a, b) = (a.build().unwrap(), b.build().unwrap());
    let listener = TcpListener::bind(&b, server_address()).unwrap();
    let (client, server) = pair(&a, &listener).await;
    let (client, server) = (Arc::new(client), Arc::new(server));
    let (mut writers, mut readers) = (JoinSet::new(), JoinSet::new());
    for n in 0..SHARING {
        let client = client.clone();
        writers.spawn(async move {
            for piece in vec![n as u8; BYTES].chunks(1_001) {
                client.write_all_bytes(Bytes::copy_from_slice(piece)).await.unwrap();
            }
        });
        let server = server.clone();
        readers.spawn(async move {
            let mut counts = [0; SHARING];
            loop {
                let bytes = server.read_bytes(1 + n * 3_000).await.unwrap();
                if bytes.is_empty() {
                    return counts;
                }
                bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
            }
        });
    }
    timeout(LIMIT, writers.join_all()).await.expect("a writer waits without end");
    client.handle().shutdown().unwrap();
    let counts = timeout(LIMIT, readers.join_all()).await.expect("a reader waits without end");
    for n in 0..SHARING {
        assert_eq!(counts.iter().map(|counts| counts[n]).sum::<usize>(), BYTES, "writer {n}: {counts:?}");
    }
    drop((client, server));
    assert_nothing_left(&[&a, &b]).await;
}

/// Sends and receives until it is aborted.
async fn busy(mut stream: TcpStream) {
    let (mut reading, mut writing) = stream.split();
    let mut buffer = [0; 3_000];
    let sending = async { while writing.write_all(&[1; 1_000]).await.is_ok() {} };
    let receiving = async { while reading.read(&mut buffer).await.is_ok_and(|count| count > 0) {} };
    tokio::join!(sending, receiving);
}

/// Each task connects or accepts, and then transfers data, until another thread aborts it at any point.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_aborted_by_another_thread_leave_nothing() {
    let (a, b) = builders("--rtt 2ms --loss 1%");
    let (a, b) = (a.build().unwrap(), b.build().unwrap());
    let listener = Arc::new(TcpListener::bind(&b, server_address()).unwrap());
    let mut tasks = Vec::new();
    for n in 0..ABORTED {
        let (client, listener) = (a.clone(), listener.clone());
        let serving = tokio::spawn(async move { busy(listener.accept().await.unwrap().0).await });
        let asking = tokio::spawn(async move {
            if let Ok(stream) = client.connect(server_address()).await {
                busy(stream).await;
            }
        });
        tasks.push((n, serving, asking));
    }
    for (n, serving, asking) in tasks {
        // A few at a time, so that aborts meet every phase of a connection.
        if n % 8 == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        serving.abort();
        asking.abort();
    }
    drop(listener);
    assert!(a.stats().active_opens > ABORTED as u64 / 2, "{:?}", a.stats());
    assert_nothing_left(&[&a, &b]).await;
}
