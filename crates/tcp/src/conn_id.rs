//! Handles of connections and listeners: slab keys with a generation.
//!
//! A slot of the slab is used again after its connection has ended. The generation distinguishes a handle of
//! the old connection from one of the new, so that a late call cannot affect the new connection. Each stack
//! begins with a generation of its own, so that a handle of another stack is rejected, too.

use alloc::vec::Vec;

use crate::four_tuple::KeyedHash;

/// Handle of a connection of one stack. It becomes invalid for ever when the connection is freed. A stack
/// with another seed rejects it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Handle of a listener of one stack. It becomes invalid for ever when the listener is closed. A stack with
/// another seed rejects it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenerId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl ConnId {
    /// Returns the index of the connection in the stack. It is below the highest number of simultaneous
    /// connections. The next connection in the slot has the same index, but another handle.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

impl core::fmt::Display for ConnId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "c{}.{}", self.index, self.generation)
    }
}

impl core::fmt::Display for ListenerId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "l{}.{}", self.index, self.generation)
    }
}

/// A handle of a [`Slots`].
pub(crate) trait SlotKey: Copy {
    /// Returns the handle of slot `index` in `generation`.
    fn new(index: u32, generation: u32) -> Self;
    fn index(self) -> u32;
    fn generation(self) -> u32;
}

impl SlotKey for ConnId {
    fn new(index: u32, generation: u32) -> Self {
        ConnId { index, generation }
    }
    fn index(self) -> u32 {
        self.index
    }
    fn generation(self) -> u32 {
        self.generation
    }
}

impl SlotKey for ListenerId {
    fn new(index: u32, generation: u32) -> Self {
        ListenerId { index, generation }
    }
    fn index(self) -> u32 {
        self.index
    }
    fn generation(self) -> u32 {
        self.generation
    }
}

#[derive(Debug)]
struct SlotEntry<T> {
    generation: u32,
    tenant: Option<T>,
}

/// Returns the first generation of the slots of a stack. It is in logs, so it must not reveal the seed.
pub(crate) fn first_generation(hash: &KeyedHash) -> u32 {
    hash.of_v4((0, 0)) as u32
}

/// A slab whose keys carry a generation.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    slots: Vec<SlotEntry<T>>,
    free: Vec<u32>,
    /// The first generation of every slot.
    first: u32,
}

impl<T> Slots<T> {
    /// Returns an empty slab whose slots begin with generation `first`.
    pub(crate) fn new(first: u32) -> Self {
        Slots { slots: Vec::new(), free: Vec::new(), first }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Resets to the state after [`Slots::new`], and keeps the storage.
    pub(crate) fn renew(&mut self, first: u32) {
        self.slots.clear();
        self.free.clear();
        self.first = first;
    }

    /// Inserts a value and returns its key. The caller bounds the number of values below 2^32.
    pub(crate) fn insert<K: SlotKey>(&mut self, tenant: T) -> K {
        if let Some(index) = self.free.pop()
            && let Some(slot) = self.slots.get_mut(index as usize)
        {
            slot.tenant = Some(tenant);
            return K::new(index, slot.generation);
        }
        let index = self.slots.len() as u32;
        self.slots.push(SlotEntry { generation: self.first, tenant: Some(tenant) });
        K::new(index, self.first)
    }

    /// Removes the value. Its key is invalid from now on.
    pub(crate) fn remove<K: SlotKey>(&mut self, key: K) -> Option<T> {
        let slot = self.slots.get_mut(key.index() as usize)?;
        if slot.generation != key.generation() {
            return None;
        }
        let tenant = slot.tenant.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index());
        Some(tenant)
    }

    pub(crate) fn at<K: SlotKey>(&self, key: K) -> Option<&T> {
        let slot = self.slots.get(key.index() as usize)?;
        if slot.generation == key.generation() { slot.tenant.as_ref() } else { None }
    }

    pub(crate) fn at_mut<K: SlotKey>(&mut self, key: K) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index() as usize)?;
        if slot.generation == key.generation() { slot.tenant.as_mut() } else { None }
    }

    pub(crate) fn at_index(&self, index: u32) -> Option<&T> {
        self.slots.get(index as usize)?.tenant.as_ref()
    }

    pub(crate) fn key_at<K: SlotKey>(&self, index: u32) -> Option<K> {
        let slot = self.slots.get(index as usize)?;
        slot.tenant.as_ref().map(|_| K::new(index, slot.generation))
    }

    /// Returns all values with their keys, in slot order.
    pub(crate) fn iter<K: SlotKey>(&self) -> impl Iterator<Item = (K, &T)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(index, slot)| Some((K::new(index as u32, slot.generation), slot.tenant.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_is_invalid_after_its_value_is_removed() {
        let mut slots = Slots::new(1);
        let first: ConnId = slots.insert("first");
        assert_eq!(slots.at(first), Some(&"first"));
        assert_eq!(slots.remove(first), Some("first"));
        let second: ConnId = slots.insert("second");
        assert_eq!(first.index, second.index, "the slot is used again");
        assert_eq!(slots.at(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.at(second), Some(&"second"));
        assert_eq!(slots.len(), 1);
    }

    #[test]
    fn handle_with_another_generation_is_refused() {
        let mut slots: Slots<u8> = Slots::new(1);
        assert_eq!(slots.at(ConnId { index: 7, generation: 0 }), None);
        assert_eq!(slots.remove(ConnId { index: 7, generation: 0 }), None);
        assert_eq!(slots.key_at::<ConnId>(0), None);
    }

    #[test]
    fn handle_of_another_stack_is_invalid() {
        let (mut slots, mut others) = (Slots::new(1), Slots::new(2));
        let (_, key): (ConnId, ConnId) = (slots.insert(1), others.insert(2));
        assert_eq!((slots.at(key), others.at(key)), (None, Some(&2)));
        slots.renew(2);
        assert_eq!(slots.insert::<ConnId>(3), key);
    }
}
