//! The scoreboard: a record for each sent segment, updated by acknowledgements (RFC 2018, RFC 2883, RFC 6675
//! section 3).
//!
//! Records cover SND.UNA to SND.NXT without gaps, in the order of sequence numbers. Sacked, lost and
//! retransmitted segments are also in sets of ranges, and retransmitted ones in a list in order of
//! transmission. So an acknowledgement costs a binary search and the records that it changes, however much
//! data is outstanding. Only the scoreboard processes a raw DSACK: it knows the retransmissions and their
//! reasons, and returns the retransmission that caused the duplicate.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;

use brisk_wire::{SackBlocks, SeqNum};
use smallvec::SmallVec;

use crate::on_demand::{Initial, OnDemand};
use crate::outcome::{AckOutcome, Delivered, Dsack, Origin, Sent};
use crate::seq_ranges::{SeqRange, SeqRanges};
use crate::time::{Instant, Micros, TIMESTAMP_TICK};

mod lost;
mod sent_twice;

use sent_twice::SentTwice;

/// Maximum number of splits of records by SACK blocks. Beyond it, partial coverage is ignored. This bounds
/// the memory that a peer with strange blocks can occupy.
const MAX_SACK_SPLITS: u32 = 1024;

/// Record of one sent segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    /// Sequence range, including SYN and FIN. Never empty.
    pub(crate) range: SeqRange,
    /// Time of the last transmission.
    pub(crate) sent_at: Instant,
    /// Time of the first transmission.
    pub(crate) first_sent_at: Instant,
    /// Number of transmissions, without copies; at least 1.
    pub(crate) transmissions: u32,
    /// Reason of the last transmission.
    pub(crate) origin: Origin,
    /// True if SACK reports the segment.
    pub(crate) sacked: bool,
    /// True if the segment was declared lost and not retransmitted since. Never together with `sacked`.
    pub(crate) lost: bool,
    /// True if the segment was declared lost, retransmitted or not, and neither sacked nor restored since.
    pub(crate) missing: bool,
    /// True if the receiver reported the segment by SACK and reneged, or if a copy left later. Its
    /// acknowledgement then gives no round-trip sample.
    pub(crate) taken_back: bool,
    /// True if a copy left without an agreement. A delivery then does not show that the original was late.
    pub(crate) copied: bool,
    /// True for the SYN; such a record contains nothing else.
    pub(crate) syn: bool,
    /// True if the last sequence number is the FIN.
    pub(crate) fin: bool,
}

impl Record {
    pub(crate) fn payload(&self) -> u32 {
        self.range.len() - u32::from(self.syn) - u32::from(self.fin)
    }

    fn in_flight(&self) -> bool {
        !self.sacked && !self.lost
    }
}

/// Fields of an acknowledgement other than SEG.ACK and its SACK blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AckInfo {
    /// Arrival time.
    pub(crate) now: Instant,
    /// True if ECE is set and reports congestion.
    pub(crate) ece: bool,
    /// True if the segment changes SND.WND.
    pub(crate) window_changed: bool,
    /// SEG.LEN.
    pub(crate) len: u32,
    pub(crate) max_snd_wnd: u32,
    /// Time since the segment with the echoed timestamp was sent, if timestamps are in use.
    pub(crate) ts_echo_rtt: Option<Micros>,
}

/// The records of outstanding segments.
#[derive(Clone, Debug)]
pub(crate) struct Scoreboard {
    records: VecDeque<Record>,
    una: SeqNum,
    nxt: SeqNum,
    sack: bool,
    sacked_segments: u32,
    missing_segments: u32,
    dupacks: u32,
    tags: OnDemand<Tags>,
    reno: DupAcks,
    /// True if a controller needs the ranges that were marked lost.
    logs_losses: bool,
    /// True if the peer reports needless copies by DSACK.
    reports_copies: bool,
}

