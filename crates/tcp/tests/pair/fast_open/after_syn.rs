//! Data that follows the SYN at once, where both ends have agreed to it. Times as in the parent module.

use super::*;

fn following(segments: u8) -> ConnectConfig {
    let fast_open = FastOpenConnect { data_after_syn: segments, ..FastOpenConnect::default() };
    ConnectConfig { fast_open: Some(fast_open), ..asking() }
}

fn taking() -> FastOpenListen {
    FastOpenListen { data_after_syn: true, ..FastOpenListen::default() }
}

/// Returns time, flags and length of A's segments, in the order of sending.
fn lengths(world: &World) -> Vec<(u64, &'static str, usize)> {
    world.sent(A).into_iter().map(|(at, flags, len, _)| (at, flags, len)).collect()
}

#[test]
fn a_long_request_arrives_after_half_a_round_trip() {
    let mut world = World::known(taking());
    let id = world.open(&following(9), &pattern(10_000));
    world.until(50);
    let at_b = world.accept();
    assert_eq!(world.read(B, at_b), pattern(10_000));
    world.pair.write(B, at_b, &pattern(500)).expect("room");
    world.until(100);
    assert_eq!(world.read(A, id), pattern(500), "one round trip");
    world.until(400);
    let sent = lengths(&world);
    assert_eq!(sent[..2], [(0, "S", 1420), (0, "?", 1420)], "no ACK flag");
    assert_eq!(sent.iter().filter(|(at, ..)| *at == 0).map(|(.., len)| len).sum::<usize>(), 10_000);
    let stats = world.pair.a.conn_stats(id).expect("held").counters;
    assert_eq!((stats.data_after_syn, stats.retransmits, stats.timeouts), (8_580, 0, 0));
    assert_eq!(stats.payload_bytes_acked, 10_000);
    assert_eq!(world.outcome(id), FastOpenOutcome::Used);
    assert_eq!(world.pending(), 0);
}

#[test]
fn no_more_than_an_initial_window_follows() {
    let mut world = World::known(taking());
    world.open(&following(9), &pattern(30_000));
    world.until(10);
    let sent: usize = lengths(&world).iter().map(|(.., len)| len).sum();
    assert_eq!((sent, lengths(&world).len()), (14_200, 10));
    world.until(1000);
    let at_b = world.accept();
    assert_eq!(world.read(B, at_b), pattern(30_000));
}

/// A server accepts at most an initial window after the SYN until an ACK proves the address, even if a client
/// sends more.
#[test]
fn a_server_takes_no_more_than_an_initial_window_without_ack() {
    let mut world = World::known(taking());
    world.open(&following(9), &pattern(40_000));
    world.until(51);
    let syn = world.pair.seen[0].tcp.clone();
    for from in (14_200..40_000).step_by(1420) {
        let behind = TcpHeader { seq: syn.seq + 1 + from, flags: Flags::PSH, ..syn.clone() };
        let payload = &pattern(40_000)[from as usize..][..1420.min(40_000 - from as usize)];
        world.pair.forge(B, &behind, payload);
    }
    let at_b = world.accept();
    let taken = world.read(B, at_b).len();
    assert!((14_200..1420 + 14_600).contains(&taken), "{taken}");
}

#[test]
fn by_default_nothing_follows() {
    let mut world = World::known(taking());
    world.open(&asking(), &pattern(10_000));
    world.until(99);
    assert_eq!(lengths(&world), [(0, "S", 1420)]);
}

#[test]
fn a_server_that_refuses_the_cookie_gets_everything_after_the_handshake() {
    let mut world = World::known(taking());
    world.pair.b.set_fast_open_keys(fixed(9, None));
    let id = world.open(&following(9), &pattern(10_000));
    world.until(1000);
    assert_eq!(world.class(id), Some(SynAckClass::SoftReject));
    let at_b = world.accept();
    assert_eq!(world.read(B, at_b), pattern(10_000));
    let again: usize = lengths(&world).iter().filter(|(at, ..)| *at == 100).map(|(.., len)| len).sum();
    assert_eq!(again, 10_000, "with the acknowledgement");
    assert_eq!(world.pair.a.conn_stats(id).expect("held").counters.reductions, 0);
}

#[test]
fn a_server_that_has_not_agreed_gets_it_all_the_same() {
    let mut world = World::known(FastOpenListen::default());
    let id = world.open(&following(9), &pattern(10_000));
    world.until(60);
    let at_b = world.accept();
    assert_eq!(world.read(B, at_b), pattern(1420), "what the SYN carried");
    world.until(2000);
    assert_eq!(world.read(B, at_b), pattern(10_000)[1420..]);
    assert_eq!(world.outcome(id), FastOpenOutcome::Used);
}

#[test]
fn loss_behind_the_syn_is_recovered_like_any_other() {
    for lost in 1..8 {
        let mut world = World::known(taking());
        let mut count = 0;
        world.pair.tap = Some(Box::new(move |from, _: &Segment<'_>| {
            count += u32::from(from == A);
            from == A && count == lost + 1
        }));
        let id = world.open(&following(9), &pattern(10_000));
        world.until(1500);
        let at_b = world.accept();
        assert_eq!(world.read(B, at_b), pattern(10_000), "segment {lost} lost");
        assert_eq!(world.pair.a.conn_stats(id).expect("held").counters.timeouts, 0, "segment {lost} lost");
    }
}

