//! Common parts of frontend and backend: a limit on connections, and a shutdown that drains them.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use brisk_runtime::TcpConfig;
use brisk_tcp::config::{HandshakeTimers, KeepaliveConfig, MtuProbing, PathStart};
use socket2::{Socket, Type};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::access::Access;
use crate::io::{prepare, with_chunk};
use crate::log::{Level, Log, Value};
use crate::metrics::Metrics;
use crate::timeouts::Timeouts;

/// Settings of the hop's connections.
///
/// Nagle's algorithm is off: the gateway passes on what it gets when it gets it. Keepalive every 20 s keeps
/// the mapping of a NAT alive (30 s for UDP on Linux until both sides have spoken) and notices a peer that
/// has vanished. One connection at a time starts from what earlier ones have learnt of the path; each repeats
/// its SYN after one and a half known round trips. A path that swallows large packets is suspected after one
/// flight, not after three timeouts.
pub fn hop_tcp() -> TcpConfig {
    let alive =
        KeepaliveConfig { idle: Duration::from_secs(20), interval: Duration::from_secs(10), count: 6 };
    TcpConfig {
        nodelay: true,
        keepalive: Some(alive),
        path_start: Some(PathStart::default()),
        handshake_timers: Some(HandshakeTimers::default()),
        mtu_probing: MtuProbing::Early,
        ..TcpConfig::default()
    }
}

/// Connections that may wait to be accepted, on the outside and on the hop. Beyond that a SYN is dropped, and
/// the next comes a second later: a burst is to find room.
pub(crate) const BACKLOG: u16 = 4096;

