//! What one connection did: counters and a snapshot of its estimates.

use crate::connection::State;
use crate::fast_open::{FastOpenOutcome, SynAckClass};
use crate::outcome::CongestionState;
use crate::time::{Duration, Instant};

/// Counters that a connection keeps while it lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// IP bytes sent, headers included, as they leave the host (super-segments counted as split).
    pub wire_bytes_out: u64,
    /// IP bytes received, headers included.
    pub wire_bytes_in: u64,
    /// Segments sent.
    pub segments_out: u64,
    /// Segments received.
    pub segments_in: u64,
    /// Payload bytes the peer acknowledged.
    pub payload_bytes_acked: u64,
    /// Payload bytes that arrived in order.
    pub payload_bytes_received: u64,
    /// Segments sent again because they were declared lost.
    pub retransmits: u64,
    /// Bytes of these.
    pub retransmitted_bytes: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// SYN or SYN-ACK retransmissions.
    pub handshake_retransmits: u64,
    /// Tail loss probes.
    pub probes: u64,
    /// Of these, probes that carried new data.
    pub probes_of_new_data: u64,
    /// Of these, probes that the peer reported as a duplicate: nothing had been lost.
    pub probes_spurious: u64,
    /// Reductions for a loss that was repaired before loss detection saw it.
    pub masked_losses: u64,
    /// Early retransmits (RFC 5827): losses that they declared.
    pub early_retransmits: u64,
    /// Losses that forward acknowledgement (FACK) declared.
    pub fack_losses: u64,
    /// Bytes whose retransmission was lost too.
    pub lost_again_bytes: u64,
    /// Receivers that took a SACK back.
    pub reneged: u64,
    /// Entries into fast recovery.
    pub recoveries: u64,
    /// Window reductions of any kind.
    pub reductions: u64,
    /// Reductions that were taken back because they had been a mistake.
    pub undos: u64,
    /// Segments that a probe brought to the peer: the original had been lost.
    pub repaired_by_probe: u64,
    /// Losses repaired by parity.
    pub repaired_by_parity: u64,
    /// Losses repaired by a copy.
    pub repaired_by_copy: u64,
    /// Copies and parity segments sent, bytes of payload.
    pub redundant_bytes: u64,
    /// DSACK blocks received.
    pub dsacks: u64,
    /// Segments that arrived out of order.
    pub out_of_order: u64,
    /// Segments refused: outside the window.
    pub out_of_window: u64,
    /// Segments refused by PAWS.
    pub paws: u64,
    /// Challenge ACKs sent.
    pub challenge_acks: u64,
    /// Zero-window probes sent.
    pub window_probes: u64,
    /// Payload bytes that arrived after this side had closed for reading.
    pub discarded_bytes: u64,
}

/// A snapshot of a connection.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ConnStats {
    /// RFC 9293 state.
    pub state: State,
    /// When the connection began.
    pub opened: Instant,
    /// When the handshake completed.
    pub established: Option<Instant>,
    /// Smoothed round-trip time.
    pub srtt: Option<Duration>,
    /// Its variation.
    pub rttvar: Duration,
    /// Least round-trip time of the last 300 s.
    pub min_rtt: Option<Duration>,
    /// Retransmission timeout in force.
    pub rto: Duration,
    /// Congestion window, bytes.
    pub cwnd: u32,
    /// Slow-start threshold, bytes; `u32::MAX` before the first congestion.
    pub ssthresh: u32,
    /// RFC 6675 pipe, bytes.
    pub pipe: u32,
    /// Largest payload of a segment.
    pub mss: u32,
    /// Peer's window, bytes.
    pub snd_wnd: u32,
    /// Our window, bytes.
    pub rcv_wnd: u32,
    /// Recovery state.
    pub recovery: CongestionState,
    /// Bytes written and not acknowledged.
    pub send_queue: usize,
    /// Bytes that can be read.
    pub receive_queue: usize,
    /// Reordering was seen on the path.
    pub reordering_seen: bool,
    /// Congestion control in use.
    pub congestion: &'static str,
    /// What became of Fast Open.
    pub fast_open: FastOpenOutcome,
    /// What the SYN-ACK said about it, on the side that asked for it. [`SynAckClass::Accepted`] is Linux's
    /// `TCPI_OPT_SYN_DATA`.
    pub syn_ack: Option<SynAckClass>,
    /// On the side that was asked: data of the SYN was taken.
    pub syn_data_taken: bool,
    /// The counters.
    pub counters: Counters,
}
