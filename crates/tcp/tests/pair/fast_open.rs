//! Fast Open between two stacks: what the SYN saves, and that nothing is lost when it saves nothing.
//!
//! Times are milliseconds since the SYN left; one way takes 50 ms. Receivers acknowledge at once.

mod after_syn;
mod plain_copy;
mod replay;

use std::time::Duration;

use brisk_tcp::config::{ConnectConfig, FastOpenConfig, ListenConfig, StackConfig, SynCookies, TcpConfig};
use brisk_tcp::connection::State;
use brisk_tcp::error::{CloseReason, ReadError};
use brisk_tcp::fast_open::{
    CookieKey, FastOpenConnect, FastOpenListen, FastOpenOutcome, FastOpenSwitches, KeySource, LastAckHold,
    OffReason, ReplayWindow, ServerLimits, SynAckClass,
};
use brisk_tcp::{ConnId, Event, ListenerId};
use brisk_wire::{Cookie, FastOpen, Flags, Instant, Options, Segment, SeqNum, TcpHeader, Timestamps};

use crate::harness::{A, B, Pair, Side, packet, pattern, stack_config, syn};

const SYN_ACK: Flags = Flags(Flags::SYN.0 | Flags::ACK.0);
const RST: Flags = Flags::RST;

fn quick() -> TcpConfig {
    TcpConfig { delack_max: Duration::ZERO, ..TcpConfig::default() }
}

fn asking() -> ConnectConfig {
    ConnectConfig { tcp: quick(), fast_open: Some(FastOpenConnect::default()), ..ConnectConfig::default() }
}

fn serving(fast_open: FastOpenListen) -> ListenConfig {
    ListenConfig { tcp: quick(), fast_open: Some(fast_open), ..ListenConfig::default() }
}

fn fixed(primary: u8, backup: Option<u8>) -> KeySource {
    let key = |byte| CookieKey::new([byte; 16]);
    KeySource::Fixed { primary: key(primary), backup: backup.map(key) }
}

/// Two stacks, 50 ms apart.
struct World {
    pair: Pair,
    began: Instant,
    listener: ListenerId,
}

impl World {
    fn new(fast_open: FastOpenListen) -> World {
        World::with(serving(fast_open), |config| config)
    }

    fn with(listen: ListenConfig, change: impl Fn(StackConfig) -> StackConfig) -> World {
        let mut pair = Pair::with_configs(1, change(stack_config(A)), change(stack_config(B)));
        pair.channel.delay = Duration::from_millis(50);
        let listener = pair.listen(B, 80, listen);
        World { began: pair.now, pair, listener }
    }

    /// A has a cookie of B and knows its round-trip time.
    fn known(fast_open: FastOpenListen) -> World {
        let mut world = World::new(fast_open);
        world.learn();
        world
    }

    fn learn(&mut self) {
        let id = self.open(&asking(), b"");
        self.pair.run_ms(300);
        assert_eq!(self.outcome(id), FastOpenOutcome::NoCookie);
        let (at_b, _) = self.pair.b.accept(self.listener).expect("waits");
        for (side, id) in [(A, id), (B, at_b)] {
            self.pair.abort(side, id);
            self.pair.release(side, id);
        }
        self.pair.run_ms(300);
        self.restart();
    }

    /// The next SYN leaves at 0.
    fn restart(&mut self) {
        self.began = self.pair.now;
        self.pair.seen.clear();
    }

    fn open(&mut self, config: &ConnectConfig, data: &[u8]) -> ConnId {
        let now = self.pair.now;
        let (id, taken) = self.pair.a.connect_with_data(B.addr(80), data, config, now).expect("possible");
        assert_eq!(taken, data.len());
        id
    }

    /// Lets time pass until `millis` after the SYN.
    fn until(&mut self, millis: u64) {
        let span = (self.began + Duration::from_millis(millis)).saturating_since(self.pair.now);
        self.pair.run(span);
    }

    fn accept(&mut self) -> ConnId {
        self.pair.b.accept(self.listener).expect("waits").0
    }

    fn read(&mut self, side: Side, id: ConnId) -> Vec<u8> {
        self.pair.read(side, id).expect("open").unwrap_or_default()
    }

    fn outcome(&self, id: ConnId) -> FastOpenOutcome {
        self.pair.a.conn_stats(id).expect("held").fast_open
    }

