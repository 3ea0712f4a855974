//! Ranges in sequence space, and sorted disjoint sets of them.
//!
//! Receivers store here the data that arrived out of order; senders store the data that was reported or sent
//! twice. All arithmetic is modulo 2^32 through [`SeqNum`].

use alloc::collections::VecDeque;

use brisk_wire::SeqNum;

use crate::on_demand::Initial;

/// The half-open range `[start, end)` of sequence numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SeqRange {
    /// First sequence number.
    pub start: SeqNum,
    /// The sequence number after the last.
    pub end: SeqNum,
}

impl SeqRange {
    /// Returns the range from `start` up to and excluding `end`.
    pub fn new(start: SeqNum, end: SeqNum) -> Self {
        SeqRange { start, end }
    }

    /// Returns the range of `len` sequence numbers from `start`.
    pub fn with_len(start: SeqNum, len: u32) -> Self {
        SeqRange { start, end: start + len }
    }

    /// Returns the number of sequence numbers in the range; 0 if it is empty or reversed.
    pub fn len(&self) -> u32 {
        if self.start.lt(self.end) { self.end.since(self.start) } else { 0 }
    }

    /// True if the range is empty.
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

    /// Returns the common part, if there is one.
    pub fn intersection(&self, other: &SeqRange) -> Option<SeqRange> {
        let common = SeqRange::new(self.start.max(other.start), self.end.min(other.end));
        (!common.is_empty()).then_some(common)
    }
}

/// A set of sequence numbers, stored as sorted, disjoint, non-adjacent [`SeqRange`]s.
///
/// All members must be within 2^31 of one another, which is true inside a TCP window. Otherwise results are
/// meaningless, but there is no panic. An empty set allocates no memory. Look-ups take O(log n). Changes move
/// the ranges on the shorter side.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SeqRanges {
    ranges: VecDeque<SeqRange>,
    bytes: u32,
}

impl Initial for SeqRanges {
    const INITIAL: SeqRanges = SeqRanges::new();
    const SHARED: &'static SeqRanges = &Self::INITIAL;
}

impl SeqRanges {
    /// Returns the empty set.
    pub const fn new() -> Self {
        SeqRanges { ranges: VecDeque::new(), bytes: 0 }
    }

    /// Returns the number of ranges, not of sequence numbers.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// True if no sequence number is in the set.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the number of sequence numbers in the set.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Returns the lowest range.
    pub fn first(&self) -> Option<SeqRange> {
        self.ranges.front().copied()
    }

    /// Returns the highest range.
    pub fn last(&self) -> Option<SeqRange> {
        self.ranges.back().copied()
    }

