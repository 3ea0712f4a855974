//! `struct virtio_net_hdr` of linux/virtio_net.h: describes the unfinished work on a packet (virtio 1.2,
//! 5.1.6).
//!
//! Ten bytes before every packet, in the byte order of the host:
//!
//! ```text
//! flags u8 | gso_type u8 | hdr_len u16 | gso_size u16 | csum_start u16 | csum_offset u16
//! ```

use brisk_device::{ChecksumState, RxMeta};

use crate::headers::{CWR, Headers, TCP_CHECKSUM};

/// The checksum field contains only the sum of the pseudo-header; the sum over the bytes from `csum_start`
/// must be added.
const F_NEEDS_CSUM: u8 = 1;
/// The checksum was verified.
const F_DATA_VALID: u8 = 2;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// Flag in the type: only the first segment has CWR.
const GSO_ECN: u8 = 0x80;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct VnetHeader {
    flags: u8,
    gso_type: u8,
    hdr_len: u16,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

/// Segmentation of a super-packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gso {
    pub(crate) size: u16,
    pub(crate) v6: bool,
    /// The TCP flags of the super-packet.
    pub(crate) flags: u8,
}

impl VnetHeader {
    pub(crate) const LEN: usize = 10;

    /// Returns the header for a TCP packet with a partial checksum that may have to be cut.
    pub(crate) fn unfinished(headers: &Headers, gso: Option<Gso>) -> VnetHeader {
        let checksum = VnetHeader {
            flags: F_NEEDS_CSUM,
            csum_start: headers.ip_len as u16,
            csum_offset: TCP_CHECKSUM as u16,
            ..VnetHeader::default()
        };
        let Some(Gso { size, v6, flags }) = gso else { return checksum };
        let ecn = if flags & CWR != 0 { GSO_ECN } else { 0 };
        VnetHeader {
            gso_type: if v6 { GSO_TCPV6 } else { GSO_TCPV4 } | ecn,
            hdr_len: headers.total() as u16,
            gso_size: size,
            ..checksum
        }
    }

    /// Returns a header with the [metadata](VnetHeader::rx_meta) of a received packet.
    pub(crate) fn received(meta: RxMeta) -> VnetHeader {
        VnetHeader {
            flags: if meta.checksum == ChecksumState::Trusted { F_DATA_VALID } else { 0 },
            gso_type: if meta.segment_size.is_some() { GSO_TCPV4 } else { 0 },
            gso_size: meta.segment_size.unwrap_or(0),
            ..VnetHeader::default()
        }
    }

    pub(crate) fn parse(bytes: &[u8; VnetHeader::LEN]) -> VnetHeader {
        let [flags, gso_type, h0, h1, g0, g1, s0, s1, o0, o1] = *bytes;
        VnetHeader {
            flags,
            gso_type,
            hdr_len: u16::from_ne_bytes([h0, h1]),
            gso_size: u16::from_ne_bytes([g0, g1]),
            csum_start: u16::from_ne_bytes([s0, s1]),
            csum_offset: u16::from_ne_bytes([o0, o1]),
        }
    }

    pub(crate) fn bytes(&self) -> [u8; VnetHeader::LEN] {
        let VnetHeader { flags, gso_type, hdr_len, gso_size, csum_start, csum_offset } = *self;
        let [h0, h1] = hdr_len.to_ne_bytes();
        let [g0, g1] = gso_size.to_ne_bytes();
        let [s0, s1] = csum_start.to_ne_bytes();
        let [o0, o1] = csum_offset.to_ne_bytes();
        [flags, gso_type, h0, h1, g0, g1, s0, s1, o0, o1]
    }

    /// Returns the metadata of a received packet. A packet with a partial checksum comes from a sender on
    /// this host, or the kernel has verified and merged its segments (GRO). So its checksum need not be
    /// verified.
    pub(crate) fn rx_meta(&self) -> RxMeta {
        let trusted = self.flags & (F_NEEDS_CSUM | F_DATA_VALID) != 0;
        let tcp = matches!(self.gso_type & !GSO_ECN, GSO_TCPV4 | GSO_TCPV6);
        RxMeta {
            checksum: if trusted { ChecksumState::Trusted } else { ChecksumState::Verify },
            segment_size: (tcp && self.gso_size > 0).then_some(self.gso_size),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_survives_a_round_trip_through_bytes() {
        let headers = Headers { v6: true, ip_len: 40, tcp_len: 32 };
        let gso = Gso { size: 1440, v6: true, flags: CWR };
        let header = VnetHeader::unfinished(&headers, Some(gso));
        assert_eq!(header.gso_type, GSO_TCPV6 | GSO_ECN);
        assert_eq!((header.hdr_len, header.csum_start, header.csum_offset), (72, 40, 16));
        assert_eq!(VnetHeader::parse(&header.bytes()), header);
        assert_eq!(header.rx_meta(), RxMeta { checksum: ChecksumState::Trusted, segment_size: Some(1440) });
    }

    #[test]
    fn plain_packet_must_be_verified() {
        let meta = VnetHeader::parse(&[0; 10]).rx_meta();
        assert_eq!(meta, RxMeta { checksum: ChecksumState::Verify, segment_size: None });
    }
}
