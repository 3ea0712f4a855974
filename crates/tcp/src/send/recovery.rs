//! The recovery state of the sender (RFC 5681, RFC 6582, RFC 6675; names as in Linux). It also detects window
//! reductions that were mistakes (RFC 3522, RFC 3708, RFC 5682).
//!
//! This module decides when a reduction begins and ends; the congestion controller decides its size. There is
//! at most one reduction per window of data, for any cause (loss detection, ECN or a mechanism that repaired
//! a loss). During the repair after a timeout, two events reduce the window once more: a lost retransmission
//! (RFC 5681 section 4.3), and a timeout after progress.

use brisk_wire::SeqNum;

use crate::outcome::{
    AckOutcome, CongestionState, Delivered, DsackOf, Episode, LossOutcome, Origin, Sent, UndoCause,
};
use crate::time::{Instant, Micros, TIMESTAMP_TICK};

/// Recovery state of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    state: CongestionState,
    una: SeqNum,
    /// SND.NXT when the current or last episode began; Linux: high_seq.
    recovery_point: SeqNum,
    /// SND.NXT at the most recent reduction of any kind.
    cut_high: SeqNum,
    /// Value of `cut_high` before the reduction that may still be undone.
    cut_before: SeqNum,
    /// SND.NXT at the last response to a loss; "recover" of RFC 6582.
    recover: SeqNum,
    /// SND.UNA when the episode began, while it may still be undone.
    undo_marker: Option<SeqNum>,
    /// Bytes retransmitted in the episode and not reported as duplicates.
    undo_retrans: u32,
    /// Time when the first retransmission of the episode left.
    first_retransmit: Option<Instant>,
    /// True if both ends use SACK.
    sack: bool,
    /// True while F-RTO examines a timeout.
    frto: bool,
    /// True if the last timeout lowered `ssthresh`; otherwise F-RTO does not send new data.
    first_timeout: bool,
    /// True if SND.UNA moved since the last timeout.
    progressed: bool,
    /// True if the reduction that may be undone is a fast recovery, not a timeout.
    fast: bool,
    /// True if a masked loss is the only cause of the last reduction.
    masked: bool,
    /// True if a masked loss was reported during a reduction that may be undone. The undo then waits until
    /// the report is refuted.
    has_masked_loss: bool,
    /// True if an undo is withheld for that reason.
    withheld: bool,
    /// True if nothing is retransmitted until the next acknowledgement.
    suspended: bool,
    /// Length of a tail loss probe in flight that repeats data, with SND.NXT when the probe left.
    probe: Option<(u32, SeqNum)>,
}

impl Recovery {
    /// Returns the state before the first segment. `iss` is the initial send sequence number.
    pub(crate) fn new(iss: SeqNum) -> Self {
        Recovery {
            state: CongestionState::Open,
            una: iss,
            recovery_point: iss,
            cut_high: iss,
            cut_before: iss,
            recover: iss,
            sack: false,
            undo_marker: None,
            undo_retrans: 0,
            first_retransmit: None,
            frto: false,
            first_timeout: false,
            progressed: false,
            fast: false,
            masked: false,
            has_masked_loss: false,
            withheld: false,
            suspended: false,
            probe: None,
        }
    }

    /// Sets whether both ends use SACK. Without it F-RTO is off, because a cumulative acknowledgement after a
    /// timeout may cover data that was received long before.
    pub(crate) fn set_sack(&mut self, sack: bool) {
        self.sack = sack;
    }

    pub(crate) fn state(&self) -> CongestionState {
        self.state
    }

    /// True while lost data is being repaired.
    pub(crate) fn in_recovery(&self) -> bool {
        match self.state {
            CongestionState::Recovery | CongestionState::Loss => true,
            CongestionState::Open | CongestionState::Disorder | CongestionState::Cwr => false,
        }
    }

    /// Returns SND.NXT when the current or last episode began.
    pub(crate) fn recovery_point(&self) -> SeqNum {
        self.recovery_point
    }

    /// True if three duplicate acknowledgements may start fast retransmit on a connection without SACK. RFC
    /// 6582 3.2 step 2: only if "the Cumulative Acknowledgment field covers more than 'recover'". Otherwise
    /// this end's own unnecessary retransmissions may have caused them.
    pub(crate) fn may_fast_retransmit(&self) -> bool {
        !self.in_recovery() && self.una.gt(self.recover)
    }

    /// Records a transmission. DSACK undoes an episode only if all its retransmissions prove unnecessary.
    pub(crate) fn on_sent(&mut self, sent: &Sent) {
        if sent.origin == Origin::Retransmit && self.undo_marker.is_some() {
            self.undo_retrans = self.undo_retrans.saturating_add(sent.range.len());
            self.first_retransmit.get_or_insert(sent.at);
        }
    }

    /// Records a tail loss probe of `len` bytes that repeats data. `nxt` is SND.NXT.
    pub(crate) fn on_repeating_probe(&mut self, len: u32, nxt: SeqNum) {
        self.probe = Some((len, nxt));
    }

    /// Decides whether the current reduction was a mistake. DSACK may also show this for the last reduction.
    /// Call it before [`Recovery::on_ack`]. On `Some` the caller restores the window, clears the marks of
    /// losses and calls [`Recovery::undo`].
    ///
    /// `repairs_in_flight`: true if a retransmission is outstanding. DSACK and timestamps then decide
    /// nothing, because that retransmission may have been lost.
    pub(crate) fn spurious(
        &mut self,
        ack: &AckOutcome,
        repairs_in_flight: impl Fn() -> bool,
    ) -> Option<UndoCause> {
        let verdict = self.verdict(ack, repairs_in_flight);
        if self.has_masked_loss {
            self.withheld |= verdict.is_some();
            return None;
        }
        verdict
    }

