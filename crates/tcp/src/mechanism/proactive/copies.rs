//! The sending side of Proactive: which segments leave twice, and when their copies leave.
//!
//! A copy is identical to its original except for the mark, the IP identification and the checksums. So the
//! header of the original is kept until the copy leaves. Copies do not use the congestion window, but pacing
//! counts them. The scoreboard records only that the data was sent twice.

use alloc::collections::VecDeque;

use brisk_wire::{Flags, Gentle, SackBlocks, SeqNum, TcpHeader, gentle};

use super::brake::Brake;
use crate::config::CopyMark;
use crate::outcome::Origin;
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant, Micros};

/// Limit of waiting copies. Without it, a gap of a quarter of a round trip on a fast path would keep a header
/// for every segment in it.
const WAITING_MAX: usize = 1024;
/// Limit of remembered copies that left.
const RECENT_MAX: usize = 1024;
/// Number of copies reported as duplicates after which the mark counts as removed on the path.
const NEEDLESS_MAX: u32 = 2;
/// Bytes of the mark as an option: kind, length, ExID and flags, padded.
pub(crate) const MARK_OPTION_LEN: u32 = 8;

/// The new segments that are copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scope {
    /// The first bytes of each burst after an idle time.
    Short {
        /// Number of these bytes.
        max_bytes: u32,
    },
    All,
    /// The segments that the planner chooses.
    Named,
}

/// Reason why copying ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CopiesOff {
    /// The peer reports copies as duplicates: the path removes the mark.
    MarkLost,
    /// Too many originals were lost.
    Brake,
}

/// Parameters of [`Copies::new`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CopyPolicy {
    /// The new segments to copy.
    pub(crate) scope: Scope,
    /// The first mark; `None` for a peer that knows no mark.
    pub(crate) mark: Option<CopyMark>,
    /// Time between original and copy, at most a quarter of the round-trip time.
    pub(crate) gap: Duration,
    /// Loss in percent at which copying ends.
    pub(crate) loss_cap: u32,
}

/// A copy that has not left yet.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Copy {
    /// The range that it repeats, including the FIN.
    pub(crate) range: SeqRange,
    /// The header of the original, with the mark.
    pub(crate) header: TcpHeader,
    due: Instant,
}

impl Copy {
    pub(crate) fn payload_len(&self) -> u32 {
        self.range.len() - u32::from(self.header.flags.contains(Flags::FIN))
    }
}

/// The copier's view of a sent segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Original {
    /// The range that it occupies, including the FIN.
    pub(crate) range: SeqRange,
    /// Number of segments. A segment whose copy leaves separately is sent alone.
    pub(crate) segments: u32,
    pub(crate) origin: Origin,
    pub(crate) at: Instant,
    pub(crate) srtt: Option<Micros>,
    /// The retransmission timeout. A pause of this length ends a burst.
    pub(crate) rto: Micros,
}

/// Copies that left together.
#[derive(Clone, Copy, Debug)]
struct Left {
    range: SeqRange,
    /// Bytes of each copy but the last.
    segment_size: u32,
    at: Instant,
}

