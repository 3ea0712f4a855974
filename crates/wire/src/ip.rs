//! IPv4 and IPv6 headers (RFC 791, RFC 8200) as far as TCP needs them.
//!
//! IPv4 options are skipped. In IPv6, extension headers that a receiver may skip are skipped, up to a limit.
//! Fragments are rejected: a peer that sets DF, or that uses IPv6 and learns the path's MTU, sends none.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use alloc::vec::Vec;

use crate::checksum::Sum;
use crate::error::ParseError;

/// Maximum length of a packet written with a full TCP checksum, bytes: the maximum of the length field.
pub const MAX_PACKET_LEN: usize = 65_535;

/// Protocol numbers as in the IANA registry.
pub mod protocol {
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
}

/// Bytes of an IPv4 header without options.
pub const IPV4_HEADER_LEN: usize = 20;
/// Bytes of the fixed IPv6 header.
pub const IPV6_HEADER_LEN: usize = 40;
/// Limit of skipped extension headers; a packet with more is rejected (RFC 8504 section 5.3 permits a limit).
pub const MAX_EXTENSIONS: usize = 8;

/// The ECN field of the IP header (RFC 3168 section 5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Ecn {
    /// Not ECN-capable.
    #[default]
    NotEct,
    /// ECN-capable, ECT(1).
    Ect1,
    /// ECN-capable, ECT(0).
    Ect0,
    /// Congestion experienced.
    Ce,
}

impl Ecn {
    /// Converts the two low bits; higher bits are ignored.
    pub const fn from_bits(bits: u8) -> Ecn {
        match bits & 0b11 {
            0b00 => Ecn::NotEct,
            0b01 => Ecn::Ect1,
            0b10 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }

    /// Returns the two bits.
    pub const fn bits(self) -> u8 {
        match self {
            Ecn::NotEct => 0b00,
            Ecn::Ect1 => 0b01,
            Ecn::Ect0 => 0b10,
            Ecn::Ce => 0b11,
        }
    }
}

/// The fields of an IP header, except lengths and protocol.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IpMeta {
    /// Source address.
    pub src: IpAddr,
    /// Destination address, of the same version.
    pub dst: IpAddr,
    /// Time to live or hop limit.
    pub hop_limit: u8,
    /// The ECN field.
    pub ecn: Ecn,
    /// Differentiated services code point, 6 bits.
    pub dscp: u8,
    /// Identification; IPv4 only, else 0.
    pub identification: u16,
    /// True if the don't-fragment flag is set. Always true for IPv6, which no router fragments.
    pub dont_fragment: bool,
    /// Flow label, 20 bits; IPv6 only, else 0.
    pub flow_label: u32,
}

impl IpMeta {
    /// Returns a header with hop limit 64, not ECN-capable, DF set.
    pub const fn new(src: IpAddr, dst: IpAddr) -> Self {
        IpMeta {
            src,
            dst,
            hop_limit: 64,
            ecn: Ecn::NotEct,
            dscp: 0,
            identification: 0,
            dont_fragment: true,
            flow_label: 0,
        }
    }

    /// Returns the length of the header that [`emit`](crate::emit) writes: 20 bytes for IPv4, 40 for IPv6.
    pub const fn header_len(&self) -> usize {
        match self.src {
            IpAddr::V4(_) => IPV4_HEADER_LEN,
            IpAddr::V6(_) => IPV6_HEADER_LEN,
        }
    }
}

/// A parsed header: its fields and the offsets of the packet's parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpHeader {
    /// The fields.
    pub meta: IpMeta,
    /// The protocol of the payload, after extension headers.
    pub protocol: u8,
    /// Offset of the payload, after options and extension headers.
    pub payload_at: usize,
    /// End of the packet. Bytes after it are padding of the link.
    pub end: usize,
}

/// Strictness of parsing a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strictness {
    /// A received packet: complete, no fragment, with a correct header checksum.
    Arrived,
    /// A packet of this host, or one that is parsed fully later. The header checksum is not verified.
    Peeked,
    /// A quotation in an ICMP error: it may be truncated or a first fragment. Routers may have changed the
    /// header without correcting its checksum.
    Quoted,
}

