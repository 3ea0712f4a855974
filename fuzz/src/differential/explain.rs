//! The deliberate differences, each with a reason and with a condition that matches only this reason.

use super::compare::{Difference, What};
use super::record::{Packet, Reaction, Record};

mod parting;
mod window;

use parting::PARTINGS;
use window::value;

/// Why a difference needs no correction.
#[derive(Clone, Copy)]
pub struct Explanation {
    /// A short name, for the summary.
    pub name: &'static str,
    /// The behaviour of both stacks, with the RFC or the part of Linux that specifies it.
    pub reason: &'static str,
    /// True if it explains this difference of these records, ours first.
    pub matches: fn(&Difference, &Record, &Record) -> bool,
}

/// The list.
const EXPLANATIONS: &[Explanation] = &[
    Explanation {
        name: "push in the middle of what was written",
        reason: "Linux sets PSH where a buffer of its queue ends (051ba67447de), which depends on how calls \
                 and ACKs divide the queue. RFC 9293 section 3.9.1.2 requires PSH at the end of data written \
                 without MSG_MORE, where both set it",
        matches: |difference, ours, _| {
            let (Some(sent), Some(other)) = &difference.packets else { return false };
            let without = |flags: &str| flags.replace('P', "");
            difference.what == What::Field("flags") && without(&sent.flags) == without(&other.flags) && {
                let (ends, all) = ends_of_writes(ours, difference.step);
                let end = sent.seq + sent.len;
                end < all || !ends.contains(&end)
            }
        },
    },
    Explanation {
        name: "duplicates count as delivered without SACK",
        reason: "Without SACK, Linux adds the number of duplicate acknowledgements to tcpi_sacked and \
                 tcpi_delivered. brisk counts only segments that a SACK option or an acknowledgement reports",
        matches: |difference, ours, kernel| {
            let before = difference.step.saturating_sub(1);
            let counted = |record| value(record, before, "sacked");
            (is_value(difference, "sacked") || is_value(difference, "delivered"))
                && !has_option(ours, difference.step, SACK)
                && (difference.values.0 < difference.values.1 || counted(ours) < counted(kernel))
        },
    },
    Explanation {
        name: "recovery without SACK ends at its point",
        reason: "Without SACK, Linux stays in recovery until more than the recovery point is acknowledged, \
                 even after it has undone a timeout (tcp_try_undo_loss). RFC 6582 section 3.2 step 3 ends it \
                 with a full acknowledgement, and step 2 prevents that duplicates of old data begin another \
                 one",
        matches: window::is_held_at_point,
    },
    Explanation {
        name: "CWR held at its point",
        reason: "Linux stays in CWR until more is acknowledged than the data in flight at the start of CWR, \
                 and lowers the window further. brisk reduces it once for a window of data (RFC 3168 section \
                 6.1.2) and ends the reduction when that data is acknowledged",
        matches: window::is_held_in_cwr,
    },
    Explanation {
        name: "reduction in proportion to what was in flight",
        reason: "Linux's PRR divides by the window before the reduction. brisk divides by RecoverFS, the data \
                 in flight at that time (RFC 9937 section 6): with less data in flight than the window its \
                 share is larger, with more it is smaller",
        matches: window::is_from_flight,
    },
    Explanation {
        name: "window in bytes or in segments",
        reason: "Linux counts a segment that is not full as a whole segment of its window, brisk counts its \
                 bytes (RFC 3465). The windows differ by at most the number of such segments",
        matches: window::is_in_segments,
    },
    Explanation {
        name: "more duplicates than segments without SACK",
        reason: "Without SACK, Linux sends a segment for each duplicate acknowledgement while fewer \
                 duplicates than outstanding segments are counted; segments sent for duplicates are \
                 outstanding too. brisk counts at most as many duplicates as segments were outstanding at the \
                 first one (RFC 5681 section 3.2 step 4)",
        matches: window::is_beyond_outstanding,
    },
    Explanation {
        name: "growth at the end of a recovery",
        reason: "Linux also grows the window with the acknowledgement that ends a recovery, and counts \
                 CUBIC's curve in whole segments. brisk sets the window to ssthresh (RFC 5681 section 3.2 \
                 step 6) and keeps the remainder (RFC 9438 section 4.2). In congestion avoidance Linux is a \
                 segment ahead, with CUBIC a segment ahead or behind",
        matches: window::is_grown_at_end,
    },
    Explanation {
        name: "growth by duplicates",
        reason: "Linux counts a reported duplicate as delivered and grows the window by it. brisk grows it by \
                 data that was not acknowledged before (RFC 5681 section 3.1)",
        matches: window::is_grown_by_duplicate,
    },
    Explanation {
        name: "window that differed before",
        reason: "If the windows of Linux and brisk differ for a reason of this list, they continue to differ, \
                 by at most one segment more, until the next reduction",
        matches: window::is_carried,
    },
    Explanation {
        name: "growth to twice of what is used",
        reason: "In slow start neither Linux nor brisk grows a window of which at most half is used. If \
                 Linux's window was larger for a reason of this list, it stops growing sooner",
        matches: window::is_grown_from_smaller,
    },
    Explanation {
        name: "window restored to one that differed before",
        reason: "If the windows of Linux and brisk differed for a reason of this list, each restores its own \
                 when a recovery is undone",
        matches: window::is_restored,
    },
    Explanation {
        name: "threshold from a window that differed before",
        reason: "If the windows of Linux and brisk differ for a reason of this list, each computes the \
                 threshold from its own (RFC 5681 equation 4, RFC 9438 section 4.6)",
        matches: window::is_reduced_from_window,
    },
    Explanation {
        name: "loss before an undone recovery",
        reason: "Linux removes segments that it declares lost from RACK's list and does not put them back \
                 when the recovery is undone, so only a timeout repairs them. brisk checks every segment that \
                 is not acknowledged (RFC 8985 section 6.2 step 5)",
        matches: window::is_lost_after_undo,
    },
    Explanation {
        name: "variance of the round-trip time",
        reason: "Linux keeps the largest deviation of a round trip and lowers it once in a round trip. brisk \
                 smooths the variance with each sample (RFC 6298 section 2.3, a MUST). The timeouts differ in \
                 K*RTTVAR where that exceeds its minimum",
        matches: |difference, ours, kernel| {
            let at = |record: &Record, name| value(record, difference.step, name);
            let variance = |record| {
                let (rtt, backoff) = (at(record, "rtt")?, at(record, "backoff")?);
                Some((at(record, "rto")? >> backoff) - rtt)
            };
            let Some((ours_part, other)) = variance(ours).zip(variance(kernel)) else { return false };
            // Linux's deviation decays from its earlier value.
            let before = (0..difference.step).filter_map(|step| value(kernel, step, "rto"));
            let most_before = before.max().unwrap_or(0);
            is_value(difference, "rto")
                && at(ours, "backoff") == at(kernel, "backoff")
                && ours_part.max(other) > RTO_MIN
                && ours_part.min(other) > RTO_MIN - 16_000
                && (ours_part.max(other) < 2 * ours_part.min(other)
                    || ours_part < other && other <= most_before)
        },
    },
    Explanation {
        name: "window at a threshold that differed before",
        reason: "If the thresholds of Linux and brisk differ for a reason of this list, a recovery ends with \
                 a different window in each",
        matches: window::is_at_threshold,
    },
    Explanation {
        name: "segment twice in flight",
        reason: "Linux counts a segment as twice in flight if its loss is undone after it was retransmitted, \
                 as RFC 6675 section 4 (SetPipe) does. brisk counts each byte of the stream once, so the \
                 window that PRR sets is smaller by these segments",
        matches: window::is_twice_in_flight,
    },
    Explanation {
        name: "flight in bytes or in segments",
        reason: "Linux counts a segment that is not full as a full one in flight, brisk counts its bytes (RFC \
                 5681 section 2, FlightSize). brisk continues to send when small segments fill Linux's window",
        matches: window::is_full_in_segments,
    },
    Explanation {
        name: "answer to a repair that Linux's timer sent late",
        reason: "Linux's reordering timer is late by up to 14 ms, so the script's answer may come within the \
                 minimum round-trip time after the retransmission. RACK then takes it as an answer to the \
                 original (RFC 8985 section 6.2 step 2)",
        matches: window::is_answered_too_soon,
    },
    Explanation {
        name: "window that the application does not use",
        reason: "Linux halves the distance from the window to its used part if the window has not been the \
                 limit for a retransmission timeout (RFC 2861 section 3.2). brisk keeps the window for five \
                 minutes (RFC 7661, which obsoletes RFC 2861)",
        matches: window::is_unused,
    },
    Explanation {
        name: "restart behind a closed window",
        reason: "Linux lowers the window after an idle time when the program writes, even if the peer's \
                 window is closed. brisk lowers it before transmission begins (RFC 5681 section 4.1)",
        matches: window::is_restarted_behind_closed_window,
    },
    Explanation {
        name: "end of the first slow start",
        reason: "Linux leaves CUBIC's first slow start at once at a sign of HyStart (trains of \
                 acknowledgements, one threshold of delay). brisk goes through rounds of conservative slow \
                 start (HyStart++, RFC 9406 section 4.2)",
        matches: window::is_left_by_delay,
    },
    Explanation {
        name: "three reports after an undone recovery",
        reason: "Linux treats three SACK reports above a hole as a loss unless it has counted reordering, and \
                 a recovery that a DSACK undoes does not count. For brisk it counts as reordering, and RFC \
                 8985 section 6.2 step 4 waits then",
        matches: window::is_patient_after_undo,
    },
    Explanation {
        name: "duplicate right after the handshake",
        reason: "Linux takes the first acknowledgement after a SYN-ACK as a window update and not as a \
                 duplicate, because its sequence number is newer than the SYN-ACK's. brisk compares the \
                 windows (RFC 5681 section 2)",
        matches: |difference, ours, _| {
            let mut before = arrivals(ours, difference.step);
            let last = before.next();
            let is_new = difference.packets.0.as_ref().is_some_and(|sent| sent.len > 0);
            let one_more = difference.values.0 == difference.values.1 + 1;
            let arrives = |step: usize| ours.steps[step].event.starts_with("< ");
            let at = (0..=difference.step).rev().find(|step| arrives(*step)).unwrap_or(0);
            let outstanding = at > 0 && self::sent(ours, at - 1).any(|packet| packet.len > 0);
            !has_option(ours, difference.step, SACK)
                && last.is_some_and(|last| last.seq == 1 && last.end == 1 && last.ack == 1)
                && before.next().is_some_and(|syn| syn.seq == 0)
                && outstanding
                && (difference.what == What::Surplus && is_new && at == difference.step
                    || ["sacked", "delivered", "ca_state"].iter().any(|name| is_value(difference, name))
                        && one_more)
        },
    },
    Explanation {
        name: "duplicates taken for reordering without SACK",
        reason: "Without SACK, Linux treats more duplicate acknowledgements than the segments can cause as \
                 reordering, and sets its threshold of duplicates to the number of outstanding segments. \
                 brisk always uses three (RFC 5681 section 3.2)",
        matches: |difference, ours, kernel| {
            let outstanding = |step| value(kernel, step, "unacked").unwrap_or(0);
            let max = outstanding(difference.step).max(outstanding(difference.step.saturating_sub(1)));
            let before = (0..difference.step).rev().find_map(|step| value(kernel, step, "unacked"));
            (is_value(difference, "reordering") && difference.values.1 <= max.max(before.unwrap_or(0))
                || is_value(difference, "reord_seen") && difference.values.0 < difference.values.1)
                && !has_option(ours, difference.step, SACK)
        },
    },
    Explanation {
        name: "threshold of duplicates without SACK",
        reason: "If Linux has changed its threshold of duplicates for the previous reason, it retransmits the \
                 first segment after another number of duplicates than three (RFC 5681 section 3.2)",
        matches: |difference, ours, kernel| {
            let threshold = value(kernel, difference.step, "reordering");
            let last = arrivals(ours, difference.step).next();
            let repair = [&difference.packets.0, &difference.packets.1].into_iter().flatten();
            let of_head = repair.into_iter().any(|sent| last.is_some_and(|last| sent.seq == last.ack));
            !has_option(ours, difference.step, SACK)
                && threshold
                    .map_or_else(|| has_late_original(ours, difference.step), |threshold| threshold != 3)
                && matches!(difference.what, What::Surplus | What::Missing | What::Field("sequence number"))
                && of_head
        },
    },
    Explanation {
        name: "data of a larger window",
        reason: "If the windows of Linux and brisk differ for a reason of this list, the one with the larger \
                 window sends more data",
        matches: window::is_permitted_by_window,
    },
    Explanation {
        name: "acknowledgement of the unsent after close",
        reason: "Linux keeps only the state of TIME-WAIT for a closed connection in FIN-WAIT-2, and does not \
                 answer an acknowledgement of data that was never sent. brisk sends an acknowledgement (RFC \
                 9293 section 3.10.7.4)",
        matches: |difference, ours, _| {
            let (Some(sent), None) = &difference.packets else { return false };
            let highest = ours
                .packets()
                .filter(|packet| packet.at < sent.at)
                .map(|packet| packet.seq + packet.len)
                .max();
            let beyond = arrivals(ours, difference.step)
                .next()
                .is_some_and(|last| last.ack > 1 + highest.unwrap_or(0));
            difference.what == What::Surplus
                && sent.is_pure_ack()
                && beyond
                && ours.steps.iter().take(difference.step).any(|step| step.event == "close")
        },
    },
    Explanation {
        name: "FIN among the bytes that are not sent",
        reason: "Linux counts the sequence number of a waiting FIN in tcpi_notsent_bytes. brisk counts only \
                 bytes",
        matches: |difference, ours, _| {
            is_value(difference, "notsent_bytes")
                && difference.values.0 + 1 == difference.values.1
                && ours.steps.iter().take(difference.step).any(|step| step.event == "shutdown")
        },
    },
    Explanation {
        name: "window of bytes or of memory",
        reason: "Linux counts the memory of packets against its buffer and widens the window with each full \
                 segment. brisk counts bytes (docs/conformance.md). Open windows differ by less than a factor \
                 of two",
        matches: |difference, _, _| {
            let (Some(sent), Some(other)) = &difference.packets else { return false };
            let (low, high) = (sent.win.min(other.win), sent.win.max(other.win));
            difference.what == What::Field("window") && low > 0 && high < 2 * low
        },
    },
    Explanation {
        name: "second segment while the window does not advance",
        reason: "Linux delays the acknowledgement of a second full segment to the program's next read if the \
                 window would not advance. brisk acknowledges every second segment (RFC 5681 section 4.2)",
        matches: |difference, ours, _| {
            let (Some(sent), None) = &difference.packets else { return false };
            let Some(arrived) = arrivals(ours, difference.step).next() else { return false };
            let before = acks_sent(ours, difference.step - 1).next().unwrap_or(1);
            difference.what == What::Surplus
                && sent.is_pure_ack()
                && sent.ack == Some(arrived.end)
                && before < arrived.seq
                && ours.steps[difference.step].event.starts_with("< ")
        },
    },
    Explanation {
        name: "part of a segment at the edge of the window",
        reason: "Linux fills the last bytes of the peer's window with a part of a segment while other \
                 segments are outstanding. brisk waits for a full segment of window (RFC 9293 section \
                 3.8.6.2.1, silly window syndrome)",
        matches: |difference, ours, _| {
            let (None, Some(other)) = &difference.packets else { return false };
            let edge = Last::up_to(ours, difference.step).map(|last| last.edge(ours));
            difference.what == What::Missing && other.len > 0 && edge == Some(other.seq + other.len)
        },
    },
    Explanation {
        name: "probe without a round trip since the last probe",
        reason: "Linux probes again as soon as the last tail loss probe is acknowledged. brisk sends none \
                 before it has measured a round trip since the last one (RFC 8985 section 7.3)",
        matches: |difference, ours, kernel| {
            let Some(other) = &difference.packets.1 else { return false };
            let by_timer = kernel.steps.get(difference.step).is_some_and(|step| other.at > step.at + 2_000);
            let Some((at, end)) = last_probe(ours, difference.step) else { return false };
            let later =
                ours.steps.iter().enumerate().take(difference.step + 1).filter(|(_, step)| step.at > at);
            let measured =
                later.filter_map(|(n, _)| arrivals(ours, n).next()).any(|arrived| arrived.ack > end);
            matches!(difference.what, What::Missing | What::Field("sequence number"))
                && by_timer
                && !measured
                && !has_option(ours, difference.step, TIMESTAMPS)
        },
    },
    Explanation {
        name: "a smaller window in an ACK of nothing new",
        reason: "Linux accepts a smaller window only from a segment with new data or a new acknowledgement. \
                 brisk takes SND.WND from every segment whose SEG.ACK is at least SND.WL2 (RFC 9293 section \
                 3.10.7.4)",
        matches: |difference, ours, _| {
            is_value(difference, "snd_wnd")
                && difference.values.0 < difference.values.1
                && difference.values.0 > 0
                && {
                    let mut arrivals = arrivals(ours, difference.step);
                    let last = arrivals.next();
                    last.is_some_and(|last| arrivals.any(|it| it.seq >= last.seq && it.ack >= last.ack))
                }
        },
    },
    Explanation {
        name: "quick mode while the window grows",
        reason: "Linux sends one more acknowledgement without delay whenever it widens the window \
                 (tcp_grow_window), which it does over some 32 KB of data. brisk's windows count bytes and \
                 need not grow, and RFC 5681 section 4.2 allows the delay",
        matches: |difference, ours, kernel| {
            let (None, Some(other)) = &difference.packets else { return false };
            let at_once = kernel.steps.get(difference.step).is_some_and(|step| other.at < step.at + 2_000);
            let answers_data = ours.steps[difference.step].event.starts_with("< ");
            let Some(arrived) = arrivals(ours, difference.step).next() else { return false };
            difference.what == What::Missing
                && other.is_pure_ack()
                && other.ack == Some(arrived.end)
                && at_once
                && answers_data
                && acks_of_data(ours, difference.step) >= QUICK
                && arrivals_after(ours, difference.step, GROWTH) <= QUICK + 1
        },
    },
    Explanation {
        name: "no quick mode where the first data came out of order",
        reason: "With SACK, Linux counts data above a hole as the first and also the last acknowledgement of \
                 quick mode (tcp_grow_window). In brisk the first data in order begins quick mode, as a \
                 sender in slow start needs (RFC 5681 section 4.2 allows both)",
        matches: |difference, ours, _| {
            let (Some(sent), None) = &difference.packets else { return false };
            let mut data: Vec<_> = arrivals(ours, difference.step).filter(|it| it.end > it.seq).collect();
            data.reverse();
            let in_order = data.iter().position(|arrived| arrived.seq == 1);
            let Some((first, last)) = in_order.zip(data.last()) else { return false };
            difference.what == What::Surplus
                && sent.is_pure_ack()
                && sent.ack == Some(last.end)
                && ours.steps[difference.step].event.starts_with("< ")
                && has_option(ours, difference.step, SACK)
                && first > 0
                && data.len() - first <= QUICK
        },
    },
    Explanation {
        name: "timeout of the receiver in ticks",
        reason: "Linux measures the pause without data that restarts quick mode (its retransmission timeout) \
                 in ticks of 4 ms, brisk in microseconds. A pause as long as the timeout restarts quick mode \
                 only in brisk",
        matches: |difference, ours, _| {
            let (Some(sent), None) = &difference.packets else { return false };
            let step = difference.step;
            let data: Vec<(usize, i64)> = (0..=step)
                .filter(|n| Last::at(ours, *n).is_some_and(|last| last.end > last.seq))
                .map(|n| (n, ours.steps[n].at))
                .collect();
            let pauses = data.windows(2).rev().take(QUICK);
            let mut timeouts =
                pauses.filter_map(|pair| Some((pair[1].1 - pair[0].1, value(ours, pair[1].0, "rto")?)));
            difference.what == What::Surplus
                && sent.is_pure_ack()
                && ours.steps[step].event.starts_with("< ")
                && timeouts.any(|(pause, timeout)| (timeout..timeout + 2 * TICK).contains(&pause))
        },
    },
    Explanation {
        name: "block that Linux has forgotten",
        reason: "Linux remembers four SACK blocks, and reports a segment that joins a fifth one without that \
                 block. brisk reports the whole contiguous block that contains the segment (RFC 2018 section \
                 4)",
        matches: |difference, ours, _| {
            let (Some(sent), Some(other)) = &difference.packets else { return false };
            let (held, max) = reported_ranges(ours, difference.step);
            let is_dsack = |n: usize, blocks: &[(i64, i64)]| {
                let within = |outer: &(i64, i64)| outer.0 <= blocks[0].0 && blocks[0].1 <= outer.1;
                n == 0 && (blocks[0].1 <= sent.ack.unwrap_or(0) || blocks.iter().skip(1).any(within))
            };
            let (blocks, others) = (sack_blocks(sent), sack_blocks(other));
            let ours_is_true =
                blocks.iter().enumerate().all(|(n, block)| held.contains(block) || is_dsack(n, &blocks));
            let kernel_is_in_part = others.iter().enumerate().all(|(n, block)| {
                held.iter().any(|held| held.0 <= block.0 && block.1 <= held.1) || is_dsack(n, &others)
            });
            difference.what == What::Field("options")
                && max > 4
                && others != blocks
                && ours_is_true
                && kernel_is_in_part
        },
    },
    Explanation {
        name: "probe of the window after other segments",
        reason: "Linux restarts the timer of zero-window probes when segments arrive outside its fast path. \
                 brisk sends the first probe when the window has been closed for a retransmission timeout \
                 (RFC 9293 section 3.8.6.1)",
        matches: |difference, ours, _| {
            let Some(sent) = &difference.packets.0 else { return false };
            let late = difference.packets.1.as_ref().is_none_or(|other| other.at > sent.at);
            let Some(written) =
                ours.steps.iter().take(difference.step + 1).rfind(|step| step.event == "write")
            else {
                return false;
            };
            let arrived_since = ours
                .steps
                .iter()
                .take(difference.step + 1)
                .any(|step| step.at > written.at && step.at < sent.at && step.event.starts_with("< "));
            let last = ours
                .steps
                .iter()
                .take(difference.step + 1)
                .rev()
                .flat_map(|step| step.reactions.iter().rev());
            let next = last.filter_map(|reaction| match reaction {
                Reaction::Sent(packet) if packet.at < sent.at => Some(packet.seq + packet.len),
                Reaction::Sent(_) | Reaction::Returned(_) | Reaction::Values(_) => None,
            });
            matches!(difference.what, What::Surplus | What::Field("time"))
                && late
                && sent.is_pure_ack()
                && next.max().map(|next| next.max(1)) == Some(sent.seq + 1)
                && arrivals(ours, difference.step).next().is_some_and(|it| it.window == 0)
                && arrived_since
        },
    },
    Explanation {
        name: "probe of the window answered by data",
        reason: "Linux's fast path ignores the acknowledgement number of data if it repeats the last one, so \
                 the window probe counts as unanswered. For brisk any segment of the peer with that number is \
                 an answer (RFC 9293 section 3.8.6.1)",
        matches: |difference, ours, _| {
            is_value(difference, "probes")
                && difference.values.0 == 0
                && arrivals(ours, difference.step).next().is_some_and(|last| last.end > last.seq)
        },
    },
    Explanation {
        name: "time stamp of an old acknowledgement",
        reason: "Linux ignores an acknowledgement that is older than the last one, with its time stamp. brisk \
                 stores the time stamp of every acceptable segment that does not begin after the last \
                 acknowledgement sent (RFC 7323 section 4.3)",
        matches: |difference, ours, _| {
            let Some(sent) = &difference.packets.0 else { return false };
            let echoed = sent.options.iter().find_map(|option| option.strip_prefix("TS ecr "));
            let last = (0..=difference.step).rev().find(|n| Last::at(ours, *n).is_some());
            difference.what == What::Field("options")
                && last.zip(echoed).is_some_and(|(n, echoed)| {
                    Last::at(ours, n).is_some_and(|last| last.ack < window::acknowledged(ours, n - 1))
                        && ours.steps[n].event.contains(&format!("TS val {echoed} "))
                })
        },
    },
    Explanation {
        name: "echo of congestion in a reset",
        reason: "Linux sets ECE in a reset too while it echoes a mark. RFC 3168 section 6.1.3 requires it in \
                 acknowledgements, and after a reset there is nothing to slow down",
        matches: |difference, _, _| {
            let (Some(sent), Some(other)) = &difference.packets else { return false };
            difference.what == What::Field("flags")
                && sent.has('R')
                && other.flags.replace('E', "") == sent.flags
        },
    },
    Explanation {
        name: "acknowledgement at the edge of a window that shrank",
        reason: "If the peer's window has shrunk below SND.NXT, Linux sends acknowledgements with its right \
                 edge as the sequence number. brisk sends <SEQ=SND.NXT> (RFC 9293 section 3.10.7.4)",
        matches: |difference, ours, _| {
            let (Some(sent), Some(other)) = &difference.packets else { return false };
            let highest = self::sent(ours, difference.step).map(|packet| packet.seq + packet.len).max();
            let mut acceptable = (0..=difference.step)
                .rev()
                .filter_map(|step| Last::at(ours, step))
                .filter(|last| Some(last.ack) <= highest);
            let edge = acceptable.next().map(|last| last.edge(ours));
            difference.what == What::Field("sequence number")
                && sent.is_pure_ack()
                && other.is_pure_ack()
                && other.seq < sent.seq
                && edge == Some(other.seq)
        },
    },
    Explanation {
        name: "part of a segment delivered",
        reason: "Linux counts a segment as delivered, and measures its round trip, when all of it is \
                 acknowledged. brisk does so for a part too, because that part has arrived (RFC 6298 section \
                 3 permits a sample from any acknowledgement)",
        matches: |difference, ours, _| {
            let Some(ack) = arrivals(ours, difference.step).next().map(|arrived| arrived.ack) else {
                return false;
            };
            let (ours_value, kernel_value) = difference.values;
            let parts =
                matches!(difference.what, What::Surplus | What::Missing | What::Field("sequence number"));
            (parts
                || is_value(difference, "min_rtt") && ours_value < kernel_value
                || ["snd_cwnd", "reord_seen"].iter().any(|field| is_value(difference, field))
                    && ours_value == kernel_value + 1
                || is_value(difference, "delivered") && ours_value == kernel_value + 1)
                && sent(ours, difference.step).any(|packet| packet.seq < ack && ack < packet.seq + packet.len)
        },
    },
    Explanation {
        name: "round trip of a segment that Linux's timer sent late",
        reason: "Linux's timers are late by up to 45 ms, so segments that they send have a round trip to the \
                 script's answer that is shorter by that time",
        matches: |difference, ours, _| {
            let shorter = difference.values.0 - difference.values.1;
            let Some(arrived) = Last::up_to(ours, difference.step) else { return false };
            is_value(difference, "min_rtt")
                && (1..=45_000).contains(&shorter)
                && last_probe(ours, difference.step).is_some_and(|(_, end)| arrived.reports(end - 1, end))
        },
    },
    Explanation {
        name: "report of data never sent",
        reason: "Linux counts a reported duplicate before it checks if the data was sent. brisk ignores a \
                 block that ends after SND.NXT or begins more than a window before SND.UNA",
        matches: |difference, ours, _| {
            let highest = sent(ours, difference.step).map(|packet| packet.seq + packet.len + 1).max();
            let dsack = Last::up_to(ours, difference.step).and_then(|last| last.dsack());
            let window =
                arrivals(ours, difference.step).filter(|last| last.seq > 0).map(|last| last.window).max();
            let oldest = window::acknowledged(ours, difference.step) - (window.unwrap_or(0) << shift(ours));
            is_value(difference, "dsack_dups")
                && difference.values.0 < difference.values.1
                && dsack.is_some_and(|dsack| Some(dsack.1) >= highest || dsack.0 < oldest)
        },
    },
    Explanation {
        name: "duplicate of data sent once",
        reason: "Linux counts a reported duplicate of any data as delivered while fewer duplicates were \
                 reported than segments were retransmitted. brisk counts only duplicates of segments that it \
                 has sent twice",
        matches: |difference, ours, kernel| {
            let Some(dsack) = Last::up_to(ours, difference.step).and_then(|last| last.dsack()) else {
                return false;
            };
            let at = |record, name| value(record, difference.step, name).unwrap_or(0);
            let before = |record| value(record, difference.step.saturating_sub(1), "delivered").unwrap_or(0);
            let more = difference.values.1 - before(kernel) - (difference.values.0 - before(ours));
            let segments = 1..=(dsack.1 - dsack.0) / at(ours, "snd_mss").max(1) + 1;
            let is_twice = parting::was_sent_twice(ours, difference.step, dsack);
            is_value(difference, "delivered")
                && (segments.contains(&more) && !is_twice
                    || segments.contains(&-more)
                        && is_twice
                        && parting::disbelieves_reports(kernel, difference.step))
        },
    },
    Explanation {
        name: "duplicate in the report of its arrival",
        reason: "Linux treats a duplicate above a hole as reordering if the same acknowledgement reports its \
                 segment. brisk draws no conclusion from a segment that was sent twice (RFC 8985 section 6.2 \
                 step 3)",
        matches: |difference, ours, _| {
            let Some(last) = Last::up_to(ours, difference.step) else { return false };
            (is_value(difference, "reord_seen") || is_value(difference, "reordering"))
                && difference.values.0 < difference.values.1
                && last.dsack().is_some_and(|dsack| {
                    dsack.0 >= last.ack && last.blocks.get(1).is_some_and(|outer| outer.0 < dsack.0)
                })
        },
    },
    Explanation {
        name: "repair before the data of its segment",
        reason: "Linux sends retransmissions before it accepts the data of the segment that requests them, so \
                 they acknowledge less, and have more space for payload if SACK does not report that data \
                 yet. brisk accepts the data first",
        matches: |difference, ours, _| {
            let (Some(sent), Some(other)) = &difference.packets else { return false };
            let Some(last) = Last::up_to(ours, difference.step) else { return false };
            let acknowledges_less = difference.what == What::Field("acknowledgement number")
                && other.ack < sent.ack
                && sent.ack == Some(last.end);
            let reports_less = difference.what == What::Field("length")
                && sent.seq == other.seq
                && sent.len < other.len
                && sack_blocks(sent).contains(&(last.seq, last.end))
                && sack_blocks(other).len() < sack_blocks(sent).len();
            let covers =
                |blocks: &[(i64, i64)]| blocks.iter().any(|block| block.0 <= last.seq && last.end <= block.1);
            let reports_less = reports_less
                || difference.what == What::Field("options")
                    && covers(&sack_blocks(sent))
                    && !covers(&sack_blocks(other));
            sent.len > 0 && last.end > last.seq && (acknowledges_less || reports_less)
        },
    },
    Explanation {
        name: "probe of the window by a late timer",
        reason: "Linux's timer of zero-window probes is late by up to 45 ms, like its retransmission timer",
        matches: |difference, ours, _| {
            let (Some(sent), Some(other)) = &difference.packets else { return false };
            let next = self::sent(ours, difference.step).filter(|packet| packet.at < sent.at);
            difference.what == What::Field("time")
                && sent.is_pure_ack()
                && next.map(|packet| packet.seq + packet.len).max() == Some(sent.seq + 1)
                && (0..=45_000).contains(&(other.at - sent.at))
        },
    },
    Explanation {
        name: "segments cut where others were not",
        reason: "After a part of a segment was acknowledged, or a window has cut one, Linux retransmits full \
                 segments from there. brisk keeps the boundaries of the segments that it has sent; RFC 9293 \
                 section 3.8.6 permits both",
        matches: |difference, ours, _| {
            let (Some(sent), Some(other)) = &difference.packets else { return false };
            let first = |from: i64| {
                self::sent(ours, difference.step).filter(|packet| packet.len > 0 && packet.at < sent.at).any(
                    |packet| {
                        packet.seq == from
                            && self::sent(ours, difference.step)
                                .all(|before| before.at >= packet.at || before.seq + before.len <= packet.seq)
                    },
                )
            };
            difference.what == What::Field("length")
                && sent.seq == other.seq
                && sent.len < other.len
                && !first(sent.seq)
                && self::sent(ours, difference.step)
                    .any(|packet| packet.at < sent.at && packet.seq + packet.len == sent.seq + sent.len)
        },
    },
    Explanation {
        name: "segments joined",
        reason: "Linux joins small neighbouring segments when it retransmits them, and then counts them as \
                 one. brisk retransmits them together and still counts the segments that it sent first",
        matches: |difference, ours, kernel| {
            let fields = ["unacked", "lost", "retrans"];
            let repairs: Vec<&Packet> =
                sent(kernel, difference.step).filter(|packet| packet.len > 0).collect();
            let open = window::outstanding(ours, difference.step);
            let is_inside =
                |from: i64| repairs.iter().any(|sent| sent.seq < from && from < sent.seq + sent.len);
            let joined = open.iter().filter(|(from, _)| is_inside(*from)).count() as i64;
            if let (Some(sent), Some(other)) = &difference.packets {
                // The kernel's segment ends at an original boundary of brisk's, or with the FIN.
                let end = other.seq + other.len;
                let is_end = other.has('F') || open.iter().any(|(_, to)| *to == end);
                return difference.what == What::Field("length")
                    && sent.seq == other.seq
                    && sent.len < other.len
                    && is_end
                    && open.contains(&(sent.seq, sent.seq + sent.len));
            }
            fields.iter().any(|field| is_value(difference, field))
                && (1..=joined).contains(&(difference.values.0 - difference.values.1))
        },
    },
    Explanation {
        name: "first segment cut at the edge of a small window",
        reason: "Linux cuts the first segment at the edge of a window that has shrunk below a segment. brisk \
                 retransmits it whole (RFC 9293 section 3.8.6, MAY-7)",
        matches: |difference, ours, _| {
            let (Some(sent), Some(other)) = &difference.packets else { return false };
            let Some(last) = Last::up_to(ours, difference.step) else { return false };
            difference.what == What::Field("length")
                && sent.seq == last.ack
                && other.len < sent.len
                && other.seq + other.len == last.edge(ours)
        },
    },
    Explanation {
        name: "segment cut by the present size",
        reason: "Linux cuts retransmissions from a packet of several segments by the present segment size, \
                 which changes with the number of SACK blocks. brisk retransmits the original segment",
        matches: |difference, ours, _| {
            let (Some(sent), Some(other)) = &difference.packets else { return false };
            let first = self::sent(ours, difference.step)
                .find(|packet| packet.seq == sent.seq && packet.len == sent.len);
            let blocks = |packet: &Packet| sack_blocks(packet).len();
            let segments = self::sent(ours, difference.step).filter(|packet| packet.len > 0).count() as i64;
            let is_shifted = difference.what == What::Field("sequence number")
                && sent.seq + sent.len == other.seq + other.len;
            let is_cut = difference.what == What::Field("length") && sent.seq == other.seq;
            (is_shifted || is_cut)
                && first.is_some_and(|first| first.at < sent.at && blocks(first) != blocks(sent))
                && ((sent.seq - other.seq).abs() + (sent.len - other.len).abs()) <= 72 * segments
        },
    },
    Explanation {
        name: "use of the window in bytes or in segments",
        reason: "Linux counts segments that are not full as full ones when it checks if the window is used \
                 (RFC 7661 section 4.2 permits both). brisk counts bytes, and does not grow a window of which \
                 less than half is used",
        matches: window::is_used_in_segments,
    },
];

