//! Converts ICMP errors about datagrams to errors about the segments in them.
//!
//! The kernel queues an error together with its datagram (`IP_RECVERR`). If nothing listens on the port, the
//! host reports that in one round trip, and the connection attempt ends at once, as after a reset. The stack
//! checks the sequence number in the datagram (RFC 5927).

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use brisk_device::{ChecksumState, RxMeta, SharedSink};
use brisk_wire::{IcmpKind, emit_icmp};

use super::layout::HEADER_LEN;
use super::peers::{LOCAL_INNER, canonical};
use super::{UdpDevice, is_unreachable};
use crate::{message, sockopt};

/// Maximum number of errors taken from the queue in one call.
const BATCH: usize = 16;
/// Buffer for control messages, bytes: the error with its sender's address, and the metadata of each
/// datagram.
const CONTROL: usize = 256;
/// `SO_EE_ORIGIN_ICMP` and `SO_EE_ORIGIN_ICMP6` of linux/errqueue.h.
const ICMP: u8 = 2;
const ICMPV6: u8 = 3;

/// Makes the kernel queue errors, which it does not do by default.
pub(super) fn enable(fd: BorrowedFd<'_>, v6: bool) {
    let on = 1i32.to_ne_bytes();
    let _ = sockopt::set(fd, libc::IPPROTO_IP, libc::IP_RECVERR, &on);
    if v6 {
        let _ = sockopt::set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, &on);
    }
}

/// True if a call failed with an error about an earlier datagram, which is now in the queue.
pub(super) fn is_pending(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ECONNREFUSED)
}

impl UdpDevice {
    /// Passes the queued errors to the stack. Returns their number.
    pub(super) fn take_errors(&mut self, sink: &mut SharedSink<'_>) -> usize {
        self.has_errors = false;
        let (mut count, mut control) = (0, [0; CONTROL]);
        for _ in 0..BATCH {
            let mut head = [0; HEADER_LEN];
            let taken = message::receive_error(self.socket.as_fd(), &mut head, &mut control);
            let (len, to, control_len) = match taken {
                Ok(taken) => taken,
                // The error is also pending on the socket.
                Err(error) if is_unreachable(&error) => continue,
                Err(_) => return count,
            };
            let is_whole = len == HEADER_LEN && head[0] >> 4 >= 5;
            let kind = control.get(..control_len).and_then(port_unreachable);
            let peer = to.and_then(|to| self.peers.name(canonical(to)));
            let (Some(kind), Some(peer), true) = (kind, peer, is_whole) else { continue };
            let mut error = Vec::new();
            emit_icmp(IpAddr::V6(peer), &quoted(&head, peer.octets()), kind, &mut error);
            if !error.is_empty() {
                sink(&error, None, RxMeta { checksum: ChecksumState::Verify, segment_size: None });
                count += 1;
            }
        }
        // The queue may contain more errors.
        self.has_errors = true;
        count
    }
}

/// Returns the packet that the stack sent to `peer` in a datagram with this header, without its options and
/// data.
fn quoted(head: &[u8; HEADER_LEN], peer: [u8; 16]) -> Vec<u8> {
    let [_, flags, w0, w1, q0, q1, q2, q3, a0, a1, a2, a3, s0, s1, d0, d1] = *head;
    let mut packet = vec![0x60, 0, 0, 0, 0, 20, 6, 64];
    packet.extend(LOCAL_INNER.octets());
    packet.extend(peer);
    packet.extend([s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, 5 << 4, flags, w0, w1, 0, 0, 0, 0]);
    packet
}

/// Returns the kind of the ICMP error in the control messages (`sock_extended_err` of linux/errqueue.h), if
/// it reports an unreachable port.
fn port_unreachable(mut control: &[u8]) -> Option<IcmpKind> {
    const WORD: usize = size_of::<usize>();
    while let Some((len, rest)) = control.split_first_chunk::<WORD>() {
        let len = usize::from_ne_bytes(*len);
        let value = rest.get(..len.checked_sub(WORD)?)?;
        let (level, value) = value.split_first_chunk::<4>()?;
        let (kind, value) = value.split_first_chunk::<4>()?;
        // Error number, origin, type and code.
        if let [_, _, _, _, origin, icmp_type, code, ..] = *value {
            let is_error = matches!(
                (i32::from_ne_bytes(*level), i32::from_ne_bytes(*kind)),
                (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
            );
            // A socket of both families gets IPv4 errors as IPv6 messages.
            let is_it = is_error && matches!((origin, icmp_type, code), (ICMP, 3, 3) | (ICMPV6, 1, 4));
            if is_it {
                return Some(IcmpKind::PortUnreachable);
            }
        }
        control = control.get(len.next_multiple_of(WORD)..).unwrap_or_default();
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::testing::Tcp;
    use crate::udp::inner_address;
    use crate::udp::tests::{device, to};
    use brisk_device::{Device, TxMeta};

    /// Returns the errors that a device bound to `bind` receives for two segments to an unused port of
    /// `host`.
    async fn errors(bind: &str, host: &str) -> Vec<brisk_wire::IcmpError> {
        let mut near = device(bind);
        let gone = std::net::UdpSocket::bind(SocketAddr::new(host.parse().unwrap(), 0)).unwrap();
        let peer = inner_address(gone.local_addr().unwrap());
        drop(gone);
        let mut errors = Vec::new();
        for seq in [100, 200] {
            let packet = Tcp { seq, ports: (5000, 80), payload: vec![7; 300], ..to(peer) };
            near.send(&packet.packet(), TxMeta::default()).unwrap();
            near.flush().unwrap();
            let readable = std::future::poll_fn(|cx| near.poll_readable(cx));
            tokio::time::timeout(std::time::Duration::from_secs(10), readable)
                .await
                .expect("an error")
                .unwrap();
            near.receive(64, &mut |packet, _| {
                let parsed = brisk_wire::parse(packet, brisk_wire::ChecksumCheck::Verify);
                let Ok(brisk_wire::Packet::Icmp(error)) = parsed else { panic!("{parsed:?}") };
                assert_eq!(error.dst, SocketAddr::new(peer, 80));
                errors.push(error);
            })
            .unwrap();
        }
        assert_eq!(near.counters().send_refused, 0);
        errors
    }

    #[tokio::test]
    async fn unused_port_is_reported_with_the_sequence_number() {
        for (bind, host) in
            [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1"), ("[::]:0", "::1")]
        {
            let errors = errors(bind, host).await;
            let seqs: Vec<u32> = errors.iter().map(|error| error.seq.0).collect();
            assert_eq!(seqs, [100, 200], "{bind} {host}");
            assert!(errors.iter().all(|error| error.kind == IcmpKind::PortUnreachable));
        }
    }

    #[tokio::test]
    async fn pending_error_loses_no_datagram_to_other_peers() {
        let (mut near, mut far) = (device("127.0.0.1:0"), device("127.0.0.1:0"));
        let gone = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let (nobody, peer) = (inner_address(gone.local_addr().unwrap()), inner_address(far.local_addr()));
        drop(gone);
        near.send(&to(nobody).packet(), TxMeta::default()).unwrap();
        near.flush().unwrap();
        near.send(&to(peer).packet(), TxMeta::default()).unwrap();
        near.flush().unwrap();
        assert_eq!(crate::udp::tests::receive(&mut far, 1).await.len(), 1);
    }
}
