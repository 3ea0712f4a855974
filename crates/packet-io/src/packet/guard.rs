//! Guards: listeners of the kernel that keep it from resetting the stack's connections.
//!
//! The kernel resets segments to a port that none of its sockets uses. A guard occupies the port and silently
//! discards packets with a TTL below 255 (`IP_MINTTL`, `IPV6_MINHOPCOUNT`). These are all packets from beyond
//! the link, and most packets from hosts on the link. A guard also keeps other programs from using the port,
//! is shown by `ss`, and ends with the process. It needs no privilege.
//!
//! If the kernel serves some of the clients, the guard of the served port is a listener for them. A program
//! on it discards the packets of the other clients.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};

use socket2::{Domain, Protocol, Socket, Type};

use super::filter::Wanted;
use super::source_port;
use crate::interface::name_problem;
use crate::privileges::OpenError;
use crate::share::{self, Exceptions, KernelListener, Share};
use crate::sockopt;

/// Number of ports in a block. A process claims a block with the guard of its first port, so that no other
/// process of brisk uses it.
pub(super) const BLOCK: u16 = 64;
/// First port of the blocks. Linux chooses lower ports for unbound sockets (`net.ipv4.ip_local_port_range`).
const FIRST: u16 = 61_056;
const BLOCKS: u16 = (u16::MAX - FIRST) / BLOCK + 1;
/// Minimum TTL of a segment that the kernel processes.
const MIN_TTL: i32 = 255;
/// Maximum number of clients that wait to be accepted from the kernel's listener.
const BACKLOG: i32 = 4096;

#[derive(Debug, Default)]
pub(crate) struct Guards {
    /// The guard of the served port.
    served: Option<(u16, Socket)>,
    /// The clients of the served port that the stack serves, if the kernel serves the others.
    share: Option<Share>,
    /// Clients in the share that the kernel serves nevertheless.
    exceptions: Option<Exceptions>,
    /// First of the ports that are claimed for connections of the stack.
    first: u16,
    /// Guards of these ports, each opened when the port is first used.
    own: Vec<OnceLock<Socket>>,
}

impl Guards {
    /// Like [`claim`](Guards::claim), for the device `subject` on `interface`.
    pub(crate) fn claim_for(
        subject: &str,
        interface: &str,
        served: Option<SocketAddr>,
        share: Option<Share>,
        wanted: u16,
        inherited: Option<&Socket>,
    ) -> Result<Arc<Guards>, OpenError> {
        if let Some(problem) = name_problem(interface) {
            return Err(OpenError::bad_name(subject, problem));
        }
        let claimed = Guards::claim(served, share, wanted, inherited);
        claimed.map(Arc::new).map_err(|error| OpenError::guard(subject, served, error))
    }

