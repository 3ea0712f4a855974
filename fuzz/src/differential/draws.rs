//! The random choices of a script, from its seed.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// A generator of choices.
pub(super) struct Draws(ChaCha8Rng);

impl Draws {
    pub(super) fn new(seed: u64) -> Draws {
        Draws(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Returns a number of `low..=high`.
    pub(super) fn between(&mut self, low: i64, high: i64) -> i64 {
        let span = high.saturating_sub(low).max(0).unsigned_abs() + 1;
        low + (self.0.next_u64() % span) as i64
    }

    /// Returns true in this percentage of cases.
    pub(super) fn percent(&mut self, percent: i64) -> bool {
        self.between(0, 99) < percent
    }

    /// Returns one of these.
    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.between(0, of.len() as i64 - 1) as usize]
    }
}
