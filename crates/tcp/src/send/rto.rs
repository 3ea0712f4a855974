//! The retransmission timer (RFC 6298 section 5): one deadline and its exponential backoff.
//!
//! What the timeout is before backoff comes from the [`RttEstimator`](super::rtt::RttEstimator);
//! what is done when it fires is decided by the connection.

use crate::config::RtoConfig;
use crate::time::{Duration, Instant};

/// The retransmission timer of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Rto {
    max: Duration,
    deadline: Option<Instant>,
    backoffs: u32,
}

impl Rto {
    /// A timer that is not running.
    pub(crate) fn new(config: &RtoConfig) -> Self {
        Rto { max: config.max, deadline: None, backoffs: 0 }
    }

    /// RFC 6298 5.1: "Every time a packet containing data is sent (including a retransmission), if
    /// the timer is not running, start it running so that it will expire after RTO seconds". `base`
    /// is the timeout before backoff.
    pub(crate) fn arm(&mut self, now: Instant, base: Duration) {
        if self.deadline.is_none() {
            self.restart(now, base);
        }
    }

    /// RFC 6298 5.3: "When an ACK is received that acknowledges new data, restart the
    /// retransmission timer so that it will expire after RTO seconds".
    pub(crate) fn restart(&mut self, now: Instant, base: Duration) {
        self.deadline = Some(now + self.current(base));
    }

    /// RFC 6298 5.2: "When all outstanding data has been acknowledged, turn off the retransmission
    /// timer".
    pub(crate) fn disarm(&mut self) {
        self.deadline = None;
    }

    /// When the timer fires; `None` if it is not running.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The timer fired: stops it and backs off. RFC 6298 5.5: "The host MUST set RTO <- RTO * 2".
    /// The caller starts it again with what it retransmits (5.6).
    pub(crate) fn on_expire(&mut self) {
        self.deadline = None;
        self.backoffs = self.backoffs.saturating_add(1);
    }

    /// Forgets the backoff: a new round-trip sample tells the timeout anew (Karn's algorithm).
    pub(crate) fn reset_backoff(&mut self) {
        self.backoffs = 0;
    }

    /// The timeout in force: `base` doubled per backoff, at most the configured maximum.
    pub(crate) fn current(&self, base: Duration) -> Duration {
        let factor = 1u32.checked_shl(self.backoffs).unwrap_or(u32::MAX);
        base.saturating_mul(factor).min(self.max)
    }

    /// Timeouts in a row without progress.
    pub(crate) fn backoffs(&self) -> u32 {
        self.backoffs
    }
}
