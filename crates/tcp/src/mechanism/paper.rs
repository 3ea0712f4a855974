//! Reactive as published: Algorithm 1 of *Reducing Web Latency: the Virtue of Gentle Aggression*
//! (section 4.1) with its detection of losses that the probe itself repaired (section 4.2).
//!
//! Where the current form asks whether anything is in flight, this one asks whether the sender is stuck:
//! in state Open and with nothing that it could send. Up to two probes may follow one another. A loss
//! that a probe repaired shows as a duplicate that never came: of N retransmitted probes N must be
//! reported as needless before the next flight is acknowledged.

use brisk_wire::SeqNum;

use super::Mechanism;
use crate::config::PaperConfig;
use crate::connection::View;
use crate::outcome::{
    AckOutcome, Ask, CongestionSignal, CongestionState, DsackOf, Origin, Reaction, Repair, Sent,
};
use crate::seq_ranges::SeqRange;
use crate::time::{Instant, Micros};

/// Before the first round-trip sample (draft-dukkipati-tcpm-tcp-loss-probe).
const PTO_WITHOUT_SAMPLE: Micros = Micros::from_millis(1000);
/// Least probe timeout, of the draft; Algorithm 1 has none.
const PTO_FLOOR: Micros = Micros::from_millis(10);

/// The probes of one connection.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Paper {
    config: PaperConfig,
    deadline: Option<Instant>,
    due: bool,
    /// SND.NXT when a probe was asked for: what lies below repeats old data.
    asked_at: SeqNum,
    /// Probes in a row without progress.
    npto: u32,
    /// The retransmitted probes that are not explained by a duplicate yet.
    episode: Option<ProbeEpisode>,
}

/// From the first retransmitted probe until data sent after it is acknowledged.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
struct ProbeEpisode {
    unexplained: u32,
    /// SND.NXT at the first retransmitted probe.
    high: SeqNum,
    /// What the first probe repeated.
    segment: SeqRange,
}

impl Paper {
    /// A probe timer that is not running.
    pub(crate) fn new(config: &PaperConfig) -> Self {
        Paper { config: *config, deadline: None, due: false, asked_at: SeqNum(0), npto: 0, episode: None }
    }

    /// Function schedule_pto of Algorithm 1: "FlightSize > 0 and state is Open, limited by cwnd or
    /// application, consecutive PTOs below the maximum". A shut or full peer's window limits as well.
    fn may_probe(&self, view: &View<'_>) -> bool {
        let next = view.unsent().min(view.mss());
        let peer = view.snd_wnd().saturating_sub(view.nxt().since(view.una()));
        // What is smaller than a segment and not gone yet is held back by Nagle's algorithm.
        let limited =
            view.unsent() < view.mss() || view.pipe().saturating_add(next) > view.cwnd() || next > peer;
        view.established()
            && view.sack()
            && view.una() != view.nxt()
            && view.snd_wnd() > 0
            && view.recovery() == CongestionState::Open
            && !view.reordering_timer()
            && limited
            && self.npto < self.config.max_probes
    }

    fn pto(&self, view: &View<'_>) -> Micros {
        let Some(srtt) = view.srtt() else { return PTO_WITHOUT_SAMPLE };
        let twice = srtt * 2;
        let floor = if self.config.strict_alg1 { Micros::ZERO } else { PTO_FLOOR };
        if view.segments() > 1 {
            // "If FlightSize > 1: PTO = 2 x RTT".
            return twice.max(floor);
        }
        // "Else: PTO = 1.5 x RTT + WDT": the receiver may hold the acknowledgement back.
        let delayed = srtt + srtt / 2 + self.config.wdt.into();
        if self.config.strict_alg1 { delayed } else { delayed.max(twice) }
    }

    fn schedule(&mut self, view: &View<'_>, now: Instant) {
        self.deadline = self.may_probe(view).then(|| {
            let at = now + self.pto(view).max(view.granularity());
            // "PTO = min(RTO, PTO)".
            view.rto_at().map_or(at, |rto| at.min(rto))
        });
    }

    /// Section 4.2: has a probe plugged the hole?
    fn judge(&mut self, ack: &AckOutcome) -> Option<CongestionSignal> {
        let episode = self.episode.as_mut()?;
        let duplicate = ack.bare && ack.advanced == 0 && ack.newly_sacked == 0 && ack.ack == episode.high;
        let reported = ack.dsack.is_some_and(|dsack| {
            dsack.of == DsackOf::TailLossProbe && dsack.range.intersection(&episode.segment).is_some()
        });
        if duplicate || reported {
            episode.unexplained = episode.unexplained.saturating_sub(1);
            if episode.unexplained == 0 {
                self.episode = None;
            }
        } else if ack.ack.gt(episode.high) {
            self.episode = None;
            return Some(CongestionSignal { ack: ack.ack, by: Repair::Probe, reaction: Reaction::AtOnce });
        }
        None
    }

    fn note_probe(&mut self, sent: &Sent, view: &View<'_>) {
        if sent.range.end.gt(self.asked_at) {
            return;
        }
        let first = ProbeEpisode { unexplained: 0, high: view.nxt(), segment: sent.range };
        self.episode.get_or_insert(first).unexplained += 1;
    }
}

impl Mechanism for Paper {
    fn name(&self) -> &'static str {
        "reactive"
    }

    fn on_sent(&mut self, sent: &Sent, view: &View<'_>, now: Instant) {
        if view.recovers() {
            (self.episode, self.npto, self.due) = (None, 0, false);
        }
        match sent.origin {
            Origin::New => self.schedule(view, now),
            Origin::TailLossProbe => {
                self.note_probe(sent, view);
                self.schedule(view, now);
            }
            Origin::Ack | Origin::Retransmit | Origin::Duplicate | Origin::Parity => {}
        }
    }

    fn masked_loss(&mut self, ack: &AckOutcome, view: &View<'_>) -> Option<CongestionSignal> {
        if view.recovers() { None } else { self.judge(ack) }
    }

    fn on_acked(&mut self, ack: &AckOutcome, view: &View<'_>, now: Instant) {
        if ack.advanced > 0 || view.recovers() {
            self.npto = 0;
        }
        if view.recovers() {
            self.episode = None;
        }
        self.due = false;
        self.schedule(view, now);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    fn stands_for_rto(&self) -> bool {
        self.deadline.is_some()
    }

    /// Function handle_pto of Algorithm 1.
    fn on_timeout(&mut self, view: &View<'_>, _now: Instant) {
        self.deadline = None;
        if self.may_probe(view) {
            self.npto += 1;
            self.due = true;
        }
    }

    fn asks(&self) -> bool {
        self.due
    }

    fn poll(&mut self, view: &View<'_>) -> Option<Ask> {
        let due = core::mem::take(&mut self.due);
        self.asked_at = view.nxt();
        due.then_some(Ask::Probe)
    }
}
