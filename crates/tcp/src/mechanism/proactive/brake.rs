//! The brake of Proactive: on a path that loses a large share of the segments, copies make the losses worse.

use alloc::collections::VecDeque;

/// Originals that are looked back upon.
const WINDOW: u64 = 100;

/// Counts, over the last 100 original segments, those that were retransmitted or reported as masked.
#[derive(Clone, Debug)]
pub(crate) struct Brake {
    /// Losses among the last 100 originals that are borne, 1..=100.
    cap: usize,
    /// Original segments sent so far.
    originals: u64,
    /// Value of `originals` at each loss that still counts; at most `cap + 1` entries.
    losses: VecDeque<u64>,
}

impl Brake {
    /// A brake that bears `percent` of loss, 1..=100.
    pub(crate) fn new(percent: u32) -> Self {
        Brake { cap: percent.clamp(1, WINDOW as u32) as usize, originals: 0, losses: VecDeque::new() }
    }

    /// So many original segments left.
    pub(crate) fn on_originals(&mut self, segments: u32) {
        self.originals += u64::from(segments);
        while self.losses.front().is_some_and(|at| at + WINDOW <= self.originals) {
            self.losses.pop_front();
        }
    }

    /// An original was retransmitted, or its loss was reported as masked. True if that was one too many:
    /// copying has to stop.
    #[must_use]
    pub(crate) fn on_loss(&mut self) -> bool {
        if self.losses.len() <= self.cap {
            self.losses.push_back(self.originals);
        }
        self.losses.len() > self.cap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_six_losses_in_a_hundred_originals_stop_the_copies() {
        let mut brake = Brake::new(25);
        let mut stopped = 0;
        for index in 0..100 {
            brake.on_originals(1);
            if index % 4 == 0 || index == 99 {
                stopped += u32::from(brake.on_loss());
            }
        }
        assert_eq!(stopped, 1, "25 are borne, the 26th is not");
    }

    #[test]
    fn losses_of_long_ago_are_forgotten() {
        let mut brake = Brake::new(25);
        for index in 0..1000 {
            brake.on_originals(1);
            if index % 5 == 0 {
                assert!(!brake.on_loss(), "a fifth is less than a quarter, at segment {index}");
            }
        }
    }
}
