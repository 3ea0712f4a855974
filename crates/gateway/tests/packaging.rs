//! The packages fit the program: every key of the examples and of the manual exists, and so does every metric
//! of the dashboard and of the alerts.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use brisk_gateway::{MechanismState, Metrics, Settings};

const EXAMPLES: [&str; 3] =
    ["packaging/examples/frontend.toml", "packaging/examples/backend.toml", "packaging/examples/edge.toml"];

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the example with its commented keys switched on.
fn uncommented(text: &str) -> String {
    let is_key = |line: &str| {
        line.strip_prefix("# ").and_then(|line| line.split_once(" = ")).is_some_and(|(key, _)| {
            key.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit())
        })
    };
    let line = |line: &str| if is_key(line) { line[2..].to_owned() } else { line.to_owned() };
    text.lines().map(|text| line(text) + "\n").collect()
}

#[test]
fn the_examples_are_good_with_and_without_their_comments() {
    for example in EXAMPLES {
        let text = read(example);
        for text in [text.clone(), uncommented(&text)] {
            if let Err(error) = Settings::parse(&text, example) {
                panic!("{error}");
            }
        }
        assert!(uncommented(&text).contains("\nmechanisms = "), "comments are taken for keys");
        assert!(text.ends_with('\n'), "{example}: lines that an operator appends join the last comment");
    }
}

/// Returns the text of the file NAME.toml from a Kubernetes manifest, which holds it as an indented block.
fn config_map(manifest: &str) -> String {
    let lines = manifest.lines().skip_while(|line| !line.ends_with(".toml: |")).skip(1);
    lines.map_while(|line| line.strip_prefix("    ")).map(|line| line.to_owned() + "\n").collect()
}

#[test]
fn the_config_maps_of_kubernetes_are_good() {
    for side in ["frontend", "backend"] {
        let file = format!("packaging/kubernetes/{side}.yaml");
        let text = config_map(&read(&file));
        assert!(text.contains(&format!("[{side}]")), "{file}: {text}");
        if let Err(error) = Settings::parse(&text, &file) {
            panic!("{error}");
        }
    }
}

#[test]
fn the_manifests_of_kubernetes_name_the_image_of_this_version() {
    for side in ["frontend", "backend"] {
        let text = read(&format!("packaging/kubernetes/{side}.yaml"));
        let images: Vec<&str> =
            text.lines().filter(|line| line.contains("image:") || line.contains("-oci.tar")).collect();
        assert_eq!(images.len(), 2, "{images:?}");
        for image in images {
            assert!(image.contains(env!("CARGO_PKG_VERSION")), "{side}.yaml: {image}");
        }
    }
}

#[test]
fn nothing_that_is_packaged_bypasses_the_encryption_unasked() {
    for file in ["packaging/examples/frontend.toml", "packaging/kubernetes/frontend.yaml"] {
        let text = read(file);
        let on = text.lines().find(|line| line.contains("\"direct\"") && !line.trim_start().starts_with('#'));
        assert_eq!(on, None, "{file}");
        assert!(text.to_lowercase().contains("bypasses the"), "{file} does not say what direct does");
    }
}

#[test]
fn every_key_says_what_to_write_behind_it() {
    for example in EXAMPLES {
        let text = uncommented(&read(example));
        for (n, line) in text.lines().enumerate() {
            let Some((key, _)) = line.split_once(" = ").filter(|(key, _)| !key.contains(['#', ' '])) else {
                continue;
            };
            // No key has a date as its value.
            let date = format!("{key} = 1979-05-27");
            let other: Vec<&str> =
                text.lines().enumerate().map(|(m, line)| if m == n { &date } else { line }).collect();
            let said = Settings::parse(&other.join("\n"), "x").map(drop).unwrap_err().to_string();
            let begins = format!("x:{}: {date}: write ", n + 1);
            assert!(said.starts_with(&begins) && !said.contains("[admin]"), "{said}");
        }
    }
}

/// Returns the events that the sources in `directory` log, without those of `brisk serve` and of tests.
fn logged(directory: &str) -> BTreeSet<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(directory);
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(&directory).unwrap().map(Result::unwrap) {
        let (name, path) = (entry.file_name(), entry.path());
        if path.is_dir() {
            found.extend(logged(path.to_str().unwrap()));
        } else if name != "serve.rs" {
            let text = std::fs::read_to_string(path).unwrap();
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let levels = ["level", "level()", "Level::Info", "Level::Warning", "Level::Error"];
            let parts: Vec<&str> = text.split(", \"").collect();
            let is_after_level = |pair: &&[&str]| levels.iter().any(|level| pair[0].ends_with(level));
            let events = parts.windows(2).filter(is_after_level).filter_map(|pair| pair[1].split('"').next());
            found.extend(events.map(str::to_owned));
        }
    }
    found
}

#[test]
fn the_manual_lists_the_events_of_the_log_and_the_results_of_connections() {
    let page = read("docs/operating/observing.md");
    let (_, table) = page.split_once("| event | meaning |\n").expect("the table");
    let rows = table.lines().skip(1).map_while(|line| line.strip_prefix("| ")?.split(" | ").next());
    let listed: BTreeSet<String> =
        rows.flat_map(|names| names.split(", ")).map(|name| name.trim_matches('`').to_owned()).collect();
    let logged = &logged("crates/gateway/src") | &logged("crates/cli/src");
    assert_eq!(listed, logged);
    let metrics = Metrics::new().text(None);
    let results: Vec<&str> = metrics.split("brisk_connections_total{result=\"").skip(1).collect();
    assert!(results.len() > 5, "{metrics}");
    for result in results.iter().filter_map(|line| line.split('"').next()) {
        assert!(page.contains(&format!("`{result}`")), "{result} is not in the page");
    }
}

#[test]
fn the_board_and_the_alerts_ask_for_metrics_that_there_are() {
    let metrics = Metrics::new();
    let state = MechanismState { name: "planner", state: "on", reason: "default".into() };
    metrics.set_mechanisms(vec![state]);
    let known = metrics.text(None);
    for file in ["packaging/grafana/brisk.json", "packaging/prometheus/alerts.yaml"] {
        let text = read(file);
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let asked: BTreeSet<&str> =
            words.filter(|word| word.starts_with("brisk_") || word.starts_with("process_")).collect();
        assert!(asked.len() >= 5, "{file}: {asked:?}");
        for name in asked {
            let name = name.trim_end_matches("_bucket").trim_end_matches("_total");
            let by_peer_or_frontend = [
                "brisk_backend_up",
                "brisk_backend_transport",
                "brisk_path_rtt_seconds",
                "brisk_path_loss_ratio",
                "brisk_frontend_connections",
                "brisk_frontend_connections_active",
                "brisk_frontend_payload_bytes",
            ];
            assert!(
                known.contains(name) || by_peer_or_frontend.contains(&name),
                "{file}: there is no {name}"
            );
        }
    }
}

#[test]
fn each_alert_has_a_test_in_which_it_fires() {
    let (alerts, tests) =
        (read("packaging/prometheus/alerts.yaml"), read("packaging/prometheus/alerts_test.yaml"));
    let names: Vec<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        assert!(
            tests.contains(&format!("alertname: {name}\n        exp_alerts:\n")),
            "no test of {name} fires"
        );
    }
}

#[test]
fn alerts_fire_as_their_own_tests_say() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/prometheus/alerts_test.yaml");
    let Ok(said) = Command::new("promtool").args(["test", "rules"]).arg(&tests).output() else {
        println!("skipped: there is no promtool");
        return;
    };
    let text = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
    assert!(said.status.success(), "{text}");
}
