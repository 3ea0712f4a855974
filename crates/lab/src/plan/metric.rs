//! A quantity measured for an arm, in the notation of a plan.
//!
//! | text | meaning |
//! |---|---|
//! | `ms.STAT` | completion time, milliseconds |
//! | `rtts.STAT` | completion time / round-trip time of the empty path |
//! | `gain.STAT` | change of the completion time against the cell's first arm, percent; negative is faster |
//! | `speedup` | mean completion time of the first arm / that of the arm |
//! | `tps` | transactions a second in a closed loop of one: 1 / mean completion time |
//! | `rto.STAT` | the server's retransmission timeout at the end / its round-trip time |
//! | `slowdown` | mean completion time of transactions that lost a packet / of those that did not |
//! | `change.COUNT` | change of a sum against the cell's first arm, percent |
//! | `share.COUNT` | a sum / segments sent, percent |
//! | `each.COUNT` | a sum / transactions |
//! | `by_timeout` | timeouts / (timeouts + fast recoveries), percent |
//! | `neighbours` | bytes for the plain bulk flows on the same link / all bytes that arrived, percent |
//! | `position.K` | losses of the K-th packet of a burst / losses of the first one, K from 1 |
//! | `lost_up_to.K` | of the transactions that lost a packet, those that lost at most K, percent |
//! | `wire` | IP bytes in both directions / payload bytes |
//! | `hit` | transactions that lost a packet, percent |
//! | `completed` | transactions that completed, percent |
//!
//! STAT is `mean`, `p25`, `p50`, `p90`, `p95`, `p99` or `p99.9`; COUNT is `timeouts`, `retransmits`,
//! `recoveries`, `undos`, `masked`, `probes`, `by_probe` (losses that a probe repaired), `segments`,
//! `neighbour` (bytes) or `payload` (bytes).

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use thiserror::Error;

use crate::row::Row;
use crate::statistics::Statistic;

/// The quantity to measure.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub enum Metric {
    /// Completion time, ms.
    Ms(Statistic),
    /// Completion time in round trips of the empty path.
    Rtts(Statistic),
    /// Change of the completion time against the first arm, percent.
    Gain(Statistic),
    /// Change of a sum against the first arm, percent.
    Change(Count),
    /// A sum / segments sent, percent.
    Share(Count),
    /// A sum / transactions.
    Each(Count),
    /// Mean of the first arm / mean.
    Speedup,
    /// Transactions a second.
    Tps,
    /// Retransmission timeout / round-trip time.
    Rto(Statistic),
    /// Mean time of transactions that lost a packet / of those that did not.
    Slowdown,
    /// Timeouts / (timeouts + fast recoveries), percent.
    ByTimeout,
    /// Bytes of the plain flows / all bytes, percent.
    Neighbours,
    /// Losses of this packet of a burst / losses of the first one.
    Position(u32),
    /// Of the transactions that lost a packet, those that lost at most this many, percent.
    LostUpTo(u32),
    /// IP bytes / payload bytes.
    Wire,
    /// Transactions that lost a packet, percent.
    Hit,
    /// Transactions that completed, percent.
    Completed,
}

/// Counter to sum over the transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// Retransmission timeouts, those of the handshake included.
    Timeouts,
    /// Retransmitted segments.
    Retransmits,
    /// Fast recoveries.
    Recoveries,
    /// Window reductions that were undone.
    Undos,
    /// Repaired losses for which the window was reduced.
    Masked,
    /// Tail loss probes.
    Probes,
    /// Losses repaired by a probe.
    ByProbe,
    /// Segments sent, acknowledgements included.
    Segments,
    /// Bytes that arrived for the plain flows on the same link.
    Neighbour,
    /// Bytes of request and response that arrived.
    Payload,
}

/// Error for a text that is not a metric.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error(
    "'{0}' is not a metric: use ms.p99, rtts.p50, gain.mean, change.timeouts, share.probes, each.timeouts, wire, hit or another of docs/lab.md"
)]
pub struct MetricError(String);

const STATISTICS: [(&str, Statistic); 7] = [
    ("mean", Statistic::Mean),
    ("p25", Statistic::Quantile(0.25)),
    ("p50", Statistic::Quantile(0.5)),
    ("p90", Statistic::Quantile(0.9)),
    ("p95", Statistic::Quantile(0.95)),
    ("p99", Statistic::Quantile(0.99)),
    ("p99.9", Statistic::Quantile(0.999)),
];

