//! `setsockopt`, `getsockopt` and `ioctl`: values in the script's notation.

use crate::ast::Argument;
use crate::run::arguments::{Arguments, Misuse, value_of};
use crate::run::names;
use crate::run::request::Request;

const MAX_CAPACITY: usize = 512;

fn level_and_name(arguments: Arguments<'_>) -> Result<(i32, i32), Misuse> {
    let name = arguments.number(2)? as i32;
    let level = match (arguments.value(1)?, arguments.at(2)) {
        (Some(level), _) => level as i32,
        (None, Some(Argument::Names(known))) => {
            known.first().map_or(libc::SOL_TCP, |name| names::level_of(name))
        }
        (None, _) => libc::SOL_TCP,
    };
    Ok((level, name))
}

pub(super) fn set_request(arguments: Arguments<'_>, fd: i32) -> Result<Request, Misuse> {
    let (level, name) = level_and_name(arguments)?;
    let wide = level == libc::SOL_SOCKET && matches!(name, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO);
    let mut value = match arguments.at(3) {
        Some(argument) => bytes_of(argument, wide).map_err(|error| format!("setsockopt: {error}"))?,
        None => return Err("setsockopt needs a value".to_owned()),
    };
    if let Some(len) = arguments.value(4)?.and_then(|len| usize::try_from(len).ok()).filter(|_| !wide) {
        value.resize(len.min(MAX_CAPACITY), 0);
    }
    Ok(Request::SetOption { fd, level, name, value })
}

pub(super) fn get_request(arguments: Arguments<'_>, fd: i32) -> Result<Request, Misuse> {
    let (level, name) = level_and_name(arguments)?;
    let capacity = arguments.value(4)?.and_then(|capacity| usize::try_from(capacity).ok());
    Ok(Request::GetOption { fd, level, name, capacity: capacity.unwrap_or(MAX_CAPACITY).min(MAX_CAPACITY) })
}

/// Returns a value as in C: numbers of four bytes (of eight with `wide`), or text.
fn bytes_of(argument: &Argument, wide: bool) -> Result<Vec<u8>, Misuse> {
    match argument {
        Argument::Text(text) => Ok(unescaped(text)),
        Argument::List(list) => {
            list.iter().try_fold(Vec::new(), |all, one| Ok([all, bytes_of(one, wide)?].concat()))
        }
        Argument::Record(fields) => {
            fields.iter().try_fold(Vec::new(), |all, (_, one)| Ok([all, bytes_of(one, wide)?].concat()))
        }
        other => {
            let number = value_of(other)?.unwrap_or(0);
            Ok(if wide { number.to_ne_bytes().to_vec() } else { (number as i32).to_ne_bytes().to_vec() })
        }
    }
}

/// Replaces `\xNN` by a byte.
fn unescaped(text: &str) -> Vec<u8> {
    let mut parts = text.split("\\x");
    let mut bytes = parts.next().unwrap_or("").as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2).unwrap_or((part, ""));
        bytes.extend(u8::from_str_radix(digits, 16));
        bytes.extend(rest.as_bytes());
    }
    bytes
}

/// Checks the value that getsockopt() returned: numbers, or text.
pub(super) fn check(arguments: Arguments<'_>, bytes: &[u8]) -> Result<(), Misuse> {
    let wanted = match arguments.at(3) {
        None | Some(Argument::Usual) => return Ok(()),
        Some(Argument::List(list)) if list.contains(&Argument::Usual) => return Ok(()),
        Some(wanted) => wanted,
    };
    let name = arguments.call.name.as_str();
    let is_text = |one: &Argument| matches!(one, Argument::Text(_));
    let text = is_text(wanted) || matches!(wanted, Argument::List(list) if list.iter().any(is_text));
    let expected = bytes_of(wanted, false).map_err(|error| format!("{name}: {error}"))?;
    if text {
        let found: Vec<u8> = bytes.iter().copied().take_while(|byte| *byte != 0).collect();
        let (expected, found) = (String::from_utf8_lossy(&expected), String::from_utf8_lossy(&found));
        return if expected == found {
            Ok(())
        } else {
            Err(format!("{name}: expected \"{expected}\", it is \"{found}\""))
        };
    }
    // Linux may return a single byte.
    let found = if bytes.len() < 4 { [bytes, &[0; 4][bytes.len()..]].concat() } else { bytes.to_vec() };
    if found.get(..expected.len()) == Some(&expected) {
        return Ok(());
    }
    let list = |bytes: &[u8]| {
        let numbers =
            bytes.chunks_exact(4).map(|four| i32::from_ne_bytes([four[0], four[1], four[2], four[3]]));
        numbers.map(|number| number.to_string()).collect::<Vec<_>>().join(", ")
    };
    Err(format!("{name}: expected [{}], it is [{}]", list(&expected), list(&found)))
}

/// Checks a number that a call returns through a pointer: `[n]`; `...` accepts any number.
pub(super) fn check_value(arguments: Arguments<'_>, index: usize, actual: i64) -> Result<(), Misuse> {
    match arguments.value(index)? {
        Some(expected) if expected != actual => {
            Err(format!("{}: expected [{expected}], it is [{actual}]", arguments.call.name))
        }
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_numbers_structures_or_text() {
        let number = |number| Argument::Number(number);
        assert_eq!(bytes_of(&Argument::List(vec![number(7)]), false), Ok(7i32.to_ne_bytes().to_vec()));
        let linger = Argument::Record(vec![(Some("onoff".to_owned()), number(1)), (None, number(-1))]);
        let both = [1i32.to_ne_bytes(), (-1i32).to_ne_bytes()].concat();
        assert_eq!(bytes_of(&linger, false), Ok(both));
        assert_eq!(bytes_of(&Argument::Text("\\x01\\xffab".to_owned()), false), Ok(vec![1, 255, b'a', b'b']));
        assert_eq!(bytes_of(&number(1), true), Ok(1i64.to_ne_bytes().to_vec()));
    }
}
