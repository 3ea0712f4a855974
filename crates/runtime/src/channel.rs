//! A device whose packets the program supplies and takes through channels: for tunnels, for VPN services of
//! phones, and for other ways to carry IP packets.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
//! use brisk_runtime::Endpoint;
//! use brisk_runtime::channel::{ChannelDevice, ChannelOptions};
//!
//! let (device, to_stack, mut from_stack) = ChannelDevice::new(ChannelOptions::default());
//! let endpoint = Endpoint::builder(Box::new(device)).address("10.0.0.1".parse().unwrap()).build()?;
//! let connecting = tokio::spawn(async move { endpoint.connect("10.0.0.2:80".parse().unwrap()).await });
//! let syn = from_stack.recv().await.expect("the endpoint is there");
//! // A tunnel encrypts `syn` and sends it, and passes received packets to `to_stack`.
//! # assert_eq!(syn[0], 0x45); drop(to_stack); assert!(connecting.await.unwrap().is_err()); Ok(()) }
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use brisk_device::{Capabilities, ChecksumState, Counters, Device, MAX_SUPER, RxMeta, TxMeta, offload};
use bytes::Bytes;
use tokio::sync::mpsc::error::{SendError, TrySendError};
use tokio::sync::mpsc::{OwnedPermit, Receiver, Sender, channel};

/// Properties of a [`ChannelDevice`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChannelOptions {
    /// MTU in bytes, 68 to 65535. Default 1500. [`build`](crate::Builder::build) fails below 576.
    pub mtu: usize,
    /// Capacity of the queue of each direction, packets, 1 or more. Default 256.
    pub queue: usize,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        ChannelOptions { mtu: 1500, queue: 256 }
    }
}

/// The stack's end of two channels of IP packets.
///
/// Each [`Bytes`] is one IP packet. The stack verifies the checksums of the packets that it receives. If
/// [`ChannelOptions::queue`] packets wait for the stack, sending another one waits; a program that must not
/// wait drops the packet instead ([`Sender::try_send`]).
///
/// Packets from the stack are at most [`ChannelOptions::mtu`] bytes long and have complete checksums. If
/// `queue` of them wait for the program, the stack waits, and so do the writes of applications.
///
/// If the program drops one of its two ends, the endpoint fails with
/// [`BrokenPipe`](io::ErrorKind::BrokenPipe).
pub struct ChannelDevice {
    mtu: usize,
    arriving: Receiver<Bytes>,
    /// A packet that has arrived and that the stack has not received yet.
    next: Option<Bytes>,
    leaving: Sender<Bytes>,
    /// Segments of an accepted packet that did not fit into the queue; they leave before the next packet.
    waiting: VecDeque<Bytes>,
    space: SendSpace,
    counters: Counters,
}

/// Result of waiting for space: `Err` if the other end of the channel is gone.
type Reserved = Result<OwnedPermit<Bytes>, SendError<()>>;

/// Space for one packet in the queue.
enum SendSpace {
    Unknown,
    Awaited(Pin<Box<dyn Future<Output = Reserved> + Send>>),
    Reserved(OwnedPermit<Bytes>),
}

impl ChannelDevice {
    /// Returns a device, the sender of packets to the stack, and the receiver of packets from the stack.
    pub fn new(options: ChannelOptions) -> (ChannelDevice, Sender<Bytes>, Receiver<Bytes>) {
        let queue = options.queue.max(1);
        let ((to_stack, arriving), (leaving, from_stack)) = (channel(queue), channel(queue));
        let device = ChannelDevice {
            mtu: options.mtu.clamp(68, MAX_SUPER),
            arriving,
            next: None,
            leaving,
            waiting: VecDeque::new(),
            space: SendSpace::Unknown,
            counters: Counters::default(),
        };
        (device, to_stack, from_stack)
    }

    /// Puts a packet into the queue; returns it if there is no space.
    fn put(&mut self, packet: Bytes) -> io::Result<Option<Bytes>> {
        if let SendSpace::Reserved(permit) = std::mem::replace(&mut self.space, SendSpace::Unknown) {
            permit.send(packet);
            return Ok(None);
        }
        match self.leaving.try_send(packet) {
            Ok(()) => Ok(None),
            Err(TrySendError::Full(packet)) => Ok(Some(packet)),
            Err(TrySendError::Closed(_)) => Err(gone()),
        }
    }

    /// Puts the waiting segments into the queue; true if none is left.
    fn put_waiting(&mut self) -> io::Result<bool> {
        while let Some(packet) = self.waiting.pop_front() {
            if let Some(packet) = self.put(packet)? {
                self.waiting.push_front(packet);
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the program dropped its end of the channel")
}

impl Device for ChannelDevice {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.next.is_none() {
            self.next = Some(ready!(self.arriving.poll_recv(cx)).ok_or_else(gone)?);
        }
        Poll::Ready(Ok(()))
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> io::Result<usize> {
        let meta = RxMeta { checksum: ChecksumState::Verify, segment_size: None };
        for count in 0..budget {
            let Some(packet) = self.next.take().or_else(|| self.arriving.try_recv().ok()) else {
                return Ok(count);
            };
            self.counters.on_received(packet.len());
            sink(&packet, meta);
        }
        Ok(budget)
    }

    fn send(&mut self, packet: &[u8], tx: TxMeta) -> io::Result<()> {
        if !self.put_waiting()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let ChannelDevice { waiting, .. } = self;
        offload::cut(packet, tx, &mut |segment| waiting.push_back(Bytes::copy_from_slice(segment)));
        let segments = waiting.len();
        if !self.put_waiting()? && self.waiting.len() == segments {
            self.waiting.clear();
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.counters.on_sent(packet.len());
        Ok(())
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.space {
                SendSpace::Reserved(_) => return Poll::Ready(Ok(())),
                SendSpace::Awaited(room) => {
                    let room = ready!(room.as_mut().poll(cx));
                    self.space = SendSpace::Unknown;
                    self.space = SendSpace::Reserved(room.map_err(|_| gone())?);
                }
                SendSpace::Unknown => {
                    self.space = SendSpace::Awaited(Box::pin(self.leaving.clone().reserve_owned()))
                }
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.put_waiting()? { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::NONE
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl fmt::Debug for ChannelDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelDevice")
            .field("mtu", &self.mtu)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}
