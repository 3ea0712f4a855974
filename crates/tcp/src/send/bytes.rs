//! The bytes of the send queue. Written data was copied into a ring. A long run whose ownership the
//! application handed over stays in its buffer, which has a reference count, and is never copied.

use alloc::collections::VecDeque;
use core::ops::Range;

use bytes::{Buf as _, Bytes};
use smallvec::SmallVec;

use crate::on_demand::{Initial, OnDemand};

/// A part of the stream, in the pieces in which it lies.
pub(crate) type Pieces<'a> = SmallVec<[&'a [u8]; 4]>;

/// Shorter runs are copied even if they are given: that costs less than to keep track of them, bytes.
pub(crate) const MIN_GIVEN: usize = 4096;

/// Bytes of the stream from the first that is kept on, which is at offset 0.
#[derive(Clone, Debug, Default)]
pub(crate) struct SendBytes {
    ring: VecDeque<u8>,
    given: OnDemand<Runs>,
}

/// Runs that were given.
#[derive(Clone, PartialEq, Debug)]
struct Runs {
    /// In the order of the stream: the ring holds what is before, between and behind them.
    runs: VecDeque<Given>,
    /// Bytes of these that are kept.
    len: usize,
    /// Bytes that have left since there was no run, of the stream and of the ring.
    gone: u64,
    ring_gone: u64,
}

impl Initial for Runs {
    const INITIAL: Runs = Runs { runs: VecDeque::new(), len: 0, gone: 0, ring_gone: 0 };
    const SHARED: &'static Runs = &Self::INITIAL;
}

/// A run that was given.
#[derive(Clone, PartialEq, Debug)]
struct Given {
    /// Bytes of the stream that came before what is left of it, since there was no run.
    start: u64,
    /// Bytes of the ring that came before it, since then.
    ring: u64,
    bytes: Bytes,
}

impl Given {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl Runs {
    /// The first `count` bytes of the stream leave. Returns how many of them lie in runs.
    fn drain(&mut self, count: usize) -> usize {
        self.gone += count as u64;
        let before = self.len;
        while let Some(first) = self.runs.front_mut().filter(|first| first.start < self.gone) {
            let gone = (self.gone - first.start).min(first.bytes.len() as u64) as usize;
            first.bytes.advance(gone);
            first.start += gone as u64;
            self.len -= gone;
            if !first.bytes.is_empty() {
                break;
            }
            self.runs.pop_front();
        }
        let left = before - self.len;
        self.ring_gone += (count - left) as u64;
        if self.runs.is_empty() {
            (self.gone, self.ring_gone) = (0, 0);
        }
        left
    }
}

impl SendBytes {
    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.ring.len() + self.given.len
    }

    /// True if there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory held. A run that was given counts with its length, however long the buffer is that it
    /// lies in.
    pub(crate) fn allocated(&self) -> usize {
        self.ring.capacity() + self.given.len
    }

    /// Bytes that the storage of the ring takes without growing.
    pub(crate) fn capacity(&self) -> usize {
        self.ring.capacity()
    }

    /// Appends a copy of `data`. Storage doubles, but no more memory is held than `most` bytes unless it must
    /// be.
    pub(crate) fn copy(&mut self, data: &[u8], most: usize) {
        if self.ring.len() + data.len() > self.ring.capacity() {
            self.ring.reserve_exact(self.grown(data.len(), most) - self.ring.len());
        }
        self.ring.extend(data);
    }

    /// Bytes of storage that the ring has after [`SendBytes::copy`] of `len` bytes for which it has no room.
    pub(crate) fn grown(&self, len: usize, most: usize) -> usize {
        let (needed, most) = (self.ring.len() + len, most.saturating_sub(self.given.len));
        needed.max(self.ring.capacity().saturating_mul(2)).min(most.max(needed))
    }

    /// Appends `bytes`, which stay where they lie. Storage makes way for them where there would be more than
    /// `most` bytes of memory.
    pub(crate) fn give(&mut self, bytes: Bytes, most: usize) {
        if self.allocated() + bytes.len() > most {
            self.ring.shrink_to(self.ring.len());
        }
        let start = self.given.gone + self.len() as u64;
        let ring = self.given.ring_gone + self.ring.len() as u64;
        let given = &mut *self.given;
        given.len += bytes.len();
        given.runs.push_back(Given { start, ring, bytes });
    }

    /// The bytes in `range`, as far as there are so many.
    pub(crate) fn pieces(&self, range: Range<usize>) -> Pieces<'_> {
        let mut pieces = Pieces::new();
        let Runs { runs, gone, ring_gone, .. } = &*self.given;
        if runs.is_empty() {
            self.push_of_ring(range, &mut pieces);
            return pieces;
        }
        let end = gone + range.end.min(self.len()) as u64;
        let mut at = gone + range.start as u64;
        let next = runs.partition_point(|given| given.end() <= at);
        let before = next.checked_sub(1).and_then(|index| runs.get(index));
        // Where the stretch of the ring begins that `at` lies in, or that has the next run behind it: in the
        // stream, and in the ring.
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

    /// Frees the first `count` bytes, which are there.
    pub(crate) fn drain(&mut self, count: usize) {
        let count = count.min(self.len());
        let given = self.given.get_mut().map_or(0, |given| given.drain(count));
        self.ring.drain(..count - given);
    }

    /// Frees storage that holds nothing.
    pub(crate) fn release_memory(&mut self) {
        self.ring.shrink_to_fit();
        self.given.release();
    }

    /// Gives away the storage of the ring. To be asked of an empty one.
    pub(crate) fn take_storage(&mut self) -> VecDeque<u8> {
        debug_assert!(self.is_empty());
        core::mem::take(&mut self.ring)
    }

    /// Uses `storage`, which is empty, for its ring if that is empty.
    pub(crate) fn lend(&mut self, storage: VecDeque<u8>) {
        debug_assert!(storage.is_empty());
        if self.ring.is_empty() {
            self.ring = storage;
        }
    }
}
