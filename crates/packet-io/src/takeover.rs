//! A later process takes over a served port, so that a program can be upgraded without a failed connection.
//!
//! The process that serves a port [offers](Offer) it at an abstract Unix socket, whose name contains the
//! interface and the address. A process that wants the same port connects there and [waits](Candidate). When
//! the first process begins to drain, they exchange these messages:
//!
//! | from | to | message |
//! |---|---|---|
//! | old | new | the guard of the port, and one end of a stream for packets, the relay |
//! | new | old | its device is open, and its stack listens |
//! | old | new | the open connections of the old process, whose device is closed now |
//! | old | new | the same list whenever some of them have ended |
//!
//! From then on the new process receives all packets to the port, and relays those of the listed connections.
//! The old process sends its packets as before, by a raw socket.
//!
//! No packet is lost meanwhile. The old process receives until its device is closed. Packets that the new
//! device receives before it has the list wait in its queues. The queues of AF_XDP belong to one process, so
//! an `xdp:` device is replaced by a packet socket before the new process opens its own.
//!
//! If the new process ends first, the old one offers the port again. Its connections stall until another
//! process takes the port over. A process hands its port over only to a process of root or of its own user.

pub(crate) mod relay;
mod replaceable;

use std::collections::HashSet;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddress;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use brisk_device::Device;
use rustix::net::RecvFlags;
use rustix::net::sockopt::socket_peercred;
use socket2::Socket;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};

use crate::message;
use crate::packet::guard::Guards;
use crate::packet::{self, PacketDevice, PacketOptions};
use crate::privileges::OpenError;
use crate::xdp::{self, XdpOptions};
pub use relay::Flow;
use relay::{Inherited, RelayEnd};
use replaceable::{Replaceable, Slots};

/// Time limit for an answer of the other process.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between two searches for connections that have ended.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);
/// Size of the relay's buffer, bytes.
const RELAY_BYTES: usize = 4 << 20;
/// Limit of connections in a list.
const MAX_FLOWS: usize = 1 << 22;
const FLOW_BYTES: usize = 36;
/// The byte that comes with the descriptors, and the byte that the new process sends when its device is open.
const BEGIN: u8 = b'B';
const READY: u8 = b'R';

/// Like [`packet::open`], but offers the served port to later processes. With a `predecessor` it takes the
/// port over from that process. The offer is `None` if no port is served.
///
/// # Errors
/// Those of [`packet::open`].
pub fn open_packet(
    interface: &str,
    addresses: &[IpAddr],
    options: PacketOptions,
    count: usize,
    predecessor: Option<Predecessor>,
) -> Result<(packet::Opened, Option<Offer>), OpenError> {
    let guard = predecessor.as_ref().map(|predecessor| &predecessor.guard);
    let (opened, guards) = packet::open_with(interface, addresses, options, count, guard)?;
    let device = (opened.queues, guards);
    let (queues, offer) = Offer::of(interface, options.serve, device, predecessor, false);
    Ok((packet::Opened { queues, ..opened }, offer))
}

/// Like [`xdp::open`], and offers the served port as [`open_packet`] does.
///
/// # Errors
/// Those of [`xdp::open`].
pub fn open_xdp(
    interface: &str,
    addresses: &[IpAddr],
    options: XdpOptions,
    count: usize,
    predecessor: Option<Predecessor>,
) -> Result<(xdp::Opened, Option<Offer>), OpenError> {
    let guard = predecessor.as_ref().map(|predecessor| &predecessor.guard);
    let (opened, guards) = xdp::open_with(interface, addresses, options, count, guard)?;
    let device = (opened.queues, guards);
    let (queues, offer) = Offer::of(interface, options.serve, device, predecessor, true);
    Ok((xdp::Opened { queues, ..opened }, offer))
}

/// The offer of a served port to later processes.
pub struct Offer {
    name: UnixAddress,
    /// `None` before the offer begins, and while another process serves the port.
    listener: Option<UnixListener>,
    /// A process that waits.
    waiting: Option<UnixStream>,
    /// The process that has taken over, and the connections that it relays.
    successor: Option<(UnixStream, HashSet<Flow>)>,
    interface: String,
    guards: Arc<Guards>,
    slots: Slots,
    predecessor: Option<Predecessor>,
    /// The connections of the predecessor. Until this is set, the queues hold all packets back.
    inherited: Arc<OnceLock<Inherited>>,
    /// True if the device must be closed before another process opens its own.
    is_exclusive: bool,
}

