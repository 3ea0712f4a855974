//! The decoder against a hostile path. The path loses, reorders, duplicates, rewrites or splits segments, or
//! removes their options. Rebuilt bytes must always be the sent ones.
//!
//! A run is a few groups of a random stream with a random code, on a path with random damage. They arrive at
//! the real receive queue, assembler and history. The application reads at random times. Sizes are small so
//! that many runs are possible; the code does not depend on them.
//!
//! CI runs a part; `cargo test --release -p brisk-tcp --lib adversary -- --ignored --nocapture` runs a
//! million.

use alloc::vec;
use alloc::vec::Vec;

use brisk_wire::{Ecn, Options};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

use super::*;
use crate::mechanism::corrective::history::Reception;
use crate::receive::{Assembler, RecvQueue};

/// Faults of the path, in thousandths.
struct LossyPath {
    loss: u32,
    overtaken: u32,
    doubled: u32,
    rewritten: u32,
}

fn below(rng: &mut ChaCha8Rng, bound: u32) -> u32 {
    rng.next_u32() % bound.max(1)
}

fn chance(rng: &mut ChaCha8Rng, thousandths: u32) -> bool {
    below(rng, 1000) < thousandths
}

/// A segment on the path.
#[derive(Clone, Debug)]
struct Packet {
    seq: SeqNum,
    option: Option<Gentle>,
    payload: Vec<u8>,
    fin: bool,
}

#[derive(Clone, Copy, Default, Debug)]
struct RunCounts {
    recovered: u64,
    rebuilt_bytes: u64,
    failed: u64,
    mismatched: u64,
    dropped: u64,
    late: u64,
    fins: u64,
}

/// Receiver and the sent stream.
struct Run {
    stream: Vec<u8>,
    first: SeqNum,
    queue: RecvQueue,
    assembler: Assembler,
    read_next: SeqNum,
    decoder: Option<Decoder>,
    /// Bytes that the application has read.
    read: Vec<u8>,
    /// True if the path rewrote data. The received stream may then differ, but rebuilt bytes do not.
    rewritten: bool,
    seed: u64,
    now: Instant,
    counts: RunCounts,
}

