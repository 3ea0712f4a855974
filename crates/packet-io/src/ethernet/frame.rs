//! Ethernet frames, ARP (RFC 826) and the two messages of neighbour discovery that a host needs (RFC 4861
//! sections 4.3 and 4.4): bytes to values and back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::headers::{fold, sum};

/// A hardware address.
pub(crate) type Mac = [u8; 6];

/// Length of an Ethernet header: destination, source, type.
pub(super) const HEADER: usize = 14;
/// The broadcast address.
pub(super) const BROADCAST: Mac = [0xFF; 6];
const TYPE_IPV4: u16 = 0x0800;
const TYPE_ARP: u16 = 0x0806;
const TYPE_IPV6: u16 = 0x86DD;
/// Hardware type Ethernet, protocol type IPv4, and the lengths of both addresses.
const ARP_HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_REQUEST: u8 = 1;
const ARP_REPLY: u8 = 2;
const ICMPV6: u8 = 58;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Options of neighbour discovery that have a hardware address.
const OPTION_SOURCE: u8 = 1;
const OPTION_TARGET: u8 = 2;
/// The flags S and O of an advertisement: it answers a solicitation, and replaces the cached address.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// Required hop limit, which shows that no router has forwarded the packet (RFC 4861 section 7.1).
const MAX_HOPS: u8 = 255;
const IPV6_HEADER: usize = 40;

/// Payload of a received frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Payload<'a> {
    /// An IP packet for the stack.
    Ip(&'a [u8]),
    /// A message of ARP or neighbour discovery.
    Neighbour(NeighbourMessage),
    /// Any other or malformed frame.
    Other,
}

/// A message of ARP or neighbour discovery, for both families.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NeighbourMessage {
    pub(super) kind: QueryKind,
    /// Sender; unspecified in a probe for duplicate addresses (RFC 5227, RFC 4862 section 5.4).
    pub(super) sender: IpAddr,
    /// The hardware address of the sender, or of the target in an advertisement.
    pub(super) mac: Option<Mac>,
    /// The address that is queried or advertised.
    pub(super) target: IpAddr,
}

/// Query or answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueryKind {
    Query,
    Answer,
}

pub(super) fn parse(frame: &[u8]) -> Payload<'_> {
    let (Some(kind), Some(body)) = (frame.get(12..HEADER), frame.get(HEADER..)) else {
        return Payload::Other;
    };
    match (u16::from_be_bytes([kind[0], kind[1]]), body.first().map(|first| first >> 4)) {
        (TYPE_ARP, _) => parse_arp(body).map_or(Payload::Other, Payload::Neighbour),
        (TYPE_IPV4, Some(4)) => Payload::Ip(trimmed(body, body.get(2..4), 0)),
        (TYPE_IPV6, Some(6)) => {
            let packet = trimmed(body, body.get(4..6), IPV6_HEADER);
            match discovery(packet) {
                Some(message) => message.map_or(Payload::Other, Payload::Neighbour),
                None => Payload::Ip(packet),
            }
        }
        _ => Payload::Other,
    }
}

/// Returns the packet without the padding of short frames. `length` is the length field of the IP header,
/// which does not count the first `beyond` bytes. Zero means a jumbogram or a super-packet: all of it.
fn trimmed<'a>(body: &'a [u8], length: Option<&[u8]>, beyond: usize) -> &'a [u8] {
    let Some(&[high, low]) = length else { return body };
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length == 0 { body } else { body.get(..length + beyond).unwrap_or(body) }
}

fn parse_arp(body: &[u8]) -> Option<NeighbourMessage> {
    let body: &[u8; 28] = body.first_chunk()?;
    if body[..6] != ARP_HEAD || body[6] != 0 {
        return None;
    }
    let kind = match body[7] {
        ARP_REQUEST => QueryKind::Query,
        ARP_REPLY => QueryKind::Answer,
        _ => return None,
    };
    let v4 = |at: usize| Some(IpAddr::V4(Ipv4Addr::from(*body.get(at..at + 4)?.first_chunk::<4>()?)));
    let mac = body.get(8..14)?.first_chunk().copied().filter(is_unicast);
    let (sender, told) = (v4(14)?, v4(24)?);
    // A reply is about its sender.
    let target = if kind == QueryKind::Answer { sender } else { told };
    Some(NeighbourMessage { kind, sender, mac, target })
}

