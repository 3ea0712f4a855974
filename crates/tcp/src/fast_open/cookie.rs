//! Cookies and their keys (TCP Fast Open, CoNEXT 2011, sections 4.1 and 4.2; RFC 7413 section 4.1.2).
//!
//! A cookie is a message authentication code over the addresses of a connection. It proves that its bearer
//! has received a SYN-ACK at that address. The server keeps no state per client. The code equals Linux's
//! since 5.3, so a farm may mix kernels and this stack under one key:
//!
//! ```text
//! LE64( SipHash-2-4( key, client address || server address ) )
//! ```
//!
//! A ring holds a primary key, which generates and checks cookies. It may also hold a backup key, which only
//! checks. Keys are erased when dropped, never printed, and cannot be read back.

use core::fmt;
use core::net::IpAddr;

use brisk_wire::Cookie;
use siphasher::sip::SipHasher24;
use subtle::{Choice, ConstantTimeEq};
use zeroize::Zeroize;

#[cfg(feature = "derived-keys")]
mod derived;

#[cfg(feature = "derived-keys")]
pub use derived::MasterSecret;

/// Length of a cookie, bytes, as in Linux. A longer one may displace other options of a SYN.
pub(crate) const COOKIE_LEN: usize = 8;
/// A key of 16 bytes.
#[derive(Clone)]
pub struct CookieKey([u8; 16]);

impl CookieKey {
    /// Returns the key of these bytes.
    pub fn new(bytes: [u8; 16]) -> Self {
        CookieKey(bytes)
    }

    #[cfg(feature = "one-time-cookies")]
    pub(crate) fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    fn cookie_of(&self, ends: &AddressPair) -> [u8; COOKIE_LEN] {
        ends.hash(&self.0).to_le_bytes()
    }

    /// Parses Linux's format (`net.ipv4.tcp_fastopen_key`): four hexadecimal words with dashes, as in
    /// `a0bf63f7-ed803d81-cd641d30-cebc4a90`. Each word is stored little-endian.
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

/// Reason why a key cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KeyError {
    /// There are not four words.
    Words,
    /// A word is not hexadecimal.
    Digits,
    /// There are more than a primary and a backup key on one line.
    CookieKeys,
    /// The secret of derived keys is too short.
    Short(usize),
}

brisk_wire::impl_error! {
    KeyError {
        Self::Words =>
            "a Fast Open key has four words joined by dashes, as in a0bf63f7-ed803d81-cd641d30-cebc4a90";
        Self::Digits => "each word of a Fast Open key has 1 to 8 hexadecimal digits";
        Self::CookieKeys => "a line holds one Fast Open key, or two as primary,backup";
        Self::Short(number) => "a master secret has at least 16 bytes; this one has {number}";
    }
}

/// Source of a server's keys.
///
/// ```
/// use brisk_tcp::fast_open::{CookieKey, KeyError, KeySource};
/// use brisk_tcp::{Stack, StackConfig};
///
/// // Linux's format: net.ipv4.tcp_fastopen_key.
/// let line = "a0bf63f7-ed803d81-cd641d30-cebc4a90,1-2-3-4";
/// let keys = KeySource::parse(line)?;
/// let KeySource::Fixed { backup: Some(backup), .. } = &keys else { panic!("two keys") };
/// assert_eq!(*backup, CookieKey::new([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0]));
/// assert_eq!(KeySource::parse("a0bf63f7"), Err(KeyError::Words));
///
/// let mut stack = Stack::new(StackConfig::default(), 1)?;
/// stack.set_fast_open_keys(keys);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KeySource {
    /// Installed keys. To rotate them in a farm: (1) install the new key as the backup everywhere; (2) when
    /// all servers have it, swap primary and backup everywhere; (3) remove the old key after the overlap.
    Fixed {
        /// Generates and checks cookies.
        primary: CookieKey,
        /// Checks only.
        backup: Option<CookieKey>,
    },
    /// Keys derived from a secret and the time of day, so that a farm rotates without communication. The
    /// driver sets the time with [`crate::Stack::set_unix_time`]; no cookie is generated before. Needs the
    /// feature `derived-keys`.
    #[cfg(feature = "derived-keys")]
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
    /// The server address in cookies; `None`: the destination of the packet.
    dst: Option<IpAddr>,
    keys: CookieKeys,
}

