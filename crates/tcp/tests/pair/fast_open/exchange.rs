//! An exchange over a new connection: the time that the cookie saves, segments that overtake each other, and
//! the settings. Times as in the parent module.

use super::*;

/// The first connection requests a cookie and sends its data after the handshake.
#[test]
fn a_cookie_is_asked_for_and_granted() {
    let mut world = World::new(FastOpenListen::default());
    let id = world.open(&asking(), &pattern(100));
    world.until(149);
    assert_eq!(world.sent(A), [(0, "S", 0, true), (100, ".", 100, false)]);
    assert_eq!(world.sent(B), [(50, "S.", 0, true)]);
    assert_eq!((world.outcome(id), world.class(id)), (FastOpenOutcome::NoCookie, Some(SynAckClass::Granted)));
    world.until(150);
    let at_b = world.accept();
    assert_eq!(world.read(B, at_b), pattern(100));
    assert_eq!(world.pair.a.stats().fast_open.granted, 1);
    assert_eq!(world.pair.b.stats().fast_open.requests, 1);
}

/// The data leaves with the SYN, and the response before the client's acknowledgement.
#[test]
fn the_answer_comes_after_one_round_trip() {
    let mut world = World::known(FastOpenListen::default());
    let id = world.open(&asking(), &pattern(100));
    world.until(50);
    assert!(world.pair.heard(B, Event::Incoming(world.listener)));
    let at_b = world.accept();
    assert_eq!(world.read(B, at_b), pattern(100));
    assert_eq!((world.pending(), world.pair.b.state(at_b)), (1, Some(State::SynReceived)));
    world.pair.write(B, at_b, &pattern(5000)).expect("room");
    world.until(99);
    assert_eq!(world.sent(A), [(0, "S", 100, true)]);
    assert_eq!(
        world.sent(B),
        [
            (50, "S.", 0, false),
            (50, ".", 1448, false),
            (50, ".", 1448, false),
            (50, ".", 1448, false),
            (50, ".", 656, false)
        ]
    );
    world.until(100);
    assert_eq!(world.read(A, id), pattern(5000));
    assert_eq!((world.outcome(id), world.class(id)), (FastOpenOutcome::Used, Some(SynAckClass::Accepted)));
    world.until(200);
    assert_eq!((world.pending(), world.pair.b.state(at_b)), (0, Some(State::Established)));
    let stats = world.pair.b.conn_stats(at_b).expect("held");
    assert_eq!((stats.fast_open, stats.syn_data_taken), (FastOpenOutcome::Used, true));
    assert_eq!(stats.counters.retransmits, 0);
    assert_eq!(world.pair.a.stats().fast_open.accepted, 1);
    assert_eq!((world.pair.b.stats().fast_open.served, world.pair.b.stats().handshakes_completed), (1, 2));
    assert!(!world.pair.heard(B, Event::Connected(at_b)), "a passive open does not hear of its handshake");
}

/// The cookie is no longer valid.
#[test]
fn a_refused_cookie_costs_no_round_trip() {
    let mut world = World::known(FastOpenListen::default());
    world.pair.b.set_fast_open_keys(fixed(9, None));
    let id = world.open(&asking(), &pattern(100));
    world.until(99);
    assert_eq!(world.sent(B), [(50, "S.", 0, true)]);
    assert_eq!(world.pair.b.accept(world.listener), None);
    world.until(150);
    assert_eq!(world.sent(A), [(0, "S", 100, true), (100, ".", 100, false)]);
    let at_b = world.accept();
    assert_eq!(world.read(B, at_b), pattern(100));
    assert_eq!(
        (world.outcome(id), world.class(id)),
        (FastOpenOutcome::Refused, Some(SynAckClass::SoftReject))
    );
    let stats = world.pair.a.conn_stats(id).expect("held");
    assert_eq!((stats.cwnd, stats.counters.retransmits, stats.counters.reductions), (14_480, 0, 0));
    // The new cookie is valid.
    world.restart();
    let again = world.open(&asking(), &pattern(100));
    world.until(200);
    assert_eq!(world.outcome(again), FastOpenOutcome::Used);
}

