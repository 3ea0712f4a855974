//! The next deadline of each slot, exact and in bounded memory.
//!
//! Nearly every acknowledgement moves a retransmission timer, so a heap with lazy deletion would fill with
//! entries that are no longer needed. This table is a four-ary heap that knows the position of each slot. A
//! changed deadline costs a few swaps, and memory is one entry per slot. Equal deadlines are served in the
//! order of their slots, so that two runs of a simulation are equal.

use alloc::vec::Vec;

use crate::time::Instant;

const ARITY: usize = 4;
const NOWHERE: u32 = u32::MAX;

/// The deadlines of slots `0..n`.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    heap: Vec<(Instant, u32)>,
    /// Position of each slot in `heap`.
    positions: Vec<u32>,
}

impl Deadlines {
    /// Removes all deadlines, and keeps the storage.
    pub(crate) fn clear(&mut self) {
        self.heap.clear();
        self.positions.clear();
    }

    /// Sets, moves or (`None`) removes the deadline of `slot`.
    pub(crate) fn set(&mut self, slot: u32, at: Option<Instant>) {
        match (self.position_of(slot), at) {
            (None, None) => {}
            (None, Some(at)) => self.add(slot, at),
            (Some(position), None) => self.remove(position),
            (Some(position), Some(at)) => {
                if let Some(entry) = self.heap.get_mut(position)
                    && entry.0 != at
                {
                    entry.0 = at;
                    self.sift(position);
                }
            }
        }
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.first().map(|&(at, _)| at)
    }

    /// Removes the slot with the earliest deadline if that is not after `now`.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<u32> {
        let &(at, slot) = self.heap.first()?;
        if at > now {
            return None;
        }
        self.remove(0);
        Some(slot)
    }

    fn position_of(&self, slot: u32) -> Option<usize> {
        let position = *self.positions.get(slot as usize)?;
        (position != NOWHERE).then_some(position as usize)
    }

    fn add(&mut self, slot: u32, at: Instant) {
        if self.positions.len() <= slot as usize {
            self.positions.resize(slot as usize + 1, NOWHERE);
        }
        self.heap.push((at, slot));
        let position = self.heap.len() - 1;
        self.store_position(position);
        self.sift(position);
    }

    fn remove(&mut self, position: usize) {
        let (_, slot) = self.heap.swap_remove(position);
        if let Some(entry) = self.positions.get_mut(slot as usize) {
            *entry = NOWHERE;
        }
        if position < self.heap.len() {
            self.store_position(position);
            self.sift(position);
        }
    }

    /// Moves the entry at `position` to the position of its deadline.
    fn sift(&mut self, mut position: usize) {
        while position > 0 {
            let parent = (position - 1) / ARITY;
            if self.heap[parent] <= self.heap[position] {
                break;
            }
            self.exchange(parent, position);
            position = parent;
        }
        loop {
            let first = position * ARITY + 1;
            let children = first..(first + ARITY).min(self.heap.len());
            let Some(min) = children.min_by_key(|&child| self.heap[child]) else { return };
            if self.heap[position] <= self.heap[min] {
                return;
            }
            self.exchange(position, min);
            position = min;
        }
    }

    fn exchange(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.store_position(a);
        self.store_position(b);
    }

    fn store_position(&mut self, position: usize) {
        let (_, slot) = self.heap[position];
        self.positions[slot as usize] = position as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    fn at(us: u64) -> Instant {
        Instant::from_micros(us)
    }

    #[test]
    fn slots_are_served_in_the_order_of_their_deadlines() {
        let mut deadlines = Deadlines::default();
        for (slot, us) in [(3, 30), (1, 10), (2, 20)] {
            deadlines.set(slot, Some(at(us)));
        }
        assert_eq!(deadlines.next(), Some(at(10)));
        assert_eq!(deadlines.pop_due(at(9)), None);
        assert_eq!(deadlines.pop_due(at(25)), Some(1));
        assert_eq!(deadlines.pop_due(at(25)), Some(2));
        assert_eq!(deadlines.pop_due(at(25)), None);
    }

    #[test]
    fn a_moved_deadline_leaves_nothing_behind() {
        let mut deadlines = Deadlines::default();
        for us in 1..1000 {
            deadlines.set(0, Some(at(us)));
        }
        assert_eq!(deadlines.heap.len(), 1);
        deadlines.set(0, None);
        assert_eq!(deadlines.next(), None);
    }

    proptest! {
        #[test]
        fn deadlines_agree_with_a_sorted_map(steps in prop::collection::vec((0u32..20, prop::option::of(0u64..50)), 0..200)) {
            let mut deadlines = Deadlines::default();
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            for (slot, us) in steps {
                deadlines.set(slot, us.map(at));
                match us {
                    Some(us) => model.insert(slot, us),
                    None => model.remove(&slot),
                };
                let min = model.iter().map(|(&slot, &us)| (us, slot)).min();
                prop_assert_eq!(deadlines.next(), min.map(|(us, _)| at(us)));
            }
            let mut expected: Vec<(u64, u32)> = model.into_iter().map(|(slot, us)| (us, slot)).collect();
            expected.sort_unstable();
            for (us, slot) in expected {
                prop_assert_eq!(deadlines.pop_due(at(us)), Some(slot));
            }
            prop_assert_eq!(deadlines.next(), None);
        }
    }
}
