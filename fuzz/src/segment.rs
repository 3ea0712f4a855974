//! Target: any bytes as a packet.
//!
//! The first byte chooses the size into which the packet is cut in software; the rest is the packet.

use brisk_wire::{
    ChecksumCheck, ChecksumFill, Packet, ParseError, Segment, emit, fill_checksums, four_tuple, header_len,
    parse, split, tcp_offset,
};

use crate::decisions::Decisions;

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let mut decisions = Decisions::new(bytes);
    let size = decisions.pick(&[0, 1, 7, 536, 1448, u16::MAX]);
    let packet = decisions.all();
    let trusted = parse(packet, ChecksumCheck::Trust);
    let verified = parse(packet, ChecksumCheck::Verify);
    match (&trusted, &verified) {
        (Ok(Packet::Tcp(_)), Err(error)) => assert_eq!(*error, ParseError::TcpChecksum),
        (trusted, verified) => assert_eq!(trusted, verified, "trust concerns the TCP checksum alone"),
    }
    peek(packet, &trusted);
    repair(packet);
    if let Ok(Packet::Tcp(segment)) = &trusted {
        rewrite(segment);
        cut(packet, segment, size);
    } else {
        split(packet, size, ChecksumFill::Full, &mut |_| ());
    }
}

/// Checks that the quick parsers agree with the full one about every valid packet.
fn peek(packet: &[u8], parsed: &Result<Packet<'_>, ParseError>) {
    let (ends, offset, headers) = (four_tuple(packet), tcp_offset(packet), header_len(packet));
    match parsed {
        Ok(Packet::Tcp(segment)) => {
            let (src, dst) = ends.expect("a TCP packet has ends");
            assert_eq!((src.ip(), src.port()), (segment.ip.src, segment.tcp.src_port));
            assert_eq!((dst.ip(), dst.port()), (segment.ip.dst, segment.tcp.dst_port));
            let headers = headers.expect("a TCP packet has a header");
            assert!(offset.expect("a TCP packet has an offset") + 20 <= headers);
            assert!(packet[headers..].starts_with(segment.payload), "padding of the link may follow");
        }
        Ok(Packet::Icmp(_) | Packet::Other { .. }) => assert_eq!((ends, offset, headers), (None, None, None)),
        Err(_) => {}
    }
}

/// Checks that a TCP packet with recomputed checksums has right checksums.
fn repair(packet: &[u8]) {
    let mut repaired = packet.to_vec();
    fill_checksums(&mut repaired);
    assert_eq!(repaired.len(), packet.len());
    let wrong = [Err(ParseError::TcpChecksum), Err(ParseError::IpChecksum)];
    let read = parse(&repaired, ChecksumCheck::Verify);
    assert!(tcp_offset(packet).is_none() || !wrong.contains(&read), "{read:?} after the repair");
}

/// Checks that a parsed packet can be written and is then parsed as the same, as far as it fits. Written
/// again, it has the same bytes.
fn rewrite(segment: &Segment<'_>) {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    if emit(&segment.ip, &segment.tcp, &[segment.payload], ChecksumFill::Full, &mut first).is_err() {
        let largest = 65_535 - segment.ip.header_len() - 60;
        assert!(segment.payload.len() > largest, "only a packet of the largest size may not fit again");
        return;
    }
    let Ok(Packet::Tcp(again)) = parse(&first, ChecksumCheck::Verify) else {
        panic!("what was written cannot be read: {first:02x?}");
    };
    assert_eq!((&again.ip, again.payload), (&segment.ip, segment.payload));
    let fixed = |segment: &Segment<'_>| {
        let tcp = &segment.tcp;
        (tcp.src_port, tcp.dst_port, tcp.seq, tcp.ack, tcp.flags, tcp.window, tcp.urgent, segment.end())
    };
    assert_eq!(fixed(&again), fixed(segment));
    emit(&again.ip, &again.tcp, &[again.payload], ChecksumFill::Full, &mut second).expect("it fitted once");
    assert_eq!(first, second, "written twice, written differently");
}

/// Checks that the pieces of a packet are valid packets whose payloads together are that of the packet.
fn cut(packet: &[u8], segment: &Segment<'_>, size: u16) {
    let mut payload = Vec::new();
    let mut next = segment.tcp.seq;
    split(packet, size, ChecksumFill::Full, &mut |piece| {
        let Ok(Packet::Tcp(piece)) = parse(piece, ChecksumCheck::Verify) else {
            panic!("a piece cannot be read: {piece:02x?}");
        };
        assert_eq!(piece.tcp.seq, next);
        next += piece.payload.len() as u32;
        payload.extend_from_slice(piece.payload);
    });
    assert_eq!(payload, segment.payload);
}
