//! Repeated SYNs, and cookies for a single connection. Times as in the parent module.

use super::*;

/// A copy of the SYN during the connection.
#[test]
fn a_repeated_syn_delivers_nothing_twice() {
    let mut world = World::known(FastOpenListen::default());
    let id = world.open(&asking(), &pattern(100));
    world.until(50);
    let at_b = world.accept();
    assert_eq!(world.read(B, at_b), pattern(100));
    let syn = world.pair.seen[0].tcp.clone();
    let copy = packet(A.addr(syn.src_port), B.addr(80), &syn, &pattern(100));
    world.until(60);
    world.pair.inject(B, &copy);
    assert_eq!(world.sent(B)[1], (60, "S.", 0, false));
    world.until(1000);
    let before = world.sent(B).len();
    world.pair.inject(B, &copy);
    assert_eq!(world.sent(B)[before..], [(1000, ".", 0, false)], "a challenge");
    assert_eq!(world.pair.read(B, at_b), Ok(Some(vec![])));
    assert_eq!(world.pair.b.accept(world.listener), None);
    assert_eq!(world.pair.a.state(id), Some(State::Established));
}

/// A copy of the SYN after the connection has ended.
#[test]
fn a_syn_that_comes_again_after_the_end_is_recognised() {
    let mut world = World::known(FastOpenListen::default());
    let first = closed_by_the_client(&mut world);
    let port = first.src_port;
    let copy = packet(A.addr(port), B.addr(80), &first, &pattern(100));
    assert_eq!(world.pair.b.connections(), 0);
    world.pair.seen.clear();
    world.pair.inject(B, &copy);
    assert_eq!(world.sent(B).len(), 1);
    assert_eq!(world.sent(B)[0].1, ".");
    assert_eq!(world.pair.b.accept(world.listener), None);
    assert_eq!(world.pair.b.stats().fast_open.replay_blocked, 1);
    world.pair.run(Duration::from_secs(61));
    world.pair.inject(B, &copy);
    let late = world.accept();
    assert_eq!(world.read(B, late), pattern(100), "a documented limit");
}

#[test]
fn a_new_connection_over_the_same_ends_is_no_replay() {
    let mut world = World::known(FastOpenListen::default());
    let first = closed_by_the_client(&mut world);
    let mut fresh = first.clone();
    fresh.seq += 5_000_000;
    if let Some(timestamps) = &mut fresh.options.timestamps {
        timestamps.value = timestamps.value.wrapping_add(60_000);
    }
    let packet = packet(A.addr(first.src_port), B.addr(80), &fresh, &pattern(50));
    world.pair.inject(B, &packet);
    let at_b = world.accept();
    assert_eq!(world.read(B, at_b), pattern(50));
    assert_eq!(world.pair.b.stats().fast_open.replay_blocked, 0);
}

#[test]
fn without_the_hold_a_replay_is_processed_again() {
    let off = |config| StackConfig {
        fast_open: FastOpenConfig { last_ack_hold: LastAckHold::Off, ..FastOpenConfig::default() },
        ..config
    };
    let mut world = World::with(serving(FastOpenListen::default()), off);
    world.learn();
    let first = closed_by_the_client(&mut world);
    let copy = packet(A.addr(first.src_port), B.addr(80), &first, &pattern(100));
    world.pair.inject(B, &copy);
    let again = world.accept();
    assert_eq!(world.read(B, again), pattern(100));
    // The client is in TIME-WAIT; it sends an acknowledgement, which the server answers with a reset.
    world.pair.run(Duration::from_secs(70));
    assert!(matches!(world.pair.read(B, again), Err(ReadError::Closed(CloseReason::HandshakeTimeout))));
    assert_eq!(world.pending(), 0);
}

