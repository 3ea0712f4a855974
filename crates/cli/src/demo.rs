//! `brisk demo`: an origin, a gateway pair, a lossy long link and a load, all on this machine.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use brisk_lab::demo::{Demo, DemoReport, Snapshot};
use brisk_link::units::parse_size;
use brisk_runtime::profile::{DEFAULT_MAX_OVERHEAD, Profile, parse_max_overhead};

use crate::Common;
use crate::failure::Failure;
use crate::interrupt;
use crate::link_args::{LinkArgs, help_with_default};
use crate::output::{print, print_line};
use crate::service;

mod view;

const EXAMPLES: &str = "\
Examples:
  brisk demo
  brisk demo --seconds 10 --json
  brisk demo --rtt 250ms --rate 10mbit --loss after:1%,50% --flow 30kB --per-second 10";

/// The default seed.
const USUAL_SEED: u64 = 1;
/// Duration of the warm-up, in which both ends learn the path.
const WARM_UP: Duration = Duration::from_secs(3);
/// Number of simulated transactions, for comparison.
const SIMULATED: u64 = 4000;

/// The flags of `demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = help_with_default(EXAMPLES))]
pub(crate) struct Args {
    #[command(flatten)]
    link: LinkArgs,
    /// Seconds of requests that count; a warm-up of 3 seconds precedes them, and answers may arrive up to 5
    /// seconds later
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=3600), env = "BRISK_SECONDS")]
    seconds: u64,
    /// Bytes of each response
    #[arg(long, value_name = "SIZE", default_value = "10kB", env = "BRISK_FLOW")]
    flow: String,
    /// Requests per second to each arm, at random times, each on a fresh connection
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=2000), env = "BRISK_PER_SECOND")]
    per_second: u32,
    /// Profiles to compare, separated by semicolons; default: all that exist
    #[arg(long, value_name = "ARMS", env = "BRISK_ARMS")]
    arms: Option<String>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs the demonstration and prints its result.
pub(crate) fn run(args: Args, common: &Common) -> Result<(), Failure> {
    let demo = args.demo()?;
    let stop = interrupt::stop_flag()?;
    let live = !common.quiet && std::io::stderr().is_terminal();
    if !common.quiet {
        eprint!("{}", view::introduction(&demo));
    }
    let mut screen = Screen::default();
    let mut on_progress = |snapshot: &Snapshot| {
        if live {
            screen.show(&view::live(&demo, snapshot));
        }
    };
    let report = service::run(async {
        demo.run(set(Arc::clone(&stop)), &mut on_progress).await.map_err(Failure::failed)
    })?;
    screen.clear();
    print_report(&demo, &report, args.json)
}

fn print_report(demo: &Demo, report: &DemoReport, json: bool) -> Result<(), Failure> {
    if !json {
        return print(&view::result(demo, report));
    }
    let json = serde_json::to_string(report)
        .map_err(|error| Failure::failed(format!("cannot write the report as JSON: {error}")))?;
    print_line(&json)
}

/// Resolves when the flag is set.
async fn set(flag: Arc<AtomicBool>) {
    while !flag.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Args {
    fn demo(&self) -> Result<Demo, Failure> {
        let link = self.link.spec_or_default()?;
        if !link.up.middleboxes.is_empty() || !link.down.middleboxes.is_empty() {
            return Err(Failure::usage(
                "--middlebox: the hop of the demonstration is TCP inside UDP, which middleboxes do not see; use brisk whatif",
            ));
        }
        let response_bytes = parse_size(&self.flow)
            .map_err(|error| Failure::usage(format!("--flow {}: {error}", self.flow)))?;
        let mut arms = match &self.arms {
            Some(text) => {
                Profile::parse_list(text).map_err(|error| Failure::usage(format!("--arms: {error}")))?
            }
            None => brisk_lab::compare::default_arms(),
        };
        let max_overhead = parse_max_overhead(DEFAULT_MAX_OVERHEAD).map_err(Failure::failed)?;
        arms.iter_mut().for_each(|arm| arm.allow(max_overhead));
        Ok(Demo {
            seed: link.seed.unwrap_or(USUAL_SEED),
            link,
            arms,
            response_bytes,
            size_text: self.flow.clone(),
            per_second: f64::from(self.per_second),
            simulated: SIMULATED,
            warm_up: WARM_UP,
            duration: Duration::from_secs(self.seconds),
        })
    }
}

/// The part of the terminal that shows the progress; it is redrawn repeatedly.
#[derive(Debug, Default)]
struct Screen {
    lines: usize,
}

impl Screen {
    fn show(&mut self, text: &str) {
        self.clear();
        self.lines = text.lines().count();
        // Switches wrapping off, so that a narrow terminal does not break the lines. An error means that the
        // terminal is closed, so nobody would read a report.
        let _ = write!(std::io::stderr(), "\x1b[?7l{text}\x1b[?7h");
    }

    /// Returns to the start of the part and erases it.
    fn clear(&mut self) {
        if self.lines > 0 {
            let _ = write!(std::io::stderr(), "\x1b[{}A\x1b[J", self.lines);
        }
        self.lines = 0;
    }
}
