//! The plain copy that guards a SYN with data on an unproven path, and other measures if the path does not
//! pass Fast Open. Times as in the parent module.

use super::*;

fn insured() -> ConnectConfig {
    ConnectConfig { fast_open: Some(FastOpenConnect::insured()), ..asking() }
}

fn swallow_syn_data(from: Side, segment: &Segment<'_>) -> bool {
    from == A && segment.tcp.flags == Flags::SYN && !segment.payload.is_empty()
}

fn ended(world: &World, id: ConnId, reason: CloseReason) -> bool {
    world.pair.heard(A, Event::Closed(id, reason))
}

fn srtt(world: &World, id: ConnId) -> Duration {
    world.pair.a.conn_stats(id).expect("held").srtt.expect("measured")
}

#[test]
fn a_path_that_takes_the_data_sees_one_copy_and_then_none() {
    let mut world = World::known(FastOpenListen::default());
    let id = world.open(&insured(), &pattern(100));
    world.until(50);
    let at_b = world.accept();
    assert_eq!(world.read(B, at_b), pattern(100));
    world.pair.write(B, at_b, &pattern(2000)).expect("room");
    world.until(1000);
    assert_eq!(world.read(A, id), pattern(2000));
    assert_eq!(world.sent(A)[..2], [(0, "S", 100, true), (50, "S", 0, false)]);
    let syn_acks = world.sent(B).iter().filter(|sent| sent.1 == "S.").count();
    assert_eq!((syn_acks, world.outcome(id)), (2, FastOpenOutcome::Used));
    assert_eq!(world.read(B, at_b), [], "not twice");
    let (a, b) = (world.pair.a.conn_stats(id), world.pair.b.conn_stats(at_b));
    let (a, b) = (a.expect("held").counters, b.expect("held").counters);
    assert_eq!((a.syn_copies, a.handshake_retransmits, b.retransmits, b.reductions), (1, 0, 0, 0));
    assert_eq!(srtt(&world, id), Duration::from_millis(100), "that of the first SYN");

    world.pair.abort(A, id);
    world.until(2000);
    world.restart();
    world.open(&insured(), &pattern(100));
    world.until(1000);
    assert_eq!(world.sent(A)[..2], [(0, "S", 100, true), (100, ".", 0, false)]);
}

/// The plain copy for SYNs with data is not redundancy that saves time, so no allowance limits it.
#[test]
fn the_plain_copy_needs_no_allowance() {
    let mut world = World::known(FastOpenListen::default());
    let mut tcp = TcpConfig { delack_max: Duration::ZERO, ..TcpConfig::planned(5) };
    tcp.mechanisms.planner = Some(PlannerConfig { max_overhead: 0, ..PlannerConfig::DEFAULT });
    world.open(&ConnectConfig { tcp, ..insured() }, &pattern(100));
    world.until(60);
    assert_eq!(world.sent(A), [(0, "S", 100, true), (50, "S", 0, false)]);
}

/// Returns the configuration of a client that sends its SYN twice, with the data.
fn doubled() -> ConnectConfig {
    let gap = Duration::from_millis(5);
    let handshake_copies = Some(HandshakeCopies { gap, with_data: true, ..HandshakeCopies::default() });
    ConnectConfig { tcp: TcpConfig { handshake_copies, ..quick() }, ..asking() }
}

/// Returns a world whose path has passed data on a SYN.
fn proven() -> World {
    let mut world = World::known(FastOpenListen::default());
    let first = world.open(&asking(), &pattern(100));
    world.until(1000);
    let at_b = world.accept();
    for (side, id) in [(A, first), (B, at_b)] {
        world.pair.abort(side, id);
        world.pair.release(side, id);
    }
    world.until(2000);
    world.restart();
    world
}

/// If the path has passed data on a SYN before, the copy may repeat the SYN with data. So the data arrives
/// even if the first SYN was lost, and is delivered once if both arrive.
#[test]
fn on_a_proven_path_the_copy_may_have_the_data() {
    for lost in [false, true] {
        let mut world = proven();
        if lost {
            world.pair.tap = Some(Box::new(lose_first(A, Flags::SYN)));
        }
        let id = world.open(&doubled(), &pattern(100));
        world.until(1000);
        assert_eq!(world.sent(A)[..2], [(0, "S", 100, true), (5, "S", 100, true)]);
        assert_eq!(world.outcome(id), FastOpenOutcome::Used);
        let at_b = world.accept();
        assert_eq!(world.read(B, at_b), pattern(100), "once");
        assert_eq!(world.pair.b.connections(), 1);
        let counters = world.pair.a.conn_stats(id).expect("held").counters;
        assert_eq!((counters.syn_copies, counters.handshake_retransmits), (1, 0));
    }
}

