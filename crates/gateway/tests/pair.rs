//! A frontend and a backend in one process with a lossy emulated link between them; client and origin use
//! kernel sockets.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use brisk_gateway::hop::{Opening, Purpose};
use brisk_gateway::service::hop_tcp;
use brisk_gateway::{
    Access, Backend, BackendConfig, End, Facts, Frontend, FrontendConfig, FrontendControl, Hop, HopKey,
    KeyRing, Log, Metrics, Role, ServiceConfig, Status, Summary, Timeout, Timeouts, Upstreams,
};
use brisk_link::LinkSpec;
use brisk_runtime::profile::Profile;
use brisk_runtime::{FastOpenOutcome, memory};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

const SEED: u64 = 11;

struct Pair {
    client_side: SocketAddr,
    stop: watch::Sender<bool>,
    stop_backend: watch::Sender<bool>,
    frontend: JoinHandle<Summary>,
    backend: JoinHandle<Summary>,
    accesses: Arc<Mutex<Vec<Access>>>,
    control: FrontendControl,
}

impl Pair {
    async fn start(link: &str, origin: SocketAddr) -> Pair {
        Pair::start_with(link, origin, |service| service).await
    }

    async fn start_with(
        link: &str,
        origin: SocketAddr,
        adjust: impl Fn(ServiceConfig) -> ServiceConfig,
    ) -> Pair {
        Pair::start_configured(link, origin, adjust, |_, _| ()).await
    }

    async fn start_configured(
        link: &str,
        origin: SocketAddr,
        adjust: impl Fn(ServiceConfig) -> ServiceConfig,
        configure: impl FnOnce(&mut BackendConfig, &mut FrontendConfig),
    ) -> Pair {
        let link = LinkSpec::parse(link).unwrap_or_else(|error| panic!("{error}"));
        let (a, b) = memory::network(&link, SEED).unwrap();
        let accesses: Arc<Mutex<Vec<Access>>> = Arc::default();
        let seen = accesses.clone();
        let service = adjust(ServiceConfig {
            log: Log::silent(),
            drain_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(3),
            on_access: Some(Arc::new(move |access| seen.lock().unwrap().push(access.clone()))),
            ..ServiceConfig::default()
        });
        let hop: SocketAddr = "10.0.0.2:7443".parse().unwrap();
        let mut backend = BackendConfig {
            service: service.clone(),
            ..BackendConfig::new(hop, origin.to_string(), sealed())
        };
        let mut frontend = FrontendConfig { service, ..FrontendConfig::new(loopback(), hop, sealed()) };
        configure(&mut backend, &mut frontend);
        let backend = Backend::bind(backend, &b).unwrap();
        let frontend = Frontend::bind(frontend, a).await.unwrap();
        let client_side = frontend.local_addr().unwrap();
        let control = frontend.control();
        let (stop, stopped) = watch::channel(false);
        let (stop_backend, backend_stopped) = watch::channel(false);
        let until = |mut stopped: watch::Receiver<bool>| async move {
            let _ = stopped.wait_for(|stop| *stop).await;
        };
        let frontend = tokio::spawn(frontend.run(until(stopped)));
        let backend = tokio::spawn(backend.run(until(backend_stopped)));
        Pair { client_side, stop, stop_backend, frontend, backend, accesses, control }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.client_side).await.unwrap()
    }

    /// Stops both sides; returns the records of the frontend.
    async fn finish(self) -> Vec<Access> {
        self.stop.send_replace(true);
        self.stop_backend.send_replace(true);
        self.frontend.await.unwrap();
        self.backend.await.unwrap();
        let accesses = self.accesses.lock().unwrap().clone();
        accesses.into_iter().filter(|access| access.role == Role::Frontend).collect()
    }
}

fn sealed() -> Hop {
    Hop::Sealed(KeyRing::of(HopKey::new([7; 32])))
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Starts an origin that answers every connection with `answer` of all bytes that it has received.
async fn origin(answer: fn(Vec<u8>) -> Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = Vec::new();
                stream.read_to_end(&mut request).await.unwrap();
                stream.write_all(&answer(request)).await.unwrap();
            });
        }
    });
    address
}

