//! The planner between two stacks: the allowance that connections to one destination share.

use std::time::Duration;

use brisk_tcp::ConnId;
use brisk_tcp::config::{
    ConnectConfig, CopyScope, ListenConfig, PacingConfig, PlannerConfig, ProactiveConfig, TcpConfig,
};

use brisk_wire::{Flags, Segment, TcpHeader};

use crate::harness::{A, B, Pair, pattern};

const CONNECTIONS: u64 = 40;
const PERCENT: u32 = 1;
/// Bytes of the allowance before any transmission: seven segments' worth.
const QUIET: u64 = (PlannerConfig::QUIET / 100 * PERCENT) as u64;
const SEGMENT: usize = 1_400;

/// Returns forty connections to one peer over a path with an expected loss of every tenth packet, and their
/// ids at A.
fn connected() -> (Pair, Vec<ConnId>) {
    let mut tcp = TcpConfig { handshake_copies: None, ..TcpConfig::planned(PERCENT) };
    tcp.mechanisms.planner =
        Some(PlannerConfig { max_overhead: PERCENT, assumed_loss: 100_000, ..PlannerConfig::default() });
    let mut pair = Pair::new(1);
    let listener = pair.listen(B, 80, ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() });
    let connect = ConnectConfig { tcp, ..ConnectConfig::default() };
    let ids = (0..CONNECTIONS).map(|_| pair.established_at(listener, &connect).0).collect();
    pair.run(Duration::from_secs(20));
    pair.seen.clear();
    (pair, ids)
}

/// Bytes of IP and TCP headers, with timestamps.
const HEADERS: u64 = 52;

/// Returns the IP bytes that A has sent to B in `writes` writes, and in copies and parity.
fn sent_and_spent(pair: &Pair, ids: &[ConnId], writes: u64) -> (u64, u64) {
    let (mut sent, mut spent) = (writes * SEGMENT as u64, 0);
    for id in ids {
        let counters = pair.a.conn_stats(*id).expect("there").counters;
        sent += counters.data_segments_out * HEADERS;
        spent += counters.redundant_bytes + (counters.copies_sent + counters.parity.sent) * HEADERS;
    }
    (sent, spent)
}

#[test]
fn flights_that_are_planned_in_one_instant_share_the_allowance() {
    let (mut pair, ids) = connected();
    for id in &ids {
        pair.write(A, *id, &pattern(SEGMENT)).expect("taken");
    }
    pair.run(Duration::from_millis(1));
    let (sent, spent) = sent_and_spent(&pair, &ids, CONNECTIONS);
    let earned = sent * u64::from(PERCENT) / 100;
    assert!(spent >= QUIET / 2, "{spent} bytes: it is spent, though");
    assert!(spent <= QUIET + earned, "{spent} bytes of {QUIET} and {earned}");
}

/// A reservation is charged once, so successive flights spend the whole allowance and no more.
#[test]
fn flights_in_turn_spend_the_whole_allowance() {
    let (mut pair, ids) = connected();
    for id in ids.iter().chain(&ids) {
        pair.write(A, *id, &pattern(SEGMENT)).expect("taken");
        pair.run(Duration::from_millis(120));
    }
    let (sent, spent) = sent_and_spent(&pair, &ids, 2 * CONNECTIONS);
    let allowance = QUIET + sent * u64::from(PERCENT) / 100;
    assert!(spent <= allowance, "{spent} bytes of {allowance}");
    assert!(spent + 2 * (SEGMENT as u64 + 100) >= allowance, "{spent} bytes of {allowance}");
}

