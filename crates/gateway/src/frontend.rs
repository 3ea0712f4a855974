//! The frontend, near the users. It accepts ordinary TCP and forwards it over the hop to the backend.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use brisk_runtime::{Endpoint, FastOpenConnect, TcpConfig};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::access::{Access, ClientTcp, Role};
use crate::clients::ClientSide;
use crate::end::End;
use crate::entrance::{Admitted, Entrance};
use crate::exchanges::Exchanges;
use crate::first_bytes::{FirstSender, GREETING, Guess, Habits};
use crate::hop::connection::Connection;
use crate::hop::dial::DialError;
use crate::hop::opening::plain;
use crate::hop::stream::HopStream;
use crate::hop::{Ephemerals, Hop, LONGEST_FIRST, Opening, Purpose, Verdict};
use crate::io::prepare;
use crate::listen::Listen;
use crate::listeners::{Client, Listener, Socket, Sockets, accept_any};
use crate::origins::OriginName;
use crate::outgoing::{self, Direct};
use crate::proxy::header;
use crate::relay::{Carry, Stop, carry, within};
use crate::routes::{self, Route};
use crate::service::{
    Accepted, Acceptor, Phase, ServiceConfig, Serving, Summary, adopt, first_bytes, hop_tcp, reached,
    serve_until,
};
use crate::settings::{FrontendSettings, HopSettings};
use crate::transport::{PathState, Transport};
use crate::upstream::{BackendSpec, Dialling, Health, Upstream, Upstreams};

/// Interval at which a held client checks whether a backend is up.
const HELD: Duration = Duration::from_millis(100);

/// Configuration of a frontend.
#[derive(Clone, Debug)]
pub struct FrontendConfig {
    /// Listening address for clients that name their origin ([`entrance`](FrontendConfig::entrance)) or use
    /// the backend's own. If its port is 0, the kernel chooses one.
    pub listen: Option<SocketAddr>,
    /// Listening addresses with an origin of their own. Default none.
    pub listeners: Vec<Listener>,
    /// The backends. At least one.
    pub backends: Vec<BackendSpec>,
    /// Protection of the hop.
    pub hop: Hop,
    /// Lifetime of an ephemeral key pair under a shared key, 0 (for one connection) to 60 s.
    pub ephemeral_lifetime: Duration,
    /// Settings of the hop's connections. Default: [`hop_tcp`].
    pub tcp: TcpConfig,
    /// Opens the hop's connections with Fast Open: the client's first bytes travel with the SYN once the
    /// backend has issued a cookie. This is safe because the backend acts on each first message once
    /// ([`crate::hop::replay`]). Default on.
    pub fast_open: Option<FastOpenConnect>,
    /// A stack on a packet socket, for paths to backends that carry no UDP. Default `None`.
    pub packet: Option<Endpoint>,
    /// Brisk's TCP towards the clients ([`Frontend::on_stacks`]). Default `None`: the kernel's.
    pub clients: Option<ClientSide>,
    /// Time to wait for the client's first bytes while it is unknown which side sends first
    /// ([`crate::first_bytes`]). Bytes that arrive in this time travel with the opening of the hop.
    pub first_bytes_wait: Duration,
    /// Maximum time to wait if clients are known to send first; 0: always wait for `first_bytes_wait`.
    pub first_bytes_limit: Duration,
    /// Protocols in which clients name their origin. Trusted proxies apply to all listeners, the other
    /// settings only to `listen`. Default none.
    pub entrance: Entrance,
    /// True to ask each backend four times a second whether it is up. If false, a backend counts as down
    /// after three failed connections in a row, until a trial by one client succeeds. Default false.
    pub watch: bool,
    /// Destination `HOST:PORT` over the kernel's TCP while no backend is up, optionally with a PROXY header.
    /// A client that a firewall rule has redirected is connected to its own destination instead. A client
    /// that names its origin to a proxy is refused: only the backends know which origins are permitted. A
    /// listener with its own origin has its own setting. Default `None`: clients are reset.
    pub direct: Option<Direct>,
    /// How long a client waits for a backend while none is up and there is no direct destination. Meanwhile
    /// no byte of the client is forwarded, and [`FrontendControl::look_up_wanted`] asks to resolve the names
    /// of the backends again. Default 0: clients are refused at once.
    pub hold: Duration,
    /// Limits and reports.
    pub service: ServiceConfig,
}

impl FrontendConfig {
    /// Returns the default configuration for these three settings.
    pub fn new(listen: SocketAddr, peer: SocketAddr, hop: Hop) -> FrontendConfig {
        FrontendConfig { listen: Some(listen), ..FrontendConfig::between(vec![BackendSpec::new(peer)], hop) }
    }

