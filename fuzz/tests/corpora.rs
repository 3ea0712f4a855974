//! Runs every target over its corpus, and over seeded mutations of it.
//!
//! `BRISK_FUZZ_ROUNDS` multiplies the number of mutations (default 1), `BRISK_FUZZ_SEED` changes them
//! (default 1). A failing input is printed in hexadecimal and stored in the directory for temporary files,
//! for `--example replay`.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use brisk_fuzz::{TARGETS, Target, mutate, seeds};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

fn corpus(target: Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

/// Returns the inputs on disk, sorted by name.
fn inputs(target: Target) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(corpus(target)).expect("the corpus is there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("can be listed").path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("can be read")).collect()
}

/// Returns inputs from elsewhere in the project: packet scripts by topic, and the packaged configurations.
fn of_the_project(target: Target) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let list = |folder: &Path| {
        std::fs::read_dir(folder).expect("a folder of the project").flatten().map(|it| it.path())
    };
    let mut paths: Vec<PathBuf> = match target.name {
        "script" => list(&root.join("crates/script/scripts")).flat_map(|topic| list(&topic)).collect(),
        "settings" => list(&root.join("packaging/examples")).collect(),
        _ => Vec::new(),
    };
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("can be read")).collect()
}

/// Returns a number from the environment.
fn setting(name: &str) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(1)
}

fn run(target: Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        let path = std::env::temp_dir().join(format!("brisk-fuzz-{}", target.name));
        let kept = std::fs::write(&path, input).map(|()| path.display().to_string());
        let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
        println!("{} fails with {hex} ({kept:?})", target.name);
        resume_unwind(panic);
    }
}

/// Runs the corpus, then `count` mutations of it.
fn fuzz(name: &str, count: u64) {
    let target = TARGETS.into_iter().find(|target| target.name == name).expect("a target");
    let mut inputs = inputs(target);
    inputs.extend(of_the_project(target));
    for input in &inputs {
        run(target, input);
    }
    let mut chance = ChaCha8Rng::seed_from_u64(setting("BRISK_FUZZ_SEED"));
    let mut pool = inputs;
    for _ in 0..count * setting("BRISK_FUZZ_ROUNDS") {
        let (at, other) = (draw(&mut chance, pool.len()), draw(&mut chance, pool.len()));
        let mut input = pool[at].clone();
        mutate::mutate(&mut input, &pool[other], &mut chance);
        run(target, &input);
        // Mutations of mutations reach further than mutations of seeds.
        if draw(&mut chance, 8) == 0 {
            match pool.len() < 512 {
                true => pool.push(input),
                false => pool[at] = input,
            }
        }
    }
}

fn draw(chance: &mut ChaCha8Rng, bound: usize) -> usize {
    (chance.next_u64() % bound as u64) as usize
}

#[test]
fn any_packet_is_parsed_or_refused() {
    fuzz("segment", 200_000);
}

#[test]
fn any_option_area_is_read() {
    fuzz("options", 400_000);
}

#[test]
fn any_text_is_a_link_or_an_error() {
    fuzz("link", 30_000);
}

#[test]
fn any_text_is_a_script_or_an_error() {
    fuzz("script", 20_000);
}

#[test]
fn any_parity_segment_repairs_what_was_missing_or_nothing() {
    fuzz("parity", 100_000);
}

#[test]
fn any_capture_is_read_or_an_error() {
    fuzz("capture", 20_000);
}

#[test]
fn change_on_the_hop_is_refused() {
    fuzz("handshake", 20_000);
}

#[test]
fn any_bytes_are_a_proxy_header_or_none() {
    fuzz("proxy", 100_000);
}

#[test]
fn any_bytes_are_a_client_hello_or_none() {
    fuzz("client_hello", 100_000);
}

#[test]
fn any_text_is_a_configuration_or_an_error() {
    fuzz("settings", 20_000);
}

#[test]
fn a_stack_withstands_any_peer_and_any_program() {
    fuzz("connection", 60_000);
}

#[test]
fn bbr_withstands_any_acknowledgements() {
    fuzz("controller", 2_000);
}

#[test]
fn two_stacks_agree_over_any_path() {
    fuzz("pair", 20_000);
}

#[test]
fn the_corpora_are_what_the_tool_writes() {
    for target in TARGETS {
        for (name, bytes) in seeds::of(target.name) {
            let path = corpus(target).join(&name);
            let found = std::fs::read(&path).unwrap_or_default();
            assert!(found == bytes, "{}: run --example write_seeds", path.display());
        }
    }
}
