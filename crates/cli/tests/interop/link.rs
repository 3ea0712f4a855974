//! Two namespaces with `brisk emulate` between them: a link with the properties that a test requests.

use std::net::IpAddr;
use std::process::Stdio;

use crate::namespace::Namespace;
use crate::process::{Ended, Process};

/// An address of a host, in each family.
#[derive(Clone, Copy)]
pub(crate) struct Address {
    pub(crate) ip: IpAddr,
    /// The address in a URL.
    pub(crate) url: &'static str,
}

/// The addresses of the kernel at the far end.
pub(crate) const FAR: [Address; 2] = [
    Address { ip: IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 2)), url: "10.77.0.2" },
    Address { ip: IpAddr::V6(std::net::Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2)), url: "[fd77::2]" },
];
/// The addresses of the kernel at the near end.
const NEAR: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 1)),
    IpAddr::V6(std::net::Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1)),
];

/// The link of both papers, shortened so that hundreds of transfers fit into a test: 2 % loss and reordering.
pub(crate) const LOSSY: &[&str] = &[
    "--rtt",
    "20ms",
    "--rate",
    "50mbit",
    "--queue",
    "200p",
    "--loss",
    "2%",
    "--reorder",
    "2%,3ms",
    "--seed",
    "7",
];
/// A link without loss.
pub(crate) const CLEAN: &[&str] = &["--rtt", "2ms"];

/// The near end (client) and the far end (server), with a TUN device `brisk0` at both.
pub(crate) struct Link {
    emulator: Process,
    pub(crate) near: Namespace,
    pub(crate) far: Namespace,
}

impl Link {
    /// Starts a link with these flags.
    pub(crate) fn start(words: &[&str]) -> Link {
        let (near, far) = (Namespace::new(), Namespace::new());
        let between = format!("{},{}", near.name(), far.name());
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_brisk"));
        command.args(["emulate", "--between", &between, "--json"]).args(words).stdout(Stdio::piped());
        let emulator = Process::start("brisk emulate", &mut command);
        emulator.until_it_says("try: ip netns exec");
        Link { emulator, near, far }
    }

    /// Adds routes to `networks` behind the far end.
    pub(crate) fn route_beyond_far(&self, networks: &[&str]) {
        self.far.forward();
        networks
            .iter()
            .for_each(|network| self.near.route(network, of_family(network, FAR.map(|far| far.ip))));
    }

    /// Adds routes back to `networks` behind the near end.
    pub(crate) fn route_beyond_near(&self, networks: &[&str]) {
        self.near.forward();
        networks.iter().for_each(|network| self.far.route(network, of_family(network, NEAR)));
    }

    /// Returns the bytes that have arrived at the near end.
    pub(crate) fn carried(&self) -> u64 {
        self.near.received_on("brisk0")
    }

    /// Stops all packets until [`resume`](Link::resume).
    pub(crate) fn pause(&self) {
        self.emulator.signal("-STOP");
    }

    pub(crate) fn resume(&self) {
        self.emulator.signal("-CONT");
    }

    /// Ends the link; returns its result.
    pub(crate) fn stop(self) -> serde_json::Value {
        let Ended { status, said } = self.emulator.stop();
        assert_eq!(status, Some(0), "{said}");
        let json = said.lines().find(|line| line.starts_with('{')).expect("a line of JSON");
        serde_json::from_str(json).expect("JSON")
    }
}

/// Returns the gateway for `network`, of an IPv4 and an IPv6 one.
fn of_family(network: &str, [v4, v6]: [IpAddr; 2]) -> IpAddr {
    if network.contains(':') { v6 } else { v4 }
}
