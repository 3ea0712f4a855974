//! The tie between a descriptor and tokio's reactor, made when a task first waits for it.
//!
//! Late registration lets the same device serve a thread with its own poll loop, where there is no runtime at all.

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registered or not. The registration holds a duplicate of the descriptor, so that it cannot outlive what it
/// watches.
#[derive(Debug, Default)]
pub(crate) struct Reactor(Option<Registered>);

struct Registered {
    fd: Arc<AsyncFd<OwnedFd>>,
    failing: Failing,
    /// What the next read answers to: `READABLE`, or the `ERROR` that was reported instead.
    cause: Interest,
}

/// Ends when an error is reported. All that epoll says of a TUN device that was deleted is EPOLLERR, which is neither
/// readable nor writable.
type Failing = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

impl Reactor {
    /// Ready when there is something to read, or an error to meet by reading.
    pub(crate) fn poll_readable(&mut self, fd: BorrowedFd<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let registered = self.registered(fd)?;
        if let Poll::Ready(ready) = registered.fd.poll_read_ready(cx) {
            ready?.retain_ready();
            registered.cause = Interest::READABLE;
            return Poll::Ready(Ok(()));
        }
        ready!(registered.failing.as_mut().poll(cx));
        registered.cause = Interest::ERROR;
        registered.failing = failing(registered.fd.clone());
        Poll::Ready(Ok(()))
    }

    pub(crate) fn poll_writable(&mut self, fd: BorrowedFd<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.registered(fd)?.fd.poll_write_ready(cx))?.retain_ready();
        Poll::Ready(Ok(()))
    }

    /// Reads, and on `WouldBlock` lets the next `poll_readable` wait for the reactor.
    pub(crate) fn read<T>(&self, read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match &self.0 {
            Some(registered) => registered.fd.try_io(registered.cause, |_| read()),
            None => read(),
        }
    }

    /// As [`Reactor::read`], for a read that tells whether it has left nothing: then the next `poll_readable` waits without
    /// having been told `WouldBlock`, which would cost another call.
    pub(crate) fn read_out<T>(&self, read: impl FnOnce() -> io::Result<(T, bool)>) -> io::Result<T> {
        let mut last = None;
        let more = self.read(|| match read()? {
            // What arrives from here on makes the descriptor readable again, also while this is being told.
            (value, true) => {
                last = Some(value);
                Err(io::ErrorKind::WouldBlock.into())
            }
            (value, false) => Ok(value),
        });
        last.map_or(more, Ok)
    }

    /// Writes at once, whatever the reactor knows, because a device is nearly always writable. Only a second
    /// `WouldBlock`, observed by the reactor, lets the next `poll_writable` wait.
    pub(crate) fn write<T>(&self, mut write: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        match (write(), &self.0) {
            (Err(error), Some(registered)) if error.kind() == io::ErrorKind::WouldBlock => {
                registered.fd.try_io(Interest::WRITABLE, |_| write())
            }
            (result, _) => result,
        }
    }

    fn registered(&mut self, fd: BorrowedFd<'_>) -> io::Result<&mut Registered> {
        if self.0.is_none() {
            tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
            // SAFETY: the duplicate is open, and the AsyncFd that owns it is the only one who ever closes it.
            let fd = Arc::new(unsafe { AsyncFd::register(fd.try_clone_to_owned()?)? });
            self.0 = Some(Registered { failing: failing(fd.clone()), fd, cause: Interest::READABLE });
        }
        self.0.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

/// The error stays reported until a read finds that there is none.
fn failing(fd: Arc<AsyncFd<OwnedFd>>) -> Failing {
    Box::pin(async move {
        if let Ok(mut ready) = fd.ready(Interest::ERROR).await {
            ready.retain_ready();
        }
    })
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registered").field(&self.fd).finish()
    }
}
