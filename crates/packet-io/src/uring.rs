//! Several writes, or messages on a socket, in one kernel call (`io_uring(7)`).
//!
//! A reader that a write wakes preempts the writer when the call ends. With several writes in one call this
//! happens only once. All writes are complete when the call ends, so no buffer has to outlive it, and no task
//! waits.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, squeue, types};

use crate::message::Message;

/// Maximum number of writes in one call.
pub(crate) const MAX: usize = 32;

/// A queue of writes that is empty between calls.
pub(crate) struct Uring(IoUring);

impl Uring {
    /// Opens a queue.
    ///
    /// # Errors
    /// The kernel does not support it, the system does not permit it (`kernel.io_uring_disabled`, a filter of
    /// system calls), or descriptors or memory are exhausted.
    pub(crate) fn open() -> io::Result<Uring> {
        IoUring::new(MAX as u32).map(Uring)
    }

    /// Writes at most [`MAX`] messages. Each message has a number and consists of a few pieces of memory. The
    /// kernel tries them in order, continues after a failure, and never blocks. Calls `done` with the result
    /// of each message that it has tried.
    ///
    /// Returns `self` for the next call; `None` if the kernel did not accept the writes.
    pub(crate) fn write<'a>(
        self,
        fd: BorrowedFd<'_>,
        messages: impl Iterator<Item = (usize, &'a [IoSlice<'a>])>,
        done: impl FnMut(usize, io::Result<()>),
    ) -> Option<Uring> {
        let entries = messages.take(MAX).map(|(number, pieces)| {
            let write =
                opcode::Writev::new(types::Fd(fd.as_raw_fd()), pieces.as_ptr().cast(), pieces.len() as u32);
            write.rw_flags(libc::RWF_NOWAIT).build().user_data(number as u64)
        });
        // SAFETY: an IoSlice is an iovec. The pieces and their memory outlive 'a, and so this call.
        unsafe { self.run(entries, done) }
    }

    /// Like [`write`](Uring::write), for a socket. The messages are numbered from 0.
    pub(crate) fn send(
        self,
        fd: BorrowedFd<'_>,
        messages: &[Message<'_>],
        done: impl FnMut(usize, io::Result<()>),
    ) -> Option<Uring> {
        let headers: Vec<_> = messages.iter().take(MAX).map(Message::header).collect();
        let entries = headers.iter().enumerate().map(|(number, header)| {
            let send = opcode::SendMsg::new(types::Fd(fd.as_raw_fd()), header);
            send.flags(libc::MSG_DONTWAIT as u32).build().user_data(number as u64)
        });
        // SAFETY: the headers, and the messages that they point to, outlive this call.
        unsafe { self.run(entries, done) }
    }

    /// Submits all entries, waits for them and reports their results.
    ///
    /// # Safety
    /// The memory that the entries point to must live during this call, which does not end before the kernel
    /// has finished with it.
    unsafe fn run(
        mut self,
        entries: impl Iterator<Item = squeue::Entry>,
        mut done: impl FnMut(usize, io::Result<()>),
    ) -> Option<Uring> {
        let mut queued = 0;
        for entry in entries {
            // SAFETY: by the contract of this function. The kernel never reads an entry that is not
            // submitted, because the queue is dropped then.
            queued += usize::from(unsafe { self.0.submission().push(&entry) }.is_ok());
        }
        let submitted = self.submit(queued);
        // Writes complete at submission; on a kernel that completes them later, this loop waits.
        while self.0.completion().len() < submitted {
            std::thread::yield_now();
        }
        for entry in self.0.completion() {
            let written = match entry.result() {
                error @ ..=-1 => Err(io::Error::from_raw_os_error(-error)),
                0.. => Ok(()),
            };
            done(entry.user_data() as usize, written);
        }
        (submitted == queued).then_some(self)
    }

    /// Submits all queued entries; returns how many the kernel has accepted.
    fn submit(&mut self, queued: usize) -> usize {
        let mut submitted = 0;
        while submitted < queued {
            match self.0.submit() {
                Ok(0) => break,
                Ok(count) => submitted += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        submitted
    }
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Uring")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    fn open() -> Option<Uring> {
        Uring::open().inspect_err(|error| println!("skipped: no io_uring here: {error}")).ok()
    }

    #[test]
    fn messages_leave_in_order_and_each_result_is_reported() {
        let Some(mut uring) = open() else { return };
        let (near, far) = UnixDatagram::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        for round in 0..3u8 {
            let bytes: Vec<[u8; 2]> = (0..8).map(|n| [round, n]).collect();
            let messages: Vec<Vec<IoSlice<'_>>> =
                bytes.iter().map(|bytes| bytes.chunks(1).map(IoSlice::new).collect()).collect();
            let mut answered = Vec::new();
            let done = |n, written: io::Result<()>| answered.push((n, written.is_ok()));
            uring = uring.write(near.as_fd(), messages.iter().map(Vec::as_slice).enumerate(), done).unwrap();
            answered.sort_unstable();
            assert_eq!(answered, (0..8).map(|n| (n, true)).collect::<Vec<_>>());
            for expected in bytes {
                let mut buffer = [0; 4];
                assert_eq!(far.recv(&mut buffer).unwrap(), 2);
                assert_eq!(buffer[..2], expected);
            }
        }
    }

    #[test]
    fn full_queue_returns_would_block() {
        let Some(uring) = open() else { return };
        let (near, mut far) = UnixStream::pair().unwrap();
        let big = vec![7; 1 << 20];
        let message = [IoSlice::new(&big)];
        let mut answers = [const { None }; 3];
        let done = |n: usize, written| answers[n] = Some(written);
        let uring = uring.write(near.as_fd(), [&message[..]; 3].into_iter().enumerate(), done);
        assert!(uring.is_some());
        // The first of these fits in part; the others do not fit.
        for answer in &answers[1..] {
            assert_eq!(answer.as_ref().unwrap().as_ref().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
        drop(near);
        let mut rest = Vec::new();
        far.read_to_end(&mut rest).unwrap();
        assert!(!rest.is_empty() && rest.len() < big.len());
    }

    #[test]
    fn unwritable_descriptor_is_reported() {
        let Some(uring) = open() else { return };
        let null = std::fs::File::open("/dev/null").unwrap();
        let message = [IoSlice::new(b"read only")];
        let mut failed = 0;
        let done = |_, written: io::Result<()>| failed += usize::from(written.is_err());
        assert!(uring.write(null.as_fd(), [&message[..]; 40].into_iter().enumerate(), done).is_some());
        assert_eq!(failed, MAX);
    }
}
