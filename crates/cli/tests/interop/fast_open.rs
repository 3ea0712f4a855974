//! Fast Open with the kernel, in both roles and both families, checked by the kernel's own counters.

use std::collections::HashMap;
use std::process::Command;

use crate::get::DEVICE;
use crate::namespace::Namespace;
use crate::nginx;
use crate::pages::{Pages, fetches};
use crate::process::{Process, run, text};

/// Any key, in the format of `net.ipv4.tcp_fastopen_key`.
const KEY: &str = "a0bf63f7-ed803d81-cd641d30-cebc4a90";

/// Enables the kernel's client and server in a namespace.
pub(crate) fn allow(namespace: &Namespace) {
    run(namespace.command("sysctl").args(["-q", "-w", "net.ipv4.tcp_fastopen=3"]));
}

/// Returns the kernel's `TCPFastOpen*` counters.
pub(crate) fn counters(namespace: &Namespace) -> HashMap<String, u64> {
    netstat(namespace, "TCPFastOpen")
}

/// Returns the kernel's counters whose names begin with `prefix`, without it.
pub(crate) fn netstat(namespace: &Namespace, prefix: &str) -> HashMap<String, u64> {
    let table = text(&run(namespace.command("cat").arg("/proc/net/netstat")).stdout);
    let lines: Vec<&str> = table.lines().collect();
    let pairs = lines.chunks(2).flat_map(|pair| pair[0].split(' ').zip(pair[1].split(' ')));
    pairs
        .filter_map(|(name, value)| Some((name.strip_prefix(prefix)?.to_owned(), value.parse().ok()?)))
        .collect()
}

/// Returns `curl --tcp-fastopen`, which opens its own connection.
pub(crate) fn curl(namespace: &Namespace, host: &str) -> Command {
    let mut curl = namespace.command("curl");
    curl.args(["--tcp-fastopen", "-sSfg", "-m", "20", &format!("http://{host}/small")]);
    curl
}

/// Starts `brisk serve` with [`KEY`] at 10.7.0.2 and fd07::2.
fn serve(namespace: &Namespace, pages: &Pages) -> Process {
    let key = pages.path("key");
    std::fs::write(&key, KEY).expect("the key can be written");
    let mut command = namespace.brisk(&[
        "serve",
        pages.directory(),
        "--device",
        "tun:brisk1",
        "--addr",
        "10.7.0.2/24,fd07::2/64",
    ]);
    let server = Process::start("brisk serve", command.args(["--fast-open", "--fast-open-key"]).arg(&key));
    server.until_it_says("url=http://[fd07::2]:80/");
    server
}

#[test]
fn the_kernel_opens_connections_to_us_with_a_cookie() {
    require!("curl", "sysctl");
    let (namespace, pages) = (Namespace::new(), Pages::new());
    allow(&namespace);
    let server = serve(&namespace, &pages);
    for host in ["10.7.0.2", "[fd07::2]"] {
        let before = counters(&namespace)["Active"];
        for used in [0, 1, 2] {
            fetches(&mut curl(&namespace, host), &pages.path("small"), 1);
            assert_eq!(counters(&namespace)["Active"] - before, used, "{host}");
        }
    }
    assert_eq!(counters(&namespace)["ActiveFail"], 0);
    let ended = server.stop();
    assert_eq!(ended.status, Some(0), "{}", ended.said);
}

#[test]
fn msg_fastopen_of_python_opens_connections_to_us() {
    require!("python3", "sysctl");
    let (namespace, pages) = (Namespace::new(), Pages::new());
    allow(&namespace);
    let _server = serve(&namespace, &pages);
    let script = "
import socket
for _ in range(3):
    s = socket.socket()
    s.sendto(b'GET /small HTTP/1.0\\r\\n\\r\\n', socket.MSG_FASTOPEN, ('10.7.0.2', 80))
    got = b''
    while part := s.recv(65536):
        got += part
    assert got.startswith(b'HTTP/1.') and got.endswith(open(FILE, 'rb').read()), got
";
    let script = script.replace("FILE", &format!("{:?}", pages.path("small")));
    run(namespace.command("python3").args(["-c", &script]));
    assert_eq!(counters(&namespace)["Active"], 2);
}

