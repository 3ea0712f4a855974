//! The backends of a frontend: the choice among them, and the health of each.
//!
//! A separate connection, the *watch*, checks each backend: every quarter of a second it sends a record and
//! expects one in return. A backend counts as down within a second if it resets the watch, or if all
//! connections to it, including the watch, are silent for longer than an answer can take. It counts as up
//! again with its next answer. A draining backend gets no new connections. A backend without a watch counts
//! as up until connections to it fail; then one client at a time tries it again. `transport.rs` contains the
//! transports.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use brisk_runtime::{ConnectConfig, Endpoint, FastOpenConnect, TcpConfig, TcpStream};
use tokio::sync::{Notify, watch};

use crate::hop::connection::Connection;
use crate::hop::dial::{Answered, DialError, Dialled, ask, dial};
use crate::hop::stream::HopStream;
use crate::hop::{BackendClock, Ephemerals, Hop, Opening, Purpose};
use crate::log::{Level, Log, Value};
use crate::outgoing;
use crate::peer::{self, Answer, PathReport, Peer, Redundancy, Registered};
use crate::roaming::{self, Secret};
use crate::traffic::Traffic;
use crate::transport::{HEAD_START, Memory, PathChanges, PathState, Transport, Transports, Trials, first_of};
use crate::warm::WarmPool;

/// Interval between two records of the watch.
const ASK: Duration = Duration::from_millis(250);
/// Minimum time limit of an answer. Together with the interval, it detects a silent backend within 0.85 s.
const MIN_TIME_LIMIT: Duration = Duration::from_millis(600);
/// Pause after which a backend that is down is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// Time for which a backend must stay down before connections that wait for its answer are given up. Silence
/// may mean only a few lost packets.
const GRACE: Duration = Duration::from_secs(2);

/// The configuration of a backend.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackendSpec {
    /// The name in the configuration: `HOST:PORT`.
    pub name: String,
    /// Its address in the hop's stack. `None` if the address is not known yet; then the backend counts as
    /// down.
    pub address: Option<SocketAddr>,
    /// Its address for the kernel's TCP, which is used if the path carries nothing else. `None` if the
    /// backend has no listener of the kernel's TCP.
    pub kernel: Option<SocketAddr>,
    /// Its address for brisk's TCP without UDP, over [`crate::FrontendConfig::packet`]. `None`: this
    /// transport is not used.
    pub packet: Option<SocketAddr>,
    /// Priority, 0 to 255. The backends with the lowest number among those that are up get the connections.
    pub priority: u8,
    /// Share of the connections among those of the same priority; 1 to 1000.
    pub weight: u16,
}

impl BackendSpec {
    /// Returns the configuration of a frontend's only backend.
    pub fn new(address: SocketAddr) -> BackendSpec {
        BackendSpec { address: Some(address), ..BackendSpec::unknown(address.to_string()) }
    }

    /// Returns a backend whose address is not known yet.
    pub fn unknown(name: String) -> BackendSpec {
        BackendSpec { name, address: None, kernel: None, packet: None, priority: 0, weight: 1 }
    }
}

/// Whether a backend can get new connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Health {
    /// No answer is known yet.
    Unknown,
    /// It answers.
    Up,
    /// It answers, but accepts no new connections.
    Draining,
    /// It does not answer.
    Down,
}

impl Health {
    const ALL: [Health; 4] = [Health::Unknown, Health::Up, Health::Draining, Health::Down];

    /// Returns the name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Health::Unknown => "unknown",
            Health::Up => "up",
            Health::Draining => "draining",
            Health::Down => "down",
        }
    }
}

/// Parameters of connections to backends.
#[derive(Clone, Debug)]
pub(crate) struct Dialling {
    pub(crate) endpoint: Endpoint,
    /// The stack on a packet socket, in addition to `endpoint`.
    pub(crate) packet: Option<Endpoint>,
    pub(crate) hop: Hop,
    /// The key pair of first messages.
    pub(crate) own: Arc<Ephemerals>,
    pub(crate) tcp: TcpConfig,
    pub(crate) fast_open: Option<FastOpenConnect>,
    /// True if a watch decides the health of the backends and the transport to each.
    pub(crate) watched: bool,
    pub(crate) log: Log,
}

impl Dialling {
    /// Returns the configuration of a connection over brisk's TCP.
    fn connect_config(&self, purpose: Purpose) -> ConnectConfig {
        let mut connect =
            ConnectConfig { tcp: self.tcp.clone(), fast_open: self.fast_open, ..ConnectConfig::default() };
        // The watch must not wait for the shared window. Data in that window may itself wait until the watch
        // has reported that this side has moved.
        connect.tcp.share_path &= purpose != Purpose::Watch;
        connect
    }
}

/// A backend and its current state.
#[derive(Debug)]
pub struct Upstream {
    /// Its configuration.
    pub spec: BackendSpec,
    pub(crate) clock: BackendClock,
    health: AtomicU8,
    transports: Transports,
    /// The transport of new connections that was reported last.
    reported: Mutex<Transport>,
    warm: WarmPool,
    changes: PathChanges,
    peer: Peer,
    /// The secret by which the backend recognises this frontend at another address; `None` if the system has
    /// no randomness.
    secret: Option<Secret>,
    /// True if the backend accepted the last registration of this frontend.
    is_followed: AtomicBool,
    /// True if the answer to a registration is missing: the backend may have moved this frontend.
    may_have_moved: AtomicBool,
    /// True if the last watch got no answer in time although the backend answered others.
    was_late: AtomicBool,
    changed: Notify,
    /// True while the watch is running: it will soon report whether the backend is up.
    watched: AtomicBool,
    /// Wakes the watch when a connection was refused, so that it tries the backend at once.
    refused: Notify,
    /// True if the backend has closed a connection during its handshake since the watch began.
    is_doubted: AtomicBool,
    /// Smoothed round trip of the watch, microseconds; 0 if none is known.
    round_trip: AtomicU64,
    /// Number of connections that clients have requested.
    asked: AtomicU64,
    failures: AtomicU32,
    /// Without a watch: the earliest time at which a client tries the backend although it is down.
    trial_at: Mutex<Option<Instant>>,
    /// Time of the last answer on a connection for a client.
    answered: Mutex<Option<Instant>>,
    /// Traffic of the connections for clients.
    pub(crate) traffic: Traffic,
}

