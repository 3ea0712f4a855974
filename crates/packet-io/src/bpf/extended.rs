//! eBPF programs (RFC 9669): translated from classic BPF, loaded, and attached to an interface.

mod system;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::sock_filter;

#[cfg(test)]
pub(crate) use system::answer;
pub(crate) use system::{
    XdpMode, load, put_socket, put_word, remove_word, run_on_frames, run_on_ingress, socket_map, word_map,
};

use super::{
    CLIENT, JEQ, JGE, JGT, JSET, LD, LDB, LDB_X, LDH, LDH_X, LDW, LDX, LDX_IP, LSH, MUL, PROTOCOL, RET,
    RET_A, RSH, TAX, TXA, XOR_X,
};
use crate::sockopt;

/// Program types (`bpf_prog_type` of linux/bpf.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    SocketFilter = 1,
    /// Decides about a frame that enters or leaves an interface.
    SchedCls = 3,
    /// Decides about a frame before the kernel processes it.
    Xdp = 6,
}

/// How a program reads the bytes of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FrameAccess {
    /// With the legacy packet instructions (`BPF_ABS`, `BPF_IND`), which read a socket buffer and check its
    /// length.
    Buffer,
    /// In the frame's memory ([`Kind::Xdp`]): the kernel requires a comparison with the end of the frame
    /// before each read.
    InPlace,
}

/// Verdicts on a frame: pass it to the next program and then to the kernel (`TCX_NEXT`), or drop it
/// (`TCX_DROP`).
const NEXT: u32 = u32::MAX;
const DROP: u32 = 2;
/// `XDP_PASS`: the kernel processes the frame as if there were no program.
const PASS: u32 = 2;
/// Functions of the kernel (`bpf-helpers(7)`).
const LOOKUP: u32 = 1;
const CLONE_REDIRECT: u32 = 13;
const REDIRECT: u32 = 23;
const CHANGE_HEAD: u32 = 43;
const REDIRECT_MAP: u32 = 51;
const REDIRECT_NEIGH: u32 = 152;

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Instruction {
    opcode: u8,
    registers: u8,
    offset: i16,
    imm: i32,
}

/// Registers: the accumulator; X; the program's context, saved because calls overwrite their arguments; the
/// first argument; a spare one.
const A: u8 = 0;
const X: u8 = 7;
const PACKET: u8 = 6;
const FIRST: u8 = 1;
const SPARE: u8 = 8;
/// End of the program's stack.
const STACK: u8 = 10;
/// Registers for frames that are read in place: start and end of the frame, end of the read, and address of a
/// read relative to X.
const DATA: u8 = 2;
const END: u8 = 3;
const LIMIT: u8 = 4;
const PLACE: u8 = 5;
/// Opcodes of eBPF, and classic ones that only the translation adds.
const MOV32: u32 = libc::BPF_ALU | 0xB0;
const MOV64: u32 = 0x07 | 0xB0;
const AND32: u32 = libc::BPF_ALU | libc::BPF_AND;
const ADD64: u32 = 0x07;
/// Bits in the opcode of a load that state the number of bytes.
const SIZE: u32 = 0x18;
const LOAD_MAP: u32 = 0x18;
/// Source of a [`LOAD_MAP`] whose constant is the descriptor of a map.
const MAP_DESCRIPTOR: u8 = 1;
/// 64-bit jumps: if less or equal; if equal.
const JLE: u32 = libc::BPF_JMP | 0xB0;
const JEQ64: u32 = libc::BPF_JMP | libc::BPF_JEQ;
const STORE: u32 = libc::BPF_STX | libc::BPF_W | libc::BPF_MEM;
const LOAD: u32 = libc::BPF_LDX | libc::BPF_W | libc::BPF_MEM;
const TO_BIG_ENDIAN: u32 = libc::BPF_ALU | 0xD8;
const JMP32: u32 = 0x06;
const JA: u32 = libc::BPF_JMP | libc::BPF_JA;
const JNE: u32 = JMP32 | 0x50;
const CALL: u32 = libc::BPF_JMP | 0x80;
const EXIT: u32 = libc::BPF_JMP | 0x90;
/// Offset of the protocol in `struct __sk_buff`, in network byte order.
const SKB_PROTOCOL: i16 = 16;
/// Offsets of the frame's start, its end and its receive queue in `struct xdp_md`.
const XDP_DATA: i16 = 0;
const XDP_END: i16 = 4;
const XDP_QUEUE: i16 = 16;
const ETHERNET_HEADER: u32 = 14;
const ETHERNET_PROTOCOL: u32 = 12;