/// Bits of `tcpi_options`.
const TIMESTAMPS: i64 = 1;
const SACK: i64 = 2;

/// Minimum timeout of Linux, and minimum variance term of ours, microseconds.
const RTO_MIN: i64 = 200_000;

/// A tick of the kernel's clock, microseconds.
const TICK: i64 = 4_000;

/// Number of acknowledgements that quick mode sends without delay.
const QUICK: usize = 16;

/// Bytes of data during which Linux widens its window from the first one to the whole buffer, which is twice
/// as large.
const GROWTH: i64 = 32 << 10;

/// Returns the first entry that explains a difference, and whether the connections are in different states
/// afterwards.
pub fn explain(
    difference: &Difference,
    ours: &Record,
    kernel: &Record,
) -> Option<(&'static Explanation, bool)> {
    let find =
        |list: &'static [Explanation]| list.iter().find(|entry| (entry.matches)(difference, ours, kernel));
    find(EXPLANATIONS).map(|entry| (entry, false)).or_else(|| find(PARTINGS).map(|entry| (entry, true)))
}

/// Returns all entries.
pub fn explanations() -> impl Iterator<Item = &'static Explanation> {
    EXPLANATIONS.iter().chain(PARTINGS)
}

fn is_value(difference: &Difference, field: &str) -> bool {
    matches!(&difference.what, What::Value(name) if name == field)
}

