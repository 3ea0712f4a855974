//! Facts of a path that one connection reports and the next one uses.
//!
//! Times are milliseconds since the SYN left; one way takes 50 ms. Receivers acknowledge at once.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use brisk_tcp::config::{
    ConnectConfig, CorrectiveConfig, ListenConfig, MechanismConfig, StackConfig, TcpConfig,
};
use brisk_tcp::error::CloseReason;
use brisk_tcp::path::PathFacts;
use brisk_tcp::{ConnId, Event, ListenerId};
use brisk_wire::{ChecksumFill, Flags, Instant, emit};

use crate::harness::{A, B, Pair, Side, pattern, stack_config};

const MSS: u32 = 1448;
const SYN_ACK: Flags = Flags(Flags::SYN.0 | Flags::ACK.0);

pub(crate) fn tcp() -> TcpConfig {
    TcpConfig { delack_max: Duration::ZERO, ..TcpConfig::default() }
}

/// Two stacks, 50 ms apart, with this configuration for the connections of both.
pub(crate) struct World {
    pub(crate) pair: Pair,
    tcp: TcpConfig,
    listener: ListenerId,
    pub(crate) began: Instant,
}

impl World {
    pub(crate) fn new(tcp: TcpConfig) -> World {
        World::with(tcp, StackConfig::default().path_entries)
    }

    fn with(tcp: TcpConfig, path_entries: usize) -> World {
        let config = |side| StackConfig { path_entries, ..stack_config(side) };
        let mut pair = Pair::with_configs(1, config(A), config(B));
        pair.channel.delay = Duration::from_millis(50);
        let listener = pair.listen(B, 80, ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() });
        World { began: pair.now, pair, tcp, listener }
    }

    /// Returns a world whose server has its own configuration.
    pub(crate) fn served_by(server: TcpConfig, client: TcpConfig) -> World {
        let mut world = World::new(client);
        let listen = ListenConfig { tcp: server, ..ListenConfig::default() };
        world.pair.b.close_listener(world.listener, world.pair.now);
        world.listener = world.pair.listen(B, 80, listen);
        world
    }

    /// Opens a connection whose SYN leaves at 0.
    pub(crate) fn connect(&mut self) -> ConnId {
        self.began = self.pair.now;
        self.pair.seen.clear();
        self.pair.connect_with(A, 80, &ConnectConfig { tcp: self.tcp.clone(), ..ConnectConfig::default() })
    }

    pub(crate) fn open(&mut self) -> (ConnId, ConnId) {
        let at_a = self.connect();
        let listener = self.listener;
        let mut at_b = None;
        self.pair.run_until(Duration::from_secs(60), |pair| {
            at_b = pair.b.accept(listener).map(|(id, _)| id);
            at_b.is_some()
        });
        (at_a, at_b.expect("the handshake completes"))
    }

    /// Sends this many bytes from B to A over a new connection.
    pub(crate) fn fetch(&mut self, bytes: usize) {
        let (at_a, at_b) = self.open();
        self.pair.transfer(B, at_b, at_a, &pattern(bytes), Duration::from_secs(100));
        self.close(at_a, at_b);
    }

    pub(crate) fn close(&mut self, at_a: ConnId, at_b: ConnId) {
        self.pair.run_ms(200);
        for (side, id) in [(A, at_a), (B, at_b)] {
            self.pair.abort(side, id);
            self.pair.release(side, id);
        }
        self.pair.run_ms(200);
        self.pair.events.clear();
    }

    pub(crate) fn until(&mut self, millis: u64) {
        let span = (self.began + Duration::from_millis(millis)).saturating_since(self.pair.now);
        self.pair.run(span);
    }

    /// Loses four of the next data segments of B, in two runs.
    pub(crate) fn lose_four(&mut self) {
        let mut data = 0;
        self.pair.tap = Some(Box::new(move |from, segment| {
            data += u32::from(from == B && !segment.payload.is_empty());
            from == B && [21, 22, 23, 60].contains(&data)
        }));
    }

    /// Returns the times at which `side` sent packets with these flags, in milliseconds since the SYN.
    pub(crate) fn times(&self, side: Side, flags: Flags) -> Vec<u128> {
        let of = |seen: &&crate::harness::Seen| seen.is(side, flags);
        self.pair
            .seen
            .iter()
            .filter(of)
            .map(|seen| seen.at.saturating_since(self.began).as_millis())
            .collect()
    }

    /// Returns the times at which B sent data segments, since the first of them.
    fn data_times(&self) -> Vec<u128> {
        let data = || self.pair.seen.iter().filter(|seen| seen.from == B && seen.len > 0);
        let first = data().next().expect("data").at;
        data().map(|seen| seen.at.saturating_since(first).as_millis()).collect()
    }

    pub(crate) fn facts(&mut self, side: Side) -> PathFacts {
        let now = self.pair.now;
        self.pair.stack(side).path(side.ip(), side.other().ip(), now)
    }
}

