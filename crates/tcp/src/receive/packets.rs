//! Long runs of payload that stay in their packets, so that they are copied only once, to the application.
//!
//! A driver that passes packets by reference ([`Stack::on_packet_shared`](crate::Stack::on_packet_shared))
//! lends each packet during its processing. Payload that is in order and long enough is kept as a slice of
//! the packet.

use alloc::collections::VecDeque;

use bytes::{Buf, Bytes};

use crate::on_demand::Initial;

/// Minimum length of kept payload, bytes. Shorter payload is copied, because a kept packet holds its whole
/// buffer.
const MIN: usize = 16 << 10;

/// In-order payload in its packets, to be read next.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Packets {
    kept: VecDeque<Kept>,
    /// Bytes of payload in `kept`.
    len: usize,
    /// Bytes of memory that `kept` occupies.
    memory: usize,
    /// The packet that is being processed.
    lent: Option<Bytes>,
}

#[derive(Clone, PartialEq, Debug)]
struct Kept {
    /// Unread payload.
    payload: Bytes,
    /// Bytes of memory that it occupies.
    memory: usize,
}

impl Initial for Packets {
    const INITIAL: Packets = Packets { kept: VecDeque::new(), len: 0, memory: 0, lent: None };
    const SHARED: &'static Packets = &Packets { kept: VecDeque::new(), len: 0, memory: 0, lent: None };
}

impl Packets {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes of memory in use. A lent packet counts twice its length, because a driver's buffer
    /// may be twice as long.
    pub(super) fn memory(&self) -> usize {
        self.memory
    }

    /// Permits keeping payload of `packet` from now on; `None` ends that.
    pub(super) fn lend(&mut self, packet: Option<Bytes>) {
        self.lent = packet;
    }

    /// True if [`keep`](Self::keep) may succeed: a packet is lent or kept. Usually false.
    #[inline]
    pub(super) fn may_keep(&self) -> bool {
        self.lent.is_some() || !self.kept.is_empty()
    }

    /// Keeps `payload` after the kept payload, if it is part of the lent packet and long enough. A short
    /// payload after a long one is kept as a copy, because it ends a burst and more bursts will follow.
    pub(super) fn keep(&mut self, payload: &[u8]) -> bool {
        let kept = match self.lent.take_if(|packet| is_long_part(payload, packet)) {
            Some(packet) => Kept { payload: packet.slice_ref(payload), memory: 2 * packet.len() },
            None if self.kept.back().is_some_and(|last| last.memory > MIN) && payload.len() < MIN => {
                Kept { payload: Bytes::copy_from_slice(payload), memory: payload.len() }
            }
            None => return false,
        };
        self.len += payload.len();
        self.memory += kept.memory;
        self.kept.push_back(kept);
        true
    }

    /// True if `payload` is part of the lent packet, and long enough to be kept.
    pub(super) fn are_lent(&self, payload: &[u8]) -> bool {
        self.lent.as_ref().is_some_and(|packet| is_long_part(payload, packet))
    }

    /// Keeps the pieces of a buffer of `memory` bytes after the kept payload.
    pub(super) fn append(&mut self, pieces: [Bytes; 2], memory: usize) {
        let [first, last] = pieces;
        let (before, last) = if last.is_empty() { (Bytes::new(), first) } else { (first, last) };
        // The memory counts until the last piece has been read.
        for (payload, memory) in
            [(before, 0), (last, memory)].into_iter().filter(|(piece, _)| !piece.is_empty())
        {
            self.len += payload.len();
            self.memory += memory;
            self.kept.push_back(Kept { payload, memory });
        }
    }

    /// Copies bytes into the beginning of `out` without removing them; returns their number.
    pub(super) fn peek(&self, out: &mut [u8]) -> usize {
        let mut copied = 0;
        for Kept { payload, .. } in &self.kept {
            let count = payload.len().min(out.len() - copied);
            if count == 0 {
                break;
            }
            out[copied..copied + count].copy_from_slice(&payload[..count]);
            copied += count;
        }
        copied
    }

