//! Windowed estimates: rounds, bandwidth, round-trip time, aggregation of acknowledgements.

use super::super::sample::RateSample;
use super::bytes_in;
use crate::congestion::hystart::rtt_thresh;
use crate::time::{Instant, Micros};

/// Age at which a minimum round-trip time is replaced.
const MIN_RTT_WINDOW: Micros = Micros::from_millis(10_000);
/// Age at which the round-trip time is measured again, with a drained queue.
pub(super) const PROBE_RTT_INTERVAL: Micros = Micros::from_millis(5_000);
/// Maximum aggregation that enlarges the window.
const MAX_AGGREGATION: Micros = Micros::from_millis(100);

/// Round trips, counted by data: a round ends when data that was sent after its beginning is delivered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rounds {
    pub(super) count: u64,
    /// True if the last acknowledgement began a round.
    pub(super) start: bool,
    next_delivered: u64,
}

impl Rounds {
    pub(super) fn update(&mut self, prior_delivered: u64, delivered: u64) {
        self.start = prior_delivered >= self.next_delivered;
        if self.start {
            self.count += 1;
            self.next_delivered = delivered;
        }
    }

    /// Begins a round without counting one.
    pub(super) fn restart(&mut self, delivered: u64) {
        self.next_delivered = delivered;
    }
}

/// The largest delivery rate of this and the previous probing cycle, bytes per second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MaxBandwidth {
    previous: u64,
    current: u64,
}

impl MaxBandwidth {
    pub(super) fn get(&self) -> u64 {
        self.previous.max(self.current)
    }

    /// Takes a sample. An application-limited sample is only a lower bound of the bandwidth.
    pub(super) fn update(&mut self, sample: &RateSample) {
        if let Some(rate) = sample.rate
            && (rate >= self.get() || !sample.app_limited)
        {
            self.current = self.current.max(rate);
        }
    }

    /// Ends a cycle. A cycle without samples does not count.
    pub(super) fn advance(&mut self) {
        if self.current > 0 {
            self.previous = self.current;
            self.current = 0;
        }
    }
}

/// The round-trip time of the path without a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct MinRtt {
    min: Option<Micros>,
    at: Instant,
    /// The minimum of the last [`PROBE_RTT_INTERVAL`].
    recent: Option<Micros>,
    recent_at: Instant,
    /// Largest flight of this round, bytes, and the smallest round-trip time of the round.
    round_flight: u64,
    round_rtt: Option<Micros>,
}

impl MinRtt {
    pub(super) fn new(now: Instant) -> Self {
        MinRtt { min: None, at: now, recent: None, recent_at: now, round_flight: 0, round_rtt: None }
    }

    pub(super) fn get(&self) -> Option<Micros> {
        self.min
    }

    /// True if the path has a standing queue: `rtt` exceeds the minimum by more than noise.
    pub(super) fn is_queued(&self, rtt: Micros) -> bool {
        self.min.is_some_and(|min| rtt > min + min / 4 + Micros::from_millis(4))
    }

    /// True if `rtt` exceeds the minimum by as much as ends slow start in HyStart++ (RFC 9406 section 4.2).
    /// If several samples in a row do, a queue grows.
    pub(super) fn is_delayed(&self, rtt: Micros) -> bool {
        self.min.is_some_and(|min| rtt > min + rtt_thresh(min))
    }

    /// Processes an acknowledgement; returns true if it is time to drain the queue and measure.
    pub(super) fn update(&mut self, now: Instant, rtt: Option<Micros>) -> bool {
        let expired = Micros::between(self.recent_at, now) > PROBE_RTT_INTERVAL;
        if let Some(rtt) = rtt
            && (expired || self.recent.is_none_or(|recent| rtt < recent))
        {
            self.recent = Some(rtt);
            self.recent_at = now;
        }
        let old = Micros::between(self.at, now) > MIN_RTT_WINDOW;
        if let Some(recent) = self.recent
            && (old || self.min.is_none_or(|min| recent <= min))
        {
            self.min = Some(recent);
            self.at = self.recent_at;
        }
        expired
    }

    /// Uses rounds with little in flight as measurements, because the application drained the queue.
    pub(super) fn observe_round(
        &mut self,
        now: Instant,
        round_start: bool,
        flight: u64,
        rtt: Option<Micros>,
        half_bdp: u64,
    ) {
        if round_start {
            if let Some(rtt) = self.round_rtt.filter(|_| self.round_flight <= half_bdp) {
                self.recent = Some(rtt);
                self.recent_at = now;
            }
            (self.round_flight, self.round_rtt) = (0, None);
        }
        self.round_flight = self.round_flight.max(flight);
        self.round_rtt = match (self.round_rtt, rtt) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    /// Postpones the next measurement, because the queue has been drained.
    pub(super) fn postpone(&mut self, now: Instant) {
        self.recent_at = now;
    }
}

/// The bytes by which bursts of acknowledgements exceed the bandwidth.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aggregation {
    epoch_start: Instant,
    epoch_acked: u64,
    /// Maxima of this and the previous slot of rounds.
    slots: [u64; 2],
    slot_start: u64,
}

