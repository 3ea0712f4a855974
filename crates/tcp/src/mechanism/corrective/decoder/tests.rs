//! The decoder alone: a stream of known bytes, and a receiver that holds parts of it.

use alloc::vec;
use alloc::vec::Vec;

use brisk_wire::{Ecn, Options};

use super::*;
use crate::seq_ranges::SeqRanges;

/// Sequence number of the first stream byte.
const FIRST: SeqNum = SeqNum(1);
const RMSS: u32 = 1460;
const NOW: Instant = Instant::from_millis(75);

/// A receiver of the stream whose byte `i` is `7 * i + 3`.
struct Peer {
    stream: Vec<u8>,
    arrived: SeqRanges,
    rcv_nxt: SeqNum,
    oldest: SeqNum,
    /// Sequence number of the first stream byte.
    first: SeqNum,
}

fn range(from: u32, to: u32) -> SeqRange {
    SeqRange::new(FIRST + from, FIRST + to)
}

impl Peer {
    fn new(len: u32) -> Peer {
        let stream = (0..len as usize).map(|index| (7 * index + 3) as u8).collect();
        Peer { stream, arrived: SeqRanges::new(), rcv_nxt: FIRST, oldest: FIRST, first: FIRST }
    }

    fn range(&self, from: u32, to: u32) -> SeqRange {
        SeqRange::new(self.first + from, self.first + to)
    }

    /// Returns the receiver after the whole stream except the ranges in `lost` has arrived.
    fn without(mut self, lost: &[(u32, u32)]) -> Peer {
        self.arrived = SeqRanges::new();
        self.arrived.insert(self.range(0, self.stream.len() as u32));
        for (from, to) in lost {
            self.arrived.remove(self.range(*from, *to));
        }
        self.oldest = self.first;
        self.rcv_nxt = self.arrived.range_at(self.first).map_or(self.first, |first| first.end);
        self
    }

    fn edges(&self) -> Edges {
        Edges { rcv_nxt: self.rcv_nxt, rcv_wnd: 65_535, fin_known: false }
    }

    fn bytes(&self, range: SeqRange) -> &[u8] {
        &self.stream[range.start.since(self.first) as usize..range.end.since(self.first) as usize]
    }

    /// Returns the parity segment of a layout, as the sender builds it when `una` is acknowledged.
    fn sent(&self, layout: Layout, una: SeqNum, row: u8, rows: u8) -> Sent {
        let placed = || [(layout.range().start, self.bytes(layout.range()))].into_iter();
        let mut payload = vec![0; layout.payload_len()];
        code::parity(&layout, row, placed(), &mut payload);
        let seq = una - payload.len() as u32;
        let (flags, enc_len, start_off) =
            (gentle::ENC, layout.range().len(), layout.range().start.since(seq));
        let crc32c = code::checksum(&layout, self.first, placed());
        let option = if rows == 1 {
            Gentle::EncF2 { flags, enc_len, start_off, crc32c }
        } else {
            Gentle::EncRs { flags, enc_len, start_off, crc32c, parity: row, parities: rows }
        };
        Sent { seq, flags: Flags::ACK, option, payload }
    }
}

impl ReceivedBytes for Peer {
    fn oldest(&self) -> SeqNum {
        self.oldest
    }

    fn gaps(&self, within: SeqRange) -> impl Iterator<Item = SeqRange> {
        self.arrived.gaps(within)
    }

    fn slices(&self, range: SeqRange) -> (&[u8], &[u8]) {
        assert!(self.arrived.covers(&range), "{range:?} has not arrived");
        self.bytes(range).split_at(range.len() as usize / 2)
    }
}

/// A parity segment on the wire.
#[derive(Clone, Debug)]
struct Sent {
    seq: SeqNum,
    flags: Flags,
    option: Gentle,
    payload: Vec<u8>,
}

fn config(code: Code) -> DecoderConfig {
    DecoderConfig { code, profile: Profile::F2, rmss: RMSS, origin: FIRST }
}

fn decode(decoder: &mut Decoder, peer: &Peer, sent: &Sent) -> Outcome {
    decode_at(decoder, peer, sent, &peer.edges(), NOW)
}