    /// Guards the port of `served`, and claims `wanted` ports, rounded up to whole blocks; fewer if other
    /// processes use the other blocks. With a `share`, the kernel serves the clients outside it, and exempt
    /// clients if the system permits a list of them. `inherited` is the guard of the served port if another
    /// process hands that port over.
    pub(crate) fn claim(
        served: Option<SocketAddr>,
        share: Option<Share>,
        wanted: u16,
        inherited: Option<&Socket>,
    ) -> io::Result<Guards> {
        let with_exceptions = |served, share| Guards::with_exceptions(served, share, inherited).ok();
        let mut guards = match served {
            None => Guards::default(),
            Some(served) => match share.and_then(|share| with_exceptions(served, share)) {
                Some(guards) => guards,
                None => {
                    let share = share.filter(|share| !share.is_all());
                    let guard = guard_of(served, share, None, inherited)?;
                    Guards { served: Some((served.port(), guard)), share, ..Guards::default() }
                }
            },
        };
        let blocks = usize::from(wanted.div_ceil(BLOCK).min(BLOCKS));
        let mut anchors = Blocks::default();
        let mut best = Blocks::default();
        for block in (0..BLOCKS).map(|n| FIRST + n * BLOCK) {
            if anchors.0.len() == blocks {
                break;
            }
            match guard(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), block)) {
                Ok(anchor) => anchors.0.push((block, anchor)),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => best = best.or(anchors.take()),
                Err(error) => return Err(error),
            }
        }
        guards.keep(best.or(anchors));
        if blocks > 0 && guards.own.is_empty() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        Ok(guards)
    }

    /// Guards the port of `served` with a listener for the clients outside `share` and for exceptions.
    fn with_exceptions(served: SocketAddr, share: Share, inherited: Option<&Socket>) -> io::Result<Guards> {
        let exceptions = Exceptions::create()?;
        let guard = guard_of(served, Some(share), Some(&exceptions), inherited)?;
        let served = Some((served.port(), guard));
        Ok(Guards { served, share: Some(share), exceptions: Some(exceptions), ..Guards::default() })
    }

    fn keep(&mut self, Blocks(anchors): Blocks) {
        self.first = anchors.first().map_or(FIRST, |(block, _)| *block);
        for (_, anchor) in anchors {
            self.own.push(OnceLock::from(anchor));
            self.own.extend((1..BLOCK).map(|_| OnceLock::new()));
        }
    }

    /// Returns a non-blocking handle of the kernel's listener; `None` if the kernel serves no client.
    /// `guards` is true if the kernel sees the packets of the stack.
    pub(crate) fn kernel_listener(&self, guards: bool) -> io::Result<Option<KernelListener>> {
        let Some((_, listener)) = self.served.as_ref().filter(|_| self.share.is_some()) else {
            return Ok(None);
        };
        let listener = listener.try_clone()?.into();
        Ok(Some(KernelListener { listener, exceptions: self.exceptions.clone(), guards }))
    }

    /// Returns the guard of the served port.
    pub(crate) fn served(&self) -> Option<&Socket> {
        self.served.as_ref().map(|(_, guard)| guard)
    }

    /// Makes the guard of the served port listen again if it was shut down. Without a listener, the kernel
    /// would answer packets to the port.
    pub(crate) fn listen_again(&self) -> io::Result<()> {
        self.served().map_or(Ok(()), |guard| begin(guard, self.share))
    }

    /// Describes the packets for the stack on a link with headers of `link` bytes. They are addressed to one
    /// of `addresses`, and to the served port or one of the ports `own`.
    pub(crate) fn wanted<'a>(
        &'a self,
        link: usize,
        own: Option<&'a RangeInclusive<u16>>,
        addresses: &'a [IpAddr],
    ) -> Wanted<'a> {
        Wanted {
            link: link as u32,
            served: self.served.as_ref().map(|(port, _)| *port),
            own,
            addresses,
            share: self.share.unwrap_or_default(),
            exceptions: self.exceptions.as_ref(),
        }
    }

    /// Returns the ports for connections that the stack opens.
    pub(crate) fn ports(&self) -> Option<RangeInclusive<u16>> {
        let more = u16::try_from(self.own.len().checked_sub(1)?).ok()?;
        Some(self.first..=self.first + more)
    }

    /// True if the source port of this packet has no guard. Then the kernel would reset the connection at the
    /// peer's first answer, or another program uses the port.
    pub(crate) fn is_unguarded(&self, packet: &[u8]) -> bool {
        source_port(packet).is_some_and(|port| !self.ensure_guarded(port))
    }

    /// Guards `port` if it is the served port or a claimed one. Returns true if the port is guarded.
    pub(crate) fn ensure_guarded(&self, port: u16) -> bool {
        let Some(place) = port.checked_sub(self.first).and_then(|n| self.own.get(usize::from(n))) else {
            return self.served.as_ref().is_some_and(|(served, _)| *served == port);
        };
        if place.get().is_none()
            && let Ok(guard) = guard(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port))
        {
            // Another queue may have set a guard first; only one of the two can listen.
            let _ = place.set(guard);
        }
        place.get().is_some()
    }
}

