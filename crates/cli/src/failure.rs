//! How a subcommand says that it did not work: one line for the user and the exit status.
//!
//! The line says what failed, where, and what to do about it. Status 1 is a failure at work, 2 a
//! command that cannot be meant (clap uses 2 for the same purpose).

use std::path::Path;
use std::process::ExitCode;

use brisk_gateway::settings::Places;

/// Why the program ends with a status other than 0.
#[derive(Debug)]
pub(crate) struct Failure {
    /// One line: what, where, what to do.
    pub(crate) message: String,
    /// The exit status: 1 failed, 2 usage.
    pub(crate) code: u8,
    /// The key of the gateway's configuration that it is about: `hop.device`.
    pub(crate) about: Option<&'static str>,
}

impl Failure {
    /// Something went wrong at work: status 1.
    pub(crate) fn failed(message: impl std::fmt::Display) -> Failure {
        Failure { message: message.to_string(), code: 1, about: None }
    }

    /// The command line asks for what cannot be: status 2.
    pub(crate) fn usage(message: impl std::fmt::Display) -> Failure {
        Failure { message: message.to_string(), code: 2, about: None }
    }

    /// It is about this key, or about one that is not there.
    pub(crate) fn about(self, key: &'static str) -> Failure {
        Failure { about: Some(key), ..self }
    }

    /// It is about what is in the file at `path`: with the line of its key, or of the section where that is
    /// missing.
    pub(crate) fn in_file(self, path: &Path) -> Failure {
        let places = Places::of(&std::fs::read_to_string(path).unwrap_or_default());
        let line = self.about.and_then(|key| places.line(key)).map(|line| format!(":{line}"));
        Failure {
            message: format!("{}{}: {}", path.display(), line.unwrap_or_default(), self.message),
            ..self
        }
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
