//! Urgent data as Linux treats it (RFC 9293 section 3.8.5, RFC 6093).
//!
//! The urgent pointer points one past the urgent byte, as in every deployed stack (BSD). By default this byte
//! is removed from the stream and read separately; [`UrgentPolicy::Inline`] leaves it in the stream. A later
//! pointer replaces an earlier one: one byte at a time is urgent.

use brisk_wire::SeqNum;

use crate::config::UrgentPolicy;

/// Both directions of urgent data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct UrgentPointer {
    policy: UrgentPolicy,
    /// Sequence number of the peer's urgent byte that the application has not passed yet.
    mark: Option<SeqNum>,
    /// The urgent byte, once it has arrived, until it is read.
    byte: Option<u8>,
    /// SND.UP: one past our urgent byte, until it is acknowledged.
    snd_up: Option<SeqNum>,
}

/// Action of a read at the urgent mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AtMark {
    /// Read at most this many bytes: the mark follows them (`None`: no mark ahead).
    ReadUpTo(Option<u32>),
    /// The next byte is the urgent one and does not belong to the stream: skip it.
    Skip,
}

impl UrgentPointer {
    pub(crate) fn new(policy: UrgentPolicy) -> Self {
        UrgentPointer { policy, ..UrgentPointer::default() }
    }

    /// Processes the pointer of a segment with URG. `read_next` is the next sequence number the application
    /// reads. Returns true if the mark is new, so that the application must be notified.
    pub(crate) fn on_pointer(&mut self, seq: SeqNum, pointer: u16, read_next: SeqNum) -> bool {
        let mark = seq + u32::from(pointer) - 1;
        if pointer == 0 || mark.lt(read_next) || self.mark.is_some_and(|old| mark.le(old)) {
            return false;
        }
        self.mark = Some(mark);
        self.byte = None;
        true
    }

    /// Keeps the urgent byte if it is in this payload.
    pub(crate) fn on_payload(&mut self, seq: SeqNum, payload: &[u8]) {
        let Some(mark) = self.mark else { return };
        if seq.le(mark)
            && self.policy == UrgentPolicy::OutOfBand
            && let Some(&byte) = payload.get(mark.since(seq) as usize)
        {
            self.byte = Some(byte);
        }
    }

    /// Returns the limit of the next read from `read_next`.
    pub(crate) fn at_mark(&mut self, read_next: SeqNum) -> AtMark {
        match self.mark {
            None => AtMark::ReadUpTo(None),
            Some(mark) if mark.gt(read_next) => AtMark::ReadUpTo(Some(mark.since(read_next))),
            Some(_) => {
                self.mark = None;
                match self.policy {
                    UrgentPolicy::OutOfBand => AtMark::Skip,
                    UrgentPolicy::Inline => AtMark::ReadUpTo(None),
                }
            }
        }
    }

    /// True while an urgent byte waits. Out of band it waits until it is taken, inline until the application
    /// has read past it.
    pub(crate) fn is_waiting(&self, rcv_nxt: SeqNum) -> bool {
        match self.policy {
            UrgentPolicy::OutOfBand => self.byte.is_some(),
            UrgentPolicy::Inline => self.mark.is_some_and(|mark| mark.lt(rcv_nxt)),
        }
    }

    /// Returns the bytes from `read_next` to the mark, if one is ahead.
    pub(crate) fn distance(&self, read_next: SeqNum) -> Option<u32> {
        self.mark.filter(|mark| mark.ge(read_next)).map(|mark| mark.since(read_next))
    }

    pub(crate) fn take(&mut self) -> Option<u8> {
        self.byte.take()
    }

    /// Records that the application wrote an urgent byte that ends before `up`.
    pub(crate) fn on_write(&mut self, up: SeqNum) {
        self.snd_up = Some(up);
    }

    /// Ends our urgent mark if data up to `una` was acknowledged.
    pub(crate) fn on_acked(&mut self, una: SeqNum) {
        if self.snd_up.is_some_and(|up| up.le(una)) {
            self.snd_up = None;
        }
    }

    /// Returns the urgent pointer of a segment that starts at `seq`, if it needs one.
    pub(crate) fn pointer(&self, seq: SeqNum) -> Option<u16> {
        let up = self.snd_up.filter(|up| up.gt(seq))?;
        Some(up.since(seq).min(0xffff) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_urgent_byte_leaves_the_stream() {
        let mut urgent = UrgentPointer::new(UrgentPolicy::OutOfBand);
        assert!(urgent.on_pointer(SeqNum(100), 3, SeqNum(100)));
        urgent.on_payload(SeqNum(100), b"abXcd");
        assert_eq!(urgent.at_mark(SeqNum(100)), AtMark::ReadUpTo(Some(2)));
        assert_eq!(urgent.at_mark(SeqNum(102)), AtMark::Skip);
        assert_eq!(urgent.at_mark(SeqNum(103)), AtMark::ReadUpTo(None));
        assert_eq!(urgent.take(), Some(b'X'));
        assert_eq!(urgent.take(), None);
    }

    #[test]
    fn inline_only_stops_the_read_at_the_mark() {
        let mut urgent = UrgentPointer::new(UrgentPolicy::Inline);
        urgent.on_pointer(SeqNum(100), 3, SeqNum(100));
        urgent.on_payload(SeqNum(100), b"abXcd");
        assert_eq!(urgent.take(), None);
        assert_eq!(urgent.at_mark(SeqNum(102)), AtMark::ReadUpTo(None));
    }

    #[test]
    fn a_pointer_into_the_past_is_ignored() {
        let mut urgent = UrgentPointer::new(UrgentPolicy::OutOfBand);
        assert!(!urgent.on_pointer(SeqNum(100), 3, SeqNum(103)));
        assert!(!urgent.on_pointer(SeqNum(100), 0, SeqNum(100)));
    }

    #[test]
    fn segments_before_the_urgent_byte_carry_the_pointer() {
        let mut urgent = UrgentPointer::new(UrgentPolicy::OutOfBand);
        urgent.on_write(SeqNum(110));
        assert_eq!(urgent.pointer(SeqNum(100)), Some(10));
        assert_eq!(urgent.pointer(SeqNum(110)), None);
        urgent.on_acked(SeqNum(110));
        assert_eq!(urgent.pointer(SeqNum(100)), None);
    }
}