#[test]
fn a_connection_leaves_behind_what_it_measured() {
    let mut world = World::new(from_memory());
    assert_eq!(world.facts(B), PathFacts::default());
    world.fetch(200_000);
    let (a, b) = (world.facts(A), world.facts(B));
    for facts in [a, b] {
        assert_eq!(facts.rtt.map(|rtt| rtt.srtt.as_millis()), Some(100));
        assert_eq!((facts.mss, facts.mtu, facts.handshake_failures), (Some(1460), None, 0));
    }
    assert!(b.volume.is_some_and(|volume| volume.bytes > 20 * MSS), "{b:?}");
    assert_eq!(a.volume, None, "A sent nothing");
    assert_eq!(
        b.loss.map(|loss| (loss.segments, loss.per_million)),
        Some((140, 0)),
        "139 of data and the SYN-ACK"
    );
}

#[test]
fn losses_are_counted_with_their_runs() {
    let mut world = World::new(tcp());
    world.lose_four();
    world.fetch(400_000);
    let facts = world.facts(B);
    let loss = facts.loss.expect("B sent");
    assert!((14_000..15_000).contains(&loss.per_million), "4 of 281: {loss:?}");
    assert_eq!(loss.burst_milli, 2000);
}

/// Parity directly after the data repairs two segments that are only late. Their originals arrive later.
#[test]
fn late_originals_of_repaired_segments_are_no_losses_of_the_path() {
    let corrective = CorrectiveConfig { delay_divisor: 16, ..CorrectiveConfig::default() };
    let mechanisms = MechanismConfig { corrective: Some(corrective), ..MechanismConfig::default() };
    let mut world = World::new(TcpConfig { mechanisms, nodelay: true, ..tcp() });
    let (at_a, at_b) = world.open();
    let late: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let (kept, mut data) = (late.clone(), 0);
    world.pair.mangle = Some(Box::new(move |from, segment| {
        let is_parity = segment.tcp.options.gentle.is_some_and(|option| option.is_encoded());
        let is_data = from == B && !segment.payload.is_empty() && !is_parity;
        data += u32::from(is_data);
        if !is_data || ![3, 8].contains(&data) {
            return None;
        }
        let mut packet = Vec::new();
        emit(&segment.ip, &segment.tcp, &[segment.payload], ChecksumFill::Full, &mut packet).ok()?;
        kept.lock().unwrap().push(packet);
        Some(Vec::new())
    }));
    for _ in 0..2 {
        // Five segments, with space for the option of parity.
        world.pair.write(B, at_b, &pattern(5 * (MSS as usize - 16))).expect("room");
        world.pair.run_ms(10);
    }
    world.pair.run_ms(60);
    late.lock().unwrap().iter().for_each(|packet| world.pair.inject(A, packet));
    world.pair.run_ms(200);
    let counters = world.pair.b.conn_stats(at_b).expect("held").counters;
    assert_eq!((counters.masked_losses, counters.parity.late_originals, counters.segments_lost), (1, 2, 0));
    world.close(at_a, at_b);
    assert_eq!(world.facts(B).loss.map(|loss| loss.per_million), Some(0));
}

/// Losses during a standing queue say nothing about losses of the idle path.
#[test]
fn losses_in_a_standing_queue_are_not_those_of_the_path() {
    let mut world = World::new(tcp());
    world.fetch(1000);
    world.pair.channel.delay = Duration::from_millis(75);
    world.lose_four();
    world.fetch(400_000);
    let facts = world.facts(B);
    assert_eq!(facts.min_rtt, Some(Duration::from_millis(100)));
    assert_eq!(facts.loss.map(|loss| (loss.per_million, loss.burst_milli)), Some((0, 0)));
}

/// Returns the flights of B that the planner decided about and protected, over a new connection.
fn protected(world: &mut World) -> (u64, u64) {
    let (at_a, at_b) = world.open();
    world.pair.transfer(B, at_b, at_a, &pattern(30_000), Duration::from_secs(10));
    let counters = world.pair.stack(B).conn_stats(at_b).expect("it lives").counters;
    world.close(at_a, at_b);
    (counters.planned, counters.planned_protected)
}