/// Returns the sequence numbers after each call without MSG_MORE up to a step, and after all written data.
fn ends_of_writes(record: &Record, step: usize) -> (Vec<i64>, i64) {
    let mut ends = Vec::new();
    let mut end = 1;
    let calls =
        record.steps.iter().take(step + 1).filter(|step| matches!(step.event.as_str(), "write" | "send"));
    for call in calls {
        end += call.reactions.iter().map(written).sum::<i64>();
        // Scripts send with MSG_MORE.
        if call.event == "write" {
            ends.push(end);
        }
    }
    (ends, end)
}

/// Returns the bytes that a call has written.
fn written(reaction: &Reaction) -> i64 {
    match reaction {
        Reaction::Returned(value) => value.parse::<i64>().unwrap_or(0).max(0),
        Reaction::Sent(_) | Reaction::Values(_) => 0,
    }
}

/// True if `tcpi_options` has this bit at the last mark.
fn has_option(record: &Record, step: usize, bit: i64) -> bool {
    let value =
        record.steps.iter().take(step + 1).rev().flat_map(|step| &step.reactions).find_map(|reaction| {
            match reaction {
                Reaction::Values(values) => values.iter().find(|(name, _)| name == "options")?.1,
                Reaction::Sent(_) | Reaction::Returned(_) => None,
            }
        });
    value.is_some_and(|options| options & bit != 0)
}

