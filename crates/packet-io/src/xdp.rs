//! Native TCP on an address of the host, through AF_XDP (`Documentation/networking/af_xdp.rst`).
//!
//! A program at the interface hands the segments for the stack to sockets whose memory is ours, before the kernel has made
//! anything of them; everything else is the kernel's as before. What the stack sends leaves as frames from the same memory,
//! by this interface alone and past the host's firewall, to the next hop that the kernel's tables name (`ways`). Where the
//! driver knows how, frames are not copied at all. There are no super-packets in either direction: it pays for many short
//! transfers on such an interface, and for bulk `packet:` is better.
//!
//! | file | what |
//! |---|---|
//! | [`mod@self`] | [`open`], and the device |
//! | `program` | what the program at the interface decides |
//! | `socket` | the socket of a queue of the interface, its memory and rings |
//! | `ring`, `mapping` | a ring, and memory that is shared with the kernel |
//! | `ways` | hardware addresses of next hops |
//! | `errors` | ICMP errors, and whether the interface is there |
//! | `survey` | what it would meet on an interface |
//!
//! It takes an Ethernet with an MTU of at most [`MOST_MTU`], Linux 5.9, CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON. The
//! program and everything else go with the process, however it ends.

mod errors;
mod mapping;
mod program;
mod ring;
mod socket;
mod survey;
mod ways;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use crate::bpf::extended::XdpMode;
use crate::device::{Capabilities, ChecksumState, Counters, Device, RxMeta, TxMeta};
use crate::ethernet;
use crate::headers::{Headers, TCP_CHECKSUM};
use crate::interface::Interface;
use crate::offload;
use crate::packet::filter::{MOST_ADDRESSES, Wanted};
use crate::packet::guard::Guards;
use crate::packet::out::Out;
use crate::packet::{ETHERNET_HEADER, PacketOptions, source_port, without_padding};
use crate::privileges::OpenError;
use crate::reactor::Reactor;
use errors::Errors;
use program::Running;
use socket::{HEADROOM, XdpSocket};
pub use survey::{Survey, survey};
use ways::Ways;

/// How an XDP device is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XdpOptions {
    /// As [`PacketOptions::serve`]. Default none.
    pub serve: Option<SocketAddr>,
    /// As [`PacketOptions::local_ports`]. Default 256.
    pub local_ports: u16,
    /// Frames that may wait for the stack on each queue of the interface: 64 to 65,536, rounded up to a power of two. Each
    /// takes 2 KiB, or 4 if the MTU is above 1774. Default 2048.
    pub receive_frames: u32,
    /// Frames that may wait for the interface on each of its queues; likewise. Default 1024.
    pub send_frames: u32,
    /// Have the program run by the driver, where it can. Default true.
    pub native: bool,
    /// Let the driver use the stack's memory, where it can. Default true.
    pub zero_copy: bool,
    /// Believe segments whose checksum is nothing but the sum of the pseudo-header: that is what a sender on the same host
    /// leaves to the interface to finish. `None`: only on a veth. Where segments come from a wire it must not be true.
    /// Default `None`.
    pub unfinished_checksums: Option<bool>,
}

impl Default for XdpOptions {
    fn default() -> Self {
        XdpOptions {
            serve: None,
            local_ports: PacketOptions::default().local_ports,
            receive_frames: 2048,
            send_frames: 1024,
            native: true,
            zero_copy: true,
            unfinished_checksums: None,
        }
    }
}

/// The longest IP packet that fits into a frame of a page, bytes: there are 256 before it, and a tag may be in its header.
pub const MOST_MTU: usize = 4096 - HEADROOM - ETHERNET_HEADER - VLAN_TAG;
const VLAN_TAG: usize = 4;
/// Queues of an interface that are used; `ethtool -L` makes them fewer.
const MOST_QUEUES: u32 = 64;
/// How long is waited for a full interface, which does not tell when it has room.
const PAUSE: Duration = Duration::from_millis(1);

/// What [`open`] has opened.
pub struct Opened {
    /// The queues, each a device: as many as were asked for, or as the interface has if these are fewer.
    pub queues: Vec<Box<dyn Device>>,
    /// The ports that connections opened by the stack must come from.
    pub local_ports: Option<RangeInclusive<u16>>,
    /// How frames get to the stack.
    pub path: Path,
}

