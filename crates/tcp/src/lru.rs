//! A table of bounded size that evicts the least recently used entry.
//!
//! Entries are in one vector and linked in order of use. A hash table of their indices finds them. The latest
//! entry is checked first, without the hash table. Every entry has a generation. It shows the holder of an
//! [`EntryId`] that the entry was evicted and its index reused.

use alloc::vec::Vec;
use core::hash::{BuildHasher, Hash};

use hashbrown::HashTable;

const NOWHERE: u32 = u32::MAX;

/// Index and generation of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntryId {
    index: u32,
    generation: u64,
}

#[derive(Debug)]
struct LruEntry<K, V> {
    key: K,
    value: V,
    generation: u64,
    older: u32,
    newer: u32,
}

#[derive(Debug)]
pub(crate) struct Lru<K, V, S> {
    hash: S,
    /// Indices of all entries, by the hash of their keys.
    index: HashTable<u32>,
    entries: Vec<Option<LruEntry<K, V>>>,
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
    capacity: usize,
    generations: u64,
}

impl<K: Copy + Eq + Hash, V, S: BuildHasher> Lru<K, V, S> {
    /// Returns an empty table for `capacity` entries; with 0 it stores nothing.
    pub(crate) fn new(capacity: usize, hash: S) -> Self {
        Lru {
            hash,
            index: HashTable::new(),
            entries: Vec::new(),
            free: Vec::new(),
            oldest: NOWHERE,
            newest: NOWHERE,
            capacity: capacity.min(NOWHERE as usize),
            generations: 0,
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// Resets to the state after [`Lru::new`], and keeps the storage.
    pub(crate) fn renew(&mut self, max: usize, by: S) {
        let Lru { hash, index, entries, free, oldest, newest, capacity, generations } = self;
        index.clear();
        entries.clear();
        free.clear();
        (*oldest, *newest, *generations) = (NOWHERE, NOWHERE, 0);
        (*capacity, *hash) = (max.min(NOWHERE as usize), by);
    }

    /// Returns the entry of this key; it counts as used.
    pub(crate) fn touch(&mut self, key: &K) -> Option<&mut V> {
        let at = self.find(key)?;
        self.make_newest(at);
        self.entry_mut(at).map(|entry| &mut entry.value)
    }

    /// Returns the entry of this key. It does not count as used.
    pub(crate) fn peek(&self, key: &K) -> Option<&V> {
        self.entry(self.find(key)?).map(|entry| &entry.value)
    }

    /// Returns the entry of this key, and creates it if there is none. A full table then evicts the least
    /// recently used entry. `None` if the capacity is 0.
    pub(crate) fn touch_or_insert(&mut self, key: K, make: impl FnOnce() -> V) -> Option<(EntryId, &mut V)> {
        let at = match self.find(&key) {
            Some(at) => {
                self.make_newest(at);
                at
            }
            None => self.place_for(key, make)?,
        };
        let entry = self.entry_mut(at)?;
        Some((EntryId { index: at, generation: entry.generation }, &mut entry.value))
    }

    #[inline]
    fn find(&self, key: &K) -> Option<u32> {
        // A table that is not empty has a latest entry.
        if self.entry(self.newest)?.key == *key {
            return Some(self.newest);
        }
        self.find_older(key)
    }

    fn find_older(&self, key: &K) -> Option<u32> {
        let is_of = |at: &u32| self.entry(*at).is_some_and(|entry| entry.key == *key);
        self.index.find(self.hash.hash_one(key), is_of).copied()
    }

    #[inline]
    fn make_newest(&mut self, at: u32) {
        if at != self.newest {
            self.unlink(at);
            self.link_newest(at);
        }
    }

    fn place_for(&mut self, key: K, make: impl FnOnce() -> V) -> Option<u32> {
        if self.capacity == 0 {
            return None;
        }
        while self.index.len() >= self.capacity {
            let oldest = self.entry(self.oldest)?.key;
            self.remove(&oldest);
        }
        self.generations += 1;
        let entry =
            LruEntry { key, value: make(), generation: self.generations, older: NOWHERE, newer: NOWHERE };
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.entries.push(None);
                self.entries.len() as u32 - 1
            }
        };
        *self.entries.get_mut(at as usize)? = Some(entry);
        let Lru { hash, index, entries, .. } = self;
        let hash_at = |at: &u32| match entries.get(*at as usize) {
            Some(Some(entry)) => hash.hash_one(entry.key),
            Some(None) | None => 0,
        };
        index.insert_unique(hash.hash_one(key), at, hash_at);
        self.link_newest(at);
        Some(at)
    }

