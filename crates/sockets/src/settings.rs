//! Settings of a host: `key=value` pairs for the configuration of the stack, and the sysctls of Linux with
//! the same meaning.

use std::time::Duration;

use brisk_tcp::config::{
    BufferConfig, CongestionAlgorithm, EarlyRetransmit, EcnMode, HandshakeCopies, KeepaliveConfig,
    LossDetection, MtuProbing, PacingConfig, PaperConfig, PrrBound, Reactive, Rfc6675Config, RtoConfig,
    SynCookies, UrgentPolicy,
};
use brisk_tcp::fast_open::{
    ClientCookie, EarlyResponse, FastOpenConnect, FastOpenListen, KeySource, LastAckHold,
};
use brisk_tcp::{ListenConfig, StackConfig, TcpConfig};

mod corrective;
mod proactive;
mod sysctl;

pub(crate) use sysctl::{linux_syn_retries, retransmissions_in};

/// Returns the keys of [`Settings::set`], each with its permitted values.
pub fn keys() -> impl Iterator<Item = (&'static str, &'static str)> {
    KEYS.iter().chain(corrective::KEYS).copied()
}

const KEYS: &[(&str, &str)] = &[
    (
        "profile",
        "brisk (the defaults) or linux_suite (buffers, retries and no restart after idle, as Linux's own test scripts set them)",
    ),
    ("seed", "seed of the stack's random choices, default 1"),
    ("mtu", "largest IP packet of the device, bytes"),
    ("fec_mem_total", "maximum memory of all connections for the repair of losses, bytes"),
    ("max_super_segment", "largest super-segment, bytes; 0: none"),
    ("time_wait_resets", "on, off: a reset ends TIME-WAIT"),
    ("congestion", CongestionAlgorithm::NAMES),
    ("initial_window", "a number of segments"),
    ("rto_profile", "linux or rfc6298"),
    ("rto_var_floor", "minimum of the variance term of the timeout"),
    ("rto_max", "maximum timeout"),
    ("send_buffer", "BYTES or INITIAL..MAX"),
    ("receive_buffer", "BYTES or INITIAL..MAX"),
    ("timestamps", "on or off"),
    ("sack", "on or off"),
    ("window_scaling", "on or off"),
    ("ecn", "off, passive (if the peer requests it) or on (active opens request it too)"),
    ("delack_max", "maximum delay of an acknowledgement; 0: no delay"),
    ("pacing", "on or off"),
    ("slow_start_after_idle", "on or off"),
    ("keepalive", "off, or IDLE/INTERVAL/COUNT as in 2s/1s/3"),
    ("syn_retries", "a number"),
    ("path_start", "on or off: start a connection over a known path with the remembered facts"),
    (
        "handshake_copies",
        "off, or the time between a SYN or SYN-ACK and its copy; with :data appended the copy of a SYN has its data too",
    ),
    ("retries", "a number"),
    ("mtu_probing", "off, on_black_hole, early or always"),
    ("urgent", "out_of_band or inline"),
    ("push_bursts", "on or off: PSH at the end of every burst, as in Linux with segmentation offload"),
    (
        "fast_open",
        "off, client, server, or both as in client,server: a client offers the option with every connect and send",
    ),
    ("fast_open_key", "PRIMARY or PRIMARY,BACKUP, each as four hexadecimal words with dashes"),
    ("fast_open_max_per_ip", "maximum number of these connections for one client"),
    ("fast_open_require_cookie", "on or off"),
    ("fast_open_hold_response", "on or off"),
    ("fast_open_amp_factor", "a number; 0: the initial window is the limit"),
    ("fast_open_one_time", "on or off, for both ends"),
    ("fast_open_no_cookie", "on or off, for the client"),
    ("fast_open_hold_early", "on or off, for the client"),
    ("fast_open_plain_copy_percent", "0 to 100, for the client"),
    (
        "fast_open_syn_parts",
        "number of SYNs over which the client spreads a long request, 1 to 4; above 1 the server accepts them",
    ),
    (
        "fast_open_data_after_syn",
        "number of segments that the client sends after a SYN with data; 0: neither sent nor accepted",
    ),
    ("fast_open_last_ack_hold", "off, fast_opened or all"),
    ("proactive", proactive::TAKES),
    ("reactive", "off, rack_tlp, paper, or paper:2 for two probes"),
    (
        "loss_detection",
        "rack, or rfc6675 with options after a colon: fack, no_fack, no_er, er, relaxed_er, rfc6937 (the rate reduction of 2012), as in rfc6675:no_fack,no_er",
    ),
    ("syn_cookies", "off, under_flood or always"),
];

