//! Limits of volume and rate that follow from losses. Probes set the long-term limits; losses between two
//! probes set the short-term limits.

use super::super::sample::RateSample;
use super::loss::times_beta;

/// No limit.
pub(super) const UNBOUNDED: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Bytes in flight at which a probe lost too much (`inflight_hi` of Linux).
    pub(super) inflight_longterm: u64,
    /// Limit of bytes in flight until the next probe (`inflight_lo`).
    pub(super) inflight_shortterm: u64,
    /// Limit of the rate until the next probe, bytes per second (`bw_lo`).
    pub(super) bw_shortterm: u64,
    /// The largest rate and delivered volume of this loss round.
    pub(super) bw_latest: u64,
    pub(super) inflight_latest: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            inflight_longterm: UNBOUNDED,
            inflight_shortterm: UNBOUNDED,
            bw_shortterm: UNBOUNDED,
            bw_latest: 0,
            inflight_latest: 0,
        }
    }
}

impl Bounds {
    pub(super) fn observe(&mut self, sample: &RateSample) {
        self.bw_latest = self.bw_latest.max(sample.rate.unwrap_or(0));
        self.inflight_latest = self.inflight_latest.max(sample.delivered);
    }

    /// Begins a loss round with `sample`.
    pub(super) fn restart_latest(&mut self, sample: &RateSample) {
        self.bw_latest = sample.rate.unwrap_or(0);
        self.inflight_latest = sample.delivered;
    }

    pub(super) fn reset_latest(&mut self) {
        (self.bw_latest, self.inflight_latest) = (0, 0);
    }

    pub(super) fn reset_shortterm(&mut self) {
        (self.bw_shortterm, self.inflight_shortterm) = (UNBOUNDED, UNBOUNDED);
    }

    /// Lowers the short-term rate after a loss round, but not below the delivery rate of the round.
    pub(super) fn lower_bandwidth(&mut self, max_bw: u64) {
        let from = if self.bw_shortterm == UNBOUNDED { max_bw } else { self.bw_shortterm };
        self.bw_shortterm = times_beta(from).max(self.bw_latest);
    }

    /// Lowers the short-term volume to `share` of itself, but not below the volume that the loss round has
    /// delivered.
    pub(super) fn lower_inflight(&mut self, cwnd: u32, share: impl Fn(u64) -> u64) {
        let from =
            if self.inflight_shortterm == UNBOUNDED { u64::from(cwnd) } else { self.inflight_shortterm };
        self.inflight_shortterm = share(from).max(self.inflight_latest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each limit falls to 7/10, or to the value that the round delivered if that is higher.
    #[test]
    fn a_lossy_round_lowers_the_short_term_limits_to_what_it_delivered() {
        let mut bounds = Bounds { bw_latest: 950_000, inflight_latest: 62_000, ..Bounds::default() };
        bounds.lower_bandwidth(1_000_000);
        bounds.lower_inflight(100_000, times_beta);
        assert_eq!((bounds.bw_shortterm, bounds.inflight_shortterm), (950_000, 70_000));
        bounds.bw_latest = 600_000;
        bounds.lower_bandwidth(1_000_000);
        bounds.lower_inflight(100_000, times_beta);
        assert_eq!((bounds.bw_shortterm, bounds.inflight_shortterm), (665_000, 62_000));
        bounds.reset_shortterm();
        assert_eq!((bounds.bw_shortterm, bounds.inflight_shortterm), (UNBOUNDED, UNBOUNDED));
    }
}
