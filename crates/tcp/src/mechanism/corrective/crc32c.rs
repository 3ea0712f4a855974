//! CRC-32C (Castagnoli) of bytes in several pieces.
//!
//! Processors have an instruction for it, which is several times as fast as tables. Only std can detect the
//! instruction, so the crate that uses it needs the feature `hardware-crc`. Otherwise tables do the work.

/// Returns the checksum of a message extended by `bytes`. `crc`: the checksum so far, initially 0.
#[cfg(feature = "hardware-crc")]
pub(super) fn append(crc: u32, bytes: &[u8]) -> u32 {
    ::crc32c::crc32c_append(crc, bytes)
}

/// Returns the checksum of a message extended by `bytes`. `crc`: the checksum so far, initially 0.
#[cfg(not(feature = "hardware-crc"))]
pub(super) fn append(crc: u32, bytes: &[u8]) -> u32 {
    by_table(crc, bytes)
}

/// Implements [`append`] in any build, with the library's variant that processes 16 bytes at a time.
#[cfg(any(test, not(feature = "hardware-crc")))]
fn by_table(crc: u32, bytes: &[u8]) -> u32 {
    static TABLES: ::crc::Crc<u32, ::crc::Table<16>> = ::crc::Crc::<u32, _>::new(&::crc::CRC_32_ISCSI);
    // The library expects the state in the bit order of the polynomial.
    let mut digest = TABLES.digest_with_initial((!crc).reverse_bits());
    digest.update(bytes);
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_check_value_of_the_catalogue() {
        assert_eq!(append(0, b"123456789"), 0xe306_9283);
        assert_eq!(append(append(0, b"12345"), b"6789"), 0xe306_9283);
    }

    /// The library splits long pieces into three streams of 256 and of 8,192 bytes.
    #[test]
    fn long_pieces_come_out_as_by_table() {
        let bytes: std::vec::Vec<u8> =
            (0..60_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for len in [767, 768, 769, 24_575, 24_576, 24_577, 50_000] {
            for start in [0, 1, 7] {
                let piece = &bytes[start..start + len];
                assert_eq!(append(0, piece), by_table(0, piece), "{len} bytes from {start}");
            }
        }
    }

    proptest! {
        #[test]
        fn tables_and_instructions_agree(bytes: std::vec::Vec<u8>, cut: prop::sample::Index) {
            let (front, back) = bytes.split_at(cut.index(bytes.len() + 1));
            prop_assert_eq!(append(append(0, front), back), by_table(0, &bytes));
        }
    }
}
