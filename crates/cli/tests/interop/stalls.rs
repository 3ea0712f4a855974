//! Readers that stop reading and paths that stop carrying packets: both roles wait, and continue afterwards.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use brisk_runtime::TcpSocket;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::get;
use crate::link::{CLEAN, FAR, Link};
use crate::namespace::Namespace;
use crate::nginx;
use crate::pages::{Pages, fetches};
use crate::process::eventually;
use crate::serve;

/// Long enough for several probes of a closed window, or several timeouts.
const STALL: Duration = Duration::from_millis(1500);
const LEN: u64 = 20_000_000;
const REQUEST: &[u8] = b"GET /bulk HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

#[test]
fn serve_waits_for_a_kernel_that_does_not_read() {
    require!();
    let (namespace, pages) = (Namespace::new(), Pages::new());
    let bulk = std::fs::read(pages.write("bulk", LEN)).expect("the file");
    let _server = serve::serve(&namespace, &pages);
    for address in ["10.7.0.2:80", "[fd07::2]:80"] {
        let address: SocketAddr = address.parse().expect("an address");
        let mut stream = namespace.inside(|| TcpStream::connect(address)).expect("the stack accepts");
        SockRef::from(&stream).set_recv_buffer_size(65_536).expect("a small buffer");
        stream.write_all(REQUEST).expect("it is sent");
        thread::sleep(STALL);
        let mut answer = Vec::new();
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout can be set");
        stream.read_to_end(&mut answer).expect("the whole answer");
        assert!(answer.ends_with(&bulk), "{} bytes", answer.len());
    }
}

#[test]
fn a_kernel_waits_for_an_application_of_ours_that_does_not_read() {
    require!("nginx");
    let (namespace, pages) = (Namespace::new(), Pages::new());
    let bulk = std::fs::read(pages.write("bulk", LEN)).expect("the file");
    let _nginx = nginx::serve(&namespace, &pages);
    get::with_endpoint(&namespace, async |endpoint| {
        for address in ["10.8.0.1:80", "[fd08::1]:80"] {
            let mut socket = TcpSocket::new(&endpoint);
            socket.set_recv_buffer_size(65_536);
            let mut stream =
                socket.connect(address.parse().expect("an address")).await.expect("nginx accepts");
            stream.write_all(REQUEST).await.expect("it is sent");
            tokio::time::sleep(STALL).await;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.expect("the whole answer");
            assert!(answer.ends_with(&bulk), "{} bytes", answer.len());
        }
    });
}

#[test]
fn transfers_survive_an_interrupted_path() {
    require!("nginx", "curl");
    let words = [CLEAN, &["--rate", "50mbit", "--queue", "200p"]].concat();
    let (link, pages) = (Link::start(&words), Pages::new());
    let bulk = pages.write("bulk", 5_000_000);
    link.route_beyond_far(&["10.7.0.0/24", "fd07::/64"]);
    link.route_beyond_near(&["10.8.0.0/24", "fd08::/64"]);
    let _nginx = nginx::serve(&link.far, &pages);
    let _server = serve::serve(&link.far, &pages);
    let began = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            let url = "http://10.7.0.2/bulk";
            fetches(link.near.command("curl").args(["-sSf", "-m", "60", url]), &bulk, 1);
        });
        scope.spawn(|| {
            let url = format!("http://{}/bulk", FAR[1].url);
            fetches(link.near.brisk(&["get", &url]).args(get::DEVICE), &bulk, 1);
        });
        eventually("a megabyte has passed", || (link.carried() > 1_000_000).then_some(()));
        link.pause();
        thread::sleep(STALL);
        link.resume();
    });
    assert!(began.elapsed() > STALL, "the pause came in the middle");
}
