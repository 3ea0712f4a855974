//! A super-packet whose payload stays in the send queue is equal to one that is written as a whole. This
//! holds for copied and for given buffers.

use std::net::SocketAddr;

use brisk_tcp::error::WriteError;
use brisk_tcp::stack::{Rx, Transmit};
use brisk_tcp::time::{Duration, Instant};
use brisk_tcp::{ConnId, ConnectConfig, ListenConfig, Stack, StackConfig};
use brisk_wire::ChecksumCheck;
use bytes::Bytes;

/// Length of the download.
const BYTES: usize = 300_000;

fn stack(address: &str, seed: u64) -> Stack {
    let addresses = vec![address.parse().unwrap()];
    Stack::new(StackConfig { addresses, max_super_segment: 65_000, ..StackConfig::default() }, seed).unwrap()
}

/// The way in which the server's program writes.
#[derive(Clone, Copy, PartialEq)]
enum Writing {
    /// As much as fits, copied.
    Copied,
    /// As much as fits, in runs of many lengths.
    InRuns,
    /// In runs. The ownership of runs of 4 kB and more is handed over.
    Given,
}

impl Writing {
    /// Writes as much as fits, beginning with byte `from`.
    fn write(self, server: &mut Stack, id: ConnId, content: &[u8], mut from: usize, now: Instant) -> usize {
        for len in [90_000, 3, 5_000, 700, 30_000, 4_096, 4_095].into_iter().cycle() {
            let run = content.get(from..content.len().min(from + len)).unwrap();
            let taken = match self {
                Writing::Copied => server.write(id, &content[from..], now),
                Writing::InRuns => server.write(id, run, now),
                Writing::Given => {
                    let mut run = Bytes::copy_from_slice(run);
                    let before = run.clone();
                    let taken = server.write_bytes(id, &mut run, now);
                    assert_eq!(run, before[taken.unwrap_or(0)..]);
                    taken
                }
            };
            match taken {
                Ok(taken) if taken > 0 => from += taken,
                Ok(_) | Err(_) => break,
            }
        }
        from
    }
}

/// The way in which the server's packets are polled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Polled {
    Whole,
    InPlace,
    /// In place. All available packets are polled before the payload of the first is read.
    Together,
}

/// Returns the next packet of the server, or all packets. Each has the part in the buffer, the part
/// elsewhere, and the description.
fn polled(server: &mut Stack, polled: Polled, now: Instant) -> Vec<(Vec<u8>, Vec<u8>, Transmit)> {
    let most = if polled == Polled::Together { usize::MAX } else { 1 };
    let mut packets = Vec::new();
    while packets.len() < most {
        let mut packet = Vec::new();
        let transmit = match polled {
            Polled::Whole => server.poll_transmit(now, &mut packet),
            Polled::InPlace | Polled::Together => server.poll_transmit_in_place(now, &mut packet),
        };
        let Some(transmit) = transmit else { break };
        packets.push((packet, transmit));
    }
    let payload = |(packet, transmit)| (packet, server.payload(&transmit).concat(), transmit);
    packets.into_iter().map(payload).collect()
}

/// Returns the server's packets of a download, and how many of them were in two parts.
fn download(how: Polled, writing: Writing) -> (Vec<Vec<u8>>, usize) {
    let (mut client, mut server) = (stack("192.0.2.1", 1), stack("192.0.2.2", 2));
    let remote: SocketAddr = "192.0.2.2:80".parse().unwrap();
    let listener = server.listen(remote, ListenConfig::default()).unwrap();
    let mut now = Instant::ZERO;
    let (reader, _) = client.connect_with_data(remote, b"x", &ConnectConfig::default(), now).unwrap();
    let content: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8).collect();
    let (mut writer, mut written, mut read) = (None, 0, Vec::new());
    let (mut packets, mut apart) = (Vec::new(), 0);
    let trusted = |segment_size| Rx { checksum: ChecksumCheck::Trust, segment_size, ..Rx::default() };
    while read.len() < BYTES {
        let mut packet = Vec::new();
        while let Some(transmit) = client.poll_transmit(now, &mut packet) {
            server.on_packet(&packet, trusted(transmit.segment_size), now);
        }
        writer = writer.or_else(|| server.accept(listener).map(|(id, _)| id));
        if let Some(id) = writer {
            written = writing.write(&mut server, id, &content, written, now);
        }
        loop {
            let round = polled(&mut server, how, now);
            if round.is_empty() {
                break;
            }
            for (mut packet, payload, transmit) in round {
                apart += usize::from(packet.len() < transmit.len);
                packet.extend(payload);
                assert_eq!(packet.len(), transmit.len);
                client.on_packet(&packet, trusted(transmit.segment_size), now);
                packets.push(packet);
            }
        }
        let mut buffer = vec![0; BYTES];
        let count = client.read(reader, &mut buffer, now).unwrap_or(0);
        read.extend_from_slice(&buffer[..count]);
        now += Duration::from_millis(1);
        assert!(now < Instant::from_millis(60_000), "only {} bytes came", read.len());
        for stack in [&mut client, &mut server] {
            stack.on_timeout(now);
        }
    }
    assert_eq!(read, content);
    (packets, apart)
}

