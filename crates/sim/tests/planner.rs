//! The planner in virtual time: the bar that it has to clear, and its choices against every other.

use std::time::Duration;

use brisk_link::LinkSpec;
use brisk_sim::application::Exchange;
use brisk_sim::fast_open::Acquaintance;
use brisk_sim::transaction::{TransactionResult, TransactionSpec, transaction};
use brisk_tcp::TcpConfig;
use brisk_tcp::config::HandshakeTimers;

/// What comes out of a cell: completion in round trips, and IP bytes per payload byte.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "read in what is printed")]
struct Cell {
    p50: f64,
    p99: f64,
    mean: f64,
    wire: f64,
}

fn all(max_overhead: u32) -> TcpConfig {
    TcpConfig {
        initial_window: 32,
        handshake_timers: Some(HandshakeTimers::default()),
        ..TcpConfig::planned(max_overhead)
    }
}

fn play(link: &str, bytes: u64, tcp: &TcpConfig, established: bool, n: u64) -> Vec<TransactionResult> {
    let link = LinkSpec::parse(link).unwrap();
    let exchanges = [Exchange::of(bytes); 200];
    let acquaintance = Acquaintance::familiar(&link, 77, tcp, &exchanges).unwrap();
    let spec = TransactionSpec {
        established,
        client: tcp.clone(),
        server: tcp.clone(),
        fast_open: Some(&acquaintance),
        ..TransactionSpec::new(&link, bytes)
    };
    (0..n).map(|seed| transaction(&spec, seed).unwrap()).collect()
}

fn cell(results: &[TransactionResult], rtt: Duration) -> Cell {
    let mut times: Vec<Duration> = results.iter().map(|result| result.completion.unwrap()).collect();
    times.sort_unstable();
    let rtts = |at: usize| times[at].as_secs_f64() / rtt.as_secs_f64();
    let wire: u64 = results.iter().map(|result| result.wire_bytes_up + result.wire_bytes_down).sum();
    let payload: u64 = results.iter().map(|result| result.payload_bytes).sum();
    Cell {
        p50: rtts(times.len() / 2),
        p99: rtts(times.len() * 99 / 100),
        mean: times.iter().sum::<Duration>().as_secs_f64() / rtt.as_secs_f64() / times.len() as f64,
        wire: wire as f64 / payload as f64,
    }
}

#[test]
#[ignore = "prints figures: cargo test --release -p brisk-sim --test planner the_bar -- --ignored --nocapture"]
fn the_bar() {
    let rtt = Duration::from_millis(100);
    for (bytes, percent, loss) in
        [(30_000, 25, "2%"), (2_000, 100, "5%"), (30_000, 5, "2%"), (30_000, 25, "0%"), (2_000, 25, "5%")]
    {
        for established in [false, true] {
            let link = format!("--rtt 100ms --rate 20mbit --loss {loss}");
            let of = |tcp: &TcpConfig| cell(&play(&link, bytes, tcp, established, 400), rtt);
            let (without, with) = (of(&all(0)), of(&all(percent)));
            println!("{bytes} B, {loss}, {percent} %, established {established}: {without:?} {with:?}");
        }
    }
}

/// At no loss the planner adds nothing but the option of the handshake.
#[test]
fn without_loss_there_is_no_redundancy() {
    let rtt = Duration::from_millis(100);
    for bytes in [2_000, 30_000] {
        let of = |tcp: &TcpConfig| cell(&play("--rtt 100ms --rate 20mbit", bytes, tcp, false, 3), rtt);
        let (without, with) = (of(&all(0)), of(&all(25)));
        assert!(with.wire <= without.wire * 1.01, "{bytes} B: {with:?}, without {without:?}");
        assert!(with.p99 <= without.p99 * 1.01, "{bytes} B: {with:?}, without {without:?}");
    }
}

/// With loss it makes the mean and the tail better, within its allowance.
#[test]
fn redundancy_pays_within_its_allowance() {
    let rtt = Duration::from_millis(100);
    let of = |tcp: &TcpConfig| {
        cell(&play("--rtt 100ms --rate 20mbit --loss down:2%", 30_000, tcp, true, 150), rtt)
    };
    let (without, five, quarter) = (of(&all(0)), of(&all(5)), of(&all(25)));
    assert!(five.mean < without.mean && quarter.mean < five.mean, "{without:?} {five:?} {quarter:?}");
    assert!(quarter.mean < 1.2 && quarter.p99 < 2.5, "{quarter:?}");
    // Of what is sent, headers included; a retransmission less makes up for a part of it.
    assert!(five.wire <= without.wire * 1.06 && quarter.wire <= without.wire * 1.26, "{five:?} {quarter:?}");
}
