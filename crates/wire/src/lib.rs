//! The formats of brisk: conversion between bytes and values.
//!
//! Everything above this crate works with values: a [`Segment`] has an IP header, a TCP header with its
//! [`Options`] and a payload slice. Only this crate knows the positions of the bits. It accepts any bytes and
//! never panics; it rejects invalid bytes with a [`ParseError`] that gives the reason, so that callers can
//! count the reasons.
//!
//! | module | content | specification |
//! |---|---|---|
//! | [`time`] | [`Instant`]: a point in time, in microseconds | |
//! | [`seq`] | [`SeqNum`]: sequence numbers modulo 2^32 | RFC 9293 3.4 |
//! | [`checksum`] | the Internet checksum, whole, partial and incremental | RFC 1071, RFC 1624 |
//! | [`ip`] | IPv4 and IPv6 headers, extension headers | RFC 791, RFC 8200 |
//! | [`tcp`] | the TCP header and its flags | RFC 9293 3.1, RFC 9768 |
//! | [`options`] | the TCP options and their deterministic encoder | RFC 9293, 7323, 2018, 7413, 6994 |
//! | [`fast_open`] | the Fast Open option and its [`Cookie`] | RFC 7413 |
//! | [`gentle`] | the option of Corrective and Proactive | Gentle Aggression, sections 5 and 6 |
//! | [`packet`] | parsing and writing whole packets, fields for a demultiplexer | |
//! | [`segmentation`] | cutting a super-packet in software | |
//! | [`icmp`] | ICMP errors that quote TCP | RFC 792, RFC 4443 |
//!
//! ```
//! use brisk_wire::{ChecksumCheck, ChecksumFill, Flags, IpMeta, Packet, SeqNum, TcpHeader, emit, parse};
//!
//! let ip = IpMeta::new([192, 0, 2, 1].into(), [198, 51, 100, 9].into());
//! let ports = TcpHeader { src_port: 49152, dst_port: 80, ..TcpHeader::default() };
//! let mut syn = TcpHeader { seq: SeqNum(7), flags: Flags::SYN, ..ports };
//! syn.options.mss = Some(1460);
//!
//! let mut bytes = Vec::new();
//! emit(&ip, &syn, &[b"GET /"], ChecksumFill::Full, &mut bytes).unwrap();
//!
//! let Ok(Packet::Tcp(segment)) = parse(&bytes, ChecksumCheck::Verify) else { panic!("not a segment") };
//! assert_eq!((segment.tcp, segment.payload), (syn, &b"GET /"[..]));
//! ```

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod checksum;
pub mod error;
pub mod fast_open;
pub mod gentle;
pub mod icmp;
pub mod ip;
pub mod options;
pub mod packet;
pub mod segmentation;
pub mod seq;
pub mod tcp;
pub mod time;

pub use arrayvec::ArrayVec;
pub use error::{EmitError, ParseError};
pub use fast_open::{Cookie, FastOpen};
pub use gentle::Gentle;
pub use icmp::{IcmpError, IcmpKind, emit_icmp, emit_icmp_too_big};
pub use ip::{Ecn, IpMeta};
pub use options::{
    Dropped, Options, RawOption, RawOptions, SackBlock, SackBlocks, Timestamps, UnknownOptions,
};
pub use packet::{
    ChecksumCheck, ChecksumFill, MAX_SUPER_LEN, Packet, Segment, emit, emit_headers, fill_checksums,
    four_tuple, header_len, parse, tcp_offset,
};
pub use segmentation::{split, split_headers, split_twice};
pub use seq::SeqNum;
pub use tcp::{Flags, TcpHeader};
pub use time::{Duration, Instant};

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
