//! The packets of a simulated connection as a time-sequence diagram: an SVG with the client on the left, the
//! server on the right, and time from top to bottom.
//!
//! The diagram is drawn from a capture of both ends. A packet was lost if it was captured at its sender but
//! not at its receiver; its arrow ends in a cross. Idle times are shortened, but the times at the margins are
//! exact.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use brisk_sim::pcapng::Heading;
use brisk_wire::gentle::{COPY, R_ACK, R_FAIL, R_SUCC};
use brisk_wire::{ChecksumCheck, Flags, Gentle, Packet, Segment, SeqNum};
use maud::{Markup, PreEscaped, html};

/// Positions of the lines of client and server, and the width of the drawing.
const CLIENT_X: f64 = 270.0;
const SERVER_X: f64 = 560.0;
const WIDTH: f64 = 830.0;
/// Minimum distance of two labels, and maximum height of an idle time.
const STEP: f64 = 15.0;
const SILENCE: f64 = 44.0;
/// Height of a millisecond.
const SCALE: f64 = 2.2;
/// Maximum number of packets; a larger diagram would not be readable.
const MAX_PACKETS: usize = 400;

const STYLE: &str = "text{font:10.5px ui-monospace,monospace;fill:var(--fg,#222)}.t{fill:var(--dim,#667)}\
.end{stroke:var(--dim,#667);stroke-width:1.5}.p{stroke:var(--a1,#0b66c3);stroke-width:1.4;fill:none}\
.extra{stroke-dasharray:5 3;stroke:var(--a3,#15803d)}.lost{stroke:var(--bad,#b3261e)}.x{fill:var(--bad,#b3261e);font-size:14px}";

/// A capture in memory that can be read while the simulation owns the writer.
#[derive(Clone, Debug, Default)]
pub struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Buffer {
    /// Returns the bytes written so far.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.lock().map(|bytes| bytes.clone()).unwrap_or_default()
    }
}

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().map_err(|_| io::ErrorKind::Other)?.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Captured {
    /// True at the server, false at the client.
    at_server: bool,
    heading: Heading,
    us: u64,
    bytes: Vec<u8>,
}

/// A packet from its sender to its receiver.
struct Crossing {
    from_server: bool,
    sent: u64,
    /// Time of the arrival; `None` if the packet was lost.
    arrived: Option<u64>,
    label: String,
    /// True for a copy or parity.
    extra: bool,
}

/// Draws a capture of client and server (interfaces 0 and 1) that [`brisk_sim`] wrote, below `title`.
pub fn svg(capture: &[u8], title: &str) -> String {
    let crossings = crossings(&read(capture));
    let heights = heights(&crossings);
    let height = heights.last().map_or(0.0, |(_, y)| *y) + 40.0;
    let y = |us: u64| heights.iter().rev().find(|(at, _)| *at <= us).map_or(0.0, |(_, y)| *y);
    let mut slots = Slots::default();
    let flight = crossings.iter().filter_map(|crossing| Some(crossing.arrived? - crossing.sent)).min();
    let flight = flight.unwrap_or_default();
    let drawn: Vec<Markup> =
        crossings.iter().map(|crossing| arrow(crossing, flight, &y, &mut slots)).collect();
    let height = height.max(slots.lowest() + 20.0);
    let markup = html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (WIDTH) " " (height) } role="img" aria-label=(title) {
            style { (PreEscaped(STYLE)) }
            text x=(CLIENT_X) y="14" text-anchor="middle" { "client" }
            text x=(SERVER_X) y="14" text-anchor="middle" { "server" }
            line.end x1=(CLIENT_X) x2=(CLIENT_X) y1="20" y2=(height - 6.0) {}
            line.end x1=(SERVER_X) x2=(SERVER_X) y1="20" y2=(height - 6.0) {}
            @for drawn in &drawn { (drawn) }
        }
    };
    markup.into_string()
}

/// Next free position for a label at each end.
#[derive(Default)]
struct Slots([f64; 2]);

impl Slots {
    fn take(&mut self, server: bool, y: f64) -> f64 {
        let slot = &mut self.0[usize::from(server)];
        *slot = y.max(*slot + STEP);
        *slot
    }

    fn lowest(&self) -> f64 {
        self.0[0].max(self.0[1])
    }
}

