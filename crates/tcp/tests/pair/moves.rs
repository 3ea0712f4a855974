//! A peer whose address changes while it has connections.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use brisk_tcp::config::{ConnectConfig, ListenConfig};
use brisk_tcp::connection::State;
use brisk_tcp::fast_open::{ClientCookie, FastOpenConnect, FastOpenListen};
use brisk_tcp::{ConnId, ListenerId};
use brisk_wire::{Flags, TcpHeader};

use crate::harness::{A, B, Pair, Seen, packet, pattern};

const MOVED: [u8; 4] = [10, 0, 0, 3];

/// A pair with a connection from A. Once `moved` is set, A's packets come from another address. While
/// `follows` is set, the device at B sends packets for the first address to the other one.
struct Moving {
    pair: Pair,
    listener: ListenerId,
    at_a: ConnId,
    at_b: ConnId,
    moved: Arc<AtomicBool>,
    follows: Arc<AtomicBool>,
}

fn moving() -> Moving {
    let mut pair = Pair::new(1);
    let fast_open = FastOpenListen { require_cookie: false, ..FastOpenListen::default() };
    let listener = pair.listen(B, 80, ListenConfig { fast_open: Some(fast_open), ..ListenConfig::default() });
    let (at_a, at_b) = pair.established_at(listener, &ConnectConfig::default());
    let (moved, follows) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let (is_moved, is_followed) = (moved.clone(), follows.clone());
    pair.mangle = Some(Box::new(move |from, segment| {
        if !is_moved.load(Ordering::Relaxed) {
            return None;
        }
        let (mut src, mut dst) = (segment.ip.src, segment.ip.dst);
        if from == A {
            src = MOVED.into();
        } else if dst == A.ip() && !is_followed.load(Ordering::Relaxed) {
            return Some(Vec::new());
        } else {
            dst = A.ip();
        }
        let ends = [(src, segment.tcp.src_port), (dst, segment.tcp.dst_port)].map(SocketAddr::from);
        Some(vec![packet(ends[0], ends[1], &segment.tcp, segment.payload)])
    }));
    Moving { pair, listener, at_a, at_b, moved, follows }
}

impl Moving {
    fn known(&mut self) {
        self.pair.b.expect_moves(A.ip());
    }

    /// Changes the address without a report.
    fn change(&mut self) {
        self.moved.store(true, Ordering::Relaxed);
    }

    /// Opens a connection with data on the SYN.
    fn open_with_data(&mut self) -> ConnId {
        let fast_open = FastOpenConnect { cookie: ClientCookie::None, ..FastOpenConnect::default() };
        let config = ConnectConfig { fast_open: Some(fast_open), ..ConnectConfig::default() };
        let now = self.pair.now;
        let opened = self.pair.a.connect_with_data(B.addr(80), b"question", &config, now).expect("possible");
        assert_eq!(opened.1, 8);
        opened.0
    }

    /// Opens a connection with data on the SYN, and changes the address while the SYN is on its way.
    fn change_after_syn(&mut self) -> ConnId {
        let id = self.open_with_data();
        self.pair.run_ms(5);
        self.change();
        self.pair.run_ms(10);
        id
    }

    fn report(&mut self, is_other_path: bool) {
        self.follows.store(true, Ordering::Relaxed);
        let now = self.pair.now;
        self.pair.b.move_peer(A.ip(), MOVED.into(), is_other_path, now);
    }

    /// Returns the bytes that one end reads until it has `len`.
    fn received(&mut self, from_b: bool, len: usize) -> Vec<u8> {
        let (side, id) = if from_b { (A, self.at_a) } else { (B, self.at_b) };
        let mut got = Vec::new();
        self.pair.run_until(Duration::from_secs(30), |pair| {
            got.extend(pair.read(side, id).expect("open").expect("not at its end"));
            got.len() >= len
        });
        got
    }
}

