//! Exchange between a connection and the memory of its path ([`crate::path`]).
//!
//! A connection always uses the path's maximum packet size. If so configured, it also uses the variation of
//! the round-trip time, a larger initial window, and handshake timers that follow the path's round-trip time.
//!
//! **The window** ([`TcpConfig::path_start`]). RFC 9040 lets connections share what they know of a path; RFC
//! 6928 permits ten segments on an unknown path. A larger window is either a window that the path has carried
//! before ([`PathVolume`]), or the window that the configuration sets. In both cases careful resume
//! (draft-ietf-tsvwg-careful-resume) bounds it:
//!
//! - the connection asks for it when ten segments are not enough. On a quiet path of known rate the asking
//!   connections take turns. Otherwise they share the volume of one flight, and more if simultaneous flights
//!   arrive without losses from congestion;
//! - a listener uses it only after the handshake has shown that the client exists, or if its early responses
//!   are [`Authenticated`](crate::fast_open::EarlyResponse::Authenticated);
//! - the round-trip time must be similar: at least half of the remembered one, and without a queue;
//! - no packet of the handshake may have been lost, unless an early retry repaired the loss;
//! - its data leaves at the rate of the path; if that is unknown, ten segments leave at once and the others
//!   within a round trip;
//! - the window does not grow until all of it has arrived;
//! - more loss than chance explains reduces it to half of the data that has arrived.

use alloc::boxed::Box;

use brisk_wire::SeqNum;

use crate::config::{PrrBound, TcpConfig};
use crate::congestion::Controller;
use crate::congestion::sample::ControllerStart;
use crate::connection::handshake::{Handshake, early_wait};
use crate::connection::sender::{SHORT_TRANSFER, Sender, Sharing, initial_window};
use crate::connection::{Connection, LiveStats, State};
use crate::error::CloseReason;
use crate::evidence::{LossHistory, is_queued, shows_queue};
use crate::mechanism::plan::PARITIES_MAX;
use crate::on_demand::{Initial, OnDemand};
use crate::outcome::{AckOutcome, CongestionState, Delivered};
use crate::path::{
    Granted, HandshakeResult, LossCount, MtuReport, PathFacts, PathReport, PathRtt, PathVolume,
    REPORT_INTERVAL, StartRequest,
};
use crate::send::pacer::Pacer;
use crate::send::rate::RateControl;
use crate::send::rtt::RttEstimator;
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant, Micros};

mod flight;
mod pause;

use flight::FlightWatch;

/// Segments with which any connection may begin (RFC 6928).
pub(crate) const STANDARD_WINDOW: u32 = 10;
/// Maximum window at the start on a path whose rate is unknown, however much it has carried; segments.
const UNMEASURED_WINDOW: u32 = 64;
/// Maximum window at the start, segments.
const MAX_START_WINDOW: u32 = 1024;
/// Segments that leave at once where the rate of the path is known.
const BURST_SEGMENTS: u32 = 4;
/// An answer within this percentage of the remembered round-trip time does not show a longer path.
const ALIKE_PERCENT: u32 = 125;
/// Number of round-trip samples after which a timer in the first sample no longer distorts the estimate.
const SAMPLES: u32 = 8;

/// Knowledge of a connection about its path, and its reports so far.
#[derive(Debug, Default)]
pub(crate) struct OnPath {
    /// Knowledge at the beginning of the connection.
    pub(crate) known: PathFacts,
    /// State of a start with more than ten segments.
    start: Start,
    /// Bytes granted for the start that no report has returned to the path memory.
    granted: u32,
    /// Bytes of data that were in flight or unsent at the last request.
    asked: u32,
    /// All losses before the start on trust.
    before_trust: LossCount,
    /// Time of the next report about measurements, and the measurements already reported; `None` before the
    /// first report.
    report_at: Option<Instant>,
    reported: LossCount,
    reported_mtu: MtuReport,
    /// True if the measured round trip may include the timer of a lost SYN-ACK.
    pub(super) rtt_in_doubt: bool,
    /// True if the answer came after the timer of the handshake had fired, but probably not because of a
    /// loss.
    seems_longer: bool,
    /// True if the final report was made.
    over: bool,
    /// All losses at the last call of [`OnPath::sort_losses`].
    sorted: LossCount,
    /// Watches flights for the memory of the path and the controller; `None` while nothing is in flight.
    pub(super) flights: Option<Box<FlightWatch>>,
    losses: OnDemand<LossLog>,
}

/// State that counts each loss once, by its cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct LossLog {
    /// End of the last run of lost segments.
    lost_to: Option<SeqNum>,
    /// Repaired segments, and runs of them, that are not counted as masked losses.
    repaired: (u64, u64),
    /// Repaired segments whose originals arrived after all.
    refuted: u64,
    copies: CopyCount,
    /// Losses that a queue caused.
    queued: LossCount,
}

