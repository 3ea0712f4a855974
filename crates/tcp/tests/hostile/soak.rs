//! Churn in virtual time. Two stacks exist throughout, while connections with random mechanisms open and
//! close over random links with faults. Every byte that arrives is checked. No state may remain between
//! epochs.
//!
//! `BRISK_SOAK_SECONDS=3600 cargo test --release -p brisk-tcp --test hostile soak -- --ignored --nocapture`

use std::time::{Duration, Instant};

use brisk_tcp::config::{
    CongestionAlgorithm, ConnectConfig, CorrectiveConfig, EcnMode, ListenConfig, MtuProbing, PacingConfig,
    PlannerConfig, ProactiveConfig, Reactive, StackConfig, TcpConfig,
};
use brisk_tcp::error::WriteError;
use brisk_tcp::fast_open::{FastOpenConnect, FastOpenListen};
use brisk_tcp::{ConnId, ListenerId};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use crate::bounded;
use crate::harness::{A, B, Channel, Pair, Side, pattern, stack_config};

/// Maximum stream length of one direction, bytes.
const LONGEST: u32 = 150_000;
/// Time that covers TIME-WAIT and every timeout of a peer that has vanished.
const CALM: Duration = Duration::from_secs(3600);

/// The way in which an application ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// It closes after its last write and reads to the end.
    Orderly,
    /// It resets in the middle.
    Abort,
    /// It releases the connection in the middle.
    Leave,
}

struct End {
    side: Side,
    id: ConnId,
    /// Bytes to send, at an offset into the pattern; then bytes written and read.
    size: usize,
    written: usize,
    read: usize,
    ending: Ending,
    gone: bool,
}

struct Soak {
    pair: Pair,
    chance: ChaCha8Rng,
    data: Vec<u8>,
    ends: Vec<End>,
    opened: u64,
    bytes: u64,
}

impl Soak {
    fn new(seed: u64) -> Soak {
        let config = |side| StackConfig {
            max_connections: 64,
            max_buffer_bytes: 4 << 20,
            max_super_segment: if side == A { 65_000 } else { 0 },
            ..stack_config(side)
        };
        let mut pair = Pair::with_configs(seed, config(A), config(B));
        pair.record = false;
        let data = pattern(LONGEST as usize);
        Soak { pair, chance: ChaCha8Rng::seed_from_u64(seed), data, ends: Vec::new(), opened: 0, bytes: 0 }
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.chance.next_u32() % bound
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.below(count) == 0
    }

    fn tcp(&mut self) -> TcpConfig {
        let mut tcp = match self.below(4) {
            #[cfg(feature = "historical")]
            0 => TcpConfig::of_2012_with_reactive(),
            _ => TcpConfig::default(),
        };
        if self.one_in(4) {
            tcp.mechanisms.reactive = Reactive::Off;
        }
        tcp.mechanisms.corrective = self.one_in(2).then(CorrectiveConfig::default);
        tcp.mechanisms.proactive = self.one_in(3).then(ProactiveConfig::default);
        let both = tcp.mechanisms.corrective.is_some() && tcp.mechanisms.proactive.is_some();
        tcp.mechanisms.planner = (both && self.one_in(2)).then(PlannerConfig::default);
        TcpConfig {
            congestion: if self.one_in(3) { CongestionAlgorithm::Reno } else { CongestionAlgorithm::Cubic },
            timestamps: !self.one_in(4),
            sack: !self.one_in(4),
            window_scaling: !self.one_in(4),
            ecn: if self.one_in(2) { EcnMode::On } else { EcnMode::Off },
            nodelay: self.one_in(2),
            pacing: self.one_in(3).then(PacingConfig::default),
            mtu_probing: if self.one_in(3) { MtuProbing::Always } else { MtuProbing::OnBlackHole },
            retries: 6,
            ..tcp
        }
    }

    fn channel(&mut self) -> Channel {
        Channel {
            delay: Duration::from_millis(u64::from(1 + self.below(100))),
            jitter: Duration::from_millis(u64::from(self.below(20))),
            loss: [0, 10, 50, 150, 1000][self.below(5) as usize],
            duplicate: [0, 0, 20][self.below(3) as usize],
        }
    }

    /// Chooses the behaviour of an application of `side` on a connection.
    fn end(&mut self, side: Side, id: ConnId) -> End {
        let size = if self.one_in(3) { self.below(LONGEST) } else { self.below(3_000) } as usize;
        let ending = match self.below(8) {
            0 => Ending::Abort,
            1 => Ending::Leave,
            _ => Ending::Orderly,
        };
        End { side, id, size, written: 0, read: 0, ending, gone: false }
    }

