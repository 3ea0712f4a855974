//! The sending half of Corrective on one connection (Gentle Aggression section 5): it selects the data to
//! encode and the time of its parity. The peer's reports, or their absence, affect loss detection and later
//! parity. The [encoder](crate::mechanism::corrective::encoder) forms the groups.

use brisk_wire::gentle::{ENC, FIN_END};
use brisk_wire::{Gentle as GentleOption, SeqNum};

use crate::config::{CorrectiveConfig, FecHold};
use crate::connection::decision::{Change, Choice, Data, Step};
use crate::connection::gentle::{Active, Gentle, Parts, Refuted};
use crate::connection::observation::Observation;
use crate::connection::sender::Sender;
use crate::evidence::is_queued;
use crate::mechanism::corrective::code::{Code, checksum, placed_pieces};
use crate::mechanism::corrective::encoder::{Encoder, EncoderContext, GroupParams, Unsent};
use crate::mechanism::corrective::queue::QueueWatch;
use crate::mechanism::corrective::ring::{Ring, SentParity};
use crate::mechanism::plan::{self, Parity};
use crate::mechanism::signal::RepairReport;
use crate::mechanism::{Agreed, DueParity, ParityOff, Profile};
use crate::outcome::{AckOutcome, CongestionState, Delivered, Dsack, DsackOf, Origin};
use crate::path::PathFacts;
use crate::send::budget::Budget;
use crate::send::queue::SendQueue;
use crate::send::rack::RackVerdict;
use crate::send::scoreboard::{Record, Scoreboard};
use crate::seq_ranges::{SeqRange, SeqRanges};
use crate::time::{Duration, Instant, Micros};

/// Length of the longest option of the profile, padded. Every data segment leaves these bytes free, so that a
/// parity segment with the same payload fits the same packet.
const RESERVED_F2: u32 = 16;
const RESERVED_F1: u32 = 8;

/// Number of repairs whose acknowledgement a device dropped, after which the path gets no more parity.
const ACK_HOLES_MAX: u32 = 3;

/// The sending half of Corrective.
#[derive(Debug)]
pub(crate) struct ParityTx {
    encoder: Encoder,
    ring: Ring,
    queue: QueueWatch,
    /// Range and checksum of the last group for which parity was built.
    checksum: Option<(SeqRange, u32)>,
    config: CorrectiveConfig,
    profile: Profile,
    /// Segments that the last report covers, if all their originals may only be late; `None` if parity
    /// repaired a segment that was certainly lost.
    refutable: Option<SeqRanges>,
    /// True if an acknowledgement must follow the parity that has just left.
    tail_ack_due: bool,
    /// SND.NXT when the last segment without data left.
    bare_ack_at: Option<SeqNum>,
    ack_holes: u32,
    /// True if the peer reported the sequence numbers of a parity segment as a duplicate, with no other
    /// explanation.
    taken_for_data: bool,
}

impl ParityTx {
    /// True if parity, or the acknowledgement that follows it, is due and has not left.
    pub(crate) fn is_waiting(&self) -> bool {
        self.tail_ack_due || self.encoder.is_waiting()
    }

    pub(crate) fn new(agreed: &Agreed, code: Code, config: CorrectiveConfig) -> Self {
        ParityTx {
            encoder: Encoder::new(agreed.profile, code, &config),
            ring: Ring::default(),
            queue: QueueWatch::default(),
            checksum: None,
            refutable: Some(SeqRanges::new()),
            config,
            profile: agreed.profile,
            tail_ack_due: false,
            bare_ack_at: None,
            ack_holes: 0,
            taken_for_data: false,
        }
    }

    /// True if parity left that may have repaired a loss.
    pub(crate) fn expects_reports(&self) -> bool {
        !self.ring.is_empty()
    }

    /// Returns how loss detection waits for data that parity may repair. With a planner the shorter hold
    /// applies.
    fn hold(&self, planned: bool) -> FecHold {
        self.config.hold.unwrap_or(match self.encoder.params().code {
            Code::ReedSolomon if !planned => FecHold::Full,
            Code::Xor | Code::XorInterleaved | Code::ReedSolomon => FecHold::Reordering,
        })
    }

