//! The system calls of a script, made in earnest.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::AsFd;

use brisk_packet_io::sockopt;
use brisk_tcp::config::CongestionAlgorithm;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, recv};
use socket2::{Domain, SockAddr, Socket, Type};

use super::options::{errno_name, message_flags, socket_option};
use crate::ast::{Argument, Call};
use crate::run::arguments::Arguments;
use crate::run::backend::Scene;
use crate::run::flow::Flows;
use crate::run::sockets::{Answer, Misuse, Progress, Return};
use crate::run::stream;
use crate::settings::Settings;

/// Requests of linux/sockios.h and asm/sockios.h that the C library's headers lack.
const SIOCOUTQNSD: u64 = 0x894B;
const SIOCATMARK: u64 = 0x8905;

/// A socket of the kernel, which never blocks, and what the script thinks of it.
struct Known {
    socket: Socket,
    nonblocking: bool,
    written: u64,
    read: u64,
}

/// The descriptors of a script.
#[derive(Default)]
pub(super) struct KernelSockets {
    table: BTreeMap<i64, Known>,
    watched: Option<i64>,
}

/// An error of the kernel as an answer; one that says "not yet" makes a blocking call wait.
fn failed(error: &io::Error, blocks: bool) -> Answer {
    match error.kind() {
        ErrorKind::WouldBlock if blocks => Ok(Return::Blocks),
        _ => Ok(Return::Errno(errno_name(error))),
    }
}

impl KernelSockets {
    /// The socket that assertions are about: the last one accepted or connected.
    pub(super) fn watched(&self) -> Option<&Socket> {
        Some(&self.table.get(&self.watched?)?.socket)
    }

    pub(super) fn call(&mut self, call: &Call, progress: &mut Progress, scene: &mut Scene<'_>) -> Answer {
        let arguments = Arguments { call };
        let Scene { flows, settings } = scene;
        match call.name.as_str() {
            "socket" => self.socket(&arguments, settings),
            "bind" => {
                let usual = SocketAddr::new(settings.local_ip, settings.bind_port);
                let addr = SockAddr::from(arguments.address(1, usual)?);
                self.plain(&arguments, |known| known.socket.bind(&addr))
            }
            "listen" => self.listen(&arguments, flows),
            "accept" | "accept4" => self.accept(&arguments),
            "connect" => self.connect(&arguments, progress, flows, settings),
            "read" | "recv" | "recvfrom" | "readv" | "recvmsg" => self.read(&arguments),
            "write" | "send" | "sendto" | "writev" | "sendmsg" => {
                self.write(&arguments, progress, flows, settings)
            }
            "shutdown" => {
                let how = match arguments.names(1).first().copied() {
                    Some("SHUT_RD") => std::net::Shutdown::Read,
                    Some("SHUT_WR") => std::net::Shutdown::Write,
                    _ => std::net::Shutdown::Both,
                };
                self.plain(&arguments, |known| known.socket.shutdown(how))
            }
            "close" => {
                self.get(&arguments)?;
                self.table.remove(&arguments.number(0)?);
                Ok(Return::Value(0))
            }
            "setsockopt" => self.set_option(&arguments),
            "getsockopt" => self.option(&arguments),
            "fcntl" => arguments.fcntl(&mut self.get(&arguments)?.nonblocking),
            "ioctl" => self.ioctl(&arguments),
            "poll" => arguments.poll(|fd, wanted| {
                let known = self.table.get(&fd).ok_or_else(|| format!("{fd} is no open descriptor here"))?;
                known.ready(wanted)
            }),
            name => Err(format!("the system call {name} is not supported")),
        }
    }

    fn get(&mut self, arguments: &Arguments<'_>) -> Result<&mut Known, Misuse> {
        let fd = arguments.number(0)?;
        self.table.get_mut(&fd).ok_or_else(|| format!("{fd} is no open descriptor here"))
    }

    fn plain(&mut self, arguments: &Arguments<'_>, call: impl FnOnce(&Known) -> io::Result<()>) -> Answer {
        match call(self.get(arguments)?) {
            Ok(()) => Ok(Return::Value(0)),
            Err(error) => failed(&error, false),
        }
    }

    fn add(&mut self, fd: i64, socket: Socket, nonblocking: bool) -> Answer {
        socket.set_nonblocking(true).map_err(|error| format!("O_NONBLOCK: {error}"))?;
        self.table.insert(fd, Known { socket, nonblocking, written: 0, read: 0 });
        Ok(Return::Value(fd))
    }

