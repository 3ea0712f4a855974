//! The interface of every device: [`Device`], and the few facts that travel beside a packet.
//!
//! | module | content |
//! |---|---|
//! | [`memory`] | a pair of devices joined in memory, for tests and examples |
//! | [`offload`] | segmentation and checksums in software, for devices whose carrier has neither |
//! | [`steering`] | several stacks on one device: a queue for each, and a mailbox for packets on a wrong one |
//!
//! The crate depends on no operating system. `brisk_packet_io` has the devices of Linux; a program that has
//! packets of its own (a tunnel, a simulator, a network card in user space) implements the trait itself.
//!
//! The driver's loop is `poll_readable`, `receive` with a budget, feed the stack, `send` what the stack
//! emits, `flush`. A packet may be a *super-packet*: one IP and one TCP header over up to 64 kB of payload
//! (where a device says so, 256 kB) that stands for a run of equal-sized segments. Such packets decide bulk
//! throughput, far more than the kind of device does.
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

/// Takes a packet, the buffer of it that may be kept if there is one, and what is known of it.
pub type SharedSink<'a> = dyn FnMut(&[u8], Option<&Bytes>, RxMeta) + 'a;

/// A batch-oriented device for IP packets under a tokio runtime.
///
/// The trait is object safe, and one task drives one device. `poll_readable` and `poll_writable` must be
/// called inside a tokio runtime with I/O enabled; the other methods need none.
pub trait Device: Send {
    /// Ready when [`receive`](Device::receive) may find something. An error means that the device is gone.
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Hands each packet that is there to `sink`, at most about `budget` of them, and returns how many it
    /// handed over.
    ///
    /// Never blocks: nothing there is `Ok(0)`. A result below `budget` means that the device is drained, and
    /// that [`poll_readable`](Device::poll_readable) will wake the task when more arrives. A device that
    /// reads several packets in one call may exceed the budget by what that call brought. An error means that
    /// the device is gone.
    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> io::Result<usize>;

    /// As [`receive`](Device::receive); of long packets `sink` also gets the buffer, of which it may keep as
    /// much as it likes for as long as it likes. That buffer is at most twice as long as the packet.
    fn receive_shared(&mut self, budget: usize, sink: &mut SharedSink<'_>) -> io::Result<usize> {
        self.receive(budget, &mut |packet, meta| sink(packet, None, meta))
    }

    /// Sends one IP packet, which may be a super-packet of up to [`Capabilities::max_super`] bytes.
    ///
    /// Never blocks. `WouldBlock` means that nothing of this packet was taken: call again with the same
    /// packet after [`poll_writable`](Device::poll_writable). A packet that the path refuses (too long, no
    /// route, a firewall) is counted in [`Counters::send_refused`] and reported as sent, because to TCP that
    /// is a loss. Any other error means that the device is gone.
    fn send(&mut self, packet: &[u8], tx: TxMeta) -> io::Result<()>;

    /// As [`send`](Device::send), for a packet with an open checksum whose payload lies elsewhere, in two
    /// pieces.
    fn send_gathered(&mut self, headers: &[u8], payload: [&[u8]; 2], tx: TxMeta) -> io::Result<()> {
        self.send(&[headers, payload[0], payload[1]].concat(), tx)
    }

    /// As [`send`](Device::send) and [`send_gathered`](Device::send_gathered) for several packets, in their
    /// order as long as none of them meets a full queue. A packet that was taken, or refused by the path, is
    /// marked ([`Gathered::taken`]); packets marked earlier are skipped; for the others it is as if `send`
    /// had returned `WouldBlock`.
    ///
    /// The payload lies in the stack, which the driver locks for this call alone: here, a device must not use
    /// the endpoint that it serves. Only devices that [gather](Capabilities::gather) are called.
    fn send_batch(&mut self, packets: &mut [Gathered<'_>]) -> io::Result<()> {
        send_each(self, packets)
    }

    /// Ready when a [`send`](Device::send) or [`flush`](Device::flush) that would have blocked is worth
    /// another try.
    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Pushes out what `send` collected. `WouldBlock` means that a part is still waiting: call again after
    /// [`poll_writable`](Device::poll_writable).
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// The longest IP packet in bytes, header included, that one segment may occupy. The stack derives its
    /// MSS from it.
    fn mtu(&self) -> usize;

    /// Work that the device takes off the stack's hands.
    fn capabilities(&self) -> Capabilities;

    /// Packets that the device has carried and dropped since it was opened.
    fn counters(&self) -> Counters {
        Counters::default()
    }

    /// How the sender of a packet that was just received is reached, if a second queue of this device cannot
    /// know that by itself: see [`steering`].
    fn way_back(&mut self, _packet: &[u8]) -> Option<WayBack> {
        None
    }

    /// Takes in what another queue of this device answered to [`way_back`](Device::way_back).
    fn learn_way_back(&mut self, _way: WayBack) {}

    /// Sends packets for the peer at `from` to the peer at `to` from now on, because the peer has moved. Only
    /// devices that name peers themselves do so.
    fn redirect(&mut self, _from: IpAddr, _to: IpAddr) {}

    /// Forgets that the peer at `from` has moved.
    fn forget_redirect(&mut self, _from: IpAddr) {}

    /// Hands over a packet that this queue has received and whose stack serves another queue.
    fn hand_over(&mut self, _packet: Vec<u8>, _meta: RxMeta) {}

    /// Asks the kernel to bring every packet to the queue whose stack it is for, of all queues of this
    /// device; said to the first of them.
    ///
    /// # Errors
    /// Where the kernel does not know how, or refuses; `Unsupported` for a device that has no queues.
    fn spread(&mut self, _steering: &Steering) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// One of several packets that are sent together.
#[derive(Clone, Copy, Debug)]
pub struct Gathered<'a> {
    /// Its headers, or all of it.
    pub headers: &'a [u8],
    /// Payload that lies elsewhere, in two pieces; then the checksum is open.
    pub payload: [&'a [u8]; 2],
    /// How it is to be sent.
    pub tx: TxMeta,
    /// Whether the device has taken it.
    pub taken: bool,
}

impl Gathered<'_> {
    /// Bytes of the packet.
    pub fn packet_len(&self) -> usize {
        self.headers.len() + self.payload_len()
    }

    /// Bytes of it that lie elsewhere.
    pub fn payload_len(&self) -> usize {
        self.payload[0].len() + self.payload[1].len()
    }
}

/// Sends packets one after the other until one of them finds no room: [`Device::send_batch`] by
/// [`Device::send`] and [`Device::send_gathered`].
///
/// # Errors
/// The first one that is not `WouldBlock`.
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

/// Message of one queue of a device to another about a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WayBack {
    /// The peer's address outside the device.
    pub outer: SocketAddr,
    /// The address of ours that it wrote to, if the socket is bound to none in particular.
    pub from: Option<IpAddr>,
}

