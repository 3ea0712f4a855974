//! Target: any parity segments at the decoder of Corrective.
//!
//! The bytes determine the code, the parts of a known stream that have arrived and that are still held, and
//! the parity segments: valid ones, valid ones that the path changed, and invented ones. A repair must bring
//! exactly the missing range; with the checksum of the true bytes it must bring the true bytes; and the
//! number of waiting segments stays bounded.

use brisk_tcp::event::SeqRange;
use brisk_tcp::internals::code::{Code, Layout, ROWS_MAX, checksum, parity, placed};
use brisk_tcp::internals::decoder::{Decoder, DecoderConfig, Edges, Outcome, ReceivedBytes, Recovered};
use brisk_tcp::internals::{Arrived, SeqRanges};
use brisk_tcp::mechanism::Profile;
use brisk_tcp::time::{Duration, Instant};
use brisk_wire::{Ecn, Flags, Gentle, Options, SeqNum, gentle};

use crate::decisions::Decisions;

/// Bytes of the stream.
const STREAM: u32 = 4096;
const RMSS: u32 = 100;

/// A receiver of a known stream.
struct Receiver {
    stream: Vec<u8>,
    first: SeqNum,
    arrived: SeqRanges,
    /// Offset of the oldest byte held, at most the end of the data that arrived in order.
    oldest: u32,
    rcv_nxt: SeqNum,
}

impl Receiver {
    fn new(first: SeqNum) -> Self {
        // No byte equals its neighbours or the bytes at the same place of other blocks.
        let byte = |index: u32| (index.wrapping_mul(0x9e37_79b1) >> 13) as u8;
        let stream = (0..STREAM).map(byte).collect();
        Receiver { stream, first, arrived: SeqRanges::new(), oldest: 0, rcv_nxt: first }
    }

    fn arrive(&mut self, from: u32, len: u32) {
        let end = STREAM.min(from + len);
        self.arrived.insert(SeqRange::new(self.first + from, self.first + end));
        self.rcv_nxt = self.arrived.range_at(self.first).map_or(self.first, |range| range.end);
    }

    /// Returns the bytes of a range if it lies in the stream.
    fn truth(&self, range: SeqRange) -> Option<&[u8]> {
        let from = range.start.since(self.first) as usize;
        self.stream.get(from..from.checked_add(range.len() as usize)?)
    }

    fn edges(&self, fin_known: bool) -> Edges {
        let rcv_wnd = STREAM.saturating_sub(self.rcv_nxt.since(self.first));
        Edges { rcv_nxt: self.rcv_nxt, rcv_wnd, fin_known }
    }
}

impl ReceivedBytes for Receiver {
    fn oldest(&self) -> SeqNum {
        (self.first + self.oldest).min(self.rcv_nxt)
    }

    fn gaps(&self, within: SeqRange) -> impl Iterator<Item = SeqRange> {
        assert!(within.start.ge(self.rcv_nxt), "what is before RCV.NXT has arrived");
        self.arrived.gaps(within)
    }

    fn slices(&self, range: SeqRange) -> (&[u8], &[u8]) {
        assert!(self.arrived.covers(&range) && range.start.ge(self.oldest()), "{range:?} is not held");
        self.truth(range).expect("it has arrived").split_at(range.len() as usize / 3)
    }
}

/// A parity segment.
#[derive(Clone, Debug)]
struct Segment {
    seq: SeqNum,
    flags: Flags,
    option: Gentle,
    payload: Vec<u8>,
}

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let decisions = &mut Decisions::new(bytes);
    let code = decisions.pick(&[Code::Xor, Code::XorInterleaved, Code::ReedSolomon]);
    let receiver = &mut Receiver::new(SeqNum(decisions.pick(&[1, 0, u32::MAX - 1000])));
    // Existing corpora have a byte here.
    decisions.byte();
    let config = DecoderConfig { code, profile: Profile::F2, rmss: RMSS, origin: receiver.first };
    let decoder = &mut Decoder::new(config);
    let mut now = Instant::ZERO;
    let mut last = None;
    while !decisions.is_over() {
        now += Duration::from_millis(u64::from(decisions.byte()));
        match decisions.below(4) {
            0 => {
                receiver.arrive(u32::from(decisions.short()) % STREAM, 1 + u32::from(decisions.byte()));
                let outcome = decoder.on_data(&receiver.edges(false), receiver, now);
                outcome.into_iter().for_each(|outcome| judge(receiver, &outcome, last.as_ref(), &config));
            }
            1 => receiver.oldest = receiver.oldest.max(u32::from(decisions.short()) % STREAM),
            _ => {
                let segment = segment(decisions, code, receiver);
                let fin_known = decisions.one_in(8);
                let outcome = deliver(decoder, receiver, &segment, fin_known, now);
                judge(receiver, &outcome, Some(&segment), &config);
                last = Some(segment);
            }
        }
        assert!(decoder.memory() <= usize::from(ROWS_MAX) * RMSS as usize, "what waits is bounded");
    }
}

fn deliver(
    decoder: &mut Decoder,
    receiver: &Receiver,
    segment: &Segment,
    fin_known: bool,
    now: Instant,
) -> Outcome {
    let options = Options { gentle: Some(segment.option), ..Options::default() };
    let arrived = Arrived {
        seq: segment.seq,
        ack: SeqNum(0),
        flags: segment.flags,
        window: 0,
        urgent: 0,
        options: &options,
        payload: &segment.payload,
        ecn: Ecn::NotEct,
        segment_size: segment.payload.len(),
    };
    decoder.on_segment(&arrived, &receiver.edges(fin_known), receiver, now)
}

