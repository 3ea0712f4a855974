//! The acceptance test of robustness: a million segments to a connection in every state.
//!
//! A connection is driven into a state and receives segments from an attacker who sees the traffic
//! ([`forge`]): correct, changed in a few fields, correct only in the ports, damaged, inside and outside the
//! window, and ICMP errors. Now and then time passes and the application reads, writes or accepts. If a
//! segment has moved the connection out of its state, which many correctly do, the connection is aborted and
//! the next one is driven there. Half of the connections do not get segments that would end them, so that
//! they live long. [`Watched`] checks the bounds after every segment. From time to time the application
//! releases everything, and then no state may be left.

use std::net::{IpAddr, SocketAddr};

use brisk_tcp::config::{BufferConfig, ConnectConfig, EcnMode, ListenConfig, StackConfig, TcpConfig};
use brisk_tcp::connection::State;
use brisk_tcp::fast_open::FastOpenListen;
use brisk_tcp::stack::{Refusal, Rx, StackStats};
use brisk_tcp::{ConnId, ListenerId};
use brisk_wire::{
    ChecksumCheck, Duration, Ecn, Flags, Instant, Options, Packet, TcpHeader, Timestamps, parse,
};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::decisions::Decisions;
use crate::flow::Flow;
use crate::forge;
use crate::watched::Watched;

/// Bytes of decisions for one segment.
const DECISIONS: usize = 96;
/// Minimum number of connections if none leaves its state: each gets enough segments to reach all its limits.
const CONNECTIONS: u64 = 50;
/// Number of times that everything is released.
const CALMS: u64 = 10;
/// Segments between two calls of the observer.
const SAMPLE_EVERY: u64 = 1000;
const BUFFER: BufferConfig = BufferConfig { initial: 16 << 10, max: 256 << 10 };
const MAX_CONNECTIONS: usize = 128;
const MAX_MEMORY: usize = 4 << 20;
const MSL: Duration = Duration::from_secs(30);

/// Target of the segments: a listener or a state of RFC 9293 section 3.3.2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Situation {
    /// A listener.
    Listen,
    /// A connection in this state; [`State::Closed`] is an unused port.
    In(State),
}

impl Situation {
    /// Every state.
    pub const ALL: [Situation; 11] = [
        Situation::Listen,
        Situation::In(State::SynSent),
        Situation::In(State::SynReceived),
        Situation::In(State::Established),
        Situation::In(State::FinWait1),
        Situation::In(State::FinWait2),
        Situation::In(State::CloseWait),
        Situation::In(State::Closing),
        Situation::In(State::LastAck),
        Situation::In(State::TimeWait),
        Situation::In(State::Closed),
    ];

    /// Returns the name in RFC 9293.
    pub fn name(self) -> &'static str {
        match self {
            Situation::Listen => "LISTEN",
            Situation::In(state) => state.name(),
        }
    }
}

/// When the observer is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// During the segments.
    Busy,
    /// Everything has been released and hours have passed: remaining memory is never freed.
    Calm,
}

/// Counts of the segments and their results.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Segments sent while the connection was in the state.
    pub segments: u64,
    /// Segments that the stack passed to a connection, a TIME-WAIT or a listener.
    pub accepted: u64,
    /// Segments that the stack refused, by reason; only reasons that occurred.
    pub refused: Vec<(Refusal, u64)>,
    /// Accepted segments that were outside the window.
    pub out_of_window: u64,
    /// Accepted segments that PAWS refused.
    pub paws: u64,
    /// Challenge ACKs that were sent.
    pub challenges: u64,
    /// Packets that the stack sent.
    pub packets_out: u64,
    /// Connections that were driven into the state.
    pub driven: u64,
    /// Maximum number of bytes in the buffers.
    pub memory: usize,
    /// Maximum number of connections.
    pub connections: usize,
}

/// Sends `segments` to a stack in `situation`; calls `observe` at every [`Moment`].
///
/// # Panics
/// If the stack panics, breaks a bound of [`Watched`], or keeps state at the end.
pub fn run(situation: Situation, segments: u64, seed: u64, observe: &mut dyn FnMut(Moment)) -> Tally {
    let mut barrage = Barrage::new(situation, seed);
    let before = *barrage.host.stack.stats();
    let mut left = segments;
    let mut calm_in = segments.div_ceil(CALMS);
    while left > 0 {
        let max = left.min(calm_in).min(segments.div_ceil(CONNECTIONS));
        let thrown = barrage.round(max, observe);
        (left, calm_in) = (left - thrown, calm_in - thrown);
        if calm_in == 0 {
            barrage.calm();
            observe(Moment::Calm);
            calm_in = segments.div_ceil(CALMS);
        }
    }
    let after = *barrage.host.stack.stats();
    barrage.tally(&before, &after, segments)
}