impl IpHeader {
    /// Parses the IP header of `packet` and skips its extension headers.
    ///
    /// # Errors
    /// The reasons of [`ParseError`] that concern IP.
    #[inline]
    pub fn parse(packet: &[u8], strictness: Strictness) -> Result<IpHeader, ParseError> {
        match packet.first().map(|byte| byte >> 4) {
            Some(4) => parse_v4(packet, strictness),
            Some(6) => parse_v6(packet, strictness),
            Some(_) => Err(ParseError::Version),
            None => Err(ParseError::Truncated),
        }
    }
}

#[inline]
fn parse_v4(packet: &[u8], strictness: Strictness) -> Result<IpHeader, ParseError> {
    let (fixed, _) = packet.split_first_chunk::<IPV4_HEADER_LEN>().ok_or(ParseError::Truncated)?;
    let payload_at = usize::from(fixed[0] & 0x0f) * 4;
    let total_len = announced([fixed[2], fixed[3]], 0, packet, strictness);
    if payload_at < IPV4_HEADER_LEN || total_len < payload_at {
        return Err(ParseError::IpHeaderLength);
    }
    let header = packet.get(..payload_at).ok_or(ParseError::Truncated)?;
    let end = packet_end(packet, total_len, strictness)?;
    if strictness == Strictness::Arrived && sum_of_v4(header).finish() != 0 {
        return Err(ParseError::IpChecksum);
    }
    let fragment = u16::from_be_bytes([fixed[6], fixed[7]]);
    // More fragments, or an offset. In a quotation, only the first fragment holds the TCP header.
    let fragmented = match strictness {
        Strictness::Arrived | Strictness::Peeked => fragment & 0x3fff != 0,
        Strictness::Quoted => fragment & 0x1fff != 0,
    };
    if fragmented {
        return Err(ParseError::Fragment);
    }
    let meta = IpMeta {
        src: Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15]).into(),
        dst: Ipv4Addr::new(fixed[16], fixed[17], fixed[18], fixed[19]).into(),
        hop_limit: fixed[8],
        ecn: Ecn::from_bits(fixed[1]),
        dscp: fixed[1] >> 2,
        identification: u16::from_be_bytes([fixed[4], fixed[5]]),
        dont_fragment: fragment & 0x4000 != 0,
        flow_label: 0,
    };
    Ok(IpHeader { meta, protocol: fixed[9], payload_at, end })
}

fn parse_v6(packet: &[u8], strictness: Strictness) -> Result<IpHeader, ParseError> {
    let (fixed, _) = packet.split_first_chunk::<IPV6_HEADER_LEN>().ok_or(ParseError::Truncated)?;
    let first = u32::from_be_bytes([fixed[0], fixed[1], fixed[2], fixed[3]]);
    let total_len = announced([fixed[4], fixed[5]], IPV6_HEADER_LEN, packet, strictness);
    let end = packet_end(packet, total_len, strictness)?;
    let (protocol, payload_at) = walk_extensions(packet.get(..end).unwrap_or(packet), fixed[6], strictness)?;
    let meta = IpMeta {
        src: v6_address(packet, 8).into(),
        dst: v6_address(packet, 24).into(),
        hop_limit: fixed[7],
        ecn: Ecn::from_bits((first >> 20) as u8),
        dscp: (first >> 22) as u8 & 0x3f,
        identification: 0,
        dont_fragment: true,
        flow_label: first & 0xf_ffff,
    };
    Ok(IpHeader { meta, protocol, payload_at, end })
}

/// Returns the packet length that the length field gives. The field does not count `uncounted` bytes. The
/// value 0 stands for the length of `packet` in quotations, and in [`Peeked`](Strictness::Peeked) packets
/// that are too long for the field.
fn announced(field: [u8; 2], uncounted: usize, packet: &[u8], strictness: Strictness) -> usize {
    let says_nothing = match strictness {
        Strictness::Arrived => false,
        Strictness::Peeked => packet.len() > MAX_PACKET_LEN,
        Strictness::Quoted => true,
    };
    match u16::from_be_bytes(field) {
        0 if says_nothing => packet.len(),
        len => uncounted + usize::from(len),
    }
}

/// Returns the offset in `packet` at which a packet of `total_len` bytes ends.
fn packet_end(packet: &[u8], total_len: usize, strictness: Strictness) -> Result<usize, ParseError> {
    match strictness {
        Strictness::Arrived | Strictness::Peeked if total_len > packet.len() => Err(ParseError::Truncated),
        Strictness::Arrived | Strictness::Peeked | Strictness::Quoted => Ok(total_len.min(packet.len())),
    }
}