/// With a backup key a key rotation refuses no cookie.
#[test]
fn a_cookie_of_the_backup_key_works_and_is_renewed() {
    let mut world = World::new(FastOpenListen { keys: Some(fixed(1, None)), ..FastOpenListen::default() });
    world.learn();
    let listener = world.listener;
    assert!(world.pair.b.set_listener_fast_open_keys(listener, fixed(2, Some(1))));
    let id = world.open(&asking(), &pattern(100));
    world.until(300);
    assert_eq!(world.sent(B)[0], (50, "S.", 0, true));
    assert_eq!(world.outcome(id), FastOpenOutcome::Used);
    assert_eq!(world.pair.b.stats().fast_open.served_backup_key, 1);
    assert!(world.pair.b.set_listener_fast_open_keys(listener, fixed(2, None)));
    world.restart();
    let id = world.open(&asking(), &pattern(100));
    world.until(300);
    assert_eq!(world.outcome(id), FastOpenOutcome::Used);
}

/// The SYN-ACK is lost, and the client drops the segments after it.
#[test]
fn a_lost_syn_ack_is_sent_again_and_the_answer_with_it() {
    let mut world = World::known(FastOpenListen::default());
    world.pair.tap = Some(Box::new(lose_first(B, SYN_ACK)));
    let dropping = FastOpenConnect { hold_early: false, ..FastOpenConnect::default() };
    let id = world.open(&ConnectConfig { fast_open: Some(dropping), ..asking() }, &pattern(100));
    world.until(50);
    let at_b = world.accept();
    assert_eq!(world.read(B, at_b), pattern(100));
    world.pair.write(B, at_b, &pattern(2000)).expect("room");
    world.until(299);
    assert_eq!(world.sent(A), [(0, "S", 100, true), (150, "S", 0, false), (250, ".", 0, false)]);
    assert_eq!(world.sent(B)[3], (200, "S.", 0, false));
    assert_eq!(world.class(id), Some(SynAckClass::Accepted));
    world.until(300);
    assert_eq!(world.sent(B)[4..], [(300, ".", 1448, false), (300, ".", 552, false)]);
    world.until(350);
    assert_eq!(world.read(A, id), pattern(2000));
    let stats = world.pair.b.conn_stats(at_b).expect("held");
    assert_eq!((stats.counters.reductions, stats.counters.timeouts), (0, 0));
    assert!(stats.cwnd >= 14_480);
    assert_eq!(world.read(B, at_b), [], "not twice");
}

/// Returns a world whose first SYN-ACK is lost, and both ends of the connection. B has answered with 4 kB.
fn answered_without_syn_ack() -> (World, ConnId, ConnId) {
    let mut world = World::known(FastOpenListen::default());
    world.pair.tap = Some(Box::new(lose_first(B, SYN_ACK)));
    let id = world.open(&asking(), &pattern(100));
    world.until(50);
    let at_b = world.accept();
    world.pair.write(B, at_b, &pattern(4000)).expect("room");
    (world, id, at_b)
}

/// The response waits at the client until the SYN-ACK is repeated. Its acknowledgement waits too, and reports
/// a part of the response by SACK.
#[test]
fn response_that_waits_for_a_lost_syn_ack_does_not_lengthen_the_round_trip_time() {
    let mut world = World::known(FastOpenListen::default());
    let mut sent = 0;
    world.pair.tap = Some(Box::new(move |from, _| {
        sent += usize::from(from == B);
        from == B && [1, 3].contains(&sent)
    }));
    let id = world.open(&asking(), &pattern(100));
    world.until(50);
    let at_b = world.accept();
    world.pair.write(B, at_b, &pattern(12_000)).expect("room");
    world.until(399);
    assert_eq!(world.read(A, id).len(), 12_000);
    let stats = world.pair.b.conn_stats(at_b).expect("held");
    let rtt = Some(Duration::from_millis(100));
    assert_eq!((stats.min_rtt, stats.srtt), (rtt, rtt));
}

/// The response overtakes the SYN-ACK.
#[test]
fn data_before_the_syn_ack_is_kept() {
    let (mut world, id, at_b) = answered_without_syn_ack();
    world.until(101);
    assert_eq!(world.sent(A).len(), 1, "nothing is acknowledged before the SYN-ACK");
    let syn_ack = world.pair.seen.iter().find(|seen| seen.is(B, SYN_ACK)).expect("was sent").tcp.clone();
    let copy = packet(B.addr(80), A.addr(syn_ack.dst_port), &syn_ack, &[]);
    world.until(105);
    world.pair.inject(A, &copy);
    assert_eq!(world.sent(A)[1..], [(105, ".", 0, false)], "one acknowledgement of everything");
    assert_eq!(world.read(A, id), pattern(4000));
    world.until(1000);
    assert_eq!(world.pair.b.conn_stats(at_b).expect("held").counters.retransmits, 0);
}

