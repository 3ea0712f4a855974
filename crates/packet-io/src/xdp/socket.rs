//! An AF_XDP socket on one queue of an interface: the memory of the frames, and the four rings that pass them
//! between us and the kernel (`Documentation/networking/af_xdp.rst`).
//!
//! The first part of the memory is for arriving frames. The kernel owns all of them (fill ring), except those
//! that are being processed, and reports arrivals in the receive ring. The second part is for outgoing
//! frames. The kernel owns them from the send ring until they return through the completion ring.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use socket2::{Domain, SockAddr, SockAddrStorage, Socket, Type};

use super::XdpOptions;
use super::mapping::Mapping;
use super::ring::{Consumer, Producer, RingKind, Size};
use crate::interface::Interface;
use crate::privileges::OpenError;
use crate::sockopt;

/// Bytes that the kernel keeps free before each arriving frame (`XDP_PACKET_HEADROOM`).
pub(super) const HEADROOM: usize = 256;
/// Maximum number of frames that one call sends in copy mode (`TX_BATCH_SIZE` of net/xdp/xsk.c).
const SENT_IN_A_CALL: u32 = 32;
/// Number of attempts while another socket may still be releasing resources.
const ATTEMPTS: usize = 30;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct XdpSocket {
    socket: Socket,
    memory: Memory,
    fill: Producer<u64>,
    completed: Consumer<u64>,
    received: Consumer<libc::xdp_desc>,
    sending: Producer<libc::xdp_desc>,
    /// Free chunks for outgoing frames.
    free: Vec<u64>,
    /// Maximum number of calls to empty a full send ring.
    max_calls: u32,
    zero_copy: bool,
}

/// The memory of the frames, in chunks of equal size.
#[derive(Debug)]
struct Memory {
    mapping: Mapping,
    chunk: usize,
}

impl Memory {
    /// Returns the bytes of an arrived frame; `None` if they are not in one chunk.
    ///
    /// # Safety
    /// The frame must be ours: the kernel has put it into the receive ring, and it was not put into the fill
    /// ring again.
    unsafe fn frame(&self, address: u64, len: u32) -> Option<&[u8]> {
        let (start, len) = (usize::try_from(address).ok()?, len as usize);
        if len > self.chunk - start % self.chunk || start.checked_add(len)? > self.mapping.bytes() {
            return None;
        }
        let first = self.mapping.at::<u8>(start)?;
        // SAFETY: the check above proves that it lies in the mapping, and by the contract nothing writes to
        // it meanwhile.
        Some(unsafe { std::slice::from_raw_parts(first.as_ptr(), len) })
    }

    /// Writes a frame of two parts at the start of a chunk; false if it is too long.
    ///
    /// # Safety
    /// The chunk must be ours: neither in the send ring nor in transit to the completion ring.
    unsafe fn write(&mut self, address: u64, parts: [&[u8]; 2]) -> bool {
        let mut at = address as usize;
        let end = at + self.chunk;
        for part in parts {
            let Some(place) = self
                .mapping
                .at::<u8>(at)
                .filter(|_| at + part.len() <= end && at + part.len() <= self.mapping.bytes())
            else {
                return false;
            };
            // SAFETY: the check above proves that the bytes lie in the mapping; by the contract nothing else
            // uses them; and `part` is outside, since no reference into the memory outlives `receive`.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), place.as_ptr(), part.len()) };
            at += part.len();
        }
        true
    }
}

impl XdpSocket {
    /// Opens a socket on the queue with this number, with frames in chunks of 2048 or 4096 bytes.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such queue; otherwise a capability or memory is missing, or the queue
    /// has another socket.
    pub(super) fn open(
        interface: &Interface,
        queue: u32,
        chunk: usize,
        options: &XdpOptions,
    ) -> Result<XdpSocket, OpenError> {
        let failed = |action: &'static str| move |error| OpenError::xdp(interface.name(), action, error);
        let socket = Socket::new(Domain::from(libc::AF_XDP), Type::RAW.nonblocking(), None)
            .map_err(failed("a socket of AF_XDP cannot be opened"))?;
        let [arriving, leaving] = [options.receive_frames, options.send_frames].map(Size::at_least);
        let frames = (arriving.entries() + leaving.entries()) as usize;
        let memory = Mapping::anonymous(frames * chunk).map_err(failed("there is no memory for packets"))?;
        retry_while(libc::ENOBUFS, || register(socket.as_fd(), &memory, chunk))
            .map_err(failed("the kernel rejected the memory for packets"))?;
        let rings = Rings::make(socket.as_fd(), arriving, leaving).map_err(failed("no rings"))?;
        // The kernel must have buffers for all frames that leave together.
        sockopt::request_buffers(socket.as_fd(), 2 * chunk * leaving.entries() as usize);
        retry_while(libc::EBUSY, || bind(&socket, interface.index(), queue, options.zero_copy))
            .map_err(failed("the queue cannot be opened"))?;
        let zero_copy = is_zero_copy(socket.as_fd());
        let Rings { fill, completed, received, sending } = rings;
        let place = |n: u32| u64::from(n) * chunk as u64;
        let mut opened = XdpSocket {
            socket,
            memory: Memory { mapping: memory, chunk },
            fill,
            completed,
            received,
            sending,
            free: (arriving.entries()..frames as u32).map(place).collect(),
            max_calls: leaving.entries() / SENT_IN_A_CALL + 2,
            zero_copy,
        };
        for n in 0..arriving.entries() {
            opened.fill.push(place(n));
        }
        opened.fill.publish();
        opened.fetch();
        Ok(opened)
    }

