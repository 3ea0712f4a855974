//! More than one parity per group (encoding type 3) on connections in virtual time. `cargo test -p brisk-sim
//! --test reed_solomon -- --nocapture` prints the table of docs/measured/corrective.md.

use brisk_link::LinkSpec;
use brisk_sim::{TransactionResult, TransactionSpec, transaction};
use brisk_tcp::config::{CorrectiveConfig, FecCode, TcpConfig};

const RTT: f64 = 0.1;
/// Responses per variant; the 99th percentile is the fifth longest.
const RUNS: u64 = 400;

/// Returns plain TCP with a first flight that holds the whole response.
fn plain() -> TcpConfig {
    TcpConfig { initial_window: 32, ..TcpConfig::default() }
}

/// Returns the TCP of [`plain`] with Reed-Solomon parities for up to 32 blocks.
fn reed_solomon(parities: u8) -> TcpConfig {
    let mut tcp = plain();
    let code = FecCode::ReedSolomon;
    let corrective = CorrectiveConfig { code, blocks: 32, parities, ..CorrectiveConfig::default() };
    tcp.mechanisms.corrective = Some(corrective);
    tcp
}

/// Simulates a response of 30 kB on an open connection.
fn response(tcp: &TcpConfig, loss: &str, seed: u64) -> TransactionResult {
    let link = LinkSpec::parse(&format!("--rtt 100ms --rate 20mbit --loss {loss}")).expect("a link");
    let spec = TransactionSpec {
        established: true,
        client: tcp.clone(),
        server: tcp.clone(),
        ..TransactionSpec::new(&link, 30_000)
    };
    transaction(&spec, seed).expect("it runs")
}

/// Percentiles of the completion in round trips, and bytes on the wire per byte of payload.
#[derive(Debug)]
struct Summary {
    p50: f64,
    p90: f64,
    p99: f64,
    wire: f64,
}

fn summary(results: &[TransactionResult]) -> Summary {
    let rtts =
        |result: &TransactionResult| result.completion.map_or(f64::INFINITY, |time| time.as_secs_f64() / RTT);
    let mut times: Vec<f64> = results.iter().map(rtts).collect();
    times.sort_by(f64::total_cmp);
    let at = |percent: usize| times[times.len() * percent / 100];
    let wire: u64 = results.iter().map(|result| result.wire_bytes_down + result.wire_bytes_up).sum();
    let payload: u64 = results.iter().map(|result| result.payload_bytes).sum();
    Summary { p50: at(50), p90: at(90), p99: at(99), wire: wire as f64 / payload as f64 }
}

fn print(name: &str, summary: &Summary) {
    let Summary { p50, p90, p99, wire } = summary;
    println!("| {name} | {p50:.2} | {p90:.2} | {p99:.2} | {wire:.3} |");
}

#[test]
fn three_losses_in_one_flight_are_repaired_without_a_retransmission() {
    // Packets down: 1 is the SYN-ACK, 2 to 22 the response.
    let result = response(&reed_solomon(3), "down:list:3,8,22", 1);
    assert_eq!(
        (result.dropped, result.retransmits, result.probes, result.timeouts),
        (3, 0, 0, 0),
        "{result:?}"
    );
    assert!(result.repaired_by_parity > 0, "{result:?}");
    let completion = result.completion.expect("it completes").as_secs_f64() / RTT;
    assert!(completion < 1.45, "{completion}");
    // With one parity less, one segment is retransmitted; then the stored parities repair the others.
    let result = response(&reed_solomon(2), "down:list:3,8,22", 1);
    assert_eq!((result.retransmits, result.repaired_by_parity), (1, 2), "{result:?}");
}

#[test]
fn a_response_of_one_flight_completes_in_time_in_99_of_100_cases() {
    let run = |tcp: TcpConfig| -> Vec<TransactionResult> {
        (0..RUNS).map(|seed| response(&tcp, "2%", seed)).collect()
    };
    let all = run(reed_solomon(3));
    let agreed: Vec<TransactionResult> =
        all.iter().filter(|result| result.handshake_timeouts == 0).copied().collect();
    let (agreed, all, plain) = (summary(&agreed), summary(&all), summary(&run(plain())));
    println!("| connections | p50 | p90 | p99 | bytes on the wire per byte |");
    print("that agreed on parity", &agreed);
    print("all", &all);
    print("plain TCP, all", &plain);
    assert!(agreed.p99 <= 1.45 && agreed.wire <= 1.25, "{agreed:?}");
    assert!(all.p90 < plain.p90, "{all:?} {plain:?}");
}
