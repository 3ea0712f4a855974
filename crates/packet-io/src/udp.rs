//! TCP inside UDP: one socket carries all connections of a stack, to any number of peers.
//!
//! The device needs no privilege, and a NAT or firewall sees one UDP flow per pair of gateways. The kernel
//! moves up to 64 segments in one call (`UDP_SEGMENT`, `UDP_GRO`), even if their headers differ; a *chain* is
//! the datagrams of one such call. Each segment is four bytes longer than in IP. [`layout`] describes the
//! datagrams, [`peers`] the addresses of peers.
//!
//! The stack uses IPv6 with inner addresses: its own is [`LOCAL_INNER`], a peer's is [`inner_address`]. TCP
//! ports are independent of the UDP ports.
//!
//! NATs drop an idle flow after as little as 30 seconds, so connections that must survive longer idle times
//! need a TCP keepalive every 20 seconds. The socket forbids IP fragmentation. So full segments are lost on a
//! path with an MTU below [`UdpOptions::path_mtu`]; such a path needs a lower value.

mod batch;
mod errors;
pub mod layout;
pub mod peers;
mod queues;
mod together;

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll};

use brisk_device::steering::Steering;
use brisk_device::{
    Capabilities, ChecksumState, Counters, Device, MAX_SUPER, ReturnRoute, RxMeta, SharedSink, TxMeta,
};
use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use socket2::{Domain, Protocol, Socket, Type};

use crate::privileges::OpenError;
use crate::reactor::Reactor;
use crate::sockopt;
use batch::{Batches, UdpBatch};
use layout::{Assembly, HEADER_LEN, INNER_HEADERS, Incoming, Outgoing};
pub use peers::{LOCAL_INNER, inner_address, outer_address};
use peers::{Peers, Route, canonical};
use together::JointSender;

/// Options of a UDP device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpOptions {
    /// Longest IP packet, in bytes, that every path to the peers carries; 576 to 65535. Default 1500.
    pub path_mtu: usize,
    /// True to share the port with other sockets of this user (`SO_REUSEPORT`): one device per core. Default
    /// false.
    pub reuse_port: bool,
    /// Requested size of the socket buffers in bytes, for each direction; the kernel may grant less. Default
    /// 4 MiB.
    pub buffer_bytes: usize,
}

impl Default for UdpOptions {
    fn default() -> Self {
        UdpOptions { path_mtu: 1500, reuse_port: false, buffer_bytes: 4 << 20 }
    }
}

/// A UDP socket as a device for IPv6 packets with inner addresses.
#[derive(Debug)]
pub struct UdpDevice {
    reactor: Reactor,
    socket: UdpSocket,
    state: UdpSocketState,
    local: SocketAddr,
    /// True if the socket can reach IPv4 peers: an IPv4 socket, or one of both families.
    serves_v4: bool,
    mtu: usize,
    peers: Peers,
    batches: Batches,
    /// Sends several chains in one call, if the system supports it.
    together: Option<JointSender>,
    /// Memory for [`RECEIVE_BATCH`] chains of datagrams.
    buffer: Vec<u8>,
    assembly: Assembly,
    copies: Assembly,
    counters: Counters,
    /// True if the socket's queue has errors about datagrams.
    has_errors: bool,
}

/// Maximum number of chains of datagrams that one system call receives.
const RECEIVE_BATCH: usize = 8;
/// Maximum length of a chain of the kernel's GRO.
const CHAIN: usize = 65_536;
/// If more chains wait, all but the youngest are sent without a flush.
const SEND_AT: usize = 8;
/// Minimum number of waiting bytes for several chains to leave in one call. The short chains of transactions
/// gain nothing from it.
const TOGETHER_AT: usize = 96 << 10;
/// Number of waiting chains at which the device accepts no packet.
const MAX_WAITING: usize = 16;
const UDP_HEADER: usize = 8;
/// Range of the source address in an IPv6 header.
const SOURCE: std::ops::Range<usize> = 8..24;