    fn verdict(&mut self, ack: &AckOutcome, repairs_in_flight: impl Fn() -> bool) -> Option<UndoCause> {
        let marker = self.undo_marker?;
        if let Some(dsack) = ack.dsack
            && matches!(dsack.of, DsackOf::Retransmit | DsackOf::TailLossProbe)
            && dsack.range.end.gt(marker)
        {
            self.undo_retrans = self.undo_retrans.saturating_sub(dsack.sent_twice);
        }
        if ack.reneged {
            return None;
        }
        if let Some(first) = self.first_retransmit.filter(|_| !repairs_in_flight()) {
            if self.undo_retrans == 0 {
                return Some(UndoCause::Dsack);
            }
            if self.in_recovery() && shows_late_original(ack, first) {
                return Some(UndoCause::Eifel);
            }
        }
        if self.in_recovery() { self.frto_verdict(ack) } else { None }
    }

    /// Examines a timeout as in RFC 5682 section 3.1, with SACK. The timeout was spurious if the
    /// acknowledgement delivers data that was sent before it and never again. It was real if the
    /// acknowledgement is a duplicate, or SACK reports other data.
    fn frto_verdict(&mut self, ack: &AckOutcome) -> Option<UndoCause> {
        if !self.frto {
            return None;
        }
        let original = |range_end: SeqNum| range_end.le(self.recovery_point);
        // Redundancy repaired data that had been lost, so its delivery proves nothing.
        if !ack.repaired
            && ack.delivered.iter().any(|segment| !segment.retransmitted && original(segment.range.end))
        {
            return Some(UndoCause::Frto);
        }
        if ack.duplicate || ack.newly_sacked > 0 {
            self.frto = false;
        }
        None
    }

    /// True if a partial acknowledgement of a fast recovery shows that the segment at SND.UNA had been
    /// overtaken and not lost. Call it before [`Recovery::on_ack`].
    pub(crate) fn shows_overtaken_segment(&self, ack: &AckOutcome) -> bool {
        self.state == CongestionState::Recovery
            && self.undo_marker.is_some()
            && (ack.una_before + ack.advanced).lt(self.recovery_point)
            && self.first_retransmit.is_some_and(|first| shows_late_original(ack, first))
    }

    /// Holds retransmissions until the next acknowledgement or timeout. [`Recovery::on_ack`] for the same
    /// acknowledgement ends the hold if the recovery has been undone.
    pub(crate) fn suspend_retransmissions(&mut self) {
        self.suspended = true;
    }

    /// Ends the hold before an acknowledgement or a timeout is examined.
    pub(crate) fn resume_retransmissions(&mut self) {
        self.suspended = false;
    }

    /// True while retransmissions are held.
    pub(crate) fn has_suspended_retransmissions(&self) -> bool {
        self.suspended
    }

    /// True if the undone reduction is a fast recovery. Then data was overtaken and not lost.
    pub(crate) fn shows_reordering(&self) -> bool {
        self.fast
    }

    /// True if new data has precedence over data marked lost. RFC 5682 section 3.1 step 2 b: after a timeout,
    /// "if the acknowledgment advances the window [...] transmit up to two new (previously unsent) segments".
    /// The next acknowledgement then shows whether the originals are arriving.
    pub(crate) fn prefers_new_data(&self) -> bool {
        self.frto && self.first_timeout && self.progressed
    }

    /// Undoes the reduction, which was a mistake. The state is then as without it, and the same episode
    /// cannot be undone again.
    ///
    /// The acknowledgement that shows the mistake reaches [`Recovery::on_ack`] afterwards, in the state
    /// `Disorder`. The acknowledgement ends this state if no data is missing.
    pub(crate) fn undo(&mut self) {
        self.state = CongestionState::Disorder;
        self.cut_high = self.cut_before;
        self.forbid_undo();
    }

    /// Processes an acknowledgement. `lost_present`: data on the scoreboard was declared lost and has not
    /// arrived, retransmitted or not. Losses after the recovery point belong to the next window. `has_gaps`
    /// returns whether outstanding data was retransmitted or is known to have arrived.
    pub(crate) fn on_ack(
        &mut self,
        ack: &AckOutcome,
        loss: &LossOutcome,
        lost_present: bool,
        has_gaps: impl FnOnce() -> bool,
        nxt: SeqNum,
    ) -> Episode {
        self.una = ack.una_before + ack.advanced;
        self.probe = self.probe.filter(|(_, nxt)| self.una.lt(*nxt));
        self.suspended &= self.state == CongestionState::Recovery || ack.reneged;
        self.progressed |= ack.advanced > 0;
        self.follow();
        if ack.reneged {
            return if self.reducing() { Episode::Stayed } else { Episode::None };
        }
        let over = self.reducing() && self.una.ge(self.recovery_point);
        let lost = lost_present || loss.newly_lost > 0;
        // In the open state an acknowledgement that only advances needs no further check (Linux: the same).
        let dubious = (ack.bare && ack.advanced == 0) || ack.newly_sacked > 0 || ack.dsack.is_some();
        let disordered = (dubious || self.state != CongestionState::Open) && has_gaps();
        let calm = if disordered { CongestionState::Disorder } else { CongestionState::Open };
        match self.state {
            CongestionState::Open | CongestionState::Disorder if lost => self.enter_recovery(nxt),
            CongestionState::Open | CongestionState::Disorder => {
                self.state = calm;
                Episode::None
            }
            CongestionState::Cwr | CongestionState::Recovery | CongestionState::Loss if over && lost => {
                self.enter_recovery(nxt)
            }
            CongestionState::Cwr | CongestionState::Recovery | CongestionState::Loss if over => {
                self.state = calm;
                self.frto = false;
                Episode::Exited
            }
            CongestionState::Cwr if lost => {
                self.enter_recovery_from_cwr(nxt);
                Episode::Stayed
            }
            // RFC 5681 section 4.3: "the loss of a retransmission, should be taken as two indications of
            // congestion".
            CongestionState::Loss if loss.lost_again > 0 => self.enter_recovery(nxt),
            CongestionState::Cwr | CongestionState::Recovery | CongestionState::Loss => Episode::Stayed,
        }
    }

