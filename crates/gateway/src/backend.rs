//! The backend, near the origin. It accepts connections from the frontend over the hop and opens ordinary TCP
//! to the origin.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use brisk_packet_io::udp::UdpDevice;
use brisk_runtime::attach::Attached;
use brisk_runtime::fast_open::{EarlyResponse, ReplayWindow};
use brisk_runtime::{Endpoint, FastOpenListen, ListenConfig, TcpConfig, TcpListener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, watch};

use crate::access::{Access, Role};
use crate::allow::Allow;
use crate::end::End;
use crate::first_bytes::FirstSender;
use crate::frontends::{FrontendLimits, FrontendSlot, TooMany};
use crate::hop::answer::{Asked, Rejected, Run, beginning, receive};
use crate::hop::connection::Connection;
use crate::hop::{Hop, Purpose, Verdict};
use crate::io::reset;
use crate::listeners::{accept, accept_on_stacks, listen_at, listen_on, spread};
use crate::log::{Level, Log, RateLimit, Value};
use crate::origins::Origins;
use crate::outgoing;
use crate::peer;
use crate::proxy::ProxyVersion;
use crate::relay::{Carry, OriginRequest, carry};
use crate::roaming::{Moved, Roaming, Secret};
use crate::service::{
    Accepted, Acceptor, BACKLOG, OpenSocket, Phase, ServiceConfig, Serving, Summary, accept_failed,
    first_bytes, hop_tcp, on_each, reached, serve_until,
};
use crate::settings::{BackendSettings, HopSettings};
use crate::timeouts::{Timeout, Timeouts};
use crate::unproven::Unproven;

/// Limit of unacknowledged connections of the hop that data on a SYN has opened. It applies to their total
/// and to each frontend.
const PENDING: u16 = 4096;
/// Time to wait for the origin's first bytes, so that they leave together with the second message of the
/// handshake.
const ANSWER_WAIT: Duration = Duration::from_millis(5);
/// Maximum silence of a frontend on its watch: the connection over which it checks the backend
/// ([`crate::upstream`]).
const WATCH_SILENCE: Duration = Duration::from_secs(30);
/// Time for which the backend still accepts connections after the signal to stop. It informs its frontends at
/// once, but their earlier requests are still on the way, and their SYNs may have been lost.
const FAREWELL: Duration = Duration::from_secs(1);
/// Time limit for sending a refusal.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Configuration of a backend.
#[derive(Clone, Debug)]
pub struct BackendConfig {
    /// Address and port on the hop's stack that frontends connect to.
    pub listen: SocketAddr,
    /// The origin, `HOST:PORT`. A name is resolved for each connection, so that changes of its address take
    /// effect. `None`: only origins that frontends request, if `origins` or `allow` permit them.
    pub origin: Option<String>,
    /// Protection of the hop.
    pub hop: Hop,
    /// Lifetime of an ephemeral key pair under a shared key, 0 (for one connection) to 60 s.
    pub ephemeral_lifetime: Duration,
    /// Settings of the hop's connections. Default: [`hop_tcp`].
    pub tcp: TcpConfig,
    /// Accepts the first bytes of a connection with its SYN. The backend acts on such data once
    /// ([`crate::hop::replay`]). Over a plain hop it recognises a repeated SYN only while the connection
    /// exists and for two minutes after. Default on, with at most 4096 unacknowledged connections in total
    /// and for each frontend.
    pub fast_open: Option<FastOpenListen>,
    /// Maximum age of a first message at its arrival, 1 s to 1 h. An older message needs a confirmation,
    /// which costs a round trip. Messages are remembered for twice as long.
    pub replay_tolerance: Duration,
    /// Address at which the kernel's TCP listens, for frontends whose path carries no other transport.
    /// Default `None`.
    pub kernel_listen: Option<SocketAddr>,
    /// A stack on a packet socket, for the same port. It serves frontends whose path carries no UDP, over
    /// brisk's TCP or the kernel's. Default `None`.
    pub packet: Option<Endpoint>,
    /// Other origins that frontends may request by address. Default none.
    pub allow: Vec<Allow>,
    /// Origins that frontends may request by name. Default none.
    pub origins: Origins,
    /// True to connect to the origin from the client's own address. The origin's answers must then be routed
    /// through this host. Default false.
    pub as_client: bool,
    /// Version of the PROXY header with the client's address, for the origin. Default `None`: no header.
    pub send_proxy: Option<ProxyVersion>,
    /// The device of the hop, which translates addresses in the stack to outside addresses. `None`: reports
    /// contain the addresses in the stack.
    pub attached: Option<Attached>,
    /// Limits of frontends with their own keys, by label. Default none.
    pub frontend_limits: BTreeMap<String, FrontendLimits>,
    /// Limits and reports.
    pub service: ServiceConfig,
}