struct Barrage {
    situation: Situation,
    host: Watched,
    listener: ListenerId,
    flow: Flow,
    connection: Option<ConnId>,
    /// True if the peer opens this connection.
    passive: bool,
    /// True if it gets no segments that would correctly end its state, so that it lives long.
    lasting: bool,
    /// True if its application reads.
    reads: bool,
    /// Number of reused TIME-WAITs, constant while the driven one exists, and the end of that one.
    reused: u64,
    expires: Instant,
    next_port: u16,
    chance: ChaCha8Rng,
    tally: Tally,
    packet: Vec<u8>,
}

const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const REMOTE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 1, 1));

fn tcp() -> TcpConfig {
    TcpConfig { send_buffer: BUFFER, receive_buffer: BUFFER, ecn: EcnMode::On, ..TcpConfig::default() }
}

/// Setting up.
impl Barrage {
    fn new(situation: Situation, seed: u64) -> Barrage {
        let config = StackConfig {
            addresses: vec![LOCAL],
            max_connections: MAX_CONNECTIONS,
            max_buffer_bytes: MAX_MEMORY,
            msl: MSL,
            ..StackConfig::default()
        };
        let mut host = Watched::new(config, seed, BUFFER.max, Instant::from_millis(1_000_000));
        // Data on a SYN matters only to the listener.
        let fast_open = (situation == Situation::Listen).then(FastOpenListen::default);
        let listen =
            ListenConfig { tcp: tcp(), backlog: 16, max_half_open: 64, fast_open, ..ListenConfig::default() };
        let listener = host.stack.listen(SocketAddr::new(LOCAL, 80), listen).expect("the port is free");
        Barrage {
            situation,
            host,
            listener,
            flow: Flow::new(SocketAddr::new(LOCAL, 80), SocketAddr::new(REMOTE, 80), 0),
            connection: None,
            passive: false,
            lasting: false,
            reads: true,
            reused: 0,
            expires: Instant::ZERO,
            next_port: 1024,
            chance: ChaCha8Rng::seed_from_u64(seed),
            tally: Tally::default(),
            packet: Vec::new(),
        }
    }

    /// Starts a new flow with a connection in the state.
    fn drive(&mut self) {
        let kind = self.tally.driven;
        (self.passive, self.lasting, self.reads) = (kind & 1 != 0, kind & 2 != 0, kind & 12 != 12);
        self.tally.driven += 1;
        self.next_port = self.next_port.checked_add(1).unwrap_or(1024);
        let irs = self.chance.next_u32();
        let remote = SocketAddr::new(REMOTE, self.next_port);
        let port = if self.situation == Situation::In(State::Closed) { 81 } else { 80 };
        self.flow = Flow::new(SocketAddr::new(LOCAL, port), remote, irs);
        self.flow.ts_own = self.chance.next_u32();
        let Situation::In(state) = self.situation else { return };
        match state {
            State::Closed => {}
            State::SynSent => self.connect(),
            State::SynReceived if self.passive => self.peer(Flags::SYN),
            State::SynReceived => {
                self.connect();
                self.peer(Flags::SYN);
            }
            _ => {
                self.open();
                self.close_to(state);
            }
        }
        self.reused = self.host.stack.stats().time_waits_reused;
        self.expires = self.host.now + MSL * 2;
        assert!(self.is_there(), "{} was not reached: {:?}", self.situation.name(), self.connection_state());
    }

    fn connect(&mut self) {
        let config = ConnectConfig { tcp: tcp(), ..ConnectConfig::default() };
        let id = self.host.stack.connect(self.flow.remote, &config, self.host.now).expect("there is room");
        self.flow.local = self.host.stack.local_addr(id).expect("just opened");
        self.connection = Some(id);
        self.drain();
    }

    /// Drives the connection to ESTABLISHED.
    fn open(&mut self) {
        if self.passive {
            self.peer(Flags::SYN);
            self.peer(Flags::ACK);
            while let Some((id, remote)) = self.host.stack.accept(self.listener) {
                match remote == self.flow.remote {
                    true => self.connection = Some(id),
                    false => self.host.stack.release(id, self.host.now),
                }
            }
        } else {
            self.connect();
            self.peer(Flags::SYN | Flags::ACK);
        }
        self.drain();
    }

