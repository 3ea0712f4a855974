//! Reading settings from a file, and saying in one line what is wrong with it.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::Settings;
use super::places::{Places, line_at};
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
        let wrong = |at: usize, problem: String| SettingsError::Line {
            path: path.to_owned(),
            line: line_at(text, at),
            problem,
        };
        let settings: Settings = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            wrong(at, explained(error.message()))
        })?;
        let Some((key, range)) = out_of_range(&settings) else { return Ok(settings) };
        let places = Places::of(text);
        let name = key.rsplit('.').next().unwrap_or(&key);
        let written = places.written(text, &key).unwrap_or_default();
        Err(SettingsError::Line {
            path: path.to_owned(),
            line: places.line(&key).unwrap_or(1),
            problem: format!("{name} = {written}: write {range}"),
        })
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

/// The first key whose value is out of its range, and the range.
fn out_of_range(settings: &Settings) -> Option<(String, &'static str)> {
    let Settings { frontend, peers, backend, hop, limits, admin: _ } = settings;
    let second = Duration::from_secs(1);
    let out = |time: Option<Duration>, least: Duration, most: Duration| {
        time.is_some_and(|time| time < least || time > most)
    };
    let (none, hour) = (Duration::ZERO, 3600 * second);
    let checks = [
        ("frontend.first_bytes_wait", out(frontend.first_bytes_wait, none, second), "\"0s\" to \"1s\""),
        (
            "frontend.first_bytes_limit",
            out(frontend.first_bytes_limit, none, 10 * second),
            "\"0s\" to \"10s\"",
        ),
        ("backend.replay_tolerance", out(backend.replay_tolerance, second, hour), "\"1s\" to \"1h\""),
        ("hop.ephemeral_lifetime", out(hop.ephemeral_lifetime, none, LONGEST_LIFETIME), "\"0s\" to \"1m\""),
        ("hop.mtu", hop.mtu.is_some_and(|mtu| mtu < 576), "576 to 65535 (bytes)"),
        ("limits.max_connections", limits.max_connections == Some(0), "1 or more"),
        (
            "limits.header_timeout",
            out(limits.header_timeout, second / 10, 60 * second),
            "\"100ms\" to \"60s\"",
        ),
    ];
    let weight = peers.iter().position(|peer| !(1..=1000).contains(&peer.weight));
    let weight = weight.map(|n| (format!("backends.{n}.weight"), "1 to 1000"));
    let first = checks.into_iter().find(|(_, wrong, _)| *wrong);
    first.map(|(key, _, range)| (key.to_owned(), range)).or(weight)
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
            ("[limits]\nmax_connections = 0", "max_connections = 0: write 1 or more"),
            ("[hop]\nephemeral_lifetime = '2m'", "ephemeral_lifetime = '2m': write \"0s\" to \"1m\""),
            ("[limits]\nheader_timeout = '0s'", "header_timeout = '0s': write \"100ms\" to \"60s\""),
            ("[hop]\nmtu = 100", "mtu = 100: write 576 to 65535"),
            ("[[backends]]\npeer = 'a:1'\nweight = 0", "weight = 0: write 1 to 1000"),
            ("[[backends]]\nweight = 1", "peer"),
            ("[hop\n", "brisk.toml:1: "),
            ("[frontend]\nfallback = 'never'", "none"),
        ] {
            let error = error(text);
            assert!(error.contains(says) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn a_value_out_of_range_is_named_with_its_own_line() {
        let text = "# weight of these is fine\n[[backends]]\npeer = 'a:1'\nweight = 7\n\
                    [[backends]]\npeer = 'weight:1'\nweight = 5000\n";
        assert_eq!(error(text), "brisk.toml:7: weight = 5000: write 1 to 1000");
        let text = "# mtu\n[hop]\ndevice = 'tun:mtu'\nmtu = 1\n";
        assert_eq!(error(text), "brisk.toml:4: mtu = 1: write 576 to 65535 (bytes)");
    }

    #[test]
    fn a_key_that_is_far_from_all_is_answered_by_what_there_is() {
        assert_eq!(distance("listn", "listen"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
