//! System calls past the C library: of descriptors that are not ours. `close`, `getsockopt` and `sendfile`
//! must go this way, since their symbols are this library's own.

use std::ffi::{c_int, c_long};

use brisk_sockets::{Answer, Errno};

/// The error number of the last call that failed.
pub(super) fn last_errno() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// Sets the C library's `errno`.
pub(super) fn set_errno(errno: Errno) {
    // SAFETY: the location is this thread's own and always valid.
    unsafe { *libc::__errno_location() = errno.0 }
}

/// What a system call answered, as a value or an error.
pub(super) fn answer(returned: c_long) -> Answer<isize> {
    if returned < 0 { Err(last_errno()) } else { Ok(returned as isize) }
}

/// close() of a descriptor of the kernel.
pub(super) fn close(fd: c_int) -> Answer<isize> {
    // SAFETY: closing a descriptor touches no memory; the program asked for it.
    answer(unsafe { libc::syscall(libc::SYS_close, fd) })
}
