//! Outgoing datagrams, collected so that one system call sends many of them (`UDP_SEGMENT`).
//!
//! Unlike TCP's segmentation offload, this sends *different* packets. They must have the same peer, the same
//! length (the last may be shorter) and the same ECN bits. Datagrams to one peer keep their order.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;

use super::peers::Route;

/// Maximum length of a chain in one call: the IPv4 limit of one unsegmented datagram.
pub(super) const MAX_BYTES: usize = 65_507;
/// Maximum number of buffers that are kept for reuse.
const SPARE: usize = 16;

/// A chain of datagrams to one peer.
#[derive(Debug)]
pub(super) struct UdpBatch {
    pub(super) route: Route,
    pub(super) ecn: u8,
    /// Length of every datagram but the last.
    pub(super) segment_size: usize,
    buffer: Vec<u8>,
    /// Bytes that have been sent.
    sent: usize,
    datagrams: usize,
    /// True after a datagram that is shorter than the others; it must be the last.
    closed: bool,
}

impl UdpBatch {
    /// Returns the unsent bytes: all of them, or one datagram if the kernel cannot segment.
    pub(super) fn next(&self, segmentation: bool) -> &[u8] {
        let rest = self.buffer.get(self.sent..).unwrap_or_default();
        if segmentation { rest } else { rest.get(..self.segment_size).unwrap_or(rest) }
    }

    /// Marks the first `bytes` of [`next`](Batch::next) as sent.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.sent += bytes;
    }

    fn takes(&self, outer: SocketAddr, ecn: u8, len: usize, max_datagrams: usize) -> bool {
        self.route.outer == outer && self.ecn == ecn && self.sent == 0 && self.room(len, max_datagrams) > 0
    }

    /// Returns the number of datagrams of `len` bytes that fit. A datagram that is shorter than the others
    /// must be the last.
    fn room(&self, len: usize, max_datagrams: usize) -> usize {
        if self.closed || len > self.segment_size {
            return 0;
        }
        let max = if len < self.segment_size { 1 } else { usize::MAX };
        let bytes = MAX_BYTES.saturating_sub(self.buffer.len());
        max.min(max_datagrams.saturating_sub(self.datagrams)).min(bytes / len.max(1))
    }
}

/// All waiting chains, oldest first.
#[derive(Debug, Default)]
pub(super) struct Batches {
    queue: VecDeque<UdpBatch>,
    spare: Vec<Vec<u8>>,
}

impl Batches {
    /// Adds `count` datagrams of `len` bytes each. `write` appends the datagrams with the given indices, from
    /// 0, to a buffer. A chain has at most `max_datagrams`.
    pub(super) fn add(
        &mut self,
        route: Route,
        ecn: u8,
        (count, len): (usize, usize),
        max_datagrams: usize,
        mut write: impl FnMut(Range<usize>, &mut Vec<u8>),
    ) {
        let mut added = 0;
        while added < count {
            let chain = self.chain_for(route, ecn, len, max_datagrams);
            let next = added..count.min(added + chain.room(len, max_datagrams).max(1));
            chain.closed = len < chain.segment_size;
            chain.datagrams += next.len();
            added = next.end;
            write(next, &mut chain.buffer);
        }
    }

    /// Returns the chain for a datagram: the youngest chain to its peer, or a new one if that chain cannot
    /// take it. In an older chain, the datagram would overtake others.
    fn chain_for(&mut self, route: Route, ecn: u8, len: usize, max_datagrams: usize) -> &mut UdpBatch {
        let youngest = self.queue.iter().rposition(|batch| batch.route.outer == route.outer);
        let takes = |at: &usize| self.queue[*at].takes(route.outer, ecn, len, max_datagrams);
        let at = youngest.filter(takes).unwrap_or_else(|| {
            let buffer = self.spare.pop().unwrap_or_default();
            let empty =
                UdpBatch { route, ecn, segment_size: len, buffer, sent: 0, datagrams: 0, closed: false };
            self.queue.push_back(empty);
            self.queue.len() - 1
        });
        &mut self.queue[at]
    }

    /// Returns the waiting chains, oldest first.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut UdpBatch> {
        self.queue.iter_mut()
    }

    pub(super) fn oldest(&mut self) -> Option<&mut UdpBatch> {
        self.queue.front_mut()
    }

    /// Removes the oldest chain after it was sent.
    pub(super) fn pop(&mut self) {
        if let Some(UdpBatch { mut buffer, .. }) = self.queue.pop_front()
            && self.spare.len() < SPARE
        {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.queue.iter().map(|chain| chain.next(true).len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(port: u16) -> Route {
        Route { outer: SocketAddr::from(([192, 0, 2, 1], port)), from: None }
    }

    /// Returns the lengths of the chains that these datagrams (peer, ECN, length) form.
    fn chains(datagrams: &[(u16, u8, usize)], max: usize) -> Vec<usize> {
        let mut batches = Batches::default();
        for &(port, ecn, len) in datagrams {
            batches.add(route(port), ecn, (1, len), max, |_, out| out.resize(out.len() + len, 0));
        }
        batches.queue.iter().map(|batch| batch.buffer.len()).collect()
    }

    #[test]
    fn equal_datagrams_form_one_chain_and_a_shorter_one_ends_it() {
        assert_eq!(chains(&[(1, 0, 100), (1, 0, 100), (1, 0, 40), (1, 0, 40)], 64), [240, 40]);
    }

    #[test]
    fn a_longer_datagram_another_ecn_or_a_full_chain_starts_a_new_one() {
        assert_eq!(chains(&[(1, 0, 40), (1, 0, 100)], 64), [40, 100]);
        assert_eq!(chains(&[(1, 0, 40), (1, 2, 40)], 64), [40, 40]);
        assert_eq!(chains(&[(1, 0, 40); 5], 2), [80, 80, 40]);
        assert_eq!(chains(&[(1, 0, 30_000); 3], 64), [60_000, 30_000]);
    }

    #[test]
    fn a_run_fills_one_chain_after_the_other() {
        let mut batches = Batches::default();
        let mut written = Vec::new();
        for (count, len) in [(1, 100), (150, 100), (1, 40), (2, 40)] {
            batches.add(route(1), 0, (count, len), 64, |range, out| {
                out.resize(out.len() + len * range.len(), 0);
                written.push(range);
            });
        }
        let lengths: Vec<_> = batches.queue.iter().map(|batch| batch.buffer.len()).collect();
        assert_eq!(lengths, [6400, 6400, 2340, 80]);
        assert_eq!(written, [0..1, 0..63, 63..127, 127..150, 0..1, 0..2]);
    }

    #[test]
    fn peers_may_alternate_without_breaking_the_chains() {
        assert_eq!(chains(&[(1, 0, 10), (2, 0, 10), (1, 0, 10), (2, 0, 10)], 64), [20, 20]);
    }

    #[test]
    fn datagrams_leave_one_by_one_without_segmentation() {
        let mut batches = Batches::default();
        for len in [10, 10, 4] {
            batches.add(route(1), 0, (1, len), 64, |_, out| out.resize(out.len() + len, 0));
        }
        let batch = batches.oldest().unwrap();
        assert_eq!(batch.next(true).len(), 24);
        for expected in [10, 10, 4, 0] {
            assert_eq!(batch.next(false).len(), expected);
            batch.advance(expected);
        }
    }
}