impl Left {
    fn is_segment(&self, range: SeqRange) -> bool {
        if !self.range.contains(range.start) {
            return range == self.range;
        }
        let at = range.start.since(self.range.start);
        // A FIN makes the last one longer than the others.
        at.is_multiple_of(self.segment_size.max(1))
            && (range.end == self.range.end || range.len() == self.segment_size)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Copies {
    policy: CopyPolicy,
    brake: Brake,
    /// Stream bytes of this burst so far, and the time when its last segment left.
    burst: (u32, Option<Instant>),
    waiting: VecDeque<Copy>,
    recent: VecDeque<Left>,
    /// Copies reported as duplicates since the mark was chosen.
    needless: u32,
    /// True if the next copy is due, but something else delays it.
    deferred: bool,
    off: Option<CopiesOff>,
}

impl Copies {
    /// Returns the state before the first segment.
    pub(crate) fn new(policy: CopyPolicy) -> Self {
        Copies {
            policy,
            brake: Brake::new(policy.loss_cap),
            burst: (0, None),
            waiting: VecDeque::new(),
            recent: VecDeque::new(),
            needless: 0,
            deferred: false,
            off: None,
        }
    }

    pub(crate) fn off(&self) -> Option<CopiesOff> {
        self.off
    }

    /// Returns the bytes of options that the mark adds to a copy; originals must leave space for them.
    pub(crate) fn mark_len(&self) -> u32 {
        match self.policy.mark {
            Some(CopyMark::Option) if self.off.is_none() => MARK_OPTION_LEN,
            Some(CopyMark::Bit | CopyMark::Option) | None => 0,
        }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.off.is_none()
    }

    /// Returns the bytes of new data that would be copied at `now` without a plan; `None` if none.
    pub(crate) fn in_scope(&self, rto: Micros, now: Instant) -> Option<u32> {
        match self.policy.scope {
            _ if !self.is_on() => None,
            Scope::Named => None,
            Scope::All => Some(u32::MAX),
            Scope::Short { max_bytes } => {
                max_bytes.checked_sub(self.burst_so_far(rto, now)).filter(|left| *left > 0)
            }
        }
    }

    /// True if a copy is its original with the bit set and follows directly. A device can then create it.
    pub(crate) fn follow_at_once(&self) -> bool {
        let CopyPolicy { mark, gap, .. } = self.policy;
        mark == Some(CopyMark::Bit) && gap == Duration::ZERO && self.waiting.is_empty()
    }

    /// Processes a segment that left with this header. Returns whether it will be copied.
    pub(crate) fn on_sent(&mut self, original: &Original, header: &TcpHeader) -> bool {
        let in_scope = self.is_in_scope(original);
        if original.origin == Origin::New {
            self.brake.on_originals(original.segments);
        } else if original.origin == Origin::Retransmit {
            self.on_loss();
        }
        let copied = in_scope && self.off.is_none() && self.waiting.len() < WAITING_MAX;
        if copied {
            let gap =
                original.srtt.map_or(Duration::ZERO, |srtt| self.policy.gap.min(Duration::from(srtt) / 4));
            let header = self.marked(header);
            self.waiting.push_back(Copy { range: original.range, header, due: original.at + gap });
        }
        copied
    }

    /// Records new segments of `segment_size` bytes that left, each followed by its copy.
    pub(crate) fn on_sent_twice(&mut self, original: &Original, segment_size: u32) {
        self.is_in_scope(original);
        self.brake.on_originals(original.segments);
        self.remember(Left { range: original.range, segment_size, at: original.at });
    }

    /// Copies `header`'s segment regardless of the scope, because the planner chose it.
    pub(crate) fn add(&mut self, range: SeqRange, header: &TcpHeader, due: Instant) {
        if self.off.is_none() && self.waiting.len() < WAITING_MAX {
            let header = self.marked(header);
            self.waiting.push_back(Copy { range, header, due });
        }
    }

    /// Removes the copies of data acknowledged up to `una`. A copy that was [deferred](Copies::defer) is
    /// tried again.
    pub(crate) fn refresh(&mut self, una: SeqNum) {
        self.deferred = false;
        let obsolete = |copy: &Copy| !copy.range.is_empty() && copy.range.start.lt(una);
        while self.waiting.front().is_some_and(obsolete) {
            self.waiting.pop_front();
        }
    }

    /// Returns the copy that may leave at `now`; call [`Copies::refresh`] first.
    pub(crate) fn next(&self, now: Instant) -> Option<&Copy> {
        self.waiting.front().filter(|copy| copy.due <= now)
    }

    /// True if there are copies that have not left.
    pub(crate) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn front(&self) -> Option<&Copy> {
        self.waiting.front()
    }

    /// Delays the copy of [`Copies::next`], although it is due.
    pub(crate) fn defer(&mut self) {
        self.deferred = true;
    }

    /// Records that the copy of [`Copies::next`] left.
    pub(crate) fn on_copy_sent(&mut self, now: Instant) {
        // Past copies show whether the path removes the mark.
        if let Some(Copy { range, .. }) = self.waiting.pop_front()
            && self.policy.mark.is_some()
        {
            self.remember(Left { range, segment_size: range.len(), at: now });
        }
    }

    fn remember(&mut self, left: Left) {
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(left);
    }

    /// Drops the copy of [`Copies::next`], which is not permitted.
    pub(crate) fn drop_next(&mut self) {
        self.waiting.pop_front();
    }

    /// Returns the time when the next copy is due. `None` if none waits or if the next one is deferred.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.waiting.front().filter(|_| !self.deferred).map(|copy| copy.due)
    }

    /// Stops the timer of a copy that is due at `now`. The copy waits for [`Copies::next`].
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        self.deferred |= self.next_timeout().is_some_and(|due| due <= now);
    }

