//! The brake of Proactive. It stops copies on a path with many losses, which they would make worse.

use alloc::collections::VecDeque;

/// Number of latest originals among which losses count.
const WINDOW: u64 = 100;

/// The count of lost segments among the last 100 originals. A segment counts if it was retransmitted, or if
/// the peer reported that its copy replaced it (a masked loss).
#[derive(Clone, Debug)]
pub(crate) struct Brake {
    /// Number of losses among the last 100 originals up to which copying continues, 1..=100.
    cap: usize,
    /// Original segments sent so far.
    originals: u64,
    /// Value of `originals` at each loss that still counts; at most `cap + 1` entries.
    losses: VecDeque<u64>,
}

impl Brake {
    /// Returns a brake that stops the copies if more than `percent` of the originals are lost, 1..=100.
    pub(crate) fn new(percent: u32) -> Self {
        Brake { cap: percent.clamp(1, WINDOW as u32) as usize, originals: 0, losses: VecDeque::new() }
    }

    /// Counts `segments` originals that were sent.
    pub(crate) fn on_originals(&mut self, segments: u32) {
        self.originals += u64::from(segments);
        while self.losses.front().is_some_and(|at| at + WINDOW <= self.originals) {
            self.losses.pop_front();
        }
    }

    /// Counts a loss: an original was retransmitted, or its loss was reported as masked. Returns true if the
    /// losses exceed the limit, so that copying must stop.
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
        assert_eq!(stopped, 1, "the 26th loss stops the copies");
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
