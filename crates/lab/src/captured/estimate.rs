//! Expected gain of each mechanism for a workload, its confidence, and a recommendation.
//!
//! Each pair of arms runs with the estimated loss rate and with both ends of its interval. The interval of a
//! gain covers the three bootstrap intervals, so it includes the uncertainty of the capture and of the
//! simulation.

use std::sync::atomic::AtomicBool;

use brisk_link::LinkSpec;
use brisk_runtime::profile::Profile;
use brisk_sim::transaction::TransactionError;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::captured::traffic::Group;
use crate::compare::{Comparison, transactions};
use crate::plan::evaluation::{interval, short};
use crate::plan::metric::Metric;
use crate::row::Row;
use crate::scenario::Scenario;
use crate::statistics::{Interval, Statistic};
use crate::text_table;

/// Mechanisms: name, arm without it, arm with it, and true if a user can switch it on. The kernel's Fast Open
/// stores the cookie but not the round-trip time, so a lost SYN costs a second, as without Fast Open. Brisk's
/// also stores the round-trip time of earlier connections, and sends a plain SYN soon after an unanswered
/// one.
const MECHANISMS: [(&str, &str, &str, bool); 6] = [
    ("Reactive", "reactive=off", "tcp", false),
    ("Fast Open alone", "tcp", "tcp+tfo,memory=off", false),
    ("Fast Open", "tcp", "tcp+tfo", true),
    ("Corrective", "tcp", "corrective", true),
    ("Proactive", "tcp", "proactive", true),
    ("all, planned", "tcp", "all", true),
];

/// A group of exchanges, with its link for the estimated, the lowest and the highest likely loss rate.
#[derive(Clone, Debug)]
pub struct Part {
    /// The exchanges.
    pub group: Group,
    /// Links for the estimate, the lower end and the upper end.
    pub links: [LinkSpec; 3],
}

/// Parameters of an estimate.
#[derive(Clone, Debug)]
pub struct Estimation {
    /// The workload.
    pub parts: Vec<Part>,
    /// Number of exchanges for each arm and each of the three losses.
    pub n: u64,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Maximum redundancy, percent of the bytes.
    pub max_overhead: u32,
}

/// Simulated gains of each mechanism for captured traffic.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Estimate {
    /// Number of exchanges simulated for each arm and each of the three losses.
    pub n: u64,
    /// Seed of all random numbers.
    pub seed: u64,
    /// One gain per mechanism.
    pub gains: Vec<Gain>,
    /// Limit of the additional bytes for the recommendation, percent.
    pub max_overhead: u32,
    /// The recommended arm; null if no arm is certain to help.
    pub recommended: Option<String>,
}

/// The change that a mechanism causes. Negative is faster.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Gain {
    /// Name of the mechanism.
    pub mechanism: &'static str,
    /// The arm without the mechanism.
    pub without: &'static str,
    /// The arm with the mechanism.
    pub with: &'static str,
    /// Mean completion time without and with the mechanism, ms.
    pub mean_ms: [f64; 2],
    /// Change of the mean, percent.
    pub mean: f64,
    /// 95 % interval of `mean`.
    pub mean_ci95: Interval,
    /// Change of the 99th percentile, percent.
    pub p99: f64,
    /// 95 % interval of `p99`.
    pub p99_ci95: Interval,
    /// Change of the bytes on the wire, in both directions, percent.
    pub bytes: f64,
}

impl Estimation {
    /// Returns the number of transactions to simulate.
    pub fn transactions(&self) -> u64 {
        3 * arms(self.max_overhead).len() as u64 * self.parts.iter().map(|part| self.share(part)).sum::<u64>()
    }