/// Parses a message of neighbour discovery. `None`: another message; `Some(None)`: a message that must be
/// ignored (RFC 4861 section 7.1).
fn discovery(packet: &[u8]) -> Option<Option<NeighbourMessage>> {
    let icmp = packet.get(IPV6_HEADER..)?;
    let kind = match (packet.get(6)?, icmp.first()?) {
        (&ICMPV6, &SOLICITATION) => QueryKind::Query,
        (&ICMPV6, &ADVERTISEMENT) => QueryKind::Answer,
        _ => return None,
    };
    Some(checked_discovery(kind, packet, icmp))
}

fn checked_discovery(kind: QueryKind, packet: &[u8], icmp: &[u8]) -> Option<NeighbourMessage> {
    let address = |bytes: &[u8]| Some(Ipv6Addr::from(*bytes.first_chunk::<16>()?));
    let sender = address(packet.get(8..)?)?;
    let target = address(icmp.get(8..)?)?;
    let untouched = packet.get(7) == Some(&MAX_HOPS) && icmp.get(1) == Some(&0);
    if !untouched || target.is_multicast() || icmp_checksum(packet, icmp) != 0 {
        return None;
    }
    let wanted = if kind == QueryKind::Query { OPTION_SOURCE } else { OPTION_TARGET };
    let mac = hardware_option(icmp.get(24..)?, wanted)?;
    Some(NeighbourMessage { kind, sender: sender.into(), mac, target: target.into() })
}

/// Returns the hardware address in the option `wanted`, if there is one; `None` if an option is malformed.
fn hardware_option(mut options: &[u8], wanted: u8) -> Option<Option<Mac>> {
    let mut found = None;
    while let [kind, length, ..] = *options {
        let (option, rest) = options.split_at_checked(usize::from(length) * 8).filter(|_| length > 0)?;
        if kind == wanted {
            found = option.get(2..).and_then(|mac| mac.first_chunk().copied()).filter(is_unicast);
        }
        options = rest;
    }
    Some(found)
}

fn is_unicast(mac: &Mac) -> bool {
    mac[0] & 1 == 0
}

/// Returns the checksum of an ICMPv6 message with its pseudo-header (RFC 8200 section 8.1); 0 if the message
/// has a correct checksum.
fn icmp_checksum(packet: &[u8], icmp: &[u8]) -> u16 {
    let addresses = packet.get(8..IPV6_HEADER).unwrap_or_default();
    !fold(sum(addresses) + icmp.len() as u64 + u64::from(ICMPV6) + sum(icmp))
}

/// Writes a frame with an IP packet.
pub(super) fn with_ip(to: Mac, from: Mac, packet: &[u8], frame: &mut Vec<u8>) {
    let v6 = packet.first().is_some_and(|first| first >> 4 == 6);
    header(to, from, if v6 { TYPE_IPV6 } else { TYPE_IPV4 }, frame);
    frame.extend_from_slice(packet);
}

fn header(to: Mac, from: Mac, kind: u16, frame: &mut Vec<u8>) {
    frame.clear();
    frame.extend_from_slice(&to);
    frame.extend_from_slice(&from);
    frame.extend_from_slice(&kind.to_be_bytes());
}

/// Returns the frame in which `from`, at `mac`, queries the hardware address of `target`. `None` if the two
/// addresses are of different families.
pub(super) fn query(mac: Mac, from: IpAddr, target: IpAddr) -> Option<Vec<u8>> {
    match (from, target) {
        (IpAddr::V4(from), IpAddr::V4(target)) => {
            Some(arp(BROADCAST, ARP_REQUEST, (mac, from), ([0; 6], target)))
        }
        (IpAddr::V6(from), IpAddr::V6(target)) => {
            let group = solicited_node(target);
            Some(icmp(multicast_mac(group), (mac, from), group, SOLICITATION, 0, target, OPTION_SOURCE))
        }
        _ => None,
    }
}