    /// Drives the connection from ESTABLISHED on.
    fn close_to(&mut self, state: State) {
        let fin = Flags::FIN | Flags::ACK;
        match state {
            State::Established => self.write(),
            State::FinWait1 => self.shutdown(),
            State::FinWait2 => {
                self.shutdown();
                self.peer(Flags::ACK);
            }
            State::CloseWait => {
                self.peer(fin);
                self.write();
            }
            State::Closing => {
                self.shutdown();
                // The peer's FIN leaves before the peer has seen ours.
                self.peer_with(fin, |tcp| tcp.ack = tcp.ack - 1);
            }
            State::LastAck => {
                self.peer(fin);
                self.shutdown();
            }
            State::TimeWait => {
                self.shutdown();
                self.peer(fin);
            }
            State::Closed | State::SynSent | State::SynReceived => {}
        }
    }

    fn shutdown(&mut self) {
        let id = self.connection.expect("open");
        self.host.stack.shutdown(id, self.host.now).expect("open");
        self.drain();
    }

    fn write(&mut self) {
        if let Some(id) = self.connection {
            let _ = self.host.stack.write(id, &[7; 5000], self.host.now);
            self.drain();
        }
    }

    /// Sends the next segment of an honest peer, without data.
    fn peer(&mut self, flags: Flags) {
        self.peer_with(flags, |_| ());
    }

    fn peer_with(&mut self, flags: Flags, change: impl FnOnce(&mut TcpHeader)) {
        let mut tcp = TcpHeader { flags, window: 60_000, ..self.flow.next() };
        if flags.contains(Flags::SYN) {
            tcp.seq = self.flow.irs;
            let timestamps = Timestamps { value: self.flow.ts_own, echo: self.flow.ts_value.unwrap_or(0) };
            tcp.options = Options {
                mss: Some(1460),
                window_scale: Some(7),
                sack_permitted: true,
                timestamps: Some(timestamps),
                ..Options::default()
            };
        }
        change(&mut tcp);
        self.flow.snd_una = self.flow.snd_una.max(tcp.ack);
        forge::write(&self.flow, &tcp, 0, Ecn::NotEct, &mut self.packet);
        self.host.receive(&self.packet, Rx::default());
        self.drain();
    }

    fn connection_state(&self) -> Option<State> {
        self.connection.and_then(|id| self.host.stack.state(id))
    }

    /// True if the driven connection is in the state.
    fn is_there(&self) -> bool {
        let stats = self.host.stack.stats();
        match self.situation {
            Situation::Listen | Situation::In(State::Closed) => true,
            Situation::In(State::SynReceived) if self.passive => half_open(stats) > 0,
            Situation::In(State::TimeWait) => {
                let same = stats.time_waits_reused == self.reused;
                same && self.host.now < self.expires && self.connection_state() == Some(State::TimeWait)
            }
            Situation::In(state) => self.connection_state() == Some(state),
        }
    }
}

/// Returns the number of connections in a passive open.
fn half_open(stats: &StackStats) -> u64 {
    let began = stats.passive_opens + stats.syn_cookies_accepted;
    began - stats.handshakes_completed - stats.handshakes_failed
}

/// Sending.
impl Barrage {
    /// Sends up to `max` segments to one connection; returns their number.
    fn round(&mut self, max: u64, observe: &mut dyn FnMut(Moment)) -> u64 {
        self.drive();
        let mut thrown = 0;
        while thrown < max && self.is_there() {
            self.throw();
            thrown += 1;
            self.tally.segments += 1;
            if self.tally.segments.is_multiple_of(SAMPLE_EVERY) {
                observe(Moment::Busy);
            }
        }
        self.abort_rest();
        thrown
    }

    fn throw(&mut self) {
        let mut bytes = [0; DECISIONS];
        self.chance.fill_bytes(&mut bytes);
        let mut decisions = Decisions::new(&bytes);
        match decisions.below(64) {
            0..=3 => self.pass(Duration::from_millis(1 + u64::from(decisions.byte()) / 4)),
            4 | 5 if self.reads => self.read(),
            6 => self.write(),
            7 if self.situation == Situation::Listen => self.accept_and_release(),
            _ => {}
        }
        if self.situation == Situation::Listen && decisions.one_in(4) {
            let remote = SocketAddr::new(REMOTE, 1024 + decisions.short() % 60_000);
            let fast_open = self.flow.fast_open;
            self.flow = Flow { fast_open, ..Flow::new(self.flow.local, remote, decisions.word()) };
        }
        let rx = if self.situation == Situation::Listen && decisions.one_in(2) {
            forge::handshake(&mut decisions, &mut self.flow, &mut self.packet);
            Rx::default()
        } else {
            forge::packet(&mut decisions, &mut self.flow, &mut self.packet)
        };
        if self.lasting && self.would_end() {
            // An acknowledgement of old data replaces it.
            let tcp = TcpHeader { ack: self.flow.snd_una, ..self.flow.next() };
            forge::write(&self.flow, &tcp, 0, Ecn::NotEct, &mut self.packet);
        }
        self.host.receive(&self.packet, rx);
        self.tally.memory = self.tally.memory.max(self.host.stack.memory());
        self.tally.connections = self.tally.connections.max(self.host.stack.connections());
        self.drain();
    }

