//! Missing answers: closed windows, dead peers, keepalive, timeouts, ICMP.

use std::time::Duration;

use brisk_tcp::Event;
use brisk_tcp::config::{BufferConfig, ConnectConfig, KeepaliveConfig, ListenConfig, TcpConfig};
use brisk_tcp::connection::State;
use brisk_tcp::error::CloseReason;
use brisk_tcp::stack::{Refusal, Rx};
use brisk_wire::{Flags, IcmpKind, TcpHeader, emit_icmp, emit_icmp_too_big};

use crate::harness::{A, B, Pair, Seen, packet, pattern};

#[test]
fn a_closed_window_is_probed_until_it_opens() {
    let mut pair = Pair::new(1);
    let small =
        TcpConfig { receive_buffer: BufferConfig { initial: 8192, max: 8192 }, ..TcpConfig::default() };
    let listener = pair.listen(B, 80, ListenConfig { tcp: small, ..ListenConfig::default() });
    let (at_a, at_b) = pair.established_at(listener, &ConnectConfig::default());
    let data = pattern(100_000);
    assert_eq!(pair.write(A, at_a, &data), Ok(data.len()));
    pair.run(Duration::from_secs(30));
    assert_eq!(pair.last(B).tcp.window, 0, "the window is shut");
    let probes = pair.a.conn_stats(at_a).expect("open").counters.window_probes;
    assert!((3..20).contains(&probes), "{probes} probes in 30 s, backed off");
    let mut got = Vec::new();
    pair.run_until(Duration::from_secs(200), |pair| {
        got.extend(pair.read(B, at_b).expect("open").expect("not at its end"));
        got.len() == data.len()
    });
    assert!(got == data);
}

#[test]
fn released_connection_with_a_closed_window_ends_after_the_orphan_retries() {
    for (orphan_retries, left) in [(None, 1), (Some(3), 0)] {
        let mut pair = Pair::new(1);
        let small =
            TcpConfig { receive_buffer: BufferConfig { initial: 8192, max: 8192 }, ..TcpConfig::default() };
        let listener = pair.listen(B, 80, ListenConfig { tcp: small, ..ListenConfig::default() });
        let tcp = TcpConfig { orphan_retries, ..TcpConfig::default() };
        let (at_a, _) = pair.established_at(listener, &ConnectConfig { tcp, ..ConnectConfig::default() });
        pair.write(A, at_a, &pattern(100_000)).expect("open");
        pair.run(Duration::from_secs(1));
        pair.release(A, at_a);
        pair.run(Duration::from_secs(3600));
        assert_eq!(pair.a.connections(), left, "all probes were answered");
        assert_eq!(pair.a.memory() > 0, left > 0);
    }
}

#[test]
fn a_window_update_that_is_lost_is_found_by_a_probe() {
    let mut pair = Pair::new(1);
    let small =
        TcpConfig { receive_buffer: BufferConfig { initial: 8192, max: 8192 }, ..TcpConfig::default() };
    let listener = pair.listen(B, 80, ListenConfig { tcp: small, ..ListenConfig::default() });
    let (at_a, at_b) = pair.established_at(listener, &ConnectConfig::default());
    pair.write(A, at_a, &pattern(20_000)).expect("open");
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.last(B).tcp.window, 0);
    let mut lost = 0;
    pair.tap = Some(Box::new(move |from, _| {
        lost += u32::from(from == B);
        from == B && lost <= 1
    }));
    let mut got = pair.read(B, at_b).expect("open").expect("data").len();
    pair.run_until(Duration::from_secs(60), |pair| {
        got += pair.read(B, at_b).expect("open").expect("not at its end").len();
        got == 20_000
    });
}