/// Segments that were copied without an agreement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct CopyCount {
    /// Copies that left.
    pub(super) left: u64,
    /// Copies whose original arrived too.
    pub(super) twice: u64,
    /// Copies after which the peer has the data, but has not reported it twice.
    pub(super) once: u64,
}

impl Initial for LossLog {
    const INITIAL: LossLog = LossLog {
        lost_to: None,
        repaired: (0, 0),
        refuted: 0,
        copies: CopyCount { left: 0, twice: 0, once: 0 },
        queued: LossCount { sent: 0, lost: 0, runs: 0 },
    };
    const SHARED: &'static LossLog = &Self::INITIAL;
}

/// A start with a window larger than RFC 6928 permits on any path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Start {
    /// There is none, or it has ended.
    #[default]
    Over,
    /// The connection may ask for one.
    Open,
    /// `window` bytes are in flight; the start ends when all data before `end` has arrived.
    OnTrust {
        end: SeqNum,
        window: u32,
        /// [`Flight::delays_others`](crate::mechanism::plan::Flight::delays_others); 0 if the start has not
        /// waited for its turn.
        delays_others: u32,
    },
}

/// The start, and losses by their cause.
impl OnPath {
    /// Keeps the current window: the connection no longer requests a larger one for its start.
    pub(crate) fn start_as_unknown(&mut self) {
        if self.start == Start::Open {
            self.start = Start::Over;
        }
    }

    /// Takes the granted bytes that are not returned yet.
    pub(crate) fn take_granted(&mut self) -> u32 {
        core::mem::take(&mut self.granted)
    }

    /// True while data of the start beyond `end` may be in flight.
    pub(crate) fn is_on_trust_behind(&self, end: SeqNum) -> bool {
        matches!(self.start, Start::OnTrust { end: trusted, .. } if end.lt(trusted))
    }

    /// True while the window may not grow, because data of the start has not arrived.
    #[inline]
    pub(crate) fn is_on_trust(&self) -> bool {
        matches!(self.start, Start::OnTrust { .. })
    }

    /// Returns the delay that redundancy of the current flight causes for other transfers
    /// ([`Flight::delays_others`](crate::mechanism::plan::Flight::delays_others)).
    pub(super) fn delays_others(&self) -> u32 {
        match self.start {
            Start::OnTrust { delays_others, .. } => delays_others,
            Start::Over | Start::Open => 0,
        }
    }

    /// Frees the memory that only losses need.
    pub(crate) fn release_memory(&mut self) {
        self.losses.release();
    }

    /// Counts repairs by parity that the peer reports. The missing segments are those that this
    /// acknowledgement covers below `reported`, the highest sequence number that SACK had reported before.
    /// Segments above it may have arrived unreported: an acknowledgement was lost, or the receiver sends one
    /// for many segments. `is_first`: this acknowledgement begins the report. One of its segments already
    /// counts as a masked loss.
    pub(crate) fn count_repaired(&mut self, ack: &AckOutcome, reported: Option<SeqNum>, is_first: bool) {
        let was_hole = |segment: &&Delivered| {
            let covered = segment.range.end.le(ack.ack) && !segment.retransmitted;
            covered && reported.is_some_and(|reported| segment.range.end.le(reported))
        };
        let (mut segments, mut runs, mut end) = (0u64, 0u64, None);
        for segment in ack.delivered.iter().filter(was_hole).take(PARITIES_MAX as usize) {
            segments += 1;
            runs += u64::from(end != Some(segment.range.start));
            end = Some(segment.range.end);
        }
        let counted = u64::from(is_first);
        if segments > counted {
            self.losses.repaired.0 += segments - counted;
            self.losses.repaired.1 += runs.saturating_sub(counted);
        }
    }

    /// Counts a repair that needs no response, because the window was already reduced for an earlier loss of
    /// the same flight. Such a repair is not among the masked losses.
    pub(crate) fn count_unanswered_repair(&mut self) {
        self.losses.repaired.0 += 1;
        self.losses.repaired.1 += 1;
    }

    /// Counts a repaired segment whose original arrived after all: it was only late.
    pub(crate) fn count_refuted(&mut self) {
        self.losses.refuted += 1;
    }

    /// Returns the count of copies without an agreement.
    pub(super) fn count_copies(&mut self) -> &mut CopyCount {
        &mut self.losses.copies
    }

    /// Returns the number of runs of lost segments. Consecutive segments are one run, also across calls.
    pub(super) fn count_loss_runs(&mut self, lost: &[SeqRange]) -> u64 {
        let mut runs = 0;
        for range in lost {
            runs += u64::from(self.losses.lost_to != Some(range.start));
            self.losses.lost_to = Some(range.end);
        }
        runs
    }
}

