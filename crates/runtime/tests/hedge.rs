//! Requests over Fast Open that a second connection repeats if necessary: their cost on a path that drops
//! everything after a SYN with data, and on a path that works. The tests run in virtual time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use brisk_link::LinkSpec;
use brisk_runtime::{
    ConnectConfig, Endpoint, FastOpenConnect, FastOpenOutcome, HedgedStream, TcpListener, TcpSocket, memory,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

const RTT: Duration = Duration::from_millis(100);

/// Two endpoints, and the number of requests that the second one has received.
struct World {
    client: Endpoint,
    server: Endpoint,
    served: Arc<AtomicUsize>,
}

impl World {
    /// Returns a world whose server takes `thinks` before it answers 100 bytes with 5000.
    fn new(link: &str, thinks: Duration) -> World {
        let link = LinkSpec::parse(&format!("--rtt 100ms {link}")).unwrap();
        let (client, server) = memory::network(&link, 5).unwrap();
        let mut socket = TcpSocket::new(&server);
        socket.bind(address());
        socket.fast_open(256);
        let listener = socket.listen(16).unwrap();
        let served = Arc::new(AtomicUsize::new(0));
        tokio::spawn(serve(listener, thinks, served.clone()));
        World { client, server, served }
    }

    fn open(&self, fast_open: Option<FastOpenConnect>, request: &[u8]) -> HedgedStream {
        let mut tcp = self.client.tcp_config().clone();
        tcp.nodelay = true;
        let config = ConnectConfig { tcp, fast_open, ..ConnectConfig::default() };
        self.client.connect_hedged(address(), request, &config).unwrap()
    }

    /// Makes one exchange; returns its duration in round trips, and the outcome of Fast Open.
    async fn exchange(&self, fast_open: Option<FastOpenConnect>) -> (f64, FastOpenOutcome) {
        let started = Instant::now();
        let mut stream = self.open(fast_open, &[1; 100]);
        let mut response = Vec::new();
        stream.read_to_end(&mut response).await.unwrap();
        assert_eq!(response, [7; 5000]);
        let took = started.elapsed().as_secs_f64() / RTT.as_secs_f64();
        let outcome = stream.stats().unwrap().fast_open;
        stream.shutdown().await.unwrap();
        drop(stream);
        tokio::time::sleep(Duration::from_secs(1)).await;
        (took, outcome)
    }

    /// Makes `count` consecutive exchanges; returns by how much each took longer than over plain TCP.
    async fn more_than_plain(&self, count: usize) -> Vec<(f64, FastOpenOutcome)> {
        let (plain, _) = self.exchange(None).await;
        let mut seen = Vec::new();
        for _ in 0..count {
            let (took, outcome) = self.exchange(Some(FastOpenConnect::insured())).await;
            seen.push((took - plain, outcome));
        }
        seen
    }
}

fn address() -> SocketAddr {
    "10.0.0.2:80".parse().unwrap()
}

async fn serve(listener: TcpListener, thinks: Duration, served: Arc<AtomicUsize>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let served = served.clone();
        tokio::spawn(async move {
            let mut request = [0; 100];
            if stream.read_exact(&mut request).await.is_ok() {
                served.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(thinks).await;
                let _ = stream.write_all(&[7; 5000]).await;
            }
            let _ = stream.shutdown().await;
        });
    }
}

fn near(seen: &[(f64, FastOpenOutcome)], expected: &[(f64, FastOpenOutcome)]) -> bool {
    let alike = |(a, b): (&(f64, _), &(f64, _))| (a.0 - b.0).abs() < 0.1 && a.1 == b.1;
    seen.len() == expected.len() && seen.iter().zip(expected).all(alike)
}

#[tokio::test(start_paused = true)]
async fn black_hole_after_the_handshake_costs_half_a_round_trip_twice() {
    use FastOpenOutcome::{Blackholed, NoCookie, Off};
    let world = World::new("--middlebox drop-after-handshake", Duration::ZERO);
    let seen = world.more_than_plain(5).await;
    let off = Off(brisk_runtime::fast_open::OffReason::Disabled);
    let expected = [(0.0, NoCookie), (0.5, Blackholed), (0.5, Blackholed), (0.0, off), (0.0, off)];
    assert!(near(&seen, &expected), "{seen:?}");
    let stats = world.client.stats();
    assert_eq!(stats.fast_open.black_holes, 2);
}

#[tokio::test(start_paused = true)]
async fn a_path_that_works_gets_each_request_once_and_one_connection_more() {
    use FastOpenOutcome::{NoCookie, Used};
    let world = World::new("", Duration::ZERO);
    let seen = world.more_than_plain(4).await;
    assert!(near(&seen, &[(0.0, NoCookie), (-1.0, Used), (-1.0, Used), (-1.0, Used)]), "{seen:?}");
    assert_eq!(world.served.load(Ordering::Relaxed), 5);
    assert_eq!(
        world.client.stats().active_opens,
        6,
        "the second connection of the first request with a cookie"
    );
}

/// The client hedges the first request; after that it knows that the path works.
#[tokio::test(start_paused = true)]
async fn a_slow_server_gets_the_first_request_twice_and_its_first_answer_counts() {
    use FastOpenOutcome::{NoCookie, Used};
    let world = World::new("", RTT * 3);
    let seen = world.more_than_plain(3).await;
    assert!(near(&seen, &[(0.0, NoCookie), (-1.0, Used), (-1.0, Used)]), "{seen:?}");
    assert_eq!(world.served.load(Ordering::Relaxed), 5);
}

#[tokio::test(start_paused = true)]
async fn other_middleboxes_cost_the_same_without_hedging() {
    for (link, most) in
        [("drop-syn-data", 0.6), ("rst-syn-data", 0.6), ("strip-option:34", 0.1), ("synproxy", 0.1)]
    {
        let world = World::new(&format!("--middlebox {link}"), Duration::ZERO);
        let seen = world.more_than_plain(4).await;
        assert!(seen.iter().all(|(more, _)| *more < most), "{link}: {seen:?}");
        assert!(seen[3].0 < 0.1, "{link}: {seen:?}");
    }
}

/// The program writes the request to the stream and then closes the stream, as an HTTP client does.
#[tokio::test(start_paused = true)]
async fn data_written_before_the_answer_is_sent_again() {
    let world = World::new("--middlebox drop-after-handshake", Duration::ZERO);
    world.exchange(Some(FastOpenConnect::insured())).await;
    let deferred = FastOpenConnect { defer: true, ..FastOpenConnect::insured() };
    let mut stream = world.open(Some(deferred), &[]);
    let started = Instant::now();
    stream.write_all(&[1; 60]).await.unwrap();
    stream.write_all(&[1; 40]).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await.unwrap();
    assert_eq!(response, [7; 5000]);
    assert!(started.elapsed() < RTT * 3, "{:?}", started.elapsed());
    assert!(world.server.stats().fast_open.served > 0, "the SYN opened no connection");
}
