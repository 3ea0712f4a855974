//! The tie between a descriptor and tokio's reactor, made when a task first waits for it.
//!
//! Late registration lets the same device serve a thread with its own poll loop, where there is no runtime at
//! all.
//!
//! Two registrations: one for reading, which lasts, and one for writing, which is there only while somebody
//! waits to write. A socket becomes "writable" each time that something it sent has left, and a thread that
//! watches for that is woken by its own packets.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registered or not. A registration holds a duplicate of the descriptor, so that it cannot outlive what it
/// watches.
#[derive(Default)]
pub(crate) struct Reactor {
    reading: Option<Reading>,
    /// While a write is waited for.
    writing: Cell<Option<AsyncFd<OwnedFd>>>,
    /// A duplicate for that, made in time: a process that is out of descriptors goes on.
    spare: Cell<Option<OwnedFd>>,
}

struct Reading {
    fd: Arc<AsyncFd<OwnedFd>>,
    failing: Failing,
    /// Readiness that the next read answers: `READABLE`, or the `ERROR` that was reported instead.
    cause: Interest,
}

/// Ends when an error is reported. All that epoll says of a TUN device that was deleted is EPOLLERR, which is
/// neither readable nor writable.
type Failing = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

impl Reactor {
    /// Ready when there is something to read, or an error to meet by reading.
    pub(crate) fn poll_readable(&mut self, fd: BorrowedFd<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let reading = self.reading(fd)?;
        if let Poll::Ready(ready) = reading.fd.poll_read_ready(cx) {
            ready?.retain_ready();
            reading.cause = Interest::READABLE;
            return Poll::Ready(Ok(()));
        }
        ready!(reading.failing.as_mut().poll(cx));
        reading.cause = Interest::ERROR;
        reading.failing = failing(reading.fd.clone());
        Poll::Ready(Ok(()))
    }

    /// Ready when a write that would have blocked is worth another try.
    pub(crate) fn poll_writable(&mut self, fd: BorrowedFd<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let writing = self.writing.get_mut();
        if writing.is_none() {
            let duplicate = self.spare.take().map_or_else(|| fd.try_clone_to_owned(), Ok)?;
            *writing = Some(register(duplicate, Interest::WRITABLE)?);
        }
        if let Some(waiting) = writing {
            ready!(waiting.poll_write_ready(cx))?.retain_ready();
        }
        // Reported once: the next waiter registers again, and learns the state of that moment.
        self.end_waiting();
        Poll::Ready(Ok(()))
    }

    /// Nobody waits to write any more: something was written.
    pub(crate) fn end_waiting(&self) {
        if let Some(waited) = self.writing.take() {
            self.spare.set(Some(waited.into_inner()));
        }
    }

    /// Reads, and on `WouldBlock` lets the next `poll_readable` wait for the reactor.
    pub(crate) fn read<T>(&self, read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match &self.reading {
            Some(reading) => reading.fd.try_io(reading.cause, |_| read()),
            None => read(),
        }
    }

    /// Writes at once, whatever the reactor knows, because a device is nearly always writable. After
    /// `WouldBlock` a caller waits with [`poll_writable`](Reactor::poll_writable), which is over when a write
    /// goes through.
    pub(crate) fn write<T>(&self, write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let written = write();
        if written.is_ok() {
            self.end_waiting();
        }
        written
    }

    /// As [`Reactor::read`], for a read that tells whether it has left nothing: then the next `poll_readable`
    /// waits without having been told `WouldBlock`, which would cost another call.
    pub(crate) fn read_out<T>(&self, read: impl FnOnce() -> io::Result<(T, bool)>) -> io::Result<T> {
        let mut last = None;
        let more = self.read(|| match read()? {
            // A packet that arrives from here on makes the descriptor readable again, even before this is
            // reported.
            (value, true) => {
                last = Some(value);
                Err(io::ErrorKind::WouldBlock.into())
            }
            (value, false) => Ok(value),
        });
        last.map_or(more, Ok)
    }

    fn reading(&mut self, fd: BorrowedFd<'_>) -> io::Result<&mut Reading> {
        if self.reading.is_none() {
            self.spare.set(Some(fd.try_clone_to_owned()?));
            let fd = Arc::new(register(fd.try_clone_to_owned()?, Interest::READABLE)?);
            self.reading = Some(Reading { failing: failing(fd.clone()), fd, cause: Interest::READABLE });
        }
        self.reading.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

/// Ties a duplicate of a descriptor to the reactor of the runtime.
fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
    // SAFETY: the duplicate is open, and the AsyncFd that owns it is the only one who ever closes it.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest)? })
}

/// The error stays reported until a read finds that there is none.
fn failing(fd: Arc<AsyncFd<OwnedFd>>) -> Failing {
    Box::pin(async move {
        if let Ok(mut ready) = fd.ready(Interest::ERROR).await {
            ready.retain_ready();
        }
    })
}

impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reactor").field(&self.reading.as_ref().map(|reading| &reading.fd)).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    impl Reactor {
        fn has_spare(&self) -> bool {
            let spare = self.spare.take();
            let has = spare.is_some();
            self.spare.set(spare);
            has
        }
    }

    #[tokio::test]
    async fn waiting_writer_needs_no_new_descriptor_and_hears_of_room() {
        let (near, far) = UnixDatagram::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let mut reactor = Reactor::default();
        let reads = poll_fn(|cx| Poll::Ready(reactor.poll_readable(near.as_fd(), cx).is_ready())).await;
        assert!(!reads && reactor.has_spare());
        for _ in 0..2 {
            while reactor.write(|| near.send(&[0; 1000])).is_ok() {}
            let room = poll_fn(|cx| Poll::Ready(reactor.poll_writable(near.as_fd(), cx).is_ready())).await;
            assert!(!room && !reactor.has_spare(), "it is used while the write is waited for");
            let (waits, reads) = (poll_fn(|cx| reactor.poll_writable(near.as_fd(), cx)), async {
                while far.recv(&mut [0; 1000]).is_ok() {}
            });
            let (room, ()) = tokio::join!(waits, reads);
            room.unwrap();
            assert!(reactor.has_spare());
            reactor.write(|| near.send(&[0; 1000])).unwrap();
        }
    }
}
