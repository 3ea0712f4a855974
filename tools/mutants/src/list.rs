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

/// Prefix of the name of a mutant for which no test fails.
pub const MISSED: &str = "missed: ";
/// Prefix of the name of a mutant whose tests do not end in time.
pub const LATE: &str = "not in time: ";

/// A position in a file, as `cargo mutants` counts: lines from 1, columns in characters from 1.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Debug)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// A range of positions.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Debug)]
pub struct Span {
    /// Position of the first character.
    pub start: Place,
    /// Position after the last character.
    pub end: Place,
}

/// One change of the sources.
#[derive(Clone, Deserialize, Debug)]
pub struct Mutant {
    /// Description, with file and line.
    pub name: String,
    /// The file, relative to the root of the workspace.
    pub file: PathBuf,
    /// The kind of change.
    pub genre: String,
    /// The text that replaces `span`.
    pub replacement: String,
    /// Range of the replaced text.
    pub span: Span,
    /// Number by which the mutant is selected, from 1.
    #[serde(default)]
    pub id: u32,
}

/// Returns every mutant of a package; with a diff, only those in the changed lines.
pub fn of(package: &str, diff: Option<&Path>) -> Result<Vec<Mutant>> {
    let output = Command::new("cargo")
        .args(["mutants", "--list", "--json", "-p", package])
        .args(diff.iter().flat_map(|diff| [OsStr::new("--in-diff"), diff.as_os_str()]))
        .output()
        .context("cargo mutants: install it with 'cargo install --locked cargo-mutants'")?;
    ensure!(output.status.success(), "cargo mutants: {}", String::from_utf8_lossy(&output.stderr));
    // For a diff without a line of Rust, `cargo mutants` prints no list.
    if output.stdout.trim_ascii().is_empty() {
        return Ok(Vec::new());
    }
    serde_json::from_slice(&output.stdout).context("the list of mutants")
}

/// Returns the mutants that an earlier run printed as missed.
pub fn missed(all: &[Mutant], log: &str) -> Result<Vec<Mutant>> {
    let names: HashSet<&str> = log.lines().filter_map(|line| line.strip_prefix(MISSED)).collect();
    let missed: Vec<Mutant> = all.iter().filter(|mutant| names.contains(&*mutant.name)).cloned().collect();
    ensure!(
        !missed.is_empty(),
        "nothing in the log is a mutant of these sources: lines begin with '{MISSED}'"
    );
    Ok(missed)
}

/// Draws `count` mutants with a seed and numbers them.
pub fn sample(all: &[Mutant], count: usize, seed: u64) -> Vec<Mutant> {
    let mut drawn = all.to_vec();
    drawn.shuffle(&mut SmallRng::seed_from_u64(seed));
    drawn.truncate(count);
    for (id, mutant) in (1..).zip(&mut drawn) {
        mutant.id = id;
    }
    drawn
}
