//! The datagram: a rearranged TCP header without the fields that UDP already has.
//!
//! The idea and the order come from draft-cheshire-tcp-over-udp. The word with the data offset comes first:
//! its first four bits are 5 or more, whereas STUN on the same port begins with two zero bits. The draft
//! carries one connection per pair of UDP ports. Here many connections share one pair, and so one NAT
//! mapping; therefore the datagram includes the TCP ports (four bytes more).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------+-------+-+-+-+-+-+-+-+-+-------------------------------+
//! | offset| rsvd A|C E 0 A P R S F|            window             |  0..4 (TCP 12..16)
//! +-------+-------+-+-+-+-+-+-+-+-+-------------------------------+
//! |                        sequence number                        |  4..8 (TCP 4..8)
//! +---------------------------------------------------------------+
//! |                     acknowledgment number                     |  8..12 (TCP 8..12)
//! +-------------------------------+-------------------------------+
//! |          source port          |       destination port        |  12..16 (TCP 0..4)
//! +-------------------------------+-------------------------------+
//! |                 options (offset * 4 - 20 bytes)               |  16..
//! +---------------------------------------------------------------+
//! |                             data                              |
//! +---------------------------------------------------------------+
//! ```
//!
//! `offset` is the data offset of the TCP header, 5 to 15. The reserved bits and all flags are unchanged
//! except URG (`0` above): there is no urgent pointer, so both sides clear URG. Checksum and length are those
//! of UDP. Of the IP header only the ECN bits are carried, in the outer header.

use std::net::Ipv6Addr;
use std::ops::Range;

use brisk_device::MAX_SUPER;
use bytes::Bytes;

use crate::buffers::Buffers;
use crate::headers::{CWR, FIN, Headers, PSH};

pub(crate) const PORTS: u32 = 12;
/// Length of the header without options, bytes.
pub const HEADER_LEN: usize = 16;
/// Length of the IPv6 and TCP headers of the stack's packet, without options.
pub(super) const INNER_HEADERS: usize = 60;
/// Maximum length of the packet that is built from datagrams. It exceeds the maximum for a run, because the
/// headers of IP and TCP are longer than those of the datagram and UDP.
const MAX_PACKET: usize = MAX_SUPER + 128;
/// Offset of the flags in that packet.
const INNER_FLAGS: usize = 53;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const URG: u8 = 0x20;
/// The reserved bit that marks a copy (Proactive), in the byte of the data offset.
const COPY_BIT: u8 = 0x08;

/// A TCP packet of the stack, before it becomes datagrams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing<'a> {
    tcp: &'a [u8],
    /// Two parts, because the payload may lie in a ring buffer.
    payload: [&'a [u8]; 2],
    pub(super) dst: Ipv6Addr,
    /// ECN bits of the inner IP header.
    pub(super) ecn: u8,
}