const COUNTS: [(&str, Count); 10] = [
    ("timeouts", Count::Timeouts),
    ("retransmits", Count::Retransmits),
    ("recoveries", Count::Recoveries),
    ("undos", Count::Undos),
    ("masked", Count::Masked),
    ("probes", Count::Probes),
    ("by_probe", Count::ByProbe),
    ("segments", Count::Segments),
    ("neighbour", Count::Neighbour),
    ("payload", Count::Payload),
];

const WORDS: [(&str, Metric); 8] = [
    ("wire", Metric::Wire),
    ("hit", Metric::Hit),
    ("completed", Metric::Completed),
    ("speedup", Metric::Speedup),
    ("tps", Metric::Tps),
    ("slowdown", Metric::Slowdown),
    ("by_timeout", Metric::ByTimeout),
    ("neighbours", Metric::Neighbours),
];
/// Maximum length of a burst, packets.
const MAX_POSITIONS: u32 = 64;

impl FromStr for Metric {
    type Err = MetricError;

    fn from_str(text: &str) -> Result<Metric, MetricError> {
        let unknown = || MetricError(text.to_owned());
        let named = |name: &str| STATISTICS.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        let count = |name: &str| COUNTS.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        let number = |text: &str| text.parse().ok().filter(|number| (1..=MAX_POSITIONS).contains(number));
        let metric = match text.split_once('.') {
            None => WORDS.iter().find(|(known, _)| *known == text).map(|(_, metric)| *metric),
            Some(("ms", of)) => named(of).map(Metric::Ms),
            Some(("rtts", of)) => named(of).map(Metric::Rtts),
            Some(("gain", of)) => named(of).map(Metric::Gain),
            Some(("change", of)) => count(of).map(Metric::Change),
            Some(("share", of)) => count(of).map(Metric::Share),
            Some(("each", of)) => count(of).map(Metric::Each),
            Some(("rto", of)) => named(of).map(Metric::Rto),
            Some(("position", of)) => number(of).map(Metric::Position),
            Some(("lost_up_to", of)) => number(of).map(Metric::LostUpTo),
            Some(_) => None,
        };
        metric.ok_or_else(unknown)
    }
}

impl TryFrom<String> for Metric {
    type Error = MetricError;

    fn try_from(text: String) -> Result<Metric, MetricError> {
        text.parse()
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let statistic =
            |of: &Statistic| STATISTICS.iter().find(|(_, known)| known == of).map_or("?", |(name, _)| name);
        let count = |of: &Count| COUNTS.iter().find(|(_, known)| known == of).map_or("?", |(name, _)| name);
        match self {
            Metric::Ms(of) => write!(f, "ms.{}", statistic(of)),
            Metric::Rtts(of) => write!(f, "rtts.{}", statistic(of)),
            Metric::Gain(of) => write!(f, "gain.{}", statistic(of)),
            Metric::Change(of) => write!(f, "change.{}", count(of)),
            Metric::Share(of) => write!(f, "share.{}", count(of)),
            Metric::Each(of) => write!(f, "each.{}", count(of)),
            Metric::Rto(of) => write!(f, "rto.{}", statistic(of)),
            Metric::Position(of) => write!(f, "position.{of}"),
            Metric::LostUpTo(of) => write!(f, "lost_up_to.{of}"),
            word => {
                let known = WORDS.iter().find(|(_, metric)| metric == word);
                f.write_str(known.map_or("?", |(name, _)| name))
            }
        }
    }
}

