//! Our TCP on the host's own addresses, through packet sockets: to the kernel's TCP in both roles, and as the way of the
//! gateway pair where the path carries no UDP.

use std::process::Command;

use crate::link::{CLEAN, FAR, LOSSY, Link};
use crate::namespace::Namespace;
use crate::nginx;
use crate::pages::{Pages, assert_same, fetches};
use crate::process::{Process, eventually, run, text};

#[test]
fn fetching_on_the_hosts_own_address_is_not_disturbed_by_its_kernel() {
    require!("nginx");
    let (link, pages) = (Link::start(LOSSY), Pages::new());
    let page = pages.write("page", 1_000_000);
    let _nginx = nginx::serve(&link.far, &pages);
    for address in FAR {
        let (url, copy) = (format!("http://{}/page", address.url), pages.path("copy"));
        let words = ["get", &url, "--device", "packet:brisk0", "--repeat", "3", "-o"];
        run(link.near.brisk(&words).arg(&copy));
        assert_same(&copy, &page);
    }
    assert_eq!(resets(&link.near), 0, "the kernel has answered for us");
    assert!(guarded(&link.near) > 0, "the guards were not needed?");
}

#[test]
fn serving_on_the_hosts_own_address_leaves_its_other_ports_to_the_kernel() {
    require!("nginx", "curl");
    let (link, pages) = (Link::start(LOSSY), Pages::new());
    let page = pages.write("page", 1_000_000);
    let _nginx = nginx::serve(&link.far, &pages);
    let words = ["serve", pages.directory(), "--device", "packet:brisk0", "--port", "8000"];
    let server = Process::start("brisk serve", &mut link.far.brisk(&words));
    server.until_it_says("url=");
    let before = resets(&link.far);
    for port in ["8000", "80", "8000"] {
        for address in FAR {
            let url = format!("http://{}:{port}/page", address.url);
            fetches(link.near.command("curl").args(["-sSfg", "-m", "60", &url]), &page, 1);
        }
    }
    assert_eq!(resets(&link.far), before, "the kernel has answered for us");
    // When the process goes, so does its guard.
    assert_eq!(server.stop().status, Some(0));
    let refused = link.near.command("curl").args(["-sS", "-m", "5", "http://10.77.0.2:8000/"]).output();
    assert_eq!(refused.expect("curl starts").status.code(), Some(7), "nobody listens");
}

/// The port of the hop.
const PORT: &str = "7443";
const ADMIN: &str = "127.0.0.1:9413";
const KEY: &str = "6f1c0dd5a1f3b6b6e0a7f0c59f5d6b1c3a9e8d7c6b5a49382716054f3e2d1c0b";

/// A path of which parts can be blocked by rules of the near host, which tracks connections.
struct Blocked<'a>(&'a Namespace);

impl<'a> Blocked<'a> {
    fn none(namespace: &'a Namespace) -> Blocked<'a> {
        let rules = "table inet t { chain out { type filter hook output priority 0; }; }";
        run(namespace.command("nft").arg(rules));
        Blocked(namespace)
    }

    fn only(&self, rules: &[&str]) {
        run(self.0.command("nft").arg("flush chain inet t out"));
        let rules = rules.iter().map(|rule| format!("{rule} drop"));
        for rule in rules.chain(["ct state invalid drop".to_owned()]) {
            run(self.0.command("nft").arg(format!("add rule inet t out {rule}")));
        }
    }
}

fn carrier(namespace: &Namespace) -> String {
    let out = namespace.command("curl").args(["-sS", &format!("http://{ADMIN}/status")]).output();
    let status: serde_json::Value = serde_json::from_slice(&out.expect("curl starts").stdout).expect("JSON");
    status["backends"][0]["carrier"].as_str().expect("a carrier").to_owned()
}

#[test]
fn the_hop_goes_the_first_way_that_the_path_carries_and_comes_back() {
    require!("nginx", "curl", "nft");
    let (link, pages) = (Link::start(CLEAN), Pages::new());
    let page = pages.write("page", 300_000);
    let _nginx = nginx::serve(&link.far, &pages);
    let shared = ["--packet", "brisk0"];
    let listen = format!(":{PORT}");
    let words = [&["backend", "--listen", &listen, "--to", "127.0.0.1:80"], &shared[..]].concat();
    let backend = Process::start("brisk backend", link.far.brisk(&words).env("BRISK_KEY", KEY));
    backend.until_it_says("listen=");
    let peer = format!("10.77.0.2:{PORT}");
    let words = ["frontend", "--listen", "127.0.0.1:8080", "--peer", &peer, "--admin", ADMIN];
    let words = [&words[..], &shared].concat();
    let frontend = Process::start("brisk frontend", link.near.brisk(&words).env("BRISK_KEY", KEY));
    frontend.until_it_says("health=up");

    let (blocked, before) = (Blocked::none(&link.near), resets(&link.far));
    let udp = format!("udp dport {PORT}");
    let native = format!("tcp dport {PORT} tcp sport >= 61056");
    for (rules, way) in [
        (vec![], "brisk"),
        (vec![udp.as_str()], "packet"),
        (vec![udp.as_str(), native.as_str()], "kernel-tcp"),
        (vec![udp.as_str()], "packet"),
        (vec![], "brisk"),
    ] {
        blocked.only(&rules);
        let fetch = || -> Command {
            let mut curl = link.near.command("curl");
            curl.args([
                "-sSf",
                "-m",
                "20",
                "--retry",
                "5",
                "--retry-all-errors",
                "http://127.0.0.1:8080/page",
            ]);
            curl
        };
        fetches(&mut fetch(), &page, 1);
        eventually(&format!("the hop goes over {way}"), || (carrier(&link.near) == way).then_some(()));
        for _ in 0..3 {
            fetches(&mut fetch(), &page, 1);
        }
    }
    assert_eq!(resets(&link.far), before, "the kernel has answered for us");
    assert_eq!(frontend.stop().status, Some(0));
    assert_eq!(backend.stop().status, Some(0));
}

/// Segments with RST that the kernel of a namespace has sent.
fn resets(namespace: &Namespace) -> u64 {
    counter(namespace, "TcpOutRsts")
}

/// Segments that its guards have swallowed.
fn guarded(namespace: &Namespace) -> u64 {
    counter(namespace, "TcpExtTCPMinTTLDrop")
}

fn counter(namespace: &Namespace, name: &str) -> u64 {
    let out = run(namespace.command("nstat").args(["-asz", name]));
    let said = text(&out.stdout);
    let value = said.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {said}"))
}