impl Offer {
    /// Makes the queues replaceable.
    fn of(
        interface: &str,
        serve: Option<SocketAddr>,
        (queues, guards): (Vec<Box<dyn Device>>, Arc<Guards>),
        predecessor: Option<Predecessor>,
        is_exclusive: bool,
    ) -> (Vec<Box<dyn Device>>, Option<Offer>) {
        let Some(name) = serve.and_then(|serve| name(interface, serve).ok()) else { return (queues, None) };
        let inherited = Arc::default();
        let (queues, slots) = Replaceable::all(queues, &inherited);
        let interface = interface.to_owned();
        let (listener, waiting, successor) = (None, None, None);
        let offer = Offer {
            name,
            listener,
            waiting,
            successor,
            interface,
            guards,
            slots,
            predecessor,
            inherited,
            is_exclusive,
        };
        (queues, Some(offer))
    }

    /// Begins the offer, and takes the port over from the predecessor. The stack must listen already, because
    /// it receives packets from now on.
    ///
    /// If another program uses the name of the offer, no process can take the port over.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn begin(&mut self) {
        // If no list comes, the predecessor has ended, and no connections are relayed.
        let taken_over = self.predecessor.take().and_then(|predecessor| predecessor.take_over().ok());
        let (inherited, updates) = match taken_over {
            Some((inherited, updates)) => (inherited, Some(updates)),
            None => (Inherited::default(), None),
        };
        let _ = self.inherited.set(inherited);
        self.slots.wake();
        if let Some(updates) = updates {
            tokio::spawn(follow(updates, self.inherited.clone()));
        }
        self.listener = listen(&self.name).ok();
    }

    /// True if another process waits for the port.
    pub fn is_awaited(&mut self) -> bool {
        loop {
            if self.waiting.as_ref().is_some_and(is_open) {
                return true;
            }
            let mut cx = Context::from_waker(Waker::noop());
            match self.listener.as_ref().map(|listener| listener.poll_accept(&mut cx)) {
                Some(Poll::Ready(Ok((stream, _)))) => self.waiting = Some(stream).filter(is_trusted),
                _ => return false,
            }
        }
    }

    /// Waits for another process and hands the port over to it, but keeps the connections in `flows`. Returns
    /// their number. After an error this process still has the port, and may try again.
    /// # Errors
    /// The other process could not open its device, or has ended.
    pub async fn hand_over(&mut self, flows: impl Fn() -> Vec<Flow>) -> io::Result<usize> {
        let mut stream = loop {
            match (self.waiting.take(), &self.listener) {
                (Some(stream), _) => break stream,
                (None, Some(listener)) => self.waiting = Some(listener.accept().await?.0).filter(is_trusted),
                // Another process serves the port, and will hand it over itself.
                (None, None) => std::future::pending().await,
            }
        };
        if self.is_exclusive {
            // From now on the kernel sees the packets.
            self.guards.listen_again()?;
            let options = PacketOptions::default();
            let socket = PacketDevice::guarded(&self.interface, options, self.guards.clone())?;
            self.replace(socket).await?;
            self.is_exclusive = false;
        }
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        for end in [&ours, &theirs] {
            crate::sockopt::request_buffers(end.as_fd(), RELAY_BYTES);
        }
        let guard = self.guards.served().ok_or(io::ErrorKind::NotConnected)?;
        send_descriptors(&stream, [guard.as_raw_fd(), theirs.as_raw_fd()])?;
        drop(theirs);
        let ready = tokio::time::timeout(PATIENCE, stream.read_u8()).await?;
        if ready? != READY {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let relay = Some(RelayEnd::new(ours)?);
        let device = PacketDevice::relayed(&self.interface, relay, self.guards.clone())?;
        self.replace(device).await?;
        // The name is free for the successor.
        self.listener = None;
        let flows = self.with_inherited(flows());
        if let Err(error) = stream.write_all(&encoded(&flows)).await {
            self.listener = listen(&self.name).ok();
            return Err(error);
        }
        let count = flows.len();
        self.successor = Some((stream, flows));
        Ok(count)
    }

    /// Reports ended connections to the process that has taken over, until that process ends; then offers the
    /// port again.
    pub async fn report(&mut self, flows: impl Fn() -> Vec<Flow>) {
        let Some((mut stream, mut known)) = self.successor.take() else { return };
        let (mut from, mut to) = stream.split();
        let mut ended = pin!(from.read_u8());
        loop {
            tokio::select! {
                _ = &mut ended => break,
                () = tokio::time::sleep(REPORT_INTERVAL) => {}
            }
            let open = self.with_inherited(flows());
            let before = known.len();
            known.retain(|flow| open.contains(flow));
            if known.len() < before && to.write_all(&encoded(&known)).await.is_err() {
                break;
            }
        }
        self.listener = listen(&self.name).ok();
    }

    fn with_inherited(&self, flows: Vec<Flow>) -> HashSet<Flow> {
        let inherited = self.inherited.get().map(Inherited::flows);
        flows.into_iter().chain(inherited.into_iter().flatten()).collect()
    }

    /// Replaces the first queue by `device`, and the others by devices that only send.
    async fn replace(&self, device: PacketDevice) -> io::Result<()> {
        let mut devices: Vec<Box<dyn Device>> = vec![Box::new(device)];
        while devices.len() < self.slots.count() {
            devices.push(Box::new(PacketDevice::relayed(&self.interface, None, self.guards.clone())?));
        }
        tokio::time::timeout(PATIENCE, self.slots.replace(devices)).await?;
        Ok(())
    }
}

