//! The error queue of a socket, which `MSG_ERRQUEUE` reads: time stamps of sent bytes (`SO_TIMESTAMPING`)
//! and completions of `MSG_ZEROCOPY`.
//!
//! Linux takes three time stamps of the last byte of a write: when it enters the queueing discipline, when it
//! leaves, and when it is acknowledged. Here the first two are equal.

use std::collections::VecDeque;
use std::time::Duration;

/// Flags of `SO_TIMESTAMPING` (linux/net_tstamp.h).
const TX_SOFTWARE: u32 = 1 << 1;
const RX_SOFTWARE: u32 = 1 << 3;
const SOFTWARE: u32 = 1 << 4;
const OPT_ID: u32 = 1 << 7;
const TX_SCHED: u32 = 1 << 8;
const TX_ACK: u32 = 1 << 9;
/// Flag: time stamps are returned without the packet.
const OPT_TSONLY: u32 = 1 << 11;
/// Flag: keys count from the first unwritten byte instead of the first unacknowledged one.
const OPT_ID_TCP: u32 = 1 << 16;
/// All flags that Linux accepts.
const ALL_FLAGS: u32 = (1 << 19) - 1;

/// Contents of an entry (`ee_errno`, `ee_origin`, `ee_code`, `ee_info`, `ee_data` of `struct
/// sock_extended_err`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ExtendedError {
    pub(crate) errno: u32,
    pub(crate) origin: u8,
    pub(crate) code: u8,
    pub(crate) info: u32,
    pub(crate) data: u32,
}

/// An entry: the error, and the time since 1970 if it is a time stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) error: ExtendedError,
    pub(crate) stamp: Option<Duration>,
    /// True if Linux returns the packet too. Linux then sets MSG_TRUNC if the packet does not fit the
    /// program's buffer. brisk returns no packet and always sets the flag.
    pub(crate) has_payload: bool,
}

const ORIGIN_TIMESTAMPING: u8 = 4;
const ORIGIN_ZEROCOPY: u8 = 5;
const CODE_ZEROCOPY_COPIED: u8 = 1;
/// Values of `ee_info` for the three time stamps.
const STAMP_SND: u32 = 0;
const STAMP_SCHED: u32 = 1;
const STAMP_ACK: u32 = 2;

/// A write whose last byte gets time stamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Watched {
    /// Stream offset of the last byte of the write.
    last: u64,
    key: u32,
    flags: u32,
    sent: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Offsets {
    pub(crate) acknowledged: u64,
    pub(crate) written: u64,
}

/// See the [module](self).
#[derive(Clone, Debug, Default)]
pub(crate) struct ErrorQueue {
    /// `SO_TIMESTAMPING`.
    flags: u32,
    /// Stream offset of key 0.
    base: u64,
    watched: VecDeque<Watched>,
    /// Zero-copy writes: the end of each, in order.
    zerocopy: VecDeque<u64>,
    first_zerocopy: u32,
    entries: VecDeque<Entry>,
    /// Number of entries so far, plus completions that were merged into an entry.
    count: u64,
}

impl ErrorQueue {
    /// Sets `SO_TIMESTAMPING`. `offsets` are those of the socket's connection, if it has one. Returns false
    /// if Linux would refuse the flags.
    pub(crate) fn set_flags(&mut self, flags: u32, offsets: Option<Offsets>) -> bool {
        let without_id = flags & OPT_ID_TCP != 0 && flags & OPT_ID == 0;
        if flags & !ALL_FLAGS != 0 || without_id {
            return false;
        }
        if flags & OPT_ID != 0 && self.flags & OPT_ID == 0 {
            // Without a connection there is no offset to count from.
            let Some(Offsets { acknowledged, written }) = offsets else { return false };
            self.base = if flags & OPT_ID_TCP != 0 { written } else { acknowledged };
        }
        self.flags = flags;
        true
    }

    pub(crate) fn flags(&self) -> u32 {
        self.flags
    }

    /// True if received data gets time stamps.
    pub(crate) fn stamps_arrivals(&self) -> bool {
        self.flags & (RX_SOFTWARE | SOFTWARE) == RX_SOFTWARE | SOFTWARE
    }

    /// Records a write that extended the stream to `end`. `asked` are the flags of its control message, which
    /// replace those of the socket.
    pub(crate) fn on_write(&mut self, end: u64, asked: Option<u32>, zerocopy: bool) {
        let record = TX_SOFTWARE | TX_SCHED | TX_ACK;
        let flags = asked.map_or(self.flags, |asked| (self.flags & !record) | asked & record);
        if flags & record != 0 && end > 0 {
            let key = if flags & OPT_ID != 0 { (end - 1).wrapping_sub(self.base) as u32 } else { 0 };
            self.watched.push_back(Watched { last: end - 1, key, flags, sent: false });
        }
        if zerocopy {
            self.zerocopy.push_back(end);
        }
    }

