//! Boxes that change the payload.

use super::Verdict;
use super::header::{Tcp, update_checksums};
use crate::seeds::{Draws, below, chance};
use crate::units::Ratio;
use alloc::vec::Vec;
use brisk_wire::Flags;
use brisk_wire::ip::{IpHeader, Strictness};

fn is_syn_with_data(ip: &[u8], tcp: Tcp) -> bool {
    tcp.flags(ip).contains(Flags::SYN) && tcp.payload_len() > 0
}

/// Returns `refusal` for SYNs (and SYN-ACKs) that carry data.
pub(super) fn refuse_syn_data(ip: &[u8], tcp: Tcp, refusal: Verdict) -> Verdict {
    if is_syn_with_data(ip, tcp) { refusal } else { Verdict::Pass }
}

/// Cuts the data of a SYN down to `keep` bytes; its options stay.
pub(super) fn strip_syn_data(ip: &mut Vec<u8>, tcp: Tcp, keep: u16) -> Verdict {
    if is_syn_with_data(ip, tcp) && tcp.payload_len() > usize::from(keep) {
        tcp.truncate_payload(ip, usize::from(keep));
        update_checksums(ip);
    }
    Verdict::Pass
}

/// Flips bit 5 of payload byte 10 (or of the last byte), which changes the case of a letter. Does so in a
/// share of the segments with payload.
pub(super) fn rewrite(ip: &mut [u8], tcp: Tcp, share: Ratio, rng: &mut Draws) -> Verdict {
    if tcp.payload_len() > 0 && chance(rng, share) {
        let at = (tcp.payload_len() - 1).min(10);
        if let Some(byte) = tcp.payload_mut(ip).get_mut(at) {
            *byte ^= 0x20;
        }
        update_checksums(ip);
    }
    Verdict::Pass
}

/// Flips one bit after the IP header in a share of the packets. The packets still arrive, and only TCP's
/// checksum detects the error.
pub(super) fn corrupt(ip: &mut [u8], share: Ratio, rng: &mut Draws) -> Verdict {
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

#[cfg(test)]
mod tests {
    use super::super::sample::{Sample, link};
    use alloc::vec;
    use brisk_wire::{ChecksumCheck, Flags, Instant, parse};

    fn syn_with_data() -> Sample {
        Sample { payload: vec![b'x'; 80], ..Sample::syn() }
    }

    #[test]
    fn data_on_a_syn_is_dropped_refused_or_cut_off() {
        let syn = syn_with_data();
        assert!(syn.travel_up("--middlebox drop-syn-data").is_empty());
        assert_eq!(syn.travel_up("--middlebox strip-syn-data"), [Sample::syn()]);
        let partial = syn.travel_up("--middlebox strip-syn-data:30").remove(0);
        assert_eq!(partial.payload.len(), 30);
        let v6 = syn.clone().over_v6().travel_up("--middlebox strip-syn-data").remove(0);
        assert_eq!(v6, Sample::syn().over_v6());
        let reset = link("--middlebox rst-syn-data").up.offer(syn.bytes(), Instant::ZERO).answer().unwrap();
        assert!(Sample::read(&reset).flags.contains(Flags::RST));
    }

    #[test]
    fn boxes_against_data_on_a_syn_pass_other_segments() {
        for text in ["drop-syn-data", "strip-syn-data", "rst-syn-data"] {
            let text = alloc::format!("--middlebox {text}");
            assert_eq!(Sample::data().travel_up(&text), [Sample::data()]);
            assert_eq!(Sample::syn().travel_up(&text), [Sample::syn()]);
        }
    }

    #[test]
    fn rewritten_payload_has_a_valid_checksum_and_corruption_a_wrong_one() {
        let out = Sample::data().travel_up("--middlebox rewrite-payload").remove(0);
        assert_eq!((out.payload[10], out.payload[11]), (b'A', b'a'));

        let mut up = link("--middlebox corrupt:100%").up;
        up.offer(Sample::data().bytes(), Instant::ZERO);
        let (_, packet) = up.poll(Instant::ZERO).unwrap();
        assert_eq!(packet.iter().zip(Sample::data().bytes()).filter(|(a, b)| **a != *b).count(), 1);
        assert!(parse(&packet, ChecksumCheck::Verify).is_err());
    }
}
