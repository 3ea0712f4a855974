//! The two kinds of ends: a TUN device in a network namespace, and a UDP socket.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::str::FromStr;

use brisk_packet_io::OpenError;
use brisk_packet_io::netns::Namespace;
use brisk_packet_io::tun::{TunDevice, TunOptions};
use brisk_runtime::Prefix;
use brisk_runtime::prefix::PrefixError;
use thiserror::Error;

use super::End;

/// Maximum length of an IP packet, bytes.
const MAX_PACKET: usize = 65_535;

/// One end as on the command line: `tun:NAME[@NAMESPACE][=ADDRESS/LENGTH[,...]]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndSpec {
    /// The TUN device.
    pub device: String,
    /// Its network namespace; `None`: that of the process.
    pub namespace: Option<String>,
    /// Addresses of the kernel at this end.
    pub addresses: Vec<Prefix>,
}

/// Reason why an end is not available.
#[derive(Debug, Error)]
pub enum EndError {
    /// The text is not an end.
    #[error(
        "'{0}' is not an end of a link: write tun:NAME@NAMESPACE=ADDRESS/LENGTH, for example tun:brisk0@red=10.77.0.1/24"
    )]
    Grammar(String),
    /// The text is not a pair of namespaces.
    #[error("'{0}' is not a pair of namespaces: write --between RED,BLUE")]
    Pair(String),
    /// The text is not an address with the length of its prefix.
    #[error(transparent)]
    Address(#[from] PrefixError),
    /// The device cannot be opened or configured.
    #[error(transparent)]
    Open(#[from] OpenError),
}

impl FromStr for EndSpec {
    type Err = EndError;

    fn from_str(text: &str) -> Result<EndSpec, EndError> {
        let wrong = || EndError::Grammar(text.to_owned());
        let rest = text.strip_prefix("tun:").ok_or_else(wrong)?;
        let (place, addresses) =
            rest.split_once('=').map_or((rest, ""), |(place, addresses)| (place, addresses));
        let (device, namespace) =
            place.split_once('@').map_or((place, None), |(device, namespace)| (device, Some(namespace)));
        if device.is_empty() || namespace.is_some_and(str::is_empty) {
            return Err(wrong());
        }
        let addresses = addresses.split(',').filter(|address| !address.is_empty()).map(str::parse);
        Ok(EndSpec {
            device: device.to_owned(),
            namespace: namespace.map(str::to_owned),
            addresses: addresses.collect::<Result<_, _>>()?,
        })
    }
}

impl EndSpec {
    /// True if the end's namespace does not exist.
    pub fn namespace_is_missing(&self) -> bool {
        self.namespace.as_ref().is_some_and(|name| Namespace::open(name).is_err())
    }

    /// Opens the device, which is created if it does not exist, adds its addresses and brings it up.
    ///
    /// # Errors
    /// The system's error with the remedy.
    pub fn open(&self) -> Result<TunEnd, EndError> {
        // Packets cross the link as on a wire: no super-packets, complete checksums.
        let options = TunOptions { offload: false, ..TunOptions::default() };
        let mut device = match &self.namespace {
            Some(namespace) => TunDevice::open_in_netns(&self.device, namespace, options)?,
            None => TunDevice::open(&self.device, options)?,
        };
        for Prefix { address, length } in &self.addresses {
            device.configure(*address, *length, MTU)?;
        }
        Ok(TunEnd { device, buffer: vec![0; MAX_PACKET] })
    }
}

/// MTU of the devices; the link can have a smaller one.
const MTU: u32 = 1500;

/// Two namespaces that are joined by devices with the name `brisk0`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Between {
    /// The client's namespace.
    pub a: String,
    /// The server's namespace.
    pub b: String,
}

impl FromStr for Between {
    type Err = EndError;

    fn from_str(text: &str) -> Result<Between, EndError> {
        match text.split_once(',') {
            Some((a, b)) if !a.is_empty() && !b.is_empty() && a != b => {
                Ok(Between { a: a.to_owned(), b: b.to_owned() })
            }
            _ => Err(EndError::Pair(text.to_owned())),
        }
    }
}

impl Between {
    /// Returns the ends with the given addresses, or 10.77.0.1/24 and fd77::1/64 at A, .2 and ::2 at B.
    pub fn ends(&self, a: Vec<Prefix>, b: Vec<Prefix>) -> (EndSpec, EndSpec) {
        let usual = |host: u8| {
            vec![
                Prefix { address: IpAddr::from([10, 77, 0, host]), length: 24 },
                Prefix { address: IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, u16::from(host)]), length: 64 },
            ]
        };
        let end = |namespace: &str, given: Vec<Prefix>, host| EndSpec {
            device: "brisk0".to_owned(),
            namespace: Some(namespace.to_owned()),
            addresses: if given.is_empty() { usual(host) } else { given },
        };
        (end(&self.a, a, 1), end(&self.b, b, 2))
    }

    /// Creates those of the two namespaces that are missing. Dropping the result deletes them.
    ///
    /// # Errors
    /// The system's error with the remedy.
    pub fn create_missing(&self) -> Result<Created, EndError> {
        let mut created = Created::default();
        for name in [&self.a, &self.b] {
            if Namespace::open(name).is_err() {
                Namespace::create(name)?;
                created.names.push(name.clone());
            }
        }
        Ok(created)
    }
}

