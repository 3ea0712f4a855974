//! The system calls as functions. This module decides whether a call blocks, and for how long.
//!
//! Each function is the Linux call of the same name (section 2 of the manual), with its arguments, results
//! and error numbers; every error is an [`Errno`]. Timeouts are in milliseconds, as in the Linux calls. A
//! blocking call waits in the [`VirtualWorld`] that it gets. Descriptors are numbers from
//! [`FIRST_FD`](crate::FIRST_FD) on; others give `EBADF`.

use std::net::SocketAddr;
use std::time::Duration;

use brisk_tcp::connection::State;

use crate::epoll::{Control as EpollControl, Epoll};
use crate::errno::{Answer, Errno};
use crate::host::{Descriptor, Host};
use crate::ready;
use crate::ready::epoll;
use crate::socket::{Closing, Control, Family, Received, Role, Sending};
use crate::world::VirtualWorld;

/// Mask of the type in the second argument of socket() (linux/net.h).
const SOCK_TYPE_MASK: i32 = 15;
/// `SIOCOUTQNSD` of linux/sockios.h: bytes that are unsent.
const SIOCOUTQNSD: libc::Ioctl = 0x894B;
/// `SIOCATMARK` of asm/sockios.h: true if the next byte is the urgent one.
const SIOCATMARK: libc::Ioctl = 0x8905;
/// The result of fcntl(F_GETFL) for a socket: O_RDWR.
const READ_WRITE: i32 = libc::O_RDWR;

fn duration(millis: i32) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

/// socket(): TCP over IPv4 or IPv6.
pub fn socket(world: &VirtualWorld, domain: i32, kind: i32, protocol: i32) -> Answer<i32> {
    let family = match domain {
        libc::AF_INET => Family::V4,
        libc::AF_INET6 => Family::V6,
        _ => return Err(Errno(libc::EAFNOSUPPORT)),
    };
    if kind & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC | SOCK_TYPE_MASK) != 0 {
        return Err(Errno(libc::EINVAL));
    }
    match (kind & SOCK_TYPE_MASK, protocol) {
        (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {}
        (libc::SOCK_STREAM, _) => return Err(Errno(libc::EPROTONOSUPPORT)),
        _ => return Err(Errno(libc::ESOCKTNOSUPPORT)),
    }
    world.call(|host| host.new_socket(family, kind & libc::SOCK_NONBLOCK != 0))
}

/// bind().
pub fn bind(world: &VirtualWorld, fd: i32, addr: SocketAddr) -> Answer<()> {
    world.call(|host| host.bind(fd, addr))
}

/// getsockname().
pub fn getsockname(world: &VirtualWorld, fd: i32) -> Answer<SocketAddr> {
    world.call(|host| host.parts(fd).map(|(socket, stack, _)| socket.own_address(stack)))
}

/// listen().
pub fn listen(world: &VirtualWorld, fd: i32, backlog: i32) -> Answer<()> {
    world.call(|host| {
        let now = host.now;
        let (socket, stack, settings) = host.parts_now(fd)?;
        socket.listen(backlog, stack, settings, now)
    })
}

/// accept(): returns a new descriptor and the peer's address.
pub fn accept(world: &VirtualWorld, fd: i32) -> Answer<(i32, SocketAddr)> {
    let limit = world.call(|host| wait_limit(host, fd, 0, Direction::Receive))?;
    let accepted = world.wait(limit, |host| {
        let (socket, stack, _) = host.parts(fd)?;
        let Some((id, remote)) = socket.accept(stack)? else { return Ok(None) };
        Ok(Some((host.add_accepted(fd, id)?, remote)))
    })?;
    accepted.ok_or(Errno(libc::EAGAIN))
}

/// connect().
pub fn connect(world: &VirtualWorld, fd: i32, remote: SocketAddr) -> Answer<()> {
    let begun = world.call(|host| {
        let now = host.now;
        let (socket, stack, settings) = host.parts_now(fd)?;
        socket.connect(remote, stack, settings, now)
    })?;
    match begun {
        Some(()) => Ok(()),
        None => finish_connect(world, fd, 0),
    }
}

/// connect() with `AF_UNSPEC`: ends the connection, the attempt to connect, or the listening.
pub fn disconnect(world: &VirtualWorld, fd: i32) -> Answer<()> {
    world.call(|host| {
        let now = host.now;
        let (socket, stack, _) = host.parts(fd)?;
        socket.disconnect(stack, now);
        Ok(())
    })
}

