//! Loss models: which packets the path loses.
//!
//! Each model processes every packet that enters the path exactly once, in order, with a fixed number of
//! draws. So losses depend on the packet's number and not on its time. The exceptions [`LossSpec::After`],
//! [`LossSpec::Outage`] and [`LossSpec::Policer`] use the time at which the packet enters the link. `After`
//! follows the paper: a burst is a sequence that the *sender* sent with gaps below 0.5 ms ("Gentle
//! Aggression", SIGCOMM 2013, section 2), even if a slow link spreads it out.

use crate::seeds::{Draws, below, chance};
use crate::units::{Rate, Ratio};
use alloc::sync::Arc;
use brisk_wire::Instant;
use core::time::Duration;

/// A loss model in the grammar of `--loss`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LossSpec {
    /// `2%`: each packet independently.
    Independent(Ratio),
    /// `after:1%,50%`: `q` for the packet after a lost one in the same burst, `p` otherwise.
    After {
        /// Loss probability normally.
        p: Ratio,
        /// Loss probability right after a lost packet of the same burst.
        q: Ratio,
        /// A longer pause since the previous packet begins a new burst; 500 us in the paper.
        gap: Duration,
    },
    /// `ge:p=1%,r=50%,h=0%,k=100%`: two states (Gilbert-Elliott), which persist over pauses.
    GilbertElliott {
        /// Probability to go from good to bad after a packet.
        p: Ratio,
        /// Probability to go from bad to good after a packet.
        r: Ratio,
        /// Delivery probability in the bad state.
        h: Ratio,
        /// Delivery probability in the good state.
        k: Ratio,
    },
    /// `trace:FILE`: losses from a recording; `1` is a lost packet, `0` a delivered one; repeats.
    Trace {
        /// Path of the recording.
        path: Arc<str>,
        /// The recording, once it is loaded; `true` is lost.
        lost: Option<Arc<[bool]>>,
    },
    /// `list:3,7-9`: exactly these packets, counted from 1; sorted, disjoint, inclusive ranges.
    Positions(Arc<[(u64, u64)]>),
    /// `outage:2s..4s` or `outage:14s..14.2s,every=15s`: all packets in a period, as times since the
    /// link began.
    Outage {
        /// Begin, inclusive.
        from: Duration,
        /// End, exclusive.
        to: Duration,
        /// Distance between two begins, if the outage repeats.
        every: Option<Duration>,
    },
    /// `policer:10mbit,100kB`: packets for which a token bucket of this rate and size has no tokens. There is
    /// no queue.
    Policer {
        /// The rate at which the bucket fills.
        rate: Rate,
        /// Size of the bucket, bytes; it is full when the link begins.
        bucket: u64,
    },
}

impl LossSpec {
    /// The burst gap of "Gentle Aggression", section 2.
    pub const BURST_GAP: Duration = Duration::from_micros(500);

    /// Returns the model in its initial state. `rng` is the generator of this model; outages are timed from
    /// `began`. A trace that has not been loaded loses nothing.
    pub(crate) fn model(&self, mut rng: Draws, began: Instant) -> Model {
        match *self {
            LossSpec::Independent(p) => Model::Independent { p, rng },
            LossSpec::After { p, q, gap } => Model::After { p, q, gap, previous: None, lost: false, rng },
            LossSpec::GilbertElliott { p, r, h, k } => {
                // A state of the stationary distribution.
                let (bad, good) = (u64::from(p.ppb()), u64::from(r.ppb()));
                let bad = below(&mut rng, bad + good) < bad;
                Model::GilbertElliott { p, r, h, k, bad, rng }
            }
            LossSpec::Trace { path: _, ref lost } => {
                Model::Trace { lost: lost.clone().unwrap_or_else(|| Arc::new([])), next: 0 }
            }
            LossSpec::Positions(ref ranges) => {
                Model::Positions { ranges: ranges.clone(), passed: 0, range: 0 }
            }
            LossSpec::Outage { from, to, every } => {
                Model::Outage { from: began + from, length: to.saturating_sub(from), every }
            }
            LossSpec::Policer { rate, bucket } => {
                let size = bucket.saturating_mul(POLICED_BYTE);
                Model::Policer { rate: rate.bits_per_second(), tokens: size, size, filled: began }
            }
        }
    }
}

/// Tokens that a byte costs at a policer. A bit costs a million tokens, because the rate in bits per second
/// times the microseconds gives the new tokens.
const POLICED_BYTE: u64 = 8_000_000;

