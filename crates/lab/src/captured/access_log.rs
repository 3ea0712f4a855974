//! Response sizes from an access log in the common or the combined format, which nginx and Apache write:
//!
//! ```text
//! 10.0.0.7 - - [12/Mar/2026:10:00:00 +0000] "GET /a HTTP/1.1" 200 5120 "-" "curl/8"
//! ```
//!
//! The size is the length of the body; the log does not include headers.

use std::io::{BufRead, Read};

use thiserror::Error;

use crate::sizes::Sizes;

const LONGEST_LINE: u64 = 64 << 10;
const MAX_SIZES: usize = 1_000_000;

/// Reason why a log has no sizes.
#[derive(Debug, Error)]
pub enum AccessLogError {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Read(#[from] std::io::Error),
    /// No line has one of the formats.
    #[error(
        "no line has the form '10.0.0.7 - - [time] \"GET /a HTTP/1.1\" 200 5120'; the first of {lines} lines: {first}"
    )]
    Format {
        /// Lines in the file.
        lines: u64,
        /// The first line, shortened.
        first: String,
    },
    /// The file has no line.
    #[error("is empty")]
    Empty,
}

/// Contents of a log.
#[derive(Clone, PartialEq, Debug)]
pub struct Log {
    /// Distribution of the response bodies.
    pub sizes: Sizes,
    /// Lines with a size.
    pub responses: u64,
    /// Lines without a size: in another format, or without a body.
    pub skipped: u64,
}

/// Reads a log; lines in another format are counted and skipped.
///
/// # Errors
/// [`AccessLogError`] if there is no size in it.
pub fn read(input: impl Read) -> Result<Log, AccessLogError> {
    let mut input = std::io::BufReader::new(input);
    let (mut sizes, mut lines, mut responses) = (Vec::new(), 0, 0);
    let mut first = String::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        if input.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let text = String::from_utf8_lossy(&line);
        lines += 1;
        if lines == 1 {
            first = text.trim_end().chars().take(60).map(|c| if c.is_control() { '?' } else { c }).collect();
        }
        if let Some(bytes) = body(&text) {
            responses += 1;
            if sizes.len() < MAX_SIZES {
                sizes.push(bytes);
            }
        }
    }
    match (lines, Sizes::of_sample(sizes)) {
        (0, _) => Err(AccessLogError::Empty),
        (lines, None) => Err(AccessLogError::Format { lines, first }),
        (lines, Some(sizes)) => Ok(Log { sizes, responses, skipped: lines - responses }),
    }
}

/// Returns the length of the body, if the line has a status and a size after the quoted request.
fn body(line: &str) -> Option<u64> {
    let (_, request) = line.split_once(" \"")?;
    // A quote inside the request is escaped.
    let mut escaped = false;
    let end = request.find(|c| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends
    })?;
    let mut words = request[end + 1..].split_ascii_whitespace();
    let status: u16 = words.next()?.parse().ok()?;
    let bytes: u64 = words.next()?.parse().ok()?;
    ((100..600).contains(&status) && bytes > 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_any_text_in_the_request() {
        let log = read(
            &b"10.0.0.7 - - [12/Mar/2026:10:00:00 +0000] \"GET /a HTTP/1.1\" 200 5120 \"-\" \"curl/8\"\n\
            10.0.0.7 - - [x] \"GET /\\\"b\\\" 999 1 HTTP/1.1\" 200 300\n\
            10.0.0.7 - - [x] \"HEAD / HTTP/1.1\" 304 0\n\
            10.0.0.7 - - [x] \"GET / HTTP/1.1\" 304 -\nnonsense\n"[..],
        )
        .unwrap();
        assert_eq!((log.responses, log.skipped), (2, 3));
        assert_eq!(log.sizes, Sizes::of_sample(vec![300, 5120]).unwrap());
    }

    #[test]
    fn error_about_a_file_without_a_log_is_one_line() {
        for (text, says) in [(&b""[..], "is empty"), (b"\x1f\x8b\nx", "no line has the form")] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(says) && error.lines().count() == 1, "{error}");
        }
    }
}
