//! ICMP errors that quote a TCP segment (RFC 792, RFC 1191, RFC 4443).
//!
//! Anyone can send an ICMP error. The fields give the connection and the sequence number that the error
//! quotes; the stack decides whether to believe it (RFC 5927).

use core::net::{IpAddr, SocketAddr};

use alloc::vec::Vec;

use crate::checksum::Sum;
use crate::error::ParseError;
use crate::ip::{self, IpHeader, IpMeta, Strictness, protocol};
use crate::seq::SeqNum;

/// Bytes of an ICMP error before the quotation.
const ERROR_HEADER_LEN: usize = 8;
/// Longest ICMPv4 error, bytes (RFC 1812 section 4.3.2.3).
const MAX_ERROR_V4: usize = 576;
/// Longest ICMPv6 error, bytes, the minimum IPv6 MTU (RFC 4443 section 2.4).
const MAX_ERROR_V6: usize = 1280;

/// An ICMP error about a TCP segment of the host that receives the error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IcmpError {
    /// The sender of the error.
    pub from: IpAddr,
    /// The content of the error.
    pub kind: IcmpKind,
    /// Source of the quoted segment: the local end.
    pub src: SocketAddr,
    /// Destination of the quoted segment: the peer.
    pub dst: SocketAddr,
    /// Sequence number of the quoted segment.
    pub seq: SeqNum,
}

/// The content of an ICMP error, the same for both versions of IP.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IcmpKind {
    /// No route to the network.
    NetUnreachable,
    /// The host does not answer, or is unknown.
    HostUnreachable,
    /// The destination does not support TCP.
    ProtocolUnreachable,
    /// No socket listens on the port. Rare for TCP, which answers with RST.
    PortUnreachable,
    /// A policy forbids the packet.
    AdminProhibited,
    /// The packet does not fit the next link and may not be fragmented.
    PacketTooBig {
        /// MTU of the next link in bytes, IP header included. Zero from routers older than RFC 1191.
        mtu: u32,
    },
    /// The hop limit ran out on the way.
    TimeExceeded,
    /// A header field is wrong.
    ParameterProblem,
    /// A request to slow down; obsolete, hosts ignore it (RFC 6633).
    SourceQuench,
}

/// Parses an ICMP message; `None` unless it is an error about a TCP segment that this host sent.
pub(crate) fn parse(ip: &IpHeader, message: &[u8]) -> Result<Option<IcmpError>, ParseError> {
    let (&[kind, code, _, _, b4, b5, b6, b7], quotation) =
        message.split_first_chunk::<ERROR_HEADER_LEN>().ok_or(ParseError::Truncated)?;
    if message_sum(&ip.meta, message).finish() != 0 {
        return Err(ParseError::IcmpChecksum);
    }
    let kind = match ip.meta.src {
        IpAddr::V4(_) => kind_v4(kind, code, u16::from_be_bytes([b6, b7])),
        IpAddr::V6(_) => kind_v6(kind, code, u32::from_be_bytes([b4, b5, b6, b7])),
    };
    Ok(kind.zip(quoted_segment(quotation)).and_then(|(kind, (src, dst, seq))| {
        // An error about a packet from another source cannot concern this host.
        (src.ip() == ip.meta.dst).then_some(IcmpError { from: ip.meta.src, kind, src, dst, seq })
    }))
}

/// Returns the sum of a message: ICMPv6 includes a pseudo header (RFC 4443 section 2.3), ICMP does not.
fn message_sum(ip: &IpMeta, message: &[u8]) -> Sum {
    let sum = Sum::of(message);
    match ip.src {
        IpAddr::V4(_) => sum,
        IpAddr::V6(_) => {
            Sum::pseudo_header(ip.src, ip.dst, protocol::ICMPV6, message.len() as u32).combine(sum)
        }
    }
}

fn quoted_segment(quotation: &[u8]) -> Option<(SocketAddr, SocketAddr, SeqNum)> {
    let ip = IpHeader::parse(quotation, Strictness::Quoted).ok()?;
    if ip.protocol != protocol::TCP {
        return None;
    }
    // RFC 792 guarantees 64 bits of the transport header: ports and sequence number.
    let &[a, b, c, d, e, f, g, h] = quotation.get(ip.payload_at..)?.first_chunk::<8>()?;
    let src = SocketAddr::new(ip.meta.src, u16::from_be_bytes([a, b]));
    let dst = SocketAddr::new(ip.meta.dst, u16::from_be_bytes([c, d]));
    Some((src, dst, SeqNum(u32::from_be_bytes([e, f, g, h]))))
}