#[test]
fn the_planner_adds_nothing_to_a_queue_in_which_a_connection_begins() {
    let mut world = World::new(TcpConfig { delack_max: Duration::ZERO, ..TcpConfig::planned(100) });
    let of_path = protected(&mut world);
    assert!(of_path.1 > 0, "an unknown path is assumed to lose: {of_path:?}");
    world.pair.channel.delay = Duration::from_millis(75);
    let one = protected(&mut world);
    assert!(one.1 > 0, "one long round trip may be jitter: {one:?}");
    let queued = protected(&mut world);
    assert!(queued.0 > 0 && queued.1 == 0, "{queued:?}");
    world.pair.channel.delay = Duration::from_millis(50);
    let idle = protected(&mut world);
    assert!(idle.1 > 0, "the queue is gone: {idle:?}");
}

#[test]
fn a_long_connection_tells_before_its_end() {
    let mut world = World::new(from_memory());
    let (at_a, at_b) = world.open();
    world.pair.run_ms(100);
    assert!(world.facts(B).rtt.is_some(), "at the handshake");
    assert_eq!(world.facts(B).volume, None);
    world.pair.transfer(B, at_b, at_a, &pattern(100_000), Duration::from_secs(10));
    world.pair.run(Duration::from_secs(10));
    world.pair.transfer(B, at_b, at_a, b"more", Duration::from_secs(10));
    assert!(world.facts(B).volume.is_some(), "while it lives");
}

#[test]
fn an_open_that_fails_is_remembered_and_a_refusal_is_no_failure() {
    let mut world = World::new(tcp());
    let refused = world.pair.connect(A, 81);
    world.pair.run_ms(200);
    assert!(world.pair.heard(A, Event::Closed(refused, CloseReason::Refused)));
    assert_eq!(world.facts(A).handshake_failures, 0);
    world.pair.tap = Some(Box::new(|_, _| true));
    world.connect();
    world.pair.run(Duration::from_secs(200));
    assert_eq!((world.facts(A).handshake_failures, world.facts(B)), (1, PathFacts::default()));
    world.pair.tap = None;
    world.fetch(1000);
    assert_eq!(world.facts(A).handshake_failures, 0);
}

#[test]
fn without_a_memory_nothing_is_remembered() {
    let mut world = World::with(tcp(), 0);
    world.fetch(100_000);
    assert_eq!(world.facts(B), PathFacts::default());
}

#[test]
fn path_memory_changes_no_packet_unless_switched_on() {
    let traffic = |known: bool| {
        let mut world = World::new(tcp());
        world.fetch(200_000);
        if !known {
            world.pair.a.flush_paths();
            world.pair.b.flush_paths();
        }
        world.fetch(200_000);
        let began = world.began;
        let of = |seen: &crate::harness::Seen| (seen.at.saturating_since(began), seen.tcp.clone(), seen.len);
        world.pair.seen.iter().map(of).collect::<Vec<_>>()
    };
    assert!(traffic(true) == traffic(false));
}

#[test]
fn a_black_hole_costs_its_timeouts_once_per_path() {
    let mut world = World::new(tcp());
    world.pair.tap = Some(Box::new(|_, segment| segment.payload.len() > 1200));
    let took = |world: &mut World| {
        let before = world.pair.now;
        world.fetch(20_000);
        world.pair.now.saturating_since(before).as_millis()
    };
    let (first, second) = (took(&mut world), took(&mut world));
    assert!(first > 2000 && second < 1000, "{first} ms, then {second} ms");
    let narrow = world.facts(B).mtu.expect("large packets vanish");
    assert!(narrow.low == 1064 && (1200..1500).contains(&narrow.high), "{narrow:?}");
    world.pair.run(Duration::from_secs(601));
    assert_eq!(world.facts(B).mtu, None, "after ten minutes larger packets are tried again");
}

/// Data leaves room for the option of parity, so no segment is as long as the MSS permits.
#[test]
fn a_black_hole_is_found_by_a_connection_with_corrective() {
    let mut world = World::new(TcpConfig {
        mechanisms: MechanismConfig {
            corrective: Some(CorrectiveConfig::default()),
            ..MechanismConfig::default()
        },
        ..tcp()
    });
    world.pair.tap = Some(Box::new(|_, segment| segment.payload.len() > 1200));
    world.fetch(20_000);
    let narrow = world.facts(B).mtu.expect("large packets vanish");
    assert_eq!(narrow.low, 1064);
}

