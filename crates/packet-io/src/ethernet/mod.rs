//! An additional host on an Ethernet: a packet socket carries the frames, and the device resolves the
//! hardware addresses of its neighbours itself (ARP, neighbour discovery).
//!
//! The kernel must not have the stack's addresses on any interface, or it would also answer, with resets. The
//! device answers queries for these addresses. Opening it needs CAP_NET_RAW.

mod frame;
mod neighbours;
mod socket;

use std::io::{self, IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll};
use std::time::Instant;

use brisk_device::offload;
use brisk_device::{Capabilities, Counters, Device, MAX_SUPER, RxMeta, TxMeta};

use crate::interface::Interface;
use crate::privileges::OpenError;
use crate::reactor::Reactor;
use crate::vnet::VnetHeader;
use frame::{Mac, NeighbourMessage, Payload, QueryKind};
use neighbours::Neighbours;

/// Maximum number of frames that wait for the interface's queue; beyond it the oldest is dropped.
const MAX_UNSENT: usize = 256;
/// Length of a super-packet with its Ethernet header.
const READ_BUFFER: usize = MAX_SUPER + frame::HEADER + 128;

/// An address of the stack with its network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnAddress {
    /// The address.
    pub address: IpAddr,
    /// Prefix length: 0 to 32, or to 128 for IPv6. Addresses with this prefix are on the link.
    pub prefix: u8,
}

/// Addresses and routers of the host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EthernetOptions {
    /// The stack's addresses, at least one.
    pub addresses: Vec<OwnAddress>,
    /// Routers for other networks. The first of each family is used.
    pub gateways: Vec<IpAddr>,
}

/// See the [module](self).
#[derive(Debug)]
pub struct EthernetDevice {
    reactor: Reactor,
    fd: OwnedFd,
    mac: Mac,
    mtu: usize,
    options: EthernetOptions,
    neighbours: Neighbours,
    unsent: std::collections::VecDeque<Vec<u8>>,
    buffer: Vec<u8>,
    counters: Counters,
}

impl EthernetDevice {
    /// Opens `interface` of the calling thread's network namespace. The device has the MTU and the hardware
    /// address of the interface.
    ///
    /// # Errors
    /// No such interface, not an Ethernet, a missing right, or an address that the kernel has.
    pub fn open(interface: &str, options: EthernetOptions) -> Result<EthernetDevice, OpenError> {
        let subject = format!("ethernet:{interface}");
        if options.addresses.is_empty() {
            return Err(OpenError::unsupported(
                subject,
                "the stack needs an address of its own there; name one that no other host has",
            ));
        }
        for own in &options.addresses {
            if socket::kernel_has(own.address) {
                let problem = format!(
                    "the kernel has {0} itself and would answer with resets; take it away with `ip addr del {0}/{1} \
                     dev {interface}`, or choose another address",
                    own.address, own.prefix
                );
                return Err(OpenError::unsupported(subject, problem));
            }
        }
        let interface = Interface::named(interface)?;
        let (mtu, mac) = (interface.mtu()?, interface.hardware_address()?);
        let groups = options.addresses.iter().filter_map(|own| frame::group_of(own.address));
        let fd = socket::open(&interface, groups).map_err(|error| {
            let remedy = match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => "packet sockets need CAP_NET_RAW (run as root)",
                _ => "`ip link show` lists the interfaces; choose another one",
            };
            OpenError::new(subject, "cannot be opened", remedy, error)
        })?;
        Ok(EthernetDevice {
            reactor: Reactor::default(),
            fd,
            mac,
            mtu: mtu.clamp(68, MAX_SUPER),
            options,
            neighbours: Neighbours::default(),
            unsent: std::collections::VecDeque::new(),
            buffer: vec![0; READ_BUFFER],
            counters: Counters::default(),
        })
    }

    fn is_ours(&self, address: IpAddr) -> bool {
        self.options.addresses.iter().any(|own| own.address == address)
    }

    /// Returns the next hop of a packet to `destination`; `None` if there is none.
    fn next_hop(&self, destination: IpAddr) -> Option<IpAddr> {
        if self.options.addresses.iter().any(|own| own.contains(destination)) || is_link_local(destination) {
            return Some(destination);
        }
        self.options.gateways.iter().copied().find(|gateway| gateway.is_ipv4() == destination.is_ipv4())
    }

    /// Sends a finished packet, keeps it until the next hop is resolved, or drops it if there is no next hop.
    fn send_one(&mut self, packet: &[u8]) -> io::Result<()> {
        let Some((source, hop)) = addresses(packet).and_then(|(from, to)| Some((from, self.next_hop(to)?)))
        else {
            self.counters.send_refused += 1;
            return Ok(());
        };
        let verdict = self.neighbours.look_up(hop, Instant::now());
        match verdict.mac {
            Some(mac) => {
                let mut bytes = Vec::with_capacity(frame::HEADER + packet.len());
                frame::with_ip(mac, self.mac, packet, &mut bytes);
                self.queue(bytes);
            }
            None => self.counters.send_refused += u64::from(self.neighbours.hold(hop, packet)),
        }
        if verdict.ask
            && let Some(question) = frame::query(self.mac, source, hop)
        {
            self.queue(question);
        }
        self.drain()
    }

    /// Processes a query or an advertisement of a neighbour.
    fn on_message(&mut self, message: &NeighbourMessage) {
        let now = Instant::now();
        let asks_us = message.kind == QueryKind::Query && self.is_ours(message.target);
        let about = if message.kind == QueryKind::Query { message.sender } else { message.target };
        if let Some(mac) = message.mac.filter(|_| !about.is_unspecified() && !self.is_ours(about)) {
            for packet in self.neighbours.learn(about, mac, asks_us, now) {
                let mut bytes = Vec::with_capacity(frame::HEADER + packet.len());
                frame::with_ip(mac, self.mac, &packet, &mut bytes);
                self.queue(bytes);
            }
        }
        if asks_us && let Some(answer) = frame::answer(self.mac, message) {
            self.queue(answer);
        }
    }

    fn queue(&mut self, bytes: Vec<u8>) {
        if self.unsent.len() >= MAX_UNSENT {
            self.unsent.pop_front();
            self.counters.send_refused += 1;
        }
        self.unsent.push_back(bytes);
    }

    fn drain(&mut self) -> io::Result<()> {
        let header = VnetHeader::default().bytes();
        while let Some(bytes) = self.unsent.front() {
            let parts = [IoSlice::new(&header), IoSlice::new(bytes)];
            match self.reactor.write(|| Ok(rustix::io::writev(&self.fd, &parts)?)) {
                Err(error) if !is_refusal(&error) => return Err(error),
                Err(_) => self.counters.send_refused += 1,
                Ok(_) => {}
            }
            self.unsent.pop_front();
        }
        Ok(())
    }

    fn read(&mut self) -> io::Result<(usize, RxMeta)> {
        let mut header = [0; VnetHeader::LEN];
        let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(&mut self.buffer)];
        let len = self.reactor.read(|| Ok(rustix::io::readv(&self.fd, &mut parts)?))?;
        Ok((len.saturating_sub(VnetHeader::LEN), VnetHeader::parse(&header).rx_meta()))
    }

    /// Processes a received frame. Returns true if the stack got a packet.
    fn deliver(&mut self, len: usize, meta: RxMeta, sink: &mut dyn FnMut(&[u8], RxMeta)) -> bool {
        let bytes = self.buffer.get(..len).unwrap_or_default();
        match frame::parse(bytes) {
            Payload::Ip(packet) if addresses(packet).is_some_and(|(_, to)| self.is_ours(to)) => {
                self.counters.on_received(packet.len());
                sink(packet, meta);
                return true;
            }
            Payload::Neighbour(message) => self.on_message(&message),
            Payload::Ip(_) | Payload::Other => self.counters.receive_dropped += 1,
        }
        false
    }
}

