//! The last two minutes, second by second, for the status page and `brisk top`.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

/// Number of seconds.
pub const SECONDS: usize = 120;
/// Maximum number of durations that are kept for a second; its percentiles do not include further ones.
const MAX_TIMES: usize = 512;

/// One second.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Second {
    /// Number of the second since the start.
    pub at: u64,
    /// Number of connections that ended in it.
    pub connections: u64,
    /// Number of failed ones among them.
    pub failed: u64,
    /// Segments that the hop retransmitted.
    pub retransmits: u64,
    /// Median time to the first byte, ms; 0 without a connection.
    pub p50: f64,
    /// 95th percentile, ms.
    pub p95: f64,
    #[serde(skip)]
    times: Vec<f32>,
}

/// The seconds with at least one connection, the oldest first.
#[derive(Clone, Debug, Default)]
pub struct History(VecDeque<Second>);

impl History {
    /// Records a connection that ended `now` after the start.
    pub fn add(&mut self, now: Duration, took: Duration, failed: bool, retransmits: u64) {
        let at = now.as_secs();
        if self.0.back().is_none_or(|second| second.at < at) {
            self.0.push_back(Second { at, ..Second::default() });
        }
        while self.0.front().is_some_and(|second| second.at + (SECONDS as u64) <= at) {
            self.0.pop_front();
        }
        let Some(second) = self.0.back_mut() else { return };
        second.connections += 1;
        second.failed += u64::from(failed);
        second.retransmits += retransmits;
        if !failed && second.times.len() < MAX_TIMES {
            second.times.push((took.as_secs_f64() * 1e3) as f32);
        }
    }

    /// Returns the seconds up to `now`, with their percentiles.
    pub fn seconds(&self, now: Duration) -> Vec<Second> {
        let since = (now.as_secs() + 1).saturating_sub(SECONDS as u64);
        let of = |second: &Second| {
            let mut times = second.times.clone();
            times.sort_by(f32::total_cmp);
            Second { p50: tenths(&times, 0.5), p95: tenths(&times, 0.95), ..second.clone() }
        };
        self.0.iter().filter(|second| second.at >= since).map(of).collect()
    }

    /// Returns percentiles over all seconds: p50, p95, p99, ms.
    pub fn percentiles(&self, now: Duration) -> [f64; 3] {
        let since = (now.as_secs() + 1).saturating_sub(SECONDS as u64);
        let recent = self.0.iter().filter(|second| second.at >= since);
        let mut times: Vec<f32> = recent.flat_map(|second| second.times.iter().copied()).collect();
        times.sort_by(f32::total_cmp);
        [0.5, 0.95, 0.99].map(|share| tenths(&times, share))
    }
}

/// Returns a percentile, rounded to a tenth.
fn tenths(sorted: &[f32], share: f64) -> f64 {
    (percentile(sorted, share) * 10.0).round() / 10.0
}

/// Returns the value below which `share` of the sorted values lie; 0 if there are none.
pub(crate) fn percentile(sorted: &[f32], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).map_or(0.0, |value| f64::from(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_its_own_percentiles_and_old_ones_go() {
        let mut history = History::default();
        for ms in 1..=100 {
            history.add(Duration::from_secs(5), Duration::from_millis(ms), false, 1);
        }
        history.add(Duration::from_secs(6), Duration::from_millis(7), true, 0);
        let seconds = history.seconds(Duration::from_secs(6));
        assert_eq!((seconds.len(), seconds[0].p50, seconds[0].p95), (2, 50.0, 95.0));
        assert_eq!((seconds[0].retransmits, seconds[1].failed, seconds[1].p50), (100, 1, 0.0));
        assert_eq!(history.percentiles(Duration::from_secs(6)), [50.0, 95.0, 99.0]);
        history.add(Duration::from_secs(5 + SECONDS as u64), Duration::ZERO, false, 0);
        assert_eq!(history.seconds(Duration::from_secs(5 + SECONDS as u64)).len(), 2, "5 is gone, 6 is not");
        assert!(history.seconds(Duration::from_secs(1000)).is_empty());
    }
}
