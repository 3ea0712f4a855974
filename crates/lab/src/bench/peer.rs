//! A server on [smoltcp](https://docs.rs/smoltcp), on a TUN device like brisk's server, for the same clients.
//!
//! One thread in turn polls arriving packets, conversations and outgoing packets, and then sleeps until the
//! device is readable or a timer of smoltcp expires. The device is that of `brisk-packet-io`, with packets of
//! up to 64 kB in both directions. Segments fit an MTU of 1,500 bytes. If smoltcp combines several segments
//! into one packet, it tells the kernel their length (its feature `segmentation-offload`). As for brisk, the
//! kernel verifies and completes checksums.
//!
//! A socket listens again as soon as its connection is in TIME-WAIT. smoltcp searches all sockets linearly;
//! if sockets stayed in its TIME-WAIT of 10 s, the search would take all of its time.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::ops::Range;

use brisk_packet_io::tun::{TunDevice, TunOptions};
use brisk_packet_io::{ChecksumState, Device as _, MAX_SUPER, TxMeta};
use brisk_runtime::Prefix;
use brisk_wire::ChecksumCheck;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, PacketMeta, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{HardwareAddress, IpCidr};

use super::talk::{Head, PATTERN, PIECE, end_with_input, print_line};

/// The MTU of brisk's TUN device.
const MTU: usize = 1500;
/// Buffer of each socket in each direction. Bulk is fastest with this size; transactions use only the
/// beginning of the buffer.
const BUFFER: usize = 256 << 10;

/// Serves until standard input ends, with `sockets` simultaneous connections.
pub(super) fn serve(device: &str, own: &str, sockets: usize, at: SocketAddr) -> io::Result<Infallible> {
    let own: Prefix = own.parse().map_err(io::Error::other)?;
    let mut carrier = SmoltcpDevice::open(device, own)?;
    let began = std::time::Instant::now();
    let now = || Instant::from_micros(began.elapsed().as_micros() as i64);
    let mut interface = Interface::new(Config::new(HardwareAddress::Ip), &mut carrier, now());
    let mut added = Ok(());
    interface.update_ip_addrs(|addresses| {
        added = addresses.push(IpCidr::new(own.address.into(), own.length));
    });
    added.map_err(|_| io::Error::other("smoltcp has no room for an address"))?;
    let mut set = SocketSet::new(Vec::new());
    let mut conversations: Vec<_> = (0..sockets).map(|_| Conversation::listen(&mut set, at.port())).collect();
    let mut buffer = vec![0; PIECE];
    end_with_input();
    print_line("ready")?;
    loop {
        if interface.poll(now(), &mut carrier, &mut set) == PollResult::SocketStateChanged {
            for conversation in &mut conversations {
                conversation.advance(set.get_mut(conversation.handle), &mut buffer)?;
            }
            while interface.poll_egress(now(), &mut carrier, &mut set) == PollResult::SocketStateChanged {}
        }
        carrier.failed.take().map_or(Ok(()), Err)?;
        match interface.poll_delay(now(), &set) {
            Some(Duration::ZERO) => {}
            delay => carrier.wait(delay)?,
        }
    }
}

/// A TUN device for smoltcp.
struct SmoltcpDevice {
    tun: TunDevice,
    arrived: Vec<u8>,
    leaving: Vec<u8>,
    /// An error that smoltcp's interface cannot return.
    failed: Option<io::Error>,
}

impl SmoltcpDevice {
    /// Opens the device `name`; the kernel gets the first host address of `own`'s network that is not `own`.
    fn open(name: &str, own: Prefix) -> io::Result<SmoltcpDevice> {
        let kernel = own.neighbour().ok_or_else(|| io::Error::other(format!("{name} needs a network")))?;
        let mut tun = TunDevice::open(name, TunOptions::default()).map_err(io::Error::other)?;
        tun.configure(kernel, own.length, MTU as u32).map_err(io::Error::other)?;
        if !tun.offload() {
            return Err(io::Error::other(format!("{name}: the kernel grants no packets of up to 64 kB")));
        }
        Ok(SmoltcpDevice { tun, arrived: vec![0; TunDevice::READ_BUFFER], leaving: Vec::new(), failed: None })
    }

    /// Sleeps until the device is readable, at most for `delay`.
    fn wait(&self, delay: Option<Duration>) -> io::Result<()> {
        let delay = delay.map(|delay| Timespec {
            tv_sec: delay.secs() as i64,
            tv_nsec: (delay.total_micros() % 1_000_000 * 1000) as i64,
        });
        match poll(&mut [PollFd::new(&self.tun, PollFlags::IN)], delay.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the next valid packet, and returns its range in the buffer. The packet is read in one piece with
    /// the kernel's metadata, as brisk's server does.
    fn read(&mut self) -> Option<Range<usize>> {
        loop {
            match self.tun.recv_in_place(&mut self.arrived) {
                Ok((at, meta)) => {
                    let vouched = meta.checksum == ChecksumState::Trusted;
                    let packet = self.arrived.get(at.clone())?;
                    if vouched || brisk_wire::parse(packet, ChecksumCheck::Verify).is_ok() {
                        return Some(at);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) => {
                    self.failed = Some(error);
                    return None;
                }
            }
        }
    }
}

impl Device for SmoltcpDevice {
    type RxToken<'a> = Arrived<'a>;
    type TxToken<'a> = OutgoingPacket<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Arrived<'_>, OutgoingPacket<'_>)> {
        let at = self.read()?;
        let SmoltcpDevice { tun, arrived, leaving, failed } = self;
        let leaving = OutgoingPacket { tun, bytes: leaving, failed, meta: PacketMeta::default() };
        Some((Arrived(arrived.get(at)?), leaving))
    }

    fn transmit(&mut self, _: Instant) -> Option<OutgoingPacket<'_>> {
        let SmoltcpDevice { tun, leaving, failed, .. } = self;
        Some(OutgoingPacket { tun, bytes: leaving, failed, meta: PacketMeta::default() })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        capabilities.checksum.tcp = Checksum::None;
        capabilities.segmentation.tcpv4 = NonZeroUsize::new(MAX_SUPER);
        capabilities
    }
}

struct Arrived<'a>(&'a [u8]);

