//! Differences after which the two connections are in different states, for a known reason. Later events are
//! not compared.

use std::cmp::Ordering;

use super::window::{
    CAPTURE, Values, acknowledged, data, end, field, is_about, is_window_full, mark, next_mark,
    recovery_points, value,
};
use super::{Explanation, Last, RTO_MIN, SACK, TIMESTAMPS, has_option, shift};
use crate::differential::compare::{Difference, What};
use crate::differential::record::{Packet, Reaction, Record};

/// `tcpi_ca_state` of CWR; recoveries have larger values.
const CWR: i64 = 2;
/// `tcpi_ca_state` of the recovery after a timeout.
const LOSS: i64 = 4;

/// Maximum interval of two events whose time stamps may be equal or adjacent, microseconds.
const STAMP_TICK: i64 = 2_000;

/// Sequence numbers of scripts that are beyond every window.
const FAR: i64 = 500_000;

/// The list.
pub(super) const PARTINGS: &[Explanation] = &[
    Explanation {
        name: "duplicate behind data",
        reason: "Linux takes an acknowledgement that repeats the last number as a window update and not as a \
                 duplicate if its sequence number is newer or its window is closed. brisk compares the \
                 windows (RFC 5681 section 2)",
        matches: is_behind_data,
    },
    Explanation {
        name: "timeout without a round trip since the last probe",
        reason: "RFC 8985 section 7.3 forbids a tail loss probe before a round trip has been measured since \
                 the last one, so brisk sends the segment at its timeout. Linux sends it as another probe",
        matches: is_timeout_after_probe,
    },
    Explanation {
        name: "undo by reports of data sent once",
        reason: "Linux subtracts each reported duplicate of any data from its count of retransmissions, and \
                 ignores reports beyond that count. brisk counts duplicates of segments that it has sent \
                 twice (RFC 3708 section 3)",
        matches: is_undone_by_count,
    },
    Explanation {
        name: "repair that the peer's window held back",
        reason: "Linux counts a retransmission that the peer's closed window prevented as sent \
                 (tcp_retransmit_skb), so reports of all retransmissions that did leave do not undo the \
                 recovery. brisk counts those that have left (RFC 3708 section 3)",
        matches: is_held_back,
    },
    Explanation {
        name: "round trip of a part",
        reason: "Linux measures the round trip of a segment when all of it is acknowledged, and undoes a \
                 reduction when a part of a retransmission proves spurious. brisk measures parts (RFC 6298 \
                 section 3), and waits while the rest of a retransmission is in flight",
        matches: is_about_a_part,
    },
    Explanation {
        name: "smaller window that only ours has taken",
        reason: "Linux accepts a smaller window only from a segment with new data or a new acknowledgement, \
                 so it sends beyond the window and takes a repetition as a duplicate. brisk takes SND.WND \
                 from every acceptable segment (RFC 9293 section 3.10.7.4)",
        matches: is_beyond_smaller_window,
    },
    Explanation {
        name: "round trip of a repair that Linux's timer sent late",
        reason: "Linux's timer sends a retransmission up to 14 ms late, so the round trip to the script's \
                 answer is shorter by that time. RACK.rtt is shorter or below the minimum round trip (RFC \
                 8985 section 6.2 steps 2 and 5), and other segments are due",
        matches: is_from_late_repair,
    },
    Explanation {
        name: "reordering window after a duplicate",
        reason: "Linux widens the reordering window after a DSACK only if it has seen reordering, and when \
                 the next segments arrive. brisk widens it in each round trip with a DSACK (RFC 8985 section \
                 6.2 step 4), so it waits longer",
        matches: is_wider_after_dsack,
    },
    Explanation {
        name: "timeout judged without SACK",
        reason: "Linux applies F-RTO to a timeout also without SACK (RFC 5682 section 2). brisk applies it \
                 only with SACK (section 3), because data that a cumulative acknowledgement covers may have \
                 arrived long before",
        matches: is_judged_without_sack,
    },
    Explanation {
        name: "timeout judged after a duplicate",
        reason: "Linux continues F-RTO after an acknowledgement that repeats the last number, until it has \
                 sent new data. brisk takes such an acknowledgement as a sign that the timeout was not \
                 spurious (RFC 5682 section 3.1 step 2 a)",
        matches: is_judged_after_duplicate,
    },
    Explanation {
        name: "FIN beyond the window",
        reason: "Linux delays a FIN until the congestion window has space for a segment. brisk sends it at \
                 once, because a FIN has no byte that would count",
        matches: is_fin_beyond_window,
    },
    Explanation {
        name: "probe twice in flight",
        reason: "Linux counts a segment that a tail loss probe repeated as twice in flight, as RFC 6675 \
                 section 4 (SetPipe) does. brisk counts each byte of the stream once",
        matches: is_probe_twice_in_flight,
    },
    Explanation {
        name: "recovery without SACK held at its point",
        reason: "Without SACK, Linux stays in recovery until more than the recovery point is acknowledged, \
                 and sends nothing for a duplicate. brisk ends it (RFC 6582 section 3.2 step 3), and sends \
                 new data for a duplicate (RFC 3042)",
        matches: is_sent_at_point,
    },
    Explanation {
        name: "segment that is old enough at Linux's late timeout",
        reason: "Linux's retransmission timer is late by up to 45 ms. Segments sent less than a round trip \
                 before a timeout are not lost (RFC 8985 section 6.3), and at the late timeout they are older \
                 by that time",
        matches: is_old_at_late_timeout,
    },
    Explanation {
        name: "round trip of data reported again",
        reason: "If a timeout finds that the peer has reneged, Linux discards the SACK reports and later \
                 measures the round trip of segments that are reported again, from their transmission. brisk \
                 measures the first report",
        matches: is_round_trip_of_second_report,
    },
    Explanation {
        name: "undo by an echo",
        reason: "Linux undoes a recovery if an acknowledgement echoes a time stamp from before its first \
                 retransmission, of any segment. brisk undoes it only if the segment at SND.UNA had been \
                 retransmitted (RFC 3522 section 3.2), and the echo is more than a tick older than the first \
                 retransmission",
        matches: is_undone_by_echo,
    },
    Explanation {
        name: "segments due within a millisecond",
        reason: "Linux measures microseconds of real time, brisk those of the script. A segment that is due \
                 at the acknowledgement in one is due at the reordering timer, at most two milliseconds \
                 later, in the other",
        matches: is_due_in_a_moment,
    },
    Explanation {
        name: "segments due one after the other, and together at Linux's late timer",
        reason: "Linux's timer is late by up to 45 ms, and declares at once two segments lost that are due at \
                 different times in brisk. PRR permits a segment when the recovery begins (RFC 9937 section \
                 6.3), and the next one only when the first is declared lost before it",
        matches: is_due_together,
    },
    Explanation {
        name: "backoff of probes where the window opens for a part",
        reason: "Linux resets the backoff of zero-window probes when its whole first packet fits the window, \
                 brisk when the window opens",
        matches: is_backoff_of_probes,
    },
    Explanation {
        name: "probe at the edge of the window",
        reason: "Linux sends a tail loss probe with new data if a full segment of it fits the window, brisk \
                 with as much as fits the window (RFC 8985 section 7.3)",
        matches: is_probe_at_edge,
    },
    Explanation {
        name: "round trip of a repair that Linux's timeout sent late",
        reason: "Linux's retransmission timer is late by up to 45 ms, so the round trip to the script's \
                 answer is shorter by that time",
        matches: is_round_trip_of_late_repair,
    },
    Explanation {
        name: "timer of a timeout that differs",
        reason: "If the timeouts differ because Linux keeps the largest deviation of a round trip, the \
                 shorter one expires first",
        matches: is_timer_that_differs,
    },
    Explanation {
        name: "timer that a report restarts",
        reason: "Linux restarts the retransmission timer when SACK reports a segment that was sent before the \
                 last transmission of the first segment. brisk restarts it when new data is acknowledged (RFC \
                 6298 section 5.3)",
        matches: is_restarted_by_report,
    },
    Explanation {
        name: "probe instead of the reordering timer",
        reason: "Linux has one timer for both purposes: new data in CWR sets it for a tail loss probe \
                 although SACK reports have set it for reordering. brisk schedules no probe while SACK \
                 reports a segment (RFC 8985 section 7.2)",
        matches: is_probe_in_cwr,
    },
    Explanation {
        name: "timeout of a closed window",
        reason: "Linux does not count a timeout while the peer's window is closed, and does not reset the \
                 count when the peer answers a segment beyond its window. RFC 9293 section 3.8.6 keeps such a \
                 connection; brisk counts from the peer's last answer",
        matches: is_timeout_of_closed_window,
    },
];