impl Metric {
    /// Returns the unit for the report: `ms`, `RTT`, `%` or none.
    pub fn unit(&self) -> &'static str {
        match self {
            Metric::Ms(_) => "ms",
            Metric::Rtts(_) => "RTT",
            Metric::Tps => "/s",
            Metric::Wire | Metric::Each(_) | Metric::Speedup | Metric::Slowdown | Metric::Position(_) => "",
            Metric::Rto(_) => "RTT",
            Metric::Gain(_)
            | Metric::Change(_)
            | Metric::Share(_)
            | Metric::Hit
            | Metric::Completed
            | Metric::ByTimeout
            | Metric::Neighbours
            | Metric::LostUpTo(_) => "%",
        }
    }

    /// Returns the value over the transactions with the indices `drawn`, NaN if there is none. `base` are the
    /// same transactions of the first arm, `rtt_us` is the round-trip time of the empty path in microseconds.
    pub fn value(&self, arm: &[Row], base: &[Row], rtt_us: f64, drawn: &[usize]) -> f64 {
        self.value_of((arm, drawn), (base, drawn), rtt_us)
    }

    /// Returns a value for each transaction, a statistic, and a divisor: the metric is that statistic of the
    /// values, divided by the divisor. `None` for a metric of another kind.
    pub(crate) fn values(&self, arm: Drawn<'_>, rtt_us: f64) -> Option<(Vec<f64>, Statistic, f64)> {
        let ratio = |row: &Row| Some(row.rto_us? as f64 / row.srtt_us.filter(|us| *us > 0)? as f64);
        match self {
            Metric::Ms(of) => Some((times(arm).collect(), *of, 1000.0)),
            Metric::Rtts(of) => Some((times(arm).collect(), *of, rtt_us)),
            Metric::Rto(of) => Some((rows(arm).filter_map(ratio).collect(), *of, 1.0)),
            _ => None,
        }
    }

    /// Like [`Metric::value`], with transactions of the first arm that may differ.
    pub(crate) fn value_of(&self, arm: Drawn<'_>, base: Drawn<'_>, rtt_us: f64) -> f64 {
        match self {
            Metric::Ms(_) | Metric::Rtts(_) | Metric::Rto(_) => self
                .values(arm, rtt_us)
                .map_or(f64::NAN, |(values, statistic, unit)| statistic.of(values.into_iter()) / unit),
            Metric::Gain(of) => change(time(arm, *of), time(base, *of)),
            Metric::Change(of) => change(sum(arm, of.of()), sum(base, of.of())),
            Metric::Share(of) => 100.0 * sum(arm, of.of()) / sum(arm, |row| row.segments),
            Metric::Wire => sum(arm, |row| row.wire_up + row.wire_down) / sum(arm, |row| row.payload),
            Metric::Each(of) => sum(arm, of.of()) / arm.1.len() as f64,
            Metric::Speedup => time(base, Statistic::Mean) / time(arm, Statistic::Mean),
            Metric::Tps => 1e6 / time(arm, Statistic::Mean),
            Metric::Slowdown => {
                let (lossy, clean): (Vec<usize>, Vec<usize>) =
                    arm.1.iter().partition(|index| arm.0[**index].dropped > 0);
                time((arm.0, &lossy), Statistic::Mean) / time((arm.0, &clean), Statistic::Mean)
            }
            Metric::ByTimeout => {
                let [timeouts, recoveries] =
                    [Count::Timeouts, Count::Recoveries].map(|count| sum(arm, count.of()));
                100.0 * timeouts / (timeouts + recoveries)
            }
            Metric::Neighbours => {
                let [theirs, ours] = [Count::Neighbour, Count::Payload].map(|count| sum(arm, count.of()));
                100.0 * theirs / (theirs + ours)
            }
            Metric::Position(k) => {
                let lost = |at: u32| share(arm, |row| row.lost_at >> at & 1 == 1);
                lost(k - 1) / lost(0)
            }
            Metric::LostUpTo(k) => {
                let lossy: Vec<usize> =
                    arm.1.iter().copied().filter(|index| arm.0[*index].dropped > 0).collect();
                share((arm.0, &lossy), |row| row.dropped <= u64::from(*k))
            }
            Metric::Hit => share(arm, |row| row.dropped > 0),
            Metric::Completed => share(arm, |row| row.completion_us.is_some()),
        }
    }
}

impl Count {
    fn of(self) -> fn(&Row) -> u64 {
        match self {
            Count::Timeouts => |row| row.timeouts,
            Count::Retransmits => |row| row.retransmits,
            Count::Recoveries => |row| row.recoveries,
            Count::Undos => |row| row.undos,
            Count::Masked => |row| row.masked_losses,
            Count::Probes => |row| row.probes,
            Count::ByProbe => |row| row.repaired_by_probe,
            Count::Segments => |row| row.segments,
            Count::Neighbour => |row| row.neighbour,
            Count::Payload => |row| row.payload,
        }
    }
}

