//! Bytes as decisions: the input of a fuzzer, or a random buffer, drives structured code.
//!
//! Every decision takes as few bytes as possible from the front, so that a small change of the input is a
//! small change of the run. After the last byte every decision is the first choice, and
//! [`Decisions::is_over`] ends the loop.

/// The remaining decisions.
#[derive(Clone, Debug)]
pub struct Decisions<'a> {
    rest: &'a [u8],
}

impl<'a> Decisions<'a> {
    /// Returns the decisions in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Decisions { rest: bytes }
    }

    /// True if every byte has been used.
    pub fn is_over(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes one byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *first
    }

    /// Takes two bytes.
    pub fn short(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// Takes four bytes.
    pub fn word(&mut self) -> u32 {
        u32::from(self.short()) << 16 | u32::from(self.short())
    }

    /// Returns a number below `bound`, which is 1 to 256; takes one byte.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    /// Returns true in one of `odds` cases; takes one byte.
    pub fn one_in(&mut self, odds: usize) -> bool {
        self.below(odds) == odds.saturating_sub(1)
    }

    /// Returns one of `choices`, which must not be empty.
    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())].clone()
    }

    /// Takes up to `len` bytes unchanged.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// Takes all remaining bytes.
    pub fn all(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.rest)
    }
}
