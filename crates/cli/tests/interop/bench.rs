//! `brisk bench`: two ends in their own namespaces, the kernel's TCP and ours in turns.

use std::process::Command;

use serde_json::Value;

#[test]
fn the_kernel_and_brisk_do_the_same_work_in_turns() {
    require!("ip");
    measure(&["receive", "rr1-tfo", "udp"]);
}

/// Short, because this tests the bench and not the speed.
fn measure(names: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_brisk"));
    command.args(["bench", "-q", "--rounds", "2", "--seconds", "0.2", "--json", "--rows", &names.join(",")]);
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.iter().filter_map(|row| row["name"].as_str()).eq(names.iter().copied()), "{report}");
    for row in rows {
        for way in ["baseline", "candidate"] {
            let cost = &row[way]["median"];
            assert!(cost["per_second"].as_f64().unwrap() > 0.0, "{row}");
            assert!(cost["both"].as_f64() > cost["server"].as_f64(), "both ends cost something: {row}");
            assert_eq!(cost["failed"], 0, "{row}");
        }
        let number = |pointer| row.pointer(pointer).and_then(Value::as_f64);
        let (least, most) = (number("/cpu/min").unwrap(), number("/cpu/max").unwrap());
        assert!(0.0 < least && least <= most && most.is_finite(), "{row}");
        // The limit is the ratio without the time of brisk's own code, so it is not worse than the best
        // measured ratio.
        assert_eq!(number("/limit").is_some(), row["name"] != "udp", "{row}");
        assert!(number("/limit").is_none_or(|limit| limit >= least), "{row}");
    }
}

#[test]
fn unknown_row_is_refused_with_the_known_ones() {
    let out = Command::new(env!("CARGO_BIN_EXE_brisk")).args(["bench", "--rows", "rr2"]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && said.contains("rr2") && said.contains("rr64-tfo"), "{said}");
}
