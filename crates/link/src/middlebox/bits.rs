//! Boxes that touch header bits.

use super::Verdict;
use super::header::{self, Tcp, mend};
use brisk_wire::{Ecn, Flags};

/// The reserved bits 4, 5 and 6 of the IANA registry; bit 7 belongs to Accurate ECN (RFC 9768).
const RESERVED: u16 = 0x0e00;
const BIT_4: u16 = 0x0800;

/// Clears the reserved bits, as normalisers do.
pub(super) fn clear_reserved(ip: &mut [u8], tcp: Tcp) -> Verdict {
    let flags = tcp.flags(ip).0;
    replace(ip, tcp, flags, flags & !RESERVED)
}

/// Sets bit 4 on everything.
pub(super) fn set_reserved(ip: &mut [u8], tcp: Tcp) -> Verdict {
    let flags = tcp.flags(ip).0;
    replace(ip, tcp, flags, flags | BIT_4)
}

fn replace(ip: &mut [u8], tcp: Tcp, old: u16, new: u16) -> Verdict {
    if old != new {
        tcp.set_flags(ip, Flags(new));
        mend(ip);
    }
    Verdict::Pass
}

/// Drops packets with a reserved bit set.
pub(super) fn drop_reserved(ip: &[u8], tcp: Tcp) -> Verdict {
    if tcp.flags(ip).0 & RESERVED == 0 { Verdict::Pass } else { Verdict::Drop }
}

/// Overwrites the ECN field of the IP header.
pub(super) fn set_ecn(ip: &mut [u8], ecn: Ecn) -> Verdict {
    if header::ecn(ip) != Some(ecn) {
        header::set_ecn(ip, ecn);
    }
    Verdict::Pass
}
