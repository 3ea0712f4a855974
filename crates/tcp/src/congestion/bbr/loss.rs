//! The losses that show congestion, and the response to them.
//!
//! The draft calls a loss ratio above 2 % congestion. In a flight of fewer than 50 segments, a single random
//! loss exceeds that. On a path that loses 2 % at random, about half of all flights exceed it. Here losses
//! must also be *excess*: more than random loss explains. The flow learns the random loss of its path over
//! time ([`crate::evidence`]).
//!
//! Losses above 2 % end a probe if they are excess, or if a full queue is known to have caused them. Before
//! the bandwidth has been found, they must exceed what chance causes once in ten thousand flights. Between
//! probes, the limits fall after a round whose losses
//!
//! - are known to be caused by a full queue;
//! - exceed what chance causes once in ten thousand rounds;
//! - are excess, while there is a queue or for the second time in four lossy rounds; or
//! - occur while there is a queue, for the second time in four lossy rounds, unless the flow drains its own
//!   queue.
//!
//! Losses of data that was sent before Drain do not count after it.

use super::super::sample::{LostPacket, RateSample};
use super::{Bbr, BbrState, CyclePhase};
use crate::evidence::LossHistory;
use crate::seq_ranges::SeqRange;
use crate::time::{Instant, Micros};
use brisk_wire::SeqNum;

/// Number of loss runs in a round that ends Startup. The draft requires six, but a short queue drops a third
/// of a short flight before its losses form six runs. Fewer suffice here, as losses must also be excess.
pub(super) const MIN_RUNS_IN_STARTUP: u32 = 3;
/// Number of loss runs in a round that ends a probe for bandwidth.
pub(super) const MIN_RUNS_IN_UP: u32 = 2;
/// Loss threshold of the draft, percent.
const LOSS_THRESHOLD: u64 = 2;
/// Segments after which learnt counts are halved.
const MEMORY_SEGMENTS: u64 = 16_384;
/// Returns seven tenths.
pub(super) fn times_beta(value: u64) -> u64 {
    value / 10 * 7 + value % 10 * 7 / 10
}

/// The round trip in which losses are counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LossRound {
    ends_at: u64,
    /// True if the last acknowledgement began a round.
    pub(super) start: bool,
    /// True if this round has losses.
    pub(super) is_lossy: bool,
    /// True if a full queue is known to have caused losses of the round.
    pub(super) is_queued: bool,
    /// True if this round has lost a quarter of a flight, and more than random loss explains.
    pub(super) is_heavy: bool,
    /// Lost bytes of this round.
    pub(super) lost: u64,
    /// Number of lost ranges that are not adjacent.
    pub(super) runs: u32,
    last_end: Option<SeqNum>,
    /// Bytes delivered when Drain began. Losses of data that was sent before do not count, because the end of
    /// Startup was the response to them.
    pub(super) counts_from: u64,
}

impl LossRound {
    pub(super) fn update(&mut self, prior_delivered: u64, delivered: u64) {
        self.start = prior_delivered >= self.ends_at;
        if self.start {
            self.ends_at = delivered;
        }
    }

    /// Marks the round as lossy. From the first loss on, the round ends when data sent after that loss is
    /// delivered.
    pub(super) fn begin(&mut self, delivered: u64) {
        if !self.is_lossy {
            self.ends_at = delivered;
        }
        self.is_lossy = true;
    }

    /// True if a loss counts. `prior_delivered`: bytes delivered when the lost data was sent.
    pub(super) fn counts(&self, prior_delivered: u64) -> bool {
        prior_delivered >= self.counts_from
    }

    pub(super) fn record(&mut self, range: SeqRange, delivered: u64) {
        self.begin(delivered);
        self.lost += u64::from(range.len());
        if self.last_end != Some(range.start) {
            self.runs += 1;
        }
        self.last_end = Some(range.end);
    }
}

