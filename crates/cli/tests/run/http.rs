//! `serve` and `get` over TCP in UDP on loopback: no privileges.

use crate::program::{Running, Scratch, run, text};

const DEVICE: [&str; 2] = ["--device", "udp:127.0.0.1:0"];

fn get(url: &str, words: &[&str]) -> std::process::Output {
    run(&[&["get", url], &DEVICE[..], words].concat())
}

#[test]
fn get_fetches_from_serve() {
    let files = Scratch::with_files();
    let mut server = Running::start(&["serve", &files.path(""), "--synthetic", DEVICE[0], DEVICE[1]]);
    let url = server.announced("url");

    let hello = get(&format!("{url}hello.txt"), &[]);
    assert_eq!((text(&hello.stdout), text(&hello.stderr)), ("hello\n".into(), String::new()));

    let (copy, original) = (files.path("copy"), files.path("big"));
    let big = get(&format!("{url}big"), &["-o", &copy, "--stats", "json", "--repeat", "2"]);
    assert!(big.status.success(), "{}", text(&big.stderr));
    assert!(std::fs::read(copy).ok() == std::fs::read(original).ok());
    let lines = text(&big.stdout);
    assert_eq!(lines.lines().count(), 2);
    for line in lines.lines() {
        let figures: serde_json::Value = serde_json::from_str(line).expect("JSON");
        assert_eq!((&figures["bytes"], &figures["fast_open"]), (&3_000_000.into(), &"off".into()));
        assert!(figures["total_ms"].as_f64() > figures["connect_ms"].as_f64());
        assert!(figures["wire_bytes"]["in"].as_u64() > Some(3_000_000));
    }

    let made_up = get(&format!("{url}1000"), &[]);
    assert_eq!(made_up.stdout.len(), 1000);
    let (status, log) = server.stop();
    assert_eq!(status, Some(0), "{log}");
    assert!(log.contains("path=/hello.txt status=200 bytes=6"), "{log}");
}

#[test]
fn failed_fetch_gives_one_line_and_its_status() {
    let files = Scratch::with_files();
    let mut server = Running::start(&["serve", &files.path(""), DEVICE[0], DEVICE[1]]);
    let url = server.announced("url");
    let unreachable = ["--connect-timeout", "300ms"];
    for (url, words, status, says) in [
        (format!("{url}nothing"), &[][..], 1, "404 Not Found"),
        ("http://127.0.0.1:9/".to_owned(), &unreachable[..], 1, "connection refused by the peer"),
        ("https://127.0.0.1/".to_owned(), &[][..], 2, "write http://"),
    ] {
        let failed = get(&url, words);
        let message = text(&failed.stderr);
        assert_eq!(failed.status.code(), Some(status), "{message}");
        assert!(message.contains(says) && message.lines().count() == 1, "{message}");
        assert!(failed.stdout.is_empty());
    }
    drop(server);
}

#[test]
fn invalid_devices_are_refused_before_the_start() {
    let files = Scratch::with_files();
    for (words, status, says) in [
        (&["--device", "tun:t0"][..], 2, "--addr 10.7.0.2/24"),
        (&["--device", "udp:127.0.0.1:0", "--addr", "10.0.0.1/24"][..], 2, "takes no --addr"),
        (&["--device", "tap:t0"][..], 2, "tun:NAME, packet:IFACE, xdp:IFACE or udp:ADDR:PORT"),
        (&["--device", "packet:none0", "--addr", "10.0.0.1/24"][..], 1, "interface none0"),
        (&["--device", "udp:192.0.2.1:0"][..], 1, "this host does not have the address"),
    ] {
        let refused = run(&[&["serve", &files.path("")], words].concat());
        let message = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(status), "{message}");
        assert!(message.contains(says), "{message}");
    }
    let nowhere = run(&["serve", "/nonexistent", "--device", "udp:127.0.0.1:0"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(text(&nowhere.stderr).contains("/nonexistent: cannot be served"));
}
