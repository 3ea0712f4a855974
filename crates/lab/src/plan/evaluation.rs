//! Compares results with expectations: the paper's result, brisk's result with its confidence interval, and
//! whether it is in the expected range.

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::compare::{ArmReport, Report};
use crate::plan::metric::Metric;
use crate::plan::run::{RunError, comparison};
use crate::plan::store::Store;
use crate::plan::{Cell, Claim, Expectation, Plan};
use crate::real::report::RealReport;
use crate::row::Row;
use crate::statistics::{Interval, Sample, below, bootstrap};
use crate::text_table;

const RESAMPLES: usize = 300;

/// The result of a plan.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlanReport {
    /// Name of the plan.
    pub plan: String,
    /// The title, one line.
    pub title: String,
    /// The place in the paper.
    pub source: String,
    /// How to read the results.
    pub about: String,
    /// The claim that the overview shows.
    #[serde(skip)]
    pub claim: Option<Claim>,
    /// The cells.
    pub cells: Vec<CellReport>,
}

/// The result of a cell. In JSON, the keys of `whatif --json` are next to those of the plan.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CellReport {
    /// Name of the plan.
    pub plan: String,
    /// Name of the cell.
    pub cell: String,
    /// Link, workload, seed and arms.
    #[serde(flatten)]
    pub report: Report,
    /// Expectations and results.
    pub expected: Vec<Finding>,
    /// Results of contestants in real time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub real: Option<RealReport>,
    /// Completion times of each arm in ms, for plots.
    #[serde(skip)]
    pub times: Vec<Vec<f64>>,
    /// A diagram of the first transaction of each arm, SVG; empty unless the plan requests it.
    #[serde(skip)]
    pub drawings: Vec<String>,
}

/// An expectation with its result.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Finding {
    /// The arm.
    pub arm: String,
    /// The quantity to measure.
    pub metric: String,
    /// Its unit.
    pub unit: &'static str,
    /// The paper's result.
    pub paper: Option<f64>,
    /// Brisk's result; null if no transaction completed.
    pub brisk: f64,
    /// The kernel's result in real time, if the cell was run in real time and the kernel has such an arm.
    pub kernel: Option<f64>,
    /// The arm's result in real time.
    pub real: Option<f64>,
    /// The 95 % confidence interval.
    pub ci95: Interval,
    /// The interval in which the paper's result would lie in 95 % of cases if the paper had measured this
    /// system, with its own sample size. `None` if that size is unknown or the paper has no result.
    pub chance: Option<Interval>,
    /// The expected range.
    pub range: [f64; 2],
    /// Whether brisk's result is in the range.
    pub verdict: Verdict,
    /// Reason for the range, and for a difference from the paper's result.
    pub why: String,
    /// The experiment that tested the reason; empty if there is none.
    pub checked: String,
}

/// Whether a result is in the expected range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The result is in the range.
    Within,
    /// The result is outside, but chance can explain it: its confidence interval, or that of a sample as
    /// large as the paper's, extends into the range.
    Unsure,
    /// The result is outside, and chance does not explain it.
    Outside,
}

/// Compares the stored results of a plan with its expectations. A cell without complete results is omitted,
/// unless it was run in real time.
///
/// # Errors
/// [`RunError`] if the store cannot be read or the plan is not valid.
pub fn evaluate(plan: &Plan, store: &Store) -> Result<PlanReport, RunError> {
    let mut cells = Vec::new();
    for cell in &plan.cells {
        let (arms, real) = (store.read(cell)?, store.real(cell)?);
        if arms.is_some() || real.is_some() {
            cells.push(evaluate_cell(plan, cell, store, &arms.unwrap_or_default(), real)?);
        }
    }
    let Plan { name, title, source, about, claim, .. } = plan.clone();
    Ok(PlanReport { plan: name, title, source, about, claim, cells })
}