#[test]
fn we_open_connections_to_the_kernel_with_a_cookie() {
    require!("nginx", "sysctl");
    let (namespace, pages) = (Namespace::new(), Pages::new());
    allow(&namespace);
    let _nginx = nginx::serve(&namespace, &pages);
    let cache = pages.path("cookies");
    for host in ["10.8.0.1", "[fd08::1]"] {
        let url = format!("http://{host}/small");
        let before = counters(&namespace);
        let mut outcomes = Vec::new();
        // The cookies persist from one run of the program to the next.
        for times in ["2", "1"] {
            let mut get =
                namespace.brisk(&["get", &url, "--repeat", times, "--stats", "json", "--fast-open"]);
            let figures = text(&run(get.args(DEVICE).arg("--fast-open-cache").arg(&cache)).stdout);
            for line in figures.lines() {
                let figures: serde_json::Value = serde_json::from_str(line).expect("JSON");
                assert_eq!(figures["bytes"].as_u64(), Some(700), "{line}");
                outcomes.push(figures["fast_open"].as_str().expect("a word").to_owned());
            }
        }
        assert_eq!(outcomes, ["no-cookie", "used", "used"], "{host}");
        let after = counters(&namespace);
        let grown = |name: &str| after[name] - before[name];
        assert_eq!((grown("CookieReqd"), grown("Passive"), grown("PassiveFail")), (1, 2, 0), "{host}");
    }
}

/// Starts a kernel server at the addresses of [`serve`] with [`KEY`], in a namespace next to the client's.
fn kernel_server(client: &Namespace, pages: &Pages) -> (Namespace, Process) {
    let server = Namespace::new();
    allow(&server);
    run(server.command("sysctl").args(["-q", "-w", &format!("net.ipv4.tcp_fastopen_key={KEY}")]));
    client.ip(&["link", "add", "near", "type", "veth", "peer", "name", "far", "netns", server.name()]);
    for (namespace, device, last) in [(client, "near", 1), (&server, "far", 2)] {
        namespace.ip(&["addr", "add", &format!("10.7.0.{last}/24"), "dev", device]);
        namespace.ip(&["link", "set", device, "up"]);
    }
    let nginx = nginx::serve(&server, pages);
    (server, nginx)
}

#[test]
fn the_kernel_takes_our_cookies_and_we_take_its() {
    require!("nginx", "curl", "sysctl");
    let (client, pages) = (Namespace::new(), Pages::new());
    allow(&client);
    let small = pages.path("small");
    let ours = serve(&client, &pages);
    fetches(&mut curl(&client, "10.7.0.2"), &small, 1);
    ours.stop();
    // The address moves to a kernel with the same key, which accepts our cookie.
    let (server, nginx) = kernel_server(&client, &pages);
    fetches(&mut curl(&client, "10.7.0.2"), &small, 1);
    let at_server = counters(&server);
    assert_eq!((at_server["Passive"], at_server["CookieReqd"]), (1, 0));
    // The address moves back; the client then has a cookie of the kernel.
    let flush = client.command("ip").args(["tcp_metrics", "flush"]).output().expect("ip starts");
    if !flush.status.success() {
        return crate::machine::skipped("its second half needs root to make the kernel forget a cookie");
    }
    fetches(&mut curl(&client, "10.7.0.2"), &small, 1);
    assert_eq!(counters(&server)["CookieReqd"], 1);
    nginx.stop();
    client.ip(&["link", "delete", "near"]);
    let before = counters(&client)["Active"];
    let _ours = serve(&client, &pages);
    fetches(&mut curl(&client, "10.7.0.2"), &small, 1);
    assert_eq!(counters(&client)["Active"] - before, 1);
}
