//! The socket calls of a script, carried out on the stack as an operating system would.
//!
//! A descriptor is what the script calls it: `socket(…) = 3` makes 3. A call that cannot return yet
//! answers [`Return::Blocks`]; the runner tries it again after every event.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use brisk_tcp::config::{
    BufferConfig, CongestionAlgorithm, ConnectConfig, KeepaliveConfig, PacingConfig, UrgentPolicy,
};
use brisk_tcp::error::{CloseReason, ReadError, WriteError};
use brisk_tcp::fast_open::FastOpenConnect;
use brisk_tcp::{ConnId, Event, ListenConfig, ListenerId, TcpConfig};
use std::time::Duration;

use super::arguments::Arguments;
use super::backend::Scene;
use super::flow::Flows;
use super::host::Host;
use super::stream;
use crate::ast::Call;
use crate::settings::{Settings, linux_syn_retries, retransmissions_in};

/// What a call answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Return {
    /// A value.
    Value(i64),
    /// -1 and this errno.
    Errno(&'static str),
    /// Not yet.
    Blocks,
}

/// A call of the script that the interpreter cannot carry out, or bytes that are not what they should be.
pub(super) type Misuse = String;
pub(super) type Answer = Result<Return, Misuse>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Fresh,
    Listening(ListenerId),
    Connection(ConnId),
}

#[derive(Clone, Debug)]
struct Socket {
    role: Role,
    tcp: TcpConfig,
    local: Option<SocketAddr>,
    nonblocking: bool,
    /// SO_LINGER with 0 s: close resets.
    resets: bool,
    connected: bool,
    /// connect() has answered EINPROGRESS and nothing since.
    connecting: bool,
    /// shutdown(SHUT_RD): a read that finds nothing finds the end.
    read_closed: bool,
    closed: Option<CloseReason>,
    /// The error of `closed` was told: it is told once.
    told: bool,
    /// TCP_FASTOPEN of a listener: connections that may be pending.
    fast_open_queue: Option<u16>,
    /// TCP_DEFER_ACCEPT of a listener, in retransmissions of the SYN-ACK.
    defer_accept: u8,
    /// TCP_FASTOPEN_CONNECT: the SYN waits for the first write.
    fast_open_connect: bool,
    keepalive: KeepaliveConfig,
    /// Connections that wait at a listener, as far as events tell.
    waiting: u32,
    /// Stream offsets of the next byte to write and to read.
    written: u64,
    read: u64,
}

impl Socket {
    fn new(tcp: &TcpConfig, role: Role) -> Socket {
        Socket {
            role,
            tcp: tcp.clone(),
            local: None,
            nonblocking: false,
            resets: false,
            connected: false,
            connecting: false,
            read_closed: false,
            closed: None,
            told: false,
            fast_open_queue: None,
            defer_accept: 0,
            fast_open_connect: false,
            keepalive: tcp.keepalive.unwrap_or_default(),
            waiting: 0,
            written: 0,
            read: 0,
        }
    }

    fn conn(&self) -> Option<ConnId> {
        match self.role {
            Role::Connection(id) => Some(id),
            Role::Fresh | Role::Listening(_) => None,
        }
    }

    /// The error that is told once.
    fn take_error(&mut self) -> Option<&'static str> {
        let errno = self.closed.and_then(errno)?;
        (!std::mem::replace(&mut self.told, true)).then_some(errno)
    }
}

fn errno(reason: CloseReason) -> Option<&'static str> {
    match reason {
        CloseReason::Finished => None,
        CloseReason::Aborted | CloseReason::ListenerClosed => Some("ECONNABORTED"),
        CloseReason::Refused => Some("ECONNREFUSED"),
        CloseReason::Reset | CloseReason::DataAfterClose => Some("ECONNRESET"),
        CloseReason::HandshakeTimeout | CloseReason::TimedOut | CloseReason::KeepaliveTimeout => {
            Some("ETIMEDOUT")
        }
        CloseReason::Unreachable => Some("EHOSTUNREACH"),
        CloseReason::OutOfMemory => Some("ENOMEM"),
    }
}

/// How far a call that blocks has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Progress {
    /// The call was tried before.
    pub(crate) begun: bool,
    /// Bytes written so far.
    pub(super) written: u64,
}

