//! Small programs that the kernel runs on packets: classic BPF (`Documentation/networking/filter.rst`), and
//! its translation into the extended one (RFC 9669) for who takes only that ([`extended`]).
//!
//! Classic programs need no privilege, extended ones CAP_BPF or CAP_SYS_ADMIN on most systems.

pub(crate) mod extended;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::sock_filter;

/// Accumulator from a byte, a half word, a word at a fixed place of the packet; a byte and a half word from X
/// on; from a number; from the register X.
pub(crate) const LDB: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
pub(crate) const LDH: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
pub(crate) const LDW: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
pub(crate) const LDB_X: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_IND;
pub(crate) const LDH_X: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_IND;
pub(crate) const LD: u32 = libc::BPF_LD | libc::BPF_IMM;
pub(crate) const TXA: u32 = libc::BPF_MISC | libc::BPF_TXA;
/// The register X from a number, from the length of an IPv4 header at a fixed place, from the accumulator.
pub(crate) const LDX: u32 = libc::BPF_LDX | libc::BPF_IMM;
pub(crate) const LDX_IP: u32 = libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH;
pub(crate) const TAX: u32 = libc::BPF_MISC | libc::BPF_TAX;
/// Accumulator and X; accumulator and a number.
pub(crate) const XOR_X: u32 = libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X;
pub(crate) const MUL: u32 = libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K;
pub(crate) const LSH: u32 = libc::BPF_ALU | libc::BPF_LSH | libc::BPF_K;
pub(crate) const RSH: u32 = libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K;
/// Goes on elsewhere if the accumulator is a number, greater, not less, has one of its bits.
pub(crate) const JEQ: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
pub(crate) const JGT: u32 = libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K;
pub(crate) const JGE: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
pub(crate) const JSET: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
/// The answer is a number, the accumulator.
pub(crate) const RET: u32 = libc::BPF_RET | libc::BPF_K;
pub(crate) const RET_A: u32 = libc::BPF_RET | libc::BPF_A;

/// An instruction that goes on with the next one.
pub(crate) fn step(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Goes on behind the next `count` instructions unless the accumulator is `k`.
pub(crate) fn skip_unless(k: u32, count: u8) -> sock_filter {
    sock_filter { jf: count, ..step(JEQ, k) }
}

/// Goes on behind the next `count` instructions if the accumulator is `k`.
pub(crate) fn skip_if(k: u32, count: u8) -> sock_filter {
    sock_filter { jt: count, ..step(JEQ, k) }
}

/// Gives a socket a classic program by an option that takes one.
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

/// Where a classic program finds what the frame carries, as the kernel has it: [`LDW`] from here.
pub(crate) const PROTOCOL: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL) as u32;
