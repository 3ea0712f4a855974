//! TIME-WAIT in a few bytes (RFC 9293 section 3.3.2, RFC 6191, RFC 1337).
//!
//! A connection that has closed both ways leaves its numbers here for twice the maximum segment
//! lifetime: the peer's last FIN may come again and must be acknowledged, and old duplicates must not
//! find a new connection. The entry is judged here; the stack acts.

use alloc::vec::Vec;

use brisk_wire::{Flags, SeqNum};

use super::deadlines::Deadlines;
use super::demux::{CompactTuple, FourTuple};
use crate::connection::{TimeWaitState, is_marked};
use crate::outcome::Arrived;
use crate::time::{Duration, Instant};

/// One entry answers at most this often: two confused ends must not acknowledge each other for ever,
/// yet every retransmission of a FIN is answered.
const ANSWER_INTERVAL: Duration = Duration::from_millis(100);
/// How old an entry must be before an active open of our own may replace it; timestamps tell the
/// incarnations apart from then on (RFC 6191, as Linux' `tcp_tw_reuse`).
const REUSE_AGE: Duration = Duration::from_secs(1);
/// How far above the old SND.NXT a new incarnation begins at least: beyond any window in which an old
/// segment of ours could still be in flight unscaled.
const SEQUENCE_GAP: u32 = 65_537;

/// A connection in TIME-WAIT.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TimeWaitEntry {
    /// Its ends.
    tuple: CompactTuple,
    /// Its numbers.
    pub(crate) numbers: TimeWaitState,
    /// IP hop limit of what it sends.
    pub(crate) hop_limit: u8,
    /// DSCP of what it sends.
    pub(crate) dscp: u8,
    entered: Instant,
    answered: Option<Instant>,
}

/// What is to be done about a segment that arrives in TIME-WAIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TimeWaitVerdict {
    /// Nothing: an old duplicate, or a reset (RFC 1337).
    Ignore,
    /// A reset at RCV.NXT that may end the wait if the host's settings say so (RFC 9293 section 3.10.7.4).
    Reset,
    /// The peer repeats its FIN: acknowledge it and wait from the beginning.
    AckAndRestart,
    /// Acknowledge what is known: a challenge to a SYN, the answer to an old segment.
    Ack,
    /// The SYN may open a new connection, with an initial sequence number not below this one.
    Reopen(SeqNum),
}

impl TimeWaitEntry {
    /// Its ends.
    pub(crate) fn tuple(&self) -> FourTuple {
        FourTuple::from(&self.tuple)
    }

