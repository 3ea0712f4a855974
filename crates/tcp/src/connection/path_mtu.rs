//! Segments that are too large for the path (RFC 4821 section 7.7): how a connection detects them, and how it
//! handles outstanding ones after its segments have become smaller.
//!
//! [`PathMtu`](crate::send::mtu::PathMtu) has the sizes and the search. With
//! [`MtuProbing::Early`](crate::config::MtuProbing::Early) a path is suspected once segments larger than the
//! base have left several times and none has arrived. The tail loss probe is then a small segment, and its
//! acknowledgement or the first timeout confirms the suspicion. If the suspicion is wrong, on a lossy path,
//! it costs a round trip with smaller segments: the earlier size is tried again at once.
//!
//! A full queue drops whole flights as well, but it drops packets of every size and lets some pass. So a
//! connection does not suspect the size if large packets of any connection of the path arrive that left at
//! the same time as its own or later. Each connection reports the arrival of large packets to the memory of
//! the path, and asks that memory before it suspects the size.

use alloc::vec::Vec;

use crate::connection::decision::Choice;
use crate::connection::{Connection, State};
use crate::outcome::{AckOutcome, CongestionState, Delivered, LossCause, LossOutcome, Origin};
use crate::path::{LARGE_PACKET_INTERVAL, LargePacket};
use crate::send::budget::Budget;
use crate::time::Instant;

/// Number of unacknowledged large segments from which on a tail loss probe is small; the large ones count as
/// dropped for their size if only smaller ones arrive.
const UNANSWERED: u32 = 3;
/// Number of unacknowledged large segments that count as dropped for their size at a timeout.
const UNANSWERED_AT_TIMEOUT: u32 = 2;

impl Connection {
    /// Returns the largest payload of a tail loss probe; it is small while the segment size is suspected.
    pub(crate) fn probe_limit(&self) -> u32 {
        let limit = self.payload_limit();
        match self.tx.suspects_size(UNANSWERED) {
            true => limit.min(self.tx.mtu.base_payload(self.tx.option_len())),
            false => limit,
        }
    }

    /// Judges the segment size when the retransmission timer has fired.
    pub(crate) fn suspect_size_at_timeout(&mut self, now: Instant) {
        let suspect = self.tx.suspects_size(UNANSWERED_AT_TIMEOUT);
        let head = self.tx.scoreboard.head().filter(|head| head.payload() >= self.tx.full_payload());
        let full_sized = head.map(|head| LargePacket {
            size: self.tx.mtu.packet(head.payload(), self.tx.option_len()),
            sent_at: head.sent_at,
        });
        let vanished = self.tx.mtu.on_timeout(full_sized, now);
        if suspect {
            self.tx.mtu.suspect(now);
        }
        if suspect || vanished {
            self.shrink_segments();
        }
    }

    /// Doubts the segment size if losses were found and only small segments have arrived.
    pub(crate) fn doubt_size(&mut self, loss: &LossOutcome) {
        if loss.newly_lost > 0 && self.tx.suspects_size(UNANSWERED) {
            self.tx.mtu.doubt();
        }
    }

    /// True if the connection has to report the arrival of a large packet, or doubts the segment size.
    #[inline]
    pub(crate) fn asks_path(&self) -> bool {
        self.path.large.is_some() || self.tx.mtu.is_in_doubt()
    }

    /// True if the retransmission timer is due and may suspect the segment size, which depends on arrivals at
    /// other connections.
    pub(crate) fn is_size_at_stake(&self, now: Instant) -> bool {
        self.tx.mtu.is_probing()
            && !self.is_opening()
            && !self.tx.scoreboard.is_empty()
            && self.tx.rto.deadline().is_some_and(|due| due <= now)
    }

    /// Takes the report about the arrival of a large packet.
    pub(crate) fn take_large_arrival(&mut self) -> Option<LargePacket> {
        self.path.large.take()
    }

    /// Suspects the segment size if it is in doubt and no large packet of another connection has arrived;
    /// `arrived`: the newest one that has.
    pub(crate) fn suspect_size(&mut self, arrived: Option<LargePacket>, now: Instant) {
        self.tx.mtu.on_arrival(arrived);
        if !self.tx.mtu.take_doubt() || !self.tx.suspects_size(UNANSWERED) {
            return;
        }
        self.tx.mtu.suspect(now);
        self.tx.recovery.on_flight_vanished(self.tx.scoreboard.nxt());
        if self.tx.rate.others.is_none_or(|others| !others.is_recovering) {
            self.tx.rate.congestion.on_recovery_exit(CongestionState::Recovery);
        }
        self.shrink_segments();
    }

    /// Processes the arrival of large segments: it is reported to the path, and may end a suspicion.
    pub(crate) fn record_large(&mut self, ack: &AckOutcome) {
        let is_due = self.tx.mtu.is_probing() && self.path.large_due <= ack.at;
        if !is_due && !self.tx.mtu.awaits_large() {
            return;
        }
        let options = self.tx.option_len();
        let is_large = |segment: &&Delivered| self.tx.mtu.is_large(segment.range.len(), options);
        if is_due {
            // An acknowledgement of a retransmission may be that of the original.
            let is_full = |segment: &&Delivered| {
                !segment.retransmitted && segment.range.len() >= self.tx.full_payload() && is_large(segment)
            };
            if let Some(last) = ack.delivered.iter().rfind(is_full) {
                let size = self.tx.mtu.packet(last.range.len(), options);
                self.path.large = Some(LargePacket { size, sent_at: last.sent_at });
                self.path.large_due = ack.at + LARGE_PACKET_INTERVAL;
            }
        }
        if self.tx.mtu.awaits_large()
            && ack.delivered.iter().any(|segment| is_large(&segment))
            && self.tx.mtu.on_large_arrived()
        {
            self.adopt_mss();
        }
    }

    /// Chooses lost data for a retransmission in a segment of the suspected size, once a smaller one is in
    /// flight.
    pub(crate) fn choose_retest(&self, budget: &Budget) -> Option<Choice> {
        let size = self.tx.mtu.retest(self.tx.option_len())?;
        // Our own SACK blocks would make it larger than intended.
        if budget.pipe < budget.mss || self.payload_limit() < self.tx.full_payload() {
            return None;
        }
        let range = self.tx.scoreboard.next_lost(size)?;
        let large = range.len() > self.tx.mss() && range.len() <= budget.of(Origin::Retransmit);
        large.then(|| self.again_as_probe(range))
    }

    /// Limits packets to `mtu` bytes, the new maximum of the device.
    pub(crate) fn limit_mtu(&mut self, mtu: u16) {
        if !self.tx.mtu.limit(mtu) {
            return;
        }
        if self.fast_open.opens_fast() && self.state == State::SynSent {
            self.on_syn_too_big();
        } else {
            self.shrink_segments();
        }
    }

    /// Retransmits the data of outstanding segments that are larger than the new MSS in smaller ones, without
    /// a congestion response (RFC 1191 section 6.4).
    pub(crate) fn shrink_segments(&mut self) {
        self.adopt_mss();
        let mss = self.tx.mss();
        let board = &mut self.tx.scoreboard;
        let too_big: Vec<_> =
            board.in_flight().filter(|record| record.payload() > mss).map(|record| record.range).collect();
        let newly_lost = too_big.into_iter().map(|range| board.mark_lost(range)).sum();
        board.resplit(mss);
        if newly_lost > 0 {
            self.tx.recovery.on_too_big(self.tx.scoreboard.nxt());
        }
        self.count_loss(&LossOutcome { newly_lost, lost_again: 0, cause: Some(LossCause::TooBig) });
    }
}
