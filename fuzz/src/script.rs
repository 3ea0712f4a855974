//! Target: any text as a packet script.
//!
//! Parsing and running it must end, with a verdict or with an error that names the place: authors of scripts
//! make mistakes, which must not end the program. Nor may the script break the stack in virtual time.

use brisk_script::{Options, run as run_script};

/// Maximum number of lines of a script that is run: a long one is only slow.
const MAX_LINES: usize = 200;

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if text.lines().count() > MAX_LINES {
        return;
    }
    // A lenient run continues although the expectations of a mutated script are wrong.
    let lenient = Options { lenient: true, ..Options::default() };
    if let Err(error) = run_script("input", &text, &lenient) {
        let shown = error.to_string();
        assert!(shown.starts_with("input"), "an error says where: {shown}");
    }
}
