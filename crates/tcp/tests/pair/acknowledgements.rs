//! Every owed acknowledgement leaves within its bound, regardless of other transmissions.
//!
//! Two ends write and read at random, over a path that loses, duplicates and marks packets. A model of each
//! receiver has the acknowledgement that every arrival requires, and its deadline. Parity and window probes
//! do not count as acknowledgements. The receiver of parity reads neither the acknowledgement number nor the
//! window of parity. The peer refuses a window probe because of its sequence number.

use std::time::Duration;

use brisk_tcp::config::{
    BufferConfig, ConnectConfig, CorrectiveConfig, EcnMode, FecCode, ListenConfig, MechanismConfig,
    ProactiveConfig, TcpConfig,
};
use brisk_tcp::{ConnId, connection::ConnStats};
use brisk_wire::gentle::R_SUCC;
use brisk_wire::{ChecksumFill, Ecn, Flags, Instant, SeqNum, emit};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::harness::{A, B, Channel, Pair, Seen, Side, pattern};

/// The receive buffer, bytes: small enough to fill, and the window is not scaled.
const BUFFER: usize = 32 << 10;
const DELAY: Duration = Duration::from_millis(40);

/// The acknowledgement that an arrival requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    /// An acknowledgement up to this number.
    Ack,
    /// A SACK block that begins at or before this range and covers it.
    Sack(SeqNum, SeqNum),
    /// ECE.
    Echo,
    /// The report of a repair.
    Repair,
    /// A window of more than this many bytes.
    Window(u32),
}

#[derive(Clone, Copy, Debug)]
struct Owed {
    wanted: Wanted,
    up_to: SeqNum,
    by: Instant,
}

/// The data that one end has received, and the acknowledgements it owes.
struct Receiver {
    first: SeqNum,
    /// Ranges that have arrived, as offsets from `first`, ascending and disjoint.
    got: Vec<(u32, u32)>,
    echoes: bool,
    owed: Vec<Owed>,
    /// The right edge of the window that the peer knows.
    edge: SeqNum,
    /// The highest sequence number that was sent.
    nxt: SeqNum,
    /// Bytes that the application has read.
    read: usize,
}

impl Receiver {
    fn new(first: SeqNum, nxt: SeqNum, edge: SeqNum) -> Receiver {
        Receiver { first, got: vec![(0, 0)], echoes: false, owed: Vec::new(), edge, nxt, read: 0 }
    }

    fn rcv_nxt(&self) -> SeqNum {
        self.first + self.got[0].1
    }

    fn has(&self, from: u32, to: u32) -> bool {
        self.got.iter().any(|&(start, end)| start <= from && to <= end)
    }

    fn insert(&mut self, from: u32, to: u32) {
        let (mut from, mut to) = (from, to);
        self.got.retain(|&(start, end)| {
            let apart = end < from || to < start;
            if !apart {
                (from, to) = (from.min(start), to.max(end));
            }
            apart
        });
        self.got.push((from, to));
        self.got.sort_unstable();
    }

    fn owe(&mut self, wanted: Wanted, by: Instant) {
        self.owed.push(Owed { wanted, up_to: self.rcv_nxt(), by });
    }

    /// Records a segment of the peer. `copies`: the peer sends copies, so repetitions may be dropped
    /// silently.
    fn on_arrival(&mut self, seen: &Seen, copies: bool) {
        let parity = seen.tcp.options.gentle.is_some_and(|option| option.is_encoded());
        if parity || seen.len == 0 {
            return;
        }
        let (start, end) = (seen.tcp.seq, seen.tcp.seq + seen.len as u32);
        let (from, to) = (start.since(self.first), end.since(self.first));
        if self.has(from, to) {
            if !copies {
                self.owe(Wanted::Sack(start, end), seen.at);
            }
            return;
        }
        let had_holes = self.got.len() > 1;
        let expected = self.rcv_nxt();
        self.insert(from, to);
        let above_a_hole = start.gt(expected);
        if above_a_hole {
            self.owe(Wanted::Sack(start, end), seen.at);
        }
        let now = had_holes || above_a_hole;
        self.owe(Wanted::Ack, if now { seen.at } else { seen.at + DELAY });
        self.echoes &= !seen.tcp.flags.contains(Flags::CWR);
        if seen.ecn == Ecn::Ce && !core::mem::replace(&mut self.echoes, true) {
            self.owe(Wanted::Echo, seen.at);
        }
    }