impl UdpDevice {
    /// Binds a socket. `[::]` serves IPv4 as well; port 0 lets the kernel choose.
    ///
    /// # Errors
    /// The address is in use, or this host does not have it.
    pub fn bind(bind: SocketAddr, options: UdpOptions) -> Result<UdpDevice, OpenError> {
        let failed = |error| OpenError::udp(bind, "cannot be bound", error);
        let socket =
            Socket::new(Domain::for_address(bind), Type::DGRAM, Some(Protocol::UDP)).map_err(failed)?;
        if bind.is_ipv6() && bind.ip().is_unspecified() {
            socket.set_only_v6(false).map_err(failed)?;
        }
        if options.reuse_port {
            socket.set_reuse_port(true).map_err(failed)?;
        }
        socket.bind(&bind.into()).map_err(failed)?;
        UdpDevice::over(socket.into(), options).map_err(failed)
    }

    fn over(socket: UdpSocket, options: UdpOptions) -> io::Result<UdpDevice> {
        let local = socket.local_addr()?;
        let serves_v4 =
            local.is_ipv4() || local.ip().is_unspecified() && !socket2::SockRef::from(&socket).only_v6()?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        sockopt::request_buffers(socket.as_fd(), options.buffer_bytes);
        // The device has no use for arrival times.
        let _ = sockopt::set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &0i32.to_ne_bytes());
        errors::enable(socket.as_fd(), local.is_ipv6());
        let path_mtu = options.path_mtu.clamp(576, MAX_SUPER);
        Ok(UdpDevice {
            reactor: Reactor::default(),
            socket,
            state,
            local,
            serves_v4,
            mtu: inner_mtu(path_mtu, local),
            peers: Peers::new(),
            batches: Batches::default(),
            together: JointSender::open(),
            buffer: vec![0; RECEIVE_BATCH * CHAIN],
            assembly: Assembly::default(),
            copies: Assembly::default(),
            counters: Counters::default(),
            has_errors: false,
        })
    }

    /// Returns the stack's address on every UDP device: [`LOCAL_INNER`].
    pub fn local_inner() -> IpAddr {
        IpAddr::V6(LOCAL_INNER)
    }

    /// Returns the UDP address of the socket.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Returns the maximum length of a super-packet whose datagrams form one chain. A longer super-packet
    /// would need a second call.
    fn max_super(&self) -> usize {
        let (payload, max) = (self.mtu - INNER_HEADERS, self.state.max_gso_segments());
        let datagrams = (batch::MAX_BYTES / (HEADER_LEN + payload)).clamp(1, max.max(1));
        if max > 1 { INNER_HEADERS + datagrams * payload } else { MAX_SUPER }
    }

    /// Sends the waiting chains, oldest first, until at most `keep` are left.
    fn transmit(&mut self, keep: usize) -> io::Result<()> {
        while self.batches.bytes() >= TOGETHER_AT && self.transmit_together(keep) {}
        while self.batches.len() > keep {
            let Some(batch) = self.batches.oldest() else { break };
            let step = transmit_step(&self.reactor, &self.socket, &self.state, self.local.is_ipv6(), batch)?;
            match step {
                SendStep::Went(bytes) => batch.advance(bytes),
                SendStep::WithoutSource => {
                    batch.route.from = None;
                    self.peers.forget_source(batch.route.outer);
                }
                SendStep::WithoutSegmentation => {}
                SendStep::AfterError => self.has_errors = true,
                SendStep::Refused(bytes) => {
                    batch.advance(bytes);
                    self.counters.send_refused += 1;
                }
                SendStep::Done => self.batches.pop(),
            }
        }
        Ok(())
    }
}

/// The result of one attempt to send from a chain.
enum SendStep {
    Went(usize),
    /// Nothing was sent; try again without a source address.
    WithoutSource,
    /// Nothing was sent; try again one datagram at a time.
    WithoutSegmentation,
    /// Nothing was sent, because an error about an earlier datagram was reported; try again.
    AfterError,
    Refused(usize),
    /// Nothing is left to send.
    Done,
}

