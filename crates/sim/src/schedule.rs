//! The schedule: the next wake-up time of each source.
//!
//! Sources with the same time are woken in the order in which they were armed, so that a run depends only on
//! its inputs. A world has few sources, two per link and one per host, and arms each of them several times
//! per wake-up. So arming writes one entry of a list, and `pop` searches the list. A heap would take four
//! times as long, because arming would leave an old entry in it each time.

use brisk_wire::Instant;

/// Index of a source: a host or one direction of a link.
pub(crate) type Source = usize;

/// Wake-up of a source: its time, and the number of the arming.
type WakeUp = (u64, u64);

/// The entry of an unarmed source: it comes after all others, and no arming has this number.
const NEVER: WakeUp = (u64::MAX, u64::MAX);

/// The next wake-up of each source.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    wake_ups: Vec<WakeUp>,
    armings: u64,
}

impl Schedule {
    /// Removes all sources and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.wake_ups.clear();
        self.armings = 0;
    }

    /// Adds a source and returns its number; the first is 0.
    pub(crate) fn add(&mut self) -> Source {
        self.wake_ups.push(NEVER);
        self.wake_ups.len() - 1
    }

    /// Sets the wake-up of `source` to `due`, or removes it. Replaces an earlier one.
    pub(crate) fn arm(&mut self, source: Source, due: Option<Instant>) {
        let wake_up = &mut self.wake_ups[source];
        match due.map(Instant::as_micros) {
            None => *wake_up = NEVER,
            Some(at) if wake_up.0 == at && *wake_up != NEVER => {}
            Some(at) => {
                *wake_up = (at, self.armings);
                self.armings += 1;
            }
        }
    }

    /// Removes and returns the next wake-up, if it is not after `limit`.
    pub(crate) fn pop(&mut self, limit: Instant) -> Option<(Instant, Source)> {
        let (mut first, mut of) = (NEVER, 0);
        for (source, wake_up) in self.wake_ups.iter().enumerate() {
            if *wake_up < first {
                (first, of) = (*wake_up, source);
            }
        }
        let at = Instant::from_micros(first.0);
        if first == NEVER || at > limit {
            return None;
        }
        self.wake_ups[of] = NEVER;
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
    fn sources_with_the_same_time_are_woken_in_the_order_of_arming() {
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
    fn arming_again_for_the_same_time_keeps_the_order() {
        let mut schedule = Schedule::default();
        let [a, b] = [schedule.add(), schedule.add()];
        [a, b, a].into_iter().for_each(|source| schedule.arm(source, Some(at(5))));
        assert_eq!([schedule.pop(END), schedule.pop(END)], [Some((at(5), a)), Some((at(5), b))]);
    }

    #[test]
    fn sources_are_woken_at_their_time_and_not_earlier() {
        let mut schedule = Schedule::default();
        let [a, b] = [schedule.add(), schedule.add()];
        schedule.arm(a, Some(END));
        schedule.arm(b, Some(at(5)));
        assert_eq!([schedule.pop(at(4)), schedule.pop(at(5))], [None, Some((at(5), b))]);
        assert_eq!([schedule.pop(at(1 << 60)), schedule.pop(END)], [None, Some((END, a))]);
        assert_eq!(schedule.pop(END), None);
    }
}
