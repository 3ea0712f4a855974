//! Two connections, a virtual clock and a wire of 50 ms each way, without stacks around the connections.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use std::vec;

use brisk_wire::{ChecksumCheck, Flags, Packet, SeqNum};

use super::{Connection, Env, Host, Secrets, State};
use crate::config::{CongestionAlgorithm, TcpConfig};
use crate::error::{CloseReason, ReadError};
use crate::four_tuple::FourTuple;
use crate::outcome::Arrived;
use crate::time::{Duration, Instant};

mod gentle;
mod model;
mod reactive;
mod recovery;

const HOST: Host = Host { mtu: 1500, granularity: Duration::from_micros(1), accepts_parity: true };
const ONE_WAY: Duration = Duration::from_millis(50);

/// The two ends.
const C: usize = 0;
const S: usize = 1;

struct World {
    now: Instant,
    ends: [Option<Connection>; 2],
    config: [Arc<TcpConfig>; 2],
    flying: VecDeque<(Instant, usize, Vec<u8>)>,
    /// Every packet sent, with its sender.
    log: Vec<(Instant, usize, Flags, u32, u32, usize)>,
    /// True if the n-th packet of an end is lost.
    lose: fn(usize, usize) -> bool,
    count: [usize; 2],
    /// Additional delay of each end's packets.
    hold: [Duration; 2],
    /// Additional delay of the n-th packet of an end, milliseconds.
    late: fn(usize, usize) -> u64,
    /// Random faults of packets, if any.
    faults: Option<model::PacketFaults>,
    super_segment: u32,
}

/// Frees the memory of an idle connection and checks that its state does not change.
fn release_changes_nothing(connection: &mut Connection) {
    if connection.is_idle() {
        let before = std::format!("{connection:?}");
        connection.release_memory();
        assert_eq!(std::format!("{connection:?}"), before);
    }
}

impl World {
    fn new(config: TcpConfig) -> World {
        let config = Arc::new(config);
        let tuple =
            FourTuple { local: "10.0.0.1:1000".parse().unwrap(), remote: "10.0.0.2:80".parse().unwrap() };
        let secrets = Secrets { iss: SeqNum(u32::MAX - 5000), ts_offset: 77 };
        let client = *Connection::connect(tuple, &config, secrets, HOST, Instant::ZERO);
        World {
            now: Instant::ZERO,
            ends: [Some(client), None],
            config: [Arc::clone(&config), config],
            flying: VecDeque::new(),
            log: vec![],
            lose: |_, _| false,
            count: [0, 0],
            hold: [Duration::ZERO; 2],
            late: |_, _| 0,
            faults: None,
            super_segment: 0,
        }
    }

    /// Delays the later packets of `who` by `longer`.
    fn hold_from(&mut self, who: usize, longer: Duration) {
        self.hold[who] = longer;
    }

    fn end(&mut self, who: usize) -> &mut Connection {
        self.ends[who].as_mut().unwrap()
    }

    fn drain(&mut self) {
        for who in [C, S] {
            let Some(connection) = self.ends[who].as_mut() else { continue };
            let mut permit = |_| true;
            let env = Env {
                challenge: &mut permit,
                super_segment: self.super_segment,
                sends_twice: false,
                partial_checksum: false,
                payload_in_place: false,
            };
            let mut out = vec![];
            while let Some(built) = connection.poll_transmit(self.now, &env, &mut out) {
                let mut packets = vec![];
                match built.segment_size {
                    Some(size) => brisk_wire::split(&out, size, brisk_wire::ChecksumFill::Full, &mut |p| {
                        packets.push(p.to_vec())
                    }),
                    None => packets.push(out.clone()),
                }
                for packet in packets {
                    let Ok(Packet::Tcp(segment)) = brisk_wire::parse(&packet, ChecksumCheck::Verify) else {
                        panic!("we sent something that does not parse");
                    };
                    let tcp = &segment.tcp;
                    self.log.push((self.now, who, tcp.flags, tcp.seq.0, tcp.ack.0, segment.payload.len()));
                    self.count[who] += 1;
                    if !(self.lose)(who, self.count[who]) {
                        let late = Duration::from_millis((self.late)(who, self.count[who]));
                        let at = self.now + ONE_WAY + self.hold[who] + late;
                        let copies = match &mut self.faults {
                            Some(faults) => faults.delays(who, self.now),
                            None => arrayvec::ArrayVec::from_iter([Duration::ZERO]),
                        };
                        for later in copies {
                            let place = self.flying.partition_point(|(other, ..)| *other <= at + later);
                            self.flying.insert(place, (at + later, 1 - who, packet.clone()));
                        }
                    }
                }
            }
        }
    }