#[test]
fn keepalive_finds_a_dead_peer() {
    let mut pair = Pair::new(1);
    let (at_a, at_b) = pair.established();
    let keepalive =
        KeepaliveConfig { idle: Duration::from_secs(10), interval: Duration::from_secs(2), count: 3 };
    pair.a.conn_mut(at_a).expect("it is open").set_keepalive(Some(keepalive));
    pair.run(Duration::from_secs(60));
    assert_eq!(pair.a.state(at_a), Some(State::Established), "answered probes keep it alive");
    assert!(pair.seen.len() > 3);
    let quiet = pair.seen.len();
    pair.tap = Some(Box::new(|from, _| from == B));
    pair.run(Duration::from_secs(30));
    assert!(pair.heard(A, Event::Closed(at_a, CloseReason::KeepaliveTimeout)));
    assert!(pair.seen.len() > quiet);
    let _ = at_b;
}

/// The probe of one end arrives while the other end's probe waits to be sent. It is answered nevertheless.
#[test]
fn probes_that_cross_are_both_answered() {
    let mut pair = Pair::new(1);
    let (at_a, at_b) = pair.established();
    let second = Duration::from_secs(1);
    let keepalive = KeepaliveConfig { idle: second, interval: second, count: 3 };
    pair.a.conn_mut(at_a).expect("it is open").set_keepalive(Some(keepalive));
    pair.b.conn_mut(at_b).expect("it is open").set_keepalive(Some(keepalive));
    let mut packet = Vec::new();
    // A wire without delay, on which both timers fire at the same time.
    for now in (1..20).map(|round| pair.now + second * round) {
        pair.a.on_timeout(now);
        pair.b.on_timeout(now);
        loop {
            let from_a =
                pair.a.poll_transmit(now, &mut packet).map(|_| pair.b.on_packet(&packet, Rx::default(), now));
            let from_b =
                pair.b.poll_transmit(now, &mut packet).map(|_| pair.a.on_packet(&packet, Rx::default(), now));
            if from_a.or(from_b).is_none() {
                break;
            }
        }
    }
    let states = (pair.a.state(at_a), pair.b.state(at_b));
    assert_eq!(states, (Some(State::Established), Some(State::Established)));
}

#[test]
fn keepalive_that_is_asked_for_during_the_handshake_begins_after_it() {
    let mut pair = Pair::new(1);
    pair.listen(B, 80, ListenConfig::default());
    let at_a = pair.connect(A, 80);
    let idle = Duration::from_secs(10);
    pair.a
        .conn_mut(at_a)
        .expect("it is open")
        .set_keepalive(Some(KeepaliveConfig { idle, ..KeepaliveConfig::default() }));
    pair.tap = Some(Box::new(|_, _| true));
    pair.run(Duration::from_secs(20));
    assert!(pair.seen.iter().all(|seen| seen.is(A, Flags::SYN)), "no probe before there is a connection");
    pair.tap = None;
    pair.run(Duration::from_secs(20));
    assert_eq!(pair.a.state(at_a), Some(State::Established));
    let quiet = pair.seen.len();
    pair.run(Duration::from_secs(60));
    assert!(pair.seen.len() > quiet, "the connection is kept alive");
}

#[test]
fn a_peer_that_vanishes_is_given_up_after_the_retries() {
    let mut pair = Pair::new(1);
    let listener = pair.listen(B, 80, ListenConfig::default());
    let tcp = TcpConfig { retries: 4, ..TcpConfig::default() };
    let (at_a, _) = pair.established_at(listener, &ConnectConfig { tcp, ..ConnectConfig::default() });
    pair.tap = Some(Box::new(|_, _| true));
    pair.write(A, at_a, b"anybody there?").expect("open");
    let sent = pair.seen.len();
    pair.run(Duration::from_secs(60));
    assert!(pair.heard(A, Event::Closed(at_a, CloseReason::TimedOut)));
    let copies: Vec<&Seen> = pair.seen[sent..].iter().filter(|seen| seen.len > 0).collect();
    assert!((5..=6).contains(&copies.len()), "{} copies", copies.len());
    let gaps: Vec<u64> = copies.windows(2).map(|two| two[1].at.as_micros() - two[0].at.as_micros()).collect();
    assert!(gaps.windows(2).skip(1).all(|two| two[1] >= two[0] * 2 - 10), "backed off: {gaps:?}");
}

