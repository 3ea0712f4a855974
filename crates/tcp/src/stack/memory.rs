//! Bounds on the memory of all connections together, and the release of memory that nothing needs.
//!
//! - Buffers: received data may use all of the memory, written data three quarters.
//! - Bytes that are kept for repairs: above nine tenths of their limit, the connections that have been idle
//!   longest free theirs. At the limit no more are kept, and no new connection agrees on Corrective.
//! - Idle connections: a connection that has been bare for [`RELEASE_AFTER`] frees its empty lists and the
//!   parts that have their initial value again (`Connection::release_memory`). A bare connection has nothing
//!   in flight, to send or to read, and no mechanism that keeps bytes (`Connection::is_bare`). The next
//!   segment or call allocates the memory that it needs.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::events::EventQueue;
use super::slot::Slot;
use super::spares::Spares;
use crate::config::StackConfig;
use crate::conn_id::{ConnId, Slots};
use crate::connection::Urgency;
use crate::event::Event;
use crate::mechanism::corrective::history::{FecMemory, MemoryPressure};
use crate::time::{Duration, Instant};

/// Minimum time between two searches through all connections for idle ones.
const SWEEP_INTERVAL: Duration = Duration::from_millis(10);

/// Time for which a connection must have been idle, so that active ones do not free and allocate between two
/// segments.
const RELEASE_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Memory {
    /// Maximum of `used` ([`StackConfig::max_buffer_bytes`]).
    max: usize,
    /// Bytes held by all buffers.
    used: usize,
    /// Storage of emptied buffers.
    pub(super) spares: Spares,
    /// Bytes kept for repairs, and the time of the last search for connections that are idle.
    repairs: FecMemory,
    swept: Option<Instant>,
    /// Writers that wait for memory.
    waiters: Vec<ConnId>,
    /// Idle connections, in the order in which they are examined again.
    idle: VecDeque<(Instant, ConnId)>,
}

impl Memory {
    pub(super) fn new(config: &StackConfig) -> Self {
        Memory {
            max: config.max_buffer_bytes,
            used: 0,
            spares: Spares::new(config.max_buffer_bytes),
            repairs: FecMemory::new(config.fec_mem_total),
            swept: None,
            waiters: Vec::new(),
            idle: VecDeque::new(),
        }
    }

    /// Resets to the initial state, and keeps the storage.
    pub(super) fn renew(&mut self, config: &StackConfig) {
        (self.max, self.used, self.swept) = (config.max_buffer_bytes, 0, None);
        self.spares.renew(config.max_buffer_bytes);
        self.repairs = FecMemory::new(config.fec_mem_total);
        self.waiters.clear();
        self.idle.clear();
    }

    /// Frees the memory of a connection whose slot becomes free.
    pub(super) fn remove(&mut self, slot: Option<&Slot>) {
        let (bytes, repair_bytes) = slot.map_or((0, 0), |slot| (slot.memory, slot.repair_memory));
        self.used = self.used.saturating_sub(bytes);
        self.repairs.account(repair_bytes, 0);
    }
}

/// Buffers.
impl Memory {
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Returns the bytes that buffers may still use.
    pub(super) fn left(&self) -> usize {
        self.max.saturating_sub(self.used)
    }

    /// Returns the bytes that writes may still use. A quarter of the memory is left to received data.
    /// Otherwise two stacks with memory full of data for each other could deliver none of it.
    pub(super) fn left_to_writes(&self) -> usize {
        (self.max - self.max / 4).saturating_sub(self.used)
    }

    /// Counts `bytes` in the buffers of a connection.
    #[inline]
    pub(super) fn count(&mut self, slot: &mut Slot, bytes: usize) {
        if bytes != slot.memory {
            self.used = self.used.saturating_sub(slot.memory).saturating_add(bytes);
            slot.memory = bytes;
        }
    }

    /// Keeps storage that is empty, because its data was read or acknowledged, for other connections.
    pub(super) fn take_storage(&mut self, slot: &mut Slot) {
        let connection = &mut *slot.connection;
        let received = connection.rx.queue.take_storage();
        let sent = connection.tx.queue.take_storage();
        let bytes = connection.memory();
        self.spares.put(received);
        self.spares.put_sent(sent);
        self.count(slot, bytes);
    }

