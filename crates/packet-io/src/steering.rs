//! Several stacks on one device, each on a queue of its own: which packet is for which, and how it gets there.
//!
//! A connection belongs to the stack that [`Steering`] computes from its four-tuple, whichever queue its packets come
//! from. Most come from the right one: the kernel is given a program that computes the same hash ([`Device::spread`]). The
//! others are *handed over*: the queue that read them puts them into the mailbox of the right one. No stack ever waits
//! for another, and a mailbox that is full drops, as a queue does.
//!
//! | file | what |
//! |---|---|
//! | [`mod@self`] | the hash, and [`SteeredDevice`], a queue that hands over what is not for it |
//! | `mailbox` | where packets wait that others have read |
//! | `program` | the hash as a program for the kernel |

mod mailbox;
pub(crate) mod program;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};

use brisk_wire::{ChecksumCheck, Packet, four_tuple};

use crate::device::{Capabilities, Counters, Device, Gathered, RxMeta, SharedSink, TxMeta, WayBack};
use mailbox::{Handed, Mailbox};

/// Which of several stacks a four-tuple belongs to: a keyed hash, cheap enough for every packet, which the kernel can
/// compute as well (`program`).
///
/// Who does not know the key cannot aim at one stack in particular. It is no cryptographic hash: what somebody gains who
/// finds out is that one core has more to do than another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Steering {
    key: [u32; 2],
    queues: u32,
}

/// 2^32 divided by the golden ratio, the usual factor of multiplicative hashing (Knuth, TAOCP 3, 6.4).
const FACTOR: u32 = 0x9e37_79b1;
/// Brings the high bits of a product, which all bits of its factors reach, to the low ones.
const SHIFT: u32 = 15;

impl Steering {
    /// Among so many queues, 1 to 65,535, under a secret key.
    pub fn new(queues: usize, key: u64) -> Steering {
        let queues = queues.clamp(1, usize::from(u16::MAX)) as u32;
        Steering { key: [(key >> 32) as u32, key as u32], queues }
    }

    /// How many queues there are.
    pub fn queues(&self) -> usize {
        self.queues as usize
    }

    /// The queue of connections between these ends, ours first; below [`Steering::queues`].
    pub fn queue_of(&self, local: SocketAddr, remote: SocketAddr) -> usize {
        // In the order of a packet that arrives.
        let ports = u32::from(remote.port()) << 16 | u32::from(local.port());
        let [start, end] = self.key;
        let hash = [remote.ip(), local.ip()].into_iter().fold(mix(start, ports), |hash, ip| match ip {
            IpAddr::V4(ip) => mix(hash, ip.to_bits()),
            IpAddr::V6(_) => words(ip).into_iter().fold(hash, mix),
        });
        // The high bits of a product spread over any number of queues, not only over powers of two.
        (((mix(hash, end) >> 16) * self.queues) >> 16) as usize
    }

    /// The queue of a packet that has arrived; `None` for one that is about no connection.
    pub(crate) fn queue_of_packet(&self, packet: &[u8]) -> Option<usize> {
        if let Some((remote, local)) = four_tuple(packet) {
            return Some(self.queue_of(local, remote));
        }
        match brisk_wire::parse(packet, ChecksumCheck::Trust) {
            Ok(Packet::Icmp(error)) => Some(self.queue_of(error.src, error.dst)),
            Ok(Packet::Tcp(_) | Packet::Other { .. }) | Err(_) => None,
        }
    }
}

fn mix(hash: u32, word: u32) -> u32 {
    let product = (hash ^ word).wrapping_mul(FACTOR);
    product ^ product >> SHIFT
}

/// The words of an IPv6 address, first things first; one of IPv4 as a mapped one.
fn words(ip: IpAddr) -> [u32; 4] {
    let bits = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    [96, 64, 32, 0].map(|shift| (bits >> shift) as u32)
}

