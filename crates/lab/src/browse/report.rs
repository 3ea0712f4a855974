//! Page-load times and first paints of real loads, with confidence intervals.

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use super::{ArmLoads, Browse};
use crate::compare::LinkReport;
use crate::emulate::Outcome;
use crate::statistics::{Interval, Sample, Statistic, below, bootstrap};
use crate::text_table;

const RESAMPLES: usize = 2000;

/// One load.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Load {
    /// `loadEventEnd - navigationStart`.
    pub load_ms: f64,
    /// First contentful paint; `None` if nothing was painted.
    pub paint_ms: Option<f64>,
    /// Requests at the web server.
    pub requests: u64,
    /// Connections at the web server.
    pub connections: u64,
}

/// The result of a page.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PageReport {
    /// Name of the page.
    pub page: String,
    /// Number of objects.
    pub objects: usize,
    /// Number of hosts.
    pub hosts: usize,
    /// Bytes of all responses.
    pub bytes: u64,
    /// The link.
    pub link: LinkReport,
    /// Seed of the link.
    pub seed: u64,
    /// The arms; gains are relative to the first.
    pub arms: Vec<ArmReport>,
    /// True if the emulated link delivered its packets on time.
    pub valid: bool,
    /// Says in words how punctual the link was.
    pub verdict: String,
}

/// The result of an arm.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ArmReport {
    /// Name of the arm.
    pub name: String,
    /// Page-load time, ms.
    pub load: MeanTime,
    /// First contentful paint, ms.
    pub paint: MeanTime,
    /// Requests per load, mean.
    pub requests: f64,
    /// Connections per load, mean.
    pub connections: f64,
    /// Share of the connections between the gateways whose first bytes arrived with the SYN, percent.
    pub with_syn: f64,
    /// Number of failed loads.
    pub failed: usize,
    /// Reason of the last failure.
    pub last_failure: Option<String>,
    /// Every successful load, in order.
    pub loads: Vec<Load>,
}

/// The mean of a time over several loads, ms.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct MeanTime {
    /// Number of loads.
    pub n: usize,
    /// The mean.
    pub mean: f64,
    /// The standard deviation of the sample.
    pub sd: f64,
    /// The 95 % interval of the mean.
    pub ci95: Interval,
    /// Change of the mean relative to the first arm, percent, over the rounds in which both were measured;
    /// `None` for the first arm.
    pub gain: Option<f64>,
    /// 95 % interval of the gain: the bootstrap resamples rounds, with both arms together.
    pub gain_ci95: Option<Interval>,
}

pub(super) fn page(browse: &Browse, arms: &[ArmLoads], outcome: &Outcome) -> PageReport {
    let load = |load: &Load| Some(load.load_ms);
    let paint = |load: &Load| load.paint_ms;
    let arm = |(index, of): (usize, &ArmLoads)| {
        let loads: Vec<Load> = of.loads.iter().filter_map(|load| load.as_ref().ok()).copied().collect();
        let mean = |what: fn(&Load) -> u64| {
            loads.iter().map(|load| what(load) as f64).sum::<f64>() / loads.len() as f64
        };
        let base = (index > 0).then_some(&arms[0]);
        ArmReport {
            name: browse.arms[index].name.clone(),
            load: mean_time(of, base, browse.seed, load),
            paint: mean_time(of, base, browse.seed, paint),
            requests: mean(|load| load.requests),
            connections: mean(|load| load.connections),
            with_syn: 100.0 * of.hop.1 as f64 / of.hop.0 as f64,
            failed: of.loads.len() - loads.len(),
            last_failure: of.loads.iter().rev().find_map(|load| load.as_ref().err()).cloned(),
            loads,
        }
    };
    PageReport {
        page: browse.page.label.clone(),
        objects: browse.page.objects.len(),
        hosts: browse.page.hosts(),
        bytes: browse.page.bytes(),
        link: LinkReport::of(&browse.link),
        seed: browse.seed,
        arms: arms.iter().enumerate().map(arm).collect(),
        valid: outcome.validity.is_valid(),
        verdict: outcome.validity.to_string(),
    }
}

