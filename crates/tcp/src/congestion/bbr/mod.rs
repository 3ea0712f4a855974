//! BBR version 3 (draft-ietf-ccwg-bbr): sends at the rate that the path delivers, and keeps about one
//! bandwidth-delay product in flight.
//!
//! [`Bbr`] receives the time, acknowledgements and losses, and returns the window and the pacing rate. Its
//! model of the path is the bandwidth (`MaxBandwidth`), the round-trip time (`MinRtt`), the aggregation of
//! acknowledgements (`Aggregation`), and the limits of rate and volume in flight that follow from losses
//! (`Bounds`). Its state (`BbrState`) determines the next probe of the path.
//!
//! Losses count only if they are significant. In a short flight a single random loss exceeds the draft's 2 %,
//! but shows nothing about the path (`loss.rs`).
//!
//! | file | content |
//! |---|---|
//! | `filters` | rounds, bandwidth, round-trip time, aggregation of acknowledgements |
//! | `startup` | Startup, the estimate that the pipe (the capacity of the path) is full, Drain |
//! | `probe_bw` | the cycle Down, Cruise, Refill, Up |
//! | `probe_rtt` | the drain that measures the round-trip time |
//! | `bounds` | the long-term and short-term limits |
//! | `loss` | losses that show congestion, and the response to them |
//! | `recovery` | the window while lost data is repaired |
//! | `output` | pacing rate and window |

use super::CongestionController;
use super::sample::{
    AckSample, CongestionCause, CongestionEvent, ControllerStart, LostPacket, RateSample, RtoEvent, Train,
    Transmission,
};
use crate::outcome::CongestionState;
use crate::time::{Instant, Micros};

use bounds::Bounds;
use filters::{Aggregation, MaxBandwidth, MinRtt, Rounds};
use loss::{Evidence, LossRound};
use probe_bw::Cycle;
use probe_rtt::ProbeRtt;
use recovery::BbrRecovery;
use startup::FullPipe;

mod bounds;
mod filters;
mod loss;
mod output;
mod probe_bw;
mod probe_rtt;
mod recovery;
mod startup;

/// Smallest window, segments.
const MIN_PIPE_SEGMENTS: u64 = 4;

#[derive(Clone, Debug)]
pub(crate) struct Bbr {
    mss: u32,
    initial_window: u32,
    /// State of the generator (SplitMix64).
    random: u64,
    state: BbrState,
    /// Congestion window, bytes.
    cwnd: u32,
    /// The window before recovery or ProbeRTT, bytes.
    prior_cwnd: u32,
    /// Pacing rate, bytes per second.
    pacing_rate: u64,
    /// Minimum of the pacing rate: one segment in each round trip.
    min_rate: u64,
    /// False until a round-trip time has set the pacing rate.
    has_rtt: bool,
    /// `C.delivered` as last reported.
    delivered: u64,
    /// Value of `delivered` below which ProbeRTT limited sending. Samples of data sent then count as
    /// application-limited.
    app_limited_until: u64,
    rounds: Rounds,
    max_bw: MaxBandwidth,
    /// The last flight whose acknowledgements have shown a rate; at first one of an earlier connection.
    train: Option<Train>,
    min_rtt: MinRtt,
    aggregation: Aggregation,
    full_pipe: FullPipe,
    drain_start_round: u64,
    bounds: Bounds,
    loss_round: LossRound,
    evidence: Evidence,
    cycle: Cycle,
    probe_rtt: ProbeRtt,
    /// True from a transmission after idle to the next acknowledgement.
    idle_restart: bool,
    /// True if the window limited sending in this round.
    cwnd_limited: bool,
    recovery: BbrRecovery,
    undo: Option<Undo>,
}

/// The state of BBR's state machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BbrState {
    /// Doubles the rate each round until the bandwidth no longer grows.
    Startup,
    /// Removes the queue that Startup has built.
    Drain,
    /// Cycles around the bandwidth.
    ProbeBw(CyclePhase),
    /// Halves the flight to measure the round-trip time without a queue.
    ProbeRtt,
}

