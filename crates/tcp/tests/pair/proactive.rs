//! Proactive between two stacks. The stream is complete on any channel, and copies cause no retransmission,
//! however the devices at both ends coalesce segments.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use brisk_tcp::config::{
    ConnectConfig, CopyMark, CopyRule, CopyScope, ListenConfig, PlannerConfig, ProactiveConfig, StackConfig,
    TcpConfig,
};
use brisk_tcp::connection::Counters;
use brisk_tcp::error::CloseReason;
use brisk_tcp::event::Observation;
use brisk_tcp::internals::plan::{Form, Protection};
use brisk_tcp::stack::Rx;
use brisk_tcp::{ConnId, Event, Stack};
use brisk_wire::{Flags, TcpHeader};
use proptest::prelude::*;

use crate::harness::{A, B, Pair, Side, packet, pattern, stack_config};
use crate::hostile::{channel, exchange};

fn tcp(proactive: ProactiveConfig) -> TcpConfig {
    let mut tcp = TcpConfig::default();
    tcp.mechanisms.proactive = Some(proactive);
    tcp
}

const ALL: ProactiveConfig = ProactiveConfig { scope: CopyScope::All, ..ProactiveConfig::DEFAULT };

/// Returns two connected stacks with Proactive whose devices take super-segments of this size.
fn connected(super_segment: u32) -> (Pair, ConnId, ConnId) {
    connected_by(super_segment, false)
}

/// Like [`connected`]. The devices may be able to send each segment twice.
fn connected_by(super_segment: u32, sends_twice: bool) -> (Pair, ConnId, ConnId) {
    let config = |side| StackConfig { max_super_segment: super_segment, sends_twice, ..stack_config(side) };
    let mut pair = Pair::with_configs(1, config(A), config(B));
    let listener = pair.listen(B, 80, ListenConfig { tcp: tcp(ALL), ..ListenConfig::default() });
    let (at_a, at_b) =
        pair.established_at(listener, &ConnectConfig { tcp: tcp(ALL), ..ConnectConfig::default() });
    (pair, at_a, at_b)
}

fn counters(stack: &Stack, id: ConnId) -> Counters {
    stack.conn_stats(id).expect("there").counters
}

fn is_copy(tcp: &TcpHeader) -> bool {
    tcp.flags.contains(Flags::R4)
}

#[test]
fn nothing_is_retransmitted_with_offload_and_batches() {
    for (super_segment, sends_twice) in [(0, false), (65_000, false), (65_000, true)] {
        for batches in [false, true] {
            let (mut pair, at_a, at_b) = connected_by(super_segment, sends_twice);
            pair.batches = batches;
            pair.transfer(A, at_a, at_b, &pattern(300_000), Duration::from_secs(60));
            let sender = counters(&pair.a, at_a);
            assert_eq!((sender.retransmits, sender.dsacks, sender.reductions), (0, 0, 0));
            assert!(sender.copies_sent >= 300_000 / 1460, "{}", sender.copies_sent);
            assert_eq!(sender.copies_sent, sender.data_segments_out);
            assert_eq!(counters(&pair.b, at_b).copies_dropped, sender.copies_sent);
            let (left, segments) = (pair.a.stats().packets_out, sender.data_segments_out);
            assert_eq!(
                left < segments / 2,
                sends_twice,
                "{left} packets for {segments} segments and their copies"
            );
            let seen = pair.seen.iter().filter(|seen| seen.from == A).count() as u64;
            assert_eq!(sender.segments_out, seen);
            let data = |seen: &&crate::harness::Seen| seen.from == A && seen.len > 0;
            let order: Vec<(u32, bool)> =
                pair.seen.iter().filter(data).map(|seen| (seen.tcp.seq.0, is_copy(&seen.tcp))).collect();
            for two in order.chunks(2) {
                assert_eq!(
                    two.first().map(|(seq, _)| (*seq, true)),
                    two.last().copied(),
                    "each behind its own"
                );
            }
        }
    }
}

