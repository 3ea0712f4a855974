//! The table of four-tuples and the deadlines by themselves, for `crates/sim/benches/instructions`, which counts what one
//! look or one timer costs: to make a stack with a million connections takes too long where every instruction is counted.
//!
//! Nobody else has a use for it, and it may change at any time.

use alloc::vec::Vec;

use super::deadlines::Deadlines;
use super::demux::{Demux, Target};
use crate::four_tuple::{CompactTuple, FourTuple, KeyedHash};
use crate::time::Instant;

/// A table in which four-tuples lead to connections.
#[derive(Debug)]
pub struct Table {
    demux: Demux,
    tuples: Vec<CompactTuple>,
}

impl Table {
    /// Of these four-tuples, each of which is there once: the first leads to connection 0.
    pub fn of(tuples: impl ExactSizeIterator<Item = FourTuple>) -> Table {
        let mut table =
            Table { demux: Demux::new(KeyedHash::new(1)), tuples: Vec::with_capacity(tuples.len()) };
        for (place, tuple) in (0..).zip(tuples) {
            table.demux.point(&tuple, None, Target::Connection(place));
            table.tuples.push(tuple.into());
        }
        table
    }

    /// The connection of a four-tuple.
    pub fn find(&self, tuple: &FourTuple) -> Option<u32> {
        let is_of = |target| match target {
            Target::Connection(place) => self.tuples.get(place as usize).is_some_and(|known| known.is(tuple)),
            Target::HalfOpen(_) | Target::TimeWait(_) => false,
        };
        match self.demux.get(tuple, is_of)? {
            Target::Connection(place) => Some(place),
            Target::HalfOpen(_) | Target::TimeWait(_) => None,
        }
    }
}

/// The deadlines of connections.
#[derive(Debug, Default)]
pub struct Timers(Deadlines);

impl Timers {
    /// Arms, moves or (`None`) cancels the timer of a connection.
    pub fn set(&mut self, connection: u32, at: Option<Instant>) {
        self.0.set(connection, at);
    }

    /// The connection whose timer expires first, if that is not after `now`.
    pub fn expire(&mut self, now: Instant) -> Option<u32> {
        self.0.pop_due(now)
    }
}