    /// Returns the round-trip time that determines the delay of parity.
    fn rtt(&self, tx: &Sender, known: &PathFacts) -> Option<Duration> {
        let known = known.rtt.map(|rtt| rtt.srtt);
        tx.rtt.srtt().map(Duration::from).or(self.config.expected_rtt).or(known)
    }

    pub(crate) fn on_rtt(&mut self, rtt: Micros, board: &Scoreboard, now: Instant) {
        self.queue.on_sample(rtt, board.una(), board.nxt(), now);
    }

    /// Returns the time at which parity is due, or a group is complete.
    pub(crate) fn next_timeout(&self, tx: &Sender, known: &PathFacts) -> Option<Instant> {
        self.encoder.next_timeout(self.rtt(tx, known))
    }

    pub(crate) fn on_timeout(&mut self, parts: &Parts<'_>, now: Instant) {
        let rtt = self.rtt(parts.tx, &parts.path.known);
        self.encoder.on_timeout(rtt, now);
    }

    /// Encodes data that left for the first time. Data that is `copied` needs no parity.
    pub(crate) fn encode(
        &mut self,
        data: &Data,
        copied: bool,
        urgent: bool,
        withheld: bool,
        parts: &Parts<'_>,
        now: Instant,
    ) {
        if urgent {
            self.encoder.discard_open();
        } else if data.mtu_probe || copied {
            self.encoder.close();
        } else {
            let range = SeqRange::with_len(data.range.start, data.payload_len());
            let rtt = self.rtt(parts.tx, &parts.path.known);
            self.encoder.on_sent(range, data.segment_size, withheld, rtt, now);
        }
    }

    /// True if there is a queue on the path that parity would make longer. Always false in F1.
    fn sees_standing_queue(&self, tx: &Sender, known: &PathFacts, now: Instant) -> bool {
        let Some(srtt) = tx.rtt.srtt().filter(|_| !self.profile.is_f1()) else { return false };
        let min_rtt = || known.min_with(tx.rtt.min_rtt());
        self.queue.min_rtt(srtt, now).map(Duration::from).is_some_and(|min| is_queued(min, min_rtt()))
    }

    /// Returns the bytes by which the payload of data segments is reduced.
    pub(crate) fn option_reserve(&self) -> u32 {
        if self.profile.is_f1() { RESERVED_F1 } else { RESERVED_F2 }
    }
}

/// Ranges that the peer could not repair.
#[derive(Debug)]
pub(crate) struct Unrepaired {
    /// The ranges that are now lost.
    pub(crate) verdict: RackVerdict,
    /// True if no more parity may leave, because it does not help on this path.
    pub(crate) hopeless: bool,
}

/// The plan of parity.
impl Gentle {
    /// Returns the forms that the planner may choose from.
    pub(crate) fn planned_parity(&self) -> Option<Parity> {
        let tx = self.parity()?;
        Some(match tx.encoder.params().code {
            Code::Xor => Parity::Xor,
            Code::XorInterleaved => Parity::Interleaved,
            Code::ReedSolomon => Parity::ReedSolomon,
        })
    }

    /// Applies a plan to the data that follows: `parities` (0: none) for each group of at most `group`
    /// segments. They leave after a pause or directly after the group.
    pub(crate) fn plan_parity(&mut self, parities: u32, group: u32, pause: bool) {
        if let Some(ParityTx { encoder, config, .. }) = self.parity_tx() {
            encoder.close();
            encoder.set_params(GroupParams {
                blocks: group.max(2),
                parities: parities.min(plan::PARITIES_MAX) as u8,
                delay_divisor: if pause { config.delay_divisor } else { 0 },
                ..encoder.params()
            });
        }
    }
}

/// Transmission.
impl Gentle {
    #[inline]
    fn parity(&self) -> Option<&ParityTx> {
        self.active.as_ref()?.tx.as_ref()
    }