/// Figure 8 of the paper, with each copy after its original. Every twentieth original is lost.
#[test]
fn a_lost_original_causes_no_retransmission_and_one_reduction_a_window() {
    for (batches, sends_twice) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mut pair, at_a, at_b) = connected_by(65_000, sends_twice);
        pair.batches = batches;
        let mut originals = 0;
        pair.tap = Some(Box::new(move |from, segment| {
            let original = from == A && !segment.payload.is_empty() && !is_copy(&segment.tcp);
            originals += u32::from(original);
            original && originals % 20 == 7
        }));
        pair.transfer(A, at_a, at_b, &pattern(300_000), Duration::from_secs(60));
        let (sender, receiver) = (counters(&pair.a, at_a), counters(&pair.b, at_b));
        assert_eq!((sender.retransmits, sender.timeouts, sender.dsacks), (0, 0, 0));
        assert!(receiver.repaired_by_copy >= 10, "{}", receiver.repaired_by_copy);
        assert!(sender.masked_losses > 0 && sender.reductions == sender.masked_losses);
        assert!(sender.masked_losses <= receiver.repaired_by_copy);
    }
}

/// Segments that the tap holds back.
type Held = Vec<(TcpHeader, Vec<u8>)>;

/// The copies arrive first. Then a device passes their originals as one coalesced segment.
#[test]
fn originals_that_a_device_coalesced_are_recognised_one_by_one() {
    let (mut pair, at_a, at_b) = connected(0);
    let held: Rc<RefCell<Held>> = Rc::default();
    let holds = Rc::clone(&held);
    pair.tap = Some(Box::new(move |from, segment| {
        let original = from == A && !segment.payload.is_empty() && !is_copy(&segment.tcp);
        if original {
            holds.borrow_mut().push((segment.tcp.clone(), segment.payload.to_vec()));
        }
        original
    }));
    assert_eq!(pair.write(A, at_a, &pattern(4_000)), Ok(4_000));
    pair.run_ms(11);
    let before = counters(&pair.b, at_b);
    assert_eq!((before.copies_used, before.payload_bytes_received), (3, 4_000));
    let held = held.take();
    let payload: Vec<u8> = held.iter().flat_map(|(_, payload)| payload.clone()).collect();
    let (first, size) = (&held[0].0, held[0].1.len());
    let joined = packet(A.addr(first.src_port), B.addr(first.dst_port), first, &payload);
    let sent = pair.seen.len();
    let now = pair.now;
    pair.b.on_packet(&joined, Rx { segment_size: Some(size as u16), ..Rx::default() }, now);
    pair.run_ms(1);
    assert_eq!(counters(&pair.b, at_b).originals_dropped, 3);
    assert_eq!(pair.seen.len(), sent, "no acknowledgement leaves for them");
}

/// An observer of a stack gets a report of each loss that a copy repaired, and of the reduced window.
#[test]
fn a_loss_that_a_copy_repaired_is_observed_at_both_ends() {
    let observed = |side| StackConfig { observe: true, ..stack_config(side) };
    let mut pair = Pair::with_configs(1, observed(A), observed(B));
    let listener = pair.listen(B, 80, ListenConfig { tcp: tcp(ALL), ..ListenConfig::default() });
    let (at_a, at_b) =
        pair.established_at(listener, &ConnectConfig { tcp: tcp(ALL), ..ConnectConfig::default() });
    let mut originals = 0;
    pair.tap = Some(Box::new(move |from, segment| {
        let original = from == A && !segment.payload.is_empty() && !is_copy(&segment.tcp);
        originals += u32::from(original);
        original && originals == 3
    }));
    pair.transfer(A, at_a, at_b, &pattern(10_000), Duration::from_secs(60));
    pair.run_ms(500);
    let copies: Vec<_> =
        std::iter::from_fn(|| pair.b.poll_observation()).map(|(_, _, probe)| probe).collect();
    let used = copies.iter().filter(|probe| matches!(probe, Observation::CopyUsed { segments: 1 })).count();
    assert_eq!(used, 1, "{copies:?}");
    let masked: Vec<_> =
        std::iter::from_fn(|| pair.a.poll_observation()).map(|(_, _, probe)| probe).collect();
    assert!(masked.iter().any(|probe| matches!(probe, Observation::MaskedLoss { .. })), "{masked:?}");
    assert_eq!((pair.a.stats().observations_dropped, pair.b.stats().observations_dropped), (0, 0));
}

