//! Hostile content of segments: options, urgent pointers, overlaps, tiny segments.

use brisk_tcp::config::BufferConfig;
use brisk_tcp::connection::State;
use brisk_wire::Flags;

use crate::bounded;
use crate::scene::*;

#[test]
fn readable_bytes_do_not_change() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    let at = |seq: u32, payload| Attack { seq: ISN + 1 + seq, payload, ..ack(isn + 1) };
    scene.arrive(peer(1), at(0, b"ABCD"));
    scene.arrive(peer(1), at(2, b"xxEFGH"));
    scene.arrive(peer(1), at(0, b"yyyyyyyy"));
    let mut got = [0; 16];
    let count = scene.stack.read(id, &mut got, scene.now).unwrap();
    let changed = got[..count].iter().zip(b"ABCDEFGH").filter(|(a, b)| a != b).count();
    bounded("overlapping retransmission with other content", "bytes that were changed", 0, changed as u64);
    assert_eq!(count, 8);
}

/// Segments have random positions, lengths and contents. Bytes that were readable do not change.
#[test]
fn a_thousand_overlaps_change_nothing_that_could_be_read() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &WITH_SACK);
    let (mut seen, mut changed): (Vec<u8>, u64) = (Vec::new(), 0);
    let mut seed = 3u32;
    for _ in 0..2_000 {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let at = (seed >> 8) % (seen.len() as u32 + 300);
        let len = (seed >> 3) as usize % 400;
        let payload = vec![seed as u8; len];
        scene.arrive(peer(1), Attack { seq: ISN + 1 + at, payload: &payload, ..ack(isn + 1) });
        let mut now = vec![0; scene.stack.readable(id)];
        let count = scene.stack.peek(id, &mut now).unwrap_or(0);
        changed += seen.iter().zip(&now[..count]).filter(|(was, is)| was != is).count() as u64;
        seen = now;
    }
    bounded("2000 overlapping segments with other content", "readable bytes that changed", 0, changed);
    assert!(seen.len() > 10_000, "most of it arrives: {}", seen.len());
}

#[test]
fn tiny_segments_after_a_gap_hold_at_most_the_buffer() {
    let mut scene = Scene::new(|_, _| {});
    let (_, isn) = scene.open(peer(1), &WITH_SACK);
    let before = scene.stack.memory() as u64;
    for count in 0..30_000u32 {
        let crumb = Attack { seq: ISN + 3 + (count * 2) % 60_000, payload: b"x", ..ack(isn + 1) };
        scene.arrive(peer(1), crumb);
    }
    bounded(
        "30000 one-byte segments behind a gap",
        "memory of buffers, bytes",
        128 << 10,
        scene.stack.memory() as u64 - before,
    );
    bounded("30000 one-byte segments behind a gap", "acknowledgements", 30_000, scene.sent.len() as u64);
}

#[test]
fn tiny_segments_in_order_hold_at_most_the_buffer() {
    const BUFFER: usize = 16 << 10;
    let mut scene =
        Scene::new(|_, listen| listen.tcp.receive_buffer = BufferConfig { initial: BUFFER, max: BUFFER });
    let (id, isn) = scene.open(peer(1), &WITH_SACK);
    let before = scene.stack.memory() as u64;
    for count in 0..30_000u32 {
        scene.arrive(peer(1), Attack { seq: ISN + 1 + count, payload: b"x", ..ack(isn + 1) });
    }
    let memory = scene.stack.memory() as u64 - before;
    bounded(
        "30000 one-byte segments in order, nobody reads",
        "memory of buffers, bytes",
        BUFFER as u64,
        memory,
    );
    bounded(
        "30000 one-byte segments in order, nobody reads",
        "bytes taken",
        BUFFER as u64,
        scene.stack.readable(id) as u64,
    );
}

#[test]
fn malformed_options_are_ignored() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    let mut seed = 1u32;
    for _ in 0..20_000 {
        let mut option = [0u8; 40];
        for byte in &mut option {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (seed >> 24) as u8;
        }
        scene.arrive(peer(1), Attack { options: &option, ..ack(isn + 1) });
    }
    assert_eq!(scene.stack.state(id), Some(State::Established));
    bounded("option flood, 20000 times 40 random bytes", "answers", 40, scene.sent.len() as u64);
}

#[test]
fn urgent_pointers_everywhere_lose_no_bytes() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    for count in 0..1000u32 {
        let urgent = Attack {
            seq: ISN + 1 + count,
            flags: Flags::ACK | Flags::URG,
            urgent: (count * 13 % 60_000) as u16,
            payload: b"u",
            ..ack(isn + 1)
        };
        scene.arrive(peer(1), urgent);
    }
    let mut got = vec![0; 4096];
    let mut read = 0;
    while let Ok(count) = scene.stack.read(id, &mut got, scene.now) {
        read += count;
        if count == 0 {
            break;
        }
    }
    bounded("urgent flood, 1000 pointers", "bytes beyond those sent", 0, read.saturating_sub(1000) as u64);
    assert!(read > 0);
}
