//! The kernel's sockets, which block as in any program.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use brisk_packet_io::{message, sockopt};
use brisk_sockets::{Answer, Control, EpollControl, Errno, control};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::{SocketFlags, accept_with, connect_unspec};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::run::request::{Reply, Request, System};

/// Buffer for control messages, bytes.
const CONTROL_CAPACITY: usize = 1024;

const MAX_EVENTS: usize = 1024;

pub(super) struct KernelSystem {
    /// Open descriptors, by the script's number.
    table: Mutex<BTreeMap<i32, Arc<OwnedFd>>>,
    /// Initial congestion control of sockets.
    congestion: &'static str,
}

fn refused(error: &io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

impl KernelSystem {
    pub(super) fn new(congestion: &'static str) -> KernelSystem {
        KernelSystem { table: Mutex::default(), congestion }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<i32, Arc<OwnedFd>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, fd: i32) -> Answer<Arc<OwnedFd>> {
        self.lock().get(&fd).cloned().ok_or(Errno(libc::EBADF))
    }

    fn add(&self, fd: OwnedFd) -> i32 {
        let number = fd.as_raw_fd();
        self.lock().insert(number, Arc::new(fd));
        number
    }

    fn with(&self, fd: i32, call: impl FnOnce(&OwnedFd) -> io::Result<Reply>) -> Answer<Reply> {
        call(self.get(fd)?.as_ref()).map_err(|error| refused(&error))
    }

    fn open(&self, domain: i32, kind: i32, protocol: i32) -> io::Result<Reply> {
        let socket = Socket::new(Domain::from(domain), Type::from(kind), Some(Protocol::from(protocol)))?;
        let congestion = self.congestion.as_bytes();
        sockopt::set(socket.as_fd(), libc::SOL_TCP, libc::TCP_CONGESTION, congestion)?;
        Ok(Reply::of(self.add(socket.into())))
    }

    fn wait(&self, epfd: i32, max: i32, timeout: i32) -> Answer<Reply> {
        let max = usize::try_from(max).ok().filter(|max| *max > 0).ok_or(Errno(libc::EINVAL))?;
        let max = max.min(MAX_EVENTS);
        self.with(epfd, |fd| {
            let mut events: Vec<epoll::Event> = Vec::with_capacity(max);
            let count =
                epoll::wait(fd, rustix::buffer::spare_capacity(&mut events), timespec(timeout).as_ref())?;
            let reported = events.iter().map(|event| {
                // The structure is packed, so its fields are copied.
                let (flags, data) = (event.flags, event.data);
                (flags.bits(), data.u64())
            });
            Ok(Reply { events: reported.collect(), ..Reply::of(count as i64) })
        })
    }

    fn poll(&self, asked: &[(i32, i16)], timeout: i32) -> Answer<Reply> {
        let fds: Vec<Option<Arc<OwnedFd>>> = asked.iter().map(|(fd, _)| self.get(*fd).ok()).collect();
        // Descriptors that the script has not opened belong to this process: the kernel must not poll them.
        let open = fds.iter().zip(asked).filter_map(|(fd, (_, events))| Some((fd.as_ref()?, *events)));
        let mut entries: Vec<PollFd<'_>> =
            open.map(|(fd, events)| PollFd::new(fd, PollFlags::from_bits_retain(events as u16))).collect();
        let closed = asked.iter().zip(&fds).filter(|((fd, _), known)| *fd >= 0 && known.is_none()).count();
        let limit = if closed > 0 { Some(Timespec { tv_sec: 0, tv_nsec: 0 }) } else { timespec(timeout) };
        let count = poll(&mut entries, limit.as_ref()).map_err(|error| Errno(error.raw_os_error()))?;
        let mut found = entries.iter().map(|entry| entry.revents().bits() as i16);
        let ready = fds.iter().zip(asked).map(|(known, (fd, _))| match known {
            Some(_) => found.next().unwrap_or(0),
            None if *fd < 0 => 0,
            None => libc::POLLNVAL,
        });
        Ok(Reply { ready: ready.collect(), ..Reply::of((count + closed) as i64) })
    }
}

/// Converts milliseconds to a timeout; a negative number means none.
fn timespec(millis: i32) -> Option<Timespec> {
    let millis = i64::from(u32::try_from(millis).ok()?);
    Some(Timespec { tv_sec: millis / 1000, tv_nsec: millis % 1000 * 1_000_000 })
}

fn receive(fd: &OwnedFd, len: usize, flags: i32) -> io::Result<Reply> {
    let (mut bytes, mut capacity) = (vec![0; len], [0; CONTROL_CAPACITY]);
    let received = message::receive(fd.as_fd(), &mut bytes, &mut capacity, flags)?;
    // MSG_TRUNC may report more bytes than fit the buffer.
    bytes.truncate(received.len);
    let control = control::parse(&capacity[..received.control_len]).unwrap_or_default();
    Ok(Reply { bytes, control, flags: received.flags, ..Reply::of(received.len as i64) })
}

fn send(
    fd: &OwnedFd,
    data: &[u8],
    flags: i32,
    to: Option<SocketAddr>,
    control: &[Control],
) -> io::Result<Reply> {
    let to = to.map(Into::into);
    let (control, _) = control::write(control, CONTROL_CAPACITY);
    let flags = flags | libc::MSG_NOSIGNAL;
    Ok(Reply::of(message::send(fd.as_fd(), data, flags, to.as_ref(), &control)? as i64))
}

fn shut(fd: &OwnedFd, how: i32) -> io::Result<()> {
    let how = match how {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        libc::SHUT_RDWR => Shutdown::Both,
        _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
    };
    SockRef::from(fd).shutdown(how)
}

/// Calls fcntl(F_GETFL) or fcntl(F_SETFL).
fn flags_of(fd: &OwnedFd, command: i32, argument: i32) -> io::Result<Reply> {
    match command {
        libc::F_GETFL => Ok(Reply::of(i64::from(fcntl_getfl(fd)?.bits()))),
        libc::F_SETFL => {
            fcntl_setfl(fd, OFlags::from_bits_retain(argument as u32))?;
            Ok(Reply::default())
        }
        _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}

fn change_watch(epfd: &OwnedFd, fd: &OwnedFd, control: EpollControl) -> io::Result<Reply> {
    let flags = EventFlags::from_bits_retain;
    match control {
        EpollControl::Add { events, data } => epoll::add(epfd, fd, EventData::new_u64(data), flags(events)),
        EpollControl::Change { events, data } => {
            epoll::modify(epfd, fd, EventData::new_u64(data), flags(events))
        }
        EpollControl::Remove => epoll::delete(epfd, fd),
    }?;
    Ok(Reply::default())
}

fn own_address(fd: &OwnedFd) -> io::Result<Reply> {
    let addr: Option<SocketAddr> = SockRef::from(fd).local_addr()?.as_socket();
    Ok(Reply { addr, ..Reply::default() })
}

impl System for KernelSystem {
    fn call(&self, request: Request) -> Answer<Reply> {
        let done = |()| Reply::default();
        match request {
            Request::Socket { domain, kind, protocol } => {
                self.open(domain, kind, protocol).map_err(|error| refused(&error))
            }
            Request::Bind { fd, addr } => self.with(fd, |fd| SockRef::from(fd).bind(&addr.into()).map(done)),
            Request::Listen { fd, backlog } => {
                self.with(fd, |fd| SockRef::from(fd).listen(backlog).map(done))
            }
            Request::Accept { fd, flags } => self.with(fd, |fd| {
                let flags = SocketFlags::from_bits_retain(flags as u32) | SocketFlags::CLOEXEC;
                Ok(Reply::of(self.add(accept_with(fd, flags)?)))
            }),
            Request::Connect { fd, addr: Some(addr) } => {
                self.with(fd, |fd| SockRef::from(fd).connect(&addr.into()).map(done))
            }
            Request::Connect { fd, addr: None } => self.with(fd, |fd| Ok(connect_unspec(fd).map(done)?)),
            Request::Name { fd } => self.with(fd, own_address),
            Request::Receive { fd, len, flags } => self.with(fd, |fd| receive(fd, len, flags)),
            Request::Send { fd, data, flags, to, control } => {
                self.with(fd, |fd| send(fd, &data, flags, to, &control))
            }
            Request::Shutdown { fd, how } => self.with(fd, |fd| shut(fd, how).map(done)),
            Request::Close { fd } => {
                self.lock().remove(&fd).ok_or(Errno(libc::EBADF))?;
                Ok(Reply::default())
            }
            Request::SetOption { fd, level, name, value } => {
                self.with(fd, |fd| sockopt::set(fd.as_fd(), level, name, &value).map(done))
            }
            Request::GetOption { fd, level, name, capacity } => self.with(fd, |fd| {
                Ok(Reply { bytes: sockopt::get(fd.as_fd(), level, name, capacity)?, ..Reply::default() })
            }),
            Request::Fcntl { fd, command, argument } => self.with(fd, |fd| flags_of(fd, command, argument)),
            Request::Ioctl { fd, request } => {
                self.with(fd, |fd| sockopt::request(fd.as_fd(), request).map(Reply::of))
            }
            Request::Poll { entries, timeout } => self.poll(&entries, timeout),
            Request::EpollCreate { size } => match size {
                ..=0 => Err(Errno(libc::EINVAL)),
                _ => epoll::create(CreateFlags::CLOEXEC)
                    .map(|fd| Reply::of(self.add(fd)))
                    .map_err(|error| Errno(error.raw_os_error())),
            },
            Request::EpollControl { epfd, fd, control } => {
                let watched = self.get(fd)?;
                self.with(epfd, |epfd| change_watch(epfd, &watched, control))
            }
            Request::EpollWait { epfd, max, timeout } => self.wait(epfd, max, timeout),
        }
    }

    /// Shuts the socket down, so that a call that blocks on it returns.
    fn hang_up(&self) {
        for fd in self.lock().values() {
            let _ = SockRef::from(fd.as_ref()).shutdown(Shutdown::Both);
        }
    }
}
