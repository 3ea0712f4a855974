//! `--so_flags`: `key=value` pairs of the stack's configuration.
//!
//! Blanks, semicolons or commas separate the pairs. A comma may also be part of a value, as in
//! `fast_open=client,server`: then the text after it has no `=`. The keys are those of packet scripts
//! (`--set`) and two more.

use std::path::PathBuf;

use crate::settings::Settings;

/// The parsed value of `--so_flags`.
#[derive(Clone, Debug)]
pub struct SoFlags {
    /// Directory from which the settings of the network namespace are read.
    pub(crate) sysctl_dir: Option<PathBuf>,
    /// Address of the stack, if it is not the default.
    pub(crate) local_ip: Option<std::net::IpAddr>,
    /// Pairs for the stack, in order.
    pairs: Vec<(String, String)>,
}

impl Default for SoFlags {
    fn default() -> Self {
        SoFlags { sysctl_dir: Some(PathBuf::from("/proc/sys/net/ipv4")), local_ip: None, pairs: Vec::new() }
    }
}

impl SoFlags {
    /// Parses the value of `--so_flags`.
    pub fn parse(text: &str) -> Result<SoFlags, String> {
        let mut flags = SoFlags::default();
        let mut check = Settings::default();
        for (key, value) in pairs(text)? {
            match key.as_str() {
                "sysctls" if value == "off" => flags.sysctl_dir = None,
                "sysctls" => flags.sysctl_dir = Some(PathBuf::from(value)),
                "local_ip" => {
                    let ip = value.parse().map_err(|_| format!("local_ip={value}: not an IP address"))?;
                    flags.local_ip = Some(ip);
                }
                _ => {
                    check.set(&key, &value)?;
                    flags.pairs.push((key, value));
                }
            }
        }
        Ok(flags)
    }

    /// Applies the pairs over the settings of the namespace.
    pub(crate) fn apply(&self, settings: &mut Settings) -> Result<(), String> {
        self.pairs.iter().try_for_each(|(key, value)| settings.set(key, value))
    }
}

fn pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut found: Vec<(String, String)> = Vec::new();
    for word in text.split(|c: char| c.is_whitespace() || c == ';').filter(|word| !word.is_empty()) {
        for (index, part) in word.split(',').enumerate() {
            match (part.split_once('='), found.last_mut()) {
                (Some((key, value)), _) => found.push((key.to_owned(), value.to_owned())),
                (None, Some((_, value))) if index > 0 => {
                    value.push(',');
                    value.push_str(part);
                }
                (None, _) => return Err(format!("{part}: write key=value")),
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_may_be_separated_by_blanks_or_commas_and_values_may_have_commas() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let found = pairs("initial_window=4 fast_open=client,server,congestion=reno; msl=1s").unwrap();
        let expected = [
            pair("initial_window", "4"),
            pair("fast_open", "client,server"),
            pair("congestion", "reno"),
            pair("msl", "1s"),
        ];
        assert_eq!(found, expected);
        assert!(pairs("fast").unwrap_err().contains("key=value"));
    }

    #[test]
    fn unknown_key_is_refused_with_the_known_ones() {
        assert!(SoFlags::parse("colour=red").unwrap_err().contains("initial_window"));
        assert!(SoFlags::parse("initial_window=four").unwrap_err().contains("initial_window"));
    }

    #[test]
    fn pairs_override_the_settings_of_the_namespace() {
        let mut settings = Settings::default();
        settings.sysctl("tcp_congestion_control", "cubic").unwrap();
        SoFlags::parse("congestion=reno").unwrap().apply(&mut settings).unwrap();
        assert_eq!(settings.tcp.congestion, brisk_tcp::config::CongestionAlgorithm::Reno);
    }
}
