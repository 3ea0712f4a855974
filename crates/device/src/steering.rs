//! Several stacks on one device, each with a queue of its own: this module assigns packets to stacks and
//! delivers them.
//!
//! A connection belongs to the stack that [`Steering`] computes from its four-tuple, whichever queue its
//! packets arrive on. Most packets arrive on the right queue, because a program in the kernel computes the
//! same hash ([`Device::spread`](crate::Device::spread)). The others are *handed over*: the queue that has
//! read them puts them into the mailbox of the right queue. No stack waits for another; a full mailbox drops
//! packets, as a queue does.
//!
//! | file | content |
//! |---|---|
//! | [`mod@self`] | the hash |
//! | `queue` | [`SteeredDevice`], a queue that hands over packets of other stacks |
//! | `mailbox` | packets that other queues have read |

mod mailbox;
mod queue;

use std::net::{IpAddr, SocketAddr};

use brisk_wire::{ChecksumCheck, Packet, four_tuple};

pub use queue::SteeredDevice;

/// An assignment of four-tuples to stacks by a keyed hash. The hash is cheap enough for every packet, and a
/// program in the kernel can compute it too: see [`Steering::key`].
///
/// The hash is not cryptographic. Some chosen addresses and ports collide under every key. An attacker who
/// finds out the key knows the stack of each four-tuple. In both cases one core can be made to work more than
/// the others, but nothing worse.
///
/// ```
/// use brisk_device::memory::{MemoryDevice, MemoryOptions};
/// use brisk_device::steering::{FACTOR, SHIFT, SteeredDevice, Steering, address_words};
/// use brisk_device::Device;
///
/// let steering = Steering::new(2, 0x0123_4567_89ab_cdef);
/// let queue = steering.queue_of("10.0.0.1:80".parse()?, "10.0.0.2:50000".parse()?);
/// assert!(queue < steering.queues());
/// assert_eq!(steering.queue_of_packet(b"no packet"), None);
///
/// // A program in the kernel computes the same hash for IPv4:
/// let mix = |hash: u32, word: u32| {
///     let product = (hash ^ word).wrapping_mul(FACTOR);
///     product ^ product >> SHIFT
/// };
/// let [start, end] = steering.key();
/// let words = [50_000 << 16 | 80, u32::from_be_bytes([10, 0, 0, 2]), u32::from_be_bytes([10, 0, 0, 1]), end];
/// let hash = words.into_iter().fold(start, mix);
/// assert_eq!(((hash >> 16) * 2) >> 16, queue as u32);
/// // An IPv6 address is four words instead of one:
/// assert_eq!(address_words("::1".parse()?), [0, 0, 0, 1]);
///
/// // Two queues that hand over packets of the other's connections:
/// let options = MemoryOptions { mtu: 1400, ..MemoryOptions::default() };
/// let ((first, _far), (second, _end)) = (MemoryDevice::pair_with(options), MemoryDevice::pair());
/// let queues: Vec<Box<dyn Device>> = vec![Box::new(first), Box::new(second)];
/// assert_eq!(SteeredDevice::over(queues, steering).len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Steering {
    key: [u32; 2],
    queues: u32,
    by_ports: bool,
}

/// The prime closest to 2^32 divided by the golden ratio, the usual factor of multiplicative hashing (Knuth,
/// TAOCP 3, 6.4).
pub const FACTOR: u32 = 0x9e37_79b1;
/// Shift that moves the high bits of a product to the low ones. The high bits depend on all bits of the
/// factors.
pub const SHIFT: u32 = 15;

impl Steering {
    /// Creates an assignment to 1 to 65,535 queues under a secret key.
    pub fn new(queues: usize, key: u64) -> Steering {
        let queues = queues.clamp(1, usize::from(u16::MAX)) as u32;
        Steering { key: [(key >> 32) as u32, key as u32], queues, by_ports: false }
    }

    /// Leaves the addresses out of the hash: the connections of a peer stay with their stacks when the peer's
    /// address changes.
    ///
    /// ```
    /// # use brisk_device::steering::Steering;
    /// let steering = Steering::new(2, 0x0123_4567_89ab_cdef).by_ports();
    /// let [before, after] = ["10.0.0.2:50000".parse()?, "10.0.0.3:50000".parse()?];
    /// let local = "10.0.0.1:80".parse()?;
    /// assert_eq!(steering.queue_of(local, before), steering.queue_of(local, after));
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub fn by_ports(self) -> Steering {
        Steering { by_ports: true, ..self }
    }

    /// Returns the two halves of the key in the order of their use, for a program that computes the same hash
    /// in the kernel.
    ///
    /// The hash begins with the first half of the key. Then these are mixed in, in this order: the ports (the
    /// peer's in the high half), the peer's address, our address, and the second half of the key. An IPv4
    /// address is one word, an IPv6 address the four of [`address_words`]. A hash [by
    /// ports](Steering::by_ports) leaves out both addresses. To mix in a word is to XOR it, to multiply by
    /// [`FACTOR`], and to XOR the result with itself shifted right by [`SHIFT`]. The queue is the high 16
    /// bits of the hash times the number of queues, shifted right by 16.
    pub fn key(&self) -> [u32; 2] {
        self.key
    }

    /// Returns the number of queues.
    pub fn queues(&self) -> usize {
        self.queues as usize
    }