/// The start.
impl OnPath {
    /// Sets the initial window, once the MSS is known.
    pub(super) fn start_window(&mut self, config: &TcpConfig, tx: &mut Sender) {
        if self.may_ask(config) {
            self.start = Start::Open;
        }
        let initial = self.unasked_window(config, tx.mss());
        tx.rate.congestion.start(initial);
    }

    /// True if connections of this path may request more than ten segments. Without a request they then start
    /// with at most ten.
    fn may_ask(&self, config: &TcpConfig) -> bool {
        config.path_start && self.known.rtt.is_some()
    }

    /// Returns the window that a start, or a restart after an idle time, has without a request.
    #[inline]
    pub(super) fn unasked_window(&self, config: &TcpConfig, mss: u32) -> u32 {
        let segments = config.initial_window;
        let segments = if self.may_ask(config) { segments.min(STANDARD_WINDOW) } else { segments };
        initial_window(segments, mss)
    }

    /// True if the window holds data back and the connection may request the window of its path. Another
    /// request is possible if the application has written more before any data of the start has arrived.
    #[inline]
    fn wants_window(&self, tx: &Sender) -> bool {
        let is_limited = || {
            let left = tx.rate.congestion.cwnd().saturating_sub(tx.rate.pipe_with(tx.scoreboard.pipe()));
            tx.unsent() > left
        };
        match self.start {
            Start::Over => false,
            Start::Open => is_limited(),
            Start::OnTrust { end, window, .. } => {
                let nothing_arrived = tx.scoreboard.una() + window == end;
                nothing_arrived && is_limited() && tx.offered() > self.asked
            }
        }
    }

    /// Returns the bytes of a start that are not paced: the free part of the current window. If the rate of
    /// the path is known, the maximum is [`BURST_SEGMENTS`], because more would only wait in the path's
    /// queue.
    fn starts_at_once(&self, known: &PathFacts, tx: &Sender) -> u32 {
        let free = tx.rate.congestion.cwnd().saturating_sub(tx.scoreboard.pipe());
        match self.start {
            Start::OnTrust { .. } => 0,
            _ if known.volume.is_some_and(|volume| volume.is_rate_limited) => {
                free.min(BURST_SEGMENTS * tx.mss())
            }
            _ => free,
        }
    }

    /// Ends the start if all of its data has arrived.
    #[inline]
    pub(super) fn confirm(&mut self, tx: &mut Sender) {
        if let Start::OnTrust { end, .. } = self.start
            && tx.scoreboard.una().ge(end)
        {
            self.end_trust(tx);
        }
    }

    /// Ends the trust in a window of the path before the window is reduced (safe retreat of careful resume).
    /// Returns a bound for the new threshold in three cases: after a timeout, if more data was lost than
    /// chance explains, or if other traffic fills a queue.
    pub(super) fn retreat(
        &mut self,
        counters: &LiveStats,
        handshake: &Handshake,
        config: &TcpConfig,
        tx: &mut Sender,
    ) -> Option<u32> {
        let Start::OnTrust { end, window, .. } = self.start else { return None };
        self.end_trust(tx);
        let LossCount { sent, lost, .. } = self.all_losses(counters, handshake, tx).since(self.before_trust);
        let known = self.known.loss.unwrap_or_default();
        let delivered = window.saturating_sub(end.since(tx.scoreboard.una())) + tx.scoreboard.sacked_bytes();
        let is_excess = tx.recovery.state() == CongestionState::Loss
            || self.sees_queue(tx)
            || LossHistory::from(known).is_excess(sent, lost);
        is_excess.then(|| self.unasked_window(config, tx.mss()).max(delivered / 2))
    }

    pub(super) fn end_trust(&mut self, tx: &mut Sender) {
        self.start = Start::Over;
        tx.rate.pacer.end_spread();
    }

    /// Permits another request after the window restarted because of an idle time.
    pub(crate) fn reopen_start(&mut self, config: &TcpConfig, tx: &mut Sender) {
        if self.may_ask(config) {
            self.end_trust(tx);
            self.start = Start::Open;
        }
    }
}

/// Round-trip times and queues.
impl OnPath {
    /// Returns the round-trip time to report and its samples; `None` if it may include the timer of a lost
    /// SYN-ACK.
    pub(super) fn rtt_report(&self, tx: &Sender) -> Option<(PathRtt, u32)> {
        let (srtt, rttvar) = tx.rtt.srtt().zip(tx.rtt.rttvar())?;
        let samples = tx.rtt.samples();
        let min_rtt = tx.rtt.min_rtt()?;
        (samples >= SAMPLES || !self.rtt_in_doubt)
            .then(|| (PathRtt { srtt: srtt.into(), rttvar: rttvar.into(), min_rtt: min_rtt.into() }, samples))
    }

