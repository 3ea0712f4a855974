//! Reactive on a response whose last segments are lost. `cargo test -p brisk-sim --test reactive --
//! --nocapture` prints the tables of docs/reactive.md.

use std::time::Duration;

use brisk_link::LinkSpec;
use brisk_sim::transaction::{TransactionResult, TransactionSpec, transaction};
use brisk_tcp::TcpConfig;
use brisk_tcp::config::{MechanismConfig, Reactive};

fn without_probes() -> TcpConfig {
    TcpConfig {
        mechanisms: MechanismConfig { reactive: Reactive::Off, ..MechanismConfig::default() },
        ..TcpConfig::default()
    }
}

/// Variants of the table: name and TCP of both ends.
fn arms() -> [(&'static str, TcpConfig); 4] {
    [
        ("tcp2012", TcpConfig::of_2012()),
        ("off", without_probes()),
        ("paper", TcpConfig::of_2012_with_reactive()),
        ("rack_tlp", TcpConfig::default()),
    ]
}

fn run(link: &str, response: u64, tcp: &TcpConfig, seed: u64) -> TransactionResult {
    let link = LinkSpec::parse(link).unwrap();
    let spec = TransactionSpec {
        established: true,
        client: tcp.clone(),
        server: tcp.clone(),
        ..TransactionSpec::new(&link, response)
    };
    transaction(&spec, seed).unwrap()
}

/// Returns the round trips of a response of ten segments of which the last `k` are lost.
fn tail_loss(k: u64, rtt: u64, tcp: &TcpConfig) -> (f64, TransactionResult) {
    // Packets down: 1 is the SYN-ACK, 2 to 11 the response.
    let lost = if k == 0 { "13".to_owned() } else { format!("{}-11", 12 - k) };
    let result = run(&format!("--rtt {rtt}ms --loss down:list:{lost}"), 14_000, tcp, 1);
    assert_eq!(result.dropped, k, "{result:?}");
    let completion = result.completion.unwrap();
    (completion.as_secs_f64() * 1e3 / rtt as f64, result)
}

#[test]
fn a_lost_tail_of_any_length_ends_in_a_fast_recovery() {
    let arms = arms();
    for rtt in [40, 100] {
        println!("completion in round trips of {rtt} ms, last k of 10 segments lost");
        println!("| k | {} |", arms.each_ref().map(|(name, _)| *name).join(" | "));
        for k in 0..=10 {
            let row = arms.each_ref().map(|(_, tcp)| tail_loss(k, rtt, tcp));
            println!("| {k} | {} |", row.map(|(rtts, _)| format!("{rtts:.2}")).join(" | "));
            let [timeout_2012, timeout, paper, rack_tlp] = row;
            if k == 0 {
                assert!(row.iter().all(|(rtts, result)| *rtts < 1.01 && result.probes == 0), "{row:?}");
                continue;
            }
            for (rtts, result) in [timeout_2012, timeout] {
                assert!(result.timeouts >= 1 && rtts > 3.0, "k = {k}: {result:?}");
            }
            for (rtts, result) in [paper, rack_tlp] {
                // If no segment of the response arrives, the client may also send a probe for its request.
                let probes = 1..=1 + u64::from(k == 10);
                assert!(result.timeouts == 0 && probes.contains(&result.probes), "k = {k}: {result:?}");
                assert!(rtts <= timeout.0, "k = {k}: {rtts}");
            }
        }
    }
}

#[test]
fn probes_prevent_timeouts_where_losses_come_in_bursts() {
    // The pattern of Table 4 with the same seeds, at 40 ms, where a probe comes long before the timeout.
    let n = std::env::var("BRISK_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(400u64);
    println!("{n} transactions each over 40 ms, after:1%,50% in the direction down");
    println!(
        "| bytes | arm | timeouts | recoveries | probes | of segments | masked | undone | sent again | mean ms | p99 ms |"
    );
    for bytes in [5_000, 20_000] {
        let totals = arms().map(|(name, tcp)| {
            let results: Vec<_> =
                (0..n).map(|seed| run("--rtt 40ms --loss down:after:1%,50%", bytes, &tcp, seed)).collect();
            let total = |of: fn(&TransactionResult) -> u64| results.iter().map(of).sum::<u64>();
            let (timeouts, probes) = (total(|r| r.timeouts - r.handshake_timeouts), total(|r| r.probes));
            let mut took: Vec<Duration> = results.iter().map(|r| r.completion.unwrap()).collect();
            took.sort_unstable();
            let mean = took.iter().sum::<Duration>().as_secs_f64() * 1e3 / n as f64;
            let (recoveries, masked) = (total(|r| r.recoveries), total(|r| r.masked_losses));
            let (undone, again) = (total(|r| r.undos), total(|r| r.retransmits - r.handshake_timeouts));
            let share = probes as f64 * 100.0 / total(|r| r.segments) as f64;
            let p99 = took[took.len() * 99 / 100].as_secs_f64() * 1e3;
            println!(
                "| {bytes} | {name} | {timeouts} | {recoveries} | {probes} | {share:.2} % | {masked} | {undone} | {again} | {mean:.1} | {p99:.0} |"
            );
            assert!(share < 1.0, "{name}: {share} %");
            (timeouts, mean)
        });
        let [of_2012, off, paper, rack_tlp] = totals;
        assert!(paper.0 * 2 < of_2012.0 && rack_tlp.0 * 2 < off.0, "timeouts: {totals:?}");
        assert!(paper.1 < of_2012.1 && rack_tlp.1 < off.1, "means: {totals:?}");
    }
}
