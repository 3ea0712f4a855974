//! Measures a listener with Fast Open under attack, in virtual time: the processing time of a hostile SYN,
//! the success of legitimate clients, and the maximum memory and connections of the stack.
//!
//! `cargo bench -p brisk-tcp --bench fast_open_flood`. A flood lasts ten seconds of virtual time. Meanwhile
//! 100 legitimate clients make 1000 transactions a second (100 bytes with the SYN, 5000 back, 50 ms one way).
//! The floods:
//!
//! - 50,000 SYNs a second with data and a forged cookie, from addresses drawn at random;
//! - 20,000 SYNs a second with data and one stolen cookie, from its address;
//! - the same SYNs, each followed by a reset;
//! - 50,000 blind resets a second in the names of legitimate clients, with guessed ports and numbers.

use std::collections::VecDeque;
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant as Clock};

use brisk_tcp::config::{ConnectConfig, ListenConfig, StackConfig};
use brisk_tcp::fast_open::{FastOpenConnect, FastOpenListen, FastOpenOutcome};
use brisk_tcp::stack::Rx;
use brisk_tcp::{ConnId, Event, ListenerId, Stack};
use brisk_wire::{
    ChecksumCheck, ChecksumFill, Cookie, FastOpen, Flags, Instant, IpMeta, Packet, SeqNum, TcpHeader, emit,
    parse,
};

const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 80);
/// Legitimate clients, by the last byte of their addresses.
const CLIENTS: std::ops::RangeInclusive<u8> = 1..=100;
const THIEF: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 66);
const ONE_WAY: Duration = Duration::from_millis(50);
const SECONDS: u64 = 10;
const LEGITIMATE_PER_SECOND: u64 = 1000;

/// Traffic of the attacker.
#[derive(Clone, Copy, PartialEq)]
enum Flood {
    None,
    Forged,
    Stolen,
    StolenAndReset,
    BlindReset,
}

fn client_ip(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 1, last).into()
}

struct World {
    server: Stack,
    client: Stack,
    listener: ListenerId,
    now: Instant,
    to_server: VecDeque<(Instant, Vec<u8>)>,
    to_client: VecDeque<(Instant, Vec<u8>)>,
    /// Legitimate transactions in progress: connection, start, bytes received.
    open: Vec<(ConnId, Instant, usize)>,
    opened: u64,
    took: Vec<Duration>,
    used: u64,
    max_memory: usize,
    most_connections: usize,
    packet: Vec<u8>,
    attack_time: Duration,
    attacks: u64,
}

fn main() {
    println!("flood                 SYN cost  legitimate  p50 ms  p99 ms  by SYN  memory  connections");
    for (name, flood, rate) in [
        ("none", Flood::None, 0),
        ("forged cookies", Flood::Forged, 50_000),
        ("one stolen cookie", Flood::Stolen, 20_000),
        ("stolen, with resets", Flood::StolenAndReset, 20_000),
        ("blind resets", Flood::BlindReset, 50_000),
    ] {
        World::new().run(name, flood, rate);
    }
}

impl World {
    fn new() -> World {
        let stack = |addresses: Vec<IpAddr>| {
            Stack::new(StackConfig { addresses, ..StackConfig::default() }, 1).expect("valid")
        };
        let mut server = stack(vec![SERVER.ip()]);
        let listen = ListenConfig { fast_open: Some(FastOpenListen::default()), ..ListenConfig::default() };
        let listener = server.listen(SERVER, listen).expect("free");
        World {
            server,
            client: stack(CLIENTS.map(client_ip).collect()),
            listener,
            now: Instant::from_millis(1000),
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            open: Vec::new(),
            opened: 0,
            took: Vec::new(),
            used: 0,
            max_memory: 0,
            most_connections: 0,
            packet: Vec::new(),
            attack_time: Duration::ZERO,
            attacks: 0,
        }
    }

