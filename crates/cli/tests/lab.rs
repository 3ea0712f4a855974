//! `brisk lab`: its output, its stored results and its errors.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

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

/// Returns a directory for a test with the plan in it.
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
fn report_is_one_self_contained_file() {
    let place = place("report");
    stdout(&lab(&place, &["run", "small.toml", "--quick"]));
    let said = stdout(&lab(&place, &["report", "--markdown", "r.md", "--machine", "two cores"]));
    let overview = std::fs::read_to_string(place.join("r.md")).unwrap();
    assert!(overview.contains("on two cores") && overview.contains("| [small](r/small.md) |"), "{overview}");
    let page = std::fs::read_to_string(place.join("r/small.md")).unwrap();
    assert!(page.contains("| lossy | tcp+tfo | `gain.p50` | -50.0 |"), "{page}");
    assert!(said.contains("brisk-report.html: plans: 1, figures outside their range: 0"), "{said}");
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

/// Output of `lab run --real` for a kernel that answered and a contestant that did not.
const REAL: &str = r#"{"name":"small, lossy","link":{"spec":"--rtt 100ms --loss 3%","base_rtt_ms":100.0},"seed":1,"bytes":5000,
"parallel":4,"contestants":[
{"name":"kernel cubic","answered":20,"failed":0,"last_failure":null,"ms":{"mean":210.0,"mean_ci95":[200.0,220.0],"p50":202.0,"p95":300.0,
"p99":1300.0},"wire_up":0.05,"wire_down":1.1,"cpu_ms":null,"share":49.0,"valid":true,"verdict":"valid"},
{"name":"kernel cubic+tfo","answered":20,"failed":0,"last_failure":null,"ms":{"mean":110.0,"mean_ci95":[100.0,120.0],"p50":101.0,
"p95":300.0,"p99":1300.0},"wire_up":0.05,"wire_down":1.1,"cpu_ms":null,"share":null,"valid":true,"verdict":"valid"},
{"name":"brisk tcp","answered":0,"failed":20,"last_failure":"no answer","ms":{"mean":null,"mean_ci95":[null,null],"p50":null,"p95":null,
"p99":null},"wire_up":null,"wire_down":null,"cpu_ms":1.5,"share":null,"valid":false,"verdict":"invalid: late"}]}"#;

