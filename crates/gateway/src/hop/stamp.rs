//! Which run of a backend a first message is for, and when in that run it was made.
//!
//! A backend tells both in each answer: a random number that names the run, and how long it lasts. The frontend counts on
//! from there. Neither side asks what time it is, so a clock that is wrong or is set does no harm.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// A moment in the run of a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stamp {
    /// Names the run; 0 where none is known.
    pub epoch: u64,
    /// Milliseconds since it began, 48 bits.
    pub at: u64,
}

impl Stamp {
    /// Bytes on the wire.
    pub const LENGTH: usize = 14;

    /// As it is sent.
    pub fn encode(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..8].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[8..].copy_from_slice(&self.at.to_be_bytes()[2..]);
        bytes
    }

    /// As it arrived.
    pub fn decode(bytes: &[u8; Self::LENGTH]) -> Stamp {
        let [epoch @ .., _, _, _, _, _, _] = *bytes;
        let [_, _, _, _, _, _, _, _, a, b, c, d, e, f] = *bytes;
        Stamp { epoch: u64::from_be_bytes(epoch), at: u64::from_be_bytes([0, 0, a, b, c, d, e, f]) }
    }
}

/// What a frontend knows of the run of a backend.
#[derive(Debug, Default)]
pub struct BackendClock(Mutex<Option<(Stamp, Instant)>>);

impl BackendClock {
    /// The backend has just told.
    pub fn told(&self, stamp: Stamp, now: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((stamp, now));
    }

    /// The stamp for a message that leaves `now`.
    pub fn stamp(&self, now: Instant) -> Stamp {
        let Some((told, at)) = *self.0.lock().unwrap_or_else(PoisonError::into_inner) else {
            return Stamp::default();
        };
        let since = u64::try_from(now.saturating_duration_since(at).as_millis()).unwrap_or(u64::MAX);
        Stamp { at: told.at.saturating_add(since), ..told }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_stamp_arrives_as_it_was_sent() {
        let stamp = Stamp { epoch: 0x0123_4567_89ab_cdef, at: 0x0000_fedc_ba98_7654 };
        assert_eq!(Stamp::decode(&stamp.encode()), stamp);
    }

    #[test]
    fn the_frontend_counts_on_from_what_it_was_told() {
        let (clock, now) = (BackendClock::default(), Instant::now());
        assert_eq!(clock.stamp(now), Stamp { epoch: 0, at: 0 });
        clock.told(Stamp { epoch: 9, at: 1000 }, now);
        assert_eq!(clock.stamp(now + Duration::from_millis(250)), Stamp { epoch: 9, at: 1250 });
    }
}
