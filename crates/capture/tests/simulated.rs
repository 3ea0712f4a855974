//! Analyses captures of the simulator: the results equal the input of the simulation.

use std::cell::RefCell;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use brisk_capture::{Analysis, CaptureError, Side, analyse};
use brisk_link::LinkSpec;
use brisk_sim::application::{Client, ClientPlan, Connections, Exchange, Server};
use brisk_sim::world::{self, Point, World};
use brisk_tcp::{ConnectConfig, ListenConfig, StackConfig};
use brisk_wire::Instant;

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

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

/// Simulates `count` consecutive connections, each with these exchanges. Returns a capture of them and the
/// number of packets dropped.
fn capture(link: &str, points: &[Point], count: u64, exchanges: &[Exchange]) -> (Vec<u8>, u64) {
    let link = LinkSpec::parse(link).unwrap();
    let mut world = World::new(&link, 11);
    let captured = Captured::default();
    world.tap(points, Box::new(captured.clone())).unwrap();
    let client = world.add_host(world::Side::A, "client", &[CLIENT], StackConfig::default()).unwrap();
    let server = world.add_host(world::Side::B, "server", &[SERVER], StackConfig::default()).unwrap();
    let address = SocketAddr::new(SERVER, 80);
    world.add_app(server, Instant::ZERO, Server::new(address, ListenConfig::default()));
    for number in 0..count {
        let plan = ClientPlan {
            server: address,
            connect: ConnectConfig::default(),
            connections: Connections::Kept,
            greeting: 0,
            exchanges: exchanges.to_vec(),
        };
        world.add_app(client, Instant::from_micros(number * 500_000), Client::new(plan));
    }
    world.run_until(Instant::ZERO + Duration::from_millis(500) * count as u32 + Duration::from_secs(60));
    let dropped = world.dropped();
    world.finish_records().unwrap();
    let bytes = captured.0.borrow().clone();
    (bytes, dropped)
}

fn analysed(bytes: &[u8]) -> Analysis {
    analyse(bytes).unwrap()
}

const AT_CLIENT: &[Point] = &[Point::Hosts(world::Side::A)];
const AT_SERVER: &[Point] = &[Point::Hosts(world::Side::B)];

fn near(value: f64, expected: f64, tolerance: f64) {
    assert!((value / expected - 1.0).abs() <= tolerance, "{value}, expected {expected}");
}

#[test]
fn sizes_round_trip_time_and_side_are_exact() {
    let exchanges = [Exchange { request: 300, ..Exchange::of(20_000) }, Exchange::of(5_000)];
    for (points, side) in
        [(AT_CLIENT, Side::Client), (AT_SERVER, Side::Server), (&[AT_CLIENT[0], AT_SERVER[0]], Side::Client)]
    {
        let (bytes, _) = capture("--rtt 80ms", points, 3, &exchanges);
        let analysis = analysed(&bytes);
        assert_eq!((analysis.connections, analysis.opened, analysis.exchanges_seen), (3, 3, 6));
        assert_eq!(analysis.side, side);
        near(analysis.round_trip(0.5).unwrap() as f64, 80e6, 0.01);
        assert_eq!((analysis.down.lost, analysis.up.lost, analysis.unseen_bytes), (0, 0, 0));
        let mut sizes: Vec<_> = analysis.exchanges.iter().map(|e| (e.request, e.response, e.fresh)).collect();
        sizes.sort();
        assert_eq!(sizes, [[(100, 5_000, false); 3], [(300, 20_000, true); 3]].concat());
    }
}

#[test]
fn loss_of_single_packets_is_measured_at_either_end() {
    for (points, tolerance) in [(AT_SERVER, 0.08), (AT_CLIENT, 0.15)] {
        let (bytes, dropped) = capture("--rtt 40ms --loss down:4%", points, 120, &[Exchange::of(60_000)]);
        let analysis = analysed(&bytes);
        // SYN-ACKs and FINs are dropped too. In a capture at the client, a loss at the end of a burst leaves
        // no gap, and neither does the loss of a retransmission; this stack sets no IP identification.
        near(analysis.down.lost as f64, dropped as f64, tolerance);
        near(analysis.down.burst(), 1.04, 0.05);
        assert_eq!(analysis.exchanges.iter().filter(|e| e.response == 60_000).count(), 120);
    }
}

#[test]
fn length_of_bursts_is_measured_at_either_end() {
    for points in [AT_SERVER, AT_CLIENT] {
        let (bytes, dropped) =
            capture("--rtt 40ms --loss down:after:2%,50%,2ms", points, 150, &[Exchange::of(60_000)]);
        let analysis = analysed(&bytes);
        near(analysis.down.lost as f64, dropped as f64, 0.10);
        near(analysis.down.burst(), 2.0, 0.20);
    }
}

#[test]
fn reordering_and_duplicates_are_no_loss() {
    for points in [AT_SERVER, AT_CLIENT] {
        let (bytes, _) =
            capture("--rtt 40ms --reorder 3%,3ms --duplicate 1%", points, 50, &[Exchange::of(60_000)]);
        let analysis = analysed(&bytes);
        assert!(analysis.down.lost * 500 < analysis.down.packets, "{:?}", analysis.down);
    }
}

#[test]
fn packets_before_damage_or_truncation_are_analysed() {
    let (bytes, _) = capture("--rtt 40ms", AT_SERVER, 4, &[Exchange::of(30_000)]);
    let whole = analysed(&bytes);
    assert_eq!(whole.stopped, None);
    let cut = analysed(&bytes[..bytes.len() * 2 / 3 + 1]);
    assert!(cut.stopped.is_some() && cut.packets < whole.packets && cut.exchanges_seen >= 2, "{cut:?}");
    let mut damaged = bytes.clone();
    let at = (bytes.len() / 2) & !3;
    damaged[at..at + 64].fill(0xff);
    let damaged = analysed(&damaged);
    assert!(damaged.packets < whole.packets && damaged.exchanges_seen >= 1, "{damaged:?}");
}

#[test]
fn error_about_a_file_without_packets_is_one_line() {
    let says = |bytes: &[u8]| analyse(bytes).unwrap_err();
    assert!(matches!(
        says(b"a text that is long enough for a header but is not a capture"),
        CaptureError::Format
    ));
    assert!(matches!(says(b""), CaptureError::Empty | CaptureError::Format));
    let (bytes, _) = capture("--rtt 40ms", AT_SERVER, 0, &[]);
    assert!(matches!(says(&bytes), CaptureError::Empty), "{:?}", says(&bytes));
    for error in [says(b"x"), says(&bytes)] {
        assert_eq!(error.to_string().lines().count(), 1);
    }
}