    /// Returns the minimum round-trip time of this connection and of earlier ones. If this connection began
    /// in a queue, only earlier ones have measured the empty path.
    #[inline]
    pub(super) fn min_rtt(&self, tx: &Sender) -> Option<Duration> {
        self.known.min_with(tx.rtt.min_rtt())
    }

    /// True if this connection began in a queue: all its round trips, and those of the previous connection,
    /// were longer than on the empty path. A single long round trip may be jitter.
    pub(super) fn began_in_queue(&self, tx: &Sender) -> bool {
        let is_long = |rtt: &PathRtt| is_queued(rtt.min_rtt, self.min_rtt(tx));
        self.known.rtt.is_some_and(|rtt| is_long(&rtt))
            && self.rtt_report(tx).is_none_or(|(rtt, _)| is_long(&rtt))
    }

    /// Decides whether the path has become longer. `since`: time from the last segment of the handshake to
    /// its answer. If the measured time is in doubt, an answer within the known round-trip time shows that an
    /// earlier segment was lost. Any other answer shows a longer path.
    pub(super) fn suspect_longer(&mut self, since: Duration) {
        let PathFacts { rtt, min_rtt, .. } = self.known;
        let as_known = rtt.zip(min_rtt).is_some_and(|(rtt, min)| {
            let alike = rtt.srtt.saturating_mul(ALIKE_PERCENT) / 100;
            (min..=alike).contains(&since)
        });
        self.seems_longer = self.rtt_in_doubt && !as_known;
    }
}

/// Losses by their cause.
impl OnPath {
    /// Returns the losses that no queue caused. If there is a queue now, losses since the last call are
    /// attributed to it, because such losses say nothing about random loss on an idle path. The smoothed
    /// round-trip time counts only after [`SAMPLES`] samples. `all`: all losses until now.
    pub(super) fn sort_losses(&mut self, all: LossCount, tx: &Sender) -> LossCount {
        let LossCount { lost, runs, .. } = all.since(self.sorted);
        self.sorted = all;
        let srtt = tx.rtt.srtt().filter(|_| tx.rtt.samples() >= SAMPLES);
        let queued = self.sees_queue(tx)
            || self.began_in_queue(tx)
            || srtt.is_some_and(|srtt| is_queued(srtt.into(), self.min_rtt(tx)))
            || tx.is_queue_full();
        // `losses` is not allocated while there is nothing to count.
        if queued && (lost > 0 || runs > 0) {
            self.losses.queued.lost += lost;
            self.losses.queued.runs += runs;
        }
        all.without(self.losses.queued)
    }

    /// Returns the losses among `all` losses until now that no queue caused.
    pub(super) fn random_losses(&self, all: LossCount) -> LossCount {
        all.without(self.losses.queued)
    }

    /// Returns the segments sent and lost so far. Includes losses that a mechanism repaired before loss
    /// detection. Excludes segments that proved to be only late.
    pub(super) fn all_losses(&self, of: &LiveStats, handshake: &Handshake, tx: &Sender) -> LossCount {
        let (more, more_runs) = self.losses.repaired;
        let CopyCount { left, twice, once } = self.losses.copies;
        let masked = of.repaired_by_probe.max(of.masked_losses);
        // A SYN or SYN-ACK that was not answered in time was lost, or its answer was. A copied SYN or SYN-ACK
        // is not counted: an answer does not show whether both instances arrived. A copied FIN is not counted
        // either: the peer's report would arrive after the end of the connection. Of other copied segments,
        // both instances count once the outcome is known.
        let copied = u64::from(handshake.syn.copy.has_left());
        let unanswered = u64::from(handshake.unanswered());
        let handshake = unanswered.saturating_sub(copied);
        LossCount {
            sent: (of.data_segments_out + unanswered + 1 + 2 * (twice + once))
                .saturating_sub(copied + left.max(tx.fin_copied.into())),
            lost: (of.segments_lost + masked + more)
                .saturating_sub(of.retransmits_spurious + self.losses.refuted)
                + handshake
                + once,
            runs: (of.loss_runs + masked + more_runs).saturating_sub(self.losses.refuted) + handshake + once,
        }
    }
}

