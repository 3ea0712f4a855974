//! The arguments of a system call in a script, by their position and meaning.

use std::net::SocketAddr;

use super::names;
use crate::ast::{Argument, Call};

const MAX_BYTES: usize = 1 << 28;

/// The reason why a call cannot be made, or its unexpected result.
pub(super) type Misuse = String;

pub(super) fn field<'a>(fields: &'a [(Option<String>, Argument)], name: &str) -> Option<&'a Argument> {
    fields.iter().find(|(known, _)| known.as_deref() == Some(name)).map(|(_, value)| value)
}

/// Returns the value of an argument; `None` for `...`.
pub(super) fn value_of(argument: &Argument) -> Result<Option<i64>, Misuse> {
    match argument {
        Argument::Usual => Ok(None),
        Argument::Number(number) => Ok(Some(*number)),
        Argument::Names(all) => {
            let mut sum = 0;
            for name in all {
                // `|` joins flags; one of them may be a number.
                let known = names::number(name).or_else(|| name.parse().ok());
                sum |= known.ok_or_else(|| format!("{name} is not a known name"))?;
            }
            Ok(Some(sum))
        }
        Argument::List(list) if list.len() == 1 => list.first().map_or(Ok(None), value_of),
        Argument::Apply(name, inner) if matches!(name.as_str(), "htons" | "htonl") => {
            inner.first().map_or(Ok(None), value_of)
        }
        Argument::Text(_) | Argument::List(_) | Argument::Record(_) | Argument::Apply(..) => {
            Err("expected a number or a name".to_owned())
        }
    }
}

/// The arguments of a call, by position and meaning.
#[derive(Clone, Copy)]
pub(super) struct Arguments<'a> {
    pub(super) call: &'a Call,
}

impl<'a> Arguments<'a> {
    pub(super) fn at(self, index: usize) -> Option<&'a Argument> {
        self.call.arguments.get(index)
    }

    /// Returns the value of an argument; `None` for `...` and for a missing argument.
    pub(super) fn value(self, index: usize) -> Result<Option<i64>, Misuse> {
        let found = self.at(index).map_or(Ok(None), value_of);
        found.map_err(|error| format!("{}: argument {}: {error}", self.call.name, index + 1))
    }

    /// Returns the value of an argument; 0 for `...` and for a missing argument.
    pub(super) fn int(self, index: usize) -> Result<i32, Misuse> {
        self.value(index).map(|value| value.unwrap_or(0) as i32)
    }

    /// Returns the value of an argument, which must be given.
    pub(super) fn number(self, index: usize) -> Result<i64, Misuse> {
        self.value(index)?
            .ok_or_else(|| format!("{}: argument {} must be a number", self.call.name, index + 1))
    }

    /// Returns the message header of sendmsg() and recvmsg().
    pub(super) fn message(self) -> &'a [(Option<String>, Argument)] {
        match self.at(1) {
            Some(Argument::Record(fields)) if self.call.name.ends_with("msg") => fields,
            _ => &[],
        }
    }

    /// Returns the flags of a send or receive call; their position depends on the call.
    pub(super) fn message_flags(self) -> Result<i32, Misuse> {
        match self.call.name.as_str() {
            "send" | "sendto" | "recv" | "recvfrom" => self.int(3),
            "sendmsg" | "recvmsg" => self.int(2),
            _ => Ok(0),
        }
    }

    /// Returns the length of a buffer: a number, or the sum of an iovec.
    pub(super) fn length(self) -> Result<usize, Misuse> {
        let vector = self.call.arguments.iter().find_map(iovec_length);
        let length = vector.map_or_else(|| self.number(2), Ok)?;
        let length = usize::try_from(length).ok().filter(|length| *length <= MAX_BYTES).ok_or(length);
        length.map_err(|length| {
            format!(
                "{}: {length} bytes are too many; a call of a script moves {MAX_BYTES} at most",
                self.call.name
            )
        })
    }

    /// Returns a socket address: `usual` for `...`, or a record with `sin_port` and `sin_addr`.
    pub(super) fn address(self, index: usize, usual: SocketAddr) -> Result<SocketAddr, Misuse> {
        address_of(self.at(index), usual).map_err(|error| format!("{}: {error}", self.call.name))
    }

    /// True for an address without a family: `{sa_family = AF_UNSPEC}`.
    pub(super) fn is_unspecified(self, index: usize) -> bool {
        let Some(Argument::Record(fields)) = self.at(index) else { return false };
        field(fields, "sa_family") == Some(&Argument::Names(vec!["AF_UNSPEC".to_owned()]))
    }
}

/// Returns a socket address; `usual` for `...`, and for missing fields of a record.
pub(super) fn address_of(argument: Option<&Argument>, usual: SocketAddr) -> Result<SocketAddr, Misuse> {
    let fields = match argument {
        Some(Argument::Usual) | None => return Ok(usual),
        Some(Argument::Record(fields)) => fields,
        Some(_) => return Err("an address is `...` or a record".to_owned()),
    };
    let mut addr = usual;
    for (name, value) in fields {
        let inner = match value {
            Argument::Apply(_, inner) => inner.iter().rev().find(|one| !matches!(one, Argument::Names(_))),
            other => Some(other),
        };
        match (name.as_deref(), inner) {
            (Some("sin_port" | "sin6_port"), Some(Argument::Number(port))) => {
                addr.set_port(u16::try_from(*port).map_err(|_| format!("port {port} cannot be"))?);
            }
            (Some("sin_addr" | "sin6_addr"), Some(Argument::Text(text))) => {
                addr.set_ip(text.parse().map_err(|_| format!("{text} is not an IP address"))?);
            }
            _ => {}
        }
    }
    Ok(addr)
}

/// Returns the sum of the lengths in `[{..., 1000}, {..., 20}]`, also inside a message header.
fn iovec_length(argument: &Argument) -> Option<i64> {
    match argument {
        Argument::List(entries) if !entries.is_empty() => {
            let lengths = entries.iter().map(|entry| match entry {
                Argument::Record(fields) => fields.iter().find_map(|(name, value)| match (name, value) {
                    (None, Argument::Number(len)) => Some(*len),
                    _ => None,
                }),
                _ => None,
            });
            lengths.sum()
        }
        Argument::Record(fields) => field(fields, "msg_iov").and_then(iovec_length),
        _ => None,
    }
}
