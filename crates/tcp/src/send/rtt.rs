//! Round-trip time: the smoothed estimate and the timeout that follows from it (RFC 6298), and the
//! windowed minimum that RACK scales its reordering window by (RFC 8985 section 6.1).

use crate::config::RtoConfig;
use crate::time::{Duration, Instant};

/// Length of one of the three slots of the windowed minimum: together they remember 200 to 300 s.
const MIN_RTT_SLOT: Duration = Duration::from_secs(100);
/// Largest sample that is believed. Beyond it the arithmetic is of no use to anybody.
const MAX_SAMPLE: Duration = Duration::from_secs(3600);

/// Round-trip time estimator of one connection.
#[derive(Clone, Debug)]
pub(crate) struct RttEstimator {
    config: RtoConfig,
    granularity: Duration,
    initial: Duration,
    latest: Option<Duration>,
    /// Eight times the smoothed time in microseconds, so that the division by 8 loses nothing.
    srtt8: u64,
    /// Four times the variation in microseconds.
    rttvar4: u64,
    minimum: WindowedMin,
}

impl RttEstimator {
    /// An estimator without a sample. `granularity` is G of RFC 6298.
    pub(crate) fn new(config: &RtoConfig, granularity: Duration) -> Self {
        RttEstimator {
            config: *config,
            granularity,
            initial: config.initial,
            latest: None,
            srtt8: 0,
            rttvar4: 0,
            minimum: WindowedMin::default(),
        }
    }

    /// Takes a sample that obeys Karn's rule.
    pub(crate) fn on_sample(&mut self, rtt: Duration, now: Instant) {
        let rtt = rtt.clamp(Duration::from_micros(1), MAX_SAMPLE);
        let sample = rtt.as_micros() as u64;
        if self.latest.is_none() {
            // RFC 6298 2.2: "SRTT <- R, RTTVAR <- R/2"
            self.srtt8 = sample * 8;
            self.rttvar4 = sample * 2;
        } else {
            // RFC 6298 2.3: "RTTVAR <- (1 - beta) * RTTVAR + beta * |SRTT - R'|", then
            // "SRTT <- (1 - alpha) * SRTT + alpha * R'" with alpha = 1/8 and beta = 1/4.
            let error = (self.srtt8 / 8).abs_diff(sample);
            self.rttvar4 = self.rttvar4 - self.rttvar4 / 4 + error;
            self.srtt8 = self.srtt8 - self.srtt8 / 8 + sample;
        }
        self.latest = Some(rtt);
        self.minimum.update(rtt, now);
    }

    /// The last sample.
    pub(crate) fn latest(&self) -> Option<Duration> {
        self.latest
    }

    /// SRTT; `None` before the first sample.
    pub(crate) fn srtt(&self) -> Option<Duration> {
        self.latest.map(|_| Duration::from_micros((self.srtt8 / 8).max(1)))
    }

    /// RTTVAR; `None` before the first sample.
    pub(crate) fn rttvar(&self) -> Option<Duration> {
        self.latest.map(|_| Duration::from_micros(self.rttvar4 / 4))
    }

    /// The least sample of the last 300 s, as of the last sample.
    pub(crate) fn min_rtt(&self) -> Option<Duration> {
        self.minimum.least()
    }

    /// The timeout before any backoff: `srtt + max(G, 4*rttvar, var_floor)`, kept within
    /// `[min, max]`. The floor is on the variance term so that a stable path keeps a timeout well
    /// beyond two round trips.
    pub(crate) fn rto_base(&self) -> Duration {
        let Some(srtt) = self.srtt() else {
            return self.initial.min(self.config.max);
        };
        let variance = Duration::from_micros(self.rttvar4).max(self.granularity).max(self.config.var_floor);
        (srtt + variance).max(self.config.min).min(self.config.max)
    }

    /// Sets the timeout that holds until the first sample. RFC 6298 5.7: after the timer of a SYN
    /// expired, "the RTO MUST be re-initialized to 3 seconds when data transmission begins".
    pub(crate) fn set_initial_rto(&mut self, initial: Duration) {
        self.initial = initial;
    }
}

/// Minimum over a sliding window, kept as the minima of three slots that are reused in turn.
#[derive(Clone, Debug, Default)]
struct WindowedMin {
    /// Minima of the current slot, the one before, and the one before that.
    slots: [Option<Duration>; 3],
    slot_start: Instant,
}

impl WindowedMin {
    fn update(&mut self, rtt: Duration, now: Instant) {
        if self.slots.iter().all(Option::is_none) {
            self.slot_start = now;
        }
        let elapsed = now.saturating_since(self.slot_start).as_micros() / MIN_RTT_SLOT.as_micros();
        let passed = elapsed.min(3) as usize;
        if passed > 0 {
            self.slots.rotate_right(passed % 3);
            self.slots[..passed].fill(None);
            self.slot_start = now;
        }
        self.slots[0] = Some(self.slots[0].map_or(rtt, |least| least.min(rtt)));
    }

    fn least(&self) -> Option<Duration> {
        self.slots.iter().flatten().min().copied()
    }
}
