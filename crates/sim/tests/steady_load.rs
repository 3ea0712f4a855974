//! Two hosts that know each other and their path, as a gateway pair does: responses at a steady rate, each
//! over its own connection, while path memory and allowance pass from one connection to the next.

use std::net::SocketAddr;
use std::time::Duration;

use brisk_link::LinkSpec;
use brisk_sim::application::{Client, ClientPlan, Connections, Exchange, Outcome, Server};
use brisk_sim::fast_open::listening;
use brisk_sim::world::{Side, World};
use brisk_tcp::TcpConfig;
use brisk_tcp::config::{
    BufferConfig, CongestionAlgorithm, ConnectConfig, FastOpenConfig, HandshakeCopies, ListenConfig,
    StackConfig,
};
use brisk_tcp::fast_open::{CookieKey, FastOpenConnect, FastOpenListen, KeySource};
use brisk_wire::Instant;

/// Requests that are not counted: they get the cookie and fill the path memory.
const WARM: usize = 50;

/// Returns the default TCP of a gateway pair with an allowance of `max_overhead` percent (the default is 25).
fn gateway(max_overhead: u32) -> TcpConfig {
    let planned = TcpConfig::planned(max_overhead);
    let handshake_copies =
        planned.handshake_copies.map(|copies| HandshakeCopies { with_data: true, ..copies });
    TcpConfig {
        initial_window: 32,
        nodelay: true,
        path_start: true,
        handshake_timers: true,
        handshake_copies,
        congestion: CongestionAlgorithm::Bbr,
        share_path: true,
        send_buffer: BufferConfig { initial: 512 << 10, ..planned.send_buffer },
        receive_buffer: BufferConfig { initial: 512 << 10, ..planned.receive_buffer },
        ..planned
    }
}

/// Completion times in ms, sorted, and IP bytes on the wire per byte of payload.
struct Load {
    times: Vec<f64>,
    wire: f64,
    /// Payload of all responses over the time until the last one has ended, Mbit/s.
    mbit: f64,
}

impl Load {
    fn at(&self, share: f64) -> f64 {
        self.times[((share * self.times.len() as f64).ceil() as usize).max(1) - 1]
    }
}

/// Runs `count` responses of `bytes`, one every `every`, between ends with `tcp`.
fn load(link: &str, tcp: &TcpConfig, bytes: u64, every: Duration, count: usize, seed: u64) -> Load {
    load_with(link, tcp, bytes, every, count, seed, Setup::default())
}

/// The differences of a load from the usual one.
#[derive(Clone, Copy, Default)]
struct Setup {
    /// The requests use connections without Fast Open that were opened this long before.
    lead: Option<Duration>,
    /// The hosts of these sides stand still for 100 ms every 1.73 s.
    pausing: &'static [Side],
    /// That many clients request without a pause, each `count` responses, instead of one every `every`.
    at_once: Option<usize>,
    /// The requests have the bytes, and the responses 100.
    up: bool,
}

