//! Counters of one direction of a link.
//!
//! The counts close: what was offered or made on the way was delivered, dropped, merged, or is still on the
//! way.

/// Counts since the direction was made. Packets unless said otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Handed to the direction.
    pub offered: u64,
    /// Bytes handed to the direction.
    pub offered_bytes: u64,
    /// Taken out at the far end.
    pub delivered: u64,
    /// Bytes taken out at the far end.
    pub delivered_bytes: u64,
    /// Dropped because the queue was full.
    pub dropped_queue: u64,
    /// Dropped by a loss model.
    pub dropped_loss: u64,
    /// Dropped (or answered) by a middlebox.
    pub dropped_middlebox: u64,
    /// Dropped because they exceeded the MTU.
    pub dropped_mtu: u64,
    /// Extra packets made by duplication.
    pub duplicated: u64,
    /// Extra packets made by a middlebox that splits.
    pub split: u64,
    /// Packets that a middlebox merged into a neighbour, and which exist no more.
    pub coalesced: u64,
    /// Held back so that later packets could overtake them.
    pub reordered: u64,
    /// Marked Congestion Experienced by the queue.
    pub marked: u64,
    /// Largest content of the queue, in bytes.
    pub max_queue_bytes: u64,
    /// Now inside: queued, serialised, on the way, or held by a middlebox.
    pub in_flight: u64,
}

impl Counters {
    /// All packets dropped, whatever the cause.
    pub fn dropped(&self) -> u64 {
        self.dropped_queue + self.dropped_loss + self.dropped_middlebox + self.dropped_mtu
    }

    /// Whether the counts close; a direction always keeps this true.
    pub fn balanced(&self) -> bool {
        self.offered + self.duplicated + self.split
            == self.delivered + self.dropped() + self.coalesced + self.in_flight
    }
}
