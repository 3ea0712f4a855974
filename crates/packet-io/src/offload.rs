//! The work of a device without offload, in software: cut a super-packet into segments and finish its
//! checksums.

use brisk_wire::ChecksumFill;

use crate::device::TxMeta;

/// Hands `emit` the packets that go on the wire for `packet`: one, or a run of segments, each with full
/// checksums.
pub(crate) fn cut(packet: &[u8], tx: TxMeta, emit: &mut dyn FnMut(&[u8])) {
    let size = tx.segment_size.filter(|&size| size > 0);
    match (size, tx.partial_checksum) {
        (None, false) => emit(packet),
        // A cut at the longest payload there can be leaves one segment, with a new checksum.
        (size, _) => {
            let split = if tx.twice { brisk_wire::split_twice } else { brisk_wire::split };
            split(packet, size.unwrap_or(u16::MAX), ChecksumFill::Full, emit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Tcp, checksum_is_right, pattern};

    fn cut_into(packet: &[u8], tx: TxMeta) -> Vec<Vec<u8>> {
        let mut segments = Vec::new();
        cut(packet, tx, &mut |segment| segments.push(segment.to_vec()));
        segments
    }

    #[test]
    fn an_open_checksum_is_finished() {
        for template in [Tcp::v4(), Tcp::v6()] {
            let packet = Tcp { payload: pattern(333), ..template }.with_partial_checksum();
            let tx = TxMeta { partial_checksum: true, ..TxMeta::default() };
            let segments = cut_into(&packet, tx);
            assert_eq!(segments.len(), 1);
            assert!(checksum_is_right(&segments[0]));
        }
    }

    #[test]
    fn a_super_packet_becomes_segments_with_full_checksums() {
        for template in [Tcp::v4(), Tcp::v6()] {
            let packet = Tcp { payload: pattern(2500), flags: 0x19, ..template }.with_partial_checksum();
            let tx = TxMeta { segment_size: Some(1000), partial_checksum: true, twice: false };
            let segments = cut_into(&packet, tx);
            let lengths: Vec<_> = segments.iter().map(|s| Tcp::parse(s).payload.len()).collect();
            assert_eq!(lengths, [1000, 1000, 500]);
            let flags: Vec<_> = segments.iter().map(|s| Tcp::parse(s).flags).collect();
            assert_eq!(flags, [0x10, 0x10, 0x19]);
            assert!(segments.iter().all(|segment| checksum_is_right(segment)));
        }
    }

    #[test]
    fn a_finished_packet_is_left_alone() {
        let packet = Tcp { payload: pattern(10), ..Tcp::v4() }.packet();
        assert_eq!(cut_into(&packet, TxMeta::default()).concat(), packet);
        assert_eq!(cut_into(&[0xFF; 3], TxMeta::default()), [[0xFF; 3]]);
    }
}
