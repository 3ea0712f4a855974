//! The packet socket: whole frames of one interface, each after a `virtio_net_hdr`, without the frames that
//! this host sends (packet(7)).

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use socket2::{Domain, Socket, Type};

use super::frame::Mac;
use crate::interface::Interface;
use crate::packet::{ETH_P_ALL, bind, describe_arrivals};
use crate::sockopt;

/// Requested size of the receive buffer, bytes; the kernel may grant less.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Option of SOL_PACKET, and the membership type for one multicast address (linux/if_packet.h).
const PACKET_ADD_MEMBERSHIP: i32 = 1;
const PACKET_MR_MULTICAST: u16 = 0;

/// Opens a non-blocking socket on `interface` that also receives `groups`.
pub(super) fn open(interface: &Interface, groups: impl Iterator<Item = Mac>) -> io::Result<OwnedFd> {
    // Without a protocol the socket receives nothing before it is bound to the interface.
    let socket = Socket::new(Domain::PACKET, Type::RAW.nonblocking(), None)?;
    describe_arrivals(&socket)?;
    sockopt::wish_for_buffers(socket.as_fd(), RECEIVE_BUFFER);
    bind(&socket, interface.index(), ETH_P_ALL)?;
    for group in groups {
        let request = membership(interface, group);
        sockopt::set(socket.as_fd(), libc::SOL_PACKET, PACKET_ADD_MEMBERSHIP, &request)?;
    }
    Ok(socket.into())
}

/// Returns a `struct packet_mreq`.
fn membership(interface: &Interface, group: Mac) -> Vec<u8> {
    let mut request = (interface.index() as i32).to_ne_bytes().to_vec();
    request.extend(PACKET_MR_MULTICAST.to_ne_bytes());
    request.extend((group.len() as u16).to_ne_bytes());
    request.extend(group);
    request.resize(16, 0);
    request
}

/// True if the kernel has `address` in this network namespace. Link-local IPv6 addresses are not found,
/// because they can be queried only with their link.
pub(super) fn kernel_has(address: IpAddr) -> bool {
    UdpSocket::bind(SocketAddr::new(address, 0)).is_ok()
}
