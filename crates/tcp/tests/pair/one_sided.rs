//! The planner of a server whose peer has agreed to nothing. Times are milliseconds since the SYN left; one
//! way takes 50 ms.

use std::time::Duration;

use brisk_tcp::config::{HandshakeCopies, PlannerConfig, TcpConfig};
use brisk_tcp::connection::ConnStats;
use brisk_wire::Flags;

use crate::harness::{A, B, pattern};
use crate::path::{World, tcp};

const SYN_ACK: Flags = Flags(Flags::SYN.0 | Flags::ACK.0);

/// TCP of a server for unmodified clients.
fn one_sided(max_overhead: u32) -> TcpConfig {
    let mut config = TcpConfig { handshake_copies: Some(HandshakeCopies::default()), ..tcp() };
    config.mechanisms.planner = Some(PlannerConfig { max_overhead, ..PlannerConfig::ONE_SIDED });
    config
}

/// Returns a server that has lost four segments to an unmodified client.
fn known_loss(max_overhead: u32) -> World {
    let mut world = World::served_by(one_sided(max_overhead), tcp());
    world.lose_four();
    world.fetch(200_000);
    world.pair.tap = None;
    world
}

#[test]
fn syn_ack_leaves_twice_only_where_loss_is_known() {
    let mut unknown = World::served_by(one_sided(25), tcp());
    for _ in 0..2 {
        unknown.fetch(10_000);
        assert_eq!(unknown.times(B, SYN_ACK), [50], "no loss");
    }
    for (max_overhead, times) in [(25, &[50, 50][..]), (0, &[50])] {
        let mut known = known_loss(max_overhead);
        known.fetch(10_000);
        assert_eq!(known.times(B, SYN_ACK), times, "{max_overhead} %");
    }
}

#[test]
fn copy_opens_the_connection_if_the_syn_ack_is_lost() {
    let mut world = known_loss(25);
    let mut syn_acks = 0;
    world.pair.tap = Some(Box::new(move |from, segment| {
        syn_acks += u32::from(from == B && segment.tcp.flags == SYN_ACK);
        from == B && segment.tcp.flags == SYN_ACK && syn_acks == 1
    }));
    world.open();
    assert_eq!((world.pair.now - world.began).as_millis(), 150, "the copy is answered");
}

/// Sends `bytes` from B to A over a new connection. Returns the time at which they arrived, and B's view of
/// the connection a round trip later.
fn fetch(world: &mut World, bytes: usize) -> (u128, ConnStats) {
    let (at_a, at_b) = world.open();
    let began = world.pair.now;
    world.pair.transfer(B, at_b, at_a, &pattern(bytes), Duration::from_secs(100));
    let took = (world.pair.now - began).as_millis();
    world.pair.run_ms(300);
    let stats = world.pair.b.conn_stats(at_b).expect("open");
    world.close(at_a, at_b);
    (took, stats)
}

/// Loses the first instance of this data segment of B.
fn lose(world: &mut World, index: usize) {
    let mut data = 0;
    world.pair.tap = Some(Box::new(move |from, segment| {
        data += usize::from(from == B && !segment.payload.is_empty());
        from == B && !segment.payload.is_empty() && data == index
    }));
}

/// Two of its eight segments are a quarter.
const RESPONSE: usize = 8 * 1448;

#[test]
fn tail_is_copied_and_the_answer_is_no_sign_of_a_spurious_retransmission() {
    let mut world = known_loss(25);
    let loss = |world: &mut World| world.facts(B).loss.expect("known");
    let before = loss(&mut world);
    let (took, stats) = fetch(&mut world, RESPONSE);
    let counters = stats.counters;
    assert_eq!((took, counters.copies_sent, counters.dsacks), (50, 2, 2));
    assert_eq!((counters.retransmits, counters.retransmits_spurious, counters.probes), (0, 0, 0));
    assert_eq!((counters.undos, counters.reductions, stats.reordering_seen), (0, 0, false));
    let after = loss(&mut world);
    assert_eq!(
        after.segments - before.segments,
        10,
        "not the SYN-ACK, but both instances of the copied ones"
    );
    assert!(after.per_million < before.per_million, "{before:?}, then {after:?}");
}

