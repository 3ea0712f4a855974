//! Where half-open connections and TIME-WAITs are kept: lists that grow without moving what they hold.
//!
//! A vector of many entries that grows copies all of them at once, and leaves the memory of the old copy to the
//! allocator. [`Chunked`] is made of chunks of [`CHUNK`] values.

use alloc::vec::Vec;

/// Values of one chunk.
const CHUNK: usize = 1024;

/// Values by their index.
#[derive(Debug)]
pub(crate) struct Chunked<T> {
    /// All but the last are full.
    chunks: Vec<Vec<T>>,
}

impl<T> Default for Chunked<T> {
    fn default() -> Self {
        Chunked { chunks: Vec::new() }
    }
}

impl<T> Chunked<T> {
    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK + last.len())
    }

    /// Adds a value at the end.
    pub(crate) fn push(&mut self, value: T) {
        match self.chunks.last_mut().filter(|last| last.len() < CHUNK) {
            Some(last) => last.push(value),
            None => {
                // The first grows with what there is: most stacks have few connections.
                let mut chunk = if self.chunks.is_empty() { Vec::new() } else { Vec::with_capacity(CHUNK) };
                chunk.push(value);
                self.chunks.push(chunk);
            }
        }
    }

    /// As a new one is, in the storage of the first chunk.
    pub(crate) fn clear(&mut self) {
        self.chunks.truncate(1);
        self.chunks.iter_mut().for_each(Vec::clear);
    }

    /// The value at `index`.
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.chunks.get(index / CHUNK)?.get(index % CHUNK)
    }

    /// The value at `index`, to be changed.
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.chunks.get_mut(index / CHUNK)?.get_mut(index % CHUNK)
    }

    /// All values in the order of their indices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten()
    }
}

/// Values at places that stay theirs, and that are used again when they have left.
#[derive(Debug)]
pub(crate) struct Places<T> {
    entries: Chunked<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Places<T> {
    fn default() -> Self {
        Places { entries: Chunked::default(), free: Vec::new() }
    }
}

impl<T> Places<T> {
    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// As new ones are, in the same storage.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.free.clear();
    }

    /// Puts a value in; answers its place. The caller bounds the number of values below 2^32.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let free = self.free.pop();
        match free.and_then(|place| self.entries.get_mut(place as usize)) {
            Some(entry) => *entry = Some(value),
            None => self.entries.push(Some(value)),
        }
        free.unwrap_or(self.entries.len().saturating_sub(1) as u32)
    }

    /// Takes the value at `place` out.
    pub(crate) fn remove(&mut self, place: u32) -> Option<T> {
        let value = self.entries.get_mut(place as usize)?.take()?;
        self.free.push(place);
        Some(value)
    }

    /// The value at `place`.
    pub(crate) fn get(&self, place: u32) -> Option<&T> {
        self.entries.get(place as usize)?.as_ref()
    }

    /// The value at `place`, to be changed.
    pub(crate) fn get_mut(&mut self, place: u32) -> Option<&mut T> {
        self.entries.get_mut(place as usize)?.as_mut()
    }

    /// All values with their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(self.entries.iter()).filter_map(|(place, entry)| Some((place, entry.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_a_vector_holds() {
        let mut chunked = Chunked::default();
        for count in 0..3 * CHUNK + 5 {
            assert_eq!((chunked.len(), chunked.get(count)), (count, None));
            chunked.push(count);
        }
        *chunked.get_mut(CHUNK).expect("it is there") += 1;
        let all: Vec<usize> = chunked.iter().copied().collect();
        assert_eq!(all.len(), chunked.len());
        for (index, value) in all.iter().enumerate() {
            assert_eq!(chunked.get(index), Some(value));
            assert_eq!(*value, index + usize::from(index == CHUNK));
        }
    }

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
