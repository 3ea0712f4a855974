//! Two stacks, a virtual clock, and a channel between them that may be hostile.
//!
//! The seed determines everything, so a failure is reproducible. The channel loses, delays, reorders and
//! duplicates packets. A tap sees every packet before the channel does, and can drop it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use brisk_tcp::config::{ConnectConfig, ListenConfig, StackConfig};
use brisk_tcp::error::{ReadError, WriteError};
use brisk_tcp::stack::Rx;
use brisk_tcp::{ConnId, Event, ListenerId, Stack};
use brisk_wire::{
    ChecksumCheck, ChecksumFill, Ecn, Flags, Instant, IpMeta, Packet, Segment, SeqNum, TcpHeader, emit,
    parse, split, split_twice,
};
use bytes::Bytes;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

pub(crate) const A: Side = Side::A;
pub(crate) const B: Side = Side::B;

/// One of the two hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub(crate) enum Side {
    A,
    B,
}

impl Side {
    pub(crate) fn other(self) -> Side {
        match self {
            A => B,
            B => A,
        }
    }

    pub(crate) fn ip(self) -> IpAddr {
        match self {
            A => IpAddr::from([10, 0, 0, 1]),
            B => IpAddr::from([10, 0, 0, 2]),
        }
    }

    pub(crate) fn addr(self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip(), port)
    }
}

/// Faults of the channel, both ways. Probabilities are per mille.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Channel {
    pub(crate) delay: Duration,
    /// Maximum of an additional random delay per packet, so that later packets overtake.
    pub(crate) jitter: Duration,
    pub(crate) loss: u32,
    pub(crate) duplicate: u32,
}

impl Default for Channel {
    fn default() -> Self {
        Channel { delay: Duration::from_millis(10), jitter: Duration::ZERO, loss: 0, duplicate: 0 }
    }
}

/// A TCP packet that a host sent.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) at: Instant,
    pub(crate) from: Side,
    pub(crate) tcp: TcpHeader,
    pub(crate) len: usize,
    pub(crate) ecn: Ecn,
}

impl Seen {
    fn new(at: Instant, from: Side, segment: &Segment<'_>) -> Seen {
        Seen { at, from, tcp: segment.tcp.clone(), len: segment.payload.len(), ecn: segment.ip.ecn }
    }
}

impl Seen {
    pub(crate) fn is(&self, from: Side, flags: Flags) -> bool {
        self.from == from && self.tcp.flags.without(Flags::PSH) == flags
    }
}

/// A packet in flight: its arrival time, its number and its sender.
type InFlight = Reverse<(Instant, u64, Side, Vec<u8>)>;

