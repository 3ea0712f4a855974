//! Another implementation reads our packets, and we read its packets: round trips through the same code prove
//! only that it is consistent with itself.

use brisk_wire::{
    ChecksumCheck, ChecksumFill, Ecn, Flags, IpMeta, Packet, ParseError, SackBlock, SeqNum, TcpHeader,
    Timestamps, emit, four_tuple, parse,
};
use etherparse::{
    IpFragOffset, IpNumber, Ipv4Header, Ipv6FragmentHeader, LaxSlicedPacket, NetSlice, PacketBuilder,
    SlicedPacket, TcpOptionElement, TransportSlice,
};

fn metas() -> [IpMeta; 2] {
    let v4 = IpMeta::new([192, 0, 2, 1].into(), [198, 51, 100, 9].into());
    let v6 = IpMeta::new([0x20; 16].into(), [0x2f; 16].into());
    let marked = |meta| IpMeta { ecn: Ecn::Ect0, dscp: 46, hop_limit: 61, ..meta };
    [IpMeta { identification: 0xabcd, ..marked(v4) }, IpMeta { flow_label: 0x9_8765, ..marked(v6) }]
}

fn header() -> TcpHeader {
    let mut tcp = TcpHeader {
        src_port: 49152,
        dst_port: 443,
        seq: SeqNum(0x1234_5678),
        ack: SeqNum(0x9abc_def0),
        flags: Flags::ACK | Flags::PSH | Flags::ECE,
        window: 0x4321,
        ..TcpHeader::default()
    };
    tcp.options.timestamps = Some(Timestamps { value: 11, echo: 22 });
    tcp.options.sack.push(SackBlock { start: SeqNum(100), end: SeqNum(200) });
    tcp
}

#[test]
fn etherparse_reads_the_ip_header_that_we_wrote() {
    let mut bytes = Vec::new();
    for meta in metas() {
        emit(&meta, &header(), &[b"odd"], ChecksumFill::Full, &mut bytes).unwrap();
        match SlicedPacket::from_ip(&bytes).unwrap().net.unwrap() {
            NetSlice::Ipv4(ip) => {
                let ip = ip.header().to_header();
                assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                assert_eq!((ip.identification, ip.dont_fragment, ip.time_to_live), (0xabcd, true, 61));
                assert_eq!((ip.dscp.value(), ip.ecn.value()), (46, 0b10));
                assert_eq!(usize::from(ip.total_len), bytes.len());
            }
            NetSlice::Ipv6(ip) => {
                let ip = ip.header().to_header();
                assert_eq!((ip.flow_label.value(), ip.hop_limit), (0x9_8765, 61));
                assert_eq!(ip.traffic_class, 46 << 2 | 0b10);
                assert_eq!(usize::from(ip.payload_length) + 40, bytes.len());
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn etherparse_reads_the_segment_that_we_wrote() {
    let mut bytes = Vec::new();
    for meta in metas() {
        emit(&meta, &header(), &[b"od", b"d"], ChecksumFill::Full, &mut bytes).unwrap();
        let sliced = SlicedPacket::from_ip(&bytes).unwrap();
        let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { panic!("{sliced:?}") };
        assert_eq!((tcp.source_port(), tcp.destination_port()), (49152, 443));
        assert_eq!((tcp.sequence_number(), tcp.acknowledgment_number()), (0x1234_5678, 0x9abc_def0));
        assert_eq!((tcp.ack(), tcp.psh(), tcp.ece(), tcp.syn(), tcp.fin()), (true, true, true, false, false));
        assert_eq!((tcp.window_size(), tcp.payload()), (0x4321, &b"odd"[..]));
        let checksum = match sliced.net.unwrap() {
            NetSlice::Ipv4(ip) => tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination()),
            NetSlice::Ipv6(ip) => tcp.calc_checksum_ipv6(ip.header().source(), ip.header().destination()),
            other => panic!("{other:?}"),
        };
        assert_eq!(tcp.checksum(), checksum.unwrap());
        let options: Vec<TcpOptionElement> = tcp.options_iterator().map(Result::unwrap).collect();
        let nop = TcpOptionElement::Noop;
        let sack = TcpOptionElement::SelectiveAcknowledgement((100, 200), [None; 3]);
        let expected =
            [nop.clone(), nop.clone(), TcpOptionElement::Timestamp(11, 22), nop.clone(), nop, sack];
        assert_eq!(options, expected);
    }
}

#[test]
fn we_read_the_syn_that_etherparse_wrote() {
    let options = [
        TcpOptionElement::MaximumSegmentSize(1460),
        TcpOptionElement::SelectiveAcknowledgementPermitted,
        TcpOptionElement::Timestamp(1, 0),
        TcpOptionElement::Noop,
        TcpOptionElement::WindowScale(7),
    ];
    let builders = [
        PacketBuilder::ipv4([192, 0, 2, 1], [198, 51, 100, 9], 64),
        PacketBuilder::ipv6([0x20; 16], [0x2f; 16], 64),
    ];
    for builder in builders {
        let builder = builder.tcp(1000, 80, 77, 64240).syn().options(&options).unwrap();
        let mut bytes = Vec::new();
        builder.write(&mut bytes, b"early").unwrap();
        let Ok(Packet::Tcp(segment)) = parse(&bytes, ChecksumCheck::Verify) else { panic!("{bytes:02x?}") };
        let read = &segment.tcp.options;
        assert_eq!((read.mss, read.window_scale, read.sack_permitted), (Some(1460), Some(7), true));
        assert_eq!(read.timestamps, Some(Timestamps { value: 1, echo: 0 }));
        assert_eq!(
            (segment.tcp.flags, segment.tcp.seq, segment.payload),
            (Flags::SYN, SeqNum(77), &b"early"[..])
        );
        let (src, dst) = four_tuple(&bytes).unwrap();
        assert_eq!((src.port(), dst.port()), (1000, 80));
    }
}

#[test]
fn we_refuse_the_fragments_that_etherparse_wrote() {
    let mut ip = Ipv4Header::new(8, 64, IpNumber::TCP, [192, 0, 2, 1], [198, 51, 100, 9]).unwrap();
    ip.dont_fragment = false;
    ip.more_fragments = true;
    ip.header_checksum = ip.calc_header_checksum();
    let first = [&ip.to_bytes()[..], &[0; 8]].concat();
    assert!(LaxSlicedPacket::from_ip(&first).is_ok());
    assert_eq!(parse(&first, ChecksumCheck::Verify), Err(ParseError::Fragment));

    let fragment = Ipv6FragmentHeader::new(IpNumber::TCP, IpFragOffset::try_new(3).unwrap(), false, 9);
    let mut bytes = vec![0x60, 0, 0, 0, 0, 16, 44, 64];
    bytes.extend([0x20; 32]);
    bytes.extend(fragment.to_bytes());
    bytes.extend([0; 8]);
    assert!(LaxSlicedPacket::from_ip(&bytes).is_ok());
    assert_eq!(parse(&bytes, ChecksumCheck::Verify), Err(ParseError::Fragment));
}
