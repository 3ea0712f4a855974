//! `brisk keygen`: a new key for a hop.

use brisk_gateway::HopKey;

use crate::failure::Failure;
use crate::{Common, output};

const EXAMPLES: &str = "\
Examples:
  (umask 077; brisk keygen > key)
  brisk backend --listen :7443 --to 127.0.0.1:80 --key-file key";

/// The flags of `keygen`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {}

/// Prints a key. If stdout is a file, it is closed to others first: a key that others may read is refused later.
pub(crate) fn run(_args: &Args, _common: &Common) -> Result<(), Failure> {
    protect_stdout();
    let key = HopKey::generate()?;
    output::print_line(&key.reveal())
}

/// `brisk keygen > key` makes a file that others may read, as the shell does; it becomes the owner's alone here.
fn protect_stdout() {
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;
    let Ok(descriptor) = std::io::stdout().as_fd().try_clone_to_owned() else { return };
    let file = std::fs::File::from(descriptor);
    if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        // Who may write a file without owning it is told by the gateway, which refuses the key.
        let _ = file.set_permissions(PermissionsExt::from_mode(0o600));
    }
}
