//! Whole packets: parsing, writing, and reading single fields for a demultiplexer.
//!
//! Parsing never allocates: values borrow the payload and hold the rest inline.

use core::net::{IpAddr, SocketAddr};

use alloc::vec::Vec;

use arrayvec::ArrayVec;

use crate::checksum::Sum;
use crate::error::{EmitError, ParseError};
use crate::icmp::{self, IcmpError};
use crate::ip::{self, IpHeader, IpMeta, MAX_PACKET_LEN, Strictness, protocol};
use crate::options::{self, Options};
use crate::seq::SeqNum;
use crate::tcp::{self, Flags, TcpHeader};

/// Maximum length of a super-packet that this crate writes, bytes. Its checksum is partial, because it never
/// leaves the host uncut. If it is longer than [`MAX_PACKET_LEN`], the length field of its IP header is 0, as
/// in Linux ("BIG TCP").
pub const MAX_SUPER_LEN: usize = 256 << 10;

/// A TCP segment with its IP header.
#[derive(Clone, PartialEq, Debug)]
pub struct Segment<'a> {
    /// The IP header.
    pub ip: IpMeta,
    /// The TCP header.
    pub tcp: TcpHeader,
    /// The payload.
    pub payload: &'a [u8],
}

impl Segment<'_> {
    /// Returns SEG.LEN of RFC 9293: payload bytes, plus one each for SYN and FIN.
    #[allow(clippy::len_without_is_empty, reason = "SEG.LEN is the RFC's name, not a container's length")]
    pub fn len(&self) -> u32 {
        let flag = |flag| u32::from(self.tcp.flags.contains(flag));
        self.payload.len() as u32 + flag(Flags::SYN) + flag(Flags::FIN)
    }

    /// Returns the sequence number after the segment: SEG.SEQ + SEG.LEN.
    pub fn end(&self) -> SeqNum {
        self.tcp.seq + self.len()
    }
}

/// The kind of a packet.
#[derive(Clone, PartialEq, Debug)]
pub enum Packet<'a> {
    /// A TCP segment.
    Tcp(Segment<'a>),
    /// An ICMP error that quotes a TCP segment of the receiver.
    Icmp(IcmpError),
    /// Any other packet, including other ICMP messages.
    Other {
        /// The IP header.
        ip: IpMeta,
        /// The protocol number, after extension headers.
        protocol: u8,
        /// The bytes after the IP header.
        payload: &'a [u8],
    },
}

/// Treatment of the TCP checksum. IP and ICMP checksums are always verified.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ChecksumCheck {
    /// Verify the checksum.
    #[default]
    Verify,
    /// Do not verify it: the device reports that it has verified it, or that it has not computed it yet.
    Trust,
}

/// The content of the TCP checksum field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ChecksumFill {
    /// The checksum.
    #[default]
    Full,
    /// The sum of the pseudo header only, not complemented: the device completes it.
    Partial,
}

/// Parses a packet.
///
/// # Errors
/// A [`ParseError`] for a packet that must not be processed. Never panics.
pub fn parse(bytes: &[u8], check: ChecksumCheck) -> Result<Packet<'_>, ParseError> {
    // The result is large, so it is used in place.
    let read = IpHeader::parse(bytes, Strictness::Arrived);
    let ip = read.as_ref().map_err(|error| *error)?;
    let payload = bytes.get(ip.payload_at..ip.end).ok_or(ParseError::Truncated)?;
    match (ip.protocol, ip.meta.src) {
        (protocol::TCP, _) => parse_segment(ip, payload, check),
        (protocol::ICMP, IpAddr::V4(_)) | (protocol::ICMPV6, IpAddr::V6(_)) => {
            Ok(match icmp::parse(ip, payload)? {
                Some(error) => Packet::Icmp(error),
                None => Packet::Other { ip: ip.meta, protocol: ip.protocol, payload },
            })
        }
        (protocol, _) => Ok(Packet::Other { ip: ip.meta, protocol, payload }),
    }
}