#[tokio::test]
async fn status_counts_round_trips_of_requests_and_not_the_pauses_between_them() {
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let origin = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                while stream.read_u8().await.is_ok() {
                    stream.write_all(&[7; 1000]).await.unwrap();
                }
            });
        }
    });
    let pair = Pair::start("--rtt 50ms", origin).await;
    // The watch measures the round trip.
    tokio::time::sleep(Duration::from_millis(600)).await;
    for _ in 0..5 {
        let mut client = pair.connect().await;
        for _ in 0..3 {
            client.write_all(b"?").await.unwrap();
            client.read_exact(&mut [0; 1000]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let facts = Facts {
        role: Role::Frontend,
        listen: String::new(),
        origin: None,
        hop: "tcp",
        security: "sealed",
        clients: None,
        share: None,
    };
    let status = Status::of(&facts, &Metrics::new(), Some(&pair.control)).json();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let path = &status["backends"][0];
    let [p50, p99] = ["p50", "p99"].map(|share| path["rtts"][share].as_f64().unwrap());
    assert!((0.9..1.8).contains(&p50) && (p50..4.0).contains(&p99), "{path}");
    assert!(path["extra"].as_f64().is_some_and(|extra| extra > 0.0), "{path}");
    pair.finish().await;
}

/// Returns the value of the series of `/metrics` with this name and these labels.
fn series(metrics: &str, labelled: &str) -> f64 {
    let value = metrics.lines().find_map(|line| line.strip_prefix(labelled)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("{labelled} is not in\n{metrics}"))
}

/// Makes 600 requests of 20 kB over a link that loses 5 %. The link and the clock are virtual: the same
/// losses in each run. Returns the frontend's backends, its records, and the smoothed round-trip times of the
/// path after each twelve requests, in seconds and sorted.
async fn requests_over_a_lossy_link(
    mechanisms: &str,
    answer: fn(Vec<u8>) -> Vec<u8>,
) -> (Arc<Upstreams>, Vec<Access>, Vec<f64>) {
    let tcp = hop_tcp(Profile::parse(mechanisms).unwrap().tcp);
    let configure = |backend: &mut BackendConfig, frontend: &mut FrontendConfig| {
        (backend.tcp, frontend.tcp, frontend.watch) = (tcp.clone(), tcp, true);
    };
    let link = "--rtt 100ms --loss 5%";
    let pair = Pair::start_configured(link, origin(answer).await, |service| service, configure).await;
    let length = answer(vec![7; 20_000]).len();
    let mut round_trips = Vec::new();
    for _ in 0..50 {
        let mut clients = JoinSet::new();
        for _ in 0..12 {
            let mut client = pair.connect().await;
            clients.spawn(async move {
                client.write_all(&[7; 20_000]).await.unwrap();
                client.shutdown().await.unwrap();
                client.read_to_end(&mut Vec::new()).await.unwrap()
            });
        }
        assert!(clients.join_all().await.iter().all(|count| *count == length));
        let text = Metrics::new().text(Some(&pair.control.upstreams()));
        round_trips.push(series(&text, "brisk_path_rtt_seconds{peer=\"10.0.0.2:7443\",kind=\"smoothed\"}"));
    }
    round_trips.sort_by(f64::total_cmp);
    (pair.control.upstreams(), pair.finish().await, round_trips)
}

/// With all mechanisms, most losses are repaired before a retransmission; they count as losses nevertheless.
#[tokio::test(start_paused = true)]
async fn metrics_of_a_frontend_give_loss_and_round_trip_time_of_the_link() {
    for mechanisms in ["tcp", "all"] {
        let (upstreams, accesses, round_trips) =
            requests_over_a_lossy_link(mechanisms, |request| request).await;
        let metrics = Metrics::new();
        accesses.iter().for_each(|access| metrics.observe(access));
        let text = metrics.text(Some(&upstreams));
        let path = |name: &str, label: &str| {
            series(&text, &format!("brisk_path_{name}{{peer=\"10.0.0.2:7443\",{label}}}"))
        };
        for dir in ["out", "in"] {
            let loss = path("loss_ratio", &format!("dir=\"{dir}\""));
            assert!((0.035..0.065).contains(&loss), "{mechanisms}, {dir}: {loss}");
        }
        // The path has the smoothed time of the last connection, which may include a delayed acknowledgement.
        let (min, smoothed) = (path("rtt_seconds", "kind=\"min\""), round_trips[round_trips.len() / 2]);
        assert!((0.1..0.102).contains(&min) && (min..0.11).contains(&smoothed), "{min} to {smoothed} s");
        let attempts =
            |result: &str| series(&text, &format!("brisk_tfo_attempts_total{{result=\"{result}\"}}"));
        assert!(attempts("used") > 300.0 && attempts("syn-lost") > 9.0, "{mechanisms}:\n{text}");
        assert_eq!(attempts("blackholed"), 0.0, "{mechanisms}: the path only loses");
    }
}

/// The peer repairs segments that this side lost, and reports it. The metric counts these reports, and not
/// the repairs of this side.
#[tokio::test(start_paused = true)]
async fn metric_without_backends_gives_the_loss_of_what_this_side_sent() {
    let (_, accesses, _) = requests_over_a_lossy_link("all", |_| vec![7; 100]).await;
    let metrics = Metrics::new();
    accesses.iter().for_each(|access| metrics.observe(access));
    let loss = series(&metrics.text(None), "brisk_path_loss_ratio{peer=\"all\",dir=\"out\"}");
    assert!((0.043..0.057).contains(&loss), "{loss}");
}

/// A path that drops large packets costs the first response some round trips and the next ones nothing.
#[tokio::test(start_paused = true)]
async fn responses_arrive_over_a_path_that_drops_large_packets() {
    let tcp = hop_tcp(Profile::parse("all").unwrap().tcp);
    let configure = |backend: &mut BackendConfig, frontend: &mut FrontendConfig| {
        (backend.tcp, frontend.tcp) = (tcp.clone(), tcp);
    };
    let origin = origin(|_| vec![7; 30_000]).await;
    let link = "--rtt 40ms --mtu 1300";
    let pair = Pair::start_configured(link, origin, |service| service, configure).await;
    for round_trips in [12, 4, 4] {
        let began = tokio::time::Instant::now();
        let mut client = pair.connect().await;
        client.write_all(b"request").await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(client.read_to_end(&mut Vec::new()).await.unwrap(), 30_000);
        let took = began.elapsed();
        assert!(took < round_trips * Duration::from_millis(40), "{took:?}");
    }
    pair.finish().await;
}

#[tokio::test]
async fn requests_and_answers_pass_a_lossy_hop_and_half_closes_with_them() {
    let origin = origin(|request| request.iter().rev().copied().collect()).await;
    let pair = Pair::start("--rtt 10ms --loss 2%", origin).await;
    let mut clients = JoinSet::new();
    for i in 0..20_u32 {
        let mut client = pair.connect().await;
        clients.spawn(async move {
            let request: Vec<u8> = (0..10_000_u32).map(|j| (i * j) as u8).collect();
            client.write_all(&request).await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            answer.reverse();
            assert!(answer == request, "seed {SEED}");
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    let accesses = pair.finish().await;
    assert_eq!(accesses.len(), 20);
    for access in accesses {
        assert_eq!((access.bytes_up, access.bytes_down), (10_000, 10_000));
        assert_eq!(access.end, End::Closed);
        assert!(access.hop.and_then(|hop| hop.srtt).is_some_and(|rtt| rtt >= Duration::from_millis(10)));
    }
}

#[tokio::test]
async fn a_server_that_speaks_first_is_heard() {
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let pair = Pair::start("--rtt 4ms", listener.local_addr().unwrap()).await;
    let mut client = pair.connect().await;
    let (mut server, _) = listener.accept().await.unwrap();
    server.write_all(b"220 ready").await.unwrap();
    let mut greeting = [0; 9];
    client.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting, b"220 ready");
    drop((client, server));
    pair.finish().await;
}

/// Opens a connection, waits for `silence`, and exchanges a request and its answer.
async fn ask_after(silence: Duration, pair: &Pair, origin: &TcpListener) {
    let mut client = pair.connect().await;
    let asking = async {
        tokio::time::sleep(silence).await;
        client.write_all(b"question").await.unwrap();
        let mut answer = [0; 6];
        client.read_exact(&mut answer).await.unwrap();
    };
    let answering = async {
        let (mut server, _) = origin.accept().await.unwrap();
        let mut question = [0; 8];
        server.read_exact(&mut question).await.unwrap();
        server.write_all(b"answer").await.unwrap();
    };
    tokio::join!(asking, answering);
}

/// Opens a connection on which the server sends first.
async fn greeted(pair: &Pair, origin: &TcpListener) {
    let mut client = pair.connect().await;
    let (mut server, _) = origin.accept().await.unwrap();
    server.write_all(b"220 ready").await.unwrap();
    client.read_exact(&mut [0; 9]).await.unwrap();
}

#[tokio::test]
async fn whether_clients_or_servers_speak_first_is_learnt_and_unlearnt() {
    const ROUND_TRIP: Duration = Duration::from_millis(400);
    let origin = TcpListener::bind(loopback()).await.unwrap();
    let pair = Pair::start("--rtt 400ms", origin.local_addr().unwrap()).await;
    for _ in 0..3 {
        ask_after(Duration::ZERO, &pair, &origin).await;
    }
    // The client connects before it knows its request, as browsers do.
    ask_after(Duration::from_millis(50), &pair, &origin).await;
    for _ in 0..4 {
        greeted(&pair, &origin).await;
    }
    ask_after(Duration::from_millis(50), &pair, &origin).await;
    ask_after(Duration::ZERO, &pair, &origin).await;
    let accesses = pair.finish().await;
    let first: Vec<&str> = accesses.iter().map(|access| access.sent_first.unwrap().name()).collect();
    assert_eq!(first, [&["client"; 4][..], &["server"; 4], &["client"; 2]].concat());
    let preconnected = &accesses[3];
    assert_eq!(preconnected.waited, None, "the frontend waited for its request");
    let outcome = preconnected.hop.as_ref().map(|hop| hop.fast_open);
    assert_eq!(outcome, Some(FastOpenOutcome::Used), "the SYN carried the request");
    let waited = |n: usize| accesses[n].waited.unwrap();
    assert!(waited(4) >= ROUND_TRIP.mul_f64(0.9), "the wrong guess costs a round trip: {:?}", waited(4));
    for n in 5..9 {
        assert!(waited(n) < ROUND_TRIP, "a wrong guess is not repeated: {:?}", waited(n));
    }
}

/// Starts a pair, and opens a connection on which the server has read a first byte. Returns the pair, the
/// client's end and the server's.
async fn opened() -> (Pair, TcpStream, TcpStream) {
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let pair = Pair::start("--rtt 4ms", listener.local_addr().unwrap()).await;
    let mut client = pair.connect().await;
    client.write_all(b"x").await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    assert_eq!(server.read_u8().await.unwrap(), b'x');
    (pair, client, server)
}

#[tokio::test]
async fn a_reset_by_the_client_reaches_the_origin_as_a_reset() {
    let (pair, client, mut server) = opened().await;
    client.set_zero_linger().unwrap();
    drop(client);
    let error = server.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let accesses = pair.finish().await;
    assert!(matches!(accesses[0].end, End::ClientFailed(_)), "{:?}", accesses[0].end);
}

#[tokio::test]
async fn a_reset_by_the_origin_reaches_the_client_as_a_reset() {
    let (pair, mut client, server) = opened().await;
    server.set_zero_linger().unwrap();
    drop(server);
    let error = client.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    pair.finish().await;
}

#[tokio::test]
async fn origin_that_resets_at_once_does_not_switch_fast_open_off() {
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let pair = Pair::start("--rtt 20ms", listener.local_addr().unwrap()).await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_zero_linger().unwrap();
        }
    });
    for _ in 0..5 {
        let mut client = pair.connect().await;
        client.write_all(b"x").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
    let accesses = pair.finish().await;
    assert!(accesses.iter().all(|access| matches!(access.end, End::HopFailed(_))), "{accesses:?}");
    let outcomes: Vec<_> = accesses.iter().map(|access| access.hop.as_ref().unwrap().fast_open).collect();
    assert_eq!(outcomes[1..], [FastOpenOutcome::Used; 4], "{outcomes:?}");
}

#[tokio::test]
async fn bytes_that_an_origin_sends_before_its_reset_reach_the_client() {
    for is_uploading in [false, true] {
        let (pair, mut client, mut server) = opened().await;
        if is_uploading {
            fill(&mut client).await;
        }
        server.write_all(&[7; 1000]).await.unwrap();
        server.set_zero_linger().unwrap();
        drop(server);
        let mut received = [0; 1000];
        client.read_exact(&mut received).await.unwrap();
        assert_eq!(received, [7; 1000]);
        let error = client.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        for access in both_end(&pair).await {
            assert_eq!(access.bytes_down, 1000, "{:?}", access.role);
        }
        pair.finish().await;
    }
}

#[tokio::test]
async fn client_that_reads_late_gets_all_bytes_before_the_reset() {
    const LENGTH: usize = 400_000;
    let (pair, mut client, mut server) = opened().await;
    server.write_all(&[7; LENGTH]).await.unwrap();
    // The kernel of the origin discards bytes that have not left before the reset.
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.set_zero_linger().unwrap();
    drop(server);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let mut received = Vec::new();
    let error = client.read_to_end(&mut received).await.unwrap_err();
    assert_eq!((received.len(), error.kind()), (LENGTH, io::ErrorKind::ConnectionReset));
    pair.finish().await;
}

/// Starts a pair that limits the silence of connections to `limit` in one state, and not in the others.
async fn impatient(origin: &TcpListener, limit: Duration, state: Timeout) -> Pair {
    let of = |other| if state == other { limit } else { Duration::ZERO };
    let timeouts = Timeouts {
        first_byte: of(Timeout::FirstByte),
        idle: of(Timeout::Idle),
        half_closed: of(Timeout::HalfClosed),
        ..Timeouts::default()
    };
    let adjust = |service| ServiceConfig { timeouts, ..service };
    Pair::start_with("--rtt 4ms", origin.local_addr().unwrap(), adjust).await
}

/// Checks that one side reports the limit; the other side may only see the end of the hop's connection.
async fn ends_late(pair: Pair, state: Timeout) {
    let ends: Vec<End> = both_end(&pair).await.into_iter().map(|access| access.end).collect();
    assert!(ends.contains(&End::TimedOut(state)), "{ends:?}");
    assert!(ends.iter().all(|end| matches!(end, End::TimedOut(_) | End::HopFailed(_))), "{ends:?}");
    pair.finish().await;
}

#[tokio::test]
async fn a_connection_on_which_nobody_says_anything_is_reset_on_both_ends() {
    let origin = TcpListener::bind(loopback()).await.unwrap();
    let pair = impatient(&origin, Duration::from_millis(300), Timeout::FirstByte).await;
    let mut silent = pair.connect().await;
    let (mut server, _) = origin.accept().await.unwrap();
    assert_eq!(silent.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(server.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    ends_late(pair, Timeout::FirstByte).await;
}

#[tokio::test]
async fn an_idle_connection_is_reset_and_one_that_moves_now_and_then_is_not() {
    let limit = Duration::from_millis(1500);
    let origin = TcpListener::bind(loopback()).await.unwrap();
    let pair = impatient(&origin, limit, Timeout::Idle).await;
    let mut client = pair.connect().await;
    client.write_all(b"x").await.unwrap();
    let (mut server, _) = origin.accept().await.unwrap();
    assert_eq!(server.read_u8().await.unwrap(), b'x');
    // Together the pauses exceed the limit, and only the server sends, as in a long poll.
    for _ in 0..8 {
        tokio::time::sleep(limit / 6).await;
        server.write_all(b".").await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'.');
    }
    assert_eq!(client.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    ends_late(pair, Timeout::Idle).await;
}

#[tokio::test]
async fn a_server_that_is_silent_after_the_client_has_finished_is_given_up() {
    let origin = TcpListener::bind(loopback()).await.unwrap();
    let pair = impatient(&origin, Duration::from_millis(300), Timeout::HalfClosed).await;
    let mut client = pair.connect().await;
    client.write_all(b"x").await.unwrap();
    client.shutdown().await.unwrap();
    let (_server, _) = origin.accept().await.unwrap();
    assert_eq!(client.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    ends_late(pair, Timeout::HalfClosed).await;
}

#[tokio::test]
async fn a_frontend_that_says_its_first_message_byte_by_byte_is_refused_in_time() {
    let link = LinkSpec::parse("--rtt 4ms").unwrap();
    let (a, b) = memory::network(&link, SEED).unwrap();
    let timeouts = Timeouts { header: Duration::from_millis(400), ..Timeouts::default() };
    let metrics = Arc::<Metrics>::default();
    let service =
        ServiceConfig { log: Log::silent(), timeouts, metrics: metrics.clone(), ..ServiceConfig::default() };
    let hop: SocketAddr = "10.0.0.2:7443".parse().unwrap();
    let config = BackendConfig { service, ..BackendConfig::new(hop, "127.0.0.1:9".to_owned(), sealed()) };
    let backend = Backend::bind(config, &b).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let backend = tokio::spawn(backend.run(async move { drop(stopped.await) }));
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut stream = a.connect(hop).await.unwrap();
        // The length of a message whose end never arrives.
        stream.write_all(&1000_u16.to_be_bytes()).await.unwrap();
        slow.push(tokio::spawn(async move {
            while stream.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }));
    }
    for slow in slow {
        tokio::time::timeout(Duration::from_secs(10), slow).await.expect("it is refused").unwrap();
    }
    let text = metrics.text(None);
    assert!(text.contains("brisk_timeouts_total{kind=\"header\"} 20"), "{text}");
    assert_eq!(metrics.open(), 0, "no slot is held");
    stop.send(()).unwrap();
    backend.await.unwrap();
}

#[tokio::test]
async fn a_frontend_may_be_silent_for_as_long_as_it_tries_to_connect() {
    let (a, b) = memory::network(&LinkSpec::parse("--rtt 4ms").unwrap(), SEED).unwrap();
    let timeouts = Timeouts { header: Duration::from_millis(200), ..Timeouts::default() };
    let metrics = Arc::<Metrics>::default();
    let service = ServiceConfig {
        log: Log::silent(),
        connect_timeout: Duration::from_millis(1200),
        timeouts,
        metrics: metrics.clone(),
        ..ServiceConfig::default()
    };
    let hop: SocketAddr = "10.0.0.2:7443".parse().unwrap();
    let origin = origin(|request| request).await;
    let config = BackendConfig { service, ..BackendConfig::new(hop, origin.to_string(), Hop::Plain) };
    let backend = Backend::bind(config, &b).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let backend = tokio::spawn(backend.run(async move { drop(stopped.await) }));
    // This pause is as long as if the first message had been lost a few times. It exceeds the limit for a
    // message that has begun.
    let mut late = a.connect(hop).await.unwrap();
    let mut silent = a.connect(hop).await.unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await;
    let opening = Opening::new(Purpose::Carry);
    let mut message = Vec::new();
    opening.encode(&mut message);
    message.extend_from_slice(b"after all");
    late.write_all(&u16::try_from(message.len()).unwrap().to_be_bytes()).await.unwrap();
    late.write_all(&message).await.unwrap();
    late.shutdown().await.unwrap();
    let mut answer = Vec::new();
    late.read_to_end(&mut answer).await.unwrap();
    assert!(answer.ends_with(b"after all"), "{answer:?}");
    // The backend waits for the acknowledgement of the answer.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(metrics.open(), 1, "a silent peer does not hold its slot for ever");
    let ended = tokio::time::timeout(Duration::from_secs(2), silent.read_u8()).await;
    assert!(ended.expect("it is closed").is_err());
    let text = metrics.text(None);
    assert!(text.contains("brisk_timeouts_total{kind=\"header\"} 1"), "{text}");
    stop.send(()).unwrap();
    backend.await.unwrap();
}

#[tokio::test]
async fn silent_peers_take_no_slots_of_a_backend_and_displace_each_other() {
    let kernel = TcpListener::bind(loopback()).await.unwrap().local_addr().unwrap();
    let configure = |backend: &mut BackendConfig, _: &mut FrontendConfig| {
        (backend.kernel_listen, backend.service.max_connections) = (Some(kernel), 4);
    };
    let origin = origin(|request| request).await;
    let pair = Pair::start_configured("--rtt 4ms", origin, |service| service, configure).await;
    let mut silent = Vec::new();
    // The backend keeps 256 of them.
    for _ in 0..260 {
        silent.push(TcpStream::connect(kernel).await.unwrap());
    }
    let mut client = pair.connect().await;
    client.write_all(b"genuine").await.unwrap();
    client.shutdown().await.unwrap();
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, b"genuine");
    let ended = tokio::time::timeout(Duration::from_secs(2), silent[0].read(&mut [0])).await;
    assert!(matches!(ended.expect("it is displaced"), Ok(0) | Err(_)));
    drop(silent);
    pair.finish().await;
}

/// Writes until every buffer up to the other end is full.
async fn fill(stream: &mut TcpStream) {
    let block = vec![7; 1 << 16];
    while tokio::time::timeout(Duration::from_millis(300), stream.write_all(&block)).await.is_ok() {}
}

/// Waits until both sides have written their record.
async fn both_end(pair: &Pair) -> Vec<Access> {
    let ended = async {
        while pair.accesses.lock().unwrap().len() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), ended)
        .await
        .expect("the end is noticed although nobody reads");
    pair.accesses.lock().unwrap().clone()
}

#[tokio::test]
async fn a_reset_by_the_client_is_noticed_while_the_origin_reads_nothing() {
    let (pair, mut client, _server) = opened().await;
    fill(&mut client).await;
    client.set_zero_linger().unwrap();
    drop(client);
    for access in both_end(&pair).await {
        match access.role {
            Role::Frontend => assert!(matches!(access.end, End::ClientFailed(_)), "{:?}", access.end),
            Role::Backend => assert!(matches!(access.end, End::HopFailed(_)), "{:?}", access.end),
            Role::Edge => unreachable!("there is none"),
        }
    }
    pair.finish().await;
}

#[tokio::test]
async fn a_reset_by_the_origin_is_noticed_while_the_client_reads_nothing() {
    let (pair, _client, mut server) = opened().await;
    fill(&mut server).await;
    server.set_zero_linger().unwrap();
    drop(server);
    for access in both_end(&pair).await {
        match access.role {
            Role::Frontend => assert!(matches!(access.end, End::HopFailed(_)), "{:?}", access.end),
            Role::Backend => assert!(matches!(access.end, End::OriginFailed(_)), "{:?}", access.end),
            Role::Edge => unreachable!("there is none"),
        }
    }
    pair.finish().await;
}

#[tokio::test]
async fn an_origin_that_refuses_resets_the_client() {
    let nobody = TcpListener::bind(loopback()).await.unwrap().local_addr().unwrap();
    let pair = Pair::start("--rtt 4ms", nobody).await;
    let mut client = pair.connect().await;
    client.write_all(b"x").await.unwrap();
    let error = client.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    pair.finish().await;
}

#[tokio::test]
async fn a_dead_hop_resets_the_client_and_says_why() {
    let limits = |service| ServiceConfig { connect_timeout: Duration::from_millis(300), ..service };
    let pair = Pair::start_with("--loss 100%", loopback(), limits).await;
    let mut client = pair.connect().await;
    client.write_all(b"x").await.unwrap();
    let error = client.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let accesses = pair.finish().await;
    assert_eq!(accesses[0].end, End::HopUnreachable("no answer within 300ms".into()));
}

#[tokio::test]
async fn stopping_drains_what_is_under_way_and_accepts_no_more() {
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let pair = Pair::start("--rtt 4ms", listener.local_addr().unwrap()).await;
    let mut client = pair.connect().await;
    client.write_all(b"slow").await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    let mut request = [0; 4];
    server.read_exact(&mut request).await.unwrap();
    pair.stop.send_replace(true);
    pair.stop_backend.send_replace(true);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(TcpStream::connect(pair.client_side).await.is_err(), "no longer listening");
    server.write_all(b"done").await.unwrap();
    drop(server);
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, b"done");
    drop(client);
    assert_eq!(pair.frontend.await.unwrap(), Summary { accepted: 1, cut: 0 });
    pair.backend.await.unwrap();
}

#[tokio::test]
async fn the_drain_limit_cuts_what_does_not_end() {
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let limits = |service| ServiceConfig { drain_timeout: Duration::from_millis(200), ..service };
    let pair = Pair::start_with("--rtt 4ms", listener.local_addr().unwrap(), limits).await;
    let mut client = pair.connect().await;
    client.write_all(b"forever").await.unwrap();
    let (_server, _) = listener.accept().await.unwrap();
    pair.stop.send_replace(true);
    assert_eq!(pair.frontend.await.unwrap(), Summary { accepted: 1, cut: 1 });
    let error = client.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    // The backend stops later; otherwise it could be the first to reset the connection.
    pair.stop_backend.send_replace(true);
    pair.backend.await.unwrap();
}

#[tokio::test]
async fn more_clients_than_slots_wait_their_turn() {
    let origin = origin(|request| request).await;
    let limits = |service| ServiceConfig { max_connections: 2, ..service };
    let pair = Pair::start_with("--rtt 4ms", origin, limits).await;
    let mut clients = JoinSet::new();
    for _ in 0..10 {
        let mut client = pair.connect().await;
        clients.spawn(async move {
            client.write_all(b"turn").await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            assert_eq!(answer, b"turn");
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    assert_eq!(pair.finish().await.len(), 10);
}

#[tokio::test]
async fn the_hop_opens_with_the_first_bytes_once_it_knows_the_backend() {
    let origin = origin(|request| request).await;
    let pair = Pair::start("--rtt 40ms", origin).await;
    for _ in 0..3 {
        let mut client = pair.connect().await;
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"GET / HTTP/1.1\r\n\r\n");
    }
    let accesses = pair.finish().await;
    let outcomes: Vec<_> = accesses
        .iter()
        .filter(|access| access.role == Role::Frontend)
        .filter_map(|access| access.hop.map(|hop| hop.fast_open))
        .collect();
    let expected = [FastOpenOutcome::NoCookie, FastOpenOutcome::Used, FastOpenOutcome::Used];
    assert_eq!(outcomes, expected);
}

/// Returns the time from a request of `length` bytes to its answer over a link with [`RTT`], with a cookie.
async fn answer_time(length: usize, data_after_syn: u8) -> Duration {
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let origin = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; length];
            stream.read_exact(&mut request).await.unwrap();
            stream.write_all(b"answer").await.unwrap();
        }
    });
    let configure = |_: &mut BackendConfig, frontend: &mut FrontendConfig| {
        frontend.fast_open.as_mut().unwrap().data_after_syn = data_after_syn;
    };
    let pair = Pair::start_configured("--rtt 400ms", origin, |service| service, configure).await;
    let mut took = Duration::MAX;
    for _ in 0..2 {
        let begin = std::time::Instant::now();
        let mut client = pair.connect().await;
        client.write_all(&vec![b'r'; length]).await.unwrap();
        let mut answer = [0; 6];
        client.read_exact(&mut answer).await.unwrap();
        took = begin.elapsed();
    }
    took
}

const RTT: Duration = Duration::from_millis(400);

#[tokio::test]
async fn a_whole_request_rides_on_the_syn_and_is_answered_in_one_round_trip() {
    let took = answer_time(600, 0).await;
    assert!(took >= RTT && took < RTT * 7 / 4, "{took:?}");
}

/// The first message arrives with the SYN and the segments after it, so that its answer arrives with the
/// SYN-ACK. The rest of the request follows.
#[tokio::test]
async fn a_request_longer_than_the_first_message_is_answered_in_two_round_trips() {
    let took = answer_time(20_000, 9).await;
    assert!(took >= RTT * 2 && took < RTT * 11 / 4, "{took:?}");
}