impl Device for EthernetDevice {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.reactor.poll_readable(self.fd.as_fd(), cx)
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> io::Result<usize> {
        let mut count = 0;
        while count < budget {
            match self.read() {
                Ok((len, meta)) => count += usize::from(self.deliver(len, meta, sink)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The interface is down, perhaps temporarily: there is nothing to read, and the device stays
                // usable.
                Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => break,
                Err(error) => return Err(error),
            }
        }
        match self.drain() {
            // Answers to neighbours leave with the next packet.
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(count),
        }
    }

    fn send(&mut self, packet: &[u8], tx: TxMeta) -> io::Result<()> {
        self.drain()?;
        let mut segments = Vec::new();
        offload::cut(packet, tx, &mut |segment| segments.push(segment.to_vec()));
        self.counters.on_sent(packet.len());
        for segment in segments {
            match self.send_one(&segment) {
                // Queued packets count as sent.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        Ok(())
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
        Capabilities { descriptor: true, ..Capabilities::NONE }
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl OwnAddress {
    fn contains(&self, other: IpAddr) -> bool {
        let same = |own: u128, other: u128, width: u32| {
            let below = width.saturating_sub(self.prefix.into());
            below >= width || own >> below == other >> below
        };
        match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => same(own.to_bits().into(), other.to_bits().into(), 32),
            (IpAddr::V6(own), IpAddr::V6(other)) => same(own.to_bits(), other.to_bits(), 128),
            _ => false,
        }
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Returns source and destination of an IP packet.
pub(crate) fn addresses(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let v4 = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<4>()?));
    let v6 = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<16>()?));
    match packet.first()? >> 4 {
        4 => Some((v4(12)?, v4(16)?)),
        6 => Some((v6(8)?, v6(24)?)),
        _ => None,
    }
}

/// True if the kernel refused a frame; false if the device is gone or busy.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::EMSGSIZE | libc::ENETDOWN | libc::ENOBUFS | libc::ENOMEM)
    )
}

#[cfg(test)]
mod tests;
