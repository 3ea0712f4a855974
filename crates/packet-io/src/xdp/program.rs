//! The program at the interface: it passes the stack's segments to its sockets, and all other frames to the
//! kernel.
//!
//! It is the filter of `packet:` ([`filter`]), translated, and ends with the process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::bpf::extended::{self, Kind, XdpMode};
use crate::interface::Interface;
use crate::packet::filter::{self, Wanted};
use crate::privileges::OpenError;

/// A program that runs until this is dropped.
#[derive(Debug)]
pub(super) struct Running {
    _link: OwnedFd,
    _sockets: OwnedFd,
    mode: XdpMode,
}

impl Running {
    /// Runs the program on frames that arrive at `interface`: in the driver, or in the kernel if the driver
    /// cannot. `sockets` are those of its queues, in order.
    ///
    /// # Errors
    /// Another program at the interface, which is left unchanged; a missing right.
    pub(super) fn start(
        interface: &Interface,
        wanted: Wanted<'_>,
        sockets: &[BorrowedFd<'_>],
        native: bool,
    ) -> Result<Running, OpenError> {
        let failed = |action: &'static str| move |error| OpenError::xdp(interface.name(), action, error);
        let most = sockets.len() as u32;
        let map = extended::socket_map(most).map_err(failed("the kernel makes no map of sockets"))?;
        for (queue, socket) in (0..most).zip(sockets) {
            extended::put_socket(map.as_fd(), queue, *socket).map_err(failed("the map takes no socket"))?;
        }
        let filter = filter::program(wanted);
        let program = extended::to_sockets(&filter, map.as_fd(), filter::COPY).unwrap_or_default();
        let program = extended::load(Kind::Xdp, &program).map_err(failed("the kernel takes no program"))?;
        let (link, mode) =
            tie(&program, interface, native).map_err(failed("no XDP program can be put at the interface"))?;
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