/// Reports and requests to the memory of paths.
impl OnPath {
    /// Returns the request for a larger window at the start on a path with these facts; `None` if the
    /// connection keeps its current window. `is_authenticated` is set in SYN-RECEIVED: true if the
    /// application answers only authenticated requests.
    pub(crate) fn request_start(
        &mut self,
        known: &PathFacts,
        config: &TcpConfig,
        handshake: &Handshake,
        tx: &Sender,
        is_authenticated: Option<bool>,
        redundancy: u32,
    ) -> Option<StartRequest> {
        self.asked = tx.offered();
        let rtt = known.rtt?;
        let is_whole = handshake.syn.timeouts == 0 && tx.recovery.state() == CongestionState::Open;
        let of_path = |segments| initial_window(segments, tx.mss());
        let configured = of_path(config.initial_window);
        let remembered = known.volume.map_or(0, |volume| remembered_window(&volume, known, config, tx.mss()));
        // On a quiet path the queue is our own, and the starts wait for each other.
        let is_quiet = known.volume.is_some_and(|volume| volume.is_quiet);
        let window = if let Some(is_authenticated) = is_authenticated {
            // In SYN-RECEIVED no round trip is measured, and a cookie may be stolen.
            let is_free = is_quiet || !shows_queue(rtt.min_rtt, known.min_rtt?);
            if is_free && is_authenticated { remembered.max(configured) } else { 0 }
        } else {
            let (own, smoothed) = (tx.rtt.min_rtt()?.into(), tx.rtt.srtt()?.into());
            let min = known.min_rtt.map_or(own, |min| min.min(own));
            let is_alike = own >= rtt.srtt / 2;
            // A larger window requires that neither this connection nor the last one began in a queue. The
            // data of either connection may have filled a queue since. A volume that the path has carried is
            // used all the same; a configured window is used only if the smoothed round-trip time shows no
            // queue.
            match is_alike && (is_quiet || !shows_queue(own.max(rtt.min_rtt), min)) {
                true if shows_queue(smoothed, min) => remembered,
                true => remembered.max(configured),
                false => 0,
            }
        };
        // A window larger than the connection's data would take volume from other connections.
        let window = window.min(tx.offered());
        let has = tx.rate.congestion.cwnd();
        let (granted, at_once) = (self.granted, self.starts_at_once(known, tx));
        let per_round = u64::from(window) * 1_000_000 / (rtt.srtt.as_micros() as u64).max(1);
        let rate = match known.volume.and_then(|volume| Some((volume.rate?, volume.is_rate_limited))) {
            Some((rate, true)) => rate.max(per_round / 2),
            Some((rate, false)) => (rate + rate / 4).max(per_round),
            None => per_round,
        };
        let request = StartRequest { window, has, granted, at_once, rate, redundancy, rtt: rtt.srtt };
        (is_whole && window > has).then_some(request)
    }

    /// True if [`OnPath::take_report`] may return a report now.
    #[inline]
    pub(crate) fn owes_report(
        &self,
        handshake: &Handshake,
        tx: &Sender,
        is_over: bool,
        now: Instant,
    ) -> bool {
        if self.over || !handshake.is_complete() && !is_over {
            return false;
        }
        let due = self.report_at.is_none_or(|at| at <= now);
        due || is_over || tx.mtu.report() != self.reported_mtu
    }

    /// Returns the report that is due to the memory of paths, if any. Reports are due at the handshake,
    /// periodically, when path-MTU discovery has a new result, and at the end. Before the handshake there is
    /// only the report of a failed active open.
    pub(crate) fn take_report(
        &mut self,
        counters: &LiveStats,
        handshake: &Handshake,
        tx: &Sender,
        closed: Option<CloseReason>,
        now: Instant,
    ) -> Option<PathReport> {
        if !self.owes_report(handshake, tx, closed.is_some(), now) {
            return None;
        }
        self.over = closed.is_some();
        if !handshake.is_complete() {
            let failed = matches!(
                closed,
                Some(
                    CloseReason::HandshakeTimeout
                        | CloseReason::Unreachable
                        | CloseReason::NetworkUnreachable
                )
            );
            let report = PathReport { handshake: Some(HandshakeResult::Failed), ..PathReport::default() };
            return (failed && handshake.active).then_some(report);
        }
        let mtu = tx.mtu.report();
        let first = self.report_at.is_none();
        let losses = self.sort_losses(self.all_losses(counters, handshake, tx), tx);
        let rtt = self.rtt_report(tx);
        // A queue counts as seen only if even the shortest round trip of this connection met it.
        let min = rtt.map(|(rtt, _)| rtt.min_rtt).zip(self.known.min_rtt);
        let report = PathReport {
            rtt,
            doubtful_rtt: tx.rtt.srtt().filter(|_| first && self.seems_longer).map(Duration::from),
            flight: None,
            losses: losses.since(self.reported),
            mss: handshake.peer_mss,
            mtu: if mtu == self.reported_mtu { MtuReport::Silent } else { mtu },
            saw_queue: min.is_some_and(|(own, min)| shows_queue(own, min)),
            handshake: first.then_some(HandshakeResult::Completed),
        };
        self.report_at = Some(now + REPORT_INTERVAL);
        (self.reported, self.reported_mtu) = (losses, mtu);
        Some(report)
    }

