//! Cookies and their keys (TCP Fast Open, CoNEXT 2011, sections 4.1 and 4.2; RFC 7413 section 4.1.2).
//!
//! A cookie is a message authentication code over the addresses of a connection: it proves that its bearer
//! has received a SYN-ACK at that address. The server keeps no state per client. The code equals Linux's
//! since 5.3, so that a farm may mix kernels and this stack under one key:
//!
//! ```text
//! LE64( SipHash-2-4( key, client address || server address ) )
//! ```
//!
//! A ring holds a primary key, which generates and checks cookies, and optionally a backup key, which only
//! checks. Keys are erased when dropped, never printed, and cannot be read back.

use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;

use brisk_wire::Cookie;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use siphasher::sip::SipHasher24;
use subtle::{Choice, ConstantTimeEq};
use thiserror::Error;
use zeroize::Zeroize;

/// Length of a cookie, bytes. Longer ones would not fit together with the other options of a SYN.
pub(crate) const COOKIE_LEN: usize = 8;
/// Permitted difference between the clocks of a farm, seconds: near the change of an epoch, cookies of the
/// adjacent epoch are valid too.
const CLOCK_SKEW: u64 = 60;
/// Label for deriving the key of an epoch, in addition to the master secret and the number of the epoch.
const DERIVATION: &[u8] = b"tfo-cookie-v1";

/// A key of 16 bytes.
#[derive(Clone)]
pub struct CookieKey([u8; 16]);

impl CookieKey {
    /// Returns the key of these bytes.
    pub fn new(bytes: [u8; 16]) -> Self {
        CookieKey(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    fn cookie_of(&self, ends: &AddressPair) -> [u8; COOKIE_LEN] {
        ends.hash(&self.0).to_le_bytes()
    }

    /// Parses Linux's format (`net.ipv4.tcp_fastopen_key`): four hexadecimal words with dashes, each stored
    /// little-endian, as in `a0bf63f7-ed803d81-cd641d30-cebc4a90`.
    ///
    /// # Errors
    /// [`KeyError::Words`] or [`KeyError::Digits`]. The error does not contain the text, which is secret.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut bytes = [0; 16];
        let mut words = text.trim().split('-');
        for chunk in bytes.chunks_exact_mut(4) {
            let word = words.next().ok_or(KeyError::Words)?;
            let digits = (1..=8).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_hexdigit());
            let word = u32::from_str_radix(word, 16).ok().filter(|_| digits).ok_or(KeyError::Digits)?;
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        match words.next() {
            None => Ok(CookieKey(bytes)),
            Some(_) => {
                bytes.zeroize();
                Err(KeyError::Words)
            }
        }
    }
}

impl Drop for CookieKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for CookieKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CookieKey(..)")
    }
}

impl PartialEq for CookieKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for CookieKey {}

/// A secret from which the keys of a farm are derived; 16 bytes or more.
#[derive(Clone)]
pub struct MasterSecret(Vec<u8>);

impl MasterSecret {
    /// Returns the secret of these bytes.
    ///
    /// # Errors
    /// [`KeyError::Short`] if there are fewer than 16.
    pub fn new(bytes: &[u8]) -> Result<Self, KeyError> {
        if bytes.len() < 16 { Err(KeyError::Short(bytes.len())) } else { Ok(MasterSecret(bytes.to_vec())) }
    }

    /// Returns `first 16 bytes of HMAC-SHA256(master, "tfo-cookie-v1" || BE64(epoch))`.
    fn key_of(&self, epoch: u64) -> CookieKey {
        let mut key = [0; 16];
        if let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) {
            mac.update(DERIVATION);
            mac.update(&epoch.to_be_bytes());
            let mut digest = mac.finalize().into_bytes();
            key.iter_mut().zip(digest.iter()).for_each(|(to, from)| *to = *from);
            digest.as_mut_slice().zeroize();
        }
        CookieKey(key)
    }
}

impl Drop for MasterSecret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for MasterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterSecret(..)")
    }
}

impl PartialEq for MasterSecret {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for MasterSecret {}

/// Reason why a key cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// There are not four words.
    #[error("a Fast Open key has four words joined by dashes, as in a0bf63f7-ed803d81-cd641d30-cebc4a90")]
    Words,
    /// A word is not hexadecimal.
    #[error("each word of a Fast Open key has 1 to 8 hexadecimal digits")]
    Digits,
    /// There are more than a primary and a backup key on one line.
    #[error("a line holds one Fast Open key, or two as primary,backup")]
    CookieKeys,
    /// The master secret is too short.
    #[error("a master secret has at least 16 bytes; this one has {0}")]
    Short(usize),
}

