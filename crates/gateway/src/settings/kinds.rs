//! Kinds of values: how a value is read from a file and from a flag, and how it is written.

use std::fmt::{Debug, Display};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use brisk_packet_io::share::Share;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::Fallback;
use crate::origins::{NamedOrigin, Origins, check_host_port};
use crate::proxy::ProxyVersion;
use crate::throttle::BitRate;

/// A kind of values.
pub trait Kind {
    /// A value.
    type Value: Clone + PartialEq + Debug;
    /// The placeholder for the value in the help of a flag.
    const VALUE_NAME: &'static str;
    /// True if a flag may be repeated.
    const IS_LIST: bool = false;
    /// The permitted values of keys without a range.
    const PERMITTED: &'static str;
    /// Reads a value of a file.
    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self::Value, D::Error>;
    /// Parses the text of a flag or of an environment variable.
    ///
    /// # Errors
    /// The permitted values, if `text` is not one of them.
    fn parse(text: &str) -> Result<Self::Value, String>;
    /// Returns the value as an operator writes it, without quotes.
    fn written(value: &Self::Value) -> String;
    /// Returns a written value with quotes if a file needs them.
    fn quoted(written: &str) -> String {
        format!("\"{written}\"")
    }
    /// Returns the permitted values from `first` to `last`.
    fn range(first: &Self::Value, last: &Self::Value) -> String {
        let quoted = |value| Self::quoted(&Self::written(value));
        format!("{} to {}", quoted(first), quoted(last))
    }
}

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

/// Parses a time.
///
/// # Errors
/// The expected format.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write for instance 500ms or 10s"))
}

fn time_written(time: &Duration) -> String {
    humantime::format_duration(*time).to_string()
}

/// Reads a text with the parser of flags.
fn text<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text).map_err(|why| D::Error::custom(format!("'{text}': {why}")))
}

/// Implements kinds of texts: kind, value, placeholder in help, permitted values, parser, writer.
macro_rules! texts {
    ($($kind:ty: $value:ty, $value_name:literal, $permitted:literal, $parse:expr, $written:expr;)*) => {$(
        impl Kind for $kind {
            type Value = $value;
            const VALUE_NAME: &'static str = $value_name;
            const PERMITTED: &'static str = $permitted;

            fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$value, D::Error> {
                text(deserializer, $parse)
            }

            fn parse(text: &str) -> Result<$value, String> {
                $parse(text)
            }

            fn written(value: &$value) -> String {
                $written(value)
            }
        }
    )*};
}

/// An address to listen on.
pub enum Listening {}
/// A host, by name or address, with a port.
pub enum HostPort {}
/// A time.
pub enum Time {}
/// A time limit, which 0 switches off.
pub enum TimeLimit {}

texts! {
    Listening: SocketAddr, "ADDR:PORT", "\"ADDR:PORT\" or \":PORT\", for instance \"127.0.0.1:8080\"",
        listen_address, SocketAddr::to_string;
    HostPort: String, "HOST:PORT", "\"HOST:PORT\", for instance \"127.0.0.1:80\"", check_host_port, String::clone;
    Time: Duration, "TIME", "a time, for instance \"30s\"", parse_duration, time_written;
    TimeLimit: Duration, "TIME", "a time, for instance \"1h\"; \"0s\" for none", parse_duration, time_written;
    String: String, "TEXT", "a text in quotes", any, String::clone;
    PathBuf: PathBuf, "FILE", "a path in quotes, for instance \"/etc/brisk/FILE\"", path, path_written;
    Share: Share, "PERCENT", "a share of the clients in quotes, for instance \"10%\", from \"0%\" to \"100%\"",
        str::parse, Share::to_string;
    BitRate: BitRate, "RATE", "bits per second in quotes, for instance \"50mbit\"", str::parse, BitRate::to_string;
}

/// Reads an optional value.
pub(super) fn some<'de, D: Deserializer<'de>, K: Kind>(
    deserializer: D,
) -> Result<Option<K::Value>, D::Error> {
    K::read(deserializer).map(Some)
}

pub(super) fn one() -> u16 {
    1
}

