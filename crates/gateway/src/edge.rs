//! The edge, near the origin, without another gateway. It accepts clients over brisk's TCP, which needs no
//! change of the clients, and opens ordinary TCP to the origin.

use std::future::{Future, poll_fn, ready};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use brisk_runtime::fast_open::ReplayWindow;
use brisk_runtime::{Endpoint, FastOpenListen, ListenConfig, TcpConfig, TcpListener, TcpStream};
use brisk_tcp::config::KeepaliveConfig;
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;

use crate::access::{Access, Role};
use crate::end::End;
use crate::first_bytes::Speaker;
use crate::hop::line::Line;
use crate::hop::opening::{ClientAddresses, plain};
use crate::hop::stream::HopStream;
use crate::io::Accepted;
use crate::listeners::{Listener, accept_on_stacks, listen_on, spread};
use crate::origins::{OriginName, Origins};
use crate::proxy::ProxyVersion;
use crate::relay::{Carry, OriginRequest, carry};
use crate::routes;
use crate::service::{
    Arrived, BACKLOG, Door, Listening, Phase, ServiceConfig, Serving, Summary, accept_failed,
    poll_first_bytes, serve_until,
};

/// Limit of connections that SYN data opened and that their clients have not acknowledged yet.
const PENDING: u16 = 1024;

/// Settings of clients' connections.
///
/// Nagle's algorithm is off: the edge forwards data when it arrives. Keepalive once a minute closes
/// connections whose client has vanished.
pub fn client_tcp() -> TcpConfig {
    let alive =
        KeepaliveConfig { idle: Duration::from_secs(60), interval: Duration::from_secs(15), count: 4 };
    TcpConfig { nodelay: true, keepalive: Some(alive), ..TcpConfig::default() }
}

/// Configuration of an edge.
#[derive(Clone, Debug)]
pub struct EdgeConfig {
    /// Addresses of clients, with their origins and routes. [`Listener::direct`] has no effect here.
    pub listeners: Vec<Listener>,
    /// The origin of listeners that name none, `HOST:PORT`. A name is resolved for each connection. Default
    /// `None`.
    pub origin: Option<String>,
    /// Origins of listeners and routes by name. Default none.
    pub origins: Origins,
    /// Tell the origin the client's address in a PROXY header. Default `None`: no.
    pub send_proxy: Option<ProxyVersion>,
    /// Settings of the clients' connections. Default: [`client_tcp`].
    pub tcp: TcpConfig,
    /// Accepts a client's first bytes with its SYN. A repeated SYN is recognised while its connection exists
    /// and for two minutes after. Default on, with at most 1024 unacknowledged connections.
    pub fast_open: Option<FastOpenListen>,
    /// Limits and reports.
    pub service: ServiceConfig,
}

impl EdgeConfig {
    /// Returns the default configuration for these listeners.
    pub fn new(listeners: Vec<Listener>) -> EdgeConfig {
        EdgeConfig {
            listeners,
            origin: None,
            origins: Origins::default(),
            send_proxy: None,
            tcp: client_tcp(),
            fast_open: Some(FastOpenListen {
                max_pending: PENDING,
                replay_window: Some(ReplayWindow::default()),
                ..FastOpenListen::default()
            }),
            service: ServiceConfig::default(),
        }
    }

    /// Returns the listener for the local address `local`.
    fn listener(&self, local: SocketAddr) -> Option<&Listener> {
        let everywhere =
            |address: SocketAddr| address.ip().is_unspecified() && address.port() == local.port();
        let find = |is_it: &dyn Fn(SocketAddr) -> bool| {
            self.listeners.iter().find(|listener| listener.listen.addresses().any(is_it))
        };
        find(&|address| address == local).or_else(|| find(&everywhere))
    }

    /// Returns the address of the origin with this name, or of the default origin.
    fn address(&self, name: Option<&OriginName>) -> Result<&str, String> {
        match name {
            Some(name) => self.origins.get(name.as_str()).ok_or_else(|| format!("no origin is named {name}")),
            None => self.origin.as_deref().ok_or_else(|| "the listener has no origin".to_owned()),
        }
    }
}

/// An edge that listens.
#[derive(Debug)]
pub struct Edge {
    shared: Arc<Shared>,
    listeners: Vec<TcpListener>,
}

impl Edge {
    /// Listens at each of these addresses on the stack of its endpoint.
    ///
    /// # Errors
    /// If an address is not the endpoint's, or a port is in use.
    pub fn bind(config: EdgeConfig, places: &[(SocketAddr, Endpoint)]) -> io::Result<Edge> {
        let (tcp, fast_open) = (config.tcp.clone(), config.fast_open.clone());
        let listen = ListenConfig { tcp, fast_open, backlog: BACKLOG.into(), ..ListenConfig::default() };
        let mut listeners = Vec::new();
        for (address, endpoint) in places {
            listeners.extend(listen_on(endpoint, *address, &listen)?);
        }
        let current = Mutex::new(Arc::new(config));
        Ok(Edge { shared: Arc::new(Shared { current }), listeners })
    }

    /// Returns a handle to change the edge while it runs.
    pub fn control(&self) -> EdgeControl {
        EdgeControl(self.shared.clone())
    }

    /// Serves until `shutdown` resolves or a device fails, then drains.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Summary {
        let Edge { shared, listeners } = self;
        let service = shared.config().service.clone();
        let door = |listeners| EdgeDoor { shared: shared.clone(), listeners, turn: 0 };
        let doors = spread(listeners, service.cores.len().max(1)).into_iter().map(door).collect();
        serve_until(shutdown, service, Duration::ZERO, doors).await
    }
}

