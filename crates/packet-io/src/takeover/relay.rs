//! The stream of packets from the process that has taken over a port to the earlier process, which keeps its
//! connections. Each packet has a header: its length (32 bits), then a `virtio_net_hdr` with the state of its
//! checksum and its segments.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use brisk_device::RxMeta;
use rustix::net::{RecvFlags, SendFlags};

use crate::vnet::VnetHeader;

/// The two ends of a connection, ours first.
pub type Flow = (SocketAddr, SocketAddr);

const HEADER: usize = 4 + VnetHeader::LEN;

/// The connections of the predecessor, and the stream for their packets. Default: none.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    /// True if there are connections.
    has_flows: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    flows: HashSet<Flow>,
    relay: Option<UnixStream>,
    /// The rest of a packet that the stream has accepted in part.
    rest: Vec<u8>,
}

impl Inherited {
    pub(super) fn new(flows: HashSet<Flow>, relay: UnixStream) -> io::Result<Inherited> {
        relay.set_nonblocking(true)?;
        let has_flows = AtomicBool::new(!flows.is_empty());
        Ok(Inherited {
            has_flows,
            state: Mutex::new(State { flows, relay: Some(relay), ..State::default() }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn flows(&self) -> Vec<Flow> {
        self.state().flows.iter().copied().collect()
    }

    pub(super) fn replace(&self, flows: HashSet<Flow>) {
        self.has_flows.store(!flows.is_empty(), Ordering::Relaxed);
        self.state().flows = flows;
    }

    /// Relays a packet of a connection of the predecessor. Returns false if the packet is for this process.
    pub(super) fn takes(&self, packet: &[u8], meta: RxMeta) -> bool {
        if !self.has_flows.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = self.state();
        match brisk_wire::four_tuple(packet) {
            Some((remote, local)) => state.flows.contains(&(local, remote)) && state.relay(packet, meta),
            // ICMP errors are for both processes.
            None => {
                state.relay(packet, meta);
                false
            }
        }
    }
}

impl State {
    /// Sends a packet. If the stream is full, the packet is lost. Returns false if the other process has
    /// ended.
    fn relay(&mut self, packet: &[u8], meta: RxMeta) -> bool {
        let Some(relay) = &self.relay else { return false };
        let mut frame = std::mem::take(&mut self.rest);
        let has_rest = !frame.is_empty();
        if !has_rest {
            frame.extend((packet.len() as u32).to_ne_bytes());
            frame.extend(VnetHeader::received(meta).bytes());
            frame.extend(packet);
        }
        match rustix::net::send(relay, &frame, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(sent) if sent < frame.len() => self.rest = frame.split_off(sent),
            Ok(_) if has_rest => return self.relay(packet, meta),
            Ok(_) => {}
            Err(rustix::io::Errno::AGAIN) if has_rest => self.rest = frame,
            Err(rustix::io::Errno::AGAIN) => {}
            Err(_) => return false,
        }
        true
    }
}

/// The end of the stream at the process that receives the packets.
#[derive(Debug)]
pub(crate) struct RelayEnd {
    stream: UnixStream,
    header: [u8; HEADER],
    /// Bytes of header and packet that were read.
    have: usize,
}

impl RelayEnd {
    pub(super) fn new(stream: UnixStream) -> io::Result<RelayEnd> {
        stream.set_nonblocking(true)?;
        Ok(RelayEnd { stream, header: [0; HEADER], have: 0 })
    }

    /// Reads a packet into `buffer`, which must be the same in all calls. Returns its length.
    ///
    /// # Errors
    /// `WouldBlock` until a whole packet has arrived; `UnexpectedEof` if the other process has ended.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<(usize, RxMeta)> {
        let [l0, l1, l2, l3, vnet @ ..] = loop {
            let len = self.header.first_chunk().map_or(0, |len| u32::from_ne_bytes(*len) as usize);
            let to = match self.have.checked_sub(HEADER) {
                None => self.header.get_mut(self.have..),
                Some(done) if done == len => break self.header,
                Some(done) => buffer.get_mut(done..len),
            };
            let to = to.ok_or(io::ErrorKind::InvalidData)?;
            match rustix::net::recv(&self.stream, to, RecvFlags::DONTWAIT)? {
                (_, 0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                (_, count) => self.have += count,
            }
        };
        self.have = 0;
        Ok((u32::from_ne_bytes([l0, l1, l2, l3]) as usize, VnetHeader::parse(&vnet).rx_meta()))
    }
}

impl AsFd for RelayEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tcp;
    use brisk_device::ChecksumState;

    const PLAIN: RxMeta = RxMeta { checksum: ChecksumState::Verify, segment_size: None };

    #[test]
    fn packets_of_listed_connections_reach_the_process_before() {
        let (near, far) = UnixStream::pair().unwrap();
        let template = || Tcp { ports: (9, 80), ..Tcp::v4() };
        let (theirs, ours) = (template().packet(), Tcp { ports: (10, 80), ..Tcp::v4() }.packet());
        let (remote, local) = brisk_wire::four_tuple(&theirs).unwrap();
        let inherited = Inherited::new(HashSet::from([(local, remote)]), near).unwrap();
        let (mut end, mut buffer) = (RelayEnd::new(far).unwrap(), vec![0; 100_000]);
        let meta = RxMeta { checksum: ChecksumState::Trusted, segment_size: Some(1000) };
        for meta in [meta, PLAIN] {
            assert!(inherited.takes(&theirs, meta) && !inherited.takes(&ours, meta));
            assert_eq!(end.read(&mut buffer).unwrap(), (theirs.len(), meta));
            assert_eq!(buffer[..theirs.len()], theirs);
            assert_eq!(end.read(&mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
        // An ICMP error is for both.
        let mut icmp = theirs.clone();
        icmp[9] = 1;
        assert!(!inherited.takes(&icmp, PLAIN));
        assert_eq!(end.read(&mut buffer).unwrap().0, icmp.len());
        inherited.replace(HashSet::new());
        assert!(!inherited.takes(&theirs, meta));
        inherited.replace(HashSet::from([(local, remote)]));
        drop(end);
        assert!(!inherited.takes(&theirs, meta), "the process has ended");
    }

    #[test]
    fn full_stream_loses_whole_packets_only() {
        let (near, far) = UnixStream::pair().unwrap();
        let packet = Tcp { payload: vec![7; 60_000], ..Tcp::v4() }.packet();
        let (remote, local) = brisk_wire::four_tuple(&packet).unwrap();
        let inherited = Inherited::new(HashSet::from([(local, remote)]), near).unwrap();
        let (mut end, mut buffer) = (RelayEnd::new(far).unwrap(), vec![0; 100_000]);
        let mut received = 0;
        for _ in 0..3 {
            for _ in 0..20 {
                assert!(inherited.takes(&packet, PLAIN));
            }
            while let Ok((len, _)) = end.read(&mut buffer) {
                assert_eq!(buffer[..len], packet);
                received += 1;
            }
        }
        assert!((3..60).contains(&received), "{received}");
    }
}
