//! Many short transfers over one link, once for each arm: the effect of each mechanism.
//!
//! Transaction `i` has the same seed in every arm, and so the same size and the same random numbers of the
//! link. So the arms are compared on the same losses, and the result depends on the seed but not on the
//! number of cores.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use brisk_link::LinkSpec;
use brisk_runtime::profile::Profile;
use brisk_sim::page::Page;
use brisk_sim::transaction::{TransactionError, TransactionResult};
use brisk_sim::world::Arena;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::row::Row;
use crate::scenario::Scenario;
use crate::sizes::Sizes;
use crate::statistics::{Interval, Sample, Statistic};

mod table;
pub mod transaction;

use transaction::KnowledgeOfArms;

/// Parameters of a comparison.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The path.
    pub link: LinkSpec,
    /// Bytes of each request. Default 100, about the minimum of a web request.
    pub request: u32,
    /// Bytes of the responses.
    pub sizes: Sizes,
    /// The sizes as the user wrote them, for the report.
    pub sizes_text: String,
    /// A page that each transaction loads, instead of one response. Default `None`.
    pub page: Option<Page>,
    /// The surroundings of a transaction: its other paths and flows. Default: none.
    pub scenario: Scenario,
    /// Number of transactions of each arm.
    pub n: u64,
    /// True if transactions begin on an open connection, so that the handshake does not count.
    pub established: bool,
    /// Seed of all random numbers.
    pub seed: u64,
    /// The variants to compare.
    pub arms: Vec<Profile>,
}

/// Returns the default profiles to compare.
pub fn default_arms() -> Vec<Profile> {
    let names = ["tcp", "tcp+tfo", "reactive", "corrective", "proactive", "all"];
    names.into_iter().filter_map(|name| Profile::parse(name).ok()).collect()
}

pub(crate) type Numbered = (u64, TransactionResult);

/// Maximum number of transactions that a core takes at a time. It is enough to profit from an [`Arena`].
const CHUNK: u64 = 32;
/// Minimum number of chunks per core. So at the end no core waits for long.
const MIN_CHUNKS_PER_CORE: u64 = 16;

/// The result of a comparison, in the format of `whatif --json`.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The path.
    pub link: LinkReport,
    /// The transfer.
    pub workload: Workload,
    /// Seed of all random numbers.
    pub seed: u64,
    /// The arms in the requested order.
    pub arms: Vec<ArmReport>,
}

/// The path of a comparison.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LinkReport {
    /// Canonical text of the link.
    pub spec: String,
    /// Round-trip time of the empty path, ms.
    pub base_rtt_ms: f64,
}

impl LinkReport {
    /// Describes a link.
    pub fn of(link: &LinkSpec) -> LinkReport {
        LinkReport { spec: link.to_string(), base_rtt_ms: milliseconds(link.base_rtt()) }
    }
}

/// The transfer.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Workload {
    /// The response size as the user wrote it.
    pub flow: String,
    /// Bytes of each request.
    pub request_bytes: u32,
    /// True if the handshake is excluded.
    pub established: bool,
    /// Requested transactions per arm.
    pub n: u64,
}

/// The result of one arm. Times are those of completed transactions.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ArmReport {
    /// The arm as the user wrote it.
    pub name: String,
    /// Transactions run.
    pub n: u64,
    /// Transactions that completed.
    pub completed: u64,
    /// Completion times, ms.
    pub ms: Times,
    /// 95 % confidence intervals of the times, ms.
    pub ci95: Intervals,
    /// Completion time divided by the base round-trip time; null if that is zero.
    pub rtts: Rtts,
    /// IP bytes in both directions divided by the payload bytes of completed transactions.
    pub wire_ratio: f64,
    /// Retransmission timeouts before completion, sum over all transactions.
    pub timeouts: u64,
    /// Retransmitted segments before completion, sum over all transactions.
    pub retransmits: u64,
    /// Share of the transactions that lost a packet before completion.
    pub hit: f64,
    /// Losses repaired without a retransmission.
    pub repaired: Repaired,
}

