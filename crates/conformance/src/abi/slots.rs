//! The functions of the table: each converts C to values, makes the call, and converts the result back. A
//! call on a descriptor of the kernel (a pipe, a file) goes to the C library.
//!
//! Safety of every function here: the pointers are as for the system call of the same name.

use std::ffi::{c_int, c_long, c_longlong, c_uint, c_ulong, c_void};
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use brisk_tcp::stack::Rx;
use libc::{
    epoll_event, iovec, loff_t, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval,
};

use super::{memory, message, raw};
use brisk_sockets::EpollControl as Control;
use brisk_sockets::FIRST_FD;
use brisk_sockets::VirtualWorld;
use brisk_sockets::calls::{self, SendOptions};
use brisk_sockets::{Answer, Errno, Received};

type User = *mut c_void;

/// Maximum number of bytes in one read or write (Linux: MAX_RW_COUNT).
const MAX_BYTES: usize = 0x7fff_f000;
/// The error for a null pointer with a length.
const FAULT: Errno = Errno(libc::EFAULT);
const SPLICE_STEP: usize = 65_536;

fn is_ours(fd: c_int) -> bool {
    fd >= FIRST_FD
}

/// Makes a call and sets `errno` if it fails; catches a panic, which must not reach C.
pub(super) fn run_in(
    world: Option<&VirtualWorld>,
    call: impl FnOnce(&VirtualWorld) -> Answer<isize>,
) -> isize {
    let answer = match world {
        Some(world) => catch_unwind(AssertUnwindSafe(|| call(world))).unwrap_or(Err(Errno(libc::EIO))),
        None => Err(Errno(libc::EBADF)),
    };
    match answer {
        Ok(value) => value,
        Err(errno) => {
            raw::set_errno(errno);
            -1
        }
    }
}

fn run(user: User, call: impl FnOnce(&VirtualWorld) -> Answer<isize>) -> isize {
    // SAFETY: the table has a pointer to a world that is never freed; other pointers violate the contract.
    run_in(unsafe { user.cast::<VirtualWorld>().as_ref() }, call)
}

fn run_int(user: User, call: impl FnOnce(&VirtualWorld) -> Answer<i32>) -> c_int {
    run(user, |world| call(world).map(|value| value as isize)) as c_int
}

fn run_unit(user: User, call: impl FnOnce(&VirtualWorld) -> Answer<()>) -> c_int {
    run(user, |world| call(world).map(|()| 0)) as c_int
}

/// Returns the result of a call on a descriptor of the kernel. The call may have changed the state of a pipe,
/// so callers that wait for one check it again.
fn of_kernel<T>(user: User, returned: T) -> T {
    let errno = raw::last_errno();
    run(user, |world| world.call(|_| Ok(0)));
    raw::set_errno(errno);
    returned
}

/// The world is never freed: later calls close descriptors that a script left open.
pub(super) unsafe extern "C" fn free(_: User) {}

pub(super) unsafe extern "C" fn socket(user: User, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    run_int(user, |world| calls::socket(world, domain, kind, protocol))
}

pub(super) unsafe extern "C" fn bind(user: User, fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: see the module.
    run_unit(user, |world| calls::bind(world, fd, unsafe { memory::address(addr, len)? }))
}

pub(super) unsafe extern "C" fn listen(user: User, fd: c_int, backlog: c_int) -> c_int {
    run_unit(user, |world| calls::listen(world, fd, backlog))
}

pub(super) unsafe extern "C" fn accept(
    user: User,
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    run_int(user, |world| {
        let (accepted, remote) = calls::accept(world, fd)?;
        // SAFETY: see the module.
        unsafe { memory::put_address(addr, len, Some(remote)) }
        Ok(accepted)
    })
}

pub(super) unsafe extern "C" fn connect(
    user: User,
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: see the module.
    run_unit(user, |world| match unsafe { memory::is_unspecified(addr, len) } {
        true => calls::disconnect(world, fd),
        false => calls::connect(world, fd, unsafe { memory::address(addr, len)? }),
    })
}