#[test]
fn connection_of_a_peer_that_moves_goes_on_in_both_directions() {
    for is_other_path in [false, true] {
        let mut moving = moving();
        moving.known();
        let data = pattern(60_000);
        moving.pair.write(B, moving.at_b, &data).expect("open");
        moving.pair.run_ms(15);
        moving.change();
        // Acknowledgements of A now come from an address unknown to B. No reset answers them.
        moving.pair.run_ms(1000);
        assert_eq!(moving.pair.count(B, Flags::RST), 0);
        moving.report(is_other_path);
        assert!(moving.received(true, data.len()) == data, "{is_other_path}");
        moving.pair.write(A, moving.at_a, &data).expect("open");
        assert!(moving.received(false, data.len()) == data, "{is_other_path}");
        assert_eq!(moving.pair.count(B, Flags::RST), 0);
    }
}

#[test]
fn report_of_a_move_sends_at_once_what_was_lost() {
    let mut moving = moving();
    moving.known();
    moving.pair.run_ms(50);
    moving.change();
    moving.pair.write(B, moving.at_b, &pattern(1000)).expect("open");
    moving.pair.run_ms(3000);
    moving.report(false);
    // The backoff has grown to more than a second.
    moving.pair.run_ms(25);
    let got = moving.pair.read(A, moving.at_a).expect("open").expect("not at its end");
    assert_eq!(got.len(), 1000);
}

#[test]
fn moved_connection_begins_with_the_initial_window() {
    for is_other_path in [false, true] {
        let mut moving = moving();
        moving.known();
        let (a, b) = (moving.at_a, moving.at_b);
        moving.pair.transfer(B, b, a, &pattern(500_000), Duration::from_secs(30));
        moving.pair.run_ms(100);
        let before = moving.pair.b.conn_stats(b).expect("open");
        assert!(before.cwnd > 20 * before.mss && before.srtt.is_some());
        moving.change();
        moving.report(is_other_path);
        let after = moving.pair.b.conn_stats(b).expect("open");
        assert!(after.cwnd <= 10 * after.mss, "{after:?}");
        assert_eq!(after.srtt.is_none(), is_other_path, "another path has another round-trip time");
    }
}

#[test]
fn new_connections_of_a_moved_peer_are_apart_from_the_old_ones() {
    let mut moving = moving();
    moving.known();
    moving.change();
    let second = moving.pair.connect_with(A, 80, &ConnectConfig::default());
    moving.pair.run_ms(100);
    let (accepted, peer) = moving.pair.b.accept(moving.listener).expect("a handshake from the new address");
    assert_eq!(peer.ip(), IpAddr::from(MOVED));
    moving.report(false);
    moving.pair.write(A, second, &pattern(1000)).expect("open");
    moving.pair.write(A, moving.at_a, &pattern(2000)).expect("open");
    moving.pair.run_ms(2000);
    assert_eq!(moving.pair.read(B, accepted).expect("open").expect("data").len(), 1000);
    assert_eq!(moving.received(false, 2000).len(), 2000);
}

#[test]
fn unknown_segments_are_answered_where_no_peer_reports_moves() {
    let mut moving = moving();
    moving.change();
    moving.follows.store(true, Ordering::Relaxed);
    moving.pair.write(A, moving.at_a, &pattern(10)).expect("open");
    moving.pair.run_ms(1000);
    assert_eq!(moving.pair.count(B, Flags::RST), 1);
}

#[test]
fn unreported_moves_are_answered_by_a_reset_after_a_while() {
    let mut moving = moving();
    moving.known();
    moving.change();
    moving.pair.write(A, moving.at_a, &pattern(10)).expect("open");
    moving.pair.run_ms(10_000);
    assert_eq!(moving.pair.count(B, Flags::RST), 0);
    moving.pair.run_ms(20_000);
    assert!(moving.pair.count(B, Flags::RST) > 0);
}

#[test]
fn nobody_but_the_report_moves_a_connection() {
    let mut moving = moving();
    moving.known();
    moving.change();
    moving.pair.write(A, moving.at_a, &pattern(10)).expect("open");
    moving.pair.run_ms(3000);
    assert_eq!(moving.pair.read(B, moving.at_b).expect("open").map(|data| data.len()), Some(0));
}

