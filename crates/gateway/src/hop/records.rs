//! Records: the encrypted pieces of each direction of the hop, after the two messages.
//!
//! A record can be opened only when it is complete. While a segment is lost, a record of many segments would
//! hold back the segments that have arrived. So each record of the first flight fills one segment; later
//! records are longer. After a pause, records begin again with one segment. Each record costs 18 bytes: 1.3 %
//! of a segment, 0.1 % of a long record.

use std::time::{Duration, Instant};

use snow::TransportState;

use super::LENGTH;

/// Bytes of the tag at the end of a record.
const TAG: usize = 16;
/// Bytes of a record in addition to its payload.
pub const RECORD_OVERHEAD: usize = LENGTH + TAG;
/// Longest record, payload bytes.
pub const LONGEST_PAYLOAD: usize = 16 << 10;
/// Segments of the first flight (RFC 6928's initial window).
const FIRST_FLIGHT: usize = 10;
/// Idle time after which TCP restarts with the initial window, and records restart with one segment.
const PAUSE: Duration = Duration::from_secs(1);
/// Number of records after which the key of a direction is replaced (Noise, section 4.2): at most 1 GiB.
const REKEY_EVERY: u64 = 1 << 16;

/// Error for a record that the peer did not seal, or that was changed on the path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("data on the hop was changed on the path")]
pub struct Forged;

/// The keys of both directions.
#[derive(Debug)]
pub struct Sealing {
    transport: Box<TransportState>,
    sealed: u64,
    opened: u64,
}

impl Sealing {
    pub(super) fn new(transport: TransportState) -> Sealing {
        Sealing { transport: Box::new(transport), sealed: 0, opened: 0 }
    }

    /// Seals `payload` as a record and appends it to `wire`, after its length. An empty record ends the
    /// direction.
    ///
    /// # Errors
    /// If `payload` is longer than a Noise message; [`LONGEST_PAYLOAD`] is shorter.
    pub fn seal(&mut self, payload: &[u8], wire: &mut Vec<u8>) -> Result<(), Forged> {
        let start = wire.len() + LENGTH;
        let length = u16::try_from(payload.len() + TAG).map_err(|_| Forged)?;
        wire.extend_from_slice(&length.to_be_bytes());
        wire.resize(start + usize::from(length), 0);
        self.transport.write_message(payload, &mut wire[start..]).map_err(|_| Forged)?;
        self.sealed += 1;
        if self.sealed.is_multiple_of(REKEY_EVERY) {
            self.transport.rekey_outgoing();
        }
        Ok(())
    }

    /// Appends the payload of `record` (without its length) to `plain`; returns its length.
    ///
    /// # Errors
    /// If it is not the next record of the peer.
    pub fn open(&mut self, record: &[u8], plain: &mut Vec<u8>) -> Result<usize, Forged> {
        let start = plain.len();
        plain.resize(start + record.len(), 0);
        let opened = self.transport.read_message(record, &mut plain[start..]);
        let length = opened.map_err(|_| Forged).inspect_err(|_| plain.truncate(start))?;
        plain.truncate(start + length);
        self.opened += 1;
        if self.opened.is_multiple_of(REKEY_EVERY) {
            self.transport.rekey_incoming();
        }
        Ok(length)
    }
}

/// Computes the lengths of the records of a direction.
#[derive(Debug)]
pub struct RecordSizes {
    /// Payload bytes of a segment.
    segment: usize,
    /// Bytes sent since the beginning or the last pause.
    since: usize,
    last: Instant,
}

impl RecordSizes {
    /// Begins a direction with segments of `segment` payload bytes, after `before` bytes that are not in
    /// records.
    pub fn new(segment: usize, before: usize, now: Instant) -> RecordSizes {
        RecordSizes { segment: segment.max(4 * RECORD_OVERHEAD), since: before, last: now }
    }

    /// Returns the payload bytes of the next record, at least 1.
    pub fn next(&mut self, now: Instant) -> usize {
        if now.saturating_duration_since(self.last) > PAUSE {
            self.since = 0;
        }
        self.last = now;
        let flight = self.segment * FIRST_FLIGHT;
        let wire = match self.since {
            begun if begun < flight => self.rest_of_segment(),
            begun if begun < 4 * flight => 4 * self.segment,
            _ => LONGEST_PAYLOAD,
        };
        wire.min(LONGEST_PAYLOAD) - RECORD_OVERHEAD
    }

