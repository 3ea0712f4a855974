//! Reno congestion control (RFC 5681) with appropriate byte counting (RFC 3465).
//!
//! In slow start the window grows by the bytes acknowledged, in congestion avoidance by one segment per
//! window of acknowledged bytes. Congestion halves it.

use super::loss_based::Window;
use super::sample::AckSample;
use crate::time::Instant;

/// Maximum growth by one acknowledgement in slow start, bytes, unless eight segments are more. RFC 9406
/// section 4.2 suggests 8 segments; Linux has no limit. The value is one super-segment. A peer behind a
/// coalescing device acknowledges that much at once, and a smaller limit would end exponential growth there.
pub(super) const SLOW_START_BURST: u32 = 64 << 10;

#[derive(Clone, Debug)]
pub(crate) struct Reno {
    mss: u32,
    cwnd: u32,
    ssthresh: u32,
    /// Bytes acknowledged in congestion avoidance that have not enlarged the window yet.
    bytes_acked: u32,
    /// `cwnd` and `ssthresh` before the last reduction, for undo.
    before: Option<(u32, u32)>,
}

impl Reno {
    /// Returns a window of `initial` bytes with segments of at most `mss` bytes.
    pub(crate) fn new(mss: u32, initial: u32) -> Self {
        let mss = mss.max(1);
        Reno { mss, cwnd: initial.max(mss), ssthresh: u32::MAX, bytes_acked: 0, before: None }
    }

    /// Sets ssthresh by RFC 5681 equation 4, from cwnd instead of FlightSize, because an unused window did
    /// not grow. The value is rounded down to whole segments, because a part of a segment permits no
    /// transmission. RFC 5681 permits this: ssthresh must be "no more than" the equation says.
    fn reduce(&mut self) {
        self.before = Some((self.cwnd, self.ssthresh));
        self.ssthresh = (self.cwnd / self.mss / 2).max(2).saturating_mul(self.mss);
        self.bytes_acked = 0;
    }
}