fn mean_time(arm: &ArmLoads, base: Option<&ArmLoads>, seed: u64, time: fn(&Load) -> Option<f64>) -> MeanTime {
    let times = |arm: &ArmLoads| -> Vec<Option<f64>> {
        arm.loads.iter().map(|load| load.as_ref().ok().and_then(time)).collect()
    };
    let own = times(arm);
    let measured: Vec<f64> = own.iter().flatten().copied().collect();
    let mean = measured.iter().sum::<f64>() / measured.len() as f64;
    let squares: f64 = measured.iter().map(|time| (time - mean).powi(2)).sum();
    let pairs: Option<Vec<(f64, f64)>> = base
        .map(|base| own.iter().zip(times(base)).filter_map(|(own, base)| Some(((*own)?, base?))).collect());
    let all = |n: usize| (0..n).collect::<Vec<_>>();
    let resampled = |pairs: &Vec<(f64, f64)>| {
        let n = pairs.len();
        bootstrap(&brisk_link::seeds::rng(seed, "browse"), RESAMPLES, n, |rng| {
            gain(pairs, &(0..n).map(|_| below(n, rng)).collect::<Vec<_>>())
        })
    };
    MeanTime {
        n: measured.len(),
        mean,
        sd: (squares / (measured.len() as f64 - 1.0)).sqrt(),
        gain: pairs.as_ref().map(|pairs| gain(pairs, &all(pairs.len()))),
        gain_ci95: pairs.as_ref().map(resampled),
        ci95: Sample::new(measured).interval(Statistic::Mean),
    }
}

/// Returns the difference of the means of these pairs, percent.
fn gain(pairs: &[(f64, f64)], drawn: &[usize]) -> f64 {
    let sum = |of: fn(&(f64, f64)) -> f64| drawn.iter().map(|index| of(&pairs[*index])).sum::<f64>();
    100.0 * (sum(|(own, _)| *own) / sum(|(_, base)| *base) - 1.0)
}

impl PageReport {
    /// Formats the report for a terminal of 80 columns.
    pub fn to_text(&self) -> String {
        let PageReport { page, objects, hosts, bytes, link, arms, .. } = self;
        let mut text =
            format!("{page}: {objects} objects on {hosts} hosts, {bytes} bytes, over {}\n", link.spec);
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(["arm", "n", "load ms", "gain %", "first paint ms", "gain %", "conns", "SYN"]);
        table.add_rows(arms.iter().map(ArmReport::row));
        text += &text_table::lines(table, 1..);
        text.push_str("Below each figure: its 95 % interval. SYN: percent of the hop's connections whose first bytes came with it.\n");
        for arm in arms {
            if (arm.requests - *objects as f64).abs() > 0.05 {
                text.push_str(&format!(
                    "{}: {:.1} requests a load for {objects} objects.\n",
                    arm.name, arm.requests
                ));
            }
            if let Some(why) = &arm.last_failure {
                text.push_str(&format!("{}: {} loads failed, the last one: {why}\n", arm.name, arm.failed));
            }
        }
        if !self.valid {
            text.push_str(&format!("{}\n", self.verdict));
        }
        text
    }
}

impl ArmReport {
    fn row(&self) -> [String; 8] {
        let time =
            |MeanTime { mean, ci95: [low, high], .. }: &MeanTime| format!("{mean:.0}\n{low:.0}..{high:.0}");
        let gain = |time: &MeanTime| match (time.gain, time.gain_ci95) {
            (Some(gain), Some([low, high])) => format!("{gain:.1}\n{low:.1}..{high:.1}"),
            _ => "-".to_owned(),
        };
        [
            self.name.clone(),
            self.load.n.to_string(),
            time(&self.load),
            gain(&self.load),
            time(&self.paint),
            gain(&self.paint),
            format!("{:.1}", self.connections),
            format!("{:.0}", self.with_syn),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arm(times: &[Option<f64>]) -> ArmLoads {
        let load = |time: &Option<f64>| {
            let load = |load_ms| Load { load_ms, paint_ms: None, requests: 1, connections: 1 };
            time.map(load).ok_or_else(|| "failed".to_owned())
        };
        ArmLoads { loads: times.iter().map(load).collect(), hop: (1, 0) }
    }

    #[test]
    fn gain_includes_only_rounds_with_both_measurements() {
        let base: Vec<Option<f64>> = (1..=40).map(|n| Some(f64::from(n) * 100.0)).collect();
        let mut fast: Vec<Option<f64>> = base.iter().map(|time| time.map(|time| 0.9 * time)).collect();
        fast[39] = None;
        let time = mean_time(&arm(&fast), Some(&arm(&base)), 1, |load| Some(load.load_ms));
        assert_eq!((time.n, time.mean), (39, 1800.0));
        let [low, high] = time.gain_ci95.unwrap();
        assert!(
            (time.gain.unwrap() + 10.0).abs() < 1e-9
                && (low + 10.0).abs() < 1e-6
                && (high + 10.0).abs() < 1e-6
        );
    }

    #[test]
    fn missing_measurement_gives_nan_without_a_panic() {
        let time = mean_time(&arm(&[None, None]), Some(&arm(&[Some(1.0), None])), 1, |load| load.paint_ms);
        assert!(time.n == 0 && time.mean.is_nan() && time.gain.unwrap().is_nan());
    }
}
