//! Experiments as plans: one TOML file for each table or figure of a paper, with the paper's results and
//! brisk's.
//!
//! A plan has cells. A cell is a link, a workload and the profiles that are compared on it, transaction by
//! transaction with the same seeds. The plan states the expectations of a cell before it runs: the paper's
//! result, the range for brisk's result, and the reason why the two may differ.
//!
//! | module | content |
//! |---|---|
//! | [`mod@self`] | the plan and its text |
//! | [`metric`] | the measured quantities of an arm: `gain.p90`, `rtts.p99`, `wire` |
//! | [`store`] | the results on disk: a run can be interrupted, resumed, cut into shards and merged |
//! | [`run`] | running the cells that are not in the store yet |
//! | [`evaluation`] | compares results with expectations, with confidence intervals |
//! | [`page`] | the report as one self-contained HTML file |
//! | [`markdown`] | the report as Markdown, for a repository |

use std::time::Duration;

use brisk_link::LinkSpec;
use brisk_link::units::parse_duration;
use brisk_runtime::profile::{Profile, ProfileError};
use serde::Deserialize;
use thiserror::Error;

use brisk_sim::neighbours::MAX_FLOWS;
use brisk_sim::page::Page;

use crate::pages::synthetic::Recipe;
use crate::scenario::{Backend, Beside, Burst, Scenario};
use crate::sizes::Sizes;

pub mod builtin;
pub mod evaluation;
pub mod markdown;
pub mod metric;
pub mod page;
pub mod run;
pub mod store;

use metric::Metric;

/// Default number of transactions of each arm in a cell: margins of about 2 %, as in the papers.
const USUAL_N: u64 = 10_000;
/// Default number of transactions of each arm in a quick run.
const USUAL_QUICK_N: u64 = 1_000;
const MAX_EARLIER: u32 = 1_000;
/// Default bytes of a request: those of Gentle Aggression section 8.4.1.
const USUAL_REQUEST: u32 = 40;

/// An experiment.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The name of the plan: the file's name without `.toml`.
    #[serde(skip)]
    pub name: String,
    /// The title, one line.
    pub title: String,
    /// The place in the paper.
    pub source: String,
    /// Says what is measured, how it differs from the paper, and how to read the results.
    pub about: String,
    /// The claim that the overview shows.
    pub claim: Option<Claim>,
    /// Transactions of each arm in a cell.
    #[serde(default = "usual_n")]
    pub n: u64,
    /// Transactions of each arm in a cell, in a quick run.
    #[serde(default = "usual_quick_n")]
    pub quick_n: u64,
    /// Number of transactions of each arm behind the paper's results, 100 or more. It determines their error.
    pub paper_n: Option<u64>,
    /// The cells.
    #[serde(rename = "cell")]
    pub cells: Vec<Cell>,
}

/// The claim of the source in one sentence, and the results that test it.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The sentence.
    pub text: String,
    /// Cell, arm and metric of each result; the cell must have an expectation for it.
    pub figures: Vec<[String; 3]>,
}

/// A link, a workload and the arms that are compared on it.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    /// Name of the cell and of its directory: lower-case letters, digits, dots and dashes.
    pub name: String,
    /// The path, in the grammar of the command line.
    pub link: String,
    /// Bytes of each response, such as `30kB`; an alternative to `sizes`.
    pub flow: Option<String>,
    /// The sizes of the responses as points of bytes and cumulative share; an alternative to `flow`.
    pub sizes: Option<Vec<(f64, f64)>>,
    /// A page that is loaded instead of one response: created from a seed, unless the run supplies one with
    /// the same label.
    pub page: Option<Recipe>,
    /// Bytes of each request, 16 to 65,536.
    #[serde(default = "usual_request")]
    pub request: u32,
    /// True to begin on an open connection that has been idle for a second.
    #[serde(default)]
    pub established: bool,
    /// Number of earlier transactions on the open connection, one after the other: its window and its timeout
    /// depend on their losses. 0 to 1,000.
    #[serde(default)]
    pub earlier: u32,
    /// Alternative paths: settings, in the grammar of the command line, that are added to those of the link.
    /// Each transaction uses one of these paths.
    #[serde(default)]
    pub paths: Vec<String>,
    /// Time for which the server computes a response.
    pub think: Option<String>,
    /// The initial window of every arm, segments, 1 to 64, instead of the arm's own.
    pub initial_window: Option<u32>,
    /// Variation of the computations of a page between loads, percent.
    #[serde(default)]
    pub spread: u16,
    /// A second hop, over which the server fetches its responses.
    pub backend: Option<BackendText>,
    /// Plain bulk flows on the same link.
    pub beside: Option<BesideText>,
    /// Bursts with a minimum and a maximum number of packets, instead of connections.
    pub burst: Option<(u32, u32)>,
    /// True to draw the first transaction of each arm as a time-sequence diagram.
    #[serde(default)]
    pub draw: bool,
    /// The arms to compare; gains are relative to the first.
    pub arms: Vec<String>,
    /// The expectations.
    #[serde(default, rename = "expect")]
    pub expectations: Vec<Expectation>,
}

