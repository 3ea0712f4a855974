//! Quantiles, means and their 95 % confidence intervals.
//!
//! Quantiles interpolate between order statistics (Hyndman and Fan 1996, type 7, as in R and NumPy). The
//! interval of a quantile lies between two order statistics, whose ranks follow from the binomial
//! distribution. It holds for any distribution of the values, in at least 95 % of samples that are large
//! enough (six values for the median). The interval of a mean is Student's. Estimates that combine several
//! statistics have bootstrap intervals.

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
    /// Returns the statistic of these values; NaN without values.
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

/// Probability that the true value is below an interval, and that it is above.
const TAIL: f64 = 0.025;

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

    /// Returns the 95 % interval of a statistic; NaN without values.
    ///
    /// Mean: Student's interval, exact for a normal distribution and nearly so for a large sample of any
    /// other. The interval of a single value has no width, although nothing is known about its error.
    ///
    /// Quantile: the two closest values such that each end is on the wrong side of the true quantile in at
    /// most 2.5 % of samples. If the sample is too small for that, as for the 99th percentile of 100 values,
    /// the interval ends at the smallest or largest value.
    pub fn interval(&self, statistic: Statistic) -> Interval {
        let values = &self.0;
        let n = values.len();
        match statistic {
            _ if n == 0 => [f64::NAN; 2],
            Statistic::Mean => {
                let mean = self.mean();
                let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
                let freedom = (n - 1).max(1) as f64;
                let error = student(freedom) * (squares / freedom / n as f64).sqrt();
                [mean - error, mean + error]
            }
            Statistic::Quantile(q) => {
                let q = q.clamp(0.0, 1.0);
                let value = self.quantile(q);
                let [low, high] = ranks(n, q);
                [values[low].min(value), values[high].max(value)]
            }
        }
    }
}

/// Returns the two ranks, from 0, at which the interval of quantile `q` of `n` values ends. The number of
/// values below the true quantile is binomial with `n` and `q`.
fn ranks(n: usize, q: f64) -> [usize; 2] {
    // Probabilities divided by the largest one, which is at `likely`. They are computed from there in both
    // directions until they are negligible.
    const NEGLIGIBLE: f64 = 1e-16;
    let likely = (((n + 1) as f64 * q) as usize).min(n);
    let fewer = (1..=likely).rev().scan(1.0, |weight, k| {
        *weight *= k as f64 / (n - k + 1) as f64 * ((1.0 - q) / q);
        (*weight > NEGLIGIBLE).then_some(*weight)
    });
    let mut weights: Vec<f64> = fewer.collect();
    let first = likely - weights.len();
    weights.reverse();
    weights.push(1.0);
    weights.extend((likely..n).scan(1.0, |weight, k| {
        *weight *= (n - k) as f64 / (k + 1) as f64 * (q / (1.0 - q));
        (*weight > NEGLIGIBLE).then_some(*weight)
    }));
    let tail = TAIL * weights.iter().sum::<f64>();
    let fewest = first + count_within(tail, weights.iter());
    let max = first + weights.len() - 1 - count_within(tail, weights.iter().rev());
    [fewest.saturating_sub(1), max.min(n - 1)]
}

/// Returns how many of the first weights sum to at most `limit`.
fn count_within<'a>(limit: f64, weights: impl Iterator<Item = &'a f64>) -> usize {
    let sums = weights.scan(0.0, |sum, weight| {
        *sum += weight;
        Some(*sum)
    });
    sums.take_while(|sum| *sum <= limit).count()
}

/// Returns the 97.5th percentile of Student's distribution, exact to three decimals: from a table for few
/// degrees of freedom, otherwise by the expansion of Abramowitz and Stegun, 26.7.5.
fn student(freedom: f64) -> f64 {
    match freedom {
        ..1.5 => 12.706,
        ..2.5 => 4.303,
        ..3.5 => 3.182,
        _ => [1.5895, 2.5558, 2.8225, 2.3722, 1.959_964].iter().fold(0.0, |sum, term| sum / freedom + term),
    }
}