/// A segment that arrived, as in the script.
#[derive(Clone, Copy)]
struct Arrived {
    seq: i64,
    end: i64,
    ack: i64,
    window: i64,
}

impl Arrived {
    /// Parses `< P. 1:11(10) ack 1 win 1024 <nop,nop,TS val 7 ecr 8>`.
    fn read(event: &str) -> Option<Arrived> {
        let text = event.strip_prefix("< ")?;
        let after =
            |word: &str| text.split_once(word).map(|(_, rest)| rest.split([' ', '>']).next().unwrap_or(""));
        let numbers = text.split(' ').find(|word| word.contains(':') && word.contains('('))?;
        let (seq, end) = numbers.split_once(':')?;
        let number = |text: Option<&str>| text.and_then(|text| text.parse().ok());
        Some(Arrived {
            seq: seq.parse().ok()?,
            end: end.split_once('(')?.0.parse().ok()?,
            ack: number(after(" ack ")).unwrap_or(0),
            window: number(after(" win ")).unwrap_or(0),
        })
    }
}

/// A segment that arrived, with the blocks of its SACK option.
#[derive(Clone)]
struct Last {
    step: usize,
    seq: i64,
    end: i64,
    ack: i64,
    window: i64,
    blocks: Vec<(i64, i64)>,
}

