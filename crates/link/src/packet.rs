//! The trait of packets on a link.
//!
//! The path elements need only a length, so a simulator may send its own structures. Only middleboxes,
//! congestion marks and ICMP answers need the bytes of an IP packet; a packet without bytes passes them
//! unchanged.

use alloc::vec::Vec;

/// A packet on a link.
pub trait LinkPacket {
    /// Returns the length on the wire in bytes, IP header included. Rate, queue and MTU use this length.
    fn wire_len(&self) -> usize;

    /// Returns the bytes of the IP packet; `None` if the packet has only a length.
    fn bytes(&self) -> Option<&[u8]> {
        None
    }

    /// Returns the bytes of the IP packet for rewriting; `None` if the packet has only a length.
    fn bytes_mut(&mut self) -> Option<&mut Vec<u8>> {
        None
    }

    /// Returns a second instance of the same packet.
    fn duplicate(&self) -> Self
    where
        Self: Sized;
}

impl LinkPacket for Vec<u8> {
    fn wire_len(&self) -> usize {
        self.len()
    }

    fn bytes(&self) -> Option<&[u8]> {
        Some(self)
    }

    fn bytes_mut(&mut self) -> Option<&mut Vec<u8>> {
        Some(self)
    }

    fn duplicate(&self) -> Self {
        self.clone()
    }
}
