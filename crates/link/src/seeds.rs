//! One random generator per element, derived from the seed and the element's name.
//!
//! Switching an element on or off must not shift the draws of another, or two arms of an experiment would no longer
//! meet the same losses. So nobody shares a generator: each gets its own key from SipHash-2-4 (128 bit) over its name.

use core::fmt::{self, Write};
use core::hash::Hasher;

pub use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::units::Ratio;

/// Separates these keys from any other use of SipHash with the same seed.
const DOMAIN: u64 = u64::from_le_bytes(*b"brisk/01");

/// The generator of the element called `name` under `seed`: same arguments, same draws, on every machine.
pub fn rng(seed: u64, name: impl fmt::Display) -> ChaCha8Rng {
    let mut halves = Halves([0, 1].map(|counter| SipHasher24::new_with_keys(seed, DOMAIN ^ counter)));
    let named = write!(halves, "{name}");
    debug_assert!(named.is_ok(), "hashing does not fail");
    let mut key = [0; 32];
    for (half, hash) in key.chunks_exact_mut(16).zip(halves.0) {
        half.copy_from_slice(&hash.finish128().as_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// The halves of a key, of what of the name has been written to them. Most names are put together from parts, and no
/// string has to be made of them.
struct Halves([SipHasher24; 2]);

impl fmt::Write for Halves {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.0.iter_mut().for_each(|half| half.write(part.as_bytes()));
        Ok(())
    }
}

/// A number that depends on the seed, the name and the `words` only: for elements that must treat a connection the
/// same way in both directions without sharing state.
pub(crate) fn keyed(seed: u64, name: &str, words: &[u8]) -> u64 {
    let (key, _) = SipHasher24::new_with_keys(seed, DOMAIN).hash(name.as_bytes()).as_u64();
    SipHasher24::new_with_keys(key, DOMAIN).hash(words).as_u64().0
}

/// True with the given probability; always exactly one draw.
pub(crate) fn chance(rng: &mut ChaCha8Rng, probability: Ratio) -> bool {
    below(rng, u64::from(Ratio::ONE.ppb())) < u64::from(probability.ppb())
}

/// Uniform in `0..bound` (0 when `bound` is 0); always exactly one draw.
pub(crate) fn below(rng: &mut ChaCha8Rng, bound: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(bound)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_seeds_separate_generators() {
        let first = |seed, name| rng(seed, name).next_u64();
        assert_eq!(first(7, "down/loss"), first(7, "down/loss"));
        assert_ne!(first(7, "down/loss"), first(7, "up/loss"));
        assert_ne!(first(7, "down/loss"), first(8, "down/loss"));
    }

    /// Recorded once: a change of these values changes every experiment ever published with a seed.
    #[test]
    fn draws_are_the_same_on_every_machine() {
        let mut rng = rng(1, "down/loss");
        assert_eq!(
            [rng.next_u64(), rng.next_u64()],
            [17_727_846_979_691_948_442, 15_130_276_434_027_880_978]
        );
    }

    #[test]
    fn a_name_is_the_same_whole_and_in_parts() {
        let parts = rng(3, format_args!("{}/{}/{}", "a direction with a long name", "loss", 12)).next_u64();
        assert_eq!(parts, rng(3, "a direction with a long name/loss/12").next_u64());
    }

    #[test]
    fn chance_is_certain_at_both_ends() {
        let mut rng = rng(3, "x");
        assert!((0..1000).all(|_| chance(&mut rng, Ratio::ONE)));
        assert!((0..1000).all(|_| !chance(&mut rng, Ratio::ZERO)));
    }
}
