//! Two endpoints joined by an emulated link, in memory and in real time, for tests and examples without
//! privileges.
//!
//! The link is that of `brisk_link`, as in the simulator and the emulator. It runs on tokio's timers, whose
//! granularity is a millisecond; under tokio's paused clock it runs as fast as the machine permits.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

pub use brisk_link::LinkSpec;

use brisk_device::{Capabilities, ChecksumState, Counters, Device, RxMeta, TxMeta};
use brisk_link::{Link, LinkDirection};
use brisk_tcp::time::Instant;
use brisk_wire::ChecksumFill;
use tokio::time::Sleep;

use crate::clock::Clock;
use crate::endpoint::{Builder, Endpoint};

/// MTU of both ends, bytes. The MTU of the path is part of the [`LinkSpec`].
const MTU: usize = 1500;

/// Addresses of the first endpoint (A, the client) and of the second (B, the server).
pub const ADDRESSES: [[IpAddr; 2]; 2] = [
    [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1))],
    [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2))],
];

/// Returns two endpoints with default settings, joined by a link: A (`10.0.0.1`, `fd00::1`) and B
/// (`10.0.0.2`, `fd00::2`). The link's `up` direction is from A to B. With the same seed, the link loses the
/// same packets if it carries the same sequence.
///
/// # Errors
/// None with the default settings; the signature is that of [`Builder::build`].
///
/// # Panics
/// Outside a tokio runtime.
pub fn network(link: &LinkSpec, seed: u64) -> io::Result<(Endpoint, Endpoint)> {
    let (a, b) = builders(link, seed);
    Ok((a.build()?, b.build()?))
}

/// Like [`network`], but returns builders, so that the caller can change the settings.
///
/// # Panics
/// Outside a tokio runtime.
pub fn builders(link: &LinkSpec, seed: u64) -> (Builder, Builder) {
    let (a, b) = devices(link, seed);
    let builder = |device, [v4, v6]: [IpAddr; 2], seed| {
        Endpoint::builder(Box::new(device)).address(v4).address(v6).seed(seed)
    };
    let [addresses_a, addresses_b] = ADDRESSES;
    (builder(a, addresses_a, seed ^ 0xa), builder(b, addresses_b, seed ^ 0xb))
}

/// Returns the two ends of an emulated link as devices.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use brisk_runtime::Endpoint;
/// use brisk_runtime::memory::{self, ADDRESSES, LinkDevice, LinkSpec};
///
/// let (device, _other): (LinkDevice, LinkDevice) = memory::devices(&LinkSpec::parse("--rtt 40ms")?, 1);
/// let [[own, _], _] = ADDRESSES;
/// let endpoint = Endpoint::builder(Box::new(device)).address(own).build()?;
/// assert_eq!(endpoint.addresses(), [own]);
/// # Ok(())
/// # }
/// ```
///
/// # Panics
/// Outside a tokio runtime.
pub fn devices(link: &LinkSpec, seed: u64) -> (LinkDevice, LinkDevice) {
    let clock = Clock::start();
    let link = Link::new(link, seed);
    let wire = Arc::new(Mutex::new(Wire { link, readers: [None, None] }));
    let end = |side| LinkDevice {
        side,
        wire: wire.clone(),
        clock,
        timer: Box::pin(tokio::time::sleep(std::time::Duration::ZERO)),
        armed: None,
        counters: Counters::default(),
    };
    (end(Side::A), end(Side::B))
}

#[derive(Clone, Copy, Debug)]
enum Side {
    A,
    B,
}

/// One end of an emulated link.
#[derive(Debug)]
pub struct LinkDevice {
    side: Side,
    wire: Arc<Mutex<Wire>>,
    clock: Clock,
    timer: Pin<Box<Sleep>>,
    armed: Option<Instant>,
    counters: Counters,
}

/// The link and the tasks that wait at its ends.
#[derive(Debug)]
struct Wire {
    link: Link<Vec<u8>>,
    readers: [Option<Waker>; 2],
}

impl Wire {
    fn towards(&mut self, side: Side) -> &mut LinkDirection<Vec<u8>> {
        match side {
            Side::A => &mut self.link.down,
            Side::B => &mut self.link.up,
        }
    }

