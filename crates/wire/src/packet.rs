//! Whole packets: bytes in, values out, and back; and the peeks that a demultiplexer needs.
//!
//! The usual packet (IPv4 without options, IPv6 without extension headers) is read without allocating;
//! so is every other, in fact: values borrow the payload and hold the rest inline.

use core::net::{IpAddr, SocketAddr};

use alloc::vec::Vec;

use crate::checksum::Sum;
use crate::error::{EmitError, ParseError};
use crate::icmp::{self, IcmpError};
use crate::ip::{self, IpHeader, IpMeta, Strictness, protocol};
use crate::options::OptionProfile;
use crate::seq::SeqNum;
use crate::tcp::{self, Flags, TcpHeader};

/// The largest IP packet that this crate writes.
pub const MAX_PACKET_LEN: usize = 65535;

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
    /// SEG.LEN of RFC 9293: payload bytes, plus one each for SYN and FIN.
    #[allow(clippy::len_without_is_empty, reason = "SEG.LEN is the RFC's name, not a container's length")]
    pub fn len(&self) -> u32 {
        let flag = |flag| u32::from(self.tcp.flags.contains(flag));
        self.payload.len() as u32 + flag(Flags::SYN) + flag(Flags::FIN)
    }

    /// The sequence number after the segment: SEG.SEQ + SEG.LEN.
    pub fn end(&self) -> SeqNum {
        self.tcp.seq + self.len()
    }
}

/// What a packet is.
#[derive(Clone, PartialEq, Debug)]
pub enum Packet<'a> {
    /// A TCP segment.
    Tcp(Segment<'a>),
    /// An ICMP error that quotes a TCP segment of the receiver.
    Icmp(IcmpError),
    /// Anything else, other ICMP messages included.
    Other {
        /// The IP header.
        ip: IpMeta,
        /// The protocol number, after extension headers.
        protocol: u8,
        /// What follows the IP header.
        payload: &'a [u8],
    },
}

/// Whether the TCP checksum is still to be verified. IP and ICMP checksums always are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ChecksumCheck {
    /// Nobody has looked at it.
    #[default]
    Verify,
    /// The device said that it was verified, or that it is not computed yet.
    Trust,
}

/// What goes into the TCP checksum field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ChecksumFill {
    /// The checksum.
    #[default]
    Full,
    /// The sum of the pseudo header alone, not complemented: the device completes it.
    Partial,
}

/// Reads a packet; the GA option has its default numbers.
///
/// # Errors
/// A [`ParseError`] for everything that must not be processed. Never panics, whatever the bytes.
pub fn parse(bytes: &[u8], check: ChecksumCheck) -> Result<Packet<'_>, ParseError> {
    parse_with(bytes, check, &OptionProfile::default())
}

/// Reads a packet; the GA option has the numbers of `profile`.
///
/// # Errors
/// As [`parse`].
pub fn parse_with<'a>(
    bytes: &'a [u8],
    check: ChecksumCheck,
    profile: &OptionProfile,
) -> Result<Packet<'a>, ParseError> {
    let ip = IpHeader::parse(bytes, Strictness::Arrived)?;
    let payload = bytes.get(ip.payload_at..ip.end).ok_or(ParseError::Truncated)?;
    match (ip.protocol, ip.meta.src) {
        (protocol::TCP, _) => parse_segment(&ip, payload, check, profile).map(Packet::Tcp),
        (protocol::ICMP, IpAddr::V4(_)) | (protocol::ICMPV6, IpAddr::V6(_)) => {
            Ok(match icmp::parse(&ip, payload)? {
                Some(error) => Packet::Icmp(error),
                None => Packet::Other { ip: ip.meta, protocol: ip.protocol, payload },
            })
        }
        (protocol, _) => Ok(Packet::Other { ip: ip.meta, protocol, payload }),
    }
}

fn parse_segment<'a>(
    ip: &IpHeader,
    bytes: &'a [u8],
    check: ChecksumCheck,
    profile: &OptionProfile,
) -> Result<Segment<'a>, ParseError> {
    let (tcp, header_len) = TcpHeader::parse(bytes, profile)?;
    match check {
        ChecksumCheck::Verify if tcp_sum(&ip.meta, bytes).finish() != 0 => {
            return Err(ParseError::TcpChecksum);
        }
        ChecksumCheck::Verify | ChecksumCheck::Trust => {}
    }
    let payload = bytes.get(header_len..).ok_or(ParseError::Truncated)?;
    Ok(Segment { ip: ip.meta, tcp, payload })
}

/// The sum over the pseudo header, the TCP header and the payload.
fn tcp_sum(ip: &IpMeta, segment: &[u8]) -> Sum {
    Sum::pseudo_header(ip.src, ip.dst, protocol::TCP, segment.len() as u32).combine(Sum::of(segment))
}

