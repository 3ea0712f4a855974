//! Mutation score of a crate, with one build for all mutants.
//!
//! `cargo mutants` builds anew for each mutant; with thousands of them and a build of half a minute that takes days. Here
//! `cargo mutants --list` only says which mutants there are. A sample of them is written into a copy of the sources, each
//! behind a question whether it is its turn, the tests are built once, and then run once for every mutant.
//!
//! ```text
//! cargo run --release --manifest-path tools/mutants/Cargo.toml -- --package brisk-tcp --tests brisk-script --sample 300
//! ```
//!
//! A mutant is *caught* if a test fails, or does not end in time, or takes too much memory; *missed* if all pass. What
//! cannot be written as a question (in a constant, in a `let` chain) or does not compile is not counted, and said.
//!
//! | module | what it is |
//! |---|---|
//! | `list` | the mutants, from `cargo mutants`, and a sample of them |
//! | `embed` | a source file with mutants behind questions |
//! | `tree` | the copy of the sources, and building its tests |
//! | `judge` | running the tests, and the score |

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;

mod embed;
mod judge;
mod list;
mod tree;

/// Mutation score of a crate, with one build for all mutants (needs `cargo install cargo-mutants`).
#[derive(Parser)]
struct Args {
    /// The crate that is mutated.
    #[arg(long, default_value = "brisk-tcp")]
    package: String,
    /// Other crates whose tests judge it too, in this order.
    #[arg(long, value_delimiter = ',', default_value = "brisk-script")]
    tests: Vec<String>,
    /// Mutants drawn from the list; default all.
    #[arg(long)]
    sample: Option<usize>,
    /// Seed of the draw.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only mutants of the lines that this diff changes (`git diff v0.1.0 >DIFF`).
    #[arg(long)]
    in_diff: Option<PathBuf>,
    /// Only mutants that this log of an earlier run says were missed.
    #[arg(long)]
    again: Option<PathBuf>,
    /// Mutants that are tried at a time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// No new mutant is begun after so many minutes.
    #[arg(long, default_value_t = 600)]
    minutes: u64,
    /// Where the copy and its build go.
    #[arg(long, default_value = "target/mutants")]
    directory: PathBuf,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let mut all = list::of(&args.package, args.in_diff.as_deref())?;
    if all.is_empty() {
        println!("{} has no mutant in these lines", args.package);
        return Ok(());
    }
    if let Some(log) = &args.again {
        let text = std::fs::read_to_string(log).with_context(|| log.display().to_string())?;
        all = list::missed(&all, &text)?;
    }
    let drawn = list::sample(&all, args.sample.unwrap_or(all.len()), args.seed);
    println!("{} mutants of {}, {} drawn with seed {}", all.len(), args.package, drawn.len(), args.seed);
    let tree = tree::Tree::copy(&args.directory, &args.package)?;
    let (tests, left) = tree.build(&drawn, &args.tests).context("the tests of the copy")?;
    let end = Duration::from_secs(60 * args.minutes);
    let score = judge::run(&tests, &left, args.jobs, end)?;
    score.print(drawn.len() - left.len());
    Ok(())
}