impl RxToken for Arrived<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(self.0)
    }
}

/// Buffer of an outgoing packet.
struct OutgoingPacket<'a> {
    tun: &'a mut TunDevice,
    bytes: &'a mut Vec<u8>,
    failed: &'a mut Option<io::Error>,
    meta: PacketMeta,
}

impl TxToken for OutgoingPacket<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        // The caller overwrites all bytes, so the old content may stay.
        self.bytes.resize(len.max(self.bytes.len()), 0);
        let (packet, _) = self.bytes.split_at_mut(len);
        let result = fill(packet);
        let segment_size = self.meta.segmentation_offload_size.map(|size| size.get());
        match self.tun.send(packet, TxMeta { segment_size, partial_checksum: true, twice: false }) {
            Ok(()) => {}
            // The packet is lost, and TCP retransmits it.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => *self.failed = Some(error),
        }
        result
    }

    fn set_meta(&mut self, meta: PacketMeta) {
        self.meta = meta;
    }
}

/// A socket, and the request of its client.
struct Conversation {
    handle: SocketHandle,
    port: u16,
    step: Step,
}

#[derive(Clone, Copy)]
enum Step {
    /// Reads the head.
    Begin,
    /// Counts the bytes that it reads.
    Count(u64),
    /// Writes without end.
    Pour,
    /// Reads `left` bytes, then answers.
    Ask { left: usize, answer: usize },
    /// Writes this number of bytes, then closes.
    Answer(usize),
    /// Sends received bytes back.
    Echo,
    /// Waits for the other side to close.
    End,
}

impl Conversation {
    fn listen(set: &mut SocketSet<'_>, port: u16) -> Conversation {
        let buffer = || SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        Conversation { handle: set.add(socket), port, step: Step::Begin }
    }

    /// Runs all steps that are possible now.
    fn advance(&mut self, socket: &mut Socket<'_>, buffer: &mut [u8]) -> io::Result<()> {
        if !socket.is_open() {
            self.step = Step::Begin;
            return socket.listen(self.port).map_err(io::Error::other);
        }
        while let Some(next) = self.step.take(socket, buffer) {
            self.step = next;
        }
        Ok(())
    }
}

impl Step {
    /// Runs the step; returns the next one, or `None` if it must wait.
    fn take(self, socket: &mut Socket<'_>, buffer: &mut [u8]) -> Option<Step> {
        match self {
            Step::Begin if socket.recv_queue() >= Head::LEN => {
                let mut head = [0; Head::LEN];
                socket.recv_slice(&mut head).ok()?;
                Some(Head::parse(&head).map_or(Step::Answer(0), Step::of))
            }
            Step::Begin => is_over(socket).then_some(Step::Answer(0)),
            Step::Count(sum) => match read(socket, buffer) {
                0 if is_over(socket) => {
                    socket.send_slice(&sum.to_be_bytes()).ok()?;
                    Some(Step::Answer(0))
                }
                0 => None,
                more => Some(Step::Count(sum + more as u64)),
            },
            Step::Pour => (write(socket, PIECE) > 0).then_some(Step::Pour),
            Step::Ask { left: 0, answer } => Some(Step::Answer(answer)),
            Step::Ask { left, answer } => match read(socket, buffer.get_mut(..left.min(PIECE))?) {
                0 => None,
                more => Some(Step::Ask { left: left - more, answer }),
            },
            Step::Answer(0) => {
                socket.close();
                Some(Step::End)
            }
            Step::Answer(left) => match write(socket, left.min(PIECE)) {
                0 => None,
                more => Some(Step::Answer(left - more)),
            },
            Step::Echo => {
                let free = socket.send_capacity() - socket.send_queue();
                match read(socket, buffer.get_mut(..free.min(PIECE))?) {
                    0 => is_over(socket).then_some(Step::Answer(0)),
                    more => socket.send_slice(buffer.get(..more)?).ok().map(|_| Step::Echo),
                }
            }
            Step::End => (read(socket, buffer) > 0).then_some(Step::End),
        }
    }

    fn of(head: Head) -> Step {
        match head {
            Head::Upload | Head::Delivery => Step::Count(0),
            Head::Download | Head::Handover => Step::Pour,
            Head::Exchange { request, response } => {
                Step::Ask { left: (request as usize).saturating_sub(Head::LEN), answer: response as usize }
            }
            Head::PingPong => Step::Echo,
        }
    }
}

/// True if the client has closed its side and all data was read.
fn is_over(socket: &Socket<'_>) -> bool {
    socket.state() == State::CloseWait && socket.recv_queue() == 0
}

/// Returns the number of bytes read; 0 if there are none.
fn read(socket: &mut Socket<'_>, buffer: &mut [u8]) -> usize {
    socket.recv_slice(buffer).unwrap_or(0)
}

/// Writes up to `max` bytes; returns their number; 0 if there is no space.
fn write(socket: &mut Socket<'_>, max: usize) -> usize {
    PATTERN.get(..max).and_then(|bytes| socket.send_slice(bytes).ok()).unwrap_or(0)
}
