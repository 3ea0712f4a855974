//! One direction of a connection at the capture point.

use crate::segment::Segment;
use crate::train::{BURST_GAP, Losses, Train};

/// Maximum number of gaps in the sequence numbers that are remembered at a time.
const MAX_HOLES: usize = 256;
/// Maximum gap in the IP identifications; after a larger gap the sender is assumed to count differently.
const MAX_MISSING: u16 = 128;
/// Delay, ns, above which a late segment counts as retransmitted and not as reordered, if the round-trip time
/// is unknown.
const USUAL_REORDERING: u64 = 5_000_000;

/// Bytes that are missing in the capture, although later bytes are present.
#[derive(Clone, Copy, Debug)]
struct Hole {
    start: u64,
    end: u64,
    at: u64,
    /// TSval of the segment behind the gap.
    ts: Option<u32>,
    /// Number of the first missing packet in `by_sequence`. A [`Train`] numbers packets in the order of
    /// sending.
    first: u64,
    packets: u64,
}

/// State of the IP identifications of one end.
#[derive(Clone, Copy, Debug, Default)]
struct Identification {
    /// The next expected identification.
    next: Option<u16>,
    regular: u64,
    irregular: u64,
    /// The last gap: (first identification, its number in the train, length in packets).
    gap: Option<(u16, u64, u16)>,
}

/// State of one direction.
#[derive(Clone, Debug, Default)]
pub struct Direction {
    /// Sequence number after the highest byte seen, unwrapped.
    next: Option<u64>,
    beyond: Train,
    by_sequence: Train,
    by_identification: Train,
    holes: Vec<Hole>,
    identification: Identification,
    /// End of the data of a SYN, until an acknowledgement covers it.
    on_syn: Option<u64>,
    /// A segment that was sent once and is not yet acknowledged: its end, and the time when it was sent.
    timed: Option<(u64, u64)>,
    /// Minimum time to an acknowledgement, ns.
    pub min_echo: Option<u64>,
    /// Payload of a full segment.
    pub segment_size: u32,
    /// Bytes of data, each counted once.
    pub bytes: u64,
    /// Bytes that were acknowledged but are not in the capture.
    pub unseen: u64,
}

/// Losses of a direction, relative to the capture point.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Losses beyond the capture point, of data segments.
    pub beyond: Losses,
    /// Losses before the capture point: of all packets if the sender counts packets in the IP header,
    /// otherwise of data segments.
    pub before: Losses,
    /// True if `before` comes from the IP header.
    pub by_identification: bool,
}

impl Direction {
    /// Processes a segment of this direction. Returns the number of its bytes that are new.
    pub fn sent(&mut self, segment: &Segment, round_trip: Option<u64>) -> u64 {
        let start = self.unwrap(segment.seq) + u64::from(segment.syn);
        let end = start + u64::from(segment.len);
        let next = *self.next.get_or_insert(start);
        self.count_identification(segment, start, next);
        if segment.syn {
            self.next = Some(next.max(start));
            self.on_syn = (segment.len > 0).then_some(end);
            return 0;
        }
        // A keepalive or window probe repeats a byte, or sends none, on purpose.
        let probe = segment.len <= 1 && end <= next && !segment.fin;
        if segment.len == 0 || probe {
            return 0;
        }
        self.segment_size = self.segment_size.max(segment.len.min(9000));
        if start > next {
            self.open_hole(next, start, segment);
        } else if end <= next && !self.fill(start, end, segment, round_trip) || start < next && end > next {
            self.beyond.sent_again(start, end.min(next));
            self.timed = None;
        }
        self.beyond.seen(segment.at, start, end);
        self.by_sequence.seen(segment.at, start, end);
        let new = end.saturating_sub(next);
        if new > 0 {
            self.next = Some(end);
            self.bytes += new;
            if self.timed.is_none() {
                self.timed = Some((end, segment.at));
            }
        }
        new
    }