impl Run {
    fn reception(&self) -> Reception<'_> {
        Reception { queue: &self.queue, assembler: &self.assembler, read_next: self.read_next }
    }

    fn edges(&self) -> Edges {
        let rcv_nxt = self.assembler.rcv_nxt();
        Edges { rcv_nxt, rcv_wnd: self.queue.free() as u32, fin_known: self.assembler.fin_known() }
    }

    /// Returns the bytes of the segment that was sent at `seq`.
    fn sent(&self, seq: SeqNum, len: usize) -> &[u8] {
        let from = seq.since(self.first) as usize;
        self.stream.get(from..from + len).unwrap_or_default()
    }

    /// Models the data path of the connection: window, assembler, queue.
    fn take(&mut self, seq: SeqNum, payload: &[u8], fin: bool) {
        let edges = self.edges();
        let edge = edges.rcv_nxt + edges.rcv_wnd;
        let range = SeqRange::with_len(seq, payload.len() as u32);
        // RFC 9293 section 3.10.7.4: not acceptable left of the window or right of it.
        if range.end.lt(edges.rcv_nxt) || range.end.gt(edge) || (range.end == edges.rcv_nxt && !fin) {
            return;
        }
        let arrival = self.assembler.on_data(range, fin);
        let skip = arrival.store.start.since(range.start) as usize;
        let bytes = payload.get(skip..skip + arrival.store.len() as usize).unwrap_or_default();
        if !arrival.store.is_empty() {
            self.queue.write_at(arrival.store.start.since(self.read_next) as usize, bytes);
        }
        self.queue.advance(arrival.advanced as usize);
    }

    fn arrive(&mut self, packet: &Packet) {
        self.now += Duration::from_millis(1);
        let encoded = packet.option.is_some();
        if !encoded {
            self.rewritten |= packet.payload != self.sent(packet.seq, packet.payload.len())
                && (packet.seq + packet.payload.len() as u32).gt(self.assembler.rcv_nxt());
            self.take(packet.seq, &packet.payload, packet.fin);
        }
        let Some(mut decoder) = self.decoder.take() else { return };
        let edges = self.edges();
        let outcome = if encoded {
            let options = Options { gentle: packet.option, ..Options::default() };
            let segment = Arrived {
                seq: packet.seq,
                ack: SeqNum(0),
                flags: Flags::ACK,
                window: 0,
                urgent: 0,
                options: &options,
                payload: &packet.payload,
                ecn: Ecn::NotEct,
                segment_size: packet.payload.len(),
            };
            Some(decoder.on_segment(&segment, &edges, &self.reception(), self.now))
        } else {
            decoder.on_data(&edges, &self.reception(), self.now)
        };
        self.counts.late += u64::from(!encoded && outcome.is_some());
        let stop = outcome.is_some_and(|outcome| self.process(outcome));
        self.decoder = Some(decoder).filter(|_| !stop);
    }

    /// Passes rebuilt bytes on. True if reception ends.
    fn process(&mut self, outcome: Outcome) -> bool {
        match outcome {
            Outcome::Recovered(recovered) => {
                self.counts.recovered += 1;
                for run in &recovered.runs {
                    assert_eq!(
                        run.payload,
                        self.sent(run.seq, run.payload.len()),
                        "seed {}: what was sent",
                        self.seed
                    );
                    let end = run.seq + run.payload.len() as u32;
                    assert!(
                        !run.fin || end.since(self.first) as usize == self.stream.len(),
                        "a FIN in the middle"
                    );
                    self.counts.rebuilt_bytes += run.payload.len() as u64;
                    self.counts.fins += u64::from(run.fin);
                    self.take(run.seq, &run.payload, run.fin);
                }
            }
            Outcome::Failed { why, lost_len } => {
                self.counts.failed += 1;
                self.counts.mismatched += u64::from(why == Failure::Checksum);
                assert!(lost_len < gentle::STOP);
            }
            Outcome::Dropped(_) => self.counts.dropped += 1,
            Outcome::Nothing | Outcome::Waiting => {}
            Outcome::Stop => {
                self.queue.retain(0);
                return true;
            }
        }
        false
    }

    /// Reads up to `count` bytes as the application.
    fn read(&mut self, count: usize) {
        let mut out = vec![0; count.min(self.queue.readable())];
        let count = self.queue.read(&mut out);
        self.read_next += count as u32;
        self.read.extend_from_slice(&out);
        if !self.rewritten {
            assert!(self.stream.starts_with(&self.read), "the application reads what was sent");
        }
    }
}

/// The sender: groups, their parities, retransmissions.
struct Sender {
    code: Code,
    block: u32,
    rows: u8,
    path: LossyPath,
}

impl Sender {
    /// Returns the first transmissions of the group in segments of up to a block, and its end.
    fn group(&self, run: &Run, start: u32, rng: &mut ChaCha8Rng) -> (Vec<Packet>, u32) {
        let total = run.stream.len() as u32;
        let segments = 1 + below(rng, self.code.blocks_max());
        let max = start + self.block * self.code.blocks_max();
        let mut packets = Vec::new();
        let mut at = start;
        for _ in 0..segments {
            let len = if chance(rng, 700) { self.block } else { 1 + below(rng, self.block) };
            let end = total.min(at + len);
            if end > max || at == total {
                break;
            }
            packets.push(data(run, at, end));
            at = end;
        }
        (packets, at)
    }

    /// Returns the parity segments of a group, as computed when `una` was acknowledged.
    fn parities(&self, run: &Run, from: u32, to: u32, una: SeqNum) -> Vec<Packet> {
        let group = SeqRange::new(run.first + from, run.first + to);
        let mut packets = Vec::new();
        for layout in Layout::of_group(self.code, group, self.block) {
            let (range, rows) = (layout.range(), if self.code == Code::ReedSolomon { self.rows } else { 1 });
            let bytes =
                || code::placed(range.start, (run.sent(range.start, range.len() as usize), &[])).into_iter();
            let crc32c = code::checksum(&layout, run.first, bytes());
            for row in 0..rows {
                let mut payload = vec![0; layout.payload_len()];
                code::parity(&layout, row, bytes(), &mut payload);
                let seq = una - payload.len() as u32;
                let ends = range.end.since(run.first) as usize == run.stream.len();
                let flags = gentle::ENC | if ends { gentle::FIN_END } else { 0 };
                let (enc_len, start_off) = (range.len(), range.start.since(seq));
                let option = if rows == 1 {
                    Gentle::EncF2 { flags, enc_len, start_off, crc32c }
                } else {
                    Gentle::EncRs { flags, enc_len, start_off, crc32c, parity: row, parities: rows }
                };
                packets.push(Packet { seq, option: Some(option), payload, fin: false });
            }
        }
        packets
    }

