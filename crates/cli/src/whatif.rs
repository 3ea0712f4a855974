//! `brisk whatif`: simulates each mechanism for a flow over a link, in virtual time.

use std::path::{Path, PathBuf};

use brisk_lab::captured::access_log;
use brisk_lab::compare::{Comparison, compare};
use brisk_lab::pages::har;
use brisk_lab::scenario::Scenario;
use brisk_lab::sizes::Sizes;
use brisk_link::units::parse_size;
use brisk_runtime::profile::{DEFAULT_MAX_OVERHEAD, Profile, parse_max_overhead};
use brisk_sim::page::Page;
use indicatif::{ProgressBar, ProgressStyle};

mod captured;

use crate::Common;
use crate::failure::Failure;
use crate::interrupt;
use crate::link_args::{LinkArgs, help_with_default};
use crate::output::{print, print_line};
use crate::text_file::read_text;

const EXAMPLES: &str = "\
Examples:
  brisk whatif --rtt 100ms --rate 20mbit --loss 2% --flow 30kB
  brisk whatif --rtt 200ms --loss after:1%,50% --flow 5kB -n 10000 --json
  brisk whatif --rtt 80ms --loss 1% --sizes sizes.csv --established
  brisk whatif --rtt 80ms --loss 1% --access-log /var/log/nginx/access.log
  tcpdump -i eth0 -s 128 -w own.pcap tcp port 80, and then: brisk whatif --pcap own.pcap";

/// The default seed; it is fixed, so that results can be compared from day to day.
const USUAL_SEED: u64 = 1;