fn from_memory() -> TcpConfig {
    TcpConfig { path_start: true, ..tcp() }
}

#[test]
fn a_known_path_is_sent_what_a_flight_has_carried_within_a_round_trip() {
    let mut world = World::new(from_memory());
    world.fetch(90_000);
    let known = world.facts(B).volume.expect("B sent").bytes;
    assert!((20 * MSS..64 * MSS).contains(&known), "{known}");
    let (at_a, at_b) = world.open();
    world.pair.transfer(B, at_b, at_a, &pattern(known as usize), Duration::from_secs(10));
    let times = world.data_times();
    assert_eq!(times.len() as u32, known.div_ceil(MSS), "nothing twice");
    assert_eq!(times[9], 0, "ten at once: the rate is not known");
    let last = *times.last().expect("all of it");
    assert!((50..=100).contains(&last), "the others within a round trip: {times:?}");
    let window = world.pair.b.conn_stats(at_b).expect("held").cwnd;
    assert!(window.abs_diff(known) <= MSS, "it does not grow before all of it has arrived: {window}");
}

/// Returns the window with which B begins to send `bytes`.
fn begun_with(world: &mut World, at_b: ConnId, bytes: usize) -> u32 {
    world.pair.write(B, at_b, &pattern(bytes)).expect("room");
    world.pair.run_ms(1);
    world.pair.b.conn_stats(at_b).expect("held").cwnd / MSS
}

#[test]
fn connections_of_a_path_share_the_volume_of_a_flight_at_the_start() {
    let mut world = World::new(from_memory());
    world.fetch(200_000);
    let opened: Vec<_> = (0..3).map(|_| world.open().1).collect();
    let begun: Vec<u32> = opened.iter().map(|at_b| begun_with(&mut world, *at_b, 100_000)).collect();
    let carried = world.facts(B).volume.expect("B sent").bytes / MSS;
    assert!(
        begun[0] == carried.min(64) && begun.iter().filter(|begun| **begun > 10).sum::<u32>() <= carried,
        "{begun:?}"
    );
    assert!(begun.contains(&10), "{begun:?} of {carried}");
}

/// A window that the configuration permits follows the same rules once the path is known.
#[test]
fn a_configured_window_is_begun_with_by_one_connection_at_a_time() {
    let mut world = World::new(TcpConfig { initial_window: 32, ..from_memory() });
    let (_, unknown) = world.open();
    assert_eq!(begun_with(&mut world, unknown, 100), 32, "of an unknown path there is nothing to share");
    let (_, first) = world.open();
    let (_, second) = world.open();
    assert_eq!((begun_with(&mut world, first, 60_000), begun_with(&mut world, second, 60_000)), (32, 10));
}

#[test]
fn a_path_with_a_queue_gets_the_ordinary_window() {
    let mut world = World::new(from_memory());
    world.fetch(500_000);
    world.pair.channel.delay = Duration::from_millis(57);
    let (_, at_b) = world.open();
    assert_eq!(begun_with(&mut world, at_b, 100_000), 10);
}

/// A program that relays data writes a response in pieces.
#[test]
fn a_start_has_the_window_also_for_what_is_written_later() {
    let mut world = World::new(from_memory());
    world.fetch(500_000);
    let (at_a, at_b) = world.open();
    world.pair.seen.clear();
    for _ in 0..3 {
        world.pair.write(B, at_b, &pattern(11 * MSS as usize)).expect("room");
        world.pair.run_ms(2);
    }
    world.pair.run_ms(300);
    let last = world.data_times().into_iter().max().expect("data");
    assert!(last < 100, "all leaves before the first acknowledgement, and not after {last} ms");
    world.close(at_a, at_b);
}

/// A start returns its grant as soon as all of its data has arrived, not after two round trips.
#[test]
fn a_start_that_is_over_leaves_its_window_to_the_next() {
    let mut world = World::new(from_memory());
    world.fetch(90_000);
    let carried = world.facts(B).volume.expect("B sent").bytes / MSS * MSS;
    let connections = [(); 2].map(|()| world.open());
    for (_, at_b) in connections {
        world.pair.seen.clear();
        world.pair.write(B, at_b, &pattern(carried as usize)).expect("room");
        world.pair.run_ms(170);
        let last = world.data_times().into_iter().max().expect("data");
        assert!(last < 100, "all leaves before the first acknowledgement, and not after {last} ms");
    }
}

