//! Reasons why bytes are rejected, and why values cannot be written.
//!
//! Each reason is one small `Copy` variant, so that a receiver can count reasons in an array and a person can
//! read them.

use core::fmt;

/// Reason why [`parse`](crate::parse) rejected a packet. It is always the sender's or the path's fault.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ParseError {
    /// The packet ends before the header or the length that it announces.
    Truncated,
    /// The version field is neither 4 nor 6.
    Version,
    /// The IPv4 header length is below 20 bytes, or the total length is below the header length.
    IpHeaderLength,
    /// A fragment. Brisk's stack sets DF and probes the path's MTU; it does not reassemble.
    Fragment,
    /// The IPv4 header checksum is wrong.
    IpChecksum,
    /// An IPv6 extension header that cannot be skipped safely: an authentication header, a routing header
    /// with segments left, or a chain above the limit.
    UnsupportedExtension,
    /// The TCP data offset is below 5.
    TcpHeaderLength,
    /// The TCP checksum is wrong.
    TcpChecksum,
    /// The ICMP checksum is wrong.
    IcmpChecksum,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseError::Truncated => f.write_str("the packet is shorter than its headers say"),
            ParseError::Version => f.write_str("the IP version is neither 4 nor 6"),
            ParseError::IpHeaderLength => {
                f.write_str("a length field of the IP header contradicts another one")
            }
            ParseError::Fragment => {
                f.write_str("the packet is an IP fragment; fragments are not reassembled")
            }
            ParseError::IpChecksum => f.write_str("the IPv4 header checksum is wrong"),
            ParseError::UnsupportedExtension => f.write_str("an IPv6 extension header cannot be skipped"),
            ParseError::TcpHeaderLength => f.write_str("the TCP data offset is below 5 words"),
            ParseError::TcpChecksum => f.write_str("the TCP checksum is wrong"),
            ParseError::IcmpChecksum => f.write_str("the ICMP checksum is wrong"),
        }
    }
}

impl core::error::Error for ParseError {}

/// Reason why [`emit`](crate::emit) could not write a packet. It is always the caller's fault.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EmitError {
    /// The packet would not fit the 16-bit length field of IP, or is longer than any super-packet.
    TooLong {
        /// Bytes of the whole packet.
        len: usize,
        /// Permitted bytes.
        most: usize,
    },
    /// Source and destination are not both IPv4 or both IPv6.
    MixedFamilies,
}

impl fmt::Display for EmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EmitError::TooLong { len, most } => write!(
                f,
                "a packet of {len} bytes does not fit an IP packet: send at most {most} with the headers"
            ),
            EmitError::MixedFamilies => {
                f.write_str("source and destination address are of different IP versions")
            }
        }
    }
}

impl core::error::Error for EmitError {}
