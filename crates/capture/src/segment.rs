//! The fields of a packet that the analysis uses: addresses, sequence numbers, lengths, three options.

use std::net::{IpAddr, SocketAddr};

use etherparse::{EtherType, LaxNetSlice, LaxSlicedPacket, TcpOptionElement, TransportSlice};
use pcap_parser::Linktype;

use crate::reader::Frame;

/// Link types of the tcpdump registry for which the parser has no constant.
const LINUX_SLL2: Linktype = Linktype(276);
const SLL_HEADER: usize = 16;
const SLL2_HEADER: usize = 20;

/// A TCP segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Nanoseconds since the epoch.
    pub at: u64,
    /// The sender's address.
    pub source: SocketAddr,
    /// The receiver's address.
    pub destination: SocketAddr,
    /// The IPv4 identification; IPv6 has none.
    pub ip_id: Option<u16>,
    /// Sequence number of the first byte, or of SYN.
    pub seq: u32,
    /// The acknowledgement number, if the ACK flag is set.
    pub ack: Option<u32>,
    /// True if SYN is set.
    pub syn: bool,
    /// True if FIN is set.
    pub fin: bool,
    /// True if RST is set.
    pub rst: bool,
    /// Bytes of payload on the wire, even if fewer were captured.
    pub len: u32,
    /// The MSS option of a SYN.
    pub mss: Option<u16>,
    /// TSval of the timestamp option.
    pub ts: Option<u32>,
    /// First and second SACK block.
    pub sack: [Option<(u32, u32)>; 2],
}

/// The kind of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A TCP segment with a complete header.
    Tcp(Segment),
    /// TCP whose header is cut off or damaged, or a fragment.
    Unreadable,
    /// Any other packet.
    Other,
}

/// Parses a packet.
pub fn parse(frame: &Frame<'_>) -> Kind {
    let Some(packet) = slice(frame) else { return Kind::Other };
    let (source, destination, ip_id, is_tcp) = match &packet.net {
        Some(LaxNetSlice::Ipv4(ip)) => {
            let header = ip.header();
            let addresses = (IpAddr::V4(header.source_addr()), IpAddr::V4(header.destination_addr()));
            (addresses.0, addresses.1, Some(header.identification()), header.protocol().0 == 6)
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            let header = ip.header();
            let addresses = (IpAddr::V6(header.source_addr()), IpAddr::V6(header.destination_addr()));
            (addresses.0, addresses.1, None, header.next_header().0 == 6)
        }
        _ => return Kind::Other,
    };
    let Some(TransportSlice::Tcp(tcp)) = &packet.transport else {
        return if is_tcp { Kind::Unreadable } else { Kind::Other };
    };
    // The headers are complete, so all bytes that were cut off are payload.
    let cut = frame.original.saturating_sub(frame.bytes.len() as u32);
    let mut segment = Segment {
        at: frame.at,
        source: SocketAddr::new(source, tcp.source_port()),
        destination: SocketAddr::new(destination, tcp.destination_port()),
        ip_id,
        seq: tcp.sequence_number(),
        ack: tcp.ack().then(|| tcp.acknowledgment_number()),
        syn: tcp.syn(),
        fin: tcp.fin(),
        rst: tcp.rst(),
        len: (tcp.payload().len() as u32).saturating_add(cut).min(1 << 20),
        mss: None,
        ts: None,
        sack: [None; 2],
    };
    for option in tcp.options_iterator().map_while(Result::ok) {
        match option {
            TcpOptionElement::MaximumSegmentSize(mss) => segment.mss = Some(mss),
            TcpOptionElement::Timestamp(value, _) => segment.ts = Some(value),
            TcpOptionElement::SelectiveAcknowledgement(first, others) => {
                segment.sack = [Some(first), others[0]];
            }
            _ => {}
        }
    }
    Kind::Tcp(segment)
}

fn slice<'a>(frame: &Frame<'a>) -> Option<LaxSlicedPacket<'a>> {
    let ether_type = |at: usize| {
        let bytes = frame.bytes.get(at..at + 2)?;
        Some(EtherType(u16::from_be_bytes([bytes[0], bytes[1]])))
    };
    match frame.linktype {
        Linktype::ETHERNET => LaxSlicedPacket::from_ethernet(frame.bytes).ok(),
        Linktype::LINUX_SLL => {
            Some(LaxSlicedPacket::from_ether_type(ether_type(14)?, frame.bytes.get(SLL_HEADER..)?))
        }
        LINUX_SLL2 => Some(LaxSlicedPacket::from_ether_type(ether_type(0)?, frame.bytes.get(SLL2_HEADER..)?)),
        Linktype::NULL | Linktype::LOOP => LaxSlicedPacket::from_ip(frame.bytes.get(4..)?).ok(),
        // Raw IP; systems use different numbers for it.
        Linktype(12 | 101 | 228 | 229) => LaxSlicedPacket::from_ip(frame.bytes).ok(),
        _ => None,
    }
}