impl BackendConfig {
    /// Returns the default configuration for these three settings.
    pub fn new(listen: SocketAddr, origin: impl Into<Option<String>>, hop: Hop) -> BackendConfig {
        // An encrypted hop recognises a repeated first message itself. So it needs no replay window of the
        // TCP, which would limit the rate of SYNs.
        let authenticated = !matches!(hop, Hop::Plain);
        let replay_window = (!authenticated).then(ReplayWindow::default);
        BackendConfig {
            listen,
            origin: origin.into(),
            hop,
            ephemeral_lifetime: HopSettings::default().ephemeral_lifetime(),
            replay_tolerance: BackendSettings::default().replay_tolerance(),
            kernel_listen: None,
            packet: None,
            allow: Vec::new(),
            origins: Origins::default(),
            as_client: false,
            send_proxy: None,
            tcp: hop_tcp(TcpConfig::default()),
            fast_open: Some(FastOpenListen {
                max_pending: PENDING,
                max_per_ip: PENDING,
                data_after_syn: true,
                early_response: if authenticated {
                    EarlyResponse::Authenticated
                } else {
                    EarlyResponse::Standard
                },
                replay_window,
                ..FastOpenListen::default()
            }),
            attached: None,
            frontend_limits: BTreeMap::new(),
            service: ServiceConfig::default(),
        }
    }
}

/// A backend that listens.
#[derive(Debug)]
pub struct Backend {
    shared: Arc<BackendShared>,
    /// At least one.
    listeners: Vec<TcpListener>,
    local: SocketAddr,
    /// Listeners of the kernel's TCP: one for each core, one for all, or none.
    kernel: Vec<tokio::net::TcpListener>,
}

impl Backend {
    /// Listens on the stack of `endpoint`.
    ///
    /// # Errors
    /// If the address is not the endpoint's, or the port is in use; if `as_client` is set and the system does
    /// not permit it.
    pub fn bind(config: BackendConfig, endpoint: &Endpoint) -> io::Result<Backend> {
        if config.as_client {
            outgoing::may_connect_as().map_err(|error| {
                io::Error::new(error.kind(), format!("--as-client: {error}; or use --send-proxy instead"))
            })?;
        }
        let (tcp, fast_open) = (config.tcp.clone(), config.fast_open.clone());
        let listen = ListenConfig { tcp, fast_open, backlog: BACKLOG.into(), ..ListenConfig::default() };
        let mut listeners = listen_on(endpoint, config.listen, &listen)?;
        let local = listeners.first().map_or(config.listen, TcpListener::local_addr);
        if let (Some(packet), Some(address)) = (&config.packet, config.kernel_listen) {
            listeners.extend(listen_on(packet, address, &listen)?);
        }
        let tolerance = config.replay_tolerance.clamp(Duration::from_secs(1), Duration::from_secs(3600));
        // With a packet socket the kernel cannot use the port. The stack on that socket accepts the kernel's
        // connections too.
        let kernel = config.kernel_listen.filter(|_| config.packet.is_none()).map(listen_at).transpose()?;
        let kernel = kernel.map_or_else(Vec::new, |listener| on_each(listener, &config.service.cores));
        config.service.metrics.frontends().set(config.hop.labels(), &config.frontend_limits);
        let run = Run::begin(tolerance, config.ephemeral_lifetime)?;
        let rejections = RateLimit::new(Duration::from_secs(1));
        let max = config.service.max_connections.clamp(1, Semaphore::MAX_PERMITS);
        let current = Mutex::new(Arc::new(config));
        let shared = Arc::new(BackendShared {
            current,
            endpoint: endpoint.clone(),
            run,
            roaming: Roaming::default(),
            rejections,
            unproven: Unproven::new(max),
            slots: Semaphore::new(max),
        });
        Ok(Backend { shared, listeners, local, kernel })
    }

