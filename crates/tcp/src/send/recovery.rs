//! The recovery state of the sender (RFC 5681, RFC 6582, RFC 6675; names as in Linux) and when a
//! reduction of the window turns out to have been a mistake (RFC 3522, RFC 3708, RFC 5682).
//!
//! It decides when a reduction begins and ends, never how large it is. Its promise: at most one
//! reduction per window of data, whoever asks for it - loss detection, ECN or a mechanism that
//! repaired a loss.

use brisk_wire::SeqNum;

use crate::event::UndoCause;
use crate::outcome::{AckOutcome, CongestionState, DsackOf, Episode, LossOutcome, Origin, Sent};
use crate::time::{Duration, Instant};

/// Resolution of the timestamp clock: closer times cannot be told apart by an echo.
const TIMESTAMP_TICK: Duration = Duration::from_millis(1);

/// Recovery state of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    state: CongestionState,
    una: SeqNum,
    /// SND.NXT when the episode under way, or the last one, began; Linux: high_seq.
    recovery_point: SeqNum,
    /// SND.NXT at the most recent reduction of any kind.
    cut_high: SeqNum,
    /// SND.NXT when loss was last answered; "recover" of RFC 6582.
    recover: SeqNum,
    /// SND.UNA when the episode began, while that may still be undone.
    undo_marker: Option<SeqNum>,
    /// Bytes retransmitted in the episode and not reported as duplicates.
    undo_retrans: u32,
    first_retransmit: Option<Instant>,
    /// Both ends use SACK.
    sack: bool,
    /// A first timeout is being judged by F-RTO.
    frto: bool,
    /// SND.UNA moved since the last timeout.
    progressed: bool,
}

impl Recovery {
    /// The state before the first segment. `iss` is the initial send sequence number.
    pub(crate) fn new(iss: SeqNum) -> Self {
        Recovery {
            state: CongestionState::Open,
            una: iss,
            recovery_point: iss,
            cut_high: iss,
            recover: iss,
            sack: false,
            undo_marker: None,
            undo_retrans: 0,
            first_retransmit: None,
            frto: false,
            progressed: false,
        }
    }

    /// Whether both ends use SACK. Without it F-RTO is off: a cumulative acknowledgement that follows
    /// a timeout may cover data that was received long before, which proves nothing.
    pub(crate) fn set_sack(&mut self, sack: bool) {
        self.sack = sack;
    }

    /// The state.
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

    /// SND.NXT when the episode under way, or the last one, began.
    pub(crate) fn recovery_point(&self) -> SeqNum {
        self.recovery_point
    }

    /// True if three duplicate acknowledgements may start fast retransmit on a connection without
    /// SACK. RFC 6582 3.2 step 2: only if "the Cumulative Acknowledgment field covers more than
    /// 'recover'"; else they may be echoes of our own needless retransmissions.
    pub(crate) fn may_fast_retransmit(&self) -> bool {
        !self.in_recovery() && self.una.gt(self.recover)
    }

    /// A transmission left: retransmissions in an episode are what an undo must see refuted.
    pub(crate) fn on_sent(&mut self, sent: &Sent) {
        match sent.origin {
            Origin::Retransmit if self.undo_marker.is_some() => {
                self.undo_retrans = self.undo_retrans.saturating_add(sent.range.len());
                self.first_retransmit.get_or_insert(sent.at);
            }
            Origin::Ack
            | Origin::New
            | Origin::Retransmit
            | Origin::TailLossProbe
            | Origin::Duplicate
            | Origin::Parity => {}
        }
    }

    /// Judges whether the reduction under way (or, by DSACK, the last one) was a mistake. Call it
    /// before [`Recovery::on_ack`]; on `Some` the caller restores the window, takes back what is
    /// marked lost and calls [`Recovery::undo`].
    pub(crate) fn spurious(&mut self, ack: &AckOutcome) -> Option<UndoCause> {
        let marker = self.undo_marker?;
        if let Some(dsack) = ack.dsack
            && dsack.of == DsackOf::Retransmit
            && dsack.range.end.gt(marker)
            && self.undo_retrans > 0
        {
            self.undo_retrans = self.undo_retrans.saturating_sub(dsack.range.len());
            if self.undo_retrans == 0 {
                return Some(UndoCause::Dsack);
            }
        }
        if !self.in_recovery() {
            return None;
        }
        if let (true, Some(echoed), Some(first)) = (ack.advanced > 0, ack.echoed_rtt, self.first_retransmit)
            && echoed > ack.at.saturating_since(first) + TIMESTAMP_TICK
        {
            return Some(UndoCause::Eifel);
        }
        self.frto_verdict(ack)
    }

    /// RFC 5682 section 3.1, with SACK: the timeout was spurious if data that was sent before it and
    /// never again is delivered now; it was real if an acknowledgement brings no such thing but SACKs
    /// or duplicates.
    fn frto_verdict(&mut self, ack: &AckOutcome) -> Option<UndoCause> {
        if !self.frto {
            return None;
        }
        let original = |range_end: SeqNum| range_end.le(self.recovery_point);
        if ack.delivered.iter().any(|segment| !segment.retransmitted && original(segment.range.end)) {
            return Some(UndoCause::Frto);
        }
        if ack.duplicate || ack.newly_sacked > 0 {
            self.frto = false;
        }
        None
    }

