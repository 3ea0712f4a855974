//! Keys that the servers of a farm derive from a secret and the time of day.

use alloc::vec::Vec;
use core::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::{Choice, ConstantTimeEq};
use zeroize::Zeroize;

use super::{CookieKey, KeyError};

/// Permitted difference between the clocks of a farm, seconds. Near the change of an epoch, cookies of the
/// adjacent epoch are valid too.
const CLOCK_SKEW: u64 = 60;
/// Label from which the key of an epoch is derived, together with the secret and the number of the epoch.
const DERIVATION: &[u8] = b"tfo-cookie-v1";

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
        CookieKey::new(key)
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

/// Keys derived from the time of day.
pub(super) struct Epochs {
    master: MasterSecret,
    rotate_s: u64,
    unix: Option<u64>,
    /// The current epoch, and the keys of four epochs: the two before it, itself and the next one.
    turned: Option<(u64, [CookieKey; 4])>,
}

impl Epochs {
    /// Returns the keys of epochs of `rotate_s` seconds; none before [`Epochs::turn`].
    pub(super) fn new(master: MasterSecret, rotate_s: u64) -> Self {
        Epochs { master, rotate_s: rotate_s.max(1), unix: None, turned: None }
    }

    /// Sets the time of day: seconds since 1970.
    pub(super) fn turn(&mut self, unix: u64) {
        self.unix = Some(unix);
        let epoch = unix / self.rotate_s;
        if self.turned.as_ref().is_none_or(|(turned, _)| *turned != epoch) {
            let code = |epoch| self.master.key_of(epoch);
            let before = |back| epoch.saturating_sub(back);
            self.turned =
                Some((epoch, [code(before(2)), code(before(1)), code(epoch), code(epoch.saturating_add(1))]));
        }
    }

    /// Returns the key that generates cookies; `None` before [`Epochs::turn`].
    pub(super) fn current(&self) -> Option<&CookieKey> {
        self.turned.as_ref().map(|(_, [_, _, current, _])| current)
    }

    /// Checks a cookie with the keys of the current epoch (primary) and of the previous one (backup). Around
    /// the change of an epoch two more keys are valid. A server whose clock is ahead has already generated
    /// cookies of the next epoch. A server whose clock is behind still accepts cookies of the epoch before
    /// the last.
    pub(super) fn check(&self, is_of: impl Fn(&CookieKey) -> Choice) -> (Choice, Choice) {
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

#[cfg(test)]
mod tests {
    use core::net::IpAddr;
    use std::format;

    use super::*;
    use crate::fast_open::cookie::{Check, KeyRing, KeySource};

    const COUNTING: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn derived(unix: u64) -> KeyRing {
        let master = MasterSecret::new(&COUNTING).expect("long enough");
        let source = KeySource::Derived { master, rotate_s: 1000 };
        let mut ring = KeyRing::new(&source, None);
        ring.set_time(Some(unix));
        ring
    }

    #[test]
    fn derived_keys_need_the_time_of_day() {
        let master = MasterSecret::new(&COUNTING).expect("long enough");
        let source = KeySource::Derived { master, rotate_s: 1000 };
        let ring = KeyRing::new(&source, None);
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
        let expected = 0x6f41_3c15_dc6a_0afd_0674_b8ae_0fe3_d2e3_u128.to_be_bytes();
        assert!(key == CookieKey::new(expected));
    }

    #[test]
    fn secrets_are_long_and_not_printed() {
        assert_eq!(MasterSecret::new(&[1; 15]), Err(KeyError::Short(15)));
        let text = format!("{:?}", derived(1));
        assert!(!text.contains("[0, 1") && !text.contains("0001"), "{text}");
    }
}
