//! Text files whose size is bounded.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The text of a file that is no larger than it can sensibly be, `most` bytes, whatever its name promises.
///
/// # Errors
/// That of the file system; that it is larger, or not UTF-8.
pub(crate) fn read_text(file: &Path, most: u64) -> std::io::Result<String> {
    let mut text = String::new();
    let read = File::open(file)?.take(most + 1).read_to_string(&mut text);
    if text.len() as u64 > most {
        return Err(std::io::Error::other(format!("more than {} MiB", most >> 20)));
    }
    read.map(|_| text)
}
