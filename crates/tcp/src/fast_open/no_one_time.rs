//! Stands in for `one_time.rs` without the feature `one-time-cookies`: there is no issuer.

use core::net::IpAddr;

use brisk_wire::Cookie;

use super::cookie::CookieKey;

/// Result of presenting a cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(dead_code, reason = "there is no issuer")]
pub(crate) enum Redeemed {
    Accepted,
    Reused,
    Invalid,
}

/// An issuer, which does not exist.
#[derive(Debug)]
pub(crate) enum OneTimeCookies {}

impl OneTimeCookies {
    pub(crate) fn new(_: &CookieKey, _: &CookieKey) -> Option<Self> {
        None
    }

    pub(crate) fn issue(&mut self, _: IpAddr, _: IpAddr) -> Cookie {
        match *self {}
    }

    pub(crate) fn redeem(&mut self, _: &Cookie, _: IpAddr, _: IpAddr) -> Redeemed {
        match *self {}
    }
}
