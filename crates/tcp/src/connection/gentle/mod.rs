//! Corrective and Proactive on one connection (Gentle Aggression sections 5 and 6): the agreement of SYN and
//! SYN-ACK, the option on later segments, and its meaning on an arriving segment.
//!
//! The parts are in [`crate::mechanism`]; this file connects them. A connection without these mechanisms
//! sends no option and ignores the peer's options, with one exception. After an option in the handshake, a
//! segment whose payload may be parity is dropped, because parity taken as data would corrupt the stream.

use alloc::boxed::Box;

use brisk_wire::gentle::{R_FAIL, R_SUCC, STOP};
use brisk_wire::options::kind;
use brisk_wire::{Flags, Gentle as GentleOption, Options, SeqNum, TcpHeader};

use crate::config::TcpConfig;
use crate::connection::decision::{Data, SynOption};
#[cfg(feature = "historical")]
use crate::connection::gentle::f1::F1Hold;
use crate::connection::gentle::parity::ParityTx;
use crate::connection::gentle::planner::Planner;
use crate::connection::gentle::proactive::{ACK_LEN, Proactive};
use crate::connection::gentle::repair::ParityRx;
use crate::connection::gentle::unmarked::Unmarked;
use crate::connection::handshake::Handshake;
use crate::connection::observation::Observation;
use crate::connection::path::OnPath;
use crate::connection::receiver::Receiver;
use crate::connection::sender::Sender;
use crate::connection::{LiveStats, State};
use crate::mechanism::corrective::code::Code;
use crate::mechanism::corrective::decoder::{Edges, Recovered};
use crate::mechanism::proactive::copies::Copies;
use crate::mechanism::signal::{RepairReport, Signals};
use crate::mechanism::{Agreed, Capabilities, DueParity, GentleOff, GentleOutcome, accept};
use crate::outcome::{AckOutcome, Arrived, Dsack, DsackOf, Repair};
use crate::path::{LossCount, PathFacts};
use crate::send::scoreboard::Scoreboard;
use crate::seq_ranges::SeqRange;
use crate::time::{Instant, Micros};

#[cfg(feature = "historical")]
pub(crate) mod f1;
pub(crate) mod parity;
pub(crate) mod plain_copy;
pub(crate) mod planner;
pub(crate) mod proactive;
pub(crate) mod repair;
pub(crate) mod unmarked;

/// Bytes that a set of flags occupies in a data segment, padding included.
const FLAGS_LEN: u32 = 8;
/// Maximum delay of the acknowledgements of a peer that uses Corrective or Proactive (wire format, W-7.12).
const ACK_DELAY: Micros = Micros::from_millis(40);

/// Corrective, Proactive and the planner of one connection; a mechanism that is off is `None`.
///
/// The connection calls a method for each SYN or SYN-ACK, for each arriving segment, and at each timeout. The
/// methods use the [`Parts`] of the connection, and return what the connection must do.
#[derive(Debug)]
pub(crate) struct Gentle {
    capabilities: Option<Capabilities>,
    /// Capability byte of this end's first SYN or SYN-ACK.
    sent_option: Option<u8>,
    /// True if an option was sent or received in the handshake.
    pub(in crate::connection) seen: bool,
    /// True if this end's first SYN had the option.
    pub(in crate::connection) offered: bool,
    /// True if the peer's SYN or SYN-ACK had the option.
    pub(in crate::connection) answered: bool,
    outcome: GentleOutcome,
    pub(crate) active: Option<Box<Active>>,
    pub(crate) planner: Option<Box<Planner>>,
    /// Copies without an agreement, once a plan has had some.
    pub(crate) unmarked: Option<Box<Unmarked>>,
    #[cfg(feature = "historical")]
    pub(in crate::connection) f1_hold: Option<F1Hold>,
}

/// The mechanisms of a connection that agreed on Corrective, Proactive or both.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) agreed: Agreed,
    pub(crate) signals: Signals,
    /// Time when the last copy left.
    pub(crate) copied: Option<Instant>,
    pub(crate) proactive: Option<Proactive>,
    /// F1: a segment after the handshake has shown that the peer uses the option.
    pub(crate) confirmed: bool,
    /// Encoder of parity for this end's data.
    pub(crate) tx: Option<ParityTx>,
    /// Decoder of the peer's parity.
    pub(crate) rx: Option<ParityRx>,
}

