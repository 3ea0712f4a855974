//! Storage of half-open connections and TIME-WAITs.

use alloc::vec::Vec;

/// Values at fixed places, which are reused after removal.
#[derive(Debug)]
pub(crate) struct Places<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Places { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Places<T> {
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Removes all values, and keeps the storage.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.free.clear();
    }

    /// Adds a value; returns its place. The caller bounds the number of values below 2^32.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let free = self.free.pop();
        match free.and_then(|place| self.entries.get_mut(place as usize)) {
            Some(entry) => *entry = Some(value),
            None => self.entries.push(Some(value)),
        }
        free.unwrap_or(self.entries.len().saturating_sub(1) as u32)
    }

    /// Removes the value at `place`.
    pub(crate) fn remove(&mut self, place: u32) -> Option<T> {
        let value = self.entries.get_mut(place as usize)?.take()?;
        self.free.push(place);
        Some(value)
    }

    /// Returns the value at `place`.
    pub(crate) fn get(&self, place: u32) -> Option<&T> {
        self.entries.get(place as usize)?.as_ref()
    }

    /// Returns the value at `place`, mutable.
    pub(crate) fn get_mut(&mut self, place: u32) -> Option<&mut T> {
        self.entries.get_mut(place as usize)?.as_mut()
    }

    /// Returns all values with their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(self.entries.iter()).filter_map(|(place, entry)| Some((place, entry.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_when_its_value_has_left() {
        let mut places = Places::default();
        let all: Vec<u32> = ["a", "b", "c"].map(|value| places.insert(value)).into();
        assert_eq!(all, [0, 1, 2]);
        assert_eq!((places.remove(1), places.remove(1), places.len()), (Some("b"), None, 2));
        assert_eq!(places.iter().collect::<Vec<_>>(), [(0, &"a"), (2, &"c")]);
        assert_eq!((places.insert("d"), places.insert("e")), (1, 3));
        *places.get_mut(3).expect("it is there") = "f";
        assert_eq!((places.get(1), places.get(3), places.get(4)), (Some(&"d"), Some(&"f"), None));
    }
}
