//! Points in time, which a driver (the program around a stack) passes to the crates without I/O.
//!
//! No such crate reads a clock: every call that needs the time takes `now: Instant`. The driver chooses the
//! origin: the start of the process, of the simulation or of a test. Only differences between instants
//! matter. The type is in this crate because all others depend on it.

use core::fmt;
use core::num::NonZeroU64;
use core::ops::{Add, AddAssign, Sub};

pub use core::time::Duration;

/// A point in time: microseconds since the driver's origin, at most `u64::MAX - 1`.
///
/// An `Option<Instant>` takes no more memory than an `Instant`, which matters because a connection has many
/// unset deadlines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(NonZeroU64);

impl Instant {
    /// The origin.
    pub const ZERO: Instant = Instant(NonZeroU64::MIN);

    /// Returns the instant `micros` microseconds after the origin.
    pub const fn from_micros(micros: u64) -> Self {
        Instant(NonZeroU64::MIN.saturating_add(micros))
    }

    /// Returns the instant `millis` milliseconds after the origin. Saturates at the maximum.
    pub const fn from_millis(millis: u64) -> Self {
        Instant::from_micros(millis.saturating_mul(1000))
    }

    /// Returns the microseconds since the origin.
    pub const fn as_micros(self) -> u64 {
        self.0.get() - 1
    }

    /// Returns the earlier of two deadlines, each of which may be unset.
    #[inline]
    pub fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
        // An unset deadline is 0 in memory; subtracting one wraps it to the maximum.
        let from_origin = |at: Option<Instant>| at.map_or(0, |at| at.0.get()).wrapping_sub(1);
        NonZeroU64::new(from_origin(a).min(from_origin(b)).wrapping_add(1)).map(Instant)
    }

    /// Returns the time from `earlier` to `self`, or zero if `earlier` is later.
    pub fn saturating_since(self, earlier: Instant) -> Duration {
        Duration::from_micros(self.0.get().saturating_sub(earlier.0.get()))
    }

    /// Returns `self - span`, or `None` if that is before the origin.
    pub fn checked_sub(self, span: Duration) -> Option<Instant> {
        self.as_micros().checked_sub(micros(span)).map(Instant::from_micros)
    }

    /// Returns `self - span`, or the origin if that is before it.
    pub fn saturating_sub(self, span: Duration) -> Instant {
        Instant::from_micros(self.as_micros().saturating_sub(micros(span)))
    }
}

impl Default for Instant {
    fn default() -> Self {
        Instant::ZERO
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Instant").field(&self.as_micros()).finish()
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    /// Saturates at the maximum, so that a huge span means "never".
    fn add(self, span: Duration) -> Instant {
        Instant(self.0.saturating_add(micros(span)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;

    /// See [`Instant::saturating_since`].
    fn sub(self, earlier: Instant) -> Duration {
        self.saturating_since(earlier)
    }
}

/// Returns the whole microseconds of `span`; a fraction is cut off. Saturates.
pub fn micros(span: Duration) -> u64 {
    span.as_secs().saturating_mul(1_000_000).saturating_add(u64::from(span.subsec_micros()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_saturate_at_zero() {
        let (early, late) = (Instant::from_millis(1), Instant::from_micros(2500));
        assert_eq!(late - early, Duration::from_micros(1500));
        assert_eq!(early - late, Duration::ZERO);
        assert_eq!(early.saturating_sub(Duration::from_secs(1)), Instant::ZERO);
        assert_eq!(early.checked_sub(Duration::from_secs(1)), None);
        assert_eq!(late.checked_sub(Duration::from_micros(1500)), Some(early));
    }

    #[test]
    fn earlier_returns_the_earlier_of_two_deadlines() {
        let (never, end) = (None, Some(Instant::from_micros(u64::MAX)));
        let (early, late) = (Some(Instant::ZERO), Some(Instant::from_millis(1)));
        for (a, b, first) in [
            (never, never, never),
            (never, end, end),
            (never, early, early),
            (late, early, early),
            (late, end, late),
            (late, late, late),
        ] {
            assert_eq!((Instant::earlier(a, b), Instant::earlier(b, a)), (first, first));
        }
    }

    #[test]
    fn additions_saturate_at_the_end_of_time() {
        let end = Instant::from_micros(u64::MAX);
        assert_eq!(Instant::from_millis(5) + Duration::MAX, end);
        assert_eq!(Instant::from_millis(u64::MAX), end);
        let mut now = Instant::ZERO;
        now += Duration::from_millis(3);
        assert_eq!(now.as_micros(), 3000);
    }
}
