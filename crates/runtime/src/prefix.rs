//! [`Prefix`]: an address with the length of its network, as in `--addr 10.7.0.2/24`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An address and the number of its leading bits that identify the network.
///
/// ```
/// use brisk_runtime::Prefix;
/// use brisk_runtime::prefix::PrefixError;
///
/// let prefix: Prefix = "10.7.0.2/24".parse()?;
/// assert!(prefix.contains("10.7.0.9".parse().unwrap()));
/// assert_eq!(prefix.neighbour(), Some("10.7.0.1".parse().unwrap()));
/// assert!(matches!("10.7.0.2".parse::<Prefix>(), Err(PrefixError::Length { .. })));
/// # Ok::<(), PrefixError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Prefix {
    /// The address.
    pub address: IpAddr,
    /// Bits of the network: at most 32 for IPv4, 128 for IPv6.
    pub length: u8,
}

/// Reason why a text is not a [`Prefix`], in one line.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PrefixError {
    /// The text before the slash is not an address.
    Address(String),
    /// The length is missing, or the family does not permit it.
    Length {
        /// The whole text.
        text: String,
        /// The text before the slash.
        address: IpAddr,
        /// The longest length of the family.
        max: u8,
        /// The usual value.
        usual: u8,
    },
    /// A host cannot have this address.
    NotAHost(IpAddr),
}

brisk_wire::impl_error! {
    PrefixError {
        Self::Address(text) => "'{text}' is not an IP address; write for instance 10.7.0.2/24 or fd07::2/64";
        Self::Length { text, address, max, usual } =>
            "'{text}' needs the length of its network, 1 to {max}; write for instance {address}/{usual}";
        Self::NotAHost(address) => "{address} cannot be the address of a host; choose another of its network";
    }
}

impl Prefix {
    /// True if `other` is an address of the same network.
    pub fn contains(&self, other: IpAddr) -> bool {
        match (self.address, other) {
            (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => {
                self.network() == Prefix { address: other, ..*self }.network()
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }

    /// Returns the first address of the network that a host can have, other than this one; `None` if there is
    /// no other.
    pub fn neighbour(&self) -> Option<IpAddr> {
        let bits = self.family_bits();
        let hosts = match bits - self.length {
            0 => return None,
            // RFC 3021 and RFC 6164: both addresses of a point-to-point network are hosts.
            1 => [0, 1],
            _ => [1, 2],
        };
        let candidates = hosts.map(|host| self.join(self.network() | host));
        candidates.into_iter().find(|candidate| *candidate != self.address)
    }

    fn family_bits(&self) -> u8 {
        if self.address.is_ipv4() { 32 } else { 128 }
    }

    /// Returns the address with all host bits cleared.
    fn network(&self) -> u128 {
        let (bits, value) = match self.address {
            IpAddr::V4(address) => (32, u128::from(address.to_bits())),
            IpAddr::V6(address) => (128, address.to_bits()),
        };
        let host = u32::from(bits - self.length.min(bits));
        value.checked_shr(host).and_then(|network| network.checked_shl(host)).unwrap_or(0)
    }

    fn join(&self, value: u128) -> IpAddr {
        match self.address {
            // `value` is an IPv4 network plus a small host number, so it has 32 bits.
            IpAddr::V4(_) => Ipv4Addr::from_bits(value as u32).into(),
            IpAddr::V6(_) => Ipv6Addr::from_bits(value).into(),
        }
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Prefix, PrefixError> {
        let (address, length) = text.split_once('/').unwrap_or((text, ""));
        let address: IpAddr = address.parse().map_err(|_| PrefixError::Address(text.to_owned()))?;
        let (max, usual) = if address.is_ipv4() { (32, 24) } else { (128, 64) };
        let length = match length.parse() {
            Ok(length) if (1..=max).contains(&length) => length,
            _ => return Err(PrefixError::Length { text: text.to_owned(), address, max, usual }),
        };
        let prefix = Prefix { address, length };
        let is_network = length < max - 1 && prefix.join(prefix.network()) == address;
        let last = match address {
            IpAddr::V4(v4) => length < max - 1 && v4.to_bits() | (u32::MAX >> length) == v4.to_bits(),
            IpAddr::V6(_) => false,
        };
        if address.is_unspecified() || address.is_multicast() || is_network || last {
            return Err(PrefixError::NotAHost(address));
        }
        Ok(prefix)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        text.parse().unwrap()
    }

    #[test]
    fn the_neighbour_is_the_first_other_host_of_the_network() {
        for (own, neighbour) in [
            ("10.7.0.2/24", "10.7.0.1"),
            ("10.7.0.1/24", "10.7.0.2"),
            ("10.7.5.9/16", "10.7.0.1"),
            ("10.0.0.0/31", "10.0.0.1"),
            ("10.0.0.1/31", "10.0.0.0"),
            ("fd07::2/64", "fd07::1"),
            ("fd07::1/64", "fd07::2"),
            ("200.1.2.3/1", "128.0.0.1"),
        ] {
            assert_eq!(prefix(own).neighbour(), Some(neighbour.parse().unwrap()), "{own}");
        }
        assert_eq!(prefix("10.0.0.1/32").neighbour(), None);
        assert_eq!(prefix("fd07::1/128").neighbour(), None);
    }

    #[test]
    fn a_network_contains_its_addresses_only() {
        assert!(prefix("10.7.0.2/24").contains("10.7.0.200".parse().unwrap()));
        assert!(!prefix("10.7.0.2/24").contains("10.7.1.2".parse().unwrap()));
        assert!(!prefix("10.7.0.2/24").contains("fd07::1".parse().unwrap()));
        assert!(prefix("fd07::2/64").contains("fd07::ffff".parse().unwrap()));
    }

    #[test]
    fn error_contains_a_valid_example() {
        let error = |text: &str| text.parse::<Prefix>().unwrap_err().to_string();
        assert_eq!(
            error("x/24"),
            "'x/24' is not an IP address; write for instance 10.7.0.2/24 or fd07::2/64"
        );
        assert_eq!(
            error("10.7.0.2"),
            "'10.7.0.2' needs the length of its network, 1 to 32; write for instance 10.7.0.2/24"
        );
        assert!(error("10.7.0.2/33").contains("1 to 32"));
        assert!(error("fd07::2/0").contains("fd07::2/64"));
        for not_a_host in ["10.7.0.0/24", "10.7.0.255/24", "0.0.0.0/8", "224.0.0.1/24", "fd07::/64"] {
            assert!(error(not_a_host).contains("cannot be the address of a host"), "{not_a_host}");
        }
    }

    #[test]
    fn a_prefix_prints_as_it_is_written() {
        for text in ["10.7.0.2/24", "fd07::2/64", "10.0.0.0/31"] {
            assert_eq!(prefix(text).to_string(), text);
        }
    }
}