    fn class(&self, id: ConnId) -> Option<SynAckClass> {
        self.pair.a.conn_stats(id).expect("held").syn_ack
    }

    fn pending(&mut self) -> usize {
        let now = self.pair.now;
        self.pair.b.fast_open_pending(self.listener, now)
    }

    /// What a side sent: time, flags, payload, whether there was a Fast Open option.
    fn sent(&self, side: Side) -> Vec<(u64, &'static str, usize, bool)> {
        let of_side = self.pair.seen.iter().filter(|seen| seen.from == side);
        of_side
            .map(|seen| {
                let at = seen.at.saturating_since(self.began).as_millis() as u64;
                let flags = match seen.tcp.flags.without(Flags::PSH) {
                    Flags::SYN => "S",
                    SYN_ACK => "S.",
                    Flags::ACK => ".",
                    RST => "R",
                    _ => "?",
                };
                (at, flags, seen.len, seen.tcp.options.fast_open.is_some())
            })
            .collect()
    }
}

fn lose_first(side: Side, flags: Flags) -> impl FnMut(Side, &Segment<'_>) -> bool {
    let mut lost = false;
    move |from, segment| {
        let this = from == side && segment.tcp.flags.without(Flags::PSH) == flags;
        this && !core::mem::replace(&mut lost, true)
    }
}

/// T1: the first connection asks for a cookie and sends its data after the handshake.
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

/// T2: data with the SYN, the answer before the client's acknowledgement.
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

/// T3: the cookie is not good any more.
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
    // The new cookie is good.
    world.restart();
    let again = world.open(&asking(), &pattern(100));
    world.until(200);
    assert_eq!(world.outcome(again), FastOpenOutcome::Used);
}

/// T4: rotation of keys loses no Fast Open.
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

/// T5 and T6: a path that swallows SYNs with data costs half a round trip, twice, and then nothing.
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
            (FastOpenOutcome::Blackholed, Some(SynAckClass::SynDrop))
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

