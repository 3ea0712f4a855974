//! Limits: connections, ports, memory; and many connections at once.

use std::time::Duration;

use brisk_tcp::config::{ConnectConfig, ListenConfig, StackConfig};
use brisk_tcp::connection::State;
use brisk_tcp::error::{ConnectError, WriteError};
use brisk_tcp::stack::Refusal;
use brisk_tcp::{ConnId, Event};
use brisk_wire::{Flags, TcpHeader};
use proptest::prelude::*;

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
    pair.forge(B, &TcpHeader { src_port: 9, dst_port: 80, ..syn(7) }, &[]);
    assert_eq!(pair.b.stats().refused(Refusal::TooManyConnections), 1);
}

/// RFC 9293 section 3.10.7.4: a reset ends a connection in SYN-RECEIVED, even while the accept queue is full.
#[test]
fn a_reset_is_heard_while_the_accept_queue_is_full() {
    let mut pair = Pair::new(1);
    pair.listen(B, 80, ListenConfig { backlog: 1, ..ListenConfig::default() });
    pair.tap = Some(Box::new(|_, segment| segment.tcp.dst_port == 9));
    pair.forge(B, &TcpHeader { src_port: 9, dst_port: 80, ..syn(7) }, &[]);
    let answer = pair.last(B).tcp.clone();
    pair.connect(A, 80);
    pair.run_ms(100);
    assert_eq!((pair.b.connections(), pair.b.half_open()), (2, 1), "one waits for accept");
    let (seq, ack) = (answer.ack, answer.seq + 1);
    let numbers = TcpHeader { src_port: 9, dst_port: 80, seq, ack, ..TcpHeader::default() };
    pair.forge(B, &TcpHeader { flags: Flags::ACK, ..numbers.clone() }, &[]);
    assert_eq!(pair.b.half_open(), 1, "it has to wait");
    pair.forge(B, &TcpHeader { flags: Flags::RST | Flags::ACK, ..numbers }, &[]);
    assert_eq!((pair.b.connections(), pair.b.half_open()), (1, 0));
}