fn load_with(
    link: &str,
    tcp: &TcpConfig,
    bytes: u64,
    every: Duration,
    count: usize,
    seed: u64,
    setup: Setup,
) -> Load {
    let Setup { lead, pausing, at_once, up } = setup;
    let mut world = World::new(&LinkSpec::parse(link).unwrap(), seed);
    let client =
        world.add_host(Side::A, "client", &["10.0.0.1".parse().unwrap()], StackConfig::default()).unwrap();
    let primary = CookieKey::new(*b"brisk simulation");
    let fast_open =
        FastOpenConfig { keys: Some(KeySource::Fixed { primary, backup: None }), ..Default::default() };
    let stack = StackConfig { fast_open, ..StackConfig::default() };
    let server = world.add_host(Side::B, "server", &["10.0.0.2".parse().unwrap()], stack).unwrap();
    let address: SocketAddr = "10.0.0.2:80".parse().unwrap();
    let listen = ListenConfig {
        tcp: tcp.clone(),
        fast_open: lead.is_none().then(|| FastOpenListen {
            max_pending: 1024,
            max_per_ip: 1024,
            ..listening(tcp)
        }),
        ..ListenConfig::default()
    };
    world.add_app(server, Instant::ZERO, Server::new(address, listen));
    let connect = ConnectConfig {
        tcp: tcp.clone(),
        fast_open: lead.is_none().then(FastOpenConnect::insured),
        ..ConnectConfig::default()
    };
    let mut begin = |at: Instant, exchange: Exchange, count| {
        let plan = ClientPlan {
            server: address,
            connect: connect.clone(),
            connections: lead.map_or(Connections::Fresh, Connections::Established),
            greeting: 0,
            exchanges: vec![exchange; count],
        };
        world.add_app(client, at, Client::new(plan))
    };
    // As with the load generator of the measurements, the run begins with responses of 30 kB.
    let every = every.as_micros() as u64;
    for n in 0..WARM as u64 {
        begin(Instant::from_micros(n * 100_000), Exchange::of(30_000.min(bytes)), 1);
    }
    let from = WARM as u64 * 100_000 + 1_000_000;
    let (clients, each) = at_once.map_or((count, 1), |clients| (clients, count));
    let exchange =
        if up { Exchange { request: bytes as u32, ..Exchange::of(100) } } else { Exchange::of(bytes) };
    let apps: Vec<_> =
        (0..clients as u64).map(|n| begin(Instant::from_micros(from + n * every), exchange, each)).collect();
    let limit = Instant::ZERO + Duration::from_secs(3600);
    world.run_until(Instant::from_micros(from));
    let before = world.bytes_sent_by(Side::A) + world.bytes_sent_by(Side::B);
    let mut next = from;
    while !pausing.is_empty() && next < from + count as u64 * every {
        world.run_until(Instant::from_micros(next));
        for side in pausing {
            let host = if *side == Side::A { client } else { server };
            world.pause_host(host, Instant::from_micros(next + 100_000));
        }
        next += 1_730_000;
    }
    world.run_while(limit, |world| apps.iter().all(|id| world.app::<Client>(*id).unwrap().is_over()));
    let rest = world.now() + Duration::from_secs(2);
    world.run_until(rest);
    let outcomes: Vec<&Outcome> =
        apps.iter().flat_map(|id| world.app::<Client>(*id).unwrap().outcomes()).collect();
    let took = |outcome: &&Outcome| (outcome.finished.unwrap() - outcome.started).as_secs_f64() * 1000.0;
    let mut times: Vec<f64> = outcomes.iter().map(took).collect();
    times.sort_by(f64::total_cmp);
    let sent = world.bytes_sent_by(Side::A) + world.bytes_sent_by(Side::B) - before;
    let payload = (times.len() as u64 * bytes) as f64;
    let took = rest.saturating_since(Instant::from_micros(from)).as_secs_f64() - 2.0;
    let wire = sent as f64 / (payload + 100.0 * times.len() as f64);
    Load { times, wire, mbit: payload * 8e-6 / took }
}

/// Runs several seeds and merges the results.
fn loads(link: &str, tcp: &TcpConfig, bytes: u64, every: Duration, count: usize, seeds: u64) -> Load {
    let loads: Vec<Load> = (0..seeds).map(|seed| load(link, tcp, bytes, every, count, seed)).collect();
    let wire = loads.iter().map(|load| load.wire).sum::<f64>() / seeds as f64;
    let mbit = loads.iter().map(|load| load.mbit).sum::<f64>() / seeds as f64;
    let mut times: Vec<f64> = loads.into_iter().flat_map(|load| load.times).collect();
    times.sort_by(f64::total_cmp);
    Load { times, wire, mbit }
}

#[test]
#[ignore = "prints figures: cargo test --release -p brisk-sim --test steady_load figures -- --ignored --nocapture"]
fn figures() {
    for (bytes, every, losses) in [
        (2_000, 50, &["2%", "5%"][..]),
        (30_000, 50, &["2%"]),
        (100_000, 100, &["0%", "2%", "5%"]),
        (300_000, 400, &["2%"]),
        (1_000_000, 1500, &["2%"]),
    ] {
        for loss in losses {
            let link = format!("--rtt 100ms --rate 20mbit --queue 200p --loss {loss}");
            let load = loads(&link, &gateway(25), bytes, Duration::from_millis(every), 200, 10);
            println!(
                "| {bytes} B, {loss} | {:.0} / {:.0} / {:.0}, {:.2} |",
                load.at(0.5),
                load.at(0.95),
                load.at(0.99),
                load.wire
            );
        }
    }
}

#[test]
#[ignore = "prints figures: cargo test --release -p brisk-sim --test steady_load at_once -- --ignored --nocapture"]
fn figures_of_transfers_at_once() {
    for (clients, loss) in [(1, "0%"), (1, "2%"), (1, "5%"), (6, "0%"), (6, "0.5%"), (6, "2%"), (6, "5%")] {
        for up in [false, true] {
            let of = |bytes: u64| {
                let each = 24_000_000 / bytes as usize / clients;
                let rates = (1..=8).map(|seed| rate_at_once(clients, loss, bytes, each, seed, up));
                let (least, sum) =
                    rates.fold((f64::MAX, 0.0), |(least, sum), rate| (rate.min(least), sum + rate));
                format!("{:.1} ({least:.1})", sum / 8.0)
            };
            let cells = [100_000, 300_000, 1_000_000, 3_000_000].map(of);
            println!("| {clients} {}, {loss} | {} |", if up { "up" } else { "down" }, cells.join(" | "));
        }
    }
}

