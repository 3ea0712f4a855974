//! Time in the core: instants that the driver passes in.
//!
//! The core cannot read a clock. Every call that needs the time takes `now: Instant`, in microseconds since
//! an origin that the driver chose. The simulator passes virtual time, the runtime a monotonic clock. The
//! type is in `brisk-wire`, which the core, the link models and the devices all use.

use core::ops::{Add, Div, Mul};

use brisk_wire::time::micros;
pub use brisk_wire::{Duration, Instant};

/// A span of at most 71 minutes in whole microseconds, for round-trip times and for values that are
/// calculated from them at every acknowledgement. A [`Duration`] consists of seconds and nanoseconds, so each
/// conversion would take a division. It also takes four times the memory, and a connection has many spans.
/// Arithmetic saturates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Micros(pub u32);

impl Micros {
    /// The empty span.
    pub const ZERO: Micros = Micros(0);
    /// The longest span, 71 minutes.
    pub const MAX: Micros = Micros(u32::MAX);

    /// Returns a span of this many milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Micros::from_micros(millis.saturating_mul(1000))
    }

    /// Returns a span of this many microseconds.
    #[inline]
    pub const fn from_micros(micros: u64) -> Self {
        Micros(if micros > u32::MAX as u64 { u32::MAX } else { micros as u32 })
    }

    /// Returns the time from `earlier` to `later`; zero if they are in the other order.
    #[inline]
    pub const fn between(earlier: Instant, later: Instant) -> Self {
        Micros::from_micros(later.as_micros().saturating_sub(earlier.as_micros()))
    }

    /// Returns this span minus `other`; zero if `other` is longer.
    #[inline]
    pub const fn saturating_sub(self, other: Micros) -> Self {
        Micros(self.0.saturating_sub(other.0))
    }
}

/// One tick of the timestamp clock (RFC 7323), which is the resolution of a round trip measured by a
/// timestamp.
pub(crate) const TIMESTAMP_TICK: Micros = Micros::from_millis(1);

impl From<Duration> for Micros {
    /// Fractions of a microsecond are cut off.
    #[inline]
    fn from(span: Duration) -> Self {
        Micros::from_micros(micros(span))
    }
}

impl From<Micros> for Duration {
    #[inline]
    fn from(span: Micros) -> Self {
        Duration::from_micros(span.0.into())
    }
}

impl Add for Micros {
    type Output = Micros;

    #[inline]
    fn add(self, other: Micros) -> Micros {
        Micros(self.0.saturating_add(other.0))
    }
}

impl Mul<u32> for Micros {
    type Output = Micros;

    #[inline]
    fn mul(self, times: u32) -> Micros {
        Micros(self.0.saturating_mul(times))
    }
}

impl Div<u32> for Micros {
    type Output = Micros;

    #[inline]
    fn div(self, parts: u32) -> Micros {
        Micros(self.0 / parts)
    }
}

impl Add<Micros> for Instant {
    type Output = Instant;

    #[inline]
    fn add(self, span: Micros) -> Instant {
        Instant::from_micros(self.as_micros().saturating_add(span.0.into()))
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
        assert_eq!(Micros::between(early, Instant::from_micros(u64::MAX)), Micros::MAX);
        assert_eq!(Instant::from_micros(u64::MAX) + Micros(5), Instant::from_micros(u64::MAX));
        assert_eq!(Micros::from(Duration::from_nanos(1999)), Micros(1));
        assert_eq!(Micros::from(Duration::MAX), Micros::MAX);
        assert_eq!(Duration::from(Micros::from_millis(7)), Duration::from_millis(7));
        assert_eq!((Micros::MAX * 2 + Micros(1), Micros(7) / 2), (Micros::MAX, Micros(3)));
    }
}
