//! Closing: FINs in turn, half-closed or simultaneous; resets; TIME-WAIT.

use std::time::Duration;

use brisk_tcp::Event;
use brisk_tcp::config::{ConnectConfig, ListenConfig, SynCookies, TcpConfig};
use brisk_tcp::connection::State;
use brisk_tcp::error::{CloseReason, ReadError, WriteError};
use brisk_tcp::stack::Refusal;
use brisk_wire::{Flags, SeqNum, TcpHeader, Timestamps};

use crate::harness::{A, B, Pair, packet, pattern, syn};

const FIN_ACK: Flags = Flags(Flags::FIN.0 | Flags::ACK.0);
const SYN_ACK: Flags = Flags(Flags::SYN.0 | Flags::ACK.0);
const RST_ACK: Flags = Flags(Flags::RST.0 | Flags::ACK.0);
const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn one_side_closes_and_then_the_other() {
    let mut pair = Pair::new(1);
    let (at_a, at_b) = pair.established();
    pair.shutdown(A, at_a);
    pair.run_ms(100);
    assert_eq!(pair.read(B, at_b), Ok(None), "the end of the stream");
    assert_eq!(pair.a.state(at_a), Some(State::FinWait2));
    assert_eq!(pair.b.state(at_b), Some(State::CloseWait));
    pair.shutdown(B, at_b);
    pair.run_ms(100);
    assert_eq!(pair.read(A, at_a), Ok(None));
    assert_eq!(pair.a.state(at_a), Some(State::TimeWait));
    assert!(pair.heard(A, Event::Closed(at_a, CloseReason::Finished)));
    assert!(pair.heard(B, Event::Closed(at_b, CloseReason::Finished)));
    pair.release(A, at_a);
    pair.release(B, at_b);
    assert_eq!((pair.a.connections(), pair.b.connections()), (1, 0), "TIME-WAIT at who closed first");
    assert_eq!((pair.a.memory(), pair.b.memory()), (0, 0));
    pair.run(MINUTE);
    assert_eq!(pair.a.connections(), 0);
    assert_eq!(pair.a.next_timeout(), None);
}

#[test]
fn half_close_lets_the_other_direction_go_on() {
    let mut pair = Pair::new(1);
    let (at_a, at_b) = pair.established();
    pair.write(A, at_a, b"request").expect("open");
    pair.shutdown(A, at_a);
    assert_eq!(pair.write(A, at_a, b"more"), Err(WriteError::AfterClose));
    pair.run_ms(100);
    assert_eq!(pair.read(B, at_b), Ok(Some(b"request".to_vec())));
    assert_eq!(pair.read(B, at_b), Ok(None));
    pair.transfer(B, at_b, at_a, &pattern(500_000), Duration::from_secs(10));
    pair.shutdown(B, at_b);
    pair.run_ms(100);
    assert_eq!(pair.read(A, at_a), Ok(None));
}

#[test]
fn fins_that_cross_leave_both_in_time_wait() {
    let mut pair = Pair::new(1);
    let (at_a, at_b) = pair.established();
    pair.shutdown(A, at_a);
    pair.shutdown(B, at_b);
    pair.run_ms(200);
    assert_eq!(pair.a.state(at_a), Some(State::TimeWait));
    assert_eq!(pair.b.state(at_b), Some(State::TimeWait));
    assert_eq!((pair.a.stats().time_waits, pair.b.stats().time_waits), (1, 1));
}

#[test]
fn releasing_sends_what_was_written_and_closes() {
    let mut pair = Pair::new(1);
    let (at_a, at_b) = pair.established();
    let data = pattern(100_000);
    assert_eq!(pair.write(A, at_a, &data), Ok(data.len()));
    pair.release(A, at_a);
    assert_eq!(pair.write(A, at_a, b"x"), Err(WriteError::NoConnection));
    let mut got = Vec::new();
    pair.run_until(Duration::from_secs(10), |pair| match pair.read(B, at_b).expect("no error") {
        Some(bytes) => {
            got.extend(bytes);
            false
        }
        None => true,
    });
    assert!(got == data);
}

#[test]
fn releasing_with_unread_data_resets() {
    let mut pair = Pair::new(1);
    let (at_a, at_b) = pair.established();
    pair.write(A, at_a, b"nobody reads this").expect("open");
    pair.run_ms(100);
    pair.release(B, at_b);
    pair.run_ms(100);
    assert_eq!(pair.count(B, RST_ACK), 1);
    assert!(pair.heard(A, Event::Closed(at_a, CloseReason::Reset)));
    assert_eq!(pair.b.connections(), 0);
}

