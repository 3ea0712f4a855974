//! "Truncated and mutated handshakes, 1,000,000 by fuzzing: refused, no panic, no growth."
//!
//! `cargo test --profile fuzz -p brisk-fuzz --test handshakes -- --ignored --nocapture`

use std::alloc::System;
use std::time::Instant;

use brisk_fuzz::{handshake, mutate, seeds};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Maximum growth of the process's memory after the first tenth, bytes.
const MAX_GROWTH: i64 = 16 << 10;

fn held() -> i64 {
    let stats = HEAP.stats();
    stats.bytes_allocated as i64 - stats.bytes_deallocated as i64
}

#[test]
#[ignore = "1,000,000 handshakes: a few minutes in release mode"]
fn a_million_mutated_handshakes() {
    const COUNT: u64 = 1_000_000;
    let seeds: Vec<Vec<u8>> = seeds::of("handshake").into_iter().map(|(_, bytes)| bytes).collect();
    let mut chance = ChaCha8Rng::seed_from_u64(1);
    let (began, mut calm) = (Instant::now(), 0);
    for n in 0..COUNT {
        let mut draw = || &seeds[(chance.next_u64() % seeds.len() as u64) as usize];
        let (mut input, other) = (draw().clone(), draw().clone());
        let door = input.first().copied().unwrap_or(0);
        mutate::mutate(&mut input, &other, &mut chance);
        // Each target gets its share, whatever mutation changed the first byte.
        if let Some(first) = input.first_mut() {
            *first = door;
        }
        handshake::run(&input);
        if n == COUNT / 10 {
            calm = held();
        }
    }
    let growth = held() - calm;
    println!("{COUNT} handshakes in {:.0} s; {growth} bytes more are held", began.elapsed().as_secs_f64());
    assert!(growth <= MAX_GROWTH, "{growth} bytes more");
}
