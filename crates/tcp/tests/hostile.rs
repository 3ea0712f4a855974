//! Hostile peers: each attack with a bound that is checked, and what was measured.
//!
//! `cargo test -p brisk-tcp --test hostile -- --nocapture` prints the table.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use brisk_tcp::connection::{ConnStats, State};
use brisk_tcp::stack::{Refusal, Rx};
use brisk_tcp::time::{Duration, Instant};
use brisk_tcp::{ConnId, ListenConfig, ListenerId, Stack, StackConfig};
use brisk_wire::{
    ChecksumCheck, ChecksumFill, Flags, IcmpKind, IpMeta, Packet, SeqNum, TcpHeader, emit, emit_icmp,
    fill_checksums, parse,
};

/// What a measurement must not exceed.
#[track_caller]
fn bounded(attack: &str, what: &str, bound: u64, measured: u64) {
    println!("| {attack} | {what} | {bound} | {measured} |");
    assert!(measured <= bound, "{attack}: {what} is {measured}, the bound is {bound}");
}

/// A stack with a listener on port 80, and somebody who sends it whatever he likes.
struct Scene {
    stack: Stack,
    listener: ListenerId,
    now: Instant,
    /// Segments that the stack sent: header and payload length.
    sent: Vec<(TcpHeader, usize)>,
}

/// A segment of the attacker.
#[derive(Clone, Copy, Default)]
struct Attack<'a> {
    seq: u32,
    ack: u32,
    flags: Flags,
    options: &'a [u8],
    payload: &'a [u8],
    window: Option<u16>,
    urgent: u16,
}

const SERVER: [u8; 4] = [192, 0, 2, 1];
const PEER: [u8; 4] = [198, 51, 100, 7];
const ISN: u32 = 1_000_000;

fn peer(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::from(PEER), port)
}

impl Scene {
    fn new(change: impl FnOnce(&mut StackConfig, &mut ListenConfig)) -> Scene {
        let mut config = StackConfig { addresses: vec![IpAddr::from(SERVER)], ..StackConfig::default() };
        let mut listen = ListenConfig::default();
        change(&mut config, &mut listen);
        let mut stack = Stack::new(config, 7).unwrap();
        let listener = stack.listen(SocketAddr::new(IpAddr::from(SERVER), 80), listen).unwrap();
        Scene { stack, listener, now: Instant::from_millis(1_000_000), sent: Vec::new() }
    }

    fn packet(from: SocketAddr, attack: &Attack<'_>) -> Vec<u8> {
        let header = TcpHeader {
            src_port: from.port(),
            dst_port: 80,
            seq: SeqNum(attack.seq),
            ack: SeqNum(attack.ack),
            flags: attack.flags,
            window: attack.window.unwrap_or(60_000),
            urgent: attack.urgent,
            ..TcpHeader::default()
        };
        let ip = IpMeta::new(from.ip(), IpAddr::from(SERVER));
        let mut bytes = Vec::new();
        emit(&ip, &header, &[attack.options, attack.payload], ChecksumFill::Full, &mut bytes).unwrap();
        bytes[ip.header_len() + 12] += ((attack.options.len() / 4) as u8) << 4;
        fill_checksums(&mut bytes);
        bytes
    }

    fn arrive(&mut self, from: SocketAddr, attack: Attack<'_>) {
        self.stack.on_packet(&Scene::packet(from, &attack), Rx::default(), self.now);
        self.drain();
    }

    fn drain(&mut self) {
        let mut packet = Vec::new();
        while self.stack.poll_transmit(self.now, &mut packet).is_some() {
            if let Ok(Packet::Tcp(segment)) = parse(&packet, ChecksumCheck::Trust) {
                self.sent.push((segment.tcp, segment.payload.len()));
            }
        }
        while self.stack.poll_event().is_some() {}
    }

    fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(next) = self.stack.next_timeout().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.stack.on_timeout(self.now);
            self.drain();
        }
        self.now = end;
    }

    /// A handshake with `options`; answers the connection and the stack's initial sequence number.
    fn open(&mut self, from: SocketAddr, options: &[u8]) -> (ConnId, u32) {
        self.arrive(from, Attack { seq: ISN, flags: Flags::SYN, options, ..Attack::default() });
        let isn = self.sent.last().expect("a SYN-ACK").0.seq.0;
        self.now += Duration::from_millis(100);
        let ack = Attack { seq: ISN + 1, ack: isn + 1, flags: Flags::ACK, ..Attack::default() };
        self.arrive(from, ack);
        let (id, _) = self.stack.accept(self.listener).expect("a connection");
        self.sent.clear();
        (id, isn)
    }

    fn stats(&self, id: ConnId) -> ConnStats {
        self.stack.conn_stats(id).expect("a connection")
    }

    fn write(&mut self, id: ConnId, len: usize) {
        let _ = self.stack.write(id, &vec![7; len], self.now);
        self.drain();
    }

    fn payload_sent(&self) -> u64 {
        self.sent.iter().map(|(_, len)| *len as u64).sum()
    }
}

