//! Limits of a server: pending connections, clients, bytes, and data before the acknowledgement. Times as in
//! the parent module.

use super::*;

/// No data is sent before the client has proven that it receives packets.
#[test]
fn a_held_response_waits_for_the_acknowledgement() {
    let mut world =
        World::known(FastOpenListen { early_response: EarlyResponse::Held, ..FastOpenListen::default() });
    let id = world.open(&asking(), &pattern(100));
    world.until(50);
    let at_b = world.accept();
    assert_eq!(world.read(B, at_b), pattern(100));
    world.pair.write(B, at_b, &pattern(2000)).expect("room");
    world.until(149);
    assert_eq!(world.sent(B), [(50, "S.", 0, false)]);
    world.until(200);
    assert_eq!(world.sent(B)[1..], [(150, ".", 1448, false), (150, ".", 552, false)]);
    assert_eq!(world.read(A, id), pattern(2000));
}

/// The response before the acknowledgement is limited by the bytes of the SYN.
#[test]
fn the_amplification_is_bounded() {
    let early_response = EarlyResponse::Multiple(3);
    let mut world = World::known(FastOpenListen { early_response, ..FastOpenListen::default() });
    world.open(&asking(), &pattern(1420));
    world.until(50);
    let at_b = world.accept();
    world.pair.write(B, at_b, &pattern(10_000)).expect("room");
    world.until(149);
    assert_eq!(world.sent(A)[0], (0, "S", 1420, true));
    assert_eq!(world.sent(B), [(50, "S.", 0, false), (50, ".", 1448, false), (50, ".", 1448, false)]);
    world.until(160);
    assert!(world.sent(B).len() > 5, "the acknowledgement lifts the bound");
}

/// The limit of pending connections. Reset connections still count towards it.
#[test]
fn pending_connections_are_bounded_and_a_reset_frees_none_of_them() {
    let mut world = World::new(FastOpenListen { max_pending: 2, ..FastOpenListen::default() });
    let clients: Vec<SimulatedClient> = (1..=3).map(|n| SimulatedClient::new(&mut world, n)).collect();
    world.restart();
    assert_eq!(clients[0].open(&mut world, 1001), 10);
    assert_eq!(clients[1].open(&mut world, 1002), 10);
    assert_eq!(clients[2].open(&mut world, 1003), 0);
    assert_eq!(world.pair.last(B).tcp.options.fast_open, None);
    assert_eq!((world.pending(), world.pair.b.stats().fast_open.overflow), (2, 1));
    world.until(10);
    clients[0].reset(&mut world, 1001);
    clients[1].reset(&mut world, 1002);
    assert_eq!(world.pending(), 2);
    world.until(1000);
    assert_eq!(clients[2].open(&mut world, 1004), 0);
    world.until(60_009);
    assert_eq!(clients[2].open(&mut world, 1005), 0);
    world.until(60_010);
    assert_eq!(clients[2].open(&mut world, 1006), 10);
    assert_eq!(world.pair.b.stats().fast_open.rst_penalties, 2);
}

#[test]
fn a_client_has_its_own_limit() {
    let mut world = World::new(FastOpenListen { max_per_ip: 1, ..FastOpenListen::default() });
    let [one, other] = [1, 2].map(|n| SimulatedClient::new(&mut world, n));
    assert_eq!(one.open(&mut world, 1001), 10);
    assert_eq!(one.open(&mut world, 1002), 0);
    assert_eq!(other.open(&mut world, 1003), 10);
    assert_eq!(world.pair.b.stats().fast_open.per_ip_refused, 1);
}

/// A client opens many connections at once. The limit refuses Fast Open to all but one of them, but the
/// client continues to use Fast Open.
#[test]
fn a_burst_beyond_the_limit_of_a_client_does_not_suspend_fast_open() {
    let mut world = World::known(FastOpenListen { max_per_ip: 1, ..FastOpenListen::default() });
    let burst: Vec<ConnId> = (0..8).map(|_| world.open(&asking(), &pattern(100))).collect();
    world.until(500);
    let taken = |world: &World, id| world.pair.a.conn_stats(id).map(|stats| stats.fast_open);
    let used = burst.iter().filter(|id| taken(&world, **id) == Some(FastOpenOutcome::Used)).count();
    assert_eq!((used, world.pair.b.stats().fast_open.per_ip_refused), (1, 7));
    // The server's programs see the outcome too.
    let accepted: Vec<ConnId> = (0..8).map(|_| world.accept()).collect();
    let told = |id: &ConnId| world.pair.b.conn_stats(*id).expect("held").fast_open;
    let refused = accepted.iter().filter(|id| told(id) == FastOpenOutcome::Refused).count();
    assert_eq!(refused, 7);
    let later = world.open(&asking(), &pattern(100));
    world.until(1_000);
    assert_eq!(taken(&world, later), Some(FastOpenOutcome::Used));
}