    /// Returns the ranges in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = SeqRange> + ExactSizeIterator + '_ {
        self.ranges.iter().copied()
    }

    /// Returns the range that contains `seq`.
    pub fn range_at(&self, seq: SeqNum) -> Option<SeqRange> {
        // Usually nothing is out of order.
        if self.is_empty() {
            return None;
        }
        let index = self.ranges.partition_point(|range| range.end.le(seq));
        self.ranges.get(index).copied().filter(|range| range.contains(seq))
    }

    /// True if `seq` is in the set.
    pub fn contains(&self, seq: SeqNum) -> bool {
        self.range_at(seq).is_some()
    }

    /// True if every sequence number of `range` is in the set. Always true for an empty range.
    pub fn covers(&self, range: &SeqRange) -> bool {
        range.is_empty() || self.range_at(range.start).is_some_and(|own| own.covers(range))
    }

    /// True if a sequence number of `range` is in the set.
    pub fn intersects(&self, range: &SeqRange) -> bool {
        let index = self.ranges.partition_point(|own| own.end.le(range.start));
        self.ranges.get(index).is_some_and(|own| own.intersection(range).is_some())
    }

    /// Returns the parts of `within` that are not in the set, in ascending order.
    pub fn gaps(&self, within: SeqRange) -> impl Iterator<Item = SeqRange> + '_ {
        let mut index = self.ranges.partition_point(|own| own.end.le(within.start));
        let mut from = within.start;
        core::iter::from_fn(move || {
            while from.lt(within.end) {
                let next = self.ranges.get(index).copied().unwrap_or(SeqRange::new(within.end, within.end));
                let gap = SeqRange::new(from, next.start.min(within.end));
                from = from.max(next.end);
                index += 1;
                if !gap.is_empty() {
                    return Some(gap);
                }
            }
            None
        })
    }

    /// Adds `range` and merges adjacent ranges. Returns how many of its sequence numbers are new.
    pub fn insert(&mut self, range: SeqRange) -> u32 {
        if range.is_empty() {
            return 0;
        }
        let from = self.ranges.partition_point(|own| own.end.lt(range.start));
        let mut merged = range;
        let mut to = from;
        let mut known = 0;
        while let Some(own) = self.ranges.get(to).filter(|own| own.start.le(range.end)) {
            merged = SeqRange::new(merged.start.min(own.start), merged.end.max(own.end));
            known = own.len().saturating_add(known);
            to += 1;
        }
        let added = merged.len().saturating_sub(known);
        match self.ranges.get_mut(from) {
            Some(first) if to > from => {
                *first = merged;
                self.ranges.drain(from + 1..to);
            }
            Some(_) | None => self.ranges.insert(from, merged),
        }
        self.bytes = self.bytes.saturating_add(added);
        added
    }

    /// Removes `range`; returns how many of its sequence numbers were in the set.
    pub fn remove(&mut self, range: SeqRange) -> u32 {
        if range.is_empty() {
            return 0;
        }
        let from = self.ranges.partition_point(|own| own.end.le(range.start));
        let mut to = from;
        let mut removed = 0;
        let (mut left, mut right) = (SeqRange::default(), SeqRange::default());
        while let Some(own) = self.ranges.get(to).filter(|own| own.start.lt(range.end)) {
            let common = own.intersection(&range).map_or(0, |common| common.len());
            removed = common.saturating_add(removed);
            if own.start.lt(range.start) {
                left = SeqRange::new(own.start, range.start);
            }
            if range.end.lt(own.end) {
                right = SeqRange::new(range.end, own.end);
            }
            to += 1;
        }
        if to > from {
            self.ranges.drain(from..to);
            for rest in [right, left] {
                if !rest.is_empty() {
                    self.ranges.insert(from, rest);
                }
            }
        }
        self.bytes = self.bytes.saturating_sub(removed);
        removed
    }

    /// Removes all sequence numbers below `seq`; returns their number.
    pub fn remove_before(&mut self, seq: SeqNum) -> u32 {
        if self.ranges.capacity() == 0 {
            return 0;
        }
        let mut removed = 0;
        while let Some(first) = self.ranges.front_mut().filter(|first| first.start.lt(seq)) {
            if seq.lt(first.end) {
                removed = seq.since(first.start).saturating_add(removed);
                first.start = seq;
                break;
            }
            removed = first.len().saturating_add(removed);
            self.ranges.pop_front();
        }
        self.bytes = self.bytes.saturating_sub(removed);
        if self.ranges.is_empty() {
            self.ranges = VecDeque::new();
        }
        removed
    }

    /// Empties the set and frees its memory.
    pub fn clear(&mut self) {
        *self = SeqRanges::new();
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const SPACE: u32 = 200;

    fn range(base: u32, from: u32, to: u32) -> SeqRange {
        SeqRange::new(SeqNum(base) + from, SeqNum(base) + to)
    }

    #[test]
    fn ranges_that_touch_become_one() {
        let mut set = SeqRanges::new();
        assert_eq!(set.insert(range(0, 10, 20)), 10);
        assert_eq!(set.insert(range(0, 30, 40)), 10);
        assert_eq!(set.len(), 2);
        assert_eq!(set.insert(range(0, 15, 30)), 10);
        assert_eq!(set.iter().collect::<Vec<_>>(), [range(0, 10, 40)]);
        assert_eq!(set.bytes(), 30);
    }

    #[test]
    fn removing_the_middle_of_a_range_leaves_two_ranges() {
        let mut set = SeqRanges::new();
        set.insert(range(u32::MAX - 5, 0, 20));
        assert_eq!(set.remove(range(u32::MAX - 5, 5, 10)), 5);
        let expected = [range(u32::MAX - 5, 0, 5), range(u32::MAX - 5, 10, 20)];
        assert_eq!(set.iter().collect::<Vec<_>>(), expected);
        assert_eq!((set.first(), set.last()), (Some(expected[0]), Some(expected[1])));
    }

    #[test]
    fn empty_and_reversed_ranges_change_nothing() {
        let mut set = SeqRanges::new();
        assert_eq!(set.insert(range(0, 5, 5)), 0);
        assert_eq!(set.insert(range(0, 9, 5)), 0);
        assert_eq!(set.remove(range(0, 9, 5)), 0);
        assert!(set.is_empty() && set.covers(&range(0, 5, 5)));
    }

    #[derive(Clone, Debug)]
    enum Change {
        Insert(u32, u32),
        Remove(u32, u32),
        RemoveBefore(u32),
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            6 => (0..SPACE, 0u32..40).prop_map(|(from, len)| Change::Insert(from, len)),
            3 => (0..SPACE, 0u32..40).prop_map(|(from, len)| Change::Remove(from, len)),
            1 => (0..SPACE / 2).prop_map(Change::RemoveBefore),
        ]
    }

    /// The set, with one flag per sequence number.
    struct Bitmap(Vec<bool>);

    impl Bitmap {
        fn set(&mut self, from: u32, to: u32, value: bool) -> u32 {
            let mut changed = 0;
            for flag in &mut self.0[from as usize..to.min(SPACE) as usize] {
                changed += u32::from(*flag != value);
                *flag = value;
            }
            changed
        }

        fn runs(&self, of: bool) -> Vec<(u32, u32)> {
            let mut runs: Vec<(u32, u32)> = Vec::new();
            for (at, _) in self.0.iter().enumerate().filter(|(_, flag)| **flag == of) {
                let at = at as u32;
                match runs.last_mut() {
                    Some(last) if last.1 == at => last.1 += 1,
                    _ => runs.push((at, at + 1)),
                }
            }
            runs
        }
    }

    proptest! {
        #[test]
        fn the_set_agrees_with_a_bitmap(base: u32, changes in prop::collection::vec(change(), 1..60)) {
            let mut set = SeqRanges::new();
            let mut model = Bitmap(std::vec![false; SPACE as usize]);
            for change in changes {
                match change {
                    Change::Insert(from, len) => {
                        let to = (from + len).min(SPACE);
                        prop_assert_eq!(set.insert(range(base, from, to)), model.set(from, to, true));
                    }
                    Change::Remove(from, len) => {
                        let to = (from + len).min(SPACE);
                        prop_assert_eq!(set.remove(range(base, from, to)), model.set(from, to, false));
                    }
                    Change::RemoveBefore(to) => {
                        prop_assert_eq!(set.remove_before(SeqNum(base) + to), model.set(0, to, false));
                    }
                }
                let expected: Vec<_> = model.runs(true).iter().map(|&(from, to)| range(base, from, to)).collect();
                prop_assert_eq!(set.iter().collect::<Vec<_>>(), expected);
                prop_assert_eq!(set.bytes(), model.0.iter().filter(|flag| **flag).count() as u32);
                let gaps: Vec<_> = model.runs(false).iter().map(|&(from, to)| range(base, from, to)).collect();
                prop_assert_eq!(set.gaps(range(base, 0, SPACE)).collect::<Vec<_>>(), gaps);
            }
        }

        #[test]
        fn queries_agree_with_a_bitmap(
            base: u32,
            inserts in prop::collection::vec((0..SPACE, 1u32..30), 0..12),
            from in 0..SPACE,
            len in 0u32..60,
        ) {
            let mut set = SeqRanges::new();
            let mut model = Bitmap(std::vec![false; SPACE as usize]);
            for (from, len) in inserts {
                let to = (from + len).min(SPACE);
                set.insert(range(base, from, to));
                model.set(from, to, true);
            }
            let to = (from + len).min(SPACE);
            let asked = range(base, from, to);
            let flags = &model.0[from as usize..to as usize];
            prop_assert_eq!(set.covers(&asked), flags.iter().all(|flag| *flag));
            prop_assert_eq!(set.intersects(&asked), flags.iter().any(|flag| *flag));
            prop_assert_eq!(set.contains(asked.start), model.0[from as usize]);
            let missing: u32 = set.gaps(asked).map(|gap| gap.len()).sum();
            prop_assert_eq!(missing as usize, flags.iter().filter(|flag| !**flag).count());
        }

        #[test]
        fn ranges_anywhere_in_sequence_space_do_not_panic(
            ranges in prop::collection::vec((any::<u32>(), any::<u32>()), 0..40),
        ) {
            let mut set = SeqRanges::new();
            for (index, (start, end)) in ranges.into_iter().enumerate() {
                let range = SeqRange::new(SeqNum(start), SeqNum(end));
                match index % 4 {
                    0 | 1 => { set.insert(range); }
                    2 => { set.remove(range); }
                    _ => { set.remove_before(SeqNum(start)); }
                }
                let _ = (set.covers(&range), set.intersects(&range), set.gaps(range).count());
            }
        }
    }
}
