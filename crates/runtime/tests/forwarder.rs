//! A forwarder: connections through the tunnel of an example, and decisions before the first answer.

#[allow(dead_code, unreachable_pub, reason = "the test runs a part of the example")]
#[path = "../examples/userspace_vpn.rs"]
mod userspace_vpn;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use brisk_device::memory::MemoryDevice;
use brisk_runtime::channel::{ChannelDevice, ChannelOptions};
use brisk_runtime::{Endpoint, Forwarder, TcpListener};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::task::JoinSet;
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(30);

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Returns a client, and a host that has every address.
fn hosts() -> (Endpoint, Endpoint) {
    let (a, b) = MemoryDevice::pair();
    let client = Endpoint::builder(Box::new(a)).address("10.0.0.1".parse().unwrap()).seed(1).build().unwrap();
    (client, Endpoint::builder(Box::new(b)).any_address().seed(2).build().unwrap())
}

fn carry(mut from: Receiver<Bytes>, to: Sender<Bytes>) {
    tokio::spawn(async move {
        while let Some(packet) = from.recv().await {
            if to.send(packet).await.is_err() {
                return;
            }
        }
    });
}

/// Returns the two ends of a tunnel; the second one has every address.
fn tunnel() -> (Endpoint, Endpoint) {
    let (inside, to_client, from_client) = ChannelDevice::new(ChannelOptions::default());
    let (outside, to_server, from_server) = ChannelDevice::new(ChannelOptions::default());
    carry(from_client, to_server);
    carry(from_server, to_client);
    let client = Endpoint::builder(Box::new(inside)).address("10.0.0.1".parse().unwrap()).build().unwrap();
    let server = Endpoint::builder(Box::new(outside)).any_address().build().unwrap();
    (client, server)
}

#[tokio::test]
async fn example_of_a_tunnel_forwards_a_hundred_connections_to_the_kernel() {
    let kernel = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let destination = kernel.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = kernel.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await
            });
        }
    });
    let (client, server) = tunnel();
    let served = server.clone();
    let forwarding = tokio::spawn(async move { userspace_vpn::forward(&served).await });
    let mut asking = JoinSet::new();
    for salt in 0..100u8 {
        let client = client.clone();
        asking.spawn(async move {
            let mut stream = client.connect(destination).await.unwrap();
            let sent: Vec<u8> = (0..20_000).map(|n: usize| (n * 31) as u8 ^ salt).collect();
            stream.write_all(&sent).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).await.unwrap();
            assert!(received == sent);
        });
    }
    timeout(LIMIT, asking.join_all()).await.unwrap();
    // A port of the kernel without a listener.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = timeout(LIMIT, client.connect(closed)).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    timeout(LIMIT, server.wait_idle()).await.unwrap();
    forwarding.abort();
}

#[tokio::test]
async fn example_of_a_tunnel_passes_a_reset_on() {
    let kernel = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let destination = kernel.local_addr().unwrap();
    let (client, server) = tunnel();
    let served = server.clone();
    let forwarding = tokio::spawn(async move { userspace_vpn::forward(&served).await });
    let (accepted, connected) = tokio::join!(kernel.accept(), client.connect(destination));
    let ((mut origin, _), mut stream) = (accepted.unwrap(), connected.unwrap());
    origin.write_all(b"part").await.unwrap();
    let mut part = [0; 4];
    timeout(LIMIT, stream.read_exact(&mut part)).await.unwrap().unwrap();
    origin.set_zero_linger().unwrap();
    drop(origin);
    let error = timeout(LIMIT, stream.read(&mut part)).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    forwarding.abort();
}

#[tokio::test]
async fn request_names_both_ends_and_gets_no_answer_before_a_decision() {
    let (client, server) = hosts();
    let forwarder = Forwarder::bind(&server, 8).unwrap();
    assert_eq!(Forwarder::bind(&server, 8).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    let connecting = tokio::spawn(async move { client.connect(at("203.0.113.9:443")).await });
    let request = timeout(LIMIT, forwarder.request()).await.unwrap().unwrap();
    assert_eq!(request.destination(), at("203.0.113.9:443"));
    assert_eq!(request.peer_addr().ip(), at("10.0.0.1:0").ip());
    assert_eq!(request.options().mss, Some(1460));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!connecting.is_finished());
    let mut accepted = request.accept().await.unwrap();
    assert_eq!(accepted.local_addr(), at("203.0.113.9:443"));
    let mut stream = connecting.await.unwrap().unwrap();
    stream.write_all(b"hello").await.unwrap();
    let mut hello = [0; 5];
    accepted.read_exact(&mut hello).await.unwrap();
    assert_eq!(&hello, b"hello");
}

#[tokio::test]
async fn a_dropped_request_is_refused_and_an_ignored_one_comes_again() {
    let (client, server) = hosts();
    let forwarder = Forwarder::bind(&server, 8).unwrap();
    let dial = |port| {
        let client = client.clone();
        tokio::spawn(async move { client.connect(SocketAddr::new([203, 0, 113, 9].into(), port)).await })
    };
    let refused = dial(81);
    drop(forwarder.request().await.unwrap());
    let error = timeout(LIMIT, refused).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    let patient = dial(82);
    forwarder.request().await.unwrap().ignore();
    let again = timeout(LIMIT, forwarder.request()).await.unwrap().unwrap();
    assert_eq!(again.destination().port(), 82);
    let (accepted, connected) = tokio::join!(again.accept(), patient);
    accepted.unwrap();
    connected.unwrap().unwrap();
    let forgotten = dial(83);
    let held = forwarder.request().await.unwrap();
    drop(forwarder);
    assert_eq!(held.accept().await.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    let error = timeout(LIMIT, forgotten).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn listeners_precede_the_forwarder_and_cancelled_waits_lose_nothing() {
    let (client, server) = hosts();
    let forwarder = Forwarder::bind(&server, 8).unwrap();
    let listener = TcpListener::bind(&server, at("0.0.0.0:80")).unwrap();
    let (connected, accepted) = tokio::join!(client.connect(at("203.0.113.9:80")), listener.accept());
    assert!(connected.is_ok() && accepted.is_ok());
    assert!(timeout(Duration::from_millis(20), forwarder.request()).await.is_err(), "cancelled");
    let other = client.clone();
    let connecting = tokio::spawn(async move { other.connect(at("203.0.113.9:81")).await });
    let request = timeout(LIMIT, forwarder.request()).await.unwrap().unwrap();
    let (accepted, connected) = tokio::join!(request.accept(), connecting);
    accepted.unwrap();
    connected.unwrap().unwrap();
}
