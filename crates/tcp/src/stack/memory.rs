//! Bounds on the memory of all connections together, and the release of memory that nothing needs.
//!
//! Buffers: received data may use all of the memory, written data three quarters. Bytes that are kept for
//! repairs: above nine tenths of their limit, the connections that have been idle longest free theirs; at the
//! limit no more are kept and no new connection agrees on Corrective. Idle connections: a connection frees
//! its empty lists and the parts that have their initial value again (`Connection::release_memory`) if it has
//! had nothing in flight, to send or to read for [`RELEASE_AFTER`], and no mechanism that keeps bytes
//! (`Connection::is_bare`). The next segment or call allocates the memory that it needs.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::Stack;
use crate::conn_id::ConnId;
use crate::connection::Urgency;
use crate::event::Event;
use crate::mechanism::corrective::history::Pressure;
use crate::time::{Duration, Instant};

/// Buffers.
impl Stack {
    /// Registers a writer that found no free memory, to be notified when there is some.
    pub(super) fn wait_for_memory(&mut self, id: ConnId) {
        if let Some(slot) = self.slots.at_mut(id)
            && !slot.waits_for_memory
        {
            slot.waits_for_memory = true;
            self.memory_waiters.push(id);
        }
    }

    /// Notifies the writers that waited for memory if there is some.
    pub(super) fn wake_memory_waiters(&mut self) {
        if self.memory_left_to_writes() == 0 {
            return;
        }
        for id in core::mem::take(&mut self.memory_waiters) {
            if let Some(slot) = self.slots.at_mut(id) {
                slot.waits_for_memory = false;
                self.events.push(Event::Writable(id));
            }
        }
    }

    /// Returns the bytes that buffers may still use.
    pub(super) fn memory_left(&self) -> usize {
        self.config.max_buffer_bytes.saturating_sub(self.memory)
    }

    /// Returns the bytes that writes may still use. A quarter of the memory is left to received data: two
    /// stacks whose memory is full of data for each other could otherwise deliver none of it.
    pub(super) fn memory_left_to_writes(&self) -> usize {
        let most = self.config.max_buffer_bytes;
        (most - most / 4).saturating_sub(self.memory)
    }
}

/// Minimum time between two searches through all connections for idle ones.
const SWEEP_INTERVAL: Duration = Duration::from_millis(10);

/// Bytes that are kept for repairs.
impl Stack {
    /// Counts the bytes that a changed connection keeps for repairs, and frees some if there are too many.
    pub(super) fn count_repair_memory(&mut self, id: ConnId, now: Instant) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        let before = core::mem::replace(
            &mut slot.repair_memory,
            slot.connection.gentle.repair_memory(&slot.connection.rx),
        );
        let after = slot.repair_memory;
        if (before, after) == (0, 0) {
            return;
        }
        self.repair_memory.account(before, after);
        match self.repair_memory.pressure() {
            Pressure::None => {}
            Pressure::High => self.sweep_repair_memory(now),
            Pressure::Full => self.forget_history(id),
        }
    }

    fn forget_history(&mut self, id: ConnId) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        slot.connection.gentle.forget_history(&mut slot.connection.rx);
        let before = core::mem::replace(
            &mut slot.repair_memory,
            slot.connection.gentle.repair_memory(&slot.connection.rx),
        );
        let after = slot.repair_memory;
        self.repair_memory.account(before, after);
    }

    fn sweep_repair_memory(&mut self, now: Instant) {
        let recent = |last: Instant| now.saturating_since(last) < SWEEP_INTERVAL;
        if self.repair_memory_swept.is_some_and(recent) {
            return;
        }
        self.repair_memory_swept = Some(now);
        let mut idle: Vec<(Option<Instant>, ConnId)> = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.repair_memory > 0)
            .map(|(id, slot): (ConnId, _)| (slot.connection.gentle.last_repair_arrival(), id))
            .collect();
        idle.sort_unstable_by_key(|(last, id)| (*last, id.index));
        for (_, id) in idle {
            if self.repair_memory.pressure() == Pressure::None {
                return;
            }
            self.forget_history(id);
        }
    }
}

/// Time for which a connection must have been idle, so that active ones do not free and allocate between two
/// segments.
const RELEASE_AFTER: Duration = Duration::from_secs(1);

/// Idle connections, in the order in which they are examined again.
#[derive(Debug, Default)]
pub(crate) struct Idle {
    order: VecDeque<(Instant, ConnId)>,
}

impl Idle {
    /// Empties the list and keeps its allocation.
    pub(super) fn clear(&mut self) {
        self.order.clear();
    }

    /// Returns the time of the next examination.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.order.front().map(|&(at, _)| at)
    }
}

/// Idle connections.
impl Stack {
    /// Records that a connection is idle. It is examined when it may have been idle for long enough; until
    /// then its slot only records its last activity.
    pub(super) fn queue_idle(&mut self, id: ConnId, now: Instant) {
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
                let bytes = slot.connection.memory();
                slot.count_memory(bytes, &mut self.memory);
                self.wake_memory_waiters();
            }
        }
    }
}
