//! Attempts to fill tables, ports and memory.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use brisk_tcp::connection::State;
use brisk_tcp::time::Duration;
use brisk_wire::Flags;

use crate::bounded;
use crate::scene::*;

#[test]
fn a_flood_of_half_open_connections() {
    let mut scene = Scene::new(|_, _| {});
    for count in 0..50_000u32 {
        let from = SocketAddr::new(IpAddr::from(0xc633_0000u32.wrapping_add(count).to_be_bytes()), 5000);
        scene.arrive(from, Attack { seq: count, flags: Flags::SYN, options: &MSS_1000, ..Attack::default() });
    }
    bounded("half-open flood, 50000 SYNs", "connections kept", 4096, scene.stack.connections() as u64);
    let (id, _) = scene.open(peer(9), &MSS_1000);
    assert_eq!(scene.stack.state(id), Some(State::Established), "who completes the handshake gets in");
}

#[test]
fn time_waits_are_replaced_by_new_connections() {
    let mut scene = Scene::new(|config, _| config.max_connections = 500);
    for port in 1..=2000u16 {
        let (id, isn) = scene.open(peer(port), &MSS_1000);
        let _ = scene.stack.shutdown(id, scene.now);
        scene.drain();
        scene.arrive(peer(port), Attack { flags: Flags::FIN | Flags::ACK, ..ack(isn + 2) });
        scene.stack.release(id, scene.now);
        scene.drain();
    }
    bounded(
        "TIME-WAIT exhaustion, 2000 connections closed",
        "connections kept",
        500,
        scene.stack.connections() as u64,
    );
}

/// RFC 1337: neither resets nor old segments end TIME-WAIT. It answers no more often than necessary.
#[test]
fn time_wait_is_not_assassinated() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    let _ = scene.stack.shutdown(id, scene.now);
    scene.drain();
    scene.arrive(peer(1), Attack { flags: Flags::FIN | Flags::ACK, ..ack(isn + 2) });
    scene.stack.release(id, scene.now);
    scene.drain();
    assert_eq!(scene.stack.time_waits(), 1);
    scene.sent.clear();
    for n in 0..10_000u32 {
        let flags =
            [Flags::RST, Flags::ACK, Flags::FIN | Flags::ACK, Flags::SYN | Flags::ACK][n as usize % 4];
        let seq = if n % 8 == 0 { ISN + 2 } else { ISN.wrapping_sub(n * 1000) };
        scene.arrive(peer(1), Attack { seq, flags, payload: b"old", ..ack(isn + 2) });
    }
    bounded(
        "TIME-WAIT assassination, 10000 segments at one instant",
        "entries lost",
        0,
        1 - scene.stack.time_waits() as u64,
    );
    bounded("TIME-WAIT assassination, 10000 segments at one instant", "answers", 1, scene.sent.len() as u64);
}

#[test]
fn a_range_of_ports_that_is_used_up_is_an_error_and_not_a_loop() {
    let mut scene = Scene::new(|config, _| config.ephemeral_ports = 40_000..=40_099);
    let mut used = BTreeSet::new();
    let mut refused = 0;
    for _ in 0..200 {
        match scene.stack.connect(peer(443), &Default::default(), scene.now) {
            Ok(id) => {
                used.insert(scene.stack.local_addr(id));
            }
            Err(_) => refused += 1,
        }
    }
    bounded("port exhaustion, 200 opens of 100 ports", "connections", 100, used.len() as u64);
    assert_eq!((used.len(), refused), (100, 100));
}

