//! Sends IP packets with their headers: the kernel routes them, resolves the neighbour and applies its rules
//! (`raw(7)`).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::task::{Context, Poll};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::reactor::Reactor;

/// Raw sockets for sending, one per family.
#[derive(Debug)]
pub(crate) struct RawSockets {
    v4: OneFamily,
    /// `None` on a host without IPv6.
    v6: Option<OneFamily>,
}

#[derive(Debug)]
struct OneFamily {
    reactor: Reactor,
    socket: Socket,
}

impl RawSockets {
    /// Opens the sockets.
    ///
    /// # Errors
    /// CAP_NET_RAW is missing.
    pub(crate) fn open() -> io::Result<RawSockets> {
        Ok(RawSockets { v4: OneFamily::open(Domain::IPV4)?, v6: OneFamily::open(Domain::IPV6).ok() })
    }

    /// Sends a packet; never blocks.
    ///
    /// # Errors
    /// `WouldBlock` if the socket has no room. Other errors concern this packet: no route, too long, a
    /// firewall's rule.
    pub(crate) fn send(&self, packet: &[u8]) -> io::Result<()> {
        let Some(destination) = destination(packet) else { return Err(io::ErrorKind::InvalidInput.into()) };
        let out = if destination.is_ipv4() { Some(&self.v4) } else { self.v6.as_ref() };
        let Some(out) = out else { return Err(io::ErrorKind::Unsupported.into()) };
        let destination = SockAddr::from(SocketAddr::new(destination, 0));
        out.reactor.write(|| out.socket.send_to(packet, &destination)).map(drop)
    }

    /// Ready when the socket may have space for `next`.
    pub(crate) fn poll_writable(&mut self, next: &[u8], cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let v6 = destination(next).is_some_and(|to| to.is_ipv6());
        match if v6 { self.v6.as_mut() } else { Some(&mut self.v4) } {
            Some(out) => out.reactor.poll_writable(out.socket.as_fd(), cx),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl OneFamily {
    fn open(family: Domain) -> io::Result<OneFamily> {
        // With this protocol, a packet includes its IP header, and the socket receives nothing.
        let protocol = Protocol::from(libc::IPPROTO_RAW);
        let socket = Socket::new(family, Type::RAW.nonblocking(), Some(protocol))?;
        Ok(OneFamily { reactor: Reactor::default(), socket })
    }
}

fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => Some(Ipv4Addr::from(*packet.get(16..)?.first_chunk::<4>()?).into()),
        6 => Some(Ipv6Addr::from(*packet.get(24..)?.first_chunk::<16>()?).into()),
        _ => None,
    }
}