    /// Returns a handle to change the backend while it runs.
    pub fn control(&self) -> BackendControl {
        BackendControl(self.shared.clone())
    }

    /// Returns the address and port on the hop's stack.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Serves until `shutdown` resolves or the hop's device fails, then drains.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Summary {
        let Backend { shared, listeners, local: _, kernel } = self;
        let mut service = shared.config().service.clone();
        // Peers that have not proven anything yet get additional slots, so they take none from the others.
        service.max_connections = service.max_connections.saturating_add(shared.unproven.max());
        let acceptors = backend_acceptors(&shared, listeners, kernel, service.cores.len().max(1));
        let shutdown = async {
            shutdown.await;
            FAREWELL
        };
        tokio::select! {
            summary = serve_until(shutdown, service, acceptors) => summary,
            never = shared.run.own.expire() => match never {},
        }
    }
}

/// Returns an acceptor for each of `count` cores, which divide the listeners of the stacks.
fn backend_acceptors(
    shared: &Arc<BackendShared>,
    listeners: Vec<TcpListener>,
    kernel: Vec<tokio::net::TcpListener>,
    count: usize,
) -> Vec<BackendAcceptor> {
    let acceptor =
        || BackendAcceptor { shared: shared.clone(), listeners: Vec::new(), kernel: None, turn: 0 };
    let mut acceptors: Vec<_> = (0..count).map(|_| acceptor()).collect();
    for (acceptor, listeners) in acceptors.iter_mut().zip(spread(listeners, count)) {
        acceptor.listeners = listeners;
    }
    let is_only = kernel.len() < count;
    for (acceptor, listener) in acceptors.iter_mut().zip(kernel) {
        acceptor.kernel = Some(OpenSocket { listener, is_only });
    }
    acceptors
}

/// The listeners of one core.
struct BackendAcceptor {
    shared: Arc<BackendShared>,
    listeners: Vec<OpenSocket<TcpListener>>,
    kernel: Option<OpenSocket<tokio::net::TcpListener>>,
    /// Selects the listener to try first, and the core for the next connection of a listener that all cores
    /// share.
    turn: usize,
}

impl Acceptor for BackendAcceptor {
    type Connection = (Connection, SocketAddr);

    async fn next(&mut self) -> Option<Accepted<(Connection, SocketAddr)>> {
        self.turn = self.turn.wrapping_add(1);
        let config = self.shared.config();
        let log = &config.service.log;
        let accepted = tokio::select! {
            accepted = accept_on_stacks(&self.listeners, self.turn) => accepted.map(|accepted| {
                let Accepted { connection: (stream, peer), core } = accepted;
                Accepted { connection: (Connection::Brisk(stream), peer), core }
            }),
            accepted = accept_kernel(self.kernel.as_ref(), self.turn, log) => Ok(accepted),
        };
        accepted.inspect_err(|error| accept_failed(log, error)).ok()
    }

    fn serve(&self, accepted: Accepted<(Connection, SocketAddr)>, signal: watch::Receiver<Phase>) -> Serving {
        let (connection, peer) = accepted.connection;
        let peer = self.shared.config().attached.as_ref().map_or(peer, |attached| attached.peer(peer));
        Box::pin(serve(self.shared.clone(), connection, peer, signal))
    }
}

/// Waits for the next frontend over the kernel's TCP; never resolves without a listener.
async fn accept_kernel(
    listening: Option<&OpenSocket<tokio::net::TcpListener>>,
    turn: usize,
    log: &Log,
) -> Accepted<(Connection, SocketAddr)> {
    let Some(listening) = listening else { return std::future::pending().await };
    let (stream, peer) = accept(&listening.listener, log).await;
    listening.accepted((Connection::Kernel(stream), peer), turn)
}

/// A handle to a running backend.
#[derive(Clone, Debug)]
pub struct BackendControl(Arc<BackendShared>);

