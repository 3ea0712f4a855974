//! Seeds by name. Every element has its own generator, derived from the seed of the run and the element's
//! name. So switching an element off does not change the random numbers of another.

use brisk_link::seeds::Name;

/// Returns the seed of the element `name` of a run with `seed`.
pub fn derive(seed: u64, name: impl Into<Name>) -> u64 {
    brisk_link::seeds::draws(seed, name).next_u64()
}

/// Returns the seed of transaction `index` of an experiment with `seed`. All variants of a comparison use the
/// same seed, so that transaction `index` has the same losses in each.
pub fn of_transaction(seed: u64, index: u64) -> u64 {
    derive(seed, Name::new("transaction ").numbered(index))
}