    /// Returns the checksum of the data in `queue` that a parity covers; the stream begins with `origin`. All
    /// parities of a group have the same checksum and leave in a row, so the checksum of the last group is
    /// kept.
    fn parity_checksum(&self, parity: &DueParity, origin: SeqNum, queue: &SendQueue) -> u32 {
        let range = parity.layout.range();
        let known = self.parity().and_then(|tx| tx.checksum);
        known.filter(|(of, _)| parity.row > 0 && *of == range).map_or_else(
            || checksum(&parity.layout, origin, placed_pieces(range.start, &queue.pieces(range))),
            |(_, crc32c)| crc32c,
        )
    }

    /// Returns the option of a parity segment: the covered range, and in F1 the flags of every segment. The
    /// data is in `queue`; the stream begins with `origin`.
    pub(crate) fn parity_option(
        &self,
        parity: &DueParity,
        flags: Option<GentleOption>,
        origin: SeqNum,
        queue: &SendQueue,
    ) -> GentleOption {
        let range = parity.layout.range();
        let (enc_len, start_off) = (range.len(), range.start.since(parity.seq));
        if self.is_f1() {
            let flags = flags.and_then(|option| option.flags()).unwrap_or(0);
            return GentleOption::EncF1 { flags: flags | ENC, enc_len };
        }
        let flags = ENC | if parity.fin_end { FIN_END } else { 0 };
        let crc32c = self.parity_checksum(parity, origin, queue);
        if parity.parities > 1 {
            let (parity, parities) = (parity.row, parity.parities);
            return GentleOption::EncRs { flags, enc_len, start_off, crc32c, parity, parities };
        }
        GentleOption::EncF2 { flags, enc_len, start_off, crc32c }
    }

    /// True if a parity segment with sequence number `seq` left within the last two round trips.
    pub(crate) fn sent_parity_at(&self, seq: SeqNum, srtt: Option<Micros>, now: Instant) -> bool {
        let left = self.parity().and_then(|tx| tx.ring.at(seq)).map(|parity| Micros::between(parity.at, now));
        left.zip(srtt).is_some_and(|(age, srtt)| age <= srtt * 2)
    }
}

/// The parity that leaves next.
impl Gentle {
    /// Decides whether parity leaves, before new data. `owes_ack`: an acknowledgement is owed; `is_early`:
    /// the handshake is not complete.
    pub(crate) fn decide_parity(
        &self,
        tx: &Sender,
        known: &PathFacts,
        owes_ack: bool,
        is_early: bool,
        budget: impl FnOnce() -> Budget,
        now: Instant,
    ) -> Step {
        let Some((active, parity)) =
            self.active.as_ref().and_then(|active| Some((active, active.tx.as_ref()?)))
        else {
            return Step::Skip(None);
        };
        if parity.tail_ack_due {
            // A stateful device that did not see the lost tail drops the acknowledgement of its repair. A
            // bare acknowledgement at SND.NXT shows the device where the sequence numbers end. An
            // acknowledgement that is owed anyway serves as well.
            return Step::Send(if owes_ack { Choice::Ack { is_tail: true } } else { Choice::TailAck });
        }
        // A host that reflects options seems to agree to F1, so the peer must first show that it uses the
        // format.
        if parity.profile.is_f1() && (is_early || !active.confirmed) {
            return Step::Skip(None);
        }
        let rtt = parity.rtt(tx, known);
        if parity.encoder.is_open_group_over(rtt, now) {
            return Step::Prepare(Change::CloseGroup);
        }
        if !parity.encoder.is_due(rtt, now) {
            return Step::Skip(None);
        }
        let withheld = self.withholds_parity(tx.recovery.state());
        let Some(due) = parity.encoder.next(tx.scoreboard.una(), withheld) else {
            return Step::Prepare(Change::TakeGroup);
        };
        // Parity waits for pacing, but is dropped if the allowance is exhausted.
        let (len, budget) = (due.wire().len(), budget());
        if len <= budget.of(Origin::Parity) {
            Step::Send(Choice::Parity(due))
        } else if budget.is_paced(len) {
            Step::Skip(Some(Change::PaceParity))
        } else {
            Step::Skip(Some(Change::DropParity))
        }
    }

