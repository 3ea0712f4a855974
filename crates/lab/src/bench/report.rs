//! Medians over rounds, in one table.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

use super::Cost;
use super::end::Work;
use super::rows::{Goal, Row, Setup};
use crate::statistics::Sample;

/// The results of all rows.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct BenchReport {
    /// Number of measurements of each row.
    pub rounds: usize,
    /// Duration of each measurement, seconds.
    pub seconds: f64,
    /// Cores for both ends together.
    pub cores: usize,
    /// The rows, in order.
    pub rows: Vec<RowReport>,
}

/// The result of one row.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RowReport {
    /// Name of the row.
    pub name: &'static str,
    /// The transfers in words.
    pub what: &'static str,
    /// `byte`, `transaction` or `round trip`: costs are nanoseconds per unit.
    pub unit: &'static str,
    /// The TCP that the candidate is compared with.
    pub baseline: SetupReport,
    /// The TCP under test.
    pub candidate: SetupReport,
    /// `baseline/candidate` or `candidate/baseline`: the direction of the ratio.
    pub ratio_of: &'static str,
    /// Ratio of the processor times of both ends.
    pub cpu: Spread,
    /// Value of `cpu` if the server's own code took no time. The path through the device and the other end
    /// still have their cost. Present in rows that compare a server in user space with the kernel.
    pub limit: Option<f64>,
    /// Ratio of the wall-clock times per unit, in the direction of `ratio_of`.
    pub time: Spread,
    /// The ratio to which the goal applies.
    pub goal_of: &'static str,
    /// Goal for that ratio: a minimum, or a maximum for `candidate/baseline`.
    pub goal: Option<f64>,
    /// True if the median meets the goal.
    pub met: Option<bool>,
}

/// The result of one TCP, medians over the rounds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SetupReport {
    /// The TCP and its path.
    pub name: String,
    /// The median of each value.
    pub median: Cost,
}

/// A ratio over the rounds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// Minimum.
    pub min: f64,
    /// Maximum.
    pub max: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Spread {
        let sample = Sample::new(values.collect());
        Spread { median: sample.quantile(0.5), min: sample.quantile(0.0), max: sample.quantile(1.0) }
    }
}

impl SetupReport {
    fn new<'a>(name: String, costs: impl Iterator<Item = &'a Cost> + Clone) -> SetupReport {
        let median = |of: fn(&Cost) -> f64| Spread::of(costs.clone().map(of)).median;
        let median = Cost {
            per_second: median(|cost| cost.per_second),
            both: median(|cost| cost.both),
            server: median(|cost| cost.server),
            server_user: median(|cost| cost.server_user),
            packets: median(|cost| cost.packets),
            wakeups: median(|cost| cost.wakeups),
            busy: median(|cost| cost.busy),
            failed: costs.clone().map(|cost| cost.failed).sum(),
        };
        SetupReport { name, median }
    }
}

impl RowReport {
    /// Computes the report. Each round has a measurement of the baseline and one of the candidate.
    pub(super) fn new(row: &Row, rounds: Vec<(Cost, Cost)>) -> RowReport {
        let upside_down = matches!(row.goal, Goal::AtMost(_));
        let turned = |ratio: f64| if upside_down { 1.0 / ratio } else { ratio };
        let cpu = Spread::of(rounds.iter().map(|(old, new)| turned(old.both / new.both)));
        let time = Spread::of(rounds.iter().map(|(old, new)| turned(new.per_second / old.per_second)));
        let limited = match row.candidate {
            Setup::Tun { .. } | Setup::Own { .. } | Setup::Xdp | Setup::Behind { .. } => true,
            Setup::Kernel { .. } | Setup::KernelOn(_) | Setup::TunOn(_) | Setup::Udp(_) => false,
        };
        let without_own = |(old, new): &(Cost, Cost)| turned(old.both / (new.both - new.server_user));
        let limit = limited.then(|| Spread::of(rounds.iter().map(without_own)).median);
        let (goal, met) = match row.goal {
            Goal::AtLeast(min) => (Some(min), Some(cpu.median >= min)),
            Goal::AtMost(max) => (Some(max), Some(cpu.median <= max)),
            Goal::Faster(min) => (Some(min), Some(time.median >= min)),
            Goal::None => (None, None),
        };
        RowReport {
            name: row.name,
            what: row.what,
            unit: match row.work {
                Work::Upload | Work::Delivery | Work::Download | Work::Handover => "byte",
                Work::Transactions { .. } => "transaction",
                Work::PingPong => "round trip",
            },
            baseline: SetupReport::new(row.baseline.name(), rounds.iter().map(|(old, _)| old)),
            candidate: SetupReport::new(row.candidate.name(), rounds.iter().map(|(_, new)| new)),
            ratio_of: if upside_down { "candidate/baseline" } else { "baseline/candidate" },
            cpu,
            limit,
            time,
            goal_of: if matches!(row.goal, Goal::Faster(_)) { "time" } else { "cpu" },
            goal,
            met,
        }
    }

