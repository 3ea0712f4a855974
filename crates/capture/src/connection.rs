//! One connection: its handshake, its two directions and its exchanges.

use serde::Serialize;

use crate::direction::Direction;
use crate::segment::Segment;

/// Maximum round-trip time of a handshake, ns; handshakes with a longer one are ignored.
const LONGEST_ROUND_TRIP: u64 = 10_000_000_000;

/// A request and its response. The request is the client's bytes up to the server's first byte; the response
/// is the server's bytes up to the client's next byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Exchange {
    /// Bytes from the client.
    pub request: u64,
    /// Bytes from the server.
    pub response: u64,
    /// True for the first exchange of a connection whose handshake is in the capture.
    pub fresh: bool,
    /// Round-trip time of the connection, ns, if it could be measured.
    pub round_trip: Option<u64>,
    /// Time from the first packet of the exchange (the SYN, if `fresh`) to the last byte of the response at
    /// the capture point, ns.
    pub took: u64,
}

/// The two parts of the path: round-trip times from the capture point to the server and to the client, ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Parts {
    /// Round-trip time between the capture point and the server.
    pub server: u64,
    /// Round-trip time between the capture point and the client.
    pub client: u64,
}

/// The handshake, as far as it is in the capture. Times in ns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Handshake {
    /// Time of the first SYN.
    pub syn: Option<u64>,
    /// Time of the first SYN-ACK.
    pub syn_ack: Option<u64>,
    /// Time of the client's first segment after the SYN-ACK.
    pub done: Option<u64>,
    /// Number of repeated SYNs and SYN-ACKs.
    pub repeated: u64,
    /// True if the SYN carried data.
    pub with_data: bool,
}

impl Handshake {
    /// Returns the parts of the path, unless a part of the handshake was repeated (Karn's algorithm).
    pub fn parts(&self) -> Option<Parts> {
        let (syn, syn_ack, done) = (self.syn?, self.syn_ack?, self.done?);
        let parts = Parts { server: syn_ack.checked_sub(syn)?, client: done.checked_sub(syn_ack)? };
        let sane = self.repeated == 0 && parts.server.saturating_add(parts.client) < LONGEST_ROUND_TRIP;
        sane.then_some(parts)
    }
}

/// A connection at the capture point. Direction 0 is the client's.
#[derive(Clone, Debug, Default)]
pub struct Connection {
    /// The handshake.
    pub handshake: Handshake,
    /// The direction from the client, and the direction from the server.
    pub directions: [Direction; 2],
    /// Time of the last segment, ns.
    pub last: u64,
    /// Initial sequence number of the client.
    opened_with: Option<u32>,
    closing: bool,
    current: Current,
}

#[derive(Clone, Copy, Debug, Default)]
struct Current {
    began: u64,
    ended: u64,
    request: u64,
    response: u64,
    number: u64,
}

impl Connection {
    /// True if this SYN opens another connection between the same ports.
    pub fn is_replaced_by(&self, segment: &Segment) -> bool {
        let another = self.opened_with.is_some_and(|seq| seq != segment.seq);
        segment.syn && segment.ack.is_none() && (another || self.closing)
    }

    /// Processes a segment. Returns the exchange that ends with it.
    pub fn take(&mut self, segment: &Segment, from_client: bool) -> Option<Exchange> {
        self.last = segment.at;
        self.closing |= segment.fin || segment.rst;
        self.shake_hands(segment, from_client);
        let round_trip = self.round_trip();
        let [client, server] = &mut self.directions;
        let (own, other) = if from_client { (client, server) } else { (server, client) };
        let new = own.sent(segment, round_trip);
        other.acknowledged(segment);
        self.exchange(segment, from_client, new)
    }

    /// Returns the round-trip time, ns: that of the handshake, or the sum of the minimum times to an
    /// acknowledgement in both directions.
    pub fn round_trip(&self) -> Option<u64> {
        let echoes = || Some(self.directions[0].min_echo?.saturating_add(self.directions[1].min_echo?));
        self.handshake.parts().map(|parts| parts.server.saturating_add(parts.client)).or_else(echoes)
    }

    /// Ends the exchange in progress and returns it.
    pub fn last_exchange(&mut self) -> Option<Exchange> {
        let Current { began, ended, request, response, number } = std::mem::take(&mut self.current);
        self.current.number = number + 1;
        let fresh = number == 0 && self.handshake.syn.is_some();
        let began = self.handshake.syn.filter(|_| fresh).unwrap_or(began);
        let took = ended.saturating_sub(began);
        (request > 0 && response > 0).then_some(Exchange {
            request,
            response,
            fresh,
            round_trip: self.round_trip(),
            took,
        })
    }

    fn shake_hands(&mut self, segment: &Segment, from_client: bool) {
        let handshake = &mut self.handshake;
        match (segment.syn, from_client) {
            (true, true) => {
                handshake.repeated += u64::from(handshake.syn.is_some());
                handshake.syn.get_or_insert(segment.at);
                handshake.with_data |= segment.len > 0;
                self.opened_with.get_or_insert(segment.seq);
            }
            (true, false) => {
                handshake.repeated += u64::from(handshake.syn_ack.is_some());
                handshake.syn_ack.get_or_insert(segment.at);
            }
            (false, true) if handshake.syn_ack.is_some() => {
                handshake.done.get_or_insert(segment.at);
            }
            _ => {}
        }
    }

    fn exchange(&mut self, segment: &Segment, from_client: bool, new: u64) -> Option<Exchange> {
        if new == 0 {
            return None;
        }
        let over = from_client && self.current.response > 0;
        let finished = if over { self.last_exchange() } else { None };
        let current = &mut self.current;
        if from_client {
            if current.request == 0 {
                current.began = segment.at;
            }
            current.request += new;
        } else {
            if current.request == 0 && self.handshake.with_data && current.number == 0 {
                // The request was on the SYN, and the server has accepted it.
                current.request = self.directions[0].bytes;
            }
            current.response += new;
            current.ended = segment.at;
        }
        finished
    }
}
