//! `brisk lab`: runs the experiments of two papers (Gentle Aggression, TCP Fast Open) and brisk's own. Each
//! is a plan, which contains the published numbers if there are any.

use std::path::{Path, PathBuf};

use brisk_lab::pages;
use brisk_lab::plan::evaluation::{PlanReport, evaluate};
use brisk_lab::plan::run::{RunError, RunOptions, remaining, run as run_plan};
use brisk_lab::plan::store::{Shard, Store, StoreError, merge};
use brisk_lab::plan::{Plan, builtin, markdown, page};
use brisk_sim::page::Page;
use indicatif::{ProgressBar, ProgressStyle};

use crate::Common;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{print, print_line};
use crate::text_file::read_text;

mod browse;
mod draw;
mod real;

const EXAMPLES: &str = "\
Examples:
  brisk lab list
  brisk lab run ga-table5b --quick
  brisk lab run --all --out results && brisk lab report results -o report.html
  brisk lab run --all --shard 1/4 --out shard1    (on each of four machines)
  sudo brisk lab run bar --real                   (the plan `bar` in real time)
  brisk lab merge shard1 shard2 shard3 shard4 --out results";

/// Maximum size of a plan, and of a file of pages, bytes.
const LARGEST_PLAN: u64 = 1 << 20;
const LARGEST_PAGES: u64 = 64 << 20;

/// The flags of `lab`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the built-in plans, one per line with its title
    #[command(after_help = "Example:\n  brisk lab list")]
    List,
    /// Run plans in virtual time, or with --real in real time; an interrupted run continues where it ended
    #[command(after_help = "Example:\n  brisk lab run ga-table5a ga-table5b --quick --json")]
    Run(Run),
    /// Merge the shards of a run
    #[command(after_help = "Example:\n  brisk lab merge shard1 shard2 --out results")]
    Merge(Merge),
    /// Write a report of results as one self-contained HTML file
    #[command(
        after_help = "Examples:\n  brisk lab report results -o report.html\n  brisk lab report results --markdown docs/reproduction.md"
    )]
    Report(Report),
    /// Run one transaction of a plan again and record it: diagram, capture, events
    #[command(
        after_help = "Example:\n  brisk lab draw ga-fig7 --arm corrective -o fig7.svg --pcap fig7.pcapng --events fig7.jsonl"
    )]
    Draw(draw::Draw),
    /// Load pages in a real Chromium, through the gateway pair over an emulated link
    Browse(Box<browse::Args>),
}

#[derive(Debug, clap::Args)]
struct Run {
    /// Names from `brisk lab list`, or files that end in .toml
    #[arg(value_name = "PLAN", required_unless_present = "all")]
    plans: Vec<String>,
    /// Run every built-in plan
    #[arg(long, conflicts_with = "plans")]
    all: bool,
    /// Run fewer transactions, about a tenth; each plan has its own number
    #[arg(long)]
    quick: bool,
    /// Seed of all random numbers
    #[arg(long, value_name = "N", default_value_t = 1, env = "BRISK_SEED")]
    seed: u64,
    /// Cores to use; default: all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=4096))]
    jobs: Option<u64>,
    /// Run only this part, for instance 1/4; merge the parts later
    #[arg(long, value_name = "I/N", default_value = "1/1")]
    shard: Shard,
    /// Recorded pages in place of the plan's generated pages of the same label: a HAR, or JSON lines
    /// (formats: docs/lab.md)
    #[arg(long, value_name = "FILE", env = "BRISK_PAGES")]
    pages: Option<PathBuf>,
    /// Directory for the results
    #[arg(long, value_name = "DIR", default_value = "brisk-results", env = "BRISK_OUT")]
    out: PathBuf,
    /// Print a line of JSON for each measured configuration (cell of a plan) instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    real: real::Args,
}

#[derive(Debug, clap::Args)]
struct Merge {
    /// Directories from `brisk lab run --shard`
    #[arg(value_name = "DIR", required = true)]
    from: Vec<PathBuf>,
    /// Directory for the merged results
    #[arg(long, value_name = "DIR", default_value = "brisk-results", env = "BRISK_OUT")]
    out: PathBuf,
}

