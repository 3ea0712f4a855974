//! Corrective, the receiving half on one connection: parity segments are taken out before the data path
//! sees them, what they bring back goes through it like an arrival, and the peer is told (Gentle
//! Aggression section 5). What is rebuilt is the [decoder](crate::mechanism::corrective::decoder)'s
//! affair.

use brisk_wire::{Flags, Options, SeqNum};

use crate::config::{CorrectiveConfig, FecRule};
use crate::connection::gentle::proactive::is_marked;
use crate::connection::{Connection, State};
use crate::event::Probe;
use crate::mechanism::corrective::code::Code;
use crate::mechanism::corrective::decoder::{Decoder, DecoderConfig, Edges, Failure, Outcome, Recovered};
use crate::mechanism::corrective::history::{History, Reception};
use crate::mechanism::corrective::overtaken::Overtaken;
use crate::mechanism::{Agreed, ParityOff, Profile};
use crate::outcome::{Arrived, Rebuilt};
use crate::receive::Paws;
use crate::seq_ranges::SeqRange;
use crate::time::Instant;

/// The receiving half of Corrective.
#[derive(Debug)]
pub(crate) struct ParityRx {
    decoder: Decoder,
    history: History,
    overtaken: Overtaken,
}

impl ParityRx {
    /// A receiver that announced an MSS of `rmss` bytes, of a stream whose first byte has sequence number
    /// `origin`.
    pub(crate) fn new(
        agreed: &Agreed,
        code: Code,
        config: &CorrectiveConfig,
        rmss: u32,
        origin: SeqNum,
    ) -> Self {
        let rule = config.rule.unwrap_or(match agreed.profile {
            Profile::F1 => FecRule::Contiguous,
            Profile::F2 => FecRule::Residue,
        });
        let decoder = Decoder::new(DecoderConfig { code, profile: agreed.profile, rule, rmss, origin });
        ParityRx { decoder, history: History::new(), overtaken: Overtaken::default() }
    }

    /// Bytes before RCV.NXT that may be kept for repairs.
    pub(crate) fn history(&self) -> usize {
        self.decoder.config().history() as usize
    }
}

impl Connection {
    fn parity_rx(&mut self) -> Option<&mut ParityRx> {
        self.gentle.active()?.rx.as_mut()
    }

    /// A parity segment arrived. It carries no acknowledgement and is never data.
    pub(crate) fn on_parity(&mut self, segment: &Arrived<'_>, now: Instant) {
        let receiving = matches!(self.state, State::Established | State::FinWait1 | State::FinWait2);
        let edges = Edges {
            rcv_nxt: self.rx.rcv_nxt(),
            rcv_wnd: self.rx.rcv_wnd(),
            fin_known: self.rx.assembler.fin_known(),
        };
        if !receiving || !self.is_believable(segment, now) {
            self.counters.parity.dropped += 1;
            return;
        }
        let held =
            Reception { queue: &self.rx.queue, assembler: &self.rx.assembler, read_next: self.rx.read_next };
        let rx = self.gentle.active.as_deref_mut().and_then(|active| active.rx.as_mut());
        let Some(rx) = rx else {
            self.counters.gentle_dropped += 1;
            return;
        };
        self.counters.parity.received += 1;
        let outcome = rx.decoder.on_segment(segment, &edges, &held, now);
        self.take_verdict(outcome, segment, true, now);
        if self.gentle.agreed().is_some_and(|agreed| agreed.profile == Profile::F1) {
            self.take_flags_of_parity(segment, now);
        }
    }

    /// PAWS, and an acknowledgement number that the peer can have sent.
    pub(crate) fn is_believable(&self, segment: &Arrived<'_>, now: Instant) -> bool {
        let stamps = segment.options.timestamps.filter(|_| self.negotiated.timestamps);
        let fresh = stamps.is_none_or(|stamps| self.rx.timestamps.paws(stamps.value, now) == Paws::Accept);
        fresh && self.acknowledges_plausibly(segment)
    }

    /// An acknowledgement number that the peer can have sent.
    fn acknowledges_plausibly(&self, segment: &Arrived<'_>) -> bool {
        let oldest = self.tx.scoreboard.una() - self.tx.window.max_snd_wnd();
        segment.flags.contains(Flags::ACK)
            && oldest.le(segment.ack)
            && segment.ack.le(self.tx.scoreboard.nxt())
    }

