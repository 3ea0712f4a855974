//! The two sides of a path.

use brisk_link::Direction;

/// The two sides of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The clients' side.
    A,
    /// The servers' side.
    B,
}

impl Side {
    /// Returns the direction of packets that come from this side.
    pub(crate) fn away(self) -> Direction {
        match self {
            Side::A => Direction::Up,
            Side::B => Direction::Down,
        }
    }
}
