//! The gateway pair: kernel clients, frontend, our TCP over a lossy link, backend, kernel origins.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use socket2::SockRef;

use crate::link::{LOSSY, Link};
use crate::lossy::many;
use crate::namespace::Namespace;
use crate::nginx;
use crate::pages::{Pages, fetches};
use crate::process::{Process, run};
use crate::scale::Scale;

/// The frontend at the near end, the backend at the far end, with the hop in UDP between them.
struct Pair {
    frontend: Process,
    backend: Process,
}

/// The frontend's address for clients at the near end.
const ENTRANCE: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 8080);

const KEY: &str = "6f1c0dd5a1f3b6b6e0a7f0c59f5d6b1c3a9e8d7c6b5a49382716054f3e2d1c0b";

impl Pair {
    /// Starts a pair in front of the origin at the far end's 127.0.0.1:`port`.
    fn start(link: &Link, hop: &str, port: u16) -> Pair {
        let hop = format!("{hop}:7443");
        let origin = format!("127.0.0.1:{port}");
        let words = ["backend", "--listen", &hop, "--to", &origin];
        let backend = Process::start("brisk backend", link.far.brisk(&words).env("BRISK_KEY", KEY));
        backend.until_it_says("listen=");
        let words = ["frontend", "--listen", "127.0.0.1:8080", "--peer", &hop];
        let frontend = Process::start("brisk frontend", link.near.brisk(&words).env("BRISK_KEY", KEY));
        frontend.until_it_says("listen=");
        Pair { frontend, backend }
    }

    /// Stops both, which must succeed; returns the access lines of the frontend.
    fn stop(self) -> Vec<String> {
        let frontend = self.frontend.stop();
        assert_eq!(frontend.status, Some(0), "{}", frontend.said);
        let backend = self.backend.stop();
        assert_eq!(backend.status, Some(0), "{}", backend.said);
        frontend.said.lines().filter(|line| line.contains("event=access")).map(str::to_owned).collect()
    }
}

#[test]
fn curl_fetches_files_of_nginx_unchanged_through_the_pair() {
    require!("nginx", "curl");
    let (link, pages, scale) = (Link::start(LOSSY), Pages::new(), Scale::chosen());
    let (short, bulk) = (pages.write("short", 30_000), pages.write("bulk", scale.gateway_bulk));
    let _nginx = nginx::serve(&link.far, &pages);
    let pair = Pair::start(&link, "10.77.0.2", 80);
    many(scale.lossy_fetches, |_| {
        let mut curl = link.near.command("curl");
        fetches(curl.args(["-sSf", "-m", "60", "http://127.0.0.1:8080/short"]), &short, 1);
    });
    let mut curl = link.near.command("curl");
    fetches(curl.args(["-sSf", "-m", Scale::chosen().patience, "http://127.0.0.1:8080/bulk"]), &bulk, 1);
    let access = pair.stop();
    assert_eq!(access.len() as u32, scale.lossy_fetches + 1);
    let broken: Vec<&String> = access.iter().filter(|line| !line.contains("reason=closed")).collect();
    assert!(broken.is_empty(), "{broken:?}");
    let counted = link.stop();
    assert!(counted["down"]["dropped_loss"].as_u64() > Some(100), "the link did lose packets: {counted}");
}

#[test]
fn the_hop_may_be_tcp_on_a_device_instead_of_udp() {
    require!("nginx", "curl");
    let (link, pages) = (Link::start(LOSSY), Pages::new());
    let page = pages.write("page", 300_000);
    let _nginx = nginx::serve(&link.far, &pages);
    link.route_beyond_far(&["10.7.0.0/24", "fd07::/64"]);
    link.route_beyond_near(&["10.8.0.0/24", "fd08::/64"]);
    for hop in ["10.7.0.2:7443", "[fd07::2]:7443"] {
        let device = ["--device", "tun:brisk1", "--addr", "10.7.0.2/24,fd07::2/64", "--plain"];
        let words = [&["backend", "--listen", hop, "--to", "127.0.0.1:80"], &device[..]].concat();
        let backend = Process::start("brisk backend", &mut link.far.brisk(&words));
        backend.until_it_says("listen=");
        let device = ["--device", "tun:brisk1", "--addr", "10.8.0.2/24,fd08::2/64", "--plain"];
        let words = [&["frontend", "--listen", "127.0.0.1:8080", "--peer", hop], &device[..]].concat();
        let frontend = Process::start("brisk frontend", &mut link.near.brisk(&words));
        frontend.until_it_says("hop=tcp");
        for _ in 0..5 {
            let mut curl = link.near.command("curl");
            fetches(curl.args(["-sSf", "-m", "60", "http://127.0.0.1:8080/page"]), &page, 1);
        }
        let access = Pair { frontend, backend }.stop();
        assert_eq!(access.len(), 5, "{access:?}");
    }
}

