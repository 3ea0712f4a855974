//! Sums over connections, for ratios and reports.

use crate::access::Access;

/// Sums over the connections that have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) connections: u64,
    pub(crate) failed: u64,
    /// Payload bytes towards the origin.
    pub(crate) up: u64,
    /// Payload bytes towards the client.
    pub(crate) down: u64,
    /// Payload bytes of the connections whose IP bytes are counted below. (The kernel's TCP does not count IP
    /// bytes.)
    pub(crate) payload: u64,
    /// IP bytes on the hop, sent by this side.
    pub(crate) wire_out: u64,
    /// IP bytes on the hop, received.
    pub(crate) wire_in: u64,
    /// Retransmitted payload bytes.
    pub(crate) retransmitted: u64,
    /// Payload bytes of parity and copies.
    pub(crate) redundant: u64,
    /// Segments with data that this side sent on the hop.
    pub(crate) segments: u64,
    /// Lost segments among them, including repaired ones.
    pub(crate) lost: u64,
    pub(crate) timeouts: u64,
    /// Losses repaired by a tail loss probe.
    pub(crate) by_probe: u64,
    /// Losses repaired by parity.
    pub(crate) by_parity: u64,
    /// Losses repaired by a copy.
    pub(crate) by_copy: u64,
}

impl Sums {
    /// Returns the share of lost segments.
    pub(crate) fn loss(&self) -> Option<f64> {
        (self.segments > 0).then(|| (self.lost as f64 / self.segments as f64).min(1.0))
    }

    /// Returns the IP bytes on the hop in both directions beyond the payload, per byte of payload.
    pub(crate) fn extra(&self) -> Option<f64> {
        let wire = (self.wire_out + self.wire_in) as f64;
        (self.payload > 0).then(|| (wire / self.payload as f64 - 1.0).max(0.0))
    }

    /// Adds a connection that has ended.
    pub(crate) fn add(&mut self, access: &Access) {
        self.connections += 1;
        self.failed += u64::from(access.end.is_failure());
        self.up += access.bytes_up;
        self.down += access.bytes_down;
        let Some(hop) = &access.hop else { return };
        self.payload += access.bytes_up + access.bytes_down;
        let counters = &hop.counters;
        for (sum, more) in [
            (&mut self.wire_out, counters.wire_bytes_out),
            (&mut self.wire_in, counters.wire_bytes_in),
            (&mut self.retransmitted, counters.retransmitted_bytes),
            (&mut self.redundant, counters.redundant_bytes),
            (&mut self.segments, counters.data_segments_out),
            (&mut self.lost, hop.lost_segments),
            (&mut self.timeouts, counters.timeouts),
            (&mut self.by_probe, counters.repaired_by_probe),
            (&mut self.by_parity, counters.repaired_by_parity),
            (&mut self.by_copy, counters.repaired_by_copy),
        ] {
            *sum += more;
        }
    }
}
