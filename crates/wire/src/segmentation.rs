//! Segmentation in software: what a device with TSO does in hardware, for devices without.
//!
//! The stack hands out runs of equal segments of one connection as one super-packet. Here it is cut:
//! the sequence number advances, FIN and PSH stay on the last segment, CWR on the first, the IPv4
//! identification counts up, lengths and checksums are written anew. Everything else, options
//! included, is the same on each.

use alloc::vec::Vec;

use crate::ip::{self, IpHeader, Strictness, protocol};
use crate::packet::{ChecksumFill, fill_tcp_checksum, header_len};
use crate::tcp::Flags;

/// Cuts `packet` into segments of at most `segment_size` payload bytes and hands each to `emit`, in
/// order, with its checksums as `sum` says, whatever the packet's own checksum field held.
///
/// A packet that fits one segment, one with SYN, RST or URG (which are never super-packets) and any
/// with a `segment_size` of zero goes out as one. What is not a TCP packet goes out unchanged.
///
/// With Accurate ECN, CWR is part of a counter: hand in runs that have it on none of their segments
/// or cut them before this call.
pub fn split(packet: &[u8], segment_size: u16, sum: ChecksumFill, emit: &mut dyn FnMut(&[u8])) {
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
        plan.adjust(&mut out, index, start, pieces);
        plan.finish(&mut out, sum);
        emit(&out);
    }
}

/// A super-packet and where its parts are.
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

    /// Sequence number, flags and identification of segment `index`, whose payload starts at `start`.
    fn adjust(&self, out: &mut [u8], index: usize, start: usize, pieces: usize) {
        let tcp = self.ip.payload_at;
        let mut flags = self.flags;
        if index > 0 {
            flags.remove(Flags::CWR);
        }
        if index + 1 < pieces {
            flags.remove(Flags::FIN | Flags::PSH);
        }
        put(out, tcp + 4, &self.seq.wrapping_add(start as u32).to_be_bytes());
        let offset = out.get(tcp + 12).map_or(0, |byte| u16::from(byte >> 4) << 12);
        put(out, tcp + 12, &(offset | flags.0).to_be_bytes());
        if self.ip.meta.src.is_ipv4() {
            put(out, 4, &self.ip.meta.identification.wrapping_add(index as u16).to_be_bytes());
        }
    }

    /// Lengths and checksums.
    fn finish(&self, out: &mut [u8], sum: ChecksumFill) {
        let tcp = self.ip.payload_at;
        if self.ip.meta.src.is_ipv4() {
            put(out, 2, &(out.len() as u16).to_be_bytes());
            ip::fill_v4_checksum(out.get_mut(..tcp).unwrap_or_default());
        } else {
            put(out, 4, &((out.len() - ip::IPV6_HEADER_LEN) as u16).to_be_bytes());
        }
        fill_tcp_checksum(&self.ip.meta, out.get_mut(tcp..).unwrap_or_default(), sum);
    }
}

/// Overwrites bytes at `at`. [`Plan::of`] has seen that the headers are there.
fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(field) = out.get_mut(at..at + bytes.len()) {
        field.copy_from_slice(bytes);
    }
}
