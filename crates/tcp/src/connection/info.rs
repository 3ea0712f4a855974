//! Diagnosis of a connection beyond [`ConnStats`](super::ConnStats): negotiated options, the outstanding
//! segments by their state, and the positions in both streams. The meanings are those of Linux's TCP_INFO, so
//! that a program which reads that structure can be served.

use crate::connection::Connection;
use crate::outcome::Origin;
use crate::send::scoreboard::Record;
use crate::time::{Duration, Instant};

/// A snapshot of the details.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnInfo {
    /// Every segment carries timestamps.
    pub timestamps: bool,
    /// Both ends use SACK.
    pub sack: bool,
    /// Both ends use ECN (RFC 3168).
    pub ecn: bool,
    /// Both ends scale their windows: the shifts of the peer's and of our own.
    pub scales: Option<(u8, u8)>,
    /// Segments outstanding, the SYN and the FIN included.
    pub unacked: u32,
    /// Of these, reported by SACK; without it, by duplicate acknowledgements.
    pub sacked: u32,
    /// Of these, declared lost and not reported by SACK; those that were sent again still count until
    /// they are acknowledged.
    pub lost: u32,
    /// Of these, sent again.
    pub retransmitted: u32,
    /// Payload bytes that left with the SYN, were not taken there, and were sent again.
    pub syn_data_again: u32,
    /// Acknowledgements that told of a segment overtaken by one sent later.
    pub reorderings: u32,
    /// How far a segment was overtaken at most, segments; 0 if none was.
    pub reordering_degree: u32,
    /// A packet with an ECN codepoint has arrived.
    pub ecn_seen: bool,
    /// An urgent byte has arrived and was not read.
    pub urgent: bool,
    /// Bytes that can be read in front of the peer's urgent mark; `None` if none is ahead.
    pub before_mark: Option<u32>,
    /// Retransmission timeouts in a row, those of the handshake included.
    pub timeouts_in_row: u32,
    /// How often the retransmission timeout, or the time between two window probes, is doubled.
    pub backoffs: u32,
    /// Window or keepalive probes without an answer.
    pub unanswered_probes: u32,
    /// Estimate of the payload of the peer's segments, bytes.
    pub rcv_mss: u32,
    /// How long an acknowledgement is held back; `None` before data has arrived.
    pub ack_delay: Option<Duration>,
    /// Largest segment that we told the peer to send, bytes.
    pub advertised_mss: u32,
    /// Path MTU, bytes, whatever the peer takes.
    pub path_mtu: u32,
    /// Bytes written and never sent.
    pub unsent: u32,
    /// Stream offset of the first byte that is not acknowledged, modulo 2^32.
    pub una_offset: u32,
    /// Stream offset of the first byte that was never sent, modulo 2^32.
    pub nxt_offset: u32,
    /// Bytes that the send buffer takes now.
    pub send_room: usize,
    /// The peer's window lets nothing more go.
    pub window_limited: bool,
    /// Bytes that a deferred SYN would carry if they were written now; `None` if it would carry none, or
    /// there is no SYN waiting.
    pub syn_room: Option<u32>,
    /// When data last left.
    pub last_sent: Instant,
    /// Rate of the pacer, bytes per second; `None` without pacing.
    pub pacing_rate: Option<u64>,
}

impl Connection {
    /// A snapshot of the details.
    pub(crate) fn info(&self) -> ConnInfo {
        let board = &self.tx.scoreboard;
        // Data of a SYN that was not taken counts as lost, and as retransmitted once it has left again.
        let refused = self.refused_syn_data();
        // A long connection goes round all sequence numbers.
        let acked = self.counters.payload_bytes_acked >= u64::from(refused.end.since(self.handshake.iss + 1));
        let repeating = !refused.is_empty() && !acked;
        let repeats = |record: &Record| repeating && record.range.start.lt(refused.end) && !record.sacked;
        let count =
            |test: &dyn Fn(&Record) -> bool| board.records().filter(|record| test(record)).count() as u32;
        // The SYN takes the number before the stream; until it is acknowledged no byte is.
        let first = self.handshake.iss + 1;
        let offset = |seq: brisk_wire::SeqNum| if seq.gt(first) { seq.since(first) } else { 0 };
        let end = self.tx.queue.end();
        let unsent = self.tx.unsent();
        ConnInfo {
            timestamps: self.handshake.agreed.timestamps,
            sack: self.handshake.agreed.sack,
            ecn: self.ecn.is_active(),
            scales: self
                .handshake
                .agreed
                .window_scaling
                .then(|| (self.tx.window.scale(), self.rx.window.shift())),
            unacked: board.segments(),
            sacked: board.arrived_segments(),
            lost: count(&|record| record.missing || repeats(record)),
            syn_data_again: match repeating {
                true => board.nxt().min(refused.end).since(refused.start),
                false => refused.len(),
            },
            retransmitted: count(&|record| {
                let again = record.transmissions > 1 && record.origin != Origin::TailLossProbe;
                (again || repeats(record)) && !record.lost && !record.sacked
            }),
            reorderings: self.tx.rack.reordering().events,
            reordering_degree: self.tx.rack.reordering().span.div_ceil(self.tx.mss()),
            ecn_seen: self.ecn.has_seen_codepoint(),
            urgent: self.urgent.is_waiting(self.rx.rcv_nxt()),
            before_mark: self.urgent.distance(self.rx.read_next),
            timeouts_in_row: match self.handshake.established {
                Some(_) => self.tx.timeouts_in_row,
                None => self.handshake.syn.timeouts,
            },
            backoffs: self.tx.rto.backoffs().max(self.tx.window.persist_backoffs()),
            unanswered_probes: self
                .tx
                .window
                .unanswered_probes()
                .max(self.keepalive.as_ref().map_or(0, |keepalive| keepalive.unanswered())),
            rcv_mss: self.rx.ack.rcv_mss(),
            advertised_mss: u32::from(self.tx.advertised_mss()),
            ack_delay: self.rx.ack.delay(),
            path_mtu: self.tx.mtu.path(),
            unsent,
            una_offset: offset(board.una().min(end)),
            nxt_offset: offset(board.nxt().min(end)),
            send_room: self.tx.queue.free(),
            window_limited: unsent > 0
                && self.tx.window.usable(board.una(), board.nxt()) < self.tx.mss().min(unsent),
            syn_room: self.deferred_syn_room(),
            last_sent: self.tx.last_sent,
            pacing_rate: self.tx.rate.pacer.rate(),
        }
    }
}
