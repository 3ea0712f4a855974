//! The positions of keys and values in the text of a configuration, so that an error names its line.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The position of each key of a text.
#[derive(Clone, Debug, Default)]
pub struct Places {
    all: Vec<Place>,
}

/// A key.
#[derive(Clone, Debug)]
struct Place {
    /// `hop.mtu`; `backends.1.weight` belongs to the second backend.
    path: String,
    /// Its value, as a range of bytes in the text.
    value: Range<usize>,
    line: usize,
}

impl Places {
    /// Finds the positions in a text; empty if it is not TOML.
    pub fn of(text: &str) -> Places {
        let mut places = Places::default();
        if let Ok(document) = DeTable::parse(text) {
            places.table(text, "", document.get_ref());
        }
        places
    }

    fn table(&mut self, text: &str, prefix: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let path = format!("{prefix}{}", key.get_ref());
            let line = line_at(text, key.span().start);
            self.all.push(Place { path: path.clone(), value: value.span(), line });
            self.inner(text, &path, value);
        }
    }

    fn inner(&mut self, text: &str, path: &str, value: &Spanned<DeValue<'_>>) {
        match value.get_ref() {
            DeValue::Table(inner) => self.table(text, &format!("{path}."), inner),
            DeValue::Array(items) => {
                for (n, item) in items.iter().enumerate() {
                    self.inner(text, &format!("{path}.{n}"), item);
                }
            }
            DeValue::String(_)
            | DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_) => {}
        }
    }

    fn named(&self, path: &str) -> Option<&Place> {
        self.all.iter().find(|place| place.path == path)
    }

    /// Returns the line of a key such as `hop.mtu`, counted from 1; the line of its section if the key is
    /// absent.
    pub fn line(&self, path: &str) -> Option<usize> {
        let section = || path.rsplit_once('.').and_then(|(section, _)| self.named(section));
        self.named(path).or_else(section).map(|place| place.line)
    }

    /// Returns the key whose value contains the byte `at`.
    pub(super) fn of_value(&self, at: usize) -> Option<&str> {
        let around = self.all.iter().filter(|place| place.value.contains(&at));
        around.min_by_key(|place| place.value.len()).map(|place| place.path.as_str())
    }

    /// Returns the value of a key, on its first line.
    pub(super) fn written<'a>(&self, text: &'a str, path: &str) -> Option<&'a str> {
        text.get(self.named(path)?.value.clone())?.lines().next()
    }
}

/// Returns the line of a byte, counted from 1.
pub(super) fn line_at(text: &str, at: usize) -> usize {
    text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_has_its_line_although_its_name_occurs_elsewhere() {
        let text = "# mtu and weight\n[hop]\nplain = true # mtu\n\"mtu\" = 1400\n\n[[backends]]\npeer = 'weight:1'\n\
                    [[backends]]\npeer = 'b:1'\nweight = 7\n[limits]\n";
        let places = Places::of(text);
        for (path, line) in [
            ("hop", 2),
            ("hop.mtu", 4),
            ("hop.device", 2),
            ("backends.0.peer", 7),
            ("backends.1.weight", 10),
            ("limits", 11),
            ("limits.threads", 11),
        ] {
            assert_eq!(places.line(path), Some(line), "{path}");
        }
        assert_eq!(places.line("admin.listen"), None);
        assert_eq!(places.written(text, "backends.1.weight"), Some("7"));
        assert_eq!(Places::of("[hop\n").line("hop"), None);
    }
}
