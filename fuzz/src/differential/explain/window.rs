//! Deliberate differences of the congestion windows, and the data that a larger window permits.

use super::parting::was_sent_twice;
use super::{Last, SACK, arrivals, has_option};
use crate::differential::compare::{Difference, What};
use crate::differential::record::{Packet, Reaction, Record, Step};

/// `tcpi_ca_state` of CWR, fast recovery and the recovery after a timeout.
const CWR: i64 = 2;
const RECOVERY: i64 = 3;
const LOSS: i64 = 4;

/// Maximum delay of an event in the kernel's record, microseconds.
pub(super) const CAPTURE: i64 = 300;

/// Segments of the initial window; Linux counts at least this many as used.
const INITIAL_WINDOW: i64 = 10;

/// True for a different state, or a window that follows from it, if an acknowledgement without SACK is
/// exactly at the recovery point, or below the recovery point of a timeout that both have undone.
pub(super) fn is_held_at_point(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let step = difference.step;
    let (Some(state), Some(other)) = (value(ours, step, "ca_state"), value(kernel, step, "ca_state")) else {
        return false;
    };
    // Linux leaves the recovery only now, and sets the window to the threshold.
    let before = (0..step).rev().find(|n| mark(&ours.steps[*n]).is_some());
    let was_held = before.is_some_and(|n| {
        value(ours, n, "ca_state").is_some_and(|state| state < CWR)
            && matches!(value(kernel, n, "ca_state"), Some(RECOVERY | LOSS))
    });
    if was_held && is_about(difference, "snd_cwnd") && other < CWR && !has_option(ours, step, SACK) {
        return value(kernel, step, "snd_ssthresh") == Some(difference.values.1);
    }
    (is_about(difference, "ca_state")
        || is_about(difference, "snd_cwnd")
        || is_about(difference, "sacked") && difference.values.1 == 0
        || is_about(difference, "delivered") && difference.values.0 > difference.values.1)
        && !has_option(ours, step, SACK)
        && state < CWR
        && (other == RECOVERY || other == LOSS)
        && arrivals(ours, step).next().is_some_and(|last| {
            let points = recovery_points(ours, step);
            let is_below = points.last().is_some_and(|point| last.ack < *point);
            points.contains(&last.ack) || other == LOSS && is_below && is_taken_back(ours, kernel, step)
        })
}

/// True for a different state, or a window that follows from it, if an acknowledgement is exactly at the
/// point at which the reduction for an ECN mark ends.
pub(super) fn is_held_in_cwr(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let step = difference.step;
    let state = |record, n| value(record, n, "ca_state");
    let Some(first) = (0..=step).rev().take_while(|n| state(kernel, *n) == Some(CWR)).last() else {
        return false;
    };
    (is_about(difference, "ca_state") || is_about(difference, "snd_cwnd"))
        && state(ours, step).is_some_and(|state| state < CWR)
        && acknowledged(ours, step) == highest(ours, first)
}

/// True if nothing counts as lost and both have the same threshold.
fn is_taken_back(ours: &Record, kernel: &Record, step: usize) -> bool {
    let same = |name| value(ours, step, name) == value(kernel, step, name);
    value(kernel, step, "lost") == Some(0) && same("lost") && same("snd_ssthresh")
}

