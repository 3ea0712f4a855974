//! One random generator per element, derived from the seed and the element's name.
//!
//! Switching an element on or off must not change the draws of another. Otherwise two variants of an
//! experiment would not have the same losses. So each element has its own generator, whose key is the
//! SipHash-2-4 (128 bit) of its name.

use alloc::string::String;
use core::fmt::{self, Write};

pub use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;
use siphasher::sip128::SipHasher24;

pub use crate::draws::Draws;
use crate::units::Ratio;

/// Separates these keys from any other use of SipHash with the same seed.
const DOMAIN: u64 = u64::from_le_bytes(*b"brisk/01");

/// Longest name without an allocation, bytes.
const SHORT: usize = 48;

/// The name of an element, from one or more parts.
#[derive(Clone, Debug)]
pub struct Name {
    short: [u8; SHORT],
    /// Used bytes of `short`, while `long` is empty.
    len: usize,
    long: String,
}

impl Name {
    /// Begins a name with this text.
    #[inline(always)]
    pub fn new(text: &str) -> Name {
        Name { short: [0; SHORT], len: 0, long: String::new() }.with(text)
    }

    /// Appends `part`.
    #[inline(always)]
    pub fn with(mut self, part: &str) -> Name {
        self.append(part);
        self
    }

    /// Appends a number, in decimal.
    #[inline(always)]
    pub fn numbered(self, number: u64) -> Name {
        let mut digits = [b'0'; 20];
        let (mut left, mut begin) = (number, digits.len() - 1);
        digits[begin] += (left % 10) as u8;
        while left >= 10 {
            (left, begin) = (left / 10, begin - 1);
            digits[begin] += (left % 10) as u8;
        }
        self.with(core::str::from_utf8(&digits[begin..]).unwrap_or_default())
    }

    #[inline]
    fn append(&mut self, part: &str) {
        let end = self.len + part.len();
        match self.short.get_mut(self.len..end) {
            Some(to) if self.long.is_empty() => {
                to.copy_from_slice(part.as_bytes());
                self.len = end;
            }
            Some(_) | None => {
                if self.long.is_empty() {
                    self.long.push_str(core::str::from_utf8(&self.short[..self.len]).unwrap_or_default());
                }
                self.long.push_str(part);
            }
        }
    }

    fn bytes(&self) -> &[u8] {
        if self.long.is_empty() { &self.short[..self.len] } else { self.long.as_bytes() }
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Name {
        Name::new(text)
    }
}

impl From<fmt::Arguments<'_>> for Name {
    fn from(text: fmt::Arguments<'_>) -> Name {
        let mut name = Name::new("");
        let written = name.write_fmt(text);
        debug_assert!(written.is_ok(), "appending does not fail");
        name
    }
}

impl fmt::Write for Name {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.append(part);
        Ok(())
    }
}

/// Returns the generator of the element `name` under `seed`, for callers that skip draws or need `rand_core`.
/// The same arguments give the same draws on every machine.
pub fn rng(seed: u64, name: impl Into<Name>) -> ChaCha8Rng {
    ChaCha8Rng::from_seed(key(seed, &name.into()))
}

/// Returns the draws of the element `name` under `seed`, equal to those of [`rng`]; each block is computed
/// when it is needed.
pub fn draws(seed: u64, name: impl Into<Name>) -> Draws {
    Draws::new(key(seed, &name.into()))
}

/// Returns the key of the element's generator.
fn key(seed: u64, name: &Name) -> [u8; 32] {
    let mut key = [0; 32];
    for (half, counter) in key.chunks_exact_mut(16).zip([0, 1]) {
        let hash = SipHasher24::new_with_keys(seed, DOMAIN ^ counter).hash(name.bytes());
        half.copy_from_slice(&hash.as_bytes());
    }
    key
}

/// Returns a number that depends only on the seed, the name and the `words`. With it an element treats a
/// connection equally in both directions without shared state.
pub(crate) fn keyed(seed: u64, name: &str, words: &[u8]) -> u64 {
    let (key, _) = SipHasher24::new_with_keys(seed, DOMAIN).hash(name.as_bytes()).as_u64();
    SipHasher24::new_with_keys(key, DOMAIN).hash(words).as_u64().0
}

/// True with the given probability; always exactly one draw.
#[inline]
pub(crate) fn chance(rng: &mut Draws, probability: Ratio) -> bool {
    below(rng, u64::from(Ratio::ONE.ppb())) < u64::from(probability.ppb())
}

/// Returns a uniform number in `0..bound` (0 if `bound` is 0); always takes one draw.
#[inline]
pub(crate) fn below(rng: &mut Draws, bound: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(bound)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::RngCore;

    #[test]
    fn names_and_seeds_separate_generators() {
        let first = |seed, name| draws(seed, name).next_u64();
        assert_eq!(first(7, "down/loss"), first(7, "down/loss"));
        assert_ne!(first(7, "down/loss"), first(7, "up/loss"));
        assert_ne!(first(7, "down/loss"), first(8, "down/loss"));
    }

    /// Recorded values. Changing them changes every experiment that was published with a seed.
    #[test]
    fn draws_are_the_same_on_every_machine() {
        let mut rng = draws(1, "down/loss");
        assert_eq!(
            [rng.next_u64(), rng.next_u64()],
            [17_727_846_979_691_948_442, 15_130_276_434_027_880_978]
        );
    }

    #[test]
    fn a_name_is_the_same_whole_and_in_parts() {
        let long = "a direction with a name that is quite long";
        for (len, number) in (0..long.len()).zip([0, 9, 10, 12_345, u64::MAX].into_iter().cycle()) {
            let direction = &long[..len];
            let whole = alloc::format!("{direction}/loss/{number}");
            let halves =
                [0, 1].map(|half| SipHasher24::new_with_keys(3, DOMAIN ^ half).hash(whole.as_bytes()));
            let hashed = halves.map(|half| half.as_bytes()).concat();
            assert_eq!(key(3, &Name::new(&whole)).as_slice(), hashed);
            assert_eq!(key(3, &Name::new(direction).with("/loss/").numbered(number)).as_slice(), hashed);
            assert_eq!(key(3, &Name::from(format_args!("{direction}/loss/{number}"))).as_slice(), hashed);
        }
    }

    #[test]
    fn a_generator_and_the_draws_of_a_name_are_the_same() {
        let (mut rng, mut draws) = (rng(3, "up/loss/0"), draws(3, "up/loss/0"));
        (0..100).for_each(|_| assert_eq!(rng.next_u64(), draws.next_u64()));
    }

    #[test]
    fn chance_is_certain_at_both_ends() {
        let mut rng = draws(3, "x");
        assert!((0..1000).all(|_| chance(&mut rng, Ratio::ONE)));
        assert!((0..1000).all(|_| !chance(&mut rng, Ratio::ZERO)));
    }
}