/// State of all records except originals in flight.
#[derive(Clone, PartialEq, Debug)]
struct Tags {
    sacked: SeqRanges,
    lost: SeqRanges,
    /// Ranges that are sacked, lost or were sent more than once.
    aside: SeqRanges,
    /// Retransmitted ranges, in the order of sending; an entry may remain after its range is acknowledged.
    resent: VecDeque<Resent>,
    sent_twice: VecDeque<SentTwice>,
    sack_splits: u32,
    /// Ranges marked lost, with the time of their last transmission.
    lost_log: Vec<(SeqRange, Instant)>,
}

impl Initial for Tags {
    const INITIAL: Tags = Tags {
        sacked: SeqRanges::new(),
        lost: SeqRanges::new(),
        aside: SeqRanges::new(),
        resent: VecDeque::new(),
        sent_twice: VecDeque::new(),
        sack_splits: 0,
        lost_log: Vec::new(),
    };
    const SHARED: &'static Tags = &Self::INITIAL;
}

/// Substitute for SACK on a connection without it: each duplicate acknowledgement shows that one segment
/// arrived, but not which (RFC 6582; DeliveredData of RFC 9937).
#[derive(Clone, Copy, Debug)]
struct DupAcks {
    /// Bytes counted by duplicate acknowledgements.
    arrived: u32,
    /// SND.NXT when the first loss of a recovery was declared. Until SND.UNA reaches it, an advance of
    /// SND.UNA does not clear `arrived`.
    recover: Option<SeqNum>,
    /// SND.NXT at the first duplicate since SND.UNA advanced, or at a later repair. Duplicates count only
    /// data below it, because data that is sent after a repair also arrives after it and causes no duplicate.
    announced_to: SeqNum,
    /// Size of a segment, bytes.
    mss: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Resent {
    at: Instant,
    range: SeqRange,
}

/// Candidates for a round-trip sample: the earliest transmissions that an acknowledgement covers. So the
/// sample includes the delay of the acknowledgement, as RFC 6298 requires.
#[derive(Default)]
struct Sample {
    cumulative: Option<Instant>,
    selective: Option<Instant>,
    retransmitted: bool,
    /// True if the acknowledgement covers a FIN that was sent twice. It may come from TIME-WAIT, where some
    /// hosts echo the timestamp of the first FIN (Linux).
    repeated_fin: bool,
}

impl Scoreboard {
    /// Frees memory that an idle sender does not need.
    pub(crate) fn release_memory(&mut self) {
        self.tags.release();
        self.records.shrink_to_fit();
    }

    /// Returns an empty scoreboard: SND.UNA = SND.NXT = `iss`.
    pub(crate) fn new(iss: SeqNum, sack: bool) -> Self {
        Scoreboard {
            records: VecDeque::new(),
            una: iss,
            nxt: iss,
            sack,
            sacked_segments: 0,
            missing_segments: 0,
            dupacks: 0,
            tags: OnDemand::new(),
            reno: DupAcks { arrived: 0, recover: None, announced_to: iss, mss: 536 },
            logs_losses: false,
            reports_copies: false,
        }
    }

    /// Records ranges marked lost for [`Scoreboard::take_lost_log`].
    pub(crate) fn log_losses(&mut self) {
        self.logs_losses = true;
    }

    /// Prepares for copies without an agreement. The peer reports such a copy by DSACK, if the original or a
    /// retransmission arrives too.
    pub(crate) fn expect_dsack_of_copies(&mut self) {
        self.reports_copies = true;
    }

    /// Returns and clears the ranges marked lost since the last call, unsorted, each with the time of its
    /// last transmission.
    pub(crate) fn take_lost_log(&mut self) -> Vec<(SeqRange, Instant)> {
        self.tags.get_mut().map(|tags| mem::take(&mut tags.lost_log)).unwrap_or_default()
    }

    /// Sets whether both ends use SACK, which is known after the handshake.
    pub(crate) fn set_sack(&mut self, sack: bool) {
        self.sack = sack;
    }

    pub(crate) fn una(&self) -> SeqNum {
        self.una
    }

    pub(crate) fn nxt(&self) -> SeqNum {
        self.nxt
    }

