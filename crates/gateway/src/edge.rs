//! The edge, near the origin, without another gateway. It accepts unmodified clients over brisk's TCP and
//! opens ordinary TCP to the origin. If its device serves only a share of the clients, the edge also serves
//! the others, over the kernel's TCP.

use std::convert::Infallible;
use std::future::{Future, poll_fn, ready};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use brisk_packet_io::share::KernelListener;
use brisk_packet_io::sockopt::TcpInfo;
use brisk_packet_io::takeover::Offer;
use brisk_runtime::Endpoint;
use socket2::SockRef;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::access::{Access, ClientTcp, Role};
use crate::clients::ClientSide;
use crate::end::End;
use crate::exempt::Exemptions;
use crate::first_bytes::FirstSender;
use crate::hop::connection::Connection;
use crate::hop::opening::{ClientAddresses, plain};
use crate::hop::stream::HopStream;
use crate::io::reset;
use crate::listeners::{Client, Listener, Socket, Sockets, accept_any};
use crate::log::{Level, Log, Value};
use crate::origins::{OriginName, Origins};
use crate::proxy::ProxyVersion;
use crate::relay::{Carry, OriginRequest, carry};
use crate::routes;
use crate::service::{
    Accepted, Acceptor, Phase, ServiceConfig, Serving, Summary, adopt, poll_first_bytes, serve_until,
};

/// Configuration of an edge.
#[derive(Clone, Debug)]
pub struct EdgeConfig {
    /// Addresses at which clients connect, with their origins and routes. [`Listener::direct`] has no effect
    /// here.
    pub listeners: Vec<Listener>,
    /// The origin of listeners that name none, `HOST:PORT`. A name is resolved for each connection. Default
    /// `None`.
    pub origin: Option<String>,
    /// Origins of listeners and routes by name. Default none.
    pub origins: Origins,
    /// Version of the PROXY header with the client's address, for the origin. Default `None`: no header.
    pub send_proxy: Option<ProxyVersion>,
    /// Brisk's TCP towards the clients.
    pub clients: ClientSide,
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
            clients: ClientSide::default(),
            service: ServiceConfig::default(),
        }
    }

    fn listener(&self, listen: SocketAddr) -> Option<&Listener> {
        self.listeners.iter().find(|listener| listener.listen.addresses().any(|own| own == listen))
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
    shared: Arc<EdgeShared>,
    sockets: Sockets,
    /// The kernel's listeners. The flag is true if the device needs the listener as long as the device
    /// exists.
    kernel: Vec<(std::net::TcpListener, bool)>,
    /// The offers to hand the ports over to a later edge, each with the endpoint of the port.
    offers: Vec<(Offer, Endpoint)>,
}

/// Time for which an edge still accepts clients after another edge has taken its port over. The handshakes of
/// these clients have already begun, and a SYN-ACK may have to be repeated.
const HANDSHAKES: Duration = Duration::from_secs(3);

impl Edge {
    /// Listens at each of these addresses on its endpoint.
    ///
    /// # Errors
    /// If an address is not the endpoint's, or a port is in use.
    pub fn bind(config: EdgeConfig, places: &[(SocketAddr, Endpoint)]) -> io::Result<Edge> {
        let sockets = Sockets::on_stacks(places, &config.clients, config.service.cores.len())?;
        config.service.metrics.expect_clients(ClientTcp::Brisk);
        let current = Mutex::new(Arc::new(config));
        let exemptions = Arc::default();
        let shared = Arc::new(EdgeShared { current, exemptions });
        Ok(Edge { shared, sockets, kernel: Vec::new(), offers: Vec::new() })
    }

