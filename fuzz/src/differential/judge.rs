//! Runs a script against both stacks and compares the results.

use std::collections::BTreeSet;

use brisk_script::{KernelVerdict, Options};

use super::compare::{Difference, compare, lateness};
use super::explain::explain;
use super::record::Record;
use super::script::Script;

/// Maximum delay of an event for the kernel, microseconds.
const LATE: i64 = 3_000;
/// Maximum number of runs of a script against the kernel.
const TRIES: usize = 6;
/// Number of runs in which a difference must occur.
const CONFIRMATIONS: usize = 2;

/// The verdict on a script.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// Both did the same, except for differences that these entries of the list explain.
    Agreed(BTreeSet<&'static str>),
    /// The first unexplained difference, with our record and the kernel's.
    Differs(Box<(Difference, Record, Record)>),
    /// The machine was too busy each time.
    Late,
    /// The kernel cannot be used here, with the reason.
    Skipped(String),
    /// The script is not valid, or the kernel runs it in another way.
    Broken(String),
}

fn options() -> Options {
    Options { lenient: true, ..Options::default() }
}

/// Runs a script against our stack.
///
/// # Errors
/// The script is not valid.
pub fn play_ours(text: &str) -> Result<Record, String> {
    let report = brisk_script::run("differential", text, &options()).map_err(|error| error.to_string())?;
    Ok(Record::read(text, &report.trace))
}

/// Runs a script against the kernel; `Err(Skipped)` if that is impossible here.
///
/// # Errors
/// Why it did not run to its end.
pub fn play_kernel(text: &str) -> Result<Record, Verdict> {
    let mut trace = Vec::new();
    let played = brisk_script::run_on_kernel("differential", text, &options(), &mut |line| {
        trace.push(line.to_owned());
    });
    match played {
        Ok(KernelVerdict::Passed) => Ok(Record::read(text, &trace)),
        Ok(KernelVerdict::Skipped(reason)) => Err(Verdict::Skipped(reason)),
        Err(error) => Err(Verdict::Broken(error.to_string())),
    }
}

/// Runs a script against both; repeats the kernel's run if the machine was late or a difference is new.
/// Differences of the classes `ignored` are ignored unless the connections diverge with them.
pub fn judge(text: &str, ignored: &[String]) -> Verdict {
    let ours = match play_ours(text) {
        Ok(record) => record,
        Err(error) => return Verdict::Broken(error),
    };
    let mut seen: Vec<String> = Vec::new();
    for _ in 0..TRIES {
        let kernel = match play_kernel(text) {
            Ok(record) => record,
            Err(verdict) => return verdict,
        };
        match lateness(&ours, &kernel) {
            None => return Verdict::Broken("the kernel ran other events".to_owned()),
            Some(late) if late > LATE => continue,
            Some(_) => {}
        }
        let mut explained = BTreeSet::new();
        let mut unexplained = None;
        for difference in compare(&ours, &kernel) {
            match explain(&difference, &ours, &kernel) {
                Some((entry, diverges)) => {
                    explained.insert(entry.name);
                    if diverges {
                        break;
                    }
                }
                None if ignored.contains(&difference.class()) => {}
                None => {
                    unexplained = Some(difference);
                    break;
                }
            }
        }
        let Some(difference) = unexplained else { return Verdict::Agreed(explained) };
        seen.push(difference.class());
        if seen.iter().filter(|class| **class == difference.class()).count() >= CONFIRMATIONS {
            return Verdict::Differs(Box::new((difference, ours, kernel)));
        }
    }
    Verdict::Late
}

/// Drops events while the first difference keeps its class.
pub fn minimise(script: &Script, class: &str, ignored: &[String]) -> Script {
    let mut smallest = script.clone();
    let still = |script: &Script| match judge(&script.text(), ignored) {
        Verdict::Differs(found) => (found.0.class() == class).then_some(found.1.steps[found.0.step].at),
        _ => None,
    };
    if let Some(at) = still(&smallest) {
        let mut cut = smallest.clone();
        cut.events.retain(|event| event.at <= at + 1_000);
        cut.push(at + 60_000, "%{ print(tcpi_state) }%");
        if still(&cut).is_some() {
            smallest = cut;
        }
    }
    let mut size = (smallest.events.len() / 2).max(1);
    loop {
        let mut from = 0;
        while from < smallest.events.len() {
            let mut cut = smallest.clone();
            cut.events.drain(from..(from + size).min(cut.events.len()));
            if still(&cut).is_some() {
                smallest = cut;
            } else {
                from += size;
            }
        }
        if size == 1 {
            return smallest;
        }
        size /= 2;
    }
}