impl Upstream {
    pub(crate) fn new(spec: BackendSpec) -> Upstream {
        let health = if spec.address.is_some() { Health::Unknown } else { Health::Down };
        Upstream {
            spec,
            clock: BackendClock::default(),
            health: AtomicU8::new(health as u8),
            transports: Transports::default(),
            reported: Mutex::new(Transport::Usual),
            warm: WarmPool::default(),
            changes: PathChanges::default(),
            peer: Peer::default(),
            secret: roaming::secret(),
            is_followed: AtomicBool::new(false),
            may_have_moved: AtomicBool::new(false),
            was_late: AtomicBool::new(false),
            changed: Notify::new(),
            watched: AtomicBool::new(false),
            refused: Notify::new(),
            is_doubted: AtomicBool::new(false),
            round_trip: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            trial_at: Mutex::new(None),
            answered: Mutex::new(None),
            traffic: Traffic::default(),
        }
    }

    /// Returns the health of the backend.
    pub fn health(&self) -> Health {
        let health = self.health.load(Ordering::Relaxed);
        Health::ALL.into_iter().find(|known| *known as u8 == health).unwrap_or(Health::Unknown)
    }

    /// Returns the transport of new connections, as far as known.
    pub fn transport(&self) -> Transport {
        let transports =
            self.transports.beginning_with_working(&self.available(), |_, memory| !memory.is_lost());
        transports.first().copied().unwrap_or(Transport::Usual)
    }

    /// Returns the transports that are configured.
    pub(crate) fn available(&self) -> Vec<Transport> {
        let is_available = |transport: &Transport| match transport {
            Transport::Usual => true,
            Transport::Packet => self.spec.packet.is_some(),
            Transport::Kernel => self.spec.kernel.is_some(),
        };
        Transport::ALL.into_iter().filter(is_available).collect()
    }

    /// Returns the round trip of the watch; `None` before the first answer.
    pub fn round_trip(&self) -> Option<Duration> {
        Some(Duration::from_micros(self.round_trip.load(Ordering::Relaxed))).filter(|rtt| !rtt.is_zero())
    }

    /// Returns the watch's measurements of the path; without a watch, the round trip of new connections.
    pub fn path(&self) -> PathReport {
        let path = self.peer.path();
        PathReport { smoothed_rtt: path.smoothed_rtt.or_else(|| self.round_trip()), ..path }
    }

    /// Records the duration of an exchange between a client and its origin.
    pub(crate) fn exchanged(&self, took: Duration) {
        let PathReport { smoothed_rtt, min_rtt, .. } = self.path();
        if let Some(round_trip) = min_rtt.or(smoothed_rtt) {
            self.traffic.exchanged(took, round_trip, Instant::now());
        }
    }

    /// Returns the state of the agreement on redundancy with the backend.
    pub fn redundancy(&self) -> Redundancy {
        self.peer.redundancy()
    }

    /// Returns the round trip that a connection saves if its opening carries the client's first bytes; `None`
    /// if it saves none.
    fn saved_round_trip(&self, dialling: &Dialling) -> Option<Duration> {
        let on_syn = dialling.fast_open.is_some() && !self.warm.is_needed();
        let is_saved =
            self.transport() != Transport::Kernel && (on_syn || self.warm.has_usable(Instant::now()));
        self.round_trip().filter(|_| is_saved)
    }

    /// Returns the number of requested connections.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Resolves when the backend has been down for [`GRACE`]. If it is down already, the wait is longer,
    /// because the watch needs time to find out that the backend is up again.
    pub(crate) async fn dead(&self) {
        let grace = match self.health() {
            Health::Down => RETRY + self.first_answer() + GRACE,
            Health::Unknown | Health::Up | Health::Draining => GRACE,
        };
        loop {
            while self.health() != Health::Down {
                let changed = self.changed.notified();
                if self.health() != Health::Down {
                    changed.await;
                }
            }
            let revived = async {
                while self.health() == Health::Down {
                    let changed = self.changed.notified();
                    if self.health() == Health::Down {
                        changed.await;
                    }
                }
            };
            if tokio::time::timeout(grace, revived).await.is_err() {
                return;
            }
        }
    }

    fn set(&self, health: Health, why: &str, log: &Log) {
        let before = self.health();
        self.health.store(health as u8, Ordering::Relaxed);
        self.changed.notify_waiters();
        if before != health {
            let level = if health == Health::Down { Level::Warning } else { Level::Info };
            let fields = [
                ("backend", Value::Text(self.spec.name.clone())),
                ("health", Value::Text(health.name().into())),
                ("transport", Value::Text(self.transport().name().into())),
                ("reason", Value::Text(why.into())),
            ];
            log.line(level, "backend", &fields);
        }
    }

