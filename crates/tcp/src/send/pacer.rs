//! Pacing: transmissions spread over the round trip instead of leaving in bursts.
//!
//! A bucket fills at `percent * cwnd / srtt`; its size, the quantum, is what one wake-up sends: about
//! a millisecond of data as in Linux, so that super-segments stay large at high rates. The first ten
//! segments of a connection are not paced (an initial window is meant to leave at once).

use crate::config::PacingConfig;
use crate::time::{Duration, Instant};

/// Largest quantum, bytes.
const MAX_QUANTUM: u64 = 64 << 10;
/// Segments at the start of a connection that are not paced.
const UNPACED_SEGMENTS: u32 = 10;
/// A byte of the bucket in the unit in which it is kept, so that microseconds times a rate in bytes
/// per second need no division.
const BYTE: i64 = 1_000_000;

/// Pacing of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Pacer {
    config: Option<PacingConfig>,
    /// Bytes per second; `None` while the round-trip time is unknown.
    rate: Option<u64>,
    mss: u32,
    /// Contents of the bucket in units of [`BYTE`]; negative after a transmission that could not wait.
    level: i64,
    at: Instant,
    segments: u32,
}

impl Pacer {
    /// A pacer; `None` switches it off.
    pub(crate) fn new(config: Option<PacingConfig>) -> Self {
        Pacer { config, rate: None, mss: 536, level: 0, at: Instant::ZERO, segments: 0 }
    }

    /// Sets the rate from the window, bytes, and the smoothed round-trip time.
    pub(crate) fn update(
        &mut self,
        cwnd: u32,
        srtt: Option<Duration>,
        in_slow_start: bool,
        mss: u32,
        now: Instant,
    ) {
        let (Some(config), Some(srtt)) = (self.config, srtt) else {
            return;
        };
        let first = self.rate.is_none();
        self.refill(now);
        let percent =
            if in_slow_start { config.slow_start_percent } else { config.congestion_avoidance_percent };
        let per_round = u128::from(cwnd.max(mss)) * u128::from(percent.max(1)) * 10_000;
        let rate = per_round / srtt.as_micros().max(1);
        self.rate = Some(u64::try_from(rate).unwrap_or(u64::MAX).clamp(1, 1 << 40));
        self.mss = mss.max(1);
        if first {
            self.level = self.quantum() * BYTE;
        }
    }

    /// Bytes per second in force; `None` if nothing is paced.
    pub(crate) fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// Bytes that may leave now; `u32::MAX` if nothing is paced (yet).
    pub(crate) fn budget(&self, now: Instant) -> u32 {
        if self.rate.is_none() || self.segments < UNPACED_SEGMENTS {
            return u32::MAX;
        }
        u32::try_from(self.level_at(now).max(0) / BYTE).unwrap_or(u32::MAX)
    }

    /// `bytes` left, whatever their origin.
    pub(crate) fn on_sent(&mut self, bytes: u32, now: Instant) {
        let unpaced = self.segments < UNPACED_SEGMENTS;
        self.segments = self.segments.saturating_add(bytes.div_ceil(self.mss.max(1)));
        if unpaced || self.rate.is_none() {
            return;
        }
        self.refill(now);
        // Debt is bounded so that a burst of probes cannot silence the connection.
        let floor = -2 * self.quantum() * BYTE;
        self.level = (self.level - i64::from(bytes) * BYTE).max(floor);
    }

    /// When a quantum may leave again; `None` if one may now or nothing is paced.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let rate = self.rate.filter(|_| self.segments >= UNPACED_SEGMENTS)?;
        if self.level >= i64::from(self.mss) * BYTE {
            return None;
        }
        let missing = (self.quantum() * BYTE - self.level).max(0) as u64;
        Some(self.at + Duration::from_micros(missing.div_ceil(rate)))
    }

    /// Size of the bucket, bytes: a millisecond of data, at least two segments, at most 64 KB.
    fn quantum(&self) -> i64 {
        let millisecond = self.rate.unwrap_or(0) / 1000;
        let least = 2 * u64::from(self.mss);
        millisecond.clamp(least, MAX_QUANTUM.max(least)) as i64
    }

    fn level_at(&self, now: Instant) -> i64 {
        let elapsed = now.saturating_since(self.at).min(Duration::from_secs(10)).as_micros() as i64;
        let filled = elapsed.saturating_mul(self.rate.unwrap_or(0) as i64);
        self.level.saturating_add(filled).min(self.quantum() * BYTE)
    }

    fn refill(&mut self, now: Instant) {
        self.level = self.level_at(now);
        self.at = self.at.max(now);
    }
}