    /// Reports the flight if each of its segments has arrived or is known to be lost.
    pub(crate) fn conclude_flight(
        &mut self,
        counters: &LiveStats,
        handshake: &Handshake,
        config: &TcpConfig,
        tx: &mut Sender,
        now: Instant,
    ) {
        if !self.is_flight_over(&tx.scoreboard) {
            return;
        }
        let (losses, has_memory) = (self.all_losses(counters, handshake, tx), config.path_start);
        if let Some(train) = self.report_flight(losses, has_memory, tx, now) {
            tx.rate.congestion.on_train(&train);
        }
    }
}

/// Membership of a shared path.
impl OnPath {
    /// True if the stack must decide whether this connection becomes a member, once its handshake is
    /// complete.
    #[inline]
    pub(crate) fn asks_to_join(&self, tx: &Sender) -> bool {
        match tx.sharing {
            Sharing::Off | Sharing::Member => false,
            Sharing::Apart { asks } => asks || self.is_long(tx) || self.begins_late(tx),
        }
    }

    /// True if the start has waited for its turn and has sent little yet. Another transfer may have become
    /// long meanwhile.
    fn begins_late(&self, tx: &Sender) -> bool {
        let Start::OnTrust { end, window, delays_others: 1.. } = self.start else { return false };
        (tx.scoreboard.nxt() + window).since(end) <= BURST_SEGMENTS * tx.mss()
    }

    /// True if the current transfer is no longer short. The data of a start on trust leaves at a granted
    /// rate, so it counts only when all of it has arrived or recovery has begun.
    pub(crate) fn is_long(&self, tx: &Sender) -> bool {
        let is_starting = self.is_on_trust() && !tx.recovery.in_recovery();
        tx.transfer_len() > SHORT_TRANSFER && !is_starting
    }

    /// Makes the connection a member. Returns the connection's rate control; `is_taken_over`: the path will
    /// use it.
    pub(crate) fn join(&mut self, tx: &mut Sender, is_taken_over: bool) -> RateControl {
        tx.sharing = Sharing::Member;
        self.end_trust(tx);
        if !is_taken_over && let Some(snapshots) = &mut tx.snapshots {
            // The snapshots refer to the rate control that is given away.
            **snapshots = Default::default();
        }
        core::mem::replace(&mut tx.rate, RateControl::placeholder())
    }

    /// Tells a controller the random loss that earlier connections of the path have seen.
    fn share_random_loss(&self, config: &TcpConfig, congestion: &mut Controller) {
        if let Some(loss) = self.known.loss.filter(|_| config.path_start) {
            congestion.expect_random_loss(loss.into());
        }
    }

    /// Returns rate control for a path whose state is unknown.
    pub(crate) fn fresh_rate(
        &self,
        config: &TcpConfig,
        iss: SeqNum,
        tx: &Sender,
        now: Instant,
    ) -> RateControl {
        let start = ControllerStart {
            now,
            mss: tx.mss(),
            initial_window: self.unasked_window(config, tx.mss()),
            paced: config.pacing.is_some(),
            seed: iss.0.into(),
        };
        let mut congestion = Controller::new(&config.congestion, PrrBound::Rfc9937, &start);
        self.share_random_loss(config, &mut congestion);
        RateControl::new(congestion, Pacer::new(config.pacing))
    }
}

/// The exchange of a connection with the memory of paths.
impl Connection {
    /// True if a planner may add redundancy: it assumes losses of an unknown path, or losses were measured.
    /// The own losses of a half-open connection do not count: a forged SYN is never answered.
    pub(crate) fn expects_losses(&self) -> bool {
        let is_known = || self.path.known.loss.is_some_and(|loss| loss.per_million > 0);
        let has_lost = || self.state != State::SynReceived && self.all_losses().lost > 0;
        let planner = self.gentle.planner_config();
        planner.is_some_and(|planner| planner.assumed_loss > 0 || is_known() || has_lost())
    }

    /// Takes over the facts of the path. Must be called before the first segment leaves.
    pub(crate) fn start_from(&mut self, known: PathFacts, now: Instant) {
        self.path.known = known;
        self.tx.queued_from = known.queued_from.map(Micros::from);
        self.path.share_random_loss(&self.config, &mut self.tx.rate.congestion);
        if known.mtu.is_some_and(|mtu| self.tx.mtu.continue_from(mtu, now)) {
            self.path.reported_mtu = self.tx.mtu.report();
            self.adopt_mss();
        }
        let Some(PathRtt { srtt, rttvar, .. }) = known.rtt else { return };
        if self.state.is_opening() {
            let wait = early_wait(&self.config, known.handshake_rtt().unwrap_or(srtt), &self.tx.rtt);
            self.handshake.syn.early_wait = wait;
        }
        if self.config.path_start {
            self.tx.rtt.continue_from(srtt, rttvar);
        }
        // A client starts its window when the SYN-ACK brings the peer's parameters.
        if self.state == State::SynReceived {
            self.path.start_window(&self.config, &mut self.tx);
        }
    }

