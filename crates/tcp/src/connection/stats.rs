//! Statistics of one connection: counters and a snapshot of its estimates.

use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

use crate::connection::decision::Data;
use crate::connection::observation::Observation;
use crate::connection::segment::Built;
use crate::connection::sender::Sender;
use crate::connection::{Connection, State};
use crate::fast_open::{FastOpenOutcome, SynAckClass};
use crate::mechanism::proactive::copies::Copies;
use crate::mechanism::{CopiesOff, GentleOutcome, ParityOff};
use crate::on_demand::{Initial, OnDemand};
use crate::outcome::{AckOutcome, CongestionState, Delivered, Dsack, DsackOf, Origin};
use crate::send::scoreboard::Record;
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant, Micros, TIMESTAMP_TICK};

/// Counters of a connection since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// IP bytes sent, headers included. A super-segment counts as the packets into which it is cut.
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
    /// Segments that the peer reported as arrived, the SYN or SYN-ACK and the FIN included.
    pub delivered_segments: u64,
    /// Of these, segments whose acknowledgement reported a congestion mark.
    pub delivered_segments_ce: u64,
    /// Segments with data or a FIN sent, whether for the first time or again.
    pub data_segments_out: u64,
    /// Segments declared lost.
    pub segments_lost: u64,
    /// Runs of consecutive lost segments.
    pub loss_runs: u64,
    /// Retransmissions that the peer reported as duplicates.
    pub retransmits_spurious: u64,
    /// Segments sent again because they were declared lost.
    pub retransmits: u64,
    /// Payload bytes of retransmissions.
    pub retransmitted_bytes: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// SYN or SYN-ACK retransmissions.
    pub handshake_retransmits: u64,
    /// Expiries of the ordinary timer of the SYN or SYN-ACK; most of them retransmit it.
    pub handshake_timeouts: u64,
    /// Copies of the SYN that left before an answer could arrive.
    pub syn_copies: u64,
    /// Payload bytes that left after the SYN, before its answer.
    pub data_after_syn: u64,
    /// Tail loss probes.
    pub probes: u64,
    /// Payload bytes that probes repeated.
    pub probe_bytes_again: u64,
    /// Tail loss probes that carried new data.
    pub probes_of_new_data: u64,
    /// Tail loss probes that the peer reported as duplicates: nothing had been lost.
    pub probes_spurious: u64,
    /// Reductions for a loss that was repaired before loss detection saw it.
    pub masked_losses: u64,
    /// Segments that early retransmit (RFC 5827) declared lost.
    pub early_retransmits: u64,
    /// Segments that forward acknowledgement (FACK) declared lost.
    pub fack_losses: u64,
    /// Bytes whose retransmission was lost too.
    pub lost_again_bytes: u64,
    /// Number of times the peer reneged: it discarded data that it had reported by SACK.
    pub reneged: u64,
    /// Entries into fast recovery.
    pub recoveries: u64,
    /// Window reductions of any kind.
    pub reductions: u64,
    /// Reductions that were undone because they were spurious.
    pub undos: u64,
    /// Segments that a tail loss probe delivered because the original was lost.
    pub repaired_by_probe: u64,
    /// Runs of lost bytes that parity rebuilt.
    pub repaired_by_parity: u64,
    /// Losses repaired by a copy.
    pub repaired_by_copy: u64,
    /// Copies and parity segments sent, bytes of payload.
    pub redundant_bytes: u64,
    /// Flights that the planner decided about.
    pub planned: u64,
    /// Of these, flights that got redundancy.
    pub planned_protected: u64,
    /// Copies sent.
    pub copies_sent: u64,
    /// Copies that arrived before their originals, so that their data was accepted.
    pub copies_used: u64,
    /// Copies that were dropped because their data had already arrived.
    pub copies_dropped: u64,
    /// Originals that were dropped because a copy had arrived before them.
    pub originals_dropped: u64,
    /// Segments dropped because their Gentle-Aggression option was malformed, or because they carried
    /// unexpected parity.
    pub gentle_dropped: u64,
    /// Reports of a repair or of a failure that no transmission of this end can have caused.
    pub gentle_spoofed: u64,
    /// Counters of Corrective.
    pub parity: ParityCounters,
    /// DSACK blocks received.
    pub dsacks: u64,
    /// Segments that arrived out of order, including segments that repeated others.
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