/// The flags of `whatif`.
#[derive(Debug, clap::Args)]
#[command(after_help = help_with_default(EXAMPLES))]
pub(crate) struct Args {
    #[command(flatten)]
    link: LinkArgs,
    #[command(flatten)]
    workload: Workload,
    /// Profiles to compare, separated by semicolons: "tcp; all" or "fast_open,corrective=f2"; default: all
    /// that exist
    #[arg(long, value_name = "ARMS", env = "BRISK_ARMS")]
    arms: Option<String>,
    /// Limit of the redundancy that the planner adds, for profiles with a planner: a share of (bytes sent in
    /// the last ten seconds + 1 MB)
    #[arg(long, value_name = "RATIO", default_value = DEFAULT_MAX_OVERHEAD, env = "BRISK_MAX_OVERHEAD")]
    max_overhead: String,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Workload")]
struct Workload {
    /// Bytes of each response
    #[arg(long, value_name = "SIZE", default_value = "30kB", conflicts_with_all = ["sizes", "har", "access_log", "pcap"], env = "BRISK_FLOW")]
    flow: String,
    /// Draw the sizes of the responses from a CSV of "bytes,cumulative share"
    #[arg(long, value_name = "FILE", env = "BRISK_SIZES")]
    sizes: Option<PathBuf>,
    /// Load the page of this HAR file: each transaction is a whole page
    #[arg(long, value_name = "FILE")]
    har: Option<PathBuf>,
    /// Draw the sizes of the responses from the access log of a web server (common or combined format)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sizes", "har"])]
    access_log: Option<PathBuf>,
    /// Take sizes, round-trip times, losses and their runs from a packet capture (pcap, pcapng); flags of the
    /// link take precedence
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sizes", "har", "access_log", "request", "established", "arms"])]
    pcap: Option<PathBuf>,
    /// Bytes of each request, at least 16
    #[arg(long, value_name = "SIZE", default_value = "100B", env = "BRISK_REQUEST")]
    request: String,
    /// Transactions for each arm
    #[arg(short, long = "number", value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..=100_000_000), env = "BRISK_NUMBER")]
    n: u64,
    /// Omit the handshake: each transaction begins on an open connection
    #[arg(long)]
    established: bool,
}

/// Runs the comparison and prints it.
pub(crate) fn run(args: Args, common: &Common) -> Result<(), Failure> {
    if let Some(file) = &args.workload.pcap {
        return captured::run(&args, file, common);
    }
    let comparison = args.comparison()?;
    let stop = interrupt::stop_flag()?;
    let bar = match common.quiet {
        true => ProgressBar::hidden(),
        false => ProgressBar::new(comparison.n * comparison.arms.len() as u64).with_style(style()),
    };
    // The progress bar is drawn only on a terminal, never into a pipe.
    let report = compare(&comparison, &|done| bar.inc(done), &stop).map_err(Failure::failed)?;
    bar.finish_and_clear();
    if args.json {
        let json = serde_json::to_string(&report)
            .map_err(|error| Failure::failed(format!("cannot write the report as JSON: {error}")))?;
        print_line(&json)?;
    } else {
        print(&report.to_text())?;
    }
    if report.arms.iter().all(|arm| arm.completed == 0) {
        let link = &report.link.spec;
        return Err(Failure::failed(format!("no transaction was completed over this link: {link}")));
    }
    Ok(())
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:40} {pos}/{len} transactions, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl Args {
    /// Returns the limit of redundancy, percent.
    fn max_overhead(&self) -> Result<u32, Failure> {
        parse_max_overhead(&self.max_overhead)
            .map_err(|error| Failure::usage(format!("--max-overhead {error}")))
    }

    fn comparison(&self) -> Result<Comparison, Failure> {
        let link = self.link.spec_or_default()?;
        let max_overhead = self.max_overhead()?;
        let mut arms = match &self.arms {
            Some(text) => {
                Profile::parse_list(text).map_err(|error| Failure::usage(format!("--arms: {error}")))?
            }
            None => brisk_lab::compare::default_arms(),
        };
        arms.iter_mut().for_each(|arm| arm.allow(max_overhead));
        let page = self.workload.har.as_deref().map(read_har).transpose()?;
        let (sizes, sizes_text) = self.workload.sizes(page.as_ref())?;
        let request = parse_size(&self.workload.request)
            .map_err(|error| Failure::usage(format!("--request {}: {error}", self.workload.request)))?;
        if !(16..=65_536).contains(&request) {
            return Err(Failure::usage(format!("--request {request}B: use 16B to 64KiB")));
        }
        Ok(Comparison {
            seed: link.seed.unwrap_or(USUAL_SEED),
            link,
            request: request as u32,
            sizes,
            sizes_text,
            page,
            scenario: Scenario::default(),
            n: self.workload.n,
            established: self.workload.established,
            arms,
        })
    }
}

impl Workload {
    fn sizes(&self, page: Option<&Page>) -> Result<(Sizes, String), Failure> {
        if let Some(page) = page {
            let text = format!(
                "{} ({} objects, {} hosts, {} bytes)",
                page.label,
                page.objects(),
                page.hosts(),
                page.bytes()
            );
            return Ok((Sizes::Fixed(page.bytes()), text));
        }
        if let Some(file) = &self.access_log {
            let log = read_log(file)?;
            let text =
                format!("{} responses of {} ({} lines without)", log.responses, file.display(), log.skipped);
            return Ok((log.sizes, text));
        }
        if let Some(file) = &self.sizes {
            return Ok((read_sizes(file)?, format!("sizes from {}", file.display())));
        }
        let bytes = parse_size(&self.flow)
            .map_err(|error| Failure::usage(format!("--flow {}: {error}", self.flow)))?;
        Ok((Sizes::Fixed(bytes), self.flow.clone()))
    }
}

/// Bytes of the largest recording, bodies included, and of the largest table of sizes.
const LARGEST_HAR: u64 = 256 << 20;
const LARGEST_SIZES: u64 = 64 << 20;

fn read_har(file: &Path) -> Result<Page, Failure> {
    let text = read_text(file, LARGEST_HAR)
        .map_err(|error| Failure::failed(format!("--har {}: {error}", file.display())))?;
    let label = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    har::read(&text, &label).map_err(|error| Failure::usage(format!("--har {}: {error}", file.display())))
}

fn read_log(file: &Path) -> Result<access_log::Log, Failure> {
    let failed =
        |error: &dyn std::fmt::Display| Failure::failed(format!("--access-log {}: {error}", file.display()));
    let input = std::fs::File::open(file).map_err(|error| failed(&error))?;
    access_log::read(input).map_err(|error| failed(&error))
}

fn read_sizes(file: &Path) -> Result<Sizes, Failure> {
    let text = read_text(file, LARGEST_SIZES)
        .map_err(|error| Failure::failed(format!("--sizes {}: {error}", file.display())))?;
    Sizes::parse_csv(&text).map_err(|error| Failure::usage(format!("--sizes {}: {error}", file.display())))
}