#[test]
fn data_for_a_released_connection_is_answered_by_a_reset() {
    let mut pair = Pair::new(1);
    let (at_a, at_b) = pair.established();
    pair.release(B, at_b);
    pair.run_ms(100);
    assert_eq!(pair.a.state(at_a), Some(State::CloseWait));
    pair.write(A, at_a, b"too late").expect("half open");
    pair.run_ms(100);
    assert!(pair.heard(A, Event::Closed(at_a, CloseReason::Reset)));
    assert_eq!(pair.b.connections(), 0);
}

#[test]
fn fin_wait_2_ends_after_its_timeout_once_released() {
    let mut pair = Pair::new(1);
    let (at_a, _at_b) = pair.established();
    pair.release(A, at_a);
    pair.run(Duration::from_secs(50));
    assert_eq!(pair.a.connections(), 1);
    pair.run(Duration::from_secs(20));
    assert_eq!(pair.a.connections(), 0);
}

#[test]
fn abort_resets_the_peer_and_what_arrived_can_still_be_read() {
    let mut pair = Pair::new(1);
    let (at_a, at_b) = pair.established();
    pair.write(A, at_a, b"last words").expect("open");
    pair.run_ms(100);
    pair.abort(A, at_a);
    pair.run_ms(100);
    assert_eq!(pair.last(A).tcp.flags, RST_ACK);
    assert!(pair.heard(B, Event::Closed(at_b, CloseReason::Reset)));
    assert_eq!(pair.read(B, at_b), Ok(Some(b"last words".to_vec())));
    assert_eq!(pair.read(B, at_b), Err(ReadError::Closed(CloseReason::Reset)));
    assert_eq!(pair.write(B, at_b, b"x"), Err(WriteError::Closed(CloseReason::Reset)));
    assert_eq!((pair.a.connections(), pair.b.connections()), (0, 0), "no TIME-WAIT after a reset");
    pair.release(A, at_a);
    pair.release(B, at_b);
    assert_eq!((pair.a.memory(), pair.b.memory()), (0, 0));
}

#[test]
fn a_reset_counts_only_at_exactly_the_next_sequence_number() {
    let mut pair = Pair::new(1);
    let (_, at_b) = pair.established();
    let next = pair.next_header(A);
    let reset = TcpHeader { flags: Flags::RST, ..next.clone() };
    pair.forge(B, &TcpHeader { seq: next.seq + 1, ..reset.clone() }, &[]);
    assert_eq!(pair.last(B).tcp.flags, Flags::ACK, "RFC 5961: in the window, but not exact: a challenge ACK");
    assert_eq!(pair.b.state(at_b), Some(State::Established));
    let before = pair.seen.len();
    pair.forge(B, &TcpHeader { seq: next.seq - 1, ..reset.clone() }, &[]);
    pair.forge(B, &TcpHeader { seq: next.seq + 1_000_000, ..reset.clone() }, &[]);
    assert_eq!(pair.seen.len(), before, "outside the window: silence");
    pair.forge(B, &reset, &[]);
    assert_eq!(pair.b.state(at_b), Some(State::Closed));
}

#[test]
fn a_syn_in_an_open_connection_is_challenged() {
    let mut pair = Pair::new(1);
    let (_, at_b) = pair.established();
    let next = pair.next_header(A);
    for seq in [next.seq, next.seq + 5000, next.seq - 5000] {
        let before = pair.seen.len();
        pair.forge(B, &TcpHeader { seq, flags: Flags::SYN, ..next.clone() }, &[]);
        assert!(pair.seen.len() - before <= 1);
    }
    assert!(pair.last(B).is(B, Flags::ACK));
    assert_eq!(pair.b.state(at_b), Some(State::Established));
}

#[test]
fn a_crashed_peer_can_open_the_same_tuple_again() {
    // RFC 9293 section 3.5.1: A crashes and opens again with the same tuple. B still has the old connection.
    let mut pair = Pair::new(1);
    let listener = pair.listen(B, 80, ListenConfig::default());
    let config = ConnectConfig { local: Some(A.addr(5000)), ..ConnectConfig::default() };
    let (_, old) = pair.established_at(listener, &config);
    pair.a = brisk_tcp::Stack::new(crate::harness::stack_config(A), 99).expect("valid");
    let (_, new) = pair.established_at(listener, &config);
    assert!(pair.heard(B, Event::Closed(old, CloseReason::Reset)));
    assert_eq!(pair.b.state(new), Some(State::Established));
}

