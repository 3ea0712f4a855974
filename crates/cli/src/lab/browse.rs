//! `brisk lab browse`: pages in a real Chromium over an emulated link.

use std::path::PathBuf;

use brisk_lab::browse::{Browse, Progress};
use brisk_lab::pages::outline::Outline;
use brisk_lab::plan::{Plan, builtin};
use brisk_link::LinkSpec;
use brisk_runtime::profile::Profile;
use indicatif::{ProgressBar, ProgressStyle};

use super::LARGEST_PAGES;
use crate::Common;
use crate::failure::Failure;
use crate::interrupt;
use crate::link_args::LinkArgs;
use crate::output::{print, print_line};
use crate::text_file::read_text;

const EXAMPLES: &str = "\
Examples:
  sudo brisk lab browse en.wikipedia.org-2015
  sudo brisk lab browse en.wikipedia.org-2015 nytimes.com-2015 --pages pages.jsonl --rtt 200ms --rate 4mbit/256kbit -n 30
  sudo brisk lab browse own --pages own.har --arms \"tcp; tcp+tfo; all\" --pictures shots

Needs root, Chromium and chromedriver. A page without --pages is made from the plan that has one of its label.";

/// The default link, from TCP Fast Open, Table 1.
const USUAL_LINK: &str = "--rtt 100ms --rate 4mbit/256kbit --queue 128kB";
/// The default seed.
const USUAL_SEED: u64 = 1;

/// The flags of `lab browse`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Labels of the pages, which are in the file of --pages or in the plans
    #[arg(value_name = "PAGE", required = true)]
    page: Vec<String>,
    /// Recorded pages: page skeletons, JSON lines, or a HAR, whose label is its name without .har
    #[arg(long, value_name = "FILE", env = "BRISK_PAGES")]
    pages: Option<PathBuf>,
    #[command(flatten)]
    link: LinkArgs,
    /// Profiles of the gateways, separated by semicolons; gains are relative to the first
    #[arg(long, value_name = "ARMS", default_value = "tcp; tcp+tfo", env = "BRISK_ARMS")]
    arms: String,
    /// Initial window of every arm, segments [default: the arm's own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    initial_window: Option<u32>,
    /// Number of counted loads for each arm; an uncounted load precedes them
    #[arg(short, long = "number", value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    n: u32,
    /// Directory for a picture of each page, PAGE.png
    #[arg(long, value_name = "DIR")]
    pictures: Option<PathBuf>,
    /// Print a line of JSON for each page, with every load, instead of tables
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(super) fn run(&self, common: &Common) -> Result<(), Failure> {
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::failed("lab browse makes network namespaces: run it as root"));
        }
        let stop = interrupt::stop_flag()?;
        let preset = if self.link.is_empty() { USUAL_LINK } else { "" };
        let link = self.link.spec(LinkSpec::parse(preset).map_err(Failure::usage)?)?;
        let mut arms =
            Profile::parse_list(&self.arms).map_err(|error| Failure::usage(format!("--arms: {error}")))?;
        if let Some(window) = self.initial_window {
            arms.iter_mut().for_each(|arm| arm.tcp.initial_window = window);
        }
        let pages = self.outlines()?;
        if let Some(directory) = &self.pictures {
            std::fs::create_dir_all(directory)
                .map_err(|error| Failure::failed(format!("--pictures {}: {error}", directory.display())))?;
        }
        let loads = (u64::from(self.n) + 1) * arms.len() as u64;
        let bar =
            if common.quiet { ProgressBar::hidden() } else { ProgressBar::new(loads).with_style(style()) };
        for page in pages {
            let seed = link.seed.unwrap_or(USUAL_SEED);
            bar.set_position(0);
            bar.set_message(page.label.clone());
            let picture = self.pictures.as_ref().map(|directory| directory.join(file_name(&page.label)));
            let browse = Browse { page, link: link.clone(), seed, arms: arms.clone(), loads: self.n };
            let mut on_progress = |progress: &Progress<'_>| {
                bar.inc(1);
                if let Err(why) = progress.result {
                    bar.suspend(|| eprintln!("load {} with {}: {why}", progress.number, progress.arm));
                }
            };
            let report = browse
                .run(picture.as_deref(), &stop, &mut on_progress)
                .map_err(|error| Failure::failed(format!("{}: {error}", browse.page.label)))?;
            bar.suspend(|| match self.json {
                true => {
                    let json = serde_json::to_string(&report);
                    print_line(&json.map_err(|error| Failure::failed(error.to_string()))?)
                }
                false => print(&(report.to_text() + "\n")),
            })?;
            if stop.load(std::sync::atomic::Ordering::Relaxed) {
                return Err(Failure::failed("interrupted; the results so far are shown"));
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn outlines(&self) -> Result<Vec<Outline>, Failure> {
        let known = match &self.pages {
            None => made()?,
            Some(file) => {
                let refused = |error: &dyn std::fmt::Display| format!("--pages {}: {error}", file.display());
                let text =
                    read_text(file, LARGEST_PAGES).map_err(|error| Failure::failed(refused(&error)))?;
                let label =
                    file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
                brisk_lab::pages::outlines(&text, &label).map_err(|error| Failure::usage(refused(&error)))?
            }
        };
        let find = |label: &String| {
            let found = known.iter().find(|page| page.label == *label && !page.objects.is_empty());
            found.cloned().ok_or_else(|| {
                let labels: Vec<&str> = known.iter().map(|page| page.label.as_str()).collect();
                Failure::usage(format!("no page '{label}'; there are: {}", labels.join(", ")))
            })
        };
        self.page.iter().map(find).collect()
    }
}

/// Returns the generated pages of the plans.
fn made() -> Result<Vec<Outline>, Failure> {
    let mut outlines: Vec<Outline> = Vec::new();
    for (name, text) in builtin::PLANS {
        let plan = Plan::parse(name, text).map_err(Failure::failed)?;
        for recipe in plan.cells.iter().filter_map(|cell| cell.page.as_ref()) {
            if outlines.iter().all(|outline| outline.label != recipe.label) {
                outlines.push(recipe.outline());
            }
        }
    }
    Ok(outlines)
}

fn file_name(label: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '.' { c } else { '-' };
    format!("{}.png", label.chars().map(plain).collect::<String>())
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg:24} {bar:30} {pos}/{len} loads, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
