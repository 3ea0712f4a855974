//! Content of the first message of a hop's connection, before the client's first bytes.
//!
//! ```text
//! 1 byte    version, 4 bits (1) | purpose, 4 bits
//! 14 bytes  the run of the backend that the message is for, and its time within that run
//! 1 byte    the client's addresses: 0, 4 or 6
//!           source address and port, destination address and port
//! 1 byte    length of the requested origin; 0: the backend's own
//!           HOST:PORT
//! the rest  the client's first bytes
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::stamp::Stamp;

/// Version of the protocol of the hop.
const VERSION: u8 = 1;

/// Purpose of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// To carry a client's connection to an origin.
    Carry,
    /// To check whether the backend is up: it answers each record with one.
    Watch,
}

/// Source and destination of a client's connection, as the frontend saw them or a trusted proxy reported
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientAddresses {
    /// The client.
    pub source: SocketAddr,
    /// The address that it connected to.
    pub destination: SocketAddr,
}

/// The first message without the client's first bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opening {
    /// Purpose of the connection.
    pub purpose: Purpose,
    /// The run of the backend that the message is for, and the time when it was sealed.
    pub stamp: Stamp,
    /// The client.
    pub client: Option<ClientAddresses>,
    /// The requested origin, `HOST:PORT` of at most 255 bytes, or a name; `None`: the backend's own.
    pub origin: Option<String>,
}

/// Error for a first message that is not one of this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpeningError {
    /// The message is too short.
    #[error("it ends too early")]
    Short,
    /// The message has another version of the protocol.
    #[error("it has version {0}, and this side speaks {VERSION}: install the same release on both sides")]
    Version(u8),
    /// A field has no valid value.
    #[error("its {0} is invalid")]
    Field(&'static str),
}

impl Opening {
    /// Returns an opening with a purpose only.
    pub fn new(purpose: Purpose) -> Opening {
        Opening { purpose, stamp: Stamp::default(), client: None, origin: None }
    }

    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let purpose = match self.purpose {
            Purpose::Carry => 0,
            Purpose::Watch => 1,
        };
        out.push(VERSION << 4 | purpose);
        out.extend_from_slice(&self.stamp.encode());
        match self.client {
            None => out.push(0),
            Some(ClientAddresses { source, destination }) => encode_client(source, destination, out),
        }
        let origin = self.origin.as_deref().unwrap_or_default().as_bytes();
        // The module `entrance` limits origins (`HOST:PORT`) to 255 bytes; a longer one would be sent as an
        // empty one.
        let length = u8::try_from(origin.len()).unwrap_or(0);
        out.push(length);
        out.extend_from_slice(&origin[..length.into()]);
    }

    /// Decodes a message; also returns the client's first bytes.
    ///
    /// # Errors
    /// If the message is not valid.
    pub fn decode(message: &[u8]) -> Result<(Opening, &[u8]), OpeningError> {
        let mut rest = message;
        let [first] = *take::<1>(&mut rest)?;
        if first >> 4 != VERSION {
            return Err(OpeningError::Version(first >> 4));
        }
        let purpose = match first & 15 {
            0 => Purpose::Carry,
            1 => Purpose::Watch,
            _ => return Err(OpeningError::Field("purpose")),
        };
        let stamp = Stamp::decode(take::<{ Stamp::LENGTH }>(&mut rest)?);
        let client = decode_client(&mut rest)?;
        let [length] = *take::<1>(&mut rest)?;
        let (origin, rest) = rest.split_at_checked(length.into()).ok_or(OpeningError::Short)?;
        let origin = match origin {
            [] => None,
            text => Some(std::str::from_utf8(text).map_err(|_| OpeningError::Field("origin"))?.to_owned()),
        };
        Ok((Opening { purpose, stamp, client, origin }, rest))
    }
}

fn encode_client(source: SocketAddr, destination: SocketAddr, out: &mut Vec<u8>) {
    let ends = [source, destination].map(plain);
    let both_v4 = ends.iter().all(SocketAddr::is_ipv4);
    out.push(if both_v4 { 4 } else { 6 });
    for end in ends {
        match end.ip() {
            IpAddr::V4(v4) if both_v4 => out.extend_from_slice(&v4.octets()),
            IpAddr::V4(v4) => out.extend_from_slice(&v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => out.extend_from_slice(&v6.octets()),
        }
        out.extend_from_slice(&end.port().to_be_bytes());
    }
}

fn decode_client(rest: &mut &[u8]) -> Result<Option<ClientAddresses>, OpeningError> {
    let [family] = *take::<1>(rest)?;
    let mut end = || -> Result<SocketAddr, OpeningError> {
        let ip: IpAddr = match family {
            4 => Ipv4Addr::from(*take::<4>(rest)?).into(),
            6 => Ipv6Addr::from(*take::<16>(rest)?).into(),
            _ => return Err(OpeningError::Field("address family")),
        };
        Ok(plain(SocketAddr::new(ip, u16::from_be_bytes(*take::<2>(rest)?))))
    };
    match family {
        0 => Ok(None),
        _ => Ok(Some(ClientAddresses { source: end()?, destination: end()? })),
    }
}

/// Converts an IPv4-mapped IPv6 address, as a listener on `[::]` reports it, to an IPv4 address.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Result<&'a [u8; N], OpeningError> {
    let (head, tail) = rest.split_first_chunk::<N>().ok_or(OpeningError::Short)?;
    *rest = tail;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opening(client: Option<(&str, &str)>, origin: Option<&str>) -> Opening {
        Opening {
            purpose: Purpose::Carry,
            stamp: Stamp { epoch: 5, at: 1_700_000, accepts_lasting: false },
            client: client.map(|(source, destination)| ClientAddresses {
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
            }),
            origin: origin.map(str::to_owned),
        }
    }

    #[test]
    fn opening_is_decoded_with_the_bytes_after_it() {
        for opening in [
            opening(None, None),
            opening(Some(("192.0.2.1:5000", "198.51.100.1:80")), None),
            opening(Some(("[2001:db8::1]:5000", "[2001:db8::2]:80")), Some("origin.example:443")),
            opening(Some(("192.0.2.1:5000", "[2001:db8::2]:80")), Some(&"x".repeat(255))),
            Opening { purpose: Purpose::Watch, ..opening(None, None) },
        ] {
            let mut bytes = Vec::new();
            opening.encode(&mut bytes);
            bytes.extend_from_slice(b"GET /");
            assert_eq!(Opening::decode(&bytes), Ok((opening, &b"GET /"[..])));
        }
    }

    #[test]
    fn an_ipv4_client_of_a_listener_for_both_families_costs_29_bytes() {
        let mut bytes = Vec::new();
        opening(Some(("[::ffff:192.0.2.1]:5000", "[::ffff:198.51.100.1]:80")), None).encode(&mut bytes);
        assert_eq!(bytes.len(), 1 + 14 + 1 + 12 + 1);
        let (decoded, _) = Opening::decode(&bytes).unwrap();
        assert_eq!(decoded.client.unwrap().source, "192.0.2.1:5000".parse().unwrap());
    }

    #[test]
    fn every_cut_and_every_first_byte_is_answered_without_a_panic() {
        let mut bytes = Vec::new();
        opening(Some(("[2001:db8::1]:1", "[2001:db8::2]:2")), Some("a:1")).encode(&mut bytes);
        for length in 0..bytes.len() {
            assert_eq!(Opening::decode(&bytes[..length]), Err(OpeningError::Short));
        }
        for first in 0..=255 {
            bytes[0] = first;
            assert_eq!(Opening::decode(&bytes).is_ok(), first == 0x10 || first == 0x11);
        }
    }
}