    /// Processes a loss that the reordering timer declared; [`Recovery::on_ack`] processes a loss that an
    /// acknowledgement shows.
    pub(crate) fn on_loss(&mut self, nxt: SeqNum) -> Episode {
        self.resume_retransmissions();
        match self.state {
            // After a timeout this loss is a second sign of congestion, like the loss of a retransmission
            // (Linux: tcp_rack_reo_timeout).
            CongestionState::Open | CongestionState::Disorder | CongestionState::Loss => {
                self.enter_recovery(nxt)
            }
            CongestionState::Cwr => {
                self.enter_recovery_from_cwr(nxt);
                Episode::Stayed
            }
            CongestionState::Recovery => Episode::Stayed,
        }
    }

    /// Processes the firing of the retransmission timer. Returns whether `ssthresh` is lowered. RFC 5681
    /// section 3.1 lowers it when the segment "has not yet been resent by way of the retransmission timer". A
    /// fast recovery that ends this way has lowered it already.
    pub(crate) fn on_timeout(&mut self, nxt: SeqNum) -> bool {
        self.resume_retransmissions();
        let (first, examines) = match self.state {
            CongestionState::Open | CongestionState::Disorder => (true, true),
            // RFC 5682 section 3.1 step 1 examines no timeout that fires during fast recovery. An undo in CWR
            // would also undo the reduction that is under way.
            CongestionState::Cwr | CongestionState::Recovery => (false, false),
            // After several timeouts in a row the evidence is the same: data that was sent once is delivered
            // (RFC 5682 section 3.2; Linux: the same).
            CongestionState::Loss => (self.progressed, !self.progressed),
        };
        if first {
            self.start_undo();
            self.fast = false;
        } else if self.state == CongestionState::Recovery {
            // The timeout confirms the losses of the fast recovery.
            self.forbid_undo();
        }
        self.frto = examines && self.sack;
        self.first_timeout = first;
        self.progressed = false;
        self.state = CongestionState::Loss;
        self.set_points(nxt);
        first
    }

    /// Begins a repair without a reduction. Segments became too large for the path and are sent again in
    /// smaller ones. This is no sign of congestion (RFC 1191 section 6.4).
    pub(crate) fn on_too_big(&mut self, nxt: SeqNum) {
        if !self.reducing() {
            self.enter_loss(nxt);
        }
    }

    /// Begins a repair after only a small segment of a flight arrived. The other segments were probably too
    /// large, and the window has already been reduced. So the repair uses the current window.
    pub(crate) fn on_flight_vanished(&mut self, nxt: SeqNum) {
        self.enter_loss(nxt);
    }

    fn enter_loss(&mut self, nxt: SeqNum) {
        self.state = CongestionState::Loss;
        self.progressed = true;
        (self.recovery_point, self.recover) = (nxt, nxt);
        self.forbid_undo();
    }

    /// Processes an acknowledgement of `ack` with ECE. RFC 3168 6.1.2: "TCP should not react to congestion
    /// indications more than once every window of data".
    pub(crate) fn on_ecn(&mut self, ack: SeqNum, nxt: SeqNum) -> Episode {
        if self.reducing() {
            self.forbid_undo();
            return Episode::Stayed;
        }
        self.enter_cwr(ack, nxt)
    }

    /// Records a loss that a mechanism repaired and that congestion control must still respond to. Only
    /// [`Recovery::undo_masked`] undoes this reduction, if there was no loss after all.
    ///
    /// Call it before [`Recovery::on_ack`]. An acknowledgement beyond the recovery point ends the current
    /// reduction, and a loss that it reports belongs to the next window.
    pub(crate) fn on_masked_loss(&mut self, ack: SeqNum, nxt: SeqNum) -> Episode {
        if self.reducing() && ack.lt(self.recovery_point) {
            if self.undo_marker.is_none() || self.has_masked_loss {
                self.forbid_undo();
            }
            self.has_masked_loss = self.undo_marker.is_some();
            return Episode::Stayed;
        }
        if ack.le(self.cut_high) {
            // The reduction responds to this loss too. So the DSACK of an unnecessary retransmission does not
            // show that it was a mistake.
            self.forbid_undo();
        }
        let episode = self.enter_cwr(ack, nxt);
        self.masked |= episode == Episode::Entered;
        episode
    }

    /// True if a masked loss is a cause of the last reduction. Refuting that loss may undo the reduction.
    pub(crate) fn answers_masked_loss(&self) -> bool {
        self.masked || self.has_masked_loss
    }

    /// Records that all originals reported as repaired have arrived, so nothing was lost. Undoes the last
    /// reduction and returns true if that report was its only cause, or if its other cause was a mistake too.
    pub(crate) fn undo_masked(&mut self) -> bool {
        self.has_masked_loss = false;
        let undone = self.masked || self.withheld;
        if undone {
            self.undo();
            self.state = CongestionState::Open;
        }
        undone
    }

