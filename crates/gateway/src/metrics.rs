//! Counters of a gateway: Prometheus metrics, and the last two minutes for the status page.
//!
//! The labels have a limited number of values: results, outcomes and directions are fixed sets, and backends
//! and frontends are configured. No label names a client.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use brisk_runtime::ConnStats;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::access::{Access, ClientTcp, retransmits};
use crate::end::End;
use crate::exempt::{Exemptions, Sign};
use crate::first_bytes::FirstSender;
use crate::frontends::{Account, Frontends};
use crate::history::History;
use crate::peer::{PathReport, Redundancy};
use crate::process::Process;
use crate::sums::Sums;
use crate::timeouts::Timeout;
use crate::upstream::{Health, Upstream, Upstreams};

type Labels = Vec<(&'static str, String)>;
type Fraction = Gauge<f64, AtomicU64>;

/// Bounds of the histograms, in seconds: dense for short times, and up to the time at which users give up.
const BOUNDS: [f64; 16] =
    [0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 15.0];

/// Outcomes of parity segments: sent, and received. The other words divide the received ones: no loss to
/// repair, dropped without an answer, could not repair (by cause).
const PARITY: [&str; 7] =
    ["sent", "received", "needless", "dropped", "too_much_lost", "no_history", "wrong_checksum"];

/// Outcomes of Fast Open that have a series from the start.
const FAST_OPEN: [&str; 7] = ["used", "no-cookie", "refused", "stripped", "syn-lost", "blackholed", "off"];

/// Values of the label for the side that sent first.
const SENT_FIRST: [&str; 4] = ["client", "client_late", "server", "nobody"];

fn sent_first(access: &Access) -> &'static str {
    match (access.sent_first, access.waited) {
        (Some(FirstSender::Client), None) => SENT_FIRST[0],
        (Some(FirstSender::Client), Some(_)) => SENT_FIRST[1],
        (Some(FirstSender::Server), _) => SENT_FIRST[2],
        (None, _) => SENT_FIRST[3],
    }
}

/// A mechanism, whether it is on, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MechanismState {
    /// The name in `hop.mechanisms`.
    pub name: &'static str,
    /// `on`, `off`, or the variant in use.
    pub state: &'static str,
    /// The reason in a few words.
    pub reason: String,
}

/// The counters of a gateway.
pub struct Metrics {
    began: Instant,
    registry: Mutex<Registry>,
    /// The metrics of the process, whose names have another prefix.
    process: Registry,
    draining: AtomicBool,
    open: Gauge,
    connections: Series,
    fast_open: Series,
    /// Connections of the hop by the state of the agreement on redundancy.
    redundancy: Series,
    wire: Series,
    payload: Series,
    /// Connections by the side that sent first.
    sent_first: Series,
    /// Connections by listener, named origin (if configured) and result.
    services: Family<Labels, Counter>,
    /// Connections that one of the [`Timeouts`](crate::Timeouts) ended, by timeout.
    timed_out: Series,
    repaired: Series,
    parity: Series,
    parity_saved: Counter<f64, AtomicU64>,
    timeouts: Counter,
    probes: Series,
    rejected: Counter,
    first_byte: Histogram,
    response: Histogram,
    round_trip: Family<Labels, Fraction>,
    loss: Family<Labels, Fraction>,
    overhead: Fraction,
    backend_up: Family<Labels, Gauge>,
    backend_transport: Family<Labels, Gauge>,
    mechanisms: Family<Labels, Gauge>,
    by_frontend: ByFrontend,
    clients: Clients,
    frontends: Frontends,
    states: Mutex<Vec<MechanismState>>,
    exemptions: Mutex<Option<Arc<Exemptions>>>,
    recent: Mutex<Recent>,
}

/// Sums for the ratios of the status page.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recent {
    pub(crate) history: History,
    pub(crate) sums: Sums,
    /// Connections by outcome of Fast Open, in the order of the first occurrence.
    pub(crate) outcomes: Vec<(&'static str, u64)>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").field("open", &self.open()).finish_non_exhaustive()
    }
}

