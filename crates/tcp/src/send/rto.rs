//! The retransmission timer (RFC 6298 section 5): one deadline and its exponential backoff.
//!
//! The timeout before backoff comes from the [`RttEstimator`](super::rtt::RttEstimator); the connection
//! decides what to do when it fires.

use crate::config::RtoConfig;
use crate::time::{Duration, Instant, Micros};

/// The retransmission timer of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Rto {
    max: Micros,
    deadline: Option<Instant>,
    backoffs: u32,
}

impl Rto {
    pub(crate) fn new(config: &RtoConfig) -> Self {
        Rto { max: config.max.into(), deadline: None, backoffs: 0 }
    }

    /// Starts the timer. RFC 6298 5.1: "Every time a packet containing data is sent (including a
    /// retransmission), if the timer is not running, start it running so that it will expire after RTO
    /// seconds". `base` is the timeout before backoff.
    pub(crate) fn arm(&mut self, now: Instant, base: Micros) {
        if self.deadline.is_none() {
            self.restart(now, base);
        }
    }

    /// Restarts the timer. RFC 6298 5.3: "When an ACK is received that acknowledges new data, restart the
    /// retransmission timer so that it will expire after RTO seconds".
    pub(crate) fn restart(&mut self, now: Instant, base: Micros) {
        self.deadline = Some(now + self.current(base));
    }

    /// Sets the timer to `at`, regardless of the timeout.
    pub(crate) fn fire_at(&mut self, at: Instant) {
        self.deadline = Some(at);
    }

    /// Postpones the timer, because the timeout has grown by `longer`.
    pub(crate) fn postpone(&mut self, longer: Duration) {
        self.deadline = self.deadline.map(|deadline| deadline + longer);
    }

    /// Stops the timer. RFC 6298 5.2: "When all outstanding data has been acknowledged, turn off the
    /// retransmission timer".
    pub(crate) fn disarm(&mut self) {
        self.deadline = None;
    }

    /// Returns the deadline; `None` if the timer is not running.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Stops the fired timer and backs off. RFC 6298 5.5: "The host MUST set RTO <- RTO * 2". The caller
    /// starts it again (5.6).
    pub(crate) fn on_expire(&mut self) {
        self.deadline = None;
        self.backoffs = self.backoffs.saturating_add(1);
    }

    /// Stops the fired timer without backoff, for the early retries of a SYN and thin streams.
    pub(crate) fn on_expire_linear(&mut self) {
        self.deadline = None;
    }

    /// Ends the backoff: a new round-trip sample determines the timeout (Karn's algorithm).
    pub(crate) fn reset_backoff(&mut self) {
        self.backoffs = 0;
    }

    /// Returns the current timeout: `base` doubled per backoff, at most the configured maximum.
    pub(crate) fn current(&self, base: Micros) -> Micros {
        if self.backoffs == 0 {
            return base.min(self.max);
        }
        let factor = 1u32.checked_shl(self.backoffs).unwrap_or(u32::MAX);
        (base * factor).min(self.max)
    }

    pub(crate) fn set_max(&mut self, max: Duration) {
        self.max = max.into();
    }

    /// Returns the number of timeouts in a row without progress.
    pub(crate) fn backoffs(&self) -> u32 {
        self.backoffs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Micros = Micros::from_millis(300);

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn arming_a_running_timer_changes_nothing() {
        // RFC 6298 5.1: "if the timer is not running, start it running".
        let mut rto = Rto::new(&RtoConfig::LINUX);
        rto.arm(at(0), BASE);
        rto.arm(at(100), BASE);
        assert_eq!(rto.deadline(), Some(at(300)));
        rto.restart(at(100), BASE);
        assert_eq!(rto.deadline(), Some(at(400)));
        rto.disarm();
        assert_eq!(rto.deadline(), None);
    }

    #[test]
    fn each_expiry_doubles_the_timeout_up_to_the_maximum() {
        // RFC 6298 5.5: "The host MUST set RTO <- RTO * 2 ("back off the timer"). The maximum value
        // discussed in (2.5) above may be used to provide an upper bound to this doubling operation."
        let mut rto = Rto::new(&RtoConfig::LINUX);
        let mut timeouts = [0; 11];
        for timeout in &mut timeouts {
            *timeout = rto.current(BASE).0 / 1000;
            rto.arm(at(0), BASE);
            rto.on_expire();
            assert_eq!(rto.deadline(), None, "the retransmission restarts it");
        }
        assert_eq!(timeouts, [300, 600, 1200, 2400, 4800, 9600, 19_200, 38_400, 76_800, 120_000, 120_000]);
        assert_eq!(rto.backoffs(), 11);
    }

    #[test]
    fn endless_backoff_stays_at_the_maximum() {
        let mut rto = Rto::new(&RtoConfig::LINUX);
        for _ in 0..100 {
            rto.on_expire();
        }
        assert_eq!(rto.current(BASE), RtoConfig::LINUX.max.into());
        rto.reset_backoff();
        assert_eq!((rto.current(BASE), rto.backoffs()), (BASE, 0));
    }
}
