//! Which SACK blocks the next acknowledgement carries (RFC 2018 section 4, RFC 2883 section 4).
//!
//! Order matters, because acknowledgements get lost and few blocks fit: first the duplicate, if the
//! acknowledgement answers one; then the block that holds the segment that triggered it; then the
//! blocks reported most recently, newest first.

use arrayvec::ArrayVec;
use brisk_wire::{SackBlock, SackBlocks, SeqNum};

use super::assembler::Arrival;
use crate::seq_ranges::SeqRange;

/// Blocks that are remembered: the option never holds more.
const BLOCKS: usize = 4;

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(crate) struct SackReporter {
    /// A duplicate that has not been reported yet.
    dsack: Option<SeqRange>,
    /// Blocks above RCV.NXT, the most recently changed first.
    recent: ArrayVec<SeqRange, BLOCKS>,
}

impl SackReporter {
    /// A reporter with nothing to report.
    pub(crate) fn new() -> Self {
        SackReporter::default()
    }

    /// Notes what a segment changed; `rcv_nxt` is RCV.NXT after it.
    pub(crate) fn on_arrival(&mut self, arrival: &Arrival, rcv_nxt: SeqNum) {
        if arrival.duplicate.is_some() {
            self.dsack = arrival.duplicate;
        }
        self.recent.retain(|known| known.start.gt(rcv_nxt));
        if let Some(block) = arrival.block {
            self.recent.retain(|known| !block.covers(known));
            if self.recent.is_full() {
                self.recent.pop();
            }
            self.recent.insert(0, block);
        }
    }

    /// The duplicate that the next acknowledgement reports, if there is one.
    pub(crate) fn dsack(&self) -> Option<SeqRange> {
        self.dsack
    }

    /// True if the next acknowledgement has blocks to report.
    pub(crate) fn has_blocks(&self) -> bool {
        self.dsack.is_some() || !self.recent.is_empty()
    }

    /// The blocks of the next acknowledgement, at most `room` of them.
    pub(crate) fn blocks(&self, room: usize) -> SackBlocks {
        self.dsack
            .iter()
            .chain(&self.recent)
            .map(|range| SackBlock { start: range.start, end: range.end })
            .take(room.min(BLOCKS))
            .collect()
    }

    /// An acknowledgement with these blocks left: a duplicate is reported once (RFC 2883 section 4).
    pub(crate) fn on_ack_sent(&mut self) {
        self.dsack = None;
    }
}
