//! Two endpoints over an emulated link in memory: data in both directions, closing, refusing, giving up.

use std::io;
use std::time::Duration;

use brisk_link::LinkSpec;
use brisk_runtime::{Endpoint, TcpListener, TcpStream, memory};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SEED: u64 = 7;

/// Returns bytes that depend on their position, so that a missing, duplicated or reordered segment is
/// detected.
fn pattern(len: usize, salt: u32) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(salt) >> 24) as u8).collect()
}

/// FNV-1a: differs if any byte differs.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn link(text: &str) -> LinkSpec {
    LinkSpec::parse(text).unwrap_or_else(|error| panic!("{error}"))
}

async fn pair(a: &Endpoint, b: &Endpoint) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(b, "10.0.0.2:0".parse().unwrap()).unwrap();
    let (client, accepted) = tokio::join!(a.connect(listener.local_addr()), listener.accept());
    (client.unwrap(), accepted.unwrap().0)
}

async fn exchange(stream: TcpStream, out: Vec<u8>) -> Vec<u8> {
    let (mut read, mut write) = stream.into_split();
    let writing = async move {
        write.write_all(&out).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let mut received = Vec::new();
    let (_, read) = tokio::join!(writing, read.read_to_end(&mut received));
    read.unwrap();
    received
}

async fn ten_megabytes_both_ways(spec: &str) {
    let (a, b) = memory::network(&link(spec), SEED).unwrap();
    let (client, server) = pair(&a, &b).await;
    let (up, down) = (pattern(10_000_000, 1), pattern(10_000_000, 2));
    let (sums, stats) = ((checksum(&up), checksum(&down)), client.handle());
    let (at_client, at_server) = tokio::join!(exchange(client, up), exchange(server, down));
    assert_eq!((at_server.len(), at_client.len()), (10_000_000, 10_000_000), "seed {SEED}");
    assert_eq!((checksum(&at_server), checksum(&at_client)), sums, "seed {SEED}");
    println!("{spec}: {:?}", stats.stats().map(|stats| stats.counters));
}

#[tokio::test]
async fn ten_megabytes_go_both_ways_over_a_clean_link() {
    ten_megabytes_both_ways("").await;
}

#[tokio::test(start_paused = true)]
async fn ten_megabytes_go_both_ways_over_a_lossy_link() {
    ten_megabytes_both_ways("--rtt 20ms --loss 1% --reorder 1%,3ms --duplicate 0.5%").await;
}

#[tokio::test]
async fn lossy_link_in_real_time_delivers_the_whole_stream() {
    let (a, b) = memory::network(&link("--rtt 4ms --rate 100mbit --loss 2%"), SEED).unwrap();
    let (client, server) = pair(&a, &b).await;
    let data = pattern(1_000_000, 3);
    let (answer, echo) = tokio::join!(exchange(client, data.clone()), exchange(server, data.clone()));
    assert!(answer == data && echo == data, "seed {SEED}");
}

/// Reads to the end, at most 5 kB at a time, with `read_bytes`.
async fn read_in_bytes(stream: TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    loop {
        let bytes = stream.read_bytes(5_000).await.unwrap();
        if bytes.is_empty() {
            return received;
        }
        assert!(bytes.len() <= 5_000);
        received.extend_from_slice(&bytes);
    }
}

#[tokio::test(start_paused = true)]
async fn read_bytes_returns_the_stream() {
    let (a, b) = memory::network(&link("--rtt 20ms --loss 1% --reorder 1%,3ms"), SEED).unwrap();
    let (mut client, server) = pair(&a, &b).await;
    let data = pattern(1_000_000, 5);
    let writing = async {
        client.write_all(&data).await.unwrap();
        client.shutdown().await.unwrap();
    };
    let ((), received) = tokio::join!(writing, read_in_bytes(server));
    assert!(received == data, "seed {SEED}");

    let (client, server) = pair(&a, &b).await;
    let (mut reading, _writing) = server.into_split();
    client.abort();
    let error = reading.read_bytes(9).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

/// Writes all data in pieces of several lengths: some are written at once, some in parts that fit, some are
/// copied.
async fn write_in_bytes(stream: &TcpStream, mut data: Bytes) {
    for len in [100_000, 7, 4_096, 1_500, 9_000].into_iter().cycle() {
        let mut piece = data.split_to(len.min(data.len()));
        match len {
            _ if piece.is_empty() => return,
            9_000 => stream.write_all_bytes(piece).await.unwrap(),
            _ => {
                while !piece.is_empty() {
                    assert!(stream.write_bytes(&mut piece).await.unwrap() > 0);
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn write_bytes_sends_the_stream() {
    let (a, b) = memory::network(&link("--rtt 20ms --loss 1% --reorder 1%,3ms"), SEED).unwrap();
    let (client, server) = pair(&a, &b).await;
    let data = Bytes::from(pattern(1_000_000, 7));
    let writing = async {
        write_in_bytes(&client, data.clone()).await;
        client.handle().shutdown().unwrap();
    };
    let ((), received) = tokio::join!(writing, read_in_bytes(server));
    assert!(received == data, "seed {SEED}");
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(data.is_unique(), "the stack still holds acknowledged data");
}

#[tokio::test(start_paused = true)]
async fn write_bytes_to_a_reset_connection_is_an_error() {
    let (a, b) = memory::network(&link("--rtt 20ms"), SEED).unwrap();
    let (client, server) = pair(&a, &b).await;
    let (_reading, mut writing) = client.into_split();
    server.abort();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut body = Bytes::from(pattern(10_000, 8));
    assert_eq!(writing.write_bytes(&mut body).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(body.len(), 10_000, "the failed write removed bytes");
    assert!(writing.write_all_bytes(body).await.is_err());
}

/// Each segment of the first flight gets its own acknowledgement, so that the loss of one does not delay the
/// sender (RFC 5681 section 4.2).
#[tokio::test(start_paused = true)]
async fn young_connection_acknowledges_each_segment_of_a_flight() {
    let (a, b) = memory::network(&link("--rtt 20ms"), SEED).unwrap();
    let (mut client, mut server) = pair(&a, &b).await;
    server.write_all(&pattern(14_000, 4)).await.unwrap();
    client.read_exact(&mut vec![0; 14_000]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let sent = client.stats().unwrap().counters.segments_out;
    assert!(sent >= 12, "SYN, its acknowledgement and one for each of ten segments: {sent}");
}

/// RFC 9937 permits one more segment for each acknowledgement that makes progress, even if two arrive at
/// once.
#[tokio::test(start_paused = true)]
async fn acknowledgements_that_arrive_at_once_each_let_recovery_go_on() {
    // On this link the SYN-ACK is packet 1. Ten segments follow, and the last nine are lost.
    let (a, b) = memory::network(&link("--rtt 40ms --loss down:list:3-11"), SEED).unwrap();
    let (mut client, mut server) = pair(&a, &b).await;
    let began = tokio::time::Instant::now();
    server.write_all(&pattern(14_000, 5)).await.unwrap();
    client.read_exact(&mut vec![0; 14_000]).await.unwrap();
    // The first flight takes half a round trip, and the probe leaves two round trips later. Recovery then
    // sends flights of 1, 2, 4 and 2 segments, one in each round trip.
    let round_trips = began.elapsed().as_secs_f64() / 0.040;
    assert!(round_trips < 8.0, "{round_trips}");
}

/// Six acknowledgements arrive together with three that report a loss: the segments that the six permit leave
/// before recovery begins.
#[tokio::test(start_paused = true)]
async fn a_loss_at_the_end_of_a_batch_of_acknowledgements_costs_no_round_trip() {
    // On this link the SYN-ACK is packet 1. The seventh of the ten segments in the first flight is lost.
    let (a, b) = memory::network(&link("--rtt 40ms --loss down:list:8"), SEED).unwrap();
    let (mut client, mut server) = pair(&a, &b).await;
    let began = tokio::time::Instant::now();
    server.write_all(&pattern(50_000, 6)).await.unwrap();
    client.read_exact(&mut vec![0; 50_000]).await.unwrap();
    // One round trip passes for the flight of ten and one for the flight of fourteen with the retransmission.
    // The rest arrives half a round trip later.
    let round_trips = began.elapsed().as_secs_f64() / 0.040;
    assert!(round_trips < 3.0, "{round_trips}");
}

#[tokio::test(start_paused = true)]
async fn closed_port_refuses_a_connection() {
    let (a, _b) = memory::network(&link("--rtt 10ms"), SEED).unwrap();
    let error = a.connect("10.0.0.2:81".parse().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test(start_paused = true)]
async fn connect_to_an_absent_host_times_out() {
    let (a, _b) = memory::network(&link("--loss 100%"), SEED).unwrap();
    let error = a.connect("10.0.0.2:80".parse().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn a_half_closed_stream_still_receives() {
    let (a, b) = memory::network(&link("--rtt 10ms"), SEED).unwrap();
    let (mut client, mut server) = pair(&a, &b).await;
    client.write_all(b"question").await.unwrap();
    client.shutdown().await.unwrap();
    let mut question = String::new();
    server.read_to_string(&mut question).await.unwrap();
    assert_eq!(question, "question");
    server.write_all(b"answer").await.unwrap();
    drop(server);
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "answer");
    let error = client.write_all(b"more").await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

#[tokio::test(start_paused = true)]
async fn an_abort_is_a_reset_for_the_peer() {
    let (a, b) = memory::network(&link("--rtt 10ms"), SEED).unwrap();
    let (client, mut server) = pair(&a, &b).await;
    client.abort();
    let error = server.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test(start_paused = true)]
async fn second_write_after_a_reset_is_a_broken_pipe() {
    let (a, b) = memory::network(&link("--rtt 10ms"), SEED).unwrap();
    let (client, mut server) = pair(&a, &b).await;
    client.abort();
    assert_eq!(server.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    let mut kinds = Vec::new();
    for _ in 0..3 {
        kinds.push(server.write(b"x").await.unwrap_err().kind());
    }
    let expected = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe, io::ErrorKind::BrokenPipe];
    assert_eq!(kinds, expected);
    assert_eq!(
        server.read_u8().await.unwrap_err().kind(),
        io::ErrorKind::ConnectionReset,
        "and no end of the stream"
    );
}

#[tokio::test(start_paused = true)]
async fn idle_holder_can_await_a_failure_and_an_orderly_end_is_none() {
    let (a, b) = memory::network(&link("--rtt 10ms"), SEED).unwrap();
    let (client, server) = pair(&a, &b).await;
    let (reset, ()) = tokio::join!(server.failed(), async { client.abort() });
    assert_eq!(reset.kind(), io::ErrorKind::ConnectionReset);
    let (mut client, mut server) = pair(&a, &b).await;
    let (handle, watched) = (server.handle(), Duration::from_secs(300));
    client.shutdown().await.unwrap();
    server.shutdown().await.unwrap();
    handle.closed().await;
    assert!(tokio::time::timeout(watched, server.failed()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn dropping_with_zero_linger_is_a_reset_and_without_a_close() {
    let (a, b) = memory::network(&link("--rtt 10ms"), SEED).unwrap();
    let (client, mut server) = pair(&a, &b).await;
    drop(client);
    assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
    let (client, mut server) = pair(&a, &b).await;
    client.set_linger(Some(Duration::ZERO));
    drop(client);
    assert_eq!(server.read(&mut [0; 8]).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test(start_paused = true)]
async fn peek_leaves_the_bytes_where_they_are() {
    let (a, b) = memory::network(&link("--rtt 10ms"), SEED).unwrap();
    let (mut client, mut server) = pair(&a, &b).await;
    client.write_all(b"abc").await.unwrap();
    let mut seen = [0; 8];
    assert_eq!(server.peek(&mut seen).await.unwrap(), 3);
    let mut read = [0; 3];
    server.read_exact(&mut read).await.unwrap();
    assert_eq!(&read, b"abc");
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_does_not_read_stops_the_writer() {
    let (a, b) = memory::network(&link("--rtt 10ms"), SEED).unwrap();
    let (mut client, mut server) = pair(&a, &b).await;
    let data = pattern(30_000_000, 4);
    let writing = tokio::spawn(async move {
        client.write_all(&data).await.unwrap();
        client.shutdown().await.unwrap();
        checksum(&data)
    });
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(!writing.is_finished(), "30 MB cannot be buffered");
    let mut received = Vec::new();
    server.read_to_end(&mut received).await.unwrap();
    assert_eq!(checksum(&received), writing.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn data_can_be_queued_before_the_handshake_is_complete() {
    let (a, b) = memory::network(&link("--rtt 10ms"), SEED).unwrap();
    let listener = TcpListener::bind(&b, "10.0.0.2:80".parse().unwrap()).unwrap();
    let (stream, taken) = a.connect_with_data(listener.local_addr(), b"early", &Default::default()).unwrap();
    assert_eq!(taken, 5);
    let (mut server, _) = listener.accept().await.unwrap();
    let mut early = [0; 5];
    server.read_exact(&mut early).await.unwrap();
    assert_eq!(&early, b"early");
    stream.connected().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn ipv6_works_as_ipv4_does() {
    let (a, b) = memory::network(&link("--rtt 10ms --loss 5%"), SEED).unwrap();
    let listener = TcpListener::bind(&b, "[fd00::2]:80".parse().unwrap()).unwrap();
    let (client, accepted) = tokio::join!(a.connect(listener.local_addr()), listener.accept());
    let (server, peer) = accepted.unwrap();
    assert!(peer.is_ipv6());
    let data = pattern(300_000, 5);
    let (answer, echo) =
        tokio::join!(exchange(client.unwrap(), data.clone()), exchange(server, data.clone()));
    assert!(answer == data && echo == data, "seed {SEED}");
}

#[tokio::test(start_paused = true)]
async fn thousand_short_connections_leave_no_state() {
    let (a, b) = memory::builders(&link("--rtt 10ms --loss 1%"), SEED);
    let msl = Duration::from_secs(1);
    let [a, b] = [a, b].map(|builder| builder.stack(|stack| stack.msl = msl).build().unwrap());
    let listener = TcpListener::bind(&b, "10.0.0.2:80".parse().unwrap()).unwrap();
    let address = listener.local_addr();
    let serving = tokio::spawn(async move {
        for _ in 0..1000 {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut request = [0; 4];
                stream.read_exact(&mut request).await.unwrap();
                stream.write_all(&request).await.unwrap();
            });
        }
    });
    let mut clients = tokio::task::JoinSet::new();
    for i in 0..1000_u32 {
        let a = a.clone();
        clients.spawn(async move {
            let mut stream = a.connect(address).await.unwrap();
            stream.write_all(&i.to_be_bytes()).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer, i.to_be_bytes(), "seed {SEED}");
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    serving.await.unwrap();
    a.wait_idle().await;
    b.wait_idle().await;
    tokio::time::sleep(3 * msl).await;
    assert_eq!((a.connections(), b.connections()), (0, 0), "no TIME-WAIT either");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_threads_share_one_stack() {
    let (a, b) = memory::network(&link("--rtt 2ms --loss 1%"), SEED).unwrap();
    let listener = TcpListener::bind(&b, "10.0.0.2:80".parse().unwrap()).unwrap();
    let address = listener.local_addr();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.into_split();
                tokio::io::copy(&mut read, &mut write).await.unwrap();
            });
        }
    });
    let mut clients = tokio::task::JoinSet::new();
    for i in 0..50 {
        let a = a.clone();
        clients.spawn(async move {
            let data = pattern(100_000, i);
            let answer = exchange(a.connect(address).await.unwrap(), data.clone()).await;
            assert!(answer == data, "client {i}, seed {SEED}");
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
}

/// Writers of 600 kB each send to readers that start late. The buffers of the readers' endpoint hold the data
/// of only a few writers.
async fn all_is_written_with_memory_of(max_buffer_bytes: usize, writers: usize) {
    let (a, b) = memory::builders(&link("--rtt 20ms --loss 1%"), SEED);
    let (a, b) =
        (a.stack(|stack| stack.max_buffer_bytes = max_buffer_bytes).build().unwrap(), b.build().unwrap());
    let data = Bytes::from(pattern(600_000, 9));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..writers {
        let (mut client, server) = pair(&a, &b).await;
        let (sent, expected) = (data.clone(), data.clone());
        tasks.spawn(async move {
            match n % 2 {
                0 => client.write_all(&sent).await.unwrap(),
                _ => client.write_all_bytes(sent).await.unwrap(),
            }
        });
        tasks.spawn(async move {
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert!(read_in_bytes(server).await == expected, "writer {n}, {max_buffer_bytes} bytes");
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn writers_wait_for_memory_and_lose_nothing() {
    for (max_buffer_bytes, writers) in [(64 << 10, 3), (512 << 10, 8), (2 << 20, 24)] {
        all_is_written_with_memory_of(max_buffer_bytes, writers).await;
    }
}
