//! The receive queue: a byte ring from the next byte to read up to the right edge of the window.
//!
//! Bytes are addressed by their offset from the read position. In-order bytes are `readable`. Bytes that
//! arrived out of order are stored after a gap, at their final place, until [`RecvQueue::advance`] makes them
//! readable. So no byte is moved (RFC 9293 section 3.10.7.4: segments beyond RCV.NXT SHOULD be held for later
//! processing). The [assembler](super::assembler) knows which offsets after the gap are filled.
//!
//! Bytes that were read may be retained for a while before offset 0 ([`RecvQueue::retain`]). They are the
//! history from which Corrective repairs losses, and do not reduce the window.
//!
//! Long payload that arrives in order stays in its [packets](super::packets), if these are lent
//! ([`RecvQueue::lend_packet`]). If all of the ring's content is readable, it then becomes a packet too. The
//! ring then begins after the packets. With a history all bytes are in the ring.
//!
//! Storage is allocated for the first byte and grows with its content. When the last byte has been read and
//! no byte is retained, the storage is [taken](RecvQueue::take_storage), so an idle connection has none. Bulk
//! readers get used storage back ([`RecvQueue::lend`]). New storage would cost more than the copies into it
//! and out of it, because the system must clear and map its pages.

use alloc::vec;
use alloc::vec::Vec;

use bytes::Bytes;

use super::packets::Packets;
use crate::on_demand::OnDemand;

/// Minimum size of allocated storage, bytes.
pub(crate) const FIRST_STORAGE: usize = 2048;

/// Maximum size of storage that is allocated because of past needs, bytes.
const EXPECTED_MAX: usize = 256 << 10;

/// Content up to this length is copied when the ring is sealed, so that the ring keeps its storage. Longer
/// content takes the storage with it instead.
const COPIED: usize = 16 << 10;

#[derive(Debug)]
pub(crate) struct RecvQueue {
    /// Maximum number of bytes, including gaps.
    capacity: usize,
    /// Readable bytes before the ring; empty while there is a history.
    packets: OnDemand<Packets>,
    /// The ring; empty until bytes are stored. Its offsets begin after `packets`.
    storage: Vec<u8>,
    /// Index in `storage` of offset 0.
    head: usize,
    /// Readable bytes from offset 0.
    readable: usize,
    /// One past the largest offset that was written and not read yet.
    extent: usize,
    /// Bytes before offset 0 that were read and are still stored.
    retained: usize,
    /// Length of the history: number of the last in-order bytes that are kept, read or unread.
    retain: usize,
    /// Maximum of `extent` since the storage was allocated.
    peak: usize,
    /// Expected size of the content, from the last uses.
    expected: usize,
}

impl RecvQueue {
    /// Returns an empty queue for at most `capacity` bytes. Does not allocate.
    pub(crate) fn new(capacity: usize) -> Self {
        RecvQueue {
            capacity,
            packets: OnDemand::new(),
            storage: Vec::new(),
            head: 0,
            readable: 0,
            extent: 0,
            retained: 0,
            retain: 0,
            peak: 0,
            expected: FIRST_STORAGE,
        }
    }

    /// Raises the capacity. Never lowers it, because the window may have offered the space already.
    pub(crate) fn grow(&mut self, capacity: usize) {
        self.capacity = self.capacity.max(capacity);
    }

    pub(crate) fn readable(&self) -> usize {
        self.packets.len() + self.readable
    }

    /// Returns the free bytes after the readable ones, which may be offered as window.
    pub(crate) fn free(&self) -> usize {
        self.capacity - self.readable()
    }

    /// Returns the bytes of memory in use.
    pub(crate) fn memory(&self) -> usize {
        self.storage.len() + self.packets.memory()
    }

    /// True if the existing storage has space for `count` bytes after the readable ones.
    pub(crate) fn has_storage_for(&self, count: usize) -> bool {
        self.retained + self.readable + count <= self.storage.len()
    }

