//! The bytes of the send queue. Written data is copied into a ring. If the application hands over the
//! ownership of a long piece (a *run*), the run stays in its reference-counted buffer and is not copied.

use alloc::collections::VecDeque;
use core::ops::Range;

use bytes::{Buf as _, Bytes};
use smallvec::SmallVec;

use crate::on_demand::{Initial, OnDemand};

/// A part of the stream, in contiguous pieces.
pub(crate) type Pieces<'a> = SmallVec<[&'a [u8]; 4]>;

/// Minimum length of a run, bytes. Managing shorter runs would cost more than the copy.
pub(crate) const MIN_GIVEN: usize = 4096;

/// Bytes of the stream; the first byte that is kept has offset 0.
#[derive(Clone, Debug, Default)]
pub(crate) struct SendBytes {
    ring: VecDeque<u8>,
    given: OnDemand<Runs>,
    /// Bytes of the ring and of the runs.
    len: usize,
}

/// Runs that the application has handed over.
#[derive(Clone, PartialEq, Debug)]
struct Runs {
    /// In the order of the stream; the ring holds the bytes before, between and after them.
    runs: VecDeque<Given>,
    /// Bytes removed from the stream (`gone`) and from the ring (`ring_gone`) since the queue last had no
    /// runs. Positions in the stream and in the ring count from that time.
    gone: u64,
    ring_gone: u64,
}

impl Initial for Runs {
    const INITIAL: Runs = Runs { runs: VecDeque::new(), gone: 0, ring_gone: 0 };
    const SHARED: &'static Runs = &Self::INITIAL;
}

/// A run that the application has handed over.
#[derive(Clone, PartialEq, Debug)]
struct Given {
    /// Position in the stream of its first remaining byte.
    start: u64,
    /// Position in the ring of the first byte after the run.
    ring: u64,
    bytes: Bytes,
}

impl Given {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl Runs {
    /// Removes the first `count` bytes of the stream. Returns how many of them were in runs.
    fn drain(&mut self, count: usize) -> usize {
        self.gone += count as u64;
        let mut left = 0;
        while let Some(first) = self.runs.front_mut().filter(|first| first.start < self.gone) {
            let gone = (self.gone - first.start).min(first.bytes.len() as u64) as usize;
            first.bytes.advance(gone);
            first.start += gone as u64;
            left += gone;
            if !first.bytes.is_empty() {
                break;
            }
            self.runs.pop_front();
        }
        self.ring_gone += (count - left) as u64;
        if self.runs.is_empty() {
            (self.gone, self.ring_gone) = (0, 0);
        }
        left
    }
}

impl SendBytes {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes of the runs.
    fn given_len(&self) -> usize {
        self.len - self.ring.len()
    }

    /// Returns the bytes of memory in use. A run counts with its length, not with the length of its buffer.
    pub(crate) fn allocated(&self) -> usize {
        self.ring.capacity() + self.given_len()
    }

    /// Returns the capacity of the ring's storage.
    pub(crate) fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Appends a copy of `data`. Storage doubles, up to `max` bytes of memory if that holds `data`.
    pub(crate) fn copy(&mut self, data: &[u8], max: usize) {
        if self.ring.len() + data.len() > self.ring.capacity() {
            self.ring.reserve_exact(self.grown(data.len(), max) - self.ring.len());
        }
        self.ring.extend(data);
        self.len += data.len();
    }

    /// Returns the size of the ring's storage after [`SendBytes::copy`] of `len` bytes that do not fit.
    pub(crate) fn grown(&self, len: usize, max: usize) -> usize {
        let (needed, max) = (self.ring.len() + len, max.saturating_sub(self.given_len()));
        needed.max(self.ring.capacity().saturating_mul(2)).min(max.max(needed))
    }

    /// Appends `bytes` without a copy. Shrinks the storage if memory would exceed `max` bytes.
    pub(crate) fn give(&mut self, bytes: Bytes, max: usize) {
        if self.allocated() + bytes.len() > max {
            self.ring.shrink_to(self.ring.len());
        }
        let start = self.given.gone + self.len as u64;
        let ring = self.given.ring_gone + self.ring.len() as u64;
        self.len += bytes.len();
        self.given.runs.push_back(Given { start, ring, bytes });
    }

    /// Returns the bytes in `range`, as far as they exist.
    pub(crate) fn pieces(&self, range: Range<usize>) -> Pieces<'_> {
        let mut pieces = Pieces::new();
        let Runs { runs, gone, ring_gone, .. } = &*self.given;
        if runs.is_empty() {
            self.push_of_ring(range, &mut pieces);
            return pieces;
        }
        let end = gone + range.end.min(self.len) as u64;
        let mut at = gone + range.start as u64;
        let next = runs.partition_point(|given| given.end() <= at);
        let before = next.checked_sub(1).and_then(|index| runs.get(index));
        // Positions after the previous run, in the stream and in the ring.
        let (mut stretch, mut ring) = before.map_or((*gone, *ring_gone), |given| (given.end(), given.ring));
        for given in runs.range(next..).map(Some).chain([None]) {
            let until = given.map_or(end, |given| given.start.min(end));
            if at < until {
                let from = (ring + (at - stretch) - ring_gone) as usize;
                self.push_of_ring(from..from + (until - at) as usize, &mut pieces);
                at = until;
            }
            let Some(given) = given.filter(|_| at < end) else { break };
            let until = given.end().min(end);
            let inside = (at - given.start) as usize..(until - given.start) as usize;
            pieces.extend(given.bytes.get(inside));
            (at, stretch, ring) = (until, given.end(), given.ring);
        }
        pieces
    }

    fn push_of_ring<'a>(&'a self, range: Range<usize>, pieces: &mut Pieces<'a>) {
        let (first, second) = self.ring.as_slices();
        let split = first.len();
        let head = first.get(range.start.min(split)..range.end.min(split));
        let tail =
            second.get(range.start.saturating_sub(split)..range.end.saturating_sub(split).min(second.len()));
        for piece in [head, tail].into_iter().flatten().filter(|piece| !piece.is_empty()) {
            pieces.push(piece);
        }
    }

    /// Frees the first `count` bytes, which must exist.
    pub(crate) fn drain(&mut self, count: usize) {
        let count = count.min(self.len);
        self.len -= count;
        let given = self.given.get_mut().map_or(0, |given| given.drain(count));
        self.ring.drain(..count - given);
    }

    /// Frees unused storage.
    pub(crate) fn release_memory(&mut self) {
        self.ring.shrink_to_fit();
        self.given.release();
    }

    /// Returns the storage of the ring, which must be empty.
    pub(crate) fn take_storage(&mut self) -> VecDeque<u8> {
        debug_assert!(self.is_empty());
        core::mem::take(&mut self.ring)
    }

    /// Uses `storage`, which is empty, for the ring if that is empty.
    pub(crate) fn lend(&mut self, storage: VecDeque<u8>) {
        debug_assert!(storage.is_empty());
        if self.ring.is_empty() {
            self.ring = storage;
        }
    }
}
