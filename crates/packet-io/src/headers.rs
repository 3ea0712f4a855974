//! Offsets in the headers of a TCP packet, as needed for offload.
//!
//! Devices see packets of their own stack and of the kernel. Packets that are not plain TCP pass unchanged.

/// Offset of the flags byte in a TCP header.
const FLAGS: usize = 13;
/// Offset of the checksum in a TCP header; also the value of virtio-net's `csum_offset`.
pub(crate) const TCP_CHECKSUM: usize = 16;
pub(crate) const FIN: u8 = 0x01;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const CWR: u8 = 0x80;
const TCP: u8 = 6;

/// The shape of an unfragmented TCP packet without IPv6 extension headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Headers {
    pub(crate) v6: bool,
    /// Length of the IP header with options, bytes.
    pub(crate) ip_len: usize,
    /// Length of the TCP header with options, bytes.
    pub(crate) tcp_len: usize,
}

impl Headers {
    /// Maximum length of both headers together: 60 of IPv4 with options, 60 of TCP.
    pub(crate) const MAX: usize = 120;

    /// Parses the headers. Returns `None` for a packet of another shape, and if a header is incomplete.
    pub(crate) fn of(packet: &[u8]) -> Option<Headers> {
        let (v6, ip_len, protocol) = match packet.first()? >> 4 {
            4 => {
                let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x3FFF != 0;
                let ip_len = usize::from(packet.first()? & 0x0F) * 4;
                if fragment || ip_len < 20 {
                    return None;
                }
                (false, ip_len, *packet.get(9)?)
            }
            6 => (true, 40, *packet.get(6)?),
            _ => return None,
        };
        let tcp_len = usize::from(packet.get(ip_len + 12)? >> 4) * 4;
        let fits = tcp_len >= 20 && packet.len() >= ip_len + tcp_len;
        (protocol == TCP && fits).then_some(Headers { v6, ip_len, tcp_len })
    }

    /// Returns the length of both headers, which is the offset of the payload.
    pub(crate) fn total(&self) -> usize {
        self.ip_len + self.tcp_len
    }

    pub(crate) fn flags(&self, packet: &[u8]) -> u8 {
        packet.get(self.ip_len + FLAGS).copied().unwrap_or(0)
    }

    /// Returns the folded, uncomplemented sum of the pseudo-header (RFC 9293 3.1, RFC 8200 8.1). A packet
    /// whose checksum the device must complete has this sum in its checksum field.
    pub(crate) fn pseudo_sum(&self, packet: &[u8]) -> u16 {
        let addresses = if self.v6 { packet.get(8..40) } else { packet.get(12..20) };
        let len = packet.len().saturating_sub(self.ip_len) as u32;
        fold(
            sum(addresses.unwrap_or_default())
                + u64::from(TCP)
                + u64::from(len >> 16)
                + u64::from(len & 0xFFFF),
        )
    }
}

/// Returns the sum of the big-endian 16-bit words, not folded.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(2);
    let total: u64 = words.by_ref().map(|word| u64::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    total + words.remainder().first().map_or(0, |&last| u64::from(last) << 8)
}

/// Folds a sum to 16 bits, in ones' complement.
pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum > 0xFFFF {
        sum = (sum >> 16) + (sum & 0xFFFF);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tcp;

    #[test]
    fn headers_of_both_families_are_parsed() {
        let packet = Tcp { options: vec![1; 12], ..Tcp::v4() }.packet();
        assert_eq!(Headers::of(&packet), Some(Headers { v6: false, ip_len: 20, tcp_len: 32 }));
        let packet = Tcp::v6().packet();
        assert_eq!(Headers::of(&packet), Some(Headers { v6: true, ip_len: 40, tcp_len: 20 }));
    }

    #[test]
    fn truncated_and_other_packets_have_no_headers() {
        for packet in [Tcp::v4().packet(), Tcp::v6().packet()] {
            for len in 0..packet.len() {
                assert_eq!(Headers::of(&packet[..len]), None);
            }
        }
        let mut udp = Tcp::v4().packet();
        udp[9] = 17;
        assert_eq!(Headers::of(&udp), None);
        let mut fragment = Tcp::v4().packet();
        fragment[7] = 1;
        assert_eq!(Headers::of(&fragment), None);
    }
}