impl Last {
    /// Returns the segment that arrived at a step.
    fn at(record: &Record, step: usize) -> Option<Last> {
        let event = &record.steps.get(step)?.event;
        let Arrived { seq, end, ack, window } = Arrived::read(event)?;
        let option = event.split_once("sack ").map_or("", |(_, rest)| rest);
        let option = option.split([',', '>']).next().unwrap_or("");
        let ends = option.split(' ').filter_map(|block| block.split_once(':'));
        let blocks = ends.filter_map(|(start, end)| Some((start.parse().ok()?, end.parse().ok()?)));
        Some(Last { step, seq, end, ack, window, blocks: blocks.collect() })
    }

    /// Returns the last segment that arrived up to a step.
    fn up_to(record: &Record, step: usize) -> Option<Last> {
        (0..=step).rev().find_map(|step| Last::at(record, step))
    }

    /// Returns the right edge of the offered window; that of a SYN is not scaled.
    fn edge(&self, record: &Record) -> i64 {
        self.ack + if self.seq == 0 { self.window } else { self.window << shift(record) }
    }

    /// Returns the duplicate that the segment reports (RFC 2883 section 4).
    fn dsack(&self) -> Option<(i64, i64)> {
        let first = *self.blocks.first()?;
        let is_within = |outer: &(i64, i64)| outer.0 <= first.0 && first.1 <= outer.1;
        (first.0 < self.ack || self.blocks.get(1).is_some_and(is_within)).then_some(first)
    }

