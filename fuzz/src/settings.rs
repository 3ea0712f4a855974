//! Target: any text as the configuration of a gateway.
//!
//! Reading ends with settings, or with an error of one line that names a line of the text. Settings merged
//! over others keep their values; merged over themselves they do not change.

use brisk_gateway::settings::{Settings, SettingsError};

/// File name that errors must contain.
const NAME: &str = "fuzz.toml";

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let settings = match Settings::parse(&text, NAME) {
        Ok(settings) => settings,
        Err(error) => return check_error(&error, &text),
    };
    let again = Settings::parse(&text, "other.toml").expect("what was read is read again");
    assert_eq!(again, settings);
    assert_eq!(settings.clone().over(Settings::default()), settings);
    assert_eq!(Settings::default().over(settings.clone()), settings);
    assert_eq!(settings.clone().over(settings.clone()), settings);
}

/// Checks that an error names the place and fits into a log.
fn check_error(error: &SettingsError, text: &str) {
    let SettingsError::Line { path, line, problem } = error else { panic!("{error:?}: no file was read") };
    assert_eq!(path, NAME);
    let last = text.bytes().filter(|byte| *byte == b'\n').count() + 1;
    assert!((1..=last).contains(line), "{error}: the text has {last} lines");
    assert!(!problem.is_empty() && problem.lines().count() == 1, "{error:?}");
}
