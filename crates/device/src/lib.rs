//! The interface of all devices, [`Device`], and the metadata of packets.
//!
//! | module | content |
//! |---|---|
//! | [`memory`] | a pair of devices joined in memory, for tests and examples |
//! | [`offload`] | segmentation and checksums in software, for devices that offer neither |
//! | [`steering`] | several stacks on one device: a queue for each, a mailbox for misrouted packets |
//!
//! The crate depends on no operating system. `brisk_packet_io` has the devices of Linux; a program with its
//! own source of packets (a tunnel, a simulator, a network card in user space) implements the trait itself.
//!
//! The driver loops over `poll_readable`, `receive` with a budget, `send` for each packet of the stack, and
//! `flush`. A packet may be a *super-packet*: one IP header, one TCP header and up to 64 kB of payload (256
//! kB on some devices). It replaces a run of segments of equal size. Super-packets affect bulk throughput far
//! more than the kind of device does.
#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::AddAssign;
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::steering::Steering;

pub mod memory;
pub mod offload;
pub mod steering;
#[cfg(test)]
mod testing;

/// Callback that gets a packet, its buffer if the callback may keep it, and its metadata.
pub type SharedSink<'a> = dyn FnMut(&[u8], Option<&Bytes>, RxMeta) + 'a;

/// A device for IP packets under a tokio runtime. It passes several packets in a call.
///
/// The trait is object safe, and one task drives one device. Call `poll_readable` and `poll_writable` inside
/// a tokio runtime with I/O enabled; the other methods need no runtime.
pub trait Device: Send {
    /// Ready when [`receive`](Device::receive) may return packets. An error means that the device has failed.
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Passes the available packets, at most about `budget`, to `sink`; returns their number.
    ///
    /// Never blocks: returns `Ok(0)` if there are none. A result below `budget` means that the device is
    /// drained, and that [`poll_readable`](Device::poll_readable) will wake the task when a packet arrives. A
    /// device that reads several packets in one call may exceed the budget by their number. An error means
    /// that the device has failed.
    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> io::Result<usize>;

    /// Like [`receive`](Device::receive), but for long packets `sink` also gets the packet's buffer, and may
    /// keep any part of it. The buffer must be at most twice as long as the packet.
    fn receive_shared(&mut self, budget: usize, sink: &mut SharedSink<'_>) -> io::Result<usize> {
        self.receive(budget, &mut |packet, meta| sink(packet, None, meta))
    }

    /// Sends one IP packet, which may be a super-packet of up to [`Capabilities::max_super`] bytes.
    ///
    /// Never blocks. `WouldBlock` means that the device has not accepted this packet: call again with the
    /// same packet after [`poll_writable`](Device::poll_writable). A packet that the path refuses (too long,
    /// no route, a firewall) is counted in [`Counters::send_refused`]; the result is `Ok`, because TCP treats
    /// the packet as lost. Any other error means that the device has failed.
    fn send(&mut self, packet: &[u8], tx: TxMeta) -> io::Result<()>;

    /// Like [`send`](Device::send), for a packet with a partial checksum whose payload is in two separate
    /// pieces.
    fn send_gathered(&mut self, headers: &[u8], payload: [&[u8]; 2], tx: TxMeta) -> io::Result<()> {
        self.send(&[headers, payload[0], payload[1]].concat(), tx)
    }

