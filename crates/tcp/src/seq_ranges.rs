//! Ranges in sequence space, and sorted disjoint sets of them.
//!
//! Receivers keep what arrived out of order, senders what was reported and what was sent twice, in
//! the same structure. All arithmetic is modulo 2^32 through [`SeqNum`].

use brisk_wire::SeqNum;

/// The half-open range `[start, end)` of sequence numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SeqRange {
    /// First sequence number.
    pub start: SeqNum,
    /// The one after the last.
    pub end: SeqNum,
}

impl SeqRange {
    /// The range from `start` up to and excluding `end`.
    pub fn new(start: SeqNum, end: SeqNum) -> Self {
        SeqRange { start, end }
    }

    /// The range of `len` sequence numbers from `start`.
    pub fn with_len(start: SeqNum, len: u32) -> Self {
        SeqRange { start, end: start + len }
    }

    /// Number of sequence numbers in the range; 0 if it is empty or reversed.
    pub fn len(&self) -> u32 {
        if self.start.lt(self.end) { self.end.since(self.start) } else { 0 }
    }

    /// True if nothing is in the range.
    pub fn is_empty(&self) -> bool {
        !self.start.lt(self.end)
    }

    /// True if `seq` is in the range.
    pub fn contains(&self, seq: SeqNum) -> bool {
        self.start.le(seq) && seq.lt(self.end)
    }

    /// True if every sequence number of `other` is in this range.
    pub fn covers(&self, other: &SeqRange) -> bool {
        self.start.le(other.start) && other.end.le(self.end)
    }

    /// The common part, if there is one.
    pub fn intersection(&self, other: &SeqRange) -> Option<SeqRange> {
        let common = SeqRange::new(self.start.max(other.start), self.end.min(other.end));
        (!common.is_empty()).then_some(common)
    }
}
