//! The edge: a client's TCP on one side of a link in memory, the edge on the other, and an origin that uses
//! the kernel's TCP on the loopback interface.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use brisk_gateway::{
    Access, ClientTcp, Edge, EdgeConfig, EdgeControl, End, Listener, Log, ProxyVersion, Role, Route,
    ServiceConfig, Timeout,
};
use brisk_link::LinkSpec;
use brisk_packet_io::share::KernelListener;
use brisk_runtime::{ConnectConfig, Endpoint, FastOpenConnect, TcpStream, memory};
use brisk_tcp::config::BufferConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Time limit for an event that is due soon.
const TIME_LIMIT: Duration = Duration::from_secs(10);
const AT: &str = "10.0.0.2:443";

/// An edge, and clients on the other side of a link of 10 ms.
struct Fixture {
    near: Endpoint,
    control: EdgeControl,
    accesses: Arc<Mutex<Vec<Access>>>,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
    far: Endpoint,
}

fn listener(at: &str) -> Listener {
    Listener { listen: at.parse().unwrap(), origin: None, routes: Vec::new(), direct: None }
}

impl Fixture {
    async fn start(config: EdgeConfig) -> Fixture {
        Fixture::with_kernel(config, Vec::new()).await
    }

    async fn with_kernel(config: EdgeConfig, kernel: Vec<(SocketAddr, KernelListener)>) -> Fixture {
        let link = LinkSpec::parse("--rtt 10ms").unwrap();
        let (near, far) = memory::network(&link, 1).unwrap();
        let places: Vec<(SocketAddr, Endpoint)> = config
            .listeners
            .iter()
            .flat_map(|listener| listener.listen.addresses())
            .map(|at| (at, far.clone()))
            .collect();
        let accesses = Arc::<Mutex<Vec<Access>>>::default();
        let seen = accesses.clone();
        let service = ServiceConfig {
            log: Log::silent(),
            on_access: Some(Arc::new(move |access| seen.lock().unwrap().push(access.clone()))),
            drain_timeout: Duration::from_millis(200),
            ..config.service
        };
        let edge =
            Edge::bind(EdgeConfig { service, ..config }, &places).unwrap().with_kernel(kernel).unwrap();
        let control = edge.control();
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(async move {
            edge.run(async move {
                let _ = stopped.await;
            })
            .await;
        });
        Fixture { near, control, accesses, stop, running, far }
    }

