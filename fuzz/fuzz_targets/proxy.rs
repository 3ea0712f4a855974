//! Entry point for `cargo fuzz`; the target is `brisk_fuzz::proxy`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| brisk_fuzz::proxy::run(bytes));