/// Returns the kind of an ICMPv4 error (RFC 792; codes of RFC 1122 section 3.2.2.1 and RFC 1812 section
/// 5.2.7.1).
fn kind_v4(kind: u8, code: u8, mtu: u16) -> Option<IcmpKind> {
    match (kind, code) {
        (3, 0 | 6 | 11) => Some(IcmpKind::NetUnreachable),
        (3, 1 | 5 | 7 | 8 | 12) => Some(IcmpKind::HostUnreachable),
        (3, 2) => Some(IcmpKind::ProtocolUnreachable),
        (3, 3) => Some(IcmpKind::PortUnreachable),
        (3, 4) => Some(IcmpKind::PacketTooBig { mtu: u32::from(mtu) }),
        (3, 9 | 10 | 13 | 14 | 15) => Some(IcmpKind::AdminProhibited),
        (4, _) => Some(IcmpKind::SourceQuench),
        (11, _) => Some(IcmpKind::TimeExceeded),
        (12, _) => Some(IcmpKind::ParameterProblem),
        _ => None,
    }
}

/// Returns the kind of an ICMPv6 error (RFC 4443 section 3).
fn kind_v6(kind: u8, code: u8, mtu: u32) -> Option<IcmpKind> {
    match (kind, code) {
        (1, 0) => Some(IcmpKind::NetUnreachable),
        (1, 2 | 3) => Some(IcmpKind::HostUnreachable),
        (1, 1 | 5 | 6) => Some(IcmpKind::AdminProhibited),
        (1, 4) => Some(IcmpKind::PortUnreachable),
        (2, _) => Some(IcmpKind::PacketTooBig { mtu }),
        (3, _) => Some(IcmpKind::TimeExceeded),
        // Unrecognized next header: in IPv6 this means that the host does not support TCP.
        (4, 1) => Some(IcmpKind::ProtocolUnreachable),
        (4, _) => Some(IcmpKind::ParameterProblem),
        _ => None,
    }
}

/// Returns type and code of an error in ICMPv4.
fn code_v4(kind: IcmpKind) -> (u8, u8) {
    match kind {
        IcmpKind::NetUnreachable => (3, 0),
        IcmpKind::HostUnreachable => (3, 1),
        IcmpKind::ProtocolUnreachable => (3, 2),
        IcmpKind::PortUnreachable => (3, 3),
        IcmpKind::PacketTooBig { .. } => (3, 4),
        IcmpKind::AdminProhibited => (3, 13),
        IcmpKind::SourceQuench => (4, 0),
        IcmpKind::TimeExceeded => (11, 0),
        IcmpKind::ParameterProblem => (12, 0),
    }
}

/// Returns type and code of an error in ICMPv6, which has no source quench.
fn code_v6(kind: IcmpKind) -> Option<(u8, u8)> {
    match kind {
        IcmpKind::NetUnreachable => Some((1, 0)),
        IcmpKind::AdminProhibited => Some((1, 1)),
        IcmpKind::HostUnreachable => Some((1, 3)),
        IcmpKind::PortUnreachable => Some((1, 4)),
        IcmpKind::PacketTooBig { .. } => Some((2, 0)),
        IcmpKind::TimeExceeded => Some((3, 0)),
        IcmpKind::ParameterProblem => Some((4, 0)),
        IcmpKind::ProtocolUnreachable => Some((4, 1)),
        IcmpKind::SourceQuench => None,
    }
}

/// Writes the ICMP error "too big" of the router or host `from` about the TCP packet `offending`. `mtu` is
/// the MTU of the next link in bytes. See [`emit_icmp`].
pub fn emit_icmp_too_big(from: IpAddr, offending: &[u8], mtu: u16, out: &mut Vec<u8>) {
    emit_icmp(from, offending, IcmpKind::PacketTooBig { mtu: u32::from(mtu) }, out);
}

