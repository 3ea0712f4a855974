//! System calls: name, arguments, result.

use super::Cursor;
use crate::ast::{Argument, Call, Expected};
use crate::error::ScriptError;

pub(super) fn call(cursor: &mut Cursor<'_>) -> Result<Call, ScriptError> {
    let name = cursor.word().ok_or_else(|| cursor.error("<, >, a system call, `command` or %{ code }%"))?;
    let arguments = arguments(cursor, "(", ")")?;
    cursor.expect("=")?;
    let result = result(cursor)?;
    Ok(Call { name: name.to_owned(), arguments, result })
}

fn arguments(cursor: &mut Cursor<'_>, open: &str, close: &str) -> Result<Vec<Argument>, ScriptError> {
    cursor.expect(open)?;
    let mut arguments = Vec::new();
    while !cursor.eat(close) {
        arguments.push(argument(cursor)?);
        if !cursor.eat(",") && !cursor.sees(close) {
            return Err(cursor.error(format!("`,` or `{close}`")));
        }
    }
    Ok(arguments)
}

fn argument(cursor: &mut Cursor<'_>) -> Result<Argument, ScriptError> {
    if cursor.eat("...") {
        return Ok(Argument::Usual);
    }
    if cursor.sees("[") {
        return arguments(cursor, "[", "]").map(Argument::List);
    }
    if cursor.eat("{") {
        return record(cursor);
    }
    if cursor.eat("\"") {
        return Ok(Argument::Text(cursor.through("\"")?.to_owned()));
    }
    if let Some(name) = cursor.word() {
        if cursor.sees("(") {
            return Ok(Argument::Apply(name.to_owned(), arguments(cursor, "(", ")")?));
        }
        let mut names = vec![name.to_owned()];
        while cursor.eat("|") {
            names.push(cursor.word().ok_or_else(|| cursor.error("a name"))?.to_owned());
        }
        return Ok(Argument::Names(names));
    }
    integer(cursor).map(Argument::Number)
}

/// Parses `{name=value, name(n)=value, value}` after the brace.
fn record(cursor: &mut Cursor<'_>) -> Result<Argument, ScriptError> {
    let mut fields = Vec::new();
    while !cursor.eat("}") {
        fields.push(field(cursor)?);
        if !cursor.eat(",") && !cursor.sees("}") {
            return Err(cursor.error("`,` or `}`"));
        }
    }
    Ok(Argument::Record(fields))
}

fn field(cursor: &mut Cursor<'_>) -> Result<(Option<String>, Argument), ScriptError> {
    let mut ahead = *cursor;
    if let Some(name) = ahead.word() {
        if ahead.eat("(") {
            // The length of an array in parentheses is redundant.
            ahead.through(")")?;
        }
        if ahead.eat("=") {
            *cursor = ahead;
            return Ok((Some(name.to_owned()), argument(cursor)?));
        }
    }
    Ok((None, argument(cursor)?))
}

fn integer(cursor: &mut Cursor<'_>) -> Result<i64, ScriptError> {
    let negative = cursor.eat("-");
    let number: u64 = cursor.number()?;
    let number = i64::try_from(number).map_err(|_| cursor.error("a number below 2^63"))?;
    Ok(if negative { -number } else { number })
}

/// Parses `= n`, `= -1 ERRNO (explanation)`, `= ?`.
fn result(cursor: &mut Cursor<'_>) -> Result<Expected, ScriptError> {
    if cursor.eat("?") {
        return Ok(Expected::Anything);
    }
    let value = integer(cursor)?;
    let mut ahead = *cursor;
    if ahead.eat("(") {
        // `= 0x802 (flags O_RDWR|O_NONBLOCK)`: an explanation of the number.
        ahead.through(")")?;
        *cursor = ahead;
        return Ok(Expected::Value(value));
    }
    let Some(errno) = ahead.word().filter(|word| word.starts_with('E')) else {
        return Ok(Expected::Value(value));
    };
    if ahead.eat("(") {
        ahead.through(")")?;
    }
    *cursor = ahead;
    Ok(Expected::Errno(errno.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Call {
        call(&mut Cursor::new("t", text)).unwrap()
    }

    #[test]
    fn calls_have_arguments_of_every_kind() {
        use Argument::*;
        let name = |name: &str| Names(vec![name.to_owned()]);
        let call =
            read("f(3, ..., A|B, [1], {fd=4, msg_iov(1)=[{..., 1000}], x = htons(80)}, \"t\", -1) = 5");
        assert_eq!(call.result, Expected::Value(5));
        let iovec = Record(vec![(None, Usual), (None, Number(1000))]);
        let expected = [
            Number(3),
            Usual,
            Names(vec!["A".to_owned(), "B".to_owned()]),
            List(vec![Number(1)]),
            Record(vec![
                (Some("fd".to_owned()), Number(4)),
                (Some("msg_iov".to_owned()), List(vec![iovec])),
                (Some("x".to_owned()), Apply("htons".to_owned(), vec![Number(80)])),
            ]),
            Text("t".to_owned()),
            Number(-1),
        ];
        assert_eq!(call.arguments, expected);
        assert_eq!(read("close(X) = 0").arguments, [name("X")]);
    }

    #[test]
    fn results_are_values_errors_or_anything() {
        assert_eq!(read("f() = 0x802").result, Expected::Value(0x802));
        assert_eq!(read("f() = 0x802 (flags O_RDWR|O_NONBLOCK)").result, Expected::Value(0x802));
        assert_eq!(read("f() = ?").result, Expected::Anything);
        let error = Expected::Errno("EAGAIN".to_owned());
        assert_eq!(read("f() = -1 EAGAIN (Resource temporarily unavailable)").result, error);
    }
}