fn decode_at(decoder: &mut Decoder, peer: &Peer, sent: &Sent, edges: &Edges, now: Instant) -> Outcome {
    let options = Options { gentle: Some(sent.option), ..Options::default() };
    let segment = Arrived {
        seq: sent.seq,
        ack: SeqNum(0),
        flags: sent.flags,
        window: 1000,
        urgent: 0,
        options: &options,
        payload: &sent.payload,
        ecn: Ecn::NotEct,
        segment_size: sent.payload.len(),
    };
    decoder.on_segment(&segment, edges, peer, now)
}

fn layout(code: Code, to: u32, block: u32) -> Layout {
    Layout::new(code, range(0, to), block).expect("a legal group")
}

/// Returns each run of a recovery as (start, end, FIN follows), in offsets; checks the bytes.
fn runs(peer: &Peer, outcome: &Outcome) -> Vec<(u32, u32, bool)> {
    let Outcome::Recovered(recovered) = outcome else { panic!("not recovered: {outcome:?}") };
    let run = |run: &Rebuilt| {
        let from = run.seq.since(peer.first);
        let to = from + run.payload.len() as u32;
        assert_eq!(run.payload, peer.bytes(peer.range(from, to)), "{from}..{to}");
        (from, to, run.fin)
    };
    recovered.runs.iter().map(run).collect()
}

#[test]
fn one_lost_segment_of_three_is_rebuilt() {
    let peer = Peer::new(3000).without(&[(1000, 2000)]);
    let sent = peer.sent(layout(Code::Xor, 3000, 1000), FIRST, 0, 1);
    assert_eq!(sent.seq, SeqNum(1) - 1000);
    let outcome = decode(&mut Decoder::new(config(Code::Xor)), &peer, &sent);
    assert_eq!(runs(&peer, &outcome), [(1000, 2000, false)]);
}

#[test]
fn a_short_tail_and_segments_across_blocks_are_rebuilt() {
    let mut decoder = Decoder::new(config(Code::Xor));
    let peer = Peer::new(2500).without(&[(2000, 2500)]);
    let outcome = decode(&mut decoder, &peer, &peer.sent(layout(Code::Xor, 2500, 1000), FIRST, 0, 1));
    assert_eq!(runs(&peer, &outcome), [(2000, 2500, false)]);
    // Payloads of 600, 1000 and 800 bytes. The second is lost, and spans two blocks.
    let peer = Peer::new(2400).without(&[(600, 1600)]);
    let outcome = decode(&mut decoder, &peer, &peer.sent(layout(Code::Xor, 2400, 1000), FIRST, 0, 1));
    assert_eq!(runs(&peer, &outcome), [(600, 1600, false)]);
    // The parity of a range shorter than a block is a copy of the range.
    let peer = Peer::new(300).without(&[(0, 300)]);
    let outcome = decode(&mut decoder, &peer, &peer.sent(layout(Code::Xor, 300, 1000), FIRST, 0, 1));
    assert_eq!(runs(&peer, &outcome), [(0, 300, false)]);
}

/// Payloads of 300, 1000, 300 and 1000 bytes. The first and third are lost, and share no column.
#[test]
fn one_parity_rebuilds_losses_in_two_columns() {
    let peer = Peer::new(2600).without(&[(0, 300), (1300, 1600)]);
    let sent = peer.sent(layout(Code::Xor, 2600, 1000), FIRST, 0, 1);
    let outcome = decode(&mut Decoder::new(config(Code::Xor)), &peer, &sent);
    assert_eq!(runs(&peer, &outcome), [(0, 300, false), (1300, 1600, false)]);
}

