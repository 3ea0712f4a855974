//! The server of Fast Open on one connection: the content of its SYN-ACK, and the segments that may leave and
//! arrive before the handshake is complete (RFC 7413 section 4.2).

use brisk_wire::{Cookie, FastOpen, SeqNum};

use crate::fast_open::FastOpenOutcome;

/// Segments that bring a one-time cookie.
const ONE_TIME_ANSWERS: u8 = 3;

/// The decision of the stack about a SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SynAnswer {
    /// The SYN opens the connection.
    pub(crate) accepted: bool,
    /// The outcome that the application sees.
    pub(crate) outcome: FastOpenOutcome,
    /// The option of the SYN-ACK.
    pub(crate) option: Option<FastOpen>,
    /// Send nothing but the SYN-ACK until it is acknowledged.
    pub(crate) hold_response: bool,
    /// IP bytes that may be sent until then; `None`: the windows decide.
    pub(crate) allowance: Option<usize>,
    /// The application answers only what it has authenticated: until then, too, the windows alone decide.
    pub(crate) authenticated: bool,
    /// The client may ask for a one-time cookie.
    pub(crate) one_time: bool,
    /// Bytes that may follow the SYN before the handshake is complete.
    pub(crate) after_syn: u32,
}

/// The server's side of Fast Open.
#[derive(Debug)]
pub(crate) struct Server {
    answer: SynAnswer,
    /// The timer of the SYN-ACK has lowered the congestion window.
    reduced: bool,
    one_time: OneTime,
    /// Bytes that may still follow the SYN.
    after_syn_left: u32,
    /// The end of what the first SYN brought.
    first_end: SeqNum,
    /// Further SYNs brought more, of which nothing is said yet.
    in_parts: bool,
}

/// How far the handing out of a one-time cookie has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OneTime {
    /// The client did not ask.
    Idle,
    /// It asked; the stack has the cookies.
    Asked,
    /// This goes on so many more segments.
    Given(Cookie, u8),
}

impl Server {
    /// `first_end` is the end of what the first SYN brought.
    pub(super) fn new(answer: SynAnswer, first_end: SeqNum) -> Self {
        Server {
            answer,
            reduced: false,
            one_time: OneTime::Idle,
            after_syn_left: answer.after_syn,
            first_end,
            in_parts: false,
        }
    }

    /// True if the SYN opened the connection.
    pub(super) fn is_accepted(&self) -> bool {
        self.answer.accepted
    }

    /// The option of the SYN-ACK.
    pub(super) fn option(&self) -> Option<FastOpen> {
        self.answer.option
    }

    /// The data of the first SYN was taken up to here.
    pub(super) fn on_syn_data(&mut self, end: SeqNum) {
        self.first_end = end;
    }

    /// True if data may leave from SYN-RECEIVED.
    pub(super) fn sends_early(&self) -> bool {
        self.answer.accepted && !self.answer.hold_response
    }

    /// IP bytes that may still leave before the SYN-ACK is acknowledged; `None`: the windows decide.
    pub(super) fn allowance(&self) -> Option<usize> {
        self.answer.allowance
    }

    /// True if the application answers only what it has authenticated.
    pub(super) fn is_authenticated(&self) -> bool {
        self.answer.authenticated
    }

    /// So many IP bytes left.
    pub(super) fn spend(&mut self, bytes: usize) {
        if let Some(allowance) = &mut self.answer.allowance {
            *allowance = allowance.saturating_sub(bytes);
        }
    }

    /// The timer of the SYN-ACK fired. True if the congestion window is to be lowered for it, which happens
    /// once.
    pub(super) fn on_syn_ack_timeout(&mut self) -> bool {
        self.answer.accepted && !core::mem::replace(&mut self.reduced, true)
    }

    /// True if the timer of the SYN-ACK has lowered the congestion window.
    pub(super) fn has_reduced(&self) -> bool {
        self.reduced
    }

    /// So many bytes arrived behind the SYN, before the handshake is complete. True if they are taken.
    pub(crate) fn takes_after_syn(&mut self, len: u32) -> bool {
        let takes = len > 0 && len <= self.after_syn_left;
        if takes {
            self.after_syn_left -= len;
        }
        takes
    }

    /// A further SYN brought so many bytes that begin at `start`. True if they are taken.
    pub(crate) fn takes_part(&mut self, start: SeqNum, len: u32) -> bool {
        let takes = !start.lt(self.first_end) && self.takes_after_syn(len);
        self.in_parts |= takes;
        takes
    }

    /// The handshake is complete: true if parts were taken that may be acknowledged now.
    pub(crate) fn release_parts(&mut self) -> bool {
        core::mem::take(&mut self.in_parts)
    }

    /// The acknowledgement number until the handshake is complete, if it is not RCV.NXT: parts are not
    /// acknowledged.
    pub(crate) fn acknowledged(&self) -> Option<SeqNum> {
        self.in_parts.then_some(self.first_end)
    }
}

/// One-time cookies, which travel outside the handshake.
impl Server {
    /// The client asked for a one-time cookie. True if it is to get one.
    pub(super) fn on_cookie_request(&mut self) -> bool {
        let grants = self.answer.one_time && self.one_time == OneTime::Idle;
        if grants {
            self.one_time = OneTime::Asked;
        }
        grants
    }

    /// True if the client waits for a one-time cookie.
    pub(super) fn wants_cookie(&self) -> bool {
        self.one_time == OneTime::Asked
    }

    /// Hands a one-time cookie to the client, with the next segments.
    pub(super) fn give_cookie(&mut self, cookie: Cookie) {
        self.one_time = OneTime::Given(cookie, ONE_TIME_ANSWERS);
    }

    /// The one-time cookie that a segment which leaves now brings.
    pub(super) fn cookie(&self) -> Option<Cookie> {
        match self.one_time {
            OneTime::Given(cookie, 1..) => Some(cookie),
            OneTime::Idle | OneTime::Asked | OneTime::Given(_, 0) => None,
        }
    }

    /// A segment with the cookie left.
    pub(super) fn on_cookie_sent(&mut self) {
        if let OneTime::Given(_, left) = &mut self.one_time {
            *left = left.saturating_sub(1);
        }
    }
}
