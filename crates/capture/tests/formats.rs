//! One conversation in every format that tcpdump and Wireshark write, complete and damaged.

use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use brisk_capture::{Analysis, CaptureError, analyse};

/// The header before the IP packet.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Layer {
    Ethernet,
    /// A tag of 802.1Q inside a tag of 802.1ad.
    TwoVlans,
    Cooked,
    Cooked2,
    Raw,
    Null,
}

const LAYERS: [Layer; 6] =
    [Layer::Ethernet, Layer::TwoVlans, Layer::Cooked, Layer::Cooked2, Layer::Raw, Layer::Null];

impl Layer {
    /// Returns the link type's number in tcpdump's registry.
    fn linktype(self) -> u32 {
        match self {
            Layer::Ethernet | Layer::TwoVlans => 1,
            Layer::Cooked => 113,
            Layer::Cooked2 => 276,
            Layer::Raw => 101,
            Layer::Null => 0,
        }
    }

    fn wrap(self, packet: &[u8]) -> Vec<u8> {
        let v6 = packet[0] >> 4 == 6;
        let ether_type: [u8; 2] = if v6 { [0x86, 0xdd] } else { [0x08, 0x00] };
        let mut header = match self {
            Layer::Ethernet => [&[2; 12][..], &ether_type].concat(),
            Layer::TwoVlans => [&[2; 12][..], &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 9], &ether_type].concat(),
            Layer::Cooked => [&[0; 14][..], &ether_type].concat(),
            Layer::Cooked2 => [&ether_type[..], &[0; 18]].concat(),
            Layer::Raw => Vec::new(),
            Layer::Null => vec![if v6 { 30 } else { 2 }, 0, 0, 0],
        };
        header.extend(packet);
        // An Ethernet frame has at least 60 bytes; the padding is not payload.
        if matches!(self, Layer::Ethernet | Layer::TwoVlans) {
            header.resize(header.len().max(60), 0);
        }
        header
    }
}

const SYN: u8 = 2;
const ACK: u8 = 16;

/// Returns a TCP segment in an IP packet; nothing checks its checksums.
fn segment(v6: bool, from_client: bool, flags: u8, seq: u32, ack: u32, payload: usize) -> Vec<u8> {
    let ports: [u16; 2] = if from_client { [40_000, 80] } else { [80, 40_000] };
    let mut tcp = ports.map(u16::to_be_bytes).concat();
    tcp.extend([seq, ack].map(u32::to_be_bytes).concat());
    tcp.extend([0x50, flags, 0x40, 0, 0, 0, 0, 0]);
    tcp.resize(20 + payload, b'x');
    let end = |client: bool| -> IpAddr {
        let last = if client { 1 } else { 2 };
        if v6 {
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last).into()
        } else {
            Ipv4Addr::new(192, 0, 2, last as u8).into()
        }
    };
    let mut packet = match v6 {
        true => [&[0x60, 0, 0, 0][..], &(tcp.len() as u16).to_be_bytes(), &[6, 64]].concat(),
        false => {
            let total = (20 + tcp.len() as u16).to_be_bytes();
            [&[0x45, 0][..], &total, &[0, 0, 0x40, 0, 64, 6, 0, 0]].concat()
        }
    };
    for address in [end(from_client), end(!from_client)] {
        match address {
            IpAddr::V4(address) => packet.extend(address.octets()),
            IpAddr::V6(address) => packet.extend(address.octets()),
        }
    }
    packet.extend(tcp);
    packet
}

/// Returns packets with their times in milliseconds. They are captured at the client, 50 ms from the server.
/// There are 300 bytes up and 3,000 down, and the second segment down is sent twice.
fn conversation(v6: bool) -> Vec<(u64, Vec<u8>)> {
    let up = |flags, seq, ack, payload| segment(v6, true, flags, seq, ack, payload);
    let down = |flags, seq, ack, payload| segment(v6, false, flags, seq, ack, payload);
    vec![
        (0, up(SYN, 1000, 0, 0)),
        (50, down(SYN | ACK, 5000, 1001, 0)),
        (50, up(ACK, 1001, 5001, 0)),
        (50, up(ACK, 1001, 5001, 300)),
        (100, down(ACK, 5001, 1301, 1000)),
        (100, up(ACK, 1301, 6001, 0)),
        (101, down(ACK, 7001, 1301, 1000)),
        (101, up(ACK, 1301, 6001, 0)),
        (160, down(ACK, 6001, 1301, 1000)),
        (160, up(ACK, 1301, 8001, 0)),
    ]
}

