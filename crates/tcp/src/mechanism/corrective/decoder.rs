//! The decoder: processes a parity segment and returns the lost bytes, or the reason why it cannot.
//!
//! The decoder does not know the connection. It reads the arrived bytes through [`ReceivedBytes`] and returns
//! an [`Outcome`]. The connection feeds rebuilt bytes to the assembler, acknowledges and reports. A parity
//! segment is never data: its payload is never delivered.
//!
//! In profile F2 the sender computes a CRC-32C over its own copy of the whole range. The arrived and the
//! rebuilt bytes together must match it; otherwise nothing is delivered. With the XOR codes the checksum does
//! not cover the position of the range, so bytes of the range that have arrived must confirm it. If none
//! have, the range is repaired only if it follows data that has arrived. Otherwise a device on the path that
//! moves a range could fill the wrong hole.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use arrayvec::ArrayVec;
use brisk_wire::{Flags, Gentle, SeqNum, gentle};

use super::code::{self, Code, Layout, Placed, ROWS_MAX};
use super::repair::{HOLES_MAX, Holes, ReceivedParity};
use crate::mechanism::Profile;
use crate::outcome::{Arrived, Rebuilt};
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant};

/// Limit of parity segments that are decoded within [`RATE_SPAN`]. More are dropped unread.
pub(crate) const RATE_LIMIT: u32 = 64;
/// See [`RATE_LIMIT`].
pub(crate) const RATE_SPAN: Duration = Duration::from_millis(100);

/// Maximum distance of a parity segment to the left of RCV.NXT, bytes.
const LEFT_MAX: u32 = 1 << 30;

/// Limit of parities that wait for others of their group. A further one replaces the oldest.
const WAITING_MAX: usize = ROWS_MAX as usize;

/// Number of checksum mismatches after which the decoder should be switched off. A forged segment can cause
/// one mismatch; a path that rewrites payload causes more.
const MISMATCHES_MAX: u32 = 2;

/// Constant parameters of a decoder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecoderConfig {
    /// The agreed code.
    pub code: Code,
    /// The agreed profile.
    pub profile: Profile,
    /// RMSS: the MSS that this end announced, bytes.
    pub rmss: u32,
    /// Sequence number of the peer's first stream byte: IRS + 1.
    pub origin: SeqNum,
}

impl DecoderConfig {
    /// Returns the number of bytes before RCV.NXT that may take part in a repair. It is one block less than a
    /// group, because one block is missing.
    pub fn history(&self) -> u32 {
        (self.code.blocks_max() - 1) * self.rmss
    }
}

/// The edges of the receive window when the parity segment arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edges {
    /// RCV.NXT.
    pub rcv_nxt: SeqNum,
    /// RCV.WND, bytes.
    pub rcv_wnd: u32,
    /// The FIN of the peer has arrived, in order or not.
    pub fin_known: bool,
}

/// Part of the stream that the receiver still holds.
pub trait ReceivedBytes {
    /// Returns the oldest readable byte; RCV.NXT if there is none. All bytes from it to RCV.NXT are readable.
    fn oldest(&self) -> SeqNum;
    /// Iterates in ascending order over the parts of `within`, at or after RCV.NXT, that have not arrived.
    fn gaps(&self, within: SeqRange) -> impl Iterator<Item = SeqRange>;
    /// Returns the bytes of `range` in at most two pieces. All of them must be held.
    fn slices(&self, range: SeqRange) -> (&[u8], &[u8]);
}

/// Reason why a parity segment was dropped without an answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unfit {
    /// The segment is not parity of the agreed profile and code, or has SYN, FIN, RST or URG.
    Form,
    /// Profile F2: the segment is not left of the window.
    NotLeft,
    /// The length of the payload contradicts the length of the encoded range, RMSS or the code.
    Shape,
    /// The encoded range reaches beyond the window.
    BeyondWindow,
    /// The encoded range begins before any history.
    TooOld,
    /// More than `RATE_LIMIT` parity segments arrived within `RATE_SPAN`.
    Rate,
}