/// True for a consequence of a duplicate that Linux takes as a window update: Linux counts one duplicate
/// less, or does not learn the outcome of a probe.
fn is_behind_data(difference: &Difference, ours: &Record, _: &Record) -> bool {
    let fields = ["ca_state", "sacked", "delivered", "snd_ssthresh"];
    let is_value = fields.iter().any(|field| is_about(difference, field));
    let is_sent = difference.what == What::Surplus
        && difference.packets.0.as_ref().is_some_and(|sent| sent.len > 0)
        && !has_option(ours, difference.step, SACK);
    let mut newest = 0;
    let mut una = 0;
    let mut found = false;
    for step in 0..=difference.step {
        let Some(last) = Last::at(ours, step).filter(|last| last.seq < FAR) else { continue };
        let is_pure = last.seq == last.end;
        let outstanding = step > 0 && data(ours, step - 1).any(|packet| end(packet) > last.ack);
        if last.ack > una {
            found = false;
        }
        found |= is_pure && last.ack == una && (last.seq > newest || last.window == 0) && outstanding;
        (newest, una) = (newest.max(last.seq), una.max(last.ack));
    }
    // The threshold may depend on the outcome of any earlier probe.
    if is_about(difference, "snd_ssthresh") {
        found = data(ours, difference.step).any(|packet| is_probe(ours, packet)) && newest > 1;
    }
    (is_value || is_sent) && found
}