    /// Returns the default configuration for `backends`, without a listener.
    pub fn between(backends: Vec<BackendSpec>, hop: Hop) -> FrontendConfig {
        FrontendConfig {
            listen: None,
            listeners: Vec::new(),
            backends,
            hop,
            ephemeral_lifetime: HopSettings::default().ephemeral_lifetime(),
            tcp: hop_tcp(TcpConfig::default()),
            fast_open: Some(FastOpenConnect::insured()),
            packet: None,
            clients: None,
            first_bytes_wait: FrontendSettings::default().first_bytes_wait(),
            first_bytes_limit: FrontendSettings::default().first_bytes_limit(),
            entrance: Entrance::default(),
            watch: false,
            direct: None,
            hold: Duration::ZERO,
            service: ServiceConfig::default(),
        }
    }
}

/// A frontend that listens.
#[derive(Debug)]
pub struct Frontend {
    shared: Arc<FrontendShared>,
}

impl Frontend {
    /// Binds the listeners; `endpoint` will open the hop's connections.
    ///
    /// # Errors
    /// If the address cannot be listened on; the text names it.
    pub async fn bind(config: FrontendConfig, endpoint: Endpoint) -> io::Result<Frontend> {
        Frontend::on(Vec::new(), config, endpoint)
    }

    /// Like [`bind`](Frontend::bind), with sockets that are already bound (by systemd). Each is for the
    /// listener at its address; a socket at another address replaces [`FrontendConfig::listen`]. Addresses
    /// without a socket are bound.
    ///
    /// # Errors
    /// If a socket does not listen; those of [`bind`](Frontend::bind).
    pub fn on(
        listeners: Vec<TcpListener>,
        config: FrontendConfig,
        endpoint: Endpoint,
    ) -> io::Result<Frontend> {
        let (mut sockets, mut config) = (Sockets::default(), config);
        for listener in listeners {
            let address = listener.local_addr()?;
            if !config.listeners.iter().flat_map(|own| own.listen.addresses()).any(|own| own == address) {
                config.listen = Some(address);
            }
            sockets.inherit(listener, address, &config.service.cores);
        }
        let sockets = sockets.renewed(&config.addresses(), &config.service.cores)?;
        Ok(Frontend::with(sockets, config, endpoint))
    }

    /// Accepts clients over brisk's TCP ([`FrontendConfig::clients`]): listens at each of these addresses on
    /// its endpoint.
    ///
    /// # Errors
    /// If an address is not the endpoint's, or a port is in use.
    pub fn on_stacks(
        places: &[(SocketAddr, Endpoint)],
        config: FrontendConfig,
        endpoint: Endpoint,
    ) -> io::Result<Frontend> {
        let clients = config.clients.clone().unwrap_or_default();
        let sockets = Sockets::on_stacks(places, &clients, config.service.cores.len())?;
        config.service.metrics.expect_clients(ClientTcp::Brisk);
        Ok(Frontend::with(sockets, FrontendConfig { clients: Some(clients), ..config }, endpoint))
    }

    fn with(sockets: Sockets, config: FrontendConfig, endpoint: Endpoint) -> Frontend {
        let (sockets, _) = watch::channel(Some(sockets));
        let upstreams = Arc::new(Upstreams::new(config.backends.clone()));
        let own = Arc::new(Ephemerals::new(config.ephemeral_lifetime));
        let current = Current::new(config, endpoint, own, upstreams, Arc::default());
        let current = Mutex::new(Arc::new(current));
        Frontend {
            shared: Arc::new(FrontendShared {
                current,
                sockets,
                watches: Mutex::default(),
                look_up: Notify::new(),
            }),
        }
    }

    /// Returns the address and port of [`FrontendConfig::listen`].
    ///
    /// # Errors
    /// If there is none, or the kernel does not report it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        let address = self.shared.current().config.listen.ok_or(io::ErrorKind::NotConnected)?;
        let sockets = self.shared.sockets.borrow();
        sockets.as_ref().ok_or(io::ErrorKind::NotConnected)?.local_addr(address)
    }

    /// Returns a handle to observe and change the frontend while it runs.
    pub fn control(&self) -> FrontendControl {
        FrontendControl(self.shared.clone())
    }

    /// Serves until `shutdown` resolves, then drains.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Summary {
        let Frontend { shared } = self;
        shared.watch_all();
        let service = shared.current().config.service.clone();
        let acceptor = |core| FrontendAcceptor::new(shared.clone(), core);
        let acceptors = (0..service.cores.len().max(1)).map(acceptor).collect();
        let own = shared.current().dialling.own.clone();
        let shutdown = async {
            shutdown.await;
            Duration::ZERO
        };
        let summary = tokio::select! {
            summary = serve_until(shutdown, service, acceptors) => summary,
            never = own.expire() => match never {},
        };
        lock(&shared.watches).abort_all();
        summary
    }
}

