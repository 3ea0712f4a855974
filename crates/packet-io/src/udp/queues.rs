//! Several sockets on one port (`SO_REUSEPORT`), one per core.
//!
//! By default the kernel delivers all datagrams of a peer to one socket. With a program, which needs no
//! privilege, it chooses the socket by the TCP connection in the datagram.
//! [`steering`](brisk_device::steering) handles datagrams on another socket.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use brisk_device::steering::Steering;

use super::{UdpDevice, UdpOptions};
use crate::bpf;
use crate::privileges::OpenError;
use crate::queue_program;

impl UdpDevice {
    /// Binds `count` sockets to one address.
    ///
    /// The sockets share their address. The first one is still bound as by [`bind`](UdpDevice::bind), so an
    /// address in use by another program is refused.
    ///
    /// # Errors
    /// Those of [`bind`](UdpDevice::bind).
    pub fn bind_queues(
        bind: SocketAddr,
        options: UdpOptions,
        count: usize,
    ) -> Result<Vec<UdpDevice>, OpenError> {
        let first = UdpDevice::bind(bind, options)?;
        let mut queues = vec![first];
        if count > 1
            && let Some(first) = queues.first()
        {
            let local = first.local_addr();
            let failed = |error| OpenError::udp(bind, "cannot be shared", error);
            socket2::SockRef::from(&first.socket).set_reuse_port(true).map_err(failed)?;
            let options = UdpOptions { reuse_port: true, ..options };
            for _ in 1..count {
                queues.push(UdpDevice::bind(local, options)?);
            }
        }
        Ok(queues)
    }

    /// Makes the kernel choose among the sockets of this port as `steering` does. The sockets are numbered in
    /// the order in which they were bound.
    pub(super) fn choose_socket_by(&self, steering: &Steering) -> io::Result<()> {
        // The program gets the payload and returns the number of a socket; if the number is invalid, the
        // kernel chooses a socket.
        let (program, option) = (queue_program::for_datagrams(steering), libc::SO_ATTACH_REUSEPORT_CBPF);
        bpf::set_program(self.socket.as_fd(), libc::SOL_SOCKET, option, &program)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;
    use crate::testing::Tcp;
    use crate::udp::inner_address;
    use brisk_device::{Device, TxMeta};

    /// Returns how many of 90 connections of a peer at `peer` reach the right one of three sockets bound to
    /// `bind`, and how many of the sockets received a datagram.
    async fn steered(bind: &str, peer: &str) -> (usize, usize) {
        let mut queues = UdpDevice::bind_queues(bind.parse().unwrap(), UdpOptions::default(), 3).unwrap();
        let steering = Steering::new(3, 0x0f1e_2d3c_4b5a_6978).by_ports();
        queues[0].spread(&steering).unwrap();
        let peer: SocketAddr = peer.parse().unwrap();
        let mut client = UdpDevice::bind(peer, UdpOptions::default()).unwrap();
        let server = inner_address(SocketAddr::new(peer.ip(), queues[0].local_addr().port()));
        for port in 1..=90 {
            let segment = Tcp { src: UdpDevice::local_inner(), dst: server, ports: (port, 80), ..Tcp::v6() };
            client.send(&segment.packet(), TxMeta::default()).unwrap();
            // Each segment is sent alone, because datagrams that the kernel merges stay together.
            client.flush().unwrap();
        }
        let (mut all, mut right, mut used) = (0, 0, [false; 3]);
        let arrival = async {
            while all < 90 {
                for (index, queue) in queues.iter_mut().enumerate() {
                    let readable =
                        tokio::time::timeout(Duration::from_millis(5), poll_fn(|cx| queue.poll_readable(cx)));
                    if readable.await.is_err() {
                        continue;
                    }
                    let sink = &mut |packet: &[u8], _| {
                        all += 1;
                        right += usize::from(steering.queue_of_packet(packet) == Some(index));
                        used[index] = true;
                    };
                    queue.receive(64, sink).unwrap();
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(10), arrival).await.expect("the segments arrive");
        (right, used.iter().filter(|used| **used).count())
    }

    #[tokio::test]
    async fn kernel_steers_each_connection_to_its_socket() {
        assert_eq!(steered("127.0.0.1:0", "127.0.0.1:0").await, (90, 3));
        assert_eq!(steered("[::]:0", "127.0.0.1:0").await, (90, 3));
        assert_eq!(steered("[::]:0", "[::1]:0").await, (90, 3));
    }
}
