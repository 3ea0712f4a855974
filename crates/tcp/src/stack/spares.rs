//! Storage of receive buffers that were emptied, for those that fill next.

use alloc::vec::Vec;

/// Smaller storage is not kept: the allocator hands it out again without asking the system, bytes.
const LEAST: usize = 32 << 10;
/// What may be kept, as a part of the memory that all buffers may hold ([`crate::config::StackConfig::max_buffer_bytes`]).
const PART: usize = 128;

/// Storage that nobody uses.
#[derive(Debug)]
pub(super) struct Spares {
    kept: Vec<Vec<u8>>,
    /// Bytes in `kept`, and the most that there may be.
    bytes: usize,
    most: usize,
}

impl Spares {
    /// None yet; later as many as buffers of `max_buffer_bytes` in all permit.
    pub(super) fn new(max_buffer_bytes: usize) -> Spares {
        Spares { kept: Vec::new(), bytes: 0, most: max_buffer_bytes / PART }
    }

    /// Keeps storage that was emptied, or frees it.
    pub(super) fn put(&mut self, storage: Vec<u8>) {
        if storage.len() >= LEAST && self.bytes + storage.len() <= self.most {
            self.bytes += storage.len();
            self.kept.push(storage);
        }
    }

    /// The storage that was used last, for one who needs `wanted` bytes if it is no more than four times that.
    pub(super) fn take(&mut self, wanted: usize) -> Option<Vec<u8>> {
        let fits = |storage: &Vec<u8>| storage.len() <= wanted.saturating_mul(4);
        let storage = if wanted >= LEAST && self.kept.last().is_some_and(fits) {
            self.kept.pop()?
        } else {
            return None;
        };
        self.bytes -= storage.len();
        Some(storage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn what_was_used_last_serves_first_and_no_more_is_kept_than_may_be() {
        let mut spares = Spares::new(128 * (100 << 10));
        spares.put(vec![1; 64 << 10]);
        spares.put(vec![2; LEAST]);
        spares.put(vec![3; LEAST]);
        assert_eq!(spares.bytes, (64 << 10) + LEAST, "the third does not fit");
        assert_eq!(spares.take(LEAST).map(|storage| storage[0]), Some(2));
        assert_eq!(spares.take(LEAST - 1), None, "the allocator has such");
        assert_eq!(spares.take(1 << 20).map(|storage| storage[0]), Some(1));
        assert_eq!((spares.take(1 << 20), spares.bytes), (None, 0));
    }

    #[test]
    fn small_storage_is_not_kept_and_large_storage_does_not_serve_small_needs() {
        let mut spares = Spares::new(1 << 30);
        spares.put(vec![0; LEAST - 1]);
        assert_eq!(spares.take(1 << 20), None);
        spares.put(vec![0; 5 * LEAST]);
        assert_eq!(spares.take(LEAST), None);
        assert!(spares.take(2 * LEAST).is_some());
    }
}
