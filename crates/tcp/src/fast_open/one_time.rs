//! One-time cookies (TCP Fast Open, CoNEXT 2011, section 7.1): a cookie that opens one connection.
//!
//! The cookie encrypts the addresses and a counter. The server remembers in a bitmap which of the last 2^20
//! counters were redeemed. It refuses a duplicated SYN with data, because its cookie has been used.
//! ```text
//! IPv4  AES-128(K, server address || client address || BE64(counter))
//! IPv6  AES-128(K, LE64(SipHash-2-4(K2, client address || server address)) || BE64(counter))
//! ```
//!
//! A SYN alone must not suffice to get such a cookie, so the cookie travels outside the handshake. RFC 7413
//! tells peers to ignore it there, so only brisk's stacks can use such cookies.

use alloc::boxed::Box;
use alloc::vec;
use core::fmt;
use core::net::IpAddr;

use aes::Aes128;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use brisk_wire::Cookie;
use subtle::ConstantTimeEq;

use super::cookie::{CookieKey, addresses_hash};

/// Number of remembered counters; older ones are refused.
const WINDOW: u64 = 1 << 20;
const WORDS: usize = (WINDOW / 64) as usize;

/// Result of presenting a cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Redeemed {
    /// Valid, and now used.
    Accepted,
    /// Used before, or too old to know.
    Reused,
    /// Not issued here for these addresses.
    Invalid,
}

/// The issuer of one-time cookies, which also redeems them.
pub(crate) struct OneTimeCookies {
    cipher: Aes128,
    /// Hashes IPv6 addresses to eight bytes.
    hash_key: [u8; 16],
    issued: u64,
    used: Box<[u64]>,
}

impl OneTimeCookies {
    /// Returns an issuer without issued cookies. `key` encrypts, `hash_key` hashes IPv6 addresses.
    pub(crate) fn new(key: &CookieKey, hash_key: &CookieKey) -> Option<Self> {
        Some(OneTimeCookies {
            cipher: Aes128::new(&(*key.bytes()).into()),
            hash_key: *hash_key.bytes(),
            issued: 0,
            used: vec![0; WORDS].into_boxed_slice(),
        })
    }

    pub(crate) fn issue(&mut self, client: IpAddr, server: IpAddr) -> Cookie {
        self.issued += 1;
        if let Some((word, bit)) = self.locate(self.issued) {
            *word &= !bit;
        }
        let mut block = [0; 16];
        block[..8].copy_from_slice(&self.addresses(client, server));
        block[8..].copy_from_slice(&self.issued.to_be_bytes());
        let mut block = block.into();
        self.cipher.encrypt_block(&mut block);
        Cookie::new(&block).unwrap_or(Cookie::REQUEST)
    }

    /// Redeems a cookie, at most once.
    pub(crate) fn redeem(&mut self, cookie: &Cookie, client: IpAddr, server: IpAddr) -> Redeemed {
        let Ok(sealed) = <[u8; 16]>::try_from(cookie.as_slice()) else { return Redeemed::Invalid };
        let mut block = sealed.into();
        self.cipher.decrypt_block(&mut block);
        let [a, b, c, d, e, f, g, h, counter @ ..] = block.0;
        let ours = [a, b, c, d, e, f, g, h].ct_eq(&self.addresses(client, server));
        let counter = u64::from_be_bytes(counter);
        if !bool::from(ours) || counter == 0 || counter > self.issued {
            return Redeemed::Invalid;
        }
        if self.issued - counter >= WINDOW {
            return Redeemed::Reused;
        }
        match self.locate(counter) {
            Some((word, bit)) if *word & bit == 0 => {
                *word |= bit;
                Redeemed::Accepted
            }
            Some(_) | None => Redeemed::Reused,
        }
    }

    fn locate(&mut self, counter: u64) -> Option<(&mut u64, u64)> {
        let at = counter % WINDOW;
        self.used.get_mut((at / 64) as usize).map(|word| (word, 1 << (at % 64)))
    }