/// Reason why a loss could not be repaired.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// More is missing than the parities of the group can repair. Or no arrived data confirms the range's
    /// position.
    TooMuchLost,
    /// Bytes that arrived are no longer held.
    History,
    /// The rebuilt range differs from the one that the sender encoded.
    Checksum,
}

/// Outcome of a parity segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Dropped without an answer.
    Dropped(Unfit),
    /// No covered byte is missing. No answer.
    Nothing,
    /// The parity waits: together with later ones it may repair the missing bytes. No answer.
    Waiting,
    /// Pass these to the assembler in this order, report `R_SUCC`, and acknowledge at once.
    Recovered(Recovered),
    /// Acknowledge at once with `R_FAIL` and this `lost_len`.
    Failed {
        /// Bytes from RCV.NXT to the end of the encoded range.
        lost_len: u32,
        /// Reason of the failure.
        why: Failure,
    },
    /// The path rewrites payload: switch the decoder off and send STOP.
    Stop,
}

/// Bytes that a repair recovered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recovered {
    /// The missing runs in ascending order. The last may be empty and have only a FIN.
    pub runs: Vec<Rebuilt>,
    /// The range that the parity covered.
    pub range: SeqRange,
    /// Parities that took part.
    pub parities: u8,
}

/// Content of the option of a parity segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Label {
    layout: Layout,
    crc32c: Option<u32>,
    fin_end: bool,
    row: u8,
    rows: u8,
}

impl Label {
    /// True if both are parities of one group.
    fn same_group(&self, other: &Label) -> bool {
        let Label { layout, crc32c, fin_end: _, row: _, rows: _ } = *self;
        layout == other.layout && crc32c == other.crc32c
    }
}

/// A parity that waits for others of its group.
#[derive(Clone, PartialEq, Eq, Debug)]
struct WaitingParity {
    label: Label,
    payload: Vec<u8>,
}

/// Result of an attempt at a repair.
enum Attempt {
    Done(Recovered),
    Short { by: usize },
    Failed(Failure),
}

/// The parity segments that wait for others of their group, and the counts that limit repairs.
#[derive(Clone, Debug)]
pub struct Decoder {
    config: DecoderConfig,
    waiting: VecDeque<WaitingParity>,
    mismatches: u32,
    span_start: Instant,
    decoded_in_span: u32,
}

impl Decoder {
    /// Returns a decoder for the agreement of the handshake. It holds no memory until parities wait.
    pub fn new(config: DecoderConfig) -> Self {
        Decoder {
            config,
            waiting: VecDeque::new(),
            mismatches: 0,
            span_start: Instant::ZERO,
            decoded_in_span: 0,
        }
    }

    /// Returns the configuration.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Returns the bytes of memory of waiting parities.
    pub fn memory(&self) -> usize {
        self.waiting.iter().map(|waiting| waiting.payload.capacity()).sum()
    }

    /// Frees the waiting parities.
    pub fn clear(&mut self) {
        self.waiting = VecDeque::new();
    }

    /// Processes a parity segment that has passed PAWS and whose SEG.ACK is acceptable, in a state in which
    /// data may arrive.
    pub fn on_segment(
        &mut self,
        segment: &Arrived<'_>,
        edges: &Edges,
        received: &impl ReceivedBytes,
        now: Instant,
    ) -> Outcome {
        let label = match self.read(segment, edges) {
            Ok(label) => label,
            Err(unfit) => return Outcome::Dropped(unfit),
        };
        let missing = missing(&label, edges, received);
        if missing.is_empty() && !lacks_fin(&label, edges) {
            return Outcome::Nothing;
        }
        if !self.allow(now) {
            return Outcome::Dropped(Unfit::Rate);
        }
        self.forget_complete(edges);
        let lost_len = label.layout.range().end.since(edges.rcv_nxt).min(gentle::STOP - 1);
        match self.attempt(&label, Some(segment.payload), &missing, edges, received) {
            Attempt::Done(recovered) => {
                self.forget(&label);
                Outcome::Recovered(recovered)
            }
            Attempt::Short { by } => {
                self.keep(label, segment.payload);
                if by <= usize::from(label.rows - 1 - label.row) {
                    Outcome::Waiting
                } else {
                    Outcome::Failed { lost_len, why: Failure::TooMuchLost }
                }
            }
            Attempt::Failed(Failure::Checksum) => self.on_mismatch(&label, lost_len),
            Attempt::Failed(why) => Outcome::Failed { lost_len, why },
        }
    }

