//! The parts of the demonstration for one profile: a frontend, an emulated link, a backend, and the load on
//! the frontend. All are in this process, with real sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use brisk_gateway::service::hop_tcp;
use brisk_gateway::{
    Access, Backend, BackendConfig, Frontend, FrontendConfig, Hop, HopKey, KeyRing, Log, Role, ServiceConfig,
};
use brisk_link::{Counters, LinkSpec};
use brisk_runtime::attach::Attached;
use brisk_runtime::profile::Profile;
use brisk_tcp::TcpConfig;
use tokio::sync::watch;

use super::load::SharedTally;
use crate::emulate::{Emulation, Outcome, UdpEnd};
use crate::fixture::{keep, ordered, udp_device};

/// The running parts of one arm.
#[derive(Debug)]
pub(super) struct Fixture {
    pub(super) arm: Profile,
    pub(super) frontend: SocketAddr,
    pub(super) tally: SharedTally,
    pub(super) hop: Arc<HopTotals>,
    /// Counters of the link, up and down. The link updates them every second.
    pub(super) link: Arc<Mutex<(Counters, Counters)>>,
    before: EarlierCounts,
    relay: JoinHandle<io::Result<Outcome>>,
    stop_relay: Arc<AtomicBool>,
    stop_gateway: watch::Sender<bool>,
}

/// Sums over the ended connections between the gateways, of both gateways.
#[derive(Debug, Default)]
pub(super) struct HopTotals {
    pub(super) timeouts: AtomicU64,
    pub(super) retransmits: AtomicU64,
    pub(super) repaired_by_probe: AtomicU64,
    pub(super) repaired_by_parity: AtomicU64,
    pub(super) repaired_by_copy: AtomicU64,
    /// Reason why the frontend last reset a client; the client sees only the reset.
    gave_up: Mutex<Option<String>>,
}

impl HopTotals {
    fn add(&self, access: &Access) {
        if access.role == Role::Frontend && access.end.is_failure() {
            *self.lock_gave_up() = Some(access.end.to_string());
        }
        let Some(stats) = &access.hop else { return };
        let counters = &stats.counters;
        for (total, more) in [
            (&self.timeouts, counters.timeouts + counters.handshake_retransmits),
            (&self.retransmits, counters.retransmits + counters.handshake_retransmits),
            (&self.repaired_by_probe, counters.repaired_by_probe),
            (&self.repaired_by_parity, counters.repaired_by_parity),
            (&self.repaired_by_copy, counters.repaired_by_copy),
        ] {
            total.fetch_add(more, Ordering::Relaxed);
        }
    }

