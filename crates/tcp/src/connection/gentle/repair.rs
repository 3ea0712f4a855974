//! The receiving half of Corrective on one connection (Gentle Aggression section 5). Parity segments are
//! taken out before the data path sees them. The data that they recover goes through the data path like an
//! arrival, and the peer is notified. The [decoder](crate::mechanism::corrective::decoder) recovers the data.

use brisk_wire::{Flags, SeqNum};

use crate::connection::State;
use crate::connection::gentle::proactive::is_marked;
use crate::connection::gentle::{Active, Gentle, Parts, SegmentVerdict};
use crate::connection::observation::Observation;
use crate::connection::receiver::Receiver;
use crate::mechanism::corrective::code::Code;
use crate::mechanism::corrective::decoder::{Decoder, DecoderConfig, Failure, Outcome, Recovered};
use crate::mechanism::corrective::history::{History, Reception};
use crate::mechanism::corrective::overtaken::Overtaken;
use crate::mechanism::{Agreed, ParityOff};
use crate::outcome::{Arrived, Rebuilt};
use crate::receive::Paws;
use crate::seq_ranges::SeqRange;
use crate::time::{Instant, Micros};

/// The receiving half of Corrective.
#[derive(Debug)]
pub(crate) struct ParityRx {
    decoder: Decoder,
    history: History,
    overtaken: Overtaken,
}

impl ParityRx {
    /// Returns the state of a receiver that announced an MSS of `rmss` bytes. `origin` is the sequence number
    /// of the first stream byte.
    pub(crate) fn new(agreed: &Agreed, code: Code, rmss: u32, origin: SeqNum) -> Self {
        let decoder = Decoder::new(DecoderConfig { code, profile: agreed.profile, rmss, origin });
        ParityRx { decoder, history: History::new(), overtaken: Overtaken::default() }
    }

    /// Returns the number of bytes before RCV.NXT that may be kept for repairs.
    pub(crate) fn history(&self) -> usize {
        self.decoder.config().history() as usize
    }
}

impl ParityRx {
    /// Returns the next deadline: the history of an idle connection is freed, or the wait for the late
    /// original of a repaired segment ends.
    pub(crate) fn next_timeout(&self, rto: Micros) -> Option<Instant> {
        Instant::earlier(self.history.next_timeout(rto), self.overtaken.next_timeout())
    }
}

impl Parts<'_> {
    /// True if a segment passes PAWS and has a plausible acknowledgement number.
    pub(crate) fn is_believable(&self, segment: &Arrived<'_>, now: Instant) -> bool {
        let stamps = segment.options.timestamps.filter(|_| self.handshake.agreed.timestamps);
        let fresh = stamps.is_none_or(|stamps| self.rx.timestamps.paws(stamps.value, now) == Paws::Accept);
        fresh && self.acknowledges_plausibly(segment)
    }

    /// True if the peer can have sent this acknowledgement number.
    fn acknowledges_plausibly(&self, segment: &Arrived<'_>) -> bool {
        let oldest = self.tx.scoreboard.una() - self.tx.window.max_snd_wnd();
        segment.flags.contains(Flags::ACK)
            && oldest.le(segment.ack)
            && segment.ack.le(self.tx.scoreboard.nxt())
    }

    fn count_failure(&mut self, why: Failure) {
        let counters = &mut self.counters.parity;
        match why {
            Failure::TooMuchLost => counters.failed_too_much += 1,
            Failure::History => counters.failed_history += 1,
            Failure::Checksum => counters.failed_checksum += 1,
        }
    }
}

impl Gentle {
    /// Processes a parity segment, which carries no acknowledgement and is never data.
    pub(crate) fn on_parity(
        &mut self,
        segment: &Arrived<'_>,
        parts: &mut Parts<'_>,
        now: Instant,
    ) -> SegmentVerdict {
        let receiving = matches!(parts.state, State::Established | State::FinWait1 | State::FinWait2);
        if !receiving || !parts.is_believable(segment, now) {
            parts.counters.parity.dropped += 1;
            return SegmentVerdict::Drop;
        }
        let edges = parts.edges();
        let Some(rx) = self.active.as_deref_mut().and_then(|active| active.rx.as_mut()) else {
            parts.counters.gentle_dropped += 1;
            return SegmentVerdict::Drop;
        };
        parts.counters.parity.received += 1;
        let outcome = rx.decoder.on_segment(segment, &edges, &received(parts.rx), now);
        SegmentVerdict::Parity(self.take_verdict(outcome, segment, parts, now))
    }

    /// Retries waiting parities after data arrived, because fewer bytes are missing now. Returns the
    /// recovered data.
    pub(crate) fn on_data(
        &mut self,
        segment: &Arrived<'_>,
        parts: &mut Parts<'_>,
        now: Instant,
    ) -> Option<Recovered> {
        let edges = parts.edges();
        let rx = self.active.as_deref_mut()?.rx.as_mut()?;
        rx.history.on_arrival(now);
        let outcome = rx.decoder.on_data(&edges, &received(parts.rx), now)?;
        self.take_verdict(outcome, segment, parts, now)
    }

