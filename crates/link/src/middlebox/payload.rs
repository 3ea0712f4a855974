//! Boxes that touch the payload.

use super::Verdict;
use super::header::{Tcp, mend};
use crate::seeds::{ChaCha8Rng, below, chance};
use crate::units::Ratio;
use alloc::vec::Vec;
use brisk_wire::Flags;
use brisk_wire::ip::{IpHeader, Strictness};

fn is_syn_with_data(ip: &[u8], tcp: Tcp) -> bool {
    tcp.flags(ip).contains(Flags::SYN) && tcp.payload_len() > 0
}

/// Answers SYNs (and SYN-ACKs) that carry data with `refusal`.
pub(super) fn refuse_syn_data(ip: &[u8], tcp: Tcp, refusal: Verdict) -> Verdict {
    if is_syn_with_data(ip, tcp) { refusal } else { Verdict::Pass }
}

/// Cuts the data of a SYN down to `keep` bytes; its options stay.
pub(super) fn strip_syn_data(ip: &mut Vec<u8>, tcp: Tcp, keep: u16) -> Verdict {
    if is_syn_with_data(ip, tcp) && tcp.payload_len() > usize::from(keep) {
        tcp.truncate_payload(ip, usize::from(keep));
        mend(ip);
    }
    Verdict::Pass
}

/// Flips bit 5 of payload byte 10 (or the last) of a share of the segments with payload: letters change their case.
pub(super) fn rewrite(ip: &mut [u8], tcp: Tcp, share: Ratio, rng: &mut ChaCha8Rng) -> Verdict {
    if tcp.payload_len() > 0 && chance(rng, share) {
        let at = (tcp.payload_len() - 1).min(10);
        if let Some(byte) = tcp.payload_mut(ip).get_mut(at) {
            *byte ^= 0x20;
        }
        mend(ip);
    }
    Verdict::Pass
}

/// Flips one bit of a share of the packets behind the IP header, so that they arrive where they should and only
/// TCP's checksum tells.
pub(super) fn corrupt(ip: &mut [u8], share: Ratio, rng: &mut ChaCha8Rng) -> Verdict {
    let (hit, place) = (chance(rng, share), below(rng, 1 << 32));
    if let Ok(header) = IpHeader::parse(ip, Strictness::Peeked)
        && hit
    {
        let body = ip.get_mut(header.payload_at..header.end).unwrap_or_default();
        let bit = (place as usize) % (body.len() * 8).max(1);
        if let Some(byte) = body.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
    }
    Verdict::Pass
}
