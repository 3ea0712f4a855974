//! The table of functions, and the symbol that fills it.

use std::ffi::{CStr, c_char, c_int, c_long, c_longlong, c_uint, c_ulong, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    epoll_event, iovec, loff_t, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval,
};

use super::slots;
use brisk_sockets::SoFlags;
use brisk_sockets::VirtualWorld;

type User = *mut c_void;

/// The table; the order of its fields is the ABI.
#[repr(C)]
#[derive(Debug)]
pub(super) struct PacketdrillInterface {
    userdata: User,
    free: unsafe extern "C" fn(User),
    socket: unsafe extern "C" fn(User, c_int, c_int, c_int) -> c_int,
    bind: unsafe extern "C" fn(User, c_int, *const sockaddr, socklen_t) -> c_int,
    listen: unsafe extern "C" fn(User, c_int, c_int) -> c_int,
    accept: unsafe extern "C" fn(User, c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    connect: unsafe extern "C" fn(User, c_int, *const sockaddr, socklen_t) -> c_int,
    read: unsafe extern "C" fn(User, c_int, *mut c_void, size_t) -> ssize_t,
    readv: unsafe extern "C" fn(User, c_int, *const iovec, c_int) -> ssize_t,
    recv: unsafe extern "C" fn(User, c_int, *mut c_void, size_t, c_int) -> ssize_t,
    recvfrom: unsafe extern "C" fn(
        User,
        c_int,
        *mut c_void,
        size_t,
        c_int,
        *mut sockaddr,
        *mut socklen_t,
    ) -> ssize_t,
    recvmsg: unsafe extern "C" fn(User, c_int, *mut msghdr, c_int) -> ssize_t,
    write: unsafe extern "C" fn(User, c_int, *const c_void, size_t) -> ssize_t,
    writev: unsafe extern "C" fn(User, c_int, *const iovec, c_int) -> ssize_t,
    send: unsafe extern "C" fn(User, c_int, *const c_void, size_t, c_int) -> ssize_t,
    sendto: unsafe extern "C" fn(
        User,
        c_int,
        *const c_void,
        size_t,
        c_int,
        *const sockaddr,
        socklen_t,
    ) -> ssize_t,
    sendmsg: unsafe extern "C" fn(User, c_int, *const msghdr, c_int) -> ssize_t,
    /// Variadic in C, with at most one more argument, which callers pass as the fourth parameter.
    fcntl: unsafe extern "C" fn(User, c_int, c_int, c_long) -> c_int,
    /// Variadic like `fcntl`.
    ioctl: unsafe extern "C" fn(User, c_int, c_ulong, *mut c_void) -> c_int,
    close: unsafe extern "C" fn(User, c_int) -> c_int,
    shutdown: unsafe extern "C" fn(User, c_int, c_int) -> c_int,
    getsockopt: unsafe extern "C" fn(User, c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int,
    setsockopt: unsafe extern "C" fn(User, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    poll: unsafe extern "C" fn(User, *mut pollfd, nfds_t, c_int) -> c_int,
    netdev_send: unsafe extern "C" fn(User, *const c_void, size_t) -> c_int,
    netdev_receive: unsafe extern "C" fn(User, *mut c_void, *mut size_t, *mut c_longlong) -> c_int,
    usleep: unsafe extern "C" fn(User, c_uint) -> c_int,
    gettimeofday: unsafe extern "C" fn(User, *mut timeval, *mut c_void) -> c_int,
    epoll_create: unsafe extern "C" fn(User, c_int) -> c_int,
    epoll_ctl: unsafe extern "C" fn(User, c_int, c_int, c_int, *mut epoll_event) -> c_int,
    epoll_wait: unsafe extern "C" fn(User, c_int, *mut epoll_event, c_int, c_int) -> c_int,
    pipe: unsafe extern "C" fn(User, *mut c_int) -> c_int,
    splice: unsafe extern "C" fn(User, c_int, *mut loff_t, c_int, *mut loff_t, size_t, c_uint) -> c_int,
}

const _: () = assert!(size_of::<PacketdrillInterface>() == 33 * 8, "33 pointers are the ABI");

/// The world of the table that was filled last, for the preloaded symbols, which get no pointer.
static WORLD: AtomicPtr<VirtualWorld> = AtomicPtr::new(std::ptr::null_mut());

/// Returns the world, once packetdrill has loaded the library.
#[cfg(not(test))]
pub(super) fn world() -> Option<&'static VirtualWorld> {
    // SAFETY: null, or a world that is never freed.
    unsafe { WORLD.load(Ordering::Acquire).as_ref() }
}

/// Fills the table. `so_flags` is the value of `--so_flags`, or null.
///
/// Invalid flags end the program with one line, because the interface cannot report them.
///
/// # Safety
/// `ifc` points to a table, `so_flags` is null or a C string.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn packetdrill_interface_init(
    so_flags: *const c_char,
    ifc: *mut PacketdrillInterface,
) {
    let text = if so_flags.is_null() {
        String::new()
    } else {
        // SAFETY: the caller's contract.
        unsafe { CStr::from_ptr(so_flags) }.to_string_lossy().into_owned()
    };
    let flags = SoFlags::parse(&text).unwrap_or_else(|error| {
        eprintln!("brisk-conformance: --so_flags: {error}");
        std::process::exit(1);
    });
    // The world is never freed, because descriptors are closed after everything else has ended.
    let world = Box::into_raw(Box::new(VirtualWorld::new(flags)));
    WORLD.store(world, Ordering::Release);
    // SAFETY: the caller's contract; the overwritten table is plain memory of the caller.
    unsafe { ifc.write(table(world.cast())) }
}

fn table(userdata: User) -> PacketdrillInterface {
    PacketdrillInterface {
        userdata,
        free: slots::free,
        socket: slots::socket,
        bind: slots::bind,
        listen: slots::listen,
        accept: slots::accept,
        connect: slots::connect,
        read: slots::read,
        readv: slots::readv,
        recv: slots::recv,
        recvfrom: slots::recvfrom,
        recvmsg: slots::recvmsg,
        write: slots::write,
        writev: slots::writev,
        send: slots::send,
        sendto: slots::sendto,
        sendmsg: slots::sendmsg,
        fcntl: slots::fcntl,
        ioctl: slots::ioctl,
        close: slots::close,
        shutdown: slots::shutdown,
        getsockopt: slots::getsockopt,
        setsockopt: slots::setsockopt,
        poll: slots::poll,
        netdev_send: slots::netdev_send,
        netdev_receive: slots::netdev_receive,
        usleep: slots::usleep,
        gettimeofday: slots::gettimeofday,
        epoll_create: slots::epoll_create,
        epoll_ctl: slots::epoll_ctl,
        epoll_wait: slots::epoll_wait,
        pipe: slots::pipe,
        splice: slots::splice,
    }
}
