//! Finds the differences between two stacks in the same script.

use std::collections::BTreeMap;

use super::record::{Packet, Reaction, Record, Step};

/// A packet that leaves at once may be this late in the kernel, and any packet this early, microseconds.
const TOLERANCE: i64 = 6_000;

/// The kind of difference.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// The kernel sent a segment and ours did not.
    Missing,
    /// Ours sent a segment and the kernel did not.
    Surplus,
    /// A field of a segment.
    Field(&'static str),
    /// A field of TCP_INFO.
    Value(String),
    /// The result of a call.
    Returned,
}

/// One difference.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The step at which it shows.
    pub step: usize,
    /// The kind of difference.
    pub what: What,
    /// The segments, if the difference concerns one.
    pub packets: (Option<Packet>, Option<Packet>),
    /// The values, if the difference concerns TCP_INFO; -1 without a connection.
    pub values: (i64, i64),
    /// Description of our result.
    pub ours: String,
    /// Description of the kernel's result.
    pub kernel: String,
}

impl Difference {
    /// Returns a name for differences of the same kind.
    pub fn class(&self) -> String {
        let kind = |packet: &Option<Packet>| match packet {
            Some(packet) if packet.has('R') => "reset",
            Some(packet) if packet.has('S') => "SYN",
            Some(packet) if packet.has('F') => "FIN",
            Some(packet) if packet.is_pure_ack() => "ACK",
            Some(_) => "data",
            None => "nothing",
        };
        match &self.what {
            What::Missing => format!("missing {}", kind(&self.packets.1)),
            What::Surplus => format!("surplus {}", kind(&self.packets.0)),
            What::Field(field) => format!("{field} of {}", kind(&self.packets.0)),
            What::Value(field) => format!("tcpi_{field}"),
            What::Returned => "result of a call".to_owned(),
        }
    }

    /// True if the connections diverge, so that later events cannot be compared.
    pub fn diverges(&self) -> bool {
        matches!(self.what, What::Missing | What::Surplus | What::Returned)
            || matches!(self.what, What::Field("sequence number" | "length"))
    }
}

/// Returns the maximum delay of an event in the kernel's run; `None` if the kernel ran another script.
pub fn lateness(ours: &Record, kernel: &Record) -> Option<i64> {
    let same = ours.steps.len() == kernel.steps.len()
        && ours.steps.iter().zip(&kernel.steps).all(|(ours, kernel)| ours.event == kernel.event);
    let late = ours.steps.iter().zip(&kernel.steps).filter(|(ours, _)| ours.at > 0);
    same.then(|| late.map(|(ours, kernel)| kernel.at - ours.at).max().unwrap_or(0))
}

/// Returns the differences in order of time, up to the first after which nothing can be compared. A value
/// that differs is reported when the difference begins, and again when it changes.
pub fn compare(ours: &Record, kernel: &Record) -> Vec<Difference> {
    let mut differences = Vec::new();
    let mut known = Known::new();
    for (n, (ours, kernel)) in ours.steps.iter().zip(&kernel.steps).enumerate() {
        compare_step(n, ours, kernel, &mut known, &mut differences);
        if let Some(parting) = differences.iter().position(Difference::diverges) {
            differences.truncate(parting + 1);
            return differences;
        }
    }
    differences
}

/// The fields whose values differed at the last mark, with both values.
type Known = BTreeMap<String, (Option<i64>, Option<i64>)>;

/// Counters that never decrease: while their difference is constant, nothing new has happened.
const COUNTERS: &[&str] = &[
    "total_retrans",
    "bytes_acked",
    "bytes_received",
    "segs_out",
    "segs_in",
    "data_segs_in",
    "data_segs_out",
    "delivered",
    "delivered_ce",
    "bytes_sent",
    "bytes_retrans",
    "dsack_dups",
    "reord_seen",
    "rcv_ooopack",
    "total_rto",
];

/// True if the difference of two values is that of the last mark.
fn is_known(field: &str, values: (Option<i64>, Option<i64>), before: (Option<i64>, Option<i64>)) -> bool {
    let distance = |(ours, kernel): (Option<i64>, Option<i64>)| Some(ours? - kernel?);
    values == before || (COUNTERS.contains(&field) && distance(values) == distance(before))
}

