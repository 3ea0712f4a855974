//! The listeners of a frontend or an edge, and the sockets on which clients connect.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use brisk_runtime::{Endpoint, ListenConfig};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::Handle;

use crate::clients::ClientSide;
use crate::hop::connection::Connection;
use crate::io::prepare;
use crate::listen::Listen;
use crate::log::Log;
use crate::origins::OriginName;
use crate::outgoing::Direct;
use crate::routes::Route;
use crate::service::{Accepted, BACKLOG, OpenSocket, accept_failed, on_each};

/// Pause after a failed accept, which usually means that no descriptor is free. It avoids a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A listening address and the servers (origins) to which its clients are connected.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    /// The address; as text it is the listener's name in reports.
    pub listen: Listen,
    /// The name of the requested origin. `None` without routes: the backend's configured origin. `None` with
    /// routes: clients that match no route are refused.
    pub origin: Option<OriginName>,
    /// Origins of TLS clients by server name; other clients go to `origin`.
    pub routes: Vec<Route>,
    /// Destination over the kernel's TCP while no backend is up.
    pub direct: Option<Direct>,
}

/// A listener for clients, over brisk's TCP or the kernel's.
#[derive(Debug)]
enum ClientListener {
    Brisk(brisk_runtime::TcpListener),
    Kernel(TcpListener),
}

impl ClientListener {
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Result<(Connection, SocketAddr), Failed>> {
        match self {
            ClientListener::Brisk(listener) => {
                let accepted = ready!(listener.poll_accept(cx)).map_err(Failed::Device)?;
                Poll::Ready(Ok((Connection::Brisk(accepted.0), accepted.1)))
            }
            ClientListener::Kernel(listener) => {
                let accepted = ready!(listener.poll_accept(cx)).map_err(Failed::Accept)?;
                Poll::Ready(Ok((Connection::Kernel(accepted.0), accepted.1)))
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            ClientListener::Brisk(listener) => Ok(listener.local_addr()),
            ClientListener::Kernel(listener) => listener.local_addr(),
        }
    }
}

/// Reason why a listener returned no client.
enum Failed {
    /// The device has failed: no client will arrive any more.
    Device(io::Error),
    /// The kernel returned no connection, usually because there are no descriptors.
    Accept(io::Error),
}

/// A socket on which one core accepts clients.
#[derive(Debug)]
pub(crate) struct Socket {
    /// The configured address; its port may be 0.
    address: SocketAddr,
    listening: OpenSocket<ClientListener>,
}

/// The sockets where clients connect, by core. The kernel has one socket for an address, or one on each core.
/// Brisk's TCP has one for each stack and address family; they are divided among the cores.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sockets(Vec<Vec<Arc<Socket>>>);

impl Sockets {
    /// Adds a socket that is already bound, for the listener at `address`.
    pub(crate) fn inherit(&mut self, listener: TcpListener, address: SocketAddr, cores: &[Handle]) {
        prepare(&listener);
        self.add(vec![listener], address, cores);
    }

    /// Returns sockets for these addresses: existing ones, and new ones for the others.
    ///
    /// # Errors
    /// If an address cannot be listened on; the text names it.
    pub(crate) fn renewed(&self, addresses: &[SocketAddr], cores: &[Handle]) -> io::Result<Sockets> {
        let mut sockets = Sockets::default();
        for &address in addresses {
            let mut is_open = false;
            for (core, all) in self.0.iter().enumerate() {
                for socket in all.iter().filter(|socket| socket.address == address) {
                    sockets.of_core_mut(core).push(socket.clone());
                    is_open = true;
                }
            }
            if !is_open {
                sockets.add(on_each(listen_at(address)?, cores), address, cores);
            }
        }
        Ok(sockets)
    }

    /// Listens at each of these addresses on the stacks of its endpoint, and divides the listeners among the
    /// cores.
    ///
    /// # Errors
    /// If an address is not the endpoint's, or a port is in use.
    pub(crate) fn on_stacks(
        places: &[(SocketAddr, Endpoint)],
        side: &ClientSide,
        cores: usize,
    ) -> io::Result<Sockets> {
        let mut sockets = Sockets::default();
        for (address, endpoint) in places {
            let socket = |OpenSocket { listener, is_only }| {
                let listener = ClientListener::Brisk(listener);
                Arc::new(Socket { address: *address, listening: OpenSocket { listener, is_only } })
            };
            let spread = spread(listen_on(endpoint, *address, &side.listen())?, cores.max(1));
            for (core, listeners) in spread.into_iter().enumerate() {
                sockets.of_core_mut(core).extend(listeners.into_iter().map(socket));
            }
        }
        Ok(sockets)
    }

    fn add(&mut self, listeners: Vec<TcpListener>, address: SocketAddr, cores: &[Handle]) {
        let is_only = listeners.len() < cores.len();
        for (core, listener) in listeners.into_iter().enumerate() {
            let listening = OpenSocket { listener: ClientListener::Kernel(listener), is_only };
            self.of_core_mut(core).push(Arc::new(Socket { address, listening }));
        }
    }

    fn of_core_mut(&mut self, core: usize) -> &mut Vec<Arc<Socket>> {
        if self.0.len() <= core {
            self.0.resize_with(core + 1, Vec::new);
        }
        &mut self.0[core]
    }

    pub(crate) fn of_core(&self, core: usize) -> Vec<Arc<Socket>> {
        self.0.get(core).cloned().unwrap_or_default()
    }

