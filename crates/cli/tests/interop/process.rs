//! A program that runs next to the test: its output is collected, and it ends with the test.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Maximum time to wait for an event that should happen soon.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Killed on drop; its output is printed if the test is failing.
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    said: Arc<Said>,
    listening: Vec<JoinHandle<()>>,
}

/// Result of a program.
pub(crate) struct Ended {
    pub(crate) status: Option<i32>,
    /// Both outputs, line by line in the order of arrival.
    pub(crate) said: String,
}

#[derive(Default)]
struct Said {
    text: Mutex<String>,
    more: Condvar,
}

impl Process {
    /// Starts `command`. Its stdout is collected too, unless the caller has redirected it.
    pub(crate) fn start(name: &'static str, command: &mut Command) -> Process {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
        let said = Arc::new(Said::default());
        let stdout = child.stdout.take().map(|stdout| said.clone().listen(stdout));
        let stderr = child.stderr.take().map(|stderr| said.clone().listen(stderr));
        Process { name, child, said, listening: stdout.into_iter().chain(stderr).collect() }
    }

    /// Waits for a line that contains `words`.
    pub(crate) fn until_it_says(&self, words: &str) -> String {
        self.until_it_says_again(words, 1)
    }

    /// Waits for the line with this number, from 1, among those that contain `words`.
    pub(crate) fn until_it_says_again(&self, words: &str, number: usize) -> String {
        let deadline = Instant::now() + PATIENCE;
        let mut text = self.said.text.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(line) = text.lines().filter(|line| line.contains(words)).nth(number - 1) {
                return line.to_owned();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{} never said '{words}'", self.name);
            text = self.said.more.wait_timeout(text, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([name, &pid]).status().is_ok_and(|kill| kill.success());
        assert!(sent, "{} ended before the signal", self.name);
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) fn stop(self) -> Ended {
        self.signal("-TERM");
        self.ended()
    }

    /// Waits until the program has ended by itself.
    pub(crate) fn ended(mut self) -> Ended {
        let ended = format!("{} ends", self.name);
        let status = eventually(&ended, || self.child.try_wait().expect("it is our child")).code();
        self.listening.drain(..).for_each(|thread| thread.join().expect("listening does not fail"));
        Ended { status, said: self.said() }
    }

    fn said(&self) -> String {
        self.said.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            println!("--- {} said:\n{}", self.name, self.said());
        }
    }
}

impl Said {
    /// Collects lines on a thread that ends with the stream.
    fn listen(self: Arc<Said>, stream: impl Read + Send + 'static) -> JoinHandle<()> {
        thread::spawn(move || {
            for line in BufReader::new(stream).lines() {
                let Ok(line) = line else { break };
                let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
                text.push_str(&line);
                text.push('\n');
                self.more.notify_all();
            }
        })
    }
}

/// Polls `condition` until it returns a value.
pub(crate) fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = condition() {
            return answer;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Runs `command` to its end, which must be a success.
pub(crate) fn run(command: &mut Command) -> Output {
    let out = command.output().expect("the program starts");
    assert!(out.status.success(), "{command:?}: {}\n{}", out.status, text(&out.stderr));
    out
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