/// Returns a pair after both sides closed, A first. A is in TIME-WAIT, and both programs have released the
/// connection.
fn in_time_wait(timestamps: bool) -> (Pair, ConnectConfig) {
    let mut pair = Pair::new(1);
    pair.listen(A, 80, ListenConfig::default());
    let tcp = TcpConfig { timestamps, ..TcpConfig::default() };
    let listener = pair.listen(B, 80, ListenConfig::default());
    let config = ConnectConfig { tcp, local: Some(A.addr(5000)), ..ConnectConfig::default() };
    let (at_a, at_b) = pair.established_at(listener, &config);
    pair.write(A, at_a, b"x").expect("open");
    pair.run_ms(100);
    pair.read(B, at_b).expect("open");
    pair.release(A, at_a);
    pair.run_ms(100);
    pair.release(B, at_b);
    pair.run_ms(100);
    assert_eq!((pair.a.connections(), pair.b.connections()), (1, 0));
    (pair, config)
}

#[test]
fn time_wait_acknowledges_a_repeated_fin_and_starts_again() {
    let (mut pair, _) = in_time_wait(true);
    let fin = pair.seen.iter().find(|seen| seen.is(B, FIN_ACK)).expect("sent").tcp.clone();
    pair.run(Duration::from_secs(50));
    let before = pair.seen.len();
    // RFC 7323 section 4.3: the answer echoes the repeated FIN, so the peer's sample omits its timer.
    let mut again = fin.clone();
    let value = again.options.timestamps.as_mut().map(|timestamps| {
        timestamps.value += 50_000;
        timestamps.value
    });
    pair.forge(A, &again, &[]);
    assert_eq!((pair.seen.len() - before, pair.last(A).tcp.ack), (1, fin.seq + 1));
    assert_eq!(pair.last(A).tcp.options.timestamps.map(|timestamps| timestamps.echo), value);
    pair.run(Duration::from_secs(1));
    pair.forge(A, &fin, &[]);
    assert_eq!(
        pair.last(A).tcp.options.timestamps.map(|timestamps| timestamps.echo),
        value,
        "not an older one"
    );
    pair.run(Duration::from_secs(50));
    assert_eq!(pair.a.connections(), 1, "the wait started again");
    pair.run(Duration::from_secs(11));
    assert_eq!(pair.a.connections(), 0);
}

#[test]
fn time_wait_survives_resets_and_challenges_a_syn_ack() {
    let (mut pair, _) = in_time_wait(true);
    let next = pair.next_header(B);
    let before = pair.seen.len();
    pair.forge(A, &TcpHeader { flags: Flags::RST, ..next.clone() }, &[]);
    pair.forge(A, &TcpHeader { flags: RST_ACK, ..next.clone() }, &[]);
    assert_eq!((pair.a.connections(), pair.seen.len()), (1, before));
    assert_eq!(pair.a.stats().refused(Refusal::InTimeWait), 2);
    pair.forge(A, &TcpHeader { flags: SYN_ACK, ..next }, &[]);
    assert_eq!(pair.last(A).tcp.flags, Flags::ACK);
    assert_eq!(pair.a.connections(), 1);
}

#[test]
fn a_newer_syn_opens_a_new_connection_over_a_time_wait() {
    for timestamps in [false, true] {
        let mut pair = Pair::new(1);
        let listener = pair.listen(B, 80, ListenConfig::default());
        let tcp = TcpConfig { timestamps, ..TcpConfig::default() };
        let config = ConnectConfig { tcp, local: Some(A.addr(5000)), ..ConnectConfig::default() };
        let (at_a, at_b) = pair.established_at(listener, &config);
        pair.release(B, at_b);
        pair.run_ms(100);
        pair.release(A, at_a);
        pair.run_ms(100);
        assert_eq!((pair.a.connections(), pair.b.connections()), (0, 1), "TIME-WAIT at the listener's side");
        let old = pair.last(B).tcp.clone();
        let (at_a, at_b) = pair.established_at(listener, &config);
        assert_eq!(pair.b.stats().time_waits_reused, 1);
        let new = pair.seen.iter().rev().find(|seen| seen.is(B, SYN_ACK)).expect("sent").tcp.seq;
        assert!(new.gt(old.seq + 65_535), "the numbers of the old connection are left behind");
        pair.transfer(A, at_a, at_b, &pattern(10_000), Duration::from_secs(1));
    }
}

