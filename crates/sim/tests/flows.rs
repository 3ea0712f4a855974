//! Long flows and many connections: fairness, conservation of bytes, sequential exchanges.

use std::cell::RefCell;
use std::io::Write;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use brisk_link::{Direction, LinkSpec};
use brisk_sim::application::{Amount, BulkSender, Client, ClientPlan, Connections, Exchange, Server, Sink};
use brisk_sim::world::{Point, Side, World};
use brisk_sim::{AppId, HostId};
use brisk_tcp::{ConnectConfig, ListenConfig, StackConfig};
use brisk_wire::Instant;

#[derive(Clone, Default)]
struct Captured(Rc<RefCell<Vec<u8>>>);

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

const A: &str = "10.0.0.1";
const B: &str = "10.0.0.2";

fn at(seconds: u64) -> Instant {
    Instant::from_millis(seconds * 1000)
}

fn hosts(link: &str, seed: u64) -> (World, HostId, HostId) {
    let mut world = World::new(&LinkSpec::parse(link).unwrap(), seed);
    let a = world.add_host(Side::A, "client", &[A.parse().unwrap()], StackConfig::default()).unwrap();
    let b = world.add_host(Side::B, "server", &[B.parse().unwrap()], StackConfig::default()).unwrap();
    (world, a, b)
}

fn received(world: &World, sink: AppId) -> Vec<u64> {
    world.app::<Sink>(sink).unwrap().flows().iter().map(|flow| flow.received).collect()
}

#[test]
fn two_cubic_flows_share_a_bottleneck_evenly() {
    let (mut world, a, b) = hosts("--rtt 40ms --rate 10mbit --queue 50kB", 1);
    let sink_at: SocketAddr = format!("{A}:9").parse().unwrap();
    let sink = world.add_app(a, at(0), Sink::new(sink_at, ListenConfig::default()));
    let end = at(130);
    for start in [0, 3] {
        let flow = BulkSender::new(sink_at, ConnectConfig::default(), Amount::Until(end));
        world.add_app(b, at(start), flow);
    }
    world.run_until(at(10));
    let before = received(&world, sink);
    world.run_until(end);
    let after = received(&world, sink);
    let [first, second] = [after[0] - before[0], after[1] - before[1]];
    let share = first as f64 / (first + second) as f64;
    let goodput = (first + second) as f64 * 8.0 / 120.0;
    assert!((0.45..=0.55).contains(&share), "{share}");
    assert!(goodput > 9.0e6, "the link stays busy: {goodput} bit/s");
    assert!(world.app::<Sink>(sink).unwrap().flows().iter().all(|flow| !flow.corrupted));
}

#[test]
fn every_written_byte_arrives_once_and_every_packet_is_counted() {
    let link = "--rtt 30ms --rate 20mbit --queue 30p --loss 1% --reorder 1%,3ms --duplicate 0.5%";
    for seed in 0..4 {
        let (mut world, a, b) = hosts(link, seed);
        let sink_at: SocketAddr = format!("{B}:9").parse().unwrap();
        let sink = world.add_app(b, at(0), Sink::new(sink_at, ListenConfig::default()));
        let amounts = [1_000_000, 250_000, 1, 77_777];
        let flows: Vec<AppId> = amounts
            .map(|bytes| {
                world.add_app(
                    a,
                    at(0),
                    BulkSender::new(sink_at, ConnectConfig::default(), Amount::Bytes(bytes)),
                )
            })
            .into();
        assert!(world.run_while(at(300), World::apps_done), "seed {seed}");
        world.run_until(at(600));
        let mut arrived = received(&world, sink);
        arrived.sort_unstable();
        assert_eq!(arrived, [1, 77_777, 250_000, 1_000_000], "seed {seed}");
        for (flow, bytes) in flows.iter().zip(amounts) {
            let flow = world.app::<BulkSender>(*flow).unwrap();
            assert_eq!(flow.sent(), bytes);
            assert_eq!(
                flow.closed().map(|(_, reason)| reason),
                Some(brisk_tcp::error::CloseReason::Finished)
            );
        }
        for direction in [Direction::Up, Direction::Down] {
            let counters = world.counters(0, direction).unwrap();
            assert!(counters.balanced() && counters.in_flight == 0, "{counters:?}");
        }
        assert_eq!((world.unrouted(), world.stack(b).connections()), (0, 0), "seed {seed}");
    }
}

#[test]
fn exchanges_follow_each_other_on_one_connection_or_on_fresh_ones() {
    for (connections, round_trips) in [(Connections::Kept, [2, 1, 1]), (Connections::Fresh, [2, 2, 2])] {
        let (mut world, a, b) = hosts("--rtt 50ms", 1);
        let server_at: SocketAddr = format!("{B}:80").parse().unwrap();
        let server = world.add_app(b, at(0), Server::new(server_at, ListenConfig::default()));
        let think = Duration::from_millis(7);
        let client = world.add_app(
            a,
            at(0),
            Client::new(ClientPlan {
                server: server_at,
                connect: ConnectConfig::default(),
                connections,
                greeting: 0,
                exchanges: vec![
                    Exchange { think, pause: Duration::from_millis(20), ..Exchange::of(3_000) };
                    3
                ],
            }),
        );
        assert!(world.run_while(at(10), World::apps_done));
        let outcomes = world.app::<Client>(client).unwrap().outcomes();
        let took: Vec<Duration> =
            outcomes.iter().map(|outcome| outcome.finished.unwrap() - outcome.started).collect();
        assert_eq!(took, round_trips.map(|rtts| rtts * Duration::from_millis(50) + think));
        let server = world.app::<Server>(server).unwrap();
        assert_eq!((server.received(), server.sent(), server.corrupted()), (300, 9_000, false));
    }
}

