//! Entry point for `cargo fuzz`; the target is `brisk_fuzz::settings`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| brisk_fuzz::settings::run(bytes));