fn ack(ack: u32) -> Attack<'static> {
    Attack { seq: ISN + 1, ack, flags: Flags::ACK, ..Attack::default() }
}

const MSS_1000: [u8; 4] = [2, 4, 3, 232];
/// MSS 1000, SACK permitted, and padding.
const WITH_SACK: [u8; 8] = [2, 4, 3, 232, 4, 2, 1, 1];

#[test]
fn a_flood_of_half_open_connections() {
    let mut scene = Scene::new(|_, _| {});
    for count in 0..50_000u32 {
        let from = SocketAddr::new(IpAddr::from(0xc633_0000u32.wrapping_add(count).to_be_bytes()), 5000);
        scene.arrive(from, Attack { seq: count, flags: Flags::SYN, options: &MSS_1000, ..Attack::default() });
    }
    bounded("half-open flood, 50000 SYNs", "connections kept", 4096, scene.stack.connections() as u64);
    let (id, _) = scene.open(peer(9), &MSS_1000);
    assert_eq!(scene.stack.state(id), Some(State::Established), "who completes the handshake gets in");
}

#[test]
fn optimistic_acknowledgements_gain_nothing() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    scene.write(id, 100_000);
    let before = scene.stats(id).cwnd;
    for step in 1..1000 {
        scene.arrive(peer(1), ack(isn + 1 + 10_000 + step * 1000));
    }
    bounded(
        "optimistic ACKs of what was never sent",
        "growth of cwnd, bytes",
        0,
        u64::from(scene.stats(id).cwnd - before),
    );
    bounded("optimistic ACKs of what was never sent", "payload sent, bytes", 10_000, scene.payload_sent());
}

#[test]
fn divided_acknowledgements_count_their_bytes() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    scene.write(id, 200_000);
    let before = scene.stats(id).cwnd;
    scene.now += Duration::from_millis(100);
    for byte in 1..=1000 {
        scene.arrive(peer(1), ack(isn + 1 + byte));
    }
    bounded(
        "ACK division, 1000 ACKs for 1000 bytes",
        "growth of cwnd, bytes",
        1000,
        u64::from(scene.stats(id).cwnd - before),
    );
}

#[test]
fn spoofed_duplicates_buy_no_more_than_the_peers_window_and_a_retransmission() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    scene.write(id, 250_000);
    scene.now += Duration::from_millis(100);
    for _ in 0..10_000 {
        scene.arrive(peer(1), ack(isn + 1));
    }
    bounded(
        "DupACK spoofing, 10000 duplicates of 10 segments",
        "payload sent, bytes",
        61_000,
        scene.payload_sent(),
    );
    bounded("DupACK spoofing", "cwnd, bytes", 10_000, u64::from(scene.stats(id).cwnd));
}

#[test]
fn a_sack_bomb_does_not_multiply_records() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &WITH_SACK);
    scene.write(id, 250_000);
    scene.now += Duration::from_millis(100);
    for count in 0..20_000u32 {
        let start = isn + 1 + 1 + (count * 7) % 9_000;
        let mut option = vec![1, 1, 5, 10];
        option.extend(start.to_be_bytes());
        option.extend((start + 1).to_be_bytes());
        scene.arrive(peer(1), Attack { options: &option, ..ack(isn + 1) });
    }
    let outstanding = scene.stack.conn_info(id).unwrap().unacked;
    bounded("SACK bomb, 20000 blocks of one byte", "records of segments", 250 + 1024, u64::from(outstanding));
}

#[test]
fn a_tiny_mss_does_not_make_a_packet_of_every_byte() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &[2, 4, 0, 1]);
    scene.write(id, 10_000);
    for _ in 0..100 {
        scene.now += Duration::from_millis(10);
        let end = scene.sent.last().map_or(isn + 1, |(tcp, len)| tcp.seq.0 + *len as u32);
        scene.arrive(peer(1), ack(end));
    }
    bounded("MSS of 1 byte, 10000 bytes written", "segments sent", 10_000 / 36 + 1, scene.sent.len() as u64);
}

#[test]
fn a_window_of_zero_for_ever_costs_a_probe_now_and_then() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    scene.arrive(peer(1), Attack { window: Some(0), ..ack(isn + 1) });
    scene.write(id, 10_000);
    for _ in 0..3600 {
        let before = scene.sent.len();
        scene.pass(Duration::from_secs(1));
        if scene.sent.len() > before {
            scene.arrive(peer(1), Attack { window: Some(0), ..ack(isn + 1) });
        }
    }
    bounded("zero window for an hour, probes answered", "segments sent", 40, scene.sent.len() as u64);
    bounded("zero window for an hour", "payload sent, bytes", 0, scene.payload_sent());
}

