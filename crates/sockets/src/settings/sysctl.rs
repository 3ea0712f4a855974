//! Linux settings (`net.ipv4`) and their effect on the settings of the stack.

use std::time::Duration;

use brisk_tcp::config::{
    BufferConfig, EcnMode, LossDetection, MtuProbing, Reactive, Rfc6675Config, SynCookies,
};
use brisk_tcp::fast_open::ClientCookie;

use super::{Refused, Settings, number, refused, use_cookie};

impl Settings {
    /// Applies Linux's bits: 1 client, 2 server, 4 client without cookie, 0x200 server without, 0x400 all
    /// listeners.
    fn fast_open_bits(&mut self, key: &str, value: &str) -> Result<(), Refused> {
        let bits = match value.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).map_err(|_| refused(key, value))?,
            None => number(key, value)?,
        };
        use_cookie(&mut self.fast_open_connect, ClientCookie::None, bits & 4 != 0);
        self.fast_open_client_allowed = bits & 1 != 0;
        self.fast_open_server_allowed = bits & 2 != 0;
        self.fast_open_listen.require_cookie = bits & 0x200 == 0;
        self.fast_open_all_listeners = bits & 0x402 == 0x402;
        Ok(())
    }

    /// Applies a Linux setting, in the format of `/proc/sys/net/ipv4`. Settings that the stack does not have
    /// are ignored.
    ///
    /// # Errors
    /// The error in the value.
    pub fn sysctl(&mut self, key: &str, value: &str) -> Result<(), Refused> {
        let last = |value: &str| value.split_whitespace().last().unwrap_or("").to_owned();
        let triple = || -> Result<BufferConfig, Refused> {
            let mut sizes = value.split_whitespace().skip(1);
            let initial = number(key, sizes.next().unwrap_or(""))?;
            let max: usize = number(key, &last(value))?;
            Ok(BufferConfig { initial, max: max.max(initial) })
        };
        match key {
            "tcp_timestamps" => self.tcp.timestamps = value != "0",
            "tcp_sack" => self.tcp.sack = value != "0",
            "tcp_window_scaling" => self.tcp.window_scaling = value != "0",
            "tcp_ecn" => {
                self.tcp.ecn = match value {
                    "0" => EcnMode::Off,
                    "1" => EcnMode::On,
                    _ => EcnMode::Passive,
                }
            }
            "tcp_slow_start_after_idle" => self.tcp.slow_start_after_idle = value != "0",
            "tcp_rmem" => self.tcp.receive_buffer = triple()?,
            "tcp_wmem" => self.tcp.send_buffer = triple()?,
            "tcp_syn_retries" => self.tcp.syn_retries = number(key, value)?,
            "tcp_synack_retries" => self.tcp.synack_retries = number(key, value)?,
            "tcp_retries2" => self.tcp.retries = number(key, value)?,
            "tcp_orphan_retries" => self.tcp.orphan_retries = Some(orphan_retries(number(key, value)?)),
            "tcp_reordering" => self.tcp.dup_thresh = number::<u32>(key, value)?.clamp(1, 300),
            "tcp_invalid_ratelimit" => {
                self.tcp.challenge_interval = Duration::from_millis(number(key, value)?);
            }
            "tcp_base_mss" => self.tcp.base_mss = number(key, value)?,
            "tcp_shrink_window" => self.tcp.window.may_shrink = value != "0",
            // The first bit of tcp_recovery switches RACK on; without it segments are counted (RFC 6675).
            "tcp_recovery" if number::<u32>(key, value)? & 1 == 0 => {
                self.tcp.loss_detection = LossDetection::Rfc6675(Rfc6675Config::default());
            }
            "tcp_fin_timeout" => self.tcp.fin_wait_2_timeout = seconds(key, value)?,
            "tcp_congestion_control" => {
                self.tcp.congestion = value.parse().map_err(|_| refused("congestion", value))?
            }
            "tcp_mtu_probing" => self.tcp.mtu_probing = mtu_probing(value),
            "tcp_early_retrans" if !matches!(value, "3" | "4") => {
                self.tcp.mechanisms.reactive = Reactive::Off
            }
            "tcp_rto_min_us" => {
                self.tcp.rto.min = Duration::from_micros(number(key, value)?);
                self.tcp.rto.var_floor = self.tcp.rto.min;
            }
            "tcp_rto_max_ms" => self.tcp.rto.max = Duration::from_millis(number(key, value)?),
            "tcp_syn_linear_timeouts" => self.tcp.syn_linear_retries = number(key, value)?,
            "tcp_thin_linear_timeouts" => self.tcp.thin_stream = value != "0",
            "ip_default_ttl" => self.tcp.hop_limit = number(key, value)?,
            _ => return self.sysctl_of_host(key, value),
        }
        Ok(())
    }

    /// Applies a setting of the stack, of listeners or of fresh sockets.
    fn sysctl_of_host(&mut self, key: &str, value: &str) -> Result<(), Refused> {
        match key {
            "tcp_rfc1337" => self.stack.time_wait_resets = value == "0",
            "tcp_fastopen" => self.fast_open_bits(key, value)?,
            "tcp_fastopen_key" => self.set("fast_open_key", value)?,
            "tcp_keepalive_time" => self.keepalive.idle = seconds(key, value)?,
            "tcp_keepalive_intvl" => self.keepalive.interval = seconds(key, value)?,
            "tcp_keepalive_probes" => self.keepalive.count = number(key, value)?,
            "tcp_fastopen_blackhole_timeout_sec" => {
                self.stack.fast_open.black_hole_base = seconds(key, value)?;
            }
            "tcp_notsent_lowat" => self.notsent_lowat = number(key, value)?,
            "tcp_syncookies" => self.listen.syn_cookies = syn_cookies(value),
            // Settings that the stack does not have keep their built-in values.
            _ => {}
        }
        Ok(())
    }
}

