//! RACK: loss detection by time (RFC 8985 section 6), without its tail loss probe.
//!
//! A segment is lost if two conditions hold. A segment that was sent later has been delivered. And RACK.rtt
//! plus a *reordering window* has passed since the segment was sent. Until reordering has been seen, the
//! window is zero during recovery and after three segments reported by SACK. Unlike a count of duplicates,
//! the rule also works for short flights, lost retransmissions and reordered segments.

use alloc::vec::Vec;

use brisk_wire::SeqNum;
use smallvec::SmallVec;

use super::scoreboard::{Record, Scoreboard};
use crate::on_demand::{Initial, OnDemand};
use crate::outcome::{AckOutcome, Delivered, DsackOf};
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant, Micros, TIMESTAMP_TICK};

/// Recoveries for which a widened reordering window persists (RFC 8985 section 6.2 step 4).
const REO_WND_PERSIST: u32 = 16;

/// Ranges of lost data, in ascending order.
pub(crate) type LostRanges = SmallVec<[SeqRange; 4]>;

/// Result of [`Rack::detect`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct RackVerdict {
    pub(crate) lost: LostRanges,
    /// Bytes of `lost` that were themselves retransmissions.
    pub(crate) lost_again: u32,
    /// Time after which to check again, if some segment is only suspected.
    pub(crate) timeout: Option<Micros>,
}

/// RACK state of one connection; names as in RFC 8985 section 5.2.
#[derive(Clone, Debug)]
pub(crate) struct Rack {
    /// (RACK.xmit_ts, RACK.end_seq) of the most recently sent segment that is known to be delivered.
    newest: Option<(Instant, SeqNum)>,
    /// See [`Rack::has_advanced`].
    advanced: bool,
    rtt: Micros,
    fack: Option<SeqNum>,
    reordering_seen: bool,
    reordering: Reordering,
    reo_wnd_mult: u32,
    reo_wnd_persist: u32,
    dsack_round: Option<SeqNum>,
    in_recovery: bool,
    min_rtt: Micros,
    srtt: Micros,
    granularity: Micros,
    dup_thresh: u32,
    deadline: Option<Instant>,
    holds: OnDemand<Holds>,
}

/// Reordering as Linux's TCP_INFO counts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Reordering {
    /// Number of times that an acknowledgement showed an overtaken segment; one acknowledgement can count
    /// several times.
    pub(crate) events: u32,
    /// Maximum distance by which a segment was overtaken, bytes.
    pub(crate) span: u32,
}

/// Segments that redundancy may still repair. They are not declared lost before the answer to the redundancy
/// could arrive. Otherwise every repair would cause a retransmission as well.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Holds {
    /// Ranges that parities cover, with the time when each left or will leave.
    covered: Vec<(SeqRange, Instant)>,
    /// True if segments are held even while the reordering window is zero.
    full: bool,
}

impl Initial for Holds {
    const INITIAL: Holds = Holds { covered: Vec::new(), full: false };
    const SHARED: &'static Holds = &Self::INITIAL;
}

impl Holds {
    /// Returns the time when the last parity that covers a segment leaves; `None` if no parity covers it or
    /// if it was retransmitted.
    fn parity_at(&self, record: &Record) -> Option<Instant> {
        if self.covered.is_empty() || record.transmissions > 1 {
            return None;
        }
        let payload = SeqRange::with_len(record.range.start, record.payload());
        let covering = self.covered.iter().filter(|(range, _)| range.covers(&payload));
        covering.map(|(_, at)| *at).max()
    }
}

/// Minimum time by which the answer to parity may be later than a round trip.
const HOLD_SLACK: Micros = Micros::from_millis(1);

impl Rack {
    /// Returns RACK before the first delivery. `granularity`: that of the driver's clock, the minimum of the
    /// reordering timer. `dup_thresh`: number of segments reported by SACK that makes the reordering window
    /// zero, as long as no reordering has been seen.
    pub(crate) fn new(granularity: Duration, dup_thresh: u32) -> Self {
        Rack {
            granularity: granularity.into(),
            dup_thresh,
            newest: None,
            advanced: false,
            rtt: Micros::ZERO,
            fack: None,
            reordering_seen: false,
            reordering: Reordering::default(),
            reo_wnd_mult: 1,
            reo_wnd_persist: REO_WND_PERSIST,
            dsack_round: None,
            in_recovery: false,
            min_rtt: Micros::ZERO,
            srtt: Micros::ZERO,
            deadline: None,
            holds: OnDemand::new(),
        }
    }