/// Counters of Corrective on a connection, in both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ParityCounters {
    /// Parity segments sent.
    pub sent: u64,
    /// Payload bytes of these segments.
    pub sent_bytes: u64,
    /// Groups for which no parity was sent because they had been delivered.
    pub unsent_delivered: u64,
    /// Groups for which no parity was sent because their segments no longer fitted the path.
    pub unsent_too_big: u64,
    /// Groups or single parities that were not sent because losses were being repaired, the peer's window was
    /// closed, or the allowance was exhausted.
    pub unsent_state: u64,
    /// Groups for which no parity was sent because of a queue on the path.
    pub unsent_queue: u64,
    /// Episodes of repairs that the peer reported.
    pub repairs_reported: u64,
    /// Failures that the peer reported.
    pub failures_reported: u64,
    /// Originals that arrived at the peer after they had been rebuilt.
    pub late_originals: u64,
    /// Repairs whose acknowledgement was dropped or rewritten on its way.
    pub ack_holes: u64,
    /// Time saved by repairs: from the report of each to the earliest possible acknowledgement of a
    /// retransmission.
    pub saved: Duration,
    /// Parity segments received.
    pub received: u64,
    /// Of these, parity segments that arrived when nothing was missing.
    pub needless: u64,
    /// Of these, parity segments that were dropped without a response.
    pub dropped: u64,
    /// Payload bytes rebuilt.
    pub repaired_bytes: u64,
    /// Repairs that failed because more bytes were missing than the parity can recover.
    pub failed_too_much: u64,
    /// Repairs that failed because bytes before the loss were no longer kept.
    pub failed_history: u64,
    /// Repairs that failed because the result did not match its checksum.
    pub failed_checksum: u64,
    /// Reason why this end no longer sends parity.
    pub tx_off: Option<ParityOff>,
    /// Reason why this end no longer accepts parity.
    pub rx_off: Option<ParityOff>,
}

/// Evaluates to a `$type` whose `$field`s are 0.
macro_rules! zero {
    ($type:ident { $($field:ident)* } { $($other:ident: $value:expr),* }) => {
        $type { $($field: 0,)* $($other: $value,)* }
    };
}

impl Initial for Counters {
    const INITIAL: Counters = zero!(
        Counters {
            wire_bytes_out wire_bytes_in segments_out segments_in payload_bytes_acked
            payload_bytes_received delivered_segments delivered_segments_ce data_segments_out segments_lost loss_runs
            retransmits_spurious retransmits retransmitted_bytes timeouts handshake_retransmits
            handshake_timeouts syn_copies data_after_syn probes probe_bytes_again
            probes_of_new_data probes_spurious masked_losses early_retransmits fack_losses
            lost_again_bytes reneged recoveries reductions undos repaired_by_probe
            repaired_by_parity repaired_by_copy redundant_bytes planned planned_protected
            copies_sent copies_used copies_dropped originals_dropped gentle_dropped
            gentle_spoofed dsacks out_of_order out_of_window paws challenge_acks window_probes
            discarded_bytes
        } { parity: ParityCounters::ZERO }
    );
    const SHARED: &'static Counters = &Self::INITIAL;
}

impl ParityCounters {
    const ZERO: ParityCounters = zero!(
        ParityCounters {
            sent sent_bytes unsent_delivered unsent_too_big unsent_state unsent_queue
            repairs_reported failures_reported late_originals ack_holes received needless
            dropped repaired_bytes failed_too_much failed_history failed_checksum
        } { saved: Duration::ZERO, tx_off: None, rx_off: None }
    );
}

/// The counters and the observations of a live connection. Every transfer changes the counters that are
/// stored here; the others are allocated on demand.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveStats {
    pub(crate) wire_bytes_out: u64,
    pub(crate) wire_bytes_in: u64,
    pub(crate) segments_out: u64,
    pub(crate) segments_in: u64,
    pub(crate) payload_bytes_acked: u64,
    pub(crate) payload_bytes_received: u64,
    pub(crate) delivered_segments: u64,
    pub(crate) data_segments_out: u64,
    /// The other counters; those above are 0 here.
    uncommon: OnDemand<Counters>,
    /// Events for the observer, if there is one.
    observations: Option<Vec<Observation>>,
}