    /// Returns SND.NXT - SND.UNA, bytes including SYN and FIN.
    pub(crate) fn outstanding(&self) -> u32 {
        self.nxt.since(self.una)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the bytes in flight (RFC 6675 SetPipe): outstanding, not sacked, not lost. Without SACK, the
    /// bytes counted by duplicate acknowledgements are subtracted.
    pub(crate) fn pipe(&self) -> u32 {
        let tags = &*self.tags;
        let gone = tags.sacked.bytes() + tags.lost.bytes();
        self.outstanding().saturating_sub(gone).saturating_sub(self.reno.arrived)
    }

    /// True in three cases: outstanding data has arrived, according to SACK or, without it, to duplicate
    /// acknowledgements; the first segment was sent more than once; another segment in flight was
    /// retransmitted, other than by a probe.
    pub(crate) fn has_gaps(&self) -> bool {
        !self.tags.sacked.is_empty()
            || self.reno.arrived > 0
            || self.head().is_some_and(|head| head.transmissions > 1)
            || self.resent().any(|record| record.origin != Origin::TailLossProbe)
    }

    /// Returns the bytes that SACK reports and that are still outstanding.
    pub(crate) fn sacked_bytes(&self) -> u32 {
        self.tags.sacked.bytes()
    }

    /// Returns the number of segments that have arrived and are still outstanding, according to SACK or,
    /// without it, to duplicate acknowledgements.
    pub(crate) fn arrived_segments(&self) -> u32 {
        self.sacked_segments + self.reno.arrived / self.reno.mss.max(1)
    }

    /// Returns the number of segments that SACK reports and that are still outstanding.
    pub(crate) fn sacked_segments(&self) -> u32 {
        self.sacked_segments
    }

    /// True if SACK reports all of `range`.
    pub(crate) fn is_sacked(&self, range: &SeqRange) -> bool {
        !range.is_empty() && self.tags.sacked.covers(range)
    }

    /// True if these blocks report data that no acknowledgement has reported before.
    pub(crate) fn reports_new_data(&self, blocks: &SackBlocks) -> bool {
        let open = SeqRange::new(self.una, self.nxt);
        let is_new =
            |block: SeqRange| block.intersection(&open).is_some_and(|part| !self.tags.sacked.covers(&part));
        self.sack && blocks.iter().any(|block| is_new(SeqRange::new(block.start, block.end)))
    }

    pub(crate) fn segments(&self) -> u32 {
        self.records.len() as u32
    }

    /// Returns the bytes declared lost and not retransmitted.
    pub(crate) fn lost_bytes(&self) -> u32 {
        self.tags.lost.bytes()
    }

    /// True if data is declared lost and not retransmitted.
    pub(crate) fn has_lost(&self) -> bool {
        !self.tags.lost.is_empty()
    }

    /// Returns the number of segments that were declared lost and have not arrived, retransmitted or not.
    pub(crate) fn missing_segments(&self) -> u32 {
        self.missing_segments
    }

    /// Returns the sequence number after the highest one that SACK reports.
    pub(crate) fn highest_sacked(&self) -> Option<SeqNum> {
        self.tags.sacked.last().map(|range| range.end)
    }

    /// Returns the number of duplicate acknowledgements in a row (RFC 5681).
    pub(crate) fn dupacks(&self) -> u32 {
        self.dupacks
    }

    pub(crate) fn head(&self) -> Option<&Record> {
        self.records.front()
    }

    pub(crate) fn tail(&self) -> Option<&Record> {
        self.records.back()
    }

    /// Iterates over all records in sequence order.
    pub(crate) fn records(&self) -> impl DoubleEndedIterator<Item = &Record> + ExactSizeIterator {
        self.records.iter()
    }

    /// Iterates over the records that are neither sacked nor lost, in sequence order. Skips runs of others.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = &Record> {
        let mut index = 0;
        core::iter::from_fn(move || {
            loop {
                let record = self.records.get(index)?;
                let others = if record.sacked { &self.tags.sacked } else { &self.tags.lost };
                if record.in_flight() {
                    index += 1;
                    return Some(record);
                }
                let run = others.range_at(record.range.start).map_or(record.range.end, |run| run.end);
                index = self.index_of(run).max(index + 1);
            }
        })
    }

