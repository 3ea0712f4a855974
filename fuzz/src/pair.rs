//! Target: two honest stacks and a path that does anything except forge.
//!
//! The path loses, duplicates, reorders, damages, delays, coalesces, and answers packets with ICMP errors.
//! During that, the data read must be a prefix of the data written. At the end the path works, and both sides
//! close: then every byte must arrive, unless an end gave up and reported it.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use brisk_tcp::error::{CloseReason, ReadError};
use brisk_tcp::stack::{Refusal, Rx};
use brisk_tcp::{ConnId, Event, ListenerId};
use brisk_wire::{
    ChecksumCheck, ChecksumFill, Duration, Flags, IcmpKind, Instant, Packet, Segment, emit, emit_icmp, parse,
};
use bytes::Bytes;

use crate::configs;
use crate::decisions::Decisions;
use crate::watched::Watched;

const MAX_STEPS: usize = 600;
const MAX_CONNECTIONS: usize = 3;
const LARGEST_BUFFER: usize = 262_144;
/// Maximum number of packets that the path holds in each direction.
const MAX_IN_FLIGHT: usize = 3000;
/// Maximum time of the two at the end: beyond the largest timeout and the longest probe interval.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let mut decisions = Decisions::new(bytes);
    let mut pair = Pair::new(&mut decisions);
    for _ in 0..MAX_STEPS {
        if decisions.is_over() {
            break;
        }
        pair.step(&mut decisions);
        pair.transmit();
    }
    pair.end();
}

/// One connection with both ends. Index 0 is the end that opened it.
#[derive(Debug)]
struct Stream {
    ids: [Option<ConnId>; 2],
    client: SocketAddr,
    written: [usize; 2],
    read: [usize; 2],
    at_end: [bool; 2],
    closed: [Option<CloseReason>; 2],
    /// True if an application aborted it.
    broken: bool,
}

struct Pair {
    hosts: [Watched; 2],
    listener: Option<ListenerId>,
    streams: Vec<Stream>,
    /// Packets that each host sent and the other has not received.
    path: [VecDeque<(Vec<u8>, Rx)>; 2],
}

fn address(side: usize) -> IpAddr {
    [10, 0, 0, 1 + side as u8].into()
}

/// Returns the byte at `offset` of the stream of `side`.
fn content(side: usize, offset: usize) -> u8 {
    (offset ^ offset >> 8 ^ offset >> 16 ^ side << 7) as u8
}

impl Pair {
    fn new(decisions: &mut Decisions<'_>) -> Pair {
        let now = Instant::from_millis(u64::from(decisions.byte()) * 100_000);
        let hosts = [0, 1].map(|side| {
            let config = configs::stack(decisions, vec![address(side)]);
            Watched::new(config, side as u64, LARGEST_BUFFER, now)
        });
        let mut pair = Pair { hosts, listener: None, streams: Vec::new(), path: Default::default() };
        let config = configs::listen(decisions);
        pair.listener = pair.hosts[1].stack.listen(SocketAddr::new(address(1), 80), config).ok();
        pair.connect(decisions);
        pair
    }

    fn step(&mut self, decisions: &mut Decisions<'_>) {
        let choice = decisions.below(20);
        let side = decisions.below(2);
        match choice {
            0 => self.connect(decisions),
            1..=3 => self.write(side, decisions),
            4 => self.read_all(),
            5 => self.read(side, decisions),
            6 => self.shutdown(side, decisions),
            7 if decisions.one_in(8) => self.break_off(side, decisions),
            8 => self.adjust(side, decisions),
            9..=11 => self.deliver(side, 1 + decisions.below(16)),
            12 => self.trouble(side, decisions),
            13 => self.answer_by_icmp(side, decisions),
            14 => self.coalesce(side),
            15..=17 => self.pass(Duration::from_millis(u64::from(decisions.byte()))),
            18 => self.pass(Duration::from_millis(decisions.pick(&[1000, 300, 10_000]))),
            _ => self.exchange(),
        }
    }

    /// Takes the packets of both hosts, and processes their events.
    fn transmit(&mut self) {
        for side in [0, 1] {
            let path = &mut self.path[side];
            self.hosts[side].drain(&mut |packet, _| {
                if path.len() < MAX_IN_FLIGHT {
                    path.push_back((packet.to_vec(), Rx::default()));
                }
            });
            for event in self.hosts[side].events() {
                if let Event::Closed(id, reason) = event
                    && let Some(stream) = self.streams.iter_mut().find(|stream| stream.ids[side] == Some(id))
                {
                    stream.closed[side] = Some(reason);
                }
            }
        }
        self.accept();
    }