    /// Makes all calls that an application can make now. Returns false once it has ended.
    fn act(&mut self, index: usize) {
        let End { side, id, size, ending, .. } = self.ends[index];
        let now = self.pair.now;
        while self.ends[index].written < size {
            let from = self.ends[index].written;
            match self.pair.stack(side).write(id, &self.data[from..size], now) {
                Ok(count) => self.ends[index].written += count,
                Err(WriteError::WouldBlock) => break,
                Err(_) => self.ends[index].gone = true,
            }
            if self.ends[index].gone {
                break;
            }
        }
        match self.pair.read(side, id) {
            Ok(Some(got)) => {
                let from = self.ends[index].read;
                assert!(got == self.data[from..from + got.len()], "bytes arrive once and in order");
                self.ends[index].read += got.len();
                self.bytes += got.len() as u64;
            }
            Ok(None) if self.ends[index].written == size => self.ends[index].gone = true,
            Ok(None) => {}
            Err(_) => self.ends[index].gone = true,
        }
        if self.ends[index].written == size {
            let _ = self.pair.stack(side).shutdown(id, now);
        }
        let halfway = self.ends[index].written + self.ends[index].read > size / 2;
        match ending {
            Ending::Abort if halfway => {
                self.pair.abort(side, id);
                self.ends[index].gone = true;
            }
            Ending::Leave if halfway => self.ends[index].gone = true,
            Ending::Abort | Ending::Leave | Ending::Orderly => {}
        }
        if self.ends[index].gone {
            self.pair.release(side, id);
        }
    }

    fn accept(&mut self, side: Side, listener: ListenerId) {
        while let Some((id, _)) = self.pair.stack(side).accept(listener) {
            let end = self.end(side, id);
            self.ends.push(end);
        }
    }

    /// Runs a link, a listener and some connections. All of them end, and then no state may remain.
    fn epoch(&mut self, number: u64) {
        let (server, port) = (if self.one_in(2) { A } else { B }, 1000 + (number % 50_000) as u16);
        self.pair.channel = self.channel();
        let fast_open = self.one_in(2).then(FastOpenListen::default);
        let listen = ListenConfig { tcp: self.tcp(), fast_open, ..ListenConfig::default() };
        let listener = self.pair.listen(server, port, listen);
        for _ in 0..1 + self.below(12) {
            let fast_open = self.one_in(2).then(FastOpenConnect::default);
            let connect = ConnectConfig { tcp: self.tcp(), fast_open, ..ConnectConfig::default() };
            let id = self.pair.connect_with(server.other(), port, &connect);
            let end = self.end(server.other(), id);
            self.ends.push(end);
            self.opened += 1;
        }
        for slice in 0..200u64 {
            self.pair.run_ms(1 + slice * 3);
            self.accept(server, listener);
            (0..self.ends.len()).for_each(|index| self.act(index));
            self.ends.retain(|end| !end.gone);
            if slice % 50 == 49 && self.one_in(2) {
                self.pair.channel = self.channel();
            }
        }
        let now = self.pair.now;
        self.pair.stack(server).close_listener(listener, now);
        for end in std::mem::take(&mut self.ends) {
            self.pair.release(end.side, end.id);
        }
        self.pair.channel = Channel::default();
        self.pair.run(CALM);
        self.pair.events.clear();
        for side in [A, B] {
            let stack = self.pair.stack(side);
            let left = (stack.connections(), stack.time_waits(), stack.memory(), stack.repair_memory());
            assert_eq!(left, (0, 0, 0, 0), "epoch {number}: connections, TIME-WAITs, bytes at {side:?}");
        }
    }
}

/// Returns the resident bytes of the process, if the system reports them.
fn resident() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * 4096)
}

#[test]
fn a_few_epochs_of_churn_leave_nothing() {
    let mut soak = Soak::new(1);
    (0..8).for_each(|number| soak.epoch(number));
    assert!(soak.opened > 20 && soak.bytes > 100_000, "{} connections, {} bytes", soak.opened, soak.bytes);
}

#[test]
#[ignore = "runs for BRISK_SOAK_SECONDS, ten minutes if unset"]
fn hours_of_churn_leave_nothing() {
    let seconds = std::env::var("BRISK_SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(600);
    let (began, mut settled) = (Instant::now(), None);
    let mut soak = Soak::new(2);
    let mut epochs = 0;
    while began.elapsed() < Duration::from_secs(seconds) {
        soak.epoch(epochs);
        epochs += 1;
        // The initial growth of the tables is not counted.
        if settled.is_none() && began.elapsed() > Duration::from_secs(seconds / 10) {
            settled = resident();
        }
    }
    let hours =
        soak.pair.now.saturating_since(brisk_tcp::time::Instant::from_millis(1_000_000)).as_secs() / 3600;
    println!("{epochs} epochs, {} connections, {} bytes, {hours} h of virtual time", soak.opened, soak.bytes);
    let (first, last) = (settled.unwrap_or(0), resident().unwrap_or(0));
    println!("resident after a tenth of the time: {first} bytes; at the end: {last} bytes");
    bounded("soak", "growth of memory after the first tenth, bytes", 8 << 20, last.saturating_sub(first));
}
