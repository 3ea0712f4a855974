//! Reads settings from a file, and reports an error in one line.

use std::io;
use std::path::Path;

use super::Settings;
use super::explain::{explained, permitted_values};
use super::key::Key;
use super::keys;
use super::places::{Places, line_at};

/// Error in a configuration.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("{path}: the configuration cannot be read: {error}")]
    Unreadable {
        /// The file.
        path: String,
        /// Error of the system.
        error: io::Error,
    },
    /// A line is wrong.
    #[error("{path}:{line}: {problem}")]
    Line {
        /// The file.
        path: String,
        /// Line number, from 1.
        line: usize,
        /// Problem and remedy.
        problem: String,
    },
}

impl Settings {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, is not TOML, or has an unknown key or a value that its key does not permit.
    pub fn load(path: &Path) -> Result<Settings, SettingsError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| SettingsError::Unreadable { path: name.clone(), error })?;
        Settings::parse(&text, &name)
    }

    /// Parses a text that came from `path`.
    ///
    /// # Errors
    /// If it is not TOML, or has an unknown key or a value that its key does not permit.
    pub fn parse(text: &str, path: &str) -> Result<Settings, SettingsError> {
        let wrong = |at: usize, problem: String| SettingsError::Line {
            path: path.to_owned(),
            line: line_at(text, at),
            problem,
        };
        let settings: Settings = toml::from_str(text).map_err(|error| {
            let at = error.span().unwrap_or_default();
            wrong(at.start, explained(error.message(), &at, text))
        })?;
        let Some(key) = out_of_range(&settings) else { return Ok(settings) };
        let places = Places::of(text);
        let name = key.rsplit('.').next().unwrap_or(&key);
        let written = places.written(text, &key).unwrap_or_default();
        Err(SettingsError::Line {
            path: path.to_owned(),
            line: places.line(&key).unwrap_or(1),
            problem: format!("{name} = {written}: write {}", permitted_values(&key)),
        })
    }
}

/// Returns the first key whose value is out of its range or, for a label, the same as an earlier one.
fn out_of_range(settings: &Settings) -> Option<String> {
    let Settings { peers, frontends, .. } = settings;
    let of_section = keys::all().find(|key| (key.is_out_of_range)(settings)).map(Key::path);
    let weight = || peers.iter().position(|peer| !(1..=1000).contains(&peer.weight));
    let is_repeated = |n: &usize| frontends[..*n].iter().any(|before| before.label == frontends[*n].label);
    let repeated = || (0..frontends.len()).find(is_repeated);
    of_section
        .or_else(|| weight().map(|n| format!("backends.{n}.weight")))
        .or_else(|| repeated().map(|n| format!("frontends.{n}.label")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Settings::parse(text, "brisk.toml").unwrap_err().to_string()
    }

    #[test]
    fn unknown_key_is_an_error_with_its_line_and_the_nearest_name() {
        let text = "[frontend]\nlisten = ':80'\nfirst_byte_wait = '5ms'\n";
        let said = "brisk.toml:3: there is no key 'first_byte_wait' here; did you mean first_bytes_wait?";
        assert_eq!(error(text), said);
        assert_eq!(
            error("[frontent]\n"),
            "brisk.toml:1: there is no key 'frontent' here; did you mean frontend?"
        );
        assert!(error("[limits]\n\nspeed = 7").contains(":3: there is no key 'speed' here; use max_"));
    }

    #[test]
    fn error_about_a_value_names_the_permitted_ones() {
        let listen = error("[backend]\nlisten = 'localhost'");
        assert_eq!(
            listen,
            "brisk.toml:2: 'localhost': write ADDR:PORT or :PORT, for instance 127.0.0.1:8080"
        );
        for (text, says) in [
            ("[backend]\nsend_proxy = 'v3'", "write \"v1\" or \"v2\""),
            ("[backend]\nallow = ['x']", "origin.example:443"),
            ("[backend]\norigins = 'web'", "origins = 'web': write names and addresses"),
            ("[backend.origins]\na = 'b:1'\nweb = 'x'", "brisk.toml:3: 'x': write HOST:PORT"),
            ("[backend.origins]\n'a:1' = 'b:1'", "brisk.toml:2: 'a:1' is not a name for an origin"),
            ("[frontend]\nproxy_from = ['10.0.0.0/99']", "10.0.0.0/8"),
            ("[limits]\ndrain_timeout = 'soon'", "500ms"),
            ("[limits]\nmax_connections = 0", "max_connections = 0: write 1 to"),
            ("[hop]\nephemeral_lifetime = '2m'", "ephemeral_lifetime = '2m': write \"0s\" to \"1m\""),
            ("[limits]\nheader_timeout = '0s'", "header_timeout = '0s': write \"100ms\" to \"1m\""),
            ("[hop]\nmtu = 100", "mtu = 100: write 576 to 65535"),
            ("[[backends]]\npeer = 'a:1'\nweight = 0", "weight = 0: write 1 to 1000"),
            ("[[backends]]\nweight = 1", "peer"),
            ("[hop\n", "brisk.toml:1: "),
            ("[frontend]\nfallback = 'never'", "fallback = 'never': write \"none\" or \"direct\""),
            ("[hop]\nmtu = 70000", "brisk.toml:2: mtu = 70000: write 576 to 65535 (bytes)"),
            ("[limits]\nthreads = 500", "threads = 500: write 1 to 64"),
            ("[[backends]]\npeer = 'a:1'\npriority = 300", ":3: priority = 300: write 0 to 255"),
            ("[limits]\nidle_timeout = 5", "idle_timeout = 5: add the unit, for instance \"5s\""),
            ("[limits]\nidle_timeout = 5s", "a text needs quotes: write \"5s\""),
            ("[hop]\nplain = 'yes'", "plain = 'yes': write true or false"),
            ("[hop]\ngateway = 'x'", "gateway = 'x': write an address"),
            ("[hop]\nmtu = 600\nmtu = 700", "brisk.toml:3: the key 'mtu' occurs twice"),
            ("[hop]\n[limits]\n[hop]\n", "brisk.toml:3: the section [hop] occurs twice"),
            ("[frontend]\nproxy_from = [1]", "proxy_from = [1]: write a list of networks"),
            ("[[backends]]\nweight = 1", "the key peer is missing: write peer = \"HOST:PORT\""),
            ("[backends]\npeer = 'a:1'", "backends: write [[backends]] above the keys of each entry"),
            ("[[frontends]]\nlabel = 'a'\nmax_rate = '50'", "'50': write a rate in bits per second"),
            ("[[frontends]]\nlabel = 'a'\nmax_rate = 50", "max_rate = 50: write bits per second in quotes"),
            ("[[frontends]]\nlabel = 'a'\nmax_connections = 0", ":3: max_connections = 0: write 1 to"),
            ("[[frontends]]\nlabel = 'a'\n[[frontends]]\nlabel = 'a'", ":4: label = 'a': write the label"),
            ("hop = 5", "hop = 5: write [frontend]"),
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
}
