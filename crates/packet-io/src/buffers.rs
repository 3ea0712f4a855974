//! Buffers for received packets. The receiver of a packet may keep its buffer for a while.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::{Bytes, BytesMut};

/// Maximum number of lent buffers that are watched for reuse; beyond it the oldest is no longer watched.
const MAX_WATCHED: usize = 16;
/// Maximum number of watched buffers that are checked before a new one is allocated.
const MAX_CHECKS: usize = 4;

/// Buffers of one size that are reused.
#[derive(Debug)]
pub(crate) struct Buffers {
    size: usize,
    current: BytesMut,
    /// Lent buffers, oldest first.
    watched: VecDeque<Bytes>,
}

impl Buffers {
    pub(crate) fn of(size: usize) -> Buffers {
        Buffers { size, current: BytesMut::zeroed(size), watched: VecDeque::new() }
    }

    /// Returns the whole buffer to read into.
    pub(crate) fn current(&mut self) -> &mut [u8] {
        &mut self.current
    }

    /// Passes these bytes of the buffer to `sink`, with the buffer itself if they are at least half of it.
    pub(crate) fn hand_over(&mut self, bytes: Range<usize>, sink: impl FnOnce(&[u8], Option<&Bytes>)) {
        if 2 * bytes.len() < self.size {
            return sink(self.current.get(bytes).unwrap_or_default(), None);
        }
        let full = std::mem::take(&mut self.current).freeze();
        let packet = full.slice(bytes.start..bytes.end.min(self.size));
        sink(&packet, Some(&packet));
        drop(packet);
        self.watched.push_back(full);
        self.current = self.next();
    }

    /// Returns a buffer that is not lent; reuses one if possible.
    fn next(&mut self) -> BytesMut {
        for _ in 0..MAX_CHECKS.min(self.watched.len()) {
            match self.watched.pop_front().map(Bytes::try_into_mut) {
                Some(Ok(buffer)) => return buffer,
                Some(Err(in_use)) => self.watched.push_back(in_use),
                None => break,
            }
        }
        if self.watched.len() > MAX_WATCHED {
            self.watched.pop_front();
        }
        BytesMut::zeroed(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_packet_may_be_kept_and_its_buffer_is_reused() {
        let mut buffers = Buffers::of(100);
        let first = buffers.current().as_ptr();
        buffers.current()[..3].copy_from_slice(b"abc");
        let mut kept = None;
        buffers.hand_over(0..60, |packet, shared| {
            assert_eq!((packet.len(), &packet[..3]), (60, &b"abc"[..]));
            kept = shared.map(|shared| shared.slice(..3));
        });
        assert_ne!(buffers.current().as_ptr(), first, "the buffer is lent");
        buffers.current()[..3].copy_from_slice(b"xyz");
        assert_eq!(kept.as_deref(), Some(&b"abc"[..]));
        kept = None;
        buffers.hand_over(0..60, |_, _| {});
        assert_eq!((buffers.current().as_ptr(), buffers.current().len()), (first, 100));
        assert!(kept.is_none());
    }

    #[test]
    fn short_packet_is_passed_without_its_buffer() {
        let mut buffers = Buffers::of(100);
        let first = buffers.current().as_ptr();
        for bytes in [0..49, 10..59] {
            buffers.hand_over(bytes, |packet, shared| assert!(packet.len() == 49 && shared.is_none()));
        }
        assert_eq!(buffers.current().as_ptr(), first);
    }

    #[test]
    fn number_of_watched_buffers_is_limited() {
        let mut buffers = Buffers::of(100);
        let mut kept = Vec::new();
        for _ in 0..3 * MAX_WATCHED {
            buffers.hand_over(0..100, |_, shared| kept.extend(shared.cloned()));
        }
        assert_eq!(kept.len(), 3 * MAX_WATCHED);
        assert!(buffers.watched.len() <= MAX_WATCHED + 1);
        kept.clear();
        let before = buffers.watched.len();
        buffers.hand_over(0..100, |_, _| {});
        assert_eq!(buffers.watched.len(), before, "one buffer came back and one was lent");
    }
}
