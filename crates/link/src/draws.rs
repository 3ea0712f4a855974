//! The random draws of one element: ChaCha with eight rounds (Bernstein, "ChaCha, a variant of Salsa20"), one
//! block at a time.
//!
//! Each element has a generator. A short transfer takes about seven draws from it, one for each packet.
//! `rand_chacha` always computes four blocks, which are 32 draws; this module computes a block (8 draws) when
//! it is needed. A test checks that the draws are the same.

/// Words of 32 bits in a block.
const WORDS: usize = 16;
/// The first words of every block: "expand 32-byte k".
const BEGINNING: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// A generator of 64-bit draws, equal to those of `rand_chacha::ChaCha8Rng` under the same key.
#[derive(Clone, Debug)]
pub struct Draws {
    key: [u32; 8],
    next_block: u64,
    block: [u32; WORDS],
    /// Words of `block` that were used.
    used: usize,
}

impl Draws {
    /// Returns the draws under a key.
    pub fn new(key: [u8; 32]) -> Draws {
        let word =
            |i: usize| u32::from_le_bytes([key[4 * i], key[4 * i + 1], key[4 * i + 2], key[4 * i + 3]]);
        Draws { key: core::array::from_fn(word), next_block: 0, block: [0; WORDS], used: WORDS }
    }

    /// Returns the next draw.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        if self.used >= WORDS {
            self.make_block();
        }
        let [low, high] = [self.block[self.used], self.block[self.used + 1]];
        self.used += 2;
        u64::from(high) << 32 | u64::from(low)
    }

    #[inline(never)]
    fn make_block(&mut self) {
        let [a, b, c, d] = BEGINNING;
        let [e, f, g, h, i, j, k, l] = self.key;
        let number = self.next_block;
        let begun = [a, b, c, d, e, f, g, h, i, j, k, l, number as u32, (number >> 32) as u32, 0, 0];
        let mut words = begun;
        for _ in 0..4 {
            double_round(&mut words);
        }
        self.block = core::array::from_fn(|i| words[i].wrapping_add(begun[i]));
        self.next_block += 1;
        self.used = 0;
    }
}

/// Performs the rounds on the four columns and on the four diagonals.
#[inline(always)]
fn double_round(words: &mut [u32; WORDS]) {
    for i in 0..4 {
        quarter_round(words, [i, 4 + i, 8 + i, 12 + i]);
    }
    for i in 0..4 {
        quarter_round(words, [i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4]);
    }
}

#[inline(always)]
fn quarter_round(words: &mut [u32; WORDS], [a, b, c, d]: [usize; 4]) {
    for [left, right] in [[16, 12], [8, 7]] {
        words[a] = words[a].wrapping_add(words[b]);
        words[d] = (words[d] ^ words[a]).rotate_left(left);
        words[c] = words[c].wrapping_add(words[d]);
        words[b] = (words[b] ^ words[c]).rotate_left(right);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand_chacha::ChaCha8Rng;
    use rand_core::{RngCore, SeedableRng};

    proptest! {
        #[test]
        fn draws_equal_those_of_chacha8(key in any::<[u8; 32]>(), count in 1usize..300) {
            let (mut own, mut other) = (Draws::new(key), ChaCha8Rng::from_seed(key));
            for number in 0..count {
                prop_assert_eq!(own.next_u64(), other.next_u64(), "draw {}", number);
            }
        }
    }

    #[test]
    fn block_number_has_64_bits() {
        let far = u64::from(u32::MAX) - 1;
        let mut own = Draws { next_block: far, ..Draws::new([7; 32]) };
        let mut other = ChaCha8Rng::from_seed([7; 32]);
        other.set_word_pos(u128::from(far) * WORDS as u128);
        for _ in 0..5 * WORDS {
            assert_eq!(own.next_u64(), other.next_u64());
        }
    }
}
