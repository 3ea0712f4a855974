//! Crafted TCP packets for the tests of this crate.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::headers::{Headers, fold, sum};

/// The fields of a TCP packet.
#[derive(Clone, Debug)]
pub(crate) struct Tcp {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) ports: (u16, u16),
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// The low byte of the flags.
    pub(crate) flags: u8,
    /// The bits between data offset and flags.
    pub(crate) reserved: u8,
    pub(crate) window: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) ecn: u8,
}

impl Tcp {
    pub(crate) fn v4() -> Tcp {
        Tcp {
            src: Ipv4Addr::new(10, 77, 0, 2).into(),
            dst: Ipv4Addr::new(10, 77, 0, 1).into(),
            ports: (40_000, 80),
            seq: 1,
            ack: 0,
            flags: 0x10,
            reserved: 0,
            window: 65_535,
            options: Vec::new(),
            payload: Vec::new(),
            ecn: 0,
        }
    }

    pub(crate) fn v6() -> Tcp {
        let address = |last| Ipv6Addr::new(0xFD00, 0x77, 0, 0, 0, 0, 0, last).into();
        Tcp { src: address(2), dst: address(1), ..Tcp::v4() }
    }

    /// Returns the packet with complete checksums.
    pub(crate) fn packet(&self) -> Vec<u8> {
        let mut packet = self.with_partial_checksum();
        let headers = Headers::of(&packet).unwrap();
        let at = headers.ip_len + 16;
        let checksum = !fold(sum(&packet[headers.ip_len..]));
        packet[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        packet
    }

    /// Returns the packet with only the pseudo-header sum in the TCP checksum.
    pub(crate) fn with_partial_checksum(&self) -> Vec<u8> {
        let tcp_len = 20 + self.options.len();
        assert_eq!(tcp_len % 4, 0);
        let mut packet = self.ip_header(tcp_len + self.payload.len());
        packet.extend(self.ports.0.to_be_bytes());
        packet.extend(self.ports.1.to_be_bytes());
        packet.extend(self.seq.to_be_bytes());
        packet.extend(self.ack.to_be_bytes());
        packet.extend([((tcp_len / 4) as u8) << 4 | self.reserved, self.flags]);
        packet.extend(self.window.to_be_bytes());
        packet.extend([0; 4]);
        packet.extend(&self.options);
        packet.extend(&self.payload);
        let headers = Headers::of(&packet).unwrap();
        let at = headers.ip_len + 16;
        let partial = headers.pseudo_sum(&packet);
        packet[at..at + 2].copy_from_slice(&partial.to_be_bytes());
        packet
    }

    fn ip_header(&self, len: usize) -> Vec<u8> {
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                // The stack writes 0 if the field is too small.
                let total = u16::try_from(20 + len).unwrap_or(0);
                let mut header = vec![0x45, self.ecn];
                header.extend(total.to_be_bytes());
                header.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
                header.extend(src.octets());
                header.extend(dst.octets());
                let checksum = !fold(sum(&header));
                header[10..12].copy_from_slice(&checksum.to_be_bytes());
                header
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let mut header = vec![0x60, self.ecn << 4, 0, 0];
                header.extend(u16::try_from(len).unwrap_or(0).to_be_bytes());
                header.extend([6, 64]);
                header.extend(src.octets());
                header.extend(dst.octets());
                header
            }
            _ => panic!("addresses of two families"),
        }
    }

    pub(crate) fn parse(packet: &[u8]) -> Tcp {
        let headers = Headers::of(packet).expect("a TCP packet");
        let tcp = &packet[headers.ip_len..];
        let word = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let long = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
        let (src, dst, ecn) = if headers.v6 {
            let address = |at: usize| <[u8; 16]>::try_from(&packet[at..at + 16]).unwrap().into();
            (address(8), address(24), packet[1] >> 4 & 3)
        } else {
            let address = |at: usize| <[u8; 4]>::try_from(&packet[at..at + 4]).unwrap().into();
            (address(12), address(16), packet[1] & 3)
        };
        Tcp {
            src,
            dst,
            ports: (word(0), word(2)),
            seq: long(4),
            ack: long(8),
            flags: tcp[13],
            reserved: tcp[12] & 0x0F,
            window: word(14),
            options: tcp[20..headers.tcp_len].to_vec(),
            payload: tcp[headers.tcp_len..].to_vec(),
            ecn,
        }
    }
}

pub(crate) fn checksum_is_right(packet: &[u8]) -> bool {
    let headers = Headers::of(packet).expect("a TCP packet");
    fold(sum(&packet[headers.ip_len..]) + u64::from(headers.pseudo_sum(packet))) == 0xFFFF
}

/// Returns bytes that depend on their position.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 256) as u8).collect()
}
