//! Reassembly (RFC 9293 section 3.10.7.4): what a segment adds to the stream.
//!
//! The assembler knows RCV.NXT, which ranges above it have arrived, and where the FIN is. It holds
//! no bytes: those lie in the [queue](super::queue) at their final place. For every segment it says
//! what the acknowledgement must know of it: did the left edge move, was a hole filled, what of it
//! had arrived before (RFC 2883), and which SACK block contains it now (RFC 2018).

use brisk_wire::SeqNum;

use crate::seq_ranges::{SeqRange, SeqRanges};

/// Most separate ranges that are kept above RCV.NXT. A segment that would make one more is treated
/// as lost: a peer that sends every other byte must not make us keep a range for each. Alternating
/// loss over the largest default window (6 MiB in 1448-byte segments) makes 2172.
const RANGES_MAX: usize = 4096;

/// How a segment relates to what arrived before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ArrivalKind {
    /// It takes no sequence space.
    Empty,
    /// It starts at or below RCV.NXT and brings new data, and nothing waits above it.
    InOrder,
    /// It moved RCV.NXT while out-of-order data was held: it filled a hole or a part of one
    /// (RFC 5681 section 4.2: acknowledge at once).
    FillsHole,
    /// It lies above RCV.NXT, and brings new data.
    OutOfOrder,
    /// It brings nothing that had not arrived.
    Duplicate,
}

/// What [`Assembler::on_data`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    /// How the segment relates to what arrived before it.
    pub(crate) kind: ArrivalKind,
    /// Bytes of data by which RCV.NXT advanced, those that waited above included; the FIN is not
    /// counted.
    pub(crate) advanced: u32,
    /// The part of the payload at or above the old RCV.NXT: what the queue has to store.
    pub(crate) store: SeqRange,
    /// The first part of the segment that had arrived before, for a DSACK block (RFC 2883).
    pub(crate) duplicate: Option<SeqRange>,
    /// The contiguous range above RCV.NXT that the segment belongs to now, for the SACK block that
    /// RFC 2018 section 4 wants first.
    pub(crate) block: Option<SeqRange>,
    /// The FIN was reached by this arrival: the stream is complete.
    pub(crate) fin_reached: bool,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct Assembler {
    rcv_nxt: SeqNum,
    /// What arrived above RCV.NXT; never touches it. A FIN counts as one sequence number.
    above: SeqRanges,
    /// Sequence number of the FIN, once seen.
    fin: Option<SeqNum>,
}

impl Assembler {
    /// An assembler that expects `rcv_nxt` next (IRS + 1).
    pub(crate) fn new(rcv_nxt: SeqNum) -> Self {
        Assembler { rcv_nxt, above: SeqRanges::new(), fin: None }
    }

    /// RCV.NXT. It counts the FIN once that was reached.
    pub(crate) fn rcv_nxt(&self) -> SeqNum {
        self.rcv_nxt
    }

    /// What arrived out of order; a FIN among it counts as one sequence number.
    pub(crate) fn above(&self) -> &SeqRanges {
        &self.above
    }

    /// True if something waits above a hole.
    pub(crate) fn has_hole(&self) -> bool {
        !self.above.is_empty()
    }

    /// Sequence number of the FIN, if it was seen, reached or not.
    pub(crate) fn fin(&self) -> Option<SeqNum> {
        self.fin
    }

    /// True once everything up to and including the FIN has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.fin.is_some_and(|fin| self.rcv_nxt == fin + 1)
    }

    /// Takes a segment that the window accepted, already cut to the window: `payload` is its range
    /// without SYN and FIN, `fin` whether a FIN follows.
    ///
    /// A second FIN at another place, and data beyond the FIN, break the protocol: they are ignored.
    pub(crate) fn on_data(&mut self, payload: SeqRange, fin: bool) -> Arrival {
        let before = self.rcv_nxt;
        let segment = self.admit(payload, fin);
        let duplicate = self.first_duplicate(&segment);
        let kind = self.take(segment);
        let block = if segment.is_empty() { None } else { self.above.range_at(segment.start) };
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

    /// The sequence space of the segment, FIN included, as far as it agrees with the FIN that is
    /// known. A first FIN is noted.
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

    /// A stream cannot end before data that has arrived.
    fn may_end_at(&self, end: SeqNum) -> bool {
        end.ge(self.rcv_nxt) && self.above.last().is_none_or(|last| last.end.le(end))
    }

    fn first_duplicate(&self, segment: &SeqRange) -> Option<SeqRange> {
        if segment.is_empty() {
            None
        } else if segment.start.lt(self.rcv_nxt) {
            Some(SeqRange::new(segment.start, segment.end.min(self.rcv_nxt)))
        } else {
            self.first_overlap(segment)
        }
    }

    /// The first stretch of `segment` that is among what waits.
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

    /// Moves RCV.NXT to `end` and over what waits from there on.
    fn advance_to(&mut self, end: SeqNum) {
        self.rcv_nxt = match self.above.range_at(end) {
            Some(waiting) => waiting.end,
            None => end,
        };
        self.above.remove_before(self.rcv_nxt);
    }
}
