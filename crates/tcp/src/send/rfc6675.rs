//! Loss detection by counting, as in the years around 2012: three segments reported by SACK (RFC 6675),
//! forward acknowledgement (FACK, Mathis and Mahdavi 1996) and early retransmit (RFC 5827). Table 1 of Gentle
//! Aggression needs a relaxed form of early retransmit, which is here too.
//!
//! In the paper this loss detection is the baseline. It also runs together with the paper's probes, and then
//! finds the lost segments from the acknowledgement of a probe. The threshold is dynamic: it rises to the
//! longest observed reordering. Only the retransmission timer detects lost retransmissions.

use brisk_wire::SeqNum;

use super::rack::RackVerdict;
use super::scoreboard::{Record, Scoreboard};
use crate::config::{EarlyRetransmit, Rfc6675Config};
use crate::outcome::{AckOutcome, LossCause, Origin};

/// With at most this number of outstanding segments, three duplicates cannot arrive (RFC 5827).
const FEW: u32 = 3;
/// Maximum of the dynamic threshold (Linux at that time: TCP_MAX_REORDERING).
const MAX_DUP_THRESH: u32 = 127;

/// Loss detection of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Rfc6675 {
    config: Rfc6675Config,
    dup_thresh: u32,
    /// The highest sequence number that is known to be delivered.
    fack: Option<SeqNum>,
    reordering_seen: bool,
}

/// The connection's state in addition to the scoreboard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Situation {
    /// Lost data is being repaired.
    pub(crate) in_recovery: bool,
    /// New data could leave now.
    pub(crate) may_send_new: bool,
}

/// Segment counts of the scoreboard.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    outstanding: u32,
    sacked: u32,
    /// Segments from SND.UNA to the highest one reported by SACK, inclusive.
    spanned: u32,
}

impl Rfc6675 {
    /// Returns the detection before the first acknowledgement.
    pub(crate) fn new(config: &Rfc6675Config, dup_thresh: u32) -> Self {
        Rfc6675 { config: *config, dup_thresh, fack: None, reordering_seen: false }
    }

    /// Returns the data that an acknowledgement declares lost, and the rule that declares it.
    pub(crate) fn on_ack(
        &mut self,
        ack: &AckOutcome,
        board: &Scoreboard,
        situation: &Situation,
    ) -> (RackVerdict, LossCause) {
        self.detect_reordering(ack, board);
        let count = Count::of(board);
        let counted = self.by_count(board, &count);
        if !counted.0.lost.is_empty() {
            // Segments sent before a probe are at least a probe timeout old. So if a probe has arrived, all
            // holes are lost.
            let probed = ack.delivered.iter().any(|segment| segment.origin == Origin::TailLossProbe);
            return if probed && !situation.in_recovery {
                (holes(board, 0, &count), counted.1)
            } else {
                counted
            };
        }
        if situation.in_recovery {
            return (self.after_partial_ack(ack, board, &count), LossCause::DupThresh);
        }
        (self.early_retransmit(board, &count, situation), LossCause::EarlyRetransmit)
    }

    /// Reacts to the undo of a fast recovery. More segments than the threshold allowed had overtaken the
    /// segments declared lost.
    pub(crate) fn on_spurious_recovery(&mut self) {
        self.reordering_seen = true;
        self.dup_thresh = (self.dup_thresh + 1).min(MAX_DUP_THRESH);
    }

    /// True once a segment arrived after one that was sent later.
    pub(crate) fn reordering_seen(&self) -> bool {
        self.reordering_seen
    }

    /// Detects an overtaken segment: it was sent once, and is delivered below data that was delivered before
    /// it. The threshold rises to the number of segments from it to the highest delivered one, both included.
    fn detect_reordering(&mut self, ack: &AckOutcome, board: &Scoreboard) {
        let before = self.fack;
        for segment in &ack.delivered {
            if let Some(fack) = before.filter(|fack| segment.range.end.lt(*fack) && !segment.retransmitted) {
                self.reordering_seen = true;
                let size = segment.range.len().max(1);
                let overtaken_by = fack.since(segment.range.start).div_ceil(size);
                self.dup_thresh = self.dup_thresh.max(overtaken_by).min(MAX_DUP_THRESH);
            }
        }
        let high = board.highest_sacked().unwrap_or(ack.una_before + ack.advanced);
        self.fack = Some(self.fack.map_or(high, |fack| fack.max(high)));
    }