    /// Also serves the clients that the kernel accepts at the listeners `others`
    /// ([`AttachConfig::open_share`](brisk_runtime::attach::AttachConfig::open_share)). Each of these
    /// listeners uses the settings of the configured listener at its address. If each of them has a list of
    /// exempt clients, the edge adds the clients whose path fails with brisk's TCP.
    ///
    /// # Errors
    /// If there are no descriptors.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn with_kernel(mut self, others: Vec<(SocketAddr, KernelListener)>) -> io::Result<Edge> {
        let service = self.shared.config().service.clone();
        let lists = others.iter().map(|(_, others)| others.exceptions.clone()).collect::<Option<Vec<_>>>();
        let exemptions = Arc::new(Exemptions::on(lists.unwrap_or_default()));
        service.metrics.count_exempt(exemptions.clone());
        for (address, KernelListener { listener, guards, .. }) in others {
            self.kernel.push((listener.try_clone()?, guards));
            self.sockets.inherit(TcpListener::from_std(listener)?, address, &service.cores);
            service.metrics.expect_clients(ClientTcp::Kernel(TcpInfo::default()));
        }
        let current = Mutex::new(self.shared.config());
        self.shared = Arc::new(EdgeShared { current, exemptions });
        Ok(self)
    }

    /// Adds the offers to hand ports over to a later edge
    /// ([`AttachConfig::open_share`](brisk_runtime::attach::AttachConfig::open_share)), each with the
    /// endpoint of the port. At the signal to stop, an edge that waits gets the ports at once; an edge that
    /// begins to wait later gets them while this one drains. Also begins to take the ports over from the edge
    /// before this one.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn with_offers(self, mut offers: Vec<(Offer, Endpoint)>) -> Edge {
        offers.iter_mut().for_each(|(offer, _)| offer.begin());
        Edge { offers, ..self }
    }

    /// Returns a handle to change the edge while it runs.
    pub fn control(&self) -> EdgeControl {
        EdgeControl(self.shared.clone())
    }

    /// Serves until `shutdown` resolves or a device fails, then drains.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Summary {
        let Edge { shared, sockets, kernel, offers } = self;
        let service = shared.config().service.clone();
        let (open, mut closed) = mpsc::channel(1);
        let acceptor = |core| {
            let (shared, sockets, open) = (shared.clone(), sockets.of_core(core), open.clone());
            EdgeAcceptor { shared, sockets, turn: 0, _open: open }
        };
        let acceptors = (0..service.cores.len().max(1)).map(acceptor).collect();
        drop((sockets, open));
        let (stop, stopped) = oneshot::channel();
        let log = service.log.clone();
        let serving = serve_until(async { stopped.await.unwrap_or_default() }, service, acceptors);
        let ending = async move {
            tokio::select! {
                () = shutdown => {}
                // A device has failed.
                _ = closed.recv() => {}
            }
            let mut handing = HandingOver::begin(offers, &log);
            let is_taken_over = handing.awaited().await;
            let _ = stop.send(if is_taken_over { HANDSHAKES } else { Duration::ZERO });
            closed.recv().await;
            if !is_taken_over {
                tokio::select! {
                    never = refuse(kernel) => match never {},
                    () = handing.next() => {}
                }
            }
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            summary = serving => summary,
            never = ending => match never {},
        }
    }
}

/// The tasks that hand ports over.
struct HandingOver {
    /// Results of the tasks; true if another edge has taken a port over.
    results: mpsc::Receiver<bool>,
    /// The number of ports for which another edge waits.
    awaited: usize,
    /// Ends the tasks.
    _tasks: JoinSet<Infallible>,
}

impl HandingOver {
    fn begin(mut offers: Vec<(Offer, Endpoint)>, log: &Log) -> HandingOver {
        let awaited = offers.iter_mut().filter_map(|(offer, _)| offer.is_awaited().then_some(())).count();
        let (report, results) = mpsc::channel(offers.len().max(1));
        let mut tasks = JoinSet::new();
        for (offer, endpoint) in offers {
            tasks.spawn(hand_over(offer, endpoint, log.clone(), report.clone()));
        }
        HandingOver { results, awaited, _tasks: tasks }
    }

