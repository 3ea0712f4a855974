//! Result of an emulated link, and the validity of its timing.

use std::time::Duration;

use brisk_link::Counters;

use super::Percentiles;

/// The result of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Duration of the run.
    pub elapsed: Duration,
    /// Counters from A to B.
    pub up: Counters,
    /// Counters from B to A.
    pub down: Counters,
    /// Lateness of packets, microseconds.
    pub late: Percentiles,
    /// Validity of the timing.
    pub validity: Validity,
    /// True if the thread ran under SCHED_FIFO.
    pub fifo: bool,
    /// Total time in the busy loop.
    pub spun: Duration,
    /// Number of packets that an end refused.
    pub send_errors: u64,
    /// Error of the last refusal.
    pub last_send_error: Option<String>,
}

/// Validity of the timing of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Validity {
    /// Lateness is small relative to the path.
    Valid,
    /// The 99th percentile of lateness exceeds 1 ms or 5 % of the round-trip time.
    TooLate {
        /// The 99th percentile, microseconds.
        p99: f64,
        /// The maximum permitted, microseconds.
        limit: f64,
    },
}

/// Maximum permitted lateness on any path, microseconds.
const MAX_LATENESS: f64 = 1000.0;
/// Maximum permitted lateness as a share of the round-trip time.
const MAX_SHARE: f64 = 0.05;

impl Validity {
    /// Determines the validity for a path with this round-trip time; zero counts as unknown.
    pub fn of(late: Percentiles, base_rtt: Duration) -> Validity {
        let share = base_rtt.as_micros() as f64 * MAX_SHARE;
        let limit = if share > 0.0 { share.min(MAX_LATENESS) } else { MAX_LATENESS };
        if late.p99 > limit { Validity::TooLate { p99: late.p99, limit } } else { Validity::Valid }
    }

    /// True if the timing is valid.
    pub fn is_valid(self) -> bool {
        self == Validity::Valid
    }
}

impl std::fmt::Display for Validity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Validity::Valid => f.write_str("valid"),
            Validity::TooLate { p99, limit } if *limit < MAX_LATENESS => {
                write!(f, "INVALID: p99 lateness {p99:.0} us exceeds 5 % of the RTT ({limit:.0} us)")
            }
            Validity::TooLate { p99, .. } => write!(f, "INVALID: p99 lateness {p99:.0} us exceeds 1 ms"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_invalid_above_a_millisecond_or_a_twentieth_of_the_rtt() {
        let late = |p99| Percentiles { p99, ..Percentiles::default() };
        assert!(Validity::of(late(999.0), Duration::from_millis(100)).is_valid());
        let long = Validity::of(late(1001.0), Duration::from_millis(100));
        assert_eq!(long.to_string(), "INVALID: p99 lateness 1001 us exceeds 1 ms");
        let short = Validity::of(late(501.0), Duration::from_millis(10));
        assert_eq!(short.to_string(), "INVALID: p99 lateness 501 us exceeds 5 % of the RTT (500 us)");
        assert!(Validity::of(late(900.0), Duration::ZERO).is_valid());
    }
}