/// A SYN or SYN-ACK that leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LeavingSyn {
    /// True if the SYN or SYN-ACK has left before.
    pub(crate) again: bool,
    /// True for a SYN-ACK.
    pub(crate) answers: bool,
    pub(crate) timestamps: bool,
}

/// The parts of a connection that [`Gentle`] uses, and facts about the others.
pub(crate) struct Parts<'a> {
    pub(crate) tx: &'a mut Sender,
    pub(crate) rx: &'a mut Receiver,
    pub(crate) path: &'a mut OnPath,
    pub(crate) counters: &'a mut LiveStats,
    pub(crate) config: &'a TcpConfig,
    pub(crate) handshake: &'a Handshake,
    pub(crate) state: State,
}

/// A segment that left, as input of the mechanisms.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SentSegment<'a> {
    /// Data, new or repeated.
    Data {
        data: &'a Data,
        /// The header of the segment.
        header: &'a TcpHeader,
        /// True if a part of the data was sent for the first time.
        fresh: bool,
        /// True if the segment has an urgent pointer.
        urgent: bool,
    },
    /// The next copy, of this range.
    Copy(SeqRange),
    /// Parity, with this option.
    Parity(&'a DueParity, Option<GentleOption>),
    /// The tail ACK.
    TailAck,
    /// An acknowledgement without data. `is_tail`: it also serves as the tail ACK.
    Ack { header: &'a TcpHeader, is_tail: bool },
}

impl<'a> SentSegment<'a> {
    fn data(&self) -> Option<&'a Data> {
        match self {
            SentSegment::Data { data, .. } => Some(data),
            SentSegment::Copy(_)
            | SentSegment::Parity(..)
            | SentSegment::TailAck
            | SentSegment::Ack { .. } => None,
        }
    }
}

/// The decision of Corrective and Proactive on an arriving segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SegmentVerdict {
    /// Process it by the steps of RFC 9293.
    Process,
    Drop,
    /// Drop it, and send an acknowledgement at once.
    #[cfg(feature = "historical")]
    Answer,
    /// The segment was parity, which is never data, and may have repaired lost data.
    Parity(Option<Recovered>),
}

impl Parts<'_> {
    /// Records an event for observers.
    pub(crate) fn observe(&mut self, observation: Observation) {
        self.counters.observe(observation);
    }

    /// Returns the segments sent and lost so far.
    pub(crate) fn all_losses(&self) -> LossCount {
        self.path.all_losses(self.counters, self.handshake, self.tx)
    }

    /// Returns RCV.NXT, RCV.WND, and whether the FIN is known.
    pub(crate) fn edges(&self) -> Edges {
        Edges {
            rcv_nxt: self.rx.rcv_nxt(),
            rcv_wnd: self.rx.rcv_wnd(),
            fin_known: self.rx.assembler.fin_known(),
        }
    }
}

impl Gentle {
    pub(crate) fn new(config: &TcpConfig, accepts_parity: bool) -> Self {
        // Both mechanisms need SACK (wire format, W-3.10).
        let capabilities = Capabilities::of(&config.mechanisms).filter(|_| config.sack);
        let capabilities =
            if accepts_parity { capabilities } else { capabilities.and_then(Capabilities::without_parity) };
        Gentle {
            capabilities,
            sent_option: None,
            seen: false,
            offered: false,
            answered: false,
            outcome: GentleOutcome::Off(GentleOff::NotAsked),
            active: None,
            planner: config.mechanisms.planner.map(|planner| Box::new(Planner::new(planner))),
            unmarked: None,
            #[cfg(feature = "historical")]
            f1_hold: None,
        }
    }

    pub(crate) fn outcome(&self) -> GentleOutcome {
        self.outcome
    }

    pub(crate) fn agreed(&self) -> Option<Agreed> {
        self.active.as_ref().map(|active| active.agreed)
    }

    /// True if segments that leave, and time that passes, concern the mechanisms.
    #[inline]
    pub(crate) fn is_in_use(&self) -> bool {
        self.active.is_some() || self.unmarked.is_some()
    }

