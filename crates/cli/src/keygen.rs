//! `brisk keygen`: a new key for a hop, or a new pair.

use std::path::PathBuf;

use brisk_gateway::HopKey;
use brisk_gateway::hop::key::read_secret;
use brisk_gateway::hop::pairs::{PrivateKey, private_keys};

use crate::failure::Failure;
use crate::{Common, output};

const EXAMPLES: &str = "\
Examples:
  (umask 077; brisk keygen > key)
  brisk backend --listen :7443 --to 127.0.0.1:80 --key-file key
A pair on each side instead of one key on both:
  (umask 077; brisk keygen --static > pair); brisk keygen --public pair > public
  brisk backend --listen :7443 --to 127.0.0.1:80 --key-file pair --peer-keys frontends";

/// The flags of `keygen`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// A pair of keys of this side alone; the other side gets the public one
    #[arg(long = "static")]
    pair: bool,
    /// Print the public keys of the pairs in this file
    #[arg(long, value_name = "FILE", conflicts_with = "pair")]
    public: Option<PathBuf>,
}

/// Prints a key. If stdout is a file, it is closed to others first: a key that others may read is refused
/// later.
pub(crate) fn run(args: &Args, _common: &Common) -> Result<(), Failure> {
    if let Some(file) = &args.public {
        let text = read_secret(file).map_err(Failure::failed)?;
        let keys = private_keys(&text, &file.display().to_string()).map_err(Failure::failed)?;
        return keys.iter().try_for_each(|key| output::print_line(&key.public().to_string()));
    }
    protect_stdout();
    if args.pair {
        let key = PrivateKey::generate()?;
        output::print_line(&format!("# for the other side: {}", key.public()))?;
        return output::print_line(&key.reveal());
    }
    let key = HopKey::generate()?;
    output::print_line(&key.reveal())
}

/// `brisk keygen > key` makes a file that others may read, as the shell does; it becomes the owner's alone
/// here.
fn protect_stdout() {
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;
    let Ok(descriptor) = std::io::stdout().as_fd().try_clone_to_owned() else { return };
    let file = std::fs::File::from(descriptor);
    if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        // The gateway refuses a key that others than its owner may write, so a failure shows there.
        let _ = file.set_permissions(PermissionsExt::from_mode(0o600));
    }
}
