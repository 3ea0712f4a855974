//! Log lines: one per event, to stderr by default, with RFC 3339 time in UTC, as `key=value` words or JSON.

mod queue;

use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use queue::Queue;

/// Format of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// `key=value` words after the time.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Severity of a line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// Something does not work.
    Error,
    /// Something needs attention.
    Warning,
    /// Something happened.
    Info,
}

/// The value of one key of a line.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// A text, quoted if necessary.
    Text(String),
    /// A count.
    Count(u64),
    /// A time in milliseconds, written with three decimals.
    Millis(f64),
}

/// A log. Clones write to the same destination.
#[derive(Clone)]
pub struct Log {
    format: LogFormat,
    min: Level,
    out: Out,
}

#[derive(Clone)]
enum Out {
    Stderr,
    Writer(Arc<Mutex<dyn Write + Send>>),
}

/// Usual limit of the length of a line, bytes.
const LINE: usize = 512;

/// The queue of the process for stderr.
static STDERR: Queue = Queue::new();

/// Waits, for half a second at most, until stderr has accepted every line. Call it before the process ends.
pub fn flush_stderr() {
    STDERR.flush(Duration::from_millis(500));
}

impl Log {
    /// Logs to stderr, without lines of lower severity than `min`. A separate thread writes the lines,
    /// because a pipe that nobody reads blocks its writer.
    pub fn stderr(format: LogFormat, min: Level) -> Log {
        Log { format, min, out: Out::Stderr }
    }

    /// Logs to a writer, which must never block.
    pub fn to(out: impl Write + Send + 'static, format: LogFormat, min: Level) -> Log {
        Log { format, min, out: Out::Writer(Arc::new(Mutex::new(out))) }
    }

    /// Discards all lines.
    pub fn silent() -> Log {
        Log::to(io::sink(), LogFormat::Text, Level::Error)
    }

    /// True if lines of this severity are written.
    pub fn takes(&self, level: Level) -> bool {
        level <= self.min
    }

    /// Writes one line. Errors are ignored, because a failing log must not stop the traffic.
    pub fn line(&self, level: Level, event: &str, fields: &[(&str, Value)]) {
        if !self.takes(level) {
            return;
        }
        let line = render(self.format, SystemTime::now(), level, event, fields);
        match &self.out {
            Out::Stderr => STDERR.put(&line, self.format, io::stderr()),
            Out::Writer(out) => {
                let mut out = out.lock().unwrap_or_else(PoisonError::into_inner);
                let _ = out.write_all(line.as_bytes());
            }
        }
    }
}

/// Permits one line per interval and counts the others: for lines that a peer can cause.
#[derive(Debug)]
pub struct RateLimit {
    interval: Duration,
    last: Mutex<(Option<Instant>, u64)>,
}

impl RateLimit {
    /// Permits one line per `interval`.
    pub fn new(interval: Duration) -> RateLimit {
        RateLimit { interval, last: Mutex::new((None, 0)) }
    }

    /// Returns the number of lines omitted since the last one, or `None` if no line may be written now.
    pub fn permit(&self, now: Instant) -> Option<u64> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, suppressed) = &mut *last;
        if at.is_some_and(|at| now.saturating_duration_since(at) < self.interval) {
            *suppressed += 1;
            return None;
        }
        *at = Some(now);
        Some(std::mem::take(suppressed))
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("format", &self.format).field("min", &self.min).finish_non_exhaustive()
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Info => "info",
        })
    }
}

fn render(
    format: LogFormat,
    time: SystemTime,
    level: Level,
    event: &str,
    fields: &[(&str, Value)],
) -> String {
    let mut line = String::with_capacity(LINE);
    // A string accepts every write.
    let _ = write_line(&mut line, format, time, level, event, fields);
    line
}

fn write_line(
    line: &mut String,
    format: LogFormat,
    time: SystemTime,
    level: Level,
    event: &str,
    fields: &[(&str, Value)],
) -> fmt::Result {
    let time = humantime::format_rfc3339_millis(time);
    match format {
        LogFormat::Text => {
            write!(line, "{time} level={level} event={event}")?;
            for (key, value) in fields {
                line.extend([" ", key, "="]);
                write_value(line, format, value)?;
            }
            line.push('\n');
        }
        LogFormat::Json => {
            let event = json_text(event);
            write!(line, "{{\"time\":\"{time}\",\"level\":\"{level}\",\"event\":{event}")?;
            for (key, value) in fields {
                line.extend([",", &json_text(key), ":"]);
                write_value(line, format, value)?;
            }
            line.push_str("}\n");
        }
    }
    Ok(())
}

/// Writes a value. In the text format a text is quoted only if necessary.
fn write_value(line: &mut String, format: LogFormat, value: &Value) -> fmt::Result {
    let is_plain = |c: u8| c.is_ascii_graphic() && c != b'"' && c != b'=' && c != b'\\';
    match value {
        Value::Text(text) if format == LogFormat::Text && !text.is_empty() && text.bytes().all(is_plain) => {
            line.push_str(text);
        }
        Value::Text(text) => line.push_str(&json_text(text)),
        Value::Count(count) => write!(line, "{count}")?,
        Value::Millis(millis) => write!(line, "{millis:.3}")?,
    }
    Ok(())
}

/// Returns a JSON string. Line ends and control characters are escaped, so that it stays one line.
fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn line(format: LogFormat, fields: &[(&str, Value)]) -> String {
        render(format, UNIX_EPOCH + Duration::from_millis(1_500), Level::Info, "access", fields)
    }

    #[test]
    fn text_is_words_and_quotes_only_what_needs_it() {
        let fields = [
            ("peer", Value::Text("10.0.0.1:80".into())),
            ("reason", Value::Text("connection reset\nby \"peer\"".into())),
            ("bytes", Value::Count(7)),
            ("rtt_ms", Value::Millis(1.5)),
        ];
        assert_eq!(
            line(LogFormat::Text, &fields),
            "1970-01-01T00:00:01.500Z level=info event=access peer=10.0.0.1:80 \
             reason=\"connection reset\\nby \\\"peer\\\"\" bytes=7 rtt_ms=1.500\n"
        );
    }

    #[test]
    fn a_flood_of_lines_is_one_per_interval_that_says_how_many_are_missing() {
        let (limit, begin) = (RateLimit::new(Duration::from_secs(1)), Instant::now());
        let written: Vec<u64> =
            (0..2500).filter_map(|ms| limit.permit(begin + Duration::from_millis(ms))).collect();
        assert_eq!(written, [0, 999, 999]);
    }

    #[test]
    fn json_is_one_object_in_the_order_given() {
        let fields = [("b", Value::Count(1)), ("a", Value::Text("x\"y".into()))];
        let line = line(LogFormat::Json, &fields);
        assert_eq!(
            line,
            "{\"time\":\"1970-01-01T00:00:01.500Z\",\"level\":\"info\",\"event\":\"access\",\"b\":1,\"a\":\"x\\\"y\"}\n"
        );
        assert!(serde_json::from_str::<serde_json::Value>(&line).is_ok());
    }
}