    /// Tries again after the arrival of data. `None` if no parities wait or if they still do not suffice.
    pub fn on_data(&mut self, edges: &Edges, received: &impl ReceivedBytes, now: Instant) -> Option<Outcome> {
        self.forget_complete(edges);
        for index in 0..self.waiting.len() {
            let label = self.waiting.get(index)?.label;
            let missing = missing(&label, edges, received);
            let depth = Holes::new(&label.layout, &missing).map(|holes| holes.depth());
            let parities = self.waiting.iter().filter(|other| other.label.same_group(&label)).count();
            if missing.is_empty() || depth.is_none_or(|depth| depth > parities) || !self.allow(now) {
                continue;
            }
            match self.attempt(&label, None, &missing, edges, received) {
                Attempt::Done(recovered) => {
                    self.forget(&label);
                    return Some(Outcome::Recovered(recovered));
                }
                Attempt::Failed(Failure::Checksum) => {
                    let lost_len = label.layout.range().end.since(edges.rcv_nxt).min(gentle::STOP - 1);
                    return Some(self.on_mismatch(&label, lost_len));
                }
                Attempt::Short { by: _ } | Attempt::Failed(Failure::History | Failure::TooMuchLost) => {}
            }
        }
        None
    }

    /// Reads the option, and checks form and position of a parity segment before its payload is read.
    fn read(&self, segment: &Arrived<'_>, edges: &Edges) -> Result<Label, Unfit> {
        let forbidden = [Flags::SYN, Flags::FIN, Flags::RST, Flags::URG];
        let len = segment.payload.len() as u32;
        if len == 0 || forbidden.iter().any(|flag| segment.flags.contains(*flag)) {
            return Err(Unfit::Form);
        }
        let DecoderConfig { code, profile, rmss, origin: _ } = self.config;
        let (flags, start, enc_len, crc32c, row, rows) = match (segment.options.gentle, profile.is_f1(), code)
        {
            (Some(Gentle::EncF1 { flags, enc_len }), true, _) => (flags, segment.seq, enc_len, None, 0, 1),
            (Some(Gentle::EncF2 { flags, enc_len, start_off, crc32c }), false, _) => {
                (flags, segment.seq + start_off, enc_len, Some(crc32c), 0, 1)
            }
            (
                Some(Gentle::EncRs { flags, enc_len, start_off, crc32c, parity, parities }),
                false,
                Code::ReedSolomon,
            ) => (flags, segment.seq + start_off, enc_len, Some(crc32c), parity, parities),
            _ => return Err(Unfit::Form),
        };
        let left = (segment.seq + len).le(edges.rcv_nxt) && edges.rcv_nxt.since(segment.seq) < LEFT_MAX;
        if !profile.is_f1() && !left {
            return Err(Unfit::NotLeft);
        }
        if len > enc_len || len > rmss || row >= rows || rows > ROWS_MAX {
            return Err(Unfit::Shape);
        }
        let range = SeqRange::with_len(start, enc_len);
        let layout = Layout::new(code, range, len).ok_or(Unfit::Shape)?;
        if range.end.gt(edges.rcv_nxt + edges.rcv_wnd) {
            return Err(Unfit::BeyondWindow);
        }
        if start.lt(edges.rcv_nxt - self.config.history()) && range.end.gt(edges.rcv_nxt) {
            return Err(Unfit::TooOld);
        }
        let fin_end = !profile.is_f1() && flags & gentle::FIN_END != 0;
        Ok(Label { layout, crc32c, fin_end, row, rows })
    }