    /// Returns the index of the queue for connections between these ends.
    pub fn queue_of(&self, local: SocketAddr, remote: SocketAddr) -> usize {
        // The peer's port comes first, as in an arriving packet.
        let ports = u32::from(remote.port()) << 16 | u32::from(local.port());
        let [start, end] = self.key;
        let ips = [remote.ip(), local.ip()].into_iter().filter(|_| !self.by_ports);
        let hash = ips.fold(mix(start, ports), |hash, ip| match ip {
            IpAddr::V4(ip) => mix(hash, ip.to_bits()),
            IpAddr::V6(_) => address_words(ip).into_iter().fold(hash, mix),
        });
        // The high bits of a product spread over any number of queues, not only over powers of two.
        (((mix(hash, end) >> 16) * self.queues) >> 16) as usize
    }

    /// Returns the queue of a received packet; `None` if it is neither a TCP packet nor an ICMP error about
    /// one.
    pub fn queue_of_packet(&self, packet: &[u8]) -> Option<usize> {
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

/// Returns the words of an IPv6 address, the first one first. An IPv4 address is taken as IPv4-mapped.
pub fn address_words(ip: IpAddr) -> [u32; 4] {
    let bits = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    [96, 64, 32, 0].map(|shift| (bits >> shift) as u32)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    use brisk_wire::ChecksumFill;

    use crate::memory::MemoryDevice;
    use crate::testing::{V4, V6, segment};
    use crate::{Device, TxMeta};

    const KEY: u64 = 0x0123_4567_fedc_ba98;

    /// Returns a packet from the peer's `port` to this side's port.
    fn from_port(port: u16, v6: bool) -> Vec<u8> {
        segment(if v6 { V6 } else { V4 }, (port, 80), &[], ChecksumFill::Full)
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
    fn four_tuples_are_spread_evenly_and_by_the_key() {
        for queues in [1, 2, 3, 8] {
            let count = |key| {
                let steering = Steering::new(queues, key);
                [steering, steering.by_ports()].map(|steering| {
                    let mut counts = vec![0; queues];
                    for port in 1..=8000 {
                        counts[steering.queue_of_packet(&from_port(port, port % 2 == 0)).unwrap()] += 1;
                    }
                    counts
                })
            };
            let even = 8000 / queues;
            for key in [KEY, 0, 1, u64::MAX, 0x9e37_79b9_7f4a_7c15] {
                let counts = count(key).concat();
                assert!(counts.iter().all(|&count| count >= even * 8 / 10 && count <= even * 12 / 10));
            }
        }
        let one =
            |key| (1..64).map(move |port| Steering::new(2, key).queue_of_packet(&from_port(port, false)));
        assert!(!one(KEY).eq(one(0xdead_beef_1234_5678)));
    }

    #[test]
    fn icmp_error_goes_to_the_queue_of_its_connection() {
        let steering = Steering::new(2, KEY);
        for port in 1..100 {
            let arrived = from_port(port, false);
            let [peer, own] = V4;
            let sent = segment([own, peer], (80, port), &[], ChecksumFill::Full);
            let mut error = Vec::new();
            brisk_wire::emit_icmp_too_big("192.0.2.77".parse().unwrap(), &sent, 1300, &mut error);
            assert_eq!(steering.queue_of_packet(&error), steering.queue_of_packet(&arrived));
        }
        assert_eq!(steering.queue_of_packet(b"nothing"), None);
    }

    #[test]
    fn packets_on_the_wrong_queue_reach_their_stack_in_order() {
        let (mut queues, mut wire) = two_queues();
        let steering = Steering::new(2, KEY);
        let packets: Vec<_> = (1..=200).map(|port| from_port(port, false)).collect();
        for packet in &packets {
            wire[0].send(packet, TxMeta::default()).unwrap();
        }
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for _ in 0..200 {
            first.extend(received(&mut queues[0], 4));
            // The budget is smaller than the number of packets, so the rest is kept.
            second.extend(received(&mut queues[1], 3));
        }
        let of = |queue| packets.iter().filter(move |packet| steering.queue_of_packet(packet) == Some(queue));
        assert!(first.iter().eq(of(0)) && second.iter().eq(of(1)));
        assert_eq!(queues[0].counters().handed_over, second.len() as u64);
        assert!(!second.is_empty() && queues[0].counters().hand_over_dropped == 0);
    }

    #[tokio::test]
    async fn sleeping_stack_is_woken_by_a_packet_from_another_queue() {
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
    fn packets_for_a_closed_or_full_stack_are_dropped_and_counted() {
        let (mut queues, mut wire) = two_queues();
        let steering = Steering::new(2, KEY);
        let port = (1..).find(|&port| steering.queue_of_packet(&from_port(port, false)) == Some(1)).unwrap();
        let long = segment(V4, (port, 80), &[7; 60_000], ChecksumFill::Full);
        let sent = 2 * mailbox::MAX_BYTES / long.len();
        for _ in 0..sent {
            wire[0].send(&long, TxMeta::default()).unwrap();
            received(&mut queues[0], 4);
        }
        let counters = queues[0].counters();
        assert!(counters.handed_over as usize * long.len() <= mailbox::MAX_BYTES && counters.handed_over > 0);
        assert_eq!(counters.handed_over + counters.hand_over_dropped, sent as u64);
        drop(queues.pop());
        wire[0].send(&from_port(port, false), TxMeta::default()).unwrap();
        received(&mut queues[0], 4);
        let after = queues[0].counters();
        assert_eq!(after.hand_over_dropped, counters.hand_over_dropped + 1);
    }
}