    /// Acts on the decoder's result. `segment` is the parity, or the data that waiting parities needed.
    fn take_verdict(
        &mut self,
        outcome: Outcome,
        segment: &Arrived<'_>,
        parts: &mut Parts<'_>,
        now: Instant,
    ) -> Option<Recovered> {
        match outcome {
            Outcome::Dropped(_) => parts.counters.parity.dropped += 1,
            Outcome::Nothing => parts.counters.parity.needless += 1,
            Outcome::Waiting => {}
            Outcome::Recovered(recovered) => {
                if let Some(active) = self.active() {
                    active.report_repair(&recovered.runs, segment, parts, now);
                }
                return Some(recovered);
            }
            Outcome::Failed { lost_len, why } => {
                parts.count_failure(why);
                if let Some(active) = self.active() {
                    active.signals.on_failure(lost_len);
                }
                parts.rx.ack.force();
                parts.observe(Observation::RepairFailed { lost_len, why });
            }
            Outcome::Stop => {
                parts.count_failure(Failure::Checksum);
                self.stop_repair(ParityOff::Checksum, parts);
            }
        }
        None
    }

    /// Stops accepting parity on this connection and tells the peer to send none.
    pub(crate) fn stop_repair(&mut self, why: ParityOff, parts: &mut Parts<'_>) {
        if let Some(active) = self.active()
            && let Some(mut rx) = active.rx.take()
        {
            if rx.overtaken.on_timeout(None) {
                active.signals.on_repair();
            }
            active.signals.on_stop();
            parts.rx.queue.retain(0);
            parts.rx.ack.force();
            parts.counters.parity.rx_off = Some(why);
            parts.observe(Observation::ParityOff { sending: false, why });
        }
    }
}

impl Active {
    /// Checks if a segment is the late original of a repair. If the originals of all reported repairs have
    /// arrived, records that nothing was lost; a DSACK then tells the peer. Any other segment with old data
    /// is an ordinary duplicate.
    pub(crate) fn check_late_original(&mut self, segment: &Arrived<'_>, parts: &Parts<'_>) {
        let Some(rx) = self.rx.as_mut().filter(|rx| !rx.overtaken.is_empty()) else { return };
        if segment.payload.is_empty() || is_marked(segment) || !parts.acknowledges_plausibly(segment) {
            return;
        }
        let Some(stamps) = segment.options.timestamps.filter(|_| parts.handshake.agreed.timestamps) else {
            return;
        };
        let range = SeqRange::with_len(segment.seq, segment.payload.len() as u32);
        if rx.overtaken.on_original(range, stamps.value) {
            self.signals.on_refuted();
        }
    }

    /// Reports a repair: at once, or, after reordering was seen, only if the original does not arrive within
    /// the reordering window.
    fn report_repair(&mut self, runs: &[Rebuilt], segment: &Arrived<'_>, parts: &Parts<'_>, now: Instant) {
        let rtt = parts.tx.rtt.min_rtt().zip(parts.tx.rtt.srtt());
        let stamps = segment.options.timestamps.filter(|_| parts.handshake.agreed.timestamps);
        let Some(rx) = self.rx.as_mut() else { return };
        if !self.signals.is_reporting() {
            rx.overtaken.on_confirmed();
        }
        // Without timestamps an original cannot be told from a retransmission.
        let mut at_once = stamps.is_none();
        for (run, stamps) in runs.iter().filter_map(|run| Some((run, stamps?))) {
            let range = SeqRange::with_len(run.seq, run.payload.len() as u32);
            at_once |= range.is_empty() || rx.overtaken.on_repair(range, stamps.value, rtt, now);
        }
        if at_once {
            self.signals.on_repair();
        }
    }

    /// Frees the history of an idle connection, and reports repairs whose originals did not arrive in time.
    pub(crate) fn on_repair_timeout(&mut self, parts: &mut Parts<'_>, now: Instant) {
        let Some(rx) = &mut self.rx else { return };
        if rx.history.on_timeout(parts.tx.timeout(), now) {
            parts.rx.queue.forget();
        }
        if rx.overtaken.on_timeout(Some(now)) {
            self.signals.on_repair();
            parts.rx.ack.force();
        }
    }
}

/// Memory for repairs.
impl Gentle {
    /// Returns the bytes that are kept only for repairs.
    #[inline]
    pub(crate) fn repair_memory(&self, rx: &Receiver) -> usize {
        let parity = self.active.as_ref().and_then(|active| active.rx.as_ref());
        parity.map_or(0, |parity| rx.queue.retained() + parity.decoder.memory())
    }

    /// Returns the time of the last arrival of payload; `None` if no history is kept.
    pub(crate) fn last_repair_arrival(&self) -> Option<Instant> {
        self.active.as_ref()?.rx.as_ref()?.history.last_arrival()
    }

    /// Frees the history, because the stack is short of memory for repairs.
    pub(crate) fn forget_history(&mut self, rx: &mut Receiver) {
        if self.clear_history() {
            rx.queue.forget();
        }
    }

    /// Frees the history, because no more data arrives that it could repair.
    pub(crate) fn end_history(&mut self, rx: &mut Receiver) {
        if self.clear_history() {
            rx.queue.retain(0);
        }
    }

    /// Returns true if there is a decoder.
    fn clear_history(&mut self) -> bool {
        let Some(parity) = self.active().and_then(|active| active.rx.as_mut()) else { return false };
        parity.history.clear();
        parity.decoder.clear();
        true
    }
}

/// Returns the part of the stream that the decoder may read.
fn received(rx: &Receiver) -> Reception<'_> {
    Reception { queue: &rx.queue, assembler: &rx.assembler, read_next: rx.read_next }
}
