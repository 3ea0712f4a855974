//! Lines on their way to stderr.
//!
//! A full pipe blocks its writer. So a separate thread writes the lines, and the threads that carry traffic
//! put them into a bounded queue. Lines for which the queue has no space are counted, and a line
//! `event=log-overflow` replaces them. The process must drop the privileges of each thread separately, and
//! does so before it logs anything. So this thread starts only with the first line.

use std::io::Write;
use std::mem::take;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use super::{Level, LogFormat, Value, render};

/// Limit of waiting bytes.
const MAX_BYTES: usize = 1 << 20;

/// A queue of lines and the thread that writes them.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Signals that lines wait.
    filled: Condvar,
    /// Signals that every line is written.
    emptied: Condvar,
}

#[derive(Debug)]
struct State {
    lines: Vec<u8>,
    /// Number of omitted lines after these, and the format of the line about them.
    lost: (u64, LogFormat),
    has_thread: bool,
    is_writing: bool,
}

impl Queue {
    pub(super) const fn new() -> Queue {
        let state =
            State { lines: Vec::new(), lost: (0, LogFormat::Text), has_thread: false, is_writing: false };
        Queue { state: Mutex::new(state), filled: Condvar::new(), emptied: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a line into the queue. The first line starts the thread, which writes to `out`.
    pub(super) fn put(&'static self, line: &str, format: LogFormat, mut out: impl Write + Send + 'static) {
        let mut state = self.state();
        // Later lines must not overtake the line about omitted ones.
        if state.lost.0 > 0 || state.lines.len() + line.len() > MAX_BYTES {
            state.lost = (state.lost.0 + 1, format);
            return;
        }
        state.lines.extend_from_slice(line.as_bytes());
        if state.has_thread {
            drop(state);
            self.filled.notify_one();
            return;
        }
        let writer = std::thread::Builder::new().name("brisk-log".into());
        state.has_thread = writer.spawn(move || self.write_all(&mut out)).is_ok();
    }

    /// Writes lines for ever. Errors are ignored, because a failing log must not stop the traffic.
    fn write_all(&self, out: &mut impl Write) {
        let mut state = self.state();
        loop {
            let (lines, (lost, format)) = (take(&mut state.lines), take(&mut state.lost));
            if lines.is_empty() && lost == 0 {
                state.is_writing = false;
                self.emptied.notify_all();
                state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.is_writing = true;
            drop(state);
            let _ = out.write_all(&lines);
            if lost > 0 {
                let fields = [("lines", Value::Count(lost))];
                let line = render(format, SystemTime::now(), Level::Warning, "log-overflow", &fields);
                let _ = out.write_all(line.as_bytes());
            }
            state = self.state();
        }
    }

    /// Waits until every line is written, for `limit` at most.
    pub(super) fn flush(&self, limit: Duration) {
        let is_busy = |state: &mut State| state.has_thread && (state.is_writing || !state.lines.is_empty());
        drop(self.emptied.wait_timeout_while(self.state(), limit, is_busy));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn unread_pipe_blocks_no_logging_thread_and_lost_lines_are_counted() {
        let (mut read, write) = std::io::pipe().unwrap();
        let queue: &'static Queue = Box::leak(Box::new(Queue::new()));
        let line = |n: usize| format!("{n} {}\n", "x".repeat(250));
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            (0..10_000).for_each(|n| queue.put(&line(n), LogFormat::Text, write.try_clone().unwrap()));
            done.send(()).unwrap();
        });
        is_done.recv_timeout(Duration::from_secs(60)).expect("a full pipe blocks nobody");
        queue.flush(Duration::from_millis(10));

        let reader = std::thread::spawn(move || {
            let (mut text, mut buffer) = (String::new(), [0; 65_536]);
            while !text.contains(" after\n") {
                let len = read.read(&mut buffer).unwrap();
                text.push_str(std::str::from_utf8(&buffer[..len]).unwrap());
            }
            text
        });
        // The queue has space again once it is read.
        let is_full = || queue.state().lost.0 > 0;
        while is_full() {
            std::thread::sleep(Duration::from_millis(1));
        }
        queue.put("all after\n", LogFormat::Text, std::io::sink());
        let text = reader.join().unwrap();
        // The writer may take lines while others are still lost, so the text can have gaps at several places.
        let (mut next, mut gaps) = (0, 0);
        for found in text.lines() {
            if found.contains("event=log-overflow") {
                assert!(found.contains(" level=warning "), "{found}");
                let lost = found.rsplit_once(" lines=").and_then(|(_, lost)| lost.parse::<usize>().ok());
                next += lost.unwrap_or_else(|| panic!("no number of lines in {found}"));
                gaps += 1;
            } else if next < 10_000 {
                assert_eq!(found, line(next).trim_end());
                next += 1;
            } else {
                assert_eq!(found, "all after");
            }
        }
        assert_eq!(next, 10_000, "every line is written or counted");
        assert!(gaps > 0, "the queue was never full");
        assert!(text.ends_with("\nall after\n"), "lines after a gap are written");
    }

    #[test]
    fn flush_waits_for_lines_that_a_reader_takes() {
        let (mut read, write) = std::io::pipe().unwrap();
        let queue: &'static Queue = Box::leak(Box::new(Queue::new()));
        queue.flush(Duration::from_secs(60));
        queue.put("first\n", LogFormat::Text, write);
        queue.flush(Duration::from_secs(60));
        let mut buffer = [0; 64];
        let len = read.read(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"first\n");
    }
}