/// Writes the ICMP error `kind` about the TCP packet `offending` into `out`, which is cleared first.
///
/// `out` stays empty if `from` is of the other IP version, or if that version has no such error. It also
/// stays empty if `offending` is not a TCP packet or lacks the 8 bytes that a quotation needs. So an ICMP
/// error never causes another.
pub fn emit_icmp(from: IpAddr, offending: &[u8], kind: IcmpKind, out: &mut Vec<u8>) {
    out.clear();
    let Ok(cause) = IpHeader::parse(offending, Strictness::Quoted) else { return };
    if cause.meta.src.is_ipv4() != from.is_ipv4() || quoted_segment(offending).is_none() {
        return;
    }
    let meta = IpMeta::new(from, cause.meta.src);
    let (code, protocol, limit) = match from {
        IpAddr::V4(_) => (Some(code_v4(kind)), protocol::ICMP, MAX_ERROR_V4),
        IpAddr::V6(_) => (code_v6(kind), protocol::ICMPV6, MAX_ERROR_V6),
    };
    let Some((kind_byte, code)) = code else { return };

    let room = limit - meta.header_len() - ERROR_HEADER_LEN;
    let quotation = offending.get(..cause.end.min(room)).unwrap_or_default();
    ip::emit_header(&meta, protocol, ERROR_HEADER_LEN + quotation.len(), out);
    out.extend([kind_byte, code, 0, 0]);
    out.extend(detail(kind, from).to_be_bytes());
    out.extend_from_slice(quotation);

    let message = out.get_mut(meta.header_len()..).unwrap_or_default();
    let check = message_sum(&meta, message).finish();
    if let Some(field) = message.get_mut(2..4) {
        field.copy_from_slice(&check.to_be_bytes());
    }
}