    /// Records the success or failure of a connection for a client. Without a watch, the backend counts as
    /// down after three failures in a row, and as up after the next success.
    pub(crate) fn outcome(&self, good: bool, watched: bool, log: &Log) {
        self.peer.log_redundancy(&self.spec.name, log);
        if good {
            *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            self.failures.store(0, Ordering::Relaxed);
            if !watched {
                self.set(Health::Up, "it answers", log);
            }
        } else if self.failures.fetch_add(1, Ordering::Relaxed) >= 2 && !watched {
            *self.trial_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + RETRY);
            self.set(Health::Down, "three connections in a row failed", log);
        }
    }

    /// Without a watch, clients try a backend that is down: one at a time, [`RETRY`] after the last failure.
    /// Returns the time limit if a client shall try it now, otherwise `None`.
    pub(crate) fn begin_trial(&self) -> Option<Duration> {
        let mut trial_at = self.trial_at.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, limit) = (Instant::now(), self.first_answer());
        let is_known = self.spec.address.is_some() && self.health() == Health::Down;
        let is_due = is_known && trial_at.is_none_or(|at| at <= now);
        is_due.then(|| {
            *trial_at = Some(now + limit + RETRY);
            limit
        })
    }

    /// Opens a connection with `opening` and the client's `first` bytes, and waits for the answer.
    pub(crate) async fn open(
        &self,
        dialling: &Dialling,
        opening: &Opening,
        first: &[u8],
    ) -> Result<(HopStream, Transport), DialError> {
        let (dialled, message) = self.message(dialling, opening, first)?;
        // A plain hop must not send data twice, because the backend would not recognise the repetition.
        let once = !matches!(dialling.hop, Hop::Plain) || opening.purpose == Purpose::Watch;
        let works = |_, memory: &Memory| !memory.is_lost() || self.may_try(memory, dialling);
        let mut transports = self.transports.beginning_with_working(&self.available(), works);
        if !once {
            transports.truncate(1);
        }
        let began = Instant::now();
        let asked = self.ask_in_order(dialling, opening.purpose, &message, &transports).await;
        let (transport, answered) = asked.inspect_err(|_| self.clock.forget_lasting())?;
        for tried in transports.into_iter().take_while(|tried| *tried != transport) {
            if self.transports.memory(tried).is_some_and(|memory| works(tried, memory)) {
                let trials = if dialling.watched { Trials::Watch } else { Trials::Connections };
                self.lost(tried, trials, began, &dialling.log);
            }
        }
        self.works(transport, &dialling.log);
        let stream = dialled.finish(answered, &self.clock).await?;
        if !dialling.watched
            && let Some(round_trip) = stream.connection().stats().and_then(|stats| stats.srtt)
        {
            self.learn(round_trip);
        }
        Ok((stream, transport))
    }

    /// Sends `message` over the first of `transports`, and over each next one if that fails.
    async fn ask_in_order(
        &self,
        dialling: &Dialling,
        purpose: Purpose,
        message: &[u8],
        transports: &[Transport],
    ) -> Result<(Transport, Answered), DialError> {
        let (first, rest) = transports.split_first().unwrap_or((&Transport::Usual, &[]));
        if rest.is_empty() {
            let asked = self.ask_over(*first, dialling, purpose, message, None).await;
            return asked.map(|answered| (*first, answered));
        }
        let (report, connected) = watch::channel(false);
        let this = async {
            let asked = self.ask_over(*first, dialling, purpose, message, Some(report)).await;
            asked.map(|answered| (*first, answered))
        };
        let head_start = HEAD_START.max(3 * self.round_trip().unwrap_or_default());
        let next = Box::pin(self.ask_in_order(dialling, purpose, message, rest));
        let memory = self.transports.memory(*first);
        let answers_others = |since| memory.is_some_and(|memory| memory.has_answered_since(since));
        first_of(this, connected, head_start, answers_others, next).await
    }

    /// Like [`Upstream::open`], over one transport only: for trials.
    pub(crate) async fn open_over(
        &self,
        dialling: &Dialling,
        opening: &Opening,
        transport: Transport,
    ) -> Result<HopStream, DialError> {
        let (dialled, message) = self.message(dialling, opening, &[])?;
        let answered = self.ask_over(transport, dialling, opening.purpose, &message, None).await?;
        dialled.finish(answered, &self.clock).await
    }

    fn message(
        &self,
        dialling: &Dialling,
        opening: &Opening,
        first: &[u8],
    ) -> Result<(Dialled, Vec<u8>), DialError> {
        let opening = Opening { stamp: self.clock.stamp(Instant::now()), ..opening.clone() };
        dial(&dialling.hop, &dialling.own, &opening, first).map_err(DialError::Unsealed)
    }

    /// True if a client's connection should try a lost transport again. With a watch, only the watch does
    /// that.
    fn may_try(&self, memory: &Memory, dialling: &Dialling) -> bool {
        !dialling.watched && memory.is_due(Instant::now())
    }

    /// Sends `message` over one transport and waits for the answer; sets `connected` at the end of the
    /// handshake.
    async fn ask_over(
        &self,
        transport: Transport,
        dialling: &Dialling,
        purpose: Purpose,
        message: &[u8],
        connected: Option<watch::Sender<bool>>,
    ) -> Result<Answered, DialError> {
        let (endpoint, address) = match (transport, &dialling.packet) {
            (Transport::Kernel, _) => return ask_over_kernel(self.spec.kernel, message).await,
            (Transport::Packet, Some(packet)) => (packet, self.spec.packet),
            (Transport::Packet | Transport::Usual, _) => (&dialling.endpoint, self.spec.address),
        };
        let mut fast_open = dialling.fast_open;
        if let (Transport::Packet, Some(fast_open)) = (transport, &mut fast_open) {
            // Middleboxes on this path drop data beyond the window of the SYN, and packets other than SYNs
            // before the SYN-ACK.
            fast_open.data_after_syn = 0;
            fast_open.early_window = false;
        }
        // The watch takes no connection that is already open: it finds out whether one can be opened now,
        // from the present address.
        if let (Transport::Usual, Purpose::Carry) = (transport, purpose)
            && let Some(stream) = self.warm.take(Instant::now())
        {
            if let Some(connected) = connected {
                connected.send_replace(true);
            }
            return self.ask_on_open_connection(stream, message).await;
        }
        let connect = ConnectConfig { fast_open, ..dialling.connect_config(purpose) };
        let address = address.ok_or_else(not_configured)?;
        let opening = endpoint.connect_with_data(address, message, &connect);
        let (stream, sent) = opening.map_err(DialError::Unopened)?;
        let abandoned = Abandoned(Some(stream.handle()));
        stream.connected().await.map_err(|error| match error.kind() {
            // This promises that no program has received data of the SYN (`CloseReason::Refused`).
            io::ErrorKind::ConnectionRefused => DialError::Unopened(error),
            _ => DialError::Connection(error),
        })?;
        if let Some(connected) = connected {
            connected.send_replace(true);
        }
        if let (Transport::Usual, Some(stats)) = (transport, stream.stats()) {
            self.warm.learn(stats.fast_open);
            self.peer.learn(stats.gentle);
        }
        let answered = ask(Connection::Brisk(stream), &message[sent..], sent).await?;
        abandoned.kept();
        Ok(answered)
    }

    /// Sends `message` on a connection that is already open.
    async fn ask_on_open_connection(&self, stream: TcpStream, message: &[u8]) -> Result<Answered, DialError> {
        stream.set_linger(None);
        let abandoned = Abandoned(Some(stream.handle()));
        let answered = ask(Connection::Brisk(stream), message, 0).await?;
        abandoned.kept();
        Ok(answered)
    }

    /// Keeps connections open in advance if SYNs cannot carry requests.
    async fn keep_warm(&self, dialling: &Dialling) {
        let Some(address) = self.spec.address else { return };
        loop {
            tokio::time::sleep(ASK).await;
            let missing = self.warm.missing(Instant::now());
            if self.health() != Health::Up || self.transport() != Transport::Usual {
                continue;
            }
            // The SYNs of the pool's connections request a cookie, so that requests can soon leave with a SYN
            // and the pool ends.
            let connect = dialling.connect_config(Purpose::Carry);
            for _ in 0..missing {
                let opening = dialling.endpoint.connect_with(address, &connect);
                let Ok(Ok(stream)) = tokio::time::timeout(MIN_TIME_LIMIT, opening).await else { break };
                if let Some(stats) = stream.stats() {
                    self.warm.learn(stats.fast_open);
                }
                self.warm.put(stream, Instant::now());
            }
        }
    }

    /// Watches the backend: every quarter of a second it checks that the backend is alive, and which
    /// transport works. Ends only if the address is not known.
    pub(crate) async fn watch(&self, dialling: &Dialling, log: &Log) {
        if self.spec.address.is_none() {
            return;
        }
        self.watched.store(true, Ordering::Relaxed);
        tokio::join!(self.watch_life(dialling, log), self.watch_path(dialling), self.keep_warm(dialling));
    }

    async fn watch_life(&self, dialling: &Dialling, log: &Log) {
        loop {
            let (answered, ended) = tokio::select! {
                biased;
                ended = self.converse(dialling, log) => ended,
                () = self.refused.notified() => (true, Some("a connection was refused".to_owned())),
            };
            let Some(ended) = ended else { continue };
            // A draining backend no longer listens, but still serves its connections.
            let drained = self.health() == Health::Draining;
            self.set(Health::Down, &ended, log);
            // Silence after an answer may mean only a few lost packets, so the backend is asked again at
            // once.
            if answered && !drained {
                self.check_process().await;
            } else {
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    /// While a later transport is in use, tries the earlier ones from time to time.
    async fn watch_path(&self, dialling: &Dialling) {
        loop {
            tokio::time::sleep(ASK).await;
            for transport in self.available() {
                self.try_again(transport, dialling).await;
            }
        }
    }

    async fn try_again(&self, transport: Transport, dialling: &Dialling) {
        if !self.transports.memory(transport).is_some_and(|memory| memory.is_due(Instant::now())) {
            return;
        }
        let (opening, began) = (Opening::new(Purpose::Watch), Instant::now());
        let trial = self.open_over(dialling, &opening, transport);
        match tokio::time::timeout(4 * MIN_TIME_LIMIT, trial).await {
            Ok(Ok(_)) => self.works(transport, &dialling.log),
            Ok(Err(_)) | Err(_) => self.lost(transport, Trials::Watch, began, &dialling.log),
        }
    }

    /// Records that a connection over this transport, which began at `began`, has failed.
    fn lost(&self, transport: Transport, trials: Trials, began: Instant, log: &Log) {
        let memory = self.transports.memory(transport);
        if memory.is_some_and(|memory| memory.lost(trials, began, Instant::now())) {
            self.changes.lost(transport);
        }
        self.report_change(log);
    }

    fn works(&self, transport: Transport, log: &Log) {
        if let Some(memory) = self.transports.memory(transport) {
            memory.works(Instant::now());
        }
        self.report_change(log);
    }

    /// Logs the transport of new connections if it has changed.
    fn report_change(&self, log: &Log) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, now) = (*reported, self.transport());
        *reported = now;
        if before == now {
            return;
        }
        let is_fallback = now as u8 > before as u8;
        let (level, reason) = match is_fallback {
            true => (Level::Warning, format!("no handshake over transport {}", before.name())),
            false => (Level::Info, format!("the path carries transport {} again", now.name())),
        };
        let fields = [
            ("backend", Value::Text(self.spec.name.clone())),
            ("transport", Value::Text(now.name().into())),
            ("before", Value::Text(before.name().into())),
            ("reason", Value::Text(reason)),
        ];
        log.line(level, "transport", &fields);
    }

    /// Reports that a connection was refused because nothing listens on the backend's port. If there is a
    /// watch, the backend then counts as down, unless it is draining and still serves its connections.
    pub(crate) fn on_refused(&self) {
        if matches!(self.health(), Health::Up | Health::Unknown) {
            self.refused.notify_waiters();
        }
    }

    /// Reports that the backend has closed a connection during its handshake. It may no longer accept the
    /// key, which the open watch does not show, so the watch is opened again.
    pub(crate) fn on_closed(&self) {
        self.is_doubted.store(true, Ordering::Relaxed);
    }

    /// Returns the path state for a connection that begins now.
    pub(crate) fn path_state(&self) -> PathState {
        self.changes.begin()
    }

    /// Asks the kernel of the backend's host whether the process is alive: over brisk's TCP, a killed process
    /// sends nothing.
    async fn check_process(&self) {
        let Some(kernel) = self.spec.kernel else { return };
        let attempt = tokio::time::timeout(MIN_TIME_LIMIT, tokio::net::TcpStream::connect(kernel));
        if let Ok(Err(error)) = attempt.await
            && error.kind() == std::io::ErrorKind::ConnectionRefused
        {
            self.changes.process_gone();
        }
    }

    /// Runs one connection of the watch. Returns whether the backend answered, and why the connection ended;
    /// `None` as the reason means that it must be opened again, for example over another transport.
    async fn converse(&self, dialling: &Dialling, log: &Log) -> (bool, Option<String>) {
        let opening = Opening::new(Purpose::Watch);
        let (mut hop, transport) = match self.unless_late(self.open(dialling, &opening, &[])).await {
            Ok(Some(Ok(opened))) => opened,
            Ok(Some(Err(refused))) => return (false, Some(refused.to_string())),
            Ok(None) => return (false, Some("no answer".to_owned())),
            Err(Late) => return (true, None),
        };
        let mut registers = transport == Transport::Usual && !matches!(dialling.hop, Hop::Plain);
        let mut follows = false;
        if registers && self.is_followed.load(Ordering::Relaxed) {
            // This side may have moved, and its connections wait for the registration.
            registers = false;
            follows = match self.register(&mut hop, dialling).await {
                Ok(true) => true,
                // The backend is another one, which may have read the secret as questions.
                Ok(false) => return (true, None),
                Err(ended) => return (true, ended),
            };
        }
        loop {
            let asked = Instant::now();
            let (mut read, mut write) = hop.split();
            let question = peer::ask(&mut read, &mut write);
            let answer = if follows {
                match tokio::time::timeout(self.patience(), question).await {
                    Ok(answer) => Some(answer),
                    // The backend answers other connections but not this one. If the address of this side has
                    // changed, a new watch reports it to the backend.
                    Err(_) if self.answered_within(self.patience()) => return (true, None),
                    Err(_) => None,
                }
            } else {
                self.unless_silent(self.patience(), question).await
            };
            let loss = match answer {
                Some(Ok(Answer::Up(loss))) => {
                    self.set(Health::Up, "it answers", log);
                    loss
                }
                Some(Ok(Answer::Draining)) => {
                    self.set(Health::Draining, "the backend has announced that it is draining", log);
                    None
                }
                Some(Err(error)) => return (true, Some(error.to_string())),
                None => return (true, Some(format!("no answer for {} ms", asked.elapsed().as_millis()))),
            };
            self.was_late.store(false, Ordering::Relaxed);
            if let Some(memory) = self.transports.memory(transport) {
                memory.answers(Instant::now());
            }
            self.learn(asked.elapsed());
            self.peer.measured(self.measure(hop.connection(), transport, dialling, loss));
            self.peer.log_redundancy(&self.spec.name, log);
            if transport != self.transport() || self.is_doubted.swap(false, Ordering::Relaxed) {
                return (true, None);
            }
            if std::mem::take(&mut registers) {
                follows = match self.register(&mut hop, dialling).await {
                    Ok(follows) => follows,
                    Err(ended) => return (true, ended),
                };
            }
            tokio::time::sleep(ASK).await;
        }
    }

    /// Identifies this frontend to the backend, so that its connections continue when its address changes.
    /// Returns whether the backend will follow it. An error ends the watch, as for [`Upstream::converse`].
    async fn register(&self, hop: &mut HopStream, dialling: &Dialling) -> Result<bool, Option<String>> {
        let Some(secret) = self.secret else { return Ok(false) };
        let ends = hop.connection().ends();
        let (mut read, mut write) = hop.split();
        let is_known = self.is_followed.load(Ordering::Relaxed);
        let is_repeated = self.may_have_moved.fetch_or(is_known, Ordering::Relaxed);
        let telling = peer::register(&mut read, &mut write, &secret, is_known);
        let registered = match self.unless_late(telling).await {
            Ok(Some(registered)) => registered,
            Ok(None) => return Err(Some("no answer to the registration of this frontend".to_owned())),
            Err(Late) => return Err(None),
        };
        let registered = registered.map_err(|error| Some(error.to_string()))?;
        self.may_have_moved.store(false, Ordering::Relaxed);
        let moved = match registered {
            Registered::Moved(is_other_path) => Some(is_other_path || is_repeated),
            // The backend may have read the earlier registration, whose answer is missing.
            Registered::Known => is_repeated.then_some(true),
            Registered::Refused => None,
        };
        if let Some((is_other_path, (_, remote))) = moved.zip(ends) {
            dialling.endpoint.change_path(remote, is_other_path);
            dialling.log.line(Level::Info, "moved", &[("backend", Value::Text(self.spec.name.clone()))]);
        }
        let follows = registered != Registered::Refused;
        self.is_followed.store(follows, Ordering::Relaxed);
        Ok(follows)
    }

    /// True if the backend has answered a connection other than the watch within `span`.
    fn answered_within(&self, span: Duration) -> bool {
        let answered = *self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        answered.is_some_and(|at| at.elapsed() < span)
    }

    /// Returns the time limit of an answer to the watch.
    fn patience(&self) -> Duration {
        MIN_TIME_LIMIT.max(3 * self.round_trip().unwrap_or_default())
    }

    /// Returns the time limit of the registration, and of the first answer, which may include the handshake
    /// and the confirmation.
    fn first_answer(&self) -> Duration {
        4 * self.patience()
    }

    /// Returns the path as a connection of the watch has measured it.
    fn measure(
        &self,
        connection: &Connection,
        transport: Transport,
        dialling: &Dialling,
        loss_in: Option<f64>,
    ) -> PathReport {
        let endpoint = match transport {
            Transport::Packet => dialling.packet.as_ref(),
            Transport::Usual | Transport::Kernel => Some(&dialling.endpoint),
        };
        match (connection.stats(), connection.ends(), endpoint) {
            (Some(stats), Some(ends), Some(endpoint)) => PathReport::of(&stats, endpoint, ends, loss_in),
            // The kernel's TCP reports only the time of the answers.
            _ => PathReport { smoothed_rtt: self.round_trip(), loss_in, ..PathReport::default() },
        }
    }

    /// Waits for `asked`. `None` if the backend is silent for `patience`, on this connection and on all
    /// others. If it answers others, it is only slow, and a repeated question would slow it further.
    async fn unless_silent<T>(&self, patience: Duration, asked: impl Future<Output = T>) -> Option<T> {
        let mut asked = pin!(asked);
        let mut wait = patience;
        loop {
            if let Ok(answer) = tokio::time::timeout(wait, &mut asked).await {
                return Some(answer);
            }
            let answered = *self.answered.lock().unwrap_or_else(PoisonError::into_inner);
            wait =
                answered.and_then(|at| patience.checked_sub(at.elapsed())).filter(|wait| !wait.is_zero())?;
        }
    }

    /// Waits for the first answer to a watch, or for the answer to its registration; `None` if the backend is
    /// silent. If this side may have moved, its connections wait for the registration. So there is a limit
    /// even if the backend answers others, because this connection may be stuck. After a late watch the limit
    /// is twice as long, because the new path may be slower. At short round trips three watches fit in the
    /// time for which the backend waits for a registration.
    async fn unless_late<T>(&self, asked: impl Future<Output = T>) -> Result<Option<T>, Late> {
        let patience = self.first_answer();
        let answer = self.unless_silent(patience, asked);
        if !self.is_followed.load(Ordering::Relaxed) {
            return Ok(answer.await);
        }
        // `answer` reports a silent backend first.
        let limit = if self.was_late.load(Ordering::Relaxed) { patience * 2 } else { patience * 9 / 8 };
        tokio::time::timeout(limit, answer).await.map_err(|_| {
            self.was_late.store(true, Ordering::Relaxed);
            Late
        })
    }

    fn learn(&self, round_trip: Duration) {
        let sample = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX).max(1);
        let before = self.round_trip.load(Ordering::Relaxed);
        let smoothed = if before == 0 { sample } else { before - before / 8 + sample / 8 };
        self.round_trip.store(smoothed, Ordering::Relaxed);
    }
}

