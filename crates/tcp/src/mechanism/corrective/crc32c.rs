//! CRC-32C (Castagnoli) of bytes that lie in several pieces.
//!
//! Processors have an instruction for it, several times as fast as tables. Only std can ask a processor whether it has
//! that, so the crate that uses it is behind the feature `hardware-crc`; without the feature tables do the same.

/// The checksum of `bytes` behind those of which it is `crc`; that of nothing is 0.
#[cfg(feature = "hardware-crc")]
pub(super) fn append(crc: u32, bytes: &[u8]) -> u32 {
    ::crc32c::crc32c_append(crc, bytes)
}

/// The checksum of `bytes` behind those of which it is `crc`; that of nothing is 0.
#[cfg(not(feature = "hardware-crc"))]
pub(super) fn append(crc: u32, bytes: &[u8]) -> u32 {
    by_table(crc, bytes)
}

/// [`append`] in any build: of the library's forms the one that takes 16 bytes at a time.
#[cfg(any(test, not(feature = "hardware-crc")))]
fn by_table(crc: u32, bytes: &[u8]) -> u32 {
    static TABLES: ::crc::Crc<u32, ::crc::Table<16>> = ::crc::Crc::<u32, _>::new(&::crc::CRC_32_ISCSI);
    // The library wants the state in the order of bits of the polynomial.
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

    proptest! {
        #[test]
        fn tables_and_instructions_agree(bytes: std::vec::Vec<u8>, cut: prop::sample::Index) {
            let (front, back) = bytes.split_at(cut.index(bytes.len() + 1));
            prop_assert_eq!(append(append(0, front), back), by_table(0, &bytes));
        }
    }
}