fn transmit_step(
    reactor: &Reactor,
    socket: &UdpSocket,
    state: &UdpSocketState,
    v6: bool,
    batch: &UdpBatch,
) -> io::Result<SendStep> {
    let contents = batch.next(state.max_gso_segments() > 1);
    if contents.is_empty() {
        return Ok(SendStep::Done);
    }
    let transmit = Transmit {
        destination: for_socket(batch.route.outer, v6),
        ecn: EcnCodepoint::from_bits(batch.ecn),
        contents,
        segment_size: (contents.len() > batch.segment_size).then_some(batch.segment_size),
        src_ip: batch.route.from,
    };
    let len = contents.len();
    match reactor.write(|| state.try_send(UdpSockRef::from(socket), &transmit)) {
        Ok(()) => Ok(SendStep::Went(len)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
        Err(error) if errors::is_pending(&error) => Ok(SendStep::AfterError),
        Err(error) => match error.raw_os_error() {
            Some(libc::EBADF | libc::ENOTSOCK) => Err(error),
            Some(code) if transmit.src_ip.is_some() && is_about_source(code) => Ok(SendStep::WithoutSource),
            // From now on the socket's state says that the outgoing interface cannot segment.
            Some(libc::EINVAL | libc::EIO)
                if transmit.segment_size.is_some() && state.max_gso_segments() == 1 =>
            {
                Ok(SendStep::WithoutSegmentation)
            }
            _ => Ok(SendStep::Refused(len)),
        },
    }
}

/// True if the cause may be a source address that this host no longer has. Linux also reports an unreachable
/// network in this case, because it looks up the route from that address.
fn is_about_source(code: i32) -> bool {
    matches!(code, libc::EINVAL | libc::EADDRNOTAVAIL | libc::ENETUNREACH | libc::EHOSTUNREACH)
}

impl Device for UdpDevice {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.reactor.poll_readable(self.socket.as_fd(), cx)
    }

    fn receive(&mut self, budget: usize, sink: &mut dyn FnMut(&[u8], RxMeta)) -> io::Result<usize> {
        self.receive_shared(budget, &mut |packet, _, meta| sink(packet, meta))
    }

    fn receive_shared(&mut self, budget: usize, sink: &mut SharedSink<'_>) -> io::Result<usize> {
        let mut count = 0;
        while count < budget {
            let mut metas = [RecvMeta::default(); RECEIVE_BATCH];
            let (chains, drained) = match self.read(&mut metas, budget - count) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The kernel reports an ICMP error about an earlier datagram once, here.
                Err(error) if is_unreachable(&error) => {
                    self.has_errors = true;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut arrival = Arrival {
                peers: &mut self.peers,
                assembly: &mut self.assembly,
                copies: &mut self.copies,
                counters: &mut self.counters,
                unspecified: self.local.ip().is_unspecified(),
                count: 0,
            };
            for (meta, chain) in metas.iter().take(chains).zip(self.buffer.chunks(CHAIN)) {
                arrival.chain(meta, chain.get(..meta.len).unwrap_or(chain), sink);
            }
            count += arrival.count;
            if drained {
                break;
            }
        }
        if self.has_errors {
            count += self.take_errors(sink);
        }
        Ok(count)
    }

    fn send(&mut self, packet: &[u8], tx: TxMeta) -> io::Result<()> {
        self.send_datagrams(Outgoing::parse(packet), tx)
    }

    fn send_gathered(&mut self, head: &[u8], payload: [&[u8]; 2], tx: TxMeta) -> io::Result<()> {
        self.send_datagrams(Outgoing::gather(head, payload), tx)
    }

    fn poll_writable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.reactor.poll_writable(self.socket.as_fd(), cx)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.transmit(0)
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            tso: true,
            gather: true,
            twice: true,
            max_super: self.max_super(),
            descriptor: true,
            peers_move: true,
        }
    }

    fn counters(&self) -> Counters {
        Counters { receive_overflowed: sockopt::dropped(self.socket.as_fd()), ..self.counters }
    }

    fn return_route(&mut self, packet: &[u8]) -> Option<ReturnRoute> {
        let peer: [u8; 16] = packet.get(SOURCE)?.try_into().ok()?;
        let Route { outer, from } = self.peers.route(Ipv6Addr::from(peer))?;
        Some(ReturnRoute { outer, from })
    }

    fn learn_return_route(&mut self, ReturnRoute { outer, from }: ReturnRoute) {
        // Fails only at a hash collision; the known peer then keeps its address.
        let _ = self.peers.learn(Route { outer, from });
    }

    fn redirect(&mut self, from: IpAddr, to: IpAddr) {
        if let (IpAddr::V6(from), IpAddr::V6(to)) = (from, to) {
            self.peers.redirect(from, to);
        }
    }

    fn forget_redirect(&mut self, from: IpAddr) {
        if let IpAddr::V6(from) = from {
            self.peers.forget_redirect(from);
        }
    }

    fn spread(&mut self, steering: &Steering) -> io::Result<()> {
        self.choose_socket_by(steering)
    }
}

