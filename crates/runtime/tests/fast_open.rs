//! Fast Open through the runtime's API: the round trip it saves, and its cost on a path that prevents it.

use std::time::Duration;

use brisk_link::LinkSpec;
use brisk_runtime::fast_open::{FastOpenConnect, FastOpenOutcome, KeySource};
use brisk_runtime::{Endpoint, TcpListener, TcpSocket, TcpStream, memory};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

const RTT: Duration = Duration::from_millis(100);
const SERVER: &str = "10.0.0.2:80";

fn network(link: &str) -> (Endpoint, Endpoint) {
    let link = LinkSpec::parse(link).unwrap_or_else(|error| panic!("{error}"));
    memory::network(&link, 5).unwrap()
}

/// Answers every request of 100 bytes with 5000.
fn serve(endpoint: &Endpoint) -> TcpListener {
    let mut socket = TcpSocket::new(endpoint);
    socket.bind(SERVER.parse().unwrap());
    socket.fast_open(256);
    socket.listen(16).unwrap()
}

async fn answer(listener: &TcpListener) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let mut request = [0; 100];
            if stream.read_exact(&mut request).await.is_ok() {
                let _ = stream.write_all(&[7; 5000]).await;
            }
            let _ = stream.shutdown().await;
        });
    }
}

fn open(endpoint: &Endpoint, connect: FastOpenConnect, data: &[u8]) -> TcpStream {
    let mut socket = TcpSocket::new(endpoint);
    socket.set_nodelay(true);
    socket.set_fast_open_connect(Some(connect));
    let (stream, taken) = socket.connect_with_data(SERVER.parse().unwrap(), data).unwrap();
    assert_eq!(taken, data.len());
    stream
}

/// Makes one exchange over a new connection; returns its duration in round trips, and the outcome of Fast
/// Open.
async fn exchange(endpoint: &Endpoint) -> (f64, FastOpenOutcome) {
    let started = Instant::now();
    let mut stream = open(endpoint, FastOpenConnect::default(), &[1; 100]);
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await.unwrap();
    let took = started.elapsed();
    assert_eq!(response, [7; 5000]);
    let outcome = stream.stats().unwrap().fast_open;
    stream.shutdown().await.unwrap();
    (took.as_secs_f64() / RTT.as_secs_f64(), outcome)
}