    fn accept(&mut self) {
        let Some(listener) = self.listener else { return };
        while let Some((id, client)) = self.hosts[1].stack.accept(listener) {
            let stream = self.streams.iter_mut().rev().find(|stream| stream.client == client);
            let stream = stream.expect("only this client connects");
            match stream.ids[1] {
                None => stream.ids[1] = Some(id),
                // One end gave up silently and its port was reused, or a cookie arrived once more: this
                // connection is not part of the stream.
                Some(_) => {
                    stream.broken = true;
                    self.hosts[1].stack.abort(id, self.hosts[1].now);
                    self.hosts[1].stack.release(id, self.hosts[1].now);
                }
            }
        }
    }

    fn connect(&mut self, decisions: &mut Decisions<'_>) {
        let config = configs::connect(decisions);
        let data: Vec<u8> = (0..usize::from(decisions.byte()) * 8).map(|offset| content(0, offset)).collect();
        if self.streams.len() == MAX_CONNECTIONS {
            return;
        }
        let (host, to) = (&mut self.hosts[0], SocketAddr::new(address(1), 80));
        if let Ok((id, taken)) = host.stack.connect_with_data(to, &data, &config, host.now) {
            self.streams.push(Stream {
                ids: [Some(id), None],
                client: host.stack.local_addr(id).expect("just opened"),
                written: [taken, 0],
                read: [0; 2],
                at_end: [false; 2],
                closed: [None; 2],
                broken: false,
            });
        }
    }

    fn write(&mut self, side: usize, decisions: &mut Decisions<'_>) {
        let (index, len) = (decisions.below(MAX_CONNECTIONS), usize::from(decisions.short()) % 20_000);
        let Some(stream) = self.streams.get_mut(index) else { return };
        let Some(id) = stream.ids[side] else { return };
        let from = stream.written[side];
        let data: Vec<u8> = (from..from + len).map(|offset| content(side, offset)).collect();
        let host = &mut self.hosts[side];
        // Data of an odd length is passed with ownership.
        let written = match len % 2 {
            0 => host.stack.write(id, &data, host.now),
            _ => host.stack.write_bytes(id, &mut Bytes::from(data), host.now),
        };
        stream.written[side] += written.unwrap_or(0);
    }

    fn read(&mut self, side: usize, decisions: &mut Decisions<'_>) {
        let (index, len) = (decisions.below(MAX_CONNECTIONS), usize::from(decisions.short()));
        if let Some(stream) = self.streams.get_mut(index) {
            read(&mut self.hosts[side], stream, side, len);
        }
    }

    fn read_all(&mut self) {
        for stream in &mut self.streams {
            for side in [0, 1] {
                while read(&mut self.hosts[side], stream, side, 32_768) > 0 {}
            }
        }
    }

    fn shutdown(&mut self, side: usize, decisions: &mut Decisions<'_>) {
        let index = decisions.below(MAX_CONNECTIONS);
        if let Some(id) = self.streams.get(index).and_then(|stream| stream.ids[side]) {
            let host = &mut self.hosts[side];
            let _ = host.stack.shutdown(id, host.now);
        }
    }

    fn break_off(&mut self, side: usize, decisions: &mut Decisions<'_>) {
        let Some(stream) = self.streams.get_mut(decisions.below(MAX_CONNECTIONS)) else { return };
        let Some(id) = stream.ids[side] else { return };
        let host = &mut self.hosts[side];
        stream.broken = true;
        if decisions.one_in(2) {
            host.stack.abort(id, host.now);
        } else {
            host.stack.release(id, host.now);
        }
    }

    fn adjust(&mut self, side: usize, decisions: &mut Decisions<'_>) {
        let index = decisions.below(MAX_CONNECTIONS);
        if let Some(id) = self.streams.get(index).and_then(|stream| stream.ids[side]) {
            let conn = self.hosts[side].stack.conn_mut(id);
            match decisions.below(3) {
                0 => {
                    let nodelay = decisions.one_in(2);
                    if let Some(mut conn) = conn {
                        conn.set_nodelay(nodelay);
                    }
                }
                choice => {
                    if let Some(mut conn) = conn {
                        conn.set_cork(choice == 1);
                    }
                }
            }
        }
    }

    /// Delivers the next packets of `side` to the other host.
    fn deliver(&mut self, side: usize, count: usize) {
        for _ in 0..count {
            let Some((packet, rx)) = self.path[side].pop_front() else { return };
            self.hosts[1 - side].receive(&packet, rx);
        }
    }

