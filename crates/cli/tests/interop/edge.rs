//! `brisk edge` on the host's own address: kernel clients on one side, nginx over the kernel's TCP on the
//! other, next to services of the kernel on the same address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use brisk_packet_io::share::Share;

use crate::clients::{ADMIN, series};
use crate::fast_open::{allow, counters, netstat};
use crate::link::Link;
use crate::machine::skipped;
use crate::namespace::Namespace;
use crate::nginx;
use crate::packet::{ethernet, has_interface, resets};
use crate::pages::{Pages, curl, fetches};
use crate::process::{Process, eventually, run, text};
use crate::xdp;

/// The edge's address for clients.
const AT: &str = "10.66.0.2:8000";

/// Starts an edge in front of the nginx of this host, which listens on port 80.
fn edge(host: &Namespace, more: &[&str]) -> Process {
    edge_on("packet:eth", host, more)
}

/// Like [`edge`], on another device.
fn edge_on(device: &str, host: &Namespace, more: &[&str]) -> Process {
    let words = ["edge", "--listen", ":8000", "--device", device, "--to", "127.0.0.1:80"];
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

/// On a path that has lost packets the edge copies SYN-ACKs and the tails of responses. The kernel reports
/// the copies by DSACK. The edge must not take them for signs of unnecessary retransmissions. The round trip
/// is long, so that a busy machine does not look like a queue, whose losses nothing copies.
#[test]
fn kernel_answers_copies_and_the_edge_sends_nothing_again() {
    require!("nginx", "curl", "nft");
    let (link, pages) =
        (Link::start(&["--rtt", "100ms", "--rate", "50mbit", "--queue", "200p"]), Pages::new());
    let (near, far) = (&link.near, &link.far);
    let (page, long) = (pages.write("page", 30_000), pages.write("long", 300_000));
    let _nginx = nginx::serve(far, &pages);
    let edge = edge_on("packet:brisk0", far, &["--admin", ADMIN]);
    let lossy = "chain c { type filter hook input priority 0; tcp sport 8000 numgen inc mod 40 0 drop; }";
    run(near.command("nft").arg(format!("table ip t {{ {lossy}; }}")));
    fetches(&mut curl(near, &["http://10.77.0.2:8000/long"]), &long, 1);
    edge.until_it_says("event=access");
    run(near.command("nft").arg("flush ruleset"));
    let again = || {
        let segments = series(far, "brisk_client_segments_total{tcp=\"brisk\",kind=\"retransmit\"}");
        segments + series(far, "brisk_tail_probes_total{result=\"spurious\"}")
    };
    let copied = || series(far, "brisk_wire_bytes_total{dir=\"out\",kind=\"copy\"}");
    let (before, copied_before) = (again(), copied());
    let reported = netstat(near, "TCPDSACKOldSent")[""];
    for _ in 0..20 {
        fetches(&mut curl(near, &["http://10.77.0.2:8000/page"]), &page, 1);
    }
    edge.until_it_says_again("event=access", 21);
    let copied = copied() - copied_before;
    assert!((20_000..150_000).contains(&copied), "{copied} bytes of 600,000");
    let reported = netstat(near, "TCPDSACKOldSent")[""] - reported;
    assert!(reported >= 20, "{reported} DSACKs");
    assert_eq!(again(), before, "segments sent again");
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

/// Begins to fetch `page` slowly; returns the running curl and its copy.
fn slow_fetch(near: &Namespace, pages: &Pages, page: &str, name: &str) -> (Child, PathBuf) {
    let (url, copy) = (format!("http://{AT}/{page}"), pages.path(name));
    let mut command = curl(near, &["--limit-rate", "1M", &url, "-o"]);
    let running = command.arg(&copy).spawn().expect("curl starts");
    eventually("the answer has begun", || std::fs::metadata(&copy).is_ok().then_some(()));
    (running, copy)
}

/// Checks that each of three edges leaves its port to the next one: no request fails while the second takes
/// the place of the first, and open connections end in order.
fn port_passes_to_the_next_edge(
    (near, far): &(Namespace, Namespace),
    pages: &Pages,
    [first, second, third]: [&mut Command; 3],
) {
    let page = pages.write("page", 4_000_000);
    let _nginx = nginx::serve(far, pages);
    let next = |command: &mut Command, says: &str| {
        let edge = Process::start("brisk edge", command);
        edge.until_it_says(says);
        edge
    };
    let has_page = |(mut running, copy): (Child, PathBuf)| {
        assert!(running.wait().expect("it ends").success(), "{}", copy.display());
        assert_eq!(std::fs::read(copy).expect("a copy"), std::fs::read(&page).expect("the page"));
    };
    let before = resets(far);
    let first = next(first, "event=confined");
    let slow = slow_fetch(near, pages, "page", "copy1");
    let second = next(second, "event=waiting");
    let is_over = AtomicBool::new(false);
    let fetched = thread::scope(|scope| {
        let load = scope.spawn(|| {
            let url = format!("http://{AT}/small");
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                let ended = curl(near, &["-m", "5", "-o", "/dev/null", &url]).output().expect("curl starts");
                assert!(ended.status.success(), "request {count}: {ended:?}");
                count += 1;
            }
            count
        });
        thread::sleep(Duration::from_millis(200));
        first.signal("-TERM");
        first.until_it_says("event=handed-over");
        second.until_it_says("event=confined");
        second.until_it_says_again("event=access", 5);
        is_over.store(true, Ordering::Relaxed);
        load.join().expect("every request succeeds")
    });
    assert!(fetched >= 5, "{fetched} requests");
    has_page(slow);
    let ended = first.ended();
    assert_eq!(ended.status, Some(0), "{}", ended.said);
    assert!(ended.said.contains(" cut=0"), "{}", ended.said);
    // The third edge starts only when the second one drains already.
    let slow = slow_fetch(near, pages, "page", "copy2");
    second.signal("-TERM");
    second.until_it_says("event=draining");
    let third = next(third, "event=confined");
    fetches(&mut curl(near, &["-m", "5", &format!("http://{AT}/small")]), &pages.path("small"), 1);
    third.until_it_says("event=access");
    has_page(slow);
    let ended = second.ended();
    assert_eq!(ended.status, Some(0), "{}", ended.said);
    assert!(ended.said.contains(" cut=0"), "{}", ended.said);
    assert_eq!(resets(far), before, "the kernel has answered for us");
    fetches(&mut curl(near, &["-m", "5", &format!("http://{AT}/small")]), &pages.path("small"), 1);
    assert_eq!(third.stop().status, Some(0));
}

const NEXT: [&str; 7] = ["edge", "--listen", ":8000", "--to", "127.0.0.1:80", "--device", "packet:eth"];

#[test]
fn next_edge_takes_the_ports_of_redirected_frames_without_a_failed_request() {
    require!("nginx", "curl");
    let (host, pages) = (ethernet(), Pages::new());
    let words = [&NEXT[..], &["--listener", ":8001=web", "--origin", "web=127.0.0.1:80"]].concat();
    let [mut first, mut second, mut third] = [(); 3].map(|()| host.1.brisk(&words));
    port_passes_to_the_next_edge(&host, &pages, [&mut first, &mut second, &mut third]);
}

#[test]
fn next_edge_takes_the_port_of_copied_frames_without_a_failed_request() {
    require!("nginx", "curl", "setpriv");
    let (host, pages) = (ethernet(), Pages::new());
    let [mut first, mut second] = [(); 2].map(|()| {
        let mut command = host.1.command("setpriv");
        command.args(["--bounding-set", "-bpf,-sys_admin", env!("CARGO_BIN_EXE_brisk")]).args(NEXT);
        command
    });
    let device = if xdp::refusal(&host.1).is_none() { "xdp:eth" } else { "packet:eth" };
    let mut third = host.1.brisk(&[&NEXT[..NEXT.len() - 1], &[device]].concat());
    port_passes_to_the_next_edge(&host, &pages, [&mut first, &mut second, &mut third]);
}

#[test]
fn next_edge_takes_the_port_of_af_xdp_without_a_failed_request() {
    require!("nginx", "curl");
    let (host, pages) = (ethernet(), Pages::new());
    if let Some(why) = xdp::refusal(&host.1) {
        return skipped(&why);
    }
    let words = [&NEXT[..NEXT.len() - 1], &["xdp:eth"]].concat();
    let [mut first, mut second] = [(); 2].map(|()| host.1.brisk(&words));
    port_passes_to_the_next_edge(&host, &pages, [&mut first, &mut second, &mut host.1.brisk(&NEXT)]);
}

#[test]
fn waiting_edge_serves_when_the_one_before_is_killed() {
    require!("nginx", "curl");
    let ((near, far), pages) = (ethernet(), Pages::new());
    let _nginx = nginx::serve(&far, &pages);
    let first = edge(&far, &[]);
    let notify = pages.path("notify");
    let notified = UnixDatagram::bind(&notify).expect("a socket");
    notified.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    let mut next = far.brisk(&NEXT);
    next.env("NOTIFY_SOCKET", &notify).env("WATCHDOG_USEC", "400000");
    let second = Process::start("brisk edge", &mut next);
    second.until_it_says("event=waiting");
    // For systemd it has started, so that its unit can stop the first one.
    let mut said = String::new();
    while !(said.contains("READY=1") && said.contains("WATCHDOG=1")) {
        let mut message = [0; 256];
        let length = notified.recv(&mut message).expect("it says that it has started, and that it lives");
        said += &String::from_utf8_lossy(&message[..length]);
    }
    fetches(&mut curl(&near, &[&format!("http://{AT}/small")]), &pages.path("small"), 1);
    first.signal("-KILL");
    second.until_it_says("event=confined");
    fetches(&mut curl(&near, &[&format!("http://{AT}/small")]), &pages.path("small"), 1);
    assert_eq!(second.stop().status, Some(0));
}

#[test]
fn port_passes_to_the_edge_that_still_waits() {
    require!("nginx", "curl");
    let ((near, far), pages) = (ethernet(), Pages::new());
    let _nginx = nginx::serve(&far, &pages);
    let first = edge(&far, &[]);
    let next = || {
        let edge = Process::start("brisk edge", &mut far.brisk(&NEXT));
        edge.until_it_says("event=waiting");
        edge
    };
    let (gone, second) = (next(), next());
    second.signal("-HUP");
    assert_eq!(gone.stop().status, Some(0));
    let ended = first.stop();
    assert_eq!(ended.status, Some(0), "{}", ended.said);
    assert!(ended.said.contains("event=handed-over"), "{}", ended.said);
    assert!(!ended.said.contains("event=not-handed-over"), "{}", ended.said);
    second.until_it_says("event=confined");
    second.until_it_says("event=reloaded");
    fetches(&mut curl(&near, &[&format!("http://{AT}/small")]), &pages.path("small"), 1);
    assert_eq!(second.stop().status, Some(0));
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

/// Clients of the near host, in the share of 50 % and outside it, for both address families.
struct Clients {
    inside: [IpAddr; 2],
    outside: [IpAddr; 2],
}

impl Clients {
    fn on((near, far): &(Namespace, Namespace)) -> Clients {
        let share: Share = "50%".parse().expect("a share");
        let v4 = |inside: bool| {
            let all = (10..100).map(|n| IpAddr::from(Ipv4Addr::new(10, 66, 0, n)));
            all.clone().find(|ip| share.contains(*ip) == inside).expect("one of many")
        };
        let v6 = |inside: bool| {
            let all = (1..100).map(|n| IpAddr::from(Ipv6Addr::new(0xfd66, 0, 0, n, 0, 0, 0, 1)));
            all.clone().find(|ip| share.contains(*ip) == inside).expect("one of many")
        };
        let clients = Clients { inside: [v4(true), v6(true)], outside: [v4(false), v6(false)] };
        for [v4, v6] in [clients.inside, clients.outside] {
            near.ip(&["addr", "add", &format!("{v4}/24"), "dev", "eth"]);
            near.ip(&["addr", "add", &format!("{v6}/64"), "dev", "eth", "nodad"]);
            let IpAddr::V6(network) = v6 else { unreachable!() };
            let [a, b, c, d, ..] = network.segments();
            far.route(&format!("{a:x}:{b:x}:{c:x}:{d:x}::/64"), "fd66::1".parse().expect("an address"));
        }
        clients
    }

    /// Returns the clients with the TCP that serves them.
    fn all(&self) -> impl Iterator<Item = (IpAddr, &'static str)> {
        let of = |clients: [IpAddr; 2], tcp| clients.into_iter().map(move |client| (client, tcp));
        of(self.inside, "brisk").chain(of(self.outside, "kernel"))
    }
}

/// Returns a curl from the address `client`.
fn curl_from(near: &Namespace, client: IpAddr, words: &[&str], page: &str) -> Command {
    let host = if client.is_ipv4() { "10.66.0.2" } else { "[fd66::2]" };
    let from = ["--interface", &client.to_string()];
    curl(near, &[&from[..], words, &[&format!("http://{host}:8000/{page}")]].concat())
}

/// True if this client cannot connect.
fn is_refused(near: &Namespace, client: IpAddr) -> bool {
    let ended = curl_from(near, client, &["-m", "1"], "small").output().expect("curl starts");
    ended.status.code() == Some(7)
}

/// The clients with which the kernel has a connection at the edge's port.
fn served_by_kernel(far: &Namespace) -> String {
    text(&run(far.command("ss").args(["-tnH", "state", "established", "sport = :8000"])).stdout)
}

/// Checks that both TCPs serve their clients, side by side, and that nothing remains after SIGKILL.
fn both_shares_are_served(host: &(Namespace, Namespace), pages: &Pages, command: &mut Command) {
    let ((near, far), clients) = (host, Clients::on(host));
    let page = pages.write("page", 3_000_000);
    // The buffers on the way of a slow client do not hold all of it, so its connection stays open.
    pages.write("long", 30_000_000);
    let edge = Process::start("brisk edge", command);
    edge.until_it_says("event=confined");
    let before = resets(far);
    for (client, tcp) in clients.all() {
        for _ in 0..3 {
            fetches(&mut curl_from(near, client, &[], "page"), &page, 1);
        }
        let peer = if client.is_ipv4() { format!("{client}:") } else { format!("[{client}]:") };
        let line = edge.until_it_says(&peer);
        assert!(line.contains(&format!(" tcp={tcp} ")) && line.contains(" rtt_ms="), "{line}");
    }
    assert_eq!(resets(far), before, "the kernel has answered for us");
    for tcp in ["brisk", "kernel"] {
        let of = |name: &str, more: &str| series(far, &format!("brisk_client_{name}{{tcp=\"{tcp}\"{more}}}"));
        let closed = || of("connections_total", ",result=\"closed\"");
        eventually("every connection has ended", || (closed() == 6).then_some(()));
        assert_eq!(of("time_to_first_byte_seconds_count", ""), 6, "{tcp}");
        assert_eq!(of("rtt_seconds_count", ""), 6, "{tcp}");
        assert!(of("segments_total", ",kind=\"first\"") > 50, "{tcp}");
    }
    for (client, tcp) in clients.all() {
        let copy = pages.path("copy");
        let words = ["--limit-rate", "100k", "-o", copy.to_str().expect("a name")];
        let mut slow = curl_from(near, client, &words, "long").spawn().expect("curl starts");
        eventually("the answer has begun", || std::fs::metadata(&copy).is_ok().then_some(()));
        let kernel = served_by_kernel(far);
        assert_eq!(kernel.contains(&client.to_string()), tcp == "kernel", "{client}: {kernel}");
        slow.kill().expect("it runs");
        slow.wait().expect("it ends");
        std::fs::remove_file(copy).expect("a copy");
        // The client resets its connections.
        eventually("the kernel has no connection", || served_by_kernel(far).is_empty().then_some(()));
    }
    edge.signal("-KILL");
    for (client, _) in clients.all() {
        eventually("the kernel answers for the port", || is_refused(near, client).then_some(()));
    }
    eventually("the device has gone", || (!has_interface(far, "brisk0")).then_some(()));
}

const SHARED: [&str; 11] = [
    "edge",
    "--listen",
    ":8000",
    "--to",
    "127.0.0.1:80",
    "--share",
    "50%",
    "--admin",
    ADMIN,
    "--device",
    "packet:eth",
];

#[test]
fn kernel_serves_the_clients_outside_the_share_of_redirected_frames() {
    require!("nginx", "curl", "ss");
    let (host, pages) = (ethernet(), Pages::new());
    let _nginx = nginx::serve(&host.1, &pages);
    both_shares_are_served(&host, &pages, &mut host.1.brisk(&SHARED));
}

#[test]
fn kernel_serves_the_clients_outside_the_share_of_copied_frames() {
    require!("nginx", "curl", "ss", "setpriv");
    let (host, pages) = (ethernet(), Pages::new());
    let _nginx = nginx::serve(&host.1, &pages);
    let mut command = host.1.command("setpriv");
    // Without these rights no frames are redirected.
    command.args(["--bounding-set", "-bpf,-sys_admin", env!("CARGO_BIN_EXE_brisk")]).args(SHARED);
    both_shares_are_served(&host, &pages, &mut command);
}

#[test]
fn kernel_serves_the_clients_outside_the_share_of_af_xdp() {
    require!("nginx", "curl", "ss");
    let (host, pages) = (ethernet(), Pages::new());
    if let Some(why) = xdp::refusal(&host.1) {
        return skipped(&why);
    }
    let _nginx = nginx::serve(&host.1, &pages);
    let words = [&SHARED[..SHARED.len() - 1], &["xdp:eth"]].concat();
    both_shares_are_served(&host, &pages, &mut host.1.brisk(&words));
}

#[test]
fn connections_of_both_shares_end_in_order_and_new_ones_are_refused() {
    require!("nginx", "curl", "setpriv");
    for rights in ["+bpf", "-bpf,-sys_admin"] {
        let (host, pages) = (ethernet(), Pages::new());
        let ((near, far), clients) = (&host, Clients::on(&host));
        let page = pages.write("page", 3_000_000);
        let _nginx = nginx::serve(far, &pages);
        let mut command = far.command("setpriv");
        command.args(["--bounding-set", rights, env!("CARGO_BIN_EXE_brisk")]).args(SHARED);
        let edge = Process::start("brisk edge", &mut command);
        edge.until_it_says("event=confined");
        let slow = clients.all().map(|(client, _)| {
            let copy = pages.path(&client.to_string());
            let words = ["--limit-rate", "1M", "-o", copy.to_str().expect("a name")];
            let running = curl_from(near, client, &words, "page").spawn().expect("curl starts");
            eventually("the answer has begun", || std::fs::metadata(&copy).is_ok().then_some(()));
            (running, copy)
        });
        let slow: Vec<_> = slow.collect();
        edge.signal("-TERM");
        edge.until_it_says("event=draining");
        for (client, tcp) in clients.all() {
            let ended = curl_from(near, client, &["-m", "1"], "small").output().expect("curl starts");
            // If frames are copied, the kernel accepts the connection before the edge can reset it.
            let is_reset = [Some(52), Some(55), Some(56)].contains(&ended.status.code());
            let may_reset = tcp == "kernel" && rights != "+bpf";
            assert!(ended.status.code() == Some(7) || (is_reset && may_reset), "{tcp}: {ended:?}");
        }
        for (mut running, copy) in slow {
            assert!(running.wait().expect("it ends").success(), "{}", copy.display());
            assert_eq!(std::fs::read(copy).expect("a copy"), std::fs::read(&page).expect("the page"));
        }
        let ended = edge.ended();
        assert_eq!(ended.status, Some(0), "{}", ended.said);
        assert!(ended.said.contains("event=stopped accepted=4 cut=0"), "{}", ended.said);
    }
}

/// A path on which the data of brisk's TCP does not arrive: the near host treats large packets by `verdict`.
/// With `marks`, the far host marks the packets of the kernel's TCP, and these pass.
struct BadPath<'a>(&'a Namespace);

impl<'a> BadPath<'a> {
    fn between((near, far): &'a (Namespace, Namespace), verdict: &str, marks: bool) -> BadPath<'a> {
        let chain = |hook: &str, rule: &str| {
            format!(
                "table ip t {{ chain c {{ type filter hook {hook} priority 0; tcp sport 8000 {rule}; }}; }}"
            )
        };
        if marks {
            run(far.command("nft").arg(chain("output", "ip dscp set cs1")));
        }
        run(near.command("nft").arg(chain("input", &format!("ip dscp != cs1 ip length > 200 {verdict}"))));
        BadPath(near)
    }

    fn mend(&self) {
        run(self.0.command("nft").arg("flush ruleset"));
    }
}

/// Checks that a client is left to the kernel's TCP after two failures with brisk's, and that other clients
/// are not. Without `marks` the packets of both fail, so the path is mended by then.
fn kernel_serves_the_client_on_a_bad_path(
    host: &(Namespace, Namespace),
    pages: &Pages,
    command: &mut Command,
    (verdict, sign, marks): (&str, &str, bool),
) {
    let (near, far) = host;
    near.ip(&["addr", "add", "10.66.0.9/24", "dev", "eth"]);
    let edge = Process::start("brisk edge", command);
    edge.until_it_says("name=exemptions state=on");
    edge.until_it_says("event=confined");
    let path = BadPath::between(host, verdict, marks);
    let [client, other] = [Ipv4Addr::new(10, 66, 0, 1), Ipv4Addr::new(10, 66, 0, 9)].map(IpAddr::V4);
    for number in [1, 2] {
        assert_eq!(series(far, "brisk_clients_exempt"), 0);
        let failed = curl_from(near, client, &["-m", "4"], "small").output().expect("curl starts");
        assert!(!failed.status.success(), "the path is not bad");
        let line = edge.until_it_says_again("event=access", number);
        assert!(line.contains("tcp=brisk"), "{line}");
    }
    let line = edge.until_it_says("event=exempted");
    assert!(line.contains(&format!("client={client} sign={sign}")), "{line}");
    if !marks {
        path.mend();
    }
    fetches(&mut curl_from(near, client, &[], "small"), &pages.path("small"), 1);
    path.mend();
    for (client, tcp, number) in [(client, "kernel", 4), (other, "brisk", 5)] {
        fetches(&mut curl_from(near, client, &[], "small"), &pages.path("small"), 1);
        let line = edge.until_it_says_again("event=access", number);
        assert!(line.contains(&format!("tcp={tcp} ")), "{line}");
    }
    assert_eq!(series(far, "brisk_clients_exempt"), 1);
    assert_eq!(series(far, &format!("brisk_clients_exempted_total{{sign=\"{sign}\"}}")), 1);
    let shown = text(&run(&mut far.brisk(&["top", ADMIN, "--once"])).stdout);
    assert!(shown.contains("clients      100% over brisk's TCP, 1 exempt"), "{shown}");
}

const WATCHED: [&str; 9] =
    ["edge", "--listen", ":8000", "--to", "127.0.0.1:80", "--admin", ADMIN, "--device", "packet:eth"];

#[test]
fn kernel_serves_a_client_whose_path_drops_data_of_redirected_frames() {
    require!("nginx", "curl", "nft");
    let (host, pages) = (ethernet(), Pages::new());
    let _nginx = nginx::serve(&host.1, &pages);
    let path = ("drop", "timeouts", true);
    kernel_serves_the_client_on_a_bad_path(&host, &pages, &mut host.1.brisk(&WATCHED), path);
}

#[test]
fn kernel_serves_a_client_whose_path_resets_connections_of_redirected_frames() {
    require!("nginx", "curl", "nft");
    let (host, pages) = (ethernet(), Pages::new());
    let _nginx = nginx::serve(&host.1, &pages);
    let path = ("reject with tcp reset", "reset", true);
    kernel_serves_the_client_on_a_bad_path(&host, &pages, &mut host.1.brisk(&WATCHED), path);
}

#[test]
fn kernel_serves_a_client_whose_path_drops_data_of_copied_frames() {
    require!("nginx", "curl", "nft");
    let (host, pages) = (ethernet(), Pages::new());
    let _nginx = nginx::serve(&host.1, &pages);
    // Frames to so many addresses are not redirected.
    for n in 20..40 {
        host.1.ip(&["addr", "add", &format!("10.66.0.{n}/24"), "dev", "eth"]);
    }
    // The kernel sends the packets of both.
    let path = ("drop", "timeouts", false);
    kernel_serves_the_client_on_a_bad_path(&host, &pages, &mut host.1.brisk(&WATCHED), path);
}

#[test]
fn kernel_serves_a_client_whose_path_drops_data_of_af_xdp() {
    require!("nginx", "curl", "nft");
    let (host, pages) = (ethernet(), Pages::new());
    if let Some(why) = xdp::refusal(&host.1) {
        return skipped(&why);
    }
    let _nginx = nginx::serve(&host.1, &pages);
    let words = [&WATCHED[..WATCHED.len() - 1], &["xdp:eth"]].concat();
    let path = ("drop", "timeouts", true);
    kernel_serves_the_client_on_a_bad_path(&host, &pages, &mut host.1.brisk(&words), path);
}

#[test]
fn edge_without_the_right_to_bpf_says_that_no_client_is_left_to_the_kernel() {
    require!("nginx", "curl", "setpriv");
    let (host, pages) = (ethernet(), Pages::new());
    let _nginx = nginx::serve(&host.1, &pages);
    let mut command = host.1.command("setpriv");
    command.args(["--bounding-set", "-bpf,-sys_admin", env!("CARGO_BIN_EXE_brisk")]).args(WATCHED);
    let edge = Process::start("brisk edge", &mut command);
    edge.until_it_says("name=exemptions state=off");
    edge.until_it_says("event=confined");
    fetches(&mut curl(&host.0, &[&format!("http://{AT}/small")]), &pages.path("small"), 1);
}