/// The random loss of the path, learnt from rounds without congestion.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence {
    history: LossHistory,
    /// One bit for each of the last four lossy rounds, the newest lowest: 1 if the round trip showed a queue.
    queued: u8,
    /// One bit for each of the same rounds: 1 if its losses exceed what random loss explains.
    excess: u8,
    /// Bytes delivered when this round began.
    pub(super) round_delivered: u64,
    round_rtt: Option<Micros>,
}

impl Bbr {
    /// Begins with the random loss that earlier connections of the path have seen.
    pub(crate) fn expect_random_loss(&mut self, history: LossHistory) {
        self.evidence.history = history;
    }

    /// True if the losses exceed 2 % of the flight and show congestion. They show it if a full queue is
    /// known to have caused them. Otherwise they must form `min_runs` runs and exceed random loss. Until the
    /// bandwidth has been found, they must exceed what chance causes once in ten thousand flights: a probe
    /// looks at its losses many times, and one that chance ends far below the bandwidth leaves a limit that
    /// later probes need seconds to raise.
    pub(super) fn is_loss_too_high(&self, tx_in_flight: u32, lost: u64, min_runs: u32) -> bool {
        let flight = u64::from(tx_in_flight);
        let exceeds_chance = || {
            let history = &self.evidence.history;
            let (segments, lost) = (self.segments(flight), self.segments(lost));
            if self.full_pipe.is_found {
                history.is_excess(segments, lost)
            } else {
                history.is_certain_excess(segments, lost)
            }
        };
        lost * 100 > flight * LOSS_THRESHOLD
            && (self.loss_round.is_queued || self.loss_round.runs >= min_runs && exceeds_chance())
    }

    fn segments(&self, bytes: u64) -> u64 {
        bytes.div_ceil(u64::from(self.mss))
    }

    /// Records the round-trip time of `sample`. If `sample` ends the loss round, adds the round to the
    /// history, and lowers the short-term limits if its losses show congestion.
    pub(super) fn end_loss_round(&mut self, sample: &RateSample) {
        let evidence = &mut self.evidence;
        evidence.round_rtt = match (evidence.round_rtt, sample.rtt) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if !self.loss_round.start {
            return;
        }
        let lost_bytes = self.loss_round.lost;
        let bytes = self.delivered.saturating_sub(evidence.round_delivered) + lost_bytes;
        let is_queued =
            self.loss_round.is_queued || evidence.round_rtt.is_some_and(|rtt| self.min_rtt.is_queued(rtt));
        evidence.round_delivered = self.delivered;
        evidence.round_rtt = None;
        let (segments, lost) = (self.segments(bytes), self.segments(lost_bytes));
        let allowed = self.evidence.history.allowed(segments);
        // Chance exceeds the allowance in one round of a hundred, so one such round alone shows nothing.
        let history = &self.evidence.history;
        let exceeds = history.is_excess(segments, lost);
        if self.loss_round.is_lossy {
            self.evidence.excess = (self.evidence.excess << 1 | u8::from(exceeds)) & 0xf;
        }
        let is_excess = self.loss_round.is_queued
            || history.is_certain_excess(segments, lost)
            || exceeds && (is_queued || self.evidence.excess.count_ones() >= 2);
        if self.loss_round.is_lossy {
            self.evidence.queued = (self.evidence.queued << 1 | u8::from(is_queued)) & 0xf;
        }
        // Drain and Down send slower than the path delivers, because the flow has built a queue. So neither
        // the queue nor the low rate shows that the path has less bandwidth.
        let drains = matches!(self.state, BbrState::Drain | BbrState::ProbeBw(CyclePhase::Down));
        // Losses in a queue of other flows are not random; losses in the flow's own queue may be. Without a
        // queue, losses count as random up to the number that random loss explains.
        if !is_queued || !(drains || self.is_probing()) {
            let random = if is_queued { 0 } else { lost.min(allowed) };
            let runs = u64::from(self.loss_round.runs).min(random);
            self.evidence.history.learn(segments, random, runs, MEMORY_SEGMENTS);
        }
        let is_congestion = is_excess || self.evidence.queued.count_ones() >= 2 && is_queued && !drains;
        if self.loss_round.is_lossy && is_congestion && !self.is_probing() {
            self.bounds.lower_bandwidth(self.max_bw.get());
            if is_excess || !sample.app_limited {
                self.bounds.lower_inflight(self.cwnd, times_beta);
            }
        }
        let round = &mut self.loss_round;
        (round.is_lossy, round.is_queued, round.is_heavy, round.lost) = (false, false, false, 0);
    }