    /// Iterates over the records in flight that were sent once. They are in sequence order, which is also the
    /// order of transmission.
    pub(crate) fn originals(&self) -> impl Iterator<Item = &Record> {
        let mut index = 0;
        core::iter::from_fn(move || {
            let record = self.records.get(index)?;
            let record = match self.tags.aside.range_at(record.range.start) {
                None => record,
                Some(run) => {
                    index = self.index_of(run.end);
                    self.records.get(index)?
                }
            };
            index += 1;
            Some(record)
        })
    }

    /// True if a record that was sent more than once may be in flight.
    pub(crate) fn has_resent(&self) -> bool {
        !self.tags.resent.is_empty()
    }

    /// Iterates over the records in flight that were sent more than once, in the order of their last
    /// transmission.
    pub(crate) fn resent(&self) -> impl Iterator<Item = &Record> {
        self.tags.resent.iter().flat_map(|resent| self.records_of(resent))
    }

    fn records_of(&self, resent: &Resent) -> impl Iterator<Item = &Record> {
        let at = resent.at;
        let range = resent.range.intersection(&SeqRange::new(self.una, self.nxt));
        let (from, to) = range.map_or((0, 0), |range| (self.index_of(range.start), self.index_of(range.end)));
        let records = self.records.range(from..to.max(from));
        records.filter(move |record| record.in_flight() && record.transmissions > 1 && record.sent_at == at)
    }

    /// Records a transmission. New data gets a record per segment; the records of repeated data are updated.
    /// Acknowledgements and parity leave no record. A copy of data is only logged for DSACK: it changes
    /// neither the bytes in flight nor the time of transmission.
    pub(crate) fn on_sent(&mut self, sent: &Sent) {
        let Some(of) = sent.origin.dsack_of() else { return };
        let again = SeqRange::new(sent.range.start, sent.range.end.min(self.nxt));
        if !again.is_empty() {
            self.log_sent_twice(again, of);
        }
        // The copy of a SYN may differ from the SYN, so it counts as a retransmission (Karn).
        if sent.origin == Origin::Duplicate && !sent.syn {
            if self.reports_copies {
                self.mark_copied(sent);
            }
            return;
        }
        if !again.is_empty() {
            self.resend(again, sent);
        }
        if sent.syn {
            // A handshake may be repeated for minutes without an acknowledgement that removes entries.
            self.forget_resent();
        }
        if self.nxt.lt(sent.range.end) {
            self.append(sent);
        }
    }

    /// Marks the segments of a copy that left without an agreement. A copy that leaves later than its
    /// original makes the round-trip time ambiguous.
    fn mark_copied(&mut self, copy: &Sent) {
        for index in self.cut_out(copy.range) {
            let Some(record) = self.records.get_mut(index) else { break };
            record.copied = true;
            record.taken_back |= Micros::between(record.sent_at, copy.at) > TIMESTAMP_TICK;
        }
    }

    fn append(&mut self, sent: &Sent) {
        let mut record = Record {
            range: SeqRange::default(),
            sent_at: sent.at,
            first_sent_at: sent.at,
            transmissions: 1,
            origin: sent.origin,
            sacked: false,
            lost: false,
            missing: false,
            taken_back: false,
            copied: false,
            syn: sent.syn,
            fin: false,
        };
        if record.syn {
            record.range = SeqRange::with_len(self.nxt, 1);
            self.nxt = record.range.end;
            self.records.push_back(record);
            record.syn = false;
        }
        let mut left = sent.range.end.since(self.nxt);
        if sent.segment_size > 0 && left > u32::from(sent.fin) {
            self.reno.mss = sent.segment_size;
        }
        while left > 0 {
            let chunk = if sent.segment_size == 0 { left } else { left.min(sent.segment_size) };
            // The FIN is part of the last segment, not a segment of its own.
            record.fin = sent.fin && left - chunk <= 1;
            let len = if record.fin { left } else { chunk };
            record.range = SeqRange::with_len(self.nxt, len);
            self.nxt = record.range.end;
            self.records.push_back(record);
            left -= len;
        }
    }