/// Returns the payload of all transfers to or from clients that request without a pause, Mbit/s.
fn rate_at_once(clients: usize, loss: &str, bytes: u64, each: usize, seed: u64, up: bool) -> f64 {
    let link = format!("--rtt 100ms --rate 20mbit --queue 200p --loss {loss}");
    let setup = Setup { at_once: Some(clients), up, ..Setup::default() };
    load_with(&link, &gateway(25), bytes, Duration::ZERO, each, seed, setup).mbit
}

/// The clients begin together and overflow the queue at first. The random losses that follow are no reason
/// to use less of the path. Responses know them from the memory of the path. Before these requests the
/// clients have sent too little to know them, so chance must not end the first probes for bandwidth.
#[test]
fn random_losses_do_not_slow_the_transfers_of_six_clients() {
    for (bytes, each, up, least) in [
        (100_000, 40, false, 15.0),
        (300_000, 13, false, 14.5),
        (3_000_000, 1, false, 15.5),
        (3_000_000, 1, true, 15.5),
    ] {
        for seed in 1..=3 {
            let rate = rate_at_once(6, "2%", bytes, each, seed, up);
            assert!(rate >= least, "{bytes} bytes, up: {up}, seed {seed}: {rate:.1} Mbit/s");
        }
    }
}

/// Transfers of equal size end one after the other, so that the link is busy while the next requests arrive.
/// Clients that begin at the same time do not take each other's first flights for a full path.
#[test]
fn six_clients_keep_the_link_busy() {
    for (bytes, each, up, least) in [
        (100_000, 40, false, 17.8),
        (100_000, 40, true, 16.0),
        (300_000, 13, false, 17.3),
        (300_000, 13, true, 17.3),
        (3_000_000, 1, true, 17.3),
    ] {
        let rate = rate_at_once(6, "0%", bytes, each, 1, up);
        assert!(rate >= least, "{bytes} bytes, up: {up}: {rate:.1} Mbit/s");
    }
}

/// The clients ask for much more than the path carries in a round trip. Their responses leave one after the
/// other, so that all take the same time, and none is lost in a queue.
#[test]
fn responses_of_a_busy_path_take_turns() {
    for (clients, bytes, longest) in [(24, 100_000, 1_150.0), (48, 30_000, 700.0)] {
        let link = "--rtt 100ms --rate 20mbit --queue 200p";
        let setup = Setup { at_once: Some(clients), ..Setup::default() };
        let load = load_with(link, &gateway(25), bytes, Duration::ZERO, 20, 1, setup);
        assert!(load.at(0.99) <= longest, "{clients} of {bytes} bytes: {:.0} ms at p99", load.at(0.99));
        assert!(load.wire <= 1.1, "{clients} of {bytes} bytes: {}", load.wire);
    }
}

/// A response that loses its SYN-ACK, or more segments than parity repairs, takes longer. It must not delay
/// the responses after it.
#[test]
fn response_of_100_kb_takes_one_round_trip_on_a_lossy_path() {
    let link = "--rtt 100ms --rate 20mbit --queue 200p --loss 2%";
    let load = loads(link, &gateway(25), 100_000, Duration::from_millis(100), 200, 20);
    assert!(load.at(0.5) <= 150.0 && load.at(0.99) <= 160.0, "{:?}", load.times);
    assert!(load.at(0.998) <= 300.0, "{:?}", load.times);
    assert!(load.wire <= 1.27, "{}", load.wire);
}

/// At 150 responses a second the allowance does not pay for the protection of each. A lost SYN-ACK costs 1.25
/// round trips, a lost tail less than two.
#[test]
fn unprotected_losses_of_a_busy_pair_are_repaired_early() {
    let link = "--rtt 100ms --rate 50mbit --queue 400p --loss 2%";
    let of = |percent| loads(link, &gateway(percent), 2_000, Duration::from_micros(6_667), 3_000, 3);
    let (without, with) = (of(0), of(25));
    assert!(with.at(0.99) <= 110.0 && with.at(0.998) <= 210.0, "{:?}", with.times);
    // The allowance in these 20 s: a quarter of what both sides send, of 1 MB for each side in each ten
    // seconds, and of the earlier responses of 30 kB. An insurance copy of a SYN is not part of the
    // allowance; with the request it has 180 bytes.
    let payload = 3_000.0 * 2_100.0;
    let allowance = 0.25 * (without.wire * payload + 4e6 + WARM as f64 * 33e3);
    let max = without.wire + allowance / payload + 180.0 / 2_100.0;
    assert!(with.wire <= max, "{} of {max}", with.wire);
}