    /// Frees memory that an idle sender does not need.
    pub(crate) fn release_memory(&mut self) {
        self.holds.release();
    }

    /// Sets the ranges that redundancy may still repair, each with the time when its parity leaves or left.
    /// `full`: hold them even while the reordering window is zero.
    pub(crate) fn hold(&mut self, full: bool, covered: impl IntoIterator<Item = (SeqRange, Instant)>) {
        if let Some(holds) = self.holds.get_mut() {
            holds.covered.clear();
            holds.full = full;
        }
        let mut covered = covered.into_iter().peekable();
        if full || covered.peek().is_some() {
            self.holds.full = full;
            self.holds.covered.extend(covered);
        }
    }

    /// Performs steps 2 to 4 of RFC 8985 section 6.2 for the data that an acknowledgement delivered. `board`
    /// is in the state after the acknowledgement; `in_recovery` is the state before it.
    pub(crate) fn on_ack(
        &mut self,
        ack: &AckOutcome,
        board: &Scoreboard,
        srtt: Option<Micros>,
        min_rtt: Option<Micros>,
        in_recovery: bool,
        now: Instant,
    ) {
        self.in_recovery = in_recovery;
        self.min_rtt = min_rtt.unwrap_or(self.min_rtt);
        self.srtt = srtt.unwrap_or(self.srtt);
        self.advanced = false;
        // Two segments: the lowest overtaken one that SACK reports, and the lowest one below the
        // acknowledgement number. `tcpi_reord_seen` counts each (Linux: the same).
        let mut overtaken: [Option<SeqNum>; 2] = [None; 2];
        let mut last = None;
        for segment in &ack.delivered {
            // The echoed timestamp is that of a segment that arrived in order (RFC 7323 section 4.3), not of
            // one that SACK reports above a hole.
            let in_order = segment.range.end.le(ack.ack);
            let echoed = ack.echoed_rtt.filter(|_| in_order);
            // RACK.rtt is taken from the last segment in this order: first those that SACK reports, then
            // those below the acknowledgement number (Linux: the same). Repaired data gives no RACK.rtt,
            // because a later segment delivered it.
            let later = |(was_in_order, end): (bool, SeqNum)| match in_order == was_in_order {
                true => segment.range.end.gt(end),
                false => in_order,
            };
            let taken = self.take_delivery(segment, echoed, now);
            self.advanced |= taken;
            if taken && !ack.repaired && last.is_none_or(later) {
                self.rtt = Micros::between(segment.sent_at, now);
                last = Some((in_order, segment.range.end));
            }
            if self.is_overtaken(segment) && !ack.reports_repair {
                let (start, lowest) = (segment.range.start, &mut overtaken[usize::from(in_order)]);
                *lowest = Some(lowest.map_or(start, |lowest| lowest.min(start)));
            }
        }
        if let Some(dsack) = ack.dsack.filter(|dsack| dsack.reported_before) {
            let (start, lowest) = (dsack.range.start, &mut overtaken[0]);
            *lowest = Some(lowest.map_or(start, |lowest| lowest.min(start)));
        }
        // The distance reaches from the overtaken segment to the highest byte that has arrived.
        let highest = board.highest_sacked().unwrap_or(board.una());
        for lowest in overtaken.into_iter().flatten().filter(|lowest| lowest.lt(highest)) {
            self.on_overtaken(highest.since(lowest));
        }
        self.take_dsack(ack, board.una(), board.nxt());
    }

    /// Performs step 2 for a delivered segment: if it was sent later than RACK.xmit_ts and RACK.end_seq,
    /// these follow it. Returns false if the delivery shows nothing about the segment's last transmission.
    fn take_delivery(&mut self, segment: &Delivered, echoed_rtt: Option<Micros>, now: Instant) -> bool {
        if segment.retransmitted {
            let rtt = Micros::between(segment.sent_at, now);
            // "If ACK.ts_option.echo_reply < Segment.xmit_ts" or "If rtt < RACK.min_RTT": then the original
            // was delivered. That shows nothing about the retransmission.
            let older = echoed_rtt.is_some_and(|echoed| echoed > rtt + TIMESTAMP_TICK);
            if older || rtt < self.min_rtt {
                return false;
            }
        }
        let sent = (segment.sent_at, segment.range.end);
        if self.newest.is_none_or(|newest| sent_after(sent, newest)) {
            self.newest = Some(sent);
        }
        true
    }

