//! TIME-WAIT in a few bytes (RFC 9293 section 3.3.2, RFC 6191, RFC 1337).
//!
//! A connection that has closed both ways leaves its numbers here for twice the maximum segment lifetime.
//! During that time a retransmission of the peer's last FIN must be acknowledged, and old duplicates must not
//! reach a new connection. This module decides about a segment; the stack acts.

use brisk_wire::{Flags, SeqNum};

use super::slab::Slab;
use crate::connection::{TimeWaitState, is_marked};
use crate::four_tuple::{CompactTuple, FourTuple};
use crate::outcome::Arrived;
use crate::time::{Duration, Instant};

/// Minimum time between two answers of one entry: two confused ends must not acknowledge each other for ever.
/// A FIN that is repeated sooner is answered when it comes again.
const ANSWER_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum age of an entry that an active open of our own may replace; from then on timestamps distinguish
/// the incarnations (RFC 6191, as Linux' `tcp_tw_reuse`).
const REUSE_AGE: Duration = Duration::from_secs(1);
/// Minimum distance of a new incarnation's first sequence number from the old SND.NXT (Linux: the same). The
/// new numbers are beyond any window without scaling (65,535 bytes) that begins at the old SND.NXT.
const SEQUENCE_GAP: u32 = 65_537;

/// A connection in TIME-WAIT. There may be many, so optional values are kept small: a bit and a word each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TimeWaitEntry {
    tuple: CompactTuple,
    entered: Instant,
    expires: Instant,
    answered: Option<Instant>,
    snd_nxt: SeqNum,
    rcv_nxt: SeqNum,
    ts_recent: u32,
    ts_offset: u32,
    /// Neighbours in the order of expiry.
    earlier: u32,
    later: u32,
    window: u16,
    has_timestamps: bool,
    copies: bool,
    pub(crate) hop_limit: u8,
    pub(crate) dscp: u8,
}

/// Decision on a segment that arrives in TIME-WAIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TimeWaitVerdict {
    /// Do nothing. The segment needs no answer (a bare acknowledgement, a copy, a segment without ACK), or is
    /// a reset that does not match (RFC 1337).
    Ignore,
    /// A reset at RCV.NXT, which may end the wait if the host is so configured (RFC 9293 section 3.10.7.4).
    Reset,
    /// The peer repeats its FIN: acknowledge it and restart the wait.
    AckAndRestart,
    /// Send an acknowledgement: a challenge to a SYN, or the answer to an old segment.
    Ack,
    /// The SYN may open a new connection. Our initial sequence number must not be below this one.
    Reopen(SeqNum),
}

impl TimeWaitEntry {
    pub(crate) fn tuple(&self) -> FourTuple {
        FourTuple::from(&self.tuple)
    }

    pub(crate) fn is_of(&self, tuple: &FourTuple) -> bool {
        self.tuple.is(tuple)
    }

    pub(crate) fn numbers(&self) -> TimeWaitState {
        TimeWaitState {
            snd_nxt: self.snd_nxt,
            rcv_nxt: self.rcv_nxt,
            window: self.window,
            ts_recent: self.has_timestamps.then_some(self.ts_recent),
            ts_offset: self.ts_offset,
            copies: self.copies,
        }
    }

    /// Decides about a segment.
    pub(crate) fn check(&self, segment: &Arrived<'_>) -> TimeWaitVerdict {
        let TimeWaitState { snd_nxt, rcv_nxt, window: _, ts_recent, ts_offset: _, copies } = self.numbers();
        let value = segment.options.timestamps.map(|timestamps| timestamps.value);
        let old_timestamp = ts_recent.zip(value).is_some_and(|(recent, value)| is_later(recent, value));
        if segment.flags.contains(Flags::RST) {
            let exact = segment.seq == rcv_nxt && !old_timestamp;
            return if exact { TimeWaitVerdict::Reset } else { TimeWaitVerdict::Ignore };
        }
        if segment.flags.contains(Flags::SYN) {
            // RFC 9293 section 3.10.7.4 / RFC 6191: the timestamps decide if the SYN and the old
            // connection have them and they differ. Otherwise a SYN beyond the old numbers, or the first
            // segment with a timestamp, is of a new incarnation.
            let fresh = match (ts_recent, value) {
                (Some(recent), Some(value)) if value != recent => is_later(value, recent),
                (None, Some(_)) => true,
                (Some(_) | None, _) => segment.seq.gt(rcv_nxt),
            };
            let plain = !segment.flags.contains(Flags::ACK) && !segment.flags.contains(Flags::FIN);
            return if fresh && plain {
                TimeWaitVerdict::Reopen(snd_nxt + SEQUENCE_GAP)
            } else {
                TimeWaitVerdict::Ack
            };
        }
        if !segment.flags.contains(Flags::ACK) {
            return TimeWaitVerdict::Ignore;
        }
        let later = ts_recent.zip(value).is_some_and(|(recent, value)| is_later(value, recent));
        if copies && is_marked(segment) && !later {
            // A device on the path may have set the mark of a copy on a retransmission. A copy has the
            // timestamp of the FIN; a retransmission has a later one, and is answered.
            return TimeWaitVerdict::Ignore;
        }
        if segment.flags.contains(Flags::FIN) && segment.end() == rcv_nxt {
            return TimeWaitVerdict::AckAndRestart;
        }
        if !old_timestamp && segment.is_empty() && segment.seq == rcv_nxt {
            return TimeWaitVerdict::Ignore;
        }
        TimeWaitVerdict::Ack
    }

