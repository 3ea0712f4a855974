//! Connections that may have something to send, their urgency, and the deadlines of the others.
//!
//! Connections that may have something to send wait in one queue, first come, first served. Those whose
//! packets must leave before applications run are in a second queue as well.
//!
//! A connection's deadline is entered into the table of deadlines when the connection leaves the queue.
//! Nearly every segment moves a timer, but a driver asks for the next deadline only when the queue is empty.

use alloc::collections::VecDeque;

use super::Stack;
use super::slot::Slot;
use crate::conn_id::{ConnId, Slots};
use crate::connection::Urgency;
use crate::time::Instant;

/// Capacity that the empty queue of urgent connections keeps.
const KEPT: usize = 1024;

/// The queues of connections that may have something to send.
#[derive(Debug, Default)]
pub(super) struct Ready {
    /// Connections whose urgency is not [`Urgency::Idle`], each once.
    all: VecDeque<ConnId>,
    /// Connections of urgency [`Urgency::BeforeApp`]; entries that have sent since then are stale.
    urgent: VecDeque<ConnId>,
}

impl Ready {
    /// Empties the queues, which keep their storage.
    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.urgent.clear();
    }

    /// True if a connection may have something that must leave before applications run.
    pub(super) fn is_urgent(&self) -> bool {
        !self.urgent.is_empty()
    }

    /// True if no connection has anything to send.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Raises the urgency of a connection to at least `urgency`.
    #[inline]
    pub(super) fn raise(&mut self, id: ConnId, slot: &mut Slot, urgency: Urgency) {
        let before = slot.urgency;
        if before == Urgency::Idle {
            self.all.push_back(id);
        }
        if urgency == Urgency::BeforeApp && before != Urgency::BeforeApp {
            self.urgent.push_back(id);
        }
        slot.urgency = before.max(urgency);
        slot.deadline_moved = true;
    }

    fn pop(&mut self) -> Option<ConnId> {
        let id = self.all.pop_front()?;
        self.urgent.pop_front_if(|first| *first == id);
        Some(id)
    }

    /// Returns the deadlines that may have moved since they were entered.
    pub(super) fn moved_deadlines(&self, slots: &Slots<Slot>) -> impl Iterator<Item = Option<Instant>> {
        let ready = self.all.iter().filter_map(|id| slots.at(*id));
        ready
            .filter(|slot| slot.deadline_moved && !slot.connection.is_done())
            .map(|slot| slot.connection.next_timeout())
    }
}

impl Stack {
    /// Queues a connection that may have something to send, or enters the deadline of one that has nothing.
    #[inline]
    pub(super) fn schedule(&mut self, id: ConnId, urgency: Urgency, now: Instant) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        if urgency != Urgency::Idle || slot.urgency != Urgency::Idle {
            return self.ready.raise(id, slot, urgency);
        }
        if slot.connection.is_done() {
            return;
        }
        slot.deadline_moved = false;
        self.deadlines.set(id.index, slot.connection.next_timeout());
        if slot.half_open.is_some() {
            return self.keep_warm(id);
        }
        self.memory.on_nothing_to_send(id, slot, now);
    }

    /// Removes the next connection that may have something to send from the queue and returns it. Half-open
    /// connections whose timers are due come last.
    pub(super) fn next_ready(&mut self, now: Instant) -> Option<ConnId> {
        loop {
            if let Some(id) = self.ready.pop() {
                if let Some(slot) = self.slots.at_mut(id) {
                    slot.urgency = Urgency::Idle;
                }
                return Some(id);
            }
            self.ready.urgent.clear();
            self.ready.urgent.shrink_to(KEPT);
            if !self.fire_half_open(now) {
                return None;
            }
        }
    }

    /// Returns the connection that has waited longest among those whose packets must leave before
    /// applications run; it stays in the queue.
    pub(super) fn next_urgent(&mut self, now: Instant) -> Option<ConnId> {
        loop {
            while let Some(&id) = self.ready.urgent.front() {
                if self.slots.at_mut(id).is_some_and(|slot| slot.urgency == Urgency::BeforeApp) {
                    return Some(id);
                }
                self.ready.urgent.pop_front();
            }
            if !self.fire_half_open(now) {
                return None;
            }
        }
    }

    /// Enters the deadlines that may have moved, so that [`Stack::next_timeout`] need not check each of them
    /// again. For a driver that lets ready connections wait.
    pub fn refresh_deadlines(&mut self) {
        for id in &self.ready.all {
            let Some(slot) = self.slots.at_mut(*id).filter(|slot| slot.deadline_moved) else { continue };
            slot.deadline_moved = false;
            if !slot.connection.is_done() {
                self.deadlines.set(id.index, slot.connection.next_timeout());
            }
        }
    }
}