/// A handle to a running edge.
#[derive(Clone, Debug)]
pub struct EdgeControl(Arc<Shared>);

impl EdgeControl {
    /// Applies `config` to new connections: its origins, its routes and its PROXY header. Open connections
    /// keep theirs. Listening addresses, TCP, limits and the log do not change.
    pub fn reload(&self, config: EdgeConfig) {
        let mut current = self.0.current.lock().unwrap_or_else(PoisonError::into_inner);
        let EdgeConfig { tcp, fast_open, service, .. } = EdgeConfig::clone(&current);
        *current = Arc::new(EdgeConfig { tcp, fast_open, service, ..config });
    }
}

/// State that the connections of an edge share.
#[derive(Debug)]
struct Shared {
    current: Mutex<Arc<EdgeConfig>>,
}

impl Shared {
    fn config(&self) -> Arc<EdgeConfig> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The listeners of one core.
struct EdgeDoor {
    shared: Arc<Shared>,
    listeners: Vec<Listening<TcpListener>>,
    /// Index of the listener to try first, and of the core that serves the next connection of a shared stack.
    turn: usize,
}

impl Door for EdgeDoor {
    type Guest = (TcpStream, SocketAddr);

    async fn next(&mut self) -> Option<Arrived<(TcpStream, SocketAddr)>> {
        self.turn = self.turn.wrapping_add(1);
        let accepted = accept_on_stacks(&self.listeners, self.turn).await;
        accepted.inspect_err(|error| accept_failed(&self.shared.config().service.log, error)).ok()
    }

    fn serve(&self, arrived: Arrived<(TcpStream, SocketAddr)>, signal: watch::Receiver<Phase>) -> Serving {
        let (client, peer) = arrived.guest;
        Box::pin(serve(self.shared.config(), client, peer, signal))
    }
}

async fn serve(
    config: Arc<EdgeConfig>,
    client: TcpStream,
    peer: SocketAddr,
    mut signal: watch::Receiver<Phase>,
) -> Option<Access> {
    let mut access = Access::begin(Role::Edge, peer);
    access.end = carry_on(&config, client, &mut signal, &mut access).await;
    access.duration = access.began.elapsed();
    Some(access)
}

/// Connects to the origin of a client, and copies.
async fn carry_on(
    config: &EdgeConfig,
    mut client: TcpStream,
    signal: &mut watch::Receiver<Phase>,
    access: &mut Access,
) -> End {
    let timeouts = &config.service.timeouts;
    let addresses = ClientAddresses { source: access.peer, destination: plain(client.local_addr()) };
    let mut first = Vec::new();
    let address = match route(config, addresses, &mut client, &mut first, access).await {
        Ok(address) => address,
        Err(end) => {
            access.hop = client.stats();
            return end;
        }
    };
    let opened = OriginRequest {
        origin: address,
        client: Some(addresses),
        as_client: false,
        send_proxy: config.send_proxy,
        first: &first,
        limit: config.service.connect_timeout,
    };
    let opened = opened.open(client.failed(), access.role, signal).await;
    let sent = match opened {
        Ok((mut origin, unsent)) => match origin.write_all(&unsent).await {
            Ok(()) => Ok(origin),
            Err(error) => Err(End::OriginFailed(error.to_string())),
        },
        Err(end) => Err(end),
    };
    let origin = match sent {
        Ok(origin) => origin,
        Err(end) => {
            access.hop = client.stats();
            client.reset();
            return end;
        }
    };
    access.bytes_up += first.len() as u64;
    access.spoke_first = (!first.is_empty()).then_some(Speaker::Client);
    // Limits the lifetime of the bytes before the payload.
    drop(first);
    let with = Carry {
        first: Vec::new(),
        lost: std::future::pending(),
        heard: &|_| (),
        timeouts,
        signal,
        slot: None,
        exchanges: None,
        unprepared: true,
    };
    carry(origin, HopStream::straight(Line::Brisk(client), Vec::new()), with, access).await
}

/// Returns the address of the client's origin; the bytes that were read from it go to `first`.
async fn route<'a>(
    config: &'a EdgeConfig,
    addresses: ClientAddresses,
    client: &mut TcpStream,
    first: &mut Vec<u8>,
    access: &mut Access,
) -> Result<&'a str, End> {
    // A reload has just removed this listener.
    let Some(listener) = config.listener(addresses.destination) else {
        client.reset();
        return Err(End::Drained);
    };
    access.listener = (config.listeners.len() > 1).then(|| Arc::from(listener.listen.to_string()));
    let has_origin = listener.origin.is_some();
    let route = match listener.routes.is_empty() {
        true => None,
        false => {
            let limit = config.service.timeouts.header;
            routes::of_client(&listener.routes, has_origin, client, first, limit).await?
        }
    };
    if first.is_empty() {
        // SYN data is available already, and leaves with the opening of the origin's connection.
        let arrived = tokio::select! {
            biased;
            arrived = poll_fn(|cx| poll_first_bytes(client, cx)) => arrived,
            () = ready(()) => Ok(Vec::new()),
        };
        *first = arrived.map_err(|error| End::ClientFailed(error.to_string()))?;
    }
    let name = route.map(|route| &route.origin).or(listener.origin.as_ref());
    access.origin = name.map(ToString::to_string);
    config.address(name).map_err(|why| {
        client.reset();
        End::OriginUnreachable(why)
    })
}