impl BackendControl {
    /// Applies `config` to new connections; existing ones keep their configuration. Listeners, device, limits
    /// and the log do not change.
    pub fn reload(&self, config: BackendConfig) {
        let mut current = self.0.current.lock().unwrap_or_else(PoisonError::into_inner);
        let BackendConfig { listen, kernel_listen, packet, attached, service, .. } =
            BackendConfig::clone(&current);
        self.0.run.own.set_lifetime(config.ephemeral_lifetime);
        service.metrics.frontends().set(config.hop.labels(), &config.frontend_limits);
        let kept = BackendConfig { listen, kernel_listen, packet, attached, service, ..config };
        *current = Arc::new(kept);
    }
}

/// State that the connections of a backend share.
#[derive(Debug)]
struct BackendShared {
    current: Mutex<Arc<BackendConfig>>,
    /// The stack of the hop.
    endpoint: Endpoint,
    run: Run,
    roaming: Roaming,
    rejections: RateLimit,
    unproven: Unproven,
    /// `max_connections` permits, for connections whose peers hold the key.
    slots: Semaphore,
}

async fn serve(
    shared: Arc<BackendShared>,
    connection: Connection,
    peer: SocketAddr,
    mut signal: watch::Receiver<Phase>,
) -> Option<Access> {
    let mut access = Access::begin(Role::Backend, peer);
    let config = shared.config();
    let mut place = shared.unproven.enter();
    let read = tokio::select! {
        biased;
        read = read_first_message(connection, &config, &shared.run) => read,
        () = place.displaced() => Err(Rejected::Displaced),
        () = reached(Phase::Cut, &mut signal) => return None,
    };
    drop(place);
    let asked = match read {
        Ok(asked) => asked,
        // Frontends close unused spare connections without a message, and so do health checks.
        Err(Rejected::Silent) => return None,
        Err(rejected) => {
            if matches!(rejected, Rejected::Late) {
                config.service.metrics.timed_out(Timeout::Header);
            }
            return shared.reject(peer, &rejected);
        }
    };
    access.frontend = asked.frontend.clone();
    // An error is impossible: the semaphore is never closed.
    let slot = tokio::select! {
        biased;
        slot = shared.slots.acquire() => Ok(slot),
        error = asked.connection().failed() => Err(End::HopFailed(error.to_string())),
        () = reached(Phase::Cut, &mut signal) => Err(End::Drained),
    };
    access.end = match (asked.opening.purpose, &slot) {
        (Purpose::Watch, Err(_)) => return None,
        (Purpose::Carry, Err(end)) => {
            asked.connection().reset();
            end.clone()
        }
        (Purpose::Watch, Ok(_)) => {
            let frontends = config.service.metrics.frontends();
            match access.frontend.as_deref().map_or(Ok(None), |label| frontends.admit_watch(label)) {
                Ok(_watch) => {
                    let mut cut = signal.clone();
                    // The frontend has closed the watch, which needs no report.
                    tokio::select! {
                        biased;
                        () = reached(Phase::Cut, &mut cut) => {}
                        _ = answer_watch(&shared, asked, peer, &mut signal) => {}
                    }
                    return None;
                }
                Err(why) => {
                    refuse(asked, Verdict::Limited, &shared.run).await;
                    End::Limited(why.to_string())
                }
            }
        }
        (Purpose::Carry, Ok(_)) => {
            let frontends = config.service.metrics.frontends();
            let slot = access.frontend.as_deref().map_or(Ok(None), |label| frontends.admit(label));
            carry_on(&config, &shared.run, asked, slot, &mut signal, &mut access).await
        }
    };
    access.duration = access.began.elapsed();
    Some(access)
}

/// Reads the first message, which arrives with the SYN or right after the handshake. If it is lost, the
/// frontend repeats it as long as it waits for an answer. So a limit shorter than the frontend's would reset
/// clients that could still be served.
async fn read_first_message(
    mut connection: Connection,
    config: &BackendConfig,
    run: &Run,
) -> Result<Asked, Rejected> {
    let ServiceConfig { connect_timeout, timeouts: Timeouts { header, .. }, .. } = config.service;
    let silence = header.max(connect_timeout);
    let late = |_| Rejected::Late;
    let arrived = tokio::time::timeout(silence, beginning(&mut connection)).await.map_err(late)??;
    tokio::time::timeout(header, receive(connection, arrived, &config.hop, run)).await.map_err(late)?
}