/// Error of a watch that got no answer in time, although the backend answers others.
#[derive(Debug)]
struct Late;

fn not_configured() -> DialError {
    let text = "this transport is not configured for this backend";
    DialError::Unopened(io::Error::new(io::ErrorKind::AddrNotAvailable, text))
}

/// Sends `message` over the kernel's TCP and waits for the answer.
async fn ask_over_kernel(kernel: Option<SocketAddr>, message: &[u8]) -> Result<Answered, DialError> {
    let kernel = kernel.ok_or_else(not_configured)?;
    let stream = outgoing::connect(kernel).await.map_err(DialError::Unopened)?;
    crate::io::prepare(&stream);
    ask(Connection::Kernel(stream), message, 0).await
}

/// Resets a connection when dropped, unless it was kept.
struct Abandoned(Option<brisk_runtime::stream::StreamHandle>);

impl Abandoned {
    fn kept(mut self) {
        self.0 = None;
    }
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        if let Some(handle) = &self.0 {
            handle.abort();
        }
    }
}

/// All backends of a frontend.
#[derive(Debug)]
pub struct Upstreams {
    all: Vec<Arc<Upstream>>,
    /// Credit of each backend; the backend with the most credit gets the next connection, and pays with its
    /// credit.
    owed: Mutex<Vec<i64>>,
}

