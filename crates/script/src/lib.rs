//! Packet scripts in the packetdrill language, run against the stack in virtual time.
//!
//! A script lists the arriving segments, the system calls of the application, and the segments that must
//! leave, each with its time. The runner is a driver of [`brisk_tcp::Stack`]: it owns the clock, passes
//! arriving segments to the stack and compares departing ones field by field. The stack may send no other
//! packet.
//!
//! ```
//! let script = "
//! 0   socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
//! +0  bind(3, ..., ...) = 0
//! +0  listen(3, 1) = 0
//! +0  < S 0:0(0) win 65535 <mss 1460>
//! +0  > S. 0:0(0) ack 1 <mss 1460>
//! +.1 < . 1:1(0) ack 1 win 257
//! +0  accept(3, ..., ...) = 4
//! ";
//! brisk_script::run("handshake.pkt", script, &brisk_script::Options::default()).unwrap();
//! ```
//!
//! Extensions of packetdrill's language: `[flow NAME]` before a packet names one of several connections
//! (`[flow b from 192.0.2.7]` gives its remote host another address). With `[new]` a SYN begins a new
//! connection over the same ports. `[badsum]` corrupts the TCP checksum, `[spoiled]` the payload. Sequence
//! numbers may be negative, relative to the initial one (`-999:1(1000)`). Options: `GA hex`, `kind N hex`,
//! and `FO $name` for a cookie that the stack chooses. `--set key=value` configures the stack ([`keys`]). `TS
//! val 7 ecr @1001/2` echoes the time stamp of the stack's second segment that began at 1001; `ecr @` echoes
//! the stack's latest time stamp. `%{ print(tcpi_snd_cwnd) }%` writes values into the trace, and so does a
//! call with the result `?`. Assertions know `tcpi_…` names and the stack's own counters as `brisk_…`. The
//! payload is not zeros: byte `i` of a stream is `(7 i + 3) mod 256` in both directions, and every byte is
//! checked.
//!
//! A separate thread makes the calls, on the sockets of [`brisk_sockets`] or of the kernel
//! ([`run_on_kernel`]), so that a call may block while packets come and go.

#![forbid(unsafe_code)]

mod assertion;
mod ast;
mod cursor;
mod error;
mod parse;
mod run;
mod settings;
mod tcp_option;

use std::path::Path;

pub use error::ScriptError;
pub use settings::keys;

/// Options of a run in addition to those in the script.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Flags that precede those of the script: key without dashes, and value.
    pub flags: Vec<(String, String)>,
    /// Values for `${NAME}`.
    pub defines: Vec<(String, String)>,
    /// True to ignore packets that no event lists.
    pub lenient: bool,
}

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// One line per event and packet, with its time.
    pub trace: Vec<String>,
}

/// Runs the text of a script; messages use `name` for the file.
///
/// # Errors
/// The error in the script, or the difference between the stack and the script.
pub fn run(name: &str, text: &str, options: &Options) -> Result<Report, ScriptError> {
    run_traced(name, text, options, &mut |_| {})
}

/// Like [`run`], but passes every line of the trace to a function at once, even in a run that fails.
///
/// # Errors
/// Those of [`run`].
pub fn run_traced(
    name: &str,
    text: &str,
    options: &Options,
    trace: &mut dyn FnMut(&str),
) -> Result<Report, ScriptError> {
    let script = parse::parse(name, text, &options.defines)?;
    let mut report = Report::default();
    let mut note = |line: String| {
        trace(&line);
        report.trace.push(line);
    };
    run::run(name, &script, options, &mut note)?;
    Ok(report)
}

/// The outcome of a script on the kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KernelVerdict {
    /// The kernel behaves as the script requires.
    Passed,
    /// The script was not run, with the reason.
    Skipped(String),
}

/// Runs the text of a script against the kernel's TCP, in real time and in a network namespace of its own.
/// The process needs the capability to create a namespace.
///
/// # Errors
/// Those of [`run`], with the kernel in place of the stack.
pub fn run_on_kernel(
    name: &str,
    text: &str,
    options: &Options,
    trace: &mut (dyn FnMut(&str) + Send),
) -> Result<KernelVerdict, ScriptError> {
    let script = parse::parse(name, text, &options.defines)?;
    // The thread stays in the namespace, so it ends with the script.
    let played = std::thread::scope(|scope| {
        let thread = scope.spawn(|| run::run_on_kernel(name, &script, options, &mut |line| trace(&line)));
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    Ok(played?.map_or(KernelVerdict::Passed, KernelVerdict::Skipped))
}

/// Runs a file.
///
/// # Errors
/// Those of [`run`]; line 0 if the file cannot be read.
pub fn run_file(path: &Path, options: &Options) -> Result<Report, ScriptError> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| ScriptError::new(&name, 0, format!("cannot be read: {error}")))?;
    run(&name, &text, options)
}