/// True for a segment that a timer retransmitted between two events.
fn is_probe(record: &Record, packet: &Packet) -> bool {
    let by_timer = !record.steps.iter().any(|step| step.at == packet.at);
    by_timer && record.packets().any(|other| other.at < packet.at && other.seq == packet.seq && other.len > 0)
}

/// Returns the data segments that a timer sent up to a step, in order.
fn by_timer(record: &Record, step: usize) -> Vec<&Packet> {
    let steps = record.steps.iter().take(step + 1);
    let late = steps.flat_map(|step| step.reactions.iter().map(move |reaction| (step.at, reaction)));
    late.filter_map(|(at, reaction)| match reaction {
        Reaction::Sent(packet) if (packet.len > 0 || packet.has('F')) && packet.at > at + 500 => Some(packet),
        Reaction::Sent(_) | Reaction::Returned(_) | Reaction::Values(_) => None,
    })
    .collect()
}

/// True for the state after a timeout of brisk, if Linux sent the same segment as a tail loss probe.
fn is_timeout_after_probe(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let fields = ["backoff", "retransmits", "total_rto", "ca_state"];
    let (sent, others) = (by_timer(ours, difference.step), by_timer(kernel, difference.step));
    let (Some(last), Some(other), Some(before)) = (sent.last(), others.last(), sent.iter().rev().nth(1))
    else {
        return false;
    };
    let measured = (0..=difference.step)
        .filter(|step| ours.steps[*step].at > before.at && ours.steps[*step].at <= last.at)
        .filter_map(|step| Last::at(ours, step))
        .any(|arrived| arrived.ack > end(before));
    fields.iter().any(|field| is_about(difference, field))
        && difference.values.0 > difference.values.1
        && last.seq == other.seq
        && !measured
        && !has_option(ours, difference.step, TIMESTAMPS)
}

/// True for a window or threshold that one of the stacks restores at a reported duplicate: Linux if the
/// segment was sent once, brisk if more duplicates were reported than Linux has retransmitted.
fn is_undone_by_count(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let fields = ["ca_state", "snd_ssthresh", "snd_cwnd"];
    let Some(last) = Last::up_to(ours, difference.step) else { return false };
    let Some(dsack) = last.dsack() else { return false };
    let threshold =
        (value(ours, difference.step, "snd_ssthresh"), value(kernel, difference.step, "snd_ssthresh"));
    fields.iter().any(|field| is_about(difference, field))
        && (threshold.0 < threshold.1
            && !(was_sent_twice(ours, difference.step, dsack) && repeats_all(ours, last.step, dsack))
            || threshold.0 > threshold.1 && disbelieves_reports(kernel, difference.step))
}

/// True if retransmissions before a step cover all of a range.
fn repeats_all(record: &Record, step: usize, range: (i64, i64)) -> bool {
    let mut highest = 1;
    let mut repeated = 0;
    for packet in data(record, step.saturating_sub(1)) {
        let (from, to) = (packet.seq.max(range.0), end(packet).min(range.1).min(highest));
        repeated += (to - from).max(0);
        highest = highest.max(end(packet));
    }
    repeated >= range.1 - range.0
}

/// True if more duplicates have been reported to Linux than it has retransmitted.
pub(super) fn disbelieves_reports(kernel: &Record, step: usize) -> bool {
    value(kernel, step, "dsack_dups") > value(kernel, step, "total_retrans")
}

/// True for a recovery that brisk undoes, if Linux had space in its congestion window for lost segments
/// during it and did not send them.
fn is_held_back(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let fields = ["ca_state", "snd_ssthresh", "snd_cwnd"];
    let Some(last) = Last::up_to(ours, difference.step) else { return false };
    let Some(dsack) = last.dsack() else { return false };
    let threshold = |record| value(record, difference.step, "snd_ssthresh");
    let was_held = |values: &Values| {
        let of = |name| field(values, name).unwrap_or(0);
        let flight = of("unacked") - of("sacked") - of("lost") + of("retrans");
        of("ca_state") > CWR
            && of("lost") > of("retrans")
            && flight < of("snd_cwnd")
            && of("snd_wnd") < (of("unacked") - of("sacked")) * of("snd_mss")
    };
    let marks = kernel.steps.iter().take(difference.step).filter_map(mark);
    // The recovery that is undone has the threshold that Linux still has.
    let mut episode = marks.filter(|values| field(values, "snd_ssthresh") == threshold(kernel));
    fields.iter().any(|field| is_about(difference, field))
        && threshold(ours) > threshold(kernel)
        && was_sent_twice(ours, difference.step, dsack)
        && episode.any(was_held)
}

