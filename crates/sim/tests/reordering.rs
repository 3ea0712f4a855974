//! Redundancy on paths that reorder packets without loss: no profile may be slower than plain TCP.

use brisk_link::LinkSpec;
use brisk_sim::application::Exchange;
use brisk_sim::fast_open::PriorKnowledge;
use brisk_sim::transaction::{TransactionSpec, transaction};
use brisk_tcp::TcpConfig;
use brisk_tcp::config::{
    CongestionAlgorithm, CopyScope, CorrectiveConfig, FecCode, PlannerConfig, ProactiveConfig,
};

/// Share of packets that are late, and their delay.
const LATE: [&str; 2] = ["2%,5ms", "3%,10ms"];
/// Connections of a cell. Each carries twenty responses before the measured one.
const CONNECTIONS: u64 = 24;
/// Maximum slowdown of a profile in the mean, percent.
const SLOWER: f64 = 3.0;

/// Returns the mean time of a response of 30 kB on a persistent connection, milliseconds.
fn mean_ms(late: &str, tcp: &TcpConfig) -> f64 {
    let link = LinkSpec::parse(&format!("--rtt 50ms --rate 1gbit --queue 1000p --reorder {late}")).unwrap();
    let prior_knowledge = PriorKnowledge::after(&link, 77, tcp, &[Exchange::of(30_000); 20]).unwrap();
    let spec = TransactionSpec {
        established: true,
        earlier: 20,
        client: tcp.clone(),
        server: tcp.clone(),
        known: Some(&prior_knowledge),
        ..TransactionSpec::new(&link, 30_000)
    };
    let times =
        (0..CONNECTIONS).map(|seed| transaction(&spec, seed).unwrap().completion.unwrap().as_secs_f64());
    times.sum::<f64>() * 1e3 / CONNECTIONS as f64
}

#[test]
fn reordering_slows_no_profile_by_more_than_three_percent() {
    let parity = |code| {
        let parities = if code == FecCode::ReedSolomon { 3 } else { 1 };
        Some(CorrectiveConfig { code, parities, delay_divisor: 16, ..CorrectiveConfig::default() })
    };
    let copies = |scope| Some(ProactiveConfig { scope, ..ProactiveConfig::default() });
    let with = |adjust: &dyn Fn(&mut TcpConfig)| {
        let mut tcp = TcpConfig::default();
        adjust(&mut tcp);
        tcp
    };
    let profiles = [
        (
            "parity after a sixteenth of a round trip",
            with(&|tcp| tcp.mechanisms.corrective = parity(FecCode::Xor)),
        ),
        ("three parities", with(&|tcp| tcp.mechanisms.corrective = parity(FecCode::ReedSolomon))),
        ("copies of short flights", with(&|tcp| tcp.mechanisms.proactive = copies(CopyScope::Short))),
        ("copies of everything", with(&|tcp| tcp.mechanisms.proactive = copies(CopyScope::All))),
        ("planner", TcpConfig::planned(PlannerConfig::default().max_overhead)),
        (
            "a pair as installed",
            TcpConfig {
                initial_window: 32,
                path_start: true,
                congestion: CongestionAlgorithm::Bbr,
                ..TcpConfig::planned(PlannerConfig::default().max_overhead)
            },
        ),
    ];
    let slower: Vec<String> = std::thread::scope(|scope| {
        let cells: Vec<_> = LATE
            .iter()
            .map(|late| {
                let profiles = &profiles;
                scope.spawn(move || {
                    let plain = mean_ms(late, &TcpConfig::default());
                    profiles
                        .iter()
                        .filter_map(move |(name, tcp)| {
                            let change = mean_ms(late, tcp) * 100.0 / plain - 100.0;
                            println!("{late}, {name}: {change:+.1} % of {plain:.1} ms");
                            (change > SLOWER).then(|| format!("{late}, {name}: {change:+.1} %"))
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        cells.into_iter().flat_map(|cell| cell.join().unwrap()).collect()
    });
    assert!(slower.is_empty(), "slower than plain TCP: {slower:#?}");
}
