//! Calls through the table, with segments of one peer. Sequence numbers count from the initial one of each
//! side.

use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use brisk_wire::{
    ChecksumCheck, ChecksumFill, Flags, IpMeta, Packet, SeqNum, TcpHeader, emit, fill_checksums, parse,
};

pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const PSH: u8 = 8;
pub(crate) const ACK: u8 = 16;

const SLOTS: usize = 33;
/// The peer's initial sequence number.
const PEER_ISN: u32 = 5_000_000;

/// A control message: level, type and data.
pub(crate) type ControlMessage = (i32, i32, Vec<u8>);

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Segment<'a> {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) options: &'a [u8],
}

#[derive(Clone, Debug)]
pub(crate) struct Sent {
    /// Microseconds since 1970.
    pub(crate) at: i64,
    pub(crate) flags: u8,
    pub(crate) seq: u32,
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) dscp: u8,
    raw_seq: u32,
    src: SocketAddr,
}

pub(crate) struct Driver {
    slots: [*mut c_void; SLOTS],
    /// The stack's initial sequence number.
    isn: Cell<u32>,
    local: Cell<SocketAddr>,
    remote: Cell<SocketAddr>,
    peer: Cell<SocketAddr>,
}

/// Calls slot `$slot` with the given types.
macro_rules! call {
    ($driver:expr, $slot:literal, ($($type:ty),*) -> $result:ty, $($argument:expr),*) => {{
        // SAFETY: the slot has this type according to the table; the arguments outlive the call.
        unsafe {
            let function: unsafe extern "C" fn(*mut c_void, $($type),*) -> $result =
                std::mem::transmute($driver.slots[$slot]);
            function($driver.slots[0], $($argument),*)
        }
    }};
}

fn library() -> CString {
    let program = std::env::current_exe().unwrap();
    let dirs = program.ancestors().skip(1).take(2);
    let found: Option<PathBuf> =
        dirs.map(|dir| dir.join("libbrisk_conformance.so")).find(|path| path.exists());
    CString::new(
        found.expect("cargo builds the library next to its tests").into_os_string().into_encoded_bytes(),
    )
    .unwrap()
}

/// Construction, and the clock.
impl Driver {
    pub(crate) fn new(flags: &str) -> Driver {
        let mut slots = MaybeUninit::<[*mut c_void; SLOTS]>::zeroed();
        let flags = CString::new(flags).unwrap();
        // SAFETY: the symbol has this type and fills `SLOTS` pointers.
        let slots = unsafe {
            let handle =
                libc::dlopen(library().as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE);
            assert!(!handle.is_null(), "the library loads");
            let symbol = libc::dlsym(handle, c"packetdrill_interface_init".as_ptr());
            assert!(!symbol.is_null(), "the symbol is exported");
            let init: unsafe extern "C" fn(*const libc::c_char, *mut c_void) = std::mem::transmute(symbol);
            init(flags.as_ptr(), slots.as_mut_ptr().cast());
            slots.assume_init()
        };
        let addr = |text: &str| text.parse::<SocketAddr>().unwrap();
        Driver {
            slots,
            isn: Cell::new(0),
            local: Cell::new(addr("192.168.0.1:8080")),
            remote: Cell::new(addr("192.0.2.1:33000")),
            peer: Cell::new(addr("0.0.0.0:0")),
        }
    }

    pub(crate) fn sleep(&self, micros: u32) {
        assert_eq!(call!(self, 26, (u32) -> i32, micros), 0);
    }

    pub(crate) fn now(&self) -> i64 {
        let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
        assert_eq!(
            call!(self, 27, (*mut libc::timeval, *mut c_void) -> i32, &mut time, std::ptr::null_mut()),
            0
        );
        time.tv_sec * 1_000_000 + time.tv_usec
    }

    pub(crate) fn errno(&self) -> i32 {
        std::io::Error::last_os_error().raw_os_error().unwrap()
    }
}

/// Packets.
impl Driver {
    /// Gives the next segments another connection.
    pub(crate) fn new_peer(&mut self) {
        let old = self.remote.get();
        self.remote.set(SocketAddr::new(old.ip(), old.port() + 1));
    }

    /// Records the stack's address and numbers from a SYN or SYN-ACK.
    pub(crate) fn follow(&self, sent: &Sent) {
        self.isn.set(sent.raw_seq);
        self.local.set(sent.src);
        if sent.flags & ACK == 0 {
            self.remote.set(SocketAddr::new(self.remote.get().ip(), 80));
        }
    }

    pub(crate) fn arrive(&self, segment: Segment<'_>, payload: &[u8]) {
        self.hand_in(&self.packet(segment, payload));
    }