fn evaluate_cell(
    plan: &Plan,
    cell: &Cell,
    store: &Store,
    arms: &[Vec<Row>],
    real: Option<RealReport>,
) -> Result<CellReport, RunError> {
    // The report describes the original cell, even if a recorded page replaced a synthetic one.
    let mut comparison = comparison(plan, cell, &store.id, &[])?;
    comparison.arms.truncate(arms.len());
    let report = Report::of(&comparison, |index, arm| ArmReport::of_rows(&comparison, arm, &arms[index]));
    let rtt_us = comparison.link.base_rtt().as_micros() as f64;
    let expectations = cell.expectations.iter().filter(|_| !arms.is_empty());
    let expected = expectations.map(|expectation| {
        let index = cell.arms.iter().position(|arm| *arm == expectation.arm).unwrap_or_default();
        let rows = Rows { arm: &arms[index], base: &arms[0], rtt_us };
        let found = find(expectation, rows, plan.paper_n, store.id.seed);
        found.with_real_time(expectation.metric, &cell.arms, real.as_ref())
    });
    let times = arms.iter().map(|rows| rows.iter().filter_map(|row| row.completion_us));
    Ok(CellReport {
        plan: plan.name.clone(),
        cell: cell.name.clone(),
        report,
        expected: expected.collect(),
        real: real.clone(),
        times: times.map(|times| times.map(|us| us as f64 / 1000.0).collect()).collect(),
        drawings: store.drawings(cell),
    })
}

/// The transactions from which a result is computed.
#[derive(Clone, Copy)]
struct Rows<'a> {
    arm: &'a [Row],
    base: &'a [Row],
    /// Round-trip time of the empty path, microseconds.
    rtt_us: f64,
}

fn find(expectation: &Expectation, rows: Rows<'_>, paper_n: Option<u64>, seed: u64) -> Finding {
    let Expectation { arm: name, metric, paper, range, why, checked } = expectation;
    let all: Vec<usize> = (0..rows.arm.len()).collect();
    let brisk = rounded(metric.value(rows.arm, rows.base, rows.rtt_us, &all));
    let ci95 = interval(*metric, rows.arm, rows.base, rows.rtt_us, seed);
    let chance = paper.and(paper_n).map(|n| chance(*metric, rows, n as usize, seed));
    // Either interval alone may extend into the range; the second one includes both errors.
    let widest = chance.map_or(ci95, |[low, high]| [low.min(ci95[0]), high.max(ci95[1])]);
    Finding {
        arm: name.clone(),
        metric: metric.to_string(),
        unit: metric.unit(),
        paper: *paper,
        brisk,
        kernel: None,
        real: None,
        ci95,
        chance,
        range: *range,
        verdict: verdict(brisk, widest, *range),
        why: why.clone(),
        checked: checked.clone(),
    }
}

/// Returns the interval of a result. If the result is a statistic of one value per transaction, its interval
/// has a closed form. For other results the bootstrap resamples transactions. It draws a transaction in an
/// arm and in the first arm together, because both had the same losses.
pub(crate) fn interval(metric: Metric, arm: &[Row], base: &[Row], rtt_us: f64, seed: u64) -> Interval {
    let n = arm.len().min(base.len());
    let all: Vec<usize> = (0..n).collect();
    let found = match metric.values((arm, &all), rtt_us) {
        Some((values, statistic, unit)) => Sample::new(values).interval(statistic).map(|end| end / unit),
        None => bootstrap(&brisk_link::seeds::rng(seed, "judge"), RESAMPLES, n, |rng| {
            let drawn: Vec<usize> = (0..n).map(|_| below(n, rng)).collect();
            metric.value(arm, base, rtt_us, &drawn)
        }),
    };
    found.map(rounded)
}

/// Returns the interval of the result that another measurement of `n` transactions of each arm would have.
/// Each resample has two steps: it resamples brisk's transactions, because brisk's result has an error too,
/// and draws `n` of them. The arms are resampled separately, because those of the other measurement did not
/// have the same losses.
fn chance(metric: Metric, Rows { arm, base, rtt_us }: Rows<'_>, n: usize, seed: u64) -> Interval {
    let rng = brisk_link::seeds::rng(seed, "chance");
    let found = bootstrap(&rng, RESAMPLES, arm.len() + n + base.len() + n, |rng| {
        let mut drawn = |of: &[Row]| {
            let ours: Vec<usize> = (0..of.len()).map(|_| below(of.len(), rng)).collect();
            (0..n).map(|_| ours[below(ours.len(), rng)]).collect::<Vec<usize>>()
        };
        let (of_arm, of_base) = (drawn(arm), drawn(base));
        metric.value_of((arm, &of_arm), (base, &of_base), rtt_us)
    });
    found.map(rounded)
}