    /// Returns the entry of this id, if it is still the same one.
    pub(crate) fn at(&mut self, id: EntryId) -> Option<&mut V> {
        let entry = self.entry_mut(id.index).filter(|entry| entry.generation == id.generation)?;
        Some(&mut entry.value)
    }

    /// Removes the entry of this id, if it is still the same one.
    pub(crate) fn remove_at(&mut self, id: EntryId) {
        let key = self.entry(id.index).filter(|entry| entry.generation == id.generation);
        if let Some(key) = key.map(|entry| entry.key) {
            self.remove(&key);
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.find(key)?;
        if let Ok(found) = self.index.find_entry(self.hash.hash_one(key), |known| *known == at) {
            found.remove();
        }
        self.unlink(at);
        self.free.push(at);
        self.entries.get_mut(at as usize)?.take().map(|entry| entry.value)
    }

    /// Keeps only the entries for which `keep` is true.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&K, &V) -> bool) {
        let gone: Vec<K> =
            self.iter().filter(|(key, value)| !keep(key, value)).map(|(key, _)| *key).collect();
        for key in gone {
            self.remove(&key);
        }
    }

    /// Iterates over the entries, least recently used first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let mut next = self.oldest;
        core::iter::from_fn(move || {
            let entry = self.entry(next)?;
            next = entry.newer;
            Some((&entry.key, &entry.value))
        })
    }

    fn entry(&self, at: u32) -> Option<&LruEntry<K, V>> {
        self.entries.get(at as usize)?.as_ref()
    }

    fn entry_mut(&mut self, at: u32) -> Option<&mut LruEntry<K, V>> {
        self.entries.get_mut(at as usize)?.as_mut()
    }

    fn unlink(&mut self, at: u32) {
        let Some(entry) = self.entry(at) else { return };
        let (older, newer) = (entry.older, entry.newer);
        match self.entry_mut(older) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
        match self.entry_mut(newer) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
    }

    fn link_newest(&mut self, at: u32) {
        let newest = self.newest;
        if let Some(entry) = self.entry_mut(at) {
            (entry.older, entry.newer) = (newest, NOWHERE);
        }
        match self.entry_mut(newest) {
            Some(entry) => entry.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::hash::BuildHasherDefault;
    use proptest::prelude::*;
    use siphasher::sip::SipHasher13;
    use std::vec;

    type Table = Lru<u8, u32, BuildHasherDefault<SipHasher13>>;

    fn table(capacity: usize) -> Table {
        Lru::new(capacity, BuildHasherDefault::default())
    }

    fn keys(table: &Table) -> Vec<u8> {
        table.iter().map(|(key, _)| *key).collect()
    }

    #[test]
    fn least_recently_used_entry_is_evicted() {
        let mut table = table(3);
        for key in [1, 2, 3] {
            table.touch_or_insert(key, || u32::from(key));
        }
        assert_eq!(table.touch(&1), Some(&mut 1));
        assert_eq!(table.peek(&2), Some(&2), "a look is no use");
        table.touch_or_insert(4, || 4);
        assert_eq!(keys(&table), [3, 1, 4]);
    }

    #[test]
    fn id_of_an_evicted_entry_does_not_reach_its_successor() {
        let mut table = table(1);
        let (first, _) = table.touch_or_insert(1, || 10).expect("room for one");
        let (second, _) = table.touch_or_insert(2, || 20).expect("room for one");
        assert_eq!(table.at(first), None);
        assert_eq!(table.at(second), Some(&mut 20));
        table.remove_at(first);
        assert_eq!(table.len(), 1);
        table.remove_at(second);
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn a_table_without_capacity_keeps_nothing() {
        assert_eq!(table(0).touch_or_insert(1, || 1), None);
    }

    proptest! {
        #[test]
        fn entries_are_listed_in_order_of_use(
            steps in proptest::collection::vec((0u8..8, 0u8..40), 0..200),
            capacity in 1usize..5,
        ) {
            let mut table = table(capacity);
            let mut model: Vec<u8> = vec![];
            for (key, step) in steps {
                let known = model.contains(&key);
                match step % 3 {
                    _ if step == 39 => {
                        table.renew(capacity, BuildHasherDefault::default());
                        model.clear();
                    }
                    0 => {
                        table.touch_or_insert(key, || 0);
                        model.retain(|&other| other != key);
                        if !known && model.len() == capacity {
                            model.remove(0);
                        }
                        model.push(key);
                    }
                    1 => {
                        prop_assert_eq!(table.touch(&key).is_some(), known);
                        if known {
                            model.retain(|&other| other != key);
                            model.push(key);
                        }
                    }
                    _ => {
                        prop_assert_eq!(table.remove(&key).is_some(), known);
                        model.retain(|&other| other != key);
                    }
                }
                prop_assert_eq!(keys(&table), model.clone());
            }
        }
    }
}