    /// Tries to repair a group with the waiting parities and the `arriving` one, if there is one.
    fn attempt(
        &self,
        label: &Label,
        arriving: Option<&[u8]>,
        missing: &[SeqRange],
        edges: &Edges,
        received: &impl ReceivedBytes,
    ) -> Attempt {
        let layout = &label.layout;
        let range = layout.range();
        if range.start.lt(received.oldest()) && range.start.lt(edges.rcv_nxt) {
            return Attempt::Failed(Failure::History);
        }
        // In F1 parity has no checksum, so it repairs only one run of at most a block (W-5.17).
        let is_one_run = missing.len() <= 1 && missing.iter().all(|run| run.len() <= layout.block());
        if self.config.profile.is_f1() && !is_one_run {
            return Attempt::Failed(Failure::TooMuchLost);
        }
        let Some(holes) = Holes::new(layout, missing) else {
            return Attempt::Failed(Failure::TooMuchLost);
        };
        let parities = self.parities(label, arriving);
        if parities.len() < holes.depth() {
            return Attempt::Short { by: holes.depth() - parities.len() };
        }
        let spans = spans(layout, missing);
        if !self.is_placed(&spans, range.start, edges, received) {
            return Attempt::Failed(Failure::TooMuchLost);
        }
        let arrived = spans.iter().filter(|span| span.1.is_none()).flat_map(|span| placed(received, span.0));
        let Some(mut runs) = holes.repair(layout, missing, &parities, arrived) else {
            return Attempt::Failed(Failure::History);
        };
        let rebuilt = |run: usize| runs.get(run).map_or(&[][..], |run| &run.payload);
        let all = spans.iter().flat_map(|(span, run)| match *run {
            None => placed(received, *span),
            Some(run) => code::placed(span.start, (rebuilt(run), &[])),
        });
        if label.crc32c.is_some_and(|crc32c| crc32c != code::checksum(layout, self.config.origin, all)) {
            return Attempt::Failed(Failure::Checksum);
        }
        if lacks_fin(label, edges) {
            end_with_fin(&mut runs, range.end);
        }
        Attempt::Done(Recovered { runs, range, parities: holes.depth() as u8 })
    }

    /// True if arrived data or the checksum confirms the position of the range; see the [module](self). F1
    /// needs no confirmation.
    fn is_placed(&self, spans: &[Span], start: SeqNum, edges: &Edges, received: &impl ReceivedBytes) -> bool {
        let by_checksum = match self.config.code {
            Code::Xor | Code::XorInterleaved => false,
            Code::ReedSolomon => true,
        };
        by_checksum
            || self.config.profile.is_f1()
            || spans.iter().any(|(_, run)| run.is_none())
            || start.le(edges.rcv_nxt)
            || received.gaps(SeqRange::new(start - 1, start)).next().is_none()
    }

