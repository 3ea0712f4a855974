//! Compares segments of the stack with the script, and describes the differences.

use std::fmt::Write;

use brisk_wire::{Ecn, Flags};

use super::backend::Sent;
use super::flow::Flow;
use super::stream::{self, Blocks};
use crate::ast::{EcnBits, TcpPacket};
use crate::tcp_option::{Cookie, TcpOption, near};

/// A segment of the stack, with the script's sequence numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    /// Microseconds of script time.
    pub(crate) at: i64,
    pub(crate) flow: String,
    pub(crate) ecn: Ecn,
    pub(crate) flags: Flags,
    pub(crate) seq: u32,
    pub(crate) len: u32,
    pub(crate) ack: Option<u32>,
    pub(crate) win: u16,
    pub(crate) urg: u16,
    pub(crate) options: Vec<TcpOption>,
    /// True if the payload equals the application's data.
    pub(crate) intact: bool,
}

impl Seen {
    /// Converts a segment to the script's numbers.
    pub(crate) fn new(sent: &Sent, flow: &Flow) -> Seen {
        let seq = flow.local_to_script(sent.tcp.seq.0);
        let flags = sent.tcp.flags;
        let before = sent.tcp.options.gentle.as_ref().map_or(0, stream::part_offset);
        let first =
            seq.wrapping_add(u32::from(flags.contains(Flags::SYN))).wrapping_sub(1).wrapping_add(before);
        let len = sent.payload.len();
        let parity = sent.tcp.options.gentle.as_ref().and_then(|option| stream::Parity::of(option, seq));
        let intact = match parity {
            None => sent.payload == stream::bytes(u64::from(first), len),
            Some(parity) => [Blocks::All, Blocks::EverySecond]
                .into_iter()
                .any(|blocks| sent.payload == parity.payload(len, blocks)),
        };
        let to_script = |option: TcpOption| match option {
            TcpOption::Sack(blocks) => {
                let block =
                    |(start, end): &(u32, u32)| (flow.remote_to_script(*start), flow.remote_to_script(*end));
                TcpOption::Sack(blocks.iter().map(block).collect())
            }
            TcpOption::Timestamps { value, echo } => {
                TcpOption::Timestamps { value: flow.stamp_to_script(value), echo }
            }
            other => other,
        };
        Seen {
            at: sent.at,
            flow: flow.name.clone(),
            ecn: sent.ip.ecn,
            flags,
            seq,
            len: sent.payload.len() as u32,
            ack: flags.contains(Flags::ACK).then(|| flow.remote_to_script(sent.tcp.ack.0)),
            win: sent.tcp.window,
            urg: sent.tcp.urgent,
            options: TcpOption::decode_all(&sent.options).into_iter().map(to_script).collect(),
            intact,
        }
    }

    /// Appends the next segment if both would be one super-packet, as packetdrill does. Flags at the end of a
    /// burst are those of the last segment.
    pub(crate) fn absorb(&mut self, next: &Seen) -> bool {
        let ends = Flags::PSH | Flags::FIN;
        let fits = next.flow == self.flow
            && next.len > 0
            && next.seq == self.seq.wrapping_add(self.len)
            && next.ack == self.ack
            && next.ecn == self.ecn
            && !self.flags.intersects(Flags::SYN | Flags::FIN | Flags::RST | Flags::URG)
            && next.flags.without(ends) == self.flags.without(ends);
        if fits {
            self.len += next.len;
            self.flags = next.flags;
            self.intact &= next.intact;
        }
        fits
    }

    /// Returns the fields that differ from the script, except the time.
    pub(crate) fn differences(&self, expected: &TcpPacket, ts_tolerance: Option<u32>) -> Vec<&'static str> {
        let ecn_differs = match expected.prefix.ecn {
            None => false,
            Some(EcnBits::Is(ecn)) => ecn != self.ecn,
            Some(EcnBits::Ect01) => !matches!(self.ecn, Ecn::Ect0 | Ecn::Ect1),
        };
        let urg = expected.urg.unwrap_or(0);
        [
            ("flow", expected.prefix.flow.as_deref().unwrap_or("") != self.flow),
            ("ECN field", ecn_differs),
            ("flags", expected.flags != self.flags),
            ("sequence number", expected.seq != self.seq),
            ("length", expected.len != self.len),
            ("acknowledgement number", expected.ack != self.ack),
            ("window", expected.win.is_some_and(|win| win != self.win)),
            ("urgent pointer", urg != self.urg),
            (
                "options",
                expected.options.as_ref().is_some_and(|list| !same(list, &self.options, ts_tolerance)),
            ),
            ("payload", !self.intact),
        ]
        .into_iter()
        .filter_map(|(field, differs)| differs.then_some(field))
        .collect()
    }
}

