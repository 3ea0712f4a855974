//! Super-packets whose payload stays in the send queue are, put together, the packets that leave whole.

use std::net::SocketAddr;

use brisk_tcp::stack::{Rx, Transmit};
use brisk_tcp::time::{Duration, Instant};
use brisk_tcp::{ConnectConfig, ListenConfig, Stack, StackConfig};
use brisk_wire::ChecksumCheck;

/// All that is to be transferred.
const BYTES: usize = 300_000;

fn stack(address: &str, seed: u64) -> Stack {
    let addresses = vec![address.parse().unwrap()];
    Stack::new(StackConfig { addresses, max_super_segment: 65_000, ..StackConfig::default() }, seed).unwrap()
}

/// How the server's packets are polled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Polled {
    Whole,
    InPlace,
    /// In place, all that there are before the payload of the first is asked for.
    Together,
}

/// What the server has to send next, one packet or all: what is in the buffer, what lies elsewhere, and what is known of it.
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

/// What the server sends for a download, packet by packet, and how many of them lay in two places.
fn download(how: Polled) -> (Vec<Vec<u8>>, usize) {
    let (mut client, mut server) = (stack("192.0.2.1", 1), stack("192.0.2.2", 2));
    let remote: SocketAddr = "192.0.2.2:80".parse().unwrap();
    let listener = server.listen(remote, ListenConfig::default()).unwrap();
    let mut now = Instant::ZERO;
    let (reader, _) = client.connect_with_data(remote, b"x", &ConnectConfig::default(), now).unwrap();
    let content: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8).collect();
    let (mut writer, mut written, mut read) = (None, 0, Vec::new());
    let (mut packets, mut apart) = (Vec::new(), 0);
    let trusted = |segment_size| Rx { checksum: ChecksumCheck::Trust, segment_size };
    while read.len() < BYTES {
        let mut packet = Vec::new();
        while let Some(transmit) = client.poll_transmit(now, &mut packet) {
            server.on_packet(&packet, trusted(transmit.segment_size), now);
        }
        writer = writer.or_else(|| server.accept(listener).map(|(id, _)| id));
        if let Some(id) = writer {
            written += server.write(id, &content[written..], now).unwrap_or(0);
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
fn what_is_gathered_is_byte_for_byte_what_leaves_whole() {
    let (whole, none) = download(Polled::Whole);
    assert_eq!(none, 0);
    for how in [Polled::InPlace, Polled::Together] {
        let (gathered, apart) = download(how);
        assert!(apart > 3, "{apart} of {} packets lay in two places", gathered.len());
        assert_eq!(whole, gathered);
    }
}
