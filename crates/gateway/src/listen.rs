//! [`Listen`]: an address with a port or a range of ports.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::Deserialize;

/// An address with a port or a range of ports: `ADDR:PORT`, `ADDR:FIRST-LAST`, or without `ADDR` for every
/// address of the host.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct Listen {
    ip: IpAddr,
    /// A range cannot contain port 0, which lets the kernel choose.
    ports: RangeInclusive<u16>,
}

impl Listen {
    /// Returns the addresses, one for each port.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.ports.clone().map(|port| SocketAddr::new(self.ip, port))
    }

    /// Returns the address if there is only one.
    pub fn single(&self) -> Option<SocketAddr> {
        (self.ports.start() == self.ports.end()).then(|| SocketAddr::new(self.ip, *self.ports.start()))
    }

    /// True if it is impossible to listen on both at the same time.
    pub fn overlaps(&self, other: &Listen) -> bool {
        let (first, last) =
            (self.ports.start().max(other.ports.start()), self.ports.end().min(other.ports.end()));
        // A listener on [::] also accepts IPv4.
        let takes = |any: IpAddr, ip: IpAddr| any.is_unspecified() && (any.is_ipv6() || ip.is_ipv4());
        let share = self.ip == other.ip || takes(self.ip, other.ip) || takes(other.ip, self.ip);
        share && first <= last && *last > 0
    }
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Listen {
        Listen { ip: address.ip(), ports: address.port()..=address.port() }
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        let wrong = || {
            format!(
                "'{text}': write ADDR:PORT, ADDR:FIRST-LAST, :PORT or :FIRST-LAST, for instance 127.0.0.1:8000-8010"
            )
        };
        let (host, ports) = text.rsplit_once(':').ok_or_else(wrong)?;
        let ip = match (host, host.strip_prefix('[').and_then(|host| host.strip_suffix(']'))) {
            ("", _) => Ipv6Addr::UNSPECIFIED.into(),
            (_, Some(v6)) => v6.parse::<Ipv6Addr>().map_err(|_| wrong())?.into(),
            (v4, None) => v4.parse::<Ipv4Addr>().map_err(|_| wrong())?.into(),
        };
        let port = |text: &str| text.parse::<u16>().map_err(|_| wrong());
        let ports = match ports.split_once('-') {
            None => port(ports)?..=port(ports)?,
            Some((first, last)) => port(first)?..=port(last)?,
        };
        match ports.is_empty() || *ports.start() == 0 && *ports.end() > 0 {
            true => Err(wrong()),
            false => Ok(Listen { ip, ports }),
        }
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Listen, String> {
        text.parse()
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", SocketAddr::new(self.ip, *self.ports.start()))?;
        match self.ports.start() == self.ports.end() {
            true => Ok(()),
            false => write!(f, "-{}", self.ports.end()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(text: &str) -> Listen {
        text.parse().unwrap()
    }

    #[test]
    fn a_listen_address_has_a_port_or_a_range_of_ports() {
        for (text, shown, count) in [
            ("127.0.0.1:80", "127.0.0.1:80", 1),
            (":8000-8010", "[::]:8000-8010", 11),
            ("[::1]:0", "[::1]:0", 1),
            ("0.0.0.0:65535-65535", "0.0.0.0:65535", 1),
        ] {
            assert_eq!((listen(text).to_string().as_str(), listen(text).addresses().count()), (shown, count));
        }
        for bad in ["", "80", ":", ":x", ":9-8", ":0-9", ":1-", ":-1", ":1-99999", "::1:80", "host:80"] {
            assert!(bad.parse::<Listen>().is_err(), "{bad}");
        }
    }

    #[test]
    fn addresses_overlap_if_they_share_a_port_and_one_hears_the_other() {
        for (a, b, overlap) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("127.0.0.1:80", "127.0.0.1:81", false),
            ("127.0.0.1:80-90", "0.0.0.0:90-95", true),
            (":80", "0.0.0.0:80", true),
            (":80", "127.0.0.1:80", true),
            ("0.0.0.0:80", "[::1]:80", false),
            ("127.0.0.1:0", "127.0.0.1:0", false),
        ] {
            assert_eq!(listen(a).overlaps(&listen(b)), overlap, "{a} {b}");
            assert_eq!(listen(b).overlaps(&listen(a)), overlap, "{b} {a}");
        }
    }
}
