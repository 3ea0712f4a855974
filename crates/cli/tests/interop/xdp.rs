//! Our TCP on the host's own addresses through AF_XDP: both roles against the kernel's TCP, next to the
//! kernel's own services, and the state of the host after the process was killed.

use std::io::{self, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use brisk_packet_io::xdp;

use crate::machine::skipped;
use crate::namespace::Namespace;
use crate::nginx;
use crate::packet::{ethernet, resets};
use crate::pages::{Pages, assert_same, fetches};
use crate::process::{Process, eventually, run};

/// Skips the test, with the reason, unless the interface of this host can be used.
macro_rules! require_xdp {
    ($host:expr) => {
        if let Some(why) = refusal($host) {
            return skipped(&why);
        }
    };
}

/// Returns why the interface of this host cannot be used.
pub(crate) fn refusal(host: &Namespace) -> Option<String> {
    let found = host.inside(|| xdp::survey("eth")).expect("the interface is there");
    found.refused.map(|why| why.to_string())
}

/// Returns the number of the XDP program at the interface.
fn program(host: &Namespace) -> Option<u32> {
    host.inside(|| xdp::survey("eth")).expect("the interface is there").program
}

fn serve(host: &Namespace, pages: &Pages, port: &str) -> Process {
    let words = ["serve", pages.directory(), "--device", "xdp:eth", "--port", port];
    let server = Process::start("brisk serve", &mut host.brisk(&words));
    let said = server.until_it_says("url=");
    assert!(said.contains("frames=native"), "a veth has it: {said}");
    server
}

#[test]
fn serving_over_af_xdp_leaves_other_traffic_to_the_kernel() {
    require!("nginx", "curl");
    let ((near, far), pages) = (ethernet(), Pages::new());
    require_xdp!(&far);
    let page = pages.write("page", 5_000_000);
    let _nginx = nginx::serve(&far, &pages);
    let server = serve(&far, &pages, "8000");
    let before = resets(&far);
    for host in ["10.66.0.2", "[fd66::2]"] {
        for port in ["8000", "80", "8000"] {
            let url = format!("http://{host}:{port}/page");
            fetches(near.command("curl").args(["-sSfg", "-m", "60", &url]), &page, 1);
        }
        many_small(&near, &format!("{host}:8000"));
        datagrams_and_errors_pass(&near, &far, host);
    }
    assert_eq!(resets(&far), before, "the kernel has answered for us");
    assert!(program(&far).is_some());
    let busy =
        far.brisk(&["get", "http://10.66.0.1/", "--device", "xdp:eth"]).output().expect("brisk starts");
    assert!(String::from_utf8_lossy(&busy.stderr).contains("another program uses XDP"), "{busy:?}");
    // A killed process leaves nothing: the kernel answers for the port again.
    server.signal("-KILL");
    eventually("the program has gone", || program(&far).is_none().then_some(()));
    let refused = near.command("curl").args(["-sS", "-m", "5", "http://10.66.0.2:8000/"]).output();
    assert_eq!(refused.expect("curl starts").status.code(), Some(7), "nobody listens");
    fetches(near.command("curl").args(["-sSf", "-m", "60", "http://10.66.0.2/page"]), &page, 1);
    // Another server can start after it.
    let after = serve(&far, &pages, "8000");
    fetches(near.command("curl").args(["-sSf", "-m", "60", "http://10.66.0.2:8000/page"]), &page, 1);
    assert_eq!(after.stop().status, Some(0));
    assert_eq!(program(&far), None);
}

/// Makes consecutive connections of the kernel.
fn many_small(near: &Namespace, server: &str) {
    near.inside(|| {
        for _ in 0..300 {
            let mut stream = TcpStream::connect(server).expect("it accepts");
            stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout can be set");
            let request = format!("GET /small HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).expect("it takes a request");
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).expect("it answers");
            assert!(answer.len() > 700 && answer.starts_with(b"HTTP/1.1 200"), "{} bytes", answer.len());
        }
    });
}

/// Checks the kernel's UDP on our address, and ICMP errors in both directions, to a port without a socket.
fn datagrams_and_errors_pass(near: &Namespace, far: &Namespace, host: &str) {
    let (here, there) =
        if host.starts_with('[') { ("[fd66::1]", "[fd66::2]") } else { ("10.66.0.1", "10.66.0.2") };
    let service = far.inside(|| UdpSocket::bind(format!("{there}:5353"))).expect("the port is free");
    let client = near.inside(|| UdpSocket::bind(format!("{here}:5353"))).expect("the port is free");
    client.connect(format!("{there}:5353")).expect("there is a way");
    client.send(b"question").expect("it is sent");
    let mut datagram = [0; 16];
    let (len, from) = service.recv_from(&mut datagram).expect("it arrives");
    assert_eq!((&datagram[..len], from), (&b"question"[..], client.local_addr().expect("it is bound")));
    for (host, own, other) in [(near, here, there), (far, there, here)] {
        let socket = host.inside(|| UdpSocket::bind(format!("{own}:0"))).expect("a port is free");
        socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout can be set");
        socket.connect(format!("{other}:5354")).expect("there is a way");
        socket.send(b"?").expect("it is sent");
        let error = socket.recv(&mut datagram).expect_err("nobody is there");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{own}");
    }
}

#[test]
fn fetch_over_af_xdp_finds_its_neighbour_despite_the_kernel() {
    require!("nginx");
    let ((near, far), pages) = (ethernet(), Pages::new());
    require_xdp!(&near);
    let page = pages.write("page", 5_000_000);
    let _nginx = nginx::serve(&far, &pages);
    for url in ["http://10.66.0.2/page", "http://[fd66::2]/page"] {
        // The neighbour of the first packet is not resolved.
        near.ip(&["neigh", "flush", "dev", "eth"]);
        let copy = pages.path("copy");
        run(near.brisk(&["get", url, "--device", "xdp:eth", "--repeat", "3", "-o"]).arg(&copy));
        assert_same(&copy, &page);
    }
    // The kernel may answer segments that arrive after a process has ended.
    assert!(resets(&near) <= 2, "the kernel has answered for us");
    assert_eq!(program(&near), None);
}

#[test]
fn mtu_reported_by_a_router_is_used_over_af_xdp() {
    require!("curl");
    let ((router, far), client, pages) = (ethernet(), Namespace::new(), Pages::new());
    require_xdp!(&far);
    router.ip(&["link", "add", "inner", "type", "veth", "peer", "name", "eth", "netns", client.name()]);
    for (host, device, v4, v6) in
        [(&router, "inner", "10.67.0.1/24", "fd67::1/64"), (&client, "eth", "10.67.0.2/24", "fd67::2/64")]
    {
        host.ip(&["addr", "add", v4, "dev", device]);
        host.ip(&["addr", "add", v6, "dev", device, "nodad"]);
        host.ip(&["link", "set", device, "up"]);
    }
    router.ip(&["link", "set", "inner", "mtu", "1300"]);
    router.forward();
    for (host, network, gateway) in [
        (&client, "10.66.0.0/24", "10.67.0.1"),
        (&client, "fd66::/64", "fd67::1"),
        (&far, "10.67.0.0/24", "10.66.0.1"),
        (&far, "fd67::/64", "fd66::1"),
    ] {
        host.route(network, gateway.parse().expect("an address"));
    }
    let page = pages.write("page", 300_000);
    let _server = serve(&far, &pages, "8000");
    for host in ["10.66.0.2", "[fd66::2]"] {
        // Interfaces that have just come up resolve their IPv6 neighbours a second or two later.
        let small = format!("http://{host}:8000/small");
        fetches(client.command("curl").args(["-sSfg", "-m", "30", &small]), &pages.path("small"), 1);
        let (began, url) = (Instant::now(), format!("http://{host}:8000/page"));
        fetches(client.command("curl").args(["-sSfg", "-m", "30", &url]), &page, 1);
        // Without the ICMP error it would need three timeouts, of 0.2, 0.4 and 0.8 s.
        assert!(began.elapsed() < Duration::from_millis(1400), "{url} took {:?}", began.elapsed());
    }
}

#[test]
fn doctor_reports_the_obstacles_of_af_xdp() {
    require!();
    let ((_near, far), pages) = (ethernet(), Pages::new());
    require_xdp!(&far);
    let _server = serve(&far, &pages, "8000");
    let words = ["doctor", "10.66.0.1:7443", "--plain", "--device", "xdp:eth", "--probes", "1"];
    let output = far.brisk(&words).output().expect("brisk starts");
    let (said, why) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("ok  af_xdp"), "{said}{why}");
    assert!(said.contains("!!  xdp program") && said.contains("is at eth"), "{said}{why}");
    assert!(why.contains("another program uses XDP") && !output.status.success(), "{why}");
}