    fn deliver(&mut self, to: usize, packet: &[u8]) {
        let Ok(Packet::Tcp(segment)) = brisk_wire::parse(packet, ChecksumCheck::Verify) else {
            unreachable!()
        };
        let arrived = Arrived {
            seq: segment.tcp.seq,
            ack: segment.tcp.ack,
            flags: segment.tcp.flags,
            window: segment.tcp.window,
            urgent: segment.tcp.urgent,
            options: &segment.tcp.options,
            payload: segment.payload,
            ecn: segment.ip.ecn,
            segment_size: segment.payload.len(),
        };
        let mut permit = |_| true;
        let mut env = Env {
            challenge: &mut permit,
            super_segment: 0,
            sends_twice: false,
            partial_checksum: false,
            payload_in_place: false,
        };
        match &mut self.ends[to] {
            Some(connection) => {
                let _ = connection.on_segment(&arrived, self.now, &mut env);
            }
            None => {
                let tuple = FourTuple {
                    local: "10.0.0.2:80".parse().unwrap(),
                    remote: "10.0.0.1:1000".parse().unwrap(),
                };
                let secrets = Secrets { iss: SeqNum(9000), ts_offset: 5 };
                self.ends[to] =
                    Some(*Connection::accept(tuple, &self.config[to], secrets, HOST, &arrived, self.now));
            }
        }
    }

    /// Runs until nothing is in flight, or `until`.
    fn run(&mut self, until: Instant) {
        while self.step(until) {}
        self.ends.iter_mut().flatten().for_each(release_changes_nothing);
        self.now = self.now.max(until);
    }

    /// Sends all segments that may leave, then processes the next event; false if there is none before
    /// `until`.
    fn step(&mut self, until: Instant) -> bool {
        self.drain();
        let arrival = self.flying.front().map(|(at, _, _)| *at);
        let timer = self.ends.iter().flatten().filter_map(Connection::next_timeout).min();
        let Some(next) = [arrival, timer].into_iter().flatten().min().filter(|next| *next <= until) else {
            return false;
        };
        self.now = self.now.max(next);
        if arrival == Some(next) {
            let (_, to, packet) = self.flying.pop_front().unwrap();
            self.deliver(to, &packet);
        } else {
            for connection in self.ends.iter_mut().flatten() {
                if connection.next_timeout().is_some_and(|at| at <= self.now) {
                    let _ = connection.on_timeout(self.now);
                }
            }
        }
        true
    }

    fn run_for(&mut self, millis: u64) {
        self.run(self.now + Duration::from_millis(millis));
    }

    fn open(config: TcpConfig) -> World {
        let mut world = World::new(config);
        world.run_for(200);
        assert_eq!(world.end(C).state(), State::Established);
        assert_eq!(world.end(S).state(), State::Established);
        world.log.clear();
        world.count = [0, 0];
        world
    }

    fn read_all(&mut self, who: usize) -> Vec<u8> {
        let now = self.now;
        let mut all = vec![];
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = self.end(who).read(&mut buffer, now) {
            all.extend_from_slice(&buffer[..n]);
        }
        all
    }

    /// Sends `len` bytes from C to S, which reads at once; returns the time until the last was read.
    fn transfer(&mut self, len: usize) -> Duration {
        let begin = self.now;
        let data: Vec<u8> = (0..len).map(|i| (7 * i + 3) as u8).collect();
        let (mut written, mut got) = (0, vec![]);
        while got.len() < len {
            let now = self.now;
            if let Ok(n) = self.end(C).write(&data[written..], now) {
                written += n;
            }
            self.run_for(5);
            got.extend(self.read_all(S));
            assert!(self.now < begin + Duration::from_secs(300), "stalled at {} of {len}", got.len());
        }
        assert_eq!(got, data);
        self.now.saturating_since(begin)
    }
}

