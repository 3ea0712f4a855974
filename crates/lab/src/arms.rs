//! What is compared: an arm is a set of mechanisms, asked for by name (`tcp`, `all`) or written out
//! (`fast_open,corrective=f2`).
//!
//! The grammar is complete; what it names may not be part of this build yet. Asking for such an arm is an
//! error that says which arms there are.

use brisk_tcp::TcpConfig;
use brisk_tcp::config::Reactive;
use thiserror::Error;

/// A set of mechanisms under the name it was asked by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arm {
    /// The text it was asked by.
    pub name: String,
    /// The TCP of both ends.
    pub tcp: TcpConfig,
    /// Both ends use Fast Open, and the client has been to the server before.
    pub fast_open: bool,
}

/// Why a text names no arm.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ArmError {
    /// There is no text between two semicolons, or none at all.
    #[error("an arm without a name: write them like \"tcp; all\"; arms that exist: {}", existing())]
    Empty,
    /// The arm is part of the grammar and not of this build.
    #[error("arm '{arm}' needs {what}, not built yet; arms that exist: {}", existing())]
    NotBuilt {
        /// The arm.
        arm: String,
        /// The mechanism that is missing.
        what: &'static str,
    },
    /// The word is neither an arm nor a mechanism.
    #[error(
        "arm '{arm}': '{word}' is no arm and no mechanism; arms: {}; mechanisms: fast_open, reactive=, corrective=, proactive=, planner",
        names()
    )]
    Unknown {
        /// The arm.
        arm: String,
        /// The word.
        word: String,
    },
    /// The mechanism has no such variant.
    #[error("arm '{arm}': {mechanism} cannot be '{value}'; use {allowed}")]
    Value {
        /// The arm.
        arm: String,
        /// The mechanism.
        mechanism: &'static str,
        /// The refused value.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
}

