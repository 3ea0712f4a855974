//! An attacker who cannot see the traffic and must guess: RFC 5961 section by section, ICMP, fragments.

use std::net::{IpAddr, SocketAddr};

use brisk_tcp::connection::State;
use brisk_tcp::stack::{Refusal, Rx};
use brisk_tcp::time::Duration;
use brisk_wire::{Flags, IcmpKind};

use crate::bounded;
use crate::scene::*;

/// Returns sequence numbers spread evenly over the whole space, except the one at `skipped`.
fn guesses(count: u32, skipped: u32) -> impl Iterator<Item = u32> {
    let stride = u32::MAX / count;
    (0..count)
        .map(move |n| skipped.wrapping_add(stride / 2).wrapping_add(n.wrapping_mul(stride)))
        .filter(move |seq| *seq != skipped)
}

/// RFC 5961 section 3.2: only a reset at RCV.NXT ends the connection. A reset in the window is challenged,
/// any other is dropped silently.
#[test]
fn resets_at_guessed_numbers_reset_nothing() {
    let mut scene = Scene::new(|_, _| {});
    let (id, _) = scene.open(peer(1), &MSS_1000);
    for seq in guesses(70_000, ISN + 1) {
        scene.arrive(peer(1), Attack { seq, flags: Flags::RST, ..Attack::default() });
    }
    let what = "RFC 5961 section 3: 70000 RSTs, one in each window of all numbers";
    bounded(what, "connections reset", 0, u64::from(scene.stack.state(id) != Some(State::Established)));
    // The window spans a little more than one stride.
    bounded(what, "challenge ACKs", 3, scene.sent.len() as u64);
}

/// RFC 5961 section 4.2: a SYN with any number is challenged and changes nothing.
#[test]
fn syns_at_guessed_numbers_reset_nothing() {
    let mut scene = Scene::new(|_, _| {});
    let (id, _) = scene.open(peer(1), &MSS_1000);
    for seq in guesses(70_000, ISN + 1) {
        scene.arrive(peer(1), Attack { seq, flags: Flags::SYN, options: &MSS_1000, ..Attack::default() });
    }
    let what = "RFC 5961 section 4: 70000 SYNs over all numbers at one instant";
    bounded(what, "connections reset", 0, u64::from(scene.stack.state(id) != Some(State::Established)));
    bounded(what, "challenge ACKs of one connection", 1, scene.sent.len() as u64);
}

/// RFC 5961 section 5.2: data is accepted if SND.UNA - MAX.SND.WND <= SEG.ACK <= SND.NXT. Half of all guesses
/// would be accepted by the comparison of RFC 793.
#[test]
fn data_with_a_guessed_acknowledgement_is_not_taken() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    for guess in guesses(16_384, isn + 1) {
        scene.arrive(peer(1), Attack { payload: b"injected", ..ack(guess) });
    }
    let taken = scene.stack.readable(id) as u64;
    bounded("RFC 5961 section 5: 16384 data segments at RCV.NXT, ACK guessed", "bytes delivered", 0, taken);
}

#[test]
fn blind_data_needs_an_acceptable_acknowledgement() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    for guess in 0..1000u32 {
        let wrong = isn.wrapping_add(0x2000_0000).wrapping_add(guess * 0x0010_0000);
        scene.arrive(peer(1), Attack { payload: b"injected", ..ack(wrong) });
    }
    bounded("blind data injection, 1000 guesses", "bytes delivered", 0, scene.stack.readable(id) as u64);
}

/// RFC 5961 section 7: the limit applies to the host, however many connections are attacked.
#[test]
fn challenges_are_limited_for_the_host() {
    let mut scene = Scene::new(|_, _| {});
    for port in 1..=2000 {
        scene.open(peer(port), &MSS_1000);
    }
    scene.now += Duration::from_secs(10);
    let mut answers = 0;
    for port in 1..=2000 {
        for n in 0..2 {
            scene.arrive(peer(port), Attack { seq: ISN + 2 + n, flags: Flags::SYN, ..Attack::default() });
        }
        answers += std::mem::take(&mut scene.sent).len() as u64;
    }
    bounded(
        "RFC 5961 section 7: 4000 SYNs at 2000 connections in one instant",
        "challenge ACKs",
        1500,
        answers,
    );
    assert!(answers >= 500, "at least half of what the limit says");
}

#[test]
fn blind_resets_and_syns_do_not_hit_and_are_answered_within_the_limit() {
    let mut scene = Scene::new(|_, _| {});
    let (id, _) = scene.open(peer(1), &MSS_1000);
    for guess in 0..10_000u32 {
        let flags = if guess % 2 == 0 { Flags::RST } else { Flags::SYN };
        let seq = ISN + 2 + guess * 6;
        scene.arrive(peer(1), Attack { seq, flags, ..Attack::default() });
    }
    assert_eq!(scene.stack.state(id), Some(State::Established));
    bounded(
        "blind RST and SYN, 10000 in the window in one instant",
        "challenge ACKs",
        1,
        scene.sent.len() as u64,
    );
}

/// RFC 9293 section 3.10.7.3: in SYN-SENT a reset or a SYN-ACK is accepted only if it acknowledges the SYN.
#[test]
fn blind_answers_to_a_syn_are_rejected() {
    let mut scene = Scene::new(|_, _| {});
    let id = scene.stack.connect(peer(443), &Default::default(), scene.now).unwrap();
    scene.drain();
    let (local, iss) = (scene.stack.local_addr(id).unwrap(), scene.sent[0].0.seq.0);
    scene.sent.clear();
    for (n, guess) in guesses(10_000, iss + 1).enumerate() {
        let flags = [Flags::RST | Flags::ACK, Flags::SYN | Flags::ACK, Flags::RST][n % 3];
        scene
            .answer(local, Attack { seq: guess, ack: guess, flags, window: Some(1000), ..Attack::default() });
    }
    let what = "10000 blind RSTs and SYN-ACKs at a connection in SYN-SENT";
    bounded(
        what,
        "connections closed or opened",
        0,
        u64::from(scene.stack.state(id) != Some(State::SynSent)),
    );
    bounded(what, "resets sent in one instant", 10, scene.sent.len() as u64);
}