    /// True if the window holds data back and the connection may request the window of its path.
    #[inline]
    pub(crate) fn wants_path_window(&self) -> bool {
        let sends_early = || self.state == State::SynReceived && self.fast_open.sends_early();
        self.path.wants_window(&self.tx) && (self.state.sends() || sends_early())
    }

    /// Starts with `window` bytes, at the rate of the path if it is known, else at one window per round trip.
    pub(crate) fn start_on_trust(
        &mut self,
        granted: Granted,
        request: &StartRequest,
        known: &PathFacts,
        now: Instant,
    ) {
        let Granted { bytes: window, at_once, from } = granted;
        let StartRequest { rate, rtt, .. } = *request;
        let mss = self.tx.mss();
        // As many transfers as before this one will wait behind it, each for the time of the added bytes.
        let waits = from.saturating_since(now).as_micros() * 1_000_000 / rtt.as_micros().max(1);
        let delays_others = u32::try_from(waits * 1000 / u128::from(window.max(1))).unwrap_or(u32::MAX);
        self.path.start = Start::OnTrust { end: self.tx.scoreboard.una() + window, window, delays_others };
        self.path.granted = window;
        self.path.before_trust = self.all_losses();
        self.tx.last_sent = from;
        // A controller that counts redundancy gets a larger window, so redundancy does not delay the end of
        // the data.
        let planner =
            self.gentle.planner_config().filter(|_| self.tx.rate.delivery.is_some() && self.expects_losses());
        let redundancy = planner.map_or(0, |config| u64::from(window) * u64::from(config.max_overhead) / 100);
        self.tx.rate.congestion.start(window.saturating_add(redundancy as u32));
        // A loss may end the start before the controller has measured the rate.
        if let Some(train) = known.volume.and_then(|volume| volume.train()) {
            self.tx.rate.congestion.on_train(&train);
        }
        self.tx.rate.pacer.spread(rate, rtt.into(), mss, at_once, from, now);
    }

    /// Resets the state of the path after the address of one side has changed. Data sent since then is lost,
    /// and is retransmitted at once, with the initial window. The caller has removed the connection from a
    /// shared path. If the path is another one, its round-trip time is unknown too (RFC 9000 section 9.4: "an
    /// endpoint MUST immediately reset the congestion controller and round-trip time estimator").
    pub(crate) fn on_path_change(&mut self, is_other_path: bool, now: Instant) {
        let answers_syn = self.state == State::SynReceived;
        if self.closed.is_some() || self.state.is_opening() && !answers_syn {
            return;
        }
        self.path.end_trust(&mut self.tx);
        if is_other_path {
            self.path.known.loss = None;
        }
        self.tx.rate = self.path.fresh_rate(&self.config, self.handshake.iss, &self.tx, now);
        if let Some(snapshots) = &mut self.tx.snapshots {
            **snapshots = Default::default();
        }
        self.tx.decline_sharing();
        if is_other_path {
            self.path.known = PathFacts::default();
            self.tx.rtt = RttEstimator::new(&self.config.rto, self.tx.rtt.granularity().into());
        }
        self.tx.rto.reset_backoff();
        if answers_syn {
            // The SYN-ACK may have been lost, and the data after it.
            self.handshake.syn.begin_again();
            self.tx.resend_dropped(|record| !record.syn);
            self.tx.rto.disarm();
            return;
        }
        if !self.tx.scoreboard.is_empty() {
            self.tx.rto.fire_at(now);
        }
    }

    /// Returns the segments sent and lost so far.
    pub(crate) fn all_losses(&self) -> LossCount {
        self.path.all_losses(&self.counters, &self.handshake, &self.tx)
    }
}

