//! Reasons why bytes are rejected, and why values cannot be written.
//!
//! The reasons are `Copy` and carry no text, so that a receiver can count them by variant. `Display` is for
//! people.

/// Implements `Display` and `Error` by the text of each value. A procedural macro would take longer to
/// compile than this crate.
#[doc(hidden)]
#[macro_export]
macro_rules! impl_error {
    ($type:ident { $($value:pat => $text:literal $(, $argument:expr)*;)+ }) => {
        impl core::fmt::Display for $type {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self {
                    $($value => write!(f, $text $(, $argument)*),)+
                }
            }
        }

        impl core::error::Error for $type {}
    };
}

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
    /// with segments left, or more headers than this parser follows.
    UnsupportedExtension,
    /// The TCP data offset is below 5.
    TcpHeaderLength,
    /// The TCP checksum is wrong.
    TcpChecksum,
    /// The ICMP checksum is wrong.
    IcmpChecksum,
}

crate::impl_error! {
    ParseError {
        Self::Truncated => "the packet is shorter than its headers say";
        Self::Version => "the IP version is neither 4 nor 6";
        Self::IpHeaderLength => "a length field of the IP header contradicts another one";
        Self::Fragment => "the packet is an IP fragment; fragments are not reassembled";
        Self::IpChecksum => "the IPv4 header checksum is wrong";
        Self::UnsupportedExtension => "an IPv6 extension header cannot be skipped";
        Self::TcpHeaderLength => "the TCP data offset is below 5 words";
        Self::TcpChecksum => "the TCP checksum is wrong";
        Self::IcmpChecksum => "the ICMP checksum is wrong";
    }
}

/// Reason why [`emit`](crate::emit) could not write a packet. It is always the caller's fault.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EmitError {
    /// The packet is longer than the length field of IP allows or, if its checksum is partial, than
    /// [`MAX_SUPER_LEN`](crate::MAX_SUPER_LEN).
    TooLong {
        /// Bytes of the whole packet.
        len: usize,
        /// Permitted bytes.
        max: usize,
    },
    /// Source and destination are not both IPv4 or both IPv6.
    MixedFamilies,
}

crate::impl_error! {
    EmitError {
        Self::TooLong { len, max } =>
            "a packet of {len} bytes does not fit an IP packet: send at most {max} with the headers";
        Self::MixedFamilies => "source and destination address are of different IP versions";
    }
}
