//! Quantiles, means and their confidence intervals.
//!
//! Quantiles interpolate between order statistics (Hyndman and Fan 1996, type 7, as in R and NumPy).
//! Intervals are percentile bootstrap intervals (Efron 1979): the sample is resampled with replacement many
//! times from a seeded generator, so that the same sample gives the same interval.

use brisk_link::seeds::ChaCha8Rng;
use rand_core::RngCore;
use rayon::prelude::*;

/// A sample in ascending order.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample(Vec<f64>);

/// A confidence interval: low and high end.
pub type Interval = [f64; 2];

/// A statistic for which an interval is computed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Statistic {
    /// The arithmetic mean.
    Mean,
    /// A quantile, 0 to 1.
    Quantile(f64),
}

impl Statistic {
    /// Returns its value over these; NaN without values.
    pub fn of(self, values: impl Iterator<Item = f64>) -> f64 {
        match self {
            Statistic::Mean => {
                let (total, n) = values.fold((0.0, 0u64), |(total, n), value| (total + value, n + 1));
                total / n as f64
            }
            Statistic::Quantile(q) => Sample::new(values.collect()).quantile(q),
        }
    }
}

/// Number of bootstrap resamples for a small sample.
const RESAMPLES: usize = 1000;
/// Minimum number of resamples for a large sample.
const FEWEST_RESAMPLES: usize = 200;
/// Above this total number of drawn values there are fewer resamples: about a second of work.
const DRAWS: usize = 20_000_000;
/// Few values occur more often than this in a resample.
const USUAL: usize = 4;

impl Sample {
    /// Sorts the values and removes NaN.
    pub fn new(mut values: Vec<f64>) -> Sample {
        values.retain(|value| !value.is_nan());
        values.sort_by(f64::total_cmp);
        Sample(values)
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there is no value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the arithmetic mean; NaN without values.
    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    /// Returns the quantile `q` in 0..=1; NaN without values.
    pub fn quantile(&self, q: f64) -> f64 {
        interpolated(self.0.len(), q, |rank| self.0.get(rank).copied().unwrap_or(f64::NAN))
    }

    /// Returns the 95 % intervals of several statistics from the same resamples, which are drawn on all
    /// cores.
    pub fn intervals<const N: usize>(&self, wanted: [Statistic; N], rng: &ChaCha8Rng) -> [Interval; N] {
        let n = self.0.len();
        if n == 0 {
            return [[f64::NAN; 2]; N];
        }
        let resamples = (DRAWS / n).clamp(FEWEST_RESAMPLES, RESAMPLES);
        let found: Vec<[f64; N]> = (0..resamples)
            .into_par_iter()
            .map_init(Resample::default, |resample, index| {
                resample.draw(&self.0, &mut resampler(rng, index, n));
                wanted.map(|statistic| resample.statistic(statistic))
            })
            .collect();
        std::array::from_fn(|at| {
            let values = Sample::new(found.iter().map(|values| values[at]).collect());
            [values.quantile(0.025), values.quantile(0.975)]
        })
    }
}

/// A resample, drawn with replacement.
#[derive(Default)]
struct Resample {
    times_drawn: Vec<u32>,
    /// Values in ascending order; after the first `n`, unused space.
    values: Vec<f64>,
    n: usize,
}

impl Resample {
    /// Draws as many of the ascending values as there are. Counting keeps them sorted.
    fn draw(&mut self, from: &[f64], rng: &mut impl RngCore) {
        self.n = from.len();
        self.times_drawn.clear();
        self.times_drawn.resize(self.n, 0);
        for _ in 0..self.n {
            self.times_drawn[below(self.n, rng)] += 1;
        }
        self.values.resize(self.n + USUAL, 0.0);
        let mut end = 0;
        for (value, times) in from.iter().zip(&self.times_drawn) {
            // This many are always written: writing too many costs less than a mispredicted branch.
            self.values[end..end + USUAL].fill(*value);
            let next = end + *times as usize;
            if *times as usize > USUAL {
                self.values[end..next].fill(*value);
            }
            end = next;
        }
    }

