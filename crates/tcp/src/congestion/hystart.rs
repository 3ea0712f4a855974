//! HyStart++ (RFC 9406): ends the first slow start before it overflows the bottleneck.
//!
//! A rise of the minimum round-trip time from one round of slow start to the next suggests that a queue
//! builds. Growth then slows down for a few rounds of *conservative slow start*. If the round-trip time falls
//! back, the rise was noise and slow start goes on. Otherwise congestion avoidance begins, without a loss.

use brisk_wire::SeqNum;

use crate::time::Micros;

const MIN_RTT_THRESH: Micros = Micros::from_millis(4);
const MAX_RTT_THRESH: Micros = Micros::from_millis(16);
const MIN_RTT_DIVISOR: u32 = 8;
const N_RTT_SAMPLE: u32 = 8;
const CSS_GROWTH_DIVISOR: u32 = 4;
const CSS_ROUNDS: u32 = 5;

/// The phase of the first slow start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HystartPhase {
    /// Standard slow start.
    SlowStart,
    /// Conservative slow start.
    Conservative {
        /// Minimum round-trip time of the round in which it was entered.
        baseline: Micros,
        /// Rounds completed in it.
        rounds: u32,
    },
    /// Conservative slow start lasted its rounds: congestion avoidance begins.
    Done,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct HyStart {
    phase: HystartPhase,
    /// windowEnd: SND.NXT when the round began.
    window_end: Option<SeqNum>,
    /// lastRoundMinRTT.
    last_round_min: Option<Micros>,
    /// currentRoundMinRTT.
    current_round_min: Option<Micros>,
    /// rttSampleCount.
    samples: u32,
}

impl Default for HyStart {
    fn default() -> Self {
        HyStart::new()
    }
}

impl HyStart {
    /// Returns the state at the start of a connection.
    pub(crate) fn new() -> Self {
        HyStart {
            phase: HystartPhase::SlowStart,
            window_end: None,
            last_round_min: None,
            current_round_min: None,
            samples: 0,
        }
    }

    #[cfg(test)]
    pub(crate) fn phase(&self) -> HystartPhase {
        self.phase
    }

    /// Returns the growth of the window for `bytes` acknowledged. The caller has limited `bytes`.
    pub(crate) fn growth(&self, bytes: u32) -> u32 {
        match self.phase {
            HystartPhase::SlowStart => bytes,
            HystartPhase::Conservative { .. } => bytes / CSS_GROWTH_DIVISOR,
            HystartPhase::Done => 0,
        }
    }

    /// Processes an acknowledgement in slow start; returns the phase after it.
    pub(crate) fn on_ack(&mut self, rtt: Option<Micros>, una: SeqNum, nxt: SeqNum) -> HystartPhase {
        let window_end = *self.window_end.get_or_insert(nxt);
        if let Some(rtt) = rtt {
            self.current_round_min = Some(self.current_round_min.map_or(rtt, |min| min.min(rtt)));
            self.samples += 1;
        }
        self.compare_rounds();
        if una.ge(window_end) {
            self.end_round(nxt);
        }
        self.phase
    }

    /// Compares the current round with the previous round, once the current one has enough samples.
    fn compare_rounds(&mut self) {
        let Some(current) = self.current_round_min.filter(|_| self.samples >= N_RTT_SAMPLE) else {
            return;
        };
        match (self.phase, self.last_round_min) {
            (HystartPhase::SlowStart, Some(last)) if current >= last + rtt_thresh(last) => {
                self.phase = HystartPhase::Conservative { baseline: current, rounds: 0 };
            }
            (HystartPhase::Conservative { baseline, .. }, _) if current < baseline => {
                self.phase = HystartPhase::SlowStart;
            }
            (HystartPhase::SlowStart | HystartPhase::Conservative { .. } | HystartPhase::Done, _) => {}
        }
    }

    fn end_round(&mut self, nxt: SeqNum) {
        self.window_end = Some(nxt);
        self.last_round_min = self.current_round_min.take();
        self.samples = 0;
        if let HystartPhase::Conservative { baseline, rounds } = self.phase {
            let rounds = rounds + 1;
            self.phase = if rounds >= CSS_ROUNDS {
                HystartPhase::Done
            } else {
                HystartPhase::Conservative { baseline, rounds }
            };
        }
    }
}

