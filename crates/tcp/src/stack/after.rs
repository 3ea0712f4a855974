//! The steps of the stack after a call has changed a connection.
//!
//! After every event (a segment, a call, a timer, a transmission) the connection returns an [`Aftermath`],
//! and [`Stack::after`] carries it out: it counts memory, queues events, updates the memories of the stack,
//! and retires a connection that has ended. Then the connection is in the queue of ready connections, or
//! idle.

use alloc::boxed::Box;

use super::Stack;
use super::slot::{Ownership, ReportedLifecycle, Slot};
use super::spares::Spares;
use crate::conn_id::ConnId;
use crate::connection::{Aftermath, Connection, Events, Urgency};
use crate::event::{Event, Lifecycle, LifecycleEvent, Observation};
use crate::time::Instant;

/// Maximum number of observations, and of lifecycle changes, that wait for the observer.
const MAX_REPORTS: usize = 65_536;

impl Slot {
    /// Replaces the counted bytes of its buffers by `bytes`, in the sum `all`.
    #[inline]
    pub(super) fn count_memory(&mut self, bytes: usize, all: &mut usize) {
        if bytes != self.memory {
            *all = all.saturating_sub(self.memory).saturating_add(bytes);
            self.memory = bytes;
        }
    }

    /// Keeps the storage of data that was read or acknowledged for other connections.
    fn give_storage(&mut self, spares: &mut Spares, all: &mut usize) {
        let connection = &mut *self.connection;
        let received = connection.rx.queue.take_storage();
        let sent = connection.tx.queue.take_storage();
        let bytes = connection.memory();
        spares.put(received);
        spares.put_sent(sent);
        self.count_memory(bytes, all);
    }
}

impl Stack {
    /// Calls `act` on a connection of the application, and carries out the aftermath.
    pub(super) fn act<R>(
        &mut self,
        id: ConnId,
        now: Instant,
        act: impl FnOnce(&mut Connection) -> R,
    ) -> Option<R> {
        self.lend(id, now);
        let (result, aftermath) = self.owned_mut(id)?.connection.act(now, act);
        self.after(id, aftermath, now);
        Some(result)
    }

    /// Carries out the work after a change that returned no aftermath, like [`Stack::after`].
    pub(super) fn after_change(&mut self, id: ConnId, now: Instant) {
        self.lend(id, now);
        let Some(slot) = self.slots.at_mut(id) else { return };
        let aftermath = slot.connection.aftermath(Urgency::Normal, now);
        self.after(id, aftermath, now);
    }

    /// Carries out the work that a call on a connection left.
    #[inline]
    pub(super) fn after(&mut self, id: ConnId, aftermath: Aftermath, now: Instant) {
        self.clock = self.clock.max(now);
        let Some(mut slot) = self.slots.at_mut(id) else { return };
        if slot.member.is_some() {
            self.take_back(id, aftermath.urgency, now);
            let Some(again) = self.slots.at_mut(id) else { return };
            slot = again;
        }
        // Nearly every segment changes the size of a buffer.
        slot.count_memory(aftermath.memory, &mut self.memory);
        let uses_fast_open = slot.asker.is_some() || slot.ticket.is_some();
        let repair_memory_changed = slot.repair_memory != aftermath.repair_memory;
        let is_watched = self.config.observe || self.config.lifecycle || !self.memory_waiters.is_empty();
        if aftermath.asks() || uses_fast_open || repair_memory_changed || is_watched {
            self.post_process(id, &aftermath, now);
            self.schedule(id, aftermath.urgency, now);
        } else if aftermath.urgency != Urgency::Idle || slot.urgency != Urgency::Idle {
            self.ready.raise(id, slot, aftermath.urgency);
        } else {
            self.enter_deadline(id, now);
        }
    }

    #[inline(never)]
    fn post_process(&mut self, id: ConnId, aftermath: &Aftermath, now: Instant) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        if aftermath.has_drained_storage {
            slot.give_storage(&mut self.spares, &mut self.memory);
        }
        let uses_fast_open = slot.asker.is_some() || slot.ticket.is_some() || aftermath.wants_one_time_cookie;
        let repair_memory_changed = slot.repair_memory != aftermath.repair_memory;
        if !self.memory_waiters.is_empty() {
            self.wake_memory_waiters();
        }
        if self.config.observe {
            self.take_observations(id, now);
        }
        if self.config.lifecycle {
            self.report_lifecycle(id);
        }
        if aftermath.events != Events::default() {
            self.pass_events_on(id, aftermath.events);
        }
        if repair_memory_changed {
            self.count_repair_memory(id, now);
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
        if aftermath.asks_to_join {
            self.join_path(id, now);
        }
        if aftermath.is_over {
            self.retire(id, now);
        }
    }

    fn take_observations(&mut self, id: ConnId, now: Instant) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        for observation in slot.connection.counters.take_observations() {
            self.record_observation(id, now, observation);
        }
    }

    fn record_observation(&mut self, id: ConnId, now: Instant, observation: Observation) {
        if self.observations.len() < MAX_REPORTS {
            self.observations.push_back((id, now, observation));
        } else {
            self.stats.observations_dropped += 1;
        }
    }

    /// Records the changes in the life of a connection since the last call.
    fn report_lifecycle(&mut self, id: ConnId) {
        let Some(slot) = self.slots.at(id) else { return };
        let (before, connection) = (slot.reported, &slot.connection);
        let reported = ReportedLifecycle {
            established: connection.handshake.is_complete(),
            end: connection.close_reason().is_some(),
        };
        if reported == before {
            return;
        }
        let is_new = reported.established && !before.established;
        let end = connection.close_reason().filter(|_| !before.end).and_then(|reason| {
            let is_known = connection.handshake.active || connection.fast_open.is_opened_by_syn();
            match reported.established {
                true => Some(Lifecycle::Closed(reason)),
                false => is_known.then_some(Lifecycle::Failed(reason)),
            }
        });
        let changes = is_new.then_some(Lifecycle::Established).into_iter().chain(end);
        let (ends, is_active, stats) = (connection.tuple(), connection.handshake.active, self.stats_of(slot));
        for change in changes {
            if self.lifecycle.len() < MAX_REPORTS {
                let stats = Box::new(stats);
                self.lifecycle.push_back(LifecycleEvent { conn: id, ends, is_active, change, stats });
            } else {
                self.stats.lifecycle_dropped += 1;
            }
        }
        if let Some(slot) = self.slots.at_mut(id) {
            slot.reported = reported;
        }
    }

    fn pass_events_on(&mut self, id: ConnId, events: Events) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        if slot.phase != Ownership::Owned {
            slot.deferred.insert(events);
        }
        match slot.phase {
            Ownership::Owned => {
                let reason = slot.connection.close_reason();
                if events.contains(Events::CONNECTED) {
                    self.events.push(Event::Connected(id));
                }
                self.push_events(id, events);
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
            // The program learns of these events when it accepts the connection.
            Ownership::HalfOpen(_) | Ownership::Queued(_) | Ownership::Released => {}
        }
    }

    /// Queues events for the owner of a connection: data to read, or space to write.
    pub(super) fn push_events(&mut self, id: ConnId, events: Events) {
        if events.contains(Events::READABLE) {
            self.events.push(Event::Readable(id));
        }
        if events.contains(Events::WRITABLE) {
            self.events.push(Event::Writable(id));
        }
    }
}