impl Instruction {
    fn new(opcode: u32, target: u8, source: u8, imm: u32) -> Instruction {
        let registers = if cfg!(target_endian = "big") { target << 4 | source } else { source << 4 | target };
        Instruction { opcode: opcode as u8, registers, offset: 0, imm: imm as i32 }
    }

    fn set(target: u8, imm: u32) -> Instruction {
        Instruction::new(MOV32, target, 0, imm)
    }

    fn copy(target: u8, source: u8) -> Instruction {
        Instruction::new(MOV64 | libc::BPF_X, target, source, 0)
    }

    fn call(function: u32) -> Instruction {
        Instruction::new(CALL, 0, 0, function)
    }

    fn exit() -> Instruction {
        Instruction::new(EXIT, 0, 0, 0)
    }

    /// Loads `size` bytes at an offset from a register, in host byte order.
    fn load(size: u32, target: u8, source: u8, offset: i16) -> Instruction {
        let code = libc::BPF_LDX | libc::BPF_MEM | size;
        Instruction { offset, ..Instruction::new(code, target, source, 0) }
    }

    fn jump(opcode: u32, k: u32, offset: usize) -> Instruction {
        Instruction { offset: offset as i16, ..Instruction::new(opcode, A, 0, k) }
    }
}

/// Translates a classic program into one that returns the same number; `None` if an instruction has no
/// translation.
pub(crate) fn answering(program: &[sock_filter]) -> Option<Vec<Instruction>> {
    translated(program, FrameAccess::Buffer, returning)
}

/// Makes a socket receive only the packets that a classic program accepts. If the program returns [`CLIENT`]
/// (with the client's hash in the accumulator), the result is `listed` if the hash is in `list`, otherwise
/// `unlisted`.
///
/// # Errors
/// EPERM if a capability is missing.
pub(crate) fn filter_by_list(
    socket: BorrowedFd<'_>,
    program: &[sock_filter],
    list: BorrowedFd<'_>,
    [listed, unlisted]: [u32; 2],
) -> io::Result<()> {
    let program = translated(program, FrameAccess::Buffer, |answer| match answer {
        CLIENT => by_list(list, &returning(listed), &returning(unlisted)),
        answer => returning(answer),
    });
    let program = load(Kind::SocketFilter, &program.unwrap_or_default())?;
    sockopt::set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, &program.as_raw_fd().to_ne_bytes())
}

fn returning(answer: u32) -> Vec<Instruction> {
    vec![Instruction::set(A, answer), Instruction::exit()]
}

/// Returns a part of a program that executes `listed` if the word in the accumulator is in `list` (a
/// [`word_map`]), otherwise `unlisted`. Both must end the program.
fn by_list(list: BorrowedFd<'_>, listed: &[Instruction], unlisted: &[Instruction]) -> Vec<Instruction> {
    const KEY: i16 = -4;
    let mut part = vec![
        Instruction { offset: KEY, ..Instruction::new(STORE, STACK, A, 0) },
        Instruction::copy(2, STACK),
        Instruction::new(ADD64, 2, 0, KEY as u32),
    ];
    part.extend(load_map(list));
    part.push(Instruction::call(LOOKUP));
    part.push(Instruction::jump(JEQ64, 0, listed.len()));
    [&part[..], listed, unlisted].concat()
}

/// Returns the instruction that loads the address of a map into the first argument; it takes two slots.
fn load_map(map: BorrowedFd<'_>) -> [Instruction; 2] {
    let map = map.as_raw_fd() as u32;
    [Instruction::new(LOAD_MAP, FIRST, MAP_DESCRIPTOR, map), Instruction::new(0, 0, 0, 0)]
}

/// Translates a filter into a program that redirects accepted frames to the interface `to`. It copies frames
/// for which the filter returns `copied`. Other frames, and those of the clients in `list`, pass unchanged.
pub(crate) fn redirecting(
    program: &[sock_filter],
    to: u32,
    copied: u32,
    list: Option<BorrowedFd<'_>>,
) -> Option<Vec<Instruction>> {
    let on = [Instruction::set(A, NEXT), Instruction::exit()];
    let act = |answer| match answer {
        0 => on.to_vec(),
        _ if answer == copied => {
            let arguments =
                [Instruction::copy(FIRST, PACKET), Instruction::set(2, to), Instruction::set(3, 0)];
            [&arguments[..], &[Instruction::call(CLONE_REDIRECT)], &on].concat()
        }
        _ => {
            let arguments = [Instruction::set(FIRST, to), Instruction::set(2, 0)];
            [&arguments[..], &[Instruction::call(REDIRECT), Instruction::exit()]].concat()
        }
    };
    translated(program, FrameAccess::Buffer, |answer| unless_listed(answer, list, act))
}