    /// Applies a fault of the path to the next packet, or to all of them.
    fn trouble(&mut self, side: usize, decisions: &mut Decisions<'_>) {
        let path = &mut self.path[side];
        let Some(first) = path.front().cloned() else { return };
        match decisions.below(6) {
            0 | 1 => drop(path.drain(..path.len().min(1 + decisions.below(4)))),
            2 => path.push_back(first),
            3 => path.rotate_left(1 + decisions.below(8) % path.len()),
            4 => {
                let (packet, _) = &mut path[0];
                let at = usize::from(decisions.short()) % packet.len();
                packet[at] ^= 1 << decisions.below(8);
                // Two errors may escape the checksum; TCP cannot detect that.
                if segment(packet).is_some() {
                    path.pop_front();
                }
            }
            _ => path.clear(),
        }
    }

    /// Sends an ICMP error about the next packet: too big (then it is lost), or a soft error.
    fn answer_by_icmp(&mut self, side: usize, decisions: &mut Decisions<'_>) {
        let mtu = decisions.pick(&[1400, 1280, 600, 552, 296, 68]);
        let kind = decisions.pick(&[
            IcmpKind::PacketTooBig { mtu },
            IcmpKind::TimeExceeded,
            IcmpKind::SourceQuench,
            IcmpKind::ParameterProblem,
        ]);
        let Some((packet, _)) = self.path[side].front() else { return };
        let mut error = Vec::new();
        emit_icmp([203, 0, 113, 1].into(), packet, kind, &mut error);
        if let IcmpKind::PacketTooBig { mtu } = kind {
            if packet.len() <= mtu as usize {
                return;
            }
            self.path[side].pop_front();
        }
        self.hosts[side].receive(&error, Rx::default());
    }

    /// Joins the next packets of `side` into one if they are contiguous, as a device does.
    fn coalesce(&mut self, side: usize) {
        let path = &mut self.path[side];
        while path.len() >= 2 {
            let Some(joined) = join(&path[0], &path[1]) else { return };
            path.pop_front();
            path[0] = joined;
        }
    }

    fn pass(&mut self, span: Duration) {
        for side in [0, 1] {
            let path = &mut self.path[side];
            self.hosts[side].pass(span, &mut |packet, _| {
                if path.len() < MAX_IN_FLIGHT {
                    path.push_back((packet.to_vec(), Rx::default()));
                }
            });
        }
    }

    /// Delivers all packets until both are idle.
    fn exchange(&mut self) {
        for _ in 0..10_000 {
            self.transmit();
            if self.path.iter().all(VecDeque::is_empty) {
                return;
            }
            for side in [0, 1] {
                self.deliver(side, usize::MAX);
            }
        }
        panic!("two stacks answer each other for ever");
    }

    /// Makes the path work; both ends read and close, and all outstanding data must arrive.
    fn end(mut self) {
        let end = self.hosts[0].now + PATIENCE;
        loop {
            self.run_dry();
            let next = self.hosts.iter().filter_map(|host| host.stack.next_timeout()).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            let span = next.saturating_since(self.hosts[0].now);
            self.pass(span);
        }
        self.judge();
        for host in &mut self.hosts {
            host.pass(Duration::from_secs(86_400), &mut |_, _| ());
        }
        for side in [0, 1] {
            let host = &mut self.hosts[side];
            host.stack.close_listener(self.listener.expect("listens"), host.now);
            for stream in &self.streams {
                if let Some(id) = stream.ids[side] {
                    host.stack.release(id, host.now);
                }
            }
            host.pass(Duration::from_secs(86_400), &mut |_, _| ());
            host.events();
            assert_eq!((host.stack.connections(), host.stack.memory()), (0, 0), "left at {side}");
        }
    }

    /// Opens, closes and reads until nothing more happens.
    fn run_dry(&mut self) {
        let packets = |pair: &Pair| pair.hosts.each_ref().map(|host| host.stack.stats().packets_out);
        loop {
            let before = packets(self);
            self.exchange();
            self.read_all();
            self.close_all();
            self.exchange();
            if packets(self) == before {
                return;
            }
        }
    }

    fn close_all(&mut self) {
        for stream in &self.streams {
            for side in [0, 1] {
                if let Some(id) = stream.ids[side] {
                    let host = &mut self.hosts[side];
                    if let Some(mut conn) = host.stack.conn_mut(id) {
                        conn.set_cork(false);
                    }
                    let _ = host.stack.shutdown(id, host.now);
                }
            }
        }
    }