    pub(crate) fn packet(&self, segment: Segment<'_>, payload: &[u8]) -> Vec<u8> {
        let (local, remote) = (self.local.get(), self.remote.get());
        let header = TcpHeader {
            src_port: remote.port(),
            dst_port: local.port(),
            seq: SeqNum(PEER_ISN.wrapping_add(segment.seq)),
            ack: SeqNum(if segment.flags & ACK != 0 { self.isn.get().wrapping_add(segment.ack) } else { 0 }),
            flags: Flags(u16::from(segment.flags)),
            window: 30_000,
            ..TcpHeader::default()
        };
        let ip = IpMeta::new(remote.ip(), local.ip());
        let mut bytes = Vec::new();
        emit(&ip, &header, &[segment.options, payload], ChecksumFill::Full, &mut bytes).unwrap();
        bytes[ip.header_len() + 12] += ((segment.options.len() / 4) as u8) << 4;
        fill_checksums(&mut bytes);
        bytes
    }

    pub(crate) fn hand_in(&self, bytes: &[u8]) {
        assert_eq!(call!(self, 24, (*const c_void, usize) -> i32, bytes.as_ptr().cast(), bytes.len()), 0);
    }

    /// Returns the next segment; `None` if the stack sends no more.
    pub(crate) fn receive(&self) -> Option<Sent> {
        let mut buffer = [0u8; 4096];
        let (mut len, mut at) = (buffer.len(), 0i64);
        let received = call!(self, 25, (*mut c_void, *mut usize, *mut i64) -> i32, buffer.as_mut_ptr().cast(), &mut len, &mut at);
        assert_eq!(received, 0);
        if len == 0 {
            return None;
        }
        let Ok(Packet::Tcp(segment)) = parse(&buffer[..len], ChecksumCheck::Verify) else {
            panic!("no TCP segment")
        };
        let header_len = len - segment.payload.len();
        let options_at = segment.ip.header_len() + 20;
        Some(Sent {
            at,
            flags: segment.tcp.flags.0 as u8,
            seq: segment.tcp.seq.0.wrapping_sub(self.isn.get()),
            options: buffer[options_at..header_len].to_vec(),
            payload: segment.payload.to_vec(),
            dscp: segment.ip.dscp,
            raw_seq: segment.tcp.seq.0,
            src: SocketAddr::new(segment.ip.src, segment.tcp.src_port),
        })
    }

    /// Receives segments until `bytes` of payload have left; returns the sequence number after them.
    pub(crate) fn drain_payload(&self, mut bytes: usize) -> u32 {
        loop {
            let sent = self.receive().expect("more data");
            bytes = bytes.checked_sub(sent.payload.len()).expect("no more than was written");
            if bytes == 0 {
                return sent.seq + sent.payload.len() as u32;
            }
        }
    }

    pub(crate) fn lengths(&self, count: usize) -> Vec<usize> {
        (0..count).map(|_| self.receive().expect("a segment").payload.len()).collect()
    }

    pub(crate) fn handshake(&self) {
        self.arrive(Segment { seq: 0, flags: SYN, options: &[2, 4, 5, 180], ..Segment::default() }, &[]);
        let syn_ack = self.receive().expect("a SYN-ACK");
        assert_eq!(syn_ack.flags, SYN | ACK);
        self.follow(&syn_ack);
        self.arrive(Segment { seq: 1, ack: 1, flags: ACK, ..Segment::default() }, &[]);
    }
}

/// System calls.
impl Driver {
    pub(crate) fn socket(&self, flags: i32) -> i32 {
        call!(self, 2, (i32, i32, i32) -> i32, libc::AF_INET, libc::SOCK_STREAM | flags, 0)
    }

    pub(crate) fn listener(&self, family: i32, fast_open: Option<i32>) -> i32 {
        let fd = call!(self, 2, (i32, i32, i32) -> i32, family, libc::SOCK_STREAM, 0);
        let any = if family == libc::AF_INET6 { "[::]:8080" } else { "192.168.0.1:8080" };
        let addr = address(any.parse().unwrap());
        let bound =
            call!(self, 3, (i32, *const c_void, u32) -> i32, fd, addr.as_ptr().cast(), addr.len() as u32);
        assert_eq!(bound, 0);
        if let Some(queue) = fast_open {
            self.set_int(fd, libc::SOL_TCP, libc::TCP_FASTOPEN, queue);
        }
        assert_eq!(self.listen(fd, 5), 0);
        fd
    }