/// Counters that differ in one label. All expected values exist from the start, because the rate of a counter
/// that appears late is wrong. Every connection updates some twenty counters, so they are in a list:
/// searching it costs less than a map.
struct Series {
    family: Family<Labels, Counter>,
    key: &'static str,
    known: Vec<(&'static str, Counter)>,
}

impl Series {
    /// Returns a counter for each of `names`, the values of the label `key`.
    fn of(key: &'static str, names: &[&'static str]) -> Series {
        Series::labelled(key, names.iter().map(|name| (*name, vec![label(key, *name)])))
    }

    /// Returns counters of bytes on the hop by direction and kind.
    fn wire() -> Series {
        let kinds =
            [("out", "first"), ("out", "retransmit"), ("out", "parity"), ("out", "copy"), ("in", "all")];
        let labels = |(dir, kind)| (kind, vec![label("dir", dir), label("kind", kind)]);
        Series::labelled("kind", kinds.into_iter().map(labels))
    }

    fn labelled(key: &'static str, names: impl Iterator<Item = (&'static str, Labels)>) -> Series {
        let family = Family::<Labels, Counter>::default();
        let counter = |labels: &Labels| family.get_or_create(labels).clone();
        let known = names.map(|(name, labels)| (name, counter(&labels))).collect();
        Series { family, key, known }
    }

    fn add(&self, name: &'static str, by: u64) {
        // All cores share the counters. Adding 0 would only move the cache line to this core.
        if by == 0 && self.known.iter().any(|(known, _)| *known == name) {
            return;
        }
        match self.known.iter().find(|(known, _)| *known == name) {
            Some((_, counter)) => drop(counter.inc_by(by)),
            None => drop(self.family.get_or_create(&vec![label(self.key, name)]).inc_by(by)),
        }
    }

    /// Returns the counters that existed from the start.
    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.known.iter().map(|(name, counter)| (*name, counter.get())).collect()
    }
}

fn label(key: &'static str, value: impl Into<String>) -> (&'static str, String) {
    (key, value.into())
}