/// Returns RttThresh: an eighth of the round-trip time, within 4 and 16 ms.
pub(crate) fn rtt_thresh(last_round_min: Micros) -> Micros {
    Micros(last_round_min.0.div_ceil(MIN_RTT_DIVISOR)).clamp(MIN_RTT_THRESH, MAX_RTT_THRESH)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Micros = Micros::from_millis(1);

    /// Rounds of ten segments of one sequence number each; the next ten leave with the last
    /// acknowledgement.
    struct Rounds {
        hystart: HyStart,
        una: SeqNum,
        nxt: SeqNum,
    }

    impl Rounds {
        const PER_ROUND: u32 = 10;

        fn new() -> Self {
            Rounds { hystart: HyStart::new(), una: SeqNum(0), nxt: SeqNum(Self::PER_ROUND) }
        }

        fn ack(&mut self, rtt: Option<Micros>) -> HystartPhase {
            self.una += 1;
            if self.una == self.nxt {
                self.nxt += Self::PER_ROUND;
            }
            self.hystart.on_ack(rtt, self.una, self.nxt)
        }

        /// Acknowledges `count` segments with the same round-trip time.
        fn acks(&mut self, count: u32, rtt: Micros) -> HystartPhase {
            (0..count).map(|_| self.ack(Some(rtt))).last().unwrap_or(self.hystart.phase())
        }
    }

    fn conservative(baseline: Micros, rounds: u32) -> HystartPhase {
        HystartPhase::Conservative { baseline, rounds }
    }

    /// RFC 9406 section 4.2: "RttThresh = max(MIN_RTT_THRESH, min(lastRoundMinRTT / MIN_RTT_DIVISOR,
    /// MAX_RTT_THRESH))".
    #[test]
    fn the_threshold_is_an_eighth_within_its_bounds() {
        assert_eq!(rtt_thresh(MS * 10), MS * 4);
        assert_eq!(rtt_thresh(MS * 80), MS * 10);
        assert_eq!(rtt_thresh(MS * 400), MS * 16);
    }

    #[test]
    fn a_steady_round_trip_time_stays_in_slow_start() {
        let mut rounds = Rounds::new();
        for _ in 0..20 {
            assert_eq!(rounds.acks(Rounds::PER_ROUND, MS * 80), HystartPhase::SlowStart);
            assert_eq!(
                rounds.acks(Rounds::PER_ROUND, MS * 89),
                HystartPhase::SlowStart,
                "below the threshold"
            );
        }
        assert_eq!(rounds.hystart.growth(1_000), 1_000);
    }

    /// "if (currentRoundMinRTT >= (lastRoundMinRTT + RttThresh)) cssBaselineMinRtt = currentRoundMinRTT;
    /// exit slow start and enter CSS", once N_RTT_SAMPLE samples are there.
    #[test]
    fn a_rise_over_a_round_enters_conservative_slow_start() {
        let mut rounds = Rounds::new();
        rounds.acks(Rounds::PER_ROUND, MS * 80);
        assert_eq!(rounds.acks(7, MS * 90), HystartPhase::SlowStart, "seven samples do not tell");
        assert_eq!(rounds.acks(1, MS * 90), conservative(MS * 90, 0));
        assert_eq!(rounds.hystart.growth(1_000), 250, "CSS_GROWTH_DIVISOR");
    }

    #[test]
    fn one_low_sample_in_the_round_keeps_slow_start() {
        let mut rounds = Rounds::new();
        rounds.acks(Rounds::PER_ROUND, MS * 80);
        rounds.acks(1, MS * 81);
        assert_eq!(rounds.acks(9, MS * 200), HystartPhase::SlowStart);
    }

    #[test]
    fn acknowledgements_without_a_sample_do_not_count() {
        let mut rounds = Rounds::new();
        rounds.acks(Rounds::PER_ROUND, MS * 80);
        rounds.acks(7, MS * 90);
        assert_eq!(rounds.ack(None), HystartPhase::SlowStart);
        assert_eq!(rounds.acks(1, MS * 90), conservative(MS * 90, 0));
    }

    /// "If the transition into CSS happens in the middle of a round, that partial round counts toward
    /// the limit" of CSS_ROUNDS.
    #[test]
    fn conservative_slow_start_ends_after_five_rounds() {
        let mut rounds = Rounds::new();
        rounds.acks(Rounds::PER_ROUND, MS * 80);
        for round in 1..CSS_ROUNDS {
            assert_eq!(rounds.acks(Rounds::PER_ROUND, MS * 95), conservative(MS * 95, round));
        }
        assert_eq!(rounds.acks(Rounds::PER_ROUND - 1, MS * 95), conservative(MS * 95, CSS_ROUNDS - 1));
        assert_eq!(rounds.acks(1, MS * 95), HystartPhase::Done);
        assert_eq!(rounds.hystart.growth(1_000), 0);
    }

    /// "if (currentRoundMinRTT < cssBaselineMinRtt) cssBaselineMinRtt = infinity; resume slow start
    /// including HyStart++".
    #[test]
    fn a_round_trip_time_that_falls_back_resumes_slow_start() {
        let mut rounds = Rounds::new();
        rounds.acks(Rounds::PER_ROUND, MS * 80);
        rounds.acks(Rounds::PER_ROUND, MS * 95);
        assert_eq!(rounds.acks(7, MS * 94), conservative(MS * 95, 1));
        assert_eq!(rounds.acks(1, MS * 94), HystartPhase::SlowStart);
        rounds.acks(2, MS * 94);
        assert_eq!(rounds.acks(8, MS * 120), conservative(MS * 120, 0), "and HyStart++ goes on");
    }
}