/// recv() into one buffer.
///
/// # Safety
/// `to` is null or points to `len` writable bytes.
unsafe fn receive(
    world: &VirtualWorld,
    fd: c_int,
    to: *mut c_void,
    len: usize,
    flags: c_int,
) -> Answer<isize> {
    let received = take(world, fd, len, flags, to.is_null() && len > 0)?;
    // SAFETY: the caller's contract.
    unsafe { memory::put(to, len, &received.bytes) }
    Ok(received.count as isize)
}

/// Receives `len` bytes for memory of the caller. If that memory is `faulty`, the data stays in the socket
/// and the call fails; other results do not change.
fn take(world: &VirtualWorld, fd: c_int, len: usize, flags: c_int, faulty: bool) -> Answer<Received> {
    let flags = if faulty { flags | libc::MSG_PEEK } else { flags };
    let received = calls::receive(world, fd, len.min(MAX_BYTES), flags)?;
    // MSG_TRUNC discards data and needs no memory.
    if faulty && received.count > 0 && flags & libc::MSG_TRUNC == 0 { Err(FAULT) } else { Ok(received) }
}

pub(super) unsafe extern "C" fn read(user: User, fd: c_int, to: *mut c_void, len: size_t) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: see the module.
        return of_kernel(user, unsafe { libc::read(fd, to, len) });
    }
    // The kernel returns 0 from read() and readv() without bytes, without calling the socket.
    if len == 0 {
        return 0;
    }
    // SAFETY: see the module.
    run(user, |world| unsafe { receive(world, fd, to, len, 0) })
}

pub(super) unsafe extern "C" fn readv(user: User, fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: see the module.
        return of_kernel(user, unsafe { libc::readv(fd, vector, count) });
    }
    run(user, |world| {
        // SAFETY: see the module, here and below.
        let entries = unsafe { memory::entries(vector, count)? };
        let received = take(world, fd, memory::length(entries), 0, memory::is_faulty(entries))?;
        unsafe { memory::scatter(entries, &received.bytes) }
        Ok(received.count as isize)
    })
}

pub(super) unsafe extern "C" fn recv(
    user: User,
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: see the module.
    run(user, |world| unsafe { receive(world, fd, to, len, flags) })
}

pub(super) unsafe extern "C" fn recvfrom(
    user: User,
    fd: c_int,
    to: *mut c_void,
    len: size_t,
    flags: c_int,
    _: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    run(user, |world| {
        // SAFETY: see the module, here and below. TCP reports no sender.
        let count = unsafe { receive(world, fd, to, len, flags)? };
        unsafe { memory::put_address(std::ptr::null_mut(), from_len, None) }
        Ok(count)
    })
}

pub(super) unsafe extern "C" fn recvmsg(user: User, fd: c_int, header: *mut msghdr, flags: c_int) -> ssize_t {
    run(user, |world| {
        // SAFETY: see the module, here and below.
        let header = unsafe { header.as_mut() }.ok_or(FAULT)?;
        let entries = unsafe { memory::entries(header.msg_iov, header.msg_iovlen as i32)? };
        let received = take(world, fd, memory::length(entries), flags, memory::is_faulty(entries))?;
        unsafe { message::fill(header, &received)? }
        Ok(received.count as isize)
    })
}

/// Sends the caller's bytes, as send(). Linux accesses the memory last, so a fault is reported only if there
/// is no other error.
fn send_bytes(world: &VirtualWorld, fd: c_int, bytes: Answer<&[u8]>, options: SendOptions) -> Answer<isize> {
    match bytes {
        Ok(bytes) => calls::send(world, fd, bytes, options).map(|count| count as isize),
        Err(fault) => calls::send(world, fd, &[], options).and(Err(fault)),
    }
}

fn as_slice(bytes: &Answer<Vec<u8>>) -> Answer<&[u8]> {
    bytes.as_deref().map_err(|fault| *fault)
}

