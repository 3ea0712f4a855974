//! The table of states and segments: the cells that have a script, and the stack's answer in each.
//!
//! `cargo test -p brisk-script --test matrix -- --nocapture` prints it.

use std::path::{Path, PathBuf};

use brisk_script::{Options, run_file};

const STATES: &[&str] = &[
    "closed",
    "listen",
    "syn-sent",
    "syn-received",
    "established",
    "fin-wait-1",
    "fin-wait-2",
    "close-wait",
    "closing",
    "last-ack",
    "time-wait",
];

const EVENTS: &[&str] = &[
    "syn",
    "syn-ack",
    "ack",
    "ack-of-the-unsent",
    "data",
    "data-left",
    "data-right",
    "data-with-a-gap",
    "data-old-timestamp",
    "fin",
    "fin-right",
    "rst",
    "rst-in-window",
    "rst-outside",
];

fn cell(state: &str, event: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("scripts/matrix/{state}-{event}.pkt"))
}

/// Returns the kind of the first packet that was sent after the event (the last arrival), or `-`.
fn answer(trace: &[String]) -> &'static str {
    let event = trace.iter().rposition(|line| line.contains(" < "));
    let sent = trace.iter().skip(event.map_or(0, |at| at + 1)).find_map(|line| line.split_once(" > "));
    let flags = sent.and_then(|(_, packet)| packet.split_whitespace().next());
    match flags {
        None => "-",
        Some("S.") => "SYN-ACK",
        Some("S") => "SYN",
        Some("R" | "R.") => "RST",
        Some(".") => "ACK",
        Some("F." | "FP.") => "FIN",
        Some(_) => "other",
    }
}

#[test]
fn every_cell_has_a_script_and_an_answer() {
    let width = EVENTS.iter().map(|event| event.len()).max().unwrap_or(0);
    let mut table = format!("{:width$}", "");
    for state in STATES {
        table += &format!(" | {state:>12}");
    }
    let mut missing = Vec::new();
    for event in EVENTS {
        table += &format!("\n{event:width$}");
        for state in STATES {
            let file = cell(state, event);
            let found = run_file(&file, &Options::default());
            let found = found.map_or_else(
                |error| {
                    missing.push(error.to_string());
                    "?"
                },
                |report| answer(&report.trace),
            );
            table += &format!(" | {found:>12}");
        }
    }
    println!("{table}");
    assert!(missing.is_empty(), "cells without a script that passes:\n{}", missing.join("\n"));
}

/// A script that belongs to no cell would be missing in the table.
#[test]
fn every_script_belongs_to_a_cell() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/matrix");
    let known: Vec<PathBuf> =
        STATES.iter().flat_map(|state| EVENTS.iter().map(|event| cell(state, event))).collect();
    for entry in std::fs::read_dir(dir).expect("the scripts are there") {
        let path = entry.expect("readable").path();
        assert!(known.contains(&path), "{} is no cell of the table", path.display());
    }
}
