//! One self-contained HTML file with every plan: its table, its curves and its reasons. It has no external
//! references, supports dark and light mode, and fits a phone.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::plan::evaluation::{CellReport, Finding, PlanReport, Verdict, short};
use crate::real::report::{ContestantReport, RealReport};

const STYLE: &str = include_str!("page.css");

/// Width and height of a plot, and the space for its labels, in units of the drawing.
const PLOT: (f64, f64) = (560.0, 240.0);
const LEFT: f64 = 52.0;
const BOTTOM: f64 = 34.0;
/// The smallest share in a plot: one transaction in a thousand.
const MIN_SHARE: f64 = 1e-3;

/// Returns the page for some plans. `made_by` has the command, the seed and the version.
pub fn page(plans: &[PlanReport], made_by: &str) -> String {
    let findings = || plans.iter().flat_map(PlanReport::findings);
    let unexplained = findings().filter(|finding| finding.is_unexplained()).count();
    let count = |verdict| findings().filter(|finding| finding.verdict == verdict).count();
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "brisk: experiments" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "brisk: experiments" }
                    p { (made_by) }
                    p {
                        (findings().count()) " figures: "
                        strong { (count(Verdict::Within)) } " in the expected range, "
                        strong { (count(Verdict::Unsure)) } " outside it by an amount that chance can explain, "
                        strong { (count(Verdict::Outside)) } " outside it by more."
                        @if unexplained > 0 {
                            " For " strong { (unexplained) } " of the latter no experiment has tested a reason."
                        }
                    }
                }
                div.scroll { table {
                    thead { tr { th { "experiment" } th { "source" } th { "claim" } th { "brisk" } th { "verdict" } } }
                    tbody { @for plan in plans { tr {
                        td { a href={ "#" (plan.plan) } { (plan.plan) } }
                        td { (plan.source) }
                        td { (plan.claim.as_ref().map_or("", |claim| &claim.text)) }
                        td { (plan.answers().join("; ")) }
                        td { (plan.verdict()) }
                    } } }
                } }
                nav { @for plan in plans { a href={ "#" (plan.plan) } { (plan.plan) } " " } }
                main { @for plan in plans { (section(plan)) } }
            }
        }
    };
    markup.into_string()
}

/// Returns every result as CSV, one per line.
pub fn csv(plans: &[PlanReport]) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let heading = [
        "plan", "cell", "arm", "metric", "unit", "paper", "brisk", "low", "high", "from", "to", "verdict",
        "kernel", "real",
    ];
    let mut written = writer.write_record(heading);
    for cell in plans.iter().flat_map(|plan| &plan.cells) {
        for finding in &cell.expected {
            let Finding { arm, metric, unit, paper, brisk, ci95, range, verdict, .. } = finding;
            let numbers = [*brisk, ci95[0], ci95[1], range[0], range[1]].map(|value| value.to_string());
            let texts = [&cell.plan, &cell.cell, arm, metric].map(String::clone);
            let paper = paper.map(|paper| paper.to_string()).unwrap_or_default();
            let record = texts.into_iter().chain([(*unit).to_owned(), paper]).chain(numbers);
            let real = [finding.kernel, finding.real].map(|value| value.map(|value| value.to_string()));
            let record = record.chain([verdict.sign().to_owned()]).chain(real.map(Option::unwrap_or_default));
            written = written.and_then(|()| writer.write_record(record));
        }
    }
    let bytes = written.ok().and_then(|()| writer.into_inner().ok());
    String::from_utf8(bytes.expect("a record in memory is written")).expect("every field is text")
}

fn section(plan: &PlanReport) -> Markup {
    html! {
        section id=(plan.plan) {
            h2 { (plan.title) }
            p.source { (plan.plan) ", " (plan.source) }
            p { (prose(&plan.about)) }
            @for cell in &plan.cells { (cell_part(cell)) }
        }
    }
}

/// Returns the text of a plan, whose words in backticks are code.
fn prose(text: &str) -> Markup {
    html! {
        @for (index, part) in text.split('`').enumerate() {
            @if index % 2 == 0 { (part) } @else { code { (part) } }
        }
    }
}

