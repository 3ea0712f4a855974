//! The order in which things happen: a heap of (time, number, source).
//!
//! Two entries of one instant come out in the order they went in, so that a run depends on nothing
//! but its inputs. A source keeps at most one entry that counts; when its due time moves, a second entry
//! goes in and the older one is skipped when it comes up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use brisk_wire::Instant;

/// Index of something that wants to be woken: a host or one direction of a link.
pub(crate) type Source = usize;

/// When each source is to be woken next.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    heap: BinaryHeap<Reverse<(Instant, u64, Source)>>,
    /// The entry of each source that counts.
    armed: Vec<Option<(Instant, u64)>>,
    entries: u64,
}

impl Schedule {
    /// As a new one is, in the same storage.
    pub(crate) fn clear(&mut self) {
        self.heap.clear();
        self.armed.clear();
        self.entries = 0;
    }

    /// Makes room for one more source, the first of which is number 0.
    pub(crate) fn add(&mut self) -> Source {
        self.armed.push(None);
        self.armed.len() - 1
    }

    /// Wakes `source` at `due`, or not at all. Replaces what was said before.
    pub(crate) fn arm(&mut self, source: Source, due: Option<Instant>) {
        if self.armed[source].map(|(at, _)| at) == due {
            return;
        }
        self.armed[source] = due.map(|at| {
            self.entries += 1;
            self.heap.push(Reverse((at, self.entries, source)));
            (at, self.entries)
        });
    }

    /// The time of the next wake-up.
    pub(crate) fn next(&mut self) -> Option<Instant> {
        while let Some(&Reverse((at, number, source))) = self.heap.peek() {
            if self.armed[source] == Some((at, number)) {
                return Some(at);
            }
            self.heap.pop();
        }
        None
    }

    /// Takes the next wake-up; its source is unarmed from here on.
    pub(crate) fn pop(&mut self) -> Option<(Instant, Source)> {
        self.next()?;
        let Reverse((at, _, source)) = self.heap.pop()?;
        self.armed[source] = None;
        Some((at, source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(micros: u64) -> Instant {
        Instant::from_micros(micros)
    }

    #[test]
    fn the_same_instant_is_served_in_the_order_of_arming() {
        let mut schedule = Schedule::default();
        let [a, b, c] = [schedule.add(), schedule.add(), schedule.add()];
        schedule.arm(c, Some(at(5)));
        schedule.arm(a, Some(at(5)));
        schedule.arm(b, Some(at(4)));
        assert_eq!(
            [schedule.pop(), schedule.pop(), schedule.pop(), schedule.pop()],
            [Some((at(4), b)), Some((at(5), c)), Some((at(5), a)), None]
        );
    }

    #[test]
    fn a_moved_due_time_replaces_the_old_one() {
        let mut schedule = Schedule::default();
        let [a, b] = [schedule.add(), schedule.add()];
        schedule.arm(a, Some(at(5)));
        schedule.arm(b, Some(at(7)));
        schedule.arm(a, Some(at(9)));
        assert_eq!(schedule.pop(), Some((at(7), b)));
        schedule.arm(a, None);
        assert_eq!(schedule.next(), None);
    }
}