/// Completion times, ms.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Times {
    /// Mean.
    pub mean: f64,
    /// First quartile.
    pub p25: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// 95 % confidence intervals, ms.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Intervals {
    /// Interval of the mean.
    pub mean: Interval,
    /// Interval of the median.
    pub p50: Interval,
    /// Interval of the 90th percentile.
    pub p90: Interval,
    /// Interval of the 99th percentile.
    pub p99: Interval,
}

/// Completion time in round trips.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Rtts {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// Losses repaired without a retransmission, by mechanism.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Repaired {
    /// A tail loss probe.
    pub probe: u64,
    /// A parity segment.
    pub parity: u64,
    /// A copy.
    pub copy: u64,
}

/// Runs a comparison on all cores. Calls `progress` with the number of transactions (of all arms) that were
/// completed. Once `stop` is set, the report covers the completed transactions.
///
/// # Errors
/// The reason why a transaction cannot be simulated; the first one in order.
pub fn compare(
    comparison: &Comparison,
    progress: &(dyn Fn(u64) + Sync),
    stop: &AtomicBool,
) -> Result<Report, TransactionError> {
    let by_arm = transactions(comparison, &|_| true, progress, stop)?;
    Ok(Report::of(comparison, |index, arm| {
        let rows: Vec<Row> = by_arm[index].iter().map(|(index, result)| Row::of(*index, result)).collect();
        ArmReport::of_rows(comparison, arm, &rows)
    }))
}

/// Runs the transactions whose number is in `wanted`, for each arm. Stops early once `stop` is set.
///
/// # Errors
/// Those of [`compare`].
pub(crate) fn transactions(
    comparison: &Comparison,
    wanted: &(dyn Fn(u64) -> bool + Sync),
    progress: &(dyn Fn(u64) + Sync),
    stop: &AtomicBool,
) -> Result<Vec<Vec<Numbered>>, TransactionError> {
    let chunk = (comparison.n / (rayon::current_num_threads() as u64 * MIN_CHUNKS_PER_CORE)).clamp(1, CHUNK);
    let knowledge_of_arms = comparison.knowledge_of_arms()?;
    let done: Vec<Vec<Vec<Numbered>>> = (0..comparison.n.div_ceil(chunk) as usize)
        .into_par_iter()
        .with_max_len(1)
        .map(|turn| {
            let start = turn as u64 * chunk;
            let end = (start + chunk).min(comparison.n);
            let numbers = (start..end).filter(|index| wanted(*index));
            run_chunk(comparison, &knowledge_of_arms, numbers, progress, stop)
        })
        .collect::<Result<_, TransactionError>>()?;
    let mut by_arm = vec![Vec::new(); comparison.arms.len()];
    for chunk in done {
        for (arm, results) in by_arm.iter_mut().zip(chunk) {
            arm.extend(results);
        }
    }
    Ok(by_arm)
}

thread_local! {
    /// Memory that a chunk leaves for the next chunk on this thread.
    static ARENA: RefCell<Arena> = RefCell::default();
}

/// Runs the transactions of these numbers, for each arm. Stops early once `stop` is set.
fn run_chunk(
    comparison: &Comparison,
    knowledge_of_arms: &KnowledgeOfArms,
    numbers: impl Iterator<Item = u64>,
    progress: &(dyn Fn(u64) + Sync),
    stop: &AtomicBool,
) -> Result<Vec<Vec<Numbered>>, TransactionError> {
    let mut arena = ARENA.take();
    let mut by_arm = vec![Vec::new(); comparison.arms.len()];
    for index in numbers {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let drawn = comparison.drawn(index);
        for (arm, results) in by_arm.iter_mut().enumerate() {
            results.push((index, comparison.run_one(arm, knowledge_of_arms, drawn, &mut arena)?));
        }
    }
    progress(by_arm.iter().map(|results| results.len() as u64).sum());
    ARENA.set(arena);
    Ok(by_arm)
}

/// Sums over the transactions of an arm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Totals {
    pub(crate) n: u64,
    /// IP bytes in both directions.
    pub(crate) wire_bytes: u64,
    pub(crate) payload_bytes: u64,
    pub(crate) timeouts: u64,
    pub(crate) retransmits: u64,
    /// Transactions that lost a packet, if known.
    pub(crate) hit: Option<u64>,
    pub(crate) repaired: Repaired,
}

