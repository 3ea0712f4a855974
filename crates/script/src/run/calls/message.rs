//! The message headers of `sendmsg` and `recvmsg`: addresses, flags and control messages.

use std::net::SocketAddr;

use brisk_sockets::Control;

use super::Scene;
use crate::ast::Argument;
use crate::run::arguments::{Arguments, Misuse, address_of, field, value_of};
use crate::run::request::Reply;

type Fields = [(Option<String>, Argument)];

/// Returns the destination in `msg_name`.
pub(super) fn address(arguments: Arguments<'_>, usual: SocketAddr) -> Result<SocketAddr, Misuse> {
    let named = field(arguments.message(), "msg_name");
    address_of(named, usual).map_err(|error| format!("{}: {error}", arguments.call.name))
}

fn entries<'a>(arguments: Arguments<'a>) -> Result<Option<Vec<&'a Fields>>, Misuse> {
    let list = match field(arguments.message(), "msg_control") {
        None | Some(Argument::Usual) => return Ok(None),
        Some(Argument::List(list)) => list,
        Some(_) => return Err(format!("{}: msg_control is a list", arguments.call.name)),
    };
    let record = |one: &'a Argument| match one {
        Argument::Record(fields) => Ok(fields.as_slice()),
        _ => Err(format!("{}: a control message is a record", arguments.call.name)),
    };
    list.iter().map(record).collect::<Result<_, _>>().map(Some)
}

fn number(fields: &Fields, name: &str) -> Result<Option<i64>, Misuse> {
    field(fields, name).map_or(Ok(None), value_of)
}

/// Returns the control messages of a write; each contains one number.
pub(super) fn control(arguments: Arguments<'_>) -> Result<Vec<Control>, Misuse> {
    let message = |fields: &Fields| {
        let number = |name: &str| number(fields, name).map(|value| value.unwrap_or(0) as i32);
        let data = number("cmsg_data")?.to_ne_bytes().to_vec();
        Ok(Control { level: number("cmsg_level")?, kind: number("cmsg_type")?, data })
    };
    entries(arguments)?.unwrap_or_default().into_iter().map(message).collect()
}

/// Checks the control messages that recvmsg() returned.
pub(super) fn check(arguments: Arguments<'_>, reply: &Reply, scene: &Scene<'_>) -> Result<(), Misuse> {
    if let Some(expected) =
        number(arguments.message(), "msg_flags")?.filter(|flags| *flags as i32 != reply.flags)
    {
        return Err(format!("recvmsg: msg_flags: expected {expected:#x}, it is {:#x}", reply.flags));
    }
    let Some(expected) = entries(arguments)? else { return Ok(()) };
    if expected.len() != reply.control.len() {
        let kinds: Vec<String> =
            reply.control.iter().map(|one| format!("level {} type {}", one.level, one.kind)).collect();
        let (wanted, found) = (expected.len(), reply.control.len());
        return Err(format!(
            "recvmsg: expected {wanted} control messages, there are {found}: {}",
            kinds.join(", ")
        ));
    }
    for (fields, found) in expected.into_iter().zip(&reply.control) {
        check_one(fields, found, scene)?;
    }
    Ok(())
}

fn check_one(fields: &Fields, found: &Control, scene: &Scene<'_>) -> Result<(), Misuse> {
    let v6 = scene.settings.local_ip.is_ipv6();
    // The script's two names stand for the options of the IP version in use.
    let (level, kind) = match (v6, found.level, found.kind) {
        (true, libc::SOL_IPV6, libc::IPV6_RECVERR) => (libc::SOL_IP, libc::IP_RECVERR),
        (_, level, kind) => (level, kind),
    };
    let named = |name: &str, found: i32| match number(fields, name)? {
        Some(expected) if expected as i32 != found => {
            Err(format!("recvmsg: {name}: expected {expected}, it is {found}"))
        }
        Some(_) | None => Ok(()),
    };
    named("cmsg_level", level)?;
    named("cmsg_type", kind)?;
    match field(fields, "cmsg_data") {
        None | Some(Argument::Usual) => Ok(()),
        Some(Argument::Record(data)) if (level, kind) == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING) => {
            check_stamp(data, &found.data, scene)
        }
        Some(Argument::Record(data)) => check_error(data, &found.data),
        Some(value) => {
            let found = found.data.first_chunk().map_or(0, |four| i64::from(i32::from_ne_bytes(*four)));
            match value_of(value)? {
                Some(expected) if expected != found => {
                    Err(format!("recvmsg: cmsg_data: expected {expected}, it is {found}"))
                }
                Some(_) | None => Ok(()),
            }
        }
    }
}

/// Checks `{scm_sec=0, scm_nsec=10000000}`, a time of the script.
fn check_stamp(expected: &Fields, found: &[u8], scene: &Scene<'_>) -> Result<(), Misuse> {
    let eight = |at: usize| {
        let bytes = found.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| i64::from_ne_bytes(*bytes))
    };
    let micros = |secs: i64, nanos: i64| secs.saturating_mul(1_000_000).saturating_add(nanos / 1000);
    let expected =
        micros(number(expected, "scm_sec")?.unwrap_or(0), number(expected, "scm_nsec")?.unwrap_or(0));
    let found = micros(eight(0), eight(8)).saturating_sub(scene.start_of_day as i64);
    if expected.abs_diff(found) > scene.settings.tolerance.unsigned_abs() {
        return Err(format!("recvmsg: expected the time stamp {expected} us, it is {found} us"));
    }
    Ok(())
}

/// Checks `{ee_errno=ENOMSG, ee_origin=…, ee_type=0, ee_code=0, ee_info=…, ee_data=0}`.
fn check_error(expected: &Fields, found: &[u8]) -> Result<(), Misuse> {
    let four = |at: usize| {
        let bytes = found.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| i64::from(u32::from_ne_bytes(*bytes)))
    };
    let one = |at: usize| found.get(at).map_or(0, |byte| i64::from(*byte));
    let fields = [
        ("ee_errno", four(0)),
        ("ee_origin", one(4)),
        ("ee_type", one(5)),
        ("ee_code", one(6)),
        ("ee_info", four(8)),
        ("ee_data", four(12)),
    ];
    for (name, found) in fields {
        if let Some(expected) = number(expected, name)?.filter(|expected| *expected != found) {
            return Err(format!("recvmsg: {name}: expected {expected}, it is {found}"));
        }
    }
    Ok(())
}
