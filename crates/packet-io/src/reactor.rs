//! The tie between a descriptor and tokio's reactor, made when a task first waits for it.
//!
//! Late registration lets the same device serve a thread with its own poll loop, where there is no runtime at all.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registered or not. The registration holds a duplicate of the descriptor, so that it cannot outlive what it
/// watches.
#[derive(Debug, Default)]
pub(crate) struct Reactor(Option<AsyncFd<OwnedFd>>);

impl Reactor {
    pub(crate) fn poll_readable(&mut self, fd: BorrowedFd<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.registered(fd)?.poll_read_ready(cx))?.retain_ready();
        Poll::Ready(Ok(()))
    }

    pub(crate) fn poll_writable(&mut self, fd: BorrowedFd<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.registered(fd)?.poll_write_ready(cx))?.retain_ready();
        Poll::Ready(Ok(()))
    }

    /// Reads, and on `WouldBlock` lets the next `poll_readable` wait for the reactor.
    pub(crate) fn read<T>(&self, read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match &self.0 {
            Some(registered) => registered.try_io(Interest::READABLE, |_| read()),
            None => read(),
        }
    }

    /// Writes at once, whatever the reactor knows, because a device is nearly always writable. Only a second
    /// `WouldBlock`, observed by the reactor, lets the next `poll_writable` wait.
    pub(crate) fn write<T>(&self, mut write: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        match (write(), &self.0) {
            (Err(error), Some(registered)) if error.kind() == io::ErrorKind::WouldBlock => {
                registered.try_io(Interest::WRITABLE, |_| write())
            }
            (result, _) => result,
        }
    }

    fn registered(&mut self, fd: BorrowedFd<'_>) -> io::Result<&AsyncFd<OwnedFd>> {
        if self.0.is_none() {
            tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
            // SAFETY: the duplicate is open, and the AsyncFd that owns it is the only one who ever closes it.
            self.0 = Some(unsafe { AsyncFd::register(fd.try_clone_to_owned()?)? });
        }
        self.0.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}