    fn addresses(&self, client: IpAddr, server: IpAddr) -> [u8; 8] {
        match (server.to_canonical(), client.to_canonical()) {
            (IpAddr::V4(server), IpAddr::V4(client)) => {
                let mut both = [0; 8];
                both[..4].copy_from_slice(&server.octets());
                both[4..].copy_from_slice(&client.octets());
                both
            }
            (server, client) => addresses_hash(&self.hash_key, client, server).to_le_bytes(),
        }
    }
}

impl Drop for OneTimeCookies {
    fn drop(&mut self) {
        zeroize::Zeroize::zeroize(&mut self.hash_key);
    }
}

impl fmt::Debug for OneTimeCookies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneTimeCookies").field("issued", &self.issued).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting(from: u8) -> CookieKey {
        CookieKey::new(core::array::from_fn(|index| from + index as u8))
    }

    fn issuer() -> OneTimeCookies {
        OneTimeCookies::new(&counting(0), &counting(16)).expect("the feature is on")
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn hex(cookie: &Cookie) -> std::string::String {
        cookie.as_slice().iter().map(|byte| std::format!("{byte:02x}")).collect()
    }

    #[test]
    fn cookies_count_up_under_the_cipher() {
        let mut issuer = issuer();
        let mut next = || hex(&issuer.issue(ip("192.0.2.1"), ip("198.51.100.9")));
        assert_eq!(next(), "77b37a911cfb7b46574e1afb82864a3a");
        assert_eq!(next(), "57c6298615eb53a73111a1ad667904f0");
    }

    #[test]
    fn ipv6_addresses_are_hashed() {
        let cookie = issuer().issue(ip("2001:db8::1"), ip("2001:db8::9"));
        assert_eq!(hex(&cookie), "5cc216800b2e4acc88b3844102169a81");
    }

    #[test]
    fn a_cookie_opens_one_connection_of_its_client() {
        let mut issuer = issuer();
        let (client, server) = (ip("192.0.2.1"), ip("198.51.100.9"));
        let cookie = issuer.issue(client, server);
        assert_eq!(issuer.redeem(&cookie, ip("192.0.2.2"), server), Redeemed::Invalid);
        assert_eq!(issuer.redeem(&cookie, client, server), Redeemed::Accepted);
        assert_eq!(issuer.redeem(&cookie, client, server), Redeemed::Reused);
        let forged = Cookie::new(&[7; 16]).expect("16 bytes");
        assert_eq!(issuer.redeem(&forged, client, server), Redeemed::Invalid);
        let short = Cookie::new(&[7; 8]).expect("8 bytes");
        assert_eq!(issuer.redeem(&short, client, server), Redeemed::Invalid);
    }

    #[test]
    fn one_cookie_does_not_use_up_another() {
        let mut issuer = issuer();
        let (client, server) = (ip("192.0.2.1"), ip("198.51.100.9"));
        let cookies: std::vec::Vec<_> = (0..2000).map(|_| issuer.issue(client, server)).collect();
        for redeemed in [Redeemed::Accepted, Redeemed::Reused] {
            assert!(cookies.iter().all(|cookie| issuer.redeem(cookie, client, server) == redeemed));
        }
    }

    #[test]
    fn a_cookie_that_fell_out_of_the_window_is_refused() {
        let mut issuer = issuer();
        let (client, server) = (ip("192.0.2.1"), ip("198.51.100.9"));
        let (first, second) = (issuer.issue(client, server), issuer.issue(client, server));
        issuer.issued = WINDOW + 1;
        assert_eq!(issuer.redeem(&first, client, server), Redeemed::Reused);
        assert_eq!(issuer.redeem(&second, client, server), Redeemed::Accepted);
        // The next counter replaces the second, which is forgotten.
        let next = issuer.issue(client, server);
        assert_eq!(issuer.redeem(&next, client, server), Redeemed::Accepted);
        assert_eq!(issuer.redeem(&second, client, server), Redeemed::Reused);
    }
}
