//! A stack whose invariants are checked after each call.
//!
//! - The buffers hold no more than the configuration allows, and there are no more connections.
//! - Transmissions and events end while time stands still.
//! - A timer that was served is not due again at once: no busy loop.
//! - Every packet can be parsed and is no larger than the device accepts; a super-packet can be cut into such
//!   pieces.

use brisk_tcp::config::StackConfig;
use brisk_tcp::stack::{Rx, Transmit};
use brisk_tcp::{Event, Stack};
use brisk_wire::{
    ChecksumCheck, ChecksumFill, Duration, Instant, Packet, Segment, parse, split, split_headers,
};
use bytes::Bytes;

/// Packets of at least this length may be kept by the stack.
const LONG: usize = 16 << 10;
/// Maximum length that an IP header can express.
const MAX_IP_LEN: usize = 65_535;
/// Memory of a connection beyond the memory of the stack: the next segment with its storage.
const NEXT_SEGMENT: usize = 64 << 10;
/// Maximum number of packets that leave while time stands still: more than every buffer in segments of the
/// minimum size, with an acknowledgement each.
const MAX_PACKETS: usize = 20_000;
/// Maximum number of waiting events and observations.
const MAX_EVENTS: usize = 200_000;
/// Number of times that timers may be due again at the same instant.
const MAX_REPEATS: usize = 4;
/// Maximum number of timers that fire in one call of `pass`.
const MAX_TIMERS: usize = 200_000;

/// A stack, its clock and its bounds.
#[derive(Debug)]
pub struct Watched {
    /// The stack.
    pub stack: Stack,
    /// Its clock.
    pub now: Instant,
    /// Maximum bytes in one connection's buffer: the tolerance above `max_buffer_bytes`.
    largest_buffer: usize,
    packet: Vec<u8>,
    /// True to print all packets.
    trace: bool,
}

impl Watched {
    /// Returns a stack with this configuration; `largest_buffer` is the largest `max` of its connections'
    /// buffers.
    pub fn new(config: StackConfig, seed: u64, largest_buffer: usize, now: Instant) -> Self {
        let stack = Stack::new(config, seed).expect("the configuration is valid");
        let trace = std::env::var_os("BRISK_FUZZ_TRACE").is_some();
        Watched { stack, now, largest_buffer, packet: Vec::new(), trace }
    }

    /// Passes a packet to the stack and checks.
    pub fn receive(&mut self, packet: &[u8], rx: Rx) {
        if self.trace {
            println!("{} < {} {rx:?}, {} held", self.now.as_micros(), describe(packet), self.stack.memory());
        }
        let before = self.stack.stats().packets_in;
        // Like a device: a long packet in its own buffer, of which the stack may keep a part.
        match packet.len() < LONG {
            true => self.stack.on_packet(packet, rx, self.now),
            false => self.stack.on_packet_shared(&Bytes::copy_from_slice(packet), rx, self.now),
        }
        assert_eq!(self.stack.stats().packets_in, before + 1);
        self.check();
    }

    /// Checks the invariants.
    pub fn check(&self) {
        let config = self.stack.config();
        let connections = self.stack.connections();
        let max = config.max_buffer_bytes + self.largest_buffer + connections * NEXT_SEGMENT;
        assert!(self.stack.memory() <= max, "{} bytes of memory, {max} at most", self.stack.memory());
        assert!(connections <= config.max_connections, "{connections} connections");
    }

