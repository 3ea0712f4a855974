//! A packet script that is being generated or minimised.

use std::fmt::Write;

/// A script: settings, and events with absolute times.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Script {
    /// Lines before the first event.
    pub header: Vec<String>,
    /// The events, in order of time.
    pub events: Vec<Event>,
}

/// One event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Microseconds since the start.
    pub at: i64,
    /// Text of the event without its time.
    pub text: String,
}

impl Script {
    /// Adds an event.
    pub fn push(&mut self, at: i64, text: impl Into<String>) {
        self.events.push(Event { at, text: text.into() });
    }

    /// Returns the time of the last event.
    pub fn last(&self) -> i64 {
        self.events.last().map_or(0, |event| event.at)
    }

    /// Returns the script as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for line in &self.header {
            let _ = writeln!(text, "{line}");
        }
        for event in &self.events {
            let _ = writeln!(text, "{}.{:06} {}", event.at / 1_000_000, event.at % 1_000_000, event.text);
        }
        text
    }
}
