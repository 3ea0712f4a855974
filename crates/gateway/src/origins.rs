//! Named origins of a backend, and the names by which frontends ask for them.
//!
//! A name replaces `HOST:PORT` in [`crate::hop::Opening::origin`]. It contains no colon, so it cannot be
//! mistaken for an address. A backend of an older release refuses a name, because no rule of it allows one.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use serde::Deserialize;

/// The name of an origin: 1 to 64 letters, digits, `-`, `_` and `.`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct OriginName(String);

impl OriginName {
    /// Longest name, bytes.
    const MAX_LENGTH: usize = 64;

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for OriginName {
    type Err = String;

    fn from_str(text: &str) -> Result<OriginName, String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        match !text.is_empty() && text.len() <= OriginName::MAX_LENGTH && text.chars().all(is_name) {
            true => Ok(OriginName(text.to_owned())),
            false => Err(format!(
                "'{text}' is not a name for an origin: write 1 to 64 letters, digits, -, _ and ."
            )),
        }
    }
}

impl TryFrom<String> for OriginName {
    type Error = String;

    fn try_from(text: String) -> Result<OriginName, String> {
        text.parse()
    }
}

impl fmt::Display for OriginName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Addresses of origins, `HOST:PORT`, by name.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
pub struct Origins(BTreeMap<OriginName, Address>);

/// `HOST:PORT`.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
struct Address(String);

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Address, String> {
        check_host_port(&text).map(Address).map_err(|why| format!("'{text}': {why}"))
    }
}

impl Origins {
    /// True if there are no origins.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the address of the origin with this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        let name: OriginName = name.parse().ok()?;
        self.0.get(&name).map(|Address(address)| address.as_str())
    }

    /// Iterates over names and addresses, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&OriginName, &str)> {
        self.0.iter().map(|(name, Address(address))| (name, address.as_str()))
    }
}

impl fmt::Display for Origins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.iter().map(|(name, address)| format!("{name}={address}")).collect();
        f.write_str(&all.join(", "))
    }
}

/// An origin as a flag gives it, `NAME=HOST:PORT`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedOrigin(OriginName, Address);

impl FromStr for NamedOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<NamedOrigin, String> {
        let wrong = || "write NAME=HOST:PORT, for instance web=10.0.0.5:80".to_owned();
        let (name, address) = text.split_once('=').ok_or_else(wrong)?;
        Ok(NamedOrigin(name.parse()?, address.to_owned().try_into()?))
    }
}

impl FromIterator<NamedOrigin> for Origins {
    /// Collects the origins. If a name occurs twice, the later one counts.
    fn from_iter<T: IntoIterator<Item = NamedOrigin>>(named: T) -> Origins {
        Origins(named.into_iter().map(|NamedOrigin(name, address)| (name, address)).collect())
    }
}

/// Checks that a text has the form `HOST:PORT`, and returns it. The host is not resolved.
///
/// # Errors
/// Advice to the user.
pub fn check_host_port(text: &str) -> Result<String, String> {
    if let Some((scheme, rest)) = text.split_once("://") {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let port = if scheme == "https" { 443 } else { 80 };
        let (authority, _) = rest.split_at(end);
        let instead = if has_port(authority) { authority.to_owned() } else { format!("{authority}:{port}") };
        return Err(format!("a gateway carries TCP and takes no URL; write HOST:PORT: {instead}"));
    }
    match has_port(text) {
        true => Ok(text.to_owned()),
        false => Err("write HOST:PORT, for instance 127.0.0.1:80".to_owned()),
    }
}

/// True if the text is a host (name or address) and a port.
fn has_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match bare {
        // A zone may follow the address.
        Some(v6) => v6.split('%').next().is_some_and(|v6| v6.parse::<Ipv6Addr>().is_ok()),
        None => !host.is_empty() && host.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '-' | '_')),
    };
    is_host && port.parse::<u16>().is_ok_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_found_by_its_name_alone() {
        let origins: Origins = ["web=10.0.0.5:80", "a.b-c_d=db.example:5432"]
            .map(|text| text.parse::<NamedOrigin>().unwrap())
            .into_iter()
            .collect();
        assert_eq!(origins.get("web"), Some("10.0.0.5:80"));
        assert_eq!(origins.get("a.b-c_d"), Some("db.example:5432"));
        for none in ["", "Web", "10.0.0.5:80", "api"] {
            assert_eq!(origins.get(none), None, "{none}");
        }
        assert_eq!(origins.to_string(), "a.b-c_d=db.example:5432, web=10.0.0.5:80");
    }

    #[test]
    fn a_text_that_names_no_origin_is_refused() {
        let long = format!("{}=a:1", "x".repeat(65));
        for bad in ["", "web", "=a:1", "web=", "web=a", "we:b=a:1", "w b=a:1", "web=http://a/", &long] {
            assert!(bad.parse::<NamedOrigin>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_url_is_refused_with_what_to_write_instead() {
        for (url, instead) in [
            ("http://127.0.0.1:80", "127.0.0.1:80"),
            ("https://origin.example/path", "origin.example:443"),
            ("http://[::1]:8080/", "[::1]:8080"),
        ] {
            let why = check_host_port(url).unwrap_err();
            assert!(why.ends_with(&format!("write HOST:PORT: {instead}")), "{why}");
        }
    }

    #[test]
    fn an_origin_and_a_peer_have_a_host_and_a_port() {
        for good in ["127.0.0.1:80", "origin.example:8080", "[::1]:80"] {
            assert_eq!(check_host_port(good).as_deref(), Ok(good));
        }
        for bad in
            ["", "80", ":80", "host:", "host:0", "host:99999", "host:http", "host/x:80", "a b:80", "::1:80"]
        {
            assert!(check_host_port(bad).is_err(), "{bad}");
        }
    }
}