#[test]
fn gathered_packets_equal_whole_ones_byte_for_byte() {
    let (whole, none) = download(Polled::Whole, Writing::Copied);
    assert_eq!(none, 0);
    for how in [Polled::InPlace, Polled::Together] {
        let (gathered, apart) = download(how, Writing::Copied);
        assert!(apart > 3, "{apart} of {} packets lay in two places", gathered.len());
        assert_eq!(whole, gathered);
    }
}

#[test]
fn given_bytes_leave_like_copied_ones() {
    let (copied, _) = download(Polled::Whole, Writing::InRuns);
    let (given, _) = download(Polled::Whole, Writing::Given);
    assert!(copied == given);
    // `download` checks that the stream is the same.
    for how in [Polled::InPlace, Polled::Together] {
        let (gathered, apart) = download(how, Writing::Given);
        assert!(apart > 3, "{apart} of {} packets lay in two places", gathered.len());
    }
}

#[test]
fn given_bytes_stay_in_place_until_acknowledged() {
    let (mut client, mut server) = (stack("192.0.2.1", 1), stack("192.0.2.2", 2));
    let remote: SocketAddr = "192.0.2.2:80".parse().unwrap();
    let listener = server.listen(remote, ListenConfig::default()).unwrap();
    let now = Instant::ZERO;
    let (reader, _) = client.connect_with_data(remote, b"x", &ConnectConfig::default(), now).unwrap();
    let mut packet = Vec::new();
    let rx = Rx { checksum: ChecksumCheck::Trust, ..Rx::default() };
    let pass = |from: &mut Stack, to: &mut Stack, packet: &mut Vec<u8>| {
        while from.poll_transmit(now, packet).is_some() {
            to.on_packet(packet, rx, now);
        }
    };
    for _ in 0..2 {
        pass(&mut client, &mut server, &mut packet);
        pass(&mut server, &mut client, &mut packet);
    }
    let (writer, _) = server.accept(listener).unwrap();
    server.read(writer, &mut [0; 9], now).unwrap();
    let before = server.memory();
    let (body, few) = (Bytes::from(vec![7; 9_000]), Bytes::from_static(&[8; 4_095]));
    assert_eq!(server.write_bytes(writer, &mut body.clone(), now), Ok(9_000));
    assert_eq!(server.memory(), before + 9_000, "it counts");
    assert!(!body.is_unique(), "the stack holds it, and no copy");
    assert_eq!(server.write_bytes(writer, &mut few.clone(), now), Ok(4_095));
    let transmit = server.poll_transmit_in_place(now, &mut packet).unwrap();
    let [first, second] = server.payload(&transmit);
    assert_eq!(first.as_ptr(), body.as_ptr());
    assert!(second.iter().all(|byte| *byte == 8) && first.len() + second.len() == 9_000 + 4_095);
    packet.extend([first, second].concat());
    client.on_packet(&packet, Rx { segment_size: transmit.segment_size, ..rx }, now);
    let mut read = vec![0; 20_000];
    assert_eq!(client.read(reader, &mut read, now), Ok(9_000 + 4_095));
    pass(&mut client, &mut server, &mut packet);
    assert!(body.is_unique(), "it is let go of");
    assert!(server.memory() < before + 9_000);
}

#[test]
fn given_bytes_wait_for_memory_like_copied_ones() {
    let addresses = vec!["192.0.2.1".parse().unwrap()];
    let config = StackConfig { addresses, max_buffer_bytes: 16_000, ..StackConfig::default() };
    let mut stack = Stack::new(config, 1).unwrap();
    let remote: SocketAddr = "192.0.2.2:80".parse().unwrap();
    let id = stack.connect(remote, &ConnectConfig::default(), Instant::ZERO).unwrap();
    let mut body = Bytes::from(vec![7; 20_000]);
    assert_eq!(stack.write_bytes(id, &mut body, Instant::ZERO), Ok(12_000), "a quarter is for what arrives");
    assert_eq!(stack.write_bytes(id, &mut body, Instant::ZERO), Err(WriteError::WouldBlock));
    assert_eq!((body.len(), stack.memory()), (8_000, 12_000));
    stack.abort(id, Instant::ZERO);
    let refused = stack.write_bytes(id, &mut body, Instant::ZERO);
    assert!(matches!(refused, Err(WriteError::Closed(_) | WriteError::NoConnection)), "{refused:?}");
    stack.release(id, Instant::ZERO);
    assert_eq!((body.len(), stack.memory()), (8_000, 0));
}
