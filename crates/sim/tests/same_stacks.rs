//! The planner's target with persistent stacks, as in real time. Two stacks carry all transactions, a few at
//! a time, so that path memory and allowance pass from one transaction to the next.

use std::net::SocketAddr;
use std::time::Duration;

use brisk_link::LinkSpec;
use brisk_sim::application::{Client, ClientPlan, Connections, Exchange, Outcome, Server};
use brisk_sim::fast_open::listening;
use brisk_sim::world::{Side, World};
use brisk_tcp::TcpConfig;
use brisk_tcp::config::{ConnectConfig, FastOpenConfig, HandshakeCopies, ListenConfig, StackConfig};
use brisk_tcp::fast_open::{CookieKey, FastOpenConnect, KeySource};
use brisk_wire::Instant;

/// Concurrent transactions, as in `tools/measure/bar`.
const WORKERS: u64 = 14;
/// Transactions of each worker that are not counted: they get the cookie and fill the path memory.
const WARM: usize = 7;

/// TCP of two ends that know each other; the request may arrive twice.
fn all(max_overhead: u32) -> TcpConfig {
    let planned = TcpConfig::planned(max_overhead);
    TcpConfig {
        initial_window: 32,
        nodelay: true,
        handshake_timers: true,
        handshake_copies: planned
            .handshake_copies
            .map(|copies| HandshakeCopies { with_data: true, ..copies }),
        ..planned
    }
}

/// The result: completion in round trips, sorted, and IP bytes per payload byte.
struct Cell {
    times: Vec<f64>,
    wire: f64,
}

impl Cell {
    fn at(&self, share: f64) -> f64 {
        self.times[(share * self.times.len() as f64).ceil() as usize - 1]
    }
}

fn play(link: &str, bytes: u64, tcp: &TcpConfig, each: usize, seed: u64) -> Cell {
    let mut world = World::new(&LinkSpec::parse(link).unwrap(), seed);
    let client = world.add_host(Side::A, "client", &["10.0.0.1".parse().unwrap()], StackConfig::default());
    let primary = CookieKey::new(*b"brisk simulation");
    let fast_open =
        FastOpenConfig { keys: Some(KeySource::Fixed { primary, backup: None }), ..Default::default() };
    let stack = StackConfig { fast_open, ..StackConfig::default() };
    let server = world.add_host(Side::B, "server", &["10.0.0.2".parse().unwrap()], stack);
    let address: SocketAddr = "10.0.0.2:80".parse().unwrap();
    let listen =
        ListenConfig { tcp: tcp.clone(), fast_open: Some(listening(tcp)), ..ListenConfig::default() };
    world.add_app(server.unwrap(), Instant::ZERO, Server::new(address, listen));
    let client = client.unwrap();
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let plan = ClientPlan {
                server: address,
                connect: ConnectConfig {
                    tcp: tcp.clone(),
                    fast_open: Some(FastOpenConnect::insured()),
                    ..ConnectConfig::default()
                },
                connections: Connections::Fresh,
                greeting: 0,
                exchanges: vec![Exchange::of(bytes); each + WARM],
            };
            world.add_app(client, Instant::from_millis(worker * 7), Client::new(plan))
        })
        .collect();
    let limit = Instant::ZERO + Duration::from_secs(3600);
    world.run_while(limit, |world| workers.iter().all(|id| world.app::<Client>(*id).unwrap().is_over()));
    let rest = world.now() + Duration::from_secs(2);
    world.run_until(rest);
    let counted = |id| world.app::<Client>(id).unwrap().outcomes()[WARM..].iter();
    let outcomes: Vec<&Outcome> = workers.iter().flat_map(|id| counted(*id)).collect();
    let took = |outcome: &&Outcome| (outcome.finished.unwrap() - outcome.started).as_secs_f64() / 0.1;
    let mut times: Vec<f64> = outcomes.iter().map(took).collect();
    times.sort_by(f64::total_cmp);
    let sent = world.bytes_sent_by(Side::A) + world.bytes_sent_by(Side::B);
    let payload = WORKERS * (each + WARM) as u64 * (bytes + 100);
    Cell { times, wire: sent as f64 / payload as f64 }
}

#[test]
#[ignore = "prints figures: cargo test --release -p brisk-sim --test same_stacks figures -- --ignored --nocapture"]
fn figures() {
    let cells = [
        (30_000, 25, "0%"),
        (30_000, 25, "2%"),
        (30_000, 5, "2%"),
        (30_000, 25, "5%"),
        (30_000, 25, "after:1%,50%"),
        (2_000, 100, "5%"),
    ];
    for (bytes, percent, loss) in cells {
        let link = format!("--rtt 100ms --loss {loss}");
        for (name, tcp) in [("without", all(0)), ("with", all(percent))] {
            let cell = play(&link, bytes, &tcp, 143, 1);
            let mean = cell.times.iter().sum::<f64>() / cell.times.len() as f64;
            println!(
                "| {bytes} B, {loss}, {percent} %, {name} | {:.2} / {:.2} / {:.2} / {mean:.2}, {:.3} |",
                cell.at(0.5),
                cell.at(0.95),
                cell.at(0.99),
                cell.wire
            );
        }
    }
}

/// With the memory of both ends, responses meet the target for 30 kB at 2 % loss.
#[test]
fn the_tail_stays_short_while_the_memory_of_the_path_grows() {
    let cell = play("--rtt 100ms --loss 2%", 30_000, &all(25), 36, 1);
    assert!(cell.at(0.5) <= 1.2 && cell.at(0.98) <= 1.5, "{:?}", cell.times);
    assert!(cell.wire <= 1.26, "{}", cell.wire);
}
