//! The receiving side of Proactive. Of two instances of a segment the filter accepts one and drops the other
//! without an acknowledgement.
//!
//! The filter keeps a ledger of ranges that a **copy** delivered first and whose original has not arrived. It
//! drops the original of an entry silently. Any other unmarked segment without new data is a retransmission
//! and is acknowledged. If the original of an entry does not arrive in time, the copy has masked a loss, and
//! this is reported. Three later originals end the wait early, as long as no original has arrived out of
//! order on this connection (as in RACK, RFC 8985 section 6.2 step 4). Originals that arrive after the report
//! of their loss are dropped, except the last of them. When all have arrived, that one is acknowledged as a
//! duplicate, and the DSACK lets the sender undo its reduction.
//!
//! The filter does not know the stream. The caller determines whether a segment has new bytes.

use alloc::collections::VecDeque;

use brisk_wire::{SackBlocks, SeqNum};

use crate::config::CopyRule;
use crate::receive::older;
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant, Micros};

/// Maximum number of ledger entries and of remembered first instances. A further one replaces the oldest.
const ENTRIES_MAX: usize = 128;
/// Age from which an entry may be reported because later originals have overtaken it.
const OVERTAKEN_AGE: Duration = Duration::from_millis(1);
/// Number of later originals that end the wait for an original (the duplicate threshold of RFC 5681).
const OVERTAKEN_BY: u32 = 3;
/// Time to wait for an original without an estimate of the round-trip time.
const AGE_WITHOUT_SAMPLE: Duration = Duration::from_millis(10);

/// One instance of a segment with data or a FIN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Instance {
    /// The range that it occupies, including the FIN.
    pub(crate) range: SeqRange,
    /// True if the segment is marked as a copy.
    pub(crate) marked: bool,
    pub(crate) tsval: u32,
    /// True if a part of the segment has not arrived before.
    pub(crate) new: bool,
}

/// Fields of an acknowledgement without data that are equal in its two instances.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BareAck {
    pub(crate) ack: SeqNum,
    /// SEG.WND, unscaled.
    pub(crate) window: u16,
    pub(crate) sack: SackBlocks,
    pub(crate) tsval: u32,
}

/// Decision on an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FilterVerdict {
    /// Process it like any segment.
    Process,
    /// The segment is a copy of data that has arrived. Drop it without effect.
    DropCopy,
    /// The segment is the original of data that a copy has delivered. Drop it without effect.
    DropOriginal,
    /// The segment is the last missing one of the originals that were reported as lost. Process it like any
    /// segment; the DSACK informs the peer.
    Refute,
}

/// A range that a copy delivered.
#[derive(Clone, Copy, Debug)]
struct Pending {
    range: SeqRange,
    since: Instant,
    /// End of the wait for the original.
    until: Instant,
    /// Number of later originals that have arrived.
    overtaken: u32,
}

impl Pending {
    fn due(&self, reordering_seen: bool) -> Instant {
        if self.overtaken >= OVERTAKEN_BY && !reordering_seen {
            (self.since + OVERTAKEN_AGE).min(self.until)
        } else {
            self.until
        }
    }
}

/// The timestamp of the first instance of a range.
#[derive(Clone, Copy, Debug)]
struct First {
    range: SeqRange,
    tsval: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Filter {
    rule: CopyRule,
    pending: VecDeque<Pending>,
    /// Ranges whose loss was reported and not yet confirmed by the peer.
    reported: VecDeque<SeqRange>,
    /// True if an original arrived after later ones.
    reordering_seen: bool,
    firsts: VecDeque<First>,
    /// The paper's rule: the mark of the last packet of each sequence number.
    last_marks: VecDeque<(SeqNum, bool)>,
    /// The last processed acknowledgement with a mark, and the end of the wait for its original.
    last_ack: Option<(BareAck, Instant)>,
}

impl Filter {
    pub(crate) fn new(rule: CopyRule) -> Self {
        Filter {
            rule,
            pending: VecDeque::new(),
            reported: VecDeque::new(),
            reordering_seen: false,
            firsts: VecDeque::new(),
            last_marks: VecDeque::new(),
            last_ack: None,
        }
    }

    /// Returns the time to wait for the original of a delivered copy: a quarter of the round-trip time, 1 ms
    /// to 25 ms; 10 ms without a sample.
    pub(crate) fn original_wait(srtt: Option<Micros>) -> Duration {
        srtt.map_or(AGE_WITHOUT_SAMPLE, |srtt| {
            (Duration::from(srtt) / 4).clamp(Duration::from_millis(1), Duration::from_millis(25))
        })
    }

