//! `brisk edge` on the host's own address: kernel clients on one side, nginx over the kernel's TCP on the
//! other, next to services of the kernel on the same address.

use crate::fast_open::{allow, counters};
use crate::namespace::Namespace;
use crate::nginx;
use crate::packet::{ethernet, has_interface, resets};
use crate::pages::{Pages, curl, fetches};
use crate::process::{Process, eventually, run, text};

/// The edge's address for clients.
const AT: &str = "10.66.0.2:8000";

/// Starts an edge in front of the nginx of this host, which listens on port 80.
fn edge(host: &Namespace, more: &[&str]) -> Process {
    let words = ["edge", "--listen", ":8000", "--device", "packet:eth", "--to", "127.0.0.1:80"];
    let edge = Process::start("brisk edge", &mut host.brisk(&[&words[..], more].concat()));
    edge.until_it_says("event=confined");
    edge
}

#[test]
fn kernel_clients_reach_the_origin_next_to_the_kernels_services() {
    require!("nginx", "curl", "sysctl");
    let ((near, far), pages) = (ethernet(), Pages::new());
    allow(&near);
    let (page, small) = (pages.write("page", 1_000_000), pages.path("small"));
    let _nginx = nginx::serve(&far, &pages);
    let edge = edge(&far, &[]);
    let before = resets(&far);
    for host in ["10.66.0.2", "[fd66::2]"] {
        for port in ["8000", "80", "8000"] {
            fetches(&mut curl(&near, &[&format!("http://{host}:{port}/page")]), &page, 1);
        }
        // The second and the third connection have a cookie.
        let active = counters(&near)["Active"];
        for used in [0, 1, 2] {
            let url = format!("http://{host}:8000/small");
            fetches(&mut curl(&near, &["--tcp-fastopen", &url]), &small, 1);
            assert_eq!(counters(&near)["Active"] - active, used, "{host}");
        }
        // Three requests over one connection.
        let url = format!("http://{host}:8000/small");
        let each = ["-o", "/dev/null", &url];
        let said = run(curl(&near, &["-w", "%{num_connects}"]).args([each; 3].as_flattened()));
        assert_eq!(text(&said.stdout), "100");
    }
    assert_eq!(counters(&near)["ActiveFail"], 0);
    assert_eq!(resets(&far), before, "the kernel has answered for us");
    let ended = edge.stop();
    assert_eq!(ended.status, Some(0), "{}", ended.said);
    let refused = curl(&near, &[&format!("http://{AT}/small")]).output();
    assert_eq!(refused.expect("curl starts").status.code(), Some(7), "nobody listens");
}

#[test]
fn client_that_has_closed_its_side_gets_the_rest_of_the_answer() {
    require!("nginx", "python3");
    let ((near, far), pages) = (ethernet(), Pages::new());
    pages.write("page", 1_000_000);
    let _nginx = nginx::serve(&far, &pages);
    let _edge = edge(&far, &[]);
    let script = "
import socket
s = socket.create_connection(('10.66.0.2', 8000), 20)
s.sendall(b'GET /page HTTP/1.0\\r\\n\\r\\n')
s.shutdown(socket.SHUT_WR)
got = b''
while part := s.recv(65536):
    got += part
print(len(got.split(b'\\r\\n\\r\\n', 1)[1]))
";
    let said = run(near.command("python3").args(["-c", script]));
    assert_eq!(text(&said.stdout).trim(), "1000000");
}

#[test]
fn killed_edge_leaves_its_port_and_the_interface_to_the_kernel() {
    require!("nginx", "curl");
    let ((near, far), pages) = (ethernet(), Pages::new());
    let _nginx = nginx::serve(&far, &pages);
    let edge = edge(&far, &[]);
    fetches(&mut curl(&near, &[&format!("http://{AT}/small")]), &pages.path("small"), 1);
    edge.signal("-KILL");
    eventually("the kernel answers for the port", || {
        let refused = curl(&near, &["-m", "1", &format!("http://{AT}/small")]).output();
        (refused.expect("curl starts").status.code() == Some(7)).then_some(())
    });
    eventually("the device has gone", || (!has_interface(&far, "brisk0")).then_some(()));
    fetches(&mut curl(&near, &["http://10.66.0.2/small"]), &pages.path("small"), 1);
}

#[test]
fn open_connection_ends_in_order_after_the_order_to_stop() {
    require!("nginx", "curl");
    let ((near, far), pages) = (ethernet(), Pages::new());
    let page = pages.write("page", 3_000_000);
    let _nginx = nginx::serve(&far, &pages);
    let edge = edge(&far, &[]);
    let url = format!("http://{AT}/page");
    let copy = pages.path("copy");
    let mut slow = curl(&near, &["--limit-rate", "2M", &url, "-o"]).arg(&copy).spawn().expect("curl starts");
    eventually("the answer has begun", || std::fs::metadata(&copy).is_ok().then_some(()));
    let ended = edge.stop();
    assert_eq!(ended.status, Some(0), "{}", ended.said);
    assert!(slow.wait().expect("it ends").success());
    assert_eq!(std::fs::read(&copy).expect("a copy"), std::fs::read(&page).expect("the page"));
    assert!(ended.said.contains("event=stopped accepted=1 cut=0"), "{}", ended.said);
}

#[test]
fn failed_start_of_an_edge_is_reported_with_the_remedy() {
    require!("nginx");
    let ((_near, far), pages) = (ethernet(), Pages::new());
    let _nginx = nginx::serve(&far, &pages);
    for (listen, device, says) in [
        (":80", "packet:eth", "80"),
        (":8000", "packet:eth7", "eth7"),
        ("10.66.0.77:8000", "packet:eth", "10.66.0.77"),
    ] {
        let words = ["edge", "--listen", listen, "--device", device, "--to", "127.0.0.1:80"];
        let out = far.brisk(&words).output().expect("it starts");
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{said}");
        let last = said.lines().last().unwrap_or_default();
        assert!(last.starts_with("brisk: ") && last.contains(says), "{said}");
    }
}