    /// True if the forged packet would correctly move the connection out of its state.
    fn would_end(&self) -> bool {
        let opening = [State::SynSent, State::SynReceived].map(Situation::In).contains(&self.situation);
        let (len, tcp) = match parse(&self.packet, ChecksumCheck::Trust) {
            Ok(Packet::Tcp(segment)) => (segment.len(), segment.tcp),
            Ok(Packet::Icmp(_)) => return opening,
            Ok(Packet::Other { .. }) | Err(_) => return false,
        };
        let unacknowledged = matches!(
            self.situation,
            Situation::In(State::SynReceived | State::FinWait1 | State::Closing | State::LastAck)
        );
        let reset = tcp.flags.contains(Flags::RST) && (tcp.seq == self.flow.rcv_nxt || opening);
        let fin = tcp.flags.contains(Flags::FIN) && len > 0;
        let acknowledges = unacknowledged && tcp.ack == self.flow.snd_nxt;
        reset || fin || acknowledges || opening && tcp.flags.contains(Flags::SYN)
    }

    fn read(&mut self) {
        let mut buffer = [0; 16_384];
        if let Some(id) = self.connection {
            while matches!(self.host.stack.read(id, &mut buffer, self.host.now), Ok(1..)) {}
            self.drain();
        }
    }

    /// Accepts the waiting connections and closes them.
    fn accept_and_release(&mut self) {
        while let Some((id, _)) = self.host.stack.accept(self.listener) {
            self.host.stack.release(id, self.host.now);
        }
        self.drain();
    }

    /// Accepts the waiting connections and aborts them.
    fn accept_and_abort(&mut self) {
        while let Some((id, _)) = self.host.stack.accept(self.listener) {
            self.host.stack.abort(id, self.host.now);
            self.host.stack.release(id, self.host.now);
        }
        self.drain();
    }

    fn drain(&mut self) {
        let Barrage { host, flow, .. } = self;
        host.drain(&mut |packet, segment| {
            if flow.owns(segment) {
                flow.on_sent(packet, segment);
            }
        });
        host.events();
    }

    fn pass(&mut self, span: Duration) {
        let Barrage { host, flow, .. } = self;
        host.pass(span, &mut |packet, segment| {
            if flow.owns(segment) {
                flow.on_sent(packet, segment);
            }
        });
    }

    /// Aborts the rest of the connection.
    fn abort_rest(&mut self) {
        if let Some(id) = self.connection.take() {
            if let Some(stats) = self.host.stack.conn_stats(id) {
                self.tally.out_of_window += stats.counters.out_of_window;
                self.tally.paws += stats.counters.paws;
            }
            self.host.stack.abort(id, self.host.now);
            self.host.stack.release(id, self.host.now);
            self.drain();
        }
        if self.situation == Situation::Listen {
            return;
        }
        self.accept_and_abort();
        // Connections that forged SYNs have left half open would block the next connection.
        let in_the_way = half_open(self.host.stack.stats());
        if in_the_way > 32 || self.situation == Situation::In(State::SynReceived) && in_the_way > 0 {
            self.pass(Duration::from_secs(600));
            self.accept_and_abort();
        }
    }

    /// Releases everything and lets hours pass.
    fn calm(&mut self) {
        self.accept_and_release();
        self.pass(Duration::from_secs(3600));
        self.accept_and_release();
        self.pass(Duration::from_secs(3600));
        let left = (self.host.stack.connections(), self.host.stack.memory(), self.host.stack.next_timeout());
        assert_eq!(left, (0, 0, None), "{}: connections, bytes and timers are left", self.situation.name());
    }

    fn tally(self, before: &StackStats, after: &StackStats, segments: u64) -> Tally {
        let refused: Vec<(Refusal, u64)> = Refusal::ALL
            .into_iter()
            .map(|reason| (reason, after.refused(reason) - before.refused(reason)))
            .filter(|(_, count)| *count > 0)
            .collect();
        let sum: u64 = refused.iter().map(|(_, count)| count).sum();
        assert_eq!(self.tally.segments, segments);
        Tally {
            accepted: segments - sum,
            refused,
            challenges: after.challenge_acks_sent - before.challenge_acks_sent,
            packets_out: after.packets_out - before.packets_out,
            ..self.tally
        }
    }
}
