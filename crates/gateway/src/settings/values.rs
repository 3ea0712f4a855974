//! Parses values of settings that are written as texts.

use std::fmt::Display;
use std::net::{Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

use crate::origins::name_and_port;
use crate::proxy::ProxyVersion;
use crate::throttle::BitRate;

/// Parses `ADDR:PORT`, or `:PORT` for every address of the host.
///
/// # Errors
/// The expected format.
pub fn listen_address(text: &str) -> Result<SocketAddr, String> {
    if let Some(port) = text.strip_prefix(':').and_then(|port| port.parse().ok()) {
        return Ok(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
    }
    text.parse().map_err(|_| "write ADDR:PORT or :PORT, for instance 127.0.0.1:8080".to_owned())
}

fn text<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    read(&text).map_err(|why| D::Error::custom(format!("'{text}': {why}")))
}

pub(super) fn listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    text(deserializer, listen_address).map(Some)
}

pub(super) fn host_and_port<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    text(deserializer, name_and_port).map(Some)
}

pub(super) fn required_host_and_port<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    text(deserializer, name_and_port)
}

pub(super) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let read = |text: &str| {
        humantime::parse_duration(text)
            .map_err(|error| format!("{error}; write for instance \"500ms\" or \"10s\""))
    };
    text(deserializer, read).map(Some)
}

pub(super) fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<BitRate>, D::Error> {
    text(deserializer, str::parse).map(Some)
}

pub(super) fn proxy_version<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<ProxyVersion>, D::Error> {
    let read = |text: &str| match text {
        "v1" => Ok(ProxyVersion::V1),
        "v2" => Ok(ProxyVersion::V2),
        _ => Err("write \"v1\" or \"v2\"".to_owned()),
    };
    text(deserializer, read).map(Some)
}

pub(super) fn list<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    let texts = Vec::<String>::deserialize(deserializer)?;
    let items = texts.iter().map(|text| text.parse().map_err(D::Error::custom));
    items.collect::<Result<Vec<T>, D::Error>>().map(Some)
}

pub(super) fn threads<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    let threads = u8::deserialize(deserializer)?;
    match threads {
        1..=64 => Ok(Some(threads)),
        _ => Err(D::Error::custom(format!("{threads}: write 1 to 64"))),
    }
}

pub(super) fn one() -> u16 {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_means_every_address() {
        assert_eq!(listen_address(":80"), Ok("[::]:80".parse().unwrap()));
        assert_eq!(listen_address("127.0.0.1:80"), Ok("127.0.0.1:80".parse().unwrap()));
        for bad in ["80", ":", ":x", ":99999", "host:80"] {
            assert!(listen_address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn there_is_one_thread_at_least() {
        let threads =
            |text: &str| toml::from_str::<super::super::LimitSettings>(text).map(|limits| limits.threads);
        assert_eq!(threads("threads = 64"), Ok(Some(64)));
        for bad in ["threads = 0", "threads = 65"] {
            assert!(threads(bad).unwrap_err().to_string().contains("1 to 64"), "{bad}");
        }
    }
}
