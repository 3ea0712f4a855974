//! Names in assertions other than Linux's `tcpi_…`: the constants with which scripts compare, and the stack's
//! own counters as `brisk_…` and `stack_…`.

use brisk_tcp::connection::{ConnStats, ParityCounters};
use brisk_tcp::mechanism::{Agreed, CopiesOff, GentleOff, GentleOutcome, ParityOff};
use brisk_tcp::stack::{FastOpenStats, Refusal, StackStats};

/// Linux's infinite slow-start threshold.
const INFINITE_SSTHRESH: i128 = 0x7fff_ffff;

pub(super) fn constant(name: &str) -> Option<i128> {
    let states = [
        "ESTABLISHED",
        "SYN_SENT",
        "SYN_RECV",
        "FIN_WAIT1",
        "FIN_WAIT2",
        "TIME_WAIT",
        "CLOSE",
        "CLOSE_WAIT",
        "LAST_ACK",
        "LISTEN",
        "CLOSING",
    ];
    let number =
        |names: &[&str], name: &str| names.iter().position(|known| *known == name).map(|at| at as i128);
    if let Some(state) = name.strip_prefix("TCP_CA_") {
        return number(&["Open", "Disorder", "CWR", "Recovery", "Loss"], state);
    }
    if let Some(state) = name.strip_prefix("TCP_") {
        return number(&states, state).map(|at| at + 1);
    }
    (name == "TCP_INFINITE_SSTHRESH").then_some(INFINITE_SSTHRESH)
}

/// Returns the value of a counter that only brisk's stack has.
pub(super) fn own_value(field: &str, stats: &ConnStats) -> Option<i128> {
    if let Some(outcome) = field.strip_prefix("fast_open_") {
        return Some(i128::from(stats.fast_open.name().replace(['-', '('], "_").replace(')', "") == outcome));
    }
    if let Some(field) = field.strip_prefix("parity_") {
        return parity_value(field, &stats.counters.parity);
    }
    let counters = &stats.counters;
    Some(i128::from(match field {
        "corrective" => u64::from(agreed(stats).is_some_and(|agreed| agreed.corrective())),
        "proactive" => u64::from(agreed(stats).is_some_and(|agreed| agreed.proactive)),
        "reordering_seen" => u64::from(stats.reordering_seen),
        // The SYN did not carry the option because of the stored result for the destination.
        "gentle_remembered" => {
            u64::from(matches!(stats.gentle, GentleOutcome::Off(GentleOff::Remembered | GentleOff::OnTrial)))
        }
        "masked_losses" => counters.masked_losses,
        "segments_lost" => counters.segments_lost,
        "gentle_dropped" => counters.gentle_dropped,
        "gentle_spoofed" => counters.gentle_spoofed,
        "cwnd" => u64::from(stats.cwnd),
        "ssthresh" => u64::from(stats.ssthresh),
        "pipe" => u64::from(stats.pipe),
        "in_flight" => u64::from(stats.pipe.div_ceil(stats.mss.max(1))),
        "retransmits" => counters.retransmits,
        "timeouts" => counters.timeouts,
        "probes" => counters.probes,
        "recoveries" => counters.recoveries,
        "reductions" => counters.reductions,
        "undos" => counters.undos,
        "repaired_by_probe" => counters.repaired_by_probe,
        "repaired_by_parity" => counters.repaired_by_parity,
        "repaired_by_copy" => counters.repaired_by_copy,
        "redundant_bytes" => counters.redundant_bytes,
        "copies_sent" => counters.copies_sent,
        "copies_used" => counters.copies_used,
        "copies_dropped" => counters.copies_dropped,
        "originals_dropped" => counters.originals_dropped,
        "copies_off_mark" => u64::from(stats.copies_off == Some(CopiesOff::MarkLost)),
        "copies_off_brake" => u64::from(stats.copies_off == Some(CopiesOff::Brake)),
        "dsacks" => counters.dsacks,
        "out_of_order" => counters.out_of_order,
        "paws" => counters.paws,
        "challenge_acks" => counters.challenge_acks,
        _ => return None,
    }))
}

/// Returns the negotiated state of Corrective and Proactive, while the connection uses it.
fn agreed(stats: &ConnStats) -> Option<Agreed> {
    match stats.gentle {
        GentleOutcome::On(agreed) => Some(agreed),
        GentleOutcome::Off(_) | GentleOutcome::Pending => None,
    }
}

fn parity_value(field: &str, counters: &ParityCounters) -> Option<i128> {
    Some(i128::from(match field {
        "sent" => counters.sent,
        "sent_bytes" => counters.sent_bytes,
        "unsent_delivered" => counters.unsent_delivered,
        "unsent_state" => counters.unsent_state,
        "unsent_queue" => counters.unsent_queue,
        "repairs_reported" => counters.repairs_reported,
        "failures_reported" => counters.failures_reported,
        "late_originals" => counters.late_originals,
        "ack_holes" => counters.ack_holes,
        "received" => counters.received,
        "needless" => counters.needless,
        "dropped" => counters.dropped,
        "repaired_bytes" => counters.repaired_bytes,
        "failed_too_much" => counters.failed_too_much,
        "failed_history" => counters.failed_history,
        "failed_checksum" => counters.failed_checksum,
        "tx_off" => u64::from(counters.tx_off.is_some()),
        "tx_stripped" => u64::from(counters.tx_off == Some(ParityOff::Stripped)),
        "tx_stopped" => u64::from(counters.tx_off == Some(ParityOff::Stop)),
        "rx_off" => u64::from(counters.rx_off.is_some()),
        _ => return None,
    }))
}

pub(super) fn stack_value(field: &str, stats: &StackStats) -> Option<i128> {
    if let Some(counter) = field.strip_prefix("fast_open_") {
        return fast_open_value(counter, &stats.fast_open);
    }
    if let Some(name) = field.strip_prefix("refused_") {
        return Refusal::ALL
            .into_iter()
            .find(|known| known.name() == name)
            .map(|known| stats.refused(known).into());
    }
    Some(i128::from(match field {
        "resets_sent" => stats.resets_sent,
        "syn_cookies_accepted" => stats.syn_cookies_accepted,
        "time_waits_reused" => stats.time_waits_reused,
        "gentle_syn_drop" => stats.gentle_syn_drop,
        "gentle_withheld" => stats.gentle_withheld,
        _ => return None,
    }))
}

fn fast_open_value(field: &str, stats: &FastOpenStats) -> Option<i128> {
    Some(i128::from(match field {
        "accepted" => stats.accepted,
        "partial" => stats.partial,
        "granted" => stats.granted,
        "soft_reject" => stats.soft_reject,
        "syn_drop" => stats.syn_drop,
        "disabled" => stats.disabled,
        "black_holes" => stats.black_holes,
        "served" => stats.served,
        "served_backup_key" => stats.served_backup_key,
        "requests" => stats.requests,
        "cookie_invalid" => stats.cookie_invalid,
        "overflow" => stats.overflow,
        "per_ip_refused" => stats.per_ip_refused,
        "rst_penalties" => stats.rst_penalties,
        "replay_blocked" => stats.replay_blocked,
        "one_time_reuse" => stats.one_time_reuse,
        _ => return None,
    }))
}