#[cfg(feature = "historical")]
#[test]
fn profile_f1_rebuilds_one_run_of_at_most_a_block() {
    let decoded = |missing: &[(u32, u32)]| {
        let peer = Peer::new(2600).without(missing);
        let f2 = peer.sent(layout(Code::Xor, 2600, 1000), FIRST, 0, 1);
        let f1 = Sent { seq: FIRST, option: Gentle::EncF1 { flags: gentle::ENC, enc_len: 2600 }, ..f2 };
        let config = DecoderConfig { profile: Profile::F1, ..config(Code::Xor) };
        (decode(&mut Decoder::new(config), &peer, &f1), peer)
    };
    let (outcome, _) = decoded(&[(0, 300), (1300, 1600)]);
    assert_eq!(outcome, Outcome::Failed { lost_len: 2600, why: Failure::TooMuchLost });
    // Adjacent small losses form one run of less than a block.
    let (outcome, peer) = decoded(&[(1000, 1700)]);
    assert_eq!(runs(&peer, &outcome), [(1000, 1700, false)]);
}

/// At most 32 runs of missing bytes are repaired, even if no two share a column.
#[test]
fn many_small_losses_in_different_columns_are_rebuilt_up_to_a_bound() {
    let small = |count| -> Vec<(u32, u32)> {
        (0..count).map(|run| (run % 2 * 1000 + run * 20, run % 2 * 1000 + run * 20 + 10)).collect()
    };
    let decoded = |count| {
        let peer = Peer::new(2000).without(&small(count));
        let sent = peer.sent(layout(Code::Xor, 2000, 1000), FIRST, 0, 1);
        (decode(&mut Decoder::new(config(Code::Xor)), &peer, &sent), peer)
    };
    let (outcome, peer) = decoded(32);
    let mut expected: Vec<_> = small(32).into_iter().map(|(from, to)| (from, to, false)).collect();
    expected.sort_unstable();
    assert_eq!(runs(&peer, &outcome), expected);
    assert_eq!(decoded(33).0, Outcome::Failed { lost_len: 2000, why: Failure::TooMuchLost });
}

#[test]
fn two_losses_in_one_column_are_reported_as_a_failure() {
    let peer = Peer::new(4000).without(&[(1000, 3000)]);
    let sent = peer.sent(layout(Code::Xor, 4000, 1000), FIRST, 0, 1);
    let outcome = decode(&mut Decoder::new(config(Code::Xor)), &peer, &sent);
    assert_eq!(outcome, Outcome::Failed { lost_len: 3000, why: Failure::TooMuchLost });
}

#[test]
fn interleaved_parities_repair_one_loss_each() {
    let mut peer = Peer::new(4000).without(&[(1000, 3000)]);
    let mut decoder = Decoder::new(config(Code::XorInterleaved));
    let halves = Layout::of_group(Code::XorInterleaved, range(0, 4000), 1000);
    let outcome = decode(&mut decoder, &peer, &peer.sent(halves[0], FIRST, 0, 1));
    assert_eq!(runs(&peer, &outcome), [(2000, 3000, false)]);
    peer = peer.without(&[(1000, 2000)]);
    let outcome = decode(&mut decoder, &peer, &peer.sent(halves[1], FIRST, 0, 1));
    assert_eq!(runs(&peer, &outcome), [(1000, 2000, false)]);
}

#[test]
fn parity_with_nothing_missing_has_no_effect() {
    let peer = Peer::new(3000).without(&[]);
    let sent = peer.sent(layout(Code::Xor, 3000, 1000), FIRST, 0, 1);
    assert_eq!(decode(&mut Decoder::new(config(Code::Xor)), &peer, &sent), Outcome::Nothing);
    // A hole is not repaired either if only the other of the two interleaved parities covers its block.
    let peer = Peer::new(4000).without(&[(1000, 2000)]);
    let halves = Layout::of_group(Code::XorInterleaved, range(0, 4000), 1000);
    let sent = peer.sent(halves[0], FIRST, 0, 1);
    assert_eq!(decode(&mut Decoder::new(config(Code::XorInterleaved)), &peer, &sent), Outcome::Nothing);
}