impl Window for Reno {
    fn name(&self) -> &'static str {
        "reno"
    }

    fn cwnd(&self) -> u32 {
        self.cwnd
    }

    fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    fn mss(&self) -> u32 {
        self.mss
    }

    fn set_mss(&mut self, mss: u32) {
        self.mss = mss.max(1);
        self.cwnd = self.cwnd.max(self.mss);
    }

    fn on_ack(&mut self, acked: &AckSample) {
        if !acked.cwnd_limited {
            return;
        }
        let mut bytes = acked.newly_acked;
        if self.in_slow_start() {
            let missing = self.ssthresh - self.cwnd;
            let grown = bytes.min(SLOW_START_BURST.max(8 * self.mss)).min(missing);
            self.cwnd += grown;
            if grown < missing {
                return;
            }
            bytes -= grown;
        }
        // RFC 5681 section 3.1: "When the number of bytes acknowledged reaches cwnd, then cwnd can be
        // incremented by up to SMSS bytes."
        self.bytes_acked = self.bytes_acked.saturating_add(bytes);
        if self.bytes_acked >= self.cwnd {
            // Only after the window shrank can one acknowledgement cover more than a window.
            self.bytes_acked = (self.bytes_acked - self.cwnd).min(self.cwnd);
            self.cwnd = self.cwnd.saturating_add(self.mss);
        }
    }

    fn on_congestion(&mut self, _now: Instant) -> u32 {
        self.reduce();
        self.ssthresh
    }

    fn on_timeout(&mut self, _now: Instant, first: bool) {
        if first {
            self.reduce();
        }
        self.cwnd = self.mss;
        self.bytes_acked = 0;
    }

    fn set_cwnd(&mut self, cwnd: u32) {
        self.cwnd = cwnd.max(self.mss);
    }

    fn set_ssthresh(&mut self, ssthresh: u32) {
        self.ssthresh = ssthresh.max(2 * self.mss);
    }

    fn on_idle(&mut self, _now: Instant, restart: u32) {
        let restart = restart.max(self.mss);
        if restart < self.cwnd {
            // RFC 2861 section 3: ssthresh remembers what was known about the path.
            self.ssthresh = self.ssthresh.max(self.cwnd - self.cwnd / 4);
            self.cwnd = restart;
            self.bytes_acked = 0;
        }
    }

    fn undo(&mut self, _now: Instant) {
        if let Some((cwnd, ssthresh)) = self.before.take() {
            self.cwnd = self.cwnd.max(cwnd);
            self.ssthresh = self.ssthresh.max(ssthresh);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1_000;

    fn acked(bytes: u32) -> AckSample {
        AckSample::acked(Instant::ZERO, bytes)
    }

    /// Returns a flow in congestion avoidance with a window of `segments`.
    fn avoiding(segments: u32) -> Reno {
        let mut reno = Reno::new(MSS, 2 * segments * MSS);
        let ssthresh = reno.on_congestion(Instant::ZERO);
        reno.set_cwnd(ssthresh);
        reno
    }

    #[test]
    fn slow_start_doubles_the_window_per_round_trip() {
        let mut reno = Reno::new(MSS, 10 * MSS);
        for _ in 0..5 {
            reno.on_ack(&acked(2 * MSS));
        }
        assert_eq!(reno.cwnd(), 20 * MSS);
    }

    /// RFC 3465 section 2.3 bounds the growth by one acknowledgement in slow start. Here the bound is eight
    /// segments, if they are large.
    #[test]
    fn an_acknowledgement_of_eight_large_segments_counts_whole() {
        let jumbo = 9_000;
        let mut reno = Reno::new(jumbo, 10 * jumbo);
        reno.on_ack(&acked(8 * jumbo));
        assert_eq!(reno.cwnd(), 18 * jumbo);
        reno.on_ack(&acked(10 * jumbo));
        assert_eq!(reno.cwnd(), 26 * jumbo);
    }

    /// RFC 5681 section 3.1: congestion avoidance grows by about one segment per round trip.
    #[test]
    fn congestion_avoidance_grows_by_a_segment_per_window_acknowledged() {
        let mut reno = avoiding(10);
        assert!(!reno.in_slow_start());
        for _ in 0..9 {
            reno.on_ack(&acked(MSS));
        }
        assert_eq!(reno.cwnd(), 10 * MSS);
        reno.on_ack(&acked(MSS));
        assert_eq!(reno.cwnd(), 11 * MSS);
        for _ in 0..11 {
            reno.on_ack(&acked(MSS));
        }
        assert_eq!(reno.cwnd(), 12 * MSS);
    }

    #[test]
    fn slow_start_ends_at_ssthresh_within_an_acknowledgement() {
        let mut reno = avoiding(10);
        reno.set_cwnd(9 * MSS);
        reno.on_ack(&acked(3 * MSS));
        assert_eq!((reno.cwnd(), reno.bytes_acked), (10 * MSS, 2 * MSS));
    }

    /// RFC 5681 equation 4: "ssthresh = max (FlightSize / 2, 2*SMSS)".
    #[test]
    fn congestion_halves_the_window_down_to_two_segments() {
        let mut reno = Reno::new(MSS, 10 * MSS);
        assert_eq!(reno.on_congestion(Instant::ZERO), 5 * MSS);
        assert_eq!(reno.cwnd(), 10 * MSS, "PRR brings the window down");
        reno.set_cwnd(MSS);
        assert_eq!(reno.on_congestion(Instant::ZERO), 2 * MSS);
    }

    /// Half of a fractional segment in ssthresh would let proportional rate reduction send a whole segment
    /// more.
    #[test]
    fn a_part_of_a_segment_does_not_count_when_the_window_is_halved() {
        let mut reno = Reno::new(MSS, 9 * MSS + MSS / 2);
        assert_eq!(reno.on_congestion(Instant::ZERO), 4 * MSS);
    }

    /// RFC 5681 section 3.1: upon a timeout "cwnd MUST be set to no more than the loss window, LW, which
    /// equals 1 full-sized segment"; for the same segment again "the value of ssthresh is held constant".
    #[test]
    fn a_timeout_leaves_one_segment_and_lowers_ssthresh_once() {
        let mut reno = Reno::new(MSS, 10 * MSS);
        reno.on_timeout(Instant::ZERO, true);
        reno.on_timeout(Instant::ZERO, false);
        assert_eq!((reno.cwnd(), reno.ssthresh()), (MSS, 5 * MSS));
    }

    #[test]
    fn undo_restores_window_and_ssthresh_once() {
        let mut reno = Reno::new(MSS, 10 * MSS);
        reno.on_timeout(Instant::ZERO, true);
        reno.undo(Instant::ZERO);
        assert_eq!((reno.cwnd(), reno.ssthresh()), (10 * MSS, u32::MAX));
        reno.set_cwnd(4 * MSS);
        reno.undo(Instant::ZERO);
        assert_eq!(reno.cwnd(), 4 * MSS);
    }

    #[test]
    fn the_window_does_not_grow_while_it_is_not_the_limit() {
        let mut reno = Reno::new(MSS, 10 * MSS);
        reno.on_ack(&AckSample { cwnd_limited: false, ..acked(5 * MSS) });
        assert_eq!(reno.cwnd(), 10 * MSS);
    }

    #[test]
    fn idleness_restarts_slow_start_towards_what_was_known() {
        let mut reno = avoiding(40);
        reno.on_idle(Instant::ZERO, 10 * MSS);
        assert_eq!((reno.cwnd(), reno.ssthresh()), (10 * MSS, 40 * MSS));
    }

    #[test]
    fn a_larger_segment_raises_the_minimum_window() {
        let mut reno = Reno::new(MSS, MSS);
        reno.set_mss(9_000);
        assert_eq!(reno.cwnd(), 9_000);
    }

    #[test]
    fn extreme_inputs_do_not_panic() {
        let mut reno = Reno::new(0, 0);
        for _ in 0..4 {
            reno.on_ack(&acked(u32::MAX));
        }
        reno.on_congestion(Instant::ZERO);
        reno.set_cwnd(u32::MAX);
        reno.on_ack(&acked(u32::MAX));
        assert_eq!(reno.cwnd(), u32::MAX);
    }
}
