//! The system calls of a script: makes them, and compares their results with the expected ones.
//!
//! The script numbers its descriptors: after `socket(…) = 3` the descriptor is 3, regardless of the number
//! that the system returned.

mod message;
mod options;
mod watch;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use brisk_sockets::Answer;

use super::arguments::{Arguments, Misuse};
use super::flow::Flows;
use super::request::{Caller, Reply, Request, Slot, System};
use super::stream;
use crate::ast::{Call, Expected};
use crate::settings::Settings;

/// `tcpi_state` of a socket without a connection.
const TCP_CLOSE: u8 = 7;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Return {
    /// A value.
    Value(i64),
    /// -1 and this error number.
    Errno(i32),
}

/// The script's state that calls use.
pub(super) struct Scene<'a> {
    /// The connections of the script's packets.
    pub(super) flows: &'a mut Flows,
    pub(super) settings: &'a Settings,
    /// Microseconds since 1970 at the start of the script.
    pub(super) start_of_day: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known {
    /// The system's descriptor.
    fd: i32,
    /// Stream offsets of the next byte to write and to read.
    written: u64,
    read: u64,
}

/// See the [module](self).
pub(super) struct Calls {
    table: BTreeMap<i64, Known>,
    /// The socket to which assertions apply: the last one that was accepted or connected.
    watched: Option<i32>,
    caller: Caller,
}

impl Calls {
    pub(super) fn new(system: Arc<dyn System>) -> Calls {
        Calls { table: BTreeMap::new(), watched: None, caller: Caller::new(system) }
    }

    /// Returns the system's descriptor of the socket to which assertions apply.
    pub(super) fn watched(&self) -> Option<i32> {
        self.watched
    }

    /// Returns the slot for the result of the current call.
    pub(super) fn slot(&self) -> &Arc<Slot> {
        self.caller.slot()
    }

    pub(super) fn begin(&mut self, call: &Call, scene: &mut Scene<'_>) -> Result<(), Misuse> {
        let arguments = Arguments { call };
        let request = self.request(arguments, scene)?;
        self.caller.begin(request);
        Ok(())
    }

    /// Returns the result of the current call, once it has returned.
    pub(super) fn finish(&mut self, call: &Call, scene: &mut Scene<'_>) -> Result<Option<Return>, Misuse> {
        let Some(answer) = self.caller.take() else { return Ok(None) };
        self.take(Arguments { call }, answer, scene).map(Some)
    }

    fn request(&mut self, arguments: Arguments<'_>, scene: &mut Scene<'_>) -> Result<Request, Misuse> {
        let settings = scene.settings;
        let name = arguments.call.name.as_str();
        if let Some(request) = self.watch_request(arguments)? {
            return Ok(request);
        }
        let fd = if name == "socket" { -1 } else { self.fd(arguments, 0)? };
        Ok(match name {
            "socket" => {
                let v6 = settings.local_ip.is_ipv6() || settings.mapped;
                let usual = if v6 { libc::AF_INET6 } else { libc::AF_INET };
                let domain = arguments.value(0)?.map_or(usual, |domain| domain as i32);
                Request::Socket { domain, kind: arguments.int(1)?, protocol: arguments.int(2)? }
            }
            "bind" => {
                let usual = SocketAddr::new(settings.local_ip, settings.bind_port);
                Request::Bind { fd, addr: settings.as_written(arguments.address(1, usual)?) }
            }
            "listen" => Request::Listen { fd, backlog: arguments.number(1)? as i32 },
            "accept" | "accept4" => Request::Accept { fd, flags: arguments.int(3)? },
            "connect" if arguments.is_unspecified(1) => Request::Connect { fd, addr: None },
            "connect" => {
                let usual = SocketAddr::new(settings.remote_ip, settings.connect_port);
                let remote = arguments.address(1, usual)?;
                self.begin_connection(arguments, remote, scene.flows)?;
                Request::Connect { fd, addr: Some(settings.as_written(remote)) }
            }
            "read" | "recv" | "recvfrom" | "readv" | "recvmsg" => {
                Request::Receive { fd, len: arguments.length()?, flags: arguments.message_flags()? }
            }
            "write" | "send" | "sendto" | "writev" | "sendmsg" => self.send_request(arguments, scene)?,
            "shutdown" => Request::Shutdown { fd, how: arguments.int(1)? },
            "close" => Request::Close { fd },
            "setsockopt" => options::set_request(arguments, fd)?,
            "getsockopt" => options::get_request(arguments, fd)?,
            "fcntl" => Request::Fcntl { fd, command: arguments.int(1)?, argument: arguments.int(2)? },
            "ioctl" => Request::Ioctl { fd, request: arguments.int(1)? as u64 },
            name => return Err(format!("the system call {name} is not supported")),
        })
    }

    /// Returns the system's descriptor of the argument at `index`; -1 if it is not open.
    fn fd(&self, arguments: Arguments<'_>, index: usize) -> Result<i32, Misuse> {
        let named = arguments.number(index)?;
        Ok(self.table.get(&named).map_or(-1, |known| known.fd))
    }

    fn known(&mut self, arguments: Arguments<'_>) -> Option<&mut Known> {
        self.table.get_mut(&arguments.number(0).ok()?)
    }

