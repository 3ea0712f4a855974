//! The two directions of a link.

/// Direction of packets on a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the server's side (B) to the client's side (A).
    Down,
    /// From the client's side (A) to the server's side (B).
    Up,
}