/// True if more bytes of this range were retransmitted than earlier acknowledgements have reported as
/// duplicates. The last report, at or before the step, is that of this range.
pub(super) fn was_sent_twice(record: &Record, step: usize, range: (i64, i64)) -> bool {
    let Some(step) = Last::up_to(record, step).map(|last| last.step) else { return false };
    let overlap = |from: i64, to: i64| (to.min(range.1) - from.max(range.0)).max(0);
    let sent: i64 = data(record, step.saturating_sub(1)).map(|packet| overlap(packet.seq, end(packet))).sum();
    let reports = (0..step).filter_map(|step| Last::at(record, step)?.dsack());
    let reported: i64 = reports.map(|before| overlap(before.0, before.1)).sum();
    sent > range.1 - range.0 + reported
}

/// True for a different round-trip time or state at an acknowledgement of a part of a segment.
fn is_about_a_part(difference: &Difference, ours: &Record, _: &Record) -> bool {
    let Some(last) = Last::up_to(ours, difference.step) else { return false };
    let fields = ["rtt", "rto", "min_rtt", "ca_state", "sacked"];
    fields.iter().any(|field| is_about(difference, field))
        && data(ours, difference.step).any(|packet| packet.seq < last.ack && last.ack < end(packet))
}

/// True for data that Linux sends beyond the window edge of the last acknowledgement, or for a segment that
/// it cuts there; and for a state that differs because Linux takes the window that opens again as a
/// duplicate.
fn is_beyond_smaller_window(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let edges = |step: usize| {
        let arrived = (0..=step)
            .filter_map(|step| Last::at(ours, step))
            .filter(move |last| last.ack <= highest(ours, step));
        arrived.map(move |last| last.edge(ours))
    };
    let edge = edges(difference.step).next_back();
    let smaller = edge.zip(edges(difference.step).max()).is_some_and(|(last, max)| last < max);
    let is_smaller = |step: usize| Some(value(ours, step, "snd_wnd")? < value(kernel, step, "snd_wnd")?);
    let marks = |range: std::ops::Range<usize>| range.filter(|step| mark(&ours.steps[*step]).is_some());
    let before = marks(0..difference.step).next_back();
    let after = marks(difference.step..ours.steps.len()).next();
    // Unknown once the program has closed.
    let differs = [before, after].into_iter().flatten().any(|step| is_smaller(step) != Some(false));
    match &difference.what {
        What::Missing | What::Field("length") => {
            let Some(other) = difference.packets.1.as_ref().filter(|other| other.len > 0) else {
                return false;
            };
            smaller && edge.is_some_and(|edge| end(other) > edge) && differs
        }
        What::Value(field) if field == "ca_state" => {
            [before, after].into_iter().flatten().any(|step| is_smaller(step) == Some(true))
        }
        What::Surplus | What::Field(_) | What::Value(_) | What::Returned => false,
    }
}

fn highest(record: &Record, step: usize) -> i64 {
    data(record, step).map(end).max().unwrap_or(1)
}