/// Returns a pcap file; `nano` and `swapped` select the other three magic numbers.
fn pcap(layer: Layer, packets: &[(u64, Vec<u8>)], nano: bool, swapped: bool, snaplen: usize) -> Vec<u8> {
    let word = |value: u32| if swapped { value.to_be_bytes() } else { value.to_le_bytes() };
    let half = |value: u16| if swapped { value.to_be_bytes() } else { value.to_le_bytes() };
    let mut file = word(if nano { 0xa1b2_3c4d } else { 0xa1b2_c3d4 }).to_vec();
    file.extend([half(2), half(4)].concat());
    file.extend([0, 0, snaplen as u32, layer.linktype()].map(word).concat());
    for (ms, packet) in packets {
        let frame = layer.wrap(packet);
        let kept = frame.len().min(snaplen);
        let ticks = ms * if nano { 1_000_000 } else { 1_000 };
        file.extend([1_700_000_000, ticks as u32, kept as u32, frame.len() as u32].map(word).concat());
        file.extend(&frame[..kept]);
    }
    file
}

/// Returns a block of pcapng with its length at both ends.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let total = (12 + padded as u32).to_le_bytes();
    let mut block = [&kind.to_le_bytes()[..], &total, body].concat();
    block.resize(8 + padded, 0);
    block.extend(total);
    block
}

/// Returns an option of pcapng.
fn option(code: u16, value: &[u8]) -> Vec<u8> {
    let mut option = [code, value.len() as u16].map(u16::to_le_bytes).concat();
    option.extend(value);
    option.resize(option.len().next_multiple_of(4), 0);
    option
}

/// Returns a pcapng file with the additions of Wireshark: comments, names, resolution and offset of the
/// interface, statistics, secrets.
fn pcapng(layer: Layer, packets: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut section = [0x1a2b_3c4d_u32.to_le_bytes(), [1, 0, 0, 0], [0xff; 4], [0xff; 4]].concat();
    section.extend([option(1, b"a comment"), option(3, b"Linux"), option(0, b"")].concat());
    let mut interface = [layer.linktype().to_le_bytes(), [0, 0, 4, 0]].concat();
    // Resolution in nanoseconds, and an offset in seconds.
    let offset = 1_700_000_000_u64.to_le_bytes();
    interface.extend([option(2, b"eth7"), option(9, &[9]), option(14, &offset), option(0, b"")].concat());
    let mut file = [block(0x0a0d_0d0a, &section), block(1, &interface)].concat();
    for (ms, packet) in packets {
        let frame = layer.wrap(packet);
        let ticks = ms * 1_000_000;
        let len = frame.len() as u32;
        let mut body = [0, (ticks >> 32) as u32, ticks as u32, len, len].map(u32::to_le_bytes).concat();
        body.extend(&frame);
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend([option(1, b"seen"), option(2, &[0; 4]), option(0, b"")].concat());
        file.extend(block(6, &body));
    }
    // Name resolution, interface statistics, and an unknown block type.
    for (kind, body) in [(4, &[0; 4][..]), (5, &[0; 12]), (0x0bad, b"whatever")] {
        file.extend(block(kind, body));
    }
    file
}

fn check(analysis: &Analysis, what: &str) {
    assert_eq!((analysis.packets, analysis.segments, analysis.connections), (10, 10, 1), "{what}");
    let [exchange] = &analysis.exchanges[..] else { panic!("{what}: {:?}", analysis.exchanges) };
    assert_eq!((exchange.request, exchange.response, exchange.fresh), (300, 3_000, true), "{what}");
    assert_eq!(analysis.round_trip(0.5), Some(50_000_000), "{what}");
    assert_eq!((analysis.down.lost, analysis.unseen_bytes, &analysis.stopped), (1, 0, &None), "{what}");
}