    /// Returns a decision about parity that only waits for the end of the burst; `None` if the ordinary
    /// decision about parity applies.
    #[inline]
    pub(crate) fn decide_open_group(&self, tx: &Sender) -> Option<Step> {
        match self.parity() {
            // The burst continues when pacing permits.
            Some(_) if tx.paced => Some(Step::Skip(None)),
            // In recovery each acknowledgement releases a segment or two, so the group waits until all its
            // data has left.
            Some(_) if tx.recovery.in_recovery() && tx.unsent() > 0 => None,
            Some(parity) if parity.encoder.ends_with_burst() => Some(Step::Prepare(Change::CloseGroup)),
            Some(_) | None => None,
        }
    }

    /// Returns the bytes that were delivered above a loss while loss detection waited for a repair by parity.
    /// They counted as in flight, so no new data was sent for them. The maximum is the bytes to retransmit,
    /// less the bytes that several parities of a group may still repair. Such parities wait at the receiver
    /// until the losses are at most as many; a single parity does not wait.
    pub(crate) fn delivered_while_held(&self, sender: &Sender) -> u32 {
        let Some(tx) = self.parity() else { return 0 };
        if tx.hold(self.planner.is_some()) == FecHold::Off {
            return 0;
        }
        let params = tx.encoder.params();
        let repairable = match params.code {
            Code::ReedSolomon if params.parities > 1 => {
                u32::from(params.parities).saturating_mul(sender.mss())
            }
            Code::ReedSolomon | Code::Xor | Code::XorInterleaved => 0,
        };
        let board = &sender.scoreboard;
        let beyond = board.highest_sacked().map_or(0, |highest| board.nxt().since(highest));
        board.sacked_bytes().saturating_sub(beyond).min(board.lost_bytes().saturating_sub(repairable))
    }
}

impl Gentle {
    fn encoder_context(
        &self,
        parity: &ParityTx,
        tx: &Sender,
        known: &PathFacts,
        now: Instant,
    ) -> EncoderContext {
        // A planner takes a standing queue into account itself.
        let sees_queue = self.planner.is_none() && parity.sees_standing_queue(tx, known, now);
        EncoderContext {
            una: tx.scoreboard.una(),
            limit: tx.full_payload(),
            fin: (tx.queue.fin_queued() && !tx.fin_unsent()).then(|| tx.queue.end()),
            withheld: self.withholds_parity(tx.recovery.state()),
            window_shut: tx.window.snd_wnd() == 0,
            queue_stands: sees_queue,
        }
    }

    pub(crate) fn close_group(&mut self) {
        if let Some(tx) = self.parity_tx() {
            tx.encoder.close();
        }
    }

    /// Takes the next group whose parity is due into the encoder.
    pub(crate) fn take_group(&mut self, parts: &mut Parts<'_>, now: Instant) {
        let known = &parts.path.known;
        let Some(context) = self.parity().map(|parity| self.encoder_context(parity, parts.tx, known, now))
        else {
            return;
        };
        let Some(tx) = self.parity_tx() else { return };
        let (rtt, board) = (tx.rtt(parts.tx, known), &parts.tx.scoreboard);
        if let Some(why) = tx.encoder.take_group(&context, |range| board.is_sacked(&range), rtt, now) {
            parts.count_unsent(why);
        }
    }

    /// Drops the next parity, which will never be permitted.
    pub(crate) fn drop_parity(&mut self, parts: &mut Parts<'_>) {
        if let Some(tx) = self.parity_tx() {
            tx.encoder.sent();
            parts.count_unsent(Unsent::State);
        }
    }
}

impl Parts<'_> {
    fn count_unsent(&mut self, why: Unsent) {
        let counters = &mut self.counters.parity;
        match why {
            Unsent::Delivered => counters.unsent_delivered += 1,
            Unsent::TooBig => counters.unsent_too_big += 1,
            Unsent::State => counters.unsent_state += 1,
            Unsent::Queue => counters.unsent_queue += 1,
        }
    }
}