    pub(crate) fn is_f1(&self) -> bool {
        self.agreed().is_some_and(|agreed| agreed.profile.is_f1())
    }

    /// True if the SYN of an active open will have the option, provided that it fits.
    pub(crate) fn would_offer(&self, timestamps: bool) -> bool {
        self.capabilities.is_some_and(|capabilities| capabilities.offer(timestamps).is_some())
    }

    pub(crate) fn active(&mut self) -> Option<&mut Active> {
        self.active.as_deref_mut()
    }

    /// Ends both mechanisms on this connection for good.
    pub(crate) fn switch_off(&mut self, why: GentleOff) {
        self.outcome = GentleOutcome::Off(why);
        (self.active, self.capabilities, self.sent_option) = (None, None, None);
    }
}

/// SYNs and SYN-ACKs that leave or arrive.
impl Gentle {
    /// Returns the option of the SYN or SYN-ACK that leaves next, if it fits in addition to the `others`.
    /// Only the first SYN or SYN-ACK has the option. A retransmission omits it, in case a device on the path
    /// drops segments with it; the mechanisms are then off.
    pub(crate) fn syn_option(&self, syn: LeavingSyn, others: impl FnOnce() -> Options) -> SynOption {
        if syn.again {
            return if self.sent_option.is_some() { SynOption::Withdrawn } else { SynOption::None };
        }
        let byte = if syn.answers {
            self.sent_option
        } else {
            self.capabilities.and_then(|capabilities| capabilities.offer(syn.timestamps))
        };
        match byte {
            None => SynOption::None,
            Some(byte) if fits(GentleOption::Capability(byte), others()) => SynOption::Capability(byte),
            Some(_) => SynOption::NoRoom,
        }
    }

    pub(crate) fn on_syn_sent(&mut self, option: SynOption, parts: &mut Parts<'_>) {
        match option {
            SynOption::None => {}
            SynOption::Capability(byte) => {
                self.seen = true;
                self.sent_option = Some(byte);
                if parts.state != State::SynReceived {
                    self.offered = true;
                    self.outcome = GentleOutcome::Pending;
                }
            }
            SynOption::NoRoom => self.switch_off(GentleOff::NoRoom),
            SynOption::Withdrawn => self.stop(GentleOff::HandshakeRetransmitted, parts),
        }
    }

    /// Returns the option of this end's first SYN or SYN-ACK, while it is valid.
    pub(crate) fn sent_option(&self) -> Option<GentleOption> {
        self.sent_option.map(GentleOption::Capability)
    }

    /// Processes the peer's SYN or SYN-ACK, after its other options.
    pub(crate) fn on_syn(&mut self, syn: &Arrived<'_>, parts: &mut Parts<'_>) {
        let byte = match syn.options.gentle {
            Some(GentleOption::Capability(byte)) => Some(byte),
            Some(
                GentleOption::Short { .. }
                | GentleOption::Part { .. }
                | GentleOption::Fail { .. }
                | GentleOption::EncF1 { .. }
                | GentleOption::EncF2 { .. }
                | GentleOption::EncRs { .. },
            )
            | None => None,
        };
        self.seen |= byte.is_some();
        self.answered = byte.is_some();
        let Some(capabilities) = self.capabilities else { return };
        let signed = syn.options.unknown.contains(kind::MD5) || syn.options.unknown.contains(kind::AO);
        let (answers, opens) = (syn.flags.contains(Flags::ACK), parts.state == State::SynSent);
        let usable = parts.handshake.agreed.sack && !signed;
        let timestamps = parts.handshake.agreed.timestamps;
        match (opens, byte.filter(|_| usable)) {
            (true, _) if !answers => self.switch_off(GentleOff::Simultaneous),
            (_, None) => self.switch_off(GentleOff::NotAnswered),
            (true, Some(byte)) => {
                match self.sent_option.and_then(|offered| accept(offered, byte, timestamps)) {
                    Some(agreed) => self.start(agreed, parts),
                    None => self.switch_off(GentleOff::IllegalAnswer),
                }
            }
            (false, Some(byte)) => match capabilities.answer(byte, timestamps) {
                Some((answer, agreed)) => {
                    self.start(agreed, parts);
                    self.sent_option = Some(answer);
                }
                None => self.switch_off(GentleOff::NotAnswered),
            },
        }
    }

