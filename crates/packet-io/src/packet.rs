//! Native TCP on an address of the host, through a packet socket (`packet(7)`).
//!
//! The kernel's TCP and the stack share the address and use different ports. A packet socket reads packets to
//! the stack's ports before any firewall of this host. The stack's packets leave through a raw socket, so the
//! kernel routes them, resolves the neighbour's address and applies its rules. `guard` keeps the kernel from
//! answering packets to the stack's ports. All of this needs only CAP_NET_RAW.
//!
//! With more capabilities the kernel redirects segments to the stack, which is faster (`redirect`, [`open`]).
//!
//! Arriving packets may be super-packets. If the sender is on this host, their checksums may be unfinished; a
//! `virtio_net_hdr` (`PACKET_VNET_HDR`) reports this. Packets of the stack leave one by one with complete
//! checksums.

pub(crate) mod filter;
pub(crate) mod guard;
pub(crate) mod out;
mod queues;
mod redirect;

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Context, Poll};

use brisk_device::offload;
use brisk_device::steering::Steering;
use brisk_device::{Capabilities, Counters, Device, MAX_SUPER, RxMeta, TxMeta};
use socket2::{Domain, SockAddr, SockAddrStorage, Socket, Type};

use crate::bpf::{self, extended};
use crate::headers::Headers;
use crate::interface::Interface;
use crate::privileges::OpenError;
use crate::reactor::Reactor;
use crate::share::{KernelListener, Share};
use crate::takeover::relay::RelayEnd;
use crate::vnet::VnetHeader;
use guard::Guards;
use out::RawSockets;
use redirect::RedirectDevice;

/// Options of a packet device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketOptions {
    /// Address and port that the stack listens on; `[::]` or `0.0.0.0` for every address. Default none.
    pub serve: Option<SocketAddr>,
    /// The clients of `serve` that the stack serves; the kernel serves the others
    /// ([`Opened::kernel_listener`]). Default `None`: the stack serves all clients.
    pub share: Option<Share>,
    /// Number of ports to claim for connections that the stack opens, in blocks of 64 from 61056 to 65535.
    /// The stack gets fewer if other processes use blocks. Each port in use takes a descriptor. Default 256.
    pub local_ports: u16,
    /// Requested size of the receive buffer in bytes; the kernel may grant less. Default 4 MiB.
    pub buffer_bytes: usize,
    /// True to let the kernel redirect frames instead of copying them to packet sockets, if [`open`] finds
    /// that this works. Default true.
    pub redirect: bool,
}

impl Default for PacketOptions {
    fn default() -> Self {
        PacketOptions { serve: None, share: None, local_ports: 256, buffer_bytes: 4 << 20, redirect: true }
    }
}

/// A packet socket on one interface, as a device for IP packets of the host's own addresses.
#[derive(Debug)]
pub struct PacketDevice {
    reactor: Reactor,
    source: Source,
    out: RawSockets,
    guards: Arc<Guards>,
    interface: String,
    /// Length of the link header before each packet, bytes.
    link: usize,
    mtu: usize,
    buffer: Vec<u8>,
    /// Segments that wait because the socket was full.
    backlog: VecDeque<Vec<u8>>,
    counters: Counters,
}

/// The origin of received packets.
#[derive(Debug)]
enum Source {
    Frames(Socket),
    /// The process that has taken over the port.
    Relay(RelayEnd),
    Nothing,
}

impl Source {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Source::Frames(socket) => Some(socket.as_fd()),
            Source::Relay(end) => Some(end.as_fd()),
            Source::Nothing => None,
        }
    }
}

/// Length of the read buffer: a packet of up to 64 kB, after its `virtio_net_hdr` and its link header.
pub(crate) const READ_BUFFER: usize = MAX_SUPER + 128;
pub(crate) const ETHERNET_HEADER: usize = 14;
// From linux/if_packet.h and linux/if_ether.h.
const PACKET_VNET_HDR: i32 = 15;
const PACKET_IGNORE_OUTGOING: i32 = 23;
pub(crate) const ETH_P_ALL: u16 = 3;

/// The device that [`open`] has opened.
pub struct Opened {
    /// The queues, one device each.
    pub queues: Vec<Box<dyn Device>>,
    /// Ports from which the stack must open connections.
    pub local_ports: Option<RangeInclusive<u16>>,
    /// True if the kernel redirects the frames; false if packet sockets receive them.
    pub redirected: bool,
    /// The kernel's listener at the served address, if the kernel serves clients there.
    pub kernel_listener: Option<KernelListener>,
}

/// Opens `count` queues for the stack on `addresses`, which belong to the host on `interface`. Uses
/// redirection if the system permits it, otherwise packet sockets. The listening ports in `options` are
/// guarded as long as one of the queues exists.
///
/// # Errors
/// CAP_NET_RAW is missing, there is no such interface, it is neither an Ethernet nor an IP tunnel, or another
/// program has the port.
pub fn open(
    interface: &str,
    addresses: &[IpAddr],
    options: PacketOptions,
    count: usize,
) -> Result<Opened, OpenError> {
    open_with(interface, addresses, options, count, None).map(|(opened, _)| opened)
}