#[test]
fn the_user_timeout_ends_a_connection_whose_data_is_not_acknowledged() {
    let mut pair = Pair::new(1);
    let (at_a, _) = pair.established();
    pair.a.conn_mut(at_a).expect("it is open").set_user_timeout(Some(Duration::from_secs(3)));
    pair.tap = Some(Box::new(|_, _| true));
    pair.write(A, at_a, b"anybody there?").expect("open");
    pair.run(Duration::from_secs(20));
    let closed = Event::Closed(at_a, CloseReason::TimedOut);
    assert!(pair.heard(A, closed));
}

/// Returns an ICMP error from a router about the last packet that A sent.
fn about_last_of_a(pair: &Pair, kind: IcmpKind, shift: u32) -> Vec<u8> {
    let tcp = pair.last(A).tcp.clone();
    let quoted = TcpHeader { seq: tcp.seq + shift, ..tcp };
    let offending = packet(A.addr(quoted.src_port), B.addr(quoted.dst_port), &quoted, &[0; 8]);
    let mut out = Vec::new();
    emit_icmp([10, 0, 0, 254].into(), &offending, kind, &mut out);
    out
}

#[test]
fn an_icmp_error_ends_an_active_open_only_if_it_quotes_our_syn() {
    let mut pair = Pair::new(1);
    pair.tap = Some(Box::new(|_, _| true));
    let id = pair.connect(A, 80);
    pair.run_ms(1);
    let forged = about_last_of_a(&pair, IcmpKind::HostUnreachable, 5);
    pair.inject(A, &forged);
    assert_eq!(pair.a.state(id), Some(State::SynSent));
    assert_eq!(pair.a.stats().refused(Refusal::IcmpStale), 1);
    let genuine = about_last_of_a(&pair, IcmpKind::HostUnreachable, 0);
    pair.inject(A, &genuine);
    pair.run_ms(1);
    assert_eq!(pair.a.state(id), Some(State::Closed));
    assert_eq!(pair.a.stats().icmp_believed, 1);
}

#[test]
fn an_icmp_error_does_not_end_an_open_connection() {
    let mut pair = Pair::new(1);
    let (at_a, _) = pair.established();
    pair.tap = Some(Box::new(|_, _| true));
    pair.write(A, at_a, b"data").expect("open");
    pair.run_ms(1);
    for kind in [IcmpKind::HostUnreachable, IcmpKind::PortUnreachable, IcmpKind::ProtocolUnreachable] {
        let error = about_last_of_a(&pair, kind, 0);
        pair.inject(A, &error);
    }
    assert_eq!(pair.a.state(at_a), Some(State::Established));
    assert_eq!(pair.a.stats().icmp_believed, 3);
}

/// RFC 1122 section 4.2.3.9: a soft error is the reported reason if the peer is silent.
#[test]
fn icmp_error_is_the_reason_where_silence_ends_an_open_connection() {
    for (kind, reason) in [
        (IcmpKind::HostUnreachable, CloseReason::Unreachable),
        (IcmpKind::NetUnreachable, CloseReason::NetworkUnreachable),
        (IcmpKind::TimeExceeded, CloseReason::Unreachable),
    ] {
        for user_timeout in [None, Some(Duration::from_secs(3))] {
            let mut pair = Pair::new(1);
            let listener = pair.listen(B, 80, ListenConfig::default());
            let tcp = TcpConfig { retries: 4, ..TcpConfig::default() };
            let (at_a, _) = pair.established_at(listener, &ConnectConfig { tcp, ..ConnectConfig::default() });
            pair.a.conn_mut(at_a).expect("it is open").set_user_timeout(user_timeout);
            pair.tap = Some(Box::new(|_, _| true));
            pair.write(A, at_a, b"anybody there?").expect("open");
            pair.run_ms(1);
            let error = about_last_of_a(&pair, kind, 0);
            pair.inject(A, &error);
            assert_eq!(pair.a.stats().icmp_believed, 1);
            pair.run(Duration::from_secs(60));
            assert!(pair.heard(A, Event::Closed(at_a, reason)), "{kind:?}, {user_timeout:?}");
        }
    }
}

