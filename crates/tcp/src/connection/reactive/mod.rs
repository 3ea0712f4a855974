//! Reactive (Gentle Aggression section 4) sends a probe when an acknowledgement is overdue. Fast recovery,
//! instead of a retransmission timeout, then repairs a lost tail.
//!
//! There are two forms, RFC 8985's and the paper's. A connection uses the configured form from ESTABLISHED
//! on, if both ends use SACK. A form processes transmissions and acknowledgements and runs a timer. The
//! connection sends the probe, and while that timer runs, the retransmission timer does not fire.

#[cfg(feature = "historical")]
use alloc::boxed::Box;

use crate::config;
use crate::connection::sender::Sender;
use crate::outcome::{AckOutcome, CongestionSignal, Sent};
use crate::time::Instant;

#[cfg(feature = "historical")]
mod paper;
mod tlp;

#[derive(Debug)]
pub(crate) enum ProbeTimer {
    /// The tail loss probe of RFC 8985.
    Tlp(tlp::TailLossProbe),
    /// Algorithm 1 of the paper.
    #[cfg(feature = "historical")]
    Paper(Box<paper::PaperProbe>),
}

impl ProbeTimer {
    /// Returns the configured form, with its timer stopped.
    pub(crate) fn new(config: &config::Reactive) -> Option<ProbeTimer> {
        match config {
            config::Reactive::Off => None,
            #[cfg(feature = "historical")]
            config::Reactive::Paper(paper) => {
                Some(ProbeTimer::Paper(Box::new(paper::PaperProbe::new(paper))))
            }
            config::Reactive::RackTlp => Some(ProbeTimer::Tlp(tlp::TailLossProbe::new())),
        }
    }

    /// Returns the deadline of the timer. Until then the retransmission timer does not fire, because the two
    /// are mutually exclusive (RFC 8985 section 8). It restarts when the probe timer has fired.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self {
            ProbeTimer::Tlp(probe) => probe.deadline(),
            #[cfg(feature = "historical")]
            ProbeTimer::Paper(probe) => probe.deadline(),
        }
    }

    /// Processes the expiry of the timer.
    pub(crate) fn on_timeout(&mut self, tx: &Sender) {
        match self {
            ProbeTimer::Tlp(probe) => probe.on_timeout(tx),
            #[cfg(feature = "historical")]
            ProbeTimer::Paper(probe) => probe.on_timeout(tx),
        }
    }

    /// True if a probe must be sent now: one segment of new data, else the last segment again.
    pub(crate) fn is_due(&self) -> bool {
        match self {
            ProbeTimer::Tlp(probe) => probe.is_due(),
            #[cfg(feature = "historical")]
            ProbeTimer::Paper(probe) => probe.is_due(),
        }
    }

    /// Records a transmission; `fresh` if it includes new data.
    pub(crate) fn on_sent(&mut self, sent: &Sent, fresh: bool, tx: &Sender, now: Instant) {
        match self {
            ProbeTimer::Tlp(probe) => probe.on_sent(sent, fresh, tx, now),
            #[cfg(feature = "historical")]
            ProbeTimer::Paper(probe) => probe.on_sent(sent, fresh, tx, now),
        }
    }

    /// Returns the loss that a probe has repaired, as shown by an acknowledgement. Must be called before the
    /// acknowledgement changes recovery state and congestion window, because the reduction starts from the
    /// window in which the loss happened.
    pub(crate) fn repaired_loss(&mut self, ack: &AckOutcome, tx: &Sender) -> Option<CongestionSignal> {
        if tx.recovery.in_recovery() {
            return None;
        }
        match self {
            ProbeTimer::Tlp(probe) => probe.repaired_loss(ack),
            #[cfg(feature = "historical")]
            ProbeTimer::Paper(probe) => probe.repaired_loss(ack),
        }
    }

    pub(crate) fn on_ack(&mut self, ack: &AckOutcome, tx: &Sender, now: Instant) {
        match self {
            ProbeTimer::Tlp(probe) => probe.on_ack(ack, tx, now),
            #[cfg(feature = "historical")]
            ProbeTimer::Paper(probe) => probe.on_ack(ack, tx, now),
        }
    }
}
