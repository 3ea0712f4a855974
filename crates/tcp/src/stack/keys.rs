//! The secrets of a stack, all derived from its seed.
//!
//! One ChaCha20 stream per purpose, so that a change in how many values one purpose draws does not
//! shift those of another, and knowing the keys of one purpose tells nothing of the others.

use rand_chacha::ChaCha20Rng;
use rand_core::{RngCore, SeedableRng};

/// A key of SipHash.
pub(crate) type Key = [u8; 16];

/// What a stream of chance is used for. The number is the ChaCha stream: never give one away twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(crate) enum Purpose {
    /// Initial sequence numbers.
    InitialSequence = 1,
    /// Offsets of the timestamp clocks.
    TimestampOffset = 2,
    /// Choice of the ephemeral port.
    Ports = 3,
    /// SYN cookies.
    SynCookies = 4,
    /// The hash of the connection table.
    Demux = 5,
    /// The jitter of the challenge-ACK limit.
    ChallengeLimit = 6,
    /// The jitter of the reset limit.
    ResetLimit = 7,
    /// Fast Open cookies.
    FastOpen = 8,
}

/// The stream of chance for `purpose`.
pub(crate) fn stream(seed: u64, purpose: Purpose) -> ChaCha20Rng {
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    rng.set_stream(purpose as u64);
    rng
}

/// Draws a key.
pub(crate) fn key(rng: &mut ChaCha20Rng) -> Key {
    let mut key = [0; 16];
    rng.fill_bytes(&mut key);
    key
}

/// Draws a number below `bound`; 0 if `bound` is 0. The bias is below 2^-32.
pub(crate) fn below(rng: &mut ChaCha20Rng, bound: u32) -> u32 {
    (((rng.next_u64() >> 32) * u64::from(bound)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_purpose_has_a_stream_of_its_own() {
        let isn = key(&mut stream(1, Purpose::InitialSequence));
        assert_eq!(isn, key(&mut stream(1, Purpose::InitialSequence)), "the seed decides");
        assert_ne!(isn, key(&mut stream(1, Purpose::Demux)));
        assert_ne!(isn, key(&mut stream(2, Purpose::InitialSequence)));
    }

    #[test]
    fn a_bounded_draw_stays_below_its_bound() {
        let mut rng = stream(1, Purpose::Ports);
        assert!((0..1000).map(|_| below(&mut rng, 7)).all(|n| n < 7));
        assert_eq!(below(&mut rng, 0), 0);
    }
}