#[test]
fn a_fin_is_repaired_with_the_last_bytes_and_alone() {
    let mut decoder = Decoder::new(config(Code::Xor));
    let with_fin = |sent: Sent| match sent.option {
        Gentle::EncF2 { flags, enc_len, start_off, crc32c } => Sent {
            option: Gentle::EncF2 { flags: flags | gentle::FIN_END, enc_len, start_off, crc32c },
            ..sent
        },
        _ => panic!("one parity"),
    };
    let tail_lost = Peer::new(1500).without(&[(1000, 1500)]);
    let sent = with_fin(tail_lost.sent(layout(Code::Xor, 1500, 1000), FIRST, 0, 1));
    assert_eq!(runs(&tail_lost, &decode(&mut decoder, &tail_lost, &sent)), [(1000, 1500, true)]);
    let fin_lost = Peer::new(1500).without(&[]);
    assert_eq!(runs(&fin_lost, &decode(&mut decoder, &fin_lost, &sent)), [(1500, 1500, true)]);
    let both = Peer::new(1500).without(&[(0, 400)]);
    assert_eq!(runs(&both, &decode(&mut decoder, &both, &sent)), [(0, 400, false), (1500, 1500, true)]);
    let known = Edges { fin_known: true, ..fin_lost.edges() };
    assert_eq!(decode_at(&mut decoder, &fin_lost, &sent, &known, NOW), Outcome::Nothing);
}

/// Bit 5 of byte 10 of the first segment was flipped on the path, and the second segment is lost.
#[test]
fn rewritten_parity_repairs_nothing_and_twice_ends_reception() {
    let mut peer = Peer::new(3000).without(&[(1000, 2000)]);
    let sent = peer.sent(layout(Code::Xor, 3000, 1000), FIRST, 0, 1);
    peer.stream[10] ^= 1 << 5;
    let mut decoder = Decoder::new(config(Code::Xor));
    let outcome = decode(&mut decoder, &peer, &sent);
    assert_eq!(outcome, Outcome::Failed { lost_len: 2000, why: Failure::Checksum });
    assert_eq!(decode(&mut decoder, &peer, &sent), Outcome::Stop);
}

#[test]
fn bytes_that_are_no_longer_held_make_a_repair_impossible() {
    let mut peer = Peer::new(3000).without(&[(1000, 2000)]);
    let sent = peer.sent(layout(Code::Xor, 3000, 1000), FIRST, 0, 1);
    peer.oldest = FIRST + 1;
    let outcome = decode(&mut Decoder::new(config(Code::Xor)), &peer, &sent);
    assert_eq!(outcome, Outcome::Failed { lost_len: 2000, why: Failure::History });
}

#[test]
fn segments_that_no_sender_makes_are_dropped_without_an_answer() {
    let peer = Peer::new(3000).without(&[(1000, 2000)]);
    let good = peer.sent(layout(Code::Xor, 3000, 1000), FIRST, 0, 1);
    let Gentle::EncF2 { flags, enc_len, start_off, crc32c } = good.option else { panic!("one parity") };
    let option = |enc_len, start_off| Gentle::EncF2 { flags, enc_len, start_off, crc32c };
    let f1 = Gentle::EncF1 { flags, enc_len };
    let rs = Gentle::EncRs { flags, enc_len, start_off, crc32c, parity: 0, parities: 1 };
    let cases = [
        (Sent { flags: Flags::ACK | Flags::FIN, ..good.clone() }, Unfit::Form),
        (Sent { flags: Flags::ACK | Flags::URG, ..good.clone() }, Unfit::Form),
        (Sent { payload: Vec::new(), ..good.clone() }, Unfit::Form),
        (Sent { option: f1, ..good.clone() }, Unfit::Form),
        (Sent { option: rs, ..good.clone() }, Unfit::Form),
        (Sent { option: Gentle::Short { flags: 0 }, ..good.clone() }, Unfit::Form),
        (Sent { seq: good.seq + 1001, ..good.clone() }, Unfit::NotLeft),
        (Sent { seq: peer.rcv_nxt - (1 << 30), ..good.clone() }, Unfit::NotLeft),
        (Sent { option: option(999, start_off), ..good.clone() }, Unfit::Shape),
        (Sent { option: option(16_001, start_off), ..good.clone() }, Unfit::Shape),
        (Sent { payload: vec![0; RMSS as usize + 1], seq: good.seq - 1000, ..good.clone() }, Unfit::Shape),
        (Sent { option: option(3000, 66_000), ..good.clone() }, Unfit::BeyondWindow),
    ];
    for (index, (sent, unfit)) in cases.into_iter().enumerate() {
        let outcome = decode(&mut Decoder::new(config(Code::Xor)), &peer, &sent);
        assert_eq!(outcome, Outcome::Dropped(unfit), "case {index}");
    }
}