/// Returns the window of a start from the volume that the path has carried. The maximum is the
/// bandwidth-delay product of the empty path or [`UNMEASURED_WINDOW`], whichever is more.
fn remembered_window(volume: &PathVolume, known: &PathFacts, config: &TcpConfig, mss: u32) -> u32 {
    let of_path = |segments| initial_window(segments, mss);
    let rate = volume.rate.filter(|_| volume.is_rate_limited).unwrap_or(0);
    let bdp = u128::from(rate) * known.min_rtt.unwrap_or_default().as_micros() / 1_000_000;
    let bdp = u32::try_from(bdp).unwrap_or(u32::MAX).max(of_path(UNMEASURED_WINDOW));
    let max = if config.path_start { of_path(MAX_START_WINDOW) } else { 0 };
    volume.bytes.min(bdp).min(max)
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use core::net::SocketAddr;

    use brisk_wire::SackBlocks;

    use super::*;
    use crate::connection::gentle::plain_copy::PlainCopy;
    use crate::connection::{Host, Secrets};
    use crate::four_tuple::FourTuple;
    use crate::outcome::Origin;
    use crate::send::scoreboard::AckInfo;

    fn client() -> alloc::boxed::Box<Connection> {
        let config = Arc::new(TcpConfig::default());
        let tuple =
            FourTuple::new(SocketAddr::from(([10, 0, 0, 1], 1000)), SocketAddr::from(([10, 0, 0, 2], 80)));
        let secrets = Secrets { iss: SeqNum(7), ts_offset: 0 };
        let host = Host { mtu: 1500, granularity: Duration::from_micros(1), accepts_parity: true };
        Connection::connect(tuple, &config, secrets, host, Instant::ZERO)
    }

    fn random(client: &Connection) -> LossCount {
        client.path.random_losses(client.all_losses())
    }

    /// A masked loss whose original arrived after all is not a loss of the path.
    #[test]
    fn late_originals_are_not_among_the_losses() {
        let mut client = client();
        let before = random(&client);
        client.counters.masked_losses = 2;
        assert_eq!(random(&client).since(before).lost, 2);
        client.path.count_refuted();
        let LossCount { lost, runs, .. } = random(&client).since(before);
        assert_eq!((lost, runs), (1, 1));
    }

    /// An answer to a copied SYN does not show whether both instances arrived. If the SYN counted as not
    /// lost, a client that sends little else would regard its path as free of loss.
    #[test]
    fn syn_that_left_twice_counts_neither_as_sent_nor_as_lost() {
        let mut client = client();
        let before = random(&client);
        assert_eq!((before.sent, before.lost), (1, 0), "sent once");
        client.handshake.syn.copy = PlainCopy::Left(Instant::ZERO);
        assert_eq!((random(&client).sent, random(&client).lost), (0, 0));
        client.handshake.syn.timeouts = 1;
        assert_eq!((random(&client).sent, random(&client).lost), (1, 0), "both were lost, the next was not");
        client.handshake.syn.timeouts = 2;
        assert_eq!((random(&client).sent, random(&client).lost), (2, 1));
        client.counters.data_segments_out = 1;
        client.tx.fin_copied = true;
        assert_eq!((random(&client).sent, random(&client).lost), (2, 1), "nor does a FIN");
    }

    /// The peer reports a copy without an agreement if the original arrived too.
    #[test]
    fn copied_segment_counts_twice_once_its_outcome_is_known() {
        let mut client = client();
        client.counters.data_segments_out = 3;
        let before = random(&client);
        client.path.count_copies().left = 2;
        assert_eq!(random(&client), LossCount { sent: before.sent - 2, ..before });
        client.path.count_copies().twice = 1;
        assert_eq!(random(&client), before);
        client.path.count_copies().once = 1;
        assert_eq!(random(&client), LossCount { sent: before.sent + 2, lost: 1, runs: 1 });
    }

    /// A receiver may acknowledge many segments at once; one repair does not mean that all of them were lost.
    #[test]
    fn only_a_hole_that_sack_had_shown_counts_as_repaired() {
        let mut client = client();
        let seq = |at: u32| SeqNum(1000 + 100 * at);
        let delivered = |at: u32| Delivered {
            range: SeqRange::with_len(seq(at), 100),
            sent_at: Instant::ZERO,
            retransmitted: false,
            copied: false,
            origin: Origin::New,
        };
        let info = AckInfo {
            now: Instant::ZERO,
            ece: false,
            window_changed: false,
            len: 0,
            max_snd_wnd: 65_535,
            ts_echo_rtt: None,
        };
        let una = client.tx.scoreboard.una();
        let mut ack = client.tx.scoreboard.on_ack(una, &SackBlocks::default(), info);
        ack.ack = seq(6);
        ack.delivered = (0..6).map(delivered).collect();
        client.path.count_repaired(&ack, None, true);
        assert_eq!(client.path.losses.repaired, (0, 0), "one loss, which is counted as a masked one");
        // Holes at 0, 2 and 3; segments above 4 were not reported before.
        ack.delivered = [0, 2, 3, 5].map(delivered).into_iter().collect();
        client.path.count_repaired(&ack, Some(seq(5)), true);
        assert_eq!(client.path.losses.repaired, (2, 1), "two losses more, in one run more");
        client.path.count_repaired(&ack, Some(seq(5)), false);
        assert_eq!(
            client.path.losses.repaired,
            (5, 3),
            "a later part of the same report: no loss of it is counted"
        );
    }
}
