//! `brisk lab`: what it prints, keeps and refuses.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

const PLAN: &str = r#"
title = "A plan of this test"
source = "nowhere"
about = "Small."
n = 40
quick_n = 10
[[cell]]
name = "lossy"
link = "--rtt 100ms --loss 3%"
flow = "5kB"
arms = ["tcp", "tcp+tfo"]
[[cell.expect]]
arm = "tcp+tfo"
metric = "gain.p50"
paper = -50
range = [-51, -49]
[[cell]]
name = "page"
link = "--rtt 50ms --rate 4mbit/256kbit"
page = { label = "small", objects = 8, hosts = 2, bytes = 60000 }
arms = ["tcp", "tcp+tfo"]
"#;

/// A directory of this test with the plan in it.
fn place(name: &str) -> PathBuf {
    let place = std::env::temp_dir().join(format!("brisk-lab-cli-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&place);
    std::fs::create_dir_all(&place).unwrap();
    std::fs::write(place.join("small.toml"), PLAN).unwrap();
    place
}

fn lab(place: &PathBuf, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_brisk")).current_dir(place).arg("lab").args(words).output().unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn shards_give_the_same_report_as_the_whole_run() {
    let place = place("shards");
    let whole = stdout(&lab(&place, &["run", "small.toml", "--out", "whole", "--json"]));
    stdout(&lab(&place, &["run", "small.toml", "--shard", "1/2", "--out", "one"]));
    stdout(&lab(&place, &["run", "small.toml", "--shard", "2/2", "--out", "two"]));
    stdout(&lab(&place, &["merge", "one", "two", "--out", "merged"]));
    assert_eq!(stdout(&lab(&place, &["run", "small.toml", "--out", "merged", "--json"])), whole);
    let cells: Vec<Value> = whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((cells.len(), &cells[0]["cell"], &cells[1]["cell"]), (2, &"lossy".into(), &"page".into()));
    for key in ["link", "workload", "seed", "arms"] {
        assert!(!cells[0][key].is_null(), "{key} is as in whatif --json");
    }
    assert_eq!(
        (&cells[0]["expected"][0]["brisk"], &cells[0]["expected"][0]["verdict"]),
        (&(-50.0).into(), &"within".into())
    );
    std::fs::remove_dir_all(place).unwrap();
}

#[test]
fn the_report_is_one_file_that_refers_to_nothing_outside() {
    let place = place("report");
    stdout(&lab(&place, &["run", "small.toml", "--quick"]));
    let said = stdout(&lab(&place, &["report"]));
    assert!(said.contains("brisk-report.html: 1 plans, 0 figures outside"), "{said}");
    let html = std::fs::read_to_string(place.join("brisk-report.html")).unwrap();
    assert!(html.contains("A plan of this test") && html.contains("<svg") && html.contains("gain.p50"));
    assert!(!html.contains("http://") && !html.contains("https://") && !html.contains("src="));
    assert!(
        std::fs::read_to_string(place.join("figures.csv"))
            .unwrap()
            .contains("small,lossy,tcp+tfo,gain.p50,%,-50,")
    );
    assert!(
        serde_json::from_slice::<Value>(&std::fs::read(place.join("figures.json")).unwrap())
            .unwrap()
            .is_array()
    );
    std::fs::remove_dir_all(place).unwrap();
}

#[test]
fn what_cannot_be_meant_is_one_line() {
    let place = place("refused");
    std::fs::write(place.join("bad.toml"), "title = \"x\"\ntitel = 1\n").unwrap();
    std::fs::write(place.join("pages.jsonl"), "{\"label\":\"x\"}\n").unwrap();
    for (words, status, expected) in [
        (&["run", "nonsense"][..], 2, "no plan 'nonsense': `brisk lab list` shows them"),
        (&["run", "bad.toml"], 2, "bad, line 2: unknown field `titel`"),
        (&["run", "missing.toml"], 1, "missing.toml: No such file"),
        (&["run", "small.toml", "--shard", "3/2"], 2, "'3/2' is no shard"),
        (
            &["run", "small.toml", "--pages", "pages.jsonl"],
            2,
            "--pages pages.jsonl: line 1: missing field `res`",
        ),
        (&["report", "."], 1, "no results; `brisk lab run --all --out .`"),
        (&["merge", "nowhere"], 1, "nowhere: No such file"),
    ] {
        let output = lab(&place, words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(expected), "{words:?}: {said}");
        assert_eq!(output.status.code(), Some(status), "{words:?}: {said}");
    }
    std::fs::remove_dir_all(place).unwrap();
}

#[test]
fn every_plan_is_listed_on_a_line_with_its_title() {
    let place = place("list");
    let listed = stdout(&lab(&place, &["list"]));
    for name in
        ["tfo-fig1", "tfo-table1", "ga-table3", "ga-table5a", "ga-fig10", "ga-table6", "negative-controls"]
    {
        assert!(listed.lines().any(|line| line.split_whitespace().next() == Some(name)), "{name}: {listed}");
    }
    std::fs::remove_dir_all(place).unwrap();
}