/// Waits for the end of the handshake, unless the call must not block.
fn finish_connect(world: &VirtualWorld, fd: i32, flags: i32) -> Answer<()> {
    let limit = world.call(|host| wait_limit(host, fd, flags, Direction::Send))?;
    let done = world.wait(limit, |host| host.socket(fd)?.connect_outcome())?;
    done.ok_or(Errno(libc::EINPROGRESS))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    Receive,
    Send,
}

/// Returns how long a call may wait: not at all, SO_RCVTIMEO if it receives, or without a limit.
fn wait_limit(host: &mut Host, fd: i32, flags: i32, direction: Direction) -> Answer<Option<Duration>> {
    let socket = host.socket(fd)?;
    if socket.nonblocking || flags & (libc::MSG_DONTWAIT | libc::MSG_ERRQUEUE) != 0 {
        return Ok(Some(Duration::ZERO));
    }
    Ok(match direction {
        Direction::Receive => socket.options.receive_timeout,
        Direction::Send => None,
    })
}

/// recv(), recvfrom() and recvmsg().
pub fn receive(world: &VirtualWorld, fd: i32, len: usize, flags: i32) -> Answer<Received> {
    let limit = world.call(|host| wait_limit(host, fd, flags, Direction::Receive))?;
    let wants_all = flags & libc::MSG_WAITALL != 0 && flags & (libc::MSG_PEEK | libc::MSG_ERRQUEUE) == 0;
    let target = if wants_all { len } else { 1 };
    // MSG_PEEK and MSG_ERRQUEUE return the available data and do not wait for more.
    let waits = limit != Some(Duration::ZERO) && flags & (libc::MSG_PEEK | libc::MSG_ERRQUEUE) == 0;
    let mut so_far: Option<Received> = None;
    let received = world.wait(limit, |host| {
        let had = so_far.as_ref().map_or(0, |received| received.count);
        match read_once(host, fd, len - had, flags)? {
            None => Ok(None),
            Some(more) => {
                let ended = more.count == 0;
                let all = merge(&mut so_far, more);
                Ok((!waits || ended || all.count >= target).then_some(all))
            }
        }
    });
    match (received, so_far) {
        (Ok(Some(received)), _) => Ok(received),
        // Bytes that arrived before the timeout or error are returned.
        (Ok(None) | Err(_), Some(partial)) if partial.count > 0 => Ok(partial),
        (Ok(None), _) => Err(Errno(libc::EAGAIN)),
        (Err(error), _) => Err(error),
    }
}

fn read_once(host: &mut Host, fd: i32, len: usize, flags: i32) -> Answer<Option<Received>> {
    let now = host.now;
    let epoch = host.time_of_day(brisk_wire::Instant::ZERO);
    let (socket, stack, _) = host.parts(fd)?;
    socket.read(len, flags, stack, now, |at| Duration::from_micros(epoch + at.as_micros()))
}

fn merge(so_far: &mut Option<Received>, more: Received) -> Received {
    let merged = match so_far.take() {
        None => more,
        Some(mut before) => {
            before.bytes.extend(more.bytes);
            before.count += more.count;
            Received { control: more.control, flags: more.flags, ..before }
        }
    };
    *so_far = Some(merged.clone());
    merged
}

/// Options of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendOptions {
    /// `MSG_MORE` and other flags.
    pub flags: i32,
    /// Destination of a write that opens a connection (Fast Open); otherwise ignored.
    pub to: Option<SocketAddr>,
    /// Flags of SO_TIMESTAMPING in a control message.
    pub stamping: Option<u32>,
}

/// send(), sendto() and sendmsg(): returns the number of bytes that were taken.
pub fn send(world: &VirtualWorld, fd: i32, data: &[u8], options: SendOptions) -> Answer<usize> {
    let flags = options.flags;
    let limit = world.call(|host| wait_limit(host, fd, flags, Direction::Send))?;
    let waits = limit != Some(Duration::ZERO);
    let mut sending = Sending { data, flags, stamping: options.stamping, waits, done: 0, blocked: false };
    let opens = flags & libc::MSG_FASTOPEN != 0 || world.call(|host| Ok(host.socket(fd)?.deferred))?;
    let mut all = match opens && !send_with_syn(world, fd, &mut sending, options.to)? {
        // The handshake continues in the background.
        true => Ok(Some(())),
        false => world.wait(limit, |host| {
            let now = host.now;
            let (socket, stack, _) = host.parts(fd)?;
            Ok(socket.write(&mut sending, stack, now)?.then_some(()))
        }),
    };
    if sending.done > 0 || data.is_empty() {
        world.call(|host| {
            host.socket(fd)?.record_write(&sending);
            Ok(())
        })?;
        if sending.done > 0 {
            all = Ok(Some(()));
        }
    }
    match all? {
        Some(()) => Ok(sending.done),
        None => Err(Errno(libc::EAGAIN)),
    }
}

