//! Log of data that was sent twice. It shows the cause of a reported duplicate (RFC 2883).

use super::Scoreboard;
use crate::outcome::DsackOf;
use crate::seq_ranges::SeqRange;

/// Limit of entries in the log; one more replaces the oldest.
pub(super) const MAX_SENT_TWICE: usize = 128;

/// A range that was sent again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SentTwice {
    range: SeqRange,
    of: DsackOf,
}

impl Scoreboard {
    pub(super) fn log_sent_twice(&mut self, range: SeqRange, of: DsackOf) {
        if let Some(last) = self.tags.sent_twice.back_mut()
            && last.of == of
            && last.range.end == range.start
        {
            last.range.end = range.end;
            return;
        }
        if self.tags.sent_twice.len() == MAX_SENT_TWICE {
            self.tags.sent_twice.pop_front();
        }
        self.tags.sent_twice.push_back(SentTwice { range, of });
    }

    /// Returns the cause of the duplicate `range`, and how many of its bytes the log has with the same kind
    /// of cause. There are two kinds: copies, and all others. The cause is the earliest transmission in the
    /// log that overlaps the range. If the peer knows copies, it drops them silently. Then the cause is a
    /// copy only if nothing else was sent again. One transmission of each byte is removed from the log,
    /// because each causes only one duplicate. So copied bytes next to retransmitted ones are removed and
    /// not counted: only retransmitted bytes may show that a recovery was a mistake.
    pub(super) fn take_sent_twice(&mut self, range: SeqRange) -> (DsackOf, u32) {
        let overlaps = |entry: &SentTwice| entry.range.intersection(&range).is_some();
        let is_first = |of| self.reports_copies || of != DsackOf::Duplicate;
        let again = |entry: &SentTwice| is_first(entry.of) && overlaps(entry);
        let log = &self.tags.sent_twice;
        let found = log.iter().position(again).or_else(|| log.iter().position(overlaps));
        let Some(entry) = found.and_then(|index| self.tags.sent_twice.remove(index)) else {
            return (DsackOf::NeverSentTwice, 0);
        };
        let index = found.unwrap_or(0);
        let common = SeqRange::new(range.start.max(entry.range.start), range.end.min(entry.range.end));
        let before = SeqRange::new(entry.range.start, common.start);
        let after = SeqRange::new(common.end, entry.range.end);
        for rest in [after, before].into_iter().filter(|rest| !rest.is_empty()) {
            if self.tags.sent_twice.len() < MAX_SENT_TWICE {
                self.tags.sent_twice.insert(index, SentTwice { range: rest, of: entry.of });
            }
        }
        let mut bytes = common.len();
        let others = [SeqRange::new(range.start, common.start), SeqRange::new(common.end, range.end)];
        for other in others.into_iter().filter(|other| !other.is_empty()) {
            let (of, more) = self.take_sent_twice(other);
            if (of == DsackOf::Duplicate) == (entry.of == DsackOf::Duplicate) {
                bytes += more;
            }
        }
        (entry.of, bytes)
    }
}
