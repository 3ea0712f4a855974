//! Keepalive probes (RFC 9293 section 3.8.4) and the user timeout (RFC 5482).

use crate::config::KeepaliveConfig;
use crate::time::{Duration, Instant};

/// Least silence and least interval (Linux: the same): none at all would be a probe without end.
const MIN: Duration = Duration::from_secs(1);

/// Action when the keepalive timer fires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeepaliveVerdict {
    /// Nothing is due.
    Wait,
    /// Send a probe: an empty segment one below SND.UNA.
    Probe,
    /// Too many probes went unanswered.
    Dead,
}

/// The keepalive timer of a connection; absent unless switched on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Keepalive {
    config: KeepaliveConfig,
    last_heard: Instant,
    unanswered: u32,
    deadline: Instant,
}

impl Keepalive {
    /// Starts counting silence from `now`.
    pub(crate) fn new(config: KeepaliveConfig, now: Instant) -> Self {
        let config = KeepaliveConfig {
            idle: config.idle.max(MIN),
            interval: config.interval.max(MIN),
            count: config.count,
        };
        Keepalive { config, last_heard: now, unanswered: 0, deadline: now + config.idle }
    }

    /// Something acceptable arrived.
    pub(crate) fn on_heard(&mut self, now: Instant) {
        self.last_heard = now;
        self.unanswered = 0;
        self.deadline = now + self.config.idle;
    }

    /// Probes that were not answered.
    pub(crate) fn unanswered(&self) -> u32 {
        self.unanswered
    }

    /// When the next probe is due.
    pub(crate) fn next_timeout(&self) -> Instant {
        self.deadline
    }

    /// The timer fired. While data is outstanding the retransmission timer watches the peer instead.
    pub(crate) fn on_timeout(
        &mut self,
        data_outstanding: bool,
        user_timeout: Option<Duration>,
        now: Instant,
    ) -> KeepaliveVerdict {
        if now < self.deadline {
            return KeepaliveVerdict::Wait;
        }
        if data_outstanding {
            self.deadline = now + self.config.idle;
            return KeepaliveVerdict::Wait;
        }
        let silent = now.saturating_since(self.last_heard);
        let given_up = match user_timeout {
            Some(limit) => self.unanswered > 0 && silent >= limit,
            None => self.unanswered >= self.config.count,
        };
        if given_up {
            return KeepaliveVerdict::Dead;
        }
        self.unanswered += 1;
        self.deadline = now + self.config.interval;
        KeepaliveVerdict::Probe
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: KeepaliveConfig =
        KeepaliveConfig { idle: Duration::from_secs(10), interval: Duration::from_secs(2), count: 3 };

    #[test]
    fn probes_follow_silence_and_end_in_death() {
        let mut keepalive = Keepalive::new(CONFIG, Instant::ZERO);
        assert_eq!(keepalive.on_timeout(false, None, Instant::from_millis(9_999)), KeepaliveVerdict::Wait);
        for at in [10, 12, 14] {
            assert_eq!(
                keepalive.on_timeout(false, None, Instant::from_millis(at * 1000)),
                KeepaliveVerdict::Probe
            );
        }
        assert_eq!(keepalive.on_timeout(false, None, Instant::from_millis(16_000)), KeepaliveVerdict::Dead);
    }

    #[test]
    fn an_answer_starts_the_silence_again() {
        let mut keepalive = Keepalive::new(CONFIG, Instant::ZERO);
        assert_eq!(keepalive.on_timeout(false, None, Instant::from_millis(10_000)), KeepaliveVerdict::Probe);
        keepalive.on_heard(Instant::from_millis(10_100));
        assert_eq!(keepalive.next_timeout(), Instant::from_millis(20_100));
    }

    #[test]
    fn outstanding_data_is_watched_by_the_retransmission_timer() {
        let mut keepalive = Keepalive::new(CONFIG, Instant::ZERO);
        assert_eq!(keepalive.on_timeout(true, None, Instant::from_millis(10_000)), KeepaliveVerdict::Wait);
    }

    #[test]
    fn a_probe_is_never_due_again_at_once() {
        let none = KeepaliveConfig { idle: Duration::ZERO, interval: Duration::ZERO, count: 3 };
        let mut keepalive = Keepalive::new(none, Instant::ZERO);
        assert_eq!(keepalive.next_timeout(), Instant::ZERO + MIN);
        let now = keepalive.next_timeout();
        assert_eq!(keepalive.on_timeout(false, None, now), KeepaliveVerdict::Probe);
        assert_eq!(keepalive.next_timeout(), now + MIN);
        assert_eq!(keepalive.on_timeout(true, None, now + MIN), KeepaliveVerdict::Wait);
        assert!(keepalive.next_timeout() > now + MIN);
    }
}