/// Opens a connection with a write: the SYN carries as many bytes as possible. A blocking call waits for the
/// end of the handshake. Returns true once the handshake is complete.
fn send_with_syn(
    world: &VirtualWorld,
    fd: i32,
    sending: &mut Sending<'_>,
    remote: Option<SocketAddr>,
) -> Answer<bool> {
    sending.done = world.call(|host| {
        let now = host.now;
        let (socket, stack, settings) = host.parts_now(fd)?;
        let taken = socket.connect_with_data(remote, sending.data, stack, settings, now)?;
        if let Role::Connection(id) = socket.role
            && sending.waits
            && taken < sending.data.len()
        {
            stack.await_write(id);
        }
        Ok(taken)
    })?;
    match finish_connect(world, fd, sending.flags) {
        Err(Errno(libc::EINPROGRESS)) if sending.done > 0 => Ok(false),
        Err(error) => Err(error),
        Ok(()) => Ok(true),
    }
}

/// shutdown().
pub fn shutdown(world: &VirtualWorld, fd: i32, how: i32) -> Answer<()> {
    world.call(|host| {
        let now = host.now;
        let (socket, stack, _) = host.parts(fd)?;
        socket.shutdown(how, stack, now)
    })
}

/// close().
pub fn close(world: &VirtualWorld, fd: i32) -> Answer<()> {
    if world.call(|host| Ok(host.epoll(fd).is_ok()))? {
        return world.call(|host| host.remove(fd).map(drop));
    }
    let closing = world.call(|host| {
        let now = host.now;
        let (socket, stack, _) = host.parts(fd)?;
        Ok(socket.begin_close(stack, now))
    })?;
    if let Closing::Linger(limit) = closing {
        world.wait(Some(limit), |host| {
            let (socket, stack, _) = host.parts(fd)?;
            Ok(socket.is_delivered(stack).then_some(()))
        })?;
    }
    world.call(|host| {
        let now = host.now;
        match host.remove(fd)? {
            Descriptor::Socket(socket) => socket.finish_close(host.stack()?, now),
            Descriptor::Epoll(_) => {}
        }
        Ok(())
    })
}

/// fcntl(): reads or sets the flags of a descriptor.
pub fn fcntl(world: &VirtualWorld, fd: i32, command: i32, argument: i64) -> Answer<i32> {
    world.call(|host| {
        if !host.knows(fd) {
            return Err(Errno(libc::EBADF));
        }
        match command {
            libc::F_GETFD => Ok(i32::from(host.socket(fd).is_ok_and(|socket| socket.closes_on_exec))),
            libc::F_SETFD => {
                if let Ok(socket) = host.socket(fd) {
                    socket.closes_on_exec = argument as i32 & libc::FD_CLOEXEC != 0;
                }
                Ok(0)
            }
            libc::F_GETFL => {
                let nonblocking = host.socket(fd)?.nonblocking;
                Ok(READ_WRITE | if nonblocking { libc::O_NONBLOCK } else { 0 })
            }
            libc::F_SETFL => {
                host.socket(fd)?.nonblocking = argument as i32 & libc::O_NONBLOCK != 0;
                Ok(0)
            }
            _ => Err(Errno(libc::EINVAL)),
        }
    })
}