/// Returns the first bytes of the other side, 16 kB at most; nothing if none come within `wait`. Holds no
/// buffer while it waits.
pub(crate) async fn first_bytes(socket: &mut TcpStream, wait: Duration) -> io::Result<Vec<u8>> {
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

/// Is shown every access record.
pub type AccessObserver = Arc<dyn Fn(&Access) + Send + Sync>;

/// Limits and places of report, the same for both sides.
#[derive(Clone)]
pub struct ServiceConfig {
    /// Connections at one time; more wait, one of them accepted already on each core. 1 or more, default 10
    /// 000.
    pub max_connections: usize,
    /// How long connections may go on after the order to stop. Default 30 s.
    pub drain_timeout: Duration,
    /// How long the next connection (hop or origin) may take to open. Default 10 s.
    pub connect_timeout: Duration,
    /// How long a connection may do nothing.
    pub timeouts: Timeouts,
    /// Where lines go. Default: text on stderr.
    pub log: Log,
    /// Counters. Default: new ones, which are not shown.
    pub metrics: Arc<Metrics>,
    /// Called with every access record, beside the log. Default: nobody.
    pub on_access: Option<AccessObserver>,
    /// The runtimes that connections are accepted and served on ([`brisk_runtime::Cores`]): where the hop's
    /// stack is that carries them; in turn if there is just one stack for all. Default none: on that which
    /// the side itself runs on.
    pub cores: Vec<Handle>,
}

impl Default for ServiceConfig {
    fn default() -> Self {
        ServiceConfig {
            max_connections: 10_000,
            drain_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            timeouts: Timeouts::default(),
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

/// How far a side has come. Connections are told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Phase {
    /// It takes connections.
    Serving,
    /// It is about to stop: those that there are come to their end, and what was on its way is still taken.
    Draining,
    /// It takes no more.
    Closed,
    /// They have to end now.
    Cut,
}

/// Resolves when the side has come as far as `phase`.
pub(crate) async fn reached(phase: Phase, signal: &mut watch::Receiver<Phase>) {
    // A dropped sender never tells: the owner of the connections ends them by other means.
    if signal.wait_for(|now| *now >= phase).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Summary of a side from start to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Connections that were accepted.
    pub accepted: u64,
    /// Of these, the ones that were cut off because the drain limit had passed.
    pub cut: u64,
}

/// A connection that is served: what is to be said of it, unless it is not worth a record.
pub(crate) type Serving = Pin<Box<dyn Future<Output = Option<Access>> + Send>>;

/// Where connections come in on one core.
pub(crate) trait Door: Send + 'static {
    /// A connection that has come in.
    type Guest: Send;

    /// The next one; `None`: there will be no more on this side. May be dropped before it is done, and asked
    /// again.
    fn next(&mut self) -> impl Future<Output = Option<Arrived<Self::Guest>>> + Send;

    /// Serves one until it ends, or until the signal says that it has to.
    fn serve(&self, arrived: Arrived<Self::Guest>, signal: watch::Receiver<Phase>) -> Serving;
}

/// One that has come in.
pub(crate) struct Arrived<G> {
    pub(crate) guest: G,
    /// The core that is to serve it, counted round. `None`: the one that it has come to.
    pub(crate) core: Option<usize>,
}

/// A listener at a door.
#[derive(Debug)]
pub(crate) struct Listening<L> {
    pub(crate) listener: L,
    /// The other cores have none: its connections are served on all of them in turn.
    pub(crate) is_only: bool,
}

impl<L> Listening<L> {
    /// Returns a connection that was accepted when it was the turn of core `turn`.
    pub(crate) fn arrived<G>(&self, guest: G, turn: usize) -> Arrived<G> {
        Arrived { guest, core: self.is_only.then_some(turn) }
    }
}

/// Serves what comes in at `doors`, of which each core of the configuration has one, or the first ones, until
/// `shutdown` resolves or a door brings no more; then drains. From the order to stop on the doors are open
/// for `farewell`: what was on its way before anybody could know is not turned away.
pub(crate) async fn serve_until(
    shutdown: impl Future<Output = ()>,
    config: ServiceConfig,
    farewell: Duration,
    doors: Vec<impl Door>,
) -> Summary {
    let farewell = farewell.min(config.drain_timeout);
    let side = Arc::new(Side::new(config));
    let mut keepers = JoinSet::new();
    for (core, door) in doors.into_iter().enumerate() {
        match side.config.cores.get(core) {
            Some(core) => keepers.spawn_on(keep(door, side.clone()), core),
            None => keepers.spawn(keep(door, side.clone())),
        };
    }
    let told = side.unless_broken(shutdown).await;
    side.begin_to_drain();
    if told && !farewell.is_zero() {
        side.unless_broken(tokio::time::sleep(farewell)).await;
    }
    side.drain(keepers, farewell).await
}

/// A listener for each of `cores`, so that a connection stays on the core that accepts it: `listener`, which
/// this process has bound, for the first, and others at its address among which the kernel spreads the
/// connections (`SO_REUSEPORT`). Just `listener` if the kernel gives no more, or if there is just one core.
pub(crate) fn on_each(listener: TcpListener, cores: &[Handle]) -> Vec<TcpListener> {
    let others = cores.iter().skip(1).map(|core| beside(&listener, core)).collect::<io::Result<Vec<_>>>();
    let others = others.unwrap_or_else(|_| {
        // Then nobody else is to join it either.
        let _ = socket2::SockRef::from(&listener).set_reuse_port(false);
        Vec::new()
    });
    [listener].into_iter().chain(others).collect()
}

/// Another listener at the address of `listener`, for `core`.
fn beside(listener: &TcpListener, core: &Handle) -> io::Result<TcpListener> {
    let first = socket2::SockRef::from(listener);
    // Not before it was bound: whoever has the port, or wants it, is told that it is taken.
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

/// A socket that another runtime has accepted, for the one that runs this.
pub(crate) fn adopt(socket: TcpStream) -> io::Result<TcpStream> {
    TcpStream::from_std(socket.into_std()?)
}

/// A listener failed.
pub(crate) fn accept_failed(log: &Log, error: &io::Error) {
    log.line(Level::Error, "accept", &[("reason", Value::Text(error.to_string()))]);
}

/// A running side, as its cores share it.
struct Side {
    config: ServiceConfig,
    /// As many as there may be connections, less those that there are.
    slots: Arc<Semaphore>,
    most: usize,
    phase: watch::Sender<Phase>,
    /// A door brings no more.
    broken: Notify,
}

/// Serves what comes in at `door`, on the core that this runs on, until the side is closed, and waits for the
/// last of it; how many that were.
async fn keep(mut door: impl Door, side: Arc<Side>) -> u64 {
    let (mut tasks, mut accepted) = (JoinSet::new(), 0);
    let mut phase = side.phase.subscribe();
    let mut closed = pin!(reached(Phase::Closed, &mut phase));
    loop {
        while tasks.try_join_next().is_some() {}
        // The accepted connection waits for a slot, not the listener: an idle listener would hold a slot that
        // another needs.
        let next = async {
            let Some(arrived) = door.next().await else {
                side.broken.notify_one();
                return std::future::pending().await;
            };
            // Nobody closes the semaphore.
            (arrived, side.slots.clone().acquire_owned().await.ok())
        };
        let (arrived, slot) = tokio::select! {
            biased;
            () = &mut closed => break,
            next = next => next,
        };
        accepted += 1;
        let cores = &side.config.cores;
        let elsewhere = arrived.core.and_then(|core| cores.get(core % cores.len().max(1)));
        let serving = door.serve(arrived, side.phase.subscribe());
        let task = side.clone().attend(serving, slot);
        match elsewhere {
            Some(core) => tasks.spawn_on(task, core),
            None => tasks.spawn(task),
        };
    }
    // The listener is in there: nobody is to connect to a side that is closed.
    drop(door);
    while tasks.join_next().await.is_some() {}
    accepted
}

impl Side {
    fn new(config: ServiceConfig) -> Side {
        let most = config.max_connections.clamp(1, Semaphore::MAX_PERMITS);
        let (phase, _) = watch::channel(Phase::Serving);
        Side { config, slots: Arc::new(Semaphore::new(most)), most, phase, broken: Notify::new() }
    }

    /// Waits for `end`: true; or until a door brings no more.
    async fn unless_broken(&self, end: impl Future<Output = ()>) -> bool {
        tokio::select! {
            biased;
            () = end => true,
            () = self.broken.notified() => false,
        }
    }

    /// One connection from its slot to its record.
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

    /// Connections that are being served.
    fn open(&self) -> u64 {
        (self.most - self.slots.available_permits()) as u64
    }

    /// Tells whoever asks that this side is about to stop.
    fn begin_to_drain(&self) {
        self.phase.send_replace(Phase::Draining);
        self.config.metrics.drain();
    }

    /// Closes the doors, lets the connections come to their end, for at most what is left of the drain limit,
    /// and then cuts them off.
    async fn drain(&self, mut keepers: JoinSet<u64>, passed: Duration) -> Summary {
        let log = &self.config.log;
        let limit = self.config.drain_timeout.saturating_sub(passed);
        self.phase.send_replace(Phase::Closed);
        log.line(Level::Info, "draining", &[("connections", Value::Count(self.open()))]);
        let mut summary = Summary::default();
        let mut all = pin!(async {
            let mut accepted = 0;
            while let Some(kept) = keepers.join_next().await {
                match kept {
                    Ok(count) => accepted += count,
                    Err(ended) if ended.is_panic() => std::panic::resume_unwind(ended.into_panic()),
                    // Its runtime is gone, and its connections with it.
                    Err(_) => {}
                }
            }
            accepted
        });
        summary.accepted = match tokio::time::timeout(limit, &mut all).await {
            Ok(accepted) => accepted,
            Err(_) => {
                summary.cut = self.open();
                self.phase.send_replace(Phase::Cut);
                all.await
            }
        };
        let counts = [("accepted", Value::Count(summary.accepted)), ("cut", Value::Count(summary.cut))];
        log.line(Level::Info, "stopped", &counts);
        summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection each 300 ms.
    struct Slow;

    impl Door for Slow {
        type Guest = ();

        async fn next(&mut self) -> Option<Arrived<()>> {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Some(Arrived { guest: (), core: None })
        }

        fn serve(&self, _: Arrived<()>, _: watch::Receiver<Phase>) -> Serving {
            Box::pin(async { None })
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

    /// How many connections are served of those that come every 300 ms after the order to stop.
    async fn served(farewell: Duration, drain_timeout: Duration) -> (u64, Duration) {
        let began = tokio::time::Instant::now();
        let config = ServiceConfig { log: Log::silent(), drain_timeout, ..ServiceConfig::default() };
        let summary = serve_until(std::future::ready(()), config, farewell, vec![Slow]).await;
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
}
