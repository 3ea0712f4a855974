//! The send buffer. It holds the bytes from SND.UNA, sent or not, until they are acknowledged; the push marks
//! of the application (RFC 9293 section 3.9.1, PSH); and whether a FIN follows.
//!
//! The queue knows bytes, not segments; the scoreboard has the state of sent segments. The queue allocates
//! memory with the first write, or uses storage that is lent ([`SendQueue::lend`]). The storage is taken away
//! when everything is acknowledged ([`SendQueue::take_storage`]).

use alloc::collections::VecDeque;

use brisk_wire::SeqNum;
use bytes::{Buf as _, Bytes};
use smallvec::SmallVec;

use crate::config::BufferConfig;
use crate::on_demand::{Initial, OnDemand};
use crate::send::bytes::{MIN_GIVEN, Pieces, SendBytes};
use crate::seq_ranges::SeqRange;

/// Maximum size of storage that an empty queue keeps, bytes: allocating this little is cheap.
const IDLE_BYTES: usize = 1024;
/// Largest number of push marks; a further one replaces the oldest.
const MAX_PUSH_MARKS: usize = 128;

#[derive(Clone, Debug)]
pub(crate) struct SendQueue {
    bytes: SendBytes,
    start: SeqNum,
    limit: usize,
    max: usize,
    fin: bool,
    /// One past the last byte of each record of the application, in ascending order: no segment crosses it.
    records: OnDemand<RecordEnds>,
    /// One past the last pushed byte of each message, in ascending order.
    pushes: SmallVec<[SeqNum; 4]>,
    /// The mark that the last [`SendQueue::mark_push`] set, unless a record ends there.
    tail_push: Option<SeqNum>,
    /// The last write announced that more follows.
    more: bool,
    /// End of the last push mark, without the marks of [`SendQueue::mark_burst`], or SND.UNA (Linux:
    /// pushed_seq).
    pushed: SeqNum,
    /// The highest sequence number that was sent.
    sent: SeqNum,
    max_window: u32,
}

#[derive(Clone, PartialEq, Debug)]
struct RecordEnds(VecDeque<SeqNum>);

impl Initial for RecordEnds {
    const INITIAL: RecordEnds = RecordEnds(VecDeque::new());
    const SHARED: &'static RecordEnds = &Self::INITIAL;
}

impl SendQueue {
    /// Returns an empty queue that starts at sequence number 0 until [`SendQueue::set_start`].
    pub(crate) fn new(config: BufferConfig) -> Self {
        SendQueue {
            bytes: SendBytes::default(),
            start: SeqNum(0),
            limit: config.initial,
            max: config.max.max(config.initial),
            fin: false,
            records: OnDemand::new(),
            pushes: SmallVec::new(),
            tail_push: None,
            more: false,
            pushed: SeqNum(0),
            sent: SeqNum(0),
            max_window: 0,
        }
    }

    /// Sets the sequence number of the first byte: ISS + 1. Queued bytes move along.
    pub(crate) fn set_start(&mut self, seq: SeqNum) {
        let shift = seq.since(self.start);
        let records = self.records.get_mut().into_iter().flat_map(|RecordEnds(ends)| ends);
        for mark in self.pushes.iter_mut().chain(records) {
            *mark += shift;
        }
        if let Some(push) = &mut self.tail_push {
            *push += shift;
        }
        self.pushed += shift;
        self.sent += shift;
        self.start = seq;
    }

    /// Returns the sequence number of the first byte in the buffer.
    pub(crate) fn start(&self) -> SeqNum {
        self.start
    }

    /// Returns the sequence number after the last byte; a FIN has this number.
    pub(crate) fn end(&self) -> SeqNum {
        self.start + self.len() as u32
    }

    /// Returns the number of bytes, both in flight and unsent.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True if every byte written is acknowledged.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the bytes that a write would accept now.
    pub(crate) fn free(&self) -> usize {
        if self.fin { 0 } else { self.limit.saturating_sub(self.bytes.len()) }
    }

    /// Returns the bytes of memory in use.
    pub(crate) fn allocated(&self) -> usize {
        self.bytes.allocated()
    }

