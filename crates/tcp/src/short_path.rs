//! How large a receive buffer is of use where the path is short: within a host or a rack.
//!
//! The buffer follows what is read in a round trip. Where the path is nearly nothing, what is measured as a round trip is
//! the queue of the buffer itself, and it would grow to its largest without moving a byte more a second, while what waits
//! in it falls out of the processor's caches and is fetched from memory by every copy. So on such a path it follows what
//! the empty path holds at the present rate, and beyond that only as long as each doubling brings more a second: where
//! somebody is woken late, a round trip of the empty path does not tell how much is needed.

use crate::time::Duration;

/// A path with a longer round trip is not short: buffers there are small beside what it holds.
const SHORT: Duration = Duration::from_millis(2);
/// What may always be under way, bytes.
const ALWAYS: u64 = 256 << 10;
/// How many times what the empty path holds is of use: readers and writers come in turns.
const TIMES: u128 = 4;
/// Rounds after which it is judged what the last doubling has brought.
const ROUNDS: u8 = 16;

/// Bytes that are of use under way where `bytes` passed `within` a time, and no round trip was shorter than
/// `least_rtt`. `None`: the path is not short, or not known.
pub(crate) fn useful(bytes: u64, within: Duration, least_rtt: Option<Duration>) -> Option<u64> {
    let least = least_rtt.filter(|rtt| *rtt < SHORT)?;
    let held = u128::from(bytes) * least.as_micros() / within.as_micros().max(1);
    Some(u64::try_from(TIMES * held).unwrap_or(u64::MAX).max(ALWAYS))
}

/// What larger buffers have brought so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Trial {
    /// Rounds since the last doubling, up to [`ROUNDS`].
    rounds: u8,
    /// Most bytes a second of one of them.
    best: u64,
    /// The same before that doubling.
    before: u64,
}

impl Trial {
    /// In a round with a buffer of all that is of use, and that was too little, `bytes` were read `within` a time. True if the
    /// buffer shall be twice as large.
    pub(crate) fn on_round(&mut self, bytes: u64, within: Duration) -> bool {
        let rate = u128::from(bytes) * 1_000_000 / within.as_micros().max(1);
        self.best = self.best.max(u64::try_from(rate).unwrap_or(u64::MAX));
        self.rounds = (self.rounds + 1).min(ROUNDS);
        let better = self.best > self.before.saturating_add(self.before / 8);
        if self.rounds < ROUNDS || !better {
            return false;
        }
        *self = Trial { before: self.best, ..Trial::default() };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn of_use_is_what_the_empty_path_holds_four_times_and_not_its_queue() {
        let least = Some(Duration::from_micros(500));
        // 8 MB in 4 ms: the path holds 1 MB.
        assert_eq!(useful(8 << 20, 4 * MS, least), Some(4 << 20));
        assert_eq!(useful(16 << 20, 8 * MS, least), Some(4 << 20), "a longer queue changes nothing");
        assert_eq!(useful(16 << 20, 4 * MS, least), Some(8 << 20), "a higher rate does");
        assert_eq!(useful(1 << 18, 4 * MS, least), Some(256 << 10));
    }

    #[test]
    fn a_path_that_is_long_or_unknown_has_no_such_bound() {
        assert_eq!(useful(8 << 20, 4 * MS, Some(2 * MS)), None);
        assert_eq!(useful(8 << 20, 4 * MS, None), None);
        assert_eq!(useful(u64::MAX, Duration::ZERO, Some(MS)), Some(u64::MAX));
    }

    /// Doublings in `rounds` rounds, of which each takes `round` and brings what the buffer holds, at most `most` bytes.
    fn doublings(rounds: u32, round: Duration, most: u64) -> u32 {
        let (mut trial, mut buffer, mut count) = (Trial::default(), 256 << 10, 0);
        for _ in 0..rounds {
            if trial.on_round(most.min(buffer), round) {
                buffer *= 2;
                count += 1;
            }
        }
        count
    }

    #[test]
    fn the_buffer_doubles_as_long_as_that_brings_more() {
        assert_eq!(doublings(15, MS, u64::MAX), 0, "not yet");
        assert_eq!(doublings(16 * 5, 4 * MS, u64::MAX), 5, "who is woken late needs more");
        assert_eq!(doublings(1_000, MS, 100 << 10), 1, "one doubling is tried, and brings nothing");
        assert_eq!(doublings(1_000, MS, 1 << 20), 3, "two bring something, the third nothing");
    }
}
