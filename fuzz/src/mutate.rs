//! Seeded mutations of an input: what a fuzzer without coverage can do.

use rand_chacha::ChaCha8Rng;
use rand_core::RngCore;

/// The longest input.
const LONGEST: usize = 4096;

/// Bytes on which code likes to stumble.
const INTERESTING: [u8; 12] = [0, 1, 2, 7, 16, 40, 63, 64, 127, 128, 254, 255];

/// Changes `input` in one to eight places; `other` is an input of the same target to take pieces from.
pub fn mutate(input: &mut Vec<u8>, other: &[u8], chance: &mut ChaCha8Rng) {
    for _ in 0..=below(chance, 8) {
        once(input, other, chance);
    }
    input.truncate(LONGEST);
}

fn once(input: &mut Vec<u8>, other: &[u8], chance: &mut ChaCha8Rng) {
    let at = below(chance, input.len() + 1);
    let len = 1 + below(chance, 16);
    let end = input.len().min(at + len);
    match below(chance, 9) {
        0 => input.get_mut(at).map_or((), |byte| *byte ^= 1 << below(chance, 8)),
        1 => input.get_mut(at).map_or((), |byte| *byte = INTERESTING[below(chance, INTERESTING.len())]),
        2 => input.get_mut(at).map_or((), |byte| *byte = chance.next_u32() as u8),
        3 => drop(input.drain(at..end)),
        4 => {
            let piece = input[at..end].to_vec();
            input.splice(at..at, piece);
        }
        5 => {
            let fresh: Vec<u8> = (0..len).map(|_| chance.next_u32() as u8).collect();
            input.splice(at..at, fresh);
        }
        6 => {
            let from = below(chance, other.len() + 1);
            let piece = &other[from..other.len().min(from + 4 * len)];
            input.splice(at..end, piece.iter().copied());
        }
        7 => {
            let fresh = (0..8 * len).map(|_| chance.next_u32() as u8);
            input.extend(fresh);
        }
        _ => input.truncate(at.max(input.len() / 2)),
    }
}

/// A number below `bound`, which is not zero.
fn below(chance: &mut ChaCha8Rng, bound: usize) -> usize {
    (chance.next_u64() % bound.max(1) as u64) as usize
}
