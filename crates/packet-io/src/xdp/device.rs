//! The device: some of the queues of an interface, driven by one task.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use brisk_device::offload;
use brisk_device::{Capabilities, ChecksumState, Counters, Device, RxMeta, SharedSink, TxMeta};
use bytes::Bytes;
use tokio::time::Sleep;

use super::errors::Errors;
use super::merge::Merge;
use super::next_hops::NextHops;
use super::program::Running;
use super::socket::XdpSocket;
use crate::headers::{Headers, TCP_CHECKSUM};
use crate::interface::Interface;
use crate::packet::guard::Guards;
use crate::packet::out::RawSockets;
use crate::packet::{ETHERNET_HEADER, without_padding};
use crate::privileges::OpenError;
use crate::reactor::Reactor;

/// Time until the next attempt to send on a full interface, which does not report when it has space.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

/// Properties of the interface.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) interface: Interface,
    pub(super) mac: [u8; 6],
    pub(super) mtu: usize,
    /// True if checksums that are only the sum of the pseudo-header are trusted.
    pub(super) trusts: bool,
}

/// A queue of the interface.
#[derive(Debug)]
pub(super) struct Port {
    reactor: Reactor,
    socket: XdpSocket,
}

impl Port {
    pub(super) fn new(socket: XdpSocket) -> Port {
        Port { reactor: Reactor::default(), socket }
    }
}

/// Some of the queues of an interface, as a device for IP packets of the host's own addresses.
#[derive(Debug)]
pub(super) struct XdpDevice {
    /// Dropped first, so that later frames go to the kernel.
    _running: Arc<Running>,
    /// At least one. All receive; only the first one sends.
    ports: Vec<Port>,
    /// Index of the port from which the next call receives first.
    turn: usize,
    /// ICMP errors and the state of the interface, in one of the devices only.
    errors: Option<Errors>,
    merge: Merge,
    next_hops: NextHops,
    /// Sends the packets that must pass through the kernel.
    out: RawSockets,
    guards: Arc<Guards>,
    host: Host,
    /// Segments that wait because the ring was full.
    backlog: VecDeque<Vec<u8>>,
    /// True if the interface had no room at the last attempt.
    is_full: bool,
    pause: Option<Pin<Box<Sleep>>>,
    counters: Counters,
}

impl XdpDevice {
    /// Makes this device report ICMP errors, and the removal of the interface.
    pub(super) fn listen_to(&mut self, errors: Errors) {
        self.errors = Some(errors);
    }

    /// Returns a device for these queues.
    ///
    /// # Errors
    /// CAP_NET_RAW is missing.
    pub(super) fn new(
        running: Arc<Running>,
        ports: Vec<Port>,
        guards: Arc<Guards>,
        host: Host,
    ) -> Result<XdpDevice, OpenError> {
        let name = host.interface.name();
        let next_hops = NextHops::of(&host.interface)
            .map_err(|error| OpenError::xdp(name, "the kernel does not report its routes", error))?;
        let out = RawSockets::open()
            .map_err(|error| OpenError::xdp(name, "a raw socket cannot be opened", error))?;
        Ok(XdpDevice {
            _running: running,
            ports,
            turn: 0,
            errors: None,
            merge: Merge::new(),
            next_hops,
            out,
            guards,
            host,
            backlog: VecDeque::new(),
            is_full: false,
            pause: None,
            counters: Counters::default(),
        })
    }

    /// Ignores ENETDOWN while the interface exists, because it may come up again. Returns other errors, and
    /// `NotFound` if the interface was removed.
    fn ignore_network_down(&self, error: io::Error) -> io::Result<()> {
        let Host { interface, .. } = &self.host;
        match Interface::named(interface.name()) {
            Ok(found) if found.index() == interface.index() => match error.raw_os_error() {
                Some(libc::ENETDOWN) => Ok(()),
                _ => Err(error),
            },
            _ => {
                let gone = format!("xdp:{}: the interface was removed", interface.name());
                Err(io::Error::new(io::ErrorKind::NotFound, gone))
            }
        }
    }

    /// Returns the hardware address of the next hop of a packet; `None` if the kernel must send the packet.
    fn mac(&mut self, packet: &[u8]) -> Option<[u8; 6]> {
        let (from, to) = addresses(packet)?;
        self.next_hops.mac(from, to, Instant::now())
    }

    /// Sends a complete segment, or refuses it; returns false if there is no space.
    fn put(&mut self, segment: &[u8], to: Option<[u8; 6]>) -> bool {
        if segment.len() > self.host.mtu {
            self.counters.send_refused += 1;
            return true;
        }
        let Some(mac) = to else { return self.put_by_kernel(segment) };
        let header = ethernet_header(mac, self.host.mac, segment);
        let Some(port) = self.ports.first_mut() else { return true };
        // The kernel frees entries of the ring once it has processed them.
        port.socket.send(&header, segment)
            || (port.socket.kick().is_ok() && port.socket.send(&header, segment))
    }

