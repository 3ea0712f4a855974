//! Parking is not seen: whenever connections are parked, the packets are the same.

use std::time::Duration;

use brisk_tcp::ConnId;
use brisk_tcp::config::{
    BufferConfig, CongestionAlgorithm, ConnectConfig, KeepaliveConfig, ListenConfig, Reactive, TcpConfig,
};
use brisk_tcp::connection::ConnStats;
use brisk_tcp::fast_open::{FastOpenConnect, FastOpenListen};

use crate::harness::{A, B, Channel, Pair, Seen, Side, pattern, stack_config};

/// What a run leaves behind.
#[derive(PartialEq, Debug)]
struct Trace {
    packets: Vec<String>,
    stats: Vec<Option<ConnStats>>,
}

fn line(seen: &Seen) -> String {
    format!("{:?} {:?} {:?} {}", seen.at, seen.from, seen.tcp, seen.len)
}

fn tcp(seed: u64) -> TcpConfig {
    let second = Duration::from_secs(1);
    TcpConfig {
        keepalive: seed.is_multiple_of(2).then(|| KeepaliveConfig {
            idle: second,
            interval: second,
            ..KeepaliveConfig::default()
        }),
        user_timeout: seed.is_multiple_of(3).then_some(second * 5),
        congestion: if seed.is_multiple_of(5) {
            CongestionAlgorithm::Reno
        } else {
            CongestionAlgorithm::Cubic
        },
        mechanisms: match seed % 7 {
            0 => TcpConfig::of_2012_with_reactive().mechanisms,
            1 => brisk_tcp::config::MechanismConfig {
                reactive: Reactive::Off,
                ..TcpConfig::default().mechanisms
            },
            _ => TcpConfig::default().mechanisms,
        },
        ..TcpConfig::default()
    }
}

/// Requests and responses with pauses between them, half-closes and the end, over a path of `seed`.
fn conversation(seed: u64, park_after: Option<Duration>, warm_idle: usize) -> Trace {
    let config = |side| brisk_tcp::StackConfig { park_after, warm_idle, ..stack_config(side) };
    let mut pair = Pair::with_configs(seed, config(A), config(B));
    pair.channel =
        Channel { loss: 60, duplicate: 30, jitter: Duration::from_millis(seed % 8), ..Channel::default() };
    let fast_open = seed % 4 == 1;
    let listen = ListenConfig {
        tcp: tcp(seed / 2),
        fast_open: fast_open.then(FastOpenListen::default),
        ..ListenConfig::default()
    };
    let connect = ConnectConfig {
        tcp: tcp(seed),
        fast_open: fast_open.then(FastOpenConnect::default),
        ..ConnectConfig::default()
    };
    let listener = pair.listen(B, 80, listen);
    let client = pair.connect_with(A, 80, &connect);
    let mut server = None;
    pair.run_until(Duration::from_secs(60), |pair| {
        server = server.or_else(|| pair.b.accept(listener).map(|(id, _)| id));
        server.is_some()
    });
    let Some(server) = server else { return trace(&pair, &[(A, client)]) };
    for turn in 0..5_usize {
        let (from, to) = if turn % 2 == 0 { ((A, client), (B, server)) } else { ((B, server), (A, client)) };
        speak(&mut pair, from, to, 10 + 3_000 * turn);
        pair.run(Duration::from_millis(7 + 900 * (turn as u64 % 3)));
    }
    // A user timeout may have ended it before.
    let _ = pair.a.shutdown(client, pair.now);
    pair.run(Duration::from_secs(3));
    let _ = pair.b.shutdown(server, pair.now);
    pair.run(Duration::from_secs(10));
    trace(&pair, &[(A, client), (B, server)])
}

/// One end writes, the other reads what comes, until all is there or the time is up.
fn speak(pair: &mut Pair, (from, writer): (Side, ConnId), (to, reader): (Side, ConnId), len: usize) {
    let data = pattern(len);
    let _ = pair.write(from, writer, &data);
    let (mut got, end) = (Vec::new(), pair.now + Duration::from_secs(30));
    while got.len() < len && pair.step(end) {
        // At the end of the stream nothing is read for ever.
        while let Ok(Some(read)) = pair.read(to, reader)
            && !read.is_empty()
        {
            got.extend(read);
        }
    }
    assert!(data.starts_with(&got), "what arrives is what was written");
}

fn trace(pair: &Pair, ends: &[(Side, ConnId)]) -> Trace {
    let stats = |&(side, id)| match side {
        A => pair.a.conn_stats(id),
        B => pair.b.conn_stats(id),
    };
    Trace { packets: pair.seen.iter().map(line).collect(), stats: ends.iter().map(stats).collect() }
}

#[test]
fn whenever_connections_are_parked_the_packets_are_the_same() {
    compare(0..60);
}

#[test]
#[ignore = "a thousand conversations take minutes: run it by hand, in release"]
fn whenever_many_connections_are_parked_the_packets_are_the_same() {
    compare(0..1_000);
}