/// Returns the address at `at`; the caller has checked the length.
fn v6_address(packet: &[u8], at: usize) -> Ipv6Addr {
    let octets = packet.get(at..).and_then(|rest| rest.first_chunk::<16>());
    Ipv6Addr::from(octets.copied().unwrap_or_default())
}

/// Follows the chain of extension headers (RFC 8200 section 4) from the fixed header. Returns the protocol
/// after the chain and the offset of its header.
fn walk_extensions(packet: &[u8], first: u8, strictness: Strictness) -> Result<(u8, usize), ParseError> {
    let (mut next, mut at) = (first, IPV6_HEADER_LEN);
    for _ in 0..=MAX_EXTENSIONS {
        let skipped = match Extension::of(next) {
            Extension::None => return Ok((next, at)),
            Extension::Authentication => return Err(ParseError::UnsupportedExtension),
            skippable => skippable,
        };
        let header =
            packet.get(at..).and_then(|rest| rest.first_chunk::<8>()).ok_or(ParseError::Truncated)?;
        let len = match skipped {
            // RFC 6946: a fragment header without offset and more-fragments means a complete packet.
            Extension::Fragment => {
                let fragment = u16::from_be_bytes([header[2], header[3]]);
                let beyond_first = fragment & 0xfff8 != 0;
                if beyond_first || (fragment & 1 != 0 && strictness != Strictness::Quoted) {
                    return Err(ParseError::Fragment);
                }
                8
            }
            // Segments left: this host is not the final destination.
            Extension::Routing if header[3] != 0 => return Err(ParseError::UnsupportedExtension),
            _ => 8 + usize::from(header[1]) * 8,
        };
        next = header[0];
        at += len;
        if at > packet.len() {
            return Err(ParseError::Truncated);
        }
    }
    Err(ParseError::UnsupportedExtension)
}

/// Kinds of extension headers, by how each is skipped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extension {
    /// Not an extension header: the chain ends.
    None,
    /// Hop-by-hop, destination options, mobility, HIP, shim6: skipped by their length.
    Options,
    Routing,
    Fragment,
    /// The sender requested an authentication that this crate cannot verify.
    Authentication,
}

impl Extension {
    fn of(next_header: u8) -> Extension {
        match next_header {
            0 | 60 | 135 | 139 | 140 => Extension::Options,
            43 => Extension::Routing,
            44 => Extension::Fragment,
            51 => Extension::Authentication,
            _ => Extension::None,
        }
    }
}

/// Appends an IP header for `payload_len` bytes of `protocol` to `out`. The caller has checked the total
/// length and that both addresses are of one version.
#[inline]
pub(crate) fn emit_header(meta: &IpMeta, protocol: u8, payload_len: usize, out: &mut Vec<u8>) {
    let traffic_class = meta.dscp << 2 | meta.ecn.bits();
    match (meta.src, meta.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let flags: u32 = if meta.dont_fragment { 0x4000 } else { 0 };
            let len = length_field(IPV4_HEADER_LEN + payload_len);
            let fields = [
                u32::from_be_bytes([0x45, traffic_class, 0, 0]) | u32::from(len),
                u32::from(meta.identification) << 16 | flags,
                // The checksum is set below.
                u32::from_be_bytes([meta.hop_limit, protocol, 0, 0]),
                src.to_bits(),
                dst.to_bits(),
            ];
            let mut words = fields.map(u32::to_be_bytes);
            let [check, sum] = Sum::of_words(&words).finish().to_be_bytes();
            words[2] = [meta.hop_limit, protocol, check, sum];
            out.extend_from_slice(words.as_flattened());
        }
        (src, dst) => {
            let first = 6 << 28 | u32::from(traffic_class) << 20 | meta.flow_label & 0xf_ffff;
            out.extend_from_slice(&first.to_be_bytes());
            out.extend_from_slice(&length_field(payload_len).to_be_bytes());
            out.extend_from_slice(&[protocol, meta.hop_limit]);
            out.extend_from_slice(&v6_octets(src));
            out.extend_from_slice(&v6_octets(dst));
        }
    }
}

/// Returns the value of a header's length field: 0 for lengths above its maximum
/// ([`MAX_SUPER_LEN`](crate::MAX_SUPER_LEN)).
pub(crate) fn length_field(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(0)
}