/// Returns a parity segment of a valid group, perhaps changed, or of no group.
fn segment(decisions: &mut Decisions<'_>, code: Code, receiver: &Receiver) -> Segment {
    let from = u32::from(decisions.short()) % STREAM;
    let block = 1 + u32::from(decisions.byte()) % RMSS;
    let len = 1 + u32::from(decisions.short()) % (block * code.blocks_max());
    let group = SeqRange::new(receiver.first + from, receiver.first + STREAM.min(from + len));
    let layouts = Layout::of_group(code, group, block);
    let mut segment = match layouts.get(decisions.below(2)).or(layouts.first()) {
        Some(layout) => honest(decisions, layout, receiver),
        None => unreachable!("a group of up to {} blocks is legal", code.blocks_max()),
    };
    if decisions.one_in(3) {
        change(decisions, &mut segment);
    }
    segment
}

fn honest(decisions: &mut Decisions<'_>, layout: &Layout, receiver: &Receiver) -> Segment {
    let rows = match layout.code() {
        Code::Xor | Code::XorInterleaved => 1,
        Code::ReedSolomon => 1 + decisions.below(usize::from(ROWS_MAX)) as u8,
    };
    let row = decisions.below(usize::from(rows)) as u8;
    let range = layout.range();
    let bytes = placed(range.start, (receiver.truth(range).expect("within the stream"), &[]));
    let mut payload = vec![0; layout.payload_len()];
    parity(layout, row, bytes.into_iter(), &mut payload);
    let crc32c = checksum(layout, receiver.first, bytes.into_iter());
    let seq = receiver.rcv_nxt - payload.len() as u32;
    let flags = gentle::ENC | decisions.pick(&[0, 0, 0, gentle::FIN_END]);
    let (enc_len, start_off) = (range.len(), range.start.since(seq) & gentle::MAX_LEN);
    let option = match rows {
        1 => Gentle::EncF2 { flags, enc_len, start_off, crc32c },
        parities => Gentle::EncRs { flags, enc_len, start_off, crc32c, parity: row, parities },
    };
    Segment { seq, flags: Flags::ACK, option, payload }
}

/// Changes a segment like a middlebox or an attacker.
fn change(decisions: &mut Decisions<'_>, segment: &mut Segment) {
    match decisions.below(6) {
        0 => segment.payload.truncate(usize::from(decisions.short())),
        1 => {
            let at = usize::from(decisions.short());
            if let Some(byte) = segment.payload.get_mut(at) {
                *byte ^= decisions.byte();
            }
        }
        2 => segment.seq += decisions.word(),
        3 => segment.flags |= decisions.pick(&[Flags::FIN, Flags::SYN, Flags::RST, Flags::URG, Flags::PSH]),
        4 => segment.payload = decisions.bytes(300).to_vec(),
        _ => {
            let (flags, enc_len, start_off) =
                (decisions.byte() | gentle::ENC, decisions.word(), decisions.word());
            let (enc_len, start_off) = (enc_len & gentle::MAX_LEN, start_off & gentle::MAX_LEN);
            let crc32c = decisions.word();
            segment.option = match decisions.below(3) {
                0 => Gentle::EncF1 { flags, enc_len },
                1 => Gentle::EncF2 { flags, enc_len, start_off, crc32c },
                _ => {
                    let (parity, parities) = (decisions.byte() & 15, decisions.byte() & 15);
                    Gentle::EncRs { flags, enc_len, start_off, crc32c, parity, parities }
                }
            };
        }
    }
}

/// Checks an outcome of the decoder.
fn judge(receiver: &mut Receiver, outcome: &Outcome, segment: Option<&Segment>, config: &DecoderConfig) {
    match outcome {
        Outcome::Recovered(recovered) => judge_repair(receiver, recovered, segment, config),
        Outcome::Failed { lost_len, why: _ } => assert!(*lost_len < gentle::STOP),
        Outcome::Dropped(_) | Outcome::Nothing | Outcome::Waiting | Outcome::Stop => {}
    }
}

fn judge_repair(
    receiver: &mut Receiver,
    recovered: &Recovered,
    segment: Option<&Segment>,
    config: &DecoderConfig,
) {
    let mut before = receiver.rcv_nxt;
    for run in &recovered.runs {
        let range = SeqRange::with_len(run.seq, run.payload.len() as u32);
        assert!(range.start.ge(before) && recovered.range.covers(&range), "{range:?} in order and in range");
        assert!(range.is_empty() || !receiver.arrived.intersects(&range), "{range:?} was missing");
        assert!(!run.fin || range.end == recovered.range.end, "a FIN ends the range");
        before = range.end;
    }
    if segment.is_some_and(|segment| has_true_checksum(receiver, recovered, segment, config)) {
        for run in &recovered.runs {
            let range = SeqRange::with_len(run.seq, run.payload.len() as u32);
            assert_eq!(receiver.truth(range), Some(&run.payload[..]), "{range:?}");
            receiver.arrive(range.start.since(receiver.first), range.len());
        }
    }
}

/// True if the checksum of the segment is that of the true bytes of the range that was repaired.
fn has_true_checksum(
    receiver: &Receiver,
    recovered: &Recovered,
    segment: &Segment,
    config: &DecoderConfig,
) -> bool {
    let (Gentle::EncF2 { crc32c, .. } | Gentle::EncRs { crc32c, .. }) = segment.option else { return false };
    let layout = Layout::new(config.code, recovered.range, segment.payload.len() as u32);
    let (Some(layout), Some(truth)) = (layout, receiver.truth(recovered.range)) else { return false };
    crc32c == checksum(&layout, receiver.first, placed(recovered.range.start, (truth, &[])).into_iter())
}
