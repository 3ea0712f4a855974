//! Boxes that change header bits.

use super::Verdict;
use super::header::{self, Tcp, update_checksums};
use brisk_wire::{Ecn, Flags};

/// The reserved bits 4, 5 and 6 of the IANA registry; bit 7 belongs to Accurate ECN (RFC 9768).
const RESERVED: u16 = 0x0e00;
const BIT_4: u16 = 0x0800;

/// Clears the reserved bits, as normalisers do.
pub(super) fn clear_reserved(ip: &mut [u8], tcp: Tcp) -> Verdict {
    let flags = tcp.flags(ip).0;
    replace(ip, tcp, flags, flags & !RESERVED)
}

/// Sets bit 4 on every segment.
pub(super) fn set_reserved(ip: &mut [u8], tcp: Tcp) -> Verdict {
    let flags = tcp.flags(ip).0;
    replace(ip, tcp, flags, flags | BIT_4)
}

fn replace(ip: &mut [u8], tcp: Tcp, old: u16, new: u16) -> Verdict {
    if old != new {
        tcp.set_flags(ip, Flags(new));
        update_checksums(ip);
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

#[cfg(test)]
mod tests {
    use super::super::sample::Sample;
    use brisk_wire::{Ecn, Flags};

    #[test]
    fn reserved_bits_are_cleared_or_set_or_cause_a_drop() {
        let plain = Sample::data();
        let copy = Sample { flags: Flags::ACK | Flags(0x0800), ..plain.clone() };
        let accurate = Sample { flags: Flags::ACK | Flags(0x0100), ..plain.clone() };
        assert_eq!(copy.travel_up("--middlebox clear-reserved").remove(0), plain);
        assert_eq!(plain.travel_up("--middlebox set-reserved").remove(0), copy);
        assert!(copy.travel_up("--middlebox drop-reserved").is_empty());
        assert_eq!(accurate.travel_up("--middlebox drop-reserved+clear-reserved"), [accurate]);
    }

    #[test]
    fn the_ecn_field_is_overwritten_in_both_versions() {
        for sample in [Sample::data(), Sample::data().over_v6()] {
            let ecn = |text| sample.travel_up(text).remove(0).ecn;
            assert_eq!(ecn("--middlebox set-ecn:not-ect"), Ecn::NotEct);
            assert_eq!(ecn("--middlebox set-ecn:ce"), Ecn::Ce);
            assert_eq!(ecn("--middlebox set-ecn:ect1"), Ecn::Ect1);
        }
    }
}
