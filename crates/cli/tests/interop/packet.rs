//! Our TCP on the host's own addresses, through packet sockets: to the kernel's TCP in both roles, and as the
//! transport of the gateway pair if the path carries no UDP.

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
    // If a process ends with its last segment lost, the kernel may answer later packets.
    let ended = FAR.len() as u64;
    assert!(resets(&link.near) <= ended, "the kernel has answered for us");
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
    // The guard ends with the process.
    assert_eq!(server.stop().status, Some(0));
    let refused = link.near.command("curl").args(["-sS", "-m", "5", "http://10.77.0.2:8000/"]).output();
    assert_eq!(refused.expect("curl starts").status.code(), Some(7), "nobody listens");
}

/// The port of the hop.
const PORT: &str = "7443";
const ADMIN: &str = "127.0.0.1:9413";
const KEY: &str = "6f1c0dd5a1f3b6b6e0a7f0c59f5d6b1c3a9e8d7c6b5a49382716054f3e2d1c0b";

/// A path that rules of the near host can block. The host also tracks connections.
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

fn transport(namespace: &Namespace) -> String {
    let out = namespace.command("curl").args(["-sS", &format!("http://{ADMIN}/status")]).output();
    let status: serde_json::Value = serde_json::from_slice(&out.expect("curl starts").stdout).expect("JSON");
    status["backends"][0]["transport"].as_str().expect("a transport").to_owned()
}

#[test]
fn hop_uses_the_first_working_transport_and_returns_to_udp() {
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
        eventually(&format!("the hop goes over {way}"), || (transport(&link.near) == way).then_some(()));
        for _ in 0..3 {
            fetches(&mut fetch(), &page, 1);
        }
    }
    assert_eq!(resets(&link.far), before, "the kernel has answered for us");
    assert_eq!(frontend.stop().status, Some(0));
    assert_eq!(backend.stop().status, Some(0));
}

/// Returns the number of RST segments that the kernel of a namespace has sent.
pub(crate) fn resets(namespace: &Namespace) -> u64 {
    counter(namespace, "TcpOutRsts")
}

/// Returns the number of segments that the TTL guards of a namespace's sockets have dropped.
fn guarded(namespace: &Namespace) -> u64 {
    counter(namespace, "TcpExtTCPMinTTLDrop")
}

fn counter(namespace: &Namespace, name: &str) -> u64 {
    let out = run(namespace.command("nstat").args(["-asz", name]));
    let said = text(&out.stdout);
    let value = said.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {said}"))
}

/// Creates two hosts on an Ethernet, with the interface `eth` at both.
pub(crate) fn ethernet() -> (Namespace, Namespace) {
    let (near, far) = (Namespace::new(), Namespace::new());
    near.ip(&["link", "add", "eth", "type", "veth", "peer", "name", "eth", "netns", far.name()]);
    for (host, v4, v6) in [(&near, "10.66.0.1/24", "fd66::1/64"), (&far, "10.66.0.2/24", "fd66::2/64")] {
        host.ip(&["addr", "add", v4, "dev", "eth"]);
        host.ip(&["addr", "add", v6, "dev", "eth", "nodad"]);
        host.ip(&["link", "set", "eth", "up"]);
    }
    (near, far)
}

pub(crate) fn has_interface(host: &Namespace, name: &str) -> bool {
    let output = host.command("ip").args(["link", "show", name]).output().expect("ip starts");
    output.status.success()
}

