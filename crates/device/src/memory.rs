//! A pair of devices joined in memory: each receives the packets that the other sends, in order and without
//! loss.
//!
//! The pair is for tests and examples. It has no delay, rate or loss; `brisk_link` emulates those.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::offload;
use crate::{Capabilities, ChecksumState, Counters, Device, MAX_SUPER, RxMeta, TxMeta};

/// Properties of a pair of memory devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryOptions {
    /// MTU in bytes, 68 to 65535. Default 1500.
    pub mtu: usize,
    /// True if super-packets and partial checksums pass unchanged. Otherwise the sender cuts and completes
    /// them, as on a plain wire. Default true.
    pub offload: bool,
    /// Bytes that may wait in each direction before `send` returns `WouldBlock`. Default 4 MiB.
    pub queue_bytes: usize,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        MemoryOptions { mtu: 1500, offload: true, queue_bytes: 4 << 20 }
    }
}

/// One end of a pair. If the other end is dropped, packets to it are lost, as on a cut cable.
#[derive(Debug)]
pub struct MemoryDevice {
    inbox: Arc<Mutex<Inbox>>,
    outbox: Arc<Mutex<Inbox>>,
    options: MemoryOptions,
    counters: Counters,
}

/// One direction of the cable.
#[derive(Debug, Default)]
struct Inbox {
    packets: VecDeque<(Vec<u8>, RxMeta)>,
    bytes: usize,
    /// Buffers that the receiver has finished with, for reuse by the sender.
    spare: Vec<Vec<u8>>,
    reader: Option<Waker>,
    writer: Option<Waker>,
    reader_gone: bool,
}

/// Limit of spare buffers; further ones are freed.
const SPARE_BUFFERS: usize = 64;

impl MemoryDevice {
    /// Returns two devices with the default [`MemoryOptions`].
    pub fn pair() -> (MemoryDevice, MemoryDevice) {
        MemoryDevice::pair_with(MemoryOptions::default())
    }

    /// Returns two joined devices.
    pub fn pair_with(options: MemoryOptions) -> (MemoryDevice, MemoryDevice) {
        let options = MemoryOptions { mtu: options.mtu.clamp(68, MAX_SUPER), ..options };
        let (to_a, to_b) = (Arc::new(Mutex::default()), Arc::new(Mutex::default()));
        let end = |inbox: &Arc<Mutex<Inbox>>, outbox: &Arc<Mutex<Inbox>>| MemoryDevice {
            inbox: inbox.clone(),
            outbox: outbox.clone(),
            options,
            counters: Counters::default(),
        };
        (end(&to_a, &to_b), end(&to_b, &to_a))
    }
}

impl Device for MemoryDevice {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut inbox = lock(&self.inbox);
        if !inbox.packets.is_empty() {
            return Poll::Ready(Ok(()));
        }
        inbox.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> io::Result<usize> {
        let mut count = 0;
        while count < budget {
            // The lock is not held while the sink runs: it may send on the other end.
            let Some((packet, meta)) = lock(&self.inbox).take() else { break };
            self.counters.on_received(packet.len());
            sink(&packet, meta);
            lock(&self.inbox).recycle(packet);
            count += 1;
        }
        Ok(count)
    }

