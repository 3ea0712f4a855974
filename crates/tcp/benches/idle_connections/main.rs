//! Measures the memory of connections that do nothing: `cargo bench -p brisk-tcp --bench idle_connections [--
//! --record | --million]`.
//!
//! A new process opens [`COUNT`] connections of each kind: idle ones after a request and a response, ones in
//! TIME-WAIT, and half-open ones, opened all at once. The growth of its resident memory is divided by their
//! number, so it includes the slab, the hash table, the timers and the allocator. `recorded.txt` in this
//! folder has the figures of the last change that affected them. The bench fails if a figure exceeds its
//! record by more than [`TOLERANCE`]. `-- --record` rewrites the file.
//!
//! `--million` prints the memory of a million idle ends, which are half a million connections. It also prints
//! the duration of a transaction over a new connection with and without them.

mod pair;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use brisk_tcp::stack::Rx;
use brisk_tcp::time::Duration;
use brisk_wire::{ChecksumFill, Flags, IpMeta, SeqNum, TcpHeader};
use pair::Pair;

/// Number of connections of each kind.
const COUNT: usize = 20_000;

/// Permitted excess of a figure over its record, as a share of the record. It is needed because the kernel
/// counts whole pages, and C libraries differ.
const TOLERANCE: f64 = 0.1;

/// Opens this number of connections of a kind in a new process, and returns the number of ends.
type Make = fn(&mut Pair, usize) -> usize;

const KINDS: [(&str, Make); 4] = [
    ("idle, 500 opened a second", |pair, count| idle(pair, count, Duration::from_millis(2))),
    ("idle, 5,000 opened a second", |pair, count| idle(pair, count, Duration::from_micros(200))),
    ("TIME-WAIT", time_wait),
    ("half-open", half_open),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--run", kind] => run(kind),
        ["--million"] => million(),
        rest => return measure(rest.contains(&"--record")),
    }
    ExitCode::SUCCESS
}

/// Measures the bytes of each kind and compares them with the record.
fn measure(record: bool) -> ExitCode {
    let mut recorded = read_recorded();
    let mut exceeded = false;
    println!("{:<28} {:>8} {:>8}", "bytes of a connection", "now", "recorded");
    for (kind, _) in KINDS {
        let program = std::env::current_exe().expect("a path");
        let output = Command::new(program).args(["--run", kind]).output().expect("it runs");
        assert!(output.status.success(), "{kind}: {}", String::from_utf8_lossy(&output.stderr));
        let now: u64 = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number");
        let before = recorded.insert(kind.to_owned(), now);
        let is_worse = before.is_some_and(|before| now as f64 > before as f64 * (1.0 + TOLERANCE));
        exceeded |= is_worse;
        let before = before.map_or("-".to_owned(), |before| before.to_string());
        println!("{kind:<28} {now:>8} {before:>8}{}", if is_worse && !record { "  exceeds" } else { "" });
    }
    if record {
        let lines = recorded.iter().map(|(kind, bytes)| format!("{kind} {bytes}\n"));
        std::fs::write(record_path(), lines.collect::<String>()).expect("the record can be written");
        return ExitCode::SUCCESS;
    }
    ExitCode::from(u8::from(exceeded))
}

fn record_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/idle_connections/recorded.txt")
}

fn read_recorded() -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string(record_path()).unwrap_or_default();
    let parse = |line: &str| {
        line.rsplit_once(' ').and_then(|(kind, bytes)| Some((kind.to_owned(), bytes.parse().ok()?)))
    };
    text.lines().filter_map(parse).collect()
}

/// Opens the connections of one kind and prints the bytes of each.
fn run(kind: &str) {
    let (_, make) = KINDS.iter().find(|(name, _)| *name == kind).expect("a kind");
    let mut pair = Pair::new();
    // Memory that is allocated once does not belong to a connection: the buffers of this program and the
    // memory of the path.
    let (client, server) = pair.transaction();
    pair.close(client, server);
    let before = resident();
    let ends = make(&mut pair, COUNT);
    println!("{}", resident().saturating_sub(before) / ends);
}

