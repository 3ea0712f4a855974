//! The cases.

use std::hint::black_box;

use brisk_link::LinkSpec;
use brisk_sim::TransactionSpec;
use brisk_sim::transaction::transaction_in;
use brisk_sim::world::Arena;
use brisk_tcp::TcpConfig;
use brisk_tcp::config::{CorrectiveConfig, KeepaliveConfig, ProactiveConfig};
use brisk_tcp::internals::plan::{Flight, Losses, Means, Parity, plan};
use brisk_tcp::time::Duration;

use crate::one_side;
use crate::pair::Pair;

pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Number of runs in the first count. The second count has twice as many.
    pub(crate) times: u64,
    /// Units in one run; the cost is reported per unit.
    pub(crate) of: u64,
    pub(crate) run: fn(u64),
}

pub(crate) const SEGMENT: usize = 1448;

/// Number of open connections, and of connections with timers.
const MANY: u64 = 20_000;
const WITH_TIMERS: u64 = 1_000;

pub(crate) fn all() -> impl Iterator<Item = &'static Case> {
    CASES.iter().chain(&one_side::CASES)
}

/// Maximum cost of a case relative to another case.
pub(crate) struct Limit {
    pub(crate) name: &'static str,
    pub(crate) of: &'static str,
    pub(crate) max: f64,
}

/// Limits for connections that do not use a mechanism: it must cost them nothing.
pub(crate) const LIMITS: [Limit; 2] = [
    Limit { name: "segment in bulk, nothing offered", of: PLAIN_BULK, max: 1.01 },
    Limit { name: "segment in bulk, offer declined", of: PLAIN_BULK, max: 1.01 },
];

const PLAIN_BULK: &str = "segment in bulk, both ends";

const CASES: [Case; 15] = [
    Case { name: "stack", times: 200, of: 1, run: |times| (0..times).for_each(|_| drop(plain())) },
    Case { name: "connection of 64 bytes", times: 500, of: 1, run: |times| transactions(plain(), 64, times) },
    Case { name: "connection of 5 kB", times: 500, of: 1, run: |times| transactions(plain(), 5_000, times) },
    Case {
        name: "connection of 5 kB, Fast Open",
        times: 500,
        of: 1,
        run: |times| transactions(Pair::new(&TcpConfig::default(), true), 5_000, times),
    },
    Case { name: PLAIN_BULK, times: 3_000, of: 1, run: |times| bulk(plain(), times) },
    Case {
        name: "segment in bulk, nothing offered",
        times: 3_000,
        of: 1,
        run: |times| bulk(Pair::of(&TcpConfig::default(), &with_both(), false), times),
    },
    Case {
        name: "segment in bulk, offer declined",
        times: 3_000,
        of: 1,
        run: |times| bulk(Pair::of(&with_both(), &TcpConfig::default(), false), times),
    },
    Case {
        name: "segment in bulk, planner alone",
        times: 3_000,
        of: 1,
        run: |times| bulk(Pair::of(&TcpConfig::default(), &TcpConfig::planned(20), false), times),
    },
    Case {
        name: "segment in bulk, one in 50 lost",
        times: 3_000,
        of: 1,
        run: |times| bulk(plain().losing_each(50), times),
    },
    Case {
        name: "segment in bulk, Corrective",
        times: 3_000,
        of: 1,
        run: |times| bulk(with(|tcp| tcp.mechanisms.corrective = Some(CorrectiveConfig::default())), times),
    },
    Case {
        name: "segment in bulk, Proactive",
        times: 3_000,
        of: 1,
        run: |times| bulk(with(|tcp| tcp.mechanisms.proactive = Some(ProactiveConfig::default())), times),
    },
    Case { name: "round trip among 20,000 connections", times: MANY / 2, of: 1, run: among_many },
    Case { name: "keepalive among 1,000", times: 10, of: WITH_TIMERS, run: keepalives },
    Case { name: "simulated 5 kB at 2 % loss", times: 300, of: 1, run: simulated },
    Case { name: "plan for a flight of 5 kB", times: 1_000, of: 1, run: plans },
];

fn plain() -> Pair {
    Pair::new(&TcpConfig::default(), false)
}

fn with(set: fn(&mut TcpConfig)) -> Pair {
    let mut tcp = TcpConfig::default();
    set(&mut tcp);
    Pair::new(&tcp, false)
}

/// Returns TCP with Corrective and Proactive. A connection uses them only if both ends have them.
fn with_both() -> TcpConfig {
    let mut tcp = TcpConfig::default();
    tcp.mechanisms.corrective = Some(CorrectiveConfig::default());
    tcp.mechanisms.proactive = Some(ProactiveConfig::default());
    tcp
}

fn transactions(mut pair: Pair, response: usize, times: u64) {
    let response = vec![2; response];
    // The first transaction requests the cookie.
    for _ in 0..times + 1 {
        pair.transaction(&response);
        pair.pass(Duration::from_millis(1));
    }
}

fn bulk(mut pair: Pair, segments: u64) {
    let (client, server) = pair.open(&[]);
    pair.carry(client, server, segments as usize * SEGMENT);
}

/// Makes transactions of 64 bytes each way over one connection after another.
fn among_many(times: u64) {
    let mut pair = plain();
    let open: Vec<_> = (0..MANY).map(|_| pair.open(&[])).collect();
    // Consecutive transactions use distant connections, so that they do not profit from cached memory.
    let order = (0..times).map(|at| (at * 7_919 % MANY) as usize);
    for (client, server) in order.map(|at| open[at]) {
        pair.client.write(client, &[1; 64], pair.now).expect("the buffer is empty");
        pair.exchange();
        pair.drain_server(server);
        pair.server.write(server, &[2; 64], pair.now).expect("the buffer is empty");
        pair.exchange();
        pair.drain_client(client);
        pair.pass(Duration::from_micros(10));
    }
}

/// Sends `times` keepalive probes on every connection.
fn keepalives(times: u64) {
    let second = Duration::from_secs(1);
    let keepalive = KeepaliveConfig { idle: second, interval: second, ..KeepaliveConfig::default() };
    let tcp = TcpConfig { keepalive: Some(keepalive), ..TcpConfig::default() };
    let mut pair = Pair::new(&tcp, false);
    for _ in 0..WITH_TIMERS {
        pair.open(&[]);
        pair.pass(Duration::from_micros(100));
    }
    pair.pass(second * times as u32);
}

fn simulated(times: u64) {
    let link = LinkSpec::parse("--rtt 200ms --loss 2%").expect("a link");
    let spec = TransactionSpec::new(&link, 5_000);
    let mut arena = Arena::default();
    for seed in 0..times {
        let result = transaction_in(&spec, seed, &mut arena).expect("a valid setting");
        assert!(result.completion.is_some(), "it completes");
    }
}

/// Plans a response of 5 kB on a path that loses one packet in ten, in pairs, with every mechanism
/// negotiated.
fn plans(times: u64) {
    let flight =
        Flight { bytes: 5_000, mss: 1_432, headers: 52, followed: 0, delays_others: 0, at_once: true };
    let losses = Losses { per_million: 100_000, burst_milli: 2_000, queue: false };
    let means = Means { parity: Some(Parity::ReedSolomon), copies: true };
    for _ in 0..times {
        black_box(plan(black_box(&flight), &losses, &means, 5_000));
    }
}
