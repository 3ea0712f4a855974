//! Counters of the stack: what went through it, and what was refused and why.

/// Counters over all connections of a stack since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StackStats {
    /// Packets that the device handed in.
    pub packets_in: u64,
    /// Packets handed to the device; a super-packet counts once.
    pub packets_out: u64,
}
