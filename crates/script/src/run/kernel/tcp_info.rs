//! The names of assertions, from the kernel's TCP_INFO.

use std::os::fd::BorrowedFd;

use brisk_packet_io::sockopt;

use crate::run::info::constant;

/// Where the fields of `struct tcp_info` are, and how many bytes they have.
const FIELDS: &[(&str, usize, usize)] = &[
    ("state", 0, 1),
    ("ca_state", 1, 1),
    ("retransmits", 2, 1),
    ("probes", 3, 1),
    ("backoff", 4, 1),
    ("options", 5, 1),
    ("rto", 8, 4),
    ("snd_mss", 16, 4),
    ("rcv_mss", 20, 4),
    ("unacked", 24, 4),
    ("sacked", 28, 4),
    ("lost", 32, 4),
    ("retrans", 36, 4),
    ("rtt", 68, 4),
    ("rttvar", 72, 4),
    ("snd_ssthresh", 76, 4),
    ("snd_cwnd", 80, 4),
    ("advmss", 84, 4),
    ("reordering", 88, 4),
    ("total_retrans", 100, 4),
    ("bytes_acked", 120, 8),
    ("bytes_received", 128, 8),
    ("segs_out", 136, 4),
    ("segs_in", 140, 4),
    ("notsent_bytes", 144, 4),
    ("min_rtt", 148, 4),
    ("busy_time", 168, 8),
    ("rwnd_limited", 176, 8),
    ("sndbuf_limited", 184, 8),
    ("delivered", 192, 4),
    ("bytes_retrans", 208, 8),
    ("dsack_dups", 216, 4),
    ("reord_seen", 220, 4),
    ("rcv_ooopack", 224, 4),
    ("snd_wnd", 228, 4),
    ("rcv_wnd", 232, 4),
    ("total_rto", 240, 2),
];

/// Fields that are measured.
const REAL_TIMES: &[&str] = &["rtt", "min_rtt"];

/// The value of a name; `None` for what only our stack has.
pub(super) fn value(name: &str, socket: BorrowedFd<'_>) -> Option<i128> {
    // To its program the kernel says of a socket in TIME-WAIT that it is closed.
    if name == "TCP_TIME_WAIT" {
        return constant("TCP_CLOSE");
    }
    if let Some(constant) = constant(name) {
        return Some(constant);
    }
    let field = name.strip_prefix("tcpi_")?;
    let (_, at, len) = FIELDS.iter().find(|(known, _, _)| *known == field)?;
    let info = sockopt::get(socket, libc::SOL_TCP, libc::TCP_INFO, 512).ok()?;
    let bytes = info.get(*at..at + len)?;
    let number = bytes.iter().rev().fold(0, |number, byte| number << 8 | i128::from(*byte));
    // Real time is not exact: to the millisecond, as scripts have it.
    Some(if REAL_TIMES.contains(&field) { (number + 500) / 1000 * 1000 } else { number })
}
