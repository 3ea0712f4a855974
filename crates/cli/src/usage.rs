//! Reports an invalid command line in one line, like every failure.
//!
//! clap writes a paragraph; this puts its content into one line. Help and version are shown unchanged.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Parser};

use crate::failure::Failure;

/// Subcommands that only a program with the feature `lab` has. The package brisk-full installs one.
const OF_FULL_PROGRAM: [&str; 6] = ["demo", "emulate", "whatif", "lab", "bench", "script"];

/// Returns the command line, or the exit status if there is nothing to run.
pub(crate) fn parse<C: Parser>() -> Result<C, ExitCode> {
    let words: Vec<_> = std::env::args_os().collect();
    C::try_parse_from(&words).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // An error means that the output is closed and has no reader.
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1))
        }
        _ => {
            if let Some(name) = of_full_program(&error) {
                let elsewhere =
                    format!("{name} is not in this program: install brisk-full; see brisk --help");
                return Failure::usage(elsewhere).report();
            }
            let subcommand = subcommand(C::command(), words.iter().skip(1));
            Failure::usage(one_line(&error.to_string(), subcommand.as_deref())).report()
        }
    })
}

/// Returns the unknown subcommand if the full program has it.
fn of_full_program(error: &clap::Error) -> Option<&'static str> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    OF_FULL_PROGRAM.into_iter().find(|name| name == word)
}

/// Returns the subcommand that the words name, with its parents: `lab run`.
fn subcommand<'a>(mut command: Command, words: impl Iterator<Item = &'a OsString>) -> Option<String> {
    let mut names = Vec::new();
    for word in words {
        if let Some(below) = command.find_subcommand(word).cloned() {
            names.push(below.get_name().to_owned());
            command = below;
        }
    }
    (!names.is_empty()).then(|| names.join(" "))
}

/// Returns the content of clap's paragraph in one line, with the command for help.
fn one_line(paragraph: &str, subcommand: Option<&str>) -> String {
    let parts =
        paragraph.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let mut line = String::new();
    for part in parts.map(str::trim).filter(|part| !part.is_empty()) {
        let joint = match line.chars().last() {
            None => "",
            Some(':') => " ",
            Some(_) if part.starts_with('[') => " ",
            Some(_) if part.starts_with("tip:") => "; ",
            Some(_) => ", ",
        };
        line.push_str(joint);
        line.push_str(part.trim_start_matches("error: ").trim_start_matches("tip: "));
    }
    match subcommand {
        Some(subcommand) => format!("{line}; see brisk {subcommand} --help"),
        None => format!("{line}; see brisk --help"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subcommands_of_the_full_program_are_known_without_it() {
        let gateway = Command::new("brisk").subcommand_required(true).subcommand(Command::new("top"));
        let named =
            |word| of_full_program(&gateway.clone().try_get_matches_from(["brisk", word]).unwrap_err());
        assert_eq!(OF_FULL_PROGRAM.map(named), OF_FULL_PROGRAM.map(Some));
        assert_eq!(named("tops"), None);
    }

    #[cfg(feature = "lab")]
    #[test]
    fn full_program_has_its_subcommands() {
        use clap::CommandFactory;
        let command = crate::Cli::command();
        assert!(OF_FULL_PROGRAM.iter().all(|name| command.find_subcommand(name).is_some()));
    }

    #[test]
    fn paragraph_becomes_one_line_with_its_content() {
        let missing = "error: the following required arguments were not provided:\n  --device <DEVICE>\n  <URL>\n\n\
                       Usage: brisk get --device <DEVICE> <URL>\n\nFor more information, try '--help'.\n";
        assert_eq!(
            one_line(missing, Some("get")),
            "the following required arguments were not provided: --device <DEVICE>, <URL>; see brisk get --help"
        );
        let unknown = "error: unrecognized subcommand 'gett'\n\n  tip: a similar subcommand exists: 'get'\n\n\
                       Usage: brisk [OPTIONS] <COMMAND>\n";
        assert_eq!(
            one_line(unknown, None),
            "unrecognized subcommand 'gett'; a similar subcommand exists: 'get'; see brisk --help"
        );
        let value = "error: invalid value 'x' for '--stats <FORMAT>'\n  [possible values: text, json]\n\n\
                     For more information, try '--help'.\n";
        assert_eq!(
            one_line(value, Some("get")),
            "invalid value 'x' for '--stats <FORMAT>' [possible values: text, json]; see brisk get --help"
        );
    }
}
