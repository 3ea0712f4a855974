//! The cycle that searches for bandwidth: Down drains the queue, Cruise leaves capacity to others, Refill
//! fills the pipe, Up sends faster than the path has delivered.

use super::super::sample::{AckSample, RateSample};
use super::bounds::UNBOUNDED;
use super::{Bbr, BbrState, CyclePhase, MIN_PIPE_SEGMENTS};
use crate::time::{Instant, Micros};

/// Rounds after which a probe is due regardless of the time, so that a Reno flow can reach its share.
const MAX_ROUNDS_BETWEEN_PROBES: u64 = 63;
/// Shortest time between two probes, and the maximum of the random time added to it.
const PROBE_WAIT: Micros = Micros::from_millis(2000);
const PROBE_WAIT_SPREAD: Micros = Micros::from_millis(1000);
/// Maximum exponent of the growth per round in Up.
const MAX_UP_ROUNDS: u32 = 30;

/// Relation of the arriving acknowledgements to the current probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AckPhase {
    /// There is no probe.
    Init,
    /// The pipe is being filled at the bandwidth.
    Refilling,
    /// A probe has been sent and not acknowledged yet.
    Starting,
    /// The acknowledged data belongs to the probe.
    Feedback,
    /// The last acknowledgements of a probe arrive.
    Stopping,
}

/// The bandwidth probing cycle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cycle {
    ack_phase: AckPhase,
    /// True if losses count as caused by the probe.
    pub(super) is_probe_sample: bool,
    began: Instant,
    /// Time from the beginning of Down to the next probe.
    wait: Micros,
    pub(super) rounds_since_probe: u64,
    /// Rounds of Up so far; bytes acknowledged in Up that have not raised the limit yet; and the number of
    /// acknowledged bytes that raises the limit by a segment.
    up_rounds: u32,
    up_acked: u64,
    bytes_per_segment: u64,
    /// The round in which Up began.
    up_start_round: u64,
    /// True if the last probe had too many losses.
    pub(super) prev_too_high: bool,
    /// True if the last probe stopped at the limit because the probe before it had too many losses.
    prev_precautionary: bool,
}

impl Cycle {
    pub(super) fn new(now: Instant) -> Self {
        Cycle {
            ack_phase: AckPhase::Init,
            is_probe_sample: false,
            began: now,
            wait: Micros::ZERO,
            rounds_since_probe: 0,
            up_rounds: 0,
            up_acked: 0,
            bytes_per_segment: UNBOUNDED,
            up_start_round: 0,
            prev_too_high: false,
            prev_precautionary: false,
        }
    }

    /// Doubles the growth of the limit per round of Up: 1, 2, 4, 8 ... segments.
    fn raise_slope(&mut self, cwnd: u32, mss: u32) {
        self.bytes_per_segment = u64::from((cwnd >> self.up_rounds).max(mss));
        self.up_rounds = (self.up_rounds + 1).min(MAX_UP_ROUNDS);
    }

    /// Returns the bytes by which `acked` bytes raise the limit.
    fn growth(&mut self, acked: u32, mss: u32) -> u64 {
        self.up_acked += u64::from(acked);
        let segments = self.up_acked / self.bytes_per_segment;
        self.up_acked -= segments * self.bytes_per_segment;
        segments * u64::from(mss)
    }

    /// Ends a probe. From now on, acknowledgements are for its last data.
    pub(super) fn stop_probe(&mut self) {
        self.ack_phase = AckPhase::Stopping;
    }
}

impl Bbr {
    /// Adapts the long-term limit, and advances the cycle.
    pub(super) fn advance_cycle(&mut self, ack: &AckSample, sample: Option<&RateSample>) {
        if !self.full_pipe.reached {
            return;
        }
        if let Some(sample) = sample {
            self.adapt_longterm(ack, sample);
        }
        let BbrState::ProbeBw(phase) = self.state else {
            return;
        };
        match phase {
            CyclePhase::Down if self.is_time_to_probe(ack.now) => self.start_refill(),
            CyclePhase::Down => {
                let pipe = u64::from(ack.pipe);
                if pipe <= self.headroom() && pipe <= self.inflight(self.max_bw.get(), (1, 1)) {
                    self.start_cruise();
                }
            }
            CyclePhase::Cruise => {
                if self.is_time_to_probe(ack.now) {
                    self.start_refill();
                }
            }
            CyclePhase::Refill => {
                if self.rounds.start {
                    self.cycle.is_probe_sample = true;
                    self.start_up(ack.now, sample);
                }
            }
            CyclePhase::Up => self.leave_up(ack, sample),
        }
    }

    fn adapt_longterm(&mut self, ack: &AckSample, sample: &RateSample) {
        if self.rounds.start {
            match self.cycle.ack_phase {
                AckPhase::Starting => self.cycle.ack_phase = AckPhase::Feedback,
                AckPhase::Stopping => {
                    self.cycle.is_probe_sample = false;
                    self.cycle.ack_phase = AckPhase::Init;
                    if matches!(self.state, BbrState::ProbeBw(_)) {
                        if !sample.app_limited {
                            self.max_bw.advance();
                        }
                        if self.cycle.prev_precautionary && !self.cycle.prev_too_high {
                            self.start_refill();
                        }
                    }
                }
                AckPhase::Init | AckPhase::Refilling | AckPhase::Feedback => {}
            }
        }
        if self.bounds.inflight_longterm == UNBOUNDED
            || self.is_loss_too_high(sample.tx_in_flight, sample.lost, 0)
        {
            return;
        }
        self.bounds.inflight_longterm = self.bounds.inflight_longterm.max(u64::from(sample.tx_in_flight));
        if self.state == BbrState::ProbeBw(CyclePhase::Up) {
            if self.is_at_longterm() {
                self.bounds.inflight_longterm += self.cycle.growth(ack.left_path(), self.mss);
            }
            if self.rounds.start {
                self.cycle.raise_slope(self.cwnd, self.mss);
            }
        }
    }