    pub(crate) fn listen(&self, fd: i32, backlog: i32) -> i32 {
        call!(self, 4, (i32, i32) -> i32, fd, backlog)
    }

    pub(crate) fn accept(&self, listener: i32) -> i32 {
        let mut bytes = [0u8; 28];
        let mut len = bytes.len() as u32;
        let fd = call!(self, 5, (i32, *mut c_void, *mut u32) -> i32, listener, bytes.as_mut_ptr().cast(), &mut len);
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        let ip = match len {
            16 => IpAddr::from(<[u8; 4]>::try_from(&bytes[4..8]).unwrap()),
            _ => IpAddr::from(<[u8; 16]>::try_from(&bytes[8..24]).unwrap()),
        };
        self.peer.set(SocketAddr::new(ip, port));
        fd
    }

    /// Returns the address that the last accept() reported.
    pub(crate) fn last_peer(&self) -> SocketAddr {
        self.peer.get()
    }

    pub(crate) fn connect(&self, fd: i32) -> i32 {
        let addr = address("192.0.2.1:80".parse().unwrap());
        call!(self, 6, (i32, *const c_void, u32) -> i32, fd, addr.as_ptr().cast(), addr.len() as u32)
    }

    pub(crate) fn recv(&self, fd: i32, len: usize, flags: i32) -> isize {
        let mut buffer = vec![0u8; len];
        call!(self, 9, (i32, *mut c_void, usize, i32) -> isize, fd, buffer.as_mut_ptr().cast(), len, flags)
    }

