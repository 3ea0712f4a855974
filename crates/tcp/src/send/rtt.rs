//! Round-trip time: the smoothed estimate with the timeout that follows from it (RFC 6298), and the windowed
//! minimum that scales RACK's reordering window (RFC 8985 section 6.1).

use crate::config::RtoConfig;
use crate::time::{Duration, Instant, Micros};

/// Length of one of the three slots of the windowed minimum. Together they cover 200 to 300 s.
const MIN_RTT_SLOT: Micros = Micros::from_millis(100_000);
/// Maximum of a sample. Above it the arithmetic is useless.
const MAX_SAMPLE: Micros = Micros::from_millis(3_600_000);
/// Minimum of a sample, because divisors must not be zero.
const MIN_SAMPLE: Micros = Micros(1);

/// Round-trip time estimator of one connection, in microseconds. Frequently used results are computed once
/// per sample.
#[derive(Clone, Debug)]
pub(crate) struct RttEstimator {
    bounds: RtoBounds,
    granularity: Micros,
    /// SRTT and RTTVAR of an earlier connection over the path.
    prior: Option<(Micros, Micros)>,
    /// SRTT, once there is a sample.
    srtt: Option<Micros>,
    samples: u32,
    /// Eight times SRTT in microseconds, so that the division by 8 is exact.
    srtt8: u64,
    /// Four times RTTVAR in microseconds.
    rttvar4: u64,
    /// The resulting timeout before backoff.
    rto_base: Micros,
    minimum: WindowedMin,
    /// The newest sample.
    latest: Option<Micros>,
}

#[derive(Clone, Copy, Debug)]
struct RtoBounds {
    /// Minimum of the variance term: `max(G, var_floor)`.
    variance: Micros,
    min: Micros,
    max: Micros,
}

impl RtoBounds {
    fn new(config: &RtoConfig, granularity: Micros) -> Self {
        let variance = granularity.max(config.var_floor.into());
        RtoBounds { variance, min: config.min.into(), max: config.max.into() }
    }

    /// Returns the timeout for SRTT and `four_rttvar`, K*RTTVAR of RFC 6298.
    fn timeout(&self, srtt: Micros, four_rttvar: Micros) -> Micros {
        let timeout = srtt + four_rttvar.max(self.variance);
        timeout.max(self.min).min(self.max)
    }
}

impl RttEstimator {
    /// Returns an estimator without a sample. `granularity` is G of RFC 6298.
    pub(crate) fn new(config: &RtoConfig, granularity: Duration) -> Self {
        RttEstimator {
            bounds: RtoBounds::new(config, granularity.into()),
            granularity: granularity.into(),
            prior: None,
            srtt: None,
            samples: 0,
            srtt8: 0,
            rttvar4: 0,
            rto_base: config.initial.min(config.max).into(),
            minimum: WindowedMin::default(),
            latest: None,
        }
    }

    pub(crate) fn latest(&self) -> Option<Micros> {
        self.latest
    }

    /// Takes a sample that obeys Karn's rule.
    pub(crate) fn on_sample(&mut self, rtt: Micros, now: Instant) {
        let rtt = rtt.clamp(MIN_SAMPLE, MAX_SAMPLE);
        let sample = u64::from(rtt.0);
        if self.srtt.is_none() {
            self.begin(sample);
        }
        self.samples = self.samples.saturating_add(1);
        if self.srtt.is_none() && self.srtt8 == 0 {
            // RFC 6298 2.2: "SRTT <- R, RTTVAR <- R/2"
            self.srtt8 = sample * 8;
            self.rttvar4 = sample * 2;
        } else {
            // RFC 6298 2.3: "RTTVAR <- (1 - beta) * RTTVAR + beta * |SRTT - R'|", then
            // "SRTT <- (1 - alpha) * SRTT + alpha * R'" with alpha = 1/8 and beta = 1/4.
            let error = (self.srtt8 / 8).abs_diff(sample);
            self.rttvar4 = self.rttvar4 - self.rttvar4 / 4 + error;
            self.srtt8 = self.srtt8 - self.srtt8 / 8 + sample;
        }
        let srtt = Micros::from_micros(self.srtt8 / 8).max(MIN_SAMPLE);
        self.srtt = Some(srtt);
        self.rto_base = self.bounds.timeout(srtt, Micros::from_micros(self.rttvar4));
        self.minimum.update(rtt, now);
        self.latest = Some(rtt);
    }