/// Returns the 95 % percentile bootstrap interval (Efron 1979) of an estimate: the middle 95 % of its values
/// over resamples. `estimate` draws a resample with a generator, from which it takes `words` words.
///
/// It is for estimates that have no closed form because they combine several statistics, such as the ratio of
/// two means.
pub(crate) fn bootstrap(
    rng: &ChaCha8Rng,
    resamples: usize,
    words: usize,
    estimate: impl Fn(&mut ChaCha8Rng) -> f64 + Sync,
) -> Interval {
    let value = |index| estimate(&mut resampler(rng, index, words));
    let mut values: Vec<f64> = (0..resamples).into_par_iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    [TAIL, 1.0 - TAIL].map(|share| values[((resamples - 1) as f64 * share).round() as usize])
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

/// Returns the generator of the resample at index `place`. Each resample draws `words` words, and the first
/// one starts at the position of `rng`; so resamples can be drawn in parallel.
fn resampler(rng: &ChaCha8Rng, place: usize, words: usize) -> ChaCha8Rng {
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
    fn empty_sample_has_no_mean_no_quantile_and_no_interval() {
        let nothing = Sample::new(vec![f64::NAN]);
        assert!(nothing.is_empty() && nothing.mean().is_nan() && nothing.quantile(0.5).is_nan());
        for statistic in [Statistic::Mean, Statistic::Quantile(0.5)] {
            assert!(nothing.interval(statistic).iter().all(|end| end.is_nan()), "{statistic:?}");
        }
    }

    /// The expected ranks are from a program that sums binomial probabilities computed by log-gamma.
    #[test]
    fn ranks_of_a_quantile_follow_the_binomial_distribution() {
        for (n, q, expected) in [
            (16, 0.5, [3, 12]),
            (100, 0.5, [39, 60]),
            (1_000, 0.9, [880, 918]),
            (10_000, 0.99, [9_879, 9_919]),
            (1_000_000, 0.5, [499_019, 500_980]),
        ] {
            assert_eq!(ranks(n, q), expected, "{n} {q}");
        }
    }

    #[test]
    fn interval_of_a_small_sample_ends_at_its_values_and_holds_the_quantile() {
        for n in 1..40 {
            let sample = Sample::new((0..n).map(f64::from).collect());
            for q in [0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0] {
                let ([low, high], value) = (sample.interval(Statistic::Quantile(q)), sample.quantile(q));
                let inside = 0.0 <= low && low <= value && value <= high && high <= f64::from(n - 1);
                assert!(inside, "{n} {q}: {low} {value} {high}");
            }
        }
        assert_eq!(Sample::new(vec![7.0]).interval(Statistic::Mean), [7.0, 7.0]);
    }

    #[test]
    fn student_has_the_tabulated_percentiles() {
        for (freedom, expected) in [
            (1, 12.706),
            (2, 4.303),
            (3, 3.182),
            (4, 2.776),
            (5, 2.571),
            (10, 2.228),
            (30, 2.042),
            (120, 1.980),
        ] {
            let found = student(f64::from(freedom));
            assert!((found - expected).abs() < 0.0011, "{freedom}: {found}");
        }
    }

    #[test]
    fn parallel_resamples_equal_sequential_ones() {
        let (mut in_turn, start) = (rng(4), rng(4));
        for place in 0..5 {
            let mut own = resampler(&start, place, 7);
            for _ in 0..7 {
                assert_eq!(below(1_000_000, &mut own), below(1_000_000, &mut in_turn));
            }
        }
    }

    /// A value of a distribution, and the distribution's mean, median and 90th percentile.
    type Source = (&'static str, fn(f64) -> f64, [f64; 3]);

    /// A 95 % interval of a quantile contains the true value in at least 95 % of samples, and in hardly more.
    /// An interval of a mean does so in nearly 95 %, unless the sample is small and skewed.
    #[test]
    fn intervals_contain_the_true_value_at_the_nominal_rate() {
        const SAMPLES: u64 = 2_000;
        let sources: [Source; 3] = [
            ("uniform", |share| share, [0.5, 0.5, 0.9]),
            ("exponential", |share| -(1.0 - share).ln(), [1.0, 2f64.ln(), 10f64.ln()]),
            // One transaction in twelve has a timeout of 1000 ms: times with an atom and a gap.
            (
                "with timeouts",
                |share| if share < 11.0 / 12.0 { 200.0 } else { 1200.0 + share },
                [200.0 + (1000.0 + 23.0 / 24.0) / 12.0, 200.0, 200.0],
            ),
        ];
        let statistics = [Statistic::Mean, Statistic::Quantile(0.5), Statistic::Quantile(0.9)];
        for (name, value, truth) in sources {
            for n in [20, 400] {
                let mut held = [0; 3];
                for seed in 0..SAMPLES {
                    let mut source = rng(1_000 + seed);
                    let draw = |_| value((f64::from(source.next_u32()) + 0.5) / 4_294_967_296.0);
                    let sample = Sample::new((0..n).map(draw).collect());
                    for (at, statistic) in statistics.into_iter().enumerate() {
                        let [low, high] = sample.interval(statistic);
                        held[at] += u64::from(low <= truth[at] && truth[at] <= high);
                    }
                }
                let [mean, p50, p90] = held.map(|held| held as f64 / SAMPLES as f64);
                let fewest = if n == 20 { 0.80 } else { 0.935 };
                assert!((fewest..=0.965).contains(&mean), "{name} {n}: {mean}");
                // Atoms and coarse ranks of a small sample make intervals wider. Of 20 values, none is above
                // the 90th percentile in 12 % of samples.
                let shortage = if n == 20 { 0.10 } else { 0.0 };
                assert!(p50 >= 0.94 && p90 >= 0.94 - shortage, "{name} {n}: {p50} {p90}");
                let max = if n == 20 || name == "with timeouts" { 1.0 } else { 0.972 };
                assert!(p50 <= max && p90 <= max, "{name} {n}: {p50} {p90}");
            }
        }
    }

    #[test]
    fn bootstrap_of_a_median_is_about_as_wide_as_the_exact_interval() {
        let sample = Sample::new((0..500).map(|i| f64::from(i * i % 997)).collect());
        let median = |rng: &mut ChaCha8Rng| {
            Sample::new((0..500).map(|_| sample.0[below(500, rng)]).collect()).quantile(0.5)
        };
        let [low, high] = bootstrap(&rng(1), 1_000, 500, median);
        let [exact_low, exact_high] = sample.interval(Statistic::Quantile(0.5));
        let ratio = (high - low) / (exact_high - exact_low);
        assert!((0.8..1.25).contains(&ratio), "{low} {high} {exact_low} {exact_high}");
        assert_eq!([low, high], bootstrap(&rng(1), 1_000, 500, median), "the same seed");
        assert_ne!([low, high], bootstrap(&rng(2), 1_000, 500, median));
    }
}
