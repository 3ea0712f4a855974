//! The bytes that scripts transfer: not zeros, so that a byte at the wrong place shows.

/// Byte `offset` of a stream, in either direction.
pub(crate) fn byte(offset: u64) -> u8 {
    offset.wrapping_mul(7).wrapping_add(3) as u8
}

/// `len` bytes from `offset` on.
pub(crate) fn bytes(offset: u64, len: usize) -> Vec<u8> {
    (offset..).take(len).map(byte).collect()
}