/// Returns the octets of an address in an IPv6 header.
fn v6_octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Returns the sum of an IPv4 header. The first branch handles headers without options, which are nearly all.
#[inline]
fn sum_of_v4(header: &[u8]) -> Sum {
    match header.as_chunks::<4>().0.as_array::<5>() {
        Some(words) => Sum::of_words(words),
        None => Sum::of(header),
    }
}

/// Writes the checksum of an IPv4 header, which is all of `header`. A shorter slice is not changed.
pub(crate) fn fill_v4_checksum(header: &mut [u8]) {
    if let Some(field) = header.get_mut(10..12) {
        field.fill(0);
        let check = sum_of_v4(header).finish();
        if let Some(field) = header.get_mut(10..12) {
            field.copy_from_slice(&check.to_be_bytes());
        }
    }
}

#[cfg(test)]
pub(crate) mod arbitrary {
    //! Headers of both versions.

    use super::*;
    use proptest::prelude::*;

    /// Any header that [`emit_header`] can write.
    pub(crate) fn meta() -> impl Strategy<Value = IpMeta> {
        let addresses = prop_oneof![
            any::<([u8; 4], [u8; 4])>().prop_map(|(src, dst)| (IpAddr::from(src), IpAddr::from(dst))),
            any::<([u8; 16], [u8; 16])>().prop_map(|(src, dst)| (IpAddr::from(src), IpAddr::from(dst))),
        ];
        (addresses, any::<(u8, u8, u16, bool)>(), 0u8..64, 0u32..1 << 20).prop_map(
            |((src, dst), (hop_limit, ecn, identification, dont_fragment), dscp, flow_label)| {
                let common = IpMeta { hop_limit, ecn: Ecn::from_bits(ecn), dscp, ..IpMeta::new(src, dst) };
                match src {
                    IpAddr::V4(_) => IpMeta { identification, dont_fragment, ..common },
                    IpAddr::V6(_) => IpMeta { flow_label, ..common },
                }
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;

    const V4: fn() -> IpMeta = || IpMeta::new([192, 0, 2, 1].into(), [198, 51, 100, 9].into());
    const V6: fn() -> IpMeta = || IpMeta::new([0x20; 16].into(), [0x2f; 16].into());

    fn packet(meta: &IpMeta, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        emit_header(meta, protocol, payload.len(), &mut out);
        out.extend_from_slice(payload);
        out
    }

    fn arrived(packet: &[u8]) -> Result<IpHeader, ParseError> {
        IpHeader::parse(packet, Strictness::Arrived)
    }

    /// Returns an IPv6 packet with these extension headers before four bytes of TCP.
    fn v6_chain(headers: &[(u8, &[u8])]) -> Vec<u8> {
        let mut payload = Vec::new();
        for (index, (_, rest)) in headers.iter().enumerate() {
            payload.push(headers.get(index + 1).map_or(protocol::TCP, |(kind, _)| *kind));
            payload.extend_from_slice(rest);
        }
        payload.extend([1, 2, 3, 4]);
        packet(&V6(), headers.first().map_or(protocol::TCP, |(kind, _)| *kind), &payload)
    }

    #[test]
    fn versions_other_than_4_and_6_are_refused() {
        assert_eq!(arrived(&[]), Err(ParseError::Truncated));
        for version in (0u8..16).filter(|version| !matches!(version, 4 | 6)) {
            assert_eq!(arrived(&[version << 4; 60]), Err(ParseError::Version));
        }
    }

    #[test]
    fn ipv4_lengths_must_agree() {
        let good = packet(&V4(), 6, &[0; 8]);
        for (at, value, reason) in [
            (0, 0x44, ParseError::IpHeaderLength),
            (3, 19, ParseError::IpHeaderLength),
            (3, 29, ParseError::Truncated),
            (0, 0x4f, ParseError::IpHeaderLength),
            (8, 1, ParseError::IpChecksum),
        ] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(arrived(&bad), Err(reason), "byte {at} = {value}");
        }
        assert_eq!(arrived(&good[..19]), Err(ParseError::Truncated));
        assert_eq!(arrived(&good[..27]), Err(ParseError::Truncated));
    }

    #[test]
    fn padding_of_the_link_is_not_payload() {
        for meta in [V4(), V6()] {
            let mut padded = packet(&meta, 6, &[7; 5]);
            let len = padded.len();
            padded.extend([0; 13]);
            assert_eq!(arrived(&padded).map(|header| (header.payload_at, header.end)), Ok((len - 5, len)));
        }
    }

    #[test]
    fn ipv4_options_are_skipped() {
        let mut bytes = packet(&V4(), 6, &[1, 1, 1, 1, 9, 9]);
        bytes[0] = 0x46;
        fill_v4_checksum(&mut bytes[..24]);
        assert_eq!(arrived(&bytes).map(|header| header.payload_at), Ok(24));
    }

    #[test]
    fn fragments_are_refused_with_their_own_reason() {
        for fragment in [0x2000u16, 0x0001, 0x1fff, 0x2001] {
            let mut bytes = packet(&V4(), 6, &[0; 8]);
            bytes[6..8].copy_from_slice(&fragment.to_be_bytes());
            fill_v4_checksum(&mut bytes[..20]);
            assert_eq!(arrived(&bytes), Err(ParseError::Fragment), "{fragment:04x}");
        }
        let fragment = |offset: u8| v6_chain(&[(44, &[0, 0, offset, 0, 0, 0, 1][..])]);
        assert_eq!(arrived(&fragment(8)), Err(ParseError::Fragment));
        assert_eq!(arrived(&v6_chain(&[(44, &[0, 0, 1, 0, 0, 0, 1])])), Err(ParseError::Fragment));
    }

    #[test]
    fn an_atomic_fragment_is_a_whole_packet() {
        // RFC 6946: offset 0 and no more fragments.
        let header = arrived(&v6_chain(&[(44, &[0, 0, 0, 0, 0, 0, 1])])).unwrap();
        assert_eq!((header.protocol, header.payload_at), (protocol::TCP, 48));
    }

    #[test]
    fn quotation_may_be_truncated_and_a_first_fragment() {
        let mut bytes = packet(&V4(), 6, &[0; 100]);
        bytes[6] = 0x20;
        let header = IpHeader::parse(&bytes[..28], Strictness::Quoted).unwrap();
        assert_eq!((header.payload_at, header.end), (20, 28));
        bytes[7] = 1;
        assert_eq!(IpHeader::parse(&bytes, Strictness::Quoted), Err(ParseError::Fragment));
    }

    #[test]
    fn extension_headers_are_walked() {
        let hop_by_hop: (u8, &[u8]) = (0, &[0, 1, 4, 0, 0, 0, 0]);
        let destination: (u8, &[u8]) = (60, &[1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let finished_routing: (u8, &[u8]) = (43, &[0, 0, 0, 0, 0, 0, 0]);
        let header = arrived(&v6_chain(&[hop_by_hop, destination, finished_routing])).unwrap();
        assert_eq!((header.protocol, header.payload_at, header.end), (protocol::TCP, 72, 76));
    }

    #[test]
    fn extension_headers_that_cannot_be_skipped_are_refused() {
        let authentication: (u8, &[u8]) = (51, &[0; 7]);
        let unfinished_routing: (u8, &[u8]) = (43, &[0, 0, 1, 0, 0, 0, 0]);
        for chain in [&[authentication][..], &[unfinished_routing]] {
            assert_eq!(arrived(&v6_chain(chain)), Err(ParseError::UnsupportedExtension));
        }
    }

    #[test]
    fn the_walk_is_bounded() {
        let empty: (u8, &[u8]) = (60, &[0, 1, 4, 0, 0, 0, 0]);
        assert!(arrived(&v6_chain(&[empty; MAX_EXTENSIONS])).is_ok());
        assert_eq!(arrived(&v6_chain(&[empty; MAX_EXTENSIONS + 1])), Err(ParseError::UnsupportedExtension));
        // The option announces sixteen bytes; eight of the header and four more are present.
        let too_long: (u8, &[u8]) = (60, &[1, 1, 4, 0, 0, 0, 0]);
        assert_eq!(arrived(&v6_chain(&[too_long])), Err(ParseError::Truncated));
        assert_eq!(arrived(&packet(&V6(), 60, &[6, 0, 0])), Err(ParseError::Truncated));
    }

    proptest! {
        #[test]
        fn headers_are_read_back(meta in arbitrary::meta(), protocol in 61u8..130, len in 0usize..2000) {
            let bytes = packet(&meta, protocol, &vec![0; len]);
            let header = arrived(&bytes).unwrap();
            let payload_at = meta.header_len();
            prop_assert_eq!(header, IpHeader { meta, protocol, payload_at, end: payload_at + len });
        }
    }
}
