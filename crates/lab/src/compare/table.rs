//! A comparison as a table: one row per arm, with intervals below the values.

use comfy_table::{ContentArrangement, Table, presets};

use super::{ArmReport, Report};
use crate::statistics::Interval;
use crate::text_table;

/// Columns of the terminal.
const WIDTH: u16 = 80;

type Row = [String; 10];

const HEADINGS: [&str; 10] =
    ["arm", "mean ms", "p50 ms", "p90 ms", "p99 ms", "p50\nin RTT", "p99\nin RTT", "wire", "hit", "timeouts"];

/// Maximum length of an arm's name in the table. If a name is longer, the table has numbers instead of names.
const LONGEST_NAME: usize = 12;

/// Returns the whole text, line end included.
pub(super) fn text(report: &Report) -> String {
    let mut text = heading(report);
    let numbered = report.arms.iter().any(|arm| arm.name.chars().count() > LONGEST_NAME);
    if numbered {
        for (index, arm) in report.arms.iter().enumerate() {
            text.push_str(&wrapped(&format!("arm {}: {}", index + 1, arm.name)));
        }
        text.push('\n');
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    table.set_header(HEADINGS);
    let rows = |interval: &str| -> Vec<Row> {
        let name =
            |index: usize, arm: &ArmReport| if numbered { (index + 1).to_string() } else { arm.name.clone() };
        report.arms.iter().enumerate().map(|(index, arm)| row(name(index, arm), arm, interval)).collect()
    };
    let on_a_line = rows("..");
    // The table would break a long interval anywhere, and a part of a number looks like another number.
    table.add_rows(if width(&on_a_line) <= usize::from(WIDTH) { on_a_line } else { rows("..\n") });
    text += &text_table::lines(table, 1..);
    text.push_str("\nBelow each time: its 95 % confidence interval. wire: IP bytes / payload bytes.\n");
    text.push_str("hit: share of transactions that lost a packet. timeouts: per transaction.\n");
    for arm in report.arms.iter().filter(|arm| arm.completed < arm.n) {
        text.push_str(&format!(
            "{}: {} of {} transactions did not complete in 600 s; their times are omitted.\n",
            arm.name,
            arm.n - arm.completed,
            arm.n
        ));
    }
    text
}

fn heading(report: &Report) -> String {
    let workload = &report.workload;
    let connections = if workload.established { "an open connection" } else { "a fresh connection each" };
    let link = match report.link.spec.as_str() {
        "" => "a link without delay or limit",
        link => link,
    };
    let n = report.arms.iter().map(|arm| arm.n).max().unwrap_or_default();
    let planned = if n < workload.n { format!(" of {}", workload.n) } else { String::new() };
    wrapped(&format!("{} over {link}", workload.flow))
        + &wrapped(&format!(
            "{n}{planned} transactions per arm, {connections}, {}-byte requests, seed {}",
            workload.request_bytes, report.seed
        ))
        + "\n"
}

/// Breaks a line at spaces so that it fits.
fn wrapped(line: &str) -> String {
    let mut text = String::new();
    let mut width = 0;
    for word in line.split(' ') {
        let len = word.chars().count();
        if width > 0 && width + 1 + len > usize::from(WIDTH) {
            text.push_str("\n  ");
            width = 2;
        } else if width > 0 {
            text.push(' ');
            width += 1;
        }
        text.push_str(word);
        width += len;
    }
    text.push('\n');
    text
}

/// Returns the columns that the rows need without line breaks, with a space after each.
fn width(rows: &[Row]) -> usize {
    let longest = |cell: &str| cell.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    let column = |(index, heading): (usize, &&str)| {
        let cells = rows.iter().filter_map(|row| row.get(index)).map(|cell| longest(cell));
        cells.max().unwrap_or(0).max(longest(heading)) + 1
    };
    HEADINGS.iter().enumerate().map(column).sum()
}

/// Formats a row; `between` separates the ends of an interval.
fn row(name: String, arm: &ArmReport, between: &str) -> Row {
    let ArmReport { n, ms, ci95, rtts, wire_ratio, timeouts, hit, .. } = arm;
    [
        name,
        with_interval(ms.mean, ci95.mean, between),
        with_interval(ms.p50, ci95.p50, between),
        with_interval(ms.p90, ci95.p90, between),
        with_interval(ms.p99, ci95.p99, between),
        number(rtts.p50, 2),
        number(rtts.p99, 2),
        number(*wire_ratio, 2),
        format!("{} %", number(hit * 100.0, 1)),
        number(*timeouts as f64 / (*n).max(1) as f64, 3),
    ]
}

fn with_interval(value: f64, [low, high]: Interval, between: &str) -> String {
    if value.is_nan() {
        return "-".to_owned();
    }
    format!("{}\n{}{between}{}", milliseconds(value, 1), milliseconds(low, 0), milliseconds(high, 0))
}

fn number(value: f64, digits: usize) -> String {
    if value.is_nan() { "-".to_owned() } else { format!("{value:.digits$}") }
}

/// Formats milliseconds, or seconds if milliseconds are too wide.
fn milliseconds(value: f64, digits: usize) -> String {
    match value {
        100_000.0.. => format!("{:.0}s", value / 1000.0),
        1_000.0.. => number(value, 0),
        _ => number(value, digits),
    }
}
