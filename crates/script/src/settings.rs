//! Settings of a script: packetdrill's flags, `--set key=value` for the configuration of the stack, and the
//! sysctls of set-up commands.
//!
//! All settings are collected before the first event: one configuration holds for the whole script.

use std::net::{IpAddr, SocketAddr};

use brisk_sockets::settings::{self, Settings as HostSettings};

/// Returns the keys of `--set` with their permitted values.
pub fn keys() -> impl Iterator<Item = (&'static str, &'static str)> {
    settings::keys().chain([REMOTE_ISN])
}

const REMOTE_ISN: (&str, &str) =
    ("remote_isn", "offset added to the sequence numbers of arriving segments, default 1000000");

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) host: HostSettings,
    /// Why the kernel behaves differently from the script: `--kernel=reason`.
    pub(crate) not_on_the_kernel: Option<String>,
    /// The keys and values that a script gives with `--set`.
    pub(crate) own_keys: Vec<(String, String)>,
    /// The sysctls that the set-up commands of the script change.
    pub(crate) sysctls: Vec<(String, String)>,
    /// Offset that is added to the sequence numbers of arriving segments.
    pub(crate) remote_isn: u32,
    pub(crate) local_ip: IpAddr,
    /// True if programs use IPv6 sockets for IPv4: `--ip_version=ipv4-mapped-ipv6`.
    pub(crate) mapped: bool,
    pub(crate) remote_ip: IpAddr,
    /// Port of `bind(3, ..., ...)`.
    pub(crate) bind_port: u16,
    /// Port of `connect(3, ..., ...)`.
    pub(crate) connect_port: u16,
    /// Microseconds by which a packet or the return of a call may be early or late.
    pub(crate) tolerance: i64,
    /// Length of a tick of the timestamp clock in microseconds, if TSval must be checked.
    pub(crate) ts_tick: Option<i64>,
    /// True if outbound segments are compared one by one.
    pub(crate) strict_segments: bool,
    /// True if no unlisted packet may be sent up to the last listed time.
    pub(crate) silence: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            host: HostSettings::default(),
            not_on_the_kernel: None,
            own_keys: Vec::new(),
            sysctls: Vec::new(),
            remote_isn: 1_000_000,
            local_ip: IpAddr::from([192, 168, 0, 1]),
            mapped: false,
            remote_ip: IpAddr::from([192, 0, 2, 1]),
            bind_port: 8080,
            connect_port: 8080,
            tolerance: 4000,
            ts_tick: None,
            strict_segments: false,
            silence: true,
        }
    }
}

/// Reason why a setting was refused.
type Refused = String;

impl Settings {
    pub(crate) fn flag(&mut self, key: &str, value: &str) -> Result<(), Refused> {
        match key {
            "set" => {
                let (key, value) =
                    value.split_once('=').ok_or_else(|| format!("--set {value}: write --set key=value"))?;
                self.set(key, value)?;
                self.own_keys.push((key.to_owned(), value.to_owned()));
            }
            "kernel" => self.not_on_the_kernel = Some(value.to_owned()),
            "tolerance_usecs" => self.tolerance = number(key, value)?,
            "tcp_ts_tick_usecs" => self.ts_tick = Some(number(key, value)?),
            "strict_segments" => self.strict_segments = value.is_empty() || on_off(key, value)?,
            "silence" => self.silence = on_off(key, value)?,
            "mtu" => self.host.stack.mtu = number(key, value)?,
            "local_ip" => self.local_ip = read(key, value, "an IP address")?,
            "remote_ip" => self.remote_ip = read(key, value, "an IP address")?,
            "bind_port" => self.bind_port = number(key, value)?,
            "connect_port" => self.connect_port = number(key, value)?,
            "ip_version" => self.ip_version(value)?,
            // Settings for real devices, the wire and Python have no effect in virtual time.
            "define" | "verbose" | "dry_run" | "non_fatal" | "speed" | "gateway_ip" | "netmask_ip"
            | "init_scripts" | "code_command" | "code_sockopt" | "code_format" | "udp_encapsulation"
            | "persistent_tun_dev" | "debug" | "no_cleanup" | "so_filename" | "so_flags"
            | "tolerance_percent" | "send_omit_free" | "prefix" | "mss" | "fm_filename"
            | "live_gateway_ip" | "live_prefix" => {}
            _ if key.starts_with("wire_") => {}
            _ => return Err(format!("--{key} is not known: see `brisk script --help`")),
        }
        Ok(())
    }