/// Data received before a reset can be read. Then the error is returned.
#[test]
fn a_reset_leaves_what_was_received() {
    let mut world = World::new(FastOpenListen::default());
    let client = SimulatedClient::new(&mut world, 1);
    assert_eq!(client.open(&mut world, 1001), 10);
    let at_b = world.accept();
    client.reset(&mut world, 1001);
    assert_eq!(world.read(B, at_b), b"0123456789");
    assert_eq!(world.pair.read(B, at_b), Err(ReadError::Closed(CloseReason::Reset)));
    assert!(world.pair.heard(B, Event::Closed(at_b, CloseReason::Reset)));
    assert_eq!(world.pending(), 1);
    let again = client.open(&mut world, 1002);
    assert_eq!(again, 10);
    client.reset(&mut world, 1002);
    let never_seen = world.accept();
    assert_eq!(world.read(B, never_seen), b"0123456789", "also if it was reset before accept");
}

/// Forged resets arrive during the wait for the acknowledgement of a Fast Open connection. Only a reset with
/// the exact sequence number ends it (RFC 5961 section 3.2). So a blind flood has no effect.
#[test]
fn a_flood_of_blind_resets_has_no_effect() {
    let mut world = World::known(FastOpenListen::default());
    let id = world.open(&asking(), &pattern(100));
    world.until(50);
    let at_b = world.accept();
    let syn = world.pair.seen[0].tcp.clone();
    let from = SocketAddr::new(A.ip(), syn.src_port);
    let next = syn.seq + 101;
    // Numbers around the window in steps, and in the whole space in strides, without the exact number.
    let near = (1..4000u32).flat_map(|step| [next + step * 16, next - step * 16]);
    let far = (1..4000u32).map(|step| next + step.wrapping_mul(1_073_741));
    for seq in near.chain(far) {
        let reset =
            TcpHeader { seq, flags: RST, src_port: syn.src_port, dst_port: 80, ..TcpHeader::default() };
        world.pair.inject(B, &packet(from, B.addr(80), &reset, &[]));
    }
    assert_eq!((world.pending(), world.pair.b.state(at_b)), (1, Some(State::SynReceived)));
    world.pair.write(B, at_b, &pattern(5000)).expect("room");
    world.until(200);
    assert_eq!(world.read(A, id), pattern(5000));
    assert_eq!((world.outcome(id), world.pending()), (FastOpenOutcome::Used, 0));
    assert_eq!(world.pair.b.stats().fast_open.rst_penalties, 0);
    let challenged = world.pair.b.stats().challenge_acks_sent;
    assert!((1..=20).contains(&challenged), "as many as a connection may send: {challenged}");
}

/// An acknowledgement of data never sent does not end the connection.
#[test]
fn a_blind_acknowledgement_aborts_nothing() {
    let mut world = World::new(FastOpenListen::default());
    let client = SimulatedClient::new(&mut world, 1);
    assert_eq!(client.open(&mut world, 1001), 10);
    let at_b = world.accept();
    let seq = SeqNum(1001) + 11;
    let ack = TcpHeader { seq, ack: SeqNum(77), flags: Flags::ACK, window: 100, ..TcpHeader::default() };
    client.segment(&mut world, 1001, &ack, &[]);
    let answer = &world.pair.last(B).tcp;
    assert_eq!((answer.flags, answer.seq), (RST, SeqNum(77)));
    assert_eq!(world.pair.b.state(at_b), Some(State::SynReceived));
}

#[test]
fn syn_cookies_exclude_fast_open_except_with_a_good_cookie() {
    let listen = |syn_cookies, max_half_open| ListenConfig {
        syn_cookies,
        max_half_open,
        ..serving(FastOpenListen::default())
    };
    let mut always = World::with(listen(SynCookies::Always, 100), |config| config);
    let id = always.open(&asking(), &pattern(100));
    always.until(300);
    assert_eq!(always.outcome(id), FastOpenOutcome::Stripped);
    let mut flooded = World::with(listen(SynCookies::UnderFlood, 4), |config| config);
    let client = SimulatedClient::new(&mut flooded, 1);
    for port in 2000..2010 {
        client.send(&mut flooded, port, None, &[]);
    }
    assert!(flooded.pair.b.stats().syn_cookies_sent > 0);
    assert_eq!(client.open(&mut flooded, 1001), 10, "its address is proved already");
    let forged = Cookie::new(&[7; 8]).map(FastOpen::with_cookie);
    client.send(&mut flooded, 1002, forged, b"0123456789");
    let answer = flooded.pair.last(B).tcp.clone();
    assert_eq!((answer.ack, answer.options.fast_open), (SeqNum(1003), None));
}

#[test]
fn a_closed_listener_resets_what_it_opened_and_forgets_its_penalties() {
    let mut world = World::new(FastOpenListen::default());
    let client = SimulatedClient::new(&mut world, 1);
    assert_eq!(client.open(&mut world, 1001), 10);
    assert_eq!(client.open(&mut world, 1002), 10);
    client.reset(&mut world, 1002);
    let (now, listener) = (world.pair.now, world.listener);
    world.pair.b.close_listener(listener, now);
    world.pair.run_ms(10);
    assert_eq!(world.pair.last(B).tcp.flags, Flags::RST | Flags::ACK);
    assert_eq!((world.pending(), world.pair.b.connections()), (0, 0));
}

