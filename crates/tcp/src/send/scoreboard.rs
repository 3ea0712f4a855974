//! The scoreboard: a record per sent segment, and what acknowledgements say of it (RFC 2018,
//! RFC 2883, RFC 6675 section 3).
//!
//! Records lie back to back from SND.UNA to SND.NXT, ordered by sequence number. What is sacked, what
//! is lost and what was sent again is kept a second time, as sets of ranges and in order of
//! transmission, so that an acknowledgement costs what it newly touches plus a binary search, whatever
//! is outstanding. It is the only place that sees a raw
//! DSACK: it knows what was sent twice and why, and tells the others whose duplicate it was.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;

use brisk_wire::{SackBlocks, SeqNum};
use smallvec::SmallVec;

use crate::outcome::{AckOutcome, Delivered, Dsack, DsackOf, Origin, Sent};
use crate::seq_ranges::{SeqRange, SeqRanges};
use crate::time::{Duration, Instant};

/// Entries in the log of what was sent twice; beyond it the oldest is forgotten.
const MAX_SENT_TWICE: usize = 128;
/// Records that SACK blocks may cut in two before partial coverage is ignored: bounds the memory
/// that a peer with strange blocks can claim.
const MAX_SACK_SPLITS: u32 = 1024;

/// What is known of one sent segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    /// Its sequence range, SYN and FIN included. Never empty.
    pub(crate) range: SeqRange,
    /// When it was last sent.
    pub(crate) sent_at: Instant,
    /// When it was sent for the first time.
    pub(crate) first_sent_at: Instant,
    /// How often it was sent, copies not counted; at least 1.
    pub(crate) transmissions: u32,
    /// Why it was last sent.
    pub(crate) origin: Origin,
    /// Reported by SACK.
    pub(crate) sacked: bool,
    /// Declared lost and not sent again since. Never together with `sacked`.
    pub(crate) lost: bool,
    /// It is the SYN; such a record holds nothing else.
    pub(crate) syn: bool,
    /// Its last sequence number is the FIN.
    pub(crate) fin: bool,
}

impl Record {
    /// Payload bytes.
    pub(crate) fn payload(&self) -> u32 {
        self.range.len() - u32::from(self.syn) - u32::from(self.fin)
    }

    fn in_flight(&self) -> bool {
        !self.sacked && !self.lost
    }
}

/// What an acknowledgement says beside SEG.ACK and its SACK blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AckInfo {
    /// Arrival time.
    pub(crate) now: Instant,
    /// ECE is set and means congestion.
    pub(crate) ece: bool,
    /// The segment changes SND.WND.
    pub(crate) window_changed: bool,
    /// SEG.LEN.
    pub(crate) len: u32,
    /// MAX.SND.WND, bytes.
    pub(crate) max_snd_wnd: u32,
    /// Time since the segment was sent whose timestamp is echoed, if timestamps are in use.
    pub(crate) ts_echo_rtt: Option<Duration>,
}

/// The records of what is outstanding.
#[derive(Clone, Debug)]
pub(crate) struct Scoreboard {
    records: VecDeque<Record>,
    una: SeqNum,
    nxt: SeqNum,
    sack: bool,
    sacked: SeqRanges,
    lost: SeqRanges,
    /// Everything but originals in flight: what is sacked, lost or was sent more than once.
    aside: SeqRanges,
    /// What was sent again, in the order in which it was; entries outlive what they speak of.
    resent: VecDeque<Resent>,
    sacked_segments: u32,
    sack_splits: u32,
    sent_twice: VecDeque<SentTwice>,
    dupacks: u32,
    reno: Reno,
    buffer: Vec<Delivered>,
}

/// What stands in for SACK on a connection without it: each duplicate acknowledgement says that one
/// segment arrived, though not which (RFC 6582; DeliveredData of RFC 9937).
#[derive(Clone, Copy, Debug)]
struct Reno {
    /// Bytes that duplicate acknowledgements account for.
    arrived: u32,
    /// SND.NXT when loss was last declared: until SND.UNA is there, `arrived` outlives an advance.
    recover: Option<SeqNum>,
    /// SND.NXT at the first duplicate since SND.UNA advanced, or at the last repair: what was sent later
    /// arrives later than the repair, so no duplicate can speak of it.
    announced_to: SeqNum,
    /// Size of a segment, bytes.
    mss: u32,
}

/// A range that was sent once more.
#[derive(Clone, Copy, Debug)]
struct SentTwice {
    range: SeqRange,
    of: DsackOf,
}

/// A transmission of what had been sent before.
#[derive(Clone, Copy, Debug)]
struct Resent {
    at: Instant,
    range: SeqRange,
}

/// Candidates for a round-trip sample; the earliest transmissions, so that a delayed acknowledgement
/// is part of the sample as RFC 6298 wants it.
#[derive(Default)]
struct Sample {
    cumulative: Option<Instant>,
    selective: Option<Instant>,
    retransmitted: bool,
}

impl Scoreboard {
    /// An empty scoreboard: SND.UNA = SND.NXT = `iss`.
    pub(crate) fn new(iss: SeqNum, sack: bool) -> Self {
        Scoreboard {
            records: VecDeque::new(),
            una: iss,
            nxt: iss,
            sack,
            sacked: SeqRanges::new(),
            lost: SeqRanges::new(),
            aside: SeqRanges::new(),
            resent: VecDeque::new(),
            sacked_segments: 0,
            sack_splits: 0,
            sent_twice: VecDeque::new(),
            dupacks: 0,
            reno: Reno { arrived: 0, recover: None, announced_to: iss, mss: 536 },
            buffer: Vec::new(),
        }
    }

    /// Whether both ends use SACK; known after the handshake.
    pub(crate) fn set_sack(&mut self, sack: bool) {
        self.sack = sack;
    }

    /// SND.UNA.
    pub(crate) fn una(&self) -> SeqNum {
        self.una
    }

    /// SND.NXT.
    pub(crate) fn nxt(&self) -> SeqNum {
        self.nxt
    }

    /// SND.NXT - SND.UNA, bytes with SYN and FIN.
    pub(crate) fn outstanding(&self) -> u32 {
        self.nxt.since(self.una)
    }

    /// True if nothing is outstanding.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Bytes in flight (RFC 6675 SetPipe): outstanding, not sacked, not lost. Without SACK, less what
    /// duplicate acknowledgements account for.
    pub(crate) fn pipe(&self) -> u32 {
        let gone = self.sacked.bytes() + self.lost.bytes();
        self.outstanding().saturating_sub(gone).saturating_sub(self.reno.arrived)
    }

    /// Bytes reported by SACK and still outstanding.
    pub(crate) fn sacked_bytes(&self) -> u32 {
        self.sacked.bytes()
    }

    /// Segments reported by SACK and still outstanding.
    pub(crate) fn sacked_segments(&self) -> u32 {
        self.sacked_segments
    }

    /// True if all of `range` is reported by SACK.
    pub(crate) fn is_sacked(&self, range: &SeqRange) -> bool {
        !range.is_empty() && self.sacked.covers(range)
    }

    /// True if these blocks report something that was not known.
    pub(crate) fn brings_news(&self, blocks: &SackBlocks) -> bool {
        let open = SeqRange::new(self.una, self.nxt);
        let news = |block: SeqRange| block.intersection(&open).is_some_and(|part| !self.sacked.covers(&part));
        self.sack && blocks.iter().any(|block| news(SeqRange::new(block.start, block.end)))
    }

    /// Segments outstanding.
    pub(crate) fn segments(&self) -> u32 {
        self.records.len() as u32
    }

    /// Bytes declared lost and not sent again.
    #[cfg(test)]
    pub(crate) fn lost_bytes(&self) -> u32 {
        self.lost.bytes()
    }