    fn resend(&mut self, range: SeqRange, sent: &Sent) {
        for index in self.cut_out(range) {
            let Some(record) = self.records.get_mut(index) else { break };
            record.sent_at = sent.at;
            record.transmissions = record.transmissions.saturating_add(1);
            record.origin = sent.origin;
            record.lost = false;
        }
        self.tags.lost.remove(range);
        let Some(range) = range.intersection(&SeqRange::new(self.una, self.nxt)) else { return };
        self.tags.aside.insert(range);
        match self.tags.resent.back_mut() {
            Some(last) if last.at == sent.at && last.range.end == range.start => last.range.end = range.end,
            Some(_) | None => self.tags.resent.push_back(Resent { at: sent.at, range }),
        }
    }

    /// Processes an acknowledgement: SEG.ACK, the SACK blocks, and the other fields in `info`. The connection
    /// has validated SEG.ACK; values outside [SND.UNA, SND.NXT] change nothing here.
    pub(crate) fn on_ack(&mut self, ack: SeqNum, sack: &SackBlocks, info: AckInfo) -> AckOutcome {
        let duplicate = ack == self.una && !self.is_empty() && info.len == 0 && !info.window_changed;
        let mut outcome = AckOutcome {
            at: info.now,
            ack,
            una_before: self.una,
            advanced: 0,
            newly_sacked: 0,
            delivered_bytes: 0,
            delivered_segments: 0,
            delivered: SmallVec::new(),
            pipe_before: self.pipe(),
            undelivered_before: (self.outstanding() - self.tags.sacked.bytes())
                .saturating_sub(self.reno.arrived),
            rtt: None,
            echoed_rtt: info.ts_echo_rtt,
            dsack: None,
            duplicate,
            bare: info.len == 0 && !info.window_changed,
            ece: info.ece,
            reneged: false,
            repaired: false,
            reports_repair: false,
        };
        let mut sample = Sample::default();
        let repeats_sacked = self.sack && !sack.is_empty() && self.repeats_sacked(ack, sack);
        if self.una.lt(ack) && ack.le(self.nxt) {
            self.take_cumulative(ack, &mut outcome, &mut sample);
        }
        if self.sack {
            if !sack.is_empty() {
                self.take_blocks(sack, &info, &mut outcome, &mut sample);
                if let Some(dsack) = &mut outcome.dsack {
                    dsack.reported_before = repeats_sacked;
                }
            }
            outcome.reneged = outcome.advanced > 0 && self.head().is_some_and(|head| head.sacked);
        }
        outcome.delivered_segments = outcome.delivered.len() as u32;
        self.count_duplicate(&mut outcome);
        self.forget_resent();
        // Segments that were sent once are acknowledged in the order in which they were sent.
        if sample.retransmitted || !sack.is_empty() {
            let una_before = outcome.una_before;
            outcome
                .delivered
                .sort_unstable_by_key(|segment| (segment.sent_at, segment.range.start.since(una_before)));
        }
        outcome.rtt = sample.rtt(&info, outcome.advanced > 0);
        outcome
    }

    /// Removes the oldest entries of retransmissions that are no longer in flight.
    #[inline]
    fn forget_resent(&mut self) {
        // Usually there are none.
        if self.tags.resent.capacity() > 0 {
            self.strike_out_resent();
        }
    }

    fn strike_out_resent(&mut self) {
        while let Some(oldest) = self.tags.resent.front() {
            if self.records_of(oldest).next().is_some() {
                return;
            }
            self.tags.resent.pop_front();
        }
        if self.is_empty() {
            self.tags.resent = VecDeque::new();
        }
    }

