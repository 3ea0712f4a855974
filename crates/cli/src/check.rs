//! `brisk check`: reports the errors of a configuration before it is used.

use std::path::PathBuf;

use brisk_gateway::Settings;
use brisk_gateway::settings::Ignored;

use crate::failure::Failure;
use crate::{Common, backend, edge, frontend, hop_args, output};

const EXAMPLES: &str = "\
Examples:
  brisk check -c /etc/brisk/frontend.toml
  brisk check -c backend.toml && systemctl reload brisk-backend@7443";

/// The flags of `check`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The configuration
    #[arg(short, long, value_name = "FILE", env = "BRISK_CONFIG")]
    config: PathBuf,
}

/// Checks that a side can start with these settings.
type Check = fn(&Settings) -> Result<(), Failure>;

/// Reads the file and makes the checks that its side makes at the start. Warns about settings without effect,
/// and about settings whose validity depends on the machine.
pub(crate) fn run(args: &Args, _common: &Common) -> Result<(), Failure> {
    let name = args.config.display().to_string();
    let settings = Settings::load(&args.config).map_err(Failure::failed)?;
    let Settings { frontend, peers, listeners, .. } = &settings;
    let is_edge = settings.edge != Default::default();
    let is_frontend =
        *frontend != Default::default() || !peers.is_empty() || !listeners.is_empty() && !is_edge;
    let is_backend = settings.backend != Default::default();
    let roles: [(&str, bool, Check); 3] = [
        ("a frontend", is_frontend, frontend::check),
        ("a backend", is_backend, backend::check),
        ("an edge", is_edge, edge::check),
    ];
    let described = || roles.iter().filter(|(_, is_described, _)| *is_described);
    let side = described().map(|(role, ..)| *role).collect::<Vec<_>>().join(" and ");
    if side.is_empty() {
        return Err(Failure::failed(format!("{name}: it has no section [frontend], [backend] or [edge]")));
    }
    let checked = described().try_for_each(|(_, _, check)| check(&settings));
    checked.map_err(|failure| Failure::failed(failure.in_file(&args.config).message))?;
    for (key, why) in warnings(&settings) {
        eprintln!("brisk: warning: {}", Failure::failed(why).about(key).in_file(&args.config).message);
    }
    output::print_line(&format!("{name}: valid for {side}"))
}

/// Returns warnings, each with its key: settings that do not prevent the start, or depend on the machine.
fn warnings(settings: &Settings) -> Vec<(&'static str, String)> {
    let missing = hop_args::missing_interfaces(settings)
        .into_iter()
        .map(|(key, name)| (key, format!("the interface {name} does not exist; it must exist at the start")));
    let ignored = settings.ignored().into_iter().map(|Ignored { key, why }| (key, why.to_owned()));
    let hop = hop_args::protection(&settings.hop).ok();
    let unknown = hop.map(|hop| backend::unknown_labels(settings, &hop)).unwrap_or_default();
    missing.chain(ignored).chain(unknown.into_iter().map(|why| ("frontends", why))).collect()
}