/// Their flights take longer than a round trip, and most lose packets. Each transfer begins with the path's
/// volume and its own controller, and parity protects it to its end.
#[test]
fn responses_of_several_hundred_kb_rarely_need_another_round_trip_on_a_lossy_path() {
    let link = |loss| format!("--rtt 100ms --rate 20mbit --queue 200p --loss {loss}");
    for (bytes, every, loss, p50, p95) in [
        (300_000, 400, "0%", 230.0, 230.0),
        (300_000, 400, "2%", 250.0, 340.0),
        (500_000, 800, "0%", 310.0, 310.0),
        (500_000, 800, "5%", 400.0, 600.0),
    ] {
        let load = loads(&link(loss), &gateway(25), bytes, Duration::from_millis(every), 100, 3);
        assert!(load.at(0.5) <= p50 && load.at(0.95) <= p95, "{bytes}, {loss}: {:?}", load.times);
        assert!(load.wire <= 1.27, "{}", load.wire);
    }
}

/// Responses overlap and wait for each other. The stack must not attribute this to a queue of other flows,
/// because it would then reduce the initial flights.
#[test]
fn responses_take_one_round_trip_up_to_70_percent_of_the_rate() {
    for percent in [40, 55, 63, 70] {
        // A response takes 1.08 bytes on the wire per byte of payload, at 1.25 MB/s.
        let every = Duration::from_secs_f64(30_000.0 * 1.08 / 1.25e6) * 100 / percent;
        let load = loads("--rtt 40ms --rate 10mbit --queue 50kB", &gateway(25), 30_000, every, 400, 1);
        assert!(load.at(0.99) <= 66.0, "{percent} %: {:?}", load.times);
    }
}

/// The path carries 15 MB in ten seconds, and the allowance counts one more.
#[test]
fn a_busy_path_stays_within_its_allowance() {
    let link = "--rtt 100ms --rate 20mbit --queue 200p --loss 2%";
    let of = |percent| loads(link, &gateway(percent), 30_000, Duration::from_millis(20), 400, 2);
    let without = of(0);
    for (percent, share) in [(5, 0.05), (10, 0.10)] {
        let with = of(percent);
        let max = without.wire * (1.0 + share * 16.0 / 15.0);
        assert!(with.wire <= max, "{percent} %: {} of {max}", with.wire);
        assert!(with.at(0.99) < without.at(0.99) / 2.0, "{percent} %: {:?}", with.times);
    }
}

/// A pool opens connections in advance because Fast Open is off. They start as fast as with Fast Open, even
/// if other responses were in flight during their handshakes.
#[test]
fn responses_on_connections_opened_in_advance_take_one_round_trip() {
    let every = Duration::from_millis(100);
    for (bytes, max) in [(30_000, 120.0), (100_000, 150.0)] {
        for lead in [0, 300, 2000] {
            let setup = Setup { lead: Some(Duration::from_millis(lead)), ..Setup::default() };
            let link = "--rtt 100ms --rate 20mbit --queue 200p";
            let load = load_with(link, &gateway(25), bytes, every, 50, 1, setup);
            assert!(load.at(0.95) <= max, "{bytes} {lead} ms: {:?}", load.times);
        }
    }
}

/// In these runs chance causes two excesses, so that starts have the standard window for seconds. At one
/// window per round trip a response would take half a round trip longer.
#[test]
fn starts_keep_the_rate_of_the_path_while_the_brake_limits_their_window() {
    for seed in [25, 115] {
        let link = "--rtt 100ms --rate 20mbit --queue 200p --loss after:1%,30%";
        let load = load(link, &gateway(25), 30_000, Duration::from_millis(50), 200, seed);
        let late = load.times.iter().filter(|ms| (130.0..205.0).contains(*ms)).count();
        assert!(late <= 2, "seed {seed}: {late} late responses, {:.0} ms at p95", load.at(0.95));
    }
}

/// A pause delays the responses that are in flight, here one in eight. It is no queue, so later responses
/// have their whole first flight and their parity.
#[test]
fn pauses_of_a_host_delay_only_what_is_in_flight() {
    let link = "--rtt 100ms --rate 20mbit --queue 200p --loss 2%";
    for pausing in [&[Side::A][..], &[Side::B], &[Side::A, Side::B]] {
        for seed in 0..3 {
            let setup = Setup { pausing, ..Setup::default() };
            let load = load_with(link, &gateway(25), 30_000, Duration::from_millis(50), 400, seed, setup);
            let late = load.times.iter().filter(|ms| **ms > 130.0).count();
            assert!(late <= 60, "{pausing:?}, seed {seed}: {late} {:?}", load.times);
        }
    }
}