    /// Records that the stream was sent up to `sent` and acknowledged up to `acknowledged`.
    pub(crate) fn on_progress(&mut self, sent: u64, acknowledged: u64, now: Duration) {
        for watched in self.watched.iter_mut().filter(|watched| !watched.sent && watched.last < sent) {
            watched.sent = true;
            for (flag, which) in [(TX_SCHED, STAMP_SCHED), (TX_SOFTWARE, STAMP_SND)] {
                if watched.flags & flag != 0 {
                    self.entries.push_back(watched.stamp(which, now));
                    self.count += 1;
                }
            }
        }
        while let Some(done) = self.watched.front().copied().filter(|watched| watched.last < acknowledged) {
            self.watched.pop_front();
            if done.flags & TX_ACK != 0 {
                self.entries.push_back(done.stamp(STAMP_ACK, now));
                self.count += 1;
            }
        }
        while self.zerocopy.front().is_some_and(|end| *end <= acknowledged) {
            self.zerocopy.pop_front();
            self.complete_zerocopy();
        }
    }

    /// Completes one zero-copy write; consecutive completions share an entry.
    fn complete_zerocopy(&mut self) {
        let number = self.first_zerocopy;
        self.first_zerocopy = number.wrapping_add(1);
        self.count += 1;
        if let Some(last) = self.entries.back_mut()
            && last.error.origin == ORIGIN_ZEROCOPY
            && last.error.data.wrapping_add(1) == number
        {
            last.error.data = number;
            return;
        }
        // The stack copies the bytes, so the completion reports that a copy was made.
        let error = ExtendedError {
            errno: 0,
            origin: ORIGIN_ZEROCOPY,
            code: CODE_ZEROCOPY_COPIED,
            info: number,
            data: number,
        };
        self.entries.push_back(Entry { error, stamp: None, has_payload: false });
    }

    /// Returns the number of additions to the queue so far.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Completes all zero-copy writes when the connection ends.
    pub(crate) fn on_end(&mut self) {
        while self.zerocopy.pop_front().is_some() {
            self.complete_zerocopy();
        }
    }

    /// True if the queue has an entry (POLLERR).
    pub(crate) fn is_ready(&self) -> bool {
        !self.entries.is_empty()
    }

    pub(crate) fn pop(&mut self) -> Option<Entry> {
        self.entries.pop_front()
    }
}

impl Watched {
    /// Creates the entry of a time stamp. The entry has the time only if the program has requested it.
    fn stamp(&self, which: u32, now: Duration) -> Entry {
        let error = ExtendedError {
            errno: libc::ENOMSG as u32,
            origin: ORIGIN_TIMESTAMPING,
            code: 0,
            info: which,
            data: self.key,
        };
        let reported = self.flags & SOFTWARE != 0;
        let stamp = reported.then_some(now);
        Entry { error, stamp, has_payload: self.flags & OPT_TSONLY == 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Duration = Duration::from_millis(5);
    const AT_START: Option<Offsets> = Some(Offsets { acknowledged: 0, written: 0 });

    fn reported(queue: &mut ErrorQueue) -> Vec<(u32, u32)> {
        std::iter::from_fn(|| queue.pop()).map(|entry| (entry.error.info, entry.error.data)).collect()
    }

    #[test]
    fn last_byte_of_a_write_is_stamped_at_departure_and_at_its_ack() {
        let mut queue = ErrorQueue::default();
        assert!(queue.set_flags(TX_SOFTWARE | TX_SCHED | TX_ACK | SOFTWARE | OPT_ID, AT_START));
        queue.on_write(1000, None, false);
        queue.on_progress(999, 0, AT);
        assert!(!queue.is_ready());
        queue.on_progress(1000, 0, AT);
        assert_eq!(reported(&mut queue), [(STAMP_SCHED, 999), (STAMP_SND, 999)]);
        queue.on_progress(1000, 1000, AT);
        assert_eq!(reported(&mut queue), [(STAMP_ACK, 999)]);
    }

    #[test]
    fn keys_count_from_the_offset_at_which_they_were_enabled() {
        let mut queue = ErrorQueue::default();
        queue.set_flags(TX_ACK | SOFTWARE | OPT_ID, Some(Offsets { acknowledged: 1000, written: 1200 }));
        queue.on_write(1500, None, false);
        queue.on_progress(1500, 1500, AT);
        assert_eq!(reported(&mut queue), [(STAMP_ACK, 499)]);
        assert!(!queue.set_flags(1 << 30, AT_START), "no such flag");
    }

    #[test]
    fn completions_of_zero_copy_in_a_row_are_one_entry() {
        let mut queue = ErrorQueue::default();
        for end in [100, 200, 300] {
            queue.on_write(end, None, true);
        }
        queue.on_progress(300, 200, AT);
        assert_eq!(reported(&mut queue), [(0, 1)]);
        queue.on_progress(300, 300, AT);
        assert_eq!(reported(&mut queue), [(2, 2)]);
    }
}
