//! Distinguishes losses by congestion from random losses.
//!
//! A loss ratio alone says little about a short flight. If a path loses 2 % at random, every third flight of
//! 20 segments loses at least one, which is 5 % of the flight. So the number of runs of losses is compared
//! with a Poisson distribution whose mean is the expected number of runs. Losses are *excess* if random loss
//! causes as many in less than one flight of a hundred.
//!
//! The ratio of random loss does not depend on the volume of a flight; the ratio of loss by congestion does
//! ([`LossByPosition`]).
//!
//! Long round-trip times show a queue. [`shows_queue`] is the test for any round-trip time, [`is_queued`] the
//! one for round-trip times around a loss. [`LossTimes`] learns the round-trip time of a full queue.

use crate::congestion::hystart::rtt_thresh;
use crate::time::{Duration, Micros};

/// Assumption about random loss before any observation: one segment of 100 is lost, in runs of 1.3 segments.
/// It weighs as much as 100 observed segments and 10 observed runs.
const PRIOR_SEGMENTS: u64 = 100;
const PRIOR_RUNS: u64 = 10;
const PRIOR_RUN_MILLI: u64 = 1300;
/// Maximum rate of random loss, parts per million; a higher rate counts as congestion.
const MAX_RANDOM_LOSS: u64 = 50_000;
/// `POISSON[k]`: the mean, in thousandths, at which more than `k` events have a probability of 1 %.
const POISSON: [u64; 17] =
    [10, 148, 436, 823, 1279, 1785, 2330, 2906, 3507, 4130, 4771, 5428, 6099, 6782, 7476, 8181, 8894];

/// A round-trip time shows a queue if it exceeds the minimum by at least this time plus a quarter of the
/// minimum.
const QUEUE_RISE: Duration = Duration::from_millis(4);

/// True if a round trip of `seen` shows a queue on a path whose minimum is `min`: the threshold of
/// HyStart++ (RFC 9406).
pub(crate) fn shows_queue(seen: Duration, min: Duration) -> bool {
    seen >= min + Duration::from(rtt_thresh(min.into()))
}

/// True if this round trip shows a queue on a path whose round trip is otherwise `min_rtt`.
pub(crate) fn is_queued(rtt: Duration, min_rtt: Option<Duration>) -> bool {
    min_rtt.is_some_and(|min| rtt >= min + min / 4 + QUEUE_RISE)
}

/// Round-trip times: their number, sum, and sum of squares, in units of 64 µs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Times {
    count: u64,
    sum: u64,
    squares: u64,
}

/// A unit of [`Times`], as a power of two of microseconds.
const TIME_SHIFT: u32 = 6;
/// Maximum number of times in the sums, so that the squares fit 64 bits. Above it all sums are halved.
const TIMES_MEMORY: u64 = 1 << 11;
/// Number of losses that is needed to compare their times with all others.
const TIMED_LOSSES: u64 = 8;
/// Difference of the means, in standard errors, that counts. Chance seldom reaches it, although the means are
/// compared after every flight.
const ERRORS: u128 = 4;

impl Times {
    fn add(&mut self, rtt: Micros) {
        let units = u64::from(rtt.0 >> TIME_SHIFT);
        self.count += 1;
        self.sum += units;
        self.squares = self.squares.saturating_add(units * units);
    }

    fn join(&mut self, other: Times) {
        self.count += other.count;
        self.sum += other.sum;
        self.squares = self.squares.saturating_add(other.squares);
    }

    /// Halves the sums; the means stay.
    fn halve(&mut self) {
        let Times { count, sum, squares } = *self;
        let left =
            |total: u64| (total / 2).saturating_sub(if count % 2 == 1 { total / count / 2 } else { 0 });
        *self = Times { count: count / 2, sum: left(sum), squares: left(squares) };
    }
}

/// The round-trip times of a path, and those around its losses. A queue that overflows loses segments when
/// round trips are long; random loss occurs at any time. The comparison also finds a short queue, which
/// lengthens no round trip by a quarter.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LossTimes {
    all: Times,
    at_losses: Times,
}

impl LossTimes {
    pub(crate) fn on_rtt(&mut self, rtt: Micros) {
        self.all.add(rtt);
    }

    /// Adds `rtt`, the round-trip time around a loss.
    pub(crate) fn on_loss(&mut self, rtt: Micros) {
        self.at_losses.add(rtt);
    }

    /// Adds the times of a flight.
    pub(crate) fn learn(&mut self, flight: &LossTimes) {
        self.all.join(flight.all);
        self.at_losses.join(flight.at_losses);
        if self.all.count > TIMES_MEMORY {
            self.all.halve();
            self.at_losses.halve();
        }
    }

