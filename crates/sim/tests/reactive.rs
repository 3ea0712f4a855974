//! What Reactive is for: a response whose last segments are lost. `cargo test -p brisk-sim --test reactive
//! -- --nocapture` prints the tables of docs/reactive.md.

use std::time::Duration;

use brisk_link::LinkSpec;
use brisk_sim::transaction::{TransactionResult, TransactionSpec, transaction};
use brisk_tcp::TcpConfig;
use brisk_tcp::config::{MechanismConfig, Reactive};

fn without_probes() -> TcpConfig {
    TcpConfig { mechanisms: MechanismConfig { reactive: Reactive::Off }, ..TcpConfig::default() }
}

/// The arms of the table: name and TCP of both ends.
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

/// A response of ten segments of which the last `k` are lost: round trips until it is complete.
fn tail_loss(k: u64, rtt: u64, tcp: &TcpConfig) -> (f64, TransactionResult) {
    // Down: 1 is the SYN-ACK, 2 to 11 the response.
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
                // If nothing of the response arrives, the client may probe for its request too.
                let probes = 1..=1 + u64::from(k == 10);
                assert!(result.timeouts == 0 && probes.contains(&result.probes), "k = {k}: {result:?}");
                assert!(rtts <= timeout.0, "k = {k}: {rtts}");
            }
        }
    }
}

#[test]
fn probes_prevent_timeouts_where_losses_come_in_bursts() {
    const N: u64 = 400;
    // Table 4 in shape: on the same seeds, at 40 ms, where a probe is well before the timeout.
    println!("5 kB and 20 kB over 40 ms, after:1%,50% on the way down, {N} transactions each");
    println!("| arm | bytes | timeouts | probes | retransmits | mean ms |");
    for bytes in [5_000, 20_000] {
        let totals = arms().map(|(name, tcp)| {
            let results: Vec<_> =
                (0..N).map(|seed| run("--rtt 40ms --loss down:after:1%,50%", bytes, &tcp, seed)).collect();
            let total = |of: fn(&TransactionResult) -> u64| results.iter().map(of).sum::<u64>();
            let (timeouts, probes) = (total(|r| r.timeouts - r.handshake_timeouts), total(|r| r.probes));
            let took: Duration = results.iter().map(|r| r.completion.unwrap()).sum();
            let mean = took.as_secs_f64() * 1e3 / results.len() as f64;
            println!(
                "| {name} | {bytes} | {timeouts} | {probes} | {} | {mean:.1} |",
                total(|r| r.retransmits)
            );
            (timeouts, mean)
        });
        let [of_2012, off, paper, rack_tlp] = totals;
        assert!(paper.0 * 2 < of_2012.0 && rack_tlp.0 * 2 < off.0, "timeouts: {totals:?}");
        assert!(paper.1 < of_2012.1 && rack_tlp.1 < off.1, "means: {totals:?}");
    }
}