    /// Makes the first sample continue from the SRTT and RTTVAR of an earlier connection (RFC 9040 section
    /// 5). A first sample below half or above twice that SRTT starts without them.
    pub(crate) fn continue_from(&mut self, srtt: Duration, rttvar: Duration) {
        let (srtt, rttvar) = (Micros::from(srtt), Micros::from(rttvar));
        self.prior = Some((srtt.clamp(MIN_SAMPLE, MAX_SAMPLE), rttvar.min(MAX_SAMPLE)));
    }

    /// Bases the timeout on the earlier connection until there is a sample, for a handshake that gave none.
    pub(crate) fn trust_prior(&mut self) {
        if let Some((srtt, rttvar)) = self.prior {
            self.set_initial_rto(self.bounds.timeout(srtt, rttvar * 4));
        }
    }

    fn begin(&mut self, first: u64) {
        if let Some((srtt, rttvar)) =
            self.prior.map(|(srtt, rttvar)| (u64::from(srtt.0), u64::from(rttvar.0)))
            && first * 2 >= srtt
            && first <= srtt * 2
        {
            (self.srtt8, self.rttvar4) = (srtt * 8, rttvar * 4);
        }
    }

    pub(crate) fn samples(&self) -> u32 {
        self.samples
    }

    pub(crate) fn srtt(&self) -> Option<Micros> {
        self.srtt
    }

    pub(crate) fn rttvar(&self) -> Option<Micros> {
        self.srtt.map(|_| Micros::from_micros(self.rttvar4 / 4))
    }

    /// Returns the minimum of the samples in the 200 to 300 s before the last sample; `None` without a
    /// sample.
    pub(crate) fn min_rtt(&self) -> Option<Micros> {
        self.minimum.min
    }

    /// Returns G of RFC 6298: the granularity of the driver's clock.
    pub(crate) fn granularity(&self) -> Micros {
        self.granularity
    }

    /// Returns the timeout before backoff: `srtt + max(G, 4*rttvar, var_floor)`, limited to `[min, max]`.
    /// `var_floor` limits the variance term, not the sum. So the timeout of a stable path exceeds its
    /// round-trip time by `var_floor`.
    pub(crate) fn rto_base(&self) -> Micros {
        self.rto_base
    }

    /// Changes the limits; the timeout follows at once.
    pub(crate) fn set_bounds(&mut self, config: &RtoConfig) {
        self.bounds = RtoBounds::new(config, self.granularity);
        self.rto_base = match self.srtt {
            Some(srtt) => self.bounds.timeout(srtt, Micros::from_micros(self.rttvar4)),
            None => self.rto_base.min(self.bounds.max),
        };
    }

    /// Sets the timeout before the first sample. RFC 6298 5.7: after the timer of a SYN expired, "the RTO
    /// MUST be re-initialized to 3 seconds when data transmission begins".
    pub(crate) fn set_initial_rto(&mut self, initial: Micros) {
        if self.srtt.is_none() {
            self.rto_base = initial.min(self.bounds.max);
        }
    }
}

/// Minimum over a sliding window, as the minima of three slots that are reused in turn.
#[derive(Clone, Debug)]
struct WindowedMin {
    /// Minima of the current slot and of the two before it; [`NO_SAMPLE`] without one.
    slots: [Micros; 3],
    slot_start: Instant,
    /// The minimum of the slots.
    min: Option<Micros>,
}

/// Larger than any sample.
const NO_SAMPLE: Micros = Micros::MAX;

impl Default for WindowedMin {
    fn default() -> Self {
        WindowedMin { slots: [NO_SAMPLE; 3], slot_start: Instant::ZERO, min: None }
    }
}