    fn start(&mut self, agreed: Agreed, parts: &mut Parts<'_>) {
        let code = Code::from_encoding(agreed.encoding);
        let corrective = code.zip(parts.config.mechanisms.corrective);
        let rmss = u32::from(parts.tx.advertised_mss());
        let origin = parts.handshake.irs + 1;
        let tx = corrective.map(|(code, config)| ParityTx::new(&agreed, code, config));
        let rx = corrective.map(|(code, _)| ParityRx::new(&agreed, code, rmss, origin));
        parts.tx.option_reserve = tx.as_ref().map_or(0, ParityTx::option_reserve);
        parts.tx.ack_delay = self.planner.is_some().then_some(ACK_DELAY);
        parts.rx.queue.retain(rx.as_ref().map_or(0, ParityRx::history));
        self.outcome = GentleOutcome::On(agreed);
        let proactive = parts.config.mechanisms.proactive.filter(|_| agreed.proactive);
        self.active = Some(Box::new(Active {
            agreed,
            signals: Signals::new(agreed.profile),
            copied: None,
            proactive: proactive.as_ref().map(Proactive::new),
            confirmed: false,
            tx,
            rx,
        }));
    }

    /// Ends both mechanisms on this connection.
    pub(crate) fn stop(&mut self, why: GentleOff, parts: &mut Parts<'_>) {
        self.switch_off(why);
        parts.tx.option_reserve = 0;
        parts.tx.ack_delay = None;
        parts.rx.queue.retain(0);
        parts.tx.rack.hold(false, []);
    }
}

/// Timers.
impl Gentle {
    /// Returns the next deadline of the active mechanisms. Data may leave if `sends` is true, and may arrive
    /// if `is_open` is.
    #[inline]
    pub(crate) fn next_timeout(
        &self,
        tx: &Sender,
        known: &PathFacts,
        sends: bool,
        is_open: bool,
    ) -> Option<Instant> {
        let Some(active) = self.active.as_deref() else {
            return self.copier().filter(|_| sends).and_then(Copies::next_timeout);
        };
        let parity = active.tx.as_ref().and_then(|parity| parity.next_timeout(tx, known));
        let repair = active.rx.as_ref().and_then(|rx| rx.next_timeout(tx.timeout()));
        let copies = active.proactive.as_ref().and_then(|proactive| proactive.next_timeout(sends, is_open));
        [parity, repair, copies].into_iter().flatten().min()
    }

    /// Serves the timers. Copies and parity may be due. Received data that parity has repaired counts as lost
    /// if its original has not arrived by now.
    pub(crate) fn on_timeout(&mut self, parts: &mut Parts<'_>, now: Instant) {
        let Some(active) = self.active.as_deref_mut() else {
            if let Some(unmarked) = &mut self.unmarked {
                unmarked.copies.on_timeout(now);
            }
            return;
        };
        active.on_proactive_timeout(parts, now);
        if let Some(tx) = &mut active.tx {
            tx.on_timeout(parts, now);
        }
        active.on_repair_timeout(parts, now);
    }
}

/// Segments that leave.
impl Gentle {
    /// Returns the option of a segment that leaves now.
    pub(crate) fn option(&self) -> Option<GentleOption> {
        let flags = self.active.as_ref()?.signals.flags();
        // In F1 every segment has the option, to show that no device removes it.
        (flags != 0 || self.is_f1()).then_some(GentleOption::Short { flags })
    }

    /// Returns the bytes of the option in a data segment.
    pub(crate) fn option_len(&self) -> u32 {
        let marks = self.proactive().map_or(0, |proactive| proactive.copies.mark_len());
        if self.option().is_some() { FLAGS_LEN } else { marks }
    }

    /// Returns the option of a bare acknowledgement that reports a failed repair, or asks for no more parity
    /// ([`STOP`]).
    pub(crate) fn failure_option(&self) -> Option<GentleOption> {
        let signals = &self.active.as_ref()?.signals;
        let lost_len = signals.failure()?;
        Some(GentleOption::Fail { flags: signals.flags() | R_FAIL, lost_len })
    }

