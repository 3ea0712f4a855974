//! The error in a link description, in one line: the flag, the problem and the remedy.
//!
//! The message names the flag that the user typed, or the line of a plan, and the nearest valid input.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// Error in a link description. Prints as `--rate 20mbt: 'mbt' is not a unit of rate; use ...`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpecError {
    key: Option<String>,
    value: String,
    problem: String,
    remedy: String,
}

impl SpecError {
    /// Returns an error about `value`. `problem` and `remedy` become one sentence, joined by a semicolon.
    pub fn new(value: &str, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        SpecError { key: None, value: value.into(), problem: problem.into(), remedy: remedy.into() }
    }

    /// Adds the flag `key` (without dashes) and its whole value to the error.
    #[must_use]
    pub fn at(self, key: &str, value: &str) -> Self {
        SpecError { key: Some(key.into()), value: value.into(), ..self }
    }

    /// Returns the flag, without dashes, if there is one.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Returns the invalid text.
    pub fn value(&self) -> &str {
        &self.value
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            Some(key) if self.value.is_empty() => write!(f, "--{key}: ")?,
            Some(key) => write!(f, "--{key} {}: ", self.value)?,
            // Without a flag the problem usually contains the value.
            None if self.value.is_empty() || self.problem.contains(self.value.as_str()) => {}
            None => write!(f, "'{}': ", self.value)?,
        }
        write!(f, "{}; {}", self.problem, self.remedy)
    }
}

impl core::error::Error for SpecError {}

/// Returns `did you mean X?` for a similar known word, otherwise the whole list: `use a, b or c`. Each word
/// follows `prefix`.
pub fn suggest(prefix: &str, word: &str, known: &[&str]) -> String {
    match nearest(word, known) {
        Some(near) => format!("did you mean {prefix}{near}?"),
        None => format!("use {}", listed(prefix, known)),
    }
}

/// Returns `a, b or c`.
fn listed(prefix: &str, words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("{prefix}{word}")).collect();
    match words.as_slice() {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// Returns the known word with the fewest edits: at most one, or a third of its letters if that is more.
fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let distance = |candidate: &&str| edit_distance(&word.to_ascii_lowercase(), candidate);
    let best = known.iter().min_by_key(|candidate| distance(candidate))?;
    let allowed = (best.len() / 3).max(1);
    (distance(best) <= allowed).then_some(*best)
}

/// Returns the Levenshtein distance with swaps of neighbours (optimal string alignment), on characters.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut previous: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = Vec::with_capacity(b.len() + 1);
        row.push(i);
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (previous[j] + 1).min(row[j - 1] + 1).min(previous[j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = previous;
        previous = row;
    }
    previous.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn distance_counts_edits_and_swaps() {
        assert_eq!(edit_distance("rate", "rate"), 0);
        assert_eq!(edit_distance("raet", "rate"), 1);
        assert_eq!(edit_distance("mbt", "mbit"), 1);
        assert_eq!(edit_distance("", "loss"), 4);
    }

    #[test]
    fn similar_word_is_suggested_otherwise_all_are_listed() {
        assert_eq!(suggest("", "jiter", &["rate", "jitter"]), "did you mean jitter?");
        assert_eq!(suggest("--", "speed", &["rate", "jitter", "loss"]), "use --rate, --jitter or --loss");
    }

    #[test]
    fn the_message_names_the_flag_and_the_value() {
        let error = SpecError::new("mbt", "'mbt' is not a unit of rate", "use mbit").at("rate", "20mbt");
        assert_eq!(error.to_string(), "--rate 20mbt: 'mbt' is not a unit of rate; use mbit");
        assert_eq!(error.key(), Some("rate"));
    }
}
