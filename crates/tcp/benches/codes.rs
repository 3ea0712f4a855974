//! Speed of the codes of Corrective: `cargo bench -p brisk-tcp --bench codes`.
//!
//! Prints for each code the rate at which it folds, checks or repairs 256 groups of 1448-byte segments, in
//! stream bytes per second; also prints the rate of a plain copy. The groups together exceed the first-level
//! cache. They are timed in short stretches, several times. The fastest run of each stretch counts, so that
//! other work on the machine disturbs little.

use std::hint::black_box;
use std::time::Instant;

use brisk_tcp::event::SeqRange;
use brisk_tcp::internals::code::{Code, Layout, checksum, parity, placed};
use brisk_tcp::internals::decoder::{Decoder, DecoderConfig, Edges, Outcome, ReceivedBytes};
use brisk_tcp::internals::{Arrived, SeqRanges};
use brisk_tcp::mechanism::Profile;
use brisk_wire::{Ecn, Flags, Gentle, Options, SeqNum};

const SEGMENT: u32 = 1448;
const GROUPS: usize = 256;
const STRETCH: usize = 8;
const ROUNDS: usize = 30;

/// Returns groups of `blocks` segments, each group with different bytes.
fn groups(blocks: u32) -> Vec<Vec<u8>> {
    let group =
        |group: usize| (0..(blocks * SEGMENT) as usize).map(|at| (at * 7 + at / 256 + group) as u8).collect();
    (0..GROUPS).map(group).collect()
}

/// Runs `work` over all groups, several times. Prints stream bytes per second, from the fastest run of each
/// stretch of groups.
fn report(name: &str, blocks: u32, mut work: impl FnMut(&[u8])) {
    let groups = groups(blocks);
    let mut best = [f64::INFINITY; GROUPS / STRETCH];
    for _ in 0..ROUNDS {
        for (stretch, best) in groups.chunks(STRETCH).zip(&mut best) {
            let start = Instant::now();
            stretch.iter().for_each(|group| work(black_box(group)));
            *best = best.min(start.elapsed().as_secs_f64());
        }
    }
    let (bytes, time) = (f64::from(blocks * SEGMENT) * GROUPS as f64, best.iter().sum::<f64>());
    println!("{name:<44} {:>7.2} GB/s {:>8.2} us a group", bytes / time / 1e9, time / GROUPS as f64 * 1e6);
}

fn layout(code: Code, blocks: u32) -> Layout {
    Layout::new(code, SeqRange::with_len(SeqNum(1), blocks * SEGMENT), SEGMENT).expect("a legal group")
}

/// Returns a group as two pieces, like those of a ring.
fn pieces(group: &[u8]) -> [(SeqNum, &[u8]); 2] {
    placed(SeqNum(1), group.split_at(group.len() / 3))
}

fn encoding() {
    for (blocks, rows) in [(16, 1), (21, 3), (32, 8)] {
        let code = if rows == 1 { Code::Xor } else { Code::ReedSolomon };
        let layout = layout(code, blocks);
        let mut out = vec![0; SEGMENT as usize];
        report(&format!("encode {rows} of {blocks} segments ({code:?})"), blocks, |group| {
            for row in 0..rows {
                parity(&layout, row, pieces(group).into_iter(), black_box(&mut out));
            }
        });
    }
}

/// A receiver that misses the first `lost` segments of every group.
struct Receiver<'a> {
    group: &'a [u8],
    arrived: &'a SeqRanges,
}

impl ReceivedBytes for Receiver<'_> {
    fn oldest(&self) -> SeqNum {
        SeqNum(1)
    }

    fn gaps(&self, within: SeqRange) -> impl Iterator<Item = SeqRange> {
        self.arrived.gaps(within)
    }

    fn slices(&self, range: SeqRange) -> (&[u8], &[u8]) {
        let from = range.start.since(SeqNum(1)) as usize;
        (&self.group[from..from + range.len() as usize], &[])
    }
}

/// Returns the parity segments of a group as they arrive.
fn sent(layout: &Layout, group: &[u8], rows: u8) -> Vec<(Options, Vec<u8>)> {
    let segment = |row| {
        let mut payload = vec![0; SEGMENT as usize];
        parity(layout, row, pieces(group).into_iter(), &mut payload);
        let (flags, enc_len) = (brisk_wire::gentle::ENC, layout.range().len());
        let crc32c = checksum(layout, SeqNum(1), pieces(group).into_iter());
        let gentle =
            Gentle::EncRs { flags, enc_len, start_off: SEGMENT, crc32c, parity: row, parities: rows };
        (Options { gentle: Some(gentle), ..Options::default() }, payload)
    };
    (0..rows).map(segment).collect()
}

fn decoding() {
    for (blocks, lost) in [(16, 1), (21, 3), (32, 8)] {
        let layout = layout(Code::ReedSolomon, blocks);
        let all = groups(blocks);
        let sent: Vec<_> = all.iter().map(|group| sent(&layout, group, lost)).collect();
        let mut arrived = SeqRanges::new();
        arrived.insert(layout.range());
        arrived.remove(SeqRange::with_len(SeqNum(1), u32::from(lost) * SEGMENT));
        let edges = Edges { rcv_nxt: SeqNum(1), rcv_wnd: 1 << 20, fin_known: false };
        let config =
            DecoderConfig { code: Code::ReedSolomon, profile: Profile::F2, rmss: SEGMENT, origin: SeqNum(1) };
        let mut index = 0;
        report(&format!("repair {lost} of {blocks} segments, checksum included"), blocks, |group| {
            let mut decoder = Decoder::new(config);
            let receiver = Receiver { group, arrived: &arrived };
            let outcomes = sent[index % GROUPS].iter().map(|(options, payload)| {
                let segment = Arrived {
                    seq: SeqNum(1) - SEGMENT,
                    ack: SeqNum(0),
                    flags: Flags::ACK,
                    window: 0,
                    urgent: 0,
                    options,
                    payload,
                    ecn: Ecn::NotEct,
                    segment_size: payload.len(),
                };
                decoder.on_segment(&segment, &edges, &receiver, brisk_tcp::time::Instant::ZERO)
            });
            assert!(matches!(black_box(outcomes.last()), Some(Outcome::Recovered(_))));
            index += 1;
        });
    }
}

fn main() {
    let mut copy = vec![0; (16 * SEGMENT) as usize];
    report("copy 16 segments", 16, |group| black_box(&mut copy).copy_from_slice(group));
    let layout = layout(Code::Xor, 16);
    report("CRC-32C of 16 segments", 16, |group| {
        black_box(checksum(&layout, SeqNum(1), pieces(group).into_iter()));
    });
    encoding();
    decoding();
}
