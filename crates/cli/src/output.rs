//! Writes results to stdout. A closed pipe (`brisk whatif | head`) is not an error.

use std::io::{ErrorKind, Write};

use crate::failure::Failure;

pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("cannot write the result to stdout: {error}")))
        }
        _ => Ok(()),
    }
}

pub(crate) fn print_line(text: &str) -> Result<(), Failure> {
    print(&format!("{text}\n"))
}
