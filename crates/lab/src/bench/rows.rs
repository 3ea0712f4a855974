//! The measurements: the rows of the table.

use std::net::SocketAddr;

use super::end::{End, Role, Tcp, Work};

/// Address of the kernel at the near end of the veth pair, as a `udp:` device.
const NEAR_UDP: &str = "udp:10.99.0.1:0";
/// Address of the server at the far end: the kernel's, or brisk's over UDP.
const FAR: ([u8; 4], u16) = ([10, 99, 0, 2], 7000);
/// The interface of [`FAR`], for brisk's server on that address.
const OWN: &str = "packet:bench0";
const XDP: &str = "xdp:bench0";
/// Address of brisk's server behind a TUN device of the near namespace.
const TUN: ([u8; 4], u16) = ([10, 98, 0, 2], 7000);
const TUN_DEVICE: &str = "bench1";
const TUN_ADDRESS: &str = "10.98.0.2/24";
/// Two setups for the same work, and the goal for their ratio.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name of the row on the command line.
    pub name: &'static str,
    /// The transfers in words.
    pub what: &'static str,
    pub(super) work: Work,
    pub(super) topology: Topology,
    /// The setup that the candidate is compared with.
    pub(super) baseline: Setup,
    pub(super) candidate: Setup,
    /// The goal.
    pub goal: Goal,
}

/// Path between client and server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Topology {
    /// Packets of up to 64 kB cross the veth pair whole, as within a host.
    Whole,
    /// Packets of up to 256 kB cross the veth pair whole, if its interfaces are configured for them.
    Big,
    /// Packets of 1,500 bytes cross the veth pair; the kernel cuts and joins them in software at both ends.
    Packets,
    /// The client has a core of its own, like a separate host. The server's host receives the packets of the
    /// veth pair and may forward them; all work of its core counts.
    Routed,
}

/// Goal for the ratio of a row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Goal {
    /// Minimum of baseline / candidate.
    AtLeast(f64),
    /// Maximum of candidate / baseline.
    AtMost(f64),
    /// Minimum of candidate / baseline, in units per second.
    Faster(f64),
    /// No goal: the row only records the ratio.
    None,
}

/// The TCP at both ends, and the path below it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Setup {
    /// The kernel's TCP at both ends of the veth pair.
    Kernel {
        /// True to use Fast Open.
        fast_open: bool,
    },
    /// The kernel's client, and brisk's server on a TUN device in the same namespace.
    Tun {
        /// True to use Fast Open.
        fast_open: bool,
    },
    /// The kernel's client, and brisk's server at the other end of the veth pair, on the address of the
    /// kernel there.
    Own {
        /// True to use Fast Open.
        fast_open: bool,
    },
    /// Like `Own`, through AF_XDP.
    Xdp,
    /// The kernel's client, and brisk's server on a TUN device behind the host at the other end of the veth
    /// pair.
    Behind {
        /// True to use Fast Open.
        fast_open: bool,
    },
    /// Brisk's TCP at both ends, in UDP over the veth pair, with these mechanisms.
    Udp(&'static str),
    /// This number of kernel clients, each on its own core with its own kernel server: no packet crosses
    /// between the cores.
    KernelOn(usize),
    /// This number of kernel clients, each on a core, and one brisk server with a stack on each of these
    /// cores.
    TunOn(usize),
}

impl Row {
    /// Returns the number of cores, if the row determines it.
    pub fn cores(&self) -> Option<usize> {
        let topology = (self.topology == Topology::Routed).then_some(2);
        topology.max(self.baseline.cores()).max(self.candidate.cores())
    }
}

impl Setup {
    pub(super) fn name(self) -> String {
        match self {
            Setup::Kernel { fast_open: false } => "kernel".to_owned(),
            Setup::Kernel { fast_open: true } => "kernel+tfo".to_owned(),
            Setup::Tun { fast_open: false } => "tun".to_owned(),
            Setup::Tun { fast_open: true } => "tun+tfo".to_owned(),
            Setup::Own { fast_open: false } => "own".to_owned(),
            Setup::Own { fast_open: true } => "own+tfo".to_owned(),
            Setup::Xdp => "xdp".to_owned(),
            Setup::Behind { fast_open: false } => "behind".to_owned(),
            Setup::Behind { fast_open: true } => "behind+tfo".to_owned(),
            Setup::Udp(arm) => format!("udp {arm}"),
            Setup::KernelOn(cores) => format!("kernel, {cores}"),
            Setup::TunOn(cores) => format!("tun, {cores}"),
        }
    }