/// The hop behind the server, as written in a plan.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackendText {
    /// The path between the server and its backend.
    pub link: String,
    /// The TCP of that hop for each arm of the cell.
    pub arms: Vec<String>,
}

/// Plain flows in addition to those of the arm, as written in a plan.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BesideText {
    /// Plain bulk flows.
    pub plain: u32,
    /// Flows of the arm, or clients that fetch responses.
    pub others: u32,
    /// Duration.
    pub takes: String,
    /// Pause of a client before each response; `None`: bulk flows.
    pub pause: Option<String>,
}

/// Expected result of a cell.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// One of the cell's arms.
    pub arm: String,
    /// The quantity to measure.
    pub metric: Metric,
    /// The paper's result, if it has one.
    pub paper: Option<f64>,
    /// Range for brisk's result, ends included.
    pub range: [f64; 2],
    /// Reason for the range, and for a difference from the paper's result.
    #[serde(default)]
    pub why: String,
    /// The experiment that has tested the reason, with its result.
    #[serde(default)]
    pub checked: String,
}

/// Reason why a text is not a plan.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The text is not TOML, or does not have the structure of a plan.
    #[error("{plan}, line {line}: {what}")]
    Shape {
        /// Name of the plan.
        plan: String,
        /// Line number, from 1.
        line: usize,
        /// The error.
        what: String,
    },
    /// A cell is not valid.
    #[error("{plan}, cell '{cell}': {what}")]
    Cell {
        /// Name of the plan.
        plan: String,
        /// Name of the cell.
        cell: String,
        /// The error and the remedy.
        what: String,
    },
}

/// A cell whose texts have been parsed.
#[derive(Clone, Debug)]
pub struct Workload {
    /// The path.
    pub link: LinkSpec,
    /// Bytes of the responses.
    pub sizes: Sizes,
    /// The text of the sizes.
    pub sizes_text: String,
    /// The page, if one is loaded.
    pub page: Option<Page>,
    /// The surroundings of a transaction.
    pub scenario: Scenario,
    /// The variants to compare.
    pub arms: Vec<Profile>,
}

impl Plan {
    /// Parses a plan and all its texts.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn parse(name: &str, text: &str) -> Result<Plan, PlanError> {
        let mut plan: Plan = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start).min(text.len());
            let line = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
            PlanError::Shape { plan: name.to_owned(), line, what: error.message().replace('\n', "; ") }
        })?;
        plan.name = name.to_owned();
        let refused = |cell: &Cell, what: String| PlanError::Cell {
            plan: name.to_owned(),
            cell: cell.name.clone(),
            what,
        };
        if plan.paper_n.is_some_and(|n| !(100..=10_000_000).contains(&n)) {
            let what = "paper_n: use 100 to 10000000 transactions".to_owned();
            return Err(PlanError::Shape { plan: name.to_owned(), line: 1, what });
        }
        for (index, cell) in plan.cells.iter().enumerate() {
            cell.check().map_err(|what| refused(cell, what))?;
            if plan.cells[..index].iter().any(|other| other.name == cell.name) {
                return Err(refused(cell, "two cells have this name".to_owned()));
            }
        }
        Ok(plan)
    }
}

