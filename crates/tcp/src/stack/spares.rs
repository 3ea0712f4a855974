//! Storage of emptied buffers, for the next buffers that fill.
//!
//! Short connections need the same few blocks of storage one after another. These blocks are too large for
//! the fast lists of most allocators, and a block that was just used is still in the cache. Large storage of
//! receive buffers, which the allocator would return to the system and request again, is kept for connections
//! that receive in bulk.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;

use crate::receive::FIRST_STORAGE;
use crate::receive::RecvQueue;

/// Minimum size of receive-buffer storage that is kept for bulk transfers, bytes. Of shorter storage, only
/// the initial storage of each buffer is kept.
const MIN: usize = 32 << 10;
/// Maximum size of send-buffer storage that is kept, bytes.
const SEND_MAX: usize = 64 << 10;
/// Divisor of the memory that all buffers may hold ([`crate::config::StackConfig::max_buffer_bytes`]) for the
/// storage kept for bulk transfers.
const BULK_PART: usize = 128;
/// Divisor for the storage kept for short connections, for each direction.
const SHORT_PART: usize = 4096;

/// Unused storage.
pub(super) struct Spares {
    bulk: FreeList<Vec<u8>>,
    /// All of length [`FIRST_STORAGE`].
    first: FreeList<Vec<u8>>,
    send: FreeList<VecDeque<u8>>,
    /// Contents of `send` before the stack was [renewed](Spares::renew).
    sent_before: Vec<VecDeque<u8>>,
}

/// Storage that is reused last in, first out.
struct FreeList<T> {
    kept: Vec<T>,
    /// Bytes in `kept`, and their maximum.
    bytes: usize,
    max: usize,
}

impl<T: Storage> FreeList<T> {
    /// Returns an empty list of at most `max` bytes.
    fn new(max: usize) -> Self {
        FreeList { kept: Vec::new(), bytes: 0, max }
    }

    /// Empties the list and sets its maximum.
    fn renew(&mut self, max: usize) {
        self.kept.clear();
        (self.bytes, self.max) = (0, max);
    }

    fn put(&mut self, storage: T) {
        if self.bytes + storage.size() <= self.max {
            self.bytes += storage.size();
            self.kept.push(storage);
        }
    }

    /// Takes the latest spare, if it fits.
    fn take_if(&mut self, fits: impl FnOnce(usize) -> bool) -> Option<T> {
        let storage = self.kept.pop_if(|storage| fits(storage.size()))?;
        self.bytes -= storage.size();
        Some(storage)
    }
}

/// Capacity of storage.
trait Storage {
    fn size(&self) -> usize;
}

impl Storage for Vec<u8> {
    fn size(&self) -> usize {
        self.len()
    }
}

impl Storage for VecDeque<u8> {
    fn size(&self) -> usize {
        self.capacity()
    }
}

impl fmt::Debug for Spares {
    /// Prints no contents, which have no effect on behaviour.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spares").finish_non_exhaustive()
    }
}

impl Spares {
    /// Returns empty spares for buffers of `max_buffer_bytes` in all.
    pub(super) fn new(max_buffer_bytes: usize) -> Self {
        let short = max_buffer_bytes / SHORT_PART;
        Spares {
            bulk: FreeList::new(max_buffer_bytes / BULK_PART),
            first: FreeList::new(short),
            send: FreeList::new(short),
            sent_before: Vec::new(),
        }
    }

    /// Prepares the spares for another stack, with `max_buffer_bytes` for all buffers. Its connections must
    /// behave as without spares, so only storage that is as long as new storage remains.
    pub(super) fn renew(&mut self, max_buffer_bytes: usize) {
        self.bulk.renew(max_buffer_bytes / BULK_PART);
        core::mem::swap(&mut self.send.kept, &mut self.sent_before);
        self.send.renew(max_buffer_bytes / SHORT_PART);
        if self.first.max != max_buffer_bytes / SHORT_PART {
            self.first.renew(max_buffer_bytes / SHORT_PART);
        }
    }

    /// Keeps storage of a receive buffer that was emptied, or frees it.
    pub(super) fn put(&mut self, mut storage: Vec<u8>) {
        if cfg!(all(debug_assertions, not(test))) {
            // Storage is never read before it is written: a test would detect this value.
            storage.fill(0xDB);
        }
        match storage.len() {
            FIRST_STORAGE => self.first.put(storage),
            MIN.. => self.bulk.put(storage),
            _ => {}
        }
    }

