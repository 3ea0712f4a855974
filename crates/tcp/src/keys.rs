//! The secrets of a stack, all derived from its seed.
//!
//! Each purpose has its own random stream. So the number of draws for one purpose does not change the draws
//! of another, and the draws of one purpose reveal nothing about the others. A stream is SipHash-2-4 of a
//! counter. Its key is one half of the seed, combined with the purpose; the two halves take turns. This is a
//! pseudorandom function without set-up cost, which matters if a stack lives for one transaction. A drawn key
//! depends on the whole seed.

use siphasher::sip::SipHasher24;

/// A key of SipHash.
pub(crate) type Key = [u8; 16];

/// The source of every secret of a stack: sequence numbers, ports, timestamp offsets, cookies, the hashes of
/// its tables. An attacker who knows it can forge packets and cookies of the stack.
///
/// In production it is 32 bytes of the operating system's randomness. A test or a simulation may use a
/// number, of at most 64 bits.
///
/// ```
/// use brisk_tcp::{Seed, Stack, StackConfig};
/// # let entropy = [7; 32];
/// let stack = Stack::new(StackConfig::default(), entropy)?;
/// let reproducible = Stack::new(StackConfig::default(), 1)?;
/// assert_ne!(Seed::from(1), Seed::from(2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Seed([[u64; 2]; 2]);

impl Seed {
    /// Returns the `n`th seed derived from this seed. It reveals neither this seed nor other derived ones.
    #[must_use]
    pub fn derive(&self, n: u64) -> Seed {
        let mut chance = Chance::new(self, Purpose::DerivedSeeds);
        // Each seed takes four draws.
        chance.drawn = n.wrapping_mul(4);
        Seed([(); 2].map(|()| [chance.draw(), chance.draw()]))
    }

    /// Returns the seed as bytes, which are secret.
    pub fn to_bytes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(self.0.as_flattened()) {
            *to = word.to_le_bytes();
        }
        bytes
    }
}

impl From<[u8; 32]> for Seed {
    fn from(bytes: [u8; 32]) -> Seed {
        let mut seed = Seed::from(0);
        for (word, from) in seed.0.as_flattened_mut().iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*from);
        }
        seed
    }
}

/// For tests and simulations. The number is in both halves, so that every draw depends on it.
impl From<u64> for Seed {
    fn from(number: u64) -> Seed {
        Seed([[number, 0]; 2])
    }
}

/// Omits the secret, which would end up in logs.
impl core::fmt::Debug for Seed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Seed(..)")
    }
}

/// Purpose of a random stream. The number identifies the stream and must not be reused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Purpose {
    /// Initial sequence numbers.
    InitialSequence = 1,
    /// Offsets of the timestamp clocks.
    TimestampOffset = 2,
    /// Choice of the ephemeral port.
    Ports = 3,
    /// SYN cookies.
    SynCookies = 4,
    /// The hash of the connection table.
    Demux = 5,
    /// The jitter of the challenge-ACK limit.
    ChallengeLimit = 6,
    /// The jitter of the reset limit.
    ResetLimit = 7,
    /// Fast Open cookies.
    FastOpen = 8,
    /// Seeds of other stacks.
    DerivedSeeds = 9,
}

/// A random stream.
#[derive(Clone, Debug)]
pub(crate) struct Chance {
    seed: Seed,
    purpose: Purpose,
    drawn: u64,
}

impl Chance {
    /// Returns the stream of the stack with this seed for `purpose`.
    pub(crate) fn new(seed: &Seed, purpose: Purpose) -> Self {
        Chance { seed: seed.clone(), purpose, drawn: 0 }
    }

    pub(crate) fn draw(&mut self) -> u64 {
        let Seed([even, odd]) = &self.seed;
        let [low, high] = if self.drawn & 1 == 0 { *even } else { *odd };
        let hasher = SipHasher24::new_with_keys(low, high ^ self.purpose as u64);
        let drawn = hasher.hash(&self.drawn.to_le_bytes());
        self.drawn = self.drawn.wrapping_add(1);
        drawn
    }

    pub(crate) fn key(&mut self) -> Key {
        let mut key = [0; 16];
        let (low, high) = key.split_at_mut(8);
        low.copy_from_slice(&self.draw().to_le_bytes());
        high.copy_from_slice(&self.draw().to_le_bytes());
        key
    }

    /// Draws a number below `bound`; 0 if `bound` is 0. The bias is below 2^-32.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        (((self.draw() >> 32) * u64::from(bound)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_purpose_has_a_stream_of_its_own() {
        let key = |seed: u64, purpose| Chance::new(&seed.into(), purpose).key();
        let isn = key(1, Purpose::InitialSequence);
        assert_eq!(isn, key(1, Purpose::InitialSequence), "the seed decides");
        assert_ne!(isn, key(1, Purpose::Demux));
        assert_ne!(isn, key(2, Purpose::InitialSequence));
    }

    #[test]
    fn every_bit_of_the_seed_changes_every_key() {
        let seed = Seed::from(1).to_bytes();
        assert_eq!(Seed::from(seed), Seed::from(1));
        for purpose in
            [Purpose::InitialSequence, Purpose::SynCookies, Purpose::FastOpen, Purpose::DerivedSeeds]
        {
            let keys = (0..256).map(|bit| {
                let mut changed = seed;
                changed[bit / 8] ^= 1 << (bit % 8);
                Chance::new(&changed.into(), purpose).key()
            });
            let all: BTreeSet<Key> = keys.chain([Chance::new(&seed.into(), purpose).key()]).collect();
            assert_eq!(all.len(), 257, "{purpose:?}");
        }
    }

    #[test]
    fn derived_seeds_differ_in_every_word() {
        let derived = (0..100).map(|n| Seed::from(1).derive(n)).chain([Seed::from(1)]);
        let halves: BTreeSet<[u64; 2]> = derived.flat_map(|Seed(halves)| halves).collect();
        assert_eq!(halves.len(), 201, "the two of a widened number are the same");
    }

    #[test]
    fn a_seed_is_not_printed() {
        assert_eq!(std::format!("{:?}", Seed::from(0x4142_4344)), "Seed(..)");
    }

    #[test]
    fn a_bounded_draw_stays_below_its_bound() {
        let mut ports = Chance::new(&1.into(), Purpose::Ports);
        assert!((0..1000).map(|_| ports.below(7)).all(|n| n < 7));
        assert_eq!(ports.below(0), 0);
    }
}
