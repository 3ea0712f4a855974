//! Segmentation in software, for devices without TSO.
//!
//! The stack combines runs of equal segments of one connection into a super-packet. This module cuts it
//! again: the sequence number advances, FIN and PSH stay on the last segment and CWR on the first, the IPv4
//! identification counts up, and lengths and checksums are rewritten. All other fields, options included, are
//! the same on each segment.

use alloc::vec::Vec;
use core::ops::Range;

use crate::ip::{self, IpHeader, Strictness, protocol};
use crate::packet::{ChecksumFill, fill_tcp_checksum, header_len};
use crate::tcp::Flags;

/// Cuts `packet` into segments of at most `segment_size` payload bytes, and passes each to `emit`, in order.
/// Their checksums are of the kind `sum`, whatever the packet's own checksum field contains.
///
/// A packet is not cut if it fits one segment, or if `segment_size` is zero. A packet with SYN, RST or URG is
/// never a super-packet, so it is not cut either. Packets of other protocols are not changed.
///
/// With Accurate ECN, CWR is part of a counter. So the caller must cut a run of segments with CWR itself.
pub fn split(packet: &[u8], segment_size: u16, sum: ChecksumFill, emit: &mut dyn FnMut(&[u8])) {
    cut(packet, segment_size, sum, false, emit);
}

/// Like [`split`], but emits each segment twice. [`Flags::R4`] marks the second instance (Proactive).
pub fn split_twice(packet: &[u8], segment_size: u16, sum: ChecksumFill, emit: &mut dyn FnMut(&[u8])) {
    cut(packet, segment_size, sum, true, emit);
}

/// Cuts a super-packet whose payload of `payload_len` bytes is stored separately. `headers` are its headers;
/// their length field is ignored. `segment_size` is the payload length of its segments. Each resulting
/// super-packet has at most `piece` payload bytes and a partial checksum. `emit` receives its headers and the
/// range of its payload.
///
/// `piece` must be a multiple of `segment_size`, so that pieces begin where segments do. Headers that are not
/// TCP are handed over unchanged with the whole payload.
pub fn split_headers(
    headers: &[u8],
    payload_len: usize,
    segment_size: u16,
    piece: usize,
    emit: &mut dyn FnMut(&[u8], Range<usize>),
) {
    let mut out = headers.to_vec();
    // A packet must have its announced length to be parsed.
    put_length(&mut out, headers.len());
    let whole = out.clone();
    let Some(plan) = Plan::of(&whole) else { return emit(headers, 0..payload_len) };
    let segments = piece / usize::from(segment_size.max(1));
    let pieces = payload_len.div_ceil(piece.max(1)).max(1);
    for index in 0..pieces {
        let start = index * piece;
        let len = payload_len.saturating_sub(start).min(piece);
        plan.adjust(&mut out, index * segments, start, index + 1 == pieces);
        plan.finish(&mut out, len, ChecksumFill::Partial);
        emit(&out, start..start + len);
    }
}

fn cut(packet: &[u8], segment_size: u16, sum: ChecksumFill, twice: bool, emit: &mut dyn FnMut(&[u8])) {
    let Some(plan) = Plan::of(packet) else { return emit(packet) };
    let size = usize::from(segment_size);
    let whole = size == 0 || plan.payload.len() <= size || plan.indivisible();
    let pieces = if whole { 1 } else { plan.payload.len().div_ceil(size) };

    let mut out = Vec::with_capacity(plan.headers.len() + size.min(plan.payload.len()));
    for index in 0..pieces {
        let start = index * size;
        let end = if whole { plan.payload.len() } else { plan.payload.len().min(start + size) };
        out.clear();
        out.extend_from_slice(plan.headers);
        out.extend_from_slice(plan.payload.get(start..end).unwrap_or_default());
        plan.adjust(&mut out, index, start, index + 1 == pieces);
        plan.finish(&mut out, 0, sum);
        emit(&out);
        if twice {
            plan.mark(&mut out);
            plan.finish(&mut out, 0, sum);
            emit(&out);
        }
    }
}

