//! Memory of closed connections that a SYN with data had opened (TCP Fast Open, CoNEXT 2011, section 3.5).
//!
//! A server that closes last keeps no state after LAST-ACK. If the network then delivers the SYN with data a
//! second time, the cookie is still valid and the request would be processed again. An entry, held for twice
//! the maximum segment lifetime, distinguishes such a duplicate from a new connection with the same addresses
//! and ports (RFC 6191). This is only a mitigation: later, or at another server, the duplicate is accepted.

use alloc::collections::VecDeque;

use brisk_wire::SeqNum;
use hashbrown::HashMap;

use crate::connection::TimeWaitState;
use crate::four_tuple::{FourTuple, KeyedHash};
use crate::time::{Duration, Instant};

/// Minimum time between two answers of an entry.
const ANSWER_INTERVAL: Duration = Duration::from_millis(100);

/// The connections that are held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum LastAckHold {
    /// No connections.
    Off,
    /// Connections whose SYN data was accepted.
    #[default]
    FastOpened,
    /// All connections that leave LAST-ACK.
    All,
}

/// A connection that has left LAST-ACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LastAckEntry {
    /// Initial receive sequence number.
    pub(crate) irs: SeqNum,
    /// Final sequence numbers.
    pub(crate) numbers: TimeWaitState,
    pub(crate) hop_limit: u8,
    pub(crate) dscp: u8,
    expiry: Instant,
    answered: Option<Instant>,
}

/// Decision on a SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LastAckVerdict {
    /// No such connection is held. The SYN is processed like any other.
    Unknown,
    /// The SYN opens a new connection, and the entry has been removed.
    Fresh,
    /// The SYN is an old duplicate. Drop it, and send the answer if there is one.
    Duplicate { answer: Option<LastAckEntry> },
}

#[derive(Debug)]
pub(crate) struct LastAckTable {
    entries: HashMap<FourTuple, LastAckEntry, KeyedHash>,
    /// In the order of expiry; entries may remain after their connection is removed.
    order: VecDeque<(Instant, FourTuple)>,
    capacity: usize,
    lifetime: Duration,
}

impl LastAckTable {
    /// Returns an empty table of `capacity` entries, which last two times `msl`.
    pub(crate) fn new(capacity: usize, msl: Duration, hash: KeyedHash) -> Self {
        let entries = HashMap::with_hasher(hash);
        LastAckTable { entries, order: VecDeque::new(), capacity, lifetime: msl * 2 }
    }

    /// Holds a connection. If the table is full, replaces the oldest.
    pub(crate) fn insert(
        &mut self,
        tuple: FourTuple,
        irs: SeqNum,
        numbers: TimeWaitState,
        hop_limit: u8,
        dscp: u8,
        now: Instant,
    ) {
        self.expire(now);
        while self.order.len() >= self.capacity {
            let Some((expiry, oldest)) = self.order.pop_front() else { return };
            self.drop_if(&oldest, expiry);
        }
        let expiry = now + self.lifetime;
        self.entries.insert(tuple, LastAckEntry { irs, numbers, hop_limit, dscp, expiry, answered: None });
        self.order.push_back((expiry, tuple));
    }

