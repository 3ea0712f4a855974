//! Copies for a peer that has agreed to nothing ([`PlannerConfig::unmarked_copies`]).
//!
//! Such a copy is an ordinary repetition of a segment. A peer with SACK answers a needless one with a DSACK
//! (RFC 2883), which shows that both instances arrived. If the data is acknowledged and the DSACK does not
//! come within a round trip, one of them, or the DSACK, was lost; like an unanswered SYN-ACK this counts as
//! one lost segment. So the memory of the path learns of losses that copies repair. Some peers send no DSACK;
//! until the first one comes, copied segments do not count at all. Congestion control does not respond to
//! such a loss, because the lost instance may be the copy.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use crate::config::{PlannerConfig, ProactiveConfig};
use crate::connection::State;
use crate::connection::gentle::{Gentle, Parts, SentSegment};
use crate::mechanism::proactive::copies::{Copies, CopyPolicy, Scope};
use crate::outcome::{AckOutcome, DsackOf};
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant, Micros};

/// Limit of copies that wait for their DSACK.
const UNANSWERED_MAX: usize = 32;

/// The copier, and the copies whose outcome is unknown.
#[derive(Debug)]
pub(crate) struct Unmarked {
    pub(crate) copies: Copies,
    /// Copies that left, each with the time.
    unanswered: VecDeque<(SeqRange, Instant)>,
    /// True if the peer has reported a copy by DSACK.
    is_reporting: bool,
    /// Copies of the first report. They count together with the next outcome: the first outcome is always a
    /// report, and would make losses look rare.
    withheld: u64,
}

impl Unmarked {
    fn new() -> Unmarked {
        let policy = CopyPolicy {
            scope: Scope::Named,
            mark: None,
            gap: Duration::ZERO,
            loss_cap: ProactiveConfig::DEFAULT.loss_cap,
        };
        Unmarked {
            copies: Copies::new(policy),
            unanswered: VecDeque::new(),
            is_reporting: false,
            withheld: 0,
        }
    }

    /// Frees memory of an idle connection.
    pub(crate) fn release_memory(&mut self) {
        self.copies.release_memory();
        self.unanswered.shrink_to_fit();
    }
}

impl Gentle {
    /// True if data for this peer may be copied without its agreement. Only with SACK can the peer's answer
    /// to a copy be told from a duplicate acknowledgement.
    pub(super) fn may_copy_unmarked(&self, parts: &Parts<'_>) -> bool {
        let permits = |config: &PlannerConfig| config.unmarked_copies;
        let is_on = self.unmarked.as_ref().is_none_or(|unmarked| unmarked.copies.is_on());
        self.active.is_none()
            && is_on
            && self.planner_config().is_some_and(permits)
            && parts.handshake.agreed.sack
            && parts.state != State::SynSent
    }

    /// Prepares the copies of a plan.
    pub(super) fn start_unmarked(&mut self, parts: &mut Parts<'_>) {
        if self.unmarked.is_none() {
            self.unmarked = Some(Box::new(Unmarked::new()));
            parts.tx.scoreboard.expect_dsack_of_copies();
        }
    }

    /// Records a segment that left: it may be copied.
    pub(super) fn on_sent_unmarked(
        &mut self,
        sent: &SentSegment<'_>,
        named: Option<Duration>,
        parts: &mut Parts<'_>,
        now: Instant,
    ) {
        let Some(unmarked) = self.unmarked.as_deref_mut() else { return };
        match *sent {
            SentSegment::Data { data, header, .. } if !data.mtu_probe => {
                unmarked.copies.copy(data, header, named, parts, now);
            }
            SentSegment::Copy(range) => {
                unmarked.copies.on_copy_sent(now);
                parts.account_copies(range, 1, now);
                parts.path.count_copies().left += 1;
                // The answer to a copied FIN may come after the end of the connection.
                if !parts.tx.is_fin_in(range) {
                    if unmarked.unanswered.len() == UNANSWERED_MAX {
                        unmarked.unanswered.pop_front();
                    }
                    unmarked.unanswered.push_back((range, now));
                }
            }
            SentSegment::Data { .. }
            | SentSegment::Parity(..)
            | SentSegment::TailAck
            | SentSegment::Ack { .. } => {}
        }
    }

    /// Learns from an acknowledgement which instances of copied segments arrived.
    pub(crate) fn on_ack_unmarked(&mut self, ack: &AckOutcome, parts: &mut Parts<'_>, now: Instant) {
        let Some(unmarked) = self.unmarked.as_deref_mut() else { return };
        if let Some(dsack) = ack.dsack.filter(|dsack| dsack.of == DsackOf::Duplicate) {
            let before = unmarked.unanswered.len();
            unmarked.unanswered.retain(|(range, _)| !dsack.range.covers(range));
            let answered = (before - unmarked.unanswered.len()) as u64;
            if answered > 0 && !unmarked.is_reporting {
                (unmarked.is_reporting, unmarked.withheld) = (true, answered);
            } else if answered > 0 {
                parts.path.count_copies().twice += answered + core::mem::take(&mut unmarked.withheld);
            }
        }
        let Some(srtt) = parts.tx.rtt.srtt() else { return };
        let rtt = parts.tx.rtt.latest().map_or(srtt, |latest| latest.max(srtt));
        // The DSACK is at most as late as any other acknowledgement, but comes after that of the original.
        let wait = rtt + rtt / 4;
        let is_over = |(range, left): &mut (SeqRange, Instant)| {
            range.end.le(ack.una_before) && Micros::between(*left, now) > wait
        };
        while unmarked.unanswered.pop_front_if(is_over).is_some() {
            if unmarked.is_reporting {
                let count = parts.path.count_copies();
                count.once += 1;
                count.twice += core::mem::take(&mut unmarked.withheld);
            }
        }
    }
}