/// The listeners of one core.
struct FrontendAcceptor {
    shared: Arc<FrontendShared>,
    core: usize,
    /// The sockets of all cores; a reload changes them.
    all: watch::Receiver<Option<Sockets>>,
    /// The sockets of this core.
    own: Vec<Arc<Socket>>,
    /// Selects the socket to try first, and the core for the next connection of a shared listener.
    turn: usize,
}

impl FrontendAcceptor {
    fn new(shared: Arc<FrontendShared>, core: usize) -> FrontendAcceptor {
        let all = shared.sockets.subscribe();
        let mut acceptor = FrontendAcceptor { shared, core, all, own: Vec::new(), turn: 0 };
        acceptor.renew();
        acceptor
    }

    /// Replaces the sockets by the current ones, after a reload.
    fn renew(&mut self) {
        let all = self.all.borrow_and_update();
        self.own = all.as_ref().map_or_else(Vec::new, |all| all.of_core(self.core));
    }
}

impl Drop for FrontendAcceptor {
    /// Closes the sockets of all acceptors with the first one, so that no client connects to the others.
    fn drop(&mut self) {
        self.shared.sockets.send_replace(None);
    }
}

impl Acceptor for FrontendAcceptor {
    type Connection = Client;

    async fn next(&mut self) -> Option<Accepted<Client>> {
        self.turn = self.turn.wrapping_add(1);
        let log = self.shared.current().config.service.log.clone();
        loop {
            tokio::select! {
                accepted = accept_any(&self.own, self.turn, &log) => return accepted,
                // An error is impossible: the sender lives as long as this acceptor.
                Ok(()) = self.all.changed() => self.renew(),
            }
        }
    }

    fn serve(&self, accepted: Accepted<Client>, signal: watch::Receiver<Phase>) -> Serving {
        let Accepted { connection: (client, peer, listen), core } = accepted;
        let shared = self.shared.clone();
        Box::pin(async move {
            let client = if core.is_some() { adopt(client).ok()? } else { client };
            serve(&shared, listen, client, peer, signal).await
        })
    }
}

/// A listener of a running frontend.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenListener {
    /// The address, or the range of ports.
    pub listen: String,
    /// The name of its origin. `None` without routes: the backend's own, or the one that clients name. `None`
    /// with routes: clients without a route are refused.
    pub origin: Option<OriginName>,
    /// The origins of TLS clients.
    pub routes: Vec<Route>,
}

/// A handle to a running frontend.
#[derive(Clone, Debug)]
pub struct FrontendControl(Arc<FrontendShared>);

impl FrontendControl {
    /// Returns the backends.
    pub fn upstreams(&self) -> Arc<Upstreams> {
        self.0.current().upstreams.clone()
    }

    /// Resolves when a client waits because no backend is up. Resolving the backends' names again may then
    /// help.
    pub async fn look_up_wanted(&self) {
        self.0.look_up.notified().await;
    }

    /// Returns the listening addresses, with the ports that the kernel chose.
    pub fn listening(&self) -> Vec<OpenListener> {
        let current = self.0.current();
        let sockets = self.0.sockets.borrow();
        let local = |address| sockets.as_ref()?.local_addr(address).ok();
        let shown = |listen: &Listen| {
            listen.single().and_then(local).map_or_else(|| listen.to_string(), |address| address.to_string())
        };
        let FrontendConfig { listen, listeners, .. } = &current.config;
        let plain = listen.map(|listen| OpenListener {
            listen: shown(&listen.into()),
            origin: None,
            routes: Vec::new(),
        });
        let named = listeners.iter().map(|listener| OpenListener {
            listen: shown(&listener.listen),
            origin: listener.origin.clone(),
            routes: listener.routes.clone(),
        });
        plain.into_iter().chain(named).collect()
    }

    /// Returns the addresses of [`listening`](FrontendControl::listening) as one text.
    pub fn addresses(&self) -> String {
        let addresses: Vec<String> = self.listening().into_iter().map(|place| place.listen).collect();
        addresses.join(",")
    }