#[test]
fn icmp_error_counts_no_more_once_the_peer_was_heard() {
    let mut pair = Pair::new(1);
    let (at_a, _) = pair.established();
    pair.tap = Some(Box::new(|_, _| true));
    pair.write(A, at_a, b"data").expect("open");
    pair.run_ms(1);
    let error = about_last_of_a(&pair, IcmpKind::HostUnreachable, 0);
    pair.inject(A, &error);
    pair.tap = None;
    pair.run(Duration::from_secs(3));
    pair.a.conn_mut(at_a).expect("it is open").set_user_timeout(Some(Duration::from_secs(3)));
    pair.tap = Some(Box::new(|_, _| true));
    pair.write(A, at_a, b"anybody there?").expect("open");
    pair.run(Duration::from_secs(20));
    assert!(pair.heard(A, Event::Closed(at_a, CloseReason::TimedOut)));
}

#[test]
fn an_icmp_error_about_nobody_is_counted() {
    let mut pair = Pair::new(1);
    let (_, at_b) = pair.established();
    let tcp = pair.last(A).tcp.clone();
    let offending = packet(A.addr(1), B.addr(2), &tcp, &[0; 8]);
    let mut error = Vec::new();
    emit_icmp([10, 0, 0, 254].into(), &offending, IcmpKind::HostUnreachable, &mut error);
    pair.inject(A, &error);
    assert_eq!(pair.a.stats().refused(Refusal::IcmpNoConnection), 1);
    let _ = at_b;
}

#[test]
fn a_narrow_path_is_discovered_by_icmp() {
    let mut pair = Pair::new(1);
    let (at_a, at_b) = pair.established();
    let too_big = std::rc::Rc::new(std::cell::RefCell::new(Vec::<Vec<u8>>::new()));
    let errors = std::rc::Rc::clone(&too_big);
    pair.tap = Some(Box::new(move |from, segment| {
        let len = 20 + 32 + segment.payload.len();
        if from == A && len > 1200 {
            let offending = packet(A.addr(segment.tcp.src_port), B.addr(80), &segment.tcp, segment.payload);
            let mut error = Vec::new();
            emit_icmp_too_big([10, 0, 0, 254].into(), &offending, 1200, &mut error);
            errors.borrow_mut().push(error);
            return true;
        }
        false
    }));
    let data = pattern(100_000);
    let (mut written, mut got) = (0, Vec::new());
    pair.run_until(Duration::from_secs(20), |pair| {
        written += pair.write(A, at_a, &data[written..]).unwrap_or(0);
        pair.run_ms(0);
        for error in too_big.take() {
            pair.inject(A, &error);
        }
        got.extend(pair.read(B, at_b).expect("open").expect("not at its end"));
        got.len() == data.len()
    });
    assert!(got == data);
    assert_eq!(pair.a.conn_stats(at_a).expect("open").mss, 1200 - 52);
    assert_eq!(pair.a.conn_stats(at_a).expect("open").counters.timeouts, 0);
    // RFC 1191 section 6.2 stores the path MTU for later connections.
    let known = pair.a.path(A.ip(), B.ip(), pair.now).mtu;
    assert_eq!(known.map(|mtu| (mtu.low, mtu.high)), Some((1200, 1200)));
}

#[test]
fn a_black_hole_without_icmp_is_found_by_smaller_segments() {
    let mut pair = Pair::new(1);
    let (at_a, at_b) = pair.established();
    pair.tap = Some(Box::new(|from, segment| from == A && segment.payload.len() > 1200));
    pair.transfer(A, at_a, at_b, &pattern(50_000), Duration::from_secs(120));
}

#[test]
fn challenge_acks_are_limited_per_connection_and_per_host() {
    let mut pair = Pair::new(1);
    let (_, at_b) = pair.established();
    let next = pair.next_header(A);
    let before = pair.count(B, Flags::ACK);
    for n in 0..5000 {
        pair.forge(B, &TcpHeader { seq: next.seq + 1 + n, flags: Flags::RST, ..next.clone() }, &[]);
    }
    let challenges = pair.count(B, Flags::ACK) - before;
    assert!((1..=10).contains(&challenges), "{challenges} challenge ACKs in one second");
    assert_eq!(pair.b.state(at_b), Some(State::Established));
}