    /// True if something is declared lost and not sent again.
    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// The sequence number after the highest one reported by SACK.
    pub(crate) fn highest_sacked(&self) -> Option<SeqNum> {
        self.sacked.last().map(|range| range.end)
    }

    /// Duplicate acknowledgements in a row (RFC 5681).
    pub(crate) fn dupacks(&self) -> u32 {
        self.dupacks
    }

    /// The first outstanding segment.
    pub(crate) fn head(&self) -> Option<&Record> {
        self.records.front()
    }

    /// The last outstanding segment.
    pub(crate) fn tail(&self) -> Option<&Record> {
        self.records.back()
    }

    /// All records in sequence order.
    pub(crate) fn records(&self) -> impl DoubleEndedIterator<Item = &Record> + ExactSizeIterator {
        self.records.iter()
    }

    /// The records that are neither sacked nor lost, in sequence order; runs of others are skipped,
    /// not walked.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = &Record> {
        let mut index = 0;
        core::iter::from_fn(move || {
            loop {
                let record = self.records.get(index)?;
                let others = if record.sacked { &self.sacked } else { &self.lost };
                if record.in_flight() {
                    index += 1;
                    return Some(record);
                }
                let run = others.range_at(record.range.start).map_or(record.range.end, |run| run.end);
                index = self.index_of(run).max(index + 1);
            }
        })
    }

    /// The records in flight that were sent once, in sequence order, which is their order in time.
    pub(crate) fn originals(&self) -> impl Iterator<Item = &Record> {
        let mut index = 0;
        core::iter::from_fn(move || {
            let record = self.records.get(index)?;
            let record = match self.aside.range_at(record.range.start) {
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

    /// The records in flight that were sent more than once, in the order in which they last were.
    pub(crate) fn resent(&self) -> impl Iterator<Item = &Record> {
        self.resent.iter().flat_map(|resent| self.records_of(resent))
    }

    fn records_of(&self, resent: &Resent) -> impl Iterator<Item = &Record> {
        let at = resent.at;
        let range = resent.range.intersection(&SeqRange::new(self.una, self.nxt));
        let (from, to) = range.map_or((0, 0), |range| (self.index_of(range.start), self.index_of(range.end)));
        let records = self.records.range(from..to.max(from));
        records.filter(move |record| record.in_flight() && record.transmissions > 1 && record.sent_at == at)
    }

    /// Enters what left. New data gets a record per segment; what was sent before gets its records
    /// brought up to date. Acknowledgements and parity leave no trace; of a copy only that it left, which
    /// changes neither what is in flight nor when it was sent.
    pub(crate) fn on_sent(&mut self, sent: &Sent) {
        let of = match sent.origin {
            Origin::Ack | Origin::Parity => return,
            Origin::New | Origin::Retransmit => DsackOf::Retransmit,
            Origin::TailLossProbe => DsackOf::TailLossProbe,
            Origin::Duplicate => DsackOf::Duplicate,
        };
        let again = SeqRange::new(sent.range.start, sent.range.end.min(self.nxt));
        if !again.is_empty() {
            self.log_sent_twice(again, of);
        }
        // The copy of a SYN may differ from it, so it is told apart as a retransmission is (Karn).
        if sent.origin == Origin::Duplicate && !sent.syn {
            return;
        }
        if !again.is_empty() {
            self.resend(again, sent);
        }
        if self.nxt.lt(sent.range.end) {
            self.append(sent);
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
            // The FIN rides on the last segment rather than in one of its own.
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
        self.lost.remove(range);
        let Some(range) = range.intersection(&SeqRange::new(self.una, self.nxt)) else { return };
        self.aside.insert(range);
        match self.resent.back_mut() {
            Some(last) if last.at == sent.at && last.range.end == range.start => last.range.end = range.end,
            Some(_) | None => self.resent.push_back(Resent { at: sent.at, range }),
        }
    }

    /// Takes an acknowledgement: SEG.ACK, already validated by the connection (values outside
    /// [SND.UNA, SND.NXT] change nothing here), the SACK blocks, and the rest in `info`.
    pub(crate) fn on_ack(&mut self, ack: SeqNum, sack: &SackBlocks, info: AckInfo) -> AckOutcome {
        let duplicate = ack == self.una && !self.is_empty() && info.len == 0 && !info.window_changed;
        let mut outcome = AckOutcome {
            at: info.now,
            ack,
            una_before: self.una,
            advanced: 0,
            newly_sacked: 0,
            delivered_bytes: 0,
            delivered: mem::take(&mut self.buffer),
            pipe_before: self.pipe(),
            undelivered_before: self.outstanding() - self.sacked.bytes(),
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
        outcome.delivered.clear();
        let mut sample = Sample::default();
        if self.una.lt(ack) && ack.le(self.nxt) {
            self.take_cumulative(ack, &mut outcome, &mut sample);
        }
        if self.sack {
            self.take_blocks(sack, &info, &mut outcome, &mut sample);
            outcome.reneged = outcome.advanced > 0 && self.head().is_some_and(|head| head.sacked);
        }
        self.count_duplicate(&mut outcome);
        self.forget_resent();
        let una_before = outcome.una_before;
        outcome
            .delivered
            .sort_unstable_by_key(|segment| (segment.sent_at, segment.range.start.since(una_before)));
        outcome.rtt = sample.rtt(&info, outcome.advanced > 0);
        outcome
    }

    /// Strikes out what was sent again and is no longer in flight since, from the oldest on.
    fn forget_resent(&mut self) {
        while let Some(oldest) = self.resent.front() {
            if self.records_of(oldest).next().is_some() {
                return;
            }
            self.resent.pop_front();
        }
        if self.resent.capacity() > 0 && self.is_empty() {
            self.resent = VecDeque::new();
        }
    }

    /// Gives the memory of an outcome back, to be used by the next.
    pub(crate) fn recycle(&mut self, outcome: AckOutcome) {
        self.buffer = outcome.delivered;
    }

    /// Takes back what was sent from `to` on, which lies between SND.UNA and SND.NXT: it is as if it had
    /// never left. Only for data of a SYN, of which nothing is sacked, lost or sent twice.
    pub(crate) fn rewind(&mut self, to: SeqNum) {
        if self.una.le(to) && to.lt(self.nxt) {
            let kept = self.cut(to);
            self.records.truncate(kept);
            self.nxt = to;
        }
    }

    fn take_cumulative(&mut self, ack: SeqNum, outcome: &mut AckOutcome, sample: &mut Sample) {
        self.cut(ack);
        while let Some(record) = self.records.front().copied().filter(|record| record.range.end.le(ack)) {
            self.records.pop_front();
            if record.transmissions > 1 {
                sample.retransmitted = true;
            } else if !record.sacked {
                sample.cumulative.get_or_insert(record.sent_at);
            }
            if record.sacked {
                self.sacked_segments -= 1;
            } else {
                outcome.delivered_bytes += record.range.len();
                outcome.delivered.push(record.delivered());
            }
        }
        outcome.advanced = ack.since(self.una);
        self.una = ack;
        self.sacked.remove_before(ack);
        self.lost.remove_before(ack);
        self.aside.remove_before(ack);
        if self.sacked.is_empty() {
            self.sack_splits = 0;
        }
    }

    fn take_blocks(
        &mut self,
        blocks: &SackBlocks,
        info: &AckInfo,
        outcome: &mut AckOutcome,
        sample: &mut Sample,
    ) {
        // "SACK blocks outside [SND.UNA - MAX.SND.WND, SND.NXT] are ignored": some middleboxes
        // translate sequence numbers but not SACK blocks.
        let believable = SeqRange::new(outcome.una_before - info.max_snd_wnd.min(1 << 30), self.nxt);
        let ranges: SmallVec<[SeqRange; 4]> =
            blocks.iter().map(|block| SeqRange::new(block.start, block.end)).collect();
        let duplicate = dsack_range(&ranges, outcome.ack);
        outcome.dsack = duplicate
            .filter(|range| believable.covers(range))
            .map(|range| Dsack { range, of: self.take_sent_twice(range) });
        let skip = usize::from(duplicate.is_some());
        for range in ranges.iter().skip(skip).filter(|range| believable.covers(range)) {
            let Some(above) = range.intersection(&SeqRange::new(self.una, self.nxt)) else { continue };
            let news: SmallVec<[SeqRange; 4]> = self.sacked.gaps(above).collect();
            for gap in news {
                self.mark_sacked(gap, outcome, sample);
            }
        }
    }

    /// Marks what `gap`, of which nothing is sacked yet, covers.
    fn mark_sacked(&mut self, gap: SeqRange, outcome: &mut AckOutcome, sample: &mut Sample) {
        let from = self.sack_cut(gap.start, true);
        let to = self.sack_cut(gap.end, false);
        let mut run: Option<SeqRange> = None;
        for record in self.records.range_mut(from..to.max(from)) {
            record.sacked = true;
            record.lost = false;
            self.sacked_segments += 1;
            if record.transmissions == 1 {
                let earliest = sample.selective.map_or(record.sent_at, |at| at.min(record.sent_at));
                sample.selective = Some(earliest);
            }
            outcome.newly_sacked += record.range.len();
            outcome.delivered_bytes += record.range.len();
            outcome.delivered.push(record.delivered());
            run = Some(SeqRange::new(run.map_or(record.range.start, |run| run.start), record.range.end));
        }
        if let Some(run) = run {
            self.sacked.insert(run);
            self.aside.insert(run);
            self.lost.remove(run);
        }
    }

    /// Index of the first record that starts at or after `seq`; the record that `seq` is inside of is
    /// cut there if the allowance lasts, else it counts as not covered: as after `seq` for the end of
    /// a block, as before it for the start (`round_up`).
    fn sack_cut(&mut self, seq: SeqNum, round_up: bool) -> usize {
        let index = self.index_of(seq);
        match self.records.get(index) {
            Some(record) if record.range.start.lt(seq) => {
                if self.sack_splits < MAX_SACK_SPLITS {
                    self.sack_splits += 1;
                    self.cut(seq)
                } else {
                    index + usize::from(round_up)
                }
            }
            Some(_) | None => index,
        }
    }

    /// RFC 5681 duplicates, and what they mean on a connection without SACK.
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
            // At least the hole itself has not arrived. RFC 5681 section 3.2 step 4 lets the sender bound
            // what duplicates inflate by what is outstanding: else a receiver that repeats its
            // acknowledgement would draw new data for as long as its own window lasts.
            let holes = self.lost.bytes().max(head);
            let most = self.reno.announced_to.since(self.una).saturating_sub(holes);
            let arrived = self.reno.arrived.saturating_add(self.reno.mss).min(most.max(self.reno.arrived));
            outcome.delivered_bytes += arrived - self.reno.arrived;
            self.reno.arrived = arrived;
        } else if outcome.advanced > 0 {
            // DeliveredData of RFC 9937: what duplicates accounted for is not delivered twice. One segment
            // of the advance filled the hole; the rest had been announced.
            let announced = outcome.advanced.saturating_sub(self.reno.mss).min(self.reno.arrived);
            outcome.delivered_bytes = outcome.advanced - announced;
            self.reno.arrived -= announced;
            if self.reno.recover.is_none_or(|recover| self.una.ge(recover)) {
                self.reno.recover = None;
                self.reno.arrived = 0;
            }
            self.reno.arrived = self.reno.arrived.min(self.outstanding());
        }
    }

    /// Declares what of `range` is outstanding, not sacked and not lost yet as lost. Returns how many
    /// bytes that were.
    pub(crate) fn mark_lost(&mut self, range: SeqRange) -> u32 {
        let mut newly = 0;
        for index in self.cut_out(range) {
            let Some(record) = self.records.get_mut(index) else { break };
            if record.in_flight() {
                record.lost = true;
                newly += self.lost.insert(record.range);
                self.aside.insert(record.range);
            }
        }
        newly
    }

    /// Declares everything lost that is not sacked (a timeout without any better knowledge). Returns
    /// how many bytes were not lost before.
    pub(crate) fn mark_all_lost(&mut self) -> u32 {
        self.reno.arrived = 0;
        self.repairing();
        self.mark_lost(SeqRange::new(self.una, self.nxt))
    }

    /// Without SACK: what is outstanding now may be announced by duplicates, and is to be repaired.
    fn repairing(&mut self) {
        self.reno.recover = Some(self.nxt);
        self.reno.announced_to = self.nxt;
    }

    /// Declares the first segment lost, at most `mss` bytes of payload: fast retransmit and partial
    /// acknowledgements on a connection without SACK (RFC 6582). Returns how many bytes were not lost
    /// before.
    pub(crate) fn mark_head_lost(&mut self, mss: u32) -> u32 {
        self.repairing();
        let Some(head) = self.head() else { return 0 };
        let len = if head.payload() <= mss { head.range.len() } else { mss.max(1) };
        self.mark_lost(SeqRange::with_len(self.una, len))
    }

    /// Takes back every declaration of loss: the reduction was a mistake. Returns how many bytes are
    /// in flight again.
    pub(crate) fn unmark_lost(&mut self) -> u32 {
        let lost = mem::take(&mut self.lost);
        for range in lost.iter() {
            let (from, to) = (self.index_of(range.start), self.index_of(range.end));
            for record in self.records.range_mut(from..to.max(from)) {
                record.lost = false;
                if record.transmissions == 1 {
                    self.aside.remove(record.range);
                }
            }
        }
        self.list_resent();
        lost.bytes()
    }

    /// The receiver reneged (RFC 2018 section 8): nothing counts as sacked any more.
    pub(crate) fn clear_sacked(&mut self) {
        for record in self.records.iter_mut().filter(|record| record.sacked) {
            record.sacked = false;
            if record.transmissions == 1 {
                self.aside.remove(record.range);
            }
        }
        self.sacked.clear();
        self.sacked_segments = 0;
        self.sack_splits = 0;
        self.list_resent();
    }

    /// Builds the list of what was sent again anew, after records have come back into flight.
    fn list_resent(&mut self) {
        let again = self.records.iter().filter(|record| record.in_flight() && record.transmissions > 1);
        let mut resent: Vec<Resent> =
            again.map(|record| Resent { at: record.sent_at, range: record.range }).collect();
        resent.sort_by_key(|resent| resent.at);
        self.resent = resent.into();
    }

    /// The next range to retransmit: from the first lost segment on, whole lost segments that follow
    /// one another while their payload fits into `max_len` bytes. A longer segment is cut. A SYN comes
    /// alone; a FIN does not count towards `max_len`.
    pub(crate) fn next_lost(&self, max_len: u32) -> Option<SeqRange> {
        let start = self.lost.first()?.start;
        let first = self.records.get(self.index_of(start)).filter(|_| max_len > 0)?;
        if first.payload() > max_len {
            return Some(SeqRange::with_len(start, max_len));
        }
        let mut range = first.range;
        let mut payload = first.payload();
        if !first.syn {
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

    /// The largest payload shrank to `mss`: longer segments are cut, since they can only be sent
    /// again in pieces.
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
                self.records.push_back(piece);
                rest = behind;
            }
            self.records.push_back(rest);
        }
    }

    /// Index of the record that `seq`, in [SND.UNA, SND.NXT], is in; the number of records if none.
    fn index_of(&self, seq: SeqNum) -> usize {
        let offset = seq.since(self.una);
        self.records.partition_point(|record| record.range.end.since(self.una) <= offset)
    }

    /// Makes `seq` a border between records. Returns the index of the record that starts there.
    fn cut(&mut self, seq: SeqNum) -> usize {
        let index = self.index_of(seq);
        let Some(record) = self.records.get_mut(index).filter(|record| record.range.start.lt(seq)) else {
            return index;
        };
        let (before, after) = record.split(seq);
        *record = before;
        self.sacked_segments += u32::from(after.sacked);
        self.records.insert(index + 1, after);
        index + 1
    }

    /// The indices of the records that `range`, as far as it is outstanding, consists of.
    fn cut_out(&mut self, range: SeqRange) -> core::ops::Range<usize> {
        match range.intersection(&SeqRange::new(self.una, self.nxt)) {
            Some(range) => {
                let from = self.cut(range.start);
                from..self.cut(range.end)
            }
            None => 0..0,
        }
    }

    fn log_sent_twice(&mut self, range: SeqRange, of: DsackOf) {
        if let Some(last) = self.sent_twice.back_mut()
            && last.of == of
            && last.range.end == range.start
        {
            last.range.end = range.end;
            return;
        }
        if self.sent_twice.len() == MAX_SENT_TWICE {
            self.sent_twice.pop_front();
        }
        self.sent_twice.push_back(SentTwice { range, of });
    }

    /// Whose duplicate `range` is: the earliest in the log that it overlaps, which is then struck out,
    /// because each transmission can be a duplicate once. The peer drops copies without a word, so a copy
    /// is to blame only where nothing else was sent again.
    fn take_sent_twice(&mut self, range: SeqRange) -> DsackOf {
        let overlaps = |entry: &SentTwice| entry.range.intersection(&range).is_some();
        let again = |entry: &SentTwice| entry.of != DsackOf::Duplicate && overlaps(entry);
        let log = &self.sent_twice;
        let found = log.iter().position(again).or_else(|| log.iter().position(overlaps));
        let Some(entry) = found.and_then(|index| self.sent_twice.remove(index)) else {
            return DsackOf::NeverSentTwice;
        };
        let index = found.unwrap_or(0);
        let before = SeqRange::new(entry.range.start, range.start.min(entry.range.end));
        let after = SeqRange::new(range.end.max(entry.range.start), entry.range.end);
        for rest in [after, before].into_iter().filter(|rest| !rest.is_empty()) {
            if self.sent_twice.len() < MAX_SENT_TWICE {
                self.sent_twice.insert(index, SentTwice { range: rest, of: entry.of });
            }
        }
        entry.of
    }
}

impl Record {
    fn delivered(&self) -> Delivered {
        Delivered {
            range: self.range,
            sent_at: self.sent_at,
            retransmitted: self.transmissions > 1,
            origin: self.origin,
        }
    }

    /// The parts before and from `seq` on, which lies inside.
    fn split(&self, seq: SeqNum) -> (Record, Record) {
        let before = Record { range: SeqRange::new(self.range.start, seq), fin: false, ..*self };
        let after = Record { range: SeqRange::new(seq, self.range.end), syn: false, ..*self };
        (before, after)
    }
}

impl Sample {
    /// The sample that Karn's rule leaves: from what was cumulatively acknowledged unless some of it
    /// was sent twice, else from what SACK reports, else from the timestamps.
    fn rtt(&self, info: &AckInfo, advanced: bool) -> Option<Duration> {
        let cumulative = self.cumulative.filter(|_| !self.retransmitted);
        match cumulative.or(self.selective) {
            Some(sent_at) => Some(info.now.saturating_since(sent_at)),
            None => info.ts_echo_rtt.filter(|_| advanced),
        }
    }
}

/// RFC 2883 section 4: the first block reports a duplicate if it begins below SEG.ACK, or if it lies
/// within the second block.
fn dsack_range(blocks: &[SeqRange], ack: SeqNum) -> Option<SeqRange> {
    let first = blocks.first().filter(|first| !first.is_empty())?;
    if first.start.lt(ack) {
        return Some(SeqRange::new(first.start, first.end.min(ack)));
    }
    blocks.get(1).filter(|second| second.covers(first)).map(|_| *first)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use brisk_wire::SackBlock;
    use proptest::prelude::*;

    use super::*;

    const ISS: SeqNum = SeqNum(u32::MAX - 2000);
    const MSS: u32 = 1000;

    fn range(from: u32, to: u32) -> SeqRange {
        SeqRange::new(ISS + from, ISS + to)
    }

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    fn sent(origin: Origin, from: u32, to: u32, at: Instant) -> Sent {
        Sent { range: range(from, to), segment_size: MSS, origin, syn: false, fin: false, at }
    }

    fn info(now: Instant) -> AckInfo {
        AckInfo { now, ece: false, window_changed: false, len: 0, max_snd_wnd: 1 << 16, ts_echo_rtt: None }
    }

    fn blocks(ranges: &[(u32, u32)]) -> SackBlocks {
        ranges.iter().map(|&(from, to)| SackBlock { start: ISS + from, end: ISS + to }).collect()
    }

    /// `count` segments of 1000 bytes sent at 0 ms, 1 ms, 2 ms, ...
    fn board(count: u32, sack: bool) -> Scoreboard {
        let mut board = Scoreboard::new(ISS, sack);
        for index in 0..count {
            board.on_sent(&sent(Origin::New, index * MSS, (index + 1) * MSS, ms(u64::from(index))));
        }
        board
    }

    #[test]
    fn a_super_segment_is_recorded_segment_by_segment() {
        let mut board = Scoreboard::new(ISS, true);
        let syn = Sent { range: range(0, 1), syn: true, ..sent(Origin::New, 0, 1, ms(0)) };
        board.on_sent(&syn);
        board.on_sent(&Sent { fin: true, ..sent(Origin::New, 1, 2502, ms(1)) });
        let records: Vec<_> = board.records().map(|record| (record.range, record.syn, record.fin)).collect();
        let expected = [
            (range(0, 1), true, false),
            (range(1, 1001), false, false),
            (range(1001, 2001), false, false),
            (range(2001, 2502), false, true),
        ];
        assert_eq!(records, expected);
        assert_eq!((board.pipe(), board.outstanding(), board.nxt()), (2502, 2502, ISS + 2502));
    }

    #[test]
    fn a_fin_rides_on_a_full_segment_and_may_also_come_alone() {
        let mut board = Scoreboard::new(ISS, true);
        board.on_sent(&Sent { fin: true, ..sent(Origin::New, 0, 1001, ms(0)) });
        assert_eq!(board.records().count(), 1);
        assert_eq!(board.tail().map(|tail| (tail.payload(), tail.fin)), Some((1000, true)));
        let mut board = self::board(1, true);
        board.on_sent(&Sent { fin: true, ..sent(Origin::New, 1000, 1001, ms(0)) });
        assert_eq!(board.tail().map(|tail| (tail.payload(), tail.fin)), Some((0, true)));
    }

    #[test]
    fn a_cumulative_acknowledgement_delivers_what_it_covers() {
        let mut board = board(3, true);
        let outcome = board.on_ack(ISS + 1500, &blocks(&[]), info(ms(50)));
        assert_eq!((outcome.advanced, outcome.delivered_bytes, outcome.newly_sacked), (1500, 1500, 0));
        assert_eq!(outcome.una_before, ISS);
        assert_eq!((outcome.pipe_before, outcome.undelivered_before), (3000, 3000));
        assert_eq!(board.head().map(|head| head.range), Some(range(1500, 2000)));
        assert_eq!(board.pipe(), 1500);
    }

    #[test]
    fn acknowledgements_outside_of_what_is_outstanding_change_nothing() {
        let mut board = board(3, true);
        board.on_ack(ISS + 1000, &blocks(&[]), info(ms(50)));
        for ack in [ISS, ISS + 3001, ISS + 0x7000_0000] {
            let outcome = board.on_ack(ack, &blocks(&[]), info(ms(51)));
            assert_eq!((outcome.advanced, outcome.delivered_bytes, outcome.duplicate), (0, 0, false));
        }
        assert_eq!((board.una(), board.pipe()), (ISS + 1000, 2000));
    }

    #[test]
    fn sacked_segments_leave_the_pipe_and_are_delivered_once() {
        let mut board = board(4, true);
        let outcome = board.on_ack(ISS, &blocks(&[(1000, 2000)]), info(ms(50)));
        assert_eq!((outcome.newly_sacked, outcome.delivered_bytes, outcome.duplicate), (1000, 1000, true));
        let outcome = board.on_ack(ISS, &blocks(&[(1000, 3000)]), info(ms(51)));
        assert_eq!((outcome.newly_sacked, outcome.undelivered_before), (1000, 3000));
        assert_eq!((board.pipe(), board.sacked_bytes(), board.sacked_segments()), (2000, 2000, 2));
        assert_eq!(board.highest_sacked(), Some(ISS + 3000));
        let outcome = board.on_ack(ISS + 4000, &blocks(&[]), info(ms(52)));
        assert_eq!((outcome.advanced, outcome.delivered_bytes), (4000, 2000));
        assert!(board.is_empty() && board.sacked_bytes() == 0 && board.highest_sacked().is_none());
    }

    #[test]
    fn a_block_that_covers_part_of_a_segment_splits_its_record() {
        let mut board = board(2, true);
        let outcome = board.on_ack(ISS, &blocks(&[(500, 1500)]), info(ms(50)));
        assert_eq!(outcome.newly_sacked, 1000);
        let records: Vec<_> = board.records().map(|record| (record.range, record.sacked)).collect();
        let expected = [
            (range(0, 500), false),
            (range(500, 1000), true),
            (range(1000, 1500), true),
            (range(1500, 2000), false),
        ];
        assert_eq!(records, expected);
    }

    #[test]
    fn a_peer_cannot_split_records_without_end() {
        let mut board = Scoreboard::new(ISS, true);
        board.on_sent(&Sent { segment_size: 9000, ..sent(Origin::New, 0, 9000, ms(0)) });
        for byte in 0..4000 {
            board.on_ack(ISS, &blocks(&[(2 * byte + 1, 2 * byte + 2)]), info(ms(50)));
        }
        assert!(board.records().count() <= MAX_SACK_SPLITS as usize + 1);
        // What it no longer splits for, it does not believe either.
        assert_eq!(board.sacked_bytes(), MAX_SACK_SPLITS / 2);
        let outcome = board.on_ack(ISS, &blocks(&[(1, 9000)]), info(ms(51)));
        assert_eq!(outcome.newly_sacked, 9000 - 1 - MAX_SACK_SPLITS / 2);
    }

    #[test]
    fn blocks_outside_of_the_window_are_ignored() {
        // PROTOCOL 2.4: "SACK blocks outside [SND.UNA - MAX.SND.WND, SND.NXT] are ignored".
        let mut board = board(3, true);
        let beyond = board.on_ack(ISS, &blocks(&[(2000, 3001)]), info(ms(50)));
        let reversed = board.on_ack(ISS, &blocks(&[(2000, 1000)]), info(ms(50)));
        let translated = board.on_ack(ISS, &blocks(&[(0x4000_0000, 0x4000_1000)]), info(ms(50)));
        for outcome in [beyond, reversed, translated] {
            assert_eq!((outcome.newly_sacked, outcome.dsack), (0, None));
        }
        let small = AckInfo { max_snd_wnd: 500, ..info(ms(51)) };
        board.on_ack(ISS + 2000, &blocks(&[]), small);
        let outcome = board.on_ack(ISS + 2000, &blocks(&[(1000, 2000)]), small);
        assert_eq!(outcome.dsack, None, "further below SND.UNA than the window ever was");
    }

    #[test]
    fn without_sack_blocks_are_not_read() {
        let mut board = board(3, false);
        let outcome = board.on_ack(ISS, &blocks(&[(1000, 2000)]), info(ms(50)));
        assert_eq!((outcome.newly_sacked, board.sacked_bytes()), (0, 0));
    }

    #[test]
    fn a_duplicate_acknowledgement_is_what_rfc_5681_says() {
        // RFC 5681 section 2: "(a) the receiver of the ACK has outstanding data, (b) the incoming
        // acknowledgment carries no data, (c) the SYN and FIN bits are both off, (d) the
        // acknowledgment number is equal to the greatest acknowledgment received on the given
        // connection and (e) the advertised window [...] equals the advertised window in the last
        // incoming acknowledgment."
        let plain = info(ms(50));
        let duplicate = |board: &mut Scoreboard, ack, info| board.on_ack(ack, &blocks(&[]), info).duplicate;
        assert!(!duplicate(&mut Scoreboard::new(ISS, true), ISS, plain), "(a)");
        assert!(!duplicate(&mut board(2, true), ISS, AckInfo { len: 1, ..plain }), "(b), (c)");
        assert!(!duplicate(&mut board(2, true), ISS + 1000, plain), "(d)");
        assert!(!duplicate(&mut board(2, true), ISS, AckInfo { window_changed: true, ..plain }), "(e)");
        let mut board = board(2, true);
        assert!(duplicate(&mut board, ISS, plain) && duplicate(&mut board, ISS, plain));
        assert_eq!(board.dupacks(), 2);
        board.on_ack(ISS + 1000, &blocks(&[]), plain);
        assert_eq!(board.dupacks(), 0);
    }

    #[test]
    fn the_round_trip_is_that_of_the_earliest_segment_acknowledged() {
        let mut board = board(4, true);
        let outcome = board.on_ack(ISS + 2000, &blocks(&[]), info(ms(50)));
        assert_eq!(outcome.rtt, Some(Duration::from_millis(50)));
        let outcome = board.on_ack(ISS + 2000, &blocks(&[(3000, 4000)]), info(ms(60)));
        assert_eq!(outcome.rtt, Some(Duration::from_millis(57)), "SACK gives a sample too");
    }

    #[test]
    fn a_retransmitted_segment_gives_no_sample_unless_timestamps_do() {
        // RFC 6298 section 3: "RTT samples MUST NOT be made using segments that were retransmitted
        // (and thus for which it is ambiguous whether the reply was for the first instance of the
        // packet or a later instance)", unless "the TCP timestamp option" is in use.
        let retransmitted = || {
            let mut board = board(2, true);
            board.on_sent(&sent(Origin::Retransmit, 0, 1000, ms(40)));
            board
        };
        let outcome = retransmitted().on_ack(ISS + 2000, &blocks(&[]), info(ms(50)));
        assert_eq!(outcome.rtt, None);
        let echo = AckInfo { ts_echo_rtt: Some(Duration::from_millis(10)), ..info(ms(50)) };
        let outcome = retransmitted().on_ack(ISS + 2000, &blocks(&[]), echo);
        assert_eq!(outcome.rtt, Some(Duration::from_millis(10)));
        let outcome = retransmitted().on_ack(ISS, &blocks(&[]), echo);
        assert_eq!(outcome.rtt, None, "an acknowledgement of nothing new is no sample");
        assert_eq!(outcome.echoed_rtt, Some(Duration::from_millis(10)));
    }

    #[test]
    fn what_is_delivered_comes_in_the_order_of_transmission() {
        let mut board = board(3, true);
        board.on_sent(&sent(Origin::Retransmit, 0, 1000, ms(40)));
        let outcome = board.on_ack(ISS + 1000, &blocks(&[(2000, 3000)]), info(ms(90)));
        let order: Vec<_> =
            outcome.delivered.iter().map(|segment| (segment.range, segment.retransmitted)).collect();
        assert_eq!(order, [(range(2000, 3000), false), (range(0, 1000), true)]);
    }

    #[test]
    fn lost_data_leaves_the_pipe_until_it_is_sent_again() {
        let mut board = board(4, true);
        assert_eq!(board.mark_lost(range(0, 2000)), 2000);
        assert_eq!(board.mark_lost(range(1000, 3000)), 1000, "only what was not lost before");
        assert_eq!((board.pipe(), board.lost_bytes(), board.has_lost()), (1000, 3000, true));
        board.on_sent(&sent(Origin::Retransmit, 0, 1000, ms(10)));
        assert_eq!((board.pipe(), board.lost_bytes()), (2000, 2000));
        let head = board.head().copied();
        assert_eq!(head.map(|head| (head.transmissions, head.sent_at)), Some((2, ms(10))));
        assert_eq!(head.map(|head| head.first_sent_at), Some(ms(0)));
        assert_eq!(board.unmark_lost(), 2000);
        assert_eq!((board.pipe(), board.has_lost()), (4000, false));
    }

    #[test]
    fn sacked_data_is_never_lost() {
        let mut board = board(3, true);
        board.mark_lost(range(0, 3000));
        board.on_ack(ISS, &blocks(&[(1000, 2000)]), info(ms(50)));
        assert_eq!((board.lost_bytes(), board.sacked_bytes(), board.pipe()), (2000, 1000, 0));
        assert_eq!(board.mark_all_lost(), 0);
        assert_eq!(board.lost_bytes(), 2000);
    }

    #[test]
    fn the_next_retransmission_joins_whole_lost_segments() {
        let mut board = Scoreboard::new(ISS, true);
        for (from, to) in [(0, 300), (300, 700), (700, 1600), (1600, 1700)] {
            board.on_sent(&sent(Origin::New, from, to, ms(0)));
        }
        assert_eq!(board.next_lost(1000), None);
        board.mark_lost(range(0, 1700));
        assert_eq!(board.next_lost(1000), Some(range(0, 700)), "900 more do not fit");
        assert_eq!(board.next_lost(10_000), Some(range(0, 1700)));
        assert_eq!(board.next_lost(200), Some(range(0, 200)), "a longer segment is cut");
        assert_eq!(board.next_lost(0), None);
        board.on_ack(ISS, &blocks(&[(300, 700)]), info(ms(50)));
        assert_eq!(board.next_lost(10_000), Some(range(0, 300)), "not across what arrived");
    }

    #[test]
    fn a_syn_is_retransmitted_alone_and_a_fin_with_its_segment() {
        let mut board = Scoreboard::new(ISS, true);
        board.on_sent(&Sent { syn: true, fin: true, ..sent(Origin::New, 0, 1002, ms(0)) });
        board.mark_all_lost();
        assert_eq!(board.next_lost(1000), Some(range(0, 1)));
        board.on_ack(ISS + 1, &blocks(&[]), info(ms(50)));
        assert_eq!(board.next_lost(1000), Some(range(1, 1002)));
    }

    #[test]
    fn a_dsack_is_told_apart_by_what_was_sent_twice() {
        // RFC 2883 section 4: a first block below the cumulative acknowledgement reports a duplicate.
        let cases = [
            (Origin::Retransmit, DsackOf::Retransmit),
            (Origin::TailLossProbe, DsackOf::TailLossProbe),
            (Origin::Duplicate, DsackOf::Duplicate),
        ];
        for (origin, of) in cases {
            let mut board = board(2, true);
            board.on_sent(&sent(origin, 1000, 2000, ms(10)));
            board.on_ack(ISS + 2000, &blocks(&[]), info(ms(50)));
            let report = blocks(&[(1000, 2000)]);
            let outcome = board.on_ack(ISS + 2000, &report, info(ms(60)));
            assert_eq!(outcome.dsack, Some(Dsack { range: range(1000, 2000), of }));
            assert_eq!((outcome.newly_sacked, outcome.delivered_bytes), (0, 0));
            let again = board.on_ack(ISS + 2000, &report, info(ms(61)));
            assert_eq!(
                again.dsack.map(|dsack| dsack.of),
                Some(DsackOf::NeverSentTwice),
                "one transmission is one duplicate; this one is of the network's making"
            );
        }
    }

    #[test]
    fn a_dsack_within_the_second_block_is_recognised() {
        // RFC 2883 section 4: above the cumulative acknowledgement "the second SACK block in that SACK
        // option should specify that (possibly larger) block" that the duplicate is part of.
        let mut board = board(5, true);
        board.on_sent(&sent(Origin::Retransmit, 2000, 3000, ms(10)));
        let outcome = board.on_ack(ISS, &blocks(&[(2000, 3000), (1000, 4000)]), info(ms(60)));
        assert_eq!(outcome.dsack, Some(Dsack { range: range(2000, 3000), of: DsackOf::Retransmit }));
        assert_eq!(outcome.newly_sacked, 3000);
    }

    #[test]
    fn a_copy_changes_nothing_but_the_log() {
        let mut board = board(2, true);
        let before = board.clone();
        board.on_sent(&sent(Origin::Duplicate, 0, 2000, ms(20)));
        assert_eq!((board.pipe(), board.nxt()), (before.pipe(), before.nxt()));
        assert!(board.records().eq(before.records()), "transmission times and counts are untouched");
        let outcome = board.on_ack(ISS + 1000, &blocks(&[]), info(ms(100)));
        assert!(outcome.rtt.is_some() && !outcome.delivered[0].retransmitted, "a sample as without the copy");
    }

    #[test]
    fn a_copy_is_blamed_only_where_nothing_else_was_sent_again() {
        let mut board = board(2, true);
        board.on_sent(&sent(Origin::Duplicate, 0, 2000, ms(2)));
        board.on_sent(&sent(Origin::Retransmit, 0, 1000, ms(10)));
        board.on_ack(ISS + 2000, &blocks(&[]), info(ms(50)));
        let mut report = |from, to| {
            let outcome = board.on_ack(ISS + 2000, &blocks(&[(from, to)]), info(ms(60)));
            outcome.dsack.map(|dsack| dsack.of)
        };
        assert_eq!(report(0, 1000), Some(DsackOf::Retransmit));
        assert_eq!(report(0, 1000), Some(DsackOf::Duplicate));
        assert_eq!(report(1000, 2000), Some(DsackOf::Duplicate));
        assert_eq!(report(1000, 2000), Some(DsackOf::NeverSentTwice));
    }

    #[test]
    fn the_log_of_what_was_sent_twice_is_bounded() {
        let mut board = board(500, true);
        for index in 0..250 {
            board.on_sent(&sent(Origin::Retransmit, index * 2000, index * 2000 + 1000, ms(600)));
        }
        assert_eq!(board.sent_twice.len(), MAX_SENT_TWICE);
        let mut board = self::board(500, true);
        for index in 0..500 {
            board.on_sent(&sent(Origin::Retransmit, index * 1000, index * 1000 + 1000, ms(600)));
        }
        assert_eq!(board.sent_twice.len(), 1, "a window sent again in order is one entry");
    }

    #[test]
    fn a_receiver_that_forgets_what_it_sacked_is_noticed() {
        // RFC 2018 section 8: "the data receiver is permitted to discard data in its queue that has not been
        // acknowledged to the data sender, even if the data has already been reported".
        let mut board = board(3, true);
        board.on_ack(ISS, &blocks(&[(1000, 2000)]), info(ms(50)));
        let outcome = board.on_ack(ISS + 1000, &blocks(&[]), info(ms(60)));
        assert!(outcome.reneged);
        board.clear_sacked();
        assert_eq!((board.pipe(), board.sacked_bytes(), board.sacked_segments()), (2000, 0, 0));
        let outcome = board.on_ack(ISS + 3000, &blocks(&[]), info(ms(70)));
        assert!(!outcome.reneged);
        assert_eq!(outcome.delivered_bytes, 2000);
    }

    #[test]
    fn without_sack_each_duplicate_takes_a_segment_from_the_pipe() {
        let mut board = board(5, false);
        for duplicates in 1..=3 {
            let outcome = board.on_ack(ISS, &blocks(&[]), info(ms(50)));
            assert_eq!((outcome.duplicate, outcome.delivered_bytes), (true, 1000));
            assert_eq!((board.dupacks(), board.pipe()), (duplicates, 5000 - duplicates * 1000));
        }
        assert_eq!(board.mark_head_lost(MSS), 1000);
        assert_eq!((board.pipe(), board.next_lost(MSS)), (1000, Some(range(0, 1000))));
        board.on_sent(&sent(Origin::Retransmit, 0, 1000, ms(51)));
        let outcome = board.on_ack(ISS + 4000, &blocks(&[]), info(ms(90)));
        assert_eq!(outcome.delivered_bytes, 1000, "three of the four were announced by duplicates");
        assert_eq!(board.pipe(), 1000);
    }

    #[test]
    fn without_sack_duplicates_cannot_announce_more_than_was_sent() {
        let mut board = board(3, false);
        let delivered: u32 =
            (0..20).map(|_| board.on_ack(ISS, &blocks(&[]), info(ms(50))).delivered_bytes).sum();
        assert_eq!((delivered, board.pipe()), (2000, 1000), "the hole itself has not arrived");
    }

    #[test]
    fn without_sack_duplicates_announce_nothing_that_was_sent_after_the_repair() {
        let mut board = board(4, false);
        let duplicates = |board: &mut Scoreboard, una, count: u32| -> u32 {
            (0..count).map(|_| board.on_ack(ISS + una, &blocks(&[]), info(ms(50))).delivered_bytes).sum()
        };
        assert_eq!(duplicates(&mut board, 0, 3), 3000);
        board.mark_head_lost(MSS);
        board.on_sent(&sent(Origin::Retransmit, 0, 1000, ms(51)));
        board.on_sent(&sent(Origin::New, 4000, 9000, ms(52)));
        assert_eq!(duplicates(&mut board, 0, 20), 0, "all four are accounted for");
        board.on_ack(ISS + 1000, &blocks(&[]), info(ms(90)));
        assert_eq!(duplicates(&mut board, 1000, 20), 4000, "the next repair is due");
    }

    #[test]
    fn without_sack_duplicates_outside_of_recovery_are_forgotten_with_the_next_advance() {
        let mut board = board(5, false);
        board.on_ack(ISS, &blocks(&[]), info(ms(50)));
        board.on_ack(ISS + 1000, &blocks(&[]), info(ms(51)));
        assert_eq!((board.dupacks(), board.pipe()), (0, 4000));
    }

    #[test]
    fn segments_are_cut_when_the_path_takes_less() {
        let mut board = board(2, true);
        board.on_ack(ISS, &blocks(&[(1000, 2000)]), info(ms(50)));
        board.resplit(400);
        let lengths: Vec<_> = board.records().map(|record| record.range.len()).collect();
        assert_eq!(lengths, [400, 400, 200, 400, 400, 200]);
        assert_eq!((board.sacked_segments(), board.sacked_bytes(), board.pipe()), (3, 1000, 1000));
    }

    #[test]
    fn a_probe_may_carry_new_data() {
        let mut board = board(1, true);
        board.on_sent(&sent(Origin::TailLossProbe, 1000, 2000, ms(10)));
        assert_eq!((board.nxt(), board.pipe()), (ISS + 2000, 2000));
        assert_eq!(
            board.tail().map(|tail| (tail.transmissions, tail.origin)),
            Some((1, Origin::TailLossProbe))
        );
    }

    #[test]
    fn an_acknowledgement_reuses_the_memory_of_the_one_before() {
        let mut board = board(40, true);
        let outcome = board.on_ack(ISS + 20_000, &blocks(&[]), info(ms(50)));
        let at = outcome.delivered.as_ptr();
        board.recycle(outcome);
        let outcome = board.on_ack(ISS + 40_000, &blocks(&[]), info(ms(51)));
        assert_eq!(outcome.delivered.as_ptr(), at);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Send { segments: u32, size: u32, fin: bool },
        Again { origin: u8, from: u32, len: u32 },
        Retransmit { max_len: u32 },
        Ack { advance: u32, blocks: Vec<(i32, u32)>, window_changed: bool },
        MarkLost { from: u32, len: u32 },
        MarkAllLost,
        MarkHeadLost,
        Unmark,
        Renege,
        Resplit { mss: u32 },
    }

    fn step() -> impl Strategy<Value = Step> {
        let block = (-1500i32..5000, 0u32..1500);
        prop_oneof![
            6 => (1u32..5, 1u32..400, prop::bool::weighted(0.02))
                .prop_map(|(segments, size, fin)| Step::Send { segments, size, fin }),
            2 => (0u8..4, 0u32..4000, 0u32..900).prop_map(|(origin, from, len)| Step::Again { origin, from, len }),
            4 => (0u32..600).prop_map(|max_len| Step::Retransmit { max_len }),
            8 => (0u32..700, prop::collection::vec(block, 0..4), any::<bool>()).prop_map(
                |(advance, blocks, window_changed)| Step::Ack {
                    advance: advance.saturating_sub(350),
                    blocks,
                    window_changed
                }
            ),
            3 => (0u32..4000, 0u32..1200).prop_map(|(from, len)| Step::MarkLost { from, len }),
            1 => Just(Step::MarkAllLost),
            1 => Just(Step::MarkHeadLost),
            1 => Just(Step::Unmark),
            1 => Just(Step::Renege),
            1 => (1u32..300).prop_map(|mss| Step::Resplit { mss }),
        ]
    }

    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Byte {
        InFlight,
        Sacked,
        Lost,
    }

    /// The scoreboard as one state per outstanding byte.
    struct Model {
        una: SeqNum,
        bytes: VecDeque<Byte>,
    }

    impl Model {
        fn each(&mut self, range: SeqRange, mut change: impl FnMut(&mut Byte)) {
            let outstanding = SeqRange::with_len(self.una, self.bytes.len() as u32);
            if let Some(range) = range.intersection(&outstanding) {
                let from = range.start.since(self.una) as usize;
                self.bytes.range_mut(from..from + range.len() as usize).for_each(&mut change);
            }
        }

        fn count(&self, state: Byte) -> u32 {
            self.bytes.iter().filter(|byte| **byte == state).count() as u32
        }

        fn replace(&mut self, range: SeqRange, from: Byte, to: Byte) {
            self.each(range, |byte| *byte = if *byte == from { to } else { *byte });
        }
    }

    fn check(board: &Scoreboard, model: &Model, sack: bool) -> Result<(), TestCaseError> {
        let mut at = board.una();
        let mut flat = VecDeque::new();
        for record in board.records() {
            prop_assert_eq!(record.range.start, at);
            prop_assert!(!record.range.is_empty());
            prop_assert!(!record.sacked || !record.lost);
            prop_assert!(record.transmissions >= 1 && record.first_sent_at <= record.sent_at);
            let state = match (record.sacked, record.lost) {
                (true, _) => Byte::Sacked,
                (false, true) => Byte::Lost,
                (false, false) => Byte::InFlight,
            };
            flat.extend(core::iter::repeat_n(state, record.range.len() as usize));
            at = record.range.end;
        }
        prop_assert_eq!(at, board.nxt());
        prop_assert_eq!(board.una(), model.una);
        prop_assert_eq!(&flat, &model.bytes);
        prop_assert_eq!(board.sacked_bytes(), model.count(Byte::Sacked));
        prop_assert_eq!(board.lost_bytes(), model.count(Byte::Lost));
        prop_assert_eq!(board.has_lost(), model.count(Byte::Lost) > 0);
        let sacked = board.records().filter(|record| record.sacked).count();
        prop_assert_eq!(board.sacked_segments() as usize, sacked);
        if sack {
            prop_assert_eq!(board.pipe(), model.count(Byte::InFlight));
        } else {
            prop_assert!(board.pipe() <= model.count(Byte::InFlight));
        }
        let in_flight: Vec<_> = board.records().filter(|record| record.in_flight()).collect();
        prop_assert_eq!(board.in_flight().count(), in_flight.len());
        let (originals, resent): (Vec<_>, Vec<_>) =
            in_flight.into_iter().partition(|record| record.transmissions == 1);
        prop_assert_eq!(board.originals().collect::<Vec<_>>(), originals);
        let walked: Vec<_> = board.resent().collect();
        prop_assert!(walked.is_sorted_by_key(|record| record.sent_at));
        prop_assert_eq!(walked.len(), resent.len());
        prop_assert!(resent.iter().all(|record| walked.contains(record)));
        Ok(())
    }

    fn plain(range: SeqRange, origin: Origin, at: Instant) -> Sent {
        Sent { range, segment_size: MSS, origin, syn: false, fin: false, at }
    }

    /// Sends `range` again, on the board and in the model.
    fn send_again(board: &mut Scoreboard, model: &mut Model, sent: &Sent) {
        board.on_sent(sent);
        if !matches!(sent.origin, Origin::Parity | Origin::Duplicate) {
            model.replace(sent.range, Byte::Lost, Byte::InFlight);
        }
    }

    fn acknowledge(
        board: &mut Scoreboard,
        model: &mut Model,
        ack: SeqNum,
        ranges: &[SeqRange],
        info: AckInfo,
    ) -> Result<(), TestCaseError> {
        let (una, nxt, sack) = (board.una(), board.nxt(), board.sack);
        let wire = ranges.iter().map(|range| SackBlock { start: range.start, end: range.end });
        let outcome = board.on_ack(ack, &wire.collect(), info);
        prop_assert_eq!(outcome.advanced, ack.since(una));
        let mut delivered = 0;
        for _ in 0..outcome.advanced {
            delivered += u32::from(model.bytes.pop_front() != Some(Byte::Sacked));
        }
        model.una = ack;
        let skip = usize::from(dsack_range(ranges, ack).is_some());
        for range in ranges.iter().skip(skip).filter(|range| sack && range.end.le(nxt)) {
            model.each(*range, |byte| {
                delivered += u32::from(*byte != Byte::Sacked);
                *byte = Byte::Sacked;
            });
        }
        let listed: u32 = outcome.delivered.iter().map(|segment| segment.range.len()).sum();
        prop_assert_eq!(listed, delivered);
        prop_assert!(outcome.delivered.is_sorted_by_key(|segment| segment.sent_at));
        if sack {
            prop_assert_eq!(outcome.delivered_bytes, delivered);
        }
        board.recycle(outcome);
        Ok(())
    }

    /// A step that transmits or acknowledges.
    fn exchange(
        board: &mut Scoreboard,
        model: &mut Model,
        step: &Step,
        now: Instant,
    ) -> Result<(), TestCaseError> {
        let (una, nxt) = (board.una(), board.nxt());
        match step {
            Step::Send { .. } if board.tail().is_some_and(|tail| tail.fin) => {}
            Step::Send { segments, size, fin } => {
                let range = SeqRange::with_len(nxt, segments * size + u32::from(*fin));
                board.on_sent(&Sent { segment_size: *size, fin: *fin, ..plain(range, Origin::New, now) });
                prop_assert_eq!(board.nxt(), range.end);
                model.bytes.extend(core::iter::repeat_n(Byte::InFlight, range.len() as usize));
            }
            Step::Again { origin, from, len } => {
                let start = una + (*from).min(nxt.since(una));
                let range = SeqRange::new(start, (start + *len).min(nxt));
                let origins = [Origin::Retransmit, Origin::TailLossProbe, Origin::Duplicate, Origin::Parity];
                send_again(board, model, &plain(range, origins[usize::from(*origin)], now));
            }
            Step::Retransmit { max_len } => {
                if let Some(range) = board.next_lost(*max_len) {
                    prop_assert!(!range.is_empty() && range.len() <= max_len + 1);
                    model.each(range, |byte| assert_eq!(*byte, Byte::Lost));
                    send_again(board, model, &plain(range, Origin::Retransmit, now));
                } else {
                    prop_assert!(*max_len == 0 || !board.has_lost());
                }
            }
            Step::Ack { advance, blocks, window_changed } => {
                let ack = una + (*advance).min(nxt.since(una));
                let start = |from: i32| SeqNum(ack.0.wrapping_add_signed(from));
                let ranges: Vec<SeqRange> =
                    blocks.iter().map(|&(from, len)| SeqRange::with_len(start(from), len)).collect();
                let info = AckInfo { window_changed: *window_changed, ..info(now) };
                acknowledge(board, model, ack, &ranges, info)?;
            }
            other => judge(board, model, other)?,
        }
        Ok(())
    }

    /// A step that changes what is believed of outstanding data.
    fn judge(board: &mut Scoreboard, model: &mut Model, step: &Step) -> Result<(), TestCaseError> {
        let all = SeqRange::new(board.una(), board.nxt());
        match step {
            Step::Send { .. } | Step::Again { .. } | Step::Retransmit { .. } | Step::Ack { .. } => {}
            Step::MarkLost { from, len } => {
                let range = SeqRange::with_len(all.start + *from, *len);
                let before = model.count(Byte::Lost);
                let newly = board.mark_lost(range);
                model.replace(range, Byte::InFlight, Byte::Lost);
                prop_assert_eq!(newly, model.count(Byte::Lost) - before);
            }
            Step::MarkAllLost => {
                board.mark_all_lost();
                model.replace(all, Byte::InFlight, Byte::Lost);
                prop_assert_eq!(board.pipe(), 0);
            }
            Step::MarkHeadLost => {
                let len = board.head().map_or(0, |head| head.range.len());
                board.mark_head_lost(MSS);
                model.replace(SeqRange::with_len(all.start, len), Byte::InFlight, Byte::Lost);
            }
            Step::Unmark => {
                board.unmark_lost();
                model.replace(all, Byte::Lost, Byte::InFlight);
            }
            Step::Renege => {
                board.clear_sacked();
                model.replace(all, Byte::Sacked, Byte::InFlight);
            }
            Step::Resplit { mss } => {
                board.resplit(*mss);
                prop_assert!(board.records().all(|record| record.payload() <= *mss));
            }
        }
        Ok(())
    }

    fn run(steps: Vec<Step>, sack: bool) -> Result<(), TestCaseError> {
        let mut board = Scoreboard::new(ISS, sack);
        let mut model = Model { una: ISS, bytes: VecDeque::new() };
        for (index, step) in steps.into_iter().enumerate() {
            exchange(&mut board, &mut model, &step, ms(index as u64))?;
            check(&board, &model, sack)?;
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn the_scoreboard_agrees_with_a_state_per_byte(
            steps in prop::collection::vec(step(), 1..50),
            sack: bool,
        ) {
            run(steps, sack)?;
        }

        #[test]
        fn no_acknowledgement_whatever_it_says_panics(
            acks in prop::collection::vec(
                (any::<u32>(), prop::collection::vec((any::<u32>(), any::<u32>()), 0..4), any::<u32>()),
                1..30,
            ),
            sack: bool,
        ) {
            let mut board = self::board(8, sack);
            for (ack, pairs, max_snd_wnd) in acks {
                let sack = pairs.iter().map(|&(start, end)| SackBlock { start: SeqNum(start), end: SeqNum(end) });
                board.on_ack(SeqNum(ack), &sack.collect(), AckInfo { max_snd_wnd, ..info(ms(9)) });
                prop_assert!(board.pipe() <= board.outstanding());
            }
        }
    }
}