impl Cell {
    /// Parses the texts of the cell.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn workload(&self) -> Result<Workload, String> {
        let link = LinkSpec::parse(&self.link).map_err(|error| format!("link: {error}"))?;
        if link.needs_traces() {
            return Err("link: a plan contains its link; trace files are for the command line".to_owned());
        }
        let (sizes, sizes_text) = self.sizes()?;
        let page = self.page.as_ref().map(Recipe::page).transpose().map_err(|error| error.to_string())?;
        Ok(Workload {
            link,
            sizes,
            sizes_text,
            page,
            scenario: self.scenario()?,
            arms: self.arms(&self.arms)?,
        })
    }

    /// Returns the link and the bytes of a response, if contestants can run the cell in real time.
    ///
    /// # Errors
    /// Reason why they cannot.
    pub fn in_real_time(&self) -> Result<(LinkSpec, u64), String> {
        let Workload { link, sizes, page, scenario, .. } = self.workload()?;
        let only = |what: &str| Err(format!("{what} only in virtual time"));
        match sizes {
            _ if page.is_some() => only("a page (see `brisk lab browse`):"),
            _ if self.established => only("an open connection:"),
            _ if scenario != Scenario::default() => {
                only("several paths, a thinking server, a second hop, neighbours or bursts:")
            }
            Sizes::Fixed(bytes) => Ok((link, bytes)),
            _ => only("a distribution of sizes:"),
        }
    }

    /// Parses arms and gives them the cell's initial window.
    fn arms(&self, names: &[String]) -> Result<Vec<Profile>, String> {
        let arms = names.iter().map(|arm| Profile::parse(arm));
        let mut arms: Vec<Profile> =
            arms.collect::<Result<_, ProfileError>>().map_err(|error| error.to_string())?;
        if let Some(window) = self.initial_window {
            if !(1..=64).contains(&window) {
                return Err(format!("initial_window = {window}: use 1 to 64 segments"));
            }
            arms.iter_mut().for_each(|arm| arm.tcp.initial_window = window);
        }
        Ok(arms)
    }

    fn scenario(&self) -> Result<Scenario, String> {
        let path = |path: &String| {
            let whole = format!("{} {path}", self.link);
            LinkSpec::parse(&whole).map_err(|error| format!("paths: {error}"))
        };
        if self.spread > 100 {
            return Err(format!("spread = {}: use 0 to 100 percent", self.spread));
        }
        if self.earlier > MAX_EARLIER || self.earlier > 0 && !self.established {
            return Err(format!(
                "earlier = {}: use 0 to {MAX_EARLIER}, with established = true",
                self.earlier
            ));
        }
        if self.draw && (self.page.is_some() || self.beside.is_some() || self.burst.is_some()) {
            return Err("draw: only a transaction can be drawn".to_owned());
        }
        Ok(Scenario {
            paths: self.paths.iter().map(path).collect::<Result<_, String>>()?,
            think: self.think.as_deref().map_or(Ok(Duration::ZERO), |text| duration("think", text))?,
            earlier: self.earlier,
            spread: self.spread * 10,
            backend: self.backend.as_ref().map(|backend| self.backend(backend)).transpose()?,
            beside: self.beside.as_ref().map(beside).transpose()?,
            burst: self.burst.map(burst).transpose()?,
        })
    }

    fn backend(&self, text: &BackendText) -> Result<Backend, String> {
        if text.arms.len() != self.arms.len() {
            return Err(format!("backend: {} arms for the {} of the cell", text.arms.len(), self.arms.len()));
        }
        let link = LinkSpec::parse(&text.link).map_err(|error| format!("backend: link: {error}"))?;
        Ok(Backend { link, arms: self.arms(&text.arms)? })
    }

    fn sizes(&self) -> Result<(Sizes, String), String> {
        match (&self.flow, &self.sizes, &self.page) {
            (Some(flow), None, None) => {
                let bytes = brisk_link::units::parse_size(flow)
                    .map_err(|error| format!("flow = \"{flow}\": {error}"))?;
                Ok((Sizes::Fixed(bytes), flow.clone()))
            }
            (None, Some(points), None) => {
                let csv: String = points.iter().map(|(bytes, share)| format!("{bytes},{share}\n")).collect();
                let sizes = Sizes::parse_csv(&csv).map_err(|error| format!("sizes: {error}"))?;
                Ok((sizes, "a distribution of sizes".to_owned()))
            }
            (None, None, None) if self.burst.is_some() => Ok((Sizes::Fixed(0), "bursts".to_owned())),
            (None, None, None) if self.beside.as_ref().is_some_and(|beside| beside.pause.is_none()) => {
                Ok((Sizes::Fixed(0), "bulk".to_owned()))
            }
            (None, None, Some(page)) => Ok((Sizes::Fixed(page.bytes), format!("page {}", page.label))),
            _ => Err("give one of flow, sizes and page".to_owned()),
        }
    }

    /// Checks the values that need no parsing.
    fn check(&self) -> Result<(), String> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
        if self.name.is_empty() || self.name.starts_with('.') || !self.name.chars().all(plain) {
            return Err("a name consists of lower-case letters, digits, dots and dashes".to_owned());
        }
        if !(16..=65_536).contains(&self.request) {
            return Err(format!("request = {}: use 16 to 65536 bytes", self.request));
        }
        if self.arms.is_empty() {
            return Err("arms is empty: add profiles to compare".to_owned());
        }
        for expectation in &self.expectations {
            let Expectation { arm, metric, range: [low, high], .. } = expectation;
            if !self.arms.contains(arm) {
                return Err(format!("expect {metric} of '{arm}', which is not among its arms"));
            }
            if low.is_nan() || high.is_nan() || low > high {
                return Err(format!("expect {metric} of '{arm}': the range begins above its end"));
            }
        }
        self.workload().map(|_| ())
    }
}

