//! Lateness of packets: the time of their departure minus their due time.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Maximum lateness of the histogram, ns; larger values count as this value.
const MAX_LATENESS: u64 = 10_000_000_000;

/// A histogram of lateness.
#[derive(Clone, Debug)]
pub struct Lateness(Histogram<u64>);

/// Lateness in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Percentiles {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
    /// Largest.
    pub max: f64,
}

impl Default for Lateness {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, MAX_LATENESS, 3);
        Lateness(histogram.expect("1 ns to 10 s with 3 digits are valid bounds"))
    }
}

impl Lateness {
    /// Adds one packet.
    pub fn record(&mut self, late: Duration) {
        self.0.saturating_record(u64::try_from(late.as_nanos()).unwrap_or(MAX_LATENESS));
    }

    /// Resets the distribution.
    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// Returns the distribution; zeros without a packet.
    pub fn percentiles(&self) -> Percentiles {
        let micros = |quantile| self.0.value_at_quantile(quantile) as f64 / 1000.0;
        Percentiles {
            p50: micros(0.5),
            p99: micros(0.99),
            p999: micros(0.999),
            max: self.0.max() as f64 / 1000.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_in_microseconds() {
        let mut lateness = Lateness::default();
        for _ in 0..985 {
            lateness.record(Duration::from_nanos(500));
        }
        for _ in 0..15 {
            lateness.record(Duration::from_millis(2));
        }
        let Percentiles { p50, p99, max, .. } = lateness.percentiles();
        assert!((p50 - 0.5).abs() < 0.01 && (p99 - 2000.0).abs() < 5.0 && (max - 2000.0).abs() < 5.0);
        lateness.clear();
        assert_eq!(lateness.percentiles(), Percentiles::default());
    }
}