/// After the offer is dropped, the stack of a queue receives all packets.
impl Drop for Offer {
    fn drop(&mut self) {
        self.inherited.get_or_init(Inherited::default);
        self.slots.wake();
    }
}

impl fmt::Debug for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Offer").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A process that waits for a port that another process serves.
#[derive(Debug)]
pub struct Candidate(UnixStream);

impl Candidate {
    /// Asks for the port that another process serves on `interface` at exactly this address. `None` if no
    /// process offers it.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn ask(interface: &str, serve: SocketAddr) -> Option<Candidate> {
        let name = name(interface, serve).ok()?;
        let stream = std::os::unix::net::UnixStream::connect_addr(&name).ok()?;
        stream.set_nonblocking(true).ok()?;
        UnixStream::from_std(stream).ok().filter(is_trusted).map(Candidate)
    }

    /// Waits until the other process hands its port over. `None` if it ends without that.
    pub async fn wait(self) -> Option<Predecessor> {
        let Candidate(stream) = self;
        let [guard, relay] = loop {
            stream.readable().await.ok()?;
            match stream.try_io(Interest::READABLE, || receive_descriptors(&stream)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => break received.ok()?,
            }
        };
        let (stream, guard, relay) = (stream.into_std().ok()?, guard.into(), relay.into());
        Some(Predecessor { stream, guard, relay })
    }
}

/// The process that hands its port over, and waits for this process to open its device.
#[derive(Debug)]
pub struct Predecessor {
    stream: std::os::unix::net::UnixStream,
    guard: Socket,
    relay: std::os::unix::net::UnixStream,
}

impl Predecessor {
    /// Reports that the device of this process is open, and waits for the list of connections. Later lists
    /// come from the stream.
    fn take_over(self) -> io::Result<(Inherited, UnixStream)> {
        let Predecessor { mut stream, relay, .. } = self;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&[READY])?;
        let mut count = [0; 4];
        stream.read_exact(&mut count)?;
        let mut bytes = vec![0; list_bytes(count)?];
        stream.read_exact(&mut bytes)?;
        stream.set_nonblocking(true)?;
        Ok((Inherited::new(decoded(&bytes), relay)?, UnixStream::from_std(stream)?))
    }
}

