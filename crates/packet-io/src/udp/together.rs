//! Passes several chains of datagrams to the kernel in one call.
//!
//! If both ends run on one core, the first chain wakes the receiver, which preempts the sender when its call
//! ends. With a call for each chain, this happens after each chain (docs/notes/performance-bulk.md, "In
//! UDP"). `sendmmsg(2)` does not help, because the kernel may switch to the receiver between two messages.
//! Without `io_uring`, chains are sent one by one. Chains that the kernel refuses here are also sent alone;
//! that reports the reason.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use socket2::SockAddr;

use super::batch::UdpBatch;
use super::{UdpDevice, for_socket};
use crate::message::Message;
use crate::sockopt;
use crate::uring::{MAX, Uring};

/// Sends several chains in one call.
#[derive(Debug)]
pub(super) struct JointSender {
    uring: Uring,
    /// True after the first success. Early kernels do not accept control messages in this way, and return an
    /// error each time.
    is_proven: bool,
}

impl JointSender {
    /// Returns `None` if `io_uring` is missing or not permitted.
    pub(super) fn open() -> Option<JointSender> {
        Uring::open().ok().map(|uring| JointSender { uring, is_proven: false })
    }

    /// Sends chains, and advances those that were sent. Returns their number, and `self` for the next call;
    /// `None` if `io_uring` cannot send here.
    fn send(
        self,
        fd: BorrowedFd<'_>,
        v6: bool,
        chains: &mut [&mut UdpBatch],
    ) -> (usize, Option<JointSender>) {
        let mut went = [false; MAX];
        let (mut is_proven, mut is_invalid) = (self.is_proven, false);
        let messages: Vec<_> = chains.iter().map(|chain| message(chain, v6)).collect();
        let uring = self.uring.send(fd, &messages, |n, sent| {
            is_proven |= sent.is_ok();
            if let Some(went) = went.get_mut(n) {
                *went = sent.is_ok();
            }
            is_invalid |= sent.is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL));
        });
        let sent = chains.iter_mut().zip(went).filter(|(_, went)| *went);
        let count = sent.map(|(chain, _)| chain.advance(chain.next(true).len())).count();
        let uring = uring.filter(|_| is_proven || !is_invalid);
        (count, uring.map(|uring| JointSender { uring, is_proven }))
    }
}

