//! Output of an emulated link: a line per second during the run, and text or JSON at its end.

use std::time::Duration;

use brisk_link::{Counters, LinkSpec};
use serde_json::{Value, json};

use super::{Outcome, Percentiles, Progress, Validity};

/// Formats the running counters as a line per second.
#[derive(Debug, Default)]
pub struct Ticker {
    lines: u64,
    last: Option<(Duration, Counters, Counters)>,
}

/// Number of lines after which the heading is repeated.
const HEADING_EVERY: u64 = 20;

impl Ticker {
    /// Returns the line for the time since the last call; at intervals, a heading precedes it.
    pub fn line(&mut self, progress: &Progress<'_>) -> String {
        let (before, up, down) = self.last.unwrap_or_default();
        let seconds = (progress.elapsed - before).as_secs_f64();
        let heading = self.lines.is_multiple_of(HEADING_EVERY);
        self.lines += 1;
        self.last = Some((progress.elapsed, *progress.up, *progress.down));
        let mut text = String::new();
        if heading {
            text.push_str("         ----------- up -----------   ---------- down ----------  lateness\n");
            text.push_str("seconds  Mbit/s  packets  lost full   Mbit/s  packets  lost full    p99 us\n");
        }
        text.push_str(&format!(
            "{:7.0} {}  {} {:9.0}",
            progress.elapsed.as_secs_f64(),
            since(progress.up, &up, seconds),
            since(progress.down, &down, seconds),
            progress.late.p99,
        ));
        text
    }
}

/// Returns rate, packets, losses and queue drops of one direction since `before`.
fn since(now: &Counters, before: &Counters, seconds: f64) -> String {
    let mbit = (now.delivered_bytes - before.delivered_bytes) as f64 * 8e-6 / seconds;
    format!(
        "{mbit:7.2} {:8} {:5} {:4} ",
        now.delivered - before.delivered,
        now.dropped_loss - before.dropped_loss,
        now.dropped_queue - before.dropped_queue,
    )
}

impl Outcome {
    /// Formats the result for a terminal of 80 columns.
    pub fn to_text(&self, spec: &LinkSpec) -> String {
        let Outcome { elapsed, up, down, late, validity, fifo, send_errors, last_send_error, .. } = self;
        let seconds = elapsed.as_secs_f64();
        let scheduling = if *fifo { "SCHED_FIFO" } else { "ordinary priority" };
        let mut text = format!("link      {}\nran       {seconds:.1} s, {scheduling}\n\n", shown(spec));
        text.push_str("       packets      Mbit/s     lost  queue full  other drops  reordered  copies\n");
        for (name, counters) in [("up", up), ("down", down)] {
            text.push_str(&format!(
                "{name:<5}{:9} {:11.2} {:8} {:11} {:12} {:10} {:7}\n",
                counters.delivered,
                counters.delivered_bytes as f64 * 8e-6 / seconds,
                counters.dropped_loss,
                counters.dropped_queue,
                counters.dropped_middlebox + counters.dropped_mtu,
                counters.reordered,
                counters.duplicated,
            ));
        }
        let Percentiles { p50, p99, p999, max } = late;
        text.push_str(&format!(
            "\nlateness  p50 {p50:.1} us, p99 {p99:.0} us, p99.9 {p999:.0} us, max {max:.0} us\n"
        ));
        text.push_str(&match validity {
            Validity::Valid => "timing    valid\n".to_owned(),
            Validity::TooLate { .. } => format!("{validity}\n"),
        });
        if let Some(error) = last_send_error {
            text.push_str(&format!("          {send_errors} packets were refused by an end: {error}\n"));
        }
        text
    }

    /// Returns the result as one JSON object.
    pub fn to_json(&self, spec: &LinkSpec, seed: u64) -> Value {
        let Outcome { elapsed, up, down, late, validity, fifo, spun, send_errors, last_send_error } = self;
        json!({
            "link": {"spec": spec.to_string(), "base_rtt_ms": spec.base_rtt().as_secs_f64() * 1e3},
            "seed": seed,
            "seconds": elapsed.as_secs_f64(),
            "valid": validity.is_valid(),
            "verdict": validity.to_string(),
            "lateness_us": late,
            "scheduling": if *fifo { "fifo" } else { "ordinary" },
            "spun_seconds": spun.as_secs_f64(),
            "send_errors": send_errors,
            "last_send_error": last_send_error,
            "up": counters(up),
            "down": counters(down),
        })
    }
}

fn shown(spec: &LinkSpec) -> String {
    let text = spec.to_string();
    if text.is_empty() { "transparent".to_owned() } else { text }
}

fn counters(counters: &Counters) -> Value {
    let Counters {
        offered,
        offered_bytes,
        delivered,
        delivered_bytes,
        dropped_queue,
        dropped_loss,
        dropped_middlebox,
        dropped_mtu,
        duplicated,
        split,
        coalesced,
        reordered,
        marked,
        max_queue_bytes,
        in_flight,
    } = counters;
    json!({
        "offered": offered,
        "offered_bytes": offered_bytes,
        "delivered": delivered,
        "delivered_bytes": delivered_bytes,
        "dropped_queue": dropped_queue,
        "dropped_loss": dropped_loss,
        "dropped_middlebox": dropped_middlebox,
        "dropped_mtu": dropped_mtu,
        "duplicated": duplicated,
        "split": split,
        "coalesced": coalesced,
        "reordered": reordered,
        "marked": marked,
        "max_queue_bytes": max_queue_bytes,
        "in_flight": in_flight,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tick_shows_the_last_second_within_eighty_columns() {
        let at = |seconds, delivered: u64| {
            let counters = Counters {
                delivered,
                delivered_bytes: delivered * 1250,
                dropped_loss: 3,
                ..Counters::default()
            };
            (Duration::from_secs(seconds), counters)
        };
        let mut ticker = Ticker::default();
        let mut tick = |(elapsed, counters): (Duration, Counters)| {
            let late = Percentiles { p99: 21.4, ..Percentiles::default() };
            ticker.line(&Progress { elapsed, up: &counters, down: &counters, late })
        };
        let first = tick(at(1, 1000));
        assert!(first.lines().count() == 3 && first.contains(" 10.00     1000     3"), "{first}");
        let second = tick(at(2, 1500));
        assert!(second.contains("  5.00      500     0"), "{second}");
        assert!(
            first.lines().chain(second.lines()).all(|line| line.chars().count() <= 80),
            "{first}\n{second}"
        );
    }
}