#[test]
fn a_swallowed_syn_costs_half_a_round_trip_and_teaches_the_right_one() {
    let mut world = World::known(FastOpenListen::default());
    world.pair.tap = Some(Box::new(swallow_syn_data));
    for _ in 0..2 {
        world.restart();
        let id = world.open(&insured(), &pattern(100));
        world.until(1000);
        assert_eq!(world.sent(A)[..3], [(0, "S", 100, true), (50, "S", 0, false), (150, ".", 100, false)]);
        let verdict = (world.outcome(id), world.class(id));
        assert_eq!(verdict, (FastOpenOutcome::SynLost, Some(SynAckClass::SynDrop)));
        // The copy was answered, and the timestamp clock ticks in milliseconds.
        assert!(srtt(&world, id).abs_diff(Duration::from_millis(100)) <= Duration::from_millis(1));
        world.pair.abort(A, id);
        world.until(10_000);
    }
    world.restart();
    let id = world.open(&insured(), &pattern(100));
    world.until(1000);
    assert_eq!(world.sent(A)[..2], [(0, "S", 0, false), (100, ".", 100, false)]);
    assert_eq!(world.outcome(id), FastOpenOutcome::Off(OffReason::Disabled));
}

/// The SYN and its copy are lost. The paper's timer counts from the copy.
#[test]
fn when_both_are_lost_a_plain_syn_follows_after_a_round_trip_and_a_half() {
    let mut world = World::known(FastOpenListen::default());
    let mut syns = 0;
    world.pair.tap = Some(Box::new(move |from, segment: &Segment<'_>| {
        syns += u32::from(from == A && segment.tcp.flags == Flags::SYN);
        from == A && segment.tcp.flags == Flags::SYN && syns <= 2
    }));
    let id = world.open(&insured(), &pattern(100));
    world.until(1000);
    let expected = [(0, "S", 100, true), (50, "S", 0, false), (200, "S", 0, false), (300, ".", 100, false)];
    assert_eq!(world.sent(A)[..4], expected);
    assert_eq!(world.class(id), Some(SynAckClass::SynDrop));
}

#[test]
fn an_answer_to_the_first_syn_is_not_taken_for_one_to_the_copy() {
    for timestamps in [true, false] {
        let mut world = World::known(FastOpenListen::default());
        world.pair.b.set_fast_open_keys(fixed(9, None));
        let tcp = TcpConfig { timestamps, ..quick() };
        let id = world.open(&ConnectConfig { tcp, ..insured() }, &pattern(100));
        world.until(1000);
        assert_eq!(world.sent(A)[..2], [(0, "S", 100, true), (50, "S", 0, false)]);
        assert_eq!(world.class(id), Some(SynAckClass::SoftReject), "timestamps: {timestamps}");
        assert_eq!(world.sent(A)[2], (100, ".", 100, false), "no time is lost");
    }
}

#[test]
fn without_timestamps_the_time_tells_a_swallowed_syn() {
    let mut world = World::known(FastOpenListen::default());
    world.pair.tap = Some(Box::new(swallow_syn_data));
    let tcp = TcpConfig { timestamps: false, ..quick() };
    let id = world.open(&ConnectConfig { tcp, ..insured() }, &pattern(100));
    world.until(160);
    assert_eq!(world.class(id), Some(SynAckClass::SynDrop));
    assert_eq!(world.pair.a.conn_stats(id).expect("held").srtt, None, "it is ambiguous (Karn)");
}

