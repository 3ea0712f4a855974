//! `brisk frontend --client-device`: kernel clients, brisk's TCP, the frontend, the hop, the backend, nginx.

use std::process::{Command, Stdio};

use crate::fast_open::{allow, counters};
use crate::link::{LOSSY, Link};
use crate::namespace::Namespace;
use crate::nginx;
use crate::packet::{ethernet, has_interface, resets};
use crate::pages::{Pages, curl, fetches};
use crate::process::{Process, eventually, run, text};

const KEY: &str = "6f1c0dd5a1f3b6b6e0a7f0c59f5d6b1c3a9e8d7c6b5a49382716054f3e2d1c0b";
pub(crate) const ADMIN: &str = "127.0.0.1:9413";

fn backend(host: &Namespace, listen: &str) -> Process {
    let words = ["backend", "--listen", listen, "--to", "127.0.0.1:80"];
    let backend = Process::start("brisk backend", host.brisk(&words).env("BRISK_KEY", KEY));
    backend.until_it_says("listen=");
    backend
}

fn frontend(host: &Namespace, peer: &str, device: &[&str]) -> Process {
    let words = ["frontend", "--listen", ":8000", "--peer", peer, "--admin", ADMIN, "--client-device"];
    let mut command = host.brisk(&[&words[..], device].concat());
    let frontend = Process::start("brisk frontend", command.env("BRISK_KEY", KEY));
    frontend.until_it_says("health=up");
    frontend
}

/// The value of a series of a gateway's metrics.
pub(crate) fn series(host: &Namespace, labelled: &str) -> u64 {
    let metrics = text(&run(&mut curl(host, &[&format!("http://{ADMIN}/metrics")])).stdout);
    let value = metrics.lines().find_map(|line| line.strip_prefix(labelled)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("{labelled} is not in\n{metrics}"))
}

#[test]
fn curl_reaches_nginx_over_two_lossy_hops_with_and_without_fast_open() {
    require!("nginx", "curl", "sysctl");
    let (link, far, pages) = (Link::start(LOSSY), Namespace::new(), Pages::new());
    let (near, middle) = (&link.near, &link.far);
    let mut emulate = Command::new(env!("CARGO_BIN_EXE_brisk"));
    let ends =
        [format!("tun:hop0@{}=10.88.0.1/24", middle.name()), format!("tun:hop0@{}=10.88.0.2/24", far.name())];
    emulate.args(["emulate", "--a", &ends[0], "--b", &ends[1]]).args(LOSSY).stdout(Stdio::piped());
    let hop = Process::start("brisk emulate", &mut emulate);
    hop.until_it_says("try: ip netns exec");
    allow(near);
    let (page, short) = (pages.write("page", 1_000_000), pages.write("short", 20_000));
    let _nginx = nginx::serve(&far, &pages);
    let backend = backend(&far, "10.88.0.2:7443");
    let frontend = frontend(middle, "10.88.0.2:7443", &["packet:brisk0"]);
    let before = resets(middle);
    let mut count = 0;
    for host in ["10.77.0.2", "[fd77::2]"] {
        fetches(&mut curl(near, &[&format!("http://{host}:8000/page")]), &page, 1);
        for options in [&[][..], &["--tcp-fastopen"]] {
            for _ in 0..8 {
                let url = format!("http://{host}:8000/short");
                fetches(&mut curl(near, &[options, &[&url[..]]].concat()), &short, 1);
                count += 1;
            }
        }
        count += 1;
    }
    assert!(counters(near)["Active"] > 4, "requests have travelled on SYNs: {:?}", counters(near));
    assert_eq!(resets(middle), before, "the kernel has answered for us");
    let of = |more: &str| series(middle, &format!("brisk_client_connections_total{{tcp=\"brisk\",{more}}}"));
    eventually("every connection has ended", || (of("result=\"closed\"") == count).then_some(()));
    assert!(series(middle, "brisk_client_tfo_attempts_total{result=\"used\"}") > 4);
    assert!(series(middle, "brisk_client_segments_total{tcp=\"brisk\",kind=\"retransmit\"}") > 0);
    let ended = frontend.stop();
    assert_eq!(ended.status, Some(0), "{}", ended.said);
    let lines: Vec<&str> = ended.said.lines().filter(|line| line.contains("event=access")).collect();
    assert_eq!(lines.len() as u64, count);
    for line in lines {
        assert!(line.contains(" client_rtt_ms=") && line.contains("reason=closed"), "{line}");
    }
    assert_eq!(backend.stop().status, Some(0));
    assert_eq!(hop.stop().status, Some(0));
}

#[test]
fn frontend_serves_clients_next_to_kernel_services_and_cleans_up() {
    require!("nginx", "curl");
    let ((near, far), pages) = (ethernet(), Pages::new());
    let (page, small) = (pages.write("page", 3_000_000), pages.path("small"));
    let _nginx = nginx::serve(&far, &pages);
    let _backend = backend(&far, "127.0.0.1:7443");
    let frontend = frontend(&far, "127.0.0.1:7443", &["packet:eth"]);
    frontend.until_it_says("clients=packet:eth");
    let before = resets(&far);
    for host in ["10.66.0.2", "[fd66::2]"] {
        for port in ["8000", "80", "8000"] {
            fetches(&mut curl(&near, &[&format!("http://{host}:{port}/page")]), &page, 1);
        }
    }
    assert_eq!(resets(&far), before, "the kernel has answered for us");
    let url = "http://10.66.0.2:8000/small";
    frontend.signal("-KILL");
    eventually("the kernel answers for the port", || {
        let refused = curl(&near, &["-m", "1", url]).output();
        (refused.expect("curl starts").status.code() == Some(7)).then_some(())
    });
    eventually("the device has gone", || (!has_interface(&far, "brisk0")).then_some(()));
    fetches(&mut curl(&near, &["http://10.66.0.2/small"]), &small, 1);
}

#[test]
fn frontend_serves_clients_on_a_tun_device() {
    require!("nginx", "curl");
    let (host, pages) = (Namespace::new(), Pages::new());
    let page = pages.write("page", 3_000_000);
    let _nginx = nginx::serve(&host, &pages);
    let _backend = backend(&host, "127.0.0.1:7443");
    let device = ["tun:clients0", "--client-addr", "10.9.0.2/24,fd09::2/64"];
    let frontend = frontend(&host, "127.0.0.1:7443", &device);
    for address in ["10.9.0.2", "[fd09::2]"] {
        fetches(&mut curl(&host, &[&format!("http://{address}:8000/page")]), &page, 1);
    }
    let ended = frontend.stop();
    assert_eq!(ended.status, Some(0), "{}", ended.said);
    assert!(ended.said.contains("event=stopped accepted=2 cut=0"), "{}", ended.said);
}
