//! `brisk keygen`: creates a key or a key pair for a hop.

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
With a key pair on each side (the file frontends has the public keys of the other side):
  (umask 077; brisk keygen --static > keys); brisk keygen --public keys > public
  brisk backend --listen :7443 --to 127.0.0.1:80 --key-file keys --peer-keys frontends";

/// The flags of `keygen`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Create a key pair for this side; the other side gets the public key
    #[arg(long = "static")]
    pair: bool,
    /// Print the public keys of the key pairs in this file
    #[arg(long, value_name = "FILE", conflicts_with = "pair")]
    public: Option<PathBuf>,
}

/// Prints a key. If stdout is a file, its permissions are restricted to the owner first, because a gateway
/// refuses a key that others may read.
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

/// Makes the file of `brisk keygen > key` readable by its owner only: the shell creates it with permissions
/// for others.
fn protect_stdout() {
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;
    let Ok(descriptor) = std::io::stdout().as_fd().try_clone_to_owned() else { return };
    let file = std::fs::File::from(descriptor);
    if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        // If this fails, the gateway later refuses the key file.
        let _ = file.set_permissions(PermissionsExt::from_mode(0o600));
    }
}
