//! The pattern of Tables 3 and 4 of "Gentle Aggression": web-sized responses over paths with burst loss and
//! jitter, the TCP of 2012 with and without the paper's Reactive. `BRISK_SEEDS=20000 cargo test --release -p
//! brisk-sim --test mixed_traffic -- --nocapture` prints the tables of docs/reactive.md.

use std::time::Duration;

use brisk_link::LinkSpec;
use brisk_sim::transaction::{TransactionResult, TransactionSpec, transaction};
use brisk_tcp::TcpConfig;

/// A service, given by quantiles of its response sizes in bytes, in ascending order. Sizes are evenly
/// distributed between two quantiles.
struct Mix {
    name: &'static str,
    bytes: [u64; 7],
}

/// Shares, in percent, of the responses that are at most as large as the entries of [`Mix::bytes`].
const SHARES: [u64; 7] = [0, 10, 25, 50, 75, 90, 100];

/// The paper names its services but not their sizes. Search is one small page. Images have the median (8 KB)
/// and the 90th percentile (183 KB) of the HTTP Archive's images in July 2025. Maps are tiles.
const MIXES: [Mix; 3] = [
    Mix { name: "search", bytes: [600, 1_500, 4_000, 9_000, 18_000, 32_000, 60_000] },
    Mix { name: "images", bytes: [200, 900, 2_500, 8_000, 40_000, 183_000, 400_000] },
    Mix { name: "maps", bytes: [800, 3_000, 7_000, 13_000, 21_000, 34_000, 90_000] },
];

/// Paths to the users, with the jitter of an access network. On the median path the timeout is at least 240
/// ms, which is six round trips, as in the paper (section 2).
const PATHS: [&str; 5] = [
    "--rtt 20ms",
    "--rtt 30ms",
    "--rtt 40ms --jitter 5ms",
    "--rtt 50ms --jitter 10ms",
    "--rtt 60ms --jitter 20ms",
];

/// Two kinds of losses: bursts at the end of a flight, as from a full queue, and single losses of data and of
/// acknowledgements.
const LOSS: &str = "--loss down:after:1%,50% --loss up:0.3%";

/// Returns a value below `whole` for each transaction, without a random generator: multiples of the golden
/// ratio, which are evenly distributed.
fn spread(index: u64, whole: u64) -> u64 {
    ((u128::from(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)) * u128::from(whole)) >> 64) as u64
}

impl Mix {
    fn bytes(&self, index: u64) -> u64 {
        let share = spread(index, 100_000);
        let above = SHARES.iter().position(|&limit| share < limit * 1000).unwrap_or(SHARES.len() - 1);
        let (from, to) = (SHARES[above - 1] * 1000, SHARES[above] * 1000);
        let (min, max) = (self.bytes[above - 1], self.bytes[above]);
        min + (max - min) * (share - from) / (to - from)
    }
}

/// Sums over all transactions of a variant.
struct Sum {
    took: Vec<Duration>,
    timeouts: u64,
    recoveries: u64,
    retransmits: u64,
    undos: u64,
    probes: u64,
    segments: u64,
}

impl Sum {
    fn of(results: &[TransactionResult]) -> Sum {
        let total = |of: fn(&TransactionResult) -> u64| results.iter().map(of).sum::<u64>();
        let mut took: Vec<Duration> = results.iter().map(|result| result.completion.unwrap()).collect();
        took.sort_unstable();
        Sum {
            took,
            timeouts: total(|result| result.timeouts - result.handshake_timeouts),
            recoveries: total(|result| result.recoveries),
            retransmits: total(|result| result.retransmits - result.handshake_timeouts),
            undos: total(|result| result.undos),
            probes: total(|result| result.probes),
            segments: total(|result| result.segments),
        }
    }

    fn millis(&self, share: f64) -> f64 {
        let rank = (share * self.took.len() as f64).ceil() as usize;
        self.took[rank.max(1) - 1].as_secs_f64() * 1e3
    }

    fn mean(&self) -> f64 {
        self.took.iter().sum::<Duration>().as_secs_f64() * 1e3 / self.took.len() as f64
    }
}

/// Runs one transaction on an open connection, like most transactions of the paper.
fn run(mix: &Mix, tcp: &TcpConfig, index: u64) -> TransactionResult {
    let path = PATHS[spread(index.wrapping_mul(3) + 1, PATHS.len() as u64) as usize];
    let link = LinkSpec::parse(&format!("{path} {LOSS}")).unwrap();
    let spec = TransactionSpec {
        established: true,
        client: tcp.clone(),
        server: tcp.clone(),
        ..TransactionSpec::new(&link, mix.bytes(index))
    };
    transaction(&spec, index).unwrap()
}

fn change(before: f64, after: f64) -> String {
    if before == 0.0 { "-".to_owned() } else { format!("{:+.1} %", 100.0 * (after / before - 1.0)) }
}

#[test]
fn reactive_turns_timeouts_into_recoveries_in_mixed_traffic() {
    let n = std::env::var("BRISK_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(600u64);
    println!("{n} transactions each, {LOSS}, tcp2012 -> reactive");
    println!(
        "| | mean ms | p25 | p50 | p90 | p95 | p99 | timeouts | recoveries | sent again | undone | probes |"
    );
    for mix in &MIXES {
        let arms = [TcpConfig::of_2012(), TcpConfig::of_2012_with_reactive()];
        let [before, after] =
            arms.map(|tcp| Sum::of(&(0..n).map(|index| run(mix, &tcp, index)).collect::<Vec<_>>()));
        for (name, sum) in [("tcp2012", &before), ("reactive", &after)] {
            let quantiles = [0.25, 0.5, 0.9, 0.95, 0.99].map(|share| format!("{:.0}", sum.millis(share)));
            let Sum { timeouts, recoveries, retransmits, undos, .. } = sum;
            let share = 100.0 * sum.probes as f64 / sum.segments as f64;
            println!(
                "| {} {name} | {:.1} | {} | {timeouts} | {recoveries} | {retransmits} | {undos} | {share:.2} % |",
                mix.name,
                sum.mean(),
                quantiles.join(" | "),
            );
            assert!(share < 1.0, "{}: probes are {share} % of the segments", mix.name);
        }
        let of = |value: fn(&Sum) -> u64| change(value(&before) as f64, value(&after) as f64);
        let quantiles =
            [0.25, 0.5, 0.9, 0.95, 0.99].map(|share| change(before.millis(share), after.millis(share)));
        println!(
            "| {} change | {} | {} | {} | {} | {} | {} | |",
            mix.name,
            change(before.mean(), after.mean()),
            quantiles.join(" | "),
            of(|sum| sum.timeouts),
            of(|sum| sum.recoveries),
            of(|sum| sum.retransmits),
            of(|sum| sum.undos),
        );
        assert!(after.timeouts < before.timeouts, "{}", mix.name);
        assert!(after.recoveries > before.recoveries, "{}", mix.name);
        assert!(after.mean() < before.mean(), "{}", mix.name);
    }
}