#[test]
fn a_reset_instead_of_an_answer_leaves_the_verdict_to_the_copy() {
    let mut peer = Peer::known(quick(), 1460);
    peer.world.restart();
    let id = peer.world.open(&insured(), &pattern(100));
    peer.world.until(10);
    let syn = peer.syn();
    let reset = TcpHeader { ack: syn.seq + 101, flags: RST | Flags::ACK, ..TcpHeader::default() };
    let reset = packet(B.addr(80), A.addr(syn.src_port), &reset, &[]);
    peer.world.pair.inject(A, &reset);
    peer.world.until(20);
    assert_eq!(peer.world.sent(A), [(0, "S", 100, true), (10, "S", 0, false)], "it leaves at once");
    assert_eq!(peer.world.pair.a.state(id), Some(State::SynSent));
    // The second reset is conclusive for the port.
    peer.world.pair.inject(A, &reset);
    peer.world.until(30);
    assert!(ended(&peer.world, id, CloseReason::Refused));
}

#[test]
fn repeated_syn_ack_alone_means_a_black_hole_and_ends_the_connection() {
    let mut world = World::known(FastOpenListen::default());
    world.pair.tap = Some(Box::new(|_, segment: &Segment<'_>| !segment.tcp.flags.contains(Flags::SYN)));
    let id = world.open(&asking(), &pattern(100));
    world.until(3040);
    assert_eq!(world.outcome(id), FastOpenOutcome::Used);
    // SYN-ACKs at 50, 1050 and 3050: the second repetition.
    world.until(3150);
    assert_eq!(world.outcome(id), FastOpenOutcome::Blackholed);
    assert_eq!(world.pair.a.state(id), Some(State::Established));
    world.until(15_200);
    assert!(ended(&world, id, CloseReason::TimedOut), "at 15050");
    world.pair.tap = None;
    world.restart();
    let id = world.open(&asking(), &pattern(100));
    world.until(300);
    assert_eq!(world.outcome(id), FastOpenOutcome::Off(OffReason::Disabled));
}

/// Returns a listener whose timers follow the known path, and a client that knows it too.
fn early() -> (World, ConnectConfig) {
    let tcp = TcpConfig { handshake_timers: true, ..quick() };
    let listen = ListenConfig { tcp: tcp.clone(), ..serving(FastOpenListen::default()) };
    let mut world = World::with(listen, |config| config);
    world.learn();
    (world, ConnectConfig { tcp, ..asking() })
}

fn syn_acks(world: &World) -> Vec<u64> {
    world.sent(B).into_iter().filter(|sent| sent.1 == "S.").map(|sent| sent.0).collect()
}

#[test]
fn early_syn_acks_are_no_black_hole_before_their_time() {
    let (mut world, connect) = early();
    world.pair.tap = Some(Box::new(|_, segment: &Segment<'_>| !segment.tcp.flags.contains(Flags::SYN)));
    let id = world.open(&connect, &pattern(100));
    world.until(2200);
    assert_eq!(syn_acks(&world), [50, 200, 500, 1100, 2100]);
    assert_eq!(world.pair.a.state(id), Some(State::Established));
    assert_eq!(world.outcome(id), FastOpenOutcome::Used);
    world.until(4200);
    assert_eq!(world.outcome(id), FastOpenOutcome::Blackholed, "now it is time");
    world.until(16_200);
    assert!(ended(&world, id, CloseReason::TimedOut), "{:?}", syn_acks(&world));
}

#[test]
fn each_early_syn_ack_gets_an_answer() {
    let (mut world, connect) = early();
    let mut lost = 0;
    world.pair.tap = Some(Box::new(move |from, segment: &Segment<'_>| {
        let acknowledgement = from == A && !segment.tcp.flags.contains(Flags::SYN);
        lost += u32::from(acknowledgement);
        acknowledgement && lost <= 2
    }));
    let id = world.open(&connect, &pattern(100));
    world.until(5000);
    assert_eq!(syn_acks(&world), [50, 200, 500], "the third answer arrives at 600");
    let at_b = world.accept();
    assert_eq!(world.pair.b.state(at_b), Some(State::Established));
    assert_eq!(world.outcome(id), FastOpenOutcome::Used);
}

#[test]
fn a_server_that_thinks_for_long_is_no_black_hole() {
    let mut world = World::known(FastOpenListen::default());
    let id = world.open(&insured(), &pattern(100));
    world.until(40_000);
    let state = world.pair.a.state(id);
    assert_eq!((world.outcome(id), state), (FastOpenOutcome::Used, Some(State::Established)));
}
