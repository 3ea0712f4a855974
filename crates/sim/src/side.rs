//! The two sides of a path.

use brisk_link::Way;

/// The two sides of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Where clients are.
    A,
    /// Where servers are.
    B,
}

impl Side {
    /// Which way packets from this side go.
    pub(crate) fn away(self) -> Way {
        match self {
            Side::A => Way::Up,
            Side::B => Way::Down,
        }
    }
}