    /// True if the interface writes frames directly to our memory.
    pub(super) fn is_zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Passes frames to `each` until there are no more, or `each` returns false. The kernel gets their chunks
    /// back.
    pub(super) fn receive(&mut self, each: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        let (mut any, mut wanted) = (false, true);
        while wanted && let Some(found) = self.received.pop() {
            // SAFETY: the kernel has passed it to us, and gets it back below.
            if let Some(frame) = unsafe { self.memory.frame(found.addr, found.len) } {
                wanted = each(frame);
            }
            // The ring has space: it has as many entries as there are chunks for arriving frames.
            self.fill.push(found.addr - found.addr % self.memory.chunk as u64);
            any = true;
        }
        if any {
            self.received.give_back();
            self.fill.publish();
            self.fetch();
        }
        wanted
    }

    /// Wakes a sleeping driver, because free chunks are available again.
    fn fetch(&self) {
        if self.fill.needs_wakeup() {
            // The result does not matter: later frames show whether the call worked.
            let _ = rustix::net::recv(&self.socket, &mut [0u8; 0][..], rustix::net::RecvFlags::DONTWAIT);
        }
    }

    /// Queues a frame, which leaves at the next [`kick`](XdpSocket::kick); returns false if no chunk is free.
    pub(super) fn send(&mut self, header: &[u8], packet: &[u8]) -> bool {
        if self.free.is_empty() {
            self.reap();
        }
        let Some(address) = self.free.pop() else { return false };
        let len = header.len() + packet.len();
        // SAFETY: free places are in no ring.
        let written = unsafe { self.memory.write(address, [header, packet]) };
        let entry = libc::xdp_desc { addr: address, len: len as u32, options: 0 };
        let taken = written && self.sending.push(entry);
        if !taken {
            self.free.push(address);
        }
        taken
    }

    /// Takes back the chunks of sent frames.
    fn reap(&mut self) {
        while let Some(address) = self.completed.pop() {
            self.free.push(address);
        }
        self.completed.give_back();
    }