/// Like [`open`], but also returns the guards. `inherited` is the guard of the served port if another process
/// hands that port over.
pub(crate) fn open_with(
    interface: &str,
    addresses: &[IpAddr],
    options: PacketOptions,
    count: usize,
    inherited: Option<&Socket>,
) -> Result<(Opened, Arc<Guards>), OpenError> {
    let guards = claim(interface, options, inherited)?;
    let local_ports = guards.ports();
    let failed = |error| OpenError::packet(interface, "the kernel's listener cannot be used", error);
    let kernel_listener = |guards_stack| guards.kernel_listener(guards_stack).map_err(failed);
    if options.redirect
        && let Ok(queues) = RedirectDevice::open_queues(interface, addresses, &guards, count)
    {
        let kernel_listener = kernel_listener(false)?;
        let queues = boxed(queues);
        let opened = Opened { queues, local_ports, redirected: true, kernel_listener };
        return Ok((opened, guards));
    }
    let kernel_listener = kernel_listener(true)?;
    let queues = boxed(PacketDevice::queues(interface, options, guards.clone(), count)?);
    Ok((Opened { queues, local_ports, redirected: false, kernel_listener }, guards))
}

fn boxed(queues: Vec<impl Device + 'static>) -> Vec<Box<dyn Device>> {
    queues.into_iter().map(|queue| Box::new(queue) as Box<dyn Device>).collect()
}

fn claim(
    interface: &str,
    options: PacketOptions,
    inherited: Option<&Socket>,
) -> Result<Arc<Guards>, OpenError> {
    let PacketOptions { serve, share, local_ports, .. } = options;
    Guards::claim_for(&format!("packet:{interface}"), interface, serve, share, local_ports, inherited)
}

impl PacketDevice {
    pub(crate) fn guarded(
        interface: &str,
        options: PacketOptions,
        guards: Arc<Guards>,
    ) -> Result<PacketDevice, OpenError> {
        let found = Interface::named(interface)?;
        let mtu = found.mtu()?;
        let failed = |error| OpenError::packet(interface, "a packet socket cannot be opened", error);
        // The socket receives nothing before it is bound, and then only packets that pass the filter.
        let socket = Socket::new(Domain::PACKET, Type::RAW.nonblocking(), None).map_err(failed)?;
        let link = match hardware(&socket, found.index()).map_err(failed)? {
            libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => ETHERNET_HEADER,
            libc::ARPHRD_NONE => 0,
            other => {
                let problem = format!("links of this kind ({other}) are not known; use udp:");
                return Err(OpenError::unsupported(format!("packet:{interface}"), problem));
            }
        };
        prepare(&socket, link, options, &guards).map_err(failed)?;
        bind(&socket, found.index(), ETH_P_ALL).map_err(failed)?;
        Ok(PacketDevice {
            reactor: Reactor::default(),
            source: Source::Frames(socket),
            out: RawSockets::open().map_err(failed)?,
            guards,
            interface: interface.to_owned(),
            link,
            mtu,
            buffer: vec![0; READ_BUFFER],
            backlog: VecDeque::new(),
            counters: Counters::default(),
        })
    }

    /// Returns a device that receives packets through `relay` from the process that has taken over the port.
    /// Without a relay it receives nothing.
    /// # Errors
    /// CAP_NET_RAW is missing, or there is no such interface.
    pub(crate) fn relayed(
        interface: &str,
        relay: Option<RelayEnd>,
        guards: Arc<Guards>,
    ) -> Result<PacketDevice, OpenError> {
        let failed = |error| OpenError::packet(interface, "a raw socket cannot be opened", error);
        Ok(PacketDevice {
            reactor: Reactor::default(),
            source: relay.map_or(Source::Nothing, Source::Relay),
            out: RawSockets::open().map_err(failed)?,
            guards,
            interface: interface.to_owned(),
            link: 0,
            mtu: Interface::named(interface)?.mtu()?,
            buffer: vec![0; READ_BUFFER],
            backlog: VecDeque::new(),
            counters: Counters::default(),
        })
    }

    /// Returns the packet socket.
    fn frames(&self) -> io::Result<BorrowedFd<'_>> {
        match &self.source {
            Source::Frames(socket) => Ok(socket.as_fd()),
            Source::Relay(_) | Source::Nothing => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Returns the ports from which the stack must open connections.
    pub fn local_ports(&self) -> Option<RangeInclusive<u16>> {
        self.guards.ports()
    }

    /// Sends waiting segments as long as the socket has room.
    fn drain(&mut self) -> io::Result<()> {
        while let Some(segment) = self.backlog.front() {
            match self.out.send(segment) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                // The packet has no route, is too long, or was rejected by a firewall. TCP treats it as lost.
                Err(_) => self.counters.send_refused += 1,
                Ok(()) => {}
            }
            self.backlog.pop_front();
        }
        Ok(())
    }
}