#[test]
fn ranges_before_the_history_are_dropped_if_they_are_new() {
    let mut peer = Peer::new(3000).without(&[(1000, 2000)]);
    peer.oldest = FIRST + 20_000;
    let good = peer.sent(layout(Code::Xor, 3000, 1000), FIRST, 0, 1);
    let parity = |enc_len, payload: usize| {
        let option = Gentle::EncF2 { flags: gentle::ENC, enc_len, start_off: 10_000, crc32c: 0 };
        Sent { seq: FIRST - 1000, option, payload: vec![0; payload], ..good.clone() }
    };
    let decode = |sent: &Sent, rcv_nxt| {
        let edges = Edges { rcv_nxt, ..peer.edges() };
        decode_at(&mut Decoder::new(config(Code::Xor)), &peer, sent, &edges, NOW)
    };
    let start = FIRST + 9000;
    let edge = start + 15 * RMSS;
    assert_eq!(decode(&parity(22_000, 1400), edge + 1), Outcome::Dropped(Unfit::TooOld));
    // The largest permitted history would reach that far, but this receiver has freed it.
    let failed = Outcome::Failed { lost_len: 22_000 - 15 * RMSS, why: Failure::History };
    assert_eq!(decode(&parity(22_000, 1400), edge), failed);
    assert_eq!(decode(&parity(16_000, 1000), edge), Outcome::Nothing, "it ends there too");
}

#[test]
fn sequence_numbers_wrap_within_a_group() {
    let mut peer = Peer::new(3000);
    peer.first = SeqNum(0xffff_fc18);
    let peer = peer.without(&[(1000, 2000)]);
    let group = SeqRange::with_len(peer.first, 3000);
    let sent = peer.sent(Layout::new(Code::Xor, group, 1000).expect("legal"), peer.first, 0, 1);
    assert_eq!(sent.seq, SeqNum(0xffff_f830));
    let outcome = decode(&mut Decoder::new(config(Code::Xor)), &peer, &sent);
    assert_eq!(runs(&peer, &outcome), [(1000, 2000, false)]);
}

/// Two segments are lost. The parity of the second alone is refused, because its checksum does not cover its
/// position and a device may have moved it. The parity of the first is accepted, because its range starts at
/// RCV.NXT.
#[test]
fn a_range_of_which_nothing_arrived_must_follow_what_has() {
    let peer = Peer::new(4000).without(&[(1000, 3000)]);
    let second = Layout::new(Code::Xor, range(2000, 3000), 1000).expect("one block");
    let failed = Outcome::Failed { lost_len: 2000, why: Failure::TooMuchLost };
    let sent = peer.sent(second, FIRST, 0, 1);
    assert_eq!(decode(&mut Decoder::new(config(Code::Xor)), &peer, &sent), failed);
    let first = Layout::new(Code::Xor, range(1000, 2000), 1000).expect("one block");
    let outcome = decode(&mut Decoder::new(config(Code::Xor)), &peer, &peer.sent(first, FIRST, 0, 1));
    assert_eq!(runs(&peer, &outcome), [(1000, 2000, false)]);
}

/// The same with a code whose checksum covers the position of the range.
#[test]
fn a_range_that_was_moved_fails_its_checksum() {
    let peer = Peer::new(4000).without(&[(1000, 3000)]);
    let second = Layout::new(Code::ReedSolomon, range(2000, 3000), 1000).expect("one block");
    let sent = peer.sent(second, FIRST, 0, 1);
    let outcome = decode(&mut Decoder::new(config(Code::ReedSolomon)), &peer, &sent);
    assert_eq!(runs(&peer, &outcome), [(2000, 3000, false)]);
    let moved = Sent { seq: sent.seq - 1000, ..sent };
    let outcome = decode(&mut Decoder::new(config(Code::ReedSolomon)), &peer, &moved);
    assert_eq!(outcome, Outcome::Failed { lost_len: 1000, why: Failure::Checksum });
}

