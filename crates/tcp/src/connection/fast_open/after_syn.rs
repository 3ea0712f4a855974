//! Data segments that follow the SYN at once, without waiting for the SYN-ACK: the request of a gateway hop
//! that is longer than a SYN can carry still arrives after half a round trip.
//!
//! TCP Fast Open does not do this (CoNEXT 2011, section 7.2): firewalls and NATs drop segments before the
//! SYN-ACK that are not SYNs. Inside UDP there are no such devices, so both ends of such a hop may agree to
//! it by configuration ([`FastOpenConnect::data_after_syn`](crate::fast_open::FastOpenConnect),
//! [`FastOpenListen::data_after_syn`](crate::fast_open::FastOpenListen)). The segments have no ACK flag,
//! since there is nothing yet to acknowledge. A server without the agreement drops them (RFC 9293 section
//! 3.10.7.4: "if the ACK bit is off, drop the segment and return"), and so does a listener if they arrive
//! before their SYN. Then they are lost segments like any other, and recovered as such.
//!
//! Where devices do inspect segments, SYNs still pass: a further SYN with the same sequence number and the
//! next part of the data looks like a retransmission to them
//! ([`FastOpenConnect::syn_parts`](crate::fast_open::FastOpenConnect); [`Gentle::Part`] has the offset of
//! each part). Devices also pass the answer as long as it acknowledges no more data than the first SYN had.
//! So the server delivers all parts but acknowledges only the first, until the client's acknowledgement,
//! whose sequence number is after all parts, has shown every device the length of the data. A server without
//! the agreement treats the parts as repetitions of the SYN.
//!
//! The segments leave only if the SYN carries data under a cookie, and the server accepts them only after a
//! SYN that opened its connection; both sides limit them to an initial window.

use brisk_wire::{Flags, Gentle, Options, SeqNum, TcpHeader};

use crate::connection::fast_open::client::Client;
use crate::connection::sender::Sender;
use crate::connection::{Connection, State};
use crate::fast_open::FastOpenConnect;
use crate::outcome::{Arrived, Origin, Sent};
use crate::seq_ranges::SeqRange;
use crate::time::Instant;

/// Number of segments after a SYN: with it they are an initial window (RFC 6928).
const MAX_FOLLOWING: u8 = 9;

/// Number of SYNs with the parts of one request, including the first.
const MAX_PARTS: u8 = 4;

impl FastOpenConnect {
    /// True if the segments after the SYN are SYNs too.
    pub(super) fn in_parts(&self) -> bool {
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
}

/// The client.
impl Connection {
    pub(crate) fn after_syn_header(&self, range: SeqRange, now: Instant) -> TcpHeader {
        let in_parts = self.fast_open.client().is_some_and(|client| client.connect.in_parts());
        let (seq, flags, options) = if in_parts {
            let offset = range.start.since(self.handshake.iss + 1);
            let options = Options { gentle: Some(Gentle::Part { offset }), ..self.syn_options(now) };
            (self.handshake.iss, Flags::SYN | self.ecn.syn_flags(), options)
        } else {
            let flags = if self.tx.queue.push_at(range) { Flags::PSH } else { Flags::default() };
            let timestamps = self.config.timestamps.then(|| self.rx.timestamps.option(now));
            (range.start, flags, Options { timestamps, ..Options::default() })
        };
        TcpHeader {
            src_port: self.tuple.local_port(),
            dst_port: self.tuple.remote_port(),
            seq,
            ack: SeqNum(0),
            flags,
            window: self.rx.window.syn_window(),
            urgent: 0,
            options,
        }
    }

    pub(crate) fn account_after_syn(&mut self, range: SeqRange, now: Instant) {
        if let Some(client) = self.fast_open.client_mut() {
            client.followed += 1;
        }
        self.tx.scoreboard.on_sent(&Sent {
            range,
            segment_size: range.len(),
            origin: Origin::New,
            syn: false,
            fin: false,
            at: now,
        });
        self.tx.queue.on_sent(range.end);
        self.tx.last_sent = now;
        self.counters.data_after_syn += u64::from(range.len());
    }
}

/// The server.
impl Connection {
    /// Processes a segment without ACK: data after the SYN that opened this connection, or nothing.
    pub(crate) fn take_after_syn(&mut self, segment: &Arrived<'_>, now: Instant) {
        let len = u32::try_from(segment.payload.len()).unwrap_or(u32::MAX);
        let other = Flags::SYN | Flags::RST | Flags::FIN | Flags::URG;
        if self.state == State::SynReceived
            && !segment.flags.intersects(other)
            && self.fast_open.server_mut().is_some_and(|server| server.takes_after_syn(len))
        {
            self.take_payload(segment, now);
        }
    }

    /// Processes a SYN that repeats the one that opened this connection, with a further part of its data;
    /// true if that is accepted.
    pub(crate) fn take_syn_part(&mut self, segment: &Arrived<'_>, now: Instant) -> bool {
        let Some(Gentle::Part { offset }) = segment.options.gentle else { return false };
        let start = self.handshake.irs + 1 + offset;
        let len = u32::try_from(segment.payload.len()).unwrap_or(u32::MAX);
        if !self.fast_open.server_mut().is_some_and(|server| server.takes_part(start, len)) {
            return false;
        }
        self.take_payload(&Arrived { seq: start, flags: Flags::PSH, ..*segment }, now);
        // The acknowledgement must wait until the handshake is complete.
        self.rx.on_ack_sent();
        true
    }
}
