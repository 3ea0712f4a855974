//! The server of Fast Open on one connection (RFC 7413 section 4.2): the content of its SYN-ACK, and the
//! segments that may leave and arrive before the handshake is complete.

use brisk_wire::{Cookie, FastOpen, SeqNum};

use crate::connection::sender::Sender;
use crate::fast_open::FastOpenOutcome;
use crate::time::{Instant, Micros, TIMESTAMP_TICK};

/// Number of segments that carry a one-time cookie.
const ONE_TIME_ANSWERS: u8 = 3;

/// Maximum bytes that may follow a SYN before the handshake is complete: an initial window of ten segments.
pub(crate) const MAX_AFTER_SYN: u32 = 14_600;

/// The decision of the stack about a SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SynAnswer {
    /// True if the SYN opens the connection.
    pub(crate) accepted: bool,
    pub(crate) outcome: FastOpenOutcome,
    /// The option of the SYN-ACK.
    pub(crate) option: Option<FastOpen>,
    /// True if only the SYN-ACK may leave until it is acknowledged.
    pub(crate) hold_response: bool,
    /// IP bytes that may leave until the SYN-ACK is acknowledged; `None` if only the windows limit them.
    pub(crate) allowance: Option<usize>,
    /// True if the application answers only authenticated requests, so that only the windows limit its
    /// responses.
    pub(crate) authenticated: bool,
    /// True if the client may request a one-time cookie.
    pub(crate) one_time: bool,
    /// Bytes that may follow the SYN before the handshake is complete.
    pub(crate) after_syn: u32,
}

#[derive(Debug)]
pub(crate) struct Server {
    answer: SynAnswer,
    /// True if a timeout of the SYN-ACK has reduced the congestion window.
    reduced: bool,
    one_time: OneTime,
    /// Bytes that may still follow the SYN.
    after_syn_left: u32,
    /// End of the data of the first SYN.
    first_end: SeqNum,
    /// True if further SYNs brought data that is not acknowledged yet.
    in_parts: bool,
}

/// Progress of the transfer of a one-time cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OneTime {
    /// The client did not request a cookie.
    Idle,
    /// The client requested a cookie, which the stack provides.
    Asked,
    /// The cookie is sent in this number of further segments.
    Given(Cookie, u8),
}

impl Server {
    /// Returns the state after a decision. `first_end` is the end of the data of the first SYN.
    pub(crate) fn new(answer: SynAnswer, first_end: SeqNum) -> Self {
        Server {
            answer,
            reduced: false,
            one_time: OneTime::Idle,
            after_syn_left: answer.after_syn,
            first_end,
            in_parts: false,
        }
    }

    pub(crate) fn is_accepted(&self) -> bool {
        self.answer.accepted
    }

    pub(crate) fn option(&self) -> Option<FastOpen> {
        self.answer.option
    }

    /// Records the end of the accepted data of the first SYN.
    pub(crate) fn on_syn_data(&mut self, end: SeqNum) {
        self.first_end = end;
    }

    pub(crate) fn sends_early(&self) -> bool {
        self.answer.accepted && !self.answer.hold_response
    }

    /// Returns the IP bytes that may still leave before the SYN-ACK is acknowledged; `None` if only the
    /// windows limit them.
    pub(crate) fn allowance(&self) -> Option<usize> {
        self.answer.allowance
    }

    pub(crate) fn is_authenticated(&self) -> bool {
        self.answer.authenticated
    }

    pub(crate) fn spend(&mut self, bytes: usize) {
        if let Some(allowance) = &mut self.answer.allowance {
            *allowance = allowance.saturating_sub(bytes);
        }
    }

    /// Processes a timeout of the SYN-ACK. Returns true if the congestion window must be reduced, which
    /// happens once.
    pub(crate) fn on_syn_ack_timeout(&mut self) -> bool {
        self.answer.accepted && !core::mem::replace(&mut self.reduced, true)
    }

    /// Evaluates the acknowledgement `ack` of a SYN-ACK that left several times, by its timer or in answer to
    /// a repeated SYN. The echoed timestamp, of a SYN-ACK that left `echoed` ago, shows which one was
    /// answered. If a retransmission was answered, the client was in SYN-SENT when earlier data arrived and
    /// dropped that data. The data is sent again at once, which is no sign of congestion. If the original was
    /// answered, the timeout was spurious. Returns true if such a timeout has reduced the window.
    pub(crate) fn resend_dropped_data(
        &self,
        ack: SeqNum,
        echoed: Option<Micros>,
        tx: &mut Sender,
        now: Instant,
    ) -> bool {
        let Some(syn_ack) = tx.scoreboard.head().copied().filter(|head| head.syn) else { return false };
        if !self.answer.accepted {
            return false;
        }
        let since_last = Micros::between(syn_ack.sent_at, now);
        // Both ends of the interval are rounded to timestamp ticks.
        let since = echoed.map_or(since_last, |echoed| echoed + TIMESTAMP_TICK * 2);
        let has_resent = tx.resend_dropped(|record| {
            !record.syn && Micros::between(record.sent_at, now) > since && record.range.start.ge(ack)
        });
        let is_original = || echoed.is_some_and(|echoed| echoed > since_last + TIMESTAMP_TICK);
        !has_resent && self.reduced && is_original()
    }

    /// True if `len` bytes after the SYN are accepted before the handshake is complete; they are deducted.
    pub(crate) fn takes_after_syn(&mut self, len: u32) -> bool {
        let takes = len > 0 && len <= self.after_syn_left;
        if takes {
            self.after_syn_left -= len;
        }
        takes
    }

    /// True if a part of `len` bytes that begins at `start`, from a further SYN, is accepted.
    pub(crate) fn takes_part(&mut self, start: SeqNum, len: u32) -> bool {
        let takes = !start.lt(self.first_end) && self.takes_after_syn(len);
        self.in_parts |= takes;
        takes
    }

    /// True if parts were accepted that may be acknowledged now that the handshake is complete.
    pub(crate) fn release_parts(&mut self) -> bool {
        core::mem::take(&mut self.in_parts)
    }

    /// Returns the acknowledgement number while parts wait for the end of the handshake; `None` if it is
    /// RCV.NXT.
    pub(crate) fn acknowledged(&self) -> Option<SeqNum> {
        self.in_parts.then_some(self.first_end)
    }
}

/// One-time cookies, which travel outside the handshake.
impl Server {
    /// Processes a request for a one-time cookie. Returns true if the client gets one.
    pub(crate) fn on_cookie_request(&mut self) -> bool {
        let grants = self.answer.one_time && self.one_time == OneTime::Idle;
        if grants {
            self.one_time = OneTime::Asked;
        }
        grants
    }

    pub(crate) fn wants_cookie(&self) -> bool {
        self.one_time == OneTime::Asked
    }

    pub(crate) fn give_cookie(&mut self, cookie: Cookie) {
        self.one_time = OneTime::Given(cookie, ONE_TIME_ANSWERS);
    }

    /// Returns the one-time cookie of the next segment.
    pub(crate) fn cookie(&self) -> Option<Cookie> {
        match self.one_time {
            OneTime::Given(cookie, 1..) => Some(cookie),
            OneTime::Idle | OneTime::Asked | OneTime::Given(_, 0) => None,
        }
    }

    pub(crate) fn on_cookie_sent(&mut self) {
        if let OneTime::Given(_, left) = &mut self.one_time {
            *left = left.saturating_sub(1);
        }
    }
}