impl LiveStats {
    pub(crate) fn record_observations(&mut self) {
        self.observations = Some(Vec::new());
    }

    #[inline]
    pub(crate) fn is_observed(&self) -> bool {
        self.observations.is_some()
    }

    /// Takes the observations since the last call.
    pub(crate) fn take_observations(&mut self) -> Vec<Observation> {
        self.observations.as_mut().map(core::mem::take).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn observe(&mut self, observation: Observation) {
        if let Some(observations) = &mut self.observations {
            observations.push(observation);
        }
    }

    /// Reports the state of recovery to observers.
    pub(crate) fn observe_recovery(&mut self, tx: &Sender) {
        let (state, congestion) = (tx.recovery.state(), &tx.rate.congestion);
        let ssthresh = congestion.ssthresh().unwrap_or(u32::MAX);
        self.observe(Observation::Recovery { state, cwnd: congestion.cwnd(), ssthresh });
    }

    pub(crate) fn release_memory(&mut self) {
        self.uncommon.release();
    }

    /// Counts the bytes on the wire. A super-packet counts as the segments into which it is cut, each with
    /// `headers` bytes of headers.
    #[inline]
    pub(crate) fn count_sent(&mut self, built: Built, packet_len: usize, headers: usize) {
        let (mut segments, mut bytes) = (1, packet_len);
        if let Some(size) = built.segment_size.map(usize::from) {
            segments = packet_len.saturating_sub(headers).div_ceil(size).max(1);
            bytes += (segments - 1) * headers;
        }
        if built.twice {
            (segments, bytes) = (2 * segments, 2 * bytes);
        }
        self.segments_out += segments as u64;
        self.wire_bytes_out += bytes as u64;
    }

    /// Counts a packet that arrived. A packet coalesced by a device counts as its original segments, each
    /// with its own headers.
    #[inline]
    pub(crate) fn count_arrival(&mut self, packet_len: usize, payload_len: usize, segment_size: usize) {
        self.wire_bytes_in += packet_len as u64;
        if payload_len > segment_size {
            let more = payload_len.div_ceil(segment_size.max(1)) - 1;
            let headers = packet_len.saturating_sub(payload_len);
            self.wire_bytes_in += (more * headers) as u64;
        }
    }

    /// Counts spurious probes, and the segments that a probe delivered. The original, not the probe, was
    /// delivered if the answer to the probe came too early or echoes a timestamp older than the probe.
    #[inline]
    pub(crate) fn count_probes(&mut self, ack: &AckOutcome, min_rtt: Option<Micros>) {
        if self.probes == 0 {
            return;
        }
        let spurious = ack.dsack.is_some_and(|dsack| dsack.of == DsackOf::TailLossProbe);
        self.probes_spurious += u64::from(spurious);
        let probed = |segment: &&Delivered| segment.origin == Origin::TailLossProbe && segment.retransmitted;
        let repaired = ack.delivered.iter().filter(probed).filter(|segment| {
            let age = Micros::between(segment.sent_at, ack.at);
            // The echo belongs to this segment only if the acknowledgement is cumulative.
            let echoed = ack.echoed_rtt.filter(|_| segment.range.end.le(ack.ack));
            let in_time = min_rtt.is_none_or(|min| age >= min);
            let copied = |dsack: &Dsack| dsack.of == DsackOf::Duplicate && dsack.range.covers(&segment.range);
            let in_time = in_time && !ack.dsack.as_ref().is_some_and(copied);
            !spurious && in_time && echoed.is_none_or(|echoed| echoed <= age + TIMESTAMP_TICK)
        });
        self.repaired_by_probe += repaired.count() as u64;
    }

    /// Counts a segment with data or a FIN; `fresh` if it includes new data.
    #[inline]
    pub(crate) fn count_data(&mut self, data: &Data, fresh: bool) {
        let segments = u64::from(data.payload_len().div_ceil(data.segment_size).max(1));
        let len = data.payload_len();
        self.data_segments_out += segments;
        if data.origin == Origin::Retransmit {
            self.retransmits += segments;
            self.retransmitted_bytes += u64::from(len);
        } else if data.origin == Origin::TailLossProbe {
            self.probes += 1;
            self.probes_of_new_data += u64::from(fresh);
            if !fresh {
                self.probe_bytes_again += u64::from(len);
            }
        }
    }

    pub(crate) fn snapshot(&self) -> Counters {
        Counters {
            wire_bytes_out: self.wire_bytes_out,
            wire_bytes_in: self.wire_bytes_in,
            segments_out: self.segments_out,
            segments_in: self.segments_in,
            payload_bytes_acked: self.payload_bytes_acked,
            payload_bytes_received: self.payload_bytes_received,
            delivered_segments: self.delivered_segments,
            data_segments_out: self.data_segments_out,
            ..*self.uncommon
        }
    }
}

/// The uncommon counters. Adding 0 to one of them would allocate them all.
impl Deref for LiveStats {
    type Target = Counters;

