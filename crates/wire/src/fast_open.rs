//! The Fast Open option (RFC 7413 section 4.1.1 with errata 4238 and 4239) and its cookie.
//!
//! Two forms carry the same value: kind 34, and the experimental kind 254 with ExID 0xF989 (RFC 6994)
//! that older stacks use. An option without cookie bytes is a request for a cookie.

use core::fmt;

/// ExID of the experimental form of the option.
pub const EXPERIMENTAL_ID: u16 = 0xF989;

/// A Fast Open cookie: an even number of 4 to 16 bytes, or none, which requests a cookie.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Cookie {
    /// Bytes from `len` on are zero, so that the derived comparison is correct.
    bytes: [u8; Cookie::MAX_LEN],
    len: u8,
}

impl Cookie {
    /// Longest cookie, bytes.
    pub const MAX_LEN: usize = 16;
    /// The empty cookie, which requests a cookie.
    pub const REQUEST: Cookie = Cookie { bytes: [0; Cookie::MAX_LEN], len: 0 };

    /// Returns the cookie of these bytes; `None` if their number is not 0, 4, 6, ..., 16.
    pub fn new(cookie: &[u8]) -> Option<Cookie> {
        let legal = matches!(cookie.len(), 0 | 4..=Cookie::MAX_LEN) && cookie.len().is_multiple_of(2);
        let mut bytes = [0; Cookie::MAX_LEN];
        bytes.get_mut(..cookie.len()).filter(|_| legal)?.copy_from_slice(cookie);
        Some(Cookie { bytes, len: cookie.len() as u8 })
    }

    /// Returns the bytes of the cookie.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// Returns the number of bytes.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// True for a cookie request.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cookie(")?;
        self.as_slice().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// The Fast Open option of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FastOpen {
    /// The cookie, or [`Cookie::REQUEST`].
    pub cookie: Cookie,
    /// True if the option has the experimental form. A server answers in the form that the client used.
    pub experimental: bool,
}

impl FastOpen {
    /// A request for a cookie in the standard form.
    pub const REQUEST: FastOpen = FastOpen { cookie: Cookie::REQUEST, experimental: false };

    /// Returns the option with this cookie in the standard form.
    pub const fn with_cookie(cookie: Cookie) -> FastOpen {
        FastOpen { cookie, experimental: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn only_even_lengths_from_4_to_16_and_the_request_are_cookies() {
        let bytes = [7u8; 40];
        let legal: std::vec::Vec<usize> = (0..40).filter(|&n| Cookie::new(&bytes[..n]).is_some()).collect();
        assert_eq!(legal, [0, 4, 6, 8, 10, 12, 14, 16]);
        assert!(Cookie::new(&[]).is_some_and(|cookie| cookie.is_empty() && cookie == Cookie::REQUEST));
    }

    #[test]
    fn cookies_compare_and_print_by_their_bytes() {
        let cookie = Cookie::new(&[0, 0xab, 0xaa, 0xab]).unwrap();
        assert_eq!(format!("{cookie:?}"), "Cookie(00abaaab)");
        assert_eq!(cookie.as_slice(), [0, 0xab, 0xaa, 0xab]);
        assert_ne!(cookie, Cookie::new(&[0, 0xab, 0xaa, 0xab, 0, 0]).unwrap());
        assert_eq!(cookie.len(), 4);
    }
}