/// Returns the kernel's message for a chain, with the same control messages as in quinn-udp.
fn message(chain: &UdpBatch, v6: bool) -> Message<'_> {
    let UdpBatch { route, segment_size, .. } = *chain;
    let data = chain.next(true);
    let mut message = Message::new(SockAddr::from(for_socket(route.outer, v6)), data);
    let ecn = i32::from(chain.ecn).to_ne_bytes();
    match route.outer {
        SocketAddr::V4(_) => message.add_control(libc::IPPROTO_IP, libc::IP_TOS, &ecn),
        SocketAddr::V6(_) => message.add_control(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &ecn),
    }
    if data.len() > segment_size {
        message.add_control(libc::SOL_UDP, libc::UDP_SEGMENT, &(segment_size as u16).to_ne_bytes());
    }
    match route.from {
        // `in_pktinfo`: interface, local address, and a field that only received packets use.
        Some(IpAddr::V4(from)) => {
            let info = [[0; 4], from.octets(), [0; 4]].concat();
            message.add_control(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
        }
        // `in6_pktinfo`: local address, interface.
        Some(IpAddr::V6(from)) => {
            let info = [&from.octets()[..], &[0; 4]].concat();
            message.add_control(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
        }
        None => {}
    }
    message
}

/// Returns an upper estimate of the kernel's memory for a chain of `len` bytes.
fn memory(len: usize) -> usize {
    2 * len + 4096
}

impl UdpDevice {
    /// Sends waiting chains in one call, all but the youngest `keep`. Only sends as many as certainly fit
    /// into the socket's memory. The kernel tries every chain, so a chain could overtake an earlier one that
    /// did not fit. Returns true if it has sent any.
    pub(super) fn transmit_together(&mut self, keep: usize) -> bool {
        let count = self.batches.len().saturating_sub(keep).min(MAX);
        if count < 2 || self.together.is_none() || self.state.max_gso_segments() == 1 {
            return false;
        }
        let Some((room, mut used)) = sockopt::send_memory(self.socket.as_fd()) else { return false };
        let waiting = self.batches.iter_mut().take(count).filter(|chain| !chain.next(true).is_empty());
        let mut chains: Vec<_> = waiting
            .take_while(|chain| {
                let fits = used < room;
                used = used.saturating_add(memory(chain.next(true).len()));
                fits
            })
            .collect();
        if chains.len() < 2 {
            return false;
        }
        let Some(together) = self.together.take() else { return false };
        let (sent, together) = together.send(self.socket.as_fd(), self.local.is_ipv6(), &mut chains);
        self.together = together;
        while self.batches.oldest().is_some_and(|chain| chain.next(true).is_empty()) {
            self.batches.pop();
        }
        if sent > 0 {
            self.reactor.end_waiting();
        }
        sent > 0
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::netns::Namespace;
    use crate::privileges::{has_net_admin, has_sys_admin};
    use crate::testing::{Tcp, pattern};
    use crate::udp::tests::{device, receive, to};
    use crate::udp::{Route, UdpOptions, inner_address};
    use brisk_device::{Counters, Device, TxMeta};

    /// Queues a chain of three datagrams for each ECN codepoint, with 2,500 bytes of `pattern` each.
    fn three_chains(device: &mut UdpDevice, dst: IpAddr) {
        let tx = TxMeta { segment_size: Some(1000), partial_checksum: true, twice: false };
        for ecn in 1..4 {
            let packet = Tcp { seq: u32::from(ecn) * 10_000, ecn, payload: pattern(2500), ..to(dst) };
            device.send(&packet.with_partial_checksum(), tx).unwrap();
        }
    }

    /// Checks that each chain arrives whole, in order, with its ECN, from `src`.
    async fn three_arrive(device: &mut UdpDevice, src: IpAddr) {
        let (mut at, mut bytes) = (Vec::new(), Vec::new());
        while bytes.len() < 7500 {
            for (packet, _) in receive(device, 1).await {
                assert_eq!(packet.src, src);
                at.push((packet.ecn, packet.seq - u32::from(packet.ecn) * 10_000));
                bytes.extend(packet.payload);
            }
        }
        assert!(at.is_sorted(), "{at:?}");
        assert!(bytes == pattern(2500).repeat(3));
    }

    /// A server sends three chains to each of its clients, all in one call. For each of `addresses` there are
    /// two clients, which get their chains from that address.
    async fn are_sent_together(bind: &str, addresses: &[&str]) {
        for is_possible in [true, false] {
            let mut server = device(bind);
            if !is_possible {
                server.together = None;
            }
            let is_possible = server.together.is_some();
            let mut clients = Vec::new();
            for address in addresses.repeat(2) {
                let mut client = device(if address.contains(':') { "[::1]:0" } else { "127.0.0.1:0" });
                let ours =
                    inner_address(SocketAddr::new(address.parse().unwrap(), server.local_addr().port()));
                client.send(&to(ours).packet(), TxMeta::default()).unwrap();
                client.flush().unwrap();
                let peer = receive(&mut server, 1).await.remove(0).0.src;
                clients.push((client, ours, peer));
            }
            // Chains of several peers alternate.
            for (_, _, peer) in &clients {
                three_chains(&mut server, *peer);
            }
            assert_eq!(server.batches.len(), 3 * clients.len());
            assert_eq!(server.transmit_together(0), is_possible);
            assert_eq!(server.batches.len(), if is_possible { 0 } else { 3 * clients.len() });
            server.flush().unwrap();
            for (client, ours, _) in &mut clients {
                three_arrive(client, *ours).await;
            }
            let Counters { sent, send_refused, .. } = server.counters();
            assert_eq!((sent, send_refused), (3 * clients.len() as u64, 0));
        }
    }

    #[tokio::test]
    async fn chains_of_several_peers_leave_in_one_call() {
        are_sent_together("127.0.0.1:0", &["127.0.0.1"]).await;
        are_sent_together("[::1]:0", &["::1"]).await;
        are_sent_together("0.0.0.0:0", &["127.0.0.2"]).await;
        are_sent_together("[::]:0", &["127.0.0.2"]).await;
        are_sent_together("[::]:0", &["::1"]).await;
    }

    #[tokio::test]
    async fn datagram_refused_by_a_path_fails_once_and_others_arrive() {
        let (mut a, mut b) = (device("127.0.0.1:0"), device("127.0.0.1:0"));
        let nobody = ["255.255.255.255:9", "255.255.255.255:10"].map(|nobody| nobody.parse().unwrap());
        a.send(&to(inner_address(nobody[0])).packet(), TxMeta::default()).unwrap();
        three_chains(&mut a, inner_address(b.local_addr()));
        a.send(&to(inner_address(nobody[1])).packet(), TxMeta::default()).unwrap();
        a.flush().unwrap();
        assert_eq!((a.batches.len(), a.counters().send_refused), (0, 2));
        three_arrive(&mut b, inner_address(a.local_addr())).await;
    }

    #[test]
    fn kernel_without_control_messages_in_io_uring_is_tried_once() {
        let Some(together) = JointSender::open() else { return println!("skipped: no io_uring here") };
        let mut device = device("127.0.0.1:0");
        // Port 0 makes the message invalid.
        let route = Route { outer: "127.0.0.1:0".parse().unwrap(), from: None };
        for ecn in 0..2 {
            device.batches.add(route, ecn, (1, 1), 1, |_, out| out.push(0));
        }
        let mut send = |together: JointSender| {
            let mut chains: Vec<_> = device.batches.iter_mut().collect();
            together.send(device.socket.as_fd(), false, &mut chains)
        };
        let proven = send(JointSender { is_proven: true, ..together });
        assert!(matches!(proven, (0, Some(_))), "{proven:?}");
        assert!(matches!(send(JointSender::open().unwrap()), (0, None)));
    }

    fn ip(words: &str) {
        let done = Command::new("ip").args(words.split_whitespace()).output().unwrap();
        assert!(done.status.success(), "ip {words}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Sends `chains` chains from the local address `old` after `happens` has changed that address. A peer
    /// has written to that address before. All chains leave, and the kernel chooses another local address.
    fn leaves_without_source(bind: &str, peer: &str, old: IpAddr, chains: u8, happens: impl FnOnce()) {
        let mut device = device(bind);
        let outer = peer.parse().unwrap();
        let inner = device.peers.learn(Route { outer, from: Some(old) }).unwrap();
        happens();
        for ecn in 0..chains {
            let packet = Tcp { ecn, payload: pattern(30_000), ..to(inner.into()) };
            let tx = TxMeta { segment_size: Some(1000), partial_checksum: true, twice: false };
            device.send(&packet.with_partial_checksum(), tx).unwrap();
        }
        device.flush().unwrap();
        assert_eq!((device.batches.len(), device.counters().send_refused), (0, 0), "{bind} {peer}");
        assert_eq!(device.peers.route(inner), Some(Route { outer, from: None }));
    }

    /// Bind address, addresses of this host, and address of the peer.
    const CABLES: [(&str, [&str; 2], &str); 3] = [
        ("0.0.0.0:0", ["10.77.0.1", "10.77.0.4"], "10.77.0.2:9"),
        ("[::]:0", ["10.77.0.1", "10.77.0.4"], "10.77.0.2:9"),
        ("[::]:0", ["fd77::1", "fd77::4"], "[fd77::2]:9"),
    ];

    /// Runs `test` in a namespace with a veth pair whose near end is `eth0`.
    fn with_a_cable(test: impl FnOnce() + Send) {
        if !has_sys_admin() || !has_net_admin() {
            return println!("skipped: a veth pair in a namespace needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
        }
        let run = || {
            ip("link add eth0 type veth peer name eth1");
            ip("link set eth1 up");
            ip("link set eth0 up");
            test();
        };
        Namespace::anonymous().unwrap().run(run).unwrap();
    }

    /// The address of an interface changes while its peers still use the old one.
    #[test]
    fn packets_leave_from_the_new_address_of_a_host_that_lost_the_old_one() {
        with_a_cable(|| {
            for (bind, [old, new], peer) in CABLES {
                for chains in [1, 4] {
                    ip(&format!("addr add {old}/24 dev eth0 nodad"));
                    leaves_without_source(bind, peer, old.parse().unwrap(), chains, || {
                        ip(&format!("addr del {old}/24 dev eth0"));
                        ip(&format!("addr add {new}/24 dev eth0 nodad"));
                    });
                    ip(&format!("addr del {new}/24 dev eth0"));
                }
            }
        });
    }

    /// The host keeps the address, but by a routing rule no peer is reachable from it, as on a host with two
    /// providers of which one has failed.
    #[test]
    fn packets_leave_if_no_host_is_reachable_from_the_old_address() {
        with_a_cable(|| {
            for (bind, [old, _], peer) in CABLES {
                let family = if old.contains(':') { "-6" } else { "-4" };
                ip(&format!("addr add {old}/24 dev eth0 nodad"));
                leaves_without_source(bind, peer, old.parse().unwrap(), 4, || {
                    ip(&format!("{family} rule add from {old} lookup 77"));
                    ip(&format!("{family} route add unreachable default table 77"));
                });
                ip(&format!("{family} rule del from {old} lookup 77"));
                ip(&format!("{family} route flush table 77"));
                ip(&format!("addr del {old}/24 dev eth0"));
            }
        });
    }

    /// A neighbour does not answer, so the kernel keeps packets to it for a second.
    #[test]
    fn datagrams_without_space_wait_in_order() {
        if !has_sys_admin() || !has_net_admin() {
            return println!("skipped: a veth pair in a namespace needs CAP_SYS_ADMIN and CAP_NET_ADMIN");
        }
        let run = || {
            ip("link add eth0 type veth peer name eth1");
            ip("addr add 10.77.0.1/24 dev eth0");
            ip("link set eth1 up");
            ip("link set eth0 up");
            let options = UdpOptions { buffer_bytes: 75_000, ..UdpOptions::default() };
            let mut device = UdpDevice::bind("10.77.0.1:0".parse().unwrap(), options).unwrap();
            let is_possible = device.together.is_some();
            let tx = TxMeta { segment_size: Some(1000), partial_checksum: true, twice: false };
            for ecn in 0..4 {
                let packet = Tcp {
                    ecn,
                    payload: pattern(60_000),
                    ..to(inner_address("10.77.0.2:9".parse().unwrap()))
                };
                device.send(&packet.with_partial_checksum(), tx).unwrap();
            }
            // 150 kB are enough for three chains, and surely for two.
            assert_eq!(device.transmit_together(0), is_possible);
            assert_eq!(device.batches.len(), if is_possible { 2 } else { 4 });
            assert!(!device.transmit_together(0));
            assert_eq!(device.flush().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
            assert_eq!((device.batches.len(), device.batches.oldest().unwrap().ecn), (1, 3));
            assert_eq!(device.counters().send_refused, 0);
        };
        Namespace::anonymous().unwrap().run(run).unwrap();
    }
}
