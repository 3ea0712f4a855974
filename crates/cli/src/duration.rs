//! Times as users write them: `500ms`, `10s`, `2m`.

use std::time::Duration;

/// Reads a time; the error says how to write one.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write for instance 500ms or 10s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_number_and_a_unit() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "soon", "5", "-1s", "5parsecs"] {
            assert!(parse_duration(bad).is_err_and(|error| error.ends_with("500ms or 10s")), "{bad}");
        }
    }
}