    /// Runs the simulation. Calls `progress` with the number of completed transactions. Returns `None` once
    /// `stop` is set.
    ///
    /// # Errors
    /// The reason why a transaction cannot be simulated.
    pub fn run(
        &self,
        progress: &(dyn Fn(u64) + Sync),
        stop: &AtomicBool,
    ) -> Result<Option<Estimate>, TransactionError> {
        let arms = arms(self.max_overhead);
        let mut cases = Vec::new();
        for case in 0..3 {
            cases.push(self.rows(&arms, case, progress, stop)?);
        }
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            return Ok(None);
        }
        let of = |name: &str| arms.iter().position(|arm| arm.name == name).unwrap_or_default();
        let gains = MECHANISMS.iter().map(|(mechanism, without, with, _)| {
            let pairs = cases.iter().map(|rows| (&rows[of(without)][..], &rows[of(with)][..]));
            gain(mechanism, without, with, &pairs.collect::<Vec<_>>(), self.seed)
        });
        let gains: Vec<Gain> = gains.collect();
        let recommended = recommended(&gains, self.max_overhead);
        let Estimation { n, seed, max_overhead, .. } = *self;
        Ok(Some(Estimate { n, seed, gains, max_overhead, recommended }))
    }

    fn share(&self, part: &Part) -> u64 {
        ((self.n as f64 * part.group.share).round() as u64).max(1)
    }

    /// Runs the exchanges of all groups, for each arm, in the same order.
    fn rows(
        &self,
        arms: &[Profile],
        case: usize,
        progress: &(dyn Fn(u64) + Sync),
        stop: &AtomicBool,
    ) -> Result<Vec<Vec<Row>>, TransactionError> {
        let mut all = vec![Vec::new(); arms.len()];
        for (number, part) in self.parts.iter().enumerate() {
            let comparison = Comparison {
                link: part.links[case].clone(),
                request: part.group.request,
                sizes: part.group.sizes.clone(),
                sizes_text: String::new(),
                page: None,
                scenario: Scenario::default(),
                n: self.share(part),
                established: !part.group.fresh,
                seed: self.seed.wrapping_add(number as u64),
                arms: arms.to_vec(),
            };
            let results = transactions(&comparison, &|_| true, progress, stop)?;
            for (rows, results) in all.iter_mut().zip(results) {
                rows.extend(results.iter().map(|(index, result)| Row::of(*index, result)));
            }
        }
        Ok(all)
    }
}

/// Returns every arm of the mechanisms, once.
fn arms(max_overhead: u32) -> Vec<Profile> {
    let mut names: Vec<&str> = Vec::new();
    for name in MECHANISMS.iter().flat_map(|(_, without, with, _)| [*without, *with]) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut arms: Vec<Profile> = names.into_iter().filter_map(|name| Profile::parse(name).ok()).collect();
    arms.iter_mut().for_each(|arm| arm.allow(max_overhead));
    arms
}

fn gain(
    mechanism: &'static str,
    without: &'static str,
    with: &'static str,
    cases: &[(&[Row], &[Row])],
    seed: u64,
) -> Gain {
    let (base, arm) = cases[0];
    let all: Vec<usize> = (0..arm.len().min(base.len())).collect();
    let value = |metric: Metric| rounded(metric.value(arm, base, 1.0, &all));
    let hull = |metric: Metric| {
        let intervals = cases.iter().map(|(base, arm)| interval(metric, arm, base, 1.0, seed));
        intervals
            .fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], [from, to]| [low.min(from), high.max(to)])
    };
    let (mean, p99) = (Metric::Gain(Statistic::Mean), Metric::Gain(Statistic::Quantile(0.99)));
    let bytes = |rows: &[Row]| rows.iter().map(|row| row.wire_up + row.wire_down).sum::<u64>() as f64;
    let time = |rows| rounded(Metric::Ms(Statistic::Mean).value(rows, rows, 1.0, &all));
    Gain {
        mechanism,
        without,
        with,
        mean_ms: [time(base), time(arm)],
        mean: value(mean),
        mean_ci95: hull(mean),
        p99: value(p99),
        p99_ci95: hull(p99),
        bytes: rounded(100.0 * (bytes(arm) / bytes(base) - 1.0)),
    }
}

