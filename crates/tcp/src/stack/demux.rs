//! Finds the owner of a packet.
//!
//! One hash table maps four-tuples to connections, half-open records and TIME-WAIT entries. The seed of the
//! stack keys the hash, so others cannot choose four-tuples that fall into one bucket. Part of the hash is
//! stored, so the table grows without access to the connections.

use core::cell::Cell;
use core::hash::BuildHasher;

use hashbrown::HashTable;

use crate::four_tuple::{FourTuple, KeyedHash, V4};

/// Target of a four-tuple.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// The connection in this slot.
    Connection(u32),
    /// An entry of the table of half-open connections.
    HalfOpen(u32),
    /// An entry of the TIME-WAIT table.
    TimeWait(u32),
}

/// Bits of a packed [`Target`] that tell the kinds apart: [`HALF_OPEN`], [`TIME_WAIT`] or none.
const KIND: u32 = HALF_OPEN | TIME_WAIT;
const HALF_OPEN: u32 = 1 << 30;
const TIME_WAIT: u32 = 1 << 31;

/// Maximum number of four-tuples: the bits above distinguish the kinds.
pub(crate) const MAX_ENTRIES: usize = HALF_OPEN as usize;

impl Target {
    fn pack(self) -> u32 {
        match self {
            Target::Connection(index) => index,
            Target::HalfOpen(index) => index | HALF_OPEN,
            Target::TimeWait(index) => index | TIME_WAIT,
        }
    }

    fn unpack(packed: u32) -> Target {
        match packed & KIND {
            0 => Target::Connection(packed),
            HALF_OPEN => Target::HalfOpen(packed & !KIND),
            _ => Target::TimeWait(packed & !KIND),
        }
    }
}

/// The table of four-tuples. The stack bounds its size by `max_connections`.
///
/// An entry is eight bytes: half of the hash, and the target. The tuple itself is stored only at the target,
/// so the caller compares it.
#[derive(Debug)]
pub(crate) struct Demux {
    hash: KeyedHash,
    /// The last lookup of an IPv4 four-tuple. A packet that opens or ends a connection uses the table several
    /// times, and packets of one connection arrive in a row.
    last: Cell<Option<Last>>,
    entries: HashTable<TupleEntry>,
}

/// Result of the last lookup of a four-tuple.
#[derive(Clone, Copy, Debug)]
struct Last {
    tuple: V4,
    hash: u32,
    /// The target of the tuple, if it was looked up since the last change.
    target: Option<Target>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct TupleEntry {
    hash: u32,
    target: u32,
}

impl TupleEntry {
    /// Returns the hash, widened for the table. The table selects the bucket by the low bits and compares the
    /// top bits.
    fn spread(&self) -> u64 {
        u64::from(self.hash) << 32 | u64::from(self.hash)
    }
}

impl Demux {
    /// Returns an empty table with this hash.
    pub(crate) fn new(hash: KeyedHash) -> Self {
        Demux { hash, last: Cell::new(None), entries: HashTable::new() }
    }