/// Returns the second word of an error: the MTU (16 bits in ICMPv4), or zero.
fn detail(kind: IcmpKind, from: IpAddr) -> u32 {
    match kind {
        IcmpKind::PacketTooBig { mtu } if from.is_ipv4() => mtu.min(0xffff),
        IcmpKind::PacketTooBig { mtu } => mtu,
        IcmpKind::NetUnreachable
        | IcmpKind::HostUnreachable
        | IcmpKind::ProtocolUnreachable
        | IcmpKind::PortUnreachable
        | IcmpKind::AdminProhibited
        | IcmpKind::TimeExceeded
        | IcmpKind::ParameterProblem
        | IcmpKind::SourceQuench => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChecksumCheck, ChecksumFill, Flags, Packet, TcpHeader};
    use std::vec;

    const KINDS: [IcmpKind; 9] = [
        IcmpKind::NetUnreachable,
        IcmpKind::HostUnreachable,
        IcmpKind::ProtocolUnreachable,
        IcmpKind::PortUnreachable,
        IcmpKind::AdminProhibited,
        IcmpKind::PacketTooBig { mtu: 1400 },
        IcmpKind::TimeExceeded,
        IcmpKind::ParameterProblem,
        IcmpKind::SourceQuench,
    ];

    fn ends() -> [(IpMeta, IpAddr); 2] {
        [
            (IpMeta::new([192, 0, 2, 1].into(), [198, 51, 100, 9].into()), [203, 0, 113, 1].into()),
            (IpMeta::new([0x20; 16].into(), [0x2f; 16].into()), [0x26; 16].into()),
        ]
    }

    fn segment(ip: &IpMeta, len: usize) -> Vec<u8> {
        let tcp = TcpHeader {
            src_port: 49152,
            dst_port: 80,
            seq: SeqNum(0xdead_beef),
            flags: Flags::ACK,
            ..TcpHeader::default()
        };
        let mut out = Vec::new();
        crate::emit(ip, &tcp, &[&vec![7; len]], ChecksumFill::Full, &mut out).unwrap();
        out
    }

    fn error(from: IpAddr, offending: &[u8], kind: IcmpKind) -> Vec<u8> {
        let mut out = Vec::new();
        emit_icmp(from, offending, kind, &mut out);
        out
    }

    #[test]
    fn every_error_is_read_back_as_written() {
        for (ip, from) in ends() {
            for kind in KINDS {
                let bytes = error(from, &segment(&ip, 1400), kind);
                if kind == IcmpKind::SourceQuench && from.is_ipv6() {
                    assert!(bytes.is_empty(), "ICMPv6 has no source quench");
                    continue;
                }
                let expected = IcmpError {
                    from,
                    kind,
                    src: SocketAddr::new(ip.src, 49152),
                    dst: SocketAddr::new(ip.dst, 80),
                    seq: SeqNum(0xdead_beef),
                };
                assert_eq!(
                    crate::parse(&bytes, ChecksumCheck::Trust),
                    Ok(Packet::Icmp(expected)),
                    "{kind:?}"
                );
            }
        }
    }

    /// The kernel of the same host sends such an error if the MTU of the next link is too small for the
    /// segments of a super-packet.
    #[test]
    fn super_packet_without_length_is_found_by_its_quotation() {
        for (ip, from) in ends() {
            let mut offending = segment(&ip, 1400);
            let field = if ip.src.is_ipv4() { 2 } else { 4 };
            offending[field..field + 2].fill(0);
            let bytes = error(from, &offending, IcmpKind::PacketTooBig { mtu: 1400 });
            match crate::parse(&bytes, ChecksumCheck::Verify) {
                Ok(Packet::Icmp(error)) => assert_eq!(error.seq, SeqNum(0xdead_beef)),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn errors_are_no_longer_than_allowed() {
        let [v4, v6] = ends().map(|(ip, from)| {
            let mut out = Vec::new();
            emit_icmp_too_big(from, &segment(&ip, 3000), 1500, &mut out);
            out.len()
        });
        assert_eq!((v4, v6), (576, 1280));
    }

    #[test]
    fn mtu_beyond_the_ipv4_field_becomes_the_maximum() {
        let mtus = ends().map(|(ip, from)| {
            let bytes = error(from, &segment(&ip, 0), IcmpKind::PacketTooBig { mtu: 70_000 });
            match crate::parse(&bytes, ChecksumCheck::Verify) {
                Ok(Packet::Icmp(IcmpError { kind: IcmpKind::PacketTooBig { mtu }, .. })) => mtu,
                other => panic!("{other:?}"),
            }
        });
        assert_eq!(mtus, [65_535, 70_000]);
    }

    #[test]
    fn eight_bytes_of_the_segment_are_enough() {
        for (ip, from) in ends() {
            let offending = segment(&ip, 100);
            let least = ip.header_len() + 8;
            let bytes = error(from, &offending[..least], IcmpKind::TimeExceeded);
            assert!(matches!(crate::parse(&bytes, ChecksumCheck::Verify), Ok(Packet::Icmp(_))));
            assert!(error(from, &offending[..least - 1], IcmpKind::TimeExceeded).is_empty());
        }
    }

    #[test]
    fn codes_of_ipv4_unreachables() {
        use IcmpKind::{
            AdminProhibited, HostUnreachable, NetUnreachable, PortUnreachable, ProtocolUnreachable,
        };
        let kinds: Vec<IcmpKind> = (0..=15).filter_map(|code| kind_v4(3, code, 0)).collect();
        let expected = [
            NetUnreachable,
            HostUnreachable,
            ProtocolUnreachable,
            PortUnreachable,
            IcmpKind::PacketTooBig { mtu: 0 },
            HostUnreachable,
            NetUnreachable,
            HostUnreachable,
            HostUnreachable,
            AdminProhibited,
            AdminProhibited,
            NetUnreachable,
            HostUnreachable,
            AdminProhibited,
            AdminProhibited,
            AdminProhibited,
        ];
        assert_eq!((kinds, kind_v4(3, 16, 0), kind_v4(8, 0, 0)), (expected.to_vec(), None, None));
    }

    #[test]
    fn damaged_messages_are_refused() {
        for (ip, from) in ends() {
            let mut bytes = error(from, &segment(&ip, 0), IcmpKind::PortUnreachable);
            *bytes.last_mut().unwrap() ^= 1;
            assert_eq!(crate::parse(&bytes, ChecksumCheck::Trust), Err(ParseError::IcmpChecksum));
        }
    }

    #[test]
    fn errors_about_segments_of_other_hosts_are_ignored() {
        let [(ip, from), _] = ends();
        let mut message = vec![11, 0, 0, 0, 0, 0, 0, 0];
        message.extend(segment(&ip, 0));
        let check = Sum::of(&message).finish();
        message[2..4].copy_from_slice(&check.to_be_bytes());
        let mut packet = Vec::new();
        ip::emit_header(&IpMeta::new(from, from), protocol::ICMP, message.len(), &mut packet);
        packet.extend(message);
        assert!(matches!(
            crate::parse(&packet, ChecksumCheck::Verify),
            Ok(Packet::Other { protocol: 1, .. })
        ));
    }

    #[test]
    fn no_error_answers_an_error_or_crosses_ip_versions() {
        let [(v4, from_v4), (_, from_v6)] = ends();
        let first = error(from_v4, &segment(&v4, 0), IcmpKind::TimeExceeded);
        assert!(error(from_v4, &first, IcmpKind::TimeExceeded).is_empty());
        assert!(error(from_v6, &segment(&v4, 0), IcmpKind::TimeExceeded).is_empty());
        let mut out = vec![1];
        emit_icmp(from_v4, b"", IcmpKind::PortUnreachable, &mut out);
        assert!(out.is_empty());
    }
}