fn cell_part(cell: &CellReport) -> Markup {
    let link = if cell.report.link.spec.is_empty() { "no delay, no limit" } else { &cell.report.link.spec };
    let workload = &cell.report.workload;
    html! {
        h3 { (cell.cell) }
        p.link {
            code { (link) } ", " (workload.flow) ", "
            (if workload.established { "open connection" } else { "new connection" })
            ", " (workload.n) " transactions per arm, seed " (cell.report.seed)
        }
        @if !cell.expected.is_empty() { (findings(&cell.expected)) }
        @if !cell.report.arms.is_empty() { (arms(cell)) }
        @if let Some(real) = &cell.real { (contestants(real)) }
        (plot(cell))
        @for (arm, drawing) in cell.report.arms.iter().zip(&cell.drawings) {
            h4 { "the first transaction with " (arm.name) }
            div.scroll.drawing { (PreEscaped(drawing)) }
        }
    }
}

fn findings(findings: &[Finding]) -> Markup {
    let real = findings.iter().any(|finding| finding.kernel.or(finding.real).is_some());
    html! {
        div.scroll { table {
            thead { tr {
                th { "arm" } th { "figure" } th { "paper" } th { "brisk" } th { "95 % interval" } th { "difference" }
                @if real { th { "kernel" } th { "brisk, real time" } }
                th { "expected" } th { "" }
            } }
            tbody { @for finding in findings {
                @let [low, high] = finding.ci95;
                @let [from, to] = finding.range;
                tr class=(finding.verdict.class()) {
                    td { (finding.arm) } td { code { (finding.metric) } }
                    td.n { (finding.paper.map_or("-".to_owned(), short)) }
                    td.n { strong { (short(finding.brisk)) } " " (finding.unit) }
                    td.n { (short(low)) " to " (short(high)) }
                    td.n { (finding.paper.map_or("-".to_owned(), |paper| short(finding.brisk - paper))) }
                    @if real {
                        @for value in [finding.kernel, finding.real] {
                            td.n { (value.map_or("-".to_owned(), short)) }
                        }
                    }
                    td.n { (short(from)) " to " (short(to)) }
                    td.verdict { (finding.verdict.sign()) }
                }
                @if !finding.why.is_empty() { (reason(finding, if real { 10 } else { 8 })) }
            } }
        } }
    }
}

/// Returns the reason of a difference as a row over all `columns`, so that it needs no scrolling on a phone.
fn reason(finding: &Finding, columns: usize) -> Markup {
    html! {
        tr.reason { td colspan=(columns) { div.why {
            (prose(&finding.why))
            @if !finding.checked.is_empty() { " " em { "Checked: " } (prose(&finding.checked)) }
        } } }
    }
}

fn arms(cell: &CellReport) -> Markup {
    html! {
        div.scroll { table {
            thead { tr {
                th { "arm" } th { "mean ms" } th { "p50" } th { "p90" } th { "p95" } th { "p99" }
                th { "p50 / RTT" } th { "p99 / RTT" } th { "wire" } th { "hit" } th { "timeouts" } th { "retransmits" }
            } }
            tbody { @for (index, arm) in cell.report.arms.iter().enumerate() {
                tr {
                    td { span class={ "key arm" (index % 6) } {} (arm.name) }
                    @for value in [arm.ms.mean, arm.ms.p50, arm.ms.p90, arm.ms.p95, arm.ms.p99, arm.rtts.p50, arm.rtts.p99, arm.wire_ratio] {
                        td.n { (short(value)) }
                    }
                    td.n { (short(arm.hit * 100.0)) " %" }
                    td.n { (arm.timeouts) }
                    td.n { (arm.retransmits) }
                }
            } }
        } }
    }
}

/// Returns the table of contestants in real time, the kernel first.
fn contestants(real: &RealReport) -> Markup {
    html! {
        p.link {
            "In real time over the emulated link, seed " (real.seed) ", " (real.bytes) " bytes, " (real.parallel)
            " at a time. Up, down: IP bytes that each side sent / payload bytes. CPU: time of the contestant's \
              processes per request, ms. Share: of its bulk flow next to one of the kernel's CUBIC."
        }
        div.scroll { table {
            thead { tr {
                th { "contestant" } th { "answered" } th { "failed" } th { "mean ms" } th { "95 % interval" } th { "p50" } th { "p95" }
                th { "p99" } th { "up" } th { "down" } th { "CPU" } th { "share" } th { "" }
            } }
            tbody { @for contestant in &real.contestants { (contestant_row(contestant)) } }
        } }
    }
}