#[test]
fn half_open_connections_count_however_they_are_kept() {
    for warm_half_open in [0, 100] {
        let small = StackConfig { max_connections: 3, warm_half_open, ..stack_config(B) };
        let mut pair = Pair::with_configs(1, stack_config(A), small);
        pair.listen(B, 80, ListenConfig::default());
        for port in 1000..1004 {
            pair.forge(B, &TcpHeader { src_port: port, dst_port: 80, ..syn(7) }, &[]);
        }
        assert_eq!(pair.b.half_open(), 3);
        assert_eq!(pair.b.stats().refused(Refusal::TooManyConnections), 1);
    }
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
    pair.run_ms(10);
    assert!(!pair.heard(A, Event::Writable(last)), "there is none yet");
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
fn data_refused_for_lack_of_memory_is_answered_by_an_acknowledgement() {
    let tight = StackConfig { max_buffer_bytes: 16 << 10, ..stack_config(B) };
    let mut pair = Pair::with_configs(1, stack_config(A), tight);
    let (at_a, at_b) = pair.established();
    pair.write(A, at_a, &pattern(100_000)).expect("room");
    pair.run(Duration::from_secs(2));
    let next = pair.next_header(A);
    let (refused, answered) = (pair.b.stats().refused(Refusal::OutOfMemory), pair.count(B, Flags::ACK));
    pair.forge(B, &next, &pattern(1000));
    assert_eq!(pair.b.stats().refused(Refusal::OutOfMemory), refused + 1);
    assert_eq!(pair.count(B, Flags::ACK), answered + 1);
    let before = pair.b.readable(at_b);
    assert!(before > 0 && before < 100_000, "{before}");
}

#[test]
fn two_stacks_full_of_what_they_send_still_receive() {
    let tight = |side| StackConfig { max_buffer_bytes: 1 << 20, ..stack_config(side) };
    let mut pair = Pair::with_configs(1, tight(A), tight(B));
    pair.record = false;
    let listener = pair.listen(B, 80, ListenConfig::default());
    let ids: Vec<_> = (0..20).map(|_| pair.established_at(listener, &ConnectConfig::default())).collect();
    let data = pattern(200_000);
    let (mut sent, mut got) = (vec![[0; 2]; ids.len()], vec![[0; 2]; ids.len()]);
    pair.run_until(Duration::from_secs(60), |pair| {
        // All connections write before any of them reads, so that written data fills the memory.
        for (n, &(at_a, at_b)) in ids.iter().enumerate() {
            for (end, (side, id)) in [(A, at_a), (B, at_b)].into_iter().enumerate() {
                sent[n][end] += pair.write(side, id, &data[sent[n][end]..]).unwrap_or(0);
            }
        }
        for (n, &(at_a, at_b)) in ids.iter().enumerate() {
            for (end, (side, id)) in [(A, at_a), (B, at_b)].into_iter().enumerate() {
                got[n][end] += pair.read(side, id).expect("open").expect("not at its end").len();
            }
        }
        got.iter().flatten().all(|&got| got == data.len())
    });
}

#[test]
fn a_hole_is_filled_although_what_came_after_it_used_up_the_memory() {
    let tight = StackConfig { max_buffer_bytes: 32 << 10, ..stack_config(B) };
    let mut pair = Pair::with_configs(1, stack_config(A), tight);
    let (at_a, at_b) = pair.established();
    let mut data = 0;
    pair.tap = Some(Box::new(move |from, segment| {
        data += u32::from(from == A && !segment.payload.is_empty());
        from == A && data == 1
    }));
    pair.transfer(A, at_a, at_b, &pattern(1 << 20), Duration::from_secs(120));
}

#[test]
fn challenge_acks_are_limited_over_all_connections() {
    let strict = StackConfig { challenge_acks_per_second: 10, ..stack_config(B) };
    let mut pair = Pair::with_configs(1, stack_config(A), strict);
    let listener = pair.listen(B, 80, ListenConfig::default());
    let mut resets = Vec::new();
    for _ in 0..50 {
        pair.established_at(listener, &ConnectConfig::default());
        let next = pair.next_header(A);
        resets.push(TcpHeader { seq: next.seq + 1, flags: Flags::RST, ..next });
    }
    let before = pair.count(B, Flags::ACK);
    for reset in &resets {
        pair.forge(B, reset, &[]);
    }
    let challenges = pair.count(B, Flags::ACK) - before;
    assert!((5..=15).contains(&challenges), "{challenges}: ten, give or take half");
    assert_eq!(pair.b.stats().challenge_acks_suppressed, 50 - challenges as u64);
}

#[test]
fn resets_for_nobody_are_limited() {
    let mut pair = Pair::new(1);
    for port in 1..=3000 {
        pair.forge(B, &TcpHeader { src_port: port, dst_port: 80, ..syn(7) }, &[]);
    }
    let stats = *pair.b.stats();
    assert!((500..1500).contains(&stats.resets_sent), "{}", stats.resets_sent);
    assert_eq!(stats.resets_sent + stats.resets_suppressed, 3000);
}

#[test]
fn a_handle_never_names_a_later_connection() {
    let mut pair = Pair::new(1);
    let first = pair.connect(A, 80);
    pair.abort(A, first);
    pair.release(A, first);
    pair.run_ms(1);
    let second = pair.connect(A, 80);
    assert_ne!(first, second);
    let now = pair.now;
    assert_eq!(pair.a.state(first), None);
    assert_eq!(pair.a.write(first, b"x", now), Err(WriteError::NoConnection));
    pair.abort(A, first);
    assert_eq!(pair.a.state(second), Some(State::SynSent));
}

/// One random call on one of the two stacks.
#[derive(Clone, Copy, Debug)]
enum Act {
    Connect(bool),
    Accept(bool),
    Write(bool, usize, usize),
    Read(bool, usize),
    Shutdown(bool, usize),
    Abort(bool, usize),
    Release(bool, usize),
    Relisten(bool),
    Wait(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => any::<bool>().prop_map(Act::Connect),
        4 => any::<bool>().prop_map(Act::Accept),
        4 => (any::<bool>(), 0..8usize, 1..40_000usize).prop_map(|(at, n, len)| Act::Write(at, n, len)),
        4 => (any::<bool>(), 0..8usize).prop_map(|(at, n)| Act::Read(at, n)),
        2 => (any::<bool>(), 0..8usize).prop_map(|(at, n)| Act::Shutdown(at, n)),
        1 => (any::<bool>(), 0..8usize).prop_map(|(at, n)| Act::Abort(at, n)),
        2 => (any::<bool>(), 0..8usize).prop_map(|(at, n)| Act::Release(at, n)),
        1 => any::<bool>().prop_map(Act::Relisten),
        8 => (0u64..3000).prop_map(Act::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_done_nothing_is_left_behind(
        seed in any::<u64>(),
        loss in 0u32..300,
        acts in prop::collection::vec(act(), 1..80),
    ) {
        let tiny = |side| StackConfig {
            max_connections: 6,
            max_buffer_bytes: 300_000,
            ephemeral_ports: 50_000..=50_004,
            ..stack_config(side)
        };
        let config = ListenConfig { backlog: 2, max_half_open: 2, ..ListenConfig::default() };
        let mut pair = Pair::with_configs(seed, tiny(A), tiny(B));
        pair.record = false;
        pair.channel.loss = loss;
        let mut listeners = [A, B].map(|side| pair.listen(side, 80, config.clone()));
        let mut ids: [Vec<ConnId>; 2] = [Vec::new(), Vec::new()];
        let place = |at: bool| (usize::from(at), if at { B } else { A });
        for act in acts {
            let now = pair.now;
            match act {
                Act::Connect(at) => {
                    let (n, side) = place(at);
                    let remote = side.other().addr(80);
                    ids[n].extend(pair.stack(side).connect(remote, &ConnectConfig::default(), now));
                }
                Act::Accept(at) => {
                    let (n, side) = place(at);
                    ids[n].extend(pair.stack(side).accept(listeners[n]).map(|(id, _)| id));
                }
                Act::Relisten(at) => {
                    let (n, side) = place(at);
                    pair.stack(side).close_listener(listeners[n], now);
                    listeners[n] = pair.listen(side, 80, config.clone());
                }
                Act::Wait(millis) => pair.run_ms(millis),
                Act::Write(at, k, len) => {
                    let (n, side) = place(at);
                    let _ = ids[n].get(k).map(|&id| pair.write(side, id, &pattern(len)));
                }
                Act::Read(at, k) => {
                    let (n, side) = place(at);
                    let _ = ids[n].get(k).map(|&id| pair.read(side, id));
                }
                Act::Shutdown(at, k) => {
                    let (n, side) = place(at);
                    let _ = ids[n].get(k).map(|&id| pair.stack(side).shutdown(id, now));
                }
                Act::Abort(at, k) => {
                    let (n, side) = place(at);
                    let _ = ids[n].get(k).map(|&id| pair.abort(side, id));
                }
                Act::Release(at, k) => {
                    let (n, side) = place(at);
                    if k < ids[n].len() {
                        let id = ids[n].swap_remove(k);
                        pair.release(side, id);
                    }
                }
            }
            prop_assert!(pair.a.connections() <= 6 && pair.b.connections() <= 6);
        }
        for (n, side) in [A, B].into_iter().enumerate() {
            let now = pair.now;
            pair.stack(side).close_listener(listeners[n], now);
            for id in core::mem::take(&mut ids[n]) {
                pair.release(side, id);
            }
        }
        pair.run(Duration::from_secs(3600));
        for side in [A, B] {
            let stack = pair.stack(side);
            prop_assert_eq!((stack.connections(), stack.memory(), stack.next_timeout()), (0, 0, None));
            // All entries are free again.
            for port in 1..=6 {
                pair.connect(side, port);
            }
        }
    }
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

#[test]
fn connection_to_its_own_end_is_refused_at_once() {
    let mut pair = Pair::new(1);
    let (end, now) = (A.addr(50_000), pair.now);
    let itself = ConnectConfig { local: Some(end), ..ConnectConfig::default() };
    assert_eq!(pair.a.connect(end, &itself, now), Err(ConnectError::InUse { local: end, remote: end }));
}
