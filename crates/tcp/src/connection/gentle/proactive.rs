//! Proactive on one connection: the copier behind the sender and the filter in front of the receiver
//! (Gentle Aggression section 6). The parts are in [`crate::mechanism::proactive`].

use brisk_wire::{Flags, SeqNum, TcpHeader, Timestamps, gentle};

use crate::config::{CopyScope, ProactiveConfig};
use crate::connection::LiveStats;
use crate::connection::decision::{Change, Choice, Data, Step};
use crate::connection::gentle::{Active, Gentle, Parts, Refuted, SegmentVerdict};
use crate::connection::observation::Observation;
use crate::connection::receiver::Receiver;
use crate::connection::sender::Sender;
use crate::mechanism::proactive::copies::{Copies, Copy, CopyPolicy, Original, Scope};
use crate::mechanism::proactive::filter::{BareAck, Filter, FilterVerdict, Instance};
use crate::mechanism::signal::RepairReport;
use crate::outcome::{Arrived, Origin, Sent};
use crate::receive::Paws;
use crate::send::budget::Budget;
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant, Micros};

/// Approximate bytes of an acknowledgement on the wire, which its copy takes from the allowance of
/// redundancy.
pub(crate) const ACK_LEN: u32 = 60;

/// Both sides of Proactive, once it is agreed on.
#[derive(Debug)]
pub(crate) struct Proactive {
    pub(crate) copies: Copies,
    filter: Filter,
    copy_acks: bool,
}

impl Proactive {
    pub(crate) fn new(config: &ProactiveConfig) -> Self {
        let scope = match config.scope {
            CopyScope::Short => Scope::Short { max_bytes: config.max_bytes },
            CopyScope::All => Scope::All,
            CopyScope::Named => Scope::Named,
        };
        Proactive {
            copies: Copies::new(CopyPolicy {
                scope,
                mark: Some(config.mark),
                gap: config.gap,
                loss_cap: config.loss_cap,
            }),
            filter: Filter::new(config.rule),
            copy_acks: config.copy_acks,
        }
    }
}

/// Limit that copies set to a run of new data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CopiedRun {
    /// The run is not limited: no copies follow.
    None,
    /// One segment, so that its copy can follow.
    OneByOne,
    /// At most this many bytes, of which the device sends each segment twice.
    Twice(u32),
}

/// How the filter treats a segment that a device may have coalesced from several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Coalesced {
    /// The filter treats it as one segment.
    Whole,
    /// The filter treats the parts one by one.
    Parts,
    /// All are copies, and are dropped.
    Copies,
}

impl Gentle {
    #[inline]
    pub(crate) fn proactive(&self) -> Option<&Proactive> {
        self.active.as_ref()?.proactive.as_ref()
    }

    #[inline]
    pub(crate) fn proactive_mut(&mut self) -> Option<&mut Proactive> {
        self.active.as_mut()?.proactive.as_mut()
    }

    pub(crate) fn sends_copies(&self) -> bool {
        self.proactive().is_some_and(|proactive| proactive.copies.is_on())
    }

    /// Returns the copier, with or without an agreement.
    #[inline]
    pub(crate) fn copier(&self) -> Option<&Copies> {
        match &self.active {
            Some(active) => active.proactive.as_ref().map(|proactive| &proactive.copies),
            None => self.unmarked.as_ref().map(|unmarked| &unmarked.copies),
        }
    }
}

/// The next copy, and the peer's reports about copies.
impl Gentle {
    /// Decides whether the copy that is due leaves.
    #[inline]
    pub(crate) fn decide_copy(&self, tx: &Sender, budget: impl FnOnce() -> Budget, now: Instant) -> Step {
        let next = self.copier().and_then(|copies| copies.next(now));
        // A bare FIN takes a byte of the budget, so that it waits for pacing and does not exceed the plan.
        let len_of = |copy: &Copy| copy.range.len().min(copy.payload_len().max(1));
        let Some((range, len)) = next.map(|copy| (copy.range, len_of(copy))) else {
            return Step::Skip(None);
        };
        if tx.scoreboard.is_sacked(&range) {
            return Step::Prepare(Change::DropCopy);
        }
        let budget = budget();
        if len <= budget.of(Origin::Duplicate) {
            Step::Send(Choice::Copy(range))
        } else if budget.is_spent(len) {
            Step::Prepare(Change::DropCopy)
        } else {
            Step::Skip(Some(Change::PaceCopy))
        }
    }

