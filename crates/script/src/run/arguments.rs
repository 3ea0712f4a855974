//! The arguments of a system call in a script, by position and meaning.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use brisk_tcp::config::CongestionAlgorithm;

use super::sockets::{Answer, Misuse, Return};
use crate::ast::{Argument, Call, Expected};

/// The names of an argument, if it is one or more.
pub(super) fn names_of(argument: &Argument) -> Vec<&str> {
    match argument {
        Argument::Names(names) => names.iter().map(String::as_str).collect(),
        Argument::Usual
        | Argument::Number(_)
        | Argument::Text(_)
        | Argument::List(_)
        | Argument::Record(_)
        | Argument::Apply(..) => Vec::new(),
    }
}

/// The arguments of a call, by position and meaning.
pub(super) struct Arguments<'a> {
    pub(super) call: &'a Call,
}

impl<'a> Arguments<'a> {
    /// An argument.
    pub(super) fn at(&self, index: usize) -> Option<&'a Argument> {
        self.call.arguments.get(index)
    }

    /// A number, also as the only one of a list.
    pub(super) fn number(&self, index: usize) -> Result<i64, Misuse> {
        let first = match self.at(index) {
            Some(Argument::List(list)) => list.first(),
            other => other,
        };
        match first {
            Some(Argument::Number(number)) => Ok(*number),
            Some(Argument::Names(names))
                if names.first().is_some_and(|name| name.starts_with("IP_PMTUDISC")) =>
            {
                Ok(0)
            }
            _ => Err(format!("{}: argument {} must be a number", self.call.name, index + 1)),
        }
    }

    /// `NAME|NAME`.
    pub(super) fn names(&self, index: usize) -> Vec<&'a str> {
        self.at(index).map(names_of).unwrap_or_default()
    }

    /// The same inside of a list.
    pub(super) fn names_in_list(&self, index: usize) -> Vec<&'a str> {
        match self.at(index) {
            Some(Argument::List(list)) => list.iter().flat_map(names_of).collect(),
            _ => self.names(index),
        }
    }

    /// Flags of a send or receive call, wherever they stand.
    pub(super) fn flags(&self) -> Vec<&'a str> {
        self.call.arguments.iter().flat_map(names_of).filter(|name| name.starts_with("MSG_")).collect()
    }

    /// The length of a buffer: a number, or the sum of an iovec.
    pub(super) fn length(&self, index: usize) -> Result<usize, Misuse> {
        let vector = self.call.arguments.iter().find_map(iovec_length);
        let length = vector.map_or_else(|| self.number(index), Ok)?;
        usize::try_from(length).map_err(|_| format!("{}: {length} bytes cannot be", self.call.name))
    }

    /// The descriptor that the call should make.
    pub(super) fn new_descriptor<T>(&self, table: &BTreeMap<i64, T>) -> i64 {
        match self.call.result {
            Expected::Value(fd) if fd >= 0 => fd,
            Expected::Value(_) | Expected::Anything | Expected::Errno(_) => {
                table.keys().next_back().map_or(3, |last| last + 1)
            }
        }
    }

    /// A socket address: `...`, or a record with `sin_port` and `sin_addr`.
    pub(super) fn address(&self, index: usize, usual: SocketAddr) -> Result<SocketAddr, Misuse> {
        let fields = match self.at(index) {
            Some(Argument::Usual) | None => return Ok(usual),
            Some(Argument::Record(fields)) => fields,
            Some(_) => return Err(format!("{}: an address is `...` or a record", self.call.name)),
        };
        let mut addr = usual;
        for (name, value) in fields {
            let inner = match value {
                Argument::Apply(_, inner) => {
                    inner.iter().rev().find(|one| !matches!(one, Argument::Names(_)))
                }
                other => Some(other),
            };
            match (name.as_deref(), inner) {
                (Some("sin_port" | "sin6_port"), Some(Argument::Number(port))) => {
                    addr.set_port(u16::try_from(*port).map_err(|_| format!("port {port} cannot be"))?);
                }
                (Some("sin_addr" | "sin6_addr"), Some(Argument::Text(text))) => {
                    addr.set_ip(text.parse().map_err(|_| format!("{text} is no IP address"))?);
                }
                _ => {}
            }
        }
        Ok(addr)
    }

    /// A value that the call hands back through a pointer: `[n]`; nothing is checked with `...`.
    pub(super) fn check_value(&self, index: usize, actual: i64) -> Result<(), Misuse> {
        match self.number(index) {
            Ok(expected) if expected != actual => {
                Err(format!("{}: expected [{expected}], the stack says [{actual}]", self.call.name))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// `{onoff=1, linger=0}`.
    pub(super) fn lingers_for_nothing(&self, index: usize) -> bool {
        let Some(Argument::Record(fields)) = self.at(index) else { return false };
        let values: Vec<i64> = fields
            .iter()
            .filter_map(|(_, value)| if let Argument::Number(number) = value { Some(*number) } else { None })
            .collect();
        values == [1, 0]
    }

    pub(super) fn congestion(&self, index: usize) -> Result<CongestionAlgorithm, Misuse> {
        let name = match self.at(index) {
            Some(Argument::List(list)) => list.first(),
            other => other,
        };
        match name {
            Some(Argument::Text(text)) if text == "reno" => Ok(CongestionAlgorithm::Reno),
            Some(Argument::Text(text)) if text == "cubic" => Ok(CongestionAlgorithm::Cubic),
            _ => Err("TCP_CONGESTION: use \"cubic\" or \"reno\"".to_owned()),
        }
    }
}

/// Calls of which only a part depends on what the script runs against.
impl Arguments<'_> {
    /// fcntl() on a descriptor that is `nonblocking` or not.
    pub(super) fn fcntl(&self, nonblocking: &mut bool) -> Answer {
        match self.names(1).first().copied() {
            Some("F_GETFL") => Ok(Return::Value(if *nonblocking { 0x802 } else { 2 })),
            Some("F_SETFL") => {
                *nonblocking = self.names(2).contains(&"O_NONBLOCK");
                Ok(Return::Value(0))
            }
            _ => Err("fcntl: only F_GETFL and F_SETFL are supported".to_owned()),
        }
    }

    /// getsockopt(SO_ERROR) that finds `errno`.
    pub(super) fn pending_error(&self, errno: Option<&str>) -> Answer {
        match errno {
            None => self.check_value(3, 0).map(|()| Return::Value(0)),
            Some(errno) if self.names_in_list(3).contains(&errno) => Ok(Return::Value(0)),
            Some(errno) => Err(format!("SO_ERROR is {errno}")),
        }
    }

    /// poll(): `ready` answers which flags a descriptor shows of those that are wanted.
    pub(super) fn poll(
        &self,
        mut ready: impl FnMut(i64, &[&str]) -> Result<Vec<&'static str>, Misuse>,
    ) -> Answer {
        let Some(Argument::List(entries)) = self.call.arguments.first() else {
            return Err("poll takes a list of {fd=…, events=…, revents=…}".to_owned());
        };
        let mut count = 0;
        let mut wrong = None;
        for entry in entries {
            let Argument::Record(fields) = entry else {
                return Err("poll: an entry is no record".to_owned());
            };
            let field = |name: &str| {
                fields.iter().find(|(known, _)| known.as_deref() == Some(name)).map(|(_, value)| value)
            };
            let Some(Argument::Number(fd)) = field("fd") else {
                return Err("poll: an entry needs fd=N".to_owned());
            };
            let wanted = field("events").map(names_of).unwrap_or_default();
            let expected = field("revents").map(names_of).unwrap_or_default();
            let found = ready(*fd, &wanted)?;
            count += i64::from(!found.is_empty());
            if found.len() != expected.len() || !found.iter().all(|one| expected.contains(one)) {
                wrong = Some(format!("poll: revents of {fd} are {}", found.join("|")));
            }
        }
        if count == 0 && self.number(2).unwrap_or(0) != 0 {
            return Ok(Return::Blocks);
        }
        wrong.map_or(Ok(Return::Value(count)), Err)
    }
}

/// The bytes of `[{..., 1000}, {..., 20}]`, also inside of a message header.
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
        Argument::Record(fields) => fields.iter().find_map(|(name, value)| {
            (name.as_deref() == Some("msg_iov")).then(|| iovec_length(value)).flatten()
        }),
        _ => None,
    }
}
