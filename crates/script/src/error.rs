//! An error in a script, or in the stack that it was run against: file, line and what to see.

use thiserror::Error;

/// A script that cannot be understood, or a stack that did not do what the script says.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{file}:{line}: {message}")]
pub struct ScriptError {
    /// The file as it was named.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The error. Of a packet that differs: the fields, then the expected and the actual packet one
    /// above the other.
    pub message: String,
}

impl ScriptError {
    pub(crate) fn new(file: &str, line: u32, message: impl Into<String>) -> ScriptError {
        ScriptError { file: file.to_owned(), line, message: message.into() }
    }
}