    /// A segment arrived. It may be the late original of what was repaired, which is an ordinary duplicate otherwise.
    pub(crate) fn check_late_original(&mut self, segment: &Arrived<'_>) {
        let waits = self.gentle.active.as_ref().and_then(|active| active.rx.as_ref());
        if waits.is_none_or(|rx| rx.overtaken.is_empty()) || segment.payload.is_empty() {
            return;
        }
        let stamps = segment.options.timestamps.filter(|_| self.negotiated.timestamps);
        let plausible = !is_marked(segment) && self.acknowledges_plausibly(segment);
        let range = SeqRange::with_len(segment.seq, segment.payload.len() as u32);
        let Some(stamps) = stamps.filter(|_| plausible) else { return };
        if self.parity_rx().is_some_and(|rx| rx.overtaken.on_original(range, stamps.value))
            && let Some(active) = self.gentle.active()
        {
            active.signals.on_refuted();
        }
    }

    /// Data arrived: parity that was not enough may be enough now.
    pub(crate) fn repair_with_more(&mut self, segment: &Arrived<'_>, now: Instant) {
        let edges = Edges {
            rcv_nxt: self.rx.rcv_nxt(),
            rcv_wnd: self.rx.rcv_wnd(),
            fin_known: self.rx.assembler.fin_known(),
        };
        let held =
            Reception { queue: &self.rx.queue, assembler: &self.rx.assembler, read_next: self.rx.read_next };
        let Some(rx) = self.gentle.active.as_deref_mut().and_then(|active| active.rx.as_mut()) else {
            return;
        };
        rx.history.on_arrival(now);
        if let Some(outcome) = rx.decoder.on_data(&edges, &held, now) {
            self.take_verdict(outcome, segment, false, now);
        }
    }

    /// `segment` is a `parity`, or data with which parities that waited are enough.
    fn take_verdict(&mut self, outcome: Outcome, segment: &Arrived<'_>, parity: bool, now: Instant) {
        match outcome {
            Outcome::Dropped(_) => self.counters.parity.dropped += 1,
            Outcome::Nothing => self.counters.parity.needless += 1,
            Outcome::Waiting => {}
            Outcome::Recovered(recovered) => self.take_repair(recovered, segment, parity, now),
            Outcome::Failed { lost_len, why } => {
                self.count_failure(why);
                if let Some(active) = self.gentle.active() {
                    active.signals.on_failure(lost_len);
                }
                self.rx.ack.force();
                self.probe(Probe::RepairFailed { lost_len, why });
            }
            Outcome::Stop => {
                self.count_failure(Failure::Checksum);
                self.stop_repair(ParityOff::Checksum);
            }
        }
    }

    /// What was lost is here: it goes the way of everything that arrives.
    fn take_repair(&mut self, recovered: Recovered, segment: &Arrived<'_>, parity: bool, now: Instant) {
        let Recovered { runs, range, parities: _ } = recovered;
        self.report_repair(&runs, segment, now);
        self.counters.repaired_by_parity += runs.len() as u64;
        self.probe(Probe::Repaired { range, runs: runs.len() as u32 });
        let options = Options::default();
        for Rebuilt { seq, payload, fin } in &runs {
            self.counters.parity.repaired_bytes += payload.len() as u64;
            if parity {
                self.note_timestamp_of_repair(*seq, segment, now);
            }
            let flags = if *fin { Flags::ACK | Flags::FIN } else { Flags::ACK };
            let repaired = Arrived {
                seq: *seq,
                ack: self.tx.scoreboard.una(),
                flags,
                window: 0,
                urgent: 0,
                options: &options,
                payload,
                ecn: brisk_wire::Ecn::NotEct,
                segment_size: payload.len(),
            };
            self.take_payload(&repaired, now);
        }
        self.rx.ack.force();
    }

