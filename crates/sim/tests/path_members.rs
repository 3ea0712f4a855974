//! Connections that share the controller of their path, in virtual time: responses next to bulk, and the
//! share of a bottleneck.

use std::net::SocketAddr;
use std::time::Duration;

use brisk_link::LinkSpec;
use brisk_sim::application::{
    Amount, Application, BulkSender, Client, ClientPlan, Connections, Exchange, Server, Sink,
};
use brisk_sim::world::{Side, World};
use brisk_sim::{AppId, HostId, HostView};
use brisk_tcp::config::{CongestionAlgorithm, TcpConfig};
use brisk_tcp::{ConnId, ConnectConfig, Event, ListenConfig, StackConfig};
use brisk_wire::Instant;

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

fn shared() -> TcpConfig {
    let mut tcp =
        TcpConfig { congestion: CongestionAlgorithm::Bbr, share_path: true, ..TcpConfig::default() };
    tcp.send_buffer.max = 16 << 20;
    tcp
}

/// Bulk senders on host B that send to host A, and a server on B with a client on A.
struct Hosts {
    world: World,
    a: HostId,
    b: HostId,
    c: HostId,
    sink: AppId,
}

/// Number of runs; the results are medians.
const SEEDS: u64 = 5;

const SINK: &str = "10.0.0.1:9";
const SERVER: &str = "10.0.0.2:80";

impl Hosts {
    /// Creates the hosts; host C is on the same side as B.
    fn new(link: &str, seed: u64) -> Hosts {
        let spec = LinkSpec::parse(link).unwrap_or_else(|error| panic!("{link}: {error}"));
        let mut world = World::new(&spec, seed);
        let [a, b, c] =
            [(Side::A, "10.0.0.1"), (Side::B, "10.0.0.2"), (Side::B, "10.0.0.3")].map(|(side, ip)| {
                world.add_host(side, ip, &[ip.parse().unwrap()], StackConfig::default()).unwrap()
            });
        let mut listen = ListenConfig::default();
        listen.tcp.receive_buffer.max = 16 << 20;
        let sink = world.add_app(a, at(0), Sink::new(SINK.parse().unwrap(), listen));
        Hosts { world, a, b, c, sink }
    }

    fn bulk(&mut self, host: HostId, tcp: TcpConfig, start: u64, end: u64) -> AppId {
        let connect = ConnectConfig { tcp, ..ConnectConfig::default() };
        let sink: SocketAddr = SINK.parse().unwrap();
        self.world.add_app(host, at(start), BulkSender::new(sink, connect, Amount::Until(at(end))))
    }

    /// Adds a server, and from `start` on a client that requests such responses over one connection.
    fn responses(&mut self, start: u64, exchange: Exchange, count: usize) -> AppId {
        let server: SocketAddr = SERVER.parse().unwrap();
        let listen = ListenConfig { tcp: shared(), ..ListenConfig::default() };
        self.world.add_app(self.b, at(0), Server::new(server, listen));
        let plan = ClientPlan {
            server,
            connect: ConnectConfig::default(),
            connections: Connections::Kept,
            greeting: 0,
            exchanges: vec![exchange; count],
        };
        self.world.add_app(self.a, at(start), Client::new(plan))
    }

    fn received(&self) -> Vec<u64> {
        self.world.app::<Sink>(self.sink).unwrap().flows().iter().map(|flow| flow.received).collect()
    }
}

/// A response of 20 segments every 200 ms next to a bulk transfer, at 10 Mbit/s and 40 ms.
#[test]
fn responses_overtake_bulk_which_uses_the_remaining_rate() {
    for seed in 0..3 {
        let mut hosts = Hosts::new("--rtt 40ms --rate 10mbit --queue 50kB", seed);
        hosts.bulk(hosts.b, shared(), 0, 40_000);
        let answer = 20 * 1448;
        let exchange = Exchange { pause: Duration::from_millis(160), ..Exchange::of(answer) };
        let client = hosts.responses(5_000, exchange, 120);
        hosts.world.run_until(at(8_000));
        let (before, start) = (hosts.received()[0], hosts.world.now());
        hosts.world.run_until(at(30_000));
        let outcomes = hosts.world.app::<Client>(client).unwrap().outcomes();
        let mut took: Vec<f64> = outcomes
            .iter()
            .filter(|outcome| outcome.started >= start)
            .filter_map(|outcome| Some((outcome.finished? - outcome.started).as_secs_f64() * 1e3))
            .collect();
        took.sort_by(f64::total_cmp);
        let seconds = (hosts.world.now() - start).as_secs_f64();
        let bulk = (hosts.received()[0] - before) as f64 / seconds;
        let answers = took.len() as f64 * answer as f64 / seconds;
        let p90 = took[took.len() * 9 / 10];
        // 20 segments of 1500 bytes take 24 ms.
        println!(
            "seed {seed}: n {} p50 {:.1} p90 {p90:.1} max {:.1} ms, bulk {:.3} answers {:.3} MB/s",
            took.len(),
            took[took.len() / 2],
            took[took.len() - 1],
            bulk / 1e6,
            answers / 1e6
        );
        let left = 1.25e6 * 1448.0 / 1500.0 - answers;
        assert!(p90 <= 1.4 * 40.0 + 1.25 * 24.0 + 2.4 + 20.0, "seed {seed}: {p90} ms");
        assert!(bulk >= 0.90 * left, "seed {seed}: {bulk} of {left}");
    }
}

