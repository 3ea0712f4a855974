//! GF(2^8), the field in which the parities are computed. Addition is XOR. Multiplication is that of
//! polynomials over GF(2) modulo x^8 + x^4 + x^3 + x^2 + 1 (0x11d), as in most Reed-Solomon codes.
//!
//! Blocks of bytes are never multiplied through tables. A sum `c1*D1 + c2*D2 + ...` is computed from the
//! highest bit of the factors to the lowest: double the sum so far, then add every `D` whose factor has the
//! bit. Both operations treat all bytes of a block alike, so the compiler turns them into vector
//! instructions. A factor of 1 costs one XOR.

/// The low byte of the field's polynomial.
const POLYNOMIAL: u8 = 0x1d;

/// Powers of the generator 2, in two periods, so that a sum of two logarithms needs no reduction.
const EXP: [u8; 510] = exponentials();
/// Logarithms to the base 2; that of 0 is undefined.
const LOG: [u8; 256] = logarithms();

pub(crate) const fn double(a: u8) -> u8 {
    (a << 1) ^ (POLYNOMIAL * (a >> 7))
}

pub(crate) const fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    EXP[LOG[a as usize] as usize + LOG[b as usize] as usize]
}

/// Returns `1 / a`; `None` for 0.
pub(crate) const fn inverse(a: u8) -> Option<u8> {
    if a == 0 { None } else { Some(EXP[255 - LOG[a as usize] as usize]) }
}

/// Adds `bytes` to the front of `sum`, byte by byte, up to the end of the shorter one.
pub(crate) fn add(sum: &mut [u8], bytes: &[u8]) {
    for (sum, byte) in sum.iter_mut().zip(bytes) {
        *sum ^= byte;
    }
}

pub(crate) fn double_all(bytes: &mut [u8]) {
    for byte in bytes {
        *byte = double(*byte);
    }
}

const fn exponentials() -> [u8; 510] {
    let mut table = [0; 510];
    let (mut power, mut index) = (1, 0);
    while index < table.len() {
        table[index] = power;
        power = double(power);
        index += 1;
    }
    table
}

const fn logarithms() -> [u8; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 255 {
        table[EXP[index] as usize] = index as u8;
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplies by the definition: shift and add, reduce.
    fn mul_by_definition(a: u8, b: u8) -> u8 {
        (0..8).rev().fold(0, |sum, bit| double(sum) ^ if b >> bit & 1 == 1 { a } else { 0 })
    }

    #[test]
    fn the_tables_agree_with_the_definition() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(mul(a, b), mul_by_definition(a, b), "{a} * {b}");
            }
            assert_eq!(inverse(a).map(|inverse| mul(inverse, a)), (a != 0).then_some(1));
        }
        assert_eq!((mul(0x80, 2), mul(0x8e, 2)), (0x1d, 1), "the polynomial is 0x11d");
    }

    #[test]
    fn bytes_in_bulk_follow_the_same_rules() {
        let mut bytes: [u8; 256] = core::array::from_fn(|index| index as u8);
        let before = bytes;
        double_all(&mut bytes);
        assert!(before.iter().zip(&bytes).all(|(before, after)| mul(*before, 2) == *after));
        add(&mut bytes, &before[..100]);
        assert!((0..100).all(|index| bytes[index] == mul(before[index], 3)));
        assert!((100..256).all(|index| bytes[index] == mul(before[index], 2)));
    }
}
