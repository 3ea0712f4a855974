//! Rights that a gateway gives up, and `brisk run`: a command in its own namespaces.

use crate::gateway::{echo, key};
use crate::program::{Running, Scratch};
use crate::tun::in_namespace;

#[test]
fn no_thread_of_a_gateway_keeps_unneeded_rights() {
    let files = Scratch::with_files();
    let key = key(&files, "key");
    let origin = echo().to_string();
    let flags = ["--listen", "127.0.0.1:0", "--to", &origin, "--key-file", &key, "--threads", "3"];
    let mut backend = Running::start(&[&["backend"], &flags[..]].concat());
    let said = backend.until("event=confined");
    assert!(said.contains("capabilities=") && said.contains("files="), "{said}");
    let threads = std::fs::read_dir(format!("/proc/{}/task", backend.pid())).expect("it runs");
    let mut seen = 0;
    for thread in threads {
        let status = std::fs::read_to_string(thread.expect("a thread").path().join("status"));
        let Ok(status) = status else { continue };
        let value = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.map(str::trim).unwrap_or_default().to_owned()
        };
        assert_eq!(value("NoNewPrivs:"), "1");
        let held = u64::from_str_radix(&value("CapPrm:"), 16).expect("a number");
        // The only permitted capabilities are CAP_DAC_READ_SEARCH and CAP_NET_BIND_SERVICE.
        assert_eq!(held & !(1 << 2 | 1 << 10), 0, "{held:x}");
        seen += 1;
    }
    assert!(seen >= 3, "{seen} threads: one for each core that was asked for");
}

const RUN: &str = r#"
ip link set lo up
ip addr add 192.0.2.1/32 dev lo
mkdir "$2/www"; echo hello > "$2/www/hello.txt"
python3 -m http.server 8000 --bind 192.0.2.1 --directory "$2/www" 2> /dev/null > /dev/null &
server=$!
"$1" backend --listen 127.0.0.1:7443 --to 192.0.2.1:8000 --allow 192.0.2.1:8000 --key-file "$3" 2> "$2/log" &
backend=$!
trap 'kill -KILL $server $backend 2> /dev/null || true' EXIT
for _ in $(seq 100); do curl -s -o /dev/null http://192.0.2.1:8000/ && break; sleep 0.05; done
for _ in $(seq 100); do grep -q started "$2/log" && break; sleep 0.05; done
"$1" run --peer 127.0.0.1:7443 --key-file "$3" -- sh -c \
    'ip -o addr show | grep -c 192.0.2.1; curl -sS -m 10 http://192.0.2.1:8000/hello.txt; exit 7' || echo status $?
carried='event=access.*bytes_down=[1-9]'
for _ in $(seq 200); do grep -q "$carried" "$2/log" && break; sleep 0.05; done
grep -c "$carried" "$2/log"
"#;

#[test]
fn a_command_in_namespaces_of_its_own_goes_through_the_gateway() {
    let files = Scratch::with_files();
    let key = key(&files, "key");
    // Some systems forbid such namespaces, or lack nft.
    let probe =
        std::process::Command::new("unshare").args(["-Urn", "nft", "add", "table", "inet", "x"]).output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        println!("skipped: no user namespace in which nft works");
        return;
    }
    if let Some(out) = in_namespace(&["python3", "curl"], RUN, &[&files.path(""), &key]) {
        assert_eq!(out, "0\nhello\nstatus 7\n1\n");
    }
}
