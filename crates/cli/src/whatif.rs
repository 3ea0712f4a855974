//! `brisk whatif`: what each mechanism would do for a flow over a link, in virtual time.

use crate::Common;
use crate::failure::Failure;
use crate::link_args::LinkArgs;

const EXAMPLES: &str = "\
Examples:
  brisk whatif --rtt 100ms --rate 20mbit --loss 2% --flow 30kB
  brisk whatif --rtt 200ms --loss after:1%,50% --flow 5kB -n 10000 --json
  brisk whatif --rtt 80ms --loss 1% --sizes sizes.csv --arms \"tcp\"";

/// The flags of `whatif`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    link: LinkArgs,
}

/// Runs the comparison and prints it.
pub(crate) fn run(args: Args, _common: &Common) -> Result<(), Failure> {
    let _ = args.link;
    Err(Failure::failed("the comparison is not part of this build"))
}