    /// Records that the peer reported a copy as a duplicate, because it did not see the mark. After two such
    /// reports the mark becomes an option, or copying ends. Returns true if that happened now.
    pub(crate) fn on_needless(&mut self, range: SeqRange, srtt: Micros, now: Instant) -> bool {
        let since = srtt * 2;
        let known = |left: &Left| left.is_segment(range) && Micros::between(left.at, now) <= since;
        if self.off.is_some() || !self.recent.iter().any(known) {
            return false;
        }
        self.needless += 1;
        if self.needless < NEEDLESS_MAX {
            return false;
        }
        self.needless = 0;
        match self.policy.mark {
            Some(CopyMark::Bit) => self.policy.mark = Some(CopyMark::Option),
            Some(CopyMark::Option) => self.end(CopiesOff::MarkLost),
            None => {}
        }
        // The waiting copies have the old mark, and may be too long for the new one.
        self.waiting.clear();
        true
    }

    /// Records a lost original: retransmitted, or reported as masked.
    pub(crate) fn on_loss(&mut self) {
        if self.brake.on_loss() && self.off.is_none() {
            self.end(CopiesOff::Brake);
        }
    }

    fn end(&mut self, why: CopiesOff) {
        self.off = Some(why);
        self.waiting.clear();
    }

    fn is_in_scope(&mut self, original: &Original) -> bool {
        if original.origin != Origin::New {
            return false;
        }
        let sent = self.burst_so_far(original.rto, original.at);
        self.burst = (sent.saturating_add(original.range.len()), Some(original.at));
        match self.policy.scope {
            Scope::All => true,
            Scope::Short { max_bytes } => sent < max_bytes,
            Scope::Named => false,
        }
    }

    /// Returns the stream bytes of the burst of new data at `now`. A pause of `rto` ends a burst.
    fn burst_so_far(&self, rto: Micros, now: Instant) -> u32 {
        let (sent, last) = self.burst;
        let over = last.is_none_or(|last| Micros::between(last, now) >= rto);
        if over { 0 } else { sent }
    }

    /// Frees memory of an idle connection.
    pub(crate) fn release_memory(&mut self) {
        self.waiting.shrink_to_fit();
        self.recent.shrink_to_fit();
    }

