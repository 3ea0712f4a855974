//! A connection as a member of its path: the parts that the stack lends it for a call, and the values that
//! the stack reads afterwards.
//!
//! Each connection keeps its own loss detection, retransmission and timers. The window, the rate, the
//! delivery rate and the response to losses are those of the path (`stack/controllers.rs`).

use crate::config::PrrBound;
use crate::congestion::Controller;
use crate::congestion::sample::ControllerStart;
use crate::connection::Connection;
use crate::connection::sender::{Sender, Sharing};
use crate::outcome::CongestionState;
use crate::send::pacer::Pacer;
use crate::send::rate::RateControl;
use crate::time::{Instant, Micros};

/// SYNs or SYN-ACKs that timed out from which on a connection does not join its path.
const MAX_HANDSHAKE_TIMEOUTS: u32 = 2;

/// Bytes of a short transfer, at most.
pub(crate) const SHORT_TRANSFER: u32 = 128 << 10;

/// The state of a member that its path counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct MemberState {
    /// Bytes in flight.
    pub(crate) pipe: u32,
    /// It has unacknowledged data.
    pub(crate) is_outstanding: bool,
    /// It repairs a loss.
    pub(crate) is_recovering: bool,
    /// It has a full segment to send, or to repair.
    pub(crate) wants: bool,
}

impl Sender {
    /// Puts the value of the path in place of its own, or takes it out again.
    #[inline]
    pub(crate) fn exchange_rate(&mut self, rate: &mut RateControl) {
        core::mem::swap(&mut self.rate, rate);
    }

    /// True while it has the value of its path.
    #[inline]
    pub(crate) fn is_lent(&self) -> bool {
        self.rate.others.is_some()
    }

    /// The values that the path counts of it.
    #[inline]
    pub(crate) fn member_state(&self) -> MemberState {
        let is_recovering = match self.recovery.state() {
            CongestionState::Open | CongestionState::Disorder => false,
            CongestionState::Cwr | CongestionState::Recovery | CongestionState::Loss => true,
        };
        MemberState {
            pipe: self.scoreboard.pipe(),
            is_outstanding: !self.scoreboard.is_empty(),
            is_recovering,
            wants: self.unsent() >= self.mss() || self.scoreboard.has_lost(),
        }
    }

    /// True if the window or the pacer of the path holds back what it would send.
    pub(crate) fn is_held(&self) -> bool {
        self.held || self.paced
    }

    /// True if it may ask for the window that is remembered of its path: it is alone on a path that nobody
    /// knows better.
    pub(crate) fn may_jump(&self) -> bool {
        self.rate.others.is_none_or(|others| others.may_jump)
    }

    /// True if it has nothing to send for the first time or again.
    pub(crate) fn has_sent_all(&self) -> bool {
        self.unsent() == 0 && !self.scoreboard.has_lost()
    }

    /// Smoothed round-trip time, its variation and the minimum.
    pub(crate) fn round_trip(&self) -> Option<(Micros, Micros, Micros)> {
        let rtt = &self.rtt;
        Some((rtt.srtt()?, rtt.rttvar()?, rtt.min_rtt()?))
    }

    /// Bytes that it has sent since nothing was in flight for a round trip.
    pub(crate) fn transfer_len(&self) -> u32 {
        self.scoreboard.nxt().since(self.transfer_start)
    }

    /// True if its transfer is no longer a short one.
    pub(crate) fn is_long(&self) -> bool {
        self.transfer_len() > SHORT_TRANSFER
    }

    /// It keeps its own controller while its transfer is short.
    pub(crate) fn stay_apart(&mut self) {
        self.sharing = Sharing::Apart { asks: false };
    }

    /// It keeps its own controller.
    pub(crate) fn decline_sharing(&mut self) {
        self.sharing = Sharing::Off;
    }
}

impl Connection {
    /// Its sender, for the control of its path.
    #[inline]
    pub(crate) fn sender(&self) -> &Sender {
        &self.tx
    }

    /// Its sender, for the control of its path.
    #[inline]
    pub(crate) fn sender_mut(&mut self) -> &mut Sender {
        &mut self.tx
    }

    /// True if its handshake speaks against the path that others know: it was lost twice.
    pub(crate) fn stays_alone(&self) -> bool {
        self.handshake.syn.timeouts >= MAX_HANDSHAKE_TIMEOUTS
    }

    /// True if the stack must say whether it becomes a member.
    #[inline]
    pub(crate) fn asks_to_join(&self) -> bool {
        match self.tx.sharing {
            Sharing::Off | Sharing::Member => false,
            Sharing::Apart { asks } => (asks || self.tx.is_long()) && self.handshake.established.is_some(),
        }
    }

    /// It becomes a member. Returns its own value, which becomes that of a path without one.
    pub(crate) fn join(&mut self, is_first: bool) -> RateControl {
        self.tx.sharing = Sharing::Member;
        self.end_trust();
        if !is_first && let Some(snapshots) = &mut self.tx.snapshots {
            // They hold counters of the value that goes.
            **snapshots = Default::default();
        }
        core::mem::replace(&mut self.tx.rate, RateControl::placeholder())
    }

    /// A value for a path of which nothing is known any more.
    pub(crate) fn fresh_rate(&self, now: Instant) -> RateControl {
        let start = ControllerStart {
            now,
            mss: self.tx.mss(),
            initial_window: self.unasked_window(),
            paced: self.config.pacing.is_some(),
            seed: self.handshake.iss.0.into(),
        };
        let congestion = Controller::new(&self.config.congestion, PrrBound::Rfc9937, &start);
        RateControl::new(congestion, Pacer::new(self.config.pacing))
    }
}