/// Transactions of an arm with the indices of the drawn ones, which may repeat.
pub(crate) type Drawn<'a> = (&'a [Row], &'a [usize]);

fn rows<'a>((rows, which): Drawn<'a>) -> impl Iterator<Item = &'a Row> {
    which.iter().map(|index| &rows[*index])
}

/// Returns the completion times, microseconds.
fn times(of: Drawn<'_>) -> impl Iterator<Item = f64> {
    rows(of).filter_map(|row| row.completion_us).map(|us| us as f64)
}

fn time(of: Drawn<'_>, statistic: Statistic) -> f64 {
    statistic.of(times(of))
}

fn sum(of: Drawn<'_>, count: fn(&Row) -> u64) -> f64 {
    rows(of).map(count).sum::<u64>() as f64
}

fn share(of: Drawn<'_>, which: impl Fn(&Row) -> bool) -> f64 {
    100.0 * rows(of).filter(|row| which(row)).count() as f64 / of.1.len() as f64
}

/// Returns the difference of `value` from `base` in percent; 0 if both are equal.
fn change(value: f64, base: f64) -> f64 {
    if value == base { 0.0 } else { 100.0 * (value / base - 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_parsed_as_written() {
        let of_time = STATISTICS
            .iter()
            .flat_map(|(name, _)| ["ms", "rtts", "gain", "rto"].map(|kind| format!("{kind}.{name}")));
        let of_counts = COUNTS
            .iter()
            .flat_map(|(name, _)| ["change", "share", "each"].map(|kind| format!("{kind}.{name}")));
        let words = WORDS.iter().map(|(name, _)| (*name).to_owned()).chain(["position.3".to_owned()]);
        let words = words.chain(["lost_up_to.2".to_owned()]);
        for text in of_time.chain(of_counts).chain(words) {
            assert_eq!(text.parse::<Metric>().unwrap().to_string(), text);
        }
        let error = "gain.p98".parse::<Metric>().unwrap_err().to_string();
        assert!(error.starts_with("'gain.p98' is not a metric: use ms.p99"), "{error}");
    }

    #[test]
    fn losses_are_measured_by_cost_and_position() {
        let row = |ms: u64, lost_at: u64, timeouts, recoveries| Row {
            completion_us: Some(ms * 1000),
            dropped: u64::from(lost_at.count_ones()),
            lost_at,
            timeouts,
            recoveries,
            rto_us: Some(ms * 2000),
            srtt_us: Some(ms * 1000),
            payload: 1,
            neighbour: 3,
            ..Row::default()
        };
        let arm = [row(100, 0, 0, 0), row(500, 0b110, 3, 0), row(300, 0b111, 0, 1), row(100, 0, 0, 0)];
        let of = |text: &str| text.parse::<Metric>().unwrap().value(&arm, &arm, 1.0, &[0, 1, 2, 3]);
        assert_eq!(
            (of("slowdown"), of("by_timeout"), of("rto.p50"), of("neighbours")),
            (4.0, 75.0, 2.0, 75.0)
        );
        assert_eq!(
            (of("position.3"), of("position.1"), of("lost_up_to.2"), of("tps")),
            (2.0, 1.0, 50.0, 4.0)
        );
    }

    #[test]
    fn gains_are_relative_to_the_first_arm() {
        let row = |ms: u64, timeouts| Row {
            completion_us: Some(ms * 1000),
            timeouts,
            segments: 10,
            ..Row::default()
        };
        let base = [row(100, 2), row(200, 2), row(300, 0)];
        let arm = [row(50, 1), row(100, 0), row(300, 0)];
        let of = |text: &str| text.parse::<Metric>().unwrap().value(&arm, &base, 50_000.0, &[0, 1, 2]);
        assert_eq!(of("gain.p50"), -50.0);
        assert_eq!(of("gain.mean"), -25.0);
        assert_eq!(of("change.timeouts"), -75.0);
        assert_eq!(of("change.undos"), 0.0);
        assert_eq!(of("rtts.p50"), 2.0);
        assert_eq!(of("ms.p99"), 296.0);
        assert_eq!((of("speedup") * 3.0, of("each.timeouts") * 3.0), (4.0, 1.0));
        assert_eq!((of("share.timeouts") * 3.0, of("completed"), of("hit")), (10.0, 100.0, 0.0));
    }
}
