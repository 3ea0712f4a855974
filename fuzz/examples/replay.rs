//! Runs one target over files: `cargo run -p brisk-fuzz --example replay connection FILE...`
//!
//! With `--minimise` before the files, each failing input is reduced by cutting and zeroing and printed in
//! hexadecimal. `BRISK_FUZZ_TRACE=1` prints the packets of the targets with stacks.

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

use brisk_fuzz::{TARGETS, Target};

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let minimise = arguments.iter().any(|argument| argument == "--minimise");
    arguments.retain(|argument| argument != "--minimise");
    let mut arguments = arguments.into_iter();
    let name = arguments.next().unwrap_or_default();
    let Some(target) = TARGETS.into_iter().find(|target| target.name == name) else {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("replay: '{name}' is not a target; give one of {} and then files", names.join(", "));
        std::process::exit(2);
    };
    for file in arguments {
        let mut bytes = std::fs::read(&file).unwrap_or_else(|error| {
            eprintln!("replay: {file}: {error}");
            std::process::exit(2);
        });
        if minimise && fails(target, &bytes) {
            bytes = smallest(target, bytes);
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            println!("{file}: {hex}");
        }
        println!("{file}: {} bytes", bytes.len());
        (target.run)(&bytes);
    }
}

fn fails(target: Target, bytes: &[u8]) -> bool {
    catch_unwind(AssertUnwindSafe(|| (target.run)(bytes))).is_err()
}

/// Cuts pieces and zeroes bytes while the target still fails.
fn smallest(target: Target, mut bytes: Vec<u8>) -> Vec<u8> {
    let hook = take_hook();
    set_hook(Box::new(|_| ()));
    for _ in 0..4 {
        let mut piece = bytes.len().next_power_of_two();
        while piece > 0 {
            let mut at = 0;
            while at < bytes.len() {
                let mut shorter = bytes.clone();
                shorter.drain(at..bytes.len().min(at + piece));
                match fails(target, &shorter) {
                    true => bytes = shorter,
                    false => at += piece,
                }
            }
            piece /= 2;
        }
        for at in 0..bytes.len() {
            let kept = std::mem::replace(&mut bytes[at], 0);
            if kept != 0 && !fails(target, &bytes) {
                bytes[at] = kept;
            }
        }
    }
    set_hook(hook);
    bytes
}