    /// True if the segment reports the arrival of this range.
    fn reports(&self, from: i64, to: i64) -> bool {
        to <= self.ack || self.blocks.iter().any(|block| block.0 <= from && to <= block.1)
    }
}

/// Returns arrivals up to a step, the last first.
fn arrivals(record: &Record, step: usize) -> impl Iterator<Item = Arrived> {
    record.steps.iter().take(step + 1).rev().filter_map(|step| Arrived::read(&step.event))
}

/// Returns the acknowledgement numbers that were sent up to a step, the last first.
fn acks_sent(record: &Record, step: usize) -> impl Iterator<Item = i64> {
    let reactions = record.steps.iter().take(step + 1).rev().flat_map(|step| step.reactions.iter().rev());
    reactions.filter_map(|reaction| if let Reaction::Sent(packet) = reaction { packet.ack } else { None })
}

/// Returns the segments that were sent up to a step.
fn sent(record: &Record, step: usize) -> impl Iterator<Item = &Packet> {
    let reactions = record.steps.iter().take(step + 1).flat_map(|step| &step.reactions);
    reactions.filter_map(|reaction| if let Reaction::Sent(packet) = reaction { Some(packet) } else { None })
}

/// Returns the number of acknowledgements up to a step that left at once when data arrived.
fn acks_of_data(record: &Record, step: usize) -> usize {
    let arrivals = record.steps.iter().take(step + 1).filter(|step| step.event.starts_with("< "));
    let answered = arrivals.filter(|step| {
        step.reactions
            .iter()
            .any(|reaction| matches!(reaction, Reaction::Sent(packet) if packet.is_pure_ack() && packet.at == step.at))
    });
    answered.count()
}