#[test]
fn server_may_send_first() {
    let (mut world, a, b) = hosts("--rtt 50ms", 1);
    let server_at: SocketAddr = format!("{B}:25").parse().unwrap();
    let server = Server::new(server_at, ListenConfig::default()).sends_first(80);
    world.add_app(b, at(0), server);
    let client = world.add_app(
        a,
        at(0),
        Client::new(ClientPlan {
            server: server_at,
            connect: ConnectConfig::default(),
            connections: Connections::Kept,
            greeting: 80,
            exchanges: vec![Exchange::of(500)],
        }),
    );
    assert!(world.run_while(at(10), World::apps_done));
    let outcome = &world.app::<Client>(client).unwrap().outcomes()[0];
    // The greeting needs the last ACK of the handshake, so it arrives after two round trips.
    assert_eq!(outcome.finished.unwrap() - outcome.started, Duration::from_millis(150));
}

#[test]
fn idle_connections_cost_no_packets_and_little_memory() {
    let (mut world, a, b) = hosts("--rtt 50ms", 1);
    let server_at: SocketAddr = format!("{B}:80").parse().unwrap();
    world.add_app(b, at(0), Server::new(server_at, ListenConfig::default()));
    // The server sends no greeting, so the clients wait for ever.
    let waiting = ClientPlan {
        server: server_at,
        connect: ConnectConfig::default(),
        connections: Connections::Kept,
        greeting: 1,
        exchanges: vec![Exchange::of(1)],
    };
    for _ in 0..200 {
        world.add_app(a, at(0), Client::new(waiting.clone()));
    }
    world.run_until(at(1));
    let offered = world.counters(0, Direction::Up).unwrap().offered;
    assert_eq!((offered, world.stack(b).connections()), (400, 200), "a SYN and an ACK for each connection");
    world.run_until(at(2_999));
    assert_eq!(world.counters(0, Direction::Up).unwrap().offered, offered);
    assert_eq!(world.stack(b).memory(), 0);
}

#[test]
fn super_packets_are_cut_at_the_edge_of_the_path() {
    let mut world = World::new(&LinkSpec::parse("--rtt 20ms --rate 50mbit --mtu 1500 --loss 1%").unwrap(), 3);
    let config = || StackConfig { max_super_segment: 65_000, ..StackConfig::default() };
    let a = world.add_host(Side::A, "client", &[A.parse().unwrap()], config()).unwrap();
    let b = world.add_host(Side::B, "server", &[B.parse().unwrap()], config()).unwrap();
    let sink_at: SocketAddr = format!("{B}:9").parse().unwrap();
    let sink = world.add_app(b, at(0), Sink::new(sink_at, ListenConfig::default()));
    world.add_app(a, at(0), BulkSender::new(sink_at, ConnectConfig::default(), Amount::Bytes(3_000_000)));
    assert!(world.run_while(at(60), World::apps_done));
    let flow = world.app::<Sink>(sink).unwrap().flows()[0];
    assert_eq!((flow.received, flow.corrupted), (3_000_000, false));
    let up = world.counters(0, Direction::Up).unwrap();
    assert_eq!(up.dropped_mtu, 0);
    assert!(world.stack(a).stats().packets_out < up.offered, "the stack sent no super-packets");
}

#[test]
fn a_chain_of_links_adds_up_and_can_be_tapped_between_them() {
    let links = ["--rtt 30ms", "--rtt 50ms --rate 8mbit"].map(|link| LinkSpec::parse(link).unwrap());
    let mut world = World::chain(&links, 1);
    let a = world.add_host(Side::A, "client", &[A.parse().unwrap()], StackConfig::default()).unwrap();
    let b = world.add_host(Side::B, "server", &[B.parse().unwrap()], StackConfig::default()).unwrap();
    let server_at: SocketAddr = format!("{B}:80").parse().unwrap();
    world.add_app(b, at(0), Server::new(server_at, ListenConfig::default()));
    let plan = ClientPlan {
        server: server_at,
        connect: ConnectConfig::default(),
        connections: Connections::Fresh,
        greeting: 0,
        exchanges: vec![Exchange::of(1)],
    };
    let client = world.add_app(a, at(0), Client::new(plan));
    let between = Captured::default();
    world.tap(&[Point::Behind(0)], Box::new(between.clone())).unwrap();
    assert!(world.run_while(at(10), World::apps_done));
    world.finish_records().unwrap();
    assert!(between.0.borrow().len() > 500, "SYN, SYN-ACK, ACK, request, response and their blocks");
    let outcome = &world.app::<Client>(client).unwrap().outcomes()[0];
    let took = outcome.finished.unwrap() - outcome.started;
    assert!((160..162).contains(&took.as_millis()), "{took:?}");
}
