//! The Internet checksum (RFC 1071), its pseudo headers, partial sums and incremental update (RFC 1624).
//!
//! The sum is kept in 64 bits and folded once at the end. Until then its value does not depend on byte order,
//! so the inner loop reads native words, and the fold swaps the bytes once.

use core::net::IpAddr;

/// A ones-complement sum over a byte sequence that may arrive in pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum {
    /// Ones-complement sum of the 16-bit words in native byte order, not folded.
    words: u64,
    /// True if an odd number of bytes was added: the next piece starts in the low half of a word.
    odd: bool,
}

impl Sum {
    /// Returns an empty sum.
    pub const fn new() -> Self {
        Sum { words: 0, odd: false }
    }

    /// Returns the sum of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let mut sum = Sum::new();
        sum.add(bytes);
        sum
    }

    /// Returns the sum of the pseudo header of TCP over IPv4 (RFC 9293 section 3.1) or of any upper layer
    /// over IPv6 (RFC 8200 section 8.1). `len` is the upper-layer length in bytes. The function also accepts
    /// addresses of different families, but [`emit`](crate::emit) refuses to write such packets.
    #[inline]
    pub fn pseudo_header(src: IpAddr, dst: IpAddr, protocol: u8, len: u32) -> Self {
        let words = u64::from(len.to_be()) + u64::from(u16::from(protocol).to_be());
        let addresses = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                u64::from(u32::from_ne_bytes(src.octets())) + u64::from(u32::from_ne_bytes(dst.octets()))
            }
            (src, dst) => wide_add(address_sum(src), address_sum(dst)),
        };
        Sum { words: wide_add(words, addresses), odd: false }
    }

    /// Returns the sum of a header of `4 * N` bytes.
    pub(crate) fn of_words<const N: usize>(words: &[[u8; 4]; N]) -> Self {
        let words = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
        Sum { words, odd: false }
    }

    /// Adds the next `bytes` of the sequence. Pieces may have odd lengths.
    pub fn add(&mut self, bytes: &[u8]) {
        let piece = native_sum(bytes);
        self.words = wide_add(self.words, if self.odd { u64::from(fold(piece).swap_bytes()) } else { piece });
        self.odd ^= bytes.len() % 2 == 1;
    }

    /// Appends the bytes that `other` has summed, so that parts can be summed separately.
    #[must_use]
    pub fn combine(self, other: Sum) -> Sum {
        let piece = if self.odd { u64::from(fold(other.words).swap_bytes()) } else { other.words };
        Sum { words: wide_add(self.words, piece), odd: self.odd ^ other.odd }
    }

    /// Returns the sum folded to 16 bits, not complemented. Devices with checksum offload expect this value
    /// in the checksum field.
    pub fn fold(self) -> u16 {
        u16::from_be(fold(self.words))
    }

    /// Returns the checksum: the complement of the folded sum. The result is zero for data that includes a
    /// correct checksum.
    pub fn finish(self) -> u16 {
        !self.fold()
    }
}

/// Returns the checksum `check` after the covered bytes `old` changed to `new` (RFC 1624 equation 3). These
/// bytes begin at an even offset of the data. `old` and `new` have the same even length.
#[must_use]
pub fn update(check: u16, old: &[u8], new: &[u8]) -> u16 {
    // HC' = ~(~HC + ~m + m')
    let removed = Sum { words: u64::from((!Sum::of(old).fold()).to_be()), odd: false };
    let before = Sum { words: u64::from((!check).to_be()), odd: false };
    before.combine(removed).combine(Sum::of(new)).finish()
}

/// Returns the new value of the checksum `check` after a covered 16-bit word changed from `old` to `new`.
#[must_use]
pub fn update_u16(check: u16, old: u16, new: u16) -> u16 {
    update(check, &old.to_be_bytes(), &new.to_be_bytes())
}

fn address_sum(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(v4) => u64::from(u32::from_ne_bytes(v4.octets())),
        IpAddr::V6(v6) => native_sum(&v6.octets()),
    }
}