    /// Checks a SYN for this four-tuple.
    pub(crate) fn check(
        &mut self,
        tuple: &FourTuple,
        seq: SeqNum,
        timestamp: Option<u32>,
        now: Instant,
    ) -> LastAckVerdict {
        self.expire(now);
        let Some(entry) = self.entries.get_mut(tuple) else { return LastAckVerdict::Unknown };
        let later = entry.numbers.ts_recent.zip(timestamp).map(|(recent, value)| is_later(value, recent));
        let fresh = seq != entry.irs && (later == Some(true) || seq.gt(entry.numbers.rcv_nxt));
        if fresh {
            self.entries.remove(tuple);
            return LastAckVerdict::Fresh;
        }
        let due = entry.answered.is_none_or(|last| now.saturating_since(last) >= ANSWER_INTERVAL);
        if due {
            entry.answered = Some(now);
        }
        LastAckVerdict::Duplicate { answer: due.then_some(*entry) }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    fn expire(&mut self, now: Instant) {
        while let Some((expiry, tuple)) = self.order.pop_front_if(|(expiry, _)| *expiry <= now) {
            self.drop_if(&tuple, expiry);
        }
    }

    fn drop_if(&mut self, tuple: &FourTuple, expiry: Instant) {
        if self.entries.get(tuple).is_some_and(|entry| entry.expiry == expiry) {
            self.entries.remove(tuple);
        }
    }
}

fn is_later(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::SocketAddr;

    const IRS: SeqNum = SeqNum(1000);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn tuple(port: u16) -> FourTuple {
        FourTuple::new(SocketAddr::from(([10, 0, 0, 1], 80)), SocketAddr::from(([10, 0, 0, 2], port)))
    }

    fn table(capacity: usize, ts_recent: Option<u32>) -> LastAckTable {
        let mut table = LastAckTable::new(capacity, Duration::from_secs(30), KeyedHash::new(&1.into()));
        table.insert(tuple(1), IRS, numbers(ts_recent), 64, 0, at(600));
        table
    }

    fn numbers(ts_recent: Option<u32>) -> TimeWaitState {
        let (snd_nxt, rcv_nxt) = (SeqNum(9000), IRS + 102);
        TimeWaitState { snd_nxt, rcv_nxt, window: 100, ts_recent, ts_offset: 0, copies: false }
    }

    #[test]
    fn a_duplicate_is_held_off_for_twice_the_segment_lifetime() {
        let mut table = table(10, Some(50));
        let first = table.check(&tuple(1), IRS, Some(40), at(5600));
        assert!(matches!(first, LastAckVerdict::Duplicate { answer: Some(entry) } if entry.irs == IRS));
        let again = table.check(&tuple(1), IRS, Some(40), at(5650));
        assert_eq!(again, LastAckVerdict::Duplicate { answer: None }, "answers are limited");
        assert!(matches!(
            table.check(&tuple(1), IRS, Some(40), at(60_599)),
            LastAckVerdict::Duplicate { answer: Some(_) }
        ));
        assert_eq!(table.check(&tuple(1), IRS, Some(40), at(60_601)), LastAckVerdict::Unknown);
    }

    #[test]
    fn a_later_timestamp_or_sequence_number_is_a_new_connection() {
        assert_eq!(table(10, Some(50)).check(&tuple(1), IRS - 7, Some(51), at(5600)), LastAckVerdict::Fresh);
        assert_eq!(table(10, None).check(&tuple(1), IRS + 103, None, at(5600)), LastAckVerdict::Fresh);
        let old = table(10, None).check(&tuple(1), IRS + 102, None, at(5600));
        assert!(matches!(old, LastAckVerdict::Duplicate { .. }));
        let older = table(10, Some(50)).check(&tuple(1), IRS - 7, Some(50), at(5600));
        assert!(matches!(older, LastAckVerdict::Duplicate { .. }));
        assert_eq!(table(10, None).check(&tuple(2), IRS, None, at(5600)), LastAckVerdict::Unknown);
    }

    #[test]
    fn a_new_connection_ends_the_hold() {
        let mut table = table(10, Some(50));
        assert_eq!(table.check(&tuple(1), IRS - 7, Some(51), at(5600)), LastAckVerdict::Fresh);
        assert_eq!(table.check(&tuple(1), IRS, Some(40), at(5600)), LastAckVerdict::Unknown);
    }

    #[test]
    fn a_full_table_forgets_the_oldest_and_a_renewed_entry_lasts() {
        let mut table = table(2, None);
        table.insert(tuple(2), IRS, numbers(None), 64, 0, at(700));
        table.insert(tuple(1), IRS + 1, numbers(None), 64, 0, at(800));
        assert_eq!(table.len(), 2, "the old entry of these ends made way for the new");
        table.insert(tuple(3), IRS, numbers(None), 64, 0, at(900));
        assert_eq!(table.check(&tuple(2), IRS, None, at(1000)), LastAckVerdict::Unknown);
        assert!(matches!(table.check(&tuple(1), IRS + 1, None, at(1000)), LastAckVerdict::Duplicate { .. }));
        assert!(matches!(
            table.check(&tuple(1), IRS + 1, None, at(60_799)),
            LastAckVerdict::Duplicate { .. }
        ));
        let mut none = LastAckTable::new(0, Duration::from_secs(30), KeyedHash::new(&1.into()));
        none.insert(tuple(1), IRS, numbers(None), 64, 0, at(0));
        assert_eq!(none.len(), 0);
    }
}