/// True for a loss that one of the stacks declares, or a consequence of it, at the answer to a retransmission
/// that both sent by a timer, Linux later than brisk.
fn is_from_late_repair(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let fields = ["lost", "retrans", "snd_cwnd", "ca_state", "reord_seen", "delivered"];
    let is_value = fields.iter().any(|field| is_about(difference, field));
    let is_data = |packet: &Option<Packet>| packet.as_ref().is_none_or(|packet| packet.len > 0);
    let is_sent =
        matches!(difference.what, What::Surplus | What::Missing | What::Field("sequence number" | "time"))
            && is_data(&difference.packets.0)
            && is_data(&difference.packets.1);
    let Some(last) = Last::up_to(ours, difference.step) else { return false };
    let sent_last = |record: &Record, seq: i64| {
        let at = record.steps[last.step].at;
        data(record, last.step)
            .filter(|packet| packet.seq == seq && packet.at < at)
            .last()
            .map(|packet| at - packet.at)
    };
    let at_event = |at: i64| ours.steps.iter().any(|step| step.at == at);
    let repairs = data(ours, last.step).filter(|packet| packet.len > 0 && !at_event(packet.at));
    let before = (0..last.step).rev().find_map(|step| Last::at(ours, step));
    let is_new =
        |packet: &&Packet| before.as_ref().is_none_or(|before| !before.reports(packet.seq, end(packet)));
    let mut answered = repairs.filter(|packet| last.reports(packet.seq, end(packet))).filter(is_new);
    // Segments that have not arrived may count as lost if they were sent before the answered retransmission.
    // Linux ignores an answer within its minimum round-trip time.
    let min = value(kernel, last.step.saturating_sub(1), "min_rtt").unwrap_or(0);
    let una = acknowledged(ours, last.step);
    let open: Vec<i64> = data(ours, last.step)
        .filter(|packet| packet.seq >= una && !last.reports(packet.seq, end(packet)))
        .map(|packet| packet.seq)
        .collect();
    let disagree = |waited: i64, other: i64| {
        let age = |seq: &i64| sent_last(ours, *seq).zip(sent_last(kernel, *seq));
        let slacks = open.iter().filter_map(age).map(|(age, kernel_age)| (age - waited, kernel_age - other));
        let slacks: Vec<(i64, i64)> = slacks.collect();
        // A segment is due in one stack and not yet in the other; in brisk also if the round trip is too
        // short for Linux.
        let kernel_more = slacks.iter().any(|(slack, other)| *other >= 0 && other > slack);
        let ours_more =
            other < min + CAPTURE || slacks.iter().any(|(slack, other)| *slack >= 0 && slack > other);
        (ours_more, kernel_more)
    };
    (is_value || is_sent)
        && has_option(ours, difference.step, SACK)
        && answered.any(|packet| {
            let waited = sent_last(ours, packet.seq).zip(sent_last(kernel, packet.seq));
            waited.is_some_and(|(waited, other)| {
                let (ours_more, kernel_more) = disagree(waited, other);
                (500..45_000).contains(&(waited - other))
                    && match &difference.what {
                        What::Surplus => ours_more,
                        What::Missing => kernel_more,
                        What::Value(field)
                            if field == "lost" && difference.values.0 > difference.values.1 =>
                        {
                            ours_more
                        }
                        What::Value(field) if field == "lost" => kernel_more,
                        What::Field(_) | What::Value(_) | What::Returned => ours_more || kernel_more,
                    }
            })
        })
}

/// True for a retransmission that Linux sends sooner than brisk, after a duplicate was reported.
fn is_wider_after_dsack(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let Some(other) = difference.packets.1.as_ref().filter(|other| other.len > 0) else { return false };
    let reported = (0..=difference.step).filter_map(|step| Last::at(ours, step)?.dsack()).count() as i64;
    let min = (0..=difference.step).rev().find_map(|step| value(kernel, step, "min_rtt")).unwrap_or(0);
    let repeats = data(kernel, difference.step).any(|packet| packet.at < other.at && packet.seq == other.seq);
    let sooner = difference.packets.0.as_ref().is_none_or(|sent| {
        sent.seq != other.seq || (6_000..min / 4 * (reported + 1) + 4_000).contains(&(sent.at - other.at))
    });
    matches!(difference.what, What::Missing | What::Field("sequence number" | "time"))
        && has_option(ours, difference.step, SACK)
        && reported > 0
        && repeats
        && sooner
}

/// True if brisk retransmits more after a timeout without SACK while Linux sends new data.
fn is_judged_without_sack(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let Some(sent) = &difference.packets.0 else { return false };
    // Without new data to send, Linux counts no segment as lost; the count is unknown once the program has
    // closed.
    let is_other = match (&difference.what, &difference.packets.1) {
        (What::Field("sequence number"), Some(other)) => !is_repeated(kernel, other),
        (What::Surplus, None) => {
            let lost = next_mark(kernel, difference.step).and_then(|values| field(values, "lost"));
            lost.is_none_or(|lost| lost == 0) && data(kernel, difference.step).any(|packet| packet.has('F'))
        }
        _ => false,
    };
    is_other
        && !has_option(ours, difference.step, SACK)
        && by_timer(ours, difference.step).iter().any(|packet| is_probe(ours, packet))
        && sent.len > 0
        && is_repeated(ours, sent)
}

/// True if brisk is in the recovery after a timeout, and Linux has left it because of data that was sent
/// once, although an acknowledgement repeated the last number in between.
fn is_judged_after_duplicate(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let Some(last) = Last::up_to(ours, difference.step) else { return false };
    let Some(after) = (last.step..ours.steps.len()).find(|step| mark(&ours.steps[*step]).is_some()) else {
        return false;
    };
    let una = acknowledged(ours, last.step.saturating_sub(1));
    let Some(timeout) = by_timer(ours, last.step).into_iter().rfind(|packet| packet.seq == una) else {
        return false;
    };
    let mut between = (0..last.step).filter(|step| ours.steps[*step].at > timeout.at);
    let once = |packet: &Packet| data(ours, last.step).filter(|other| other.seq == packet.seq).count() == 1;
    let before = (0..last.step).rev().find_map(|step| Last::at(ours, step));
    let new = |packet: &Packet| {
        last.reports(packet.seq, end(packet))
            && before.as_ref().is_none_or(|before| !before.reports(packet.seq, end(packet)))
    };
    let sent = matches!(difference.what, What::Surplus | What::Missing | What::Field("sequence number"));
    (sent || ["ca_state", "snd_cwnd", "snd_ssthresh", "lost"].iter().any(|field| is_about(difference, field)))
        && has_option(ours, after, SACK)
        && value(ours, after, "ca_state") == Some(LOSS)
        && value(kernel, after, "ca_state") != Some(LOSS)
        && between
            .any(|step| Last::at(ours, step).is_some_and(|other| other.ack == una && other.seq == other.end))
        && data(ours, last.step).any(|packet| packet.at < timeout.at && once(packet) && new(packet))
}

