//! Counters of one direction of a link.
//!
//! The counts balance: every packet that was offered, or created on the path, was delivered, dropped or
//! merged, or is still in flight.

/// Counts since the direction was created, in packets unless stated otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Handed to the direction.
    pub offered: u64,
    /// Bytes handed to the direction.
    pub offered_bytes: u64,
    /// Delivered at the far end.
    pub delivered: u64,
    /// Bytes delivered at the far end.
    pub delivered_bytes: u64,
    /// Dropped because the queue was full.
    pub dropped_queue: u64,
    /// Dropped by a loss model.
    pub dropped_loss: u64,
    /// Dropped (or answered) by a middlebox.
    pub dropped_middlebox: u64,
    /// Dropped because they exceeded the MTU.
    pub dropped_mtu: u64,
    /// Extra packets created by duplication.
    pub duplicated: u64,
    /// Extra packets created by a middlebox that splits.
    pub split: u64,
    /// Packets that no longer exist, because a middlebox merged them into a neighbour.
    pub coalesced: u64,
    /// Held back, so that later packets could overtake them.
    pub reordered: u64,
    /// Marked Congestion Experienced by the queue.
    pub marked: u64,
    /// Largest content of the queue, in bytes.
    pub max_queue_bytes: u64,
    /// Currently inside: queued, being serialised, in propagation, or held by a middlebox.
    pub in_flight: u64,
}

impl Counters {
    /// Returns the dropped packets, for any cause.
    pub fn dropped(&self) -> u64 {
        self.dropped_queue + self.dropped_loss + self.dropped_middlebox + self.dropped_mtu
    }

    /// True if the counts balance, which a direction guarantees.
    pub fn balanced(&self) -> bool {
        self.offered + self.duplicated + self.split
            == self.delivered + self.dropped() + self.coalesced + self.in_flight
    }
}
