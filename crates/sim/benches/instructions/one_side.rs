//! Cases with one end only: the packets of the other end exist before the count begins.

use brisk_tcp::ConnId;
use brisk_tcp::config::{
    BufferConfig, CongestionAlgorithm, CopyScope, CorrectiveConfig, ProactiveConfig, TcpConfig,
};
use brisk_tcp::event::Origin;
use brisk_tcp::stack::Rx;
use brisk_tcp::time::Duration;

use crate::cases::{Case, SEGMENT};
use crate::pair::Pair;

/// Number of segments of a flight, and of the second count of a case (the first count has half).
const FLIGHT: u64 = 3_000;
const HALF: u64 = FLIGHT / 2;
/// Number of segments that are written or read in one call.
const AT_ONCE: u64 = 16;
/// Number of connections, each with one parity group.
const GROUPS: u64 = 100;
const ROUND_TRIP: Duration = Duration::from_millis(10);
/// In a flight with losses, one segment in this many is lost.
const LOST_EACH: usize = 10;

pub(crate) const CASES: [Case; 9] = [
    Case { name: "segment out", times: HALF, of: 1, run: segments_out },
    Case { name: "segment in", times: HALF, of: 1, run: |times| segments_in(large(FLIGHT), times) },
    Case { name: "acknowledgement in", times: HALF / 2, of: 1, run: acknowledgements_in },
    Case { name: "SACK in, 10 in flight", times: 100, of: 9, run: |times| sacks_in(10, 200, times) },
    Case { name: "SACK in, 1,000 in flight", times: 5, of: 900, run: |times| sacks_in(1_000, 10, times) },
    Case { name: "parity of 16 segments out", times: GROUPS / 2, of: 1, run: parities_out },
    Case { name: "parity in, a segment repaired", times: GROUPS / 2, of: 1, run: repairs },
    Case { name: "segment in, Proactive", times: HALF, of: 1, run: |times| segments_in(copying(), times) },
    Case { name: "copy in, dropped", times: HALF, of: 1, run: copies_in },
];

/// Returns a configuration whose window and buffers suffice for a flight of `segments`.
fn large(segments: u64) -> TcpConfig {
    let bytes = segments as usize * SEGMENT;
    let buffer = BufferConfig { initial: 2 * bytes, max: 2 * bytes };
    TcpConfig {
        congestion: CongestionAlgorithm::Fixed(bytes as u32),
        send_buffer: buffer,
        receive_buffer: buffer,
        ..TcpConfig::default()
    }
}

/// Returns the configuration [`large`] with every segment sent twice.
fn copying() -> TcpConfig {
    let mut tcp = large(FLIGHT);
    tcp.mechanisms.proactive = Some(ProactiveConfig { scope: CopyScope::All, ..ProactiveConfig::default() });
    tcp
}

/// The program writes and the segments leave.
fn segments_out(times: u64) {
    let mut pair = Pair::new(&large(FLIGHT), false);
    let (_, server) = pair.open_over(ROUND_TRIP);
    let data = [3; AT_ONCE as usize * SEGMENT];
    let mut sent = 0;
    while sent < times {
        let max = (times - sent).min(AT_ONCE);
        let written = pair.server.write(server, &data[..max as usize * SEGMENT], pair.now);
        assert_eq!(written, Ok(max as usize * SEGMENT));
        sent += pair.send() as u64;
    }
}

/// Segments arrive, are acknowledged and read.
fn segments_in(tcp: TcpConfig, times: u64) {
    let mut pair = Pair::new(&tcp, false);
    let (client, server) = pair.open_over(ROUND_TRIP);
    let flight = pair.flight(server, FLIGHT as usize);
    let originals = flight.iter().filter(|(origin, _)| *origin == Origin::New);
    for (number, (_, segment)) in (1..=times).zip(originals) {
        pair.arrive(segment);
        if number % AT_ONCE == 0 {
            assert_eq!(pair.drain_client(client), AT_ONCE as usize * SEGMENT);
        }
    }
}

