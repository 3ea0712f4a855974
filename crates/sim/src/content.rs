//! The bytes that applications exchange: a fixed pattern, so that a receiver can check every byte by its
//! offset in the stream.

/// The pattern repeats after this many bytes: a prime, so that no segment size divides it.
const PERIOD: usize = 251;
const CHUNK: usize = 16 << 10;

static PATTERN: [u8; PERIOD + CHUNK] = {
    let mut bytes = [0; PERIOD + CHUNK];
    let mut i = 0;
    while i < bytes.len() {
        bytes[i] = (i % PERIOD) as u8;
        i += 1;
    }
    bytes
};

/// Returns the bytes of the stream from `offset` on: at most `max`, and at most 16 KiB.
pub(crate) fn from(offset: u64, max: u64) -> &'static [u8] {
    let start = (offset % PERIOD as u64) as usize;
    let len = max.min(CHUNK as u64) as usize;
    &PATTERN[start..start + len]
}

/// True if `bytes` equal the stream from `offset` on.
pub(crate) fn matches(mut offset: u64, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        let expected = from(offset, bytes.len() as u64);
        let (head, rest) = bytes.split_at(expected.len());
        if head != expected {
            return false;
        }
        offset += head.len() as u64;
        bytes = rest;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_read_in_any_pieces_matches_itself() {
        let mut stream = Vec::new();
        while stream.len() < 40_000 {
            stream.extend_from_slice(from(stream.len() as u64, 1_461));
        }
        assert!(matches(0, &stream) && matches(17_003, &stream[17_003..]));
        stream[20_000] ^= 1;
        assert!(!matches(0, &stream));
        assert!(!matches(1, &stream[..100]), "shifted by one");
    }
}