    /// Returns an address as the program's sockets see it: IPv4-mapped if they are IPv6 sockets.
    pub(crate) fn as_written(&self, addr: SocketAddr) -> SocketAddr {
        match addr.ip() {
            IpAddr::V4(ip) if self.mapped => SocketAddr::new(IpAddr::V6(ip.to_ipv6_mapped()), addr.port()),
            IpAddr::V4(_) | IpAddr::V6(_) => addr,
        }
    }

    fn ip_version(&mut self, value: &str) -> Result<(), Refused> {
        match value {
            "ipv4" => Ok(()),
            "ipv4-mapped-ipv6" => {
                self.mapped = true;
                Ok(())
            }
            "ipv6" => {
                self.local_ip = IpAddr::from([0xfd3d, 0xa0b, 0x17d6, 0, 0, 0, 0, 1]);
                self.remote_ip = IpAddr::from([0xfd3d, 0xfa7b, 0xd17d, 0, 0, 0, 0, 1]);
                Ok(())
            }
            _ => Err(format!("--ip_version={value}: use ipv4, ipv6 or ipv4-mapped-ipv6")),
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Refused> {
        if key == REMOTE_ISN.0 {
            self.remote_isn = number(key, value)?;
            return Ok(());
        }
        self.host.set(key, value)
    }

    /// Processes a set-up command: applies sysctls of TCP and ignores everything else.
    pub(crate) fn command(&mut self, command: &str) -> Result<(), Refused> {
        for word in command.split_whitespace() {
            if word.ends_with("defaults.sh") {
                self.host.set("profile", "linux_suite")?;
            }
        }
        sysctls(command).into_iter().try_for_each(|(key, value)| {
            self.host.sysctl(&key, &value)?;
            self.sysctls.push((key, value));
            Ok(())
        })
    }
}

/// Returns the Linux settings that a command changes.
pub(crate) fn sysctls(command: &str) -> Vec<(String, String)> {
    let commands = command.split(['\n', ';', '&']);
    commands.filter(|_| command.contains("sysctl")).flat_map(words).collect()
}

fn read<T: std::str::FromStr>(key: &str, value: &str, takes: &str) -> Result<T, Refused> {
    value.parse().map_err(|_| format!("{key}={value}: not understood; it takes {takes}"))
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T, Refused> {
    read(key, value, "a number")
}

fn on_off(key: &str, value: &str) -> Result<bool, Refused> {
    match value {
        "on" | "1" | "true" => Ok(true),
        "off" | "0" | "false" => Ok(false),
        _ => Err(format!("{key}={value}: not understood; it takes on or off")),
    }
}

/// Returns the `net.ipv4.name=value` of a sysctl command; values may be quoted and contain blanks.
fn words(command: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = command;
    while let Some(at) = rest.find("net.ipv4.") {
        rest = rest.get(at + "net.ipv4.".len()..).unwrap_or("");
        let Some((key, behind)) = rest.split_once('=') else { break };
        let behind = behind.trim_start();
        let (value, after) = match behind.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => behind.split_once(char::is_whitespace).unwrap_or((behind, "")),
        };
        found.push((key.trim().to_owned(), value.trim().to_owned()));
        rest = after;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use brisk_tcp::config::{BufferConfig, EcnMode};

    #[test]
    fn sysctls_of_set_up_commands_are_applied() {
        let mut settings = Settings::default();
        let command = "../common/defaults.sh\nsysctl -q net.ipv4.tcp_timestamps=0 net.ipv4.tcp_ecn=1\n\
                       sysctl -w net.ipv4.tcp_rmem=\"4096 8192 16384\" && true";
        settings.command(command).unwrap();
        assert!(!settings.host.tcp.timestamps && settings.host.tcp.ecn == EcnMode::On);
        assert_eq!(settings.host.tcp.receive_buffer, BufferConfig { initial: 8192, max: 16384 });
        assert_eq!(settings.host.tcp.syn_retries, 5);
        settings.command("sysctl -w net.ipv4.tcp_thin_linear_timeouts=1 net.ipv4.ip_default_ttl=33").unwrap();
        assert_eq!((settings.host.tcp.thin_stream, settings.host.tcp.hop_limit), (true, 33));
    }

    #[test]
    fn invalid_value_is_refused_with_the_permitted_ones() {
        let refused = |key: &str, value: &str| Settings::default().flag(key, value).unwrap_err();
        assert!(refused("bind_port", "http").contains("bind_port=http: not understood; it takes a number"));
        assert!(refused("remote_ip", "10.0.0").contains("it takes an IP address"));
        assert!(refused("set", "remote_isn=x").contains("it takes a number"));
        assert!(refused("set", "colour=red").contains("initial_window"));
    }
}