    async fn connect(&self, at: &str) -> TcpStream {
        self.near.connect(at.parse().unwrap()).await.unwrap()
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

    async fn finish(self) {
        let _ = self.stop.send(());
        self.running.await.unwrap();
    }
}

async fn origin() -> (TcpListener, String) {
    let origin = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = origin.local_addr().unwrap().to_string();
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
async fn client_reaches_the_origin_and_half_close_passes_both_ways() {
    let (listening, address) = origin().await;
    let config = EdgeConfig { origin: Some(address), ..EdgeConfig::new(vec![listener(AT)]) };
    let edge = Fixture::start(config).await;
    let mut client = edge.connect(AT).await;
    let request = vec![7; 300_000];
    let exchange = async {
        client.write_all(&request).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let (received, answer) = tokio::join!(echo(&listening), exchange);
    assert!(received == request && answer == request);
    let access = edge.ended().await;
    assert_eq!((access.role, &access.end), (Role::Edge, &End::Closed));
    assert_eq!((access.bytes_up, access.bytes_down), (300_000, 300_000));
    assert!(access.hop.is_some_and(|stats| stats.srtt.is_some()), "the client's connection is reported");
    edge.finish().await;
}

#[tokio::test]
async fn client_that_the_kernel_accepts_is_served_and_counted_next_to_the_others() {
    let (listening, address) = origin().await;
    let config = EdgeConfig { origin: Some(address), ..EdgeConfig::new(vec![listener(AT)]) };
    let metrics = config.service.metrics.clone();
    let kernel = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    kernel.set_nonblocking(true).unwrap();
    let at = kernel.local_addr().unwrap();
    // The device keeps its handle of the listener.
    let _device = kernel.try_clone().unwrap();
    let edge = Fixture::with_kernel(
        config,
        vec![(AT.parse().unwrap(), KernelListener { listener: kernel, exceptions: None, guards: true })],
    )
    .await;
    let mut client = tokio::net::TcpStream::connect(at).await.unwrap();
    let exchange = async {
        client.write_all(&[7; 3000]).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let (received, answer) = tokio::join!(echo(&listening), exchange);
    assert!(received == [7; 3000] && answer == received);
    let Access { tcp: Some(ClientTcp::Kernel(stats)), end: End::Closed, hop: None, .. } = edge.ended().await
    else {
        panic!("the kernel has served it");
    };
    assert!(stats.data_segments_out > 0 && stats.retransmits == 0 && stats.srtt.is_some(), "{stats:?}");
    let mut client = edge.connect(AT).await;
    client.shutdown().await.unwrap();
    let (_, ended) = tokio::join!(echo(&listening), edge.ended());
    assert_eq!(ended.tcp, Some(ClientTcp::Brisk));
    let text = metrics.text(None);
    for tcp in ["brisk", "kernel"] {
        for line in [
            format!("brisk_client_connections_total{{tcp=\"{tcp}\",result=\"closed\"}} 1"),
            format!("brisk_client_segments_total{{tcp=\"{tcp}\",kind=\"retransmit\"}} 0"),
            format!("brisk_client_response_seconds_count{{tcp=\"{tcp}\"}} 1"),
        ] {
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }
    edge.finish().await;
}

#[tokio::test]
async fn draining_edge_resets_new_connections_of_the_kernel() {
    let (listening, address) = origin().await;
    let config = EdgeConfig { origin: Some(address), ..EdgeConfig::new(vec![listener(AT)]) };
    let kernel = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    kernel.set_nonblocking(true).unwrap();
    let at = kernel.local_addr().unwrap();
    let _device = kernel.try_clone().unwrap();
    let edge = Fixture::with_kernel(
        config,
        vec![(AT.parse().unwrap(), KernelListener { listener: kernel, exceptions: None, guards: true })],
    )
    .await;
    let mut open = edge.connect(AT).await;
    open.write_all(b"a request").await.unwrap();
    let (_server, _) = listening.accept().await.unwrap();
    edge.stop.send(()).unwrap();
    // An open connection keeps the edge running for the drain limit.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let refused = async {
        loop {
            let Ok(mut late) = tokio::net::TcpStream::connect(at).await else { continue };
            if late.read_u8().await.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset) {
                return;
            }
        }
    };
    timeout(TIME_LIMIT, refused).await.expect("it is reset");
    edge.running.await.unwrap();
}

#[tokio::test]
async fn origin_that_speaks_first_is_heard_before_the_client_speaks() {
    let (listening, address) = origin().await;
    let config = EdgeConfig { origin: Some(address), ..EdgeConfig::new(vec![listener(AT)]) };
    let edge = Fixture::start(config).await;
    let mut client = edge.connect(AT).await;
    let (mut server, _) = listening.accept().await.unwrap();
    server.write_all(b"220 ready").await.unwrap();
    let mut greeting = [0; 9];
    client.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting, b"220 ready");
    drop((client, server));
    edge.finish().await;
}

#[tokio::test]
async fn data_of_a_syn_reaches_the_origin_behind_the_proxy_header() {
    let (listening, address) = origin().await;
    let config = EdgeConfig {
        origin: Some(address),
        send_proxy: Some(ProxyVersion::V1),
        ..EdgeConfig::new(vec![listener(AT)])
    };
    let edge = Fixture::start(config).await;
    let fast_open = ConnectConfig { fast_open: Some(FastOpenConnect::default()), ..ConnectConfig::default() };
    for outcome in ["no-cookie", "used"] {
        let (mut client, taken) =
            edge.near.connect_with_data(AT.parse().unwrap(), b"GET /", &fast_open).unwrap();
        assert_eq!(taken, 5);
        client.connected().await.unwrap();
        client.shutdown().await.unwrap();
        let received = String::from_utf8(echo(&listening).await).unwrap();
        let port = client.local_addr().port();
        assert_eq!(received, format!("PROXY TCP4 10.0.0.1 10.0.0.2 {port} 443\r\nGET /"));
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, received);
        assert_eq!(client.stats().map(|stats| stats.fast_open.name()), Some(outcome));
        assert_eq!(edge.ended().await.end, End::Closed);
    }
    edge.finish().await;
}

#[tokio::test]
async fn failures_of_either_end_reset_the_other_one() {
    let (listening, address) = origin().await;
    let config = EdgeConfig { origin: Some(address), ..EdgeConfig::new(vec![listener(AT)]) };
    let edge = Fixture::start(config).await;
    let mut client = edge.connect(AT).await;
    let (mut server, _) = listening.accept().await.unwrap();
    server.write_all(b"x").await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), b'x');
    server.set_zero_linger().unwrap();
    drop(server);
    assert_eq!(client.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    let end = edge.ended().await.end;
    assert!(matches!(end, End::OriginFailed(_)), "{end:?}");

    let client = edge.connect(AT).await;
    let (mut server, _) = listening.accept().await.unwrap();
    client.abort();
    assert_eq!(server.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert!(matches!(edge.ended().await.end, End::ClientFailed(_)));

    let origin = listening.local_addr().unwrap();
    drop(listening);
    let mut client = edge.connect(AT).await;
    assert_eq!(client.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    let end = edge.ended().await.end.to_string();
    assert!(end.starts_with(&format!("origin unreachable: {origin}: ")), "{end}");
    edge.finish().await;
}

/// Returns a client that has sent a request and its end, and reads no answer. The origin has sent all of its
/// answer, which the edge has taken over: the edge's TCP holds more than the client's window admits.
async fn silent_reader(edge: &Fixture, listening: &TcpListener, answer: &[u8]) -> TcpStream {
    let mut config = ConnectConfig::default();
    config.tcp.receive_buffer = BufferConfig { initial: 4 << 10, max: 4 << 10 };
    let mut client = edge.near.connect_with(AT.parse().unwrap(), &config).await.unwrap();
    client.write_all(b"request").await.unwrap();
    client.shutdown().await.unwrap();
    let (mut server, _) = listening.accept().await.unwrap();
    server.read_to_end(&mut Vec::new()).await.unwrap();
    server.write_all(answer).await.unwrap();
    client
}

#[tokio::test]
async fn connection_is_open_until_the_client_has_acknowledged_the_last_byte() {
    let (listening, address) = origin().await;
    let config = EdgeConfig { origin: Some(address), ..EdgeConfig::new(vec![listener(AT)]) };
    let edge = Fixture::start(config).await;
    let sent = [7; 40_000];
    let mut client = silent_reader(&edge, &listening, &sent).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(edge.accesses.lock().unwrap().is_empty(), "the edge holds bytes for the client");
    let mut received = Vec::new();
    client.read_to_end(&mut received).await.unwrap();
    assert!(received == sent);
    let access = edge.ended().await;
    assert_eq!((access.end, access.bytes_down), (End::Closed, 40_000));
    edge.finish().await;
}

#[tokio::test]
async fn client_that_does_not_read_its_answer_is_reset_after_the_limit() {
    let (listening, address) = origin().await;
    let mut config = EdgeConfig { origin: Some(address), ..EdgeConfig::new(vec![listener(AT)]) };
    config.service.timeouts.half_closed = Duration::from_millis(300);
    let edge = Fixture::start(config).await;
    let mut client = silent_reader(&edge, &listening, &[7; 40_000]).await;
    assert_eq!(edge.ended().await.end, End::TimedOut(Timeout::HalfClosed));
    assert_eq!(edge.far.buffered_bytes(), 0, "the edge has freed the bytes");
    let mut received = Vec::new();
    let read = timeout(TIME_LIMIT, client.read_to_end(&mut received)).await.unwrap();
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    edge.finish().await;
}

/// Returns a TLS client hello for this server name.
fn hello(name: &str) -> Vec<u8> {
    let name = name.as_bytes();
    let u16 = |n: usize| u16::try_from(n).unwrap().to_be_bytes().to_vec();
    let entry = [vec![0], u16(name.len()), name.to_vec()].concat();
    let list = [u16(entry.len()), entry].concat();
    let extension = [u16(0), u16(list.len()), list].concat();
    let body = [
        vec![3, 3],
        vec![9; 32],
        vec![0],
        u16(2),
        vec![0x13, 1],
        vec![1, 0],
        u16(extension.len()),
        extension,
    ];
    let body = body.concat();
    let handshake = [vec![1, 0], u16(body.len()), body].concat();
    [vec![22, 3, 1], u16(handshake.len()), handshake].concat()
}

#[tokio::test]
async fn tls_clients_go_where_their_server_name_leads_also_after_a_reload() {
    let ((shop, shop_at), (blog, blog_at)) = (origin().await, origin().await);
    let route = |sni: &str, origin: &str| Route {
        sni: sni.parse().unwrap(),
        origin: origin.parse().unwrap(),
        direct: None,
    };
    let with = |routes: Vec<Route>| EdgeConfig {
        origins: [format!("shop={shop_at}"), format!("blog={blog_at}")]
            .iter()
            .map(|text| text.parse::<brisk_gateway::NamedOrigin>().unwrap())
            .collect(),
        ..EdgeConfig::new(vec![Listener { routes, ..listener(AT) }, listener("10.0.0.2:80")])
    };
    let edge = Fixture::start(with(vec![route("shop.example", "shop"), route("*.example", "blog")])).await;
    let asks = async |name: &str, listening: &TcpListener| {
        let mut client = edge.connect(AT).await;
        client.write_all(&hello(name)).await.unwrap();
        client.shutdown().await.unwrap();
        let received = echo(listening).await;
        assert_eq!(received, hello(name));
        let access = edge.ended().await;
        assert_eq!(access.listener.as_deref(), Some(AT));
        access.origin
    };
    assert_eq!(asks("shop.example", &shop).await.as_deref(), Some("shop"));
    assert_eq!(asks("a.example", &blog).await.as_deref(), Some("blog"));
    let mut stranger = edge.connect(AT).await;
    stranger.write_all(&hello("example.org")).await.unwrap();
    let mut alert = Vec::new();
    stranger.read_to_end(&mut alert).await.unwrap();
    assert_eq!((alert.first(), edge.ended().await.end.name()), (Some(&21), "client_failed"));

    edge.control.reload(with(vec![route("shop.example", "blog")]));
    assert_eq!(asks("shop.example", &blog).await.as_deref(), Some("blog"));
    edge.finish().await;
}
