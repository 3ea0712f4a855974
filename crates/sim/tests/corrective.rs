//! Cost of Corrective without loss and its effect on cross traffic, in virtual time. `cargo test -p brisk-sim
//! --test corrective -- --nocapture` prints the figures of docs/measured/corrective.md.

use std::time::Duration;

use brisk_link::{Direction, LinkSpec};
use brisk_sim::application::{Amount, BulkSender, Sink};
use brisk_sim::page::{self, Activity, LoadResult, LoadSpec, Page, Wait, Work};
use brisk_sim::world::{Arena, Side, World};
use brisk_sim::{TransactionResult, TransactionSpec, transaction};
use brisk_tcp::config::{ConnectConfig, CorrectiveConfig, FecHold, ListenConfig, StackConfig, TcpConfig};
use brisk_tcp::connection::Counters;
use brisk_wire::Instant;

fn plain() -> TcpConfig {
    TcpConfig::default()
}

fn corrective() -> TcpConfig {
    let mut tcp = TcpConfig::default();
    tcp.mechanisms.corrective = Some(CorrectiveConfig::default());
    tcp
}

/// A document and 59 objects of 2 to 14 kB on six hosts, found while the document arrives.
fn small_page() -> Page {
    let download = |host: usize, response: u64, waits: Vec<Wait>| Activity {
        work: Work::Download { host, request: 350, response, think: Duration::ZERO },
        waits,
    };
    let mut activities = vec![download(0, 20_000, Vec::new())];
    activities.extend((1..60).map(|index: u16| {
        let found = Wait::Share(0, 1000 / 60 * index);
        download(usize::from(index) % 6, 2_000 + u64::from(index) * 7_919 % 12_000, vec![found])
    }));
    Page::new("small", activities).expect("a page")
}

fn load(page: &Page, tcp: &TcpConfig, link: &str, seed: u64) -> LoadResult {
    let link = LinkSpec::parse(link).expect("a link");
    let spec = LoadSpec { client: tcp.clone(), server: tcp.clone(), ..LoadSpec::new(&link, page) };
    page::load(&spec, seed, &mut Arena::default()).expect("it runs")
}

fn seconds(result: &LoadResult) -> f64 {
    result.load.expect("the page is loaded").as_secs_f64()
}

/// Many connections share a slow link without random loss: parity costs only the time of its bytes. Plain TCP
/// needs the same time on a link that is slower by the parity's share.
#[test]
fn without_loss_parity_delays_a_page_only_by_its_bytes() {
    let page = small_page();
    println!("| link | bytes | plain | corrective | plain, slower by the bytes |");
    for (rate, rest) in [
        (2000.0, "--rtt 150ms --queue 2MB"),
        (2000.0, "--rtt 150ms --queue 128kB"),
        (5000.0, "--rtt 28ms --queue 2MB"),
    ] {
        let on =
            |tcp: &TcpConfig, rate: f64| load(&page, tcp, &format!("{rest} --rate {rate:.0}kbit/1mbit"), 1);
        let (without, with) = (on(&plain(), rate), on(&corrective(), rate));
        let bytes = with.wire_down as f64 / without.wire_down as f64;
        let slower = on(&plain(), rate / bytes);
        let [without, with, slower] = [&without, &with, &slower].map(seconds);
        println!("| {rest} | {bytes:.3} | {without:.3} | {with:.3} | {slower:.3} |");
        assert!(with <= 1.03 * slower, "{rest}: {with} s with parity, {slower} s for its bytes");
    }
}

/// Result of two bulk flows over one link: their counters, the bytes that each delivered, and the packets
/// that the link received and dropped.
#[derive(Default)]
struct Shared {
    /// Counters of the senders.
    counters: [Counters; 2],
    delivered: [u64; 2],
    dropped: u64,
    offered: u64,
}

/// Loss detection waits for the answer to parity. All other segments are acknowledged by that time, so no
/// further acknowledgement would trigger a second retransmission. Therefore all lost segments are
/// retransmitted together, in one round trip.
#[test]
fn unrepaired_losses_are_retransmitted_in_one_round_trip() {
    let mut tcp = corrective();
    tcp.mechanisms.corrective =
        Some(CorrectiveConfig { hold: Some(FecHold::Full), ..CorrectiveConfig::default() });
    tcp.initial_window = 30;
    let round_trips = |lost: &str| {
        let link = LinkSpec::parse(&format!("--rtt 100ms --loss down:list:{lost}")).expect("a link");
        let spec = TransactionSpec {
            client: tcp.clone(),
            server: tcp.clone(),
            ..TransactionSpec::new(&link, 30_000)
        };
        let took = transaction(&spec, 1).expect("it runs").completion.expect("it completes");
        took.as_secs_f64() / 0.1
    };
    // The first packet down is the SYN-ACK, the second the first segment.
    let (one, two, four) = (round_trips("6"), round_trips("6,9"), round_trips("4,8,13,20"));
    println!("one {one:.2}, two {two:.2}, four {four:.2} round trips");
    assert!(one < 2.3, "repaired: {one}");
    assert!(two < 3.3 && four < 3.3, "sent again: {two}, {four}");
}

