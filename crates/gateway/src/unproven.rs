//! Connections to a backend whose peers have not yet proven that they hold the key.
//!
//! Anyone can open such connections, so they do not count against `max_connections`. Their number has a limit
//! of its own. A further one displaces the oldest, so that silent peers cannot keep frontends out.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Range of the limit. Within it, the limit is `max_connections`.
const LIMITS: RangeInclusive<usize> = 256..=4096;

/// The connections whose peers have not proven anything yet.
#[derive(Debug)]
pub(crate) struct Unproven {
    max: usize,
    waiting: Mutex<ByAge>,
}

/// Connections in the order of their arrival. Dropping a sender displaces its connection.
#[derive(Debug, Default)]
struct ByAge {
    next: u64,
    displaced: BTreeMap<u64, oneshot::Sender<()>>,
}

/// The place of one connection until it is dropped.
#[derive(Debug)]
pub(crate) struct UnprovenPlace<'a> {
    of: &'a Unproven,
    number: u64,
    displaced: oneshot::Receiver<()>,
}

impl Unproven {
    /// Returns an empty list, with the limit for a backend that serves at most `max_connections`.
    pub(crate) fn new(max_connections: usize) -> Unproven {
        let max = max_connections.clamp(*LIMITS.start(), *LIMITS.end());
        Unproven { max, waiting: Mutex::default() }
    }

    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Adds a connection; displaces the oldest if there are too many.
    pub(crate) fn enter(&self) -> UnprovenPlace<'_> {
        let (displace, displaced) = oneshot::channel();
        let mut waiting = self.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.displaced.insert(number, displace);
        let oldest = if waiting.displaced.len() > self.max { waiting.displaced.pop_first() } else { None };
        // Dropping its sender wakes a task, which needs the lock.
        drop(waiting);
        drop(oldest);
        UnprovenPlace { of: self, number, displaced }
    }

    /// Locks the connections. A panic under the lock leaves them valid.
    fn lock(&self) -> MutexGuard<'_, ByAge> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnprovenPlace<'_> {
    /// Resolves when a later connection has displaced this one.
    pub(crate) async fn displaced(&mut self) {
        let _ = (&mut self.displaced).await;
    }
}

impl Drop for UnprovenPlace<'_> {
    fn drop(&mut self) {
        self.of.lock().displaced.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn is_displaced(place: &mut UnprovenPlace<'_>) -> bool {
        pin!(place.displaced()).poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    #[test]
    fn further_connection_displaces_the_oldest_of_those_that_are_left() {
        let unproven = Unproven::new(4);
        assert_eq!(unproven.max(), 256);
        let mut places: Vec<_> = (0..256).map(|_| unproven.enter()).collect();
        assert!(!places.iter_mut().any(is_displaced));
        drop(places.remove(0));
        let one = unproven.enter();
        assert!(!places.iter_mut().any(is_displaced), "another one has left");
        let two = unproven.enter();
        let displaced: Vec<usize> = (0..255).filter(|n| is_displaced(&mut places[*n])).collect();
        assert_eq!(displaced, [0]);
        drop((places, one, two));
        assert!(unproven.lock().displaced.is_empty());
    }

    #[test]
    fn limit_is_that_of_all_connections_within_a_range() {
        let limits = [1, 1000, 1_000_000].map(|max| Unproven::new(max).max());
        assert_eq!(limits, [256, 1000, 4096]);
    }
}
