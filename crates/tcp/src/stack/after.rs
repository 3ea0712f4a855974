//! The steps of the stack after a call has changed a connection.
//!
//! After every event (a segment, a call, a timer, a transmission) the connection returns an [`Aftermath`].
//! [`Stack::apply_aftermath`] then counts the memory in use, queues events, stores facts that outlive the
//! connection (about Fast Open, the peer and the path), and retires a connection that has ended. After that,
//! the connection is in the queue of ready connections, or idle.

use super::Stack;
use super::slot::Ownership;
use crate::conn_id::ConnId;
use crate::connection::{Aftermath, Connection, Events, Urgency};
use crate::event::Event;
use crate::time::Instant;

impl Stack {
    /// Calls `act` on a connection of the application, and processes the aftermath.
    pub(super) fn act<R>(
        &mut self,
        id: ConnId,
        now: Instant,
        act: impl FnOnce(&mut Connection) -> R,
    ) -> Option<R> {
        self.lend(id, now);
        let (result, aftermath) = self.owned_mut(id)?.connection.act(now, act);
        self.apply_aftermath(id, aftermath, now);
        Some(result)
    }

    /// Asks a connection for its aftermath, after a change that returned none, and processes it.
    pub(super) fn take_aftermath(&mut self, id: ConnId, now: Instant) {
        self.lend(id, now);
        let Some(slot) = self.slots.at_mut(id) else { return };
        let aftermath = slot.connection.aftermath(Urgency::Normal, now);
        self.apply_aftermath(id, aftermath, now);
    }

    /// Processes the aftermath of a call on a connection. `ARCHITECTURE.md` ("The stack and its driver")
    /// lists the steps in this order.
    #[inline]
    pub(super) fn apply_aftermath(&mut self, id: ConnId, aftermath: Aftermath, now: Instant) {
        self.clock = self.clock.max(now);
        let Some(mut slot) = self.slots.at_mut(id) else { return };
        if slot.member.is_some() {
            self.take_back(id, aftermath.urgency, now);
            let Some(again) = self.slots.at_mut(id) else { return };
            slot = again;
        }
        // Nearly every segment changes the size of a buffer.
        self.memory.count(slot, aftermath.memory);
        if aftermath.has_drained_storage {
            self.memory.take_storage(slot);
        }
        let uses_fast_open = aftermath.has_fast_open_report || slot.ticket.is_some();
        let repair_memory_changed = slot.repair_memory != aftermath.repair_memory;
        let is_watched = self.config.observe || self.config.lifecycle || self.memory.has_waiters();
        if aftermath.asks() || uses_fast_open || repair_memory_changed || is_watched {
            self.process_reports(id, &aftermath, now);
        } else if aftermath.urgency != Urgency::Idle || slot.urgency != Urgency::Idle {
            // Most calls end here: `schedule` would look the slot up again.
            return self.ready.raise(id, slot, aftermath.urgency);
        }
        self.schedule(id, aftermath.urgency, now);
    }

    /// Processes the parts of an aftermath that few calls have.
    #[inline(never)]
    fn process_reports(&mut self, id: ConnId, aftermath: &Aftermath, now: Instant) {
        let Some(mut slot) = self.slots.at_mut(id) else { return };
        let uses_fast_open = aftermath.has_fast_open_report || slot.ticket.is_some();
        let repair_memory_changed = slot.repair_memory != aftermath.repair_memory;
        if self.memory.has_waiters() {
            self.memory.wake_waiters(&mut self.slots, &mut self.events);
            let Some(again) = self.slots.at_mut(id) else { return };
            slot = again;
        }
        if self.config.observe {
            self.reports.observe(id, slot, &mut self.stats, now);
        }
        if self.config.lifecycle {
            self.reports.report_lifecycle(id, slot, &self.controllers, &mut self.stats);
        }
        if aftermath.events != Events::default() {
            self.pass_events_on(id, aftermath.events);
        }
        if repair_memory_changed {
            self.memory.count_repairs(id, &mut self.slots, now);
        }
        if uses_fast_open {
            self.learn_fast_open(id, now);
        }
        if aftermath.has_gentle_report {
            self.learn_gentle(id, now);
        }
        if aftermath.has_path_report {
            self.learn_path(id, now);
        }
        if aftermath.asks_to_join
            && let Some(slot) = self.slots.at_mut(id).filter(|slot| slot.member.is_none())
        {
            slot.member = self.controllers.join(id, &mut slot.connection, now);
        }
        if aftermath.is_over {
            self.retire(id, now);
        }
    }

    fn pass_events_on(&mut self, id: ConnId, events: Events) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        if slot.phase != Ownership::Owned {
            slot.deferred.insert(events);
        }
        // Counts the handshake of a `Request` that the program has accepted. Other passive handshakes are
        // counted elsewhere: with Fast Open when the ticket is returned, without it when the connection
        // leaves `HalfOpen`.
        let is_claimed = matches!(slot.phase, Ownership::Owned | Ownership::Released);
        if is_claimed && !slot.connection.handshake.active && slot.ticket.is_none() {
            let has_failed = events.contains(Events::CLOSED) && !slot.connection.handshake.is_complete();
            self.stats.handshakes_completed += u64::from(events.contains(Events::CONNECTED));
            self.stats.handshakes_failed += u64::from(has_failed);
        }
        match slot.phase {
            Ownership::Owned => {
                let reason = slot.connection.close_reason();
                if events.contains(Events::CONNECTED) {
                    self.events.push(Event::Connected(id));
                }
                self.events.push_all(id, events);
                if let Some(reason) = reason.filter(|_| events.contains(Events::CLOSED)) {
                    self.events.push(Event::Closed(id, reason));
                }
            }
            Ownership::HalfOpen(listener) if events.contains(Events::CONNECTED) => {
                slot.phase = Ownership::Queued(listener);
                slot.half_open = None;
                if let Some(at) = self.listeners.at_mut(listener) {
                    at.on_established(id);
                }
                self.stats.handshakes_completed += 1;
                self.events.push(Event::Incoming(listener));
            }
            Ownership::HalfOpen(listener) if events.contains(Events::CLOSED) => {
                slot.phase = Ownership::Released;
                if let Some(at) = self.listeners.at_mut(listener) {
                    at.on_half_open_gone();
                }
                self.stats.handshakes_failed += 1;
            }
            // The program gets these events, which are in `deferred`, when it accepts the connection.
            Ownership::HalfOpen(_) | Ownership::Queued(_) | Ownership::Released => {}
        }
    }
}
