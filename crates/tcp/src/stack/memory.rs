//! The memory of all buffers together: what arrives may use all of it, what is written three quarters.

use super::Stack;
use crate::conn_id::ConnId;
use crate::event::Event;

impl Stack {
    /// A write found the memory used up: the writer hears when there is some again.
    pub(super) fn wait_for_memory(&mut self, id: ConnId) {
        if let Some(slot) = self.slots.at_mut(id)
            && !slot.waits_for_memory
        {
            slot.waits_for_memory = true;
            self.memory_waiters.push(id);
        }
    }

    /// Tells the writers that waited for memory if there is some.
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

    /// Bytes that buffers may still take.
    pub(super) fn memory_left(&self) -> usize {
        self.config.max_buffer_bytes.saturating_sub(self.memory)
    }

    /// Bytes that writes may still take: a quarter of the memory is left to what arrives, for two stacks
    /// that are full of what they send each other could neither deliver any of it.
    pub(super) fn memory_left_to_writes(&self) -> usize {
        let most = self.config.max_buffer_bytes;
        (most - most / 4).saturating_sub(self.memory)
    }
}