/// Pacing holds the parity of the first piece back until the second one is planned.
#[test]
fn a_new_plan_keeps_the_unspent_bytes_of_the_last_one() {
    let mut tcp = TcpConfig {
        handshake_copies: None,
        initial_window: 64,
        pacing: Some(PacingConfig::default()),
        nodelay: true,
        ..TcpConfig::planned(50)
    };
    tcp.mechanisms.planner =
        Some(PlannerConfig { max_overhead: 50, assumed_loss: 100_000, ..PlannerConfig::default() });
    let mut pair = Pair::new(1);
    let listener = pair.listen(B, 80, ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() });
    let (id, _) = pair.established_at(listener, &ConnectConfig { tcp, ..ConnectConfig::default() });
    for piece in [29_900, 30_100] {
        pair.write(A, id, &pattern(piece)).expect("taken");
        pair.run(Duration::from_micros(10));
    }
    pair.run(Duration::from_secs(2));
    let parity = pair.a.conn_stats(id).expect("there").counters.parity;
    assert!(parity.sent >= 8, "{parity:?}");
    assert_eq!(parity.unsent_state, 0, "all that was planned has left");
}

/// The copier copies every segment, but a plan without redundancy stops it.
#[test]
fn the_limit_of_a_plan_holds_for_the_copy_of_a_bare_fin() {
    let nothing = PlannerConfig { max_overhead: 0, ..PlannerConfig::default() };
    for (planner, sends_data) in [(None, false), (Some(nothing), false), (Some(nothing), true)] {
        let mut tcp = TcpConfig { handshake_copies: None, nodelay: true, ..TcpConfig::planned(1) };
        tcp.mechanisms.planner = planner;
        tcp.mechanisms.proactive =
            Some(ProactiveConfig { scope: CopyScope::All, ..ProactiveConfig::default() });
        let mut pair = Pair::new(1);
        let listener = pair.listen(B, 80, ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() });
        let connect = ConnectConfig { tcp, ..ConnectConfig::default() };
        let (id, _) = pair.established_at(listener, &connect);
        if sends_data {
            pair.write(A, id, b"x").expect("taken");
        }
        pair.run(Duration::from_secs(1));
        pair.shutdown(A, id);
        pair.run(Duration::from_secs(1));
        let copies = pair.a.conn_stats(id).expect("there").counters.copies_sent;
        assert_eq!(copies, u64::from(planner.is_none()), "{planner:?}, data before the FIN: {sends_data}");
    }
}

/// The program releases the connections and the peer resets them, so they end without another poll.
#[test]
fn connections_that_end_return_what_they_had_reserved() {
    let mut tcp = TcpConfig {
        handshake_copies: None,
        initial_window: 64,
        pacing: Some(PacingConfig::default()),
        nodelay: true,
        ..TcpConfig::planned(2)
    };
    tcp.mechanisms.planner =
        Some(PlannerConfig { max_overhead: 2, assumed_loss: 100_000, ..PlannerConfig::default() });
    let mut pair = Pair::new(1);
    let listener = pair.listen(B, 80, ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() });
    let connect = ConnectConfig { tcp, ..ConnectConfig::default() };
    for round in 0..10 {
        let (id, _) = pair.established_at(listener, &connect);
        let reset = TcpHeader { flags: Flags::RST, ..pair.next_header(B) };
        pair.write(A, id, &pattern(30_000)).expect("taken");
        pair.run(Duration::from_micros(10));
        let counters = pair.a.conn_stats(id).expect("there").counters;
        assert_eq!(counters.planned_protected, 1, "round {round}");
        assert_eq!(counters.parity.sent, 0, "it waits for the data");
        pair.release(A, id);
        pair.forge(A, &reset, &[]);
        assert!(pair.a.conn_stats(id).is_none(), "it has ended");
    }
}

