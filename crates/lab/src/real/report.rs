//! The results of all contestants in one table.

use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use serde::{Deserialize, Deserializer, Serialize};

use super::contestant::Contestant;
use super::{Measured, Real};
use crate::compare::LinkReport;
use crate::emulate::Outcome;
use crate::plan::metric::Metric;
use crate::statistics::{Interval, Sample, Statistic};
use crate::text_table;

/// The results of all contestants.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RealReport {
    /// Name of the report.
    pub name: String,
    /// The link.
    pub link: LinkReport,
    /// Seed of the link.
    pub seed: u64,
    /// Bytes of each response.
    pub bytes: u64,
    /// Number of concurrent requests.
    pub parallel: usize,
    /// The contestants, in order.
    pub contestants: Vec<ContestantReport>,
}

/// The result of one contestant.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ContestantReport {
    /// Name of the contestant.
    pub name: String,
    /// Number of successful requests.
    pub answered: u64,
    /// Number of failed requests.
    pub failed: u64,
    /// Reason of the last failure.
    pub last_failure: Option<String>,
    /// Completion times of successful requests, ms.
    pub ms: Times,
    /// IP bytes that the client's side sent / bytes of responses.
    #[serde(deserialize_with = "number")]
    pub wire_up: f64,
    /// IP bytes that the origin's side sent, lost ones included / bytes of responses.
    #[serde(deserialize_with = "number")]
    pub wire_down: f64,
    /// Processor time of the contestant's own processes per request, ms; `None` if it has none.
    pub cpu_ms: Option<f64>,
    /// Share of the bytes, percent, that its bulk flow carried next to a bulk flow of the kernel's CUBIC (50
    /// is fair); `None` if not measured.
    pub share: Option<f64>,
    /// True if the emulated link delivered its packets on time.
    pub valid: bool,
    /// Says in words how punctual the link was.
    pub verdict: String,
}

/// Completion times, ms.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Times {
    /// Mean.
    #[serde(deserialize_with = "number")]
    pub mean: f64,
    /// 95 % interval of the mean.
    #[serde(deserialize_with = "interval")]
    pub mean_ci95: Interval,
    /// Median.
    #[serde(deserialize_with = "number")]
    pub p50: f64,
    /// 95th percentile.
    #[serde(deserialize_with = "number")]
    pub p95: f64,
    /// 99th percentile.
    #[serde(deserialize_with = "number")]
    pub p99: f64,
}

/// Reads a number. null represents NaN, which JSON lacks.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

fn interval<'de, D: Deserializer<'de>>(from: D) -> Result<Interval, D::Error> {
    let ends = <[Option<f64>; 2]>::deserialize(from)?;
    Ok(ends.map(|end| end.unwrap_or(f64::NAN)))
}

impl ContestantReport {
    pub(super) fn new(contestant: &Contestant, real: &Real, measured: Measured, outcome: &Outcome) -> Self {
        let Measured { times, failed, last_failure, wire, cpu, beside } = measured;
        let answered = times.len() as u64;
        let payload = (answered * real.bytes) as f64;
        let milliseconds = |cpu: Duration| cpu.as_secs_f64() * 1e3 / (answered + failed) as f64;
        let share = |(own, other): (u64, u64)| 100.0 * own as f64 / (own + other) as f64;
        ContestantReport {
            name: contestant.name.clone(),
            answered,
            failed,
            last_failure,
            ms: Times::of(times),
            wire_up: wire.0 as f64 / payload,
            wire_down: wire.1 as f64 / payload,
            cpu_ms: cpu.map(milliseconds),
            share: beside.map(share),
            valid: outcome.validity.is_valid(),
            verdict: outcome.validity.to_string(),
        }
    }
}

impl Times {
    fn get(&self, statistic: Statistic) -> Option<f64> {
        match statistic {
            Statistic::Mean => Some(self.mean),
            Statistic::Quantile(0.5) => Some(self.p50),
            Statistic::Quantile(0.95) => Some(self.p95),
            Statistic::Quantile(0.99) => Some(self.p99),
            Statistic::Quantile(_) => None,
        }
    }

    fn of(times: Vec<f64>) -> Times {
        let sample = Sample::new(times);
        Times {
            mean: sample.mean(),
            mean_ci95: sample.interval(Statistic::Mean),
            p50: sample.quantile(0.5),
            p95: sample.quantile(0.95),
            p99: sample.quantile(0.99),
        }
    }
}

impl RealReport {
    pub(super) fn new(real: &Real, contestants: Vec<ContestantReport>) -> RealReport {
        RealReport {
            name: real.name.clone(),
            link: LinkReport::of(&real.link),
            seed: real.seed,
            bytes: real.bytes,
            parallel: real.parallel,
            contestants,
        }
    }

