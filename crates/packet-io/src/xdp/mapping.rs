//! Memory that is shared with the kernel and unmapped on drop.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// A mapping that can be read and written.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process and not to a thread; nothing else refers to it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `bytes` of memory, filled with zeros and populated.
    ///
    /// # Errors
    /// ENOMEM.
    pub(super) fn anonymous(bytes: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        Mapping::new(bytes, flags, -1, 0)
    }

    /// Maps `bytes` that `socket` shares at `offset`, which selects the ring.
    ///
    /// # Errors
    /// An error of the kernel.
    pub(super) fn of(socket: BorrowedFd<'_>, offset: libc::off_t, bytes: usize) -> io::Result<Mapping> {
        Mapping::new(bytes, libc::MAP_SHARED | libc::MAP_POPULATE, socket.as_raw_fd(), offset)
    }

    fn new(bytes: usize, flags: i32, fd: i32, offset: libc::off_t) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, bytes })
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the `T` at `offset`; `None` if it would exceed the end or is not aligned.
    pub(super) fn at<T>(&self, offset: usize) -> Option<NonNull<T>> {
        let end = offset.checked_add(size_of::<T>())?;
        if end > self.bytes {
            return None;
        }
        // SAFETY: the check above proves that the offset lies within the mapping.
        let place = unsafe { self.start.add(offset) }.cast::<T>();
        place.is_aligned().then_some(place)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, this is all of it, and nothing borrows from it any more. An error of
        // the kernel has no remedy.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_exceeds_the_mapping() {
        let mapping = Mapping::anonymous(4096).unwrap();
        assert!(mapping.at::<u32>(4092).is_some());
        assert!(mapping.at::<u32>(4093).is_none() && mapping.at::<u32>(4094).is_none());
        assert!(mapping.at::<u64>(4092).is_none(), "half of it is outside, and it is not aligned");
        assert!(mapping.at::<u8>(4096).is_none() && mapping.at::<u8>(usize::MAX).is_none());
    }
}
