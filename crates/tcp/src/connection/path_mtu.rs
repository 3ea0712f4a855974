//! Detection of segments that are too large for the path (RFC 4821 section 7.7), and the handling of
//! outstanding ones after segments have become smaller.
//!
//! [`PathMtu`](crate::send::mtu::PathMtu) has the sizes and the search. With
//! [`MtuProbing::Early`](crate::config::MtuProbing::Early) a path is suspected once segments larger than the
//! base have left several times and none has arrived. The tail loss probe is then a small segment, and its
//! acknowledgement or the first timeout confirms the suspicion. A wrong suspicion, on a lossy path, costs a
//! round trip with smaller segments, because the earlier size is tried again at once.
//!
//! A full queue drops whole flights as well, but it drops packets of every size and lets some pass. The size
//! is therefore not suspected if a connection of the path delivers a large packet that left at about the same
//! time or later. Each connection reports the arrival of large packets to the memory of the path, and asks
//! that memory before it suspects the size.

use crate::connection::sender::Sender;
use crate::outcome::{CongestionState, Origin};
use crate::path::LargePacket;
use crate::send::budget::Budget;
use crate::seq_ranges::SeqRange;
use crate::time::Instant;

/// Number of unacknowledged large segments from which a tail loss probe is small. If only smaller segments
/// arrive, the large ones then count as dropped for their size.
const UNANSWERED: u32 = 3;
/// Number of unacknowledged large segments that count as dropped for their size at a timeout.
const UNANSWERED_AT_TIMEOUT: u32 = 2;

impl Sender {
    /// True if the segment size may be too large for the path: large segments have left `min` times without
    /// an arrival. A large segment of this connection that arrived earlier, or of another one that has
    /// arrived since, rules this out.
    fn suspects_size(&self, min: u32) -> bool {
        if !self.mtu.may_suspect() {
            return false;
        }
        let options = self.option_len;
        let (mut unanswered, mut newest) = (0_u32, LargePacket { size: 0, sent_at: Instant::ZERO });
        for record in self.scoreboard.records().filter(|r| self.mtu.is_large(r.payload(), options)) {
            if record.sacked {
                return false;
            }
            unanswered = unanswered.saturating_add(record.transmissions);
            newest.sent_at = newest.sent_at.max(record.sent_at);
            newest.size = newest.size.max(self.mtu.packet(record.payload(), options));
        }
        unanswered >= min && !self.mtu.is_cleared(newest)
    }

    /// Returns the largest payload of a tail loss probe if segments have at most `limit` bytes. It is small
    /// while the segment size is suspected.
    #[inline]
    pub(super) fn probe_limit(&self, limit: u32) -> u32 {
        match self.suspects_size(UNANSWERED) {
            true => limit.min(self.mtu.base_payload(self.option_len)),
            false => limit,
        }
    }

    /// Decides about the segment size when the retransmission timer has fired. Returns true if segments
    /// become smaller.
    pub(super) fn suspect_size_at_timeout(&mut self, now: Instant) -> bool {
        let suspect = self.suspects_size(UNANSWERED_AT_TIMEOUT);
        let head = self.scoreboard.head().filter(|head| head.payload() >= self.full_payload());
        let full_sized = head.map(|head| LargePacket {
            size: self.mtu.packet(head.payload(), self.option_len),
            sent_at: head.sent_at,
        });
        let vanished = self.mtu.on_timeout(full_sized, now);
        if suspect {
            self.mtu.suspect(now);
        }
        suspect || vanished
    }

    /// Doubts the segment size after losses, if only small segments have arrived.
    #[inline]
    pub(super) fn doubt_size(&mut self) {
        if self.suspects_size(UNANSWERED) {
            self.mtu.doubt();
        }
    }

    /// True if the retransmission timer is due and may suspect the segment size. The decision depends on
    /// arrivals at other connections.
    pub(crate) fn is_size_at_stake(&self, now: Instant) -> bool {
        self.mtu.is_probing()
            && !self.scoreboard.is_empty()
            && self.rto.deadline().is_some_and(|due| due <= now)
    }

    /// Suspects the segment size if it is in doubt and no large packet of another connection has arrived.
    /// `arrived` is the newest such packet. Returns true if segments become smaller.
    pub(super) fn suspect_size(&mut self, arrived: Option<LargePacket>, now: Instant) -> bool {
        self.mtu.on_arrival(arrived);
        if !self.mtu.take_doubt() || !self.suspects_size(UNANSWERED) {
            return false;
        }
        self.mtu.suspect(now);
        self.recovery.on_flight_vanished(self.scoreboard.nxt());
        if self.rate.others.is_none_or(|others| !others.is_recovering) {
            self.rate.congestion.on_recovery_exit(CongestionState::Recovery);
        }
        true
    }

    /// Returns lost data for a retransmission in a segment of the suspected size, once a smaller one is in
    /// flight. `limit`: the payload of a segment with the present options.
    pub(super) fn size_retest(&self, budget: &Budget, limit: u32) -> Option<SeqRange> {
        let size = self.mtu.retest(self.option_len)?;
        // With our own SACK blocks the segment would not have that size.
        if budget.pipe < budget.mss || limit < self.full_payload() {
            return None;
        }
        let range = self.scoreboard.next_lost(size)?;
        (range.len() > self.mss() && range.len() <= budget.of(Origin::Retransmit)).then_some(range)
    }
}
