//! RACK: loss detection by time (RFC 8985 section 6), without its tail loss probe.
//!
//! A segment is lost if something sent sufficiently later has been delivered. "Sufficiently" is the
//! reordering window, zero until reordering has been seen. One idea covers lost tails of a burst,
//! lost retransmissions and reordering, which counting duplicates does not.

use brisk_wire::SeqNum;
use smallvec::SmallVec;

use super::scoreboard::{Record, Scoreboard};
use crate::outcome::{AckOutcome, Delivered, DsackOf};
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant};

/// Segments reported by SACK that stand in for reordering evidence (RFC 5681, RFC 6675).
const DUP_THRESH: u32 = 3;
/// Recoveries for which a widened reordering window persists (RFC 8985 section 6.2 step 4).
const REO_WND_PERSIST: u32 = 16;
/// Resolution of the timestamp clock: closer times cannot be told apart by an echo.
const TIMESTAMP_TICK: Duration = Duration::from_millis(1);

/// Ranges of lost data, ascending in sequence space.
pub(crate) type LostRanges = SmallVec<[SeqRange; 4]>;

/// What [`Rack::detect`] concluded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct RackVerdict {
    /// What is lost from now on.
    pub(crate) lost: LostRanges,
    /// Bytes of `lost` that were themselves retransmissions.
    pub(crate) lost_again: u32,
    /// After how long to look again, if some segment is only suspected.
    pub(crate) timeout: Option<Duration>,
}

/// RACK state of one connection; names as in RFC 8985 section 5.2.
#[derive(Clone, Debug)]
pub(crate) struct Rack {
    /// (RACK.xmit_ts, RACK.end_seq) of the most recently sent segment that is known delivered.
    newest: Option<(Instant, SeqNum)>,
    rtt: Duration,
    fack: Option<SeqNum>,
    reordering_seen: bool,
    reo_wnd_mult: u32,
    reo_wnd_persist: u32,
    dsack_round: Option<SeqNum>,
    in_recovery: bool,
    min_rtt: Duration,
    srtt: Duration,
    deadline: Option<Instant>,
}

impl Rack {
    /// RACK before the first delivery.
    pub(crate) fn new() -> Self {
        Rack {
            newest: None,
            rtt: Duration::ZERO,
            fack: None,
            reordering_seen: false,
            reo_wnd_mult: 1,
            reo_wnd_persist: REO_WND_PERSIST,
            dsack_round: None,
            in_recovery: false,
            min_rtt: Duration::ZERO,
            srtt: Duration::ZERO,
            deadline: None,
        }
    }

    /// Steps 2 to 4 of RFC 8985 section 6.2: takes in what an acknowledgement delivered. `una` and
    /// `nxt` are the values after it; `in_recovery` is the state before it is judged.
    #[expect(clippy::too_many_arguments, reason = "each is a fact that another part owns")]
    pub(crate) fn on_ack(
        &mut self,
        ack: &AckOutcome,
        una: SeqNum,
        nxt: SeqNum,
        srtt: Option<Duration>,
        min_rtt: Option<Duration>,
        in_recovery: bool,
        now: Instant,
    ) {
        self.in_recovery = in_recovery;
        self.min_rtt = min_rtt.unwrap_or(self.min_rtt);
        self.srtt = srtt.unwrap_or(self.srtt);
        for segment in &ack.delivered {
            self.take_delivery(segment, ack.echoed_rtt, now);
            self.detect_reordering(segment);
        }
        self.take_dsack(ack, una, nxt);
    }

    /// Step 2: the most recently sent segment among the delivered ones.
    fn take_delivery(&mut self, segment: &Delivered, echoed_rtt: Option<Duration>, now: Instant) {
        let rtt = now.saturating_since(segment.sent_at);
        if segment.retransmitted {
            // "If ACK.ts_option.echo_reply < Segment.xmit_ts" or "If rtt < RACK.min_RTT": then the
            // original was delivered, and says nothing about the retransmission.
            let older = echoed_rtt.is_some_and(|echoed| echoed > rtt + TIMESTAMP_TICK);
            if older || rtt < self.min_rtt {
                return;
            }
        }
        self.rtt = rtt;
        let sent = (segment.sent_at, segment.range.end);
        if self.newest.is_none_or(|newest| sent_after(sent, newest)) {
            self.newest = Some(sent);
        }
    }

    /// Step 3: "Detect data segment reordering".
    fn detect_reordering(&mut self, segment: &Delivered) {
        let end = segment.range.end;
        match self.fack {
            Some(fack) if end.lt(fack) => self.reordering_seen |= !segment.retransmitted,
            Some(_) | None => self.fack = Some(end),
        }
    }

