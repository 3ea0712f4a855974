//! A frontend that serves unmodified clients over brisk's TCP: a client's TCP, a link in memory, the
//! frontend, another link in memory, the backend, and an origin of the kernel's on the loopback.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use brisk_gateway::{
    Access, Backend, BackendConfig, ClientSide, End, Entrance, Frontend, FrontendConfig, FrontendControl,
    Hop, Listener, Log, Metrics, Role, ServiceConfig, Summary,
};
use brisk_link::LinkSpec;
use brisk_runtime::{ConnectConfig, Endpoint, FastOpenConnect, TcpStream, memory};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Time limit for an event that is due soon.
const TIME_LIMIT: Duration = Duration::from_secs(10);
const AT: &str = "10.0.0.2:80";
const HOP: &str = "10.0.0.2:7443";

/// Both gateways, and clients on the other side of a link of 10 ms.
struct Fixture {
    near: Endpoint,
    control: FrontendControl,
    metrics: Arc<Metrics>,
    accesses: Arc<Mutex<Vec<Access>>>,
    stops: Vec<oneshot::Sender<()>>,
    running: JoinSet<Summary>,
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

impl Fixture {
    async fn start(origin: SocketAddr, configure: impl FnOnce(&mut FrontendConfig)) -> Fixture {
        let link = LinkSpec::parse("--rtt 10ms").unwrap();
        let (near, client_side) = memory::network(&link, 1).unwrap();
        let (hop, far) = memory::network(&link, 2).unwrap();
        let accesses = Arc::<Mutex<Vec<Access>>>::default();
        let seen = accesses.clone();
        let quiet = ServiceConfig {
            log: Log::silent(),
            drain_timeout: Duration::from_millis(200),
            ..ServiceConfig::default()
        };
        let metrics = Arc::<Metrics>::default();
        let service = ServiceConfig {
            on_access: Some(Arc::new(move |access| seen.lock().unwrap().push(access.clone()))),
            metrics: metrics.clone(),
            ..quiet.clone()
        };
        let backend =
            BackendConfig { service: quiet, ..BackendConfig::new(at(HOP), origin.to_string(), Hop::Plain) };
        let backend = Backend::bind(backend, &far).unwrap();
        let mut config = FrontendConfig {
            service,
            clients: Some(ClientSide::default()),
            ..FrontendConfig::new(at(AT), at(HOP), Hop::Plain)
        };
        configure(&mut config);
        let listeners = config.listeners.iter().flat_map(|listener| listener.listen.addresses());
        let places: Vec<(SocketAddr, Endpoint)> =
            config.listen.into_iter().chain(listeners).map(|place| (place, client_side.clone())).collect();
        let frontend = Frontend::on_stacks(&places, config, hop).unwrap();
        assert_eq!(frontend.local_addr().unwrap(), at(AT));
        let control = frontend.control();
        let (mut stops, mut running) = (Vec::new(), JoinSet::new());
        let mut order = || {
            let (stop, stopped) = oneshot::channel::<()>();
            stops.push(stop);
            async move {
                let _ = stopped.await;
            }
        };
        let (front, back) = (frontend.run(order()), backend.run(order()));
        running.spawn(front);
        running.spawn(back);
        Fixture { near, control, metrics, accesses, stops, running }
    }

    async fn connect(&self) -> TcpStream {
        self.near.connect(at(AT)).await.unwrap()
    }