impl Active {
    /// Records a parity segment that left with this option.
    pub(crate) fn on_parity_sent(
        &mut self,
        parity: &DueParity,
        option: Option<GentleOption>,
        parts: &mut Parts<'_>,
        now: Instant,
    ) {
        let nxt = parts.tx.scoreboard.nxt();
        parts.counters.parity.sent += 1;
        parts.counters.parity.sent_bytes += u64::from(parity.wire().len());
        let Some(tx) = &mut self.tx else { return };
        let range = parity.layout.range();
        if let Some(GentleOption::EncF2 { crc32c, .. } | GentleOption::EncRs { crc32c, .. }) = option {
            tx.checksum = Some((range, crc32c));
        }
        tx.encoder.sent();
        tx.ring.push(range, parity.wire(), now);
        let reaches_tail = range.end + u32::from(parity.fin_end) == nxt;
        tx.tail_ack_due = tx.config.tail_ack
            && !tx.profile.is_f1()
            && parity.row + 1 == parity.parities
            && reaches_tail
            && tx.bare_ack_at != Some(nxt);
    }

    /// Records a segment without data that left at SND.NXT. `is_tail`: the segment is the acknowledgement
    /// that follows parity.
    pub(crate) fn on_bare_ack(&mut self, is_tail: bool, parts: &Parts<'_>) {
        if let Some(tx) = &mut self.tx {
            tx.tail_ack_due &= !is_tail;
            tx.bare_ack_at = Some(parts.tx.scoreboard.nxt());
        }
    }
}

impl Gentle {
    fn parity_tx(&mut self) -> Option<&mut ParityTx> {
        self.active()?.tx.as_mut()
    }

    /// True if a reported repair has not been refuted.
    pub(super) fn parity_repaired(&mut self) -> bool {
        let tx = self.parity_tx();
        tx.is_some_and(|tx| tx.refutable.as_ref().is_none_or(|repairs| !repairs.is_empty()))
    }

    /// Discards waiting parity and forgets parity in flight, after a retransmission timeout.
    pub(crate) fn on_retransmission_timeout(&mut self, parts: &mut Parts<'_>) {
        if let Some(tx) = self.parity_tx() {
            tx.encoder.clear();
            tx.ring.clear();
            tx.tail_ack_due = false;
        }
        self.refresh_holds(parts);
    }

    /// Informs loss detection of the ranges that parity may still repair.
    pub(crate) fn refresh_holds(&mut self, parts: &mut Parts<'_>) {
        let planned = self.planner.is_some();
        let Some(tx) = self.parity_tx() else { return };
        match tx.hold(planned) {
            FecHold::Off => parts.tx.rack.hold(false, []),
            hold => {
                let rtt = tx.rtt(parts.tx, &parts.path.known);
                let covered = tx.ring.awaited().chain(tx.encoder.pending(rtt));
                parts.tx.rack.hold(hold == FecHold::Full, covered);
            }
        }
    }
}

/// Acknowledgements.
impl Gentle {
    /// Processes the reports about parity in an acknowledgement. `reported` is the highest sequence number
    /// that SACK had reported before. Returns true if parity may have repaired the delivered data.
    pub(super) fn read_ack(
        &mut self,
        report: &RepairReport,
        ack: &mut AckOutcome,
        reported: Option<SeqNum>,
        parts: &mut Parts<'_>,
    ) -> bool {
        ack.reports_repair = report.reported;
        if report.repaired {
            ack.withhold_times();
            parts.counters.parity.repairs_reported += 1;
        }
        self.on_dsack(report, ack, parts);
        if report.reported {
            self.record_refutable(report, ack, reported, parts);
        }
        let mut may_have_repaired = false;
        if let Some(tx) = self.parity_tx().filter(|_| report.reported) {
            let delivers = ack.delivered_bytes > 0;
            may_have_repaired = delivers && tx.expects_reports();
            if report.repaired {
                tx.encoder.on_success();
                if delivers {
                    tx.ring.on_repaired(&span_of(ack));
                }
            }
        }
        if report.stop {
            self.stop_parity(ParityOff::Stop, parts);
        }
        self.refresh_holds(parts);
        may_have_repaired
    }

