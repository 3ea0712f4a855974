//! The order in which things happen: of each source, when it is to be woken.
//!
//! Two sources of one instant come out in the order in which they were armed for it, so that a run depends on
//! nothing but its inputs. A world has a handful of sources, two for each link and one for each host, and
//! arms them several times for each that it wakes. So arming is an entry in a list, and who is first is
//! looked for: a heap, in which what has moved leaves an old entry behind, took four times as much.

use brisk_wire::Instant;

/// Index of something that wants to be woken: a host or one direction of a link.
pub(crate) type Source = usize;

/// When a source is to be woken, as (time, number of the arming).
type Turn = (u64, u64);

/// The turn of a source that is not to be woken: no arming has this number, and it comes after all others.
const NEVER: Turn = (u64::MAX, u64::MAX);

/// When each source is to be woken next.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    turns: Vec<Turn>,
    armings: u64,
}

impl Schedule {
    /// As a new one is, in the same storage.
    pub(crate) fn clear(&mut self) {
        self.turns.clear();
        self.armings = 0;
    }

    /// Makes room for one more source, the first of which is number 0.
    pub(crate) fn add(&mut self) -> Source {
        self.turns.push(NEVER);
        self.turns.len() - 1
    }

    /// Wakes `source` at `due`, or not at all. Replaces what was said before.
    pub(crate) fn arm(&mut self, source: Source, due: Option<Instant>) {
        let turn = &mut self.turns[source];
        match due.map(Instant::as_micros) {
            None => *turn = NEVER,
            Some(at) if turn.0 == at && *turn != NEVER => {}
            Some(at) => {
                *turn = (at, self.armings);
                self.armings += 1;
            }
        }
    }

    /// Takes the next wake-up, if it is before or at `limit`; its source is unarmed from here on.
    pub(crate) fn pop(&mut self, limit: Instant) -> Option<(Instant, Source)> {
        let (mut first, mut of) = (NEVER, 0);
        for (source, turn) in self.turns.iter().enumerate() {
            if *turn < first {
                (first, of) = (*turn, source);
            }
        }
        let at = Instant::from_micros(first.0);
        if first == NEVER || at > limit {
            return None;
        }
        self.turns[of] = NEVER;
        Some((at, of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: Instant = Instant::from_micros(u64::MAX);

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
            [schedule.pop(END), schedule.pop(END), schedule.pop(END), schedule.pop(END)],
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
        assert_eq!(schedule.pop(END), Some((at(7), b)));
        schedule.arm(a, None);
        assert_eq!(schedule.pop(END), None);
    }

    #[test]
    fn a_due_time_that_does_not_move_keeps_its_turn() {
        let mut schedule = Schedule::default();
        let [a, b] = [schedule.add(), schedule.add()];
        [a, b, a].into_iter().for_each(|source| schedule.arm(source, Some(at(5))));
        assert_eq!([schedule.pop(END), schedule.pop(END)], [Some((at(5), a)), Some((at(5), b))]);
    }

    #[test]
    fn nothing_comes_out_before_its_time_and_the_end_of_time_is_one() {
        let mut schedule = Schedule::default();
        let [a, b] = [schedule.add(), schedule.add()];
        schedule.arm(a, Some(END));
        schedule.arm(b, Some(at(5)));
        assert_eq!([schedule.pop(at(4)), schedule.pop(at(5))], [None, Some((at(5), b))]);
        assert_eq!([schedule.pop(at(1 << 60)), schedule.pop(END)], [None, Some((END, a))]);
        assert_eq!(schedule.pop(END), None);
    }
}