/// Returns the packet without the padding of a short frame.
pub(crate) fn without_padding(packet: &[u8]) -> &[u8] {
    let length = match packet {
        [0x40..=0x4F, _, high, low, ..] => usize::from(u16::from_be_bytes([*high, *low])),
        [0x60..=0x6F, _, _, _, high, low, ..] => 40 + usize::from(u16::from_be_bytes([*high, *low])),
        _ => packet.len(),
    };
    packet.get(..length).unwrap_or(packet)
}

pub(crate) fn source_port(packet: &[u8]) -> Option<u16> {
    let headers = Headers::of(packet)?;
    let bytes = packet.get(headers.ip_len..)?.first_chunk::<2>()?;
    Some(u16::from_be_bytes(*bytes))
}

impl Device for PacketDevice {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.source.fd() {
            Some(fd) => self.reactor.poll_readable(fd, cx),
            None => Poll::Pending,
        }
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> io::Result<usize> {
        let mut count = 0;
        while count < budget {
            let found = match &mut self.source {
                Source::Frames(socket) => self.reactor.read(|| read(socket.as_fd(), &mut self.buffer)),
                Source::Relay(end) => self.reactor.read(|| end.read(&mut self.buffer)),
                Source::Nothing => break,
            };
            match found {
                Ok((len, meta)) => {
                    let packet = self.buffer.get(self.link..len).unwrap_or_default();
                    let packet = without_padding(packet);
                    self.counters.on_received(packet.len());
                    sink(packet, meta);
                    count += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The process that has taken over the port has ended.
                Err(_) if matches!(self.source, Source::Relay(_)) => {
                    self.reactor = Reactor::default();
                    self.source = Source::Nothing;
                }
                // The interface is down and may come up again.
                Err(error)
                    if error.raw_os_error() == Some(libc::ENETDOWN)
                        && Interface::named(&self.interface).is_ok() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    fn send(&mut self, packet: &[u8], tx: TxMeta) -> io::Result<()> {
        self.drain()?;
        if self.guards.is_unguarded(packet) {
            self.counters.send_refused += 1;
            return Ok(());
        }
        offload::cut(packet, tx, &mut |segment| self.backlog.push_back(segment.to_vec()));
        self.counters.on_sent(packet.len());
        match self.drain() {
            // Waiting packets count as sent.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            other => other,
        }
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let next = self.backlog.front().map_or(&[][..], Vec::as_slice);
        self.out.poll_writable(next, cx)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.drain()
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { descriptor: true, ..Capabilities::NONE }
    }

    fn counters(&self) -> Counters {
        let receive_overflowed = self.frames().map_or(0, crate::sockopt::dropped);
        Counters { receive_overflowed, ..self.counters }
    }

    fn spread(&mut self, steering: &Steering) -> io::Result<()> {
        self.choose_queue_by(steering)
    }
}

/// Reads one frame with its link header.
pub(crate) fn read(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, RxMeta)> {
    let mut header = [0; VnetHeader::LEN];
    let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(buffer)];
    let len = rustix::io::readv(fd, &mut parts)?;
    Ok((len.saturating_sub(VnetHeader::LEN), VnetHeader::parse(&header).rx_meta()))
}

/// Returns the hardware type of the interface (`sll_hatype`).
fn hardware(socket: &Socket, index: u32) -> io::Result<u16> {
    bind(socket, index, 0)?;
    let storage = socket.local_addr()?;
    // SAFETY: the kernel has written a sockaddr_ll for a packet socket, and the storage has room for any
    // address.
    Ok(unsafe { (*storage.as_ptr().cast::<libc::sockaddr_ll>()).sll_hatype })
}

/// Binds to an interface and an Ethernet protocol; protocol 0 receives nothing.
pub(crate) fn bind(socket: &Socket, index: u32, protocol: u16) -> io::Result<()> {
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: sockaddr_ll is plain old data, and the storage has room and alignment for every kind of
    // address.
    let address = unsafe { storage.view_as::<libc::sockaddr_ll>() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index as i32;
    // SAFETY: the storage holds a sockaddr_ll, and this is its length.
    let address = unsafe { SockAddr::new(storage, size_of::<libc::sockaddr_ll>() as libc::socklen_t) };
    socket.bind(&address)
}

/// Enables a `virtio_net_hdr` on arriving packets, and ignores packets that this host sends.
pub(crate) fn describe_arrivals(socket: &Socket) -> io::Result<()> {
    let on = 1i32.to_ne_bytes();
    crate::sockopt::set(socket.as_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, &on)?;
    crate::sockopt::set(socket.as_fd(), libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &on)
}

fn prepare(socket: &Socket, link: usize, options: PacketOptions, guards: &Guards) -> io::Result<()> {
    describe_arrivals(socket)?;
    let own = guards.ports();
    let wanted = guards.wanted(link, own.as_ref(), &[]);
    let program = filter::program(wanted);
    match wanted.list() {
        Some(list) => extended::filter_by_list(socket.as_fd(), &program, list, [0, bpf::CLIENT])?,
        None => bpf::set_program(socket.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?,
    }
    crate::sockopt::request_buffers(socket.as_fd(), options.buffer_bytes);
    Ok(())
}