impl ArmReport {
    /// Computes the report over the transactions of an arm.
    pub(crate) fn of_rows(comparison: &Comparison, arm: &Profile, rows: &[Row]) -> ArmReport {
        let total = |of: fn(&Row) -> u64| rows.iter().map(of).sum::<u64>();
        let totals = Totals {
            n: rows.len() as u64,
            wire_bytes: total(|row| row.wire_up + row.wire_down),
            payload_bytes: total(|row| row.payload),
            timeouts: total(|row| row.timeouts),
            retransmits: total(|row| row.retransmits),
            hit: Some(rows.iter().filter(|row| row.dropped > 0).count() as u64),
            repaired: Repaired {
                probe: total(|row| row.repaired_by_probe),
                parity: total(|row| row.repaired_by_parity),
                copy: total(|row| row.repaired_by_copy),
            },
        };
        let times = rows.iter().filter_map(|row| row.completion_us).map(|us| us as f64 / 1000.0);
        let times = Sample::new(times.collect());
        ArmReport::new(&arm.name, &times, comparison.link.base_rtt(), totals)
    }

    /// Computes the report over completion times in ms.
    pub(crate) fn new(name: &str, times: &Sample, base_rtt: Duration, totals: Totals) -> ArmReport {
        let base_rtt = milliseconds(base_rtt);
        let rtts = |ms: f64| if base_rtt > 0.0 { rounded(ms / base_rtt) } else { f64::NAN };
        let interval = |statistic| times.interval(statistic).map(rounded);
        let Totals { n, wire_bytes, payload_bytes, timeouts, retransmits, hit, repaired } = totals;
        ArmReport {
            name: name.to_owned(),
            n,
            completed: times.len() as u64,
            ms: Times {
                mean: rounded(times.mean()),
                p25: rounded(times.quantile(0.25)),
                p50: rounded(times.quantile(0.5)),
                p90: rounded(times.quantile(0.9)),
                p95: rounded(times.quantile(0.95)),
                p99: rounded(times.quantile(0.99)),
            },
            ci95: Intervals {
                mean: interval(Statistic::Mean),
                p50: interval(Statistic::Quantile(0.5)),
                p90: interval(Statistic::Quantile(0.9)),
                p99: interval(Statistic::Quantile(0.99)),
            },
            rtts: Rtts { p50: rtts(times.quantile(0.5)), p99: rtts(times.quantile(0.99)) },
            wire_ratio: rounded(wire_bytes as f64 / payload_bytes as f64),
            timeouts,
            retransmits,
            hit: hit.map_or(f64::NAN, |hit| rounded(hit as f64 / n as f64)),
            repaired,
        }
    }
}

impl Report {
    /// Computes the report of a comparison; `report_arm` computes the part of an arm from its index.
    pub(crate) fn of(comparison: &Comparison, report_arm: impl Fn(usize, &Profile) -> ArmReport) -> Report {
        Report {
            link: LinkReport::of(&comparison.link),
            workload: Workload {
                flow: comparison.sizes_text.clone(),
                request_bytes: comparison.request,
                established: comparison.established,
                n: comparison.n,
            },
            seed: comparison.seed,
            arms: comparison.arms.iter().enumerate().map(|(index, arm)| report_arm(index, arm)).collect(),
        }
    }

    /// Formats the report for a terminal of 80 columns.
    pub fn to_text(&self) -> String {
        table::text(self)
    }
}