    /// Counts a sealed record with this payload.
    pub fn made(&mut self, payload: usize) {
        self.since = self.since.saturating_add(payload + RECORD_OVERHEAD);
    }

    /// Returns the number of bytes up to the end of the current segment, or of the next one if the current
    /// segment is almost full.
    fn rest_of_segment(&self) -> usize {
        let rest = self.segment - self.since % self.segment;
        if rest <= 2 * RECORD_OVERHEAD { rest + self.segment } else { rest }
    }
}

#[cfg(test)]
mod tests {
    use super::super::handshake::{Initiator, Responder, Verdict};
    use super::super::key::{HopKey, KeyRing};
    use super::super::stamp::Stamp;
    use super::*;

    fn pair() -> (Sealing, Sealing) {
        let key = HopKey::new([7; 32]);
        let (initiator, first) = Initiator::begin(&key, b"").unwrap();
        let message = Responder::accept(&KeyRing::of(key), &first).unwrap();
        let (backend, answer) = message.responder.finish(Verdict::Go, Stamp::default()).unwrap();
        (initiator.finish(&answer).unwrap().0, backend)
    }

    #[test]
    fn records_open_in_order_and_in_no_other() {
        let (mut a, mut b) = pair();
        let (mut one, mut two, mut plain) = (Vec::new(), Vec::new(), Vec::new());
        a.seal(b"one", &mut one).unwrap();
        a.seal(b"", &mut two).unwrap();
        assert_eq!((one.len(), two.len()), (3 + RECORD_OVERHEAD, RECORD_OVERHEAD));
        assert_eq!(b.open(&two[2..], &mut plain), Err(Forged), "the second before the first");
        assert_eq!(b.open(&one[2..], &mut plain), Ok(3));
        assert_eq!(b.open(&one[2..], &mut plain), Err(Forged), "the first again");
        assert_eq!(b.open(&two[2..], &mut plain), Ok(0));
        assert_eq!(plain, b"one", "a rejected record adds no plaintext");
        let mut back = Vec::new();
        a.seal(b"mine", &mut back).unwrap();
        assert_eq!(a.open(&back[2..], &mut plain), Err(Forged), "its own, reflected");
    }

    #[test]
    fn the_key_is_replaced_on_both_sides_at_the_same_record() {
        let (mut a, mut b) = pair();
        let (mut wire, mut plain) = (Vec::new(), Vec::new());
        for n in 0..REKEY_EVERY * 2 + 3 {
            wire.clear();
            plain.clear();
            a.seal(&n.to_be_bytes(), &mut wire).unwrap();
            assert_eq!(b.open(&wire[2..], &mut plain), Ok(8), "record {n}");
            assert_eq!(plain, n.to_be_bytes());
        }
    }

    #[test]
    fn the_first_flight_has_a_record_per_segment_and_what_follows_longer_ones() {
        let begin = Instant::now();
        let mut sizes = RecordSizes::new(1400, 51, begin);
        let mut at = 51;
        while at < 14_000 {
            let payload = sizes.next(begin);
            sizes.made(payload);
            at += payload + RECORD_OVERHEAD;
            assert_eq!(at % 1400, 0, "ends with a segment");
        }
        assert_eq!(sizes.next(begin), 5600 - RECORD_OVERHEAD);
        sizes.made(60_000);
        assert_eq!(sizes.next(begin), LONGEST_PAYLOAD - RECORD_OVERHEAD);
        let later = begin + PAUSE + Duration::from_millis(1);
        assert_eq!(sizes.next(later), 1400 - RECORD_OVERHEAD, "after a pause as at the beginning");
    }

    #[test]
    fn a_record_has_room_whatever_the_segment() {
        for segment in [0, 1, 88, 536, 65_000] {
            let now = Instant::now();
            let mut sizes = RecordSizes::new(segment, 0, now);
            for _ in 0..100 {
                let payload = sizes.next(now);
                assert!((1..=LONGEST_PAYLOAD).contains(&payload), "{segment}: {payload}");
                sizes.made(payload.min(33));
            }
        }
    }
}
