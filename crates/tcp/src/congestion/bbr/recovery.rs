//! The window while lost data is repaired.
//!
//! The draft keeps the window in fast recovery, because the pacing rate limits what is sent. At the start of
//! a flow that rate limits too little. If the first flight has overflowed a queue, the flow would send all of
//! it again within a round trip. Many such flows would fill the queue with repeated data. So the window is
//! restricted if a flow loses a quarter of a flight among its first segments, and more than random loss
//! explains (`loss.rs`). It then follows BBR version 1 until everything is repaired. In the first round an
//! acknowledgement permits as many bytes as have left the path, later at most twice as many. The smallest
//! window is one segment. After the start the model of the path limits the flow.

use super::super::sample::{AckSample, RateSample};
use super::{Bbr, BbrState};

/// Segments at the start of a flow whose losses restrict the window. The number is what a flow may have in
/// flight on a path that it has not measured.
const FIRST_SEGMENTS: u64 = 64;
/// The share of a flight whose loss restricts the window, as a divisor.
const HEAVY_LOSS: u64 = 4;

/// A recovery. It begins with a loss, a timeout or another reduction, and ends when all data in flight then
/// is delivered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BbrRecovery {
    /// True while it lasts.
    pub(super) is_active: bool,
    /// True if it began among the first segments of the flow.
    pub(super) is_first: bool,
    /// True if it has lost a quarter of a flight, and more than random loss explains.
    pub(super) is_heavy: bool,
    /// Bytes delivered when the recovery began. Its first round ends when data that was sent later is
    /// delivered.
    first_round: Option<u64>,
    /// True until the first acknowledgement.
    is_new: bool,
    /// True once the window has fallen to the bytes in flight.
    has_fallen: bool,
}

impl BbrRecovery {
    /// Begins the first round of a recovery after `delivered` bytes.
    pub(super) fn begin_first_round(&mut self, delivered: u64) {
        self.first_round = Some(delivered);
        self.is_new = true;
    }

    /// Begins the first round again if a timer began the recovery. Data that left since the last
    /// acknowledgement has the same count of delivered bytes as data that leaves now. So the round ends only
    /// with data that leaves after the next acknowledgement.
    pub(super) fn restart_first_round_by_timer(&mut self, delivered: u64) {
        if core::mem::take(&mut self.is_new) {
            self.first_round = Some(delivered + 1);
        }
    }

    /// Ends the first round, because the window grows from one segment after a timeout.
    pub(super) fn end_first_round(&mut self) {
        self.first_round = None;
        self.is_new = false;
    }

    /// True while losses restrict the window.
    pub(super) fn restricts(&self) -> bool {
        self.is_active && self.is_first && self.is_heavy
    }

    /// True while at most as many bytes may be sent as have left the path.
    pub(super) fn conserves(&self) -> bool {
        self.restricts() && self.first_round.is_some()
    }
}

impl Bbr {
    /// True if the flow is in Startup and has delivered few segments.
    pub(super) fn is_at_start(&self) -> bool {
        self.state == BbrState::Startup && self.delivered < FIRST_SEGMENTS * u64::from(self.mss)
    }

    /// True if `lost` bytes are a quarter of a flight, and more than random loss explains.
    pub(super) fn is_loss_heavy(&self, tx_in_flight: u32, lost: u64) -> bool {
        // The first segments of a flight leave with little in flight, but may be lost with later ones.
        let flight = tx_in_flight.max(self.cwnd);
        lost * HEAVY_LOSS >= u64::from(flight) && self.is_loss_too_high(flight, lost, 0)
    }

    /// Lowers the window by the bytes that are newly lost. At the start of the first round, lowers it to the
    /// bytes in flight plus those that have left the path.
    pub(super) fn conserve(&mut self, ack: &AckSample, sample: Option<&RateSample>) {
        let recovery = &mut self.recovery;
        let is_first_ack = core::mem::take(&mut recovery.is_new);
        let begin = recovery.first_round.filter(|_| !is_first_ack);
        if begin.zip(sample).is_some_and(|(begin, sample)| sample.prior_delivered >= begin) {
            recovery.first_round = None;
        }
        if !recovery.restricts() {
            return;
        }
        // A later acknowledgement than the first may show that the losses are heavy.
        let has_fallen = core::mem::replace(&mut recovery.has_fallen, true);
        let less = self.cwnd.saturating_sub(ack.newly_lost).max(self.mss);
        let kept = ack.pipe.saturating_add(ack.left_path().max(self.mss));
        let cwnd = match (recovery.conserves(), has_fallen) {
            (true, false) => kept,
            (true, true) => less.max(kept),
            (false, _) => less,
        };
        self.cwnd = cwnd.min(self.cwnd);
    }
}
