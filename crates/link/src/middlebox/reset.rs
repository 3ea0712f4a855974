//! The RST that a box sends in the name of the destination (RFC 9293 section 3.10.7.1).

use super::header::Tcp;
use alloc::vec::Vec;
use brisk_wire::{ChecksumFill, Flags, IpMeta, SeqNum, TcpHeader, emit, four_tuple};

/// Returns the RST that answers `ip`; none for a RST.
pub(super) fn answer(ip: &[u8]) -> Option<Vec<u8>> {
    let (tcp, (src, dst)) = (Tcp::of(ip)?, four_tuple(ip)?);
    let flags = tcp.flags(ip);
    if flags.contains(Flags::RST) {
        return None;
    }
    // "If the ACK bit is off, sequence number zero is used, <SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>.
    //  If the ACK bit is on, <SEQ=SEG.ACK><CTL=RST>"
    let (seq, ack, flags) = match flags.contains(Flags::ACK) {
        true => (tcp.ack(ip), 0, Flags::RST),
        false => (0, tcp.seq_end(ip), Flags::RST | Flags::ACK),
    };
    let header = TcpHeader {
        src_port: dst.port(),
        dst_port: src.port(),
        seq: SeqNum(seq),
        ack: SeqNum(ack),
        flags,
        ..TcpHeader::default()
    };
    let mut out = Vec::new();
    emit(&IpMeta::new(dst.ip(), src.ip()), &header, &[], ChecksumFill::Full, &mut out).ok()?;
    Some(out)
}