    fn run(mut self, name: &str, flood: Flood, rate: u64) {
        CLIENTS.for_each(|_| self.open_legitimate());
        self.pass(Duration::from_secs(1));
        (self.took, self.used) = (Vec::new(), 0);
        let stolen = self.steal();
        let mut draw = 12_345u64;
        let (step, mut sent, mut opened) = (Duration::from_millis(1), 0, 0);
        for tick in 1..=SECONDS * 1000 {
            while opened < tick * LEGITIMATE_PER_SECOND / 1000 {
                self.open_legitimate();
                opened += 1;
            }
            while sent < tick * rate / 1000 {
                draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                self.attack(flood, stolen, draw);
                sent += 1;
            }
            self.pass(step);
        }
        self.pass(Duration::from_secs(3));
        self.report(name, opened);
    }

    /// Returns the cookie of the thief's own address.
    fn steal(&mut self) -> FastOpen {
        let mut tcp = self.syn(9, SeqNum(1));
        tcp.options.fast_open = Some(FastOpen::REQUEST);
        self.inject(THIEF, &tcp, &[]);
        let mut cookie = None;
        while self.server.poll_transmit(self.now, &mut self.packet).is_some() {
            if let Ok(Packet::Tcp(segment)) = parse(&self.packet, ChecksumCheck::Verify) {
                cookie = cookie.or(segment.tcp.options.fast_open);
            }
        }
        cookie.expect("the server grants one")
    }

    fn syn(&self, port: u16, seq: SeqNum) -> TcpHeader {
        let mut tcp = TcpHeader {
            src_port: port,
            dst_port: SERVER.port(),
            seq,
            flags: Flags::SYN,
            window: 65_535,
            ..TcpHeader::default()
        };
        tcp.options.mss = Some(1460);
        tcp
    }

    fn attack(&mut self, flood: Flood, stolen: FastOpen, draw: u64) {
        let (port, seq) = ((draw >> 48) as u16 | 1024, SeqNum((draw >> 16) as u32));
        let mut tcp = self.syn(port, seq);
        let from = match flood {
            Flood::None => return,
            Flood::Forged => {
                tcp.options.fast_open = Cookie::new(&draw.to_be_bytes()).map(FastOpen::with_cookie);
                Ipv4Addr::from(0x0b00_0000 | (draw >> 24) as u32 & 0x00ff_ffff)
            }
            Flood::Stolen | Flood::StolenAndReset => {
                tcp.options.fast_open = Some(stolen);
                THIEF
            }
            Flood::BlindReset => {
                let last = CLIENTS.start() + (draw >> 8) as u8 % CLIENTS.len() as u8;
                let reset = TcpHeader { flags: Flags::RST, src_port: port, ..TcpHeader::default() };
                self.inject_from(client_ip(last), &TcpHeader { seq, dst_port: SERVER.port(), ..reset }, &[]);
                self.attacks += 1;
                return;
            }
        };
        self.inject(from, &tcp, &[7; 100]);
        if flood == Flood::StolenAndReset {
            let reset =
                TcpHeader { seq: seq + 101, flags: Flags::RST, src_port: port, ..TcpHeader::default() };
            self.inject(from, &TcpHeader { dst_port: SERVER.port(), ..reset }, &[]);
        }
        self.attacks += 1;
    }

    /// Passes a packet of the attacker to the server, and adds the processing time to `attack_time`.
    fn inject(&mut self, from: Ipv4Addr, tcp: &TcpHeader, payload: &[u8]) {
        self.inject_from(from.into(), tcp, payload);
    }

    fn inject_from(&mut self, from: IpAddr, tcp: &TcpHeader, payload: &[u8]) {
        let mut packet = Vec::new();
        let ip = IpMeta::new(from, SERVER.ip());
        emit(&ip, tcp, &[payload], ChecksumFill::Full, &mut packet).expect("fits");
        let began = Clock::now();
        self.server.on_packet(black_box(&packet), Rx::default(), self.now);
        self.attack_time += began.elapsed();
    }

