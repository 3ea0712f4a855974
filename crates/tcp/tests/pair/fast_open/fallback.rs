//! Fallback and memory if the path or the server does not accept the data. Times as in the parent module.

use super::*;

/// A path that drops SYNs with data costs half a round trip the first two times, and then nothing.
#[test]
fn a_swallowed_syn_is_followed_by_a_plain_one_and_the_second_disables() {
    let mut world = World::known(FastOpenListen::default());
    let swallow = |from: Side, segment: &Segment<'_>| {
        from == A && segment.tcp.flags == Flags::SYN && !segment.payload.is_empty()
    };
    world.pair.tap = Some(Box::new(swallow));
    for _ in 0..2 {
        world.restart();
        let id = world.open(&asking(), &pattern(100));
        world.until(1000);
        assert_eq!(world.sent(A)[..3], [(0, "S", 100, true), (150, "S", 0, false), (250, ".", 100, false)]);
        assert_eq!(
            (world.outcome(id), world.class(id)),
            (FastOpenOutcome::SynLost, Some(SynAckClass::SynDrop))
        );
        let stats = world.pair.a.conn_stats(id).expect("held");
        assert!(stats.rto < Duration::from_secs(3), "the timer of the first SYN was not the standard one");
        world.pair.abort(A, id);
        world.until(10_000);
    }
    world.restart();
    let id = world.open(&asking(), &pattern(100));
    world.until(1000);
    assert_eq!(world.sent(A)[..2], [(0, "S", 0, false), (100, ".", 100, false)]);
    assert_eq!(world.outcome(id), FastOpenOutcome::Off(OffReason::Disabled));
    world.until(241_000);
    world.restart();
    world.open(&asking(), &pattern(100));
    world.until(10);
    assert_eq!(world.sent(A), [(0, "S", 100, true)]);
    assert_eq!(world.pair.a.stats().fast_open.syn_drop, 2);
}

/// Two dropped SYNs disable Fast Open to a server that has never responded. They do not disable it to a
/// server that has responded, because the losses may be random.
#[test]
fn a_server_that_has_answered_may_lose_two_syns() {
    for answered in [false, true] {
        let mut world = World::known(FastOpenListen::default());
        let id = world.open(&asking(), &pattern(100));
        world.until(60);
        let at_b = world.accept();
        if answered {
            world.pair.write(B, at_b, b"response").expect("room");
        }
        world.until(300);
        for (side, id) in [(A, id), (B, at_b)] {
            world.pair.abort(side, id);
            world.pair.release(side, id);
        }
        world.pair.tap = Some(Box::new(|from, segment: &Segment<'_>| {
            from == A && segment.tcp.flags == Flags::SYN && !segment.payload.is_empty()
        }));
        for _ in 0..2 {
            world.restart();
            let id = world.open(&asking(), &pattern(100));
            world.until(5000);
            assert_eq!(world.class(id), Some(SynAckClass::SynDrop));
            world.pair.abort(A, id);
            world.pair.release(A, id);
        }
        world.until(5001);
        world.restart();
        world.open(&asking(), &pattern(100));
        let payload = if answered { 100 } else { 0 };
        world.until(10);
        assert_eq!(world.sent(A), [(0, "S", payload, answered)]);
    }
}

/// After three SYN-ACKs that do not acknowledge the data, SYNs carry only the cookie for a minute.
#[test]
fn a_client_whose_address_changes_stops_sending_data_for_a_while() {
    let mut world = World::known(FastOpenListen::default());
    for key in 10..13 {
        world.pair.b.set_fast_open_keys(fixed(key, None));
        let id = world.open(&asking(), &pattern(100));
        world.until(300);
        assert_eq!(world.outcome(id), FastOpenOutcome::Refused);
        let at_b = world.accept();
        let told = world.pair.b.conn_stats(at_b).expect("held").fast_open;
        assert_eq!(told, FastOpenOutcome::Refused, "the server knows it too");
        world.restart();
    }
    let id = world.open(&asking(), &pattern(100));
    world.until(300);
    assert_eq!(world.sent(A)[0], (0, "S", 0, true));
    assert_eq!(world.outcome(id), FastOpenOutcome::Off(OffReason::Suspended));
    world.until(60_000);
    world.restart();
    world.open(&asking(), &pattern(100));
    world.until(1);
    assert_eq!(world.sent(A)[0], (0, "S", 100, true));
}

#[test]
fn a_dead_path_ends_after_the_ordinary_retries() {
    let mut world = World::known(FastOpenListen::default());
    world.pair.tap = Some(Box::new(|_, _| true));
    let id = world.open(&asking(), &pattern(100));
    world.until(63_149);
    let sent: Vec<(u64, usize)> = world.sent(A).iter().map(|&(at, _, len, _)| (at, len)).collect();
    assert_eq!(sent, [(0, 100), (150, 0), (1150, 0), (3150, 0), (7150, 0), (15_150, 0), (31_150, 0)]);
    world.until(63_150);
    assert!(world.pair.heard(A, Event::Closed(id, CloseReason::HandshakeTimeout)));
    assert_eq!(world.outcome(id), FastOpenOutcome::SynLost);
    assert_eq!(world.pair.a.stats().fast_open.syn_drop, 1);
}