    /// Returns the limit that copies set to a run of new data. `may_double`: the device may send each
    /// segment twice.
    #[inline]
    pub(crate) fn copied_run(
        &self,
        tx: &Sender,
        mss: u32,
        budget: &Budget,
        may_double: bool,
        now: Instant,
    ) -> CopiedRun {
        let Some(proactive) = self.proactive() else { return CopiedRun::None };
        let Some(in_scope) = proactive.copies.in_scope(tx.timeout(), now) else { return CopiedRun::None };
        if !may_double || !proactive.copies.follow_at_once() || self.planner.is_some() {
            return CopiedRun::OneByOne;
        }
        CopiedRun::Twice(in_scope.div_ceil(mss).saturating_mul(mss).min(budget.twice()))
    }

    pub(crate) fn refresh_copies(&mut self, una: SeqNum) {
        if let Some(copies) = self.copies() {
            copies.refresh(una);
        }
    }

    /// Drops the next copy, which is not permitted.
    pub(crate) fn drop_copy(&mut self, una: SeqNum) {
        if let Some(copies) = self.copies() {
            copies.drop_next();
            copies.refresh(una);
        }
    }

    /// Records that the next copy waits although its time has come.
    pub(crate) fn defer_copy(&mut self) {
        if let Some(copies) = self.copies() {
            copies.defer();
        }
    }

    fn copies(&mut self) -> Option<&mut Copies> {
        match &mut self.active {
            Some(active) => active.proactive.as_mut().map(|proactive| &mut proactive.copies),
            None => self.unmarked.as_mut().map(|unmarked| &mut unmarked.copies),
        }
    }

    /// Processes a DSACK. A copy that is reported as a duplicate was not recognised as a copy. But after the
    /// peer's report that a copy masked a loss, the DSACK means that the original arrived and nothing was
    /// lost.
    pub(super) fn on_copy_reported(
        &mut self,
        report: &RepairReport,
        range: SeqRange,
        parts: &mut Parts<'_>,
        now: Instant,
    ) -> Refuted {
        if report.reported {
            parts.tx.rack.on_spurious_recovery();
            let answered = parts.tx.recovery.answers_masked_loss();
            return if answered && !self.parity_repaired() { Refuted::All } else { Refuted::Nothing };
        }
        if let (Some(active), Some(srtt)) = (self.active(), parts.tx.rtt.srtt()) {
            active.change_copies(parts, |copies| copies.on_needless(range, srtt, now));
        }
        Refuted::Nothing
    }
}

impl Proactive {
    /// Returns the time at which copies are due, or the wait for an original ends. Data may leave if `sends`
    /// is true, and may arrive if `open` is.
    pub(crate) fn next_timeout(&self, sends: bool, open: bool) -> Option<Instant> {
        let copies = self.copies.next_timeout().filter(|_| sends);
        let filter = self.filter.next_timeout().filter(|_| open);
        [copies, filter].into_iter().flatten().min()
    }

    fn check_bare(
        &mut self,
        segment: &Arrived<'_>,
        tsval: u32,
        parts: &Parts<'_>,
        now: Instant,
    ) -> FilterVerdict {
        let age = Filter::original_wait(parts.tx.rtt.srtt());
        let edge = segment.ack + parts.tx.window.scaled(segment.window);
        let una = parts.tx.scoreboard.una();
        let opens = edge.gt(una + parts.tx.window.snd_wnd());
        let advances = segment.ack.gt(una);
        let is_progress = advances || opens || parts.tx.scoreboard.reports_new_data(&segment.options.sack);
        let ack =
            BareAck { ack: segment.ack, window: segment.window, sack: segment.options.sack.clone(), tsval };
        self.filter.check_ack(ack, is_marked(segment), is_progress, age, now)
    }

