//! A C program calls all 32 functions of the table as packetdrill does. With the pointer to the world the
//! table has 33 slots.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the path of the library, which cargo builds before the tests.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let dirs = program.ancestors().skip(1).take(2);
    let found = dirs.map(|dir| dir.join("libbrisk_conformance.so")).find(|path| path.exists());
    found.expect("cargo builds the library next to its tests")
}

fn compile(to: &Path) -> Result<(), String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all_slots.c");
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Wno-unused-parameter", "-O1", "-o"])
        .arg(to)
        .arg(source)
        .args(["-ldl", "-lpthread"]);
    let output = cc.output().map_err(|error| format!("cc cannot be run: {error}"))?;
    assert!(
        output.status.success(),
        "the program does not compile:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

fn run(preload: bool) {
    let program = std::env::temp_dir().join(format!("brisk-all-slots-{}-{preload}", std::process::id()));
    if let Err(why) = compile(&program) {
        println!("skipped: {why}");
        return;
    }
    let mut command = Command::new(&program);
    command.arg(library()).arg("sysctls=off");
    if preload {
        command.env("LD_PRELOAD", library());
    }
    let output = command.output().unwrap();
    let _ = std::fs::remove_file(&program);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!((output.status.code(), said.trim()), (Some(0), "all 33 slots"), "{:?}", output);
}

#[test]
fn every_slot_answers_as_packetdrill_expects() {
    run(false);
}

#[test]
fn preloaded_symbols_work_on_our_descriptors() {
    run(true);
}