#[derive(Debug, clap::Args)]
struct Report {
    /// The directory from `brisk lab run` or `merge`
    #[arg(value_name = "DIR", default_value = "brisk-results")]
    results: PathBuf,
    /// The HTML file; figures.csv and figures.json are written to the same directory
    #[arg(short, long, value_name = "FILE", default_value = "brisk-report.html")]
    output: PathBuf,
    /// Write an overview as Markdown to this file, and a page for each plan to a folder of the same name
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Description of the machine, for the Markdown
    #[arg(long, value_name = "TEXT", requires = "markdown")]
    machine: Option<String>,
}

pub(crate) fn run(args: Args, common: &Common) -> Result<(), Failure> {
    match args.command {
        Command::List => list(),
        Command::Run(run) => run.run(common),
        Command::Merge(Merge { from, out }) => {
            let merged = merge(&from, &out).map_err(Failure::failed)?;
            if merged.is_empty() {
                let searched: Vec<String> = from.iter().map(|from| from.display().to_string()).collect();
                let searched = searched.join(", ");
                return Err(Failure::failed(format!(
                    "{searched}: no results in this directory; `brisk lab run --out` writes them"
                )));
            }
            merged.iter().try_for_each(|store| show(store, false))
        }
        Command::Report(report) => report.write(),
        Command::Draw(draw) => draw.run(),
        Command::Browse(browse) => browse.run(common),
    }
}

fn list() -> Result<(), Failure> {
    for (name, text) in builtin::PLANS {
        let plan = Plan::parse(name, text).map_err(Failure::failed)?;
        print_line(&format!("{name:20}{}", plan.title))?;
    }
    Ok(())
}

impl Run {
    fn run(self, common: &Common) -> Result<(), Failure> {
        if self.real.is_asked_for()? {
            return self.real.run(&self.plans()?, self.seed, &self.out, self.json, common);
        }
        if let Some(jobs) = self.jobs {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(jobs as usize).build_global();
            pool.map_err(|error| Failure::failed(format!("--jobs {jobs}: {error}")))?;
        }
        let stop = interrupt::stop_flag()?;
        let runs = self.plans()?;
        let (pages, digest) = self.read_pages()?;
        let mut stores = Vec::new();
        for (plan, text) in &runs {
            let store =
                Store::open(&self.out, self.options(&digest)?.id(plan, text)).map_err(Failure::failed)?;
            stores.push((plan, store));
        }
        let mut total = 0;
        for (plan, store) in &stores {
            total += remaining(plan, store).map_err(Failure::failed)?;
        }
        let bar =
            if common.quiet { ProgressBar::hidden() } else { ProgressBar::new(total).with_style(style()) };
        for (plan, store) in &stores {
            bar.set_message(plan.name.clone());
            match run_plan(plan, store, &pages, &|done| bar.inc(done), &stop) {
                Ok(()) => bar.suspend(|| show(store, self.json))?,
                Err(error) => {
                    bar.finish_and_clear();
                    // Complete cells are shown nevertheless.
                    if matches!(error, RunError::Interrupted) {
                        show(store, self.json)?;
                    }
                    return Err(Failure::failed(error));
                }
            }
        }
        bar.finish_and_clear();
        if !common.quiet {
            let results = self.out.display();
            eprintln!("results: {results}; for a report with pictures: brisk lab report {results}");
        }
        Ok(())
    }

    fn plans(&self) -> Result<Vec<(Plan, String)>, Failure> {
        let names: Vec<String> = match self.all {
            true => builtin::PLANS.iter().map(|(name, _)| (*name).to_owned()).collect(),
            false => self.plans.clone(),
        };
        names.iter().map(|name| read_plan(name)).collect()
    }

    /// Returns the given pages and a digest of their file.
    fn read_pages(&self) -> Result<(Vec<Page>, String), Failure> {
        let Some(file) = &self.pages else { return Ok((Vec::new(), String::new())) };
        let name = file.display();
        let text = read_text(file, LARGEST_PAGES)
            .map_err(|error| Failure::failed(format!("--pages {name}: {error}")))?;
        let label = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let pages =
            pages::read(&text, &label).map_err(|error| Failure::usage(format!("--pages {name}: {error}")))?;
        Ok((pages, format!("{:016x}", brisk_lab::digest(text.as_bytes()))))
    }

    fn options(&self, pages: &str) -> Result<RunOptions, Failure> {
        Ok(RunOptions {
            pages: pages.to_owned(),
            quick: self.quick,
            seed: self.seed,
            shard: self.shard,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            build: build_digest()?,
        })
    }
}

