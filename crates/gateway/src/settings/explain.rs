//! Errors of the parser in an operator's words: the key, its value, and the remedy.

use std::ops::Range;

use super::keys;
use super::kinds::{Kind, Time};
use super::places::Places;

/// Returns the permitted values of the key at `path`, or of a key with that name.
pub(super) fn permitted_values(path: &str) -> String {
    match path {
        "frontends" | "backends" | "listener" => format!("[[{path}]] above the keys of each entry"),
        _ => match keys::at(path).or_else(|| keys::all().find(|key| key.name == path)) {
            Some(key) => key.permitted(),
            None => SECTIONS.to_owned(),
        },
    }
}

/// The sections and tables that a file may have.
const SECTIONS: &str = "[frontend], [[backends]], [[listener]], [backend], [edge], [[frontends]], [hop], [limits] or \
                        [admin], and their keys below";

/// Rewords the parser's `message` about the bytes at `at` of `text`.
pub(super) fn explained(message: &str, at: &Range<usize>, text: &str) -> String {
    let message = message.lines().next().unwrap_or_default();
    let there = text.get(at.clone()).unwrap_or_default();
    if let Some(unknown) = message.strip_prefix("unknown field `") {
        return unknown_key(unknown).unwrap_or_else(|| message.to_owned());
    }
    if let Some(key) = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return format!("the key {key} is missing: write {key} = {}", permitted_values(key));
    }
    if message.starts_with("duplicate key") {
        return match text.get(..at.start).is_some_and(|before| before.ends_with('[')) {
            true => format!("the section [{there}] occurs twice: put its keys into one"),
            false => format!("the key '{there}' occurs twice: remove one"),
        };
    }
    if message.starts_with("string values must be quoted") {
        return format!("a text needs quotes: write \"{there}\"");
    }
    let ours = ["invalid type", "invalid value", "unknown variant", "invalid IP address", "wanted string"];
    // The TOML parser returns a date as a map with this private key.
    let is_date = message.contains("$__toml_private");
    match is_date || ours.iter().any(|begins| message.starts_with(begins)) {
        true => wrong_value(at, text).unwrap_or_else(|| message.to_owned()),
        false => message.to_owned(),
    }
}

/// Returns the error for a value that its key does not permit.
fn wrong_value(at: &Range<usize>, text: &str) -> Option<String> {
    let places = Places::of(text);
    let path = places.of_value(at.start)?;
    let key = path.rsplit('.').next()?;
    let written = places.written(text, path)?;
    if keys::at(path).is_some_and(|key| key.value_name == Time::VALUE_NAME) && written.parse::<u64>().is_ok()
    {
        return Some(format!("{key} = {written}: add the unit, for instance \"{written}s\""));
    }
    match written.starts_with('[') && !written.ends_with(']') || written.starts_with(&format!("[{key}")) {
        true => Some(format!("{key}: write {}", permitted_values(path))),
        false => Some(format!("{key} = {written}: write {}", permitted_values(path))),
    }
}

/// Rewords ``UNKNOWN`, expected one of ...``: names the key that was probably meant.
fn unknown_key(rest: &str) -> Option<String> {
    let (unknown, expected) = rest.split_once('`')?;
    let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    Some(format!("there is no key '{unknown}' here; {}", brisk_link::suggest("", unknown, &known)))
}
