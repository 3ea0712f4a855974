//! Commands of a contestant, and their processor time.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// The emulated link's device.
const DEVICE: &str = "brisk0";

/// Running commands, which end when the value is dropped.
#[derive(Debug, Default)]
pub(super) struct Processes {
    children: Vec<Child>,
}

impl Processes {
    /// Starts a command in the namespace of the calling thread; its output goes to a file in `directory`.
    pub(super) fn start(&mut self, words: &[String], directory: &Path) -> io::Result<()> {
        let said = directory.join(format!("said-{}", self.children.len()));
        let file = fs::File::create(said)?;
        let program = words.first().ok_or_else(|| io::Error::other("an empty command"))?;
        let mut command = Command::new(program);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        self.children.push(command.spawn()?);
        Ok(())
    }

    /// True if there is no command.
    pub(super) fn is_empty(&self) -> bool {
        self.children.is_empty()
    }

    /// Returns the exit status of a command that has ended too early.
    pub(super) fn ended(&mut self) -> Option<String> {
        self.children.iter_mut().find_map(|child| {
            let status = child.try_wait().ok().flatten()?;
            Some(format!("the command ended with {status}"))
        })
    }

    /// Returns the processor time of the commands and of the processes that they have started.
    pub(super) fn cpu(&self) -> Duration {
        let table = table();
        let mut ours: HashSet<u32> = self.children.iter().map(Child::id).collect();
        loop {
            let more: Vec<u32> = table
                .iter()
                .filter(|(pid, process)| !ours.contains(pid) && ours.contains(&process.parent))
                .map(|(pid, _)| *pid)
                .collect();
            if more.is_empty() {
                break;
            }
            ours.extend(more);
        }
        let ticks: u64 = ours.iter().filter_map(|pid| table.get(pid)).map(|process| process.ticks).sum();
        Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            // A command that has ended needs no signal.
            let _ = pid.map(|pid| kill_process(pid, Signal::TERM));
        }
        for child in &mut self.children {
            let waited = (0..100).any(|_| {
                std::thread::sleep(Duration::from_millis(20));
                !matches!(child.try_wait(), Ok(None))
            });
            if !waited {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Process {
    parent: u32,
    /// User and system time, including children that have been waited for.
    ticks: u64,
}

fn table() -> HashMap<u32, Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
    let read = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, process(&fs::read_to_string(entry.path().join("stat")).ok()?)?))
    };
    entries.flatten().filter_map(read).collect()
}

/// Parses a line of `/proc/PID/stat`; the name in parentheses may contain any characters.
fn process(stat: &str) -> Option<Process> {
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    // proc(5) counts fields from 1, and the first two are cut off: 4 is ppid, 14 to 17 are times.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let times: Option<Vec<u64>> = (14..=17).map(number).collect();
    Some(Process { parent: u32::try_from(number(4)?).ok()?, ticks: times?.iter().sum() })
}

/// Returns the bytes that this namespace has sent into the link.
pub(super) fn sent_by_device() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/thread-self/net/dev")?;
    sent(&text).ok_or_else(|| io::Error::other(format!("no {DEVICE} in /proc/thread-self/net/dev")))
}

fn sent(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(DEVICE)?.strip_prefix(':'))?;
    line.split_whitespace().nth(8)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_processes_and_devices_are_read() {
        let line = "42 (a (b) c) S 7 1 1 0 -1 4194560 1 2 3 4 100 20 3 4 20 0 1 0 99";
        let Process { parent, ticks } = process(line).unwrap();
        assert_eq!((parent, ticks), (7, 127));
        let text = "Inter-|\n face |\n    lo: 1 2 0 0 0 0 0 0 3 4 0 0 0 0 0 0\nbrisk0: 10 1 0 0 0 0 0 0 77 2 0 0 0 0 0 0\n";
        assert_eq!(sent(text), Some(77));
    }

    #[test]
    fn command_and_its_children_are_counted_and_ended() {
        let directory = std::env::temp_dir();
        let mut processes = Processes::default();
        let command = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; sleep 60";
        let words = ["sh", "-c", command].map(str::to_owned);
        processes.start(&words, &directory).unwrap();
        let began = std::time::Instant::now();
        while processes.cpu() < Duration::from_millis(20) && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(processes.cpu() >= Duration::from_millis(20));
        assert_eq!(processes.ended(), None);
        drop(processes);
        assert!(began.elapsed() < Duration::from_secs(60));
    }
}