/// Returns the number of segments up to a step with data after the first `bytes`.
fn arrivals_after(record: &Record, step: usize, bytes: i64) -> usize {
    let mut data: Vec<_> = arrivals(record, step).map(|arrived| arrived.end - arrived.seq).collect();
    data.reverse();
    let mut all = 0;
    let after = data.iter().filter(|len| {
        all += **len;
        **len > 0 && all > bytes
    });
    after.count()
}

/// Returns the SACK blocks of a segment.
fn sack_blocks(packet: &Packet) -> Vec<(i64, i64)> {
    let blocks = packet.options.iter().find_map(|option| option.strip_prefix("sack ")).unwrap_or("");
    let ends = blocks.split(' ').filter_map(|block| block.split_once(':'));
    ends.filter_map(|(start, end)| Some((start.parse().ok()?, end.parse().ok()?))).collect()
}

/// Returns the ranges above a hole that a stack has reported up to a step, and their maximum number at a
/// time.
fn reported_ranges(record: &Record, step: usize) -> (Vec<(i64, i64)>, usize) {
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    let mut max = 0;
    for packet in sent(record, step) {
        let ack = packet.ack.unwrap_or(0);
        ranges.retain(|range| range.1 > ack);
        for block in sack_blocks(packet).into_iter().filter(|block| block.0 > ack) {
            let apart = |range: &(i64, i64)| range.1 < block.0 || block.1 < range.0;
            let (mut others, joined): (Vec<_>, Vec<_>) = ranges.into_iter().partition(apart);
            let start = joined.iter().map(|range| range.0).fold(block.0, i64::min);
            let end = joined.iter().map(|range| range.1).fold(block.1, i64::max);
            others.push((start, end));
            ranges = others;
        }
        max = max.max(ranges.len());
    }
    (ranges, max)
}