/// True for a FIN without data that brisk sends while Linux's window is full.
fn is_fin_beyond_window(difference: &Difference, _: &Record, kernel: &Record) -> bool {
    let Some(before) = (0..difference.step).rev().find(|step| mark(&kernel.steps[*step]).is_some()) else {
        return false;
    };
    // After a timeout the window is one segment, which the retransmission fills.
    let una = acknowledged(kernel, before);
    let last = by_timer(kernel, before).into_iter().next_back();
    let timeout = last.is_some_and(|sent| {
        sent.at > kernel.steps[before].at && sent.seq == una && end(sent) < highest(kernel, before)
    });
    difference.what == What::Surplus
        && difference.packets.0.as_ref().is_some_and(|sent| sent.has('F') && sent.len == 0)
        && (timeout || mark(&kernel.steps[before]).is_some_and(is_window_full))
}

/// True for new data that brisk sends while a probe that repeated a segment fills Linux's window.
fn is_probe_twice_in_flight(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let Some(sent) = difference.packets.0.as_ref().filter(|sent| sent.len > 0) else { return false };
    let Some(after) = next_mark(kernel, difference.step) else { return false };
    difference.what == What::Surplus
        && data(ours, difference.step).all(|packet| packet.at >= sent.at || packet.seq < sent.seq)
        && field(after, "retrans").zip(field(after, "lost")).is_some_and(|(again, lost)| again > lost)
        && is_window_full(after)
}

/// True for data that brisk sends for a duplicate at the recovery point, without SACK.
fn is_sent_at_point(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let Some(last) = Last::up_to(ours, difference.step) else { return false };
    // Unknown once the program has closed.
    let held = value(kernel, difference.step, "ca_state");
    difference.what == What::Surplus
        && difference.packets.0.as_ref().is_some_and(|sent| sent.len > 0)
        && !has_option(ours, difference.step, SACK)
        && recovery_points(ours, last.step.saturating_sub(1)).contains(&last.ack)
        && held.is_none_or(|state| state > CWR)
}

/// True for a count of timeouts, if the window was closed or the segment lies beyond it.
fn is_timeout_of_closed_window(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let fields = ["retransmits", "total_rto", "backoff"];
    let Some(last) = Last::up_to(ours, difference.step) else { return false };
    let una = acknowledged(ours, difference.step);
    let head = data(ours, difference.step).find(|packet| packet.seq == una).map_or(0, |packet| packet.len);
    let (a, b) = difference.values;
    let closed = (0..difference.step).rev().find_map(|step| value(kernel, step, "snd_wnd"));
    fields.iter().any(|field| is_about(difference, field))
        && (a == b + 1 && closed == Some(0) || a < b && last.window << shift(ours) < head && last.ack == una)
        && by_timer(ours, difference.step).last().is_some_and(|sent| difference.step > 0 && sent.at > RTO_MIN)
}

/// True for a count of lost segments, or for segments sent because of it, if one of the stacks declares more
/// lost by its reordering timer a moment later.
fn is_due_in_a_moment(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let fields = ["lost", "retrans", "snd_cwnd"];
    let soon = |record: &Record, max: i64| {
        let steps = record.steps.iter().skip(difference.step).take(2);
        let late = steps.flat_map(|step| step.reactions.iter().map(move |reaction| (step.at, reaction)));
        late.filter_map(|(at, reaction)| match reaction {
            Reaction::Sent(packet) if packet.len > 0 && (300..max).contains(&(packet.at - at)) => {
                Some(packet.seq)
            }
            Reaction::Sent(_) | Reaction::Returned(_) | Reaction::Values(_) => None,
        })
        .collect::<Vec<_>>()
    };
    let (sooner, later) = (soon(ours, 2_000), soon(kernel, 16_000));
    let after = (difference.step..ours.steps.len()).find(|step| mark(&ours.steps[*step]).is_some());
    let lost = |record| after.and_then(|step| value(record, step, "lost"));
    let is_value = fields.iter().any(|field| is_about(difference, field));
    let at_once = difference.packets.0.as_ref().is_some_and(|sent| {
        difference.what == What::Surplus && is_repeated(ours, sent) && later.contains(&sent.seq)
    });
    let by_count = is_value || matches!(difference.what, What::Surplus | What::Missing);
    // The stack with fewer lost segments declares more lost by its timer.
    let finds_more = match lost(ours).cmp(&lost(kernel)) {
        Ordering::Less => !sooner.is_empty(),
        Ordering::Equal => false,
        Ordering::Greater => !later.is_empty(),
    };
    has_option(ours, difference.step, SACK) && (at_once || by_count && finds_more)
}