/// A server that is down shows nothing about Fast Open, however often the client tries.
#[test]
fn server_that_was_down_is_asked_with_fast_open_again() {
    for known in [false, true] {
        let mut world = World::new(FastOpenListen::default());
        if known {
            world.learn();
        }
        let now = world.pair.now;
        world.pair.b.close_listener(world.listener, now);
        let open = |world: &mut World| {
            world.restart();
            let id = world.open(&asking(), &pattern(100));
            world.until(500);
            let (at, flags, payload, fast_open) = world.sent(A)[0];
            assert_eq!((at, flags), (0, "S"));
            (id, payload, fast_open)
        };
        for _ in 0..10 {
            let (id, payload, fast_open) = open(&mut world);
            assert_eq!((payload, fast_open), (if known { 100 } else { 0 }, true));
            assert!(world.pair.heard(A, Event::Closed(id, CloseReason::Refused)));
            let (_, payload, fast_open) = open(&mut world);
            assert_eq!((payload, fast_open), (0, false), "a plain one shows whether the server is there");
        }
        world.listener = world.pair.listen(B, 80, serving(FastOpenListen::default()));
        let (id, ..) = open(&mut world);
        let outcome = if known { FastOpenOutcome::Used } else { FastOpenOutcome::NoCookie };
        assert_eq!(world.outcome(id), outcome);
    }
}

/// A device resets SYNs with the option. The plain connections between the failed ones show that.
#[test]
fn plain_connections_that_open_between_two_failures_disable_fast_open() {
    let mut world = World::known(FastOpenListen::default());
    world.pair.tap = Some(Box::new(|from, segment: &Segment<'_>| {
        from == A && segment.tcp.flags == Flags::SYN && segment.tcp.options.fast_open.is_some()
    }));
    for turn in 0..2 {
        world.restart();
        let id = world.open(&asking(), &pattern(100));
        world.until(10);
        let syn = world.pair.last(A).tcp.clone();
        let ack = syn.seq + 101;
        let reset = TcpHeader {
            src_port: syn.dst_port,
            dst_port: syn.src_port,
            ack,
            flags: Flags(Flags::RST.0 | Flags::ACK.0),
            ..TcpHeader::default()
        };
        world.pair.inject(A, &packet(B.addr(80), A.addr(syn.src_port), &reset, &[]));
        assert!(world.pair.heard(A, Event::Closed(id, CloseReason::Refused)), "{turn}");
        let id = world.open(&asking(), &pattern(100));
        world.until(500);
        assert_eq!(world.outcome(id), FastOpenOutcome::Off(OffReason::OnTrial));
        assert_eq!(world.pair.a.state(id), Some(State::Established));
    }
    let id = world.open(&asking(), &pattern(100));
    assert_eq!(world.outcome(id), FastOpenOutcome::Off(OffReason::Disabled));
}

