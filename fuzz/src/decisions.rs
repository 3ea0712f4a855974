//! Bytes as decisions: how a fuzzer's input, or a random buffer, drives structured code.
//!
//! Every decision takes the fewest bytes that it needs from the front, so that a small change of the
//! input is a small change of the run. When the bytes run out, every decision is the first choice and
//! [`Decisions::is_over`] tells the loop to end.

/// Decisions that have not been taken yet.
#[derive(Clone, Debug)]
pub struct Decisions<'a> {
    rest: &'a [u8],
}

impl<'a> Decisions<'a> {
    /// The decisions in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Decisions { rest: bytes }
    }

    /// Whether every byte has been used.
    pub fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *first
    }

    /// Two bytes.
    pub fn short(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// Four bytes.
    pub fn word(&mut self) -> u32 {
        u32::from(self.short()) << 16 | u32::from(self.short())
    }

    /// A number below `bound`, which is at least 1 and at most 256; one byte.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    /// True in one of `odds` cases; one byte.
    pub fn one_in(&mut self, odds: usize) -> bool {
        self.below(odds) == odds.saturating_sub(1)
    }

    /// One of `choices`, which are not none.
    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// Up to `len` bytes as they are.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// Everything that is left.
    pub fn all(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.rest)
    }
}
