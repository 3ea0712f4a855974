//! The planner of an edge, in virtual time. The clients are unmodified: they agree to nothing, and answer
//! copies as Linux does. One stack serves all connections of a cell, so the path memory passes from one to
//! the next.

use std::net::SocketAddr;
use std::time::Duration;

use brisk_link::LinkSpec;
use brisk_sim::application::{Client, ClientPlan, Connections, Exchange, Outcome, Server};
use brisk_sim::world::{Side, World};
use brisk_tcp::TcpConfig;
use brisk_tcp::config::{
    CongestionAlgorithm, ConnectConfig, FastOpenConfig, HandshakeCopies, ListenConfig, MechanismConfig,
    PlannerConfig, StackConfig,
};
use brisk_tcp::fast_open::{CookieKey, FastOpenConnect, FastOpenListen, KeySource};
use brisk_wire::Instant;

/// Clients, each at its own address, and the connections that each opens at the same time.
const CLIENTS: u8 = 4;
const WORKERS: u64 = 2;
/// Transactions of each worker that are not counted: they fill the path memory.
const WARM: usize = 20;

/// The edge's TCP towards clients, with this planner.
fn edge(planner: Option<PlannerConfig>) -> TcpConfig {
    TcpConfig {
        handshake_copies: planner.map(|_| HandshakeCopies::default()),
        mechanisms: MechanismConfig { planner, ..MechanismConfig::default() },
        nodelay: true,
        path_start: true,
        handshake_timers: true,
        congestion: CongestionAlgorithm::Bbr,
        ..TcpConfig::default()
    }
}

const PLANNER: PlannerConfig = PlannerConfig { max_overhead: 25, ..PlannerConfig::ONE_SIDED };

/// The result: completion in milliseconds, sorted, and the IP bytes of each side.
#[derive(Default)]
struct Cell {
    times: Vec<f64>,
    up: u64,
    down: u64,
    payload: u64,
}

impl Cell {
    fn at(&self, share: f64) -> f64 {
        self.times[(share * self.times.len() as f64).ceil() as usize - 1]
    }

    fn mean(&self) -> f64 {
        self.times.iter().sum::<f64>() / self.times.len() as f64
    }

    fn wire(&self) -> f64 {
        (self.up + self.down) as f64 / self.payload as f64
    }
}

/// Responses over Fast Open, one every `every` ms, to one client. Returns the times after the first twenty.
fn with_fast_open(link: &str, bytes: u64, every: u64, seed: u64) -> Vec<f64> {
    let mut world = World::new(&LinkSpec::parse(link).unwrap(), seed);
    let client =
        world.add_host(Side::A, "client", &["10.0.0.1".parse().unwrap()], StackConfig::default()).unwrap();
    let keys = KeySource::Fixed { primary: CookieKey::new(*b"brisk simulation"), backup: None };
    let fast_open = FastOpenConfig { keys: Some(keys), ..FastOpenConfig::default() };
    let stack = StackConfig { fast_open, ..StackConfig::default() };
    let server = world.add_host(Side::B, "server", &["10.0.0.2".parse().unwrap()], stack);
    let address: SocketAddr = "10.0.0.2:80".parse().unwrap();
    let fast_open = FastOpenListen { max_pending: 64, max_per_ip: 64, ..FastOpenListen::default() };
    let listen =
        ListenConfig { tcp: edge(Some(PLANNER)), fast_open: Some(fast_open), ..ListenConfig::default() };
    world.add_app(server.unwrap(), Instant::ZERO, Server::new(address, listen));
    let plan = ClientPlan {
        server: address,
        connect: ConnectConfig { fast_open: Some(FastOpenConnect::default()), ..ConnectConfig::default() },
        connections: Connections::Fresh,
        greeting: 0,
        exchanges: vec![Exchange::of(bytes)],
    };
    let begin = |n| world.add_app(client, Instant::from_millis(n * every), Client::new(plan.clone()));
    let apps: Vec<_> = (0..WARM as u64 + 500).map(begin).collect();
    let limit = Instant::ZERO + Duration::from_secs(600);
    world.run_while(limit, |world| apps.iter().all(|id| world.app::<Client>(*id).unwrap().is_over()));
    let outcomes = apps[WARM..].iter().flat_map(|id| world.app::<Client>(*id).unwrap().outcomes());
    outcomes.map(|outcome| (outcome.finished.unwrap() - outcome.started).as_secs_f64() * 1e3).collect()
}

