//! Ends that a test simulates: a client with its own address, and a server.

use super::*;

/// A simulated client with its own address and a cookie.
pub(super) struct SimulatedClient {
    pub(super) ip: [u8; 4],
    pub(super) cookie: Option<FastOpen>,
}

impl SimulatedClient {
    pub(super) fn new(world: &mut World, last: u8) -> SimulatedClient {
        let mut played = SimulatedClient { ip: [10, 9, 9, last], cookie: None };
        played.send(world, 100, Some(FastOpen::REQUEST), &[]);
        played.cookie = world.pair.last(B).tcp.options.fast_open;
        assert!(played.cookie.is_some(), "a cookie was granted");
        let reset = TcpHeader { seq: SeqNum(101), flags: Flags::RST, ..TcpHeader::default() };
        played.segment(world, 100, &reset, &[]);
        played
    }

    pub(super) fn segment(&self, world: &mut World, port: u16, tcp: &TcpHeader, payload: &[u8]) {
        let packet = packet((self.ip, port).into(), B.addr(80), tcp, payload);
        world.pair.inject(B, &packet);
    }

    pub(super) fn send(&self, world: &mut World, port: u16, option: Option<FastOpen>, payload: &[u8]) {
        let mut tcp = syn(u32::from(port));
        tcp.options.fast_open = option;
        self.segment(world, port, &tcp, payload);
    }

    /// Sends a SYN with ten bytes and the cookie; returns how many of the bytes were acknowledged.
    pub(super) fn open(&self, world: &mut World, port: u16) -> u32 {
        self.send(world, port, self.cookie, b"0123456789");
        let answer = world.pair.last(B).tcp.clone();
        assert_eq!((answer.flags, answer.dst_port), (SYN_ACK, port));
        answer.ack.since(SeqNum(u32::from(port)) + 1)
    }

    pub(super) fn reset(&self, world: &mut World, port: u16) {
        let seq = SeqNum(u32::from(port)) + 11;
        let reset = TcpHeader { seq, flags: Flags::RST, ..TcpHeader::default() };
        self.segment(world, port, &reset, &[]);
    }
}

/// A simulated server. It receives no packets of A.
pub(super) struct Peer {
    pub(super) world: World,
    pub(super) config: ConnectConfig,
}

impl Peer {
    pub(super) fn new(tcp: TcpConfig) -> Peer {
        Peer::with(tcp, |config| config)
    }

    /// Like `new`, with changed stacks.
    fn with(tcp: TcpConfig, change: impl Fn(StackConfig) -> StackConfig) -> Peer {
        let mut world = World::with(serving(FastOpenListen::default()), change);
        world.pair.tap = Some(Box::new(|_, _| true));
        let fast_open = Some(FastOpenConnect::default());
        Peer { world, config: ConnectConfig { tcp, fast_open, ..ConnectConfig::default() } }
    }

    /// Like `new`. The client has the cookie of eight ones and knows the MSS of the server.
    pub(super) fn known(tcp: TcpConfig, mss: u16) -> Peer {
        Peer::known_with(tcp, mss, |config| config)
    }

    /// Like `known`, with changed stacks.
    pub(super) fn known_with(tcp: TcpConfig, mss: u16, change: impl Fn(StackConfig) -> StackConfig) -> Peer {
        let mut peer = Peer::with(tcp, change);
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

    pub(super) fn open(&mut self, data: &[u8]) -> ConnId {
        let config = self.config.clone();
        let id = self.world.open(&config, data);
        self.world.pair.run_ms(1);
        id
    }

    pub(super) fn syn(&self) -> &TcpHeader {
        &self.world.pair.seen.iter().rev().find(|seen| seen.is(A, Flags::SYN)).expect("was sent").tcp
    }

    pub(super) fn header(&self, flags: Flags, acked: u32, mss: Option<u16>) -> TcpHeader {
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

    /// Sends a SYN-ACK of `ISS + acked` with this cookie (empty: no option) and payload.
    pub(super) fn answer(&mut self, acked: u32, cookie: &[u8], mss: u16, payload: &[u8]) {
        let mut tcp = self.header(SYN_ACK, acked, Some(mss));
        tcp.options.fast_open = Cookie::new(cookie).filter(|_| !cookie.is_empty()).map(FastOpen::with_cookie);
        self.world.pair.forge(A, &tcp, payload);
    }

    /// Returns the bytes of data that the SYN of the next connection would carry, and its option.
    pub(super) fn next_syn(&mut self, offered: usize) -> (usize, Option<FastOpen>) {
        self.world.restart();
        let id = self.open(&pattern(offered));
        let seen = self.world.pair.seen.iter().find(|seen| seen.is(A, Flags::SYN)).expect("was sent").clone();
        self.world.pair.abort(A, id);
        self.world.pair.release(A, id);
        self.world.pair.run_ms(1);
        (seen.len, seen.tcp.options.fast_open)
    }
}

pub(super) fn bare() -> TcpConfig {
    TcpConfig { timestamps: false, ..quick() }
}