#[test]
fn connections_of_a_forgotten_address_end_at_both_sides() {
    let mut moving = moving();
    moving.known();
    let now = moving.pair.now;
    moving.pair.b.forget_peer(A.ip(), now);
    moving.pair.run_ms(50);
    assert_eq!(moving.pair.b.state(moving.at_b), Some(State::Established), "the peer is still there");
    moving.known();
    moving.change();
    moving.report(false);
    let now = moving.pair.now;
    moving.pair.b.forget_peer(A.ip(), now);
    moving.pair.run_ms(50);
    assert_eq!(moving.pair.count(B, Flags::RST | Flags::ACK), 1);
    assert_eq!(
        [moving.pair.a.state(moving.at_a), moving.pair.b.state(moving.at_b)],
        [Some(State::Closed); 2]
    );
    // A segment that was on its way belongs to no connection.
    let stray = TcpHeader { flags: Flags::ACK, src_port: 5000, dst_port: 80, ..TcpHeader::default() };
    moving.pair.inject(B, &packet(SocketAddr::from((MOVED, 5000)), B.addr(80), &stray, b"late"));
    moving.pair.run_ms(50);
    assert_eq!(moving.pair.count(B, Flags::RST), 1, "the peer is known: it is answered at once");
}

#[test]
fn connection_that_opens_during_a_move_is_answered_once_after_the_report() {
    for is_other_path in [false, true] {
        let mut moving = moving();
        moving.known();
        let at_a = moving.change_after_syn();
        let (at_b, from) = moving.pair.b.accept(moving.listener).expect("opened by its SYN");
        assert_eq!(from.ip(), A.ip());
        moving.pair.write(B, at_b, b"answer").expect("open");
        let window = |pair: &Pair| pair.b.conn_stats(at_b).expect("there").cwnd;
        let initial = window(&moving.pair);
        // The SYN is repeated from the new address.
        moving.pair.run_ms(3500);
        assert!(moving.pair.b.accept(moving.listener).is_none(), "the data is delivered once");
        assert!(window(&moving.pair) < initial, "the SYN-ACK seemed to be lost");
        moving.report(is_other_path);
        assert_eq!(window(&moving.pair), initial);
        // The answer does not wait for the next repetition.
        moving.pair.run_ms(50);
        let read = |pair: &mut Pair, side, id| pair.read(side, id).expect("open").expect("not at its end");
        assert_eq!(read(&mut moving.pair, A, at_a), b"answer");
        assert_eq!(read(&mut moving.pair, B, at_b), b"question");
        assert!(moving.pair.b.accept(moving.listener).is_none());
        assert_eq!(moving.pair.count(B, Flags::RST), 0);
    }
}

#[test]
fn response_to_a_syn_that_is_lost_with_the_old_address_is_sent_at_the_report() {
    let mut moving = moving();
    moving.known();
    let at_a = moving.open_with_data();
    // The SYN-ACK is on its way when the address changes. Its acknowledgement comes from the new address.
    moving.pair.run_ms(12);
    let (at_b, _) = moving.pair.b.accept(moving.listener).expect("opened by its SYN");
    moving.change();
    moving.pair.write(B, at_b, &pattern(2000)).expect("open");
    moving.pair.run_ms(2000);
    moving.report(true);
    moving.pair.run_ms(60);
    let got = moving.pair.read(A, at_a).expect("open").expect("not at its end");
    assert!(got == pattern(2000), "{} bytes", got.len());
}

#[test]
fn handshake_begins_its_timeouts_again_at_the_report() {
    // The timeouts before the report say nothing about the path after it. The number of lost repetitions
    // follows from the initial timeout of a second: one is lost in half a second, three in three and a half.
    for (lost_ms, answered_ms) in [(500, 600), (3500, 3600)] {
        let mut moving = moving();
        moving.known();
        let at_a = moving.change_after_syn();
        let (at_b, _) = moving.pair.b.accept(moving.listener).expect("opened by its SYN");
        moving.pair.write(B, at_b, b"answer").expect("open");
        moving.pair.run_ms(12_000);
        moving.report(true);
        moving.follows.store(false, Ordering::Relaxed);
        moving.pair.run_ms(lost_ms);
        moving.follows.store(true, Ordering::Relaxed);
        moving.pair.run_ms(answered_ms);
        assert_eq!(moving.pair.read(A, at_a).expect("open").expect("not at its end"), b"answer");
    }
}

