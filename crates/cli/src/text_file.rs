//! Text files of limited size.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Returns the text of a file of at most `max` bytes.
///
/// # Errors
/// If the file cannot be read, is larger, or is not UTF-8.
pub(crate) fn read_text(file: &Path, max: u64) -> std::io::Result<String> {
    let mut text = String::new();
    let read = File::open(file)?.take(max + 1).read_to_string(&mut text);
    if text.len() as u64 > max {
        return Err(std::io::Error::other(format!("more than {} MiB", max >> 20)));
    }
    read.map(|_| text)
}