/// Returns the frame that answers `question`: its target is at `mac`.
pub(super) fn answer(mac: Mac, question: &NeighbourMessage) -> Option<Vec<u8>> {
    match (question.sender, question.target) {
        (IpAddr::V4(asker), IpAddr::V4(target)) => {
            let to = question.mac?;
            Some(arp(to, ARP_REPLY, (mac, target), (to, asker)))
        }
        (IpAddr::V6(asker), IpAddr::V6(target)) => {
            // A solicitation without sender address is answered to all nodes (RFC 4861 section 7.2.4).
            let everybody = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1);
            let (asker, flags) = match asker.is_unspecified() {
                true => (everybody, OVERRIDE),
                false => (asker, SOLICITED | OVERRIDE),
            };
            let to = question.mac.filter(|_| !asker.is_multicast()).unwrap_or_else(|| multicast_mac(asker));
            // A unicast sender without a hardware address in its message cannot be reached.
            let reachable = asker.is_multicast() || question.mac.is_some();
            reachable.then(|| icmp(to, (mac, target), asker, ADVERTISEMENT, flags, target, OPTION_TARGET))
        }
        _ => None,
    }
}

fn arp(to: Mac, operation: u8, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER + 28);
    header(to, sender.0, TYPE_ARP, &mut frame);
    frame.extend_from_slice(&ARP_HEAD);
    frame.extend_from_slice(&[0, operation]);
    for (mac, address) in [sender, target] {
        frame.extend_from_slice(&mac);
        frame.extend_from_slice(&address.octets());
    }
    frame
}

/// Returns a message of neighbour discovery with one option, the hardware address of the sender.
fn icmp(
    to: Mac,
    (mac, from): (Mac, Ipv6Addr),
    destination: Ipv6Addr,
    kind: u8,
    flags: u8,
    target: Ipv6Addr,
    option: u8,
) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 32, ICMPV6, MAX_HOPS];
    packet.extend_from_slice(&from.octets());
    packet.extend_from_slice(&destination.octets());
    packet.extend_from_slice(&[kind, 0, 0, 0, flags, 0, 0, 0]);
    packet.extend_from_slice(&target.octets());
    packet.extend_from_slice(&[option, 1]);
    packet.extend_from_slice(&mac);
    let (head, message) = packet.split_at(IPV6_HEADER);
    let checksum = icmp_checksum(head, message).to_be_bytes();
    packet[IPV6_HEADER + 2..IPV6_HEADER + 4].copy_from_slice(&checksum);
    let mut frame = Vec::with_capacity(HEADER + packet.len());
    with_ip(to, mac, &packet, &mut frame);
    frame
}

/// Returns the solicited-node multicast address of an address (RFC 4291 section 2.7.1).
fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., high, low] = address.segments();
    Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 1, 0xFF00 | high & 0xFF, low)
}

/// Returns the hardware address of a multicast address (RFC 2464 section 7).
fn multicast_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

