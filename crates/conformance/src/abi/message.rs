//! `struct msghdr`: vectors, addresses and control messages.

use brisk_sockets::Answer;
use brisk_sockets::control;
use brisk_sockets::{Control, Received};

use super::memory;

/// Reads the control messages of a write.
///
/// # Safety
/// The header's control buffer has the stated length.
pub(super) unsafe fn control(header: &libc::msghdr) -> Answer<Vec<Control>> {
    // SAFETY: the caller's contract.
    control::parse(unsafe { memory::bytes(header.msg_control, header.msg_controllen)? })
}

/// Writes the results of recvmsg().
///
/// # Safety
/// The header and all of its pointers are as for recvmsg().
pub(super) unsafe fn fill(header: &mut libc::msghdr, received: &Received) -> Answer<()> {
    // SAFETY: the caller's contract, here and below.
    let entries = unsafe { memory::entries(header.msg_iov, header.msg_iovlen as i32)? };
    unsafe { memory::scatter(entries, &received.bytes) }
    let (written, truncated) = control::write(&received.control, header.msg_controllen);
    unsafe { memory::put(header.msg_control, header.msg_controllen, &written) }
    header.msg_controllen = written.len();
    header.msg_flags = received.flags | truncated;
    header.msg_namelen = 0;
    Ok(())
}