    /// Applies `config` to new connections; existing ones keep theirs. Opens new listeners and closes removed
    /// ones, except on stacks. Other listeners, limits and the log do not change.
    ///
    /// # Errors
    /// If a new address cannot be listened on; then nothing changes.
    pub fn reload(&self, config: FrontendConfig) -> io::Result<()> {
        let before = self.0.current();
        let FrontendConfig { packet, clients, service, .. } = before.config.clone();
        let mut config = FrontendConfig { packet, clients, service, ..config };
        config.entrance.failed_logins = before.config.entrance.failed_logins.clone();
        let sockets = match &*self.0.sockets.borrow() {
            Some(sockets) if config.clients.is_some() => Some(sockets.clone()),
            Some(sockets) => Some(sockets.renewed(&config.addresses(), &config.service.cores)?),
            None => None,
        };
        let upstreams = Arc::new(before.upstreams.renewed(config.backends.clone()));
        let Dialling { endpoint, own, .. } = before.dialling.clone();
        own.set_lifetime(config.ephemeral_lifetime);
        let current = Current::new(config, endpoint, own, upstreams, before.habits.clone());
        *lock(&self.0.current) = Arc::new(current);
        self.0.sockets.send_replace(sockets);
        self.0.watch_all();
        Ok(())
    }
}

/// The current state of a frontend, and the tasks that watch its backends.
#[derive(Debug)]
struct FrontendShared {
    current: Mutex<Arc<Current>>,
    /// Sockets of clients; `None` once no more are accepted.
    sockets: watch::Sender<Option<Sockets>>,
    watches: Mutex<JoinSet<()>>,
    /// Notified when a client begins to wait for a backend; resolves [`FrontendControl::look_up_wanted`].
    look_up: Notify,
}

impl FrontendShared {
    fn current(&self) -> Arc<Current> {
        lock(&self.current).clone()
    }

    /// Starts to watch the current backends, and ends earlier watches.
    fn watch_all(&self) {
        let current = self.current();
        let mut watches = lock(&self.watches);
        watches.abort_all();
        if !current.config.watch {
            return;
        }
        for upstream in current.upstreams.iter() {
            let (upstream, dialling) = (upstream.clone(), current.dialling.clone());
            let log = current.config.service.log.clone();
            watches.spawn(async move { upstream.watch(&dialling, &log).await });
        }
    }
}

/// A connection that was opened for a client.
struct Opened {
    hop: HopStream,
    /// `None` if it leads straight to the origin.
    path: Option<(PathState, Transport)>,
    /// Number of the client's first bytes that have left with the opening, or leave before the relay's.
    sent: usize,
}

type Routed = Result<Opened, Unrouted>;

impl FrontendShared {
    /// True if the destination of a client is the listener itself, because no firewall rule has redirected
    /// the client. A connection to it would cause another one, and so on.
    fn leads_back(&self, listen: SocketAddr, client: &Connection, destination: SocketAddr) -> bool {
        if !client.local_addr().is_ok_and(|local| plain(local) == destination) {
            return false;
        }
        let own = self.sockets.borrow().as_ref().and_then(|sockets| sockets.local_addr(listen).ok());
        // TPROXY keeps the destination as the local address, also if another host has it.
        let is_elsewhere = || {
            let bound = UdpSocket::bind((destination.ip(), 0));
            bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
        };
        own.unwrap_or(listen).port() == destination.port() && !is_elsewhere()
    }

    /// Opens a connection for a client; also returns the settings that it used. While no backend is up, the
    /// client waits for a limited time; then the current backends are tried.
    async fn route(
        &self,
        mut current: Arc<Current>,
        admitted: &Admitted,
        client: &Connection,
        signal: &mut watch::Receiver<Phase>,
        access: &mut Access,
    ) -> (Arc<Current>, Routed) {
        let began = Instant::now();
        loop {
            let is_held = admitted.direct.is_none() && began.elapsed() < current.config.hold;
            // A waiting client's request is not sent to a backend that is down. Otherwise that backend might
            // receive it, and then no other backend may get it.
            if !is_held || !current.upstreams.all_down() {
                let routed = current.route(admitted, client, signal, access).await;
                if !is_held || !matches!(&routed, Err(unrouted) if unrouted.may_wait) {
                    return (current, routed);
                }
            }
            self.look_up.notify_one();
            tokio::select! {
                () = tokio::time::sleep(HELD) => {}
                error = client.failed() => {
                    return (current, Err(Unrouted::of(End::ClientFailed(error.to_string()))));
                }
            }
            current = self.current();
        }
    }
}