fn share(link: &str, flows: [Option<TcpConfig>; 2], duration: u64, seed: u64) -> Shared {
    let at = |seconds: u64| Instant::from_millis(seconds * 1000);
    let mut world = World::new(&LinkSpec::parse(link).expect("a link"), seed);
    let mut host = |side, ip: &str| {
        let ips = [ip.parse().expect("an address")];
        world.add_host(side, ip, &ips, StackConfig::default()).expect("a host")
    };
    let (receiver, sender) = (host(Side::A, "10.0.0.1"), host(Side::B, "10.0.0.2"));
    let mut sinks = Vec::new();
    let mut senders = Vec::new();
    for (index, tcp) in flows.into_iter().enumerate() {
        let Some(tcp) = tcp else { continue };
        let address = format!("10.0.0.1:{}", 9 + index).parse().expect("an address");
        let listen = ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() };
        sinks.push(world.add_app(receiver, at(0), Sink::new(address, listen)));
        let connect = ConnectConfig { tcp, ..ConnectConfig::default() };
        let flow = BulkSender::new(address, connect, Amount::Until(at(duration + 1)));
        senders.push(world.add_app(sender, Instant::from_millis(700 * index as u64 + 100 * seed), flow));
    }
    world.run_until(at(duration));
    let down = world.counters(0, Direction::Down).expect("a link");
    let mut shared = Shared { dropped: down.dropped(), offered: down.offered, ..Shared::default() };
    for (index, (sink, flow)) in sinks.iter().zip(&senders).enumerate() {
        let sink = world.app::<Sink>(*sink).expect("a sink");
        shared.delivered[index] = sink.flows().iter().map(|flow| flow.received).sum();
        let id = world.app::<BulkSender>(*flow).and_then(BulkSender::connection).expect("connected");
        shared.counters[index] = world.stack(sender).conn_stats(id).expect("it is open").counters;
    }
    shared
}

fn reductions(counters: &Counters) -> u64 {
    counters.masked_losses + counters.recoveries + counters.timeouts
}

/// Single losses, 300 packets apart: a flow reduces its window equally often whether parity or a
/// retransmission repairs a loss.
#[test]
fn repaired_and_retransmitted_losses_reduce_the_window_equally() {
    let losses: Vec<String> = (1..=300).map(|loss| (300 * loss).to_string()).collect();
    let link = format!("--rtt 40ms --loss down:list:{}", losses.join(","));
    let mut full = corrective();
    let hold = Some(FecHold::Full);
    full.mechanisms.corrective = Some(CorrectiveConfig { hold, ..CorrectiveConfig::default() });
    println!("| | lost data segments | reductions | of them for repairs | retransmissions |");
    let run = |name: &str, tcp: TcpConfig| {
        let Shared { counters: [sent, _], .. } = share(&link, [Some(tcp), None], 80, 1);
        let (masked, again) = (sent.masked_losses, sent.retransmits);
        // The link counts parity too, so the share of its losses that affects data depends on the variant. A
        // lost data segment is repaired or retransmitted.
        let lost = masked + again;
        println!("| {name} | {lost} | {} | {masked} | {again} |", reductions(&sent));
        (masked, reductions(&sent) as f64 / lost as f64)
    };
    let (_, without) = run("plain", plain());
    run("corrective", corrective());
    let (masked, with) = run("corrective, full hold", full);
    // A single reduction changes the ratio by 0.7 percent.
    assert!(masked > 100, "{masked} repairs");
    assert!(
        (with / without - 1.0).abs() < 0.02,
        "{without} reductions per loss without parity, {with} with parity"
    );
}

