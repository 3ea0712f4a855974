//! Segments with Corrective that released versions sent, read by the present code.
//!
//! `tests/released/VERSION.txt` records the segments that the sending end of a version sent on a path without
//! faults, for each code of profile F2. One line has the code, the time in ms and the packet. The present
//! code is the receiving end. It gets the record without some data segments, so only the recorded parity can
//! complete the stream. A release adds a file (`RELEASED=VERSION cargo test -p brisk-tcp --test released`
//! writes it). Existing files are never changed.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use brisk_tcp::config::{
    ConnectConfig, CorrectiveConfig, FecCode, ListenConfig, MechanismConfig, StackConfig, TcpConfig,
};
use brisk_tcp::stack::Rx;
use brisk_tcp::{ListenerId, Stack};
use brisk_wire::{ChecksumCheck, Instant, Packet, Segment, SeqNum, fill_checksums, parse, tcp_offset};

const SENDER: &str = "10.0.0.1:40000";
const RECEIVER: &str = "10.0.0.2:80";
/// Bytes of the stream, in segments of 984 bytes.
const STREAM: usize = 10_000;
/// Delay of the recorded path, ms.
const DELAY: u64 = 20;

/// A packet and the time at which it was sent, ms.
type Sent = (u64, Vec<u8>);

/// A code, its parities per group, and the data segments that the replay leaves out.
struct Case {
    name: &'static str,
    code: FecCode,
    parities: u8,
    lost: &'static [usize],
}

const CASES: [Case; 3] = [
    Case { name: "xor", code: FecCode::Xor, parities: 1, lost: &[4] },
    Case { name: "interleaved", code: FecCode::XorInterleaved, parities: 1, lost: &[4, 5] },
    Case { name: "reed-solomon", code: FecCode::ReedSolomon, parities: 3, lost: &[2, 5, 9] },
];

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn stream() -> Vec<u8> {
    (0..STREAM).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn tcp(case: &Case) -> TcpConfig {
    let corrective =
        CorrectiveConfig { code: case.code, parities: case.parities, ..CorrectiveConfig::default() };
    TcpConfig {
        max_segment: Some(1012),
        initial_window: 32,
        mechanisms: MechanismConfig { corrective: Some(corrective), ..MechanismConfig::default() },
        ..TcpConfig::default()
    }
}

fn stack(local: &str, seed: u64) -> Stack {
    let config = StackConfig { addresses: vec![address(local).ip()], ..StackConfig::default() };
    Stack::new(config, seed).expect("a stack")
}

fn receiver(case: &Case) -> (Stack, ListenerId) {
    let mut stack = stack(RECEIVER, 2);
    let config = ListenConfig { tcp: tcp(case), ..ListenConfig::default() };
    let listener = stack.listen(address(RECEIVER), config).expect("the port is free");
    (stack, listener)
}

fn segment(packet: &[u8]) -> Segment<'_> {
    match parse(packet, ChecksumCheck::Verify).expect("a packet") {
        Packet::Tcp(segment) => segment,
        other => panic!("no TCP: {other:?}"),
    }
}

/// Returns the packets of the present sending end with their times in ms, on a path of `DELAY` each way.
fn record(case: &Case) -> Vec<Sent> {
    let mut sender = stack(SENDER, 1);
    let (mut receiver, _) = receiver(case);
    let config = ConnectConfig { tcp: tcp(case), local: Some(address(SENDER)), ..ConnectConfig::default() };
    let id = sender.connect(address(RECEIVER), &config, Instant::ZERO).expect("a connection");
    let (mut sent, mut answers) = (Vec::<Sent>::new(), Vec::<Sent>::new());
    let mut packet = Vec::new();
    let (mut arrived, mut answered, mut written) = (0, 0, false);
    for at in 0..200 {
        let now = Instant::from_millis(at);
        while sent.get(arrived).is_some_and(|(left, _)| left + DELAY == at) {
            receiver.on_packet(&sent[arrived].1, Rx::default(), now);
            arrived += 1;
        }
        while answers.get(answered).is_some_and(|(left, _)| left + DELAY == at) {
            sender.on_packet(&answers[answered].1, Rx::default(), now);
            answered += 1;
        }
        sender.on_timeout(now);
        receiver.on_timeout(now);
        if at == 2 * DELAY {
            written = sender.write(id, &stream(), now) == Ok(STREAM);
        }
        while sender.poll_transmit(now, &mut packet).is_some() {
            sent.push((at, packet.clone()));
        }
        while receiver.poll_transmit(now, &mut packet).is_some() {
            answers.push((at, packet.clone()));
        }
    }
    assert!(written, "the whole stream is sent");
    sent
}