    /// Ends the reduction that [`Recovery::on_masked_loss`] began, because it is complete.
    pub(crate) fn leave_cwr(&mut self) {
        if self.state == CongestionState::Cwr {
            self.state = CongestionState::Open;
        }
    }

    /// True from the entry of a reduction to its exit.
    pub(crate) fn reducing(&self) -> bool {
        match self.state {
            CongestionState::Cwr | CongestionState::Recovery | CongestionState::Loss => true,
            CongestionState::Open | CongestionState::Disorder => false,
        }
    }

    /// True while the window is being reduced after a congestion signal other than a timeout.
    pub(crate) fn lowers_window(&self) -> bool {
        match self.state {
            CongestionState::Cwr | CongestionState::Recovery => true,
            CongestionState::Open | CongestionState::Disorder | CongestionState::Loss => false,
        }
    }

    fn enter_recovery(&mut self, nxt: SeqNum) -> Episode {
        self.state = CongestionState::Recovery;
        self.set_points(nxt);
        self.frto = false;
        self.fast = true;
        self.start_undo();
        Episode::Entered
    }

    /// Continues the current reduction as a recovery, because there is now data to repair.
    fn enter_recovery_from_cwr(&mut self, nxt: SeqNum) {
        self.state = CongestionState::Recovery;
        self.set_points(nxt);
        self.forbid_undo();
    }

    fn enter_cwr(&mut self, ack: SeqNum, nxt: SeqNum) -> Episode {
        if ack.le(self.cut_high) {
            return Episode::None;
        }
        self.state = CongestionState::Cwr;
        self.cut_before = self.cut_high;
        (self.recovery_point, self.cut_high) = (nxt, nxt);
        self.forbid_undo();
        Episode::Entered
    }

    /// Moves marks below SND.UNA up to just below it. Otherwise they would seem to be ahead after 2^31 bytes.
    fn follow(&mut self) {
        for mark in [&mut self.cut_high, &mut self.cut_before, &mut self.recover] {
            *mark = mark.max(self.una - 1);
        }
    }

    fn set_points(&mut self, nxt: SeqNum) {
        self.cut_before = self.cut_high;
        (self.masked, self.has_masked_loss, self.withheld) = (false, false, false);
        (self.recovery_point, self.cut_high, self.recover) = (nxt, nxt, nxt);
    }

    fn start_undo(&mut self) {
        self.undo_marker = Some(self.una);
        // A tail loss probe in flight must also prove unnecessary (Linux: tcp_init_undo).
        self.undo_retrans = self.probe.map_or(0, |(len, _)| len);
        self.first_retransmit = None;
    }

    /// Records that `bytes` are in flight that were retransmitted before this recovery. They must also prove
    /// unnecessary (Linux: tcp_init_undo).
    pub(crate) fn on_entered_with_retransmissions(&mut self, bytes: u32) {
        if self.undo_marker.is_some() {
            self.undo_retrans = self.undo_retrans.saturating_add(bytes);
        }
    }

    fn forbid_undo(&mut self) {
        self.undo_marker = None;
        self.undo_retrans = 0;
        self.first_retransmit = None;
        self.frto = false;
        (self.masked, self.has_masked_loss, self.withheld) = (false, false, false);
    }
}