#[test]
fn kernel_redirects_frames_on_ethernet_and_keeps_its_own() {
    require!("nginx", "curl");
    let ((near, far), pages) = (ethernet(), Pages::new());
    let page = pages.write("page", 5_000_000);
    let _nginx = nginx::serve(&far, &pages);
    let words = ["serve", pages.directory(), "--device", "packet:eth", "--port", "8000"];
    let server = Process::start("brisk serve", &mut far.brisk(&words));
    let said = server.until_it_says("url=");
    if said.contains("frames=copied") {
        println!("skipped: this kernel redirects no frames (Linux 6.6, CAP_BPF)");
        return;
    }
    assert!(has_interface(&far, "brisk0"));
    let before = resets(&far);
    for host in ["10.66.0.2", "[fd66::2]"] {
        for port in ["8000", "80", "8000"] {
            let url = format!("http://{host}:{port}/page");
            fetches(near.command("curl").args(["-sSfg", "-m", "60", &url]), &page, 1);
        }
        // In this request our stack opens the connection.
        let (url, copy) = (format!("http://{host}/page"), pages.path("copy"));
        run(near.brisk(&["get", &url, "--device", "packet:eth", "-o"]).arg(&copy));
        assert_same(&copy, &page);
    }
    assert_eq!(resets(&far), before, "the kernel has answered for us");
    // The kernel may answer segments that arrive after a process has ended.
    assert!(resets(&near) <= 2, "the kernel has answered for us");
    // SIGKILL leaves nothing behind: the kernel answers for the port again.
    server.signal("-KILL");
    eventually("the device has gone", || (!has_interface(&far, "brisk0")).then_some(()));
    let refused = near.command("curl").args(["-sS", "-m", "5", "http://10.66.0.2:8000/"]).output();
    assert_eq!(refused.expect("curl starts").status.code(), Some(7), "nobody listens");
    fetches(near.command("curl").args(["-sSf", "-m", "60", "http://10.66.0.2/page"]), &page, 1);
}

/// Sends long files over an interface that takes packets of any length and over one that has them cut into
/// 1,500 bytes; then with losses, and to a client that does not read for a while.
#[test]
fn long_files_arrive_unchanged_with_any_segmentation_and_loss() {
    require!("curl", "ethtool", "nft");
    let ((near, far), pages) = (ethernet(), Pages::new());
    let page = pages.write("page", 50_000_000);
    let words = ["serve", pages.directory(), "--device", "packet:eth", "--port", "8000"];
    let server = Process::start("brisk serve", &mut far.brisk(&words));
    server.until_it_says("url=");
    let fetch = |more: &[&str]| {
        for host in ["10.66.0.2", "[fd66::2]"] {
            let url = format!("http://{host}:8000/page");
            fetches(near.command("curl").args(["-sSfg", "-m", "60", &url]).args(more), &page, 1);
        }
    };
    fetch(&[]);
    fetch(&["--limit-rate", "20M"]);
    for host in [&near, &far] {
        run(host.command("ethtool").args(["-K", "eth", "tso", "off", "gso", "on", "gro", "on"]));
    }
    fetch(&[]);
    let rule = "add table inet lossy; add chain inet lossy arriving { type filter hook prerouting priority 0; }; \
                add rule inet lossy arriving tcp sport 8000 numgen random mod 100 == 0 counter drop";
    run(near.command("nft").arg(rule));
    fetch(&[]);
    let said = run(near.command("nft").args(["list", "table", "inet", "lossy"]));
    assert!(!text(&said.stdout).contains("packets 0 "), "nothing was lost: {}", text(&said.stdout));
}

#[test]
fn forwarded_packets_are_not_taken() {
    require!("nginx", "curl");
    let ((near, router), behind, pages) = (ethernet(), Namespace::new(), Pages::new());
    router.ip(&["link", "add", "inner", "type", "veth", "peer", "name", "eth", "netns", behind.name()]);
    router.ip(&["addr", "add", "10.67.0.1/24", "dev", "inner"]);
    router.ip(&["link", "set", "inner", "up"]);
    behind.ip(&["addr", "add", "10.67.0.2/24", "dev", "eth"]);
    behind.ip(&["link", "set", "eth", "up"]);
    behind.ip(&["route", "add", "default", "via", "10.67.0.1"]);
    near.ip(&["route", "add", "10.67.0.0/24", "via", "10.66.0.2"]);
    router.forward();
    let page = pages.write("page", 300_000);
    let _nginx = nginx::serve(&behind, &pages);
    let words = ["serve", "--synthetic", pages.directory(), "--device", "packet:eth", "--port", "80"];
    let server = Process::start("brisk serve", &mut router.brisk(&words));
    server.until_it_says("url=");
    fetches(near.command("curl").args(["-sSf", "-m", "60", "http://10.67.0.2/page"]), &page, 1);
    let own = near.command("curl").args(["-sSf", "-m", "60", "http://10.66.0.2/5"]).output();
    assert_eq!(own.expect("curl starts").stdout.len(), 5);
}