    /// Ends a probe with too much in flight. The volume at the loss becomes the long-term limit.
    pub(super) fn end_lossy_probe(&mut self, lost: &LostPacket) {
        let at_loss = inflight_at_loss(lost.range.len(), lost.tx_in_flight, lost.lost);
        self.full_pipe.is_found = true;
        self.cycle.prev_too_high = true;
        self.cycle.is_probe_sample = false;
        if !lost.app_limited {
            self.bounds.inflight_longterm = at_loss.max(times_beta(self.target_inflight()));
        }
        if self.state == BbrState::ProbeBw(CyclePhase::Up) {
            self.record_probe_ended_by_loss();
            self.start_down(lost.now);
        }
    }

    /// Remembers the state, in case the losses prove spurious.
    pub(super) fn record_probe_ended_by_loss(&mut self) {
        let state = self.state;
        if let Some(undo) = &mut self.undo {
            undo.left = Some(state);
        }
    }

    /// Responds to an ECN mark (RFC 3168) once per window. The response in a probe is that to a loss;
    /// otherwise it is the reduction of RFC 8511.
    pub(super) fn answer_mark(&mut self, now: Instant) {
        match self.state {
            BbrState::Startup => {
                (self.full_pipe.reached, self.full_pipe.is_found) = (true, true);
                self.bounds.inflight_longterm =
                    self.bdp(self.max_bw.get(), (1, 1)).max(self.bounds.inflight_latest);
                self.start_drain();
                // Data that left since the last acknowledgement has the `C.delivered` of data that leaves
                // now.
                self.loss_round.counts_from += 1;
            }
            BbrState::ProbeBw(CyclePhase::Up) => {
                self.cycle.prev_too_high = true;
                self.cycle.is_probe_sample = false;
                self.bounds.inflight_longterm =
                    self.bounds.inflight_latest.max(times_beta(self.target_inflight()));
                self.start_down(now);
            }
            BbrState::Drain
            | BbrState::ProbeBw(CyclePhase::Down | CyclePhase::Cruise | CyclePhase::Refill)
            | BbrState::ProbeRtt => {
                self.bounds.lower_inflight(self.cwnd, |inflight| inflight / 100 * 85);
            }
        }
    }
}

/// Returns the bytes in flight at which the losses exceeded the threshold. That point lies within the last
/// `len` bytes of the flight, which were lost.
fn inflight_at_loss(len: u32, tx_in_flight: u32, lost: u64) -> u64 {
    let len = u64::from(len);
    let (Some(flight_before), Some(lost_before)) =
        (u64::from(tx_in_flight).checked_sub(len), lost.checked_sub(len))
    else {
        return u64::from(tx_in_flight);
    };
    let prefix = (LOSS_THRESHOLD * flight_before).saturating_sub(100 * lost_before) / (100 - LOSS_THRESHOLD);
    flight_before + prefix.min(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BBRInflightAtLoss of the draft.
    #[test]
    fn the_limit_is_where_the_losses_crossed_the_threshold() {
        assert_eq!(inflight_at_loss(10_000, 100_000, 11_000), 90_816);
        assert_eq!(inflight_at_loss(10_000, 100_000, 12_000), 90_000);
        assert_eq!(inflight_at_loss(2000, 1000, 2000), 1000, "a flight smaller than what was lost");
    }

    #[test]
    fn adjoining_losses_are_one_run() {
        let mut round = LossRound::default();
        for (from, to) in [(1000, 2000), (2000, 3000), (5000, 6000)] {
            round.record(SeqRange::new(SeqNum(from), SeqNum(to)), 70_000);
        }
        assert_eq!((round.runs, round.is_lossy, round.ends_at), (2, true, 70_000));
    }
}