    /// True if copies, parity or a failure may have to leave, now or when they are due.
    #[inline]
    pub(crate) fn has_turn(&self) -> bool {
        let Some(active) = &self.active else { return self.copier().is_some_and(Copies::are_waiting) };
        active.proactive.as_ref().is_some_and(|proactive| proactive.copies.are_waiting())
            || active.tx.as_ref().is_some_and(ParityTx::is_waiting)
            || self.owes_failure()
    }

    /// True if a failure must be reported at once, on a bare acknowledgement.
    pub(crate) fn owes_failure(&self) -> bool {
        let failure = self.active.as_ref().and_then(|active| active.signals.failure());
        failure.is_some_and(|lost_len| lost_len != STOP)
    }
}

impl Gentle {
    /// Records a segment that left: its signals need not be repeated, and its data may be copied and encoded.
    pub(crate) fn on_sent(&mut self, sent: &SentSegment<'_>, parts: &mut Parts<'_>, now: Instant) {
        let named = self
            .planner
            .as_ref()
            .zip(sent.data())
            .and_then(|(planner, data)| planner.copy_delay(&data.range, parts.tx.rtt.srtt()));
        let withheld = self.withholds_parity(parts.tx.recovery.state());
        let affords_ack = self.affords(ACK_LEN);
        let Some(active) = self.active.as_deref_mut() else {
            return self.on_sent_unmarked(sent, named, parts, now);
        };
        match *sent {
            SentSegment::Data { data, header, fresh, urgent } => {
                active.signals.on_sent(header.options.gentle, now);
                let copied = active.copy(data, header, named, parts, now);
                if let Some(tx) = active.tx.as_mut().filter(|_| fresh) {
                    tx.encode(data, copied, urgent, withheld, parts, now);
                }
            }
            SentSegment::Copy(range) => active.on_copy_sent(range, parts, now),
            SentSegment::Parity(plan, option) => active.on_parity_sent(plan, option, parts, now),
            SentSegment::TailAck => active.on_bare_ack(true, parts),
            SentSegment::Ack { header, is_tail } => {
                active.signals.on_sent(header.options.gentle, now);
                active.on_bare_ack(is_tail, parts);
                if affords_ack {
                    active.copy_ack(header, parts, now);
                }
            }
        }
    }
}

/// Segments that arrive.
impl Gentle {
    /// Examines an arriving segment before any other step. Parity is taken out of the data path. A segment
    /// that might be parity is dropped as a whole, and so is the second instance of a copied segment.
    pub(crate) fn on_segment(
        &mut self,
        segment: &Arrived<'_>,
        parts: &mut Parts<'_>,
        now: Instant,
    ) -> SegmentVerdict {
        #[cfg(feature = "historical")]
        match self.check_f1(segment, parts, now) {
            SegmentVerdict::Process => {}
            verdict => return verdict,
        }
        if segment.options.malformed_gentle {
            parts.counters.gentle_dropped += 1;
            return SegmentVerdict::Drop;
        }
        if segment.options.gentle.is_some_and(|option| option.is_encoded()) {
            return self.on_parity(segment, parts, now);
        }
        let Some(active) = self.active.as_deref_mut() else { return SegmentVerdict::Process };
        active.check_late_original(segment, parts);
        active.filter_copy(segment, parts, now)
    }

    /// True if [`Gentle::on_segment`] has to decide: there is an agreement, or the segment has the option.
    pub(crate) fn decides(&self, segment: &Arrived<'_>) -> bool {
        let options = segment.options;
        #[cfg(feature = "historical")]
        if self.f1_hold.is_some() {
            return true;
        }
        self.active.is_some() || options.gentle.is_some() || options.malformed_gentle
    }
}

/// Acknowledgements.
impl Gentle {
    #[inline]
    pub(crate) fn on_rtt(&mut self, rtt: Micros, board: &Scoreboard, now: Instant) {
        if let Some(planner) = &mut self.planner {
            planner.kinds.recent.push(rtt);
        }
        if let Some(parity) = self.active.as_deref_mut().and_then(|active| active.tx.as_mut()) {
            parity.on_rtt(rtt, board, now);
        }
    }