    fn check_data(
        &mut self,
        segment: &Arrived<'_>,
        tsval: u32,
        parts: &Parts<'_>,
        now: Instant,
    ) -> FilterVerdict {
        let range = SeqRange::with_len(segment.seq, segment.len());
        let new = parts.rx.assembler.brings_new(&range);
        // PAWS refuses the segment later, so the filter must not count its data as taken.
        if new && parts.rx.timestamps.paws(tsval, now) == Paws::Old {
            return FilterVerdict::Process;
        }
        self.filter.check(&Instance { range, marked: is_marked(segment), tsval, new }, now)
    }
}

impl Copies {
    /// Changes the copier, and reports if the change switches it off.
    pub(super) fn change<R>(&mut self, parts: &mut Parts<'_>, change: impl FnOnce(&mut Copies) -> R) -> R {
        let before = self.off();
        let result = change(self);
        if let Some(why) = self.off().filter(|_| before.is_none()) {
            parts.observe(Observation::CopiesOff { why });
        }
        result
    }

    /// Queues a copy of a data segment that left with this header, if the segment is in the scope of copies.
    /// If the plan copies the segment, a copy is queued with the delay `named`. Returns true if the segment
    /// is in the scope.
    pub(super) fn copy(
        &mut self,
        data: &Data,
        header: &TcpHeader,
        named: Option<Duration>,
        parts: &mut Parts<'_>,
        now: Instant,
    ) -> bool {
        let (srtt, rto) = (parts.tx.rtt.srtt(), parts.tx.timeout());
        let segments = data.payload_len().div_ceil(data.segment_size.max(1)).max(1);
        let original = Original { range: data.range, segments, origin: data.origin, at: now, srtt, rto };
        if data.twice {
            self.on_sent_twice(&original, data.segment_size);
            parts.account_copies(data.range, segments, now);
            return true;
        }
        self.change(parts, |copies| {
            let copied = copies.on_sent(&original, header);
            if let (Origin::New, Some(wait)) = (data.origin, named) {
                copies.add(data.range, header, now + wait);
            }
            copied
        })
    }
}

impl Parts<'_> {
    /// Accounts for copies of this range that left. They are not in flight and change no timer; pacing and
    /// the allowance count them.
    pub(super) fn account_copies(&mut self, range: SeqRange, segments: u32, now: Instant) {
        let len = range.len();
        self.tx.scoreboard.on_sent(&Sent {
            range,
            segment_size: len,
            origin: Origin::Duplicate,
            syn: false,
            fin: false,
            at: now,
        });
        self.tx.rate.on_sent(len, now);
        self.tx.on_redundancy(len, now);
        self.tx.fin_copied |= self.tx.is_fin_in(range);
        self.counters.copies_sent += u64::from(segments);
        self.counters.redundant_bytes += u64::from(len);
        self.observe(Observation::Sent { range, origin: Origin::Duplicate });
    }
}

/// Segments that leave.
impl Active {
    /// Changes the copier of Proactive, if it is in use; see [`Copies::change`].
    pub(super) fn change_copies<R>(&mut self, parts: &mut Parts<'_>, change: impl FnOnce(&mut Copies) -> R) {
        if let Some(Proactive { copies, .. }) = &mut self.proactive {
            copies.change(parts, change);
        }
    }

    pub(crate) fn on_copy_sent(&mut self, range: SeqRange, parts: &mut Parts<'_>, now: Instant) {
        if let Some(proactive) = &mut self.proactive {
            proactive.copies.on_copy_sent(now);
        }
        self.copied = Some(now);
        parts.account_copies(range, 1, now);
    }

    /// Does what [`Copies::copy`] does, if Proactive is in use. Probes of the MTU have no copy.
    pub(crate) fn copy(
        &mut self,
        data: &Data,
        header: &TcpHeader,
        named: Option<Duration>,
        parts: &mut Parts<'_>,
        now: Instant,
    ) -> bool {
        let Some(proactive) = self.proactive.as_mut().filter(|_| !data.mtu_probe) else { return false };
        if data.twice {
            self.copied = Some(now);
        }
        proactive.copies.copy(data, header, named, parts, now)
    }

    /// Queues a copy of an acknowledgement without data, if so configured.
    pub(crate) fn copy_ack(&mut self, header: &TcpHeader, parts: &Parts<'_>, now: Instant) {
        if let Some(proactive) = self.proactive.as_mut().filter(|proactive| proactive.copy_acks) {
            proactive.copies.add(SeqRange::with_len(parts.tx.scoreboard.nxt(), 0), header, now);
        }
    }
}

