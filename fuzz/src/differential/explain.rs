//! The deliberate differences, each with a matcher as narrow as its reason.

use super::compare::{Difference, What};
use super::record::{Deed, Packet, Record};

mod parting;
mod window;

use parting::PARTINGS;
use window::value;

/// Why a difference needs no correction.
#[derive(Clone, Copy)]
pub struct Explanation {
    /// A short name, for the summary.
    pub name: &'static str,
    /// The behaviour of both, with the RFC or the part of Linux that specifies it.
    pub reason: &'static str,
    /// True if it explains this difference of these records, ours first.
    pub matches: fn(&Difference, &Record, &Record) -> bool,
}

/// The list.
const EXPLANATIONS: &[Explanation] = &[
    Explanation {
        name: "push in the middle of what was written",
        reason: "Linux sets PSH where a buffer of its queue ends (051ba67447de), which depends on how calls and ACKs cut the \
                 queue; RFC 9293 section 3.9.1.2 asks for it at the end of what was written without MSG_MORE, where both set it",
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
        reason: "Linux keeps the number of duplicate acknowledgements in tcpi_sacked and tcpi_delivered where SACK was not \
                 agreed on; ours counts segments that a SACK option or an acknowledgement reports",
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
        reason: "Linux stays in recovery until more than the recovery point is acknowledged where SACK was not agreed on; RFC 6582 \
                 section 3.2 step 3 ends it with a full acknowledgement, and step 2 keeps duplicates of old data from another. Linux stays \
                 there also when it has taken a timeout back (tcp_try_undo_loss)",
        matches: window::is_held_at_point,
    },
    Explanation {
        name: "CWR held at its point",
        reason: "Linux stays in CWR until more is acknowledged than was sent when it began, and lowers the window further; RFC 3168 \
                 section 6.1.2 reduces it once for a window of data, as ours, which ends the reduction when that is acknowledged",
        matches: window::is_held_in_cwr,
    },
    Explanation {
        name: "reduction in proportion to what was in flight",
        reason: "Linux's PRR divides by the window before the reduction; RFC 9937 section 6 by RecoverFS, what was in flight then, \
                 as ours: less in flight than the window makes our share larger, and more makes it smaller",
        matches: window::is_from_flight,
    },
    Explanation {
        name: "window in bytes or in segments",
        reason: "Linux counts a segment that is not full as a segment of its window, ours its bytes (RFC 3465): a window differs by \
                 no more than the number of such segments",
        matches: window::is_in_segments,
    },
    Explanation {
        name: "more duplicates than segments without SACK",
        reason: "Linux lets a segment go for each duplicate acknowledgement as long as fewer than all outstanding ones are counted, \
                 those that went for duplicates included; ours counts no more than were outstanding at the first duplicate (RFC \
                 5681 section 3.2 step 4)",
        matches: window::is_beyond_outstanding,
    },
    Explanation {
        name: "growth at the end of a recovery",
        reason: "Linux grows the window with the acknowledgement that ends a recovery as well, and counts CUBIC's curve in whole segments; \
                 RFC 5681 section 3.2 step 6 sets it to ssthresh, and RFC 9438 section 4.2 loses no remainder, as ours: in congestion \
                 avoidance Linux is a segment ahead, with CUBIC either",
        matches: window::is_grown_at_end,
    },
    Explanation {
        name: "growth by duplicates",
        reason: "Linux counts a reported duplicate as delivered, and grows the window by it; RFC 5681 section 3.1 counts what was not \
                 acknowledged before, as ours",
        matches: window::is_grown_by_duplicate,
    },
    Explanation {
        name: "window that differed before",
        reason: "Where the windows of Linux and ours differ for one of the reasons above they go on to, at most one segment farther \
                 apart, until the next reduction",
        matches: window::is_carried,
    },
    Explanation {
        name: "growth to twice of what is used",
        reason: "Linux does not grow a window in slow start of which no more than half is used, as ours: where its window was larger for \
                 one of the reasons above it stops sooner",
        matches: window::is_grown_from_smaller,
    },
    Explanation {
        name: "window restored to one that differed before",
        reason: "Where the windows of Linux and ours differed for one of the reasons above, a recovery that is taken back restores either",
        matches: window::is_restored,
    },
    Explanation {
        name: "threshold from a window that differed before",
        reason: "Where the windows of Linux and ours differ for one of the reasons above, each reduces its own (RFC 5681 equation 4, \
                 RFC 9438 section 4.6)",
        matches: window::is_reduced_from_window,
    },
    Explanation {
        name: "loss before an undone recovery",
        reason: "Linux takes what it declares lost from the list that RACK looks at, and does not put it back when the recovery turns \
                 out to have been a mistake: only a timeout repairs it; RFC 8985 section 6.2 step 5 looks at every segment that is not \
                 acknowledged, as ours",
        matches: window::is_lost_after_undo,
    },
    Explanation {
        name: "variance of the round-trip time",
        reason: "Linux keeps the largest deviation of a round trip, and lowers it once in a round trip; RFC 6298 section 2.3 smooths it \
                 with each sample (a MUST), as ours: the timeouts differ in K*RTTVAR where that is above its least value",
        matches: |difference, ours, kernel| {
            let at = |record: &Record, name| value(record, difference.step, name);
            let variance = |record| {
                let (rtt, backoff) = (at(record, "rtt")?, at(record, "backoff")?);
                Some((at(record, "rto")? >> backoff) - rtt)
            };
            let Some((ours_part, other)) = variance(ours).zip(variance(kernel)) else { return false };
            // It decays from its earlier value.
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
        reason: "Where the thresholds of Linux and ours differ for one of the reasons above, a recovery ends with a window of either",
        matches: window::is_at_threshold,
    },
    Explanation {
        name: "segment twice in flight",
        reason: "Linux counts a segment that was sent again twice when its loss is taken back, as RFC 6675 section 4 (SetPipe) does; \
                 ours counts the bytes of the stream, each once: the window that PRR sets is smaller by these segments",
        matches: window::is_twice_in_flight,
    },
    Explanation {
        name: "flight in bytes or in segments",
        reason: "Linux counts a segment that is not full against its window as a full one, ours its bytes (RFC 5681 section 2, \
                 FlightSize): ours sends on where Linux's window is full of small segments",
        matches: window::is_full_in_segments,
    },
    Explanation {
        name: "answer to a repair that Linux's timer sent late",
        reason: "Linux's reordering timer is late by up to 14 ms, and the script's answer then comes within the least round-trip time: \
                 RACK takes it for the original's (RFC 8985 section 6.2 step 2)",
        matches: window::is_answered_too_soon,
    },
    Explanation {
        name: "window that the application does not use",
        reason: "Linux halves the distance from the window to what was used of it once a retransmission timeout has passed without it \
                 being the limit (RFC 2861 section 3.2); RFC 7661, which obsoletes that, keeps it for five minutes, as ours",
        matches: window::is_unused,
    },
    Explanation {
        name: "restart behind a closed window",
        reason: "Linux lowers the window after an idle time when the program writes, also where the peer's window lets nothing go; ours \
                 before it sends (RFC 5681 section 4.1: before transmission begins)",
        matches: window::is_restarted_behind_closed_window,
    },
    Explanation {
        name: "end of the first slow start",
        reason: "Linux leaves CUBIC's first slow start by the first HyStart (trains of acknowledgements, one threshold of delay) at once; \
                 RFC 9406 (HyStart++) section 4.2 goes through rounds of conservative slow start, as ours",
        matches: window::is_left_by_delay,
    },
    Explanation {
        name: "three reports after an undone recovery",
        reason: "Linux takes three reports above a hole for a loss unless it has counted reordering, which a recovery that a DSACK takes \
                 back does not; for ours that is reordering too (RFC 8985 section 6.2 step 4 waits then)",
        matches: window::is_patient_after_undo,
    },
    Explanation {
        name: "duplicate right after the handshake",
        reason: "Linux takes the first acknowledgement after a SYN-ACK for a window update, because its sequence number is newer than \
                 the SYN-ACK's, and not for a duplicate; RFC 5681 section 2 compares the windows, as ours",
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
        reason: "Linux takes more duplicate acknowledgements than segments can have caused for reordering where SACK was not agreed \
                 on, and sets its threshold of duplicates to what is outstanding; RFC 5681 section 3.2 has three, as ours",
        matches: |difference, ours, kernel| {
            let outstanding = |step| value(kernel, step, "unacked").unwrap_or(0);
            let most = outstanding(difference.step).max(outstanding(difference.step.saturating_sub(1)));
            let before = (0..difference.step).rev().find_map(|step| value(kernel, step, "unacked"));
            (is_value(difference, "reordering") && difference.values.1 <= most.max(before.unwrap_or(0))
                || is_value(difference, "reord_seen") && difference.values.0 < difference.values.1)
                && !has_option(ours, difference.step, SACK)
        },
    },
    Explanation {
        name: "threshold of duplicates without SACK",
        reason: "Where Linux has changed its threshold of duplicates for the reason above, it sends the first segment again after \
                 another number of them than three (RFC 5681 section 3.2)",
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
        reason: "Where the windows of Linux and ours differ for one of the reasons above, the larger lets more data go",
        matches: window::is_let_go,
    },
    Explanation {
        name: "acknowledgement of the unsent after close",
        reason: "Linux keeps of a closed connection in FIN-WAIT-2 only what TIME-WAIT keeps, and says nothing to an acknowledgement \
                 of what was never sent; RFC 9293 section 3.10.7.4 acknowledges it, as ours",
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
        reason: "Linux counts the sequence number of a FIN that waits in tcpi_notsent_bytes; ours counts bytes",
        matches: |difference, ours, _| {
            is_value(difference, "notsent_bytes")
                && difference.values.0 + 1 == difference.values.1
                && ours.steps.iter().take(difference.step).any(|step| step.event == "shutdown")
        },
    },
    Explanation {
        name: "window of bytes or of memory",
        reason: "Linux counts the memory of packets against its buffer and widens the window with each full segment, ours \
                 counts bytes (docs/conformance.md): open windows differ by less than a factor of two",
        matches: |difference, _, _| {
            let (Some(sent), Some(other)) = &difference.packets else { return false };
            let (low, high) = (sent.win.min(other.win), sent.win.max(other.win));
            difference.what == What::Field("window") && low > 0 && high < 2 * low
        },
    },
    Explanation {
        name: "second segment while the window does not advance",
        reason: "Linux leaves the acknowledgement of a second full segment to the program's next read if the window would not \
                 advance; RFC 5681 section 4.2 asks for one for every second segment, as ours",
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
        reason: "Linux fills the last bytes of the peer's window with a part of a segment while others are outstanding; RFC \
                 9293 section 3.8.6.2.1 (silly window syndrome) waits for a full segment of window, as ours",
        matches: |difference, ours, _| {
            let (None, Some(other)) = &difference.packets else { return false };
            let edge = Last::up_to(ours, difference.step).map(|last| last.edge(ours));
            difference.what == What::Missing && other.len > 0 && edge == Some(other.seq + other.len)
        },
    },
    Explanation {
        name: "probe without a round trip since the last probe",
        reason: "RFC 8985 section 7.3: no tail loss probe before a round trip has been measured after the last one, as ours; \
                 Linux probes again as soon as the last probe is acknowledged",
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
        reason: "Linux believes a smaller window only from a segment that acknowledges or brings something; RFC 9293 section \
                 3.10.7.4 takes SND.WND from every segment whose SEG.ACK is at least SND.WL2, as ours",
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
        reason: "Linux leaves one more acknowledgement undelayed whenever it widens the window (tcp_grow_window), which it does \
                 with some 32 KB of data; our windows count bytes and need no growing, and RFC 5681 section 4.2 allows the delay",
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
        reason: "Linux takes data above a hole, with SACK, for the first acknowledgement of quick mode and for its last one \
                 (tcp_grow_window); in ours the first data in order begins it, as a sender in slow start needs (RFC 5681 section 4.2 \
                 allows both)",
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
        reason: "Linux counts the time without data that restarts quick mode, its retransmission timeout, in ticks of 4 ms, ours in \
                 microseconds: a pause that is as long as the timeout restarts it in ours alone",
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
        reason: "Linux remembers four SACK blocks and reports a segment that joins a fifth without it; RFC 2018 section 4 asks for \
                 the whole contiguous block that contains the segment, as ours",
        matches: |difference, ours, _| {
            let (Some(sent), Some(other)) = &difference.packets else { return false };
            let (held, most) = told_ranges(ours, difference.step);
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
                && most > 4
                && others != blocks
                && ours_is_true
                && kernel_is_in_part
        },
    },
    Explanation {
        name: "probe of the window after other segments",
        reason: "Linux restarts the timer of zero-window probes with segments that arrive outside of its fast path; RFC 9293 \
                 section 3.8.6.1 sends the first when the window has been shut for the retransmission timeout, as ours",
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
            let last =
                ours.steps.iter().take(difference.step + 1).rev().flat_map(|step| step.deeds.iter().rev());
            let next = last.filter_map(|deed| match deed {
                Deed::Sent(packet) if packet.at < sent.at => Some(packet.seq + packet.len),
                Deed::Sent(_) | Deed::Returned(_) | Deed::Values(_) => None,
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
        reason: "Linux's fast path does not look at the acknowledgement number of data if it repeats the last one, and counts the probe \
                 of the window as unanswered; for ours any segment of the peer with that number is an answer (RFC 9293 section \
                 3.8.6.1)",
        matches: |difference, ours, _| {
            is_value(difference, "probes")
                && difference.values.0 == 0
                && arrivals(ours, difference.step).next().is_some_and(|last| last.end > last.seq)
        },
    },
    Explanation {
        name: "time stamp of an old acknowledgement",
        reason: "Linux ignores an acknowledgement from before the last one, and its time stamp; RFC 7323 section 4.3 keeps the time stamp \
                 of every acceptable segment that is not behind the last acknowledgement sent, as ours",
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
        reason: "Linux sets ECE in a reset too while it echoes a mark; RFC 3168 section 6.1.3 asks for it in acknowledgements, and \
                 nothing is sent more slowly after a reset",
        matches: |difference, _, _| {
            let (Some(sent), Some(other)) = &difference.packets else { return false };
            difference.what == What::Field("flags")
                && sent.has('R')
                && other.flags.replace('E', "") == sent.flags
        },
    },
    Explanation {
        name: "acknowledgement at the edge of a window that shrank",
        reason: "Linux numbers an acknowledgement with the right edge of the peer's window where that has shrunk below SND.NXT; RFC \
                 9293 section 3.10.7.4 has <SEQ=SND.NXT>, as ours",
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
        reason: "Linux counts a segment as delivered, and measures its round trip, when all of it is acknowledged; ours also with \
                 a part of it, which has arrived as well (RFC 6298 section 3 asks for a sample whatever it acknowledges)",
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
        reason: "Linux's timers are late by up to 45 ms, and what they send has as much shorter a round trip to the script's answer",
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
        reason: "Linux counts a reported duplicate before it looks whether it can have been sent; ours ignores a block that ends \
                 behind SND.NXT, or begins more than a window before SND.UNA",
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
        reason: "Linux counts a reported duplicate as delivered, whatever it reports, while fewer have been reported than were sent \
                 again; ours counts those of segments that it has sent twice",
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
        reason: "Linux takes a duplicate above a hole for reordering if the same acknowledgement reports the segment; for ours one that \
                 was sent twice says nothing (RFC 8985 section 6.2 step 3)",
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
        reason: "Linux sends repairs before it takes the data of the segment that asks for them, so that they acknowledge less, \
                 and have room for more where SACK does not report it yet; ours takes the data first",
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
        reason: "Linux's timer of zero-window probes is late by up to 45 ms, as that of retransmissions",
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
        reason: "Linux sends again from where a part was acknowledged, or a window cut a segment, in full segments; ours keeps the ends of \
                 the segments that it has sent, which RFC 9293 section 3.8.6 leaves open",
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
        reason: "Linux joins small neighbours when it sends them again, and counts one segment from then on; ours sends them as one and \
                 keeps count of what it has sent first",
        matches: |difference, ours, kernel| {
            let fields = ["unacked", "lost", "retrans"];
            let repairs: Vec<&Packet> =
                sent(kernel, difference.step).filter(|packet| packet.len > 0).collect();
            let open = window::outstanding(ours, difference.step);
            let is_inside =
                |from: i64| repairs.iter().any(|sent| sent.seq < from && from < sent.seq + sent.len);
            let joined = open.iter().filter(|(from, _)| is_inside(*from)).count() as i64;
            if let (Some(sent), Some(other)) = &difference.packets {
                // The kernel's ends where one of ours ends that was sent first, or with the FIN.
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
        reason: "Linux cuts the first segment at the edge of a window that shrank below a segment; ours sends it again whole (RFC 9293 \
                 section 3.8.6, MAY-7)",
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
        reason: "Linux cuts what it sends again from a packet of several segments by the size that a segment has now; SACK blocks that come \
                 or go have changed it; ours sends the segment as it was",
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
        reason: "Linux counts segments that are not full as full ones when it asks whether the window is used (RFC 7661 section 4.2 \
                 leaves it open); ours counts bytes, and does not grow a window of which less than half is used",
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

/// Acknowledgements of quick mode.
const QUICK: usize = 16;

/// Bytes of data within which Linux widens a window from the first one it offers to all of the buffer, which is twice as much.
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
        end += call.deeds.iter().map(written).sum::<i64>();
        // Scripts send with MSG_MORE.
        if call.event == "write" {
            ends.push(end);
        }
    }
    (ends, end)
}

/// Returns the bytes that a call has written.
fn written(deed: &Deed) -> i64 {
    match deed {
        Deed::Returned(value) => value.parse::<i64>().unwrap_or(0).max(0),
        Deed::Sent(_) | Deed::Values(_) => 0,
    }
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

/// A segment that arrived, with what its SACK option reports.
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

    /// Returns the last one up to a step.
    fn up_to(record: &Record, step: usize) -> Option<Last> {
        (0..=step).rev().find_map(|step| Last::at(record, step))
    }

    /// Returns the right edge of the offered window; that of a SYN is not scaled.
    fn edge(&self, record: &Record) -> i64 {
        self.ack + if self.seq == 0 { self.window } else { self.window << shift(record) }
    }

    /// Returns the duplicate that it reports (RFC 2883 section 4).
    fn dsack(&self) -> Option<(i64, i64)> {
        let first = *self.blocks.first()?;
        let is_within = |outer: &(i64, i64)| outer.0 <= first.0 && first.1 <= outer.1;
        (first.0 < self.ack || self.blocks.get(1).is_some_and(is_within)).then_some(first)
    }

    /// True if it reports the arrival of this range.
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
    let deeds = record.steps.iter().take(step + 1).rev().flat_map(|step| step.deeds.iter().rev());
    deeds.filter_map(|deed| if let Deed::Sent(packet) = deed { packet.ack } else { None })
}

/// Returns the segments that were sent up to a step.
fn sent(record: &Record, step: usize) -> impl Iterator<Item = &Packet> {
    let deeds = record.steps.iter().take(step + 1).flat_map(|step| &step.deeds);
    deeds.filter_map(|deed| if let Deed::Sent(packet) = deed { Some(packet) } else { None })
}

/// Returns the number of acknowledgements up to a step that left at once when data arrived.
fn acks_of_data(record: &Record, step: usize) -> usize {
    let arrivals = record.steps.iter().take(step + 1).filter(|step| step.event.starts_with("< "));
    let answered = arrivals.filter(|step| {
        step.deeds
            .iter()
            .any(|deed| matches!(deed, Deed::Sent(packet) if packet.is_pure_ack() && packet.at == step.at))
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
fn told_ranges(record: &Record, step: usize) -> (Vec<(i64, i64)>, usize) {
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    let mut most = 0;
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
        most = most.max(ranges.len());
    }
    (ranges, most)
}

/// Returns the shift of the peer's windows: that of its SYN, if our stack accepted it.
fn shift(record: &Record) -> i64 {
    let syn = record.steps.iter().find(|step| step.event.starts_with("< S"));
    let shift =
        syn.and_then(|step| step.event.split_once("wscale ")?.1.split(['>', ',']).next()?.parse().ok());
    shift.unwrap_or(0)
}

/// True if an acknowledgement of more than three segments has echoed the first transmission of a segment that had been sent again.
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

/// Returns the time and the end of the last data before a step that no event triggered.
fn last_probe(record: &Record, step: usize) -> Option<(i64, i64)> {
    record.steps.iter().take(step).rev().find_map(|step| {
        step.deeds.iter().rev().find_map(|deed| match deed {
            Deed::Sent(packet) if packet.len > 0 && packet.at > step.at => {
                Some((packet.at, packet.seq + packet.len))
            }
            Deed::Sent(_) | Deed::Returned(_) | Deed::Values(_) => None,
        })
    })
}