    /// Performs step 3, "Detect data segment reordering". Returns true if the segment was sent once, without
    /// a copy, and data with higher sequence numbers arrived before it.
    fn is_overtaken(&mut self, segment: &Delivered) -> bool {
        let end = segment.range.end;
        match self.fack {
            Some(fack) if end.lt(fack) => !segment.retransmitted && !segment.copied,
            Some(_) | None => {
                self.fack = Some(end);
                false
            }
        }
    }

    /// Performs the part of step 4 for DSACK: in each round with an unnecessary retransmission, widens the
    /// window once. Duplicates of copies and probes show nothing about reordering.
    fn take_dsack(&mut self, ack: &AckOutcome, una: SeqNum, nxt: SeqNum) {
        if self.dsack_round.is_some_and(|round| una.ge(round)) {
            self.dsack_round = None;
        }
        let needless = ack.dsack.is_some_and(|dsack| dsack.of == DsackOf::Retransmit);
        if needless && self.dsack_round.is_none() {
            self.dsack_round = Some(nxt);
            self.reo_wnd_mult = self.reo_wnd_mult.saturating_add(1);
            self.reo_wnd_persist = REO_WND_PERSIST;
        }
    }

    /// True if the last acknowledgement shows that a segment's last transmission arrived. If only a late
    /// original arrives after its retransmission, this is false: the original shows that segments are late,
    /// not which are lost (Linux: the same).
    pub(crate) fn has_advanced(&self) -> bool {
        self.advanced
    }

    /// Performs step 5 after an acknowledgement that arrived at `now`: determines which segments are lost,
    /// and when to check again. The caller marks the ranges on the scoreboard.
    pub(crate) fn detect(&mut self, board: &Scoreboard, now: Instant) -> RackVerdict {
        let mut verdict = RackVerdict::default();
        // Usually everything has arrived.
        let Some(newest) = self.newest.filter(|_| !board.is_empty()) else {
            self.deadline = None;
            return verdict;
        };
        let reo_wnd = self.reo_wnd(board.sacked_segments());
        let wait = self.rtt + reo_wnd;
        let holds = self.holds.full || reo_wnd > Micros::ZERO;
        let answer = self.rtt + HOLD_SLACK.max(self.srtt / 16);
        let mut check = |record: &Record| {
            let held = self.holds.parity_at(record).filter(|_| holds).map(|at| at + answer);
            let due = held.map_or(record.sent_at + wait, |held| held.max(record.sent_at + wait));
            if due <= now {
                verdict.add(record);
            } else {
                let remaining = Micros::between(now, due);
                verdict.timeout = Some(verdict.timeout.map_or(remaining, |longest| longest.max(remaining)));
            }
        };
        let before = |record: &&Record| sent_after(newest, (record.sent_at, record.range.end));
        // Both iterations are in the order of transmission. They end at the transmission time of the newest
        // delivered segment.
        board.originals().take_while(before).for_each(&mut check);
        if board.has_resent() {
            let (sent_at, _) = newest;
            board.resent().take_while(|record| record.sent_at <= sent_at).filter(before).for_each(check);
        }
        verdict.sort(board.una());
        self.deadline = verdict.timeout.map(|timeout| now + timeout.max(self.granularity));
        verdict
    }

