//! The only clock of a runtime: tokio's monotonic clock, converted to the microseconds of `brisk_tcp::time`.
//!
//! The stacks cannot read a clock; this module creates their `Instant`s. So a test with tokio's paused time
//! also drives the stacks, if their devices are in memory (see `timer`).

use std::time::Duration;

use brisk_tcp::time::Instant;

/// Granularity of tokio's timers: the clock granularity G of RFC 6298 for the stack.
pub(crate) const GRANULARITY: Duration = Duration::from_millis(1);

/// A clock that converts between tokio's instants and those of one stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: tokio::time::Instant,
}

impl Clock {
    /// Starts a clock that reads zero now.
    pub(crate) fn start() -> Clock {
        Clock { origin: tokio::time::Instant::now() }
    }

    pub(crate) fn now(&self) -> Instant {
        let elapsed = tokio::time::Instant::now().saturating_duration_since(self.origin);
        Instant::from_micros(u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX))
    }

    /// Returns when to wake for `deadline`. Tokio rounds up to its own granularity, so the stack is never
    /// called early.
    pub(crate) fn wake_at(&self, deadline: Instant) -> tokio::time::Instant {
        let after = Duration::from_micros(deadline.as_micros());
        self.origin.checked_add(after).unwrap_or_else(|| self.origin + Duration::from_secs(86_400 * 365))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_clock_follows_the_time_of_tokio() {
        let clock = Clock::start();
        assert_eq!(clock.now(), Instant::ZERO);
        tokio::time::sleep_until(clock.wake_at(Instant::from_millis(250))).await;
        assert!(clock.now() >= Instant::from_millis(250));
        assert!(clock.now() < Instant::from_millis(252));
    }

    #[tokio::test]
    async fn deadline_beyond_the_clock_does_not_panic() {
        Clock::start().wake_at(Instant::from_micros(u64::MAX));
    }
}
