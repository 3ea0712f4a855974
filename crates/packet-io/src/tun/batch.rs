//! Passes several packets to the kernel in one call.
//!
//! A packet for a program of this host wakes that program. If both run on one core, the kernel schedules the
//! program when our call ends. With one call per packet it would run after each packet, which costs more
//! (docs/notes/performance-bulk.md, "One call for all packets of a round"). Without `io_uring`, packets are
//! written one by one. Packets that the kernel refuses here are also written alone; that reports the reason.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

use brisk_device::{Gathered, MAX_SUPER, send_each};

use super::{Locals, TunDevice};
use crate::headers::Headers;
use crate::uring::{MAX, Uring};
use crate::vnet::{Gso, VnetHeader};

/// Packets of one write.
#[derive(Debug)]
pub(super) struct TunBatch {
    uring: Uring,
    starts: Vec<Start>,
}

/// A packet's `virtio_net_hdr` and headers.
#[derive(Clone, Copy, Debug)]
struct Start {
    bytes: [u8; VnetHeader::LEN + Headers::MAX],
    len: usize,
}

impl TunBatch {
    /// Returns `None` if `io_uring` is missing or not permitted.
    pub(super) fn open() -> Option<TunBatch> {
        let start = Start { bytes: [0; VnetHeader::LEN + Headers::MAX], len: 0 };
        Uring::open().ok().map(|uring| TunBatch { uring, starts: vec![start; MAX] })
    }

    /// Describes the packets up to the first one that must be written alone ([`send_each`]). Returns their
    /// number; packets marked as `taken` count too, but are not written again.
    fn describe(&mut self, packets: &[Gathered<'_>], big: &mut Option<Locals>) -> usize {
        let described = packets.iter().zip(&mut self.starts);
        described
            .map(|(packet, start)| packet.taken || start.describe(packet, big))
            .take_while(|is| *is)
            .count()
    }

    /// Writes the described packets in one call, and marks those that were written. Returns `self` for the
    /// next call; `None` if `io_uring` cannot write here.
    fn write(self, fd: BorrowedFd<'_>, packets: &mut [Gathered<'_>]) -> Option<TunBatch> {
        let TunBatch { uring, starts } = self;
        let described = packets.iter().zip(&starts).enumerate().filter(|(_, (packet, _))| !packet.taken);
        let messages: Vec<_> = described.map(|(n, (packet, start))| (n, start.pieces(packet))).collect();
        let messages =
            messages.iter().map(|(n, (pieces, count))| (*n, pieces.get(..*count).unwrap_or_default()));
        let mut is_unknown = false;
        let uring = uring.write(fd, messages, |n, written| match (written, packets.get_mut(n)) {
            (Ok(()), Some(packet)) => packet.taken = true,
            (written, _) => {
                is_unknown |= written.is_err_and(|error| error.raw_os_error() == Some(libc::EOPNOTSUPP));
            }
        });
        uring.filter(|_| !is_unknown).map(|uring| TunBatch { uring, starts })
    }
}

impl Start {
    /// Describes the headers of a packet that the kernel completes; false if the packet must be written alone
    /// ([`send_each`]).
    fn describe(&mut self, packet: &Gathered<'_>, big: &mut Option<Locals>) -> bool {
        let Some(headers) = Headers::of(packet.headers).filter(|_| packet.tx.partial_checksum) else {
            return false;
        };
        let (head, rest) = packet.headers.split_at(headers.total());
        let payload = rest.len() + packet.payload_len();
        let size = packet.tx.segment_size.filter(|&size| size > 0 && usize::from(size) < payload);
        let fits = packet.packet_len() <= MAX_SUPER
            || size.is_some_and(|size| headers.total() + usize::from(size) <= MAX_SUPER)
                && big.as_mut().is_some_and(|locals| locals.accepts_whole(head));
        if !fits || !rest.is_empty() && packet.payload_len() > 0 {
            return false;
        }
        let gso = size.map(|size| Gso { size, v6: headers.v6, flags: headers.flags(head) });
        let (vnet, after) = self.bytes.split_at_mut(VnetHeader::LEN);
        vnet.copy_from_slice(&VnetHeader::unfinished(&headers, gso).bytes());
        after[..head.len()].copy_from_slice(head);
        self.len = VnetHeader::LEN + head.len();
        true
    }