#[test]
fn blind_resets_and_syns_do_not_hit_and_are_answered_within_the_limit() {
    let mut scene = Scene::new(|_, _| {});
    let (id, _) = scene.open(peer(1), &MSS_1000);
    for guess in 0..10_000u32 {
        let flags = if guess % 2 == 0 { Flags::RST } else { Flags::SYN };
        let seq = ISN + 2 + guess * 6;
        scene.arrive(peer(1), Attack { seq, flags, ..Attack::default() });
    }
    assert_eq!(scene.stack.state(id), Some(State::Established));
    bounded(
        "blind RST and SYN, 10000 in the window in one instant",
        "challenge ACKs",
        1500,
        scene.sent.len() as u64,
    );
}

#[test]
fn blind_data_needs_an_acceptable_acknowledgement() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    for guess in 0..1000u32 {
        let wrong = isn.wrapping_add(0x2000_0000).wrapping_add(guess * 0x0010_0000);
        scene.arrive(peer(1), Attack { payload: b"injected", ..ack(wrong) });
    }
    bounded("blind data injection, 1000 guesses", "bytes delivered", 0, scene.stack.readable(id) as u64);
}

#[test]
fn what_can_be_read_already_does_not_change_any_more() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    let at = |seq: u32, payload| Attack { seq: ISN + 1 + seq, payload, ..ack(isn + 1) };
    scene.arrive(peer(1), at(0, b"ABCD"));
    scene.arrive(peer(1), at(2, b"xxEFGH"));
    scene.arrive(peer(1), at(0, b"yyyyyyyy"));
    let mut got = [0; 16];
    let count = scene.stack.read(id, &mut got, scene.now).unwrap();
    let changed = got[..count].iter().zip(b"ABCDEFGH").filter(|(a, b)| a != b).count();
    bounded("overlapping retransmission with other content", "bytes that were changed", 0, changed as u64);
    assert_eq!(count, 8);
}

#[test]
fn crumbs_behind_a_gap_hold_no_more_than_the_buffer() {
    let mut scene = Scene::new(|_, _| {});
    let (_, isn) = scene.open(peer(1), &WITH_SACK);
    let before = scene.stack.memory() as u64;
    for count in 0..30_000u32 {
        let crumb = Attack { seq: ISN + 3 + (count * 2) % 60_000, payload: b"x", ..ack(isn + 1) };
        scene.arrive(peer(1), crumb);
    }
    bounded(
        "30000 one-byte segments behind a gap",
        "memory of buffers, bytes",
        128 << 10,
        scene.stack.memory() as u64 - before,
    );
    bounded("30000 one-byte segments behind a gap", "acknowledgements", 30_000, scene.sent.len() as u64);
}

#[test]
fn options_that_make_no_sense_are_survived() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    let mut seed = 1u32;
    for _ in 0..20_000 {
        let mut option = [0u8; 40];
        for byte in &mut option {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (seed >> 24) as u8;
        }
        scene.arrive(peer(1), Attack { options: &option, ..ack(isn + 1) });
    }
    assert_eq!(scene.stack.state(id), Some(State::Established));
    bounded("option flood, 20000 times 40 random bytes", "answers", 20_000, scene.sent.len() as u64);
}

#[test]
fn urgent_pointers_everywhere_lose_no_bytes() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    for count in 0..1000u32 {
        let urgent = Attack {
            seq: ISN + 1 + count,
            flags: Flags::ACK | Flags::URG,
            urgent: (count * 13 % 60_000) as u16,
            payload: b"u",
            ..ack(isn + 1)
        };
        scene.arrive(peer(1), urgent);
    }
    let mut got = vec![0; 4096];
    let mut read = 0;
    while let Ok(count) = scene.stack.read(id, &mut got, scene.now) {
        read += count;
        if count == 0 {
            break;
        }
    }
    bounded("urgent flood, 1000 pointers", "bytes more than were sent", 0, read.saturating_sub(1000) as u64);
    assert!(read > 0);
}

#[test]
fn connections_that_wait_make_room_for_new_ones() {
    let mut scene = Scene::new(|config, _| config.max_connections = 500);
    for port in 1..=2000u16 {
        let (id, isn) = scene.open(peer(port), &MSS_1000);
        let _ = scene.stack.shutdown(id, scene.now);
        scene.drain();
        scene.arrive(peer(port), Attack { flags: Flags::FIN | Flags::ACK, ..ack(isn + 2) });
        scene.stack.release(id, scene.now);
        scene.drain();
    }
    bounded(
        "TIME-WAIT exhaustion, 2000 connections closed",
        "connections kept",
        500,
        scene.stack.connections() as u64,
    );
}

