//! Hostile peers. Each attack has a bound; the test checks it and prints the measurement.
//!
//! `cargo test -p brisk-tcp --test hostile -- --nocapture | grep '^|'` prints the table. A transfer of 8 GB
//! each way is ignored by default: `cargo test --release -p brisk-tcp --test hostile -- --ignored
//! --nocapture`.

mod acks;
mod blind;
mod clocks;
mod data;
#[path = "../pair/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of two stacks, which use all of it")]
mod harness;
mod resources;
mod scene;
mod soak;
mod windows;
mod wraps;

/// Panics if a measurement exceeds its bound.
#[track_caller]
fn bounded(attack: &str, what: &str, bound: u64, measured: u64) {
    println!("| {attack} | {what} | {bound} | {measured} |");
    assert!(measured <= bound, "{attack}: {what} is {measured}, the bound is {bound}");
}
