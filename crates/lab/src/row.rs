//! One transaction as a row of a CSV file of results.

use std::time::Duration;

use brisk_sim::transaction::TransactionResult;
use serde::{Deserialize, Serialize};

/// One transaction of one arm. Times are in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Number of the transaction in the run.
    pub index: u64,
    /// Time to the last byte of the response; empty if it did not arrive.
    pub completion_us: Option<u64>,
    /// Time to the first byte of the response.
    pub first_byte_us: Option<u64>,
    /// IP bytes from the client.
    pub wire_up: u64,
    /// IP bytes from the server.
    pub wire_down: u64,
    /// Bytes of request and response.
    pub payload: u64,
    /// Segments that both ends sent, acknowledgements included.
    pub segments: u64,
    /// Packets dropped on the path.
    pub dropped: u64,
    /// Retransmitted segments.
    pub retransmits: u64,
    /// Retransmission timeouts, those of the handshake included.
    pub timeouts: u64,
    /// Timeouts of SYN and SYN-ACK.
    pub handshake_timeouts: u64,
    /// Fast recoveries.
    pub recoveries: u64,
    /// Window reductions that were undone.
    pub undos: u64,
    /// Repaired losses for which the window was reduced.
    pub masked_losses: u64,
    /// Tail loss probes.
    pub probes: u64,
    /// Losses repaired by a probe.
    pub repaired_by_probe: u64,
    /// Losses repaired by parity.
    pub repaired_by_parity: u64,
    /// Losses repaired by a copy.
    pub repaired_by_copy: u64,
    /// The server's retransmission timeout at the end.
    pub rto_us: Option<u64>,
    /// The server's smoothed round-trip time at the end.
    pub srtt_us: Option<u64>,
    /// Bytes that arrived for the plain flows on the same link.
    pub neighbour: u64,
    /// Lost packets of a burst as a bit mask, with the first packet in the lowest bit.
    pub lost_at: u64,
}

impl Row {
    /// Returns the row of transaction `index`.
    pub fn of(index: u64, result: &TransactionResult) -> Row {
        let us = |time: Option<Duration>| time.map(|time| time.as_micros() as u64);
        Row {
            index,
            completion_us: us(result.completion),
            first_byte_us: us(result.first_byte),
            wire_up: result.wire_bytes_up,
            wire_down: result.wire_bytes_down,
            payload: result.payload_bytes,
            segments: result.segments,
            dropped: result.dropped,
            retransmits: result.retransmits,
            timeouts: result.timeouts,
            handshake_timeouts: result.handshake_timeouts,
            recoveries: result.recoveries,
            undos: result.undos,
            masked_losses: result.masked_losses,
            probes: result.probes,
            repaired_by_probe: result.repaired_by_probe,
            repaired_by_parity: result.repaired_by_parity,
            repaired_by_copy: result.repaired_by_copy,
            rto_us: us(result.rto),
            srtt_us: us(result.srtt),
            neighbour: result.neighbour_bytes,
            lost_at: result.lost_at,
        }
    }
}