    /// Appends as many bytes as fit; returns their number: 0 after [`SendQueue::queue_fin`].
    pub(crate) fn write(&mut self, data: &[u8]) -> usize {
        let taken = data.len().min(self.free());
        let Some(data) = data.get(..taken).filter(|data| !data.is_empty()) else {
            return 0;
        };
        self.bytes.copy(data, self.limit);
        self.force_push();
        taken
    }

    /// Takes at most `max` bytes off the front of `data`, like [`SendQueue::write`]. Copies them only if they
    /// are fewer than [`MIN_GIVEN`].
    pub(crate) fn write_bytes(&mut self, data: &mut Bytes, max: usize) -> usize {
        let taken = data.len().min(max).min(self.free());
        if taken < MIN_GIVEN {
            let taken = self.write(data.get(..taken).unwrap_or_default());
            data.advance(taken);
            return taken;
        }
        self.bytes.give(data.split_to(taken), self.limit);
        self.force_push();
        taken
    }

    /// Marks the last byte as the end of a message. Called at the end of each write that is not corked. RFC
    /// 9293 3.9.1: a sender "MUST set the PSH bit in the last buffered segment (i.e., when there is no more
    /// queued data to be sent)" (MUST-61).
    pub(crate) fn mark_push(&mut self) {
        self.more = false;
        // If the end of the previous write has not been sent yet, PSH moves from there to the new end.
        if let Some(push) = self.tail_push
            && push.gt(self.sent)
            && self.pushes.last() == Some(&push)
        {
            self.pushes.pop();
        }
        self.tail_push = Some(self.end());
        self.add_push(self.end());
    }

    /// Records that the last write announced more, so its last byte gets no push mark (Linux: MSG_MORE).
    pub(crate) fn leave_open(&mut self) {
        self.more = true;
    }

    /// Marks the segment that ends at `end` as the last of a burst. It carries PSH, also in retransmissions.
    pub(crate) fn mark_burst(&mut self, end: SeqNum) {
        if self.pushes.len() == MAX_PUSH_MARKS {
            self.pushes.remove(0);
        }
        let index = self.pushes.partition_point(|push| push.lt(end));
        if self.pushes.get(index) != Some(&end) {
            self.pushes.insert(index, end);
        }
    }

    /// Ends a record at the last byte: later data shares no segment with it.
    pub(crate) fn end_record(&mut self) {
        let end = self.end();
        if !self.bytes.is_empty() && self.records.0.back() != Some(&end) {
            self.records.0.push_back(end);
            // Later data does not join the record, so the push mark at its end is kept.
            self.tail_push = None;
        }
    }

    /// Returns the end of the record that contains `seq`, if data follows that record.
    pub(crate) fn record_end(&self, seq: SeqNum) -> Option<SeqNum> {
        let index = self.records.0.partition_point(|end| end.le(seq));
        self.records.0.get(index).copied().filter(|end| end.lt(self.end()))
    }

    /// Cuts `range` at the end of the record in which it starts.
    pub(crate) fn within_record(&self, range: SeqRange) -> SeqRange {
        let end = self.record_end(range.start).unwrap_or(range.end);
        SeqRange::new(range.start, range.end.min(end))
    }

    /// True if the segment with this payload carries PSH. It does if it contains a push mark, or if it
    /// empties the queue and no more data was announced.
    pub(crate) fn push_at(&self, range: SeqRange) -> bool {
        if range.is_empty() {
            return false;
        }
        let index = self.pushes.partition_point(|push| push.le(range.start));
        (!self.more && range.end.ge(self.end()))
            || self.pushes.get(index).is_some_and(|push| push.le(range.end))
    }

    /// Records that bytes up to `to` were sent. If this empties the queue, the end gets a mark, so that a
    /// retransmission carries PSH like the original.
    pub(crate) fn on_sent(&mut self, to: SeqNum) {
        let to = to.min(self.end());
        if to == self.end() && to.gt(self.sent) && !self.more {
            self.add_push(to);
        }
        self.sent = self.sent.max(to);
    }

    /// Sets MAX.SND.WND, bytes. Writes set a push mark after each half of it. Otherwise a receiver that waits
    /// for PSH could stall the window.
    pub(crate) fn set_max_window(&mut self, max_snd_wnd: u32) {
        self.max_window = max_snd_wnd;
    }