impl Upstreams {
    pub(crate) fn new(specs: Vec<BackendSpec>) -> Upstreams {
        let all: Vec<_> = specs.into_iter().map(|spec| Arc::new(Upstream::new(spec))).collect();
        Upstreams { owed: Mutex::new(vec![0; all.len()]), all }
    }

    /// Returns the backends of `specs`; those that exist already keep their state.
    pub(crate) fn renewed(&self, specs: Vec<BackendSpec>) -> Upstreams {
        let known = |spec: BackendSpec| {
            let old = self.all.iter().find(|upstream| upstream.spec == spec).cloned();
            old.unwrap_or_else(|| Arc::new(Upstream::new(spec)))
        };
        let all: Vec<_> = specs.into_iter().map(known).collect();
        Upstreams { owed: Mutex::new(vec![0; all.len()]), all }
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Arc<Upstream>> {
        self.iter().find(|upstream| upstream.spec.name == name)
    }

    /// Iterates over all backends.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.all.iter()
    }

    /// Returns the shortest round trip that a connection saves if the opening of the hop carries the client's
    /// first bytes. Considers the backends that can get connections. `None` if nothing is saved or no round
    /// trip is known.
    pub(crate) fn saved_by_first_bytes(&self, dialling: &Dialling) -> Option<Duration> {
        let asked = self.iter().filter(|upstream| can_be_asked(upstream));
        asked.filter_map(|upstream| upstream.saved_round_trip(dialling)).min()
    }