#[test]
fn forged_icmp_errors_are_ignored() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    scene.write(id, 5_000);
    let before = scene.stats(id).mss;
    for guess in 0..5000u32 {
        let seq = isn.wrapping_add(0x1000_0000 + guess * 1000);
        scene.icmp(IcmpKind::PacketTooBig { mtu: 68 }, 80, 1, seq);
    }
    bounded(
        "ICMP forgeries, 5000 too-big errors",
        "loss of MSS, bytes",
        0,
        u64::from(before - scene.stats(id).mss),
    );
    assert_eq!(scene.stack.stats().refused(Refusal::IcmpStale), 5000);
}

/// RFC 5927 section 5.2: on an open connection a hard error is treated as soft, even if its number is right.
#[test]
fn unreachable_destinations_do_not_end_an_open_connection() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    scene.write(id, 5_000);
    let kinds = [
        IcmpKind::PortUnreachable,
        IcmpKind::ProtocolUnreachable,
        IcmpKind::NetUnreachable,
        IcmpKind::HostUnreachable,
        IcmpKind::AdminProhibited,
        IcmpKind::SourceQuench,
        IcmpKind::TimeExceeded,
        IcmpKind::ParameterProblem,
    ];
    let before = scene.stats(id).cwnd;
    for n in 0..4_000u32 {
        scene.icmp(kinds[n as usize % kinds.len()], 80, 1, isn + 1 + n);
    }
    let stats = scene.stats(id);
    bounded(
        "4000 ICMP errors that quote a number in flight",
        "connections closed",
        0,
        u64::from(stats.state != State::Established),
    );
    bounded(
        "4000 ICMP errors that quote a number in flight",
        "loss of cwnd, bytes",
        0,
        u64::from(before - stats.cwnd),
    );
}

/// RFC 5927 section 7: an attacker who guesses a number in flight makes segments small, but not tiny.
#[test]
fn a_guessed_too_big_error_leaves_a_minimum_segment_size() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &[2, 4, 5, 180]);
    scene.write(id, 50_000);
    for _ in 0..100 {
        scene.icmp(IcmpKind::PacketTooBig { mtu: 68 }, 80, 1, isn + 1);
    }
    let mss = scene.stats(id).mss;
    bounded(
        "100 too-big errors with an MTU of 68 that quote a number in flight",
        "loss of MSS, bytes",
        1460 - 536,
        u64::from(1460 - mss),
    );
}

/// RFC 9293 section 3.9.2.3: "An incoming SYN with an invalid source address MUST be ignored either by TCP or
/// by the IP layer".
#[test]
fn syns_from_addresses_that_no_host_has_are_ignored() {
    let mut scene = Scene::new(|_, _| {});
    let sources = [[224, 0, 0, 1], [239, 1, 2, 3], [255, 255, 255, 255], [0, 0, 0, 0]];
    for n in 0..1000u16 {
        let from = SocketAddr::new(IpAddr::from(sources[usize::from(n % 4)]), 1 + n);
        scene.arrive(from, Attack { seq: 1, flags: Flags::SYN, options: &MSS_1000, ..Attack::default() });
    }
    // The answer to a SYN from our own address would return to us for ever.
    let ourselves = SocketAddr::new(IpAddr::from(SERVER), 80);
    scene.arrive(ourselves, Attack { seq: 1, flags: Flags::SYN, options: &MSS_1000, ..Attack::default() });
    let what = "1001 SYNs from multicast, broadcast, unspecified and our own addresses";
    bounded(what, "connections kept", 0, scene.stack.connections() as u64);
    bounded(what, "answers", 0, scene.sent.len() as u64);
}

#[test]
fn fragments_are_counted_and_dropped() {
    let mut scene = Scene::new(|_, _| {});
    let syn = Scene::packet(peer(1), &Attack { flags: Flags::SYN, ..Attack::default() });
    let packet = fragment(syn, 0x2000);
    for _ in 0..1000 {
        scene.stack.on_packet(&packet, Rx::default(), scene.now);
        scene.drain();
    }
    bounded("1000 IP fragments", "connections kept", 0, scene.stack.connections() as u64);
    bounded("1000 IP fragments", "answers", 0, scene.sent.len() as u64);
    assert_eq!(scene.stack.stats().refused(Refusal::Fragment), 1000);
}

/// Fragments overlap and never end. Nothing is reassembled, so no memory is held.
#[test]
fn fragments_hold_no_memory() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    let before = scene.stack.memory();
    for n in 0..10_000u32 {
        let mut packet = Scene::packet(peer(1), &Attack { payload: &[7; 64], ..ack(isn + 1) });
        packet[4..6].copy_from_slice(&((n % 100) as u16).to_be_bytes());
        let packet = fragment(packet, 0x2000 | (n % 8000) as u16);
        scene.stack.on_packet(&packet, Rx::default(), scene.now);
        scene.drain();
    }
    bounded(
        "10000 overlapping IP fragments of an open connection",
        "memory of buffers, bytes",
        0,
        (scene.stack.memory() - before) as u64,
    );
    bounded(
        "10000 overlapping IP fragments of an open connection",
        "bytes delivered",
        0,
        scene.stack.readable(id) as u64,
    );
    assert_eq!(scene.stack.stats().refused(Refusal::Fragment), 10_000);
}
