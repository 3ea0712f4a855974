//! An error in a script, or a difference between the stack and the script: file, line and message.

use thiserror::Error;

/// A script that is not valid, or a stack that behaves differently from the script.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{file}:{line}: {message}")]
pub struct ScriptError {
    /// Name of the file.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The error. For a packet that differs: the fields, then the expected packet above the actual one.
    pub message: String,
}

impl ScriptError {
    pub(crate) fn new(file: &str, line: u32, message: impl Into<String>) -> ScriptError {
        ScriptError { file: file.to_owned(), line, message: message.into() }
    }
}