    /// Records the segments that a reported repair may concern: the filled holes, or else the tail. If parity
    /// left less than a reordering window after the data, the original may only be late. The reduction is
    /// undone if that original arrives after all. If parity left later, RACK too would have declared the data
    /// lost, so the reduction stays.
    fn record_refutable(
        &mut self,
        report: &RepairReport,
        ack: &AckOutcome,
        reported: Option<SeqNum>,
        parts: &Parts<'_>,
    ) {
        let window = parts.tx.rack.reo_wnd(0);
        let Some(ParityTx { ring, refutable, .. }) = self.parity_tx() else { return };
        if report.repaired {
            *refutable = Some(SeqRanges::new());
        }
        let Some(repairs) = refutable.as_mut().filter(|repairs| report.repaired || !repairs.is_empty())
        else {
            return;
        };
        let covered = || ack.delivered.iter().filter(|segment| segment.range.end.le(ack.ack));
        let hole = |segment: &&Delivered| reported.is_some_and(|reported| segment.range.end.le(reported));
        let tail = covered().max_by_key(|segment| segment.range.end.since(ack.una_before));
        let tail = tail.filter(|_| report.repaired && covered().find(hole).is_none());
        for segment in covered().filter(hole).chain(tail) {
            let soon = |parity: SentParity| parity.at < segment.sent_at + window;
            if !ring.covering(&segment.range).is_some_and(soon) {
                *refutable = None;
                return;
            }
            repairs.insert(segment.range);
        }
    }

    /// Evaluates a DSACK, which may show that a device removes the option from parity, or that an original
    /// was only late. A DSACK for a retransmission does not show that the repaired original had arrived.
    fn on_dsack(&mut self, report: &RepairReport, ack: &mut AckOutcome, parts: &mut Parts<'_>) {
        let Some(Dsack { range, of, sent_twice, .. }) = ack.dsack else { return };
        let Some(tx) = self.parity_tx() else { return };
        if of == DsackOf::NeverSentTwice && tx.ring.has_wire_range(&range) {
            // The network may have duplicated a segment with these numbers: a single report proves nothing.
            if core::mem::replace(&mut tx.taken_for_data, true) {
                self.stop_parity(ParityOff::Stripped, parts);
            }
            return;
        }
        let is_reported = report.reported && tx.ring.covering(&range).is_some();
        if !(is_reported || tx.ring.has_repaired(&range)) {
            return;
        }
        match of {
            DsackOf::Retransmit | DsackOf::TailLossProbe => {
                ack.dsack = Some(Dsack { range, of: DsackOf::Repaired, sent_twice, reported_before: false });
                // The report of the repair arrives only after a retransmission: a device that had not seen
                // the data dropped the earlier acknowledgement.
                if report.repaired {
                    tx.ack_holes += 1;
                    let given_up = tx.ack_holes >= ACK_HOLES_MAX;
                    parts.counters.parity.ack_holes += 1;
                    if given_up {
                        self.stop_parity(ParityOff::AckHoles, parts);
                    }
                }
            }
            DsackOf::NeverSentTwice => {
                parts.tx.rack.on_spurious_recovery();
                parts.counters.parity.late_originals += 1;
            }
            DsackOf::Duplicate | DsackOf::Repaired => {}
        }
    }

    /// Records that an original of repaired data arrived late and was not lost. The reduction for the report
    /// has begun, perhaps by this acknowledgement.
    pub(super) fn refute_repair(&mut self, original: SeqRange, parts: &Parts<'_>) -> Refuted {
        let Some(repairs) = self.parity_tx().and_then(|tx| tx.refutable.as_mut()) else {
            return Refuted::Nothing;
        };
        if !parts.tx.recovery.answers_masked_loss() || repairs.remove(original) == 0 {
            return Refuted::Nothing;
        }
        if repairs.is_empty() { Refuted::All } else { Refuted::Some }
    }

