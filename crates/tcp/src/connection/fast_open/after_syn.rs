//! Data segments that follow the SYN at once, without waiting for the SYN-ACK. The request of a gateway hop
//! may be longer than a SYN can carry; with these segments it still arrives after half a round trip.
//!
//! TCP Fast Open does not do this (CoNEXT 2011, section 7.2), because firewalls and NATs drop segments that
//! precede the SYN-ACK and are not SYNs. Inside UDP there are no such devices, so both ends of such a hop may
//! agree to it by configuration ([`FastOpenConnect::data_after_syn`](crate::fast_open::FastOpenConnect),
//! [`FastOpenListen::data_after_syn`](crate::fast_open::FastOpenListen)). The segments have no ACK flag,
//! since there is nothing yet to acknowledge. A server without the agreement drops them (RFC 9293 section
//! 3.10.7.4: "if the ACK bit is off, drop the segment and return"), and a listener drops them if they arrive
//! before their SYN. Dropped ones are repaired like any lost segments.
//!
//! Where devices do inspect segments, SYNs still pass. A further SYN with the same sequence number and the
//! next part of the data looks like a retransmission to them
//! ([`FastOpenConnect::syn_parts`](crate::fast_open::FastOpenConnect); the option `Gentle::Part` has the
//! offset of each part). Devices also pass the answer as long as it acknowledges no more data than the first
//! SYN had. So the server delivers all parts, but at first acknowledges only the first one. The client's
//! acknowledgement, whose sequence number is after all parts, then shows every device the length of the data.
//! A server without the agreement treats the parts as repetitions of the SYN.
//!
//! The segments leave only if the SYN carries a cookie and data. The server accepts them only after a SYN
//! that opened its connection. Both sides limit them to an initial window.

use crate::connection::fast_open::client::Client;
use crate::connection::sender::Sender;
use crate::fast_open::FastOpenConnect;
use crate::seq_ranges::SeqRange;

/// Maximum number of segments after a SYN. Together with the SYN they are an initial window (RFC 6928).
const MAX_FOLLOWING: u8 = 9;

/// Number of SYNs with the parts of one request, including the first.
const MAX_PARTS: u8 = 4;

impl FastOpenConnect {
    /// True if the segments after the SYN are SYNs too.
    pub(crate) fn in_parts(&self) -> bool {
        self.syn_parts > 1
    }

    fn may_follow(&self) -> u8 {
        if self.in_parts() {
            self.syn_parts.min(MAX_PARTS) - 1
        } else {
            self.data_after_syn.min(MAX_FOLLOWING)
        }
    }
}

impl Client {
    /// Returns the data of the next segment after the SYN, before its answer arrives.
    pub(crate) fn next_after_syn(&self, tx: &Sender) -> Option<SeqRange> {
        if !self.carries_data() || self.followed >= self.connect.may_follow() {
            return None;
        }
        let start = tx.scoreboard.nxt();
        let len = tx.queue.end().since(start).min(self.syn_payload_limit(tx));
        (len > 0).then(|| SeqRange::with_len(start, len))
    }

    /// Counts a segment after the SYN that left.
    pub(crate) fn on_after_syn_sent(&mut self) {
        self.followed += 1;
    }
}