    /// Removes data from `to` on, as if it had never left. `to` is between SND.UNA and SND.NXT. Only for data
    /// of a SYN that is neither sacked nor lost nor sent twice.
    pub(crate) fn rewind(&mut self, to: SeqNum) {
        if self.una.le(to) && to.lt(self.nxt) {
            let kept = self.cut(to);
            self.records.truncate(kept);
            self.nxt = to;
        }
    }

    fn take_cumulative(&mut self, ack: SeqNum, outcome: &mut AckOutcome, sample: &mut Sample) {
        while let Some(record) = self.records.pop_front_if(|record| record.range.end.le(ack)) {
            self.deliver(record, outcome, sample);
        }
        if let Some(head) = self.records.front_mut().filter(|head| head.range.start.lt(ack)) {
            let (before, after) = head.split(ack);
            *head = after;
            self.sacked_segments += u32::from(before.sacked);
            self.missing_segments += u32::from(before.missing);
            self.deliver(before, outcome, sample);
        }
        outcome.advanced = ack.since(self.una);
        self.una = ack;
        if let Some(tags) = self.tags.get_mut() {
            tags.sacked.remove_before(ack);
            tags.lost.remove_before(ack);
            tags.aside.remove_before(ack);
            if tags.sacked.is_empty() {
                tags.sack_splits = 0;
            }
        }
    }

    /// Accounts for an acknowledged segment whose record was removed.
    #[inline]
    fn deliver(&mut self, record: Record, outcome: &mut AckOutcome, sample: &mut Sample) {
        if record.transmissions > 1 || record.taken_back {
            sample.retransmitted = true;
            sample.repeated_fin |= record.fin;
        } else if !record.sacked {
            sample.cumulative.get_or_insert(record.sent_at);
        }
        self.missing_segments -= u32::from(record.missing);
        if record.sacked {
            self.sacked_segments -= 1;
        } else {
            outcome.delivered_bytes += record.range.len();
            outcome.delivered.push(record.delivered());
        }
    }

    fn take_blocks(
        &mut self,
        blocks: &SackBlocks,
        info: &AckInfo,
        outcome: &mut AckOutcome,
        sample: &mut Sample,
    ) {
        // SACK blocks outside [SND.UNA - MAX.SND.WND, SND.NXT] are ignored, because some middleboxes
        // translate sequence numbers but not SACK blocks.
        let believable = SeqRange::new(outcome.una_before - info.max_snd_wnd.min(1 << 30), self.nxt);
        let ranges: SmallVec<[SeqRange; 4]> =
            blocks.iter().map(|block| SeqRange::new(block.start, block.end)).collect();
        let duplicate = dsack_range(&ranges, outcome.ack);
        // A block that ends after SND.NXT reports data that was never sent.
        let is_believable = ranges.first().is_some_and(|first| believable.covers(first));
        outcome.dsack = duplicate.filter(|_| is_believable).map(|range| {
            let (of, sent_twice) = self.take_sent_twice(range);
            Dsack { range, of, sent_twice, reported_before: false }
        });
        let skip = usize::from(duplicate.is_some());
        // A block at SND.UNA is ignored: the acknowledgement number would have covered it (Linux: the same).
        let una = self.una;
        let is_possible = |range: &&SeqRange| believable.covers(range) && range.start.gt(una);
        for range in ranges.iter().skip(skip).filter(is_possible) {
            let Some(above) = range.intersection(&SeqRange::new(self.una, self.nxt)) else { continue };
            let unreported: SmallVec<[SeqRange; 4]> = self.tags.sacked.gaps(above).collect();
            for gap in unreported {
                self.mark_sacked(gap, outcome, sample);
            }
        }
    }

    /// True if the first block repeats a segment that is outstanding, already reported, and sent twice. Call
    /// it before the acknowledgement is processed.
    fn repeats_sacked(&self, ack: SeqNum, blocks: &SackBlocks) -> bool {
        let ranges: SmallVec<[SeqRange; 4]> =
            blocks.iter().map(|block| SeqRange::new(block.start, block.end)).collect();
        let start = dsack_range(&ranges, ack).map(|range| range.start);
        let start = start.filter(|start| self.una.le(*start) && start.lt(self.nxt));
        let record = start.and_then(|start| self.records.get(self.index_of(start)));
        record.is_some_and(|record| record.sacked && record.transmissions > 1)
    }