fn contestant_row(contestant: &ContestantReport) -> Markup {
    let ContestantReport {
        name, answered, failed, last_failure, ms, wire_up, wire_down, cpu_ms, share, ..
    } = contestant;
    let [low, high] = ms.mean_ci95;
    let or_dash = |value: Option<f64>| value.map_or("-".to_owned(), short);
    html! {
        tr {
            td { (name) }
            td.n { (answered) } td.n { (failed) }
            td.n { (short(ms.mean)) }
            td.n { (short(low)) " to " (short(high)) }
            @for value in [ms.p50, ms.p95, ms.p99, *wire_up, *wire_down] { td.n { (short(value)) } }
            td.n { (or_dash(*cpu_ms)) }
            td.n { (or_dash(*share)) @if share.is_some() { " %" } }
            td.why {
                @if let Some(why) = last_failure { (why) ". " }
                @if !contestant.valid { (contestant.verdict) }
            }
        }
    }
}

/// Plots the share of transactions that take longer than each time, on a logarithmic scale that shows the
/// tail.
fn plot(cell: &CellReport) -> Markup {
    let longest = cell.times.iter().flatten().copied().fold(0.0, f64::max);
    let tail = |times: &Vec<f64>| {
        let sample = crate::statistics::Sample::new(times.clone());
        sample.quantile(1.0 - MIN_SHARE)
    };
    let end = cell.times.iter().filter(|times| !times.is_empty()).map(tail).fold(0.0, f64::max).min(longest);
    if end <= 0.0 {
        return html! {};
    }
    let step = nice_step(end / 6.0);
    let (width, height) = PLOT;
    let x = |ms: f64| LEFT + (width - LEFT - 8.0) * ms / end;
    let y = |share: f64| (height - BOTTOM) * (share.max(MIN_SHARE).log10() / MIN_SHARE.log10());
    html! {
        svg viewBox={ "0 -8 " (width) " " (height + 8.0) } role="img"
            aria-label={ "share of transactions slower than a time, " (cell.cell) } {
            @for (share, label) in [(1.0, "100 %"), (0.1, "10 %"), (0.01, "1 %"), (0.001, "0.1 %")] {
                line.grid x1=(LEFT) x2=(width - 8.0) y1=(y(share)) y2=(y(share)) {}
                text.label x=(LEFT - 6.0) y=(y(share) + 4.0) text-anchor="end" { (label) }
            }
            @for tick in (0..).map(|k| f64::from(k) * step).take_while(|ms| *ms <= end) {
                line.grid x1=(x(tick)) x2=(x(tick)) y1="0" y2=(height - BOTTOM) {}
                text.label x=(x(tick)) y=(height - BOTTOM + 15.0) text-anchor="middle" { (tick) }
            }
            text.label x=(width - 8.0) y=(height - 4.0) text-anchor="end" { "slower than, ms" }
            @for (index, times) in cell.times.iter().enumerate() {
                path class={ "curve arm" (index % 6) } d=(curve(times, end, x, y)) {}
            }
        }
    }
}

/// Returns the curve as path data: a step down at each of at most 400 order statistics.
fn curve(times: &[f64], end: f64, x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) -> String {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    let mut path = format!("M{:.1} {:.1}", x(0.0), y(1.0));
    // Evenly distributed in the logarithm of the share, like the axis.
    let shares = (0..400).map(|k| MIN_SHARE.powf(f64::from(k) / 399.0));
    let ranks = shares.map(|share| ((n as f64 * (1.0 - share)) as usize).min(n.saturating_sub(1)));
    let mut last = usize::MAX;
    for rank in ranks.filter(|_| n > 0) {
        if rank == last || sorted[rank] > end {
            continue;
        }
        last = rank;
        let share = 1.0 - rank as f64 / n as f64;
        path.push_str(&format!("H{:.1}V{:.1}", x(sorted[rank]), y(share)));
    }
    path
}

/// Returns 1, 2 or 5 times a power of ten, at least `step`.
fn nice_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|nice| *nice >= step).unwrap_or(step)
}

impl Verdict {
    fn class(self) -> &'static str {
        match self {
            Verdict::Within => "within",
            Verdict::Unsure => "unsure",
            Verdict::Outside => "outside",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_in_backticks_are_code() {
        assert_eq!(prose("a `b<c` d").into_string(), "a <code>b&lt;c</code> d");
    }

    #[test]
    fn steps_are_round_numbers() {
        assert_eq!([0.7, 1.0, 3.0, 17.0, 230.0].map(nice_step), [1.0, 1.0, 5.0, 20.0, 500.0]);
    }

    #[test]
    fn curve_falls_from_1_to_the_minimum_share() {
        let times: Vec<f64> = (1..=1000).map(f64::from).collect();
        let path = curve(&times, 999.0, |ms| ms, |share| -share.log10());
        assert!(
            path.starts_with("M0.0 ") && path.contains("H500.0V0.3") && path.ends_with("H999.0V2.7"),
            "{path}"
        );
    }
}