impl BackendShared {
    fn config(&self) -> Arc<BackendConfig> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the address of a frontend in the stack if its connections may follow it to another address.
    /// This needs TCP in UDP and a key: without a key, anyone could pretend to be this frontend.
    fn followed(&self, (local, remote): (IpAddr, IpAddr)) -> Option<IpAddr> {
        let config = self.config();
        let is_udp =
            matches!(config.attached, Some(Attached::Udp { .. })) && local == UdpDevice::local_inner();
        (is_udp && !matches!(config.hop, Hop::Plain)).then_some(remote)
    }

    /// Registers the secret of a frontend at the address `inside` of the stack.
    fn register(
        &self,
        secret: Secret,
        frontend: Option<Arc<str>>,
        inside: IpAddr,
        peer: SocketAddr,
    ) -> Option<Moved> {
        let moved = self.roaming.register(&self.endpoint, secret, frontend.clone(), (inside, peer))?;
        let mut fields =
            vec![("peer", Value::Text(peer.to_string())), ("before", Value::Text(moved.before.to_string()))];
        fields.extend(frontend.map(|frontend| ("frontend", Value::Text(frontend.to_string()))));
        self.config().service.log.line(Level::Info, "moved", &fields);
        Some(moved)
    }

    /// Returns the lost segments per million on the path to a frontend, whichever stack has measured them.
    fn loss(&self, local: IpAddr, remote: IpAddr) -> Option<u32> {
        let packet = self.config().packet.clone();
        peer::loss(&self.endpoint, local, remote).or_else(|| peer::loss(&packet?, local, remote))
    }

    /// Logs why a connection is not served, once a second at most, because anyone can cause it.
    fn reject(&self, peer: SocketAddr, why: &Rejected) -> Option<Access> {
        self.config().service.metrics.reject();
        if let Some(suppressed) = self.rejections.permit(Instant::now()) {
            let mut fields = vec![("peer", Value::Text(peer.to_string()))];
            if let Rejected::Repeated { frontend: Some(frontend) } = why {
                fields.push(("frontend", Value::Text(frontend.to_string())));
            }
            fields.push(("reason", Value::Text(why.to_string())));
            fields.push(("suppressed", Value::Count(suppressed)));
            self.config().service.log.line(Level::Warning, "rejected", &fields);
        }
        None
    }
}

/// Returns the origin of a connection. The frontend may have `asked` for it by name or address. An error says
/// why there is none.
fn permitted<'a>(config: &'a BackendConfig, asked: Option<&'a str>) -> Result<&'a str, String> {
    match (asked, &config.origin) {
        (Some(name), _) if !name.contains(':') => {
            config.origins.get(name).ok_or_else(|| format!("no origin of this backend is named {name}"))
        }
        (Some(asked), _) if config.allow.iter().any(|rule| rule.permits(asked)) => Ok(asked),
        (Some(asked), _) => Err(format!("{asked} is not an allowed origin")),
        (None, Some(origin)) => Ok(origin),
        (None, None) => {
            Err("the frontend asked for no origin, and this backend has no default one (to)".to_owned())
        }
    }
}