    /// True if every backend is down.
    pub(crate) fn all_down(&self) -> bool {
        self.iter().all(|upstream| upstream.health() == Health::Down)
    }

    /// True if at least one can get connections.
    pub fn any_up(&self) -> bool {
        self.iter().any(|upstream| can_be_asked(upstream))
    }

    /// Returns the backends in the order in which a connection tries them: those that are up by priority, and
    /// in turn by weight within a priority; then those that are draining or down. Omits backends without a
    /// known address.
    pub(crate) fn order(&self) -> Vec<&Upstream> {
        let known = |upstream: &Upstream| upstream.spec.address.is_some();
        let ranks = self.iter().filter(|upstream| known(upstream)).map(|upstream| rank(upstream));
        let Some(best) = ranks.min() else { return Vec::new() };
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        let mut turn: Option<usize> = None;
        let mut total = 0;
        let next = |upstream: &Upstream| known(upstream) && rank(upstream) == best;
        for (n, upstream) in self.all.iter().enumerate().filter(|(_, upstream)| next(upstream)) {
            let weight = i64::from(upstream.spec.weight.max(1));
            total += weight;
            owed[n] += weight;
            turn = turn.filter(|turn| owed[*turn] >= owed[n]).or(Some(n));
        }
        let turn = turn.unwrap_or_default();
        owed[turn] -= total;
        self.all[turn].asked.fetch_add(1, Ordering::Relaxed);
        let all = self.all.iter().map(Arc::as_ref).enumerate();
        let mut order: Vec<(usize, &Upstream)> = all.filter(|(_, upstream)| known(upstream)).collect();
        order.sort_by_key(|(n, upstream)| (*n != turn, rank(upstream)));
        order.into_iter().map(|(_, upstream)| upstream).collect()
    }
}

fn can_be_asked(upstream: &Upstream) -> bool {
    matches!(upstream.health(), Health::Up | Health::Unknown)
}

/// Returns the sort key: health (up, unknown, draining, down), then priority. Without a watch, unknown ranks
/// as up. With one it ranks below: a request that was sent to a dead backend is lost, because no other
/// backend may get it then.
fn rank(upstream: &Upstream) -> (u8, u8) {
    let usable = match upstream.health() {
        Health::Up => 0,
        Health::Unknown => upstream.watched.load(Ordering::Relaxed).into(),
        Health::Draining => 2,
        Health::Down => 3,
    };
    (usable, upstream.spec.priority)
}

#[cfg(test)]
mod tests {
    use brisk_runtime::TcpListener;
    use brisk_runtime::memory::{self, LinkSpec};
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::metrics::Metrics;

