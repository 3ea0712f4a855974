//! One-time cookies of one connection, which travel outside the handshake ([`crate::fast_open::one_time`]).

use brisk_wire::{Cookie, FastOpen};

use super::{Role, Serving};
use crate::connection::Connection;
use crate::fast_open::client::Report;

/// Segments that ask for a one-time cookie, and segments that bring it.
pub(super) const ONE_TIME_REQUESTS: u8 = 5;
const ONE_TIME_ANSWERS: u8 = 3;

/// How far the handing out of a one-time cookie has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub(super) enum OneTime {
    /// The client did not ask.
    Idle,
    /// It asked; the stack has the cookies.
    Asked,
    /// This goes on so many more segments.
    Given(Cookie, u8),
}

impl Connection {
    /// A segment outside the handshake carries the option.
    pub(crate) fn on_fast_open_option(&mut self, option: FastOpen) {
        match self.fast_open.as_deref_mut() {
            Some(Role::Client(opening)) if opening.requests_left > 0 && !option.cookie.is_empty() => {
                opening.requests_left = 0;
                opening.report(Report::OneTime(option.cookie));
            }
            Some(Role::Server(serving))
                if serving.serve.one_time
                    && option.cookie.is_empty()
                    && serving.one_time == OneTime::Idle =>
            {
                serving.one_time = OneTime::Asked;
                self.rx.ack.force();
            }
            Some(Role::Client(_) | Role::Server(_)) | None => {}
        }
    }

    /// True if the client waits for a one-time cookie.
    pub(crate) fn wants_one_time_cookie(&self) -> bool {
        matches!(self.fast_open.as_deref(), Some(Role::Server(serving)) if serving.one_time == OneTime::Asked)
    }

    /// Hands a one-time cookie to the client, with the next segments.
    pub(crate) fn give_one_time_cookie(&mut self, cookie: Cookie) {
        if let Some(Role::Server(serving)) = self.fast_open.as_deref_mut() {
            serving.one_time = OneTime::Given(cookie, ONE_TIME_ANSWERS);
        }
    }

    /// The Fast Open option of a segment outside the handshake that leaves now.
    pub(crate) fn fast_open_option(&self) -> Option<FastOpen> {
        match self.fast_open.as_deref()? {
            Role::Client(opening) => (opening.requests_left > 0).then_some(FastOpen::REQUEST),
            Role::Server(Serving { one_time: OneTime::Given(cookie, 1..), .. }) => {
                Some(FastOpen::with_cookie(*cookie))
            }
            Role::Server(_) => None,
        }
    }

    /// A segment outside the handshake left with this option.
    pub(crate) fn on_fast_open_option_sent(&mut self) {
        match self.fast_open.as_deref_mut() {
            Some(Role::Client(opening)) => opening.requests_left = opening.requests_left.saturating_sub(1),
            Some(Role::Server(Serving { one_time: OneTime::Given(_, left), .. })) => {
                *left = left.saturating_sub(1);
            }
            Some(Role::Server(_)) | None => {}
        }
    }

    /// Bytes that this option will take of the next segment.
    pub(crate) fn fast_open_option_len(&self) -> u32 {
        match self.fast_open.as_deref() {
            Some(Role::Client(opening)) if opening.requests_left > 0 => 4,
            Some(Role::Server(Serving { one_time: OneTime::Given(_, 1..), .. })) => 20,
            Some(Role::Client(_) | Role::Server(_)) | None => 0,
        }
    }
}