/// The descriptors of a script.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    table: BTreeMap<i64, Socket>,
    /// The connection that assertions are about: the last one accepted or connected.
    watched: Option<ConnId>,
}

impl Sockets {
    pub(crate) fn watched(&self) -> Option<ConnId> {
        self.watched
    }

    /// Takes what the stack has told.
    pub(crate) fn on_events(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Connected(id) => self.each(id, |socket| socket.connected = true),
                Event::Closed(id, reason) => self.each(id, |socket| socket.closed = Some(reason)),
                Event::Incoming(listener) => {
                    let listening = |socket: &&mut Socket| socket.role == Role::Listening(listener);
                    self.table.values_mut().filter(listening).for_each(|socket| socket.waiting += 1);
                }
                Event::Readable(_) | Event::Writable(_) => {}
            }
        }
    }

    fn each(&mut self, id: ConnId, change: impl Fn(&mut Socket)) {
        self.table.values_mut().filter(|socket| socket.role == Role::Connection(id)).for_each(change);
    }

    /// Carries out a call.
    pub(crate) fn call(
        &mut self,
        call: &Call,
        progress: &mut Progress,
        host: &mut Host,
        scene: &mut Scene<'_>,
    ) -> Answer {
        let arguments = Arguments { call };
        let Scene { flows, settings } = scene;
        let answer = match call.name.as_str() {
            "socket" => self.socket(&arguments, settings),
            "accept" | "accept4" => self.accept(&arguments, host),
            "connect" => self.connect(&arguments, progress, host, flows, settings),
            "bind" => self.bind(&arguments, settings),
            "listen" => self.listen(&arguments, host, flows, settings),
            "read" | "recv" | "recvfrom" | "readv" | "recvmsg" => self.read(&arguments, host),
            "sendto" if arguments.flags().contains(&"MSG_FASTOPEN") => {
                self.connect_with_data(&arguments, host, flows, settings)
            }
            "write" | "send" | "sendto" | "writev" | "sendmsg" => self.write(&arguments, progress, host),
            "shutdown" => self.shutdown(&arguments, host),
            "close" => self.close(&arguments, host),
            "setsockopt" => self.set_option(&arguments, host),
            "getsockopt" => self.option(&arguments, host),
            "fcntl" => arguments.fcntl(&mut self.get(&arguments)?.nonblocking),
            "ioctl" => self.ioctl(&arguments, host),
            "poll" => arguments.poll(|fd, wanted| {
                let shown = self.readiness(fd, host)?.into_iter();
                let told = |one: &&str| wanted.contains(one) || ["POLLERR", "POLLHUP"].contains(one);
                Ok(shown.filter(told).collect())
            }),
            name => Err(format!("the system call {name} is not supported")),
        };
        progress.begun = true;
        host.drain()?;
        answer
    }

    fn get(&mut self, arguments: &Arguments<'_>) -> Result<&mut Socket, Misuse> {
        let fd = arguments.number(0)?;
        self.table.get_mut(&fd).ok_or_else(|| format!("{fd} is no open descriptor here"))
    }

    fn socket(&mut self, arguments: &Arguments<'_>, settings: &Settings) -> Answer {
        let fd = arguments.new_descriptor(&self.table);
        let mut socket = Socket::new(&settings.tcp, Role::Fresh);
        socket.nonblocking = arguments.names(1).contains(&"SOCK_NONBLOCK");
        self.table.insert(fd, socket);
        Ok(Return::Value(fd))
    }

    fn bind(&mut self, arguments: &Arguments<'_>, settings: &Settings) -> Answer {
        let usual = SocketAddr::new(settings.local_ip, settings.bind_port);
        let addr = arguments.address(1, usual)?;
        self.get(arguments)?.local = Some(addr);
        Ok(Return::Value(0))
    }

    fn listen(
        &mut self,
        arguments: &Arguments<'_>,
        host: &mut Host,
        flows: &mut Flows,
        settings: &Settings,
    ) -> Answer {
        let backlog = arguments.number(1)?;
        let socket = self.get(arguments)?;
        let local = socket.local.unwrap_or(SocketAddr::new(settings.local_ip, 0));
        // As in Linux, one more than the backlog may wait.
        let backlog = usize::try_from(backlog).unwrap_or(0) + 1;
        let backlog = if settings.fixed_backlog { settings.listen.backlog } else { backlog };
        let mut config = ListenConfig { tcp: socket.tcp.clone(), backlog, ..settings.listen.clone() };
        let asked = settings.fast_open_all_listeners || socket.fast_open_queue.is_some();
        config.tcp.ecn |= settings.ecn_passive;
        config.defer_accept = socket.defer_accept;
        if asked && settings.fast_open_server_allowed {
            let mut fast_open = settings.fast_open_listen.clone();
            if let Some(queue) = socket.fast_open_queue {
                fast_open.max_pending = queue;
            }
            config.fast_open = Some(fast_open);
        }
        match host.stack.listen(local, config) {
            Ok(listener) => {
                socket.role = Role::Listening(listener);
                flows.on_listen(host.stack.listener_addr(listener).unwrap_or(local));
                Ok(Return::Value(0))
            }
            Err(brisk_tcp::error::ListenError::InUse(_)) => Ok(Return::Errno("EADDRINUSE")),
            Err(_) => Ok(Return::Errno("EADDRNOTAVAIL")),
        }
    }

    fn accept(&mut self, arguments: &Arguments<'_>, host: &mut Host) -> Answer {
        let fd = arguments.new_descriptor(&self.table);
        let socket = self.get(arguments)?;
        let Role::Listening(listener) = socket.role else { return Ok(Return::Errno("EINVAL")) };
        let Some((id, _)) = host.stack.accept(listener) else {
            return Ok(if socket.nonblocking { Return::Errno("EAGAIN") } else { Return::Blocks });
        };
        socket.waiting = socket.waiting.saturating_sub(1);
        let mut accepted = Socket::new(&socket.tcp, Role::Connection(id));
        accepted.connected = true;
        accepted.nonblocking = arguments.names(3).contains(&"SOCK_NONBLOCK");
        self.table.insert(fd, accepted);
        self.watched = Some(id);
        Ok(Return::Value(fd))
    }

    fn connect(
        &mut self,
        arguments: &Arguments<'_>,
        progress: &Progress,
        host: &mut Host,
        flows: &mut Flows,
        settings: &Settings,
    ) -> Answer {
        let remote = arguments.address(1, SocketAddr::new(settings.remote_ip, settings.connect_port))?;
        let socket = self.get(arguments)?;
        if socket.role == Role::Fresh {
            let config = socket.connect_config(settings, false);
            flows.on_connect(socket.local.filter(|local| local.port() != 0), remote);
            let id = match host.stack.connect(remote, &config, host.now) {
                Ok(id) => id,
                Err(error) => return Ok(Return::Errno(connect_errno(&error))),
            };
            socket.role = Role::Connection(id);
            let blocks = !socket.nonblocking;
            let deferred = socket.fast_open_connect;
            socket.connecting = !blocks && !deferred;
            self.watched = Some(id);
            return Ok(match (deferred, blocks) {
                (true, _) => Return::Value(0),
                (false, true) => Return::Blocks,
                (false, false) => Return::Errno("EINPROGRESS"),
            });
        }
        if let Some(errno) = socket.take_error() {
            return Ok(Return::Errno(errno));
        }
        Ok(match (socket.connected, progress.begun) {
            (true, true) => Return::Value(0),
            // Linux: the first call after the handshake tells its end.
            (true, false) if std::mem::take(&mut socket.connecting) => Return::Value(0),
            (true, false) => Return::Errno("EISCONN"),
            (false, _) if socket.nonblocking => Return::Errno("EALREADY"),
            (false, _) => Return::Blocks,
        })
    }

    /// `sendto(3, ..., 1000, MSG_FASTOPEN, ..., ...)`: connects with the data behind the SYN, or on it.
    fn connect_with_data(
        &mut self,
        arguments: &Arguments<'_>,
        host: &mut Host,
        flows: &mut Flows,
        settings: &Settings,
    ) -> Answer {
        let remote = arguments.address(4, SocketAddr::new(settings.remote_ip, settings.connect_port))?;
        let len = arguments.length(2)?;
        let socket = self.get(arguments)?;
        if socket.role != Role::Fresh {
            return Ok(Return::Errno("EISCONN"));
        }
        let config = socket.connect_config(settings, true);
        flows.on_connect(socket.local.filter(|local| local.port() != 0), remote);
        let data = stream::bytes(0, len);
        match host.stack.connect_with_data(remote, &data, &config, host.now) {
            Ok((id, taken)) => {
                socket.role = Role::Connection(id);
                socket.written = taken as u64;
                self.watched = Some(id);
                Ok(Return::Value(taken as i64))
            }
            Err(error) => Ok(Return::Errno(connect_errno(&error))),
        }
    }

    fn read(&mut self, arguments: &Arguments<'_>, host: &mut Host) -> Answer {
        let len = arguments.length(if arguments.call.name == "recvmsg" { 1 } else { 2 })?;
        let flags = arguments.flags();
        if flags.contains(&"MSG_ERRQUEUE") {
            return Err("MSG_ERRQUEUE: the stack has no error queue".to_owned());
        }
        let nonblocking = flags.contains(&"MSG_DONTWAIT");
        let socket = self.get(arguments)?;
        let Some(id) = socket.conn() else { return Ok(Return::Errno("ENOTCONN")) };
        if flags.contains(&"MSG_OOB") {
            return Ok(match host.stack.read_urgent(id) {
                Ok(_) => Return::Value(1),
                Err(_) => Return::Errno("EINVAL"),
            });
        }
        let mut buffer = vec![0; len];
        let peek = flags.contains(&"MSG_PEEK");
        let read =
            if peek { host.stack.peek(id, &mut buffer) } else { host.stack.read(id, &mut buffer, host.now) };
        let blocks = !(socket.nonblocking || nonblocking);
        match read {
            Ok(count) => {
                let bytes = buffer.get(..count).unwrap_or_default();
                // An urgent byte may have left the stream in front of these.
                let start = [socket.read, socket.read + 1]
                    .into_iter()
                    .find(|start| bytes == stream::bytes(*start, count))
                    .ok_or("the stack delivered bytes that are not those of the stream")?;
                if !peek {
                    socket.read = start + count as u64;
                }
                Ok(Return::Value(count as i64))
            }
            Err(ReadError::WouldBlock) if socket.read_closed => Ok(Return::Value(0)),
            Err(ReadError::WouldBlock) if blocks => Ok(Return::Blocks),
            Err(ReadError::WouldBlock) => Ok(Return::Errno("EAGAIN")),
            Err(ReadError::NoConnection) => Ok(Return::Errno("EBADF")),
            Err(ReadError::Closed(reason)) => {
                socket.closed = Some(reason);
                Ok(socket.take_error().map_or(Return::Value(0), Return::Errno))
            }
        }
    }

    fn write(&mut self, arguments: &Arguments<'_>, progress: &mut Progress, host: &mut Host) -> Answer {
        let len = arguments.length(if arguments.call.name == "sendmsg" { 1 } else { 2 })? as u64;
        let flags = arguments.flags();
        let socket = self.get(arguments)?;
        let Some(id) = socket.conn() else { return Ok(Return::Errno("EPIPE")) };
        if let Some(errno) = socket.take_error() {
            return Ok(Return::Errno(errno));
        }
        let left = len.saturating_sub(progress.written) as usize;
        let data = stream::bytes(socket.written, left);
        host.stack.set_more(id, flags.contains(&"MSG_MORE"));
        let written = match flags.contains(&"MSG_OOB") {
            true => host.stack.write_urgent(id, &data, host.now),
            false => host.stack.write(id, &data, host.now),
        };
        if flags.contains(&"MSG_EOR") && written == Ok(left) {
            host.stack.end_record(id);
        }
        let blocks = !(socket.nonblocking || flags.contains(&"MSG_DONTWAIT"));
        match written {
            Ok(count) => {
                socket.written += count as u64;
                progress.written += count as u64;
                let done = progress.written == len || !blocks;
                Ok(if done { Return::Value(progress.written as i64) } else { Return::Blocks })
            }
            Err(WriteError::WouldBlock) if blocks => Ok(Return::Blocks),
            Err(WriteError::WouldBlock) => Ok(Return::Errno("EAGAIN")),
            Err(WriteError::NoConnection) => Ok(Return::Errno("EBADF")),
            Err(WriteError::AfterClose) => Ok(Return::Errno("EPIPE")),
            Err(WriteError::Closed(reason)) => {
                socket.closed = Some(reason);
                Ok(Return::Errno(socket.take_error().unwrap_or("EPIPE")))
            }
        }
    }

    fn shutdown(&mut self, arguments: &Arguments<'_>, host: &mut Host) -> Answer {
        let how = arguments.names(1);
        let socket = self.get(arguments)?;
        let Some(id) = socket.conn() else { return Ok(Return::Errno("ENOTCONN")) };
        // Closing for reading is between the application and its socket: the peer hears nothing of it.
        socket.read_closed |= how.contains(&"SHUT_RD") || how.contains(&"SHUT_RDWR");
        if how.contains(&"SHUT_RD") {
            return Ok(Return::Value(0));
        }
        if how.contains(&"SHUT_RDWR") {
            host.stack.shutdown_reading(id);
        }
        Ok(match host.stack.shutdown(id, host.now) {
            Ok(()) => Return::Value(0),
            Err(_) => Return::Errno("ENOTCONN"),
        })
    }

    fn close(&mut self, arguments: &Arguments<'_>, host: &mut Host) -> Answer {
        self.get(arguments)?;
        let Some(socket) = self.table.remove(&arguments.number(0)?) else {
            return Ok(Return::Errno("EBADF"));
        };
        match socket.role {
            Role::Fresh => {}
            Role::Listening(listener) => host.stack.close_listener(listener, host.now),
            Role::Connection(id) => {
                if socket.resets {
                    host.stack.abort(id, host.now);
                }
                host.stack.release(id, host.now);
            }
        }
        Ok(Return::Value(0))
    }

    fn ioctl(&mut self, arguments: &Arguments<'_>, host: &Host) -> Answer {
        let request = arguments.names(1);
        let socket = self.get(arguments)?;
        let Some(id) = socket.conn() else { return Ok(Return::Errno("EINVAL")) };
        let actual = match request.first().copied() {
            Some("SIOCINQ" | "FIONREAD") => host.stack.readable(id) as i64,
            Some("SIOCOUTQ") => host.stack.conn_stats(id).map_or(0, |stats| stats.send_queue as i64),
            Some("SIOCOUTQNSD") => host.stack.conn_info(id).map_or(0, |info| i64::from(info.unsent)),
            Some("SIOCATMARK") => {
                i64::from(host.stack.conn_info(id).is_some_and(|info| info.before_mark == Some(0)))
            }
            _ => return Err("ioctl: SIOCINQ, SIOCOUTQ, SIOCOUTQNSD and SIOCATMARK are supported".to_owned()),
        };
        arguments.check_value(2, actual)?;
        Ok(Return::Value(0))
    }

    fn set_option(&mut self, arguments: &Arguments<'_>, host: &mut Host) -> Answer {
        let name = arguments.names(2).first().copied().unwrap_or("").to_owned();
        let value = arguments.number(3).unwrap_or(0);
        self.get(arguments)?;
        let fd = arguments.number(0)?;
        if self.set_bounds(fd, &name, value, host) || self.set_timers(fd, &name, value, host) {
            return Ok(Return::Value(0));
        }
        let socket = self.get(arguments)?;
        let id = socket.conn();
        let buffer = |value: i64| {
            let bytes = usize::try_from(value).unwrap_or(0).saturating_mul(2).max(4608);
            BufferConfig { initial: bytes, max: bytes }
        };
        match name.as_str() {
            "SO_SNDBUF" => socket.tcp.send_buffer = buffer(value),
            "SO_RCVBUF" => socket.tcp.receive_buffer = buffer(value),
            "TCP_MAXSEG" => socket.tcp.max_segment = u16::try_from(value).ok(),
            "TCP_SYNCNT" => socket.tcp.syn_retries = u32::try_from(value).unwrap_or(1),
            "IP_TOS" => {
                socket.tcp.dscp = (value >> 2) as u8 & 63;
                let dscp = socket.tcp.dscp;
                id.into_iter().for_each(|id| host.stack.set_dscp(id, dscp));
            }
            "TCP_NODELAY" => {
                socket.tcp.nodelay = value != 0;
                id.into_iter().for_each(|id| host.stack.set_nodelay(id, value != 0));
            }
            "TCP_CORK" => id.into_iter().for_each(|id| host.stack.set_cork(id, value != 0)),
            "TCP_FASTOPEN" => socket.fast_open_queue = Some(u16::try_from(value).unwrap_or(u16::MAX)),
            "TCP_FASTOPEN_CONNECT" => socket.fast_open_connect = value != 0,
            "SO_LINGER" => socket.resets = arguments.lingers_for_nothing(3),
            "TCP_CONGESTION" => return arguments.congestion(3).map(|found| socket.set_congestion(found)),
            "SO_OOBINLINE" => {
                socket.tcp.urgent = if value != 0 { UrgentPolicy::Inline } else { UrgentPolicy::OutOfBand };
            }
            // What Linux keeps, and nothing here depends on.
            "TCP_QUICKACK" | "SO_REUSEADDR" | "SO_REUSEPORT" | "IP_MTU_DISCOVER" | "SO_MARK"
            | "IP_FREEBIND" | "SO_PRIORITY" => {}
            _ => return Err(format!("setsockopt: {name} is not supported")),
        }
        Ok(Return::Value(0))
    }

    /// How long things may take. False if the option is none of them.
    fn set_timers(&mut self, fd: i64, name: &str, value: i64, host: &mut Host) -> bool {
        let Some(socket) = self.table.get_mut(&fd) else { return false };
        let id = socket.conn();
        match name {
            "TCP_USER_TIMEOUT" => {
                let limit = u64::try_from(value).ok().filter(|ms| *ms > 0).map(Duration::from_millis);
                socket.tcp.user_timeout = limit;
                id.into_iter().for_each(|id| host.stack.set_user_timeout(id, limit));
            }
            "SO_KEEPALIVE" | "TCP_KEEPIDLE" | "TCP_KEEPINTVL" | "TCP_KEEPCNT" => {
                socket.set_keepalive(name, value);
                let keepalive = socket.tcp.keepalive;
                id.into_iter().for_each(|id| host.stack.set_keepalive(id, keepalive));
            }
            "TCP_LINGER2" => {
                let limit = Duration::from_secs(u64::try_from(value).unwrap_or(0));
                socket.tcp.fin_wait_2_timeout = limit;
                id.into_iter().for_each(|id| host.stack.set_fin_wait_2_timeout(id, limit));
            }
            "TCP_RTO_MAX_MS" => {
                socket.tcp.rto.max = Duration::from_millis(u64::try_from(value).unwrap_or(0));
                let rto = socket.tcp.rto;
                id.into_iter().for_each(|id| host.stack.set_rto(id, rto));
            }
            _ => return false,
        }
        true
    }

    /// Bounds of what is offered and sent. False if the option is none of them.
    fn set_bounds(&mut self, fd: i64, name: &str, value: i64, host: &mut Host) -> bool {
        let Some(socket) = self.table.get_mut(&fd) else { return false };
        let id = socket.conn();
        match name {
            "TCP_WINDOW_CLAMP" => {
                socket.tcp.window.clamp = u32::try_from(value).ok().filter(|clamp| *clamp > 0);
                let rules = socket.tcp.window;
                id.into_iter().for_each(|id| host.stack.set_window_rules(id, rules));
            }
            "SO_MAX_PACING_RATE" => {
                let max_rate = u64::try_from(value).ok();
                socket.tcp.pacing = max_rate.map(|_| PacingConfig { max_rate, ..PacingConfig::default() });
                let pacing = socket.tcp.pacing;
                id.into_iter().for_each(|id| host.stack.set_pacing(id, pacing));
            }
            "IP_TTL" | "IPV6_UNICAST_HOPS" => {
                socket.tcp.hop_limit = u8::try_from(value).unwrap_or(64);
                let hops = socket.tcp.hop_limit;
                id.into_iter().for_each(|id| host.stack.set_hop_limit(id, hops));
            }
            "TCP_DEFER_ACCEPT" => socket.defer_accept = retransmissions_in(value as i32).0,
            _ => return false,
        }
        true
    }

    fn option(&mut self, arguments: &Arguments<'_>, host: &Host) -> Answer {
        let name = arguments.names(2).first().copied().unwrap_or("").to_owned();
        let socket = self.get(arguments)?;
        let actual = match name.as_str() {
            "SO_ERROR" => return arguments.pending_error(socket.take_error()),
            "TCP_MAXSEG" => {
                let stats = socket.conn().and_then(|id| host.stack.conn_stats(id));
                stats.map_or(536, |stats| i64::from(stats.mss))
            }
            "TCP_NODELAY" => i64::from(socket.tcp.nodelay),
            _ => return Err(format!("getsockopt: {name} is not supported")),
        };
        arguments.check_value(3, actual)?;
        Ok(Return::Value(0))
    }

    /// The poll flags of a descriptor.
    fn readiness(&mut self, fd: i64, host: &mut Host) -> Result<Vec<&'static str>, Misuse> {
        let socket = self.table.get(&fd).ok_or_else(|| format!("{fd} is no open descriptor here"))?;
        let id = match socket.role {
            Role::Fresh => return Ok(vec!["POLLOUT", "POLLHUP"]),
            Role::Listening(_) => return Ok(if socket.waiting > 0 { vec!["POLLIN"] } else { Vec::new() }),
            Role::Connection(id) => id,
        };
        let at_end = matches!(host.stack.peek(id, &mut [0]), Ok(0) | Err(ReadError::Closed(_)));
        let over = socket.closed.is_some();
        let failed = socket.closed.and_then(errno).is_some() && !socket.told;
        let found = [
            ("POLLIN", host.stack.readable(id) > 0 || at_end || over),
            ("POLLOUT", (socket.connected && host.stack.writable(id) > 0) || over),
            ("POLLRDHUP", at_end || over),
            ("POLLERR", failed),
            ("POLLHUP", over),
        ];
        Ok(found.into_iter().filter_map(|(name, set)| set.then_some(name)).collect())
    }
}