    /// Returns the next payload, at most `max` bytes, as a slice of its packet, without removing it.
    pub(super) fn first(&self, max: usize) -> Option<Bytes> {
        self.kept.front().map(|Kept { payload, .. }| payload.slice(..max.min(payload.len())))
    }

    /// Removes up to `count` bytes; returns their number.
    pub(super) fn skip(&mut self, count: usize) -> usize {
        let mut left = count.min(self.len);
        let skipped = left;
        self.len -= skipped;
        while left > 0
            && let Some(first) = self.kept.front_mut()
        {
            let taken = left.min(first.payload.len());
            first.payload.advance(taken);
            left -= taken;
            if first.payload.is_empty() {
                self.memory -= first.memory;
                self.kept.pop_front();
            }
        }
        skipped
    }
}

/// True if `part` is a long part of `whole` at the same address, not only equal bytes.
fn is_long_part(part: &[u8], whole: &Bytes) -> bool {
    let (range, whole) = (part.as_ptr_range(), whole.as_ptr_range());
    part.len() >= MIN && whole.start <= range.start && range.end <= whole.end
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;

    fn packet(byte: u8) -> Bytes {
        Bytes::from(vec![byte; MIN + 40])
    }

    #[test]
    fn only_long_payload_of_the_lent_packet_is_kept() {
        let mut packets = Packets::INITIAL;
        let (lent, other) = (packet(1), packet(1));
        assert!(!packets.keep(&lent[40..]), "nothing is lent");
        packets.lend(Some(lent.clone()));
        assert!(!packets.keep(&other[40..]), "the same bytes elsewhere");
        assert!(!packets.keep(&lent[41..]), "too short");
        assert!(packets.keep(&lent[40..]));
        assert!(!packets.keep(&lent[40..]), "lent for once");
        packets.lend(Some(other.clone()));
        packets.lend(None);
        assert!(!packets.keep(&other[40..]), "the loan is over");
        assert_eq!((packets.len(), packets.memory()), (MIN, 2 * (MIN + 40)));
    }

    #[test]
    fn one_short_payload_behind_a_long_one_is_copied() {
        let mut packets = Packets::INITIAL;
        assert!(!packets.keep(b"short"), "alone");
        let lent = packet(1);
        packets.lend(Some(lent.clone()));
        assert!(packets.keep(&lent[40..]) && packets.keep(b"short") && !packets.keep(b"again"));
        assert_eq!((packets.len(), packets.memory()), (MIN + 5, 2 * (MIN + 40) + 5));
        packets.lend(Some(lent.clone()));
        assert!(packets.keep(&lent[40..]) && packets.keep(b"short"), "behind the next");
        let mut out = [0; 7];
        packets.skip(MIN - 1);
        assert_eq!((packets.peek(&mut out), &out), (7, b"\x01short\x01"));
    }

    #[test]
    fn kept_packets_are_read_in_order_and_freed_one_by_one() {
        let mut packets = Packets::INITIAL;
        let mut expected: Vec<u8> = Vec::new();
        for byte in 1..=3 {
            let packet = packet(byte);
            packets.lend(Some(packet.clone()));
            assert!(packets.keep(&packet[40..]));
            expected.extend_from_slice(&packet[40..]);
        }
        let one = packets.memory() / 3;
        let mut out = vec![0; 2 * MIN];
        assert_eq!((packets.peek(&mut out), &out[..]), (2 * MIN, &expected[..2 * MIN]));
        assert_eq!((packets.skip(MIN - 1), packets.memory()), (MIN - 1, 3 * one));
        assert_eq!((packets.skip(1), packets.memory()), (1, 2 * one));
        assert_eq!((packets.peek(&mut out[..7]), &out[..7]), (7, &expected[MIN..MIN + 7]));
        assert_eq!((packets.skip(9 * MIN), packets.len(), packets.memory()), (2 * MIN, 0, 0));
        assert_eq!((packets.peek(&mut out), packets.skip(1)), (0, 0));
    }
}