    /// Marks a repaired hole as lost if the acknowledgement number stays below it, because a device that has
    /// not seen the data rewrote the acknowledgement. The data is sent again, without another reduction.
    /// Returns the bytes that are newly marked lost.
    pub(super) fn resend_repaired_hole(
        &mut self,
        ack: &AckOutcome,
        parts: &mut Parts<'_>,
        now: Instant,
    ) -> u32 {
        let (min_rtt, srtt) = (parts.tx.rtt.min_rtt(), parts.tx.rtt.srtt());
        let una = parts.tx.scoreboard.una();
        let Some(head) = parts.tx.scoreboard.head().copied() else { return 0 };
        let Some(tx) = self.parity_tx() else { return 0 };
        // No parity covers a FIN without data.
        let data = head.payload() > 0 && !head.sacked && !head.lost;
        if ack.delivered_bytes > 0 || !data {
            return 0;
        }
        let answered = tx
            .ring
            .covering(&SeqRange::with_len(una, head.payload()))
            .is_some_and(|parity| Micros::between(parity.at, now) >= min_rtt.unwrap_or_default());
        let old = srtt.is_none_or(|srtt| Micros::between(head.sent_at, now) > srtt);
        if !answered || (head.transmissions > 1 && !old) {
            return 0;
        }
        let hole_end = parts
            .tx
            .scoreboard
            .records()
            .find(|record| record.sacked)
            .map_or(head.range.end, |record| record.range.start);
        let newly_lost = parts.tx.scoreboard.mark_lost(SeqRange::new(una, hole_end));
        if newly_lost > 0 {
            parts.counters.parity.ack_holes += 1;
            let nxt = parts.tx.scoreboard.nxt();
            if parts.tx.recovery.state() == CongestionState::Cwr {
                parts.tx.recovery.on_loss(nxt);
            } else {
                parts.tx.recovery.on_too_big(nxt);
            }
        }
        newly_lost
    }

    /// Processes a failed repair. Data that left before the parity is lost, unless this path is known to
    /// reorder.
    pub(crate) fn on_failure(
        &mut self,
        report: &RepairReport,
        ack: &AckOutcome,
        parts: &mut Parts<'_>,
        now: Instant,
    ) -> Option<Unrepaired> {
        let end = ack.ack + report.failed?;
        let tx = self.parity_tx()?;
        let Some(parity) = tx.ring.ending_at(end) else {
            parts.counters.gentle_spoofed += 1;
            return None;
        };
        tx.ring.on_failed(parity.at);
        let hopeless = tx.encoder.on_failure();
        parts.counters.parity.failures_reported += 1;
        self.refresh_holds(parts);
        let verdict = if parts.tx.rack.reordering_seen() {
            // Data that left before the parity still has the reordering window to arrive.
            parts.tx.rack.on_parity_answered(parity.at, end, now);
            parts.tx.rack.detect(&parts.tx.scoreboard, now)
        } else {
            unrepaired_data(&parts.tx.scoreboard, end, parity.at)
        };
        Some(Unrepaired { verdict, hopeless })
    }

    pub(crate) fn stop_parity(&mut self, why: ParityOff, parts: &mut Parts<'_>) {
        if let Some(active) = self.active()
            && active.tx.take().is_some()
        {
            parts.tx.option_reserve = 0;
            parts.counters.parity.tx_off = Some(why);
            parts.tx.rack.hold(false, []);
            parts.observe(Observation::ParityOff { sending: true, why });
        }
    }
}

/// Returns the data in flight that ends at `end` or before it, and left no later than `at`, when the parity
/// left.
fn unrepaired_data(board: &Scoreboard, end: SeqNum, at: Instant) -> RackVerdict {
    let mut verdict = RackVerdict::default();
    let within = |record: &&Record| (record.range.start + record.payload()).le(end) && record.sent_at <= at;
    for record in board.in_flight().take_while(|record| record.range.start.lt(end)).filter(within) {
        verdict.add(record);
    }
    verdict
}

/// Returns the span from the first to the last byte that an acknowledgement newly reports as delivered.
fn span_of(ack: &AckOutcome) -> SeqRange {
    let mut span: Option<SeqRange> = None;
    for segment in &ack.delivered {
        span = Some(span.map_or(segment.range, |span| {
            SeqRange::new(span.start.min(segment.range.start), span.end.max(segment.range.end))
        }));
    }
    span.unwrap_or(SeqRange::with_len(ack.ack, 0))
}
