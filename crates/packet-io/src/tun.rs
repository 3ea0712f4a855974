//! A Linux TUN device: the kernel routes IP packets to a descriptor, and receives packets that are written to
//! it.
//!
//! With `IFF_VNET_HDR` each packet has a `virtio_net_hdr` (virtio 1.2, 5.1.6) that describes unfinished work:
//! a super-packet to be cut every `gso_size` bytes, a checksum to be completed. So one call moves up to 64 kB
//! in either direction, and up to 256 kB to the kernel's own TCP (`tun/big.rs`). No other device moves data
//! between this host's kernel and a user-space TCP faster. If the kernel does not support the offloads, the
//! device carries single packets and does the unfinished work in software.
//!
//! Creating a device needs CAP_NET_ADMIN. Opening one that was created for this user (`ip tuntap add NAME
//! mode tun user USER`) needs no privilege.

mod batch;
mod big;
mod queues;

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::task::{Context, Poll};
use std::time::Duration;

use brisk_device::offload;
use brisk_device::steering::Steering;
use brisk_device::{
    Capabilities, ChecksumState, Counters, Device, Gathered, MAX_SUPER, RxMeta, SharedSink, TxMeta,
};
use brisk_wire::MAX_SUPER_LEN;
use rustix::fs::{Mode, OFlags};

use crate::buffers::Buffers;
use crate::headers::{Headers, TCP_CHECKSUM};
use crate::interface::{Interface, name_problem};
use crate::netns::Namespace;
use crate::privileges::OpenError;
use crate::reactor::Reactor;
use crate::vnet::{Gso, VnetHeader};
use batch::TunBatch;
use big::Locals;

/// Options of a TUN device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TunOptions {
    /// True to request super-packets and partial checksums in both directions; they are not used if the
    /// kernel does not support them. Default true. A link emulator sets false, because it needs packets as on
    /// a wire.
    pub offload: bool,
    /// True to open one more queue of a device with several queues (`IFF_MULTI_QUEUE`); all openers must use
    /// the same value. Default false.
    pub multi_queue: bool,
    /// True to pass super-packets beyond 64 kB, with offload, if they end in this host and the kernel accepts
    /// them. Default true. Set false if a policer or inspector at the interface does not support such
    /// packets.
    pub beyond_64k: bool,
}

impl Default for TunOptions {
    fn default() -> Self {
        TunOptions { offload: true, multi_queue: false, beyond_64k: true }
    }
}

/// An open TUN device. It is removed when dropped, unless someone else made it persistent.
///
/// As a [`Device`] it runs under tokio. [`TunDevice::recv`] and [`TunDevice::send_raw`] with [`AsFd`] serve a
/// thread with its own poll loop; the descriptor never blocks.
#[derive(Debug)]
pub struct TunDevice {
    reactor: Reactor,
    fd: OwnedFd,
    name: String,
    /// Namespace of the interface, if the caller is in another.
    namespace: Option<Namespace>,
    mtu: usize,
    /// True if packets have a `virtio_net_hdr`.
    vnet: bool,
    /// Destinations of super-packets beyond 64 kB; `None`: none.
    big: Option<Locals>,
    /// Passes several packets in one call; `None` if the system does not support it.
    batch: Option<TunBatch>,
    buffers: Buffers,
    cut: Cut,
    counters: Counters,
}

/// A super-packet that leaves in pieces. It is counted when its last piece has left.
#[derive(Debug, Default)]
struct Cut {
    /// Length of the packet.
    len: usize,
    /// True if the kernel refused a piece.
    is_refused: bool,
    /// The pieces that wait because the queue was full.
    left: VecDeque<(Vec<u8>, TxMeta)>,
}

impl Cut {
    /// Begins a packet of this length, after the last piece of the previous packet has left.
    fn begin(&mut self, len: usize) -> &mut VecDeque<(Vec<u8>, TxMeta)> {
        (self.len, self.is_refused) = (len, false);
        &mut self.left
    }
}

/// Number of attempts to open a device that its previous owner may still hold.
const BUSY_RETRIES: u32 = 25;
const BUSY_PAUSE: Duration = Duration::from_millis(20);

impl TunDevice {
    /// Size of the read buffer for one packet: the kernel passes at most a payload of 64 kB after its
    /// headers.
    pub const READ_BUFFER: usize = VnetHeader::LEN + 65_536 + 128;

    /// Opens the TUN device `name`, or creates it. May block for up to half a second while a previous owner
    /// releases it.
    ///
    /// # Errors
    /// The name is invalid, CAP_NET_ADMIN is missing, or another process has the device.
    pub fn open(name: &str, options: TunOptions) -> Result<TunDevice, OpenError> {
        if let Some(problem) = name_problem(name) {
            return Err(OpenError::bad_name(format!("tun:{name}"), problem));
        }
        TunDevice::open_named(name, options)
    }

