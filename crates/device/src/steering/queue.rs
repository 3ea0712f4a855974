//! One queue of a device for one of several stacks.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Steering;
use super::mailbox::{Handed, Mailbox};
use crate::{Capabilities, Counters, Device, Gathered, ReturnRoute, RxMeta, SharedSink, TxMeta};

/// One queue of a device, for one of several stacks. It hands packets of other stacks over to their queues.
///
/// The stack's task is woken by its own queue and by its mailbox, so tasks on different runtimes can drive
/// the queues.
pub struct SteeredDevice {
    queue: Box<dyn Device>,
    index: usize,
    steering: Steering,
    mailboxes: Arc<[Mailbox]>,
    /// Packets for this queue that other queues have read, and that its stack has not received yet.
    arrived: Vec<Handed>,
    taken: usize,
    /// Packets for other queues that this one has read, with the index of their queue.
    misrouted: Vec<(usize, Handed)>,
    spare: Vec<Vec<u8>>,
    handed_over: u64,
    dropped: u64,
}

/// Limit of spare buffers; further ones are freed.
const SPARE_BUFFERS: usize = 64;

impl SteeredDevice {
    /// Joins the queues of one device, in the order of `steering`.
    ///
    /// If the kernel cannot compute the hash (it is too old, or permission is missing), packets arrive on any
    /// queue, and more of them are handed over ([`Counters::handed_over`]).
    ///
    /// # Panics
    /// If the number of queues differs from that of `steering`.
    pub fn over(mut queues: Vec<Box<dyn Device>>, steering: Steering) -> Vec<SteeredDevice> {
        assert_eq!(queues.len(), steering.queues(), "one queue for each stack of the steering");
        if let Some(first) = queues.first_mut() {
            // If the device cannot spread packets, this type hands them over.
            let _ = first.spread(&steering);
        }
        let mailboxes: Arc<[Mailbox]> = queues.iter().map(|_| Mailbox::default()).collect();
        let over = |(index, queue)| SteeredDevice {
            queue,
            index,
            steering,
            mailboxes: mailboxes.clone(),
            arrived: Vec::new(),
            taken: 0,
            misrouted: Vec::new(),
            spare: Vec::new(),
            handed_over: 0,
            dropped: 0,
        };
        queues.into_iter().enumerate().map(over).collect()
    }

    /// Hands at most `budget` packets from the mailbox to `sink`; returns their number.
    fn take_mail(&mut self, budget: usize, sink: &mut SharedSink<'_>) -> usize {
        let mut count = 0;
        while count < budget {
            if self.taken == self.arrived.len() {
                self.taken = 0;
                self.arrived.clear();
                let mailbox = self.mailboxes.get(self.index);
                if !mailbox.is_some_and(|mailbox| mailbox.take_all(&mut self.arrived)) {
                    break;
                }
            }
            let Some(handed) = self.arrived.get_mut(self.taken) else { break };
            self.taken += 1;
            if let Some(route) = handed.return_route {
                self.queue.learn_return_route(route);
            }
            sink(&handed.packet, None, handed.meta);
            count += 1;
            let packet = std::mem::take(&mut handed.packet);
            self.recycle(packet);
        }
        count
    }

    fn recycle(&mut self, packet: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS {
            self.spare.push(packet);
        }
    }

    /// Puts packets of other queues into their mailboxes.
    fn hand_over_misrouted(&mut self) {
        for (to, mut handed) in std::mem::take(&mut self.misrouted) {
            handed.return_route = self.queue.return_route(&handed.packet);
            match self.mailboxes.get(to).map(|mailbox| mailbox.put(handed)) {
                Some(Ok(())) => self.handed_over += 1,
                Some(Err(packet)) => {
                    self.dropped += 1;
                    self.recycle(packet);
                }
                None => self.dropped += 1,
            }
        }
        self.mailboxes.iter().for_each(Mailbox::wake);
    }
}

impl Device for SteeredDevice {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let has_mail = self.taken < self.arrived.len()
            || self.mailboxes.get(self.index).is_some_and(|mailbox| mailbox.poll_mail(cx).is_ready());
        // The queue is polled even if there is mail, so that it wakes this task too.
        match self.queue.poll_readable(cx) {
            Poll::Pending if has_mail => Poll::Ready(Ok(())),
            other => other,
        }
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> io::Result<usize> {
        self.receive_shared(budget, &mut |packet, _, meta| sink(packet, meta))
    }

    fn receive_shared(&mut self, budget: usize, sink: &mut SharedSink<'_>) -> io::Result<usize> {
        let mailed = self.take_mail(budget, sink);
        if mailed >= budget {
            return Ok(mailed);
        }
        let SteeredDevice { queue, index, steering, misrouted, spare, .. } = self;
        let received = queue.receive_shared(budget - mailed, &mut |packet, shared, meta| match steering
            .queue_of_packet(packet)
        {
            Some(to) if to != *index => {
                let mut copy = spare.pop().unwrap_or_default();
                copy.clear();
                copy.extend_from_slice(packet);
                misrouted.push((to, Handed { packet: copy, meta, return_route: None }));
            }
            Some(_) | None => sink(packet, shared, meta),
        });
        if !self.misrouted.is_empty() {
            self.hand_over_misrouted();
        }
        received.map(|count| mailed + count)
    }

    fn send(&mut self, packet: &[u8], tx: TxMeta) -> io::Result<()> {
        self.queue.send(packet, tx)
    }

    fn send_gathered(&mut self, headers: &[u8], payload: [&[u8]; 2], tx: TxMeta) -> io::Result<()> {
        self.queue.send_gathered(headers, payload, tx)
    }

    fn send_batch(&mut self, packets: &mut [Gathered<'_>]) -> io::Result<()> {
        self.queue.send_batch(packets)
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.queue.poll_writable(cx)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.queue.flush()
    }

    fn mtu(&self) -> usize {
        self.queue.mtu()
    }

    fn capabilities(&self) -> Capabilities {
        self.queue.capabilities()
    }

    fn counters(&self) -> Counters {
        Counters { handed_over: self.handed_over, hand_over_dropped: self.dropped, ..self.queue.counters() }
    }

    fn return_route(&mut self, packet: &[u8]) -> Option<ReturnRoute> {
        self.queue.return_route(packet)
    }

    fn learn_return_route(&mut self, route: ReturnRoute) {
        self.queue.learn_return_route(route);
    }

    fn redirect(&mut self, from: IpAddr, to: IpAddr) {
        self.queue.redirect(from, to);
    }

    fn forget_redirect(&mut self, from: IpAddr) {
        self.queue.forget_redirect(from);
    }
}

impl Drop for SteeredDevice {
    /// Closes the mailbox, because nothing reads it any more.
    fn drop(&mut self) {
        if let Some(mailbox) = self.mailboxes.get(self.index) {
            mailbox.close();
        }
    }
}