    /// Decides on a segment with data or a FIN. A processed segment is recorded only when
    /// [`Filter::on_taken`] reports that the receiver accepted it.
    pub(crate) fn check(&mut self, instance: &Instance, now: Instant) -> FilterVerdict {
        let marked = instance.marked && !self.is_marked_retransmission(instance);
        let verdict = match (marked, instance.new) {
            (true, true) | (false, true) => FilterVerdict::Process,
            (true, false) => FilterVerdict::DropCopy,
            (false, false) => self.check_repeated(instance, now),
        };
        if !marked {
            self.count_overtaken(instance.range.start);
        }
        if self.rule == CopyRule::Paper {
            self.record_mark(instance.range.start, instance.marked);
        }
        verdict
    }

    /// True if no original is awaited. New unmarked segments then need not be recorded one by one.
    pub(crate) fn awaits_nothing(&self) -> bool {
        self.pending.is_empty() && self.rule == CopyRule::Ledger
    }

    /// True if a marked segment without new data is a copy. `range` and `tsval` are those of the segment.
    pub(crate) fn repeats(&self, range: &SeqRange, tsval: u32) -> bool {
        let first = self.firsts.iter().rev().find(|first| first.range.contains(range.start));
        let covers = |first: &First| range.end.le(first.range.end) && !older(first.tsval, tsval);
        self.rule == CopyRule::Ledger && first.is_some_and(covers)
    }

    /// Records that the receiver accepted new bytes of an instance. If it was a copy, its original is awaited
    /// for `age`.
    pub(crate) fn on_taken(&mut self, instance: &Instance, age: Duration, now: Instant) {
        self.remember_first(instance);
        if instance.marked && self.rule == CopyRule::Ledger {
            if self.pending.len() == ENTRIES_MAX {
                self.pending.pop_front();
            }
            let entry = Pending { range: instance.range, since: now, until: now + age, overtaken: 0 };
            self.pending.push_back(entry);
        }
    }

    /// Decides on an acknowledgement without data. `is_progress`: it advances SND.UNA, opens the window or
    /// reports new data by SACK.
    pub(crate) fn check_ack(
        &mut self,
        ack: BareAck,
        marked: bool,
        is_progress: bool,
        age: Duration,
        now: Instant,
    ) -> FilterVerdict {
        if !marked {
            let awaited = self.last_ack.take_if(|(last, until)| *last == ack && now <= *until);
            return if awaited.is_some() { FilterVerdict::DropOriginal } else { FilterVerdict::Process };
        }
        if !is_progress {
            return FilterVerdict::DropCopy;
        }
        self.last_ack = Some((ack, now + age));
        FilterVerdict::Process
    }

    /// Returns the time at which the next wait for an original ends.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.pending.iter().map(|entry| entry.due(self.reordering_seen)).min()
    }

    /// Removes the entries whose wait is over and returns their number. These originals were lost, and their
    /// copies delivered the data.
    pub(crate) fn on_timeout(&mut self, now: Instant) -> u32 {
        let before = self.pending.len();
        let Filter { pending, reported, reordering_seen, .. } = self;
        pending.retain(|entry| {
            let is_awaited = entry.due(*reordering_seen) > now;
            if !is_awaited {
                reported.push_back(entry.range);
            }
            is_awaited
        });
        reported.drain(..reported.len().saturating_sub(ENTRIES_MAX));
        (before - self.pending.len()) as u32
    }

    /// Ends the reports: the peer has confirmed all of them.
    pub(crate) fn on_confirmed(&mut self) {
        self.reported.clear();
    }

    #[cfg(test)]
    pub(crate) fn awaited(&self) -> usize {
        self.pending.len()
    }

    /// Decides on an unmarked segment without new bytes: the original of a copy, or a retransmission.
    fn check_repeated(&mut self, instance: &Instance, now: Instant) -> FilterVerdict {
        match self.rule {
            CopyRule::Paper => {
                let previous = self.last_marks.iter().rev().find(|(seq, _)| *seq == instance.range.start);
                match previous {
                    Some((_, true)) => FilterVerdict::DropOriginal,
                    Some((_, false)) | None => FilterVerdict::Process,
                }
            }
            CopyRule::Ledger => {
                let found = self.pending.iter().position(|entry| entry.range == instance.range);
                match found.and_then(|index| self.pending.remove(index)) {
                    Some(entry) if now < entry.until => {
                        self.reordering_seen |= entry.overtaken > 0;
                        FilterVerdict::DropOriginal
                    }
                    Some(_) => FilterVerdict::Process,
                    None => self.check_late(instance),
                }
            }
        }
    }

    /// Decides whether an instance is the original of a reported loss. The original has the timestamp of its
    /// copy; a retransmission has a later one.
    fn check_late(&mut self, instance: &Instance) -> FilterVerdict {
        let found = self.reported.iter().position(|range| *range == instance.range);
        let Some(index) = found.filter(|_| !self.is_younger(instance)) else { return FilterVerdict::Process };
        self.reported.remove(index);
        self.reordering_seen = true;
        if self.reported.is_empty() { FilterVerdict::Refute } else { FilterVerdict::DropOriginal }
    }