    fn upstreams(specs: &[(u8, u16)]) -> Upstreams {
        let spec = |(n, (priority, weight)): (usize, &(u8, u16))| BackendSpec {
            name: n.to_string(),
            priority: *priority,
            weight: *weight,
            ..BackendSpec::new("192.0.2.1:1".parse().unwrap())
        };
        Upstreams::new(specs.iter().enumerate().map(spec).collect())
    }

    fn first(upstreams: &Upstreams) -> &str {
        &upstreams.order()[0].spec.name
    }

    #[tokio::test]
    async fn backend_that_answers_others_is_late_and_not_silent() {
        const TIME_LIMIT: Duration = Duration::from_millis(500);
        let upstreams = upstreams(&[(0, 1)]);
        let upstream = &upstreams.all[0];
        let silence = async || {
            let began = Instant::now();
            let answer = upstream.unless_silent(TIME_LIMIT, std::future::pending::<()>()).await;
            (answer, began.elapsed())
        };
        let (answer, took) = silence().await;
        assert!(answer.is_none() && took >= TIME_LIMIT, "{took:?}");
        let others = async {
            for _ in 0..12 {
                tokio::time::sleep(TIME_LIMIT / 10).await;
                upstream.outcome(true, true, &Log::silent());
            }
        };
        let ((answer, took), ()) = tokio::join!(silence(), others);
        assert!(answer.is_none() && took >= 2 * TIME_LIMIT, "{took:?}");
    }

    #[tokio::test]
    async fn watch_that_may_report_a_move_has_a_limit_that_doubles_although_others_are_answered() {
        let upstreams = upstreams(&[(0, 1), (0, 1)]);
        upstreams.iter().for_each(|upstream| upstream.is_followed.store(true, Ordering::Relaxed));
        upstreams.all[1].was_late.store(true, Ordering::Relaxed);
        let is_late = async |upstream: &Upstream| {
            let others = async {
                loop {
                    upstream.outcome(true, true, &Log::silent());
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            let asked = tokio::time::sleep(upstream.first_answer() * 5 / 4);
            tokio::select! {
                answer = upstream.unless_late(asked) => answer.is_err(),
                () = others => false,
            }
        };
        let late = tokio::join!(is_late(&upstreams.all[0]), is_late(&upstreams.all[1]));
        assert_eq!(late, (true, false));
        assert!(upstreams.all[0].was_late.load(Ordering::Relaxed));
    }

    /// Returns what a watch needs to open plain connections through `endpoint`; `lines` receives the log.
    fn plain(endpoint: &Endpoint, lines: &Lines) -> Dialling {
        Dialling {
            endpoint: endpoint.clone(),
            packet: None,
            hop: Hop::Plain,
            own: Arc::new(Ephemerals::new(Duration::ZERO)),
            tcp: TcpConfig::default(),
            fast_open: None,
            watched: true,
            log: Log::to(lines.clone(), crate::log::LogFormat::Text, Level::Info),
        }
    }

    #[tokio::test]
    async fn request_for_which_no_connection_was_opened_may_go_to_another_backend() {
        let (near, far) = memory::builders(&LinkSpec::default(), 1);
        let near = near.stack(|stack| stack.ephemeral_ports = 50_000..=50_000).build().unwrap();
        let _far = far.build().unwrap();
        let address = "10.0.0.2:80".parse().unwrap();
        // This connection takes the only port, and the kernel connects to no multicast address.
        let _other = near.connect_with_data(address, b"", &ConnectConfig::default()).unwrap();
        let kernel = "224.0.0.1:80".parse().ok();
        let upstream = Upstream::new(BackendSpec { kernel, ..BackendSpec::new(address) });
        let dialling = plain(&near, &Lines::default());
        for transport in [Transport::Usual, Transport::Kernel] {
            let failed = upstream.open_over(&dialling, &Opening::new(Purpose::Carry), transport).await;
            let failed = failed.unwrap_err();
            assert!(failed.is_retryable(), "{transport:?}: {failed}");
        }
    }

    #[tokio::test]
    async fn watch_shares_no_controller_with_connections_of_clients() {
        let (near, _far) = memory::network(&LinkSpec::default(), 1).unwrap();
        let tcp = TcpConfig { share_path: true, ..TcpConfig::default() };
        let dialling = Dialling { tcp, ..plain(&near, &Lines::default()) };
        let shares = |purpose| dialling.connect_config(purpose).tcp.share_path;
        assert!(shares(Purpose::Carry) && !shares(Purpose::Watch));
    }

    #[tokio::test]
    async fn watch_ends_with_a_reason_if_nothing_answers_its_registration() {
        let (near, far) = memory::network(&LinkSpec::default(), 1).unwrap();
        let listener = TcpListener::bind(&far, "10.0.0.2:80".parse().unwrap()).unwrap();
        for is_followed in [false, true] {
            let upstream = Upstream::new(BackendSpec::new(listener.local_addr()));
            let stream = near.connect(listener.local_addr()).await.unwrap();
            let mut hop = HopStream::direct(Connection::Brisk(stream), Vec::new());
            upstream.is_followed.store(is_followed, Ordering::Relaxed);
            let registered = upstream.register(&mut hop, &plain(&near, &Lines::default())).await;
            assert_eq!(registered, Err(Some("no answer to the registration of this frontend".to_owned())));
            assert_eq!(upstream.may_have_moved.load(Ordering::Relaxed), is_followed);
        }
    }

    #[tokio::test]
    async fn registration_after_one_without_an_answer_counts_as_a_move() {
        let (near, far) = memory::network(&LinkSpec::default(), 1).unwrap();
        let listener = TcpListener::bind(&far, "10.0.0.2:80".parse().unwrap()).unwrap();
        let address = listener.local_addr();
        // The backend has nothing to move any more.
        tokio::spawn(async move {
            let mut hops = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                let mut hop = HopStream::direct(Connection::Brisk(stream), Vec::new());
                let (mut read, mut write) = hop.split();
                read.read_u8().await.unwrap();
                peer::take_registration(&mut read, &mut write, |_| None).await.unwrap();
                hops.push(hop);
            }
        });
        let lines = Lines::default();
        let dialling = plain(&near, &lines);
        let upstream = Upstream::new(BackendSpec::new(address));
        for is_repeated in [false, true, false] {
            upstream.may_have_moved.store(is_repeated, Ordering::Relaxed);
            let stream = near.connect(address).await.unwrap();
            let mut hop = HopStream::direct(Connection::Brisk(stream), Vec::new());
            assert_eq!(upstream.register(&mut hop, &dialling).await, Ok(true));
            let logged = String::from_utf8(std::mem::take(&mut lines.0.lock().unwrap())).unwrap();
            assert_eq!(logged.contains("event=moved"), is_repeated, "{logged}");
        }
    }

    /// Log lines in memory.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn change_of_transport_is_logged_once_each_way_and_shown_by_the_metric() {
        let (lines, address) = (Lines::default(), "192.0.2.1:1".parse().unwrap());
        let log = Log::to(lines.clone(), crate::log::LogFormat::Text, Level::Info);
        let logged = || String::from_utf8(std::mem::take(&mut lines.0.lock().unwrap())).unwrap();
        let spec = BackendSpec { kernel: Some(address), ..BackendSpec::new(address) };
        let upstreams = Upstreams::new(vec![spec]);
        let upstream = &upstreams.all[0];
        let metrics = Metrics::new();
        let is_shown = |transport, value| {
            let labels = format!("{{peer=\"192.0.2.1:1\",transport=\"{transport}\"}}");
            metrics.text(Some(&upstreams)).contains(&format!("brisk_backend_transport{labels} {value}\n"))
        };
        upstream.works(Transport::Usual, &log);
        assert_eq!(logged(), "");
        assert!(is_shown("brisk", 1) && is_shown("kernel-tcp", 0));
        upstream.lost(Transport::Usual, Trials::Watch, Instant::now(), &log);
        upstream.lost(Transport::Usual, Trials::Watch, Instant::now(), &log);
        let fallback = logged();
        assert_eq!(fallback.lines().count(), 1, "{fallback}");
        let fields = "event=transport backend=192.0.2.1:1 transport=kernel-tcp before=brisk";
        assert!(fallback.contains("level=warn") && fallback.contains(fields), "{fallback}");
        assert!(is_shown("brisk", 0) && is_shown("kernel-tcp", 1));
        upstream.works(Transport::Usual, &log);
        let back = logged();
        assert!(back.contains("level=info") && back.contains("transport=brisk before=kernel-tcp"), "{back}");
        assert!(is_shown("brisk", 1) && is_shown("kernel-tcp", 0));
        // Without another transport the hop keeps this one.
        let alone = Upstream::new(BackendSpec::new(address));
        alone.lost(Transport::Usual, Trials::Watch, Instant::now(), &log);
        assert_eq!(logged(), "");
    }