/// Source of a server's keys.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KeySource {
    /// Installed keys. To rotate them in a farm: (1) install the new key as the backup everywhere; (2) when
    /// all have it, swap primary and backup everywhere; (3) remove the old one after the overlap.
    Fixed {
        /// Generates and checks cookies.
        primary: CookieKey,
        /// Checks only.
        backup: Option<CookieKey>,
    },
    /// Keys derived from a secret and the time of day, so that a farm rotates without communication. The
    /// driver sets the time with [`crate::Stack::set_unix_time`]; before that no cookie is generated.
    Derived {
        /// The shared secret of the farm.
        master: MasterSecret,
        /// Length of an epoch, seconds; a cookie is valid for one to two epochs. 60..=2592000, default 86400.
        rotate_s: u64,
    },
}

impl KeySource {
    /// Parses `primary` or `primary,backup`, Linux's format.
    ///
    /// # Errors
    /// Those of [`CookieKey::parse`]; [`KeyError::CookieKeys`] for more than two keys.
    pub fn parse(line: &str) -> Result<Self, KeyError> {
        let mut keys = line.split(',');
        let primary = CookieKey::parse(keys.next().unwrap_or_default())?;
        let backup = keys.next().map(CookieKey::parse).transpose()?;
        match keys.next() {
            None => Ok(KeySource::Fixed { primary, backup }),
            Some(_) => Err(KeyError::CookieKeys),
        }
    }
}

/// The server address in a cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum CookieDst {
    /// The destination of the packet.
    #[default]
    Packet,
    /// None: the unspecified address is used instead.
    Unbound,
    /// This address, which clients see if a load balancer translates it.
    Fixed(IpAddr),
}

/// Result of checking a cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Check {
    /// Generated with the primary key.
    Primary,
    /// Generated with the backup key: valid, but the client should get a new one.
    Backup,
    /// Generated with neither.
    Invalid,
}

/// The keys of a server, prepared for use.
#[derive(Debug)]
pub(crate) struct KeyRing {
    dst: CookieDst,
    keys: CookieKeys,
}

#[derive(Debug)]
enum CookieKeys {
    Fixed { primary: CookieKey, backup: Option<CookieKey> },
    Derived(Epochs),
}

/// Keys derived from the time of day.
struct Epochs {
    master: MasterSecret,
    rotate_s: u64,
    unix: Option<u64>,
    /// The epoch of `keys[2]`; the keys are those of the two epochs before it, of itself and of the next.
    turned: Option<(u64, [CookieKey; 4])>,
}

impl KeyRing {
    /// Returns the ring of these keys.
    pub(crate) fn new(source: &KeySource, dst: CookieDst) -> Self {
        let keys = match source {
            KeySource::Fixed { primary, backup } => {
                CookieKeys::Fixed { primary: primary.clone(), backup: backup.clone() }
            }
            KeySource::Derived { master, rotate_s } => CookieKeys::Derived(Epochs {
                master: master.clone(),
                rotate_s: (*rotate_s).max(1),
                unix: None,
                turned: None,
            }),
        };
        KeyRing { dst, keys }
    }

    /// Sets the time of day: seconds since 1970, if the stack knows it.
    pub(crate) fn set_time(&mut self, unix: Option<u64>) {
        if let (CookieKeys::Derived(epochs), Some(unix)) = (&mut self.keys, unix) {
            epochs.turn(unix);
        }
    }

    /// Returns a cookie for a client; `None` if the key depends on the time of day and that is unknown.
    pub(crate) fn generate(&self, client: IpAddr, server: IpAddr) -> Option<Cookie> {
        let code = match &self.keys {
            CookieKeys::Fixed { primary, .. } => primary,
            CookieKeys::Derived(epochs) => epochs.current()?,
        };
        Cookie::new(&code.cookie_of(&AddressPair::of(client, self.bound_to(server))))
    }

    /// Checks a cookie. Every key is tried, and the comparison takes the same time for every content; the
    /// length is public.
    pub(crate) fn check(&self, cookie: &Cookie, client: IpAddr, server: IpAddr) -> Check {
        let Ok(cookie) = <[u8; COOKIE_LEN]>::try_from(cookie.as_slice()) else {
            return Check::Invalid;
        };
        let ends = AddressPair::of(client, self.bound_to(server));
        // Compared as numbers in one step.
        let cookie = u64::from_ne_bytes(cookie);
        let is_of = |code: &CookieKey| u64::from_ne_bytes(code.cookie_of(&ends)).ct_eq(&cookie);
        let none = Choice::from(0);
        let (primary, backup) = match &self.keys {
            CookieKeys::Fixed { primary, backup } => (is_of(primary), backup.as_ref().map_or(none, is_of)),
            CookieKeys::Derived(epochs) => epochs.check(is_of),
        };
        match (bool::from(primary), bool::from(backup)) {
            (true, _) => Check::Primary,
            (false, true) => Check::Backup,
            (false, false) => Check::Invalid,
        }
    }

