//! "1,000,000 random and mutated segments at a connection in every state: no panic, no growth."
//!
//! The quick version sends 20,000 to each state. The full one: `cargo test --profile fuzz
//! -p brisk-fuzz --test million -- --ignored --nocapture`

use std::alloc::System;
use std::time::Instant;

use brisk_fuzz::barrage::{Moment, Situation, Tally, run};
use brisk_tcp::connection::State;
use comfy_table::{CellAlignment, Table, presets};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Maximum growth of the process's memory, after everything was released, since the first tenth of the
/// segments: the capacity of tables that were never as full before.
const MAX_GROWTH: i64 = 64 << 10;
/// Maximum memory of the process beyond its initial memory, bytes: the buffers and the other state of 128
/// connections.
const MAX_HEAP: i64 = 16 << 20;

/// Returns the bytes that the process holds.
fn held() -> i64 {
    let stats = HEAP.stats();
    stats.bytes_allocated as i64 - stats.bytes_deallocated as i64
}

struct Row {
    situation: Situation,
    tally: Tally,
    /// Maximum bytes beyond the initial ones, and growth since the first tenth.
    heap: i64,
    growth: i64,
    seconds: f64,
}

fn throw(situation: Situation, segments: u64, seed: u64) -> Row {
    let (began, start) = (held(), Instant::now());
    let (mut heap, mut calm) = (0, Vec::with_capacity(16));
    let tally = run(situation, segments, seed, &mut |moment| match moment {
        Moment::Busy => heap = heap.max(held() - began),
        Moment::Calm => calm.push(held() - began),
    });
    let growth = calm.last().unwrap_or(&0) - calm.first().unwrap_or(&0);
    Row { situation, tally, heap, growth, seconds: start.elapsed().as_secs_f64() }
}

/// Runs all states, prints the table, and checks it.
fn accept(segments: u64) {
    let rows: Vec<Row> =
        (1..).zip(Situation::ALL).map(|(seed, situation)| throw(situation, segments, seed)).collect();
    print(&rows);
    for Row { situation, tally, heap, growth, .. } in &rows {
        assert_eq!(tally.segments, segments);
        let reached = tally.accepted > 0;
        assert_eq!(reached, *situation != Situation::In(State::Closed), "{}", situation.name());
        assert!(*growth <= MAX_GROWTH, "{} holds {growth} bytes more for ever", situation.name());
        assert!(*heap <= MAX_HEAP, "{} held {heap} bytes", situation.name());
    }
}

fn print(rows: &[Row]) {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header([
        "state",
        "segments",
        "driven",
        "accepted",
        "refused",
        "window",
        "paws",
        "challenge",
        "out",
        "conns",
        "buffers",
        "heap",
        "growth",
        "s",
    ]);
    for Row { situation, tally, heap, growth, seconds } in rows {
        let refused = tally.segments - tally.accepted;
        table.add_row([
            situation.name().to_string(),
            tally.segments.to_string(),
            tally.driven.to_string(),
            tally.accepted.to_string(),
            refused.to_string(),
            tally.out_of_window.to_string(),
            tally.paws.to_string(),
            tally.challenges.to_string(),
            tally.packets_out.to_string(),
            tally.connections.to_string(),
            tally.memory.to_string(),
            heap.to_string(),
            growth.to_string(),
            format!("{seconds:.1}"),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}\n\nRefused by reason:");
    for Row { situation, tally, .. } in rows {
        let reasons: Vec<String> =
            tally.refused.iter().map(|(reason, count)| format!("{} {count}", reason.name())).collect();
        println!("{:>14}  {}", situation.name(), reasons.join(", "));
    }
}

#[test]
fn twenty_thousand_segments_at_every_state() {
    accept(20_000);
}

#[test]
#[ignore = "11,000,000 segments: half a minute in release mode"]
fn a_million_segments_at_every_state() {
    accept(1_000_000);
}
