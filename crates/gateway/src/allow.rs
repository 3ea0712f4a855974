//! [`Allow`]: the origins that a backend may connect to when a frontend asks for one by address.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::network::Network;

/// A rule `HOST:PORT`. The host is a name, `*.DOMAIN`, a network of addresses or `*`; the port is a number or
/// `*`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allow {
    host: Host,
    /// `None`: every port.
    port: Option<u16>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Host {
    Any,
    /// Lower case.
    Name(String),
    /// Suffix of the name, with its leading dot, lower case.
    Domain(String),
    Network(Network),
}

/// Error of parsing an [`Allow`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{0}' is not a rule; write for instance origin.example:443, *.example:*, 10.0.0.0/8:80")]
pub struct AllowError(String);

impl Allow {
    /// True if the rule permits connections to `origin`, `HOST:PORT`. A rule with a network permits only
    /// addresses, and never a name, whatever the name resolves to.
    pub fn permits(&self, origin: &str) -> bool {
        let Some((host, port)) = origin.rsplit_once(':') else { return false };
        let Ok(port) = port.parse::<u16>() else { return false };
        if self.port.is_some_and(|own| own != port) {
            return false;
        }
        let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        match &self.host {
            Host::Any => true,
            Host::Name(name) => *name == host,
            Host::Domain(domain) => host.len() > domain.len() && host.ends_with(domain.as_str()),
            Host::Network(network) => host.parse::<IpAddr>().is_ok_and(|address| network.contains(address)),
        }
    }
}

impl FromStr for Allow {
    type Err = AllowError;

    fn from_str(text: &str) -> Result<Allow, AllowError> {
        let wrong = || AllowError(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = match port {
            "*" => None,
            port => Some(port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?),
        };
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        let host = match bare.as_str() {
            "" => return Err(wrong()),
            "*" => Host::Any,
            domain if domain.starts_with("*.") && domain.len() > 2 => Host::Domain(domain[1..].to_owned()),
            other => match other.parse() {
                Ok(network) => Host::Network(network),
                Err(_) if other.contains(['*', '/', ' ']) => return Err(wrong()),
                Err(_) => Host::Name(other.to_owned()),
            },
        };
        Ok(Allow { host, port })
    }
}

impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Any => f.write_str("*")?,
            Host::Name(name) => f.write_str(name)?,
            Host::Domain(domain) => write!(f, "*{domain}")?,
            Host::Network(network) => write!(f, "{network}")?,
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => f.write_str(":*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permits(rule: &str, origin: &str) -> bool {
        rule.parse::<Allow>().unwrap().permits(origin)
    }

    #[test]
    fn a_rule_permits_what_it_names_and_nothing_else() {
        assert!(permits("origin.example:443", "Origin.Example:443"));
        assert!(!permits("origin.example:443", "origin.example:80"));
        assert!(!permits("origin.example:443", "evil.origin.example:443"));
        assert!(permits("*.example:*", "a.b.example:80") && !permits("*.example:*", "example:80"));
        assert!(!permits("*.example:*", "badexample:80"));
        assert!(permits("10.0.0.0/8:80", "10.1.2.3:80") && !permits("10.0.0.0/8:80", "ten.example:80"));
        assert!(permits("fd00::/8:*", "[fd00::1]:1") && !permits("127.0.0.1:*", "localhost:1"));
        assert!(permits("*:443", "anything:443") && !permits("*:443", "anything:444"));
        assert!(!permits("*:*", "web"), "the name of an origin is no address");
    }

    #[test]
    fn text_without_a_rule_is_refused() {
        for bad in ["", "host", ":80", "host:0", "host:x", "a*b:80", "10.0.0.0/99:80"] {
            assert!(bad.parse::<Allow>().is_err(), "{bad}");
        }
    }
}