    fn pieces<'a>(&'a self, packet: &Gathered<'a>) -> ([IoSlice<'a>; 3], usize) {
        let rest = packet.headers.get(self.len - VnetHeader::LEN..).unwrap_or_default();
        let [first, second] = if rest.is_empty() { packet.payload } else { [rest, &[]] };
        let count = if second.is_empty() { 1 + usize::from(!first.is_empty()) } else { 3 };
        ([self.bytes.get(..self.len).unwrap_or_default(), first, second].map(IoSlice::new), count)
    }
}

impl TunDevice {
    /// Implements [`send_batch`](brisk_device::Device::send_batch).
    pub(super) fn send_together(&mut self, packets: &mut [Gathered<'_>]) -> io::Result<()> {
        let mut rest = packets;
        while !rest.is_empty() {
            let count = match &mut self.batch {
                // The remaining pieces of an earlier packet leave first, by `send_each`.
                Some(batch) if self.cut.left.is_empty() => batch.describe(rest, &mut self.big),
                _ => 0,
            };
            let (now, later) = rest.split_at_mut(count.max(1));
            if now.iter().filter(|packet| !packet.taken).count() > 1
                && let Some(batch) = self.batch.take()
            {
                self.write_together(batch, now);
            }
            send_each(self, now)?;
            if now.iter().any(|packet| !packet.taken) {
                return Ok(());
            }
            rest = later;
        }
        Ok(())
    }

    /// Writes described packets, and counts those that were written.
    fn write_together(&mut self, batch: TunBatch, packets: &mut [Gathered<'_>]) {
        let before: Vec<bool> = packets.iter().map(|packet| packet.taken).collect();
        self.batch = batch.write(self.fd.as_fd(), packets);
        let written = packets.iter().zip(before).filter(|(packet, before)| packet.taken && !before);
        for (packet, _) in written {
            self.reactor.end_waiting();
            self.counters.on_sent(packet.packet_len());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{IpAddr, SocketAddr, TcpListener};

    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;
    use crate::testing::{Tcp, pattern};
    use crate::tun::tests::{KERNEL, KERNEL6, connect, with_device};
    use crate::tun::{TunOptions, read_packet};
    use brisk_device::{Device, TxMeta};

    /// Returns long and short packets of a byte stream that starts at `seq`.
    fn stream(template: &Tcp, mut seq: u32) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        for len in [13_000, 200, 6_500, 1, 1_300, 13_000, 20, 9_000] {
            let data = Tcp { seq, flags: 0x18, payload: pattern(len), ..template.clone() };
            packets.push(data.with_partial_checksum());
            seq += len as u32;
        }
        packets
    }

    /// Returns the packets as the driver passes them: long ones with separate payload.
    fn gathered(packets: &[Vec<u8>]) -> Vec<Gathered<'_>> {
        let tx = TxMeta { segment_size: Some(1_300), partial_checksum: true, twice: false };
        let mut gathered = Vec::new();
        for (n, packet) in packets.iter().enumerate() {
            let total = Headers::of(packet).unwrap().total();
            // A short packet in one piece, a long one in two or three.
            let (headers, payload) = packet.split_at(if packet.len() < 1_000 { packet.len() } else { total });
            let (first, second) =
                payload.split_at(if n % 2 == 0 { payload.len() } else { payload.len() / 3 });
            gathered.push(Gathered { headers, payload: [first, second], tx, taken: false });
        }
        gathered
    }

    /// Sends packets in one call; the kernel's TCP reads their data.
    async fn is_read(mut device: TunDevice, template: Tcp, kernel: &str) {
        let listener = TcpListener::bind(SocketAddr::new(kernel.parse::<IpAddr>().unwrap(), 0)).unwrap();
        let ours = connect(&mut device, template, listener.local_addr().unwrap().port()).await;
        let (mut stream_of_ours, _) = listener.accept().unwrap();
        stream_of_ours.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        let before = device.counters().sent;
        let packets = stream(&ours, ours.seq);
        let mut together = gathered(&packets);
        device.send_batch(&mut together).unwrap();
        assert!(together.iter().all(|packet| packet.taken));
        let payloads: Vec<u8> = packets.iter().flat_map(|packet| Tcp::parse(packet).payload).collect();
        let mut read = vec![0; payloads.len()];
        stream_of_ours.read_exact(&mut read).unwrap();
        assert!(read == payloads);
        // Packets marked as taken are not sent again.
        device.send_batch(&mut together).unwrap();
        let counters = device.counters();
        assert_eq!((counters.sent - before, counters.send_refused), (packets.len() as u64, 0));
    }

    #[test]
    fn kernel_reads_packets_that_were_sent_together() {
        with_device(true, async |device| is_read(device, Tcp::v4(), KERNEL).await);
        with_device(true, async |device| is_read(device, Tcp::v6(), KERNEL6).await);
        with_device(true, async |device| {
            is_read(TunDevice { batch: None, ..device }, Tcp::v4(), KERNEL).await;
        });
        with_device(false, async |device| {
            assert!(device.batch.is_none());
            is_read(device, Tcp::v4(), KERNEL).await;
        });
    }

    /// Returns a device that accepts only a few packets of 40 kB until they are read, and the descriptor that
    /// reads them.
    fn narrow() -> (TunDevice, std::os::fd::OwnedFd) {
        let (near, far) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::NONBLOCK, None)
                .unwrap();
        let room = 60_000i32.to_ne_bytes();
        crate::sockopt::set(near.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, &room).unwrap();
        (TunDevice::over(near, "narrow", 1400, true), far)
    }

    #[test]
    fn packets_without_space_stay_and_none_is_sent_twice() {
        let seqs: Vec<u32> = (0..8).map(|n| 1 + 40_000 * n).collect();
        let packet =
            |seq: &u32| Tcp { seq: *seq, payload: pattern(40_000), ..Tcp::v4() }.with_partial_checksum();
        let packets: Vec<Vec<u8>> = seqs.iter().map(packet).collect();
        for is_together in [true, false] {
            let (mut device, far) = narrow();
            if !is_together {
                device.batch = None;
            }
            let (mut together, mut arrived) = (gathered(&packets), Vec::new());
            let mut buffer = vec![0; TunDevice::READ_BUFFER];
            device.send_batch(&mut together).unwrap();
            let taken = together.iter().filter(|packet| packet.taken).count();
            assert!((1..8).contains(&taken), "{taken}");
            assert!(together[..taken].iter().all(|packet| packet.taken));
            for _ in 0..8 {
                while let Ok((at, _)) = read_packet(far.as_fd(), true, &mut buffer) {
                    arrived.push(Tcp::parse(&buffer[at]).seq);
                }
                device.send_batch(&mut together).unwrap();
            }
            assert_eq!(arrived, seqs);
            assert_eq!((device.counters().sent, device.counters().send_refused), (8, 0));
        }
    }

    #[test]
    fn packet_refused_by_the_kernel_is_counted_once() {
        with_device(true, async |_| {
            let mut down = TunDevice::open("down0", TunOptions::default()).unwrap();
            let packets = stream(&Tcp::v4(), 1);
            let mut together = gathered(&packets);
            down.send_batch(&mut together).unwrap();
            assert!(together.iter().all(|packet| packet.taken));
            assert_eq!((down.counters().sent, down.counters().send_refused), (0, packets.len() as u64));
        });
    }

    #[test]
    fn batch_ends_without_nonblocking_writes() {
        let Some(mut batch) = TunBatch::open() else { return println!("skipped: no io_uring here") };
        let name = std::fs::File::options().write(true).open("/proc/self/comm").unwrap();
        let packets = stream(&Tcp::v4(), 1);
        let mut together = gathered(&packets);
        assert_eq!(batch.describe(&together, &mut None), packets.len());
        assert!(batch.write(name.as_fd(), &mut together).is_none());
        assert!(together.iter().all(|packet| !packet.taken));
    }
}
