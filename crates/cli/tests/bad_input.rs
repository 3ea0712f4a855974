//! Every mistake of a user gets one line on stderr with the error and the remedy, and nothing on stdout. The
//! status is 2 for an invalid command line and 1 for a failure.

use std::net::{TcpListener, UdpSocket};
use std::process::{Command, Output};

/// Status of an invalid command line.
const USAGE: i32 = 2;
/// Status of a failure.
const FAILED: i32 = 1;

fn brisk(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_brisk"));
    command.args(words);
    command
}

/// Checks that the command fails with this status and a line that has all of `says`.
fn refused(words: &[&str], status: i32, says: &[&str]) {
    let out = brisk(words).output().expect("the program starts");
    assert_refused(words, &out, status, says);
}

fn assert_refused(words: &[&str], out: &Output, status: i32, says: &[&str]) {
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(status), "{words:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{words:?}: {stderr}");
    assert!(stderr.starts_with("brisk: ") && out.stdout.is_empty(), "{words:?}: {stderr}");
    for part in says {
        assert!(stderr.contains(part), "{words:?} does not say '{part}': {stderr}");
    }
}

#[test]
fn flags_and_commands_that_do_not_exist_name_the_nearest_and_the_help() {
    for command in ["demo", "emulate", "whatif", "frontend", "backend", "serve", "get"] {
        refused(&[command, "--bogus"], USAGE, &["'--bogus'", &format!("see brisk {command} --help")]);
    }
    refused(&["frontent"], USAGE, &["'frontent'", "'frontend'", "see brisk --help"]);
    refused(&["whatif", "--los", "2%"], USAGE, &["'--los'", "'--loss'"]);
    refused(&["get", "http://127.0.0.1/"], USAGE, &["--device <DEVICE>", "see brisk get --help"]);
    refused(&["whatif", "-q", "-v"], USAGE, &["--quiet", "--verbose"]);
}