/// One queue of a device for one of several stacks: hands over what arrives for the others.
///
/// The wake-ups of a stack's task come from its own queue and from the mailbox, so the queues may be driven by tasks of
/// different runtimes.
pub struct SteeredDevice {
    queue: Box<dyn Device>,
    index: usize,
    steering: Steering,
    mailboxes: Arc<[Mailbox]>,
    /// What others have read for us and was not taken in yet.
    arrived: Vec<Handed>,
    taken: usize,
    /// What we have read for others, with the index of theirs.
    astray: Vec<(usize, Handed)>,
    spare: Vec<Vec<u8>>,
    handed_over: u64,
    dropped: u64,
}

/// More spare buffers than this are freed.
const SPARE_BUFFERS: usize = 64;

impl SteeredDevice {
    /// Ties the queues of one device together: as many as `steering` knows, in their order.
    ///
    /// Where the kernel cannot be taught the hash (no right to, too old), packets come to any queue, and more of them are
    /// handed over ([`Counters::handed_over`]).
    ///
    /// # Panics
    /// If there are more or fewer.
    pub fn over(mut queues: Vec<Box<dyn Device>>, steering: Steering) -> Vec<SteeredDevice> {
        assert_eq!(queues.len(), steering.queues(), "as many queues as the steering knows");
        if let Some(first) = queues.first_mut() {
            // What it cannot do is done here.
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
            astray: Vec::new(),
            spare: Vec::new(),
            handed_over: 0,
            dropped: 0,
        };
        queues.into_iter().enumerate().map(over).collect()
    }

