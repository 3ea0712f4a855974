//! The timer of a driver.
//!
//! When a thread begins to wait, tokio passes its next deadline to the kernel as the limit of the wait. A
//! connection on a short path nearly always has a deadline within a millisecond, so the kernel would set and
//! cancel a timer for each wait. Therefore the driver uses a timerfd if packets come from a file descriptor.
//! That timer is set once and stays set until it fires, however often the thread waits. Devices in memory use
//! tokio's timer, which a test may pause.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use brisk_tcp::time::Instant;
use tokio::time::Sleep;

use crate::clock::Clock;
use system::SystemTimer;

/// A timer that fires at or after a deadline, never before it.
pub(crate) struct Timer {
    clock: Clock,
    source: Source,
    /// Time when the timer fires; `None` if it is not armed.
    armed: Option<Instant>,
    /// True if a task has polled the timer since it was armed, so that the timer will wake it.
    is_awaited: bool,
}

enum Source {
    Tokio(Pin<Box<Sleep>>),
    System(SystemTimer),
}

impl Timer {
    /// Creates a timer that is not armed: the system's if `of_system` and one is available, otherwise
    /// tokio's.
    pub(crate) fn new(clock: Clock, of_system: bool) -> Timer {
        let system = of_system.then(SystemTimer::new).and_then(Result::ok);
        Timer {
            clock,
            source: system.map_or_else(Source::tokio, Source::System),
            armed: None,
            is_awaited: false,
        }
    }

    /// Arms the timer for `deadline`; returns true if it has already fired. Only one task may call it, with
    /// the current time `now`.
    pub(crate) fn has_fired(
        &mut self,
        deadline: Option<Instant>,
        now: Instant,
        cx: &mut Context<'_>,
    ) -> bool {
        let Some(deadline) = deadline else {
            self.armed = None;
            return false;
        };
        loop {
            // An early wake-up costs less than setting the timer again at each change.
            match self.armed.filter(|armed| *armed <= deadline) {
                Some(armed) if self.is_awaited && now < armed => return false,
                Some(_) => {}
                None => {
                    self.source.set(deadline, self.clock);
                    self.armed = Some(deadline);
                }
            }
            let polled = self.source.poll(cx);
            self.is_awaited = polled.is_pending();
            match polled {
                Poll::Pending => return false,
                // The descriptor cannot be polled; tokio's timer replaces the system's.
                Poll::Ready(Err(_)) => (self.source, self.armed) = (Source::tokio(), None),
                Poll::Ready(Ok(())) if self.armed.take() == Some(deadline) => return true,
                Poll::Ready(Ok(())) => {}
            }
        }
    }
}

impl Source {
    fn tokio() -> Source {
        Source::Tokio(Box::pin(tokio::time::sleep(std::time::Duration::ZERO)))
    }

    fn set(&mut self, deadline: Instant, clock: Clock) {
        match self {
            Source::Tokio(sleep) => sleep.as_mut().reset(clock.wake_at(deadline)),
            Source::System(timer) => timer.set(deadline.saturating_since(clock.now())),
        }
    }

    /// Ready when the timer has fired. tokio notices this only after it has polled the tasks that were ready.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Source::Tokio(sleep) => sleep.as_mut().poll(cx).map(Ok),
            Source::System(timer) => timer.poll_fired(cx),
        }
    }
}

/// The timers of Linux.
#[cfg(all(feature = "packet-io", target_os = "linux"))]
mod system {
    pub(super) use brisk_packet_io::SystemTimer;
}

/// Other systems use tokio's timers.
#[cfg(not(all(feature = "packet-io", target_os = "linux")))]
mod system {
    use std::io;
    use std::task::{Context, Poll};
    use std::time::Duration;

    pub(super) enum SystemTimer {}

    impl SystemTimer {
        pub(super) fn new() -> io::Result<SystemTimer> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) fn set(&mut self, _: Duration) {
            match *self {}
        }

        pub(super) fn poll_fired(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            match *self {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    async fn fired(timer: &mut Timer, deadline: Instant) {
        let clock = timer.clock;
        poll_fn(|cx| {
            let now = clock.now();
            if timer.has_fired(Some(deadline), now, cx) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    #[tokio::test]
    async fn timer_fires_after_its_deadline_and_again() {
        for of_system in [false, true] {
            let clock = Clock::start();
            let mut timer = Timer::new(clock, of_system);
            assert_eq!(matches!(timer.source, Source::System(_)), of_system && cfg!(target_os = "linux"));
            for millis in [2, 3, 10] {
                let deadline = Instant::from_millis(millis);
                fired(&mut timer, deadline).await;
                assert!(clock.now() >= deadline);
            }
        }
    }

    #[tokio::test]
    async fn timer_can_be_moved_both_ways() {
        for of_system in [false, true] {
            let clock = Clock::start();
            let mut timer = Timer::new(clock, of_system);
            let (soon, later) = (Instant::from_millis(5), Instant::from_millis(20));
            // The deadline moves to a later time: the timer fires at the earlier time and is set again.
            assert!(!poll_fn(|cx| Poll::Ready(timer.has_fired(Some(soon), Instant::ZERO, cx))).await);
            fired(&mut timer, later).await;
            assert!(clock.now() >= later);
            // The deadline moves to an earlier time: the timer does not wait for the later time.
            let far = Instant::from_millis(60_000);
            assert!(!poll_fn(|cx| Poll::Ready(timer.has_fired(Some(far), Instant::ZERO, cx))).await);
            fired(&mut timer, Instant::from_millis(30)).await;
            assert!(clock.now() < Instant::from_millis(30_000));
        }
    }

    #[tokio::test]
    async fn timer_fires_again_after_it_fired_without_a_waiter() {
        for of_system in [false, true] {
            let mut timer = Timer::new(Clock::start(), of_system);
            let soon = Instant::from_millis(2);
            assert!(!poll_fn(|cx| Poll::Ready(timer.has_fired(Some(soon), Instant::ZERO, cx))).await);
            assert!(!poll_fn(|cx| Poll::Ready(timer.has_fired(None, Instant::ZERO, cx))).await);
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            let deadline = Instant::from_millis(30);
            let waiting = fired(&mut timer, deadline);
            tokio::time::timeout(std::time::Duration::from_secs(5), waiting).await.expect("it fires");
            assert!(timer.clock.now() >= deadline);
        }
    }

    #[tokio::test]
    async fn deadlines_in_the_past_and_beyond_the_clock_do_not_panic() {
        let mut timer = Timer::new(Clock::start(), true);
        fired(&mut timer, Instant::ZERO).await;
        let never = Instant::from_micros(u64::MAX);
        assert!(!poll_fn(|cx| Poll::Ready(timer.has_fired(Some(never), Instant::ZERO, cx))).await);
        fired(&mut timer, Instant::from_millis(1)).await;
    }
}
