//! Starts and controls the program.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

pub(crate) const BRISK: &str = env!("CARGO_BIN_EXE_brisk");

/// Returns a command that runs the program with these words.
pub(crate) fn brisk(words: &[&str]) -> Command {
    let mut command = Command::new(BRISK);
    command.args(words);
    command
}

pub(crate) fn run(words: &[&str]) -> Output {
    brisk(words).output().expect("the program starts")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A program that runs until it is stopped; killed if the test ends earlier.
pub(crate) struct Running {
    child: Child,
    log: BufReader<Log>,
}

/// Time without output after which an expected line counts as missing.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The log of a program, read from its pipe as it arrives, because a full pipe would block the program.
struct Log {
    pieces: Receiver<Vec<u8>>,
    rest: Vec<u8>,
}

impl Log {
    fn of(mut pipe: ChildStderr) -> Log {
        let (sender, pieces) = channel();
        std::thread::spawn(move || {
            let mut piece = [0; 8192];
            while let Ok(length @ 1..) = pipe.read(&mut piece) {
                // The test may have ended.
                let _ = sender.send(piece[..length].to_vec());
            }
        });
        Log { pieces, rest: Vec::new() }
    }
}

impl Read for Log {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.rest.is_empty() {
            self.rest = match self.pieces.recv_timeout(TIME_LIMIT) {
                Ok(piece) => piece,
                Err(RecvTimeoutError::Disconnected) => Vec::new(),
                Err(RecvTimeoutError::Timeout) => return Err(ErrorKind::TimedOut.into()),
            };
        }
        let length = self.rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&self.rest[..length]);
        self.rest.drain(..length);
        Ok(length)
    }
}

impl Running {
    pub(crate) fn start(words: &[&str]) -> Running {
        Running::of(&mut brisk(words))
    }

    pub(crate) fn of(command: &mut Command) -> Running {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
        let log = Log::of(child.stderr.take().expect("its stderr is piped"));
        Running { child, log: BufReader::new(log) }
    }

    /// Returns the value of `key` in the next log line.
    pub(crate) fn announced(&mut self, key: &str) -> String {
        let mut line = String::new();
        self.log.read_line(&mut line).expect("a log line");
        let word = line.split_whitespace().find_map(|word| word.strip_prefix(&format!("{key}=")));
        word.unwrap_or_else(|| panic!("no {key} in '{line}'")).to_owned()
    }

    /// Returns the value of `key` in the next log line that has it.
    pub(crate) fn announced_next(&mut self, key: &str) -> String {
        let wanted = format!("{key}=");
        loop {
            let mut line = String::new();
            assert!(self.log.read_line(&mut line).expect("a log line") > 0, "the log ended without {key}");
            if let Some(word) = line.split_whitespace().find_map(|word| word.strip_prefix(&wanted)) {
                return word.to_owned();
            }
        }
    }

    /// Returns the next log line with these words.
    pub(crate) fn until(&mut self, words: &str) -> String {
        loop {
            let mut line = String::new();
            let count = self.log.read_line(&mut line);
            let count = count.unwrap_or_else(|error| panic!("the program did not say '{words}': {error}"));
            assert!(count > 0, "the program ended before it said '{words}'");
            if line.contains(words) {
                return line;
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let (signal, pid) = (format!("-{name}"), self.child.id().to_string());
        assert!(Command::new("kill").args([&signal, &pid]).status().is_ok_and(|status| status.success()));
    }

    /// Sends SIGTERM; returns the exit status and the rest of the log.
    pub(crate) fn stop(mut self) -> (Option<i32>, String) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().is_ok_and(|status| status.success()));
        let mut log = String::new();
        self.log.read_to_string(&mut log).expect("the rest of the log");
        (self.child.wait().expect("an exit status").code(), log)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The program has ended already if the test stopped it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory that is removed with the test.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    /// Creates a directory with `hello.txt` and `big`, a file of 3 MB.
    pub(crate) fn with_files() -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("brisk-run-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory");
        std::fs::write(directory.join("hello.txt"), "hello\n").expect("a file");
        let big: Vec<u8> = (0..3_000_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::write(directory.join("big"), big).expect("a file");
        Scratch(directory)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
