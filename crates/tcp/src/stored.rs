//! The frame of every text that keeps a part of a stack's memory across restarts.
//!
//! ```text
//! brisk-paths 1 1764000000
//! path 192.0.2.1 198.51.100.9 ...
//! end 1 9f0a6c1de2b47533
//! ```
//!
//! The first line contains the kind, its version and the time of writing in Unix seconds, if known. Times in
//! the records are remaining times in milliseconds. The last line contains the number of records and a hash
//! of the lines before it, so a truncated or damaged text is rejected as a whole. Several kinds may follow
//! each other in one file; each reader finds its own.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt::Write;
use core::str::FromStr;

use siphasher::sip::SipHasher24;

use crate::time::{Duration, Instant};

/// Reason why a stored text was refused. The memory is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ImportError {
    /// There is no text of this kind.
    NotACache,
    /// The version is another one.
    Version,
    /// The text was truncated or changed.
    Damaged,
    /// A line is not valid.
    Line(usize),
}

brisk_wire::impl_error! {
    ImportError {
        Self::NotACache =>
            "nothing in it that was stored for this purpose; delete the file; a new one is written";
        Self::Version => "stored by another version; delete the file; a new one is written";
        Self::Damaged => "damaged since it was stored; delete the file; a new one is written";
        Self::Line(number) =>
            "line {number} of what was stored cannot be read; delete the file; a new one is written";
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
}

impl Kind {
    /// Writes the frame around the records, one per line. `unix`: seconds since 1970, if known.
    pub(crate) fn write(self, unix: Option<u64>, records: impl FnOnce(&mut Records)) -> String {
        let mut written =
            Records { text: format!("{} {} {}\n", self.name, self.version, or_dash(unix)), count: 0 };
        records(&mut written);
        let Records { mut text, count } = written;
        let sum = checksum(&text);
        let _ = writeln!(text, "end {count} {sum:016x}");
        text
    }

    /// Finds the text of this kind and checks its frame.
    pub(crate) fn read(self, text: &str) -> Result<Stored<'_>, ImportError> {
        let start = self.find(text).ok_or(ImportError::NotACache)?;
        let text = text.get(start..).ok_or(ImportError::NotACache)?;
        let (first, rest) = text.split_once('\n').ok_or(ImportError::Damaged)?;
        let mut words = Words::of(first);
        words.next();
        if words.next() != Some(self.version) {
            return Err(ImportError::Version);
        }
        let saved = words.read_or_dash().ok_or(ImportError::Damaged)?;
        let last = rest.match_indices("end ").map(|(at, _)| at).find(|&at| begins_a_line(rest, at));
        let (body, end) = last.and_then(|at| rest.split_at_checked(at)).ok_or(ImportError::Damaged)?;
        let covered = text.get(..first.len() + 1 + body.len()).ok_or(ImportError::Damaged)?;
        let expected = format!("end {} {:016x}\n", body.lines().count(), checksum(covered));
        if end.starts_with(&expected) { Ok(Stored { saved, body }) } else { Err(ImportError::Damaged) }
    }

    fn find(self, text: &str) -> Option<usize> {
        let head = format!("{} ", self.name);
        text.match_indices(&head).map(|(at, _)| at).find(|&at| begins_a_line(text, at))
    }
}

fn begins_a_line(text: &str, at: usize) -> bool {
    at == 0 || text.as_bytes().get(at - 1) == Some(&b'\n')
}

/// The records of a text that is being written.
#[derive(Debug)]
pub(crate) struct Records {
    text: String,
    count: usize,
}

impl Records {
    /// Adds a record: one line, without its end.
    pub(crate) fn push(&mut self, record: &str) {
        self.count += 1;
        let _ = writeln!(self.text, "{record}");
    }
}

/// A text with a valid frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stored<'a> {
    saved: Option<u64>,
    body: &'a str,
}

impl<'a> Stored<'a> {
    /// Returns the clock that converts the times in the text at `now`. `unix`: seconds since 1970, if known.
    pub(crate) fn clock(&self, unix: Option<u64>, now: Instant) -> Clock {
        let elapsed = unix.zip(self.saved).map_or(0, |(unix, saved)| unix.saturating_sub(saved));
        Clock { now, elapsed: Duration::from_secs(elapsed) }
    }