    fn open_legitimate(&mut self) {
        let last = CLIENTS.start() + (self.opened % CLIENTS.len() as u64) as u8;
        self.opened += 1;
        let config = ConnectConfig {
            fast_open: Some(FastOpenConnect::default()),
            local: Some(SocketAddr::new(client_ip(last), 0)),
            ..ConnectConfig::default()
        };
        if let Ok((id, _)) = self.client.connect_with_data(SERVER, &[1; 100], &config, self.now) {
            self.open.push((id, self.now, 0));
        }
    }

    /// Lets time pass, a millisecond at a time.
    fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            self.now += Duration::from_millis(1);
            while self.to_server.front().is_some_and(|(due, _)| *due <= self.now) {
                let (_, packet) = self.to_server.pop_front().expect("there is one");
                self.server.on_packet(&packet, Rx::default(), self.now);
            }
            while self.to_client.front().is_some_and(|(due, _)| *due <= self.now) {
                let (_, packet) = self.to_client.pop_front().expect("there is one");
                self.client.on_packet(&packet, Rx::default(), self.now);
            }
            for stack in [&mut self.server, &mut self.client] {
                if stack.next_timeout().is_some_and(|due| due <= self.now) {
                    stack.on_timeout(self.now);
                }
            }
            self.serve();
            self.read();
            self.transmit();
            self.max_memory = self.max_memory.max(self.server.memory());
            self.most_connections = self.most_connections.max(self.server.connections());
        }
    }

    fn serve(&mut self) {
        let mut buffer = [0; 2048];
        while let Some((id, _)) = self.server.accept(self.listener) {
            // The attacker's request is answered like any other.
            if self.server.read(id, &mut buffer, self.now).is_ok() {
                let _ = self.server.write(id, &[2; 5000], self.now);
                let _ = self.server.shutdown(id, self.now);
                self.server.release(id, self.now);
            }
        }
        while let Some(event) = self.server.poll_event() {
            if let Event::Readable(id) = event
                && self.server.read(id, &mut buffer, self.now).is_ok()
            {
                let _ = self.server.write(id, &[2; 5000], self.now);
                let _ = self.server.shutdown(id, self.now);
                self.server.release(id, self.now);
            }
        }
    }

    fn read(&mut self) {
        while self.client.poll_event().is_some() {}
        let (mut buffer, now) = ([0; 8192], self.now);
        let World { client, open, took, used, .. } = self;
        open.retain_mut(|(id, began, got)| {
            *got += client.read(*id, &mut buffer, now).unwrap_or(0);
            if *got >= 5000 {
                took.push(now.saturating_since(*began));
                let stats = client.conn_stats(*id);
                *used += u64::from(stats.is_some_and(|stats| stats.fast_open == FastOpenOutcome::Used));
                client.release(*id, now);
            }
            *got < 5000
        });
    }

    /// Drops packets that are not for the client.
    fn transmit(&mut self) {
        let due = self.now + ONE_WAY;
        while self.server.poll_transmit(self.now, &mut self.packet).is_some() {
            if self.packet.get(16..19) == Some(&[10, 0, 1]) {
                self.to_client.push_back((due, self.packet.clone()));
            }
        }
        while self.client.poll_transmit(self.now, &mut self.packet).is_some() {
            self.to_server.push_back((due, self.packet.clone()));
        }
    }

    fn report(mut self, name: &str, opened: u64) {
        self.took.sort();
        let at = |share: usize| self.took.get(self.took.len() * share / 100).map_or(0, Duration::as_millis);
        let cost = self.attack_time.as_nanos() / u128::from(self.attacks.max(1));
        println!(
            "{name:20} {cost:7} ns {:9.2} % {:7} {:7} {:6.1} % {:4} MB {:12}",
            self.took.len() as f64 * 100.0 / opened as f64,
            at(50),
            at(99),
            self.used as f64 * 100.0 / self.took.len().max(1) as f64,
            self.max_memory >> 20,
            self.most_connections,
        );
    }
}
