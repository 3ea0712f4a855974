//! Parts of the stack by themselves: the table of a million connections, ten thousand timers, the planner.

use std::hint::black_box;
use std::net::SocketAddr;

use brisk_tcp::mechanism::plan::{Flight, Losses, Means, Parity, plan};
use brisk_tcp::stack::FourTuple;
use brisk_tcp::stack::counted::{Table, Timers};
use brisk_tcp::time::{Duration, Instant};

use crate::cases::Case;

const CONNECTIONS: u32 = 1_000_000;
/// Timers that run, and those that are armed, moved, cancelled or expire.
const TIMERS: u32 = 10_000;
const TOUCHED: u64 = 1_000;

pub(crate) const CASES: [Case; 7] = [
    Case { name: "demux, one of 1,000,000", times: 10_000, of: 1, run: |times| look_ups(0, times) },
    Case {
        name: "demux, none of 1,000,000",
        times: 10_000,
        of: 1,
        run: |times| look_ups(CONNECTIONS, times),
    },
    Case { name: "timer armed beside 10,000", times: TOUCHED, of: 1, run: arm },
    Case { name: "timer of 10,000 moved", times: TOUCHED, of: 1, run: move_on },
    Case { name: "timer of 10,000 cancelled", times: TOUCHED, of: 1, run: cancel },
    Case { name: "timer of 10,000 expired", times: TOUCHED, of: 1, run: expire },
    Case { name: "plan for a flight of 5 kB", times: 1_000, of: 1, run: plans },
];

/// What a response of 5 kB gets on a path that loses one packet in ten, two in a row, with everything agreed on.
fn plans(times: u64) {
    let flight = Flight { bytes: 5_000, mss: 1_432, headers: 52, last: true, at_once: true };
    let losses = Losses { per_million: 100_000, burst_milli: 2_000, queue: false };
    let means = Means { parity: Some(Parity::ReedSolomon), copies: true };
    for _ in 0..times {
        black_box(plan(black_box(&flight), &losses, &means, 5_000));
    }
}

/// Of addresses and ports that differ everywhere.
fn tuple(number: u32) -> FourTuple {
    let local = SocketAddr::from(([10, 0, 0, 1], 80));
    let [_, high, middle, low] = (number / 50_000 + 1).to_be_bytes();
    FourTuple::new(local, SocketAddr::from(([10, high + 1, middle, low], 10_000 + (number % 50_000) as u16)))
}

/// Number `at` of a walk through `count` that neither order nor neighbourhood helps.
fn far_apart(at: u64, count: u32) -> u32 {
    (at * 7_919 % u64::from(count)) as u32
}

/// Four-tuples from number `first` on are looked up; connections are those below [`CONNECTIONS`].
fn look_ups(first: u32, times: u64) {
    let table = Table::of((0..CONNECTIONS).map(tuple));
    for at in 0..times {
        let number = far_apart(at, CONNECTIONS);
        let expected = (first == 0).then_some(number);
        assert_eq!(black_box(&table).find(&tuple(first + number)), expected);
    }
}

/// When a timer expires that runs for a time of its own, as those of connections do.
fn due(connection: u32) -> Instant {
    Instant::ZERO + Duration::from_micros(200_000 + u64::from(far_apart(connection.into(), TIMERS)) * 50)
}

fn armed() -> Timers {
    let mut timers = Timers::default();
    (0..TIMERS).for_each(|connection| timers.set(connection, Some(due(connection))));
    timers
}

fn arm(times: u64) {
    let mut timers = armed();
    for connection in (TIMERS..).take(times as usize) {
        timers.set(connection, Some(due(connection)));
    }
}

/// As an acknowledgement moves the retransmission timer: by what has passed since the last.
fn move_on(times: u64) {
    let mut timers = armed();
    for connection in (0..times).map(|at| far_apart(at, TIMERS)) {
        timers.set(connection, Some(due(connection) + Duration::from_millis(100)));
    }
}

fn cancel(times: u64) {
    let mut timers = armed();
    for connection in (0..times).map(|at| far_apart(at, TIMERS)) {
        timers.set(connection, None);
    }
}

fn expire(times: u64) {
    let mut timers = armed();
    for _ in 0..times {
        assert!(timers.expire(Instant::ZERO + Duration::from_secs(1)).is_some());
    }
}