/// Settings of a host.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Settings of the stack.
    pub stack: StackConfig,
    /// Settings of connections.
    pub tcp: TcpConfig,
    /// Settings of listeners.
    pub listen: ListenConfig,
    /// Fast Open of active opens that request it.
    pub fast_open_connect: FastOpenConnect,
    /// True if every active open requests Fast Open.
    pub fast_open_always: bool,
    /// Fast Open of listeners that request it.
    pub fast_open_listen: FastOpenListen,
    /// True if every listener requests Fast Open.
    pub fast_open_all_listeners: bool,
    /// True if active opens may use Fast Open: bit 1 of Linux's `tcp_fastopen`.
    pub fast_open_client_allowed: bool,
    /// True if listeners may use Fast Open: bit 2 of Linux's `tcp_fastopen`.
    pub fast_open_server_allowed: bool,
    /// Maximum of unsent bytes in a send buffer: Linux's `tcp_notsent_lowat`.
    pub notsent_lowat: u32,
    /// `profile=linux_suite`: buffers, retries and the restart after idle have the values that test suites
    /// for Linux expect.
    pub linux_suite: bool,
    /// True for Linux's behaviour: a SYN with data waits for the program's write and is sent again after a
    /// second. A listener has no Fast Open limit per client. Nothing is written or shut down before the
    /// handshake is complete.
    pub like_linux: bool,
    /// Keepalive of sockets that enable it.
    pub keepalive: KeepaliveConfig,
    /// Seed of the stack's random numbers.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            stack: StackConfig::default(),
            tcp: TcpConfig::default(),
            listen: ListenConfig::default(),
            fast_open_connect: FastOpenConnect::default(),
            fast_open_always: false,
            fast_open_listen: FastOpenListen::default(),
            fast_open_all_listeners: false,
            fast_open_client_allowed: true,
            fast_open_server_allowed: true,
            notsent_lowat: u32::MAX,
            linux_suite: false,
            like_linux: false,
            keepalive: KeepaliveConfig::default(),
            seed: 1,
        }
    }
}

/// Reason why a setting was refused.
type Refused = String;

