//! Storage of half-open connections and TIME-WAITs.

use alloc::vec::Vec;

/// Values at fixed places, which are reused after removal.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Removes all values, and keeps the storage.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.free.clear();
    }

    /// Adds a value; returns its index. The caller bounds the number of values below 2^32.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let free = self.free.pop();
        match free.and_then(|index| self.entries.get_mut(index as usize)) {
            Some(entry) => *entry = Some(value),
            None => self.entries.push(Some(value)),
        }
        free.unwrap_or(self.entries.len().saturating_sub(1) as u32)
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.entries.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(value)
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(self.entries.iter()).filter_map(|(index, entry)| Some((index, entry.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_reused_after_removal() {
        let mut slab = Slab::default();
        let all: Vec<u32> = ["a", "b", "c"].map(|value| slab.insert(value)).into();
        assert_eq!(all, [0, 1, 2]);
        assert_eq!((slab.remove(1), slab.remove(1), slab.len()), (Some("b"), None, 2));
        assert_eq!(slab.iter().collect::<Vec<_>>(), [(0, &"a"), (2, &"c")]);
        assert_eq!((slab.insert("d"), slab.insert("e")), (1, 3));
        *slab.get_mut(3).expect("it is there") = "f";
        assert_eq!((slab.get(1), slab.get(3), slab.get(4)), (Some(&"d"), Some(&"f"), None));
    }
}