    /// Converts a cost in ns per unit to a common unit: ms per GB, us per transaction.
    fn cost(&self, nanoseconds: f64) -> String {
        match self.unit {
            "byte" => format!("{:.0} ms/GB", nanoseconds * 1e3),
            _ => format!("{:.1} us", nanoseconds / 1e3),
        }
    }

    /// Formats a count per unit: per GB, or per transaction.
    fn count(&self, per_unit: f64) -> String {
        match self.unit {
            "byte" => format!("{:.0} /GB", per_unit * 1e9),
            _ => format!("{per_unit:.2}"),
        }
    }

    fn goal(&self) -> String {
        let sign = if self.ratio_of == "candidate/baseline" { "<=" } else { ">=" };
        let of = if self.goal_of == "time" { "time " } else { "" };
        self.goal.map_or_else(String::new, |goal| format!("{of}{sign} {goal:.2}"))
    }
}

impl BenchReport {
    /// Returns the report as text for a terminal.
    pub fn to_text(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header([
            "row", "against", "CPU", "of", "CPU", "server", "its own", "ratio", "range", "limit", "goal",
            "time",
        ]);
        for row in &self.rows {
            let Cost { both, server, server_user, .. } = row.candidate.median;
            table.add_row([
                row.name.to_owned(),
                row.baseline.name.clone(),
                row.cost(row.baseline.median.both),
                row.candidate.name.clone(),
                row.cost(both),
                row.cost(server),
                row.cost(server_user),
                format!("{:.2}", row.cpu.median),
                format!("{:.2}-{:.2}", row.cpu.min, row.cpu.max),
                row.limit.map_or_else(String::new, |limit| format!("{limit:.2}")),
                row.goal(),
                format!("{:.2}", row.time.median),
            ]);
        }
        for column in [2, 4, 5, 6, 7, 8, 9, 10, 11] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let mut counts = Table::new();
        counts.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        counts.set_header(["row", "against", "packets", "wake-ups", "of", "packets", "wake-ups"]);
        for row in &self.rows {
            let [against, of] = [&row.baseline, &row.candidate];
            let [before, after] = [against, of].map(|setup| {
                [setup.median.packets, setup.median.wakeups].map(|per_unit| row.count(per_unit))
            });
            let [packets, wakeups] = before;
            let [own_packets, own_wakeups] = after;
            counts.add_row([
                row.name.to_owned(),
                against.name.clone(),
                packets,
                wakeups,
                of.name.clone(),
                own_packets,
                own_wakeups,
            ]);
        }
        for column in [2, 3, 5, 6] {
            if let Some(column) = counts.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let failed: u64 =
            self.rows.iter().map(|row| row.baseline.median.failed + row.candidate.median.failed).sum();
        let BenchReport { rounds, seconds, cores, .. } = self;
        let mut text = format!(
            "{rounds} alternating rounds of {seconds} s, both ends on {cores} core{}\n{table}\n\
             CPU: processor time of both ends (in rows named routed-*: busy time of the server's core); \
             server: of the server alone;\nits own: of the server in user mode; limit: the ratio if that were zero; \
             time: the ratio of wall-clock times\n\n{counts}\n\
             packets: at the interfaces of the client's host, a super-packet counts as one; \
             wake-ups: of both ends\n",
            if *cores == 1 { "" } else { "s, one each" }
        );
        if failed > 0 {
            text += &format!("{failed} transactions failed\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::rows::rows;

    fn cost(both: f64) -> Cost {
        let (server, server_user) = (both / 2.0, 1.0);
        let (packets, wakeups) = (both / 1e6, 2.5);
        Cost { per_second: 1e9 / both, both, server, server_user, packets, wakeups, busy: 1.0, failed: 0 }
    }

    fn report(name: &str, rounds: &[(f64, f64)]) -> RowReport {
        let row = rows().into_iter().find(|row| row.name == name).unwrap();
        RowReport::new(&row, rounds.iter().map(|(old, new)| (cost(*old), cost(*new))).collect())
    }

    #[test]
    fn ratio_is_the_median_of_the_ratios_of_rounds() {
        let row = report("rr64", &[(100.0, 50.0), (300.0, 150.0), (200.0, 80.0)]);
        assert_eq!((row.cpu.median, row.cpu.min, row.cpu.max), (2.0, 2.0, 2.5));
        assert_eq!((row.goal, row.met), (Some(1.6), Some(true)));
        assert_eq!(row.time.median, row.cpu.median);
        // In each measurement the server's own code takes 1 ns.
        assert_eq!(row.limit, Some(100.0 / 49.0));
        assert_eq!(row.baseline.median.both, 200.0);
    }

    #[test]
    fn cost_ratio_is_shown_as_a_multiple() {
        let row = report("proactive", &[(1.0, 2.5)]);
        assert_eq!((row.cpu.median, row.met, row.ratio_of), (2.5, Some(false), "candidate/baseline"));
        let text = BenchReport { rounds: 1, seconds: 1.0, cores: 1, rows: vec![row] }.to_text();
        assert!(text.contains("1000 /GB") && text.contains("2500 /GB"), "{text}");
        assert!(text.contains("2500 ms/GB") && !text.contains("inf") && text.contains("<= 2.00"), "{text}");
    }
}
