//! Mutation score of a crate, with one build for all mutants.
//!
//! `cargo mutants` builds the crate again for each mutant; with thousands of mutants and a build of half a minute that takes
//! days. This program uses only its list (`cargo mutants --list`). It embeds a sample of the mutants in a copy of the sources,
//! each of them active only if it is selected at run time, builds the tests once, and runs them once for every mutant.
//!
//! ```text
//! cargo run --release --manifest-path tools/mutants/Cargo.toml -- --package brisk-tcp --tests brisk-script --sample 300
//! ```
//!
//! A mutant is *caught* if a test fails, does not end in time, or takes too much memory; it is *missed* if all tests pass.
//! Mutants that cannot be selected at run time (in a constant, in a `let` chain) or do not compile are reported but not counted.
//!
//! | module | content |
//! |---|---|
//! | `list` | the mutants, from `cargo mutants`, and a sample of them |
//! | `embed` | a source file with embedded mutants |
//! | `tree` | the copy of the sources, and the build of its tests |
//! | `judge` | runs the tests and computes the score |

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
    /// The crate to mutate.
    #[arg(long, default_value = "brisk-tcp")]
    package: String,
    /// Other crates whose tests run too, in this order.
    #[arg(long, value_delimiter = ',', default_value = "brisk-script")]
    tests: Vec<String>,
    /// Number of mutants to draw from the list; default: all.
    #[arg(long)]
    sample: Option<usize>,
    /// Seed of the sample.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Test only mutants in lines that this diff changes (`git diff v0.1.0 >DIFF`).
    #[arg(long)]
    in_diff: Option<PathBuf>,
    /// Test only mutants that this log of an earlier run reports as missed.
    #[arg(long)]
    again: Option<PathBuf>,
    /// Number of mutants to test at a time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Start no new mutant after this number of minutes.
    #[arg(long, default_value_t = 600)]
    minutes: u64,
    /// Directory for the copy and its build.
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
