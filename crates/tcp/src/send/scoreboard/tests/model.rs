//! Compares the scoreboard with a state per byte.

use std::vec::Vec;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Send { segments: u32, size: u32, fin: bool },
    Again { origin: u8, from: u32, len: u32 },
    Retransmit { max_len: u32 },
    Ack { advance: u32, blocks: Vec<(i32, u32)>, window_changed: bool },
    MarkLost { from: u32, len: u32 },
    MarkAllLost,
    MarkHeadLost,
    Unmark,
    Renege,
    Resplit { mss: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let block = (-1500i32..5000, 0u32..1500);
    prop_oneof![
        6 => (1u32..5, 1u32..400, prop::bool::weighted(0.02))
            .prop_map(|(segments, size, fin)| Step::Send { segments, size, fin }),
        2 => (0u8..4, 0u32..4000, 0u32..900).prop_map(|(origin, from, len)| Step::Again { origin, from, len }),
        4 => (0u32..600).prop_map(|max_len| Step::Retransmit { max_len }),
        8 => (0u32..700, prop::collection::vec(block, 0..4), any::<bool>()).prop_map(
            |(advance, blocks, window_changed)| Step::Ack {
                advance: advance.saturating_sub(350),
                blocks,
                window_changed
            }
        ),
        3 => (0u32..4000, 0u32..1200).prop_map(|(from, len)| Step::MarkLost { from, len }),
        1 => Just(Step::MarkAllLost),
        1 => Just(Step::MarkHeadLost),
        1 => Just(Step::Unmark),
        1 => Just(Step::Renege),
        1 => (1u32..300).prop_map(|mss| Step::Resplit { mss }),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Byte {
    InFlight,
    Sacked,
    Lost,
}

/// The scoreboard as one state per outstanding byte.
struct Model {
    una: SeqNum,
    bytes: VecDeque<Byte>,
}

impl Model {
    fn each(&mut self, range: SeqRange, mut change: impl FnMut(&mut Byte)) {
        let outstanding = SeqRange::with_len(self.una, self.bytes.len() as u32);
        if let Some(range) = range.intersection(&outstanding) {
            let from = range.start.since(self.una) as usize;
            self.bytes.range_mut(from..from + range.len() as usize).for_each(&mut change);
        }
    }

    fn count(&self, state: Byte) -> u32 {
        self.bytes.iter().filter(|byte| **byte == state).count() as u32
    }

    fn replace(&mut self, range: SeqRange, from: Byte, to: Byte) {
        self.each(range, |byte| *byte = if *byte == from { to } else { *byte });
    }
}

fn check(board: &Scoreboard, model: &Model, sack: bool) -> Result<(), TestCaseError> {
    let mut at = board.una();
    let mut flat = VecDeque::new();
    for record in board.records() {
        prop_assert_eq!(record.range.start, at);
        prop_assert!(!record.range.is_empty());
        prop_assert!(!record.sacked || !record.lost);
        prop_assert!(record.transmissions >= 1 && record.first_sent_at <= record.sent_at);
        let state = match (record.sacked, record.lost) {
            (true, _) => Byte::Sacked,
            (false, true) => Byte::Lost,
            (false, false) => Byte::InFlight,
        };
        flat.extend(core::iter::repeat_n(state, record.range.len() as usize));
        at = record.range.end;
    }
    prop_assert_eq!(at, board.nxt());
    prop_assert_eq!(board.una(), model.una);
    prop_assert_eq!(&flat, &model.bytes);
    prop_assert_eq!(board.sacked_bytes(), model.count(Byte::Sacked));
    prop_assert_eq!(board.lost_bytes(), model.count(Byte::Lost));
    prop_assert_eq!(board.has_lost(), model.count(Byte::Lost) > 0);
    let sacked = board.records().filter(|record| record.sacked).count();
    prop_assert_eq!(board.sacked_segments() as usize, sacked);
    if sack {
        prop_assert_eq!(board.pipe(), model.count(Byte::InFlight));
    } else {
        prop_assert!(board.pipe() <= model.count(Byte::InFlight));
    }
    let in_flight: Vec<_> = board.records().filter(|record| record.in_flight()).collect();
    prop_assert_eq!(board.in_flight().count(), in_flight.len());
    let (originals, resent): (Vec<_>, Vec<_>) =
        in_flight.into_iter().partition(|record| record.transmissions == 1);
    prop_assert_eq!(board.originals().collect::<Vec<_>>(), originals);
    let walked: Vec<_> = board.resent().collect();
    prop_assert!(walked.is_sorted_by_key(|record| record.sent_at));
    prop_assert_eq!(walked.len(), resent.len());
    prop_assert!(resent.iter().all(|record| walked.contains(record)));
    Ok(())
}

fn plain(range: SeqRange, origin: Origin, at: Instant) -> Sent {
    Sent { range, segment_size: MSS, origin, syn: false, fin: false, at }
}

/// Retransmits `range`, on the board and in the model.
fn send_again(board: &mut Scoreboard, model: &mut Model, sent: &Sent) {
    board.on_sent(sent);
    if !matches!(sent.origin, Origin::Parity | Origin::Duplicate) {
        model.replace(sent.range, Byte::Lost, Byte::InFlight);
    }
}

fn acknowledge(
    board: &mut Scoreboard,
    model: &mut Model,
    ack: SeqNum,
    ranges: &[SeqRange],
    info: AckInfo,
) -> Result<(), TestCaseError> {
    let (una, nxt, sack) = (board.una(), board.nxt(), board.sack);
    let wire = ranges.iter().map(|range| SackBlock { start: range.start, end: range.end });
    let outcome = board.on_ack(ack, &wire.collect(), info);
    prop_assert_eq!(outcome.advanced, ack.since(una));
    let mut delivered = 0;
    for _ in 0..outcome.advanced {
        delivered += u32::from(model.bytes.pop_front() != Some(Byte::Sacked));
    }
    model.una = ack;
    let skip = usize::from(dsack_range(ranges, ack).is_some());
    for range in ranges.iter().skip(skip).filter(|range| sack && range.end.le(nxt) && range.start.gt(ack)) {
        model.each(*range, |byte| {
            delivered += u32::from(*byte != Byte::Sacked);
            *byte = Byte::Sacked;
        });
    }
    let listed: u32 = outcome.delivered.iter().map(|segment| segment.range.len()).sum();
    prop_assert_eq!(listed, delivered);
    prop_assert!(outcome.delivered.is_sorted_by_key(|segment| segment.sent_at));
    if sack {
        prop_assert_eq!(outcome.delivered_bytes, delivered);
    }
    Ok(())
}

/// A step that transmits or acknowledges.
fn exchange(
    board: &mut Scoreboard,
    model: &mut Model,
    step: &Step,
    now: Instant,
) -> Result<(), TestCaseError> {
    let (una, nxt) = (board.una(), board.nxt());
    match step {
        Step::Send { .. } if board.tail().is_some_and(|tail| tail.fin) => {}
        Step::Send { segments, size, fin } => {
            let range = SeqRange::with_len(nxt, segments * size + u32::from(*fin));
            board.on_sent(&Sent { segment_size: *size, fin: *fin, ..plain(range, Origin::New, now) });
            prop_assert_eq!(board.nxt(), range.end);
            model.bytes.extend(core::iter::repeat_n(Byte::InFlight, range.len() as usize));
        }
        Step::Again { origin, from, len } => {
            let start = una + (*from).min(nxt.since(una));
            let range = SeqRange::new(start, (start + *len).min(nxt));
            let origins = [Origin::Retransmit, Origin::TailLossProbe, Origin::Duplicate, Origin::Parity];
            send_again(board, model, &plain(range, origins[usize::from(*origin)], now));
        }
        Step::Retransmit { max_len } => {
            if let Some(range) = board.next_lost(*max_len) {
                prop_assert!(!range.is_empty() && range.len() <= max_len + 1);
                model.each(range, |byte| assert_eq!(*byte, Byte::Lost));
                send_again(board, model, &plain(range, Origin::Retransmit, now));
            } else {
                prop_assert!(*max_len == 0 || !board.has_lost());
            }
        }
        Step::Ack { advance, blocks, window_changed } => {
            let ack = una + (*advance).min(nxt.since(una));
            let start = |from: i32| SeqNum(ack.0.wrapping_add_signed(from));
            let ranges: Vec<SeqRange> =
                blocks.iter().map(|&(from, len)| SeqRange::with_len(start(from), len)).collect();
            let info = AckInfo { window_changed: *window_changed, ..info(now) };
            acknowledge(board, model, ack, &ranges, info)?;
        }
        other => mark(board, model, other)?,
    }
    Ok(())
}

/// Runs a step that changes the assumed state of outstanding data.
fn mark(board: &mut Scoreboard, model: &mut Model, step: &Step) -> Result<(), TestCaseError> {
    let all = SeqRange::new(board.una(), board.nxt());
    match step {
        Step::Send { .. } | Step::Again { .. } | Step::Retransmit { .. } | Step::Ack { .. } => {}
        Step::MarkLost { from, len } => {
            let range = SeqRange::with_len(all.start + *from, *len);
            let before = model.count(Byte::Lost);
            let newly = board.mark_lost(range);
            model.replace(range, Byte::InFlight, Byte::Lost);
            prop_assert_eq!(newly, model.count(Byte::Lost) - before);
        }
        Step::MarkAllLost => {
            board.mark_all_lost();
            model.replace(all, Byte::InFlight, Byte::Lost);
            prop_assert_eq!(board.pipe(), 0);
        }
        Step::MarkHeadLost => {
            let len = board.head().map_or(0, |head| head.range.len());
            board.mark_head_lost(MSS);
            model.replace(SeqRange::with_len(all.start, len), Byte::InFlight, Byte::Lost);
        }
        Step::Unmark => {
            board.unmark_lost();
            model.replace(all, Byte::Lost, Byte::InFlight);
        }
        Step::Renege => {
            board.clear_sacked();
            model.replace(all, Byte::Sacked, Byte::InFlight);
        }
        Step::Resplit { mss } => {
            board.resplit(*mss);
            prop_assert!(board.records().all(|record| record.payload() <= *mss));
        }
    }
    Ok(())
}

fn run(steps: Vec<Step>, sack: bool) -> Result<(), TestCaseError> {
    let mut board = Scoreboard::new(ISS, sack);
    let mut model = Model { una: ISS, bytes: VecDeque::new() };
    for (index, step) in steps.into_iter().enumerate() {
        exchange(&mut board, &mut model, &step, ms(index as u64))?;
        check(&board, &model, sack)?;
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_scoreboard_agrees_with_a_state_per_byte(
        steps in prop::collection::vec(step(), 1..50),
        sack: bool,
    ) {
        run(steps, sack)?;
    }

    #[test]
    fn no_acknowledgement_causes_a_panic(
        acks in prop::collection::vec(
            (any::<u32>(), prop::collection::vec((any::<u32>(), any::<u32>()), 0..4), any::<u32>()),
            1..30,
        ),
        sack: bool,
    ) {
        let mut board = self::board(8, sack);
        for (ack, pairs, max_snd_wnd) in acks {
            let sack = pairs.iter().map(|&(start, end)| SackBlock { start: SeqNum(start), end: SeqNum(end) });
            board.on_ack(SeqNum(ack), &sack.collect(), AckInfo { max_snd_wnd, ..info(ms(9)) });
            prop_assert!(board.pipe() <= board.outstanding());
        }
    }
}
