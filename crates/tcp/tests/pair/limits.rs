//! Limits: connections, ports, memory; and many connections at once.

use std::time::Duration;

use brisk_tcp::config::{ConnectConfig, ListenConfig, StackConfig};
use brisk_tcp::error::{ConnectError, WriteError};
use brisk_tcp::stack::Refusal;
use brisk_tcp::{ConnId, Event};

use crate::harness::{A, B, Pair, pattern, stack_config, syn};

#[test]
fn a_full_stack_refuses_both_kinds_of_open() {
    let small = |side| StackConfig { max_connections: 3, ..stack_config(side) };
    let mut pair = Pair::with_configs(1, small(A), small(B));
    pair.listen(B, 80, ListenConfig::default());
    let now = pair.now;
    for _ in 0..3 {
        pair.connect(A, 80);
    }
    let error = pair.a.connect(B.addr(80), &ConnectConfig::default(), now);
    assert_eq!(error, Err(ConnectError::TooMany(3)));
    pair.run_ms(100);
    pair.forge(B, &brisk_wire::TcpHeader { src_port: 9, dst_port: 80, ..syn(7) }, &[]);
    assert_eq!(pair.b.stats().refused(Refusal::TooManyConnections), 1);
}

#[test]
fn time_waits_make_way_for_new_connections() {
    let small = StackConfig { max_connections: 4, ..stack_config(A) };
    let mut pair = Pair::with_configs(1, small, stack_config(B));
    let listener = pair.listen(B, 80, ListenConfig::default());
    for _ in 0..10 {
        let (at_a, at_b) = pair.established_at(listener, &ConnectConfig::default());
        pair.release(A, at_a);
        pair.run_ms(100);
        pair.release(B, at_b);
        pair.run_ms(100);
        assert!(pair.a.connections() <= 4);
    }
    assert_eq!((pair.a.stats().time_waits, pair.a.stats().time_waits_evicted), (10, 6));
}

#[test]
fn ports_run_out_towards_one_destination_and_not_another() {
    let few = StackConfig { ephemeral_ports: 50_000..=50_009, ..stack_config(A) };
    let mut pair = Pair::with_configs(1, few, stack_config(B));
    let now = pair.now;
    let ids: Vec<ConnId> = (0..10).map(|_| pair.connect(A, 80)).collect();
    let ports: std::collections::BTreeSet<u16> =
        ids.iter().map(|&id| pair.a.local_addr(id).expect("open").port()).collect();
    assert_eq!(ports.len(), 10);
    let refused = pair.a.connect(B.addr(80), &ConnectConfig::default(), now);
    assert_eq!(refused, Err(ConnectError::NoPort(B.addr(80))));
    pair.connect(A, 81);
    pair.abort(A, ids[3]);
    pair.release(A, ids[3]);
    pair.run_ms(1);
    pair.connect(A, 80);
}

#[test]
fn ports_in_time_wait_are_used_again_when_no_other_is_left() {
    let few = StackConfig { ephemeral_ports: 50_000..=50_002, ..stack_config(A) };
    let mut pair = Pair::with_configs(1, few, stack_config(B));
    let listener = pair.listen(B, 80, ListenConfig::default());
    for _ in 0..12 {
        let (at_a, at_b) = pair.established_at(listener, &ConnectConfig::default());
        pair.transfer(A, at_a, at_b, b"hello", Duration::from_secs(1));
        pair.release(A, at_a);
        pair.run_ms(100);
        pair.release(B, at_b);
        pair.run_ms(1000);
    }
    assert_eq!(pair.a.stats().time_waits_reused, 9);
}