#[test]
fn decoding_is_limited_in_rate() {
    let peer = Peer::new(3000).without(&[(1000, 2000)]);
    let sent = peer.sent(layout(Code::Xor, 3000, 1000), FIRST, 0, 1);
    let mut decoder = Decoder::new(config(Code::Xor));
    for _ in 0..RATE_LIMIT {
        assert!(matches!(decode(&mut decoder, &peer, &sent), Outcome::Recovered(_)));
    }
    assert_eq!(decode(&mut decoder, &peer, &sent), Outcome::Dropped(Unfit::Rate));
    let later = decode_at(&mut decoder, &peer, &sent, &peer.edges(), NOW + RATE_SPAN);
    assert!(matches!(later, Outcome::Recovered(_)));
}

#[cfg(feature = "historical")]
#[test]
fn profile_f1_lies_at_the_first_encoded_byte_and_has_no_checksum() {
    let peer = Peer::new(3000).without(&[(1000, 2000)]);
    let f2 = peer.sent(layout(Code::Xor, 3000, 1000), FIRST, 0, 1);
    let f1 = Sent { seq: FIRST, option: Gentle::EncF1 { flags: gentle::ENC, enc_len: 3000 }, ..f2.clone() };
    let config = DecoderConfig { profile: Profile::F1, ..config(Code::Xor) };
    let mut decoder = Decoder::new(config);
    assert_eq!(runs(&peer, &decode(&mut decoder, &peer, &f1)), [(1000, 2000, false)]);
    assert_eq!(decode(&mut decoder, &peer, &f2), Outcome::Dropped(Unfit::Form));
}

/// Three of 21 segments lost, three parities.
fn three_of_21() -> (Peer, [Sent; 3]) {
    let peer = Peer::new(21_000).without(&[(0, 1000), (5000, 6000), (20_000, 21_000)]);
    let sent = [0, 1, 2].map(|row| peer.sent(layout(Code::ReedSolomon, 21_000, 1000), FIRST, row, 3));
    (peer, sent)
}

#[test]
fn three_lost_segments_take_three_parities() {
    let (peer, sent) = three_of_21();
    let mut decoder = Decoder::new(config(Code::ReedSolomon));
    assert_eq!(decode(&mut decoder, &peer, &sent[0]), Outcome::Waiting);
    assert_eq!(decode(&mut decoder, &peer, &sent[1]), Outcome::Waiting);
    let outcome = decode(&mut decoder, &peer, &sent[2]);
    assert_eq!(runs(&peer, &outcome), [(0, 1000, false), (5000, 6000, false), (20_000, 21_000, false)]);
    assert_eq!(decoder.memory(), 0);
}

#[test]
fn any_one_parity_repairs_one_loss_at_once() {
    for row in 0..3 {
        let peer = Peer::new(21_000).without(&[(5000, 6000)]);
        let sent = peer.sent(layout(Code::ReedSolomon, 21_000, 1000), FIRST, row, 3);
        let outcome = decode(&mut Decoder::new(config(Code::ReedSolomon)), &peer, &sent);
        assert_eq!(runs(&peer, &outcome), [(5000, 6000, false)], "row {row}");
    }
    // A group's only parity has the form enc-F2, and is the XOR of the blocks.
    let peer = Peer::new(21_000).without(&[(5000, 6000)]);
    let sent = peer.sent(layout(Code::ReedSolomon, 21_000, 1000), FIRST, 0, 1);
    assert!(matches!(sent.option, Gentle::EncF2 { .. }));
    let outcome = decode(&mut Decoder::new(config(Code::ReedSolomon)), &peer, &sent);
    assert_eq!(runs(&peer, &outcome), [(5000, 6000, false)]);
}