    /// Checks that each stream is complete, or that an end gave up and reported it.
    fn judge(&self) {
        for stream in &self.streams {
            let gave_up = stream.closed.iter().flatten().any(|reason| {
                matches!(
                    reason,
                    CloseReason::HandshakeTimeout
                        | CloseReason::TimedOut
                        | CloseReason::Unreachable
                        | CloseReason::NetworkUnreachable
                )
            });
            let accepted = stream.ids[1].is_some();
            // A cookie fits only the segment that follows the SYN: if a later one overtakes it, the listener
            // cannot know of the connection, and resets it (Linux does the same).
            let by_cookie = self.hosts[1].stack.stats().syn_cookies_sent > 0;
            // If the memory of the stack is the limit, it makes progress by one segment per timeout.
            let out_of_memory = |host: &Watched| host.stack.stats().refused(Refusal::OutOfMemory) > 0;
            let slow = self.hosts.iter().any(out_of_memory);
            if stream.broken || gave_up || !accepted || by_cookie || slow {
                continue;
            }
            for side in [0, 1] {
                assert_eq!(stream.read[1 - side], stream.written[side], "what {side} wrote: {stream:?}");
                assert!(stream.at_end[1 - side], "the stream of {side} ends: {stream:?}");
                // A FIN whose acknowledgement was lost and that is repeated after the TIME-WAIT, or after its
                // removal, is answered by a reset; the stream is complete even so.
                let reason = stream.closed[side];
                let orderly = matches!(reason, Some(CloseReason::Finished | CloseReason::Reset));
                assert!(orderly, "{side}: {stream:?}");
            }
        }
    }
}

/// Reads up to `len` bytes and compares them; returns their number.
fn read(host: &mut Watched, stream: &mut Stream, side: usize, len: usize) -> usize {
    let Some(id) = stream.ids[side] else { return 0 };
    let mut buffer = vec![0; len];
    match host.stack.read(id, &mut buffer, host.now) {
        Ok(0) => stream.at_end[side] |= len > 0,
        Ok(count) => {
            assert!(!stream.at_end[side], "{count} bytes after the end at {side}: {stream:?}");
            let from = stream.read[side];
            let expected = (from..from + count).map(|offset| content(1 - side, offset));
            let right = buffer[..count].iter().copied().eq(expected);
            assert!(right, "{count} wrong bytes from {from} on at {side}: {stream:?}");
            stream.read[side] += count;
            assert!(stream.read[side] <= stream.written[1 - side], "more was read than written");
            return count;
        }
        Err(ReadError::WouldBlock | ReadError::NoConnection | ReadError::Closed(_)) => {}
    }
    0
}

/// Returns the two packets as one if the second continues the first, like a device with receive offload.
fn join(first: &(Vec<u8>, Rx), second: &(Vec<u8>, Rx)) -> Option<(Vec<u8>, Rx)> {
    let (a, b) = (segment(&first.0)?, segment(&second.0)?);
    let size = first.1.segment_size.map_or(a.payload.len(), usize::from);
    let plain = |flags: Flags| flags.without(Flags::PSH | Flags::FIN) == Flags::ACK;
    let ends = (a.ip.src, a.ip.dst, a.tcp.src_port, a.tcp.dst_port, a.tcp.ack, &a.tcp.options)
        == (b.ip.src, b.ip.dst, b.tcp.src_port, b.tcp.dst_port, b.tcp.ack, &b.tcp.options);
    let continues = a.end() == b.tcp.seq && a.tcp.flags == Flags::ACK && plain(b.tcp.flags);
    let whole = size > 0 && a.payload.len() % size == 0 && (1..=size).contains(&b.payload.len());
    if !ends || !continues || !whole || a.ip.ecn != b.ip.ecn {
        return None;
    }
    let tcp = brisk_wire::TcpHeader { seq: a.tcp.seq, ..b.tcp };
    let mut packet = Vec::new();
    emit(&a.ip, &tcp, &[a.payload, b.payload], ChecksumFill::Full, &mut packet).ok()?;
    Some((packet, Rx { segment_size: u16::try_from(size).ok(), ..Rx::default() }))
}

fn segment(packet: &[u8]) -> Option<Segment<'_>> {
    match parse(packet, ChecksumCheck::Verify) {
        Ok(Packet::Tcp(segment)) => Some(segment),
        Ok(Packet::Icmp(_) | Packet::Other { .. }) | Err(_) => None,
    }
}
