//! State of a side as a JSON object, for `/status`, for `brisk top` and for SIGUSR1.

use std::sync::Arc;
use std::time::{Duration, Instant};

use brisk_packet_io::share::Share;
use serde::Serialize;

use crate::access::Role;
use crate::frontend::{FrontendControl, OpenListener};
use crate::frontends::Account;
use crate::history::Second;
use crate::metrics::{MechanismState, Metrics};
use crate::peer::PathReport;
use crate::routes::Route;
use crate::sums::Sums;

/// Facts that are constant while a side runs.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The kind of side.
    pub role: Role,
    /// Its listening addresses.
    pub listen: String,
    /// Its origin, for a backend.
    pub origin: Option<String>,
    /// Device of the hop.
    pub hop: &'static str,
    /// `sealed`, `sealed-by-pairs` or `plain`.
    pub security: &'static str,
    /// The device towards the clients, at an edge or a frontend that has one.
    pub clients: Option<String>,
    /// The share of the clients that the device serves, at an edge.
    pub share: Option<Share>,
}

/// The JSON object.
#[derive(Debug, Serialize)]
pub struct Status {
    role: &'static str,
    version: &'static str,
    uptime_s: u64,
    listen: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<String>,
    hop: &'static str,
    security: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    clients: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    share: Option<String>,
    /// Number of clients in the share that are left to the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    exempt: Option<usize>,
    draining: bool,
    mechanisms: Vec<Mechanism>,
    backends: Vec<BackendStatus>,
    frontends: Vec<FrontendStatus>,
    listeners: Vec<ListenerStatus>,
    connections: Connections,
    bytes: Bytes,
    repaired: Repaired,
    timeouts: u64,
    first_byte_ms: Percentiles,
    history: Vec<Second>,
}

#[derive(Debug, Serialize)]
struct Mechanism {
    name: &'static str,
    state: &'static str,
    reason: String,
}

#[derive(Debug, Serialize)]
struct BackendStatus {
    name: String,
    health: &'static str,
    transport: &'static str,
    rtt_ms: Option<f64>,
    min_rtt_ms: Option<f64>,
    loss_out: Option<f64>,
    loss_in: Option<f64>,
    /// Round trips per exchange: p50 and p99 of the last two minutes.
    rtts: Option<RoundTrips>,
    /// Bytes on the hop beyond the payload, per byte of payload.
    extra: Option<f64>,
    redundancy: &'static str,
    connections: u64,
    priority: u8,
    weight: u16,
}

#[derive(Debug, Serialize)]
struct RoundTrips {
    p50: f64,
    p99: f64,
}

/// A listener of a running frontend.
#[derive(Debug, Serialize)]
struct ListenerStatus {
    listen: String,
    /// The name of the origin; `None`: the backend's own, or the one that clients name.
    origin: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<RouteStatus>,
}

/// The origin for a TLS server name.
#[derive(Debug, Serialize)]
struct RouteStatus {
    sni: String,
    origin: String,
}

/// A frontend with its own key, at a backend.
#[derive(Debug, Serialize)]
struct FrontendStatus {
    name: String,
    open: u64,
    max_connections: Option<u32>,
    /// As configured.
    max_rate: Option<String>,
    total: u64,
    failed: u64,
    /// Refused connections.
    limited: u64,
    #[serde(flatten)]
    bytes: Bytes,
    /// Smoothed round-trip time of the connection that ended last.
    rtt_ms: Option<f64>,
    min_rtt_ms: Option<f64>,
    extra: Option<f64>,
    loss_out: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Connections {
    open: u64,
    total: u64,
    failed: u64,
    results: serde_json::Map<String, serde_json::Value>,
    fast_open: serde_json::Map<String, serde_json::Value>,
    redundancy: serde_json::Map<String, serde_json::Value>,
}

#[derive(Debug, Serialize)]
struct Bytes {
    up: u64,
    down: u64,
    wire_out: u64,
    wire_in: u64,
    retransmitted: u64,
    redundant: u64,
}

#[derive(Debug, Serialize)]
struct Repaired {
    probe: u64,
    parity: u64,
    copy: u64,
}

#[derive(Debug, Serialize)]
struct Percentiles {
    p50: f64,
    p95: f64,
    p99: f64,
}

impl Status {
    /// Returns the current state.
    pub fn of(facts: &Facts, metrics: &Metrics, frontend: Option<&FrontendControl>) -> Status {
        let (recent, now) = (metrics.recent(), metrics.age());
        let sums = recent.sums;
        let [p50, p95, p99] = recent.history.percentiles(now);
        let counts = |counts: Vec<(&str, u64)>| {
            counts.into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect()
        };
        Status {
            role: facts.role.name(),
            version: env!("CARGO_PKG_VERSION"),
            uptime_s: now.as_secs(),
            listen: frontend.map_or_else(|| facts.listen.clone(), FrontendControl::addresses),
            origin: facts.origin.clone(),
            hop: facts.hop,
            security: facts.security,
            clients: facts.clients.clone(),
            share: facts.share.map(|share| share.to_string()),
            exempt: metrics.exempt_clients(),
            draining: metrics.draining(),
            mechanisms: metrics.mechanisms().into_iter().map(Mechanism::of).collect(),
            backends: frontend.map(backends).unwrap_or_default(),
            frontends: metrics.frontends().all().iter().map(FrontendStatus::of).collect(),
            listeners: frontend.map(listeners).unwrap_or_default(),
            connections: Connections {
                open: metrics.open(),
                total: sums.connections,
                failed: sums.failed,
                results: counts(metrics.results()),
                fast_open: counts(metrics.fast_open_outcomes()),
                redundancy: counts(metrics.redundancy_outcomes()),
            },
            bytes: Bytes::of(&sums),
            repaired: Repaired { probe: sums.by_probe, parity: sums.by_parity, copy: sums.by_copy },
            timeouts: sums.timeouts,
            first_byte_ms: Percentiles { p50, p95, p99 },
            history: recent.history.seconds(now),
        }
    }

