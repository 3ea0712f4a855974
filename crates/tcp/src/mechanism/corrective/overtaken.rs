//! Repairs whose original may only be late. If parity leaves directly after the data, a slightly late packet
//! looks like a lost one.
//!
//! As in RACK (RFC 8985 section 6.2 step 4) there is no tolerance before reordering was seen. The first
//! repair is reported at once. If its original arrives later, the DSACK lets the sender undo its reduction.
//! After that a repair is reported only if its original has not arrived within the reordering window. That
//! window grows by its initial length whenever it proves too short.

use alloc::collections::VecDeque;

use crate::receive::older;
use crate::seq_ranges::SeqRange;
use crate::time::{Instant, Micros};

/// Limit of remembered repairs. One more replaces the oldest.
const ENTRIES: usize = 16;
/// The reordering window without a round-trip time.
const WINDOW_WITHOUT_SAMPLE: Micros = Micros::from_millis(10);

#[derive(Clone, Copy, Debug)]
struct PendingRepair {
    /// The part whose original has not arrived.
    range: SeqRange,
    /// TSval of the segment that made the repair possible. An original has no later TSval, but a
    /// retransmission does.
    tsval: u32,
    /// Time of its report; `None` after that.
    report_at: Option<Instant>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Overtaken {
    repairs: VecDeque<PendingRepair>,
    /// An original arrived after its repair.
    seen: bool,
    /// Number of times that the window was too short.
    widened: u32,
}

impl Overtaken {
    /// Records a repair. Returns true if it must be reported at once.
    pub(crate) fn on_repair(
        &mut self,
        range: SeqRange,
        tsval: u32,
        rtt: Option<(Micros, Micros)>,
        now: Instant,
    ) -> bool {
        let report_at = self.seen.then(|| now + self.window(rtt));
        let full = self.repairs.len() == ENTRIES;
        let oldest = if full { self.repairs.pop_front() } else { None };
        self.repairs.push_back(PendingRepair { range, tsval, report_at });
        report_at.is_none() || oldest.is_some_and(|oldest| oldest.report_at.is_some())
    }

    /// Returns the window: a quarter of the minimum round-trip time, plus a quarter for each time that it was
    /// too short. It is at most the smoothed round-trip time.
    fn window(&self, rtt: Option<(Micros, Micros)>) -> Micros {
        rtt.map_or(WINDOW_WITHOUT_SAMPLE, |(min_rtt, srtt)| {
            (min_rtt * self.widened.saturating_add(1) / 4).min(srtt)
        })
    }

    /// Processes a segment that is no copy. Returns true if it shows that no reported range had been lost.
    pub(crate) fn on_original(&mut self, segment: SeqRange, tsval: u32) -> bool {
        let is_original = |repair: &&mut PendingRepair| {
            repair.range.intersection(&segment).is_some() && !older(repair.tsval, tsval)
        };
        let Some(repair) = self.repairs.iter_mut().find(is_original) else { return false };
        let reported = repair.report_at.is_none();
        self.widened = self.widened.saturating_add(u32::from(reported && self.seen));
        self.seen = true;
        if segment.start.le(repair.range.start) {
            repair.range.start = repair.range.end.min(segment.end);
        } else {
            repair.range.end = segment.start;
        }
        self.repairs.retain(|repair| !repair.range.is_empty());
        reported && self.repairs.iter().all(|repair| repair.report_at.is_some())
    }

    /// Begins a new episode, because the peer has confirmed all reports.
    pub(crate) fn on_confirmed(&mut self) {
        self.repairs.retain(|repair| repair.report_at.is_some());
    }

    /// Returns the end of the next wait for an original.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.repairs.iter().filter_map(|repair| repair.report_at).min()
    }