/// Locks a mutex. A panic cannot leave a partial value, because values are only replaced.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State that serves a connection.
#[derive(Debug)]
struct Current {
    config: FrontendConfig,
    dialling: Dialling,
    upstreams: Arc<Upstreams>,
    habits: Arc<Habits>,
    /// The listeners by address, including that of [`FrontendConfig::listen`].
    entries: HashMap<SocketAddr, Arc<Entry>>,
}

/// The settings of a listener.
#[derive(Debug)]
struct Entry {
    /// Its name in reports, if there are several.
    name: Option<Arc<str>>,
    entrance: Entrance,
    /// The origin of all its clients; `None`: the origin that they name, or the backend's own.
    origin: Option<OriginName>,
    /// The direct destination for clients that name no origin.
    direct: Option<Direct>,
    /// Other origins for TLS clients by the name of the server.
    routes: Vec<Route>,
}

impl FrontendConfig {
    fn addresses(&self) -> Vec<SocketAddr> {
        let listeners = self.listeners.iter().flat_map(|listener| listener.listen.addresses());
        self.listen.into_iter().chain(listeners).collect()
    }

    fn entries(&self) -> HashMap<SocketAddr, Arc<Entry>> {
        let name = |listen: &Listen| Some(Arc::from(listen.to_string()));
        let plain = self.listen.map(|listen| Entry {
            name: name(&listen.into()).filter(|_| !self.listeners.is_empty()),
            entrance: self.entrance.clone(),
            origin: None,
            direct: self.direct.clone(),
            routes: Vec::new(),
        });
        let mut entries: HashMap<SocketAddr, Arc<Entry>> =
            self.listen.zip(plain.map(Arc::new)).into_iter().collect();
        for Listener { listen, origin, routes, direct } in &self.listeners {
            // The direct destination of the other listeners is for their origin only.
            let usual = self.direct.clone().filter(|_| origin.is_none());
            let entry = Arc::new(Entry {
                name: name(listen),
                entrance: Entrance { proxy_from: self.entrance.proxy_from.clone(), ..Entrance::default() },
                origin: origin.clone(),
                direct: direct.clone().or(usual),
                routes: routes.clone(),
            });
            entries.extend(listen.addresses().map(|address| (address, entry.clone())));
        }
        entries
    }
}

impl Current {
    /// Returns the listener at an address; `None` if it was removed.
    fn entry(&self, address: SocketAddr) -> Option<Arc<Entry>> {
        self.entries.get(&address).cloned()
    }

    fn new(
        config: FrontendConfig,
        endpoint: Endpoint,
        own: Arc<Ephemerals>,
        upstreams: Arc<Upstreams>,
        habits: Arc<Habits>,
    ) -> Current {
        let FrontendConfig { hop, tcp, fast_open, packet, watch: watched, .. } = config.clone();
        let log = config.service.log.clone();
        let dialling = Dialling { endpoint, packet, hop, own, tcp, fast_open, watched, log };
        let entries = config.entries();
        Current { dialling, config, upstreams, habits, entries }
    }
}

