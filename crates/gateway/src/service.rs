//! Parts common to frontend, backend and edge: a limit on connections, and a shutdown that drains them.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use brisk_runtime::TcpConfig;
use brisk_tcp::config::{BufferConfig, KeepaliveConfig, MtuProbing};
use socket2::{Socket, Type};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::access::Access;
use crate::hop::connection::Connection;
use crate::io::{prepare, with_chunk};
use crate::log::{Level, Log, Value};
use crate::metrics::Metrics;
use crate::settings::LimitSettings;
use crate::timeouts::Timeouts;

/// Returns the settings of the hop's connections with the mechanisms of `tcp`.
///
/// Nagle's algorithm is off, because the gateway forwards data at once. Keepalive every 20 s detects a peer
/// that has vanished. It also keeps the mapping of a NAT alive: Linux expires UDP after 30 s until both sides
/// have sent. Connections over a known path start from what earlier ones have learnt about it. A lost SYN is
/// repeated after one and a half known round trips. A path is suspected of dropping large packets after one
/// lost flight, not after three timeouts.
pub fn hop_tcp(tcp: TcpConfig) -> TcpConfig {
    let alive =
        KeepaliveConfig { idle: Duration::from_secs(20), interval: Duration::from_secs(10), count: 6 };
    TcpConfig {
        nodelay: true,
        keepalive: Some(alive),
        orphan_retries: Some(ORPHAN_RETRIES),
        path_start: true,
        handshake_timers: true,
        mtu_probing: MtuProbing::Early,
        send_buffer: hop_buffer(tcp.send_buffer),
        receive_buffer: hop_buffer(tcp.receive_buffer),
        ..tcp
    }
}

/// Retries of a connection that the gateway has released (Linux: the same). A connection of the relay is
/// released when its bytes are acknowledged.
pub(crate) const ORPHAN_RETRIES: u32 = 8;

/// Minimum initial size of both buffers of a connection of the hop. A response that fits into them can leave
/// in one flight.
const HOP_BUFFER: usize = 512 << 10;

fn hop_buffer(buffer: BufferConfig) -> BufferConfig {
    BufferConfig { initial: buffer.initial.max(HOP_BUFFER).min(buffer.max), ..buffer }
}

/// Limit of connections that wait to be accepted, outside and on the hop. It must hold a burst, because a
/// further SYN is dropped, and its sender repeats it only a second later.
pub(crate) const BACKLOG: u16 = 4096;

/// Returns the first bytes of the other side, 16 kB at most; none if no byte arrives within `wait`. Holds no
/// buffer while it waits.
pub(crate) async fn first_bytes(
    socket: &mut (impl AsyncRead + Unpin),
    wait: Duration,
) -> io::Result<Vec<u8>> {
    if wait.is_zero() {
        return Ok(Vec::new());
    }
    let read = poll_fn(|cx| poll_first_bytes(socket, cx));
    tokio::time::timeout(wait, read).await.unwrap_or_else(|_| Ok(Vec::new()))
}

/// Reads the bytes that have arrived, 16 kB at most.
pub(crate) fn poll_first_bytes(
    socket: &mut (impl AsyncRead + Unpin),
    cx: &mut Context<'_>,
) -> Poll<io::Result<Vec<u8>>> {
    with_chunk(|chunk| {
        let mut buffer = ReadBuf::new(chunk);
        ready!(Pin::new(socket).poll_read(cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().to_vec()))
    })
}

/// Time that connections have to end after the phase [`Phase::Cut`] has begun. Then their tasks are aborted.
const CUT_LIMIT: Duration = Duration::from_secs(1);

/// Called with every access record.
pub type AccessObserver = Arc<dyn Fn(&Access) + Send + Sync>;

/// Limits and reports, common to all sides.
#[derive(Clone)]
pub struct ServiceConfig {
    /// Limit of simultaneous connections; further ones wait. (Each core still accepts one connection that
    /// then waits.) At least 1, default 10 000.
    pub max_connections: usize,
    /// Time limit for open connections after the signal to stop.
    pub drain_timeout: Duration,
    /// Time limit for opening a connection to a backend or an origin.
    pub connect_timeout: Duration,
    /// Limits of inactivity.
    pub timeouts: Timeouts,
    /// The log. Default: text on stderr.
    pub log: Log,
    /// Counters. Default: new ones that are not exported.
    pub metrics: Arc<Metrics>,
    /// Called with every access record, in addition to the log. Default `None`.
    pub on_access: Option<AccessObserver>,
    /// Runtimes that accept and serve connections ([`brisk_runtime::Cores`]). The core of a stack serves the
    /// stack's connections; if all cores share one stack, they serve its connections in turn. Default: only
    /// the runtime on which the side runs.
    pub cores: Vec<Handle>,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        ServiceConfig::within(&LimitSettings::default())
    }
}

