//! TCP options in the script's notation, in order and with padding: parses and writes them.

use std::fmt;

use brisk_wire::options::kind;
use brisk_wire::{RawOption, RawOptions};

/// ExID of Fast Open in its experimental form (RFC 7413).
const FAST_OPEN_EXID: [u8; 2] = [0xf9, 0x89];
const GENTLE_EXID: [u8; 2] = [0xdc, 0x60];

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum TcpOption {
    /// `nop`
    Nop,
    /// `eol`
    Eol,
    /// `mss n`
    Mss(u16),
    /// `wscale n`
    WindowScale(u8),
    /// `sackOK`
    SackPermitted,
    /// `TS val n ecr n`
    Timestamps { value: u32, echo: Echo },
    /// `sack a:b c:d`
    Sack(Vec<(u32, u32)>),
    /// `FO`, `FO hex`, `FO $name`; `FOEXP …` is the experimental form.
    FastOpen { cookie: Cookie, experimental: bool },
    /// `GA hex`
    Gentle(Vec<u8>),
    /// `kind n hex`
    Other { kind: u8, content: Vec<u8> },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Echo {
    /// `ecr n`
    Value(u32),
    /// `ecr @`: the time stamp of the last segment that the stack sent.
    Newest,
    /// `ecr @seq/n`: the time stamp of the stack's n-th segment that began at `seq`; like `@` if there is
    /// none.
    Segment { seq: u32, transmission: u32 },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Cookie {
    /// These bytes; an empty cookie is a request.
    Bytes(Vec<u8>),
    /// A name: the first packet of the stack with the cookie defines its value.
    Named(String),
}

impl TcpOption {
    /// Appends the bytes of the option. Named cookies and echoes must be resolved first; otherwise a cookie
    /// counts as a request, and an echo as 0.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut tlv = |kind: u8, pieces: &[&[u8]]| {
            let len = 2 + pieces.iter().map(|piece| piece.len()).sum::<usize>();
            out.extend([kind, len as u8]);
            out.extend(pieces.iter().flat_map(|piece| piece.iter()));
        };
        match self {
            TcpOption::Nop => out.push(kind::NOP),
            TcpOption::Eol => out.push(kind::END),
            TcpOption::Mss(mss) => tlv(kind::MSS, &[&mss.to_be_bytes()]),
            TcpOption::WindowScale(shift) => tlv(kind::WINDOW_SCALE, &[&[*shift]]),
            TcpOption::SackPermitted => tlv(kind::SACK_PERMITTED, &[]),
            TcpOption::Timestamps { value, echo } => {
                let echo = if let Echo::Value(echo) = echo { *echo } else { 0 };
                tlv(kind::TIMESTAMPS, &[&value.to_be_bytes(), &echo.to_be_bytes()]);
            }
            TcpOption::Sack(blocks) => {
                let bytes: Vec<u8> =
                    blocks.iter().flat_map(|(a, b)| [a.to_be_bytes(), b.to_be_bytes()].concat()).collect();
                tlv(kind::SACK, &[&bytes]);
            }
            TcpOption::FastOpen { cookie, experimental } => {
                let cookie: &[u8] = match cookie {
                    Cookie::Bytes(bytes) => bytes,
                    Cookie::Named(_) => &[],
                };
                match experimental {
                    true => tlv(kind::EXPERIMENT_2, &[&FAST_OPEN_EXID, cookie]),
                    false => tlv(kind::FAST_OPEN, &[cookie]),
                }
            }
            TcpOption::Gentle(value) => tlv(kind::EXPERIMENT_2, &[&GENTLE_EXID, value]),
            TcpOption::Other { kind, content } => tlv(*kind, &[content]),
        }
    }

    pub(crate) fn decode_all(area: &[u8]) -> Vec<TcpOption> {
        let mut read = 0;
        let mut options = Vec::new();
        for option in RawOptions::new(area) {
            let (option, len) = match option {
                RawOption::Nop { .. } => (TcpOption::Nop, 1),
                RawOption::Tlv { kind, content, .. } => (Self::decode(kind, content), content.len() + 2),
                RawOption::Malformed { kind, rest, .. } => {
                    (TcpOption::Other { kind, content: rest.to_vec() }, rest.len() + 1)
                }
            };
            options.push(option);
            read += len;
        }
        options.extend((read..area.len()).map(|_| TcpOption::Eol));
        options
    }

    fn decode(option: u8, content: &[u8]) -> TcpOption {
        let fast_open = |cookie: &[u8], experimental| TcpOption::FastOpen {
            cookie: Cookie::Bytes(cookie.to_vec()),
            experimental,
        };
        match (option, content) {
            (kind::MSS, &[a, b]) => TcpOption::Mss(u16::from_be_bytes([a, b])),
            (kind::WINDOW_SCALE, &[shift]) => TcpOption::WindowScale(shift),
            (kind::SACK_PERMITTED, []) => TcpOption::SackPermitted,
            (kind::TIMESTAMPS, &[a, b, c, d, e, f, g, h]) => TcpOption::Timestamps {
                value: u32::from_be_bytes([a, b, c, d]),
                echo: Echo::Value(u32::from_be_bytes([e, f, g, h])),
            },
            (kind::SACK, blocks) if !blocks.is_empty() && blocks.len() % 8 == 0 => {
                let (blocks, _) = blocks.as_chunks::<8>();
                let block = |&[a, b, c, d, e, f, g, h]: &[u8; 8]| {
                    (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]))
                };
                TcpOption::Sack(blocks.iter().map(block).collect())
            }
            (kind::FAST_OPEN, cookie) => fast_open(cookie, false),
            (kind::EXPERIMENT_2, [a, b, cookie @ ..]) if [*a, *b] == FAST_OPEN_EXID => {
                fast_open(cookie, true)
            }
            (kind::EXPERIMENT_2, [a, b, value @ ..]) if [*a, *b] == GENTLE_EXID => {
                TcpOption::Gentle(value.to_vec())
            }
            (kind, content) => TcpOption::Other { kind, content: content.to_vec() },
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl fmt::Display for TcpOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TcpOption::Nop => f.write_str("nop"),
            TcpOption::Eol => f.write_str("eol"),
            TcpOption::Mss(mss) => write!(f, "mss {mss}"),
            TcpOption::WindowScale(shift) => write!(f, "wscale {shift}"),
            TcpOption::SackPermitted => f.write_str("sackOK"),
            TcpOption::Timestamps { value, echo } => match echo {
                Echo::Value(echo) => write!(f, "TS val {value} ecr {echo}"),
                Echo::Newest => write!(f, "TS val {value} ecr @"),
                Echo::Segment { seq, transmission } => {
                    write!(f, "TS val {value} ecr @{}/{transmission}", near(*seq))
                }
            },
            TcpOption::Sack(blocks) => {
                f.write_str("sack")?;
                blocks.iter().try_for_each(|(start, end)| write!(f, " {}:{}", near(*start), near(*end)))
            }
            TcpOption::FastOpen { cookie, experimental } => {
                f.write_str(if *experimental { "FOEXP" } else { "FO" })?;
                match cookie {
                    Cookie::Bytes(bytes) if bytes.is_empty() => Ok(()),
                    Cookie::Bytes(bytes) => write!(f, " {}", hex(bytes)),
                    Cookie::Named(name) => write!(f, " ${name}"),
                }
            }
            TcpOption::Gentle(value) => write!(f, "GA {}", hex(value)),
            TcpOption::Other { kind, content } => write!(f, "kind {kind} {}", hex(content)),
        }
    }
}