#[test]
fn report_includes_results_in_real_time() {
    let place = place("real");
    std::fs::create_dir_all(place.join("only/small")).unwrap();
    std::fs::write(place.join("only/small/plan.toml"), PLAN).unwrap();
    std::fs::write(place.join("only/small/lossy.real.json"), REAL).unwrap();
    stdout(&lab(&place, &["run", "small.toml", "--quick", "--out", "both"]));
    std::fs::copy(place.join("only/small/lossy.real.json"), place.join("both/small/lossy.real.json"))
        .unwrap();
    for results in ["only", "both"] {
        stdout(&lab(&place, &["report", results, "--markdown", "r.md"]));
        let markdown = std::fs::read_to_string(place.join("r/small.md")).unwrap();
        assert!(markdown.contains("| kernel cubic | 20 | 0 | 210 | 200 to 220 | 202 |"), "{markdown}");
        let html = std::fs::read_to_string(place.join("brisk-report.html")).unwrap();
        assert!(html.contains("kernel cubic+tfo") && html.contains("no answer. invalid: late"), "{html}");
    }
    // The gain of the kernel's Fast Open is in the same line as ours.
    let csv = std::fs::read_to_string(place.join("figures.csv")).unwrap();
    assert!(csv.lines().any(|line| line.contains("gain.p50") && line.ends_with(",-50,")), "{csv}");
    std::fs::write(place.join("both/small/lossy.real.json"), &REAL[..300]).unwrap();
    let output = lab(&place, &["report", "both"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("lossy.real.json: EOF") && said.trim_end().lines().count() == 1, "{said}");
    std::fs::remove_dir_all(place).unwrap();
}

#[test]
fn invalid_command_gives_one_line() {
    let place = place("refused");
    std::fs::write(place.join("bad.toml"), "title = \"x\"\ntitel = 1\n").unwrap();
    std::fs::write(place.join("pages.jsonl"), "{\"label\":\"x\"}\n").unwrap();
    std::fs::write(place.join("empty.toml"), "").unwrap();
    std::fs::write(place.join("binary.toml"), [0xff, 0x00, 0xfe]).unwrap();
    std::fs::write(place.join("huge.toml"), vec![b'#'; (1 << 20) + 1]).unwrap();
    std::fs::write(place.join("empty.jsonl"), "").unwrap();
    for (words, status, expected) in [
        (&["run", "empty.toml"][..], 2, "empty, line 1: missing field"),
        (&["run", "binary.toml"], 1, "binary.toml: stream did not contain valid UTF-8"),
        (&["run", "huge.toml"], 1, "huge.toml: more than 1 MiB"),
        (&["run", "small.toml", "--pages", "empty.jsonl"], 2, "--pages empty.jsonl: "),
        (&["draw", "small.toml", "--cell", "nowhere"], 2, "plan small has no such cell; it has: lossy, page"),
        (&["draw", "small.toml", "--arm", "all"], 2, "cell lossy has no such arm; it has: tcp, tcp+tfo"),
        (&["draw", "small.toml", "--cell", "page"], 1, "only single transactions can be recorded"),
        (&["run", "nonsense"], 2, "no plan 'nonsense': `brisk lab list` shows them"),
        (&["run", "bad.toml"], 2, "bad, line 2: unknown field `titel`"),
        (&["run", "missing.toml"], 1, "missing.toml: No such file"),
        (&["run", "small.toml", "--shard", "3/2"], 2, "'3/2' is not a shard"),
        (
            &["run", "small.toml", "--pages", "pages.jsonl"],
            2,
            "--pages pages.jsonl: line 1: missing field `res`",
        ),
        (&["report", "."], 1, "no results; run `brisk lab run --all --out .`"),
        (&["merge", "nowhere"], 1, "nowhere: No such file"),
    ] {
        let output = lab(&place, words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(expected), "{words:?}: {said}");
        assert_eq!(output.status.code(), Some(status), "{words:?}: {said}");
        // An error of the command line also prints its usage.
        let lines = said.trim_end().lines().count();
        assert!(lines == 1 || words.contains(&"3/2"), "{words:?}: {said}");
    }
    std::fs::remove_dir_all(place).unwrap();
}

#[test]
fn every_plan_is_listed_on_a_line_with_its_title() {
    let place = place("list");
    let listed = stdout(&lab(&place, &["list"]));
    for name in [
        "tfo-fig1",
        "tfo-table1",
        "tfo-fig6",
        "tfo-tps",
        "tfo-fallback",
        "ga-table1",
        "ga-fig1",
        "ga-fig2",
        "ga-fig3",
        "ga-fig4",
        "ga-table2",
        "ga-table3",
        "ga-table4",
        "ga-table5a",
        "ga-table5b",
        "ga-table5c",
        "ga-redundant-syn",
        "ga-fig7",
        "ga-fig8",
        "ga-fig9",
        "ga-fig10",
        "ga-table6",
        "ga-fig11",
        "ga-overhead",
        "bar",
        "bbr",
        "fairness",
        "coexistence",
        "path-members",
        "negative-controls",
        "today",
        "kernel-reference",
        "kernel-again",
    ] {
        assert!(listed.lines().any(|line| line.split_whitespace().next() == Some(name)), "{name}: {listed}");
    }
    std::fs::remove_dir_all(place).unwrap();
}

/// Ctrl-C during the second cell: the first one is stored, and the same command runs the rest.
#[test]
fn interrupted_run_continues_where_it_ended() {
    let place = place("interrupted");
    let plan = PLAN.replace("objects = 8", "objects = 60").replace("60000", "400000");
    std::fs::write(place.join("small.toml"), plan).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_brisk"))
        .current_dir(&place)
        .args(["lab", "run", "small.toml", "--jobs", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let first = place.join("brisk-results/small/lossy/1-tcp+tfo.csv");
    while !first.exists() && run.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let kept = std::fs::metadata(&first).unwrap().modified().unwrap();
    let pid = run.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let output = run.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("interrupted; the same command continues here"), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("lossy"), "complete cells are shown");
    assert!(!place.join("brisk-results/small/page/0-tcp.csv").exists());
    // The page of the plan is small enough to be completed now.
    stdout(&lab(&place, &["run", "small.toml"]));
    assert!(place.join("brisk-results/small/page/0-tcp.csv").exists());
    assert_eq!(std::fs::metadata(&first).unwrap().modified().unwrap(), kept, "it was not run again");
    std::fs::remove_dir_all(place).unwrap();
}

#[test]
fn any_transaction_of_a_plan_can_be_drawn_and_captured() {
    let place = place("draw");
    let words = [
        "draw",
        "small.toml",
        "--arm",
        "tcp+tfo",
        "-n",
        "3",
        "-o",
        "d.svg",
        "--pcap",
        "d.pcapng",
        "--events",
        "d.jsonl",
    ];
    let said = stdout(&lab(&place, &words));
    assert_eq!(said, "d.svg: transaction 3 of small, lossy with tcp+tfo\n");
    assert!(std::fs::read_to_string(place.join("d.svg")).unwrap().starts_with("<svg xmlns"));
    assert!(std::fs::read(place.join("d.pcapng")).unwrap().starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]));
    let events = std::fs::read_to_string(place.join("d.jsonl")).unwrap();
    assert!(
        events.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()) && events.contains("\"sent\"")
    );
    std::fs::remove_dir_all(place).unwrap();
}