impl ServiceConfig {
    /// Returns a service with these limits, which logs to stderr.
    pub fn within(limits: &LimitSettings) -> ServiceConfig {
        ServiceConfig {
            max_connections: limits.max_connections() as usize,
            drain_timeout: limits.drain_timeout(),
            connect_timeout: limits.connect_timeout(),
            timeouts: limits.timeouts(),
            log: Log::stderr(crate::log::LogFormat::Text, Level::Info),
            metrics: Arc::default(),
            on_access: None,
            cores: Vec::new(),
        }
    }
}

impl std::fmt::Debug for ServiceConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceConfig")
            .field("max_connections", &self.max_connections)
            .field("drain_timeout", &self.drain_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("timeouts", &self.timeouts)
            .finish_non_exhaustive()
    }
}

/// Phase of a side; its connections are notified of changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Phase {
    /// New connections are accepted.
    Serving,
    /// The side is about to stop. Open connections continue, and connections that are already on their way
    /// are still accepted.
    Draining,
    /// No more connections are accepted.
    Closed,
    /// All connections must end now.
    Cut,
}

/// Resolves when the side has reached `phase`.
pub(crate) async fn reached(phase: Phase, signal: &mut watch::Receiver<Phase>) {
    // Without a sender the phase never changes. The owner of the connections then ends them itself.
    if signal.wait_for(|now| *now >= phase).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Summary of a side from start to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Connections that were accepted.
    pub accepted: u64,
    /// Accepted connections that were aborted at the end of the drain limit.
    pub cut: u64,
}

/// A connection in service. Returns its record; `None` if it needs no report, like a frontend's watch.
pub(crate) type Serving = Pin<Box<dyn Future<Output = Option<Access>> + Send>>;

/// The listeners of one core.
pub(crate) trait Acceptor: Send + 'static {
    /// An accepted connection.
    type Connection: Send;

    /// Waits for the next connection; returns `None` if there will be no more on this side. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Option<Accepted<Self::Connection>>> + Send;

    /// Serves a connection until it ends, or until the signal requires its end.
    fn serve(&self, accepted: Accepted<Self::Connection>, signal: watch::Receiver<Phase>) -> Serving;
}

/// An accepted connection, and the core that serves it.
pub(crate) struct Accepted<C> {
    pub(crate) connection: C,
    /// The index of the core that serves it, modulo their number. `None`: the core that accepted it.
    pub(crate) core: Option<usize>,
}

/// A listener of one core.
#[derive(Debug)]
pub(crate) struct OpenSocket<L> {
    pub(crate) listener: L,
    /// True if this is the only listener: the other cores have none, and its connections are served on all
    /// cores in turn.
    pub(crate) is_only: bool,
}

impl<L> OpenSocket<L> {
    /// Wraps an accepted connection. If this is the only listener, core `turn` serves the connection.
    pub(crate) fn accepted<C>(&self, connection: C, turn: usize) -> Accepted<C> {
        Accepted { connection, core: self.is_only.then_some(turn) }
    }
}

/// Serves the connections of `acceptors` until `shutdown` resolves or an acceptor fails; then drains. Each
/// acceptor runs on a core of the configuration; there may be fewer acceptors than cores. `shutdown` returns
/// how long the acceptors stay open afterwards, for peers that do not know of the shutdown yet.
pub(crate) async fn serve_until(
    shutdown: impl Future<Output = Duration>,
    config: ServiceConfig,
    acceptors: Vec<impl Acceptor>,
) -> Summary {
    let side = Arc::new(Service::new(config));
    let mut tasks = JoinSet::new();
    for (core, acceptor) in acceptors.into_iter().enumerate() {
        match side.config.cores.get(core) {
            Some(core) => tasks.spawn_on(accept_and_serve(acceptor, side.clone()), core),
            None => tasks.spawn(accept_and_serve(acceptor, side.clone())),
        };
    }
    let farewell = side.unless_broken(shutdown).await.unwrap_or_default().min(side.config.drain_timeout);
    side.begin_to_drain();
    if !farewell.is_zero() {
        side.unless_broken(tokio::time::sleep(farewell)).await;
    }
    side.drain(tasks, farewell).await
}

