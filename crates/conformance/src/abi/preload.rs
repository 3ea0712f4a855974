//! Symbols that replace the C library's when this library is in `LD_PRELOAD`: packetdrill closes leftover
//! descriptors, reads `TCP_INFO` and calls `sendfile` without the table. Calls for other descriptors go to
//! the kernel unchanged.

use std::ffi::{c_int, c_void};

use libc::{off_t, size_t, socklen_t, ssize_t};

use super::{raw, slots, table};
use brisk_sockets::Answer;
use brisk_sockets::FIRST_FD;
use brisk_sockets::calls::{self, SendOptions};

const STEP: usize = 65_536;

fn answer(answer: Answer<isize>) -> isize {
    answer.unwrap_or_else(|errno| {
        raw::set_errno(errno);
        -1
    })
}

/// close().
///
/// # Safety
/// None beyond the system call's.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn close(fd: c_int) -> c_int {
    if fd < FIRST_FD {
        return answer(raw::close(fd)) as c_int;
    }
    slots::run_in(table::world(), |world| calls::close(world, fd).map(|()| 0)) as c_int
}

/// getsockopt().
///
/// # Safety
/// `value` and `len` are as for the system call.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if fd < FIRST_FD {
        // SAFETY: the caller's contract, here and below.
        return answer(unsafe { kernel_getsockopt(fd, level, name, value, len) }) as c_int;
    }
    slots::run_in(table::world(), |world| unsafe {
        slots::getsockopt_of_ours(world, fd, level, name, value, len)
    }) as c_int
}

/// Sends a file to a socket of this library or to a descriptor of the kernel, as sendfile().
///
/// # Safety
/// `offset` is as for the system call.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn sendfile(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    if out < FIRST_FD {
        // SAFETY: the caller's contract.
        return answer(unsafe { kernel_sendfile(out, from, offset, count) });
    }
    slots::run_in(table::world(), |world| {
        // SAFETY: the caller's contract.
        let mut at = unsafe { offset.as_ref() }.copied();
        let mut sent = 0;
        while sent < count {
            let chunk = read_at(from, at, (count - sent).min(STEP))?;
            if chunk.is_empty() {
                break;
            }
            let flags = if sent + chunk.len() < count { libc::MSG_MORE } else { 0 };
            let taken = match calls::send(world, out, &chunk, SendOptions { flags, ..SendOptions::default() })
            {
                Ok(taken) => taken,
                Err(_) if sent > 0 => break,
                Err(error) => return Err(error),
            };
            sent += taken;
            at = at.map(|at| at + taken as off_t);
            if taken < chunk.len() {
                break;
            }
        }
        // SAFETY: the caller's contract.
        if let (Some(offset), Some(at)) = (unsafe { offset.as_mut() }, at) {
            *offset = at;
        }
        Ok(sent as isize)
    })
}

/// getsockopt() for a descriptor of the kernel.
///
/// # Safety
/// `value` and `len` are as for the system call.
unsafe fn kernel_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut libc::socklen_t,
) -> Answer<isize> {
    // SAFETY: the caller's contract is the system call's.
    raw::answer(unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value, len) })
}

/// sendfile() between descriptors of the kernel.
///
/// # Safety
/// `offset` is as for the system call.
unsafe fn kernel_sendfile(out: c_int, from: c_int, offset: *mut libc::off_t, count: usize) -> Answer<isize> {
    // SAFETY: the caller's contract is the system call's.
    raw::answer(unsafe { libc::syscall(libc::SYS_sendfile, out, from, offset, count) })
}

/// Reads bytes of a file, at an offset or at its own position.
fn read_at(fd: c_int, at: Option<off_t>, len: usize) -> Answer<Vec<u8>> {
    let mut buffer = vec![0u8; len];
    let to = buffer.as_mut_ptr().cast();
    // SAFETY: the buffer is ours and has `len` bytes.
    let read = match at {
        Some(at) => unsafe { libc::pread(fd, to, len, at) },
        None => unsafe { libc::read(fd, to, len) },
    };
    let read = usize::try_from(read).map_err(|_: std::num::TryFromIntError| raw::last_errno())?;
    buffer.truncate(read);
    Ok(buffer)
}