impl UdpDevice {
    /// Collects the datagrams of a packet, and sends chains if many wait. `None` is a packet that cannot be
    /// sent.
    fn send_datagrams(&mut self, outgoing: Option<Outgoing<'_>>, tx: TxMeta) -> io::Result<()> {
        self.transmit(MAX_WAITING - 1)?;
        let outgoing = outgoing.filter(|outgoing| outgoing.packet_len() <= MAX_SUPER);
        let route = outgoing.and_then(|outgoing| self.route(outgoing.dst));
        let (Some(outgoing), Some(route)) = (outgoing, route) else {
            self.counters.send_refused += 1;
            return Ok(());
        };
        let (size, times) = (tx.segment_size, 1 + usize::from(tx.twice));
        let (full, all) = (outgoing.full_pieces(size), outgoing.pieces(size));
        for pieces in [0..full, full..all] {
            let (first, len) = (pieces.start * times, outgoing.piece_len(size, pieces.start));
            let run = (pieces.len() * times, len);
            self.batches.add(route, outgoing.ecn, run, self.state.max_gso_segments(), |range, out| {
                outgoing.write_pieces(size, tx.twice, first + range.start..first + range.end, out);
            });
        }
        self.counters.on_sent(outgoing.packet_len());
        if self.batches.len() <= SEND_AT {
            return Ok(());
        }
        match self.transmit(1) {
            // Packets in a chain count as sent.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            other => other,
        }
    }

    /// Makes one system call. Returns the number of received chains, and true if no more are waiting.
    fn read(&mut self, metas: &mut [RecvMeta; RECEIVE_BATCH], budget: usize) -> io::Result<(usize, bool)> {
        let mut chains = self.buffer.chunks_mut(CHAIN);
        let mut slices: [IoSliceMut<'_>; RECEIVE_BATCH] =
            std::array::from_fn(|_| IoSliceMut::new(chains.next().unwrap_or_default()));
        let wanted = &mut slices[..budget.clamp(1, RECEIVE_BATCH)];
        self.reactor.read_out(|| {
            let chains = self.state.recv(UdpSockRef::from(&self.socket), wanted, metas)?;
            let drained = chains < wanted.len();
            Ok(((chains, drained), drained))
        })
    }

    /// Returns the route to a peer, if this socket supports its family.
    fn route(&mut self, inner: Ipv6Addr) -> Option<Route> {
        let (v4, v6) = (self.serves_v4, self.local.is_ipv6());
        self.peers.route(inner).filter(|route| if route.outer.is_ipv4() { v4 } else { v6 })
    }
}

/// Processes the datagrams that one call of `recv` has returned.
struct Arrival<'a> {
    peers: &'a mut Peers,
    assembly: &'a mut Assembly,
    /// Copies (Proactive) of the segments in `assembly`, delivered after them.
    copies: &'a mut Assembly,
    counters: &'a mut Counters,
    /// True if the socket is not bound to an address, so replies come from the address to which the peer
    /// wrote.
    unspecified: bool,
    count: usize,
}