/// Returns a listener for each of `cores`, so that a connection stays on the core that accepts it. The first
/// is `listener`, which this process has bound; the kernel spreads the connections over all listeners at its
/// address (`SO_REUSEPORT`). Returns only `listener` if the kernel refuses more, or if there is one core.
pub(crate) fn on_each(listener: TcpListener, cores: &[Handle]) -> Vec<TcpListener> {
    let others =
        cores.iter().skip(1).map(|core| another_listener(&listener, core)).collect::<io::Result<Vec<_>>>();
    let others = others.unwrap_or_else(|_| {
        // With one listener, no other process may share the address.
        let _ = socket2::SockRef::from(&listener).set_reuse_port(false);
        Vec::new()
    });
    [listener].into_iter().chain(others).collect()
}

/// Returns another listener at the address of `listener`, for `core`.
fn another_listener(listener: &TcpListener, core: &Handle) -> io::Result<TcpListener> {
    let first = socket2::SockRef::from(listener);
    // The option is set after binding, so that binding fails if another process has the port.
    first.set_reuse_port(true)?;
    let address = first.local_addr()?;
    let socket = Socket::new(address.domain(), Type::STREAM.nonblocking(), None)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address)?;
    prepare(&socket);
    socket.listen(BACKLOG.into())?;
    let _in_that_runtime = core.enter();
    TcpListener::from_std(socket.into())
}

/// Moves a connection that another runtime has accepted to the current one.
pub(crate) fn adopt(connection: Connection) -> io::Result<Connection> {
    match connection {
        Connection::Kernel(socket) => TcpStream::from_std(socket.into_std()?).map(Connection::Kernel),
        // Its stack stays where it is.
        Connection::Brisk(stream) => Ok(Connection::Brisk(stream)),
    }
}

/// Logs the failure of a listener.
pub(crate) fn accept_failed(log: &Log, error: &io::Error) {
    log.line(Level::Error, "accept", &[("reason", Value::Text(error.to_string()))]);
}

/// The state of a running side that its cores share.
struct Service {
    config: ServiceConfig,
    /// Permits for the connections that may still be accepted.
    slots: Arc<Semaphore>,
    max: usize,
    /// Connections that were accepted.
    accepted: AtomicU64,
    phase: watch::Sender<Phase>,
    /// Notified when an acceptor has failed.
    broken: Notify,
}

/// Serves the connections of `acceptor` on the current core until the side is closed, and waits until they
/// have ended.
async fn accept_and_serve(mut acceptor: impl Acceptor, side: Arc<Service>) {
    let mut tasks = JoinSet::new();
    let mut phase = side.phase.subscribe();
    let mut closed = pin!(reached(Phase::Closed, &mut phase));
    loop {
        while tasks.try_join_next().is_some() {}
        // A slot is taken only after the accept: a listener without connections must not occupy one.
        let next = async {
            let Some(accepted) = acceptor.next().await else {
                side.broken.notify_one();
                return std::future::pending().await;
            };
            // The semaphore is never closed.
            (accepted, side.slots.clone().acquire_owned().await.ok())
        };
        let (accepted, slot) = tokio::select! {
            biased;
            () = &mut closed => break,
            next = next => next,
        };
        side.accepted.fetch_add(1, Ordering::Relaxed);
        let cores = &side.config.cores;
        let elsewhere = accepted.core.and_then(|core| cores.get(core % cores.len().max(1)));
        let serving = acceptor.serve(accepted, side.phase.subscribe());
        let task = side.clone().attend(serving, slot);
        match elsewhere {
            Some(core) => tasks.spawn_on(task, core),
            None => tasks.spawn(task),
        };
    }
    // Dropping the acceptor closes the listener, so that no peer connects to a side that serves nobody.
    drop(acceptor);
    while tasks.join_next().await.is_some() {}
}

impl Service {
    fn new(config: ServiceConfig) -> Service {
        let max = config.max_connections.clamp(1, Semaphore::MAX_PERMITS);
        let (phase, _) = watch::channel(Phase::Serving);
        let slots = Arc::new(Semaphore::new(max));
        Service { config, slots, max, accepted: AtomicU64::new(0), phase, broken: Notify::new() }
    }