    fn marked(&self, header: &TcpHeader) -> TcpHeader {
        let mut copy = header.clone();
        match self.policy.mark {
            None => {
                copy.flags = copy.flags.without(Flags::CWR);
                // The peer would count a DSACK twice.
                copy.options.sack = SackBlocks::default();
            }
            Some(CopyMark::Bit) => copy.flags |= Flags::R4,
            Some(CopyMark::Option) => {
                let flags = copy.options.gentle.and_then(|option| option.flags()).unwrap_or(0);
                copy.options.gentle = Some(Gentle::Short { flags: flags | gentle::COPY });
            }
        }
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Micros = Micros::from_millis(100);
    const RTO: Micros = Micros::from_millis(500);
    const POLICY: CopyPolicy =
        CopyPolicy { scope: Scope::All, mark: Some(CopyMark::Bit), gap: Duration::ZERO, loss_cap: 25 };

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn range(segment: u32) -> SeqRange {
        SeqRange::with_len(SeqNum(1 + 1000 * (segment - 1)), 1000)
    }

    fn send(copies: &mut Copies, segment: u32, origin: Origin, now: Instant) {
        let header = TcpHeader { seq: range(segment).start, flags: Flags::ACK, ..TcpHeader::default() };
        let original =
            Original { range: range(segment), segments: 1, origin, at: now, srtt: Some(RTT), rto: RTO };
        copies.on_sent(&original, &header);
    }

    fn next(copies: &mut Copies, una: u32, now: Instant) -> Option<&Copy> {
        copies.refresh(SeqNum(una));
        copies.next(now)
    }

    /// Returns the segments whose copies leave at `now`.
    fn drain(copies: &mut Copies, now: Instant) -> alloc::vec::Vec<u32> {
        let mut left = alloc::vec::Vec::new();
        while let Some(copy) = next(copies, 1, now) {
            left.push((copy.range.start.0 - 1) / 1000 + 1);
            copies.on_copy_sent(now);
        }
        left
    }

    #[test]
    fn a_copy_is_due_at_once_and_differs_in_the_mark_only() {
        let mut copies = Copies::new(POLICY);
        send(&mut copies, 1, Origin::New, at(0));
        let copy = next(&mut copies, 1, at(0)).unwrap();
        assert_eq!((copy.header.flags, copy.header.seq), (Flags::ACK | Flags::R4, SeqNum(1)));
        assert_eq!((copy.range, copy.payload_len()), (range(1), 1000));
    }

    #[test]
    fn probes_and_retransmissions_are_not_copied() {
        let mut copies = Copies::new(POLICY);
        send(&mut copies, 1, Origin::Retransmit, at(0));
        send(&mut copies, 1, Origin::TailLossProbe, at(0));
        assert!(drain(&mut copies, at(0)).is_empty());
    }

    #[test]
    fn short_copies_the_beginning_of_each_burst() {
        let mut copies = Copies::new(CopyPolicy { scope: Scope::Short { max_bytes: 2500 }, ..POLICY });
        (1..=4).for_each(|segment| send(&mut copies, segment, Origin::New, at(0)));
        assert_eq!(drain(&mut copies, at(0)), [1, 2, 3], "the third begins below the limit");
        send(&mut copies, 5, Origin::New, at(499));
        assert!(drain(&mut copies, at(499)).is_empty(), "silent for less than a timeout");
        send(&mut copies, 6, Origin::New, at(999));
        assert_eq!(drain(&mut copies, at(999)), [6]);
    }

    #[test]
    fn gap_is_at_most_a_quarter_round_trip_and_acked_data_needs_no_copy() {
        let mut copies = Copies::new(CopyPolicy { gap: Duration::from_millis(80), ..POLICY });
        (1..=2).for_each(|segment| send(&mut copies, segment, Origin::New, at(0)));
        assert_eq!(copies.next_timeout(), Some(at(25)));
        assert!(next(&mut copies, 1, at(24)).is_none());
        assert_eq!(next(&mut copies, 1001, at(25)).map(|copy| copy.range), Some(range(2)));
    }

    #[test]
    fn two_needless_copies_change_the_mark_two_more_end_copying() {
        let mut copies = Copies::new(POLICY);
        (1..=4).for_each(|segment| send(&mut copies, segment, Origin::New, at(0)));
        drain(&mut copies, at(0));
        assert!(!copies.on_needless(range(9), RTT, at(100)), "never copied");
        assert!(!copies.on_needless(range(1), RTT, at(201)), "too long ago");
        assert!(!copies.on_needless(range(1), RTT, at(100)));
        assert!(copies.on_needless(range(2), RTT, at(100)));
        assert_eq!((copies.mark_len(), copies.off()), (8, None));
        send(&mut copies, 5, Origin::New, at(110));
        let copy = next(&mut copies, 1, at(110)).unwrap();
        assert_eq!(copy.header.options.gentle, Some(Gentle::Short { flags: gentle::COPY }));
        assert_eq!(copy.header.flags, Flags::ACK);
        copies.on_copy_sent(at(110));
        assert!(!copies.on_needless(range(3), RTT, at(120)) && copies.on_needless(range(4), RTT, at(120)));
        assert_eq!((copies.mark_len(), copies.off()), (0, Some(CopiesOff::MarkLost)));
        send(&mut copies, 6, Origin::New, at(130));
        assert!(drain(&mut copies, at(130)).is_empty());
    }

    #[test]
    fn brake_ends_copying() {
        let mut copies = Copies::new(POLICY);
        for segment in 1..=100 {
            send(&mut copies, segment, Origin::New, at(0));
        }
        (1..=25).for_each(|_| copies.on_loss());
        assert_eq!(copies.off(), None);
        send(&mut copies, 1, Origin::Retransmit, at(0));
        assert_eq!(copies.off(), Some(CopiesOff::Brake));
        assert!(drain(&mut copies, at(0)).is_empty());
    }
}