impl WindowedMin {
    fn update(&mut self, rtt: Micros, now: Instant) {
        if self.min.is_none() {
            self.slot_start = now;
        }
        let elapsed = Micros::between(self.slot_start, now);
        if elapsed >= MIN_RTT_SLOT {
            let passed = (elapsed.0 / MIN_RTT_SLOT.0).min(3) as usize;
            self.slots.rotate_right(passed % 3);
            self.slots[..passed].fill(NO_SAMPLE);
            self.slot_start = now;
        }
        let [current, before, earlier] = &mut self.slots;
        *current = rtt.min(*current);
        self.min = Some((*current).min(*before).min(*earlier));
    }
}

/// The last few samples. A queue delays all of them; jitter or a busy processor delays some.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RecentRtts {
    samples: [Option<Micros>; 4],
    next: usize,
}

impl RecentRtts {
    pub(crate) fn push(&mut self, rtt: Micros) {
        self.samples[self.next % self.samples.len()] = Some(rtt);
        self.next = self.next.wrapping_add(1);
    }

    /// Returns the smallest of them.
    pub(crate) fn min(&self) -> Option<Micros> {
        self.samples.iter().flatten().min().copied()
    }

    /// Returns the smaller of the latest two, because a delayed acknowledgement makes one of them long.
    pub(crate) fn min_of_latest_two(&self) -> Option<Micros> {
        let [last, before] =
            [1, 2].map(|back| self.samples[self.next.wrapping_sub(back) % self.samples.len()]);
        Some(last?.min(before?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: Duration = Duration::from_micros(1);

    fn ms(millis: u64) -> Micros {
        Micros::from_millis(millis)
    }

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn one_delayed_acknowledgement_does_not_lengthen_the_latest_two() {
        let mut recent = RecentRtts::default();
        let mut push = |millis| {
            recent.push(ms(millis));
            recent.min_of_latest_two()
        };
        let seen = [100, 140, 120, 120, 101, 140].map(&mut push);
        assert_eq!(seen, [None, Some(ms(100)), Some(ms(120)), Some(ms(120)), Some(ms(101)), Some(ms(101))]);
    }

    #[test]
    fn before_the_first_sample_the_timeout_is_the_initial_one() {
        // RFC 6298 2.1: "Until a round-trip time (RTT) measurement has been made for a segment sent
        // between the sender and receiver, the sender SHOULD set RTO <- 1 second".
        let mut rtt = RttEstimator::new(&RtoConfig::LINUX, G);
        assert_eq!((rtt.rto_base(), rtt.srtt(), rtt.rttvar(), rtt.min_rtt()), (ms(1000), None, None, None));
        // RFC 6298 5.7: "the RTO MUST be re-initialized to 3 seconds when data transmission begins".
        rtt.set_initial_rto(ms(3000));
        assert_eq!(rtt.rto_base(), ms(3000));
        rtt.on_sample(ms(100), at(0));
        assert_eq!(rtt.rto_base(), ms(300));
    }

    #[test]
    fn the_first_sample_sets_rttvar_to_half_of_it() {
        // RFC 6298 2.2: "SRTT <- R, RTTVAR <- R/2, RTO <- SRTT + max (G, K*RTTVAR)".
        let mut rtt = RttEstimator::new(&RtoConfig::RFC6298, G);
        rtt.on_sample(ms(800), at(0));
        assert_eq!((rtt.srtt(), rtt.rttvar(), rtt.rto_base()), (Some(ms(800)), Some(ms(400)), ms(2400)));
    }

    #[test]
    fn later_samples_weigh_an_eighth_and_a_quarter() {
        // RFC 6298 2.3, computed by hand: RTTVAR = 3/4*400 + 1/4*|800-400| = 400, SRTT = 7/8*800 +
        // 1/8*400 = 750.
        let mut rtt = RttEstimator::new(&RtoConfig::RFC6298, G);
        rtt.on_sample(ms(800), at(0));
        rtt.on_sample(ms(400), at(1));
        assert_eq!((rtt.srtt(), rtt.rttvar()), (Some(ms(750)), Some(ms(400))));
    }

    #[test]
    fn a_stable_path_keeps_200_ms_above_the_round_trip() {
        // The floor is on the variance term, not on the sum.
        let mut rtt = RttEstimator::new(&RtoConfig::LINUX, G);
        for sample in 0..200 {
            rtt.on_sample(ms(100), at(sample));
        }
        assert_eq!(rtt.rto_base(), ms(300));
    }

    #[test]
    fn rfc_6298_has_its_floor_of_one_second_on_the_sum() {
        // RFC 6298 2.4: "Whenever RTO is computed, if it is less than 1 second, then the RTO SHOULD be
        // rounded up to 1 second."
        let mut rtt = RttEstimator::new(&RtoConfig::RFC6298, G);
        rtt.on_sample(ms(10), at(0));
        assert_eq!(rtt.rto_base(), ms(1000));
    }

    #[test]
    fn the_granularity_of_the_clock_is_a_floor_of_the_variance() {
        let config = RtoConfig { min: Duration::from_millis(1), ..RtoConfig::RFC6298 };
        let mut rtt = RttEstimator::new(&config, Duration::from_millis(4));
        for sample in 0..200 {
            rtt.on_sample(ms(10), at(sample));
        }
        assert_eq!(rtt.rto_base(), ms(14));
    }

    #[test]
    fn no_sample_makes_the_timeout_exceed_its_maximum() {
        let mut rtt = RttEstimator::new(&RtoConfig::LINUX, G);
        rtt.on_sample(Duration::MAX.into(), at(0));
        assert_eq!(rtt.rto_base(), RtoConfig::LINUX.max.into());
        rtt.on_sample(Micros::ZERO, at(1));
        assert!(rtt.srtt() > Some(Micros::ZERO));
    }

    #[test]
    fn srtt_converges_to_a_constant_round_trip() {
        let mut rtt = RttEstimator::new(&RtoConfig::LINUX, G);
        rtt.on_sample(ms(500), at(0));
        for sample in 0..300 {
            rtt.on_sample(Micros(12_345), at(sample));
        }
        let error = rtt.srtt().map(|srtt| srtt.0.abs_diff(12_345));
        assert!(error <= Some(8), "{error:?}");
    }

    #[test]
    fn the_first_sample_continues_from_remembered_times() {
        let mut rtt = RttEstimator::new(&RtoConfig::LINUX, G);
        rtt.continue_from(Duration::from_millis(100), Duration::from_millis(4));
        assert_eq!((rtt.rto_base(), rtt.srtt()), (ms(1000), None));
        rtt.trust_prior();
        assert_eq!((rtt.rto_base(), rtt.srtt()), (ms(300), None));
        rtt.on_sample(ms(108), at(0));
        assert_eq!((rtt.srtt(), rtt.rttvar(), rtt.samples()), (Some(ms(101)), Some(ms(5)), 1));
    }

    #[test]
    fn remembered_times_of_a_changed_path_are_forgotten() {
        let mut rtt = RttEstimator::new(&RtoConfig::LINUX, G);
        rtt.continue_from(Duration::from_millis(100), Duration::from_millis(4));
        rtt.on_sample(ms(300), at(0));
        assert_eq!((rtt.srtt(), rtt.rttvar()), (Some(ms(300)), Some(ms(150))));
    }

    #[test]
    fn the_minimum_forgets_what_is_older_than_five_minutes() {
        let mut rtt = RttEstimator::new(&RtoConfig::LINUX, G);
        rtt.on_sample(ms(10), at(0));
        for second in 1..=200 {
            rtt.on_sample(ms(50), at(second * 1000));
            assert_eq!(rtt.min_rtt(), Some(ms(10)), "after {second} s");
        }
        for second in 201..=301 {
            rtt.on_sample(ms(50), at(second * 1000));
        }
        assert_eq!(rtt.min_rtt(), Some(ms(50)));
        rtt.on_sample(ms(20), at(302_000));
        assert_eq!(rtt.min_rtt(), Some(ms(20)), "a smaller one counts at once");
        rtt.on_sample(ms(90), at(100_000_000));
        assert_eq!(rtt.min_rtt(), Some(ms(90)), "after a long silence the past is gone");
    }
}