/// Returns the instructions `act(answer)`. If the answer is [`CLIENT`], they are `act(0)` for clients in
/// `list`.
fn unless_listed(
    answer: u32,
    list: Option<BorrowedFd<'_>>,
    act: impl Fn(u32) -> Vec<Instruction>,
) -> Vec<Instruction> {
    match list {
        Some(list) if answer == CLIENT => by_list(list, &act(0), &act(answer)),
        Some(_) | None => act(answer),
    }
}

/// Translates a filter into a program of the kind [`Kind::Xdp`] that passes accepted frames to the socket of
/// their queue in `sockets` (a [`socket_map`]). The kernel gets all other frames: frames that the filter
/// rejects, frames of clients in `list`, and frames whose queue has no socket. It also gets frames for which
/// the filter returns `copied`, because XDP cannot copy.
pub(crate) fn to_sockets(
    program: &[sock_filter],
    sockets: BorrowedFd<'_>,
    copied: u32,
    list: Option<BorrowedFd<'_>>,
) -> Option<Vec<Instruction>> {
    let act = |answer| {
        if answer == 0 || answer == copied {
            return pass().to_vec();
        }
        let redirect = [
            Instruction::load(libc::BPF_W, 2, PACKET, XDP_QUEUE),
            Instruction::set(3, PASS),
            Instruction::call(REDIRECT_MAP),
            Instruction::exit(),
        ];
        [&load_map(sockets)[..], &redirect].concat()
    };
    translated(program, FrameAccess::InPlace, |answer| unless_listed(answer, list, act))
}

/// Like [`answering`], for frames that are read in place; 0 for a [`CLIENT`] in `list`.
#[cfg(test)]
pub(crate) fn answering_in_place(
    program: &[sock_filter],
    list: Option<BorrowedFd<'_>>,
) -> Option<Vec<Instruction>> {
    translated(program, FrameAccess::InPlace, |answer| unless_listed(answer, list, returning))
}

fn pass() -> [Instruction; 2] {
    [Instruction::set(A, PASS), Instruction::exit()]
}

/// Returns a program for an interface without link headers (TUN). It sends each IP packet out of the Ethernet
/// interface `to`, to the next hop of the packet's route.
pub(crate) fn sending_out(to: u32) -> Vec<Instruction> {
    let [no_params, no_params_length, no_flags] = [2, 3, 4].map(|register| Instruction::set(register, 0));
    let no_head_flags = Instruction::set(3, 0);
    vec![
        // Makes space for an Ethernet header, which the kernel fills in.
        Instruction::set(2, ETHERNET_HEADER),
        no_head_flags,
        Instruction::call(CHANGE_HEAD),
        Instruction::jump(JNE, 0, 6),
        Instruction::set(FIRST, to),
        no_params,
        no_params_length,
        no_flags,
        Instruction::call(REDIRECT_NEIGH),
        Instruction::exit(),
        Instruction::set(A, DROP),
        Instruction::exit(),
    ]
}

/// Translates the program; `answer` returns the instructions for each `RET k`.
fn translated(
    program: &[sock_filter],
    reading: FrameAccess,
    answer: impl Fn(u32) -> Vec<Instruction>,
) -> Option<Vec<Instruction>> {
    let mut parts: Vec<Vec<Instruction>> =
        program.iter().map(|classic| part(classic, reading, &answer)).collect::<Option<_>>()?;
    let mut length = 0;
    let places: Vec<usize> = parts.iter().map(|part| (length, length += part.len()).0).collect();
    for (n, (classic, part)) in program.iter().zip(&mut parts).enumerate() {
        if !matches!(u32::from(classic.code), JEQ | JGT | JGE | JSET) {
            continue;
        }
        // The jump for a true condition, followed by the jump for a false one.
        for (jump, skipped) in part.iter_mut().zip([classic.jt, classic.jf]) {
            let own = places.get(n)? + usize::from(jump.opcode == JA as u8);
            let target = places.get(n + 1 + usize::from(skipped))?;
            jump.offset = i16::try_from(target - own - 1).ok()?;
        }
    }
    let mut start = vec![
        Instruction::copy(PACKET, FIRST),
        // The kernel rejects reads of registers that were not written.
        Instruction::set(A, 0),
        Instruction::set(X, 0),
    ];
    if reading == FrameAccess::InPlace {
        start.push(Instruction::load(libc::BPF_W, DATA, PACKET, XDP_DATA));
        start.push(Instruction::load(libc::BPF_W, END, PACKET, XDP_END));
    }
    Some(start.into_iter().chain(parts.into_iter().flatten()).collect())
}