fn compare(seeds: core::ops::Range<u64>) {
    for seed in seeds {
        let never = conversation(seed, None, usize::MAX);
        assert!(never.packets.len() > 4, "seed {seed}");
        let second = Duration::from_secs(1);
        let settings = [(Duration::ZERO, 9), (Duration::from_millis(15), 9), (second, 9), (second, 0)];
        for (after, warm_idle) in settings {
            let parked = conversation(seed, Some(after), warm_idle);
            for (parked, never) in parked.packets.iter().zip(&never.packets) {
                assert_eq!(parked, never, "seed {seed}, parked after {after:?}, {warm_idle} kept");
            }
            assert_eq!(parked, never, "seed {seed}, parked after {after:?}, {warm_idle} kept");
        }
    }
}

#[test]
fn an_idle_connection_is_parked_and_wakes() {
    let mut pair = Pair::new(3);
    let (client, server) = pair.established();
    assert_eq!(pair.a.parked(), 0);
    pair.run(Duration::from_secs(3));
    assert_eq!((pair.a.parked(), pair.b.parked()), (1, 1));
    assert_eq!(pair.a.remote_addr(client), Some(B.addr(80)), "it can be asked");
    assert_eq!(pair.a.parked(), 1, "a question does not wake it");
    pair.write(A, client, b"hello").expect("there is room");
    assert_eq!(pair.a.parked(), 0);
    pair.run(Duration::from_millis(100));
    assert_eq!(pair.read(B, server), Ok(Some(b"hello".to_vec())));
    pair.run(Duration::from_secs(3));
    assert_eq!((pair.a.parked(), pair.b.parked()), (1, 1));
    assert_eq!(pair.a.memory() + pair.b.memory(), 0, "a parked connection holds no buffers");
}

#[test]
fn a_connection_that_waits_for_a_window_is_not_parked() {
    let mut pair = Pair::new(5);
    let receive_buffer = BufferConfig { initial: 4096, max: 4096 };
    let narrow =
        ListenConfig { tcp: TcpConfig { receive_buffer, ..TcpConfig::default() }, ..ListenConfig::default() };
    let listener = pair.listen(B, 80, narrow);
    let (client, server) = pair.established_at(listener, &ConnectConfig::default());
    pair.write(A, client, &pattern(10_000)).expect("there is room");
    pair.run(Duration::from_secs(3));
    let unsent = pair.a.conn_info(client).expect("held").unsent;
    assert!(unsent > 5000, "{unsent}");
    assert_eq!(pair.a.parked(), 0, "there is something to send");
    let first = pair.read(B, server).expect("open").expect("not at its end").len();
    pair.run(Duration::from_secs(10));
    let next = pair.read(B, server).expect("open").expect("not at its end").len();
    assert!(first + next > 5000, "{first} and {next}");
}

#[test]
fn a_connection_with_something_to_read_or_in_flight_is_not_parked() {
    let mut pair = Pair::new(4);
    let (client, _) = pair.established();
    pair.write(A, client, b"hello").expect("there is room");
    pair.run(Duration::from_secs(3));
    assert_eq!(pair.b.parked(), 0, "there is something to read");
    pair.tap = Some(Box::new(|_, _| true));
    pair.write(A, client, b"lost").expect("there is room");
    pair.run(Duration::from_secs(3));
    assert_eq!(pair.a.parked(), 0, "there is something in flight");
}

#[test]
fn beyond_so_many_the_oldest_are_parked_earlier_unless_they_are_in_use() {
    let few = |side| brisk_tcp::StackConfig { warm_idle: 2, ..stack_config(side) };
    let mut pair = Pair::with_configs(5, few(A), few(B));
    pair.channel.delay = Duration::from_millis(1);
    let listener = pair.listen(B, 80, ListenConfig::default());
    let open = |pair: &mut Pair| pair.established_at(listener, &ConnectConfig::default());
    let (busy, at_b) = open(&mut pair);
    let idle: Vec<_> = (0..2).map(|_| open(&mut pair)).collect();
    pair.run_ms(50);
    open(&mut pair);
    assert_eq!((pair.a.parked(), pair.b.parked()), (0, 0), "none of them has been idle for 100 ms");
    pair.run_ms(150);
    pair.write(A, busy, b"hello").expect("there is room");
    pair.run_ms(30);
    assert_eq!(pair.read(B, at_b), Ok(Some(b"hello".to_vec())));
    open(&mut pair);
    pair.run_ms(30);
    open(&mut pair);
    assert_eq!((pair.a.parked(), pair.b.parked()), (3, 3), "of six two are new and one has been in use");
    pair.write(A, idle[0].0, b"again").expect("there is room");
    pair.run_ms(30);
    assert_eq!(pair.read(B, idle[0].1), Ok(Some(b"again".to_vec())));
}