    /// Like [`send`](Device::send) and [`send_gathered`](Device::send_gathered), for several packets. Keeps
    /// their order until a queue is full. Marks each packet that was accepted, or refused by the path
    /// ([`Gathered::taken`]), and skips packets that are already marked. For a packet that stays unmarked,
    /// `send` would have returned `WouldBlock`.
    ///
    /// The payload is in the stack, which the driver locks during this call, so the device must not use the
    /// endpoint of that stack. The driver calls it only for devices that [gather](Capabilities::gather).
    fn send_batch(&mut self, packets: &mut [Gathered<'_>]) -> io::Result<()> {
        send_each(self, packets)
    }

    /// Ready when a [`send`](Device::send) or [`flush`](Device::flush) that returned `WouldBlock` should be
    /// tried again.
    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Sends the packets that `send` collected. `WouldBlock` means that some packets still wait: call again
    /// after [`poll_writable`](Device::poll_writable).
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Returns the maximum length of the IP packet of one segment, bytes, header included. The stack derives
    /// its MSS from it.
    fn mtu(&self) -> usize;

    /// Returns what the device can do for the stack.
    fn capabilities(&self) -> Capabilities;

    /// Returns the counters of packets since the device was opened.
    fn counters(&self) -> Counters {
        Counters::default()
    }

    /// Returns the route to the sender of a received packet, if another queue of this device needs it: see
    /// [`steering`].
    fn return_route(&mut self, _packet: &[u8]) -> Option<ReturnRoute> {
        None
    }

    /// Stores the result of another queue's [`return_route`](Device::return_route).
    fn learn_return_route(&mut self, _route: ReturnRoute) {}

    /// Sends packets for the peer at `from` to the peer at `to` from now on, because the peer has moved. Only
    /// devices that assign addresses to peers implement it.
    fn redirect(&mut self, _from: IpAddr, _to: IpAddr) {}

    /// Forgets that the peer at `from` has moved.
    fn forget_redirect(&mut self, _from: IpAddr) {}

    /// Asks the kernel to deliver every packet to the queue of its stack, on all queues of this device.
    /// Called for the first queue only.
    ///
    /// # Errors
    /// If the kernel cannot do it, or refuses; `Unsupported` for a device that has no queues.
    fn spread(&mut self, _steering: &Steering) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// One of several packets that are sent together.
#[derive(Clone, Copy, Debug)]
pub struct Gathered<'a> {
    /// Headers of the packet, or the whole packet.
    pub headers: &'a [u8],
    /// Payload in two separate pieces; if not empty, the checksum is partial.
    pub payload: [&'a [u8]; 2],
    /// Metadata.
    pub tx: TxMeta,
    /// True if the packet needs no further attempt: the device has accepted it, or the path has refused it.
    pub taken: bool,
}

impl Gathered<'_> {
    /// Returns the length of the packet, bytes.
    pub fn packet_len(&self) -> usize {
        self.headers.len() + self.payload_len()
    }

    /// Returns the length of the separate payload, bytes.
    pub fn payload_len(&self) -> usize {
        self.payload[0].len() + self.payload[1].len()
    }
}

/// Sends packets one by one until one would block: an implementation of [`Device::send_batch`] with
/// [`Device::send`] and [`Device::send_gathered`].
///
/// ```
/// use brisk_device::memory::MemoryDevice;
/// use brisk_device::{Device, Gathered, TxMeta, send_each};
///
/// let (mut device, _other) = MemoryDevice::pair();
/// let headers = [0x45; 40];
/// let mut packets = [Gathered { headers: &headers, payload: [b"", b""], tx: TxMeta::default(), taken: false }];
/// assert_eq!((packets[0].packet_len(), packets[0].payload_len()), (40, 0));
/// send_each(&mut device, &mut packets)?;
/// assert!(packets[0].taken);
/// assert_eq!(device.counters().sent, 1);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The first error other than `WouldBlock`.
pub fn send_each(device: &mut (impl Device + ?Sized), packets: &mut [Gathered<'_>]) -> io::Result<()> {
    for packet in packets.iter_mut().filter(|packet| !packet.taken) {
        let sent = match packet.payload {
            [[], []] => device.send(packet.headers, packet.tx),
            payload => device.send_gathered(packet.headers, payload, packet.tx),
        };
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            sent => sent?,
        }
        packet.taken = true;
    }
    Ok(())
}

/// The route to a peer. One queue of a device reports it to another.
///
/// ```
/// use brisk_device::{Device, ReturnRoute, memory::MemoryDevice};
///
/// let (mut queue, _other) = MemoryDevice::pair();
/// // Another queue has received a packet of this peer. Devices in memory have no such routes.
/// queue.learn_return_route(ReturnRoute { outer: "192.0.2.1:7000".parse()?, from: None });
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReturnRoute {
    /// The peer's address in the network.
    pub outer: SocketAddr,
    /// Local address to which the peer sends, if the socket is not bound to a particular one.
    pub from: Option<IpAddr>,
}

/// The tasks that a device takes over from the stack. Super-packets and partial checksums go only to devices
/// with `tso`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// True if the device sends a super-packet in one call, or cuts it in a step that it needs anyway.
    /// Otherwise the stack sends it single segments with complete checksums.
    pub tso: bool,
    /// True if [`Device::send_gathered`] copies nothing.
    pub gather: bool,
    /// True if the device can send each segment of a super-packet twice: [`TxMeta::twice`].
    pub twice: bool,
    /// The longest super-packet in bytes, IP header included. If it exceeds [`MAX_SUPER`], longer
    /// super-packets have 0 in the length field of their IP header.
    pub max_super: usize,
    /// True if packets come from a descriptor of the system. A task that waits for packets may then also use
    /// a timer of the system. Without a descriptor, a test may control the time.
    pub descriptor: bool,
    /// True if [`Device::redirect`] has an effect: peers can move, and their connections are assigned to
    /// stacks [by their ports](steering::Steering::by_ports).
    pub peers_move: bool,
}

