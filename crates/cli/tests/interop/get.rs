//! Our stack as the client over a TUN: `brisk get` and the library, with nginx and kernel sockets as servers.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::Duration;

use brisk_packet_io::netns;
use brisk_packet_io::tun::{TunDevice, TunOptions};
use brisk_runtime::{Endpoint, TcpConfig, TcpStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::namespace::Namespace;
use crate::nginx;
use crate::pages::{Pages, fetches};
use crate::process::{run, text};
use crate::scale::Scale;

/// The kernel's addresses, as seen from the stack.
const KERNEL: [&str; 2] = ["10.8.0.1", "[fd08::1]"];
/// The stack's addresses, in networks where the kernel has [`KERNEL`].
const STACK: [&str; 2] = ["10.8.0.2", "fd08::2"];

/// The device of `brisk get` and its addresses.
pub(crate) const DEVICE: [&str; 4] = ["--device", "tun:brisk1", "--addr", "10.8.0.2/24,fd08::2/64"];

#[test]
fn get_fetches_small_and_large_files_unchanged() {
    require!("nginx");
    let (namespace, pages) = (Namespace::new(), Pages::new());
    let bulk = pages.write("bulk", Scale::chosen().clean_bulk);
    let _nginx = nginx::serve(&namespace, &pages);
    for host in KERNEL {
        for file in [&pages.path("small"), &bulk] {
            let name = file.file_name().expect("a name").display();
            let mut get = namespace.brisk(&[
                "get",
                &format!("http://{host}/{name}"),
                "--timeout",
                &format!("{}s", Scale::chosen().patience),
            ]);
            fetches(get.args(DEVICE), file, 1);
        }
    }
}

#[test]
fn get_repeats_over_fresh_connections_and_counts_each() {
    require!("nginx");
    let (namespace, pages) = (Namespace::new(), Pages::new());
    let _nginx = nginx::serve(&namespace, &pages);
    let times = Scale::chosen().sequential.to_string();
    for host in KERNEL {
        let url = format!("http://{host}/small");
        let words = ["get", &url, "--repeat", &times, "--stats", "json"];
        let lines = text(&run(namespace.brisk(&words).args(DEVICE)).stdout);
        assert_eq!(lines.lines().count().to_string(), times);
        for line in lines.lines() {
            let figures: serde_json::Value = serde_json::from_str(line).expect("JSON");
            assert_eq!(
                (figures["bytes"].as_u64(), figures["timeouts"].as_u64()),
                (Some(700), Some(0)),
                "{line}"
            );
        }
    }
}

#[test]
fn refusal_of_the_kernel_is_reported_at_once() {
    require!();
    let namespace = Namespace::new();
    for host in KERNEL {
        let words = ["get", &format!("http://{host}:81/"), "--connect-timeout", "5s"];
        let out = namespace.brisk(&words).args(DEVICE).output().expect("the program starts");
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(said.contains("refused") && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn fifty_connections_at_once_and_two_requests_on_each() {
    require!("nginx");
    let (namespace, pages) = (Namespace::new(), Pages::new());
    let page = std::fs::read(pages.write("page", 300_000)).expect("the page");
    let _nginx = nginx::serve(&namespace, &pages);
    with_endpoint(&namespace, async |endpoint| {
        for host in KERNEL {
            let address: SocketAddr = format!("{host}:80").parse().expect("an address");
            let mut fetching = JoinSet::new();
            for _ in 0..50 {
                let endpoint = endpoint.clone();
                fetching.spawn(async move {
                    let mut stream = endpoint.connect(address).await.expect("nginx accepts");
                    let first = ask(&mut stream, "/page").await;
                    (first, ask(&mut stream, "/page").await)
                });
            }
            for (first, second) in fetching.join_all().await {
                assert!(first == page && second == page, "{} and {} bytes", first.len(), second.len());
            }
        }
    });
}

#[test]
fn data_after_our_half_close_still_arrives() {
    require!();
    let namespace = Namespace::new();
    with_endpoint(&namespace, async |endpoint| {
        for host in KERNEL {
            let address: SocketAddr = format!("{host}:0").parse().expect("an address");
            let listener = namespace.inside(|| TcpListener::bind(address)).expect("a port");
            let address = listener.local_addr().expect("an address");
            // The server waits for the end of the data and returns the data in reverse order.
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut heard = Vec::new();
                stream.read_to_end(&mut heard).expect("the end of the stream");
                heard.reverse();
                stream.write_all(&heard).expect("it is sent");
            });
            let said: Vec<u8> =
                (0..2_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let mut stream = endpoint.connect(address).await.expect("the kernel accepts");
            stream.write_all(&said).await.expect("it is sent");
            stream.shutdown().await.expect("half closed");
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.expect("the answer and its end");
            assert!(answer.iter().eq(said.iter().rev()), "{} bytes", answer.len());
            server.join().expect("the server is content");
        }
    });
}

#[test]
fn aborts_are_resets_in_both_directions() {
    require!();
    let namespace = Namespace::new();
    with_endpoint(&namespace, async |endpoint| {
        for host in KERNEL {
            let address: SocketAddr = format!("{host}:0").parse().expect("an address");
            let listener = namespace.inside(|| TcpListener::bind(address)).expect("a port");
            let address = listener.local_addr().expect("an address");

            let stream = endpoint.connect(address).await.expect("the kernel accepts");
            let (mut accepted, _) = listener.accept().expect("a connection");
            stream.abort();
            let error = accepted.read(&mut [0; 1]).expect_err("a reset");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");

            let mut stream = endpoint.connect(address).await.expect("the kernel accepts");
            let (accepted, _) = listener.accept().expect("a connection");
            socket2::SockRef::from(&accepted).set_linger(Some(Duration::ZERO)).expect("it can be set");
            drop(accepted);
            let error = stream.read(&mut [0; 1]).await.expect_err("a reset");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        }
    });
}

/// Runs `body` with an endpoint on a TUN device in the namespace. The kernel has the addresses [`KERNEL`].
pub(crate) fn with_endpoint(namespace: &Namespace, body: impl AsyncFnOnce(Endpoint)) {
    with_endpoint_of(namespace, TcpConfig::default(), true, body);
}

/// Like [`with_endpoint`] with this TCP, over a device with or without offloads; without them a capture shows
/// packets as on a wire.
pub(crate) fn with_endpoint_of(
    namespace: &Namespace,
    tcp: TcpConfig,
    offload: bool,
    body: impl AsyncFnOnce(Endpoint),
) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let inside = netns::Namespace::open(namespace.name()).expect("the namespace exists");
        let options = TunOptions { offload, ..TunOptions::default() };
        let mut device = TunDevice::open_in("brisk1", &inside, options).expect("a TUN device");
        let kernel: [(IpAddr, u8); 2] =
            [([10, 8, 0, 1].into(), 24), ([0xfd08, 0, 0, 0, 0, 0, 0, 1].into(), 64)];
        for (address, length) in kernel {
            device.configure(address, length, 1500).expect("it can be configured");
        }
        let stack = STACK.map(|address| address.parse().expect("an address"));
        let builder = Endpoint::builder(Box::new(device)).tcp(tcp);
        let endpoint = stack.into_iter().fold(builder, |builder, address| builder.address(address)).build();
        let all = body(endpoint.expect("an endpoint"));
        tokio::time::timeout(Duration::from_secs(60), all).await.expect("done within a minute");
    });
}

/// Makes one request over an open connection; returns the body.
async fn ask(stream: &mut TcpStream, path: &str) -> Vec<u8> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it is sent");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("the head goes on"));
    }
    let head = text(&head).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.and_then(|length| length.parse().ok()).expect("the length of the body")];
    stream.read_exact(&mut body).await.expect("the whole body");
    body
}
