//! `docs/wire/receiver.py`, a receiver that was written from `docs/wire` alone, reads captures of the
//! simulator and repairs the lost segments. Skipped, with a reason, without python3.

use std::path::Path;
use std::process::Command;

use brisk_link::LinkSpec;
use brisk_sim::TransactionSpec;
use brisk_sim::transaction::{Records, transaction_recorded};
use brisk_tcp::config::{CorrectiveConfig, FecCode, TcpConfig};

const RESPONSE: u64 = 30_000;

struct Case {
    name: &'static str,
    code: FecCode,
    blocks: u32,
    parities: u8,
    loss: &'static str,
    /// Number of byte ranges that the receiver must repair.
    repairs: usize,
}

fn case(name: &'static str, code: FecCode, parities: u8, loss: &'static str, repairs: usize) -> Case {
    let blocks = if code == FecCode::ReedSolomon { 32 } else { 16 };
    Case { name, code, blocks, parities, loss, repairs }
}

/// Simulates the case and returns the receiver's output for its capture.
fn received(case: &Case, seed: u64) -> String {
    let mut tcp = TcpConfig { initial_window: 32, ..TcpConfig::default() };
    let corrective = CorrectiveConfig {
        code: case.code,
        blocks: case.blocks,
        parities: case.parities,
        ..CorrectiveConfig::default()
    };
    tcp.mechanisms.corrective = Some(corrective);
    let link = LinkSpec::parse(&format!("--rtt 100ms --loss {}", case.loss)).expect("a link");
    let spec = TransactionSpec {
        established: true,
        client: tcp.clone(),
        server: tcp,
        ..TransactionSpec::new(&link, RESPONSE)
    };
    let path =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("wire-receiver-{}-{seed}.pcapng", case.name));
    let capture = Box::new(std::fs::File::create(&path).expect("a file"));
    transaction_recorded(&spec, seed, Records { capture: Some(capture), trace: None }).expect("it runs");
    let receiver = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/wire/receiver.py");
    let output = Command::new("python3").arg(receiver).arg(&path).output().expect("python3 starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}, seed {seed}: {out}{err}", case.name);
    out.into_owned()
}

/// True, with a printed reason, if this machine cannot run the receiver.
fn python_is_missing() -> bool {
    let missing = Command::new("python3").arg("--version").output().is_err();
    if missing {
        println!("skipped: python3 is not installed");
    }
    missing
}

#[test]
fn the_receiver_of_the_document_repairs_our_captures() {
    if python_is_missing() {
        return;
    }
    let cases = [
        case("none", FecCode::Xor, 1, "down:list:1000", 0),
        case("xor", FecCode::Xor, 1, "down:list:4", 1),
        case("interleaved", FecCode::XorInterleaved, 1, "down:list:4,7", 2),
        case("rs", FecCode::ReedSolomon, 3, "down:list:3,8,22", 3),
        case("both-ways", FecCode::Xor, 1, "up:list:3 --loss down:list:4", 2),
        case("rs-one", FecCode::ReedSolomon, 1, "down:list:9", 1),
    ];
    for case in &cases {
        let printed = received(case, 1);
        let repairs = printed.matches("  repaired [").count();
        assert_eq!(repairs, case.repairs, "{}: {printed}", case.name);
        let all = format!(": {RESPONSE} bytes, ");
        assert!(printed.lines().any(|line| line.contains(&all) && line.ends_with("as sent")), "{printed}");
    }
}

/// With random losses, unrepaired segments are retransmitted, and the stream is correct.
#[test]
fn the_receiver_of_the_document_reads_captures_with_random_losses() {
    if python_is_missing() {
        return;
    }
    let mut repairs = 0;
    for seed in 1..=12 {
        let code = [FecCode::Xor, FecCode::XorInterleaved, FecCode::ReedSolomon][seed as usize % 3];
        let parities = if code == FecCode::ReedSolomon { 3 } else { 1 };
        let printed = received(&case("random", code, parities, "down:8%", 0), seed);
        assert!(!printed.contains("NOT AS SENT"), "seed {seed}: {printed}");
        repairs += printed.matches("  repaired [").count();
    }
    assert!(repairs > 10, "{repairs}");
}
