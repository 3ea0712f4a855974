//! TCP packets for the tests of this crate.

use std::net::IpAddr;

use brisk_wire::{ChecksumCheck, ChecksumFill, Flags, IpMeta, Packet, TcpHeader, parse};

/// The addresses of the sender and of the receiver.
pub(crate) const V4: [&str; 2] = ["10.77.0.2", "10.77.0.1"];
pub(crate) const V6: [&str; 2] = ["fd00:77::2", "fd00:77::1"];

/// Returns a segment between `ends` and `ports`, the sender's first.
pub(crate) fn segment(ends: [&str; 2], ports: (u16, u16), payload: &[u8], sum: ChecksumFill) -> Vec<u8> {
    let [src, dst] = ends.map(|end| end.parse::<IpAddr>().unwrap());
    let tcp = TcpHeader {
        src_port: ports.0,
        dst_port: ports.1,
        flags: Flags::ACK | Flags::PSH,
        window: 65_535,
        ..TcpHeader::default()
    };
    let mut packet = Vec::new();
    brisk_wire::emit(&IpMeta::new(src, dst), &tcp, &[payload], sum, &mut packet).unwrap();
    packet
}

/// Returns the flags and the payload of a segment with a valid checksum.
pub(crate) fn checked(packet: &[u8]) -> (Flags, Vec<u8>) {
    match parse(packet, ChecksumCheck::Verify) {
        Ok(Packet::Tcp(segment)) => (segment.tcp.flags, segment.payload.to_vec()),
        other => panic!("{other:?}"),
    }
}

/// Returns bytes that depend on their position.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 256) as u8).collect()
}