    /// Reads the flags of an acceptable segment.
    pub(crate) fn read_signals(
        &mut self,
        segment: &Arrived<'_>,
        parts: &mut Parts<'_>,
        now: Instant,
    ) -> Option<RepairReport> {
        let active = self.active()?;
        let (srtt, rto) = (parts.tx.rtt.srtt(), parts.tx.timeout());
        let expected = active.expects_reports(rto, now);
        let report = active.signals.on_segment(segment, expected, srtt, now);
        let flags = segment.options.gentle.and_then(|option| option.flags()).unwrap_or(0);
        if flags & R_SUCC != 0 && !expected {
            parts.counters.gentle_spoofed += 1;
        }
        Some(report)
    }

    /// Processes an acknowledgement's reports of parity and copies: after the scoreboard, and before losses
    /// and round-trip times are derived from the acknowledgement. `reported` is the highest sequence number
    /// that SACK had reported before, `probe` the deadline of the probe timer. Returns the peer's report, if
    /// the mechanisms are in use.
    pub(crate) fn on_ack(
        &mut self,
        segment: &Arrived<'_>,
        ack: &mut AckOutcome,
        reported: Option<SeqNum>,
        probe: Option<Instant>,
        parts: &mut Parts<'_>,
        now: Instant,
    ) -> Option<RepairReport> {
        let report = self.read_signals(segment, parts, now)?;
        if report.repaired {
            // Without the repair, one of these timers would have repeated the data, and the answer would have
            // come a round trip later.
            let timers = [parts.tx.reordering_timeout(), parts.tx.rto.deadline(), probe];
            if let (Some(at), Some(srtt)) = (timers.into_iter().flatten().min(), parts.tx.rtt.srtt()) {
                parts.counters.parity.saved += (at.max(now) + srtt).saturating_since(now);
            }
        }
        if self.read_ack(&report, ack, reported, parts) {
            parts.path.count_repaired(ack, reported, report.repaired);
        }
        Some(report)
    }

    /// Responds to the first report of a repair, before the window is reduced for it. Returns the means of
    /// the repair.
    pub(crate) fn on_masked_loss(&mut self, parts: &mut Parts<'_>) -> Repair {
        let Some(active) = self.active() else { return Repair::Copy };
        active.change_copies(parts, Copies::on_loss);
        let parity = active.tx.as_ref().is_some_and(ParityTx::expects_reports);
        if parity { Repair::Parity } else { Repair::Copy }
    }

    /// Completes an acknowledgement, after the window was reduced for its reports.
    pub(crate) fn after_ack(
        &mut self,
        report: &RepairReport,
        ack: &AckOutcome,
        parts: &mut Parts<'_>,
        now: Instant,
    ) -> Conclusion {
        let newly_lost = if report.reported { self.resend_repaired_hole(ack, parts, now) } else { 0 };
        let refuted = match ack.dsack {
            Some(Dsack { range, of: DsackOf::NeverSentTwice, .. }) => self.refute_repair(range, parts),
            Some(Dsack { range, of: DsackOf::Duplicate, .. }) => {
                self.on_copy_reported(report, range, parts, now)
            }
            Some(Dsack { of: DsackOf::Retransmit | DsackOf::TailLossProbe | DsackOf::Repaired, .. })
            | None => Refuted::Nothing,
        };
        Conclusion { newly_lost, refuted }
    }
}

/// The repairs that a processed acknowledgement shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Conclusion {
    /// Bytes of a hole that the peer has repaired but a device on the path has not seen. They are
    /// retransmitted.
    pub(crate) newly_lost: u32,
    pub(crate) refuted: Refuted,
}

/// Repairs of data that had not been lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refuted {
    Nothing,
    /// A part of the last report.
    Some,
    /// The whole report: the reduction was spurious.
    All,
}

impl Active {
    /// True if this end sent redundancy with which the peer may have repaired a loss.
    fn expects_reports(&self, rto: Micros, now: Instant) -> bool {
        let parity = self.tx.as_ref().is_some_and(ParityTx::expects_reports);
        parity || self.copied.is_some_and(|copied| Micros::between(copied, now) <= rto * 2)
    }
}

/// True if the option fits on a SYN or SYN-ACK with the other options.
fn fits(option: GentleOption, options: Options) -> bool {
    let with = Options { gentle: Some(option), ..options };
    let mut area = arrayvec::ArrayVec::new();
    !with.emit(true, &mut area).gentle
}