    /// Returns the round-trip time at or above which a loss counts as caused by a queue. It is halfway
    /// between the mean of all times and the mean around losses. Returns `None` unless the latter is longer
    /// by at least a sixteenth, and by more than chance explains.
    pub(crate) fn queued_from(&self) -> Option<Duration> {
        let Times { count, sum, squares } = self.all;
        let losses = self.at_losses.count;
        if losses < TIMED_LOSSES || count < losses {
            return None;
        }
        let (mean, at_losses) = (sum / count, self.at_losses.sum / losses);
        let distance = at_losses.saturating_sub(mean);
        let variance = (squares / count).saturating_sub(mean * mean);
        let is_certain =
            u128::from(distance).pow(2) * u128::from(losses) > ERRORS.pow(2) * u128::from(variance);
        (distance >= mean / 16 && is_certain)
            .then(|| Duration::from_micros(((mean + at_losses) / 2) << TIME_SHIFT))
    }

    /// Returns the mean round-trip time around losses.
    pub(crate) fn mean_at_losses(&self) -> Option<Duration> {
        let Times { count, sum, .. } = self.at_losses;
        sum.checked_div(count).map(|mean| Duration::from_micros(mean << TIME_SHIFT))
    }
}

/// Segments sent, random losses among them, and the runs of these losses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LossHistory {
    pub(crate) segments: u64,
    pub(crate) lost: u64,
    pub(crate) runs: u64,
}

impl LossHistory {
    /// Adds the result of a round. Beyond `memory` segments all counts are halved.
    pub(crate) fn learn(&mut self, segments: u64, lost: u64, runs: u64, memory: u64) {
        self.segments += segments;
        self.lost += lost;
        self.runs += runs;
        if self.segments > memory {
            (self.segments, self.lost, self.runs) = (self.segments / 2, self.lost / 2, self.runs / 2);
        }
    }

    /// Returns the expected random loss, parts per million.
    pub(crate) fn loss_ppm(&self) -> u64 {
        ((self.lost + 1) * 1_000_000 / (self.segments + PRIOR_SEGMENTS)).min(MAX_RANDOM_LOSS)
    }

    /// Returns the expected length of a run, thousandths of a segment.
    fn run_milli(&self) -> u64 {
        let runs = self.runs + PRIOR_RUNS;
        ((PRIOR_RUN_MILLI * PRIOR_RUNS + self.lost * 1000) / runs).clamp(1000, 3000)
    }

    /// Returns the largest number of losses among `segments` that random loss makes plausible.
    pub(crate) fn allowed(&self, segments: u64) -> u64 {
        allowed_losses(segments, self.loss_ppm(), self.run_milli())
    }

    /// True if random loss does not explain `lost` losses of `segments`. If all four segments of a flight of
    /// four are lost, the result is always true.
    pub(crate) fn is_excess(&self, segments: u64, lost: u64) -> bool {
        lost > self.allowed(segments)
    }

    /// True if the chance that random loss causes so many losses is below about one in ten thousand.
    pub(crate) fn is_certain_excess(&self, segments: u64, lost: u64) -> bool {
        let run_milli = self.run_milli();
        let mean = segments.saturating_mul(self.loss_ppm()) / run_milli;
        // In thousandths of a run: the mean of a Poisson distribution, four standard deviations and two runs
        // more.
        let runs = mean + 4 * (mean * 1000).isqrt() + 2000;
        lost * 1_000_000 > runs * run_milli
    }
}

fn allowed_losses(segments: u64, loss_ppm: u64, run_milli: u64) -> u64 {
    let mean = segments.saturating_mul(loss_ppm) / run_milli.max(1);
    let runs = match POISSON.iter().position(|limit| mean <= *limit) {
        Some(runs) => runs as u64,
        // Beyond the table: mean + 2.4 sqrt(mean) + 1.
        None => (mean + (mean * 1000).isqrt() * 12 / 5 + 1000) / 1000,
    };
    runs * run_milli / 1000
}

/// Number of segments beyond the standard initial window (RFC 6928) that is needed to compare the losses by
/// position.
const POSITION_SEGMENTS: u64 = 256;
/// Limit of the counts. Above it they are halved, so that a change of the path shows.
const POSITION_MEMORY: u64 = 1 << 14;

/// Losses among the first segments of flights, and among the later ones. A policer or a short queue drops the
/// later ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LossByPosition {
    head: (u64, u64),
    beyond: (u64, u64),
}

impl LossByPosition {
    /// Adds a flight: the numbers of its segments and of its lost segments, within the standard window and
    /// beyond it.
    pub(crate) fn learn(&mut self, head: (u64, u64), beyond: (u64, u64)) {
        for (count, new) in [(&mut self.head, head), (&mut self.beyond, beyond)] {
            count.0 += new.0;
            count.1 += new.1;
            if count.0 > POSITION_MEMORY {
                *count = (count.0 / 2, count.1 / 2);
            }
        }
    }

