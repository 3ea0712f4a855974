//! ICMP errors for the stack. An XDP program passes a frame either to the kernel or to the stack. The kernel
//! gets ICMP errors, and a packet socket receives copies of them. Unlike an AF_XDP socket, the packet socket
//! also reports that the interface was removed.

use std::io;
use std::os::fd::AsFd;
use std::task::{Context, Poll};

use brisk_device::RxMeta;
use socket2::{Domain, Socket, Type};

use crate::bpf;
use crate::interface::Interface;
use crate::packet::filter::{self, Wanted};
use crate::packet::{self, ETH_P_ALL, ETHERNET_HEADER, READ_BUFFER};
use crate::reactor::Reactor;

/// The packet socket.
#[derive(Debug)]
pub(super) struct Errors {
    reactor: Reactor,
    socket: Socket,
    buffer: Vec<u8>,
}

impl Errors {
    /// Opens the packet socket on `interface`.
    ///
    /// # Errors
    /// CAP_NET_RAW is missing.
    pub(super) fn open(interface: &Interface) -> io::Result<Errors> {
        // The socket receives nothing before it is bound. The filter has no port, so only ICMP errors pass
        // it.
        let socket = Socket::new(Domain::PACKET, Type::RAW.nonblocking(), None)?;
        packet::describe_arrivals(&socket)?;
        let program = filter::program(Wanted { link: ETHERNET_HEADER as u32, ..Wanted::default() });
        bpf::set_program(socket.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
        packet::bind(&socket, interface.index(), ETH_P_ALL)?;
        Ok(Errors { reactor: Reactor::default(), socket, buffer: vec![0; READ_BUFFER] })
    }

    pub(super) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.reactor.poll_readable(self.socket.as_fd(), cx)
    }

    /// Passes at most `budget` packets to `each`, and returns their number.
    ///
    /// # Errors
    /// ENETDOWN once when the interface went down or was removed.
    pub(super) fn receive(
        &mut self,
        budget: usize,
        each: &mut dyn FnMut(&[u8], RxMeta),
    ) -> io::Result<usize> {
        for count in 0..budget {
            match self.reactor.read(|| packet::read(self.socket.as_fd(), &mut self.buffer)) {
                Ok((len, meta)) => {
                    let packet = self.buffer.get(ETHERNET_HEADER..len).unwrap_or_default();
                    each(packet::without_padding(packet), meta);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(count),
                Err(error) => return Err(error),
            }
        }
        Ok(budget)
    }
}