    /// Takes the storage that was used last, for a receive buffer that needs `wanted` bytes. Storage more
    /// than four times as large is not taken.
    pub(super) fn take(&mut self, wanted: usize) -> Option<Vec<u8>> {
        match wanted {
            FIRST_STORAGE => self.first.take_if(|_| true),
            MIN.. => self.bulk.take_if(|size| size <= wanted.saturating_mul(4)),
            _ => None,
        }
    }

    /// Lends a receive buffer storage for the next arrivals, if there is any.
    pub(super) fn lend(&mut self, queue: &mut RecvQueue) {
        if let Some(storage) = self.take(queue.wanted()) {
            queue.lend(storage);
        }
    }

    /// Keeps storage of a send buffer that was emptied, or frees it.
    pub(super) fn put_sent(&mut self, storage: VecDeque<u8>) {
        if (1..=SEND_MAX).contains(&storage.capacity()) {
            self.send.put(storage);
        }
    }

    /// Takes storage for a send buffer that is about to hold `wanted` bytes, if there is any.
    pub(super) fn take_to_send(&mut self, wanted: usize) -> Option<VecDeque<u8>> {
        if wanted == 0 {
            return None;
        }
        let fits = |size| size >= wanted && size <= wanted.saturating_mul(4);
        self.send.take_if(fits).or_else(|| self.sent_before.pop_if(|storage| storage.capacity() == wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn latest_spare_serves_first_within_the_limit() {
        let mut spares = Spares::new(128 * (100 << 10));
        spares.put(vec![1; 64 << 10]);
        spares.put(vec![2; MIN]);
        spares.put(vec![3; MIN]);
        assert_eq!(spares.bulk.bytes, (64 << 10) + MIN, "the third does not fit");
        assert_eq!(spares.take(MIN).map(|storage| storage[0]), Some(2));
        assert_eq!(spares.take(MIN - 1), None, "the allocator has such");
        assert_eq!(spares.take(1 << 20).map(|storage| storage[0]), Some(1));
        assert_eq!((spares.take(1 << 20), spares.bulk.bytes), (None, 0));
    }

    #[test]
    fn small_storage_is_freed_and_large_storage_not_used_for_little() {
        let mut spares = Spares::new(1 << 30);
        spares.put(vec![0; MIN - 1]);
        assert_eq!(spares.take(1 << 20), None);
        spares.put(vec![0; 5 * MIN]);
        assert_eq!(spares.take(MIN), None);
        assert!(spares.take(2 * MIN).is_some());
    }

    #[test]
    fn the_first_storage_of_a_receive_buffer_serves_the_next_one() {
        let mut spares = Spares::new(3 * FIRST_STORAGE * SHORT_PART);
        for byte in 0..4 {
            spares.put(vec![byte; FIRST_STORAGE]);
        }
        assert_eq!(spares.first.bytes, 3 * FIRST_STORAGE, "the fourth does not fit");
        assert_eq!(spares.take(FIRST_STORAGE).map(|storage| storage[0]), Some(2));
        assert_eq!(spares.take(FIRST_STORAGE + 1), None);
    }

    #[test]
    fn send_buffer_gets_storage_of_a_suitable_size() {
        let mut spares = Spares::new(1 << 30);
        for none in [0, SEND_MAX + 1] {
            spares.put_sent(VecDeque::with_capacity(none));
        }
        assert_eq!(spares.send.bytes, 0);
        spares.put_sent(VecDeque::with_capacity(5000));
        for unfit in [0, 1249, 5001] {
            assert_eq!(spares.take_to_send(unfit), None, "{unfit}");
        }
        assert_eq!(spares.take_to_send(1250).map(|storage| storage.capacity()), Some(5000));
        assert_eq!(spares.send.bytes, 0);
    }

    #[test]
    fn renewed_stack_uses_send_storage_of_the_initial_size() {
        let mut spares = Spares::new(1 << 30);
        spares.put_sent(VecDeque::with_capacity(5000));
        spares.renew(1 << 30);
        assert_eq!((spares.send.bytes, spares.take_to_send(4999)), (0, None));
        assert_eq!(spares.take_to_send(5000).map(|storage| storage.capacity()), Some(5000));
        spares.put_sent(VecDeque::with_capacity(5000));
        spares.renew(1 << 30);
        spares.renew(1 << 30);
        assert_eq!(spares.take_to_send(5000), None, "that was two stacks ago");
    }
}