/// A phase of the bandwidth probing cycle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CyclePhase {
    /// Below the bandwidth, until the queue is gone and there is headroom.
    Down,
    /// At the bandwidth.
    Cruise,
    /// At the bandwidth without short-term limits, for a round.
    Refill,
    /// Above the bandwidth.
    Up,
}

/// Values to restore if recovery proves spurious.
#[derive(Clone, Copy, Debug)]
struct Undo {
    /// Time of the event that began the recovery.
    at: Instant,
    /// The probing state that a loss of this recovery has ended.
    left: Option<BbrState>,
    is_found: bool,
    prev_too_high: bool,
    bw_shortterm: u64,
    inflight_shortterm: u64,
    inflight_longterm: u64,
}

impl Bbr {
    pub(crate) fn new(start: &ControllerStart) -> Self {
        let now = start.now;
        let mss = start.mss.max(1);
        let initial_window = start.initial_window.max(mss);
        let mut bbr = Bbr {
            mss,
            initial_window,
            random: start.seed,
            state: BbrState::Startup,
            cwnd: initial_window,
            prior_cwnd: 0,
            pacing_rate: 1,
            min_rate: 1,
            has_rtt: false,
            delivered: 0,
            app_limited_until: 0,
            rounds: Rounds::default(),
            max_bw: MaxBandwidth::default(),
            train: None,
            min_rtt: MinRtt::new(now),
            aggregation: Aggregation::new(now),
            full_pipe: FullPipe::default(),
            drain_start_round: 0,
            bounds: Bounds::default(),
            loss_round: LossRound::default(),
            evidence: Evidence::default(),
            cycle: Cycle::new(now),
            probe_rtt: ProbeRtt::default(),
            idle_restart: false,
            cwnd_limited: false,
            recovery: BbrRecovery::default(),
            undo: None,
        };
        bbr.pace_window_per(Micros::from_millis(1));
        bbr
    }

    /// Returns the estimated bandwidth, bytes per second; zero before the first sample.
    pub(crate) fn bandwidth(&self) -> u64 {
        self.max_bw.get().min(self.bounds.bw_shortterm)
    }

    /// True if the bandwidth of the path has been found.
    pub(crate) fn has_filled_pipe(&self) -> bool {
        self.full_pipe.reached
    }

    /// Removes the limits that apply until the next probe.
    pub(crate) fn forget_short_term(&mut self) {
        self.bounds.reset_shortterm();
    }

    /// Counts rounds and loss rounds. Each ends when data that was sent after its beginning is delivered.
    fn begin_rounds(&mut self, sample: Option<&RateSample>) {
        self.rounds.start = false;
        self.loss_round.start = false;
        if let Some(sample) = sample {
            self.rounds.update(sample.prior_delivered, self.delivered);
            self.loss_round.update(sample.prior_delivered, self.delivered);
            if self.rounds.start {
                self.cycle.rounds_since_probe += 1;
            }
        }
    }

    /// Saves the values to restore if a recovery proves spurious, once per recovery. The losses that begin a
    /// recovery are reported before it, and may end a probe.
    fn save_undo(&mut self, now: Instant) {
        if self.recovery.is_active || self.undo.is_some_and(|undo| undo.at == now) {
            return;
        }
        self.undo = Some(Undo {
            at: now,
            left: None,
            is_found: self.full_pipe.is_found,
            prev_too_high: self.cycle.prev_too_high,
            bw_shortterm: self.bounds.bw_shortterm,
            inflight_shortterm: self.bounds.inflight_shortterm,
            inflight_longterm: self.bounds.inflight_longterm,
        });
    }

    /// Begins a recovery episode: saves the window and the values to restore if it proves spurious.
    fn begin_episode(&mut self, now: Instant) {
        self.save_cwnd();
        self.save_undo(now);
        if !self.recovery.is_active {
            self.recovery.is_first = self.is_at_start();
        }
        self.recovery.is_active = true;
        self.recovery.is_heavy |= self.loss_round.is_heavy;
    }

