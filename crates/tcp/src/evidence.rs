//! Evidence for congestion in losses: a flight lost more than the random loss of its path makes plausible.
//!
//! A loss ratio alone says little about a short flight: of 20 segments on a path that loses 2 % at random
//! every third flight loses one or more, which is 5 % of it. Lost runs are therefore compared with a Poisson
//! distribution of the expected number: losses are *excess* if random loss causes so many in less than one
//! flight of a hundred.
//!
//! Random loss does not depend on how much is sent at a time; congestion does ([`Dose`]).
//!
//! A queue shows in round-trip times: [`shows_queue`] for all of a flight, [`is_queued`] for those around a
//! loss.

use crate::congestion::hystart::rtt_thresh;
use crate::time::Duration;

/// Weight of the assumption before anything is learned: one lost segment of 100, in runs of 1.3.
const PRIOR_SEGMENTS: u64 = 100;
const PRIOR_RUNS: u64 = 10;
const PRIOR_RUN_MILLI: u64 = 1300;
/// Largest rate of random loss that is assumed, parts per million: more is congestion.
const MAX_RANDOM_LOSS: u64 = 50_000;
/// `POISSON[k]`: the mean, in thousandths, at which more than `k` events have a probability of 1 %.
const POISSON: [u64; 17] =
    [10, 148, 436, 823, 1279, 1785, 2330, 2906, 3507, 4130, 4771, 5428, 6099, 6782, 7476, 8181, 8894];

/// A packet was lost to a queue if the round-trip time before had risen by a quarter, and this much.
const QUEUE_RISE: Duration = Duration::from_millis(4);

/// True if a round trip of `seen` shows a queue on a path that takes `least`: slow start would end here (RFC
/// 9406).
pub(crate) fn shows_queue(seen: Duration, least: Duration) -> bool {
    seen >= least + Duration::from(rtt_thresh(least.into()))
}

/// True if so long a round trip speaks of a queue on a path whose round trip is otherwise `min_rtt`.
pub(crate) fn is_queued(rtt: Duration, min_rtt: Option<Duration>) -> bool {
    min_rtt.is_some_and(|least| rtt >= least + least / 4 + QUEUE_RISE)
}

/// Segments sent, those lost to chance, and the runs that these form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LossHistory {
    pub(crate) segments: u64,
    pub(crate) lost: u64,
    pub(crate) runs: u64,
}

impl LossHistory {
    /// Adds what a round has shown. Beyond `memory` segments everything counted is halved.
    pub(crate) fn learn(&mut self, segments: u64, lost: u64, runs: u64, memory: u64) {
        self.segments += segments;
        self.lost += lost;
        self.runs += runs;
        if self.segments > memory {
            (self.segments, self.lost, self.runs) = (self.segments / 2, self.lost / 2, self.runs / 2);
        }
    }

    /// Random loss to expect, parts per million.
    pub(crate) fn loss_ppm(&self) -> u64 {
        ((self.lost + 1) * 1_000_000 / (self.segments + PRIOR_SEGMENTS)).min(MAX_RANDOM_LOSS)
    }

    /// Length of a run to expect, thousandths of a segment.
    fn run_milli(&self) -> u64 {
        let runs = self.runs + PRIOR_RUNS;
        ((PRIOR_RUN_MILLI * PRIOR_RUNS + self.lost * 1000) / runs).clamp(1000, 3000)
    }

    /// Returns the largest number of losses among `segments` that random loss makes plausible.
    pub(crate) fn allowed(&self, segments: u64) -> u64 {
        allowed_losses(segments, self.loss_ppm(), self.run_milli())
    }

    /// True if random loss does not explain that `lost` of `segments` were lost. All of a flight of four is
    /// more than the largest allowance.
    pub(crate) fn is_excess(&self, segments: u64, lost: u64) -> bool {
        lost > self.allowed(segments)
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

/// Segments beyond the standard window after which losses are compared.
const DOSE_SEGMENTS: u64 = 256;
/// Larger counts are halved, so that a path that changes shows.
const DOSE_MEMORY: u64 = 1 << 14;

/// Losses among the first segments of flights, and among the later ones. A policer or a short queue takes the
/// later ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Dose {
    head: (u64, u64),
    beyond: (u64, u64),
}

impl Dose {
    /// Adds a flight: segments, and lost ones, within the standard window and beyond it.
    pub(crate) fn learn(&mut self, head: (u64, u64), beyond: (u64, u64)) {
        for (count, new) in [(&mut self.head, head), (&mut self.beyond, beyond)] {
            count.0 += new.0;
            count.1 += new.1;
            if count.0 > DOSE_MEMORY {
                *count = (count.0 / 2, count.1 / 2);
            }
        }
    }

    /// True if later segments are lost more than twice as often as the first ones, and 2 % more.
    pub(crate) fn shows_congestion(&self) -> bool {
        let (head, head_lost) = self.head;
        let (beyond, beyond_lost) = self.beyond;
        beyond >= DOSE_SEGMENTS && beyond_lost * head > 2 * head_lost * beyond + head * beyond / 50
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// U13.
    #[test]
    fn as_many_losses_are_allowed_as_random_loss_makes_plausible() {
        assert_eq!(allowed_losses(20, 20_000, 1000), 2);
        assert_eq!(allowed_losses(20, 50_000, 1000), 4);
        assert_eq!(allowed_losses(64, 20_000, 1000), 5);
        assert_eq!(allowed_losses(10, 10_000, 1000), 1);
        assert_eq!(allowed_losses(30, 20_000, 1500), 3);
        let learned = LossHistory { segments: 500, lost: 10, runs: 0 };
        assert_eq!(learned.loss_ppm(), 18_333);
        assert_eq!((LossHistory::default().loss_ppm(), LossHistory::default().run_milli()), (10_000, 1300));
    }

    #[test]
    fn beyond_the_table_the_allowance_goes_on_growing() {
        let allowed: [u64; 5] = [800, 900, 1000, 10_000, 100_000].map(|n| allowed_losses(n, 10_000, 1000));
        assert_eq!(allowed, [15, 17, 18, 125, 1076]);
    }

    #[test]
    fn random_loss_is_believed_up_to_5_percent_and_forgotten_by_halves() {
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
            let mut dose = Dose::default();
            for flight in 0..50u64 {
                let every = |nth: u64| u64::from(nth > 0 && flight % nth == 0);
                dose.learn((10, every(head_lost)), (10, every(beyond_lost)));
            }
            dose.shows_congestion()
        };
        assert!(!flights(5, 5), "2 % everywhere");
        assert!(!flights(0, 5), "2 % beyond the first ten may be chance");
        assert!(flights(0, 3) && flights(10, 1));
        let mut young = Dose::default();
        young.learn((100, 0), (255, 255));
        assert!(!young.shows_congestion(), "too little is known");
        young.learn((0, 0), (1, 1));
        assert!(young.shows_congestion());
    }
}
