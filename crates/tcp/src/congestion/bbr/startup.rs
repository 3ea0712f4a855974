//! Startup, the estimate that the pipe is full, and Drain.

use super::super::sample::RateSample;
use super::loss::MIN_RUNS_IN_STARTUP;
use super::{Bbr, BbrState};
use crate::outcome::CongestionState;
use crate::time::Instant;

/// Number of rounds without growth after which the pipe counts as full.
const FULL_ROUNDS: u32 = 3;
/// Number of consecutive round-trip samples that must show a queue to end Startup, because a single one may
/// be jitter. Waiting for three rounds without growth would fill a queue that other flows use.
const DELAYED_SAMPLES: u32 = 5;
/// The first round in which a queue ends Startup. In the round before it, flows that begin at the same time
/// wait for each other's first flights, and none has measured the bandwidth.
const FIRST_DELAYED_ROUND: u64 = 2;
/// Rounds after which Drain ends in any case.
const MAX_DRAIN_ROUNDS: u64 = 3;

/// The detector of the end of growth: three rounds in which the bandwidth grew by less than a quarter.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FullPipe {
    bandwidth: u64,
    rounds: u32,
    /// True if the pipe is full as far as this probe has seen.
    pub(super) now: bool,
    /// True once the pipe has been full, which ends Startup.
    pub(super) reached: bool,
    /// Round-trip samples in a row that show a queue.
    delayed: u32,
    /// True once a search for bandwidth has ended because the path delivers no more. It stays false if only
    /// the delay has ended Startup; the next probe then does not wait.
    pub(super) is_found: bool,
}

impl FullPipe {
    /// Starts a new search for growth, above `bandwidth`.
    pub(super) fn restart(&mut self, bandwidth: u64) {
        *self = FullPipe { bandwidth, rounds: 0, now: false, ..*self };
    }

    pub(super) fn update(&mut self, sample: &RateSample, round_start: bool) {
        let Some(rate) = sample.rate else {
            return;
        };
        if self.now || sample.app_limited {
            return;
        }
        if rate.saturating_mul(4) >= self.bandwidth.saturating_mul(5) {
            self.restart(rate);
        } else if round_start {
            self.rounds += 1;
            self.now = self.rounds >= FULL_ROUNDS;
            self.reached |= self.now;
            self.is_found |= self.now;
        }
    }
}

impl Bbr {
    /// Ends Startup if the pipe is full, a round had too many losses, or a queue grows.
    pub(super) fn leave_startup(&mut self, state: CongestionState, sample: Option<&RateSample>) {
        if self.state != BbrState::Startup {
            return;
        }
        if let Some(sample) = sample.filter(|_| self.loss_round.start && !self.full_pipe.reached)
            && state == CongestionState::Recovery
            && self.is_loss_too_high(sample.tx_in_flight, sample.lost, MIN_RUNS_IN_STARTUP)
        {
            self.leave_startup_by_loss();
        }
        // A flight limited by the application builds its own queue and does not show the path's bandwidth.
        if let Some(rtt) = sample.filter(|sample| !sample.app_limited).and_then(|sample| sample.rtt) {
            let full_pipe = &mut self.full_pipe;
            let is_delayed = self.min_rtt.is_delayed(rtt) && self.rounds.count >= FIRST_DELAYED_ROUND;
            full_pipe.delayed = if is_delayed { full_pipe.delayed + 1 } else { 0 };
            if !full_pipe.reached && full_pipe.delayed >= DELAYED_SAMPLES {
                full_pipe.reached = true;
            }
        }
        if self.full_pipe.reached {
            self.start_drain();
        }
    }

    /// Ends Startup because losses show that it has filled the path.
    pub(super) fn leave_startup_by_loss(&mut self) {
        self.record_probe_ended_by_loss();
        (self.full_pipe.reached, self.full_pipe.is_found) = (true, true);
        self.bounds.inflight_longterm = self.bdp(self.max_bw.get(), (1, 1)).max(self.bounds.inflight_latest);
    }

    pub(super) fn start_drain(&mut self) {
        self.state = BbrState::Drain;
        self.drain_start_round = self.rounds.count;
        // Otherwise the losses that have ended Startup would cause a second response.
        self.loss_round.counts_from = self.delivered;
        self.reset_congestion_signals();
    }

    /// Ends Drain when the bytes in flight are at most the path's capacity.
    pub(super) fn leave_drain(&mut self, now: Instant, pipe: u32) {
        if self.state != BbrState::Drain {
            return;
        }
        // The last flight of Startup shows a larger bandwidth than was known when losses ended Startup.
        self.bounds.inflight_longterm =
            self.bounds.inflight_longterm.max(self.bdp(self.max_bw.get(), (1, 1)));
        if u64::from(pipe) <= self.inflight(self.max_bw.get(), (1, 1))
            || self.rounds.count > self.drain_start_round + MAX_DRAIN_ROUNDS
        {
            self.start_down(now);
            if !self.full_pipe.is_found {
                // Other flows may have built the queue, and the bandwidth may be larger than measured.
                self.start_refill();
                // This acknowledgement does not end the round that begins with it.
                self.rounds.start = false;
            }
        }
    }

    pub(super) fn reset_congestion_signals(&mut self) {
        self.loss_round.is_lossy = false;
        self.loss_round.lost = 0;
        self.evidence.round_delivered = self.delivered;
        self.bounds.reset_latest();
    }
}
