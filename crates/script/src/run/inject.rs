//! Builds arriving packets exactly as in the script, options byte for byte.

use std::net::IpAddr;

use brisk_wire::gentle::{Gentle, Reading};
use brisk_wire::{
    ChecksumFill, Ecn, Flags, IcmpKind, IpMeta, SeqNum, TcpHeader, emit, emit_icmp, fill_checksums,
};

use super::flow::Flow;
use super::stream::{self, Blocks};
use crate::ast::{EcnBits, IcmpPacket, TcpPacket};
use crate::tcp_option::{Cookie, Echo, TcpOption};

const OPTION_SPACE: usize = 40;
/// Index of the payload byte that `[spoiled]` changes.
const SPOILED_BYTE: usize = 10;

pub(crate) fn segment(
    packet: &TcpPacket,
    flow: &Flow,
    cookie: &dyn Fn(&str) -> Option<Vec<u8>>,
) -> Result<Vec<u8>, String> {
    let local = flow.local.ok_or("a packet arrives for a connection that has not sent its SYN")?;
    let mut ip = IpMeta::new(flow.remote.ip(), local.ip());
    ip.ecn = match packet.prefix.ecn {
        None => Ecn::NotEct,
        Some(EcnBits::Is(ecn)) => ecn,
        Some(EcnBits::Ect01) => return Err("an arriving packet has one ECN value: ect0 or ect1".to_owned()),
    };
    let header = TcpHeader {
        src_port: flow.remote.port(),
        dst_port: local.port(),
        seq: SeqNum(flow.remote_to_live(packet.seq)),
        ack: SeqNum(packet.ack.map_or(0, |ack| flow.local_to_live(ack))),
        flags: packet.flags,
        window: packet.win.unwrap_or(0),
        urgent: packet.urg.unwrap_or(0),
        ..TcpHeader::default()
    };
    let area = option_area(packet, flow, cookie)?;
    let payload = payload(packet);
    let mut bytes = Vec::new();
    emit(&ip, &header, &[&area, &payload], ChecksumFill::Full, &mut bytes)
        .map_err(|error| error.to_string())?;
    // The options were written as payload; the data offset is now set to their end.
    if let Some(offset) = bytes.get_mut(ip.header_len() + 12) {
        *offset += ((area.len() / 4) as u8) << 4;
    }
    fill_checksums(&mut bytes);
    if packet.prefix.bad_checksum
        && let Some(byte) = bytes.get_mut(ip.header_len() + 16)
    {
        *byte ^= 0xff;
    }
    Ok(bytes)
}

/// Returns the payload: the bytes of the stream at its sequence number, or parity over them.
fn payload(packet: &TcpPacket) -> Vec<u8> {
    let syn = packet.flags.contains(Flags::SYN);
    let before = packet.options.iter().flatten().find_map(|option| match option {
        TcpOption::Gentle(value) => match Gentle::read(value, syn) {
            Reading::Option(option) => Some(stream::part_offset(&option)),
            Reading::Window(_) | Reading::Ignore | Reading::Malformed => None,
        },
        _ => None,
    });
    let first = packet.seq.wrapping_add(u32::from(syn)).wrapping_sub(1).wrapping_add(before.unwrap_or(0));
    let parity = packet.options.iter().flatten().find_map(|option| match option {
        TcpOption::Gentle(value) => stream::Parity::of_bytes(value, packet.seq),
        _ => None,
    });
    let blocks = if packet.prefix.interleaved { Blocks::EverySecond } else { Blocks::All };
    let mut payload = match parity {
        None => stream::bytes(u64::from(first), packet.len as usize),
        Some(parity) => parity.payload(packet.len as usize, blocks),
    };
    if packet.prefix.spoiled
        && let Some(byte) = payload.get_mut(SPOILED_BYTE)
    {
        *byte ^= 1 << 5;
    }
    payload
}

fn option_area(
    packet: &TcpPacket,
    flow: &Flow,
    cookie: &dyn Fn(&str) -> Option<Vec<u8>>,
) -> Result<Vec<u8>, String> {
    let mut area = Vec::new();
    let options = packet.options.as_deref().ok_or("an arriving packet cannot have `<...>`")?;
    for option in options {
        to_live(option, flow, cookie)?.encode(&mut area);
    }
    if area.len() % 4 != 0 || area.len() > OPTION_SPACE {
        let len = area.len();
        return Err(format!(
            "the options have {len} bytes: pad them with nop or eol to a multiple of 4, at most 40"
        ));
    }
    Ok(area)
}

/// Returns the option with live numbers instead of the script's.
fn to_live(
    option: &TcpOption,
    flow: &Flow,
    cookie: &dyn Fn(&str) -> Option<Vec<u8>>,
) -> Result<TcpOption, String> {
    Ok(match option {
        TcpOption::Timestamps { value, echo } => {
            TcpOption::Timestamps { value: *value, echo: Echo::Value(flow.echo_to_live(*echo)) }
        }
        TcpOption::Sack(blocks) => {
            let live = |(start, end): &(u32, u32)| (flow.local_to_live(*start), flow.local_to_live(*end));
            TcpOption::Sack(blocks.iter().map(live).collect())
        }
        TcpOption::FastOpen { cookie: Cookie::Named(name), experimental } => {
            let bytes =
                cookie(name).ok_or(format!("no packet of the stack has carried the cookie ${name} yet"))?;
            TcpOption::FastOpen { cookie: Cookie::Bytes(bytes), experimental: *experimental }
        }
        same @ (TcpOption::Nop
        | TcpOption::Eol
        | TcpOption::Mss(_)
        | TcpOption::WindowScale(_)
        | TcpOption::SackPermitted
        | TcpOption::FastOpen { cookie: Cookie::Bytes(_), .. }
        | TcpOption::Gentle(_)
        | TcpOption::Other { .. }) => same.clone(),
    })
}

/// Returns an arriving ICMP error, from a router on the path.
pub(crate) fn icmp(packet: &IcmpPacket, flow: &Flow) -> Result<Vec<u8>, String> {
    let local = flow.local.ok_or("an ICMP error arrives for a connection that has not sent its SYN")?;
    let quoted = TcpHeader {
        src_port: local.port(),
        dst_port: flow.remote.port(),
        seq: SeqNum(flow.local_to_live(packet.quoted_seq)),
        flags: Flags::ACK,
        ..TcpHeader::default()
    };
    let payload = vec![0; packet.quoted_len as usize];
    let mut offending = Vec::new();
    let ip = IpMeta::new(local.ip(), flow.remote.ip());
    emit(&ip, &quoted, &[&payload], ChecksumFill::Full, &mut offending).map_err(|error| error.to_string())?;
    let router = match local.ip() {
        IpAddr::V4(_) => IpAddr::from([192, 0, 2, 254]),
        IpAddr::V6(_) => IpAddr::from([0xfd3d, 0xfa7b, 0xd17d, 0, 0, 0, 0, 0xfe]),
    };
    let kind = match (packet.kind, local.ip()) {
        // ICMPv4 has 16 bits for the MTU.
        (IcmpKind::PacketTooBig { mtu }, IpAddr::V4(_)) if mtu > 65_535 => {
            return Err(format!("mtu {mtu} does not fit the 16 bits of ICMP"));
        }
        (kind, _) => kind,
    };
    let mut bytes = Vec::new();
    emit_icmp(router, &offending, kind, &mut bytes);
    if bytes.is_empty() { Err(format!("this IP version has no ICMP error {kind:?}")) } else { Ok(bytes) }
}