#[test]
fn every_format_and_link_layer_gives_the_same_result() {
    for layer in LAYERS {
        for v6 in [false, true] {
            let packets = conversation(v6);
            for (nano, swapped) in [(false, false), (false, true), (true, false), (true, true)] {
                let what = format!("{layer:?} v6 {v6} nano {nano} swapped {swapped}");
                check(&analyse(&pcap(layer, &packets, nano, swapped, 65_535)[..]).unwrap(), &what);
                // The headers suffice.
                check(&analyse(&pcap(layer, &packets, nano, swapped, 96)[..]).unwrap(), &what);
            }
            check(&analyse(&pcapng(layer, &packets)[..]).unwrap(), &format!("{layer:?} v6 {v6} pcapng"));
        }
    }
}

#[test]
fn file_may_end_anywhere() {
    let packets = conversation(false);
    for file in [pcap(Layer::Ethernet, &packets, true, false, 65_535), pcapng(Layer::Cooked2, &packets)] {
        let mut max = 0;
        // Each call allocates a buffer of a megabyte, so only some of the lengths are tested.
        for end in (0..=file.len()).step_by(61) {
            match analyse(&file[..end]) {
                Ok(analysis) => {
                    assert!(analysis.packets >= max, "{end}: {} after {max}", analysis.packets);
                    max = analysis.packets;
                }
                Err(error) => {
                    assert!(max == 0, "{end}: {error} after {max} packets");
                    assert_eq!(error.to_string().lines().count(), 1);
                }
            }
        }
        assert!(max >= 8, "{max}");
    }
}

#[test]
fn wrong_byte_anywhere_causes_no_panic() {
    let packets = conversation(true);
    for file in [pcap(Layer::TwoVlans, &packets, false, false, 65_535), pcapng(Layer::Ethernet, &packets)] {
        for (at, value) in (0..file.len()).step_by(37).zip([0, 0x7f, 0xff].into_iter().cycle()) {
            let mut damaged = file.clone();
            damaged[at] = value;
            let _ = analyse(&damaged[..]);
        }
    }
}

/// A pcapng block has at least 12 bytes; the parser does not check this.
#[test]
fn block_below_the_minimum_length_is_damage() {
    let whole = pcapng(Layer::Raw, &conversation(false));
    let packets = analyse(&whole[..]).unwrap().packets;
    // Process information, a simple packet, an enhanced packet, and an unknown kind.
    for kind in [0x8000_0001_u32, 3, 6, 0x7777] {
        for length in 0..12_u32 {
            let mut file = whole.clone();
            file.extend([kind.to_le_bytes(), length.to_le_bytes(), [0; 4], length.to_le_bytes()].concat());
            let analysis = analyse(&file[..]).unwrap();
            assert_eq!(
                (analysis.packets, analysis.stopped.as_deref()),
                (packets, Some("the file is damaged"))
            );
        }
    }
}

#[test]
fn sparse_file_of_two_gigabytes_needs_little_memory() {
    // A sparse file: a header and one packet, then zeros. In pcap format zeros are packets without a byte.
    let path = std::env::temp_dir().join(format!("brisk-sparse-{}", std::process::id()));
    let mut file = std::fs::OpenOptions::new();
    let mut file = file.create(true).truncate(true).read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.write_all(&pcapng(Layer::Raw, &conversation(false))).unwrap();
    file.set_len(2 << 30).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut counted = Counted { input: &mut file, bytes: 0 };
    let analysis = analyse(&mut counted).unwrap();
    assert!(analysis.stopped.is_some() && analysis.exchanges.len() == 1, "{analysis:?}");
    assert!(counted.bytes < 16 << 20, "the reader does not stop at the damage: {} bytes read", counted.bytes);
}

struct Counted<R> {
    input: R,
    bytes: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.bytes += read as u64;
        Ok(read)
    }
}

#[test]
fn capture_without_tcp_is_reported() {
    let mut udp = segment(false, true, SYN, 0, 0, 0);
    udp[9] = 17;
    let file = pcap(Layer::Ethernet, &[(0, udp)], false, false, 65_535);
    assert!(matches!(analyse(&file[..]), Err(CaptureError::NoTcp { packets: 1 })));
    // An unknown link type: 802.11 with radiotap.
    let mut file = pcap(Layer::Ethernet, &conversation(false), false, false, 65_535);
    file[20] = 127;
    assert!(matches!(analyse(&file[..]), Err(CaptureError::NoTcp { packets: 10 })));
}