impl Metrics {
    /// Returns counters at zero.
    pub fn new() -> Metrics {
        let mut process = Registry::default();
        process.register_collector(Box::new(Process::new()));
        let metrics = Metrics {
            began: Instant::now(),
            registry: Mutex::new(Registry::with_prefix("brisk")),
            process,
            draining: AtomicBool::new(false),
            open: Gauge::default(),
            connections: Series::of("result", &End::NAMES),
            fast_open: Series::of("result", &FAST_OPEN),
            redundancy: Series::of("result", &Redundancy::ALL.map(Redundancy::name)),
            wire: Series::wire(),
            payload: Series::of("dir", &["up", "down"]),
            sent_first: Series::of("who", &SENT_FIRST),
            services: Family::default(),
            timed_out: Series::of("kind", &Timeout::ALL.map(Timeout::name)),
            repaired: Series::of("by", &["probe", "parity", "copy"]),
            parity: Series::of("result", &PARITY),
            parity_saved: Counter::default(),
            timeouts: Counter::default(),
            probes: Series::of("result", &["repaired", "spurious", "other"]),
            rejected: Counter::default(),
            first_byte: Histogram::new(BOUNDS),
            response: Histogram::new(BOUNDS),
            round_trip: Family::default(),
            loss: Family::default(),
            overhead: Fraction::default(),
            backend_up: Family::default(),
            backend_transport: Family::default(),
            mechanisms: Family::default(),
            by_frontend: ByFrontend::default(),
            clients: Clients::new(),
            frontends: Frontends::default(),
            states: Mutex::default(),
            exemptions: Mutex::default(),
            recent: Mutex::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&self) {
        let mut registry = lock(&self.registry);
        let mut counter = |name: &str, help: &str, series: &Series| {
            registry.register(name, help, series.family.clone());
        };
        counter("connections", "Connections that have ended, by result", &self.connections);
        counter("tfo_attempts", "Connections of the hop, by outcome of Fast Open", &self.fast_open);
        counter(
            "redundancy_connections",
            "Connections of the hop, by whether both sides agreed on parity and copies",
            &self.redundancy,
        );
        counter("wire_bytes", "Bytes on the hop, IP headers included; sent bytes also by kind", &self.wire);
        counter("payload_bytes", "Payload bytes; up is towards the origin", &self.payload);
        counter(
            "first_bytes",
            "Connections by the side that sent first; client_late: the client sent after the hop was opened without its first bytes",
            &self.sent_first,
        );
        counter("timeouts", "Connections that a timeout of [limits] ended, by timeout", &self.timed_out);
        counter(
            "segments_repaired",
            "Losses that a probe, parity or a copy repaired before a retransmission",
            &self.repaired,
        );
        counter(
            "parity_segments",
            "Parity segments: sent, received, and received but not used, by cause",
            &self.parity,
        );
        counter("tail_probes", "Tail loss probes, by result", &self.probes);
        registry.register(
            "service_connections",
            "Connections that have ended, by listener (at a frontend that has several), name of the origin, and result",
            self.services.clone(),
        );
        registry.register("connections_active", "Open connections", self.open.clone());
        registry.register("rto", "Retransmission timeouts on the hop", self.timeouts.clone());
        registry.register(
            "rejected",
            "Connections of the hop whose first message was rejected",
            self.rejected.clone(),
        );
        self.by_frontend.register(&mut registry);
        self.clients.register(&mut registry);
        drop(registry);
        self.register_times();
        self.register_states();
    }

    fn register_times(&self) {
        let mut registry = lock(&self.registry);
        registry.register_with_unit(
            "parity_saved",
            "Time saved by parity: from the report of a repair to the earliest possible report of a retransmission",
            Unit::Seconds,
            self.parity_saved.clone(),
        );
        registry.register_with_unit(
            "time_to_first_byte",
            "Time from accept to the first byte of the answer",
            Unit::Seconds,
            self.first_byte.clone(),
        );
        registry.register_with_unit(
            "response",
            "Time from accept to the end of the connection",
            Unit::Seconds,
            self.response.clone(),
        );
        registry.register_with_unit(
            "path_rtt",
            "Round-trip time to a backend: smoothed, and the minimum of the last five minutes",
            Unit::Seconds,
            self.round_trip.clone(),
        );
    }

    fn register_states(&self) {
        let mut registry = lock(&self.registry);
        registry.register(
            "path_loss_ratio",
            "Share of lost segments on the path, repaired ones included; out: sent by this side; in: sent by the peer, which reports the share",
            self.loss.clone(),
        );
        registry.register(
            "overhead_ratio",
            "Bytes of parity and copies, divided by the payload bytes",
            self.overhead.clone(),
        );
        registry.register("backend_up", "1 if the backend is up", self.backend_up.clone());
        registry.register(
            "backend_transport",
            "1 for the transport of new connections to a backend",
            self.backend_transport.clone(),
        );
        registry.register(
            "mechanism_state",
            "1 for the current state of a mechanism",
            self.mechanisms.clone(),
        );
        let build = Family::<Labels, Gauge>::default();
        build.get_or_create(&vec![label("version", env!("CARGO_PKG_VERSION"))]).set(1);
        registry.register("build_info", "This program", build);
    }

    /// Counts a connection that begins. It is open until the returned value is dropped.
    pub(crate) fn begin(&self) -> Open {
        self.open.inc();
        Open(self.open.clone())
    }

    /// Counts a first message that was rejected.
    pub(crate) fn reject(&self) {
        self.rejected.inc();
    }

    /// Creates the series of clients' connections over this TCP.
    pub(crate) fn expect_clients(&self, tcp: ClientTcp) {
        self.clients.expect(tcp.name());
    }

    /// Creates the series of exempt clients. `exemptions` returns their number.
    pub(crate) fn count_exempt(&self, exemptions: Arc<Exemptions>) {
        let known = Sign::ALL.map(Sign::name);
        known.iter().for_each(|sign| drop(self.clients.exempted.get_or_create(&vec![label("sign", *sign)])));
        *lock(&self.exemptions) = Some(exemptions);
    }

    /// Counts a client that is exempt from now on.
    pub(crate) fn exempt(&self, sign: Sign) {
        self.clients.exempted.get_or_create(&vec![label("sign", sign.name())]).inc();
    }

    /// Returns the number of clients that an edge leaves to the kernel because their path fails with brisk's
    /// TCP. `None` if this side exempts no clients.
    pub(crate) fn exempt_clients(&self) -> Option<usize> {
        lock(&self.exemptions).as_ref().map(|exemptions| exemptions.count())
    }

    /// Counts a connection that exceeded a time limit.
    pub(crate) fn timed_out(&self, timeout: Timeout) {
        self.timed_out.add(timeout.name(), 1);
    }

    /// Records that no more connections are accepted.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// True after the signal to stop.
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Returns the number of open connections.
    pub fn open(&self) -> u64 {
        u64::try_from(self.open.get()).unwrap_or(0)
    }

    /// Returns the time since the counters were created.
    pub fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Replaces the states of the mechanisms, for all reports.
    pub fn set_mechanisms(&self, states: Vec<MechanismState>) {
        *lock(&self.states) = states;
    }

    /// Returns the states of the mechanisms.
    pub fn mechanisms(&self) -> Vec<MechanismState> {
        lock(&self.states).clone()
    }

    /// Counts a connection that has ended.
    pub fn observe(&self, access: &Access) {
        self.connections.add(access.end.name(), 1);
        self.payload.add("up", access.bytes_up);
        self.payload.add("down", access.bytes_down);
        self.sent_first.add(sent_first(access), 1);
        if let End::TimedOut(timeout) = access.end {
            self.timed_out(timeout);
        }
        if let Some(first_byte) = access.first_byte {
            self.first_byte.observe(first_byte.as_secs_f64());
        }
        let failed = access.end.is_failure();
        if access.end == End::Closed {
            self.response.observe(access.duration.as_secs_f64());
        }
        if let Some(hop) = &access.hop {
            self.observe_hop(hop);
        }
        if access.listener.is_some() || access.origin.is_some() {
            let labels = vec![
                label("listener", access.listener.as_deref().unwrap_or_default()),
                label("origin", access.origin.as_deref().unwrap_or_default()),
                label("result", access.end.name()),
            ];
            self.services.get_or_create(&labels).inc();
        }
        self.clients.observe(access);
        self.frontends.observe(access);
        let mut recent = lock(&self.recent);
        let Recent { history, sums, outcomes } = &mut *recent;
        if let Some(hop) = &access.hop {
            let outcome = hop.fast_open.name();
            match outcomes.iter_mut().find(|(name, _)| *name == outcome) {
                Some((_, count)) => *count += 1,
                None => outcomes.push((outcome, 1)),
            }
        }
        sums.add(access);
        let retransmits = access.hop.as_ref().map_or(0, |hop| hop.counters.retransmits);
        history.add(self.began.elapsed(), access.first_byte.unwrap_or(access.duration), failed, retransmits);
        let carried = (sums.up + sums.down).max(1);
        self.overhead.set(sums.redundant as f64 / carried as f64);
    }

    fn observe_hop(&self, hop: &ConnStats) {
        let counters = &hop.counters;
        self.fast_open.add(hop.fast_open.name(), 1);
        self.redundancy.add(Redundancy::of(hop.gentle).name(), 1);
        self.timeouts.inc_by(counters.timeouts);
        let again = counters.retransmitted_bytes;
        let first = counters.wire_bytes_out.saturating_sub(again + counters.redundant_bytes);
        let parity = counters.parity.sent_bytes;
        for (kind, bytes) in [
            ("first", first),
            ("retransmit", again),
            ("parity", parity),
            ("copy", counters.redundant_bytes.saturating_sub(parity)),
            ("all", counters.wire_bytes_in),
        ] {
            self.wire.add(kind, bytes);
        }
        for (by, count) in [
            ("probe", counters.repaired_by_probe),
            ("parity", counters.repaired_by_parity),
            ("copy", counters.repaired_by_copy),
        ] {
            self.repaired.add(by, count);
        }
        self.observe_parity(hop);
        let other = counters.probes.saturating_sub(counters.repaired_by_probe + counters.probes_spurious);
        for (result, count) in [
            ("repaired", counters.repaired_by_probe),
            ("spurious", counters.probes_spurious),
            ("other", other),
        ] {
            self.probes.add(result, count);
        }
    }

    fn observe_parity(&self, hop: &ConnStats) {
        let parity = &hop.counters.parity;
        let counts = [
            parity.sent,
            parity.received,
            parity.needless,
            parity.dropped,
            parity.failed_too_much,
            parity.failed_history,
            parity.failed_checksum,
        ];
        for (result, count) in PARITY.into_iter().zip(counts) {
            self.parity.add(result, count);
        }
        self.parity_saved.inc_by(parity.saved.as_secs_f64());
    }

    /// Returns the frontends of a backend that have their own keys.
    pub(crate) fn frontends(&self) -> &Frontends {
        &self.frontends
    }

    pub(crate) fn recent(&self) -> Recent {
        lock(&self.recent).clone()
    }

    /// Returns the results of connections so far.
    pub(crate) fn results(&self) -> Vec<(&'static str, u64)> {
        self.connections.counts()
    }

    /// Returns the number of connections for each state of redundancy that has occurred.
    pub(crate) fn redundancy_outcomes(&self) -> Vec<(&'static str, u64)> {
        self.redundancy.counts().into_iter().filter(|(_, count)| *count > 0).collect()
    }

    /// Returns the outcomes of Fast Open that have occurred.
    pub(crate) fn fast_open_outcomes(&self) -> Vec<(&'static str, u64)> {
        lock(&self.recent).outcomes.clone()
    }

    /// Returns the text of `/metrics`.
    pub fn text(&self, upstreams: Option<&Upstreams>) -> String {
        // Series of backends, frontends and states that no longer exist must disappear.
        self.round_trip.clear();
        self.loss.clear();
        self.backend_up.clear();
        self.backend_transport.clear();
        self.mechanisms.clear();
        self.by_frontend.clear();
        if let Some(count) = self.exempt_clients() {
            self.clients.exempt.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        for (label, account) in self.frontends.all() {
            self.by_frontend.set(&label, &account);
        }
        for MechanismState { name, state, reason } in lock(&self.states).iter() {
            let labels = vec![label("mechanism", *name), label("state", *state), label("reason", reason)];
            self.mechanisms.get_or_create(&labels).set(1);
        }
        for upstream in upstreams.into_iter().flat_map(Upstreams::iter) {
            self.set_peer(upstream);
        }
        if upstreams.is_none()
            && let Some(loss) = lock(&self.recent).sums.loss()
        {
            self.loss.get_or_create(&vec![label("peer", "all"), label("dir", "out")]).set(loss);
        }
        let mut text = String::new();
        // Writing into a string does not fail.
        let _ = encode_registry(&mut text, &lock(&self.registry))
            .and_then(|()| encode_registry(&mut text, &self.process))
            .and_then(|()| encode_eof(&mut text));
        text
    }
}

impl Metrics {
    fn set_peer(&self, upstream: &Upstream) {
        let peer = label("peer", upstream.spec.name.clone());
        let up = matches!(upstream.health(), Health::Up | Health::Unknown);
        self.backend_up.get_or_create(&vec![peer.clone()]).set(i64::from(up));
        for transport in upstream.available() {
            let labels = vec![peer.clone(), label("transport", transport.name())];
            self.backend_transport.get_or_create(&labels).set(i64::from(transport == upstream.transport()));
        }
        let PathReport { smoothed_rtt, min_rtt, loss_out, loss_in } = upstream.path();
        for (kind, rtt) in [("smoothed", smoothed_rtt), ("min", min_rtt)] {
            if let Some(rtt) = rtt {
                let labels = vec![peer.clone(), label("kind", kind)];
                self.round_trip.get_or_create(&labels).set(rtt.as_secs_f64());
            }
        }
        for (dir, loss) in [("out", loss_out), ("in", loss_in)] {
            if let Some(loss) = loss {
                self.loss.get_or_create(&vec![peer.clone(), label("dir", dir)]).set(loss);
            }
        }
        let redundancy = upstream.redundancy();
        let mechanism = label("mechanism", "redundancy");
        let labels =
            vec![peer, mechanism, label("state", redundancy.name()), label("reason", redundancy.reason())];
        self.mechanisms.get_or_create(&labels).set(1);
    }
}

/// The series of clients' connections over brisk's TCP and, at an edge, over the kernel's TCP.
#[derive(Debug)]
struct Clients {
    connections: Family<Labels, Counter>,
    exempted: Family<Labels, Counter>,
    exempt: Gauge,
    segments: Family<Labels, Counter>,
    fast_open: Family<Labels, Counter>,
    first_byte: Family<Labels, Histogram, fn() -> Histogram>,
    response: Family<Labels, Histogram, fn() -> Histogram>,
    round_trip: Family<Labels, Histogram, fn() -> Histogram>,
}

impl Clients {
    fn new() -> Clients {
        let times = || Family::new_with_constructor((|| Histogram::new(BOUNDS)) as fn() -> Histogram);
        Clients {
            connections: Family::default(),
            exempted: Family::default(),
            exempt: Gauge::default(),
            segments: Family::default(),
            fast_open: Family::default(),
            first_byte: times(),
            response: times(),
            round_trip: times(),
        }
    }

    fn register(&self, registry: &mut Registry) {
        let connections = "Connections of clients that have ended, by the TCP that served them and by result";
        registry.register("client_connections", connections, self.connections.clone());
        let exempted =
            "Clients that the edge left to the kernel's TCP because their path fails with brisk's, by sign";
        registry.register("clients_exempted", exempted, self.exempted.clone());
        let exempt = "Clients that the kernel's TCP serves now because their path fails with brisk's";
        registry.register("clients_exempt", exempt, self.exempt.clone());
        let segments = "Segments with data to clients, by the TCP that sent them; retransmit: sent again";
        registry.register("client_segments", segments, self.segments.clone());
        let fast_open = "Connections of clients over brisk's TCP, by outcome of Fast Open";
        registry.register("client_tfo_attempts", fast_open, self.fast_open.clone());
        for (name, help, times) in [
            (
                "client_time_to_first_byte",
                "Time from the accept of a client to the first byte of the answer, by the TCP that served it",
                &self.first_byte,
            ),
            (
                "client_response",
                "Time from the accept of a client to the end of the connection, by the TCP that served it",
                &self.response,
            ),
            (
                "client_rtt",
                "Smoothed round-trip time of a client at the end of the connection, by the TCP that served it",
                &self.round_trip,
            ),
        ] {
            registry.register_with_unit(name, help, Unit::Seconds, times.clone());
        }
    }

    /// Creates the series of a TCP.
    fn expect(&self, tcp: &'static str) {
        for result in End::NAMES {
            drop(self.connections.get_or_create(&vec![label("tcp", tcp), label("result", result)]));
        }
        for kind in ["first", "retransmit"] {
            drop(self.segments.get_or_create(&vec![label("tcp", tcp), label("kind", kind)]));
        }
        for times in [&self.first_byte, &self.response, &self.round_trip] {
            drop(times.get_or_create(&vec![label("tcp", tcp)]));
        }
    }

    /// Counts a connection that has ended.
    fn observe(&self, access: &Access) {
        let (tcp, sent, again, srtt) = match (access.tcp, access.of_client()) {
            (Some(tcp @ ClientTcp::Kernel(stats)), _) => {
                (tcp.name(), stats.data_segments_out, stats.retransmits, stats.srtt)
            }
            (_, Some(client)) => {
                self.fast_open.get_or_create(&vec![label("result", client.fast_open.name())]).inc();
                let sent = client.counters.data_segments_out;
                (ClientTcp::Brisk.name(), sent, retransmits(client), client.srtt)
            }
            (_, None) => return,
        };
        let result = label("result", access.end.name());
        self.connections.get_or_create(&vec![label("tcp", tcp), result]).inc();
        for (kind, count) in [("first", sent.saturating_sub(again)), ("retransmit", again)] {
            self.segments.get_or_create(&vec![label("tcp", tcp), label("kind", kind)]).inc_by(count);
        }
        let is_closed = access.end == End::Closed;
        for (times, took) in [
            (&self.first_byte, access.first_byte),
            (&self.response, is_closed.then_some(access.duration)),
            (&self.round_trip, srtt),
        ] {
            if let Some(took) = took {
                times.get_or_create(&vec![label("tcp", tcp)]).observe(took.as_secs_f64());
            }
        }
    }
}

/// The series of a backend for each frontend with its own key.
#[derive(Debug, Default)]
struct ByFrontend {
    active: Family<Labels, Gauge>,
    connections: Family<Labels, Counter>,
    payload: Family<Labels, Counter>,
    wire: Family<Labels, Counter>,
    throttled: Family<Labels, Counter<f64, AtomicU64>>,
}

impl ByFrontend {
    fn register(&self, registry: &mut Registry) {
        let active = "Open connections of a frontend";
        registry.register("frontend_connections_active", active, self.active.clone());
        let connections = "Connections of a frontend that have ended, by result";
        registry.register("frontend_connections", connections, self.connections.clone());
        let payload = "Payload bytes of a frontend; up is towards the origin";
        registry.register("frontend_payload_bytes", payload, self.payload.clone());
        let wire = "Bytes on the hop with a frontend, IP headers included";
        registry.register("frontend_wire_bytes", wire, self.wire.clone());
        registry.register_with_unit(
            "frontend_throttled",
            "Total time that connections of a frontend have waited for its max_rate",
            Unit::Seconds,
            self.throttled.clone(),
        );
    }

    fn clear(&self) {
        self.active.clear();
        self.connections.clear();
        self.payload.clear();
        self.wire.clear();
        self.throttled.clear();
    }

    /// Sets the series of one frontend.
    fn set(&self, name: &str, account: &Account) {
        let frontend = || label("frontend", name);
        let open = i64::try_from(account.open()).unwrap_or(i64::MAX);
        self.active.get_or_create(&vec![frontend()]).set(open);
        let total = |family: &Family<Labels, Counter>, more, value| {
            family.get_or_create(&vec![frontend(), more]).inc_by(value);
        };
        let throttled = account.throttled().as_secs_f64();
        self.throttled.get_or_create(&vec![frontend()]).inc_by(throttled);
        let ended = account.ended();
        for (result, count) in ended.results() {
            total(&self.connections, label("result", result), count);
        }
        let sums = ended.sums;
        for (family, dir, bytes) in [
            (&self.payload, "up", sums.up),
            (&self.payload, "down", sums.down),
            (&self.wire, "out", sums.wire_out),
            (&self.wire, "in", sums.wire_in),
        ] {
            total(family, label("dir", dir), bytes);
        }
    }
}

/// Locks a mutex. No user leaves a value half changed, so the value is valid even after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An open connection.
pub(crate) struct Open(Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Role;

    fn access(end: End, ms: u64) -> Access {
        let duration = Duration::from_millis(ms);
        let begin = Access::begin(Role::Frontend, "192.0.2.1:1".parse().unwrap());
        Access { bytes_up: 100, bytes_down: 1000, first_byte: Some(duration), duration, end, ..begin }
    }

    #[test]
    fn every_metric_of_the_contract_exists() {
        let metrics = Metrics::new();
        metrics.observe(&access(End::Closed, 120));
        metrics.set_mechanisms(vec![MechanismState {
            name: "fast_open",
            state: "on",
            reason: "asked for".into(),
        }]);
        let text = metrics.text(Some(&Upstreams::new(vec![crate::upstream::BackendSpec::new(
            "192.0.2.1:7443".parse().unwrap(),
        )])));
        for name in [
            "brisk_connections_active 0",
            "brisk_connections_total{result=\"closed\"} 1",
            "brisk_tfo_attempts_total{result=\"used\"} 0",
            "brisk_wire_bytes_total{dir=\"out\",kind=\"parity\"} 0",
            "brisk_payload_bytes_total{dir=\"down\"} 1000",
            "brisk_segments_repaired_total{by=\"copy\"} 0",
            "brisk_parity_segments_total{result=\"needless\"} 0",
            "brisk_parity_saved_seconds_total 0",
            "brisk_rto_total 0",
            "brisk_tail_probes_total{result=\"spurious\"} 0",
            "brisk_time_to_first_byte_seconds_bucket{le=\"0.15\"} 1",
            "brisk_response_seconds_count 1",
            "brisk_overhead_ratio 0",
            "brisk_backend_up{peer=\"192.0.2.1:7443\"} 1",
            "brisk_backend_transport{peer=\"192.0.2.1:7443\",transport=\"brisk\"} 1",
            "brisk_mechanism_state{mechanism=\"fast_open\",state=\"on\",reason=\"asked for\"} 1",
            "brisk_mechanism_state{peer=\"192.0.2.1:7443\",mechanism=\"redundancy\",state=\"unknown\"",
            "brisk_redundancy_connections_total{result=\"agreed\"} 0",
            "brisk_build_info{version=",
            "\nprocess_cpu_seconds_total ",
            "\nprocess_resident_memory_bytes ",
            "\nprocess_virtual_memory_bytes ",
            "\nprocess_open_fds ",
            "\nprocess_max_fds ",
            "\nprocess_start_time_seconds ",
        ] {
            assert!(text.contains(name), "{name} is not in\n{text}");
        }
    }

    #[test]
    fn frontends_have_series_of_their_own_by_label() {
        let metrics = Metrics::new();
        metrics.frontends().set(["edge Rome".into()].into(), &Default::default());
        metrics.observe(&Access { frontend: Some("edge Rome".into()), ..access(End::Closed, 120) });
        let _open = metrics.frontends().admit("edge Rome").unwrap();
        let text = metrics.text(None);
        for line in [
            "brisk_frontend_connections_active{frontend=\"edge Rome\"} 1",
            "brisk_frontend_connections_total{frontend=\"edge Rome\",result=\"closed\"} 1",
            "brisk_frontend_connections_total{frontend=\"edge Rome\",result=\"hop_failed\"} 0",
            "brisk_frontend_payload_bytes_total{frontend=\"edge Rome\",dir=\"down\"} 1000",
            "brisk_frontend_wire_bytes_total{frontend=\"edge Rome\",dir=\"out\"} 0",
            "brisk_frontend_throttled_seconds_total{frontend=\"edge Rome\"} 0",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        metrics.frontends().set(Default::default(), &Default::default());
        assert!(!metrics.text(None).contains("edge Rome"));
    }

    #[test]
    fn services_are_counted_by_listener_and_origin() {
        let metrics = Metrics::new();
        let (listener, origin) = (Some("[::]:443".into()), Some("web".to_owned()));
        metrics.observe(&Access { listener, origin, ..access(End::Closed, 120) });
        metrics.observe(&access(End::Closed, 120));
        let text = metrics.text(None);
        let line =
            "brisk_service_connections_total{listener=\"[::]:443\",origin=\"web\",result=\"closed\"} 1";
        assert!(text.contains(line), "{text}");
        assert_eq!(text.matches("brisk_service_connections_total{").count(), 1);
    }

    #[test]
    fn a_connection_is_open_until_it_ends() {
        let metrics = Metrics::new();
        let (one, other) = (metrics.begin(), metrics.begin());
        assert_eq!(metrics.open(), 2);
        drop((one, other));
        assert_eq!(metrics.open(), 0);
    }

    #[test]
    fn failures_are_distinguished_from_ends() {
        let metrics = Metrics::new();
        metrics.observe(&access(End::Closed, 10));
        metrics.observe(&access(End::HopFailed("x".into()), 10));
        metrics.observe(&access(End::ClientFailed("x".into()), 10));
        let sums = metrics.recent().sums;
        assert_eq!((sums.connections, sums.failed), (3, 1), "a client that goes away is not our failure");
        assert!(metrics.results().contains(&("hop_failed", 1)));
    }
}