    /// Ends the waits that are over by `now`; `None` ends all. Returns true if there is something to report.
    pub(crate) fn on_timeout(&mut self, now: Option<Instant>) -> bool {
        let is_over =
            |repair: &&mut PendingRepair| repair.report_at.is_some_and(|at| now.is_none_or(|now| at <= now));
        self.repairs.iter_mut().filter(is_over).fold(false, |_, repair| {
            repair.report_at = None;
            true
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.repairs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brisk_wire::SeqNum;

    const RTT: Option<(Micros, Micros)> = Some((Micros::from_millis(40), Micros::from_millis(50)));

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn segment(index: u32) -> SeqRange {
        SeqRange::with_len(SeqNum(u32::MAX - 1500) + index * 1000, 1000)
    }

    /// Repairs a segment at `millis`; true if it is reported at once.
    fn repair(overtaken: &mut Overtaken, index: u32, millis: u64) -> bool {
        overtaken.on_repair(segment(index), 5000, RTT, at(millis))
    }

    /// Returns the state after reordering was seen.
    fn after_reordering() -> Overtaken {
        let mut overtaken = Overtaken::default();
        assert!(repair(&mut overtaken, 0, 0));
        assert!(overtaken.on_original(segment(0), 5000));
        overtaken
    }

    #[test]
    fn first_repair_is_reported_at_once_later_repairs_wait() {
        let mut overtaken = after_reordering();
        assert!(!repair(&mut overtaken, 1, 100));
        assert_eq!(overtaken.next_timeout(), Some(at(110)), "a quarter of 40 ms");
        assert!(!overtaken.on_original(segment(1), 4999), "nothing of what was reported");
        assert_eq!((overtaken.next_timeout(), overtaken.is_empty()), (None, true));
        assert!(!repair(&mut overtaken, 2, 200));
        assert!(!overtaken.on_timeout(Some(at(209))));
        assert!(overtaken.on_timeout(Some(at(210))), "it does not come");
        assert!(!overtaken.on_timeout(Some(at(300))), "once");
    }

    #[test]
    fn a_window_that_is_too_short_grows_up_to_a_round_trip() {
        let mut overtaken = after_reordering();
        let mut now = 100;
        for window in [10, 20, 30, 40, 50, 50] {
            assert!(!repair(&mut overtaken, 1, now));
            now += window;
            assert_eq!(overtaken.next_timeout(), Some(at(now)));
            assert!(overtaken.on_timeout(Some(at(now))));
            assert!(overtaken.on_original(segment(1), 5000));
        }
    }

    #[test]
    fn a_retransmission_is_no_original() {
        let mut overtaken = Overtaken::default();
        assert!(repair(&mut overtaken, 0, 0));
        assert!(!overtaken.on_original(segment(0), 5001));
        assert!(repair(&mut overtaken, 1, 50), "nothing was overtaken yet");
    }

    #[test]
    fn report_is_refuted_when_all_its_originals_have_arrived() {
        let mut overtaken = Overtaken::default();
        let both = SeqRange::new(segment(0).start, segment(1).end);
        assert!(overtaken.on_repair(both, 5000, None, at(0)));
        assert!(repair(&mut overtaken, 3, 0));
        assert!(!overtaken.on_original(segment(1), 5000));
        assert!(!overtaken.on_original(segment(0), 5000), "segment 3 is still missing");
        assert!(!repair(&mut overtaken, 4, 1));
        assert!(overtaken.on_original(segment(3), 5000), "segment 4 is not reported yet");
    }

    #[test]
    fn confirmed_repair_starts_another_episode() {
        let mut overtaken = after_reordering();
        assert!(!repair(&mut overtaken, 1, 100));
        assert!(overtaken.on_timeout(None));
        overtaken.on_confirmed();
        assert!(overtaken.is_empty());
    }

    #[test]
    fn without_a_sample_repairs_wait_10_ms_and_16_are_kept() {
        let mut overtaken = after_reordering();
        for index in 0..16 {
            assert!(!overtaken.on_repair(segment(index), 5000, None, at(0)));
        }
        assert_eq!(overtaken.next_timeout(), Some(at(10)));
        assert!(repair(&mut overtaken, 16, 1), "the oldest made room: it is reported");
        assert_eq!(overtaken.repairs.len(), ENTRIES);
    }
}
