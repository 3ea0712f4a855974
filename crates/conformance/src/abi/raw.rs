//! System calls on the kernel's descriptors without the C library: this library defines the symbols `close`,
//! `getsockopt` and `sendfile` itself.

use std::ffi::{c_int, c_long};

use brisk_sockets::{Answer, Errno};

/// Returns the error number of the last failed call.
pub(super) fn last_errno() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// Sets the C library's `errno`.
pub(super) fn set_errno(errno: Errno) {
    // SAFETY: the location is this thread's own and always valid.
    unsafe { *libc::__errno_location() = errno.0 }
}

/// Converts the result of a system call to a value or an error.
pub(super) fn answer(returned: c_long) -> Answer<isize> {
    if returned < 0 { Err(last_errno()) } else { Ok(returned as isize) }
}

/// Closes a descriptor of the kernel, as close().
pub(super) fn close(fd: c_int) -> Answer<isize> {
    // SAFETY: closing a descriptor touches no memory; the program asked for it.
    answer(unsafe { libc::syscall(libc::SYS_close, fd) })
}

/// A descriptor of the kernel that is closed on drop.
struct Owned(c_int);

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = close(self.0);
    }
}

/// Writes as many bytes into a pipe as fit without blocking.
pub(super) fn fill_pipe(pipe: c_int, bytes: &[u8]) -> Answer<isize> {
    // SAFETY, here and below: this function owns the memory, and all descriptors except `pipe`. A write() to
    // a pipe would block until all bytes fit; splice() moves only those that fit.
    let file =
        Owned(answer(unsafe { libc::memfd_create(c"splice".as_ptr(), libc::MFD_CLOEXEC) }.into())? as c_int);
    answer(unsafe { libc::pwrite(file.0, bytes.as_ptr().cast(), bytes.len(), 0) } as c_long)?;
    let mut at = 0;
    let flags = libc::SPLICE_F_NONBLOCK;
    answer(unsafe { libc::splice(file.0, &mut at, pipe, std::ptr::null_mut(), bytes.len(), flags) } as c_long)
}

/// Returns the content of a pipe, at most `max` bytes, without removing it.
pub(super) fn peek_pipe(pipe: c_int, max: usize) -> Answer<Vec<u8>> {
    let mut ends = [0; 2];
    // SAFETY, here and below: as in `fill_pipe`.
    answer(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }.into())?;
    let [read, write] = ends.map(Owned);
    let held = answer(unsafe { libc::tee(pipe, write.0, max, libc::SPLICE_F_NONBLOCK) } as c_long)? as usize;
    drop(write);
    let mut bytes = vec![0; held];
    let mut filled = 0;
    while filled < held {
        let to = bytes[filled..].as_mut_ptr().cast();
        match answer(unsafe { libc::read(read.0, to, held - filled) } as c_long)? {
            0 => break,
            count => filled += count as usize,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Removes the next `len` bytes from a pipe that has at least this many.
pub(super) fn drain_pipe(pipe: c_int, len: usize) -> Answer<()> {
    let mut bytes = vec![0u8; len];
    // SAFETY: the buffer is ours.
    answer(unsafe { libc::read(pipe, bytes.as_mut_ptr().cast(), len) } as c_long).map(|_| ())
}