    /// The reduction was a mistake: the state is as if it had not been. A later undo of the same
    /// episode is impossible.
    pub(crate) fn undo(&mut self) {
        self.state = CongestionState::Open;
        self.forbid_undo();
    }

    /// Takes an acknowledgement. `lost_present`: something on the scoreboard is marked lost after
    /// loss detection. `sacked`: bytes reported by SACK that are still outstanding.
    pub(crate) fn on_ack(
        &mut self,
        ack: &AckOutcome,
        loss: &LossOutcome,
        lost_present: bool,
        sacked: u32,
        nxt: SeqNum,
    ) -> Episode {
        self.una = ack.una_before + ack.advanced;
        self.progressed |= ack.advanced > 0;
        let over = self.reducing() && self.una.ge(self.recovery_point);
        let lost = lost_present || loss.newly_lost > 0;
        let calm =
            if sacked > 0 || ack.duplicate { CongestionState::Disorder } else { CongestionState::Open };
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
                self.repair_within_cwr(nxt);
                Episode::Stayed
            }
            CongestionState::Cwr | CongestionState::Recovery | CongestionState::Loss => Episode::Stayed,
        }
    }

    /// The reordering timer declared data lost; as [`Recovery::on_ack`] where an acknowledgement did.
    pub(crate) fn on_loss(&mut self, nxt: SeqNum) -> Episode {
        match self.state {
            CongestionState::Open | CongestionState::Disorder => self.enter_recovery(nxt),
            CongestionState::Cwr => {
                self.repair_within_cwr(nxt);
                Episode::Stayed
            }
            CongestionState::Recovery | CongestionState::Loss => Episode::Stayed,
        }
    }

    /// The retransmission timer fired. Returns whether `ssthresh` is lowered. RFC 5681 section 3.1
    /// lowers it when the segment "has not yet been resent by way of the retransmission timer"; a
    /// fast recovery that ends this way has lowered it already.
    pub(crate) fn on_timeout(&mut self, nxt: SeqNum) -> bool {
        let first = match self.state {
            CongestionState::Open | CongestionState::Disorder => true,
            CongestionState::Cwr | CongestionState::Recovery => false,
            CongestionState::Loss => self.progressed,
        };
        if first {
            self.start_undo();
        }
        self.frto = first && self.sack;
        self.progressed = false;
        self.state = CongestionState::Loss;
        self.set_points(nxt);
        first
    }

    /// Segments became too large for the path and are sent again in pieces, which is no sign of
    /// congestion (RFC 1191 section 6.4): a repair without a reduction.
    pub(crate) fn on_too_big(&mut self, nxt: SeqNum) {
        if !self.reducing() {
            self.state = CongestionState::Loss;
            self.progressed = true;
            (self.recovery_point, self.recover) = (nxt, nxt);
            self.forbid_undo();
        }
    }

    /// The peer echoes congestion experienced on an acknowledgement of `ack`. RFC 3168 6.1.2:
    /// "TCP should not react to congestion indications more than once every window of data".
    pub(crate) fn on_ecn(&mut self, ack: SeqNum, nxt: SeqNum) -> Episode {
        if self.reducing() {
            self.forbid_undo();
            return Episode::Stayed;
        }
        self.enter_cwr(ack, nxt)
    }

    /// A mechanism repaired a loss that congestion control must still answer; never undone.
    pub(crate) fn on_masked_loss(&mut self, ack: SeqNum, nxt: SeqNum) -> Episode {
        if self.reducing() {
            self.forbid_undo();
            return Episode::Stayed;
        }
        self.enter_cwr(ack, nxt)
    }

    /// True from the entry of a reduction to its exit.
    pub(crate) fn reducing(&self) -> bool {
        match self.state {
            CongestionState::Cwr | CongestionState::Recovery | CongestionState::Loss => true,
            CongestionState::Open | CongestionState::Disorder => false,
        }
    }

    fn enter_recovery(&mut self, nxt: SeqNum) -> Episode {
        self.state = CongestionState::Recovery;
        self.set_points(nxt);
        self.frto = false;
        self.start_undo();
        Episode::Entered
    }

    /// The reduction under way serves a loss too; it just has something to repair now.
    fn repair_within_cwr(&mut self, nxt: SeqNum) {
        self.state = CongestionState::Recovery;
        self.set_points(nxt);
        self.forbid_undo();
    }

    fn enter_cwr(&mut self, ack: SeqNum, nxt: SeqNum) -> Episode {
        if ack.le(self.cut_high) {
            return Episode::None;
        }
        self.state = CongestionState::Cwr;
        (self.recovery_point, self.cut_high) = (nxt, nxt);
        self.forbid_undo();
        Episode::Entered
    }

    fn set_points(&mut self, nxt: SeqNum) {
        (self.recovery_point, self.cut_high, self.recover) = (nxt, nxt, nxt);
    }

    fn start_undo(&mut self) {
        self.undo_marker = Some(self.una);
        self.undo_retrans = 0;
        self.first_retransmit = None;
    }

    fn forbid_undo(&mut self) {
        self.undo_marker = None;
        self.undo_retrans = 0;
        self.first_retransmit = None;
        self.frto = false;
    }
}
