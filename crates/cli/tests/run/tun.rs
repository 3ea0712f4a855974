//! `serve` and `get` over a TUN in a separate network namespace, with curl and a kernel server.

use std::process::Command;

use crate::program::{BRISK, Scratch, text};

/// Runs a shell script in a fresh network namespace; `None`, with the reason printed, if the namespace or one
/// of the necessary programs is not available.
pub(crate) fn in_namespace(needs: &[&str], script: &str, arguments: &[&str]) -> Option<String> {
    let works = |flags: &&str| {
        let probe = "test -c /dev/net/tun && ip link set lo up";
        Command::new("unshare")
            .args([flags, "sh", "-c", probe])
            .output()
            .is_ok_and(|out| out.status.success())
    };
    let Some(flags) = ["-n", "-Urn"].into_iter().find(works) else {
        println!(
            "skipped: no network namespace with a TUN (it needs root or user namespaces, unshare and ip)"
        );
        return None;
    };
    for program in needs {
        if !Command::new(program).arg("--version").output().is_ok_and(|out| out.status.success()) {
            println!("skipped: there is no {program}");
            return None;
        }
    }
    let out =
        Command::new("unshare").args([flags, "sh", "-e", "-c", script, "sh", BRISK]).args(arguments).output();
    let out = out.expect("unshare starts");
    assert!(out.status.success(), "{}{}", text(&out.stdout), text(&out.stderr));
    Some(text(&out.stdout))
}

const SERVE: &str = r#"
ip link set lo up
"$1" serve "$2" --device tun:brisk0 --addr 10.7.0.2/24 --addr fd07::2/64 2> "$2/log" &
server=$!
trap 'kill -KILL $server 2> /dev/null || true' EXIT
for _ in $(seq 100); do grep -q 'fd07::2' "$2/log" && break; sleep 0.05; done
curl -sS -m 10 http://10.7.0.2/hello.txt
curl -sS -m 10 -g 'http://[fd07::2]/hello.txt'
curl -sS -m 10 http://10.7.0.2/big | cmp - "$2/big"
curl -sS -m 10 -r 1000-1999 http://10.7.0.2/big | wc -c
kill -TERM $server
wait $server
echo stopped
"#;

#[test]
fn curl_fetches_from_serve_over_a_tun() {
    let files = Scratch::with_files();
    if let Some(out) = in_namespace(&["curl"], SERVE, &[&files.path("")]) {
        assert_eq!(out, "hello\nhello\n1000\nstopped\n");
    }
}

const GET: &str = r#"
ip link set lo up
python3 -m http.server 8000 --bind 0.0.0.0 --directory "$2" 2> /dev/null > /dev/null &
server=$!
trap 'kill -KILL $server 2> /dev/null || true' EXIT
for _ in $(seq 100); do curl -s -o /dev/null http://127.0.0.1:8000/ && break; sleep 0.05; done
"$1" get http://10.7.0.1:8000/hello.txt --device tun:brisk0 --addr 10.7.0.2/24
"$1" get http://10.7.0.1:8000/big --device tun:brisk0 --addr 10.7.0.2/24 -o "$2/copy" --stats json --repeat 2
cmp "$2/copy" "$2/big"
"$1" get http://10.7.0.1:8001/ --device tun:brisk0 --addr 10.7.0.2/24 2> "$2/refused" || echo status $?
cat "$2/refused"
"#;

#[test]
fn get_fetches_from_a_kernel_server_over_a_tun() {
    let files = Scratch::with_files();
    let Some(out) = in_namespace(&["python3", "curl"], GET, &[&files.path("")]) else { return };
    let lines: Vec<&str> = out.lines().collect();
    let [hello, first, second, status, refused] = lines[..] else { panic!("{out}") };
    assert_eq!((hello, status), ("hello", "status 1"));
    assert!(first.contains("\"bytes\":3000000") && second.contains("\"timeouts\":0"), "{out}");
    assert!(refused.contains("connection refused by the peer"), "{refused}");
}
