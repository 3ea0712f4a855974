//! ProbeRTT: every five seconds the flow leaves half of the path empty for 200 ms. It need not if the
//! application has sent so little anyway.

use super::super::sample::{AckSample, RateSample};
use super::{Bbr, BbrState, MIN_PIPE_SEGMENTS};
use crate::time::{Instant, Micros};

/// Time for which the flight stays small, in addition to a round.
const DURATION: Micros = Micros::from_millis(200);

/// A measurement in progress.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProbeRtt {
    /// The window until its end, bytes. It is based on the previous round-trip time, because the new estimate
    /// may still include the queue if both estimates have expired.
    pub(super) cwnd: u64,
    /// Time when it may end; `None` until the flight is small.
    ends_at: Option<Instant>,
    has_had_round: bool,
}

impl Bbr {
    /// Processes the round-trip time of an acknowledgement; begins, continues and ends ProbeRTT.
    pub(super) fn update_min_rtt(&mut self, ack: &AckSample, sample: Option<&RateSample>) {
        let rtt = sample.and_then(|sample| sample.rtt);
        let half_bdp = self.bdp(self.bandwidth(), (1, 2));
        let flight = u64::from(ack.pipe_before);
        self.min_rtt.observe_round(ack.now, self.rounds.start, flight, rtt, half_bdp);
        let first = ack.rtt.or(ack.srtt).filter(|_| self.min_rtt.get().is_none());
        let expired = self.min_rtt.update(ack.now, rtt.or(first));
        if self.state == BbrState::ProbeRtt {
            self.handle_probe_rtt(ack.now, ack.pipe);
        } else if expired && !self.idle_restart {
            self.save_cwnd();
            self.probe_rtt = ProbeRtt {
                cwnd: half_bdp.max(MIN_PIPE_SEGMENTS * u64::from(self.mss)),
                ..ProbeRtt::default()
            };
            self.state = BbrState::ProbeRtt;
            self.cycle.stop_probe();
            self.rounds.restart(self.delivered);
            self.handle_probe_rtt(ack.now, ack.pipe);
        }
        if ack.left_path() > 0 {
            self.idle_restart = false;
        }
    }

    fn handle_probe_rtt(&mut self, now: Instant, pipe: u32) {
        // Deliveries during the probe show nothing about the bandwidth.
        self.app_limited_until = (self.delivered + u64::from(pipe)).max(1);
        match self.probe_rtt.ends_at {
            None if u64::from(pipe) <= self.probe_rtt.cwnd.max(u64::from(self.cwnd.min(4 * self.mss))) => {
                self.probe_rtt.ends_at = Some(now + DURATION);
                self.probe_rtt.has_had_round = false;
                self.rounds.restart(self.delivered);
            }
            None => {}
            Some(_) => {
                self.probe_rtt.has_had_round |= self.rounds.start;
                if self.probe_rtt.has_had_round {
                    self.check_probe_rtt_done(now);
                }
            }
        }
    }

    pub(super) fn check_probe_rtt_done(&mut self, now: Instant) {
        if self.probe_rtt.ends_at.is_none_or(|ends_at| now <= ends_at) {
            return;
        }
        self.min_rtt.postpone(now);
        self.cwnd = self.cwnd.max(self.prior_cwnd);
        self.bounds.reset_shortterm();
        if self.full_pipe.reached {
            self.start_down(now);
            self.start_cruise();
        } else {
            self.state = BbrState::Startup;
        }
    }
}