/// The known losses came in runs, so the copies leave a quarter of a round trip after their originals.
#[test]
fn copy_repairs_a_lost_segment_without_a_sign_of_reordering() {
    for lost in [7, 8] {
        let mut world = known_loss(25);
        lose(&mut world, lost);
        let (took, stats) = fetch(&mut world, RESPONSE);
        let counters = stats.counters;
        assert_eq!((took, counters.copies_sent, counters.dsacks), (75, 2, 1), "{lost}");
        assert_eq!((counters.retransmits, counters.probes, counters.undos), (0, 0, 0), "{lost}");
        assert!(!stats.reordering_seen, "{lost}: the copy of a lost segment is not a late original");
    }
}

/// The first response shows that the peer sends DSACKs. So the missing DSACK of the second one counts.
#[test]
fn loss_that_a_copy_repairs_is_learnt_from_the_missing_dsack() {
    let mut world = known_loss(25);
    let (at_a, at_b) = world.open();
    for (lost, losses) in [(usize::MAX, 0), (8, 0), (usize::MAX, 1)] {
        lose(&mut world, lost);
        world.pair.transfer(B, at_b, at_a, &pattern(RESPONSE), Duration::from_secs(100));
        world.pair.run_ms(300);
        let stats = world.pair.b.conn_stats(at_b).expect("open");
        assert_eq!((stats.lost_segments, stats.counters.retransmits), (losses, 0));
    }
}

#[test]
fn report_of_a_copy_that_a_longer_round_trip_delays_is_not_missing() {
    let mut world = known_loss(25);
    let (at_a, at_b) = world.open();
    for delay in [50, 50, 98] {
        world.pair.channel.delay = Duration::from_millis(delay);
        world.pair.transfer(B, at_b, at_a, &pattern(4 * 1448), Duration::from_secs(100));
        world.pair.run_ms(400);
        let stats = world.pair.b.conn_stats(at_b).expect("open");
        assert_eq!((stats.lost_segments, stats.counters.retransmits), (0, 0), "{delay}");
    }
}

/// Originals, copies and a probe arrive, and only the answer to the probe returns: the probe repaired no loss
/// (RFC 8985 section 7.4.2).
#[test]
fn probe_after_lost_answers_to_copies_has_repaired_no_loss() {
    let mut world = known_loss(25);
    let (at_a, at_b) = world.open();
    let mut data = 0;
    world.pair.tap = Some(Box::new(move |from, segment| {
        data += usize::from(from == B && !segment.payload.is_empty());
        from == A && (1..11).contains(&data)
    }));
    for _ in 0..2 {
        world.pair.transfer(B, at_b, at_a, &pattern(RESPONSE), Duration::from_secs(100));
        world.pair.run_ms(500);
    }
    let stats = world.pair.b.conn_stats(at_b).expect("open");
    let counters = stats.counters;
    assert_eq!((counters.probes, counters.reductions, counters.repaired_by_probe), (1, 0, 0));
    assert_eq!(stats.lost_segments, 1, "only the copy whose report is missing");
}

/// SACK shows the loss of a copied segment before its copy arrives, so it is sent again.
#[test]
fn echo_of_a_copy_does_not_undo_the_response_to_a_loss() {
    let mut world = known_loss(100);
    lose(&mut world, 5);
    let (_, stats) = fetch(&mut world, RESPONSE);
    let counters = stats.counters;
    assert!(counters.copies_sent >= 4, "{}", counters.copies_sent);
    assert_eq!((counters.retransmits, counters.reductions), (1, 1));
    assert_eq!((counters.undos, stats.reordering_seen), (0, false));
}

#[test]
fn data_is_not_copied_without_known_loss_sack_or_the_switch() {
    let copies = |world: &mut World| fetch(world, RESPONSE).1.counters.copies_sent;
    assert_eq!(copies(&mut World::served_by(one_sided(25), tcp())), 0, "no loss is known");
    assert_eq!(copies(&mut known_loss(0)), 0, "no allowance");
    let planned = TcpConfig { delack_max: Duration::ZERO, ..TcpConfig::planned(25) };
    for (server, client) in [(one_sided(25), TcpConfig { sack: false, ..tcp() }), (planned, tcp())] {
        let mut world = World::served_by(server, client);
        world.lose_four();
        world.fetch(200_000);
        world.pair.tap = None;
        assert_eq!(copies(&mut world), 0);
    }
}