/// Consecutive blocks, each with the guard of its first port.
#[derive(Default)]
struct Blocks(Vec<(u16, Socket)>);

impl Blocks {
    fn take(&mut self) -> Blocks {
        std::mem::take(self)
    }

    fn or(self, other: Blocks) -> Blocks {
        if other.0.len() > self.0.len() { other } else { self }
    }
}

/// Opens a listener that discards packets with a TTL below [`MIN_TTL`].
fn guard(address: SocketAddr) -> io::Result<Socket> {
    anywhere(address, |address| listen(address, None, None))
}

/// Calls `listen` with `address`. `[::]` means every address of both families, or of IPv4 on a host without
/// IPv6.
fn anywhere(address: SocketAddr, listen: impl Fn(SocketAddr) -> io::Result<Socket>) -> io::Result<Socket> {
    let everywhere = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    match listen(address) {
        Err(error) if everywhere && has_no_ipv6(&error) => {
            listen(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()))
        }
        other => other,
    }
}

fn has_no_ipv6(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL))
}

/// Returns the guard of a served port: a new one, or the `inherited` one, with the rules of this process.
fn guard_of(
    served: SocketAddr,
    share: Option<Share>,
    list: Option<&Exceptions>,
    inherited: Option<&Socket>,
) -> io::Result<Socket> {
    let Some(guard) = inherited else { return anywhere(served, |at| listen(at, share, list)) };
    let guard = guard.try_clone()?;
    let address = guard.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidInput)?;
    match share {
        None => {
            discard_below(&guard, address, MIN_TTL)?;
            // There may be no program to remove.
            let _ =
                sockopt::set(guard.as_fd(), libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0i32.to_ne_bytes());
        }
        Some(share) => {
            share::reject(guard.as_fd(), share, list)?;
            discard_below(&guard, address, 0)?;
        }
    }
    begin(&guard, share)?;
    Ok(guard)
}

/// Opens a listener. With a `share` it discards the packets of clients that are in the share and not in the
/// list. Otherwise it discards all packets with a TTL below [`MIN_TTL`].
fn listen(address: SocketAddr, share: Option<Share>, list: Option<&Exceptions>) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    match share {
        None => discard_below(&socket, address, MIN_TTL)?,
        Some(share) => {
            // Connections inherit the program.
            share::reject(socket.as_fd(), share, list)?;
        }
    }
    // Closed connections of an earlier process must not prevent the bind.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    begin(&socket, share)?;
    Ok(socket)
}

/// Starts to listen, also after a shutdown.
fn begin(socket: &Socket, share: Option<Share>) -> io::Result<()> {
    if share.is_some() {
        socket.set_nonblocking(true)?;
    }
    socket.listen(if share.is_some() { BACKLOG } else { 1 })
}