/// The response shows that the SYN-ACK is lost. The SYN leaves again after a quarter of the round trip. The
/// response is older than the second SYN-ACK and needs no retransmission.
#[test]
fn a_response_without_its_syn_ack_brings_the_syn_forward() {
    let (mut world, id, at_b) = answered_without_syn_ack();
    world.until(224);
    assert_eq!(world.sent(A), [(0, "S", 100, true), (125, "S", 0, false)]);
    assert_eq!(world.read(A, id), []);
    world.until(226);
    assert_eq!(world.read(A, id), pattern(4000));
    assert_eq!(world.class(id), Some(SynAckClass::Accepted));
    world.until(1000);
    assert_eq!(world.pair.b.conn_stats(at_b).expect("held").counters.retransmits, 0);
}

/// The time of a SYN-ACK is doubtful if the SYN was repeated. Any other time is certain, also one that is
/// shorter than the remembered one.
#[test]
fn the_remembered_round_trip_time_falls_and_contains_no_timer() {
    let mut world = World::new(FastOpenListen::default());
    world.pair.channel.delay = Duration::from_millis(70);
    world.learn();
    let remembered = |world: &mut World| {
        let now = world.pair.now;
        world.pair.a.path(A.ip(), B.ip(), now).rtt.expect("measured").srtt
    };
    assert!(remembered(&mut world) >= Duration::from_millis(140));
    world.pair.channel.delay = Duration::from_millis(50);
    let config = ConnectConfig { tcp: TcpConfig { path_start: true, ..quick() }, ..asking() };
    let exchange = |world: &mut World| {
        let id = world.open(&config, &pattern(100));
        world.pair.run_ms(60);
        let at_b = world.accept();
        world.pair.write(B, at_b, &pattern(1000)).expect("room");
        world.pair.run_ms(400);
        assert_eq!(world.read(A, id), pattern(1000));
        for (side, id) in [(A, id), (B, at_b)] {
            world.pair.abort(side, id);
            world.pair.release(side, id);
        }
        world.pair.run_ms(100);
    };
    (0..12).for_each(|_| exchange(&mut world));
    let fallen = remembered(&mut world);
    assert!(fallen < Duration::from_millis(130), "{fallen:?}");
    world.pair.tap = Some(Box::new(lose_first(B, SYN_ACK)));
    exchange(&mut world);
    assert!(remembered(&mut world) <= fallen);
}

/// Without free memory nothing more is kept before the SYN-ACK. A failed connection frees its memory.
#[test]
fn data_before_the_syn_ack_respects_the_memory_of_the_stack() {
    for (max_buffer_bytes, both) in [(1 << 20, true), (1_000, false)] {
        let mut peer = Peer::known_with(quick(), 1460, |config| StackConfig { max_buffer_bytes, ..config });
        let id = peer.open(&pattern(100));
        let header = peer.header(Flags::ACK, 101, None);
        let before = peer.world.pair.a.memory();
        let kept = [1, 1_001].map(|at| {
            let data = TcpHeader { seq: header.seq + at, ..header.clone() };
            peer.world.pair.forge(A, &data, &pattern(1_000));
            peer.world.pair.a.memory() - before
        });
        assert_eq!((kept[0] > 1_000, kept[1] > kept[0]), (true, both), "{kept:?}");
        peer.world.pair.abort(A, id);
        assert!(peer.world.pair.a.memory() <= before);
    }
}