/// Reads lists of connections until the predecessor ends.
async fn follow(mut stream: UnixStream, inherited: Arc<OnceLock<Inherited>>) {
    let mut next = async || -> io::Result<HashSet<Flow>> {
        let mut count = [0; 4];
        stream.read_exact(&mut count).await?;
        let mut bytes = vec![0; list_bytes(count)?];
        stream.read_exact(&mut bytes).await?;
        Ok(decoded(&bytes))
    };
    let Some(inherited) = inherited.get() else { return };
    while let Ok(flows) = next().await {
        inherited.replace(flows);
    }
    inherited.replace(HashSet::new());
}

fn name(interface: &str, serve: SocketAddr) -> io::Result<UnixAddress> {
    UnixAddress::from_abstract_name(format!("brisk/{interface}/{serve}"))
}

fn listen(name: &UnixAddress) -> io::Result<UnixListener> {
    let listener = std::os::unix::net::UnixListener::bind_addr(name)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// True if the process at the other end is root's or of the same user.
fn is_trusted(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    socket_peercred(stream).is_ok_and(|peer| peer.uid.is_root() || peer.uid == own)
}

/// True if the process at the other end, which sends nothing, has not ended.
fn is_open(stream: &UnixStream) -> bool {
    let received = rustix::net::recv(stream, &mut [0u8; 1][..], RecvFlags::DONTWAIT);
    matches!(received, Err(rustix::io::Errno::AGAIN))
}

/// Sends two descriptors (`unix(7)`, `SCM_RIGHTS`).
fn send_descriptors(stream: &UnixStream, descriptors: [RawFd; 2]) -> io::Result<()> {
    let control =
        message::control(libc::SOL_SOCKET, libc::SCM_RIGHTS, &descriptors.map(i32::to_ne_bytes).concat());
    message::send(stream.as_fd(), &[BEGIN], libc::MSG_NOSIGNAL, None, &control).map(drop)
}

fn receive_descriptors(stream: &UnixStream) -> io::Result<[OwnedFd; 2]> {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    let (mut data, mut control) = ([0], [0; HEADER + 8]);
    let received = message::receive(stream.as_fd(), &mut data, &mut control, libc::MSG_CMSG_CLOEXEC)?;
    let number =
        |at: usize| control.get(at..).and_then(<[u8]>::first_chunk).map(|raw| i32::from_ne_bytes(*raw));
    let (Some(level), Some(kind)) = (number(size_of::<usize>()), number(size_of::<usize>() + 4)) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let is_whole = received.control_len >= HEADER + 8 && received.flags & libc::MSG_CTRUNC == 0;
    if !is_whole || (level, kind) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) || data != [BEGIN] {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let descriptor = |at: usize| {
        let number = number(HEADER + at).ok_or(io::ErrorKind::InvalidData)?;
        // SAFETY: the kernel has just created this descriptor for this process (SCM_RIGHTS), and nothing else
        // owns it.
        Ok::<_, io::Error>(unsafe { OwnedFd::from_raw_fd(number) })
    };
    Ok([descriptor(0)?, descriptor(4)?])
}

/// Returns the length of a list of `count` connections, bytes.
fn list_bytes(count: [u8; 4]) -> io::Result<usize> {
    let count = u32::from_ne_bytes(count) as usize;
    if count > MAX_FLOWS {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(count * FLOW_BYTES)
}

/// Returns the list as bytes: the number of connections, then the two ends of each.
fn encoded(flows: &HashSet<Flow>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + flows.len() * FLOW_BYTES);
    bytes.extend((flows.len() as u32).to_ne_bytes());
    for (local, remote) in flows {
        for end in [local, remote] {
            let ip = match end.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            bytes.extend(ip.octets());
            bytes.extend(end.port().to_ne_bytes());
        }
    }
    bytes
}

fn decoded(bytes: &[u8]) -> HashSet<Flow> {
    let end = |bytes: &[u8]| {
        let ip = Ipv6Addr::from(*bytes.first_chunk::<16>()?).to_canonical();
        let port = u16::from_ne_bytes(*bytes.get(16..)?.first_chunk::<2>()?);
        Some(SocketAddr::new(ip, port))
    };
    bytes.chunks_exact(FLOW_BYTES).filter_map(|flow| Some((end(flow)?, end(flow.get(18..)?)?))).collect()
}
