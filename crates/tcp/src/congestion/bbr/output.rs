//! Pacing rate and window, from the model and the state.

use super::super::sample::Train;
use super::bounds::UNBOUNDED;
use super::{Bbr, BbrState, CyclePhase, MIN_PIPE_SEGMENTS, bytes_in};
use crate::time::Micros;

/// A factor as numerator and denominator.
type Gain = (u64, u64);

/// Startup: 4 ln 2, the smallest rate that doubles the delivered volume in each round.
const STARTUP_PACING: Gain = (277, 100);
/// Percent of the bandwidth for pacing, so that rounding cannot build a queue.
const PACING_PERCENT: u64 = 99;
/// Minimum pacing rate while the path is unknown, bytes per second.
const MIN_STARTUP_RATE: u64 = 125_000;
/// Largest quantum of the pacer, bytes.
const MAX_QUANTUM: u64 = 64 << 10;
/// Largest rate, bytes per second.
pub(super) const MAX_RATE: u64 = 1 << 40;

impl BbrState {
    fn pacing_gain(self) -> Gain {
        match self {
            BbrState::Startup => STARTUP_PACING,
            BbrState::Drain => (1, 2),
            BbrState::ProbeBw(CyclePhase::Down) => (9, 10),
            BbrState::ProbeBw(CyclePhase::Cruise | CyclePhase::Refill) | BbrState::ProbeRtt => (1, 1),
            BbrState::ProbeBw(CyclePhase::Up) => (5, 4),
        }
    }

    fn cwnd_gain(self) -> Gain {
        match self {
            BbrState::Startup | BbrState::Drain => (2, 1),
            BbrState::ProbeBw(CyclePhase::Down | CyclePhase::Cruise | CyclePhase::Refill) => (2, 1),
            BbrState::ProbeBw(CyclePhase::Up) => (9, 4),
            BbrState::ProbeRtt => (1, 2),
        }
    }
}

impl Bbr {
    /// Paces the current window per `rtt`, with the gain of Startup.
    pub(super) fn pace_window_per(&mut self, rtt: Micros) {
        let per_round = u128::from(self.cwnd) * 1_000_000 * u128::from(STARTUP_PACING.0);
        let rate = per_round / (u128::from(STARTUP_PACING.1) * u128::from(rtt.0.max(1)));
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        self.pacing_rate = rate.clamp(MIN_STARTUP_RATE, MAX_RATE);
    }

    /// Returns `gain` times `bandwidth`, less the margin, at least the minimum rate.
    pub(super) fn paced(&self, bandwidth: u64, gain: Gain) -> u64 {
        let rate = u128::from(bandwidth) * u128::from(gain.0 * PACING_PERCENT) / u128::from(gain.1 * 100);
        u64::try_from(rate).unwrap_or(u64::MAX).clamp(self.min_rate, MAX_RATE)
    }