#[test]
fn failure_after_a_lost_parity_is_reported_with_the_last_parity() {
    let (peer, sent) = three_of_21();
    let mut decoder = Decoder::new(config(Code::ReedSolomon));
    assert_eq!(decode(&mut decoder, &peer, &sent[0]), Outcome::Waiting);
    let failed = Outcome::Failed { lost_len: 21_000, why: Failure::TooMuchLost };
    assert_eq!(decode(&mut decoder, &peer, &sent[2]), failed);
    // The second parity was not lost; the third only overtook it.
    assert!(matches!(decode(&mut decoder, &peer, &sent[1]), Outcome::Recovered(_)));
}

#[test]
fn waiting_parities_repair_after_late_data_arrives() {
    let (peer, sent) = three_of_21();
    let mut decoder = Decoder::new(config(Code::ReedSolomon));
    decode(&mut decoder, &peer, &sent[0]);
    decode(&mut decoder, &peer, &sent[2]);
    assert_eq!(decoder.on_data(&peer.edges(), &peer, NOW), None);
    let peer = peer.without(&[(0, 1000), (20_000, 21_000)]);
    let outcome = decoder.on_data(&peer.edges(), &peer, NOW).expect("two missing, two parities");
    assert_eq!(runs(&peer, &outcome), [(0, 1000, false), (20_000, 21_000, false)]);
    assert_eq!((decoder.on_data(&peer.edges(), &peer, NOW), decoder.memory()), (None, 0));
}

#[test]
fn a_checksum_that_fails_on_late_data_counts() {
    let (peer, mut sent) = three_of_21();
    sent[1].payload[500] ^= 1;
    let mut decoder = Decoder::new(config(Code::ReedSolomon));
    decode(&mut decoder, &peer, &sent[0]);
    decode(&mut decoder, &peer, &sent[1]);
    let peer = peer.without(&[(5000, 6000), (20_000, 21_000)]);
    let failed = Outcome::Failed { lost_len: 16_000, why: Failure::Checksum };
    assert_eq!(decoder.on_data(&peer.edges(), &peer, NOW), Some(failed));
    assert_eq!((decoder.mismatches, decoder.memory()), (1, 0));
}

#[test]
fn a_parity_that_arrives_twice_counts_once() {
    let (peer, sent) = three_of_21();
    let mut again = sent[0].clone();
    again.payload[500] ^= 1;
    let mut decoder = Decoder::new(config(Code::ReedSolomon));
    for sent in [&sent[0], &again, &sent[1], &sent[0]] {
        assert_eq!(decode(&mut decoder, &peer, sent), Outcome::Waiting);
    }
    assert_eq!(decoder.waiting.len(), 2);
    assert_eq!(runs(&peer, &decode(&mut decoder, &peer, &sent[2])).len(), 3, "the first one was kept");
}

#[test]
fn flags_that_a_profile_does_not_have_change_nothing() {
    let peer = Peer::new(3000).without(&[(1000, 2000)]);
    let sent = peer.sent(layout(Code::Xor, 3000, 1000), FIRST, 0, 1);
    let Gentle::EncF2 { flags, enc_len, start_off, crc32c } = sent.option else { panic!("one parity") };
    let foreign = flags | gentle::S_PAR | gentle::A_PAR | gentle::COPY;
    #[cfg(feature = "historical")]
    {
        let f1 = Gentle::EncF1 { flags: foreign | gentle::FIN_END, enc_len };
        let f1 = Sent { seq: FIRST, option: f1, ..sent.clone() };
        let config = DecoderConfig { profile: Profile::F1, ..config(Code::Xor) };
        let outcome = decode(&mut Decoder::new(config), &peer, &f1);
        assert_eq!(runs(&peer, &outcome), [(1000, 2000, false)], "no FIN");
    }
    let foreign = foreign | gentle::R_ACK | gentle::R_SUCC;
    let f2 = Sent { option: Gentle::EncF2 { flags: foreign, enc_len, start_off, crc32c }, ..sent };
    let outcome = decode(&mut Decoder::new(config(Code::Xor)), &peer, &f2);
    assert_eq!(runs(&peer, &outcome), [(1000, 2000, false)]);
}

/// The missing ranges of a vector.
fn ranges(word: &str) -> Vec<(u32, u32)> {
    let number = |text: &str| text.parse().expect("a number");
    let range =
        |word: &str| word.split_once('-').map(|(from, to)| (number(from), number(to))).expect("a range");
    if word == "-" { Vec::new() } else { word.split(',').map(range).collect() }
}

