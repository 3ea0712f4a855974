//! What frontend and backend have in common: a bounded number of connections, and an end that drains them.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use brisk_runtime::TcpConfig;
use brisk_tcp::config::{HandshakeTimers, KeepaliveConfig, MtuProbing, PathStart};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::access::Access;
use crate::log::{Level, Log, Value};
use crate::metrics::Metrics;
use crate::relay::with_chunk;
use crate::timeouts::Timeouts;

/// Settings of the hop's connections.
///
/// Nagle's algorithm is off: the gateway passes on what it gets when it gets it. Keepalive every 20 s keeps the mapping of
/// a NAT alive (30 s for UDP on Linux until both sides have spoken) and notices a peer that has vanished. A connection starts
/// from what earlier ones have learnt of the path, and repeats its SYN after one and a half known round trips. A path that
/// swallows large packets is suspected after one flight, not after three timeouts.
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

/// Prepares a kernel socket: no Nagle, and keepalive so that a side that has vanished does not hold its slot for ever.
/// What a listener accepts is prepared as the listener is.
pub(crate) fn prepare(socket: &impl AsFd) {
    let socket = socket2::SockRef::from(socket);
    let alive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(60))
        .with_interval(Duration::from_secs(15));
    // A socket that refuses these is slower or lives longer, nothing worse.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&alive.with_retries(4));
}

/// Connections that may wait to be accepted, on the outside and on the hop. Beyond that a SYN is dropped, and the next
/// comes a second later: a burst is to find room.
pub(crate) const BACKLOG: u16 = 4096;

/// What the other side says within `wait`, 16 kB at most; nothing if it says nothing. Holds nothing while it waits.
pub(crate) async fn first_bytes(socket: &mut TcpStream, wait: Duration) -> io::Result<Vec<u8>> {
    if wait.is_zero() {
        return Ok(Vec::new());
    }
    let read = poll_fn(|cx| {
        with_chunk(|chunk| {
            let mut buffer = ReadBuf::new(chunk);
            ready!(Pin::new(&mut *socket).poll_read(cx, &mut buffer))?;
            Poll::Ready(Ok(buffer.filled().to_vec()))
        })
    });
    tokio::time::timeout(wait, read).await.unwrap_or_else(|_| Ok(Vec::new()))
}

/// Is shown every access record.
pub type AccessObserver = Arc<dyn Fn(&Access) + Send + Sync>;

/// Limits and places of report, the same for both sides.
#[derive(Clone)]
pub struct ServiceConfig {
    /// Connections at one time; more wait to be accepted. 1 or more, default 10 000.
    pub max_connections: usize,
    /// How long connections may go on after the order to stop. Default 30 s.
    pub drain_timeout: Duration,
    /// How long the next connection (hop or origin) may take to open. Default 10 s.
    pub connect_timeout: Duration,
    /// How long a connection may do nothing.
    pub timeouts: Timeouts,
    /// Where lines go. Default: text on stderr.
    pub log: Log,
    /// What is counted. Default: new counters that nobody looks at.
    pub metrics: Arc<Metrics>,
    /// Called with every access record, beside the log. Default: nobody.
    pub on_access: Option<AccessObserver>,
    /// The runtimes that connections are served on ([`brisk_runtime::Cores`]): where the hop's stack is that carries them, else
    /// in turn. Default none: on that which the side itself runs on.
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
    /// It lets those that there are come to their end.
    Draining,
    /// They have to end now.
    Cut,
}

/// Resolves when the side has come as far as `phase`.
pub(crate) async fn reached(phase: Phase, signal: &watch::Receiver<Phase>) {
    // A dropped sender never tells: the owner of the connections ends them by other means.
    if signal.clone().wait_for(|now| *now >= phase).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// What a side did from start to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Connections that were accepted.
    pub accepted: u64,
    /// Of these, the ones that were cut off because the drain limit had passed.
    pub cut: u64,
}

/// Serves what `accept` brings until `shutdown` resolves or `accept` has no more, then drains. From the order to stop on it
/// still accepts for `farewell`: what was on its way before anybody could know is not turned away. What `accept` brings is the
/// core that is to serve one connection, counted round, and the work of it, to be given the signal to end at once; it answers a
/// record unless it was not worth one.
pub(crate) async fn serve_until<S, F>(
    shutdown: impl Future<Output = ()>,
    config: ServiceConfig,
    farewell: Duration,
    mut accept: impl AsyncFnMut() -> Option<(usize, S)>,
) -> Summary
where
    S: FnOnce(watch::Receiver<Phase>) -> F,
    F: Future<Output = Option<Access>> + Send + 'static,
{
    let farewell = farewell.min(config.drain_timeout);
    let mut connections = Connections::new(config);
    let told = connections.serve(shutdown, &mut accept).await;
    connections.begin_to_drain();
    if told {
        connections.serve(tokio::time::sleep(farewell), &mut accept).await;
    }
    // The listener is in there: nobody is to connect to a side that drains.
    drop(accept);
    connections.drain(farewell).await
}

