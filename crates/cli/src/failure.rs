//! The failure of a subcommand: one line for the user, and the exit status.
//!
//! The line has the failed action, the value and the remedy. Status 1 is a failure at run time; status 2 is
//! an invalid command line (clap uses 2 for the same purpose).

use std::path::Path;
use std::process::ExitCode;

use brisk_gateway::settings::Places;

/// Why the program ends with a status other than 0.
#[derive(Debug)]
pub(crate) struct Failure {
    /// One line: failed action, value, remedy.
    pub(crate) message: String,
    /// The exit status: 1 failed, 2 usage.
    pub(crate) code: u8,
    /// The key of the gateway's configuration that caused it: `hop.device`.
    pub(crate) about: Option<&'static str>,
}

impl Failure {
    /// A failure at run time: status 1.
    pub(crate) fn failed(message: impl std::fmt::Display) -> Failure {
        Failure { message: message.to_string(), code: 1, about: None }
    }

    /// An invalid command line: status 2.
    pub(crate) fn usage(message: impl std::fmt::Display) -> Failure {
        Failure { message: message.to_string(), code: 2, about: None }
    }

    /// Names the key that caused it; the key may be missing in the file.
    pub(crate) fn about(self, key: &'static str) -> Failure {
        Failure { about: Some(key), ..self }
    }

    /// Names the file at `path` as the cause, with the line of the key, or of the section if the key is
    /// missing.
    pub(crate) fn in_file(self, path: &Path) -> Failure {
        let places = Places::of(&std::fs::read_to_string(path).unwrap_or_default());
        let line = self.about.and_then(|key| places.line(key)).map(|line| format!(":{line}"));
        Failure {
            message: format!("{}{}: {}", path.display(), line.unwrap_or_default(), self.message),
            ..self
        }
    }

    /// Prints the line to stderr, and returns the exit status.
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