/// Connections that this side has closed keep their ports for a while. The range is small on purpose.
#[test]
fn ports_that_all_wait_are_an_error_and_come_back() {
    let mut scene = Scene::new(|config, _| config.ephemeral_ports = 40_000..=40_019);
    let mut opened = 0u64;
    for _ in 0..40 {
        let Ok(id) = scene.stack.connect(peer(443), &Default::default(), scene.now) else { break };
        scene.drain();
        let (local, iss) = (scene.stack.local_addr(id).unwrap(), scene.sent.last().unwrap().0.seq.0);
        let syn_ack = Attack { seq: ISN, flags: Flags::SYN | Flags::ACK, ..ack(iss + 1) };
        scene.answer(local, syn_ack);
        let _ = scene.stack.shutdown(id, scene.now);
        scene.drain();
        scene.answer(local, Attack { flags: Flags::FIN | Flags::ACK, ..ack(iss + 2) });
        scene.stack.release(id, scene.now);
        scene.drain();
        opened += 1;
    }
    bounded("port exhaustion by TIME-WAIT, 40 opens of 20 ports", "connections", 20, opened);
    assert_eq!((opened, scene.stack.time_waits()), (20, 20));
    scene.pass(Duration::from_secs(61));
    bounded(
        "port exhaustion by TIME-WAIT, two maximum lifetimes later",
        "ports still taken",
        0,
        scene.stack.time_waits() as u64,
    );
    assert!(scene.stack.connect(peer(443), &Default::default(), scene.now).is_ok());
}

#[test]
fn syns_crossing_each_other_do_not_multiply() {
    let mut scene = Scene::new(|_, _| {});
    let id = scene.stack.connect(peer(443), &Default::default(), scene.now).unwrap();
    scene.drain();
    let local = scene.stack.local_addr(id).unwrap();
    for count in 0..1000 {
        let syn = Attack { seq: ISN + count, flags: Flags::SYN, window: Some(1000), ..Attack::default() };
        scene.answer(local, syn);
    }
    bounded("simultaneous open storm, 1000 SYNs", "segments sent", 24, scene.sent.len() as u64);
    bounded("simultaneous open storm", "connections", 1, scene.stack.connections() as u64);
}

/// Hundreds of opens, each crossed by SYNs with changing sequence numbers.
#[test]
fn simultaneous_opens_cause_bounded_traffic() {
    let mut scene = Scene::new(|_, _| {});
    let ids: Vec<_> =
        (0..300).map(|_| scene.stack.connect(peer(443), &Default::default(), scene.now).unwrap()).collect();
    scene.drain();
    for round in 0..20u32 {
        for id in &ids {
            let Some(local) = scene.stack.local_addr(*id) else { continue };
            let syn =
                Attack { seq: ISN + round % 3, flags: Flags::SYN, window: Some(1000), ..Attack::default() };
            scene.answer(local, syn);
        }
        scene.now += Duration::from_millis(10);
    }
    bounded(
        "300 simultaneous opens, 6000 SYNs in 200 ms",
        "connections",
        300,
        scene.stack.connections() as u64,
    );
    bounded("300 simultaneous opens, 6000 SYNs in 200 ms", "segments sent", 6_300, scene.sent.len() as u64);
    scene.pass(Duration::from_secs(300));
    let half_open =
        ids.iter().filter(|id| scene.stack.state(**id).is_some_and(|state| state != State::Closed)).count();
    bounded("300 simultaneous opens, five minutes later", "connections half open", 0, half_open as u64);
}

/// Peers that fill the buffers of all connections, in order and with gaps, while no application reads.
#[test]
fn memory_stays_at_its_bound() {
    const BOUND: usize = 1 << 20;
    let mut scene = Scene::new(|config, listen| {
        config.max_buffer_bytes = BOUND;
        listen.backlog = 200;
    });
    let mut most = 0;
    let peers: Vec<_> = (1..=100u16).map(|port| (port, scene.open(peer(port), &WITH_SACK).1)).collect();
    let payload = [9u8; 1000];
    for step in 0..120u32 {
        for (port, isn) in &peers {
            // Every second peer leaves out every third segment.
            if port % 2 == 0 && step % 3 == 1 {
                continue;
            }
            let segment = Attack { seq: ISN + 1 + step * 1000, payload: &payload, ..ack(isn + 1) };
            scene.arrive(peer(*port), segment);
            most = most.max(scene.stack.memory());
        }
    }
    bounded(
        "100 peers fill every buffer, 1 MiB allowed",
        "memory of buffers, bytes",
        BOUND as u64,
        most as u64,
    );
    // Reading frees memory. The peers then send again from the beginning, and their streams continue.
    let refused = scene.stack.stats().refused(brisk_tcp::stack::Refusal::OutOfMemory);
    assert!(refused > 0, "the bound was reached");
}
