//! Ephemeral key pairs, each used for a limited time.
//!
//! A new key pair and its shared secret cost more than all other cryptography of a short request. So a
//! gateway keeps its pair for some seconds, and also the secrets that it shares with other gateways' pairs.
//! The public key that Noise gets is still new for each connection and on each side, because it contains a
//! nonce:
//!
//! ```text
//! 24 bytes  nonce, from the system's randomness, for this connection
//! 32 bytes  public key of X25519, for the lifetime of the pair
//! ```
//!
//! Noise forbids a second use of an ephemeral key, because then two connections could have the same keys.
//! With a shared key, Noise mixes the complete public key of each direction into the chaining key (section
//! 9.2, `MixKey(e.public_key)`) before anything is encrypted. So each nonce makes all keys new, even those of
//! the answer to a replayed message. Patterns without a shared key do not mix the public key in, so they use
//! a new pair for each connection.
//!
//! The price: an attacker who takes over a gateway and has the shared key can read traffic that was recorded
//! during the life of its current pair. So a pair is erased at the end of its lifetime, even if no next one
//! is requested.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use curve25519_dalek::MontgomeryPoint;
use snow::Error;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver, FallbackResolver, RingResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use zeroize::Zeroizing;

use super::key::HopKey;

/// Default lifetime of a pair.
pub const USUAL_LIFETIME: Duration = Duration::from_secs(10);
/// Maximum lifetime of a pair.
pub const LONGEST_LIFETIME: Duration = Duration::from_secs(60);
/// Limit of stored secrets of a pair, one for each pair of the other side. Beyond it, secrets are computed
/// each time, so that a flood of new pairs does not displace useful secrets.
const MAX_AGREED: usize = 256;
/// Maximum interval between checks whether a pair has expired.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Length of the nonce, bytes.
const NONCE: usize = 24;
/// Length of an X25519 key, bytes.
const KEY: usize = 32;
/// Length of nonce and key together, bytes.
pub(super) const PUBLIC: usize = NONCE + KEY;

/// Returns the cryptographic primitives for `snow`: those of ring, whose cipher is faster, and otherwise the
/// default ones.
pub(super) fn primitives() -> FallbackResolver {
    FallbackResolver::new(Box::new(RingResolver), Box::new(DefaultResolver))
}

/// A public key or a shared secret of X25519.
type Point = [u8; KEY];

/// The current pair of a gateway.
pub struct Ephemerals(Mutex<Held>);

struct Held {
    lifetime: Duration,
    /// The pair with the end of its lifetime.
    pair: Option<(Instant, Arc<KeyPair>)>,
}

impl Ephemerals {
    /// Creates the holder, without a pair. Each pair serves for `lifetime`, at most 60 s; 0 means a pair for
    /// each connection.
    pub fn new(lifetime: Duration) -> Ephemerals {
        Ephemerals(Mutex::new(Held { lifetime: lifetime.min(LONGEST_LIFETIME), pair: None }))
    }

    /// Drops the current pair, and changes the lifetime of later ones.
    pub(crate) fn set_lifetime(&self, lifetime: Duration) {
        *self.held() = Held { lifetime: lifetime.min(LONGEST_LIFETIME), pair: None };
    }

    /// True if a pair serves for several connections.
    pub(crate) fn are_lasting(&self) -> bool {
        !self.held().lifetime.is_zero()
    }

    /// Returns the pair for a connection that begins `now`.
    ///
    /// # Errors
    /// If the operating system has no randomness.
    fn pair(&self, now: Instant) -> io::Result<Arc<KeyPair>> {
        let mut held = self.held();
        if let Some((until, pair)) = &held.pair
            && now < *until
        {
            return Ok(pair.clone());
        }
        let pair = Arc::new(KeyPair::generate()?);
        held.pair = Some((now + held.lifetime, pair.clone())).filter(|(until, _)| now < *until);
        Ok(pair)
    }

    /// Erases each pair at the end of its lifetime. Never ends.
    pub(crate) async fn expire(&self) -> Infallible {
        loop {
            tokio::time::sleep(self.forget_old(Instant::now())).await;
        }
    }

    /// Erases the pair if it has expired; returns the time until the next check.
    fn forget_old(&self, now: Instant) -> Duration {
        let mut held = self.held();
        let rest =
            held.pair.as_ref().map_or(CHECK_INTERVAL, |(until, _)| until.saturating_duration_since(now));
        if rest.is_zero() {
            held.pair = None;
        }
        match &held.pair {
            Some(_) => rest.min(CHECK_INTERVAL),
            // A pair may be created just after this check. If its lifetime is short, so is the interval.
            None => held.lifetime.clamp(CHECK_INTERVAL / 100, CHECK_INTERVAL),
        }
    }

    /// Returns a pair with this private key and the maximum lifetime.
    #[cfg(test)]
    pub(super) fn of(private: Point) -> Ephemerals {
        let pair = Some((Instant::now() + LONGEST_LIFETIME, Arc::new(KeyPair::of(HopKey::new(private)))));
        Ephemerals(Mutex::new(Held { lifetime: LONGEST_LIFETIME, pair }))
    }

    /// True if there is a pair.
    #[cfg(test)]
    pub(super) fn holds_one(&self) -> bool {
        self.held().pair.is_some()
    }

    /// Locks the state. A panic cannot leave a partial value, because values are only replaced.
    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Ephemerals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ephemerals({:?})", self.held().lifetime)
    }
}

/// A key pair of X25519, and the secrets that it shares with other pairs. It is erased when its lifetime is
/// over and no handshake uses it any more.
struct KeyPair {
    private: HopKey,
    public: Point,
    /// Shared secrets by the public key of the other side.
    agreed: Mutex<HashMap<Point, Zeroizing<Point>>>,
}