/// Runs the flow under test first or second, with several intervals between the starts. Returns its share of
/// the delivered bytes, and the share of packets that the bottleneck dropped.
fn share_with_plain_tcp(tcp: &TcpConfig, runs: u64, duration: u64) -> (f64, f64) {
    let link = "--rtt 40ms --rate 10mbit --queue 50kB";
    let (mut own, mut all, mut dropped, mut offered) = (0, 0, 0, 0);
    for (seed, first) in (0..runs).flat_map(|seed| [(seed, true), (seed, false)]) {
        let flows = if first { [tcp.clone(), plain()] } else { [plain(), tcp.clone()] };
        let shared = share(link, flows.map(Some), duration, seed);
        own += shared.delivered[usize::from(!first)];
        all += shared.delivered[0] + shared.delivered[1];
        dropped += shared.dropped;
        offered += shared.offered;
    }
    (own as f64 / all as f64, dropped as f64 / offered as f64)
}

#[test]
fn bottleneck_is_shared_with_a_flow_without_parity() {
    let (share, _) = share_with_plain_tcp(&corrective(), 1, 20);
    assert!((0.38..=0.62).contains(&share), "{share}");
}

/// Run with: `cargo test --release -p brisk-sim --test corrective -- --ignored --nocapture`
#[test]
#[ignore = "half an hour of virtual time: run it by hand, in release"]
fn parity_does_not_make_the_bottleneck_drop_more() {
    println!("| next to plain TCP | share | dropped |");
    let run = |name: &str, tcp: &TcpConfig| {
        let (share, dropped) = share_with_plain_tcp(tcp, 4, 60);
        println!("| {name} | {share:.3} | {:.4} % |", 100.0 * dropped);
        (share, dropped)
    };
    let (_, without) = run("plain", &plain());
    let (share, with) = run("corrective", &corrective());
    assert!((0.38..=0.62).contains(&share), "{share}");
    assert!(with <= 1.1 * without, "dropped: {without} without, {with} with parity");
}

/// Returns the completion in milliseconds (mean, 50th, 95th and 99th percentile), retransmissions per
/// transaction and bytes on the wire per byte of payload.
fn exchanges(link: &str, bytes: u64, tcp: &TcpConfig, runs: u64) -> ([f64; 4], f64, f64) {
    let link = LinkSpec::parse(link).expect("a link");
    let spec = TransactionSpec {
        established: true,
        client: tcp.clone(),
        server: tcp.clone(),
        ..TransactionSpec::new(&link, bytes)
    };
    let results: Vec<TransactionResult> =
        (0..runs).map(|seed| transaction(&spec, seed).expect("it runs")).collect();
    let mut times: Vec<f64> =
        results.iter().map(|result| result.completion.expect("it completes").as_secs_f64() * 1e3).collect();
    times.sort_by(f64::total_cmp);
    let at = |percent: usize| times[times.len() * percent / 100];
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    let again: u64 = results.iter().map(|result| result.retransmits).sum();
    let wire: u64 = results.iter().map(|result| result.wire_bytes_down + result.wire_bytes_up).sum();
    let payload: u64 = results.iter().map(|result| result.payload_bytes).sum();
    ([mean, at(50), at(95), at(99)], again as f64 / runs as f64, wire as f64 / payload as f64)
}

/// Measures `hold` with one parity. Three segments above a hole either cause a retransmission at once or wait
/// for the answer to the parity. Run with: `cargo test --release -p brisk-sim --test corrective
/// gain_of_full_hold -- --ignored --nocapture`
#[test]
#[ignore = "prints figures: run it by hand, in release"]
fn gain_of_full_hold() {
    println!(
        "| exchange | hold | mean | p50 | p95 | p99 | sent again | wire |\n|---|---|---|---|---|---|---|---|"
    );
    for (link, bytes) in [
        ("--rtt 200ms --loss 2%", 5_000),
        ("--rtt 200ms --loss 2%", 50_000),
        ("--rtt 200ms --loss after:1%,50%", 50_000),
        ("--rtt 100ms --rate 20mbit --loss 2%", 30_000),
        ("--rtt 40ms --rate 20mbit --loss 1%", 200_000),
        ("--rtt 40ms --rate 20mbit --reorder 2%,5ms", 200_000),
    ] {
        for hold in [FecHold::Off, FecHold::Reordering, FecHold::Full] {
            let mut tcp = TcpConfig::default();
            tcp.mechanisms.corrective =
                Some(CorrectiveConfig { hold: Some(hold), ..CorrectiveConfig::default() });
            let ([mean, p50, p95, p99], again, wire) = exchanges(link, bytes, &tcp, 3000);
            println!(
                "| {bytes} B, {link} | {hold:?} | {mean:.1} | {p50:.0} | {p95:.0} | {p99:.0} | {again:.2} | {wire:.3} |"
            );
        }
    }
}
