//! Initial sequence numbers and timestamp offsets (RFC 6528, RFC 7323 section 5.4).
//!
//! `ISS = clock / 4 us + SipHash-2-4(key, four-tuple)`. Others cannot predict the ISS. For the same pair of
//! ends it increases, so a new connection over an old four-tuple starts above the old connection's numbers.
//! The timestamp offset is a hash of the four-tuple too, so connections reveal nothing about one another. A
//! new connection on an old four-tuple continues the clock of the old connection, so it can replace a
//! TIME-WAIT (RFC 6191).

use core::hash::{Hash, Hasher};

use brisk_wire::SeqNum;
use siphasher::sip::SipHasher24;

use crate::connection::Secrets;
use crate::four_tuple::FourTuple;
use crate::keys::{Chance, Key, Purpose, Seed};
use crate::time::Instant;

/// The generator of the secret values of connections.
#[derive(Debug)]
pub(crate) struct SecretSource {
    isn_key: Key,
    timestamp_key: Key,
}

impl SecretSource {
    pub(crate) fn new(seed: &Seed) -> Self {
        SecretSource {
            isn_key: Chance::new(seed, Purpose::InitialSequence).key(),
            timestamp_key: Chance::new(seed, Purpose::TimestampOffset).key(),
        }
    }

    /// Returns the secrets of a connection that begins now.
    pub(crate) fn secrets(&self, tuple: &FourTuple, now: Instant) -> Secrets {
        let clock = (now.as_micros() / 4) as u32;
        let hash = hash_of(&self.isn_key, tuple) as u32;
        Secrets { iss: SeqNum(clock.wrapping_add(hash)), ts_offset: self.timestamp_offset(tuple) }
    }

    pub(crate) fn timestamp_offset(&self, tuple: &FourTuple) -> u32 {
        hash_of(&self.timestamp_key, tuple) as u32
    }
}

fn hash_of(key: &Key, tuple: &FourTuple) -> u64 {
    let mut hasher = SipHasher24::new_with_key(key);
    if let Some(bytes) = tuple.v4_bytes() {
        return hasher.hash(&bytes);
    }
    tuple.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(port: u16) -> FourTuple {
        FourTuple {
            local: core::net::SocketAddr::from(([10, 0, 0, 1], 80)),
            remote: core::net::SocketAddr::from(([10, 0, 0, 2], port)),
        }
    }

    #[test]
    fn the_same_ends_get_increasing_numbers() {
        let source = SecretSource::new(&1.into());
        let first = source.secrets(&tuple(5000), Instant::from_millis(1));
        let later = source.secrets(&tuple(5000), Instant::from_millis(5));
        assert_eq!(later.iss.since(first.iss), 1000, "one every four microseconds");
        assert_eq!(later.ts_offset, first.ts_offset);
    }

    #[test]
    fn a_hash_is_the_same_in_one_piece_and_word_by_word() {
        let mut hasher = SipHasher24::new_with_key(&[7; 16]);
        tuple(5000).hash(&mut hasher);
        assert_eq!(hash_of(&[7; 16], &tuple(5000)), hasher.finish());
    }

    #[test]
    fn other_ends_and_other_seeds_get_unrelated_numbers() {
        let now = Instant::from_millis(1);
        let one = SecretSource::new(&1.into()).secrets(&tuple(5000), now);
        let other = SecretSource::new(&1.into()).secrets(&tuple(5001), now);
        assert_ne!((one.iss, one.ts_offset), (other.iss, other.ts_offset));
        assert_ne!(one, SecretSource::new(&2.into()).secrets(&tuple(5000), now));
    }
}