    /// Removes and returns the newest record of a connection; waits if there is none.
    async fn ended(&self) -> Access {
        let record = async {
            loop {
                if let Some(access) = self.accesses.lock().unwrap().pop() {
                    return access;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(TIME_LIMIT, record).await.expect("the connection ends")
    }

    async fn finish(mut self) {
        self.stops.clear();
        while self.running.join_next().await.is_some() {}
    }
}

async fn listen() -> (TcpListener, SocketAddr) {
    let origin = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = origin.local_addr().unwrap();
    (origin, address)
}

/// Accepts a connection, reads to its end, answers with the same bytes, and closes; returns the bytes.
async fn echo(origin: &TcpListener) -> Vec<u8> {
    let exchange = async {
        let (mut stream, _) = origin.accept().await.unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.unwrap();
        stream.write_all(&received).await.unwrap();
        received
    };
    timeout(TIME_LIMIT, exchange).await.expect("a client reaches the origin")
}

#[tokio::test]
async fn client_reaches_the_origin_and_both_connections_are_recorded() {
    let (origin, address) = listen().await;
    let pair = Fixture::start(address, |_| ()).await;
    let mut client = pair.connect().await;
    let request = vec![7; 300_000];
    let exchange = async {
        client.write_all(&request).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let (received, answer) = tokio::join!(echo(&origin), exchange);
    assert!(received == request && answer == request);
    let access = pair.ended().await;
    assert_eq!((access.role, &access.end), (Role::Frontend, &End::Closed));
    assert_eq!((access.bytes_up, access.bytes_down), (300_000, 300_000));
    assert_eq!(access.peer.ip(), at("10.0.0.1:0").ip());
    let stats = access.outside.expect("the client's connection is recorded");
    assert!(stats.counters.retransmits == 0 && stats.counters.data_segments_out > 100, "{stats:?}");
    assert!(stats.srtt.is_some_and(|rtt| rtt >= Duration::from_millis(10)), "{stats:?}");
    assert!(access.hop.is_some_and(|hop| hop.counters.data_segments_out > 100), "and so is the hop");
    let text = pair.metrics.text(None);
    for line in [
        "brisk_client_connections_total{tcp=\"brisk\",result=\"closed\"} 1",
        "brisk_client_connections_total{tcp=\"brisk\",result=\"client_failed\"} 0",
        "brisk_client_segments_total{tcp=\"brisk\",kind=\"retransmit\"} 0",
        "brisk_client_response_seconds_count{tcp=\"brisk\"} 1",
        "brisk_client_rtt_seconds_bucket{le=\"0.01\",tcp=\"brisk\"} 0",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    pair.finish().await;
}

#[tokio::test]
async fn data_of_a_clients_syn_reaches_the_origin_once() {
    let (origin, address) = listen().await;
    let pair = Fixture::start(address, |_| ()).await;
    let fast_open = ConnectConfig { fast_open: Some(FastOpenConnect::default()), ..ConnectConfig::default() };
    for outcome in ["no-cookie", "used"] {
        let (mut client, taken) = pair.near.connect_with_data(at(AT), b"GET /", &fast_open).unwrap();
        assert_eq!(taken, 5);
        client.connected().await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(echo(&origin).await, b"GET /");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"GET /");
        assert_eq!(client.stats().map(|stats| stats.fast_open.name()), Some(outcome));
        assert_eq!(pair.ended().await.end, End::Closed);
    }
    let line = "brisk_client_tfo_attempts_total{result=\"used\"} 1";
    assert!(pair.metrics.text(None).contains(line), "{}", pair.metrics.text(None));
    pair.finish().await;
}

#[tokio::test]
async fn failures_of_either_end_reset_the_other_one() {
    let (origin, address) = listen().await;
    let pair = Fixture::start(address, |_| ()).await;
    let mut client = pair.connect().await;
    client.write_all(b"?").await.unwrap();
    let (mut server, _) = origin.accept().await.unwrap();
    server.write_all(b"x").await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), b'x');
    server.set_zero_linger().unwrap();
    drop(server);
    assert_eq!(client.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    let end = pair.ended().await.end;
    assert!(matches!(end, End::HopFailed(_)), "{end:?}");

    let mut client = pair.connect().await;
    client.write_all(b"?").await.unwrap();
    let (mut server, _) = origin.accept().await.unwrap();
    assert_eq!(server.read_u8().await.unwrap(), b'?');
    client.abort();
    assert_eq!(server.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    let end = pair.ended().await.end;
    assert!(matches!(end, End::ClientFailed(_)), "{end:?}");

    drop(origin);
    let mut client = pair.connect().await;
    client.write_all(b"?").await.unwrap();
    assert_eq!(client.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    let access = pair.ended().await;
    assert!(matches!(access.end, End::OriginUnreachable(_)), "{:?}", access.end);
    assert!(access.outside.is_some());
    pair.finish().await;
}

#[tokio::test]
async fn client_names_its_origin_over_socks5() {
    let ((_, usual), (origin, address)) = (listen().await, listen().await);
    let socks5 = |config: &mut FrontendConfig| {
        config.entrance = Entrance { socks5: true, ..Entrance::default() };
        config.direct = None;
    };
    let pair = Fixture::start(usual, socks5).await;
    let mut client = pair.connect().await;
    client.write_all(&[5, 1, 0]).await.unwrap();
    let mut method = [0; 2];
    client.read_exact(&mut method).await.unwrap();
    assert_eq!(method, [5, 0]);
    let request = [&[5, 1, 0, 1, 127, 0, 0, 1][..], &address.port().to_be_bytes()].concat();
    client.write_all(&request).await.unwrap();
    let mut answer = [0; 10];
    client.read_exact(&mut answer).await.unwrap();
    // The backend allows no origin but its own.
    assert_eq!(answer[..2], [5, 2]);
    let access = pair.ended().await;
    assert!(matches!(access.end, End::OriginUnreachable(_)), "{:?}", access.end);
    drop(origin);
    pair.finish().await;
}

#[tokio::test]
async fn reload_keeps_the_listeners_on_the_stack() {
    let (origin, address) = listen().await;
    let pair = Fixture::start(address, |_| ()).await;
    let other =
        Listener { listen: "10.0.0.2:81".parse().unwrap(), origin: None, routes: Vec::new(), direct: None };
    let config =
        FrontendConfig { listeners: vec![other], ..FrontendConfig::new(at(AT), at(HOP), Hop::Plain) };
    pair.control.reload(config).unwrap();
    let mut client = pair.connect().await;
    client.write_all(b"?").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(echo(&origin).await, b"?");
    assert!(pair.near.connect(at("10.0.0.2:81")).await.is_err(), "a port opens only at the start");
    let access = pair.ended().await;
    assert!(access.outside.is_some(), "records go on");
    pair.finish().await;
}