#[test]
fn handshake_takes_one_round_trip() {
    let mut world = World::new(TcpConfig::default());
    world.run_for(200);
    let times: Vec<_> =
        world.log.iter().map(|(at, who, flags, ..)| (at.as_micros() / 1000, *who, *flags)).collect();
    assert_eq!(times, [(0, C, Flags::SYN), (50, S, Flags::SYN | Flags::ACK), (100, C, Flags::ACK)]);
    assert!(world.end(C).handshake.is_complete());
    assert_eq!(world.end(C).stats().srtt, Some(Duration::from_millis(100)));
}

#[test]
fn a_lost_syn_is_sent_again_after_a_second() {
    let mut world = World::new(TcpConfig::default());
    world.lose = |who, n| who == C && n == 1;
    world.run_for(2000);
    let syns: Vec<_> =
        world.log.iter().filter(|l| l.2 == Flags::SYN).map(|l| l.0.as_micros() / 1000).collect();
    assert_eq!(syns, [0, 1000]);
    assert_eq!(world.end(C).state(), State::Established);
}

#[test]
fn a_syn_without_an_answer_gives_up() {
    let mut world = World::new(TcpConfig { syn_retries: 2, ..TcpConfig::default() });
    world.lose = |who, _| who == C;
    world.run_for(30_000);
    let syns: Vec<_> = world.log.iter().map(|l| l.0.as_micros() / 1000).collect();
    assert_eq!(syns, [0, 1000, 3000]);
    assert_eq!(world.end(C).close_reason(), Some(CloseReason::HandshakeTimeout));
}

#[test]
fn data_flows_and_both_sides_close() {
    let mut world = World::open(TcpConfig::default());
    world.transfer(100_000);
    let now = world.now;
    world.end(C).shutdown(now).unwrap();
    world.run_for(200);
    assert_eq!(world.end(C).state(), State::FinWait2);
    assert_eq!(world.end(S).state(), State::CloseWait);
    let mut buffer = [0; 10];
    let now = world.now;
    assert_eq!(world.end(S).read(&mut buffer, now), Ok(0));
    assert_eq!(world.end(S).write(b"half open", now), Ok(9));
    world.end(S).shutdown(now).unwrap();
    world.run_for(200);
    assert_eq!(world.read_all(C), b"half open");
    assert_eq!(world.end(C).state(), State::TimeWait);
    assert_eq!(world.end(S).state(), State::Closed);
    assert_eq!(world.end(S).close_reason(), Some(CloseReason::Finished));
}

#[test]
fn a_small_response_fits_the_initial_window() {
    let mut world = World::open(TcpConfig::default());
    let took = world.transfer(14_000);
    assert!(took <= Duration::from_millis(60), "{took:?}");
}

#[test]
fn a_lost_segment_in_the_middle_is_repaired_within_a_round_trip() {
    let mut world = World::open(TcpConfig::default());
    world.lose = |who, n| who == C && n == 3;
    let took = world.transfer(14_000);
    assert!(took <= Duration::from_millis(160), "{took:?}");
    let stats = world.end(C).stats().counters;
    assert_eq!((stats.retransmits, stats.timeouts, stats.recoveries), (1, 0, 1));
}

#[test]
fn a_lost_tail_is_repaired_by_a_probe() {
    let mut world = World::open(TcpConfig::default());
    world.lose = |who, n| who == C && n == 2;
    let took = world.transfer(2_000);
    // The acknowledgement of the first segment, at 100 ms, restarts the timer: at srtt + 200 ms the probe
    // leaves before the timeout.
    world.run_for(100);
    assert!(took >= Duration::from_millis(450) && took <= Duration::from_millis(455), "{took:?}");
    let counters = world.end(C).stats().counters;
    assert_eq!((counters.timeouts, counters.probes, counters.repaired_by_probe), (0, 1, 1));
}

#[test]
fn every_seventh_segment_lost_both_ways_is_survived() {
    for sack in [true, false] {
        for timestamps in [true, false] {
            let mut world = World::open(TcpConfig { sack, timestamps, ..TcpConfig::default() });
            world.lose = |_, n| n % 7 == 0;
            world.transfer(300_000);
        }
    }
}

#[test]
fn reno_and_fixed_windows_work_too() {
    for congestion in [CongestionAlgorithm::Reno, CongestionAlgorithm::Fixed(14_600)] {
        let mut world = World::open(TcpConfig { congestion, ..TcpConfig::default() });
        world.lose = |who, n| who == C && n % 50 == 3;
        world.transfer(500_000);
    }
}