/// Returns the arm with the largest gain, of those whose gain is certain and whose additional bytes are
/// within the limit.
fn recommended(gains: &[Gain], max_overhead: u32) -> Option<String> {
    let to_switch_on = |gain: &&Gain| {
        let listed = MECHANISMS.iter().any(|(name, _, _, on)| *on && *name == gain.mechanism);
        listed && gain.bytes <= f64::from(max_overhead) && gain.mean_ci95[1] < 0.0
    };
    let best = gains.iter().filter(to_switch_on).min_by(|a, b| a.mean.total_cmp(&b.mean))?;
    Some(best.with.to_owned())
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

impl Estimate {
    /// Formats the estimate for a terminal of 80 columns.
    pub fn to_text(&self) -> String {
        let mut table = Table::new();
        table
            .load_preset(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(80);
        table.set_header(["mechanism", "without -> with", "mean ms", "mean", "p99", "bytes"]);
        let with_interval = |value: f64, [low, high]: Interval| {
            format!("{} %\n{}..{}", short(value), short(low), short(high))
        };
        for gain in &self.gains {
            table.add_row([
                gain.mechanism.to_owned(),
                format!("{} -> {}", gain.without, gain.with),
                format!("{:.0} -> {:.0}", gain.mean_ms[0], gain.mean_ms[1]),
                with_interval(gain.mean, gain.mean_ci95),
                with_interval(gain.p99, gain.p99_ci95),
                format!("{:+.1} %", gain.bytes),
            ]);
        }
        let mut text = text_table::lines(table, 2..);
        text += "\nChange of the completion time, negative is faster; below it the 95 % interval,\n";
        text += "which includes the uncertainty of the loss rate.\n\n";
        text + &match &self.recommended {
            Some(arm) => {
                format!("Recommended with at most {} % more bytes: --mechanisms {arm}\n", self.max_overhead)
            }
            None => {
                format!("With at most {} % more bytes no mechanism certainly helps.\n", self.max_overhead)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizes::Sizes;

    fn estimate(losses: [&str; 3], max_overhead: u32) -> Estimate {
        let group = Group {
            round_trip_us: 50_000,
            fresh: true,
            sizes: Sizes::Fixed(10_000),
            request: 100,
            share: 1.0,
        };
        let links = losses.map(|loss| LinkSpec::parse(&format!("--rtt 50ms --loss {loss}")).unwrap());
        let estimation = Estimation { parts: vec![Part { group, links }], n: 60, seed: 3, max_overhead };
        assert_eq!(estimation.transactions(), 3 * 7 * 60);
        estimation.run(&|_| {}, &AtomicBool::new(false)).unwrap().unwrap()
    }

    #[test]
    fn without_loss_fast_open_saves_half_and_is_recommended() {
        let estimate = estimate(["none", "none", "0.1%"], 5);
        for tfo in &estimate.gains[1..3] {
            assert!((tfo.mean + 50.0).abs() < 2.0, "{tfo:?}");
            assert!(tfo.mean_ci95[0] <= tfo.mean && tfo.mean <= tfo.mean_ci95[1], "{tfo:?}");
        }
        assert_eq!(estimate.gains[0].mean, 0.0, "{:?}", estimate.gains[0]);
        assert!(estimate.recommended.is_some());
        assert!(estimate.to_text().lines().all(|line| line.chars().count() <= 80), "{}", estimate.to_text());
    }

    #[test]
    fn uncertain_loss_widens_the_interval() {
        let unsure = estimate(["none", "none", "20%"], 5);
        let [low, high] = unsure.gains[1].mean_ci95;
        // Without loss the gain is exactly half. With loss, timeouts add to both times.
        assert!((unsure.gains[1].mean + 50.0).abs() < 0.5 && high - low > 5.0, "{:?}", unsure.gains[1]);
    }

    #[test]
    fn lost_syn_costs_a_second_only_on_an_unknown_path() {
        let estimate = estimate(["up:list:1"; 3], 5);
        let [_, alone, known, ..] = &estimate.gains[..] else { panic!("{:?}", estimate.gains) };
        assert!(alone.mean_ms.iter().all(|ms| *ms > 1_000.0), "{alone:?}");
        assert!(known.mean_ms[1] < 200.0, "{known:?}");
    }

    #[test]
    fn profile_that_costs_too_much_is_not_recommended() {
        let gain = |mechanism, with, mean: f64, bytes| Gain {
            mechanism,
            without: "tcp",
            with,
            mean_ms: [1.0, 1.0],
            mean,
            mean_ci95: [mean - 1.0, mean + 1.0],
            p99: 0.0,
            p99_ci95: [0.0, 0.0],
            bytes,
        };
        let gains = [
            gain("Reactive", "tcp", -90.0, 0.0),
            gain("Proactive", "proactive", -60.0, 100.0),
            gain("Fast Open", "tcp+tfo", -30.0, 1.0),
            gain("Corrective", "corrective", -0.5, 1.0),
        ];
        assert_eq!(recommended(&gains, 5).as_deref(), Some("tcp+tfo"));
        assert_eq!(recommended(&gains, 200).as_deref(), Some("proactive"));
        assert_eq!(recommended(&gains[3..], 5), None);
    }
}
