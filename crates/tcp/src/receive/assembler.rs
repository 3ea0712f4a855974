//! Reassembly (RFC 9293 section 3.10.7.4): the data that a segment adds to the stream.
//!
//! The assembler knows RCV.NXT, the ranges above it that have arrived, and the place of the FIN. It has no
//! bytes: the [queue](super::queue) stores them at their final place. For every segment it returns the facts
//! that determine the acknowledgement: whether the left edge moved, whether a hole was filled, which part had
//! arrived before (RFC 2883), and which SACK block now contains the segment (RFC 2018).

use brisk_wire::SeqNum;

use crate::on_demand::OnDemand;
use crate::seq_ranges::{SeqRange, SeqRanges};

/// Maximum number of separate ranges above RCV.NXT. A segment that would add another is dropped. Otherwise a
/// peer that sends every other byte would occupy memory for each. Alternating loss over the largest default
/// window (6 MiB in 1448-byte segments) causes 2172.
const RANGES_MAX: usize = 4096;

/// Relation of a segment to earlier arrivals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ArrivalKind {
    /// The segment has no sequence space.
    Empty,
    /// The segment starts at or below RCV.NXT and has new data. No data waits above it.
    InOrder,
    /// The segment moved RCV.NXT while out-of-order data waited: it filled a hole or a part of one (RFC 5681
    /// section 4.2: acknowledge at once).
    FillsHole,
    /// The segment is above RCV.NXT and has new data.
    OutOfOrder,
    /// The segment has no new data.
    Duplicate,
}

/// Result of [`Assembler::on_data`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    /// Relation of the segment to earlier arrivals.
    pub(crate) kind: ArrivalKind,
    /// Bytes of data by which RCV.NXT advanced, including those that waited above; the FIN is not counted.
    pub(crate) advanced: u32,
    /// The part of the payload at or above the old RCV.NXT, which the queue must store.
    pub(crate) store: SeqRange,
    /// The first part of the segment that had arrived before, for a DSACK block (RFC 2883).
    pub(crate) duplicate: Option<SeqRange>,
    /// The contiguous range above RCV.NXT that now contains the segment, for the SACK block that RFC 2018
    /// section 4 requires first.
    pub(crate) block: Option<SeqRange>,
    /// This arrival reached the FIN: the stream is complete.
    pub(crate) fin_reached: bool,
}

