//! `brisk demo`: an origin, a gateway pair, a lossy long link and a load, all on this machine.

use crate::Common;
use crate::failure::Failure;
use crate::link_args::LinkArgs;

const EXAMPLES: &str = "\
Examples:
  brisk demo
  brisk demo --seconds 10 --json";

/// The flags of `demo`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    link: LinkArgs,
}

/// Runs the demonstration and prints it.
pub(crate) fn run(args: Args, _common: &Common) -> Result<(), Failure> {
    let _ = args.link;
    Err(Failure::failed("the demonstration is not part of this build"))
}
