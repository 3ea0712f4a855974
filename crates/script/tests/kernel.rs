//! The scripts about socket calls also pass on the kernel's sockets: in a network namespace, in real time.

use std::path::Path;

use brisk_script::{KernelVerdict, Options, run_on_kernel};

/// Number of attempts, because a busy machine is sometimes late.
const TRIES: u32 = 3;

#[test]
fn scripts_about_sockets_pass_on_the_kernels_sockets() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/sockets");
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 16);
    let mut failures = Vec::new();
    for file in files {
        let (name, text) = (file.display().to_string(), std::fs::read_to_string(&file).unwrap());
        let play = || run_on_kernel(&name, &text, &Options::default(), &mut |_| {});
        let mut verdict = play();
        for _ in 1..TRIES {
            verdict = verdict.or_else(|_| play());
        }
        match verdict {
            Ok(KernelVerdict::Skipped(reason)) => return println!("skipped: {reason}"),
            Ok(KernelVerdict::Passed) => {}
            Err(error) => failures.push(error.to_string()),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