    /// Returns the segments that the path makes of one.
    fn damage(&self, packet: Packet, rng: &mut ChaCha8Rng) -> Vec<Packet> {
        if chance(rng, self.path.loss) {
            return Vec::new();
        }
        let mut out = vec![packet];
        if chance(rng, self.path.doubled) {
            out.extend(out.clone());
        }
        if chance(rng, self.path.rewritten)
            && let Some(packet) = out.pop()
        {
            out.extend(rewrite(self.code, packet, rng));
        }
        out
    }
}

/// Returns a data segment of the stream, with the FIN if it reaches the end.
fn data(run: &Run, from: u32, to: u32) -> Packet {
    let payload = run.sent(run.first + from, (to - from) as usize).to_vec();
    Packet { seq: run.first + from, option: None, payload, fin: to as usize == run.stream.len() }
}

/// Rewrites a segment as a middlebox does: flips payload or option, removes the option, splits or pads it.
fn rewrite(code: Code, mut packet: Packet, rng: &mut ChaCha8Rng) -> Vec<Packet> {
    let len = packet.payload.len() as u32;
    match below(rng, 5) {
        0 if len > 0 => packet.payload[below(rng, len) as usize] ^= 1 << below(rng, 8),
        1 => packet.option = packet.option.map(|option| rewrite_option(code, option, rng)),
        // Without its option a parity segment looks like data; only its position left of the window shows
        // that it is none.
        2 => packet.option = None,
        3 if len > 1 => {
            let at = 1 + below(rng, len - 1);
            let rest = Packet {
                seq: packet.seq + at,
                payload: packet.payload.split_off(at as usize),
                ..packet.clone()
            };
            packet.fin = false;
            return vec![packet, rest];
        }
        _ if packet.option.is_some() => packet.payload.extend([0; 3]),
        _ => {}
    }
    vec![packet]
}

fn rewrite_option(code: Code, option: Gentle, rng: &mut ChaCha8Rng) -> Gentle {
    let bit = 1u32 << below(rng, 12);
    let (field, other) = (below(rng, 3), below(rng, u32::from(ROWS_MAX)) as u8);
    let flip = |value: u32, index| if field == index { value ^ bit } else { value };
    match option {
        // The checksum of the XOR codes does not cover the position: see the module `decoder`.
        Gentle::EncF2 { flags, enc_len, start_off, crc32c } if code != Code::ReedSolomon => {
            Gentle::EncF2 { flags, enc_len: flip(enc_len, 0).max(1), start_off, crc32c: flip(crc32c, 2) }
        }
        Gentle::EncF2 { flags, enc_len, start_off, crc32c } => Gentle::EncF2 {
            flags,
            enc_len: flip(enc_len, 0).max(1),
            start_off: flip(start_off, 1),
            crc32c: flip(crc32c, 2),
        },
        Gentle::EncRs { flags, enc_len, start_off, crc32c, parity: _, parities } => Gentle::EncRs {
            flags,
            enc_len: flip(enc_len, 0).max(1),
            start_off: flip(start_off, 1),
            crc32c: flip(crc32c, 2),
            parity: other % parities,
            parities,
        },
        Gentle::Capability(_)
        | Gentle::Part { .. }
        | Gentle::Short { .. }
        | Gentle::Fail { .. }
        | Gentle::EncF1 { .. } => option,
    }
}