    fn statistic(&self, statistic: Statistic) -> f64 {
        let values = &self.values[..self.n];
        match statistic {
            Statistic::Mean => values.iter().sum::<f64>() / self.n as f64,
            Statistic::Quantile(q) => interpolated(self.n, q, |rank| values[rank]),
        }
    }
}

/// Interpolates by type 7: the quantile is at rank (n - 1) q, counted from 0.
fn interpolated(n: usize, q: f64, at: impl Fn(usize) -> f64) -> f64 {
    if n == 0 {
        return f64::NAN;
    }
    let rank = (n - 1) as f64 * q.clamp(0.0, 1.0);
    let below = rank.floor() as usize;
    let above = (below + 1).min(n - 1);
    let (low, high) = (at(below), at(above));
    low + (high - low) * (rank - below as f64)
}

/// Returns the generator of a resample by its index among resamples that draw equally many words from the
/// position of `rng`: the same as if the earlier ones had been drawn.
pub(crate) fn resampler(rng: &ChaCha8Rng, place: usize, words: usize) -> ChaCha8Rng {
    let mut own = rng.clone();
    own.set_word_pos(rng.get_word_pos() + place as u128 * words as u128);
    own
}

/// Returns a uniform number in 0..n from one word; the bias of the multiplication is below n / 2^32.
pub(crate) fn below(n: usize, rng: &mut impl RngCore) -> usize {
    ((u64::from(rng.next_u32()) * n as u64) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rng(seed: u64) -> ChaCha8Rng {
        brisk_link::seeds::rng(seed, "test")
    }

    #[test]
    fn quantiles_interpolate_as_type_7() {
        let sample = Sample::new(vec![4.0, 1.0, 3.0, 2.0]);
        assert_eq!(sample.quantile(0.0), 1.0);
        assert_eq!(sample.quantile(0.5), 2.5);
        assert_eq!(sample.quantile(0.9), 3.7);
        assert_eq!(sample.quantile(1.0), 4.0);
        assert_eq!(sample.mean(), 2.5);
    }

    #[test]
    fn empty_sample_has_no_mean_and_no_quantile() {
        let nothing = Sample::new(vec![f64::NAN]);
        assert!(nothing.is_empty() && nothing.mean().is_nan() && nothing.quantile(0.5).is_nan());
        assert!(nothing.intervals([Statistic::Mean], &rng(1))[0][0].is_nan());
    }

    #[test]
    fn intervals_repeat_with_the_seed_and_hold_the_value() {
        let sample = Sample::new((0..500).map(|i| f64::from(i * i % 997)).collect());
        let wanted = [Statistic::Mean, Statistic::Quantile(0.5), Statistic::Quantile(0.99)];
        let first = sample.intervals(wanted, &rng(1));
        assert_eq!(first, sample.intervals(wanted, &rng(1)));
        assert_ne!(first, sample.intervals(wanted, &rng(2)));
        for ([low, high], value) in
            first.iter().zip([sample.mean(), sample.quantile(0.5), sample.quantile(0.99)])
        {
            assert!(*low <= value && value <= *high && low < high, "{low} {value} {high}");
        }
    }

    #[test]
    fn resamples_are_drawn_as_if_one_after_the_other() {
        let (mut in_turn, start) = (rng(4), rng(4));
        for place in 0..5 {
            let mut own = resampler(&start, place, 7);
            for _ in 0..7 {
                assert_eq!(below(1_000_000, &mut own), below(1_000_000, &mut in_turn));
            }
        }
    }

    /// Exponential waits with mean 1: mean 1, median ln 2, 90th percentile ln 10. A 95 % interval holds the
    /// true value in 95 % of samples, those of a bootstrap in a few less.
    #[test]
    fn intervals_of_a_known_distribution_cover_as_often_as_claimed() {
        const SAMPLES: u64 = 200;
        let truth = [1.0, 2f64.ln(), 10f64.ln()];
        let wanted = [Statistic::Mean, Statistic::Quantile(0.5), Statistic::Quantile(0.9)];
        let mut held = [0; 3];
        let mut means = [0.0; 3];
        for seed in 0..SAMPLES {
            let mut source = rng(1_000 + seed);
            let wait = |_| -((f64::from(source.next_u32()) + 1.0) / 4_294_967_296.0).ln();
            let sample = Sample::new((0..400).map(wait).collect());
            let intervals = sample.intervals(wanted, &rng(seed));
            let values = [sample.mean(), sample.quantile(0.5), sample.quantile(0.9)];
            for at in 0..3 {
                let [low, high] = intervals[at];
                held[at] += u64::from(low <= truth[at] && truth[at] <= high);
                means[at] += values[at] / SAMPLES as f64;
            }
        }
        for at in 0..3 {
            assert!((0.90..=0.99).contains(&(held[at] as f64 / SAMPLES as f64)), "{held:?}");
            assert!((means[at] / truth[at] - 1.0).abs() < 0.02, "{means:?}");
        }
    }

    /// The normal approximation for the mean of 0..n: sd/sqrt(n) * 1.96 on either side.
    #[test]
    fn the_interval_of_a_mean_is_as_wide_as_theory_says() {
        let n = 2000;
        let sample = Sample::new((0..n).map(f64::from).collect());
        let [[low, high]] = sample.intervals([Statistic::Mean], &rng(3));
        let expected = 2.0 * 1.96 * f64::from(n) / 12f64.sqrt() / f64::from(n).sqrt();
        assert!((high - low) / expected > 0.9 && (high - low) / expected < 1.1, "{} {expected}", high - low);
    }
}