fn compare_step(
    step: usize,
    ours: &Step,
    kernel: &Step,
    known: &mut Known,
    differences: &mut Vec<Difference>,
) {
    let nothing = || Difference {
        step,
        what: What::Returned,
        packets: (None, None),
        values: (0, 0),
        ours: "nothing".to_owned(),
        kernel: "nothing".to_owned(),
    };
    for (ours, kernel) in values(ours).zip(values(kernel)) {
        for ((field, ours), (_, kernel)) in ours.iter().zip(kernel) {
            if are_near(field, *ours, *kernel) {
                known.remove(field);
                continue;
            }
            let before = known.insert(field.clone(), (*ours, *kernel));
            if before.is_none_or(|before| !is_known(field, (*ours, *kernel), before)) {
                let show = |value: &Option<i64>| value.map_or("none".to_owned(), |value| value.to_string());
                let (ours_shown, kernel_shown) = (show(ours), show(kernel));
                differences.push(Difference {
                    what: What::Value(field.clone()),
                    values: (ours.unwrap_or(-1), kernel.unwrap_or(-1)),
                    ours: ours_shown,
                    kernel: kernel_shown,
                    ..nothing()
                });
            }
            if ours.is_none() || kernel.is_none() {
                break;
            }
        }
    }
    let begun = ours.at;
    let (ours_packets, kernel_packets) = (packets(ours), packets(kernel));
    for n in 0..ours_packets.len().max(kernel_packets.len()) {
        let pair = (ours_packets.get(n).copied(), kernel_packets.get(n).copied());
        let show =
            |packet: Option<&Packet>| packet.map_or("nothing".to_owned(), |packet| packet.line.clone());
        let of = |what| Difference {
            what,
            packets: (pair.0.cloned(), pair.1.cloned()),
            ours: show(pair.0),
            kernel: show(pair.1),
            ..nothing()
        };
        match pair {
            (Some(ours), Some(kernel)) => {
                differences.extend(fields(ours, kernel, ours.at == begun).map(of));
            }
            (Some(_), None) => differences.push(of(What::Surplus)),
            (None, Some(_)) => differences.push(of(What::Missing)),
            (None, None) => {}
        }
    }
    for (ours, kernel) in results(ours).zip(results(kernel)) {
        if ours != kernel {
            differences.push(Difference { ours: ours.clone(), kernel: kernel.clone(), ..nothing() });
        }
    }
}

fn packets(step: &Step) -> Vec<&Packet> {
    let packets = step
        .reactions
        .iter()
        .filter_map(|reaction| if let Reaction::Sent(packet) = reaction { Some(packet) } else { None });
    packets.collect()
}

fn values(step: &Step) -> impl Iterator<Item = &Vec<(String, Option<i64>)>> {
    step.reactions
        .iter()
        .filter_map(|reaction| if let Reaction::Values(values) = reaction { Some(values) } else { None })
}

fn results(step: &Step) -> impl Iterator<Item = &String> {
    step.reactions
        .iter()
        .filter_map(|reaction| if let Reaction::Returned(value) = reaction { Some(value) } else { None })
}

/// Returns the fields of a segment that differ.
fn fields(ours: &Packet, kernel: &Packet, at_once: bool) -> impl Iterator<Item = What> {
    let late = if at_once { TOLERANCE } else { TOLERANCE + super::generate::lateness(ours) };
    let differ = [
        ("sequence number", ours.seq != kernel.seq),
        ("length", ours.len != kernel.len),
        ("flags", ours.flags != kernel.flags),
        ("acknowledgement number", ours.ack != kernel.ack),
        ("options", ours.options != kernel.options),
        ("ECN field", ours.ecn != kernel.ecn),
        ("window", !are_windows_near(ours, kernel)),
        ("time", !(-TOLERANCE..=late).contains(&(kernel.at - ours.at))),
    ];
    differ.into_iter().filter_map(|(field, differs)| differs.then_some(What::Field(field)))
}

/// True if two windows are about equal, and both or neither closed: Linux counts the memory of its buffers,
/// we count bytes.
fn are_windows_near(ours: &Packet, kernel: &Packet) -> bool {
    let (low, high) = (ours.win.min(kernel.win), ours.win.max(kernel.win));
    low == high || (low > 0 && high - low <= high / 8 + 1)
}

/// True if the values of a field are equal, or within the accuracy of the measurement.
fn are_near(field: &str, ours: Option<i64>, kernel: Option<i64>) -> bool {
    let (Some(ours), Some(kernel)) = (ours, kernel) else { return ours == kernel };
    let allowed = match field {
        "rtt" | "min_rtt" => 4_000,
        // The kernel rounds to ticks of 4 ms.
        "rto" => 12_000 + ours / 16,
        "ato" => 8_000,
        _ => 0,
    };
    (ours - kernel).abs() <= allowed
}