    /// Processes an acknowledgement of this direction, sent by the other end.
    pub fn acknowledged(&mut self, segment: &Segment) {
        let (Some(ack), Some(next)) = (segment.ack, self.next) else { return };
        let ack = near(ack, next);
        if let Some((start, end)) = segment.sack[0] {
            let (start, end) = (near(start, next), near(end, next));
            let inside_second =
                segment.sack[1].is_some_and(|(from, to)| near(from, next) <= start && end <= near(to, next));
            // RFC 2883: a first block below the acknowledgement, or inside the second block, is a duplicate.
            if start < end && (end <= ack || inside_second) {
                self.beyond.had_arrived(start, end);
            }
        }
        if let Some((end, at)) = self.timed.filter(|(end, _)| *end <= ack) {
            let echo = segment.at.saturating_sub(at);
            // An acknowledgement beyond the timed segment may have been delayed.
            if end == ack || self.min_echo.is_none() {
                self.min_echo = Some(self.min_echo.map_or(echo, |min| min.min(echo)));
            }
            self.timed = None;
        }
        if let Some(end) = self.on_syn.take_if(|end| *end <= ack && next < *end) {
            self.bytes += end - next;
            self.next = Some(end);
            return;
        }
        if ack > next + 1 && ack - next < 1 << 30 {
            // The other end has received data that the capture has missed.
            self.unseen += ack - next;
            self.next = Some(ack);
        }
        for hole in self.holes.extract_if(.., |hole| hole.end <= ack) {
            self.unseen += hole.end - hole.start;
            (hole.first..hole.first + hole.packets).for_each(|number| self.by_sequence.found(number));
        }
    }

    /// Returns the number of packets whose state, lost or delivered, may still change.
    pub fn open(&self) -> usize {
        self.beyond.open() + self.by_sequence.open() + self.by_identification.open()
    }

    /// Returns the losses. `shared` is true if this sender uses one counter of identifications for several
    /// connections.
    pub fn finish(self, shared: bool) -> Seen {
        let Identification { regular, irregular, .. } = self.identification;
        let by_identification = !shared && regular >= 3 && irregular * 20 <= regular;
        let before = if by_identification { self.by_identification } else { self.by_sequence };
        Seen { beyond: self.beyond.finish(), before: before.finish(), by_identification }
    }

    /// Returns the sequence number in 64 bits.
    fn unwrap(&self, seq: u32) -> u64 {
        self.next.map_or((1 << 32) + u64::from(seq), |next| near(seq, next))
    }

    fn packets_of(&self, bytes: u64) -> u64 {
        bytes.div_ceil(u64::from(self.segment_size.max(1))).clamp(1, u64::from(MAX_MISSING))
    }

    fn open_hole(&mut self, start: u64, end: u64, segment: &Segment) {
        let packets = self.packets_of(end - start);
        let numbers: Vec<u64> = (0..packets).map(|_| self.by_sequence.missing(segment.at)).collect();
        if self.holes.len() == MAX_HOLES {
            self.holes.remove(0);
        }
        let first = numbers.first().copied().unwrap_or_default();
        self.holes.push(Hole { start, end, at: segment.at, ts: segment.ts, first, packets });
    }

    /// Fills a gap with bytes that arrive late. Returns false if none of these bytes was missing.
    fn fill(&mut self, start: u64, end: u64, segment: &Segment, round_trip: Option<u64>) -> bool {
        let Some(index) = self.holes.iter().position(|hole| hole.start < end && start < hole.end) else {
            return false;
        };
        let hole = self.holes[index];
        let late = segment.at.saturating_sub(hole.at);
        let patience = round_trip.map_or(USUAL_REORDERING, |round_trip| round_trip / 2);
        // A retransmission carries a later timestamp; a reordered segment an earlier one or the same.
        let overtaken = match (hole.ts, segment.ts) {
            (Some(behind), Some(ts)) if behind != ts => behind.wrapping_sub(ts) < 1 << 31,
            _ => late < patience,
        };
        let filled = self.packets_of(end.min(hole.end) - start.max(hole.start)).min(hole.packets);
        if overtaken {
            (hole.first..hole.first + filled).for_each(|number| self.by_sequence.found(number));
        }
        self.holes.remove(index);
        let (mut first, mut left) = (hole.first + filled, hole.packets - filled);
        for (start, end) in [(hole.start, start), (end, hole.end)] {
            if start < end && left > 0 {
                let packets = self.packets_of(end - start).min(left);
                self.holes.push(Hole { start, end, first, packets, ..hole });
                (first, left) = (first + packets, left - packets);
            }
        }
        true
    }

