//! The last sent parity segments, with which the peer's answers are compared.
//!
//! A report of a failure is forged unless it contains the end of a segment in the ring. A DSACK for the
//! position of such a segment shows that a device removed its option. Data that such a segment covers is not
//! declared lost before the peer's answer could arrive.

use arrayvec::ArrayVec;
use brisk_wire::SeqNum;

use crate::seq_ranges::SeqRange;
use crate::time::Instant;

/// Limit of remembered parity segments.
const ENTRIES: usize = 8;

/// A parity segment that left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SentParity {
    /// The encoded range.
    pub(crate) range: SeqRange,
    /// Position of the segment.
    pub(crate) wire: SeqRange,
    /// Time when it left.
    pub(crate) at: Instant,
    /// True if the peer has reported its repair or failure. Nothing waits for it then.
    pub(crate) answered: bool,
    pub(crate) repaired: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Ring {
    entries: ArrayVec<SentParity, ENTRIES>,
}

impl Ring {
    /// Adds a parity segment that left; one more replaces the oldest.
    pub(crate) fn push(&mut self, range: SeqRange, wire: SeqRange, at: Instant) {
        if self.entries.is_full() {
            self.entries.remove(0);
        }
        self.entries.push(SentParity { range, wire, at, answered: false, repaired: false });
    }

    /// Removes all entries, after a timeout.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// True if no parity left recently, so that the peer cannot have repaired anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the newest entry whose range ends at `end`.
    pub(crate) fn ending_at(&self, end: SeqNum) -> Option<SentParity> {
        self.entries.iter().rev().find(|entry| entry.range.end == end).copied()
    }

    /// True if a parity segment had exactly this position.
    pub(crate) fn has_wire_range(&self, wire: &SeqRange) -> bool {
        self.entries.iter().any(|entry| entry.wire == *wire)
    }

    /// Returns the newest entry whose segment was at `seq`.
    pub(crate) fn at(&self, seq: SeqNum) -> Option<SentParity> {
        self.entries.iter().rev().find(|entry| entry.wire.start == seq).copied()
    }

    /// Returns the newest entry that covers `range`.
    pub(crate) fn covering(&self, range: &SeqRange) -> Option<SentParity> {
        self.entries.iter().rev().find(|entry| entry.range.covers(range)).copied()
    }

    /// Returns the ranges of the entries without an answer, with the times when they left.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = (SeqRange, Instant)> {
        self.entries.iter().filter(|entry| !entry.answered).map(|entry| (entry.range, entry.at))
    }

    /// Records a report of a repair within `range`. Answers to earlier parity will not arrive any more.
    pub(crate) fn on_repaired(&mut self, range: &SeqRange) {
        let touched = |entry: &&SentParity| entry.range.intersection(range).is_some();
        let Some(newest) = self.entries.iter().rev().find(touched).map(|entry| entry.at) else { return };
        for entry in &mut self.entries {
            // Another parity that left at the same time may still be answered.
            entry.answered |= entry.at < newest;
            entry.repaired |= entry.at == newest && entry.range.intersection(range).is_some();
        }
    }

    /// Records a report of a failure of the parity that left at `at`.
    pub(crate) fn on_failed(&mut self, at: Instant) {
        self.entries.iter_mut().filter(|entry| entry.at <= at).for_each(|entry| entry.answered = true);
    }

    /// True if a reported repair contains `range`, so its original had been lost.
    pub(crate) fn has_repaired(&self, range: &SeqRange) -> bool {
        self.entries.iter().any(|entry| entry.repaired && entry.range.covers(range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(from: u32, to: u32) -> SeqRange {
        SeqRange::new(SeqNum(from), SeqNum(to))
    }

    fn ring() -> Ring {
        let mut ring = Ring::default();
        ring.push(range(1, 3001), range(u32::MAX - 999, 1), Instant::from_millis(25));
        ring.push(range(3001, 6001), range(u32::MAX - 999, 1), Instant::from_millis(50));
        ring
    }

    #[test]
    fn a_failure_is_known_by_the_end_of_its_range() {
        let ring = ring();
        assert_eq!(ring.ending_at(SeqNum(3001)).map(|entry| entry.at), Some(Instant::from_millis(25)));
        assert_eq!(ring.ending_at(SeqNum(3000)), None);
    }

    #[test]
    fn the_answer_to_a_later_parity_ends_the_wait_for_earlier_ones() {
        let mut ring = ring();
        let awaits = |ring: &Ring, range| ring.awaited().any(|(covered, _)| covered.covers(&range));
        assert!(awaits(&ring, range(1001, 2001)));
        ring.on_repaired(&range(4001, 5001));
        assert!(!awaits(&ring, range(1001, 2001)));
        assert!(ring.has_repaired(&range(4001, 5001)));
        assert!(!ring.has_repaired(&range(1001, 2001)));
    }

    #[test]
    fn the_oldest_entry_makes_room() {
        let mut ring = ring();
        for n in 0..7 {
            ring.push(range(n * 10 + 6001, n * 10 + 6011), range(0, 1), Instant::ZERO);
        }
        assert!(ring.covering(&range(1, 3001)).is_none());
        assert!(ring.covering(&range(3001, 6001)).is_some());
        ring.clear();
        assert!(ring.is_empty());
    }
}
