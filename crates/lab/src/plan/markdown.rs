//! The report of [`super::page`] as Markdown, for a repository: an overview, and a page for each plan with
//! every result and its reason.

use crate::plan::evaluation::{Finding, PlanReport, Verdict, short};
use crate::real::report::{ContestantReport, RealReport, Times};

/// Origin of the results, for the head of the page.
#[derive(Clone, Debug)]
pub struct ReportSource {
    /// The command that writes the page.
    pub command: String,
    /// Version of the program.
    pub version: String,
    /// Seed of all random numbers.
    pub seed: String,
    /// Description of the machine. Results in virtual time do not depend on it.
    pub machine: Option<String>,
}

/// Returns the overview of some plans. `folder` is the relative directory of their pages.
pub fn overview(plans: &[PlanReport], source: &ReportSource, folder: &str) -> String {
    let findings = || plans.iter().flat_map(PlanReport::findings);
    let unexplained = findings().filter(|finding| finding.is_unexplained()).count();
    let count = |verdict| findings().filter(|finding| finding.verdict == verdict).count();
    let ReportSource { command, version, seed, machine } = source;
    let mut text = format!(
        "# Reproduction\n\nThis page lists every table and figure of both papers ([words](README.md#words)), and brisk's own experiments, with\n\
         brisk's results. brisk {version} wrote it with seed {seed}, in virtual time{}:\n\n```\n{command}\n```\n\nThe same seed gives the same figures everywhere.\n\n\
         Of {} figures, {} are in the expected range (`ok`), {} are outside it by an amount that chance can explain (`unsure`), and\n\
         {} are outside it by more (`OUTSIDE`). For {unexplained} of the last group no experiment has tested a reason. The plan has the\n\
         expected range; if the range excludes the paper's figure, the last column gives the reason and, after *Checked*, the\n\
         experiment that tested it. [The lab](lab.md) defines the verdicts. Some ranges were set after the first run: for these `ok`\n\
         means only that the figure has not changed since, so compare it with the paper's.\n",
        machine.as_ref().map(|machine| format!(" on {machine}")).unwrap_or_default(),
        findings().count(),
        count(Verdict::Within),
        count(Verdict::Unsure),
        count(Verdict::Outside),
    );
    text.push_str(
        "\n## Overview\n\n| experiment | source | claim | brisk | verdict |\n|---|---|---|---|---|\n",
    );
    for plan in plans {
        let PlanReport { plan: name, source, claim, .. } = plan;
        let claim = claim.as_ref().map_or("", |claim| &claim.text);
        let ours = plan.answers().join("; ");
        text.push_str(&format!(
            "| [{name}]({folder}/{name}.md) | {source} | {claim} | {ours} | {} |\n",
            plan.verdict()
        ));
    }
    text
}

/// Returns the page of one plan.
pub fn page(plan: &PlanReport) -> String {
    let PlanReport { plan: name, title, source, about, cells, .. } = plan;
    let mut text = format!(
        "# {title}\n\n`{name}`: {source}.\n\n{}\n\n[The lab](../lab.md#a-plan) explains the names of figures, the arms and the \
         verdicts. A gain below 0 is a shorter time.\n\n",
        about.trim()
    );
    for cell in cells {
        let link =
            if cell.report.link.spec.is_empty() { "no delay, no limit" } else { &cell.report.link.spec };
        let workload = &cell.report.workload;
        let connection = if workload.established { ", open connection" } else { "" };
        text.push_str(&format!(
            "- {}: `{link}`, {}{connection}, {} transactions per arm\n",
            cell.cell, workload.flow, workload.n
        ));
    }
    text.push_str("\n| cell | arm | figure | paper | brisk | 95 % interval | difference | expected | verdict | why |\n|---|---|---|---|---|---|---|---|---|---|\n");
    for cell in cells {
        cell.expected.iter().for_each(|finding| text.push_str(&row(&cell.cell, finding)));
    }
    for cell in cells {
        cell.real.iter().for_each(|real| contestants(&cell.cell, real, &mut text));
    }
    text
}

fn contestants(cell: &str, real: &RealReport, text: &mut String) {
    text.push_str(&format!(
        "\nCell {cell} in real time, {} bytes, {} at a time (ms; IP bytes that each side sent / payload; CPU time of the\n\
         contestant's processes per request, ms; percent of the bytes that its bulk flow carried while it competed with one of the kernel's CUBIC; whether the link delivered its packets on time):\n\n\
         | contestant | answered | failed | mean | 95 % interval | p50 | p95 | p99 | up | down | CPU | share | link |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
        real.bytes, real.parallel
    ));
    let or_dash = |value: Option<f64>| value.map_or("-".to_owned(), short);
    for contestant in &real.contestants {
        let Times { mean, mean_ci95: [low, high], p50, p95, p99 } = contestant.ms;
        let [mean, low, high, p50, p95, p99] = [mean, low, high, p50, p95, p99].map(short);
        let [up, down] = [contestant.wire_up, contestant.wire_down].map(short);
        let ContestantReport { name, answered, failed, .. } = contestant;
        let link = if contestant.valid { "valid" } else { "INVALID" };
        let (cpu, share) = (or_dash(contestant.cpu_ms), or_dash(contestant.share));
        text.push_str(&format!(
            "| {name} | {answered} | {failed} | {mean} | {low} to {high} | {p50} | {p95} | {p99} | {up} | {down} | {cpu} | {share} | {link} |\n"
        ));
    }
}

fn row(cell: &str, finding: &Finding) -> String {
    let Finding { arm, metric, unit, paper, brisk, ci95: [low, high], range: [from, to], verdict, .. } =
        finding;
    let Finding { why, checked, .. } = finding;
    let checked = if checked.is_empty() { String::new() } else { format!(" *Checked:* {checked}") };
    format!(
        "| {cell} | {arm} | `{metric}` | {} | {} | {} to {} | {} | {} to {} | {} | {} |\n",
        paper.map_or("-".to_owned(), short),
        format!("{} {unit}", short(*brisk)).trim_end(),
        short(*low),
        short(*high),
        paper.map_or("-".to_owned(), |paper| short(brisk - paper)),
        short(*from),
        short(*to),
        verdict.sign(),
        format!("{why}{checked}").replace('|', "/").trim(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_as_many_columns_as_the_heading() {
        let finding = Finding {
            arm: "tcp+tfo".to_owned(),
            metric: "gain.p50".to_owned(),
            unit: "%",
            paper: Some(-50.0),
            brisk: -49.5,
            kernel: None,
            real: None,
            ci95: [-50.0, -49.0],
            chance: None,
            range: [-51.0, -49.0],
            verdict: Verdict::Within,
            why: "a | b.".to_owned(),
            checked: "a cell.".to_owned(),
        };
        let row = row("cell", &finding);
        assert_eq!(
            row,
            "| cell | tcp+tfo | `gain.p50` | -50.0 | -49.5 % | -50.0 to -49.0 | 0.50 | -51.0 to -49.0 | ok | a / b. *Checked:* a cell. |\n"
        );
        let [plan, title, source, about] = ["p", "t", "s", "a"].map(str::to_owned);
        let text = page(&PlanReport { plan, title, source, about, claim: None, cells: Vec::new() });
        let heading = text.lines().find(|line| line.starts_with("| cell")).unwrap();
        assert_eq!(heading.matches('|').count(), row.matches('|').count());
    }
}
