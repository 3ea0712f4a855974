//! One-time cookies of one connection, which travel outside the handshake ([`crate::fast_open::one_time`]).

use brisk_wire::{Cookie, FastOpen};

use crate::connection::Connection;
use crate::fast_open::client::Report;

/// Segments that ask for a one-time cookie, and segments that bring it.
pub(super) const ONE_TIME_REQUESTS: u8 = 5;
pub(super) const ONE_TIME_ANSWERS: u8 = 3;

/// How far the handing out of a one-time cookie has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
        if option.cookie.is_empty() {
            if self.fast_server_mut().is_some_and(|server| server.on_cookie_request()) {
                self.rx.ack.force();
            }
        } else if let Some(client) = self.fast_client_mut().filter(|client| client.requests_left > 0) {
            client.requests_left = 0;
            client.report(Report::OneTime(option.cookie));
        }
    }

    /// True if the client waits for a one-time cookie.
    pub(crate) fn wants_one_time_cookie(&self) -> bool {
        self.fast_server().is_some_and(|server| server.wants_cookie())
    }

    /// Hands a one-time cookie to the client, with the next segments.
    pub(crate) fn give_one_time_cookie(&mut self, cookie: Cookie) {
        if let Some(server) = self.fast_server_mut() {
            server.give_cookie(cookie);
        }
    }

    /// The Fast Open option of a segment outside the handshake that leaves now.
    pub(crate) fn fast_open_option(&self) -> Option<FastOpen> {
        let asks = self.fast_client().is_some_and(|client| client.requests_left > 0);
        let cookie = || self.fast_server().and_then(|server| server.cookie()).map(FastOpen::with_cookie);
        if asks { Some(FastOpen::REQUEST) } else { cookie() }
    }

    /// A segment outside the handshake left with this option.
    pub(crate) fn on_fast_open_option_sent(&mut self) {
        if let Some(client) = self.fast_client_mut() {
            client.requests_left = client.requests_left.saturating_sub(1);
        } else if let Some(server) = self.fast_server_mut() {
            server.on_cookie_sent();
        }
    }

    /// Bytes that this option will take of the next segment.
    pub(crate) fn fast_open_option_len(&self) -> u32 {
        match self.fast_open_option() {
            Some(option) if option.cookie.is_empty() => 4,
            Some(_) => 20,
            None => 0,
        }
    }
}