#[test]
fn an_unanswered_syn_ack_no_longer_counts_against_the_limit() {
    let mut world = World::new(FastOpenListen::default());
    let client = SimulatedClient::new(&mut world, 1);
    assert_eq!(client.open(&mut world, 1001), 10);
    let at_b = world.accept();
    world.pair.write(B, at_b, &pattern(20_000)).expect("room");
    world.pair.run(Duration::from_secs(62));
    assert_eq!(world.pending(), 1);
    world.pair.run(Duration::from_secs(2));
    assert_eq!(world.pending(), 0);
    assert_eq!(world.read(B, at_b), b"0123456789");
    assert_eq!(world.pair.read(B, at_b), Err(ReadError::Closed(CloseReason::HandshakeTimeout)));
    // The SYN-ACK and the initial window; afterwards only bare SYN-ACKs.
    let sent: Vec<usize> = world.sent(B).iter().skip(1).map(|&(_, _, len, _)| len).collect();
    assert_eq!(sent.iter().filter(|&&len| len > 0).count(), 10);
    assert_eq!(sent.iter().filter(|&&len| len == 0).count(), 6);
}

/// Runs until `until` ms, with a response of `len` bytes. The client drops data before the SYN-ACK and
/// repeats its SYN after `syn_rto` ms. Returns the statistics of the server's connection.
fn answered(world: &mut World, syn_rto: u64, len: usize, until: u64) -> brisk_tcp::connection::ConnStats {
    let syn_rto_floor = Duration::from_millis(syn_rto);
    let fast_open = FastOpenConnect { syn_rto_floor, hold_early: false, ..FastOpenConnect::default() };
    let id = world.open(&ConnectConfig { fast_open: Some(fast_open), ..asking() }, &pattern(100));
    world.until(50);
    let at_b = world.accept();
    world.pair.write(B, at_b, &pattern(len)).expect("room");
    world.until(until);
    assert_eq!(world.read(A, id), pattern(len));
    world.pair.b.conn_stats(at_b).expect("held")
}

#[test]
fn the_timer_of_the_syn_ack_lowers_the_window() {
    let mut world = World::known(FastOpenListen::default());
    // The SYN-ACK, the three segments of the response and the client's second SYN are lost.
    let (mut count, mut asked) = (0, 0);
    world.pair.tap = Some(Box::new(move |from, _| {
        count += usize::from(from == B);
        asked += usize::from(from != B);
        if from == B { count <= 4 } else { asked == 2 }
    }));
    let stats = answered(&mut world, 1000, 4000, 3000);
    assert_eq!(stats.counters.reductions, 1);
    assert!(stats.ssthresh < 14_480, "{}", stats.ssthresh);
}

/// Only the SYN-ACK was sent and lost. The client acknowledges its retransmission.
#[test]
fn a_timeout_that_was_right_is_not_undone_though_no_data_was_dropped() {
    let mut world = World::known(FastOpenListen::default());
    let (mut count, mut asked) = (0, 0);
    world.pair.tap = Some(Box::new(move |from, _| {
        count += usize::from(from == B);
        asked += usize::from(from != B);
        if from == B { count == 1 } else { asked == 2 }
    }));
    let fast_open = FastOpenConnect { syn_rto_floor: Duration::from_secs(1), ..FastOpenConnect::default() };
    world.open(&ConnectConfig { fast_open: Some(fast_open), ..asking() }, &pattern(100));
    world.until(50);
    let at_b = world.accept();
    world.until(2000);
    let counters = world.pair.b.conn_stats(at_b).expect("held").counters;
    assert_eq!((counters.reductions, counters.undos), (1, 0));
}

/// The client was in SYN-SENT when the response arrived, and dropped it. It repeats its SYN and is answered.
/// A moment later the timer of the first SYN-ACK fires. The timestamp shows which SYN-ACK was acknowledged.
#[test]
fn data_after_a_lost_syn_ack_is_repeated_when_a_syn_was_answered() {
    let mut world = World::known(FastOpenListen::default());
    world.pair.tap = Some(Box::new(lose_first(B, SYN_ACK)));
    let stats = answered(&mut world, 990, 14_000, 1250);
    assert_eq!((stats.counters.reductions, stats.counters.timeouts), (0, 0));
    assert_eq!(stats.counters.handshake_retransmits, 2, "the answer, and the timer");
}

#[test]
fn pending_bytes_of_the_stack_are_bounded() {
    let change = |config| {
        let fast_open = FastOpenConfig { max_pending_bytes: 15, ..FastOpenConfig::default() };
        StackConfig { fast_open, ..config }
    };
    let mut world = World::with(serving(FastOpenListen::default()), change);
    let client = SimulatedClient::new(&mut world, 1);
    assert_eq!(client.open(&mut world, 1001), 10);
    assert_eq!(client.open(&mut world, 1002), 0);
    assert_eq!(world.pair.b.stats().fast_open.memory_refused, 1);
}
