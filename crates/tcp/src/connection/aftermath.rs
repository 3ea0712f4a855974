//! The work that a connection leaves to the stack: every call that may change it returns an [`Aftermath`].

use crate::connection::{Connection, Events, State};
use crate::time::Instant;

/// How soon the next packet of a connection must leave.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Urgency {
    /// It has nothing to send.
    Idle,
    /// It may have a packet, which waits for its turn.
    Normal,
    /// Before it takes in another segment: the segments of a batch are not answered as if they were one.
    BeforeNextRx,
    /// Before the application runs, and before it takes in another segment.
    BeforeApp,
}

/// The work that a call on a connection leaves to the stack; mostly nothing but to ask it for a packet. The
/// events of the connection are in it and nowhere else.
#[must_use]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aftermath {
    /// How soon its next packet must leave.
    pub(crate) urgency: Urgency,
    /// Events for its owner.
    pub(crate) events: Events,
    /// Bytes that its buffers hold.
    pub(crate) memory: usize,
    /// Of these, bytes that are kept for repairs.
    pub(crate) repair_memory: usize,
    /// One of its buffers has storage with nothing in it.
    pub(crate) has_drained_storage: bool,
    /// Its opening may have shown how its path treats Corrective and Proactive.
    pub(crate) has_gentle_report: bool,
    /// It may have something to report about its path.
    pub(crate) has_path_report: bool,
    /// Its client waits for a one-time cookie.
    pub(crate) wants_one_time_cookie: bool,
    /// It becomes a member of its path.
    pub(crate) asks_to_join: bool,
    /// It will send and receive nothing more.
    pub(crate) is_over: bool,
}

impl Aftermath {
    /// True if there is something to do that the connection itself asks for, in addition to sending and
    /// counting.
    #[inline]
    pub(crate) fn asks(&self) -> bool {
        self.has_drained_storage
            | self.has_gentle_report
            | self.has_path_report
            | self.wants_one_time_cookie
            | self.asks_to_join
            | self.is_over
            | (self.events != Events::default())
    }
}

impl Connection {
    /// Calls `act`, and returns with its result what it leaves to do.
    #[inline]
    pub(crate) fn act<R>(&mut self, now: Instant, act: impl FnOnce(&mut Connection) -> R) -> (R, Aftermath) {
        let result = act(self);
        (result, self.aftermath(Urgency::Normal, now))
    }

    /// Returns what is left to do; the events are handed over with it.
    #[inline(always)]
    pub(crate) fn aftermath(&mut self, urgency: Urgency, now: Instant) -> Aftermath {
        debug_assert!(self.closed.is_some() || !self.is_done(), "it is over and nobody says why");
        Aftermath {
            urgency,
            events: core::mem::take(&mut self.events),
            memory: self.memory(),
            repair_memory: self.repair_memory(),
            has_drained_storage: self.has_drained_storage(),
            has_gentle_report: self.may_have_gentle_news(),
            has_path_report: self.owes_path_report(now) || self.owes_flight_report() || self.asks_path(),
            wants_one_time_cookie: self.wants_one_time_cookie(),
            asks_to_join: self.asks_to_join(),
            is_over: self.closed.is_some() && self.is_done(),
        }
    }

    /// How soon the answer to what has arrived must leave.
    #[inline]
    pub(crate) fn urgency(&self) -> Urgency {
        let (sender_waits, rcv_nxt) = (self.tx.is_urgent(), self.rx.rcv_nxt());
        if sender_waits || self.state == State::SynReceived || self.rx.ack.tells_of_hole(rcv_nxt) {
            Urgency::BeforeApp
        } else if self.rx.ack.is_urgent(rcv_nxt) {
            Urgency::BeforeNextRx
        } else {
            Urgency::Normal
        }
    }

    /// Like [`Connection::aftermath`], after a poll; `sent`: the poll produced a packet.
    #[inline]
    pub(crate) fn after_poll(&mut self, sent: bool, now: Instant) -> Aftermath {
        let is_idle = !sent || self.turns(now).is_empty();
        if sent && is_idle {
            self.become_idle(now);
        }
        let urgency = if is_idle { Urgency::Idle } else { Urgency::Normal };
        self.aftermath(urgency, now)
    }
}
