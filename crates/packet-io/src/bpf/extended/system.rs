//! `bpf(2)`: creates programs and maps, and attaches programs to interfaces. Each is a descriptor; the kernel
//! removes a program or map with its last descriptor, even after a crash.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{Instruction, Kind};

/// Commands of `bpf(2)`, and attach types of programs (linux/bpf.h).
const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE: libc::c_long = 2;
const MAP_DELETE: libc::c_long = 3;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const BPF_XDP: u32 = 37;
const TCX_INGRESS: u32 = 46;
/// `BPF_MAP_TYPE_HASH`, and `BPF_F_NO_PREALLOC`: entries take memory only while they exist.
const MAP_OF_WORDS: u32 = 1;
const NO_PREALLOCATION: u32 = 1;
/// `BPF_MAP_TYPE_XSKMAP`: AF_XDP sockets by number.
const MAP_OF_SOCKETS: u32 = 17;

/// The attributes of `BPF_PROG_LOAD` that are used.
#[repr(C)]
struct ProgLoad {
    program_type: u32,
    count: u32,
    instructions: u64,
    license: u64,
    rest: [u32; 12],
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
    rest: [u32; 8],
}

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max: u32,
    flags: u32,
    rest: [u32; 11],
}

/// The attributes of `BPF_MAP_UPDATE_ELEM` and `BPF_MAP_DELETE_ELEM`.
#[repr(C)]
struct MapElement {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Where a program of the kind [`Kind::Xdp`] runs (`XDP_FLAGS_*` of linux/if_link.h).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum XdpMode {
    /// In the kernel, for any interface, after the kernel has copied the frame into its own buffer.
    Generic = 1 << 1,
    /// In the interface's driver.
    Native = 1 << 2,
}

/// Loads a program.
///
/// # Errors
/// The kernel's error, such as EPERM. [`Kind::SchedCls`] and [`Kind::Xdp`] need CAP_BPF and CAP_NET_ADMIN;
/// [`Kind::SocketFilter`] needs CAP_BPF where `kernel.unprivileged_bpf_disabled` is not 0.
pub(crate) fn load(kind: Kind, program: &[Instruction]) -> io::Result<OwnedFd> {
    let license = c"Apache-2.0";
    let attributes = ProgLoad {
        program_type: kind as u32,
        count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: license.as_ptr() as u64,
        rest: [0; 12],
    };
    // SAFETY: these are the attributes of BPF_PROG_LOAD; the instructions and the zero-terminated string that
    // they point to outlive the call.
    unsafe { descriptor(PROG_LOAD, &attributes) }
}

/// Runs a program of the kind [`Kind::SchedCls`] on frames that arrive at an interface, until the descriptor
/// is closed.
///
/// # Errors
/// `InvalidInput` before Linux 6.6; EPERM without CAP_NET_ADMIN.
pub(crate) fn run_on_ingress(program: BorrowedFd<'_>, interface: u32) -> io::Result<OwnedFd> {
    tie(program, interface, TCX_INGRESS, 0)
}

/// Runs a program of the kind [`Kind::Xdp`] on frames that arrive at an interface, until the descriptor is
/// closed.
///
/// # Errors
/// EBUSY or EEXIST if the interface has another program; EPERM without CAP_NET_ADMIN; other errors if the
/// driver does not support the mode.
pub(crate) fn run_on_frames(program: BorrowedFd<'_>, interface: u32, mode: XdpMode) -> io::Result<OwnedFd> {
    tie(program, interface, BPF_XDP, mode as u32)
}

fn tie(program: BorrowedFd<'_>, interface: u32, attach_type: u32, flags: u32) -> io::Result<OwnedFd> {
    let attributes =
        LinkCreate { program: program.as_raw_fd() as u32, interface, attach_type, flags, rest: [0; 8] };
    // SAFETY: these are the attributes of BPF_LINK_CREATE, and they contain no pointer.
    unsafe { descriptor(LINK_CREATE, &attributes) }
}

/// Creates a map for up to `max` AF_XDP sockets.
///
/// # Errors
/// EPERM without CAP_BPF and CAP_NET_ADMIN; EINVAL if the kernel has no AF_XDP.
pub(crate) fn socket_map(max: u32) -> io::Result<OwnedFd> {
    map(MAP_OF_SOCKETS, max, 0)
}

/// Creates a set of up to `max` words (`u32` values).
///
/// # Errors
/// EPERM without CAP_BPF where `kernel.unprivileged_bpf_disabled` is not 0.
pub(crate) fn word_map(max: u32) -> io::Result<OwnedFd> {
    map(MAP_OF_WORDS, max, NO_PREALLOCATION)
}

/// Creates a map whose keys and values are words (`u32`).
fn map(map_type: u32, max: u32, flags: u32) -> io::Result<OwnedFd> {
    let word = size_of::<u32>() as u32;
    let attributes = MapCreate { map_type, key_size: word, value_size: word, max, flags, rest: [0; 11] };
    // SAFETY: these are the attributes of BPF_MAP_CREATE, and they contain no pointer.
    unsafe { descriptor(MAP_CREATE, &attributes) }
}

/// Enters a word in a set of [`word_map`].
///
/// # Errors
/// E2BIG if the set is full.
pub(crate) fn put_word(set: BorrowedFd<'_>, word: u32) -> io::Result<()> {
    change(MAP_UPDATE, set, word, 0)
}

/// Removes a word from a set of [`word_map`].
///
/// # Errors
/// ENOENT if the set does not contain the word.
pub(crate) fn remove_word(set: BorrowedFd<'_>, word: u32) -> io::Result<()> {
    change(MAP_DELETE, set, word, 0)
}

/// Enters an AF_XDP socket in a map of [`socket_map`]. The kernel removes it when the socket is closed.
///
/// # Errors
/// `InvalidInput` for a number beyond the size of the map, and for a descriptor that is not an AF_XDP socket.
pub(crate) fn put_socket(map: BorrowedFd<'_>, number: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    change(MAP_UPDATE, map, number, socket.as_raw_fd() as u32)
}

/// Updates or removes an entry of a map whose keys and values are words. A removal ignores the value.
fn change(number: libc::c_long, map: BorrowedFd<'_>, key: u32, value: u32) -> io::Result<()> {
    let value = if number == MAP_DELETE { 0 } else { (&raw const value) as u64 };
    let attributes =
        MapElement { map: map.as_raw_fd() as u32, padding: 0, key: (&raw const key) as u64, value, flags: 0 };
    // SAFETY: these are the attributes of both commands; key and value are words, as in the map, and outlive
    // the call.
    unsafe { command(number, &attributes) }.map(drop)
}

/// Runs a command of `bpf(2)` that creates a descriptor, and returns it.
///
/// # Safety
/// The attributes must be those of the command, and their pointers must be valid; the kernel only reads the
/// memory.
unsafe fn descriptor<T>(number: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: by the contract of this function.
    let fd = unsafe { command(number, attributes) }?;
    // SAFETY: bpf(2) has created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Runs a command of `bpf(2)` and returns its result.
///
/// # Safety
/// As for [`descriptor`].
unsafe fn command<T>(number: libc::c_long, attributes: &T) -> io::Result<i32> {
    let size = size_of::<T>() as libc::c_uint;
    // SAFETY: by the contract of this function; the reference outlives the call.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, number, std::ptr::from_ref(attributes), size) };
    match i32::try_from(answer) {
        Ok(answer) if answer >= 0 => Ok(answer),
        Ok(_) | Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Returns the verdict of a program of the kind [`Kind::Xdp`] on a frame of at least 14 bytes
/// (`BPF_PROG_TEST_RUN`).
#[cfg(test)]
pub(crate) fn answer(program: BorrowedFd<'_>, frame: &[u8]) -> io::Result<u32> {
    const PROG_TEST_RUN: libc::c_long = 10;
    /// The attributes of `BPF_PROG_TEST_RUN` that are used.
    #[repr(C)]
    struct ProgTestRun {
        program: u32,
        answer: u32,
        len: u32,
        len_out: u32,
        frame: u64,
        frame_out: u64,
        rest: [u32; 12],
    }
    let (program, len) = (program.as_raw_fd() as u32, frame.len() as u32);
    let frame = frame.as_ptr() as u64;
    let mut run = ProgTestRun { program, answer: 0, len, len_out: 0, frame, frame_out: 0, rest: [0; 12] };
    let size = size_of::<ProgTestRun>() as libc::c_uint;
    // SAFETY: these are the attributes of BPF_PROG_TEST_RUN; the frame outlives the call, and the kernel
    // writes only to `run`.
    match unsafe { libc::syscall(libc::SYS_bpf, PROG_TEST_RUN, &raw mut run, size) } {
        0 => Ok(run.answer),
        _ => Err(io::Error::last_os_error()),
    }
}
