//! Measures how the cost of an operation grows with the number of connections or segments: `cargo bench -p
//! brisk-tcp --bench growth`.
//!
//! The operations: a transaction over a new connection while 10, 1,000 or 100,000 others are open; a round
//! trip on one of these; bulk over 1, 10 or 100 connections at once; an acknowledgement with SACK while 10,
//! 1,000 or 30,000 segments are in flight and one in 50 is lost. The bench measures real time, which includes
//! cache misses, and prints the minimum of three runs. It has no limits, because results depend on the
//! machine.

#[path = "idle_connections/pair.rs"]
#[allow(dead_code)]
mod pair;

use std::time::Instant as Clock;

use brisk_tcp::config::{BufferConfig, CongestionAlgorithm, TcpConfig};
use brisk_tcp::stack::Rx;
use brisk_tcp::time::Duration;
use brisk_tcp::{ConnId, ConnectConfig, ListenConfig};
use pair::Pair;

const SEGMENT: usize = 1448;
const RUNS: usize = 3;

fn main() {
    println!("{:<44} {:>12} {:>8}", "one of", "nanoseconds", "ratio");
    report("new transaction among connections", [10, 1_000, 100_000], transaction_among);
    report("round trip of 64 bytes among connections", [10, 1_000, 100_000], round_trip_among);
    report("segment in bulk over connections", [1, 10, 100], segment_over);
    report("acknowledgement, segments in flight", [10, 1_000, 30_000], acknowledgement);
}

/// Prints the `cost` of each size, and its ratio to that of the first.
fn report(what: &str, sizes: [usize; 3], cost: fn(usize) -> f64) {
    let mut first = None;
    for size in sizes {
        let least = (0..RUNS).map(|_| cost(size)).fold(f64::INFINITY, f64::min);
        let ratio = least / *first.get_or_insert(least);
        println!("{:<44} {least:>12.0} {ratio:>8.2}", format!("{what}: {size}"));
    }
}

/// Returns the nanoseconds of a connection on which both ends exchange 100 and 5,000 bytes, from open to
/// close. Meanwhile `count` other connections are open and idle.
fn transaction_among(count: usize) -> f64 {
    const TIMES: usize = 20_000;
    let mut pair = Pair::new();
    for _ in 0..count {
        pair.transaction();
    }
    pair.pass(Duration::from_secs(2));
    let begun = Clock::now();
    for _ in 0..TIMES {
        let (client, server) = pair.transaction();
        pair.close(client, server);
        pair.pass(Duration::from_micros(10));
    }
    begun.elapsed().as_nanos() as f64 / TIMES as f64
}

/// Returns the nanoseconds, both ends, of a request and a response of 64 bytes. Each turn uses another of
/// `count` connections. Virtual time passes about as fast as real time. So with 100,000 connections each has
/// released its memory before its turn.
fn round_trip_among(count: usize) -> f64 {
    const TIMES: usize = 20_000;
    let mut pair = Pair::new();
    let open: Vec<(ConnId, ConnId)> = (0..count).map(|_| pair.transaction()).collect();
    pair.pass(Duration::from_secs(2));
    let begun = Clock::now();
    for turn in 0..TIMES {
        // Consecutive connections are far apart in the order of opening, so that caches do not help.
        let (client, server) = open[turn * 7_919 % count];
        pair.client.write(client, &[1; 64], pair.now).expect("the buffer is empty");
        pair.exchange();
        pair.drain_server(server);
        pair.server.write(server, &[2; 64], pair.now).expect("the buffer is empty");
        pair.exchange();
        pair.drain_client(client);
        pair.pass(Duration::from_micros(10));
    }
    begun.elapsed().as_nanos() as f64 / TIMES as f64
}

/// Returns the nanoseconds of a segment of 1,448 bytes while `count` connections send. Includes the segment's
/// share of acknowledgements.
fn segment_over(count: usize) -> f64 {
    const BYTES: usize = 20_000 * SEGMENT;
    let mut pair = Pair::new();
    let open: Vec<(ConnId, ConnId)> = (0..count).map(|_| pair.transaction()).collect();
    let chunk = [3; 65_536];
    let (mut unwritten, mut unread) = (vec![BYTES / count; count], BYTES / count * count);
    let begun = Clock::now();
    while unread > 0 {
        for (left, (_, server)) in unwritten.iter_mut().zip(&open) {
            if let Ok(written) = pair.server.write(*server, &chunk[..(*left).min(chunk.len())], pair.now) {
                *left -= written;
            }
        }
        pair.exchange();
        unread -= open.iter().map(|(client, _)| pair.drain_client(*client)).sum::<usize>();
        pair.exchange();
        pair.pass(Duration::from_millis(1));
    }
    begun.elapsed().as_nanos() as f64 / (BYTES / SEGMENT) as f64
}

/// Returns the nanoseconds in which the sender processes an acknowledgement and sends new segments.
fn acknowledgement(in_flight: usize) -> f64 {
    let buffer = BufferConfig { initial: 2 * in_flight * SEGMENT, max: 2 * in_flight * SEGMENT };
    let tcp = TcpConfig {
        congestion: CongestionAlgorithm::Fixed((in_flight * SEGMENT) as u32),
        send_buffer: buffer,
        receive_buffer: buffer,
        ..TcpConfig::default()
    };
    let listen = ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() };
    let connect = ConnectConfig { tcp, ..ConnectConfig::default() };
    let mut pair = Pair::with(listen, connect);
    let (client, server) = pair.open(&[]);
    let data = vec![4; in_flight * SEGMENT];
    let (mut took, mut count) = (0, 0);
    while count < 20_000 {
        assert_eq!(pair.server.write(server, &data, pair.now), Ok(data.len()));
        let (nanoseconds, acknowledgements) = lossy_flight(&mut pair);
        took += nanoseconds;
        count += acknowledgements;
        while pair.client.readable(client) > 0 || pair.server.writable(server) < 2 * data.len() {
            pair.pass(Duration::from_millis(10));
            pair.exchange();
            pair.drain_client(client);
        }
    }
    took as f64 / count as f64
}

/// Lets the server send its window, and loses one segment in 50. Each segment that arrives is acknowledged.
/// Returns the nanoseconds in which the server processed the acknowledgements, and their number.
fn lossy_flight(pair: &mut Pair) -> (u128, usize) {
    let mut packet = Vec::new();
    let mut flight = Vec::new();
    while pair.server.poll_transmit(pair.now, &mut packet).is_some() {
        flight.push(packet.clone());
    }
    pair.now += Duration::from_millis(10);
    let mut acknowledgements = Vec::new();
    for (_, segment) in flight.iter().enumerate().filter(|(number, _)| number % 50 != 1) {
        pair.client.on_packet(segment, Rx::default(), pair.now);
        while pair.client.poll_transmit(pair.now, &mut packet).is_some() {
            acknowledgements.push(packet.clone());
        }
    }
    let mut again = Vec::new();
    let begun = Clock::now();
    for acknowledgement in &acknowledgements {
        pair.server.on_packet(acknowledgement, Rx::default(), pair.now);
        while pair.server.poll_transmit(pair.now, &mut packet).is_some() {
            again.push(core::mem::take(&mut packet));
        }
    }
    let took = begun.elapsed().as_nanos();
    for segment in &again {
        pair.client.on_packet(segment, Rx::default(), pair.now);
    }
    (took, acknowledgements.len())
}