fn lines() -> String {
    let mut text = String::new();
    for case in &CASES {
        for (at, packet) in record(case) {
            let hex: String = packet.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(text, "{} {at} {hex}", case.name).expect("it is written to memory");
        }
    }
    text
}

/// Returns the packets of a case in a file, with their times in ms.
fn recorded(text: &str, case: &Case) -> Vec<Sent> {
    let packets = text.lines().filter_map(|line| {
        let (at, hex) = line.strip_prefix(case.name)?.strip_prefix(' ')?.split_once(' ')?;
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
        Some((at.parse().expect("a time"), (0..hex.len()).step_by(2).map(byte).collect()))
    });
    packets.collect()
}

/// Changes the acknowledgement number of a packet, and its checksum with it.
fn acknowledge(packet: &mut [u8], ack: SeqNum) {
    let at = tcp_offset(packet).expect("a TCP packet") + 8;
    packet[at..at + 4].copy_from_slice(&ack.0.to_be_bytes());
    fill_checksums(packet);
}

/// Replays a record to the present receiver without the data segments `lost`, which count from 1. Returns the
/// stream and the number of losses that parity repaired.
fn replay(case: &Case, packets: &[Sent], lost: &[usize]) -> (Vec<u8>, u64) {
    let (mut receiver, listener) = receiver(case);
    let (mut data, mut own_start, mut connection) = (0, None, None);
    let (mut answer, mut read, mut buffer) = (Vec::new(), Vec::new(), [0; STREAM]);
    for (at, packet) in packets {
        let (now, mut packet) = (Instant::from_millis(*at), packet.clone());
        receiver.on_timeout(now);
        let arriving = segment(&packet);
        let is_parity = arriving.tcp.options.gentle.is_some_and(|option| option.is_encoded());
        data += usize::from(!arriving.payload.is_empty() && !is_parity);
        if !is_parity && lost.contains(&data) {
            continue;
        }
        // The present receiver chooses its own initial sequence number. The sender acknowledges nothing else.
        if let Some(start) = own_start {
            acknowledge(&mut packet, start);
        }
        receiver.on_packet(&packet, Rx::default(), now);
        while receiver.poll_transmit(now, &mut answer).is_some() {
            own_start = own_start.or(Some(segment(&answer).tcp.seq + 1));
        }
        connection = connection.or_else(|| receiver.accept(listener));
        if let Some((id, _)) = connection {
            while let Ok(more @ 1..) = receiver.read(id, &mut buffer, now) {
                read.extend_from_slice(&buffer[..more]);
            }
        }
    }
    let (id, _) = connection.expect("the handshake is complete");
    (read, receiver.conn_stats(id).expect("it is open").counters.repaired_by_parity)
}

#[test]
fn parity_of_every_release_repairs_what_the_replay_loses() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/released");
    if let Ok(version) = std::env::var("RELEASED") {
        std::fs::write(directory.join(format!("{version}.txt")), lines()).expect("the file");
    }
    let entries = std::fs::read_dir(directory).expect("the directory");
    let files: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    assert!(!files.is_empty());
    for file in files {
        let text = std::fs::read_to_string(&file).expect("text");
        for case in &CASES {
            let place = format!("{} {}", file.display(), case.name);
            let packets = recorded(&text, case);
            let (whole, repaired) = replay(case, &packets, &[]);
            assert!(whole == stream() && repaired == 0, "{place}: without losses");
            let (whole, repaired) = replay(case, &packets, case.lost);
            assert!(whole == stream(), "{place}: {} bytes arrived", whole.len());
            assert!(repaired > 0, "{place}: nothing was repaired");
        }
    }
}