/// The planner selects the last segments of a flight, and they leave twice.
#[test]
fn the_copies_that_the_planner_names_leave() {
    let mut pair = Pair::new(1);
    let mut tcp = tcp(ProactiveConfig { scope: CopyScope::Named, ..ALL });
    let protection = Protection::Copies { last: 2, pause: false };
    let form = Some(Form { segments: 5, segment: 1448, protection });
    tcp.mechanisms.planner = Some(PlannerConfig { form, ..PlannerConfig::DEFAULT });
    let listener = pair.listen(B, 80, ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() });
    let (at_a, at_b) = pair.established_at(listener, &ConnectConfig { tcp, ..ConnectConfig::default() });
    pair.seen.clear();
    pair.transfer(A, at_a, at_b, &pattern(5 * 1448), Duration::from_secs(60));
    let first = pair.seen[0].tcp.seq;
    let copies = pair.seen.iter().filter(|seen| seen.from == A && is_copy(&seen.tcp));
    let copied: Vec<u32> = copies.map(|seen| seen.tcp.seq.since(first) / 1448).collect();
    assert_eq!(copied, [3, 4]);
}

/// Returns two stacks with the planner after a transfer of 300,000 bytes in this form. Devices take
/// super-segments.
fn transferred(form: Option<Form>) -> (Pair, ConnId) {
    let mut tcp = tcp(ProactiveConfig { scope: CopyScope::Named, ..ALL });
    tcp.mechanisms.planner = Some(PlannerConfig { form, ..PlannerConfig::DEFAULT });
    let config = |side| StackConfig { max_super_segment: 65_000, ..stack_config(side) };
    let mut pair = Pair::with_configs(1, config(A), config(B));
    let listener = pair.listen(B, 80, ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() });
    let (at_a, at_b) = pair.established_at(listener, &ConnectConfig { tcp, ..ConnectConfig::default() });
    pair.seen.clear();
    pair.transfer(A, at_a, at_b, &pattern(300_000), Duration::from_secs(60));
    (pair, at_a)
}

/// If the planner could select copies but does not, segments leave in runs.
#[test]
fn segments_that_nobody_copies_leave_in_runs() {
    let (pair, at_a) = transferred(None);
    let copies = pair.seen.iter().filter(|seen| is_copy(&seen.tcp)).count();
    let left = pair.a.stats().packets_out;
    assert!(copies == 0 && left < 100, "{copies} copies, {left} packets for 300 kB");
    assert_eq!(counters(&pair.a, at_a).retransmits, 0);
    let protection = Protection::Copies { last: 100, pause: false };
    let (pair, at_a) = transferred(Some(Form { segments: 1, segment: 1448, protection }));
    let (left, copies) = (pair.a.stats().packets_out, counters(&pair.a, at_a).copies_sent);
    assert!(left >= 300_000 / 1448 + copies, "one by one, so that each copy follows its original: {left}");
    assert!(copies > 0);
}

