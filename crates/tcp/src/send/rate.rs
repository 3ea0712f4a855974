//! Congestion controller, delivery rate and pacer: the bytes that may be in flight, and the rate at which
//! they leave. Connections of a path can share these parts.
//!
//! A connection has a [`RateControl`] of its own, or is a *member* of a path. The stack lends a member the
//! path's control for each call. [`Others`] then describes the other members.

use alloc::boxed::Box;

use crate::congestion::Controller;
use crate::send::delivery::DeliveryRate;
use crate::send::pacer::Pacer;
use crate::time::Instant;

/// The parts that decide how many bytes may be in flight and at which rate they leave.
#[derive(Debug)]
pub(crate) struct RateControl {
    pub(crate) congestion: Controller,
    /// Measures the delivery rate, if the controller needs it.
    pub(crate) delivery: Option<Box<DeliveryRate>>,
    pub(crate) pacer: Pacer,
    /// The other members, while the stack lends the control of a path.
    pub(crate) others: Option<Others>,
}

/// Facts that a member needs about the other members during a call, and the member's report of that call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Others {
    /// Bytes in flight.
    pub(crate) pipe: u32,
    /// True if one of them has unacknowledged data.
    pub(crate) is_outstanding: bool,
    /// True if one of them is repairing a loss.
    pub(crate) is_recovering: bool,
    /// True if one of them has a full segment of new data within its peer's window, or lost data to
    /// retransmit.
    pub(crate) wants: bool,
    /// True if this member may undo the response to its losses, because no other member has lost data since.
    pub(crate) may_undo: bool,
    /// True if the last response to a congestion mark was a round trip ago or more.
    pub(crate) may_answer_mark: bool,
    /// True if the member may request the remembered window of the path, because nothing else is in flight
    /// and this controller has not measured the path.
    pub(crate) may_jump: bool,
    /// Bytes that the member may send in its turn.
    pub(crate) grant: u32,
    /// Bytes that the member may always have in flight.
    pub(crate) floor: u32,
    /// Transmission time of the newest data that any member knows to be delivered. The member updates it.
    pub(crate) newest_delivered: Instant,
    /// Report: bytes sent in this call.
    pub(crate) sent: u32,
    /// Report: data was delivered.
    pub(crate) has_delivered: bool,
    /// Report: the controller learned of losses, repaired or not.
    pub(crate) has_lost: bool,
    /// Report: the member responded to a congestion mark.
    pub(crate) has_answered_mark: bool,
}

impl RateControl {
    /// Begins sending from idle. If the controller sets the rate, an initial window leaves at once, as at the
    /// start of a connection.
    pub(crate) fn begin_flight(&mut self) {
        if self.congestion.pacing_rate().is_some() {
            self.pacer.restart();
        }
    }

    /// Returns the control of a single connection.
    pub(crate) fn new(congestion: Controller, pacer: Pacer) -> Self {
        let delivery = congestion.needs_delivery_rate().then(Box::default);
        RateControl { congestion, delivery, pacer, others: None }
    }

    /// Returns the value that a member holds while the path's control is not lent to it.
    pub(crate) fn placeholder() -> Self {
        RateControl {
            congestion: Controller::Fixed(crate::congestion::fixed::Fixed::new(0)),
            delivery: None,
            pacer: Pacer::new(None),
            others: None,
        }
    }

    /// Returns the bytes in flight of other members.
    #[inline]
    pub(crate) fn others_pipe(&self) -> u32 {
        self.others.map_or(0, |others| others.pipe)
    }

    /// Returns the bytes in flight on the path if this connection has `pipe`.
    #[inline]
    pub(crate) fn pipe_with(&self, pipe: u32) -> u32 {
        pipe.saturating_add(self.others_pipe())
    }

    /// Returns the bytes that the pacer and the turn of the member permit now.
    #[inline]
    pub(crate) fn paced(&self, mss: u32, now: Instant) -> u32 {
        let paced = self.pacer.budget(now);
        match self.others {
            None => paced,
            Some(others) => paced.min(others.grant.div_ceil(mss.max(1)).saturating_mul(mss)),
        }
    }

    /// Returns the congestion window. For a member it is at least the others' bytes in flight plus its floor.
    #[inline]
    pub(crate) fn window(&self) -> u32 {
        let cwnd = self.congestion.cwnd();
        self.others.map_or(cwnd, |others| cwnd.max(others.pipe.saturating_add(others.floor)))
    }

    /// Records that `bytes` left, of any origin.
    #[inline]
    pub(crate) fn on_sent(&mut self, bytes: u32, now: Instant) {
        self.pacer.on_sent(bytes, now);
        if let Some(others) = &mut self.others {
            others.sent = others.sent.saturating_add(bytes);
        }
    }

    /// Undoes the last reduction, which was a mistake. On a shared path this needs `may_undo`.
    pub(crate) fn on_spurious(&mut self, now: Instant) {
        if self.others.is_none_or(|others| others.may_undo) {
            self.congestion.on_spurious(now);
        }
    }
}