    /// Returns a metric of the contestant `name`; gains are relative to the contestant `first`. `None` if
    /// there is no such contestant, or the metric has no value here.
    pub(crate) fn value(&self, metric: Metric, name: &str, first: &str) -> Option<f64> {
        let find = |name: &str| self.contestants.iter().find(|contestant| contestant.name == name);
        let contestant = find(name)?;
        let time = |statistic: Statistic| contestant.ms.get(statistic);
        let value = match metric {
            Metric::Ms(statistic) => time(statistic)?,
            Metric::Rtts(statistic) => time(statistic)? / self.link.base_rtt_ms,
            Metric::Gain(statistic) => 100.0 * (time(statistic)? / find(first)?.ms.get(statistic)? - 1.0),
            Metric::Wire => contestant.wire_up + contestant.wire_down,
            Metric::Completed => {
                100.0 * contestant.answered as f64 / (contestant.answered + contestant.failed) as f64
            }
            _ => return None,
        };
        value.is_finite().then_some(value)
    }

    /// Formats the report for a terminal.
    pub fn to_text(&self) -> String {
        let RealReport { name, link, bytes, parallel, contestants, .. } = self;
        let mut text =
            format!("{name}, in real time: {bytes} bytes over {}, {parallel} at a time\n", link.spec);
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header([
            "contestant",
            "n",
            "mean",
            "95 %",
            "p50",
            "p95",
            "p99",
            "up",
            "down",
            "CPU",
            "share",
        ]);
        table.add_rows(contestants.iter().map(ContestantReport::row));
        text += &text_table::lines(table, 1..);
        text.push_str(
            "Times in ms. up, down: IP bytes that each side sent / payload bytes. CPU: ms per request of the\n\
             contestant's processes. share: percent of the bytes that its bulk flow\n\
             carried while it competed with one of the kernel's CUBIC (50: fair).\n",
        );
        for contestant in contestants {
            if let Some(why) = &contestant.last_failure {
                text.push_str(&format!(
                    "{}: {} requests failed, the last one: {why}\n",
                    contestant.name, contestant.failed
                ));
            }
            if !contestant.valid {
                text.push_str(&format!("{}: {}\n", contestant.name, contestant.verdict));
            }
        }
        text
    }
}

impl ContestantReport {
    fn row(&self) -> [String; 11] {
        let Times { mean, mean_ci95: [low, high], p50, p95, p99 } = self.ms;
        let or_dash =
            |value: Option<f64>, digits| value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
        [
            self.name.clone(),
            self.answered.to_string(),
            format!("{mean:.0}"),
            format!("{low:.0}..{high:.0}"),
            format!("{p50:.0}"),
            format!("{p95:.0}"),
            format!("{p99:.0}"),
            format!("{:.3}", self.wire_up),
            format!("{:.3}", self.wire_down),
            or_dash(self.cpu_ms, 2),
            or_dash(self.share, 0),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_a_contestant_are_per_byte_and_per_request() {
        let real = Real {
            name: "x".to_owned(),
            link: brisk_link::LinkSpec::parse("--rtt 10ms").unwrap(),
            seed: 1,
            bytes: 1000,
            n: 4,
            parallel: 1,
            beside: Duration::ZERO,
            contestants: vec![Contestant::kernel("cubic", true)],
        };
        let measured = Measured {
            times: vec![10.0, 20.0, 30.0],
            failed: 1,
            last_failure: Some("no answer".to_owned()),
            wire: (300, 3600),
            cpu: Some(Duration::from_millis(8)),
            beside: Some((30, 70)),
        };
        let outcome = crate::emulate::Outcome {
            elapsed: Duration::ZERO,
            up: brisk_link::Counters::default(),
            down: brisk_link::Counters::default(),
            late: crate::emulate::Percentiles::default(),
            validity: crate::emulate::Validity::Valid,
            fifo: true,
            spun: Duration::ZERO,
            send_errors: 0,
            last_send_error: None,
        };
        let report = ContestantReport::new(&real.contestants[0], &real, measured, &outcome);
        assert_eq!((report.ms.mean, report.wire_up, report.wire_down), (20.0, 0.1, 1.2));
        assert_eq!(
            (report.cpu_ms, report.share, report.name.as_str()),
            (Some(2.0), Some(30.0), "kernel cubic+tfo")
        );
        let table = RealReport::new(&real, vec![report.clone()]);
        let value = |metric: &str| {
            table.value(metric.parse().unwrap(), "kernel cubic+tfo", "kernel cubic+tfo").unwrap()
        };
        assert_eq!(["ms.mean", "rtts.p50", "gain.p99", "completed"].map(value), [20.0, 2.0, 0.0, 75.0]);
        assert_eq!(table.value(Metric::Wire, "kernel cubic", ""), None);
        let failed =
            ContestantReport { answered: 0, ms: Times::of(Vec::new()), wire_up: f64::NAN, ..report.clone() };
        let kept = serde_json::to_string(&failed).unwrap();
        let read: ContestantReport = serde_json::from_str(&kept).unwrap();
        assert!(read.ms.mean.is_nan() && read.ms.mean_ci95[0].is_nan() && read.wire_up.is_nan(), "{kept}");
        let text = RealReport::new(&real, vec![report]).to_text();
        assert!(text.contains("1 requests failed, the last one: no answer"), "{text}");
    }
}