    /// The peer hears of a repair, at once or when the original has not come in time.
    fn report_repair(&mut self, runs: &[Rebuilt], segment: &Arrived<'_>, now: Instant) {
        let rtt = self.tx.rtt.min_rtt().zip(self.tx.rtt.srtt());
        let stamps = segment.options.timestamps.filter(|_| self.negotiated.timestamps);
        let Some(active) = self.gentle.active() else { return };
        let Some(rx) = active.rx.as_mut() else { return };
        if !active.signals.is_reporting() {
            rx.overtaken.on_confirmed();
        }
        // Without timestamps an original cannot be told from a retransmission.
        let mut at_once = stamps.is_none();
        for (run, stamps) in runs.iter().filter_map(|run| Some((run, stamps?))) {
            let range = SeqRange::with_len(run.seq, run.payload.len() as u32);
            at_once |= range.is_empty() || rx.overtaken.on_repair(range, stamps.value, rtt, now);
        }
        if at_once {
            active.signals.on_repair();
        }
    }

    /// When an original is given up.
    pub(crate) fn overtaken_timeout(&self) -> Option<Instant> {
        self.gentle.active.as_ref()?.rx.as_ref()?.overtaken.next_timeout()
    }

    /// Time passed: originals that have not come were lost.
    pub(crate) fn on_overtaken_timeout(&mut self, now: Instant) {
        if self.parity_rx().is_some_and(|rx| rx.overtaken.on_timeout(Some(now)))
            && let Some(active) = self.gentle.active()
        {
            active.signals.on_repair();
            self.rx.ack.force();
        }
    }

    /// A run at RCV.NXT came with this parity: its timestamp is the one to echo.
    fn note_timestamp_of_repair(&mut self, seq: SeqNum, segment: &Arrived<'_>, now: Instant) {
        let stamps = segment.options.timestamps;
        let rcv_nxt = self.rx.rcv_nxt();
        if let Some(stamps) = stamps.filter(|_| self.negotiated.timestamps && seq == rcv_nxt) {
            self.rx.timestamps.on_accepted(seq, stamps.value, rcv_nxt, now);
        }
    }

    fn count_failure(&mut self, why: Failure) {
        let counters = &mut self.counters.parity;
        match why {
            Failure::TooMuchLost => counters.failed_too_much += 1,
            Failure::History => counters.failed_history += 1,
            Failure::Checksum => counters.failed_checksum += 1,
        }
    }

    /// No more parity is taken on this connection; the peer is told to send none.
    pub(crate) fn stop_repair(&mut self, why: ParityOff) {
        if let Some(active) = self.gentle.active()
            && let Some(mut rx) = active.rx.take()
        {
            if rx.overtaken.on_timeout(None) {
                active.signals.on_repair();
            }
            active.signals.on_stop();
            self.rx.queue.retain(0);
            self.rx.ack.force();
            self.counters.parity.rx_off = Some(why);
            self.probe(Probe::ParityOff { sending: false, why });
        }
    }

    /// When the history of an idle connection is freed.
    pub(crate) fn history_timeout(&self) -> Option<Instant> {
        let rto = self.tx.timeout();
        self.gentle.active.as_ref()?.rx.as_ref()?.history.next_timeout(rto)
    }

    /// Time passed.
    pub(crate) fn on_history_timeout(&mut self, now: Instant) {
        let rto = self.tx.timeout();
        if self.parity_rx().is_some_and(|rx| rx.history.on_timeout(rto, now)) {
            self.rx.queue.forget();
        }
    }

    /// Nothing more arrives: nothing is kept to repair it.
    pub(crate) fn end_history(&mut self) {
        if let Some(rx) = self.parity_rx() {
            rx.history.clear();
            rx.decoder.clear();
            self.rx.queue.retain(0);
        }
    }

    /// Bytes that are kept for repairs and for nothing else.
    pub(crate) fn repair_memory(&self) -> usize {
        let rx = self.gentle.active.as_ref().and_then(|active| active.rx.as_ref());
        rx.map_or(0, |rx| self.rx.queue.retained() + rx.decoder.memory())
    }

    /// When payload arrived last, of which something is kept.
    pub(crate) fn last_repair_arrival(&self) -> Option<Instant> {
        self.gentle.active.as_ref()?.rx.as_ref()?.history.last_arrival()
    }

    /// The stack is short of memory for repairs.
    pub(crate) fn forget_history(&mut self) {
        if let Some(rx) = self.parity_rx() {
            rx.history.clear();
            rx.decoder.clear();
            self.rx.queue.forget();
        }
    }
}
