//! The host under test: a stack, its virtual clock, and what it has sent and nobody has looked at yet.

use std::collections::VecDeque;
use std::net::SocketAddr;

use brisk_tcp::stack::{Rx, Stack};
use brisk_tcp::{Event, StackConfig};
use brisk_wire::{
    ChecksumCheck, ChecksumFill, Instant, IpMeta, Packet, TcpHeader, parse_with, split, tcp_offset,
};

/// Where the clock of a script starts: not at the origin, so that nothing is "long ago" by accident.
pub(crate) const START: Instant = Instant::from_millis(1_000_000);
/// Packets and wake-ups at one instant beyond which the stack is stuck.
const MOST_AT_ONCE: u32 = 100_000;

/// A segment that the stack sent.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) at: Instant,
    pub(crate) ip: IpMeta,
    pub(crate) tcp: TcpHeader,
    /// The option area as on the wire.
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Sent {
    /// Our end of the connection.
    pub(crate) fn local(&self) -> SocketAddr {
        SocketAddr::new(self.ip.src, self.tcp.src_port)
    }

    /// The peer's end.
    pub(crate) fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.ip.dst, self.tcp.dst_port)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) stack: Stack,
    pub(crate) now: Instant,
    /// Segments in the order in which they left.
    pub(crate) sent: VecDeque<Sent>,
    /// Events that the sockets have not seen.
    pub(crate) events: Vec<Event>,
}

impl Host {
    pub(crate) fn new(config: StackConfig, seed: u64) -> Result<Host, String> {
        let stack = Stack::new(config, seed).map_err(|error| error.to_string())?;
        Ok(Host { stack, now: START, sent: VecDeque::new(), events: Vec::new() })
    }

    /// Microseconds of script time now.
    pub(crate) fn micros(&self) -> i64 {
        micros(self.now)
    }

    /// Runs the next timer if it is due before `end`, or at it with `inclusive`; false if there is none.
    pub(crate) fn step(&mut self, end: Instant, inclusive: bool) -> Result<bool, String> {
        let due = self.stack.next_timeout().filter(|&next| next < end || (inclusive && next == end));
        let Some(next) = due else { return Ok(false) };
        self.now = self.now.max(next);
        self.stack.on_timeout(self.now);
        if self.stack.next_timeout().is_some_and(|again| again <= self.now) {
            self.drain()?;
            if self.stack.next_timeout().is_some_and(|again| again <= self.now) {
                return Err("the stack wants to be woken at once for ever: a bug of the stack".to_owned());
            }
        }
        self.drain()?;
        Ok(true)
    }

    /// Hands a packet to the stack.
    pub(crate) fn arrive(&mut self, packet: &[u8]) -> Result<(), String> {
        self.stack.on_packet(packet, Rx::default(), self.now);
        self.drain()
    }

    /// Takes what the stack wants to send and tell now.
    pub(crate) fn drain(&mut self) -> Result<(), String> {
        let mut packet = Vec::new();
        let mut count = 0;
        while let Some(transmit) = self.stack.poll_transmit(self.now, &mut packet) {
            count += 1;
            if count > MOST_AT_ONCE {
                return Err("the stack sends for ever at one instant: a bug of the stack".to_owned());
            }
            match transmit.segment_size {
                None if !transmit.partial_checksum => self.record(&packet)?,
                size => {
                    let mut pieces = Vec::new();
                    split(&packet, size.unwrap_or(u16::MAX), ChecksumFill::Full, &mut |piece| {
                        pieces.push(piece.to_vec());
                    });
                    pieces.iter().try_for_each(|piece| self.record(piece))?;
                }
            }
        }
        while let Some(event) = self.stack.poll_event() {
            self.events.push(event);
        }
        Ok(())
    }

    fn record(&mut self, packet: &[u8]) -> Result<(), String> {
        let profile = self.stack.config().option_profile;
        let parsed = parse_with(packet, ChecksumCheck::Verify, &profile);
        let Ok(Packet::Tcp(segment)) = parsed else {
            return Err(format!("the stack sent what is no TCP segment: {parsed:?}"));
        };
        let options = option_area(packet).unwrap_or_default().to_vec();
        let (ip, tcp, payload) = (segment.ip, segment.tcp, segment.payload.to_vec());
        self.sent.push_back(Sent { at: self.now, ip, tcp, options, payload });
        Ok(())
    }
}

/// Microseconds of script time at `at`.
pub(crate) fn micros(at: Instant) -> i64 {
    i64::try_from(at.as_micros()).unwrap_or(i64::MAX).saturating_sub(START.as_micros() as i64)
}

/// The instant `micros` of script time; times before the start count as the start.
pub(crate) fn instant(micros: i64) -> Instant {
    let micros = u64::try_from(micros).unwrap_or(0);
    Instant::from_micros(START.as_micros().saturating_add(micros))
}

/// The bytes between the fixed TCP header and the payload.
pub(super) fn option_area(packet: &[u8]) -> Option<&[u8]> {
    let tcp = packet.get(tcp_offset(packet)?..)?;
    let header_len = usize::from(tcp.get(12)? >> 4) * 4;
    tcp.get(20..header_len)
}
