//! `brisk emulate`: a link in real time between two network namespaces or devices.

use crate::Common;
use crate::failure::Failure;
use crate::link_args::LinkArgs;

const EXAMPLES: &str = "\
Examples:
  brisk emulate --between red,blue --rtt 100ms --rate 20mbit --loss 2%";

/// The flags of `emulate`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    link: LinkArgs,
}

/// Runs the link and prints it.
pub(crate) fn run(args: Args, _common: &Common) -> Result<(), Failure> {
    let _ = args.link;
    Err(Failure::failed("the link is not part of this build"))
}