/// An answer does not show which of the two instances arrived. The peer may use the copy of a FIN, but its
/// report of that would arrive too late.
#[test]
fn duplicated_handshakes_and_fins_do_not_count_as_losses() {
    let mut tcp = TcpConfig::planned(50);
    tcp.mechanisms.planner =
        Some(PlannerConfig { max_overhead: 50, assumed_loss: 100_000, ..PlannerConfig::default() });
    tcp.mechanisms.corrective = None;
    let mut pair = Pair::new(1);
    let listener = pair.listen(B, 80, ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() });
    let (at_a, at_b) = pair.established_at(listener, &ConnectConfig { tcp, ..ConnectConfig::default() });
    pair.write(A, at_a, b"x").expect("taken");
    pair.shutdown(A, at_a);
    pair.run(Duration::from_secs(1));
    let copies = pair.a.conn_stats(at_a).expect("there").counters;
    assert_eq!((copies.syn_copies, copies.copies_sent), (1, 1));
    pair.shutdown(B, at_b);
    pair.run(Duration::from_secs(100));
    let facts: Vec<_> = pair.a.paths(pair.now).map(|(_, _, facts)| facts.loss).collect();
    assert_eq!(facts, [None], "nothing is known");
}

/// The peer's acknowledgements are known to come within 40 ms. So the probe for a lost tail leaves a round
/// trip, a quarter of one and these 40 ms after the tail. It does not wait two round trips after the
/// acknowledgement of the rest.
#[test]
fn a_probe_of_a_planned_flight_counts_from_its_last_segment() {
    let at_once = |tcp| TcpConfig { delack_max: Duration::ZERO, ..tcp };
    let mut planned = TcpConfig { handshake_copies: None, ..at_once(TcpConfig::planned(1)) };
    planned.mechanisms.planner = Some(PlannerConfig { max_overhead: 0, ..PlannerConfig::default() });
    for (tcp, after) in [(planned, 165), (at_once(TcpConfig::default()), 400)] {
        let mut pair = Pair::new(1);
        pair.channel.delay = Duration::from_millis(50);
        let listener = pair.listen(B, 80, ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() });
        let (at_a, _) = pair.established_at(listener, &ConnectConfig { tcp, ..ConnectConfig::default() });
        for _ in 0..20 {
            pair.write(A, at_a, &pattern(SEGMENT)).expect("taken");
            pair.run(Duration::from_millis(300));
        }
        let is_tail = |len: usize| (1..200).contains(&len);
        pair.tap =
            Some(Box::new(move |from, segment: &Segment<'_>| from == A && is_tail(segment.payload.len())));
        let written = pair.now;
        pair.seen.clear();
        pair.write(A, at_a, &pattern(1_550)).expect("taken");
        pair.run(Duration::from_secs(1));
        let tails = pair.seen.iter().filter(|seen| seen.from == A && is_tail(seen.len));
        let left: Vec<_> = tails.map(|seen| seen.at.saturating_since(written).as_millis()).take(2).collect();
        assert_eq!(left, [0, after]);
    }
}

/// Before the variation of the round-trip time is known, the probe leaves as early as without a planner.
#[test]
fn a_probe_of_a_planned_flight_is_never_later_than_without_a_planner() {
    let mut planned = TcpConfig { handshake_copies: None, ..TcpConfig::planned(1) };
    planned.mechanisms.planner = Some(PlannerConfig { max_overhead: 0, ..PlannerConfig::default() });
    for delay in [5, 50] {
        let probes = [&planned, &TcpConfig::default()].map(|tcp| {
            let mut pair = Pair::new(1);
            pair.channel.delay = Duration::from_millis(delay);
            let listener = pair.listen(B, 80, ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() });
            let connect = ConnectConfig { tcp: tcp.clone(), ..ConnectConfig::default() };
            let (at_a, _) = pair.established_at(listener, &connect);
            pair.tap = Some(Box::new(|from, segment: &Segment<'_>| from == A && !segment.payload.is_empty()));
            pair.write(A, at_a, &pattern(3 * SEGMENT)).expect("taken");
            let written = pair.now;
            pair.run(Duration::from_secs(2));
            let sent = pair.seen.iter().filter(|seen| seen.from == A && seen.len > 0 && seen.at > written);
            sent.map(|seen| seen.at.saturating_since(written)).next().expect("a probe")
        });
        assert!(probes[0] <= probes[1], "{probes:?}");
    }
}