/// T7: the SYN-ACK is lost, and with it what followed.
#[test]
fn a_lost_syn_ack_is_sent_again_and_the_answer_with_it() {
    let mut world = World::known(FastOpenListen::default());
    world.pair.tap = Some(Box::new(lose_first(B, SYN_ACK)));
    let id = world.open(&asking(), &pattern(100));
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

/// T33: the answer overtakes the SYN-ACK.
#[test]
fn what_arrives_before_the_syn_ack_is_kept() {
    let mut world = World::known(FastOpenListen::default());
    world.pair.tap = Some(Box::new(lose_first(B, SYN_ACK)));
    let id = world.open(&asking(), &pattern(100));
    world.until(50);
    let at_b = world.accept();
    world.pair.write(B, at_b, &pattern(4000)).expect("room");
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

/// T23: without the SYN-ACK in time, what was kept is dropped.
#[test]
fn what_was_kept_goes_when_the_plain_syn_leaves() {
    let mut world = World::known(FastOpenListen::default());
    let early = FastOpenConnect { hold_early: false, ..FastOpenConnect::default() };
    for connect in [early, FastOpenConnect::default()] {
        world.restart();
        world.pair.tap = Some(Box::new(lose_first(B, SYN_ACK)));
        let id = world.open(&ConnectConfig { fast_open: Some(connect), ..asking() }, &pattern(100));
        world.until(50);
        let at_b = world.accept();
        world.pair.write(B, at_b, &pattern(1000)).expect("room");
        world.until(349);
        assert_eq!(world.read(A, id), []);
        world.until(350);
        assert_eq!(world.read(A, id), pattern(1000));
    }
}

/// T15: nothing is sent to who has not shown that he hears us.
#[test]
fn a_held_response_waits_for_the_acknowledgement() {
    let mut world = World::known(FastOpenListen { hold_response: true, ..FastOpenListen::default() });
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

/// T16: the answer before the acknowledgement is bounded by the bytes of the SYN.
#[test]
fn the_amplification_is_bounded() {
    let mut world = World::known(FastOpenListen { amp_factor: 3, ..FastOpenListen::default() });
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

/// T17: a copy of the SYN while the connection lives.
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

/// T18 and T19: a copy of the SYN after the connection has closed.
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
    // T20: the client is in TIME-WAIT; it answers with an acknowledgement, and the server with a reset.
    world.pair.run(Duration::from_secs(70));
    assert!(matches!(world.pair.read(B, again), Err(ReadError::Closed(CloseReason::HandshakeTimeout))));
    assert_eq!(world.pending(), 0);
}

/// A whole connection that A closes first; the header of its SYN.
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

/// A client that is played by the test: it has an address of its own and a cookie.
struct Played {
    ip: [u8; 4],
    cookie: Option<FastOpen>,
}

impl Played {
    fn new(world: &mut World, last: u8) -> Played {
        let mut played = Played { ip: [10, 9, 9, last], cookie: None };
        played.send(world, 100, Some(FastOpen::REQUEST), &[]);
        played.cookie = world.pair.last(B).tcp.options.fast_open;
        assert!(played.cookie.is_some(), "a cookie was granted");
        let reset = TcpHeader { seq: SeqNum(101), flags: Flags::RST, ..TcpHeader::default() };
        played.segment(world, 100, &reset, &[]);
        played
    }

    fn segment(&self, world: &mut World, port: u16, tcp: &TcpHeader, payload: &[u8]) {
        let packet = packet((self.ip, port).into(), B.addr(80), tcp, payload);
        world.pair.inject(B, &packet);
    }

    fn send(&self, world: &mut World, port: u16, option: Option<FastOpen>, payload: &[u8]) {
        let mut tcp = syn(u32::from(port));
        tcp.options.fast_open = option;
        self.segment(world, port, &tcp, payload);
    }

    /// A SYN with ten bytes and the cookie; how many bytes of it were acknowledged.
    fn open(&self, world: &mut World, port: u16) -> u32 {
        self.send(world, port, self.cookie, b"0123456789");
        let answer = world.pair.last(B).tcp.clone();
        assert_eq!((answer.flags, answer.dst_port), (SYN_ACK, port));
        answer.ack.since(SeqNum(u32::from(port)) + 1)
    }

    fn reset(&self, world: &mut World, port: u16) {
        let seq = SeqNum(u32::from(port)) + 11;
        let reset = TcpHeader { seq, flags: Flags::RST, ..TcpHeader::default() };
        self.segment(world, port, &reset, &[]);
    }
}

/// T12 to T14: the limit of pending connections, and places that resets leave taken.
#[test]
fn pending_connections_are_bounded_and_a_reset_frees_none_of_them() {
    let mut world = World::new(FastOpenListen { max_pending: 2, ..FastOpenListen::default() });
    let clients: Vec<Played> = (1..=3).map(|n| Played::new(&mut world, n)).collect();
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

/// T28: the limit of one client.
#[test]
fn a_client_has_its_own_limit() {
    let mut world = World::new(FastOpenListen { max_per_ip: 1, ..FastOpenListen::default() });
    let [one, other] = [1, 2].map(|n| Played::new(&mut world, n));
    assert_eq!(one.open(&mut world, 1001), 10);
    assert_eq!(one.open(&mut world, 1002), 0);
    assert_eq!(other.open(&mut world, 1003), 10);
    assert_eq!(world.pair.b.stats().fast_open.per_ip_refused, 1);
}

/// T32: what was received before a reset can be read; then the error is told.
#[test]
fn a_reset_leaves_what_was_received() {
    let mut world = World::new(FastOpenListen::default());
    let client = Played::new(&mut world, 1);
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

/// An acknowledgement of something never sent does not end the connection.
#[test]
fn a_blind_acknowledgement_aborts_nothing() {
    let mut world = World::new(FastOpenListen::default());
    let client = Played::new(&mut world, 1);
    assert_eq!(client.open(&mut world, 1001), 10);
    let at_b = world.accept();
    let seq = SeqNum(1001) + 11;
    let ack = TcpHeader { seq, ack: SeqNum(77), flags: Flags::ACK, window: 100, ..TcpHeader::default() };
    client.segment(&mut world, 1001, &ack, &[]);
    let answer = &world.pair.last(B).tcp;
    assert_eq!((answer.flags, answer.seq), (RST, SeqNum(77)));
    assert_eq!(world.pair.b.state(at_b), Some(State::SynReceived));
}

/// T30: data without a cookie.
#[test]
fn data_without_a_cookie_needs_both_ends_to_agree() {
    let no_cookie = FastOpenConnect { no_cookie: true, ..FastOpenConnect::default() };
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

/// T31: a good cookie without data lets the server speak first.
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

/// T24: three answers without the data, then the cookie travels alone for a minute.
#[test]
fn a_client_whose_address_changes_stops_sending_data_for_a_while() {
    let mut world = World::known(FastOpenListen::default());
    for key in 10..13 {
        world.pair.b.set_fast_open_keys(fixed(key, None));
        let id = world.open(&asking(), &pattern(100));
        world.until(300);
        assert_eq!(world.outcome(id), FastOpenOutcome::Refused);
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

/// T25: nobody answers.
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
    assert_eq!(world.outcome(id), FastOpenOutcome::Blackholed);
    assert_eq!(world.pair.a.stats().fast_open.syn_drop, 1);
}

/// T29: one-time cookies.
#[test]
fn a_one_time_cookie_opens_one_connection() {
    let mut world = World::new(FastOpenListen { one_time: true, ..FastOpenListen::default() });
    let one_time = FastOpenConnect { one_time: true, ..FastOpenConnect::default() };
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
    // The same cookie again, over other ends.
    let again = TcpHeader { src_port: 999, ..first };
    world.pair.forge(B, &again, &pattern(100));
    let answer = world.pair.last(B).tcp.clone();
    assert_eq!((answer.ack.since(again.seq), answer.options.fast_open), (1, None));
    assert_eq!(world.pair.b.stats().fast_open.one_time_reuse, 1);
}

#[test]
fn syn_cookies_and_fast_open_exclude_each_other_but_a_good_cookie_goes_first() {
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
    let client = Played::new(&mut flooded, 1);
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
    let client = Played::new(&mut world, 1);
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
fn an_unanswered_syn_ack_gives_the_place_back() {
    let mut world = World::new(FastOpenListen::default());
    let client = Played::new(&mut world, 1);
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

#[test]
fn the_timer_of_the_syn_ack_lowers_the_window() {
    let mut world = World::known(FastOpenListen::default());
    // The SYN-ACK and the three segments of the answer are lost.
    let mut count = 0;
    world.pair.tap = Some(Box::new(move |from, _| {
        count += usize::from(from == B);
        from == B && count <= 4
    }));
    let no_plain = FastOpenConnect { syn_rto_floor: Duration::from_secs(1), ..FastOpenConnect::default() };
    let id = world.open(&ConnectConfig { fast_open: Some(no_plain), ..asking() }, &pattern(100));
    world.until(50);
    let at_b = world.accept();
    world.pair.write(B, at_b, &pattern(4000)).expect("room");
    world.until(3000);
    assert_eq!(world.read(A, id), pattern(4000));
    let stats = world.pair.b.conn_stats(at_b).expect("held");
    assert_eq!(stats.counters.reductions, 1);
    assert!(stats.ssthresh < 14_480, "{}", stats.ssthresh);
}

#[test]
fn a_deferred_syn_leaves_with_the_first_write() {
    let mut world = World::known(FastOpenListen::default());
    let defer = FastOpenConnect { defer: true, ..FastOpenConnect::default() };
    let id = world.open(&ConnectConfig { fast_open: Some(defer), ..asking() }, b"");
    world.until(5000);
    assert_eq!(world.sent(A), []);
    world.restart();
    world.pair.write(A, id, &pattern(100)).expect("room");
    world.until(200);
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

#[test]
fn pending_bytes_of_the_stack_are_bounded() {
    let limits = ServerLimits { max_pending_bytes: 15, ..ServerLimits::default() };
    let change =
        |config| StackConfig { fast_open: FastOpenConfig { limits, ..FastOpenConfig::default() }, ..config };
    let mut world = World::with(serving(FastOpenListen::default()), change);
    let client = Played::new(&mut world, 1);
    assert_eq!(client.open(&mut world, 1001), 10);
    assert_eq!(client.open(&mut world, 1002), 0);
    assert_eq!(world.pair.b.stats().fast_open.memory_refused, 1);
}

/// A server that is played by the test: A's packets go nowhere.
struct Peer {
    world: World,
    config: ConnectConfig,
}

impl Peer {
    fn new(tcp: TcpConfig) -> Peer {
        let mut world = World::new(FastOpenListen::default());
        world.pair.tap = Some(Box::new(|_, _| true));
        let fast_open = Some(FastOpenConnect::default());
        Peer { world, config: ConnectConfig { tcp, fast_open, ..ConnectConfig::default() } }
    }

    /// As `new`; the client has the cookie of eight ones and the MSS of the server.
    fn known(tcp: TcpConfig, mss: u16) -> Peer {
        let mut peer = Peer::new(tcp);
        let id = peer.open(&[]);
        peer.world.pair.run_ms(100);
        peer.answer(1, &[1; 8], mss, &[]);
        assert_eq!(peer.world.outcome(id), FastOpenOutcome::NoCookie);
        peer.world.pair.abort(A, id);
        peer.world.pair.release(A, id);
        peer.world.pair.run_ms(10);
        peer.world.restart();
        peer
    }

    fn open(&mut self, data: &[u8]) -> ConnId {
        let config = self.config.clone();
        let id = self.world.open(&config, data);
        self.world.pair.run_ms(1);
        id
    }

    fn syn(&self) -> &TcpHeader {
        &self.world.pair.seen.iter().rev().find(|seen| seen.is(A, Flags::SYN)).expect("was sent").tcp
    }

    fn header(&self, flags: Flags, acked: u32, mss: Option<u16>) -> TcpHeader {
        let syn = self.syn();
        let timestamps = syn.options.timestamps.map(|sent| Timestamps { value: 5000, echo: sent.value });
        let options = Options { mss, timestamps, sack_permitted: true, ..Options::default() };
        TcpHeader {
            src_port: 80,
            dst_port: syn.src_port,
            seq: SeqNum(9000),
            ack: syn.seq + acked,
            flags,
            window: 65_535,
            urgent: 0,
            options,
        }
    }

    /// A SYN-ACK of `ISS + acked` with this cookie (none: no option) and payload.
    fn answer(&mut self, acked: u32, cookie: &[u8], mss: u16, payload: &[u8]) {
        let mut tcp = self.header(SYN_ACK, acked, Some(mss));
        tcp.options.fast_open = Cookie::new(cookie).filter(|_| !cookie.is_empty()).map(FastOpen::with_cookie);
        self.world.pair.forge(A, &tcp, payload);
    }

    /// The data that the SYN of the next connection would carry, and its cookie.
    fn next_syn(&mut self, offered: usize) -> (usize, Option<FastOpen>) {
        self.world.restart();
        let id = self.open(&pattern(offered));
        let seen = self.world.pair.seen.iter().find(|seen| seen.is(A, Flags::SYN)).expect("was sent").clone();
        self.world.pair.abort(A, id);
        self.world.pair.release(A, id);
        self.world.pair.run_ms(1);
        (seen.len, seen.tcp.options.fast_open)
    }
}

fn bare() -> TcpConfig {
    TcpConfig { timestamps: false, ..quick() }
}

/// T8: some of the data is acknowledged.
#[test]
fn what_was_not_taken_follows_at_once() {
    let mut peer = Peer::known(bare(), 1460);
    let id = peer.open(&pattern(4000));
    assert_eq!(peer.world.sent(A)[0], (0, "S", 1420, true));
    peer.world.until(100);
    peer.answer(101, &[], 1000, &[]);
    let iss = peer.syn().seq;
    let after: Vec<_> = peer.world.pair.seen.iter().filter(|seen| seen.from == A).skip(1).cloned().collect();
    let mut next = iss + 101;
    for seen in &after {
        assert!(seen.len <= 1000 && seen.tcp.seq == next && seen.tcp.flags.contains(Flags::ACK));
        assert!(!seen.tcp.flags.contains(Flags::SYN));
        next += seen.len as u32;
    }
    assert_eq!(next, iss + 4001);
    assert_eq!(
        (peer.world.class(id), peer.world.outcome(id)),
        (Some(SynAckClass::Partial), FastOpenOutcome::Used)
    );
    assert_eq!(peer.world.pair.a.conn_stats(id).expect("held").counters.retransmits, 0);
    peer.world.pair.abort(A, id);
    let (len, cookie) = peer.next_syn(2000);
    assert_eq!((len, cookie.map(|option| option.cookie.len())), (960, Some(8)), "the cookie stays");
}

/// T9: an acknowledgement of what was never sent teaches nothing.
#[test]
fn an_impossible_syn_ack_is_reset_and_not_learnt_from() {
    let mut peer = Peer::known(bare(), 1460);
    let id = peer.open(&pattern(100));
    peer.answer(100_101, &[9; 8], 1000, &[]);
    let reset = &peer.world.pair.last(A).tcp;
    assert_eq!((reset.flags, reset.seq), (RST, peer.syn().seq + 100_101));
    assert_eq!(peer.world.pair.a.state(id), Some(State::SynSent));
    peer.world.pair.abort(A, id);
    assert_eq!(peer.next_syn(2000), (1420, Cookie::new(&[1; 8]).map(FastOpen::with_cookie)));
}

/// A SYN-ACK that echoes a timestamp of another time is refused as well.
#[test]
fn a_syn_ack_with_a_foreign_timestamp_is_not_learnt_from() {
    let mut peer = Peer::known(quick(), 1460);
    peer.open(&pattern(100));
    let mut tcp = peer.header(SYN_ACK, 101, Some(1000));
    tcp.options.timestamps =
        tcp.options.timestamps.map(|sent| Timestamps { echo: sent.echo - 500_000, ..sent });
    tcp.options.fast_open = Cookie::new(&[9; 8]).map(FastOpen::with_cookie);
    peer.world.pair.forge(A, &tcp, &[]);
    assert_eq!(peer.world.pair.last(A).tcp.flags, RST);
    assert_eq!(peer.next_syn(2000), (1420, Cookie::new(&[1; 8]).map(FastOpen::with_cookie)));
}

/// T10: which cookies are kept; the MSS always is.
#[test]
fn cookies_of_legal_length_are_kept() {
    let one = Cookie::new(&[1; 8]).map(FastOpen::with_cookie);
    for (cookie, kept) in [(&[5u8; 4][..], true), (&[0; 8], true), (&[5; 16], true), (&[], false)] {
        let mut peer = Peer::known(bare(), 1460);
        let id = peer.open(&pattern(100));
        peer.answer(101, cookie, 940, &[]);
        assert_eq!(peer.world.outcome(id), FastOpenOutcome::Used);
        peer.world.pair.abort(A, id);
        let expected = if kept { Cookie::new(cookie).map(FastOpen::with_cookie) } else { one };
        assert_eq!(peer.next_syn(2000), (900, expected));
    }
    let mut peer = Peer::known(bare(), 1460);
    let id = peer.open(&pattern(100));
    peer.answer(101, &[], 1460, &[]);
    let mut data = peer.header(Flags::ACK, 101, None);
    data.seq += 1;
    data.options.fast_open = Cookie::new(&[5; 8]).map(FastOpen::with_cookie);
    peer.world.pair.forge(A, &data, b"x");
    assert_eq!(peer.world.read(A, id), b"x");
    peer.world.pair.abort(A, id);
    assert_eq!(peer.next_syn(2000).1, one, "outside the handshake the option means nothing");
}

/// A cookie that nobody asked for is not kept.
#[test]
fn an_unsolicited_cookie_is_ignored() {
    let mut peer = Peer::new(bare());
    let plain = ConnectConfig { tcp: bare(), ..ConnectConfig::default() };
    let id = peer.world.open(&plain, b"");
    peer.world.pair.run_ms(1);
    peer.answer(1, &[5; 8], 1460, &[]);
    assert_eq!(peer.world.pair.a.state(id), Some(State::Established));
    assert_eq!(peer.next_syn(100), (0, Some(FastOpen::REQUEST)));
}

/// T21: both ends open at once.
#[test]
fn crossing_syns_open_one_connection_without_fast_open() {
    let mut peer = Peer::known(bare(), 1460);
    let id = peer.open(&pattern(1000));
    peer.world.until(5);
    let mut theirs = peer.header(Flags::SYN, 0, Some(1040));
    theirs.ack = SeqNum(0);
    theirs.options.window_scale = Some(6);
    theirs.options.fast_open = Cookie::new(&[7; 8]).map(FastOpen::with_cookie);
    peer.world.pair.forge(A, &theirs, &pattern(500));
    let answer = peer.world.pair.last(A).clone();
    assert_eq!((answer.tcp.flags, answer.len, answer.tcp.options.fast_open), (SYN_ACK, 0, None));
    assert_eq!((answer.tcp.seq, answer.tcp.ack), (peer.syn().seq, SeqNum(9001)));
    peer.world.until(50);
    let taken = peer.header(SYN_ACK, 1001, Some(1040));
    peer.world.pair.forge(A, &taken, &[]);
    assert_eq!(peer.world.pair.a.state(id), Some(State::Established));
    assert_eq!(peer.world.read(A, id), [], "data of a SYN that nobody listens for is not delivered");
    peer.world.until(2000);
    assert!(peer.world.sent(A).iter().skip(1).all(|&(_, _, len, _)| len == 0), "not sent again");
    assert_eq!(peer.world.outcome(id), FastOpenOutcome::Off(OffReason::Simultaneous));
}

#[test]
fn crossing_syns_send_again_what_was_not_taken() {
    let mut peer = Peer::known(bare(), 1460);
    let id = peer.open(&pattern(1000));
    peer.world.until(5);
    let mut theirs = peer.header(Flags::SYN, 0, Some(1040));
    theirs.ack = SeqNum(0);
    peer.world.pair.forge(A, &theirs, &[]);
    peer.world.until(50);
    let not_taken = peer.header(SYN_ACK, 1, Some(1040));
    peer.world.pair.forge(A, &not_taken, &[]);
    let again = peer.world.pair.last(A).clone();
    assert_eq!((again.tcp.seq, again.len), (peer.syn().seq + 1, 1000));
    assert_eq!(peer.world.pair.a.state(id), Some(State::Established));
}

/// T22: the SYN-ACK carries data, or a FIN.
#[test]
fn a_syn_ack_may_carry_data_and_a_fin() {
    for fin in [false, true] {
        let mut peer = Peer::known(bare(), 1460);
        let id = peer.open(&pattern(100));
        let flags = if fin { SYN_ACK | Flags::FIN } else { SYN_ACK };
        let tcp = peer.header(flags, 101, Some(1460));
        peer.world.pair.forge(A, &tcp, &pattern(1400));
        let ack = &peer.world.pair.last(A).tcp;
        assert_eq!((ack.flags, ack.ack), (Flags::ACK, SeqNum(9000) + 1401 + u32::from(fin)));
        assert_eq!(peer.world.read(A, id), pattern(1400));
        let state = if fin { State::CloseWait } else { State::Established };
        assert_eq!(peer.world.pair.a.state(id), Some(state));
    }
}

/// T27: ICMP says that the SYN is too large.
#[test]
fn a_syn_that_is_too_large_is_followed_by_a_plain_one_and_counts_as_no_failure() {
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

/// An ICMP packet that says "fragmentation needed" about a SYN of A to port 80 of B.
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

/// T26: connections that open and then break, to one destination and to two.
#[test]
fn a_black_hole_behind_the_handshake_switches_fast_open_off() {
    let mut world = World::new(FastOpenListen::default());
    world.pair.tap = Some(Box::new(|_, _| true));
    let broken = |world: &mut World, remote: [u8; 4]| {
        let (now, remote) = (world.pair.now, (remote, 80).into());
        let no_cookie = FastOpenConnect { no_cookie: true, ..FastOpenConnect::default() };
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

/// A hostile channel, with Fast Open on: every byte arrives once per connection, in order.
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

#[test]
fn a_host_may_allow_less_or_more_than_applications_ask_for() {
    let allowing = |a: u32, b: u32| {
        move |config: StackConfig| {
            let bits = if config.addresses.contains(&A.addr(0).ip()) { a } else { b };
            let fast_open = FastOpenConfig { switches: FastOpenSwitches(bits), ..FastOpenConfig::default() };
            StackConfig { fast_open, ..config }
        }
    };
    let outcome = |listen: ListenConfig, a, b| {
        let mut world = World::with(listen, allowing(a, b));
        let id = world.open(&asking(), &pattern(100));
        world.pair.run_ms(300);
        world.outcome(id)
    };
    let (wanted, unwanted) = (serving(FastOpenListen::default()), ListenConfig::default());
    assert_eq!(outcome(wanted.clone(), 1, 2), FastOpenOutcome::NoCookie);
    assert_eq!(outcome(wanted.clone(), 2, 2), FastOpenOutcome::Off(OffReason::NotAllowed));
    assert_eq!(outcome(wanted.clone(), 1, 1), FastOpenOutcome::Stripped);
    assert_eq!(outcome(unwanted, 1, 0x402), FastOpenOutcome::NoCookie);
    assert_eq!(outcome(wanted, 5, 0x202), FastOpenOutcome::Used);
}