    /// Returns the bytes of `range` in contiguous pieces, as far as they are in the buffer.
    pub(crate) fn pieces(&self, range: SeqRange) -> Pieces<'_> {
        let Some(kept) = range.intersection(&SeqRange::new(self.start, self.end())) else {
            return Pieces::new();
        };
        self.bytes.pieces(kept.start.since(self.start) as usize..kept.end.since(self.start) as usize)
    }

    /// Frees the bytes before `to`, which were acknowledged; `to` may also count a SYN or a FIN.
    pub(crate) fn advance(&mut self, to: SeqNum) {
        let to = to.min(self.end());
        if !to.gt(self.start) {
            return;
        }
        self.bytes.drain(to.since(self.start) as usize);
        self.start = to;
        self.sent = self.sent.max(to);
        self.pushed = self.pushed.max(to);
        let passed = self.pushes.partition_point(|push| push.le(to));
        if passed > 0 {
            self.pushes.drain(..passed);
        }
        if let Some(RecordEnds(records)) = self.records.get_mut() {
            while records.front().is_some_and(|end| end.le(to)) {
                records.pop_front();
            }
        }
    }

    /// True if the queue is empty and has more storage than an empty queue keeps.
    pub(crate) fn is_drained(&self) -> bool {
        self.bytes.is_empty() && self.bytes.capacity() > IDLE_BYTES
    }

    /// Returns the storage if [`SendQueue::is_drained`], otherwise empty storage.
    pub(crate) fn take_storage(&mut self) -> VecDeque<u8> {
        if !self.is_drained() {
            return VecDeque::new();
        }
        self.bytes.take_storage()
    }

    /// Frees memory that an idle sender does not need.
    pub(crate) fn release_memory(&mut self) {
        self.bytes.release_memory();
        self.records.release();
        self.pushes.shrink_to_fit();
    }

    /// Returns the size of storage to [lend](Self::lend) for a write of `len` bytes; 0 if the queue has
    /// enough or needs little.
    pub(crate) fn wanted(&self, len: usize) -> usize {
        let needed = len.min(self.free());
        let wants = self.bytes.is_empty() && needed > self.bytes.capacity().max(IDLE_BYTES);
        if wants { self.bytes.grown(needed, self.limit) } else { 0 }
    }

    /// Uses `storage`, which is empty. A queue that holds copied bytes keeps its own storage instead.
    pub(crate) fn lend(&mut self, storage: VecDeque<u8>) {
        self.bytes.lend(storage);
    }

    /// Queues a FIN after the last byte; no more bytes may be written.
    pub(crate) fn queue_fin(&mut self) {
        self.fin = true;
    }

    pub(crate) fn fin_queued(&self) -> bool {
        self.fin
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Grows the buffer to two windows, as Linux does, so that one window can be written while the other is
    /// in flight. It grows at most to `max` and the configured maximum, and never shrinks.
    pub(crate) fn grow(&mut self, window: u32, max: usize) {
        let wanted = (window as usize).saturating_mul(2).min(max);
        self.limit = self.limit.max(wanted.min(self.max));
    }

    fn force_push(&mut self) {
        let half = self.max_window / 2;
        while half > 0 && self.end().since(self.pushed) > half {
            self.add_push(self.pushed + half);
        }
    }

    fn add_push(&mut self, push: SeqNum) {
        self.pushed = self.pushed.max(push);
        if self.pushes.last().is_some_and(|last| last.ge(push)) || push == self.start {
            return;
        }
        if self.pushes.len() == MAX_PUSH_MARKS {
            self.pushes.remove(0);
        }
        self.pushes.push(push);
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    const START: SeqNum = SeqNum(u32::MAX - 700);

    fn queue() -> SendQueue {
        let mut queue = SendQueue::new(BufferConfig { initial: 10_000, max: 40_000 });
        queue.set_start(START);
        queue
    }

    fn range(from: u32, to: u32) -> SeqRange {
        SeqRange::new(START + from, START + to)
    }

    fn bytes(queue: &SendQueue, range: SeqRange) -> Vec<u8> {
        queue.pieces(range).concat()
    }

    #[test]
    fn takes_what_fits_and_frees_what_is_acknowledged() {
        let mut queue = queue();
        assert_eq!(queue.write(&[1; 8000]), 8000);
        assert_eq!(queue.write(&[2; 8000]), 2000);
        assert_eq!((queue.free(), queue.write(&[3; 10])), (0, 0));
        queue.advance(START + 3000);
        assert_eq!((queue.start(), queue.len(), queue.free()), (START + 3000, 7000, 3000));
        assert_eq!(queue.end(), START + 10_000);
    }

    #[test]
    fn takes_no_memory_until_written_to_and_keeps_none_when_idle() {
        let mut queue = queue();
        assert_eq!(queue.allocated(), 0);
        queue.write(&[1; 9000]);
        assert!((9000..=10_000).contains(&queue.allocated()));
        queue.advance(START + 9000);
        assert!(queue.is_drained() && queue.take_storage().capacity() >= 9000);
        assert_eq!(queue.allocated(), 0);
        assert_eq!(queue.end(), START + 9000);
    }

    #[test]
    fn bytes_queued_before_the_sequence_number_is_known_move_along() {
        let mut queue = SendQueue::new(BufferConfig { initial: 10_000, max: 10_000 });
        queue.write(b"early");
        queue.mark_push();
        queue.set_start(START);
        assert_eq!(bytes(&queue, range(0, 5)), b"early");
        queue.write(b"late");
        queue.on_sent(START + 5);
        assert!(!queue.push_at(range(0, 4)) && queue.push_at(range(0, 5)));
    }

    #[test]
    fn a_syn_or_fin_in_the_acknowledgement_is_understood() {
        let mut queue = queue();
        queue.write(b"abc");
        queue.queue_fin();
        queue.advance(START - 1);
        assert_eq!((queue.len(), queue.start()), (3, START));
        queue.advance(START + 4);
        assert!(queue.is_empty() && queue.fin_queued());
        assert_eq!((queue.end(), queue.write(b"more"), queue.free()), (START + 3, 0, 0));
    }

    #[test]
    fn range_beyond_the_buffer_returns_the_part_inside() {
        let mut queue = queue();
        queue.write(b"abcdef");
        queue.advance(START + 2);
        assert_eq!(bytes(&queue, range(0, 4)), b"cd");
        assert_eq!(bytes(&queue, range(4, 100)), b"ef");
        assert!(bytes(&queue, range(6, 7)).is_empty() && bytes(&queue, range(0, 2)).is_empty());
        assert!(bytes(&queue, range(5, 3)).is_empty());
    }

    #[test]
    fn push_is_set_where_a_write_ends() {
        // RFC 9293 3.9.1: the sender "MUST set the PSH bit in the last buffered segment" (MUST-61).
        let mut queue = queue();
        queue.write(&[1; 2500]);
        queue.mark_push();
        let pushes = [range(0, 1000), range(1000, 2000), range(2000, 2500)].map(|range| queue.push_at(range));
        assert_eq!(pushes, [false, false, true]);
        assert!(!queue.push_at(range(2500, 2500)), "not on a bare acknowledgement");
    }

    #[test]
    fn push_is_set_where_the_queue_is_emptied_even_if_corked() {
        let mut queue = queue();
        queue.write(&[1; 500]);
        assert!(queue.push_at(range(0, 500)) && !queue.push_at(range(0, 400)));
    }

    #[test]
    fn write_that_waits_is_joined_by_the_next_write() {
        let mut queue = queue();
        for _ in 0..2 {
            queue.write(&[1; 1000]);
            queue.mark_push();
        }
        assert!(!queue.push_at(range(0, 1000)) && !queue.push_at(range(0, 1460)));
        assert!(queue.push_at(range(1460, 2000)));
    }

    #[test]
    fn a_retransmission_carries_push_where_the_original_did() {
        let mut queue = queue();
        queue.write(&[1; 1000]);
        queue.mark_push();
        queue.on_sent(START + 1000);
        queue.write(&[1; 1000]);
        queue.mark_push();
        assert!(queue.push_at(range(0, 1000)) && queue.push_at(range(1000, 2000)));
        assert!(!queue.push_at(range(0, 900)) && !queue.push_at(range(1000, 1900)));
    }

    #[test]
    fn a_segment_that_left_without_push_is_repeated_without() {
        let mut queue = queue();
        // Corked: nothing is pushed before everything has left.
        queue.write(&[1; 2500]);
        for end in [1000, 2000] {
            assert!(!queue.push_at(range(end - 1000, end)));
            queue.on_sent(START + end);
        }
        assert!(!queue.push_at(range(0, 1000)) && !queue.push_at(range(1000, 2000)));
        assert!(queue.push_at(range(2000, 2500)));
    }

    #[test]
    fn half_a_window_without_push_forces_one() {
        let mut queue = queue();
        queue.set_max_window(4000);
        queue.write(&[1; 7000]);
        queue.mark_push();
        let pushes: Vec<bool> =
            (0..7).map(|index| queue.push_at(range(index * 1000, (index + 1) * 1000))).collect();
        assert_eq!(pushes, [false, true, false, true, false, true, true]);
    }

    #[test]
    fn push_marks_are_bounded() {
        let mut queue = queue();
        for index in 1..=9000 {
            queue.write(&[1]);
            queue.mark_push();
            queue.on_sent(START + index);
        }
        assert!(queue.pushes.len() <= MAX_PUSH_MARKS);
        queue.advance(START + 9000);
        assert!(queue.pushes.is_empty());
    }

    #[test]
    fn the_buffer_grows_with_the_window_up_to_its_maximum() {
        let mut queue = queue();
        queue.grow(20_000, 10_500);
        assert_eq!(queue.limit(), 10_500);
        let mut queue = self::queue();
        for (cwnd, free) in
            [(4000, 10_000), (8000, 16_000), (3000, 16_000), (90_000, 40_000), (u32::MAX, 40_000)]
        {
            queue.grow(cwnd, usize::MAX);
            assert_eq!(queue.free(), free);
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(usize),
        Give(usize),
        Advance(u32),
        Read(u32, u32),
        Grow(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0usize..6000).prop_map(Step::Write),
            3 => (0usize..12_000).prop_map(Step::Give),
            3 => (0u32..5000).prop_map(Step::Advance),
            4 => (0u32..12_000, 0u32..12_000).prop_map(|(from, len)| Step::Read(from, len)),
            1 => (0u32..30_000).prop_map(Step::Grow),
        ]
    }

    proptest! {
        #[test]
        fn the_queue_agrees_with_a_vector(steps in prop::collection::vec(step(), 1..60)) {
            let mut queue = queue();
            let mut written: Vec<u8> = Vec::new();
            let (mut acked, mut limit) = (0usize, 10_000usize);
            for step in steps {
                match step {
                    Step::Write(len) | Step::Give(len) => {
                        let data: Vec<u8> = (0..len).map(|index| ((written.len() + index) * 7 % 251) as u8).collect();
                        let fits = len.min(limit - (written.len() - acked));
                        if matches!(step, Step::Write(_)) {
                            prop_assert_eq!(queue.write(&data), fits);
                        } else {
                            let mut given = Bytes::from(data.clone());
                            prop_assert_eq!(queue.write_bytes(&mut given, usize::MAX), fits);
                            prop_assert_eq!(&given[..], &data[fits..], "the rest stays");
                        }
                        written.extend_from_slice(&data[..fits]);
                        queue.mark_push();
                    }
                    Step::Advance(bytes) => {
                        acked = written.len().min(acked + bytes as usize);
                        queue.advance(START + acked as u32);
                    }
                    Step::Read(from, len) => {
                        let start = START + acked as u32 + from;
                        let from = written.len().min(acked + from as usize);
                        let to = written.len().min(from + len as usize);
                        prop_assert_eq!(bytes(&queue, SeqRange::with_len(start, len)), &written[from..to]);
                    }
                    Step::Grow(cwnd) => {
                        queue.grow(cwnd, usize::MAX);
                        limit = limit.max((cwnd as usize * 2).min(40_000));
                    }
                }
                prop_assert_eq!(queue.len(), written.len() - acked);
                prop_assert_eq!(queue.end(), START + written.len() as u32);
                prop_assert!(queue.allocated() <= limit.max(queue.len()));
            }
        }
    }
}
