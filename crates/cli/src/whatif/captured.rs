//! `brisk whatif --pcap`: analyses a capture and estimates the gain of each mechanism.

use std::fs::File;
use std::path::Path;

use brisk_lab::captured::estimate::{Estimation, Part};
use brisk_lab::captured::traffic::{Case, Facts, Traffic};
use indicatif::ProgressBar;

use super::{Args, USUAL_SEED, style};
use crate::Common;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{print, print_line};

/// Analyses the capture, estimates the gains and prints both.
pub(super) fn run(args: &Args, file: &Path, common: &Common) -> Result<(), Failure> {
    let failed =
        |error: &dyn std::fmt::Display| Failure::failed(format!("--pcap {}: {error}", file.display()));
    let max_overhead = args.max_overhead()?;
    let input = File::open(file).map_err(|error| failed(&error))?;
    let analysis = brisk_capture::analyse(input).map_err(|error| failed(&error))?;
    if let Some(stopped) = analysis.stopped.as_ref().filter(|_| !common.quiet) {
        eprintln!("brisk: warning: {}: {stopped} after {} packets", file.display(), analysis.packets);
    }
    let traffic = Traffic::of(&analysis).ok_or_else(|| {
        failed(&format!(
            "{} TCP segments without any request that has a response and a round-trip time",
            analysis.segments
        ))
    })?;
    let facts = Facts::of(&analysis, &traffic);
    let parts = traffic.groups.iter().map(|group| {
        let link = |case| {
            let captured = traffic.link(group, case).map_err(|error| failed(&error))?;
            args.link.spec(captured)
        };
        let links = [link(Case::Estimate)?, link(Case::Low)?, link(Case::High)?];
        Ok(Part { group: group.clone(), links })
    });
    let parts = parts.collect::<Result<Vec<Part>, Failure>>()?;
    let seed = parts.first().and_then(|part| part.links[0].seed).unwrap_or(USUAL_SEED);
    let estimation = Estimation { parts, n: args.workload.n, seed, max_overhead };
    let stop = interrupt::stop_flag()?;
    let bar = match common.quiet {
        true => ProgressBar::hidden(),
        false => ProgressBar::new(estimation.transactions()).with_style(style()),
    };
    let estimate = estimation.run(&|done| bar.inc(done), &stop).map_err(Failure::failed)?;
    bar.finish_and_clear();
    if args.json {
        let json = serde_json::json!({ "capture": facts, "estimate": estimate });
        return print_line(&json.to_string());
    }
    print(&facts.to_text())?;
    match estimate {
        Some(estimate) => print(&format!("\n{}", estimate.to_text()))?,
        // The statistics of the capture are useful even without an estimate.
        None => print_line("interrupted before there was an estimate")?,
    }
    print_line("\nThe estimate is based on:")?;
    facts.basis.iter().try_for_each(|line| print(&wrapped(line)))
}

/// Formats a list entry in lines of at most 80 columns.
fn wrapped(line: &str) -> String {
    let mut text = String::from("-");
    let mut width = 1;
    for word in line.split(' ') {
        let len = word.chars().count() + 1;
        if width + len > 80 {
            text.push_str("\n ");
            width = 1;
        }
        text.push(' ');
        text.push_str(word);
        width += len;
    }
    text + "\n"
}
