//! The reset that answers a segment without a connection (RFC 9293 section 3.5.2 and 3.10.7.1).
//!
//! The stack knows nothing of the peer except the segment. The reset takes its numbers from the segment, so
//! that the peer accepts it. A reset is never answered. The number of resets per second is limited. So a
//! flood of segments with forged sources does not become a flood of resets to these sources.

use brisk_wire::{Flags, IpMeta, Segment, SeqNum, TcpHeader};

/// Resets per second, randomised by up to half.
pub(crate) const RESETS_PER_SECOND: u32 = 1000;

/// Returns the reset that answers `segment`; `None` if it is a reset itself.
pub(crate) fn reset_for(segment: &Segment<'_>) -> Option<(IpMeta, TcpHeader)> {
    let flags = segment.tcp.flags;
    if flags.contains(Flags::RST) {
        return None;
    }
    // "If the ACK bit is off, sequence number zero is used, <SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>.
    // If the ACK bit is on, <SEQ=SEG.ACK><CTL=RST>".
    let (seq, ack, control) = if flags.contains(Flags::ACK) {
        (segment.tcp.ack, SeqNum(0), Flags::RST)
    } else {
        (SeqNum(0), segment.end(), Flags::RST | Flags::ACK)
    };
    let tcp = TcpHeader {
        src_port: segment.tcp.dst_port,
        dst_port: segment.tcp.src_port,
        seq,
        ack,
        flags: control,
        ..TcpHeader::default()
    };
    Some((IpMeta::new(segment.ip.dst, segment.ip.src), tcp))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(flags: Flags, payload: &[u8]) -> Option<TcpHeader> {
        let ip = IpMeta::new([10, 0, 0, 2].into(), [10, 0, 0, 1].into());
        let tcp = TcpHeader {
            src_port: 5000,
            dst_port: 80,
            seq: SeqNum(100),
            ack: SeqNum(900),
            flags,
            ..TcpHeader::default()
        };
        let (ip, tcp) = reset_for(&Segment { ip, tcp, payload })?;
        assert_eq!((ip.src, ip.dst), ([10, 0, 0, 1].into(), [10, 0, 0, 2].into()));
        assert_eq!((tcp.src_port, tcp.dst_port), (80, 5000));
        Some(tcp)
    }

    #[test]
    fn an_acknowledgement_gives_its_number_to_the_reset() {
        let reset = answer(Flags::ACK, b"abc").expect("answered");
        assert_eq!((reset.seq, reset.flags), (SeqNum(900), Flags::RST));
    }

    #[test]
    fn reset_of_a_segment_without_ack_acknowledges_it() {
        let reset = answer(Flags::SYN, b"abc").expect("answered");
        assert_eq!((reset.seq, reset.ack), (SeqNum(0), SeqNum(104)), "the SYN counts");
        assert_eq!(reset.flags, Flags::RST | Flags::ACK);
    }

    #[test]
    fn a_reset_is_not_answered() {
        assert_eq!(answer(Flags::RST, b""), None);
        assert_eq!(answer(Flags::RST | Flags::ACK, b""), None);
    }
}
