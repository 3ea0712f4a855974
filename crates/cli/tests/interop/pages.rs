//! Files to fetch, and the comparison of fetched and original files.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::namespace::Namespace;
use crate::process::text;

/// A directory that is removed with the test.
pub(crate) struct Pages {
    directory: PathBuf,
}

impl Pages {
    /// Creates a directory with `small`, a file of 700 bytes.
    pub(crate) fn new() -> Pages {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("brisk-it-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory for the test");
        let pages = Pages { directory };
        pages.write("small", 700);
        pages
    }

    /// Writes a file of `len` bytes that does not repeat, so that misplaced bytes are found.
    pub(crate) fn write(&self, name: &str, len: u64) -> PathBuf {
        let path = self.path(name);
        let mut file = File::create(&path).expect("a file can be made");
        let (mut left, mut counter) = (len, 0_u64);
        let mut block = Vec::with_capacity(1 << 16);
        while left > 0 {
            block.clear();
            while block.len() < 1 << 16 {
                counter += 1;
                block.extend_from_slice(&counter.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
            }
            block.truncate(usize::try_from(left).map_or(block.len(), |left| left.min(block.len())));
            file.write_all(&block).expect("the disk has room");
            left -= block.len() as u64;
        }
        path
    }

    pub(crate) fn directory(&self) -> &str {
        self.directory.to_str().expect("the directory for temporary files has a plain name")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // If this fails, the system cleans the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Returns a curl in `host` that fails with a message, in at most 60 s.
pub(crate) fn curl(host: &Namespace, words: &[&str]) -> Command {
    let mut curl = host.command("curl");
    curl.args(["-sSfg", "-m", "60"]).args(words);
    curl
}

/// Runs `command`, which must succeed with the file `expected` on stdout, repeated `times`.
pub(crate) fn fetches(command: &mut Command, expected: &Path, times: u32) {
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut body = BufReader::with_capacity(1 << 16, child.stdout.take().expect("stdout is piped"));
    let difference = (0..times).find_map(|round| {
        let difference = first_difference(&mut body, expected, round + 1 == times);
        difference.map(|at| format!("copy {round} of {}: {at}", expected.display()))
    });
    drop(body);
    let ended = child.wait_with_output().expect("it ends");
    assert!(ended.status.success(), "{command:?}: {}\n{}", ended.status, text(&ended.stderr));
    assert_eq!(difference, None, "{command:?}");
}

/// Checks that the two files are equal.
pub(crate) fn assert_same(copy: &Path, original: &Path) {
    let mut reader =
        BufReader::new(File::open(copy).unwrap_or_else(|error| panic!("{}: {error}", copy.display())));
    assert_eq!(first_difference(&mut reader, original, true), None, "{} is no copy", copy.display());
}

/// Returns where `body` first differs from the file `expected`; bytes after the whole file are a difference
/// only with `ends`.
fn first_difference(body: &mut impl Read, expected: &Path, ends: bool) -> Option<String> {
    let mut original = File::open(expected).expect("the original is there");
    let (mut ours, mut theirs) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut offset = 0;
    loop {
        let len = original.read(&mut ours).expect("the original can be read");
        let got = fill(body, &mut theirs[..len]);
        if let Some(at) = ours[..len].iter().zip(&theirs[..got]).position(|(a, b)| a != b) {
            return Some(format!("another byte at {}", offset + at));
        }
        if got < len {
            return Some(format!("it ends after {} bytes", offset + got));
        }
        if len == 0 {
            let more = ends && fill(body, &mut theirs[..1]) > 0;
            return more.then(|| format!("it goes on after {offset} bytes"));
        }
        offset += len;
    }
}

fn fill(body: &mut impl Read, buffer: &mut [u8]) -> usize {
    let mut filled = 0;
    while filled < buffer.len() {
        match body.read(&mut buffer[filled..]).expect("the body can be read") {
            0 => break,
            len => filled += len,
        }
    }
    filled
}