    /// Returns the number of cores that this setup needs; `None`: any number.
    pub(super) fn cores(self) -> Option<usize> {
        match self {
            Setup::KernelOn(cores) | Setup::TunOn(cores) => Some(cores),
            Setup::Kernel { .. }
            | Setup::Tun { .. }
            | Setup::Own { .. }
            | Setup::Behind { .. }
            | Setup::Xdp
            | Setup::Udp(_) => None,
        }
    }

    /// True if the server is in the client's namespace.
    pub(super) fn server_is_near(self) -> bool {
        matches!(self, Setup::Tun { .. } | Setup::TunOn(_))
    }

    /// Returns the servers, each with its first core and its number of cores.
    pub(super) fn servers(self) -> Vec<(End, usize, usize)> {
        let (tcp, fast_open, at) = match self {
            Setup::Kernel { fast_open } => (Tcp::Kernel, fast_open, FAR),
            Setup::KernelOn(_) => (Tcp::Kernel, false, FAR),
            Setup::Tun { fast_open } | Setup::Behind { fast_open } => (tun(), fast_open, TUN),
            Setup::TunOn(_) => (tun(), false, TUN),
            Setup::Own { fast_open } => (ours(OWN, &[], "tcp"), fast_open, FAR),
            Setup::Xdp => (ours(XDP, &[], "tcp"), false, FAR),
            Setup::Udp(arm) => (ours("udp:10.99.0.2:7000", &[], arm), false, FAR),
        };
        let server = End { tcp, fast_open, role: Role::Serve(at.into()) };
        if let Setup::KernelOn(cores) = self {
            let on = |core| (End { role: Role::Serve(port(at, core)), ..server.clone() }, core, 1);
            return (0..cores).map(on).collect();
        }
        vec![(server, 0, self.cores().unwrap_or(1))]
    }

    /// Returns the clients, one for each core if the setup determines them.
    pub(super) fn clients(self, work: Work) -> Vec<End> {
        let (tcp, fast_open, to) = match self {
            Setup::Kernel { fast_open } | Setup::Own { fast_open } => (Tcp::Kernel, fast_open, FAR),
            Setup::KernelOn(_) | Setup::Xdp => (Tcp::Kernel, false, FAR),
            Setup::Tun { fast_open } | Setup::Behind { fast_open } => (Tcp::Kernel, fast_open, TUN),
            Setup::TunOn(_) => (Tcp::Kernel, false, TUN),
            Setup::Udp(arm) => (ours(NEAR_UDP, &[], arm), false, FAR),
        };
        let server_of = |client| if let Setup::KernelOn(_) = self { port(to, client) } else { to.into() };
        let client = |n| End { tcp: tcp.clone(), fast_open, role: Role::Ask(server_of(n), work) };
        (0..self.cores().unwrap_or(1)).map(client).collect()
    }
}

/// Returns the address with its port increased by `n`.
fn port((ip, port): ([u8; 4], u16), n: usize) -> SocketAddr {
    SocketAddr::from((ip, port + n as u16))
}

fn tun() -> Tcp {
    ours(&format!("tun:{TUN_DEVICE}"), &[TUN_ADDRESS], "tcp")
}

fn ours(device: &str, addresses: &[&str], arm: &str) -> Tcp {
    let addresses = addresses.iter().map(|address| (*address).to_owned()).collect();
    Tcp::Brisk { device: device.to_owned(), addresses, arm: arm.to_owned() }
}

const fn transactions(parallel: usize) -> Work {
    Work::Transactions { request: 100, response: 5000, parallel }
}

const PLAIN: Setup = Setup::Kernel { fast_open: false };
const FAST: Setup = Setup::Kernel { fast_open: true };
const UDP: Setup = Setup::Udp("tcp");
const RR1: Work = transactions(1);
const RR64: Work = transactions(64);

/// Returns a row of the table with both ends on one host.
fn row(
    name: &'static str,
    what: &'static str,
    work: Work,
    [baseline, candidate]: [Setup; 2],
    goal: Goal,
) -> Row {
    Row { name, what, work, topology: Topology::Whole, baseline, candidate, goal }
}

/// Returns all rows in the order of the table.
pub fn rows() -> Vec<Row> {
    [of_brisk_servers(), between_hosts(), of_mechanisms_and_cores()].concat()
}