    /// True if the instance left after the first one of its range, or if no first instance is remembered.
    fn is_younger(&self, instance: &Instance) -> bool {
        let first = self.firsts.iter().rev().find(|first| first.range.contains(instance.range.start));
        first.is_none_or(|first| older(first.tsval, instance.tsval))
    }

    /// True if a marked segment is a retransmission. A middlebox may set the mark on every segment. A copy
    /// has the timestamp of its original. So a marked segment without new data is a retransmission in two
    /// cases: its timestamp is later than the first instance's, or no first instance is remembered.
    fn is_marked_retransmission(&self, instance: &Instance) -> bool {
        if instance.new || self.rule == CopyRule::Paper {
            return false;
        }
        self.is_younger(instance)
    }

    fn count_overtaken(&mut self, seq: SeqNum) {
        for entry in self.pending.iter_mut().filter(|entry| seq.ge(entry.range.end)) {
            entry.overtaken += 1;
        }
    }

    /// Records a first instance. Adjacent first instances with the same timestamp share an entry.
    fn remember_first(&mut self, instance: &Instance) {
        let Instance { range, tsval, .. } = *instance;
        if let Some(last) = self.firsts.back_mut()
            && last.tsval == tsval
            && last.range.end == range.start
        {
            last.range.end = range.end;
            return;
        }
        if self.firsts.len() == ENTRIES_MAX {
            self.firsts.pop_front();
        }
        self.firsts.push_back(First { range, tsval });
    }

