//! Survey of an interface for an XDP device, without touching it.

use std::io;
use std::os::fd::AsFd;

use socket2::{Domain, Socket, Type};

use super::MAX_MTU;
use crate::bpf::extended::{self, Kind};
use crate::interface::Interface;
use crate::packet::filter::{self, Wanted};
use crate::privileges::OpenError;

/// See [`survey`].
#[derive(Debug)]
pub struct Survey {
    /// Why the kernel takes no socket and no program of ours, if so.
    pub refused: Option<OpenError>,
    /// The number of the program that is at the interface already: `xdp:` cannot be used beside it. Ours goes
    /// with its process, so this is that of a process that runs, or of a tool that leaves its own behind (`ip
    /// link set dev ... xdp`).
    pub program: Option<u32>,
    /// The interface's MTU, bytes. It must not be above [`MAX_MTU`].
    pub mtu: usize,
    /// The kind of a virtual device, as `ip -d link` names it. On a veth unfinished checksums are believed.
    pub kind: Option<String>,
}

/// Looks whether [`open`](super::open) can work on an interface.
///
/// # Errors
/// If there is no such interface, or it is no Ethernet.
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
    /// Whether the interface's packets fit into frames.
    pub fn fits(&self) -> bool {
        self.mtu <= MAX_MTU
    }
}

/// A socket and a program, tied to nothing.
fn try_out() -> io::Result<()> {
    Socket::new(Domain::from(libc::AF_XDP), Type::RAW, None)?;
    let sockets = extended::socket_map(1)?;
    let filter = filter::program(Wanted { served: Some(1), ..Wanted::default() });
    let program = extended::to_sockets(&filter, sockets.as_fd(), filter::COPY).unwrap_or_default();
    extended::load(Kind::Xdp, &program).map(drop)
}
