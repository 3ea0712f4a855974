//! Time as the core sees it: instants that the driver hands in.
//!
//! The core cannot name a clock. Every call that needs to know the time takes `now: Instant`, in
//! microseconds since an origin that the driver chose; the simulator hands in virtual time, the
//! runtime a monotonic clock. The type itself lives in `brisk-wire`, the one crate that the core,
//! the link models and the devices all see.

use core::ops::{Add, Div, Mul};

use brisk_wire::time::micros;
pub use brisk_wire::{Duration, Instant};

/// A span in whole microseconds, as [`Instant`] counts them: what is reckoned with at every acknowledgement. A [`Duration`]
/// counts seconds and nanoseconds, and to get there and back takes a division each time. Saturates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Micros(pub u64);

impl Micros {
    /// No time.
    pub const ZERO: Micros = Micros(0);

    /// So many milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Micros(millis.saturating_mul(1000))
    }

    /// The time from `earlier` to `later`, or zero if that is not their order.
    #[inline]
    pub const fn between(earlier: Instant, later: Instant) -> Self {
        Micros(later.as_micros().saturating_sub(earlier.as_micros()))
    }

    /// What is left of it after `other`, or zero.
    #[inline]
    pub const fn saturating_sub(self, other: Micros) -> Self {
        Micros(self.0.saturating_sub(other.0))
    }
}

impl From<Duration> for Micros {
    /// A fraction is cut off.
    #[inline]
    fn from(span: Duration) -> Self {
        Micros(micros(span))
    }
}

impl From<Micros> for Duration {
    #[inline]
    fn from(span: Micros) -> Self {
        Duration::from_micros(span.0)
    }
}

impl Add for Micros {
    type Output = Micros;

    #[inline]
    fn add(self, other: Micros) -> Micros {
        Micros(self.0.saturating_add(other.0))
    }
}

impl Mul<u64> for Micros {
    type Output = Micros;

    #[inline]
    fn mul(self, times: u64) -> Micros {
        Micros(self.0.saturating_mul(times))
    }
}

impl Div<u64> for Micros {
    type Output = Micros;

    #[inline]
    fn div(self, parts: u64) -> Micros {
        Micros(self.0 / parts)
    }
}

impl Add<Micros> for Instant {
    type Output = Instant;

    #[inline]
    fn add(self, span: Micros) -> Instant {
        Instant::from_micros(self.as_micros().saturating_add(span.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_whole_microseconds_and_saturate() {
        let (early, late) = (Instant::from_millis(1), Instant::from_micros(2500));
        assert_eq!(
            (Micros::between(early, late), Micros::between(late, early)),
            (Micros(1500), Micros::ZERO)
        );
        assert_eq!(early + Micros(1500), late);
        assert_eq!(late + Micros(u64::MAX), Instant::from_micros(u64::MAX));
        assert_eq!(Micros::from(Duration::from_nanos(1999)), Micros(1));
        assert_eq!(Micros::from(Duration::MAX), Micros(u64::MAX));
        assert_eq!(Duration::from(Micros::from_millis(7)), Duration::from_millis(7));
        assert_eq!((Micros(u64::MAX) * 2 + Micros(1), Micros(7) / 2), (Micros(u64::MAX), Micros(3)));
    }
}
