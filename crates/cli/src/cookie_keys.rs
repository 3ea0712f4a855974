//! The keys of Fast Open cookies: reads them from their source, and again when they change.
//!
//! A source has one line in the format of Linux (`net.ipv4.tcp_fastopen_key`), `PRIMARY` or `PRIMARY,BACKUP`;
//! in derived mode it has a secret, from which the key of each period is derived. To rotate the keys of a
//! farm without refusing any cookie: (1) make the new key the backup everywhere; (2) when all servers have
//! it, swap the two keys everywhere; (3) remove the old key when most clients have got a new cookie. Derived
//! mode needs no such steps.

mod place;

use std::time::Duration;

use brisk_gateway::log::{Level, Log, Value};
use brisk_runtime::fast_open::MasterSecret;
use brisk_runtime::{Endpoint, KeySource};

use crate::failure::Failure;
use brisk_gateway::settings::parse_duration;
use place::Place;

/// Shortest and longest period of a derived key, seconds.
const EPOCHS: std::ops::RangeInclusive<u64> = 60..=2_592_000;

/// Interval between two checks of the files. A notification about a file would miss changes of a mounted
/// Secret, in which only links are replaced.
const INTERVAL: Duration = Duration::from_secs(2);

/// The source of the keys and its kind.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CookieKeyArgs {
    /// The keys of the Fast Open cookies: a file with PRIMARY or PRIMARY,BACKUP; a directory with the
    /// files primary and backup; credential:NAME for a systemd credential. The keys are read again when they
    /// change
    #[arg(long, value_name = "SOURCE", env = "BRISK_FAST_OPEN_KEY", value_parser = Place::parse)]
    fast_open_key: Option<Place>,
    /// Content of the source. fixed: keys; derived: a secret (in a directory the file "master") from which a
    /// key is derived for each period
    #[arg(long, value_name = "MODE", requires = "fast_open_key", default_value = "fixed")]
    fast_open_key_mode: Mode,
    /// Period in which a derived key makes cookies, 1m to 30d; a cookie is valid for one to two periods
    #[arg(long, value_name = "TIME", requires = "fast_open_key", default_value = "1d", value_parser = epoch)]
    fast_open_rotate: Duration,
}

/// The content of a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Mode {
    /// One key or two.
    Fixed,
    /// A secret.
    Derived,
}

impl CookieKeyArgs {
    /// True if a source of keys is configured.
    pub(crate) fn given(&self) -> bool {
        self.fast_open_key.is_some()
    }

    /// Installs the keys if there is a source, and again whenever they change.
    pub(crate) async fn install(self, endpoint: &Endpoint, log: &Log) -> Result<(), Failure> {
        let CookieKeyArgs { fast_open_key, fast_open_key_mode: mode, fast_open_rotate: rotate } = self;
        let Some(place) = fast_open_key else { return Ok(()) };
        let keys = Keys { place, mode, rotate };
        let installed = keys.read().map_err(Failure::failed)?;
        endpoint.set_fast_open_keys(installed.clone());
        tokio::spawn(keys.watch(installed, endpoint.clone(), log.clone()));
        Ok(())
    }
}

fn epoch(text: &str) -> Result<Duration, String> {
    let epoch = parse_duration(text)?;
    match EPOCHS.contains(&epoch.as_secs()) {
        true => Ok(epoch),
        false => Err("write 1m to 30d".to_owned()),
    }
}

struct Keys {
    place: Place,
    mode: Mode,
    rotate: Duration,
}

impl Keys {
    /// Reads the current keys; an error is one line.
    fn read(&self) -> Result<KeySource, String> {
        let at_place = |why: String| format!("{}: {why}", self.place);
        match self.mode {
            Mode::Fixed => {
                let line = self.place.keys().map_err(at_place)?;
                KeySource::parse(line.trim()).map_err(|error| at_place(error.to_string()))
            }
            Mode::Derived => {
                let secret = self.place.secret().map_err(at_place)?;
                let master = MasterSecret::new(&secret).map_err(|error| at_place(error.to_string()))?;
                Ok(KeySource::Derived { master, rotate_s: self.rotate.as_secs() })
            }
        }
    }

    /// Installs the keys again whenever they have changed. While keys cannot be read, the old ones remain
    /// valid.
    async fn watch(self, mut installed: KeySource, endpoint: Endpoint, log: Log) {
        let mut complaint = None;
        loop {
            tokio::time::sleep(INTERVAL).await;
            let failed = match self.read() {
                Ok(keys) => {
                    if keys != installed {
                        endpoint.set_fast_open_keys(keys.clone());
                        installed = keys;
                        let source = Value::Text(self.place.to_string());
                        log.line(Level::Info, "fast_open_keys", &[("source", source)]);
                    }
                    None
                }
                Err(why) => Some(why),
            };
            if let Some(why) = failed.as_ref().filter(|_| failed != complaint) {
                log.line(Level::Warning, "fast_open_keys", &[("reason", Value::Text(why.clone()))]);
            }
            complaint = failed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(at: &std::path::Path, mode: Mode) -> Keys {
        let place = Place::parse(at.to_str().expect("text")).expect("a place");
        Keys { place, mode, rotate: Duration::from_secs(3600) }
    }

    #[test]
    fn source_without_a_key_is_refused_without_showing_its_content() {
        let at = std::env::temp_dir().join(format!("brisk-no-key-{}", std::process::id()));
        std::fs::write(&at, "no key").expect("a file");
        let fixed = keys(&at, Mode::Fixed).read().expect_err("not a key");
        let derived = keys(&at, Mode::Derived).read().expect_err("too short");
        std::fs::write(&at, "sixteen bytes and more\n").expect("a file");
        let secret = keys(&at, Mode::Derived).read();
        std::fs::remove_file(&at).expect("removed");
        assert!(fixed.contains("four words") || fixed.contains("hexadecimal"), "{fixed}");
        assert!(derived.contains("16 bytes"), "{derived}");
        assert!(!fixed.contains("no key") && !derived.contains("no key"), "a key is not repeated");
        let master = MasterSecret::new(b"sixteen bytes and more").expect("long enough");
        assert_eq!(
            secret,
            Ok(KeySource::Derived { master, rotate_s: 3600 }),
            "the end of the line is no part of it"
        );
        let missing = keys(&at, Mode::Fixed).read().expect_err("gone");
        assert!(missing.contains("cannot be read"), "{missing}");
    }

    #[test]
    fn an_epoch_has_bounds() {
        assert_eq!(epoch("1d"), Ok(Duration::from_secs(86_400)));
        for bad in ["59s", "31d", "often"] {
            assert!(epoch(bad).is_err(), "{bad}");
        }
    }
}
