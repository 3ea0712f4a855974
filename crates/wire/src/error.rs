//! Reasons why bytes are rejected, and why values cannot be written.
//!
//! Each reason is one small `Copy` variant, so that a receiver can count reasons in an array and a person can
//! read them.

use thiserror::Error;

/// Reason why [`parse`](crate::parse) rejected a packet. It is always the sender's or the path's fault.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
pub enum ParseError {
    /// The packet ends before the header or the length that it announces.
    #[error("the packet is shorter than its headers say")]
    Truncated,
    /// The version field is neither 4 nor 6.
    #[error("the IP version is neither 4 nor 6")]
    Version,
    /// The IPv4 header length is below 20 bytes, or the total length is below the header length.
    #[error("a length field of the IP header contradicts another one")]
    IpHeaderLength,
    /// A fragment. Brisk's stack sets DF and probes the path's MTU; it does not reassemble.
    #[error("the packet is an IP fragment; fragments are not reassembled")]
    Fragment,
    /// The IPv4 header checksum is wrong.
    #[error("the IPv4 header checksum is wrong")]
    IpChecksum,
    /// An IPv6 extension header that cannot be skipped safely: an authentication header, a routing header
    /// with segments left, or a chain above the limit.
    #[error("an IPv6 extension header cannot be skipped")]
    UnsupportedExtension,
    /// The TCP data offset is below 5.
    #[error("the TCP data offset is below 5 words")]
    TcpHeaderLength,
    /// The TCP checksum is wrong.
    #[error("the TCP checksum is wrong")]
    TcpChecksum,
    /// The ICMP checksum is wrong.
    #[error("the ICMP checksum is wrong")]
    IcmpChecksum,
}

/// Reason why [`emit`](crate::emit) could not write a packet. It is always the caller's fault.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
pub enum EmitError {
    /// The packet would not fit the 16-bit length field of IP, or is longer than any super-packet.
    #[error("a packet of {len} bytes does not fit an IP packet: send at most {most} with the headers")]
    TooLong {
        /// Bytes of the whole packet.
        len: usize,
        /// Permitted bytes.
        most: usize,
    },
    /// Source and destination are not both IPv4 or both IPv6.
    #[error("source and destination address are of different IP versions")]
    MixedFamilies,
}
