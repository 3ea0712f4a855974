//! The lexer: blanks, comments, words, numbers and times, with line numbers for messages.
//!
//! The tokens of the language have no fixed meaning (`.` is a flag, a decimal point and part of `...`), so
//! the parser asks for each token that may come next.

use crate::error::ScriptError;

/// A position in the text of a script.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    file: &'a str,
    text: &'a str,
    at: usize,
    /// True if `//` and `/*` begin comments; false in Python code.
    comments: bool,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(file: &'a str, text: &'a str) -> Self {
        Cursor { file, text, at: 0, comments: true }
    }

    /// Returns a cursor over Python code, where `//` is a division.
    pub(crate) fn over_code(text: &'a str) -> Self {
        Cursor { file: "", text, at: 0, comments: false }
    }

    /// Returns the line of the next token, from 1.
    pub(crate) fn line(&mut self) -> u32 {
        self.skip_blank();
        self.line_here()
    }

    fn line_here(&self) -> u32 {
        1 + self.text.get(..self.at).unwrap_or(self.text).matches('\n').count() as u32
    }

    /// Returns an error at the next token; the message names the `expected` one.
    pub(crate) fn error(&mut self, expected: impl std::fmt::Display) -> ScriptError {
        self.skip_blank();
        let found: String = self.rest().lines().next().unwrap_or("").chars().take(40).collect();
        let found = if found.is_empty() { "the end of the file".to_owned() } else { format!("`{found}`") };
        ScriptError::new(self.file, self.line_here(), format!("expected {expected}, found {found}"))
    }

    pub(crate) fn complaint(&self, line: u32, message: impl std::fmt::Display) -> ScriptError {
        ScriptError::new(self.file, line, message.to_string())
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    /// Skips blanks and comments: `//` and `#` to the end of the line, `/* */`.
    pub(crate) fn skip_blank(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start();
            self.at += rest.len() - trimmed.len();
            let comment = if trimmed.starts_with('#') || (self.comments && trimmed.starts_with("//")) {
                trimmed.find('\n').unwrap_or(trimmed.len())
            } else if self.comments && trimmed.starts_with("/*") {
                trimmed.find("*/").map_or(trimmed.len(), |end| end + 2)
            } else {
                return;
            };
            self.at += comment;
        }
    }

    pub(crate) fn is_at_end(&mut self) -> bool {
        self.skip_blank();
        self.rest().is_empty()
    }

    pub(crate) fn peek(&mut self) -> Option<char> {
        self.skip_blank();
        self.rest().chars().next()
    }

    /// True if the next token starts with `mark`; does not advance.
    pub(crate) fn sees(&mut self, mark: &str) -> bool {
        self.skip_blank();
        self.rest().starts_with(mark)
    }

    /// Skips `mark` if it is the next token. Returns true if so.
    pub(crate) fn eat(&mut self, mark: &str) -> bool {
        let seen = self.sees(mark);
        if seen {
            self.at += mark.len();
        }
        seen
    }

    /// Skips `mark` if it follows without a blank. Returns true if so.
    pub(crate) fn eat_joined(&mut self, mark: &str) -> bool {
        let seen = self.rest().starts_with(mark);
        if seen {
            self.at += mark.len();
        }
        seen
    }

    pub(crate) fn expect(&mut self, mark: &str) -> Result<(), ScriptError> {
        if self.eat(mark) { Ok(()) } else { Err(self.error(format!("`{mark}`"))) }
    }

    fn take_while(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let len = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        self.at += len;
        rest.get(..len).unwrap_or("")
    }

    /// Reads a name: letters, digits and underscores, not starting with a digit.
    pub(crate) fn word(&mut self) -> Option<&'a str> {
        let first = self.peek()?;
        (first.is_ascii_alphabetic() || first == '_')
            .then(|| self.take_while(|c| c.is_ascii_alphanumeric() || c == '_'))
    }

    /// Skips the name `wanted` if it is the next whole word. Returns true if so.
    pub(crate) fn eat_word(&mut self, wanted: &str) -> bool {
        let mut ahead = *self;
        let seen = ahead.word() == Some(wanted);
        if seen {
            *self = ahead;
        }
        seen
    }

    /// Reads up to the next blank.
    pub(crate) fn chunk(&mut self) -> &'a str {
        self.skip_blank();
        self.take_while(|c| !c.is_whitespace())
    }

    /// Reads up to `end`, which is skipped too.
    pub(crate) fn through(&mut self, end: &str) -> Result<&'a str, ScriptError> {
        let rest = self.rest();
        let Some(len) = rest.find(end) else { return Err(self.error(format!("a closing `{end}`"))) };
        self.at += len + end.len();
        Ok(rest.get(..len).unwrap_or(""))
    }

    /// Reads hexadecimal digits, possibly none.
    pub(crate) fn hex_digits(&mut self) -> &'a str {
        self.skip_blank();
        self.take_while(|c| c.is_ascii_hexdigit())
    }

    /// Reads a number, decimal or with `0x`.
    pub(crate) fn number(&mut self) -> Result<u64, ScriptError> {
        self.skip_blank();
        let mut ahead = *self;
        let (digits, radix) = if ahead.eat_joined("0x") || ahead.eat_joined("0X") {
            (ahead.take_while(|c| c.is_ascii_hexdigit()), 16)
        } else {
            (ahead.take_while(|c| c.is_ascii_digit()), 10)
        };
        let number = u64::from_str_radix(digits, radix).map_err(|_| self.error("a number"))?;
        *self = ahead;
        Ok(number)
    }

    /// Reads a number that fits `T`.
    pub(crate) fn number_as<T: TryFrom<u64>>(&mut self) -> Result<T, ScriptError> {
        let mut ahead = *self;
        let number = ahead.number()?;
        let fits = T::try_from(number)
            .map_err(|_| self.error(format!("a number of {} bits", 8 * std::mem::size_of::<T>())))?;
        *self = ahead;
        Ok(fits)
    }

    /// Reads seconds with decimals; returns microseconds. Does not read a point that belongs to `...`.
    pub(crate) fn seconds(&mut self) -> Result<i64, ScriptError> {
        self.skip_blank();
        let mut ahead = *self;
        let whole = ahead.take_while(|c| c.is_ascii_digit());
        let mut fraction = "";
        if ahead.rest().starts_with('.') && !ahead.rest().starts_with("..") {
            ahead.at += 1;
            fraction = ahead.take_while(|c| c.is_ascii_digit());
        }
        if whole.is_empty() && fraction.is_empty() {
            return Err(self.error("a time in seconds"));
        }
        let micros: String = fraction.chars().chain("000000".chars()).take(6).collect();
        let parsed = format!("{whole}{micros}").parse::<i64>();
        let micros = parsed.map_err(|_| self.error("a time below 292 thousand years"))?;
        *self = ahead;
        Ok(micros)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_end_before_the_dots_of_a_range() {
        for (text, micros, rest) in [
            ("0.1...0.3", 100_000, "...0.3"),
            (".25 <", 250_000, " <"),
            ("3", 3_000_000, ""),
            ("0...1", 0, "...1"),
        ] {
            let mut cursor = Cursor::new("t", text);
            assert_eq!((cursor.seconds().unwrap(), cursor.rest()), (micros, rest), "{text}");
        }
    }

    #[test]
    fn comments_of_all_kinds_are_blanks() {
        let mut cursor = Cursor::new("t", "# one\n // two\n /* three\n */ word 0x1f");
        assert_eq!((cursor.line(), cursor.word(), cursor.number().unwrap()), (4, Some("word"), 31));
        assert!(cursor.is_at_end());
    }

    #[test]
    fn error_shows_the_actual_text() {
        let mut cursor = Cursor::new("a.pkt", "\n  junk here");
        assert_eq!(cursor.error("a time").to_string(), "a.pkt:2: expected a time, found `junk here`");
    }
}
