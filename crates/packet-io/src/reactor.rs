//! Registers a descriptor with tokio's reactor when a task waits for it for the first time.
//!
//! So a thread with its own poll loop, which never waits here, can use the same device without a runtime.
//!
//! There are two registrations: a permanent one for reading, and one for writing that exists only while a
//! task waits to write. A socket becomes "writable" whenever a packet that it sent has left, so a permanent
//! registration for writing would wake the thread for its own packets.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The registrations. Each owns a duplicate of the descriptor, so a registered descriptor is never closed
/// under the reactor.
#[derive(Default)]
pub(crate) struct Reactor {
    reading: Option<ReadRegistration>,
    /// Registration while a task waits to write.
    writing: Cell<Option<AsyncFd<OwnedFd>>>,
    /// A duplicate for `writing`, created in advance so that waiting works even if no descriptor is free.
    spare: Cell<Option<OwnedFd>>,
}

struct ReadRegistration {
    fd: Arc<AsyncFd<OwnedFd>>,
    failing: Failing,
    /// Readiness that the next read clears: `READABLE`, or `ERROR` if an error was reported instead.
    cause: Interest,
}

/// A future that ends when an error is reported. For a deleted TUN device epoll reports only EPOLLERR, which
/// tokio counts neither as readable nor as writable.
type Failing = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

impl Reactor {
    /// Ready when there is data to read, or an error that a read returns.
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

    /// Ready when a write that blocked may succeed.
    pub(crate) fn poll_writable(&mut self, fd: BorrowedFd<'_>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let writing = self.writing.get_mut();
        if writing.is_none() {
            let duplicate = self.spare.take().map_or_else(|| fd.try_clone_to_owned(), Ok)?;
            *writing = Some(register(duplicate, Interest::WRITABLE)?);
        }
        if let Some(waiting) = writing {
            ready!(waiting.poll_write_ready(cx))?.retain_ready();
        }
        // Readiness is reported once. The next task to wait registers again, and gets the state at that time.
        self.end_waiting();
        Poll::Ready(Ok(()))
    }

    /// Ends the registration for writing, if there is one, and keeps its descriptor as the spare.
    pub(crate) fn end_waiting(&self) {
        if let Some(waited) = self.writing.take() {
            self.spare.set(Some(waited.into_inner()));
        }
    }

    /// Reads; after `WouldBlock` the next `poll_readable` waits for the reactor.
    pub(crate) fn read<T>(&self, read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match &self.reading {
            Some(reading) => reading.fd.try_io(reading.cause, |_| read()),
            None => read(),
        }
    }

    /// Writes at once, without waiting for readiness, because a device is nearly always writable. After
    /// `WouldBlock` the caller waits with [`poll_writable`](Reactor::poll_writable), until a write succeeds.
    pub(crate) fn write<T>(&self, write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let written = write();
        if written.is_ok() {
            self.end_waiting();
        }
        written
    }

    /// Like [`Reactor::read`], for a read that also returns whether it has drained the descriptor. If it has,
    /// the next `poll_readable` waits at once; no further read has to return `WouldBlock` first.
    pub(crate) fn read_out<T>(&self, read: impl FnOnce() -> io::Result<(T, bool)>) -> io::Result<T> {
        let mut last = None;
        let more = self.read(|| match read()? {
            // A packet that arrives from here on makes the descriptor readable again.
            (value, true) => {
                last = Some(value);
                Err(io::ErrorKind::WouldBlock.into())
            }
            (value, false) => Ok(value),
        });
        last.map_or(more, Ok)
    }

    fn reading(&mut self, fd: BorrowedFd<'_>) -> io::Result<&mut ReadRegistration> {
        if self.reading.is_none() {
            self.spare.set(Some(fd.try_clone_to_owned()?));
            let fd = Arc::new(register(fd.try_clone_to_owned()?, Interest::READABLE)?);
            self.reading =
                Some(ReadRegistration { failing: failing(fd.clone()), fd, cause: Interest::READABLE });
        }
        self.reading.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

/// Registers a duplicate of a descriptor with the runtime's reactor.
fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
    // SAFETY: the duplicate is open, and only the AsyncFd that owns it closes it.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest)? })
}

/// Returns a future that resolves at an error. The error stays reported until a read clears it.
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
    async fn waiting_writer_is_woken_without_a_new_descriptor() {
        let (near, far) = UnixDatagram::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let mut reactor = Reactor::default();
        let reads = poll_fn(|cx| Poll::Ready(reactor.poll_readable(near.as_fd(), cx).is_ready())).await;
        assert!(!reads && reactor.has_spare());
        for _ in 0..2 {
            while reactor.write(|| near.send(&[0; 1000])).is_ok() {}
            let room = poll_fn(|cx| Poll::Ready(reactor.poll_writable(near.as_fd(), cx).is_ready())).await;
            assert!(!room && !reactor.has_spare(), "the duplicate is not in use");
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