    fn forget(&self) {
        for total in [
            &self.timeouts,
            &self.retransmits,
            &self.repaired_by_probe,
            &self.repaired_by_parity,
            &self.repaired_by_copy,
        ] {
            total.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the reason why the frontend last reset a client.
    pub(super) fn gave_up(&self) -> Option<String> {
        self.lock_gave_up().clone()
    }

    /// Locks the value, which is only replaced as a whole.
    fn lock_gave_up(&self) -> MutexGuard<'_, Option<String>> {
        self.gave_up.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counters of the link at the beginning of the measurement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EarlierCounts {
    pub(super) wire_bytes: u64,
    pub(super) lost: u64,
}

const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

impl Fixture {
    pub(super) async fn start(
        arm: Profile,
        link: &LinkSpec,
        seed: u64,
        origin: SocketAddr,
    ) -> io::Result<Fixture> {
        let hop = Arc::new(HopTotals::default());
        let (stop_gateway, stopped) = watch::channel(false);
        let tcp = as_installed(&arm);
        // The tunnel is encrypted, as by default.
        let key = Hop::Sealed(KeyRing::of(HopKey::generate()?));

        let (builder, attached) = udp_device(ANY)?;
        let endpoint = builder.build()?;
        let backend_at = udp_address(&attached)?;
        let inside =
            SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), attached.service_port(backend_at.port()));
        let defaults = BackendConfig::new(inside, origin.to_string(), key.clone());
        let config = BackendConfig {
            tcp: tcp.clone(),
            fast_open: defaults.fast_open.clone().filter(|_| arm.fast_open),
            service: service(&hop),
            ..defaults
        };
        let backend = Backend::bind(config, &endpoint)?;
        tokio::spawn(keep(endpoint, backend.run(ordered(stopped.clone()))));

        let a = UdpEnd::bind(ANY, None)?;
        let b = UdpEnd::bind(ANY, Some(backend_at))?;
        let relay_at = a.local_addr()?;
        let stop_relay = Arc::new(AtomicBool::new(false));
        let counters = Arc::new(Mutex::new(<(Counters, Counters)>::default()));
        let relay = relay(Emulation::new(a, b, link, seed), &stop_relay, &counters)?;

        let (builder, attached) = udp_device(ANY)?;
        let endpoint = builder.build()?;
        let peer = attached.destination(relay_at)?;
        let defaults = FrontendConfig::new(ANY, peer, key);
        let fast_open = defaults.fast_open.filter(|_| arm.fast_open);
        let config = FrontendConfig { tcp, fast_open, service: service(&hop), ..defaults };
        let frontend = Frontend::bind(config, endpoint.clone()).await?;
        let frontend_at = frontend.local_addr()?;
        tokio::spawn(keep(endpoint, frontend.run(ordered(stopped))));

        Ok(Fixture {
            arm,
            frontend: frontend_at,
            tally: SharedTally::default(),
            hop,
            link: counters,
            before: EarlierCounts::default(),
            relay,
            stop_relay,
            stop_gateway,
        })
    }

    /// Discards the results of the warm-up.
    pub(super) fn begin_to_count(&mut self) {
        // An outstanding request of the warm-up still refers to the old tally.
        self.tally = SharedTally::default();
        self.hop.forget();
        let (up, down) = *self.link.lock().unwrap_or_else(PoisonError::into_inner);
        let before = EarlierCounts {
            wire_bytes: up.offered_bytes + down.offered_bytes,
            lost: up.dropped() + down.dropped(),
        };
        self.before = before;
    }

    /// Returns the counters of the link at the beginning of the measurement.
    pub(super) fn before(&self) -> EarlierCounts {
        self.before
    }

    /// Stops all parts; returns the outcome of the link.
    pub(super) fn stop(self) -> io::Result<Outcome> {
        self.stop_gateway.send_replace(true);
        self.stop_relay.store(true, Ordering::Relaxed);
        self.relay.join().unwrap_or_else(|_| Err(io::Error::other("the thread of the link panicked")))
    }
}

/// Returns the TCP of a gateway's tunnel with the mechanisms of `arm`. An arm that starts from path memory
/// uses the settings of an installed gateway for that.
fn as_installed(arm: &Profile) -> TcpConfig {
    let hop = hop_tcp(arm.tcp.clone());
    match arm.starts_from_path() {
        true => hop,
        false => {
            let TcpConfig { path_start, handshake_timers, .. } = arm.tcp;
            TcpConfig { path_start, handshake_timers, ..hop }
        }
    }
}

/// Runs the link on a thread of its own.
fn relay(
    mut emulation: Emulation<UdpEnd, UdpEnd>,
    stop: &Arc<AtomicBool>,
    counters: &Arc<Mutex<(Counters, Counters)>>,
) -> io::Result<JoinHandle<io::Result<Outcome>>> {
    let (stop, counters) = (Arc::clone(stop), Arc::clone(counters));
    std::thread::Builder::new().name("link".to_owned()).spawn(move || {
        emulation.prioritise();
        emulation.run(None, &stop, &mut |progress| {
            // Readers only copy the value, so it is valid even if one has panicked.
            *counters.lock().unwrap_or_else(PoisonError::into_inner) = (*progress.up, *progress.down);
        })
    })
}

fn udp_address(attached: &Attached) -> io::Result<SocketAddr> {
    match attached {
        Attached::Udp { local } => Ok(*local),
        Attached::Native { .. } => Err(io::Error::other("the tunnel's device is not a UDP socket")),
    }
}

fn service(hop: &Arc<HopTotals>) -> ServiceConfig {
    let hop = Arc::clone(hop);
    ServiceConfig {
        log: Log::silent(),
        on_access: Some(Arc::new(move |access: &Access| hop.add(access))),
        ..ServiceConfig::default()
    }
}