#[test]
fn a_newer_syn_opens_a_new_connection_over_a_time_wait_during_a_flood() {
    for syn_cookies in [SynCookies::UnderFlood, SynCookies::Always] {
        let mut pair = Pair::new(1);
        let listener =
            pair.listen(B, 80, ListenConfig { syn_cookies, max_half_open: 2, ..ListenConfig::default() });
        let config = ConnectConfig { local: Some(A.addr(5000)), ..ConnectConfig::default() };
        let (at_a, at_b) = pair.established_at(listener, &config);
        pair.release(B, at_b);
        pair.run_ms(100);
        pair.release(A, at_a);
        pair.run_ms(100);
        assert_eq!(pair.b.time_waits(), 1);
        for port in 1000..1010 {
            pair.inject(B, &packet(([10, 9, 9, 9], port).into(), B.addr(80), &syn(7), &[]));
        }
        assert!(pair.b.stats().syn_cookies_sent >= 8);
        let (at_a, at_b) = pair.established_at(listener, &config);
        assert_eq!((pair.b.stats().time_waits_reused, pair.b.time_waits()), (1, 0));
        pair.transfer(A, at_a, at_b, &pattern(10_000), Duration::from_secs(1));
    }
}

#[test]
fn a_flood_at_one_time_wait_does_not_use_up_the_challenges_of_the_host() {
    let (mut pair, _) = in_time_wait(true);
    let next = pair.next_header(B);
    let mut old = TcpHeader { seq: next.seq - 1_000, flags: Flags::SYN, ack: SeqNum(0), ..next };
    old.dst_port = 5000;
    old.options.timestamps = None;
    for _ in 0..3_000 {
        pair.forge(A, &old, &[]);
    }
    let stats = pair.a.stats();
    assert_eq!((stats.challenge_acks_sent, stats.challenge_acks_suppressed), (1, 0));
}

#[test]
fn an_older_syn_does_not_open_anything_over_a_time_wait() {
    let (mut pair, _) = in_time_wait(true);
    let next = pair.next_header(B);
    let mut old = TcpHeader { seq: next.seq - 1_000, flags: Flags::SYN, ack: SeqNum(0), ..next };
    old.dst_port = 5000;
    old.options.timestamps = old.options.timestamps.map(|ts| Timestamps { value: ts.value - 500, echo: 0 });
    let opens = pair.a.stats().passive_opens;
    pair.forge(A, &old, &[]);
    assert_eq!((pair.a.connections(), pair.a.stats().passive_opens), (1, opens));
    assert_eq!(pair.last(A).tcp.flags, Flags::ACK);
}

#[test]
fn an_active_open_may_replace_its_own_time_wait_after_a_second() {
    let (mut pair, config) = in_time_wait(true);
    let now = pair.now;
    assert!(pair.a.connect(B.addr(80), &config, now).is_err(), "too early");
    pair.run(Duration::from_secs(2));
    let now = pair.now;
    let id = pair.a.connect(B.addr(80), &config, now).expect("timestamps tell the two apart");
    pair.run_ms(100);
    assert_eq!(pair.a.state(id), Some(State::Established));
    let (mut pair, config) = in_time_wait(false);
    pair.run(Duration::from_secs(2));
    let now = pair.now;
    assert!(pair.a.connect(B.addr(80), &config, now).is_err(), "nothing tells the two apart");
}

#[test]
fn a_lost_last_acknowledgement_is_repeated_out_of_time_wait() {
    let mut pair = Pair::new(1);
    let (at_a, at_b) = pair.established();
    pair.release(A, at_a);
    pair.run_ms(100);
    let mut lost = 0;
    pair.tap = Some(Box::new(move |from, segment| {
        lost += u32::from(from == A && segment.tcp.flags == Flags::ACK);
        from == A && lost <= 1
    }));
    pair.release(B, at_b);
    pair.run(Duration::from_secs(5));
    assert!(pair.count(B, FIN_ACK) >= 2);
    assert_eq!(pair.b.connections(), 0);
}