/// Returns the resident memory of this process, bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = statm.split(' ').nth(1).and_then(|field| field.parse().ok()).expect("a number");
    pages * 4096
}

/// Opens connections that transfer data and become idle; both ends count. A connection opened within the last
/// second has not released its memory yet, so the peak depends on `pause`.
fn idle(pair: &mut Pair, count: usize, pause: Duration) -> usize {
    for _ in 0..count {
        pair.transaction();
        pair.pass(pause);
    }
    pair.pass(Duration::from_secs(10));
    assert!(pair.client.connections() + pair.server.connections() >= 2 * count);
    2 * count
}

/// Opens connections that end in TIME-WAIT at the server.
fn time_wait(pair: &mut Pair, count: usize) -> usize {
    let before = pair.server.time_waits();
    // The client draws new ports, and may use one that is still in TIME-WAIT.
    while pair.server.time_waits() < before + count {
        let (client, server) = pair.transaction();
        pair.close(client, server);
        pair.pass(Duration::from_millis(1));
    }
    assert_eq!(pair.client.connections(), 0);
    count
}

/// Opens connections at the server with a SYN only.
fn half_open(pair: &mut Pair, count: usize) -> usize {
    let mut packet = Vec::new();
    let syn = |number: usize| TcpHeader {
        src_port: 1024 + (number % 60_000) as u16,
        dst_port: 80,
        seq: SeqNum(number as u32),
        flags: Flags::SYN,
        window: 65_535,
        ..TcpHeader::default()
    };
    for number in 0..count {
        let ip = IpMeta::new([10, 2, 0, 1].into(), [10, 1, 0, 0].into());
        packet.clear();
        brisk_wire::emit(&ip, &syn(number), &[], ChecksumFill::Full, &mut packet).expect("it fits");
        pair.server.on_packet(&packet, Rx::default(), pair.now);
        while pair.server.poll_transmit(pair.now, &mut packet).is_some() {}
    }
    // The SYN-ACK is repeated after one second and after three.
    for _ in 0..25 {
        pair.now += Duration::from_millis(100);
        pair.server.on_timeout(pair.now);
        while pair.server.poll_transmit(pair.now, &mut packet).is_some() {}
    }
    assert_eq!(pair.server.half_open(), count);
    count
}

/// Runs transactions without and with a million idle ends, two for each connection.
fn million() {
    const MANY: usize = 1_000_000;
    let mut pair = Pair::new();
    let alone = latencies(&mut pair);
    let before = resident();
    for _ in 0..MANY / 2 {
        pair.transaction();
        pair.pass(Duration::from_micros(20));
    }
    pair.pass(Duration::from_secs(10));
    let held = resident() - before;
    println!("{MANY} idle ends in one process, both ends of {} connections", MANY / 2);
    println!("resident memory: {} MB, {} bytes an end", held / 1_000_000, held / MANY);
    let among = latencies(&mut pair);
    println!("a new transaction, both ends: median and 99 % without them {alone:?}, with them {among:?}");
    println!("99 %: {:.2} times", among.1.as_secs_f64() / alone.1.as_secs_f64());
}

/// Returns the median and 99th percentile of the real time of a connection with one transaction, from open to
/// close.
fn latencies(pair: &mut Pair) -> (Duration, Duration) {
    let mut took: Vec<Duration> = (0..20_000)
        .map(|_| {
            let begun = std::time::Instant::now();
            let (client, server) = pair.transaction();
            pair.close(client, server);
            let took = begun.elapsed();
            pair.pass(Duration::from_micros(20));
            took
        })
        .collect();
    took.sort_unstable();
    (took[took.len() / 2], took[took.len() * 99 / 100])
}
