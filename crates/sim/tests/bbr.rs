//! BBR in virtual time: random loss, steps of the rate, standing queues, sharing with itself and with CUBIC.

use std::net::SocketAddr;

use brisk_link::{Direction, LinkSpec};
use brisk_sim::AppId;
use brisk_sim::application::{Amount, BulkSender, Sink};
use brisk_sim::world::{Side, World};
use brisk_tcp::config::{CongestionAlgorithm, CopyScope, CorrectiveConfig, MechanismConfig, ProactiveConfig};
use brisk_tcp::{ConnectConfig, ListenConfig, StackConfig};
use brisk_wire::Instant;

use CongestionAlgorithm::{Bbr, Cubic};

fn at(millis: u64) -> Instant {
    Instant::from_millis(millis)
}

/// Flows from one host to another over a link. Each has a start time and lasts until the end of the run.
struct Race {
    world: World,
    sink: AppId,
    flows: Vec<AppId>,
    bits_per_second: f64,
}

impl Race {
    fn new(mbit: f64, link: &str, flows: &[(CongestionAlgorithm, u64)], amount: Amount, seed: u64) -> Race {
        Race::with(mbit, link, flows, amount, seed, &MechanismConfig::default())
    }

    fn with(
        mbit: f64,
        link: &str,
        flows: &[(CongestionAlgorithm, u64)],
        amount: Amount,
        seed: u64,
        mechanisms: &MechanismConfig,
    ) -> Race {
        let spec = LinkSpec::parse(link).unwrap_or_else(|error| panic!("{link}: {error}"));
        let mut world = World::new(&spec, seed);
        let [a, b] = [(Side::A, "10.0.0.1"), (Side::B, "10.0.0.2")].map(|(side, address)| {
            world.add_host(side, address, &[address.parse().unwrap()], StackConfig::default()).unwrap()
        });
        let sink_at: SocketAddr = "10.0.0.1:9".parse().unwrap();
        let mut listen = ListenConfig::default();
        listen.tcp.receive_buffer.max = 16 << 20;
        listen.tcp.mechanisms = mechanisms.clone();
        let sink = world.add_app(a, at(0), Sink::new(sink_at, listen));
        let flows = flows.iter().map(|(congestion, start)| {
            let mut connect = ConnectConfig::default();
            connect.tcp.congestion = congestion.clone();
            connect.tcp.send_buffer.max = 16 << 20;
            connect.tcp.mechanisms = mechanisms.clone();
            world.add_app(b, at(*start), BulkSender::new(sink_at, connect, amount))
        });
        let flows = flows.collect();
        Race { world, sink, flows, bits_per_second: mbit * 1e6 }
    }

    fn received(&self) -> Vec<u64> {
        self.world.app::<Sink>(self.sink).unwrap().flows().iter().map(|flow| flow.received).collect()
    }

    /// Runs until `millis`; returns the goodput of each flow in that time, as a share of the link's rate.
    fn shares_until(&mut self, millis: u64) -> Vec<f64> {
        let (from, before) = (self.world.now(), self.received());
        self.world.run_until(at(millis));
        let seconds = (at(millis) - from).as_secs_f64();
        let before = before.into_iter().chain(std::iter::repeat(0));
        let bits =
            self.received().into_iter().zip(before).map(|(after, before)| (after - before) as f64 * 8.0);
        bits.map(|bits| bits / seconds / self.bits_per_second).collect()
    }
}

/// Returns the median of an odd number of values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the goodput of one transfer as a share of the rate, opening and closing included.
fn transfer(mbit: f64, link: &str, bytes: u64, seed: u64) -> f64 {
    transfer_with(mbit, link, bytes, seed, &MechanismConfig::default())
}

fn transfer_with(mbit: f64, link: &str, bytes: u64, seed: u64, mechanisms: &MechanismConfig) -> f64 {
    let mut race = Race::with(mbit, link, &[(Bbr, 0)], Amount::Bytes(bytes), seed, mechanisms);
    assert!(race.world.run_while(at(1_000_000), World::apps_done), "{link} seed {seed}");
    assert_eq!(race.received(), [bytes]);
    let flow = race.world.app::<BulkSender>(race.flows[0]).unwrap();
    let (closed, _) = flow.closed().unwrap();
    bytes as f64 * 8.0 / (closed - at(0)).as_secs_f64() / race.bits_per_second
}

#[test]
fn random_loss_of_2_percent_leaves_85_percent_of_the_rate() {
    let share = transfer(20.0, "--rtt 100ms --rate 20mbit --queue 250kB --loss 2%", 50_000_000, 1);
    assert!(share > 0.85, "{share}");
}

