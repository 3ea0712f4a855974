//! The stamp of a first message. It identifies the run of the backend that the message is for, and the time
//! in that run when the message was sealed. A run lasts from the start of a backend to its end.
//!
//! A backend sends a stamp in each answer: a random number that identifies the run, and the age of the run.
//! The frontend adds the time that has passed since. Neither side reads a wall clock, so a wrong or changed
//! clock does no harm.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// A time in a run of a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stamp {
    /// Identifies the run; 0 if none is known.
    pub epoch: u64,
    /// Milliseconds since the run began, 40 bits.
    pub at: u64,
    /// True if the run accepts first messages with key pairs that serve for several connections
    /// ([`ephemeral`](super::ephemeral)). An older release sends a time of 48 bits. The first byte of that
    /// time, 0, is in the place of this flag, so the flag is then false.
    pub accepts_lasting: bool,
}

impl Stamp {
    /// Length on the wire, bytes.
    pub const LENGTH: usize = 14;

    /// Encodes the stamp.
    pub fn encode(self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..8].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[8..].copy_from_slice(&self.at.to_be_bytes()[2..]);
        bytes[8] = u8::from(self.accepts_lasting);
        bytes
    }

    /// Decodes a stamp.
    pub fn decode(bytes: &[u8; Self::LENGTH]) -> Stamp {
        let [epoch @ .., _, _, _, _, _, _] = *bytes;
        let [_, _, _, _, _, _, _, _, takes, b, c, d, e, f] = *bytes;
        let at = u64::from_be_bytes([0, 0, 0, b, c, d, e, f]);
        Stamp { epoch: u64::from_be_bytes(epoch), at, accepts_lasting: takes & 1 != 0 }
    }
}

/// The run and time of a backend, as a frontend knows them.
#[derive(Debug, Default)]
pub struct BackendClock(Mutex<Option<(Stamp, Instant)>>);

impl BackendClock {
    /// Stores the stamp that the backend has just sent.
    pub fn set(&self, stamp: Stamp, now: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((stamp, now));
    }

    /// Returns the stamp of a message that leaves `now`.
    pub fn stamp(&self, now: Instant) -> Stamp {
        let Some((last, at)) = *self.0.lock().unwrap_or_else(PoisonError::into_inner) else {
            return Stamp::default();
        };
        let since = u64::try_from(now.saturating_duration_since(at).as_millis()).unwrap_or(u64::MAX);
        Stamp { at: last.at.saturating_add(since), ..last }
    }

    /// Makes the next message use the form that every release accepts. Call it if the backend did not
    /// understand the last message, or if another backend may have replaced it.
    pub(crate) fn forget_lasting(&self) {
        if let Some((last, _)) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            last.accepts_lasting = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_stamp_arrives_as_it_was_sent() {
        for accepts_lasting in [false, true] {
            let stamp = Stamp { epoch: 0x0123_4567_89ab_cdef, at: 0x0000_00dc_ba98_7654, accepts_lasting };
            assert_eq!(Stamp::decode(&stamp.encode()), stamp);
        }
    }

    /// An older release reads 48 bits of milliseconds, which include the flag. It adds the time that has
    /// passed and sends the sum back, so the flag returns unchanged.
    #[test]
    fn time_of_a_peer_without_the_first_byte_is_read_correctly() {
        let last = Stamp { epoch: 9, at: 1000, accepts_lasting: true };
        let mut bytes = last.encode();
        let [.., a, b, c, d, e, f] = bytes;
        let later = u64::from_be_bytes([0, 0, a, b, c, d, e, f]) + 250;
        bytes[8..].copy_from_slice(&later.to_be_bytes()[2..]);
        assert_eq!(Stamp::decode(&bytes), Stamp { at: 1250, ..last });
        let from_it = Stamp { epoch: 9, at: 1000, accepts_lasting: false }.encode();
        assert_eq!(from_it[8..], 1000_u64.to_be_bytes()[2..]);
    }

    #[test]
    fn the_frontend_counts_on_from_the_reported_time() {
        let (clock, now) = (BackendClock::default(), Instant::now());
        assert_eq!(clock.stamp(now), Stamp::default());
        let last = Stamp { epoch: 9, at: 1000, accepts_lasting: true };
        clock.set(last, now);
        let later = now + Duration::from_millis(250);
        assert_eq!(clock.stamp(later), Stamp { at: 1250, ..last });
        clock.forget_lasting();
        assert_eq!(clock.stamp(later), Stamp { at: 1250, accepts_lasting: false, ..last });
    }
}