#[test]
fn super_segments_carry_the_same_stream() {
    let mut world = World::open(TcpConfig::default());
    world.super_segment = 65_000;
    world.lose = |who, n| who == C && n % 40 == 3;
    world.transfer(1_000_000);
}

#[test]
fn a_zero_window_is_probed_and_opens_again() {
    let mut world = World::open(TcpConfig::default());
    let now = world.now;
    let mut written = 0;
    for _ in 0..200 {
        written += world.end(C).write(&[1; 10_000], now).unwrap_or(0);
        world.run_for(20);
    }
    let full = world.end(S).rx.queue.readable();
    assert!(full < written);
    assert_eq!(world.end(C).stats().snd_wnd, 0);
    world.run_for(3_000);
    assert!(world.end(C).stats().counters.window_probes >= 2);
    let mut got = 0;
    for _ in 0..100 {
        got += world.read_all(S).len();
        world.run_for(100);
    }
    assert_eq!(got, written);
}

#[test]
fn an_abort_resets_the_peer() {
    let mut world = World::open(TcpConfig::default());
    world.end(C).abort();
    world.run_for(100);
    assert_eq!(world.end(S).close_reason(), Some(CloseReason::Reset));
    let mut buffer = [0; 1];
    let now = world.now;
    assert_eq!(world.end(S).read(&mut buffer, now), Err(ReadError::Closed(CloseReason::Reset)));
}

#[test]
fn data_that_a_reset_acknowledges_is_counted() {
    for (arrives, acked) in [(true, 1000), (false, 0)] {
        let mut world = World::open(TcpConfig::default());
        // Only the reset reports the data.
        world.lose = if arrives { |who, n| who == S && n == 1 } else { |who, _| who == C };
        let now = world.now;
        world.end(C).write(&[7; 1000], now).unwrap();
        world.run_for(100);
        world.end(S).abort();
        world.run_for(60);
        assert_eq!(world.end(C).close_reason(), Some(CloseReason::Reset));
        assert_eq!(world.end(C).stats().counters.payload_bytes_acked, acked);
    }
}

#[test]
fn urgent_data_is_read_apart() {
    let mut world = World::open(TcpConfig { nodelay: true, ..TcpConfig::default() });
    let now = world.now;
    world.end(C).write(b"before", now).unwrap();
    world.end(C).write_urgent(b"!", now).unwrap();
    world.end(C).write(b"after", now).unwrap();
    world.run_for(100);
    assert_eq!(world.end(S).urgent.take(), Some(b'!'));
    let mut all = world.read_all(S);
    all.extend(world.read_all(S));
    assert_eq!(all, b"beforeafter");
}

#[test]
fn a_silent_peer_is_given_up_by_user_timeout() {
    let config = TcpConfig { user_timeout: Some(Duration::from_secs(5)), ..TcpConfig::default() };
    let mut world = World::open(config);
    world.lose = |_, _| true;
    let now = world.now;
    world.end(C).write(b"anyone?", now).unwrap();
    world.run_for(60_000);
    assert_eq!(world.end(C).close_reason(), Some(CloseReason::TimedOut));
}

#[test]
fn simultaneous_open_makes_one_connection() {
    let mut world = World::new(TcpConfig::default());
    let tuple = FourTuple { local: "10.0.0.2:80".parse().unwrap(), remote: "10.0.0.1:1000".parse().unwrap() };
    let secrets = Secrets { iss: SeqNum(9000), ts_offset: 5 };
    world.ends[S] = Some(*Connection::connect(tuple, &world.config[S], secrets, HOST, Instant::ZERO));
    world.run_for(400);
    assert_eq!(world.end(C).state(), State::Established);
    assert_eq!(world.end(S).state(), State::Established);
    world.transfer(50_000);
}

#[test]
fn connection_sends_nothing_after_a_reset() {
    let mut world = World::open(TcpConfig::default());
    let now = world.now;
    world.end(C).write(&[1; 1000], now).unwrap();
    world.drain();
    world.end(S).abort();
    world.run_for(50);
    world.log.clear();
    world.run_for(5_000);
    assert_eq!(world.end(C).close_reason(), Some(CloseReason::Reset));
    let from_client = world.log.iter().filter(|(_, who, ..)| *who == C).count();
    assert_eq!(from_client, 0, "neither an acknowledgement nor a retransmission: {:?}", world.log);
}