#[test]
fn forged_icmp_errors_are_not_believed() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    scene.write(id, 5_000);
    let before = scene.stats(id).mss;
    for guess in 0..5000u32 {
        let quoted = TcpHeader {
            src_port: 80,
            dst_port: 1,
            seq: SeqNum(isn.wrapping_add(0x1000_0000 + guess * 1000)),
            flags: Flags::ACK,
            ..TcpHeader::default()
        };
        let (mut offending, mut packet) = (Vec::new(), Vec::new());
        let ip = IpMeta::new(IpAddr::from(SERVER), IpAddr::from(PEER));
        emit(&ip, &quoted, &[&[0; 100]], ChecksumFill::Full, &mut offending).unwrap();
        let router = IpAddr::from([203, 0, 113, 1]);
        emit_icmp(router, &offending, IcmpKind::PacketTooBig { mtu: 68 }, &mut packet);
        scene.stack.on_packet(&packet, Rx::default(), scene.now);
        scene.drain();
    }
    bounded(
        "ICMP forgeries, 5000 too-big errors",
        "loss of MSS, bytes",
        0,
        u64::from(before - scene.stats(id).mss),
    );
    assert_eq!(scene.stack.stats().refused(Refusal::IcmpStale), 5000);
}

#[test]
fn fragments_are_counted_and_dropped() {
    let mut scene = Scene::new(|_, _| {});
    let mut packet = Scene::packet(peer(1), &Attack { flags: Flags::SYN, ..Attack::default() });
    packet[6] |= 0x20;
    fill_checksums(&mut packet);
    for _ in 0..1000 {
        scene.stack.on_packet(&packet, Rx::default(), scene.now);
        scene.drain();
    }
    bounded("1000 IP fragments", "connections kept", 0, scene.stack.connections() as u64);
    bounded("1000 IP fragments", "answers", 0, scene.sent.len() as u64);
}

#[test]
fn a_range_of_ports_that_is_used_up_is_an_error_and_not_a_loop() {
    let mut scene = Scene::new(|config, _| config.ephemeral_ports = 40_000..=40_099);
    let mut used = BTreeSet::new();
    let mut refused = 0;
    for _ in 0..200 {
        match scene.stack.connect(peer(443), &Default::default(), scene.now) {
            Ok(id) => {
                used.insert(scene.stack.local_addr(id));
            }
            Err(_) => refused += 1,
        }
    }
    bounded("port exhaustion, 200 opens of 100 ports", "connections", 100, used.len() as u64);
    assert_eq!((used.len(), refused), (100, 100));
}

#[test]
fn a_clock_that_steps_back_stops_nothing() {
    let mut scene = Scene::new(|_, _| {});
    let (id, isn) = scene.open(peer(1), &MSS_1000);
    scene.write(id, 50_000);
    let mut acked = isn + 1;
    for step in 0..200u64 {
        scene.now = Instant::from_millis(1_000_000 + 1000 * (step % 7));
        scene.stack.on_timeout(scene.now);
        scene.drain();
        acked = scene.sent.iter().map(|(tcp, len)| tcp.seq.0 + *len as u32).max().unwrap_or(acked).max(acked);
        scene.arrive(peer(1), ack(acked));
    }
    bounded("clock that steps back by seconds", "bytes not delivered", 0, scene.stats(id).send_queue as u64);
}

#[test]
fn syns_crossing_each_other_do_not_multiply() {
    let mut scene = Scene::new(|_, _| {});
    let id = scene.stack.connect(peer(443), &Default::default(), scene.now).unwrap();
    scene.drain();
    let local = scene.stack.local_addr(id).unwrap();
    let syn = |seq| {
        let header = TcpHeader {
            src_port: 443,
            dst_port: local.port(),
            seq: SeqNum(seq),
            flags: Flags::SYN,
            window: 1000,
            ..TcpHeader::default()
        };
        let mut bytes = Vec::new();
        emit(&IpMeta::new(IpAddr::from(PEER), local.ip()), &header, &[], ChecksumFill::Full, &mut bytes)
            .unwrap();
        bytes
    };
    for count in 0..1000 {
        scene.stack.on_packet(&syn(ISN + count), Rx::default(), scene.now);
        scene.drain();
    }
    bounded("simultaneous open storm, 1000 SYNs", "segments sent", 1000, scene.sent.len() as u64);
    bounded("simultaneous open storm", "connections", 1, scene.stack.connections() as u64);
}
