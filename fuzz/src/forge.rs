//! The attacker who sees the traffic: forges packets to a connection.
//!
//! The first decision is the kind of forgery: a correct segment, a correct one with a few changed fields, one
//! that is correct only in the ports, an ICMP error, damage, or bytes that are not a packet.

use std::net::IpAddr;

use brisk_tcp::stack::Rx;
use brisk_wire::{
    ChecksumCheck, ChecksumFill, Cookie, Ecn, FastOpen, Flags, IcmpKind, IpMeta, SackBlock, SeqNum,
    TcpHeader, Timestamps, emit, emit_icmp, fill_checksums,
};

use crate::decisions::Decisions;
use crate::flow::Flow;

/// Maximum length of forged payload.
const LARGEST: usize = 20_000;

/// Writes a packet to the local end of `flow` into `packet`; returns the device's metadata.
pub fn packet(decisions: &mut Decisions<'_>, flow: &mut Flow, packet: &mut Vec<u8>) -> Rx {
    match decisions.below(16) {
        0..=2 => right(decisions, flow, packet),
        3..=9 => changed(decisions, flow, packet),
        10 => handshake(decisions, flow, packet),
        11 => end(decisions, flow, packet),
        12 => stray(decisions, flow, packet),
        13 => icmp(decisions, flow, packet),
        14 => damaged(decisions, flow, packet),
        _ => {
            packet.clear();
            packet.extend_from_slice(decisions.bytes(40));
        }
    }
    rx(decisions, packet)
}

/// Returns metadata of an honest or a faulty device.
fn rx(decisions: &mut Decisions<'_>, packet: &[u8]) -> Rx {
    let segment_size = match decisions.below(16) {
        0 => Some(0),
        1 => Some(1),
        2 => Some(u16::MAX),
        3..=5 if packet.len() > 1500 => Some(1448),
        _ => None,
    };
    let checksum = if decisions.one_in(32) { ChecksumCheck::Trust } else { ChecksumCheck::Verify };
    Rx { checksum, segment_size, ..Rx::default() }
}

/// Writes a segment that an honest peer could send now: an acknowledgement of some of the data, data, a FIN.
fn right(decisions: &mut Decisions<'_>, flow: &mut Flow, packet: &mut Vec<u8>) {
    let mut tcp = flow.next();
    let outstanding = flow.snd_nxt.since(flow.snd_una).min(1 << 24);
    tcp.ack = match decisions.below(4) {
        0 | 1 => flow.snd_nxt,
        2 => flow.snd_una + outstanding / 2,
        _ => flow.snd_una,
    };
    let payload = decisions.pick(&[0, 1, 100, 536, 1448, 4344]);
    tcp.window = decisions.pick(&[u16::MAX, 4000, 100, 0]);
    if payload > 0 && decisions.one_in(8) {
        tcp.flags |= Flags::PSH;
    }
    if decisions.one_in(64) {
        tcp.flags |= Flags::FIN;
    }
    flow.snd_una = flow.snd_una.max(tcp.ack);
    flow.ts_own = flow.ts_own.wrapping_add(u32::from(decisions.byte()));
    write(flow, &tcp, payload, Ecn::NotEct, packet);
}

/// Writes a correct segment with up to four changes.
fn changed(decisions: &mut Decisions<'_>, flow: &Flow, packet: &mut Vec<u8>) {
    let mut tcp = flow.next();
    let mut payload = 0;
    let mut ecn = Ecn::NotEct;
    let mut scrambled = None;
    for _ in 0..=decisions.below(4) {
        match decisions.below(9) {
            0 | 1 => tcp.seq = near(decisions, flow.rcv_nxt, u32::from(flow.rcv_wnd)),
            2 => tcp.ack = near(decisions, flow.snd_nxt, flow.snd_nxt.since(flow.snd_una)),
            3 => tcp.flags = flags(decisions),
            4 => tcp.window = decisions.pick(&[0, 1, u16::MAX, 700]),
            5 => {
                (tcp.urgent, tcp.flags) = (decisions.pick(&[0, 1, 2, 900, u16::MAX]), tcp.flags | Flags::URG)
            }
            6 => payload = length(decisions),
            7 => options(decisions, flow, &mut tcp),
            _ if decisions.one_in(2) => ecn = Ecn::from_bits(decisions.byte()),
            _ => scrambled = Some(decisions.bytes(8)),
        }
    }
    write(flow, &tcp, payload, ecn, packet);
    if let Some(bytes) = scrambled {
        scramble(bytes, flow, packet);
    }
}

/// Returns a number at, next to or far from `at`, or at the other end of `span`.
fn near(decisions: &mut Decisions<'_>, at: SeqNum, span: u32) -> SeqNum {
    match decisions.below(12) {
        0 => at,
        1 => at + 1,
        2 => at - 1,
        3 => at + u32::from(decisions.byte()),
        4 => at - u32::from(decisions.byte()),
        5 => at + u32::from(decisions.short()),
        6 => at - u32::from(decisions.short()),
        7 => at + span,
        8 => at + span - 1,
        9 => at - span,
        10 => at + (1 << 31),
        _ => SeqNum(decisions.word()),
    }
}