/// Only a reset by which a closed port answers the only SYN proves that nobody has the data.
#[test]
fn a_reset_after_which_the_data_may_be_delivered_is_no_refusal() {
    for (at, seq, reason) in [
        (10, 0, CloseReason::Refused),
        // A connection that the SYN had opened has ended.
        (10, 4711, CloseReason::Reset),
        // The SYN without data at 150 ms met a closed port. The first SYN may have met an open one.
        (160, 0, CloseReason::Reset),
    ] {
        let mut world = World::known(FastOpenListen::default());
        world.pair.tap = Some(Box::new(|from, _: &Segment<'_>| from == A));
        world.restart();
        let id = world.open(&asking(), &pattern(100));
        world.until(at);
        let syn = world.pair.last(A).tcp.clone();
        let reset = TcpHeader {
            src_port: syn.dst_port,
            dst_port: syn.src_port,
            seq: SeqNum(seq),
            ack: syn.seq + 1,
            flags: Flags(Flags::RST.0 | Flags::ACK.0),
            ..TcpHeader::default()
        };
        world.pair.inject(A, &packet(B.addr(80), A.addr(syn.src_port), &reset, &[]));
        assert!(world.pair.heard(A, Event::Closed(id, reason)), "{reason:?} at {at} ms");
    }
}

/// ICMP says that the SYN is too large.
#[test]
fn plain_syn_follows_one_that_is_too_large_without_a_failure() {
    let mut peer = Peer::known(bare(), 1460);
    let id = peer.open(&pattern(1400));
    peer.world.until(10);
    let syn = peer.syn().clone();
    let too_big = |seq: SeqNum| icmp_too_big(syn.src_port, seq, 800);
    peer.world.pair.inject(A, &too_big(syn.seq + 7));
    assert_eq!(peer.world.sent(A).len(), 1, "another sequence number is none of ours");
    peer.world.pair.inject(A, &too_big(syn.seq));
    assert_eq!(peer.world.sent(A)[1..], [(10, "S", 0, false)]);
    peer.world.until(100);
    peer.answer(1, &[], 1460, &[]);
    let first = peer.world.sent(A)[2];
    assert_eq!((first.1, first.2), (".", 760));
    assert_eq!(peer.world.class(id), Some(SynAckClass::SoftNegative));
    assert_eq!(peer.world.pair.a.stats().fast_open.syn_drop, 0);
}

/// Returns an ICMP packet "fragmentation needed" about a SYN of A to port 80 of B.
fn icmp_too_big(port: u16, seq: SeqNum, mtu: u16) -> Vec<u8> {
    let quoted = TcpHeader { seq, flags: Flags::SYN, ..TcpHeader::default() };
    let quoted = packet(A.addr(port), B.addr(80), &quoted, &[]);
    let mut icmp = vec![3, 4, 0, 0, 0, 0];
    icmp.extend(mtu.to_be_bytes());
    icmp.extend(&quoted[..28]);
    let sum = checksum(&icmp);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 1, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1];
    let len = (ip.len() + icmp.len()) as u16;
    ip[2..4].copy_from_slice(&len.to_be_bytes());
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    ip.extend(icmp);
    ip
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

/// Connections that open and then fail, to one destination and to two.
#[test]
fn a_black_hole_behind_the_handshake_switches_fast_open_off() {
    let mut world = World::new(FastOpenListen::default());
    world.pair.tap = Some(Box::new(|_, _| true));
    let broken = |world: &mut World, remote: [u8; 4]| {
        let (now, remote) = (world.pair.now, (remote, 80).into());
        let no_cookie = FastOpenConnect { cookie: ClientCookie::None, ..FastOpenConnect::default() };
        let config = ConnectConfig { tcp: bare(), fast_open: Some(no_cookie), ..ConnectConfig::default() };
        let (id, _) = world.pair.a.connect_with_data(remote, &pattern(100), &config, now).expect("possible");
        world.pair.run_ms(1);
        let syn = world.pair.seen.iter().rev().find(|seen| seen.is(A, Flags::SYN)).expect("was sent").clone();
        if syn.len == 0 {
            return world.outcome(id);
        }
        let options = Options { mss: Some(1460), ..Options::default() };
        let answer = TcpHeader {
            seq: SeqNum(9000),
            ack: syn.tcp.seq + 101,
            flags: SYN_ACK,
            window: 65_535,
            options,
            ..TcpHeader::default()
        };
        let packet = packet(remote, A.addr(syn.tcp.src_port), &answer, &[]);
        world.pair.run_ms(50);
        world.pair.inject(A, &packet);
        assert_eq!(world.outcome(id), FastOpenOutcome::Used);
        world.pair.write(A, id, &pattern(100)).expect("room");
        world.pair.run(Duration::from_secs(5));
        world.outcome(id)
    };
    assert_eq!(broken(&mut world, [10, 0, 1, 1]), FastOpenOutcome::Blackholed);
    assert_eq!(broken(&mut world, [10, 0, 1, 1]), FastOpenOutcome::Off(OffReason::Disabled), "this one only");
    assert_eq!(broken(&mut world, [10, 0, 1, 2]), FastOpenOutcome::Blackholed);
    assert_eq!(broken(&mut world, [10, 0, 1, 3]), FastOpenOutcome::Off(OffReason::BlackHole));
    assert_eq!(world.pair.a.stats().fast_open.black_holes, 2);
    world.pair.run(Duration::from_secs(3600));
    assert_eq!(broken(&mut world, [10, 0, 1, 3]), FastOpenOutcome::Blackholed, "tried again after an hour");
}

/// The response to data on a SYN never arrives, but the FIN after it does, because a device drops the data.
#[test]
fn a_fin_without_the_data_before_it_is_a_sign_of_a_black_hole() {
    for swallowed in [true, false] {
        let mut world = World::known(FastOpenListen::default());
        let id = world.open(&asking(), &pattern(100));
        world.until(60);
        let at_b = world.accept();
        world.pair.tap =
            Some(Box::new(move |side, segment| swallowed && side == B && !segment.payload.is_empty()));
        world.pair.write(B, at_b, &pattern(200)).expect("room");
        world.until(70);
        world.read(B, at_b);
        world.pair.release(B, at_b);
        world.until(150);
        world.pair.abort(A, id);
        assert_eq!(world.pair.a.stats().fast_open.black_holes, u64::from(swallowed), "{swallowed}");
    }
}