/// Draws an arrow with its label; `flight` is the one-way time of a packet, microseconds.
fn arrow(crossing: &Crossing, flight: u64, y: &impl Fn(u64) -> f64, slots: &mut Slots) -> Markup {
    let Crossing { from_server, sent, arrived, label, extra } = crossing;
    let (from, to) = if *from_server { (SERVER_X, CLIENT_X) } else { (CLIENT_X, SERVER_X) };
    let start = slots.take(*from_server, y(*sent));
    let away = if *from_server { -1.0 } else { 1.0 };
    // The arrow of a lost packet ends at two thirds of the width, with the slope of a packet that arrives.
    let (x, end) = match arrived {
        // Packets of the same instant are drawn one below the other, at both ends.
        Some(at) => (to, y(*at) + start - y(*sent)),
        None => (from + (to - from) * 0.66, start + (y(sent + flight) - y(*sent)) * 0.66),
    };
    let class = match (arrived, extra) {
        (None, _) => "p lost",
        (Some(_), true) => "p extra",
        (Some(_), false) => "p",
    };
    let (at, anchor) = if *from_server { (SERVER_X + 8.0, "start") } else { (CLIENT_X - 8.0, "end") };
    let text = format!("{:.1} ms  {label}", *sent as f64 / 1000.0);
    html! {
        line class=(class) x1=(from) y1=(start) x2=(x) y2=(end) {}
        @if arrived.is_some() {
            path class=(class) d={ "M" (x - 7.0 * away) " " (end - 5.0) "L" (x) " " (end) "L" (x - 8.0 * away) " " (end + 1.0) } {}
        } @else {
            text.x x=(x) y=(end + 5.0) text-anchor="middle" { "✕" }
        }
        text x=(at) y=(start + 3.5) text-anchor=(anchor) { (text) }
    }
}

/// Returns the time and the height of every event. Heights are linear in time, except for idle times and for
/// instants with many events.
fn heights(crossings: &[Crossing]) -> Vec<(u64, f64)> {
    let mut happens: BTreeMap<u64, [u32; 2]> = BTreeMap::new();
    for Crossing { from_server, sent, arrived, .. } in crossings {
        happens.entry(*sent).or_default()[usize::from(*from_server)] += 1;
        if let Some(at) = arrived {
            happens.entry(*at).or_default()[usize::from(!from_server)] += 1;
        }
    }
    let mut y = 32.0;
    let mut last: Option<(u64, f64)> = None;
    let place = |(us, count): (u64, [u32; 2])| {
        if let Some((before, height)) = last {
            y += ((us - before) as f64 / 1000.0 * SCALE).min(SILENCE).max(height);
        }
        last = Some((us, f64::from(count[0].max(count[1])) * STEP));
        (us, y)
    };
    happens.into_iter().map(place).collect()
}

/// Pairs each sent packet with its arrival.
fn crossings(captured: &[Captured]) -> Vec<Crossing> {
    let mut taken = vec![false; captured.len()];
    let mut first: [Option<SeqNum>; 2] = [None; 2];
    let mut found = Vec::new();
    let begun = captured.first().map_or(0, |packet| packet.us);
    for (index, packet) in captured.iter().enumerate().filter(|(_, packet)| packet.heading == Heading::Out) {
        let Ok(Packet::Tcp(segment)) = brisk_wire::parse(&packet.bytes, ChecksumCheck::Trust) else {
            continue;
        };
        first[usize::from(packet.at_server)].get_or_insert(segment.tcp.seq);
        let same = |(at, other): &(usize, &Captured)| {
            *at > index
                && !taken[*at]
                && other.heading == Heading::In
                && other.at_server != packet.at_server
                && other.bytes == packet.bytes
        };
        let arrival = captured.iter().enumerate().find(same).map(|(at, other)| (at, other.us));
        if let Some((at, _)) = arrival {
            taken[at] = true;
        }
        found.push(Crossing {
            from_server: packet.at_server,
            sent: packet.us - begun,
            arrived: arrival.map(|(_, us)| us - begun),
            label: label(&segment, first, packet.at_server),
            extra: is_extra(&segment),
        });
        if found.len() == MAX_PACKETS {
            break;
        }
    }
    // A packet that did not arrive may have been in transit at the end of the capture, unless a later packet
    // of the same end arrived.
    let arrived = |server: bool| {
        let of = |crossing: &&Crossing| crossing.from_server == server && crossing.arrived.is_some();
        found.iter().filter(of).map(|crossing| crossing.sent).max()
    };
    let last = [arrived(false), arrived(true)];
    found.retain(|crossing| {
        crossing.arrived.is_some() || last[usize::from(crossing.from_server)] >= Some(crossing.sent)
    });
    found
}

/// Returns relative sequence numbers, the acknowledgement, and the content of the options.
fn label(segment: &Segment<'_>, first: [Option<SeqNum>; 2], from_server: bool) -> String {
    let relative = |seq: SeqNum, base: Option<SeqNum>| base.map_or(0, |base| seq.0.wrapping_sub(base.0));
    let own = relative(segment.tcp.seq, first[usize::from(from_server)]);
    let theirs = relative(segment.tcp.ack, first[usize::from(!from_server)]);
    let mut words = Vec::new();
    for (flag, name) in [(Flags::SYN, "SYN"), (Flags::FIN, "FIN"), (Flags::RST, "RST")] {
        if segment.tcp.flags.contains(flag) {
            words.push(name.to_owned());
        }
    }
    if !segment.payload.is_empty() && !is_parity(segment) {
        words.push(format!("{own}:{}", own.wrapping_add(segment.payload.len() as u32)));
    }
    if segment.tcp.flags.contains(Flags::ACK) && (segment.payload.is_empty() || !from_server) {
        words.push(format!("ack {theirs}"));
    }
    let blocks = segment.tcp.options.sack.iter();
    let base = first[usize::from(!from_server)];
    words.extend(
        blocks.map(|block| format!("sack {}:{}", relative(block.start, base), relative(block.end, base))),
    );
    words.extend(segment.tcp.options.gentle.and_then(gentle));
    words.join(" ")
}