/// If no original is awaited, a run of new segments is accepted and acknowledged as one.
#[test]
fn a_run_that_a_device_coalesced_is_taken_whole_if_no_copy_came_before() {
    let (mut pair, at_a, at_b) = connected(0);
    let held: Rc<RefCell<Held>> = Rc::default();
    let holds = Rc::clone(&held);
    pair.tap = Some(Box::new(move |from, segment| {
        if from == A && !segment.payload.is_empty() && !is_copy(&segment.tcp) {
            holds.borrow_mut().push((segment.tcp.clone(), segment.payload.to_vec()));
        }
        from == A
    }));
    assert_eq!(pair.write(A, at_a, &pattern(14_000)), Ok(14_000));
    pair.run_ms(11);
    let held = held.take();
    let payload: Vec<u8> = held.iter().flat_map(|(_, payload)| payload.clone()).collect();
    let (first, size) = (&held[0].0, held[0].1.len());
    assert!(payload.len() > 5 * size);
    let joined = packet(A.addr(first.src_port), B.addr(first.dst_port), first, &payload);
    let (sent, now) = (pair.seen.len(), pair.now);
    pair.b.on_packet(&joined, Rx { segment_size: Some(size as u16), ..Rx::default() }, now);
    pair.run_ms(1);
    let answers: Vec<_> =
        pair.seen[sent..].iter().filter(|seen| seen.from == B && !is_copy(&seen.tcp)).collect();
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0].tcp.ack, first.seq + payload.len() as u32);
    let at_b = counters(&pair.b, at_b);
    assert_eq!(at_b.payload_bytes_received, payload.len() as u64);
}

/// A device coalesces copies after their originals. All are dropped together; only new data of one is
/// accepted.
#[test]
fn copies_that_a_device_coalesced_are_dropped_together_unless_one_is_new() {
    for lost in [None, Some(2)] {
        let (mut pair, at_a, at_b) = connected(0);
        let held: Rc<RefCell<Held>> = Rc::default();
        let holds = Rc::clone(&held);
        let mut originals = 0;
        pair.tap = Some(Box::new(move |from, segment| {
            let copy = is_copy(&segment.tcp);
            if from != A || segment.payload.is_empty() {
                return false;
            }
            if copy {
                holds.borrow_mut().push((segment.tcp.clone(), segment.payload.to_vec()));
            } else {
                originals += 1;
            }
            copy || lost == Some(originals)
        }));
        assert_eq!(pair.write(A, at_a, &pattern(4_000)), Ok(4_000));
        pair.run_ms(11);
        let held = held.take();
        assert_eq!(held.len(), 3);
        let payload: Vec<u8> = held.iter().flat_map(|(_, payload)| payload.clone()).collect();
        let (first, size) = (&held[0].0, held[0].1.len());
        let joined = packet(A.addr(first.src_port), B.addr(first.dst_port), first, &payload);
        let (sent, now) = (pair.seen.len(), pair.now);
        pair.b.on_packet(&joined, Rx { segment_size: Some(size as u16), ..Rx::default() }, now);
        let at_b = counters(&pair.b, at_b);
        let used = u64::from(lost.is_some());
        assert_eq!((at_b.copies_dropped, at_b.copies_used), (3 - used, used));
        assert_eq!(at_b.payload_bytes_received, 4_000);
        pair.run_ms(1);
        assert_eq!(pair.seen.len() > sent, lost.is_some(), "an acknowledgement leaves for what is new");
    }
}

/// Only the copied bytes of a burst may leave in single segments. The bytes after them leave in runs.
#[test]
fn a_short_scope_ends_within_a_run() {
    let short = ProactiveConfig { scope: CopyScope::Short, max_bytes: 20_000, ..ProactiveConfig::DEFAULT };
    for sends_twice in [false, true] {
        let config = |side| StackConfig { max_super_segment: 65_000, sends_twice, ..stack_config(side) };
        let mut pair = Pair::with_configs(1, config(A), config(B));
        let listener = pair.listen(B, 80, ListenConfig { tcp: tcp(short), ..ListenConfig::default() });
        let connect = ConnectConfig { tcp: tcp(short), ..ConnectConfig::default() };
        let (at_a, at_b) = pair.established_at(listener, &connect);
        pair.transfer(A, at_a, at_b, &pattern(300_000), Duration::from_secs(60));
        let (sender, left) = (counters(&pair.a, at_a), pair.a.stats().packets_out);
        assert_eq!((sender.copies_sent, sender.retransmits), (20_000u64.div_ceil(1448), 0));
        assert!(left < 100, "{left} packets for 300 kB");
    }
}