    /// Makes the kernel send the queued frames.
    ///
    /// # Errors
    /// `WouldBlock`: some frames still wait and need time. ENETDOWN while the interface is down, ENXIO once
    /// it is gone.
    pub(super) fn kick(&mut self) -> io::Result<()> {
        self.sending.publish();
        for _ in 0..self.max_calls {
            if !self.sending.is_pending() || !self.sending.needs_wakeup() {
                return Ok(());
            }
            // The call has no data; the frames are in the ring.
            match rustix::net::send(&self.socket, &[], rustix::net::SendFlags::DONTWAIT) {
                Ok(_) => return Ok(()),
                // One call may not send all frames of the ring.
                Err(rustix::io::Errno::AGAIN) => self.reap(),
                // The interface's own queue is full, and has just dropped a frame.
                Err(rustix::io::Errno::BUSY | rustix::io::Errno::NOBUFS) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Returns the number of frames for us that were lost because no chunk was free, or because they did not
    /// fit in one.
    pub(super) fn lost(&self) -> u64 {
        // struct xdp_statistics: dropped, invalid entries in both directions, dropped at a full receive ring.
        let words = words(self.socket.as_fd(), libc::XDP_STATISTICS, 4).unwrap_or_default();
        [0, 3].iter().filter_map(|at| words.get(*at)).sum()
    }
}

impl AsFd for XdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The four rings, mapped.
struct Rings {
    fill: Producer<u64>,
    completed: Consumer<u64>,
    received: Consumer<libc::xdp_desc>,
    sending: Producer<libc::xdp_desc>,
}

impl Rings {
    fn make(socket: BorrowedFd<'_>, arriving: Size, leaving: Size) -> io::Result<Rings> {
        for (option, size) in [
            (libc::XDP_UMEM_FILL_RING, arriving),
            (libc::XDP_UMEM_COMPLETION_RING, leaving),
            (libc::XDP_RX_RING, arriving),
            (libc::XDP_TX_RING, leaving),
        ] {
            sockopt::set(socket, libc::SOL_XDP, option, &size.entries().to_ne_bytes())?;
        }
        let offsets = offsets(socket)?;
        let too_short = || io::Error::from(io::ErrorKind::InvalidData);
        let (map, at) = RingKind::Fill.map::<u64>(socket, &offsets, arriving)?;
        let fill = Producer::new(map, &at, arriving).ok_or_else(too_short)?;
        let (map, at) = RingKind::Completion.map::<u64>(socket, &offsets, leaving)?;
        let completed = Consumer::new(map, &at, leaving).ok_or_else(too_short)?;
        let (map, at) = RingKind::Receive.map::<libc::xdp_desc>(socket, &offsets, arriving)?;
        let received = Consumer::new(map, &at, arriving).ok_or_else(too_short)?;
        let (map, at) = RingKind::Send.map::<libc::xdp_desc>(socket, &offsets, leaving)?;
        let sending = Producer::new(map, &at, leaving).ok_or_else(too_short)?;
        Ok(Rings { fill, completed, received, sending })
    }
}

/// Returns the layout of the rings.
fn offsets(socket: BorrowedFd<'_>) -> io::Result<libc::xdp_mmap_offsets> {
    let words = words(socket, libc::XDP_MMAP_OFFSETS, 16)?;
    let mut rings = words.chunks_exact(4).map(|ring| libc::xdp_ring_offset {
        producer: ring[0],
        consumer: ring[1],
        desc: ring[2],
        flags: ring[3],
    });
    let mut next = || rings.next().ok_or(io::ErrorKind::Unsupported);
    Ok(libc::xdp_mmap_offsets { rx: next()?, tx: next()?, fr: next()?, cr: next()? })
}

/// Returns the result of an option, at most `count` words of 64 bits.
fn words(socket: BorrowedFd<'_>, option: i32, count: usize) -> io::Result<Vec<u64>> {
    let bytes = sockopt::get(socket, libc::SOL_XDP, option, 8 * count)?;
    let word = |word: &[u8]| word.try_into().ok().map(u64::from_ne_bytes);
    Ok(bytes.chunks_exact(8).filter_map(word).collect())
}

fn is_zero_copy(socket: BorrowedFd<'_>) -> bool {
    let flags = sockopt::get(socket, libc::SOL_XDP, libc::XDP_OPTIONS, 4).unwrap_or_default();
    let flags = flags.try_into().map_or(0, u32::from_ne_bytes);
    flags & libc::XDP_OPTIONS_ZEROCOPY != 0
}

/// Registers the memory of the frames with the kernel.
fn register(socket: BorrowedFd<'_>, memory: &Mapping, chunk: usize) -> io::Result<()> {
    let start = memory.at::<u8>(0).ok_or(io::ErrorKind::InvalidInput)?;
    // struct xdp_umem_reg: start, length, size of a chunk, additional headroom, flags, size of metadata.
    let mut request = (start.as_ptr() as u64).to_ne_bytes().to_vec();
    request.extend((memory.bytes() as u64).to_ne_bytes());
    [chunk as u32, 0, 0, 0].iter().for_each(|word| request.extend(word.to_ne_bytes()));
    sockopt::set(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &request)
}

/// Repeats an attempt for a while if it fails with `refusal`. The kernel releases the queue and memory of a
/// closed socket with a delay, which must not make the next opener fail.
fn retry_while(refusal: i32, attempt: impl Fn() -> io::Result<()>) -> io::Result<()> {
    for _ in 0..ATTEMPTS {
        match attempt() {
            Err(error) if error.raw_os_error() == Some(refusal) => std::thread::sleep(BETWEEN_ATTEMPTS),
            done => return done,
        }
    }
    attempt()
}

/// Binds to a queue. With `zero_copy` the kernel lets the driver use our memory if possible.
fn bind(socket: &Socket, index: u32, queue: u32, zero_copy: bool) -> io::Result<()> {
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: sockaddr_xdp is plain old data, and the storage has room and alignment for every kind of
    // address.
    let address = unsafe { storage.view_as::<libc::sockaddr_xdp>() };
    address.sxdp_family = libc::AF_XDP as u16;
    address.sxdp_flags = libc::XDP_USE_NEED_WAKEUP | if zero_copy { 0 } else { libc::XDP_COPY };
    address.sxdp_ifindex = index;
    address.sxdp_queue_id = queue;
    // SAFETY: the storage holds a sockaddr_xdp, and this is its length.
    let address = unsafe { SockAddr::new(storage, size_of::<libc::sockaddr_xdp>() as libc::socklen_t) };
    socket.bind(&address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_stays_within_its_chunk_and_the_memory() {
        let mut memory = Memory { mapping: Mapping::anonymous(8192).unwrap(), chunk: 2048 };
        // SAFETY: no kernel knows this memory.
        unsafe {
            assert!(memory.write(2048, [b"head", b"body"]));
            assert_eq!(memory.frame(2048, 8), Some(&b"headbody"[..]));
            assert_eq!(memory.frame(2050, 4), Some(&b"adbo"[..]));
            assert!(memory.write(6144, [&[1; 14], &[2; 2034]]));
            assert!(!memory.write(6144, [&[1; 14], &[2; 2035]]), "longer than the chunk");
            assert!(!memory.write(8192, [&[1; 14], &[2; 20]]), "behind the end");
            for (address, len) in
                [(2048, 2049), (4095, 2), (8191, 2), (8192, 1), (u64::MAX, 1), (0, u32::MAX)]
            {
                assert_eq!(memory.frame(address, len), None, "{address} {len}");
            }
        }
    }
}
