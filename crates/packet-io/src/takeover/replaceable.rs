//! A queue whose device is replaced by another device while its stack uses it.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use brisk_device::steering::Steering;
use brisk_device::{Capabilities, Counters, Device, Gathered, ReturnRoute, RxMeta, SharedSink, TxMeta};
use tokio::sync::mpsc;

use super::relay::Inherited;

/// A queue. Its properties are those of the first device.
pub(super) struct Replaceable {
    device: Box<dyn Device>,
    capabilities: Capabilities,
    mtu: usize,
    /// The next device, which replaces `device` once that is drained. The sender is dropped then.
    next: Option<Next>,
    /// Counters of the earlier devices.
    counted: Counters,
    slot: Arc<Mutex<Slot>>,
    /// Until this is set, the queue holds the packets that arrive.
    inherited: Arc<OnceLock<Inherited>>,
}

type Next = (Box<dyn Device>, mpsc::Sender<()>);

#[derive(Default)]
struct Slot {
    next: Option<Next>,
    waker: Option<Waker>,
}

/// The slots for the next devices of all queues.
pub(super) struct Slots(Vec<Arc<Mutex<Slot>>>);

impl Slots {
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Wakes the tasks of all queues.
    pub(super) fn wake(&self) {
        for slot in &self.0 {
            let waker = lock(slot).waker.take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Replaces each queue, and waits until all earlier devices are closed.
    pub(super) async fn replace(&self, devices: Vec<Box<dyn Device>>) {
        let (done, mut all) = mpsc::channel(1);
        for (slot, device) in self.0.iter().zip(devices) {
            lock(slot).next = Some((device, done.clone()));
        }
        drop(done);
        self.wake();
        all.recv().await;
    }
}

fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Replaceable {
    /// Makes these queues replaceable. They relay the packets of the inherited connections.
    pub(super) fn all(
        queues: Vec<Box<dyn Device>>,
        inherited: &Arc<OnceLock<Inherited>>,
    ) -> (Vec<Box<dyn Device>>, Slots) {
        let slots: Vec<Arc<Mutex<Slot>>> = queues.iter().map(|_| Arc::default()).collect();
        let queue = |(device, slot): (Box<dyn Device>, &Arc<Mutex<Slot>>)| {
            let (capabilities, mtu) = (device.capabilities(), device.mtu());
            let (counted, slot, inherited) = (Counters::default(), slot.clone(), inherited.clone());
            let next = None;
            Box::new(Replaceable { device, capabilities, mtu, next, counted, slot, inherited })
                as Box<dyn Device>
        };
        (queues.into_iter().zip(&slots).map(queue).collect(), Slots(slots))
    }
}

impl fmt::Debug for Replaceable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replaceable").field("mtu", &self.mtu).finish_non_exhaustive()
    }
}

impl Device for Replaceable {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let next = {
            let mut slot = lock(&self.slot);
            match &mut slot.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            slot.next.take()
        };
        self.next = next.or(self.next.take());
        if self.inherited.get().is_none() {
            return Poll::Pending;
        }
        match self.device.poll_readable(cx) {
            Poll::Pending if self.next.is_some() => Poll::Ready(Ok(())),
            other => other,
        }
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> io::Result<usize> {
        self.receive_shared(budget, &mut |packet, _, meta| sink(packet, meta))
    }

    fn receive_shared(&mut self, budget: usize, sink: &mut SharedSink<'_>) -> io::Result<usize> {
        let Some(inherited) = self.inherited.get() else { return Ok(0) };
        let count = self.device.receive_shared(budget, &mut |packet, shared, meta| {
            if !inherited.takes(packet, meta) {
                sink(packet, shared, meta);
            }
        })?;
        if count < budget
            && let Some((device, _done)) = self.next.take()
        {
            // Waiting packets that the device does not accept now are lost.
            let _ = self.device.flush();
            self.counted += self.device.counters();
            self.device = device;
        }
        Ok(count)
    }

    fn send(&mut self, packet: &[u8], tx: TxMeta) -> io::Result<()> {
        self.device.send(packet, tx)
    }

    fn send_gathered(&mut self, headers: &[u8], payload: [&[u8]; 2], tx: TxMeta) -> io::Result<()> {
        self.device.send_gathered(headers, payload, tx)
    }

    fn send_batch(&mut self, packets: &mut [Gathered<'_>]) -> io::Result<()> {
        self.device.send_batch(packets)
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.device.poll_writable(cx)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.device.flush()
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn counters(&self) -> Counters {
        let mut counters = self.counted;
        counters += self.device.counters();
        counters
    }

    fn return_route(&mut self, packet: &[u8]) -> Option<ReturnRoute> {
        self.device.return_route(packet)
    }

    fn learn_return_route(&mut self, way: ReturnRoute) {
        self.device.learn_return_route(way);
    }

    fn redirect(&mut self, from: IpAddr, to: IpAddr) {
        self.device.redirect(from, to);
    }

    fn forget_redirect(&mut self, from: IpAddr) {
        self.device.forget_redirect(from);
    }

    fn spread(&mut self, steering: &Steering) -> io::Result<()> {
        self.device.spread(steering)
    }
}