#[derive(Debug)]
enum CookieKeys {
    Fixed {
        primary: CookieKey,
        backup: Option<CookieKey>,
    },
    #[cfg(feature = "derived-keys")]
    Derived(derived::Epochs),
}

impl KeyRing {
    pub(crate) fn new(source: &KeySource, dst: Option<IpAddr>) -> Self {
        let keys = match source {
            KeySource::Fixed { primary, backup } => {
                CookieKeys::Fixed { primary: primary.clone(), backup: backup.clone() }
            }
            #[cfg(feature = "derived-keys")]
            KeySource::Derived { master, rotate_s } => {
                CookieKeys::Derived(derived::Epochs::new(master.clone(), *rotate_s))
            }
        };
        KeyRing { dst, keys }
    }

    /// Sets the time of day for derived keys: seconds since 1970, if the stack knows it.
    #[cfg(feature = "derived-keys")]
    pub(crate) fn set_time(&mut self, unix: Option<u64>) {
        if let (CookieKeys::Derived(epochs), Some(unix)) = (&mut self.keys, unix) {
            epochs.turn(unix);
        }
    }

    /// Returns a cookie for a client; `None` if the key depends on the time of day and the time is unknown.
    pub(crate) fn generate(&self, client: IpAddr, server: IpAddr) -> Option<Cookie> {
        let code = match &self.keys {
            CookieKeys::Fixed { primary, .. } => primary,
            #[cfg(feature = "derived-keys")]
            CookieKeys::Derived(epochs) => epochs.current()?,
        };
        Cookie::new(&code.cookie_of(&AddressPair::of(client, self.dst.unwrap_or(server))))
    }

    /// Checks a cookie. Every key is tried, and the comparison takes the same time for every content. Only
    /// the length is public.
    pub(crate) fn check(&self, cookie: &Cookie, client: IpAddr, server: IpAddr) -> Check {
        let Ok(cookie) = <[u8; COOKIE_LEN]>::try_from(cookie.as_slice()) else {
            return Check::Invalid;
        };
        let ends = AddressPair::of(client, self.dst.unwrap_or(server));
        // Compared as numbers in one step.
        let cookie = u64::from_ne_bytes(cookie);
        let is_of = |code: &CookieKey| u64::from_ne_bytes(code.cookie_of(&ends)).ct_eq(&cookie);
        let none = Choice::from(0);
        let (primary, backup) = match &self.keys {
            CookieKeys::Fixed { primary, backup } => (is_of(primary), backup.as_ref().map_or(none, is_of)),
            #[cfg(feature = "derived-keys")]
            CookieKeys::Derived(epochs) => epochs.check(is_of),
        };
        match (bool::from(primary), bool::from(backup)) {
            (true, _) => Check::Primary,
            (false, true) => Check::Backup,
            (false, false) => Check::Invalid,
        }
    }
}

/// Returns SipHash-2-4 over the first address and then the second, in network byte order.
#[cfg(feature = "one-time-cookies")]
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
        KeyRing::new(&KeySource::Fixed { primary, backup }, None)
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
    fn cookie_is_valid_only_unchanged_and_for_its_client() {
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
        let ring = KeyRing::new(&source, Some(front));
        let cookie = ring.generate(ip("192.0.2.1"), ip("10.0.0.1")).expect("a fixed key");
        assert_eq!(ring.check(&cookie, ip("192.0.2.1"), ip("10.0.0.2")), Check::Primary);
        assert_eq!(hex(&cookie), "321a9835fee553ef");
    }

    #[test]
    fn keys_are_not_printed() {
        let source = KeySource::Fixed { primary: CookieKey::new([0xab; 16]), backup: None };
        let ring = KeyRing::new(&source, None);
        for text in [format!("{source:?}"), format!("{ring:?}")] {
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
        let ring = KeyRing::new(&KeySource::Fixed { primary, backup }, None);
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