/// Returns the shift of the peer's windows: that of its SYN, if our stack accepted it.
fn shift(record: &Record) -> i64 {
    let syn = record.steps.iter().find(|step| step.event.starts_with("< S"));
    let shift =
        syn.and_then(|step| step.event.split_once("wscale ")?.1.split(['>', ',']).next()?.parse().ok());
    shift.unwrap_or(0)
}

/// True if an acknowledgement of more than three segments has echoed the first transmission of a segment that
/// was retransmitted.
fn has_late_original(record: &Record, step: usize) -> bool {
    (1..=step).any(|n| {
        let before = acks_before(record, n);
        let event = &record.steps[n].event;
        let sends =
            |until: usize| sent(record, until).filter(|packet| packet.len > 0 && packet.seq == before);
        let advanced = Last::at(record, n).map_or(0, |last| {
            let mut ends: Vec<i64> = sent(record, n - 1).map(|packet| packet.seq + packet.len).collect();
            ends.sort_unstable();
            ends.dedup();
            ends.iter().filter(|end| before < **end && **end <= last.ack).count()
        });
        advanced > 3 && sends(n - 1).count() > 1 && event.contains(&format!("ecr @{before}/1"))
    })
}

/// Returns the highest acknowledgement number that arrived before a step.
fn acks_before(record: &Record, step: usize) -> i64 {
    arrivals(record, step - 1).map(|arrived| arrived.ack).max().unwrap_or(1)
}

/// Returns the time and the end of the last data before a step that a timer sent.
fn last_probe(record: &Record, step: usize) -> Option<(i64, i64)> {
    record.steps.iter().take(step).rev().find_map(|step| {
        step.reactions.iter().rev().find_map(|reaction| match reaction {
            Reaction::Sent(packet) if packet.len > 0 && packet.at > step.at => {
                Some((packet.at, packet.seq + packet.len))
            }
            Reaction::Sent(_) | Reaction::Returned(_) | Reaction::Values(_) => None,
        })
    })
}
