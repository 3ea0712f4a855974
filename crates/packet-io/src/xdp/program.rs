//! The XDP program of an interface. It passes the stack's segments to AF_XDP sockets, and all other frames to
//! the kernel. It is the socket filter of `packet:` ([`filter`]), translated to eBPF.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::bpf::extended::{self, Kind, XdpMode};
use crate::interface::Interface;
use crate::packet::filter::{self, Wanted};
use crate::privileges::OpenError;

/// A program that is attached to an interface until the value is dropped.
#[derive(Debug)]
pub(super) struct Running {
    _link: OwnedFd,
    _sockets: OwnedFd,
    mode: XdpMode,
}

impl Running {
    /// Attaches the program to `interface`: in native mode if `native` is set and the driver supports it,
    /// otherwise in generic mode. `sockets` are those of the interface's queues, in order.
    ///
    /// # Errors
    /// Another program is attached (it stays); a capability is missing.
    pub(super) fn start(
        interface: &Interface,
        wanted: Wanted<'_>,
        sockets: &[BorrowedFd<'_>],
        native: bool,
    ) -> Result<Running, OpenError> {
        let failed = |action: &'static str| move |error| OpenError::xdp(interface.name(), action, error);
        let max = sockets.len() as u32;
        let map = extended::socket_map(max).map_err(failed("the kernel cannot create a socket map"))?;
        for (queue, socket) in (0..max).zip(sockets) {
            extended::put_socket(map.as_fd(), queue, *socket)
                .map_err(failed("a socket cannot be added to the map"))?;
        }
        let filter = filter::program(wanted);
        let program = extended::to_sockets(&filter, map.as_fd(), filter::COPY_TO_BOTH, wanted.list());
        let program = extended::load(Kind::Xdp, &program.unwrap_or_default())
            .map_err(failed("the kernel rejected the XDP program"))?;
        let (link, mode) =
            tie(&program, interface, native).map_err(failed("the XDP program cannot be attached"))?;
        Ok(Running { _link: link, _sockets: map, mode })
    }

    pub(super) fn mode(&self) -> XdpMode {
        self.mode
    }
}

fn tie(program: &OwnedFd, interface: &Interface, native: bool) -> io::Result<(OwnedFd, XdpMode)> {
    let run =
        |mode| extended::run_on_frames(program.as_fd(), interface.index(), mode).map(|link| (link, mode));
    if !native {
        return run(XdpMode::Generic);
    }
    match run(XdpMode::Native) {
        Err(error) if !is_final(&error) => run(XdpMode::Generic),
        done => done,
    }
}

/// True if the other mode would fail with the same error.
fn is_final(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EBUSY | libc::EEXIST | libc::EPERM | libc::EACCES | libc::ENODEV)
    )
}