#[test]
fn only_what_has_flown_is_remembered() {
    let mut world = World::new(TcpConfig { initial_window: 32, ..from_memory() });
    world.fetch(1000);
    let (at_a, at_b) = world.open();
    world.pair.transfer(B, at_b, at_a, &pattern(20_000), Duration::from_secs(10));
    assert_eq!(world.pair.b.conn_stats(at_b).expect("held").cwnd, 20_000, "granted is what waits to be sent");
    world.close(at_a, at_b);
    assert_eq!(world.facts(B).volume.map(|volume| volume.bytes), Some(20_000), "14 of 32 segments flew");
}

/// Returns the threshold of a connection that begins with 64 segments and loses those in `lost`. Also returns
/// the volume that is remembered then, in segments.
fn after_losses(world: &mut World, lost: core::ops::Range<u32>) -> (u32, Option<u32>) {
    let mut data = 0;
    world.pair.tap = Some(Box::new(move |from, segment| {
        data += u32::from(from == B && !segment.payload.is_empty());
        from == B && !segment.payload.is_empty() && lost.contains(&data)
    }));
    let (at_a, at_b) = world.open();
    world.pair.transfer(B, at_b, at_a, &pattern(64 * MSS as usize), Duration::from_secs(10));
    let stats = world.pair.b.conn_stats(at_b).expect("held");
    world.close(at_a, at_b);
    (stats.ssthresh / MSS, world.facts(B).volume.map(|volume| volume.bytes / MSS))
}

#[test]
fn a_random_loss_of_what_was_sent_on_trust_changes_nothing_for_the_next() {
    let mut world = World::new(from_memory());
    world.fetch(500_000);
    let before = world.facts(B).volume.map(|volume| volume.bytes / MSS);
    let (threshold, after) = after_losses(&mut world, 30..31);
    assert!((40..=45).contains(&threshold), "the ordinary reduction: {threshold}");
    assert_eq!(after, before);
}

#[test]
fn excess_loss_lowers_the_memory_and_the_second_time_to_ten() {
    let mut world = World::new(from_memory());
    world.fetch(500_000);
    let before = world.facts(B).volume.expect("B sent").bytes / MSS;
    let (threshold, after) = after_losses(&mut world, 20..50);
    assert!(
        threshold <= 34 / 2,
        "half of what has arrived, where an ordinary reduction leaves 44: {threshold}"
    );
    assert!(after.is_some_and(|after| after < before * 3 / 4), "{after:?} of {before}");
    let (_, after) = after_losses(&mut world, 20..50);
    assert_eq!(after, Some(0));
    let (_, at_b) = world.open();
    assert_eq!(begun_with(&mut world, at_b, 100_000), 10);
}

#[test]
fn a_path_that_has_become_another_gets_the_ordinary_window() {
    let mut world = World::new(from_memory());
    world.fetch(500_000);
    for delay in [20, 600] {
        world.pair.channel.delay = Duration::from_millis(delay);
        let (_, at_b) = world.open();
        assert_eq!(begun_with(&mut world, at_b, 100_000), 10, "{delay} ms");
    }
}

#[test]
fn a_connection_that_lost_a_syn_ack_gets_the_ordinary_window() {
    let mut world = World::new(from_memory());
    world.fetch(500_000);
    let mut answers = 0;
    world.pair.tap = Some(Box::new(move |from, _| {
        answers += u32::from(from == B);
        from == B && answers == 1
    }));
    let (_, at_b) = world.open();
    assert_eq!(begun_with(&mut world, at_b, 100_000), 10);
    let (_, at_b) = world.open();
    assert!(begun_with(&mut world, at_b, 100_000) > 10, "the next one has lost nothing");
}

#[test]
fn the_variation_of_the_round_trip_time_is_remembered() {
    let rto = |tcp| {
        let mut world = World::new(tcp);
        world.fetch(500_000);
        world.pair.channel.delay = Duration::from_millis(51);
        let (_, at_b) = world.open();
        world.pair.b.conn_stats(at_b).expect("held").rto.as_millis()
    };
    assert_eq!(rto(tcp()), 306, "three round trips: one sample says nothing of the variation");
    assert_eq!(rto(from_memory()), 300);
}

fn early() -> TcpConfig {
    TcpConfig { handshake_timers: true, ..tcp() }
}