/// How frames get from the interface to the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    /// The driver writes them to the stack's memory.
    ZeroCopy,
    /// The driver runs the program, and frames are copied.
    Native,
    /// The driver knows nothing of XDP: the kernel runs the program on buffers of its own, and frames are copied. Packets
    /// that were put together on the way (GRO, TSO of a sender on the same host) do not fit a frame and are lost.
    Generic,
}

impl Path {
    /// In a word: `zero-copy`, `native`, `generic`.
    pub fn name(self) -> &'static str {
        match self {
            Path::ZeroCopy => "zero-copy",
            Path::Native => "native",
            Path::Generic => "generic",
        }
    }
}

/// Opens so many queues, or as many as the interface has, for the stack on `addresses`, which the host has and which are
/// reached over `interface`.
///
/// # Errors
/// No such interface, or no Ethernet; an MTU above [`MOST_MTU`]; no addresses, or more than 16; a right that is missing; another
/// XDP program at the interface, which is left alone; another program that has the port.
pub fn open(
    interface: &str,
    addresses: &[IpAddr],
    options: XdpOptions,
    count: usize,
) -> Result<Opened, OpenError> {
    let subject = format!("xdp:{interface}");
    let unsupported = |problem: String| Err(OpenError::unsupported(subject.clone(), problem));
    let guards = Guards::claim_for(&subject, interface, options.serve, options.local_ports)?;
    let interface = Interface::named(interface)?;
    let (mtu, mac) = (interface.mtu()?, interface.hardware_address()?);
    if mtu > MOST_MTU {
        return unsupported(format!(
            "its MTU is {mtu}, and a frame of AF_XDP has room for {MOST_MTU}; `ip link set {} mtu {MOST_MTU}`, or use packet:",
            interface.name()
        ));
    }
    // Whatever is not for us is for the kernel, or on its way through this host.
    if addresses.is_empty() || addresses.len() > MOST_ADDRESSES {
        return unsupported(format!(
            "the stack shares 1 to {MOST_ADDRESSES} addresses with the host, and these are {}; name them with --addr",
            addresses.len()
        ));
    }
    let sockets = sockets(&interface, mtu, &options)?;
    let own = guards.ports();
    let served = options.serve.map(|served| served.port());
    let wanted = Wanted { link: ETHERNET_HEADER as u32, served, own: own.as_ref(), addresses };
    let descriptors: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    let running = Arc::new(Running::start(&interface, wanted, &descriptors, options.native)?);
    let path = match running.mode() {
        _ if sockets.iter().all(XdpSocket::is_zero_copy) => Path::ZeroCopy,
        XdpMode::Native => Path::Native,
        XdpMode::Generic => Path::Generic,
    };
    let trusts = options.unfinished_checksums.unwrap_or_else(|| interface.kind().as_deref() == Some("veth"));
    let count = count.clamp(1, sockets.len());
    let mut ports: Vec<Vec<Port>> = (0..count).map(|_| Vec::new()).collect();
    for (n, socket) in sockets.into_iter().enumerate() {
        ports[n % count].push(Port { reactor: Reactor::default(), socket });
    }
    let host = Host { interface, mac, mtu, trusts };
    let device = |ports| XdpDevice::new(running.clone(), ports, guards.clone(), host.clone());
    let devices = ports.into_iter().map(device).collect::<Result<Vec<_>, _>>()?;
    let queues = devices.into_iter().map(|device| Box::new(device) as Box<dyn Device>).collect();
    Ok(Opened { queues, local_ports: guards.ports(), path })
}

/// A socket for each queue of the interface: what comes by a queue can go only to its own.
fn sockets(interface: &Interface, mtu: usize, options: &XdpOptions) -> Result<Vec<XdpSocket>, OpenError> {
    let chunk = if mtu + ETHERNET_HEADER + VLAN_TAG + HEADROOM <= 2048 { 2048 } else { 4096 };
    let queues = interface.receive_queues().max(1);
    if queues > MOST_QUEUES {
        let problem = format!(
            "it has {queues} queues, and at most {MOST_QUEUES} are used; `ethtool -L {} combined {MOST_QUEUES}` makes them fewer",
            interface.name()
        );
        return Err(OpenError::unsupported(format!("xdp:{}", interface.name()), problem));
    }
    let mut sockets = Vec::new();
    for queue in 0..queues {
        match XdpSocket::open(interface, queue, chunk, options) {
            Ok(socket) => sockets.push(socket),
            // There are not as many as there is room for.
            Err(error) if queue > 0 && error.kind() == io::ErrorKind::InvalidInput => break,
            Err(error) => return Err(error),
        }
    }
    Ok(sockets)
}