type Tap = Box<dyn FnMut(Side, &Segment<'_>) -> bool>;

type Mangle = Box<dyn FnMut(Side, &Segment<'_>) -> Option<Vec<Vec<u8>>>>;

/// Two stacks and the channel between them.
pub(crate) struct Pair {
    pub(crate) now: Instant,
    pub(crate) a: Stack,
    pub(crate) b: Stack,
    pub(crate) channel: Channel,
    /// All packets sent while `record` is set.
    pub(crate) seen: Vec<Seen>,
    /// All packets that arrived while `record` is set, each with the number of packets sent before.
    pub(crate) arrived: Vec<(usize, Seen)>,
    pub(crate) record: bool,
    /// True if packets that arrive at one instant are passed to the stack together before it sends, as by a
    /// device that reads in batches. Otherwise each packet is answered on its own.
    pub(crate) batches: bool,
    /// True if the ownership of long written data is handed over.
    pub(crate) gives: bool,
    /// Sees each packet with its sender; returns true to drop it.
    pub(crate) tap: Option<Tap>,
    /// Replaces a packet by others; `None` leaves it unchanged.
    pub(crate) mangle: Option<Mangle>,
    pub(crate) events: Vec<(Side, Event)>,
    in_flight: BinaryHeap<InFlight>,
    sent: u64,
    chance: ChaCha8Rng,
}

pub(crate) fn stack_config(side: Side) -> StackConfig {
    StackConfig { addresses: vec![side.ip()], ..StackConfig::default() }
}

impl Pair {
    pub(crate) fn new(seed: u64) -> Pair {
        Pair::with_configs(seed, stack_config(A), stack_config(B))
    }

    pub(crate) fn with_configs(seed: u64, a: StackConfig, b: StackConfig) -> Pair {
        Pair {
            now: Instant::from_millis(1_000_000),
            a: Stack::new(a, seed).expect("valid"),
            b: Stack::new(b, seed + 1000).expect("valid"),
            channel: Channel::default(),
            seen: Vec::new(),
            arrived: Vec::new(),
            record: true,
            batches: false,
            gives: false,
            tap: None,
            mangle: None,
            events: Vec::new(),
            in_flight: BinaryHeap::new(),
            sent: 0,
            chance: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    pub(crate) fn stack(&mut self, side: Side) -> &mut Stack {
        match side {
            A => &mut self.a,
            B => &mut self.b,
        }
    }

    pub(crate) fn listen(&mut self, side: Side, port: u16, config: ListenConfig) -> ListenerId {
        self.stack(side).listen(side.addr(port), config).expect("free")
    }

    pub(crate) fn connect(&mut self, side: Side, port: u16) -> ConnId {
        self.connect_with(side, port, &ConnectConfig::default())
    }

    pub(crate) fn connect_with(&mut self, side: Side, port: u16, config: &ConnectConfig) -> ConnId {
        let (now, remote) = (self.now, side.other().addr(port));
        self.stack(side).connect(remote, config, now).expect("possible")
    }

    /// Opens a connection from A to a new listener on port 80 of B.
    pub(crate) fn established(&mut self) -> (ConnId, ConnId) {
        let listener = self.listen(B, 80, ListenConfig::default());
        self.established_at(listener, &ConnectConfig::default())
    }

    pub(crate) fn established_at(
        &mut self,
        listener: ListenerId,
        config: &ConnectConfig,
    ) -> (ConnId, ConnId) {
        let port = self.b.listener_addr(listener).expect("listens").port();
        let at_a = self.connect_with(A, port, config);
        let mut at_b = None;
        self.run_until(Duration::from_secs(60), |pair| {
            at_b = pair.b.accept(listener).map(|(id, _)| id);
            at_b.is_some()
        });
        (at_a, at_b.expect("the handshake completes"))
    }

    /// Lets `span` pass.
    pub(crate) fn run(&mut self, span: Duration) {
        let end = self.now + span;
        while self.step(end) {}
        self.now = end;
    }

    pub(crate) fn run_ms(&mut self, millis: u64) {
        self.run(Duration::from_millis(millis));
    }

    /// Lets time pass until `done`; panics if that takes longer than `limit`.
    pub(crate) fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&mut Pair) -> bool) {
        let end = self.now + limit;
        while !done(self) {
            if !self.step(end) {
                assert!(done(self), "not done after {limit:?}");
                return;
            }
        }
    }

    /// Processes the next instant at which something is due. Returns false if that is after `end`.
    pub(crate) fn step(&mut self, end: Instant) -> bool {
        self.transmit();
        let next_packet = self.in_flight.peek().map(|Reverse((due, ..))| *due);
        let next = [next_packet, self.a.next_timeout(), self.b.next_timeout()].into_iter().flatten().min();
        let Some(next) = next.filter(|&next| next <= end) else { return false };
        self.now = self.now.max(next);
        self.deliver();
        let now = self.now;
        for side in [A, B] {
            if self.stack(side).next_timeout().is_some_and(|at| at <= now) {
                self.stack(side).on_timeout(now);
                let again = self.stack(side).next_timeout();
                assert!(again.is_none_or(|at| at > now), "{side:?} wants to be woken at {again:?} for ever");
            }
        }
        self.transmit();
        true
    }

    fn deliver(&mut self) {
        while let Some(Reverse((due, ..))) = self.in_flight.peek()
            && *due <= self.now
        {
            let Some(Reverse((_, _, from, packet))) = self.in_flight.pop() else { return };
            let now = self.now;
            if let Ok(Packet::Tcp(segment)) = parse(&packet, ChecksumCheck::Verify)
                && self.record
            {
                self.arrived.push((self.seen.len(), Seen::new(now, from, &segment)));
            }
            self.stack(from.other()).on_packet(&packet, Rx::default(), now);
            if !self.batches {
                self.transmit();
            }
        }
    }

    fn transmit(&mut self) {
        for side in [A, B] {
            let mut packet = Vec::new();
            let mut sent = 0;
            let now = self.now;
            while let Some(transmit) = self.stack(side).poll_transmit(now, &mut packet) {
                assert_eq!(transmit.len, packet.len());
                sent += 1;
                assert!(sent < 100_000, "{side:?} sends for ever");
                match transmit.segment_size {
                    None if !transmit.partial_checksum => self.send(side, packet.clone()),
                    size => {
                        let mut pieces = Vec::new();
                        let split = if transmit.twice { split_twice } else { split };
                        split(&packet, size.unwrap_or(u16::MAX), ChecksumFill::Full, &mut |piece| {
                            pieces.push(piece.to_vec());
                        });
                        pieces.into_iter().for_each(|piece| self.send(side, piece));
                    }
                }
            }
            while let Some(event) = self.stack(side).poll_event() {
                self.events.push((side, event));
            }
        }
    }

    fn send(&mut self, from: Side, packet: Vec<u8>) {
        let mtu = usize::from(self.stack(from).config().mtu);
        assert!(packet.len() <= mtu, "{from:?} sent {} bytes over {mtu}", packet.len());
        if let Ok(Packet::Tcp(segment)) = parse(&packet, ChecksumCheck::Verify) {
            if self.record {
                self.seen.push(Seen::new(self.now, from, &segment));
            }
            if self.tap.as_mut().is_some_and(|tap| tap(from, &segment)) {
                return;
            }
            let others = self.mangle.as_mut().and_then(|mangle| mangle(from, &segment));
            if let Some(others) = others {
                return others.into_iter().for_each(|other| self.pass(from, other));
            }
        } else {
            panic!("{from:?} sent what cannot be parsed: {packet:02x?}");
        }
        self.pass(from, packet);
    }

    fn pass(&mut self, from: Side, packet: Vec<u8>) {
        if self.draw(1000) < self.channel.loss {
            return;
        }
        if self.draw(1000) < self.channel.duplicate {
            self.launch(from, packet.clone());
        }
        self.launch(from, packet);
    }

    fn launch(&mut self, from: Side, packet: Vec<u8>) {
        let jitter = self.draw(self.channel.jitter.as_micros() as u32 + 1);
        let due = self.now + self.channel.delay + Duration::from_micros(u64::from(jitter));
        self.sent += 1;
        self.in_flight.push(Reverse((due, self.sent, from, packet)));
    }

    fn draw(&mut self, bound: u32) -> u32 {
        self.chance.next_u32() % bound.max(1)
    }

    /// Passes a packet to `to` at once, as if from outside.
    pub(crate) fn inject(&mut self, to: Side, packet: &[u8]) {
        let now = self.now;
        self.stack(to).on_packet(packet, Rx::default(), now);
        self.transmit();
    }

    /// Passes a forged segment of the other host to `to`.
    pub(crate) fn forge(&mut self, to: Side, tcp: &TcpHeader, payload: &[u8]) {
        let packet = packet(to.other().addr(tcp.src_port), to.addr(tcp.dst_port), tcp, payload);
        self.inject(to, &packet);
    }

    /// Returns the number of packets that `from` sent with exactly these flags; PSH does not matter.
    pub(crate) fn count(&self, from: Side, flags: Flags) -> usize {
        self.seen.iter().filter(|seen| seen.is(from, flags)).count()
    }

    /// Returns the last packet that `from` sent.
    pub(crate) fn last(&self, from: Side) -> &Seen {
        self.seen.iter().rev().find(|seen| seen.from == from).expect("something was sent")
    }

    /// Returns the header of the next segment of `from` to the other side, for forging. It continues the last
    /// packet.
    pub(crate) fn next_header(&self, from: Side) -> TcpHeader {
        let ours = self.last(from);
        let span = ours.len as u32 + u32::from(ours.tcp.flags.intersects(Flags::SYN | Flags::FIN));
        TcpHeader {
            seq: ours.tcp.seq + span,
            flags: Flags::ACK,
            options: brisk_wire::Options { timestamps: ours.tcp.options.timestamps, ..Default::default() },
            ..ours.tcp.clone()
        }
    }

    pub(crate) fn write(&mut self, side: Side, id: ConnId, data: &[u8]) -> Result<usize, WriteError> {
        let now = self.now;
        if self.gives {
            return self.stack(side).write_bytes(id, &mut Bytes::copy_from_slice(data), now);
        }
        self.stack(side).write(id, data, now)
    }

    /// Reads the available data; `None` at the end of the stream.
    pub(crate) fn read(&mut self, side: Side, id: ConnId) -> Result<Option<Vec<u8>>, ReadError> {
        let now = self.now;
        let mut all = Vec::new();
        let mut buffer = [0; 16 << 10];
        loop {
            match self.stack(side).read(id, &mut buffer, now) {
                Ok(0) if all.is_empty() => return Ok(None),
                Ok(0) | Err(ReadError::WouldBlock) => return Ok(Some(all)),
                Ok(n) => all.extend_from_slice(&buffer[..n]),
                Err(_) if !all.is_empty() => return Ok(Some(all)),
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn shutdown(&mut self, side: Side, id: ConnId) {
        let now = self.now;
        self.stack(side).shutdown(id, now).expect("open");
    }

    pub(crate) fn release(&mut self, side: Side, id: ConnId) {
        let now = self.now;
        self.stack(side).release(id, now);
    }

    pub(crate) fn abort(&mut self, side: Side, id: ConnId) {
        let now = self.now;
        self.stack(side).abort(id, now);
    }

    pub(crate) fn heard(&self, side: Side, event: Event) -> bool {
        self.events.contains(&(side, event))
    }

    /// Writes `data` at `from` as fast as the buffer permits and reads it at the other end. Panics if that
    /// takes longer than `limit` of virtual time or a byte is wrong.
    pub(crate) fn transfer(
        &mut self,
        from: Side,
        writer: ConnId,
        reader: ConnId,
        data: &[u8],
        limit: Duration,
    ) {
        let (mut written, mut read) = (0, 0);
        self.run_until(limit, |pair| {
            while written < data.len() {
                match pair.write(from, writer, &data[written..]) {
                    Ok(n) => written += n,
                    Err(WriteError::WouldBlock) => break,
                    Err(error) => panic!("write: {error}"),
                }
            }
            let got = pair.read(from.other(), reader).expect("open").expect("not at its end");
            assert!(got == data[read..read + got.len()], "the bytes arrive in order");
            read += got.len();
            read == data.len()
        });
    }
}

/// Returns an IP packet with a TCP segment.
pub(crate) fn packet(src: SocketAddr, dst: SocketAddr, tcp: &TcpHeader, payload: &[u8]) -> Vec<u8> {
    let tcp = TcpHeader { src_port: src.port(), dst_port: dst.port(), ..tcp.clone() };
    let mut out = Vec::new();
    emit(&IpMeta::new(src.ip(), dst.ip()), &tcp, &[payload], ChecksumFill::Full, &mut out).expect("fits");
    out
}

/// Returns the header of a forged SYN.
pub(crate) fn syn(seq: u32) -> TcpHeader {
    let mut tcp = TcpHeader { seq: SeqNum(seq), flags: Flags::SYN, window: 65_535, ..TcpHeader::default() };
    tcp.options.mss = Some(1460);
    tcp
}

/// Returns bytes whose pattern does not repeat soon.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect()
}