/// Kept segments take no more memory than the window of the SYN, and count as memory of the stack.
#[test]
fn data_before_the_syn_ack_is_kept_up_to_the_window() {
    let receive_buffer = BufferConfig { initial: 8_000, ..TcpConfig::default().receive_buffer };
    let mut peer = Peer::known(TcpConfig { receive_buffer, ..quick() }, 1460);
    let id = peer.open(&pattern(100));
    let header = peer.header(Flags::ACK, 101, None);
    let before = peer.world.pair.a.memory();
    for n in 0..8 {
        let data = TcpHeader { seq: header.seq + 1 + n * 1_000, ..header.clone() };
        peer.world.pair.forge(A, &data, &pattern(1_000));
    }
    let held = peer.world.pair.a.memory() - before;
    assert!((5_000..=8_000).contains(&held), "{held} bytes");
    peer.answer(101, &[], 1460, &[]);
    let kept = peer.world.read(A, id).len();
    assert!((5_000..8_000).contains(&kept), "{kept} bytes");
}

/// A client without a hold drops segments that overtake the SYN-ACK. They are retransmitted.
#[test]
fn data_before_the_syn_ack_is_dropped_without_a_hold() {
    for (hold_early, read) in [(false, 0), (true, 1000)] {
        let mut world = World::known(FastOpenListen::default());
        let connect = FastOpenConnect { hold_early, ..FastOpenConnect::default() };
        let delayed: Rc<RefCell<Vec<u8>>> = Rc::default();
        let keep = Rc::clone(&delayed);
        world.pair.tap = Some(Box::new(move |from, segment: &Segment<'_>| {
            let syn_ack = from == B && segment.tcp.flags == SYN_ACK;
            if syn_ack {
                *keep.borrow_mut() = packet(B.addr(80), A.addr(segment.tcp.dst_port), &segment.tcp, &[]);
            }
            syn_ack
        }));
        let id = world.open(&ConnectConfig { fast_open: Some(connect), ..asking() }, &pattern(100));
        world.until(50);
        let at_b = world.accept();
        world.pair.write(B, at_b, &pattern(1000)).expect("room");
        world.until(110);
        world.pair.inject(A, &delayed.take());
        assert_eq!(world.read(A, id).len(), read);
        world.pair.tap = None;
        world.until(3000);
        assert_eq!(read + world.read(A, id).len(), 1000);
    }
}

#[test]
fn data_without_a_cookie_needs_both_ends_to_agree() {
    let no_cookie = FastOpenConnect { cookie: ClientCookie::None, ..FastOpenConnect::default() };
    let config = ConnectConfig { fast_open: Some(no_cookie), ..asking() };
    for (require_cookie, outcome) in [(false, FastOpenOutcome::Used), (true, FastOpenOutcome::Stripped)] {
        let mut world = World::new(FastOpenListen { require_cookie, ..FastOpenListen::default() });
        let id = world.open(&config, &pattern(100));
        world.until(200);
        assert_eq!(world.sent(A)[0], (0, "S", 100, false));
        assert_eq!(world.sent(B)[0], (50, "S.", 0, false));
        assert_eq!(world.outcome(id), outcome);
        let at_b = world.accept();
        assert_eq!(world.read(B, at_b), pattern(100));
    }
}

/// With a valid cookie and no data, the server may send first.
#[test]
fn a_server_that_speaks_first_saves_a_round_trip_too() {
    let mut world = World::known(FastOpenListen::default());
    let id = world.open(&asking(), b"");
    world.until(50);
    let at_b = world.accept();
    world.pair.write(B, at_b, b"220 hello").expect("room");
    world.until(100);
    assert_eq!(world.sent(A)[0], (0, "S", 0, true));
    assert_eq!(world.read(A, id), b"220 hello");
    assert_eq!(world.outcome(id), FastOpenOutcome::Off(OffReason::NoData));
}

#[test]
fn a_deferred_syn_leaves_with_the_first_write() {
    let mut world = World::known(FastOpenListen::default());
    let defer = FastOpenConnect { defer: true, ..FastOpenConnect::default() };
    let id = world.open(&ConnectConfig { fast_open: Some(defer), ..asking() }, b"");
    world.until(5000);
    assert_eq!(world.sent(A), []);
    let room = |world: &World| world.pair.a.conn_info(id).expect("held").syn_room;
    assert_eq!(room(&world), Some(1420), "an MSS without 40 bytes of options");
    world.restart();
    world.pair.write(A, id, &pattern(100)).expect("room");
    world.until(200);
    assert_eq!(room(&world), None, "no SYN is waiting");
    assert_eq!(world.sent(A)[0], (0, "S", 100, true));
    assert_eq!(world.outcome(id), FastOpenOutcome::Used);
}

