//! Limits on idle time: slow or silent clients must not keep their slots for ever.
//!
//! Bytes in either direction count as activity. So a client that waits for an answer is not idle while data
//! is on its way.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// The step that a connection did not complete in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timeout {
    /// The bytes before the payload: PROXY, SOCKS5 or CONNECT, or the first message of the hop.
    Header,
    /// The first byte of either end.
    FirstByte,
    /// Further bytes.
    Idle,
    /// Further bytes after one end had finished.
    HalfClosed,
}

impl Timeout {
    /// All steps, for metrics.
    pub(crate) const ALL: [Timeout; 4] =
        [Timeout::Header, Timeout::FirstByte, Timeout::Idle, Timeout::HalfClosed];

    /// Returns the name for metrics: the setting's name without its ending.
    pub fn name(self) -> &'static str {
        match self {
            Timeout::Header => "header",
            Timeout::FirstByte => "first_byte",
            Timeout::Idle => "idle",
            Timeout::HalfClosed => "half_closed",
        }
    }
}

/// The limits. Zero switches a limit off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// Limit for the bytes before the payload. At the frontend these are PROXY, SOCKS5 or CONNECT, timed from
    /// the accept. At the backend it is the first message, timed from its first byte; until that byte the
    /// limit is `connect_timeout` if that is longer. Zero is not permitted.
    pub header: Duration,
    /// Limit until the first byte in either direction.
    pub first_byte: Duration,
    /// Limit between bytes in either direction.
    pub idle: Duration,
    /// Limit between bytes of the end that continues after the other has finished.
    pub half_closed: Duration,
}

/// Time of the last activity of a connection, updated by both directions.
#[derive(Debug)]
pub(crate) struct Activity {
    began: Instant,
    /// Microseconds after `began`; 0 before any activity.
    last: AtomicU64,
    half_closed: AtomicBool,
    closing: Notify,
}

impl Activity {
    /// Starts the clock of a connection whose relay begins.
    pub(crate) fn begin() -> Activity {
        Activity {
            began: Instant::now(),
            last: AtomicU64::new(0),
            half_closed: AtomicBool::new(false),
            closing: Notify::new(),
        }
    }

    /// Records that bytes have moved.
    pub(crate) fn moved(&self) {
        let micros = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.last.store(micros.max(1), Ordering::Relaxed);
    }

    /// Records the end of a direction.
    pub(crate) fn ended(&self) {
        self.moved();
        self.half_closed.store(true, Ordering::Relaxed);
        self.closing.notify_one();
    }

    /// Resolves when a limit has passed; returns its name.
    pub(crate) async fn exceeds(&self, limits: &Timeouts) -> Timeout {
        loop {
            let last = self.last.load(Ordering::Relaxed);
            let (timeout, limit) = match (self.half_closed.load(Ordering::Relaxed), last) {
                (true, _) => (Timeout::HalfClosed, limits.half_closed),
                (false, 0) => (Timeout::FirstByte, limits.first_byte),
                (false, _) => (Timeout::Idle, limits.idle),
            };
            // If the limit of the first byte is off, the idle limit applies from the start.
            let (timeout, limit) = match (timeout, limit.is_zero()) {
                (Timeout::FirstByte, true) => (Timeout::Idle, limits.idle),
                _ => (timeout, limit),
            };
            if limit.is_zero() {
                self.closing.notified().await;
                continue;
            }
            let due = self.began + Duration::from_micros(last) + limit;
            tokio::select! {
                () = tokio::time::sleep_until(due) => {
                    if self.last.load(Ordering::Relaxed) == last {
                        return timeout;
                    }
                }
                () = self.closing.notified() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the limit that a connection exceeds, and the time in seconds. `moves` and `end` are the times,
    /// in seconds, at which bytes move and a direction ends.
    async fn exceeded(limits: Timeouts, moves: &[u64], end: Option<u64>) -> (Timeout, u64) {
        let activity = Activity::begin();
        let began = Instant::now();
        let happens = async {
            let mut events: Vec<(u64, bool)> = moves.iter().map(|at| (*at, false)).collect();
            events.extend(end.map(|at| (at, true)));
            events.sort_unstable();
            for (at, is_end) in events {
                tokio::time::sleep_until(began + Duration::from_secs(at)).await;
                if is_end { activity.ended() } else { activity.moved() }
            }
            std::future::pending::<()>().await;
        };
        let timeout = tokio::select! {
            timeout = activity.exceeds(&limits) => timeout,
            () = happens => unreachable!("it never ends"),
        };
        (timeout, began.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn each_state_of_a_connection_has_its_limit() {
        let limits = Timeouts::default();
        assert_eq!(exceeded(limits, &[], None).await, (Timeout::FirstByte, 60));
        assert_eq!(exceeded(limits, &[59], None).await, (Timeout::Idle, 3659));
        assert_eq!(exceeded(limits, &[1, 3000, 6000], None).await, (Timeout::Idle, 9600));
        assert_eq!(exceeded(limits, &[1], Some(2)).await, (Timeout::HalfClosed, 302));
        assert_eq!(exceeded(limits, &[1, 200, 400], Some(2)).await, (Timeout::HalfClosed, 700));
        assert_eq!(exceeded(limits, &[], Some(2)).await, (Timeout::HalfClosed, 302));
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_of_zero_is_none() {
        let none = Timeouts { first_byte: Duration::ZERO, ..Timeouts::default() };
        assert_eq!(exceeded(none, &[], None).await, (Timeout::Idle, 3600));
        let none = Timeouts { idle: Duration::ZERO, ..none };
        let day = Duration::from_secs(86_400);
        assert!(tokio::time::timeout(day, exceeded(none, &[1], None)).await.is_err());
        assert_eq!(exceeded(none, &[1], Some(4000)).await, (Timeout::HalfClosed, 4300));
        let none = Timeouts { half_closed: Duration::ZERO, ..none };
        assert!(tokio::time::timeout(day, exceeded(none, &[1], Some(2))).await.is_err());
    }
}