/// Rounds to three decimals: microseconds for times in ms, and enough for ratios.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use brisk_runtime::profile::Profile;
    use std::sync::atomic::AtomicU64;

    fn comparison(link: &str, bytes: u64, n: u64) -> Comparison {
        Comparison {
            link: LinkSpec::parse(link).unwrap(),
            request: 100,
            sizes: Sizes::Fixed(bytes),
            sizes_text: format!("{bytes}B"),
            page: None,
            scenario: Scenario::default(),
            n,
            established: false,
            seed: 7,
            arms: default_arms(),
        }
    }

    fn report(comparison: &Comparison) -> Report {
        compare(comparison, &|_| {}, &AtomicBool::new(false)).unwrap()
    }

    #[test]
    fn without_loss_every_transaction_takes_two_round_trips() {
        let report = report(&comparison("--rtt 200ms", 5_000, 50));
        let arm = &report.arms[0];
        assert_eq!((arm.n, arm.completed, arm.timeouts, arm.hit), (50, 50, 0, 0.0));
        assert_eq!((arm.ms.mean, arm.ms.p50, arm.ms.p99), (400.0, 400.0, 400.0));
        assert_eq!((arm.ci95.mean, arm.rtts.p50), ([400.0, 400.0], 2.0));
    }

    #[test]
    fn the_report_depends_on_the_seed_and_not_on_the_number_of_threads() {
        let comparison = comparison("--rtt 50ms --rate 20mbit --loss 5%", 20_000, 150);
        let json = |report: &Report| serde_json::to_string(report).unwrap();
        let all = json(&report(&comparison));
        let one = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        assert_eq!(one.install(|| json(&report(&comparison))), all);
        assert_ne!(json(&report(&Comparison { seed: 8, ..comparison })), all);
    }

    #[test]
    fn json_report_has_the_documented_keys() {
        let json = serde_json::to_value(report(&comparison("--rtt 50ms --loss 2%", 3_000, 20))).unwrap();
        for key in ["link", "workload", "seed", "arms"] {
            assert!(!json[key].is_null(), "{key}");
        }
        let arm = &json["arms"][0];
        for key in ["name", "n", "completed", "wire_ratio", "timeouts", "retransmits", "hit"] {
            assert!(!arm[key].is_null(), "{key}");
        }
        for key in ["mean", "p25", "p50", "p90", "p95", "p99"] {
            assert!(arm["ms"][key].is_f64(), "{key}");
        }
        for key in ["mean", "p50", "p90", "p99"] {
            assert_eq!(arm["ci95"][key].as_array().unwrap().len(), 2, "{key}");
        }
        assert!(arm["rtts"]["p50"].is_f64() && arm["rtts"]["p99"].is_f64());
        for key in ["probe", "parity", "copy"] {
            assert!(arm["repaired"][key].is_u64(), "{key}");
        }
    }

    /// A transaction passes only allocated memory on to the next one, whatever its profile.
    #[test]
    fn results_of_an_arm_do_not_depend_on_earlier_simulations() {
        let text = ["tcp", "tcp+tfo", "tcp2012", "reactive", "corrective", "proactive", "all"].join(";");
        let rich = "fast_open,corrective=f1;corrective=rs4,proactive=short;tcp,path=on,memory=on";
        let arms = Profile::parse_list(&format!("{text};{rich}")).unwrap();
        let comparison = Comparison { arms, ..comparison("--rtt 80ms --loss 4% --reorder 1%,5ms", 9_000, 1) };
        let known = comparison.knowledge_of_arms().unwrap();
        let mut used = Arena::default();
        for index in 0..20 {
            let drawn = comparison.drawn(index);
            for (arm, Profile { name, .. }) in comparison.arms.iter().enumerate() {
                let result = |arena: &mut Arena| comparison.run_one(arm, &known, drawn, arena).unwrap();
                assert_eq!(result(&mut used), result(&mut Arena::default()), "{name}, {index}");
            }
        }
    }

    #[test]
    fn stopped_comparison_reports_completed_transactions() {
        let stop = AtomicBool::new(false);
        let done = AtomicU64::new(0);
        let progress = |n| {
            if done.fetch_add(n, Ordering::Relaxed) >= 10 {
                stop.store(true, Ordering::Relaxed);
            }
        };
        let report = compare(&comparison("--rtt 50ms", 3_000, 100_000), &progress, &stop).unwrap();
        let n: u64 = report.arms.iter().map(|arm| arm.n).sum();
        assert!((10..2_000).contains(&n), "{n}");
    }

    #[test]
    fn the_text_fits_eighty_columns() {
        let short = comparison("--rtt 250ms --rate 1mbit/256kbit --loss 20%", 123_456, 20);
        let long = Profile::parse_list("tcp; corrective=off,proactive=off,planner=off").unwrap();
        for comparison in [Comparison { arms: long, ..short.clone() }, short] {
            let text = report(&comparison).to_text();
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
    }
}
