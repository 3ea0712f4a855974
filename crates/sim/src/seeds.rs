//! Seeds by name: every element draws from a generator of its own, derived from the seed of the run
//! and the element's name, so that switching one on or off does not shift the draws of another.

use brisk_link::seeds::Name;

/// The seed of the element `name` of a run with `seed`.
pub fn derive(seed: u64, name: impl Into<Name>) -> u64 {
    brisk_link::seeds::draws(seed, name).next_u64()
}

/// The seed of transaction `index` of an experiment with `seed`. Every arm of a comparison uses the
/// same one, so that transaction `index` meets the same losses in each.
pub fn of_transaction(seed: u64, index: u64) -> u64 {
    derive(seed, Name::new("transaction ").numbered(index))
}