    fn bound_to(&self, server: IpAddr) -> IpAddr {
        match self.dst {
            CookieDst::Packet => server,
            CookieDst::Unbound if server.is_ipv4() => IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED),
            CookieDst::Unbound => IpAddr::V6(core::net::Ipv6Addr::UNSPECIFIED),
            CookieDst::Fixed(address) => address,
        }
    }
}

impl Epochs {
    fn turn(&mut self, unix: u64) {
        self.unix = Some(unix);
        let epoch = unix / self.rotate_s;
        if self.turned.as_ref().is_none_or(|(turned, _)| *turned != epoch) {
            let code = |epoch| self.master.key_of(epoch);
            let before = |back| epoch.saturating_sub(back);
            self.turned =
                Some((epoch, [code(before(2)), code(before(1)), code(epoch), code(epoch.saturating_add(1))]));
        }
    }

    fn current(&self) -> Option<&CookieKey> {
        self.turned.as_ref().map(|(_, [_, _, current, _])| current)
    }

    /// Checks with the current epoch as primary and the previous one as backup. Around the change of an
    /// epoch, a server whose clock is ahead has already generated cookies of the next epoch, and one whose
    /// clock is behind still accepts those of the epoch before the last.
    fn check(&self, is_of: impl Fn(&CookieKey) -> Choice) -> (Choice, Choice) {
        let (Some((_, [oldest, last, current, next])), Some(unix)) = (&self.turned, self.unix) else {
            return (Choice::from(0), Choice::from(0));
        };
        let into = unix % self.rotate_s;
        let begun = Choice::from(u8::from(into < CLOCK_SKEW));
        let ending = Choice::from(u8::from(into + CLOCK_SKEW >= self.rotate_s));
        (is_of(current) | (is_of(next) & ending), is_of(last) | (is_of(oldest) & begun))
    }
}

impl fmt::Debug for Epochs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epochs").field("rotate_s", &self.rotate_s).finish_non_exhaustive()
    }
}

/// Returns SipHash-2-4 over the first address and then the second, in network byte order.
pub(crate) fn addresses_hash(key: &[u8; 16], first: IpAddr, second: IpAddr) -> u64 {
    AddressPair::of(first, second).hash(key)
}

/// Two addresses in network byte order, one after the other.
struct AddressPair {
    bytes: [u8; 32],
    /// Length of the first, and of both, bytes.
    first: usize,
    len: usize,
}

impl AddressPair {
    fn of(first: IpAddr, second: IpAddr) -> AddressPair {
        let mut ends = AddressPair { bytes: [0; 32], first: 0, len: 0 };
        ends.append(first);
        ends.first = ends.len;
        ends.append(second);
        ends
    }

    fn append(&mut self, address: IpAddr) {
        let at = self.len;
        self.len += match address.to_canonical() {
            IpAddr::V4(ip) => {
                self.bytes[at..at + 4].copy_from_slice(&ip.octets());
                4
            }
            IpAddr::V6(ip) => {
                self.bytes[at..at + 16].copy_from_slice(&ip.octets());
                16
            }
        };
    }