    fn record_mark(&mut self, seq: SeqNum, marked: bool) {
        self.last_marks.retain(|(known, _)| *known != seq);
        if self.last_marks.len() == ENTRIES_MAX {
            self.last_marks.pop_front();
        }
        self.last_marks.push_back((seq, marked));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE: Duration = Duration::from_millis(25);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn instance(segment: u32, marked: bool, new: bool) -> Instance {
        let range = SeqRange::with_len(SeqNum(1 + 1000 * (segment - 1)), 1000);
        Instance { range, marked, tsval: 5000, new }
    }

    fn filter() -> Filter {
        Filter::new(CopyRule::Ledger)
    }

    /// Processes a new instance, which the receiver accepts.
    fn take(filter: &mut Filter, segment: u32, marked: bool, now: Instant) {
        let instance = instance(segment, marked, true);
        assert_eq!(filter.check(&instance, now), FilterVerdict::Process);
        filter.on_taken(&instance, AGE, now);
    }

    #[test]
    fn copy_of_arrived_data_is_dropped_without_effect() {
        let mut filter = filter();
        take(&mut filter, 1, false, at(50));
        assert_eq!(filter.check(&instance(1, true, false), at(50)), FilterVerdict::DropCopy);
        assert_eq!((filter.awaited(), filter.next_timeout()), (0, None));
    }

    #[test]
    fn original_overtaken_by_its_copy_is_dropped_once() {
        let mut filter = filter();
        take(&mut filter, 1, true, at(50));
        assert_eq!(filter.check(&instance(1, false, false), at(55)), FilterVerdict::DropOriginal);
        assert_eq!(
            filter.check(&instance(1, false, false), at(56)),
            FilterVerdict::Process,
            "a retransmission"
        );
        assert_eq!(filter.next_timeout(), None);
    }

    #[test]
    fn missing_original_is_reported_as_a_masked_loss() {
        let mut filter = filter();
        take(&mut filter, 1, false, at(50));
        take(&mut filter, 2, true, at(50));
        take(&mut filter, 3, false, at(50));
        assert_eq!(filter.next_timeout(), Some(at(75)), "a quarter of the round-trip time");
        assert_eq!(filter.on_timeout(at(74)), 0);
        assert_eq!(filter.on_timeout(at(75)), 1);
        assert_eq!(filter.check(&instance(2, false, false), at(76)), FilterVerdict::Refute, "too late");
    }

    #[test]
    fn three_later_originals_end_the_wait_after_a_millisecond() {
        let mut filter = filter();
        take(&mut filter, 1, true, at(50));
        for segment in 2..=4 {
            take(&mut filter, segment, false, at(50));
            assert_eq!(filter.check(&instance(segment, true, false), at(50)), FilterVerdict::DropCopy);
        }
        assert_eq!(filter.next_timeout(), Some(at(51)));
        assert_eq!(filter.on_timeout(at(50)), 0);
        assert_eq!(filter.on_timeout(at(51)), 1);
    }

    /// Passes two copies and then three later originals to the filter.
    fn overtake(filter: &mut Filter, now: u64) {
        take(filter, 1, true, at(now));
        take(filter, 2, true, at(now));
        (3..=5).for_each(|segment| take(filter, segment, false, at(now)));
    }

    #[test]
    fn after_reordering_later_originals_do_not_end_the_wait() {
        let mut filter = filter();
        overtake(&mut filter, 50);
        assert_eq!(filter.check(&instance(1, false, false), at(50)), FilterVerdict::DropOriginal);
        assert_eq!(filter.next_timeout(), Some(at(75)), "of segment 2");
    }

    #[test]
    fn the_original_of_the_last_reported_loss_refutes_the_report() {
        let mut filter = filter();
        overtake(&mut filter, 50);
        assert_eq!(filter.on_timeout(at(51)), 2);
        assert_eq!(
            filter.check(&instance(1, false, false), at(52)),
            FilterVerdict::DropOriginal,
            "2 may be lost"
        );
        let again = Instance { tsval: 5400, ..instance(2, false, false) };
        assert_eq!(filter.check(&again, at(53)), FilterVerdict::Process, "a retransmission");
        assert_eq!(filter.check(&instance(2, false, false), at(53)), FilterVerdict::Refute);
        take(&mut filter, 6, true, at(100));
        (7..=9).for_each(|segment| take(&mut filter, segment, false, at(100)));
        assert_eq!(filter.next_timeout(), Some(at(125)), "reordering was seen");
    }

    #[test]
    fn a_confirmed_report_is_not_refuted() {
        let mut filter = filter();
        overtake(&mut filter, 50);
        filter.on_timeout(at(75));
        filter.on_confirmed();
        assert_eq!(filter.check(&instance(1, false, false), at(176)), FilterVerdict::Process);
    }

    /// The paper: an unmarked packet is processed "if it contains new data or if the previous packet
    /// carrying the same sequence did not have the flag set either".
    #[test]
    fn retransmission_after_a_lost_ack_is_acked_except_by_the_papers_rule() {
        let verdict = |rule| {
            let mut filter = Filter::new(rule);
            take(&mut filter, 1, false, at(50));
            filter.check(&instance(1, true, false), at(50));
            filter.check(&Instance { tsval: 5400, ..instance(1, false, false) }, at(450))
        };
        assert_eq!(verdict(CopyRule::Ledger), FilterVerdict::Process);
        assert_eq!(verdict(CopyRule::Paper), FilterVerdict::DropOriginal);
    }

    #[test]
    fn a_marked_segment_with_a_younger_timestamp_is_a_retransmission() {
        let mut filter = filter();
        take(&mut filter, 1, true, at(50));
        let again = Instance { tsval: 5400, ..instance(1, true, false) };
        assert_eq!(filter.check(&again, at(450)), FilterVerdict::Process);
        assert_eq!(
            filter.check(&instance(1, true, false), at(451)),
            FilterVerdict::DropCopy,
            "same timestamp"
        );
        assert_eq!(
            filter.check(&instance(9, true, false), at(452)),
            FilterVerdict::Process,
            "of an unknown first"
        );
    }

    #[test]
    fn burst_of_one_tick_is_one_entry_and_entries_are_bounded() {
        let mut filter = filter();
        for segment in 1..=1000 {
            take(&mut filter, segment, true, at(50));
        }
        assert_eq!((filter.firsts.len(), filter.awaited()), (1, ENTRIES_MAX));
        for segment in 1..=1000 {
            filter.on_taken(&Instance { tsval: segment, ..instance(segment, false, true) }, AGE, at(60));
        }
        assert_eq!(filter.firsts.len(), ENTRIES_MAX);
    }

    #[test]
    fn copied_ack_is_processed_only_if_it_reports_something_new() {
        let mut filter = filter();
        let ack = BareAck { ack: SeqNum(1001), window: 100, sack: SackBlocks::default(), tsval: 7 };
        assert_eq!(filter.check_ack(ack.clone(), false, true, AGE, at(0)), FilterVerdict::Process);
        assert_eq!(filter.check_ack(ack.clone(), true, false, AGE, at(0)), FilterVerdict::DropCopy);
        let ack = BareAck { ack: SeqNum(2001), ..ack };
        assert_eq!(filter.check_ack(ack.clone(), true, true, AGE, at(10)), FilterVerdict::Process);
        assert_eq!(filter.check_ack(ack.clone(), false, false, AGE, at(12)), FilterVerdict::DropOriginal);
        assert_eq!(
            filter.check_ack(ack, false, false, AGE, at(13)),
            FilterVerdict::Process,
            "a duplicate ACK"
        );
    }

    #[test]
    fn an_original_is_awaited_for_a_quarter_of_the_round_trip() {
        let age = |millis| Filter::original_wait(Some(Micros::from_millis(millis)));
        let [min, some, max] = [1, 40, 1000].map(age);
        assert_eq!([min, some, max], [1, 10, 25].map(Duration::from_millis));
        assert_eq!(Filter::original_wait(None), Duration::from_millis(10));
    }
}