    fn send(&mut self, packet: &[u8], tx: TxMeta) -> io::Result<()> {
        let mut outbox = lock(&self.outbox);
        if outbox.reader_gone || packet.is_empty() || packet.len() > MAX_SUPER {
            self.counters.send_refused += 1;
            return Ok(());
        }
        if outbox.bytes >= self.options.queue_bytes {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if self.options.offload {
            let checksum = if tx.partial_checksum { ChecksumState::Trusted } else { ChecksumState::Verify };
            let segment_size = tx.segment_size.filter(|&size| size > 0);
            outbox.put(packet, RxMeta { checksum, segment_size });
        } else {
            let meta = RxMeta { checksum: ChecksumState::Verify, segment_size: None };
            offload::cut(packet, tx, &mut |segment| outbox.put(segment, meta));
        }
        self.counters.on_sent(packet.len());
        if let Some(reader) = outbox.reader.take() {
            drop(outbox);
            reader.wake();
        }
        Ok(())
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut outbox = lock(&self.outbox);
        if outbox.bytes < self.options.queue_bytes || outbox.reader_gone {
            return Poll::Ready(Ok(()));
        }
        outbox.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    fn mtu(&self) -> usize {
        self.options.mtu
    }

    fn capabilities(&self) -> Capabilities {
        let offload = self.options.offload;
        Capabilities { tso: offload, ..Capabilities::NONE }
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl Drop for MemoryDevice {
    fn drop(&mut self) {
        let mut inbox = lock(&self.inbox);
        *inbox = Inbox { reader_gone: true, writer: inbox.writer.take(), ..Inbox::default() };
        if let Some(writer) = inbox.writer.take() {
            drop(inbox);
            writer.wake();
        }
    }
}

impl Inbox {
    fn put(&mut self, packet: &[u8], meta: RxMeta) {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(packet);
        self.bytes += packet.len();
        self.packets.push_back((buffer, meta));
    }

    fn take(&mut self) -> Option<(Vec<u8>, RxMeta)> {
        let (packet, meta) = self.packets.pop_front()?;
        self.bytes -= packet.len();
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
        Some((packet, meta))
    }

    fn recycle(&mut self, packet: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS {
            self.spare.push(packet);
        }
    }
}

/// Locks the queue. A panic under the lock leaves no partial state, because the queue only holds plain
/// values.
fn lock(inbox: &Mutex<Inbox>) -> MutexGuard<'_, Inbox> {
    inbox.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{V4, V6, checked, pattern, segment};
    use brisk_wire::ChecksumFill;
    use std::future::poll_fn;

    fn drain(device: &mut MemoryDevice) -> Vec<(Vec<u8>, RxMeta)> {
        let mut packets = Vec::new();
        device.receive(usize::MAX, &mut |packet, meta| packets.push((packet.to_vec(), meta))).unwrap();
        packets
    }

    #[test]
    fn super_packet_passes_whole_with_its_metadata() {
        let (mut a, mut b) = MemoryDevice::pair();
        let packet = segment(V6, (1, 2), &pattern(5000), ChecksumFill::Partial);
        a.send(&packet, TxMeta { segment_size: Some(1440), partial_checksum: true, twice: false }).unwrap();
        let meta = RxMeta { checksum: ChecksumState::Trusted, segment_size: Some(1440) };
        assert_eq!(drain(&mut b), [(packet, meta)]);
        assert_eq!((a.counters().sent, b.counters().received), (1, 1));
    }

    #[test]
    fn without_offload_the_other_end_sees_finished_segments() {
        let (mut a, mut b) =
            MemoryDevice::pair_with(MemoryOptions { offload: false, ..MemoryOptions::default() });
        let packet = segment(V4, (1, 2), &pattern(3000), ChecksumFill::Partial);
        a.send(&packet, TxMeta { segment_size: Some(1460), partial_checksum: true, twice: false }).unwrap();
        let packets = drain(&mut b);
        assert_eq!(packets.len(), 3);
        for (packet, meta) in packets {
            assert_eq!(meta, RxMeta { checksum: ChecksumState::Verify, segment_size: None });
            checked(&packet);
        }
    }

    #[test]
    fn a_budget_bounds_one_receive() {
        let (mut a, mut b) = MemoryDevice::pair();
        for _ in 0..5 {
            a.send(&[1], TxMeta::default()).unwrap();
        }
        let counts = [3, 3, 3].map(|budget| b.receive(budget, &mut |_, _| ()).unwrap());
        assert_eq!(counts, [3, 2, 0]);
    }

    #[tokio::test]
    async fn a_waiting_reader_is_woken_by_the_other_end() {
        let (mut a, mut b) = MemoryDevice::pair();
        let reader = tokio::spawn(async move {
            poll_fn(|cx| b.poll_readable(cx)).await.unwrap();
            drain(&mut b).len()
        });
        tokio::task::yield_now().await;
        a.send(&[1], TxMeta::default()).unwrap();
        assert_eq!(reader.await.unwrap(), 1);
    }

    #[tokio::test]
    async fn a_full_queue_pushes_back_until_it_is_read() {
        let (mut a, mut b) =
            MemoryDevice::pair_with(MemoryOptions { queue_bytes: 100, ..MemoryOptions::default() });
        a.send(&[1; 100], TxMeta::default()).unwrap();
        let refused = a.send(&[2; 100], TxMeta::default()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        let writer = tokio::spawn(async move {
            poll_fn(|cx| a.poll_writable(cx)).await.unwrap();
            a.send(&[3; 100], TxMeta::default()).unwrap();
            a
        });
        tokio::task::yield_now().await;
        assert_eq!(drain(&mut b).len(), 1);
        writer.await.unwrap();
        assert_eq!(drain(&mut b)[0].0, [3; 100]);
    }

    #[tokio::test]
    async fn a_dropped_end_swallows_packets_and_releases_a_waiting_writer() {
        let (mut a, b) =
            MemoryDevice::pair_with(MemoryOptions { queue_bytes: 1, ..MemoryOptions::default() });
        a.send(&[1], TxMeta::default()).unwrap();
        let writer = tokio::spawn(async move {
            poll_fn(|cx| a.poll_writable(cx)).await.unwrap();
            a.send(&[2], TxMeta::default()).unwrap();
            a.counters().send_refused
        });
        tokio::task::yield_now().await;
        drop(b);
        assert_eq!(writer.await.unwrap(), 1);
    }
}
