//! Readiness of descriptors for `poll` and `epoll`.

use brisk_tcp::Stack;
use brisk_tcp::error::ReadError;

use crate::epoll::{ALWAYS, Flags};
use crate::errno::Answer;
use crate::host::Host;
use crate::socket::{Role, Socket};

pub(crate) mod epoll;

const IN: Flags = libc::POLLIN as Flags;
const PRI: Flags = libc::POLLPRI as Flags;
const OUT: Flags = libc::POLLOUT as Flags;
const ERR: Flags = libc::POLLERR as Flags;
const HUP: Flags = libc::POLLHUP as Flags;
const NVAL: Flags = libc::POLLNVAL as Flags;
const RDNORM: Flags = libc::POLLRDNORM as Flags;
const WRNORM: Flags = libc::POLLWRNORM as Flags;
const RDHUP: Flags = libc::POLLRDHUP as Flags;
/// Returns the events that are ready at a descriptor.
pub(crate) fn of(host: &mut Host, fd: i32) -> Flags {
    if let Ok((socket, stack, _)) = host.parts(fd) {
        return of_socket(socket, stack);
    }
    if host.epoll(fd).is_ok() {
        let ready = epoll::any(host, fd);
        return if ready { IN | RDNORM } else { 0 };
    }
    NVAL
}

/// Returns the events of a socket without a connection: both directions are closed.
fn of_fresh(socket: &Socket) -> Flags {
    let shut = if socket.read_shut { IN | RDNORM | RDHUP } else { 0 };
    let failed = if socket.error.is_some() { ERR } else { 0 };
    OUT | WRNORM | HUP | shut | failed
}

fn of_socket(socket: &Socket, stack: &mut Stack) -> Flags {
    let id = match &socket.role {
        Role::Fresh => return of_fresh(socket),
        Role::Listening(_) => return if socket.waiting > 0 { IN | RDNORM } else { 0 },
        Role::Connection(id) => *id,
    };
    let mut flags = 0;
    let mut set = |wanted: Flags, holds: bool| flags |= if holds { wanted } else { 0 };
    let failed = socket.error.is_some();
    set(ERR, failed || socket.errors.is_ready());
    let at_end = matches!(stack.peek(id, &mut [0]), Ok(0) | Err(ReadError::Closed(_)));
    // The peer's FIN is reported even while data before it is unread.
    let ended = at_end || socket.usage.peer_closed() || socket.read_shut || socket.over;
    set(HUP, socket.over || (ended && socket.write_shut));
    set(IN | RDNORM, stack.readable(id) > 0 || ended);
    set(RDHUP, ended);
    let open = socket.connected || socket.deferred;
    set(OUT | WRNORM, (open && (socket.write_shut || socket.is_writable(stack))) || socket.over);
    set(PRI, stack.conn_info(id).is_some_and(|info| info.urgent));
    flags
}

/// Makes one pass of poll(): fills in the ready events and returns the number of ready descriptors.
pub(crate) fn poll(
    host: &mut Host,
    entries: &mut [libc::pollfd],
    foreign: &mut dyn FnMut(&mut libc::pollfd),
) -> Answer<i32> {
    let mut ready = 0;
    for entry in entries {
        entry.revents = 0;
        if entry.fd < 0 {
            continue;
        }
        if entry.fd < crate::host::FIRST_FD {
            foreign(entry);
        } else {
            let wanted = entry.events as u16 as Flags | ALWAYS | NVAL;
            entry.revents = (of(host, entry.fd) & wanted) as i16;
        }
        ready += i32::from(entry.revents != 0);
    }
    Ok(ready)
}