    fn send_request(&mut self, arguments: Arguments<'_>, scene: &mut Scene<'_>) -> Result<Request, Misuse> {
        let (fd, flags) = (self.fd(arguments, 0)?, arguments.message_flags()?);
        let usual = SocketAddr::new(scene.settings.remote_ip, scene.settings.connect_port);
        let to = match arguments.call.name.as_str() {
            _ if flags & libc::MSG_FASTOPEN == 0 => None,
            "sendto" => Some(arguments.address(4, usual)?),
            "sendmsg" => Some(message::address(arguments, usual)?),
            _ => None,
        };
        if let Some(remote) = to {
            self.begin_connection(arguments, remote, scene.flows)?;
        }
        let to = to.map(|to| scene.settings.as_written(to));
        let written = self.known(arguments).map_or(0, |known| known.written);
        let data = stream::bytes(written, arguments.length()?);
        Ok(Request::Send { fd, data, flags, to, control: message::control(arguments)? })
    }

    /// Records a new connection if the call connects a socket that has none.
    fn begin_connection(
        &mut self,
        arguments: Arguments<'_>,
        remote: SocketAddr,
        flows: &mut Flows,
    ) -> Result<(), Misuse> {
        let fd = self.fd(arguments, 0)?;
        let capacity = 1;
        let state = Request::GetOption { fd, level: libc::SOL_TCP, name: libc::TCP_INFO, capacity };
        if self.caller.call_at_once(state).is_ok_and(|info| info.bytes.first() != Some(&TCP_CLOSE)) {
            return Ok(());
        }
        let local = self.own_address(fd);
        flows.on_connect(local.filter(|addr| addr.port() != 0 && !addr.ip().is_unspecified()), remote);
        if let Some(known) = self.known(arguments) {
            (known.written, known.read) = (0, 0);
        }
        self.watched = Some(fd);
        Ok(())
    }

    /// Returns the address of a socket, as packets contain it.
    fn own_address(&self, fd: i32) -> Option<SocketAddr> {
        let addr = self.caller.call_at_once(Request::Name { fd }).ok()?.addr?;
        Some(SocketAddr::new(addr.ip().to_canonical(), addr.port()))
    }

    /// Processes the result of a call: checks its data, and records the changes.
    fn take(
        &mut self,
        arguments: Arguments<'_>,
        answer: Answer<Reply>,
        scene: &mut Scene<'_>,
    ) -> Result<Return, Misuse> {
        let reply = match answer {
            Ok(reply) => reply,
            Err(errno) => return Ok(Return::Errno(errno.0)),
        };
        match arguments.call.name.as_str() {
            "socket" | "accept" | "accept4" | "epoll_create" => {
                let fd = reply.value as i32;
                if arguments.call.name.starts_with("accept") {
                    self.watched = Some(fd);
                }
                return Ok(Return::Value(self.add(arguments, fd)));
            }
            "listen" => {
                let fd = self.fd(arguments, 0)?;
                self.own_address(fd).into_iter().for_each(|addr| scene.flows.on_listen(addr));
            }
            "read" | "recv" | "recvfrom" | "readv" | "recvmsg" => {
                self.take_bytes(arguments, &reply, scene)?
            }
            "write" | "send" | "sendto" | "writev" | "sendmsg" => {
                if let Some(known) = self.known(arguments) {
                    known.written += reply.value as u64;
                }
            }
            "close" => {
                self.table.remove(&arguments.number(0)?);
            }
            "getsockopt" => options::check(arguments, &reply.bytes)?,
            "ioctl" => {
                options::check_value(arguments, 2, reply.value)?;
                return Ok(Return::Value(0));
            }
            "poll" => watch::check_poll(arguments, &reply.ready)?,
            "epoll_wait" => watch::check_epoll(arguments, &reply.events)?,
            _ => {}
        }
        Ok(Return::Value(reply.value))
    }

    /// Adds a new descriptor under the script's number.
    fn add(&mut self, arguments: Arguments<'_>, fd: i32) -> i64 {
        let name = match arguments.call.result {
            Expected::Value(name) if name >= 0 => name,
            Expected::Value(_) | Expected::Anything | Expected::Errno(_) => {
                self.table.keys().next_back().map_or(3, |last| last + 1)
            }
        };
        self.table.insert(name, Known { fd, written: 0, read: 0 });
        name
    }

    /// Checks that the bytes are those of the stream, and that a message is the expected one.
    fn take_bytes(
        &mut self,
        arguments: Arguments<'_>,
        reply: &Reply,
        scene: &Scene<'_>,
    ) -> Result<(), Misuse> {
        let flags = arguments.message_flags()?;
        if arguments.call.name == "recvmsg" {
            message::check(arguments, reply, scene)?;
        }
        let Some(known) = self.known(arguments) else { return Ok(()) };
        if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
            return Ok(());
        }
        let count = usize::try_from(reply.value).unwrap_or(0);
        // An urgent byte before these bytes may have been removed from the stream.
        let start = [known.read, known.read + 1]
            .into_iter()
            .find(|start| flags & libc::MSG_TRUNC != 0 || reply.bytes == stream::bytes(*start, count))
            .ok_or("the delivered bytes are not those of the stream")?;
        if flags & libc::MSG_PEEK == 0 {
            known.read = start + count as u64;
        }
        Ok(())
    }
}
