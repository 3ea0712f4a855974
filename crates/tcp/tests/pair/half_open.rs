//! A half-open connection may be kept whole or as a record. The packets are the same, however many are kept
//! whole.

use std::collections::BTreeMap;
use std::time::Duration;

use brisk_tcp::config::{
    EcnMode, HandshakeCopies, ListenConfig, MechanismConfig, PlannerConfig, SynCookies, TcpConfig,
};
use brisk_tcp::connection::ConnStats;
use brisk_tcp::fast_open::FastOpenListen;
use brisk_tcp::stack::Rx;
use brisk_tcp::time::Instant;
use brisk_tcp::{ListenerId, Stack, StackConfig};
use brisk_wire::{
    ChecksumCheck, ChecksumFill, FastOpen, Flags, IpMeta, Options, SeqNum, TcpHeader, Timestamps,
};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::harness::{B, stack_config};

const CLIENTS: u16 = 6;
const STEPS: usize = 60;

/// Trace of a run, by the port of the client.
#[derive(PartialEq, Debug, Default)]
struct Trace {
    packets: BTreeMap<u16, Vec<(Instant, Vec<u8>)>>,
    accepted: BTreeMap<u16, Vec<Option<ConnStats>>>,
}

/// A server, and clients that send random segments.
struct Scene {
    server: Stack,
    listener: ListenerId,
    now: Instant,
    rng: ChaCha8Rng,
    trace: Trace,
    /// The SYN of each client, and the sequence number of its last answer.
    syns: BTreeMap<u16, (TcpHeader, Option<SeqNum>)>,
}

