//! Fast Open behind devices that block it: the extra time of each transaction compared with plain TCP over
//! the same path, and the reported outcome. A client makes five consecutive transactions with one server. The
//! first only gets the cookie, so the second is the first with data on its SYN.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use brisk_link::LinkSpec;
use brisk_sim::application::{Client, ClientPlan, Connections, Exchange, Server};
use brisk_sim::world::{Side, World};
use brisk_tcp::config::{ConnectConfig, ListenConfig, StackConfig};
use brisk_tcp::fast_open::{ClientCookie, FastOpenConnect, FastOpenListen};
use brisk_wire::Instant;

const RTT: Duration = Duration::from_millis(100);
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const TRANSACTIONS: usize = 5;

/// Returns completion in ms (`None` if it failed) and outcome of each of `count` transactions.
fn transactions(
    path: &str,
    fast_open: Option<FastOpenConnect>,
    count: usize,
) -> Vec<(Option<u64>, &'static str)> {
    let link = LinkSpec::parse(&format!("--rtt 100ms {path}")).unwrap();
    let mut world = World::new(&link, 1);
    let client = world.add_host(Side::A, "client", &[CLIENT], StackConfig::default()).unwrap();
    let server = world.add_host(Side::B, "server", &[SERVER], StackConfig::default()).unwrap();
    let address = SocketAddr::new(SERVER, 80);
    let listen =
        ListenConfig { fast_open: fast_open.map(|_| FastOpenListen::default()), ..ListenConfig::default() };
    world.add_app(server, Instant::ZERO, Server::new(address, listen));
    let exchange = Exchange { pause: RTT * 20, ..Exchange::of(5_000) };
    let plan = ClientPlan {
        server: address,
        connect: ConnectConfig { fast_open, ..ConnectConfig::default() },
        connections: Connections::Fresh,
        greeting: 0,
        exchanges: vec![exchange; count],
    };
    let client = world.add_app(client, Instant::ZERO, Client::new(plan));
    let over = |world: &World| world.app::<Client>(client).is_some_and(|app| app.is_over());
    world.run_while(Instant::ZERO + Duration::from_secs(600).max(RTT * 50 * count as u32), over);
    let outcomes = world.app::<Client>(client).expect("a client").outcomes();
    outcomes
        .iter()
        .map(|outcome| {
            let took = outcome.finished.map(|at| (at - outcome.started).as_millis() as u64);
            (took, outcome.stats.as_ref().map_or("?", |stats| stats.fast_open.name()))
        })
        .collect()
}

/// Returns the extra milliseconds compared with plain TCP, and the outcome, per transaction.
fn extra(middlebox: &str, connect: FastOpenConnect) -> Vec<(i64, &'static str)> {
    let plain = transactions(middlebox, None, TRANSACTIONS);
    let fast = transactions(middlebox, Some(connect), TRANSACTIONS);
    assert!(plain.iter().all(|(took, _)| took.is_some()), "plain TCP does not pass {middlebox}");
    assert_eq!(fast.len(), plain.len(), "{middlebox}: {fast:?}");
    let never = i64::MAX;
    let pairs = fast.into_iter().zip(plain);
    pairs
        .map(|((fast, word), (plain, _))| {
            let (fast, plain) = (fast.map(|took| took as i64), plain.map(|took| took as i64));
            (fast.zip(plain).map_or(never, |(fast, plain)| fast - plain), word)
        })
        .collect()
}

/// A row of the table: the device, then the extra time in ms and the outcome of each transaction.
type Row = (&'static str, [(i64, &'static str); TRANSACTIONS]);

/// The first transaction requests a cookie; the second is the first to use it.
#[test]
fn cost_of_each_device_with_the_plain_copy() {
    let no_cookie = (0, "no-cookie");
    let rows: [Row; 9] = [
        ("", [no_cookie, (-100, "used"), (-100, "used"), (-100, "used"), (-100, "used")]),
        (
            "--middlebox drop-syn-data",
            [no_cookie, (50, "syn-lost"), (50, "syn-lost"), (0, "off(disabled)"), (0, "off(disabled)")],
        ),
        (
            "--middlebox rst-syn-data",
            [no_cookie, (50, "syn-lost"), (50, "syn-lost"), (0, "off(disabled)"), (0, "off(disabled)")],
        ),
        ("--middlebox strip-option:34", stripped()),
        ("--middlebox strip-option:34@syn", stripped()),
        ("--middlebox strip-option:34@synack", stripped()),
        (
            "--middlebox strip-syn-data",
            [no_cookie, (0, "stripped"), (0, "stripped"), (0, "stripped"), (0, "off(suspended)")],
        ),
        (
            "--middlebox nat",
            [no_cookie, (0, "refused"), (0, "refused"), (0, "refused"), (0, "off(suspended)")],
        ),
        ("--middlebox synproxy", stripped()),
    ];
    for (middlebox, expected) in rows {
        assert_eq!(extra(middlebox, FastOpenConnect::insured()), expected, "{middlebox}");
    }
}

fn stripped() -> [(i64, &'static str); TRANSACTIONS] {
    let off = (0, "off(no-cookie-there)");
    [(0, "stripped"), off, off, off, off]
}

/// A device that drops everything after the handshake ends the connection: the server acknowledges the
/// request, and nothing more arrives. A copy of the SYN does not help. The client detects the device by the
/// repeated SYN-ACK after 3 s, and the connection ends after 15 s, so that the application can try again.
/// Later connections open without Fast Open.
#[test]
fn a_black_hole_behind_the_handshake_takes_one_connection() {
    let extra = extra("--middlebox drop-after-handshake", FastOpenConnect::insured());
    let off = (0, "off(disabled)");
    assert_eq!(extra, [(0, "no-cookie"), (i64::MAX, "blackholed"), off, off, off]);
}

/// Without the copy, the paper's timer determines the delay.
#[test]
fn without_the_copy_a_swallowed_syn_costs_a_round_trip_and_a_half() {
    let extra = extra("--middlebox drop-syn-data", FastOpenConnect::default());
    let (lost, off) = ((150, "syn-lost"), (0, "off(disabled)"));
    assert_eq!(extra, [(0, "no-cookie"), lost, lost, off, off]);
}

/// A SYN proxy was installed after the client got its cookie. The proxy acknowledges only the SYN, with a
/// window of zero.
#[test]
fn data_on_a_syn_that_a_proxy_answers_costs_nothing() {
    let connect = FastOpenConnect { cookie: ClientCookie::None, ..FastOpenConnect::insured() };
    assert_eq!(extra("--middlebox synproxy", connect), [(0, "stripped"); TRANSACTIONS]);
}

/// A lost SYN is not a black hole: on a path that only loses packets, Fast Open stays in use.
#[test]
fn random_loss_is_reported_as_lost_syns_and_not_as_a_black_hole() {
    for connect in [FastOpenConnect::default(), FastOpenConnect::insured()] {
        let seen = transactions("--loss 5%", Some(connect), 601);
        let count = |word| seen[1..].iter().filter(|(_, outcome)| *outcome == word).count();
        assert_eq!(seen[0].1, "no-cookie");
        assert_eq!(count("used") + count("syn-lost"), 600, "{seen:?}");
        // 30 of 600 SYNs are lost on average; the range is three standard deviations.
        assert!((14..=46).contains(&count("syn-lost")), "{}", count("syn-lost"));
    }
}