async fn serve(
    frontend: &FrontendShared,
    listen: SocketAddr,
    mut client: Connection,
    peer: SocketAddr,
    mut signal: watch::Receiver<Phase>,
) -> Option<Access> {
    let mut shared = frontend.current();
    // `None` if a reload has just removed this listener.
    let entry = shared.entry(listen)?;
    let mut access = Access::begin(Role::Frontend, peer);
    access.listener = entry.name.clone();
    let admitted = shared.admit(&entry, &mut client, peer, &mut signal, &mut access).await;
    let admitted = admitted.and_then(|admitted| {
        let keeps_destination = entry.entrance.transparent && !admitted.0.has_named;
        match keeps_destination && frontend.leads_back(listen, &client, admitted.0.addresses.destination) {
            true => Err(End::ClientFailed("no firewall rule has redirected it".to_owned())),
            false => Ok(admitted),
        }
    });
    let (mut admitted, guess) = match admitted {
        Ok(admitted) => admitted,
        Err(end) => {
            // A connection without data (a health check, a scanner) ends as the client has ended it.
            access.end = end;
            access.duration = access.began.elapsed();
            access.outside = client.stats();
            return Some(access);
        }
    };
    access.user = admitted.user.clone();
    access.client = Some(admitted.addresses.source).filter(|source| *source != plain(peer));
    let asked_at = (!admitted.first.is_empty()).then(Instant::now);
    // Frees the state of the opening before copying starts.
    let routed;
    (shared, routed) = Box::pin(frontend.route(shared, &admitted, &client, &mut signal, &mut access)).await;
    let (awaits, asked) = (admitted.awaits, admitted.origin.is_some());
    let rest = routed.as_ref().map_or_else(|_| Vec::new(), |opened| admitted.first.split_off(opened.sent));
    drop(admitted);
    let routed = match (routed, awaits) {
        (Ok(routed), Some(reply)) => match reply.grant(&mut client).await {
            Ok(()) => Ok(routed),
            Err(error) => Err(Unrouted::of(End::ClientFailed(error.to_string()))),
        },
        (routed, _) => routed,
    };
    if asked {
        shared.habits.answered(routed.is_ok(), guess);
    }
    access.end = match routed {
        Ok(Opened { hop, path, sent }) => {
            access.bytes_up = sent as u64;
            let lost = async move {
                match path {
                    Some((path_state, transport)) => path_state.broken(transport).await,
                    None => std::future::pending().await,
                }
            };
            let opened = Instant::now();
            let on_first = |who| {
                if who == FirstSender::Client || opened.elapsed() < GREETING {
                    shared.habits.learn(who, guess.in_vain());
                }
            };
            let upstream = access.route.as_deref().and_then(|name| shared.upstreams.named(name));
            let exchanged = |took| {
                if let Some(upstream) = upstream {
                    upstream.exchanged(took);
                }
            };
            let timeouts = &shared.config.service.timeouts;
            let with = Carry {
                first: rest,
                unsent: Vec::new(),
                lost,
                on_first: &on_first,
                timeouts,
                signal: &mut signal,
                slot: None,
                exchanges: Some(Exchanges::new(asked_at, &exchanged)),
                unprepared: false,
            };
            carry(client, hop, with, &mut access).await
        }
        Err(Unrouted { end, forbidden, .. }) => {
            let reported = match awaits {
                Some(reply) => reply.refuse(&mut client, forbidden).await.is_ok(),
                None => false,
            };
            if !reported {
                client.reset();
            }
            access.outside = client.stats();
            end
        }
    };
    access.duration = access.began.elapsed();
    if let Some(upstream) = access.route.as_deref().and_then(|name| shared.upstreams.named(name)) {
        upstream.traffic.ended(&access);
    }
    Some(access)
}

impl Current {
    /// Reads from a client before the hop is opened: its destination, and its first bytes if they arrive in
    /// time.
    async fn admit(
        &self,
        entry: &Entry,
        client: &mut Connection,
        peer: SocketAddr,
        signal: &mut watch::Receiver<Phase>,
        access: &mut Access,
    ) -> Result<(Admitted, Guess), End> {
        let FrontendConfig { first_bytes_wait, first_bytes_limit, .. } = &self.config;
        let limit = self.config.service.timeouts.header;
        let mut admitted = entry.entrance.admit(client, peer, limit).await?;
        admitted.direct = match (&admitted.origin, &entry.direct) {
            // Only the backends know which origins the clients of a proxy may name.
            _ if admitted.has_named => None,
            (Some(asked), Some(_)) => Some(Direct { origin: asked.clone(), send_proxy: None }),
            (_, direct) => direct.clone(),
        };
        let route = match entry.routes.is_empty() {
            true => None,
            false => {
                let first = &mut admitted.first;
                routes::of_client(&entry.routes, entry.origin.is_some(), client, first, limit).await?
            }
        };
        if let Some(Route { direct, .. }) = route {
            admitted.direct.clone_from(direct);
        }
        if let Some(origin) = route.map(|route| &route.origin).or(entry.origin.as_ref()) {
            admitted.origin = Some(origin.to_string());
            access.origin = Some(origin.to_string());
        }
        let saved = self.upstreams.saved_by_first_bytes(&self.dialling);
        let origin = admitted.origin.as_deref();
        let guess = self.habits.guess(origin, *first_bytes_wait, *first_bytes_limit, saved);
        // If a backend has accepted this origin before, the client gets success at once, so that it sends its
        // first bytes.
        if let Some(reply) = admitted.awaits.filter(|_| self.habits.grants(guess)) {
            reply.grant(client).await.map_err(|error| End::ClientFailed(error.to_string()))?;
            admitted.awaits = None;
        }
        if admitted.first.is_empty() && admitted.awaits.is_none() {
            let waiting = Instant::now();
            admitted.first = tokio::select! {
                biased;
                first = first_bytes(client, guess.wait) => {
                    first.map_err(|error| End::ClientFailed(error.to_string()))?
                }
                () = reached(Phase::Draining, signal) => Vec::new(),
            };
            access.waited = admitted.first.is_empty().then(|| waiting.elapsed());
        }
        if !admitted.first.is_empty() {
            access.sent_first = Some(FirstSender::Client);
            self.habits.learn(FirstSender::Client, guess);
        }
        Ok((admitted, guess))
    }
}

