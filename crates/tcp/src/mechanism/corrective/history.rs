//! The receiver's memory of the stream for repairs. Bytes that arrived in order stay at the front of their
//! ring after the application has read them. So nothing is copied.
//!
//! [`Reception`] gives the decoder all held bytes: the history, the bytes that the application has not read
//! yet, and those above a gap. [`History`] decides how long the history is kept: not on an idle connection,
//! and not when memory is short. The memory counts towards the stack's limit, not towards the window.

use brisk_wire::SeqNum;

use super::decoder::ReceivedBytes;
use crate::receive::{Assembler, RecvQueue};
use crate::seq_ranges::SeqRange;
use crate::time::{Instant, Micros};

/// Minimum time without arrivals after which a connection keeps no history. It is two retransmission timeouts
/// if these are longer.
const IDLE: Micros = Micros::from_millis(1000);

/// All held bytes of the stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reception<'a> {
    pub(crate) queue: &'a RecvQueue,
    /// The ranges that have arrived.
    pub(crate) assembler: &'a Assembler,
    /// Sequence number of the next byte that the application reads.
    pub(crate) read_next: SeqNum,
}

impl ReceivedBytes for Reception<'_> {
    fn oldest(&self) -> SeqNum {
        self.read_next - self.queue.retained() as u32
    }

    fn gaps(&self, within: SeqRange) -> impl Iterator<Item = SeqRange> {
        self.assembler.gaps(within)
    }

    fn slices(&self, range: SeqRange) -> (&[u8], &[u8]) {
        self.queue.stored(range.start.diff(self.read_next), range.len() as usize)
    }
}

/// The rule for how long the bytes before RCV.NXT are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct History {
    last_arrival: Option<Instant>,
}

impl History {
    /// Starts without arrivals and without history.
    pub(crate) fn new() -> Self {
        History { last_arrival: None }
    }

    /// Records arriving payload. Read bytes are kept from now on.
    pub(crate) fn on_arrival(&mut self, now: Instant) {
        self.last_arrival = Some(now);
    }

    /// Returns the time of the last arrival of payload; `None` if no history is kept.
    pub(crate) fn last_arrival(&self) -> Option<Instant> {
        self.last_arrival
    }

    /// Returns the time when the connection counts as idle; `None` if no history is kept.
    pub(crate) fn next_timeout(&self, rto: Micros) -> Option<Instant> {
        self.last_arrival.map(|last| last + IDLE.max(rto * 2))
    }

    /// True once when the connection has become idle. The queue must then free the history.
    pub(crate) fn on_timeout(&mut self, rto: Micros, now: Instant) -> bool {
        let idle = self.next_timeout(rto).is_some_and(|at| at <= now);
        if idle {
            self.last_arrival = None;
        }
        idle
    }

    /// Keeps no history until more payload arrives, because memory is short or reception was switched off.
    pub(crate) fn clear(&mut self) {
        self.last_arrival = None;
    }
}

/// Limit of the repair memory of all connections of a stack, and its current size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FecMemory {
    limit: usize,
    used: usize,
}

/// Use of the memory for repairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemoryPressure {
    /// At most nine tenths.
    None,
    /// More than nine tenths. The connections that have been idle longest free theirs.
    High,
    /// All of it: no new history, no new agreement on Corrective.
    Full,
}

impl FecMemory {
    /// Returns an unused memory of `limit` bytes; 0 means that no history is kept.
    pub(crate) fn new(limit: usize) -> Self {
        FecMemory { limit, used: 0 }
    }

    /// Records that a connection with `before` bytes now keeps `after`.
    pub(crate) fn account(&mut self, before: usize, after: usize) {
        self.used = self.used.saturating_sub(before).saturating_add(after);
    }

    pub(crate) fn used(&self) -> usize {
        self.used
    }

    pub(crate) fn pressure(&self) -> MemoryPressure {
        if self.used >= self.limit {
            MemoryPressure::Full
        } else if self.used > self.limit / 10 * 9 {
            MemoryPressure::High
        } else {
            MemoryPressure::None
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    const RTO: Micros = Micros::from_millis(300);

    #[test]
    fn an_idle_connection_forgets_after_a_second_or_two_timeouts() {
        let mut history = History::new();
        assert_eq!(history.next_timeout(RTO), None, "nothing is kept");
        history.on_arrival(Instant::from_millis(50));
        assert_eq!(history.next_timeout(RTO), Some(Instant::from_millis(1050)));
        assert_eq!(history.next_timeout(RTO * 2), Some(Instant::from_millis(1250)));
        history.on_arrival(Instant::from_millis(100));
        assert!(!history.on_timeout(RTO, Instant::from_millis(1099)));
        assert!(history.on_timeout(RTO, Instant::from_millis(1100)));
        assert!(!history.on_timeout(RTO, Instant::from_millis(9000)), "once");
    }

    /// Bytes of one segment in three places: read and kept, unread, after a gap.
    #[test]
    fn decoder_sees_all_held_bytes() {
        let first = SeqNum(u32::MAX - 3);
        let mut queue = RecvQueue::new(100);
        let mut assembler = Assembler::new(first);
        queue.retain(6);
        for (from, to) in [(0, 10), (12, 15)] {
            let range = SeqRange::new(first + from, first + to);
            let arrival = assembler.on_data(range, false);
            let bytes: Vec<u8> = (from..to).map(|index| index as u8).collect();
            queue.write_at(from as usize, &bytes);
            queue.advance(arrival.advanced as usize);
        }
        let mut out = [0; 8];
        queue.read(&mut out);
        let reception = Reception { queue: &queue, assembler: &assembler, read_next: first + 8 };
        assert_eq!(reception.oldest(), first + 4, "six bytes before RCV.NXT, two of them unread");
        let gaps: Vec<SeqRange> = reception.gaps(SeqRange::new(first + 10, first + 20)).collect();
        assert_eq!(gaps, [(10, 12), (15, 20)].map(|(from, to)| SeqRange::new(first + from, first + to)));
        let bytes = |from, to| {
            let (one, two) = reception.slices(SeqRange::new(first + from, first + to));
            [one, two].concat()
        };
        assert_eq!((bytes(4, 10), bytes(12, 15)), (vec![4, 5, 6, 7, 8, 9], vec![12, 13, 14]));
    }

    #[test]
    fn memory_for_repairs_is_bounded() {
        let mut memory = FecMemory::new(1000);
        memory.account(0, 900);
        assert_eq!((memory.used(), memory.pressure()), (900, MemoryPressure::None));
        memory.account(900, 901);
        assert_eq!(memory.pressure(), MemoryPressure::High);
        memory.account(0, 99);
        assert_eq!(memory.pressure(), MemoryPressure::Full);
        memory.account(901, 0);
        assert_eq!((memory.used(), memory.pressure()), (99, MemoryPressure::None));
        assert_eq!(FecMemory::new(0).pressure(), MemoryPressure::Full);
    }
}