fn verdict(value: f64, [low, high]: Interval, [from, to]: [f64; 2]) -> Verdict {
    if (from..=to).contains(&value) {
        Verdict::Within
    } else if low <= to && high >= from {
        Verdict::Unsure
    } else {
        Verdict::Outside
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

impl PlanReport {
    /// Returns the results that belong to the claim, each with the paper's.
    pub fn answers(&self) -> Vec<String> {
        let figures = self.claim.iter().flat_map(|claim| &claim.figures);
        let found = figures.filter_map(|[cell, arm, metric]| {
            let mut cells = self.cells.iter().filter(|it| it.cell == *cell);
            let is_figure = |it: &&Finding| it.arm == *arm && it.metric == *metric;
            let finding = cells.find_map(|cell| cell.expected.iter().find(is_figure))?;
            let paper = finding.paper.map(|paper| format!(" (paper {})", short(paper))).unwrap_or_default();
            let ours = format!("{} {}", short(finding.brisk), finding.unit);
            Some(format!("{cell}, {arm}, {metric}: {}{paper}", ours.trim_end()))
        });
        found.collect()
    }

    /// Returns the number of results with each verdict.
    pub fn verdict(&self) -> String {
        let count = |verdict| self.findings().filter(|finding| finding.verdict == verdict).count();
        let verdicts = [Verdict::Within, Verdict::Unsure, Verdict::Outside];
        let counted = verdicts.map(|verdict| (count(verdict), verdict.sign()));
        let counted = counted.iter().filter(|(count, _)| *count > 0);
        counted.map(|(count, sign)| format!("{count} {sign}")).collect::<Vec<_>>().join(", ")
    }

    /// Formats the plan for a terminal of 80 columns.
    pub fn to_text(&self) -> String {
        let mut text = format!("{}: {}\n", self.plan, self.title);
        let mut table = Table::new();
        table
            .load_preset(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(80);
        table.set_header(["cell", "arm", "figure", "paper", "brisk", "95 %", "expected", ""]);
        for cell in &self.cells {
            table.add_rows(cell.expected.iter().map(|finding| finding.row(&cell.cell)));
        }
        for line in text_table::lines(table, 3..7).lines() {
            text.push_str(&format!("  {line}\n"));
        }
        text
    }

    /// Returns the number of results outside their range.
    pub fn outside(&self) -> usize {
        self.findings().filter(|finding| finding.verdict == Verdict::Outside).count()
    }

    /// Returns all results.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.cells.iter().flat_map(|cell| &cell.expected)
    }
}

impl Finding {
    /// True if the result is outside its range and no experiment has tested the reason.
    pub fn is_unexplained(&self) -> bool {
        self.verdict == Verdict::Outside && self.checked.is_empty()
    }

    /// Adds the results of the kernel and of brisk in real time.
    fn with_real_time(self, metric: Metric, arms: &[String], real: Option<&RealReport>) -> Finding {
        let first = arms.first().map_or("", String::as_str);
        let of = |name: fn(&str) -> Option<String>| {
            real.and_then(|real| real.value(metric, &name(&self.arm)?, &name(first)?)).map(rounded)
        };
        let kernel = of(|arm| Some(format!("kernel {}", kernel_like(arm)?)));
        let real = of(|arm| Some(format!("brisk {arm}")));
        Finding { kernel, real, ..self }
    }

    fn row(&self, cell: &str) -> [String; 8] {
        let Finding { arm, metric, paper, brisk, ci95: [low, high], range: [from, to], .. } = self;
        [
            cell.to_owned(),
            arm.clone(),
            metric.clone(),
            paper.map_or("-".to_owned(), short),
            format!("{} {}", short(*brisk), self.unit).trim_end().to_owned(),
            format!("{}..{}", short(*low), short(*high)),
            format!("{}..{}", short(*from), short(*to)),
            self.verdict.sign().to_owned(),
        ]
    }
}

/// Returns the kernel's equivalent of an arm.
fn kernel_like(arm: &str) -> Option<&'static str> {
    match arm {
        "tcp" => Some("cubic"),
        "tcp+tfo" => Some("cubic+tfo"),
        _ => None,
    }
}

impl Verdict {
    /// Returns one word for a table.
    pub fn sign(self) -> &'static str {
        match self {
            Verdict::Within => "ok",
            Verdict::Unsure => "unsure",
            Verdict::Outside => "OUTSIDE",
        }
    }
}