/// Plays `each` counted transactions of each worker.
fn play(link: &str, bytes: u64, tcp: &TcpConfig, each: usize, seed: u64) -> Cell {
    let mut world = World::new(&LinkSpec::parse(link).unwrap(), seed);
    let addresses: Vec<_> = (1..=CLIENTS).map(|last| [10, 0, 1, last].into()).collect();
    let server = world.add_host(Side::B, "server", &["10.0.0.2".parse().unwrap()], StackConfig::default());
    let address: SocketAddr = "10.0.0.2:80".parse().unwrap();
    let listen = ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() };
    world.add_app(server.unwrap(), Instant::ZERO, Server::new(address, listen));
    let mut workers = Vec::new();
    for (index, own) in addresses.into_iter().enumerate() {
        let client = world.add_host(Side::A, &format!("client {index}"), &[own], StackConfig::default());
        let client = client.unwrap();
        for worker in 0..WORKERS {
            let plan = ClientPlan {
                server: address,
                connect: ConnectConfig::default(),
                connections: Connections::Fresh,
                greeting: 0,
                exchanges: vec![Exchange::of(bytes); each + WARM],
            };
            let start = Instant::from_millis(worker * 57 + index as u64 * 7);
            workers.push(world.add_app(client, start, Client::new(plan)));
        }
    }
    let limit = Instant::ZERO + Duration::from_secs(7200);
    world.run_while(limit, |world| workers.iter().all(|id| world.app::<Client>(*id).unwrap().is_over()));
    let rest = world.now() + Duration::from_secs(2);
    world.run_until(rest);
    let counted = |id| world.app::<Client>(id).unwrap().outcomes()[WARM..].iter();
    let outcomes: Vec<&Outcome> = workers.iter().flat_map(|id| counted(*id)).collect();
    let took = |outcome: &&Outcome| (outcome.finished.unwrap() - outcome.started).as_secs_f64() * 1e3;
    let mut times: Vec<f64> = outcomes.iter().map(took).collect();
    times.sort_by(f64::total_cmp);
    let (up, down) = (world.bytes_sent_by(Side::A), world.bytes_sent_by(Side::B));
    let payload = workers.len() as u64 * (each + WARM) as u64 * (bytes + 100);
    Cell { times, up, down, payload }
}

#[test]
#[ignore = "prints figures: cargo test --release -p brisk-sim --test one_sided figures -- --ignored --nocapture"]
fn figures() {
    let syn_ack = PlannerConfig { unmarked_copies: false, ..PLANNER };
    let arms = [("none", None), ("SYN-ACK", Some(syn_ack)), ("SYN-ACK and tail", Some(PLANNER))];
    for loss in ["0%", "2%", "down:2%", "after:1%,50%"] {
        for bytes in [1_000, 5_000, 30_000] {
            let link = format!("--rtt 100ms --rate 20mbit --queue 200p --loss {loss}");
            for (name, planner) in arms {
                let cell = play(&link, bytes, &edge(planner), 500, 1);
                let [p50, p90, p95, p99] = [0.5, 0.9, 0.95, 0.99].map(|share| cell.at(share));
                let (mean, wire) = (cell.mean(), cell.wire());
                println!(
                    "| {bytes}, {loss}, {name} | {p50:.0} | {p90:.0} | {p95:.0} | {p99:.0} | {mean:.0} | {wire:.3} |"
                );
            }
        }
    }
}

#[test]
fn without_loss_no_byte_is_added() {
    for bytes in [5_000, 30_000] {
        let of = |planner| play("--rtt 100ms --rate 20mbit --queue 200p", bytes, &edge(planner), 20, 1);
        let (without, with) = (of(None), of(Some(PLANNER)));
        assert_eq!((with.times, with.up, with.down), (without.times, without.up, without.down), "{bytes} B");
    }
}

/// The tail is shorter for at most a quarter more bytes.
#[test]
fn copies_shorten_the_tail_within_the_allowance() {
    for bytes in [5_000, 30_000] {
        let link = "--rtt 100ms --rate 20mbit --queue 200p --loss down:2%";
        let of = |planner| play(link, bytes, &edge(planner), 100, 1);
        let (without, with) = (of(None), of(Some(PLANNER)));
        let (late, short) = (without.at(0.99), with.at(0.99));
        assert!(short < 0.85 * late && with.mean() < without.mean(), "{bytes} B: {short} ms after {late} ms");
        assert!(with.wire() < 1.25 * without.wire(), "{bytes} B: {} and {}", with.wire(), without.wire());
    }
}

/// Ten segments leave with the SYN-ACK and eleven a round trip later, in 7 ms at the rate of the path.
/// Neither a loss among the first ten, nor slow flights of earlier connections, spread the eleven over a
/// third of a round trip. Responses that take 300 ms and more have lost segments of the second flight.
#[test]
fn second_flight_of_fast_open_leaves_at_the_rate_of_the_path() {
    for (every, seed) in [(40, 1), (40, 2), (300, 1), (300, 2)] {
        let link = "--rtt 100ms --rate 20mbit --queue 200p --loss 2%";
        let times = with_fast_open(link, 30_000, every, seed);
        let late = times.iter().filter(|ms| (215.0..300.0).contains(*ms)).count();
        assert!(late <= 25, "every {every} ms, seed {seed}: {late} of {} late", times.len());
    }
}
