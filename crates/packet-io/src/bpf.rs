//! Small programs that the kernel runs on packets: classic BPF (`Documentation/networking/filter.rst`), and its
//! translation into the extended one (RFC 9669) for who takes only that.
//!
//! Classic programs need no privilege, extended ones CAP_BPF or CAP_SYS_ADMIN on most systems.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::sock_filter;

/// Accumulator from a byte, a half word, a word at a fixed place of the packet; from a number; from the register X.
pub(crate) const LDB: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
pub(crate) const LDH: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
pub(crate) const LDW: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
pub(crate) const LD: u32 = libc::BPF_LD | libc::BPF_IMM;
pub(crate) const TXA: u32 = libc::BPF_MISC | libc::BPF_TXA;
/// The register X from a number, from the accumulator.
pub(crate) const LDX: u32 = libc::BPF_LDX | libc::BPF_IMM;
pub(crate) const TAX: u32 = libc::BPF_MISC | libc::BPF_TAX;
/// Accumulator and X; accumulator and a number.
pub(crate) const XOR_X: u32 = libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X;
pub(crate) const MUL: u32 = libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K;
pub(crate) const LSH: u32 = libc::BPF_ALU | libc::BPF_LSH | libc::BPF_K;
pub(crate) const RSH: u32 = libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K;
pub(crate) const JEQ: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
/// The answer is the accumulator.
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
    // SAFETY: the option takes a sock_fprog and its size; it and the instructions that it points to outlive the call,
    // and the kernel only reads them.
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

/// Loads a program as an extended one of the kind "socket filter".
///
/// # Errors
/// `InvalidInput` for an instruction without a translation, and what the kernel refuses.
pub(crate) fn load(program: &[sock_filter]) -> io::Result<OwnedFd> {
    let extended = extended(program).ok_or(io::ErrorKind::InvalidInput)?;
    let license = c"Apache-2.0";
    let attributes = Load {
        program_type: SOCKET_FILTER,
        count: extended.len() as u32,
        instructions: extended.as_ptr() as u64,
        license: license.as_ptr() as u64,
        rest: [0; 12],
    };
    // SAFETY: BPF_PROG_LOAD takes the attributes and their size; they and what they point to (instructions and a
    // string that ends in zero) outlive the call, and the kernel only reads them.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            PROG_LOAD,
            &raw const attributes,
            size_of_val(&attributes) as libc::c_uint,
        )
    };
    match i32::try_from(answer) {
        // SAFETY: the call has made this descriptor, and nobody else knows it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        Ok(_) | Err(_) => Err(io::Error::last_os_error()),
    }
}

/// `BPF_PROG_LOAD` and `BPF_PROG_TYPE_SOCKET_FILTER` of linux/bpf.h.
const PROG_LOAD: libc::c_long = 5;
const SOCKET_FILTER: u32 = 1;

/// The attributes of `BPF_PROG_LOAD`, as far as they are used.
#[repr(C)]
struct Load {
    program_type: u32,
    count: u32,
    instructions: u64,
    license: u64,
    rest: [u32; 12],
}

/// An instruction of RFC 9669.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Instruction {
    opcode: u8,
    registers: u8,
    offset: i16,
    imm: i32,
}

/// What stands for accumulator and X, where the kernel wants the packet, and where it brings it.
const A: u8 = 0;
const X: u8 = 7;
const PACKET: u8 = 6;
const ARGUMENT: u8 = 1;
/// Opcodes that classic BPF does not have.
const MOV32: u32 = libc::BPF_ALU | 0xB0;
const MOV64: u32 = 0x07 | 0xB0;
const JMP32: u32 = 0x06;
const JNE: u32 = 0x50;
const EXIT: u32 = libc::BPF_JMP | 0x90;

impl Instruction {
    fn new(opcode: u32, target: u8, source: u8, imm: u32) -> Instruction {
        let registers = if cfg!(target_endian = "big") { target << 4 | source } else { source << 4 | target };
        Instruction { opcode: opcode as u8, registers, offset: 0, imm: imm as i32 }
    }
}

/// One instruction for each, so that jumps stay as long as they are; `None` if one is not among those above.
fn extended(program: &[sock_filter]) -> Option<Vec<Instruction>> {
    let start = [
        Instruction::new(MOV64 | libc::BPF_X, PACKET, ARGUMENT, 0),
        // Nothing may be read before it was written.
        Instruction::new(MOV32, A, 0, 0),
        Instruction::new(MOV32, X, 0, 0),
    ];
    start.into_iter().map(Some).chain(program.iter().map(translated)).collect()
}

fn translated(classic: &sock_filter) -> Option<Instruction> {
    let (code, k) = (u32::from(classic.code), classic.k);
    Some(match code {
        LDB | LDH | LDW => Instruction::new(code, 0, 0, k),
        LD => Instruction::new(MOV32, A, 0, k),
        LDX => Instruction::new(MOV32, X, 0, k),
        TAX => Instruction::new(MOV32 | libc::BPF_X, X, A, 0),
        TXA => Instruction::new(MOV32 | libc::BPF_X, A, X, 0),
        XOR_X => Instruction::new(code, A, X, 0),
        MUL | LSH | RSH => Instruction::new(code, A, 0, k),
        JEQ => {
            let (condition, offset) = match (classic.jt, classic.jf) {
                (count, 0) => (libc::BPF_JEQ, count),
                (0, count) => (JNE, count),
                _ => return None,
            };
            Instruction { offset: offset.into(), ..Instruction::new(JMP32 | condition, A, 0, k) }
        }
        RET_A => Instruction::new(EXIT, 0, 0, 0),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_instruction_has_one_translation_and_others_have_none() {
        let program =
            [step(LDB, 0), skip_unless(0x45, 2), step(LD, 7), step(RET_A, 0), step(TXA, 0), step(RET_A, 0)];
        let extended = extended(&program).unwrap();
        assert_eq!(extended.len(), program.len() + 3);
        // RFC 9669 section 4.3: w0 != 0x45 goes on two instructions further.
        let jump = extended[4];
        assert_eq!((jump.opcode, jump.offset, jump.imm), (0x56, 2, 0x45));
        assert_eq!(translated(&skip_if(9, 3)).map(|jump| (jump.opcode, jump.offset)), Some((0x16, 3)));
        assert_eq!(translated(&sock_filter { jt: 1, jf: 1, ..step(JEQ, 0) }), None);
        assert_eq!(translated(&step(libc::BPF_ST, 0)), None);
        let error = load(&[step(libc::BPF_ST, 0)]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
