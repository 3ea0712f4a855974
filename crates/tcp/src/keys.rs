//! The secrets of a stack, all derived from its seed.
//!
//! One stream of chance per purpose, so that a change in how many values one purpose draws does not
//! shift those of another, and knowing the draws of one purpose tells nothing of the others. A stream
//! is SipHash-2-4 of a counter under the seed and the purpose: a pseudorandom function with 24 bytes of
//! state and no set-up, which counts where a stack lives for one transaction.

use siphasher::sip::SipHasher24;

/// A key of SipHash.
pub(crate) type Key = [u8; 16];

/// Purpose of a random stream. The number tells the streams apart: never reuse one.
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

/// A stream of chance.
#[derive(Clone, Debug)]
pub(crate) struct Chance {
    key: Key,
    drawn: u64,
}

impl Chance {
    /// The stream of the stack with this seed for `purpose`.
    pub(crate) fn new(seed: u64, purpose: Purpose) -> Self {
        let mut key = [0; 16];
        let (secret, tag) = key.split_at_mut(8);
        secret.copy_from_slice(&seed.to_le_bytes());
        tag.copy_from_slice(&(purpose as u64).to_le_bytes());
        Chance { key, drawn: 0 }
    }

    /// Draws 64 bits.
    pub(crate) fn draw(&mut self) -> u64 {
        let drawn = SipHasher24::new_with_key(&self.key).hash(&self.drawn.to_le_bytes());
        self.drawn = self.drawn.wrapping_add(1);
        drawn
    }

    /// Draws a key.
    pub(crate) fn key(&mut self) -> Key {
        let mut key = [0; 16];
        let (low, high) = key.split_at_mut(8);
        low.copy_from_slice(&self.draw().to_le_bytes());
        high.copy_from_slice(&self.draw().to_le_bytes());
        key
    }

    /// Draws a number below `bound`; 0 if `bound` is 0. The bias is below 2^-32.
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        (((self.draw() >> 32) * u64::from(bound)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_purpose_has_a_stream_of_its_own() {
        let isn = Chance::new(1, Purpose::InitialSequence).key();
        assert_eq!(isn, Chance::new(1, Purpose::InitialSequence).key(), "the seed decides");
        assert_ne!(isn, Chance::new(1, Purpose::Demux).key());
        assert_ne!(isn, Chance::new(2, Purpose::InitialSequence).key());
    }

    #[test]
    fn a_bounded_draw_stays_below_its_bound() {
        let mut ports = Chance::new(1, Purpose::Ports);
        assert!((0..1000).map(|_| ports.below(7)).all(|n| n < 7));
        assert_eq!(ports.below(0), 0);
    }
}
