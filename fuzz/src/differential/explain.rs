//! The differences that are deliberate, each with a matcher as narrow as its reason.

use super::compare::{Difference, What};
use super::record::{Deed, Packet, Record};

mod window;

/// Why a difference is none that needs mending.
#[derive(Clone, Copy)]
pub struct Explanation {
    /// A short name, for the summary.
    pub name: &'static str,
    /// The behaviour of either, and the RFC or part of Linux that says so.
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
        name: "duplicates count as delivered without SACK",
        reason: "Linux keeps the number of duplicate acknowledgements in tcpi_sacked and tcpi_delivered where SACK was not \
                 agreed on; ours counts segments that a SACK option or an acknowledgement reports",
        matches: |difference, ours, _| {
            (is_value(difference, "sacked") || is_value(difference, "delivered"))
                && !has_option(ours, difference.step, SACK)
                && difference.values.0 < difference.values.1
        },
    },
    Explanation {
        name: "recovery without SACK ends at its point",
        reason: "Linux stays in recovery until more than the recovery point is acknowledged where SACK was not agreed on; RFC 6582 \
                 section 3.2 step 3 ends it with a full acknowledgement, and step 2 keeps duplicates of old data from another",
        matches: window::is_held_at_point,
    },
    Explanation {
        name: "reduction in proportion to what was in flight",
        reason: "Linux's PRR divides by the window before the reduction; RFC 9937 section 6 by RecoverFS, what was in flight then, \
                 as ours: less in flight than the window makes our share larger",
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
        name: "data of a larger window",
        reason: "Where the window of Linux and ours differ for one of the four reasons above, the larger lets more data go",
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
        name: "repeated data above a hole",
        reason: "Linux counts a segment above a hole in tcpi_rcv_ooopack also where its data is there already; ours counts it \
                 as a duplicate",
        matches: |difference, ours, _| {
            let arrived: Vec<Arrived> = arrivals(ours, difference.step).collect();
            let repeats = arrived.iter().enumerate().filter(|(n, last)| {
                last.end > last.seq
                    && arrived[n + 1..].iter().any(|other| other.seq <= last.seq && last.end <= other.end)
            });
            let more = difference.values.1 - difference.values.0;
            is_value(difference, "rcv_ooopack") && more > 0 && more <= repeats.count() as i64
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
            let edge =
                arrivals(ours, difference.step).next().map(|last| last.ack + (last.window << shift(ours)));
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
                    let numbers = |arrived: Option<Arrived>| arrived.map(|it| (it.seq, it.ack));
                    numbers(arrivals.next()) == numbers(arrivals.next())
                }
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
            // The segment whose stamp Linux echoes.
            let echoed = other.options.iter().find_map(|option| option.strip_prefix("TS ecr "));
            let stale = (0..=difference.step).find_map(|n| {
                let arrived = arrivals(ours, n).next().filter(|arrived| Some(arrived.stamp) == echoed)?;
                Some(n > 0 && acks_sent(ours, n - 1).next() == Some(arrived.end))
            });
            difference.what == What::Field("options")
                && without(sent) == without(other)
                && stale == Some(true)
        },
    },
];

/// Bits of `tcpi_options`.
const TIMESTAMPS: i64 = 1;
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

/// A segment that arrived, as the script has it.
#[derive(Clone, Copy)]
struct Arrived<'a> {
    seq: i64,
    end: i64,
    ack: i64,
    window: i64,
    /// TSval; empty without a time stamp.
    stamp: &'a str,
}

impl<'a> Arrived<'a> {
    /// `< P. 1:11(10) ack 1 win 1024 <nop,nop,TS val 7 ecr 8>`
    fn read(event: &'a str) -> Option<Arrived<'a>> {
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
            stamp: after("TS val ").unwrap_or(""),
        })
    }
}

/// Arrivals up to a step, the last first.
fn arrivals(record: &Record, step: usize) -> impl Iterator<Item = Arrived<'_>> {
    record.steps.iter().take(step + 1).rev().filter_map(|step| Arrived::read(&step.event))
}

/// The acknowledgement numbers that were sent up to a step, the last first.
fn acks_sent(record: &Record, step: usize) -> impl Iterator<Item = i64> {
    let deeds = record.steps.iter().take(step + 1).rev().flat_map(|step| step.deeds.iter().rev());
    deeds.filter_map(|deed| if let Deed::Sent(packet) = deed { packet.ack } else { None })
}

/// The shift of the peer's windows: that of its SYN, if ours agreed to it.
fn shift(record: &Record) -> i64 {
    let syn = record.steps.iter().find(|step| step.event.starts_with("< S"));
    let shift =
        syn.and_then(|step| step.event.split_once("wscale ")?.1.split(['>', ',']).next()?.parse().ok());
    shift.unwrap_or(0)
}

/// When the last data left that no event called for before a step, and where it ended.
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