/// What is known of the interface.
#[derive(Clone, Debug)]
struct Host {
    interface: Interface,
    mac: [u8; 6],
    mtu: usize,
    /// Checksums that are only the sum of the pseudo-header are believed.
    trusts: bool,
}

/// A queue of the interface.
#[derive(Debug)]
struct Port {
    reactor: Reactor,
    socket: XdpSocket,
}

/// Some of the queues of an interface, as a device for IP packets of the host's own addresses.
#[derive(Debug)]
struct XdpDevice {
    /// First to go: what arrives from then on is the kernel's.
    _running: Arc<Running>,
    /// At least one. All are received from, the first one sends.
    ports: Vec<Port>,
    /// The one that is received from first.
    turn: usize,
    errors: Errors,
    ways: Ways,
    /// For packets that the kernel must send.
    out: Out,
    guards: Arc<Guards>,
    host: Host,
    /// Segments that met a full ring.
    backlog: VecDeque<Vec<u8>>,
    /// The interface had no room when it was tried last.
    is_full: bool,
    pause: Option<Pin<Box<Sleep>>>,
    counters: Counters,
}

impl XdpDevice {
    fn new(
        running: Arc<Running>,
        ports: Vec<Port>,
        guards: Arc<Guards>,
        host: Host,
    ) -> Result<XdpDevice, OpenError> {
        let name = host.interface.name();
        let errors = Errors::open(&host.interface)
            .map_err(|error| OpenError::xdp(name, "a packet socket cannot be opened", error))?;
        let ways = Ways::of(&host.interface)
            .map_err(|error| OpenError::xdp(name, "the kernel does not tell its routes", error))?;
        let out =
            Out::open().map_err(|error| OpenError::xdp(name, "a raw socket cannot be opened", error))?;
        Ok(XdpDevice {
            _running: running,
            ports,
            turn: 0,
            errors,
            ways,
            out,
            guards,
            host,
            backlog: VecDeque::new(),
            is_full: false,
            pause: None,
            counters: Counters::default(),
        })
    }

    /// What to make of an error that may mean that the interface has gone: switched off, it may be switched on again.
    fn unless_gone(&self, error: io::Error) -> io::Result<()> {
        let Host { interface, .. } = &self.host;
        match Interface::named(interface.name()) {
            Ok(found) if found.index() == interface.index() => match error.raw_os_error() {
                Some(libc::ENETDOWN) => Ok(()),
                _ => Err(error),
            },
            _ => {
                let gone = format!("xdp:{}: the interface has gone", interface.name());
                Err(io::Error::new(io::ErrorKind::NotFound, gone))
            }
        }
    }

    /// Where a frame with this packet goes; `None`: the kernel sends it.
    fn mac(&mut self, packet: &[u8]) -> Option<[u8; 6]> {
        let (from, to) = ethernet::addresses(packet)?;
        self.ways.mac(from, to, Instant::now())
    }

    /// Sends a finished segment, or refuses it; false if there is no room.
    fn put(&mut self, segment: &[u8], to: Option<[u8; 6]>) -> bool {
        if segment.len() > self.host.mtu {
            self.counters.send_refused += 1;
            return true;
        }
        let Some(mac) = to else { return self.put_by_kernel(segment) };
        let header = ethernet_header(mac, self.host.mac, segment);
        let Some(port) = self.ports.first_mut() else { return true };
        // What the ring is full of is with the interface as soon as the kernel has looked.
        port.socket.send(&header, segment)
            || (port.socket.kick().is_ok() && port.socket.send(&header, segment))
    }