#[test]
fn a_half_closed_request_is_answered() {
    let mut world = World::known(FastOpenListen::default());
    let id = world.open(&asking(), &pattern(100));
    world.pair.shutdown(A, id);
    world.until(50);
    let at_b = world.accept();
    assert_eq!(world.read(B, at_b), pattern(100));
    world.pair.write(B, at_b, &pattern(3000)).expect("room");
    world.pair.shutdown(B, at_b);
    world.pair.release(B, at_b);
    world.until(100);
    assert_eq!(world.read(A, id), pattern(3000));
    assert_eq!(world.pair.read(A, id), Ok(None), "the end arrives with the answer");
    world.until(70_000);
    assert_eq!((world.pending(), world.pair.b.connections()), (0, 0));
}

#[test]
fn fast_open_off_leaves_the_traffic_as_it_was() {
    let traffic = |listen: ListenConfig| {
        let mut world = World::with(listen, |config| config);
        let config = ConnectConfig { tcp: quick(), ..ConnectConfig::default() };
        let id = world.open(&config, &pattern(100));
        world.until(150);
        let at_b = world.accept();
        world.pair.write(B, at_b, &pattern(5000)).expect("room");
        world.until(1000);
        assert_eq!(world.outcome(id), FastOpenOutcome::Off(OffReason::NotAsked));
        let seen = world.pair.seen.iter().map(|seen| (seen.at, seen.from, seen.tcp.clone(), seen.len));
        seen.collect::<Vec<_>>()
    };
    let plain = ListenConfig { tcp: quick(), ..ListenConfig::default() };
    assert_eq!(traffic(plain), traffic(serving(FastOpenListen::default())));
}

#[test]
fn the_memory_of_the_client_survives_a_restart() {
    let mut world = World::known(FastOpenListen::default());
    let now = world.pair.now;
    world.pair.a.set_unix_time(1_800_000_000, now);
    let text = world.pair.a.export_fast_open_cache(now);
    world.pair.a.flush_fast_open_cache(None);
    let id = world.open(&asking(), &pattern(100));
    world.until(300);
    assert_eq!(world.outcome(id), FastOpenOutcome::NoCookie);
    let now = world.pair.now;
    world.pair.a.flush_fast_open_cache(None);
    world.pair.a.import_fast_open_cache(&text, now).expect("as written");
    world.restart();
    let id = world.open(&asking(), &pattern(100));
    world.until(300);
    assert_eq!(world.outcome(id), FastOpenOutcome::Used);
}

/// A hostile channel with Fast Open: every byte arrives once per connection, in order.
#[test]
fn data_survives_a_hostile_channel() {
    for seed in 0..20 {
        let mut pair = Pair::new(seed);
        pair.channel = crate::harness::Channel {
            delay: Duration::from_millis(20),
            jitter: Duration::from_millis(30),
            loss: 80,
            duplicate: 50,
        };
        let listener = pair.listen(B, 80, serving(FastOpenListen::default()));
        for round in 0..6 {
            let now = pair.now;
            let data = pattern(6000);
            let (id, taken) = pair.a.connect_with_data(B.addr(80), &data, &asking(), now).expect("possible");
            assert_eq!(taken, data.len());
            pair.shutdown(A, id);
            let (mut at_b, mut got) = (None, Vec::new());
            pair.run_until(Duration::from_secs(120), |pair| {
                at_b = at_b.or_else(|| pair.b.accept(listener).map(|(id, _)| id));
                let Some(at_b) = at_b else { return false };
                match pair.read(B, at_b) {
                    Ok(Some(more)) => got.extend(more),
                    Ok(None) => return true,
                    Err(error) => panic!("seed {seed} round {round}: {error}"),
                }
                false
            });
            assert!(got == data, "seed {seed} round {round}: {} bytes", got.len());
            let at_b = at_b.expect("was accepted");
            pair.transfer(B, at_b, id, &pattern(20_000), Duration::from_secs(120));
            pair.release(A, id);
            pair.release(B, at_b);
            pair.run(Duration::from_secs(5));
            while let Some((replayed, _)) = pair.b.accept(listener) {
                pair.abort(B, replayed);
                pair.release(B, replayed);
            }
        }
        pair.run(Duration::from_secs(300));
        let now = pair.now;
        assert_eq!(pair.b.fast_open_pending(listener, now), 0, "seed {seed}");
    }
}
