//! The scoreboard: a record for each sent segment, updated by acknowledgements (RFC 2018, RFC 2883, RFC 6675
//! section 3).
//!
//! Records lie back to back from SND.UNA to SND.NXT, ordered by sequence number. Sacked, lost and
//! retransmitted segments are stored a second time, as sets of ranges and in order of transmission, so that
//! an acknowledgement costs only the records that it changes and a binary search, however much is
//! outstanding. The scoreboard is the only place that sees a raw DSACK: it knows the retransmissions and
//! their reasons, and reports which of them the duplicate belongs to.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;

use brisk_wire::{SackBlocks, SeqNum};
use smallvec::SmallVec;

use crate::on_demand::{Initial, OnDemand};
use crate::outcome::{AckOutcome, Delivered, Dsack, DsackOf, Origin, Sent};
use crate::seq_ranges::{SeqRange, SeqRanges};
use crate::time::{Instant, Micros};

mod lost;
mod sent_twice;

use sent_twice::SentTwice;

/// Records that SACK blocks may cut in two before partial coverage is ignored: bounds the memory
/// that a peer with strange blocks can claim.
const MAX_SACK_SPLITS: u32 = 1024;

/// Record of one sent segment.
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
    /// Declared lost and neither sacked nor taken back since, whether or not it was sent again.
    pub(crate) missing: bool,
    /// Reported by SACK once, which the receiver has taken back: when it arrives says nothing of when it
    /// left.
    pub(crate) taken_back: bool,
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

/// Content of an acknowledgement besides SEG.ACK and its SACK blocks.
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
    pub(crate) ts_echo_rtt: Option<Micros>,
}

/// The records of what is outstanding.
#[derive(Clone, Debug)]
pub(crate) struct Scoreboard {
    records: VecDeque<Record>,
    una: SeqNum,
    nxt: SeqNum,
    sack: bool,
    sacked_segments: u32,
    missing_segments: u32,
    dupacks: u32,
    repair: OnDemand<Repair>,
    reno: Reno,
    /// A controller asks which ranges were marked lost.
    logs_losses: bool,
}

/// Everything but originals in flight, as sets of ranges and in order of transmission.
#[derive(Clone, PartialEq, Debug)]
struct Repair {
    sacked: SeqRanges,
    lost: SeqRanges,
    /// Ranges that are sacked, lost or were sent more than once.
    aside: SeqRanges,
    /// Ranges that were sent again, in that order; an entry may outlive its range.
    resent: VecDeque<Resent>,
    sent_twice: VecDeque<SentTwice>,
    sack_splits: u32,
    /// Ranges marked lost, with the time when they were last sent.
    lost_log: Vec<(SeqRange, Instant)>,
}

impl Initial for Repair {
    const INITIAL: Repair = Repair {
        sacked: SeqRanges::new(),
        lost: SeqRanges::new(),
        aside: SeqRanges::new(),
        resent: VecDeque::new(),
        sent_twice: VecDeque::new(),
        sack_splits: 0,
        lost_log: Vec::new(),
    };
    const SHARED: &'static Repair = &Self::INITIAL;
}

/// Substitute for SACK on a connection without it: each duplicate acknowledgement says that one segment
/// arrived, though not which (RFC 6582; DeliveredData of RFC 9937).
#[derive(Clone, Copy, Debug)]
struct Reno {
    /// Bytes that duplicate acknowledgements account for.
    arrived: u32,
    /// SND.NXT when the first loss of a recovery was declared: until SND.UNA is there, `arrived` outlives an
    /// advance.
    recover: Option<SeqNum>,
    /// SND.NXT at the first duplicate since SND.UNA advanced, or at the last repair: what was sent later
    /// arrives later than the repair, so no duplicate can speak of it.
    announced_to: SeqNum,
    /// Size of a segment, bytes.
    mss: u32,
}