/// The listener has no connection for the data (RFC 9293 section 3.10.7.2: "drop the segment").
#[test]
fn data_that_overtakes_its_syn_is_dropped_in_silence() {
    let mut world = World::known(taking());
    let syn =
        TcpHeader { src_port: 4444, dst_port: 80, seq: SeqNum(77), window: 1000, ..TcpHeader::default() };
    let early = TcpHeader { seq: SeqNum(78), flags: Flags::PSH, ..syn };
    world.pair.forge(B, &early, &pattern(100));
    world.until(100);
    assert_eq!(world.sent(B), []);
}

#[test]
fn a_connection_that_its_syn_did_not_open_takes_nothing_without_ack() {
    let mut world = World::known(taking());
    let client = SimulatedClient::new(&mut world, 1);
    world.restart();
    client.send(&mut world, 1001, None, &[]);
    let behind = TcpHeader { seq: SeqNum(1002), flags: Flags::PSH, window: 1000, ..TcpHeader::default() };
    client.segment(&mut world, 1001, &behind, &pattern(100));
    world.until(10);
    assert!(world.pair.b.accept(world.listener).is_none());
    assert_eq!(world.sent(B).len(), 1, "the SYN-ACK");
}

fn in_parts(parts: u8) -> ConnectConfig {
    let fast_open = FastOpenConnect { syn_parts: parts, ..FastOpenConnect::default() };
    ConnectConfig { fast_open: Some(fast_open), ..asking() }
}

#[test]
fn parts_of_a_request_on_syns_are_acked_after_the_handshake() {
    let mut world = World::known(taking());
    let id = world.open(&in_parts(4), &pattern(5000));
    world.until(50);
    let at_b = world.accept();
    assert_eq!(world.read(B, at_b), pattern(5000));
    world.pair.write(B, at_b, &pattern(500)).expect("room");
    world.until(100);
    assert_eq!(world.read(A, id), pattern(500), "one round trip");
    world.until(400);
    let sent = lengths(&world);
    assert_eq!(sent[..4], [(0, "S", 1420), (0, "S", 1420), (0, "S", 1420), (0, "S", 740)]);
    let syn = &world.pair.seen[0].tcp;
    let (iss, of) = (syn.seq, |side| world.pair.seen.iter().filter(move |seen| seen.from == side));
    assert!(of(A).take(4).all(|seen| seen.tcp.seq == iss), "they look like repetitions");
    let acked: Vec<u32> = of(B).map(|seen| seen.tcp.ack.since(iss + 1)).collect();
    assert_eq!(acked[..2], [1420, 1420], "the SYN-ACK and the response acknowledge only the first part");
    assert!(acked[2..].iter().all(|&acked| acked == 5000) && acked.len() > 2, "{acked:?}");
    let first_after = of(A).nth(4).expect("the acknowledgement").tcp.seq;
    assert_eq!(first_after, iss + 5001, "it shows how far the data goes");
    let stats = world.pair.a.conn_stats(id).expect("held").counters;
    assert_eq!((stats.retransmits, stats.timeouts, stats.payload_bytes_acked), (0, 0, 5000));
}

#[test]
fn parts_are_held_back_until_they_are_in_order() {
    let mut world = World::known(taking());
    let mut count = 0;
    world.pair.tap = Some(Box::new(move |from, _: &Segment<'_>| {
        count += u32::from(from == A);
        from == A && count == 2
    }));
    let id = world.open(&in_parts(4), &pattern(5000));
    world.until(60);
    let at_b = world.accept();
    assert_eq!(world.read(B, at_b), pattern(1420), "the second is lost");
    let acks: Vec<bool> = world
        .pair
        .seen
        .iter()
        .filter(|seen| seen.from == B)
        .map(|seen| seen.tcp.options.sack.is_empty())
        .collect();
    assert!(acks.iter().all(|&silent| silent), "nothing is said of the others");
    world.until(1500);
    assert_eq!(world.read(B, at_b), pattern(5000)[1420..]);
    assert_eq!(world.pair.a.conn_stats(id).expect("held").counters.timeouts, 0);
}

#[test]
fn a_server_that_has_not_agreed_takes_parts_for_repetitions() {
    let mut world = World::known(FastOpenListen::default());
    let id = world.open(&in_parts(4), &pattern(5000));
    world.until(60);
    let at_b = world.accept();
    assert_eq!(world.read(B, at_b), pattern(1420));
    world.until(2500);
    assert_eq!(world.read(B, at_b), pattern(5000)[1420..]);
    assert_eq!(
        world.outcome(id),
        FastOpenOutcome::Used,
        "repeated SYN-ACKs are no sign of a black hole here"
    );
}

#[test]
fn a_part_without_its_first_syn_is_not_the_beginning() {
    let mut world = World::new(FastOpenListen { require_cookie: false, ..taking() });
    let mut count = 0;
    world.pair.tap = Some(Box::new(move |from, _: &Segment<'_>| {
        count += u32::from(from == A);
        from == A && count == 1
    }));
    let fast_open =
        FastOpenConnect { syn_parts: 2, cookie: ClientCookie::None, ..FastOpenConnect::default() };
    world.open(&ConnectConfig { fast_open: Some(fast_open), ..asking() }, &pattern(2000));
    world.until(60);
    assert!(world.pair.b.accept(world.listener).is_none(), "an ordinary handshake");
    world.until(2500);
    let at_b = world.accept();
    assert_eq!(world.read(B, at_b), pattern(2000));
}