    /// Sets the pacing rate, which does not decrease before the pipe has been full. At least one segment
    /// leaves in each round trip. With a rate near zero no sample could show that the path carries more.
    pub(super) fn set_pacing_rate(&mut self, srtt: Option<Micros>) {
        if let Some(srtt) = srtt {
            self.min_rate = (u64::from(self.mss) * 1_000_000 / u64::from(srtt.0.max(1))).clamp(1, MAX_RATE);
        }
        if let Some(srtt) = srtt.filter(|_| !self.has_rtt) {
            self.has_rtt = true;
            // The rate of the path, if it is known, and not the window in each round trip.
            match self.train.filter(|train| train.is_limited) {
                Some(train) => self.pacing_rate = self.paced(train.rate, (1, 1)),
                None => self.pace_window_per(srtt),
            }
            if let Some(train) = self.train {
                self.follow_train(&train);
            }
        }
        if self.bandwidth() == 0 {
            return;
        }
        let rate = self.paced(self.bandwidth(), self.state.pacing_gain());
        if self.full_pipe.reached || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    /// Paces a flight of Startup at least as fast as the last flight was delivered. While the application
    /// limits the flight, the measured bandwidth is only its volume per round-trip time. That rate would
    /// spread a flight over a third of a round trip.
    pub(super) fn follow_train(&mut self, train: &Train) {
        if self.state != BbrState::Startup || self.full_pipe.reached {
            return;
        }
        let gain = if train.is_limited { (1, 1) } else { STARTUP_PACING };
        self.pacing_rate = self.pacing_rate.max(self.paced(train.rate, gain));
    }

    /// Returns the bandwidth for a flight after idle: the rate of the last such flight, if that is higher
    /// than the measured volume per round trip.
    pub(super) fn bandwidth_of_flights(&self) -> u64 {
        let shown = self.train.filter(|train| train.is_limited).map_or(0, |train| train.rate);
        self.bandwidth().max(shown.min(self.bounds.bw_shortterm))
    }

    /// Returns `gain` times the volume that `bandwidth` delivers in a round trip, bytes; the initial window
    /// while the round-trip time is unknown.
    pub(super) fn bdp(&self, bandwidth: u64, gain: Gain) -> u64 {
        match self.min_rtt.get() {
            Some(rtt) => bytes_in(bandwidth, rtt).saturating_mul(gain.0).div_ceil(gain.1),
            None => u64::from(self.initial_window),
        }
    }

    /// Returns `gain` times the volume that fills a path of `bandwidth`, bytes, with space for bursts.
    pub(super) fn inflight(&self, bandwidth: u64, gain: Gain) -> u64 {
        self.with_room_for_bursts(self.bdp(bandwidth, gain))
    }

    /// Returns the bytes in flight that fill the path without a queue, at most the window.
    pub(super) fn target_inflight(&self) -> u64 {
        self.bdp(self.bandwidth(), (1, 1)).min(u64::from(self.cwnd))
    }

    /// Returns the bytes that may leave in one burst: a millisecond of the pacing rate, as in the pacer.
    pub(super) fn quantum(&self) -> u64 {
        let min = 2 * u64::from(self.mss);
        (self.pacing_rate / 1000).clamp(min, MAX_QUANTUM.max(min))
    }

    fn with_room_for_bursts(&self, inflight: u64) -> u64 {
        let mss = u64::from(self.mss);
        let inflight = inflight.max(3 * self.quantum()).max(MIN_PIPE_SEGMENTS * mss);
        inflight + if self.state == BbrState::ProbeBw(CyclePhase::Up) { 2 * mss } else { 0 }
    }

    fn max_inflight(&self) -> u64 {
        let bandwidth = self.bandwidth();
        self.with_room_for_bursts(
            self.bdp(bandwidth, self.state.cwnd_gain()) + self.aggregation.extra(bandwidth),
        )
    }

    /// Grows the window by `acked` bytes towards the model's target, and limits it.
    pub(super) fn set_window(&mut self, acked: u32) {
        let max_inflight = self.max_inflight();
        let acked = if self.recovery.conserves() { 0 } else { acked };
        let (cwnd, acked) = (u64::from(self.cwnd), u64::from(acked));
        let min_segments = if self.recovery.restricts() { 1 } else { MIN_PIPE_SEGMENTS };
        let min = min_segments * u64::from(self.mss);
        let grown = if self.full_pipe.reached {
            (cwnd + acked).min(max_inflight)
        } else if cwnd < max_inflight || self.delivered < u64::from(self.initial_window) {
            cwnd + acked
        } else {
            cwnd
        };
        let cap = match self.state {
            BbrState::Startup | BbrState::Drain => UNBOUNDED,
            BbrState::ProbeBw(CyclePhase::Down | CyclePhase::Refill | CyclePhase::Up) => {
                self.bounds.inflight_longterm
            }
            BbrState::ProbeBw(CyclePhase::Cruise) => self.headroom(),
            BbrState::ProbeRtt => self.headroom().min(self.probe_rtt.cwnd),
        };
        let cwnd = grown.max(min).min(cap).min(self.bounds.inflight_shortterm).max(min);
        self.cwnd = u32::try_from(cwnd).unwrap_or(u32::MAX);
    }
}