/// Returns the destination of a write, which only Fast Open uses.
///
/// # Safety
/// `addr` is null or points to `len` readable bytes.
unsafe fn destination(addr: *const sockaddr, len: socklen_t, flags: c_int) -> Answer<Option<SocketAddr>> {
    if addr.is_null() || len == 0 || flags & libc::MSG_FASTOPEN == 0 {
        return Ok(None);
    }
    // SAFETY: the caller's contract, here and below.
    if unsafe { memory::is_unspecified(addr, len) } {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    unsafe { memory::address(addr, len) }.map(Some)
}

pub(super) unsafe extern "C" fn write(user: User, fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: see the module.
        return of_kernel(user, unsafe { libc::write(fd, from, len) });
    }
    run(user, |world| {
        // SAFETY: see the module.
        send_bytes(world, fd, unsafe { memory::bytes(from, len.min(MAX_BYTES)) }, SendOptions::default())
    })
}

pub(super) unsafe extern "C" fn writev(user: User, fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: see the module.
        return of_kernel(user, unsafe { libc::writev(fd, vector, count) });
    }
    run(user, |world| {
        // SAFETY: see the module.
        let bytes = unsafe { memory::gather(memory::entries(vector, count)?) };
        send_bytes(world, fd, as_slice(&bytes), SendOptions::default())
    })
}

pub(super) unsafe extern "C" fn send(
    user: User,
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    run(user, |world| {
        // SAFETY: see the module.
        let bytes = unsafe { memory::bytes(from, len.min(MAX_BYTES)) };
        send_bytes(world, fd, bytes, SendOptions { flags, ..SendOptions::default() })
    })
}