    /// Waits until each waiting edge has taken its port over or given up. Returns true if at least one edge
    /// waited and none has given up.
    async fn awaited(&mut self) -> bool {
        let mut is_taken_over = self.awaited > 0;
        for _ in 0..self.awaited {
            is_taken_over &= self.results.recv().await.unwrap_or(false);
        }
        is_taken_over
    }

    /// Waits until another edge has taken a port over.
    async fn next(&mut self) {
        loop {
            match self.results.recv().await {
                Some(true) => return,
                Some(false) => {}
                // There is no offer.
                None => std::future::pending().await,
            }
        }
    }
}

/// Hands a port over to the next edge; hands it over again if that edge ends before this one.
async fn hand_over(
    mut offer: Offer,
    endpoint: Endpoint,
    log: Log,
    results: mpsc::Sender<bool>,
) -> Infallible {
    let flows = || endpoint.flows().into_iter().map(|flow| (flow.local, flow.remote)).collect();
    loop {
        let result = offer.hand_over(flows).await;
        match &result {
            Ok(count) => {
                log.line(Level::Info, "handed-over", &[("connections", Value::Count(*count as u64))])
            }
            Err(error) => {
                log.line(Level::Error, "not-handed-over", &[("reason", Value::Text(error.to_string()))]);
            }
        }
        let _ = results.send(result.is_ok()).await;
        offer.report(flows).await;
    }
}

/// Makes the kernel refuse new connections. A listener that a device needs stays open and resets the
/// connections that it accepts: without the listener, the kernel would reset the connections of brisk's TCP.
async fn refuse(listeners: Vec<(std::net::TcpListener, bool)>) -> Infallible {
    let (needed, others): (Vec<_>, Vec<_>) = listeners.into_iter().partition(|(_, is_needed)| *is_needed);
    for (listener, _) in others {
        // The device has the same socket, so closing this handle would not suffice.
        let _ = SockRef::from(&listener).shutdown(Shutdown::Both);
    }
    let listeners = needed.into_iter().map(|(listener, _)| listener);
    let listeners: Vec<_> = listeners.filter_map(|one| TcpListener::from_std(one).ok()).collect();
    poll_fn(|cx| {
        for listener in &listeners {
            // After an error the remaining clients stay in the queue. The kernel resets them when the process
            // ends.
            while let Poll::Ready(Ok((client, _))) = listener.poll_accept(cx) {
                reset(&client);
            }
        }
        Poll::Pending
    })
    .await
}

/// A handle to a running edge.
#[derive(Clone, Debug)]
pub struct EdgeControl(Arc<EdgeShared>);

impl EdgeControl {
    /// Applies `config` to new connections: its origins, its routes and its PROXY header. Open connections
    /// keep theirs. Listening addresses, TCP, limits and the log do not change.
    pub fn reload(&self, config: EdgeConfig) {
        let mut current = self.0.current.lock().unwrap_or_else(PoisonError::into_inner);
        let EdgeConfig { clients, service, .. } = EdgeConfig::clone(&current);
        *current = Arc::new(EdgeConfig { clients, service, ..config });
    }
}

/// State that the connections of an edge share.
#[derive(Debug)]
struct EdgeShared {
    current: Mutex<Arc<EdgeConfig>>,
    exemptions: Arc<Exemptions>,
}

impl EdgeShared {
    fn config(&self) -> Arc<EdgeConfig> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The sockets of one core.
struct EdgeAcceptor {
    shared: Arc<EdgeShared>,
    sockets: Vec<Arc<Socket>>,
    /// Selects the socket to try first, and the core for the next connection of a socket that all cores
    /// share.
    turn: usize,
    /// Dropped with the acceptor. The channel closes with the last acceptor, and then the kernel's listeners
    /// refuse clients.
    _open: mpsc::Sender<Infallible>,
}

impl Acceptor for EdgeAcceptor {
    type Connection = Client;