    fn reader(&mut self, side: Side) -> &mut Option<Waker> {
        let [a, b] = &mut self.readers;
        match side {
            Side::A => a,
            Side::B => b,
        }
    }

    /// Sends a packet from the other end towards `side`; sends replies of the path itself (such as ICMP)
    /// back.
    fn offer(&mut self, side: Side, packet: Vec<u8>, now: Instant) {
        let due = self.towards(side).next_departure();
        let answer = self.towards(side).offer(packet, now).answer();
        // If the next departure changes, the reader must sleep until the new one.
        if self.towards(side).next_departure() != due
            && let Some(reader) = self.reader(side).take()
        {
            reader.wake();
        }
        if let Some(answer) = answer {
            self.offer(side.other(), answer, now);
        }
    }
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}

impl Device for LinkDevice {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let due = {
            let mut wire = lock(&self.wire);
            let due = wire.towards(self.side).next_departure();
            if due.is_some_and(|due| due <= self.clock.now()) {
                return Poll::Ready(Ok(()));
            }
            *wire.reader(self.side) = Some(cx.waker().clone());
            due
        };
        let Some(due) = due else { return Poll::Pending };
        if self.armed != Some(due) {
            self.timer.as_mut().reset(self.clock.wake_at(due));
            self.armed = Some(due);
        }
        self.timer.as_mut().poll(cx).map(|()| {
            self.armed = None;
            Ok(())
        })
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> io::Result<usize> {
        let meta = RxMeta { checksum: ChecksumState::Verify, segment_size: None };
        let now = self.clock.now();
        for count in 0..budget {
            let Some((_, packet)) = lock(&self.wire).towards(self.side).poll(now) else {
                return Ok(count);
            };
            self.counters.received += 1;
            self.counters.received_bytes += packet.len() as u64;
            sink(&packet, meta);
        }
        Ok(budget)
    }

    fn send(&mut self, packet: &[u8], tx: TxMeta) -> io::Result<()> {
        let now = self.clock.now();
        let mut wire = lock(&self.wire);
        let to = self.side.other();
        let size = tx.segment_size.unwrap_or(0);
        if size == 0 && !tx.partial_checksum {
            wire.offer(to, packet.to_vec(), now);
        } else {
            let mut offer = |segment: &[u8]| wire.offer(to, segment.to_vec(), now);
            brisk_wire::split(packet, size, ChecksumFill::Full, &mut offer);
        }
        self.counters.sent += 1;
        self.counters.sent_bytes += packet.len() as u64;
        Ok(())
    }

    /// Always ready: a full link drops packets.
    fn poll_writable(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn mtu(&self) -> usize {
        MTU
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::NONE
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

/// Locks the link. Its state is valid after each call, so a panic elsewhere under the lock does no harm.
fn lock(wire: &Mutex<Wire>) -> MutexGuard<'_, Wire> {
    wire.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_packet_arrives_after_the_delay_of_the_link() {
        let spec = LinkSpec::parse("--rtt 100ms").unwrap();
        let (mut a, mut b) = devices(&spec, 1);
        let started = tokio::time::Instant::now();
        a.send(&[0x45; 40], TxMeta::default()).unwrap();
        poll_fn(|cx| b.poll_readable(cx)).await.unwrap();
        let mut lens = Vec::new();
        assert_eq!(b.receive(8, &mut |packet, _| lens.push(packet.len())).unwrap(), 1);
        assert_eq!(lens, [40]);
        let elapsed = started.elapsed().as_millis();
        assert!((50..=52).contains(&elapsed), "{elapsed} ms");
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_reader_is_woken_by_a_packet() {
        let (mut a, mut b) = devices(&LinkSpec::default(), 1);
        let waiting = tokio::spawn(async move {
            poll_fn(|cx| b.poll_readable(cx)).await.unwrap();
            b.receive(1, &mut |_, _| ()).unwrap()
        });
        tokio::task::yield_now().await;
        a.send(&[0x45; 40], TxMeta::default()).unwrap();
        assert_eq!(waiting.await.unwrap(), 1);
    }
}