    pub(crate) fn recvmsg(&self, fd: i32, len: usize, flags: i32) -> (isize, Vec<ControlMessage>, i32) {
        let (mut buffer, mut control) = (vec![0u8; len], vec![0u8; 512]);
        let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: len };
        // SAFETY: a header of zeros points to nothing.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        (header.msg_iov, header.msg_iovlen) = (&mut vector, 1);
        (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), control.len());
        let count = call!(self, 11, (i32, *mut libc::msghdr, i32) -> isize, fd, &mut header, flags);
        let mut rest = &control[..if count < 0 { 0 } else { header.msg_controllen }];
        let mut found = Vec::new();
        while rest.len() >= 16 {
            let len = usize::from_ne_bytes(rest[..8].try_into().unwrap());
            let number = |at: usize| i32::from_ne_bytes(rest[at..at + 4].try_into().unwrap());
            found.push((number(8), number(12), rest[16..len].to_vec()));
            rest = rest.get(len.next_multiple_of(8)..).unwrap_or(&[]);
        }
        (count, found, header.msg_flags)
    }

    pub(crate) fn send(&self, fd: i32, data: &[u8], flags: i32) -> isize {
        call!(self, 14, (i32, *const c_void, usize, i32) -> isize, fd, data.as_ptr().cast(), data.len(), flags)
    }

    pub(crate) fn sendmsg(&self, fd: i32, data: &[u8], flags: i32, control: &ControlMessage) -> isize {
        let mut message = (16 + control.2.len()).to_ne_bytes().to_vec();
        message.extend(control.0.to_ne_bytes());
        message.extend(control.1.to_ne_bytes());
        message.extend(&control.2);
        message.resize(message.len().next_multiple_of(8), 0);
        let mut vector = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
        // SAFETY: a header of zeros points to nothing.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        (header.msg_iov, header.msg_iovlen) = (&mut vector, 1);
        (header.msg_control, header.msg_controllen) = (message.as_mut_ptr().cast(), message.len());
        call!(self, 16, (i32, *const libc::msghdr, i32) -> isize, fd, &header, flags)
    }

    pub(crate) fn ioctl(&self, fd: i32, request: u64) -> i32 {
        let mut number = 0i32;
        match call!(self, 18, (i32, u64, *mut i32) -> i32, fd, request, &mut number) {
            0 => number,
            failed => failed,
        }
    }

    pub(crate) fn try_shutdown(&self, fd: i32, how: i32) -> i32 {
        call!(self, 20, (i32, i32) -> i32, fd, how)
    }

    pub(crate) fn shutdown(&self, fd: i32, how: i32) {
        assert_eq!(self.try_shutdown(fd, how), 0);
    }

    /// Returns an epoll descriptor that watches `fd` for `events`, with `fd` as user data.
    pub(crate) fn watch(&self, fd: i32, events: i32) -> i32 {
        let epfd = call!(self, 28, (i32) -> i32, 1);
        assert_eq!(self.epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, events), 0);
        epfd
    }

    pub(crate) fn epoll_ctl(&self, epfd: i32, what: i32, fd: i32, events: i32) -> i32 {
        let mut event = libc::epoll_event { events: events as u32, u64: fd as u64 };
        call!(self, 29, (i32, i32, i32, *mut libc::epoll_event) -> i32, epfd, what, fd, &mut event)
    }

    /// Returns the ready events by descriptor.
    pub(crate) fn epoll_wait(&self, epfd: i32) -> Vec<(i32, i32)> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        let count =
            call!(self, 30, (i32, *mut libc::epoll_event, i32, i32) -> i32, epfd, events.as_mut_ptr(), 8, 0);
        let ready = events.iter().take(usize::try_from(count).expect("no error"));
        ready.map(|event| ({ event.u64 } as i32, { event.events } as i32)).collect()
    }

    pub(crate) fn set_bytes(&self, fd: i32, level: i32, name: i32, value: &[u8]) -> i32 {
        let (at, len) = (value.as_ptr().cast(), value.len() as u32);
        call!(self, 22, (i32, i32, i32, *const c_void, u32) -> i32, fd, level, name, at, len)
    }

    /// Calls sendto(MSG_FASTOPEN) to port 80 of the peer.
    pub(crate) fn send_fast(&self, fd: i32, data: &[u8]) -> isize {
        let addr = address("192.0.2.1:80".parse().unwrap());
        let (data, len) = (data.as_ptr().cast(), data.len());
        call!(self, 15, (i32, *const c_void, usize, i32, *const c_void, u32) -> isize,
            fd, data, len, libc::MSG_FASTOPEN, addr.as_ptr().cast(), addr.len() as u32)
    }

    pub(crate) fn set_nonblocking(&self, fd: i32) {
        let set =
            call!(self, 17, (i32, i32, libc::c_long) -> i32, fd, libc::F_SETFL, i64::from(libc::O_NONBLOCK));
        assert_eq!(set, 0);
    }

    pub(crate) fn close(&self, fd: i32) -> i32 {
        call!(self, 19, (i32) -> i32, fd)
    }

    pub(crate) fn try_set_int(&self, fd: i32, level: i32, name: i32, value: i32) -> i32 {
        let value: *const i32 = &value;
        call!(self, 22, (i32, i32, i32, *const c_void, u32) -> i32, fd, level, name, value.cast(), 4)
    }

    pub(crate) fn set_int(&self, fd: i32, level: i32, name: i32, value: i32) {
        assert_eq!(self.try_set_int(fd, level, name, value), 0, "errno {}", self.errno());
    }

    pub(crate) fn set_linger(&self, fd: i32, secs: i32) {
        let value = [1i32, secs];
        let (name, value) = (libc::SO_LINGER, value.as_ptr().cast());
        let set =
            call!(self, 22, (i32, i32, i32, *const c_void, u32) -> i32, fd, libc::SOL_SOCKET, name, value, 8);
        assert_eq!(set, 0);
    }

    pub(crate) fn get(&self, fd: i32, level: i32, name: i32, capacity: usize) -> Vec<u8> {
        let mut value = vec![0u8; capacity];
        let mut len = capacity as u32;
        let (to, len_at): (*mut c_void, *mut u32) = (value.as_mut_ptr().cast(), &mut len);
        assert_eq!(
            call!(self, 21, (i32, i32, i32, *mut c_void, *mut u32) -> i32, fd, level, name, to, len_at),
            0
        );
        value.truncate(len as usize);
        value
    }

    pub(crate) fn get_int(&self, fd: i32, level: i32, name: i32) -> i32 {
        i32::from_ne_bytes(self.get(fd, level, name, 4).try_into().unwrap())
    }

    pub(crate) fn tcp_info(&self, fd: i32) -> Vec<u8> {
        self.get(fd, libc::SOL_TCP, libc::TCP_INFO, 512)
    }

    pub(crate) fn poll(&self, fd: i32, events: i16) -> i16 {
        let mut entry = libc::pollfd { fd, events, revents: 0 };
        let ready = call!(self, 23, (*mut libc::pollfd, u64, i32) -> i32, &mut entry, 1, 0);
        assert_eq!(ready, i32::from(entry.revents != 0));
        entry.revents
    }
}

fn address(addr: SocketAddr) -> Vec<u8> {
    let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut bytes = (family as u16).to_ne_bytes().to_vec();
    bytes.extend(addr.port().to_be_bytes());
    match addr.ip() {
        IpAddr::V4(ip) => bytes.extend(ip.octets()),
        IpAddr::V6(ip) => {
            bytes.extend([0; 4]);
            bytes.extend(ip.octets());
        }
    }
    bytes.resize(if addr.is_ipv4() { 16 } else { 28 }, 0);
    bytes
}