    /// True if the long-term limit limits sending.
    fn is_at_longterm(&self) -> bool {
        self.cwnd_limited && u64::from(self.cwnd) >= self.bounds.inflight_longterm
    }

    fn is_time_to_probe(&self, now: Instant) -> bool {
        let reno_rounds = self.target_inflight() / u64::from(self.mss);
        Micros::between(self.cycle.began, now) > self.cycle.wait
            || self.cycle.rounds_since_probe >= reno_rounds.min(MAX_ROUNDS_BETWEEN_PROBES)
    }

    /// Ends Up in three cases: it has found no more bandwidth, it has built a queue, or it has reached the
    /// long-term limit after a probe with too many losses.
    fn leave_up(&mut self, ack: &AckSample, sample: Option<&RateSample>) {
        let flight = u64::from(ack.pipe_before);
        let is_full = if self.is_at_longterm() {
            self.full_pipe.restart(sample.and_then(|sample| sample.rate).unwrap_or(0));
            false
        } else {
            self.full_pipe.now
        };
        let is_precautionary = self.cycle.prev_too_high && flight >= self.bounds.inflight_longterm;
        let had_a_round = self.rounds.count > self.cycle.up_start_round;
        // With a lower limit, a later flow could not take its share from a flow that fills the path.
        let queue = self.bdp(self.bandwidth(), (8, 5))
            + self.aggregation.extra(self.bandwidth())
            + 2 * u64::from(self.mss);
        // Unless the application limits sending, a longer round trip may come from the queues of other flows.
        let is_delayed = sample.is_some_and(|sample| {
            sample.app_limited && sample.rtt.is_some_and(|rtt| self.min_rtt.is_queued(rtt))
        });
        let is_queue = had_a_round && (flight >= queue || is_delayed);
        if is_full || is_precautionary || is_queue {
            self.full_pipe.is_found = true;
            if is_precautionary {
                self.cycle.prev_precautionary = true;
            }
            self.cycle.prev_too_high = false;
            self.start_down(ack.now);
        }
    }

    pub(super) fn start_down(&mut self, now: Instant) {
        self.reset_congestion_signals();
        self.cycle.bytes_per_segment = UNBOUNDED;
        self.cycle.rounds_since_probe = self.draw(2);
        self.cycle.wait = PROBE_WAIT + Micros::from_micros(self.draw(u64::from(PROBE_WAIT_SPREAD.0) + 1));
        self.cycle.began = now;
        self.cycle.stop_probe();
        self.rounds.restart(self.delivered);
        self.state = BbrState::ProbeBw(CyclePhase::Down);
    }

    pub(super) fn start_cruise(&mut self) {
        if self.bounds.inflight_shortterm != UNBOUNDED {
            self.bounds.inflight_shortterm =
                self.bounds.inflight_shortterm.min(self.bounds.inflight_longterm);
        }
        self.state = BbrState::ProbeBw(CyclePhase::Cruise);
    }

    pub(super) fn start_refill(&mut self) {
        self.bounds.reset_shortterm();
        self.cycle.up_rounds = 0;
        self.cycle.up_acked = 0;
        self.cycle.prev_precautionary = false;
        self.cycle.ack_phase = AckPhase::Refilling;
        self.rounds.restart(self.delivered);
        self.state = BbrState::ProbeBw(CyclePhase::Refill);
    }

    fn start_up(&mut self, now: Instant, sample: Option<&RateSample>) {
        self.cycle.ack_phase = AckPhase::Starting;
        self.rounds.restart(self.delivered);
        self.full_pipe.restart(sample.and_then(|sample| sample.rate).unwrap_or(0));
        self.cycle.began = now;
        self.cycle.rounds_since_probe = 0;
        self.cycle.up_start_round = self.rounds.count;
        self.cycle.raise_slope(self.cwnd, self.mss);
        self.state = BbrState::ProbeBw(CyclePhase::Up);
    }

    /// Returns the long-term limit less the headroom for others, bytes.
    pub(super) fn headroom(&self) -> u64 {
        let limit = self.bounds.inflight_longterm;
        if limit == UNBOUNDED {
            return UNBOUNDED;
        }
        let mss = u64::from(self.mss);
        limit.saturating_sub((limit * 15 / 100).max(mss)).max(MIN_PIPE_SEGMENTS * mss)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_grows_twice_as_fast_with_each_round() {
        let mut cycle = Cycle::new(Instant::ZERO);
        let rounds = [(); 5].map(|()| {
            cycle.raise_slope(100_000, 1000);
            let grown: u64 = (0..10).map(|_| cycle.growth(10_000, 1000)).sum();
            (cycle.bytes_per_segment, grown)
        });
        assert_eq!(rounds, [(100_000, 1000), (50_000, 2000), (25_000, 4000), (12_500, 8000), (6250, 16_000)]);
    }
}
