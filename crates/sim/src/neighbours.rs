//! Plain bulk flows next to flows under test on one link: measures the share of the rate that the plain flows
//! keep.
//!
//! Plain senders at side B send as much as possible to receivers at side A. On the same link the TCP under
//! test runs bulk transfers, or clients that fetch short responses one after the other. All flows begin at
//! random times within the first 200 ms; the received bytes are counted at the end.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use brisk_link::LinkSpec;
use brisk_tcp::{ConnectConfig, ListenConfig, StackConfig, TcpConfig};
use brisk_wire::Instant;
use rand_core::RngCore;

use crate::addresses::{CLIENT, PORT, SERVER};
use crate::application::{Amount, BulkSender, Client, ClientPlan, Connections, Exchange, Server, Sink};
use crate::host::{AppId, HostId};
use crate::transaction::{TransactionError, TransactionResult};
use crate::world::{Arena, Side, World};

/// Addresses of the plain flows' receiver and sender.
const PLAIN: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::new(10, 2, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 2, 0, 2))];
/// All flows begin within this time, ms.
const ONSET: u32 = 200;
/// Maximum number of flows of one kind.
pub const MAX_FLOWS: u32 = 100;

/// The flows on the link.
#[derive(Clone, Debug)]
pub struct NeighbourSpec<'a> {
    /// The path.
    pub link: &'a LinkSpec,
    /// Plain bulk flows with the default TCP, at most [`MAX_FLOWS`].
    pub plain: u32,
    /// Flows, or clients, of the TCP under test, at most [`MAX_FLOWS`].
    pub others: u32,
    /// The TCP under test, at both ends.
    pub tcp: TcpConfig,
    /// The responses that clients fetch, with the pause before each; `None`: bulk transfers.
    pub short: Option<Exchange>,
    /// Duration of the run.
    pub takes: Duration,
}

/// Runs the flows. Payload and times are those of the TCP under test; `neighbour_bytes` are the bytes that
/// the plain flows received. `completion` is the mean time of the short fetches; for bulk transfers it is the
/// duration of the run.
///
/// # Errors
/// Those of [`crate::transaction()`].
pub fn run(
    spec: &NeighbourSpec<'_>,
    seed: u64,
    arena: &mut Arena,
) -> Result<TransactionResult, TransactionError> {
    let mut world = World::in_arena(std::slice::from_ref(spec.link), seed, std::mem::take(arena));
    let mut rng = brisk_link::seeds::rng(seed, "onset");
    let mut onset = || Instant::from_millis(u64::from(rng.next_u32() % ONSET));
    let end = Instant::ZERO + spec.takes;
    let plain = pair(&mut world, "plain", PLAIN)?;
    let tested = pair(&mut world, "tested", [CLIENT, SERVER])?;

    let received = bulk(&mut world, plain, PLAIN[0], &TcpConfig::default());
    for _ in 0..spec.plain.min(MAX_FLOWS) {
        world.add_app(plain[1], onset(), sender(PLAIN[0], &TcpConfig::default(), end));
    }
    let mut clients = Vec::new();
    let mut sink = None;
    match spec.short {
        None => {
            sink = Some(bulk(&mut world, tested, CLIENT, &spec.tcp));
            for _ in 0..spec.others.min(MAX_FLOWS) {
                world.add_app(tested[1], onset(), sender(CLIENT, &spec.tcp, end));
            }
        }
        Some(exchange) => {
            let max = spec.others.min(MAX_FLOWS);
            for client in fetches(&mut world, tested[1], exchange, spec).take(max as usize) {
                clients.push(world.add_app(tested[0], onset(), client));
            }
        }
    }
    world.run_until(end);

    let bytes = |sink: AppId| {
        world.app::<Sink>(sink).iter().flat_map(|sink| sink.flows()).map(|flow| flow.received).sum::<u64>()
    };
    let outcomes =
        || clients.iter().filter_map(|id| world.app::<Client>(*id)).flat_map(|client| client.outcomes());
    let times: Vec<Duration> =
        outcomes().filter_map(|outcome| outcome.finished.map(|at| at - outcome.started)).collect();
    let response = spec.short.map_or(0, |exchange| exchange.response);
    let mean = times.iter().sum::<Duration>().checked_div(times.len() as u32);
    let result = TransactionResult {
        completion: if sink.is_some() { Some(spec.takes) } else { mean },
        payload_bytes: sink.map_or(0, bytes) + times.len() as u64 * response,
        neighbour_bytes: bytes(received),
        wire_bytes_up: world.bytes_sent_by(Side::A),
        wire_bytes_down: world.bytes_sent_by(Side::B),
        dropped: world.dropped(),
        ..TransactionResult::default()
    };
    *arena = world.into_arena();
    Ok(result)
}

fn pair(world: &mut World, name: &str, [a, b]: [IpAddr; 2]) -> Result<[HostId; 2], TransactionError> {
    let a = world.add_host(Side::A, &format!("{name} A"), &[a], StackConfig::default())?;
    let b = world.add_host(Side::B, &format!("{name} B"), &[b], StackConfig::default())?;
    Ok([a, b])
}

fn bulk(world: &mut World, hosts: [HostId; 2], address: IpAddr, tcp: &TcpConfig) -> AppId {
    let listen = ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() };
    world.add_app(hosts[0], Instant::ZERO, Sink::new(SocketAddr::new(address, PORT), listen))
}

