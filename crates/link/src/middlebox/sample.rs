//! Packets for the tests of the boxes.

use crate::{Link, LinkDirection, LinkSpec};
use alloc::vec;
use alloc::vec::Vec;
use brisk_wire::{
    ChecksumCheck, ChecksumFill, Flags, IpMeta, Options, Packet, SeqNum, TcpHeader, Timestamps, emit, parse,
};
use brisk_wire::{Ecn, Instant};
use core::net::SocketAddr;

/// A TCP packet as its fields.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Sample {
    pub(super) src: SocketAddr,
    pub(super) dst: SocketAddr,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: Flags,
    pub(super) ecn: Ecn,
    pub(super) options: Options,
    pub(super) payload: Vec<u8>,
}

pub(super) fn link(text: &str) -> Link<Vec<u8>> {
    Link::new(&LinkSpec::parse(text).unwrap_or_else(|error| panic!("{error}")), 1)
}

impl Sample {
    /// A SYN from the client, without data.
    pub(super) fn syn() -> Sample {
        let options = Options { mss: Some(1460), sack_permitted: true, ..Options::default() };
        Sample { seq: 1000, ack: 0, flags: Flags::SYN, options, payload: Vec::new(), ..Sample::data() }
    }

    pub(super) fn data() -> Sample {
        let timestamps = Some(Timestamps { value: 1, echo: 2 });
        Sample {
            src: "10.7.0.2:40000".parse().unwrap(),
            dst: "10.7.0.1:80".parse().unwrap(),
            seq: 1001,
            ack: 5001,
            flags: Flags::ACK,
            ecn: Ecn::Ect0,
            options: Options { timestamps, ..Options::default() },
            payload: vec![b'a'; 500],
        }
    }

    /// Returns the packet between IPv6 addresses.
    pub(super) fn over_v6(self) -> Sample {
        let v6 = |address: SocketAddr| match address.port() {
            80 => "[2001:db8::1]:80".parse().unwrap(),
            port => SocketAddr::new("2001:db8::2".parse().unwrap(), port),
        };
        Sample { src: v6(self.src), dst: v6(self.dst), ..self }
    }

    /// Returns a segment of the other side that acknowledges this one.
    pub(super) fn answered(&self) -> Sample {
        let len = self.payload.len() as u32 + u32::from(self.flags.contains(Flags::SYN));
        let flags = if self.flags.contains(Flags::SYN) { Flags::SYN | Flags::ACK } else { Flags::ACK };
        let payload = Vec::new();
        Sample {
            src: self.dst,
            dst: self.src,
            seq: 5000,
            ack: self.seq.wrapping_add(len),
            flags,
            payload,
            ..self.clone()
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let ip = IpMeta { ecn: self.ecn, ..IpMeta::new(self.src.ip(), self.dst.ip()) };
        let header = TcpHeader {
            src_port: self.src.port(),
            dst_port: self.dst.port(),
            seq: SeqNum(self.seq),
            ack: SeqNum(self.ack),
            flags: self.flags,
            window: 1000,
            options: self.options.clone(),
            ..TcpHeader::default()
        };
        let mut out = Vec::new();
        emit(&ip, &header, &[&self.payload], ChecksumFill::Full, &mut out).unwrap();
        out
    }

    /// Parses a packet, whose checksums must be correct.
    pub(super) fn read(bytes: &[u8]) -> Sample {
        match parse(bytes, ChecksumCheck::Verify) {
            Ok(Packet::Tcp(segment)) => Sample {
                src: SocketAddr::new(segment.ip.src, segment.tcp.src_port),
                dst: SocketAddr::new(segment.ip.dst, segment.tcp.dst_port),
                seq: segment.tcp.seq.0,
                ack: segment.tcp.ack.0,
                flags: segment.tcp.flags,
                ecn: segment.ip.ecn,
                options: segment.tcp.options.clone(),
                payload: segment.payload.to_vec(),
            },
            other => panic!("not a sound TCP packet: {other:?}"),
        }
    }

    /// Returns the packets that arrive at the far end of a link when this one is sent up at time zero.
    pub(super) fn travel_up(&self, text: &str) -> Vec<Sample> {
        self.travel(&mut link(text).up)
    }

    /// Returns the packets that leave a direction when this one is offered.
    pub(super) fn travel(&self, direction: &mut LinkDirection<Vec<u8>>) -> Vec<Sample> {
        direction.offer(self.bytes(), Instant::ZERO);
        let mut out = Vec::new();
        while let Some(next) = direction.next_departure() {
            while let Some((_, packet)) = direction.poll(next) {
                out.push(Sample::read(&packet));
            }
        }
        out
    }
}