/// ioctl() with a number as the result.
pub fn ioctl(world: &VirtualWorld, fd: i32, request: u64) -> Answer<i32> {
    // The C libraries declare the request with different integer types.
    let request = request as libc::Ioctl;
    world.call(|host| {
        let (socket, stack, _) = host.parts(fd)?;
        let id = socket.conn();
        match request {
            libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD => {}
            SIOCATMARK => {
                let mark = id.and_then(|id| stack.conn_info(id)?.before_mark);
                return Ok(i32::from(mark == Some(0)));
            }
            _ => return Err(Errno(libc::ENOTTY)),
        }
        // Linux refuses these requests on a listener and returns 0 on a fresh socket.
        if matches!(socket.role, Role::Listening(_)) {
            return Err(Errno(libc::EINVAL));
        }
        let Some(id) = id else { return Ok(0) };
        Ok(match request {
            // The bytes before the urgent mark.
            libc::FIONREAD => {
                let before_mark = stack.conn_info(id).and_then(|info| info.before_mark);
                stack.readable(id).min(before_mark.map_or(usize::MAX, |bytes| bytes as usize)) as i32
            }
            libc::TIOCOUTQ => stack.conn_stats(id).map_or(0, |stats| {
                // A FIN occupies a sequence number and counts until it is acknowledged.
                let fin = matches!(stats.state, State::FinWait1 | State::LastAck | State::Closing);
                stats.send_queue as i32 + i32::from(fin)
            }),
            _ => stack.conn_info(id).map_or(0, |info| info.unsent as i32),
        })
    })
}

/// ioctl(FIONBIO).
pub fn set_nonblocking(world: &VirtualWorld, fd: i32, nonblocking: bool) -> Answer<()> {
    world.call(|host| {
        host.socket(fd)?.nonblocking = nonblocking;
        Ok(())
    })
}

/// poll(). `foreign` fills in an entry whose descriptor belongs to the kernel.
pub fn poll(
    world: &VirtualWorld,
    entries: &mut [libc::pollfd],
    timeout: i32,
    foreign: &mut dyn FnMut(&mut libc::pollfd),
) -> Answer<i32> {
    let ready = world.wait(duration(timeout), |host| {
        let ready = ready::poll(host, entries, foreign)?;
        Ok((ready > 0).then_some(ready))
    })?;
    Ok(ready.unwrap_or(0))
}

/// epoll_create().
pub fn epoll_create(world: &VirtualWorld, size: i32) -> Answer<i32> {
    if size <= 0 {
        return Err(Errno(libc::EINVAL));
    }
    world.call(|host| Ok(host.add(Descriptor::Epoll(Epoll::default()))))
}

/// epoll_ctl().
pub fn epoll_ctl(world: &VirtualWorld, epfd: i32, fd: i32, control: EpollControl) -> Answer<()> {
    world.call(|host| {
        if !host.knows(fd) {
            return Err(Errno(libc::EBADF));
        }
        if epfd == fd {
            return Err(Errno(libc::EINVAL));
        }
        // Epoll descriptors that watch each other in a circle would wake each other without end.
        if matches!(control, EpollControl::Add { .. }) && epoll::reaches(host, fd, epfd) {
            return Err(Errno(libc::ELOOP));
        }
        host.epoll(epfd)?.control(fd, control)
    })
}

/// epoll_wait(): returns pairs of events and user data.
pub fn epoll_wait(world: &VirtualWorld, epfd: i32, max: i32, timeout: i32) -> Answer<Vec<(u32, u64)>> {
    let max = usize::try_from(max).ok().filter(|max| *max > 0).ok_or(Errno(libc::EINVAL))?;
    let reported = world.wait(duration(timeout), |host| {
        let reported = epoll::wait(host, epfd, max)?;
        Ok((!reported.is_empty()).then_some(reported))
    })?;
    Ok(reported.unwrap_or_default())
}

/// setsockopt().
pub fn setsockopt(world: &VirtualWorld, fd: i32, level: i32, name: i32, value: &[u8]) -> Answer<()> {
    world.call(|host| crate::options::set(host, fd, level, name, value))
}

/// getsockopt(): returns at most `len` bytes.
pub fn getsockopt(world: &VirtualWorld, fd: i32, level: i32, name: i32, len: usize) -> Answer<Vec<u8>> {
    world.call(|host| crate::options::get(host, fd, level, name, len))
}

/// Returns the flags of SO_TIMESTAMPING among the control messages of a write.
pub fn stamping(control: &[Control]) -> Answer<Option<u32>> {
    let mut found = None;
    for one in control.iter().filter(|one| one.level == libc::SOL_SOCKET) {
        match (one.kind, one.data.first_chunk::<4>()) {
            (libc::SO_TIMESTAMPING, Some(flags)) => found = Some(u32::from_ne_bytes(*flags)),
            _ => return Err(Errno(libc::EINVAL)),
        }
    }
    Ok(found)
}
