//! `brisk script`: packet scripts run against the stack in virtual time.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use brisk_script::{KernelVerdict, Options, ScriptError, keys, run_on_kernel, run_traced};

use crate::Common;
use crate::failure::Failure;
use crate::output::print_line;

const EXAMPLES: &str = "\
Examples:
  brisk script crates/script/scripts/handshake/*.pkt
  brisk script --verbose crates/script/scripts
  brisk script --set initial_window=4 --tolerance-usecs 1000 slow-start.pkt
  brisk script --kernel crates/script/scripts/handshake
  brisk script --keys";

/// The flags of `script`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Scripts, or directories that are searched for *.pkt
    #[arg(value_name = "FILE", required_unless_present = "keys")]
    files: Vec<PathBuf>,
    /// Configure the stack, as `--set key=value` in a script does; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Replace ${NAME} in the scripts; repeatable
    #[arg(short = 'D', long, value_name = "NAME=VALUE")]
    define: Vec<String>,
    /// Permitted deviation of a packet's time, in microseconds; a script may override it
    #[arg(long, value_name = "N", default_value_t = 4000)]
    tolerance_usecs: u32,
    /// Permit packets that a script does not list
    #[arg(long)]
    lenient: bool,
    /// Run the scripts against the kernel's TCP, in real time, in network namespaces (needs root).
    /// Scripts that need settings which the kernel lacks are skipped, with the reason
    #[arg(long)]
    kernel: bool,
    /// List the keys of --set and their values
    #[arg(long)]
    keys: bool,
}

/// Runs every script and reports its result.
pub(crate) fn run(args: Args, common: &Common) -> Result<(), Failure> {
    if args.keys {
        return keys().try_for_each(|(key, takes)| print_line(&format!("{key:28}{takes}")));
    }
    let options = args.options()?;
    let mut files = Vec::new();
    for file in &args.files {
        collect(file, &mut files)?;
    }
    if files.is_empty() {
        let searched: Vec<String> = args.files.iter().map(|file| file.display().to_string()).collect();
        return Err(Failure::failed(format!("{}: no *.pkt there", searched.join(", "))));
    }
    if args.kernel {
        return run_all_on_kernel(&files, &options, common);
    }
    let mut failed = 0;
    for file in &files {
        match run_one(file, &options, common.verbose > 0) {
            Ok(()) if common.quiet => {}
            Ok(()) => print_line(&format!("PASS {}", file.display()))?,
            Err(error) => {
                failed += 1;
                print_line(&format!("FAIL {error}"))?;
            }
        }
    }
    match failed {
        0 => Ok(()),
        failed => Err(Failure::failed(format!("{failed} of {} scripts fail", files.len()))),
    }
}

/// Number of scripts that run against the kernel at the same time; they sleep most of the time.
const AT_ONCE: usize = 8;

/// Runs every script against the kernel, several at a time.
fn run_all_on_kernel(files: &[PathBuf], options: &Options, common: &Common) -> Result<(), Failure> {
    let next = AtomicUsize::new(0);
    let verdicts: Mutex<Vec<(usize, Result<KernelVerdict, ScriptError>)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(files.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(file) = files.get(index) else { return };
                    let verdict = run_one_on_kernel(file, options, common.verbose > 0);
                    verdicts.lock().unwrap_or_else(PoisonError::into_inner).push((index, verdict));
                }
            });
        }
    });
    let mut verdicts = verdicts.into_inner().unwrap_or_else(PoisonError::into_inner);
    verdicts.sort_by_key(|(index, _)| *index);
    let (mut passed, mut skipped, mut failed) = (0, 0, 0);
    for (file, (_, verdict)) in files.iter().zip(verdicts) {
        let line = match verdict {
            Ok(KernelVerdict::Passed) => {
                passed += 1;
                format!("PASS {}", file.display())
            }
            Ok(KernelVerdict::Skipped(reason)) => {
                skipped += 1;
                format!("SKIP {}: {reason}", file.display())
            }
            Err(error) => {
                failed += 1;
                format!("FAIL {error}")
            }
        };
        if !common.quiet || line.starts_with("FAIL") {
            print_line(&line)?;
        }
    }
    print_line(&format!("the kernel: {passed} pass, {skipped} skipped, {failed} fail"))?;
    match failed {
        0 => Ok(()),
        failed => Err(Failure::failed(format!("{failed} of {} scripts fail on the kernel", files.len()))),
    }
}

fn run_one_on_kernel(file: &Path, options: &Options, verbose: bool) -> Result<KernelVerdict, ScriptError> {
    let name = file.display().to_string();
    let text = read(file, &name)?;
    run_on_kernel(&name, &text, options, &mut |line| show(line, verbose))
}

fn read(file: &Path, name: &str) -> Result<String, ScriptError> {
    std::fs::read_to_string(file).map_err(|error| ScriptError {
        file: name.to_owned(),
        line: 0,
        message: format!("cannot be read: {error}"),
    })
}

fn show(line: &str, verbose: bool) {
    if verbose {
        // A closed pipe is reported when the result is printed.
        let _ = print_line(&format!("     {line}"));
    }
}

fn run_one(file: &Path, options: &Options, verbose: bool) -> Result<(), ScriptError> {
    let name = file.display().to_string();
    let text = read(file, &name)?;
    run_traced(&name, &text, options, &mut |line| show(line, verbose)).map(|_| ())
}

/// Returns `path` itself if it is a file, else every *.pkt below it, in order.
fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    let refused = |error| Failure::failed(format!("{}: cannot be listed: {error}", path.display()));
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(path).map_err(refused)? {
        entries.push(entry.map_err(refused)?.path());
    }
    entries.sort();
    for entry in entries {
        if entry.is_dir() || entry.extension().is_some_and(|extension| extension == "pkt") {
            collect(&entry, files)?;
        }
    }
    Ok(())
}

impl Args {
    fn options(&self) -> Result<Options, Failure> {
        let mut flags = vec![("tolerance_usecs".to_owned(), self.tolerance_usecs.to_string())];
        flags.extend(self.set.iter().map(|set| ("set".to_owned(), set.clone())));
        let define = |text: &String| {
            let (name, value) = text
                .split_once('=')
                .ok_or_else(|| Failure::usage(format!("-D {text}: write -D NAME=VALUE")))?;
            Ok((name.to_owned(), value.to_owned()))
        };
        let defines = self.define.iter().map(define).collect::<Result<_, Failure>>()?;
        Ok(Options { flags, defines, lenient: self.lenient })
    }
}