#[test]
fn random_loss_costs_little_more_than_the_lost_bytes() {
    // Minimum share of the rate that the payload takes; the headers take 3.5 % more.
    for (rtt, loss, floor) in
        [(20, "0.5%", 0.88), (100, "1%", 0.87), (20, "2%", 0.86), (100, "3%", 0.82), (50, "5%", 0.80)]
    {
        let link = format!("--rtt {rtt}ms --rate 20mbit --queue 250kB --loss {loss}");
        let share = median((0..3).map(|seed| transfer(20.0, &link, 50_000_000, seed)).collect());
        println!("{rtt} ms, {loss}: {share:.3}");
        assert!(share > floor, "{rtt} ms, {loss}: {share}");
    }
}

/// Checks the worst and the median of five transfers. An error in Startup lasts until the next probe for
/// bandwidth, for half of a transfer.
#[test]
fn no_transfer_over_a_fast_path_with_random_loss_takes_a_quarter_more_than_the_others() {
    for queue in ["150kB", "625kB", "2500kB"] {
        let link = format!("--rtt 50ms --rate 100mbit --queue {queue} --loss 1%");
        let mut shares: Vec<f64> = (0..5).map(|seed| transfer(100.0, &link, 50_000_000, seed)).collect();
        shares.sort_by(f64::total_cmp);
        println!("{queue}: {shares:.3?}");
        assert!(shares[0] > 0.77 && shares[2] > 0.82, "{queue}: {shares:?}");
    }
}

/// Redundancy costs only its share of the path: copies of every segment cost a half, one parity per 16
/// segments a 17th.
#[test]
fn redundancy_costs_its_bytes() {
    let parity =
        MechanismConfig { corrective: Some(CorrectiveConfig::default()), ..MechanismConfig::default() };
    let copies = MechanismConfig {
        proactive: Some(ProactiveConfig { scope: CopyScope::All, ..ProactiveConfig::default() }),
        ..MechanismConfig::default()
    };
    for loss in ["0%", "1%", "3%"] {
        let link = format!("--rtt 40ms --rate 10mbit --queue 100kB --loss {loss}");
        let plain = transfer(10.0, &link, 10_000_000, 1);
        let goodput = |mechanisms| transfer_with(10.0, &link, 10_000_000, 1, mechanisms);
        let (with_parity, with_copies) = (goodput(&parity), goodput(&copies));
        println!("{loss}: {plain:.3}, with parity {with_parity:.3}, with copies {with_copies:.3}");
        assert!(with_parity > plain * 0.92 && with_copies > plain * 0.46, "{loss}");
    }
}

#[test]
fn steps_of_the_rate_are_found() {
    let link = "--rtt 50ms --rate 20mbit,5mbit@10s,20mbit@30s --queue 125kB";
    let mut race = Race::new(20.0, link, &[(Bbr, 0)], Amount::Until(at(50_000)), 1);
    race.world.run_until(at(2_000));
    let before = race.shares_until(10_000)[0];
    race.world.run_until(at(12_000));
    let lost_before = race.world.counters(0, Direction::Down).unwrap().dropped_queue;
    let slow = race.shares_until(30_000)[0] * 4.0;
    let lost = race.world.counters(0, Direction::Down).unwrap().dropped_queue - lost_before;
    race.world.run_until(at(38_000));
    let after = race.shares_until(50_000)[0];
    println!(
        "steps: {before:.3} {slow:.3} {after:.3}, {lost} packets lost 2 s after the step down and later"
    );
    assert!(before > 0.9 && slow > 0.9 && after > 0.9, "{before} {slow} {after}");
}

#[test]
fn the_standing_queue_is_short_in_a_deep_buffer() {
    // The buffer has eight bandwidth-delay products.
    let link = "--rtt 40ms --rate 10mbit --queue 400kB";
    let mut race = Race::new(10.0, link, &[(Bbr, 0)], Amount::Until(at(60_000)), 1);
    race.world.run_until(at(10_000));
    let mut queues = Vec::new();
    let mut share = 0.0;
    for step in 1..=5_000 {
        share += race.shares_until(10_000 + step * 10)[0] / 5_000.0;
        let counters = race.world.counters(0, Direction::Down).unwrap();
        queues.push(counters.in_flight as f64);
    }
    queues.sort_by(f64::total_cmp);
    // Half of the round-trip time lies behind the bottleneck of this direction: 17 packets. The rest is the
    // queue.
    let [p50, p99] = [0.5, 0.99].map(|q| queues[(5_000.0 * q) as usize] * 1.2 - 20.0);
    println!("deep buffer: {share:.3} of the rate, queue {p50:.1} ms p50, {p99:.1} ms p99");
    assert!(share > 0.92, "{share}");
    assert!(p50 <= 0.3 * 40.0 && p99 <= 1.2 * 40.0, "{p50} {p99}");
}