    fn save_cwnd(&mut self) {
        let held = self.recovery.is_active || self.state == BbrState::ProbeRtt;
        self.prior_cwnd = if held { self.prior_cwnd.max(self.cwnd) } else { self.cwnd };
    }

    /// True in the states that search for more bandwidth, in which losses are expected.
    fn is_probing(&self) -> bool {
        matches!(self.state, BbrState::Startup | BbrState::ProbeBw(CyclePhase::Refill | CyclePhase::Up))
    }

    /// Returns a random number below `bound`.
    fn draw(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.random;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % bound.max(1)
    }
}

impl CongestionController for Bbr {
    fn name(&self) -> &'static str {
        "bbr"
    }

    fn cwnd(&self) -> u32 {
        self.cwnd
    }

    fn pacing_rate(&self) -> Option<u64> {
        Some(self.pacing_rate)
    }

    fn needs_delivery_rate(&self) -> bool {
        true
    }

    fn set_mss(&mut self, mss: u32) {
        self.mss = mss.max(1);
        self.cwnd = self.cwnd.max(self.mss);
    }

    fn start(&mut self, window: u32) {
        self.cwnd = window.max(self.mss);
    }

    fn on_sent(&mut self, sent: &Transmission) {
        if sent.from_idle && sent.app_limited {
            self.idle_restart = true;
            self.aggregation.restart(sent.at);
            match self.state {
                BbrState::ProbeBw(_) if self.bandwidth() > 0 => {
                    self.pacing_rate = self.paced(self.bandwidth_of_flights(), (1, 1));
                }
                BbrState::ProbeRtt => self.check_probe_rtt_done(sent.at),
                BbrState::Startup | BbrState::Drain | BbrState::ProbeBw(_) => {}
            }
        }
    }

    fn on_lost(&mut self, lost: &LostPacket) {
        self.save_undo(lost.now);
        self.delivered = lost.delivered;
        let counts = self.loss_round.counts(lost.prior_delivered);
        if counts {
            self.loss_round.record(lost.range, self.delivered);
            self.loss_round.is_queued |= lost.is_queued;
        }
        self.loss_round.is_heavy |= self.is_loss_heavy(lost.tx_in_flight, lost.lost);
        self.recovery.is_heavy |= self.recovery.is_active && self.loss_round.is_heavy;
        if lost.is_queued && self.state == BbrState::Startup && !self.full_pipe.reached {
            self.leave_startup_by_loss();
        }
        if counts
            && self.cycle.is_probe_sample
            && self.is_loss_too_high(lost.tx_in_flight, lost.lost, loss::MIN_RUNS_IN_UP)
        {
            self.end_lossy_probe(lost);
        }
    }

    fn on_train(&mut self, train: &Train) {
        self.train = Some(*train);
        self.follow_train(train);
    }

    /// The order of the steps is part of the algorithm.
    fn on_ack(&mut self, ack: &AckSample) {
        if let Some(delivery) = ack.delivery {
            self.delivered = delivery.delivered;
        }
        let sample = ack.delivery.and_then(|delivery| delivery.rate).map(|sample| RateSample {
            app_limited: sample.app_limited || sample.prior_delivered < self.app_limited_until,
            rate: sample.rate.map(|rate| rate.min(output::MAX_RATE)),
            ..sample
        });
        self.cwnd_limited |= ack.cwnd_limited;
        self.begin_rounds(sample.as_ref());
        if let Some(sample) = &sample {
            self.bounds.observe(sample);
            self.max_bw.update(sample);
            self.end_loss_round(sample);
        }
        let bandwidth = self.bandwidth();
        // The aggregation is a maximum over two slots: this one and the previous one. A slot lasts 5 rounds,
        // or 1 round until the pipe is full.
        let slot_rounds = if self.full_pipe.reached { 5 } else { 1 };
        self.aggregation.update(
            ack.now,
            ack.left_path(),
            bandwidth,
            self.cwnd,
            self.rounds.count,
            slot_rounds,
        );
        if let Some(sample) = &sample {
            self.full_pipe.update(sample, self.rounds.start);
        }
        self.leave_startup(ack.state, sample.as_ref());
        self.leave_drain(ack.now, ack.pipe);
        self.advance_cycle(ack, sample.as_ref());
        self.update_min_rtt(ack, sample.as_ref());
        if let Some(sample) = sample.as_ref().filter(|_| self.loss_round.start) {
            self.loss_round.runs = 0;
            if !sample.is_probe {
                self.bounds.restart_latest(sample);
            }
        }
        self.set_pacing_rate(ack.srtt);
        self.conserve(ack, sample.as_ref());
        self.set_window(ack.left_path());
        self.cwnd_limited &= !self.rounds.start;
    }

    /// Keeps the window, because the model responds to losses. Only heavy losses at the start of the flow
    /// lower it.
    fn on_congestion(&mut self, event: &CongestionEvent) {
        if !self.recovery.is_active {
            self.recovery.begin_first_round(self.delivered);
        }
        self.begin_episode(event.now);
        match event.cause {
            CongestionCause::Loss => {}
            CongestionCause::Ecn => self.answer_mark(event.now),
            CongestionCause::Repaired(_) => self.loss_round.begin(self.delivered),
        }
    }

    fn on_recovery_exit(&mut self, _from: CongestionState) {
        if self.recovery.is_active {
            self.recovery = BbrRecovery::default();
            self.cwnd = self.cwnd.max(self.prior_cwnd);
        }
    }

    /// Sets the window to one segment more than the bytes in flight (`rto.pipe`), and keeps the model. If the
    /// flow is not probing and has no short-term limit of its volume, the earlier window becomes that limit.
    fn on_rto(&mut self, rto: &RtoEvent) {
        let probing = self.is_probing();
        self.begin_episode(rto.now);
        self.full_pipe.restart(0);
        if !probing && self.bounds.inflight_shortterm == bounds::UNBOUNDED {
            // Otherwise the first adaptation would begin with the window of one segment.
            self.bounds.inflight_shortterm = u64::from(self.cwnd.max(self.prior_cwnd));
        }
        self.recovery.end_first_round();
        self.cwnd = rto.pipe.saturating_add(self.mss);
    }

    fn on_reordering_timeout(&mut self, pipe: u32) {
        self.recovery.restart_first_round_by_timer(self.delivered);
        if self.recovery.conserves() {
            self.cwnd = self.cwnd.min(pipe.saturating_add(self.mss));
        }
    }

    /// Restores the window and the limits, and probes again.
    fn on_spurious(&mut self, _now: Instant) {
        let Some(undo) = self.undo.take() else {
            return;
        };
        self.cwnd = self.cwnd.max(self.prior_cwnd);
        (self.loss_round.is_lossy, self.loss_round.is_heavy, self.loss_round.lost) = (false, false, 0);
        self.recovery = BbrRecovery::default();
        self.full_pipe.restart(0);
        self.full_pipe.is_found &= undo.is_found;
        self.bounds.bw_shortterm = self.bounds.bw_shortterm.max(undo.bw_shortterm);
        self.bounds.inflight_shortterm = self.bounds.inflight_shortterm.max(undo.inflight_shortterm);
        self.bounds.inflight_longterm = self.bounds.inflight_longterm.max(undo.inflight_longterm);
        self.cycle.prev_too_high &= undo.prev_too_high;
        if self.state == BbrState::ProbeRtt || undo.left == Some(self.state) {
            return;
        }
        match undo.left {
            Some(BbrState::Startup) => {
                self.full_pipe.reached = false;
                self.state = BbrState::Startup;
            }
            Some(BbrState::ProbeBw(_)) => self.start_refill(),
            Some(BbrState::Drain | BbrState::ProbeRtt) | None => {}
        }
    }
}

/// Returns the bytes that `rate` bytes per second deliver in `span`, rounded up.
fn bytes_in(rate: u64, span: Micros) -> u64 {
    u64::try_from((u128::from(rate) * u128::from(span.0)).div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