/// Returns the sum of the 16-bit words of `bytes` in native order; an odd last byte is padded with zero.
fn native_sum(bytes: &[u8]) -> u64 {
    // Adding eight bytes takes one addition with carry. 128-bit vectors would need three or four
    // instructions, because they must first widen 32-bit words to 64 bits. Carries between blocks are counted
    // separately, so that no block depends on the previous one.
    let (mut lanes, mut carries) = ([0u64; 4], 0);
    let (blocks, rest) = bytes.as_chunks::<32>();
    for block in blocks {
        let mut carry = false;
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
            (*lane, carry) = lane.carrying_add(u64::from_ne_bytes(*word), carry);
        }
        carries += u64::from(carry);
    }
    let mut sum = lanes.into_iter().fold(carries, wide_add);
    let (words, rest) = rest.as_chunks::<8>();
    for word in words {
        sum = wide_add(sum, u64::from_ne_bytes(*word));
    }
    let (words, rest) = rest.as_chunks::<4>();
    for word in words {
        sum = wide_add(sum, u64::from(u32::from_ne_bytes(*word)));
    }
    let (words, last) = rest.as_chunks::<2>();
    for word in words {
        sum = wide_add(sum, u64::from(u16::from_ne_bytes(*word)));
    }
    if let [byte] = last {
        sum = wide_add(sum, u64::from(u16::from_ne_bytes([*byte, 0])));
    }
    sum
}

/// Adds 64-bit numbers in ones complement: the carry is added at the low end.
fn wide_add(a: u64, b: u64) -> u64 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u64::from(carry)
}

/// Folds 64 bits to 16 with end-around carry.
fn fold(words: u64) -> u16 {
    let (sum, carry) = (words as u32).overflowing_add((words >> 32) as u32);
    let sum = sum + u32::from(carry);
    let (sum, carry) = (sum as u16).overflowing_add((sum >> 16) as u16);
    sum + u16::from(carry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// Computes the sum as RFC 1071 defines it, word by word.
    fn reference(bytes: &[u8]) -> u16 {
        let mut sum: u32 = 0;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn example_of_rfc_1071() {
        let sum = Sum::of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!((sum.fold(), sum.finish()), (0xddf2, 0x220d));
    }

    #[test]
    fn a_well_known_ipv4_header_sums_to_zero() {
        let header = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00, 0x01,
            0xc0, 0xa8, 0x00, 0xc7,
        ];
        assert_eq!(Sum::of(&header).finish(), 0);
    }

    #[test]
    fn example_of_rfc_1624() {
        // Section 4: the header checksum 0xDD2F with a field that goes from 0x5555 to 0x3285 becomes 0.
        assert_eq!(update_u16(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn pseudo_header_sum_equals_that_of_its_bytes() {
        let v4 = Sum::pseudo_header([192, 0, 2, 1].into(), [198, 51, 100, 9].into(), 6, 1234);
        assert_eq!(v4.fold(), reference(&[192, 0, 2, 1, 198, 51, 100, 9, 0, 6, 0x04, 0xd2]));
        for (src, dst) in [([0x11u8; 16], [0x2fu8; 16]), ([0xff; 16], [0xff; 16])] {
            let v6 = Sum::pseudo_header(src.into(), dst.into(), 58, 70000);
            let bytes: Vec<u8> = [&src[..], &dst, &70000u32.to_be_bytes(), &[0, 0, 0, 58]].concat();
            assert_eq!(v6.fold(), reference(&bytes));
        }
    }

    #[test]
    fn sums_that_carry_at_every_word_stay_right() {
        for len in 0..200 {
            assert_eq!(Sum::of(&std::vec![0xff; len]).fold(), reference(&std::vec![0xff; len]), "{len}");
        }
    }

    proptest! {
        #[test]
        fn pieces_of_any_length_sum_like_the_whole(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            cuts in proptest::collection::vec(0usize..300, 0..4),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let (mut added, mut combined) = (Sum::new(), Sum::new());
            for pair in cuts.windows(2) {
                added.add(&bytes[pair[0]..pair[1]]);
                combined = combined.combine(Sum::of(&bytes[pair[0]..pair[1]]));
            }
            prop_assert_eq!(Sum::of(&bytes).fold(), reference(&bytes));
            prop_assert_eq!(added.fold(), reference(&bytes));
            prop_assert_eq!(combined.fold(), reference(&bytes));
        }

        #[test]
        fn an_updated_checksum_still_verifies(
            mut bytes in proptest::collection::vec(any::<u8>(), 12..60),
            word in 1usize..3,
            new: u32,
        ) {
            // The checksum is the first word; the changed word comes later.
            bytes[..2].fill(0);
            let check = Sum::of(&bytes).finish();
            let at = word * 4;
            let old = u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
            bytes[at..at + 4].copy_from_slice(&new.to_be_bytes());
            bytes[..2].copy_from_slice(&update(check, &old.to_be_bytes(), &new.to_be_bytes()).to_be_bytes());
            prop_assert_eq!(Sum::of(&bytes).finish(), 0);
        }
    }
}