    /// Keeps the last `count` in-order bytes from now on, even after they are read. With 0, frees all
    /// retained bytes.
    pub(crate) fn retain(&mut self, count: usize) {
        self.retain = count;
        self.trim();
        if count > 0 && self.packets.len() > 0 {
            self.unpack();
        }
    }

    /// Frees the retained bytes; bytes that are read later are retained again.
    pub(crate) fn forget(&mut self) {
        self.retained = 0;
        self.trim();
    }

    /// Returns the number of retained bytes before the read position.
    pub(crate) fn retained(&self) -> usize {
        self.retained
    }

    /// Returns up to `count` bytes from `offset`, in at most two pieces; a negative offset means retained
    /// bytes. The result ends at the last written byte, and is empty if `offset` is before the ring's oldest
    /// byte. Bytes after a gap must have been written.
    pub(crate) fn stored(&self, offset: i32, count: usize) -> (&[u8], &[u8]) {
        let from = offset as isize + self.retained as isize - self.packets.len() as isize;
        usize::try_from(from).map_or((&[], &[]), |from| self.stored_in_ring(from, count))
    }

    /// Returns `count` bytes of the ring, as far as they exist, beginning `from` bytes after the oldest
    /// retained one.
    fn stored_in_ring(&self, from: usize, count: usize) -> (&[u8], &[u8]) {
        let to = (from + count).min(self.retained + self.extent);
        if from >= to {
            return (&[], &[]);
        }
        let (first, len) = (self.index_from_oldest(from), to - from);
        let head = len.min(self.storage.len() - first);
        (&self.storage[first..first + head], &self.storage[..len - head])
    }

    /// Stores `bytes` at `offset` bytes from the read position. Returns how many of them fit into the
    /// capacity. [`advance`](Self::advance) makes them readable. Readable bytes are not overwritten; bytes
    /// after a gap are.
    pub(crate) fn write_at(&mut self, offset: usize, bytes: &[u8]) -> usize {
        let fits = bytes.len().min(self.capacity.saturating_sub(offset));
        let known = self.readable().saturating_sub(offset).min(fits);
        let fresh = &bytes[known..fits];
        if fresh.is_empty() {
            return fits;
        }
        let start = offset + known - self.packets.len();
        let end = start + fresh.len();
        self.reserve(end);
        let at = self.index(start);
        let (first, wrapped) = fresh.split_at(fresh.len().min(self.storage.len() - at));
        self.storage[at..at + first.len()].copy_from_slice(first);
        if !wrapped.is_empty() {
            self.storage[..wrapped.len()].copy_from_slice(wrapped);
        }
        self.extent = self.extent.max(end);
        self.peak = self.peak.max(end);
        fits
    }

    /// Permits [`keep`](Self::keep) to keep payload of `packet` from now on; `None` ends that.
    pub(crate) fn lend_packet(&mut self, packet: Option<Bytes>) {
        if packet.is_some() {
            self.packets.lend(packet);
        } else if let Some(packets) = self.packets.get_mut() {
            packets.lend(None);
        }
    }

    /// Makes `bytes` readable without the ring if they are next in order, and are a long part of the lent
    /// packet or a short piece after one that was kept. `offset`: their distance from the read position.
    /// Returns false otherwise: the caller must write them.
    #[inline]
    pub(crate) fn keep(&mut self, offset: usize, bytes: &[u8]) -> bool {
        self.packets.may_keep() && self.keep_in_packet(offset, bytes)
    }

    fn keep_in_packet(&mut self, offset: usize, bytes: &[u8]) -> bool {
        let may = self.extent == self.readable
            && self.retain == 0
            && offset == self.readable()
            && bytes.len() <= self.free();
        if may && self.extent > 0 && self.packets.are_lent(bytes) {
            self.seal();
        }
        may && self.extent == 0 && self.packets.keep(bytes)
    }