impl Arrival<'_> {
    /// Processes a chain of datagrams of one peer. Merges consecutive segments of one TCP stream, as the
    /// kernel's GRO does for TCP.
    fn chain(&mut self, meta: &RecvMeta, bytes: &[u8], sink: &mut SharedSink<'_>) {
        let from = if self.unspecified { meta.dst_ip } else { None };
        let ecn = meta.ecn.map_or(0, |ecn| ecn as u8);
        let (mut run, mut copied) = (false, false);
        let mut peer = None;
        for datagram in bytes.chunks(meta.stride.max(1)) {
            // Datagrams that are not TCP are dropped, and their senders are not remembered.
            let Some(datagram) = Incoming::parse(datagram) else {
                self.counters.receive_dropped += 1;
                continue;
            };
            if run && self.assembly.extend(&datagram) || copied && self.copies.extend(&datagram) {
                continue;
            }
            if let Some(peer) = peer.filter(|_| run && !copied && self.assembly.is_followed_by(&datagram)) {
                self.copies.start(&datagram, peer, LOCAL_INNER, ecn);
                copied = true;
                continue;
            }
            self.deliver(run, copied, sink);
            copied = false;
            peer = peer.or_else(|| self.peers.learn(Route { outer: canonical(meta.addr), from }));
            run = peer.is_some();
            match peer {
                Some(peer) => self.assembly.start(&datagram, peer, LOCAL_INNER, ecn),
                None => self.counters.receive_dropped += 1,
            }
        }
        self.deliver(run, copied, sink);
    }

    /// Delivers the run, if there is one, and then its copies.
    fn deliver(&mut self, run: bool, copied: bool, sink: &mut SharedSink<'_>) {
        let Arrival { assembly, copies, counters, count, .. } = self;
        for assembly in
            [run.then_some(&mut **assembly), copied.then_some(&mut **copies)].into_iter().flatten()
        {
            assembly.finish(|packet, shared, segment_size| {
                counters.on_received(packet.len());
                sink(packet, shared, RxMeta { checksum: ChecksumState::Trusted, segment_size });
            });
            *count += 1;
        }
    }
}

/// Returns the maximum length of an inner packet whose datagram fits the path. The inner packet has headers
/// of IPv6 and TCP; the datagram has those of IP, UDP and [`layout`] in their place.
fn inner_mtu(path_mtu: usize, local: SocketAddr) -> usize {
    let ip_header = if local.is_ipv4() { 20 } else { 40 };
    (path_mtu - ip_header - UDP_HEADER - HEADER_LEN + INNER_HEADERS).min(MAX_SUPER)
}

/// Returns a peer's address in the form for the socket: an IPv6 socket (`v6`) needs IPv4 addresses mapped.
fn for_socket(outer: SocketAddr, v6: bool) -> SocketAddr {
    match outer {
        SocketAddr::V4(v4) if v6 => SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0).into(),
        SocketAddr::V4(_) | SocketAddr::V6(_) => outer,
    }
}

fn is_unreachable(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EMSGSIZE)
    )
}

