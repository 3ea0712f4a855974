//! The send buffer: bytes from SND.UNA on, sent or not, until they are acknowledged; where the
//! application pushed (RFC 9293 section 3.9.1, PSH); and whether a FIN follows.
//!
//! It knows bytes, not segments: what was sent and what became of it is on the scoreboard. Memory is
//! taken with the first write and given back when everything is acknowledged.

use alloc::collections::VecDeque;

use brisk_wire::SeqNum;

use crate::config::BufferConfig;
use crate::seq_ranges::SeqRange;

/// An empty queue keeps at most this much memory, bytes.
const IDLE_BYTES: usize = 4096;
/// Push marks that are kept; beyond it the oldest are forgotten.
const MAX_PUSH_MARKS: usize = 64;

/// The send buffer of one connection.
#[derive(Clone, Debug)]
pub(crate) struct SendQueue {
    bytes: VecDeque<u8>,
    start: SeqNum,
    limit: usize,
    max: usize,
    fin: bool,
    /// One past the last byte of what was pushed, ascending.
    pushes: VecDeque<SeqNum>,
    /// The highest sequence number that was sent.
    sent: SeqNum,
    max_window: u32,
}

impl SendQueue {
    /// An empty queue that starts at sequence number 0 until [`SendQueue::set_start`].
    pub(crate) fn new(config: BufferConfig) -> Self {
        SendQueue {
            bytes: VecDeque::new(),
            start: SeqNum(0),
            limit: config.initial,
            max: config.max.max(config.initial),
            fin: false,
            pushes: VecDeque::new(),
            sent: SeqNum(0),
            max_window: 0,
        }
    }

    /// Sets the sequence number of the first byte: ISS + 1. Bytes that are queued already move along.
    pub(crate) fn set_start(&mut self, seq: SeqNum) {
        let shift = seq.since(self.start);
        for push in &mut self.pushes {
            *push += shift;
        }
        self.sent += shift;
        self.start = seq;
    }

    /// Sequence number of the first byte that is kept.
    pub(crate) fn start(&self) -> SeqNum {
        self.start
    }

    /// Sequence number after the last byte written; a FIN takes this number.
    pub(crate) fn end(&self) -> SeqNum {
        self.start + self.len() as u32
    }

    /// Bytes kept: sent and not acknowledged, and not sent.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True if every byte written is acknowledged.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes that a write would take now.
    pub(crate) fn free(&self) -> usize {
        if self.fin { 0 } else { self.limit.saturating_sub(self.bytes.len()) }
    }

    /// Bytes of memory held.
    pub(crate) fn allocated(&self) -> usize {
        self.bytes.capacity()
    }

    /// Appends what fits and returns how much that was: 0 after [`SendQueue::queue_fin`].
    pub(crate) fn write(&mut self, data: &[u8]) -> usize {
        let taken = data.len().min(self.free());
        let Some(data) = data.get(..taken).filter(|data| !data.is_empty()) else {
            return 0;
        };
        let needed = self.bytes.len() + taken;
        if needed > self.bytes.capacity() {
            // Doubles, but never beyond what may be used.
            let capacity = needed.max(self.bytes.capacity().saturating_mul(2)).min(self.limit.max(needed));
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend(data);
        self.force_push();
        taken
    }

    /// The application pushes: the last byte written so far ends a message. Called at the end of each
    /// write that is not corked. RFC 9293 3.9.1: a sender "MUST set the PSH bit in the last
    /// buffered segment (i.e., when there is no more queued data to be sent)" (MUST-61).
    pub(crate) fn mark_push(&mut self) {
        // A mark that nothing was sent up to yet is no longer the end of what is buffered.
        while self.pushes.back().is_some_and(|push| push.gt(self.sent)) {
            self.pushes.pop_back();
        }
        self.add_push(self.end());
    }

    /// True if the segment with this payload carries PSH: it reaches the end of what was pushed, or
    /// it empties the queue.
    pub(crate) fn push_at(&self, range: SeqRange) -> bool {
        if range.is_empty() {
            return false;
        }
        let index = self.pushes.partition_point(|push| push.le(range.start));
        range.end.ge(self.end()) || self.pushes.get(index).is_some_and(|push| push.le(range.end))
    }

    /// Bytes up to `to` were sent: the marks up to there stay, so that a retransmission carries PSH
    /// where the original did.
    pub(crate) fn on_sent(&mut self, to: SeqNum) {
        let to = to.min(self.end());
        if to == self.end() && to.gt(self.sent) {
            self.add_push(to);
        }
        self.sent = self.sent.max(to);
    }

    /// MAX.SND.WND, bytes: half of it is the most that is written between two pushes, so that a
    /// receiver that waits for PSH cannot stall the window.
    pub(crate) fn set_max_window(&mut self, max_snd_wnd: u32) {
        self.max_window = max_snd_wnd;
    }

    /// The bytes of `range` that are kept, in two pieces because the buffer is a ring. The pieces are
    /// shorter than `range` where that reaches beyond what is kept.
    pub(crate) fn slices(&self, range: SeqRange) -> (&[u8], &[u8]) {
        let Some(kept) = range.intersection(&SeqRange::new(self.start, self.end())) else {
            return (&[], &[]);
        };
        let from = kept.start.since(self.start) as usize;
        let to = kept.end.since(self.start) as usize;
        let (first, second) = self.bytes.as_slices();
        let split = first.len();
        let head = first.get(from.min(split)..to.min(split)).unwrap_or(&[]);
        let tail = second.get(from.saturating_sub(split)..to.saturating_sub(split)).unwrap_or(&[]);
        if head.is_empty() { (tail, head) } else { (head, tail) }
    }

    /// Frees the bytes before `to`, which were acknowledged; a SYN or FIN in `to` is understood.
    pub(crate) fn advance(&mut self, to: SeqNum) {
        let to = to.min(self.end());
        if !to.gt(self.start) {
            return;
        }
        self.bytes.drain(..to.since(self.start) as usize);
        self.start = to;
        self.sent = self.sent.max(to);
        while self.pushes.front().is_some_and(|push| push.le(to)) {
            self.pushes.pop_front();
        }
        if self.bytes.is_empty() && self.bytes.capacity() > IDLE_BYTES {
            self.bytes = VecDeque::new();
            self.pushes = VecDeque::new();
        }
    }

    /// No more bytes will be written: a FIN follows the last one.
    pub(crate) fn queue_fin(&mut self) {
        self.fin = true;
    }

    /// True if a FIN follows the last byte.
    pub(crate) fn fin_queued(&self) -> bool {
        self.fin
    }

    /// Lets the buffer grow with the congestion window, as Linux does: two windows' worth of bytes,
    /// so that one can be written while one is in flight. Never above the configured maximum, never
    /// less than before.
    pub(crate) fn grow(&mut self, cwnd: u32) {
        let wanted = (cwnd as usize).saturating_mul(2);
        self.limit = self.limit.max(wanted.min(self.max));
    }

    fn force_push(&mut self) {
        let pushed = self.pushes.back().copied().unwrap_or(self.start);
        if self.max_window > 0 && self.end().since(pushed) > self.max_window / 2 {
            self.add_push(self.end());
        }
    }

    fn add_push(&mut self, push: SeqNum) {
        if self.pushes.back().is_some_and(|last| last.ge(push)) || push == self.start {
            return;
        }
        if self.pushes.len() == MAX_PUSH_MARKS {
            self.pushes.pop_front();
        }
        self.pushes.push_back(push);
    }
}