    /// Marks the segments in `gap`, none of which is sacked yet.
    fn mark_sacked(&mut self, gap: SeqRange, outcome: &mut AckOutcome, sample: &mut Sample) {
        let from = self.sack_cut(gap.start, true);
        let to = self.sack_cut(gap.end, false);
        let mut run: Option<SeqRange> = None;
        for record in self.records.range_mut(from..to.max(from)) {
            record.sacked = true;
            record.lost = false;
            self.missing_segments -= u32::from(mem::take(&mut record.missing));
            self.sacked_segments += 1;
            if record.transmissions == 1 && !record.taken_back {
                let earliest = sample.selective.map_or(record.sent_at, |at| at.min(record.sent_at));
                sample.selective = Some(earliest);
            }
            outcome.newly_sacked += record.range.len();
            outcome.delivered_bytes += record.range.len();
            outcome.delivered.push(record.delivered());
            run = Some(SeqRange::new(run.map_or(record.range.start, |run| run.start), record.range.end));
        }
        if let Some(run) = run {
            self.tags.sacked.insert(run);
            self.tags.aside.insert(run);
            self.tags.lost.remove(run);
        }
    }

    /// Returns the index of the first record that starts at or after `seq`, which is the start (`round_up`)
    /// or the end of a SACK block. Splits a record that contains `seq`. At the limit of splits the block
    /// leaves such a record out. Then the result is the index after it for the start of a block, and its own
    /// index for the end.
    fn sack_cut(&mut self, seq: SeqNum, round_up: bool) -> usize {
        let index = self.index_of(seq);
        match self.records.get(index) {
            Some(record) if record.range.start.lt(seq) => {
                if self.tags.sack_splits < MAX_SACK_SPLITS {
                    self.tags.sack_splits += 1;
                    self.cut(seq)
                } else {
                    index + usize::from(round_up)
                }
            }
            Some(_) | None => index,
        }
    }

    /// Counts duplicate acknowledgements (RFC 5681) and, without SACK, the segments that they announce.
    fn count_duplicate(&mut self, outcome: &mut AckOutcome) {
        if outcome.duplicate {
            self.dupacks = self.dupacks.saturating_add(1);
        } else if outcome.advanced > 0 {
            self.dupacks = 0;
        }
        if self.sack {
            return;
        }
        let head = self.head().map_or(0, |head| head.range.len());
        if outcome.duplicate {
            if self.dupacks == 1 {
                self.reno.announced_to = self.nxt;
            }
            // The hole itself has not arrived, nor has the data that was declared lost, retransmitted or not.
            // RFC 5681 section 3.2 step 4 permits the sender to limit the inflation by duplicates to the
            // outstanding data. Without the limit, a receiver that repeats its acknowledgement would get new
            // data until its window is full.
            let holes = self.missing_segments.saturating_mul(self.reno.mss).max(head);
            let max = self.reno.announced_to.since(self.una).saturating_sub(holes);
            let arrived = self.reno.arrived.saturating_add(self.reno.mss).min(max.max(self.reno.arrived));
            outcome.delivered_bytes += arrived - self.reno.arrived;
            outcome.delivered_segments += (arrived - self.reno.arrived).div_ceil(self.reno.mss);
            self.reno.arrived = arrived;
        } else if outcome.advanced > 0 {
            // DeliveredData of RFC 9937: bytes counted by duplicates are not delivered twice. One segment of
            // the advance filled the hole; duplicates had announced the others.
            let announced = outcome.advanced.saturating_sub(self.reno.mss).min(self.reno.arrived);
            outcome.delivered_bytes = outcome.advanced - announced;
            let others = outcome.delivered_segments.saturating_sub(announced.div_ceil(self.reno.mss));
            outcome.delivered_segments = others.max(1);
            self.reno.arrived -= announced;
            if self.reno.recover.is_none_or(|recover| self.una.ge(recover)) {
                self.reno.recover = None;
                self.reno.arrived = 0;
            }
            // The segment at the new hole has not arrived (Linux: tcp_limit_reno_sacked).
            self.reno.arrived = self.reno.arrived.min(self.outstanding().saturating_sub(head));
        }
    }

