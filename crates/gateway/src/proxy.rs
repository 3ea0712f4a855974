//! The PROXY protocol, versions 1 and 2: the client's address in front of its first bytes (haproxy.org,
//! proxy-protocol.txt).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::hop::opening::{ClientAddresses, plain};

/// Signature of version 2.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Longest header of version 1, "worst case" of section 2.1.
const LONGEST_V1: usize = 107;
/// Longest accepted header of version 2: addresses and extensions.
pub const MAX_LENGTH: usize = 16 + 2048;

/// Version of the written header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProxyVersion {
    /// A line of text.
    V1,
    /// Binary, 28 bytes for IPv4.
    V2,
}

/// Result of parsing the beginning of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed {
    /// A header of this many bytes. It may contain no addresses, as for a health check of the proxy itself.
    Header(Option<ClientAddresses>, usize),
    /// The beginning of a header: more bytes are needed.
    More,
    /// Not a header, with the reason.
    Bad(&'static str),
}

/// Parses a header.
pub fn parse(bytes: &[u8]) -> Parsed {
    let v2 = bytes.len().min(SIGNATURE.len());
    if bytes[..v2] == SIGNATURE[..v2] {
        return if v2 < SIGNATURE.len() { Parsed::More } else { parse_v2(bytes) };
    }
    let v1 = bytes.len().min(6);
    if bytes[..v1] == b"PROXY "[..v1] {
        return if v1 < 6 { Parsed::More } else { parse_v1(bytes) };
    }
    Parsed::Bad("a trusted proxy sent no PROXY header")
}

fn parse_v1(bytes: &[u8]) -> Parsed {
    let Some(end) = bytes.iter().take(LONGEST_V1).position(|byte| *byte == b'\n') else {
        let late = bytes.len() >= LONGEST_V1;
        return if late { Parsed::Bad("the PROXY line does not end") } else { Parsed::More };
    };
    const BAD: Parsed = Parsed::Bad("the PROXY line is malformed");
    let Some(line) = bytes[..end].strip_suffix(b"\r").and_then(|line| std::str::from_utf8(line).ok()) else {
        return BAD;
    };
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["PROXY", "UNKNOWN", ..] => Parsed::Header(None, end + 1),
        ["PROXY", family @ ("TCP4" | "TCP6"), source, destination, from, to] => {
            let address = |ip: &str, port: &str| {
                let ip: IpAddr = ip.parse().ok()?;
                let fits = ip.is_ipv4() == (family == "TCP4");
                fits.then_some(SocketAddr::new(ip, port.parse().ok()?))
            };
            match (address(source, from), address(destination, to)) {
                (Some(source), Some(destination)) => {
                    Parsed::Header(Some(ClientAddresses { source, destination }), end + 1)
                }
                _ => BAD,
            }
        }
        _ => BAD,
    }
}

fn parse_v2(bytes: &[u8]) -> Parsed {
    let Some(([.., version, family, high, low], rest)) = bytes.split_first_chunk::<16>() else {
        return Parsed::More;
    };
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    if version >> 4 != 2 || 16 + length > MAX_LENGTH {
        return Parsed::Bad("the PROXY header has an unknown version, or is too long");
    }
    let Some(body) = rest.get(..length) else { return Parsed::More };
    let addresses = match (version & 15, family) {
        // LOCAL: the connection is the proxy's own.
        (0, _) => None,
        (1, 0x11) => match parse_v4(body) {
            Some(addresses) => Some(addresses),
            None => return Parsed::Bad("the PROXY header is too short for its addresses"),
        },
        (1, 0x21) => match parse_v6(body) {
            Some(addresses) => Some(addresses),
            None => return Parsed::Bad("the PROXY header is too short for its addresses"),
        },
        (1, _) => None,
        _ => return Parsed::Bad("the PROXY header has an unknown command"),
    };
    Parsed::Header(addresses, 16 + length)
}

fn parse_v4(body: &[u8]) -> Option<ClientAddresses> {
    let (source, rest) = body.split_first_chunk::<4>()?;
    let (destination, rest) = rest.split_first_chunk::<4>()?;
    let [a, b, c, d] = *rest.first_chunk::<4>()?;
    Some(ClientAddresses {
        source: SocketAddr::new(Ipv4Addr::from(*source).into(), u16::from_be_bytes([a, b])),
        destination: SocketAddr::new(Ipv4Addr::from(*destination).into(), u16::from_be_bytes([c, d])),
    })
}

fn parse_v6(body: &[u8]) -> Option<ClientAddresses> {
    let (source, rest) = body.split_first_chunk::<16>()?;
    let (destination, rest) = rest.split_first_chunk::<16>()?;
    let [a, b, c, d] = *rest.first_chunk::<4>()?;
    Some(ClientAddresses {
        source: SocketAddr::new(Ipv6Addr::from(*source).into(), u16::from_be_bytes([a, b])),
        destination: SocketAddr::new(Ipv6Addr::from(*destination).into(), u16::from_be_bytes([c, d])),
    })
}

