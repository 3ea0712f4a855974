//! The draws of one element: ChaCha with eight rounds (Bernstein, "ChaCha, a variant of Salsa20"), a block at a time.
//!
//! A short transfer draws once for each packet that an element sees, seven times or so, and has a generator for each
//! element. `rand_chacha` makes four blocks whenever it makes one, 32 draws; here a block is made when it is used. The
//! draws are the same, which a test holds.

/// The words that every ChaCha state begins with: "expand 32-byte k".
const BEGINNING: Row = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];
/// Words of 32 bits in a block.
const WORDS: usize = 16;

/// Four words of the state: what one operation works on at once.
type Row = [u32; 4];

/// A generator of 64-bit draws: those of `rand_chacha::ChaCha8Rng` under the same key.
#[derive(Clone, Debug)]
pub struct Draws {
    key: [Row; 2],
    /// The number of the next block.
    next_block: u64,
    block: [u32; WORDS],
    /// Words of `block` that were given out.
    used: usize,
}

impl Draws {
    /// The draws under a key.
    pub fn new(key: [u8; 32]) -> Draws {
        let word = |at: usize| u32::from_le_bytes([key[at], key[at + 1], key[at + 2], key[at + 3]]);
        let row = |at: usize| [word(at), word(at + 4), word(at + 8), word(at + 12)];
        Draws { key: [row(0), row(16)], next_block: 0, block: [0; WORDS], used: WORDS }
    }

    /// The next draw.
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
        self.block = block(&self.key, self.next_block);
        self.next_block += 1;
        self.used = 0;
    }
}

/// Block `number` under `key`.
fn block(key: &[Row; 2], number: u64) -> [u32; WORDS] {
    let [upper, lower] = *key;
    let begun = [BEGINNING, upper, lower, [number as u32, (number >> 32) as u32, 0, 0]];
    let [mut a, mut b, mut c, mut d] = begun;
    for _ in 0..4 {
        (a, b, c, d) = quarter_rounds(a, b, c, d);
        // The diagonals, turned so that they stand in columns.
        (b, c, d) = (turned::<1>(b), turned::<2>(c), turned::<3>(d));
        (a, b, c, d) = quarter_rounds(a, b, c, d);
        (b, c, d) = (turned::<3>(b), turned::<2>(c), turned::<1>(d));
    }
    let mut words = [0; WORDS];
    for (to, (row, begun)) in words.chunks_exact_mut(4).zip([a, b, c, d].into_iter().zip(begun)) {
        to.copy_from_slice(&sum(row, begun));
    }
    words
}

/// A quarter round of each of the four columns.
#[inline(always)]
fn quarter_rounds(mut a: Row, mut b: Row, mut c: Row, mut d: Row) -> (Row, Row, Row, Row) {
    a = sum(a, b);
    d = mixed::<16>(d, a);
    c = sum(c, d);
    b = mixed::<12>(b, c);
    a = sum(a, b);
    d = mixed::<8>(d, a);
    c = sum(c, d);
    b = mixed::<7>(b, c);
    (a, b, c, d)
}

#[inline(always)]
fn sum(a: Row, b: Row) -> Row {
    core::array::from_fn(|i| a[i].wrapping_add(b[i]))
}

/// What differs, every word turned to the left by `BITS`.
#[inline(always)]
fn mixed<const BITS: u32>(a: Row, b: Row) -> Row {
    core::array::from_fn(|i| (a[i] ^ b[i]).rotate_left(BITS))
}

/// The words of a row, moved by `BY` places to the front.
#[inline(always)]
fn turned<const BY: usize>(row: Row) -> Row {
    core::array::from_fn(|i| row[(i + BY) % 4])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand_chacha::ChaCha8Rng;
    use rand_core::{RngCore, SeedableRng};

    proptest! {
        #[test]
        fn the_draws_are_those_of_chacha8(key in any::<[u8; 32]>(), count in 1usize..300) {
            let (mut own, mut other) = (Draws::new(key), ChaCha8Rng::from_seed(key));
            for number in 0..count {
                prop_assert_eq!(own.next_u64(), other.next_u64(), "draw {}", number);
            }
        }
    }

    #[test]
    fn the_number_of_a_block_has_64_bits() {
        let far = u64::from(u32::MAX) - 1;
        let mut own = Draws { next_block: far, ..Draws::new([7; 32]) };
        let mut other = ChaCha8Rng::from_seed([7; 32]);
        other.set_word_pos(u128::from(far) * WORDS as u128);
        for _ in 0..5 * WORDS {
            assert_eq!(own.next_u64(), other.next_u64());
        }
    }
}
