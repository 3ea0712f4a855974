//! Runs the tests and computes the score.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::list::{LATE, MISSED, Mutant};

/// Limit of the address space of a test, KiB: a mutant that allocates without end fails, and the machine does not.
const MEMORY_KIB: u64 = 6 << 20;

/// A test program.
#[derive(Clone)]
pub struct Test {
    program: PathBuf,
    /// Directory of its package, from which cargo runs it.
    folder: PathBuf,
    /// Time limit.
    limit: Duration,
}

impl Test {
    /// Returns the test program in a message of cargo, if it is one.
    pub fn of(message: &Value) -> Option<Test> {
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let program = PathBuf::from(message["executable"].as_str()?);
        let folder = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_owned();
        Some(Test { program, folder, limit: Duration::from_secs(600) })
    }

    /// Runs the program with a mutant selected.
    fn run(&self, id: u32) -> Result<Verdict> {
        let mut child = Command::new("sh")
            .args(["-c", &format!("ulimit -v {MEMORY_KIB}; exec \"$0\" -q"), &self.program.to_string_lossy()])
            .current_dir(&self.folder)
            .env("BRISK_MUTANT", id.to_string())
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| self.program.display().to_string())?;
        let start = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(if status.success() { Verdict::Missed } else { Verdict::Caught });
            }
            if start.elapsed() > self.limit {
                child.kill()?;
                child.wait()?;
                return Ok(Verdict::Late);
            }
            sleep(Duration::from_millis(20));
        }
    }
}

/// The verdict on a mutant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// A test fails.
    Caught,
    /// A test does not end in time.
    Late,
    /// All tests pass.
    Missed,
}

/// The verdicts on all mutants.
pub struct Score {
    verdicts: Vec<(Mutant, Verdict)>,
    untried: usize,
}

/// Tests every mutant, in the order of the sample, until `limit` has passed.
pub fn run(tests: &[Test], mutants: &[Mutant], jobs: usize, limit: Duration) -> Result<Score> {
    let mut timed = Vec::new();
    for test in tests {
        let start = Instant::now();
        ensure!(test.run(0)? == Verdict::Missed, "without a mutant {} fails", test.program.display());
        // Several programs run at a time, on a machine that may have other work, so the limit is generous.
        timed.push((
            start.elapsed(),
            Test { limit: start.elapsed() * 8 + Duration::from_secs(20), ..test.clone() },
        ));
    }
    timed.sort_by_key(|(took, _)| *took);
    println!(
        "{} programs of tests, {:.1} s without a mutant",
        timed.len(),
        timed.iter().map(|it| it.0.as_secs_f64()).sum::<f64>()
    );
    let tests: Vec<Test> = timed.into_iter().map(|(_, test)| test).collect();
    let (start, queue, done) = (Instant::now(), Mutex::new(mutants.iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| -> Result<()> {
        let work = || -> Result<()> {
            while start.elapsed() < limit {
                let Some(mutant) = queue.lock().expect("no panic").next() else { break };
                let verdict = judge(&tests, mutant.id)?;
                match verdict {
                    Verdict::Caught => {}
                    Verdict::Late => println!("{LATE}{}", mutant.name),
                    Verdict::Missed => println!("{MISSED}{}", mutant.name),
                }
                done.lock().expect("no panic").push((mutant.clone(), verdict));
            }
            Ok(())
        };
        let threads: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    let verdicts = done.into_inner()?;
    Ok(Score { untried: mutants.len() - verdicts.len(), verdicts })
}

fn judge(tests: &[Test], id: u32) -> Result<Verdict> {
    for test in tests {
        match test.run(id)? {
            Verdict::Missed => {}
            verdict => return Ok(verdict),
        }
    }
    Ok(Verdict::Missed)
}

impl Score {
    /// Prints the score; `lost` mutants could not be embedded or compiled.
    pub fn print(&self, lost: usize) {
        let count = |wanted| self.verdicts.iter().filter(|(_, verdict)| *verdict == wanted).count();
        let (caught, late, missed) = (count(Verdict::Caught), count(Verdict::Late), count(Verdict::Missed));
        let (low, high) = wilson(caught + late, self.verdicts.len());
        println!(
            "caught {caught}, not in time {late}, missed {missed}; not compiled in {lost}, not tried {}",
            self.untried
        );
        let share = (caught + late) as f64 / self.verdicts.len().max(1) as f64;
        println!("score {:.1} % (95 %: {:.1} to {:.1})", 100.0 * share, 100.0 * low, 100.0 * high);
    }
}

/// Returns Wilson's 95 % interval of a share.
fn wilson(hits: usize, of: usize) -> (f64, f64) {
    const Z: f64 = 1.96;
    let (n, p) = (of.max(1) as f64, hits as f64 / of.max(1) as f64);
    let middle = (p + Z * Z / (2.0 * n)) / (1.0 + Z * Z / n);
    let half = Z / (1.0 + Z * Z / n) * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    (middle - half, middle + half)
}