/// A transmission of what had been sent before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    /// Frees what an idle sender does not need.
    pub(crate) fn release_memory(&mut self) {
        self.repair.release();
        self.records.shrink_to_fit();
    }

    /// An empty scoreboard: SND.UNA = SND.NXT = `iss`.
    pub(crate) fn new(iss: SeqNum, sack: bool) -> Self {
        Scoreboard {
            records: VecDeque::new(),
            una: iss,
            nxt: iss,
            sack,
            sacked_segments: 0,
            missing_segments: 0,
            dupacks: 0,
            repair: OnDemand::new(),
            reno: Reno { arrived: 0, recover: None, announced_to: iss, mss: 536 },
            logs_losses: false,
        }
    }

    /// Keeps what is marked lost for [`Scoreboard::take_lost_log`].
    pub(crate) fn log_losses(&mut self) {
        self.logs_losses = true;
    }

    /// Takes the ranges marked lost since the last call, in no order, with the time when each was last sent.
    pub(crate) fn take_lost_log(&mut self) -> Vec<(SeqRange, Instant)> {
        self.repair.get_mut().map(|repair| mem::take(&mut repair.lost_log)).unwrap_or_default()
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
        let repair = &*self.repair;
        let gone = repair.sacked.bytes() + repair.lost.bytes();
        self.outstanding().saturating_sub(gone).saturating_sub(self.reno.arrived)
    }

    /// True if some of what is outstanding has arrived by SACK or, without SACK, by a duplicate
    /// acknowledgement, or was sent again: in flight, or as the first.
    pub(crate) fn has_gaps(&self) -> bool {
        !self.repair.sacked.is_empty()
            || self.reno.arrived > 0
            || self.head().is_some_and(|head| head.transmissions > 1)
            || self.resent().any(|record| record.origin != Origin::TailLossProbe)
    }

    /// Bytes reported by SACK and still outstanding.
    pub(crate) fn sacked_bytes(&self) -> u32 {
        self.repair.sacked.bytes()
    }

    /// Segments that have arrived and are still outstanding: reported by SACK or, without it, by duplicate
    /// acknowledgements.
    pub(crate) fn arrived_segments(&self) -> u32 {
        self.sacked_segments + self.reno.arrived / self.reno.mss.max(1)
    }

    /// Segments reported by SACK and still outstanding.
    pub(crate) fn sacked_segments(&self) -> u32 {
        self.sacked_segments
    }

    /// True if all of `range` is reported by SACK.
    pub(crate) fn is_sacked(&self, range: &SeqRange) -> bool {
        !range.is_empty() && self.repair.sacked.covers(range)
    }

    /// True if these blocks report something that was not known.
    pub(crate) fn brings_news(&self, blocks: &SackBlocks) -> bool {
        let open = SeqRange::new(self.una, self.nxt);
        let news =
            |block: SeqRange| block.intersection(&open).is_some_and(|part| !self.repair.sacked.covers(&part));
        self.sack && blocks.iter().any(|block| news(SeqRange::new(block.start, block.end)))
    }

    /// Segments outstanding.
    pub(crate) fn segments(&self) -> u32 {
        self.records.len() as u32
    }

    /// Bytes declared lost and not sent again.
    pub(crate) fn lost_bytes(&self) -> u32 {
        self.repair.lost.bytes()
    }

    /// True if something is declared lost and not sent again.
    pub(crate) fn has_lost(&self) -> bool {
        !self.repair.lost.is_empty()
    }

    /// Segments declared lost that have not arrived, sent again or not.
    pub(crate) fn missing_segments(&self) -> u32 {
        self.missing_segments
    }

    /// The sequence number after the highest one reported by SACK.
    pub(crate) fn highest_sacked(&self) -> Option<SeqNum> {
        self.repair.sacked.last().map(|range| range.end)
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
                let others = if record.sacked { &self.repair.sacked } else { &self.repair.lost };
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
            let record = match self.repair.aside.range_at(record.range.start) {
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
        self.repair.resent.iter().flat_map(|resent| self.records_of(resent))
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
        if sent.syn {
            // A handshake may repeat itself for minutes, and no acknowledgement tidies up.
            self.forget_resent();
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
            missing: false,
            taken_back: false,
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
        self.repair.lost.remove(range);
        let Some(range) = range.intersection(&SeqRange::new(self.una, self.nxt)) else { return };
        self.repair.aside.insert(range);
        match self.repair.resent.back_mut() {
            Some(last) if last.at == sent.at && last.range.end == range.start => last.range.end = range.end,
            Some(_) | None => self.repair.resent.push_back(Resent { at: sent.at, range }),
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
            delivered_segments: 0,
            delivered: SmallVec::new(),
            pipe_before: self.pipe(),
            undelivered_before: (self.outstanding() - self.repair.sacked.bytes())
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
        let una_before = outcome.una_before;
        outcome
            .delivered
            .sort_unstable_by_key(|segment| (segment.sent_at, segment.range.start.since(una_before)));
        outcome.rtt = sample.rtt(&info, outcome.advanced > 0);
        outcome
    }

    /// Strikes out what was sent again and is no longer in flight since, from the oldest on.
    #[inline]
    fn forget_resent(&mut self) {
        // Mostly nothing was.
        if self.repair.resent.capacity() > 0 {
            self.strike_out_resent();
        }
    }

    fn strike_out_resent(&mut self) {
        while let Some(oldest) = self.repair.resent.front() {
            if self.records_of(oldest).next().is_some() {
                return;
            }
            self.repair.resent.pop_front();
        }
        if self.is_empty() {
            self.repair.resent = VecDeque::new();
        }
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
        if let Some(repair) = self.repair.get_mut() {
            repair.sacked.remove_before(ack);
            repair.lost.remove_before(ack);
            repair.aside.remove_before(ack);
            if repair.sacked.is_empty() {
                repair.sack_splits = 0;
            }
        }
    }

    /// Marks the segment of `record` as acknowledged; it has left the scoreboard.
    #[inline]
    fn deliver(&mut self, record: Record, outcome: &mut AckOutcome, sample: &mut Sample) {
        if record.transmissions > 1 || record.taken_back {
            sample.retransmitted = true;
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
        // "SACK blocks outside [SND.UNA - MAX.SND.WND, SND.NXT] are ignored": some middleboxes
        // translate sequence numbers but not SACK blocks.
        let believable = SeqRange::new(outcome.una_before - info.max_snd_wnd.min(1 << 30), self.nxt);
        let ranges: SmallVec<[SeqRange; 4]> =
            blocks.iter().map(|block| SeqRange::new(block.start, block.end)).collect();
        let duplicate = dsack_range(&ranges, outcome.ack);
        // A block that ends behind SND.NXT speaks of what was never sent.
        let is_believable = ranges.first().is_some_and(|first| believable.covers(first));
        outcome.dsack = duplicate.filter(|_| is_believable).map(|range| {
            let (of, sent_twice) = self.take_sent_twice(range);
            Dsack { range, of, sent_twice, reported_before: false }
        });
        let skip = usize::from(duplicate.is_some());
        // A block that begins at SND.UNA contradicts the acknowledgement number: what it reports would have
        // been acknowledged (Linux ignores it too).
        let una = self.una;
        let is_possible = |range: &&SeqRange| believable.covers(range) && range.start.gt(una);
        for range in ranges.iter().skip(skip).filter(is_possible) {
            let Some(above) = range.intersection(&SeqRange::new(self.una, self.nxt)) else { continue };
            let news: SmallVec<[SeqRange; 4]> = self.repair.sacked.gaps(above).collect();
            for gap in news {
                self.mark_sacked(gap, outcome, sample);
            }
        }
    }

    /// True if the duplicate that the first block reports is of a segment that was outstanding and reported,
    /// and sent twice. Call it before anything is taken in.
    fn repeats_sacked(&self, ack: SeqNum, blocks: &SackBlocks) -> bool {
        let ranges: SmallVec<[SeqRange; 4]> =
            blocks.iter().map(|block| SeqRange::new(block.start, block.end)).collect();
        let start = dsack_range(&ranges, ack).map(|range| range.start);
        let start = start.filter(|start| self.una.le(*start) && start.lt(self.nxt));
        let record = start.and_then(|start| self.records.get(self.index_of(start)));
        record.is_some_and(|record| record.sacked && record.transmissions > 1)
    }

    /// Marks what `gap`, of which nothing is sacked yet, covers.
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
            self.repair.sacked.insert(run);
            self.repair.aside.insert(run);
            self.repair.lost.remove(run);
        }
    }

    /// Index of the first record that starts at or after `seq`; the record that `seq` is inside of is
    /// cut there if the allowance lasts, else it counts as not covered: as after `seq` for the end of
    /// a block, as before it for the start (`round_up`).
    fn sack_cut(&mut self, seq: SeqNum, round_up: bool) -> usize {
        let index = self.index_of(seq);
        match self.records.get(index) {
            Some(record) if record.range.start.lt(seq) => {
                if self.repair.sack_splits < MAX_SACK_SPLITS {
                    self.repair.sack_splits += 1;
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
            // At least what was declared lost, sent again or not, and the hole itself have not arrived. RFC
            // 5681 section 3.2 step 4 lets the sender bound what duplicates inflate by what is outstanding:
            // else a receiver that repeats its acknowledgement would draw new data for as long as its own
            // window lasts.
            let holes = self.missing_segments.saturating_mul(self.reno.mss).max(head);
            let most = self.reno.announced_to.since(self.una).saturating_sub(holes);
            let arrived = self.reno.arrived.saturating_add(self.reno.mss).min(most.max(self.reno.arrived));
            outcome.delivered_bytes += arrived - self.reno.arrived;
            outcome.delivered_segments += (arrived - self.reno.arrived).div_ceil(self.reno.mss);
            self.reno.arrived = arrived;
        } else if outcome.advanced > 0 {
            // DeliveredData of RFC 9937: what duplicates accounted for is not delivered twice. One segment
            // of the advance filled the hole; the rest had been announced.
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
                self.missing_segments += u32::from(piece.missing);
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
        self.missing_segments += u32::from(after.missing);
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
}

impl Record {
    fn delivered(&self) -> Delivered {
        Delivered {
            range: self.range,
            sent_at: self.sent_at,
            retransmitted: self.transmissions > 1 || self.taken_back,
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
    fn rtt(&self, info: &AckInfo, advanced: bool) -> Option<Micros> {
        let cumulative = self.cumulative.filter(|_| !self.retransmitted);
        match cumulative.or(self.selective) {
            Some(sent_at) => Some(Micros::between(sent_at, info.now)),
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
mod tests;