    /// Waits for `end` and returns its result; returns `None` if an acceptor fails first.
    async fn unless_broken<T>(&self, end: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            ended = end => Some(ended),
            () = self.broken.notified() => None,
        }
    }

    /// Serves one connection, reports its record, and frees its slot.
    async fn attend(self: Arc<Self>, serving: Serving, slot: Option<OwnedSemaphorePermit>) {
        let config = &self.config;
        let open = config.metrics.begin();
        if let Some(access) = serving.await {
            access.write(&config.log);
            config.metrics.observe(&access);
            if let Some(on_access) = &config.on_access {
                on_access(&access);
            }
        }
        drop((open, slot));
    }

    /// Returns the number of connections in service.
    fn open(&self) -> u64 {
        (self.max - self.slots.available_permits()) as u64
    }

    /// Announces that this side is about to stop.
    fn begin_to_drain(&self) {
        self.phase.send_replace(Phase::Draining);
        self.config.metrics.drain();
    }

    /// Closes the acceptors, waits for the connections for what is left of the drain limit, and then aborts
    /// them.
    async fn drain(&self, mut tasks: JoinSet<()>, passed: Duration) -> Summary {
        let log = &self.config.log;
        let limit = self.config.drain_timeout.saturating_sub(passed);
        self.phase.send_replace(Phase::Closed);
        log.line(Level::Info, "draining", &[("connections", Value::Count(self.open()))]);
        let mut summary = Summary::default();
        let mut all = pin!(async {
            while let Some(kept) = tasks.join_next().await {
                match kept {
                    Err(ended) if ended.is_panic() => std::panic::resume_unwind(ended.into_panic()),
                    // If it is an error, the runtime of the core has ended, and so have its connections.
                    Ok(()) | Err(_) => {}
                }
            }
        });
        if tokio::time::timeout(limit, &mut all).await.is_err() {
            summary.cut = self.open();
            self.phase.send_replace(Phase::Cut);
            // After that, dropping the tasks aborts them.
            let _ = tokio::time::timeout(CUT_LIMIT, all).await;
        }
        summary.accepted = self.accepted.load(Ordering::Relaxed);
        let counts = [("accepted", Value::Count(summary.accepted)), ("cut", Value::Count(summary.cut))];
        log.line(Level::Info, "stopped", &counts);
        summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An acceptor with a connection every 300 ms. The connections end at once, or never.
    struct Slow {
        never_ends: bool,
    }

    impl Acceptor for Slow {
        type Connection = ();

        async fn next(&mut self) -> Option<Accepted<()>> {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Some(Accepted { connection: (), core: None })
        }

        fn serve(&self, _: Accepted<()>, _: watch::Receiver<Phase>) -> Serving {
            if self.never_ends { Box::pin(std::future::pending()) } else { Box::pin(async { None }) }
        }
    }

    #[tokio::test]
    async fn each_core_has_a_listener_at_the_same_address() {
        for count in [1, 2, 3] {
            let cores = brisk_runtime::Cores::start(count.try_into().unwrap()).unwrap();
            let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = first.local_addr().unwrap();
            let all = on_each(first, cores.handles());
            assert_eq!(all.len(), count);
            assert!(all.iter().all(|listener| listener.local_addr().unwrap() == address));
            let stranger = TcpListener::bind(address).await;
            assert_eq!(stranger.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        }
    }

    /// Returns the number of served connections, of those that arrive every 300 ms after the signal to stop.
    async fn served(farewell: Duration, drain_timeout: Duration) -> (u64, Duration) {
        let began = tokio::time::Instant::now();
        let config = ServiceConfig { log: Log::silent(), drain_timeout, ..ServiceConfig::default() };
        let summary =
            serve_until(std::future::ready(farewell), config, vec![Slow { never_ends: false }]).await;
        (summary.accepted, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn request_on_its_way_at_the_order_to_stop_is_served() {
        let second = Duration::from_secs(1);
        assert_eq!(served(second, 30 * second).await, (3, second));
        assert_eq!(served(Duration::ZERO, 30 * second).await.0, 0);
        let short = Duration::from_millis(400);
        assert_eq!(served(second, short).await, (1, short), "the drain limit is the limit of all of it");
    }

    #[tokio::test(start_paused = true)]
    async fn connection_that_ignores_the_order_to_end_is_aborted() {
        let began = tokio::time::Instant::now();
        let second = Duration::from_secs(1);
        let config =
            ServiceConfig { log: Log::silent(), drain_timeout: 2 * second, ..ServiceConfig::default() };
        let serving = serve_until(std::future::ready(second), config, vec![Slow { never_ends: true }]);
        let summary = tokio::time::timeout(60 * second, serving).await.expect("it ends");
        assert_eq!((summary, began.elapsed()), (Summary { accepted: 3, cut: 3 }, 2 * second + CUT_LIMIT));
    }
}