impl KeyPair {
    fn generate() -> io::Result<KeyPair> {
        HopKey::generate().map(KeyPair::of)
    }

    fn of(private: HopKey) -> KeyPair {
        let public = MontgomeryPoint::mul_base_clamped(*private.bytes()).to_bytes();
        KeyPair { private, public, agreed: Mutex::default() }
    }

    /// Returns the secret shared with the owner of the public key `peer`.
    fn agree(&self, peer: &Point) -> Zeroizing<Point> {
        if let Some(secret) = self.agreed().get(peer) {
            return secret.clone();
        }
        let secret = Zeroizing::new(MontgomeryPoint(*peer).mul_clamped(*self.private.bytes()).to_bytes());
        let mut agreed = self.agreed();
        if agreed.len() < MAX_AGREED {
            agreed.insert(*peer, secret.clone());
        }
        secret
    }

    fn agreed(&self) -> MutexGuard<'_, HashMap<Point, Zeroizing<Point>>> {
        self.agreed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Supplies Noise with key pairs; a connection uses the pair that is current when it begins.
pub(super) struct Lasting(pub(super) Arc<Ephemerals>);

impl CryptoResolver for Lasting {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        primitives().resolve_rng()
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        let ours =
            || Box::new(WithNonce { own: self.0.clone(), pair: None, public: [0; PUBLIC] }) as Box<dyn Dh>;
        (*choice == DHChoice::Curve25519).then(ours)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        primitives().resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        primitives().resolve_cipher(choice)
    }
}

/// A key pair of one connection: a nonce, and the pair that serves for several connections.
struct WithNonce {
    own: Arc<Ephemerals>,
    /// Set when the public key is sent. A backend sends it only to a peer that holds the shared key.
    pair: Option<Arc<KeyPair>>,
    public: [u8; PUBLIC],
}

impl Dh for WithNonce {
    fn name(&self) -> &'static str {
        "25519nonce"
    }

    fn pub_len(&self) -> usize {
        PUBLIC
    }

    fn priv_len(&self) -> usize {
        KEY
    }

    fn dh_len(&self) -> usize {
        KEY
    }

    /// Does nothing: Noise would set a static key here, and the pattern has none.
    fn set(&mut self, _: &[u8]) {}

    fn generate(&mut self, rng: &mut dyn Random) -> Result<(), Error> {
        let pair = self.own.pair(Instant::now()).map_err(|_| Error::Rng)?;
        let (nonce, key) = self.public.split_at_mut(NONCE);
        key.copy_from_slice(&pair.public);
        self.pair = Some(pair);
        rng.try_fill_bytes(nonce)
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        self.pair.as_ref().map_or(&[], |pair| pair.private.bytes())
    }

    fn dh(&self, public: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let peer = public.get(NONCE..PUBLIC).and_then(|key| key.try_into().ok()).ok_or(Error::Dh)?;
        let pair = self.pair.as_ref().ok_or(Error::Dh)?;
        out.get_mut(..KEY).ok_or(Error::Dh)?.copy_from_slice(&*pair.agree(peer));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: Duration = Duration::from_secs(10);

    #[test]
    fn a_pair_serves_for_its_time_and_not_longer() {
        let (own, now) = (Ephemerals::new(LIFETIME), Instant::now());
        let public = |after| own.pair(now + after).unwrap().public;
        let first = public(Duration::ZERO);
        assert_eq!(public(LIFETIME - Duration::from_millis(1)), first);
        assert_ne!(public(LIFETIME), first);
        let each = Ephemerals::new(Duration::ZERO);
        assert_ne!(each.pair(now).unwrap().public, each.pair(now).unwrap().public);
        assert!(!each.holds_one() && !each.are_lasting() && own.are_lasting(), "no pair is kept");
    }

    #[test]
    fn key_pair_is_erased_at_the_end_of_its_lifetime_in_any_case() {
        let (own, now) = (Ephemerals::new(LIFETIME), Instant::now());
        let pair = Arc::downgrade(&own.pair(now).unwrap());
        let mut at = now;
        while pair.upgrade().is_some() {
            at += own.forget_old(at);
            assert!(at <= now + 2 * LIFETIME, "it is never erased");
            own.forget_old(at);
        }
        assert_eq!(at, now + LIFETIME);
        assert_eq!(own.forget_old(at), CHECK_INTERVAL);
        own.pair(at).unwrap();
        own.set_lifetime(Duration::ZERO);
        assert!(!own.holds_one(), "another time, another pair");
    }

    #[tokio::test(start_paused = true)]
    async fn the_pair_of_an_idle_gateway_is_erased() {
        let own = Ephemerals::new(Duration::from_millis(30));
        let pair = Arc::downgrade(&own.pair(Instant::now()).unwrap());
        // The pair's lifetime runs in real time; only tokio's clock is paused.
        let erased = async {
            while pair.upgrade().is_some() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            never = own.expire() => match never {},
            () = erased => (),
        }
    }

    #[test]
    fn shared_secrets_are_kept_within_a_bound() {
        let (own, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let secret = own.agree(&other.public);
        assert_eq!(secret, other.agree(&own.public));
        // The stored secret is the computed one.
        assert_eq!(own.agree(&other.public), secret);
        assert_eq!(own.agreed().len(), 1);
        for n in 0..2 * MAX_AGREED as u64 {
            let mut public = [9; KEY];
            public[..8].copy_from_slice(&n.to_le_bytes());
            own.agree(&public);
        }
        assert_eq!(own.agreed().len(), MAX_AGREED);
        assert!(own.agreed().contains_key(&other.public), "useful secrets are not displaced");
        let late = KeyPair::generate().unwrap();
        assert_eq!(own.agree(&late.public), late.agree(&own.public), "a late peer is served too");
    }
}
