//! Entry point for `cargo fuzz`; the target is `brisk_fuzz::parity`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| brisk_fuzz::parity::run(bytes));
