//! The common part of loss-based controllers. A window grows outside of recovery and is reduced once per
//! window of data. During recovery Proportional Rate Reduction (RFC 9937) reduces it gradually.

use core::fmt::Debug;

use super::CongestionController;
use super::prr::{Prr, PrrBound};
use super::sample::{AckSample, CongestionEvent, RtoEvent, Transmission};
use crate::outcome::{CongestionState, Episode};
use crate::time::Instant;

/// The window of a loss-based controller: its growth and its reduction. All sizes are in bytes.
pub(crate) trait Window: Debug + Send {
    fn name(&self) -> &'static str;
    /// Returns the congestion window.
    fn cwnd(&self) -> u32;
    /// Returns the slow-start threshold; `u32::MAX` before the first congestion.
    fn ssthresh(&self) -> u32;
    /// Returns the largest payload of a segment.
    fn mss(&self) -> u32;
    /// Sets the largest payload, which has changed (path MTU, option size).
    fn set_mss(&mut self, mss: u32);
    /// Processes an acknowledgement of new data outside of a reduction.
    fn on_ack(&mut self, ack: &AckSample);
    /// Responds to congestion: computes the new `ssthresh` from `cwnd` and returns it, at least two segments.
    /// Leaves `cwnd` to PRR.
    fn on_congestion(&mut self, now: Instant) -> u32;
    /// Responds to a retransmission timeout: continues with one segment. `first`: see [`RtoEvent::first`].
    fn on_timeout(&mut self, now: Instant, first: bool);
    /// Sets the window, for PRR or at the end of recovery.
    fn set_cwnd(&mut self, cwnd: u32);
    /// Sets the slow-start threshold, which the path may limit.
    fn set_ssthresh(&mut self, ssthresh: u32);
    /// Limits the window to `restart` bytes, because nothing was sent for longer than the timeout (RFC 5681
    /// section 4.1).
    fn on_idle(&mut self, now: Instant, restart: u32);
    /// Restores the state before the last reduction, which was a mistake.
    fn undo(&mut self, now: Instant);
    /// True while the window grows exponentially.
    fn in_slow_start(&self) -> bool {
        self.cwnd() < self.ssthresh()
    }
}

/// A [`Window`] with Proportional Rate Reduction.
#[derive(Clone, Debug)]
pub(crate) struct LossBased<W> {
    window: W,
    prr: Prr,
}

impl<W: Window> LossBased<W> {
    pub(crate) fn new(window: W, bound: PrrBound) -> Self {
        LossBased { window, prr: Prr::new(bound) }
    }
}

impl<W: Window> CongestionController for LossBased<W> {
    fn name(&self) -> &'static str {
        self.window.name()
    }

    fn cwnd(&self) -> u32 {
        self.window.cwnd()
    }

    fn ssthresh(&self) -> Option<u32> {
        Some(self.window.ssthresh()).filter(|ssthresh| *ssthresh != u32::MAX)
    }

    fn in_slow_start(&self) -> bool {
        self.window.in_slow_start()
    }

    fn set_mss(&mut self, mss: u32) {
        self.window.set_mss(mss);
    }

    fn start(&mut self, window: u32) {
        self.window.set_cwnd(window);
    }

    fn on_sent(&mut self, sent: &Transmission) {
        self.prr.on_sent(sent.len);
    }

    fn on_ack(&mut self, ack: &AckSample) {
        match ack.state {
            CongestionState::Recovery | CongestionState::Cwr => {
                if ack.left_path() > 0 || ack.episode == Episode::Entered {
                    let cwnd = self.prr.on_ack(
                        ack.left_path(),
                        ack.pipe,
                        ack.una_advanced,
                        ack.newly_lost > 0,
                        self.window.mss(),
                    );
                    self.window.set_cwnd(cwnd);
                }
            }
            CongestionState::Open | CongestionState::Disorder | CongestionState::Loss => {
                if ack.may_grow {
                    self.window.on_ack(ack);
                }
            }
        }
    }

    fn on_congestion(&mut self, event: &CongestionEvent) {
        let mut ssthresh = self.window.on_congestion(event.now);
        if let Some(max) = event.max_ssthresh {
            ssthresh = ssthresh.min(max);
            self.window.set_ssthresh(ssthresh);
        }
        self.prr.enter(ssthresh, event.undelivered_before, event.delivered_while_held);
    }

    fn on_recovery_exit(&mut self, from: CongestionState) {
        let (cwnd, ssthresh) = (self.window.cwnd(), self.window.ssthresh());
        match from {
            CongestionState::Recovery => self.window.set_cwnd(ssthresh),
            CongestionState::Cwr => self.window.set_cwnd(cwnd.min(ssthresh)),
            CongestionState::Open | CongestionState::Disorder | CongestionState::Loss => {}
        }
        self.prr.exit();
    }

    /// Computes the window of PRR as if a segment had been delivered, because a timer brings no
    /// acknowledgement.
    fn on_reordering_timeout(&mut self, pipe: u32) {
        if self.prr.is_active() {
            let mss = self.window.mss();
            let cwnd = self.prr.on_ack(mss, pipe, false, true, mss);
            self.window.set_cwnd(cwnd);
        }
    }

    fn on_rto(&mut self, rto: &RtoEvent) {
        self.prr.exit();
        self.window.on_timeout(rto.now, rto.first);
        if let Some(max) = rto.max_ssthresh {
            self.window.set_ssthresh(self.window.ssthresh().min(max));
        }
        // Segments not declared lost are still in flight, so the window is one segment larger.
        self.window.set_cwnd(rto.pipe.saturating_add(self.window.mss()));
    }

    fn on_spurious(&mut self, now: Instant) {
        self.prr.exit();
        self.window.undo(now);
    }

    fn on_idle_restart(&mut self, now: Instant, restart: u32) {
        self.window.on_idle(now, restart);
    }
}
