//! A device in memory that reports its driver's calls to a test.

use std::io;
use std::task::{Context, Poll};

use brisk_device::memory::MemoryDevice;
use brisk_device::{Capabilities, Counters, Device, RxMeta, TxMeta};
use brisk_runtime::Endpoint;
use brisk_runtime::endpoint::Builder;

pub(crate) type OnPacket = dyn FnMut(&[u8]) + Send;

pub(crate) struct Watched<D = MemoryDevice> {
    pub(crate) inner: D,
    /// Called when the driver receives; its error becomes that of the device.
    pub(crate) on_look: Box<dyn FnMut() -> io::Result<()> + Send>,
    pub(crate) on_send: Box<OnPacket>,
}

impl<D: Device> Device for Watched<D> {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match (self.on_look)() {
            Ok(()) => self.inner.poll_readable(cx),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> io::Result<usize> {
        self.inner.receive(budget, sink)
    }

    fn send(&mut self, packet: &[u8], tx: TxMeta) -> io::Result<()> {
        (self.on_send)(packet);
        self.inner.send(packet, tx)
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_writable(cx)
    }

    fn mtu(&self) -> usize {
        self.inner.mtu()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }
}

pub(crate) fn builder(device: impl Device + 'static, address: &str) -> Builder {
    Endpoint::builder(Box::new(device)).address(address.parse().unwrap())
}