/// Acknowledgements of two segments each arrive.
fn acknowledgements_in(times: u64) {
    let mut pair = Pair::new(&large(FLIGHT), false);
    let (client, server) = pair.open_over(ROUND_TRIP);
    let flight = pair.flight(server, FLIGHT as usize);
    let acknowledgements = pair.answers(flight.iter().map(|(_, segment)| segment.as_slice()));
    pair.drain_client(client);
    assert!(acknowledgements.len() as u64 >= HALF);
    pair.now += ROUND_TRIP;
    for acknowledgement in acknowledgements.iter().take(times as usize) {
        pair.server.on_packet(acknowledgement, Rx::default(), pair.now);
        assert_eq!(pair.send(), 0, "there is nothing more to send");
    }
}

/// All acknowledgements of a flight that lost every tenth segment arrive, and the retransmissions leave. This
/// happens on `times` of `flights` connections.
fn sacks_in(in_flight: usize, flights: usize, times: u64) {
    let mut pair = Pair::new(&large(in_flight as u64), false);
    let open: Vec<_> = (0..flights).map(|_| pair.open_over(ROUND_TRIP)).collect();
    let flights: Vec<_> = open.iter().map(|(_, server)| pair.flight(*server, in_flight)).collect();
    pair.now += ROUND_TRIP;
    let mut acknowledgements = Vec::new();
    for flight in &flights {
        let arrive = flight.iter().enumerate().filter(|(number, _)| number % LOST_EACH != 1);
        acknowledgements.push(pair.answers(arrive.map(|(_, (_, segment))| segment.as_slice())));
    }
    for acknowledgements in acknowledgements.iter().take(times as usize) {
        let mut again = 0;
        for acknowledgement in acknowledgements {
            pair.server.on_packet(acknowledgement, Rx::default(), pair.now);
            again += pair.send();
        }
        assert_eq!((acknowledgements.len(), again), (in_flight * 9 / 10, in_flight / LOST_EACH));
    }
}

/// Returns stacks with [`GROUPS`] connections, and the client's end of each. Each connection has sent a group
/// of 16 segments, of which the second was lost. The parities are due one after the other.
fn groups() -> (Pair, Vec<ConnId>) {
    let mut tcp = large(AT_ONCE);
    tcp.mechanisms.corrective = Some(CorrectiveConfig::default());
    let mut pair = Pair::new(&tcp, false);
    let open: Vec<_> = (0..GROUPS).map(|_| pair.open_over(ROUND_TRIP)).collect();
    for (_, server) in &open {
        // Segments leave space for the parity option, so the group has 15 full segments and a short one.
        let group = pair.flight(*server, AT_ONCE as usize - 1);
        assert_eq!(group.len(), AT_ONCE as usize);
        let arrive = group.iter().enumerate().filter(|(number, _)| *number != 1);
        pair.answers(arrive.map(|(_, (_, segment))| segment.as_slice()));
        pair.now += Duration::from_micros(10);
    }
    (pair, open.into_iter().map(|(client, _)| client).collect())
}

fn next_parity(pair: &mut Pair) -> Vec<u8> {
    loop {
        pair.now = pair.server.next_timeout().expect("parities are due");
        pair.server.on_timeout(pair.now);
        if let Some((_, parity)) = pair.sent().into_iter().find(|(origin, _)| *origin == Origin::Parity) {
            return parity;
        }
    }
}

fn parities_out(times: u64) {
    let (mut pair, _) = groups();
    (0..times).for_each(|_| drop(next_parity(&mut pair)));
}

/// Parities arrive, and the client reads the repaired data.
fn repairs(times: u64) {
    let (mut pair, clients) = groups();
    let parities: Vec<_> = clients.iter().map(|_| next_parity(&mut pair)).collect();
    for (parity, client) in parities.iter().zip(&clients).take(times as usize) {
        pair.arrive(parity);
        assert_eq!(pair.drain_client(*client), (AT_ONCE as usize - 1) * SEGMENT);
    }
}

/// Copies arrive after their originals.
fn copies_in(times: u64) {
    let mut pair = Pair::new(&copying(), false);
    let (client, server) = pair.open_over(ROUND_TRIP);
    let flight = pair.flight(server, FLIGHT as usize);
    let (originals, copies): (Vec<_>, Vec<_>) = flight.iter().partition(|(origin, _)| *origin == Origin::New);
    for (_, segment) in &originals {
        pair.arrive(segment);
    }
    for (_, copy) in copies.iter().take(times as usize) {
        assert_eq!(pair.arrive(copy), 0, "a copy gets no answer");
    }
    let dropped = pair.client.conn_stats(client).map(|stats| stats.counters.copies_dropped);
    assert_eq!(dropped, Some(times));
}