/// A super-packet and the offsets of its parts.
struct Plan<'a> {
    ip: IpHeader,
    headers: &'a [u8],
    payload: &'a [u8],
    seq: u32,
    flags: Flags,
}

impl<'a> Plan<'a> {
    fn of(packet: &'a [u8]) -> Option<Plan<'a>> {
        let ip =
            IpHeader::parse(packet, Strictness::Peeked).ok().filter(|ip| ip.protocol == protocol::TCP)?;
        let packet = packet.get(..ip.end)?;
        let (headers, payload) = packet.split_at_checked(header_len(packet)?)?;
        let tcp = headers.get(ip.payload_at..)?;
        let seq = u32::from_be_bytes(*tcp.get(4..)?.first_chunk()?);
        let flags = Flags(u16::from_be_bytes(*tcp.get(12..)?.first_chunk()?) & Flags::ALL.0);
        Some(Plan { ip, headers, payload, seq, flags })
    }

    fn indivisible(&self) -> bool {
        self.flags.intersects(Flags::SYN | Flags::RST | Flags::URG)
    }

    /// Sets sequence number, flags and identification of segment `index` or of a run that begins with it. Its
    /// payload starts at `start`.
    fn adjust(&self, out: &mut [u8], index: usize, start: usize, is_last: bool) {
        let tcp = self.ip.payload_at;
        let mut flags = self.flags;
        if index > 0 {
            flags.remove(Flags::CWR);
        }
        if !is_last {
            flags.remove(Flags::FIN | Flags::PSH);
        }
        put(out, tcp + 4, &self.seq.wrapping_add(start as u32).to_be_bytes());
        let offset = out.get(tcp + 12).map_or(0, |byte| u16::from(byte >> 4) << 12);
        put(out, tcp + 12, &(offset | flags.0).to_be_bytes());
        if self.ip.meta.src.is_ipv4() {
            put(out, 4, &self.ip.meta.identification.wrapping_add(index as u16).to_be_bytes());
        }
    }

    /// Marks a segment as a copy.
    fn mark(&self, out: &mut [u8]) {
        let at = self.ip.payload_at + 12;
        let marked = out.get(at).map(|byte| byte | (Flags::R4.0 >> 8) as u8);
        put(out, at, marked.as_slice());
    }

    /// Sets lengths and checksums of a packet, of which `elsewhere` bytes are not in `out`. If there are such
    /// bytes, `sum` must be partial.
    fn finish(&self, out: &mut [u8], elsewhere: usize, sum: ChecksumFill) {
        let tcp = self.ip.payload_at;
        put_length(out, out.len() + elsewhere);
        if self.ip.meta.src.is_ipv4() {
            ip::fill_v4_checksum(out.get_mut(..tcp).unwrap_or_default());
        }
        fill_tcp_checksum(&self.ip.meta, out.get_mut(tcp..).unwrap_or_default(), elsewhere, sum);
    }
}

/// Writes the length field of an IP header for a packet of `len` bytes.
fn put_length(out: &mut [u8], len: usize) {
    match out.first().map(|byte| byte >> 4) {
        Some(4) => put(out, 2, &ip::length_field(len).to_be_bytes()),
        Some(6) => put(out, 4, &ip::length_field(len.saturating_sub(ip::IPV6_HEADER_LEN)).to_be_bytes()),
        _ => {}
    }
}

/// Overwrites bytes at `at`. [`Plan::of`] has checked that the headers are complete.
fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(field) = out.get_mut(at..at + bytes.len()) {
        field.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChecksumCheck, IpMeta, Packet, Segment, SeqNum, TcpHeader, Timestamps};
    use proptest::prelude::*;
    use std::vec;

    fn ipv4() -> IpMeta {
        let identification = 0xffff;
        IpMeta { identification, ..IpMeta::new([192, 0, 2, 1].into(), [198, 51, 100, 9].into()) }
    }