#[test]
fn either_side_may_finish_first_over_either_family() {
    require!();
    let link = Link::start(LOSSY);
    for hop in ["10.77.0.2", "[fd77::2]"] {
        let (origin, port) = origin(&link);
        let pair = Pair::start(&link, hop, port);

        // The client closes first: the origin answers only after the end of the data.
        let mut client = enter(&link);
        client.write_all(&[1; 100_000]).expect("it is sent");
        client.shutdown(Shutdown::Write).expect("half closed");
        let mut served = accept(&origin);
        assert_eq!(to_end(&mut served), vec![1; 100_000]);
        served.write_all(&[2; 100_000]).expect("it is sent");
        drop(served);
        assert_eq!(to_end(&mut client), vec![2; 100_000]);

        // The origin sends and closes first; the client continues.
        let mut client = enter(&link);
        let mut served = accept(&origin);
        served.write_all(b"220 ready\r\n").expect("it is sent");
        served.shutdown(Shutdown::Write).expect("half closed");
        assert_eq!(to_end(&mut client), b"220 ready\r\n");
        client.write_all(&[3; 100_000]).expect("it is sent");
        drop(client);
        assert_eq!(to_end(&mut served), vec![3; 100_000]);
        drop(served);

        let access = pair.stop();
        assert_eq!(access.len(), 2, "{access:?}");
        assert!(access.iter().all(|line| line.contains("reason=closed")), "{access:?}");
    }
}

#[test]
fn resets_pass_through_the_pair_in_both_directions() {
    require!();
    let link = Link::start(LOSSY);
    let (origin, port) = origin(&link);
    let pair = Pair::start(&link, "10.77.0.2", port);
    for client_resets in [true, false] {
        let mut client = enter(&link);
        client.write_all(b"hello").expect("it is sent");
        let mut served = accept(&origin);
        served.read_exact(&mut [0; 5]).expect("the client's data");
        let (resets, mut hears) = if client_resets { (client, served) } else { (served, client) };
        SockRef::from(&resets).set_linger(Some(Duration::ZERO)).expect("the next close is a reset");
        drop(resets);
        let error = hears.read(&mut [0; 1]).expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
    drop(pair);
}

#[test]
fn without_an_origin_the_client_is_reset() {
    require!();
    let link = Link::start(LOSSY);
    let (origin, port) = origin(&link);
    drop(origin);
    let pair = Pair::start(&link, "10.77.0.2", port);
    let mut client = enter(&link);
    client.write_all(b"hello").expect("it is sent");
    let error = client.read(&mut [0; 1]).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    let access = pair.stop();
    assert!(access.len() == 1 && !access[0].contains("reason=closed"), "{access:?}");
}

/// Returns a listener on the loopback of the far end.
fn origin(link: &Link) -> (TcpListener, u16) {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let origin = link.far.inside(|| TcpListener::bind(any)).expect("a port");
    let port = origin.local_addr().expect("an address").port();
    (origin, port)
}

fn accept(origin: &TcpListener) -> TcpStream {
    let (stream, _) = origin.accept().expect("a connection");
    patient(stream)
}

fn enter(link: &Link) -> TcpStream {
    patient(link.near.inside(|| TcpStream::connect(ENTRANCE)).expect("the frontend accepts"))
}

/// Sets a timeout, so that the test fails instead of blocking.
fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout can be set");
    stream
}

fn to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("the end of the stream");
    bytes
}

#[test]
fn as_client_the_origin_sees_the_clients_own_address_and_port() {
    require!("nft");
    let (link, origin) = (Link::start(LOSSY), Namespace::new());
    link.far.ip(&["link", "add", "lan", "type", "veth", "peer", "name", "lan", "netns", origin.name()]);
    for (namespace, address) in [(&link.far, "10.9.0.1/24"), (&origin, "10.9.0.2/24")] {
        namespace.ip(&["addr", "add", address, "dev", "lan"]);
        namespace.ip(&["link", "set", "lan", "up"]);
    }
    origin.ip(&["route", "add", "default", "via", "10.9.0.1"]);
    link.far.forward();
    let rules = run(link.far.brisk(&["rules", "--as-client"]).stdout(Stdio::piped()));
    let file = std::env::temp_dir().join(format!("brisk-as-client-{}", std::process::id()));
    std::fs::write(&file, &rules.stdout).expect("a file");
    run(link.far.command("nft").arg("-f").arg(&file));
    std::fs::remove_file(&file).expect("it is there");
    link.far.ip(&["rule", "add", "fwmark", "1", "lookup", "100"]);
    link.far.ip(&["route", "add", "local", "default", "dev", "lo", "table", "100"]);

    let listener = origin.inside(|| TcpListener::bind("10.9.0.2:80")).expect("a port");
    let words = ["backend", "--listen", "10.77.0.2:7443", "--to", "10.9.0.2:80", "--as-client"];
    let backend = Process::start("brisk backend", link.far.brisk(&words).env("BRISK_KEY", KEY));
    backend.until_it_says("listen=");
    let words = ["frontend", "--listen", "10.77.0.1:8080", "--peer", "10.77.0.2:7443"];
    let frontend = Process::start("brisk frontend", link.near.brisk(&words).env("BRISK_KEY", KEY));
    frontend.until_it_says("health=up");
    let mut client =
        patient(link.near.inside(|| TcpStream::connect("10.77.0.1:8080")).expect("the frontend accepts"));
    client.write_all(b"hello").expect("it is sent");
    let (mut served, peer) = listener.accept().expect("a connection");
    assert_eq!(peer, client.local_addr().expect("an address"));
    // A socket that is closed with unread data sends a reset.
    served.read_exact(&mut [0; 5]).expect("the client's data");
    served.write_all(b"welcome").expect("it is sent");
    drop(served);
    assert_eq!(to_end(&mut client), b"welcome");
    drop(client);
    assert_eq!(Pair { frontend, backend }.stop().len(), 1);
}