    /// Splits segments that are longer than the reduced payload `mss`. They can only be sent again in parts.
    pub(crate) fn resplit(&mut self, mss: u32) {
        let mss = mss.max(1);
        self.reno.mss = self.reno.mss.min(mss);
        if self.records.iter().all(|record| record.payload() <= mss) {
            return;
        }
        let records = mem::take(&mut self.records);
        for record in records {
            let mut rest = record;
            while rest.payload() > mss {
                let (piece, behind) = rest.split(rest.range.start + mss);
                self.sacked_segments += u32::from(piece.sacked);
                self.missing_segments += u32::from(piece.missing);
                self.records.push_back(piece);
                rest = behind;
            }
            self.records.push_back(rest);
        }
    }

    /// Returns the index of the record that contains `seq`; the number of records if none does. `seq` is in
    /// [SND.UNA, SND.NXT].
    fn index_of(&self, seq: SeqNum) -> usize {
        let offset = seq.since(self.una);
        self.records.partition_point(|record| record.range.end.since(self.una) <= offset)
    }

    /// Makes `seq` a boundary between records. Returns the index of the record that starts there.
    fn cut(&mut self, seq: SeqNum) -> usize {
        let index = self.index_of(seq);
        let Some(record) = self.records.get_mut(index).filter(|record| record.range.start.lt(seq)) else {
            return index;
        };
        let (before, after) = record.split(seq);
        *record = before;
        self.sacked_segments += u32::from(after.sacked);
        self.missing_segments += u32::from(after.missing);
        self.records.insert(index + 1, after);
        index + 1
    }

    /// Splits records at the ends of `range`; returns the indices of the records inside.
    fn cut_out(&mut self, range: SeqRange) -> core::ops::Range<usize> {
        match range.intersection(&SeqRange::new(self.una, self.nxt)) {
            Some(range) => {
                let from = self.cut(range.start);
                from..self.cut(range.end)
            }
            None => 0..0,
        }
    }
}

impl Record {
    fn delivered(&self) -> Delivered {
        Delivered {
            range: self.range,
            sent_at: self.sent_at,
            retransmitted: self.transmissions > 1 || self.taken_back,
            copied: self.copied,
            origin: self.origin,
        }
    }

    /// Returns the parts before and from `seq`, which is inside.
    fn split(&self, seq: SeqNum) -> (Record, Record) {
        let before = Record { range: SeqRange::new(self.range.start, seq), fin: false, ..*self };
        let after = Record { range: SeqRange::new(seq, self.range.end), syn: false, ..*self };
        (before, after)
    }
}

impl Sample {
    /// Returns the sample that Karn's rule permits. It is from the cumulatively acknowledged data if none of
    /// it was sent twice, otherwise from SACK, otherwise from the timestamps.
    fn rtt(&self, info: &AckInfo, advanced: bool) -> Option<Micros> {
        let cumulative = self.cumulative.filter(|_| !self.retransmitted);
        match cumulative.or(self.selective) {
            Some(sent_at) => Some(Micros::between(sent_at, info.now)),
            None => info.ts_echo_rtt.filter(|_| advanced && !self.repeated_fin),
        }
    }
}

/// Returns the duplicate that the blocks report. RFC 2883 section 4: the first block is a duplicate if it
/// begins below SEG.ACK or if the second block contains it.
fn dsack_range(blocks: &[SeqRange], ack: SeqNum) -> Option<SeqRange> {
    let first = blocks.first().filter(|first| !first.is_empty())?;
    if first.start.lt(ack) {
        return Some(SeqRange::new(first.start, first.end.min(ack)));
    }
    blocks.get(1).filter(|second| second.covers(first)).map(|_| *first)
}

#[cfg(test)]
mod tests;