/// Segments that arrive.
impl Gentle {
    /// Decides about a segment that a device has coalesced from several.
    #[inline]
    pub(crate) fn on_coalesced(&self, segment: &Arrived<'_>, rx: &Receiver) -> Coalesced {
        let size = segment.segment_size;
        let Some(proactive) = self.proactive().filter(|_| size > 0 && segment.payload.len() > size) else {
            return Coalesced::Whole;
        };
        // If no original is awaited, the filter accepts all segments that are new.
        let new = segment.seq.ge(rx.rcv_nxt()) && !rx.assembler.has_hole();
        if new && !is_marked(segment) && proactive.filter.awaits_nothing() {
            return Coalesced::Whole;
        }
        // True if every part is a copy that the filter drops.
        let repeats = |timestamps: Timestamps| {
            let range = SeqRange::with_len(segment.seq, segment.len());
            is_marked(segment)
                && segment.options.gentle.is_none()
                && !segment.flags.intersects(Flags::SYN | Flags::RST)
                && !rx.assembler.brings_new(&range)
                && proactive.filter.repeats(&range, timestamps.value)
        };
        if segment.options.timestamps.is_some_and(repeats) { Coalesced::Copies } else { Coalesced::Parts }
    }

    /// Records that the receiver accepted new data of this segment.
    #[inline]
    pub(crate) fn on_taken(
        &mut self,
        segment: &Arrived<'_>,
        srtt: Option<Micros>,
        counters: &mut LiveStats,
        now: Instant,
    ) {
        let Some(proactive) = self.proactive_mut() else { return };
        let Some(timestamps) = segment.options.timestamps else { return };
        let range = SeqRange::with_len(segment.seq, segment.len());
        let marked = is_marked(segment);
        if marked {
            counters.copies_used += 1;
        }
        let instance = Instance { range, marked, tsval: timestamps.value, new: true };
        proactive.filter.on_taken(&instance, Filter::original_wait(srtt), now);
    }
}

/// Segments that arrive, and time that passes.
impl Active {
    /// Drops the second instance of a segment before any other step: it changes nothing and causes no
    /// acknowledgement.
    pub(crate) fn filter_copy(
        &mut self,
        segment: &Arrived<'_>,
        parts: &mut Parts<'_>,
        now: Instant,
    ) -> SegmentVerdict {
        let (Some(proactive), Some(timestamps)) = (&mut self.proactive, segment.options.timestamps) else {
            return SegmentVerdict::Process;
        };
        if segment.flags.intersects(Flags::SYN | Flags::RST) {
            return SegmentVerdict::Process;
        }
        let verdict = if segment.is_empty() {
            proactive.check_bare(segment, timestamps.value, parts, now)
        } else {
            proactive.check_data(segment, timestamps.value, parts, now)
        };
        match verdict {
            FilterVerdict::Process => return SegmentVerdict::Process,
            FilterVerdict::Refute => {
                self.signals.on_refuted();
                return SegmentVerdict::Process;
            }
            FilterVerdict::DropCopy => parts.counters.copies_dropped += 1,
            FilterVerdict::DropOriginal => parts.counters.originals_dropped += 1,
        }
        SegmentVerdict::Drop
    }

    /// Processes timers: copies may be due, and overdue originals are reported to the peer as losses.
    pub(crate) fn on_proactive_timeout(&mut self, parts: &mut Parts<'_>, now: Instant) {
        let Some(proactive) = &mut self.proactive else { return };
        if !self.signals.is_reporting() {
            proactive.filter.on_confirmed();
        }
        proactive.copies.on_timeout(now);
        let masked = proactive.filter.on_timeout(now);
        if masked > 0 {
            parts.counters.repaired_by_copy += u64::from(masked);
            parts.observe(Observation::CopyUsed { segments: masked });
            self.signals.on_repair();
            parts.rx.ack.force();
        }
    }
}

/// True if a segment has the mark of a copy: the bit, or the flag of the option.
pub(crate) fn is_marked(segment: &Arrived<'_>) -> bool {
    let flags = segment.options.gentle.and_then(|option| option.flags()).unwrap_or(0);
    segment.flags.contains(Flags::R4) || flags & gentle::COPY != 0
}