    fn socket(&mut self, arguments: &Arguments<'_>, settings: &Settings) -> Answer {
        let domain = if settings.local_ip.is_ipv6() { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::STREAM, None).map_err(|error| format!("socket: {error}"))?;
        let control = match settings.tcp.congestion {
            CongestionAlgorithm::Reno => "reno",
            CongestionAlgorithm::Cubic | CongestionAlgorithm::Fixed(_) => "cubic",
        };
        sockopt::set(socket.as_fd(), libc::SOL_TCP, libc::TCP_CONGESTION, control.as_bytes())
            .map_err(|error| format!("the kernel's congestion control cannot be {control}: {error}"))?;
        let fd = arguments.new_descriptor(&self.table);
        self.add(fd, socket, arguments.names(1).contains(&"SOCK_NONBLOCK"))
    }

    fn listen(&mut self, arguments: &Arguments<'_>, flows: &mut Flows) -> Answer {
        let backlog = arguments.number(1)? as i32;
        let known = self.get(arguments)?;
        if let Err(error) = known.socket.listen(backlog) {
            return failed(&error, false);
        }
        if let Some(addr) = known.socket.local_addr().ok().and_then(|addr| addr.as_socket()) {
            flows.on_listen(addr);
        }
        Ok(Return::Value(0))
    }

    fn accept(&mut self, arguments: &Arguments<'_>) -> Answer {
        let fd = arguments.new_descriptor(&self.table);
        let known = self.get(arguments)?;
        match known.socket.accept() {
            Ok((socket, _)) => {
                self.watched = Some(fd);
                self.add(fd, socket, arguments.names(3).contains(&"SOCK_NONBLOCK"))
            }
            Err(error) => failed(&error, !known.nonblocking),
        }
    }

