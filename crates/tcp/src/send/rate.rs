//! The bytes that may be in flight and the rate at which they leave: the parts that connections of a path can
//! share.
//!
//! A connection has a [`RateControl`] of its own, or is a *member* of a path. The stack lends the path's to a
//! member for each call; [`Others`] then has the bytes that the other members have in flight.

use alloc::boxed::Box;

use crate::congestion::Controller;
use crate::send::delivery::DeliveryRate;
use crate::send::pacer::Pacer;
use crate::time::Instant;

/// The parts that decide how much may be in flight and at which rate it leaves.
#[derive(Debug)]
pub(crate) struct RateControl {
    pub(crate) congestion: Controller,
    /// Measures the delivery rate, if the controller asks for it.
    pub(crate) delivery: Option<Box<DeliveryRate>>,
    pub(crate) pacer: Pacer,
    /// The other members, while the stack lends the value of a path.
    pub(crate) others: Option<Others>,
}

/// Facts about the other members of the path that a member needs during a call, and its report of that call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Others {
    /// Bytes in flight.
    pub(crate) pipe: u32,
    /// True if one of them has unacknowledged data.
    pub(crate) is_outstanding: bool,
    /// True if one of them repairs a loss.
    pub(crate) is_recovering: bool,
    /// True if one of them has data that waits for the window or the pacer.
    pub(crate) wants: bool,
    /// True if this member may take back the response to its losses: nobody else has lost anything meanwhile.
    pub(crate) may_undo: bool,
    /// True if the last response to a mark of congestion is a round trip old.
    pub(crate) may_answer_mark: bool,
    /// True if the member may ask for the window that is remembered of the path: nothing else is in flight,
    /// and the path is not known from this controller.
    pub(crate) may_jump: bool,
    /// Bytes that the member may send in its turn.
    pub(crate) grant: u32,
    /// Bytes that it may have in flight whatever the others have.
    pub(crate) floor: u32,
    /// When the newest transmission left that any member knows to be delivered. Reported, too.
    pub(crate) newest_delivered: Instant,
    /// Reported: bytes sent in this call.
    pub(crate) sent: u32,
    /// Reported: something was delivered.
    pub(crate) has_delivered: bool,
    /// Reported: a mark of congestion was answered.
    pub(crate) has_answered_mark: bool,
}

impl RateControl {
    /// Sending starts from idle: as at the start of a connection, an initial window leaves at once where the
    /// controller names the rate.
    pub(crate) fn begin_flight(&mut self) {
        if self.congestion.pacing_rate().is_some() {
            self.pacer.restart();
        }
    }

    /// The value of a connection by itself.
    pub(crate) fn new(congestion: Controller, pacer: Pacer) -> Self {
        let delivery = congestion.needs_delivery_rate().then(Box::default);
        RateControl { congestion, delivery, pacer, others: None }
    }

    /// The place of a member's value while it is not lent that of its path.
    pub(crate) fn placeholder() -> Self {
        RateControl {
            congestion: Controller::Fixed(crate::congestion::fixed::Fixed::new(0)),
            delivery: None,
            pacer: Pacer::new(None),
            others: None,
        }
    }

    /// Bytes in flight of other members.
    #[inline]
    pub(crate) fn others_pipe(&self) -> u32 {
        self.others.map_or(0, |others| others.pipe)
    }

    /// Bytes in flight on the path if this connection has `pipe`.
    #[inline]
    pub(crate) fn pipe_with(&self, pipe: u32) -> u32 {
        pipe.saturating_add(self.others_pipe())
    }

    /// Bytes that the pacer and the turn of the member let go now.
    #[inline]
    pub(crate) fn paced(&self, mss: u32, now: Instant) -> u32 {
        let paced = self.pacer.budget(now);
        match self.others {
            None => paced,
            Some(others) => paced.min(others.grant.div_ceil(mss.max(1)).saturating_mul(mss)),
        }
    }

    /// The congestion window, as far as it concerns a member with `pipe` bytes in flight.
    #[inline]
    pub(crate) fn window(&self) -> u32 {
        let cwnd = self.congestion.cwnd();
        self.others.map_or(cwnd, |others| cwnd.max(others.pipe.saturating_add(others.floor)))
    }

    /// `bytes` left, whatever their origin.
    #[inline]
    pub(crate) fn on_sent(&mut self, bytes: u32, now: Instant) {
        self.pacer.on_sent(bytes, now);
        if let Some(others) = &mut self.others {
            others.sent = others.sent.saturating_add(bytes);
        }
    }

    /// The last reduction was a mistake. Of a path it is undone only if all losses of it were mistakes.
    pub(crate) fn on_spurious(&mut self, now: Instant) {
        if self.others.is_none_or(|others| others.may_undo) {
            self.congestion.on_spurious(now);
        }
    }
}
