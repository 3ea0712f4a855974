//! Proactive and the planner over time: their effect on other flows, and on the rate of retransmissions.

use std::net::SocketAddr;
use std::time::Duration;

use brisk_link::LinkSpec;
use brisk_sim::application::{Amount, BulkSender, Client, ClientPlan, Connections, Exchange, Server, Sink};
use brisk_sim::seeds;
use brisk_sim::transaction::{TransactionSpec, transaction};
use brisk_sim::world::{Side, World};
use brisk_tcp::config::{CopyScope, ProactiveConfig};
use brisk_tcp::{ConnectConfig, ListenConfig, StackConfig, TcpConfig};
use brisk_wire::Instant;

const RECEIVER: &str = "10.0.0.1";
const SENDER: &str = "10.0.0.2";

fn at(seconds: u64) -> Instant {
    Instant::from_millis(seconds * 1000)
}

fn proactive(scope: CopyScope) -> TcpConfig {
    let mut tcp = TcpConfig::default();
    tcp.mechanisms.proactive = Some(ProactiveConfig { scope, ..ProactiveConfig::default() });
    tcp
}

/// Returns the Mbit/s of a flow with `ours` and of a plain CUBIC flow that share 10 Mbit/s for two minutes.
fn rates_with_cubic(ours: &TcpConfig, seed: u64) -> (f64, f64) {
    let link = LinkSpec::parse("--rtt 50ms --rate 10mbit --queue 60p").unwrap();
    let mut world = World::new(&link, seed);
    let a =
        world.add_host(Side::A, "receiver", &[RECEIVER.parse().unwrap()], StackConfig::default()).unwrap();
    let b = world.add_host(Side::B, "sender", &[SENDER.parse().unwrap()], StackConfig::default()).unwrap();
    let end = at(130);
    let mut flow = |port: u16, tcp: &TcpConfig, start| {
        let sink_at: SocketAddr = format!("{RECEIVER}:{port}").parse().unwrap();
        let listen = ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() };
        let sink = world.add_app(a, at(0), Sink::new(sink_at, listen));
        let connect = ConnectConfig { tcp: tcp.clone(), ..ConnectConfig::default() };
        world.add_app(b, start, BulkSender::new(sink_at, connect, Amount::Until(end)));
        sink
    };
    let reference = flow(9, &TcpConfig::default(), at(0));
    let ours = flow(10, ours, at(2));
    let received = |world: &World, sink| world.app::<Sink>(sink).unwrap().flows()[0].received;
    world.run_until(at(10));
    let before = (received(&world, ours), received(&world, reference));
    world.run_until(end);
    let mbit = |after: u64, before: u64| (after - before) as f64 * 8e-6 / 120.0;
    (mbit(received(&world, ours), before.0), mbit(received(&world, reference), before.1))
}

/// The reference flow keeps at least 38 % of the link next to each configuration for general use. Bulk that
/// is sent twice (`all`) is not one of these: its figure is printed and not checked.
#[test]
#[ignore = "minutes: cargo test --release -p brisk-sim --test proactive a_cubic_flow -- --ignored --nocapture"]
fn a_cubic_flow_keeps_its_share() {
    let arms = [
        ("tcp", TcpConfig::default(), true),
        ("proactive=short", proactive(CopyScope::Short), true),
        ("planner, 5 %", TcpConfig::planned(5), true),
        ("planner, 25 %", TcpConfig::planned(25), true),
        ("proactive=all", proactive(CopyScope::All), false),
    ];
    for (name, tcp, judged) in arms {
        let runs: Vec<(f64, f64)> = (1..=2).map(|seed| rates_with_cubic(&tcp, seed)).collect();
        let mean = |of: fn(&(f64, f64)) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
        let (ours, reference) = (mean(|run| run.0), mean(|run| run.1));
        println!("| {name} | {ours:.2} | {reference:.2} | {:.0} % |", 10.0 * reference);
        assert!(ours + reference <= 10.0, "{name}: more than the rate of the link");
        assert!(!judged || reference >= 3.8, "{name}: the reference keeps {reference:.2} Mbit/s");
    }
}

/// The pattern of Table 6 of the paper: with copies hardly any segment is retransmitted.
#[test]
fn copies_leave_little_to_retransmit() {
    let link = LinkSpec::parse("--rtt 40ms --loss down:2%").unwrap();
    let play = |tcp: &TcpConfig| {
        let spec = TransactionSpec {
            established: true,
            client: tcp.clone(),
            server: tcp.clone(),
            ..TransactionSpec::new(&link, 20_000)
        };
        let runs: Vec<_> = (0..300).map(|seed| transaction(&spec, seed).unwrap()).collect();
        let mean = runs.iter().map(|run| run.completion.unwrap()).sum::<Duration>() / 300;
        (
            mean,
            runs.iter().map(|run| run.retransmits).sum::<u64>(),
            runs.iter().map(|run| run.repaired_by_copy).sum::<u64>(),
        )
    };
    let (plain, copies) = (play(&TcpConfig::default()), play(&proactive(CopyScope::All)));
    assert!(copies.0 < plain.0 * 9 / 10, "mean {:?}, without {:?}", copies.0, plain.0);
    assert!(copies.1 * 10 < plain.1, "retransmissions {}, without {}", copies.1, plain.1);
    assert!(copies.2 > 50, "masked losses {}", copies.2);
}

/// The result of bulk and short flows on one link.
#[derive(Default)]
struct Crowd {
    /// Bytes of the bulk flows that arrived during the short flows.
    bulk: u64,
    /// IP bytes that both senders put on the link in that time.
    offered: u64,
    /// Completion of the short flows.
    times: Vec<Duration>,
}