#[test]
fn invalid_values_are_refused_with_the_valid_ones() {
    for (words, says) in [
        (&["whatif", "-n", "0"][..], &["1..="][..]),
        (&["whatif", "--seed", "x"], &["'x'", "--seed"]),
        (&["whatif", "--flow", "30kg"], &["'kg'", "kB"]),
        (&["whatif", "--arms", "tcq"], &["'tcq'", "did you mean tcp?"]),
        (&["whatif", "--request", "1B"], &["16B to 64KiB"]),
        (&["whatif", "--max-overhead", "much"], &["2% or 0.02"]),
        (&["whatif", "--log-format", "yaml"], &["text, json"]),
        (&["emulate", "--between", "one"], &["--between RED,BLUE"]),
        (&["emulate", "--a", "eth0", "--b", "tun:b"], &["'eth0'", "tun:NAME@NAMESPACE"]),
        (&["emulate", "--between", "a,b", "--addr-a", "10.0.0.1/77"], &["10.0.0.1/77", "10.0.0.1/24"]),
        (&["frontend", "--listen", "80", "--peer", "127.0.0.1:1"], &["'80'", "127.0.0.1:8080"]),
        (&["frontend", "--listen", ":0", "--peer", "127.0.0.1"], &["'127.0.0.1'", "HOST:PORT"]),
        (&["backend", "--listen", "127.0.0.1:0", "--to", "origin"], &["'origin'", "HOST:PORT"]),
        (
            &["backend", "--listen", "127.0.0.1:0", "--to", "http://127.0.0.1:80"],
            &["--to", "takes no URL", "HOST:PORT: 127.0.0.1:80"],
        ),
        (
            &["backend", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:80", "--drain-timeout", "soon"],
            &["'soon'", "for instance 500ms"],
        ),
        (
            &["get", "http://127.0.0.1/", "--device", "eth0"],
            &["'eth0'", "tun:NAME, packet:IFACE, xdp:IFACE or udp:ADDR:PORT"],
        ),
        (&["get", "http://127.0.0.1/", "--device", "tun:t"], &["--addr 10.7.0.2/24"]),
        (&["get", "http://127.0.0.1/", "--device", "tun:t", "--addr", "10.7.0.2"], &["10.7.0.2/24"]),
        (&["get", "http://127.0.0.1/", "--device", "tun:t", "--addr", "10.7.0.2/33"], &["/33", "1 to 32"]),
        (&["get", "ftp://127.0.0.1/", "--device", "udp:127.0.0.1:0"], &["write http://HOST[:PORT]/PATH"]),
        (&["serve", ".", "--device", "udp:127.0.0.1"], &["the port is missing"]),
        (&["get", "http://127.0.0.1:99999/", "--device", "udp:127.0.0.1:0"], &["from 1 to 65535"]),
        (&["whatif", "--queue", "10p"], &["--queue", "add --rate"]),
        (&["emulate", "--between", "a,b", "--addr-a", "10.0.0.1"], &["10.0.0.1", "10.0.0.1/24"]),
        (&["rules"], &["--user NAME", "--router IFACE", "--as-client"]),
        (&["rules", "--listen-port", "8080"], &["--user NAME", "--router IFACE", "--as-client"]),
        (&["rules", "--listen-port", "8080", "--user", "a", "--port", "0"], &["1..=65535"]),
        (
            &["doctor", "127.0.0.1:1", "--plain", "--max-overhead", "300%"],
            &["max_overhead: 300%", "0% to 200%"],
        ),
        (&["top", "127.0.0.1"], &["write HOST:PORT"]),
        (&["lab", "run", "ga-table5b", "-n", "3"], &["--number", "add --real"]),
        (&["lab", "run", "ga-table5b", "--beside", "3s"], &["--beside", "add --real"]),
        (&["lab", "run", "--bogus"], &["see brisk lab run --help"]),
    ] {
        refused(words, USAGE, says);
    }
}

#[test]
fn a_typo_in_a_link_names_the_flag_the_mistake_and_a_remedy() {
    for (flag, value, says) in [
        ("--rtt", "100", "for instance 50ms"),
        ("--rate", "20mbt", "use bit, kbit, mbit or gbit"),
        ("--rate", "0mbit", "use none"),
        ("--queue", "big", "128kB or 200p"),
        ("--loss", "2", "did you mean 2%?"),
        ("--loss", "300%", "use 0% to 100%"),
        ("--loss", "after:1%", "write after:1%,50%"),
        ("--loss", "trace:/nonexistent", "name a readable file"),
        ("--jitter", "3", "the unit is missing"),
        ("--mtu", "3", "use 68 to 65535"),
        ("--middlebox", "strip", "use strip-option"),
    ] {
        for command in ["whatif", "emulate", "demo"] {
            refused(&[command, flag, value], USAGE, &[flag, value, says]);
        }
    }
}

#[test]
fn environment_has_the_same_checks_as_the_flags() {
    let words = ["whatif"];
    let out = brisk(&words).env("BRISK_RATE", "20mbt").output().expect("the program starts");
    assert_refused(&words, &out, USAGE, &["20mbt", "use bit, kbit, mbit or gbit"]);
    let words = ["get", "http://127.0.0.1/"];
    let out = brisk(&words).env("BRISK_DEVICE", "eth0").output().expect("the program starts");
    assert_refused(&words, &out, USAGE, &["'eth0'", "tun:NAME, packet:IFACE, xdp:IFACE or udp:ADDR:PORT"]);
}

#[test]
fn files_that_are_not_there_are_named() {
    refused(&["serve", "/nonexistent", "--device", "udp:127.0.0.1:0"], FAILED, &["/nonexistent"]);
    refused(&["whatif", "--sizes", "/nonexistent"], FAILED, &["--sizes /nonexistent"]);
    refused(&["whatif", "--pcap", "/nonexistent"], FAILED, &["--pcap /nonexistent"]);
    refused(&["whatif", "--access-log", "/nonexistent"], FAILED, &["--access-log /nonexistent"]);
    let words = ["get", "http://127.0.0.1:9/", "--device", "udp:127.0.0.1:0", "-o", "/nonexistent/copy"];
    refused(&words, FAILED, &["/nonexistent/copy"]);
}

#[test]
fn empty_directory_is_a_failure() {
    let place = std::env::temp_dir().join(format!("brisk-nothing-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("a directory");
    let at = place.display().to_string();
    refused(&["script", &at], FAILED, &[&at, "no *.pkt there"]);
    refused(&["lab", "merge", &at, "--out", &at], FAILED, &[&at, "no results in this directory"]);
    std::fs::remove_dir_all(&place).expect("it is removed");
}

#[test]
fn link_that_carries_nothing_is_a_failure() {
    let words = ["whatif", "-q", "--rtt", "10ms", "--loss", "100%", "-n", "1", "--arms", "tcp"];
    let out = brisk(&words).output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(FAILED), "{stderr}");
    assert!(stderr.contains("no transaction was completed") && stderr.contains("100%"), "{stderr}");
}

#[test]
fn file_with_other_content_is_not_overwritten() {
    let file = std::env::temp_dir().join(format!("brisk-no-cookies-{}", std::process::id()));
    std::fs::write(&file, "somebody's key\n").expect("a file");
    let at = file.display().to_string();
    let words = [
        "get",
        "http://127.0.0.1:9/",
        "--device",
        "udp:127.0.0.1:0",
        "--fast-open",
        "--fast-open-cache",
        &at,
    ];
    refused(&words, FAILED, &[&at, "the file has no cookies"]);
    assert_eq!(std::fs::read_to_string(&file).expect("it is there"), "somebody's key\n");
    std::fs::remove_file(&file).expect("it is removed");
}

#[test]
fn file_that_is_neither_capture_nor_log_is_reported() {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    refused(&["whatif", "--pcap", manifest], FAILED, &["neither pcap nor pcapng"]);
    refused(&["whatif", "--pcap", env!("CARGO_MANIFEST_DIR")], FAILED, &["cannot be read"]);
    refused(&["whatif", "--access-log", manifest], FAILED, &["no line has the form"]);
}

#[test]
fn recordings_that_are_damaged_empty_or_huge_are_one_line() {
    let place = std::env::temp_dir().join(format!("brisk-recordings-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("a directory");
    let file = |name: &str, bytes: &[u8]| {
        let path = place.join(name);
        std::fs::write(&path, bytes).expect("a file");
        path.display().to_string()
    };
    let huge = |name: &str| {
        let path = file(name, b"{");
        // A sparse file of two gigabytes.
        std::fs::File::options()
            .write(true)
            .open(&path)
            .expect("a file")
            .set_len(2 << 30)
            .expect("a sparse file");
        path
    };
    let entry = r#"{"log":{"entries":[{"startedDateTime":"2026-01-01T00:00:00.000Z","time":1,"#;
    let (empty, binary, huge) = (file("empty", b""), file("binary", &[0xff, 0, 0xfe, 9]), huge("huge"));
    let (cut, nothing) = (file("cut.har", entry.as_bytes()), file("no.har", br#"{"log":{"entries":[]}}"#));
    for har in [&empty, &binary, &huge, &cut, &nothing] {
        let out = brisk(&["whatif", "--har", har]).output().expect("the program starts");
        assert!(matches!(out.status.code(), Some(1 | 2)), "{har}: {out:?}");
        assert_refused(
            &["whatif", "--har", har],
            &out,
            out.status.code().unwrap_or_default(),
            &["--har", har],
        );
    }
    let sizes = [file("falls", b"100,0.5\n200,0.4\n"), file("words", b"many,few\n"), file("one", b"100\n")];
    for csv in [&empty, &binary, &huge].into_iter().chain(&sizes) {
        let out = brisk(&["whatif", "--sizes", csv]).output().expect("the program starts");
        assert_refused(
            &["whatif", "--sizes", csv],
            &out,
            out.status.code().unwrap_or_default(),
            &["--sizes", csv],
        );
    }
    for log in [&empty, &binary] {
        refused(&["whatif", "--access-log", log], FAILED, &["--access-log", log]);
    }
    for capture in [&empty, &binary, &huge] {
        refused(&["whatif", "--pcap", capture], FAILED, &["--pcap", capture]);
    }
    std::fs::remove_dir_all(&place).expect("it is ours");
}

#[test]
fn port_in_use_is_reported_with_its_address() {
    let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let taken = udp.local_addr().expect("an address").to_string();
    let device = format!("udp:{taken}");
    let says = [taken.as_str(), "in use", "choose another"];
    refused(&["serve", ".", "--device", &device], FAILED, &says);
    refused(&["get", "http://127.0.0.1:9/", "--device", &device], FAILED, &says);
    refused(&["backend", "--listen", &taken, "--to", "127.0.0.1:80", "--plain"], FAILED, &says);

    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = tcp.local_addr().expect("an address").to_string();
    let says = [taken.as_str(), "in use", "choose another"];
    refused(&["frontend", "--listen", &taken, "--peer", "127.0.0.1:7443", "--plain"], FAILED, &says);
}

#[test]
fn invalid_admin_listener_is_reported_before_the_start() {
    let backend = ["backend", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:80", "--plain"];
    let frontend = ["frontend", "--listen", "127.0.0.1:0", "--peer", "127.0.0.1:7443", "--plain"];
    let taken = TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr().map(|at| (taken, at)));
    let (_taken, address) = taken.expect("a port");
    let address = address.to_string();
    for words in [&backend[..], &frontend] {
        let with = |more: &[&'static str]| [words, more].concat();
        refused(&[words, &["--admin", &address]].concat(), FAILED, &["--admin", &address, "in use"]);
        refused(&with(&["--admin", "0.0.0.0:0"]), FAILED, &["0.0.0.0:0", "--admin-token-file"]);
        let file = with(&["--admin", "127.0.0.1:0", "--admin-token-file", "/nonexistent"]);
        refused(&file, FAILED, &["--admin-token-file /nonexistent", "token_file", "cannot be read"]);
    }
}

#[test]
fn silent_peer_is_given_up_in_time() {
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/", silent.local_addr().expect("bound"));
    let words = ["get", &url, "--device", "udp:127.0.0.1:0", "--connect-timeout", "200ms"];
    refused(&words, FAILED, &[&url, "no answer within 200ms", "check address, port and device"]);
    let words = ["get", "http://name.invalid/", "--device", "udp:127.0.0.1:0"];
    refused(&words, FAILED, &["name.invalid", "check the name"]);
}

#[test]
fn gateway_without_a_key_starts_only_with_plain() {
    let backend = ["backend", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:80"];
    let frontend = ["frontend", "--listen", "127.0.0.1:0", "--peer", "127.0.0.1:7443"];
    for words in [backend, frontend] {
        refused(&words, USAGE, &["no key", "brisk keygen > key", "--key-file key", "--plain"]);
        let missing = [&words[..], &["--key-file", "/nowhere/key"]].concat();
        refused(&missing, FAILED, &["/nowhere/key", "cannot be read", "brisk keygen >"]);
        let open = [&words[..], &["--key-file", "/etc/hostname"]].concat();
        refused(&open, FAILED, &["/etc/hostname", "chmod 600"]);
        let both = [&words[..], &["--key-file", "key", "--plain"]].concat();
        refused(&both, USAGE, &["--key-file", "--plain"]);
    }
}

/// Runs the program without any right; the error is the reason why that is impossible.
fn unprivileged(words: &[&str]) -> Result<Output, String> {
    let is_root = std::fs::metadata("/proc/self")
        .is_ok_and(|process| std::os::unix::fs::MetadataExt::uid(&process) == 0);
    if !is_root {
        return brisk(words).output().map_err(|error| error.to_string());
    }
    // The program's directory may be accessible to root only.
    let copy = std::env::temp_dir().join(format!("brisk-bad-input-{}", std::process::id()));
    std::fs::copy(env!("CARGO_BIN_EXE_brisk"), &copy).map_err(|error| error.to_string())?;
    let nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set", "-all"];
    let out = Command::new("setpriv").args(nobody).arg(&copy).args(words).output();
    // If this fails, the system cleans the directory for temporary files.
    let _ = std::fs::remove_file(&copy);
    match out {
        Ok(out) if String::from_utf8_lossy(&out.stderr).starts_with("setpriv:") => {
            Err("setpriv cannot drop the rights of root here".to_owned())
        }
        Ok(out) => Ok(out),
        Err(error) => Err(format!("needs setpriv to drop the rights of root: {error}")),
    }
}

#[test]
fn missing_rights_are_reported_with_the_remedies() {
    let tun = ["--device", "tun:brisk-nobody", "--addr", "10.7.0.2/24"];
    let device = &["permission denied", "CAP_NET_ADMIN", "ip tuntap add", "udp:"][..];
    for (words, says) in [
        ([&["get", "http://10.7.0.1/"], &tun[..]].concat(), device),
        ([&["serve", "."], &tun[..]].concat(), device),
        (vec!["emulate", "--a", "tun:brisk-nobody-a", "--b", "tun:brisk-nobody-b"], &device[..3]),
        (
            vec!["emulate", "--between", "brisk-nobody-a,brisk-nobody-b", "--create"],
            &["CAP_SYS_ADMIN", "root"],
        ),
        (
            vec!["backend", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:80", "--plain", "--as-client"],
            &["--as-client", "CAP_NET_RAW", "--send-proxy"],
        ),
    ] {
        match unprivileged(&words) {
            Ok(out) => assert_refused(&words, &out, FAILED, says),
            Err(why) => println!("SKIPPED missing_rights: {why}"),
        }
    }
}
