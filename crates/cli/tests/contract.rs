//! Output that scripts rely on: the keys of every JSON object, the same bytes for the same seed, an example
//! in every help.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const BRISK: &str = env!("CARGO_BIN_EXE_brisk");

/// Returns the stdout of a command that succeeds.
fn output(words: &[&str]) -> String {
    let out = Command::new(BRISK).args(words).output().expect("the program starts");
    assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

/// Returns the keys of an object, in the order of the text; `{"a":{"b":1}}` has `a` and `a.b`.
fn keys(text: &str) -> Vec<String> {
    let object: serde_json::Map<String, Value> = serde_json::from_str(text).expect("one JSON object");
    let mut found: Vec<(usize, String)> = Vec::new();
    collect("", &Value::Object(object), &mut |path, key| {
        let place = text.find(&format!("\"{key}\":")).expect("every parsed key is in the text");
        found.push((place, path));
    });
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

fn collect(prefix: &str, value: &Value, found: &mut impl FnMut(String, &str)) {
    let Value::Object(object) = value else { return };
    for (key, value) in object {
        let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        found(path.clone(), key);
        collect(&path, value, found);
    }
}

/// Returns the keys of `value`, sorted.
fn names(value: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

const WHATIF: [&str; 9] = ["whatif", "--loss", "3%", "--flow", "20kB", "-n", "300", "--json", "--seed=5"];

#[test]
fn whatif_has_exactly_the_keys_of_the_contract() {
    let report: Value = serde_json::from_str(&output(&WHATIF)).expect("JSON");
    assert_eq!(names(&report), ["arms", "link", "seed", "workload"]);
    assert!(report["link"].is_object() && report["workload"].is_object());
    assert_eq!(report["seed"], 5);
    let arms = report["arms"].as_array().expect("a list");
    assert!(!arms.is_empty());
    for arm in arms {
        let expected = [
            "ci95",
            "completed",
            "hit",
            "ms",
            "n",
            "name",
            "repaired",
            "retransmits",
            "rtts",
            "timeouts",
            "wire_ratio",
        ];
        assert_eq!(names(arm), expected);
        assert_eq!(names(&arm["ms"]), ["mean", "p25", "p50", "p90", "p95", "p99"]);
        assert_eq!(names(&arm["ci95"]), ["mean", "p50", "p90", "p99"]);
        assert_eq!(names(&arm["rtts"]), ["p50", "p99"]);
        assert_eq!(names(&arm["repaired"]), ["copy", "parity", "probe"]);
        for interval in arm["ci95"].as_object().expect("an object").values() {
            let ends: Vec<f64> =
                interval.as_array().expect("two ends").iter().filter_map(Value::as_f64).collect();
            assert!(ends.len() == 2 && ends[0] <= ends[1], "{interval}");
        }
        assert_eq!((&arm["n"], &arm["completed"]), (&300.into(), &300.into()));
        let share = arm["hit"].as_f64().expect("a number");
        assert!((0.0..=1.0).contains(&share) && arm["wire_ratio"].as_f64() > Some(1.0), "{arm}");
    }
}

#[test]
fn default_arms_are_those_of_the_contract() {
    let names = |words: &[&str]| -> Vec<String> {
        let report: Value = serde_json::from_str(&output(words)).expect("JSON");
        let arms = report["arms"].as_array().expect("a list").iter();
        arms.map(|arm| arm["name"].as_str().expect("a name").to_owned()).collect()
    };
    let default = names(&WHATIF);
    let mut contract = ["tcp", "tcp+tfo", "reactive", "corrective", "proactive", "all"].iter();
    assert!(
        default.iter().all(|name| contract.any(|expected| expected == name)),
        "in this order: {default:?}"
    );
    assert_eq!(default.first().map(String::as_str), Some("tcp"));
    // The name of an arm is the requested text.
    assert_eq!(names(&[&WHATIF[..], &["--arms", " tcp "]].concat()), ["tcp"]);
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
    let first = output(&WHATIF);
    assert_eq!(first, output(&WHATIF));
    let mut other = WHATIF;
    other[8] = "--seed=6";
    assert_ne!(first, output(&other));
}

/// `brisk serve` on loopback, killed at the end of the test.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start() -> Server {
        // The server gets a port that is free now.
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
        let address: SocketAddr = socket.local_addr().expect("an address");
        drop(socket);
        let device = format!("udp:{address}");
        let child = Command::new(BRISK)
            .args(["serve", env!("CARGO_MANIFEST_DIR"), "--synthetic", "--device", &device])
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        // The kernel refuses datagrams that arrive before the server has the port.
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::net::UdpSocket::bind(address).is_ok() {
            assert!(Instant::now() < deadline, "the server does not open {address}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Server { child, url: format!("http://{address}/5000") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The kill has no effect if the server has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn get_prints_exactly_the_object_of_the_contract_for_each_transfer() {
    let server = Server::start();
    let words = ["get", &server.url, "--device", "udp:127.0.0.1:0", "--stats", "json", "--repeat", "3"];
    let out = output(&words);
    assert_eq!(out.lines().count(), 3);
    for line in out.lines() {
        let expected = [
            "url",
            "bytes",
            "connect_ms",
            "ttfb_ms",
            "total_ms",
            "rtt_ms",
            "fast_open",
            "retransmits",
            "timeouts",
            "probes",
            "repaired",
            "repaired.probe",
            "repaired.parity",
            "repaired.copy",
            "wire_bytes",
            "wire_bytes.out",
            "wire_bytes.in",
        ];
        assert_eq!(keys(line), expected);
        let figures: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!((&figures["url"], &figures["bytes"]), (&server.url.as_str().into(), &5000.into()));
        let outcomes = ["used", "no-cookie", "refused", "stripped", "syn-lost", "blackholed", "off"];
        assert!(outcomes.iter().any(|outcome| figures["fast_open"] == *outcome), "{line}");
        assert!(figures["rtt_ms"].is_f64() && figures["wire_bytes"]["in"].as_u64() > Some(5000), "{line}");
    }
}

#[test]
fn every_subcommand_shows_an_example_that_starts_with_its_name() {
    let overview = output(&["--help"]);
    let commands = overview.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    let commands: Vec<&str> = commands
        .take_while(|line| !line.trim().is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|command| *command != "help")
        .collect();
    for expected in ["demo", "emulate", "whatif", "frontend", "backend", "serve", "get"] {
        assert!(commands.contains(&expected), "{expected} is not among {commands:?}");
    }
    for command in commands {
        let help = output(&[command, "--help"]);
        assert!(help.contains("Examples:") && help.contains(&format!("brisk {command}")), "{help}");
        assert_eq!(output(&["help", command]), help);
    }
}

#[test]
fn the_table_shows_the_ends_of_every_interval_whole() {
    let words = ["whatif", "--rtt", "300ms", "--loss", "10%", "--flow", "100kB", "-n", "50"];
    let table = output(&words);
    let shown: Vec<&str> = table.split_whitespace().flat_map(|word| word.split("..")).collect();
    let report: Value = serde_json::from_str(&output(&[&words[..], &["--json"]].concat())).expect("JSON");
    for arm in report["arms"].as_array().expect("a list") {
        for end in arm["ci95"].as_object().expect("an object").values().filter_map(Value::as_array).flatten()
        {
            let end = format!("{:.0}", end.as_f64().expect("a number"));
            assert!(shown.contains(&end.as_str()), "{end} is not in\n{table}");
        }
    }
}
