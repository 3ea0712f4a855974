//! Positions in a TCP packet, and edits in place.

use alloc::vec::Vec;
use brisk_wire::ip::{IpHeader, Strictness};
use brisk_wire::{Ecn, Flags, checksum, emit_icmp_too_big, fill_checksums, header_len, tcp_offset};

/// Offsets in an IP packet that holds a TCP segment; valid until the length of the packet changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tcp {
    /// Offset of the TCP header.
    header: usize,
    /// Offset of the payload.
    payload: usize,
    /// End of the packet.
    end: usize,
}

/// A TCP option: its kind, and its position in the packet (the kind byte first).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OptionAt {
    pub(crate) kind: u8,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl Tcp {
    /// Finds the segment in `ip`, if it is a complete TCP packet.
    pub(crate) fn of(ip: &[u8]) -> Option<Tcp> {
        let end = IpHeader::parse(ip, Strictness::Peeked).ok()?.end;
        Some(Tcp { header: tcp_offset(ip)?, payload: header_len(ip)?, end })
    }

    /// True if no padding of the link follows the packet in `ip`.
    pub(crate) fn ends(self, ip: &[u8]) -> bool {
        self.end == ip.len()
    }

    pub(crate) fn payload_len(self) -> usize {
        self.end - self.payload
    }

    pub(crate) fn payload(self, ip: &[u8]) -> &[u8] {
        ip.get(self.payload..self.end).unwrap_or_default()
    }

    pub(crate) fn payload_mut(self, ip: &mut [u8]) -> &mut [u8] {
        ip.get_mut(self.payload..self.end).unwrap_or_default()
    }

    pub(crate) fn flags(self, ip: &[u8]) -> Flags {
        Flags(read_u16(ip, self.header + 12) & 0x0fff)
    }

    pub(crate) fn set_flags(self, ip: &mut [u8], flags: Flags) {
        let offset = read_u16(ip, self.header + 12) & 0xf000;
        write_u16(ip, self.header + 12, offset | (flags.0 & 0x0fff));
    }

    pub(crate) fn seq(self, ip: &[u8]) -> u32 {
        read_u32(ip, self.header + 4)
    }

    pub(crate) fn ack(self, ip: &[u8]) -> u32 {
        read_u32(ip, self.header + 8)
    }

    pub(crate) fn set_seq(self, ip: &mut [u8], seq: u32) {
        write_u32(ip, self.header + 4, seq);
    }

    pub(crate) fn set_ack(self, ip: &mut [u8], ack: u32) {
        write_u32(ip, self.header + 8, ack);
    }

    pub(crate) fn window(self, ip: &[u8]) -> u16 {
        read_u16(ip, self.header + 14)
    }

    pub(crate) fn set_window(self, ip: &mut [u8], window: u16) {
        write_u16(ip, self.header + 14, window);
    }

    /// Returns the sequence number after the segment.
    pub(crate) fn seq_end(self, ip: &[u8]) -> u32 {
        let flags = self.flags(ip);
        let control = u32::from(flags.contains(Flags::SYN)) + u32::from(flags.contains(Flags::FIN));
        self.seq(ip).wrapping_add(self.payload_len() as u32).wrapping_add(control)
    }

    pub(crate) fn option_bytes(self, ip: &[u8]) -> &[u8] {
        ip.get(self.header + 20..self.payload).unwrap_or_default()
    }

    /// Iterates over the options in order and ends at a malformed option. NOP and end-of-list are omitted.
    pub(crate) fn options(self, ip: &[u8]) -> impl Iterator<Item = OptionAt> {
        let (mut at, limit) = (self.header + 20, self.payload);
        core::iter::from_fn(move || {
            while at < limit {
                let kind = *ip.get(at)?;
                match kind {
                    0 => return None,
                    1 => at += 1,
                    kind => {
                        let len = usize::from(*ip.get(at + 1)?);
                        if len < 2 || at + len > limit {
                            return None;
                        }
                        let start = at;
                        at += len;
                        return Some(OptionAt { kind, start, len });
                    }
                }
            }
            None
        })
    }

    pub(crate) fn truncate_payload(self, ip: &mut Vec<u8>, keep: usize) {
        ip.truncate(self.payload + self.payload_len().min(keep));
        write_length(ip);
    }
}

pub(crate) fn write_length(ip: &mut [u8]) {
    match ip.first().map(|byte| byte >> 4) {
        Some(4) => write_u16(ip, 2, ip.len().min(65_535) as u16),
        Some(6) => write_u16(ip, 4, ip.len().saturating_sub(40).min(65_535) as u16),
        Some(_) | None => {}
    }
}

/// Recomputes the checksums of a packet.
pub(crate) fn update_checksums(ip: &mut [u8]) {
    fill_checksums(ip);
}

pub(crate) fn ecn(ip: &[u8]) -> Option<Ecn> {
    let (&first, &second) = (ip.first()?, ip.get(1)?);
    match first >> 4 {
        4 => Some(Ecn::from_bits(second)),
        6 => Some(Ecn::from_bits(second >> 4)),
        _ => None,
    }
}

/// Sets the ECN field and corrects the IPv4 header checksum. TCP's checksum does not cover the field.
pub(crate) fn set_ecn(ip: &mut [u8], ecn: Ecn) {
    let old = read_u16(ip, 0);
    match old >> 12 {
        4 => {
            let new = (old & !0b11) | u16::from(ecn.bits());
            let check = checksum::update_u16(read_u16(ip, 10), old, new);
            write_u16(ip, 0, new);
            write_u16(ip, 10, check);
        }
        6 => write_u16(ip, 0, (old & !0x30) | (u16::from(ecn.bits()) << 4)),
        _ => {}
    }
}

/// Sets Congestion Experienced in a packet of an ECN-capable transport (RFC 3168 section 5). Returns false if
/// the packet is not ECN-capable or already has the mark.
pub(crate) fn mark_congestion(ip: &mut [u8]) -> bool {
    match ecn(ip) {
        Some(Ecn::Ect0 | Ecn::Ect1) => {
            set_ecn(ip, Ecn::Ce);
            true
        }
        Some(Ecn::NotEct | Ecn::Ce) | None => false,
    }
}

/// Returns the ICMP error of a router before a link with a smaller MTU. The source of the error is the
/// packet's destination, the only address that the sender can certainly reach.
pub(crate) fn too_big(ip: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let from = IpHeader::parse(ip, Strictness::Peeked).ok()?.meta.dst;
    let mut out = Vec::new();
    emit_icmp_too_big(from, ip, mtu, &mut out);
    (!out.is_empty()).then_some(out)
}

pub(crate) fn read_u16(ip: &[u8], at: usize) -> u16 {
    ip.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u16::from_be_bytes(*bytes))
}

pub(crate) fn read_u32(ip: &[u8], at: usize) -> u32 {
    ip.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

pub(crate) fn write_u16(ip: &mut [u8], at: usize, value: u16) {
    if let Some(bytes) = ip.get_mut(at..at + 2) {
        bytes.copy_from_slice(&value.to_be_bytes());
    }
}

pub(crate) fn write_u32(ip: &mut [u8], at: usize, value: u32) {
    if let Some(bytes) = ip.get_mut(at..at + 4) {
        bytes.copy_from_slice(&value.to_be_bytes());
    }
}