impl Socket {
    /// What an active open takes; `asked` if the call itself asks for Fast Open.
    fn connect_config(&self, settings: &Settings, asked: bool) -> ConnectConfig {
        let fast_open = asked || self.fast_open_connect || settings.fast_open_always;
        let defer = self.fast_open_connect;
        ConnectConfig {
            tcp: self.connect_tcp(),
            local: self.local,
            fast_open: fast_open.then_some(FastOpenConnect { defer, ..settings.fast_open_connect }),
        }
    }

    /// Linux counts the linear timeouts of a SYN beside the retries.
    fn connect_tcp(&self) -> TcpConfig {
        let retries = linux_syn_retries(self.tcp.syn_retries, self.tcp.syn_linear_retries);
        TcpConfig { syn_retries: retries, ..self.tcp.clone() }
    }

    fn set_congestion(&mut self, found: CongestionAlgorithm) -> Return {
        if self.role != Role::Fresh {
            return Return::Errno("EINVAL");
        }
        self.tcp.congestion = found;
        Return::Value(0)
    }

    fn set_keepalive(&mut self, name: &str, value: i64) {
        let amount = u64::try_from(value).unwrap_or(0);
        match name {
            "TCP_KEEPIDLE" => self.keepalive.idle = Duration::from_secs(amount),
            "TCP_KEEPINTVL" => self.keepalive.interval = Duration::from_secs(amount),
            "TCP_KEEPCNT" => self.keepalive.count = amount as u32,
            _ => self.tcp.keepalive = (value != 0).then_some(self.keepalive),
        }
        self.tcp.keepalive = self.tcp.keepalive.map(|_| self.keepalive);
    }
}

fn connect_errno(error: &brisk_tcp::error::ConnectError) -> &'static str {
    use brisk_tcp::error::ConnectError::*;
    match error {
        NoAddress(_) | BadDestination(_) => "ENETUNREACH",
        NotLocal(_) | InUse { .. } | NoPort(_) => "EADDRNOTAVAIL",
        TooMany(_) => "ENOBUFS",
        BadConfig { .. } => "EINVAL",
    }
}