/// Parses a TCP segment. It writes the result directly to the caller's memory, because it is large.
#[inline]
fn parse_segment<'a>(ip: &IpHeader, bytes: &'a [u8], check: ChecksumCheck) -> Result<Packet<'a>, ParseError> {
    let parts = tcp::split(bytes)?;
    match check {
        ChecksumCheck::Verify if tcp_sum(&ip.meta, bytes).finish() != 0 => {
            return Err(ParseError::TcpChecksum);
        }
        ChecksumCheck::Verify | ChecksumCheck::Trust => {}
    }
    let segment =
        |options| Segment { ip: ip.meta, tcp: TcpHeader::of(&parts, options), payload: parts.payload };
    // Both kinds of options are parsed in place.
    if let Some(options) = Options::parse_usual(parts.options) {
        return Ok(Packet::Tcp(segment(options)));
    }
    Ok(Packet::Tcp(segment(Options::parse_one_by_one(parts.options, parts.flags().contains(Flags::SYN)))))
}

/// Returns the sum of the pseudo header, the TCP header and the payload.
fn tcp_sum(ip: &IpMeta, segment: &[u8]) -> Sum {
    Sum::pseudo_header(ip.src, ip.dst, protocol::TCP, segment.len() as u32).combine(Sum::of(segment))
}

/// Writes a packet into `out`, which is cleared first. The payload may come in pieces. Options that do not
/// fit are left out in the order of [`Options::emit`](crate::Options::emit).
///
/// # Errors
/// [`EmitError::TooLong`] above [`MAX_PACKET_LEN`] with a full checksum, above [`MAX_SUPER_LEN`] with a
/// partial one. [`EmitError::MixedFamilies`] if the two addresses are not of one IP version. After an error
/// `out` is empty.
pub fn emit(
    ip: &IpMeta,
    tcp: &TcpHeader,
    payload: &[&[u8]],
    sum: ChecksumFill,
    out: &mut Vec<u8>,
) -> Result<(), EmitError> {
    let len = payload.iter().map(|piece| piece.len()).sum();
    let max = match sum {
        ChecksumFill::Full => MAX_PACKET_LEN,
        ChecksumFill::Partial => MAX_SUPER_LEN,
    };
    // Reserve space for the whole packet at once.
    out.clear();
    out.reserve(ip.header_len() + tcp::MAX_HEADER_LEN + len);
    emit_headers_within(max, ip, tcp, len, out)?;
    for piece in payload {
        out.extend_from_slice(piece);
    }
    if sum == ChecksumFill::Full {
        // The field holds the sum of the pseudo header, so a sum that includes the field is complete.
        let segment = out.get_mut(ip.header_len()..).unwrap_or_default();
        let check = Sum::of(segment).finish();
        put_tcp_checksum(segment, check);
    }
    Ok(())
}

/// Writes the headers of a packet whose payload of `payload_len` bytes is elsewhere, for a device that
/// gathers it. The TCP checksum is [`ChecksumFill::Partial`], because the payload is not read.
///
/// # Errors
/// Those of [`emit`].
pub fn emit_headers(
    ip: &IpMeta,
    tcp: &TcpHeader,
    payload_len: usize,
    out: &mut Vec<u8>,
) -> Result<(), EmitError> {
    emit_headers_within(MAX_SUPER_LEN, ip, tcp, payload_len, out)
}

/// Like [`emit_headers`], for a packet of at most `max` bytes.
#[inline(always)]
fn emit_headers_within(
    max: usize,
    ip: &IpMeta,
    tcp: &TcpHeader,
    payload_len: usize,
    out: &mut Vec<u8>,
) -> Result<(), EmitError> {
    out.clear();
    if ip.src.is_ipv4() != ip.dst.is_ipv4() {
        return Err(EmitError::MixedFamilies);
    }
    let syn = tcp.flags.contains(Flags::SYN);
    // Nearly every segment has only timestamps.
    let stamps = tcp.options.only_timestamps().filter(|_| !syn).map(|stamps| stamps.aligned());
    let mut options = ArrayVec::<u8, { options::MAX_LEN }>::new();
    if stamps.is_none() {
        tcp.options.emit(syn, &mut options);
    }
    let options_len = stamps.as_ref().map_or(options.len(), |stamps| stamps.len());
    let segment_len = tcp::MIN_HEADER_LEN + options_len + payload_len;
    let len = ip.header_len() + segment_len;
    if len > max {
        return Err(EmitError::TooLong { len, max });
    }
    let check = Sum::pseudo_header(ip.src, ip.dst, protocol::TCP, segment_len as u32).fold();
    ip::emit_header(ip, protocol::TCP, segment_len, out);
    out.extend_from_slice(&tcp.fixed(options_len, check));
    match stamps {
        Some(stamps) => out.extend_from_slice(&stamps),
        None => out.extend_from_slice(&options),
    }
    Ok(())
}

