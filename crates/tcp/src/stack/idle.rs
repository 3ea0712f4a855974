//! Idle connections give back the memory that only traffic needs.
//!
//! A connection that has had nothing in flight, nothing to send and nothing to read for [`RELEASE_AFTER`],
//! and has no mechanism that keeps bytes (`Connection::is_bare`), frees its empty lists and the parts that
//! have their initial value again (`Connection::release_memory`). It stays what it is: the next segment or
//! call takes the memory that it needs.

use alloc::collections::VecDeque;

use super::Stack;
use crate::conn_id::ConnId;
use crate::connection::Urgency;
use crate::time::{Duration, Instant};

/// How long a connection must have been idle: those in use do not free and allocate between two segments.
const RELEASE_AFTER: Duration = Duration::from_secs(1);

/// Idle connections, in the order in which they are examined again.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    order: VecDeque<(Instant, ConnId)>,
}

impl Idle {
    /// As a new one is, in the same storage.
    pub(super) fn clear(&mut self) {
        self.order.clear();
    }

    /// When the next one is examined.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.order.front().map(|&(at, _)| at)
    }
}

impl Stack {
    /// A connection is idle. It is examined when it may have been so for long enough; until then its slot
    /// only records when it was touched last.
    pub(super) fn note_idle(&mut self, id: ConnId, now: Instant) {
        self.idle.order.push_back((now + RELEASE_AFTER, id));
    }

    /// Frees the memory of connections that have been idle for long enough.
    pub(super) fn release_idle(&mut self, now: Instant) {
        while let Some(&(_, id)) = self.idle.order.front().filter(|(at, _)| *at <= now) {
            self.idle.order.pop_front();
            let Some(slot) = self.slots.at_mut(id) else { continue };
            let due = slot.touched + RELEASE_AFTER;
            let is_idle = slot.connection.is_bare();
            slot.is_idle = due > now && is_idle;
            if slot.is_idle {
                self.idle.order.push_back((due, id));
            } else if is_idle && slot.urgency == Urgency::Idle {
                slot.connection.release_memory();
                let held = slot.connection.memory();
                slot.count_memory(held, &mut self.memory);
                self.wake_memory_waiters();
            }
        }
    }
}