    /// Like [`open`](TunDevice::open), with any name that the kernel accepts.
    fn open_named(name: &str, options: TunOptions) -> Result<TunDevice, OpenError> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty())
            .map_err(|error| OpenError::tun(name, "/dev/net/tun cannot be opened", error.into()))?;
        let (vnet, name) = attach(fd.as_fd(), name, options)
            .map_err(|error| OpenError::tun(name, "cannot be attached", error))?;
        let mtu = Interface::named(&name)?.mtu()?;
        let big = if vnet && options.beyond_64k { Locals::open() } else { None };
        Ok(TunDevice { big, ..TunDevice::over(fd, &name, mtu, vnet) })
    }

    /// Like [`open`](TunDevice::open) inside another network namespace, given by name or path. Any thread can
    /// use the device afterwards.
    pub fn open_in_netns(name: &str, namespace: &str, options: TunOptions) -> Result<TunDevice, OpenError> {
        TunDevice::open_in(name, &Namespace::open(namespace)?, options)
    }

    /// Like [`open`](TunDevice::open) inside an open network namespace.
    pub fn open_in(name: &str, namespace: &Namespace, options: TunOptions) -> Result<TunDevice, OpenError> {
        let device = namespace.run(|| TunDevice::open(name, options))??;
        Ok(TunDevice { namespace: Some(namespace.clone()), ..device })
    }

    /// Takes over a descriptor that is attached to a TUN device. The device may be in a namespace that this
    /// process cannot see, so the caller gives the MTU in bytes. Fails for a TAP device and for a device with
    /// a packet information header.
    pub fn from_fd(fd: OwnedFd, mtu: usize) -> Result<TunDevice, OpenError> {
        let remedy = "pass the descriptor of an open TUN device";
        let failed = |error| OpenError::new("tun", "the descriptor is not a TUN device", remedy, error);
        let mut request = interface_request("");
        ioctl_interface(fd.as_fd(), libc::TUNGETIFF, &mut request).map_err(failed)?;
        // SAFETY: TUNGETIFF has filled in the flags, and every bit pattern is a valid value of this field.
        let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
        if flags & libc::IFF_TUN == 0 || flags & libc::IFF_NO_PI == 0 {
            return Err(OpenError::unsupported(
                "tun",
                "the device is not a TUN without packet information; open it with IFF_TUN and IFF_NO_PI",
            ));
        }
        let status = rustix::fs::fcntl_getfl(&fd).map_err(|error| failed(error.into()))?;
        rustix::fs::fcntl_setfl(&fd, status | OFlags::NONBLOCK).map_err(|error| failed(error.into()))?;
        let vnet = flags & libc::IFF_VNET_HDR != 0;
        if vnet {
            set_number(fd.as_fd(), libc::TUNSETVNETHDRSZ, VnetHeader::LEN as libc::c_int).map_err(failed)?;
        }
        Ok(TunDevice::over(fd, &name_in(&request), mtu.clamp(68, MAX_SUPER), vnet))
    }

    fn over(fd: OwnedFd, name: &str, mtu: usize, vnet: bool) -> TunDevice {
        TunDevice {
            reactor: Reactor::default(),
            fd,
            name: name.to_owned(),
            namespace: None,
            mtu,
            vnet,
            big: None,
            batch: vnet.then(TunBatch::open).flatten(),
            buffers: Buffers::of(TunDevice::READ_BUFFER),
            cut: Cut::default(),
            counters: Counters::default(),
        }
    }

    /// Gives the kernel's end of the device an address with a prefix of `prefix` bits, sets the MTU in bytes,
    /// and brings it up. The stack then uses another address of that network. Further calls add addresses.
    pub fn configure(&mut self, address: IpAddr, prefix: u8, mtu: u32) -> Result<(), OpenError> {
        let name = self.name.clone();
        let configure = || {
            let interface = Interface::named(&name)?;
            interface.set_mtu(mtu)?;
            interface.set_up()?;
            interface.add_address(address, prefix)
        };
        match &self.namespace {
            Some(namespace) => namespace.run(configure)??,
            None => configure()?,
        }
        self.mtu = mtu as usize;
        Ok(())
    }

    /// Returns the name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads one packet into `buffer` and returns its length; `WouldBlock` if there is none. With offload it
    /// may be a super-packet with an unfinished checksum, which only [`receive`](Device::receive) describes.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.vnet {
            return Ok(rustix::io::read(&self.fd, buffer)?);
        }
        // The buffer is for the packet alone, so the header needs a separate one.
        let mut header = [0; VnetHeader::LEN];
        let len = rustix::io::readv(&self.fd, &mut [IoSliceMut::new(&mut header), IoSliceMut::new(buffer)])?;
        Ok(len.saturating_sub(VnetHeader::LEN))
    }

    /// Writes one finished packet of at most one MTU.
    pub fn send_raw(&self, packet: &[u8]) -> io::Result<()> {
        write_finished(self.fd.as_fd(), self.vnet, packet)
    }

    /// Passes a super-packet or a packet with a partial checksum to the kernel, which completes it, and
    /// counts it.
    fn send_offloaded(&mut self, packet: &[u8], headers: Headers, tx: TxMeta) -> io::Result<()> {
        let (before, payload) = packet.split_at(headers.total());
        let mut head = [0; Headers::MAX];
        let head = &mut head[..before.len()];
        head.copy_from_slice(before);
        // The field must contain the sum of the pseudo-header, whatever the caller has written there.
        let at = headers.ip_len + TCP_CHECKSUM;
        head[at..at + 2].copy_from_slice(&headers.pseudo_sum(packet).to_be_bytes());
        self.write_big(headers, head, [payload, &[]], tx)
    }

    /// Passes a super-packet of any length to the kernel, whole or in pieces of 64 kB, and counts it.
    fn write_big(
        &mut self,
        headers: Headers,
        head: &[u8],
        payload: [&[u8]; 2],
        tx: TxMeta,
    ) -> io::Result<()> {
        let len = head.len() + payload[0].len() + payload[1].len();
        let (size, max) = (tx.segment_size.unwrap_or_default(), MAX_SUPER - headers.total());
        if len > MAX_SUPER && !(1..=max).contains(&usize::from(size)) {
            // No segment can be that long.
            return self.refuse();
        }
        if len <= MAX_SUPER || self.big.as_mut().is_some_and(|locals| locals.accepts_whole(head)) {
            match self.write_gathered(headers, head, payload, tx) {
                Err(error) if len > MAX_SUPER && big::is_out_of_memory(&error) => {}
                written => return self.count(written, len),
            }
        }
        self.cut.begin(len);
        let piece = max / usize::from(size) * usize::from(size);
        let (mut is_first, mut failed) = (true, Ok(()));
        brisk_wire::split_headers(head, len - head.len(), size, piece, &mut |head, range| {
            if failed.is_ok() {
                failed = self.write_piece(headers, head, part(payload, range), tx, is_first);
                is_first = false;
            }
        });
        failed?;
        self.count_cut();
        Ok(())
    }

    /// Writes a piece of a packet. If the queue is full, the first piece returns `WouldBlock`; later pieces
    /// wait.
    fn write_piece(
        &mut self,
        headers: Headers,
        head: &[u8],
        payload: [&[u8]; 2],
        tx: TxMeta,
        is_first: bool,
    ) -> io::Result<()> {
        if self.cut.left.is_empty() {
            match self.write_gathered(headers, head, payload, tx) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !is_first => {}
                Err(error) if is_refusal(&error) => {
                    self.cut.is_refused = true;
                    return Ok(());
                }
                written => return written,
            }
        }
        let open = TxMeta { partial_checksum: true, ..tx };
        self.cut.left.push_back(([head, payload[0], payload[1]].concat(), open));
        Ok(())
    }

    /// Passes a packet with a partial checksum to the kernel, with its payload in separate memory.
    fn write_gathered(
        &self,
        headers: Headers,
        head: &[u8],
        payload: [&[u8]; 2],
        tx: TxMeta,
    ) -> io::Result<()> {
        let len = payload[0].len() + payload[1].len();
        let size = tx.segment_size.filter(|&size| size > 0 && usize::from(size) < len);
        let gso = size.map(|size| Gso { size, v6: headers.v6, flags: headers.flags(head) });
        let header = VnetHeader::unfinished(&headers, gso);
        self.reactor.write(|| write_unfinished(self.fd.as_fd(), header, head, payload))
    }

    /// Counts a packet that cannot be sent.
    pub(crate) fn refuse(&mut self) -> io::Result<()> {
        self.counters.send_refused += 1;
        Ok(())
    }

    /// Counts a packet as sent or refused; returns any other error of its write.
    fn count(&mut self, written: io::Result<()>, len: usize) -> io::Result<()> {
        match written {
            Ok(()) => self.counters.on_sent(len),
            Err(error) if is_refusal(&error) => self.counters.send_refused += 1,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Counts a packet whose pieces have all left: it was sent if the kernel refused none.
    fn count_cut(&mut self) {
        match &self.cut {
            Cut { left, .. } if !left.is_empty() => {}
            Cut { is_refused: true, .. } => self.counters.send_refused += 1,
            Cut { len, .. } => self.counters.on_sent(*len),
        }
    }

    /// Writes the pieces that wait.
    fn drain(&mut self) -> io::Result<()> {
        while let Some((packet, tx)) = self.cut.left.front() {
            let written = match Headers::of(packet).filter(|_| tx.partial_checksum) {
                Some(headers) => {
                    let (head, payload) = packet.split_at(headers.total());
                    self.write_gathered(headers, head, [payload, &[]], *tx)
                }
                None => self.reactor.write(|| self.send_raw(packet)),
            };
            match written {
                Err(error) if !is_refusal(&error) => return Err(error),
                Err(_) => self.cut.is_refused = true,
                Ok(()) => {}
            }
            self.cut.left.pop_front();
            self.count_cut();
        }
        Ok(())
    }
}

impl Device for TunDevice {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.reactor.poll_readable(self.fd.as_fd(), cx)
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> io::Result<usize> {
        self.receive_shared(budget, &mut |packet, _, meta| sink(packet, meta))
    }

    fn receive_shared(&mut self, budget: usize, sink: &mut SharedSink<'_>) -> io::Result<usize> {
        let mut count = 0;
        while count < budget {
            let read = || read_packet(self.fd.as_fd(), self.vnet, self.buffers.current());
            match self.reactor.read(read) {
                Ok((packet, meta)) => {
                    self.counters.on_received(packet.len());
                    self.buffers.hand_over(packet, |packet, shared| sink(packet, shared, meta));
                    count += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    fn send(&mut self, packet: &[u8], tx: TxMeta) -> io::Result<()> {
        self.drain()?;
        let headers = if self.vnet { Headers::of(packet) } else { None };
        let open = tx.partial_checksum || tx.segment_size.is_some_and(|size| size > 0);
        match headers {
            Some(headers) if open => self.send_offloaded(packet, headers, tx),
            _ if open => {
                let left = self.cut.begin(packet.len());
                offload::cut(packet, tx, &mut |segment| {
                    left.push_back((segment.to_vec(), TxMeta::default()))
                });
                match self.drain() {
                    // Waiting packets count as sent.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
                    other => other,
                }
            }
            _ => {
                let written = self.reactor.write(|| self.send_raw(packet));
                self.count(written, packet.len())
            }
        }
    }

    fn send_gathered(&mut self, head: &[u8], payload: [&[u8]; 2], tx: TxMeta) -> io::Result<()> {
        match Headers::of(head).filter(|headers| self.vnet && headers.total() == head.len()) {
            Some(headers) => {
                self.drain()?;
                self.write_big(headers, head, payload, tx)
            }
            None => self.send(&[head, payload[0], payload[1]].concat(), tx),
        }
    }

    fn send_batch(&mut self, packets: &mut [Gathered<'_>]) -> io::Result<()> {
        self.send_together(packets)
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.reactor.poll_writable(self.fd.as_fd(), cx)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.drain()
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn capabilities(&self) -> Capabilities {
        let vnet = self.vnet;
        let max_super = if self.big.is_some() { MAX_SUPER_LEN } else { MAX_SUPER };
        Capabilities { tso: vnet, gather: vnet, max_super, descriptor: true, ..Capabilities::NONE }
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn spread(&mut self, steering: &Steering) -> io::Result<()> {
        self.choose_queue_by(steering)
    }
}

impl AsFd for TunDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for TunDevice {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

fn part(payload: [&[u8]; 2], range: Range<usize>) -> [&[u8]; 2] {
    let [first, second] = payload;
    let within = |piece: Range<usize>, from: usize| piece.start.max(from) - from..piece.end.max(from) - from;
    let head = first.get(range.start.min(first.len())..range.end.min(first.len()));
    let tail = second.get(within(range, first.len()));
    [head.unwrap_or_default(), tail.unwrap_or_default()]
}

/// True if the kernel refused a packet, which TCP treats as lost. False if the device is gone or busy. EIO
/// means that the interface is down.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::ENOBUFS | libc::ENOMEM | libc::EPERM)
    )
}

/// Reads a packet, and its `virtio_net_hdr` if it has one, into `buffer`. Returns the range of the packet and
/// the kernel's metadata.
fn read_packet(fd: BorrowedFd<'_>, vnet: bool, buffer: &mut [u8]) -> io::Result<(Range<usize>, RxMeta)> {
    let len = rustix::io::read(fd, &mut *buffer)?;
    match buffer.first_chunk::<{ VnetHeader::LEN }>().filter(|_| vnet) {
        Some(header) => Ok((VnetHeader::LEN..len.max(VnetHeader::LEN), VnetHeader::parse(header).rx_meta())),
        None => Ok((0..len, RxMeta { checksum: ChecksumState::Verify, segment_size: None })),
    }
}

fn write_finished(fd: BorrowedFd<'_>, vnet: bool, packet: &[u8]) -> io::Result<()> {
    if vnet {
        rustix::io::writev(fd, &[IoSlice::new(&VnetHeader::default().bytes()), IoSlice::new(packet)])?;
    } else {
        rustix::io::write(fd, packet)?;
    }
    Ok(())
}

/// Writes a packet that the kernel completes. A short packet is first copied into one piece: that takes less
/// time than the kernel's processing of several pieces.
fn write_unfinished(
    fd: BorrowedFd<'_>,
    header: VnetHeader,
    head: &[u8],
    payload: [&[u8]; 2],
) -> io::Result<()> {
    const START: usize = VnetHeader::LEN + Headers::MAX;
    let mut start = [0; START];
    let (vnet, rest) = start.split_at_mut(VnetHeader::LEN);
    vnet.copy_from_slice(&header.bytes());
    rest[..head.len()].copy_from_slice(head);
    let start = &start[..VnetHeader::LEN + head.len()];
    match payload {
        [[], []] => rustix::io::write(fd, start)?,
        [only, []] | [[], only] => rustix::io::writev(fd, &[IoSlice::new(start), IoSlice::new(only)])?,
        [first, second] => {
            rustix::io::writev(fd, &[IoSlice::new(start), IoSlice::new(first), IoSlice::new(second)])?
        }
    };
    Ok(())
}

/// Binds the descriptor to an interface. Returns whether packets will have a `virtio_net_hdr`, and the name
/// of the interface.
fn attach(fd: BorrowedFd<'_>, name: &str, options: TunOptions) -> io::Result<(bool, String)> {
    let queue = if options.multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
    let plain = libc::IFF_TUN | libc::IFF_NO_PI | queue;
    if !options.offload {
        let name = set_interface(fd, name, plain)?;
        // A persistent device may still have the offloads of its previous owner.
        let _ = set_number(fd, libc::TUNSETOFFLOAD, 0);
        return Ok((false, name));
    }
    let name = match set_interface(fd, name, plain | libc::IFF_VNET_HDR) {
        Ok(name) => name,
        // Kernels without virtio_net_hdr return EINVAL; other errors would occur again.
        Err(error) if error.raw_os_error() != Some(libc::EINVAL) => return Err(error),
        Err(_) => return Ok((false, set_interface(fd, name, plain)?)),
    };
    set_number(fd, libc::TUNSETVNETHDRSZ, VnetHeader::LEN as libc::c_int)?;
    let tso = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
    // Offers to the kernel, best first. If the kernel refuses all of them, it completes its packets itself.
    for offer in [tso | libc::TUN_F_TSO_ECN, tso, libc::TUN_F_CSUM, 0] {
        if set_number(fd, libc::TUNSETOFFLOAD, offer as libc::c_int).is_ok() {
            break;
        }
    }
    Ok((true, name))
}

/// Returns the name, in which the kernel has replaced `%d` by a number.
fn set_interface(fd: BorrowedFd<'_>, name: &str, flags: libc::c_int) -> io::Result<String> {
    let mut request = interface_request(name);
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    for retry in 0.. {
        match ioctl_interface(fd, libc::TUNSETIFF, &mut request) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && retry < BUSY_RETRIES => {
                std::thread::sleep(BUSY_PAUSE);
            }
            other => {
                other?;
                break;
            }
        }
    }
    Ok(name_in(&request))
}

fn name_in(request: &libc::ifreq) -> String {
    let name: Vec<u8> = request.ifr_name.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
    String::from_utf8_lossy(&name).into_owned()
}

/// Returns a request about the interface `name`, which is cut to the maximum length.
fn interface_request(name: &str) -> libc::ifreq {
    // SAFETY: ifreq is plain old data, and all zeroes (an empty name, no flags) is a valid value of it.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero and ends the name.
    for (slot, byte) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        *slot = byte as libc::c_char;
    }
    request
}

fn ioctl_interface(fd: BorrowedFd<'_>, code: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: TUNSETIFF and TUNGETIFF, the only codes used here, read and write one ifreq, and the reference
    // is to a live one.
    match unsafe { libc::ioctl(fd.as_raw_fd(), code, std::ptr::from_mut(request)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// TUNSETOFFLOAD takes the number itself, TUNSETVNETHDRSZ a pointer to it.
fn set_number(fd: BorrowedFd<'_>, code: libc::Ioctl, number: libc::c_int) -> io::Result<()> {
    let done = if code == libc::TUNSETOFFLOAD {
        // SAFETY: TUNSETOFFLOAD takes an integer argument and touches no memory of ours.
        unsafe { libc::ioctl(fd.as_raw_fd(), code, libc::c_ulong::from(number as libc::c_uint)) }
    } else {
        // SAFETY: TUNSETVNETHDRSZ, the only other code used here, reads one int, and the pointer is to a live
        // one.
        unsafe { libc::ioctl(fd.as_raw_fd(), code, &raw const number) }
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privileges::{has_net_admin, has_sys_admin};
    use crate::testing::{Tcp, checksum_is_right, pattern};
    use std::future::poll_fn;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, UdpSocket};

    pub(super) const KERNEL: &str = "10.77.0.1";
    pub(super) const KERNEL6: &str = "fd00:77::1";

    /// Runs `body` in a fresh namespace with a configured device and a runtime, or prints why it cannot.
    pub(super) fn with_device(offload: bool, body: impl AsyncFnOnce(TunDevice) + Send) {
        with_device_of(TunOptions { offload, ..TunOptions::default() }, body);
    }

    fn with_device_of(options: TunOptions, body: impl AsyncFnOnce(TunDevice) + Send) {
        if !has_sys_admin() || !has_net_admin() {
            println!("skipped: a TUN in a network namespace needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
            return;
        }
        let namespace = Namespace::anonymous().unwrap();
        let mut device = match TunDevice::open_in("pio0", &namespace, options) {
            Ok(device) => device,
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) =>
            {
                println!("skipped: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        device.configure(KERNEL.parse().unwrap(), 24, 1400).unwrap();
        device.configure(KERNEL6.parse().unwrap(), 64, 1400).unwrap();
        namespace
            .run(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let within = std::time::Duration::from_secs(10);
                    tokio::time::timeout(within, body(device)).await.expect("the test ends in time");
                });
            })
            .unwrap();
    }

    /// Returns the next TCP packet from the kernel.
    async fn next_tcp(device: &mut TunDevice) -> (Vec<u8>, RxMeta) {
        loop {
            poll_fn(|cx| device.poll_readable(cx)).await.unwrap();
            let mut found = None;
            let count = device.receive(1, &mut |packet, meta| found = Some((packet.to_vec(), meta))).unwrap();
            assert_eq!(count, usize::from(found.is_some()));
            // The kernel also sends ICMPv6 on a new interface.
            match found {
                Some((packet, meta)) if Headers::of(&packet).is_some() => return (packet, meta),
                _ => {}
            }
        }
    }

    fn send(device: &mut TunDevice, packet: &[u8], tx: TxMeta) {
        device.send(packet, tx).unwrap();
        device.flush().unwrap();
    }

    /// Opens a connection to a kernel listener and returns the template of our next packet.
    pub(super) async fn connect(device: &mut TunDevice, template: Tcp, port: u16) -> Tcp {
        let mss = (device.mtu() - if template.src.is_ipv4() { 40 } else { 60 }) as u16;
        let [m0, m1] = mss.to_be_bytes();
        let options = vec![2, 4, m0, m1, 1, 3, 3, 7];
        let syn = Tcp { ports: (40_000, port), flags: 0x02, options, ..template };
        send(device, &syn.packet(), TxMeta::default());
        let (packet, _) = next_tcp(device).await;
        let answer = Tcp::parse(&packet);
        assert_eq!((answer.flags, answer.ack), (0x12, 2));
        let ack = Tcp { seq: 2, ack: answer.seq.wrapping_add(1), flags: 0x10, options: Vec::new(), ..syn };
        send(device, &ack.packet(), TxMeta::default());
        ack
    }

    #[test]
    fn device_without_offload_passes_finished_packets() {
        with_device(false, async |mut device| {
            assert_eq!((device.mtu(), device.vnet), (1400, false));
            let connecting = std::thread::spawn({
                let namespace = Namespace::current().unwrap();
                move || {
                    namespace.run(|| {
                        let timeout = std::time::Duration::from_millis(50);
                        let _ =
                            std::net::TcpStream::connect_timeout(&"10.77.0.2:80".parse().unwrap(), timeout);
                    })
                }
            });
            let (packet, meta) = next_tcp(&mut device).await;
            assert_eq!(meta, RxMeta { checksum: ChecksumState::Verify, segment_size: None });
            assert!(checksum_is_right(&packet));
            assert_eq!(Tcp::parse(&packet).flags & 0x02, 0x02);
            connecting.join().unwrap().unwrap();
        });
    }

    #[test]
    fn the_synchronous_calls_need_no_runtime() {
        with_device(false, async |device| {
            let mut buffer = [0; 2048];
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            socket.send_to(b"out", "10.77.0.2:9").unwrap();
            let packet = loop {
                let readable = crate::realtime::Waiter::default().wait([device.as_fd()], None).unwrap();
                assert_eq!(readable, [true]);
                let len = device.recv(&mut buffer).unwrap();
                if buffer[0] >> 4 == 4 {
                    break buffer[..len].to_vec();
                }
            };
            assert_eq!(packet[packet.len() - 3..], *b"out");
            let listener = TcpListener::bind((KERNEL, 0)).unwrap();
            let port = listener.local_addr().unwrap().port();
            device.send_raw(&Tcp { ports: (1, port), flags: 2, ..Tcp::v4() }.packet()).unwrap();
            let len = device.recv(&mut buffer).unwrap();
            assert_eq!(Tcp::parse(&buffer[..len]).flags, 0x12);
            assert_eq!(device.recv(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        });
    }

    /// The kernel accepts 30 kB from one `send`, and its answer of 30 kB arrives, whole or in pieces.
    async fn super_packets_both_ways(mut device: TunDevice, template: Tcp, kernel: &str) {
        let offload = device.vnet;
        let listener = TcpListener::bind((kernel, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let ours = connect(&mut device, template, port).await;
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        let payload = pattern(30_000);
        let data = Tcp { flags: 0x18, payload: payload.clone(), ..ours.clone() };
        let mss = (device.mtu() - if ours.src.is_ipv4() { 40 } else { 60 }) as u16;
        let tx = TxMeta { segment_size: Some(mss), partial_checksum: true, twice: false };
        send(&mut device, &data.with_partial_checksum(), tx);
        let mut read = vec![0; payload.len()];
        stream.read_exact(&mut read).unwrap();
        assert!(read == payload);

        // The same packet is sent with the payload in separate memory.
        let data = Tcp { seq: data.seq + 30_000, ..data }.with_partial_checksum();
        let (head, rest) = data.split_at(data.len() - payload.len());
        let (first, second) = rest.split_at(7_777);
        device.send_gathered(head, [first, second], tx).unwrap();
        device.flush().unwrap();
        read.fill(0);
        stream.read_exact(&mut read).unwrap();
        assert!(read == payload);
        assert_eq!(device.capabilities().gather, offload);

        // Acknowledge, so that the kernel's window opens, then read its answer.
        let mut ack = Tcp { seq: ours.seq + 60_000, ..ours };
        stream.write_all(&payload).unwrap();
        let (mut collected, mut longest) = (Vec::new(), 0);
        while collected.len() < payload.len() {
            let (packet, meta) = next_tcp(&mut device).await;
            let segment = Tcp::parse(&packet);
            if segment.payload.is_empty() || segment.seq != ack.ack {
                continue;
            }
            match meta.checksum {
                ChecksumState::Verify => assert!(checksum_is_right(&packet)),
                ChecksumState::Trusted => assert!(offload),
            }
            if segment.payload.len() > usize::from(mss) {
                assert_eq!(meta.segment_size, Some(mss));
            }
            longest = longest.max(segment.payload.len());
            ack.ack = ack.ack.wrapping_add(segment.payload.len() as u32);
            collected.extend(segment.payload);
            send(&mut device, &ack.with_partial_checksum(), TxMeta { partial_checksum: true, ..tx });
        }
        assert!(collected == payload);
        assert_eq!(longest > usize::from(mss), offload, "longest payload {longest}");
        assert_eq!(device.counters().send_refused, 0);
    }

    #[test]
    fn super_packets_pass_whole_with_offload() {
        with_device(true, async |device| {
            assert!(device.capabilities().tso);
            super_packets_both_ways(device, Tcp::v4(), KERNEL).await;
        });
        with_device(true, async |device| super_packets_both_ways(device, Tcp::v6(), KERNEL6).await);
    }

    /// Returns the number of packets that the kernel has received from the device of [`with_device`].
    fn taken_by_the_kernel() -> u64 {
        let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let line = table.lines().find_map(|line| line.trim().strip_prefix("pio0:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Sends 200 kB as one packet, which the kernel receives as `expected` packets.
    async fn a_long_super_packet(mut device: TunDevice, template: Tcp, kernel: &str, expected: u64) {
        let socket = socket2::Socket::new(
            socket2::Domain::for_address((kernel.parse::<IpAddr>().unwrap(), 0).into()),
            socket2::Type::STREAM,
            None,
        )
        .unwrap();
        crate::sockopt::set(
            socket.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            &(4i32 << 20).to_ne_bytes(),
        )
        .unwrap();
        socket.bind(&std::net::SocketAddr::new(kernel.parse().unwrap(), 0).into()).unwrap();
        socket.listen(1).unwrap();
        let listener = TcpListener::from(socket);
        let ours = connect(&mut device, template, listener.local_addr().unwrap().port()).await;
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        let tx = TxMeta { segment_size: Some(1_300), partial_checksum: true, twice: false };
        let mut seq = ours.seq;
        // The window of the SYN permits no more at first.
        for len in [60_000, 200_000, 200_000] {
            let payload = pattern(len);
            let data = Tcp { seq, flags: 0x18, payload: payload.clone(), ..ours.clone() };
            let packet = data.with_partial_checksum();
            let before = taken_by_the_kernel();
            if seq % 2 == 0 {
                send(&mut device, &packet, tx);
            } else {
                let (head, rest) = packet.split_at(packet.len() - len);
                let (first, second) = rest.split_at(77_777.min(len));
                device.send_gathered(head, [first, second], tx).unwrap();
                device.flush().unwrap();
            }
            let mut read = vec![0; len];
            stream.read_exact(&mut read).unwrap();
            assert!(read == payload);
            assert_eq!(taken_by_the_kernel() - before, if len > MAX_SUPER { expected } else { 1 });
            seq += len as u32 + 1;
            // One more byte is sent alone, so that the test covers both ways of sending.
            let last = Tcp { seq: seq - 1, flags: 0x18, payload: vec![7], ..ours.clone() };
            send(&mut device, &last.with_partial_checksum(), TxMeta { segment_size: None, ..tx });
            stream.read_exact(&mut [0]).unwrap();
        }
        assert_eq!(device.counters().send_refused, 0);
    }

    #[test]
    fn long_super_packet_is_accepted_whole_or_in_pieces() {
        with_device(true, async |device| {
            if device.capabilities().max_super != MAX_SUPER_LEN {
                return println!("skipped: a TUN takes no packet beyond 64 kB before Linux 6.6");
            }
            a_long_super_packet(device, Tcp::v4(), KERNEL, 1).await;
        });
        with_device(true, async |device| a_long_super_packet(device, Tcp::v6(), KERNEL6, 4).await);
        let options = TunOptions { beyond_64k: false, ..TunOptions::default() };
        with_device_of(options, async |device| {
            assert_eq!(device.capabilities().max_super, MAX_SUPER);
            a_long_super_packet(device, Tcp::v4(), KERNEL, 4).await;
        });
    }

    /// A socket in place of the kernel refuses long packets, like a kernel before Linux 6.6, and is full
    /// after three pieces.
    #[test]
    fn pieces_without_space_wait_and_follow_in_order() {
        with_device(true, async |_| {
            let flags = rustix::net::SocketFlags::NONBLOCK;
            let (unix, datagrams) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::DGRAM);
            let payload = pattern(250_000);
            let data = Tcp { flags: 0x18, payload: payload.clone(), ..Tcp::v4() };
            for partial_checksum in [true, false] {
                let (near, far) = rustix::net::socketpair(unix, datagrams, flags, None).unwrap();
                let room = 85_000i32.to_ne_bytes();
                crate::sockopt::set(near.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, &room).unwrap();
                let queue = TunDevice::over(near, "queue", 1400, true);
                let mut queue = TunDevice { big: Locals::open(), ..queue };
                let tx = TxMeta { segment_size: Some(1_300), partial_checksum, twice: false };
                let packet = data.with_partial_checksum();
                queue.send(&packet, tx).unwrap();
                assert_eq!(queue.cut.left.len(), 1);
                assert_eq!(queue.send(&packet, tx).unwrap_err().kind(), io::ErrorKind::WouldBlock);
                let (mut collected, mut buffer) = (Vec::new(), vec![0; TunDevice::READ_BUFFER]);
                for _ in 0..4 {
                    let (at, meta) = read_packet(far.as_fd(), true, &mut buffer).unwrap();
                    let trusted = RxMeta { checksum: ChecksumState::Trusted, segment_size: Some(1_300) };
                    assert_eq!(meta, trusted);
                    let piece = Tcp::parse(&buffer[at]);
                    assert_eq!(piece.seq as usize, data.seq as usize + collected.len());
                    collected.extend(piece.payload);
                    queue.flush().unwrap();
                }
                assert!(collected == payload);
                assert_eq!((queue.counters().sent, queue.counters().send_refused), (1, 0));
            }
        });
    }

    /// An interface that is down refuses all packets. A socket in place of the kernel has space only for the
    /// last of four pieces.
    #[test]
    fn packet_in_pieces_is_counted_once_with_any_result() {
        with_device(true, async |_| {
            let options = TunOptions { beyond_64k: false, ..TunOptions::default() };
            let tx = TxMeta { segment_size: Some(1_300), partial_checksum: true, twice: false };
            let of = |len| Tcp { payload: pattern(len), ..Tcp::v4() }.with_partial_checksum();
            let packet = of(250_000);
            for (options, len) in [(options, 250_000), (TunOptions { offload: false, ..options }, 50_000)] {
                let mut down = TunDevice::open("down0", options).unwrap();
                down.send(&of(len), tx).unwrap();
                down.send(&of(len), tx).unwrap();
                assert_eq!((down.counters().sent, down.counters().send_refused), (0, 2));
            }

            let flags = rustix::net::SocketFlags::NONBLOCK;
            let (unix, datagrams) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::DGRAM);
            let (near, far) = rustix::net::socketpair(unix, datagrams, flags, None).unwrap();
            let room = 30_000i32.to_ne_bytes();
            crate::sockopt::set(near.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, &room).unwrap();
            let mut queue = TunDevice::over(near, "queue", 1400, true);
            queue.send(&packet, tx).unwrap();
            assert_eq!((queue.counters().sent, queue.counters().send_refused), (0, 1));
            let mut buffer = vec![0; TunDevice::READ_BUFFER];
            let (at, _) = read_packet(far.as_fd(), true, &mut buffer).unwrap();
            assert!(Tcp::parse(&buffer[at]).payload == pattern(250_000)[195_000..]);
            assert_eq!(
                (queue.cut.left.len(), read_packet(far.as_fd(), true, &mut buffer).is_err()),
                (0, true)
            );
        });
    }

    #[test]
    fn a_long_packet_of_one_segment_is_refused() {
        with_device(true, async |mut device| {
            let packet = Tcp { payload: pattern(70_000), ..Tcp::v4() }.with_partial_checksum();
            for segment_size in [None, Some(0), Some(65_500)] {
                let tx = TxMeta { segment_size, partial_checksum: true, twice: false };
                device.send(&packet, tx).unwrap();
            }
            assert_eq!((device.counters().sent, device.counters().send_refused), (0, 3));
        });
    }

    #[test]
    fn piece_of_a_payload_may_span_both_parts() {
        let whole: Vec<u8> = (0..100).collect();
        for at in [0, 1, 40, 99, 100] {
            let (first, second) = whole.split_at(at);
            for range in [0..100, 0..40, 40..41, 39..99, 99..100, 50..50] {
                assert_eq!(part([first, second], range.clone()).concat(), &whole[range]);
            }
        }
    }

    #[test]
    fn super_packets_are_cut_in_software_without_offload() {
        with_device(false, async |device| {
            assert!(!device.capabilities().tso);
            super_packets_both_ways(device, Tcp::v4(), KERNEL).await;
        });
        with_device(false, async |device| super_packets_both_ways(device, Tcp::v6(), KERNEL6).await);
    }

    #[test]
    fn packet_refused_by_the_kernel_is_a_loss_and_no_error() {
        with_device(true, async |mut device| {
            device.send(&[0x00; 40], TxMeta::default()).unwrap();
            assert_eq!(device.counters().send_refused, 1);
        });
    }

    #[test]
    fn a_descriptor_can_be_taken_over_with_its_flags() {
        with_device(true, async |device| {
            let copy = TunDevice::from_fd(device.fd.try_clone().unwrap(), 1400).unwrap();
            assert_eq!((copy.name(), copy.vnet, copy.mtu()), ("pio0", true, 1400));
        });
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(TunDevice::from_fd(null.into(), 1400).is_err());
    }

    #[test]
    fn second_owner_gets_a_busy_error() {
        with_device(false, async |device| {
            let error = TunDevice::open(device.name(), TunOptions::default()).unwrap_err();
            assert!(error.to_string().contains("another process holds this device"), "{error}");
        });
    }

    #[test]
    fn a_bad_name_is_refused_before_any_right_is_needed() {
        assert!(TunDevice::open("a/b", TunOptions::default()).is_err());
        assert!(TunDevice::open("", TunOptions::default()).is_err());
    }
}