    fn count_identification(&mut self, segment: &Segment, start: u64, next: u64) {
        let Some(id) = segment.ip_id else { return };
        let at = segment.at;
        // The identifications of SYN, SYN-ACK and RST are outside the sequence.
        if segment.syn || segment.rst {
            return;
        }
        let size = self.segment_size.max(segment.len.min(1460)).max(1);
        let packets = segment.len.div_ceil(size).max(1) as u16;
        // The first identification is unknown. Only the sequence numbers show losses before the first packet.
        let before_first = start.saturating_sub(next).div_ceil(u64::from(size)).min(u64::from(MAX_MISSING));
        let known = &mut self.identification;
        let ahead = known.next.map_or(before_first as i16, |expected| id.wrapping_sub(expected) as i16);
        match ahead {
            0 => known.regular += 1,
            1.. if ahead as u16 <= MAX_MISSING => {
                known.regular += 1;
                // If there was a pause and no sequence number is missing, the missing packets are the last of
                // the previous burst.
                let before = self.by_identification.last_at().unwrap_or(at);
                let tail = start <= next && at.saturating_sub(before) > BURST_GAP;
                let when = if tail { before } else { at };
                let first = self.by_identification.missing(when);
                for _ in 1..ahead {
                    self.by_identification.missing(when);
                }
                known.gap = Some((id.wrapping_sub(ahead as u16), first, ahead as u16));
            }
            _ => match known.gap {
                // The packet was only late.
                Some((first_id, first, missing)) if id.wrapping_sub(first_id) < missing => {
                    known.regular += 1;
                    self.by_identification.found(first + u64::from(id.wrapping_sub(first_id)));
                    return;
                }
                _ => known.irregular += 1,
            },
        }
        known.next = Some(id.wrapping_add(packets));
        self.by_identification.seen(at, start, start);
    }
}