/// Formats a result; larger ones have fewer decimals.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        _ if value.is_nan() => "-".to_owned(),
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_may_explain_a_figure_just_outside() {
        assert_eq!(verdict(5.0, [4.0, 6.0], [5.0, 7.0]), Verdict::Within);
        assert_eq!(verdict(4.9, [4.0, 6.0], [5.0, 7.0]), Verdict::Unsure);
        assert_eq!(verdict(4.0, [3.0, 4.9], [5.0, 7.0]), Verdict::Outside);
        assert_eq!(verdict(f64::NAN, [f64::NAN; 2], [5.0, 7.0]), Verdict::Outside);
    }

    #[test]
    fn figure_of_a_small_sample_may_differ_much_by_chance() {
        // One transaction in fourteen takes twice as long. In a small sample, chance determines whether the
        // 90th percentile does.
        let row = |i: u64| Row {
            completion_us: Some(if i.is_multiple_of(14) { 400 } else { 200 }),
            ..Row::default()
        };
        let ours: Vec<Row> = (0..2_800).map(row).collect();
        let rows = Rows { arm: &ours, base: &ours, rtt_us: 1.0 };
        let of = |text: &str, n| chance(text.parse().unwrap(), rows, n, 1);
        assert_eq!(of("ms.p90", 200), [0.2, 0.4]);
        assert_eq!(of("ms.p90", 4_000), [0.2, 0.2], "but not for many");
        let [low, high] = of("gain.mean", 4_000);
        assert!(low < -0.3 && low > -4.0 && high > 0.3 && high < 4.0, "{low} {high}");
        let text = "arm = 'tcp'\nmetric = 'ms.p90'\npaper = 0.4\nrange = [0.38, 0.42]\n";
        let expectation: Expectation = toml::from_str(text).unwrap();
        let verdict = |n| find(&expectation, rows, n, 1).verdict;
        assert_eq!(verdict(None), Verdict::Outside);
        assert_eq!(verdict(Some(200)), Verdict::Unsure);
        assert_eq!(verdict(Some(4_000)), Verdict::Outside);
    }

    #[test]
    fn change_of_one_percent_leaves_a_range_of_half_a_percent() {
        let rows = |us: u64| vec![Row { completion_us: Some(us), ..Row::default() }; 200];
        let base = rows(100_000);
        let verdict = |arm: &[Row], text: &str| {
            let expectation: Expectation = toml::from_str(&format!("arm = 'tcp'\n{text}\n")).unwrap();
            let finding = find(&expectation, Rows { arm, base: &base, rtt_us: 50_000.0 }, Some(200), 1);
            (finding.brisk, finding.verdict)
        };
        for (range, figure) in [
            ("metric = 'ms.p50'\npaper = 80\nrange = [79.6, 80.4]", [80.0, 80.8, 79.2]),
            ("metric = 'rtts.p99'\npaper = 1.6\nrange = [1.592, 1.608]", [1.6, 1.616, 1.584]),
            ("metric = 'gain.mean'\npaper = -20\nrange = [-20.1, -19.9]", [-20.0, -19.2, -20.8]),
        ] {
            assert_eq!(verdict(&rows(80_000), range), (figure[0], Verdict::Within), "{range}");
            assert_eq!(verdict(&rows(80_800), range), (figure[1], Verdict::Outside), "{range}");
            assert_eq!(verdict(&rows(79_200), range), (figure[2], Verdict::Outside), "{range}");
        }
    }

    #[test]
    fn interval_of_a_gain_resamples_pairs() {
        // Every transaction is 10 % faster, although transactions differ widely.
        let row = |us: u64| Row { completion_us: Some(us), ..Row::default() };
        let base: Vec<Row> = (1..=500).map(|i| row(i * i * 10)).collect();
        let arm: Vec<Row> = (1..=500).map(|i| row(i * i * 9)).collect();
        let metric: Metric = "gain.mean".parse().unwrap();
        let [low, high] = interval(metric, &arm, &base, 1.0, 1);
        assert!((low + 10.0).abs() < 0.01 && (high + 10.0).abs() < 0.01, "{low} {high}");
    }
}
