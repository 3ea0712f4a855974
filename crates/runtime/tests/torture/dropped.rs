//! Streams that are dropped in the middle of a transfer, over a link that loses packets.

use std::io;

use brisk_runtime::{TcpConfig, TcpListener, TcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Duration, LIMIT, assert_nothing_left, builders, pair, pattern, server_address};

const PAIRS: usize = 500;
const BYTES: usize = 60_000;

/// How one end drops its stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Drops {
    /// Drops the stream while its task writes, with unread data of the peer.
    Writer,
    /// Drops the stream while its task writes, after reading all data so far.
    Both,
    /// Drops the write half, which sends FIN; the read half reads to the end.
    WriteHalf,
    /// Resets the connection.
    Aborts,
}

const DROPS: [Drops; 4] = [Drops::Writer, Drops::Both, Drops::WriteHalf, Drops::Aborts];

/// Sends the bytes of pattern `salt`, and a FIN.
async fn send(to: &mut (impl AsyncWriteExt + Unpin), salt: usize) -> io::Result<()> {
    for start in (0..BYTES).step_by(1_000) {
        to.write_all(&pattern(start..start + 1_000, salt)).await?;
    }
    to.shutdown().await
}

/// Reads to the end; checks each byte against pattern `salt`. Returns the number of bytes and the error.
async fn receive(from: &mut (impl AsyncReadExt + Unpin), salt: usize) -> (usize, Option<io::ErrorKind>) {
    let (mut received, mut buffer) = (0, [0; 3_000]);
    loop {
        match from.read(&mut buffer).await {
            Ok(0) => return (received, None),
            Ok(count) => {
                assert!(
                    buffer[..count] == pattern(received..received + count, salt),
                    "at {received} of {salt}"
                );
                received += count;
            }
            Err(error) => return (received, Some(error.kind())),
        }
    }
}

async fn give_up(mut stream: TcpStream, n: usize, drops: Drops, patience: Duration) {
    match drops {
        Drops::Writer => drop(timeout(patience, send(&mut stream, n)).await),
        Drops::Both => {
            let (mut reading, mut writing) = stream.split();
            let both = async { tokio::join!(send(&mut writing, n), receive(&mut reading, n + 1)) };
            drop(timeout(patience, both).await);
        }
        Drops::WriteHalf => {
            let (mut reading, mut writing) = stream.into_split();
            let sending = async move { drop(timeout(patience, send(&mut writing, n)).await) };
            let ((), received) = tokio::join!(sending, receive(&mut reading, n + 1));
            assert_eq!(received, (BYTES, None), "data from the peer was cut off");
        }
        Drops::Aborts => {
            drop(timeout(patience, send(&mut stream, n)).await);
            stream.abort();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn streams_dropped_in_mid_transfer_deliver_a_prefix_and_leak_nothing() {
    // Buffers hold a quarter of the data, so that a task still writes when its stream is dropped.
    let mut short = TcpConfig::default();
    for buffer in [&mut short.send_buffer, &mut short.receive_buffer] {
        (buffer.initial, buffer.max) = (BYTES / 4, BYTES / 4);
    }
    let (a, b) = builders("--rtt 20ms --loss 1%");
    let (a, b) = (a.tcp(short.clone()).build().unwrap(), b.tcp(short).build().unwrap());
    let listener = TcpListener::bind(&b, server_address()).unwrap();
    let mut pairs = Vec::new();
    for _ in 0..PAIRS {
        pairs.push(pair(&a, &listener).await);
    }
    let mut tasks = JoinSet::new();
    for (n, (client, server)) in pairs.into_iter().enumerate() {
        let drops = DROPS[n % DROPS.len()];
        let (leaves, mut stays) = if n % 8 < 4 { (client, server) } else { (server, client) };
        tasks.spawn(async move {
            let patience = Duration::from_millis(n as u64 * 7 % 120);
            let staying = async {
                let (mut reading, mut writing) = stays.split();
                let (sent, received) = tokio::join!(send(&mut writing, n + 1), receive(&mut reading, n));
                (sent.map_err(|error| error.kind()), received)
            };
            let (_, ended) = tokio::join!(give_up(leaves, n, drops, patience), timeout(LIMIT, staying));
            (drops, ended.expect("the other end does not learn that the stream was dropped"))
        });
    }
    let (mut cut, mut reset) = (0, 0);
    while let Some(ended) = tasks.join_next().await {
        let (drops, (sent, (received, error))) = ended.unwrap();
        cut += usize::from(received > 0 && received < BYTES);
        reset += usize::from(error.is_some());
        match drops {
            Drops::WriteHalf => assert_eq!((sent, error), (Ok(()), None)),
            // The peer of an end with unread data gets a reset, never an end of stream (RFC 9293, 3.6.1).
            Drops::Aborts => {
                assert!(error.is_some() || received == BYTES, "{received} bytes without an error")
            }
            Drops::Writer | Drops::Both => {}
        }
    }
    assert!(cut > PAIRS / 2 && reset > PAIRS / 4, "{cut} streams were cut, {reset} reset");
    assert_nothing_left(&[&a, &b]).await;
}