    /// Step 4, the part that looks at DSACK: widens the window once per round in which a
    /// retransmission of ours was needless. Copies and probes that arrive twice say nothing about
    /// reordering.
    fn take_dsack(&mut self, ack: &AckOutcome, una: SeqNum, nxt: SeqNum) {
        if self.dsack_round.is_some_and(|round| una.ge(round)) {
            self.dsack_round = None;
        }
        let needless = ack.dsack.is_some_and(|dsack| dsack.of == DsackOf::Retransmit);
        if needless && self.dsack_round.is_none() {
            self.dsack_round = Some(nxt);
            self.reo_wnd_mult = self.reo_wnd_mult.saturating_add(1);
            self.reo_wnd_persist = REO_WND_PERSIST;
        }
    }

    /// Step 5 after an acknowledgement that arrived at `now`: which segments are lost, and when to
    /// look again. The caller marks the ranges on the scoreboard.
    pub(crate) fn detect(&mut self, board: &Scoreboard, now: Instant) -> RackVerdict {
        let mut verdict = RackVerdict::default();
        let Some(newest) = self.newest else {
            self.deadline = None;
            return verdict;
        };
        let wait = self.rtt + self.reo_wnd(board.sacked_segments());
        for record in board.in_flight() {
            let sent = (record.sent_at, record.range.end);
            if !sent_after(newest, sent) {
                if record.transmissions == 1 {
                    // Whatever follows was first sent later still.
                    break;
                }
                continue;
            }
            let due = record.sent_at + wait;
            if due <= now {
                verdict.add(record);
            } else {
                let remaining = due.saturating_since(now);
                verdict.timeout = Some(verdict.timeout.map_or(remaining, |longest| longest.max(remaining)));
            }
        }
        self.deadline = verdict.timeout.map(|timeout| now + timeout);
        verdict
    }

    /// Step 5 when the reordering timer fires. A timer that is served late judges as of its own
    /// deadline: acknowledgements may be waiting unread, and their absence is no evidence.
    pub(crate) fn on_timeout(&mut self, board: &Scoreboard, now: Instant) -> RackVerdict {
        let as_of = self.deadline.map_or(now, |deadline| deadline.min(now));
        self.detect(board, as_of)
    }

    /// When the reordering timer fires.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    /// Stops the reordering timer.
    pub(crate) fn disarm(&mut self) {
        self.deadline = None;
    }

    /// Recovery ended: one of those for which a widened window persists (step 4) has passed.
    pub(crate) fn on_recovery_exit(&mut self) {
        self.in_recovery = false;
        self.reo_wnd_persist = self.reo_wnd_persist.saturating_sub(1);
        if self.reo_wnd_persist == 0 {
            self.reo_wnd_mult = 1;
            self.reo_wnd_persist = REO_WND_PERSIST;
        }
    }

    /// RFC 8985 section 6.3, upon RTO expiration: the first outstanding segment is lost, and every
    /// other for which "Segment.xmit_ts + RACK.rtt + RACK.reo_wnd - Now() <= 0".
    pub(crate) fn on_rto(&mut self, board: &Scoreboard, now: Instant) -> LostRanges {
        self.deadline = None;
        let wait = self.rtt + self.reo_wnd(board.sacked_segments());
        let mut verdict = RackVerdict::default();
        for record in board.in_flight() {
            if record.range.start == board.una() || record.sent_at + wait <= now {
                verdict.add(record);
            }
        }
        verdict.lost
    }

    /// RACK_update_reo_wnd of RFC 8985 step 4. `segs_sacked`: segments that SACK reports.
    pub(crate) fn reo_wnd(&self, segs_sacked: u32) -> Duration {
        if !self.reordering_seen && (self.in_recovery || segs_sacked >= DUP_THRESH) {
            return Duration::ZERO;
        }
        (self.min_rtt.saturating_mul(self.reo_wnd_mult) / 4).min(self.srtt)
    }

    /// True once a segment arrived after one that was sent later.
    pub(crate) fn reordering_seen(&self) -> bool {
        self.reordering_seen
    }

    /// RACK.rtt: the round trip of the most recent delivery.
    pub(crate) fn rtt(&self) -> Duration {
        self.rtt
    }
}

impl RackVerdict {
    fn add(&mut self, record: &Record) {
        if record.transmissions > 1 {
            self.lost_again = self.lost_again.saturating_add(record.range.len());
        }
        match self.lost.last_mut() {
            Some(last) if last.end == record.range.start => last.end = record.range.end,
            Some(_) | None => self.lost.push(record.range),
        }
    }
}

/// RACK_sent_after of RFC 8985: later, or at the same time with a higher sequence number.
fn sent_after((t1, seq1): (Instant, SeqNum), (t2, seq2): (Instant, SeqNum)) -> bool {
    t1 > t2 || (t1 == t2 && seq1.gt(seq2))
}
