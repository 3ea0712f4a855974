//! The demonstration's text on a terminal of 80 columns: introduction, progress, result.

use std::fmt::Write;

use brisk_lab::demo::{Demo, DemoArm, DemoReport, Snapshot};
use brisk_runtime::profile::DEFAULT_MAX_OVERHEAD;

/// Maximum width of the progress bar, columns.
const BAR: usize = 30;

pub(super) fn introduction(demo: &Demo) -> String {
    let link = demo.link.to_string();
    let link = if link.is_empty() { "no delay, no limit" } else { &link };
    format!(
        "clients --> frontend ======== hop ========> backend --> origin\n{}{}\n",
        fill(&format!("hop:  {link}")),
        fill(&format!(
            "load: {:.0} requests of {} per second, each on a fresh connection; the first {} s teach each row its path and are \
             not counted",
            demo.per_second,
            demo.size_text,
            demo.warm_up.as_secs(),
        )),
    )
}

pub(super) fn live(demo: &Demo, snapshot: &Snapshot) -> String {
    let whole = if snapshot.warming_up { demo.warm_up } else { demo.duration };
    let share = (snapshot.elapsed.as_secs_f64() / whole.as_secs_f64()).min(1.0);
    let done = (share * BAR as f64) as usize;
    let mut text = format!(
        "[{:=<done$}{:width$}] {:.0} of {} s{}{}\n\n",
        "",
        "",
        snapshot.elapsed.as_secs_f64().min(whole.as_secs_f64()),
        whole.as_secs(),
        if snapshot.warming_up { " of warm-up, not counted" } else { "" },
        if share < 1.0 { "" } else { ", waiting for the last answers" },
        width = BAR - done,
    );
    text.push_str("arm               answered  under way   p50 ms   p95 ms   p99 ms  packets lost\n");
    for arm in &snapshot.arms {
        let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|q| number(arm.times.quantile(q), 0));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:<17} {:8} {:10} {p50:>8} {p95:>8} {p99:>8} {:13}",
            cut(&arm.name, 17),
            arm.answered,
            arm.outstanding,
            arm.lost
        );
    }
    text
}

pub(super) fn result(demo: &Demo, report: &DemoReport) -> String {
    let mut text =
        "arm               answered   p50 ms   p95 ms   p99 ms   p50/RTT  p99/RTT  wire\n".to_owned();
    for DemoArm { measured, simulated_ms, .. } in &report.arms {
        let _ = writeln!(
            text,
            "{:<17} {:8} {:>8} {:>8} {:>8} {:>9} {:>8}  {:>4}",
            cut(&measured.name, 17),
            measured.completed,
            number(measured.ms.p50, 0),
            number(measured.ms.p95, 0),
            number(measured.ms.p99, 0),
            number(measured.rtts.p50, 2),
            number(measured.rtts.p99, 2),
            number(measured.wire_ratio, 2),
        );
        let _ = writeln!(
            text,
            "  simulated                {:>8} {:>8} {:>8}",
            number(simulated_ms.p50, 0),
            number(simulated_ms.p95, 0),
            number(simulated_ms.p99, 0),
        );
    }
    text.push('\n');
    if report.arms.iter().any(|arm| arm.measured.name == "all") {
        let _ = writeln!(
            text,
            "'all' is a gateway pair as installed (max_overhead {DEFAULT_MAX_OVERHEAD}) on a path that it knows."
        );
    }
    text.push_str("'simulated': one request at a time on this link, without this machine's delays.\n");
    text.push_str(&warnings(report));
    text.push_str(&sentence(demo, report));
    let _ = writeln!(text, "\nTry next:  brisk whatif {} --flow {}", demo.link, demo.size_text);
    text
}

fn warnings(report: &DemoReport) -> String {
    let mut text = String::new();
    for arm in &report.arms {
        let measured = &arm.measured;
        if !arm.valid {
            let _ = writeln!(text, "{}: {}; this machine is too busy", measured.name, arm.verdict);
        }
        if measured.completed < measured.n {
            let missing = measured.n - measured.completed;
            let why = arm.last_failure.as_deref().unwrap_or("not answered in time");
            let _ = writeln!(text, "{}: {missing} requests were not answered: {why}", measured.name);
        }
    }
    text
}

/// One sentence about the result.
fn sentence(demo: &Demo, report: &DemoReport) -> String {
    let Some(first) = report.arms.first().filter(|arm| arm.measured.completed > 0) else {
        return "No request was answered.\n".to_owned();
    };
    let measured = &first.measured;
    let in_rtts = |rtts: f64, ms: f64| match rtts.is_nan() {
        true => format!("{ms:.0} ms"),
        false => format!("{rtts:.1} round trips"),
    };
    let mut text = format!(
        "With {}, half of the {} answers of {} came within {} and one in a hundred took more than {}, for {} bytes on the wire per byte of payload",
        describe(&measured.name),
        measured.completed,
        demo.size_text,
        in_rtts(measured.rtts.p50, measured.ms.p50),
        in_rtts(measured.rtts.p99, measured.ms.p99),
        number(measured.wire_ratio, 2),
    );
    let best = report.arms.iter().skip(1).filter(|arm| arm.measured.completed > 0);
    if let Some(best) = best.min_by(|a, b| a.measured.ms.p99.total_cmp(&b.measured.ms.p99)) {
        let _ = write!(
            text,
            "; with {} it was {} and {}, for {}",
            describe(&best.measured.name),
            in_rtts(best.measured.rtts.p50, best.measured.ms.p50),
            in_rtts(best.measured.rtts.p99, best.measured.ms.p99),
            number(best.measured.wire_ratio, 2),
        );
    }
    text.push_str(".\n");
    fill(&text)
}

fn describe(arm: &str) -> String {
    match arm {
        "tcp" => "plain TCP".to_owned(),
        other => format!("'{other}'"),
    }
}

/// Breaks a sentence into lines of a terminal.
fn fill(text: &str) -> String {
    let mut filled = String::new();
    let mut width = 0;
    for word in text.split_whitespace() {
        let len = word.chars().count();
        if width > 0 && width + 1 + len > 80 {
            filled.push('\n');
            width = 0;
        } else if width > 0 {
            filled.push(' ');
            width += 1;
        }
        filled.push_str(word);
        width += len;
    }
    filled.push('\n');
    filled
}

fn number(value: f64, digits: usize) -> String {
    if value.is_nan() { "-".to_owned() } else { format!("{value:.digits$}") }
}

fn cut(text: &str, width: usize) -> String {
    match text.chars().count() > width {
        true => text.chars().take(width - 2).chain("..".chars()).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_is_filled_to_eighty_columns() {
        let filled = fill(&"word ".repeat(40));
        assert!(filled.lines().all(|line| line.len() <= 80) && filled.lines().count() == 3, "{filled}");
    }

    #[test]
    fn a_long_name_is_cut() {
        assert_eq!(cut("fast_open,corrective=f2", 17), "fast_open,corre..");
        assert_eq!(cut("tcp", 17), "tcp");
    }
}
