//! Fast Open between two stacks: the time that it saves, and the delivery of all data when it fails.
//!
//! Times are milliseconds since the SYN left; one way takes 50 ms. Receivers acknowledge at once.

mod after_syn;
mod exchange;
mod fallback;
mod limits;
mod plain_copy;
mod played;
mod repeated;
mod replay;
mod syn_ack;
mod with_gentle;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use brisk_tcp::config::{
    BufferConfig, ConnectConfig, FastOpenConfig, HandshakeCopies, ListenConfig, PlannerConfig, StackConfig,
    SynCookies, TcpConfig,
};
use brisk_tcp::connection::State;
use brisk_tcp::error::{CloseReason, ReadError};
use brisk_tcp::fast_open::{
    ClientCookie, CookieKey, EarlyResponse, FastOpenConnect, FastOpenListen, FastOpenOutcome, KeySource,
    LastAckHold, OffReason, ReplayWindow, SynAckClass,
};
use brisk_tcp::{ConnId, Event, ListenerId};
use brisk_wire::{
    Cookie, FastOpen, Flags, IcmpKind, Instant, Options, Segment, SeqNum, TcpHeader, Timestamps, emit_icmp,
};

use crate::harness::{A, B, Pair, Seen, Side, packet, pattern, stack_config, syn};
use played::{Peer, SimulatedClient, bare};

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

    /// Returns a world in which A has a cookie of B and knows the round-trip time.
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

    /// Sets the origin of times to now: the next SYN leaves at 0.
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

    /// Returns the packets of a side: time, flags, payload, whether there was a Fast Open option.
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

#[test]
fn icmp_error_does_not_end_a_connection_that_delivered_syn_data() {
    let mut world = World::known(FastOpenListen::default());
    world.pair.tap = Some(Box::new(|from, _| from == B));
    let at_a = world.open(&asking(), b"request");
    world.until(60);
    let at_b = world.accept();
    assert_eq!(world.pair.b.state(at_b), Some(State::SynReceived));
    let tcp = world.pair.last(B).tcp.clone();
    let offending = packet(B.addr(tcp.src_port), A.addr(tcp.dst_port), &tcp, &[0; 8]);
    let mut error = Vec::new();
    emit_icmp([10, 0, 0, 254].into(), &offending, IcmpKind::PortUnreachable, &mut error);
    world.pair.inject(B, &error);
    assert_eq!(world.pair.b.stats().icmp_believed, 1);
    world.pair.tap = None;
    world.until(2000);
    assert_eq!(world.pair.b.state(at_b), Some(State::Established));
    world.pair.write(B, at_b, b"response").expect("open");
    world.until(2200);
    assert_eq!(world.read(A, at_a), b"response");
}