    /// Records a segment that left.
    fn on_sent(&mut self, seen: &Seen) {
        let tcp = &seen.tcp;
        let probe = seen.len == 0 && tcp.seq != self.nxt;
        self.nxt = self.nxt.max(tcp.seq + seen.len as u32);
        if probe || tcp.options.gentle.is_some_and(|option| option.is_encoded()) {
            return;
        }
        let blocks: Vec<_> = tcp.options.sack.iter().map(|block| (block.start, block.end)).collect();
        let flags = tcp.options.gentle.and_then(|option| option.flags()).unwrap_or(0);
        self.edge = self.edge.max(tcp.ack + u32::from(tcp.window));
        self.owed.retain(|owed| {
            let answered = match owed.wanted {
                Wanted::Ack => true,
                Wanted::Sack(start, end) => blocks.iter().any(|&(from, to)| from.le(start) && end.le(to)),
                Wanted::Echo => tcp.flags.contains(Flags::ECE),
                Wanted::Repair => flags & R_SUCC != 0,
                Wanted::Window(least) => u32::from(tcp.window) > least,
            };
            !(answered && owed.up_to.le(tcp.ack))
        });
        // Acknowledgements show which bytes were rebuilt.
        self.insert(0, tcp.ack.since(self.first));
        for (from, to) in blocks.into_iter().filter(|(from, _)| tcp.ack.le(*from)) {
            self.insert(from.since(self.first), to.since(self.first));
        }
    }
}

/// Two ends and the models of them.
struct Watched {
    pair: Pair,
    ids: [ConnId; 2],
    models: [Receiver; 2],
    repaired: [u64; 2],
    copies: bool,
    /// Lengths of [`Pair::seen`] and [`Pair::arrived`] that have been processed.
    looked_at: (usize, usize),
}

fn number(side: Side) -> usize {
    usize::from(side == B)
}

impl Watched {
    fn new(seed: u64, tcp: &TcpConfig) -> Watched {
        let mut pair = Pair::new(seed);
        let listener = pair.listen(B, 80, ListenConfig { tcp: tcp.clone(), ..ListenConfig::default() });
        let connect = ConnectConfig { tcp: tcp.clone(), ..ConnectConfig::default() };
        let (at_a, at_b) = pair.established_at(listener, &connect);
        pair.run_ms(500);
        // The handshake has shown the sequence numbers and the windows.
        let last = |side| pair.seen.iter().rev().find(|seen| seen.from == side).expect("it took part");
        let nxt = |side| last(side).tcp.seq + u32::from(last(side).tcp.flags.contains(Flags::SYN));
        let models = [A, B].map(|side| {
            let edge = last(side).tcp.ack + u32::from(last(side).tcp.window);
            Receiver::new(nxt(side.other()), nxt(side), edge)
        });
        let looked_at = (pair.seen.len(), pair.arrived.len());
        let copies = tcp.mechanisms.proactive.is_some();
        Watched { pair, ids: [at_a, at_b], models, repaired: [0; 2], copies, looked_at }
    }

    fn stats(&mut self, side: Side) -> ConnStats {
        let id = self.ids[number(side)];
        self.pair.stack(side).conn_stats(id).expect("open")
    }

    /// Lets time pass up to `end`, and checks after each instant.
    fn run(&mut self, end: Instant, what: &str) {
        while self.pair.step(end) {
            self.check(what);
        }
        self.check(what);
        self.pair.now = end;
    }

    fn check(&mut self, what: &str) {
        let (mut sent, mut arrived) = self.looked_at;
        for side in [A, B] {
            let repaired = self.stats(side).counters.repaired_by_parity;
            let model = &mut self.models[number(side)];
            if core::mem::replace(&mut self.repaired[number(side)], repaired) < repaired {
                model.owe(Wanted::Repair, self.pair.now);
            }
        }
        while sent < self.pair.seen.len() || arrived < self.pair.arrived.len() {
            match self.pair.arrived.get(arrived).filter(|(before, _)| *before <= sent) {
                Some((_, seen)) => {
                    self.models[number(seen.from.other())].on_arrival(seen, self.copies);
                    arrived += 1;
                }
                None => {
                    let seen = &self.pair.seen[sent];
                    self.models[number(seen.from)].on_sent(seen);
                    sent += 1;
                }
            }
        }
        self.looked_at = (sent, arrived);
        for side in [A, B] {
            let late = self.models[number(side)].owed.iter().find(|owed| owed.by <= self.pair.now);
            assert!(late.is_none(), "{what}: at {:?} {side:?} owes {late:?}", self.pair.now);
        }
    }

