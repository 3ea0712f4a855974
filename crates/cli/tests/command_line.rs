//! The command line: results on stdout, one line per failure on stderr, exit status 0, 1 or 2.

use std::process::{Command, Output, Stdio};

use brisk_gateway::settings::{Key, all_keys};

fn brisk(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_brisk")).args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

/// Returns the line on stderr and the exit status of a command that fails.
fn failure(arguments: &[&str]) -> (String, i32) {
    let output = brisk(arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.stdout.is_empty(), "{arguments:?} printed a result");
    (text.trim_end().to_owned(), output.status.code().unwrap())
}

#[test]
fn the_version_names_the_commit_and_the_target() {
    let said = |flag| stdout(&brisk(&[flag])).trim_end().to_owned();
    assert_eq!(said("-V"), concat!("brisk ", env!("CARGO_PKG_VERSION")));
    let long = said("--version");
    let (version, build) = long.split_once(" (").expect("a build");
    assert_eq!(version, said("-V"));
    let (commit, target) = build.trim_end_matches(')').split_once(", ").expect("a commit and a target");
    assert!(target.contains("linux"), "{long}");
    // The hash and the date; sources without the repository have no commit.
    let is_hash = commit
        .split(' ')
        .next()
        .is_some_and(|hash| hash.len() >= 12 && u64::from_str_radix(&hash[..12], 16).is_ok());
    assert!(is_hash || commit == "unknown commit", "{long}");
}

#[test]
fn whatif_prints_the_same_json_for_the_same_seed() {
    let run = |seed| {
        let output = brisk(&[
            "whatif", "--rtt", "200ms", "--loss", "3%", "--flow", "5kB", "-n", "200", "--json", "--seed",
            seed,
        ]);
        assert!(output.status.success());
        stdout(&output).to_owned()
    };
    let first = run("1");
    assert_eq!(first, run("1"));
    assert_ne!(first, run("2"));
    let json: serde_json::Value = serde_json::from_str(&first).unwrap();
    assert_eq!(json["arms"][0]["name"], "tcp");
    assert_eq!(json["arms"][0]["n"], 200);
    assert_eq!(json["arms"][0]["rtts"]["p50"], 2.0);
}

#[test]
fn whatif_without_loss_takes_two_round_trips_or_one_when_open() {
    for (extra, rtts) in [(None, 2.0), (Some("--established"), 1.0)] {
        let mut arguments = vec!["whatif", "--rtt", "200ms", "--flow", "5kB", "-n", "50", "--json"];
        arguments.extend(extra);
        let json: serde_json::Value = serde_json::from_str(stdout(&brisk(&arguments))).unwrap();
        assert_eq!(json["arms"][0]["rtts"]["p99"], rtts);
    }
}

#[test]
fn the_table_fits_a_terminal_of_eighty_columns() {
    let output = brisk(&["whatif", "--rtt", "300ms", "--loss", "10%", "--flow", "100kB", "-n", "50"]);
    let text = stdout(&output);
    assert!(text.contains("tcp") && text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn help_has_the_flag_of_each_key_with_meaning_and_default() {
    for command in ["frontend", "backend", "edge"] {
        let output = brisk(&[command, "--help"]);
        let help = stdout(&output).split_whitespace().collect::<Vec<_>>().join(" ");
        let is_of_role = |key: &&Key| match key.section {
            "hop" => command != "edge" || key.edge,
            section => [command, "limits", "admin"].contains(&section),
        };
        let mut flags = 0;
        for key in all_keys().filter(is_of_role) {
            let Some(flag) = key.flag else { continue };
            let of_edge = key.edge_default.filter(|_| command == "edge").map(str::to_owned);
            let default =
                of_edge.or_else(key.default).unwrap_or_else(|| key.unset.to_owned()).replace('"', "");
            let meaning = key.flag_help.unwrap_or(key.help);
            let meaning = match key.is_switch() || default.is_empty() {
                true => meaning.to_owned(),
                false => format!("{meaning} [default: {default}]"),
            };
            let variable = format!("[env: BRISK_{}=]", flag.to_uppercase().replace('-', "_"));
            for wanted in [format!("--{flag}"), meaning, variable] {
                assert!(help.contains(&wanted), "{command} --help has no '{wanted}':\n{help}");
            }
            flags += 1;
        }
        assert!(flags > 15, "{command}: {flags}");
    }
}

#[test]
fn help_lists_common_flags_after_those_of_a_command() {
    for (command, own) in [("frontend", "--transparent"), ("backend", "--allow")] {
        let output = brisk(&[command, "--help"]);
        let help = stdout(&output);
        let at = |flag: &str| help.find(flag).unwrap_or_else(|| panic!("{command} has no {flag}"));
        for common in ["  -v, --verbose", "  -q, --quiet", "  --log-format"] {
            assert!(at(own) < at(common), "{common} is not behind {own} of {command}:\n{help}");
        }
    }
}

#[test]
fn wrong_value_is_a_usage_error_with_a_remedy() {
    for (arguments, expected) in [
        (["whatif", "--rate", "20mbt"], "'mbt' is not a unit of rate"),
        (["whatif", "--loss", "200%"], "use 0% to 100%"),
        (["whatif", "--arms", "tcp;nonsense"], "use tcp, tcp+tfo"),
        (["whatif", "--arms", "corrective=f3"], "corrective cannot be 'f3'"),
        (["whatif", "--flow", "30kg"], "not a unit of size"),
        (["demo", "--middlebox", "drop-syn-data"], "use brisk whatif"),
        (["emulate", "--rtt", "10ms"], "--between RED,BLUE"),
    ] {
        let (text, status) = failure(&arguments);
        assert_eq!(status, 2, "{text}");
        assert!(text.contains(expected) && text.lines().count() == 1, "{text}");
    }
}

#[test]
fn a_capture_becomes_an_estimate_and_one_that_is_cut_off_too() {
    let capture = |name| format!("{}/../../fuzz/corpus/capture/{name}", env!("CARGO_MANIFEST_DIR"));
    let output = brisk(&["whatif", "--pcap", &capture("pcapng"), "-n", "20", "--json"]);
    let json: serde_json::Value = serde_json::from_str(stdout(&output)).unwrap();
    let (capture_, estimate) = (&json["capture"], &json["estimate"]);
    // SYN at 0 ms, SYN-ACK at 20 and ACK at 40; a request of 5 bytes, a response of 12, one retransmission.
    assert_eq!((capture_["rtt_ms"][1].as_f64(), capture_["down"]["lost"].as_u64()), (Some(40.0), Some(1)));
    assert_eq!(
        (&capture_["exchanges"], capture_["response_bytes"][1].as_f64()),
        (&serde_json::json!([1, 1]), Some(12.0))
    );
    assert_eq!(estimate["gains"].as_array().map(Vec::len), Some(6));
    let output = brisk(&["whatif", "--pcap", &capture("cut"), "-n", "20", "--loss", "none"]);
    let text = stdout(&output);
    assert!(
        text.contains("The estimate is based on:") && text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert!(String::from_utf8_lossy(&output.stderr).contains("the file ends"), "{output:?}");
}

#[test]
fn failure_at_work_has_status_1() {
    for arguments in
        [["whatif", "--sizes", "/nonexistent.csv"], ["emulate", "--between", "no-such-a,no-such-b"]]
    {
        let (text, status) = failure(&arguments);
        assert_eq!((status, text.lines().count()), (1, 1), "{text}");
    }
}

#[test]
fn flags_beat_the_environment() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_brisk"))
            .args(["whatif", "-n", "20", "--json"])
            .args(arguments)
            .env("BRISK_RTT", "80ms")
            .output()
            .unwrap();
        let json: serde_json::Value = serde_json::from_str(stdout(&output)).unwrap();
        json["link"]["base_rtt_ms"].as_f64()
    };
    assert_eq!(run(&[]), Some(80.0));
    assert_eq!(run(&["--rtt", "10ms"]), Some(10.0));
}

#[test]
fn closed_output_is_not_a_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_brisk"))
        .args(["whatif", "-n", "200"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}

#[test]
fn completions_and_man_pages_come_from_the_same_definitions() {
    let completions = brisk(&["completions", "bash"]);
    assert!(stdout(&completions).contains("whatif") && stdout(&completions).contains("--established"));
    let directory = std::env::temp_dir().join(format!("brisk-man-{}", std::process::id()));
    assert!(brisk(&["man", directory.to_str().unwrap()]).status.success());
    let page = std::fs::read_to_string(directory.join("brisk-whatif.1")).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(page.contains("virtual time") && page.contains("Examples"));
}
