//! Readers that start late and read little at a time.

use brisk_runtime::{TcpConfig, TcpListener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::{Duration, LIMIT, assert_nothing_left, builders, pair, pattern, server_address};

const SLOW: usize = 50;
const BYTES: usize = 40_000;

#[tokio::test(start_paused = true)]
async fn slow_readers_get_every_byte_and_delay_no_other_stream() {
    let mut short = TcpConfig::default();
    for buffer in [&mut short.send_buffer, &mut short.receive_buffer] {
        (buffer.initial, buffer.max) = (8_192, 8_192);
    }
    let (a, b) = builders("--rtt 10ms --loss 5%");
    let (a, b) = (a.tcp(short.clone()).build().unwrap(), b.tcp(short).build().unwrap());
    let listener = TcpListener::bind(&b, server_address()).unwrap();
    let mut tasks = JoinSet::new();
    for n in 0..SLOW {
        let (mut client, mut server) = pair(&a, &listener).await;
        tasks.spawn(async move {
            server.write_all(&pattern(0..BYTES, n)).await.unwrap();
            server.shutdown().await.unwrap();
        });
        tasks.spawn(async move {
            // The window closes while they wait. Readers that then read everything at once report that in one
            // segment; if it is lost, only a window probe helps.
            let len = if n % 2 == 0 { BYTES } else { 1 + n * 37 % 700 };
            let (mut received, mut buffer) = (Vec::new(), vec![0; len]);
            loop {
                let wait = if received.len() % 5_000 < buffer.len() { 20_000 } else { n as u64 % 20 };
                tokio::time::sleep(Duration::from_millis(wait)).await;
                match client.read(&mut buffer).await.unwrap() {
                    0 => break,
                    count => received.extend_from_slice(&buffer[..count]),
                }
            }
            assert!(received == pattern(0..BYTES, n), "stream {n}: {} bytes", received.len());
        });
    }
    let slowest = Instant::now();
    for n in 0..20 {
        let began = Instant::now();
        let (mut client, mut server) = pair(&a, &listener).await;
        let sending = tokio::spawn(async move { server.write_all(&pattern(0..BYTES, n)).await.unwrap() });
        let mut received = Vec::new();
        timeout(LIMIT, client.read_to_end(&mut received)).await.expect("it ends").unwrap();
        sending.await.unwrap();
        assert_eq!(received.len(), BYTES);
        assert!(began.elapsed() < Duration::from_secs(5), "waited {:?} behind slow readers", began.elapsed());
    }
    timeout(100 * LIMIT, tasks.join_all()).await.expect("all streams complete");
    assert!(slowest.elapsed() > LIMIT, "the readers were slow: {:?}", slowest.elapsed());
    assert_nothing_left(&[&a, &b]).await;
}