    fn write(&mut self, side: Side, len: usize) {
        let id = self.ids[number(side)];
        let _ = self.pair.write(side, id, &pattern(len));
    }

    /// Reads `len` bytes. If this at least doubles the window, the new window must be announced at once.
    fn read(&mut self, side: Side, len: usize) {
        let (id, now) = (self.ids[number(side)], self.pair.now);
        let read = self.pair.stack(side).read(id, &mut vec![0; len], now).unwrap_or(0);
        let model = &mut self.models[number(side)];
        model.read += read;
        let window = model.edge.since(model.rcv_nxt());
        let free = (BUFFER + model.read) as u32 - model.got[0].1;
        // Windows that are not scaled are announced in whole segments.
        if read > 0 && model.got.len() == 1 && free > (2 * window + 3_000).max(BUFFER as u32 / 2) {
            model.owe(Wanted::Window(window), now);
        }
    }
}

/// The mechanisms of one run, and the faults of the path.
fn settings(chance: &mut ChaCha8Rng) -> (TcpConfig, Channel) {
    let mut below = |limit: u32| chance.next_u32() % limit;
    let corrective = CorrectiveConfig {
        code: [FecCode::Xor, FecCode::ReedSolomon][below(2) as usize],
        parities: 1 + below(2) as u8,
        tail_ack: below(2) == 0,
        ..CorrectiveConfig::default()
    };
    let planned = TcpConfig::planned(100).mechanisms;
    let mechanisms = match below(6) {
        0 => MechanismConfig::default(),
        1 => MechanismConfig { proactive: Some(ProactiveConfig::default()), ..MechanismConfig::default() },
        2 => planned,
        _ => MechanismConfig { corrective: Some(corrective), ..MechanismConfig::default() },
    };
    let receive_buffer = BufferConfig { initial: BUFFER, max: BUFFER };
    let nodelay = below(2) == 0;
    let ecn = if below(2) == 0 { EcnMode::On } else { EcnMode::Off };
    let tcp =
        TcpConfig { delack_max: DELAY, mechanisms, receive_buffer, nodelay, ecn, ..TcpConfig::default() };
    let channel = Channel {
        delay: Duration::from_millis(u64::from(5 + below(40))),
        loss: [0, 20, 60][below(3) as usize],
        duplicate: [0, 30][below(2) as usize],
        ..Channel::default()
    };
    (tcp, channel)
}

#[test]
fn every_owed_acknowledgement_leaves_within_its_bound() {
    let mut seen = 0;
    for seed in 0..60 {
        let mut chance = ChaCha8Rng::seed_from_u64(seed);
        let (tcp, channel) = settings(&mut chance);
        let what = format!("seed {seed}, {:?}", tcp.mechanisms);
        let mut watched = Watched::new(seed, &tcp);
        watched.pair.channel = channel;
        let mut marks = ChaCha8Rng::seed_from_u64(!seed);
        watched.pair.mangle = Some(Box::new(move |_, segment| {
            if segment.ip.ecn != Ecn::Ect0 || !marks.next_u32().is_multiple_of(20) {
                return None;
            }
            let (mut ip, mut marked) = (segment.ip, Vec::new());
            ip.ecn = Ecn::Ce;
            emit(&ip, &segment.tcp, &[segment.payload], ChecksumFill::Full, &mut marked).ok()?;
            Some(vec![marked])
        }));
        for _ in 0..400 {
            let side = if chance.next_u32().is_multiple_of(2) { A } else { B };
            match chance.next_u32() % 8 {
                0 => watched.read(side, 1 + chance.next_u32() as usize % BUFFER),
                1 => watched.write(side, 1 + chance.next_u32() as usize % 12_000),
                _ => watched.write(side, 1 + chance.next_u32() as usize % 2_000),
            }
            let next = watched.pair.now + Duration::from_millis(u64::from(chance.next_u32() % 12));
            watched.run(next, &what);
        }
        seen += watched.stats(A).counters.parity.sent.min(watched.stats(B).counters.parity.sent);
    }
    assert!(seen > 1_000, "parity took part: {seen}");
}
