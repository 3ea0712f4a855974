//! A veth pair in a network namespace: the program under test on one end, the peer on the other.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use brisk_packet_io::ethernet::{EthernetDevice, EthernetOptions, OwnAddress};
use brisk_packet_io::interface::Interface;
use brisk_packet_io::netns::Namespace;
use brisk_packet_io::privileges::{has_net_admin, has_sys_admin};

use crate::client::Dut;
use crate::peer::{End, MSS_1460, Peer};

const DUT: [&str; 2] = ["192.0.2.2", "2001:db8:1::2"];
const PEER: [&str; 2] = ["192.0.2.1", "2001:db8:1::1"];
const LENGTHS: [u8; 2] = [24, 64];
const LIMIT: Duration = Duration::from_secs(120);

/// The program under test, which ends with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The device under test, the peer, and their address family.
pub(crate) struct Bench {
    pub(crate) dut: Dut,
    pub(crate) peer: Peer,
    family: usize,
    next_port: u16,
    _program: Program,
}

pub(crate) fn over_v4(settings: &[&str], test: impl AsyncFnOnce(Bench) + Send) {
    on_a_cable(0, settings, test);
}

/// Runs `test` over IPv4 and over IPv6.
pub(crate) fn over_both(settings: &[&str], test: impl AsyncFn(Bench) + Send + Sync) {
    for family in 0..2 {
        on_a_cable(family, settings, &test);
    }
}

fn on_a_cable(family: usize, settings: &[&str], test: impl AsyncFnOnce(Bench) + Send) {
    if !has_sys_admin() || !has_net_admin() {
        println!("skipped: a veth pair in a network namespace needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
        return;
    }
    let namespace = Namespace::anonymous().unwrap();
    let run = move || {
        let mut ip = Command::new("ip");
        ip.args(["link", "add", "dut0", "type", "veth", "peer", "name", "peer0"]);
        match ip.output() {
            Ok(output) if output.status.success() => {}
            other => return println!("skipped: `ip link add type veth` fails: {other:?}"),
        }
        for end in ["dut0", "peer0"] {
            Interface::named(end).unwrap().set_up().unwrap();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let bench = Bench::new(family, settings).await;
            tokio::time::timeout(LIMIT, test(bench)).await.expect("the test ends in time");
        });
        // A blocked call of the test must not delay the exit.
        runtime.shutdown_background();
    };
    namespace.run(run).unwrap();
}

fn start(settings: &[&str]) -> (Program, SocketAddr) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_brisk-conformance-dut"));
    command.args(["--interface", "dut0", "--listen", "127.0.0.1:0"]);
    for (address, length) in DUT.iter().zip(LENGTHS) {
        command.arg("--addr").arg(format!("{address}/{length}"));
    }
    for setting in settings {
        command.args(["--set", setting]);
    }
    let mut program = Program(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(program.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let at = line.trim().strip_prefix("Server listening on ").expect("a line with the address");
    (program, at.parse().unwrap())
}

impl Bench {
    async fn new(family: usize, settings: &[&str]) -> Bench {
        let (program, at) = start(settings);
        let addresses = PEER.iter().zip(LENGTHS);
        let addresses = addresses
            .map(|(address, prefix)| OwnAddress { address: address.parse().unwrap(), prefix })
            .collect();
        let device =
            EthernetDevice::open("peer0", EthernetOptions { addresses, gateways: Vec::new() }).unwrap();
        Bench {
            dut: Dut::connect(at).await,
            peer: Peer { device },
            family,
            next_port: 40_000,
            _program: program,
        }
    }

    /// Returns the address of the device under test.
    pub(crate) fn dut_ip(&self) -> IpAddr {
        DUT[self.family].parse().unwrap()
    }

    /// Returns an unused address and port of the peer.
    pub(crate) fn peer_addr(&mut self) -> SocketAddr {
        self.next_port += 1;
        SocketAddr::new(PEER[self.family].parse().unwrap(), self.next_port)
    }

    /// Opens a connection from the peer, with MSS as the only option. Returns the descriptor and the peer's
    /// end.
    pub(crate) async fn accepted(&mut self) -> (i32, End) {
        self.accepted_with(MSS_1460).await
    }

    /// Like [`accepted`](Bench::accepted), with these options in the SYN.
    pub(crate) async fn accepted_with(&mut self, options: &[u8]) -> (i32, End) {
        let (listener, at) = self.dut.listener(self.dut_ip(), 5).await;
        let own = self.peer_addr();
        let (end, _) = self.peer.open(own, at, options).await;
        let (fd, from) = self.dut.accept(listener).await.unwrap();
        assert_eq!(from, own);
        (fd, end)
    }

    /// Opens a connection from the device under test.
    pub(crate) async fn connected(&mut self) -> (i32, End) {
        let own = self.peer_addr();
        let fd = self.dut.socket(own.ip()).await;
        let dut = self.dut.clone();
        let call = tokio::spawn(async move { dut.connect_to(fd, own).await });
        let (mut end, _) = self.peer.called(own).await;
        self.peer.answer(&mut end, MSS_1460);
        assert_eq!(call.await.unwrap(), Ok(0));
        self.peer.expect("the ACK", |segment| segment.is_bare_ack()).await;
        (fd, end)
    }
}
