//! `brisk lab run --real`: runs the cells of plans in real time, and compares them with the kernel.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use brisk_lab::plan::store::write_real;
use brisk_lab::plan::{Cell, Plan};
use brisk_lab::real::Real;
use brisk_lab::real::contestant::Contestant;
use brisk_lab::real::report::RealReport;

use crate::Common;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{print, print_line};
use brisk_gateway::settings::parse_duration;

/// The flags of `lab run` for real time.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "In real time")]
pub(super) struct Args {
    /// Run in real time over an emulated link (needs root): the kernel's CUBIC and BBR with and without Fast
    /// Open, an nginx pool, and the gateway pair with each arm
    #[arg(long, conflicts_with_all = ["shard", "pages", "jobs", "quick"])]
    real: bool,
    /// Requests of each contestant; default: 200
    #[arg(short, long = "number", value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    n: Option<u64>,
    /// Simultaneous requests; default: 4
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    parallel: Option<u64>,
    /// Duration of a bulk flow of each contestant next to one of the kernel's CUBIC; 0s: no such flow. Links
    /// without a rate never have one. Default: 10s
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    beside: Option<Duration>,
    /// Run only this cell
    #[arg(long, value_name = "NAME")]
    cell: Option<String>,
}

/// Default number of requests of each contestant, and of simultaneous requests.
const USUAL_NUMBER: u64 = 200;
const USUAL_PARALLEL: u64 = 4;
/// Default duration of two bulk flows on the same link.
const USUAL_BESIDE: Duration = Duration::from_secs(10);

impl Args {
    /// True if real time is requested. Otherwise refuses flags that need it.
    pub(super) fn is_asked_for(&self) -> Result<bool, Failure> {
        let given = [
            ("--number", self.n.is_some()),
            ("--parallel", self.parallel.is_some()),
            ("--beside", self.beside.is_some()),
            ("--cell", self.cell.is_some()),
        ];
        match given.iter().find(|(_, given)| *given && !self.real) {
            None => Ok(self.real),
            Some((flag, _)) => {
                Err(Failure::usage(format!("{flag} is for runs in real time: add --real, or leave it out")))
            }
        }
    }

    /// Runs every cell that can run in real time; names the others.
    pub(super) fn run(
        &self,
        plans: &[(Plan, String)],
        seed: u64,
        out: &Path,
        json: bool,
        common: &Common,
    ) -> Result<(), Failure> {
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::failed("lab run --real makes network namespaces: run it as root"));
        }
        let stop = interrupt::stop_flag()?;
        let mut ran = 0;
        for (plan, text) in plans {
            let asked_for = |cell: &&Cell| self.cell.as_ref().is_none_or(|name| cell.name == *name);
            for cell in plan.cells.iter().filter(asked_for) {
                match self.cell(plan, cell, seed)? {
                    Ok(real) => {
                        let report = self.measure(&real, common, &stop)?;
                        write_real(out, plan, text, cell, &report).map_err(Failure::failed)?;
                        show(&report, json)?;
                        ran += 1;
                    }
                    Err(why) if !common.quiet => eprintln!("{}, cell '{}': {why}", plan.name, cell.name),
                    Err(_) => {}
                }
                if stop.load(Ordering::Relaxed) {
                    return Err(Failure::failed("interrupted; the results so far are shown and kept"));
                }
            }
        }
        match ran {
            0 => Err(Failure::usage(
                "none of these cells can be run in real time; the plan `bar` has some that can",
            )),
            _ => Ok(()),
        }
    }

    /// Returns the cell with all its contestants, or the reason why it cannot run in real time.
    fn cell(&self, plan: &Plan, cell: &Cell, seed: u64) -> Result<Result<Real, String>, Failure> {
        let (link, bytes) = match cell.in_real_time() {
            Ok(found) => found,
            Err(why) => return Ok(Err(why)),
        };
        let program = std::env::current_exe()
            .map_err(|error| Failure::failed(format!("cannot find the program itself: {error}")))?;
        let mut contestants = Contestant::kernels();
        contestants.push(Contestant::nginx_pool());
        contestants.extend(cell.arms.iter().map(|arm| Contestant::pair(&program, arm)));
        // On a link without a rate, two flows do not compete.
        let limited = link.up.rate.is_some() || link.down.rate.is_some();
        let beside = if limited { self.beside.unwrap_or(USUAL_BESIDE) } else { Duration::ZERO };
        let n = self.n.unwrap_or(USUAL_NUMBER);
        let parallel = self.parallel.unwrap_or(USUAL_PARALLEL) as usize;
        let name = format!("{}, {}", plan.name, cell.name);
        Ok(Ok(Real { name, link, seed, bytes, n, parallel, beside, contestants }))
    }

    fn measure(&self, real: &Real, common: &Common, stop: &AtomicBool) -> Result<RealReport, Failure> {
        let mut on_progress = |name: &str| {
            if !common.quiet {
                eprintln!("{}: {name}", real.name);
            }
        };
        real.run(stop, &mut on_progress).map_err(Failure::failed)
    }
}

fn show(report: &RealReport, json: bool) -> Result<(), Failure> {
    if !json {
        return print(&(report.to_text() + "\n"));
    }
    print_line(&serde_json::to_string(report).map_err(|error| Failure::failed(error.to_string()))?)
}
