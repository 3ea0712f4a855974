//! The keys of Fast Open cookies, from a file or a directory, read again when they change.
//!
//! A file holds one line as Linux has it (`net.ipv4.tcp_fastopen_key`): `PRIMARY` or `PRIMARY,BACKUP`. A directory holds a
//! file `primary` and perhaps a file `backup`: the layout of a mounted Kubernetes Secret. A systemd credential is a file.
//!
//! To rotate the key of a farm without refusing any cookie: (1) make the new key the backup everywhere; (2) when all
//! have it, swap the two everywhere; (3) take the old one away after the overlap.

use std::path::{Path, PathBuf};
use std::time::Duration;

use brisk_gateway::log::{Level, Log, Value};
use brisk_runtime::{Endpoint, KeySource};

use crate::failure::Failure;

/// How often the file is looked at. A mounted Secret changes by exchanging links, which no notification shows reliably.
const INTERVAL: Duration = Duration::from_secs(2);

/// Where the keys are.
pub(super) struct Keys {
    path: PathBuf,
}

impl Keys {
    /// The keys at this path.
    pub(super) fn new(path: PathBuf) -> Keys {
        Keys { path }
    }

    /// Reads and installs them.
    pub(super) fn install(&self, endpoint: &Endpoint) -> Result<(), Failure> {
        endpoint.set_fast_open_keys(read(&self.path)?);
        Ok(())
    }

    /// Installs them again whenever they have changed. Keys that cannot be read leave those in force that are.
    pub(super) async fn watch(self, endpoint: Endpoint, log: Log) {
        let mut installed = read(&self.path).ok();
        let mut complaint = None;
        loop {
            tokio::time::sleep(INTERVAL).await;
            match read(&self.path) {
                Ok(keys) if installed.as_ref() == Some(&keys) => complaint = None,
                Ok(keys) => {
                    endpoint.set_fast_open_keys(keys.clone());
                    installed = Some(keys);
                    let path = self.path.display().to_string();
                    log.line(Level::Info, "fast_open_keys", &[("path", Value::Text(path))]);
                }
                Err(failure) if complaint.as_ref() != Some(&failure.message) => {
                    let reason = Value::Text(failure.message.clone());
                    log.line(Level::Warning, "fast_open_keys", &[("reason", reason)]);
                    complaint = Some(failure.message);
                }
                Err(_) => {}
            }
        }
    }
}

fn read(path: &Path) -> Result<KeySource, Failure> {
    let failed = |at: &Path, why: String| Failure::failed(format!("{}: {why}", at.display()));
    let text = |at: &Path| std::fs::read_to_string(at);
    let line = if path.is_dir() {
        let at = path.join("primary");
        let primary = text(&at).map_err(|error| failed(&at, format!("the key cannot be read: {error}")))?;
        match text(&path.join("backup")) {
            Ok(backup) => format!("{},{}", primary.trim(), backup.trim()),
            Err(_) => primary,
        }
    } else {
        text(path).map_err(|error| failed(path, format!("the key cannot be read: {error}")))?
    };
    KeySource::parse(line.trim()).map_err(|error| failed(path, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_a_directory_hold_the_same_keys() {
        let at = std::env::temp_dir().join(format!("brisk-keys-{}", std::process::id()));
        std::fs::create_dir_all(&at).expect("a directory");
        let write = |name: &str, text: &str| std::fs::write(at.join(name), text).expect("a file");
        write("file", "1-2-3-4,5-6-7-8\n");
        write("primary", "1-2-3-4\n");
        let one = read(&at).ok();
        write("backup", "5-6-7-8\n");
        let (both, file) = (read(&at).ok(), read(&at.join("file")).ok());
        write("file", "no key");
        let refused = read(&at.join("file")).map(|_| ()).map_err(|failure| failure.message);
        std::fs::remove_dir_all(&at).expect("removed");
        assert_eq!(one, KeySource::parse("1-2-3-4").ok());
        assert!(both.is_some() && both == file);
        let message = refused.expect_err("not a key");
        assert!(message.contains("four words") || message.contains("hexadecimal"), "{message}");
        assert!(!message.contains("no key"), "a key is not repeated");
    }
}
