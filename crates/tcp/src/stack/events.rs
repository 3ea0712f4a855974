//! Events that the application has not read yet, each once, and reports that an observer has not read yet.
//!
//! If a connection becomes readable a thousand times before the application reads its events, there is one
//! event. The queue holds at most one event of each kind per connection and one per listener, which bounds
//! it.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::controllers::Controllers;
use super::slot::{ReportedLifecycle, Slot};
use super::stats::StackStats;
use crate::conn_id::{ConnId, ListenerId};
use crate::connection::Events;
use crate::event::{Event, Lifecycle, LifecycleEvent, Observation};
use crate::time::Instant;

/// Kinds of events, one bit each.
const CONNECTED: u8 = 1;
const READABLE: u8 = 2;
const WRITABLE: u8 = 4;
const CLOSED: u8 = 8;
const INCOMING: u8 = 1;

#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    order: VecDeque<Event>,
    connections: PendingEvents,
    listeners: PendingEvents,
}

/// The kinds of waiting events of each slot, with the slot's generation.
#[derive(Debug, Default)]
struct PendingEvents(Vec<(u32, u8)>);

impl PendingEvents {
    /// Records an event; returns true unless it was already recorded. A new generation has none.
    fn insert(&mut self, index: u32, generation: u32, kind: u8) -> bool {
        let index = index as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, (0, 0));
        }
        let (tenant, kinds) = &mut self.0[index];
        if *tenant != generation {
            (*tenant, *kinds) = (generation, 0);
        }
        let is_new = *kinds & kind == 0;
        *kinds |= kind;
        is_new
    }

    fn remove(&mut self, index: u32, generation: u32, kind: u8) {
        if let Some((_, kinds)) = self.0.get_mut(index as usize).filter(|(tenant, _)| *tenant == generation) {
            *kinds &= !kind;
        }
    }
}

enum EventKey {
    Connection(ConnId, u8),
    Listener(ListenerId, u8),
}

fn key_of(event: &Event) -> EventKey {
    match *event {
        Event::Connected(id) => EventKey::Connection(id, CONNECTED),
        Event::Readable(id) => EventKey::Connection(id, READABLE),
        Event::Writable(id) => EventKey::Connection(id, WRITABLE),
        Event::Closed(id, _) => EventKey::Connection(id, CLOSED),
        Event::Incoming(listener) => EventKey::Listener(listener, INCOMING),
    }
}

impl EventQueue {
    /// Resets the queue to its initial state, and keeps its storage.
    pub(crate) fn clear(&mut self) {
        self.order.clear();
        self.connections.0.clear();
        self.listeners.0.clear();
    }

    /// Adds an event unless one of its kind is already queued.
    pub(crate) fn push(&mut self, event: Event) {
        let is_new = match key_of(&event) {
            EventKey::Connection(id, kind) => self.connections.insert(id.index, id.generation, kind),
            EventKey::Listener(id, kind) => self.listeners.insert(id.index, id.generation, kind),
        };
        if is_new {
            self.order.push_back(event);
        }
    }

    /// Adds events for the owner of a connection: data to read, or space to write.
    pub(super) fn push_all(&mut self, id: ConnId, events: Events) {
        if events.contains(Events::READABLE) {
            self.push(Event::Readable(id));
        }
        if events.contains(Events::WRITABLE) {
            self.push(Event::Writable(id));
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        let event = self.order.pop_front()?;
        match key_of(&event) {
            EventKey::Connection(id, kind) => self.connections.remove(id.index, id.generation, kind),
            EventKey::Listener(id, kind) => self.listeners.remove(id.index, id.generation, kind),
        }
        Some(event)
    }
}

/// Maximum number of observations, and of lifecycle changes, that wait for the observer.
const MAX_REPORTS: usize = 65_536;

#[derive(Debug, Default)]
pub(super) struct Reports {
    pub(super) observations: VecDeque<(ConnId, Instant, Observation)>,
    pub(super) lifecycle: VecDeque<LifecycleEvent>,
}

impl Reports {
    /// Takes the observations of a connection.
    pub(super) fn observe(&mut self, id: ConnId, slot: &mut Slot, counters: &mut StackStats, now: Instant) {
        for observation in slot.connection.counters.take_observations() {
            if self.observations.len() < MAX_REPORTS {
                self.observations.push_back((id, now, observation));
            } else {
                counters.observations_dropped += 1;
            }
        }
    }

    /// Records the changes in the life of a connection since the last call.
    pub(super) fn report_lifecycle(
        &mut self,
        id: ConnId,
        slot: &mut Slot,
        controllers: &Controllers,
        counters: &mut StackStats,
    ) {
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
        let (ends, is_active, stats) =
            (connection.tuple(), connection.handshake.active, controllers.stats_of(slot));
        for change in changes {
            if self.lifecycle.len() < MAX_REPORTS {
                let stats = Box::new(stats);
                self.lifecycle.push_back(LifecycleEvent { conn: id, ends, is_active, change, stats });
            } else {
                counters.lifecycle_dropped += 1;
            }
        }
        slot.reported = reported;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::CloseReason;

    #[test]
    fn an_event_that_waits_is_not_queued_again() {
        let id = ConnId { index: 1, generation: 0 };
        let mut events = EventQueue::default();
        for _ in 0..1000 {
            events.push(Event::Readable(id));
        }
        events.push(Event::Closed(id, CloseReason::Reset));
        assert_eq!(events.pop(), Some(Event::Readable(id)));
        events.push(Event::Readable(id));
        assert_eq!(events.pop(), Some(Event::Closed(id, CloseReason::Reset)));
        assert_eq!(events.pop(), Some(Event::Readable(id)), "told again after it was heard");
        assert_eq!(events.pop(), None);
    }
}
