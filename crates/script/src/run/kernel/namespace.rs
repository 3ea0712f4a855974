//! A network namespace for one script: addresses, routes and settings.

use std::net::IpAddr;

use brisk_packet_io::interface::Interface;
use brisk_packet_io::netns::Namespace;
use brisk_packet_io::tun::{TunDevice, TunOptions};

use crate::settings::Settings;

/// Reason why a script cannot be run against this kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refused(pub(crate) String);

/// The namespace of the thread, with its device.
pub(crate) struct World {
    pub(crate) device: TunDevice,
}

/// Settings of the namespace for every script; other defaults of brisk are those of Linux.
const COMMON: &[(&str, &str)] = &[
    // Twice the size of brisk's buffer, because Linux also counts its metadata and advertises half of the
    // buffer.
    ("tcp_rmem", "4096 262144 6291456"),
    ("tcp_ecn", "2"),
    ("tcp_fastopen", "3"),
    ("tcp_fastopen_blackhole_timeout_sec", "0"),
    ("tcp_slow_start_after_idle", "1"),
    ("tcp_syn_linear_timeouts", "0"),
    ("tcp_syn_retries", "6"),
    ("tcp_no_metrics_save", "1"),
    ("tcp_invalid_ratelimit", "500"),
    ("tcp_rfc1337", "1"),
    ("conf/all/rp_filter", "0"),
    ("conf/default/rp_filter", "0"),
];

/// Settings of test suites for Linux.
const LINUX_SUITE: &[(&str, &str)] = &[
    ("tcp_rmem", "4096 540000 15728640"),
    ("tcp_wmem", "4096 262144 4194304"),
    ("tcp_syn_retries", "5"),
    ("tcp_synack_retries", "5"),
    ("tcp_ecn", "0"),
    ("tcp_slow_start_after_idle", "0"),
];

/// Returns the Linux setting for a key of `--set`, with its value; `Err` contains the reason why there is
/// none.
fn of_key(key: &str, value: &str) -> Result<Vec<(&'static str, String)>, String> {
    let flag = || if matches!(value, "on" | "1" | "true") { "1" } else { "0" }.to_owned();
    let buffer = || {
        let (initial, max) = value.split_once("..").unwrap_or((value, value));
        format!("4096 {initial} {max}")
    };
    let one = |name, value: String| Ok(vec![(name, value)]);
    match (key, value) {
        ("seed" | "remote_isn" | "profile" | "mtu", _) => Ok(Vec::new()),
        ("timestamps", _) => one("tcp_timestamps", flag()),
        ("sack", _) => one("tcp_sack", flag()),
        ("window_scaling", _) => one("tcp_window_scaling", flag()),
        ("ecn", "passive") => one("tcp_ecn", "2".to_owned()),
        ("ecn", _) => one("tcp_ecn", flag()),
        ("slow_start_after_idle", _) => one("tcp_slow_start_after_idle", flag()),
        // Set at the socket, because a namespace may not choose every algorithm.
        ("congestion", "reno" | "cubic") => Ok(Vec::new()),
        ("time_wait_resets", _) => one("tcp_rfc1337", if value == "on" { "0" } else { "1" }.to_owned()),
        ("syn_retries", _) => one("tcp_syn_retries", value.to_owned()),
        ("retries", _) => one("tcp_retries2", value.to_owned()),
        ("receive_buffer", _) => {
            Err(format!("it sets receive_buffer={value}: the kernel counts its records too"))
        }
        ("send_buffer", _) => one("tcp_wmem", buffer()),
        ("rto_var_floor", _) => one("tcp_rto_min_us", micros(value)),
        ("reactive", "off") => one("tcp_early_retrans", "0".to_owned()),
        ("reactive", "rack_tlp") => one("tcp_early_retrans", "3".to_owned()),
        ("fast_open_key", _) => one("tcp_fastopen_key", value.to_owned()),
        // The kernel always does this.
        ("push_bursts", "on") => Ok(Vec::new()),
        ("mtu_probing", "off") => one("tcp_mtu_probing", "0".to_owned()),
        ("mtu_probing", "on_black_hole") => one("tcp_mtu_probing", "1".to_owned()),
        ("syn_cookies", "always") => one("tcp_syncookies", "2".to_owned()),
        ("syn_cookies", "off") => one("tcp_syncookies", "0".to_owned()),
        _ => Err(format!("it sets {key}={value}, which the kernel does not have")),
    }
}

fn micros(value: &str) -> String {
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().unwrap_or(0);
    match value.get(digits.len()..) {
        Some("ms") => (number * 1000).to_string(),
        Some("s") => (number * 1_000_000).to_string(),
        _ => number.to_string(),
    }
}

/// Returns the reason why the kernel has no equivalent of a setting; `None` if it has one.
pub(super) fn missing(key: &str, value: &str) -> Option<String> {
    of_key(key, value).err()
}

impl World {
    /// Moves the calling thread into a fresh namespace with the settings of the script.
    pub(crate) fn new(settings: &Settings) -> Result<World, Refused> {
        let refused = |error: brisk_packet_io::OpenError| Refused(error.to_string());
        let namespace = Namespace::anonymous().map_err(refused)?;
        namespace.enter().map_err(refused)?;
        let v6 = settings.local_ip.is_ipv6();
        for (name, value) in COMMON {
            write("ipv4", name, value)?;
        }
        let _ = write("ipv6", "conf/default/accept_dad", "0");
        let _ = write("ipv6", "conf/default/disable_ipv6", if v6 { "0" } else { "1" });
        if settings.host.linux_suite {
            LINUX_SUITE.iter().try_for_each(|(name, value)| write("ipv4", name, value))?;
        }
        for (name, value) in &settings.sysctls {
            write("ipv4", name, value)?;
        }
        for (key, value) in &settings.own_keys {
            for (name, value) in of_key(key, value).map_err(Refused)? {
                write("ipv4", name, &value)?;
            }
        }
        let mut device = TunDevice::open("tun0", TunOptions { offload: false, ..TunOptions::default() })
            .map_err(refused)?;
        let prefix = if v6 { 64 } else { 16 };
        device.configure(settings.local_ip, prefix, u32::from(settings.host.stack.mtu)).map_err(refused)?;
        let everything = if v6 { IpAddr::from([0u16; 8]) } else { IpAddr::from([0u8; 4]) };
        Interface::named("tun0").and_then(|tun| tun.add_route(everything, 0, None)).map_err(refused)?;
        Ok(World { device })
    }
}

pub(super) fn write(family: &str, name: &str, value: &str) -> Result<(), Refused> {
    let path = format!("/proc/sys/net/{family}/{name}");
    std::fs::write(&path, value).map_err(|error| Refused(format!("{path} cannot be set to {value}: {error}")))
}
