//! A window that never changes, for tests and for laboratory links with a known capacity.

use super::CongestionController;
use super::sample::{AckSample, CongestionEvent, RtoEvent};
use crate::time::Instant;

#[derive(Clone, Debug)]
pub(crate) struct Fixed {
    window: u32,
}

impl Fixed {
    /// Returns a window of `window` bytes; at least one, so that data can leave.
    pub(crate) fn new(window: u32) -> Self {
        Fixed { window: window.max(1) }
    }
}

impl CongestionController for Fixed {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn cwnd(&self) -> u32 {
        self.window
    }

    /// Returns the window, so that a reduction has no effect.
    fn ssthresh(&self) -> Option<u32> {
        Some(self.window)
    }

    fn set_mss(&mut self, _mss: u32) {}

    fn start(&mut self, _window: u32) {}

    fn on_ack(&mut self, _ack: &AckSample) {}

    fn on_congestion(&mut self, _event: &CongestionEvent) {}

    fn on_rto(&mut self, _rto: &RtoEvent) {}

    fn on_spurious(&mut self, _now: Instant) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::CongestionState;

    #[test]
    fn fixed_window_never_changes() {
        let mut fixed = Fixed::new(30_000);
        fixed.start(1_000);
        fixed.on_rto(&RtoEvent { now: Instant::ZERO, pipe: 0, first: true, max_ssthresh: Some(1_000) });
        fixed.on_recovery_exit(CongestionState::Recovery);
        fixed.on_idle_restart(Instant::ZERO, 1_000);
        fixed.on_spurious(Instant::ZERO);
        assert_eq!((fixed.cwnd(), fixed.ssthresh(), fixed.in_slow_start()), (30_000, Some(30_000), false));
    }
}