    /// Resets the table to the state after [`Demux::new`], and keeps its storage.
    pub(super) fn renew(&mut self, by: KeyedHash) {
        let Demux { hash, last, entries } = self;
        *hash = by;
        last.set(None);
        entries.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    fn entry(&self, tuple: &FourTuple, target: Target) -> TupleEntry {
        TupleEntry { hash: self.hash_of(tuple), target: target.pack() }
    }

    /// Returns the stored half of the hash of `tuple`.
    fn hash_of(&self, tuple: &FourTuple) -> u32 {
        let Some(v4) = tuple.v4() else { return self.hash.hash_one(tuple) as u32 };
        self.known(v4).hash
    }

    /// Returns the cached lookup of an IPv4 four-tuple, or starts a new one that has only the hash.
    fn known(&self, tuple: V4) -> Last {
        if let Some(last) = self.last.get().filter(|last| last.tuple == tuple) {
            return last;
        }
        let new = Last { tuple, hash: self.hash.of_v4(tuple) as u32, target: None };
        self.last.set(Some(new));
        new
    }

    /// Records the last tuple and its target; `None` if that is unknown.
    fn cache_target(&self, tuple: &FourTuple, target: Option<Target>) {
        if tuple.v4().is_some() {
            self.last.set(self.last.get().map(|last| Last { target, ..last }));
        }
    }

    /// Returns the target of `tuple`. `is_of`: true if a target has this tuple.
    pub(crate) fn get(&self, tuple: &FourTuple, is_of: impl Fn(Target) -> bool) -> Option<Target> {
        let known = tuple.v4().map(|v4| self.known(v4));
        if let Some(target) = known.and_then(|known| known.target) {
            debug_assert!(is_of(target), "it leads elsewhere");
            return Some(target);
        }
        let hash = known.map_or_else(|| self.hash_of(tuple), |known| known.hash);
        let sought = TupleEntry { hash, target: 0 };
        let is_sought = |known: &TupleEntry| known.hash == hash && is_of(Target::unpack(known.target));
        let found = self.entries.find(sought.spread(), is_sought).map(|found| Target::unpack(found.target));
        self.cache_target(tuple, found);
        found
    }

    /// Points `tuple` to `to`; `from` is the previous target.
    pub(crate) fn point(&mut self, tuple: &FourTuple, from: Option<Target>, to: Target) {
        let entry = self.entry(tuple, to);
        let before = from.map(|from| TupleEntry { target: from.pack(), ..entry });
        match before.and_then(|before| self.entries.find_mut(entry.spread(), |known| *known == before)) {
            Some(known) => *known = entry,
            None => {
                self.entries.insert_unique(entry.spread(), entry, TupleEntry::spread);
            }
        }
        self.cache_target(tuple, None);
    }

    /// Removes `tuple`, which points to `target`.
    pub(crate) fn remove(&mut self, tuple: &FourTuple, target: Target) {
        let entry = self.entry(tuple, target);
        if let Ok(found) = self.entries.find_entry(entry.spread(), |known| *known == entry) {
            found.remove();
        }
        self.cache_target(tuple, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_target_is_found_until_it_is_removed() {
        let tuple = |local: &str, remote: &str| {
            FourTuple::new(local.parse().expect("valid"), remote.parse().expect("valid"))
        };
        let tuples: [FourTuple; 3] = [
            tuple("10.0.0.1:80", "10.0.0.2:81"),
            tuple("10.0.0.1:80", "10.0.0.2:82"),
            tuple("[2001:db8::1]:80", "[2001:db8::2]:81"),
        ];
        let mut demux = Demux::new(KeyedHash::new(&1.into()));
        let owner = |target| match target {
            Target::Connection(index) => &tuples[index as usize],
            Target::HalfOpen(index) => &tuples[index as usize - 5],
            Target::TimeWait(index) => &tuples[index as usize - 10],
        };
        let found = |demux: &Demux, tuple| demux.get(tuple, |target| owner(target) == tuple);
        for (index, tuple) in (0..).zip(&tuples) {
            demux.point(tuple, None, Target::Connection(index));
            demux.point(tuple, Some(Target::Connection(index)), Target::HalfOpen(index + 5));
            assert_eq!(found(&demux, tuple), Some(Target::HalfOpen(index + 5)));
            demux.point(tuple, Some(Target::HalfOpen(index + 5)), Target::TimeWait(index + 10));
        }
        assert_eq!(demux.len(), 3);
        for (index, tuple) in (0..).zip(&tuples) {
            assert_eq!(found(&demux, tuple), Some(Target::TimeWait(index + 10)));
            demux.remove(tuple, Target::Connection(index));
            assert!(found(&demux, tuple).is_some(), "it no longer leads there");
            demux.remove(tuple, Target::TimeWait(index + 10));
            assert!(found(&demux, tuple).is_none());
        }
        assert_eq!(demux.len(), 0);
    }
}