/// Writes a packet into `out`, which is cleared first. The payload may come in pieces. Options that do
/// not fit are left out as [`Options::emit`](crate::Options::emit) says; the GA option has its default
/// numbers.
///
/// # Errors
/// [`EmitError::TooLong`] above 65535 bytes, [`EmitError::MixedFamilies`] if the two addresses are not
/// of one IP version. `out` is left empty then.
pub fn emit(
    ip: &IpMeta,
    tcp: &TcpHeader,
    payload: &[&[u8]],
    sum: ChecksumFill,
    out: &mut Vec<u8>,
) -> Result<(), EmitError> {
    emit_with(ip, tcp, payload, sum, &OptionProfile::default(), out)
}

/// The same as [`emit`] with the GA numbers of `profile`.
///
/// # Errors
/// As [`emit`].
pub fn emit_with(
    ip: &IpMeta,
    tcp: &TcpHeader,
    payload: &[&[u8]],
    sum: ChecksumFill,
    profile: &OptionProfile,
    out: &mut Vec<u8>,
) -> Result<(), EmitError> {
    out.clear();
    if ip.src.is_ipv4() != ip.dst.is_ipv4() {
        return Err(EmitError::MixedFamilies);
    }
    let (header, _) = tcp.emit(profile);
    let segment_len = header.len() + payload.iter().map(|piece| piece.len()).sum::<usize>();
    let len = ip.header_len() + segment_len;
    if len > MAX_PACKET_LEN {
        return Err(EmitError::TooLong { len });
    }
    out.reserve(len);
    ip::emit_header(ip, protocol::TCP, segment_len, out);
    out.extend_from_slice(&header);
    for piece in payload {
        out.extend_from_slice(piece);
    }
    fill_tcp_checksum(ip, out.get_mut(ip.header_len()..).unwrap_or_default(), sum);
    Ok(())
}

/// Writes the checksum field of the TCP segment `segment`, whatever it held before. A segment shorter
/// than a TCP header is left alone.
pub(crate) fn fill_tcp_checksum(ip: &IpMeta, segment: &mut [u8], fill: ChecksumFill) {
    const FIELD: core::ops::Range<usize> = tcp::CHECKSUM_OFFSET..tcp::CHECKSUM_OFFSET + 2;
    let Some(field) = segment.get_mut(FIELD) else { return };
    field.fill(0);
    let check = match fill {
        ChecksumFill::Full => tcp_sum(ip, segment).finish(),
        ChecksumFill::Partial => {
            Sum::pseudo_header(ip.src, ip.dst, protocol::TCP, segment.len() as u32).fold()
        }
    };
    if let Some(field) = segment.get_mut(FIELD) {
        field.copy_from_slice(&check.to_be_bytes());
    }
}

/// Computes the IPv4 header checksum and the TCP checksum of `packet` anew, for code that has edited
/// it. Anything that is not a whole TCP packet keeps its bytes.
pub fn fill_checksums(packet: &mut [u8]) {
    let Ok(ip) = IpHeader::parse(packet, Strictness::Peeked) else { return };
    if ip.protocol != protocol::TCP {
        return;
    }
    if ip.meta.src.is_ipv4() {
        ip::fill_v4_checksum(packet.get_mut(..ip.payload_at).unwrap_or_default());
    }
    let segment = packet.get_mut(ip.payload_at..ip.end).unwrap_or_default();
    fill_tcp_checksum(&ip.meta, segment, ChecksumFill::Full);
}

/// Where the TCP header of `packet` starts, or `None` if it is not a TCP packet.
pub fn tcp_offset(packet: &[u8]) -> Option<usize> {
    let ip = IpHeader::parse(packet, Strictness::Peeked).ok()?;
    (ip.protocol == protocol::TCP).then_some(ip.payload_at)
}

/// Bytes of the IP and TCP headers of `packet` together, that is where its payload starts; `None` if
/// it is not a TCP packet or ends before its payload.
pub fn header_len(packet: &[u8]) -> Option<usize> {
    let ip = IpHeader::parse(packet, Strictness::Peeked).ok().filter(|ip| ip.protocol == protocol::TCP)?;
    let words = packet.get(ip.payload_at + 12)? >> 4;
    let len = ip.payload_at + usize::from(words) * 4;
    (words >= 5 && len <= ip.end).then_some(len)
}

/// Source and destination of a TCP packet, without checking anything else; `None` if it is not one.
pub fn four_tuple(packet: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let ip = IpHeader::parse(packet, Strictness::Peeked).ok()?;
    if ip.protocol != protocol::TCP {
        return None;
    }
    let &[a, b, c, d] = packet.get(ip.payload_at..ip.end)?.first_chunk::<4>()?;
    let (src_port, dst_port) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    Some((SocketAddr::new(ip.meta.src, src_port), SocketAddr::new(ip.meta.dst, dst_port)))
}
