//! The differences that are deliberate, each with a matcher as narrow as its reason.

use super::compare::{Difference, What};
use super::record::Record;

/// Why a difference is none that needs mending.
#[derive(Clone, Copy)]
pub struct Explanation {
    /// A short name, for the summary.
    pub name: &'static str,
    /// What either does, and which RFC or which part of Linux says so.
    pub reason: &'static str,
    /// True if it explains this difference of these records, ours first.
    pub matches: fn(&Difference, &Record, &Record) -> bool,
}

/// The list.
pub const EXPLANATIONS: &[Explanation] = &[];

/// The first entry that explains a difference.
pub fn explain(difference: &Difference, ours: &Record, kernel: &Record) -> Option<&'static Explanation> {
    EXPLANATIONS.iter().find(|entry| (entry.matches)(difference, ours, kernel))
}

#[allow(dead_code)]
fn is_value(difference: &Difference, field: &str) -> bool {
    matches!(&difference.what, What::Value(name) if name == field)
}