/// Returns a sequence number for display; a number slightly below the initial one is negative.
pub(crate) fn near(seq: u32) -> i64 {
    const LITTLE: u32 = 1 << 24;
    if seq > u32::MAX - LITTLE { i64::from(seq as i32) } else { i64::from(seq) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_back_in_order_with_their_padding() {
        let options = [
            TcpOption::Mss(1460),
            TcpOption::SackPermitted,
            TcpOption::Timestamps { value: 1, echo: Echo::Value(2) },
            TcpOption::Nop,
            TcpOption::WindowScale(8),
            TcpOption::FastOpen { cookie: Cookie::Bytes(vec![0, 0xab, 0xaa, 0xab]), experimental: true },
            TcpOption::Gentle(vec![0x51]),
            TcpOption::Other { kind: 99, content: vec![7] },
            TcpOption::Sack(vec![(1, 2)]),
            TcpOption::Eol,
            TcpOption::Eol,
        ];
        let mut bytes = Vec::new();
        options.iter().for_each(|option| option.encode(&mut bytes));
        assert_eq!(TcpOption::decode_all(&bytes), options);
        let text: Vec<String> = options.iter().map(ToString::to_string).collect();
        assert_eq!(
            text.join(","),
            "mss 1460,sackOK,TS val 1 ecr 2,nop,wscale 8,FOEXP 00abaaab,GA 51,kind 99 07,sack 1:2,eol,eol"
        );
    }
}