    /// Detects losses by counting. RFC 6675 section 4: IsLost() is true if "DupThresh discontiguous SACKed
    /// sequences have arrived above 'SeqNum' or more than (DupThresh - 1) * SMSS bytes". Counting segments
    /// instead of bytes makes the second condition include the first. FACK counts holes below the highest
    /// SACK too.
    fn by_count(&self, board: &Scoreboard, count: &Count) -> (RackVerdict, LossCause) {
        if self.config.fack && count.spanned > self.dup_thresh {
            return (holes(board, self.dup_thresh, count), LossCause::Fack);
        }
        let mut verdict = RackVerdict::default();
        let mut sacked_above = count.sacked;
        for record in board.records().take(count.spanned as usize) {
            sacked_above -= u32::from(record.sacked);
            if sacked_above >= self.dup_thresh && is_sent_once(record) {
                verdict.add(record);
            }
        }
        (verdict, LossCause::DupThresh)
    }

    /// After a partial acknowledgement in recovery, declares the next hole lost too (RFC 6582 section 3.2),
    /// if SACK reports data above it.
    fn after_partial_ack(&self, ack: &AckOutcome, board: &Scoreboard, count: &Count) -> RackVerdict {
        let mut verdict = RackVerdict::default();
        let next = board.head().filter(|head| is_sent_once(head));
        if let (true, true, Some(head)) = (ack.advanced > 0, count.sacked > 0, next) {
            verdict.add(head);
        }
        verdict
    }

    /// Performs early retransmit, the variant of RFC 5827 that counts segments (section 2.2). It applies if
    /// fewer than four segments are outstanding and no new data can leave. Reports of all but one of them
    /// then suffice; the paper's form needs only one reported segment. After reordering was seen, early
    /// retransmit is off (section 3.2 of the RFC).
    fn early_retransmit(&self, board: &Scoreboard, count: &Count, situation: &Situation) -> RackVerdict {
        let needed = match self.config.early_retransmit {
            EarlyRetransmit::Off => u32::MAX,
            EarlyRetransmit::Rfc5827 => count.outstanding.saturating_sub(1).max(1),
            EarlyRetransmit::Relaxed => 1,
        };
        let few = count.outstanding <= FEW && !situation.may_send_new && !self.reordering_seen;
        let hole = count.spanned > count.sacked;
        if !few || !hole || count.sacked < needed {
            return RackVerdict::default();
        }
        holes(board, 0, count)
    }
}

impl Count {
    fn of(board: &Scoreboard) -> Count {
        let mut count = Count { outstanding: board.segments(), ..Count::default() };
        let Some(high) = board.highest_sacked() else { return count };
        for record in board.records().take_while(|record| record.range.end.le(high)) {
            count.spanned += 1;
            count.sacked += u32::from(record.sacked);
        }
        count
    }
}

/// Returns the holes at least `distance` segments below the highest one reported by SACK.
fn holes(board: &Scoreboard, distance: u32, count: &Count) -> RackVerdict {
    let mut verdict = RackVerdict::default();
    let below = count.spanned.saturating_sub(distance) as usize;
    board.records().take(below).filter(|record| is_sent_once(record)).for_each(|record| verdict.add(record));
    verdict
}

