//! Reading settings from a file, and saying in one line what is wrong with it.

use std::io;
use std::path::Path;

use super::Settings;
use crate::hop::ephemeral::LONGEST_LIFETIME;

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// It cannot be read.
    #[error("{path}: the configuration cannot be read: {error}")]
    Unreadable {
        /// The file.
        path: String,
        /// What the system said.
        error: io::Error,
    },
    /// A line of it is wrong.
    #[error("{path}:{line}: {problem}")]
    Line {
        /// The file.
        path: String,
        /// Counted from 1.
        line: usize,
        /// What is wrong and what to write.
        problem: String,
    },
}

impl Settings {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, is no TOML, has a key that there is not, or a value that a key cannot have.
    pub fn load(path: &Path) -> Result<Settings, SettingsError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| SettingsError::Unreadable { path: name.clone(), error })?;
        Settings::parse(&text, &name)
    }

    /// Reads a text that came from `path`.
    ///
    /// # Errors
    /// As [`load`](Settings::load).
    pub fn parse(text: &str, path: &str) -> Result<Settings, SettingsError> {
        let wrong = |at: usize, problem: String| {
            let line = text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count() + 1;
            SettingsError::Line { path: path.to_owned(), line, problem }
        };
        let settings: Settings = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            wrong(at, explained(error.message()))
        })?;
        match out_of_range(&settings) {
            None => Ok(settings),
            Some((key, problem)) => Err(wrong(text.find(key).unwrap_or(0), format!("{key}: {problem}"))),
        }
    }
}

/// What the library says, with the key that was probably meant.
fn explained(message: &str) -> String {
    let message = message.lines().next().unwrap_or_default();
    let Some((_, rest)) = message.split_once("unknown field `") else { return message.to_owned() };
    let Some((unknown, expected)) = rest.split_once('`') else { return message.to_owned() };
    let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    let nearest = known.iter().min_by_key(|known| distance(unknown, known));
    match nearest {
        Some(nearest) if distance(unknown, nearest) <= 3 => {
            format!("there is no key '{unknown}' here; did you mean '{nearest}'?")
        }
        _ => format!("there is no key '{unknown}' here; the keys are {}", known.join(", ")),
    }
}

/// Letters to change, add or take away to make one word of the other (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// The first key whose value is out of its range.
fn out_of_range(settings: &Settings) -> Option<(&'static str, &'static str)> {
    let Settings { frontend, peers, backend, hop, limits, admin: _ } = settings;
    let second = std::time::Duration::from_secs(1);
    let checks = [
        ("first_bytes_wait", frontend.first_bytes_wait.is_some_and(|wait| wait > second), "0 to 1s"),
        ("first_bytes_limit", frontend.first_bytes_limit.is_some_and(|most| most > 10 * second), "0 to 10s"),
        (
            "replay_tolerance",
            backend.replay_tolerance.is_some_and(|time| time < second || time > 3600 * second),
            "1s to 1h",
        ),
        ("ephemeral_lifetime", hop.ephemeral_lifetime.is_some_and(|time| time > LONGEST_LIFETIME), "0 to 1m"),
        ("mtu", hop.mtu.is_some_and(|mtu| mtu < 576), "576 to 65535 bytes"),
        ("max_connections", limits.max_connections == Some(0), "1 or more"),
        (
            "header_timeout",
            limits.header_timeout.is_some_and(|limit| limit < second / 10 || limit > 60 * second),
            "100ms to 60s",
        ),
        ("weight", peers.iter().any(|peer| !(1..=1000).contains(&peer.weight)), "1 to 1000"),
    ];
    checks.into_iter().find(|(_, wrong, _)| *wrong).map(|(key, _, range)| (key, range))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Settings::parse(text, "brisk.toml").unwrap_err().to_string()
    }

    #[test]
    fn a_key_that_there_is_not_is_an_error_with_its_line_and_what_was_meant() {
        let text = "[frontend]\nlisten = ':80'\nfirst_byte_wait = '5ms'\n";
        let said = "brisk.toml:3: there is no key 'first_byte_wait' here; did you mean 'first_bytes_wait'?";
        assert_eq!(error(text), said);
        assert_eq!(
            error("[frontent]\n"),
            "brisk.toml:1: there is no key 'frontent' here; did you mean 'frontend'?"
        );
        assert!(
            error("[limits]\n\nspeed = 7").contains(":3: there is no key 'speed' here; the keys are max_")
        );
    }

    #[test]
    fn a_value_that_a_key_cannot_have_says_what_to_write() {
        let listen = error("[backend]\nlisten = 'localhost'");
        assert_eq!(
            listen,
            "brisk.toml:2: 'localhost': write ADDR:PORT or :PORT, for instance 127.0.0.1:8080"
        );
        for (text, says) in [
            ("[backend]\nsend_proxy = 'v3'", "write \"v1\" or \"v2\""),
            ("[backend]\nallow = ['x']", "origin.example:443"),
            ("[frontend]\nproxy_from = ['10.0.0.0/99']", "10.0.0.0/8"),
            ("[limits]\ndrain_timeout = 'soon'", "500ms"),
            ("[limits]\nmax_connections = 0", "max_connections: 1 or more"),
            ("[hop]\nephemeral_lifetime = '2m'", "ephemeral_lifetime: 0 to 1m"),
            ("[limits]\nheader_timeout = '0s'", "header_timeout: 100ms to 60s"),
            ("[hop]\nmtu = 100", "mtu: 576 to 65535"),
            ("[[backends]]\npeer = 'a:1'\nweight = 0", "weight: 1 to 1000"),
            ("[[backends]]\nweight = 1", "peer"),
            ("[hop\n", "brisk.toml:1: "),
            ("[frontend]\nfallback = 'never'", "none"),
        ] {
            let error = error(text);
            assert!(error.contains(says) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn a_key_that_is_far_from_all_is_answered_by_what_there_is() {
        assert_eq!(distance("listn", "listen"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
