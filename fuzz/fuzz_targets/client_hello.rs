//! Entry point for `cargo fuzz`; the target is `brisk_fuzz::client_hello`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| brisk_fuzz::client_hello::run(bytes));