/// Runs a whole connection that A closes first; returns the header of its SYN.
fn closed_by_the_client(world: &mut World) -> TcpHeader {
    let id = world.open(&asking(), &pattern(100));
    world.until(60);
    let first = world.pair.seen[0].tcp.clone();
    let at_b = world.accept();
    assert_eq!(world.read(B, at_b), pattern(100));
    world.pair.write(B, at_b, &pattern(500)).expect("room");
    world.until(300);
    assert_eq!(world.read(A, id), pattern(500));
    world.pair.shutdown(A, id);
    world.until(400);
    world.pair.shutdown(B, at_b);
    world.pair.release(B, at_b);
    world.until(600);
    assert_eq!(world.pair.a.state(id), Some(State::TimeWait));
    first
}

/// Cookies that open one connection each.
#[cfg(feature = "one-time-cookies")]
mod one_time {
    use super::*;

    /// A second listener, and new keys for the cookies of RFC 7413, do not affect one-time cookies.
    #[test]
    fn a_one_time_cookie_outlives_a_new_listener() {
        let one_time = FastOpenListen { one_time: true, ..FastOpenListen::default() };
        let mut world = World::new(one_time.clone());
        let connect = FastOpenConnect { cookie: ClientCookie::OneTime, ..FastOpenConnect::default() };
        let config = ConnectConfig { fast_open: Some(connect), ..asking() };
        world.open(&config, &pattern(100));
        world.until(1000);
        world.restart();
        world.pair.listen(B, 81, serving(one_time));
        world.pair.b.set_fast_open_keys(fixed(9, None));
        let id = world.open(&config, &pattern(100));
        world.until(1000);
        assert_eq!(world.outcome(id), FastOpenOutcome::Used);
    }

    /// The option that requests such a cookie is on data segments and shortens them.
    #[test]
    fn full_segments_have_room_for_the_option_of_one_time_cookies() {
        let mut world = World::new(FastOpenListen { one_time: true, ..FastOpenListen::default() });
        let one_time = FastOpenConnect { cookie: ClientCookie::OneTime, ..FastOpenConnect::default() };
        let config = ConnectConfig { fast_open: Some(one_time), ..asking() };
        let id = world.open(&config, &pattern(5000));
        world.until(150);
        let at_b = world.accept();
        world.pair.write(B, at_b, &pattern(5000)).expect("room");
        world.until(1000);
        let asks = |seen: &&Seen| seen.from == A && seen.len > 0 && seen.tcp.options.fast_open.is_some();
        // 1460 bytes less 12 of timestamps and 4 of the request.
        assert_eq!(world.pair.seen.iter().filter(asks).map(|seen| seen.len).max(), Some(1444));
        assert_eq!(world.read(B, at_b), pattern(5000));
        assert_eq!(world.read(A, id), pattern(5000));
    }

    #[test]
    fn a_one_time_cookie_opens_one_connection() {
        let mut world = World::new(FastOpenListen { one_time: true, ..FastOpenListen::default() });
        let one_time = FastOpenConnect { cookie: ClientCookie::OneTime, ..FastOpenConnect::default() };
        let config = ConnectConfig { fast_open: Some(one_time), ..asking() };
        world.open(&config, &pattern(100));
        world.until(149);
        assert_eq!(world.sent(A), [(0, "S", 0, true), (100, ".", 100, true)]);
        assert_eq!(world.sent(B), [(50, "S.", 0, false)]);
        world.until(200);
        assert_eq!(world.sent(B)[1], (150, ".", 0, true));
        let cookie = world.pair.last(B).tcp.options.fast_open.map(|option| option.cookie.len());
        assert_eq!(cookie, Some(16));
        world.until(1000);
        world.restart();
        let id = world.open(&config, &pattern(100));
        world.until(60);
        let first = world.pair.seen[0].tcp.clone();
        world.until(1000);
        assert_eq!(world.outcome(id), FastOpenOutcome::Used);
        // The same cookie again, from another port.
        let again = TcpHeader { src_port: 999, ..first };
        world.pair.forge(B, &again, &pattern(100));
        let answer = world.pair.last(B).tcp.clone();
        assert_eq!((answer.ack.since(again.seq), answer.options.fast_open), (1, None));
        assert_eq!(world.pair.b.stats().fast_open.one_time_reuse, 1);
    }
}
