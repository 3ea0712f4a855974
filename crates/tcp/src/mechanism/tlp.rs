//! Reactive in its current form: the tail loss probe of RACK-TLP (RFC 8985 section 7).
//!
//! A lost tail has nothing behind it that could be acknowledged, so nothing but the retransmission
//! timer would notice. When an acknowledgement is overdue by about a round trip, one probe leaves: new
//! data if there is some, else the last segment again. Its acknowledgement tells RACK what is missing,
//! and a timeout has become a fast recovery. If the probe itself repaired the loss, congestion control
//! still hears of it, once.

use brisk_wire::SeqNum;

use super::Mechanism;
use crate::config::RackTlpConfig;
use crate::connection::View;
use crate::outcome::{AckOutcome, Ask, CongestionSignal, DsackOf, Origin, Reaction, Repair, Sent};
use crate::time::{Instant, Micros};

/// RFC 8985 section 7.2: "If SRTT is not available, PTO = 1 second".
const PTO_WITHOUT_SAMPLE: Micros = Micros::from_millis(1000);

/// The probe of one connection; names as in RFC 8985 section 5.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Tlp {
    max_ack_delay: Micros,
    deadline: Option<Instant>,
    /// The timer fired and a probe is to be asked for.
    due: bool,
    /// SND.NXT when a probe was asked for: what lies below repeats old data.
    asked_at: SeqNum,
    /// The probe that is not accounted for yet: TLP.end_seq and TLP.is_retrans.
    probe: Option<Outstanding>,
    /// A round-trip sample was taken since the last probe.
    rtt_since_probe: bool,
}

#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
struct Outstanding {
    end_seq: SeqNum,
    is_retrans: bool,
}

impl Tlp {
    /// A probe timer that is not running.
    pub(crate) fn new(config: &RackTlpConfig) -> Self {
        Tlp {
            max_ack_delay: config.max_ack_delay.into(),
            deadline: None,
            due: false,
            asked_at: SeqNum(0),
            probe: None,
            rtt_since_probe: true,
        }
    }

    /// RFC 8985 section 7.2: the timer is scheduled "1. The connection supports SACK. 2. The connection
    /// has no SACKed sequences in the SACK scoreboard. 3. The connection is not in loss recovery."
    fn may_probe(view: &View<'_>) -> bool {
        view.established() && view.sack() && view.sacked() == 0 && view.una() != view.nxt() && !view.recovers()
            // A shut window is the affair of the persist timer, suspected loss that of RACK.
            && view.snd_wnd() > 0
            && !view.reordering_timer()
    }

    /// TLP_calc_PTO of RFC 8985 section 7.2.
    fn schedule(&mut self, view: &View<'_>, now: Instant) {
        self.deadline = None;
        if !Tlp::may_probe(view) {
            return;
        }
        let pto = match view.srtt().map(|srtt| srtt * 2) {
            // "If FlightSize is one segment: PTO = 2 * SRTT + TLP.max_ack_delay".
            Some(twice) if view.segments() == 1 => twice + self.max_ack_delay,
            Some(twice) => twice,
            None => PTO_WITHOUT_SAMPLE,
        };
        let at = now + pto.max(view.granularity());
        // "If Now() + PTO > TCP_RTO_expiration(): PTO = TCP_RTO_expiration() - Now()".
        self.deadline = Some(view.rto_at().map_or(at, |rto| at.min(rto)));
    }

    fn reset(&mut self) {
        (self.deadline, self.due, self.probe) = (None, false, None);
    }

    /// TLP_process_ack of RFC 8985 section 7.4.2.
    fn judge(&mut self, ack: &AckOutcome) -> Option<CongestionSignal> {
        let probe = self.probe.filter(|probe| ack.ack.ge(probe.end_seq))?;
        let duplicated = ack
            .dsack
            .is_some_and(|dsack| dsack.of == DsackOf::TailLossProbe && dsack.range.end == probe.end_seq);
        if !probe.is_retrans || duplicated {
            // "TLP_end_seq unset": new data masks nothing; a DSACK says that the original arrived.
            self.probe = None;
        } else if ack.ack.gt(probe.end_seq) {
            // "TLP sender detects that the probe repaired a loss": nothing told of a duplicate.
            self.probe = None;
            return Some(CongestionSignal {
                ack: ack.ack,
                by: Repair::Probe,
                reaction: Reaction::Proportional,
            });
        } else if ack.bare && ack.advanced == 0 && ack.newly_sacked == 0 {
            // "a duplicate ACK without SACK": both original and probe arrived.
            self.probe = None;
        }
        None
    }
}

impl Mechanism for Tlp {
    fn name(&self) -> &'static str {
        "rack_tlp"
    }

    /// Every transmission of new data pushes the probe away; a retransmission means that recovery is
    /// under way and the probe is not needed.
    fn on_sent(&mut self, sent: &Sent, view: &View<'_>, now: Instant) {
        if view.recovers() {
            return self.reset();
        }
        match sent.origin {
            Origin::New => self.schedule(view, now),
            Origin::TailLossProbe => {
                let is_retrans = sent.range.end.le(self.asked_at);
                self.probe = Some(Outstanding { end_seq: view.nxt(), is_retrans });
                self.rtt_since_probe = false;
                self.deadline = None;
            }
            Origin::Ack | Origin::Retransmit | Origin::Duplicate | Origin::Parity => {}
        }
    }

    fn masked_loss(&mut self, ack: &AckOutcome, view: &View<'_>) -> Option<CongestionSignal> {
        if view.recovers() { None } else { self.judge(ack) }
    }

    fn on_acked(&mut self, ack: &AckOutcome, view: &View<'_>, now: Instant) {
        self.rtt_since_probe |= ack.rtt.is_some();
        if view.recovers() {
            return self.reset();
        }
        if ack.advanced > 0 || !Tlp::may_probe(view) {
            self.due = false;
            self.schedule(view, now);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.deadline
    }

    fn stands_for_rto(&self) -> bool {
        self.deadline.is_some()
    }

    /// TLP_send_probe of RFC 8985 section 7.3: "If TLP.end_seq is not unset, or no RTT sample since
    /// the last probe", no probe leaves and the retransmission timer, which the connection starts
    /// again, watches alone.
    fn on_timeout(&mut self, view: &View<'_>, _now: Instant) {
        self.deadline = None;
        if self.probe.is_none() && self.rtt_since_probe && Tlp::may_probe(view) {
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