impl Settings {
    /// Sets `key=value`, where the key is one of [`keys`].
    ///
    /// # Errors
    /// The error in the key or the value.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), Refused> {
        let known = self.set_host(key, value)?
            || self.set_transfer(key, value)?
            || self.set_limits(key, value)?
            || self.set_fast_open(key, value)?
            || corrective::set(&mut self.tcp, key, value)?;
        if known {
            return Ok(());
        }
        let keys: Vec<&str> = keys().map(|(key, _)| key).collect();
        Err(format!("{key}: no such key; there are {}", keys.join(", ")))
    }

    fn set_host(&mut self, key: &str, value: &str) -> Result<bool, Refused> {
        match key {
            "profile" => self.profile(value)?,
            "seed" => self.seed = number(key, value)?,
            "mtu" => self.stack.mtu = number(key, value)?,
            "fec_mem_total" => self.stack.fec_mem_total = number(key, value)?,
            "max_super_segment" => self.stack.max_super_segment = number(key, value)?,
            "time_wait_resets" => self.stack.time_wait_resets = on_off(key, value)?,
            "syn_cookies" => {
                self.listen.syn_cookies = match value {
                    "off" => SynCookies::Off,
                    "under_flood" => SynCookies::UnderFlood,
                    "always" => SynCookies::Always,
                    _ => return Err(refused(key, value)),
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn profile(&mut self, value: &str) -> Result<(), Refused> {
        match value {
            "brisk" => {}
            "linux_suite" => {
                self.linux_suite = true;
                self.tcp.receive_buffer = BufferConfig { initial: 540_000, max: 15_728_640 };
                self.tcp.send_buffer = BufferConfig { initial: 262_144, max: 4_194_304 };
                self.tcp.syn_retries = 5;
                self.tcp.synack_retries = 5;
                self.tcp.ecn = EcnMode::Off;
                self.tcp.slow_start_after_idle = false;
            }
            _ => return Err(refused("profile", value)),
        }
        Ok(())
    }

    fn set_fast_open(&mut self, key: &str, value: &str) -> Result<bool, Refused> {
        let (listen, connect) = (&mut self.fast_open_listen, &mut self.fast_open_connect);
        match key {
            "fast_open" => {
                let parts: Vec<&str> = value.split(',').collect();
                if parts.iter().any(|part| !["off", "client", "server"].contains(part)) {
                    return Err(refused(key, value));
                }
                self.fast_open_always = parts.contains(&"client");
                self.fast_open_all_listeners = parts.contains(&"server");
            }
            "fast_open_key" => {
                let keys = KeySource::parse(value).map_err(|_| refused(key, value))?;
                self.stack.fast_open.keys = Some(keys);
            }
            "fast_open_max_per_ip" => listen.max_per_ip = number(key, value)?,
            "fast_open_require_cookie" => listen.require_cookie = on_off(key, value)?,
            "fast_open_hold_response" => {
                if on_off(key, value)? {
                    listen.early_response = EarlyResponse::Held;
                } else if listen.early_response == EarlyResponse::Held {
                    listen.early_response = EarlyResponse::Standard;
                }
            }
            "fast_open_amp_factor" => {
                listen.early_response = match (number(key, value)?, listen.early_response) {
                    (0, EarlyResponse::Multiple(_)) => EarlyResponse::Standard,
                    (0, other) => other,
                    (multiple, _) => EarlyResponse::Multiple(multiple),
                }
            }
            "fast_open_one_time" => {
                listen.one_time = on_off(key, value)?;
                use_cookie(connect, ClientCookie::OneTime, listen.one_time);
            }
            "fast_open_no_cookie" => use_cookie(connect, ClientCookie::None, on_off(key, value)?),
            "fast_open_hold_early" => connect.hold_early = on_off(key, value)?,
            "fast_open_syn_parts" => {
                connect.syn_parts = number(key, value)?;
                listen.data_after_syn = connect.syn_parts > 1;
            }
            "fast_open_data_after_syn" => {
                connect.data_after_syn = number(key, value)?;
                listen.data_after_syn = connect.data_after_syn > 0;
            }
            "fast_open_plain_copy_percent" => connect.plain_copy_percent = number(key, value)?,
            "fast_open_last_ack_hold" => {
                self.stack.fast_open.last_ack_hold = match value {
                    "off" => LastAckHold::Off,
                    "fast_opened" => LastAckHold::FastOpened,
                    "all" => LastAckHold::All,
                    _ => return Err(refused(key, value)),
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn set_transfer(&mut self, key: &str, value: &str) -> Result<bool, Refused> {
        let tcp = &mut self.tcp;
        match key {
            "congestion" => tcp.congestion = value.parse().map_err(|_| refused("congestion", value))?,
            "initial_window" => tcp.initial_window = number(key, value)?,
            "rto_profile" => {
                tcp.rto = match value {
                    "linux" => RtoConfig::LINUX,
                    "rfc6298" => RtoConfig::RFC6298,
                    _ => return Err(refused(key, value)),
                }
            }
            "rto_var_floor" => tcp.rto.var_floor = span(key, value)?,
            "rto_max" => tcp.rto.max = span(key, value)?,
            "send_buffer" => tcp.send_buffer = buffer(key, value)?,
            "receive_buffer" => tcp.receive_buffer = buffer(key, value)?,
            "timestamps" => tcp.timestamps = on_off(key, value)?,
            "sack" => tcp.sack = on_off(key, value)?,
            "window_scaling" => tcp.window_scaling = on_off(key, value)?,
            "ecn" => {
                tcp.ecn = match value {
                    "passive" => EcnMode::Passive,
                    _ if on_off(key, value)? => EcnMode::On,
                    _ => EcnMode::Off,
                }
            }
            "delack_max" => tcp.delack_max = span(key, value)?,
            "pacing" => tcp.pacing = on_off(key, value)?.then(PacingConfig::default),
            "slow_start_after_idle" => tcp.slow_start_after_idle = on_off(key, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn set_limits(&mut self, key: &str, value: &str) -> Result<bool, Refused> {
        let tcp = &mut self.tcp;
        match key {
            "keepalive" => tcp.keepalive = keepalive(key, value)?,
            "path_start" => tcp.path_start = on_off(key, value)?,
            "handshake_copies" => {
                tcp.handshake_copies = off_or(value, || {
                    let (gap, with_data) =
                        value.strip_suffix(":data").map_or((value, false), |gap| (gap, true));
                    Ok(HandshakeCopies { gap: span(key, gap)?, with_data, ..HandshakeCopies::default() })
                })?;
            }
            "syn_retries" => tcp.syn_retries = number(key, value)?,
            "retries" => tcp.retries = number(key, value)?,
            "mtu_probing" => {
                tcp.mtu_probing = match value {
                    "off" => MtuProbing::Off,
                    "on_black_hole" => MtuProbing::OnBlackHole,
                    "early" => MtuProbing::Early,
                    "always" => MtuProbing::Always,
                    _ => return Err(refused(key, value)),
                }
            }
            "urgent" => {
                tcp.urgent = match value {
                    "out_of_band" => UrgentPolicy::OutOfBand,
                    "inline" => UrgentPolicy::Inline,
                    _ => return Err(refused(key, value)),
                }
            }
            "push_bursts" => tcp.push_bursts = on_off(key, value)?,
            "proactive" => tcp.mechanisms.proactive = proactive::read(value)?,
            "reactive" => tcp.mechanisms.reactive = reactive(value)?,
            "loss_detection" => tcp.loss_detection = loss_detection(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Sets the client's cookie to `cookie` if `is_on`, otherwise back to the standard one if it is `cookie`.
fn use_cookie(connect: &mut FastOpenConnect, cookie: ClientCookie, is_on: bool) {
    if is_on {
        connect.cookie = cookie;
    } else if connect.cookie == cookie {
        connect.cookie = ClientCookie::Standard;
    }
}

fn refused(key: &str, value: &str) -> Refused {
    let takes = keys().find(|(known, _)| *known == key).map_or("a number", |(_, takes)| takes);
    format!("{key}={value}: not understood; it takes {takes}")
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T, Refused> {
    value.parse().map_err(|_| refused(key, value))
}

fn on_off(key: &str, value: &str) -> Result<bool, Refused> {
    match value {
        "on" | "1" | "true" => Ok(true),
        "off" | "0" | "false" => Ok(false),
        _ => Err(refused(key, value)),
    }
}

/// Returns `None` for "off".
fn off_or<T>(value: &str, read: impl FnOnce() -> Result<T, Refused>) -> Result<Option<T>, Refused> {
    if value == "off" { Ok(None) } else { read().map(Some) }
}

/// Parses a time: `40ms`, `2s`, `150us`, or `0`.
fn span(key: &str, value: &str) -> Result<Duration, Refused> {
    if value == "0" {
        return Ok(Duration::ZERO);
    }
    let unit_at = value.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(value.len());
    let (amount, unit) = value.split_at(unit_at);
    let amount: u64 = number(key, amount)?;
    match unit {
        "us" => Ok(Duration::from_micros(amount)),
        "ms" => Ok(Duration::from_millis(amount)),
        "s" => Ok(Duration::from_secs(amount)),
        _ => Err(refused(key, value)),
    }
}

fn buffer(key: &str, value: &str) -> Result<BufferConfig, Refused> {
    let (initial, max) = value.split_once("..").unwrap_or((value, value));
    Ok(BufferConfig { initial: number(key, initial)?, max: number(key, max)? })
}

fn reactive(value: &str) -> Result<Reactive, Refused> {
    let (engine, parts) = value.split_once(':').unwrap_or((value, ""));
    let mut paper = PaperConfig::default();
    for part in parts.split(',').filter(|part| !part.is_empty()) {
        match part {
            "1" => paper.max_probes = 1,
            "2" => paper.max_probes = 2,
            _ => return Err(refused("reactive", value)),
        }
    }
    match engine {
        "off" => Ok(Reactive::Off),
        "rack_tlp" => Ok(Reactive::RackTlp),
        "paper" => Ok(Reactive::Paper(paper)),
        _ => Err(refused("reactive", value)),
    }
}

fn loss_detection(value: &str) -> Result<LossDetection, Refused> {
    let (engine, parts) = value.split_once(':').unwrap_or((value, ""));
    let mut rfc6675 = Rfc6675Config::default();
    for part in parts.split(',').filter(|part| !part.is_empty()) {
        match part {
            "fack" => rfc6675.fack = true,
            "no_fack" => rfc6675.fack = false,
            "no_er" => rfc6675.early_retransmit = EarlyRetransmit::Off,
            "er" => rfc6675.early_retransmit = EarlyRetransmit::Rfc5827,
            "rfc6937" => rfc6675.prr = PrrBound::Rfc6937,
            "relaxed_er" => rfc6675.early_retransmit = EarlyRetransmit::Relaxed,
            _ => return Err(refused("loss_detection", value)),
        }
    }
    match engine {
        "rack" => Ok(LossDetection::Rack),
        "rfc6675" => Ok(LossDetection::Rfc6675(rfc6675)),
        _ => Err(refused("loss_detection", value)),
    }
}

fn keepalive(key: &str, value: &str) -> Result<Option<KeepaliveConfig>, Refused> {
    if value == "off" {
        return Ok(None);
    }
    let mut parts = value.split('/');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(idle), Some(interval), Some(count), None) => Ok(Some(KeepaliveConfig {
            idle: span(key, idle)?,
            interval: span(key, interval)?,
            count: number(key, count)?,
        })),
        _ => Err(refused(key, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_key_refuses_invalid_values_with_the_valid_ones() {
        for (key, takes) in keys() {
            let refused = Settings::default().set(key, "nonsense").unwrap_err();
            assert!(refused.contains(takes) && refused.starts_with(key), "{refused}");
        }
        assert!(Settings::default().set("colour", "red").unwrap_err().contains("initial_window"));
    }

    #[test]
    fn values_have_units() {
        let mut settings = Settings::default();
        for (key, value) in [
            ("delack_max", "0"),
            ("rto_var_floor", "20ms"),
            ("keepalive", "2s/1s/3"),
            ("receive_buffer", "540000..15728640"),
            ("congestion", "fixed:10000"),
        ] {
            settings.set(key, value).unwrap();
        }
        assert_eq!(settings.tcp.delack_max, Duration::ZERO);
        assert_eq!(settings.tcp.rto.var_floor, Duration::from_millis(20));
        assert_eq!(settings.tcp.keepalive.map(|keepalive| keepalive.count), Some(3));
        assert_eq!(settings.tcp.receive_buffer, BufferConfig { initial: 540_000, max: 15_728_640 });
        assert_eq!(settings.tcp.congestion, CongestionAlgorithm::Fixed(10_000));
    }
}