#[test]
fn lost_syn_on_a_known_path_is_repeated_after_1_5_round_trips() {
    let mut world = World::new(early());
    world.fetch(1000);
    world.pair.tap = Some(Box::new(|_, _| true));
    world.connect();
    world.until(20_000);
    // Three early retries, each after twice the time, then the ordinary schedule.
    assert_eq!(world.times(A, Flags::SYN), [0, 150, 450, 1050, 2050, 4050, 8050, 16_050]);
    let mut unknown = World::new(early());
    unknown.pair.tap = Some(Box::new(|_, _| true));
    unknown.connect();
    unknown.until(10_000);
    assert_eq!(unknown.times(A, Flags::SYN), [0, 1000, 3000, 7000], "without a memory 1 s");
}

/// RFC 6298 section 5.5: no wait is shorter than the one before it.
#[test]
fn early_retries_end_where_the_ordinary_schedule_is_sooner() {
    let mut world = World::new(early());
    world.pair.channel.delay = Duration::from_millis(200);
    world.fetch(1000);
    world.pair.tap = Some(Box::new(|_, _| true));
    world.connect();
    world.until(8000);
    assert_eq!(world.times(A, Flags::SYN), [0, 600, 1600, 3600, 7600]);
}

#[test]
fn a_lost_syn_ack_on_a_known_path_is_sent_again_early_too() {
    let mut world = World::new(early());
    world.fetch(1000);
    world.pair.tap =
        Some(Box::new(|from, segment| from == B || (from == A && !segment.tcp.flags.contains(Flags::SYN))));
    world.connect();
    world.until(149);
    world.pair.tap = Some(Box::new(|_, _| true));
    world.until(3000);
    assert_eq!(world.times(B, SYN_ACK), [50, 200, 500, 1100, 2100]);
}

#[test]
fn early_retries_are_no_reason_to_wait_three_seconds_later() {
    // RFC 6298 section 5.7 is about the standard timer.
    let mut world = World::new(TcpConfig { timestamps: false, ..early() });
    world.fetch(1000);
    let mut syns = 0;
    world.pair.tap = Some(Box::new(move |from, _| {
        syns += u32::from(from == A);
        from == A && syns == 1
    }));
    let (at_a, _) = world.open();
    world.pair.run_ms(100);
    let stats = world.pair.a.conn_stats(at_a).expect("held");
    assert_eq!((stats.srtt, stats.rto), (None, Duration::from_secs(1)), "Karn's rule: no sample");
}

#[test]
fn a_handshake_that_lost_a_syn_ack_does_not_lengthen_the_path() {
    let mut world = World::new(early());
    world.fetch(1000);
    let mut answers = 0;
    world.pair.tap = Some(Box::new(move |from, _| {
        answers += u32::from(from == B);
        from == B && answers == 1
    }));
    let (at_a, at_b) = world.open();
    world.pair.run_ms(200);
    assert_eq!(world.facts(A).rtt.map(|rtt| rtt.srtt.as_millis()), Some(100));
    world.close(at_a, at_b);
}

#[test]
fn a_handshake_that_lost_nothing_leaves_no_doubt_about_a_longer_path() {
    let mut world = World::new(tcp());
    world.fetch(100);
    world.pair.channel.delay = Duration::from_millis(80);
    world.fetch(100);
    for side in [A, B] {
        let facts = world.facts(side);
        assert_eq!(facts.doubtful_rtt, None, "{side:?}");
        assert!(facts.rtt.is_some_and(|rtt| rtt.srtt > Duration::from_millis(100)), "{:?}", facts.rtt);
    }
}

#[test]
fn path_memory_survives_a_restart() {
    let mut world = World::new(from_memory());
    world.fetch(500_000);
    let now = world.pair.now;
    let (text, known) = (world.pair.b.export_paths(now), world.facts(B));
    world.pair.b.flush_paths();
    world.pair.b.import_paths(&text, now).expect("as written");
    assert_eq!(world.facts(B), known);
    assert!(world.pair.b.import_paths("brisk-paths 1 -\nend 7 0\n", now).is_err());
    let everything = world.pair.b.export_fast_open_cache(now) + &text;
    assert_eq!(world.pair.b.import_paths(&everything, now), Ok(()));
    assert_eq!(world.pair.b.import_fast_open_cache(&everything, now), Ok(()));
    assert_eq!(world.pair.b.paths(now).count(), 1);
}