/// Adds a server. Returns an endless iterator over clients of that server.
fn fetches(
    world: &mut World,
    server: HostId,
    exchange: Exchange,
    spec: &NeighbourSpec<'_>,
) -> impl Iterator<Item = Client> + use<> {
    let address = SocketAddr::new(SERVER, PORT);
    let listen = ListenConfig { tcp: spec.tcp.clone(), ..ListenConfig::default() };
    world.add_app(server, Instant::ZERO, Server::new(address, listen));
    // There are more exchanges than fit into the time, so that no client finishes.
    let min = exchange.pause.max(Duration::from_millis(1)).as_millis();
    let max = (spec.takes.as_millis() / min) as usize + 1;
    let plan = ClientPlan {
        server: address,
        connect: ConnectConfig { tcp: spec.tcp.clone(), ..ConnectConfig::default() },
        connections: Connections::Fresh,
        greeting: 0,
        exchanges: vec![exchange; max],
    };
    std::iter::repeat_with(move || Client::new(plan.clone()))
}

fn sender(to: IpAddr, tcp: &TcpConfig, end: Instant) -> BulkSender {
    let connect = ConnectConfig { tcp: tcp.clone(), ..ConnectConfig::default() };
    BulkSender::new(SocketAddr::new(to, PORT), connect, Amount::Until(end))
}

#[cfg(test)]
mod tests {
    use brisk_tcp::config::CongestionAlgorithm;

    use super::*;

    fn spec(link: &LinkSpec) -> NeighbourSpec<'_> {
        NeighbourSpec {
            link,
            plain: 2,
            others: 2,
            tcp: TcpConfig::default(),
            short: None,
            takes: Duration::from_secs(20),
        }
    }

    #[test]
    fn flows_of_the_same_kind_share_evenly_and_fill_the_link() {
        let link = LinkSpec::parse("--rtt 40ms --rate 10mbit --queue 50kB").unwrap();
        let result = run(&spec(&link), 1, &mut Arena::default()).unwrap();
        let (ours, theirs) = (result.payload_bytes as f64, result.neighbour_bytes as f64);
        assert!((ours + theirs) * 8.0 / 20.0 > 8.5e6, "{ours} {theirs}");
        assert!((0.3..0.7).contains(&(theirs / (ours + theirs))), "{ours} {theirs}");
    }

    #[test]
    fn short_fetches_complete_and_leave_the_rest_of_the_rate() {
        let link = LinkSpec::parse("--rtt 40ms --rate 10mbit --queue 50kB").unwrap();
        let short = Some(Exchange { pause: Duration::from_millis(500), ..Exchange::of(10_000) });
        let result = run(&NeighbourSpec { short, ..spec(&link) }, 1, &mut Arena::default()).unwrap();
        let fetches = result.payload_bytes / 10_000;
        assert!((40..=80).contains(&fetches), "{fetches} of about 70 possible fetches of two clients");
        assert!(result.neighbour_bytes * 8 / 20 > 7_000_000, "{}", result.neighbour_bytes);
        assert!(result.completion.is_some_and(|mean| mean > Duration::from_millis(80)));
    }

    /// Thirty clients share a link that suffices for five: most first flights overflow its queue.
    #[test]
    fn bbr_loads_an_overloaded_link_little_more_than_cubic() {
        let link = LinkSpec::parse("--rtt 100ms --rate 2mbit --queue 30kB").unwrap();
        let short = Some(Exchange { pause: Duration::from_millis(100), ..Exchange::of(30_000) });
        let [(cubic, left_by_cubic), (bbr, left_by_bbr)] =
            [CongestionAlgorithm::Cubic, CongestionAlgorithm::Bbr].map(|congestion| {
                let tcp = TcpConfig { congestion, ..TcpConfig::default() };
                let takes = Duration::from_secs(40);
                let spec = NeighbourSpec { plain: 1, others: 30, tcp, short, takes, ..spec(&link) };
                let result = run(&spec, 1, &mut Arena::default()).unwrap();
                (result.wire_bytes_down, result.neighbour_bytes)
            });
        println!("wire {bbr} of {cubic}, neighbour {left_by_bbr} of {left_by_cubic}");
        assert!(bbr * 100 <= cubic * 115, "{bbr} of {cubic}");
        assert!(left_by_bbr * 2 >= left_by_cubic, "{left_by_bbr} of {left_by_cubic}");
    }

    /// A short queue overflows repeatedly. Paced starts would make it drop the packets of the bulk flows.
    #[test]
    fn bbr_starts_on_a_path_known_for_full_queues_take_little_more_than_cubic() {
        let link = LinkSpec::parse("--rtt 80ms --rate 10mbit --queue 30kB").unwrap();
        let short = Some(Exchange { pause: Duration::from_secs(1), ..Exchange::of(90_000) });
        let path_start = true;
        let [cubic, bbr] = [CongestionAlgorithm::Cubic, CongestionAlgorithm::Bbr].map(|congestion| {
            let tcp = TcpConfig { congestion, path_start, ..TcpConfig::default() };
            let takes = Duration::from_secs(30);
            let spec = NeighbourSpec { others: 8, tcp, short, takes, ..spec(&link) };
            let runs = (1..=4).map(|seed| run(&spec, seed, &mut Arena::default()).unwrap());
            runs.map(|result| result.neighbour_bytes).sum::<u64>()
        });
        println!("neighbours {bbr} of {cubic}");
        assert!(bbr * 100 >= cubic * 80, "{bbr} of {cubic}");
    }
}