/// True for a retransmission of brisk by the reordering timer, if Linux's timer sent the previous
/// retransmission no sooner than brisk sends this one.
fn is_due_together(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let Some(sent) = difference.packets.0.as_ref().filter(|sent| sent.len > 0) else { return false };
    let repairs = by_timer(ours, difference.step);
    let first = repairs.iter().rfind(|packet| packet.at < sent.at && is_repeated(ours, packet));
    let late = first.and_then(|first| {
        let mut same = by_timer(kernel, difference.step).into_iter();
        same.rfind(|other| other.seq == first.seq).map(|other| (first.at, other.at))
    });
    difference.what == What::Surplus
        && has_option(ours, difference.step, SACK)
        && repairs.contains(&sent)
        && is_repeated(ours, sent)
        && late.is_some_and(|(at, other)| sent.at <= other && (500..45_000).contains(&(other - at)))
}

/// True for the backoff of window probes that Linux keeps after the window has opened.
fn is_backoff_of_probes(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let closed = (0..difference.step).rev().find_map(|step| value(kernel, step, "snd_wnd"));
    is_about(difference, "backoff")
        && difference.values.0 < difference.values.1
        && closed == Some(0)
        && value(ours, difference.step, "snd_wnd") > Some(0)
}

/// True for a tail loss probe of brisk with new data up to the edge of the window, if Linux repeats a
/// segment.
fn is_probe_at_edge(difference: &Difference, ours: &Record, _: &Record) -> bool {
    let (Some(sent), Some(other)) = &difference.packets else { return false };
    let edge = Last::up_to(ours, difference.step).map(|last| last.edge(ours));
    let size = data(ours, difference.step).map(|packet| packet.len).max().unwrap_or(0);
    difference.what == What::Field("sequence number")
        && edge == Some(end(sent))
        && sent.len < size
        && other.seq < sent.seq
}

/// True for a smoothed round-trip time (or timeout) that is shorter in Linux because its timer was late.
fn is_round_trip_of_late_repair(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let Some(last) = Last::up_to(ours, difference.step) else { return false };
    let sent = by_timer(ours, last.step).last().map(|packet| (packet.seq, packet.at));
    let other = by_timer(kernel, last.step).last().map(|packet| (packet.seq, packet.at));
    (is_about(difference, "rtt") || is_about(difference, "rto"))
        && sent.zip(other).is_some_and(|((seq, at), (other, late))| {
            seq == other
                && last.reports(seq, seq + 1)
                && (4_000..45_000).contains(&(late - at))
                && difference.values.0 > difference.values.1
        })
}

/// True for a count of lost segments, if Linux counts more by at most the number of segments that were
/// younger than a round trip at brisk's timeout and not at Linux's.
fn is_old_at_late_timeout(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let of = |name| value(kernel, difference.step, name).unwrap_or(0);
    let timeouts = by_timer(ours, difference.step).pop().zip(by_timer(kernel, difference.step).pop());
    let Some((sent, other)) = timeouts.filter(|(sent, other)| sent.seq == other.seq) else { return false };
    let before = data(ours, difference.step).zip(data(kernel, difference.step));
    let grown_old = before.filter(|(packet, late)| {
        let (age, late_age) = (sent.at - packet.at, other.at - late.at);
        packet.seq == late.seq && age > 0 && age < of("rtt") && late_age >= of("min_rtt").max(age)
    });
    is_about(difference, "lost")
        && of("ca_state") == LOSS
        && (1..=grown_old.count() as i64).contains(&(difference.values.1 - difference.values.0))
}

/// True for a longer round-trip time in Linux, if a timer has repeated a segment that SACK had reported, and
/// SACK reports other segments again.
fn is_round_trip_of_second_report(difference: &Difference, ours: &Record, _: &Record) -> bool {
    let Some(last) = Last::up_to(ours, difference.step) else { return false };
    let reported = |packet: &Packet, until: i64| {
        (0..last.step)
            .filter(|step| ours.steps[*step].at < until)
            .filter_map(|step| Last::at(ours, step))
            .any(|before| before.ack <= packet.seq && before.reports(packet.seq, end(packet)))
    };
    let Some(timeout) = by_timer(ours, last.step).pop().filter(|sent| reported(sent, sent.at)) else {
        return false;
    };
    let once = |packet: &Packet| data(ours, last.step).filter(|other| other.seq == packet.seq).count() == 1;
    (is_about(difference, "rtt") || is_about(difference, "rto"))
        && difference.values.0 < difference.values.1
        && data(ours, last.step).any(|packet| {
            once(packet) && last.reports(packet.seq, end(packet)) && reported(packet, timeout.at)
        })
}