/// Writes the checksum field of the TCP segment `segment`, ignoring its old value. For a partial checksum,
/// `elsewhere` is the number of the segment's bytes that are not in `segment`. A segment shorter than a TCP
/// header is not changed.
pub(crate) fn fill_tcp_checksum(ip: &IpMeta, segment: &mut [u8], elsewhere: usize, fill: ChecksumFill) {
    put_tcp_checksum(segment, 0);
    let check = match fill {
        ChecksumFill::Full => tcp_sum(ip, segment).finish(),
        ChecksumFill::Partial => {
            let len = segment.len() + elsewhere;
            Sum::pseudo_header(ip.src, ip.dst, protocol::TCP, len as u32).fold()
        }
    };
    put_tcp_checksum(segment, check);
}

/// Writes `check` into the checksum field of a TCP segment, if it is long enough.
fn put_tcp_checksum(segment: &mut [u8], check: u16) {
    if let Some(field) = segment.get_mut(tcp::CHECKSUM_OFFSET..tcp::CHECKSUM_OFFSET + 2) {
        field.copy_from_slice(&check.to_be_bytes());
    }
}

/// Computes the IPv4 header checksum and the TCP checksum of `packet`, for code that has edited it. Does
/// nothing if `packet` is not a complete TCP packet.
pub fn fill_checksums(packet: &mut [u8]) {
    let Ok(ip) = IpHeader::parse(packet, Strictness::Peeked) else { return };
    if ip.protocol != protocol::TCP {
        return;
    }
    if ip.meta.src.is_ipv4() {
        ip::fill_v4_checksum(packet.get_mut(..ip.payload_at).unwrap_or_default());
    }
    let segment = packet.get_mut(ip.payload_at..ip.end).unwrap_or_default();
    fill_tcp_checksum(&ip.meta, segment, 0, ChecksumFill::Full);
}

/// Returns the offset of the TCP header of `packet`; `None` if it is not a TCP packet.
pub fn tcp_offset(packet: &[u8]) -> Option<usize> {
    let ip = IpHeader::parse(packet, Strictness::Peeked).ok()?;
    (ip.protocol == protocol::TCP).then_some(ip.payload_at)
}

/// Returns the length of the IP and TCP headers of `packet`, which is the offset of its payload; `None` if it
/// is not a TCP packet or ends before its payload.
pub fn header_len(packet: &[u8]) -> Option<usize> {
    let ip = IpHeader::parse(packet, Strictness::Peeked).ok().filter(|ip| ip.protocol == protocol::TCP)?;
    let words = packet.get(ip.payload_at + 12)? >> 4;
    let len = ip.payload_at + usize::from(words) * 4;
    (words >= 5 && len <= ip.end).then_some(len)
}