/// Returns the receiver's result in the words of `docs/wire/vectors.md`.
fn answer(peer: &Peer, outcome: Option<&Outcome>) -> std::string::String {
    match outcome {
        None | Some(Outcome::Nothing) => "nothing".into(),
        Some(Outcome::Waiting) => "wait".into(),
        Some(Outcome::Failed { lost_len, .. }) => std::format!("fail:{lost_len}"),
        Some(outcome) => {
            let run = |(from, to, fin)| std::format!("{from}-{to}{}", if fin { "+fin" } else { "" });
            let runs: Vec<_> = runs(peer, outcome).into_iter().map(run).collect();
            std::format!("repair:{}", runs.join(","))
        }
    }
}

/// The list of repairs in `docs/wire/vectors.md`.
#[test]
fn wire_vectors_of_repairs() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/wire/vectors.md");
    let page = std::fs::read_to_string(page).expect("the page is in the repository");
    let lines = page.lines().skip_while(|line| *line != "```repair").skip(1);
    let vectors: Vec<_> = lines.take_while(|line| *line != "```").collect();
    assert!(vectors.len() > 15, "the list is found");
    for line in vectors {
        let words: Vec<_> = line.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<u32>().expect("a number");
        let code = Code::from_encoding(number(0) as u8).expect("an encoding type");
        let mut missing = ranges(words[4]);
        let mut peer = Peer::new(number(1)).without(&missing);
        let mut decoder = Decoder::new(config(code));
        for event in words[5..].chunks(2) {
            let (kind, what) = event[0].split_at(1);
            let outcome = if kind == "d" {
                let came = ranges(what);
                missing.retain(|lost| !came.contains(lost));
                peer = peer.without(&missing);
                decoder.on_data(&peer.edges(), &peer, NOW)
            } else {
                let layout = layout(code, number(1), number(2));
                let mut sent = peer.sent(layout, FIRST, what.parse().expect("j"), number(3) as u8);
                if let Gentle::EncF2 { flags, .. } | Gentle::EncRs { flags, .. } = &mut sent.option
                    && kind == "f"
                {
                    *flags |= gentle::FIN_END;
                }
                Some(decode(&mut decoder, &peer, &sent))
            };
            assert_eq!(answer(&peer, outcome.as_ref()), event[1], "{} in {line}", event[0]);
        }
    }
}

#[test]
fn a_parity_that_was_rewritten_spoils_its_group_and_delivers_nothing() {
    let (peer, mut sent) = three_of_21();
    sent[1].payload[500] ^= 1;
    let mut decoder = Decoder::new(config(Code::ReedSolomon));
    decode(&mut decoder, &peer, &sent[0]);
    decode(&mut decoder, &peer, &sent[1]);
    let failed = Outcome::Failed { lost_len: 21_000, why: Failure::Checksum };
    assert_eq!(decode(&mut decoder, &peer, &sent[2]), failed);
    assert_eq!(decoder.memory(), 0);
}

#[test]
fn waiting_parities_are_bounded_and_freed_with_their_group() {
    let mut decoder = Decoder::new(config(Code::ReedSolomon));
    let peer = Peer::new(30_000).without(&[(0, 30_000)]);
    for group in 0..15 {
        let range = range(group * 2000, group * 2000 + 2000);
        let layout = Layout::new(Code::ReedSolomon, range, 1000).expect("two blocks");
        assert_eq!(decode(&mut decoder, &peer, &peer.sent(layout, FIRST, 0, 2)), Outcome::Waiting);
        assert_eq!(decode(&mut decoder, &peer, &peer.sent(layout, FIRST, 0, 2)), Outcome::Waiting, "again");
        assert!(decoder.memory() <= WAITING_MAX * RMSS as usize);
    }
    assert_eq!(decoder.waiting.len(), WAITING_MAX);
    let peer = peer.without(&[(29_000, 30_000)]);
    decoder.on_data(&peer.edges(), &peer, NOW);
    assert_eq!(decoder.memory(), 0, "that last parity has repaired it");
}
