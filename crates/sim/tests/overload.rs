//! More short responses than a link carries: its queue drops whole flights. These losses indicate congestion,
//! not packets that are too big.

use std::cell::RefCell;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use brisk_link::LinkSpec;
use brisk_sim::application::{Client, ClientPlan, Connections, Exchange, Server};
use brisk_sim::world::{Side, World};
use brisk_tcp::config::{
    CongestionAlgorithm, ConnectConfig, ListenConfig, MtuProbing, StackConfig, TcpConfig,
};
use brisk_wire::Instant;

/// Settings of the connections between the gateways.
fn hop(congestion: CongestionAlgorithm) -> TcpConfig {
    TcpConfig {
        nodelay: true,
        path_start: true,
        handshake_timers: true,
        mtu_probing: MtuProbing::Early,
        congestion,
        ..TcpConfig::default()
    }
}

/// Events of a trace that report another segment size.
#[derive(Clone, Debug, Default)]
struct SizeChanges {
    lines: Rc<RefCell<Vec<String>>>,
    line: Vec<u8>,
}

impl Write for SizeChanges {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.line.extend(text);
        if text.ends_with(b"\n") {
            let line = String::from_utf8(std::mem::take(&mut self.line)).expect("JSON");
            if line.contains(r#""what":"mss""#) {
                self.lines.borrow_mut().push(line);
            }
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sixty clients fetch responses of `bytes` over 10 Mbit/s, each 100 ms after the previous one. Returns the
/// number of responses, and the reports of another segment size.
fn overload(tcp: &TcpConfig, bytes: u64, seconds: u64) -> (usize, Vec<String>) {
    let link = LinkSpec::parse("--rtt 40ms --rate 10mbit --queue 50kB").unwrap();
    let mut world = World::new(&link, 1);
    let observed = StackConfig { observe: true, ..StackConfig::default() };
    let client = world.add_host(Side::A, "client", &["10.0.0.1".parse().unwrap()], StackConfig::default());
    let client = client.unwrap();
    let server = world.add_host(Side::B, "server", &["10.0.0.2".parse().unwrap()], observed).unwrap();
    let changes = SizeChanges::default();
    world.trace_to(Box::new(changes.clone()));
    let address: SocketAddr = "10.0.0.2:80".parse().unwrap();
    let listen = ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() };
    world.add_app(server, Instant::ZERO, Server::new(address, listen));
    let plan = ClientPlan {
        server: address,
        connect: ConnectConfig { tcp: tcp.clone(), ..ConnectConfig::default() },
        connections: Connections::Fresh,
        greeting: 0,
        exchanges: vec![Exchange { pause: Duration::from_millis(100), ..Exchange::of(bytes) }; 300],
    };
    let apps: Vec<_> = (0..60)
        .map(|n| world.add_app(client, Instant::from_millis(n * 200 / 60), Client::new(plan.clone())))
        .collect();
    world.run_until(Instant::from_millis(seconds * 1000));
    let outcomes = apps.iter().flat_map(|id| world.app::<Client>(*id).unwrap().outcomes());
    let finished = outcomes.filter(|outcome| outcome.finished.is_some()).count();
    let lines = changes.lines.take();
    (finished, lines)
}

/// A black hole drops every large packet. A full queue passes some large packets of other connections.
#[test]
fn losses_of_a_full_queue_do_not_make_segments_smaller() {
    for (congestion, bytes) in [
        (CongestionAlgorithm::Cubic, 30_000),
        (CongestionAlgorithm::Bbr, 30_000),
        (CongestionAlgorithm::Bbr, 100_000),
    ] {
        let (finished, changes) = overload(&hop(congestion.clone()), bytes, 8);
        println!("{congestion:?} {bytes}: {finished} responses, {} changes", changes.len());
        assert!(finished * bytes as usize > 6_000_000, "{congestion:?} {bytes}: {finished} responses");
        assert!(changes.is_empty(), "{congestion:?} {bytes}: {} changes: {}", changes.len(), changes[0]);
    }
}

#[test]
#[ignore = "takes minutes without optimisation"]
fn no_congestion_control_makes_segments_smaller_for_half_a_minute() {
    let shared = TcpConfig { share_path: true, ..hop(CongestionAlgorithm::Bbr) };
    let (cubic, bbr) = (hop(CongestionAlgorithm::Cubic), hop(CongestionAlgorithm::Bbr));
    for (name, tcp) in [("plain", TcpConfig::default()), ("CUBIC", cubic), ("BBR", bbr), ("shared", shared)] {
        for bytes in [30_000, 100_000] {
            let (finished, changes) = overload(&tcp, bytes, 30);
            println!("{name} {bytes}: {finished} responses, {} changes", changes.len());
            assert!(changes.is_empty(), "{name} {bytes}: {} changes: {}", changes.len(), changes[0]);
        }
    }
}
