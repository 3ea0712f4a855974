//! Target: any text as a packet script.
//!
//! Reading it and running it end, with a verdict or with an error that says where: whoever writes a
//! script makes mistakes, and a mistake is not to end the program. What the script makes the stack do
//! in virtual time must not break the stack either.

use brisk_script::{Options, run as run_script};

/// Lines of a script that is run: a long one is only slow.
const MAX_LINES: usize = 200;

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if text.lines().count() > MAX_LINES {
        return;
    }
    // A script whose expectations are wrong, as those of a mutated one are, runs on if it is lenient.
    let lenient = Options { lenient: true, ..Options::default() };
    if let Err(error) = run_script("input", &text, &lenient) {
        let shown = error.to_string();
        assert!(shown.starts_with("input"), "an error says where: {shown}");
    }
}
