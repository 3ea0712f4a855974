//! Propagation: delay, jitter, reordering, duplication; and the packets in propagation.
//!
//! Jitter keeps the order of packets, as queues in real paths do: no packet is due before the one ahead of
//! it. Only reordering lets later packets overtake. Packets in order are in a plain queue, the few reordered
//! packets in a heap.

use crate::seeds::{Draws, Name, below, chance, draws};
use crate::spec::{DirectionSpec, Reorder};
use crate::units::Ratio;
use alloc::collections::{BinaryHeap, VecDeque};
use core::cmp::Ordering;
use core::time::Duration;

/// The delay drawn for one packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DrawnDelay {
    /// Extra delay in nanoseconds.
    jitter: u64,
    /// Extra delay of a reordered packet.
    extra: Option<u64>,
    pub(crate) twice: bool,
}

impl DrawnDelay {
    pub(crate) fn is_reordered(&self) -> bool {
        self.extra.is_some()
    }
}

/// The last part of a direction: assigns due times and holds packets until then. All times are in
/// nanoseconds.
#[derive(Debug)]
pub(crate) struct DelayLine<P> {
    delay: u64,
    jitter: Option<(u64, Draws)>,
    reorder: Option<(Ratio, u64, Draws)>,
    duplicate: Option<(Ratio, Draws)>,
    /// Due time of the last packet that was not held back.
    last_due: u64,
    entered: u64,
    in_order: VecDeque<InPropagation<P>>,
    reordered: BinaryHeap<InPropagation<P>>,
}

/// A packet in propagation. The order is reversed, so that the heap returns the earliest first.
#[derive(Debug)]
struct InPropagation<P> {
    due: u64,
    /// Breaks ties among packets that are due at the same time.
    number: u64,
    packet: P,
}

impl<P> InPropagation<P> {
    fn key(&self) -> (u64, u64) {
        (self.due, self.number)
    }
}

impl<P> PartialEq for InPropagation<P> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<P> Eq for InPropagation<P> {}

impl<P> PartialOrd for InPropagation<P> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> Ord for InPropagation<P> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