/// Loads `size` bytes of a frame at offset `k` from `base` into the accumulator. If the frame ends earlier,
/// it passes to the kernel.
fn in_place(size: u32, base: u8, k: u32) -> Vec<Instruction> {
    let (bytes, bits) = match size {
        libc::BPF_B => (1, None),
        libc::BPF_H => (2, Some(16)),
        _ => (4, Some(32)),
    };
    let within = Instruction::new(JLE | libc::BPF_X, LIMIT, END, 0);
    let [answer, leave] = pass();
    let mut part = vec![
        Instruction::copy(LIMIT, base),
        Instruction::new(ADD64, LIMIT, 0, k + bytes),
        Instruction { offset: 2, ..within },
        answer,
        leave,
        Instruction::load(size, A, base, k as i16),
    ];
    part.extend(bits.map(|bits| Instruction::new(TO_BIG_ENDIAN, A, 0, bits)));
    part
}

/// Translates one instruction. The targets of jumps are set later.
fn part(
    classic: &sock_filter,
    reading: FrameAccess,
    answer: impl Fn(u32) -> Vec<Instruction>,
) -> Option<Vec<Instruction>> {
    let (code, k) = (u32::from(classic.code), classic.k);
    let read_in_place = reading == FrameAccess::InPlace;
    let one = match code {
        LDW if k == PROTOCOL && read_in_place => return Some(in_place(libc::BPF_H, DATA, ETHERNET_PROTOCOL)),
        LDW if k == PROTOCOL => {
            let load = Instruction { offset: SKB_PROTOCOL, ..Instruction::new(LOAD, A, PACKET, 0) };
            return Some(vec![load, Instruction::new(TO_BIG_ENDIAN, A, 0, 16)]);
        }
        LDX_IP => {
            let first = match reading {
                FrameAccess::Buffer => vec![Instruction::new(LDB, 0, 0, k)],
                FrameAccess::InPlace => in_place(libc::BPF_B, DATA, k),
            };
            let times_four = [
                Instruction::new(AND32, A, 0, 15),
                Instruction::new(LSH, A, 0, 2),
                Instruction::copy(X, A),
                Instruction::copy(A, SPARE),
            ];
            return Some([&[Instruction::copy(SPARE, A)][..], &first, &times_four].concat());
        }
        LDB | LDH | LDW if read_in_place => return Some(in_place(code & SIZE, DATA, k)),
        LDB_X | LDH_X if read_in_place => {
            let place = [Instruction::copy(PLACE, DATA), Instruction::new(ADD64 | libc::BPF_X, PLACE, X, 0)];
            return Some([&place[..], &in_place(code & SIZE, PLACE, k)].concat());
        }
        JEQ | JGT | JGE | JSET => {
            let condition = code & !libc::BPF_JMP | JMP32;
            return Some(vec![Instruction::jump(condition, k, 0), Instruction::jump(JA, 0, 0)]);
        }
        RET => return Some(answer(k)),
        RET_A => Instruction::exit(),
        LDB | LDH | LDW => Instruction::new(code, 0, 0, k),
        LDB_X | LDH_X => Instruction::new(code, 0, X, k),
        LD => Instruction::set(A, k),
        LDX => Instruction::set(X, k),
        TAX => Instruction::copy(X, A),
        TXA => Instruction::copy(A, X),
        XOR_X => Instruction::new(code, A, X, 0),
        MUL | LSH | RSH => Instruction::new(code, A, 0, k),
        _ => return None,
    };
    Some(vec![one])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::{skip_unless, step};

    /// Returns opcode and offset of the jumps (RFC 9669 sections 4.3 and 5.3).
    fn jumps(program: &[Instruction]) -> Vec<(u8, i16)> {
        let is_jump = |one: &&Instruction| matches!(one.opcode & 7, 5 | 6) && one.opcode != EXIT as u8;
        program.iter().filter(is_jump).map(|one| (one.opcode, one.offset)).collect()
    }

    #[test]
    fn translated_jumps_keep_their_targets() {
        let program = [step(LDB, 0), skip_unless(0x45, 2), step(RET, 7), step(RET, 8), step(RET, 9)];
        // If w0 == 0x45, control continues after the second jump, which skips two returns of two
        // instructions.
        assert_eq!(jumps(&answering(&program).unwrap()), [(0x16, 1), (0x05, 4)]);
        let [from, to] = [1, 2];
        let program =
            [sock_filter { jt: to, jf: from, ..step(JGT, 5) }, step(LDX_IP, 0), step(RET, 1), step(RET, 2)];
        assert_eq!(jumps(&answering(&program).unwrap()), [(0x26, 9), (0x05, 6)]);
    }

    #[test]
    fn instruction_without_translation_is_refused() {
        assert_eq!(answering(&[step(libc::BPF_ST, 0)]), None);
        assert_eq!(answering(&[skip_unless(1, 1), step(RET, 0)]), None, "a jump behind the end");
    }
}