impl Scene {
    fn new(seed: u64, warm_half_open: usize) -> Scene {
        let config = StackConfig { warm_half_open, any_address: true, ..stack_config(B) };
        let mut server = Stack::new(config, 7).expect("the configuration is valid");
        let planner = seed.is_multiple_of(7).then_some(PlannerConfig::ONE_SIDED);
        let tcp = TcpConfig {
            handshake_copies: planner.map(|_| HandshakeCopies::default()),
            mechanisms: MechanismConfig { planner, ..MechanismConfig::default() },
            ecn: if seed.is_multiple_of(3) { EcnMode::Passive } else { EcnMode::Off },
            timestamps: !seed.is_multiple_of(5),
            ..TcpConfig::default()
        };
        let listen = ListenConfig {
            tcp,
            backlog: 4,
            syn_cookies: SynCookies::Off,
            fast_open: seed.is_multiple_of(2).then(FastOpenListen::default),
            ..ListenConfig::default()
        };
        let listener = server.listen(B.addr(80), listen).expect("the port is free");
        Scene {
            server,
            listener,
            now: Instant::ZERO,
            rng: ChaCha8Rng::seed_from_u64(seed),
            trace: Trace::default(),
            syns: BTreeMap::new(),
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng.next_u64() % n
    }

    fn chance(&mut self) -> bool {
        self.below(2) == 0
    }

    fn new_syn(&mut self, port: u16) -> TcpHeader {
        let classic = Flags::ECE | Flags::CWR;
        let ecn = [Flags::NONE, Flags::NONE, classic, classic | Flags::AE][self.below(4) as usize];
        let mss = 500 + self.below(1_000) as u16;
        let options = Options {
            mss: self.chance().then_some(mss),
            window_scale: self.chance().then_some(7),
            sack_permitted: self.chance(),
            timestamps: self.chance().then_some(Timestamps { value: 5, echo: 0 }),
            fast_open: (self.below(4) == 0).then_some(FastOpen::REQUEST),
            ..Options::default()
        };
        TcpHeader {
            src_port: port,
            dst_port: 80,
            seq: SeqNum(self.rng.next_u32()),
            flags: Flags::SYN | ecn,
            window: self.rng.next_u32() as u16,
            options,
            ..TcpHeader::default()
        }
    }

    fn send(&mut self, tcp: &TcpHeader, payload: &[u8]) {
        let ip = IpMeta::new([10, 9, 0, 1].into(), B.addr(80).ip());
        let mut packet = Vec::new();
        brisk_wire::emit(&ip, tcp, &[payload], ChecksumFill::Full, &mut packet).expect("it fits");
        self.server.on_packet(&packet, Rx::default(), self.now);
    }

    /// Records the packets that the server sends.
    fn drain(&mut self) {
        let mut packet = Vec::new();
        while self.server.poll_transmit(self.now, &mut packet).is_some() {
            let Ok(brisk_wire::Packet::Tcp(segment)) = brisk_wire::parse(&packet, ChecksumCheck::Verify)
            else {
                panic!("a segment")
            };
            if let Some((_, answered)) = self.syns.get_mut(&segment.tcp.dst_port) {
                *answered =
                    Some(segment.tcp.seq).filter(|_| segment.tcp.flags.contains(Flags::SYN)).or(*answered);
            }
            let port = segment.tcp.dst_port;
            self.trace.packets.entry(port).or_default().push((self.now, packet.clone()));
        }
    }

    /// Sends a random segment of one client.
    fn speak(&mut self) {
        let port = 1_000 + self.below(CLIENTS.into()) as u16;
        let Some((syn, answered)) = self.syns.get(&port).cloned() else {
            let syn = self.new_syn(port);
            self.syns.insert(port, (syn.clone(), None));
            let payload = if self.below(4) == 0 { &[1; 9][..] } else { &[] };
            return self.send(&syn, payload);
        };
        let Some(iss) = answered else { return self.send(&syn, &[]) };
        let timestamps = syn.options.timestamps.map(|_| Timestamps { value: 6, echo: 0 });
        let options = Options { timestamps, ..Options::default() };
        let ack = TcpHeader { flags: Flags::ACK, seq: syn.seq + 1, ack: iss + 1, options, ..syn.clone() };
        match self.below(9) {
            0 | 1 => self.send(&syn, &[]),
            2 => self.send(&ack, &[]),
            3 => self.send(&ack, &[3; 50]),
            4 => self.send(&TcpHeader { ack: iss + 7, ..ack }, &[]),
            5 => self.send(&TcpHeader { seq: ack.seq - 9, ..ack }, &[]),
            6 => self.send(&TcpHeader { flags: Flags::RST, seq: ack.seq + 4, ..ack }, &[]),
            7 if self.chance() => {
                self.send(&TcpHeader { flags: Flags::RST, ..ack }, &[]);
                self.syns.remove(&port);
            }
            _ => {}
        }
    }

    /// Lets time pass. The driver is late by a random time.
    fn wait(&mut self) {
        let most = [1_000, 100_000, 3_000_000, 20_000_000][self.below(4) as usize];
        let wait = self.below(most);
        self.now += Duration::from_micros(wait);
        if self.server.next_timeout().is_some_and(|at| at <= self.now) {
            self.server.on_timeout(self.now);
        }
    }

    fn accept(&mut self) {
        while let Some((id, remote)) = self.server.accept(self.listener) {
            self.trace.accepted.entry(remote.port()).or_default().push(self.server.conn_stats(id));
        }
    }
}

fn conversation(seed: u64, warm_half_open: usize) -> Trace {
    let mut scene = Scene::new(seed, warm_half_open);
    for _ in 0..STEPS {
        for _ in 0..scene.below(4) {
            scene.speak();
        }
        scene.drain();
        scene.wait();
        let late = scene.below(2_000);
        scene.now += Duration::from_micros(late);
        scene.drain();
        if scene.chance() {
            scene.accept();
        }
    }
    scene.trace
}

#[test]
fn packets_do_not_depend_on_the_number_of_whole_half_open_ones() {
    compare(0..60);
}

#[test]
#[ignore = "a thousand conversations take minutes: run it by hand, in release"]
fn however_many_are_kept_whole_a_thousand_conversations_are_the_same() {
    compare(0..1_000);
}

fn compare(seeds: core::ops::Range<u64>) {
    let (mut packets, mut accepted) = (0, 0);
    for seed in seeds.clone() {
        let whole = conversation(seed, usize::MAX);
        for warm in [0, 1, 3] {
            assert_eq!(conversation(seed, warm), whole, "seed {seed}, {warm} kept whole");
        }
        packets += whole.packets.values().map(Vec::len).sum::<usize>();
        accepted += whole.accepted.values().map(Vec::len).sum::<usize>();
    }
    let runs = seeds.count();
    assert!(packets > 16 * runs && accepted > runs, "{packets} packets, {accepted} accepted");
}

#[test]
fn a_listener_that_closes_forgets_all_of_its_half_open_connections() {
    let mut scene = Scene::new(1, 2);
    for port in 1_000..1_020 {
        let syn = TcpHeader { options: Options::default(), ..scene.new_syn(port) };
        scene.send(&syn, &[]);
        scene.drain();
    }
    assert_eq!((scene.server.half_open(), scene.server.connections()), (20, 20));
    scene.server.close_listener(scene.listener, scene.now);
    scene.trace = Trace::default();
    scene.drain();
    assert_eq!(scene.server.connections(), 0);
    // A client that continues the handshake is then answered by a reset (Linux: the same).
    assert_eq!(scene.trace.packets.values().flatten().count(), 0);
    let again = scene.server.listen(B.addr(80), ListenConfig::default());
    assert!(again.is_ok(), "the port is free");
}

#[test]
fn repeated_syns_of_half_open_connections_are_answered_twice_a_second() {
    for warm in [0, 10] {
        let mut scene = Scene::new(1, warm);
        let syn = scene.new_syn(1_000);
        for _ in 0..5 {
            scene.send(&syn, &[]);
            scene.drain();
        }
        assert_eq!(scene.trace.packets[&1_000].len(), 2, "the first SYN and its first repetition");
        scene.now += Duration::from_millis(500);
        scene.send(&syn, &[]);
        scene.drain();
        assert_eq!(scene.trace.packets[&1_000].len(), 3);
    }
}
