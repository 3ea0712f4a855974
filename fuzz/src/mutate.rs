//! Seeded mutations of an input, as in a fuzzer without coverage.

use rand_chacha::ChaCha8Rng;
use rand_core::RngCore;

/// Maximum length of an input.
const LONGEST: usize = 4096;

/// Bytes that often reveal errors.
const INTERESTING: [u8; 12] = [0, 1, 2, 7, 16, 40, 63, 64, 127, 128, 254, 255];

/// Changes `input` in one to eight places; pieces of `other`, an input of the same target, may be inserted.
pub fn mutate(input: &mut Vec<u8>, other: &[u8], chance: &mut ChaCha8Rng) {
    for _ in 0..=below(chance, 8) {
        once(input, other, chance);
    }
    input.truncate(LONGEST);
}

fn once(input: &mut Vec<u8>, other: &[u8], chance: &mut ChaCha8Rng) {
    if input.contains(&b'\n') && below(chance, 2) == 0 {
        return one_line(input, other, chance);
    }
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

/// Removes a line, inserts one of its own or of `other`, or changes a digit.
fn one_line(input: &mut Vec<u8>, other: &[u8], chance: &mut ChaCha8Rng) {
    let lines: Vec<&[u8]> = input.split_inclusive(|byte| *byte == b'\n').collect();
    let others: Vec<&[u8]> = other.split_inclusive(|byte| *byte == b'\n').collect();
    let at = below(chance, lines.len());
    let start: usize = lines.iter().take(at).map(|line| line.len()).sum();
    let len = lines.get(at).map_or(0, |line| line.len());
    let from = if below(chance, 2) == 0 { &lines } else { &others };
    let line = from.get(below(chance, from.len())).map_or(Vec::new(), |line| line.to_vec());
    match below(chance, 4) {
        0 => drop(input.drain(start..start + len)),
        1 => drop(input.splice(start..start, line)),
        2 => drop(input.splice(start..start + len, line)),
        _ => {
            let digits: Vec<usize> = (start..start + len).filter(|at| input[*at].is_ascii_digit()).collect();
            if let Some(&at) = digits.get(below(chance, digits.len())) {
                input[at] = b'0' + below(chance, 10) as u8;
            }
        }
    }
}

/// Returns a number below `bound`, which is not zero.
fn below(chance: &mut ChaCha8Rng, bound: usize) -> usize {
    (chance.next_u64() % bound.max(1) as u64) as usize
}