impl<'a> Outgoing<'a> {
    /// Parses a packet; `None` unless it is TCP over IPv6.
    pub(super) fn parse(packet: &'a [u8]) -> Option<Outgoing<'a>> {
        let headers = Headers::of(packet)?;
        let (head, payload) = packet.split_at_checked(headers.total())?;
        Outgoing::gather(head, [payload, &[]])
    }

    /// Like [`parse`](Outgoing::parse), with separate payload.
    pub(super) fn gather(head: &'a [u8], payload: [&'a [u8]; 2]) -> Option<Outgoing<'a>> {
        let headers = Headers::of(head).filter(|headers| headers.v6 && headers.total() == head.len())?;
        let (_, tcp) = head.split_at_checked(headers.ip_len)?;
        let dst: [u8; 16] = head.get(24..40)?.try_into().ok()?;
        Some(Outgoing { tcp, payload, dst: dst.into(), ecn: head.get(1)? >> 4 & 3 })
    }

    fn payload_len(&self) -> usize {
        self.payload[0].len() + self.payload[1].len()
    }

    /// Returns the length of the packet with its IP header, bytes.
    pub(super) fn packet_len(&self) -> usize {
        40 + self.tcp.len() + self.payload_len()
    }

    /// Returns the number of datagrams with `segment_size` bytes of payload each.
    pub(super) fn pieces(&self, segment_size: Option<u16>) -> usize {
        self.payload_len().div_ceil(self.step(segment_size)).max(1)
    }

    /// Returns the length of datagram `index`.
    pub(super) fn piece_len(&self, segment_size: Option<u16>, index: usize) -> usize {
        HEADER_LEN + self.tcp.len().saturating_sub(20) + self.piece(segment_size, index).len()
    }

    /// Returns how many of the [pieces](Outgoing::pieces) have the length of the first.
    pub(super) fn full_pieces(&self, segment_size: Option<u16>) -> usize {
        (self.payload_len() / self.step(segment_size)).max(1)
    }

    /// Appends datagrams of the pieces in `indices` to `out`. With `twice`, each is followed by its marked
    /// copy, and the indices count both. FIN and PSH are on the last piece, CWR on the first.
    pub(super) fn write_pieces(
        &self,
        segment_size: Option<u16>,
        twice: bool,
        indices: Range<usize>,
        out: &mut Vec<u8>,
    ) {
        let Some((&fixed, options)) = self.tcp.split_first_chunk::<20>() else { return };
        let [s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, offset, flags, w0, w1, ..] = fixed;
        let (first, last) = (u32::from_be_bytes([q0, q1, q2, q3]), self.pieces(segment_size) - 1);
        for index in indices {
            let (index, copy) = if twice { (index / 2, index % 2 == 1) } else { (index, false) };
            let piece = self.piece(segment_size, index);
            let without = URG | if index > 0 { CWR } else { 0 } | if index < last { FIN | PSH } else { 0 };
            let (offset, flags) = (if copy { offset | COPY_BIT } else { offset }, flags & !without);
            let [q0, q1, q2, q3] = first.wrapping_add(piece.start as u32).to_be_bytes();
            out.extend_from_slice(&[offset, flags, w0, w1, q0, q1, q2, q3, a0, a1, a2, a3, s0, s1, d0, d1]);
            out.extend_from_slice(options);
            self.payload_in(piece).into_iter().for_each(|part| out.extend_from_slice(part));
        }
    }

    /// Returns a range of the payload in two parts.
    fn payload_in(&self, range: Range<usize>) -> [&'a [u8]; 2] {
        let [first, second] = self.payload;
        let split = first.len();
        let (start, end) = (range.start.saturating_sub(split), range.end.saturating_sub(split));
        [
            first.get(range.start.min(split)..range.end.min(split)).unwrap_or_default(),
            second.get(start..end).unwrap_or_default(),
        ]
    }

    /// Returns the range of datagram `index` in the payload.
    fn piece(&self, segment_size: Option<u16>, index: usize) -> Range<usize> {
        let (step, len) = (self.step(segment_size), self.payload_len());
        let start = index.saturating_mul(step).min(len);
        start..start.saturating_add(step).min(len)
    }

    fn step(&self, segment_size: Option<u16>) -> usize {
        segment_size.filter(|&size| size > 0).map_or(usize::MAX, usize::from)
    }
}