    /// Returns the parities of a group sorted by row: the `arriving` one and the waiting ones.
    fn parities<'a>(
        &'a self,
        label: &Label,
        arriving: Option<&'a [u8]>,
    ) -> ArrayVec<ReceivedParity<'a>, WAITING_MAX> {
        let own = arriving.map(|payload| ReceivedParity { row: label.row, payload });
        let waiting = self
            .waiting
            .iter()
            .filter(|other| other.label.same_group(label))
            .filter(|other| arriving.is_none() || other.label.row != label.row)
            .map(|other| ReceivedParity { row: other.label.row, payload: &other.payload });
        let mut parities: ArrayVec<_, WAITING_MAX> =
            own.into_iter().chain(waiting).take(WAITING_MAX).collect();
        parities.sort_unstable_by_key(|parity| parity.row);
        parities
    }

    /// Keeps a parity until others of its group arrive.
    fn keep(&mut self, label: Label, payload: &[u8]) {
        let known =
            self.waiting.iter().any(|other| other.label.same_group(&label) && other.label.row == label.row);
        if known || label.rows == 1 {
            return;
        }
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(WaitingParity { label, payload: payload.to_vec() });
    }

    fn forget(&mut self, label: &Label) {
        self.waiting.retain(|waiting| !waiting.label.same_group(label));
        self.release();
    }

    /// Frees parities of groups of which no byte can be missing any more.
    fn forget_complete(&mut self, edges: &Edges) {
        self.waiting.retain(|waiting| waiting.label.layout.range().end.gt(edges.rcv_nxt));
        self.release();
    }

    fn release(&mut self) {
        if self.waiting.is_empty() && self.waiting.capacity() > 0 {
            self.waiting = VecDeque::new();
        }
    }

    fn on_mismatch(&mut self, label: &Label, lost_len: u32) -> Outcome {
        self.forget(label);
        self.mismatches += 1;
        if self.mismatches >= MISMATCHES_MAX {
            self.clear();
            Outcome::Stop
        } else {
            Outcome::Failed { lost_len, why: Failure::Checksum }
        }
    }

    /// Counts a decoding; false if the rate limit is reached.
    fn allow(&mut self, now: Instant) -> bool {
        if now.saturating_since(self.span_start) >= RATE_SPAN {
            self.span_start = now;
            self.decoded_in_span = 0;
        }
        self.decoded_in_span = self.decoded_in_span.saturating_add(1);
        self.decoded_in_span <= RATE_LIMIT
    }
}

/// Returns the encoded bytes that have not arrived, as disjoint runs in ascending order. Returns at most
/// [`HOLES_MAX`] + 1 runs, because more cannot be repaired anyway.
fn missing(
    label: &Label,
    edges: &Edges,
    received: &impl ReceivedBytes,
) -> ArrayVec<SeqRange, { HOLES_MAX + 1 }> {
    let ahead = |range: SeqRange| SeqRange::new(range.start.max(edges.rcv_nxt), range.end);
    let encoded = label.layout.encoded().map(ahead).filter(|range| !range.is_empty());
    encoded.flat_map(|range| received.gaps(range)).take(HOLES_MAX + 1).collect()
}

/// True if the parity announces a FIN that the receiver does not know yet.
fn lacks_fin(label: &Label, edges: &Edges) -> bool {
    label.fin_end && !edges.fin_known && label.layout.range().end.ge(edges.rcv_nxt)
}

/// Puts a FIN at the end of the encoded range: on the last run if that ends there, otherwise alone.
fn end_with_fin(runs: &mut Vec<Rebuilt>, end: SeqNum) {
    match runs.last_mut() {
        Some(last) if last.seq + last.payload.len() as u32 == end => last.fin = true,
        Some(_) | None => runs.push(Rebuilt { seq: end, payload: Vec::new(), fin: true }),
    }
}

/// A part of the encoded range, with the index of its run if it is missing.
type Span = (SeqRange, Option<usize>);

/// Divides the encoded range into spans in stream order, arrived (`None`) or missing (index of the run).
fn spans(layout: &Layout, missing: &[SeqRange]) -> Vec<Span> {
    let mut spans = Vec::new();
    let mut runs = missing.iter().enumerate().peekable();
    for encoded in layout.encoded() {
        let mut at = encoded.start;
        while let Some((run, range)) = runs.next_if(|(_, run)| run.start.lt(encoded.end)) {
            spans.extend([(SeqRange::new(at, range.start), None), (*range, Some(run))]);
            at = range.end;
        }
        spans.push((SeqRange::new(at, encoded.end), None));
    }
    spans.retain(|(range, _)| !range.is_empty());
    spans
}

fn placed<'a>(received: &'a impl ReceivedBytes, range: SeqRange) -> [Placed<'a>; 2] {
    code::placed(range.start, received.slices(range))
}

#[cfg(test)]
mod adversary;
#[cfg(test)]
mod tests;