    fn deref(&self) -> &Counters {
        &self.uncommon
    }
}

impl DerefMut for LiveStats {
    fn deref_mut(&mut self) -> &mut Counters {
        &mut self.uncommon
    }
}

/// A snapshot of a connection.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct ConnStats {
    /// RFC 9293 state.
    pub state: State,
    /// Time at which the connection began.
    pub opened: Instant,
    /// Time at which the handshake completed.
    pub established: Option<Instant>,
    /// Smoothed round-trip time.
    pub srtt: Option<Duration>,
    /// Round-trip time variation.
    pub rttvar: Duration,
    /// Minimum round-trip time of the last 200 to 300 s.
    pub min_rtt: Option<Duration>,
    /// Retransmission timeout in force.
    pub rto: Duration,
    /// Congestion window, bytes.
    pub cwnd: u32,
    /// Slow-start threshold, bytes; `u32::MAX` before the first congestion.
    pub ssthresh: u32,
    /// RFC 6675 pipe, bytes.
    pub pipe: u32,
    /// Maximum payload of a segment, bytes.
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
    /// Outcome of Fast Open.
    pub fast_open: FastOpenOutcome,
    /// Result of Fast Open in the SYN-ACK, at the client. [`SynAckClass::Accepted`] is Linux's
    /// `TCPI_OPT_SYN_DATA`.
    pub syn_ack: Option<SynAckClass>,
    /// True at the listener's end if data of the SYN was delivered.
    pub syn_data_taken: bool,
    /// Outcome of the negotiation of Corrective and Proactive.
    pub gentle: GentleOutcome,
    /// Reason why this end no longer sends copies.
    pub copies_off: Option<CopiesOff>,
    /// Lost segments, including SYNs: segments that were retransmitted, or that a probe, parity or a copy
    /// repaired. Segments that turned out to be only late are not counted.
    pub lost_segments: u64,
    /// The counters.
    pub counters: Counters,
}

