//! Shell completions and man pages, generated from the same definitions as the command line.

use std::path::PathBuf;

use clap::Command;
use clap_complete::Shell;

use crate::failure::Failure;
use crate::output::print;

/// The shell of a completion script.
#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    /// The shell to write for
    #[arg(value_enum)]
    shell: Shell,
}

/// The directory of the man pages.
#[derive(Debug, clap::Args)]
pub(crate) struct Man {
    /// Directory for the pages; created if it does not exist
    directory: PathBuf,
}

/// Prints the completion script.
pub(crate) fn completions(args: Completions, mut command: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "brisk", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Writes `brisk.1` and one page per subcommand.
pub(crate) fn man(args: Man, command: Command) -> Result<(), Failure> {
    let directory = &args.directory;
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(command, directory))
        .map_err(|error| Failure::failed(format!("{}: cannot write man pages: {error}", directory.display())))
}