impl Capabilities {
    /// The device does all work in software.
    pub const NONE: Capabilities = Capabilities {
        tso: false,
        gather: false,
        twice: false,
        max_super: MAX_SUPER,
        descriptor: false,
        peers_move: false,
    };
}

/// The longest IP packet with 16-bit length fields, and so the longest super-packet of most devices.
pub const MAX_SUPER: usize = 65_535;

/// State of the TCP checksum of a received packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ChecksumState {
    /// The stack must verify it.
    #[default]
    Verify,
    /// The device vouches for the packet; the checksum field may be incomplete.
    Trusted,
}

/// Metadata of a received packet. The default is that of a single segment whose checksum the stack must
/// verify. A device sets the fields that differ, so that it still compiles when a release adds a field.
///
/// ```
/// use brisk_device::{ChecksumState, RxMeta};
/// // The network card has verified the checksum.
/// let meta = RxMeta { checksum: ChecksumState::Trusted, ..RxMeta::default() };
/// assert_eq!(meta.segment_size, None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RxMeta {
    /// State of the TCP checksum.
    pub checksum: ChecksumState,
    /// For a super-packet, the payload bytes of each of its segments but the last; `None` for a single
    /// segment.
    pub segment_size: Option<u16>,
}

/// Metadata of a packet to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TxMeta {
    /// Payload bytes of each segment that the packet is cut into. `None` and 0 send the packet unchanged.
    pub segment_size: Option<u16>,
    /// True if the TCP checksum field holds only the folded sum of the pseudo-header (not complemented), as
    /// for virtio-net's `NEEDS_CSUM`. The device or the kernel then completes the checksum.
    pub partial_checksum: bool,
    /// True to send each of the segments twice in a row, the second time with the reserved bit that marks a
    /// copy ([`brisk_wire::split_twice`]). Only for a device with [`Capabilities::twice`].
    pub twice: bool,
}

/// Totals since a device was opened. A super-packet counts as one packet.
///
/// ```
/// use brisk_device::{Counters, MAX_SUPER};
///
/// let mut counters = Counters::default();
/// counters.on_sent(40);
/// counters.on_received(MAX_SUPER);
/// assert_eq!((counters.sent_bytes, counters.received_bytes), (40, 65_535));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Packets handed to the stack.
    pub received: u64,
    /// Bytes of those packets.
    pub received_bytes: u64,
    /// Arrivals that were not packets of this device: malformed, foreign or unreadable.
    pub receive_dropped: u64,
    /// Arrivals that the kernel dropped because they were not read in time, if it reports them (`udp:`,
    /// `packet:`, `xdp:`).
    pub receive_overflowed: u64,
    /// Packets that were accepted with an unfinished checksum, on a device that does not report which
    /// checksums are unfinished (`xdp:` on a veth).
    pub unfinished_checksums: u64,
    /// Packets accepted from the stack.
    pub sent: u64,
    /// Bytes of those packets.
    pub sent_bytes: u64,
    /// Packets that could not be sent because of their properties or their destination. A TUN counts a packet
    /// once if any of its segments was refused. Other devices, which cut packets themselves, count such a
    /// packet as sent; each refused segment counts here.
    pub send_refused: u64,
    /// Packets that arrived at this queue and were handed to another queue's stack.
    pub handed_over: u64,
    /// Packets for another queue whose mailbox was full.
    pub hand_over_dropped: u64,
}

/// Adds the counters of another queue.
impl AddAssign for Counters {
    fn add_assign(&mut self, other: Counters) {
        let Counters {
            received,
            received_bytes,
            receive_dropped,
            receive_overflowed,
            unfinished_checksums,
            sent,
            sent_bytes,
            send_refused,
            handed_over,
            hand_over_dropped,
        } = other;
        self.received += received;
        self.received_bytes += received_bytes;
        self.receive_dropped += receive_dropped;
        self.receive_overflowed += receive_overflowed;
        self.unfinished_checksums += unfinished_checksums;
        self.sent += sent;
        self.sent_bytes += sent_bytes;
        self.send_refused += send_refused;
        self.handed_over += handed_over;
        self.hand_over_dropped += hand_over_dropped;
    }
}

impl Counters {
    /// Counts a packet handed to the stack.
    pub fn on_received(&mut self, len: usize) {
        self.received += 1;
        self.received_bytes += len as u64;
    }

    /// Counts a packet accepted from the stack.
    pub fn on_sent(&mut self, len: usize) {
        self.sent += 1;
        self.sent_bytes += len as u64;
    }
}