    fn put_by_kernel(&mut self, segment: &[u8]) -> bool {
        // In their order, as far as it is ours.
        let _ = self.ports.first_mut().map(|port| port.socket.kick());
        match self.out.send(segment) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            // No route, a firewall's rule: to TCP that is a loss.
            Err(_) => self.counters.send_refused += 1,
            Ok(()) => {}
        }
        true
    }

    /// Lets the kernel send what is in the ring.
    fn kick(&mut self) -> io::Result<()> {
        let Some(port) = self.ports.first_mut() else { return Ok(()) };
        let Err(error) = port.socket.kick() else { return Ok(()) };
        self.is_full = true;
        if error.kind() != io::ErrorKind::WouldBlock {
            self.unless_gone(error)?;
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Sends what waits for room.
    fn drain(&mut self) -> io::Result<()> {
        while let Some(segment) = self.backlog.pop_front() {
            let to = self.mac(&segment);
            if !self.put(&segment, to) {
                self.backlog.push_front(segment);
                self.is_full = true;
                self.kick()?;
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        Ok(())
    }
}

/// One frame that has arrived.
fn deliver(frame: &[u8], trusts: bool, counters: &mut Counters, sink: &mut dyn FnMut(&[u8], RxMeta)) {
    let packet = without_padding(frame.get(ETHERNET_HEADER..).unwrap_or_default());
    if packet.is_empty() {
        counters.receive_dropped += 1;
        return;
    }
    let checksum = if trusts && is_unfinished(packet) {
        counters.unfinished_checksums += 1;
        ChecksumState::Trusted
    } else {
        ChecksumState::Verify
    };
    counters.on_received(packet.len());
    sink(packet, RxMeta { checksum, segment_size: None });
}

/// Whether the TCP checksum of a packet is what a sender leaves to its interface to finish.
fn is_unfinished(packet: &[u8]) -> bool {
    let Some(headers) = Headers::of(packet) else { return false };
    let field = packet.get(headers.ip_len + TCP_CHECKSUM..).and_then(|field| field.first_chunk::<2>());
    field.is_some_and(|field| u16::from_be_bytes(*field) == headers.pseudo_sum(packet))
}

/// What stands before an IP packet in a frame (RFC 894, RFC 2464).
fn ethernet_header(to: [u8; 6], from: [u8; 6], packet: &[u8]) -> [u8; ETHERNET_HEADER] {
    let kind = if packet.first().is_some_and(|first| first >> 4 == 6) { [0x86, 0xDD] } else { [0x08, 0x00] };
    let mut header = [0; ETHERNET_HEADER];
    header[..6].copy_from_slice(&to);
    header[6..12].copy_from_slice(&from);
    header[12..].copy_from_slice(&kind);
    header
}

impl Device for XdpDevice {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // All are asked, so that each wakes the task.
        let mut readable = self.errors.poll_readable(cx)?.is_ready();
        for Port { reactor, socket } in &mut self.ports {
            readable |= reactor.poll_readable(socket.as_fd(), cx)?.is_ready();
        }
        if readable { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> io::Result<usize> {
        let mut count = 0;
        let (counters, trusts) = (&mut self.counters, self.host.trusts);
        self.turn = (self.turn + 1) % self.ports.len();
        let (before, from) = self.ports.split_at_mut(self.turn);
        for Port { reactor, socket } in from.iter_mut().chain(before) {
            let wanted = budget - count;
            let mut each = |frame: &[u8]| deliver(frame, trusts, counters, sink);
            let read = || {
                let found = socket.receive(wanted, &mut each);
                Ok((found, found < wanted))
            };
            match reactor.read_out(read) {
                Ok(found) => count += found,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        let each = &mut |packet: &[u8], meta| {
            counters.on_received(packet.len());
            sink(packet, meta);
        };
        match self.errors.receive(budget - count, each) {
            Ok(found) => count += found,
            Err(error) => self.unless_gone(error)?,
        }
        Ok(count)
    }

    fn send(&mut self, packet: &[u8], tx: TxMeta) -> io::Result<()> {
        self.drain()?;
        // Without a guard the port may be another program's.
        if source_port(packet).is_some_and(|port| !self.guards.covers(port)) {
            self.counters.send_refused += 1;
            return Ok(());
        }
        let to = self.mac(packet);
        offload::cut(packet, tx, &mut |segment| {
            if !self.backlog.is_empty() || !self.put(segment, to) {
                self.backlog.push_back(segment.to_vec());
            }
        });
        self.counters.on_sent(packet.len());
        Ok(())
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_full {
            let pause = self.pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(PAUSE)));
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
            self.is_full = false;
        }
        Poll::Ready(Ok(()))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.drain()?;
        self.kick()
    }

    fn mtu(&self) -> usize {
        self.host.mtu
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::NONE
    }

    fn counters(&self) -> Counters {
        let lost = self.ports.iter().map(|port| port.socket.lost()).sum();
        Counters { receive_overflowed: lost, ..self.counters }
    }
}

#[cfg(test)]
mod tests;