    /// Turns the ring's content into a packet, so that one short payload does not force later long payloads
    /// into the ring. All of the content must be readable, and none retained. Only short content is copied.
    fn seal(&mut self) {
        if self.readable <= COPIED {
            let (first, second) = self.slices();
            let bytes = Bytes::from([first, second].concat());
            self.packets.append([bytes, Bytes::new()], self.readable);
        } else {
            let (memory, first) = (self.storage.len(), self.readable.min(self.storage.len() - self.head));
            let ring = Bytes::from(core::mem::take(&mut self.storage));
            let pieces = [ring.slice(self.head..self.head + first), ring.slice(..self.readable - first)];
            self.packets.append(pieces, memory);
        }
        (self.head, self.readable, self.extent) = (0, 0, 0);
    }

    /// Makes the next `count` bytes readable; they must have been written.
    pub(crate) fn advance(&mut self, count: usize) {
        debug_assert!(self.readable + count <= self.extent, "bytes made readable that were never written");
        self.readable = (self.readable + count).min(self.extent);
    }

    /// Copies readable bytes into `out`, removes them and returns their number.
    pub(crate) fn read(&mut self, out: &mut [u8]) -> usize {
        let count = self.peek(out);
        self.skip(count);
        count
    }

    /// Removes and returns the next readable bytes, at most `max`, as a slice of their packet. Bytes of the
    /// ring are copied, at most up to the point where it wraps. Empty if there are none.
    pub(crate) fn take(&mut self, max: usize) -> Bytes {
        let bytes = self.packets.first(max).unwrap_or_else(|| {
            let (front, _) = self.slices();
            Bytes::copy_from_slice(&front[..max.min(front.len())])
        });
        self.skip(bytes.len());
        bytes
    }

    /// Copies readable bytes into `out` without removing them; returns their number.
    pub(crate) fn peek(&self, out: &mut [u8]) -> usize {
        let kept = self.packets.peek(out);
        let out = &mut out[kept..];
        let (front, back) = self.slices();
        let first = front.len().min(out.len());
        out[..first].copy_from_slice(&front[..first]);
        let second = back.len().min(out.len() - first);
        if second > 0 {
            out[first..first + second].copy_from_slice(&back[..second]);
        }
        kept + first + second
    }

    /// Returns the readable bytes of the ring, in at most two pieces.
    fn slices(&self) -> (&[u8], &[u8]) {
        let first = self.readable.min(self.storage.len() - self.head);
        (&self.storage[self.head..self.head + first], &self.storage[..self.readable - first])
    }

    /// Discards up to `count` readable bytes (the urgent byte, for example); returns their number.
    pub(crate) fn skip(&mut self, count: usize) -> usize {
        let kept = self.packets.get_mut().map_or(0, |packets| packets.skip(count));
        let count = (count - kept).min(self.readable);
        if count > 0 {
            self.head = self.index(count);
            self.readable -= count;
            self.extent -= count;
            self.retained += count;
            self.trim();
        }
        kept + count
    }

    /// True if there is storage without content.
    pub(crate) fn is_drained(&self) -> bool {
        self.extent == 0 && self.retained == 0 && !self.storage.is_empty()
    }

    /// Returns the storage if it has no content, otherwise an empty vector.
    pub(crate) fn take_storage(&mut self) -> Vec<u8> {
        if !self.is_drained() {
            return Vec::new();
        }
        // The largest content since the last allocation sets the next size. Smaller content lowers the
        // expectation at most to half.
        self.expected = self.peak.max(self.expected / 2).clamp(FIRST_STORAGE, EXPECTED_MAX);
        self.peak = 0;
        self.head = 0;
        core::mem::take(&mut self.storage)
    }

    /// Frees memory that an idle receiver does not need.
    pub(crate) fn release_memory(&mut self) {
        self.packets.release();
    }

    /// Returns the size of storage that could be [lent](Self::lend) and is expected to suffice; 0 if the
    /// queue has storage.
    pub(crate) fn wanted(&self) -> usize {
        if self.storage.is_empty() { self.expected } else { 0 }
    }

    /// Uses `storage`, whatever its content, if the queue has none.
    pub(crate) fn lend(&mut self, storage: Vec<u8>) {
        if self.storage.is_empty() {
            self.storage = storage;
        }
    }