/// Converts to nanoseconds, saturating.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl<P> DelayLine<P> {
    /// Returns a line without delay and randomness.
    pub(crate) fn new() -> Self {
        DelayLine {
            delay: 0,
            jitter: None,
            reorder: None,
            duplicate: None,
            last_due: 0,
            entered: 0,
            in_order: VecDeque::new(),
            reordered: BinaryHeap::new(),
        }
    }

    /// Empties the line and configures it by `spec`. Each kind of randomness has its own generator. The name
    /// of a generator begins with `name`.
    pub(crate) fn renew(&mut self, spec: &DirectionSpec, seed: u64, name: &str) {
        let DelayLine { delay, jitter, reorder, duplicate, last_due, entered, in_order, reordered } = self;
        let generator = |element: &str| draws(seed, Name::new(name).with("/").with(element));
        *delay = nanos(spec.delay);
        *jitter = spec.jitter.map(|max| (nanos(max), generator("jitter")));
        *reorder = spec.reorder.map(|Reorder { share, by }| (share, nanos(by), generator("reorder")));
        *duplicate = spec.duplicate.map(|share| (share, generator("duplicate")));
        (*last_due, *entered) = (0, 0);
        in_order.clear();
        reordered.clear();
    }

    /// Removes the packets in propagation and hands them to `to`, in no order.
    pub(crate) fn clear(&mut self, to: &mut impl FnMut(P)) {
        let reordered = self.reordered.drain();
        self.in_order.drain(..).chain(reordered).for_each(|InPropagation { packet, .. }| to(packet));
    }

    /// Draws the delay of the next packet. It is drawn even for a lost packet, so that the draws depend only
    /// on the packet's number.
    #[inline]
    pub(crate) fn draw(&mut self) -> DrawnDelay {
        DrawnDelay {
            jitter: self.jitter.as_mut().map_or(0, |(max, rng)| below(rng, max.saturating_add(1))),
            extra: self.reorder.as_mut().and_then(|(share, by, rng)| chance(rng, *share).then_some(*by)),
            twice: self.duplicate.as_mut().is_some_and(|(share, rng)| chance(rng, *share)),
        }
    }

    /// Adds a packet that leaves the bottleneck at `departure`.
    #[inline]
    pub(crate) fn enter(&mut self, packet: P, departure: u64, drawn: DrawnDelay) {
        let due = departure.saturating_add(self.delay).saturating_add(drawn.jitter).max(self.last_due);
        let number = self.entered;
        self.entered += 1;
        match drawn.extra {
            None => {
                self.last_due = due;
                self.in_order.push_back(InPropagation { due, number, packet });
            }
            Some(by) => self.reordered.push(InPropagation { due: due.saturating_add(by), number, packet }),
        }
    }

    #[inline]
    pub(crate) fn next_due(&self) -> Option<u64> {
        match (self.in_order.front(), self.reordered.peek()) {
            (Some(first), Some(reordered)) => Some(first.due.min(reordered.due)),
            (Some(only), None) | (None, Some(only)) => Some(only.due),
            (None, None) => None,
        }
    }

    /// Returns the next packet, if it is due by `now`.
    #[inline]
    pub(crate) fn leave(&mut self, now: u64) -> Option<(u64, P)> {
        self.next_due().filter(|due| *due <= now)?;
        let reordered_first = match (self.in_order.front(), self.reordered.peek()) {
            (Some(first), Some(reordered)) => reordered.key() < first.key(),
            (Some(_), None) | (None, None) => false,
            (None, Some(_)) => true,
        };
        let next = if reordered_first { self.reordered.pop() } else { self.in_order.pop_front() };
        next.map(|InPropagation { due, number: _, packet }| (due, packet))
    }

    pub(crate) fn len(&self) -> usize {
        self.in_order.len() + self.reordered.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    fn line(jitter_ms: u64, reorder: Option<Reorder>) -> DelayLine<u32> {
        let jitter = (jitter_ms > 0).then_some(Duration::from_millis(jitter_ms));
        let spec =
            DirectionSpec { delay: Duration::from_millis(10), jitter, reorder, ..DirectionSpec::default() };
        let mut line = DelayLine::new();
        line.renew(&spec, 1, "t");
        line
    }

    fn drain(line: &mut DelayLine<u32>) -> Vec<(u64, u32)> {
        core::iter::from_fn(|| line.leave(u64::MAX)).collect()
    }

    #[test]
    fn a_packet_is_due_after_the_delay_and_not_before() {
        let mut line = line(0, None);
        let drawn = line.draw();
        line.enter(1, 5 * MS, drawn);
        assert_eq!(line.next_due(), Some(15 * MS));
        assert_eq!(line.leave(15 * MS - 1), None);
        assert_eq!(line.leave(15 * MS), Some((15 * MS, 1)));
    }

    #[test]
    fn jitter_spreads_delays_over_its_range() {
        let mut line = line(3, None);
        let mut extra = Vec::new();
        for i in 0..2000 {
            let drawn = line.draw();
            line.enter(i, u64::from(i) * 100 * MS, drawn);
        }
        for (due, i) in drain(&mut line) {
            extra.push(due - u64::from(i) * 100 * MS - 10 * MS);
        }
        assert!(extra.iter().all(|extra| *extra <= 3 * MS));
        let mean = extra.iter().sum::<u64>() / 2000;
        assert!((1_400_000..1_600_000).contains(&mean), "mean {mean}");
    }

    #[test]
    fn delayed_packet_is_overtaken_and_others_keep_their_order() {
        let always = Reorder { share: Ratio::ONE, by: Duration::from_millis(5) };
        let mut line = line(0, Some(always));
        let late = line.draw();
        let on_time = DrawnDelay { jitter: 0, extra: None, twice: false };
        line.enter(1, 0, late);
        line.enter(2, MS, on_time);
        line.enter(3, 5 * MS, on_time);
        line.enter(4, 6 * MS, on_time);
        // Packets 1 and 3 are due at the same time; 1 goes first, because it entered first.
        assert_eq!(drain(&mut line).iter().map(|(_, i)| *i).collect::<Vec<_>>(), [2, 1, 3, 4]);
    }

    proptest! {
        #[test]
        fn jitter_never_reorders(gaps in prop::collection::vec(0u64..2 * MS, 1..200), jitter_ms in 1u64..20) {
            let mut line = line(jitter_ms, None);
            let mut departure = 0;
            for (i, gap) in gaps.iter().enumerate() {
                departure += gap;
                let drawn = line.draw();
                line.enter(i as u32, departure, drawn);
            }
            let out = drain(&mut line);
            prop_assert!(out.iter().enumerate().all(|(i, (_, packet))| i as u32 == *packet));
            prop_assert!(out.windows(2).all(|w| w[0].0 <= w[1].0));
        }
    }
}
