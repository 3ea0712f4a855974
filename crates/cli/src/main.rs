//! The program `brisk`: argument parsing only, one file per subcommand.
//!
//! Each subcommand is a module with an `Args` (clap) and a `run(args, &Common)`; the crates below do the
//! work. Without the feature `lab` the program has the parts that a server needs: gateway, `serve`, `get` and
//! keys, but neither simulator nor laboratory. Exit status 0: success; 1: failure; 2: invalid command line.

use std::process::ExitCode;

use brisk_gateway::log::flush_stderr;
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};

mod addresses;
mod backend;
#[cfg(feature = "lab")]
mod bench;
mod check;
mod clients;
mod confine;
mod cookie_keys;
#[cfg(feature = "lab")]
mod demo;
mod device_args;
mod doctor;
mod edge;
#[cfg(feature = "lab")]
mod emulate;
mod failure;
mod fast_open_cache;
mod flags;
mod frontend;
mod get;
mod hop_args;
mod interrupt;
mod keygen;
#[cfg(feature = "lab")]
mod lab;
#[cfg(feature = "lab")]
mod link_args;
mod manual;
mod operation;
mod output;
mod private_file;
mod rules;
mod run;
#[cfg(feature = "lab")]
mod script;
mod serve;
mod service;
mod systemd;
#[cfg(feature = "lab")]
mod text_file;
mod tfo_key;
mod top;
mod usage;
#[cfg(feature = "lab")]
mod whatif;

use failure::Failure;

/// The version with its commit and target.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BRISK_BUILD"), ")");

const AFTER_HELP: &str = if cfg!(feature = "lab") {
    "Start with:  brisk demo\nFlags marked [env: BRISK_...] can also be set by that environment variable."
} else {
    "Start with:  brisk keygen\nFlags marked [env: BRISK_...] can also be set by that environment variable.\n\
     The package brisk-full also has demo, emulate, whatif, lab, bench and script."
};

/// A user-space TCP for short transfers: one round trip to open and answer.
#[derive(Debug, Parser)]
#[command(name = "brisk", version, long_version = VERSION, propagate_version = true, max_term_width = 100)]
#[command(after_help = AFTER_HELP)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// Options of every subcommand.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Common {
    /// Increase verbosity (repeat for debug output)
    #[arg(short, long, global = true, display_order = 1000, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Log errors only
    #[arg(short, long, global = true, display_order = 1001, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Format of the log lines on stderr
    #[arg(
        long,
        global = true,
        display_order = 1002,
        value_enum,
        default_value_t,
        env = "BRISK_LOG_FORMAT",
        value_name = "FORMAT"
    )]
    pub(crate) log_format: LogFormat,
}

/// The two formats of a log line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum LogFormat {
    /// `key=value` words after an RFC 3339 time.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a demonstration: a lossy long link, a gateway pair and a load on this machine, no privileges
    #[cfg(feature = "lab")]
    Demo(demo::Args),
    /// Emulate a link in real time between two network namespaces or devices
    #[cfg(feature = "lab")]
    Emulate(emulate::Args),
    /// Simulate each mechanism for a flow over a link, in virtual time, no privileges
    #[cfg(feature = "lab")]
    Whatif(whatif::Args),
    /// Run the experiments of two papers on web latency and compare the papers' figures with brisk's
    #[cfg(feature = "lab")]
    Lab(lab::Args),
    /// Compare the processor time of brisk's TCP with the kernel's: both ends, in turns
    #[cfg(feature = "lab")]
    Bench(bench::Args),
    /// Run packet scripts against the stack in virtual time
    #[cfg(feature = "lab")]
    Script(script::Args),
    /// The gateway near the users: accepts TCP, carries it over the hop to the backend
    Frontend(frontend::Args),
    /// The gateway near the origin: accepts connections of frontends, connects to the origin
    Backend(backend::Args),
    /// The edge: brisk's TCP towards unmodified clients, the kernel's TCP towards the origin
    Edge(edge::Args),
    /// Run a command whose connections all go through the gateway, no privileges
    Run(run::Args),
    /// Check a configuration of the gateway
    Check(check::Args),
    /// Probe the path to a backend; report usable mechanisms and the expected gain
    Doctor(doctor::Args),
    /// Show a running gateway in the terminal; q quits
    Top(top::Args),
    /// Print the firewall rules that send clients to a transparent frontend
    Rules(rules::Args),
    /// Serve static files over HTTP/1.1 with brisk's TCP
    Serve(serve::Args),
    /// Fetch a URL with brisk's TCP
    Get(get::Args),
    /// Create the key that protects the hop between frontend and backend
    Keygen(keygen::Args),
    /// Create Fast Open keys, and rotate them without refusing clients
    TfoKey(tfo_key::Args),
    /// Print a shell completion script
    #[command(after_help = "Examples:\n  brisk completions bash > /etc/bash_completion.d/brisk")]
    Completions(manual::Completions),
    /// Write the man pages into a directory
    #[command(after_help = "Examples:\n  brisk man /usr/local/share/man/man1")]
    Man(manual::Man),
}

fn main() -> ExitCode {
    let ended = usage::parse().map(dispatch);
    flush_stderr();
    match ended {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => failure.report(),
        Err(nothing_to_run) => nothing_to_run,
    }
}

fn dispatch(cli: Cli) -> Result<(), Failure> {
    let common = cli.common;
    match cli.command {
        #[cfg(feature = "lab")]
        Command::Demo(args) => demo::run(args, &common),
        #[cfg(feature = "lab")]
        Command::Emulate(args) => emulate::run(args, &common),
        #[cfg(feature = "lab")]
        Command::Whatif(args) => whatif::run(args, &common),
        #[cfg(feature = "lab")]
        Command::Lab(args) => lab::run(args, &common),
        #[cfg(feature = "lab")]
        Command::Bench(args) => bench::run(args, &common),
        #[cfg(feature = "lab")]
        Command::Script(args) => script::run(args, &common),
        Command::Frontend(args) => frontend::run(args, &common),
        Command::Backend(args) => backend::run(args, &common),
        Command::Edge(args) => edge::run(args, &common),
        Command::Run(args) => run::run(&args, &common),
        Command::Check(args) => check::run(&args, &common),
        Command::Doctor(args) => doctor::run(&args, &common),
        Command::Top(args) => top::run(&args, &common),
        Command::Rules(args) => rules::run(&args, &common),
        Command::Serve(args) => serve::run(args, &common),
        Command::Get(args) => get::run(args, &common),
        Command::Keygen(args) => keygen::run(&args, &common),
        Command::TfoKey(args) => tfo_key::run(args, &common),
        Command::Completions(args) => manual::completions(args, Cli::command()),
        Command::Man(args) => manual::man(args, Cli::command()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_visible_subcommand_shows_an_example() {
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("brisk "), "{} has no example in its help", command.get_name());
        }
    }
}