fn duration(key: &str, text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| format!("{key} = \"{text}\": {error}"))
}

fn beside(text: &BesideText) -> Result<Beside, String> {
    let BesideText { plain, others, takes, pause } = text;
    if [*plain, *others].iter().any(|flows| !(1..=MAX_FLOWS).contains(flows)) {
        return Err(format!("beside: use 1 to {MAX_FLOWS} flows of each kind"));
    }
    let takes = duration("beside: takes", takes)?;
    if !(Duration::from_secs(1)..=Duration::from_secs(600)).contains(&takes) {
        return Err("beside: takes: use 1s to 600s".to_owned());
    }
    let pause = pause.as_deref().map(|text| duration("beside: pause", text)).transpose()?;
    Ok(Beside { plain: *plain, others: *others, takes, pause })
}

fn burst((min, max): (u32, u32)) -> Result<Burst, String> {
    if !(1..=max).contains(&min) || max > 64 {
        return Err(format!("burst = [{min}, {max}]: use 1 to 64 packets, the smaller number first"));
    }
    Ok(Burst { min, max })
}

fn usual_n() -> u64 {
    USUAL_N
}

fn usual_quick_n() -> u64 {
    USUAL_QUICK_N
}

fn usual_request() -> u32 {
    USUAL_REQUEST
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "title = \"t\"\nsource = \"s\"\nabout = \"a\"\n";

    fn error(cells: &str) -> String {
        Plan::parse("p", &format!("{HEAD}{cells}")).unwrap_err().to_string()
    }

    #[test]
    fn a_plan_is_read_with_its_defaults() {
        let text = format!(
            "{HEAD}[[cell]]\nname = \"random\"\nlink = \"--rtt 200ms --loss 2%\"\nflow = \"5kB\"\narms = [\"tcp\", \"tcp+tfo\"]\n\
             [[cell.expect]]\narm = \"tcp+tfo\"\nmetric = \"gain.p50\"\npaper = -50\nrange = [-51, -49]\n"
        );
        let plan = Plan::parse("p", &text).unwrap();
        assert_eq!((plan.name.as_str(), plan.n, plan.quick_n), ("p", 10_000, 1_000));
        let workload = plan.cells[0].workload().unwrap();
        assert_eq!((workload.sizes, workload.arms.len()), (Sizes::Fixed(5_000), 2));
    }

    #[test]
    fn error_in_a_plan_names_its_line_or_cell() {
        assert_eq!(
            error("[[cell]]\nname = \"x\"\nlimk = \"\"\n"),
            "p, line 6: unknown field `limk`, expected one of `name`, `link`, `flow`, `sizes`, `page`, `request`, `established`, `earlier`, `paths`, `think`, `initial_window`, `spread`, `backend`, `beside`, `burst`, `draw`, `arms`, `expect`"
        );
        let cell = |rest: &str| error(&format!("[[cell]]\nname = \"x\"\narms = [\"tcp\"]\n{rest}"));
        assert!(cell("link = \"--rtt never\"\nflow = \"5kB\"\n").starts_with("p, cell 'x': link: "));
        assert_eq!(cell("link = \"\"\n"), "p, cell 'x': give one of flow, sizes and page");
        let expect = "link = \"\"\nflow = \"5kB\"\n[[cell.expect]]\nmetric = \"wire\"\n";
        assert_eq!(
            cell(&format!("{expect}arm = \"all\"\nrange = [1, 2]\n")),
            "p, cell 'x': expect wire of 'all', which is not among its arms"
        );
        assert!(cell(&format!("{expect}arm = \"tcp\"\nrange = [2, 1]\n")).ends_with("begins above its end"));
        let flow = "link = \"\"\nflow = \"5kB\"\n";
        for (wrong, said) in [
            ("paths = [\"--rtt x\"]", "paths: "),
            ("think = \"soon\"", "think = \"soon\""),
            ("initial_window = 0", "use 1 to 64 segments"),
            ("spread = 101", "use 0 to 100 percent"),
            ("earlier = 3", "with established = true"),
            ("established = true\nearlier = 1001", "use 0 to 1000"),
            ("burst = [3, 2]", "the smaller number first"),
            ("beside = { plain = 0, others = 1, takes = \"5s\" }", "use 1 to 100 flows"),
            ("backend = { link = \"\", arms = [] }", "backend: 0 arms for the 1 of the cell"),
        ] {
            let said_of = cell(&format!("{flow}{wrong}\n"));
            assert!(said_of.contains(said), "{wrong}: {said_of}");
        }
        for (wrong, said) in [
            ("name = \"X y\"\nlink = \"\"\nflow = \"5kB\"\narms = [\"tcp\"]", "lower-case letters"),
            ("name = \"x\"\nlink = \"\"\nflow = \"5kB\"\narms = []", "arms is empty"),
            ("name = \"x\"\nlink = \"\"\nflow = \"5kB\"\narms = [\"tcp\", \"fast\"]", "fast"),
            ("name = \"x\"\nlink = \"\"\nflow = \"5 apples\"\narms = [\"tcp\"]", "flow = \"5 apples\""),
            (
                "name = \"x\"\nlink = \"\"\nflow = \"5kB\"\nsizes = [[1, 1.0]]\narms = [\"tcp\"]",
                "give one of",
            ),
            ("name = \"x\"\nlink = \"--loss trace:f\"\nflow = \"5kB\"\narms = [\"tcp\"]", "link: "),
            (
                "name = \"x\"\nlink = \"\"\nflow = \"5kB\"\nrequest = 15\narms = [\"tcp\"]",
                "use 16 to 65536 bytes",
            ),
            ("name = \"x\"\nlink = \"\"\nflow = \"5kB\"\narms = \"tcp\"", "p, line 8: "),
        ] {
            let said_of = error(&format!("[[cell]]\n{wrong}\n"));
            assert!(said_of.contains(said) && !said_of.contains('\n'), "{wrong}: {said_of}");
        }
        let metric = "arm = \"tcp\"\nmetric = \"median\"\nrange = [1, 2]\n";
        assert!(cell(&format!("{flow}[[cell.expect]]\n{metric}")).contains("median"));
        let twice = "[[cell]]\nname = \"x\"\nlink = \"\"\nflow = \"1kB\"\narms = [\"tcp\"]\n".repeat(2);
        assert_eq!(error(&twice), "p, cell 'x': two cells have this name");
    }
}