fn flags(decisions: &mut Decisions<'_>) -> Flags {
    match decisions.below(10) {
        0 => Flags::FIN | Flags::ACK,
        1 => Flags::SYN,
        2 => Flags::SYN | Flags::ACK,
        3 => Flags::RST,
        4 => Flags::RST | Flags::ACK,
        5 => Flags::ACK | Flags::ECE,
        6 => Flags::NONE,
        7 => Flags::FIN,
        _ => Flags(decisions.short() & Flags::ALL.0),
    }
}

fn length(decisions: &mut Decisions<'_>) -> usize {
    match decisions.below(8) {
        0 => 0,
        1 => 1,
        2 => 1448,
        3 => usize::from(decisions.byte()),
        4 => 8960,
        5 => LARGEST,
        _ => usize::from(decisions.short()) % 3000,
    }
}

fn options(decisions: &mut Decisions<'_>, flow: &Flow, tcp: &mut TcpHeader) {
    let options = &mut tcp.options;
    match decisions.below(8) {
        0 => options.timestamps = None,
        1 => {
            let value = flow.ts_own.wrapping_add(decisions.pick(&[0, 1, u32::MAX, 1 << 31, 1000]));
            let echo = decisions.pick(&[flow.ts_value.unwrap_or(0), 0, 1, u32::MAX]);
            options.timestamps = Some(Timestamps { value, echo });
        }
        2..=4 => {
            let span = flow.snd_nxt.since(flow.snd_una).min(1 << 20);
            for _ in 0..=decisions.below(4) {
                let start = flow.snd_una + span / 256 * u32::from(decisions.byte());
                let start = if decisions.one_in(4) { near(decisions, start, span) } else { start };
                let end = near(decisions, start + decisions_len(span), span);
                let _ = options.sack.try_push(SackBlock { start, end });
            }
        }
        5 => {
            options.mss = Some(decisions.pick(&[0, 1, 88, 536, 1460, u16::MAX]));
            options.window_scale = Some(decisions.pick(&[0, 7, 14, 15, 255]));
            options.sack_permitted = decisions.one_in(2);
        }
        6 => options.fast_open = fast_open(decisions, flow),
        _ => {
            let kind = decisions.byte();
            let _ = options.unknown.push(kind, decisions.bytes(6));
        }
    }
}

/// Returns a typical length of a SACK block for `span` outstanding bytes.
fn decisions_len(span: u32) -> u32 {
    (span / 8).clamp(1, 1448)
}

/// Writes a SYN, or a SYN-ACK, into `packet`.
pub fn handshake(decisions: &mut Decisions<'_>, flow: &mut Flow, packet: &mut Vec<u8>) {
    let mut tcp = TcpHeader {
        seq: flow.irs,
        ack: flow.snd_nxt,
        flags: decisions.pick(&[Flags::SYN, Flags::SYN | Flags::ACK]),
        window: decisions.pick(&[u16::MAX, 4000, 0]),
        ..flow.next()
    };
    tcp.options.mss = decisions.pick(&[Some(1460), None, Some(0), Some(1), Some(536), Some(u16::MAX)]);
    tcp.options.window_scale = decisions.pick(&[Some(7), None, Some(0), Some(14)]);
    tcp.options.sack_permitted = !decisions.one_in(4);
    if !decisions.one_in(4) {
        let echo = flow.ts_value.unwrap_or(0);
        tcp.options.timestamps = Some(Timestamps { value: flow.ts_own, echo });
    }
    if decisions.one_in(4) {
        tcp.flags |= Flags::ECE | Flags::CWR;
    }
    if decisions.one_in(2) {
        tcp.options.fast_open = fast_open(decisions, flow);
    }
    if decisions.one_in(4) {
        tcp.seq = near(decisions, tcp.seq, 1000);
        flow.irs = tcp.seq;
    }
    let payload = decisions.pick(&[0, 0, 1, 500]);
    write(flow, &tcp, payload, Ecn::NotEct, packet);
}

/// Returns a Fast Open option: the one that the stack knows, a request, or a wrong cookie.
fn fast_open(decisions: &mut Decisions<'_>, flow: &Flow) -> Option<FastOpen> {
    let of = |cookie: &[u8]| Cookie::new(cookie).map(|cookie| FastOpen { cookie, experimental: false });
    match decisions.below(6) {
        0..=2 => flow.fast_open.or_else(|| of(&[])),
        3 => of(&[]),
        4 => of(&[7; 16][..4 + 2 * decisions.below(7)]),
        _ => flow.fast_open.map(|option| FastOpen { experimental: !option.experimental, ..option }),
    }
}