impl Crowd {
    /// Returns the sum over several seeds.
    fn of_seeds(seeds: std::ops::RangeInclusive<u64>, short: Option<&TcpConfig>, seconds: u64) -> Crowd {
        seeds.map(|seed| crowd(short, seconds, seed)).fold(Crowd::default(), |mut sum, one| {
            sum.bulk += one.bulk;
            sum.offered += one.offered;
            sum.times.extend(one.times);
            sum.times.sort_unstable();
            sum
        })
    }

    fn mean(&self) -> Duration {
        self.times.iter().sum::<Duration>() / self.times.len().max(1) as u32
    }

    /// Returns the number of short flows that took more than a second: their SYN-ACK was lost, and the first
    /// handshake timeout is one second.
    fn late(&self) -> usize {
        self.times.iter().filter(|took| **took > Duration::from_secs(1)).count()
    }

    fn p99(&self) -> Duration {
        self.times.get(self.times.len() * 99 / 100).copied().unwrap_or_default()
    }
}

impl std::fmt::Display for Crowd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (mean, p99) = (self.mean().as_secs_f64(), self.p99().as_secs_f64());
        let Crowd { bulk, offered, times } = self;
        write!(f, "bulk {bulk} B, link {offered} B, short mean {mean:.3} s, p99 {p99:.3} s, ")?;
        write!(f, "{} of {} late", self.late(), times.len())
    }
}

/// Four bulk flows fill a link of 10 Mbit/s. From the fifth second on, if `short` is set, clients request 50
/// responses of 2 kB per second, each over its own connection, for `seconds`. The seed determines the start
/// times.
fn crowd(short: Option<&TcpConfig>, seconds: u64, seed: u64) -> Crowd {
    let link = LinkSpec::parse("--rtt 50ms --rate 10mbit --queue 60p").unwrap();
    let mut world = World::new(&link, seed);
    let jitter = |name: &str, index: u64, below| seeds::derive(seed, format_args!("{name} {index}")) % below;
    let a = world.add_host(Side::A, "users", &[RECEIVER.parse().unwrap()], StackConfig::default()).unwrap();
    let b = world.add_host(Side::B, "servers", &[SENDER.parse().unwrap()], StackConfig::default()).unwrap();
    let sink_at: SocketAddr = format!("{RECEIVER}:9").parse().unwrap();
    let sink = world.add_app(a, at(0), Sink::new(sink_at, ListenConfig::default()));
    for index in 0..4 {
        let bulk = BulkSender::new(sink_at, ConnectConfig::default(), Amount::Until(at(5 + seconds)));
        let starts = Instant::from_millis(index * 100 + jitter("bulk", index, 100));
        world.add_app(b, starts, bulk);
    }
    let server: SocketAddr = format!("{SENDER}:80").parse().unwrap();
    let mut clients = Vec::new();
    if let Some(tcp) = short {
        let listen = ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() };
        world.add_app(b, at(0), Server::new(server, listen));
        for index in 0..50 * seconds {
            let plan = ClientPlan {
                server,
                connect: ConnectConfig { tcp: tcp.clone(), ..ConnectConfig::default() },
                connections: Connections::Fresh,
                greeting: 0,
                exchanges: vec![Exchange::of(2_000)],
            };
            let starts = Instant::from_millis(5_000 + index * 20 + jitter("short", index, 20));
            clients.push(world.add_app(a, starts, Client::new(plan)));
        }
    }
    let received = |world: &World| {
        world.app::<Sink>(sink).unwrap().flows().iter().map(|flow| flow.received).sum::<u64>()
    };
    world.run_until(at(5));
    let before = (received(&world), world.bytes_sent_by(Side::B));
    world.run_until(at(5 + seconds));
    let (bulk, offered) = (received(&world) - before.0, world.bytes_sent_by(Side::B) - before.1);
    world.run_until(at(15 + seconds));
    let took = |id: &_| {
        let outcome = &world.app::<Client>(*id).unwrap().outcomes()[0];
        outcome.finished.map_or(Duration::from_secs(10), |at| at.saturating_since(outcome.started))
    };
    Crowd { bulk, offered, times: clients.iter().map(took).collect() }
}

/// Short flows with the planner on a full link: the planner sees the standing queue and adds no redundancy.
/// So the bulk flows lose only the rate that short flows use without the planner, and the short flows are not
/// slower.
#[test]
#[ignore = "prints figures: cargo test --release -p brisk-sim --test proactive bulk_loses -- --ignored --nocapture"]
fn bulk_loses_only_the_rate_of_short_flows() {
    let (runs, seconds) = (32, 10);
    let of = |short: Option<&TcpConfig>| Crowd::of_seeds(1..=runs, short, seconds);
    let (alone, plain) = (of(None), of(Some(&TcpConfig::default())));
    println!("alone: {alone}\nplain: {plain}");
    let link = runs * seconds * 10_000_000 / 8;
    // 2 kB in two segments, the handshake and the FIN, with retransmissions.
    let added = runs * 50 * seconds * (2_000 + 6 * 60);
    for percent in [5, 25, 100] {
        let planned = of(Some(&TcpConfig::planned(percent)));
        println!("{percent} %: {planned}");
        assert!(alone.bulk - planned.bulk.min(alone.bulk) <= added * 11 / 10, "{planned}; alone {alone}");
        assert!(planned.bulk * 100 >= plain.bulk * 99, "{planned}; plain {plain}");
        assert!(planned.mean() <= plain.mean() * 21 / 20, "{planned}; plain {plain}");
        // The 99th percentile is where lost SYN-ACKs begin and varies widely, so the test compares `late`.
        assert!(planned.late() * 4 <= plain.late() * 5, "{planned}; plain {plain}");
        assert!(planned.offered <= link * 21 / 20, "{planned}");
    }
}
