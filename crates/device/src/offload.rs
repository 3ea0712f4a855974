//! Offload in software, for devices without it: cuts a super-packet into segments, and completes checksums.

use brisk_wire::ChecksumFill;

use crate::TxMeta;

/// Converts `packet` to the packets that go on the wire, and passes them to `emit`: one packet or a run of
/// segments, with complete checksums. [`Device::send`](crate::Device::send) calls it in devices without
/// [`Capabilities::tso`](crate::Capabilities::tso).
///
/// ```
/// use brisk_device::{TxMeta, offload};
///
/// // A packet of one segment with complete checksums is unchanged.
/// let mut sent = Vec::new();
/// offload::cut(&[0x45; 40], TxMeta::default(), &mut |segment| sent.push(segment.to_vec()));
/// assert_eq!(sent, [[0x45; 40]]);
/// ```
pub fn cut(packet: &[u8], tx: TxMeta, emit: &mut dyn FnMut(&[u8])) {
    let size = tx.segment_size.filter(|&size| size > 0);
    match (size, tx.partial_checksum) {
        (None, false) => emit(packet),
        // A cut at the maximum payload leaves one segment, with a new checksum.
        (size, _) => {
            let split = if tx.twice { brisk_wire::split_twice } else { brisk_wire::split };
            split(packet, size.unwrap_or(u16::MAX), ChecksumFill::Full, emit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brisk_wire::Flags;

    use crate::testing::{V4, V6, checked, pattern, segment};

    fn cut_into(packet: &[u8], tx: TxMeta) -> Vec<Vec<u8>> {
        let mut segments = Vec::new();
        cut(packet, tx, &mut |segment| segments.push(segment.to_vec()));
        segments
    }

    #[test]
    fn unfinished_checksum_is_completed() {
        for ends in [V4, V6] {
            let packet = segment(ends, (1, 2), &pattern(333), ChecksumFill::Partial);
            let tx = TxMeta { partial_checksum: true, ..TxMeta::default() };
            let segments = cut_into(&packet, tx);
            assert_eq!(segments.len(), 1);
            checked(&segments[0]);
        }
    }

    #[test]
    fn a_super_packet_becomes_segments_with_full_checksums() {
        for ends in [V4, V6] {
            let packet = segment(ends, (1, 2), &pattern(2500), ChecksumFill::Partial);
            let tx = TxMeta { segment_size: Some(1000), partial_checksum: true, twice: false };
            let segments = cut_into(&packet, tx);
            let (flags, payloads): (Vec<_>, Vec<_>) = segments.iter().map(|one| checked(one)).unzip();
            assert_eq!(payloads.iter().map(Vec::len).collect::<Vec<_>>(), [1000, 1000, 500]);
            assert_eq!(payloads.concat(), pattern(2500));
            assert_eq!(flags, [Flags::ACK, Flags::ACK, Flags::ACK | Flags::PSH]);
        }
    }

    #[test]
    fn complete_packet_is_not_changed() {
        let packet = segment(V4, (1, 2), &pattern(10), ChecksumFill::Full);
        assert_eq!(cut_into(&packet, TxMeta::default()).concat(), packet);
        assert_eq!(cut_into(&[0xFF; 3], TxMeta::default()), [[0xFF; 3]]);
    }
}