/// Returns the multicast hardware address that a host with `address` must receive, if there is one.
pub(super) fn group_of(address: IpAddr) -> Option<Mac> {
    match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(v6) => Some(multicast_mac(solicited_node(v6))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Mac = [2, 0, 0, 0, 0, 1];
    const THEIRS: Mac = [2, 0, 0, 0, 0, 2];

    fn message(frame: &[u8]) -> NeighbourMessage {
        match parse(frame) {
            Payload::Neighbour(message) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn query_and_answer_are_parsed_as_written_in_both_families() {
        for (own, other) in [("10.1.0.2", "10.1.0.1"), ("fd00::2", "fd00::ab:cdef")] {
            let (own, other): (IpAddr, IpAddr) = (own.parse().unwrap(), other.parse().unwrap());
            let question = message(&query(OURS, own, other).unwrap());
            assert_eq!(
                question,
                NeighbourMessage { kind: QueryKind::Query, sender: own, mac: Some(OURS), target: other }
            );
            let frame = answer(THEIRS, &question).unwrap();
            assert_eq!(frame[..6], OURS);
            let answer = message(&frame);
            assert_eq!(
                answer,
                NeighbourMessage { kind: QueryKind::Answer, sender: other, mac: Some(THEIRS), target: other }
            );
        }
    }

    #[test]
    fn queries_are_broadcast_or_sent_to_the_multicast_group() {
        let arp = query(OURS, "10.1.0.2".parse().unwrap(), "10.1.0.1".parse().unwrap()).unwrap();
        assert_eq!((&arp[..6], arp.len()), (&BROADCAST[..], 42));
        let target: IpAddr = "fd00::12ab:cdef".parse().unwrap();
        let solicitation = query(OURS, "fd00::2".parse().unwrap(), target).unwrap();
        assert_eq!(solicitation[..6], [0x33, 0x33, 0xFF, 0xAB, 0xCD, 0xEF]);
        assert_eq!(solicitation[38..54], "ff02::1:ffab:cdef".parse::<Ipv6Addr>().unwrap().octets());
        assert_eq!(group_of(target), Some([0x33, 0x33, 0xFF, 0xAB, 0xCD, 0xEF]));
        assert_eq!(query(OURS, "10.1.0.2".parse().unwrap(), target), None);
    }

    #[test]
    fn duplicate_address_probe_is_answered_to_all_nodes() {
        let target: IpAddr = "fd00::7".parse().unwrap();
        let mac = Some(THEIRS);
        let question = NeighbourMessage {
            kind: QueryKind::Query,
            sender: Ipv6Addr::UNSPECIFIED.into(),
            mac: None,
            target,
        };
        let frame = answer(OURS, &question).unwrap();
        assert_eq!(frame[..6], [0x33, 0x33, 0, 0, 0, 1]);
        assert_eq!(frame[38..54], "ff02::1".parse::<Ipv6Addr>().unwrap().octets());
        // The flag S would mean an answer to a solicitation with a sender address.
        assert_eq!(frame[58], OVERRIDE);
        let known = NeighbourMessage { sender: "fd00::9".parse().unwrap(), mac, ..question };
        assert_eq!(answer(OURS, &known).unwrap()[58], SOLICITED | OVERRIDE);
        let silent = NeighbourMessage { mac: None, ..known };
        assert_eq!(answer(OURS, &silent), None);
    }

    #[test]
    fn forwarded_or_damaged_message_is_ignored() {
        let good = query(OURS, "fd00::2".parse().unwrap(), "fd00::1".parse().unwrap()).unwrap();
        for at in [HEADER + 7, HEADER + 41, HEADER + 42, HEADER + 50, HEADER + 65] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(parse(&bad), Payload::Other, "byte {at}");
        }
        for len in 0..good.len() {
            assert!(!matches!(parse(&good[..len]), Payload::Neighbour(_)), "{len} bytes");
        }
        let arp = query(OURS, "10.1.0.2".parse().unwrap(), "10.1.0.1".parse().unwrap()).unwrap();
        for at in HEADER..HEADER + 7 {
            let mut bad = arp.clone();
            bad[at] ^= 0x80;
            assert_eq!(parse(&bad), Payload::Other, "byte {at}");
        }
    }

    #[test]
    fn padding_is_not_part_of_the_packet() {
        let packet = crate::testing::Tcp::v4().packet();
        let mut frame = Vec::new();
        with_ip(OURS, THEIRS, &packet, &mut frame);
        frame.resize(60, 0);
        assert_eq!(parse(&frame), Payload::Ip(&packet));
        let packet = crate::testing::Tcp::v6().packet();
        with_ip(OURS, THEIRS, &packet, &mut frame);
        frame.extend([0; 9]);
        assert_eq!(parse(&frame), Payload::Ip(&packet));
    }
}