/// True if the echoed timestamp shows that a late original was acknowledged. The echo belongs to the segment
/// at SND.UNA. The echo shows this only if that segment was retransmitted in the episode. `first`: time when
/// the first retransmission of the episode left (RFC 3522 section 3.2).
fn shows_late_original(ack: &AckOutcome, first: Instant) -> bool {
    let older = ack.echoed_rtt.is_some_and(|echoed| echoed > Micros::between(first, ack.at) + TIMESTAMP_TICK);
    let repaired = |segment: &Delivered| {
        let is_retransmitted = segment.retransmitted && segment.sent_at >= first;
        // The echo may be that of a copy, which left before the retransmission too.
        is_retransmitted && !segment.copied && segment.range.contains(ack.una_before)
    };
    older && ack.advanced > 0 && ack.delivered.iter().any(repaired)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::outcome::Dsack;
    use crate::seq_ranges::SeqRange;

    const ISS: SeqNum = SeqNum(u32::MAX - 50);

    fn seq(offset: u32) -> SeqNum {
        ISS + offset
    }

    fn range(from: u32, to: u32) -> SeqRange {
        SeqRange::new(seq(from), seq(to))
    }

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// Returns an acknowledgement that moves SND.UNA from `una` to `ack`.
    fn ack(una: u32, ack: u32) -> AckOutcome {
        AckOutcome {
            at: ms(200),
            ack: seq(ack),
            una_before: seq(una),
            advanced: ack - una,
            newly_sacked: 0,
            delivered_bytes: ack - una,
            delivered_segments: 0,
            delivered: smallvec::SmallVec::new(),
            pipe_before: 0,
            undelivered_before: 0,
            rtt: None,
            echoed_rtt: None,
            dsack: None,
            bare: true,
            duplicate: ack == una,
            ece: false,
            reneged: false,
            repaired: false,
            reports_repair: false,
        }
    }

    fn take(recovery: &mut Recovery, outcome: &AckOutcome, lost: bool, nxt: u32) -> Episode {
        recovery.on_ack(outcome, &LossOutcome::default(), lost, || false, seq(nxt))
    }

    fn retransmit(recovery: &mut Recovery, from: u32, to: u32, at: Instant) {
        let range = range(from, to);
        let origin = Origin::Retransmit;
        recovery.on_sent(&Sent { range, segment_size: 1000, origin, syn: false, fin: false, at });
    }

    fn dsack(from: u32, to: u32, of: DsackOf) -> AckOutcome {
        AckOutcome {
            dsack: Some(Dsack { range: range(from, to), of, sent_twice: to - from, reported_before: false }),
            ..ack(2000, 2000)
        }
    }

    /// Returns a recovery that began at 100 ms with SND.UNA = 1000, SND.NXT = 9000 and one retransmission.
    fn in_recovery() -> Recovery {
        let mut recovery = Recovery::new(ISS);
        take(&mut recovery, &ack(0, 1000), false, 9000);
        assert_eq!(take(&mut recovery, &ack(1000, 1000), true, 9000), Episode::Entered);
        retransmit(&mut recovery, 1000, 2000, ms(100));
        recovery
    }

    #[test]
    fn recovery_lasts_until_all_that_was_outstanding_is_acknowledged() {
        // RFC 6675 section 5 (A): "An incoming cumulative ACK for a sequence number greater than
        // RecoveryPoint signals the end of loss recovery, and the loss recovery phase MUST be
        // terminated." (RecoveryPoint there is the last octet sent; here it is the one after it.)
        let mut recovery = in_recovery();
        assert_eq!((recovery.state(), recovery.recovery_point()), (CongestionState::Recovery, seq(9000)));
        assert_eq!(take(&mut recovery, &ack(1000, 5000), true, 12_000), Episode::Stayed);
        assert_eq!(take(&mut recovery, &ack(5000, 8999), false, 12_000), Episode::Stayed);
        assert_eq!(take(&mut recovery, &ack(8999, 9000), false, 12_000), Episode::Exited);
        assert_eq!(recovery.state(), CongestionState::Open);
    }

    #[test]
    fn a_loss_in_the_next_window_begins_another_reduction_at_once() {
        let mut recovery = in_recovery();
        assert_eq!(take(&mut recovery, &ack(1000, 9000), true, 12_000), Episode::Entered);
        assert_eq!(recovery.recovery_point(), seq(12_000));
    }

    /// Linux: tcp_time_to_recover counts lost data until it has arrived.
    #[test]
    fn a_repair_beyond_the_recovery_point_begins_another_reduction() {
        let mut recovery = in_recovery();
        assert_eq!(take(&mut recovery, &ack(1000, 5000), true, 12_000), Episode::Stayed);
        assert_eq!(take(&mut recovery, &ack(5000, 9000), true, 12_000), Episode::Entered);
    }

    #[test]
    fn a_retransmission_lost_after_a_timeout_is_a_second_sign_of_congestion() {
        // RFC 5681 section 4.3.
        let mut recovery = Recovery::new(ISS);
        take(&mut recovery, &ack(0, 1000), false, 9000);
        recovery.on_timeout(seq(9000));
        let again = LossOutcome { newly_lost: 1000, lost_again: 1000 };
        assert_eq!(recovery.on_ack(&ack(1000, 2000), &again, true, || true, seq(9000)), Episode::Entered);
        assert_eq!(recovery.state(), CongestionState::Recovery);
    }

    #[test]
    fn a_duplicate_is_no_disorder_if_nothing_is_missing_behind_it() {
        let mut recovery = Recovery::new(ISS);
        take(&mut recovery, &ack(1000, 1000), false, 9000);
        assert_eq!(recovery.state(), CongestionState::Open);
        let advancing = ack(1000, 2000);
        recovery.on_ack(&advancing, &LossOutcome::default(), false, || true, seq(9000));
        assert_eq!(recovery.state(), CongestionState::Open, "a probe sent again is no reason either");
    }

    #[test]
    fn sacks_and_duplicates_without_loss_are_disorder() {
        let mut recovery = Recovery::new(ISS);
        let sacking = ack(1000, 1000);
        assert_eq!(
            recovery.on_ack(&sacking, &LossOutcome::default(), false, || true, seq(9000)),
            Episode::None
        );
        assert_eq!(recovery.state(), CongestionState::Disorder);
        take(&mut recovery, &ack(1000, 9000), false, 9000);
        assert_eq!(recovery.state(), CongestionState::Open);
    }

    #[test]
    fn a_masked_reduction_is_undone_unless_it_answers_something_else_too() {
        let masked = || {
            let mut recovery = Recovery::new(ISS);
            take(&mut recovery, &ack(0, 1000), false, 9000);
            assert_eq!(recovery.on_masked_loss(seq(1000), seq(9000)), Episode::Entered);
            recovery
        };
        let mut recovery = masked();
        assert!(recovery.undo_masked());
        assert_eq!(recovery.state(), CongestionState::Open);
        assert!(!recovery.undo_masked(), "once");
        assert_eq!(
            recovery.on_masked_loss(seq(1000), seq(9000)),
            Episode::Entered,
            "the window counts again"
        );
        let mut recovery = masked();
        take(&mut recovery, &ack(1000, 9000), false, 12_000);
        assert!(recovery.undo_masked(), "also when it is complete");
        let others: [fn(&mut Recovery); 5] = [
            |recovery| assert_eq!(recovery.on_ecn(seq(2000), seq(9000)), Episode::Stayed),
            |recovery| assert_eq!(recovery.on_masked_loss(seq(2000), seq(9000)), Episode::Stayed),
            |recovery| assert_eq!(recovery.on_loss(seq(9000)), Episode::Stayed),
            |recovery| assert!(!recovery.on_timeout(seq(9000))),
            |recovery| assert_eq!(take(recovery, &ack(1000, 9000), true, 12_000), Episode::Entered),
        ];
        for (index, other) in others.into_iter().enumerate() {
            let mut recovery = masked();
            other(&mut recovery);
            assert!(!recovery.answers_masked_loss() && !recovery.undo_masked(), "{index}");
        }
    }

    #[test]
    fn mistake_with_a_masked_loss_is_undone_once_that_is_refuted() {
        let mut recovery = in_recovery();
        assert_eq!(recovery.on_masked_loss(seq(2000), seq(9000)), Episode::Stayed);
        assert!(recovery.answers_masked_loss());
        assert_eq!(
            recovery.spurious(&dsack(1000, 2000, DsackOf::Retransmit), || false),
            None,
            "something was lost"
        );
        assert!(recovery.undo_masked(), "nothing was");
        let mut recovery = in_recovery();
        recovery.on_masked_loss(seq(2000), seq(9000));
        assert!(!recovery.undo_masked(), "the other loss stands");
        assert_eq!(
            recovery.spurious(&dsack(1000, 2000, DsackOf::Retransmit), || false),
            Some(UndoCause::Dsack)
        );
        let mut recovery = in_recovery();
        recovery.on_masked_loss(seq(2000), seq(9000));
        recovery.on_masked_loss(seq(3000), seq(9000));
        assert!(!recovery.answers_masked_loss(), "two episodes are not refuted by one");
    }

    #[test]
    fn one_window_is_reduced_once_for_any_cause() {
        let mut recovery = Recovery::new(ISS);
        take(&mut recovery, &ack(0, 1000), false, 9000);
        assert_eq!(recovery.on_ecn(seq(1000), seq(9000)), Episode::Entered);
        assert_eq!(recovery.state(), CongestionState::Cwr);
        assert_eq!(recovery.on_ecn(seq(2000), seq(9000)), Episode::Stayed);
        assert_eq!(recovery.on_masked_loss(seq(2000), seq(9000)), Episode::Stayed);
        assert_eq!(take(&mut recovery, &ack(1000, 3000), true, 9500), Episode::Stayed, "a loss within CWR");
        assert_eq!(recovery.state(), CongestionState::Recovery);
        assert_eq!(take(&mut recovery, &ack(3000, 9500), false, 12_000), Episode::Exited);
        assert_eq!(recovery.on_ecn(seq(9500), seq(12_000)), Episode::None, "the same window as before");
        assert_eq!(recovery.on_masked_loss(seq(9500), seq(12_000)), Episode::None);
        assert_eq!(recovery.on_masked_loss(seq(9501), seq(12_000)), Episode::Entered);
        assert_eq!(take(&mut recovery, &ack(9500, 12_000), false, 12_000), Episode::Exited);
    }

    #[test]
    fn a_timeout_lowers_ssthresh_once_for_the_same_data() {
        // RFC 5681 section 3.1, equation (4), applies when "the given segment has not yet been resent
        // by way of the retransmission timer"; else "the value of ssthresh is held constant".
        let mut recovery = Recovery::new(ISS);
        take(&mut recovery, &ack(0, 1000), false, 9000);
        assert!(recovery.on_timeout(seq(9000)));
        assert_eq!(recovery.state(), CongestionState::Loss);
        assert!(!recovery.on_timeout(seq(9000)));
        assert_eq!(take(&mut recovery, &ack(1000, 2000), true, 9000), Episode::Stayed);
        assert!(recovery.on_timeout(seq(9000)), "another segment this time");
        assert_eq!(take(&mut recovery, &ack(2000, 9000), false, 9000), Episode::Exited);
    }

    #[test]
    fn a_timeout_during_fast_recovery_does_not_lower_ssthresh_again() {
        let mut recovery = in_recovery();
        assert!(!recovery.on_timeout(seq(9000)));
        assert_eq!(recovery.state(), CongestionState::Loss);
    }

    #[test]
    fn segments_too_large_for_the_path_are_repaired_without_a_reduction() {
        let mut recovery = Recovery::new(ISS);
        take(&mut recovery, &ack(0, 1000), false, 9000);
        recovery.on_too_big(seq(9000));
        assert_eq!(take(&mut recovery, &ack(1000, 2000), true, 9000), Episode::Stayed);
        assert_eq!(take(&mut recovery, &ack(2000, 9000), false, 9000), Episode::Exited);
        assert_eq!(
            recovery.on_masked_loss(seq(9001), seq(9500)),
            Episode::Entered,
            "no reduction took place"
        );
    }

    #[test]
    fn duplicates_caused_by_our_own_retransmissions_start_no_fast_retransmit() {
        // RFC 6582 3.2 step 2: "the TCP sender first checks the value of recover to see if the
        // Cumulative Acknowledgment field covers more than recover".
        let mut recovery = Recovery::new(ISS);
        take(&mut recovery, &ack(0, 1), false, 9000);
        assert!(recovery.may_fast_retransmit());
        take(&mut recovery, &ack(1, 1), true, 9000);
        assert!(!recovery.may_fast_retransmit());
        take(&mut recovery, &ack(1, 9000), false, 12_000);
        assert!(!recovery.may_fast_retransmit());
        take(&mut recovery, &ack(9000, 9001), false, 12_000);
        assert!(recovery.may_fast_retransmit());
        recovery.on_ecn(seq(9001), seq(12_000));
        assert!(recovery.may_fast_retransmit(), "an ECN reduction does not stop repairs");
    }

    #[test]
    fn a_reduction_is_undone_when_every_retransmission_was_a_duplicate() {
        // RFC 3708 section 3: all of the retransmissions of the window are reported by DSACK.
        let mut recovery = in_recovery();
        retransmit(&mut recovery, 2000, 3000, ms(101));
        assert_eq!(recovery.spurious(&dsack(1000, 2000, DsackOf::Retransmit), || false), None);
        assert_eq!(recovery.spurious(&dsack(2000, 3000, DsackOf::NeverSentTwice), || false), None);
        assert_eq!(recovery.spurious(&dsack(2000, 3000, DsackOf::Duplicate), || false), None);
        assert_eq!(
            recovery.spurious(&dsack(2000, 3000, DsackOf::Retransmit), || false),
            Some(UndoCause::Dsack)
        );
        recovery.undo();
        assert!(!recovery.reducing());
        assert_eq!(recovery.spurious(&dsack(2000, 3000, DsackOf::Retransmit), || false), None, "once");
    }

    #[test]
    fn a_probe_in_flight_must_have_been_needless_as_well() {
        let mut recovery = Recovery::new(ISS);
        take(&mut recovery, &ack(0, 1000), false, 9000);
        recovery.on_repeating_probe(1000, seq(9000));
        assert_eq!(recovery.on_loss(seq(9000)), Episode::Entered);
        retransmit(&mut recovery, 1000, 2000, ms(100));
        take(&mut recovery, &ack(1000, 9000), false, 9000);
        assert_eq!(recovery.spurious(&dsack(1000, 2000, DsackOf::Retransmit), || false), None);
        let probe = dsack(8000, 9000, DsackOf::TailLossProbe);
        assert_eq!(recovery.spurious(&probe, || false), Some(UndoCause::Dsack));
    }

    #[test]
    fn a_dsack_that_comes_after_recovery_still_undoes_it() {
        let mut recovery = in_recovery();
        take(&mut recovery, &ack(1000, 9000), false, 9500);
        assert_eq!(
            recovery.spurious(&dsack(1000, 2000, DsackOf::Retransmit), || false),
            Some(UndoCause::Dsack)
        );
    }

    #[test]
    fn a_dsack_from_before_the_episode_does_not_count() {
        let mut recovery = in_recovery();
        assert_eq!(recovery.spurious(&dsack(0, 1000, DsackOf::Retransmit), || false), None);
        assert_eq!(
            recovery.spurious(&dsack(1000, 2000, DsackOf::Retransmit), || false),
            Some(UndoCause::Dsack)
        );
    }

    #[test]
    fn an_echo_older_than_the_retransmission_shows_that_the_original_arrived() {
        // RFC 3522 section 3.2 step 4: "If the value of the Timestamp Echo Reply field of the
        // acceptable ACK's Timestamps option is smaller than the value of RetransmitTS, then [...]"
        // the retransmission was needless. Sent again at 100 ms, acknowledged at 200 ms.
        let echo = |millis| {
            let echoed_rtt = Some(Micros::from_millis(millis));
            AckOutcome { echoed_rtt, ..delivering(1000, 2000, true) }
        };
        let mut recovery = in_recovery();
        assert_eq!(recovery.spurious(&echo(100), || false), None);
        assert_eq!(recovery.spurious(&echo(101), || false), None);
        assert_eq!(
            recovery.spurious(&AckOutcome { advanced: 0, ..echo(150) }, || false),
            None,
            "a duplicate is not acceptable in that sense"
        );
        assert_eq!(recovery.spurious(&echo(150), || false), Some(UndoCause::Eifel));
    }

    #[test]
    fn late_original_undoes_nothing_while_another_repair_is_in_flight() {
        // RFC 4015 section 3.2 restores the window if the whole recovery was spurious (Linux:
        // tcp_try_undo_partial).
        let late = AckOutcome { echoed_rtt: Some(Micros::from_millis(150)), ..delivering(1000, 2000, true) };
        let mut recovery = in_recovery();
        retransmit(&mut recovery, 4000, 5000, ms(101));
        assert_eq!(recovery.spurious(&late, || true), None);
        take(&mut recovery, &ack(1000, 4000), false, 9000);
        let second = AckOutcome { una_before: seq(4000), ..late };
        assert_eq!(recovery.spurious(&second, || false), None, "the echo does not speak of it");
        let delivered = delivering(4000, 5000, true).delivered;
        let second = AckOutcome { delivered, ..second };
        assert_eq!(
            recovery.spurious(&second, || false),
            Some(UndoCause::Eifel),
            "all originals arrived late"
        );
    }

    #[test]
    fn duplicates_undo_nothing_while_another_repair_is_in_flight() {
        let mut recovery = in_recovery();
        assert_eq!(recovery.spurious(&dsack(1000, 2000, DsackOf::Retransmit), || true), None);
        assert_eq!(recovery.spurious(&ack(2000, 3000), || false), Some(UndoCause::Dsack));
    }

    #[test]
    fn timeout_during_fast_recovery_is_not_examined_or_undone() {
        // RFC 5682 section 3.1 step 1.
        let mut recovery = in_recovery();
        recovery.set_sack(true);
        recovery.on_timeout(seq(9000));
        assert!(!recovery.prefers_new_data());
        assert_eq!(recovery.spurious(&delivering(2000, 3000, false), || false), None);
        recovery.on_timeout(seq(9000));
        assert_eq!(recovery.spurious(&delivering(2000, 3000, false), || false), None, "nor the next one");
        assert_eq!(recovery.spurious(&dsack(1000, 2000, DsackOf::Retransmit), || false), None);
    }

    #[test]
    fn timeout_while_the_window_is_reduced_is_not_examined() {
        let mut recovery = Recovery::new(ISS);
        recovery.set_sack(true);
        take(&mut recovery, &ack(0, 1000), false, 9000);
        assert_eq!(recovery.on_ecn(seq(1000), seq(9000)), Episode::Entered);
        assert!(!recovery.on_timeout(seq(9000)), "the window was reduced already");
        take(&mut recovery, &ack(1000, 2000), true, 9000);
        assert!(!recovery.prefers_new_data());
        assert_eq!(recovery.spurious(&delivering(2000, 3000, false), || false), None);
    }

    #[test]
    fn loss_beyond_the_recovery_point_lowers_the_window_again() {
        let mut recovery = in_recovery();
        assert_eq!(recovery.on_masked_loss(seq(9000), seq(12_000)), Episode::None);
        assert_eq!(recovery.on_masked_loss(seq(9001), seq(12_000)), Episode::Entered);
        assert_eq!(recovery.state(), CongestionState::Cwr);
        assert_eq!(take(&mut recovery, &ack(1000, 9001), false, 12_000), Episode::Stayed);
    }

    fn delivering(from: u32, to: u32, retransmitted: bool) -> AckOutcome {
        let sent_at = if retransmitted { ms(100) } else { ms(0) };
        let (range, copied) = (range(from, to), false);
        let segment = Delivered { range, sent_at, retransmitted, copied, origin: Origin::New };
        AckOutcome { delivered: smallvec::smallvec![segment], ..ack(1000, 2000) }
    }

    fn timed_out(sack: bool) -> Recovery {
        let mut recovery = Recovery::new(ISS);
        recovery.set_sack(sack);
        take(&mut recovery, &ack(0, 1000), false, 9000);
        recovery.on_timeout(seq(9000));
        retransmit(&mut recovery, 1000, 2000, ms(100));
        recovery
    }

    #[test]
    fn originals_delivered_after_a_timeout_show_that_it_was_spurious() {
        // RFC 5682 section 3.1: data that was not retransmitted after the timeout is acknowledged.
        let mut recovery = timed_out(true);
        assert_eq!(recovery.spurious(&delivering(1000, 2000, true), || false), None);
        assert_eq!(recovery.spurious(&delivering(2000, 3000, false), || false), Some(UndoCause::Frto));
        let mut recovery = timed_out(true);
        assert_eq!(
            recovery.spurious(&delivering(9000, 9500, false), || false),
            None,
            "sent after the timeout"
        );
    }

    #[test]
    fn duplicates_after_a_timeout_show_that_it_was_real() {
        let mut recovery = timed_out(true);
        assert_eq!(recovery.spurious(&ack(1000, 1000), || false), None);
        assert_eq!(recovery.spurious(&delivering(2000, 3000, false), || false), None);
    }

    #[test]
    fn without_sack_a_jump_after_a_timeout_proves_nothing() {
        let mut recovery = timed_out(false);
        assert_eq!(recovery.spurious(&delivering(2000, 3000, false), || false), None);
    }

    #[test]
    fn neither_ecn_nor_a_masked_loss_is_ever_undone() {
        for masked in [false, true] {
            let mut recovery = in_recovery();
            let episode = if masked {
                recovery.on_masked_loss(seq(1000), seq(9000))
            } else {
                recovery.on_ecn(seq(1000), seq(9000))
            };
            assert_eq!(episode, Episode::Stayed);
            assert_eq!(recovery.spurious(&dsack(1000, 2000, DsackOf::Retransmit), || false), None);
        }
    }

    #[test]
    fn after_gigabytes_without_loss_a_loss_is_still_detected() {
        let mut recovery = Recovery::new(ISS);
        take(&mut recovery, &ack(0, 1), false, 2);
        for gigabyte in 0..3 {
            let una = (gigabyte << 30) + 1;
            take(&mut recovery, &ack(una, una + (1 << 30)), false, una + (1 << 30) + 1000);
        }
        assert!(recovery.may_fast_retransmit());
        let una = (3 << 30) + 1;
        assert_eq!(recovery.on_ecn(seq(una), seq(una + 1000)), Episode::Entered);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Send(u32),
        Ack { advance: u32, lost: bool },
        Ecn,
        Masked,
        Timer,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1u32..20).prop_map(Step::Send),
            (0u32..12, any::<bool>()).prop_map(|(advance, lost)| Step::Ack { advance, lost }),
            Just(Step::Ecn),
            Just(Step::Masked),
            Just(Step::Timer),
        ]
    }

    proptest! {
        /// Two reductions are at least a window apart: the second begins only when all data that was
        /// outstanding at the first has been acknowledged.
        #[test]
        fn there_is_one_reduction_per_window(steps in prop::collection::vec(step(), 1..80)) {
            let mut recovery = Recovery::new(ISS);
            let (mut una, mut nxt, mut reduced_to) = (0u32, 1u32, None);
            for step in steps {
                let episode = match step {
                    Step::Send(bytes) => {
                        nxt += bytes;
                        Episode::None
                    }
                    Step::Ack { advance, lost } => {
                        let outcome = ack(una, nxt.min(una + advance));
                        una = nxt.min(una + advance);
                        take(&mut recovery, &outcome, lost && una < nxt, nxt)
                    }
                    Step::Ecn => recovery.on_ecn(seq(una), seq(nxt)),
                    Step::Masked => recovery.on_masked_loss(seq(una), seq(nxt)),
                    Step::Timer if una < nxt => recovery.on_loss(seq(nxt)),
                    Step::Timer => Episode::None,
                };
                if episode == Episode::Entered {
                    prop_assert!(reduced_to.is_none_or(|reduced_to| una >= reduced_to));
                    prop_assert!(recovery.reducing());
                    reduced_to = Some(nxt);
                }
                if episode == Episode::Exited {
                    prop_assert!(!recovery.reducing());
                }
            }
        }
    }
}
