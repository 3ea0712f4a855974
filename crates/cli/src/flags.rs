//! The flags of gateways, built from the keys of the configuration.

use std::fmt::Debug;
use std::marker::PhantomData;

use brisk_gateway::Settings;
use brisk_gateway::settings::{Key, all_keys};
use clap::{Arg, ArgAction, ArgMatches, Command, Error, FromArgMatches};

/// A group of configuration keys that are flags of some subcommands. A frontend has `OfPair` and
/// `OfFrontend`.
pub(crate) trait HasKeys: Clone + Debug + Send + Sync + 'static {
    /// True for an edge, whose keys may have other defaults.
    const IS_EDGE: bool;
    /// True if the group contains this key.
    fn has(key: &Key) -> bool;
}

/// Declares groups. Each entry has a name, `true` if the group is that of an edge, and a condition on a key.
macro_rules! groups {
    ($($(#[$doc:meta])* $group:ident, $is_edge:literal, |$key:ident| $has:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub(crate) struct $group;

        impl HasKeys for $group {
            const IS_EDGE: bool = $is_edge;

            fn has($key: &Key) -> bool {
                $has
            }
        }
    )*};
}

fn is_common(key: &Key) -> bool {
    matches!(key.section, "limits" | "admin")
}

groups! {
    /// The keys of both gateways of a pair.
    OfPair, false, |key| is_common(key) || key.section == "hop";
    /// The keys of the frontend only.
    OfFrontend, false, |key| key.section == "frontend";
    /// The keys of the backend only.
    OfBackend, false, |key| key.section == "backend";
    /// The keys of an edge.
    OfEdge, true, |key| is_common(key) || key.section == "edge" || key.edge;
}

/// The flags of a group, as settings.
#[derive(Clone, Debug)]
pub(crate) struct Flags<R> {
    pub(crate) settings: Settings,
    group: PhantomData<R>,
}

/// Returns the keys of a group that have flags, with the names of the flags.
fn keys<R: HasKeys>() -> impl Iterator<Item = (&'static Key, &'static str)> {
    all_keys().filter(|key| R::has(key)).filter_map(|key| Some((key, key.flag?)))
}

/// Returns the help text of a flag, with the default.
fn help<R: HasKeys>(key: &Key) -> String {
    let of_edge = key.edge_default.filter(|_| R::IS_EDGE).map(str::to_owned);
    let default = of_edge.or_else(key.default).unwrap_or_else(|| key.unset.to_owned());
    let help = key.flag_help.unwrap_or(key.help);
    match key.is_switch() || default.is_empty() {
        true => help.to_owned(),
        false => format!("{help} [default: {}]", default.replace('"', "")),
    }
}

fn flag<R: HasKeys>(key: &'static Key, name: &'static str) -> Arg {
    let arg = Arg::new(name).long(name).help(help::<R>(key)).help_heading(key.heading);
    let arg = arg.env(format!("BRISK_{}", name.replace('-', "_").to_uppercase()));
    let arg = arg.conflicts_with_all(key.conflicts.iter().copied());
    if key.is_switch() {
        return arg.action(ArgAction::SetTrue);
    }
    let checked = |text: &str| key.set_checked(&mut Settings::default(), text).map(|()| text.to_owned());
    let arg = arg.value_name(key.value_name).value_parser(checked);
    match key.is_list {
        true => arg.action(ArgAction::Append).value_delimiter(','),
        false => arg,
    }
}

impl<R: HasKeys> clap::Args for Flags<R> {
    fn augment_args(command: Command) -> Command {
        keys::<R>().fold(command, |command, (key, name)| command.arg(flag::<R>(key, name)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Flags::<R>::augment_args(command)
    }
}

impl<R: HasKeys> FromArgMatches for Flags<R> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Flags<R>, Error> {
        let mut flags = Flags { settings: Settings::default(), group: PhantomData };
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        for (key, name) in keys::<R>() {
            let text = match key.is_switch() {
                true => matches.get_flag(name).then(|| (!name.starts_with("no-")).to_string()),
                false => {
                    matches.get_many::<String>(name).map(|all| all.cloned().collect::<Vec<_>>().join(","))
                }
            };
            if let Some(text) = text {
                (key.set)(&mut self.settings, &text)
                    .map_err(|why| Error::raw(clap::error::ErrorKind::ValueValidation, why))?;
            }
        }
        Ok(())
    }
}
