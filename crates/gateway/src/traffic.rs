//! Statistics of the connections to a backend: the duration of their exchanges, and the bytes on the hop.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::access::Access;
use crate::history::percentile;
use crate::sums::Sums;

/// Limit of remembered exchanges.
const MAX: usize = 1024;
/// Time for which an exchange is remembered.
const MAX_AGE: Duration = Duration::from_secs(120);

/// The traffic over a path.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Time of the end of each of the last exchanges, and the number of round trips that it took.
    exchanges: Mutex<VecDeque<(Instant, f32)>>,
    sums: Mutex<Sums>,
}

impl Traffic {
    /// Records an exchange that ended `now`, on a path with this `round_trip`.
    pub(crate) fn exchanged(&self, took: Duration, round_trip: Duration, now: Instant) {
        if round_trip.is_zero() {
            return;
        }
        let mut exchanges = lock(&self.exchanges);
        if exchanges.len() >= MAX {
            exchanges.pop_front();
        }
        exchanges.push_back((now, (took.as_secs_f64() / round_trip.as_secs_f64()) as f32));
    }

    /// Records the end of a connection.
    pub(crate) fn ended(&self, access: &Access) {
        lock(&self.sums).add(access);
    }

    /// Returns the round trips per exchange in the last two minutes: p50 and p99.
    pub(crate) fn round_trips(&self, now: Instant) -> Option<[f64; 2]> {
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) <= MAX_AGE;
        let exchanges = lock(&self.exchanges);
        let mut recent: Vec<f32> =
            exchanges.iter().filter(|(at, _)| is_recent(at)).map(|(_, took)| *took).collect();
        drop(exchanges);
        recent.sort_by(f32::total_cmp);
        (!recent.is_empty()).then(|| [0.5, 0.99].map(|share| percentile(&recent, share)))
    }

    /// Returns the sums over ended connections.
    pub(crate) fn sums(&self) -> Sums {
        *lock(&self.sums)
    }
}

/// Locks a mutex. The value is valid even after a panic, because no code panics between two related changes.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchanges_of_the_last_two_minutes_are_counted_in_round_trips() {
        let (traffic, begin) = (Traffic::default(), Instant::now());
        let round_trip = Duration::from_millis(100);
        traffic.exchanged(Duration::from_secs(9), round_trip, begin);
        traffic.exchanged(Duration::from_secs(9), Duration::ZERO, begin);
        assert_eq!(traffic.round_trips(begin), Some([90.0, 90.0]));
        let later = begin + Duration::from_secs(121);
        assert_eq!(traffic.round_trips(later), None);
        for n in 1..=100 {
            traffic.exchanged(n * round_trip, round_trip, later);
        }
        assert_eq!(traffic.round_trips(later), Some([50.0, 99.0]));
    }
}
