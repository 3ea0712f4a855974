//! Sequence numbers: 32 bits, ordered modulo 2^32 (RFC 9293 section 3.4).
//!
//! "Less than" is meaningful for numbers less than 2^31 apart. It is not a total order, so [`SeqNum`] does
//! not implement `Ord`, and the comparisons are methods.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A TCP sequence number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SeqNum(pub u32);

impl SeqNum {
    /// True if `self` comes before `other`.
    pub const fn lt(self, other: SeqNum) -> bool {
        self.diff(other) < 0
    }

    /// True if `self` comes before `other` or equals it.
    pub const fn le(self, other: SeqNum) -> bool {
        self.diff(other) <= 0
    }

    /// True if `self` comes after `other`.
    pub const fn gt(self, other: SeqNum) -> bool {
        self.diff(other) > 0
    }

    /// True if `self` comes after `other` or equals it.
    pub const fn ge(self, other: SeqNum) -> bool {
        self.diff(other) >= 0
    }

    /// Returns the later of the two.
    pub const fn max(self, other: SeqNum) -> SeqNum {
        if self.lt(other) { other } else { self }
    }

    /// Returns the earlier of the two.
    pub const fn min(self, other: SeqNum) -> SeqNum {
        if self.gt(other) { other } else { self }
    }

    /// Returns `self - earlier` in bytes, wrapping; `earlier` must not be later.
    pub const fn since(self, earlier: SeqNum) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Returns `self - other` in bytes with its sign, exact within 2^31.
    pub const fn diff(self, other: SeqNum) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }
}

impl Add<u32> for SeqNum {
    type Output = SeqNum;

    fn add(self, bytes: u32) -> SeqNum {
        SeqNum(self.0.wrapping_add(bytes))
    }
}

impl Sub<u32> for SeqNum {
    type Output = SeqNum;

    fn sub(self, bytes: u32) -> SeqNum {
        SeqNum(self.0.wrapping_sub(bytes))
    }
}

impl AddAssign<u32> for SeqNum {
    fn add_assign(&mut self, bytes: u32) {
        *self = *self + bytes;
    }
}

impl fmt::Display for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn order_holds_across_the_wrap() {
        let (before, after) = (SeqNum(u32::MAX - 9), SeqNum(10));
        assert!(before.lt(after) && before.le(after) && after.gt(before) && after.ge(before));
        assert_eq!(after.since(before), 20);
        assert_eq!(before.diff(after), -20);
        assert_eq!((before.max(after), before.min(after)), (after, before));
        assert_eq!(before + 20, after);
        assert_eq!(after - 20, before);
    }

    proptest! {
        #[test]
        fn comparison_agrees_with_distance(base: u32, distance in 1u32..0x8000_0000) {
            let (low, high) = (SeqNum(base), SeqNum(base) + distance);
            prop_assert_eq!(low.lt(high), distance < 0x8000_0000);
            prop_assert_eq!(high.since(low), distance);
            prop_assert_eq!(high - distance, low);
            prop_assert!(low.le(low) && low.ge(low) && !low.lt(low) && !low.gt(low));
        }
    }
}