    /// Performs step 5 when the reordering timer fires. A timer that is served late is evaluated as of its
    /// deadline. Acknowledgements may have arrived since then and be unread, so their absence is no evidence.
    pub(crate) fn on_timeout(&mut self, board: &Scoreboard, now: Instant) -> RackVerdict {
        let as_of = self.deadline.map_or(now, |deadline| deadline.min(now));
        self.detect(board, as_of)
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    pub(crate) fn disarm(&mut self) {
        self.deadline = None;
    }

    /// Records that the peer answered a parity segment that left at `sent_at` and covers data up to `end`.
    /// This shows that a segment sent at that time arrives.
    pub(crate) fn on_parity_answered(&mut self, sent_at: Instant, end: SeqNum, now: Instant) {
        self.rtt = Micros::between(sent_at, now);
        if self.newest.is_none_or(|newest| sent_after((sent_at, end), newest)) {
            self.newest = Some((sent_at, end));
        }
    }

    /// Records that a fast recovery was undone, because the segments declared lost had only been overtaken.
    pub(crate) fn on_spurious_recovery(&mut self) {
        self.reordering_seen = true;
    }

    /// Records that up to `bytes` of later data overtook a segment. So this segment was late and not lost.
    pub(crate) fn on_overtaken(&mut self, bytes: u32) {
        self.reordering_seen = true;
        self.reordering.events += 1;
        self.reordering.span = self.reordering.span.max(bytes);
    }

    /// Counts the end of a recovery. A widened window persists for [`REO_WND_PERSIST`] of them (step 4).
    pub(crate) fn on_recovery_exit(&mut self) {
        self.in_recovery = false;
        self.reo_wnd_persist = self.reo_wnd_persist.saturating_sub(1);
        if self.reo_wnd_persist == 0 {
            self.reo_wnd_mult = 1;
            self.reo_wnd_persist = REO_WND_PERSIST;
        }
    }

    /// Returns the lost ranges after a timeout. RFC 8985 section 6.3, upon RTO expiration: the first
    /// outstanding segment is lost, and so is every other for which "Segment.xmit_ts + RACK.rtt +
    /// RACK.reo_wnd - Now() <= 0".
    pub(crate) fn on_rto(&mut self, board: &Scoreboard, now: Instant) -> LostRanges {
        self.deadline = None;
        let wait = self.rtt + self.reo_wnd(board.sacked_segments());
        let mut verdict = RackVerdict::default();
        for record in board.in_flight() {
            if record.range.start == board.una() || record.sent_at + wait <= now {
                verdict.add(record);
            }
        }
        verdict.lost
    }

    /// Implements RACK_update_reo_wnd of RFC 8985 step 4. `segs_sacked`: segments that SACK reports.
    pub(crate) fn reo_wnd(&self, segs_sacked: u32) -> Micros {
        if !self.reordering_seen && (self.in_recovery || segs_sacked >= self.dup_thresh) {
            return Micros::ZERO;
        }
        (self.min_rtt * self.reo_wnd_mult / 4).min(self.srtt)
    }

    /// True once a segment arrived after one that was sent later.
    pub(crate) fn reordering_seen(&self) -> bool {
        self.reordering_seen
    }

    pub(crate) fn reordering(&self) -> Reordering {
        self.reordering
    }

    /// Returns RACK.rtt: the round trip of the last processed segment.
    #[cfg(test)]
    pub(crate) fn rtt(&self) -> Micros {
        self.rtt
    }
}

impl RackVerdict {
    /// Adds a record, and joins it to the previous range if they are adjacent.
    pub(crate) fn add(&mut self, record: &Record) {
        if record.transmissions > 1 {
            self.lost_again = self.lost_again.saturating_add(record.range.len());
        }
        match self.lost.last_mut() {
            Some(last) if last.end == record.range.start => last.end = record.range.end,
            Some(_) | None => self.lost.push(record.range),
        }
    }

