//! Small programs that the kernel runs on packets: classic BPF (`Documentation/networking/filter.rst`), and
//! its translation into eBPF (RFC 9669) for places that accept only eBPF ([`extended`]).
//!
//! Classic programs need no privilege; on most systems eBPF programs need CAP_BPF or CAP_SYS_ADMIN.

pub(crate) mod extended;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::sock_filter;

/// Loads into the accumulator: a byte, half word or word at a fixed offset of the packet; a byte or half word
/// at X plus an offset; a constant; the register X.
pub(crate) const LDB: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
pub(crate) const LDH: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
pub(crate) const LDW: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
pub(crate) const LDB_X: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_IND;
pub(crate) const LDH_X: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_IND;
pub(crate) const LD: u32 = libc::BPF_LD | libc::BPF_IMM;
pub(crate) const TXA: u32 = libc::BPF_MISC | libc::BPF_TXA;
/// Loads into X: a constant, the length of the IPv4 header at a fixed offset, the accumulator.
pub(crate) const LDX: u32 = libc::BPF_LDX | libc::BPF_IMM;
pub(crate) const LDX_IP: u32 = libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH;
pub(crate) const TAX: u32 = libc::BPF_MISC | libc::BPF_TAX;
/// Operations of the accumulator with X, and with a constant.
pub(crate) const XOR_X: u32 = libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X;
pub(crate) const MUL: u32 = libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K;
pub(crate) const LSH: u32 = libc::BPF_ALU | libc::BPF_LSH | libc::BPF_K;
pub(crate) const RSH: u32 = libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K;
/// Jumps if the accumulator is equal to a constant, greater, greater or equal, or has a bit in common with
/// it.
pub(crate) const JEQ: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
pub(crate) const JGT: u32 = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
pub(crate) const JGE: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
pub(crate) const JSET: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
/// Returns a constant, or the accumulator.
pub(crate) const RET: u32 = libc::BPF_RET | libc::BPF_K;
pub(crate) const RET_A: u32 = libc::BPF_RET | libc::BPF_A;

/// Result for a packet that a list decides about ([`extended::by_list`]); the client's hash is in the
/// accumulator. A packet socket without a list accepts the whole packet.
pub(crate) const CLIENT: u32 = 0x4_0002;

/// Returns an instruction that does not jump.
pub(crate) fn step(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Returns an instruction that skips the next `count` instructions unless the accumulator is `k`.
pub(crate) fn skip_unless(k: u32, count: u8) -> sock_filter {
    sock_filter { jf: count, ..step(JEQ, k) }
}

/// Returns an instruction that skips the next `count` instructions if the accumulator is `k`.
pub(crate) fn skip_if(k: u32, count: u8) -> sock_filter {
    sock_filter { jt: count, ..step(JEQ, k) }
}

/// Attaches a classic program to a socket by a socket option.
pub(crate) fn set_program(
    socket: BorrowedFd<'_>,
    level: i32,
    option: i32,
    program: &[sock_filter],
) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: the option takes a sock_fprog and its size; it and the instructions that it points to outlive
    // the call, and the kernel only reads them.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Offset at which a classic program reads the kernel's protocol of the frame, with [`LDW`].
pub(crate) const PROTOCOL: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL) as u32;