    fn connect(
        &mut self,
        arguments: &Arguments<'_>,
        progress: &Progress,
        flows: &mut Flows,
        settings: &Settings,
    ) -> Answer {
        let remote = arguments.address(1, SocketAddr::new(settings.remote_ip, settings.connect_port))?;
        let fd = arguments.number(0)?;
        let known = self.get(arguments)?;
        if !progress.begun && known.socket.peer_addr().is_err() && !known.is_connecting() {
            let local = known.socket.local_addr().ok().and_then(|addr| addr.as_socket());
            flows.on_connect(local.filter(|local| local.port() != 0 && !local.ip().is_unspecified()), remote);
        }
        let answer = known.socket.connect(&remote.into());
        let waits = !known.nonblocking;
        self.watched = Some(fd);
        match answer {
            Ok(()) => Ok(Return::Value(0)),
            Err(error) if waits && progress.begun && error.raw_os_error() == Some(libc::EISCONN) => {
                Ok(Return::Value(0))
            }
            Err(error)
                if waits && matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EALREADY)) =>
            {
                Ok(Return::Blocks)
            }
            Err(error) => failed(&error, false),
        }
    }

    fn read(&mut self, arguments: &Arguments<'_>) -> Answer {
        let len = arguments.length(if arguments.call.name == "recvmsg" { 1 } else { 2 })?;
        let flags = arguments.flags();
        let known = self.get(arguments)?;
        let blocks = !(known.nonblocking || flags.contains(&"MSG_DONTWAIT"));
        let mut bytes = vec![0u8; len];
        let received =
            recv(&known.socket, &mut bytes[..], RecvFlags::from_bits_retain(message_flags(&flags) as u32));
        let count = match received {
            Ok((count, _)) => count,
            Err(error) => return failed(&error.into(), blocks),
        };
        bytes.truncate(count);
        if flags.contains(&"MSG_OOB") {
            return Ok(Return::Value(count as i64));
        }
        let expected = |start: u64| stream::bytes(start, count);
        let start = [known.read, known.read + 1]
            .into_iter()
            .find(|start| bytes == expected(*start))
            .ok_or("the kernel delivered bytes that are not those of the stream")?;
        if !flags.contains(&"MSG_PEEK") {
            known.read = start + count as u64;
        }
        Ok(Return::Value(count as i64))
    }

    fn write(
        &mut self,
        arguments: &Arguments<'_>,
        progress: &mut Progress,
        flows: &mut Flows,
        settings: &Settings,
    ) -> Answer {
        let len = arguments.length(if arguments.call.name == "sendmsg" { 1 } else { 2 })? as u64;
        let names = arguments.flags();
        let fast = names.contains(&"MSG_FASTOPEN");
        let remote = arguments.address(4, SocketAddr::new(settings.remote_ip, settings.connect_port))?;
        let fd = arguments.number(0)?;
        let known = self.get(arguments)?;
        let data = stream::bytes(known.written, len.saturating_sub(progress.written) as usize);
        let blocks = !(known.nonblocking || names.contains(&"MSG_DONTWAIT"));
        let flags = message_flags(&names);
        let sent = if fast && !progress.begun {
            flows.on_connect(None, remote);
            known.socket.send_to_with_flags(&data, &remote.into(), flags)
        } else {
            known.socket.send_with_flags(&data, flags & !libc::MSG_FASTOPEN)
        };
        if fast {
            self.watched = Some(fd);
        }
        let known = self.get(arguments)?;
        match sent {
            Ok(count) => {
                known.written += count as u64;
                progress.written += count as u64;
                let done = progress.written == len || !blocks;
                Ok(if done { Return::Value(progress.written as i64) } else { Return::Blocks })
            }
            Err(error) if blocks && error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(Return::Blocks),
            Err(error) => failed(&error, blocks),
        }
    }

    fn set_option(&mut self, arguments: &Arguments<'_>) -> Answer {
        let name = arguments.names(2).first().copied().unwrap_or("").to_owned();
        let (level, number) =
            socket_option(&name).ok_or_else(|| format!("setsockopt: {name} is not supported"))?;
        let value = match arguments.at(3) {
            Some(Argument::Text(text)) => text.clone().into_bytes(),
            Some(Argument::Record(fields)) => {
                let numbers = fields.iter().filter_map(|(_, value)| match value {
                    Argument::Number(number) => Some(*number as i32),
                    _ => None,
                });
                numbers.flat_map(i32::to_ne_bytes).collect()
            }
            Some(Argument::List(list)) if matches!(list.first(), Some(Argument::Text(_))) => {
                match list.first() {
                    Some(Argument::Text(text)) => text.clone().into_bytes(),
                    _ => Vec::new(),
                }
            }
            _ => (arguments.number(3).unwrap_or(0) as i32).to_ne_bytes().to_vec(),
        };
        self.plain(arguments, |known| sockopt::set(known.socket.as_fd(), level, number, &value))
    }

    fn option(&mut self, arguments: &Arguments<'_>) -> Answer {
        let name = arguments.names(2).first().copied().unwrap_or("").to_owned();
        let (level, number) =
            socket_option(&name).ok_or_else(|| format!("getsockopt: {name} is not supported"))?;
        let known = self.get(arguments)?;
        let value = match sockopt::get(known.socket.as_fd(), level, number, 16) {
            Ok(value) => value,
            Err(error) => return failed(&error, false),
        };
        let value = value.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
        if name == "SO_ERROR" && value != 0 {
            return arguments.pending_error(Some(errno_name(&io::Error::from_raw_os_error(value))));
        }
        arguments.check_value(3, i64::from(value))?;
        Ok(Return::Value(0))
    }

    fn ioctl(&mut self, arguments: &Arguments<'_>) -> Answer {
        let request = match arguments.names(1).first().copied() {
            Some("SIOCINQ" | "FIONREAD") => libc::FIONREAD,
            Some("SIOCOUTQ") => libc::TIOCOUTQ,
            Some("SIOCOUTQNSD") => SIOCOUTQNSD,
            Some("SIOCATMARK") => SIOCATMARK,
            _ => return Err("ioctl: SIOCINQ, SIOCOUTQ, SIOCOUTQNSD and SIOCATMARK are supported".to_owned()),
        };
        let known = self.get(arguments)?;
        match sockopt::request(known.socket.as_fd(), request) {
            Ok(actual) => {
                arguments.check_value(2, i64::from(actual))?;
                Ok(Return::Value(0))
            }
            Err(error) => failed(&error, false),
        }
    }
}

impl Known {
    fn is_connecting(&self) -> bool {
        let info = sockopt::get(self.socket.as_fd(), libc::SOL_TCP, libc::TCP_INFO, 1);
        // TCP_SYN_SENT.
        info.is_ok_and(|info| info == [2])
    }

    fn ready(&self, wanted: &[&str]) -> Result<Vec<&'static str>, Misuse> {
        let names = [
            ("POLLIN", PollFlags::IN),
            ("POLLOUT", PollFlags::OUT),
            ("POLLPRI", PollFlags::PRI),
            ("POLLRDHUP", PollFlags::RDHUP),
            ("POLLERR", PollFlags::ERR),
            ("POLLHUP", PollFlags::HUP),
        ];
        let events = names.iter().filter(|(name, _)| wanted.contains(name));
        let events = events.fold(PollFlags::empty(), |all, (_, flag)| all | *flag);
        let mut entries = [PollFd::new(&self.socket, events)];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut entries, Some(&none)).map_err(|error| format!("poll: {error}"))?;
        let found = entries[0].revents();
        Ok(names.iter().filter(|(_, flag)| found.contains(*flag)).map(|(name, _)| *name).collect())
    }
}
