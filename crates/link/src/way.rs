//! The two directions of a link.

/// Which way packets go; a link's two directions differ in nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// From the server's side (B) to the client's side (A).
    Down,
    /// From the client's side (A) to the server's side (B).
    Up,
}