impl Current {
    /// Opens a connection for a client. Tries the backends in order until a failure forbids another attempt,
    /// and then the direct destination.
    async fn route(
        &self,
        admitted: &Admitted,
        client: &Connection,
        signal: &mut watch::Receiver<Phase>,
        access: &mut Access,
    ) -> Routed {
        let connect_timeout = self.config.service.connect_timeout;
        // If there is no alternative, every client tries the backends that are down.
        let has_other = admitted.direct.is_some() || self.upstreams.any_up();
        let mut untested = self.upstreams.iter().filter(|_| has_other && !self.config.watch);
        if let Some((upstream, limit)) =
            untested.find_map(|upstream| Some((upstream, upstream.begin_trial()?)))
        {
            access.route = Some(upstream.spec.name.clone());
            // The trial carries none of the client's bytes, so the client can go elsewhere if it fails.
            let attempt =
                self.attempt_within(limit.min(connect_timeout), upstream, admitted, &[], client, signal);
            if let Ok(opened) = attempt.await? {
                return Ok(opened);
            }
        }
        let first = &admitted.first[..admitted.first.len().min(LONGEST_FIRST)];
        let mut cause: Option<Cause> = None;
        let (mut is_retryable, mut is_forbidden) = (true, false);
        if admitted.direct.is_none() || self.upstreams.any_up() {
            for upstream in self.upstreams.order() {
                // Another backend has answered, and trying a backend that is down would only delay that
                // answer.
                if upstream.health() == Health::Down && cause.as_ref().is_some_and(Cause::was_answered) {
                    continue;
                }
                access.route = Some(upstream.spec.name.clone());
                let attempt = self.attempt_within(connect_timeout, upstream, admitted, first, client, signal);
                let refused = match attempt.await? {
                    Ok(opened) => return Ok(opened),
                    Err(refused) => refused,
                };
                is_retryable = refused.is_retryable;
                is_forbidden |= refused.verdict == Some(Verdict::Forbidden);
                let next = Cause {
                    backend: upstream.spec.name.clone(),
                    is_down: upstream.health() == Health::Down,
                    attempt: refused,
                };
                if cause.as_ref().is_none_or(|cause| next.explains_more_than(cause)) {
                    cause = Some(next);
                }
                if !is_retryable {
                    break;
                }
            }
        }
        match (&admitted.direct, cause) {
            // Another backend may permit what one has forbidden; the frontend itself may not.
            (Some(direct), _) if is_retryable && !is_forbidden => {
                let connected = self.connect_directly(direct, admitted, signal, access).await;
                connected
                    .map(|hop| Opened { hop, path: None, sent: admitted.first.len() })
                    .map_err(Unrouted::of)
            }
            (_, Some(cause)) => {
                access.route = Some(cause.backend.clone());
                let may_wait = is_retryable && !cause.was_answered();
                Err(Unrouted { may_wait, ..cause.into() })
            }
            (_, None) => {
                let end = End::HopUnreachable("there is no backend".to_owned());
                Err(Unrouted { may_wait: true, ..Unrouted::of(end) })
            }
        }
    }

    /// Like [`Current::attempt`], for at most `limit`. An outer error ends the client's connection.
    async fn attempt_within(
        &self,
        limit: Duration,
        upstream: &Upstream,
        admitted: &Admitted,
        first: &[u8],
        client: &Connection,
        signal: &mut watch::Receiver<Phase>,
    ) -> Result<Result<Opened, Attempt>, Unrouted> {
        let path_state = upstream.path_state();
        let attempt = self.attempt(upstream, admitted, first);
        let opened = tokio::select! {
            biased;
            opened = within(limit, signal, attempt) => opened,
            error = client.failed() => {
                return Err(Unrouted::of(End::ClientFailed(error.to_string())));
            }
        };
        match opened {
            Ok(Ok((hop, transport))) => {
                Ok(Ok(Opened { hop, path: Some((path_state, transport)), sent: first.len() }))
            }
            Ok(Err(refused)) => Ok(Err(refused)),
            Err(Stop::Drained) => Err(Unrouted::of(End::Drained)),
            Err(Stop::Late(why)) => {
                upstream.outcome(false, self.config.watch, &self.config.service.log);
                Ok(Err(Attempt::lost(why)))
            }
        }
    }

