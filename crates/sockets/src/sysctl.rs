//! The settings of the network namespace, as files below `/proc/sys/net/ipv4`.
//!
//! Scripts set them by commands; the files show those of the process's own namespace. If a file is missing or
//! cannot be read, the stack's default applies.

use std::path::Path;

use crate::settings::Settings;

const NAMES: &[&str] = &[
    "ip_default_ttl",
    "tcp_base_mss",
    "tcp_congestion_control",
    "tcp_early_retrans",
    "tcp_ecn",
    "tcp_fastopen",
    "tcp_fastopen_blackhole_timeout_sec",
    "tcp_fastopen_key",
    "tcp_fin_timeout",
    "tcp_invalid_ratelimit",
    "tcp_keepalive_intvl",
    "tcp_keepalive_probes",
    "tcp_keepalive_time",
    "tcp_mtu_probing",
    "tcp_notsent_lowat",
    "tcp_orphan_retries",
    "tcp_recovery",
    "tcp_reordering",
    "tcp_retries2",
    "tcp_rfc1337",
    "tcp_rmem",
    "tcp_rto_max_ms",
    "tcp_rto_min_us",
    "tcp_sack",
    "tcp_shrink_window",
    "tcp_slow_start_after_idle",
    "tcp_syn_linear_timeouts",
    "tcp_syn_retries",
    "tcp_synack_retries",
    "tcp_syncookies",
    "tcp_thin_linear_timeouts",
    "tcp_timestamps",
    "tcp_window_scaling",
    "tcp_wmem",
];

/// Reads the settings below `dir` into `settings`. Settings that the stack does not accept (such as another
/// congestion control) are ignored. A script that needs such a setting fails with an error of its own.
pub(crate) fn read(dir: &Path, settings: &mut Settings) {
    for name in NAMES {
        let Ok(value) = std::fs::read_to_string(dir.join(name)) else { continue };
        let value = value.trim();
        let unset = *name == "tcp_fastopen_key" && value.bytes().all(|byte| matches!(byte, b'0' | b'-'));
        if !unset {
            let _ = settings.sysctl(name, value);
        }
    }
}

/// Reads a number of `net.core`, the directory next to `net.ipv4`.
pub(crate) fn of_core(dir: &Path, name: &str) -> Option<usize> {
    let text = std::fs::read_to_string(dir.parent()?.join("core").join(name)).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysctl_files_are_applied() {
        let dir = std::env::temp_dir().join(format!("brisk-sysctl-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("tcp_timestamps"), "0\n").unwrap();
        std::fs::write(dir.join("tcp_rmem"), "4096\t540000\t15728640\n").unwrap();
        std::fs::write(dir.join("tcp_fastopen_key"), "00000000-00000000-00000000-00000000\n").unwrap();
        std::fs::write(dir.join("tcp_congestion_control"), "vegas\n").unwrap();
        let mut settings = Settings::default();
        read(&dir, &mut settings);
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(!settings.tcp.timestamps);
        assert_eq!(settings.tcp.receive_buffer.initial, 540_000);
        assert!(settings.stack.fast_open.keys.is_none());
        assert_eq!(settings.tcp.congestion, brisk_tcp::config::CongestionAlgorithm::Cubic);
    }
}