fn read_plan(given: &str) -> Result<(Plan, String), Failure> {
    let (name, text) = if given.ends_with(".toml") {
        let text = read_text(Path::new(given), LARGEST_PLAN)
            .map_err(|error| Failure::failed(format!("{given}: {error}")))?;
        let stem = Path::new(given).file_stem().map(|stem| stem.to_string_lossy().into_owned());
        (stem.unwrap_or_default(), text)
    } else {
        let text = builtin::text(given).ok_or_else(|| {
            Failure::usage(format!("no plan '{given}': `brisk lab list` shows them; a file ends in .toml"))
        })?;
        (given.to_owned(), text.to_owned())
    };
    let plan = Plan::parse(&name, &text).map_err(|error| match given.ends_with(".toml") {
        true => Failure::usage(format!("{given}: {error}")),
        false => Failure::usage(error),
    })?;
    Ok((plan, text))
}

/// Returns a digest of this program, so that it does not reuse results of another build.
fn build_digest() -> Result<String, Failure> {
    let program = std::env::current_exe().and_then(std::fs::read);
    let bytes =
        program.map_err(|error| Failure::failed(format!("cannot read the program itself: {error}")))?;
    Ok(format!("{:016x}", brisk_lab::digest(&bytes)))
}

fn show(store: &Store, json: bool) -> Result<(), Failure> {
    let report = report_of(store)?;
    if !json {
        return print(&(report.to_text() + "\n"));
    }
    for cell in &report.cells {
        print_line(&serde_json::to_string(cell).map_err(|error| Failure::failed(error.to_string()))?)?;
    }
    Ok(())
}

fn report_of(store: &Store) -> Result<PlanReport, Failure> {
    let plan = store.plan().map_err(Failure::failed)?;
    evaluate(&plan, store).map_err(Failure::failed)
}

impl Report {
    fn write(&self) -> Result<(), Failure> {
        let stores = Store::all(&self.results).map_err(|error: StoreError| Failure::failed(error))?;
        if stores.is_empty() {
            return Err(Failure::failed(format!(
                "{}: no results; run `brisk lab run --all --out {0}`",
                self.results.display()
            )));
        }
        let reports = stores.iter().map(report_of).collect::<Result<Vec<_>, Failure>>()?;
        let of = |get: fn(&Store) -> String| {
            let mut all: Vec<String> = stores.iter().map(get).collect();
            all.dedup();
            all.join(", ")
        };
        let (version, seed) = (of(|store| store.id.version.clone()), of(|store| store.id.seed.to_string()));
        let made_by = format!("brisk {version}, seed {seed}, in virtual time");
        if let Some(file) = &self.markdown {
            let is_quick = |store: &Store| store.plan().is_ok_and(|plan| plan.quick_n == store.id.n);
            let quick = if stores.iter().all(is_quick) { " --quick" } else { "" };
            let command = format!(
                "brisk lab run --all{quick} --seed {seed} --out results\nbrisk lab report results --markdown {}",
                file.display()
            );
            let source = markdown::ReportSource { command, version, seed, machine: self.machine.clone() };
            let folder = file.with_extension("");
            std::fs::create_dir_all(&folder)
                .map_err(|error| Failure::failed(format!("{}: {error}", folder.display())))?;
            for report in &reports {
                let page = markdown::page(report);
                self.put(&folder.join(format!("{}.md", report.plan)), page.as_bytes())?;
            }
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            self.put(file, markdown::overview(&reports, &source, &name).as_bytes())?;
        }
        self.put(&self.output, page::page(&reports, &made_by).as_bytes())?;
        let json = serde_json::to_vec_pretty(&reports).map_err(|error| Failure::failed(error.to_string()))?;
        self.put(&self.output.with_file_name("figures.json"), &json)?;
        self.put(&self.output.with_file_name("figures.csv"), page::csv(&reports).as_bytes())?;
        let outside: usize = reports.iter().map(PlanReport::outside).sum();
        print_line(&format!(
            "{}: plans: {}, figures outside their range: {outside}",
            self.output.display(),
            reports.len()
        ))
    }

    fn put(&self, path: &Path, bytes: &[u8]) -> Result<(), Failure> {
        std::fs::write(path, bytes).map_err(|error| Failure::failed(format!("{}: {error}", path.display())))
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg:18} {bar:30} {pos}/{len} transactions, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