pub(super) unsafe extern "C" fn sendto(
    user: User,
    fd: c_int,
    from: *const c_void,
    len: size_t,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> ssize_t {
    run(user, |world| {
        // SAFETY: see the module, here and below.
        let bytes = unsafe { memory::bytes(from, len.min(MAX_BYTES)) };
        let to = unsafe { destination(addr, addr_len, flags)? };
        send_bytes(world, fd, bytes, SendOptions { flags, to, stamping: None })
    })
}

pub(super) unsafe extern "C" fn sendmsg(
    user: User,
    fd: c_int,
    header: *const msghdr,
    flags: c_int,
) -> ssize_t {
    run(user, |world| {
        // SAFETY: see the module, here and below.
        let header = unsafe { header.as_ref() }.ok_or(FAULT)?;
        let entries = unsafe { memory::entries(header.msg_iov, header.msg_iovlen as i32)? };
        let stamping = calls::stamping(&unsafe { message::control(header)? })?;
        let to = unsafe { destination(header.msg_name.cast(), header.msg_namelen, flags)? };
        let bytes = unsafe { memory::gather(entries) };
        send_bytes(world, fd, as_slice(&bytes), SendOptions { flags, to, stamping })
    })
}

pub(super) unsafe extern "C" fn fcntl(user: User, fd: c_int, command: c_int, argument: c_long) -> c_int {
    if !is_ours(fd) {
        // SAFETY: see the module.
        return unsafe { libc::fcntl(fd, command, argument) };
    }
    run_int(user, |world| calls::fcntl(world, fd, command, argument))
}

pub(super) unsafe extern "C" fn ioctl(
    user: User,
    fd: c_int,
    request: c_ulong,
    argument: *mut c_void,
) -> c_int {
    if !is_ours(fd) {
        // SAFETY: see the module.
        return unsafe { libc::ioctl(fd, request, argument) };
    }
    run_unit(user, |world| {
        let argument = argument.cast::<c_int>();
        if argument.is_null() {
            return Err(FAULT);
        }
        // SAFETY: see the module: the argument of all known requests is an int.
        if request == libc::FIONBIO {
            return calls::set_nonblocking(world, fd, unsafe { *argument } != 0);
        }
        let value = calls::ioctl(world, fd, request)?;
        unsafe { *argument = value }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn close(user: User, fd: c_int) -> c_int {
    if !is_ours(fd) {
        return of_kernel(user, run(user, |_| raw::close(fd)) as c_int);
    }
    run_unit(user, |world| calls::close(world, fd))
}

pub(super) unsafe extern "C" fn shutdown(user: User, fd: c_int, how: c_int) -> c_int {
    run_unit(user, |world| calls::shutdown(world, fd, how))
}

pub(super) unsafe extern "C" fn getsockopt(
    user: User,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: see the module.
    run(user, |world| unsafe { getsockopt_of_ours(world, fd, level, name, value, len) }) as c_int
}

/// Returns an option of a socket of this library, as getsockopt().
///
/// # Safety
/// As for the system call.
pub(super) unsafe fn getsockopt_of_ours(
    world: &VirtualWorld,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Answer<isize> {
    if len.is_null() {
        return Err(FAULT);
    }
    // SAFETY: the caller's contract, here and below.
    let capacity = unsafe { *len };
    if capacity as i32 <= -1 {
        return Err(Errno(libc::EINVAL));
    }
    let found = calls::getsockopt(world, fd, level, name, capacity as usize)?;
    if value.is_null() && !found.is_empty() {
        return Err(FAULT);
    }
    unsafe {
        memory::put(value, capacity as usize, &found);
        *len = found.len() as socklen_t;
    }
    Ok(0)
}

pub(super) unsafe extern "C" fn setsockopt(
    user: User,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    run_unit(user, |world| {
        // SAFETY: see the module.
        let value = unsafe { memory::bytes(value, len as usize)? };
        calls::setsockopt(world, fd, level, name, value)
    })
}

pub(super) unsafe extern "C" fn poll(
    user: User,
    entries: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
) -> c_int {
    run_int(user, |world| {
        let entries = match entries.is_null() {
            true => &mut [],
            // SAFETY: see the module.
            false => unsafe { std::slice::from_raw_parts_mut(entries, count as usize) },
        };
        calls::poll(world, entries, timeout, &mut |entry| {
            // SAFETY: one entry that is ours to write.
            unsafe { libc::poll(entry, 1, 0) };
        })
    })
}

pub(super) unsafe extern "C" fn netdev_send(user: User, packet: *const c_void, len: size_t) -> c_int {
    // SAFETY: see the module.
    run_unit(user, |world| {
        let packet = unsafe { memory::bytes(packet, len)? };
        world.call(|host| host.arrive(packet, Rx::default()))
    })
}

/// Returns a packet, or zero bytes if no packet is expected, because packetdrill would repeat a failed call
/// without end.
pub(super) unsafe extern "C" fn netdev_receive(
    user: User,
    to: *mut c_void,
    len: *mut size_t,
    micros: *mut c_longlong,
) -> c_int {
    run_unit(user, |world| {
        if len.is_null() {
            return Err(FAULT);
        }
        let (at, packet) = world.next_packet().unwrap_or_default();
        // SAFETY: see the module.
        unsafe {
            memory::put(to, *len, &packet);
            *len = packet.len().min(*len);
            if let Some(micros) = micros.as_mut() {
                *micros = at as c_longlong;
            }
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn usleep(user: User, micros: c_uint) -> c_int {
    run_unit(user, |world| {
        world.advance(Duration::from_micros(u64::from(micros)));
        Ok(())
    })
}

pub(super) unsafe extern "C" fn gettimeofday(user: User, to: *mut timeval, _: *mut c_void) -> c_int {
    run_unit(user, |world| {
        let micros = world.time_of_day();
        // SAFETY: see the module.
        if let Some(to) = unsafe { to.as_mut() } {
            to.tv_sec = (micros / 1_000_000) as libc::time_t;
            to.tv_usec = (micros % 1_000_000) as libc::suseconds_t;
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn epoll_create(user: User, size: c_int) -> c_int {
    run_int(user, |world| calls::epoll_create(world, size))
}

pub(super) unsafe extern "C" fn epoll_ctl(
    user: User,
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    run_unit(user, |world| {
        // SAFETY: see the module; the structure is packed, so it is copied.
        let event = if event.is_null() { None } else { Some(unsafe { event.read_unaligned() }) };
        let requested = event.map(|event| (event.events, event.u64)).ok_or(FAULT);
        let control = match operation {
            libc::EPOLL_CTL_ADD => requested.map(|(events, data)| Control::Add { events, data })?,
            libc::EPOLL_CTL_MOD => requested.map(|(events, data)| Control::Change { events, data })?,
            libc::EPOLL_CTL_DEL => Control::Remove,
            _ => return Err(Errno(libc::EINVAL)),
        };
        calls::epoll_ctl(world, epfd, fd, control)
    })
}

pub(super) unsafe extern "C" fn epoll_wait(
    user: User,
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    run_int(user, |world| {
        let reported = calls::epoll_wait(world, epfd, max, timeout)?;
        for (index, (flags, data)) in reported.iter().enumerate() {
            // SAFETY: see the module: `reported` has at most `max` events.
            unsafe { events.add(index).write_unaligned(epoll_event { events: *flags, u64: *data }) }
        }
        Ok(reported.len() as i32)
    })
}

/// Pipes belong to the kernel.
pub(super) unsafe extern "C" fn pipe(_: User, fds: *mut c_int) -> c_int {
    // SAFETY: see the module.
    unsafe { libc::pipe(fds) }
}

/// Moves bytes between a socket of this library and a pipe of the kernel. The offsets must be zero or absent:
/// neither end supports offsets.
pub(super) unsafe extern "C" fn splice(
    user: User,
    from: c_int,
    from_at: *mut loff_t,
    to: c_int,
    to_at: *mut loff_t,
    len: size_t,
    flags: c_uint,
) -> c_int {
    run(user, |world| match (is_ours(from), is_ours(to)) {
        (true, false) => splice_out(world, from, to, len, flags),
        (false, true) => splice_in(world, from, to, len, flags),
        (true, true) => Err(Errno(libc::EINVAL)),
        (false, false) => {
            // packetdrill passes pointers to zero for no offset.
            // SAFETY: see the module, here and below.
            let none = |at: *mut loff_t| {
                if unsafe { at.as_ref() }.is_none_or(|at| *at == 0) { std::ptr::null_mut() } else { at }
            };
            raw::answer(unsafe { libc::splice(from, none(from_at), to, none(to_at), len, flags) } as c_long)
        }
    }) as c_int
}

/// Waits until a pipe of the kernel is ready for `events`, or at its end. Only calls through the table change
/// its state, so this waits like a call on a socket of this library: it fails if no other thread can end the
/// wait.
fn await_pipe(world: &VirtualWorld, fd: c_int, events: i16, flags: c_uint) -> Answer<()> {
    let limit = (flags & libc::SPLICE_F_NONBLOCK != 0).then_some(Duration::ZERO);
    let ready = world.wait(limit, |_| {
        let mut entry = pollfd { fd, events, revents: 0 };
        // SAFETY: one entry of ours.
        raw::answer(unsafe { libc::poll(&mut entry, 1, 0) }.into())?;
        Ok((entry.revents != 0).then_some(()))
    })?;
    ready.ok_or(Errno(libc::EAGAIN))
}

/// Reads as many bytes as the pipe accepts; the rest stays in the socket.
fn splice_out(world: &VirtualWorld, from: c_int, to: c_int, len: usize, flags: c_uint) -> Answer<isize> {
    let nonblocking = if flags & libc::SPLICE_F_NONBLOCK != 0 { libc::MSG_DONTWAIT } else { 0 };
    await_pipe(world, to, libc::POLLOUT, flags)?;
    let seen = calls::receive(world, from, len.min(SPLICE_STEP), libc::MSG_PEEK | nonblocking)?;
    if seen.bytes.is_empty() {
        return Ok(0);
    }
    let written = raw::fill_pipe(to, &seen.bytes)?;
    calls::receive(world, from, written as usize, libc::MSG_DONTWAIT)?;
    Ok(written)
}

/// Removes only the bytes that the socket accepts; the rest stays in the pipe.
fn splice_in(world: &VirtualWorld, from: c_int, to: c_int, len: usize, flags: c_uint) -> Answer<isize> {
    await_pipe(world, from, libc::POLLIN, flags)?;
    let bytes = raw::peek_pipe(from, len.min(SPLICE_STEP))?;
    if bytes.is_empty() {
        return Ok(0);
    }
    let more = if flags & libc::SPLICE_F_MORE != 0 { libc::MSG_MORE } else { 0 };
    let options = SendOptions { flags: more, ..SendOptions::default() };
    let sent = send_bytes(world, to, Ok(&bytes), options)?;
    raw::drain_pipe(from, sent as usize)?;
    Ok(sent)
}
