//! `poll` and `epoll`.

use brisk_sockets::EpollControl;

use super::Calls;
use crate::ast::Argument;
use crate::run::arguments::{Arguments, Misuse, field, value_of};
use crate::run::request::Request;

type Fields = [(Option<String>, Argument)];

/// Returns the entries of a poll list, or the events of epoll_wait(): one record or several.
fn records<'a>(arguments: Arguments<'a>, index: usize) -> Result<Vec<&'a Fields>, Misuse> {
    let list = match arguments.at(index) {
        Some(Argument::List(list)) => list.as_slice(),
        Some(one @ Argument::Record(_)) => std::slice::from_ref(one),
        None | Some(_) => &[],
    };
    let record = |one: &'a Argument| match one {
        Argument::Record(fields) => Ok(fields.as_slice()),
        _ => Err(format!("{}: an entry is not a record", arguments.call.name)),
    };
    list.iter().map(record).collect()
}

/// Returns the value of a field; `None` if it is missing or `...`.
fn number(fields: &Fields, name: &str) -> Result<Option<i64>, Misuse> {
    field(fields, name).map_or(Ok(None), value_of)
}

/// Returns the program's data of an event: `fd`, `ptr`, `u32` or `u64`.
fn data(fields: &Fields) -> Result<Option<u64>, Misuse> {
    for name in ["fd", "ptr", "u32", "u64"] {
        if let Some(number) = number(fields, name)? {
            return Ok(Some(number as u64));
        }
    }
    Ok(None)
}

impl Calls {
    /// Returns the request of a call that watches descriptors; `None` for other calls.
    pub(super) fn watch_request(&self, arguments: Arguments<'_>) -> Result<Option<Request>, Misuse> {
        Ok(Some(match arguments.call.name.as_str() {
            "poll" => {
                let entries = records(arguments, 0)?.into_iter().map(|fields| {
                    let named = number(fields, "fd")?.ok_or("poll: an entry needs fd=N")?;
                    // poll() reports descriptors that are not open, and ignores negative ones.
                    let fd = self
                        .table
                        .get(&named)
                        .map_or(named.min(i64::from(i32::MAX)) as i32, |known| known.fd);
                    Ok((fd, number(fields, "events")?.unwrap_or(0) as i16))
                });
                Request::Poll { entries: entries.collect::<Result<_, Misuse>>()?, timeout: arguments.int(2)? }
            }
            "epoll_create" => Request::EpollCreate { size: arguments.int(0)? },
            "epoll_ctl" => {
                let fields = match arguments.at(3) {
                    Some(Argument::Record(fields)) => fields.as_slice(),
                    _ => &[],
                };
                let events = number(fields, "events")?.unwrap_or(0) as u32;
                let data = data(fields)?.unwrap_or(0);
                let control = match arguments.int(1)? {
                    libc::EPOLL_CTL_ADD => EpollControl::Add { events, data },
                    libc::EPOLL_CTL_MOD => EpollControl::Change { events, data },
                    libc::EPOLL_CTL_DEL => EpollControl::Remove,
                    other => return Err(format!("epoll_ctl: {other} is not an operation")),
                };
                Request::EpollControl { epfd: self.fd(arguments, 0)?, fd: self.fd(arguments, 2)?, control }
            }
            "epoll_wait" => Request::EpollWait {
                epfd: self.fd(arguments, 0)?,
                max: arguments.int(2)?,
                timeout: arguments.int(3)?,
            },
            _ => return Ok(None),
        }))
    }
}

pub(super) fn check_poll(arguments: Arguments<'_>, ready: &[i16]) -> Result<(), Misuse> {
    for (fields, found) in records(arguments, 0)?.into_iter().zip(ready) {
        let Some(expected) = number(fields, "revents")? else { continue };
        if expected as i16 != *found {
            let fd = number(fields, "fd")?.unwrap_or(-1);
            return Err(format!("poll: revents of {fd}: expected {expected:#x}, it is {found:#x}"));
        }
    }
    Ok(())
}

pub(super) fn check_epoll(arguments: Arguments<'_>, reported: &[(u32, u64)]) -> Result<(), Misuse> {
    for (fields, (events, found)) in records(arguments, 1)?.into_iter().zip(reported) {
        if let Some(expected) = number(fields, "events")?.filter(|expected| *expected as u32 != *events) {
            return Err(format!("epoll_wait: events: expected {:#x}, it is {events:#x}", expected as u32));
        }
        if let Some(expected) = data(fields)?.filter(|expected| expected != found) {
            return Err(format!("epoll_wait: data: expected {expected}, it is {found}"));
        }
    }
    Ok(())
}
