//! The mutants, from `cargo mutants`, and a sample of them.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use serde::Deserialize;

/// What stands before the name of a mutant that no test fails for.
pub const MISSED: &str = "missed: ";
/// What stands before the name of one whose tests do not end.
pub const LATE: &str = "not in time: ";

/// A place in a file, as `cargo mutants` counts: both from 1, columns in characters.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Debug)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The character in it.
    pub column: usize,
}

/// From one place up to another.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Debug)]
pub struct Span {
    /// Its first character.
    pub start: Place,
    /// Behind its last.
    pub end: Place,
}

/// One change of the sources.
#[derive(Clone, Deserialize, Debug)]
pub struct Mutant {
    /// What it is in words, with file and line.
    pub name: String,
    /// The file, from the root of the workspace.
    pub file: PathBuf,
    /// Of what kind it is.
    pub genre: String,
    /// What is written instead.
    pub replacement: String,
    /// Instead of what.
    pub span: Span,
    /// The number it is asked for by; 1 is the first of the sample.
    #[serde(default)]
    pub id: u32,
}

/// Every mutant of a package, or those of the lines that a diff changes.
pub fn of(package: &str, diff: Option<&Path>) -> Result<Vec<Mutant>> {
    let output = Command::new("cargo")
        .args(["mutants", "--list", "--json", "-p", package])
        .args(diff.iter().flat_map(|diff| [OsStr::new("--in-diff"), diff.as_os_str()]))
        .output()
        .context("cargo mutants: install it with 'cargo install --locked cargo-mutants'")?;
    ensure!(output.status.success(), "cargo mutants: {}", String::from_utf8_lossy(&output.stderr));
    // Of a diff without a line of Rust it prints no list.
    if output.stdout.trim_ascii().is_empty() {
        return Ok(Vec::new());
    }
    serde_json::from_slice(&output.stdout).context("the list of mutants")
}

/// Those of them that an earlier run printed as missed.
pub fn missed(all: &[Mutant], log: &str) -> Result<Vec<Mutant>> {
    let names: HashSet<&str> = log.lines().filter_map(|line| line.strip_prefix(MISSED)).collect();
    let missed: Vec<Mutant> = all.iter().filter(|mutant| names.contains(&*mutant.name)).cloned().collect();
    ensure!(
        !missed.is_empty(),
        "nothing in the log is a mutant of these sources: lines begin with '{MISSED}'"
    );
    Ok(missed)
}

/// So many of them, drawn with a seed, numbered.
pub fn sample(all: &[Mutant], count: usize, seed: u64) -> Vec<Mutant> {
    let mut drawn = all.to_vec();
    drawn.shuffle(&mut SmallRng::seed_from_u64(seed));
    drawn.truncate(count);
    for (id, mutant) in (1..).zip(&mut drawn) {
        mutant.id = id;
    }
    drawn
}
