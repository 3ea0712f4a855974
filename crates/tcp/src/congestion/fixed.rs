//! A window that never changes, for tests and for laboratory links whose capacity is known.

use super::{Acked, CongestionController};
use crate::time::Instant;

/// The fixed window.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Fixed {
    window: u32,
}

impl Fixed {
    /// A window of `window` bytes; at least one byte, so that something can leave.
    pub fn new(window: u32) -> Self {
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

    /// The window itself: a reduction to it reduces nothing.
    fn ssthresh(&self) -> u32 {
        self.window
    }

    fn set_mss(&mut self, _mss: u32) {}

    fn on_ack(&mut self, _acked: &Acked) {}

    fn on_congestion(&mut self, _now: Instant) -> u32 {
        self.window
    }

    fn on_timeout(&mut self, _now: Instant, _in_flight: u32, _first: bool) {}

    fn set_cwnd(&mut self, _cwnd: u32) {}

    fn set_ssthresh(&mut self, _ssthresh: u32) {}

    fn on_idle(&mut self, _now: Instant, _restart: u32) {}

    fn undo(&mut self, _now: Instant) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_moves_the_window() {
        let mut fixed = Fixed::new(30_000);
        assert_eq!(fixed.on_congestion(Instant::ZERO), 30_000);
        fixed.on_timeout(Instant::ZERO, 30_000, true);
        fixed.set_cwnd(1_000);
        fixed.on_idle(Instant::ZERO, 1_000);
        fixed.undo(Instant::ZERO);
        assert_eq!((fixed.cwnd(), fixed.ssthresh(), fixed.in_slow_start()), (30_000, 30_000, false));
    }
}