/// Makes a socket discard packets with a smaller TTL.
fn discard_below(socket: &Socket, address: SocketAddr, ttl: i32) -> io::Result<()> {
    if address.is_ipv6() {
        sockopt::set(socket.as_fd(), libc::SOL_IPV6, libc::IPV6_MINHOPCOUNT, &ttl.to_ne_bytes())?;
    }
    sockopt::set(socket.as_fd(), libc::SOL_IP, libc::IP_MINTTL, &ttl.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::netns::Namespace;
    use crate::privileges::{has_net_admin, has_sys_admin};

    #[test]
    fn listener_for_the_others_ignores_the_clients_in_the_share_except_exceptions() {
        if !has_net_admin() {
            println!("skipped: a program for a listener needs CAP_NET_ADMIN");
            return;
        }
        for address in ["127.0.0.1", "::"] {
            let free = std::net::TcpListener::bind((address, 0)).unwrap().local_addr().unwrap();
            let share: Share = "50%".parse().unwrap();
            let guards = Guards::claim(Some(free), Some(share), 0, None).unwrap();
            let KernelListener { listener, exceptions, .. } = guards.kernel_listener(true).unwrap().unwrap();
            let server = SocketAddr::from((Ipv4Addr::LOCALHOST, free.port()));
            for client in (2..30).map(|n| Ipv4Addr::new(127, 0, 0, n)) {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                socket.bind(&SocketAddr::from((client, 0)).into()).unwrap();
                let connected = socket.connect_timeout(&server.into(), Duration::from_millis(50));
                match share.contains(client.into()) {
                    // The kernel does not refuse the connection, because the stack is to answer.
                    true => assert_eq!(connected.unwrap_err().kind(), io::ErrorKind::TimedOut, "{client}"),
                    false => {
                        connected.unwrap();
                        assert_eq!(listener.accept().unwrap().1.ip().to_canonical(), client);
                    }
                }
            }
            assert!(guards.ensure_guarded(free.port()));
            let Some(exceptions) = exceptions else {
                println!("skipped: a list of the kernel needs CAP_BPF");
                continue;
            };
            let inside = (2..30).map(|n| Ipv4Addr::new(127, 0, 0, n)).find(|ip| share.contains((*ip).into()));
            let connects = || {
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                socket.bind(&SocketAddr::from((inside.unwrap(), 0)).into()).unwrap();
                socket.connect_timeout(&server.into(), Duration::from_millis(50)).is_ok()
            };
            let client = share::hash(inside.unwrap().into());
            assert!(!connects());
            exceptions.insert(client).unwrap();
            assert!(connects());
            exceptions.remove(client).unwrap();
            assert!(!connects());
        }
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(Guards::claim(Some(free), None, 0, None).unwrap().kernel_listener(true).unwrap().is_none());
        assert!(
            Guards::claim(None, Some("50%".parse().unwrap()), 0, None)
                .unwrap()
                .kernel_listener(true)
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn blocks_are_claimed_once_and_ports_are_guarded_when_they_are_used() {
        if !has_sys_admin() {
            println!("skipped: needs CAP_SYS_ADMIN to create a network namespace");
            return;
        }
        let body = || {
            let one = Guards::claim(None, None, 100, None).unwrap();
            assert_eq!(one.ports(), Some(FIRST..=FIRST + 2 * BLOCK - 1));
            // A program with a port in the middle of a block leaves the other blocks usable.
            let busy = FIRST + 3 * BLOCK;
            let other = std::net::TcpListener::bind(("127.0.0.1", busy)).unwrap();
            let two = Guards::claim(None, None, 2 * BLOCK, None).unwrap();
            assert_eq!(two.ports(), Some(busy + BLOCK..=busy + 3 * BLOCK - 1));
            let rest = Guards::claim(None, None, u16::MAX, None).unwrap();
            assert_eq!(rest.ports(), Some(busy + 3 * BLOCK..=u16::MAX));
            let last = Guards::claim(None, None, 1, None).unwrap();
            assert_eq!(last.ports(), Some(FIRST + 2 * BLOCK..=busy - 1), "one block is free");
            assert_eq!(Guards::claim(None, None, 1, None).unwrap_err().kind(), io::ErrorKind::AddrInUse);
            assert!(Guards::claim(None, None, 0, None).unwrap().ports().is_none());
            drop((other, two));

            let free = FIRST + 5;
            assert!(std::net::TcpListener::bind(("127.0.0.1", free)).is_ok());
            assert!(one.ensure_guarded(free) && !one.ensure_guarded(80));
            assert!(
                std::net::TcpListener::bind(("127.0.0.1", free)).is_err(),
                "the guard does not hold the port"
            );
            let taken = std::net::TcpListener::bind(("127.0.0.1", free + 1)).unwrap();
            assert!(!one.ensure_guarded(free + 1));
            drop(taken);
            assert!(one.ensure_guarded(free + 1));
        };
        Namespace::anonymous()
            .unwrap()
            .run(|| {
                crate::interface::Interface::named("lo").unwrap().set_up().unwrap();
                body();
            })
            .unwrap();
    }
}