    #[test]
    fn shares_follow_the_weights() {
        let upstreams = upstreams(&[(0, 3), (0, 1)]);
        let asked = (0..400).filter(|_| first(&upstreams) == "0").count();
        assert_eq!(asked, 300);
        upstreams.all[1].set(Health::Down, "test", &Log::silent());
        assert!((0..100).all(|_| first(&upstreams) == "0"));
        upstreams.all[1].set(Health::Up, "test", &Log::silent());
        let asked = (0..400).filter(|_| first(&upstreams) == "0").count();
        assert_eq!(asked, 300, "a backend that comes back has no credit");
    }

    #[test]
    fn the_lowest_priority_number_that_is_up_is_asked() {
        let (upstreams, log) = (upstreams(&[(0, 1), (1, 1)]), Log::silent());
        assert_eq!(first(&upstreams), "0");
        upstreams.all[0].set(Health::Down, "test", &log);
        assert_eq!(first(&upstreams), "1");
        upstreams.all[1].set(Health::Draining, "test", &log);
        assert_eq!(first(&upstreams), "1", "a draining backend comes before a dead one");
        assert!(!upstreams.any_up());
        upstreams.all[0].set(Health::Up, "test", &log);
        assert_eq!(first(&upstreams), "0");
    }

    #[test]
    fn watched_backend_is_asked_after_those_that_have_answered() {
        let (upstreams, log) = (upstreams(&[(0, 1), (0, 1), (1, 1)]), Log::silent());
        for upstream in upstreams.iter() {
            upstream.watched.store(true, Ordering::Relaxed);
        }
        upstreams.all[1].set(Health::Up, "test", &log);
        assert!((0..10).all(|_| first(&upstreams) == "1"));
        upstreams.all[1].set(Health::Draining, "test", &log);
        upstreams.all[2].set(Health::Up, "test", &log);
        assert_eq!(first(&upstreams), "2", "the backend has answered");
        upstreams.all[2].set(Health::Down, "test", &log);
        assert_eq!(first(&upstreams), "0", "an unknown backend may answer");
        assert!(upstreams.any_up());
    }

    #[test]
    fn backend_without_an_address_is_down() {
        let known = BackendSpec { priority: 9, ..BackendSpec::new("192.0.2.1:1".parse().unwrap()) };
        let specs = vec![BackendSpec::unknown("nobody:1".into()), known.clone()];
        let upstreams = Upstreams::new(specs.clone());
        assert_eq!(upstreams.all[0].health(), Health::Down);
        upstreams.all[1].set(Health::Down, "test", &Log::silent());
        let order = upstreams.order();
        assert!(order.len() == 1 && order[0].spec == known, "{order:?}");
        assert!(Upstreams::new(specs[..1].to_vec()).order().is_empty());
        let found = BackendSpec { address: known.address, ..specs[0].clone() };
        let upstreams = upstreams.renewed(vec![found, known]);
        assert_eq!(upstreams.all[0].health(), Health::Unknown);
        assert_eq!(upstreams.all[1].health(), Health::Down, "the others keep their state");
    }

    #[test]
    fn without_a_watch_three_failures_make_a_backend_down_and_a_success_up() {
        let (upstream, log) =
            (Upstream::new(BackendSpec::new("192.0.2.1:1".parse().unwrap())), Log::silent());
        for _ in 0..2 {
            upstream.outcome(false, false, &log);
            assert_ne!(upstream.health(), Health::Down);
        }
        upstream.outcome(false, false, &log);
        assert_eq!(upstream.health(), Health::Down);
        upstream.outcome(true, false, &log);
        assert_eq!(upstream.health(), Health::Up);
    }
}
