//! The differences that are deliberate, each with a matcher as narrow as its reason.

use super::compare::{Difference, What};
use super::record::{Deed, Packet, Record};

/// Why a difference is none that needs mending.
#[derive(Clone, Copy)]
pub struct Explanation {
    /// A short name, for the summary.
    pub name: &'static str,
    /// What either does, and which RFC or which part of Linux says so.
    pub reason: &'static str,
    /// True if it explains this difference of these records, ours first.
    pub matches: fn(&Difference, &Record, &Record) -> bool,
}

/// The list.
pub const EXPLANATIONS: &[Explanation] = &[
    Explanation {
        name: "push in the middle of what was written",
        reason: "Linux sets PSH where a buffer of its queue ends (051ba67447de), which depends on how calls and ACKs cut the \
                 queue; RFC 9293 section 3.9.1.2 asks for it at the end of what was written, where both set it",
        matches: |difference, ours, _| {
            let (Some(sent), Some(other)) = &difference.packets else { return false };
            let without = |flags: &str| flags.replace('P', "");
            difference.what == What::Field("flags")
                && without(&sent.flags) == without(&other.flags)
                && sent.seq + sent.len < 1 + written(ours, difference.step)
        },
    },
    Explanation {
        name: "duplicates count as SACKed without SACK",
        reason: "Linux keeps the number of duplicate acknowledgements in tcpi_sacked where SACK was not agreed on; ours is \
                 the number of segments that a SACK option reported",
        matches: |difference, ours, _| {
            is_value(difference, "sacked")
                && !has_option(ours, difference.step, SACK)
                && difference.values.0 == 0
        },
    },
    Explanation {
        name: "a smaller window in an ACK of nothing new",
        reason: "Linux believes a smaller window only from a segment that acknowledges or brings something; RFC 9293 section \
                 3.10.7.4 takes SND.WND from every segment whose SEG.ACK is at least SND.WL2, as ours",
        matches: |difference, ours, _| {
            is_value(difference, "snd_wnd")
                && difference.values.0 < difference.values.1
                && difference.values.0 > 0
                && arrived(ours, difference.step).is_some_and(|(last, before)| last == before)
        },
    },
    Explanation {
        name: "time stamp of a duplicate that ends at RCV.NXT",
        reason: "Linux finds a segment in the window that ends where the last acknowledgement was, and takes its time stamp; \
                 RFC 9293 section 3.10.7.4 finds it unacceptable, and RFC 7323 section 4.3 takes stamps of acceptable ones",
        matches: |difference, ours, _| {
            let (Some(sent), Some(other)) = &difference.packets else { return false };
            let without = |packet: &Packet| -> Vec<String> {
                packet.options.iter().filter(|option| !option.starts_with("TS ")).cloned().collect()
            };
            let event = ours.steps.get(difference.step).map_or("", |step| step.event.as_str());
            let end = event.split([':', '(']).nth(1).and_then(|end| end.parse().ok());
            difference.what == What::Field("options") && without(sent) == without(other) && sent.ack == end
        },
    },
];

/// `tcpi_options`: SACK was agreed on.
const SACK: i64 = 2;

/// The first entry that explains a difference.
pub fn explain(difference: &Difference, ours: &Record, kernel: &Record) -> Option<&'static Explanation> {
    EXPLANATIONS.iter().find(|entry| (entry.matches)(difference, ours, kernel))
}

fn is_value(difference: &Difference, field: &str) -> bool {
    matches!(&difference.what, What::Value(name) if name == field)
}

/// Bytes that calls have written up to a step.
fn written(record: &Record, step: usize) -> i64 {
    let steps =
        record.steps.iter().take(step + 1).filter(|step| matches!(step.event.as_str(), "write" | "send"));
    let results = steps.flat_map(|step| &step.deeds).filter_map(|deed| match deed {
        Deed::Returned(value) => value.parse::<i64>().ok(),
        Deed::Sent(_) | Deed::Values(_) => None,
    });
    results.filter(|written| *written > 0).sum()
}

/// True if `tcpi_options` has this bit at the last mark.
fn has_option(record: &Record, step: usize, bit: i64) -> bool {
    let value =
        record.steps.iter().take(step + 1).rev().flat_map(|step| &step.deeds).find_map(|deed| match deed {
            Deed::Values(values) => values.iter().find(|(name, _)| name == "options")?.1,
            Deed::Sent(_) | Deed::Returned(_) => None,
        });
    value.is_some_and(|options| options & bit != 0)
}

/// Sequence and acknowledgement number of the last segment that arrived, and of the one before.
fn arrived(record: &Record, step: usize) -> Option<((&str, &str), (&str, &str))> {
    let mut arrivals = record.steps.iter().take(step + 1).rev().filter_map(|step| {
        let mut words = step.event.strip_prefix("< ")?.split(' ');
        let seq = words.find(|word| word.contains(':'))?;
        let ack = words.skip_while(|word| *word != "ack").nth(1)?;
        Some((seq, ack))
    });
    Some((arrivals.next()?, arrivals.next()?))
}
