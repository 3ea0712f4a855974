//! Reactive as published: Algorithm 1 of *Reducing Web Latency: the Virtue of Gentle Aggression* (section
//! 4.1) with its detection of losses that the probe itself repaired (section 4.2).
//!
//! RFC 8985 probes if data is in flight. This form probes if the sender is stuck: in state Open and with
//! nothing that it may send. At most `max_probes` probes follow one another. Of N retransmitted probes all N
//! must be reported as duplicates before the next flight is acknowledged. A missing report shows that a probe
//! repaired a loss.

use brisk_wire::SeqNum;

use crate::config::PaperConfig;
use crate::connection::sender::Sender;
use crate::outcome::{
    AckOutcome, CongestionSignal, CongestionState, DsackOf, Origin, Reaction, Repair, Sent,
};
use crate::seq_ranges::SeqRange;
use crate::time::{Instant, Micros};

/// Probe timeout before the first round-trip sample (draft-dukkipati-tcpm-tcp-loss-probe).
const PTO_WITHOUT_SAMPLE: Micros = Micros::from_millis(1000);
/// The worst-case delayed acknowledgement.
const WDT: Micros = Micros::from_millis(200);
/// Minimum probe timeout of the draft; Algorithm 1 has none.
const PTO_FLOOR: Micros = Micros::from_millis(10);

/// The probes of one connection.
#[derive(Clone, Debug)]
pub(crate) struct PaperProbe {
    config: PaperConfig,
    deadline: Option<Instant>,
    due: bool,
    /// Probes in a row without progress.
    npto: u32,
    /// Retransmitted probes whose duplicates are not all reported yet.
    episode: Option<ProbeEpisode>,
}

/// State from the first retransmitted probe until data sent after it is acknowledged.
#[derive(Clone, Copy, Debug)]
struct ProbeEpisode {
    unexplained: u32,
    /// SND.NXT at the first retransmitted probe.
    high: SeqNum,
    /// Segment that the first probe retransmitted.
    segment: SeqRange,
}

impl PaperProbe {
    pub(crate) fn new(config: &PaperConfig) -> Self {
        PaperProbe { config: *config, deadline: None, due: false, npto: 0, episode: None }
    }

    /// True if function schedule_pto of Algorithm 1 permits a probe: "FlightSize > 0 and state is Open,
    /// limited by cwnd or application, consecutive PTOs below the maximum". A full window of the peer is a
    /// limit as well; a closed one permits no probe.
    fn may_probe(&self, tx: &Sender) -> bool {
        let (una, nxt) = (tx.scoreboard.una(), tx.scoreboard.nxt());
        let next = tx.unsent().min(tx.mss());
        let peer = tx.window.snd_wnd().saturating_sub(nxt.since(una));
        // Nagle's algorithm holds back an unsent partial segment.
        let limited = tx.unsent() < tx.mss()
            || tx.rate.pipe_with(tx.scoreboard.pipe()).saturating_add(next) > tx.rate.congestion.cwnd()
            || next > peer;
        una != nxt
            && tx.window.snd_wnd() > 0
            && tx.recovery.state() == CongestionState::Open
            && tx.reordering_timeout().is_none()
            && limited
            && self.npto < self.config.max_probes
    }

    fn pto(&self, tx: &Sender) -> Micros {
        let Some(srtt) = tx.rtt.srtt() else { return PTO_WITHOUT_SAMPLE };
        let twice = srtt * 2;
        if tx.scoreboard.segments() > 1 {
            // "If FlightSize > 1: PTO = 2 x RTT".
            return twice.max(PTO_FLOOR);
        }
        // "Else: PTO = 1.5 x RTT + WDT": the receiver may hold the acknowledgement back. The wait is at least
        // two round trips.
        (srtt + srtt / 2 + WDT).max(twice)
    }

    fn schedule(&mut self, tx: &Sender, now: Instant) {
        self.deadline = self.may_probe(tx).then(|| {
            let at = now + self.pto(tx).max(tx.rtt.granularity());
            // "PTO = min(RTO, PTO)".
            tx.rto.deadline().map_or(at, |rto| at.min(rto))
        });
    }

    /// Section 4.2: returns a congestion signal if a probe repaired a loss.
    pub(crate) fn repaired_loss(&mut self, ack: &AckOutcome) -> Option<CongestionSignal> {
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

    pub(crate) fn on_sent(&mut self, sent: &Sent, fresh: bool, tx: &Sender, now: Instant) {
        if tx.recovery.in_recovery() {
            (self.episode, self.npto, self.due) = (None, 0, false);
        }
        if sent.origin == Origin::TailLossProbe {
            self.due = false;
            if !fresh {
                let high = tx.scoreboard.nxt();
                let first = ProbeEpisode { unexplained: 0, high, segment: sent.range };
                self.episode.get_or_insert(first).unexplained += 1;
            }
        }
        if matches!(sent.origin, Origin::New | Origin::TailLossProbe) {
            self.schedule(tx, now);
        }
    }

    pub(crate) fn on_ack(&mut self, ack: &AckOutcome, tx: &Sender, now: Instant) {
        if ack.advanced > 0 || tx.recovery.in_recovery() {
            self.npto = 0;
        }
        if tx.recovery.in_recovery() {
            self.episode = None;
        }
        self.due = false;
        self.schedule(tx, now);
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Implements function handle_pto of Algorithm 1.
    pub(crate) fn on_timeout(&mut self, tx: &Sender) {
        self.deadline = None;
        if self.may_probe(tx) {
            self.npto += 1;
            self.due = true;
        }
    }

    pub(crate) fn is_due(&self) -> bool {
        self.due
    }
}
