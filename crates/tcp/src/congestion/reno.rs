//! Reno congestion control (RFC 5681) with appropriate byte counting (RFC 3465).
//!
//! Slow start grows by the bytes acknowledged, congestion avoidance by one segment per window of
//! bytes acknowledged, congestion halves the window.

use super::{Acked, CongestionController};
use crate::time::Instant;

/// Most bytes by which one acknowledgement grows the window in slow start where transmissions are not
/// paced. RFC 9406 section 4.2 suggests 8 segments, Linux sets no limit; this is one super-segment,
/// because a peer behind a coalescing device acknowledges that much at once, and a smaller limit would
/// end exponential growth there.
pub(super) const SLOW_START_BURST: u32 = 64 << 10;

/// Reno's window.
#[derive(Clone, Debug)]
pub struct Reno {
    mss: u32,
    cwnd: u32,
    ssthresh: u32,
    /// Bytes acknowledged in congestion avoidance that have not grown the window yet.
    bytes_acked: u32,
    /// `cwnd` and `ssthresh` before the last reduction, for undo.
    before: Option<(u32, u32)>,
}

impl Reno {
    /// An initial window of `initial` bytes and segments of at most `mss` bytes.
    pub fn new(mss: u32, initial: u32) -> Self {
        let mss = mss.max(1);
        Reno { mss, cwnd: initial.max(mss), ssthresh: u32::MAX, bytes_acked: 0, before: None }
    }

    /// RFC 5681 equation 4, from cwnd instead of FlightSize: a window that was not used did not grow.
    fn reduce(&mut self) {
        self.before = Some((self.cwnd, self.ssthresh));
        self.ssthresh = (self.cwnd / 2).max(2 * self.mss);
        self.bytes_acked = 0;
    }
}

impl CongestionController for Reno {
    fn name(&self) -> &'static str {
        "reno"
    }

    fn cwnd(&self) -> u32 {
        self.cwnd
    }

    fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    fn set_mss(&mut self, mss: u32) {
        self.mss = mss.max(1);
        self.cwnd = self.cwnd.max(self.mss);
    }

    fn on_ack(&mut self, acked: &Acked) {
        if !acked.cwnd_limited {
            return;
        }
        let mut bytes = acked.bytes;
        if self.in_slow_start() {
            let room = self.ssthresh - self.cwnd;
            let grown = bytes.min(SLOW_START_BURST.max(8 * self.mss)).min(room);
            self.cwnd += grown;
            if grown < room {
                return;
            }
            bytes -= grown;
        }
        // RFC 5681 section 3.1: "increase cwnd by SMSS after cwnd bytes of new data are acknowledged".
        self.bytes_acked = self.bytes_acked.saturating_add(bytes);
        while self.bytes_acked >= self.cwnd {
            self.bytes_acked -= self.cwnd;
            self.cwnd = self.cwnd.saturating_add(self.mss);
        }
    }

    fn on_congestion(&mut self, _now: Instant) -> u32 {
        self.reduce();
        self.ssthresh
    }

    fn on_timeout(&mut self, _now: Instant, _in_flight: u32, first: bool) {
        if first {
            self.reduce();
        }
        self.cwnd = self.mss;
        self.bytes_acked = 0;
    }

    fn set_cwnd(&mut self, cwnd: u32) {
        self.cwnd = cwnd.max(self.mss);
    }

    fn on_idle(&mut self, _now: Instant, restart: u32) {
        self.cwnd = self.cwnd.min(restart.max(self.mss));
        self.bytes_acked = 0;
    }

    fn undo(&mut self, _now: Instant) {
        if let Some((cwnd, ssthresh)) = self.before.take() {
            self.cwnd = self.cwnd.max(cwnd);
            self.ssthresh = self.ssthresh.max(ssthresh);
        }
    }
}
