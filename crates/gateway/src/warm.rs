//! Connections to a backend that are opened in advance, for the case that SYNs cannot carry requests: Fast
//! Open is off on a side, or the path does not carry it. A request on an open connection takes one round
//! trip, as with Fast Open.
//!
//! A backend closes connections that stay silent for some seconds. So a connection is usable for less than
//! that, and the pool of [`POOL_SIZE`] connections is renewed all the time. An unused connection is reset;
//! the backend does not log connections without data.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use brisk_runtime::fast_open::OffReason;
use brisk_runtime::{FastOpenOutcome, TcpStream};

pub(crate) const POOL_SIZE: usize = 4;
/// Time for which a connection is usable. A backend closes a silent connection after the longer of its
/// `connect_timeout` and `header_timeout` (default 10 s), in an earlier release after five seconds.
const GOOD: Duration = Duration::from_secs(3);
/// Number of connections in a row without Fast Open after which the pool is needed.
const MAX_SLOW: u32 = 3;

/// The pool of a backend.
#[derive(Debug, Default)]
pub(crate) struct WarmPool {
    /// The oldest is first.
    waiting: Mutex<VecDeque<(TcpStream, Instant)>>,
    /// Connections in a row that could not use Fast Open.
    slow: AtomicU32,
}

impl WarmPool {
    /// Records the outcome of Fast Open on a new connection, which carries a request or belongs to the pool.
    pub(crate) fn learn(&self, outcome: FastOpenOutcome) {
        match outcome {
            // The next SYN may carry a request.
            FastOpenOutcome::Used | FastOpenOutcome::NoCookie | FastOpenOutcome::Off(OffReason::NoData) => {
                self.slow.store(0, Ordering::Relaxed);
            }
            FastOpenOutcome::Pending | FastOpenOutcome::Off(OffReason::OnTrial) => {}
            // Saturates, because a server may never use Fast Open.
            _ => self.slow.store(self.slow.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed),
        }
    }

    /// True if a request would wait for a handshake.
    pub(crate) fn is_needed(&self) -> bool {
        self.slow.load(Ordering::Relaxed) >= MAX_SLOW
    }

    /// Takes a usable connection, if there is one.
    pub(crate) fn take(&self, now: Instant) -> Option<TcpStream> {
        let mut waiting = self.lock();
        drop_old(&mut waiting, now);
        waiting.pop_front().map(|(stream, _)| stream)
    }

    /// True if there is a usable connection.
    pub(crate) fn has_usable(&self, now: Instant) -> bool {
        let mut waiting = self.lock();
        drop_old(&mut waiting, now);
        !waiting.is_empty()
    }

    /// Closes connections that are too old; returns how many are missing.
    pub(crate) fn missing(&self, now: Instant) -> usize {
        let mut waiting = self.lock();
        drop_old(&mut waiting, now);
        if !self.is_needed() {
            waiting.clear();
            return 0;
        }
        POOL_SIZE.saturating_sub(waiting.len())
    }

    /// Adds a new connection.
    pub(crate) fn put(&self, stream: TcpStream, now: Instant) {
        // Dropping it unused must be a reset, without a TIME-WAIT on either side.
        stream.set_linger(Some(Duration::ZERO));
        self.lock().push_back((stream, now));
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(TcpStream, Instant)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn drop_old(waiting: &mut VecDeque<(TcpStream, Instant)>, now: Instant) {
    waiting.retain(|(_, opened)| now.saturating_duration_since(*opened) < GOOD);
}

#[cfg(test)]
mod tests {
    use brisk_runtime::device::memory::MemoryDevice;
    use brisk_runtime::{Endpoint, TcpListener};

    use super::*;

    #[tokio::test]
    async fn a_connection_is_good_once_and_not_for_long() {
        let (a, b) = MemoryDevice::pair();
        let endpoint = |device, address: &str| {
            Endpoint::builder(Box::new(device)).address(address.parse().unwrap()).build().unwrap()
        };
        let (a, b) = (endpoint(a, "10.0.0.1"), endpoint(b, "10.0.0.2"));
        let listener = TcpListener::bind(&b, "10.0.0.2:80".parse().unwrap()).unwrap();
        let (warm, now) = (WarmPool::default(), Instant::now());
        assert_eq!(warm.missing(now), 0, "nobody needs it");
        for _ in 0..MAX_SLOW {
            assert_eq!(warm.missing(now), 0);
            warm.learn(FastOpenOutcome::Stripped);
            warm.learn(FastOpenOutcome::Off(OffReason::OnTrial));
        }
        assert_eq!(warm.missing(now), POOL_SIZE);
        for age in [0, 1] {
            let stream = a.connect(listener.local_addr()).await.unwrap();
            warm.put(stream, now + Duration::from_secs(age));
        }
        assert_eq!(warm.missing(now), POOL_SIZE - 2);
        assert!(warm.take(now + GOOD).is_some(), "the younger one is good");
        assert!(warm.take(now + GOOD).is_none(), "the older one is not, and it was taken once");
        warm.put(a.connect(listener.local_addr()).await.unwrap(), now);
        warm.learn(FastOpenOutcome::NoCookie);
        assert_eq!(warm.missing(now), 0, "the next SYN has a cookie");
        assert!(warm.take(now).is_none(), "with Fast Open there is no pool");
    }
}