/// Connects to the origin, reports the result to the frontend, and copies data in both directions.
async fn carry_on(
    config: &BackendConfig,
    run: &Run,
    asked: Asked,
    slot: Result<Option<FrontendSlot>, TooMany>,
    signal: &mut watch::Receiver<Phase>,
    access: &mut Access,
) -> End {
    access.client = asked.opening.client.map(|client| client.source);
    // At its limit a frontend may connect to the origin without a backend, so it must learn that this origin
    // is forbidden.
    let opened = match (permitted(config, asked.opening.origin.as_deref()), &slot) {
        (Err(why), _) => Err((Verdict::Forbidden, End::OriginUnreachable(why))),
        (Ok(_), Err(why)) => Err((Verdict::Limited, End::Limited(why.to_string()))),
        (Ok(origin), Ok(_)) => {
            access.origin = asked.opening.origin.clone().filter(|name| !name.contains(':'));
            let failed = asked.connection().failed();
            let opened = OriginRequest {
                origin,
                client: asked.opening.client,
                as_client: config.as_client,
                send_proxy: config.send_proxy,
                first: &asked.first,
                limit: config.service.connect_timeout,
            };
            let opened = opened.open(failed, access.role, signal).await;
            opened.map_err(|end| (Verdict::OriginUnreachable, end))
        }
    };
    let slot = slot.ok().flatten();
    let (mut origin, unsent) = match opened {
        Ok(opened) => opened,
        Err((verdict, end)) => {
            access.hop = asked.connection().stats();
            refuse(asked, verdict, run).await;
            return end;
        }
    };
    let sent = asked.first.len().saturating_sub(unsent.len());
    access.bytes_up += sent as u64;
    if let Some(slot) = &slot {
        slot.charge(sent, true);
    }
    access.sent_first = (!asked.first.is_empty()).then_some(FirstSender::Client);
    // The answer to the frontend leaves together with the origin's first bytes, if they arrive soon.
    let answer = match first_bytes(&mut origin, ANSWER_WAIT).await {
        Ok(answer) => answer,
        Err(error) => {
            access.hop = asked.connection().stats();
            answer_and_reset(asked, run).await;
            return End::OriginFailed(error.to_string());
        }
    };
    match asked.send_verdict(Verdict::Go, run).await {
        Ok(hop) => {
            let timeouts = &config.service.timeouts;
            let with = Carry {
                first: answer,
                unsent,
                lost: std::future::pending(),
                on_first: &|_| (),
                timeouts,
                signal,
                slot: slot.as_ref(),
                exchanges: None,
                unprepared: true,
            };
            carry(Connection::Kernel(origin), hop, with, access).await
        }
        Err(error) => {
            reset(&origin);
            End::HopFailed(error.to_string())
        }
    }
}

/// Sends a verdict that ends the connection. If it is lost, the frontend sees only that the connection ends.
async fn refuse(asked: Asked, verdict: Verdict, run: &Run) {
    let refused = async {
        let mut hop = asked.send_verdict(verdict, run).await.ok()?;
        hop.split().1.shutdown().await.ok()
    };
    let _ = tokio::time::timeout(REFUSAL_TIMEOUT, refused).await;
}

/// Answers the frontend, and then resets the connection because the origin has failed. Without the answer,
/// the frontend could not tell this from a wrong key, and Fast Open from a path that drops what follows a SYN
/// with data.
async fn answer_and_reset(asked: Asked, run: &Run) {
    asked.connection().reset();
    let answered = async {
        let mut hop = asked.send_verdict(Verdict::Go, run).await.ok()?;
        hop.split().1.flush().await.ok()?;
        hop.connection().acknowledged().await;
        Some(())
    };
    let _ = tokio::time::timeout(REFUSAL_TIMEOUT, answered).await;
}

