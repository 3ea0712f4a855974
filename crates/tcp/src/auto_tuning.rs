//! Buffer sizes on short paths: within a host or a rack.
//!
//! The general rule sizes a receive buffer by the bytes that the application reads in a round trip, and a
//! send buffer by the bytes acknowledged in a round trip. On a short path the measured round trip is mostly
//! the time that data waits in the buffer itself. So this rule would enlarge the buffer up to its limit. The
//! rate would not rise, and waiting data would leave the processor's caches before it is copied. On short
//! paths a buffer therefore holds [`TIMES`] times the product of the minimum round-trip time and the current
//! rate. It becomes larger only while each doubling raises the rate: a task that wakes up late may need more
//! than that product.

use crate::time::{Instant, Micros};

/// Minimum round-trip time of a path that is not short. Its bandwidth-delay product exceeds these buffers.
const SHORT_RTT: Micros = Micros::from_millis(2);
/// Size up to which a buffer grows without a trial, bytes.
const UNTRIED_MAX: u64 = 256 << 10;
/// Size of a buffer in bandwidth-delay products. One is too little, because reader and writer run in turn.
const TIMES: u128 = 4;
/// Rounds per decision, because a single round may be a burst.
const ROUNDS: u8 = 16;
/// A larger buffer must raise the rate by one part in this number.
const MIN_GAIN_DIVISOR: u64 = 4;
/// Maximum number of decisions that are skipped after a larger buffer did not raise the rate enough.
const MAX_SKIPPED: u8 = 127;

/// True if a path with this minimum round-trip time is short in the sense of the [module](self).
pub(crate) fn is_short(min_rtt: Micros) -> bool {
    min_rtt < SHORT_RTT
}

/// Measurements of a buffer on a short path, and the result of its last doubling.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Trial {
    /// Rounds since the last decision.
    rounds: u8,
    /// Number of these rounds in which the buffer was too small.
    full: u8,
    /// Bytes that passed in these rounds.
    bytes: u64,
    /// Duration of these rounds.
    within: Micros,
    /// Rate before the last doubling, bytes per second.
    before: u64,
    /// Decisions still to skip before the next doubling, and the number skipped the last time.
    wait: u8,
    waited: u8,
}

impl Trial {
    /// Records a round of duration `within` in which `bytes` passed through a buffer of `capacity` bytes.
    /// `wanted`: the size that the general rule asks for. Returns the new capacity, at least `capacity`.
    pub(crate) fn on_round(
        &mut self,
        bytes: u64,
        within: Micros,
        min_rtt: Micros,
        capacity: u64,
        wanted: u64,
    ) -> u64 {
        if capacity < UNTRIED_MAX {
            return wanted.min(UNTRIED_MAX).max(capacity);
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

    /// Returns twice the capacity. Returns `capacity` if the last doubling did not raise the rate enough.
    fn try_more(&mut self, rate: u64, capacity: u64) -> u64 {
        if self.wait > 0 {
            self.wait -= 1;
            return capacity;
        }
        if rate <= self.before.saturating_add(self.before / MIN_GAIN_DIVISOR) {
            self.waited = (2 * self.waited + 1).min(MAX_SKIPPED);
            self.wait = self.waited;
            return capacity;
        }
        *self = Trial { before: rate, ..Trial::default() };
        capacity.saturating_mul(2)
    }
}

/// Size of the send buffer on a short path, from the bytes acknowledged in a round trip.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SendSizing {
    round_start: Instant,
    /// Bytes acknowledged in this round so far.
    acked: u64,
    trial: Trial,
}

impl SendSizing {
    /// Records `acked` acknowledged bytes of a send buffer of `limit` bytes. `srtt` includes the time in
    /// queues, `min_rtt` does not. Returns the new limit.
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

    /// Returns the size of a buffer after `rounds` rounds of a millisecond. `brings` maps the number of a
    /// round and the size of the buffer to the bytes that pass.
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
    fn buffer_holds_four_bdps_and_one_more_doubling_is_tried() {
        // 4 MB a millisecond: the path holds 400 kB.
        assert_eq!(grown(15, |_, _| 4_000_000), 256 << 10, "not yet");
        assert_eq!(grown(5_000, |_, _| 4_000_000), 2 * 1_600_000);
        assert_eq!(grown(5_000, |_, _| 100_000), 200_000, "what is not filled does not grow");
    }

    #[test]
    fn buffer_doubles_while_the_rate_rises() {
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

    /// Two congestion windows, the size on longer paths, would grow to megabytes.
    #[test]
    fn send_buffer_follows_the_acknowledged_bytes() {
        let (mut sizing, mut limit) = (SendSizing::default(), 256 << 10);
        // 1 GB/s in acknowledgements of 32 kB. The path holds 50 kB, and the queue the rest of the buffer.
        for at in 1..200_000 {
            let now = Instant::ZERO + Micros(32 * at);
            let srtt = Micros(limit as u32 / 1_000);
            limit = sizing.on_acked(32_000, srtt, Micros(50), limit, now);
        }
        assert_eq!(limit, 512 << 10);
    }

    #[test]
    fn bursts_do_not_count_as_a_higher_rate() {
        let bursts = |round: u64, _| if round.is_multiple_of(8) { 4 << 20 } else { 64 << 10 };
        assert_eq!(grown(5_000, bursts), 256 << 10, "a few full rounds are none");
        // A rate that varies by a tenth.
        let noise = |round: u64, _| 300_000 + 60_000 * (round * 7_919 % 11) / 10;
        assert_eq!(grown(5_000, noise), 512 << 10);
    }
}
