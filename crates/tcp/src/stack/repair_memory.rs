//! Bounds the repair memory of all connections together: above nine tenths of the bound the connections on
//! which nothing has arrived for longest give theirs up, at the bound nobody keeps more and no new connection
//! agrees on Corrective.

use alloc::vec::Vec;

use super::Stack;
use crate::conn_id::ConnId;
use crate::mechanism::corrective::history::Pressure;
use crate::time::{Duration, Instant};

/// Looking through all connections for idle ones takes time: it is done this often at most.
const SWEEP_INTERVAL: Duration = Duration::from_millis(10);

impl Stack {
    /// A connection was touched: counts what it keeps for repairs, and frees some if that is too much.
    pub(super) fn count_repair_memory(&mut self, id: ConnId, now: Instant) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        let before = core::mem::replace(&mut slot.repair_memory, slot.connection.repair_memory());
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

    /// A connection is gone.
    pub(super) fn release_repair_memory(&mut self, bytes: usize) {
        self.repair_memory.account(bytes, 0);
    }

    fn forget_history(&mut self, id: ConnId) {
        let Some(slot) = self.slots.at_mut(id) else { return };
        slot.connection.forget_history();
        let before = core::mem::replace(&mut slot.repair_memory, slot.connection.repair_memory());
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
            .map(|(id, slot): (ConnId, _)| (slot.connection.last_repair_arrival(), id))
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