/// Runs once; `hostile` paths also rewrite.
fn run(seed: u64, hostile: bool) -> RunCounts {
    let rng = &mut ChaCha8Rng::seed_from_u64(seed);
    let codes = [Code::Xor, Code::XorInterleaved, Code::ReedSolomon];
    let sender = Sender {
        code: codes[below(rng, 3) as usize],
        block: 1 + below(rng, 60),
        rows: 1 + below(rng, u32::from(ROWS_MAX)) as u8,
        path: LossyPath {
            loss: [20, 100, 300][below(rng, 3) as usize],
            overtaken: below(rng, 200),
            doubled: below(rng, 50),
            rewritten: if hostile { below(rng, 300) } else { 0 },
        },
    };
    let stream: Vec<u8> = (0..1 + below(rng, 3000)).map(|_| rng.next_u32() as u8).collect();
    let first = SeqNum(rng.next_u32());
    let config = DecoderConfig { code: sender.code, profile: Profile::F2, rmss: 60, origin: first };
    let mut queue = RecvQueue::new(4096);
    queue.retain(config.history() as usize);
    let mut run = Run {
        stream,
        first,
        queue,
        assembler: Assembler::new(first),
        read_next: first,
        decoder: Some(Decoder::new(config)),
        read: Vec::new(),
        rewritten: false,
        seed,
        now: Instant::ZERO,
        counts: RunCounts::default(),
    };
    transfer(&mut run, &sender, rng);
    run.counts
}

/// Transfers the whole stream: every group, its parities, and retransmissions of the rest.
fn transfer(run: &mut Run, sender: &Sender, rng: &mut ChaCha8Rng) {
    let (mut at, total) = (0, run.stream.len() as u32);
    while at < total {
        let una = run.assembler.rcv_nxt().min(run.first + total) - below(rng, 2) * below(rng, sender.block);
        let una = una.max(run.first);
        let (mut packets, end) = sender.group(run, at, rng);
        let parities = sender.parities(run, at, end, una);
        packets.extend(parities);
        let mut late = Vec::new();
        for packet in packets {
            for packet in sender.damage(packet, rng) {
                if chance(rng, sender.path.overtaken) {
                    late.push(packet);
                } else {
                    run.arrive(&packet);
                }
                run.read(if chance(rng, 300) { below(rng, 400) as usize } else { 0 });
            }
        }
        late.iter().for_each(|packet| run.arrive(packet));
        if chance(rng, 20) {
            run.queue.forget();
        }
        // Missing data is retransmitted until it arrives; sometimes only with the next group.
        let tail = end == total;
        while (tail || chance(rng, 800)) && run.assembler.rcv_nxt().lt(run.first + end) {
            let edges = run.edges();
            let gap = run.reception().gaps(SeqRange::new(edges.rcv_nxt, run.first + end)).next();
            let Some(gap) = gap else { break };
            let (from, to) = (gap.start.since(run.first), gap.end.since(run.first));
            let to = to.min(from + sender.block);
            run.arrive(&data(run, from, to));
            run.read(if edges.rcv_wnd < 500 { 4096 } else { 0 });
        }
        at = end;
    }
    run.arrive(&Packet { seq: run.first + total, option: None, payload: Vec::new(), fin: true });
    run.read(4096);
    assert!(run.assembler.is_complete(), "the stream ends");
    assert_eq!(run.read.len(), run.stream.len());
}

fn runs(seeds: core::ops::Range<u64>, hostile: bool) -> RunCounts {
    seeds.map(|seed| run(seed, hostile)).fold(RunCounts::default(), |sum, one| RunCounts {
        recovered: sum.recovered + one.recovered,
        rebuilt_bytes: sum.rebuilt_bytes + one.rebuilt_bytes,
        failed: sum.failed + one.failed,
        mismatched: sum.mismatched + one.mismatched,
        dropped: sum.dropped + one.dropped,
        late: sum.late + one.late,
        fins: sum.fins + one.fins,
    })
}

#[test]
fn hostile_path_causes_no_wrong_byte() {
    let counts = runs(0..1000, true);
    assert!(counts.recovered > 700 && counts.rebuilt_bytes > 20_000, "{counts:?}");
    assert!(counts.failed > 200 && counts.mismatched > 50 && counts.dropped > 50, "{counts:?}");
    assert!(counts.late > 5 && counts.fins > 20, "{counts:?}");
}

#[test]
fn path_without_middleboxes_causes_no_checksum_failure() {
    let counts = runs(0..500, false);
    assert!(counts.recovered > 500, "{counts:?}");
    assert_eq!(counts.mismatched, 0, "{counts:?}");
}

#[test]
#[ignore = "a million runs: cargo test --release -p brisk-tcp --lib adversary -- --ignored --nocapture"]
fn not_one_byte_is_wrong_in_a_million_runs() {
    let counts = runs(1_000_000..2_000_000, true);
    std::println!("{counts:?}");
    assert!(counts.recovered > 700_000, "{counts:?}");
}