impl Arrival {
    /// True if the segment is above RCV.NXT, with or without new data.
    pub(crate) fn is_above_hole(&self) -> bool {
        match self.kind {
            ArrivalKind::OutOfOrder => true,
            ArrivalKind::Duplicate => self.block.is_some(),
            ArrivalKind::Empty | ArrivalKind::InOrder | ArrivalKind::FillsHole => false,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Assembler {
    rcv_nxt: SeqNum,
    /// Data that arrived above RCV.NXT and does not touch it. A FIN counts as one sequence number.
    above: OnDemand<SeqRanges>,
    /// Sequence number of the FIN, once seen.
    fin: Option<SeqNum>,
}

impl Assembler {
    /// Returns an assembler that expects `rcv_nxt` next (IRS + 1).
    pub(crate) fn new(rcv_nxt: SeqNum) -> Self {
        Assembler { rcv_nxt, above: OnDemand::new(), fin: None }
    }

    /// Frees memory that an idle receiver does not need.
    pub(crate) fn release_memory(&mut self) {
        self.above.release();
    }

    /// Returns RCV.NXT. It includes the FIN once everything before the FIN has arrived.
    pub(crate) fn rcv_nxt(&self) -> SeqNum {
        self.rcv_nxt
    }

    /// True if data or a FIN waits above a hole.
    pub(crate) fn has_hole(&self) -> bool {
        !self.above.is_empty()
    }

    /// True if only the FIN waits above a hole.
    pub(crate) fn holds_only_fin(&self) -> bool {
        self.fin.is_some_and(|fin| self.above.first() == Some(SeqRange::new(fin, fin + 1)))
    }

    /// Iterates over the parts of `within` that have not arrived. `within` begins at or above RCV.NXT.
    pub(crate) fn gaps(&self, within: SeqRange) -> impl Iterator<Item = SeqRange> + '_ {
        self.above.gaps(within)
    }

    /// True once the FIN has arrived, in order or not.
    pub(crate) fn fin_known(&self) -> bool {
        self.fin.is_some()
    }

    /// True once everything up to and including the FIN has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.fin.is_some_and(|fin| self.rcv_nxt == fin + 1)
    }

    /// True if a part of `segment`, including its FIN, has not arrived.
    pub(crate) fn brings_new(&self, segment: &SeqRange) -> bool {
        segment.end.gt(self.rcv_nxt) && !self.above.covers(segment)
    }

    /// Processes a segment. `payload` is its range, cut to the window and without SYN and FIN. `fin` is true
    /// if a FIN follows.
    ///
    /// A second FIN at another place, and data beyond the FIN, violate the protocol and are ignored.
    pub(crate) fn on_data(&mut self, payload: SeqRange, fin: bool) -> Arrival {
        let before = self.rcv_nxt;
        let segment = self.admit(payload, fin);
        let duplicate = self.first_duplicate(&segment);
        let kind = self.take(segment);
        let block = self.above.range_at(segment.start).filter(|_| !segment.is_empty());
        let stored = match kind {
            ArrivalKind::InOrder | ArrivalKind::FillsHole => true,
            ArrivalKind::OutOfOrder => block.is_some(),
            ArrivalKind::Empty | ArrivalKind::Duplicate => false,
        };
        let store = if stored {
            SeqRange::new(payload.start.max(before), payload.end.min(segment.end).max(before))
        } else {
            SeqRange::new(before, before)
        };
        let fin_reached = self.rcv_nxt != before && self.is_complete();
        let advanced = self.rcv_nxt.since(before) - u32::from(fin_reached);
        Arrival { kind, advanced, store, duplicate, block, fin_reached }
    }

    /// Returns the sequence space of the segment, including its FIN. Leaves out the part that contradicts the
    /// known FIN. Records a first FIN.
    fn admit(&mut self, payload: SeqRange, fin: bool) -> SeqRange {
        if fin && self.fin.is_none() && self.may_end_at(payload.end) {
            self.fin = Some(payload.end);
        }
        match self.fin {
            Some(at) if fin && at == payload.end => SeqRange::new(payload.start, at + 1),
            Some(at) => SeqRange::new(payload.start, payload.end.min(at)),
            None => payload,
        }
    }

    /// True if the stream can end at `end`: no data after it has arrived.
    fn may_end_at(&self, end: SeqNum) -> bool {
        end.ge(self.rcv_nxt) && self.above.last().is_none_or(|last| last.end.le(end))
    }

    fn first_duplicate(&self, segment: &SeqRange) -> Option<SeqRange> {
        if segment.is_empty() {
            None
        } else if segment.start.lt(self.rcv_nxt) {
            Some(SeqRange::new(segment.start, segment.end.min(self.rcv_nxt)))
        } else if self.above.is_empty() {
            None
        } else {
            self.first_overlap(segment)
        }
    }

    /// Returns the first part of `segment` that waits already.
    fn first_overlap(&self, segment: &SeqRange) -> Option<SeqRange> {
        let overlap = match self.above.gaps(*segment).next() {
            Some(gap) if gap.start == segment.start => self.above.range_at(gap.end)?,
            Some(gap) => SeqRange::new(segment.start, gap.start),
            None => *segment,
        };
        overlap.intersection(segment)
    }

    fn take(&mut self, segment: SeqRange) -> ArrivalKind {
        if segment.is_empty() {
            return ArrivalKind::Empty;
        }
        if segment.end.le(self.rcv_nxt) || self.above.covers(&segment) {
            return ArrivalKind::Duplicate;
        }
        if segment.start.le(self.rcv_nxt) {
            let kind = if self.has_hole() { ArrivalKind::FillsHole } else { ArrivalKind::InOrder };
            self.advance_to(segment.end);
            return kind;
        }
        let joins = self.above.intersects(&SeqRange::new(segment.start - 1, segment.end + 1));
        if joins || self.above.len() < RANGES_MAX {
            self.above.insert(segment);
        }
        ArrivalKind::OutOfOrder
    }

    /// Moves RCV.NXT to `end`, and past waiting data that begins there.
    fn advance_to(&mut self, end: SeqNum) {
        self.rcv_nxt = match self.above.range_at(end) {
            Some(waiting) => waiting.end,
            None => end,
        };
        if let Some(above) = self.above.get_mut() {
            above.remove_before(self.rcv_nxt);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receive::{RecvQueue, SackReporter};
    use alloc::vec;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn range(start: u32, end: u32) -> SeqRange {
        SeqRange::new(SeqNum(start), SeqNum(end))
    }

    #[test]
    fn in_order_data_advances_the_left_edge() {
        let mut assembler = Assembler::new(SeqNum(1));
        let arrival = assembler.on_data(range(1, 101), false);
        assert_eq!(arrival.kind, ArrivalKind::InOrder);
        assert_eq!((arrival.advanced, arrival.store), (100, range(1, 101)));
        assert_eq!((arrival.duplicate, arrival.block, arrival.fin_reached), (None, None, false));
        assert_eq!(assembler.rcv_nxt(), SeqNum(101));
    }

    /// RFC 9293 section 3.10.7.4: "Segments with higher beginning sequence numbers SHOULD be held for
    /// later processing."
    #[test]
    fn data_above_a_hole_is_held_and_delivered_when_the_hole_is_filled() {
        let mut assembler = Assembler::new(SeqNum(1));
        let arrival = assembler.on_data(range(101, 201), false);
        assert_eq!(arrival.kind, ArrivalKind::OutOfOrder);
        assert_eq!((arrival.advanced, arrival.store), (0, range(101, 201)));
        assert_eq!(arrival.block, Some(range(101, 201)));
        let arrival = assembler.on_data(range(201, 301), false);
        assert_eq!(arrival.block, Some(range(101, 301)), "adjacent segments make one block");
        let arrival = assembler.on_data(range(1, 101), false);
        assert_eq!(arrival.kind, ArrivalKind::FillsHole);
        assert_eq!((arrival.advanced, arrival.store), (300, range(1, 101)));
        assert!(!assembler.has_hole());
    }

    /// RFC 5681 section 4.2: "fills in all or part of a gap".
    #[test]
    fn partly_filled_hole_is_not_reported_as_in_order() {
        let mut assembler = Assembler::new(SeqNum(1));
        assembler.on_data(range(201, 301), false);
        let arrival = assembler.on_data(range(1, 101), false);
        assert_eq!((arrival.kind, arrival.advanced), (ArrivalKind::FillsHole, 100));
        assert!(assembler.has_hole());
    }

    /// RFC 2883 section 4.1: a duplicate below the cumulative acknowledgement, whole and in part.
    #[test]
    fn duplicates_below_the_left_edge_are_named() {
        let mut assembler = Assembler::new(SeqNum(1));
        assembler.on_data(range(1, 201), false);
        let whole = assembler.on_data(range(1, 101), false);
        assert_eq!((whole.kind, whole.duplicate), (ArrivalKind::Duplicate, Some(range(1, 101))));
        assert!(whole.store.is_empty());
        let part = assembler.on_data(range(101, 301), false);
        assert_eq!((part.kind, part.duplicate), (ArrivalKind::InOrder, Some(range(101, 201))));
        assert_eq!((part.store, part.advanced), (range(201, 301), 100));
    }

    /// RFC 2883 sections 4.2.2 and 4.2.3: a duplicate above the cumulative acknowledgement is followed
    /// by the block that contains it; of two duplicate stretches the first is reported.
    #[test]
    fn duplicates_above_the_left_edge_are_named_with_their_block() {
        let mut assembler = Assembler::new(SeqNum(1));
        assembler.on_data(range(101, 201), false);
        assembler.on_data(range(301, 401), false);
        let whole = assembler.on_data(range(101, 151), false);
        assert_eq!((whole.kind, whole.duplicate), (ArrivalKind::Duplicate, Some(range(101, 151))));
        assert_eq!(whole.block, Some(range(101, 201)));
        let bridge = assembler.on_data(range(151, 351), false);
        assert_eq!((bridge.kind, bridge.duplicate), (ArrivalKind::OutOfOrder, Some(range(151, 201))));
        assert_eq!(bridge.block, Some(range(101, 401)));
        let late = assembler.on_data(range(51, 151), false);
        assert_eq!((late.duplicate, late.block), (Some(range(101, 151)), Some(range(51, 401))));
    }

    #[test]
    fn a_fin_is_reached_when_all_before_it_has_arrived() {
        let mut assembler = Assembler::new(SeqNum(1));
        let early = assembler.on_data(range(101, 201), true);
        assert_eq!((early.fin_reached, early.block), (false, Some(range(101, 202))), "the FIN is a number");
        assert_eq!(early.store, range(101, 201), "and not a byte");
        let last = assembler.on_data(range(1, 101), false);
        assert_eq!((last.fin_reached, last.advanced), (true, 200));
        assert_eq!((assembler.rcv_nxt(), assembler.is_complete()), (SeqNum(202), true));
        let again = assembler.on_data(range(101, 201), true);
        assert_eq!((again.kind, again.fin_reached), (ArrivalKind::Duplicate, false));
        assert_eq!(again.duplicate, Some(range(101, 202)));
    }

    #[test]
    fn a_bare_fin_completes_the_stream() {
        let mut assembler = Assembler::new(SeqNum(1));
        let arrival = assembler.on_data(range(1, 1), true);
        assert_eq!((arrival.kind, arrival.fin_reached, arrival.advanced), (ArrivalKind::InOrder, true, 0));
        assert_eq!(assembler.rcv_nxt(), SeqNum(2));
    }

    #[test]
    fn data_that_contradicts_the_fin_is_ignored() {
        let mut assembler = Assembler::new(SeqNum(1));
        assembler.on_data(range(101, 201), true);
        let beyond = assembler.on_data(range(151, 301), false);
        assert_eq!((beyond.kind, beyond.block), (ArrivalKind::Duplicate, Some(range(101, 202))));
        let second = assembler.on_data(range(1, 51), true);
        assert_eq!((second.advanced, second.fin_reached, assembler.fin), (50, false, Some(SeqNum(201))));
        assert_eq!(assembler.on_data(range(300, 400), false).kind, ArrivalKind::Empty);

        let mut assembler = Assembler::new(SeqNum(1));
        assembler.on_data(range(101, 201), false);
        assembler.on_data(range(1, 51), true);
        assert_eq!(assembler.fin, None, "a stream does not end before data that has arrived");
    }

    #[test]
    fn full_table_still_accepts_data_adjacent_to_a_range() {
        let mut assembler = Assembler::new(SeqNum(1));
        let start = |i: u32| 101 + 100 * i;
        for i in 0..RANGES_MAX as u32 {
            assembler.on_data(range(start(i), start(i) + 10), false);
        }
        let apart = assembler.on_data(range(start(1) + 11, start(1) + 21), false);
        assert_eq!((apart.block, apart.store.is_empty()), (None, true), "one byte away");
        let apart = assembler.on_data(range(start(2) - 11, start(2) - 1), false);
        assert_eq!((apart.block, apart.store.is_empty()), (None, true), "one byte before");
        let behind = assembler.on_data(range(start(1) + 10, start(1) + 20), false);
        assert_eq!(behind.block, Some(range(start(1), start(1) + 20)));
        let before = assembler.on_data(range(start(2) - 10, start(2)), false);
        assert_eq!(before.block, Some(range(start(2) - 10, start(2) + 10)));
        assert_eq!(assembler.above.len(), RANGES_MAX);
    }

    #[test]
    fn ranges_are_bounded_and_a_refused_segment_is_not_stored() {
        let mut assembler = Assembler::new(SeqNum(0));
        for i in 0..RANGES_MAX as u32 {
            assembler.on_data(range(2 * i + 1, 2 * i + 2), false);
        }
        let beyond = 2 * RANGES_MAX as u32 + 1;
        let refused = assembler.on_data(range(beyond, beyond + 1), false);
        assert_eq!((refused.kind, refused.block), (ArrivalKind::OutOfOrder, None));
        assert!(refused.store.is_empty());
        assert_eq!(assembler.above.len(), RANGES_MAX);
        assert_eq!(assembler.on_data(range(2, 3), false).block, Some(range(1, 4)), "what joins is taken");
    }

    /// Returns byte `i` of the stream of the property test.
    fn byte(i: usize) -> u8 {
        (i * 31 + i / 251) as u8
    }

    /// Model of a receiver: the set of bytes that have arrived.
    struct Model {
        arrived: Vec<bool>,
    }

    impl Model {
        fn in_order(&self) -> usize {
            self.arrived.iter().take_while(|arrived| **arrived).count()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        /// Random overlapping segments, with reads between them, deliver exactly the stream.
        #[test]
        fn random_overlapping_segments_deliver_exactly_the_stream(
            iss in any::<u32>(),
            len in 1usize..6000,
            segments in prop::collection::vec((0usize..6000, 1usize..1500, 0usize..3000), 1..60),
        ) {
            let first = SeqNum(iss);
            let mut assembler = Assembler::new(first);
            let mut queue = RecvQueue::new(len);
            let mut sack = SackReporter::default();
            let mut model = Model { arrived: vec![false; len] };
            let mut stream = Vec::new();
            let sweep = (0..len).step_by(700).map(|start| (start, 900, 2000));
            for (start, size, read) in segments.into_iter().chain(sweep) {
                let start = start % len;
                let end = (start + size).min(len);
                let fin = end == len;
                let before = model.in_order();
                let expected_duplicate = (start..end).find(|&i| model.arrived[i]);
                let all_known = model.arrived[start..end].iter().all(|arrived| *arrived);
                let was_complete = assembler.is_complete();

                let payload: Vec<u8> = (start..end).map(byte).collect();
                let range = SeqRange::new(first + start as u32, first + end as u32);
                let arrival = assembler.on_data(range, fin);
                let skip = arrival.store.start.since(range.start) as usize;
                if !arrival.store.is_empty() {
                    let bytes = &payload[skip..skip + arrival.store.len() as usize];
                    let offset = start + skip - stream.len();
                    prop_assert_eq!(queue.write_at(offset, bytes), bytes.len());
                }
                queue.advance(arrival.advanced as usize);
                sack.on_arrival(&arrival, assembler.rcv_nxt());

                model.arrived[start..end].fill(true);
                let after = model.in_order();
                prop_assert_eq!(arrival.advanced as usize, after - before);
                prop_assert_eq!(arrival.fin_reached, after == len && !was_complete);
                prop_assert_eq!(
                    arrival.duplicate.filter(|range| range.start != first + len as u32).map(|range| range.start),
                    expected_duplicate.map(|i| first + i as u32)
                );
                if arrival.kind == ArrivalKind::Duplicate {
                    prop_assert!(all_known);
                }
                prop_assert_eq!(
                    assembler.rcv_nxt(),
                    first + (after + usize::from(assembler.is_complete())) as u32
                );
                for block in sack.blocks(4).iter().skip(usize::from(arrival.duplicate.is_some())) {
                    let own = SeqRange::new(block.start, block.end);
                    prop_assert!(assembler.above.iter().any(|range| range == own), "a block is a range");
                }
                sack.on_ack_sent();

                let mut out = vec![0; read];
                let count = queue.read(&mut out);
                stream.extend_from_slice(&out[..count]);
            }
            let mut rest = vec![0; queue.readable()];
            queue.read(&mut rest);
            stream.extend_from_slice(&rest);
            prop_assert!(assembler.is_complete());
            prop_assert_eq!(stream, (0..len).map(byte).collect::<Vec<u8>>());
            queue.take_storage();
            prop_assert_eq!(queue.memory(), 0);
        }
    }
}
