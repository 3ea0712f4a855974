//! Reactive in its current form: the tail loss probe of RACK-TLP (RFC 8985 section 7).
//!
//! After a lost tail no later segment could be acknowledged, so only the retransmission timer would detect
//! the loss. When an acknowledgement is overdue by about a round trip, one probe leaves: new data if there is
//! some, else the last segment again. Its acknowledgement shows RACK the missing data, and fast recovery
//! replaces the timeout. If the probe itself repaired the loss, congestion control still reduces the window
//! once.

use brisk_wire::SeqNum;

use crate::connection::sender::Sender;
use crate::outcome::{AckOutcome, CongestionSignal, DsackOf, Origin, Reaction, Repair, Sent};
use crate::time::{Instant, Micros};

/// RFC 8985 section 7.2: "If SRTT is not available, PTO = 1 second".
const PTO_WITHOUT_SAMPLE: Micros = Micros::from_millis(1000);
/// TLP.max_ack_delay of RFC 8985: the maximum delay of the peer's acknowledgement of a single segment.
const MAX_ACK_DELAY: Micros = Micros::from_millis(200);

/// The probe of one connection; names as in RFC 8985 section 5.
#[derive(Clone, Debug)]
pub(crate) struct TailLossProbe {
    deadline: Option<Instant>,
    /// The timer fired and a probe must be sent.
    due: bool,
    /// The outstanding probe: TLP.end_seq and TLP.is_retrans.
    probe: Option<Outstanding>,
    /// A round-trip sample was taken since the last probe.
    rtt_since_probe: bool,
}

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    end_seq: SeqNum,
    is_retrans: bool,
}

impl TailLossProbe {
    pub(crate) fn new() -> Self {
        TailLossProbe { deadline: None, due: false, probe: None, rtt_since_probe: true }
    }

    /// True if a probe may be scheduled. RFC 8985 section 7.2: "1. The connection supports SACK. 2. The
    /// connection has no SACKed sequences in the SACK scoreboard. 3. The connection is not in loss recovery."
    fn may_probe(tx: &Sender) -> bool {
        tx.scoreboard.sacked_bytes() == 0
            && tx.scoreboard.una() != tx.scoreboard.nxt()
            && !tx.recovery.in_recovery()
            // The persist timer covers a closed window, RACK a suspected loss.
            && tx.window.snd_wnd() > 0
            && tx.reordering_timeout().is_none()
    }

    /// Implements TLP_calc_PTO of RFC 8985 section 7.2.
    ///
    /// If the delay of the peer's acknowledgements is known, the probe may leave sooner, at the time of
    /// QUIC's probe (RFC 9002 section 6.2.1). That is a round trip plus its variation plus this delay after
    /// the last transmission, and not before the variation has passed from now.
    ///
    /// `last_sent`: time of the last transmission. `rto_at`: deadline of the retransmission timer.
    fn schedule(&mut self, tx: &Sender, last_sent: Instant, rto_at: Option<Instant>, now: Instant) {
        self.deadline = None;
        if !TailLossProbe::may_probe(tx) {
            return;
        }
        let pto = match tx.rtt.srtt().map(|srtt| srtt * 2) {
            // "If FlightSize is one segment: PTO = 2 * SRTT + TLP.max_ack_delay".
            Some(twice) if tx.scoreboard.segments() == 1 => twice + MAX_ACK_DELAY,
            Some(twice) => twice,
            None => PTO_WITHOUT_SAMPLE,
        };
        let at = now + pto.max(tx.rtt.granularity());
        let at = match (tx.rtt.srtt(), tx.ack_delay) {
            (Some(srtt), Some(ack_delay)) => {
                let variation = tx.rtt.rttvar().map_or(Micros::ZERO, |rttvar| rttvar * 4).max(srtt / 4);
                at.min((last_sent + (srtt + variation + ack_delay)).max(now + variation))
            }
            _ => at,
        };
        // "If Now() + PTO > TCP_RTO_expiration(): PTO = TCP_RTO_expiration() - Now()".
        self.deadline = Some(rto_at.map_or(at, |rto| at.min(rto)));
    }

    fn reset(&mut self) {
        (self.deadline, self.due, self.probe) = (None, false, None);
    }

    /// Implements TLP_process_ack of RFC 8985 section 7.4.2.
    pub(crate) fn repaired_loss(&mut self, ack: &AckOutcome) -> Option<CongestionSignal> {
        let probe = self.probe.filter(|probe| ack.ack.ge(probe.end_seq))?;
        // The duplicate of a segment that was copied before is attributed to its copy.
        let duplicated = ack.dsack.is_some_and(|dsack| {
            matches!(dsack.of, DsackOf::TailLossProbe | DsackOf::Duplicate)
                && dsack.range.end == probe.end_seq
        });
        if !probe.is_retrans || duplicated {
            // "TLP_end_seq unset": new data masks nothing; a DSACK says that the original arrived.
            self.probe = None;
        } else if ack.ack.gt(probe.end_seq) {
            // "TLP sender detects that the probe repaired a loss": no duplicate was reported.
            self.probe = None;
            return Some(CongestionSignal { ack: ack.ack, by: Repair::Probe, reaction: Reaction::AtOnce });
        } else if ack.bare && ack.advanced == 0 && ack.newly_sacked == 0 {
            // "a duplicate ACK without SACK": both original and probe arrived.
            self.probe = None;
        }
        None
    }

    /// Updates the timer after a transmission: new data postpones the probe; a retransmission means that
    /// recovery is in progress and no probe is needed.
    pub(crate) fn on_sent(&mut self, sent: &Sent, fresh: bool, tx: &Sender, now: Instant) {
        if tx.recovery.in_recovery() {
            return self.reset();
        }
        if sent.origin == Origin::New {
            // A probe restarts the retransmission timer. The limit is still the time at which that timer
            // would fire for the first segment, if this time is ahead (Linux: the same).
            let from_head = tx.scoreboard.head().map(|head| head.sent_at + tx.timeout());
            let rto_at = from_head.filter(|at| *at > now).or(tx.rto.deadline());
            self.schedule(tx, now, rto_at, now);
        } else if sent.origin == Origin::TailLossProbe {
            self.due = false;
            self.probe = Some(Outstanding { end_seq: tx.scoreboard.nxt(), is_retrans: !fresh });
            self.rtt_since_probe = false;
            self.deadline = None;
        }
    }

    pub(crate) fn on_ack(&mut self, ack: &AckOutcome, tx: &Sender, now: Instant) {
        self.rtt_since_probe |= ack.rtt.is_some();
        if tx.recovery.in_recovery() {
            return self.reset();
        }
        if ack.advanced > 0 || !TailLossProbe::may_probe(tx) {
            self.due = false;
            self.schedule(tx, tx.last_sent, tx.rto.deadline(), now);
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Implements TLP_send_probe of RFC 8985 section 7.3. "If TLP.end_seq is not unset, or no RTT sample
    /// since the last probe", no probe leaves: only the retransmission timer runs, which the connection
    /// restarts.
    pub(crate) fn on_timeout(&mut self, tx: &Sender) {
        self.deadline = None;
        if self.probe.is_none() && self.rtt_since_probe && TailLossProbe::may_probe(tx) {
            self.due = true;
        }
    }

    pub(crate) fn is_due(&self) -> bool {
        self.due
    }
}
