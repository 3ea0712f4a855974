//! HyStart++ (RFC 9406): leaving the first slow start before it overflows the bottleneck.
//!
//! A rise of the round-trip time within a round of slow start suggests that a queue builds. Growth
//! then slows down for a few rounds of *conservative slow start*; if the round-trip time falls back,
//! the rise was noise and slow start goes on, otherwise congestion avoidance begins without a loss.

use brisk_wire::SeqNum;

use crate::time::Duration;

/// MIN_RTT_THRESH.
const MIN_RTT_THRESH: Duration = Duration::from_millis(4);
/// MAX_RTT_THRESH.
const MAX_RTT_THRESH: Duration = Duration::from_millis(16);
/// MIN_RTT_DIVISOR.
const MIN_RTT_DIVISOR: u32 = 8;
/// N_RTT_SAMPLE.
const N_RTT_SAMPLE: u32 = 8;
/// CSS_GROWTH_DIVISOR.
const CSS_GROWTH_DIVISOR: u32 = 4;
/// CSS_ROUNDS.
const CSS_ROUNDS: u32 = 5;

/// Where the first slow start stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Standard slow start.
    SlowStart,
    /// Conservative slow start.
    Conservative {
        /// Minimum round-trip time of the round in which it was entered.
        baseline: Duration,
        /// Rounds completed in it.
        rounds: u32,
    },
    /// Conservative slow start lasted its rounds: congestion avoidance begins.
    Done,
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub struct HyStart {
    phase: Phase,
    /// windowEnd: SND.NXT when the round began.
    window_end: Option<SeqNum>,
    /// lastRoundMinRTT.
    last_round_min: Option<Duration>,
    /// currentRoundMinRTT.
    current_round_min: Option<Duration>,
    /// rttSampleCount.
    samples: u32,
}

impl Default for HyStart {
    fn default() -> Self {
        HyStart::new()
    }
}

impl HyStart {
    /// At the start of a connection.
    pub fn new() -> Self {
        HyStart {
            phase: Phase::SlowStart,
            window_end: None,
            last_round_min: None,
            current_round_min: None,
            samples: 0,
        }
    }

    /// Where slow start stands.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Bytes by which the window grows for `bytes` acknowledged (already limited to L segments).
    pub fn growth(&self, bytes: u32) -> u32 {
        match self.phase {
            Phase::SlowStart => bytes,
            Phase::Conservative { .. } => bytes / CSS_GROWTH_DIVISOR,
            Phase::Done => 0,
        }
    }

    /// An acknowledgement in slow start; returns the phase after it.
    pub fn on_ack(&mut self, rtt: Option<Duration>, una: SeqNum, nxt: SeqNum) -> Phase {
        let window_end = *self.window_end.get_or_insert(nxt);
        if let Some(rtt) = rtt {
            self.current_round_min = Some(self.current_round_min.map_or(rtt, |min| min.min(rtt)));
            self.samples += 1;
        }
        self.judge();
        if una.ge(window_end) {
            self.end_round(nxt);
        }
        self.phase
    }

    /// Compares the round so far with what went before, once it has samples enough.
    fn judge(&mut self) {
        let Some(current) = self.current_round_min.filter(|_| self.samples >= N_RTT_SAMPLE) else {
            return;
        };
        match (self.phase, self.last_round_min) {
            (Phase::SlowStart, Some(last)) if current >= last + rtt_thresh(last) => {
                self.phase = Phase::Conservative { baseline: current, rounds: 0 };
            }
            (Phase::Conservative { baseline, .. }, _) if current < baseline => {
                self.phase = Phase::SlowStart;
            }
            (Phase::SlowStart | Phase::Conservative { .. } | Phase::Done, _) => {}
        }
    }

    fn end_round(&mut self, nxt: SeqNum) {
        self.window_end = Some(nxt);
        self.last_round_min = self.current_round_min.take();
        self.samples = 0;
        if let Phase::Conservative { baseline, rounds } = self.phase {
            let rounds = rounds + 1;
            self.phase =
                if rounds >= CSS_ROUNDS { Phase::Done } else { Phase::Conservative { baseline, rounds } };
        }
    }
}

/// RttThresh: an eighth of the round-trip time, within 4 and 16 ms.
fn rtt_thresh(last_round_min: Duration) -> Duration {
    (last_round_min / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH, MAX_RTT_THRESH)
}
