//! How a subcommand says that it did not work: one line for the user and the exit status.
//!
//! The line says what failed, where, and what to do about it. Status 1 is a failure at work, 2 a
//! command that cannot be meant (clap uses 2 for the same purpose).

use std::process::ExitCode;

/// Why the program ends with a status other than 0.
#[derive(Debug)]
pub(crate) struct Failure {
    /// One line: what, where, what to do.
    pub(crate) message: String,
    /// The exit status: 1 failed, 2 usage.
    pub(crate) code: u8,
}

impl Failure {
    /// Something went wrong at work: status 1.
    pub(crate) fn failed(message: impl std::fmt::Display) -> Failure {
        Failure { message: message.to_string(), code: 1 }
    }

    /// The command line asks for what cannot be: status 2.
    pub(crate) fn usage(message: impl std::fmt::Display) -> Failure {
        Failure { message: message.to_string(), code: 2 }
    }

    /// Prints the line to stderr and turns into the exit status.
    pub(crate) fn report(self) -> ExitCode {
        eprintln!("brisk: {}", self.message);
        ExitCode::from(self.code)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::failed(error)
    }
}