/// Returns the highest number sent at each retransmission up to a step.
pub(super) fn recovery_points(record: &Record, step: usize) -> Vec<i64> {
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

/// True for the window of a reduction that began with less or more data in flight than the window: brisk
/// divides by the data in flight.
pub(super) fn is_from_flight(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let step = difference.step;
    let reduces = |record| matches!(value(record, step, "ca_state"), Some(CWR | RECOVERY));
    let marks = || (0..=step).rev().filter(|n| mark(&ours.steps[*n]).is_some());
    let before = marks().find(|n| value(ours, *n, "ca_state").is_some_and(|state| state < CWR));
    // If no mark lies between two recoveries, the second one begins where the threshold changes.
    let threshold = value(ours, step, "snd_ssthresh");
    let other = marks().find(|n| value(ours, *n, "snd_ssthresh") != threshold);
    let (a, b) = difference.values;
    // In bytes; the segments of the window count as full ones.
    let differs = |n: usize| {
        let of = |name| value(ours, n, name).unwrap_or(0);
        // At the end of a recovery the window is the threshold, from which the next recovery begins.
        let window = if of("ca_state") < CWR { of("snd_cwnd") } else { of("snd_ssthresh") };
        let (window, flight) = (window * of("snd_mss"), in_flight(ours, n));
        let max = threshold.unwrap_or(0).saturating_mul((window - flight).abs()) / window.max(1) + 1;
        (a > b && flight < window || a < b && flight > window) && (a - b).abs() <= max
    };
    is_about(difference, "snd_cwnd")
        && reduces(ours)
        && reduces(kernel)
        && [before, other].into_iter().flatten().any(differs)
}

/// Returns the bytes that were sent up to a step and neither acknowledged nor reported by SACK; without SACK
/// a duplicate acknowledgement counts as a reported segment.
fn in_flight(record: &Record, step: usize) -> i64 {
    let of = |name| value(record, step, name).unwrap_or(0);
    let counted = if has_option(record, step, SACK) { 0 } else { of("sacked") * of("snd_mss") };
    outstanding(record, step).iter().map(|(from, to)| to - from).sum::<i64>() - counted
}

/// Returns the outstanding segments, as they were first sent.
pub(super) fn outstanding(record: &Record, step: usize) -> Vec<(i64, i64)> {
    let una = acknowledged(record, step);
    let reports: Vec<Last> = (0..=step).filter_map(|step| Last::at(record, step)).collect();
    let mut highest = una;
    let mut segments = Vec::new();
    for packet in data(record, step).filter(|packet| packet.len > 0) {
        let to = packet.seq + packet.len;
        if to > highest {
            segments.push((packet.seq.max(highest), to));
            highest = to;
        }
    }
    segments.retain(|(from, to)| !reports.iter().any(|last| last.reports(*from, *to)));
    segments
}

/// True for a window of brisk that is smaller by at most the number of acknowledged segments that were not
/// full; in fast recovery outstanding segments count too.
pub(super) fn is_in_segments(difference: &Difference, ours: &Record, _: &Record) -> bool {
    let step = difference.step;
    let acked = arrivals(ours, step).next().map_or(0, |last| last.ack);
    let recovers = value(ours, step, "ca_state").is_some_and(|state| state >= CWR);
    // The size of a full segment: options leave less than the MSS for payload.
    let sizes = (0..=step).filter_map(|step| value(ours, step, "snd_mss"));
    let full = sizes.max().unwrap_or(0);
    let is_reported = |packet: &Packet| {
        (0..=step).filter_map(|step| Last::at(ours, step)).any(|last| last.reports(packet.seq, end(packet)))
    };
    let parts = data(ours, step)
        .filter(|packet| packet.len < full && (recovers || end(packet) <= acked || is_reported(packet)));
    let more = difference.values.1 - difference.values.0;
    matches!(&difference.what, What::Value(name) if name == "snd_cwnd")
        && more > 0
        && more <= parts.count() as i64
}

/// True for a window that Linux grows because small segments use it, although their bytes use less than half
/// of it.
pub(super) fn is_used_in_segments(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let step = difference.step;
    let last = (0..step).rev().find(|n| *n > 0 && highest(ours, *n) > highest(ours, *n - 1)).unwrap_or(0);
    // The mark before this one, and the mark at which the flight was largest.
    let before = (0..step).rev().find(|n| mark(&kernel.steps[*n]).is_some());
    let first = (last..step).find(|n| mark(&kernel.steps[*n]).is_some());
    let (Some(before), Some(first)) = (before, first) else { return false };
    let of = |name| value(kernel, before, name).unwrap_or(0);
    let (window, size) = (of("snd_cwnd"), of("snd_mss"));
    let sent = value(kernel, first, "unacked").unwrap_or(0);
    let bytes = highest(ours, last) - acknowledged(ours, last);
    let acked = of("unacked") - value(kernel, step, "unacked").unwrap_or(0);
    let more = difference.values.1 - difference.values.0;
    is_about(difference, "snd_cwnd")
        && (1..=acked).contains(&more)
        && 2 * sent > window
        && 2 * bytes <= window * size
}

fn highest(record: &Record, step: usize) -> i64 {
    data(record, step).map(end).max().unwrap_or(1)
}

/// True for the window of a fast recovery without SACK in which more duplicates have arrived than segments
/// were outstanding above the hole at the first duplicate.
pub(super) fn is_beyond_outstanding(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let counted = |record| value(record, difference.step, "sacked").unwrap_or(0);
    is_about(difference, "snd_cwnd")
        && value(kernel, difference.step, "ca_state") == Some(RECOVERY)
        && !has_option(ours, difference.step, SACK)
        && (counted(ours) < counted(kernel)
            || (difference.values.0 < difference.values.1 && has_more_duplicates(ours, difference.step)))
}

fn has_more_duplicates(record: &Record, step: usize) -> bool {
    let numbers: Vec<(usize, i64)> = (0..=step).filter_map(|n| Some((n, arrivals_at(record, n)?))).collect();
    let Some((_, last)) = numbers.last().copied() else { return false };
    let run: Vec<usize> = numbers.iter().rev().take_while(|(_, ack)| *ack == last).map(|(n, _)| *n).collect();
    // The first acknowledgement of the run advanced SND.UNA, the second is the first duplicate.
    let Some(first) = run.len().checked_sub(2).map(|n| run[n]) else { return false };
    let mut outstanding: Vec<i64> =
        data(record, first - 1).map(|packet| packet.seq).filter(|seq| *seq >= last).collect();
    outstanding.sort_unstable();
    outstanding.dedup();
    !has_option(record, step, SACK) && run.len() > outstanding.len()
}

/// True if the duplicates since the last retransmission, with those counted before, are at least as many as
/// the segments that were outstanding from the retransmitted one on.
fn has_more_after_repair(record: &Record, step: usize) -> bool {
    let Some(last) = Last::up_to(record, step) else { return false };
    let repairs = |n: &usize| {
        data(record, *n).filter(|packet| packet.seq == last.ack).count()
            > data(record, n.saturating_sub(1)).filter(|packet| packet.seq == last.ack).count()
    };
    let Some(repaired) = (1..step).rev().find(repairs) else { return false };
    let mut outstanding: Vec<i64> =
        data(record, repaired - 1).map(|packet| packet.seq).filter(|seq| *seq >= last.ack).collect();
    outstanding.sort_unstable();
    outstanding.dedup();
    let after = (repaired..step).find(|n| mark(&record.steps[*n]).is_some());
    let counted = after.and_then(|n| field(mark(&record.steps[n])?, "sacked")).unwrap_or(0);
    let since = (repaired + 1..=step).filter_map(|n| arrivals_at(record, n)).filter(|ack| *ack == last.ack);
    !has_option(record, step, SACK) && counted + since.count() as i64 >= outstanding.len() as i64
}

fn arrivals_at(record: &Record, step: usize) -> Option<i64> {
    let event = &record.steps.get(step)?.event;
    event.starts_with("< ").then(|| arrivals(record, step).next().map(|arrived| arrived.ack)).flatten()
}

/// True for data that one of the stacks sends because its window is larger, if an entry explains the
/// difference of the windows.
pub(super) fn is_permitted_by_window(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let is_data = |packet: &Option<Packet>| packet.as_ref().is_some_and(|packet| packet.len > 0);
    let more_of_ours = match difference.what {
        What::Surplus if is_data(&difference.packets.0) => true,
        What::Missing if is_data(&difference.packets.1) => false,
        _ => return false,
    };
    let has_more = has_more_duplicates(ours, difference.step) || has_more_after_repair(ours, difference.step);
    let is_new = if more_of_ours {
        is_new(&difference.packets.0, ours)
    } else {
        is_new(&difference.packets.1, kernel)
    };
    if is_new && (!more_of_ours && has_more || is_larger_of_orphan(difference, ours, kernel)) {
        return true;
    }
    // The mark after the event, and the mark before it.
    let after = (difference.step..ours.steps.len()).find(|n| mark(&ours.steps[*n]).is_some());
    let before = (0..difference.step).rev().find(|n| mark(&ours.steps[*n]).is_some());
    [after, before].into_iter().flatten().any(|step| {
        let window = |record: &Record| value(record, step, "snd_cwnd");
        let (Some(a), Some(b)) = (window(ours), window(kernel)) else { return false };
        (a > b) == more_of_ours && a != b && {
            let of_window = of_window(step, a, b);
            is_explained(&of_window, ours, kernel) || is_carried(&of_window, ours, kernel)
        }
    })
}

/// Returns the difference of the windows at a mark.
fn of_window(step: usize, ours: i64, kernel: i64) -> Difference {
    Difference {
        step,
        what: What::Value("snd_cwnd".to_owned()),
        packets: (None, None),
        values: (ours, kernel),
        ours: String::new(),
        kernel: String::new(),
    }
}

/// True if one of the reasons for a difference of the windows holds at this mark.
fn is_explained(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let reasons = [
        is_held_at_point,
        is_from_flight,
        is_in_segments,
        is_beyond_outstanding,
        is_grown_at_end,
        is_grown_by_duplicate,
        is_held_in_cwr,
        is_grown_from_smaller,
        is_restored,
        is_at_threshold,
        is_twice_in_flight,
        is_unused,
        is_restarted_behind_closed_window,
        is_used_in_segments,
        is_left_by_delay,
    ];
    reasons.iter().any(|reason| reason(difference, ours, kernel))
}

/// True for a window that Linux does not grow because at most half of it is used, if brisk's window was
/// smaller and grows.
pub(super) fn is_grown_from_smaller(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let Some(before) = (0..difference.step).rev().find(|n| mark(&ours.steps[*n]).is_some()) else {
        return false;
    };
    let window = |record| value(record, before, "snd_cwnd").unwrap_or(0);
    let used = (0..=before).filter_map(|n| value(kernel, n, "unacked")).max().unwrap_or(0);
    is_about(difference, "snd_cwnd")
        && window(ours) < window(kernel)
        && window(kernel) == difference.values.1
        && window(ours) < 2 * used
        && difference.values.1 >= 2 * value(kernel, before, "unacked").unwrap_or(0)
        && difference.values.0 > difference.values.1
}

/// True for windows that differed before a recovery and are restored because it was undone.
pub(super) fn is_restored(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let threshold = |record, n| value(record, n, "snd_ssthresh");
    let is_now = |n: usize| {
        [ours, kernel].iter().all(|record| threshold(record, n) == threshold(record, difference.step))
    };
    let marks = || (0..difference.step).rev().filter(|n| mark(&ours.steps[*n]).is_some());
    let Some(before) = marks().skip_while(|n| is_now(*n)).find(|n| is_now(*n)) else { return false };
    let recovered = marks().next().is_some_and(|n| !is_now(n));
    let windows = value(ours, before, "snd_cwnd").zip(value(kernel, before, "snd_cwnd"));
    is_about(difference, "snd_cwnd")
        && recovered
        && windows.is_some_and(|(x, y)| {
            let (a, b) = difference.values;
            x != y && (a - b).signum() == (x - y).signum() && (a - b).abs() <= (x - y).abs()
        })
}

/// True if the windows have differed in the same direction at every mark since one at which a reason holds,
/// and the difference has grown by at most one segment since then.
pub(super) fn is_carried(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let distance = difference.values.0 - difference.values.1;
    is_about(difference, "snd_cwnd")
        && (0..difference.step)
            .rev()
            .filter(|n| mark(&ours.steps[*n]).is_some())
            .map(|n| (n, value(ours, n, "snd_cwnd"), value(kernel, n, "snd_cwnd")))
            .map_while(|(n, ours, kernel)| Some((n, ours?, kernel?)))
            .take_while(|(_, a, b)| (a - b).signum() == distance.signum())
            .any(|(n, a, b)| {
                distance.abs() <= (a - b).abs() + 1 && is_explained(&of_window(n, a, b), ours, kernel)
            })
}

pub(super) fn is_about(difference: &Difference, field: &str) -> bool {
    matches!(&difference.what, What::Value(name) if name == field)
}

/// True if Linux's window is one segment larger in congestion avoidance after a reduction to the same
/// threshold; with CUBIC also if it is one segment smaller.
pub(super) fn is_grown_at_end(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let of = |record, name| value(record, difference.step, name);
    let (a, b) = difference.values;
    let threshold = of(ours, "snd_ssthresh");
    is_about(difference, "snd_cwnd")
        && (a + 1 == b || a == b + 1 && is_cubic(ours))
        && threshold == of(kernel, "snd_ssthresh")
        && threshold.is_some_and(|threshold| threshold <= a.min(b))
        && [ours, kernel].iter().all(|record| of(record, "ca_state").is_some_and(|state| state < CWR))
}

/// True if Linux's window is larger by at most the duplicate that an acknowledgement reports: during a
/// reduction a duplicate of data that was sent once, otherwise a duplicate on an acknowledgement of new data.
pub(super) fn is_grown_by_duplicate(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let Some(last) = Last::up_to(ours, difference.step) else { return false };
    let size = value(ours, difference.step, "snd_mss").unwrap_or(1).max(1);
    let state = |record| value(record, difference.step, "ca_state").unwrap_or(0);
    let reduces = matches!(state(ours), CWR | RECOVERY);
    is_about(difference, "snd_cwnd")
        && reduces == matches!(state(kernel), CWR | RECOVERY)
        && last.dsack().is_some_and(|(from, to)| {
            (1..=(to - from + size - 1) / size).contains(&(difference.values.1 - difference.values.0))
                && match reduces {
                    true => !was_sent_twice(ours, difference.step, (from, to)),
                    false => last.ack > acknowledged(ours, last.step.saturating_sub(1)),
                }
        })
}

/// True if each window equals its own threshold and the thresholds differ.
pub(super) fn is_at_threshold(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let thresholds =
        (value(ours, difference.step, "snd_ssthresh"), value(kernel, difference.step, "snd_ssthresh"));
    is_about(difference, "snd_cwnd")
        && thresholds.0 != thresholds.1
        && thresholds == (Some(difference.values.0), Some(difference.values.1))
}

/// True for the window of a recovery that began while a segment was outstanding that had been retransmitted
/// and does not count as lost.
pub(super) fn is_twice_in_flight(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let recovers = |record| value(record, difference.step, "ca_state") == Some(RECOVERY);
    let calm = kernel
        .steps
        .iter()
        .take(difference.step + 1)
        .rev()
        .filter_map(mark)
        .find(|values| field(values, "ca_state").is_some_and(|state| state < CWR));
    let twice =
        calm.map_or(0, |values| field(values, "retrans").unwrap_or(0) - field(values, "lost").unwrap_or(0));
    is_about(difference, "snd_cwnd")
        && recovers(ours)
        && recovers(kernel)
        && (1..=twice).contains(&(difference.values.1 - difference.values.0))
}

/// True if the data in flight fills the window at a mark.
pub(super) fn is_window_full(values: &Values) -> bool {
    let of = |name| field(values, name);
    let flight = (|| Some(of("unacked")? - of("sacked")? - of("lost")? + of("retrans")?))();
    flight.zip(of("snd_cwnd")).is_some_and(|(flight, window)| flight >= window)
}

/// Returns the values of the first mark after the segments of a step: timers send after a mark.
pub(super) fn next_mark(record: &Record, step: usize) -> Option<&Values> {
    let is_by_timer = record.steps.get(step).is_some_and(|step| mark(step).is_some());
    record.steps.iter().skip(step + usize::from(is_by_timer)).find_map(mark)
}

/// True for data that only brisk sends, because segments that are not full fill Linux's window, which counts
/// segments.
pub(super) fn is_full_in_segments(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let Some(sent) = difference.packets.0.as_ref().filter(|sent| sent.len > 0) else { return false };
    let full = data(ours, difference.step).map(|packet| packet.len).max().unwrap_or(0);
    let open = outstanding(ours, difference.step);
    let is_open = |packet: &Packet| open.iter().any(|(from, to)| packet.seq < *to && *from < end(packet));
    // A timer sent the remainder of a segment that more options have shortened; Linux sends another segment.
    let is_rest = data(ours, difference.step).any(|before| {
        let is_whole = |(from, to): &(i64, i64)| *from <= before.seq && end(sent) <= *to;
        before.at == sent.at && end(before) == sent.seq && open.iter().any(is_whole)
    });
    let small = data(ours, difference.step)
        .take_while(|packet| *packet != sent)
        .any(|packet| (1..full).contains(&packet.len) && is_open(packet));
    difference.what == What::Surplus
        && (is_rest || small && next_mark(kernel, difference.step).is_some_and(is_window_full))
}

/// True if Linux's timer sent a retransmission so late that the script's answer comes within Linux's minimum
/// round-trip time, while brisk's answer does not.
pub(super) fn is_answered_too_soon(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let Some(arrived) = Last::up_to(ours, difference.step) else { return false };
    let n = arrived.step;
    let repair = |record: &Record| {
        let at = record.steps[n].at;
        let mut highest = 1;
        let mut last = None;
        for packet in data(record, difference.step).filter(|packet| packet.at < at) {
            if packet.seq < highest && arrived.reports(packet.seq, end(packet)) {
                last = Some((packet.seq, at - packet.at));
            }
            highest = highest.max(end(packet));
        }
        last
    };
    let Some(min) = value(kernel, difference.step, "min_rtt") else { return false };
    matches!(difference.what, What::Surplus | What::Missing | What::Field("sequence number"))
        && repair(ours).zip(repair(kernel)).is_some_and(|((seq, waited), (other, kernel_waited))| {
            seq == other && kernel_waited < waited && kernel_waited < min + CAPTURE && min <= waited
        })
}

/// True for a window that Linux has lowered because the program wrote after an idle time, while the peer's
/// window was closed and nothing was outstanding.
pub(super) fn is_restarted_behind_closed_window(
    difference: &Difference,
    ours: &Record,
    kernel: &Record,
) -> bool {
    let step = difference.step;
    let of = |name| value(kernel, step, name).unwrap_or(-1);
    let Some(last) = data(ours, step).map(|packet| packet.at).max() else { return false };
    let wrote = (0..=step).rev().find(|n| matches!(ours.steps[*n].event.as_str(), "write" | "send"));
    is_about(difference, "snd_cwnd")
        && difference.values.1 < difference.values.0
        && difference.values.1 >= INITIAL_WINDOW.min(difference.values.0)
        && of("snd_wnd") == 0
        && of("unacked") == 0
        && wrote.is_some_and(|n| ours.steps[n].at - last >= of("rto"))
}

/// True for a window that Linux has lowered to the middle between it and its used part, or that is above this
/// value after that.
pub(super) fn is_unused(difference: &Difference, _: &Record, kernel: &Record) -> bool {
    let Some(before) = (0..difference.step).rev().find(|n| mark(&kernel.steps[*n]).is_some()) else {
        return false;
    };
    let of = |step, name| value(kernel, step, name);
    let window = of(before, "snd_cwnd").unwrap_or(0);
    is_about(difference, "snd_cwnd")
        && difference.values.1 < difference.values.0
        && difference.values.1 < window
        && difference.values.1 >= (window + INITIAL_WINDOW) / 2
        && of(before, "snd_ssthresh") <= of(difference.step, "snd_ssthresh")
        && of(difference.step, "ca_state").is_some_and(|state| state < CWR)
}

fn is_cubic(record: &Record) -> bool {
    record.settings.iter().any(|line| line == "--set congestion=cubic")
}

/// True if each threshold follows from its own window and the windows differed at the mark before.
pub(super) fn is_reduced_from_window(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let Some(before) = (0..difference.step).rev().find(|n| mark(&ours.steps[*n]).is_some()) else {
        return false;
    };
    let reduced = |window: i64| (if is_cubic(ours) { window * 7 / 10 } else { window / 2 }).max(2);
    let windows = value(ours, before, "snd_cwnd").zip(value(kernel, before, "snd_cwnd"));
    let (a, b) = difference.values;
    is_about(difference, "snd_ssthresh")
        && windows.is_some_and(|(x, y)| {
            x != y
                && (a - b).signum() == (x - y).signum()
                && (a - b).abs() <= (x - y).abs()
                && (reduced(x) - a).abs() <= 1
                && (reduced(y) - b).abs() <= 1
        })
}

/// True if the program has closed the socket, so that TCP_INFO shows no window, and the additional data in
/// flight of one stack has the explanation of a larger window: one segment once a recovery is over, or in
/// Linux a segment for each acknowledged segment that was not full.
fn is_larger_of_orphan(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let step = difference.step;
    let flight = |record| outstanding(record, step).len() as i64;
    let una = acknowledged(ours, step);
    let full = data(ours, step).map(|packet| packet.len).max().unwrap_or(0);
    let parts =
        data(ours, step).filter(|packet| (1..full).contains(&packet.len) && end(packet) <= una).count();
    let more = flight(kernel) - flight(ours);
    let is_over = recovery_points(ours, step).last().is_some_and(|point| *point <= una);
    let closed = (0..step).rev().find_map(|n| mark(&ours.steps[n]));
    closed.is_some_and(|values| field(values, "snd_cwnd").is_none())
        && (is_over && (more == 1 || more == -1 && is_cubic(ours)) || (1..=parts as i64).contains(&more))
}

/// True for a retransmission by brisk (by the reordering timer or at an acknowledgement) of a segment that
/// the kernel had declared lost in a recovery that it then undid, and has not retransmitted since.
pub(super) fn is_lost_after_undo(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let Some(sent) = difference.packets.0.as_ref().filter(|sent| sent.len > 0) else { return false };
    let before = |step: usize| data(kernel, step).filter(|packet| packet.at < sent.at);
    let sent_before = before(difference.step).any(|packet| packet.seq <= sent.seq && sent.seq < end(packet));
    let mut highest = 1;
    let mut repairs = Vec::new();
    for packet in before(difference.step) {
        if packet.seq < highest {
            repairs.push((packet.at, highest));
        }
        highest = highest.max(end(packet));
    }
    // The recovery was undone: its state ended after the retransmission, before the recovery point was
    // reached.
    let undone = repairs.iter().any(|(at, point)| {
        let calm = kernel.steps.iter().enumerate().take(difference.step + 2).find(|(n, step)| {
            let calm =
                mark(step).and_then(|values| field(values, "ca_state")).is_some_and(|state| state < CWR);
            let una = acknowledged(ours, *n);
            step.at > *at && calm && una < *point && una <= sent.seq
        });
        let again =
            |since: i64| before(difference.step).any(|packet| packet.seq == sent.seq && packet.at > since);
        sent.seq < *point && calm.is_some_and(|(_, step)| !again(step.at))
    });
    matches!(difference.what, What::Surplus | What::Field("sequence number")) && sent_before && undone
}

/// True if neither a segment nor any later data was sent before.
fn is_new(sent: &Option<Packet>, record: &Record) -> bool {
    let is_before =
        |sent: &Packet, other: &Packet| other.seq < sent.seq || other == sent || other.at > sent.at;
    sent.as_ref().is_some_and(|sent| record.packets().all(|other| is_before(sent, other)))
}

/// Returns the highest acknowledgement number up to a step, without those of data that was never sent.
pub(super) fn acknowledged(record: &Record, step: usize) -> i64 {
    let highest = data(record, step).map(end).max().unwrap_or(1);
    arrivals(record, step).map(|arrived| arrived.ack).filter(|ack| *ack <= highest).max().unwrap_or(1)
}

/// True for the window with which Linux has left slow start before any loss, or for the threshold that this
/// sets.
pub(super) fn is_left_by_delay(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let of = |record, name| value(record, difference.step, name);
    let window = of(kernel, "snd_cwnd");
    is_cubic(ours)
        && (is_about(difference, "snd_ssthresh") || is_about(difference, "snd_cwnd"))
        && of(ours, "snd_ssthresh") == Some(NO_THRESHOLD)
        && window.is_some()
        && of(kernel, "snd_ssthresh")
            .is_some_and(|threshold| window >= Some(threshold) && threshold >= HYSTART_LOW)
        && window <= of(ours, "snd_cwnd")
        && [ours, kernel].iter().all(|record| of(record, "ca_state").is_some_and(|state| state < CWR))
}

/// True if Linux treats three SACK reports above a hole as a loss and brisk waits, after a recovery that was
/// undone.
pub(super) fn is_patient_after_undo(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let Some(after) = (difference.step..kernel.steps.len()).find(|n| mark(&kernel.steps[*n]).is_some())
    else {
        return false;
    };
    let of = |record, name| value(record, after, name).unwrap_or(0);
    let states: Vec<(i64, i64)> = ours
        .steps
        .iter()
        .take(difference.step)
        .filter_map(mark)
        .filter_map(|values| Some((field(values, "ca_state")?, field(values, "snd_ssthresh")?)))
        .collect();
    // When a recovery is undone, the threshold rises again.
    let undone =
        states.windows(2).any(|pair| pair[0].0 >= RECOVERY && pair[1].0 < CWR && pair[0].1 < pair[1].1)
            || has_repairs_without_reduction(ours, difference.step);
    let repair = difference.packets.1.as_ref().is_some_and(|sent| sent.len > 0);
    repair
        && undone
        && of(kernel, "ca_state") == RECOVERY
        && of(ours, "ca_state") < CWR
        && of(kernel, "reord_seen") == 0
        && of(kernel, "sacked") >= of(kernel, "reordering")
}

/// True if there were retransmissions but no threshold is set: each reduction was undone.
fn has_repairs_without_reduction(record: &Record, step: usize) -> bool {
    value(record, step, "total_retrans").is_some_and(|repairs| repairs > 0)
        && value(record, step, "snd_ssthresh") == Some(NO_THRESHOLD)
}

/// `tcpi_snd_ssthresh` before the first reduction.
const NO_THRESHOLD: i64 = 2_147_483_647;
/// Window below which Linux's HyStart does not leave slow start, segments.
const HYSTART_LOW: i64 = 16;

pub(super) fn end(packet: &Packet) -> i64 {
    packet.seq + packet.len + i64::from(packet.has('F'))
}

/// Returns the data segments up to a step, FINs included.
pub(super) fn data(record: &Record, step: usize) -> impl Iterator<Item = &Packet> {
    let reactions = record.steps.iter().take(step + 1).flat_map(|step| &step.reactions);
    reactions.filter_map(|reaction| match reaction {
        Reaction::Sent(packet) if packet.len > 0 || packet.has('F') => Some(packet),
        Reaction::Sent(_) | Reaction::Returned(_) | Reaction::Values(_) => None,
    })
}

pub(super) type Values = Vec<(String, Option<i64>)>;

pub(super) fn mark(step: &Step) -> Option<&Values> {
    step.reactions.iter().find_map(|reaction| match reaction {
        Reaction::Values(values) => Some(values),
        Reaction::Sent(_) | Reaction::Returned(_) => None,
    })
}

pub(super) fn field(values: &Values, name: &str) -> Option<i64> {
    values.iter().find(|(other, _)| other == name)?.1
}

/// Returns a value at the last mark up to a step.
pub(super) fn value(record: &Record, step: usize, name: &str) -> Option<i64> {
    field(record.steps.iter().take(step + 1).rev().find_map(mark)?, name)
}
