//! The SACK blocks of the next acknowledgement (RFC 2018 section 4, RFC 2883 section 4).
//!
//! Their order matters, because acknowledgements may be lost and few blocks fit. First comes the duplicate,
//! if the acknowledgement responds to one. Then comes the block with the segment that triggered the
//! acknowledgement. The blocks reported most recently follow, newest first.

use arrayvec::ArrayVec;
use brisk_wire::{SackBlock, SackBlocks, SeqNum};

use super::assembler::Arrival;
use crate::on_demand::{Initial, OnDemand};
use crate::seq_ranges::SeqRange;

/// Number of remembered blocks, the maximum in an option.
const BLOCKS: usize = 4;

#[derive(Clone, Debug, Default)]
pub(crate) struct SackReporter {
    pending: OnDemand<PendingSack>,
}

/// The report of the next acknowledgement.
#[derive(Clone, PartialEq, Debug)]
struct PendingSack {
    /// A duplicate that has not been reported yet.
    dsack: Option<SeqRange>,
    /// Blocks above RCV.NXT, the most recently changed first.
    recent: ArrayVec<SeqRange, BLOCKS>,
}

impl Initial for PendingSack {
    const INITIAL: PendingSack = PendingSack { dsack: None, recent: ArrayVec::new_const() };
    const SHARED: &'static PendingSack = &Self::INITIAL;
}

impl SackReporter {
    /// Records the effect of a segment; `rcv_nxt` is RCV.NXT after it.
    pub(crate) fn on_arrival(&mut self, arrival: &Arrival, rcv_nxt: SeqNum) {
        if arrival.duplicate.is_some() {
            self.pending.dsack = arrival.duplicate;
        }
        if let Some(pending) = self.pending.get_mut() {
            pending.recent.retain(|known| known.start.gt(rcv_nxt));
        }
        if let Some(block) = arrival.block {
            let recent = &mut self.pending.recent;
            recent.retain(|known| !block.covers(known));
            if recent.is_full() {
                recent.pop();
            }
            recent.insert(0, block);
        }
    }

    /// Records a duplicate that the assembler did not process, because it was outside the window.
    pub(crate) fn on_duplicate(&mut self, range: SeqRange) {
        self.pending.dsack = Some(range);
    }

    /// Frees memory that an idle receiver does not need.
    pub(crate) fn release_memory(&mut self) {
        self.pending.release();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.dsack.is_none() && self.pending.recent.is_empty()
    }

    /// Returns the number of [`SackReporter::blocks`] for this `max`.
    pub(crate) fn count(&self, max: usize) -> usize {
        let PendingSack { dsack, recent } = &*self.pending;
        (usize::from(dsack.is_some()) + recent.len()).min(max.min(BLOCKS))
    }

    /// Returns the blocks of the next acknowledgement, at most `max`.
    pub(crate) fn blocks(&self, max: usize) -> SackBlocks {
        let PendingSack { dsack, recent } = &*self.pending;
        dsack
            .iter()
            .chain(recent)
            .map(|range| SackBlock { start: range.start, end: range.end })
            .take(max.min(BLOCKS))
            .collect()
    }

    /// Records that an acknowledgement with these blocks left. A duplicate is reported once (RFC 2883 section
    /// 4).
    pub(crate) fn on_ack_sent(&mut self) {
        if let Some(pending) = self.pending.get_mut() {
            pending.dsack = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receive::Assembler;
    use alloc::vec::Vec;

    /// A receiver that expects 0 next.
    struct Receiver {
        assembler: Assembler,
        sack: SackReporter,
    }

    impl Receiver {
        fn new() -> Self {
            Receiver { assembler: Assembler::new(SeqNum(0)), sack: SackReporter::default() }
        }

        /// Processes a segment; returns the blocks of its acknowledgement.
        fn takes(&mut self, start: u32, end: u32) -> Vec<(u32, u32)> {
            let arrival = self.assembler.on_data(SeqRange::new(SeqNum(start), SeqNum(end)), false);
            self.sack.on_arrival(&arrival, self.assembler.rcv_nxt());
            let blocks = self.sack.blocks(3).iter().map(|block| (block.start.0, block.end.0)).collect();
            self.sack.on_ack_sent();
            blocks
        }
    }

    /// RFC 2018 section 4: "The first SACK block [...] MUST specify the contiguous block of data
    /// containing the segment which triggered this ACK"; "The SACK option SHOULD be filled out by
    /// repeating the most recently reported SACK blocks".
    #[test]
    fn the_block_of_the_latest_segment_comes_first_and_the_others_by_recency() {
        let mut receiver = Receiver::new();
        assert_eq!(receiver.takes(10, 20), [(10, 20)]);
        assert_eq!(receiver.takes(30, 40), [(30, 40), (10, 20)]);
        assert_eq!(receiver.takes(50, 60), [(50, 60), (30, 40), (10, 20)]);
        assert_eq!(receiver.takes(70, 80), [(70, 80), (50, 60), (30, 40)]);
        assert_eq!(receiver.takes(20, 25), [(10, 25), (70, 80), (50, 60)]);
        assert_eq!(receiver.takes(25, 30), [(10, 40), (70, 80), (50, 60)]);
    }

    #[test]
    fn blocks_below_the_cumulative_acknowledgement_vanish() {
        let mut receiver = Receiver::new();
        receiver.takes(10, 20);
        receiver.takes(30, 40);
        assert_eq!(receiver.takes(0, 10), [(30, 40)]);
        assert_eq!(receiver.takes(20, 30), []);
    }

    /// RFC 2883 section 4: "A D-SACK block is only used to report a duplicate contiguous sequence of
    /// data received by the receiver in the most recent packet"; "Each duplicate contiguous sequence
    /// of data received is reported in at most one D-SACK block".
    #[test]
    fn a_duplicate_comes_first_and_is_reported_once() {
        let mut receiver = Receiver::new();
        receiver.takes(0, 10);
        receiver.takes(20, 30);
        assert_eq!(receiver.takes(0, 10), [(0, 10), (20, 30)]);
        assert_eq!(receiver.takes(40, 50), [(40, 50), (20, 30)]);
    }

    /// RFC 2883 section 4.2.3: the block that contains the duplicate follows it.
    #[test]
    fn a_duplicate_above_a_hole_is_followed_by_its_block() {
        let mut receiver = Receiver::new();
        receiver.takes(10, 30);
        receiver.takes(50, 60);
        assert_eq!(receiver.takes(10, 20), [(10, 20), (10, 30), (50, 60)]);
    }

    #[test]
    fn room_limits_the_blocks() {
        let mut receiver = Receiver::new();
        receiver.takes(10, 20);
        receiver.takes(30, 40);
        assert_eq!(receiver.sack.blocks(1).len(), 1);
        assert!(receiver.sack.blocks(0).is_empty());
    }
}