    fn header(flags: Flags) -> TcpHeader {
        let mut tcp = TcpHeader { seq: SeqNum(u32::MAX - 1), flags, ..TcpHeader::default() };
        tcp.options.timestamps = Some(Timestamps { value: 1, echo: 2 });
        tcp
    }

    fn super_packet(ip: &IpMeta, flags: Flags, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        crate::emit(ip, &header(flags), &[payload], ChecksumFill::Partial, &mut out).unwrap();
        out
    }

    fn pieces(packet: &[u8], size: u16) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        split(packet, size, ChecksumFill::Full, &mut |piece| all.push(piece.to_vec()));
        all
    }

    fn segment(bytes: &[u8]) -> Segment<'_> {
        match crate::parse(bytes, ChecksumCheck::Verify) {
            Ok(Packet::Tcp(segment)) => segment,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn super_packet_is_cut_into_the_intended_segments() {
        let flags = Flags::ACK | Flags::PSH | Flags::FIN | Flags::CWR;
        let payload: Vec<u8> = (0..25).collect();
        for ip in [ipv4(), IpMeta::new([0x20; 16].into(), [0x2f; 16].into())] {
            let pieces = pieces(&super_packet(&ip, flags, &payload), 10);
            let read: Vec<Segment<'_>> = pieces.iter().map(|piece| segment(piece)).collect();
            let seqs: Vec<u32> = read.iter().map(|segment| segment.tcp.seq.0).collect();
            assert_eq!(seqs, [u32::MAX - 1, 8, 18]);
            let flags: Vec<Flags> = read.iter().map(|segment| segment.tcp.flags).collect();
            let last = Flags::ACK | Flags::PSH | Flags::FIN;
            assert_eq!(flags, [Flags::ACK | Flags::CWR, Flags::ACK, last]);
            let expected: Vec<&[u8]> = payload.chunks(10).collect();
            assert_eq!(read.iter().map(|segment| segment.payload).collect::<Vec<_>>(), expected);
            assert!(read.iter().all(|segment| segment.tcp.options.timestamps.is_some()));
            let ids: Vec<u16> = read.iter().map(|segment| segment.ip.identification).collect();
            assert_eq!(ids, if ip.src.is_ipv4() { [0xffff, 0, 1] } else { [0, 0, 0] });
        }
    }

    #[test]
    fn a_packet_that_fits_goes_out_as_one_with_its_checksum() {
        for (len, size) in [(10, 10), (0, 10), (10, 0)] {
            let packet = super_packet(&ipv4(), Flags::ACK | Flags::PSH, &vec![7; len]);
            let pieces = pieces(&packet, size);
            assert_eq!(pieces.len(), 1);
            assert_eq!(
                (segment(&pieces[0]).payload.len(), segment(&pieces[0]).tcp.seq.0),
                (len, u32::MAX - 1)
            );
        }
    }

    #[test]
    fn handshakes_resets_and_urgent_data_are_not_cut() {
        for flags in [Flags::SYN, Flags::RST, Flags::URG | Flags::ACK] {
            assert_eq!(pieces(&super_packet(&ipv4(), flags, &[7; 30]), 10).len(), 1);
        }
    }

    #[test]
    fn pieces_may_leave_the_checksum_to_the_device() {
        let mut all = Vec::new();
        let packet = super_packet(&ipv4(), Flags::ACK, &[7; 30]);
        split(&packet, 10, ChecksumFill::Partial, &mut |piece| all.push(piece.to_vec()));
        let mut expected = Vec::new();
        let tcp = TcpHeader { seq: SeqNum(8), ..header(Flags::ACK) };
        let ip = IpMeta { identification: 0, ..ipv4() };
        crate::emit(&ip, &tcp, &[&[7; 10]], ChecksumFill::Partial, &mut expected).unwrap();
        assert_eq!(all[1], expected);
    }

    #[test]
    fn copies_equal_their_originals_except_for_the_mark() {
        let packet = super_packet(&ipv4(), Flags::ACK | Flags::FIN, &[7; 25]);
        let mut all = Vec::new();
        split_twice(&packet, 10, ChecksumFill::Full, &mut |piece| all.push(piece.to_vec()));
        assert_eq!(all.len(), 6);
        for (two, single) in all.chunks(2).zip(pieces(&packet, 10)) {
            assert_eq!(two[0], single);
            let (original, copy) = (segment(&two[0]), segment(&two[1]));
            assert_eq!(copy.payload, original.payload);
            let flags = original.tcp.flags | Flags::R4;
            assert_eq!(copy.tcp, TcpHeader { flags, ..original.tcp.clone() });
        }
    }

    /// Cutting directly gives the same segments as cutting into pieces first.
    #[test]
    fn pieces_are_super_packets_of_the_same_segments() {
        let flags = Flags::ACK | Flags::PSH | Flags::FIN | Flags::CWR;
        let payload: Vec<u8> = (0..200_033u32).map(|at| (at % 251) as u8).collect();
        for ip in [ipv4(), IpMeta::new([0x20; 16].into(), [0x2f; 16].into())] {
            let whole = super_packet(&ip, flags, &payload);
            let headers = &whole[..whole.len() - payload.len()];
            let (mut of_pieces, mut longest) = (Vec::new(), 0);
            split_headers(headers, payload.len(), 1_000, 64_000, &mut |headers, range| {
                let piece = [headers, &payload[range.clone()]].concat();
                let same = super_packet_of(headers, &payload[range]);
                assert_eq!(piece, same, "lengths and open checksum");
                longest = longest.max(piece.len());
                of_pieces.append(&mut pieces(&piece, 1_000));
            });
            assert!(longest <= 64_000 + headers.len());
            assert_eq!(of_pieces, pieces(&whole, 1_000));
        }
        let mut all = Vec::new();
        split_headers(&[0x45; 30], 7, 1, 5, &mut |headers, range| all.push((headers.to_vec(), range)));
        assert_eq!(all, [(vec![0x45; 30], 0..7)]);
    }

    /// Parses `headers` over `payload`, and writes them again.
    fn super_packet_of(headers: &[u8], payload: &[u8]) -> Vec<u8> {
        let packet = [headers, payload].concat();
        let Ok(Packet::Tcp(read)) = crate::parse(&packet, ChecksumCheck::Trust) else {
            panic!("{headers:?}");
        };
        let mut out = Vec::new();
        crate::emit(&read.ip, &read.tcp, &[payload], ChecksumFill::Partial, &mut out).unwrap();
        out
    }

    #[test]
    fn other_protocols_leave_unchanged() {
        for bytes in [&b"nonsense"[..], &[0x45; 40], &[]] {
            assert_eq!(pieces(bytes, 3), [bytes]);
        }
    }

    proptest! {
        #[test]
        fn cutting_and_joining_gives_the_stream_back(
            ip in crate::ip::arbitrary::meta(),
            tcp in crate::tcp::arbitrary::header(),
            payload in proptest::collection::vec(any::<u8>(), 0..3000),
            size in 1u16..1500,
        ) {
            let (header_bytes, _) = tcp.emit();
            let mut packet = Vec::new();
            crate::emit(&ip, &tcp, &[&payload], ChecksumFill::Full, &mut packet).unwrap();
            let pieces = pieces(&packet, size);
            let (mut next, mut joined) = (tcp.seq, Vec::new());
            for (index, piece) in pieces.iter().enumerate() {
                let segment = segment(piece);
                prop_assert_eq!(segment.tcp.seq, next);
                prop_assert_eq!(piece.len() - segment.payload.len(), ip.header_len() + header_bytes.len());
                prop_assert!(pieces.len() == 1 || segment.payload.len() <= usize::from(size));
                let last = index + 1 == pieces.len();
                prop_assert_eq!(segment.tcp.flags.contains(Flags::FIN), last && tcp.flags.contains(Flags::FIN));
                next += segment.payload.len() as u32;
                joined.extend_from_slice(segment.payload);
            }
            prop_assert_eq!(joined, payload);
        }
    }
}