fn seconds(key: &str, value: &str) -> Result<Duration, Refused> {
    Ok(Duration::from_secs(number(key, value)?))
}

/// Returns how often Linux retransmits a SYN. The first `linear` retransmissions do not double the timeout,
/// the other `retries` do. All together take at most as long as `retries` doubled timeouts.
pub(crate) fn linux_syn_retries(retries: u32, linear: u32) -> u32 {
    let spanned = |doublings: u32| (2u64 << doublings.min(40)) - 1;
    let mut passed = 0;
    for sent in 0..retries + linear {
        passed += if sent < linear { 1 } else { 1u64 << (sent - linear).min(40) };
        if passed >= spanned(retries) {
            return sent;
        }
    }
    retries + linear
}

/// Returns the retries of an orphan: Linux uses 8 for 0 while the path may still work.
fn orphan_retries(value: u32) -> u32 {
    if value == 0 { 8 } else { value }
}

fn mtu_probing(value: &str) -> MtuProbing {
    match value {
        "0" => MtuProbing::Off,
        "1" => MtuProbing::OnBlackHole,
        _ => MtuProbing::Always,
    }
}

fn syn_cookies(value: &str) -> SynCookies {
    match value {
        "0" => SynCookies::Off,
        "1" => SynCookies::UnderFlood,
        _ => SynCookies::Always,
    }
}

/// Returns how often a SYN-ACK is retransmitted in this many seconds, at most 255, and after how many seconds
/// the last of these timeouts ends (Linux: `TCP_DEFER_ACCEPT`).
pub(crate) fn retransmissions_in(seconds: i32) -> (u8, i32) {
    let (mut count, mut period, mut timeout) = (0, 0, 1);
    while seconds > period && count < u8::MAX {
        count += 1;
        period += timeout;
        timeout = (2 * timeout).min(120);
    }
    (count, period)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux 6.18 returns these values for TCP_DEFER_ACCEPT.
    #[test]
    fn seconds_are_counted_in_retransmissions() {
        let given_back = [-1, 0, 1, 2, 5, 100, 1000, i32::MAX].map(|seconds| retransmissions_in(seconds).1);
        assert_eq!(given_back, [0, 0, 1, 3, 7, 127, 1087, 29_887]);
    }
}