fn gentle(option: Gentle) -> Option<String> {
    let (flags, parity) = match option {
        Gentle::Capability(_) => return Some("[offers]".to_owned()),
        Gentle::Part { .. } => return None,
        Gentle::Short { flags } | Gentle::Fail { flags, .. } => (flags, None),
        Gentle::EncF1 { flags, enc_len }
        | Gentle::EncF2 { flags, enc_len, .. }
        | Gentle::EncRs { flags, enc_len, .. } => (flags, Some(enc_len)),
    };
    let named = [(R_SUCC, "R_SUCC"), (R_ACK, "R_ACK"), (R_FAIL, "R_FAIL")];
    let mut words: Vec<String> =
        named.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, name)| (*name).to_owned()).collect();
    words.extend(parity.map(|bytes| format!("parity of {bytes} B")));
    (!words.is_empty()).then(|| format!("[{}]", words.join(" ")))
}

/// True for parity, and for a copy, which a reserved bit or the option marks.
fn is_extra(segment: &Segment<'_>) -> bool {
    let copy = matches!(segment.tcp.options.gentle, Some(Gentle::Short { flags }) if flags & COPY != 0);
    is_parity(segment) || copy || segment.tcp.flags.contains(Flags::R4)
}

fn is_parity(segment: &Segment<'_>) -> bool {
    let option = segment.tcp.options.gentle;
    matches!(option, Some(Gentle::EncF1 { .. } | Gentle::EncF2 { .. } | Gentle::EncRs { .. }))
}

/// Reads the packets of a capture that this program wrote: little-endian, with times in microseconds. Skips
/// other blocks, and ends at the first invalid block.
fn read(capture: &[u8]) -> Vec<Captured> {
    const ENHANCED_PACKET: u32 = 6;
    let word = |at: usize| Some(u32::from_le_bytes(capture.get(at..at + 4)?.try_into().ok()?));
    let packet = |at: usize| {
        let len = word(at + 20)? as usize;
        let bytes = capture.get(at + 28..at + 28 + len)?.to_vec();
        let flags = word(at + 28 + len.next_multiple_of(4) + 4)?;
        Some(Captured {
            at_server: word(at + 8)? == 1,
            heading: if flags & 3 == 1 { Heading::In } else { Heading::Out },
            us: u64::from(word(at + 12)?) << 32 | u64::from(word(at + 16)?),
            bytes,
        })
    };
    let mut found = Vec::new();
    let mut at = 0;
    while let (Some(kind), Some(len)) = (word(at), word(at + 4)) {
        if kind == ENHANCED_PACKET {
            found.extend(packet(at));
        }
        if len < 12 {
            break;
        }
        at += len as usize;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use brisk_link::LinkSpec;
    use brisk_sim::transaction::{Records, TransactionSpec, transaction_recorded};

    fn drawn(arm: &str, link: &str) -> String {
        let link = LinkSpec::parse(link).unwrap();
        let tcp = brisk_runtime::profile::Profile::parse(arm).unwrap().tcp;
        let spec = TransactionSpec {
            established: true,
            client: tcp.clone(),
            server: tcp,
            ..TransactionSpec::new(&link, 5_792)
        };
        let buffer = Buffer::default();
        let records = Records { capture: Some(Box::new(buffer.clone())), trace: None };
        transaction_recorded(&spec, 1, records).unwrap();
        svg(&buffer.bytes(), "a test")
    }

    #[test]
    fn lost_segment_ends_in_a_cross_and_parity_is_drawn_differently() {
        let clear = drawn("corrective", "--rtt 40ms");
        assert!(!clear.contains('✕') && clear.contains("parity of "), "{clear}");
        let lossy = drawn("corrective", "--rtt 40ms --loss down:list:3");
        assert_eq!(lossy.matches('✕').count(), 1, "{lossy}");
        assert!(lossy.contains("R_SUCC") && lossy.contains("p extra"), "{lossy}");
        assert!(drawn("tcp", "--rtt 40ms --loss down:list:3").contains("sack "));
    }

    #[test]
    fn text_without_a_capture_draws_nothing() {
        for bytes in [&b""[..], &[6, 0, 0, 0], &[6, 0, 0, 0, 255, 255, 255, 255], &[0; 40]] {
            assert!(!svg(bytes, "nothing").contains("ms"));
        }
    }
}
