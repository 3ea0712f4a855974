//! Names of assertions from `struct tcp_info`.

/// Name, offset and length in bytes of the fields of `struct tcp_info`.
const FIELDS: &[(&str, usize, usize)] = &[
    ("state", 0, 1),
    ("ca_state", 1, 1),
    ("retransmits", 2, 1),
    ("probes", 3, 1),
    ("backoff", 4, 1),
    ("options", 5, 1),
    ("rto", 8, 4),
    ("ato", 12, 4),
    ("snd_mss", 16, 4),
    ("rcv_mss", 20, 4),
    ("unacked", 24, 4),
    ("sacked", 28, 4),
    ("lost", 32, 4),
    ("retrans", 36, 4),
    ("fackets", 40, 4),
    ("last_data_sent", 44, 4),
    ("last_data_recv", 52, 4),
    ("last_ack_recv", 56, 4),
    ("pmtu", 60, 4),
    ("rcv_ssthresh", 64, 4),
    ("rtt", 68, 4),
    ("rttvar", 72, 4),
    ("snd_ssthresh", 76, 4),
    ("snd_cwnd", 80, 4),
    ("advmss", 84, 4),
    ("reordering", 88, 4),
    ("rcv_rtt", 92, 4),
    ("rcv_space", 96, 4),
    ("total_retrans", 100, 4),
    ("pacing_rate", 104, 8),
    ("max_pacing_rate", 112, 8),
    ("bytes_acked", 120, 8),
    ("bytes_received", 128, 8),
    ("segs_out", 136, 4),
    ("segs_in", 140, 4),
    ("notsent_bytes", 144, 4),
    ("min_rtt", 148, 4),
    ("data_segs_in", 152, 4),
    ("data_segs_out", 156, 4),
    ("delivery_rate", 160, 8),
    ("busy_time", 168, 8),
    ("rwnd_limited", 176, 8),
    ("sndbuf_limited", 184, 8),
    ("delivered", 192, 4),
    ("delivered_ce", 196, 4),
    ("bytes_sent", 200, 8),
    ("bytes_retrans", 208, 8),
    ("dsack_dups", 216, 4),
    ("reord_seen", 220, 4),
    ("rcv_ooopack", 224, 4),
    ("snd_wnd", 228, 4),
    ("rcv_wnd", 232, 4),
    ("total_rto", 240, 2),
    ("received_ce", 248, 4),
    ("delivered_e1_bytes", 252, 4),
    ("delivered_e0_bytes", 256, 4),
    ("delivered_ce_bytes", 260, 4),
    ("received_e1_bytes", 264, 4),
    ("received_e0_bytes", 268, 4),
    ("received_ce_bytes", 272, 4),
];

/// Returns the value of a field; `None` if there is no field of this name.
pub(super) fn value(field: &str, info: &[u8]) -> Option<i128> {
    let (_, at, len) = FIELDS.iter().find(|(known, _, _)| *known == field)?;
    let bytes = info.get(*at..at + len)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | i128::from(*byte)))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsFd;

    use brisk_packet_io::sockopt;

    use super::*;

    /// Size of the structure in Linux 6.18, bytes.
    const LEN: usize = 280;

    #[test]
    fn fields_have_the_offsets_of_linux() {
        let mut info = vec![0; LEN];
        info[0] = 1;
        info[80..84].copy_from_slice(&10u32.to_ne_bytes());
        info[168..176].copy_from_slice(&(1u64 << 40).to_ne_bytes());
        assert_eq!(value("state", &info), Some(1));
        assert_eq!(value("snd_cwnd", &info), Some(10));
        assert_eq!(value("busy_time", &info), Some(1 << 40));
        info[272] = 7;
        assert_eq!(value("received_ce_bytes", &info), Some(7));
        assert_eq!(value("nothing", &info), None);
        assert_eq!(value("total_rto", &info[..200]), None, "an older kernel");
    }

    #[test]
    fn fields_follow_each_other_up_to_the_bit_fields_at_the_end() {
        // Fields without a name for scripts: the scales and the bits after them, last_ack_sent, rehash,
        // total_rto_recoveries and total_rto_time.
        let unnamed = [(6, 2), (48, 4), (236, 4), (242, 6)];
        let mut end = 0;
        for (name, at, len) in FIELDS {
            end += unnamed.iter().find(|(start, _)| *start == end).map_or(0, |(_, len)| *len);
            assert_eq!(end, *at, "{name}");
            end += len;
        }
        assert_eq!(end + 4, LEN, "with the bit fields of AccECN");
    }

    #[test]
    fn structure_has_the_length_of_linux_6_18() {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        if !release.starts_with("6.18.") {
            return println!("skipped: this is Linux {release}");
        }
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let info = sockopt::get(socket.as_fd(), libc::SOL_TCP, libc::TCP_INFO, 2 * LEN).unwrap();
        assert_eq!(info.len(), LEN);
    }
}
