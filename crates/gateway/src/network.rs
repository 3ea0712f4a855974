//! [`Network`]: an address or a range of addresses, for lists of trusted peers.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A range of addresses, as in `10.0.0.0/8`; an address alone is a range of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    address: IpAddr,
    length: u8,
}

/// Error of parsing a [`Network`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{0}' is not a network; write for instance 10.0.0.0/8, 192.0.2.1 or fd00::/8")]
pub struct NetworkError(String);

impl Network {
    /// True if `address` is in the range. An IPv4 address mapped to IPv6 counts as an IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let (own, other) = (bits(self.address), bits(address.to_canonical()));
        let host = own.1 - u32::from(self.length).min(own.1);
        own.1 == other.1 && own.0.checked_shr(host) == other.0.checked_shr(host)
    }
}

/// Returns the address as a number, and its length in bits.
fn bits(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(v4) => (v4.to_bits().into(), 32),
        IpAddr::V6(v6) => (v6.to_bits(), 128),
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let wrong = || NetworkError(text.to_owned());
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let max = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            Some(length) => length.parse().ok().filter(|length| *length <= max).ok_or_else(wrong)?,
            None => max,
        };
        Ok(Network { address, length })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_its_own() {
        let contains = |network: &str, address: &str| {
            network.parse::<Network>().unwrap().contains(address.parse().unwrap())
        };
        assert!(contains("10.0.0.0/8", "10.255.1.2") && !contains("10.0.0.0/8", "11.0.0.1"));
        assert!(contains("192.0.2.1", "192.0.2.1") && !contains("192.0.2.1", "192.0.2.2"));
        assert!(contains("10.0.0.0/8", "::ffff:10.0.0.1"));
        assert!(contains("0.0.0.0/0", "1.2.3.4") && !contains("0.0.0.0/0", "fd00::1"));
        assert!(contains("::/0", "fd00::1") && contains("fd00::/8", "fdff::1"));
    }

    #[test]
    fn text_without_a_network_is_refused() {
        for bad in ["", "10.0.0.0/33", "x/8", "10.0.0.0/-1", "fd00::/129", "10.0.0/8"] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
    }
}