/// Returns source and destination of a TCP packet, without further checks; `None` if it is not one.
pub fn four_tuple(packet: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let ip = IpHeader::parse(packet, Strictness::Peeked).ok()?;
    if ip.protocol != protocol::TCP {
        return None;
    }
    let &[a, b, c, d] = packet.get(ip.payload_at..ip.end)?.first_chunk::<4>()?;
    let (src_port, dst_port) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    Some((SocketAddr::new(ip.meta.src, src_port), SocketAddr::new(ip.meta.dst, dst_port)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::arbitrary::meta;
    use crate::tcp::arbitrary::header;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn ipv4() -> IpMeta {
        IpMeta::new([192, 0, 2, 1].into(), [198, 51, 100, 9].into())
    }

    fn ipv6() -> IpMeta {
        IpMeta::new([0x20; 16].into(), [0x2f; 16].into())
    }

    fn written(ip: &IpMeta, tcp: &TcpHeader, payload: &[u8], sum: ChecksumFill) -> Vec<u8> {
        let mut out = Vec::new();
        emit(ip, tcp, &[payload], sum, &mut out).unwrap();
        out
    }

    fn data_header() -> TcpHeader {
        TcpHeader { src_port: 49152, dst_port: 80, flags: Flags::ACK, window: 512, ..TcpHeader::default() }
    }

    #[test]
    fn wrong_tcp_checksums_are_refused_unless_the_device_vouches() {
        for ip in [ipv4(), ipv6()] {
            let mut bytes = written(&ip, &data_header(), b"payload", ChecksumFill::Full);
            assert!(parse(&bytes, ChecksumCheck::Verify).is_ok());
            *bytes.last_mut().unwrap() ^= 1;
            assert_eq!(parse(&bytes, ChecksumCheck::Verify), Err(ParseError::TcpChecksum));
            assert!(parse(&bytes, ChecksumCheck::Trust).is_ok());
        }
    }

    #[test]
    fn a_partial_checksum_is_completed_by_summing_the_segment() {
        // A device sums from the TCP header, including the field, and stores the complement.
        for ip in [ipv4(), ipv6()] {
            let full = written(&ip, &data_header(), b"odd", ChecksumFill::Full);
            let mut partial = written(&ip, &data_header(), b"odd", ChecksumFill::Partial);
            assert_eq!(parse(&partial, ChecksumCheck::Verify), Err(ParseError::TcpChecksum));
            let at = ip.header_len();
            let check = Sum::of(&partial[at..]).finish();
            partial[at + 16..at + 18].copy_from_slice(&check.to_be_bytes());
            assert_eq!(partial, full);
        }
    }

    #[test]
    fn super_packets_beyond_the_length_field_have_length_zero() {
        let payload = [7; MAX_SUPER_LEN - 40];
        let packet = written(&ipv4(), &data_header(), &payload, ChecksumFill::Partial);
        assert_eq!((packet.len(), &packet[2..4]), (MAX_SUPER_LEN, &[0, 0][..]));
        assert_eq!(header_len(&packet), Some(40), "a packet of our own has the length of its buffer");
        assert_eq!(
            parse(&packet, ChecksumCheck::Trust),
            Err(ParseError::IpHeaderLength),
            "such a packet is rejected on arrival"
        );
        let packet = written(&ipv6(), &data_header(), &payload[20..], ChecksumFill::Partial);
        assert_eq!((packet.len(), &packet[4..6]), (MAX_SUPER_LEN, &[0, 0][..]));
        assert_eq!(header_len(&packet), Some(60));
        let mut out = Vec::new();
        let len = payload.len() + 1;
        let refused = emit_headers(&ipv4(), &data_header(), len, &mut out);
        assert_eq!(refused, Err(EmitError::TooLong { len: MAX_SUPER_LEN + 1, max: MAX_SUPER_LEN }));
    }

    #[test]
    fn packets_beyond_the_length_field_are_refused() {
        let mut out = Vec::new();
        let largest = [0; 65535 - 40];
        let too_long = Err(EmitError::TooLong { len: 65_536, max: 65_535 });
        assert_eq!(emit(&ipv4(), &data_header(), &[&largest], ChecksumFill::Full, &mut out), Ok(()));
        assert_eq!(out.len(), 65535);
        assert!(parse(&out, ChecksumCheck::Verify).is_ok());
        assert_eq!(emit(&ipv4(), &data_header(), &[&largest, b"1"], ChecksumFill::Full, &mut out), too_long);
        assert!(out.is_empty());
    }

    #[test]
    fn addresses_of_two_families_are_refused() {
        let mixed = IpMeta::new([192, 0, 2, 1].into(), [0x20; 16].into());
        let mut out = Vec::new();
        let result = emit(&mixed, &data_header(), &[], ChecksumFill::Full, &mut out);
        assert_eq!(result, Err(EmitError::MixedFamilies));
    }

    #[test]
    fn other_protocols_are_handed_on() {
        let mut bytes = Vec::new();
        ip::emit_header(&ipv4(), 17, 3, &mut bytes);
        bytes.extend(b"udp");
        let expected = Packet::Other { ip: ipv4(), protocol: 17, payload: b"udp" };
        assert_eq!(parse(&bytes, ChecksumCheck::Verify), Ok(expected));
        assert_eq!((four_tuple(&bytes), header_len(&bytes), tcp_offset(&bytes)), (None, None, None));
    }

    #[test]
    fn segment_length_counts_syn_and_fin() {
        let tcp = TcpHeader { seq: SeqNum(u32::MAX), flags: Flags::SYN | Flags::FIN, ..TcpHeader::default() };
        let segment = Segment { ip: ipv4(), tcp, payload: b"abc" };
        assert_eq!((segment.len(), segment.end()), (5, SeqNum(4)));
    }

    #[test]
    fn peeks_see_the_four_tuple_and_the_headers() {
        for ip in [ipv4(), ipv6()] {
            let mut tcp = data_header();
            tcp.options.timestamps = Some(crate::Timestamps::default());
            let bytes = written(&ip, &tcp, b"payload", ChecksumFill::Partial);
            let tuple = (SocketAddr::new(ip.src, 49152), SocketAddr::new(ip.dst, 80));
            assert_eq!(four_tuple(&bytes), Some(tuple));
            assert_eq!(tcp_offset(&bytes), Some(ip.header_len()));
            assert_eq!(header_len(&bytes), Some(ip.header_len() + 32));
        }
    }

    #[test]
    fn padding_of_the_link_is_not_payload() {
        for ip in [ipv4(), ipv6()] {
            let mut bytes = written(&ip, &data_header(), b"abc", ChecksumFill::Full);
            bytes.extend([0; 9]);
            let Ok(Packet::Tcp(segment)) = parse(&bytes, ChecksumCheck::Verify) else {
                panic!("{bytes:02x?}")
            };
            assert_eq!(segment.payload, b"abc");
        }
    }

    #[test]
    fn header_length_is_unknown_if_the_data_offset_is_wrong() {
        let mut bytes = written(&ipv4(), &data_header(), b"", ChecksumFill::Full);
        for (offset, expected) in [(0x40, None), (0x50, Some(40)), (0x60, None)] {
            bytes[32] = offset;
            assert_eq!(header_len(&bytes), expected, "data offset {offset:02x}");
        }
    }

    #[test]
    fn edited_packets_get_right_checksums() {
        for ip in [ipv4(), ipv6()] {
            let mut bytes = written(&ip, &data_header(), b"payload", ChecksumFill::Full);
            bytes[ip.header_len() + 5] ^= 0x55;
            bytes[8] ^= 1;
            assert!(parse(&bytes, ChecksumCheck::Verify).is_err());
            fill_checksums(&mut bytes);
            assert!(parse(&bytes, ChecksumCheck::Verify).is_ok());
        }
    }

    /// Calls every function that accepts bytes from the network.
    fn take(bytes: &[u8]) {
        for check in [ChecksumCheck::Verify, ChecksumCheck::Trust] {
            let _ = parse(bytes, check);
        }
        let _ = (four_tuple(bytes), header_len(bytes), tcp_offset(bytes));
        fill_checksums(&mut bytes.to_vec());
        crate::split(bytes, 7, ChecksumFill::Full, &mut |_| {});
        let mut out = Vec::new();
        crate::emit_icmp_too_big([192, 0, 2, 1].into(), bytes, 1400, &mut out);
        crate::emit_icmp_too_big([0; 16].into(), bytes, 1400, &mut out);
    }

    proptest! {
        #[test]
        fn packets_are_read_back(
            ip in meta(),
            tcp in header(),
            payload in vec(vec(any::<u8>(), 0..40), 0..4),
        ) {
            let pieces: Vec<&[u8]> = payload.iter().map(Vec::as_slice).collect();
            let (_, dropped) = tcp.emit();
            let mut bytes = Vec::new();
            emit(&ip, &tcp, &pieces, ChecksumFill::Full, &mut bytes).unwrap();
            let read = parse(&bytes, ChecksumCheck::Verify).unwrap();
            let Packet::Tcp(segment) = read else { panic!("{read:?}") };
            prop_assert_eq!(segment.payload, payload.concat());
            prop_assert_eq!(segment.ip, ip);
            if dropped.is_none() {
                prop_assert_eq!(segment.tcp, tcp);
            }
        }

        #[test]
        fn any_bytes_are_taken_without_panic(mut bytes in vec(any::<u8>(), 0..200), version in 0u8..3) {
            // Two thirds of the inputs look like IP.
            if let (Some(byte), Some(first)) = (bytes.first_mut(), [0x45u8, 0x60].get(usize::from(version))) {
                *byte = *first;
            }
            take(&bytes);
        }

        #[test]
        fn any_damage_to_a_packet_is_taken_without_panic(
            ip in meta(),
            tcp in header(),
            payload in vec(any::<u8>(), 0..40),
            damage in vec((0usize..140, any::<u8>()), 0..5),
            cut in 0usize..140,
        ) {
            let mut bytes = written(&ip, &tcp, &payload, ChecksumFill::Full);
            for (at, value) in damage {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            if bytes.len() >= 20 && bytes[0] >> 4 == 4 {
                // Corrects the header checksum, so that the damage behind it is parsed.
                let len = usize::from(bytes[0] & 15) * 4;
                if let Some(header) = bytes.get_mut(..len) {
                    ip::fill_v4_checksum(header);
                }
            }
            take(&bytes);
            take(bytes.get(..cut).unwrap_or(&bytes));
        }
    }
}