    /// Tries one backend. `first`, the beginning of the client's first bytes, leaves with the opening.
    async fn attempt(
        &self,
        upstream: &Upstream,
        admitted: &Admitted,
        first: &[u8],
    ) -> Result<(HopStream, Transport), Attempt> {
        let opening = Opening {
            client: Some(admitted.addresses),
            origin: admitted.origin.clone(),
            ..Opening::new(Purpose::Carry)
        };
        // A backend that was already down is tried only because there is no other.
        let was_down = upstream.health() == Health::Down;
        let opened = tokio::select! {
            biased;
            opened = upstream.open(&self.dialling, &opening, first) => opened,
            () = upstream.dead() => return Err(Attempt::lost(match was_down {
                true => "the backend is down and does not answer".to_owned(),
                false => "the backend failed while the request waited".to_owned(),
            })),
        };
        let log = &self.config.service.log;
        match &opened {
            Err(error) if error.is_port_closed() => upstream.on_refused(),
            Err(DialError::Connection(_)) => upstream.on_closed(),
            Ok(_) | Err(_) => {}
        }
        let good = matches!(opened, Ok(_) | Err(DialError::Refused(_)));
        upstream.outcome(good, self.config.watch, log);
        opened.map_err(|error| Attempt {
            is_retryable: error.is_retryable(),
            why: error.to_string(),
            verdict: match error {
                DialError::Refused(verdict) => Some(verdict),
                DialError::Unsealed(_)
                | DialError::Unopened(_)
                | DialError::Handshake(_)
                | DialError::Connection(_) => None,
            },
        })
    }

    /// Connects to the origin over the kernel's TCP.
    async fn connect_directly(
        &self,
        direct: &Direct,
        admitted: &Admitted,
        signal: &mut watch::Receiver<Phase>,
        access: &mut Access,
    ) -> Result<HopStream, End> {
        let origin = &direct.origin;
        access.route = Some(format!("direct:{origin}"));
        let connecting = outgoing::connect(origin.as_str());
        let stream = match within(self.config.service.connect_timeout, signal, connecting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(End::OriginUnreachable(error.to_string())),
            Err(Stop::Late(why)) => return Err(End::OriginUnreachable(why)),
            Err(Stop::Drained) => return Err(End::Drained),
        };
        prepare(&stream);
        let mut first = match direct.send_proxy {
            Some(version) => header(version, Some(admitted.addresses)),
            None => Vec::new(),
        };
        first.extend_from_slice(&admitted.first);
        // These bytes leave when the relay begins, within its limits.
        Ok(HopStream::direct(Connection::Kernel(stream), first))
    }
}

/// A failed attempt to open a connection through a backend.
struct Attempt {
    why: String,
    /// True if another backend may be tried ([`DialError::is_retryable`]).
    is_retryable: bool,
    /// The backend's answer, if it gave one.
    verdict: Option<Verdict>,
}

/// The failure that best explains why a client was not served.
struct Cause {
    backend: String,
    is_down: bool,
    attempt: Attempt,
}

impl Cause {
    /// True if the backend has answered.
    fn was_answered(&self) -> bool {
        self.attempt.verdict.is_some()
    }

    /// True if this failure explains more than `other`. An answer explains more than a failure to reach a
    /// backend. A failure of a backend that is up explains more than that of a backend that is down.
    fn explains_more_than(&self, other: &Cause) -> bool {
        (self.was_answered(), !self.is_down) > (other.was_answered(), !other.is_down)
    }
}

impl From<Cause> for Unrouted {
    fn from(cause: Cause) -> Unrouted {
        let Cause { backend, is_down, attempt: Attempt { why, verdict, .. } } = cause;
        let end = match (verdict, is_down) {
            (Some(Verdict::Limited), _) => End::Limited(why),
            (Some(_), _) => End::OriginUnreachable(why),
            (None, true) => End::HopUnreachable(format!("no backend is up ({backend}: {why})")),
            (None, false) => End::HopUnreachable(why),
        };
        Unrouted { end, forbidden: verdict == Some(Verdict::Forbidden), may_wait: false }
    }
}

/// Reason why a client got no connection.
struct Unrouted {
    end: End,
    /// True if a rule of the backend forbids it.
    forbidden: bool,
    /// True if no backend has answered, and certainly none has received any data.
    may_wait: bool,
}

impl Unrouted {
    fn of(end: End) -> Unrouted {
        Unrouted { end, forbidden: false, may_wait: false }
    }
}

impl Attempt {
    /// Returns a failed attempt that may have delivered data.
    fn lost(why: String) -> Attempt {
        Attempt { why, is_retryable: false, verdict: None }
    }
}
