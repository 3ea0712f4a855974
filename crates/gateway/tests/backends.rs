//! Several backends, the transports and destinations that replace failed ones, and the client's address that
//! the origin gets.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use brisk_gateway::hop::{Opening, PrivateKey, Purpose, StaticKeys};
use brisk_gateway::{
    Access, Backend, BackendConfig, BackendSpec, Direct, Entrance, Facts, Frontend, FrontendConfig,
    FrontendLimits, Health, Hop, HopKey, KeyRing, Listener, Log, Metrics, NamedOrigin, ProxyVersion, Role,
    Route, ServiceConfig, Status, Summary, Timeouts,
};
use brisk_link::LinkSpec;
use brisk_runtime::{Endpoint, FastOpenOutcome, memory};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn key(byte: u8) -> Hop {
    Hop::Sealed(KeyRing::of(HopKey::new([byte; 32])))
}

/// Returns the keys of a frontend and of a backend with a key pair each.
fn key_pairs() -> [Hop; 2] {
    let [front, back] = [(); 2].map(|()| PrivateKey::generate().unwrap());
    let (of_front, of_back) = (front.public(), back.public());
    [(front, of_back), (back, of_front)]
        .map(|(own, peer)| Hop::Pairs(StaticKeys::of(own, vec![peer]).unwrap()))
}

fn network(link: &str) -> (Endpoint, Endpoint) {
    memory::network(&LinkSpec::parse(link).unwrap(), 5).unwrap()
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], port))
}

type Records = Arc<Mutex<Vec<Access>>>;

fn service(records: &Records) -> ServiceConfig {
    let records = records.clone();
    ServiceConfig {
        log: Log::silent(),
        drain_timeout: Duration::from_secs(1),
        connect_timeout: Duration::from_secs(3),
        on_access: Some(Arc::new(move |access| records.lock().unwrap().push(access.clone()))),
        ..ServiceConfig::default()
    }
}

/// Starts an origin that reads a request up to its empty line and answers with its own name and all that it
/// has read.
async fn origin(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                let answer = format!("{name}|{}", String::from_utf8_lossy(&request));
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    address
}

fn backend(endpoint: &Endpoint, config: BackendConfig, records: &Records) -> JoinHandle<Summary> {
    let config = BackendConfig { service: service(records), ..config };
    tokio::spawn(Backend::bind(config, endpoint).unwrap().run(std::future::pending()))
}

async fn frontend(endpoint: Endpoint, config: FrontendConfig, records: &Records) -> SocketAddr {
    let config = FrontendConfig { service: service(records), ..config };
    let frontend = Frontend::bind(config, endpoint).await.unwrap();
    let address = frontend.local_addr().unwrap();
    tokio::spawn(frontend.run(std::future::pending()));
    address
}

/// Sends `said` and returns the answer; an error if the connection is reset or no answer arrives in time.
async fn ask(address: SocketAddr, said: &[u8]) -> std::io::Result<String> {
    let exchange = async {
        let mut client = TcpStream::connect(address).await?;
        client.write_all(said).await?;
        let mut answer = String::new();
        client.read_to_string(&mut answer).await?;
        Ok(answer)
    };
    tokio::time::timeout(Duration::from_secs(5), exchange).await?
}

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