impl AsFd for UdpDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Tcp, pattern};
    use std::future::poll_fn;
    use std::time::Duration;

    pub(super) fn device(bind: &str) -> UdpDevice {
        UdpDevice::bind(bind.parse().unwrap(), UdpOptions::default()).unwrap()
    }

    /// Returns two devices on loopback, the second for both families.
    fn pair(first: &str) -> (UdpDevice, UdpDevice) {
        (device(first), device("[::]:0"))
    }

    /// Returns the inner address of `device` as a peer on loopback sees it, in the family of `like`.
    fn seen(device: &UdpDevice, like: &UdpDevice) -> IpAddr {
        let loopback: IpAddr = if like.local_addr().is_ipv4() {
            std::net::Ipv4Addr::LOCALHOST.into()
        } else {
            Ipv6Addr::LOCALHOST.into()
        };
        inner_address(SocketAddr::new(loopback, device.local_addr().port()))
    }

    pub(super) fn to(dst: IpAddr) -> Tcp {
        Tcp { src: UdpDevice::local_inner(), dst, ..Tcp::v6() }
    }

    pub(super) async fn receive(device: &mut UdpDevice, packets: usize) -> Vec<(Tcp, Option<u16>)> {
        let mut received = Vec::new();
        let all = async {
            while received.len() < packets {
                poll_fn(|cx| device.poll_readable(cx)).await.unwrap();
                let sink = &mut |packet: &[u8], meta: RxMeta| {
                    assert_eq!(meta.checksum, ChecksumState::Trusted);
                    received.push((Tcp::parse(packet), meta.segment_size));
                };
                device.receive(64, sink).unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(5), all).await.expect("the packets arrive");
        received
    }

    #[tokio::test]
    async fn datagrams_beyond_the_receive_buffer_are_counted() {
        let options = UdpOptions { buffer_bytes: 4096, ..UdpOptions::default() };
        let device = UdpDevice::bind("127.0.0.1:0".parse().unwrap(), options).unwrap();
        assert_eq!(device.counters().receive_overflowed, 0);
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..100 {
            sender.send_to(&[0; 1000], device.local_addr()).unwrap();
        }
        let lost = device.counters().receive_overflowed;
        assert!((50..100).contains(&lost), "{lost}");
    }

    #[tokio::test]
    async fn segment_reaches_a_peer_and_the_answer_returns() {
        for bind in ["127.0.0.1:0", "[::1]:0"] {
            let (mut a, mut b) = pair(bind);
            let request = Tcp {
                flags: 0x02,
                options: vec![2, 4, 5, 0xA0],
                payload: pattern(300),
                ecn: 2,
                ..to(seen(&b, &a))
            };
            a.send(&request.packet(), TxMeta::default()).unwrap();
            a.flush().unwrap();
            let (got, segment_size) = receive(&mut b, 1).await.remove(0);
            assert_eq!(segment_size, None);
            assert_eq!((got.dst, got.src), (UdpDevice::local_inner(), inner_address(a.local_addr())));
            assert_eq!((got.flags, &got.options, got.ecn), (0x02, &request.options, 2));
            assert!(got.payload == request.payload && got.ports == request.ports);
            let answer = Tcp { ecn: 3, ..to(got.src) };
            b.send(&answer.packet(), TxMeta::default()).unwrap();
            b.flush().unwrap();
            let (got, _) = receive(&mut a, 1).await.remove(0);
            assert_eq!((got.src, got.ecn), (request.dst, 3));
            assert_eq!(a.counters().receive_dropped + b.counters().receive_dropped, 0);
        }
    }

    #[tokio::test]
    async fn super_packets_pass_whole_in_both_directions() {
        for bind in ["127.0.0.1:0", "[::1]:0"] {
            let (mut a, mut b) = pair(bind);
            assert!(a.capabilities().tso);
            let dst = seen(&b, &a);
            let back = super_packet(&mut a, &mut b, dst).await;
            super_packet(&mut b, &mut a, back).await;
        }
    }

    /// Sends a super-packet of maximum length and returns the inner address of its sender.
    async fn super_packet(from: &mut UdpDevice, at: &mut UdpDevice, dst: IpAddr) -> IpAddr {
        let mss = (from.mtu() - INNER_HEADERS) as u16;
        let payload = pattern(65_000);
        let sent = Tcp { flags: 0x18, payload: payload.clone(), ..to(dst) };
        from.send(
            &sent.with_partial_checksum(),
            TxMeta { segment_size: Some(mss), partial_checksum: true, twice: false },
        )
        .unwrap();
        from.flush().unwrap();
        let (mut collected, mut longest, mut source) = (Vec::new(), 0, None);
        while collected.len() < payload.len() {
            for (part, segment_size) in receive(at, 1).await {
                assert_eq!(part.seq as usize, 1 + collected.len());
                assert!(part.payload.len() <= usize::from(mss) || segment_size == Some(mss));
                longest = longest.max(part.payload.len());
                collected.extend(part.payload);
                source = Some(part.src);
            }
        }
        assert!(collected == payload);
        if at.state.gro_segments() > 1 && from.state.max_gso_segments() > 1 {
            assert!(longest > 8 * usize::from(mss), "longest part {longest}");
        }
        source.unwrap()
    }

    /// The wire carries 1 1' 2 2' ...; the stack gets consecutive originals first, then their copies.
    #[tokio::test]
    async fn each_segment_of_a_super_packet_may_go_twice() {
        let (mut a, mut b) = pair("127.0.0.1:0");
        assert!(a.capabilities().twice);
        let sent = Tcp { flags: 0x18, payload: pattern(9_500), ..to(seen(&b, &a)) };
        let tx = TxMeta { segment_size: Some(1000), partial_checksum: true, twice: true };
        a.send(&sent.with_partial_checksum(), tx).unwrap();
        let wire = a.batches.oldest().unwrap();
        let seqs = wire.next(true).chunks(HEADER_LEN + 1000).map(|datagram| {
            (datagram[0] & 0x08 != 0, u32::from_be_bytes(datagram[4..8].try_into().unwrap()) / 1000)
        });
        let expected = (0..10).flat_map(|segment| [(false, segment), (true, segment)]);
        // The copy of the short segment starts another chain.
        assert_eq!(seqs.collect::<Vec<_>>(), expected.take(19).collect::<Vec<_>>());
        a.flush().unwrap();
        let mut streams = [Vec::new(), Vec::new()];
        let mut packets = 0;
        while streams.iter().map(Vec::len).sum::<usize>() < 19_000 {
            for (part, _) in receive(&mut b, 1).await {
                let stream = &mut streams[usize::from(part.reserved & 0x08 != 0)];
                assert_eq!(part.seq as usize, 1 + stream.len());
                stream.extend(part.payload);
                packets += 1;
            }
        }
        assert!(streams.iter().all(|stream| *stream == sent.payload));
        if b.state.gro_segments() > 1 && a.state.max_gso_segments() > 1 {
            assert!(packets <= 4, "{packets} packets");
        }
    }

    /// Of 1 1' 2' 3 3' the second original is lost: its copy is delivered before the later segments.
    #[tokio::test]
    async fn gap_among_the_originals_ends_the_run_of_copies() {
        let (mut a, mut b) = pair("127.0.0.1:0");
        let dst = seen(&b, &a);
        for (seq, reserved) in [(0, 0), (0, 8), (1, 8), (2, 0), (2, 8)] {
            let packet = Tcp { seq: seq * 1000, reserved, payload: pattern(1000), ..to(dst) };
            a.send(&packet.packet(), TxMeta::default()).unwrap();
        }
        assert_eq!(a.batches.len(), 1);
        a.flush().unwrap();
        let chained = b.state.gro_segments() > 1 && a.state.max_gso_segments() > 1;
        let received = receive(&mut b, if chained { 4 } else { 5 }).await;
        let parts: Vec<_> =
            received.iter().map(|(part, _)| (part.seq / 1000, part.reserved, part.payload.len())).collect();
        if chained {
            assert_eq!(parts, [(0, 0, 1000), (0, 8, 2000), (2, 0, 1000), (2, 8, 1000)]);
        }
    }

    #[tokio::test]
    async fn different_packets_to_one_peer_share_a_call_and_keep_their_order() {
        let (mut a, mut b) = pair("127.0.0.1:0");
        let dst = seen(&b, &a);
        for i in 0..40u32 {
            // Contents and headers differ: TCP segmentation offload could not join these.
            let packet = Tcp { seq: i * 1000, window: i as u16, payload: pattern(100), ..to(dst) };
            a.send(&packet.packet(), TxMeta::default()).unwrap();
        }
        assert_eq!(a.batches.len(), 1);
        a.flush().unwrap();
        let received = receive(&mut b, 40).await;
        let seqs: Vec<u32> = received.iter().map(|(packet, _)| packet.seq).collect();
        assert_eq!(seqs, (0..40).map(|i| i * 1000).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn peers_are_distinguished_by_address_and_port() {
        let mut server = device("[::]:0");
        let mut clients = ["127.0.0.1:0", "127.0.0.1:0", "[::1]:0", "[::1]:0"].map(device);
        for client in &mut clients {
            let packet = to(seen(&server, client)).packet();
            client.send(&packet, TxMeta::default()).unwrap();
            client.flush().unwrap();
        }
        let mut sources: Vec<IpAddr> =
            receive(&mut server, 4).await.into_iter().map(|(packet, _)| packet.src).collect();
        for &source in &sources {
            server.send(&to(source).packet(), TxMeta::default()).unwrap();
        }
        server.flush().unwrap();
        for client in &mut clients {
            assert_eq!(receive(client, 1).await.len(), 1);
        }
        sources.sort();
        sources.dedup();
        assert_eq!(sources.len(), 4);
    }

    #[tokio::test]
    async fn foreign_datagrams_are_counted_and_their_senders_not_stored() {
        let mut server = device("127.0.0.1:0");
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        for datagram in [&b""[..], b"\x00\x01stun-like binding request", b"\xF0"] {
            stranger.send_to(datagram, server.local_addr()).unwrap();
        }
        let (mut client, packet) = (device("127.0.0.1:0"), to(inner_address(server.local_addr())).packet());
        client.send(&packet, TxMeta::default()).unwrap();
        client.flush().unwrap();
        receive(&mut server, 1).await;
        assert_eq!(server.counters().receive_dropped, 2);
    }

    #[tokio::test]
    async fn a_peer_that_cannot_be_reached_is_a_loss() {
        let mut v4 = device("127.0.0.1:0");
        let unknown: IpAddr = "fd62:7269:736b:6:1:2:3:4".parse().unwrap();
        let v6_peer = inner_address("[::1]:9".parse().unwrap());
        let unroutable = inner_address("255.255.255.255:9".parse().unwrap());
        for dst in [unknown, v6_peer, unroutable] {
            v4.send(&to(dst).packet(), TxMeta::default()).unwrap();
            v4.flush().unwrap();
        }
        v4.send(&Tcp::v4().packet(), TxMeta::default()).unwrap();
        assert_eq!(v4.counters().send_refused, 4);
    }

    #[test]
    fn a_full_segment_fills_the_path() {
        for (bind, ip_header) in [("127.0.0.1:0", 20), ("[::1]:0", 40)] {
            let device = device(bind);
            let mss = device.mtu() - INNER_HEADERS;
            let packet = Tcp { payload: pattern(mss), ..to(LOCAL_INNER.into()) }.packet();
            assert_eq!(packet.len(), device.mtu());
            let datagram = Outgoing::parse(&packet).unwrap().piece_len(None, 0);
            assert_eq!(datagram + UDP_HEADER + ip_header, 1500);
        }
    }

    #[test]
    fn a_taken_port_is_named_in_the_error() {
        let first = device("127.0.0.1:0");
        let error = UdpDevice::bind(first.local_addr(), UdpOptions::default()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("udp:{}", first.local_addr())), "{error}");
        assert!(error.contains("another program has this port"), "{error}");
    }
}