    fn put_by_kernel(&mut self, segment: &[u8]) -> bool {
        // Sends earlier frames first, to keep the order.
        let _ = self.ports.first_mut().map(|port| port.socket.kick());
        match self.out.send(segment) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            // The packet has no route, or was rejected by a firewall. TCP treats it as lost.
            Err(_) => self.counters.send_refused += 1,
            Ok(()) => {}
        }
        true
    }

    /// Makes the kernel send the frames in the ring.
    fn kick(&mut self) -> io::Result<()> {
        let Some(port) = self.ports.first_mut() else { return Ok(()) };
        let Err(error) = port.socket.kick() else { return Ok(()) };
        self.is_full = true;
        if error.kind() != io::ErrorKind::WouldBlock {
            self.ignore_network_down(error)?;
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Sends waiting segments.
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

/// Returns a sink that counts the packets for `sink`.
fn counted<'a>(
    counters: &'a mut Counters,
    sink: &'a mut SharedSink<'_>,
) -> impl FnMut(&[u8], Option<&Bytes>, RxMeta) + 'a {
    |packet, shared, meta| {
        counters.on_received(packet.len());
        sink(packet, shared, meta);
    }
}

/// Processes one frame. Returns how many packets it and earlier frames have produced.
pub(super) fn deliver(
    frame: &[u8],
    trusts: bool,
    counters: &mut Counters,
    merge: &mut Merge,
    sink: &mut SharedSink<'_>,
) -> usize {
    let packet = without_padding(frame.get(ETHERNET_HEADER..).unwrap_or_default());
    if packet.is_empty() {
        counters.receive_dropped += 1;
        return 0;
    }
    let checksum = if trusts && is_unfinished(packet) {
        counters.unfinished_checksums += 1;
        ChecksumState::Trusted
    } else {
        ChecksumState::Verify
    };
    merge.offer(packet, checksum, &mut counted(counters, sink))
}

/// True if the TCP checksum of a packet is partial: its sender has left the rest to the interface.
fn is_unfinished(packet: &[u8]) -> bool {
    let Some(headers) = Headers::of(packet) else { return false };
    let field = packet.get(headers.ip_len + TCP_CHECKSUM..).and_then(|field| field.first_chunk::<2>());
    field.is_some_and(|field| u16::from_be_bytes(*field) == headers.pseudo_sum(packet))
}

/// Returns source and destination of an IP packet.
fn addresses(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let v4 = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<4>()?));
    let v6 = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<16>()?));
    match packet.first()? >> 4 {
        4 => Some((v4(12)?, v4(16)?)),
        6 => Some((v6(8)?, v6(24)?)),
        _ => None,
    }
}

/// Returns the header of a frame before an IP packet (RFC 894, RFC 2464).
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
        // All queues are polled, so that each wakes the task.
        let mut readable = match &mut self.errors {
            Some(errors) => errors.poll_readable(cx)?.is_ready(),
            None => false,
        };
        for Port { reactor, socket } in &mut self.ports {
            readable |= reactor.poll_readable(socket.as_fd(), cx)?.is_ready();
        }
        if readable { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> io::Result<usize> {
        self.receive_shared(budget, &mut |packet, _, meta| sink(packet, meta))
    }

    fn receive_shared(&mut self, budget: usize, sink: &mut SharedSink<'_>) -> io::Result<usize> {
        let mut count = 0;
        self.turn = (self.turn + 1) % self.ports.len();
        let (counters, merge, trusts) = (&mut self.counters, &mut self.merge, self.host.trusts);
        let (before, from) = self.ports.split_at_mut(self.turn);
        for Port { reactor, socket } in from.iter_mut().chain(before) {
            if count >= budget {
                break;
            }
            let read = || {
                let mut found = 0;
                let is_empty = socket.receive(&mut |frame| {
                    found += deliver(frame, trusts, counters, merge, sink);
                    count + found < budget
                });
                found += merge.flush(&mut counted(counters, sink));
                Ok((found, is_empty))
            };
            match reactor.read_out(read) {
                Ok(found) => count += found,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        let left = budget.saturating_sub(count);
        let received = self.errors.as_mut().map(|errors| {
            let mut emit = counted(counters, sink);
            errors.receive(left, &mut |packet: &[u8], meta| emit(packet, None, meta))
        });
        match received {
            Some(Ok(found)) => count += found,
            Some(Err(error)) => self.ignore_network_down(error)?,
            None => {}
        }
        Ok(count)
    }

    fn send(&mut self, packet: &[u8], tx: TxMeta) -> io::Result<()> {
        self.drain()?;
        if self.guards.is_unguarded(packet) {
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
        // Super-packets from the stack are cut while they are copied into frames. This costs less than single
        // segments from the stack.
        Capabilities { tso: true, descriptor: true, ..Capabilities::NONE }
    }

    fn counters(&self) -> Counters {
        let lost = self.ports.iter().map(|port| port.socket.lost()).sum();
        Counters { receive_overflowed: lost, ..self.counters }
    }
}
