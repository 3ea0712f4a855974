//! Cost of the stack in instructions: `cargo bench -p brisk-sim --bench instructions [-- NAME…]`.
//!
//! valgrind counts the instructions of each case twice, the second time with twice as many runs. The
//! difference divided by the number of additional runs is the cost of one run, without set-up and program
//! start. The counts include the program and the C library only, so other work on the machine does not change
//! them, and they differ by less than a percent between machines. `recorded.txt` has the counts at the last
//! change that affected them. The bench, and with it CI, fails if a case exceeds its record by more than
//! `TOLERANCE`, or its limit relative to another case (`LIMITS`). `-- --record` writes the file again.
//!
//! `-- --train` runs each case once, without valgrind: the training for the profile that `tools/release`
//! compiles with.
//!
//! Instructions are not time: a load that misses the cache counts as much as an addition.

mod cases;
mod one_side;
mod pair;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use cases::{Case, LIMITS, Limit};

/// Share by which a count may exceed its record.
const TOLERANCE: f64 = 0.03;

/// Copies use vector registers only, because valgrind counts every byte of a `rep movsb` as an instruction.
const NO_STRING_INSTRUCTIONS: &str =
    "glibc.cpu.x86_rep_movsb_threshold=1000000000:glibc.cpu.x86_rep_stosb_threshold=1000000000";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if let [flag, name, times] = args.as_slice()
        && flag == "--run"
    {
        let case = cases::all().find(|case| case.name == name).expect("the name of a case");
        (case.run)(times.parse().expect("a number"));
        return ExitCode::SUCCESS;
    }
    if args == ["--train"] {
        cases::all().for_each(|case| (case.run)(case.times));
        return ExitCode::SUCCESS;
    }
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("instructions: skipped, because valgrind is not installed");
        return ExitCode::SUCCESS;
    }
    measure(&args)
}

/// Counts the cases that `args` names, or all of them, and compares the counts with the records.
fn measure(args: &[String]) -> ExitCode {
    let record = args.iter().any(|arg| arg == "--record");
    let names: Vec<&String> = args.iter().filter(|arg| !arg.starts_with("--")).collect();
    let mut recorded = read_recorded();
    let mut exceeded = false;
    let mut counts = BTreeMap::new();
    println!("{:<36} {:>12} {:>12} {:>8}", "instructions for", "now", "recorded", "change");
    for case in cases::all().filter(|case| names.is_empty() || names.iter().any(|name| *name == case.name)) {
        let now = cost(case);
        counts.insert(case.name, now);
        let before = recorded.insert(case.name.to_owned(), now);
        let change = before.map(|before| now as f64 / before as f64 - 1.0);
        let is_worse = change.is_none_or(|change| change > TOLERANCE);
        exceeded |= is_worse;
        let note = if is_worse && !record { "  exceeds" } else { "" };
        let column = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        println!(
            "{:<36} {now:>12} {:>12} {:>8}{note}",
            case.name,
            column(before.map(|before| before.to_string())),
            column(change.map(|change| format!("{:+.1} %", 100.0 * change))),
        );
    }
    if record {
        let lines = recorded.iter().map(|(name, count)| format!("{name} {count}\n"));
        std::fs::write(record_path(), lines.collect::<String>()).expect("the record can be written");
        return ExitCode::SUCCESS;
    }
    let beyond = beyond_limits(&counts);
    if exceeded {
        println!("a count exceeds its record by more than {} %: make the case", 100.0 * TOLERANCE);
        println!("cheaper, or justify it in the commit and record it with `-- --record`");
    }
    ExitCode::from(u8::from(exceeded || beyond))
}

/// True if a counted case exceeds its limit relative to another case.
fn beyond_limits(counts: &BTreeMap<&str, u64>) -> bool {
    let mut is_beyond = false;
    for Limit { name, of, max } in LIMITS {
        if let (Some(&cost), Some(&base)) = (counts.get(name), counts.get(of)) {
            let ratio = cost as f64 / base as f64;
            let note = if ratio > max { "  exceeds" } else { "" };
            println!("{name}: {ratio:.4} of {of}, {max} at most{note}");
            is_beyond |= ratio > max;
        }
    }
    is_beyond
}

fn record_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/instructions/recorded.txt")
}

fn read_recorded() -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string(record_path()).unwrap_or_default();
    let line = |line: &str| {
        let (name, count) = line.rsplit_once(' ')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

fn cost(case: &Case) -> u64 {
    let (once, twice) = (count(case.name, case.times), count(case.name, 2 * case.times));
    (twice - once) / case.times / case.of
}

/// Returns the instructions of this program for `times` runs of a case.
fn count(name: &str, times: u64) -> u64 {
    let program = std::env::current_exe().expect("a path");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["--run", name, &times.to_string()])
        .env_clear()
        .env("GLIBC_TUNABLES", NO_STRING_INSTRUCTIONS)
        .output()
        .expect("valgrind runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} failed: {said}");
    let collected = said.lines().find_map(|line| line.split_once("Collected :")).expect("a count");
    collected.1.trim().parse().expect("a number")
}
