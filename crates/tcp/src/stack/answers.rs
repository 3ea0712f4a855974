//! Packets that the stack itself sends in response: resets, SYN cookies, acknowledgements in TIME-WAIT.
//!
//! They belong to no connection and are never retransmitted. They wait as complete packets in a short queue.
//! If the device is so slow that the queue fills, further ones are dropped and counted.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use brisk_wire::{ChecksumFill, IpMeta, TcpHeader};

/// Maximum number of waiting packets.
const CAPACITY: usize = 1024;
/// Number of buffers kept for later packets, and maximum bytes of each.
const SPARE: usize = 64;
const SPARE_BYTES: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Answers {
    waiting: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

impl Answers {
    /// Queues a finished packet; false if the packet is empty or the queue is full.
    pub(crate) fn push(&mut self, packet: Vec<u8>) -> bool {
        if self.waiting.len() >= CAPACITY || packet.is_empty() {
            self.recycle(packet);
            return false;
        }
        self.waiting.push_back(packet);
        true
    }

    /// Writes and queues a segment without payload; false if the queue is full.
    pub(crate) fn push_header(&mut self, ip: &IpMeta, tcp: &TcpHeader, fill: ChecksumFill) -> bool {
        let mut packet = self.buffer();
        let written = brisk_wire::emit(ip, tcp, &[], fill, &mut packet);
        debug_assert!(written.is_ok(), "a header alone fits, and both ends are of one family");
        self.push(packet)
    }

    /// Returns an empty buffer for a packet.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    pub(crate) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Moves the oldest answer into `out`; false if there is none.
    pub(crate) fn pop_into(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(packet) = self.waiting.pop_front() else { return false };
        out.clear();
        out.extend_from_slice(&packet);
        self.recycle(packet);
        true
    }

    /// Keeps a buffer for a later packet.
    pub(crate) fn recycle(&mut self, mut packet: Vec<u8>) {
        if self.spare.len() < SPARE && packet.capacity() <= SPARE_BYTES {
            packet.clear();
            self.spare.push(packet);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_leave_in_order_and_the_queue_is_bounded() {
        let mut answers = Answers::default();
        let taken = (0..2 * CAPACITY).filter(|n| answers.push(std::vec![*n as u8])).count();
        assert_eq!(taken, CAPACITY);
        let mut out = Vec::new();
        assert!(answers.pop_into(&mut out));
        assert_eq!(out, [0]);
        assert!(answers.pop_into(&mut out));
        assert_eq!(out, [1]);
        assert!(answers.push(std::vec![9]), "there is room again");
    }
}
