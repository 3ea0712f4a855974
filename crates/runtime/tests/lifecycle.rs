//! An endpoint that changes while it runs: its MTU, its addresses, its end.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use brisk_device::memory::MemoryDevice;
use brisk_link::LinkSpec;
use brisk_runtime::{Endpoint, Forwarder, TcpListener, TcpStream, memory};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

const LIMIT: Duration = Duration::from_secs(30);

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

async fn pair() -> (Endpoint, Endpoint, TcpStream, TcpStream) {
    let (a, b) = memory::network(&LinkSpec::parse("--rtt 20ms").unwrap(), 1).unwrap();
    let listener = TcpListener::bind(&b, at("10.0.0.2:80")).unwrap();
    let (client, accepted) = tokio::join!(a.connect(at("10.0.0.2:80")), listener.accept());
    (a, b, client.unwrap(), accepted.unwrap().0)
}

#[tokio::test]
async fn closing_delivers_written_data_and_waits_for_the_peer() {
    let (_a, b, mut client, mut accepted) = pair().await;
    accepted.write_all(&[7; 300_000]).await.unwrap();
    let reader = tokio::spawn(async move {
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        received.len()
    });
    assert_eq!(timeout(LIMIT, b.close(Duration::from_secs(20))).await.unwrap(), 0);
    assert_eq!(reader.await.unwrap(), 300_000);
    let closed = |result: io::Result<()>| result.unwrap_err().kind();
    assert_eq!(closed(b.connect(at("10.0.0.1:80")).await.map(drop)), io::ErrorKind::NotConnected);
    assert_eq!(closed(TcpListener::bind(&b, at("10.0.0.2:81")).map(drop)), io::ErrorKind::NotConnected);
    assert_eq!(closed(Forwarder::bind(&b, 1).map(drop)), io::ErrorKind::NotConnected);
    assert_eq!(timeout(LIMIT, b.close(Duration::ZERO)).await.unwrap(), 0, "closed already");
}

#[tokio::test]
async fn closing_aborts_at_its_deadline_and_wakes_every_task() {
    let (a, b, mut client, mut accepted) = pair().await;
    let listener = TcpListener::bind(&b, at("10.0.0.2:81")).unwrap();
    let forwarder = Forwarder::bind(&b, 1).unwrap();
    let accepting = tokio::spawn(async move { listener.accept().await.map(drop).unwrap_err().kind() });
    let asking = tokio::spawn(async move { forwarder.request().await.map(drop).unwrap_err().kind() });
    let reading = tokio::spawn(async move { accepted.read_u8().await.unwrap_err().kind() });
    tokio::task::yield_now().await;
    let began = Instant::now();
    assert_eq!(b.close(Duration::from_millis(200)).await, 1);
    assert!((Duration::from_millis(190)..Duration::from_secs(1)).contains(&began.elapsed()));
    for waiting in [accepting, asking] {
        assert_eq!(timeout(LIMIT, waiting).await.unwrap().unwrap(), io::ErrorKind::NotConnected);
    }
    assert_eq!(timeout(LIMIT, reading).await.unwrap().unwrap(), io::ErrorKind::ConnectionAborted);
    // The FIN arrives first, then the reset.
    let read = timeout(LIMIT, client.read(&mut [0])).await.unwrap();
    assert!(matches!(read, Ok(0) | Err(_)));
    timeout(LIMIT, a.wait_idle()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn debug_output_of_endpoints_and_requests_fits_into_a_log_line() {
    let (a, b) = memory::network(&LinkSpec::default(), 1).unwrap();
    let forwarder = Forwarder::bind(&b, 1).unwrap();
    let listener = TcpListener::bind(&b, at("10.0.0.2:80")).unwrap();
    assert_eq!(format!("{b:?}"), "Endpoint { stacks: 1, .. }");
    assert_eq!(format!("{listener:?}"), "TcpListener { local: 10.0.0.2:80, .. }");
    let connecting = tokio::spawn(async move { a.connect(at("10.0.0.2:81")).await });
    let request = timeout(LIMIT, forwarder.request()).await.unwrap().unwrap();
    let text = format!("{request:?}");
    assert!(text.len() < 1000, "{} bytes: {text}", text.len());
    request.refuse();
    connecting.await.unwrap().unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn device_counters_of_a_closed_endpoint_are_exact() {
    let (_a, b, client, mut accepted) = pair().await;
    accepted.write_all(&[7; 1000]).await.unwrap();
    // The client does not close, so the last packet is a reset at the deadline.
    assert_eq!(b.close(Duration::from_millis(50)).await, 1);
    assert_eq!(b.device_counters().sent, b.stats().packets_out);
    drop(client);
}

#[tokio::test]
async fn addresses_and_mtu_change_while_connections_are_open() {
    let (a, b) = MemoryDevice::pair();
    let client = Endpoint::builder(Box::new(a)).address("10.0.0.1".parse().unwrap()).build().unwrap();
    let server = Endpoint::builder(Box::new(b)).address("10.0.0.2".parse().unwrap()).build().unwrap();
    let _old = TcpListener::bind(&server, at("10.0.0.2:80")).unwrap();
    let mut on_old = client.connect(at("10.0.0.2:80")).await.unwrap();
    let new = "10.0.0.3".parse().unwrap();
    assert!(TcpListener::bind(&server, at("10.0.0.3:80")).is_err());
    assert!(server.add_address(new));
    let listener = TcpListener::bind(&server, at("10.0.0.3:80")).unwrap();
    let (stream, accepted) = tokio::join!(client.connect(at("10.0.0.3:80")), listener.accept());
    let (mut stream, mut accepted) = (stream.unwrap(), accepted.unwrap().0);
    assert!(server.remove_address("10.0.0.2".parse().unwrap()));
    assert_eq!(server.addresses(), [new]);
    let error = timeout(LIMIT, on_old.read_u8()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(client.set_mtu(100).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    let error = client.set_mtu(9000).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(error.to_string(), "mtu 9000: the device was built for at most 1500 bytes");
    client.set_mtu(900).unwrap();
    stream.write_all(&[1; 100_000]).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut received = Vec::new();
    timeout(LIMIT, accepted.read_to_end(&mut received)).await.unwrap().unwrap();
    assert_eq!(received.len(), 100_000);
}