    async fn next(&mut self) -> Option<Accepted<Client>> {
        self.turn = self.turn.wrapping_add(1);
        accept_any(&self.sockets, self.turn, &self.shared.config().service.log).await
    }

    fn serve(&self, accepted: Accepted<Client>, signal: watch::Receiver<Phase>) -> Serving {
        let Accepted { connection: (client, peer, listen), core } = accepted;
        let shared = self.shared.clone();
        Box::pin(async move {
            let client = if core.is_some() { adopt(client).ok()? } else { client };
            serve(shared, client, peer, listen, signal).await
        })
    }
}

async fn serve(
    shared: Arc<EdgeShared>,
    client: Connection,
    peer: SocketAddr,
    listen: SocketAddr,
    mut signal: watch::Receiver<Phase>,
) -> Option<Access> {
    let mut access = Access::begin(Role::Edge, peer);
    access.tcp = Some(match client.socket() {
        None => ClientTcp::Brisk,
        Some(_) => {
            shared.exemptions.accepted(&access);
            ClientTcp::Kernel(TcpInfo::default())
        }
    });
    let config = shared.config();
    access.end = carry_on(&config, client, listen, &mut signal, &mut access).await;
    access.duration = access.began.elapsed();
    let ServiceConfig { log, metrics, .. } = &config.service;
    let peer = || ("client", Value::Text(access.peer.ip().to_canonical().to_string()));
    match shared.exemptions.ended(&access, Instant::now()) {
        Ok(None) => {}
        Ok(Some(sign)) => {
            metrics.exempt(sign);
            log.line(Level::Warning, "exempted", &[peer(), ("sign", Value::Text(sign.name().into()))]);
        }
        Err(error) => {
            log.line(Level::Error, "not-exempted", &[peer(), ("reason", Value::Text(error.to_string()))]);
        }
    }
    Some(access)
}

/// Connects to the origin of a client, and copies data in both directions.
async fn carry_on(
    config: &EdgeConfig,
    mut client: Connection,
    listen: SocketAddr,
    signal: &mut watch::Receiver<Phase>,
    access: &mut Access,
) -> End {
    let timeouts = &config.service.timeouts;
    let Ok(destination) = client.local_addr().map(plain) else {
        return End::ClientFailed("reset before the edge read its address".to_owned());
    };
    let addresses = ClientAddresses { source: access.peer, destination };
    let mut first = Vec::new();
    let address = match route(config, listen, &mut client, &mut first, access).await {
        Ok(address) => address,
        Err(end) => {
            access.end_hop(&client);
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
    let (origin, unsent) = match opened.open(client.failed(), access.role, signal).await {
        Ok(opened) => opened,
        Err(end) => {
            access.end_hop(&client);
            client.reset();
            return end;
        }
    };
    access.bytes_up += first.len().saturating_sub(unsent.len()) as u64;
    access.sent_first = (!first.is_empty()).then_some(FirstSender::Client);
    // Frees these bytes, which have been sent or copied to `unsent`.
    drop(first);
    let with = Carry {
        first: Vec::new(),
        unsent,
        lost: std::future::pending(),
        on_first: &|_| (),
        timeouts,
        signal,
        slot: None,
        exchanges: None,
        unprepared: true,
    };
    carry(Connection::Kernel(origin), HopStream::direct(client, Vec::new()), with, access).await
}

/// Returns the address of the client's origin, and appends the bytes that it reads from the client to
/// `first`.
async fn route<'a>(
    config: &'a EdgeConfig,
    listen: SocketAddr,
    client: &mut Connection,
    first: &mut Vec<u8>,
    access: &mut Access,
) -> Result<&'a str, End> {
    // A reload has just removed this listener.
    let Some(listener) = config.listener(listen) else {
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
        // If the client's SYN carried data, the data is available now and leaves with the opening of the
        // origin's connection.
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