/// In a coalesced segment with a FIN only the last part has the FIN, so all data is read before the end.
#[test]
fn a_fin_on_what_a_device_coalesced_ends_the_last_part() {
    let (mut pair, at_a, at_b) = connected(0);
    pair.tap = Some(Box::new(|from, _| from == A));
    pair.seen.clear();
    assert_eq!(pair.write(A, at_a, &pattern(4_000)), Ok(4_000));
    pair.shutdown(A, at_a);
    pair.run_ms(1);
    let originals: Vec<_> =
        pair.seen.iter().filter(|seen| seen.from == A && !is_copy(&seen.tcp)).cloned().collect();
    let (first, last) = (&originals[0], &originals[originals.len() - 1]);
    assert!(last.tcp.flags.contains(Flags::FIN));
    let header = TcpHeader { flags: last.tcp.flags, ..first.tcp.clone() };
    let joined = packet(A.addr(header.src_port), B.addr(header.dst_port), &header, &pattern(4_000));
    let now = pair.now;
    pair.b.on_packet(&joined, Rx { segment_size: Some(first.len as u16), ..Rx::default() }, now);
    assert_eq!(pair.read(B, at_b), Ok(Some(pattern(4_000))));
    assert_eq!(pair.read(B, at_b), Ok(None));
}

#[test]
fn a_connection_that_was_reset_is_not_woken_for_its_copies() {
    let mut pair = Pair::new(1);
    let listener = pair.listen(B, 80, ListenConfig { tcp: tcp(ALL), ..ListenConfig::default() });
    let late = ProactiveConfig { gap: Duration::from_millis(5), ..ALL };
    let (at_a, at_b) =
        pair.established_at(listener, &ConnectConfig { tcp: tcp(late), ..ConnectConfig::default() });
    pair.abort(B, at_b);
    pair.run_ms(8);
    pair.write(A, at_a, b"copied in 5 ms").expect("open");
    // The reset arrives 2 ms later.
    pair.run_ms(3);
    assert!(pair.a.conn_stats(at_a).is_some_and(|stats| stats.counters.copies_sent == 0));
    assert!(pair.heard(A, Event::Closed(at_a, CloseReason::Reset)));
    assert_eq!(pair.a.next_timeout(), None);
}

#[test]
fn off_is_absent() {
    let trace = |proactive: Option<ProactiveConfig>| {
        let mut pair = Pair::new(3);
        let mut server = TcpConfig::default();
        server.mechanisms.proactive = proactive;
        let listener = pair.listen(B, 80, ListenConfig { tcp: server, ..ListenConfig::default() });
        let (at_a, at_b) = pair.established_at(listener, &ConnectConfig::default());
        pair.transfer(B, at_b, at_a, &pattern(50_000), Duration::from_secs(60));
        let of = |seen: &crate::harness::Seen| (seen.at, seen.from == Side::A, seen.tcp.clone(), seen.len);
        pair.seen.iter().map(of).collect::<Vec<_>>()
    };
    assert!(trace(None) == trace(Some(ALL)), "a client that does not ask meets the TCP that it always met");
}

fn proactive() -> impl Strategy<Value = ProactiveConfig> {
    (0u32..16, 0u64..40).prop_map(|(bits, gap)| ProactiveConfig {
        scope: if bits & 1 == 0 { CopyScope::All } else { CopyScope::Short },
        mark: if bits & 2 == 0 { CopyMark::Bit } else { CopyMark::Option },
        copy_acks: bits & 4 != 0,
        rule: if bits & 8 == 0 { CopyRule::Ledger } else { CopyRule::Paper },
        gap: Duration::from_millis(gap),
        ..ProactiveConfig::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn bytes_arrive_once_and_in_order_with_copies(
        seed in any::<u64>(),
        channel in channel(),
        size in 0usize..60_000,
        super_segment in any::<bool>(),
        proactive in proactive(),
    ) {
        exchange(seed, channel, size, &tcp(proactive), if super_segment { 65_000 } else { 0 });
    }
}