/// Returns the header for a client; without addresses it declares the connection as the gateway's own.
pub fn header(version: ProxyVersion, client: Option<ClientAddresses>) -> Vec<u8> {
    match version {
        ProxyVersion::V1 => header_v1(client),
        ProxyVersion::V2 => header_v2(client),
    }
}

/// Returns both addresses in one family, because neither version has a header for addresses of two families.
fn one_family(ClientAddresses { source, destination }: ClientAddresses) -> (SocketAddr, SocketAddr) {
    let (source, destination) = (plain(source), plain(destination));
    if source.is_ipv4() == destination.is_ipv4() {
        return (source, destination);
    }
    let mapped = |address: SocketAddr| match address.ip() {
        IpAddr::V4(v4) => SocketAddr::new(v4.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    };
    (mapped(source), mapped(destination))
}

fn header_v1(client: Option<ClientAddresses>) -> Vec<u8> {
    let Some(client) = client else { return b"PROXY UNKNOWN\r\n".to_vec() };
    let (source, destination) = one_family(client);
    let family = if source.is_ipv4() { 4 } else { 6 };
    let (from, to) = (source.port(), destination.port());
    format!("PROXY TCP{family} {} {} {from} {to}\r\n", source.ip(), destination.ip()).into_bytes()
}

fn header_v2(client: Option<ClientAddresses>) -> Vec<u8> {
    let mut header = SIGNATURE.to_vec();
    let Some(client) = client else {
        header.extend_from_slice(&[0x20, 0, 0, 0]);
        return header;
    };
    let (source, destination) = one_family(client);
    header.extend_from_slice(if source.is_ipv4() { &[0x21, 0x11, 0, 12] } else { &[0x21, 0x21, 0, 36] });
    for end in [source, destination] {
        match end.ip() {
            IpAddr::V4(v4) => header.extend_from_slice(&v4.octets()),
            IpAddr::V6(v6) => header.extend_from_slice(&v6.octets()),
        }
    }
    header.extend_from_slice(&source.port().to_be_bytes());
    header.extend_from_slice(&destination.port().to_be_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(source: &str, destination: &str) -> Option<ClientAddresses> {
        Some(ClientAddresses { source: source.parse().unwrap(), destination: destination.parse().unwrap() })
    }

    #[test]
    fn header_of_either_version_is_read_back() {
        for version in [ProxyVersion::V1, ProxyVersion::V2] {
            for client in [
                None,
                client("192.0.2.1:5000", "198.51.100.1:80"),
                client("[2001:db8::1]:5000", "[2001:db8::2]:80"),
            ] {
                let mut bytes = header(version, client);
                let length = bytes.len();
                bytes.extend_from_slice(b"GET /");
                assert_eq!(parse(&bytes), Parsed::Header(client, length), "{version:?}");
                for cut in 0..length {
                    assert_eq!(parse(&bytes[..cut]), Parsed::More, "{version:?} cut at {cut}");
                }
            }
        }
    }

    #[test]
    fn the_examples_of_the_specification_are_read() {
        let line = b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n";
        let all = client("255.255.255.255:65535", "255.255.255.255:65535");
        assert_eq!(parse(line), Parsed::Header(all, line.len()));
        assert_eq!(parse(b"PROXY UNKNOWN ffff:f...f 1 2\r\nx"), Parsed::Header(None, 30));
        assert_eq!(header(ProxyVersion::V2, client("192.0.2.1:5000", "198.51.100.1:80")).len(), 28);
    }

    #[test]
    fn addresses_of_two_families_are_written_in_one() {
        let mixed = client("192.0.2.1:5000", "[2001:db8::2]:80");
        let expected = client("[::ffff:192.0.2.1]:5000", "[2001:db8::2]:80");
        let bytes = header(ProxyVersion::V2, mixed);
        assert_eq!(parse(&bytes), Parsed::Header(expected, bytes.len()));
    }

    #[test]
    fn text_without_a_header_is_refused() {
        for bad in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"PROXY TCP4 1.2.3.4 ::1 1 2\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n",
            b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
            b"PROXY UNKNOWN\n",
            &[b"PROXY ".as_slice(), &[b'x'; 120]].concat(),
            b"\r\n\r\n\0\r\nQUIT\n\x11\x11\0\x0c",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x02ab",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff",
            b"\r\n\r\n\0\r\nQUIT\n\x25\x11\0\0",
        ] {
            assert!(matches!(parse(bad), Parsed::Bad(_)), "{bad:?}: {:?}", parse(bad));
        }
    }
}