    /// Returns the address and port of the socket for `address`.
    ///
    /// # Errors
    /// If there is none, or the kernel does not report it.
    pub(crate) fn local_addr(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        let mut all = self.0.iter().flatten();
        let socket = all.find(|socket| socket.address == address).ok_or(io::ErrorKind::NotConnected)?;
        socket.listening.listener.local_addr()
    }
}

/// A client, with its address and the configured address of its listener.
pub(crate) type Client = (Connection, SocketAddr, SocketAddr);

/// Waits for the next client at any of these sockets, beginning with the one at index `turn`. Returns `None`
/// if a device has failed.
pub(crate) async fn accept_any(sockets: &[Arc<Socket>], turn: usize, log: &Log) -> Option<Accepted<Client>> {
    loop {
        match poll_accept(sockets, turn).await {
            Ok(accepted) => return Some(accepted),
            Err(Failed::Accept(error)) => accept_failed(log, &error),
            Err(Failed::Device(error)) => {
                accept_failed(log, &error);
                return None;
            }
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

async fn poll_accept(sockets: &[Arc<Socket>], turn: usize) -> Result<Accepted<Client>, Failed> {
    poll_fn(|cx| {
        let (before, from) = sockets.split_at(turn % sockets.len().max(1));
        for Socket { address, listening } in from.iter().chain(before).map(Arc::as_ref) {
            if let Poll::Ready(accepted) = listening.listener.poll_accept(cx) {
                let with_address = |(stream, peer)| listening.accepted((stream, peer, *address), turn);
                return Poll::Ready(accepted.map(with_address));
            }
        }
        Poll::Pending
    })
    .await
}

/// Waits for the next client of a listener.
pub(crate) async fn accept(listener: &TcpListener, log: &Log) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => accept_failed(log, &error),
        }
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// Listens on an address; if it is unspecified, on every address of the endpoint, with one listener for each
/// address family.
///
/// # Errors
/// If the address is not one of the stack's, or the port is in use.
pub(crate) fn listen_on(
    endpoint: &Endpoint,
    listen: SocketAddr,
    config: &ListenConfig,
) -> io::Result<Vec<brisk_runtime::TcpListener>> {
    let everywhere = [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)];
    let has = |any: &IpAddr| endpoint.addresses().iter().any(|own| own.is_ipv4() == any.is_ipv4());
    let mut addresses = vec![listen.ip()];
    if listen.ip().is_unspecified() && !endpoint.addresses().is_empty() {
        addresses = everywhere.into_iter().filter(has).collect();
    }
    let bind = |ip| {
        let address = SocketAddr::new(ip, listen.port());
        brisk_runtime::TcpListener::bind_with(endpoint, address, config.clone())
    };
    addresses.into_iter().map(bind).collect()
}

/// Divides listeners of stacks among `count` cores.
pub(crate) fn spread(
    listeners: Vec<brisk_runtime::TcpListener>,
    count: usize,
) -> Vec<Vec<OpenSocket<brisk_runtime::TcpListener>>> {
    let mut of_cores: Vec<Vec<_>> = (0..count).map(|_| Vec::new()).collect();
    for parts in listeners.into_iter().map(brisk_runtime::TcpListener::split) {
        let is_only = parts.len() == 1;
        for (stack, listener) in parts.into_iter().enumerate() {
            of_cores[stack % count].push(OpenSocket { listener, is_only });
        }
    }
    of_cores
}

/// Waits for the next connection on any of the stacks, beginning with the listener at index `turn`.
pub(crate) async fn accept_on_stacks(
    listeners: &[OpenSocket<brisk_runtime::TcpListener>],
    turn: usize,
) -> io::Result<Accepted<(brisk_runtime::TcpStream, SocketAddr)>> {
    poll_fn(|cx| {
        let (before, from) = listeners.split_at(turn % listeners.len().max(1));
        for listening in from.iter().chain(before) {
            if let Poll::Ready(accepted) = listening.listener.poll_accept(cx) {
                return Poll::Ready(accepted.map(|connection| listening.accepted(connection, turn)));
            }
        }
        Poll::Pending
    })
    .await
}

/// Listens; an error names the address and the remedy.
pub(crate) fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    bound(address).map_err(|error| {
        let remedy = remedy(error.kind());
        io::Error::new(error.kind(), format!("cannot listen on {address}: {error}; {remedy}"))
    })
}

fn bound(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    prepare(&socket);
    socket.listen(BACKLOG.into())
}

/// Returns the remedy for an address that cannot be listened on.
fn remedy(why: io::ErrorKind) -> &'static str {
    match why {
        io::ErrorKind::AddrInUse => "another program has this port; choose another",
        io::ErrorKind::AddrNotAvailable => {
            "this host does not have the address; `ip address` shows its addresses"
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need root or CAP_NET_BIND_SERVICE; choose a higher one"
        }
        _ => "choose another address or port",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn renewed_sockets_keep_those_of_unchanged_addresses() {
        let one: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let other: SocketAddr = "127.0.0.2:0".parse().unwrap();
        let first = Sockets::default().renewed(&[one], &[]).unwrap();
        let both = first.renewed(&[other, one], &[]).unwrap();
        assert_eq!(both.local_addr(one).unwrap(), first.local_addr(one).unwrap());
        let taken = both.local_addr(one).unwrap();
        let error = both.renewed(&[other, taken], &[]).unwrap_err().to_string();
        assert!(error.contains(&format!("cannot listen on {taken}")), "{error}");
        let last = both.renewed(&[other], &[]).unwrap();
        assert!(last.local_addr(one).is_err() && last.local_addr(other).is_ok());
        drop((first, both));
        assert!(TcpStream::connect(taken).await.is_err(), "nobody listens there any more");
    }
}