/// A snapshot of the details beyond [`ConnStats`]: negotiated options, the outstanding segments by their
/// state, and the positions in both streams. The fields mean the same as in Linux's TCP_INFO, so that the
/// structure can be filled from them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
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
    /// Of these, segments reported by SACK; without SACK, by duplicate acknowledgements.
    pub sacked: u32,
    /// Of these, segments declared lost and not reported by SACK. They count until they are acknowledged,
    /// even if they were sent again.
    pub lost: u32,
    /// Of these, segments sent again.
    pub retransmitted: u32,
    /// Payload bytes that left with the SYN, or after it before its answer, that the peer did not accept and
    /// that were sent again.
    pub syn_data_again: u32,
    /// Number of times that an acknowledgement showed that a later segment had overtaken an earlier one.
    pub reorderings: u32,
    /// Maximum number of segments by which a segment was overtaken; 0 if none was.
    pub reordering_degree: u32,
    /// A packet with an ECN codepoint has arrived.
    pub ecn_seen: bool,
    /// An urgent byte has arrived and was not read.
    pub urgent: bool,
    /// Bytes that can be read before the urgent mark of the peer; `None` if no mark is ahead.
    pub before_mark: Option<u32>,
    /// Retransmission timeouts in a row, including timeouts of the handshake.
    pub timeouts_in_row: u32,
    /// Number of times that the retransmission timeout, or the interval of window probes, was doubled.
    pub backoffs: u32,
    /// Window or keepalive probes without an answer.
    pub unanswered_probes: u32,
    /// Estimate of the payload of the peer's segments, bytes.
    pub rcv_mss: u32,
    /// Delay of an acknowledgement; `None` before data has arrived.
    pub ack_delay: Option<Duration>,
    /// MSS that this end announced, bytes.
    pub advertised_mss: u32,
    /// Path MTU, bytes, not limited by the peer's MSS.
    pub path_mtu: u32,
    /// Bytes written and never sent.
    pub unsent: u32,
    /// Stream offset of the first byte that is not acknowledged, modulo 2^32.
    pub una_offset: u32,
    /// Stream offset of the first byte that was never sent, modulo 2^32.
    pub nxt_offset: u32,
    /// Free space of the send buffer, bytes.
    pub send_room: usize,
    /// True if the peer's window permits no more data.
    pub window_limited: bool,
    /// Bytes that a deferred SYN would carry if they were written now; `None` if it would carry none, or no
    /// SYN waits.
    pub syn_room: Option<u32>,
    /// Time at which data last left.
    pub last_sent: Instant,
    /// Rate of the pacer, bytes per second; `None` without pacing.
    pub pacing_rate: Option<u64>,
}

impl Connection {
    /// Returns a snapshot for the application.
    #[inline]
    pub(crate) fn stats(&self) -> ConnStats {
        ConnStats {
            state: self.state,
            opened: self.handshake.opened,
            established: self.handshake.established,
            srtt: self.tx.rtt.srtt().map(Duration::from),
            rttvar: self.tx.rtt.rttvar().unwrap_or_default().into(),
            min_rtt: self.tx.rtt.min_rtt().map(Duration::from),
            rto: self.tx.timeout().into(),
            cwnd: self.tx.rate.congestion.cwnd(),
            ssthresh: self.tx.rate.congestion.ssthresh().unwrap_or(u32::MAX),
            pipe: self.tx.scoreboard.pipe(),
            mss: self.tx.mss(),
            snd_wnd: self.tx.window.snd_wnd(),
            rcv_wnd: self.rx.rcv_wnd(),
            recovery: self.tx.recovery.state(),
            send_queue: self.tx.queue.len(),
            receive_queue: self.rx.queue.readable(),
            reordering_seen: self.tx.reordering_seen(),
            congestion: self.tx.rate.congestion.name(),
            fast_open: self.fast_open.outcome,
            syn_ack: self.fast_open.syn_ack_class(),
            syn_data_taken: self.fast_open.syn_data_taken,
            gentle: self.gentle.outcome(),
            copies_off: self.gentle.copier().and_then(Copies::off),
            lost_segments: self.all_losses().lost,
            counters: self.counters.snapshot(),
        }
    }

    pub(crate) fn info(&self) -> ConnInfo {
        let board = &self.tx.scoreboard;
        // Data of a SYN that was not taken counts as lost, and as retransmitted once it has left again.
        let client = self.fast_open.client().filter(|_| self.handshake.is_complete());
        let (first, followed) = (self.handshake.iss + 1, self.counters.data_after_syn as u32);
        let refused = client.map_or(SeqRange::default(), |client| client.refused_data(first, followed));
        // The sequence numbers of a long connection wrap.
        let acked = self.counters.payload_bytes_acked >= u64::from(refused.end.since(self.handshake.iss + 1));
        let repeating = !refused.is_empty() && !acked;
        let repeats = |record: &Record| repeating && record.range.start.lt(refused.end) && !record.sacked;
        let count =
            |test: &dyn Fn(&Record) -> bool| board.records().filter(|record| test(record)).count() as u32;
        // The SYN takes the number before the stream, so no byte is acknowledged before the SYN is.
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
            syn_room: self.fast_open.deferred_syn_capacity(&self.tx),
            last_sent: self.tx.last_sent,
            pacing_rate: self.tx.rate.pacer.rate(),
        }
    }
}