impl Aggregation {
    pub(super) fn new(now: Instant) -> Self {
        Aggregation { epoch_start: now, epoch_acked: 0, slots: [0; 2], slot_start: 0 }
    }

    pub(super) fn restart(&mut self, now: Instant) {
        self.epoch_start = now;
        self.epoch_acked = 0;
    }

    /// Compares `acked` bytes with the volume that `bandwidth` delivers. A slot of the maximum lasts
    /// `slot_rounds`.
    pub(super) fn update(
        &mut self,
        now: Instant,
        acked: u32,
        bandwidth: u64,
        cwnd: u32,
        round: u64,
        slot_rounds: u64,
    ) {
        let mut expected = bytes_in(bandwidth, Micros::between(self.epoch_start, now));
        if self.epoch_acked <= expected {
            self.restart(now);
            expected = 0;
        }
        self.epoch_acked += u64::from(acked);
        let extra = self.epoch_acked.saturating_sub(expected).min(u64::from(cwnd));
        if round >= self.slot_start + slot_rounds {
            self.slots = [0, self.slots[0]];
            self.slot_start = round;
        }
        self.slots[0] = self.slots[0].max(extra);
    }

    /// Returns the bytes that are added to the window because of aggregation.
    pub(super) fn extra(&self, bandwidth: u64) -> u64 {
        self.slots[0].max(self.slots[1]).min(bytes_in(bandwidth, MAX_AGGREGATION))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn sample(rate: u64, app_limited: bool) -> RateSample {
        RateSample {
            prior_delivered: 0,
            delivered: 0,
            lost: 0,
            tx_in_flight: 0,
            app_limited,
            is_probe: false,
            rtt: None,
            rate: Some(rate),
        }
    }

    /// Four packets from idle are a round. The packet after the first acknowledgement ends the next one.
    #[test]
    fn a_round_ends_with_data_sent_after_its_beginning() {
        let mut rounds = Rounds::default();
        let acks = [(0, 1000), (0, 2000), (0, 3000), (0, 4000), (1000, 5000)];
        let counts = acks.map(|(prior, delivered)| {
            rounds.update(prior, delivered);
            (rounds.count, rounds.start)
        });
        assert_eq!(counts, [(1, true), (1, false), (1, false), (1, false), (2, true)]);
    }

    #[test]
    fn aggregation_is_what_exceeds_the_bandwidth_since_the_epoch_began() {
        let mut aggregation = Aggregation::new(ms(0));
        let mut extra = |now, acked, cwnd, round| {
            aggregation.update(ms(now), acked, 1_000_000, cwnd, round, 1);
            aggregation.slots[0]
        };
        assert_eq!(extra(10, 30_000, 200_000, 1), 30_000);
        assert_eq!(extra(20, 30_000, 200_000, 2), 50_000);
        assert_eq!(extra(80, 10_000, 200_000, 3), 10_000);
        assert_eq!(extra(80, 90_000, 40_000, 4), 40_000, "never more than the window");
        assert_eq!(aggregation.extra(100_000), 10_000, "never more than 100 ms of the bandwidth");
    }

    #[test]
    fn bandwidth_is_the_maximum_of_two_cycles() {
        let mut bandwidth = MaxBandwidth::default();
        bandwidth.update(&sample(1000, true));
        bandwidth.update(&sample(900, true));
        assert_eq!(bandwidth.get(), 1000, "the application limited it, but so much was delivered");
        bandwidth.advance();
        bandwidth.update(&sample(500, true));
        bandwidth.advance();
        assert_eq!(bandwidth.get(), 1000, "a cycle without a sample does not count");
        bandwidth.update(&sample(600, false));
        bandwidth.advance();
        bandwidth.advance();
        assert_eq!(bandwidth.get(), 600);
    }

    #[test]
    fn an_old_minimum_gives_way_after_ten_seconds() {
        let mut rtt = MinRtt::new(ms(0));
        assert!(!rtt.update(ms(100), Some(Micros::from_millis(40))));
        assert!(!rtt.update(ms(5000), Some(Micros::from_millis(80))));
        assert_eq!(rtt.get(), Some(Micros::from_millis(40)));
        assert!(rtt.update(ms(5101), Some(Micros::from_millis(80))), "time to measure");
        assert_eq!(rtt.get(), Some(Micros::from_millis(40)));
        rtt.update(ms(10_101), Some(Micros::from_millis(80)));
        assert_eq!(rtt.get(), Some(Micros::from_millis(80)));
    }

    #[test]
    fn a_round_with_half_a_path_in_flight_is_a_measurement() {
        let mut rtt = MinRtt::new(ms(0));
        rtt.update(ms(100), Some(Micros::from_millis(40)));
        for now in [3000, 4000] {
            rtt.observe_round(ms(now), true, 10_000, Some(Micros::from_millis(42)), 20_000);
        }
        assert!(!rtt.update(ms(6000), None), "the round that ended at 4 s has shown it");
        assert!(rtt.update(ms(9001), None));
    }
}