    /// Moves the content of packets into the ring.
    fn unpack(&mut self) {
        let mut held = vec![0; self.packets.len() + self.extent];
        let kept = self.packets.peek(&mut held);
        let (first, second) = self.stored_in_ring(self.retained, self.extent);
        held[kept..kept + first.len()].copy_from_slice(first);
        held[kept + first.len()..].copy_from_slice(second);
        if let Some(packets) = self.packets.get_mut() {
            packets.skip(kept);
        }
        self.readable += kept;
        self.extent = held.len();
        self.peak = self.peak.max(self.extent);
        (self.storage, self.head) = (held, 0);
    }

    /// Frees bytes that need not be retained.
    fn trim(&mut self) {
        self.retained = self.retained.min(self.retain.saturating_sub(self.readable));
        if self.is_drained() {
            self.head = 0;
        }
    }

    /// Returns the index in the ring of an offset from `head`. The offset is at most the storage's length.
    fn index(&self, offset: usize) -> usize {
        let at = self.head + offset;
        if at >= self.storage.len() { at - self.storage.len() } else { at }
    }

    /// Returns the index in the ring of an offset from the oldest retained byte.
    fn index_from_oldest(&self, offset: usize) -> usize {
        let at = self.head + self.storage.len() - self.retained + offset;
        at % self.storage.len()
    }

