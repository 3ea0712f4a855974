//! Host-wide switches of Fast Open, in the bits of Linux's `net.ipv4.tcp_fastopen`.
//!
//! An application requests Fast Open for each connection and listener. The host's bits have precedence, so
//! that an operator can switch it off, or on, without a change to the applications.

use super::{FastOpenConnect, FastOpenListen};

/// Bits of `net.ipv4.tcp_fastopen`; other bits have no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastOpenSwitches(pub u32);

impl FastOpenSwitches {
    /// Connections that request Fast Open may use it.
    pub const CLIENT: u32 = 0x1;
    /// Listeners that request Fast Open may use it.
    pub const SERVER: u32 = 0x2;
    /// These connections send data without a cookie.
    pub const CLIENT_NO_COOKIE: u32 = 0x4;
    /// These listeners accept data without a cookie.
    pub const SERVER_NO_COOKIE: u32 = 0x200;
    /// Every listener uses Fast Open, without a request too; needs [`FastOpenSwitches::SERVER`].
    pub const ALL_LISTENERS: u32 = 0x400;

    fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }

    /// Restricts the request of a connection.
    pub(crate) fn connect(self, asked: FastOpenConnect) -> Option<FastOpenConnect> {
        let no_cookie = asked.no_cookie || self.has(Self::CLIENT_NO_COOKIE);
        self.has(Self::CLIENT).then_some(FastOpenConnect { no_cookie, ..asked })
    }

    /// Restricts the request of a listener.
    pub(crate) fn listen(self, asked: Option<FastOpenListen>) -> Option<FastOpenListen> {
        let unasked = || self.has(Self::ALL_LISTENERS).then(FastOpenListen::default);
        let listen = asked.or_else(unasked).filter(|_| self.has(Self::SERVER))?;
        let require_cookie = listen.require_cookie && !self.has(Self::SERVER_NO_COOKIE);
        Some(FastOpenListen { require_cookie, ..listen })
    }
}

/// Both roles on request, with cookies: `0x3`.
impl Default for FastOpenSwitches {
    fn default() -> Self {
        FastOpenSwitches(Self::CLIENT | Self::SERVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_have_the_meaning_of_linux() {
        let (connect, listen) = (FastOpenConnect::default(), FastOpenListen::default());
        let asked = Some(listen.clone());
        for (bits, client, server, unasked) in [
            (0x0, None, None, None),
            (0x1, Some(false), None, None),
            (0x2, None, Some(true), None),
            (0x3, Some(false), Some(true), None),
            (0x5, Some(true), None, None),
            (0x202, None, Some(false), None),
            (0x400, None, None, None),
            (0x402, None, Some(true), Some(true)),
            (0x603, Some(false), Some(false), Some(false)),
        ] {
            let switches = FastOpenSwitches(bits);
            assert_eq!(switches.connect(connect).map(|connect| connect.no_cookie), client, "{bits:#x}");
            let cookies =
                |wish: Option<FastOpenListen>| switches.listen(wish).map(|listen| listen.require_cookie);
            assert_eq!((cookies(asked.clone()), cookies(None)), (server, unasked), "{bits:#x}");
        }
        assert_eq!(FastOpenSwitches::default().listen(Some(listen.clone())), Some(listen));
        assert_eq!(FastOpenSwitches::default().connect(connect), Some(connect));
    }
}