/// Abilities of a device. Every device accepts super-packets and open checksums; this says which are cheap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Super-packets leave in one call, or are cut on a way that has to be gone anyway; without it they are
    /// cut in software.
    pub tso: bool,
    /// A TCP checksum that holds only the pseudo-header sum costs nothing; without it, it is finished in
    /// software.
    pub checksum_offload: bool,
    /// [`Device::send_gathered`] copies nothing.
    pub gather: bool,
    /// Each segment of a super-packet can be sent twice: [`TxMeta::twice`].
    pub twice: bool,
    /// The longest super-packet in bytes, IP header included; where it is more than [`MAX_SUPER`], a longer
    /// one has 0 in the length field of its IP header.
    pub max_super: usize,
    /// Packets come from a descriptor of the system: who waits for them may wait for one of its timers beside
    /// them. Without it, time may be a test's.
    pub descriptor: bool,
}

impl Capabilities {
    /// Everything is done in software.
    pub const NONE: Capabilities = Capabilities {
        tso: false,
        checksum_offload: false,
        gather: false,
        twice: false,
        max_super: MAX_SUPER,
        descriptor: false,
    };
}

/// The longest IP packet that the 16-bit length fields can describe, and so the longest super-packet of most
/// devices.
pub const MAX_SUPER: usize = 65_535;

/// Knowledge of the TCP checksum of a received packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChecksumState {
    /// The stack must verify it.
    Verify,
    /// The device vouches for the packet; the checksum field itself may be unfinished.
    Trusted,
}

/// Metadata of a received packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RxMeta {
    /// Whether the TCP checksum needs verifying.
    pub checksum: ChecksumState,
    /// For a super-packet, the payload bytes of each of its segments but the last; `None` for a single
    /// segment.
    pub segment_size: Option<u16>,
}

/// How a packet is to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TxMeta {
    /// Cut the TCP payload every so many bytes. `None` sends the packet as it is. Zero counts as `None`.
    pub segment_size: Option<u16>,
    /// The TCP checksum field holds only the folded sum of the pseudo-header (not complemented), as
    /// virtio-net's `NEEDS_CSUM` expects it; the device or the kernel finishes it.
    pub partial_checksum: bool,
    /// Send each of the segments twice in a row, the second time with the reserved bit that marks a copy
    /// ([`brisk_wire::split_twice`]). Only for a device with [`Capabilities::twice`].
    pub twice: bool,
}

/// Totals since a device was opened. A super-packet counts as one packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Packets handed to the stack.
    pub received: u64,
    /// Bytes of those packets.
    pub received_bytes: u64,
    /// Arrivals that were not packets of this device: malformed, foreign or unreadable.
    pub receive_dropped: u64,
    /// Arrivals that the kernel dropped because they were not fetched in time, where it tells (`udp:`,
    /// `packet:`, `xdp:`).
    pub receive_overflowed: u64,
    /// Packets believed though their checksum was unfinished, where the device is not told so (`xdp:` on a
    /// veth).
    pub unfinished_checksums: u64,
    /// Packets taken from the stack.
    pub sent: u64,
    /// Bytes of those packets.
    pub sent_bytes: u64,
    /// Packets that could not be sent because of what they are or where they go. A TUN counts a packet once,
    /// here if any of it was refused; devices that cut packets by themselves count them as sent, and here
    /// each segment that was refused.
    pub send_refused: u64,
    /// Packets that came to this queue of a device and were handed to the stack of another.
    pub handed_over: u64,
    /// Packets that were for another and found no room there.
    pub hand_over_dropped: u64,
}

/// Those of several queues together.
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
    /// Counts a packet that was handed to the stack.
    pub fn on_received(&mut self, len: usize) {
        self.received += 1;
        self.received_bytes += len as u64;
    }

    /// Counts a packet that was taken from the stack.
    pub fn on_sent(&mut self, len: usize) {
        self.sent += 1;
        self.sent_bytes += len as u64;
    }
}