/// True for a state that Linux restores because an acknowledgement echoes the first transmission of a
/// segment, which precedes a retransmission; the segment was sent once, or at most a tick of time stamps
/// before the retransmission.
fn is_undone_by_echo(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let fields = ["ca_state", "snd_ssthresh", "snd_cwnd"];
    let Some(last) = Last::up_to(ours, difference.step) else { return false };
    let is_sent = matches!(difference.what, What::Surplus | What::Missing | What::Field("sequence number"));
    // In a record, the segments of a step precede the values that follow from them.
    let threshold = |record| match is_sent {
        true => next_mark(record, difference.step).and_then(|values| field(values, "snd_ssthresh")),
        false => value(record, difference.step, "snd_ssthresh"),
    };
    let echo = ours.steps[last.step].event.split_once("ecr @").and_then(|(_, echo)| {
        let (seq, transmission) = echo.split_once('/')?;
        (transmission.split(['>', ',']).next() == Some("1")).then(|| seq.parse::<i64>().ok())?
    });
    let sends = |seq: i64| data(ours, last.step).filter(move |packet| packet.seq == seq);
    let una = acknowledged(ours, last.step.saturating_sub(1));
    (is_sent || fields.iter().any(|field| is_about(difference, field)))
        && threshold(ours) < threshold(kernel)
        && last.ack > una
        && echo.filter(|seq| *seq >= una).and_then(|seq| sends(seq).next()).is_some_and(|sent| {
            let mut repairs = data(ours, last.step)
                .filter(|packet| packet.at > sent.at && is_repeated(ours, packet))
                .map(|packet| packet.at - sent.at);
            repairs.next().is_some_and(|first| first < STAMP_TICK || sends(sent.seq).count() == 1)
        })
}

/// True if a segment with the same sequence number was sent before.
fn is_repeated(record: &Record, packet: &Packet) -> bool {
    record.packets().any(|other| other.len > 0 && other.at < packet.at && other.seq == packet.seq)
}

/// True for a segment that a timeout retransmits, sooner in the stack with the shorter timeout.
fn is_timer_that_differs(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let rto = |record| (0..=difference.step).rev().find_map(|step| value(record, step, "rto"));
    let (Some(a), Some(b)) = (rto(ours), rto(kernel)) else { return false };
    let (packet, record, is_ours) = match (&difference.what, &difference.packets) {
        (What::Surplus, (Some(sent), None)) => (sent, ours, true),
        (What::Missing, (None, Some(other))) => (other, kernel, false),
        (What::Field("time"), (Some(sent), Some(other))) => (sent, ours, sent.at < other.at),
        _ => return false,
    };
    packet.len > 0
        && is_repeated(record, packet)
        && packet.at > ours.steps[difference.step].at + 2_000
        && (a - b).abs() > 12_000
        && (a < b) == is_ours
}

/// True for a timeout that only brisk has, or has sooner, if SACK reports have restarted Linux's timer.
fn is_restarted_by_report(difference: &Difference, ours: &Record, _: &Record) -> bool {
    let Some(sent) = difference.packets.0.as_ref().filter(|sent| sent.len > 0) else { return false };
    let Some(last) = Last::up_to(ours, difference.step) else { return false };
    let before = data(ours, difference.step).filter(|packet| packet.at < sent.at && packet.seq == sent.seq);
    let head = before.map(|packet| packet.at).max();
    let sooner = match &difference.packets.1 {
        None => difference.what == What::Surplus,
        Some(other) => difference.what == What::Field("time") && sent.at < other.at,
    };
    sooner
        && sent.at > ours.steps[difference.step].at + 2_000
        && last.ack == sent.seq
        && !last.blocks.is_empty()
        && head.is_some_and(|head| head < ours.steps[last.step].at && sent.at - head >= RTO_MIN)
}

/// True for a retransmission of brisk by the reordering timer in CWR, if Linux sends a tail loss probe or
/// waits for it.
fn is_probe_in_cwr(difference: &Difference, ours: &Record, kernel: &Record) -> bool {
    let Some(sent) = difference.packets.0.as_ref().filter(|sent| sent.len > 0) else { return false };
    let in_cwr =
        |record| (0..=difference.step).rev().find_map(|step| value(record, step, "ca_state")) == Some(CWR);
    matches!(difference.what, What::Surplus | What::Field("sequence number"))
        && in_cwr(ours)
        && in_cwr(kernel)
        && is_repeated(ours, sent)
        && by_timer(ours, difference.step).contains(&sent)
        && Last::up_to(ours, difference.step).is_some_and(|last| !last.blocks.is_empty())
}
