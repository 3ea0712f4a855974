//! What the application has still to hear, each thing once.
//!
//! A connection that becomes readable a thousand times before anybody looks is told of once: the queue
//! holds at most one event of a kind per connection and one per listener, which bounds it.

use alloc::collections::VecDeque;

use hashbrown::HashSet;

use super::conn_id::{ConnId, ListenerId};
use super::demux::KeyedHash;
use crate::error::CloseReason;
use crate::event::Event;

/// An event without its details: what must not be in the queue twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Kind {
    Connected(ConnId),
    Incoming(ListenerId),
    Readable(ConnId),
    Writable(ConnId),
    Closed(ConnId),
}

/// The queue of events.
#[derive(Debug)]
pub(crate) struct EventQueue {
    order: VecDeque<(Kind, CloseReason)>,
    queued: HashSet<Kind, KeyedHash>,
}

impl EventQueue {
    /// An empty queue.
    pub(crate) fn new(hash: KeyedHash) -> Self {
        EventQueue { order: VecDeque::new(), queued: HashSet::with_hasher(hash) }
    }

    /// Adds an event unless it is waiting already.
    pub(crate) fn push(&mut self, event: Event) {
        let (kind, reason) = match event {
            Event::Connected(id) => (Kind::Connected(id), CloseReason::Finished),
            Event::Incoming(listener) => (Kind::Incoming(listener), CloseReason::Finished),
            Event::Readable(id) => (Kind::Readable(id), CloseReason::Finished),
            Event::Writable(id) => (Kind::Writable(id), CloseReason::Finished),
            Event::Closed(id, reason) => (Kind::Closed(id), reason),
        };
        if self.queued.insert(kind) {
            self.order.push_back((kind, reason));
        }
    }

    /// Takes the oldest event.
    pub(crate) fn pop(&mut self) -> Option<Event> {
        let (kind, reason) = self.order.pop_front()?;
        self.queued.remove(&kind);
        Some(match kind {
            Kind::Connected(id) => Event::Connected(id),
            Kind::Incoming(listener) => Event::Incoming(listener),
            Kind::Readable(id) => Event::Readable(id),
            Kind::Writable(id) => Event::Writable(id),
            Kind::Closed(id) => Event::Closed(id, reason),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_waits_is_not_queued_again() {
        let id = ConnId { index: 1, generation: 0 };
        let mut events = EventQueue::new(KeyedHash::new(1));
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