fn any(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

fn path(text: &str) -> Result<PathBuf, String> {
    Ok(text.into())
}

fn path_written(path: &Path) -> String {
    path.display().to_string()
}

impl Kind for IpAddr {
    type Value = IpAddr;
    const VALUE_NAME: &'static str = "ADDR";
    const PERMITTED: &'static str = "an address, for instance \"10.7.0.1\"";

    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<IpAddr, D::Error> {
        IpAddr::deserialize(deserializer)
    }

    fn parse(text: &str) -> Result<IpAddr, String> {
        text.parse().map_err(|_| "write an address, for instance 10.7.0.1".to_owned())
    }

    fn written(address: &IpAddr) -> String {
        address.to_string()
    }
}

/// Implements kinds with two values: type, placeholder in help, the values with their words.
macro_rules! words {
    ($($type:ty: $value_name:literal, $first:literal => $one:expr, $second:literal => $other:expr;)*) => {$(
        impl Kind for $type {
            type Value = $type;
            const VALUE_NAME: &'static str = $value_name;
            const PERMITTED: &'static str = concat!("\"", $first, "\" or \"", $second, "\"");

            fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                // The message has the form of serde's, which `explain` rewords.
                Self::parse(&String::deserialize(deserializer)?).map_err(|_| D::Error::custom("invalid value"))
            }

            fn parse(text: &str) -> Result<$type, String> {
                match text {
                    $first => Ok($one),
                    $second => Ok($other),
                    _ => Err(concat!("write ", $first, " or ", $second).to_owned()),
                }
            }

            fn written(value: &$type) -> String {
                if *value == $one { $first.to_owned() } else { $second.to_owned() }
            }
        }
    )*};
}

words! {
    ProxyVersion: "VERSION", "v1" => ProxyVersion::V1, "v2" => ProxyVersion::V2;
    Fallback: "FALLBACK", "none" => Fallback::None, "direct" => Fallback::Direct;
}

/// Implements numbers and switches: type, placeholder in help, permitted values, unit.
macro_rules! bare {
    ($($type:ty: $value_name:literal, $permitted:literal, $unit:literal;)*) => {$(
        impl Kind for $type {
            type Value = $type;
            const VALUE_NAME: &'static str = $value_name;
            const PERMITTED: &'static str = $permitted;

            fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                <$type>::deserialize(deserializer)
            }

            fn parse(text: &str) -> Result<$type, String> {
                text.parse().map_err(|_| format!("write {}", Self::PERMITTED))
            }

            fn written(value: &$type) -> String {
                value.to_string()
            }

            fn quoted(written: &str) -> String {
                written.to_owned()
            }

            fn range(first: &$type, last: &$type) -> String {
                format!(concat!("{} to {}", $unit), first, last)
            }
        }
    )*};
}

bare! {
    bool: "", "true or false", "";
    u8: "N", "a number", "";
    u16: "BYTES", "a number of bytes", " (bytes)";
    u32: "N", "a number", "";
}

/// Lists; a flag separates the items by commas or is repeated.
impl<T: Clone + PartialEq + Debug + Display + FromStr<Err: Display>> Kind for Vec<T> {
    type Value = Vec<T>;
    const VALUE_NAME: &'static str = "LIST";
    const IS_LIST: bool = true;
    const PERMITTED: &'static str = "a list";

    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
    }

    fn parse(text: &str) -> Result<Vec<T>, String> {
        text.split(',').map(|item| item.parse().map_err(|error: T::Err| error.to_string())).collect()
    }

    fn written(value: &Vec<T>) -> String {
        value.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
    }
}

impl Kind for Origins {
    type Value = Origins;
    const VALUE_NAME: &'static str = "NAME=HOST:PORT";
    const IS_LIST: bool = true;
    const PERMITTED: &'static str = "names and addresses, for instance { web = \"10.0.0.5:80\" }";

    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Origins, D::Error> {
        Origins::deserialize(deserializer)
    }

    fn parse(text: &str) -> Result<Origins, String> {
        text.split(',').map(str::parse::<NamedOrigin>).collect()
    }

    fn written(value: &Origins) -> String {
        value.to_string()
    }
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
    fn a_time_has_a_number_and_a_unit() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "soon", "5", "-1s", "5parsecs"] {
            assert!(parse_duration(bad).is_err_and(|error| error.ends_with("500ms or 10s")), "{bad}");
        }
    }
}
