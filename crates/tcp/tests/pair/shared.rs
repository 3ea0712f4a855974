//! Packets that may be kept give the same stream and the same answers, with one copy less.

use brisk_tcp::StackConfig;
use brisk_tcp::error::ReadError;
use brisk_tcp::stack::Rx;
use brisk_wire::ChecksumCheck;
use bytes::Bytes;

use crate::harness::{A, B, Pair, pattern, stack_config};

/// Returns B's answers to packets of up to 64 kB, and how many of these it kept. `may_keep`: B may keep them.
fn transfer(total: usize, most: usize, may_keep: bool) -> (Vec<Vec<u8>>, usize) {
    let config =
        |side| StackConfig { max_super_segment: 65_000, max_buffer_bytes: most, ..stack_config(side) };
    let mut pair = Pair::with_configs(1, config(A), config(B));
    let (at_a, at_b) = pair.established();
    let data = pattern(total);
    let (mut written, mut got, mut kept) = (0, Vec::new(), 0);
    let mut answers = Vec::new();
    while got.len() < total {
        written += pair.write(A, at_a, &data[written..]).unwrap_or(0);
        let mut packet = Vec::new();
        while let Some(transmit) = pair.a.poll_transmit(pair.now, &mut packet) {
            let rx =
                Rx { checksum: ChecksumCheck::Trust, segment_size: transmit.segment_size, ..Rx::default() };
            let packet = Bytes::copy_from_slice(&packet);
            match may_keep {
                true => pair.b.on_packet_shared(&packet, rx, pair.now),
                false => pair.b.on_packet(&packet, rx, pair.now),
            }
            kept += usize::from(!packet.is_unique());
        }
        got.extend(pair.read(B, at_b).unwrap().unwrap());
        while pair.b.poll_transmit(pair.now, &mut packet).is_some() {
            answers.push(packet.clone());
            pair.a.on_packet(&packet, Rx { checksum: ChecksumCheck::Trust, ..Rx::default() }, pair.now);
        }
        pair.now += std::time::Duration::from_millis(1);
        pair.a.on_timeout(pair.now);
        pair.b.on_timeout(pair.now);
    }
    assert!(got == data);
    (answers, kept)
}

#[test]
fn kept_packets_are_answered_like_copied_ones() {
    let (copied, none) = transfer(3 << 20, 1 << 30, false);
    let (shared, kept) = transfer(3 << 20, 1 << 30, true);
    assert_eq!(none, 0);
    assert!(kept > 40, "{kept} of at least 48 packets were kept");
    assert!(shared == copied);
}

#[test]
fn no_packet_is_kept_that_the_memory_has_no_room_for() {
    let (_, kept) = transfer(1 << 20, 32_000, true);
    assert_eq!(kept, 0);
}

#[test]
fn bytes_are_taken_in_the_packets_that_brought_them() {
    let config = |side| StackConfig { max_super_segment: 65_000, ..stack_config(side) };
    let mut pair = Pair::with_configs(1, config(A), config(B));
    let (at_a, at_b) = pair.established();
    let data = pattern(300_000);
    let (mut written, mut got, mut as_they_lay) = (0, Vec::new(), 0);
    assert_eq!(pair.b.read_bytes(at_b, 9, pair.now), Err(ReadError::WouldBlock));
    while got.len() < data.len() {
        written += pair.write(A, at_a, &data[written..]).unwrap_or(0);
        let mut packet = Vec::new();
        while let Some(transmit) = pair.a.poll_transmit(pair.now, &mut packet) {
            let rx =
                Rx { checksum: ChecksumCheck::Trust, segment_size: transmit.segment_size, ..Rx::default() };
            let packet = Bytes::copy_from_slice(&packet);
            pair.b.on_packet_shared(&packet, rx, pair.now);
            while let Ok(taken) = pair.b.read_bytes(at_b, 50_000, pair.now) {
                assert!(!taken.is_empty() && taken.len() <= 50_000);
                as_they_lay += usize::from(packet.as_ptr_range().contains(&taken.as_ptr()));
                got.extend_from_slice(&taken);
            }
        }
        assert_eq!(pair.b.memory(), 0, "what was taken is not counted");
        while pair.b.poll_transmit(pair.now, &mut packet).is_some() {
            pair.a.on_packet(&packet, Rx { checksum: ChecksumCheck::Trust, ..Rx::default() }, pair.now);
        }
        pair.now += std::time::Duration::from_millis(1);
        pair.a.on_timeout(pair.now);
    }
    assert!(got == data && as_they_lay > 4, "{as_they_lay} as they lay");
    pair.a.shutdown(at_a, pair.now).unwrap();
    pair.run_ms(10);
    assert_eq!(pair.b.read_bytes(at_b, 9, pair.now), Ok(Bytes::new()), "the end of the stream");
}
