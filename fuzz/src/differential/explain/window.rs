//! Where the two congestion windows differ on purpose, and the data that a larger one lets go.

use super::{SACK, arrivals, has_option};
use crate::differential::compare::{Difference, What};
use crate::differential::record::{Deed, Packet, Record, Step};

/// `tcpi_ca_state` of CWR, fast recovery and the recovery after a timeout.
const CWR: i64 = 2;
const RECOVERY: i64 = 3;
const LOSS: i64 = 4;

/// True for a difference of the state, or of the window that follows from it, where an acknowledgement without SACK is
/// exactly at the recovery point.
pub(super) fn is_held_at_point(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let step = difference.step;
    let (Some(state), Some(other)) = (value(ours, step, "ca_state"), value(kernel, step, "ca_state")) else {
        return false;
    };
    let about = |field: &str| matches!(&difference.what, What::Value(name) if name == field);
    (about("ca_state") || about("snd_cwnd"))
        && !has_option(ours, step, SACK)
        && state < CWR
        && (other == RECOVERY || other == LOSS)
        && arrivals(ours, step).next().is_some_and(|last| recovery_points(ours, step).contains(&last.ack))
}

/// The highest number sent at each retransmission up to a step.
fn recovery_points(record: &Record, step: usize) -> Vec<i64> {
    let mut highest = 1;
    let mut points = Vec::new();
    for packet in data(record, step) {
        if packet.seq < highest {
            points.push(highest);
        }
        highest = highest.max(end(packet));
    }
    points
}

/// True for the window of a reduction that began with less in flight than the window: ours divides by the former.
pub(super) fn is_from_flight(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let step = difference.step;
    let reduces = |record| matches!(value(record, step, "ca_state"), Some(CWR | RECOVERY));
    let before = ours
        .steps
        .iter()
        .take(step + 1)
        .rev()
        .filter_map(mark)
        .find(|values| field(values, "ca_state").is_some_and(|state| state < CWR));
    let Some(before) = before else { return false };
    let of = |name| field(before, name).unwrap_or(0);
    matches!(&difference.what, What::Value(name) if name == "snd_cwnd")
        && reduces(ours)
        && reduces(kernel)
        && of("unacked") - of("sacked") < of("snd_cwnd")
        && difference.values.0 > difference.values.1
}

/// True for a window that is smaller by no more segments than acknowledged ones were not full; in fast recovery the
/// outstanding ones count as well.
pub(super) fn is_in_segments(difference: &Difference, ours: &Record, _: &Record) -> bool {
    let step = difference.step;
    let acked = arrivals(ours, step).next().map_or(0, |last| last.ack);
    let recovers = value(ours, step, "ca_state").is_some_and(|state| state >= CWR);
    let full = data(ours, step).map(|packet| packet.len).max().unwrap_or(0);
    let parts = data(ours, step).filter(|packet| packet.len < full && (recovers || end(packet) <= acked));
    let more = difference.values.1 - difference.values.0;
    matches!(&difference.what, What::Value(name) if name == "snd_cwnd")
        && more > 0
        && more <= parts.count() as i64
}

/// True for the window of a fast recovery without SACK in which more duplicates have arrived than segments were outstanding
/// above the hole when they began.
pub(super) fn is_beyond_outstanding(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    matches!(&difference.what, What::Value(name) if name == "snd_cwnd")
        && difference.values.0 < difference.values.1
        && value(kernel, difference.step, "ca_state") == Some(RECOVERY)
        && has_more_duplicates(ours, difference.step)
}

fn has_more_duplicates(record: &Record, step: usize) -> bool {
    let numbers: Vec<(usize, i64)> = (0..=step).filter_map(|n| Some((n, arrivals_at(record, n)?))).collect();
    let Some((_, last)) = numbers.last().copied() else { return false };
    let run: Vec<usize> = numbers.iter().rev().take_while(|(_, ack)| *ack == last).map(|(n, _)| *n).collect();
    // The first of the run advanced, the second is the first duplicate.
    let Some(first) = run.len().checked_sub(2).map(|n| run[n]) else { return false };
    let mut outstanding: Vec<i64> =
        data(record, first - 1).map(|packet| packet.seq).filter(|seq| *seq >= last).collect();
    outstanding.sort_unstable();
    outstanding.dedup();
    !has_option(record, step, SACK) && run.len() > outstanding.len()
}

fn arrivals_at(record: &Record, step: usize) -> Option<i64> {
    let event = &record.steps.get(step)?.event;
    event.starts_with("< ").then(|| arrivals(record, step).next().map(|arrived| arrived.ack)).flatten()
}

/// True for data that one of them sends because its window is larger, where an entry explains by how much.
pub(super) fn is_let_go(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let is_data = |packet: &Option<Packet>| packet.as_ref().is_some_and(|packet| packet.len > 0);
    let more_of_ours = match difference.what {
        What::Surplus if is_data(&difference.packets.0) => true,
        What::Missing if is_data(&difference.packets.1) => false,
        _ => return false,
    };
    if !more_of_ours && has_more_duplicates(ours, difference.step) && is_new(difference, kernel) {
        return true;
    }
    // The mark behind the event, or the one before it.
    let after = (difference.step..ours.steps.len()).find(|n| mark(&ours.steps[*n]).is_some());
    let before = (0..difference.step).rev().find(|n| mark(&ours.steps[*n]).is_some());
    [after, before].into_iter().flatten().any(|step| {
        let window = |record: &Record| value(record, step, "snd_cwnd");
        let (Some(a), Some(b)) = (window(ours), window(kernel)) else { return false };
        let of_window = Difference {
            step,
            what: What::Value("snd_cwnd".to_owned()),
            packets: (None, None),
            values: (a, b),
            ours: String::new(),
            kernel: String::new(),
        };
        let entries = [is_held_at_point, is_from_flight, is_in_segments, is_beyond_outstanding];
        (a > b) == more_of_ours && a != b && entries.iter().any(|entry| entry(&of_window, ours, kernel))
    })
}

/// True if the segment that only the kernel sends was never sent before.
fn is_new(difference: &Difference, kernel: &Record) -> bool {
    let sent = difference.packets.1.as_ref();
    sent.is_some_and(|sent| {
        data(kernel, difference.step).all(|packet| packet.seq < sent.seq || packet == sent)
    })
}

fn end(packet: &Packet) -> i64 {
    packet.seq + packet.len
}

/// The data segments up to a step.
fn data(record: &Record, step: usize) -> impl Iterator<Item = &Packet> {
    let deeds = record.steps.iter().take(step + 1).flat_map(|step| &step.deeds);
    deeds.filter_map(|deed| match deed {
        Deed::Sent(packet) if packet.len > 0 => Some(packet),
        Deed::Sent(_) | Deed::Returned(_) | Deed::Values(_) => None,
    })
}

type Values = Vec<(String, Option<i64>)>;

fn mark(step: &Step) -> Option<&Values> {
    step.deeds.iter().find_map(|deed| match deed {
        Deed::Values(values) => Some(values),
        Deed::Sent(_) | Deed::Returned(_) => None,
    })
}

fn field(values: &Values, name: &str) -> Option<i64> {
    values.iter().find(|(other, _)| other == name)?.1
}

/// A value at the last mark up to a step.
fn value(record: &Record, step: usize, name: &str) -> Option<i64> {
    field(record.steps.iter().take(step + 1).rev().find_map(mark)?, name)
}