    /// Returns the JSON text.
    pub fn json(&self) -> String {
        // Numbers, texts and lists always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Mechanism {
    fn of(state: MechanismState) -> Mechanism {
        let MechanismState { name, state, reason } = state;
        Mechanism { name, state, reason }
    }
}

impl Bytes {
    fn of(sums: &Sums) -> Bytes {
        let Sums { up, down, wire_out, wire_in, retransmitted, redundant, .. } = *sums;
        Bytes { up, down, wire_out, wire_in, retransmitted, redundant }
    }
}

impl FrontendStatus {
    fn of((label, account): &(Arc<str>, Arc<Account>)) -> FrontendStatus {
        let (ended, limits) = (account.ended(), account.limits());
        let sums = ended.sums;
        FrontendStatus {
            name: label.to_string(),
            open: account.open(),
            max_connections: limits.max_connections.map(Into::into),
            max_rate: limits.max_rate.map(|rate| rate.to_string()),
            total: sums.connections,
            failed: sums.failed,
            limited: ended.limited(),
            bytes: Bytes::of(&sums),
            rtt_ms: ended.round_trip.map(millis),
            min_rtt_ms: ended.min_round_trip.map(millis),
            extra: sums.extra().map(thousandths),
            loss_out: sums.loss(),
        }
    }
}

/// Converts to milliseconds with one decimal.
fn millis(rtt: Duration) -> f64 {
    (rtt.as_secs_f64() * 1e4).round() / 10.0
}

/// Rounds to three decimals.
fn thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn listeners(frontend: &FrontendControl) -> Vec<ListenerStatus> {
    let route = |route: Route| RouteStatus { sni: route.sni.to_string(), origin: route.origin.to_string() };
    let of = |OpenListener { listen, origin, routes }| ListenerStatus {
        listen,
        origin: origin.map(|name| name.to_string()),
        routes: routes.into_iter().map(route).collect(),
    };
    frontend.listening().into_iter().map(of).collect()
}

fn backends(frontend: &FrontendControl) -> Vec<BackendStatus> {
    let of = |upstream: &Arc<crate::upstream::Upstream>| {
        let PathReport { smoothed_rtt, min_rtt, loss_out, loss_in } = upstream.path();
        let exchanges = upstream.traffic.round_trips(Instant::now()).map(|both| both.map(thousandths));
        BackendStatus {
            name: upstream.spec.name.clone(),
            health: upstream.health().name(),
            transport: upstream.transport().name(),
            rtt_ms: smoothed_rtt.map(millis),
            min_rtt_ms: min_rtt.map(millis),
            loss_out,
            loss_in,
            rtts: exchanges.map(|[p50, p99]| RoundTrips { p50, p99 }),
            extra: upstream.traffic.sums().extra().map(thousandths),
            redundancy: upstream.redundancy().name(),
            connections: upstream.asked(),
            priority: upstream.spec.priority,
            weight: upstream.spec.weight,
        }
    };
    frontend.upstreams().iter().map(of).collect()
}