    fn hash(&self, key: &[u8; 16]) -> u64 {
        SipHasher24::new_with_key(key).hash(&self.bytes[..self.len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    const COUNTING: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn hex(cookie: &Cookie) -> std::string::String {
        cookie.as_slice().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn ring(primary: CookieKey, backup: Option<CookieKey>) -> KeyRing {
        KeyRing::new(&KeySource::Fixed { primary, backup }, CookieDst::Packet)
    }

    fn parsed(text: &str) -> CookieKey {
        CookieKey::parse(text).expect("a key")
    }

    #[test]
    fn siphash_gives_its_check_value() {
        let input: std::vec::Vec<u8> = (0..15).collect();
        assert_eq!(SipHasher24::new_with_key(&COUNTING).hash(&input), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn the_words_of_a_key_are_little_endian() {
        let key = parsed("a0bf63f7-ed803d81-cd641d30-cebc4a90");
        assert_eq!(
            key.0,
            [0xf7, 0x63, 0xbf, 0xa0, 0x81, 0x3d, 0x80, 0xed, 0x30, 0x1d, 0x64, 0xcd, 0x90, 0x4a, 0xbc, 0xce]
        );
        assert_eq!(parsed("0-0-0-0").0, [0; 16]);
    }

    #[test]
    fn text_without_a_key_is_refused() {
        for (text, error) in [
            ("", KeyError::Digits),
            ("1-2-3", KeyError::Words),
            ("1-2-3-4-5", KeyError::Words),
            ("1-2-3-g", KeyError::Digits),
            ("1-2-3-123456789", KeyError::Digits),
            ("1-2--4", KeyError::Digits),
            ("+1-2-3-4", KeyError::Digits),
        ] {
            assert_eq!(CookieKey::parse(text), Err(error), "{text:?}");
        }
        assert_eq!(KeySource::parse("1-2-3-4,5-6-7-8,9-0-1-2"), Err(KeyError::CookieKeys));
        let two = KeySource::Fixed { primary: parsed("1-2-3-4"), backup: Some(parsed("5-6-7-8")) };
        assert_eq!(KeySource::parse("1-2-3-4,5-6-7-8\n"), Ok(two));
        assert_eq!(MasterSecret::new(&[1; 15]), Err(KeyError::Short(15)));
    }

    #[test]
    fn cookies_are_those_of_linux() {
        let test = "a0bf63f7-ed803d81-cd641d30-cebc4a90";
        let other = "a1a1a1a1-b2b2b2b2-c3c3c3c3-d4d4d4d4";
        let own = "03020100-07060504-0b0a0908-0f0e0d0c";
        for (key, client, server, cookie) in [
            (test, "10.248.0.2", "192.168.0.2", "00abaaabe8e954c2"),
            (test, "10.248.0.3", "192.168.0.2", "1313a2da994a0951"),
            (test, "10.248.0.3", "192.168.0.3", "76d2c1c530f51f79"),
            (other, "192.0.2.1", "192.168.0.1", "3021b9d889017eeb"),
            (other, "fd3d:fa7b:d17d::1", "fd3d:a0b:17d6::1", "c1d1e9742a47a9bc"),
            ("0-0-0-0", "10.248.0.2", "192.168.0.2", "93b7aa4f550f8a1a"),
            (own, "192.0.2.1", "198.51.100.9", "321a9835fee553ef"),
            (own, "2001:db8::1", "2001:db8::9", "e3108e5d59a809e0"),
        ] {
            let ring = ring(parsed(key), None);
            let made = ring.generate(ip(client), ip(server)).expect("a fixed key");
            assert_eq!(hex(&made), cookie, "{client} {server}");
            assert_eq!(ring.check(&made, ip(client), ip(server)), Check::Primary);
        }
    }

    #[test]
    fn mapped_addresses_have_the_cookie_of_the_ipv4_address() {
        let ring = ring(CookieKey::new(COUNTING), None);
        let mapped = ring.generate(ip("::ffff:192.0.2.1"), ip("::ffff:198.51.100.9"));
        assert_eq!(mapped, ring.generate(ip("192.0.2.1"), ip("198.51.100.9")));
    }

    #[test]
    fn backup_key_checks_and_generates_nothing() {
        let (old, new) = (CookieKey::new([1; 16]), CookieKey::new([2; 16]));
        let (client, server) = (ip("10.0.0.1"), ip("10.0.0.2"));
        let before = ring(old.clone(), None);
        let during = ring(new.clone(), Some(old));
        let after = ring(new, None);
        let stale = before.generate(client, server).expect("a fixed key");
        assert_eq!(during.check(&stale, client, server), Check::Backup);
        assert_eq!(after.check(&stale, client, server), Check::Invalid);
        let fresh = during.generate(client, server).expect("a fixed key");
        assert_eq!(after.check(&fresh, client, server), Check::Primary);
    }

    #[test]
    fn only_the_exact_cookie_of_the_exact_client_is_good() {
        let ring = ring(CookieKey::new(COUNTING), None);
        let (client, server) = (ip("10.0.0.1"), ip("10.0.0.2"));
        let good = ring.generate(client, server).expect("a fixed key");
        for bit in 0..64 {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(good.as_slice());
            bytes[bit / 8] ^= 1 << (bit % 8);
            let forged = Cookie::new(&bytes).expect("eight bytes");
            assert_eq!(ring.check(&forged, client, server), Check::Invalid);
        }
        assert_eq!(ring.check(&good, ip("10.0.0.3"), server), Check::Invalid);
        assert_eq!(ring.check(&good, client, ip("10.0.0.3")), Check::Invalid);
        let short = Cookie::new(&good.as_slice()[..4]).expect("four bytes");
        assert_eq!(ring.check(&short, client, server), Check::Invalid);
        assert_eq!(ring.check(&Cookie::REQUEST, client, server), Check::Invalid);
    }

    #[test]
    fn cookie_behind_a_nat_balancer_is_bound_to_the_public_address() {
        let source = KeySource::Fixed { primary: CookieKey::new(COUNTING), backup: None };
        let front = ip("198.51.100.9");
        for dst in [CookieDst::Fixed(front), CookieDst::Unbound] {
            let ring = KeyRing::new(&source, dst);
            let cookie = ring.generate(ip("192.0.2.1"), ip("10.0.0.1")).expect("a fixed key");
            assert_eq!(ring.check(&cookie, ip("192.0.2.1"), ip("10.0.0.2")), Check::Primary);
        }
        let fixed = KeyRing::new(&source, CookieDst::Fixed(front));
        let made = fixed.generate(ip("192.0.2.1"), ip("10.0.0.1")).map(|cookie| hex(&cookie));
        assert_eq!(made.as_deref(), Some("321a9835fee553ef"));
    }

    fn derived(unix: u64) -> KeyRing {
        let master = MasterSecret::new(&COUNTING).expect("long enough");
        let source = KeySource::Derived { master, rotate_s: 1000 };
        let mut ring = KeyRing::new(&source, CookieDst::Packet);
        ring.set_time(Some(unix));
        ring
    }

    #[test]
    fn derived_keys_need_the_time_of_day() {
        let master = MasterSecret::new(&COUNTING).expect("long enough");
        let source = KeySource::Derived { master, rotate_s: 1000 };
        let ring = KeyRing::new(&source, CookieDst::Packet);
        assert_eq!(ring.generate(ip("10.0.0.1"), ip("10.0.0.2")), None);
    }

    #[test]
    fn a_derived_cookie_lives_for_one_to_two_epochs_and_survives_clock_skew() {
        let (client, server) = (ip("10.0.0.1"), ip("10.0.0.2"));
        let made = derived(5500).generate(client, server).expect("the time is known");
        let mut ring = derived(5500);
        let mut at = |unix| {
            ring.set_time(Some(unix));
            ring.check(&made, client, server)
        };
        assert_eq!(at(5999), Check::Primary);
        assert_eq!(at(6000), Check::Backup);
        assert_eq!(at(6999), Check::Backup);
        assert_eq!(at(7059), Check::Backup, "the first minute of the epoch after");
        assert_eq!(at(7060), Check::Invalid);
        assert_eq!(at(4940), Check::Primary, "a server whose clock is behind, in its last minute");
        assert_eq!(at(4939), Check::Invalid);
    }

    #[test]
    fn the_key_of_an_epoch_is_the_hmac_of_the_master() {
        // Computed by another program: HMAC-SHA256(00..0f, "tfo-cookie-v1" || BE64(5)).
        let key = MasterSecret::new(&COUNTING).expect("long enough").key_of(5);
        let hex: std::string::String = key.0.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "6f413c15dc6a0afd0674b8ae0fe3d2e3");
    }

    #[test]
    fn keys_are_not_printed() {
        let source = KeySource::Fixed { primary: CookieKey::new([0xab; 16]), backup: None };
        let ring = KeyRing::new(&source, CookieDst::Packet);
        for text in [format!("{source:?}"), format!("{ring:?}"), format!("{:?}", derived(1))] {
            assert!(!text.contains("171") && !text.to_lowercase().contains("ab, "), "{text}");
        }
    }

    #[test]
    #[ignore = "a measurement: cargo test --release -p brisk-tcp --lib time_of_a_cookie_check -- --ignored --nocapture"]
    fn time_of_a_cookie_check() {
        const TIMES: u32 = 5_000_000;
        let (client, server) = ([198, 51, 100, 7].into(), [192, 0, 2, 1].into());
        let primary = CookieKey::new(COUNTING);
        let backup = Some(CookieKey::new([7; 16]));
        let ring = KeyRing::new(&KeySource::Fixed { primary, backup }, CookieDst::Packet);
        let cookie = ring.generate(client, server).unwrap();
        let began = std::time::Instant::now();
        let right = (0..TIMES)
            .filter(|_| core::hint::black_box(&ring).check(&cookie, client, server) == Check::Primary)
            .count();
        let each = began.elapsed() / TIMES;
        assert_eq!(right, TIMES as usize);
        std::println!("two keys: {} ns", each.as_nanos());
    }
}