/// True if the segment is in flight and not retransmitted. Counting cannot detect a second loss.
fn is_sent_once(record: &Record) -> bool {
    !record.sacked && !record.lost && record.origin != Origin::Retransmit
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use brisk_wire::{SackBlock, SackBlocks};

    use super::*;
    use crate::config::PrrBound;
    use crate::outcome::Sent;
    use crate::send::scoreboard::AckInfo;
    use crate::seq_ranges::SeqRange;
    use crate::time::Instant;

    const MSS: u32 = 1000;

    const ALONE: Rfc6675Config =
        Rfc6675Config { fack: false, early_retransmit: EarlyRetransmit::Off, prr: PrrBound::Rfc6937 };
    const STUCK: Situation = Situation { in_recovery: false, may_send_new: false };

    /// A sender with `count` segments outstanding; sequence numbers count segments.
    struct Sender {
        board: Scoreboard,
        counting: Rfc6675,
    }

    impl Sender {
        fn new(count: u32, config: Rfc6675Config) -> Self {
            let mut board = Scoreboard::new(SeqNum(0), true);
            let range = SeqRange::new(SeqNum(0), SeqNum(count * MSS));
            let origin = Origin::New;
            let at = Instant::ZERO;
            board.on_sent(&Sent { range, segment_size: MSS, origin, syn: false, fin: false, at });
            Sender { board, counting: Rfc6675::new(&config, 3) }
        }

        /// Returns the segments that an acknowledgement declares lost, with the reason.
        fn ack(&mut self, ack: u32, sack: &[(u32, u32)], situation: Situation) -> (Vec<u32>, LossCause) {
            let blocks: SackBlocks = sack
                .iter()
                .map(|&(from, to)| SackBlock { start: SeqNum(from * MSS), end: SeqNum(to * MSS) })
                .collect();
            let info = AckInfo {
                now: Instant::from_millis(40),
                ece: false,
                window_changed: false,
                len: 0,
                max_snd_wnd: 1 << 20,
                ts_echo_rtt: None,
            };
            let outcome = self.board.on_ack(SeqNum(ack * MSS), &blocks, info);
            let (verdict, cause) = self.counting.on_ack(&outcome, &self.board, &situation);
            let segments = |range: &SeqRange| range.start.0 / MSS..range.end.0 / MSS;
            let lost = verdict.lost.iter().flat_map(segments).collect();
            verdict.lost.iter().for_each(|range| {
                self.board.mark_lost(*range);
            });
            (lost, cause)
        }
    }

    #[test]
    fn three_sacked_segments_above_make_a_loss() {
        // RFC 6675 section 4, IsLost (): "DupThresh discontiguous SACKed sequences have arrived above
        // 'SeqNum'".
        let mut sender = Sender::new(8, ALONE);
        assert!(sender.ack(0, &[(2, 4)], STUCK).0.is_empty());
        assert_eq!(sender.ack(0, &[(2, 4), (5, 6)], STUCK), (Vec::from([0, 1]), LossCause::DupThresh));
        assert!(sender.ack(0, &[(2, 4), (5, 7)], STUCK).0.is_empty(), "the fifth has two above it");
        assert_eq!(sender.ack(0, &[(2, 4), (5, 8)], STUCK).0, [4]);
    }

    #[test]
    fn forward_acknowledgement_counts_the_holes() {
        let config = Rfc6675Config { fack: true, ..ALONE };
        assert!(Sender::new(8, config).ack(0, &[(2, 3)], STUCK).0.is_empty(), "three are spanned");
        assert_eq!(Sender::new(8, config).ack(0, &[(4, 5)], STUCK), (Vec::from([0, 1]), LossCause::Fack));
    }

    #[test]
    fn early_retransmit_needs_all_but_one_or_in_the_relaxed_form_one() {
        // RFC 5827 section 2.2: the threshold is the number of outstanding segments less one.
        let rfc = Rfc6675Config { early_retransmit: EarlyRetransmit::Rfc5827, ..ALONE };
        assert!(Sender::new(3, rfc).ack(0, &[(2, 3)], STUCK).0.is_empty());
        let all = (Vec::from([0]), LossCause::EarlyRetransmit);
        assert_eq!(Sender::new(3, rfc).ack(0, &[(1, 3)], STUCK), all);
        let relaxed = Rfc6675Config { early_retransmit: EarlyRetransmit::Relaxed, ..ALONE };
        let two = (Vec::from([0, 1]), LossCause::EarlyRetransmit);
        assert_eq!(Sender::new(3, relaxed).ack(0, &[(2, 3)], STUCK), two);
        // The rule requires that "there is either no unsent data" or no window for it: new data would cause
        // more duplicates.
        let busy = Situation { may_send_new: true, ..STUCK };
        assert!(Sender::new(3, relaxed).ack(0, &[(2, 3)], busy).0.is_empty());
        assert!(Sender::new(4, relaxed).ack(0, &[(3, 4)], STUCK).0.is_empty(), "four are not few");
    }

    #[test]
    fn the_threshold_rises_with_the_reordering_that_was_seen() {
        let mut sender = Sender::new(20, Rfc6675Config { fack: true, ..ALONE });
        assert_eq!(sender.ack(0, &[(4, 5)], STUCK).0, [0, 1]);
        let mut sender = Sender::new(20, ALONE);
        // Two segments overtake the first; later four overtake the fourth.
        sender.ack(0, &[(1, 3)], STUCK);
        sender.ack(3, &[], STUCK);
        assert!(sender.counting.reordering_seen());
        sender.counting.on_spurious_recovery();
        assert!(sender.ack(3, &[(4, 7)], STUCK).0.is_empty(), "three are not enough any more");
        assert_eq!(sender.ack(3, &[(4, 8)], STUCK).0, [3]);
    }

    #[test]
    fn a_partial_acknowledgement_in_recovery_moves_to_the_next_hole() {
        let recovering = Situation { in_recovery: true, ..STUCK };
        let mut sender = Sender::new(6, ALONE);
        assert_eq!(sender.ack(0, &[(1, 2), (3, 5)], STUCK).0, [0]);
        assert_eq!(sender.ack(2, &[(3, 5)], recovering).0, [2]);
    }
}
