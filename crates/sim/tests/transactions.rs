//! Short transfers: completion times equal theory, and losses cost the expected time.

use std::time::Duration;

use brisk_link::LinkSpec;
use brisk_sim::transaction::{TransactionResult, TransactionSpec, transaction};
use brisk_tcp::TcpConfig;
use brisk_tcp::config::CongestionAlgorithm;

fn run(link: &str, response: u64, established: bool, seed: u64) -> TransactionResult {
    let link = LinkSpec::parse(link).unwrap();
    let spec = TransactionSpec { established, ..TransactionSpec::new(&link, response) };
    transaction(&spec, seed).unwrap()
}

fn ms(ms: u64) -> Option<Duration> {
    Some(Duration::from_millis(ms))
}

#[test]
fn a_fresh_connection_takes_a_round_trip_to_open_and_one_to_answer() {
    let result = run("--rtt 200ms", 5_000, false, 1);
    assert_eq!((result.completion, result.first_byte), (ms(400), ms(400)));
    assert_eq!((result.retransmits, result.timeouts, result.dropped), (0, 0, 0));
}

#[test]
fn an_established_connection_takes_one_round_trip() {
    assert_eq!(run("--rtt 200ms", 5_000, true, 1).completion, ms(200));
}

#[test]
fn initial_window_limits_the_data_of_one_round_trip() {
    assert_eq!(run("--rtt 100ms", 14_000, false, 1).completion, ms(200));
    assert_eq!(run("--rtt 100ms", 15_000, false, 1).completion, ms(300));
    assert_eq!(run("--rtt 100ms", 40_000, false, 1).completion, ms(300));
}

#[test]
fn connection_keeps_the_window_of_earlier_transactions() {
    let link = LinkSpec::parse("--rtt 100ms").unwrap();
    let after = |earlier| {
        let spec = TransactionSpec { established: true, earlier, ..TransactionSpec::new(&link, 40_000) };
        transaction(&spec, 1).unwrap()
    };
    assert_eq!((after(0).completion, after(1).completion), (ms(200), ms(100)));
    // The bytes are those of the last transaction, and of headers that acknowledge the previous transaction.
    let [first, second] = [after(0), after(1)].map(|result| result.wire_bytes_down);
    assert!(first.abs_diff(second) < 500, "{first} {second}");
}

/// The volume of a flight limits its measured delivery rate to that volume per round trip. Pacing at this
/// rate would spread each response over a third of a round trip.
#[test]
fn a_kept_connection_answers_as_fast_with_bbr_as_with_cubic() {
    let after = |link: &str, response, congestion| {
        let link = LinkSpec::parse(link).unwrap();
        let server = TcpConfig { congestion, ..TcpConfig::default() };
        let spec = TransactionSpec {
            established: true,
            earlier: 8,
            server,
            ..TransactionSpec::new(&link, response)
        };
        transaction(&spec, 1).unwrap().completion.unwrap()
    };
    for link in ["--rtt 100ms --rate 20mbit", "--rtt 50ms --rate 1gbit"] {
        for response in [10_000, 30_000, 100_000] {
            let [cubic, bbr] =
                [CongestionAlgorithm::Cubic, CongestionAlgorithm::Bbr].map(|it| after(link, response, it));
            assert!(bbr <= cubic + cubic / 50, "{link}, {response} bytes: {bbr:?} against {cubic:?}");
        }
    }
}

#[test]
fn the_rate_adds_the_serialisation_time() {
    // 5000 bytes of payload in 4 segments with 52 bytes of headers are 5208 bytes at 1 Mbit/s. The SYN (60),
    // the SYN-ACK (60) and the request (152) precede them.
    let result = run("--rtt 200ms --rate 1mbit", 5_000, false, 1);
    let serialised = Duration::from_micros((5_208 + 60 + 60 + 152) * 8);
    let took = result.completion.unwrap() - Duration::from_millis(400);
    assert!(took.abs_diff(serialised) < Duration::from_micros(500), "{took:?} {serialised:?}");
}

#[test]
fn wire_bytes_are_payload_and_headers_and_acknowledgements() {
    let result = run("--rtt 100ms", 30_000, false, 1);
    assert_eq!(result.payload_bytes, 30_100);
    let ratio = (result.wire_bytes_up + result.wire_bytes_down) as f64 / result.payload_bytes as f64;
    assert!((1.05..1.15).contains(&ratio), "{ratio}");
    // 21 segments, SYN-ACK, at most the ACK of the request, ACK of FIN and FIN.
    assert!((30_000 + 21 * 52 + 60..30_000 + 25 * 52 + 60).contains(&result.wire_bytes_down), "{result:?}");
}

#[test]
fn a_lost_syn_costs_the_initial_timeout() {
    let result = run("--rtt 100ms --loss up:list:1", 5_000, false, 1);
    assert_eq!(result.completion, ms(1200));
    assert_eq!((result.dropped, result.timeouts), (1, 1));
}

#[test]
fn hole_in_the_middle_takes_one_round_trip_and_a_lost_tail_more() {
    // Packets down: 1 is the SYN-ACK; the response of ten segments begins at 2 or 3 and ends at 12.
    let middle = run("--rtt 100ms --loss down:list:5", 14_000, false, 1);
    let completion = middle.completion.unwrap();
    assert!(completion <= Duration::from_millis(330), "{completion:?}");
    assert_eq!((middle.retransmits, middle.timeouts), (1, 0));
}

#[test]
fn a_path_that_loses_everything_never_completes() {
    let result = run("--rtt 100ms --loss 100%", 5_000, false, 1);
    assert_eq!((result.completion, result.first_byte), (None, None));
    assert!(result.dropped >= 7, "the SYN and its retries: {result:?}");
}

#[test]
fn large_responses_are_intact_after_loss_and_reordering() {
    for seed in 0..20 {
        let link = "--rtt 40ms --rate 20mbit --loss 5% --reorder 2%,5ms --duplicate 1% --jitter 2ms";
        let result = run(link, 200_000, false, seed);
        assert!(result.completion.is_some(), "seed {seed}: {result:?}");
    }
}

#[test]
fn payload_rewritten_by_a_middlebox_fails_the_transaction_only() {
    let result = run("--rtt 40ms --middlebox down:rewrite-payload", 5_000, false, 1);
    assert_eq!((result.completion, result.payload_bytes), (None, 0));
}