    /// Reserves space for `needed` bytes from the read position, in addition to retained ones.
    fn reserve(&mut self, needed: usize) {
        let (needed, max) = (self.retained + needed, self.capacity.max(needed) + self.retain);
        if needed <= self.storage.len() {
            return;
        }
        let size = needed.max(self.storage.len() * 2).max(self.expected).min(max);
        let mut grown = Vec::with_capacity(size);
        let (first, second) = self.stored_in_ring(0, self.retained + self.extent);
        grown.extend_from_slice(first);
        grown.extend_from_slice(second);
        grown.resize(size, 0);
        self.storage = grown;
        self.head = self.retained;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads everything and takes the storage, as the stack does.
    fn read_all(queue: &mut RecvQueue) -> Vec<u8> {
        let mut out = vec![0; queue.readable()];
        assert_eq!(queue.read(&mut out), out.len());
        queue.take_storage();
        out
    }

    #[test]
    fn bytes_become_readable_when_the_gap_before_them_is_filled() {
        let mut queue = RecvQueue::new(100);
        assert_eq!(queue.write_at(3, b"def"), 3);
        assert_eq!(queue.readable(), 0);
        assert_eq!(queue.write_at(0, b"abc"), 3);
        queue.advance(6);
        assert_eq!(read_all(&mut queue), b"abcdef");
    }

    #[test]
    fn an_idle_queue_holds_no_memory() {
        let mut queue = RecvQueue::new(1 << 20);
        assert_eq!(queue.memory(), 0, "nothing before the first byte");
        queue.write_at(0, &[7; 100_000]);
        queue.advance(100_000);
        assert!(queue.memory() >= 100_000);
        read_all(&mut queue);
        assert_eq!(queue.memory(), 0, "nothing after the last byte");
    }

    #[test]
    fn used_storage_is_reused() {
        let mut queue = RecvQueue::new(1 << 20);
        assert_eq!(queue.wanted(), FIRST_STORAGE);
        queue.write_at(0, &[7; 100_000]);
        queue.advance(100_000);
        assert!(!queue.is_drained() && queue.take_storage().is_empty(), "something is in it");
        queue.skip(100_000);
        let storage = queue.take_storage();
        assert_eq!((queue.memory(), queue.wanted()), (0, 100_000));
        queue.lend(storage);
        queue.write_at(3, b"def");
        queue.write_at(0, b"abc");
        assert_eq!((queue.wanted(), queue.memory()), (0, 100_000));
        queue.lend(vec![1; 7]);
        queue.advance(6);
        assert_eq!(read_all(&mut queue), b"abcdef", "who has some keeps it");
    }

    #[test]
    fn storage_size_follows_the_content_not_the_capacity() {
        let mut queue = RecvQueue::new(6 << 20);
        queue.write_at(0, b"GET / HTTP/1.1");
        queue.advance(14);
        assert_eq!(queue.memory(), FIRST_STORAGE);
    }

    const LONG: usize = 20_000;

    /// Lends and keeps a packet with `LONG` bytes of payload after 40 bytes of headers.
    fn keep_packet(queue: &mut RecvQueue, byte: u8) {
        let packet = Bytes::from(vec![byte; 40 + LONG]);
        queue.lend_packet(Some(packet.clone()));
        assert!(queue.keep(queue.readable(), &packet[40..]));
    }

    #[test]
    fn a_long_payload_stays_in_its_packet_also_behind_what_the_ring_holds() {
        for len in [1, COPIED, COPIED + 1, 30_000] {
            let mut queue = RecvQueue::new(100_000);
            // The content begins in the middle of the ring, and wraps around its end if it is long.
            queue.write_at(0, &vec![9; 40_000]);
            queue.advance(40_000);
            queue.skip(39_999);
            queue.write_at(1, &vec![7; len - 1]);
            queue.advance(len - 1);
            keep_packet(&mut queue, 1);
            assert_eq!(queue.extent, 0, "nothing is in the ring");
            queue.write_at(len + LONG, b"end");
            queue.advance(3);
            let expected = [&[9][..], &vec![7; len - 1], &[1; LONG], b"end"].concat();
            assert_eq!(read_all(&mut queue), expected, "{len}");
            assert_eq!((queue.memory(), queue.free()), (0, 100_000));
        }
    }

    #[test]
    fn payload_stays_in_its_packet_only_if_it_is_next_and_the_ring_is_empty() {
        let mut queue = RecvQueue::new(100_000);
        let packet = Bytes::from(vec![1; 40 + LONG]);
        queue.lend_packet(Some(packet.clone()));
        assert!(!queue.keep(1, &packet[40..]), "behind a gap");
        queue.write_at(5, b"later");
        assert!(!queue.keep(0, &packet[40..]), "the ring holds what comes later");
        let mut queue = RecvQueue::new(LONG - 1);
        queue.lend_packet(Some(packet.clone()));
        assert!(!queue.keep(0, &packet[40..]), "more than the window");
        let mut queue = RecvQueue::new(100_000);
        queue.retain(10);
        queue.lend_packet(Some(packet.clone()));
        assert!(!queue.keep(0, &packet[40..]), "there is a history");
    }

    #[test]
    fn packets_and_ring_are_one_stream() {
        let mut queue = RecvQueue::new(100_000);
        keep_packet(&mut queue, 1);
        keep_packet(&mut queue, 2);
        assert_eq!((queue.readable(), queue.free()), (2 * LONG, 100_000 - 2 * LONG));
        assert!(queue.memory() >= 2 * LONG && !queue.has_storage_for(1));
        // `q` fills the gap before `uick`, which came first; `?` is an old byte and is ignored.
        assert_eq!(queue.write_at(2 * LONG + 1, b"uick"), 4);
        assert_eq!(queue.write_at(2 * LONG - 1, b"?q"), 2);
        queue.advance(5);
        let grows = [3; 2 * FIRST_STORAGE];
        queue.write_at(2 * LONG + 5, &grows);
        queue.advance(grows.len());
        let expected = [&[1; LONG][..], &[2; LONG], b"quick", &grows].concat();
        let mut out = vec![0; expected.len() + 9];
        assert_eq!((queue.peek(&mut out), &out[..expected.len()]), (expected.len(), &expected[..]));
        assert_eq!(queue.skip(LONG + 3), LONG + 3);
        assert_eq!(read_all(&mut queue), expected[LONG + 3..]);
        assert_eq!((queue.memory(), queue.free()), (0, 100_000));
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// The next bytes, in a lent packet.
        Lent(usize),
        /// The next bytes, to be copied.
        Copied(usize),
        /// Bytes after a gap, and then those of the gap.
        Late {
            gap: usize,
            len: usize,
        },
        Read(usize),
        /// Takes one contiguous piece.
        Take(usize),
        Retain(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (10_000usize..30_000).prop_map(Step::Lent),
            2 => (1usize..3000).prop_map(Step::Copied),
            2 => (1usize..3000, 1usize..30_000).prop_map(|(gap, len)| Step::Late { gap, len }),
            4 => (1usize..60_000).prop_map(Step::Read),
            4 => (1usize..60_000).prop_map(Step::Take),
            1 => prop_oneof![Just(0), 1usize..2000].prop_map(Step::Retain),
        ]
    }

    /// Returns bytes of the stream from offset `from`.
    fn stream(from: usize, len: usize) -> Vec<u8> {
        (from..from + len).map(|at| (at % 251) as u8).collect()
    }

    proptest! {
        #[test]
        fn bytes_are_read_in_order_however_they_arrive(steps in prop::collection::vec(step(), 1..40)) {
            let mut queue = RecvQueue::new(200_000);
            let (mut arrived, mut read) = (0, 0);
            for step in steps {
                match step {
                    Step::Lent(len) | Step::Copied(len) if len <= queue.free() => {
                        let packet = Bytes::from(stream(arrived, len));
                        queue.lend_packet(matches!(step, Step::Lent(_)).then(|| packet.clone()));
                        if !queue.keep(queue.readable(), &packet) {
                            queue.write_at(queue.readable(), &packet);
                            queue.advance(len);
                        }
                        queue.lend_packet(None);
                        arrived += len;
                    }
                    Step::Late { gap, len } if gap + len <= queue.free() => {
                        let at = queue.readable();
                        queue.write_at(at + gap, &stream(arrived + gap, len));
                        prop_assert!(!queue.keep(at, &stream(arrived, gap)));
                        queue.write_at(at, &stream(arrived, gap));
                        queue.advance(gap + len);
                        arrived += gap + len;
                    }
                    Step::Read(max) => {
                        let mut out = vec![0; max];
                        let count = queue.read(&mut out);
                        prop_assert_eq!(count, max.min(arrived - read));
                        prop_assert!(out[..count] == stream(read, count));
                        read += count;
                        queue.take_storage();
                    }
                    Step::Take(max) => {
                        let taken = queue.take(max);
                        prop_assert_eq!(taken.is_empty(), arrived == read);
                        prop_assert!(taken.len() <= max && taken == stream(read, taken.len()));
                        read += taken.len();
                        queue.take_storage();
                    }
                    Step::Retain(count) => queue.retain(count),
                    Step::Lent(_) | Step::Copied(_) | Step::Late { .. } => {}
                }
                prop_assert_eq!(queue.readable(), arrived - read);
                let history = queue.retained();
                let (first, second) = queue.stored(-(history as i32), history);
                prop_assert!([first, second].concat() == stream(read - history, history));
            }
        }
    }

    #[test]
    fn a_history_that_begins_moves_packets_into_the_ring() {
        let mut queue = RecvQueue::new(100_000);
        keep_packet(&mut queue, 1);
        queue.write_at(LONG + 2, b"c");
        queue.write_at(LONG, b"a");
        queue.advance(1);
        queue.skip(LONG - 3);
        queue.retain(5);
        queue.write_at(4, b"b");
        queue.advance(2);
        let (first, second) = queue.stored(0, 9);
        assert_eq!([first, second].concat(), b"\x01\x01\x01abc");
    }

    #[test]
    fn data_above_the_capacity_is_refused() {
        let mut queue = RecvQueue::new(10);
        assert_eq!(queue.write_at(6, b"abcdef"), 4);
        assert_eq!(queue.write_at(10, b"x"), 0);
        assert_eq!(queue.write_at(usize::MAX, b"x"), 0);
        assert_eq!(queue.write_at(0, b"012345"), 6);
        queue.advance(10);
        assert_eq!(queue.free(), 0);
        assert_eq!(read_all(&mut queue), b"012345abcd");
        queue.grow(12);
        queue.grow(5);
        assert_eq!((queue.capacity, queue.free()), (12, 12), "a capacity never shrinks");
    }

    #[test]
    fn readable_bytes_are_not_overwritten_by_an_overlapping_segment() {
        let mut queue = RecvQueue::new(100);
        queue.write_at(0, b"first");
        queue.advance(5);
        assert_eq!(queue.write_at(0, b"OTHER and more"), 14);
        queue.advance(9);
        assert_eq!(read_all(&mut queue), b"first and more");
    }

    #[test]
    fn the_ring_wraps_and_grows_without_disturbing_what_is_behind_a_gap() {
        let mut queue = RecvQueue::new(1 << 16);
        queue.retain(700);
        let mut next = 0u8;
        let mut expected = 0u8;
        let mut total = 0usize;
        for round in 0..200usize {
            let run: Vec<u8> = (0..50 + round * 7).map(|i| next.wrapping_add(i as u8)).collect();
            let half = run.len() / 2;
            let at = queue.readable();
            queue.write_at(at + half, &run[half..]);
            queue.write_at(at, &run[..half]);
            queue.advance(run.len());
            next = next.wrapping_add(run.len() as u8);
            let mut out = vec![0; run.len() * 9 / 10];
            let count = queue.read(&mut out);
            for byte in &out[..count] {
                assert_eq!(*byte, expected);
                expected = expected.wrapping_add(1);
            }
            total += count;
            assert_eq!(queue.retained(), total.min(700usize.saturating_sub(queue.readable())));
            let (first, second) =
                queue.stored(-(queue.retained() as i32), queue.retained() + queue.readable());
            let held = [first, second].concat();
            let from = next.wrapping_sub(held.len() as u8);
            assert!(held.iter().enumerate().all(|(i, byte)| *byte == from.wrapping_add(i as u8)));
        }
    }

    #[test]
    fn retained_bytes_can_be_read_again() {
        let mut queue = RecvQueue::new(100);
        queue.retain(10);
        queue.write_at(0, b"abcdefghijkl");
        queue.advance(12);
        queue.skip(4);
        assert_eq!(queue.retained(), 2, "with the eight unread ones that makes ten");
        assert_eq!(read_all(&mut queue), b"efghijkl");
        assert_eq!((queue.retained(), queue.free()), (10, 100), "the window does not shrink");
        queue.write_at(3, b"pqr");
        let stored = |offset, count| [queue.stored(offset, count).0, queue.stored(offset, count).1].concat();
        assert_eq!(
            (stored(-10, 4), stored(-3, 3), stored(3, 9)),
            (b"cdef".into(), b"jkl".into(), b"pqr".into())
        );
        assert!(stored(-11, 5).is_empty() && stored(6, 1).is_empty());
    }

    #[test]
    fn retained_bytes_are_freed_on_demand_and_retained_again() {
        let mut queue = RecvQueue::new(1 << 16);
        queue.retain(10);
        for forget in [RecvQueue::forget as fn(&mut RecvQueue), |queue| queue.retain(0)] {
            queue.write_at(0, b"abc");
            queue.advance(3);
            read_all(&mut queue);
            assert_eq!((queue.retained(), queue.memory()), (3, FIRST_STORAGE));
            forget(&mut queue);
            assert!(queue.is_drained() && !queue.take_storage().is_empty());
            assert_eq!((queue.retained(), queue.memory()), (0, 0));
        }
        queue.write_at(0, b"abc");
        queue.advance(3);
        read_all(&mut queue);
        assert_eq!((queue.retained(), queue.memory()), (0, 0), "no more since it was switched off");
    }

    #[test]
    fn peek_leaves_and_skip_drops() {
        let mut queue = RecvQueue::new(100);
        queue.write_at(0, b"abcd");
        queue.advance(4);
        let mut out = [0; 2];
        assert_eq!((queue.peek(&mut out), &out), (2, b"ab"));
        assert_eq!(queue.skip(1), 1);
        assert_eq!(read_all(&mut queue), b"bcd");
        assert_eq!((queue.skip(1), queue.read(&mut out)), (0, 0), "nothing left");
    }
}