#[tokio::test]
async fn the_origin_is_told_who_the_client_is() {
    for (version, begin) in
        [(ProxyVersion::V1, "PROXY TCP4 192.0.2.7 198.51.100.9 5000 80\r\n"), (ProxyVersion::V2, "")]
    {
        let (a, b) = network("--rtt 4ms");
        let (records, origin) = (Records::default(), origin("o").await);
        let config = BackendConfig::new(at(7443), origin.to_string(), key(1));
        backend(&b, BackendConfig { send_proxy: Some(version), ..config }, &records);
        let entrance = Entrance { proxy_from: vec!["127.0.0.1".parse().unwrap()], ..Entrance::default() };
        let config = FrontendConfig { entrance, ..FrontendConfig::new(loopback(), at(7443), key(1)) };
        let entry = frontend(a, config, &records).await;
        let proxied = [&b"PROXY TCP4 192.0.2.7 198.51.100.9 5000 80\r\n"[..], REQUEST].concat();
        let answer = ask(entry, &proxied).await.unwrap();
        assert!(
            answer.starts_with(&format!("o|{begin}")) && answer.ends_with("GET / HTTP/1.1\r\n\r\n"),
            "{answer}"
        );
        if version == ProxyVersion::V2 {
            assert!(answer.contains("\0\r\nQUIT\n"), "{answer}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        let records = records.lock().unwrap();
        assert_eq!(records.len(), 2);
        for access in records.iter() {
            assert_eq!(access.client, Some("192.0.2.7:5000".parse().unwrap()), "{:?}", access.role);
        }
    }
}

#[tokio::test]
async fn when_a_backend_dies_new_connections_go_to_the_second() {
    let (a, b) = network("--rtt 40ms");
    let records = Records::default();
    let (one, two) = (origin("one").await, origin("two").await);
    let first = backend(&b, BackendConfig::new(at(1), one.to_string(), key(1)), &records);
    backend(&b, BackendConfig::new(at(2), two.to_string(), key(1)), &records);
    let backends = vec![BackendSpec::new(at(1)), BackendSpec { priority: 1, ..BackendSpec::new(at(2)) }];
    let config = FrontendConfig { backends, watch: true, ..FrontendConfig::new(loopback(), at(1), key(1)) };
    let entry = frontend(a, config, &records).await;
    for _ in 0..3 {
        assert!(ask(entry, REQUEST).await.unwrap().starts_with("one|"));
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    first.abort();
    let died = Instant::now();
    let under_way = tokio::spawn(ask(entry, REQUEST));
    while !ask(entry, REQUEST).await.is_ok_and(|answer| answer.starts_with("two|")) {
        // It takes one second on an idle machine, more on a busy one.
        assert!(died.elapsed() < Duration::from_secs(3), "{:?}", died.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // This request either fails, or the stack refused its connection and the other backend answered.
    let outcome = under_way.await.unwrap();
    assert!(
        outcome.as_ref().is_err() || outcome.as_ref().is_ok_and(|a| a.starts_with("two|")),
        "{outcome:?}"
    );
    assert!(died.elapsed() < Duration::from_secs(4), "{:?}", died.elapsed());
}

#[tokio::test]
async fn clients_of_a_backend_that_no_longer_accepts_the_key_go_to_the_second() {
    let (a, b) = network("--rtt 40ms");
    let records = Records::default();
    let (one, two) = (origin("one").await, origin("two").await);
    let service = service(&records);
    let first = BackendConfig { service, ..BackendConfig::new(at(1), one.to_string(), key(1)) };
    let serving = Backend::bind(first.clone(), &b).unwrap();
    let control = serving.control();
    tokio::spawn(serving.run(std::future::pending()));
    backend(&b, BackendConfig::new(at(2), two.to_string(), key(1)), &records);
    let backends = vec![BackendSpec::new(at(1)), BackendSpec { priority: 1, ..BackendSpec::new(at(2)) }];
    let config = FrontendConfig { backends, watch: true, ..FrontendConfig::new(loopback(), at(1), key(1)) };
    let entry = frontend(a, config, &records).await;
    assert!(ask(entry, REQUEST).await.unwrap().starts_with("one|"));
    control.reload(BackendConfig { hop: key(2), ..first });
    let began = Instant::now();
    while !ask(entry, REQUEST).await.is_ok_and(|answer| answer.starts_with("two|")) {
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn backend_without_a_watch_serves_again_after_it_was_down() {
    let (a, b) = network("--rtt 4ms");
    let (records, to) = (Records::default(), origin("backend").await);
    let direct = Some(Direct { origin: origin("direct").await.to_string(), send_proxy: None });
    let config = FrontendConfig { direct, ..FrontendConfig::new(loopback(), at(1), key(1)) };
    let entry = frontend(a, config, &records).await;
    for _ in 0..4 {
        assert!(ask(entry, REQUEST).await.unwrap().starts_with("direct|"));
    }
    let first = backend(&b, BackendConfig::new(at(1), to.to_string(), key(1)), &records);
    let began = Instant::now();
    while !ask(entry, REQUEST).await.unwrap().starts_with("backend|") {
        assert!(began.elapsed() < Duration::from_secs(5), "nothing tries the backend again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(ask(entry, REQUEST).await.unwrap().starts_with("backend|"), "it is up");
    first.abort();
    let _ = first.await;
    for _ in 0..4 {
        assert!(ask(entry, REQUEST).await.unwrap().starts_with("direct|"));
    }
}

#[tokio::test]
async fn silent_backend_without_a_watch_is_down_after_three_time_outs() {
    let (a, b) = network("--rtt 4ms");
    let (records, to) = (Records::default(), origin("o").await);
    backend(&b, BackendConfig::new(at(2), to.to_string(), key(1)), &records);
    let silent = BackendSpec::new(SocketAddr::from(([10, 0, 0, 9], 7443)));
    let backends = vec![silent, BackendSpec { priority: 1, ..BackendSpec::new(at(2)) }];
    let config = FrontendConfig { listen: Some(loopback()), ..FrontendConfig::between(backends, key(1)) };
    let service = ServiceConfig { connect_timeout: Duration::from_millis(300), ..service(&records) };
    let frontend = Frontend::bind(FrontendConfig { service, ..config }, a).await.unwrap();
    let entry = frontend.local_addr().unwrap();
    tokio::spawn(frontend.run(std::future::pending()));
    for _ in 0..3 {
        assert!(ask(entry, REQUEST).await.is_err(), "the silent backend may have the request");
    }
    // Some of these clients try the silent backend again, and lose nothing.
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1500) {
        assert!(ask(entry, REQUEST).await.unwrap().starts_with("o|"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn with_every_backend_silent_clients_are_taken_straight_to_the_origin() {
    let (a, _b) = network("--loss 100%");
    let records = Records::default();
    let direct = Direct { origin: origin("direct").await.to_string(), send_proxy: Some(ProxyVersion::V1) };
    let config = FrontendConfig {
        watch: true,
        direct: Some(direct),
        ..FrontendConfig::new(loopback(), at(1), key(1))
    };
    let entry = frontend(a, config, &records).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let began = Instant::now();
    let answer = ask(entry, REQUEST).await.unwrap();
    assert!(answer.starts_with("direct|PROXY TCP4 127.0.0.1 127.0.0.1 "), "{answer}");
    // The timeouts of a hop that carries nothing are far longer.
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    tokio::time::sleep(Duration::from_millis(50)).await;
    let route = records.lock().unwrap()[0].route.clone();
    assert!(route.is_some_and(|route| route.starts_with("direct:")));
}

#[tokio::test]
async fn a_path_without_our_tcp_is_crossed_by_the_kernels() {
    let (a, b) = network("--loss 100%");
    let (records, origin) = (Records::default(), origin("o").await);
    let kernel = TcpListener::bind(loopback()).await.unwrap().local_addr().unwrap();
    let config = BackendConfig::new(at(1), origin.to_string(), key(1));
    backend(&b, BackendConfig { kernel_listen: Some(kernel), ..config }, &records);
    let backends = vec![BackendSpec { kernel: Some(kernel), ..BackendSpec::new(at(1)) }];
    let config = FrontendConfig { backends, watch: true, ..FrontendConfig::new(loopback(), at(1), key(1)) };
    let entry = frontend(a, config, &records).await;
    // The first client arrives before the frontend knows the path, so its request tests the path.
    for _ in 0..3 {
        assert!(ask(entry, REQUEST).await.unwrap().starts_with("o|"));
    }
    // The frontend remembers the failure: otherwise each request would wait 0.4 s for brisk's TCP.
    let mut least = Duration::MAX;
    for _ in 0..5 {
        let began = Instant::now();
        assert!(ask(entry, REQUEST).await.unwrap().starts_with("o|"));
        least = least.min(began.elapsed());
    }
    assert!(least < Duration::from_millis(350), "{least:?}");
}

/// Starts a proxy in front of `to` that records the bytes of the clients: an entry for each connection, in
/// the order in which they began. From connection `forged` on it changes a byte of each answer.
async fn recorder(to: SocketAddr, forged: usize) -> (SocketAddr, Arc<Mutex<Vec<Vec<u8>>>>) {
    let listener = TcpListener::bind(loopback()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let recorded = Arc::<Mutex<Vec<Vec<u8>>>>::default();
    let kept = recorded.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let n = kept.lock().unwrap().len();
            kept.lock().unwrap().push(Vec::new());
            let kept = kept.clone();
            tokio::spawn(async move {
                let server = TcpStream::connect(to).await.unwrap();
                let ((mut from, mut back), (mut answers, mut on)) =
                    (client.into_split(), server.into_split());
                tokio::spawn(async move {
                    if n >= forged {
                        let mut answer = [0; 12];
                        answers.read_exact(&mut answer).await.unwrap();
                        answer[11] ^= 1;
                        back.write_all(&answer).await.unwrap();
                    }
                    tokio::io::copy(&mut answers, &mut back).await
                });
                let mut chunk = [0; 4096];
                while let Ok(count @ 1..) = from.read(&mut chunk).await {
                    kept.lock().unwrap()[n].extend_from_slice(&chunk[..count]);
                    on.write_all(&chunk[..count]).await.unwrap();
                }
            });
        }
    });
    (address, recorded)
}

/// Starts an origin that counts the connections with a request, and answers each.
async fn counting_origin() -> (SocketAddr, Arc<AtomicU32>) {
    let origin = TcpListener::bind(loopback()).await.unwrap();
    let (address, requests) = (origin.local_addr().unwrap(), Arc::new(AtomicU32::new(0)));
    let seen = requests.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = origin.accept().await {
            if stream.read(&mut [0; 1024]).await.is_ok_and(|count| count > 0) {
                seen.fetch_add(1, Ordering::SeqCst);
            }
            let _ = stream.write_all(b"done").await;
        }
    });
    (address, requests)
}

#[tokio::test]
async fn replayed_recording_of_the_hop_does_not_reach_the_origin() {
    let (a, b) = network("--loss 100%");
    let records = Records::default();
    let (to, requests) = counting_origin().await;
    let kernel = TcpListener::bind(loopback()).await.unwrap().local_addr().unwrap();
    let config = BackendConfig::new(at(1), to.to_string(), key(1));
    backend(&b, BackendConfig { kernel_listen: Some(kernel), ..config }, &records);
    let (past, recorded) = recorder(kernel, usize::MAX).await;
    let backends = vec![BackendSpec { kernel: Some(past), ..BackendSpec::new(at(1)) }];
    let config = FrontendConfig { backends, ..FrontendConfig::new(loopback(), at(1), key(1)) };
    let entry = frontend(a, config, &records).await;
    // The backend asks for a confirmation of the first message and acts on the others at once.
    for _ in 0..3 {
        assert_eq!(ask(entry, b"transfer 100\r\n").await.unwrap(), "done");
    }
    assert_eq!(requests.load(Ordering::SeqCst), 3);
    let recorded = recorded.lock().unwrap().clone();
    assert_eq!(recorded.len(), 3);
    for said in recorded.iter().cycle().take(9) {
        let mut again = TcpStream::connect(kernel).await.unwrap();
        again.write_all(said).await.unwrap();
        // The backend resets the replay, or asks for a confirmation, which the recorder cannot give.
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(Duration::from_millis(200), again.read_to_end(&mut answer)).await;
    }
    assert_eq!(requests.load(Ordering::SeqCst), 3, "the origin has seen each once");
}

/// The origin has the request although the answer of the backend is not authentic.
#[tokio::test]
async fn changed_answer_of_a_backend_does_not_deliver_the_request_again() {
    let (a, b) = network("--rtt 4ms");
    let (records, (to, requests)) = (Records::default(), counting_origin().await);
    let kernel = TcpListener::bind(loopback()).await.unwrap().local_addr().unwrap();
    let config = BackendConfig::new(at(1), to.to_string(), key(1));
    backend(&b, BackendConfig { kernel_listen: Some(kernel), ..config.clone() }, &records);
    backend(&b, BackendConfig { listen: at(2), ..config }, &records);
    let (changing, _) = recorder(kernel, 1).await;
    // Nothing listens at the first address, so the first backend is reached through the proxy.
    let first = BackendSpec { kernel: Some(changing), ..BackendSpec::new(at(9)) };
    let backends = vec![first, BackendSpec { priority: 1, ..BackendSpec::new(at(2)) }];
    let direct = Some(Direct { origin: to.to_string(), send_proxy: None });
    let config = FrontendConfig { backends, direct, ..FrontendConfig::new(loopback(), at(1), key(1)) };
    let entry = frontend(a, config, &records).await;
    // Now the frontend knows the backend, which acts on the next request at once.
    assert_eq!(ask(entry, b"transfer 100").await.unwrap(), "done");
    let answer = ask(entry, b"transfer 100").await;
    assert_eq!(requests.load(Ordering::SeqCst), 2, "{answer:?}");
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_backend_that_is_restarted_serves_at_once() {
    let (a, b) = network("--rtt 10ms");
    let (records, origin) = (Records::default(), origin("o").await);
    let config = BackendConfig::new(at(1), origin.to_string(), key(1));
    let first = backend(&b, config.clone(), &records);
    let entry = frontend(a, FrontendConfig::new(loopback(), at(1), key(1)), &records).await;
    for _ in 0..3 {
        ask(entry, REQUEST).await.unwrap();
    }
    first.abort();
    let _ = first.await;
    backend(&b, config, &records);
    for _ in 0..3 {
        assert!(ask(entry, REQUEST).await.unwrap().starts_with("o|"), "another run, another stamp");
    }
}

#[tokio::test]
async fn frontend_that_starts_before_its_backend_uses_fast_open_all_the_same() {
    let (a, b) = network("--rtt 10ms");
    let (records, origin) = (Records::default(), origin("o").await);
    let watching = FrontendConfig { watch: true, ..FrontendConfig::new(loopback(), at(1), key(1)) };
    let entry = frontend(a, watching, &records).await;
    // The watch makes several attempts in this time.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    backend(&b, BackendConfig::new(at(1), origin.to_string(), key(1)), &records);
    for _ in 0..10 {
        ask(entry, REQUEST).await.unwrap();
        // A pool of open connections, if there is one, fills up again in this time.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let records = records.lock().unwrap();
    let of_frontend = records.iter().filter(|access| access.role == Role::Frontend);
    let outcomes: Vec<_> = of_frontend.filter_map(|access| Some(access.hop.as_ref()?.fast_open)).collect();
    assert_eq!(outcomes.last(), Some(&FastOpenOutcome::Used), "{outcomes:?}");
}

/// A draining backend serves the first request of a new frontend; a request after its end is reset soon.
#[tokio::test]
async fn a_frontend_that_starts_while_its_backend_drains_is_not_kept_waiting() {
    let (a, b) = network("--rtt 10ms");
    let (records, origin) = (Records::default(), origin("o").await);
    let (stop, stopped) = oneshot::channel::<()>();
    let patient = ServiceConfig { drain_timeout: Duration::from_secs(60), ..service(&records) };
    let config = BackendConfig { service: patient, ..BackendConfig::new(at(1), origin.to_string(), key(1)) };
    let draining = tokio::spawn(Backend::bind(config, &b).unwrap().run(async { drop(stopped.await) }));
    let watching = || FrontendConfig { watch: true, ..FrontendConfig::new(loopback(), at(1), key(1)) };
    let mut client = TcpStream::connect(frontend(a.clone(), watching(), &records).await).await.unwrap();
    // The connection with half a request keeps the backend running.
    client.write_all(b"GET /").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    stop.send(()).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let entry = frontend(a, watching(), &records).await;
    let began = Instant::now();
    let answer = ask(entry, REQUEST).await;
    let took = began.elapsed();
    assert!(answer.is_ok_and(|answer| answer.starts_with("o|")), "after {took:?}");
    assert!(took < Duration::from_secs(1), "{took:?}");
    client.write_all(b" HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    drop(client);
    draining.await.unwrap();
    assert!(ask(entry, REQUEST).await.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
}

/// Returns the backend's answer to a frontend that asks for `origin` over a plain hop; empty if it refuses.
async fn asked_by_name(endpoint: &Endpoint, origin: &str) -> String {
    let opening = Opening { origin: Some(origin.to_owned()), ..Opening::new(Purpose::Carry) };
    let mut message = Vec::new();
    opening.encode(&mut message);
    message.extend_from_slice(REQUEST);
    let mut hop = endpoint.connect(at(1)).await.unwrap();
    hop.write_all(&u16::try_from(message.len()).unwrap().to_be_bytes()).await.unwrap();
    hop.write_all(&message).await.unwrap();
    let mut answer = Vec::new();
    hop.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn a_frontend_asks_for_an_origin_by_its_name() {
    let (a, b) = network("--rtt 4ms");
    let (records, own, web) = (Records::default(), origin("own").await, origin("web").await);
    let origins = [format!("web={web}").parse::<NamedOrigin>().unwrap()].into_iter().collect();
    let allow = vec!["*:*".parse().unwrap()];
    let config = BackendConfig::new(at(1), own.to_string(), Hop::Plain);
    backend(&b, BackendConfig { origins, allow, ..config }, &records);
    assert!(asked_by_name(&a, "web").await.contains("web|GET /"));
    for (index, unknown) in ["Web", "api", "we b"].into_iter().enumerate() {
        let answer = asked_by_name(&a, unknown).await;
        assert!(!answer.contains("GET /"), "{unknown}: {answer:?}");
        // The record is written a moment after the frontend has seen the end of the connection.
        while records.lock().unwrap().len() < index + 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let end = records.lock().unwrap().last().unwrap().end.to_string();
        assert_eq!(end, format!("origin unreachable: no origin of this backend is named {unknown}"));
    }
}

#[tokio::test]
async fn origin_that_one_backend_does_not_know_is_asked_for_at_the_next() {
    let (a, b) = network("--rtt 4ms");
    let (records, web, api) = (Records::default(), origin("web").await, origin("api").await);
    let origins = [format!("web={web}").parse::<NamedOrigin>().unwrap()].into_iter().collect();
    let allow = vec![api.to_string().parse().unwrap()];
    backend(&b, BackendConfig::new(at(1), api.to_string(), key(1)), &records);
    let config = BackendConfig::new(at(2), None, key(1));
    backend(&b, BackendConfig { origins, allow, ..config }, &records);
    let backends = vec![BackendSpec::new(at(1)), BackendSpec { priority: 1, ..BackendSpec::new(at(2)) }];
    let direct = Some(Direct { origin: api.to_string(), send_proxy: None });
    let config = FrontendConfig {
        service: service(&records),
        entrance: Entrance { connect: true, ..Entrance::default() },
        listeners: vec![
            listener("127.0.0.8:0", "web"),
            Listener { direct, ..listener("127.0.0.9:0", "unknown") },
        ],
        listen: Some(loopback()),
        ..FrontendConfig::between(backends, key(1))
    };
    let frontend = Frontend::bind(config, a).await.unwrap();
    let control = frontend.control();
    let at: Vec<SocketAddr> = control.listening().iter().map(|place| place.listen.parse().unwrap()).collect();
    tokio::spawn(frontend.run(std::future::pending()));
    assert!(ask(at[1], REQUEST).await.unwrap().starts_with("web|"));
    assert!(ask(at[0], &connect_to(api)).await.unwrap().contains("api|"));
    assert!(ask(at[0], &connect_to(web)).await.unwrap().starts_with("HTTP/1.1 403 "));
    assert!(ask(at[2], REQUEST).await.is_err(), "a backend has forbidden it");
}

fn listener(listen: &str, origin: &str) -> Listener {
    Listener {
        listen: listen.parse().unwrap(),
        origin: Some(origin.parse().unwrap()),
        routes: Vec::new(),
        direct: None,
    }
}

/// Returns the first of three consecutive ports that were free a moment ago at this address.
async fn free_ports(ip: &str) -> u16 {
    loop {
        let first = TcpListener::bind(format!("{ip}:0")).await.unwrap().local_addr().unwrap().port();
        let mut free = true;
        for port in [first, first.saturating_add(1), first.saturating_add(2)] {
            free &= TcpListener::bind((ip, port)).await.is_ok();
        }
        if free && first < u16::MAX - 2 {
            return first;
        }
    }
}

#[tokio::test]
async fn listeners_lead_to_origins_of_their_own_and_a_reload_changes_them() {
    let (a, b) = network("--rtt 4ms");
    let records = Records::default();
    let (own, web, api) = (origin("own").await, origin("web").await, origin("api").await);
    let named = [format!("web={web}"), format!("api={api}")];
    let origins = named.map(|named| named.parse::<NamedOrigin>().unwrap()).into_iter().collect();
    let config = BackendConfig::new(at(1), own.to_string(), key(1));
    backend(&b, BackendConfig { origins, ..config }, &records);

    let first = free_ports("127.0.0.9").await;
    let range = format!("127.0.0.9:{first}-{}", first + 1);
    let (port, next, last) = (("127.0.0.9", first), ("127.0.0.9", first + 1), ("127.0.0.9", first + 2));
    let to = |ends: (&str, u16)| SocketAddr::new(ends.0.parse().unwrap(), ends.1);
    let config = FrontendConfig {
        service: service(&records),
        listeners: vec![listener(&range, "web"), listener("127.0.0.8:0", "unknown")],
        ..FrontendConfig::new(loopback(), at(1), key(1))
    };
    let frontend = Frontend::bind(config.clone(), a).await.unwrap();
    let (entry, control) = (frontend.local_addr().unwrap(), frontend.control());
    tokio::spawn(frontend.run(std::future::pending()));
    let refused: SocketAddr = control.listening()[2].listen.parse().unwrap();
    assert_eq!(control.addresses(), format!("{entry},{range},{refused}"));

    assert!(ask(entry, REQUEST).await.unwrap().starts_with("own|"));
    for port in [port, next] {
        assert!(ask(to(port), REQUEST).await.unwrap().starts_with("web|"));
    }
    let error = ask(refused, REQUEST).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let ends = |role| {
        let records = records.lock().unwrap();
        records
            .iter()
            .filter(|access| access.role == role)
            .map(|access| access.end.to_string())
            .collect::<Vec<_>>()
    };
    assert!(
        ends(Role::Backend)
            .contains(&"origin unreachable: no origin of this backend is named unknown".to_owned())
    );

    // An open connection continues although its listener has been removed.
    let mut open = TcpStream::connect(to(next)).await.unwrap();
    open.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let listeners = vec![
        listener(&format!("127.0.0.9:{first}"), "web"),
        listener(&format!("127.0.0.9:{}", last.1), "api"),
    ];
    control.reload(FrontendConfig { listeners, ..config.clone() }).unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(ask(entry, REQUEST).await.unwrap().starts_with("own|"));
    assert!(ask(to(port), REQUEST).await.unwrap().starts_with("web|"));
    assert!(ask(to(last), REQUEST).await.unwrap().starts_with("api|"));
    assert!(TcpStream::connect(to(next)).await.is_err());
    open.write_all(b"\r\n").await.unwrap();
    let mut answer = String::new();
    open.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("web|"), "{answer}");

    // Another program has the port of a new listener: the reload changes nothing.
    let taken = TcpListener::bind(loopback()).await.unwrap();
    let listeners = vec![listener(&taken.local_addr().unwrap().to_string(), "web")];
    let error = control.reload(FrontendConfig { listeners, listen: None, ..config }).unwrap_err();
    assert!(error.to_string().contains("another program has this port"), "{error}");
    assert!(ask(entry, REQUEST).await.unwrap().starts_with("own|"));
    assert!(ask(to(last), REQUEST).await.unwrap().starts_with("api|"));

    let records = records.lock().unwrap();
    let front = records.iter().filter(|access| access.role == Role::Frontend);
    let seen: Vec<_> = front.map(|access| (access.listener.as_deref(), access.origin.as_deref())).collect();
    for expected in [(Some("127.0.0.1:0"), None), (Some(range.as_str()), Some("web"))] {
        assert!(seen.contains(&expected), "{expected:?}: {seen:?}");
    }
}

/// A TLS client hello for `name`, in records of `fragment` bytes at most.
fn hello(name: &str, fragment: usize) -> Vec<u8> {
    let with_length = |bytes: &[u8]| [&u16::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat();
    let host = [&[0][..], &with_length(name.as_bytes())].concat();
    let extension = [&[0, 0][..], &with_length(&with_length(&host))].concat();
    let body = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0], &with_length(&extension)].concat();
    let message = [&[1, 0][..], &with_length(&body)].concat();
    message.chunks(fragment).flat_map(|part| [&[22, 3, 1][..], &with_length(part)].concat()).collect()
}

#[tokio::test]
async fn tls_clients_are_routed_by_server_name_with_unchanged_bytes() {
    let (a, b) = network("--rtt 4ms");
    let (records, web, api) = (Records::default(), origin("web").await, origin("api").await);
    let named = [format!("web={web}"), format!("api={api}")];
    let origins = named.map(|named| named.parse::<NamedOrigin>().unwrap()).into_iter().collect();
    backend(&b, BackendConfig { origins, ..BackendConfig::new(at(1), None, key(1)) }, &records);
    let route = |sni: &str, origin: &str| Route {
        sni: sni.parse().unwrap(),
        origin: origin.parse().unwrap(),
        direct: None,
    };
    let routes = vec![route("*.api.example", "api"), route("shop.example", "web")];
    let refusing = Listener { origin: None, routes: routes.clone(), ..listener("127.0.0.9:0", "web") };
    let timeouts = Timeouts { header: Duration::from_millis(500), ..Timeouts::default() };
    let config = FrontendConfig {
        service: ServiceConfig { timeouts, ..service(&records) },
        listen: None,
        listeners: vec![Listener { routes, ..listener("127.0.0.8:0", "web") }, refusing],
        ..FrontendConfig::new(loopback(), at(1), key(1))
    };
    let frontend = Frontend::bind(config, a).await.unwrap();
    let control = frontend.control();
    let at: Vec<SocketAddr> = control.listening().iter().map(|place| place.listen.parse().unwrap()).collect();
    let facts = Facts {
        role: Role::Frontend,
        listen: String::new(),
        origin: None,
        hop: "",
        security: "",
        clients: None,
        share: None,
    };
    let status = Status::of(&facts, &Metrics::default(), Some(&control)).json();
    let routes = r#""routes":[{"sni":"*.api.example","origin":"api"},{"sni":"shop.example","origin":"web"}]"#;
    assert_eq!(status.matches(routes).count(), 2, "{status}");
    tokio::spawn(frontend.run(std::future::pending()));
    for fragment in [1, 40, 1000] {
        for (name, origin) in [("shop.example", "web"), ("a.API.example", "api")] {
            let said = [&hello(name, fragment)[..], b"\r\n\r\n"].concat();
            let expected = format!("{origin}|{}", String::from_utf8_lossy(&said));
            assert_eq!(ask(at[0], &said).await.unwrap(), expected);
            assert_eq!(ask(at[1], &said).await.unwrap(), expected);
        }
    }
    // The hello arrives in several segments.
    let mut slow = TcpStream::connect(at[1]).await.unwrap();
    for part in [&hello("x.api.example", 30)[..], b"\r\n\r\n"].concat().chunks(25) {
        slow.write_all(part).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut answer = Vec::new();
    slow.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"api|"));
    // Clients without a route go to the origin of the listener, or are refused.
    let other = [&hello("other.example", 1000)[..], b"\r\n\r\n"].concat();
    for said in [&other[..], REQUEST] {
        assert!(ask(at[0], said).await.unwrap().starts_with("web|"));
    }
    let mut refused = TcpStream::connect(at[1]).await.unwrap();
    refused.write_all(&hello("other.example", 1000)).await.unwrap();
    let mut answer = Vec::new();
    refused.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, [21, 3, 1, 0, 2, 2, 112]);
    assert!(ask(at[1], REQUEST).await.is_err());
    // The frontend does not wait for ever for the rest of a hello.
    let mut late = TcpStream::connect(at[1]).await.unwrap();
    late.write_all(&hello("shop.example", 1000)[..20]).await.unwrap();
    let _ = late.read_to_end(&mut answer).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let records = records.lock().unwrap();
    let ends: Vec<String> = records.iter().map(|access| access.end.to_string()).collect();
    for expected in ["client: no route for the server name other.example", "header_timeout"] {
        assert!(ends.iter().any(|end| end == expected), "{expected}: {ends:?}");
    }
}

#[tokio::test]
async fn a_listener_goes_straight_to_its_own_origin_while_no_backend_is_up() {
    let (a, _b) = network("--rtt 4ms");
    let (records, own, web) = (Records::default(), origin("own").await, origin("web").await);
    let direct = |origin: SocketAddr| Direct { origin: origin.to_string(), send_proxy: None };
    let with = |listen: &str, origin: &str, direct| Listener { direct, ..listener(listen, origin) };
    let config = FrontendConfig {
        service: service(&records),
        direct: Some(direct(own)),
        listeners: vec![
            with("127.0.0.8:0", "web", Some(direct(web))),
            with("127.0.0.9:0", "api", None),
            Listener { origin: None, ..listener("127.0.0.10:0", "x") },
        ],
        ..FrontendConfig::new(loopback(), at(1), key(1))
    };
    let frontend = Frontend::bind(config, a).await.unwrap();
    let control = frontend.control();
    let at: Vec<SocketAddr> = control.listening().iter().map(|place| place.listen.parse().unwrap()).collect();
    tokio::spawn(frontend.run(std::future::pending()));
    assert!(ask(at[0], REQUEST).await.unwrap().starts_with("own|"));
    assert!(ask(at[1], REQUEST).await.unwrap().starts_with("web|"));
    assert!(ask(at[2], REQUEST).await.is_err(), "the origin of another listener is none of its own");
    assert!(ask(at[3], REQUEST).await.unwrap().starts_with("own|"));
}

#[tokio::test]
async fn a_backend_connects_only_to_what_it_may() {
    let (a, b) = network("--rtt 4ms");
    let (records, own, other) = (Records::default(), origin("own").await, origin("other").await);
    let config = BackendConfig::new(at(1), own.to_string(), key(1));
    let allow = vec![format!("127.0.0.1:{}", other.port()).parse().unwrap()];
    backend(&b, BackendConfig { allow, ..config }, &records);
    let entrance = Entrance { connect: true, ..Entrance::default() };
    let config = FrontendConfig { entrance, ..FrontendConfig::new(loopback(), at(1), key(1)) };
    let entry = frontend(a, config, &records).await;
    let connect = |to: String| [format!("CONNECT {to} HTTP/1.1\r\n\r\n").as_bytes(), REQUEST].concat();
    assert!(ask(entry, REQUEST).await.unwrap().starts_with("own|"));
    let answer = ask(entry, &connect(other.to_string())).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("other|"), "{answer}");
    for forbidden in ["127.0.0.1:1".to_owned(), format!("localhost:{}", other.port()), own.to_string()] {
        let answer = ask(entry, &connect(forbidden)).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    }
    let records = records.lock().unwrap();
    let refused = records.iter().filter(|access| access.role == Role::Backend);
    assert_eq!(refused.filter(|access| access.end.to_string().contains("not an allowed origin")).count(), 3);
}

/// Returns the request of a proxy client for `to`, followed by a request to that origin.
fn connect_to(to: SocketAddr) -> Vec<u8> {
    [format!("CONNECT {to} HTTP/1.1\r\n\r\n").as_bytes(), REQUEST].concat()
}

#[tokio::test]
async fn proxy_client_is_not_taken_straight_to_the_origin_that_it_names() {
    let (a, _b) = network("--rtt 4ms");
    let (records, own, other) = (Records::default(), origin("own").await, origin("other").await);
    let config = FrontendConfig {
        entrance: Entrance { socks5: true, connect: true, ..Entrance::default() },
        direct: Some(Direct { origin: own.to_string(), send_proxy: None }),
        ..FrontendConfig::new(loopback(), at(1), key(1))
    };
    let entry = frontend(a, config, &records).await;
    assert!(ask(entry, REQUEST).await.unwrap().starts_with("own|"));
    let [high, low] = other.port().to_be_bytes();
    let socks = [5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, high, low];
    let absolute = format!("GET http://{other}/ HTTP/1.1\r\n\r\n");
    for said in [&connect_to(other)[..], &socks, absolute.as_bytes()] {
        let answer = ask(entry, said).await;
        assert!(!answer.as_ref().is_ok_and(|answer| answer.contains("other|")), "{answer:?}");
    }
    assert!(ask(entry, &connect_to(other)).await.unwrap().starts_with("HTTP/1.1 502 "));
}

#[tokio::test]
async fn client_that_no_rule_has_redirected_does_not_lead_back_to_the_frontend() {
    let (a, b) = network("--rtt 4ms");
    let records = Records::default();
    let allow = vec!["127.0.0.1:*".parse().unwrap()];
    backend(&b, BackendConfig { allow, ..BackendConfig::new(at(1), None, key(1)) }, &records);
    // The first frontend has no backend and goes straight to the destination.
    for port in [9, 1] {
        records.lock().unwrap().clear();
        let config = FrontendConfig {
            service: ServiceConfig { max_connections: 8, ..service(&records) },
            entrance: Entrance { transparent: true, ..Entrance::default() },
            direct: Some(Direct { origin: "127.0.0.1:1".to_owned(), send_proxy: None }),
            ..FrontendConfig::new(loopback(), at(port), key(1))
        };
        let frontend = Frontend::bind(config, a.clone()).await.unwrap();
        let entry = frontend.local_addr().unwrap();
        let running = tokio::spawn(frontend.run(std::future::pending()));
        let _ = ask(entry, REQUEST).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        running.abort();
        let ends: Vec<_> = records.lock().unwrap().iter().map(|access| access.end.to_string()).collect();
        assert_eq!(ends, ["client: no firewall rule has redirected it"]);
    }
}

#[tokio::test]
async fn frontend_at_its_limit_learns_that_an_origin_is_forbidden() {
    let [front, back] = key_pairs();
    let (a, b) = network("--rtt 4ms");
    let (records, other) = (Records::default(), origin("other").await);
    let greeting = TcpListener::bind(loopback()).await.unwrap();
    let own = greeting.local_addr().unwrap();
    let one = FrontendLimits { max_connections: NonZeroU32::new(1), max_rate: None };
    let frontend_limits = back.labels().iter().map(|label| (label.to_string(), one)).collect();
    let config = BackendConfig::new(at(1), own.to_string(), back);
    backend(&b, BackendConfig { frontend_limits, ..config }, &records);
    let entrance = Entrance { connect: true, ..Entrance::default() };
    let config = FrontendConfig { entrance, ..FrontendConfig::new(loopback(), at(1), front) };
    let entry = frontend(a, config, &records).await;
    let mut open = TcpStream::connect(entry).await.unwrap();
    open.write_all(REQUEST).await.unwrap();
    let (mut accepted, _) = greeting.accept().await.unwrap();
    accepted.write_all(b"hello").await.unwrap();
    open.read_exact(&mut [0; 5]).await.unwrap();
    assert!(ask(entry, REQUEST).await.is_err(), "this client has no slot");
    assert!(ask(entry, &connect_to(other)).await.unwrap().starts_with("HTTP/1.1 403 "));
}

#[tokio::test]
async fn proxy_request_that_is_longer_than_a_first_message_arrives_whole() {
    let [front, back] = key_pairs();
    for [front, back] in [[key(1), key(1)], [front, back]] {
        let (a, b) = network("--rtt 4ms");
        let (records, to) = (Records::default(), origin("o").await);
        let allow = vec![to.to_string().parse().unwrap()];
        backend(&b, BackendConfig { allow, ..BackendConfig::new(at(1), None, back) }, &records);
        let entrance = Entrance { connect: true, ..Entrance::default() };
        let config = FrontendConfig { entrance, ..FrontendConfig::new(loopback(), at(1), front) };
        let entry = frontend(a, config, &records).await;
        for length in [10, 16_200, 17_500, 30_000, 32_500] {
            let cookie: String = (0..length / 10).map(|n| format!("{n:9};")).collect();
            let said = format!("GET http://{to}/ HTTP/1.1\r\nCookie: {cookie}\r\n\r\n");
            let answer = ask(entry, said.as_bytes()).await.unwrap();
            assert!(answer.starts_with("o|GET / ") && answer.contains(&cookie), "{length}: {}", answer.len());
        }
        let of_frontend = |access: &&Access| access.role == Role::Frontend;
        while records.lock().unwrap().iter().filter(of_frontend).count() < 5 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let longest = records.lock().unwrap().iter().filter(of_frontend).map(|access| access.bytes_up).max();
        assert!(longest.is_some_and(|bytes| (32_000..34_000).contains(&bytes)), "{longest:?}");
    }
}

#[tokio::test]
async fn a_proxy_client_is_told_whether_the_backend_takes_it() {
    const REFUSED_BY_RULE: u8 = 2;
    const UNREACHABLE: u8 = 4;
    let (a, b) = network("--rtt 4ms");
    let (records, other) = (Records::default(), origin("other").await);
    let nobody = TcpListener::bind(loopback()).await.unwrap().local_addr().unwrap();
    let allow = [other, nobody].map(|origin| origin.to_string().parse().unwrap()).to_vec();
    backend(&b, BackendConfig { allow, ..BackendConfig::new(at(1), None, key(1)) }, &records);
    let entrance = Entrance { socks5: true, connect: true, ..Entrance::default() };
    let config = FrontendConfig { entrance, ..FrontendConfig::new(loopback(), at(1), key(1)) };
    let entry = frontend(a, config, &records).await;
    let socks = |port: u16| {
        let [high, low] = port.to_be_bytes();
        [5, 1, 0, 5, 1, 0, 1, 127, 0, 0, 1, high, low]
    };
    // The second time the frontend knows the origin, and answers the client before it opens the hop.
    for _ in 0..2 {
        let mut client = TcpStream::connect(entry).await.unwrap();
        client.write_all(&socks(other.port())).await.unwrap();
        let mut answer = [0; 12];
        client.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer[..4], [5, 0, 5, 0]);
        client.write_all(REQUEST).await.unwrap();
        let mut page = String::new();
        client.read_to_string(&mut page).await.unwrap();
        assert!(page.starts_with("other|"), "{page}");
    }
    for (port, code, status) in [(1, REFUSED_BY_RULE, 403), (nobody.port(), UNREACHABLE, 502)] {
        let mut client = TcpStream::connect(entry).await.unwrap();
        client.write_all(&socks(port)).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer[..4], [5, 0, 5, code]);
        let answer =
            ask(entry, format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    }
}

#[tokio::test]
async fn the_reason_is_the_cause_and_not_the_last_attempt() {
    let (a, b) = network("--rtt 4ms");
    let records = Records::default();
    let refusing = TcpListener::bind(loopback()).await.unwrap();
    let nobody = refusing.local_addr().unwrap().to_string();
    drop(refusing);
    backend(&b, BackendConfig::new(at(1), nobody, key(1)), &records);
    let backends = [1, 2].map(|n| BackendSpec { priority: n as u8, ..BackendSpec::new(at(n)) }).to_vec();
    let config = FrontendConfig { listen: Some(loopback()), ..FrontendConfig::between(backends, key(1)) };
    let entry = frontend(a, config, &records).await;
    assert!(ask(entry, REQUEST).await.is_err());
    let of_frontend = |access: &&Access| access.role == Role::Frontend;
    let last_end = || {
        let records = records.lock().unwrap();
        records.iter().find(of_frontend).map(|access| (access.end.to_string(), access.route.clone()))
    };
    let until = Instant::now() + Duration::from_secs(5);
    while last_end().is_none() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let reason = "origin unreachable: the backend cannot reach its origin".to_owned();
    assert_eq!(last_end(), Some((reason, Some(at(1).to_string()))));
}

#[tokio::test]
async fn a_backend_without_an_origin_of_its_own_serves_those_that_are_asked_for() {
    let (a, b) = network("--rtt 4ms");
    let (records, other) = (Records::default(), origin("other").await);
    let allow = vec![format!("127.0.0.1:{}", other.port()).parse().unwrap()];
    let config = BackendConfig { allow, ..BackendConfig::new(at(1), None, key(1)) };
    backend(&b, config, &records);
    let entrance = Entrance { connect: true, ..Entrance::default() };
    let config = FrontendConfig { entrance, ..FrontendConfig::new(loopback(), at(1), key(1)) };
    let entry = frontend(a, config, &records).await;
    let connect = [format!("CONNECT {other} HTTP/1.1\r\n\r\n").as_bytes(), REQUEST].concat();
    assert!(ask(entry, &connect).await.unwrap().contains("other|"));
    assert!(ask(entry, REQUEST).await.is_err());
    let records = records.lock().unwrap();
    assert!(records.iter().any(|access| access.end.to_string().contains("has no default one (to)")));
}

#[tokio::test]
async fn another_key_takes_nobody_down_with_it() {
    let (a, b) = network("--rtt 10ms");
    let (records, origin) = (Records::default(), origin("o").await);
    backend(&b, BackendConfig::new(at(1), origin.to_string(), key(2)), &records);
    let direct = Direct { origin: origin.to_string(), send_proxy: None };
    let config = FrontendConfig {
        watch: true,
        direct: Some(direct),
        ..FrontendConfig::new(loopback(), at(1), key(1))
    };
    let entry = frontend(a, config, &records).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(ask(entry, REQUEST).await.unwrap().starts_with("o|"), "straight to the origin");
}

#[tokio::test]
async fn without_fast_open_a_request_takes_a_connection_that_is_open_already() {
    const ROUND_TRIP: Duration = Duration::from_millis(200);
    let (a, b) = network("--rtt 200ms");
    let (records, origin) = (Records::default(), origin("o").await);
    let config = BackendConfig::new(at(7443), origin.to_string(), key(1));
    backend(&b, BackendConfig { fast_open: None, ..config }, &records);
    let config = FrontendConfig { watch: true, ..FrontendConfig::new(loopback(), at(7443), key(1)) };
    let entry = frontend(a, config, &records).await;
    let mut least = Duration::MAX;
    // The first requests show that Fast Open is off; then the pool fills. A request that waits for a
    // handshake takes at least two round trips.
    for _ in 0..40 {
        let began = Instant::now();
        assert!(ask(entry, REQUEST).await.unwrap().starts_with("o|"));
        least = least.min(began.elapsed());
        if least < 2 * ROUND_TRIP {
            break;
        }
        tokio::time::sleep(ROUND_TRIP).await;
    }
    assert!(least >= ROUND_TRIP && least < 2 * ROUND_TRIP, "{least:?}");
    let records = records.lock().unwrap();
    assert!(records.iter().all(|access| access.role == Role::Frontend || access.bytes_up > 0), "{records:?}");
}

/// The host of the backend does not exist any more, so nothing answers.
#[tokio::test]
async fn silent_down_backend_fails_before_the_connect_timeout() {
    let ((a, _b), records) = (network("--rtt 4ms"), Records::default());
    let nobody = SocketAddr::from(([10, 0, 0, 9], 7443));
    let config = FrontendConfig { watch: true, ..FrontendConfig::new(loopback(), nobody, key(1)) };
    let service = ServiceConfig { connect_timeout: Duration::from_secs(30), ..service(&records) };
    let frontend = Frontend::bind(FrontendConfig { service, ..config }, a).await.unwrap();
    let (entry, control) = (frontend.local_addr().unwrap(), frontend.control());
    tokio::spawn(frontend.run(std::future::pending()));
    while control.upstreams().iter().any(|backend| backend.health() != Health::Down) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let began = Instant::now();
    let mut client = TcpStream::connect(entry).await.unwrap();
    client.write_all(REQUEST).await.unwrap();
    let error = client.read_u8().await.unwrap_err();
    let took = began.elapsed();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    // The frontend waits for as long as it needs to notice that a backend is up again.
    assert!((Duration::from_secs(2)..Duration::from_secs(8)).contains(&took), "{took:?}");
    while records.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let reason = records.lock().unwrap()[0].end.to_string();
    let cause = "no backend is up (10.0.0.9:7443: the backend is down and does not answer)";
    assert!(reason.ends_with(cause), "{reason}");
}