/// A socket that another runtime has accepted, for the one that runs this.
pub(crate) fn adopt(socket: TcpStream) -> io::Result<TcpStream> {
    TcpStream::from_std(socket.into_std()?)
}

/// A listener failed.
pub(crate) fn accept_failed(log: &Log, error: &io::Error) {
    log.line(Level::Error, "accept", &[("reason", Value::Text(error.to_string()))]);
}

/// The connections of a running side.
struct Connections {
    config: ServiceConfig,
    slots: Arc<Semaphore>,
    tasks: JoinSet<()>,
    phase: watch::Sender<Phase>,
    summary: Summary,
}

impl Connections {
    fn new(config: ServiceConfig) -> Connections {
        let most = config.max_connections.clamp(1, Semaphore::MAX_PERMITS);
        let (phase, _) = watch::channel(Phase::Serving);
        let slots = Arc::new(Semaphore::new(most));
        Connections { config, slots, tasks: JoinSet::new(), phase, summary: Summary::default() }
    }

    /// Waits until there is room for one more connection.
    async fn slot(&mut self) -> OwnedSemaphorePermit {
        loop {
            while self.tasks.try_join_next().is_some() {}
            if let Ok(slot) = self.slots.clone().try_acquire_owned() {
                return slot;
            }
            if self.tasks.join_next().await.is_none() {
                // Every slot is taken but nobody holds one: cannot be, but would be a busy loop.
                tokio::task::yield_now().await;
            }
        }
    }

    /// Serves one connection in a task of its own. `serve` is given the signal to end at once.
    fn spawn<S, F>(&mut self, slot: OwnedSemaphorePermit, core: usize, serve: S)
    where
        S: FnOnce(watch::Receiver<Phase>) -> F,
        F: Future<Output = Option<Access>> + Send + 'static,
    {
        self.summary.accepted += 1;
        // A task is moved several times on its way to its core and back; this one is some ten kilobytes.
        let serving = Box::pin(serve(self.phase.subscribe()));
        let config = self.config.clone();
        let task = async move {
            let open = config.metrics.begin();
            if let Some(access) = serving.await {
                access.write(&config.log);
                config.metrics.observe(&access);
                if let Some(on_access) = &config.on_access {
                    on_access(&access);
                }
            }
            drop((open, slot));
        };
        let cores = &self.config.cores;
        match cores.get(core % cores.len().max(1)) {
            Some(core) => self.tasks.spawn_on(task, core),
            None => self.tasks.spawn(task),
        };
    }

    /// Serves what `accept` brings until `end` resolves: true; or there is no more.
    async fn serve<S, F>(
        &mut self,
        end: impl Future<Output = ()>,
        accept: &mut impl AsyncFnMut() -> Option<(usize, S)>,
    ) -> bool
    where
        S: FnOnce(watch::Receiver<Phase>) -> F,
        F: Future<Output = Option<Access>> + Send + 'static,
    {
        let mut end = pin!(end);
        loop {
            let next = async {
                let slot = self.slot().await;
                accept().await.map(|(core, serve)| (slot, core, serve))
            };
            let next = tokio::select! {
                biased;
                () = &mut end => return true,
                next = next => next,
            };
            let Some((slot, core, serve)) = next else { return false };
            self.spawn(slot, core, serve);
        }
    }

    /// Tells whoever asks that this side is about to stop.
    fn begin_to_drain(&mut self) {
        self.phase.send_replace(Phase::Draining);
        self.config.metrics.drain();
    }

    /// Lets the connections come to their end, for at most what is left of the drain limit, and then cuts them off.
    async fn drain(mut self, passed: Duration) -> Summary {
        let log = self.config.log.clone();
        let limit = self.config.drain_timeout.saturating_sub(passed);
        while self.tasks.try_join_next().is_some() {}
        let open = self.tasks.len() as u64;
        log.line(Level::Info, "draining", &[("connections", Value::Count(open))]);
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(limit, all).await.is_err() {
            self.summary.cut = self.tasks.len() as u64;
            self.phase.send_replace(Phase::Cut);
            while self.tasks.join_next().await.is_some() {}
        }
        log.line(
            Level::Info,
            "stopped",
            &[("accepted", Value::Count(self.summary.accepted)), ("cut", Value::Count(self.summary.cut))],
        );
        self.summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many connections are served of those that come every 300 ms after the order to stop.
    async fn served(farewell: Duration, drain_timeout: Duration) -> (u64, Duration) {
        let began = tokio::time::Instant::now();
        let config = ServiceConfig { log: Log::silent(), drain_timeout, ..ServiceConfig::default() };
        let summary = serve_until(std::future::ready(()), config, farewell, async || {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Some((0, |_: watch::Receiver<Phase>| async { None }))
        })
        .await;
        (summary.accepted, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_on_its_way_at_the_order_to_stop_is_served() {
        let second = Duration::from_secs(1);
        assert_eq!(served(second, 30 * second).await, (3, second));
        assert_eq!(served(Duration::ZERO, 30 * second).await.0, 0);
        let short = Duration::from_millis(400);
        assert_eq!(served(second, short).await, (1, short), "the drain limit is the limit of all of it");
    }
}
