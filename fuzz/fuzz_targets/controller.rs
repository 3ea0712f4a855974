//! Entry point for `cargo fuzz`; the target is `brisk_fuzz::controller`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| brisk_fuzz::controller::run(bytes));