/// Returns the share of `members` bulk transfers next to one CUBIC flow, at 50 Mbit/s and 40 ms, with a queue
/// of one bandwidth-delay product.
fn share_beside_cubic(members: u32, seed: u64) -> f64 {
    let mut hosts = Hosts::new("--rtt 40ms --rate 50mbit --queue 250kB", seed);
    let mut cubic = TcpConfig::default();
    cubic.send_buffer.max = 16 << 20;
    hosts.bulk(hosts.c, cubic, 0, 60_000);
    for _ in 0..members {
        hosts.bulk(hosts.b, shared(), 100, 60_000);
    }
    hosts.world.run_until(at(10_000));
    let before = hosts.received();
    hosts.world.run_until(at(60_000));
    let bytes: Vec<u64> =
        hosts.received().iter().zip(&before).map(|(after, before)| after - before).collect();
    let (cubic, ours) = (bytes[0], bytes[1..].iter().sum::<u64>());
    ours as f64 / (ours + cubic) as f64
}

/// The neighbour's share does not depend on the number of members. The shares are medians over seeds.
#[test]
fn members_together_take_the_share_of_one_flow() {
    let shares = [1, 2, 8].map(|members| {
        let mut shares: Vec<f64> = std::thread::scope(|scope| {
            let runs: Vec<_> =
                (1..=SEEDS).map(|seed| scope.spawn(move || share_beside_cubic(members, seed))).collect();
            runs.into_iter().map(|run| run.join().unwrap()).collect()
        });
        shares.sort_by(f64::total_cmp);
        println!("{members}: {shares:.3?}");
        shares[shares.len() / 2]
    });
    let max = shares.iter().copied().fold(0.0, f64::max);
    let min = shares.iter().copied().fold(1.0, f64::min);
    assert!(max - min <= 0.08 && min >= 0.30, "{shares:?}");
}

/// Members share the rate equally, independent of their start times.
#[test]
fn members_share_the_rate_equally() {
    let mut hosts = Hosts::new("--rtt 40ms --rate 20mbit --queue 100kB --loss 1%", 3);
    for start in [0, 0, 2_000, 4_000] {
        hosts.bulk(hosts.b, shared(), start, 30_000);
    }
    hosts.world.run_until(at(8_000));
    let before = hosts.received();
    hosts.world.run_until(at(20_000));
    let bytes: Vec<f64> =
        hosts.received().iter().zip(&before).map(|(after, before)| (after - before) as f64).collect();
    let sum: f64 = bytes.iter().sum();
    let jain = sum * sum / (bytes.len() as f64 * bytes.iter().map(|b| b * b).sum::<f64>());
    println!("{bytes:?}, {:.2} Mbit/s, index {jain:.3}", sum * 8.0 / 12.0 / 1e6);
    assert!(jain > 0.95 && sum * 8.0 / 12.0 > 0.85 * 20e6, "{bytes:?} {jain}");
}

/// Application that accepts a connection, and reads its data until this time.
#[derive(Debug)]
struct PausedReader {
    until: Instant,
    connection: Option<ConnId>,
}

const PAUSED: &str = "10.0.0.1:8";

impl Application for PausedReader {
    fn start(&mut self, host: &mut HostView<'_>) {
        let mut listen = ListenConfig::default();
        listen.tcp.receive_buffer.max = 512 << 10;
        host.listen(PAUSED.parse().unwrap(), listen).unwrap();
    }

    fn on_event(&mut self, event: Event, host: &mut HostView<'_>) {
        if let Event::Incoming(listener) = event {
            self.connection = host.accept(listener).map(|(id, _)| id);
        }
        if let Some(id) = self.connection.filter(|_| host.now < self.until) {
            while host.read(id).is_ok_and(|bytes| !bytes.is_empty()) {}
        }
    }

    fn is_done(&self) -> bool {
        true
    }
}

/// The peer stops reading a long transfer. Responses of 20 kB, two fifths of the path, go on for ten seconds.
#[test]
fn a_member_that_its_peer_blocks_leaves_the_bandwidth_of_the_path() {
    let mut hosts = Hosts::new("--rtt 40ms --rate 10mbit --queue 50kB", 1);
    hosts.world.add_app(hosts.a, at(0), PausedReader { until: at(6_000), connection: None });
    let connect = ConnectConfig { tcp: shared(), ..ConnectConfig::default() };
    let paused = BulkSender::new(PAUSED.parse().unwrap(), connect, Amount::Until(at(60_000)));
    hosts.world.add_app(hosts.b, at(0), paused);
    let exchange = Exchange { pause: Duration::from_millis(20), ..Exchange::of(20_000) };
    hosts.responses(3_000, exchange, 1_000);
    let path = |hosts: &Hosts| {
        let stack = hosts.world.stack(hosts.b);
        stack.shared_path("10.0.0.2".parse().unwrap(), "10.0.0.1".parse().unwrap()).unwrap()
    };
    hosts.world.run_until(at(6_000));
    let before = path(&hosts);
    hosts.world.run_until(at(16_000));
    let after = path(&hosts);
    assert_eq!((before.members, after.members), (2, 2));
    assert!(after.pacing_rate.unwrap() >= 1_000_000, "{after:?}");
}