/// What stands behind the name of an arm.
#[derive(Clone, Copy)]
enum Named {
    /// This TCP.
    Tcp(fn() -> TcpConfig),
    /// This TCP with Fast Open.
    FastOpen(fn() -> TcpConfig),
    /// Something that is not part of this build.
    Missing(&'static str),
}

/// Arms that have a name of their own.
const NAMED: [(&str, Named); 7] = [
    ("tcp", Named::Tcp(TcpConfig::default)),
    ("tcp+tfo", Named::FastOpen(TcpConfig::default)),
    ("tcp2012", Named::Tcp(TcpConfig::of_2012)),
    ("reactive", Named::Tcp(TcpConfig::of_2012_with_reactive)),
    ("corrective", Named::Missing("the Corrective mechanism")),
    ("proactive", Named::Missing("the Proactive mechanism")),
    ("all", Named::Missing("the planner")),
];

/// Mechanisms, the values of each, and what is missing.
const MECHANISMS: [(&str, &str, &str); 5] = [
    ("fast_open", "on or off", "Fast Open"),
    ("reactive", "off, paper or rack_tlp", "a form of Reactive"),
    ("corrective", "off, f1 or f2", "the Corrective mechanism"),
    ("proactive", "off, short or all", "the Proactive mechanism"),
    ("planner", "on or off", "the planner"),
];

/// The arms that are compared when none are asked for: those of `tcp; tcp+tfo; reactive; corrective;
/// proactive; all` that exist.
pub fn default_arms() -> Vec<Arm> {
    ["tcp", "tcp+tfo", "reactive", "corrective", "proactive", "all"]
        .into_iter()
        .filter_map(|name| parse_arm(name).ok())
        .collect()
}

/// Reads arms separated by semicolons: `tcp; reactive; fast_open,corrective=f2`.
///
/// # Errors
/// The first arm that is none, or that this build does not have.
pub fn parse_arms(text: &str) -> Result<Vec<Arm>, ArmError> {
    text.split(';').map(parse_arm).collect()
}

/// Reads one arm.
///
/// # Errors
/// As [`parse_arms`].
pub fn parse_arm(text: &str) -> Result<Arm, ArmError> {
    let name = text.trim();
    if name.is_empty() {
        return Err(ArmError::Empty);
    }
    let arm = || name.to_owned();
    match NAMED.iter().find(|(named, _)| *named == name) {
        Some((_, Named::Tcp(tcp))) => return Ok(Arm { name: arm(), tcp: tcp(), fast_open: false }),
        Some((_, Named::FastOpen(tcp))) => return Ok(Arm { name: arm(), tcp: tcp(), fast_open: true }),
        Some((_, Named::Missing(what))) => return Err(ArmError::NotBuilt { arm: arm(), what }),
        None => {}
    }
    let mut asked = Arm { name: arm(), tcp: TcpConfig::default(), fast_open: false };
    for word in name.split(',') {
        mechanism(word.trim(), &mut asked)?;
    }
    Ok(asked)
}

/// Reads one `mechanism` or `mechanism=value` into the arm.
fn mechanism(word: &str, asked: &mut Arm) -> Result<(), ArmError> {
    let Arm { name: arm, tcp, fast_open } = asked;
    let (key, value) = word.split_once('=').map_or((word, "on"), |(key, value)| (key.trim(), value.trim()));
    let found = MECHANISMS.iter().find(|(mechanism, ..)| *mechanism == key);
    let Some((mechanism, allowed, what)) = found else {
        return Err(ArmError::Unknown { arm: arm.to_owned(), word: word.to_owned() });
    };
    if !allowed.split([',', ' ']).any(|choice| choice == value) || value == "or" || value.is_empty() {
        return Err(ArmError::Value { arm: arm.to_owned(), mechanism, value: value.to_owned(), allowed });
    }
    match (*mechanism, value) {
        ("fast_open", value) => *fast_open = value == "on",
        ("reactive", "off") => tcp.mechanisms.reactive = Reactive::Off,
        ("reactive", "rack_tlp") => tcp.mechanisms.reactive = Reactive::default(),
        ("reactive", "paper") => {
            // The paper's probes feed the loss detection of their time.
            let TcpConfig { loss_detection, mechanisms, .. } = TcpConfig::of_2012_with_reactive();
            tcp.loss_detection = loss_detection;
            tcp.mechanisms.reactive = mechanisms.reactive;
        }
        (_, "off") => {}
        _ => return Err(ArmError::NotBuilt { arm: arm.to_owned(), what }),
    }
    Ok(())
}

fn existing() -> String {
    let built = |(name, named): &(&'static str, Named)| match named {
        Named::Tcp(_) | Named::FastOpen(_) => Some(*name),
        Named::Missing(_) => None,
    };
    NAMED.iter().filter_map(built).collect::<Vec<_>>().join(", ")
}

fn names() -> String {
    NAMED.map(|(name, _)| name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arm_keeps_the_text_it_was_asked_by() {
        let arms = parse_arms(" tcp ;corrective=off, proactive=off").unwrap();
        let names: Vec<&str> = arms.iter().map(|arm| arm.name.as_str()).collect();
        assert_eq!(names, ["tcp", "corrective=off, proactive=off"]);
        assert_eq!(arms[0].tcp, arms[1].tcp);
    }

    #[test]
    fn the_default_arms_are_those_that_exist() {
        let names: Vec<String> = default_arms().into_iter().map(|arm| arm.name).collect();
        assert_eq!(names, ["tcp", "tcp+tfo", "reactive"]);
    }

    #[test]
    fn reactive_comes_in_three_forms() {
        let of = |text| parse_arm(text).unwrap().tcp;
        assert_eq!(of("reactive=rack_tlp"), of("tcp"));
        assert_eq!(of("reactive=off").mechanisms.reactive, Reactive::Off);
        assert_eq!(of("reactive=off").loss_detection, of("tcp").loss_detection);
        assert_eq!(of("reactive=paper"), of("reactive"));
        assert_eq!(of("tcp2012").mechanisms.reactive, Reactive::Off);
        assert_ne!(of("tcp2012").loss_detection, of("tcp").loss_detection);
    }

    #[test]
    fn an_arm_that_is_not_built_says_which_are() {
        let error = parse_arms("tcp; corrective").unwrap_err().to_string();
        assert_eq!(
            error,
            "arm 'corrective' needs the Corrective mechanism, not built yet; arms that exist: tcp, tcp+tfo, tcp2012, reactive"
        );
        assert!(matches!(parse_arm("fast_open,corrective=f2"), Err(ArmError::NotBuilt { .. })));
    }

    #[test]
    fn a_wrong_word_or_value_says_what_is_allowed() {
        let error = parse_arm("tpc").unwrap_err().to_string();
        assert!(error.contains("'tpc' is no arm") && error.contains("tcp2012"), "{error}");
        let error = parse_arm("corrective=f3").unwrap_err().to_string();
        assert_eq!(error, "arm 'corrective=f3': corrective cannot be 'f3'; use off, f1 or f2");
        assert!(matches!(parse_arm("corrective=or"), Err(ArmError::Value { .. })));
        assert_eq!(parse_arms("tcp;"), Err(ArmError::Empty));
    }
}