/// Answers a frontend's watch until it ends.
async fn answer_watch(
    shared: &BackendShared,
    asked: Asked,
    peer: SocketAddr,
    signal: &mut watch::Receiver<Phase>,
) -> io::Result<()> {
    let frontend = asked.frontend.clone();
    let mut hop = asked.send_verdict(Verdict::Go, &shared.run).await.map_err(io::Error::other)?;
    let ends = hop.connection().ends();
    hop.split().1.flush().await?;
    let mut registered = None;
    loop {
        // The limit also covers the secret of a registration, and answers that the frontend does not read.
        let answered = tokio::time::timeout(WATCH_SILENCE, async {
            let (mut read, mut write) = hop.split();
            let question = tokio::select! {
                biased;
                () = reached(Phase::Draining, signal) => {
                    peer::announce_draining(&mut write).await?;
                    return io::Result::Ok(false);
                }
                question = read.read_u8() => question?,
            };
            if let (peer::REGISTER, Some(remote)) = (question, ends.and_then(|ends| shared.followed(ends))) {
                let register = |secret| {
                    registered = Some(secret);
                    shared.register(secret, frontend.clone(), remote, peer)
                };
                peer::take_registration(&mut read, &mut write, register).await?;
                return Ok(true);
            }
            if let Some(secret) = registered {
                shared.roaming.hear(secret);
            }
            let loss = || ends.and_then(|(local, remote)| shared.loss(local, remote));
            let segment = if question == peer::FULL { hop.connection().segment() } else { 0 };
            peer::answer(&mut hop.split().1, question, loss, segment).await?;
            Ok(true)
        });
        if !answered.await?? {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use brisk_link::LinkSpec;
    use brisk_runtime::attach::AttachConfig;
    use brisk_runtime::memory;

    use super::*;
    use crate::hop::dial::{DialError, ask, dial};
    use crate::hop::ephemeral::Ephemerals;
    use crate::hop::opening::Opening;
    use crate::hop::pairs::{PrivateKey, StaticKeys};
    use crate::hop::stamp::BackendClock;
    use crate::hop::stream::HopStream;
    use crate::hop::{HopKey, KeyRing};
    use crate::log::Log;

    /// Time limit of a step, far longer than the step takes.
    const LIMIT: Duration = Duration::from_secs(20);

    /// Opens a watch from `near` to the backend at `address`.
    async fn watch(near: &Endpoint, address: SocketAddr, hop: &Hop) -> Result<HopStream, DialError> {
        let own = Arc::new(Ephemerals::new(Duration::ZERO));
        let (dialled, message) = dial(hop, &own, &Opening::new(Purpose::Watch), b"")?;
        let stream = near.connect(address).await?;
        let answered = ask(Connection::Brisk(stream), &message, 0).await?;
        dialled.finish(answered, &BackendClock::default()).await
    }

    fn silent(drain_timeout: Duration) -> ServiceConfig {
        ServiceConfig { log: Log::silent(), drain_timeout, ..ServiceConfig::default() }
    }

    #[tokio::test]
    async fn registration_without_a_secret_ends_with_the_drain_limit() {
        let host = || {
            let (builder, attached) = AttachConfig::new("udp:127.0.0.1:0".parse().unwrap()).open().unwrap();
            (builder.build().unwrap(), attached)
        };
        let ((far, served), (near, attached)) = (host(), host());
        let hop = Hop::Sealed(KeyRing::of(HopKey::new([7; 32])));
        let inside = SocketAddr::new("::".parse().unwrap(), served.service_port(1));
        let config = BackendConfig {
            service: silent(Duration::from_millis(100)),
            attached: Some(served.clone()),
            ..BackendConfig::new(inside, "127.0.0.1:9".to_owned(), hop.clone())
        };
        let backend = Backend::bind(config, &far).unwrap();
        let address = attached.destination(served.outside(backend.local_addr())).unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let backend = tokio::spawn(backend.run(async move { drop(stopped.await) }));
        let mut hop = watch(&near, address, &hop).await.unwrap();
        let (mut read, mut write) = hop.split();
        write.write_all(&[peer::REGISTER]).await.unwrap();
        write.flush().await.unwrap();
        // The backend follows frontends and waits for the secret.
        assert_eq!(tokio::time::timeout(LIMIT, read.read_u8()).await.unwrap().unwrap(), 4);
        stop.send(()).unwrap();
        let summary = tokio::time::timeout(LIMIT, backend).await.expect("it stops").unwrap();
        assert_eq!(summary, Summary { accepted: 1, cut: 1 });
    }

    #[tokio::test]
    async fn watches_of_a_frontend_with_a_limit_do_not_take_all_slots() {
        let own = [(); 2].map(|()| PrivateKey::generate().unwrap());
        let public = [own[1].public(), own[0].public()];
        let mut keys = own.into_iter().zip(public).map(|(own, peer)| StaticKeys::of(own, vec![peer]));
        let [front, back] = [(); 2].map(|()| Hop::Pairs(keys.next().flatten().unwrap()));
        let (near, far) = memory::network(&LinkSpec::parse("--rtt 2ms").unwrap(), 3).unwrap();
        let limits = FrontendLimits { max_connections: NonZeroU32::new(1), max_rate: None };
        let label = back.labels().first().unwrap().to_string();
        let address = "10.0.0.2:7443".parse().unwrap();
        let config = BackendConfig {
            service: silent(LIMIT),
            frontend_limits: BTreeMap::from([(label, limits)]),
            ..BackendConfig::new(address, "127.0.0.1:9".to_owned(), back)
        };
        let backend = tokio::spawn(Backend::bind(config, &far).unwrap().run(std::future::pending()));
        let mut watches = Vec::new();
        for _ in 0..64 {
            watches.push(watch(&near, address, &front).await.unwrap());
        }
        let refused = watch(&near, address, &front).await;
        assert!(matches!(refused, Err(DialError::Refused(Verdict::Limited))), "{:?}", refused.err());
        backend.abort();
    }
}