/// A datagram with a valid header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming<'a> {
    header: &'a [u8; HEADER_LEN],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Incoming<'a> {
    pub(super) fn parse(datagram: &'a [u8]) -> Option<Incoming<'a>> {
        let (header, rest) = datagram.split_first_chunk::<HEADER_LEN>()?;
        let options_len = (usize::from(header[0] >> 4) * 4).checked_sub(20)?;
        let (options, payload) = rest.split_at_checked(options_len)?;
        Some(Incoming { header, options, payload })
    }

    fn seq(&self) -> u32 {
        let [_, _, _, _, q0, q1, q2, q3, ..] = *self.header;
        u32::from_be_bytes([q0, q1, q2, q3])
    }

    fn flags(&self) -> u8 {
        self.header[1]
    }
}

/// The IPv6 packet for the stack, built from one datagram or from a run. A run is a sequence of datagrams
/// that a sender with TSO would have sent as one packet.
#[derive(Debug)]
pub(super) struct Assembly {
    buffers: Buffers,
    /// Length of the packet so far.
    len: usize,
    /// Header of the run's first datagram.
    first: [u8; HEADER_LEN],
    /// Payload length of the run's first datagram.
    segment_size: usize,
    /// Sequence number of the next datagram of the run.
    next_seq: u32,
    /// True if the run has its last datagram.
    closed: bool,
}

impl Default for Assembly {
    fn default() -> Self {
        Assembly {
            buffers: Buffers::of(MAX_PACKET),
            len: 0,
            first: [0; HEADER_LEN],
            segment_size: 0,
            next_seq: 0,
            closed: true,
        }
    }
}

impl Assembly {
    /// Appends bytes to the packet; returns false if they do not fit.
    fn append(&mut self, bytes: &[u8]) -> bool {
        let Some(room) = self.buffers.current().get_mut(self.len..self.len + bytes.len()) else {
            return false;
        };
        room.copy_from_slice(bytes);
        self.len += bytes.len();
        true
    }

    pub(super) fn start(&mut self, datagram: &Incoming<'_>, src: Ipv6Addr, dst: Ipv6Addr, ecn: u8) {
        let Incoming { header, options, payload } = datagram;
        let [offset, flags, w0, w1, q0, q1, q2, q3, a0, a1, a2, a3, s0, s1, d0, d1] = **header;
        self.len = 0;
        // Version, traffic class, flow label; the length, written at the end; next header TCP, hop limit 64.
        self.append(&[0x60, ecn << 4, 0, 0, 0, 0, 6, 64]);
        self.append(&src.octets());
        self.append(&dst.octets());
        self.append(&[s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, offset, flags & !URG, w0, w1]);
        // Checksum and urgent pointer. UDP has already verified the datagram, and the device reports that to
        // the stack.
        self.append(&[0; 4]);
        self.append(options);
        self.append(payload);
        self.first = **header;
        self.segment_size = payload.len();
        self.next_seq = datagram.seq().wrapping_add(payload.len() as u32);
        // FIN, SYN, RST and PSH end a run, as in the kernel's GRO; so does a datagram without data.
        self.closed = payload.is_empty() || datagram.flags() & (FIN | SYN | RST | PSH) != 0;
    }

    /// True if the datagram is the copy (Proactive) of a datagram of the run. A run of copies then begins
    /// with it.
    pub(super) fn is_followed_by(&self, datagram: &Incoming<'_>) -> bool {
        let Incoming { header, payload, .. } = datagram;
        let behind = self.next_seq.wrapping_sub(datagram.seq()) as usize;
        header[0] == self.first[0] | COPY_BIT
            && self.first[0] & COPY_BIT == 0
            && header[8..] == self.first[8..]
            && !payload.is_empty()
            && (1..=self.len).contains(&behind)
    }

    /// Appends the datagram and returns true if it continues the run: contiguous, and equal except for
    /// sequence number, PSH and FIN.
    pub(super) fn extend(&mut self, datagram: &Incoming<'_>) -> bool {
        let Incoming { header, options, payload } = datagram;
        let len = payload.len();
        let fits = len > 0 && len <= self.segment_size && self.len + len <= MAX_SUPER;
        if self.closed || !fits || datagram.seq() != self.next_seq {
            return false;
        }
        let same = header[..1] == self.first[..1]
            && (header[1] ^ self.first[1]) & !(FIN | PSH | URG) == 0
            && header[2..4] == self.first[2..4]
            && header[8..] == self.first[8..]
            && self.buffers.current().get(INNER_HEADERS..INNER_HEADERS + options.len()) == Some(*options);
        if !same {
            return false;
        }
        if let Some(flags) = self.buffers.current().get_mut(INNER_FLAGS) {
            *flags |= datagram.flags() & (FIN | PSH);
        }
        self.closed = len < self.segment_size || datagram.flags() & (FIN | PSH) != 0;
        self.next_seq = self.next_seq.wrapping_add(len as u32);
        self.append(payload)
    }

    /// Completes the length and passes the packet to `sink`, with the segment size if it is a super-packet,
    /// and with its buffer if `sink` may keep that.
    pub(super) fn finish(&mut self, sink: impl FnOnce(&[u8], Option<&Bytes>, Option<u16>)) {
        let len = self.len.saturating_sub(40).min(usize::from(u16::MAX)) as u16;
        if let Some(field) = self.buffers.current().get_mut(4..6) {
            field.copy_from_slice(&len.to_be_bytes());
        }
        let tcp_len = usize::from(self.first[0] >> 4) * 4;
        let payload = self.len.saturating_sub(40 + tcp_len);
        let segment_size = (payload > self.segment_size).then_some(self.segment_size as u16);
        self.buffers.hand_over(0..self.len, |packet, shared| sink(packet, shared, segment_size));
        self.len = 0;
        self.closed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Tcp, pattern};

    fn pieces(packet: &[u8], segment_size: Option<u16>) -> Vec<Vec<u8>> {
        let outgoing = Outgoing::parse(packet).unwrap();
        (0..outgoing.pieces(segment_size))
            .map(|index| {
                let mut piece = Vec::new();
                outgoing.write_pieces(segment_size, false, index..index + 1, &mut piece);
                assert_eq!(piece.len(), outgoing.piece_len(segment_size, index));
                piece
            })
            .collect()
    }

    fn received(datagram: &[u8], like: &Tcp) -> Assembly {
        let mut assembly = Assembly::default();
        let (src, dst) = addresses(like);
        assembly.start(&Incoming::parse(datagram).unwrap(), src, dst, like.ecn);
        assembly
    }

    fn addresses(like: &Tcp) -> (Ipv6Addr, Ipv6Addr) {
        match (like.src, like.dst) {
            (std::net::IpAddr::V6(src), std::net::IpAddr::V6(dst)) => (src, dst),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_header_becomes_the_documented_bytes() {
        let tcp = Tcp {
            ports: (0x1112, 0x2122),
            seq: 0x3132_3334,
            ack: 0x4142_4344,
            window: 0x5152,
            reserved: 0x0F,
            flags: 0xFF,
            options: vec![0x61; 4],
            payload: vec![0x71; 2],
            ..Tcp::v6()
        };
        let expected = [
            0x6F, 0xDF, 0x51, 0x52, 0x31, 0x32, 0x33, 0x34, 0x41, 0x42, 0x43, 0x44, 0x11, 0x12, 0x21, 0x22,
            0x61, 0x61, 0x61, 0x61, 0x71, 0x71,
        ];
        assert_eq!(pieces(&tcp.packet(), None), [expected]);
    }

    #[test]
    fn everything_but_urgent_passes_a_round_trip() {
        let tcp = Tcp {
            reserved: 0x0B,
            flags: 0xDB,
            seq: u32::MAX,
            ack: 7,
            options: (0..40).collect(),
            payload: pattern(1200),
            ecn: 3,
            ..Tcp::v6()
        };
        let datagram = pieces(&tcp.packet(), None).concat();
        let mut assembly = received(&datagram, &tcp);
        assembly.finish(|packet, shared, segment_size| {
            assert_eq!((segment_size, shared), (None, None));
            assert_eq!(format!("{:?}", Tcp::parse(packet)), format!("{tcp:?}"));
            assert_eq!(packet.len(), tcp.packet().len());
        });
    }

    #[test]
    fn a_super_packet_is_cut_and_put_together_again() {
        let tcp = Tcp {
            flags: 0x99,
            seq: u32::MAX - 1500,
            options: vec![1; 12],
            payload: pattern(3500),
            ..Tcp::v6()
        };
        let datagrams = pieces(&tcp.packet(), Some(1000));
        let flags: Vec<u8> = datagrams.iter().map(|datagram| datagram[1]).collect();
        assert_eq!(flags, [0x90, 0x10, 0x10, 0x19]);
        let lengths: Vec<usize> = datagrams.iter().map(Vec::len).collect();
        assert_eq!(lengths, [1028, 1028, 1028, 528]);
        // Only the first datagram has CWR, so the second does not join it.
        let mut assembly = received(&datagrams[1], &tcp);
        assert!(assembly.extend(&Incoming::parse(&datagrams[2]).unwrap()));
        assert!(assembly.extend(&Incoming::parse(&datagrams[3]).unwrap()));
        assert!(!assembly.extend(&Incoming::parse(&datagrams[3]).unwrap()));
        assembly.finish(|packet, _, segment_size| {
            assert_eq!(segment_size, Some(1000));
            let whole = Tcp::parse(packet);
            assert_eq!((whole.flags, whole.seq), (0x19, tcp.seq.wrapping_add(1000)));
            assert!(whole.payload == tcp.payload[1000..]);
        });
        assert!(!assembly.extend(&Incoming::parse(&datagrams[2]).unwrap()), "the run was delivered");
    }

    #[test]
    fn separate_payload_gives_the_same_datagrams() {
        let packet = Tcp { payload: pattern(3500), ..Tcp::v6() }.packet();
        let (head, payload) = packet.split_at(packet.len() - 3500);
        let whole = pieces(&packet, Some(1000));
        for split in [0, 1, 999, 1000, 1001, 3499, 3500] {
            let (first, second) = payload.split_at(split);
            let outgoing = Outgoing::gather(head, [first, second]).unwrap();
            assert_eq!((outgoing.pieces(Some(1000)), outgoing.packet_len()), (4, packet.len()));
            for (index, expected) in whole.iter().enumerate() {
                let mut piece = Vec::new();
                outgoing.write_pieces(Some(1000), false, index..index + 1, &mut piece);
                assert!(piece == *expected, "datagram {index} of a payload split at {split}");
            }
        }
        assert!(Outgoing::gather(&packet, [&[], &[]]).is_none(), "payload behind the headers");
    }

    #[test]
    fn datagram_of_maximum_length_passes_whole() {
        let tcp = Tcp { options: vec![1; 40], payload: pattern(65_507 - HEADER_LEN - 40), ..Tcp::v6() };
        let mut assembly = received(&pieces(&tcp.packet(), None).concat(), &tcp);
        assembly.finish(|packet, _, _| assert!(Tcp::parse(packet).payload == tcp.payload));
    }

    #[test]
    fn a_long_run_may_be_kept() {
        let tcp = Tcp { payload: pattern(40_000), ..Tcp::v6() };
        let datagrams = pieces(&tcp.packet(), Some(1000));
        let mut assembly = received(&datagrams[0], &tcp);
        for datagram in &datagrams[1..] {
            assert!(assembly.extend(&Incoming::parse(datagram).unwrap()));
        }
        let mut kept = None;
        assembly.finish(|_, shared, _| kept = shared.cloned());
        let other = Tcp { payload: vec![0; 100], ..tcp.clone() };
        let (src, dst) = addresses(&tcp);
        assembly.start(&Incoming::parse(&pieces(&other.packet(), None).concat()).unwrap(), src, dst, 0);
        assert!(Tcp::parse(&kept.unwrap()).payload == tcp.payload, "the kept buffer has changed");
    }

    #[test]
    fn datagrams_that_differ_are_not_merged() {
        let first = Tcp { payload: pattern(100), ..Tcp::v6() };
        let next = Tcp { seq: first.seq + 100, ..first.clone() };
        let mergeable = |second: &Tcp| {
            let mut assembly = received(&pieces(&first.packet(), None).concat(), &first);
            assembly.extend(&Incoming::parse(&pieces(&second.packet(), None).concat()).unwrap())
        };
        assert!(mergeable(&next));
        assert!(mergeable(&Tcp { flags: 0x19, ..next.clone() }));
        for other in [
            Tcp { seq: first.seq, ..next.clone() },
            Tcp { ack: 1, ..next.clone() },
            Tcp { window: 1, ..next.clone() },
            Tcp { ports: (1, 2), ..next.clone() },
            Tcp { reserved: 1, ..next.clone() },
            Tcp { flags: 0x50, ..next.clone() },
            Tcp { options: vec![1; 4], ..next.clone() },
            Tcp { payload: pattern(101), ..next.clone() },
            Tcp { payload: Vec::new(), ..next.clone() },
        ] {
            assert!(!mergeable(&other), "{other:?}");
        }
    }

    #[test]
    fn foreign_datagram_is_not_parsed() {
        let datagram = pieces(&Tcp { options: vec![1; 40], ..Tcp::v6() }.packet(), None).concat();
        assert!(Incoming::parse(&datagram).is_some());
        for len in 0..datagram.len() {
            assert!(Incoming::parse(&datagram[..len]).is_none());
        }
        for first in 0..=0x4F {
            assert!(Incoming::parse(&[first; 100]).is_none());
        }
        assert!(Outgoing::parse(&Tcp::v4().packet()).is_none());
    }
}