    /// Sorts the ranges by sequence number and joins adjacent ones.
    fn sort(&mut self, una: SeqNum) {
        self.lost.sort_unstable_by_key(|range| range.start.since(una));
        self.lost.dedup_by(|next, range| {
            let touches = range.end == next.start;
            if touches {
                range.end = next.end;
            }
            touches
        });
    }
}

/// Implements RACK_sent_after of RFC 8985: later, or at the same time with a higher sequence number.
fn sent_after((t1, seq1): (Instant, SeqNum), (t2, seq2): (Instant, SeqNum)) -> bool {
    t1 > t2 || (t1 == t2 && seq1.gt(seq2))
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use brisk_wire::{SackBlock, SackBlocks};

    use super::*;
    use crate::outcome::{Origin, Sent};
    use crate::send::scoreboard::AckInfo;

    const MSS: u32 = 1000;
    const RTT: Micros = Micros::from_millis(40);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn range(from: u32, to: u32) -> SeqRange {
        SeqRange::new(SeqNum(from * MSS), SeqNum(to * MSS))
    }

    /// A sender with a scoreboard and a round-trip time of 40 ms; sequence numbers count segments.
    struct Sender {
        board: Scoreboard,
        rack: Rack,
        in_recovery: bool,
    }

    impl Sender {
        /// Sends `count` segments, one per millisecond from 0.
        fn new(count: u32) -> Self {
            let mut sender = Sender {
                board: Scoreboard::new(SeqNum(0), true),
                rack: Rack::new(Duration::from_micros(1), 3),
                in_recovery: false,
            };
            for index in 0..count {
                sender.send(Origin::New, index, index + 1, u64::from(index));
            }
            sender
        }

        fn send(&mut self, origin: Origin, from: u32, to: u32, millis: u64) {
            let range = range(from, to);
            let sent = Sent { range, segment_size: MSS, origin, syn: false, fin: false, at: at(millis) };
            self.board.on_sent(&sent);
        }

        fn ack(&mut self, ack: u32, sack: &[(u32, u32)], millis: u64) -> RackVerdict {
            self.ack_echoing(ack, sack, millis, None)
        }

        fn ack_echoing(
            &mut self,
            ack: u32,
            sack: &[(u32, u32)],
            millis: u64,
            echo: Option<u64>,
        ) -> RackVerdict {
            let blocks: SackBlocks = sack
                .iter()
                .map(|&(from, to)| SackBlock { start: SeqNum(from * MSS), end: SeqNum(to * MSS) })
                .collect();
            let info = AckInfo {
                now: at(millis),
                ece: false,
                window_changed: false,
                len: 0,
                max_snd_wnd: 1 << 20,
                ts_echo_rtt: echo.map(Micros::from_millis),
            };
            let outcome = self.board.on_ack(SeqNum(ack * MSS), &blocks, info);
            self.rack.on_ack(&outcome, &self.board, Some(RTT), Some(RTT), self.in_recovery, at(millis));
            let verdict = self.rack.detect(&self.board, at(millis));
            self.mark(&verdict);
            verdict
        }

        fn mark(&mut self, verdict: &RackVerdict) {
            for range in &verdict.lost {
                self.board.mark_lost(*range);
            }
        }

        fn lost(&self) -> Vec<SeqRange> {
            let lost = self.board.records().filter(|record| record.lost);
            lost.map(|record| record.range).collect()
        }
    }

    #[test]
    fn a_hole_is_lost_a_quarter_round_trip_after_later_data_was_sacked() {
        // RFC 8985 6.2 step 4: "RACK_update_reo_wnd() [...] min(RACK.reo_wnd_mult * RACK.min_RTT / 4,
        // SRTT)"; step 5 declares loss when "Segment.xmit_ts + RACK.rtt + RACK.reo_wnd" has passed.
        let mut sender = Sender::new(3);
        let verdict = sender.ack(0, &[(1, 2)], 41);
        assert!(verdict.lost.is_empty());
        assert_eq!(verdict.timeout, Some(Micros::from_millis(9)), "0 + 40 + 10 - 41");
        assert_eq!(sender.rack.next_timeout(), Some(at(50)));
        let verdict = sender.rack.on_timeout(&sender.board, at(50));
        assert_eq!(verdict.lost[..], [range(0, 1)]);
        assert_eq!(sender.rack.next_timeout(), None);
    }

    #[test]
    fn the_round_trip_is_that_of_the_highest_segment_delivered() {
        // RFC 8985 section 6.2 step 2 takes the segments in sequence order; the last one sets RACK.rtt. The
        // retransmission of the first, sent at 50 ms, is the most recent transmission.
        let mut sender = Sender::new(3);
        sender.send(Origin::Retransmit, 0, 1, 50);
        sender.ack(3, &[], 92);
        assert_eq!(sender.rack.rtt(), Micros::from_millis(90));
        assert_eq!(sender.rack.newest, Some((at(50), SeqNum(MSS))));
    }

    #[test]
    fn a_late_original_alone_does_not_advance_rack() {
        let mut sender = Sender::new(3);
        sender.ack(1, &[], 42);
        assert!(sender.rack.has_advanced());
        sender.send(Origin::Retransmit, 1, 2, 50);
        sender.ack(2, &[], 55);
        assert!(!sender.rack.has_advanced(), "five milliseconds are less than a round trip");
    }

    #[test]
    fn three_sacked_segments_count_as_duplicates_until_reordering() {
        // RFC 8985 6.2 step 4: "If RACK.reordering_seen is FALSE: [...] If RACK.segs_sacked >=
        // DupThresh: return 0".
        let mut sender = Sender::new(5);
        sender.ack(0, &[(1, 3)], 42);
        assert!(sender.lost().is_empty());
        let verdict = sender.ack(0, &[(1, 4)], 43);
        assert_eq!(verdict.lost[..], [range(0, 1)]);
        assert_eq!(verdict.lost_again, 0);
    }

    #[test]
    fn overtaken_distance_counts_to_the_highest_report() {
        let mut sender = Sender::new(8);
        sender.ack(0, &[(3, 4)], 42);
        sender.ack(0, &[(1, 4), (6, 7)], 43);
        assert_eq!(sender.rack.reordering(), Reordering { events: 1, span: 6 * MSS }, "from 1 to 7");
    }

    #[test]
    fn covered_and_reported_reordering_are_two_events() {
        let mut sender = Sender::new(8);
        sender.ack(0, &[(6, 7)], 42);
        sender.ack(2, &[(3, 4), (6, 7)], 43);
        assert_eq!(sender.rack.reordering(), Reordering { events: 2, span: 7 * MSS }, "from 0 to 7");
    }

    #[test]
    fn duplicate_of_reported_and_resent_data_is_reordering() {
        let mut sender = Sender::new(8);
        sender.send(Origin::Retransmit, 1, 2, 30);
        sender.ack(0, &[(1, 5)], 72);
        assert!(!sender.rack.reordering_seen());
        sender.ack(0, &[(1, 2), (1, 5)], 75);
        assert_eq!(sender.rack.reordering(), Reordering { events: 1, span: 4 * MSS });
    }

    #[test]
    fn in_recovery_there_is_no_reordering_window() {
        let mut sender = Sender::new(5);
        sender.in_recovery = true;
        assert_eq!(sender.ack(0, &[(1, 2)], 41).lost[..], [range(0, 1)]);
    }

    #[test]
    fn all_that_was_sent_before_a_delivered_segment_is_lost_at_once() {
        let mut sender = Sender::new(10);
        let verdict = sender.ack(0, &[(7, 10)], 49);
        assert_eq!(verdict.lost[..], [range(0, 7)]);
    }

    #[test]
    fn segments_after_the_latest_delivery_are_never_lost() {
        let mut sender = Sender::new(10);
        sender.ack(2, &[], 1000);
        assert!(sender.lost().is_empty() && sender.rack.next_timeout().is_none());
    }

    #[test]
    fn segments_of_one_burst_are_ordered_by_sequence_number() {
        // RFC 8985 section 5.2: with equal timestamps the higher end sequence number counts as sent
        // later.
        let mut sender = Sender::new(0);
        sender.send(Origin::New, 0, 6, 0);
        let verdict = sender.ack(0, &[(2, 5)], 40);
        assert_eq!(verdict.lost[..], [range(0, 2)], "and not the last one");
    }

    #[test]
    fn a_late_original_is_reordering_and_widens_the_window() {
        let mut sender = Sender::new(8);
        sender.ack(0, &[(1, 2)], 41);
        assert!(!sender.rack.reordering_seen());
        sender.ack(2, &[], 42);
        assert!(sender.rack.reordering_seen());
        assert_eq!(sender.rack.reo_wnd(3), RTT / 4);
        sender.ack(2, &[(3, 6)], 46);
        assert!(sender.lost().is_empty(), "three SACKs no longer suffice");
    }

    #[test]
    fn a_late_retransmission_is_no_reordering() {
        let mut sender = Sender::new(4);
        sender.ack(0, &[(1, 4)], 43);
        sender.send(Origin::Retransmit, 0, 1, 43);
        sender.ack(4, &[], 83);
        assert!(!sender.rack.reordering_seen());
    }

    #[test]
    fn a_lost_retransmission_is_detected() {
        let mut sender = Sender::new(5);
        assert_eq!(sender.ack(0, &[(1, 4)], 43).lost[..], [range(0, 1)]);
        sender.in_recovery = true;
        sender.send(Origin::Retransmit, 0, 1, 43);
        sender.send(Origin::New, 5, 6, 44);
        let verdict = sender.ack(0, &[(1, 4), (5, 6)], 84);
        assert_eq!(verdict.lost[..], [range(0, 1), range(4, 5)]);
        assert_eq!(verdict.lost_again, MSS, "one of the two had been sent again");
    }

    #[test]
    fn ack_of_the_original_is_no_evidence_about_the_retransmission() {
        // RFC 8985 6.2 step 2: such a segment is skipped if "ACK.ts_option.echo_reply <
        // Segment.xmit_ts" or "rtt < RACK.min_RTT".
        let spurious = |millis, echo| {
            let mut sender = Sender::new(5);
            sender.ack(0, &[(1, 4)], 43);
            sender.send(Origin::Retransmit, 0, 1, 43);
            sender.ack_echoing(1, &[], millis, echo);
            sender.rack.rtt()
        };
        let before = Micros::from_millis(40);
        assert_eq!(spurious(60, None), before, "17 ms is less than any round trip before");
        assert_eq!(spurious(99, Some(99)), before, "the echo is of the original");
        assert_eq!(spurious(99, Some(56)), Micros::from_millis(56));
        assert_eq!(spurious(99, None), Micros::from_millis(56));
    }

    #[test]
    fn needless_retransmissions_widen_the_window_once_per_round() {
        // RFC 8985 6.2 step 4: "RACK.reo_wnd_mult += 1" per round with DSACK, at most SRTT.
        let mut sender = Sender::new(30);
        sender.ack(0, &[(1, 2)], 41);
        sender.ack(2, &[], 42);
        sender.send(Origin::Retransmit, 2, 4, 43);
        sender.ack(4, &[], 50);
        sender.ack(4, &[(2, 3)], 51);
        sender.ack(4, &[(3, 4)], 52);
        assert_eq!(sender.rack.reo_wnd(0), RTT / 2, "two reports in one round count once");
        for _ in 0..16 {
            sender.rack.on_recovery_exit();
        }
        assert_eq!(sender.rack.reo_wnd(0), RTT / 4, "after 16 recoveries it is back");
    }

    #[test]
    fn duplicates_that_nobody_retransmitted_do_not_widen_the_window() {
        let mut sender = Sender::new(30);
        sender.ack(0, &[(1, 2)], 41);
        sender.ack(2, &[], 42);
        sender.ack(2, &[(0, 1)], 43);
        sender.send(Origin::Duplicate, 2, 3, 44);
        sender.ack(3, &[], 50);
        sender.ack(3, &[(2, 3)], 51);
        assert_eq!(sender.rack.reo_wnd(0), RTT / 4);
    }

    #[test]
    fn timer_served_late_decides_as_of_its_deadline() {
        let mut sender = Sender::new(12);
        sender.ack(0, &[(1, 2)], 41);
        sender.ack(2, &[], 42);
        sender.ack(2, &[(10, 11)], 50);
        let deadline = sender.rack.next_timeout();
        assert_eq!(deadline, Some(at(59)), "segment 9, sent at 9 ms, plus 40 ms, plus 10 ms");
        let mut late = sender.rack.clone();
        assert_eq!(late.on_timeout(&sender.board, at(58)).lost[..], [range(2, 9)]);
        assert_eq!(sender.rack.on_timeout(&sender.board, at(900)).lost[..], [range(2, 10)]);
        assert!(!sender.lost().contains(&range(11, 12)));
    }

    #[test]
    fn timeout_declares_the_head_and_overdue_segments_lost() {
        // RFC 8985 6.3: "If SEG.SEQ = SND.UNA OR Segment.xmit_ts + RACK.rtt + RACK.reo_wnd - Now() <=
        // 0: Segment.lost = TRUE".
        let mut sender = Sender::new(3);
        sender.ack(1, &[], 40);
        sender.send(Origin::New, 3, 4, 200);
        let lost = sender.rack.on_rto(&sender.board, at(241));
        assert_eq!(lost[..], [range(1, 3)]);
        let mut untouched = Sender::new(3);
        assert_eq!(untouched.rack.on_rto(&untouched.board, at(1000))[..], [range(0, 3)]);
        let mut fresh = Sender::new(2);
        fresh.ack(1, &[], 40);
        assert_eq!(fresh.rack.on_rto(&fresh.board, at(41))[..], [range(1, 2)], "the head whatever its age");
    }

    #[test]
    fn sacked_and_lost_segments_are_not_declared_lost_again() {
        let mut sender = Sender::new(6);
        assert_eq!(sender.ack(0, &[(2, 5)], 44).lost[..], [range(0, 2)]);
        assert!(sender.ack(0, &[(2, 6)], 45).lost.is_empty());
        assert_eq!(sender.lost().len(), 2);
    }
}
