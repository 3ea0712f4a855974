//! The parser: flags, commands, and events with their times. Packets and system calls have files of their
//! own.

mod call;
mod packet;

use crate::assertion;
use crate::ast::{Action, Event, Flag, Moment, Script, Time};
use crate::cursor::Cursor;
use crate::error::ScriptError;

/// Parses a script. Messages use `file`; `defines` and the script's `--define=NAME=value` lines replace
/// `${NAME}`.
pub(crate) fn parse(file: &str, text: &str, defines: &[(String, String)]) -> Result<Script, ScriptError> {
    let text = with_defines(file, text, defines)?;
    let mut cursor = Cursor::new(file, &text);
    let mut script = Script::default();
    while cursor.sees("--") {
        script.flags.push(flag(&mut cursor)?);
    }
    while !cursor.is_at_end() {
        let line = cursor.line();
        if cursor.sees("`") {
            script.commands.push((line, command(&mut cursor)?));
        } else {
            script.events.push(event(&mut cursor)?);
        }
    }
    Ok(script)
}

/// Returns the text with every `${NAME}` replaced.
fn with_defines(file: &str, text: &str, defines: &[(String, String)]) -> Result<String, ScriptError> {
    let own = text.lines().filter_map(|line| line.strip_prefix("--define=")?.trim().split_once('='));
    let mut known: Vec<(&str, &str)> = own.collect();
    known.extend(defines.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let mut whole = text.to_owned();
    for (name, value) in known {
        whole = whole.replace(&format!("${{{name}}}"), value.trim_matches('"'));
    }
    match whole.find("${") {
        None => Ok(whole),
        Some(at) => {
            let line = 1 + whole.get(..at).unwrap_or("").matches('\n').count() as u32;
            let name: String =
                whole.chars().skip(whole.get(..at).unwrap_or("").chars().count()).take(24).collect();
            Err(ScriptError::new(file, line, format!("`{name}…` is not defined: use --define=NAME=value")))
        }
    }
}

fn flag(cursor: &mut Cursor<'_>) -> Result<Flag, ScriptError> {
    let line = cursor.line();
    let chunk = cursor.chunk();
    let (key, value) =
        chunk.trim_start_matches('-').split_once('=').unwrap_or((chunk.trim_start_matches('-'), ""));
    // Both `--set key=value` and `--set=key=value` are valid.
    let value = if key == "set" && value.is_empty() { cursor.chunk() } else { value };
    if key.is_empty() {
        return Err(cursor.complaint(line, "a flag is written --key=value"));
    }
    // A value in quotation marks may contain blanks.
    let open = value.starts_with('"') && (value.len() == 1 || !value.ends_with('"'));
    let rest = if open { cursor.through("\"")? } else { "" };
    let value = format!("{value}{rest}");
    Ok(Flag { line, key: key.to_owned(), value: value.trim_matches('"').trim().to_owned() })
}

fn command(cursor: &mut Cursor<'_>) -> Result<String, ScriptError> {
    cursor.expect("`")?;
    Ok(cursor.through("`")?.to_owned())
}

fn event(cursor: &mut Cursor<'_>) -> Result<Event, ScriptError> {
    let line = cursor.line();
    let time = time(cursor)?;
    let action = if cursor.eat("<") {
        packet::arriving(cursor)?
    } else if cursor.eat(">") {
        Action::Sends(packet::tcp(cursor)?)
    } else if cursor.sees("`") {
        Action::Command(command(cursor)?)
    } else if cursor.eat("%{") {
        let start = cursor.line();
        let code = cursor.through("}%")?;
        Action::Code(assertion::parse(cursor, start, code)?)
    } else {
        Action::Call(call::call(cursor)?)
    };
    let blocking = matches!(time, Time::Blocking(..));
    if blocking && !matches!(action, Action::Call(_)) {
        return Err(cursor.complaint(line, "only a system call lasts from one time to another: use a~b here"));
    }
    Ok(Event { line, time, action })
}

fn time(cursor: &mut Cursor<'_>) -> Result<Time, ScriptError> {
    if cursor.eat("*") {
        return Ok(Time::Any);
    }
    let from = moment(cursor)?;
    if cursor.eat_joined("...") {
        let mut to = moment(cursor)?;
        to.relative = from.relative;
        return Ok(Time::Blocking(from, to));
    }
    if cursor.eat("~") {
        return Ok(Time::Between(from, moment(cursor)?));
    }
    Ok(Time::At(from))
}

fn moment(cursor: &mut Cursor<'_>) -> Result<Moment, ScriptError> {
    let relative = cursor.eat("+");
    Ok(Moment { micros: cursor.seconds()?, relative })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_absolute_relative_any_ranges_or_blocking() {
        let at = |micros, relative| Moment { micros, relative };
        for (text, expected) in [
            ("0.1 ", Time::At(at(100_000, false))),
            ("+0 ", Time::At(at(0, true))),
            ("+.25", Time::At(at(250_000, true))),
            ("* ", Time::Any),
            ("1~2 ", Time::Between(at(1_000_000, false), at(2_000_000, false))),
            ("+0~+.1 ", Time::Between(at(0, true), at(100_000, true))),
            ("+0...0.3 ", Time::Blocking(at(0, true), at(300_000, true))),
        ] {
            assert_eq!(time(&mut Cursor::new("t", text)).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn a_script_has_flags_commands_and_events() {
        let text = "--tolerance_usecs=100\n--set mss=5\n--define=N=7\n`sysctl x=1`\n0 socket(..., SOCK_STREAM, IPPROTO_TCP) = ${N}\n\
                    +0 < S 0:0(0) win 1000 <mss 1000>\n+0 `true`";
        let script = parse("t", text, &[]).unwrap();
        let flags: Vec<_> =
            script.flags.iter().map(|flag| (flag.key.as_str(), flag.value.as_str())).collect();
        assert_eq!(flags, [("tolerance_usecs", "100"), ("set", "mss=5"), ("define", "N=7")]);
        let quoted = parse("t", "--kernel=\"says it otherwise\"\n0 listen(3, 1) = 0", &[]).unwrap();
        assert_eq!(quoted.flags[0].value, "says it otherwise");
        assert_eq!(script.commands, [(4, "sysctl x=1".to_owned())]);
        let lines: Vec<u32> = script.events.iter().map(|event| event.line).collect();
        assert_eq!(lines, [5, 6, 7]);
    }

    #[test]
    fn undefined_name_is_reported() {
        let error = parse("t.pkt", "\n0 read(${FD})", &[]).unwrap_err();
        assert_eq!(error.line, 2);
        assert!(error.message.contains("${FD}"), "{error}");
    }
}
