//! `%{ assert tcpi_snd_cwnd == 10, tcpi_snd_cwnd }%`: the subset of Python in such blocks.
//!
//! The subset has integers, the names of the runner, `+ - * / // % & |`, comparisons (chained as in Python),
//! `not`, `and`, `or` and parentheses. A division by zero, an unknown name and all other Python code are
//! errors with a message. `print(name, name)` writes values into the trace; any other `print` is ignored.

use crate::cursor::Cursor;
use crate::error::ScriptError;

/// One line of code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Statement {
    Assert(Assertion),
    /// `print(name, name)`: writes the values of these names into the trace.
    Print(Vec<String>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Assertion {
    pub(crate) line: u32,
    /// The source text, for the message.
    pub(crate) text: String,
    condition: Expression,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Expression {
    Number(i128),
    Name(String),
    Not(Box<Expression>),
    Minus(Box<Expression>),
    Binary(Box<Expression>, &'static str, Box<Expression>),
    /// `a < b <= c`: true if every comparison is true.
    Chain(Box<Expression>, Vec<(&'static str, Expression)>),
}

/// Operators other than comparisons, in the order of their precedence, lowest first.
const LEVELS: [&[&str]; 4] = [&["or"], &["and"], &["|", "&"], &["+", "-"]];
const PRODUCTS: &[&str] = &["//", "*", "/", "%"];
const COMPARISONS: &[&str] = &["==", "!=", "<=", ">=", "<", ">"];

/// Parses a block of code that starts at `line`.
pub(crate) fn parse(outer: &Cursor<'_>, line: u32, code: &str) -> Result<Vec<Statement>, ScriptError> {
    let mut parsed = Vec::new();
    let statements = code.lines().enumerate().flat_map(|(n, text)| text.split(';').map(move |one| (n, one)));
    for (n, statement) in statements {
        let (line, text) = (line + n as u32, statement.trim());
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        if let Some(printed) = text.strip_prefix("print") {
            parsed.extend(names_in_parentheses(printed).map(Statement::Print));
            continue;
        }
        let refuse = |why: String| outer.complaint(line, why);
        let condition = text
            .strip_prefix("assert")
            .ok_or_else(|| refuse(format!("`{text}`: only assert and print are understood in code")))?;
        let mut cursor = Cursor::over_code(condition);
        let condition = expression(&mut cursor, 0).map_err(|error| refuse(error.message))?;
        if !cursor.is_at_end() && !cursor.sees(",") {
            return Err(refuse(cursor.error("an operator or the end of the line").message));
        }
        parsed.push(Statement::Assert(Assertion { line, text: text.to_owned(), condition }));
    }
    Ok(parsed)
}

/// Returns the names of `(name, name)`; `None` if there is other text.
fn names_in_parentheses(text: &str) -> Option<Vec<String>> {
    let inner = text.trim().strip_prefix('(')?.strip_suffix(')')?;
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    inner.split(',').map(str::trim).map(|name| is_name(name).then(|| name.to_owned())).collect()
}

fn expression(cursor: &mut Cursor<'_>, level: usize) -> Result<Expression, ScriptError> {
    if level == 2 {
        if cursor.eat_word("not") {
            return Ok(Expression::Not(Box::new(expression(cursor, level)?)));
        }
        return comparison(cursor);
    }
    binary(cursor, level)
}

fn binary(cursor: &mut Cursor<'_>, level: usize) -> Result<Expression, ScriptError> {
    let operators = LEVELS.get(level).copied().unwrap_or(PRODUCTS);
    let next = |cursor: &mut Cursor<'_>| match level {
        0 | 1 => expression(cursor, level + 1),
        2 | 3 => binary(cursor, level + 1),
        _ => unary(cursor),
    };
    let mut left = next(cursor)?;
    while let Some(operator) = eat_one(cursor, operators) {
        left = Expression::Binary(Box::new(left), operator, Box::new(next(cursor)?));
    }
    Ok(left)
}

fn comparison(cursor: &mut Cursor<'_>) -> Result<Expression, ScriptError> {
    let first = binary(cursor, 2)?;
    let mut rest = Vec::new();
    while let Some(operator) = eat_one(cursor, COMPARISONS) {
        rest.push((operator, binary(cursor, 2)?));
    }
    Ok(if rest.is_empty() { first } else { Expression::Chain(Box::new(first), rest) })
}

fn eat_one(cursor: &mut Cursor<'_>, operators: &[&'static str]) -> Option<&'static str> {
    operators.iter().copied().find(|operator| match operator.starts_with(char::is_alphabetic) {
        true => cursor.eat_word(operator),
        false => cursor.eat(operator),
    })
}

fn unary(cursor: &mut Cursor<'_>) -> Result<Expression, ScriptError> {
    if cursor.eat("-") {
        return Ok(Expression::Minus(Box::new(unary(cursor)?)));
    }
    if cursor.eat("(") {
        let inner = expression(cursor, 0)?;
        cursor.expect(")")?;
        return Ok(inner);
    }
    if let Some(name) = cursor.word() {
        return Ok(match name {
            "True" => Expression::Number(1),
            "False" => Expression::Number(0),
            name => Expression::Name(name.to_owned()),
        });
    }
    cursor.number().map(|number| Expression::Number(i128::from(number)))
}

impl Assertion {
    /// Returns the value of the condition and the values of its names, or the error in it.
    pub(crate) fn check(
        &self,
        name: &dyn Fn(&str) -> Option<i128>,
    ) -> Result<(bool, Vec<(String, i128)>), String> {
        let holds = self.condition.value(name)? != 0;
        let mut names = Vec::new();
        self.condition.names(&mut names);
        let values = names.into_iter().filter_map(|known| Some((known.to_owned(), name(known)?))).collect();
        Ok((holds, values))
    }
}

impl Expression {
    fn value(&self, name: &dyn Fn(&str) -> Option<i128>) -> Result<i128, String> {
        match self {
            Expression::Number(number) => Ok(*number),
            Expression::Name(unknown) => name(unknown).ok_or_else(|| format!("`{unknown}` is no known name")),
            Expression::Not(inner) => Ok(i128::from(inner.value(name)? == 0)),
            Expression::Minus(inner) => Ok(-inner.value(name)?),
            Expression::Binary(left, operator, right) => {
                apply(left.value(name)?, operator, right.value(name)?)
            }
            Expression::Chain(first, rest) => {
                let mut left = first.value(name)?;
                for (operator, right) in rest {
                    let right = right.value(name)?;
                    if !compare(left, operator, right) {
                        return Ok(0);
                    }
                    left = right;
                }
                Ok(1)
            }
        }
    }

    fn names<'a>(&'a self, found: &mut Vec<&'a str>) {
        match self {
            Expression::Number(_) => {}
            Expression::Name(name) if found.contains(&name.as_str()) => {}
            Expression::Name(name) => found.push(name),
            Expression::Not(inner) | Expression::Minus(inner) => inner.names(found),
            Expression::Binary(left, _, right) => {
                left.names(found);
                right.names(found);
            }
            Expression::Chain(first, rest) => {
                first.names(found);
                rest.iter().for_each(|(_, one)| one.names(found));
            }
        }
    }
}

fn apply(left: i128, operator: &str, right: i128) -> Result<i128, String> {
    let value = match operator {
        "or" => Some(if left != 0 { left } else { right }),
        "and" => Some(if left != 0 { right } else { left }),
        "|" => Some(left | right),
        "&" => Some(left & right),
        "+" => left.checked_add(right),
        "-" => left.checked_sub(right),
        "*" => left.checked_mul(right),
        "%" => left.checked_rem_euclid(right),
        _ => left.checked_div_euclid(right),
    };
    value.ok_or_else(|| format!("{left} {operator} {right} has no value"))
}

fn compare(left: i128, operator: &str, right: i128) -> bool {
    match operator {
        "==" => left == right,
        "!=" => left != right,
        "<=" => left <= right,
        ">=" => left >= right,
        "<" => left < right,
        _ => left > right,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(code: &str) -> Result<bool, String> {
        let assertions = parse(&Cursor::new("t", ""), 1, code).map_err(|error| error.message)?;
        let name = |name: &str| (name == "cwnd").then_some(10);
        let Statement::Assert(assertion) = &assertions[0] else { return Err("no assert".to_owned()) };
        assertion.check(&name).map(|(holds, _)| holds)
    }

    #[test]
    fn conditions_follow_the_precedence_of_python() {
        for code in [
            "assert cwnd == 10, cwnd",
            "assert 2 + 3 * 4 == 14 and not 1 > 2",
            "assert 8 < cwnd <= 10",
            "assert (cwnd & 3) == 2 or False",
            "assert -7 // 2 == -4",
            "assert cwnd % 4 == 2",
        ] {
            assert_eq!(check(code), Ok(true), "{code}");
        }
        assert_eq!(check("assert cwnd < 10"), Ok(false));
    }

    #[test]
    fn unknown_assertion_is_reported() {
        for (code, part) in [
            ("import os", "only assert"),
            ("assert foo == 1", "no known name"),
            ("assert 1 // 0", "has no value"),
            ("assert 1 = 1", "expected an operator"),
        ] {
            assert!(check(code).unwrap_err().contains(part), "{code}: {:?}", check(code));
        }
    }

    #[test]
    fn several_statements_and_prints_share_a_block() {
        let code = "\nassert 1 == 1; assert 2 == 2\nprint(cwnd, rtt)\nprint('text', cwnd)\n";
        let statements = parse(&Cursor::new("t", ""), 5, code).unwrap();
        let [Statement::Assert(first), Statement::Assert(second), Statement::Print(names)] = &statements[..]
        else {
            panic!("{statements:?}")
        };
        assert_eq!((first.line, second.line), (6, 6));
        assert_eq!(names, &["cwnd", "rtt"]);
    }
}