/// True if the options are equal and in the same order. Time stamps of the stack have no fixed value, so they
/// are compared only if there is a tolerance, in ticks.
fn same(expected: &[TcpOption], seen: &[TcpOption], ts_tolerance: Option<u32>) -> bool {
    let one = |(expected, seen): (&TcpOption, &TcpOption)| match (expected, seen) {
        (TcpOption::Timestamps { value: a, echo }, TcpOption::Timestamps { value: b, echo: seen_echo }) => {
            let close = ts_tolerance.is_none_or(|ticks| (a.wrapping_sub(*b) as i32).unsigned_abs() <= ticks);
            close && echo == seen_echo
        }
        // A name matches any cookie, but not a cookie request.
        (
            TcpOption::FastOpen { cookie: Cookie::Named(_), experimental },
            TcpOption::FastOpen { cookie: Cookie::Bytes(bytes), experimental: seen },
        ) => experimental == seen && !bytes.is_empty(),
        (expected, seen) => expected == seen,
    };
    expected.len() == seen.len() && expected.iter().zip(seen).all(one)
}

/// Formats seconds with six decimals.
pub(crate) fn seconds(micros: i64) -> String {
    let sign = if micros < 0 { "-" } else { "" };
    let micros = micros.unsigned_abs();
    format!("{sign}{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

/// Formats the segment as a script line.
pub(crate) fn seen_line(seen: &Seen, direction: char) -> String {
    let ecn = match seen.ecn {
        Ecn::NotEct => None,
        ecn => Some(EcnBits::Is(ecn)),
    };
    let mut line = format!("{} {direction} ", seconds(seen.at));
    write_prefix(&mut line, &seen.flow, ecn);
    write_segment(&mut line, seen.flags, seen.seq, seen.len);
    write_numbers(&mut line, seen.ack, Some(seen.win), seen.flags.contains(Flags::URG).then_some(seen.urg));
    write_options(&mut line, Some(&seen.options));
    line
}

pub(crate) fn expected_line(time: &str, direction: char, packet: &TcpPacket) -> String {
    let mut line = format!("{time} {direction} ");
    write_prefix(&mut line, packet.prefix.flow.as_deref().unwrap_or(""), packet.prefix.ecn);
    write_segment(&mut line, packet.flags, packet.seq, packet.len);
    write_numbers(&mut line, packet.ack, packet.win, packet.urg);
    write_options(&mut line, packet.options.as_deref());
    line
}

fn write_prefix(line: &mut String, flow: &str, ecn: Option<EcnBits>) {
    let ecn = ecn.map(|ecn| match ecn {
        EcnBits::Is(Ecn::NotEct) => "noecn",
        EcnBits::Is(Ecn::Ect0) => "ect0",
        EcnBits::Is(Ecn::Ect1) => "ect1",
        EcnBits::Is(Ecn::Ce) => "ce",
        EcnBits::Ect01 => "ect01",
    });
    let flow = (!flow.is_empty()).then(|| format!("flow {flow}"));
    let parts: Vec<String> = flow.into_iter().chain(ecn.map(str::to_owned)).collect();
    if !parts.is_empty() {
        let _ = write!(line, "[{}] ", parts.join(", "));
    }
}

fn write_segment(line: &mut String, flags: Flags, seq: u32, len: u32) {
    let _ = write!(line, "{flags} {}:{}({len})", near(seq), near(seq.wrapping_add(len)));
}

fn write_numbers(line: &mut String, ack: Option<u32>, win: Option<u16>, urg: Option<u16>) {
    let numbers = [("ack", ack), ("win", win.map(u32::from)), ("urg", urg.map(u32::from))];
    for (name, number) in numbers {
        if let Some(number) = number {
            let _ = write!(line, " {name} {number}");
        }
    }
}

fn write_options(line: &mut String, options: Option<&[TcpOption]>) {
    match options {
        None => line.push_str(" <...>"),
        Some([]) => {}
        Some(options) => {
            let texts: Vec<String> = options.iter().map(ToString::to_string).collect();
            let _ = write!(line, " <{}>", texts.join(","));
        }
    }
}