    /// Takes all packets that leave now, and passes each to `wire` as on the wire.
    pub fn drain(&mut self, wire: &mut dyn FnMut(&[u8], &Segment<'_>)) {
        let mut packets = 0;
        while let Some(transmit) = self.stack.poll_transmit(self.now, &mut self.packet) {
            packets += 1;
            assert!(packets < MAX_PACKETS, "packets leave for ever, the last {:02x?}", self.packet);
            if self.trace {
                println!("{} > {} {:?}", self.now.as_micros(), describe(&self.packet), transmit.segment_size);
            }
            examine(&self.packet, &transmit, self.stack.config(), wire);
        }
        self.check();
    }

    /// Takes all events and observations.
    pub fn events(&mut self) -> Vec<Event> {
        let events: Vec<Event> = core::iter::from_fn(|| self.stack.poll_event()).take(MAX_EVENTS).collect();
        assert!(events.len() < MAX_EVENTS, "events come for ever");
        while self.stack.poll_observation().is_some() {}
        events
    }

    /// Returns the time of the next timer, if it is not after `end`.
    pub fn due(&self, end: Instant) -> Option<Instant> {
        self.stack.next_timeout().filter(|at| *at <= end)
    }

    /// Serves the timers that are due now, and takes the packets that they send.
    pub fn run_timers(&mut self, wire: &mut dyn FnMut(&[u8], &Segment<'_>)) {
        let mut repeats = 0;
        while self.due(self.now).is_some() {
            repeats += 1;
            let next = self.stack.next_timeout();
            assert!(repeats <= MAX_REPEATS, "due at {next:?}, again and again at {:?}", self.now);
            self.stack.on_timeout(self.now);
            self.check();
            self.drain(wire);
        }
    }

    /// Advances the clock and serves every timer at its time.
    pub fn pass(&mut self, span: Duration, wire: &mut dyn FnMut(&[u8], &Segment<'_>)) {
        let end = self.now + span;
        self.drain(wire);
        let mut timers = 0;
        while let Some(next) = self.due(end) {
            timers += 1;
            assert!(timers < MAX_TIMERS, "timers fire for ever, the next at {next:?} of {end:?}");
            self.now = self.now.max(next);
            self.run_timers(wire);
        }
        self.now = end;
    }
}

/// Formats a packet as one line.
fn describe(packet: &[u8]) -> String {
    match parse(packet, ChecksumCheck::Trust) {
        Ok(Packet::Tcp(Segment { ip, tcp, payload })) => format!(
            "{}:{} {}:{} {} {}+{} ack {} win {} urg {} {:?}",
            ip.src,
            tcp.src_port,
            ip.dst,
            tcp.dst_port,
            tcp.flags,
            tcp.seq.0,
            payload.len(),
            tcp.ack.0,
            tcp.window,
            tcp.urgent,
            tcp.options
        ),
        other => format!("{other:?}"),
    }
}

/// Checks a packet of the stack, in pieces as on the wire.
fn examine(
    packet: &[u8],
    transmit: &Transmit,
    config: &StackConfig,
    wire: &mut dyn FnMut(&[u8], &Segment<'_>),
) {
    assert_eq!(transmit.len, packet.len());
    if packet.len() > MAX_IP_LEN {
        return examine_long(packet, transmit, config, wire);
    }
    let check = if transmit.partial_checksum { ChecksumCheck::Trust } else { ChecksumCheck::Verify };
    let Ok(Packet::Tcp(whole)) = parse(packet, check) else { panic!("sent {packet:02x?}") };
    assert!(whole.payload.len() <= config.max_super_segment.max(u32::from(config.mtu)) as usize);
    assert_ne!(transmit.segment_size, Some(0), "a super-packet of segments of nothing");
    let single = config.max_super_segment == 0;
    assert!(!single || transmit.segment_size.is_none(), "a super-packet to a device that takes none");
    let size = transmit.segment_size.unwrap_or(u16::MAX);
    split(packet, size, ChecksumFill::Full, &mut |piece| {
        let Ok(Packet::Tcp(segment)) = parse(piece, ChecksumCheck::Verify) else {
            panic!("sent {piece:02x?}");
        };
        assert!(piece.len() <= usize::from(config.mtu), "{} bytes over {}", piece.len(), config.mtu);
        wire(piece, &segment);
    });
}

/// Checks a super-packet that no length field can express: in pieces of 64 kB, as a device passes it to a
/// kernel that does not accept it whole.
fn examine_long(
    packet: &[u8],
    transmit: &Transmit,
    config: &StackConfig,
    wire: &mut dyn FnMut(&[u8], &Segment<'_>),
) {
    let is_v4 = packet[0] >> 4 == 4;
    let (ip_len, length) = if is_v4 { (20, &packet[2..4]) } else { (40, &packet[4..6]) };
    assert_eq!((length, transmit.partial_checksum), (&[0, 0][..], true));
    let (headers, payload) = packet.split_at(ip_len + usize::from(packet[ip_len + 12] >> 4) * 4);
    assert!(payload.len() <= config.max_super_segment as usize, "{} bytes of payload", payload.len());
    let size = transmit.segment_size.expect("no segment is that long");
    let max = (MAX_IP_LEN - headers.len()) / usize::from(size) * usize::from(size);
    split_headers(headers, payload.len(), size, max, &mut |headers, range| {
        let piece = [headers, &payload[range]].concat();
        let mut of_piece = *transmit;
        of_piece.len = piece.len();
        examine(&piece, &of_piece, config, wire);
    });
}
