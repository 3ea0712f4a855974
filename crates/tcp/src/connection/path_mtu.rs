//! Segments that are too large for the path (RFC 4821 section 7.7): how a connection detects them, and how it
//! handles outstanding ones after its segments have become smaller.
//!
//! [`PathMtu`](crate::send::mtu::PathMtu) owns sizes and search. With
//! [`MtuProbing::Early`](crate::config::MtuProbing::Early) a path is suspected once segments larger than the
//! base have left several times and none has arrived. The tail loss probe then leaves small enough to arrive,
//! and its acknowledgement or the first timeout confirms the suspicion. On a lossy path with room for large
//! segments a mistake costs a round trip with smaller ones: the earlier size is tried again at once.
//!
//! A full queue drops whole flights as well. It drops packets of every size and lets some pass, so a
//! connection is not suspicious while large packets of any connection of the path arrive that left when its
//! own did, or later. The stack knows of them: each connection reports the arrival of large packets to the
//! memory of the path, and asks that memory before it suspects the size.

use alloc::vec::Vec;

use crate::connection::decision::Choice;
use crate::connection::{Connection, State};
use crate::outcome::{AckOutcome, CongestionState, Delivered, LossCause, LossOutcome, Origin};
use crate::path::{LARGE_PACKET_INTERVAL, LargePacket};
use crate::send::budget::Budget;
use crate::time::Instant;

/// Number of unacknowledged large segments that makes a tail loss probe small; they count as dropped for
/// their size once only smaller ones arrive.
const UNANSWERED: u32 = 3;
/// Number of unacknowledged large segments that count as dropped for their size at a timeout.
const UNANSWERED_AT_TIMEOUT: u32 = 2;

impl Connection {
    /// Largest payload of a tail loss probe: one that arrives says more than one that may be too large.
    pub(crate) fn probe_limit(&self) -> u32 {
        let limit = self.payload_limit();
        match self.tx.suspects_size(UNANSWERED) {
            true => limit.min(self.tx.mtu.base_payload(self.tx.option_len())),
            false => limit,
        }
    }

    /// The retransmission timer fired; `full_sized`: time when the segment at SND.UNA left last, if it is
    /// full-sized.
    pub(crate) fn suspect_size_at_timeout(&mut self, full_sized: Option<Instant>, now: Instant) {
        let suspect = self.tx.suspects_size(UNANSWERED_AT_TIMEOUT);
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

    /// True if the retransmission timer is due. It judges the segment size by the arrivals of others, too.
    pub(crate) fn is_size_at_stake(&self, now: Instant) -> bool {
        self.tx.mtu.is_probing()
            && !self.is_opening()
            && !self.tx.scoreboard.is_empty()
            && self.tx.rto.deadline().is_some_and(|due| due <= now)
    }

    /// Returns the arrival of a large packet, once.
    pub(crate) fn take_large_arrival(&mut self) -> Option<LargePacket> {
        self.path.large.take()
    }

    /// Suspects the segment size if it is in doubt and no large packet of another connection has arrived;
    /// `arrived`: the newest that has.
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

    /// Large segments that arrive clear the path.
    pub(crate) fn record_large(&mut self, ack: &AckOutcome) {
        let is_due = self.tx.mtu.is_probing() && self.path.large_due <= ack.at;
        if !is_due && !self.tx.mtu.awaits_large() {
            return;
        }
        let options = self.tx.option_len();
        let is_large = |segment: &&Delivered| self.tx.mtu.is_large(segment.range.len(), options);
        if is_due {
            // An answer to a retransmission may be that to the original.
            let is_full = |segment: &&Delivered| {
                !segment.retransmitted && segment.range.len() >= self.tx.mss() && is_large(segment)
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

    /// Chooses lost data for a segment of the suspected size, once a smaller one is under way.
    pub(crate) fn choose_retest(&self, budget: &Budget) -> Option<Choice> {
        let size = self.tx.mtu.retest(self.tx.option_len())?;
        // Our own SACK blocks would make it larger than it is meant to be.
        if budget.pipe < budget.mss || self.payload_limit() < self.tx.mss() {
            return None;
        }
        let range = self.tx.scoreboard.next_lost(size)?;
        let large = range.len() > self.tx.mss() && range.len() <= budget.of(Origin::Retransmit);
        large.then(|| self.again_as_probe(range))
    }

    /// The device takes packets of at most `mtu` bytes from now on.
    pub(crate) fn limit_mtu(&mut self, mtu: u16) {
        if !self.tx.mtu.limit(mtu) {
            return;
        }
        if self.opens_fast() && self.state == State::SynSent {
            self.on_syn_too_big();
        } else {
            self.shrink_segments();
        }
    }

    /// The MSS shrank: what is outstanding in larger segments is lost and is sent again in smaller
    /// ones, without a congestion reaction (RFC 1191 section 6.4).
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
