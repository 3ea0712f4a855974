//! Files that only their owner can read.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Replaces a file atomically: a simultaneous reader gets the old content or the new one, and an interrupted
/// program leaves the old one.
pub(crate) fn replace(path: &Path, content: &str) -> io::Result<()> {
    let mut name = path.to_owned().into_os_string();
    name.push(format!(".{}", std::process::id()));
    let fresh = PathBuf::from(name);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&fresh)
        .and_then(|mut file| file.write_all(content.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&fresh, path));
    written.inspect_err(|_| {
        let _ = std::fs::remove_file(&fresh);
    })
}
