//! How large buffers are of use where the path is short: within a host or a rack.
//!
//! A receive buffer follows what is read in a round trip, a send buffer what is acknowledged. Where the path
//! is nearly nothing, what is measured as a round trip is the queue of the buffer itself, and it would grow
//! to its largest without moving a byte more a second, while what waits in it falls out of the processor's
//! caches and is fetched from memory by every copy. So on such a path it follows what the empty path holds at
//! the present rate, and beyond that only as long as each doubling brings more a second: where somebody is
//! woken late, a round trip of the empty path does not tell how much is needed.

use crate::time::{Instant, Micros};

/// A path with a longer round trip is not short: buffers there are small beside what it holds.
const SHORT: Micros = Micros::from_millis(2);
/// Bytes that may always be under way.
const ALWAYS: u64 = 256 << 10;
/// How many times what the empty path holds is of use: readers and writers come in turns.
const TIMES: u128 = 4;
/// Rounds that are looked at together: a single one may be a burst.
const ROUNDS: u8 = 16;
/// A larger buffer has to bring one part in so many more.
const BETTER: u64 = 4;
/// Times that are let pass, at most, after a larger buffer has brought too little.
const PATIENCE: u8 = 127;

/// True if buffers of a path that was never shorter than this are sized as is told in the [module](self).
pub(crate) fn is_short(min_rtt: Micros) -> bool {
    min_rtt < SHORT
}

/// A buffer on a short path, and what larger ones have brought so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Trial {
    /// Rounds so far that are looked at together.
    rounds: u8,
    /// In how many of them the buffer was too small for what passed.
    full: u8,
    /// Bytes that passed in them.
    bytes: u64,
    /// How long they took.
    within: Micros,
    /// Bytes a second before the last doubling.
    before: u64,
    /// Times to let pass before the next doubling, and how many the last ones were.
    wait: u8,
    waited: u8,
}

impl Trial {
    /// In a round `bytes` passed `within` a time through a buffer of `capacity` bytes, where `wanted` would
    /// hold them twice. Returns how large it shall be from now on, at least `capacity`.
    pub(crate) fn on_round(
        &mut self,
        bytes: u64,
        within: Micros,
        min_rtt: Micros,
        capacity: u64,
        wanted: u64,
    ) -> u64 {
        if capacity < ALWAYS {
            return wanted.min(ALWAYS).max(capacity);
        }
        self.rounds += 1;
        self.full += u8::from(wanted > capacity);
        self.bytes = self.bytes.saturating_add(bytes);
        self.within = self.within + within;
        if self.rounds < ROUNDS {
            return capacity;
        }
        let rate = u128::from(self.bytes) * 1_000_000 / u128::from(self.within.0.max(1));
        let is_full = self.full > ROUNDS / 2;
        *self = Trial { rounds: 0, full: 0, bytes: 0, within: Micros::ZERO, ..*self };
        if !is_full {
            return capacity;
        }
        let bdp = u64::try_from(TIMES * rate * u128::from(min_rtt.0) / 1_000_000).unwrap_or(u64::MAX);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        if capacity < bdp {
            return capacity.saturating_mul(2).min(bdp);
        }
        self.try_more(rate, capacity)
    }

    /// More than the empty path holds: tried, and kept up as long as it brings something.
    fn try_more(&mut self, rate: u64, capacity: u64) -> u64 {
        if self.wait > 0 {
            self.wait -= 1;
            return capacity;
        }
        if rate <= self.before.saturating_add(self.before / BETTER) {
            self.waited = (2 * self.waited + 1).min(PATIENCE);
            self.wait = self.waited;
            return capacity;
        }
        *self = Trial { before: rate, ..Trial::default() };
        capacity.saturating_mul(2)
    }
}

/// The send buffer on a short path: it follows what is acknowledged in a round trip.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SendSizing {
    round_start: Instant,
    /// Bytes acknowledged in this round so far.
    acked: u64,
    trial: Trial,
}

impl SendSizing {
    /// `acked` bytes were acknowledged of what a buffer of `limit` bytes holds, on a short path that was
    /// never shorter than `min_rtt` and is `srtt` long with its queues. Returns how large the buffer shall
    /// be from now on.
    pub(crate) fn on_acked(
        &mut self,
        acked: u32,
        srtt: Micros,
        min_rtt: Micros,
        limit: usize,
        now: Instant,
    ) -> usize {
        self.acked += u64::from(acked);
        let round = Micros::between(self.round_start, now);
        if round < srtt {
            return limit;
        }
        let acked = core::mem::take(&mut self.acked);
        self.round_start = now;
        let wanted = acked.saturating_mul(2);
        let limit = self.trial.on_round(acked, round, min_rtt, limit as u64, wanted);
        usize::try_from(limit).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Micros = Micros(100);

    /// Returns the size of a buffer after `rounds` rounds of a millisecond, each of which brings what
    /// `brings` says of the buffer.
    fn grown(rounds: u64, mut brings: impl FnMut(u64, u64) -> u64) -> u64 {
        let (mut trial, mut capacity) = (Trial::default(), 64 << 10);
        for round in 0..rounds {
            let bytes = brings(round, capacity);
            let next = trial.on_round(bytes, Micros::from_millis(1), MIN, capacity, 2 * bytes);
            assert!(next >= capacity);
            capacity = next;
        }
        capacity
    }

    #[test]
    fn it_holds_the_empty_path_four_times_and_one_doubling_is_tried() {
        // 4 MB a millisecond: the path holds 400 kB.
        assert_eq!(grown(15, |_, _| 4_000_000), 256 << 10, "not yet");
        assert_eq!(grown(5_000, |_, _| 4_000_000), 2 * 1_600_000);
        assert_eq!(grown(5_000, |_, _| 100_000), 200_000, "what is not filled does not grow");
    }

    #[test]
    fn it_doubles_as_long_as_that_brings_more() {
        assert_eq!(
            grown(5_000, |_, capacity| capacity.min(1 << 20)),
            2 << 20,
            "who is woken late needs more"
        );
        assert_eq!(
            grown(5_000, |_, capacity| capacity.min(200 << 10)),
            512 << 10,
            "one doubling, which brings nothing"
        );
    }

    /// The congestion window alone would let it grow to megabytes.
    #[test]
    fn the_send_buffer_follows_what_is_acknowledged() {
        let (mut sizing, mut limit) = (SendSizing::default(), 256 << 10);
        // 1 GB a second in acknowledgements of 32 kB; the path holds 50 kB, the queue all that there is.
        for at in 1..200_000 {
            let now = Instant::ZERO + Micros(32 * at);
            let srtt = Micros(limit as u32 / 1_000);
            limit = sizing.on_acked(32_000, srtt, Micros(50), limit, now);
        }
        assert_eq!(limit, 512 << 10);
    }

    #[test]
    fn bursts_are_not_taken_for_more() {
        let bursts = |round: u64, _| if round.is_multiple_of(8) { 4 << 20 } else { 64 << 10 };
        assert_eq!(grown(5_000, bursts), 256 << 10, "a few full rounds are none");
        // A rate that varies by a tenth.
        let noise = |round: u64, _| 300_000 + 60_000 * (round * 7_919 % 11) / 10;
        assert_eq!(grown(5_000, noise), 512 << 10);
    }
}