/// Makes `count` exchanges over a link, one after the other.
async fn exchanges(link: &str, count: usize) -> Vec<(f64, FastOpenOutcome)> {
    let (a, b) = network(link);
    let listener = serve(&b);
    let mut took = Vec::new();
    let all = async {
        for _ in 0..count {
            took.push(exchange(&a).await);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        () = answer(&listener) => unreachable!("it answers for ever"),
        () = all => {}
    }
    took
}

#[tokio::test(start_paused = true)]
async fn exchange_over_a_new_connection_takes_one_round_trip() {
    let took = exchanges("--rtt 100ms", 3).await;
    let [(first, asked), (second, used), (third, again)] = took[..] else { panic!("{took:?}") };
    assert_eq!(
        (asked, used, again),
        (FastOpenOutcome::NoCookie, FastOpenOutcome::Used, FastOpenOutcome::Used)
    );
    assert!((1.99..2.1).contains(&first), "{first}");
    assert!((0.99..1.1).contains(&second) && (0.99..1.1).contains(&third), "{second} {third}");
}

#[tokio::test(start_paused = true)]
async fn path_that_prevents_fast_open_soon_costs_nothing() {
    for (link, outcome, most) in [
        // The cookie is granted, and then the SYN with data is dropped: the plain one follows after 1.5 round
        // trips.
        ("--rtt 100ms --middlebox drop-syn-data", FastOpenOutcome::SynLost, 3.6),
        ("--rtt 100ms --middlebox strip-option:34", FastOpenOutcome::Stripped, 2.1),
        ("--rtt 100ms --middlebox strip-option:34@syn", FastOpenOutcome::Stripped, 2.1),
        ("--rtt 100ms --middlebox strip-syn-data", FastOpenOutcome::Stripped, 2.1),
    ] {
        let took = exchanges(link, 4).await;
        assert!(took.iter().any(|(_, seen)| *seen == outcome), "{link}: {took:?}");
        assert!(took.iter().all(|(rounds, _)| *rounds < most), "{link}: {took:?}");
        let (last, _) = took[3];
        assert!(last < 2.1, "{link}: the last exchange is delayed: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_write_can_carry_the_syn() {
    let (a, b) = network("--rtt 100ms");
    let listener = serve(&b);
    let client = async {
        exchange(&a).await;
        let connect = FastOpenConnect { defer: true, ..FastOpenConnect::default() };
        let mut stream = open(&a, connect, &[]);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let started = Instant::now();
        stream.write_all(&[1; 100]).await.unwrap();
        let mut response = Vec::new();
        stream.read_to_end(&mut response).await.unwrap();
        assert!(started.elapsed() < RTT * 11 / 10, "{:?}", started.elapsed());
        assert_eq!(stream.stats().unwrap().fast_open, FastOpenOutcome::Used);
    };
    tokio::select! {
        () = answer(&listener) => unreachable!("it answers for ever"),
        () = client => {}
    }
}

#[tokio::test(start_paused = true)]
async fn cookie_cache_can_be_exported_imported_and_flushed() {
    let (a, b) = network("--rtt 100ms");
    let listener = serve(&b);
    let client = async {
        exchange(&a).await;
        let stored = a.export_fast_open_cache();
        a.flush_fast_open_cache(None);
        assert_eq!(exchange(&a).await.1, FastOpenOutcome::NoCookie);
        a.flush_fast_open_cache(None);
        a.import_fast_open_cache(&stored).unwrap();
        assert_eq!(exchange(&a).await.1, FastOpenOutcome::Used);
        assert!(a.import_fast_open_cache("nonsense").is_err());
        // With new keys the server refuses the cookie once, which costs no time, and replaces it.
        assert!(listener.set_fast_open_keys(KeySource::parse("1-2-3-4").unwrap()));
        let (rounds, outcome) = exchange(&a).await;
        assert!(outcome == FastOpenOutcome::Refused && rounds < 2.1);
        assert_eq!(exchange(&a).await.1, FastOpenOutcome::Used);
        assert_eq!(b.stats().fast_open.served, 2);
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    tokio::select! {
        () = answer(&listener) => unreachable!("it answers for ever"),
        () = client => {}
    }
    assert_eq!(listener.fast_open_pending(), 0);
}

/// Returns a stream whose SYN waits for the first write, and the duration of `connect`.
async fn connect_deferred(endpoint: &Endpoint) -> (TcpStream, Duration) {
    let mut socket = TcpSocket::new(endpoint);
    socket.set_fast_open_connect(Some(FastOpenConnect { defer: true, ..FastOpenConnect::default() }));
    let started = Instant::now();
    (socket.connect(SERVER.parse().unwrap()).await.unwrap(), started.elapsed())
}

/// Runs `client` while the server at `listener` answers, for ten seconds at most: a connection whose SYN
/// never leaves fails the test.
async fn served_within_ten_seconds(listener: &TcpListener, client: impl Future<Output = ()>) {
    tokio::select! {
        () = answer(listener) => unreachable!("it answers for ever"),
        client = tokio::time::timeout(Duration::from_secs(10), client) => client.expect("the client hangs"),
    }
}

#[tokio::test(start_paused = true)]
async fn deferred_connect_returns_at_once_if_the_syn_can_carry_data() {
    let (a, b) = network("--rtt 100ms");
    let listener = serve(&b);
    let client = async {
        let (mut stream, took) = connect_deferred(&a).await;
        assert!((RTT..2 * RTT).contains(&took), "without a cookie there is nothing to wait for: {took:?}");
        stream.write_all(&[1; 100]).await.unwrap();
        stream.read_to_end(&mut Vec::new()).await.unwrap();

        let (mut stream, took) = connect_deferred(&a).await;
        assert!(took < Duration::from_millis(1), "{took:?}");
        let started = Instant::now();
        // The client reads before it writes, as an HTTP client does.
        let (mut read, mut write) = stream.split();
        let mut response = Vec::new();
        let (read, written) = tokio::join!(read.read_to_end(&mut response), write.write_all(&[1; 100]));
        read.unwrap();
        written.unwrap();
        assert!(started.elapsed() < RTT * 11 / 10, "{:?}", started.elapsed());
        assert_eq!(stream.stats().unwrap().fast_open, FastOpenOutcome::Used);
    };
    served_within_ten_seconds(&listener, client).await;
}

#[tokio::test(start_paused = true)]
async fn deferred_syn_leaves_without_data_if_the_program_waits_first() {
    let (a, b) = network("--rtt 100ms");
    let listener = serve(&b);
    let client = async {
        exchange(&a).await;
        let (stream, _) = connect_deferred(&a).await;
        let started = Instant::now();
        stream.connected().await.unwrap();
        assert!(started.elapsed() < RTT * 12 / 10, "{:?}", started.elapsed());

        let (stream, _) = connect_deferred(&a).await;
        let started = Instant::now();
        let read = tokio::time::timeout(RTT * 3, stream.read_bytes(1)).await;
        assert!(read.is_err(), "the server waits for a request");
        stream.connected().await.unwrap();
        assert!(started.elapsed() < RTT * 31 / 10, "{:?}", started.elapsed());
    };
    served_within_ten_seconds(&listener, client).await;
}