/// The state of a [`LossSpec`].
#[derive(Debug)]
pub(crate) enum Model {
    Independent {
        p: Ratio,
        rng: Draws,
    },
    After {
        p: Ratio,
        q: Ratio,
        gap: Duration,
        /// When the previous packet entered.
        previous: Option<Instant>,
        /// True if the previous packet was lost.
        lost: bool,
        rng: Draws,
    },
    GilbertElliott {
        p: Ratio,
        r: Ratio,
        h: Ratio,
        k: Ratio,
        bad: bool,
        rng: Draws,
    },
    Trace {
        lost: Arc<[bool]>,
        next: usize,
    },
    Positions {
        ranges: Arc<[(u64, u64)]>,
        /// Number of packets so far.
        passed: u64,
        /// Index of the first range that may still contain a packet.
        range: usize,
    },
    Outage {
        from: Instant,
        length: Duration,
        every: Option<Duration>,
    },
    Policer {
        /// Bits per second.
        rate: u64,
        tokens: u64,
        size: u64,
        /// When the tokens were counted.
        filled: Instant,
    },
}

impl Model {
    /// True if the packet of `len` bytes that enters at `now` is lost. Call once per packet, in order.
    #[inline]
    pub(crate) fn lose(&mut self, now: Instant, len: usize) -> bool {
        match self {
            Model::Independent { p, rng } => chance(rng, *p),
            Model::After { p, q, gap, previous, lost, rng } => {
                let same_burst = previous.is_some_and(|previous| now.saturating_since(previous) <= *gap);
                let probability = if same_burst && *lost { *q } else { *p };
                *previous = Some(now);
                *lost = chance(rng, probability);
                *lost
            }
            Model::GilbertElliott { p, r, h, k, bad, rng } => {
                let (delivery, leave) = if *bad { (*h, *r) } else { (*k, *p) };
                let lost = !chance(rng, delivery);
                *bad ^= chance(rng, leave);
                lost
            }
            Model::Trace { lost, next } => {
                let is_lost = lost.get(*next).copied().unwrap_or(false);
                *next = if *next + 1 < lost.len() { *next + 1 } else { 0 };
                is_lost
            }
            Model::Positions { ranges, passed, range } => {
                *passed += 1;
                while ranges.get(*range).is_some_and(|(_, last)| *last < *passed) {
                    *range += 1;
                }
                ranges.get(*range).is_some_and(|(first, _)| *first <= *passed)
            }
            Model::Outage { from, length, every } => {
                let since = now.saturating_since(*from).as_nanos();
                let within = match every {
                    Some(every) if !every.is_zero() => since % every.as_nanos(),
                    Some(_) | None => since,
                };
                now >= *from && within < length.as_nanos()
            }
            Model::Policer { rate, tokens, size, filled } => {
                let elapsed = now.as_micros().saturating_sub(filled.as_micros());
                *filled = now.max(*filled);
                *tokens = tokens.saturating_add(rate.saturating_mul(elapsed)).min(*size);
                let left = tokens.checked_sub((len as u64).saturating_mul(POLICED_BYTE));
                *tokens = left.unwrap_or(*tokens);
                left.is_none()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeds::draws;
    use alloc::vec;
    use alloc::vec::Vec;

    const N: u64 = 200_000;

    fn percent(n: u32) -> Ratio {
        Ratio::from_percent(n)
    }

    /// Lost flags of `n` packets that are `gap_us` apart.
    fn run(spec: &LossSpec, seed: u64, n: u64, gap_us: u64) -> Vec<bool> {
        let mut model = spec.model(draws(seed, "test"), Instant::ZERO);
        (0..n).map(|i| model.lose(Instant::from_micros(i * gap_us), 1500)).collect()
    }

    fn mean(lost: &[bool]) -> f64 {
        lost.iter().filter(|lost| **lost).count() as f64 / lost.len() as f64
    }

    fn mean_burst(lost: &[bool]) -> f64 {
        let starts = lost.windows(2).filter(|w| !w[0] && w[1]).count();
        lost.iter().filter(|lost| **lost).count() as f64 / starts.max(1) as f64
    }

    fn close(measured: f64, expected: f64, tolerance: f64) {
        assert!(
            (measured - expected).abs() < tolerance,
            "measured {measured}, expected {expected} +- {tolerance}"
        );
    }

    #[test]
    fn independent_loss_has_its_mean_and_no_memory() {
        for seed in 0..3 {
            let lost = run(&LossSpec::Independent(percent(2)), seed, N, 10);
            close(mean(&lost), 0.02, 0.001);
            close(mean_burst(&lost), 1.0 / 0.98, 0.02);
        }
    }

    /// The mean loss p/(p + 1 - q) is 0.01/0.51 = 1.96 % in an endless burst, with 2 lost packets in a row.
    #[test]
    fn correlated_loss_within_one_burst_has_the_papers_mean_and_burst_length() {
        let spec = LossSpec::After { p: percent(1), q: percent(50), gap: LossSpec::BURST_GAP };
        for seed in 0..3 {
            let lost = run(&spec, seed, N, 10);
            close(mean(&lost), 0.0196, 0.0016);
            close(mean_burst(&lost), 2.0, 0.1);
        }
    }

    #[test]
    fn correlation_ends_with_the_burst() {
        let spec = LossSpec::After { p: percent(1), q: percent(100), gap: LossSpec::BURST_GAP };
        close(mean(&run(&spec, 1, N, 501)), 0.01, 0.001);
        let stuck = run(&spec, 1, 10_000, 500);
        let first = stuck.iter().position(|lost| *lost).expect("one of 10,000 packets is lost at 1 %");
        assert!(stuck[first..].iter().all(|lost| *lost), "a gap of exactly 0.5 ms is still the same burst");
    }

    #[test]
    fn gilbert_elliott_has_its_stationary_mean() {
        let spec = LossSpec::GilbertElliott { p: percent(1), r: percent(8), h: percent(10), k: percent(98) };
        let expected = (0.01 * 0.9 + 0.08 * 0.02) / 0.09;
        for seed in 0..3 {
            close(mean(&run(&spec, seed, N, 1_000_000)), expected, 0.008);
        }
    }

    #[test]
    fn gilbert_elliott_begins_in_its_stationary_distribution() {
        let spec = LossSpec::GilbertElliott { p: percent(10), r: percent(30), h: Ratio::ZERO, k: Ratio::ONE };
        let first = (0..20_000).map(|seed| run(&spec, seed, 1, 1)[0]).collect::<Vec<_>>();
        close(mean(&first), 0.25, 0.01);
        let never =
            LossSpec::GilbertElliott { p: Ratio::ZERO, r: Ratio::ZERO, h: Ratio::ZERO, k: Ratio::ONE };
        assert!(run(&never, 1, 1000, 1).iter().all(|lost| !lost));
    }

    #[test]
    fn a_trace_replays_and_repeats() {
        let spec = LossSpec::Trace { path: "x".into(), lost: Some([false, true, true].as_slice().into()) };
        assert_eq!(run(&spec, 1, 7, 1), [false, true, true, false, true, true, false]);
        assert_eq!(run(&LossSpec::Trace { path: "x".into(), lost: None }, 1, 2, 1), [false, false]);
    }

    #[test]
    fn listed_packets_and_no_others_are_lost() {
        let spec = LossSpec::Positions([(3, 3), (7, 9)].as_slice().into());
        let lost: Vec<usize> =
            run(&spec, 1, 20, 1).iter().enumerate().filter(|(_, lost)| **lost).map(|(i, _)| i + 1).collect();
        assert_eq!(lost, vec![3, 7, 8, 9]);
    }

    #[test]
    fn an_outage_loses_everything_in_its_time_and_may_repeat() {
        let ms = Duration::from_millis;
        let once = LossSpec::Outage { from: ms(2), to: ms(4), every: None };
        assert_eq!(run(&once, 1, 8, 1000), [false, false, true, true, false, false, false, false]);
        let again = LossSpec::Outage { from: ms(2), to: ms(3), every: Some(ms(3)) };
        assert_eq!(run(&again, 1, 7, 1000), [false, false, true, false, false, true, false]);
    }

    #[test]
    fn policer_passes_a_bucket_and_then_its_rate() {
        let spec = LossSpec::Policer { rate: Rate::from_bits_per_second(12_000_000), bucket: 15_000 };
        // 1,500 bytes take 1 ms at that rate. Packets arrive four times as fast, so the packets of a full
        // bucket pass, and after them every fourth packet.
        let lost = run(&spec, 1, 4013, 250);
        let passed = lost.iter().filter(|lost| !**lost).count();
        assert!(lost[..13].iter().all(|lost| !lost) && passed == 13 + 1000, "{passed} {:?}", &lost[..20]);
        assert!(run(&spec, 1, 10_000, 1000).iter().all(|lost| !lost), "at its rate nothing is lost");
        let mut model = spec.model(draws(1, "test"), Instant::ZERO);
        let second = Instant::from_millis(1000);
        let mut burst = |at| (0..20).filter(|_| !model.lose(at, 1500)).count();
        assert_eq!((burst(Instant::ZERO), burst(second)), (10, 10), "silence fills no more than the bucket");
    }

    #[test]
    fn losses_depend_on_the_seed_and_not_on_the_timing() {
        for spec in [
            LossSpec::Independent(percent(5)),
            LossSpec::GilbertElliott { p: percent(5), r: percent(50), h: Ratio::ZERO, k: Ratio::ONE },
        ] {
            assert_eq!(run(&spec, 9, 5000, 1), run(&spec, 9, 5000, 777));
            assert_ne!(run(&spec, 9, 5000, 1), run(&spec, 10, 5000, 1));
        }
    }
}