    /// Passes each record, split into words, to `read`. `read` returns `None` if the record is not valid.
    pub(crate) fn each(&self, mut read: impl FnMut(&mut Words<'a>) -> Option<()>) -> Result<(), ImportError> {
        for (index, line) in self.body.lines().enumerate() {
            let mut words = Words::of(line);
            // The first line of the body is the second of the text.
            read(&mut words).filter(|()| words.next().is_none()).ok_or(ImportError::Line(index + 2))?;
        }
        Ok(())
    }
}

/// The clock that converts stored remaining times to instants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Clock {
    now: Instant,
    /// Time since the text was written.
    elapsed: Duration,
}

/// The words of a line.
#[derive(Clone, Debug)]
pub(crate) struct Words<'a>(core::str::Split<'a, char>);

impl<'a> Words<'a> {
    fn of(line: &'a str) -> Words<'a> {
        Words(line.split(' '))
    }

    pub(crate) fn next(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    pub(crate) fn read<T: FromStr>(&mut self) -> Option<T> {
        self.next()?.parse().ok()
    }

    pub(crate) fn read_or_dash<T: FromStr>(&mut self) -> Option<Option<T>> {
        match self.next()? {
            "-" => Some(None),
            word => word.parse().ok().map(Some),
        }
    }

    /// Reads a remaining time; `None` if it is not valid, `Some(None)` for `-` or a time that has passed.
    pub(crate) fn read_time(&mut self, clock: &Clock) -> Option<Option<Instant>> {
        let left: Option<u64> = self.read_or_dash()?;
        let left = left.and_then(|left| Duration::from_millis(left).checked_sub(clock.elapsed));
        Some(left.filter(|left| !left.is_zero()).map(|left| clock.now + left))
    }
}

/// Returns a checksum that detects damage, but not deliberate changes.
pub(crate) fn checksum(text: &str) -> u64 {
    SipHasher24::new_with_key(&[0; 16]).hash(text.as_bytes())
}

/// Returns the remaining time, milliseconds.
pub(crate) fn left(until: Option<Instant>, now: Instant) -> String {
    let left = until.map(|until| until.saturating_since(now).as_millis()).filter(|&left| left > 0);
    or_dash(left)
}

pub(crate) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_string(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const LETTERS: Kind = Kind { name: "letters", version: "2" };
    const NUMBERS: Kind = Kind { name: "numbers", version: "1" };

    fn letters(unix: Option<u64>) -> String {
        LETTERS.write(unix, |records| {
            records.push("a 1");
            records.push("b -");
        })
    }

    fn read(text: &str) -> Result<Vec<(String, Option<u32>)>, ImportError> {
        let mut read = Vec::new();
        LETTERS.read(text)?.each(|words| {
            read.push((words.next()?.to_string(), words.read_or_dash()?));
            Some(())
        })?;
        Ok(read)
    }

    #[test]
    fn written_text_is_read_back() {
        assert_eq!(read(&letters(Some(7))), Ok(Vec::from([("a".into(), Some(1)), ("b".into(), None)])));
    }

    #[test]
    fn each_kind_is_found_in_a_text_of_several_kinds() {
        let numbers = NUMBERS.write(None, |records| records.push("17"));
        for text in [numbers.clone() + &letters(None), letters(None) + &numbers] {
            assert_eq!(read(&text).map(|read| read.len()), Ok(2));
            assert!(NUMBERS.read(&text).is_ok());
        }
        assert_eq!(read(&numbers), Err(ImportError::NotACache));
    }

    #[test]
    fn mistakes_in_stored_text_are_named() {
        assert_eq!(read(""), Err(ImportError::NotACache));
        assert_eq!(read("letters 1 -\n"), Err(ImportError::Version));
        assert_eq!(read("letters 2 -\n"), Err(ImportError::Damaged));
        assert_eq!(read(&letters(None).replace("a 1", "a 2")), Err(ImportError::Damaged));
        assert_eq!(read(letters(None).trim_end()), Err(ImportError::Damaged));
        let odd = LETTERS.write(None, |records| {
            records.push("a 1");
            records.push("b 1 more");
        });
        assert_eq!(read(&odd), Err(ImportError::Line(3)));
    }

    #[test]
    fn remaining_times_shrink_between_writing_and_reading() {
        let now = Instant::from_millis(1000);
        let text =
            LETTERS.write(Some(100), |records| records.push(&left(Some(now + Duration::from_secs(9)), now)));
        let stored = LETTERS.read(&text).expect("as written");
        let until = |unix| {
            let mut until = None;
            let clock = stored.clock(Some(unix), Instant::ZERO);
            let read = stored.each(|words| {
                until = words.read_time(&clock)?;
                Some(())
            });
            assert_eq!(read, Ok(()));
            until
        };
        assert_eq!(until(104), Some(Instant::from_millis(5000)));
        assert_eq!((until(109), until(200)), (None, None));
    }
}