    /// Judges a segment.
    pub(crate) fn judge(&self, segment: &Arrived<'_>) -> TimeWaitVerdict {
        let TimeWaitState { snd_nxt, rcv_nxt, window: _, ts_recent, ts_offset: _, copies } = self.numbers;
        let value = segment.options.timestamps.map(|timestamps| timestamps.value);
        let old_timestamp = ts_recent.zip(value).is_some_and(|(recent, value)| is_later(recent, value));
        if segment.flags.contains(Flags::RST) {
            let exact = segment.seq == rcv_nxt && !old_timestamp;
            return if exact { TimeWaitVerdict::Reset } else { TimeWaitVerdict::Ignore };
        }
        if segment.flags.contains(Flags::SYN) {
            // RFC 9293 section 3.10.7.4 / RFC 6191: a SYN beyond the old numbers, or with a later
            // timestamp, belongs to a new incarnation.
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
            // The copy of the last FIN is as old as the FIN; a retransmission that somebody marked is not.
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

    /// True if an answer is due; it counts as given.
    pub(crate) fn may_answer(&mut self, now: Instant) -> bool {
        let due = self.answered.is_none_or(|last| now.saturating_since(last) >= ANSWER_INTERVAL);
        if due {
            self.answered = Some(now);
        }
        due
    }

    /// The least initial sequence number of an active open that replaces the entry, if one may.
    pub(crate) fn reusable_by_us(&self, now: Instant) -> Option<SeqNum> {
        let old_enough = now.saturating_since(self.entered) > REUSE_AGE;
        (old_enough && self.numbers.ts_recent.is_some()).then(|| self.numbers.snd_nxt + SEQUENCE_GAP)
    }
}

fn is_later(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

/// All connections in TIME-WAIT. The stack bounds their number.
#[derive(Debug)]
pub(crate) struct TimeWaitTable {
    entries: Vec<Option<TimeWaitEntry>>,
    free: Vec<u32>,
    deadlines: Deadlines,
    lifetime: Duration,
}

impl TimeWaitTable {
    /// A table whose entries last two times `msl`.
    pub(crate) fn new(msl: Duration) -> Self {
        TimeWaitTable {
            entries: Vec::new(),
            free: Vec::new(),
            deadlines: Deadlines::default(),
            lifetime: msl * 2,
        }
    }

    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Adds a connection; answers its place.
    pub(crate) fn insert(
        &mut self,
        tuple: FourTuple,
        numbers: TimeWaitState,
        hop_limit: u8,
        dscp: u8,
        now: Instant,
    ) -> u32 {
        let tuple = tuple.into();
        let entry = Some(TimeWaitEntry { tuple, numbers, hop_limit, dscp, entered: now, answered: None });
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                self.entries.push(None);
                self.entries.len() as u32 - 1
            }
        };
        if let Some(slot) = self.entries.get_mut(place as usize) {
            *slot = entry;
        }
        self.deadlines.set(place, Some(now + self.lifetime));
        place
    }

    /// The entry at `place`.
    pub(crate) fn entry_mut(&mut self, place: u32) -> Option<&mut TimeWaitEntry> {
        self.entries.get_mut(place as usize)?.as_mut()
    }

    /// The entry at `place`.
    pub(crate) fn entry(&self, place: u32) -> Option<&TimeWaitEntry> {
        self.entries.get(place as usize)?.as_ref()
    }

    /// Starts the wait of an entry from the beginning.
    pub(crate) fn restart(&mut self, place: u32, now: Instant) {
        if self.entry(place).is_some() {
            self.deadlines.set(place, Some(now + self.lifetime));
        }
    }

    /// Takes an entry out.
    pub(crate) fn remove(&mut self, place: u32) -> Option<TimeWaitEntry> {
        let entry = self.entries.get_mut(place as usize)?.take()?;
        self.deadlines.set(place, None);
        self.free.push(place);
        Some(entry)
    }

    /// When the next entry has waited long enough.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    /// Takes out the next entry that has waited long enough.
    pub(crate) fn pop_expired(&mut self, now: Instant) -> Option<TimeWaitEntry> {
        let place = self.deadlines.first().filter(|_| self.next_timeout().is_some_and(|at| at <= now))?;
        self.remove(place)
    }

    /// Takes out the entry that has least left to wait: what has to go if the stack is full.
    pub(crate) fn evict(&mut self) -> Option<TimeWaitEntry> {
        let place = self.deadlines.first()?;
        self.remove(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brisk_wire::{Ecn, Options, Timestamps};
    use core::net::SocketAddr;

    const RECENT: u32 = 5_000;

    fn tuple() -> FourTuple {
        FourTuple::new(SocketAddr::from(([10, 0, 0, 1], 80)), SocketAddr::from(([10, 0, 0, 2], 5000)))
    }

    fn entry(ts_recent: Option<u32>) -> TimeWaitEntry {
        let numbers = TimeWaitState {
            snd_nxt: SeqNum(900),
            rcv_nxt: SeqNum(500),
            window: 100,
            ts_recent,
            ts_offset: 0,
            copies: false,
        };
        TimeWaitEntry {
            tuple: tuple().into(),
            numbers,
            hop_limit: 64,
            dscp: 0,
            entered: Instant::ZERO,
            answered: None,
        }
    }

    fn judge(
        entry: &TimeWaitEntry,
        flags: Flags,
        seq: u32,
        payload: &[u8],
        value: Option<u32>,
    ) -> TimeWaitVerdict {
        let options =
            Options { timestamps: value.map(|value| Timestamps { value, echo: 0 }), ..Options::default() };
        entry.judge(&Arrived {
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
    fn only_an_exact_reset_of_now_is_worth_a_question() {
        let reset = |recent, seq, value| judge(&entry(recent), Flags::RST, seq, &[], value);
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
        assert_eq!(judge(&entry(None), fin, 499, &[], None), TimeWaitVerdict::AckAndRestart);
        assert_eq!(
            judge(&entry(None), fin, 489, &[0; 10], None),
            TimeWaitVerdict::AckAndRestart,
            "with its data"
        );
    }

    #[test]
    fn a_syn_opens_a_new_connection_only_if_it_is_newer() {
        let syn = |entry: &TimeWaitEntry, seq, value| judge(entry, Flags::SYN, seq, &[], value);
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
        assert_eq!(judge(&entry(None), Flags::SYN | Flags::ACK, 600, &[], None), TimeWaitVerdict::Ack);
    }

    #[test]
    fn old_data_is_acknowledged_and_a_plain_acknowledgement_is_not() {
        assert_eq!(judge(&entry(None), Flags::ACK, 490, &[0; 5], None), TimeWaitVerdict::Ack);
        assert_eq!(judge(&entry(None), Flags::ACK, 500, &[], None), TimeWaitVerdict::Ignore);
        assert_eq!(
            judge(&entry(None), Flags::PSH, 500, &[0; 5], None),
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
    fn entries_leave_after_two_segment_lifetimes_from_their_last_restart() {
        let mut table = TimeWaitTable::new(Duration::from_secs(30));
        let numbers = entry(None).numbers;
        let place = table.insert(tuple(), numbers, 64, 0, Instant::ZERO);
        table.restart(place, Instant::from_millis(10_000));
        assert_eq!(table.next_timeout(), Some(Instant::from_millis(70_000)));
        assert_eq!(table.pop_expired(Instant::from_millis(69_999)), None);
        assert!(table.pop_expired(Instant::from_millis(70_000)).is_some());
        assert_eq!((table.len(), table.next_timeout()), (0, None));
        assert_eq!(table.insert(tuple(), numbers, 64, 0, Instant::ZERO), place, "the place is used again");
    }
}
