//! Data that is declared lost, and the part that is retransmitted next.

use alloc::vec::Vec;
use core::mem;

use super::{Resent, Scoreboard};
use crate::seq_ranges::SeqRange;

impl Scoreboard {
    /// Declares lost the segments of `range` that are in flight. Returns the bytes newly declared lost.
    pub(crate) fn mark_lost(&mut self, range: SeqRange) -> u32 {
        let mut newly = 0;
        for index in self.cut_out(range) {
            let Some(record) = self.records.get_mut(index) else { break };
            if record.in_flight() {
                record.lost = true;
                if self.logs_losses {
                    self.tags.lost_log.push((record.range, record.sent_at));
                }
                self.missing_segments += u32::from(!mem::replace(&mut record.missing, true));
                newly += self.tags.lost.insert(record.range);
                self.tags.aside.insert(record.range);
            }
        }
        newly
    }

    /// Declares lost all segments that are not sacked, because nothing else is known after a timeout. Returns
    /// the number of bytes newly declared lost.
    pub(crate) fn mark_all_lost(&mut self) -> u32 {
        // After a timeout the count of duplicates starts again with each advance of SND.UNA (Linux:
        // tcp_process_loss).
        (self.reno.arrived, self.reno.recover, self.reno.announced_to) = (0, None, self.nxt);
        self.mark_lost(SeqRange::new(self.una, self.nxt))
    }

    /// Begins or continues a repair without SACK. Later duplicates only announce data outstanding now.
    fn begin_reno_recovery(&mut self) {
        self.reno.recover.get_or_insert(self.nxt);
        self.reno.announced_to = self.nxt;
    }

    /// Declares the first segment lost, at most `mss` bytes of payload. Used for fast retransmit and partial
    /// acknowledgements on a connection without SACK (RFC 6582). Returns the bytes newly declared lost.
    pub(crate) fn mark_head_lost(&mut self, mss: u32) -> u32 {
        self.begin_reno_recovery();
        let Some(head) = self.head() else { return 0 };
        let len = if head.payload() <= mss { head.range.len() } else { mss.max(1) };
        self.mark_lost(SeqRange::with_len(self.una, len))
    }

    /// Undoes every declaration of loss, because the reduction was a mistake. Returns the bytes that are in
    /// flight again.
    pub(crate) fn unmark_lost(&mut self) -> u32 {
        let lost = mem::take(&mut self.tags.lost);
        // No recovery is left in which duplicates would count.
        self.reno.recover = None;
        if mem::take(&mut self.missing_segments) > 0 {
            self.records.iter_mut().for_each(|record| record.missing = false);
        }
        for range in lost.iter() {
            let (from, to) = (self.index_of(range.start), self.index_of(range.end));
            for record in self.records.range_mut(from..to.max(from)) {
                record.lost = false;
                if record.transmissions == 1 {
                    self.tags.aside.remove(record.range);
                }
            }
        }
        self.list_resent();
        lost.bytes()
    }

    /// Clears all SACK marks, because the receiver reneged (RFC 2018 section 8).
    pub(crate) fn clear_sacked(&mut self) {
        for record in self.records.iter_mut().filter(|record| record.sacked) {
            (record.sacked, record.taken_back) = (false, true);
            if record.transmissions == 1 {
                self.tags.aside.remove(record.range);
            }
        }
        self.tags.sacked.clear();
        self.sacked_segments = 0;
        self.tags.sack_splits = 0;
        self.list_resent();
    }

    /// Rebuilds the list of retransmissions after records were restored to flight.
    fn list_resent(&mut self) {
        let again = self.records.iter().filter(|record| record.in_flight() && record.transmissions > 1);
        let mut resent: Vec<Resent> =
            again.map(|record| Resent { at: record.sent_at, range: record.range }).collect();
        resent.sort_by_key(|resent| resent.at);
        self.tags.resent = resent.into();
    }

    /// Returns the next range to retransmit. It has the first lost segment, and the lost segments directly
    /// after it while their payload fits into `max_len` bytes. A longer segment is cut. A SYN is alone; a FIN
    /// does not count towards `max_len`.
    pub(crate) fn next_lost(&self, max_len: u32) -> Option<SeqRange> {
        let start = self.tags.lost.first()?.start;
        let first = self.records.get(self.index_of(start)).filter(|_| max_len > 0)?;
        if first.payload() > max_len {
            return Some(SeqRange::with_len(start, max_len));
        }
        let mut range = first.range;
        let mut payload = first.payload();
        // A FIN after a full segment is sent alone (Linux joins later data only to a segment below
        // `max_len`).
        if !first.syn && payload < max_len {
            for record in self.records.range(self.index_of(range.end)..) {
                payload = payload.saturating_add(record.payload());
                if !record.lost || payload > max_len {
                    break;
                }
                range.end = record.range.end;
            }
        }
        Some(range)
    }
}