    /// Registers a writer that found no free memory, to be notified when there is some.
    pub(super) fn wait(&mut self, id: ConnId, slot: &mut Slot) {
        if !slot.waits_for_memory {
            slot.waits_for_memory = true;
            self.waiters.push(id);
        }
    }

    pub(super) fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Notifies the writers that waited for memory if there is some.
    pub(super) fn wake_waiters(&mut self, slots: &mut Slots<Slot>, events: &mut EventQueue) {
        if self.left_to_writes() == 0 {
            return;
        }
        for id in core::mem::take(&mut self.waiters) {
            if let Some(slot) = slots.at_mut(id) {
                slot.waits_for_memory = false;
                events.push(Event::Writable(id));
            }
        }
    }
}

/// Bytes that are kept for repairs.
impl Memory {
    pub(super) fn used_for_repairs(&self) -> usize {
        self.repairs.used()
    }

    /// True if a new connection may keep bytes for repairs.
    pub(super) fn accepts_parity(&self) -> bool {
        self.repairs.pressure() != MemoryPressure::Full
    }

    /// Counts the bytes that a changed connection keeps, and frees some if there are too many.
    pub(super) fn count_repairs(&mut self, id: ConnId, slots: &mut Slots<Slot>, now: Instant) {
        let Some(slot) = slots.at_mut(id) else { return };
        let before = slot.repair_memory;
        self.recount_repairs(slot);
        if (before, slot.repair_memory) == (0, 0) {
            return;
        }
        match self.repairs.pressure() {
            MemoryPressure::None => {}
            MemoryPressure::High => self.sweep_repairs(slots, now),
            MemoryPressure::Full => self.forget_history(slot),
        }
    }

    fn recount_repairs(&mut self, slot: &mut Slot) {
        let bytes = slot.connection.gentle.repair_memory(&slot.connection.rx);
        self.repairs.account(core::mem::replace(&mut slot.repair_memory, bytes), bytes);
    }

    fn forget_history(&mut self, slot: &mut Slot) {
        slot.connection.gentle.forget_history(&mut slot.connection.rx);
        self.recount_repairs(slot);
    }

    fn sweep_repairs(&mut self, slots: &mut Slots<Slot>, now: Instant) {
        if self.swept.is_some_and(|last| now.saturating_since(last) < SWEEP_INTERVAL) {
            return;
        }
        self.swept = Some(now);
        let mut idle: Vec<(Option<Instant>, ConnId)> = slots
            .iter()
            .filter(|(_, slot)| slot.repair_memory > 0)
            .map(|(id, slot): (ConnId, _)| (slot.connection.gentle.last_repair_arrival(), id))
            .collect();
        idle.sort_unstable_by_key(|(last, id)| (*last, id.index));
        for (_, id) in idle {
            if self.repairs.pressure() == MemoryPressure::None {
                return;
            }
            if let Some(slot) = slots.at_mut(id) {
                self.forget_history(slot);
            }
        }
    }
}

/// Idle connections.
impl Memory {
    /// Records that a connection has nothing to send. An idle connection is examined [`RELEASE_AFTER`] later;
    /// until then its slot only records its last activity.
    pub(super) fn on_nothing_to_send(&mut self, id: ConnId, slot: &mut Slot, now: Instant) {
        slot.touched = now;
        if !slot.is_idle && slot.connection.is_bare() {
            slot.is_idle = true;
            self.idle.push_back((now + RELEASE_AFTER, id));
        }
    }

    /// Returns the time of the next examination.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.idle.front().map(|&(at, _)| at)
    }

    /// Frees the memory of connections that have been idle for long enough.
    pub(super) fn on_timeout(&mut self, slots: &mut Slots<Slot>, events: &mut EventQueue, now: Instant) {
        while let Some(&(_, id)) = self.idle.front().filter(|(at, _)| *at <= now) {
            self.idle.pop_front();
            let Some(slot) = slots.at_mut(id) else { continue };
            let due = slot.touched + RELEASE_AFTER;
            let is_idle = slot.connection.is_bare();
            slot.is_idle = due > now && is_idle;
            if slot.is_idle {
                self.idle.push_back((due, id));
            } else if is_idle && slot.urgency == Urgency::Idle {
                slot.connection.release_memory();
                let bytes = slot.connection.memory();
                self.count(slot, bytes);
                self.wake_waiters(slots, events);
            }
        }
    }
}