    /// Hands at most `budget` packets to `sink` that others have read; returns how many.
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
            if let Some(way) = handed.way_back {
                self.queue.learn_way_back(way);
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

    /// Puts what was read for others into their mailboxes.
    fn hand_over(&mut self) {
        for (to, mut handed) in std::mem::take(&mut self.astray) {
            handed.way_back = self.queue.way_back(&handed.packet);
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
        // The queue is asked in any case: it is to wake this task too.
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
        let SteeredDevice { queue, index, steering, astray, spare, .. } = self;
        let received = queue.receive_shared(budget - mailed, &mut |packet, shared, meta| match steering
            .queue_of_packet(packet)
        {
            Some(to) if to != *index => {
                let mut copy = spare.pop().unwrap_or_default();
                copy.clear();
                copy.extend_from_slice(packet);
                astray.push((to, Handed { packet: copy, meta, way_back: None }));
            }
            Some(_) | None => sink(packet, shared, meta),
        });
        if !self.astray.is_empty() {
            self.hand_over();
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

    fn way_back(&mut self, packet: &[u8]) -> Option<WayBack> {
        self.queue.way_back(packet)
    }

    fn learn_way_back(&mut self, way: WayBack) {
        self.queue.learn_way_back(way);
    }
}

impl Drop for SteeredDevice {
    /// Nobody takes anything out of this mailbox any more.
    fn drop(&mut self) {
        if let Some(mailbox) = self.mailboxes.get(self.index) {
            mailbox.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::memory::MemoryDevice;
    use crate::testing::Tcp;

    const KEY: u64 = 0x0123_4567_fedc_ba98;

    /// A packet from the peer's `port` to ours.
    fn from_port(port: u16, v6: bool) -> Vec<u8> {
        let template = if v6 { Tcp::v6() } else { Tcp::v4() };
        Tcp { ports: (port, 80), ..template }.packet()
    }

    fn two_queues() -> (Vec<SteeredDevice>, Vec<MemoryDevice>) {
        let pairs = [MemoryDevice::pair(), MemoryDevice::pair()];
        let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let ours = ours.into_iter().map(|device| Box::new(device) as Box<dyn Device>).collect();
        (SteeredDevice::over(ours, Steering::new(2, KEY)), theirs)
    }

    fn received(device: &mut SteeredDevice, budget: usize) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        device.receive(budget, &mut |packet, _| packets.push(packet.to_vec())).unwrap();
        packets
    }

    #[test]
    fn four_tuples_are_spread_evenly_and_the_key_decides() {
        for queues in [1, 2, 3, 8] {
            let count = |key| {
                let (steering, mut counts) = (Steering::new(queues, key), vec![0; queues]);
                for port in 1..=8000 {
                    counts[steering.queue_of_packet(&from_port(port, port % 2 == 0)).unwrap()] += 1;
                }
                counts
            };
            let even = 8000 / queues;
            for key in [KEY, 0, 1, u64::MAX, 0x9e37_79b9_7f4a_7c15] {
                assert!(count(key).iter().all(|&count| count >= even * 8 / 10 && count <= even * 12 / 10));
            }
        }
        let one =
            |key| (1..64).map(move |port| Steering::new(2, key).queue_of_packet(&from_port(port, false)));
        assert!(!one(KEY).eq(one(0xdead_beef_1234_5678)));
    }

    #[test]
    fn an_icmp_error_goes_where_the_connection_is_that_it_is_about() {
        let steering = Steering::new(2, KEY);
        for port in 1..100 {
            let arrived = from_port(port, false);
            let (remote, local) = four_tuple(&arrived).unwrap();
            let sent = Tcp { src: local.ip(), dst: remote.ip(), ports: (80, port), ..Tcp::v4() }.packet();
            let mut error = Vec::new();
            brisk_wire::emit_icmp_too_big("192.0.2.77".parse().unwrap(), &sent, 1300, &mut error);
            assert_eq!(steering.queue_of_packet(&error), steering.queue_of_packet(&arrived));
        }
        assert_eq!(steering.queue_of_packet(b"nothing"), None);
    }

    #[test]
    fn packets_on_the_wrong_queue_reach_the_right_stack_in_order_and_are_counted() {
        let (mut queues, mut wire) = two_queues();
        let steering = Steering::new(2, KEY);
        let packets: Vec<_> = (1..=200).map(|port| from_port(port, false)).collect();
        for packet in &packets {
            wire[0].send(packet, TxMeta::default()).unwrap();
        }
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for _ in 0..200 {
            first.extend(received(&mut queues[0], 4));
            // Fewer than there are: the rest is not forgotten.
            second.extend(received(&mut queues[1], 3));
        }
        let of = |queue| packets.iter().filter(move |packet| steering.queue_of_packet(packet) == Some(queue));
        assert!(first.iter().eq(of(0)) && second.iter().eq(of(1)));
        assert_eq!(queues[0].counters().handed_over, second.len() as u64);
        assert!(!second.is_empty() && queues[0].counters().hand_over_dropped == 0);
    }

    #[tokio::test]
    async fn a_stack_that_sleeps_is_woken_by_what_another_queue_read_for_it() {
        let (mut queues, mut wire) = two_queues();
        let mut second = queues.pop().unwrap();
        let mut first = queues.pop().unwrap();
        let steering = Steering::new(2, KEY);
        let port = (1..).find(|&port| steering.queue_of_packet(&from_port(port, true)) == Some(1)).unwrap();
        let sleeper = tokio::spawn(async move {
            poll_fn(|cx| second.poll_readable(cx)).await.unwrap();
            received(&mut second, 4)
        });
        tokio::task::yield_now().await;
        wire[0].send(&from_port(port, true), TxMeta::default()).unwrap();
        poll_fn(|cx| first.poll_readable(cx)).await.unwrap();
        assert!(received(&mut first, 4).is_empty());
        assert_eq!(sleeper.await.unwrap(), [from_port(port, true)]);
    }

    #[test]
    fn what_is_for_a_stack_that_has_gone_or_takes_nothing_is_dropped_and_counted() {
        let (mut queues, mut wire) = two_queues();
        let steering = Steering::new(2, KEY);
        let port = (1..).find(|&port| steering.queue_of_packet(&from_port(port, false)) == Some(1)).unwrap();
        let long = Tcp { ports: (port, 80), payload: vec![7; 60_000], ..Tcp::v4() }.packet();
        let sent = 2 * mailbox::ROOM / long.len();
        for _ in 0..sent {
            wire[0].send(&long, TxMeta::default()).unwrap();
            received(&mut queues[0], 4);
        }
        let counters = queues[0].counters();
        assert!(counters.handed_over as usize * long.len() <= mailbox::ROOM && counters.handed_over > 0);
        assert_eq!(counters.handed_over + counters.hand_over_dropped, sent as u64);
        drop(queues.pop());
        wire[0].send(&from_port(port, false), TxMeta::default()).unwrap();
        received(&mut queues[0], 4);
        let after = queues[0].counters();
        assert_eq!(after.hand_over_dropped, counters.hand_over_dropped + 1);
    }
}