/// Returns the rows with brisk's server on a TUN device, and on the address of the host.
fn of_brisk_servers() -> Vec<Row> {
    use Goal::{AtLeast, None};
    let tun = [PLAIN, Setup::Tun { fast_open: false }];
    let fast = [FAST, Setup::Tun { fast_open: true }];
    let own = [PLAIN, Setup::Own { fast_open: false }];
    let own_fast = [FAST, Setup::Own { fast_open: true }];
    vec![
        row("receive", "bulk into the stack", Work::Upload, tun, AtLeast(1.15)),
        row("receive-bytes", "receive, brisk without a copy", Work::Delivery, tun, None),
        row("send", "bulk out of the stack", Work::Download, tun, AtLeast(1.2)),
        row("send-bytes", "send, brisk without a copy", Work::Handover, tun, None),
        row("rr1", "100 B, 5 kB, one at a time", RR1, tun, AtLeast(1.35)),
        row("rr1-tfo", "the same, Fast Open", RR1, fast, AtLeast(1.3)),
        row("rr64", "100 B, 5 kB, 64 at a time", RR64, tun, AtLeast(1.6)),
        row("rr64-tfo", "the same, Fast Open", RR64, fast, AtLeast(1.55)),
        row("rr64-gain", "Fast Open, the kernel without", RR64, [PLAIN, fast[1]], AtLeast(1.8)),
        row("own-receive", "receive, on the host's address", Work::Upload, own, AtLeast(0.9)),
        row("own-send", "send, on the host's address", Work::Download, own, AtLeast(1.0)),
        row("own-rr64", "rr64, on the host's address", RR64, own, None),
        row("own-rr64-tfo", "the same, Fast Open", RR64, own_fast, None),
    ]
}

fn between_hosts() -> Vec<Row> {
    use Goal::{AtLeast, None};
    let packets = |row| Row { topology: Topology::Packets, ..row };
    let routed = |row| Row { topology: Topology::Routed, ..row };
    let big = |row| Row { topology: Topology::Big, ..row };
    let tun = [PLAIN, Setup::Tun { fast_open: false }];
    let own = [PLAIN, Setup::Own { fast_open: false }];
    let xdp = [PLAIN, Setup::Xdp];
    let behind = [PLAIN, Setup::Behind { fast_open: false }];
    let behind_fast = [FAST, Setup::Behind { fast_open: true }];
    vec![
        packets(row("wire-receive", "bulk in packets of 1,500 B", Work::Upload, own, AtLeast(1.0))),
        packets(row("wire-send", "the same, out", Work::Download, own, AtLeast(0.85))),
        packets(row("wire-rr64", "rr64 in such packets", RR64, own, None)),
        packets(row("xdp-receive", "wire-receive over AF_XDP", Work::Upload, xdp, None)),
        packets(row("xdp-send", "the same, out", Work::Download, xdp, None)),
        packets(row("xdp-rr64", "wire-rr64 over AF_XDP", RR64, xdp, None)),
        routed(row("routed-rr64", "rr64, client on another host", RR64, behind, AtLeast(1.2))),
        routed(row("routed-rr64-tfo", "the same, Fast Open", RR64, behind_fast, AtLeast(1.08))),
        routed(row("routed-send", "send, client on another host", Work::Download, behind, None)),
        big(row("big-receive", "receive, in packets of 256 kB", Work::Upload, tun, None)),
        big(row("big-send", "send, in packets of 256 kB", Work::Download, tun, None)),
    ]
}

fn of_mechanisms_and_cores() -> Vec<Row> {
    use Goal::{AtMost, Faster, None};
    const WITH: &str = "bulk in UDP, with and without";
    let with = |arm| [UDP, Setup::Udp(arm)];
    vec![
        row(
            "ping",
            "one byte, one connection",
            Work::PingPong,
            [PLAIN, Setup::Tun { fast_open: false }],
            None,
        ),
        row("udp", "bulk in UDP, the kernel's TCP", Work::Upload, [PLAIN, UDP], AtMost(2.0)),
        row("corrective", WITH, Work::Upload, with("corrective"), AtMost(1.3)),
        row("proactive", WITH, Work::Upload, with("proactive,loss_cap=100"), AtMost(2.0)),
        row("planner", WITH, Work::Upload, with("planner"), AtMost(1.3)),
        row("cores", "rr64 on two cores, on one", RR64, [Setup::TunOn(1), Setup::TunOn(2)], Faster(1.7)),
        row("cores-kernel", "the same with the kernel", RR64, [Setup::KernelOn(1), Setup::KernelOn(2)], None),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use brisk_runtime::profile::Profile;

    #[test]
    fn row_names_are_unique_and_arms_exist() {
        let rows = rows();
        let names: std::collections::HashSet<_> = rows.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), rows.len());
        for row in rows {
            for setup in [row.baseline, row.candidate] {
                if let Setup::Udp(arm) = setup {
                    Profile::parse(arm).unwrap();
                }
            }
        }
    }

    #[test]
    fn end_is_parsed_as_written() {
        for row in rows() {
            let servers = row.candidate.servers().into_iter().map(|(end, ..)| end);
            for end in servers.chain(row.candidate.clients(row.work)) {
                let text = serde_json::to_string(&end).unwrap();
                assert_eq!(serde_json::from_str::<End>(&text).unwrap(), end);
            }
        }
    }
}