/// Returns the number with these low 32 bits that is nearest to `to`.
pub(crate) fn near(value: u32, to: u64) -> u64 {
    let ahead = value.wrapping_sub(to as u32) as i32;
    to.saturating_add_signed(i64::from(ahead))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn segment(at_ms: u64, seq: u32, len: u32) -> Segment {
        Segment {
            at: at_ms * MS,
            source: "10.0.0.2:80".parse().unwrap(),
            destination: "10.0.0.1:4000".parse().unwrap(),
            ip_id: None,
            seq,
            ack: Some(1),
            syn: false,
            fin: false,
            rst: false,
            len,
            mss: None,
            ts: None,
            sack: [None; 2],
        }
    }

    fn ack(at_ms: u64, ack: u32, sack: Option<(u32, u32)>) -> Segment {
        Segment { ack: Some(ack), sack: [sack, None], ..segment(at_ms, 1, 0) }
    }

    #[test]
    fn retransmitted_segment_was_lost_unless_a_dsack_reports_it() {
        let mut direction = Direction::default();
        for (at, seq) in [(0, 0), (0, 1000), (0, 2000), (200, 2000)] {
            direction.sent(&segment(at, seq, 1000), None);
        }
        assert_eq!(direction.clone().finish(false).beyond.lost, 1);
        assert_eq!((direction.bytes, direction.min_echo), (3000, None));
        direction.acknowledged(&ack(300, 3000, Some((2000, 3000))));
        let seen = direction.finish(false);
        assert_eq!((seen.beyond.lost, seen.beyond.packets, seen.before.lost), (0, 4, 0));
    }

    #[test]
    fn gap_is_a_loss_only_if_filled_a_round_trip_later() {
        for (filled_at, lost) in [(100, 2), (1, 0)] {
            let mut direction = Direction::default();
            for (at, seq) in [(0, 0), (0, 3000), (filled_at, 1000), (filled_at, 2000)] {
                direction.sent(&segment(at, seq, 1000), Some(100 * MS));
            }
            let seen = direction.finish(false);
            assert_eq!((seen.before.lost, seen.beyond.lost), (lost, 0));
            assert_eq!((seen.before.packets, seen.before.burst() > 1.9), (6, lost == 2));
        }
    }

    #[test]
    fn timestamps_distinguish_late_from_lost_segments() {
        let at = |at, seq, ts| Segment { ts: Some(ts), ..segment(at, seq, 1000) };
        for (ts, lost) in [(7, 0), (9, 1)] {
            let mut direction = Direction::default();
            for s in [at(0, 0, 7), at(0, 2000, 8), at(3, 1000, ts)] {
                direction.sent(&s, None);
            }
            assert_eq!(direction.finish(false).before.lost, lost);
        }
    }

    #[test]
    fn packet_missed_by_the_capture_is_not_a_loss() {
        let mut direction = Direction::default();
        direction.sent(&segment(0, 0, 1000), None);
        direction.sent(&segment(0, 2000, 1000), None);
        direction.acknowledged(&ack(50, 5000, None));
        assert_eq!(direction.unseen, 3000);
        assert_eq!(direction.finish(false).before.lost, 0);
    }

    #[test]
    fn identifications_show_lost_tails_and_lost_acknowledgements() {
        let id = |at, seq, len, id| Segment { ip_id: Some(id), ..segment(at, seq, len) };
        let mut direction = Direction::default();
        // Packet 3, the last of its burst, is lost; packet 6 is a lost acknowledgement.
        for s in [
            id(0, 0, 1000, 1),
            id(0, 1000, 1000, 2),
            id(250, 2000, 1000, 4),
            id(300, 3000, 0, 5),
            id(400, 3000, 9, 7),
        ] {
            direction.sent(&s, None);
        }
        assert!(!direction.clone().finish(true).by_identification);
        let seen = direction.finish(false);
        assert!(seen.by_identification);
        assert_eq!((seen.before.lost, seen.before.packets), (2, 7));
    }

    #[test]
    fn loss_before_the_first_identification_shows_in_the_sequence() {
        let id = |at, seq, len, id| Segment { ip_id: Some(id), ..segment(at, seq, len) };
        let syn_ack = Segment { syn: true, ..id(0, 99, 0, 0) };
        let rest = [id(50, 2100, 1000, 302), id(51, 3100, 1000, 303), id(52, 4100, 1000, 304)];
        let again = [id(100, 100, 1000, 305), id(100, 1100, 1000, 306)];
        let finished = |then: &[Segment]| {
            let mut direction = Direction::default();
            for segment in [syn_ack].iter().chain(&rest).chain(then) {
                direction.sent(segment, None);
            }
            direction.finish(false)
        };
        let seen = finished(&again);
        assert_eq!((seen.by_identification, seen.before.lost, seen.before.packets), (true, 2, 7));
        // The packets were only reordered and arrive late.
        let late = [id(51, 100, 1000, 300), id(51, 1100, 1000, 301)];
        assert_eq!(finished(&late).before.lost, 0);
    }

    #[test]
    fn sequence_numbers_wrap() {
        let mut direction = Direction::default();
        for seq in [u32::MAX - 999, 0, 1000] {
            assert_eq!(direction.sent(&segment(0, seq, 1000), None), 1000);
        }
        direction.acknowledged(&ack(40, 2000, None));
        assert_eq!((direction.bytes, direction.finish(false).before.lost), (3000, 0));
    }
}