/// Writes a RST or FIN with a sequence number near the expected one.
fn end(decisions: &mut Decisions<'_>, flow: &Flow, packet: &mut Vec<u8>) {
    let mut tcp = flow.next();
    tcp.flags = decisions.pick(&[Flags::FIN | Flags::ACK, Flags::RST, Flags::RST | Flags::ACK, Flags::FIN]);
    tcp.seq = near(decisions, flow.rcv_nxt, u32::from(flow.rcv_wnd));
    tcp.ack = near(decisions, flow.snd_nxt, flow.snd_nxt.since(flow.snd_una));
    let payload = decisions.pick(&[0, 0, 1, 700]);
    write(flow, &tcp, payload, Ecn::NotEct, packet);
}

/// Writes a segment that is correct only in the ports.
fn stray(decisions: &mut Decisions<'_>, flow: &Flow, packet: &mut Vec<u8>) {
    let mut tcp = flow.next();
    tcp.seq = SeqNum(decisions.word());
    tcp.ack = SeqNum(decisions.word());
    tcp.flags = Flags(decisions.short() & Flags::ALL.0);
    tcp.window = decisions.short();
    tcp.urgent = decisions.short();
    let payload = length(decisions);
    write(flow, &tcp, payload, Ecn::from_bits(decisions.byte()), packet);
    scramble(decisions.bytes(20), flow, packet);
}

/// Writes an ICMP error about the last packet of the stack, or about one that it may not have sent.
fn icmp(decisions: &mut Decisions<'_>, flow: &Flow, packet: &mut Vec<u8>) {
    let mut offending = flow.last.clone();
    let mtu = decisions.pick(&[0, 1, 67, 68, 296, 551, 576, 1280, 1400, 1500, 65_535, u32::MAX]);
    let kind = decisions.pick(&[
        IcmpKind::PacketTooBig { mtu },
        IcmpKind::PacketTooBig { mtu },
        IcmpKind::PacketTooBig { mtu },
        IcmpKind::NetUnreachable,
        IcmpKind::HostUnreachable,
        IcmpKind::ProtocolUnreachable,
        IcmpKind::PortUnreachable,
        IcmpKind::AdminProhibited,
        IcmpKind::TimeExceeded,
        IcmpKind::ParameterProblem,
        IcmpKind::SourceQuench,
    ]);
    let at = header_len(flow) + 4;
    if let Some(seq) = offending.get_mut(at..at + 4) {
        let number = match decisions.below(3) {
            0 => flow.snd_una,
            1 => near(decisions, flow.snd_nxt, flow.snd_nxt.since(flow.snd_una)),
            _ => flow.snd_nxt - 1,
        };
        seq.copy_from_slice(&number.0.to_be_bytes());
    }
    let router: IpAddr = if flow.local.is_ipv4() { [203, 0, 113, 1].into() } else { [0x20; 16].into() };
    emit_icmp(router, &offending, kind, packet);
}

/// Writes a correct packet that was damaged or cut, with its old checksum.
fn damaged(decisions: &mut Decisions<'_>, flow: &Flow, packet: &mut Vec<u8>) {
    write(flow, &flow.next(), length(decisions), Ecn::NotEct, packet);
    for _ in 0..=decisions.below(3) {
        let at = usize::from(decisions.short()) % packet.len().min(60);
        packet[at] ^= 1 << decisions.below(8);
    }
    if decisions.one_in(2) {
        packet.truncate(usize::from(decisions.short()) % (packet.len() + 1));
    }
}

/// Overwrites bytes of the option area, if there is one, and of the data offset.
fn scramble(bytes: &[u8], flow: &Flow, packet: &mut [u8]) {
    let tcp = header_len(flow);
    if let Some((&first, rest)) = bytes.split_first() {
        if let Some(offset) = packet.get_mut(tcp + 12).filter(|_| first & 1 == 1) {
            *offset = *offset & 0x0f | (5 + first % 11) << 4;
        }
        for (at, &byte) in rest.iter().enumerate() {
            if let Some(option) = packet.get_mut(tcp + 20 + usize::from(first >> 4) + at) {
                *option = byte;
            }
        }
    }
    fill_checksums(packet);
}

fn header_len(flow: &Flow) -> usize {
    if flow.local.is_ipv4() { 20 } else { 40 }
}

/// Writes a segment of the forged peer.
pub fn write(flow: &Flow, tcp: &TcpHeader, payload: usize, ecn: Ecn, packet: &mut Vec<u8>) {
    static PAYLOAD: [u8; LARGEST] = [0x5a; LARGEST];
    let ip = IpMeta { ecn, ..IpMeta::new(flow.remote.ip(), flow.local.ip()) };
    emit(&ip, tcp, &[&PAYLOAD[..payload.min(LARGEST)]], ChecksumFill::Full, packet).expect("a packet fits");
}