#[test]
fn buffers_together_stay_within_the_memory_of_the_stack() {
    let limit = 1 << 20;
    let tight = StackConfig { max_buffer_bytes: limit, ..stack_config(A) };
    let mut pair = Pair::with_configs(1, tight, stack_config(B));
    let listener = pair.listen(B, 80, ListenConfig::default());
    let pairs: Vec<_> = (0..20).map(|_| pair.established_at(listener, &ConnectConfig::default())).collect();
    pair.tap = Some(Box::new(|_, _| true));
    let data = pattern(100_000);
    let mut refused = 0;
    for &(at_a, _) in &pairs {
        refused += usize::from(pair.write(A, at_a, &data) == Err(WriteError::WouldBlock));
    }
    assert!(refused > 5, "{refused}");
    assert!(pair.a.memory() <= limit + 256 * 1024, "{} bytes", pair.a.memory());
    let last = pairs[19].0;
    pair.events.clear();
    for &(at_a, _) in &pairs[..19] {
        pair.abort(A, at_a);
        pair.release(A, at_a);
    }
    pair.run_ms(10);
    assert!(pair.heard(A, Event::Writable(last)), "who waited for memory hears that there is some");
    assert_eq!(pair.write(A, last, &data), Ok(data.len()));
}

#[test]
fn data_beyond_the_memory_of_the_stack_is_sent_again_later() {
    let tight = StackConfig { max_buffer_bytes: 256 << 10, ..stack_config(B) };
    let mut pair = Pair::with_configs(1, stack_config(A), tight);
    let listener = pair.listen(B, 80, ListenConfig::default());
    let pairs: Vec<_> = (0..5).map(|_| pair.established_at(listener, &ConnectConfig::default())).collect();
    let data = pattern(100_000);
    for &(at_a, _) in &pairs {
        pair.write(A, at_a, &data).expect("room");
    }
    pair.run(Duration::from_secs(2));
    assert!(pair.b.stats().refused(Refusal::OutOfMemory) > 0);
    assert!(pair.b.memory() < 512 << 10, "{} bytes", pair.b.memory());
    let mut got = vec![0; pairs.len()];
    pair.run_until(Duration::from_secs(60), |pair| {
        for (n, &(_, at_b)) in pairs.iter().enumerate() {
            got[n] += pair.read(B, at_b).expect("open").expect("not at its end").len();
        }
        got.iter().all(|&got| got == data.len())
    });
}

#[test]
fn ten_thousand_connections_live_and_die() {
    const COUNT: usize = 10_000;
    let mut pair = Pair::new(1);
    pair.record = false;
    let config = ListenConfig { backlog: COUNT, max_half_open: COUNT, ..ListenConfig::default() };
    let listener = pair.listen(B, 80, config);
    let at_a: Vec<ConnId> = (0..COUNT).map(|_| pair.connect(A, 80)).collect();
    pair.run_ms(100);
    assert_eq!(pair.b.stats().handshakes_completed, COUNT as u64);
    assert_eq!((pair.a.memory(), pair.b.memory()), (0, 0), "idle connections hold no buffers");
    for &id in &at_a {
        pair.write(A, id, &id.to_string().into_bytes()).expect("open");
    }
    pair.run_ms(500);
    let mut served = 0;
    while let Some((at_b, _)) = pair.b.accept(listener) {
        let request = pair.read(B, at_b).expect("open").expect("data");
        assert!(request.starts_with(b"c"));
        pair.write(B, at_b, &request).expect("open");
        pair.release(B, at_b);
        served += 1;
    }
    assert_eq!(served, COUNT);
    pair.run_ms(500);
    for &id in &at_a {
        assert_eq!(pair.read(A, id), Ok(Some(id.to_string().into_bytes())));
        pair.release(A, id);
    }
    pair.run_ms(500);
    assert_eq!((pair.a.connections(), pair.b.connections()), (0, COUNT), "all in TIME-WAIT at B");
    assert_eq!((pair.a.memory(), pair.b.memory()), (0, 0));
    pair.run(Duration::from_secs(61));
    assert_eq!(pair.b.connections(), 0);
    assert_eq!((pair.a.next_timeout(), pair.b.next_timeout()), (None, None));
}