    /// True if the loss ratio of later segments is above twice that of the first ones plus 2 %.
    pub(crate) fn shows_congestion(&self) -> bool {
        let (head, head_lost) = self.head;
        let (beyond, beyond_lost) = self.beyond;
        beyond >= POSITION_SEGMENTS && beyond_lost * head > 2 * head_lost * beyond + head * beyond / 50
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN_RTT_MS: u64 = 80;

    /// Returns the times of a path with a queue of up to `queue_ms`. `is_lost` decides whether a segment is
    /// lost, from its number and its time in the queue.
    fn times(queue_ms: u64, segments: u64, is_lost: impl Fn(u64, u64) -> bool) -> LossTimes {
        let mut times = LossTimes::default();
        for segment in 0..segments {
            let waits = segment * 7 % (queue_ms + 1);
            let rtt = Micros::from_millis(MIN_RTT_MS + waits);
            let mut flight = LossTimes::default();
            flight.on_rtt(rtt);
            if is_lost(segment, waits) {
                flight.on_loss(rtt);
            }
            times.learn(&flight);
        }
        times
    }

    #[test]
    fn losses_of_a_short_queue_come_when_round_trips_are_long() {
        let from = |times: LossTimes| times.queued_from().map(|from| from.as_millis());
        assert_eq!(from(times(24, 1000, |_, waits| waits == 24)), Some(97), "92 in the mean, 104 at losses");
        assert_eq!(from(times(24, 10_000, |_, waits| waits == 24)), Some(97), "halved several times");
        assert_eq!(from(times(24, 1000, |segment, _| segment % 51 == 0)), None, "chance");
        assert_eq!(from(times(24, 170, |_, waits| waits == 24)), None, "too few losses");
        assert_eq!(from(times(4, 1000, |_, waits| waits == 4)), None, "too short a queue");
        assert_eq!(from(times(24, 1000, |_, waits| waits == 0)), None, "short round trips");
    }

    #[test]
    fn older_round_trips_count_half_and_the_means_stay() {
        let mut times = times(0, 2048, |segment, _| segment % 293 == 0);
        assert_eq!((times.at_losses.count, times.mean_at_losses()), (7, Some(Duration::from_millis(80))));
        times.learn(&LossTimes { all: times.all, at_losses: Times::default() });
        assert_eq!((times.at_losses.count, times.mean_at_losses()), (3, Some(Duration::from_millis(80))));
    }

    #[test]
    fn allowed_losses_follow_the_poisson_table() {
        assert_eq!(allowed_losses(20, 20_000, 1000), 2);
        assert_eq!(allowed_losses(20, 50_000, 1000), 4);
        assert_eq!(allowed_losses(64, 20_000, 1000), 5);
        assert_eq!(allowed_losses(10, 10_000, 1000), 1);
        assert_eq!(allowed_losses(30, 20_000, 1500), 3);
        let learned = LossHistory { segments: 500, lost: 10, runs: 0 };
        assert_eq!(learned.loss_ppm(), 18_333);
        assert_eq!((LossHistory::default().loss_ppm(), LossHistory::default().run_milli()), (10_000, 1300));
    }

    /// The probability of this number of losses or more, by the Poisson distribution: 6e-5, 8e-5, 7e-5, 5e-5.
    #[test]
    fn excess_is_certain_at_a_chance_of_one_in_ten_thousand() {
        let history = LossHistory { segments: 1_000_000, lost: 20_000, runs: 20_000 };
        for (segments, min) in [(20, 5), (50, 7), (150, 12), (500, 25)] {
            assert!(history.is_certain_excess(segments, min), "{min} of {segments}");
            assert!(!history.is_certain_excess(segments, min - 1), "one less of {segments}");
        }
        let in_runs = LossHistory { runs: 10_000, ..history };
        assert!(!in_runs.is_certain_excess(150, 12) && in_runs.is_certain_excess(150, 19));
    }

    #[test]
    fn allowed_losses_keep_growing_beyond_the_table() {
        let allowed: [u64; 5] = [800, 900, 1000, 10_000, 100_000].map(|n| allowed_losses(n, 10_000, 1000));
        assert_eq!(allowed, [15, 17, 18, 125, 1076]);
    }

    #[test]
    fn learned_random_loss_is_at_most_5_percent_and_decays() {
        let mut history = LossHistory::default();
        for _ in 0..100 {
            history.learn(100, 30, 20, 16_384);
        }
        assert_eq!((history.loss_ppm(), history.run_milli()), (50_000, 1499));
        history.learn(10_000, 0, 0, 16_384);
        assert!(history.segments < 10_001 && history.lost == 1500);
    }

    #[test]
    fn losses_that_grow_with_the_flight_are_congestion() {
        let flights = |head_lost, beyond_lost| {
            let mut by_position = LossByPosition::default();
            for flight in 0..50u64 {
                let every = |nth: u64| u64::from(nth > 0 && flight % nth == 0);
                by_position.learn((10, every(head_lost)), (10, every(beyond_lost)));
            }
            by_position.shows_congestion()
        };
        assert!(!flights(5, 5), "2 % everywhere");
        assert!(!flights(0, 5), "2 % beyond the first ten may be chance");
        assert!(flights(0, 3) && flights(10, 1));
        let mut young = LossByPosition::default();
        young.learn((100, 0), (255, 255));
        assert!(!young.shows_congestion(), "too little is known");
        young.learn((0, 0), (1, 1));
        assert!(young.shows_congestion());
    }
}
