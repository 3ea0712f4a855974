//! Checks an interface for an XDP device without changing it.

use std::io;
use std::os::fd::AsFd;

use socket2::{Domain, Socket, Type};

use super::MAX_MTU;
use crate::bpf::extended::{self, Kind};
use crate::interface::Interface;
use crate::packet::filter::{self, Wanted};
use crate::privileges::OpenError;

/// Result of [`survey`].
#[derive(Debug)]
pub struct Survey {
    /// Reason why the kernel refuses a socket or program; `None` if it does not.
    pub refused: Option<OpenError>,
    /// Id of the XDP program on the interface; such a program prevents `xdp:`. Programs of brisk end with
    /// their process, so this one belongs to a running process, or another tool has left it (`ip link set dev
    /// ... xdp`).
    pub program: Option<u32>,
    /// MTU of the interface, bytes. It must be at most [`MAX_MTU`].
    pub mtu: usize,
    /// Kind of a virtual device, as in `ip -d link`. On a veth, unfinished checksums are trusted.
    pub kind: Option<String>,
}

/// Checks whether [`open`](super::open) can work on an interface.
///
/// # Errors
/// There is no such interface, or it is not an Ethernet.
pub fn survey(interface: &str) -> Result<Survey, OpenError> {
    let found = Interface::named(interface)?;
    found.hardware_address()?;
    Ok(Survey {
        refused: try_out().err().map(|error| OpenError::xdp(interface, "cannot be used", error)),
        program: found.xdp_program(),
        mtu: found.mtu()?,
        kind: found.kind(),
    })
}

impl Survey {
    /// True if the interface's packets fit into frames.
    pub fn fits(&self) -> bool {
        self.mtu <= MAX_MTU
    }
}

/// Opens a socket and a program that are not attached to anything.
fn try_out() -> io::Result<()> {
    Socket::new(Domain::from(libc::AF_XDP), Type::RAW, None)?;
    let sockets = extended::socket_map(1)?;
    let filter = filter::program(Wanted { served: Some(1), ..Wanted::default() });
    let program =
        extended::to_sockets(&filter, sockets.as_fd(), filter::COPY_TO_BOTH, None).unwrap_or_default();
    extended::load(Kind::Xdp, &program).map(drop)
}