/// Namespaces that were created for a run and are deleted at its end.
#[derive(Debug, Default)]
pub struct Created {
    names: Vec<String>,
}

impl Drop for Created {
    fn drop(&mut self) {
        for name in &self.names {
            // An error cannot be reported here; `ip netns list` shows a namespace that is left.
            let _ = Namespace::delete(name);
        }
    }
}

fn copy(buffer: &[u8], len: usize, packet: &mut Vec<u8>) {
    packet.clear();
    packet.extend_from_slice(buffer.get(..len).unwrap_or(buffer));
}

/// A TUN device as an end.
#[derive(Debug)]
pub struct TunEnd {
    device: TunDevice,
    buffer: Vec<u8>,
}

impl End for TunEnd {
    fn fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    fn receive(&mut self, packet: &mut Vec<u8>) -> io::Result<()> {
        let len = self.device.recv(&mut self.buffer)?;
        copy(&self.buffer, len, packet);
        Ok(())
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        self.device.send_raw(packet)
    }
}

/// A UDP socket as an end. The length of its packets includes the IP and UDP headers on the wire.
#[derive(Debug)]
pub struct UdpEnd {
    socket: UdpSocket,
    buffer: Vec<u8>,
    peer: Option<SocketAddr>,
}

impl UdpEnd {
    /// Binds a socket. Without a `peer`, the sender of the last datagram is the peer.
    ///
    /// # Errors
    /// An error of the system.
    pub fn bind(local: SocketAddr, peer: Option<SocketAddr>) -> io::Result<UdpEnd> {
        let socket = UdpSocket::bind(local)?;
        socket.set_nonblocking(true)?;
        Ok(UdpEnd { socket, buffer: vec![0; MAX_PACKET], peer })
    }

    /// Returns the local address of the socket.
    ///
    /// # Errors
    /// An error of the system.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

impl End for UdpEnd {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn receive(&mut self, packet: &mut Vec<u8>) -> io::Result<()> {
        match self.socket.recv_from(&mut self.buffer) {
            Ok((len, from)) => {
                copy(&self.buffer, len, packet);
                self.peer = Some(from);
                Ok(())
            }
            // If no process listens at the peer's port, its host answered earlier datagrams with an ICMP
            // error.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            Err(error) => Err(error),
        }
    }

    fn send(&mut self, packet: &[u8]) -> io::Result<()> {
        match self.peer {
            Some(peer) => self.socket.send_to(packet, peer).map(drop),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn overhead(&self) -> usize {
        match self.peer {
            Some(SocketAddr::V6(_)) => 48,
            Some(SocketAddr::V4(_)) | None => 28,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefixes(texts: &[&str]) -> Vec<Prefix> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn an_end_is_read_with_and_without_namespace_and_addresses() {
        let end: EndSpec = "tun:b0@red=10.9.0.1/24,fd09::1/64".parse().unwrap();
        assert_eq!((end.device.as_str(), end.namespace.as_deref()), ("b0", Some("red")));
        assert_eq!(end.addresses, prefixes(&["10.9.0.1/24", "fd09::1/64"]));
        let bare: EndSpec = "tun:b0".parse().unwrap();
        assert_eq!((bare.namespace, bare.addresses.len()), (None, 0));
    }

    #[test]
    fn invalid_end_is_refused_with_an_example() {
        for text in ["b0", "udp:1.2.3.4:5", "tun:", "tun:b0@"] {
            let error = text.parse::<EndSpec>().unwrap_err().to_string();
            assert!(error.contains("tun:NAME@NAMESPACE"), "{error}");
        }
        for text in ["tun:b0=10.9.0.1/33", "tun:b0=x/24", "tun:b0=fd00::1/129"] {
            assert!(matches!(text.parse::<EndSpec>(), Err(EndError::Address(_))), "{text}");
        }
        assert!("red".parse::<Between>().is_err() && "red,red".parse::<Between>().is_err());
    }

    #[test]
    fn ends_between_namespaces_have_addresses_of_both_families_unless_given() {
        let between: Between = "red,blue".parse().unwrap();
        let (a, b) = between.ends(Vec::new(), prefixes(&["192.0.2.1/24"]));
        assert_eq!(a.addresses, prefixes(&["10.77.0.1/24", "fd77::1/64"]));
        assert_eq!(b.addresses, prefixes(&["192.0.2.1/24"]));
    }
}