/// Returns the shares of the rate of two BBR flows, of which the second begins two seconds later.
fn two_bbr_flows(seed: u64) -> Vec<f64> {
    let link = "--rtt 40ms --rate 20mbit --queue 100kB";
    let mut race = Race::new(20.0, link, &[(Bbr, 0), (Bbr, 2_000)], Amount::Until(at(70_000)), seed);
    race.world.run_until(at(30_000));
    race.shares_until(70_000)
}

#[test]
fn two_bbr_flows_share() {
    for seed in 0..3 {
        let shares = two_bbr_flows(seed);
        let (sum, min) = (shares[0] + shares[1], shares[0].min(shares[1]));
        println!("two flows: {shares:.3?}");
        assert!(sum > 0.88 && min / sum >= 0.37, "{shares:?}");
    }
}

/// Returns the shares of the rate of a BBR and a CUBIC flow at 40 ms; `buffer` in bandwidth-delay products.
fn shares_with_cubic(mbit: u32, buffer: f64, seconds: u64, seed: u64) -> Vec<f64> {
    let bytes = (f64::from(mbit) * 5_000.0 * buffer) as u64;
    let link = format!("--rtt 40ms --rate {mbit}mbit --queue {bytes}");
    let end = at(seconds * 1000);
    let mut race = Race::new(f64::from(mbit), &link, &[(Bbr, 0), (Cubic, 0)], Amount::Until(end), seed);
    race.world.run_until(at(10_000));
    race.shares_until(seconds * 1000)
}

#[test]
fn cubic_and_bbr_flows_do_not_starve_each_other() {
    // Buffer in bandwidth-delay products, and bounds of BBR's share.
    for (buffer, low, high) in [(0.5, 0.40, 0.66), (1.0, 0.35, 0.62), (8.0, 0.05, 0.55)] {
        let shares = shares_with_cubic(20, buffer, 60, 1);
        let (sum, share) = (shares[0] + shares[1], shares[0] / (shares[0] + shares[1]));
        assert!((low..=high).contains(&share) && sum > 0.85, "buffer {buffer}: {shares:?}");
    }
}

/// Prints figures of the test plan with more seeds: `cargo test --release -p brisk-sim --test bbr --
/// --ignored --nocapture`.
#[test]
#[ignore = "prints figures; takes minutes without optimisation"]
fn figures() {
    for (rtt, loss) in [
        (100, "0%"),
        (100, "0.5%"),
        (100, "1%"),
        (100, "2%"),
        (100, "5%"),
        (20, "2%"),
        (50, "2%"),
        (200, "2%"),
    ] {
        let link = format!("--rtt {rtt}ms --rate 20mbit --queue 250kB --loss {loss}");
        let shares = (0..5).map(|seed| transfer(20.0, &link, 50_000_000, seed)).collect();
        println!("50 MB, 20 Mbit/s, {rtt} ms, {loss}: {:.3} (median of 5)", median(shares));
    }
    for seed in 0..5 {
        println!("two flows, seed {seed}: {:.3?}", two_bbr_flows(seed));
    }
    for buffer in [0.5, 1.0, 2.0, 8.0] {
        for mbit in [20, 50] {
            println!(
                "next to CUBIC, {mbit} Mbit/s, {buffer} BDP: {:.3?}",
                shares_with_cubic(mbit, buffer, 120, 1)
            );
        }
    }
}

#[test]
fn bbr_adapts_to_a_policer() {
    let link = "--rtt 50ms --rate 100mbit --queue 500kB --loss policer:10mbit,100kB";
    let mut race = Race::new(10.0, link, &[(Bbr, 0)], Amount::Until(at(60_000)), 1);
    race.world.run_until(at(5_000));
    let before = race.world.counters(0, Direction::Down).unwrap();
    let share = race.shares_until(60_000)[0];
    let after = race.world.counters(0, Direction::Down).unwrap();
    let loss = (after.dropped_loss - before.dropped_loss) as f64 / (after.offered - before.offered) as f64;
    println!("policer: {share:.3} of its rate, {loss:.4} lost");
    assert!(share > 0.9 && loss < 0.03, "{share} {loss}");
}