    /// True if an answer may be sent now; counts it as sent.
    pub(crate) fn may_answer(&mut self, now: Instant) -> bool {
        let due = self.answered.is_none_or(|last| now.saturating_since(last) >= ANSWER_INTERVAL);
        if due {
            self.answered = Some(now);
        }
        due
    }

    /// Returns the minimum initial sequence number of an active open that replaces the entry, if that is
    /// permitted.
    pub(crate) fn reusable_by_us(&self, now: Instant) -> Option<SeqNum> {
        let old_enough = now.saturating_since(self.entered) > REUSE_AGE;
        (old_enough && self.has_timestamps).then(|| self.snd_nxt + SEQUENCE_GAP)
    }
}

fn is_later(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

/// Marks the absence of a neighbour.
const NOWHERE: u32 = u32::MAX;

/// All connections in TIME-WAIT. The stack bounds their number.
///
/// All entries wait for the same time, so they form a list, and a new or restarted entry is appended.
#[derive(Debug)]
pub(crate) struct TimeWaitTable {
    entries: Slab<TimeWaitEntry>,
    first: u32,
    last: u32,
    lifetime: Duration,
}

impl TimeWaitTable {
    /// Returns an empty table whose entries last twice `msl`.
    pub(crate) fn new(msl: Duration) -> Self {
        TimeWaitTable { entries: Slab::default(), first: NOWHERE, last: NOWHERE, lifetime: msl * 2 }
    }

    /// Empties the table but keeps its storage, and sets the lifetime to twice `msl`.
    pub(super) fn renew(&mut self, msl: Duration) {
        let TimeWaitTable { entries, first, last, lifetime } = self;
        entries.clear();
        (*first, *last, *lifetime) = (NOWHERE, NOWHERE, msl * 2);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds a connection; returns the index of its entry.
    pub(crate) fn insert(
        &mut self,
        tuple: FourTuple,
        numbers: TimeWaitState,
        hop_limit: u8,
        dscp: u8,
        now: Instant,
    ) -> u32 {
        let TimeWaitState { snd_nxt, rcv_nxt, window, ts_recent, ts_offset, copies } = numbers;
        let entry = TimeWaitEntry {
            tuple: tuple.into(),
            entered: now,
            expires: now,
            answered: None,
            snd_nxt,
            rcv_nxt,
            ts_recent: ts_recent.unwrap_or(0),
            ts_offset,
            earlier: NOWHERE,
            later: NOWHERE,
            window,
            has_timestamps: ts_recent.is_some(),
            copies,
            hop_limit,
            dscp,
        };
        let index = self.entries.insert(entry);
        self.append(index, now);
        index
    }

    /// Appends the entry to the list.
    fn append(&mut self, index: u32, now: Instant) {
        let last = self.last;
        let latest = self.entry(last).map_or(Instant::ZERO, |last| last.expires);
        let expires = latest.max(now + self.lifetime);
        if let Some(entry) = self.entry_mut(index) {
            (entry.earlier, entry.later, entry.expires) = (last, NOWHERE, expires);
        }
        self.link(last, index);
        self.last = index;
    }

    /// Removes the entry from the list.
    fn unlink(&mut self, index: u32) {
        let Some((earlier, later)) = self.entry(index).map(|entry| (entry.earlier, entry.later)) else {
            return;
        };
        self.link(earlier, later);
        match self.entry_mut(later) {
            Some(later) => later.earlier = earlier,
            None => self.last = earlier,
        }
    }

    /// Links the entry at `index` after `earlier`, or at the front of the list.
    fn link(&mut self, earlier: u32, index: u32) {
        match self.entry_mut(earlier) {
            Some(earlier) => earlier.later = index,
            None => self.first = index,
        }
    }

    pub(crate) fn entry_mut(&mut self, index: u32) -> Option<&mut TimeWaitEntry> {
        self.entries.get_mut(index)
    }

    pub(crate) fn entry(&self, index: u32) -> Option<&TimeWaitEntry> {
        self.entries.get(index)
    }

    /// Restarts the wait of an entry, because the peer has repeated its FIN. As RFC 7323 section 4.3
    /// requires, the timestamp of that segment is stored: its echo lets the peer measure the round trip.
    pub(crate) fn restart(&mut self, index: u32, timestamp: Option<u32>, now: Instant) {
        let Some(entry) = self.entry_mut(index) else { return };
        if let Some(value) = timestamp.filter(|value| is_later(*value, entry.ts_recent)) {
            entry.ts_recent = value;
        }
        self.unlink(index);
        self.append(index, now);
    }

    pub(crate) fn remove(&mut self, index: u32) -> Option<TimeWaitEntry> {
        self.unlink(index);
        self.entries.remove(index)
    }

    /// Returns the time at which the next entry expires.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.entry(self.first).map(|entry| entry.expires)
    }

    /// Removes the next expired entry, and returns it with its index.
    pub(crate) fn pop_expired(&mut self, now: Instant) -> Option<(u32, TimeWaitEntry)> {
        self.next_timeout().filter(|at| *at <= now)?;
        self.evict()
    }

    /// Removes the entry that expires first, and returns it with its index.
    pub(crate) fn evict(&mut self) -> Option<(u32, TimeWaitEntry)> {
        let index = self.first;
        Some((index, self.remove(index)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brisk_wire::{Ecn, Options, Timestamps};
    use core::net::SocketAddr;
    use proptest::prelude::*;
    use std::vec::Vec;

    const RECENT: u32 = 5_000;

    fn tuple() -> FourTuple {
        FourTuple::new(SocketAddr::from(([10, 0, 0, 1], 80)), SocketAddr::from(([10, 0, 0, 2], 5000)))
    }

    fn numbers(ts_recent: Option<u32>) -> TimeWaitState {
        TimeWaitState {
            snd_nxt: SeqNum(900),
            rcv_nxt: SeqNum(500),
            window: 100,
            ts_recent,
            ts_offset: 0,
            copies: false,
        }
    }

    fn table() -> TimeWaitTable {
        TimeWaitTable::new(Duration::from_secs(30))
    }

    fn entry(ts_recent: Option<u32>) -> TimeWaitEntry {
        let mut table = table();
        let index = table.insert(tuple(), numbers(ts_recent), 64, 0, Instant::ZERO);
        table.remove(index).expect("it has just been put in")
    }

    fn check(
        entry: &TimeWaitEntry,
        flags: Flags,
        seq: u32,
        payload: &[u8],
        value: Option<u32>,
    ) -> TimeWaitVerdict {
        let options =
            Options { timestamps: value.map(|value| Timestamps { value, echo: 0 }), ..Options::default() };
        entry.check(&Arrived {
            seq: SeqNum(seq),
            ack: SeqNum(900),
            flags,
            window: 1000,
            urgent: 0,
            options: &options,
            payload,
            ecn: Ecn::NotEct,
            segment_size: payload.len(),
        })
    }

    const REOPEN: TimeWaitVerdict = TimeWaitVerdict::Reopen(SeqNum(900 + SEQUENCE_GAP));

    #[test]
    fn only_an_exact_current_reset_may_end_the_wait() {
        let reset = |recent, seq, value| check(&entry(recent), Flags::RST, seq, &[], value);
        assert_eq!(reset(None, 500, None), TimeWaitVerdict::Reset);
        assert_eq!(reset(Some(RECENT), 500, Some(RECENT)), TimeWaitVerdict::Reset);
        assert_eq!(reset(Some(RECENT), 500, Some(RECENT - 1)), TimeWaitVerdict::Ignore);
        for seq in [499, 501] {
            assert_eq!(reset(None, seq, None), TimeWaitVerdict::Ignore);
        }
    }

    #[test]
    fn a_repeated_fin_is_acknowledged_and_restarts_the_wait() {
        let fin = Flags::FIN | Flags::ACK;
        assert_eq!(check(&entry(None), fin, 499, &[], None), TimeWaitVerdict::AckAndRestart);
        assert_eq!(
            check(&entry(None), fin, 489, &[0; 10], None),
            TimeWaitVerdict::AckAndRestart,
            "with its data"
        );
    }

    #[test]
    fn a_syn_opens_a_new_connection_only_if_it_is_newer() {
        let syn = |entry: &TimeWaitEntry, seq, value| check(entry, Flags::SYN, seq, &[], value);
        assert_eq!(syn(&entry(None), 501, None), REOPEN);
        assert_eq!(syn(&entry(None), 500, None), TimeWaitVerdict::Ack);
        assert_eq!(
            syn(&entry(Some(RECENT)), 100, Some(RECENT + 1)),
            REOPEN,
            "RFC 6191: the timestamp decides"
        );
        assert_eq!(syn(&entry(Some(RECENT)), 600, Some(RECENT - 1)), TimeWaitVerdict::Ack);
        assert_eq!(
            syn(&entry(Some(RECENT)), 600, Some(RECENT)),
            REOPEN,
            "equal: the sequence number decides"
        );
        assert_eq!(syn(&entry(Some(RECENT)), 600, None), REOPEN);
        assert_eq!(syn(&entry(None), 100, Some(1)), REOPEN, "only the new incarnation has timestamps");
    }

    #[test]
    fn a_syn_ack_is_challenged() {
        assert_eq!(check(&entry(None), Flags::SYN | Flags::ACK, 600, &[], None), TimeWaitVerdict::Ack);
    }

    #[test]
    fn old_data_is_acknowledged_and_a_plain_acknowledgement_is_not() {
        assert_eq!(check(&entry(None), Flags::ACK, 490, &[0; 5], None), TimeWaitVerdict::Ack);
        assert_eq!(check(&entry(None), Flags::ACK, 500, &[], None), TimeWaitVerdict::Ignore);
        assert_eq!(
            check(&entry(None), Flags::PSH, 500, &[0; 5], None),
            TimeWaitVerdict::Ignore,
            "no ACK bit"
        );
    }

    #[test]
    fn answers_are_spaced() {
        let mut entry = entry(None);
        assert!(entry.may_answer(Instant::from_millis(1000)));
        assert!(!entry.may_answer(Instant::from_millis(1099)));
        assert!(entry.may_answer(Instant::from_millis(1100)));
    }

    #[test]
    fn our_own_reuse_needs_timestamps_and_a_second() {
        assert_eq!(entry(Some(RECENT)).reusable_by_us(Instant::from_millis(1000)), None);
        assert_eq!(
            entry(Some(RECENT)).reusable_by_us(Instant::from_millis(1001)),
            Some(SeqNum(900 + SEQUENCE_GAP))
        );
        assert_eq!(entry(None).reusable_by_us(Instant::from_millis(5000)), None);
    }

    #[test]
    fn stored_entry_returns_the_same_values() {
        for ts_recent in [None, Some(0), Some(RECENT)] {
            let numbers = numbers(ts_recent);
            assert_eq!(entry(ts_recent).numbers(), numbers);
            assert_eq!(entry(ts_recent).tuple(), tuple());
        }
    }

    #[test]
    fn an_entry_over_ipv4_fits_into_72_bytes() {
        assert_eq!(size_of::<Option<TimeWaitEntry>>(), 72);
    }

    #[test]
    fn entries_leave_after_two_segment_lifetimes_from_their_last_restart() {
        let mut table = table();
        let index = table.insert(tuple(), numbers(None), 64, 0, Instant::ZERO);
        table.restart(index, None, Instant::from_millis(10_000));
        assert_eq!(table.next_timeout(), Some(Instant::from_millis(70_000)));
        assert_eq!(table.pop_expired(Instant::from_millis(69_999)), None);
        assert!(table.pop_expired(Instant::from_millis(70_000)).is_some());
        assert_eq!((table.len(), table.next_timeout()), (0, None));
        let again = table.insert(tuple(), numbers(None), 64, 0, Instant::ZERO);
        assert_eq!(again, index, "the place is used again");
    }

    proptest! {
        #[test]
        fn entries_expire_in_the_order_of_their_start(
            steps in prop::collection::vec((0u8..4, 0u32..12), 0..100),
        ) {
            let mut table = table();
            let mut model: Vec<(u32, Instant)> = Vec::new();
            let mut now = Instant::ZERO;
            for (what, index) in steps {
                now += Duration::from_millis(7);
                let known = model.iter().position(|(known, _)| *known == index);
                match (what, known) {
                    (0 | 1, _) => model.push((table.insert(tuple(), numbers(None), 64, 0, now), now)),
                    (2, Some(at)) => {
                        table.restart(index, None, now);
                        model.remove(at);
                        model.push((index, now));
                    }
                    (_, Some(at)) => {
                        prop_assert!(table.remove(index).is_some());
                        model.remove(at);
                    }
                    (_, None) => {
                        table.restart(index, None, now);
                        prop_assert!(table.remove(index).is_none());
                    }
                }
                prop_assert_eq!(table.len(), model.len());
                let first = model.first().map(|(_, began)| *began + Duration::from_secs(60));
                prop_assert_eq!(table.next_timeout(), first);
            }
            for (index, _) in model {
                prop_assert_eq!(table.evict().map(|(index, _)| index), Some(index));
            }
            prop_assert!(table.evict().is_none());
        }
    }
}
