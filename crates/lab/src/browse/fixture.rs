//! The parts that load a page over an emulated link. All except the browser run in this process:
//!
//! ```text
//! namespace A                                                      namespace B
//! Chromium --kernel TCP--> frontends ==brisk TCP in UDP==> link ==> backends --kernel TCP--> web server
//! ```
//!
//! Every host of the page has its own address on the loopback device of both namespaces. Each arm has a port,
//! on which its frontend accepts connections to all these addresses. Its backend connects to the same address
//! and port on the other side. So the browser's limits per host apply, and the arms share only the link.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use brisk_gateway::{
    Access, Allow, Backend, BackendConfig, Entrance, Frontend, FrontendConfig, Hop, Log, ServiceConfig,
};
use brisk_packet_io::interface::Interface;
use brisk_packet_io::realtime::request_fifo;
use brisk_runtime::profile::Profile;
use brisk_tcp::TcpConfig;
use brisk_tcp::fast_open::FastOpenOutcome;
use tokio::sync::watch;

use super::BrowseError;
use super::origin::{self, Tally};
use super::site::Site;
use crate::fixture::{keep, ordered, udp_device};

/// Addresses of the link's ends, as in [`crate::emulate::Between`].
const BROWSER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const ORIGIN_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// The network of the page's hosts.
const HOSTS: [u8; 2] = [10, 71];
/// Port of the first arm's frontend and origin; the other arms have the following ports.
const FIRST_PORT: u16 = 8001;
/// The port of the first arm's backend.
const FIRST_HOP_PORT: u16 = 7443;
/// Priority of the gateways among real-time threads: below that of the link, above that of the browser.
const FIFO_PRIORITY: u8 = 5;

/// Counts of the ended connections between the gateways of an arm.
#[derive(Debug, Default)]
pub(super) struct HopTally {
    all: AtomicU64,
    with_syn: AtomicU64,
}

impl HopTally {
    /// Returns the number of connections, and how many of these had their first bytes on the SYN.
    pub(super) fn read(&self) -> (u64, u64) {
        (self.all.load(Ordering::Relaxed), self.with_syn.load(Ordering::Relaxed))
    }

    fn add(&self, access: &Access) {
        if let Some(hop) = &access.hop {
            self.all.fetch_add(1, Ordering::Relaxed);
            let used = u64::from(hop.fast_open == FastOpenOutcome::Used);
            self.with_syn.fetch_add(used, Ordering::Relaxed);
        }
    }
}

pub(super) fn host_address(host: usize) -> Ipv4Addr {
    let [high, low] = (host as u16 + 1).to_be_bytes();
    Ipv4Addr::new(HOSTS[0], HOSTS[1], high, low)
}

/// Returns the port of an arm, counted from 0.
pub(super) fn port(arm: usize) -> u16 {
    FIRST_PORT + arm as u16
}

/// Gives this namespace the addresses of the page's hosts.
pub(super) fn add_hosts(hosts: usize) -> Result<(), BrowseError> {
    let lo = Interface::named("lo")?;
    (0..hosts).try_for_each(|host| lo.add_address(host_address(host).into(), 32))?;
    Ok(())
}

/// Gives the gateways priority over the browser, so that computations of the browser do not delay packets.
pub(super) fn prioritise() {
    // Without the capability the results are slightly less exact; the link reports that it has no priority.
    let _ = request_fifo(FIFO_PRIORITY);
}

/// Runs the web server and the backend of each arm, on the runtime of the calling task.
pub(super) async fn origin_side(
    arms: &[Profile],
    hop: &Hop,
    site: &Arc<Site>,
    tally: &Arc<Tally>,
    stopped: &watch::Receiver<bool>,
) -> Result<(), BrowseError> {
    let everywhere = format!("{}.{}.0.0/16:*", HOSTS[0], HOSTS[1]);
    let allow: Allow = everywhere.parse().map_err(io::Error::other)?;
    for (index, arm) in arms.iter().enumerate() {
        let listener = origin::listen(port(index)).await?;
        tokio::spawn(origin::serve(listener, Arc::clone(site), Arc::clone(tally)));
        let (builder, attached) =
            udp_device(SocketAddr::from((ORIGIN_ADDRESS, FIRST_HOP_PORT + index as u16)))?;
        let endpoint = builder.build()?;
        let inside = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), attached.service_port(0));
        let first_host = SocketAddr::from((host_address(0), port(index))).to_string();
        let defaults = BackendConfig::new(inside, first_host, hop.clone());
        let config = BackendConfig {
            tcp: tcp(arm),
            fast_open: defaults.fast_open.clone().filter(|_| arm.fast_open),
            allow: vec![allow.clone()],
            service: service(None),
            ..defaults
        };
        let backend = Backend::bind(config, &endpoint)?;
        tokio::spawn(keep(endpoint, backend.run(ordered(stopped.clone()))));
    }
    Ok(())
}

/// Runs the frontend of each arm, on the runtime of the calling task.
pub(super) async fn browser_side(
    arms: &[Profile],
    hop: &Hop,
    tallies: &[Arc<HopTally>],
    stopped: &watch::Receiver<bool>,
) -> Result<(), BrowseError> {
    for (index, (arm, tally)) in arms.iter().zip(tallies).enumerate() {
        let (builder, attached) = udp_device(SocketAddr::from((BROWSER_ADDRESS, 0)))?;
        let endpoint = builder.build()?;
        let peer = attached
            .destination(SocketAddr::from((ORIGIN_ADDRESS, FIRST_HOP_PORT + index as u16)))
            .map_err(io::Error::other)?;
        let listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port(index)));
        let defaults = FrontendConfig::new(listen, peer, hop.clone());
        let fast_open = defaults.fast_open.filter(|_| arm.fast_open);
        let entrance = Entrance { transparent: true, ..Entrance::default() };
        let service = service(Some(tally));
        let config = FrontendConfig { tcp: tcp(arm), fast_open, entrance, service, ..defaults };
        let frontend = Frontend::bind(config, endpoint.clone()).await?;
        tokio::spawn(keep(endpoint, frontend.run(ordered(stopped.clone()))));
    }
    Ok(())
}

/// Returns the arm's TCP as in a gateway, with Nagle's algorithm off.
fn tcp(arm: &Profile) -> TcpConfig {
    TcpConfig { nodelay: true, ..arm.tcp.clone() }
}

fn service(tally: Option<&Arc<HopTally>>) -> ServiceConfig {
    let mut service = ServiceConfig { log: Log::silent(), ..ServiceConfig::default() };
    if let Some(tally) = tally.cloned() {
        service.on_access = Some(Arc::new(move |access: &Access| tally.add(access)));
    }
    service
}