#[test]
fn repeated_syn_of_a_moved_peer_belongs_to_the_connection_that_it_has_opened() {
    let mut moving = moving();
    moving.known();
    let at_a = moving.change_after_syn();
    let (at_b, _) = moving.pair.b.accept(moving.listener).expect("opened by its SYN");
    moving.report(false);
    // The answer to the report is lost.
    moving.follows.store(false, Ordering::Relaxed);
    moving.pair.run_ms(50);
    moving.follows.store(true, Ordering::Relaxed);
    moving.pair.run_ms(3500);
    assert!(moving.pair.b.accept(moving.listener).is_none(), "the data is delivered once");
    moving.pair.transfer(B, at_b, at_a, &pattern(1000), Duration::from_secs(5));
}

#[test]
fn repeated_syn_of_a_moved_peer_opens_nothing_after_the_handshake_either() {
    let mut moving = moving();
    moving.known();
    moving.open_with_data();
    moving.pair.run_ms(100);
    moving.pair.b.accept(moving.listener).expect("opened by its SYN");
    let of_a = |seen: &&Seen| seen.is(A, Flags::SYN);
    let syn = moving.pair.seen.iter().rev().find(of_a).expect("was sent").tcp.clone();
    moving.change();
    moving.report(false);
    let from = SocketAddr::from((MOVED, syn.src_port));
    moving.pair.inject(B, &packet(from, B.addr(80), &syn, b"question"));
    moving.pair.run_ms(100);
    assert!(moving.pair.b.accept(moving.listener).is_none(), "the data is delivered once");
    assert_eq!(moving.pair.count(B, Flags::RST), 0);
}

#[test]
fn repeated_syn_is_answered_at_once_if_the_address_of_the_first_is_forgotten() {
    let mut moving = moving();
    moving.known();
    moving.pair.b.expect_moves("10.0.0.77".parse().expect("an address"));
    moving.change_after_syn();
    moving.pair.b.accept(moving.listener).expect("opened by its SYN");
    let now = moving.pair.now;
    moving.pair.b.forget_peer(A.ip(), now);
    moving.pair.run_ms(3500);
    let (_, from) = moving.pair.b.accept(moving.listener).expect("another connection");
    assert_eq!(from.ip(), IpAddr::from(MOVED));
}

#[test]
fn repeated_syn_from_an_address_without_a_report_is_answered_after_a_while() {
    let mut moving = moving();
    moving.known();
    moving.change_after_syn();
    moving.pair.b.accept(moving.listener).expect("opened by its SYN");
    moving.pair.run_ms(14_000);
    assert!(moving.pair.b.accept(moving.listener).is_none());
    moving.pair.run_ms(40_000);
    let (_, from) = moving.pair.b.accept(moving.listener).expect("another connection");
    assert_eq!(from.ip(), IpAddr::from(MOVED));
}

#[test]
fn address_whose_segments_once_waited_in_vain_waits_again_later() {
    let mut moving = moving();
    moving.known();
    moving.change();
    moving.pair.write(A, moving.at_a, &pattern(10)).expect("open");
    moving.pair.run_ms(500);
    // Back at the old address, without a report.
    moving.moved.store(false, Ordering::Relaxed);
    moving.pair.run_ms(60_000);
    moving.change();
    moving.pair.write(A, moving.at_a, &pattern(10)).expect("open");
    moving.pair.run_ms(1000);
    moving.report(false);
    assert_eq!(moving.received(false, 20).len(), 20);
    assert_eq!(moving.pair.count(B, Flags::RST), 0);
}
