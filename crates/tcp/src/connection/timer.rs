//! The next deadline of a connection, and the actions at each deadline.
//!
//! Every part owns its deadline; no two share a timer. If several deadlines expire at one instant, the order
//! is user timeout, parity, reordering timer, probe timer, retransmission timer, all others.

use crate::config::KeepaliveConfig;
use crate::congestion::sample::{CongestionCause, RtoEvent};
use crate::connection::gentle::plain_copy::PlainCopy;
use crate::connection::observation::Observation;
use crate::connection::outbox::Control;
use crate::connection::reactive::ProbeTimer;
use crate::connection::state::State;
use crate::connection::{Aftermath, Connection, Urgency};
use crate::error::CloseReason;
use crate::outcome::{CongestionState, Episode, LossCause, LossOutcome};
use crate::time::{Duration, Instant};

/// Minimum idle time and interval of keepalive probes (Linux: the same). With 0, probes would never end.
const KEEPALIVE_MIN: Duration = Duration::from_secs(1);

impl Connection {
    /// Returns the time of the next call of [`Connection::on_timeout`].
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        [
            self.tx.reordering_timeout(),
            // RFC 8985 section 8: while the probe timer runs, the retransmission timer does not.
            self.probe_timeout().or_else(|| self.tx.rto.deadline()),
            self.handshake.syn.copy.next_timeout(),
            self.tx.window.next_timeout(),
            self.tx.pacing_timeout(),
            self.tx.nagle.cork_until,
            self.user_limit(),
            self.keepalive.as_ref().map(|keepalive| keepalive.next_timeout()),
            self.fin_wait_2_until,
            self.rx.ack.next_timeout(),
            self.gentle.next_timeout(&self.tx, &self.path.known, self.state.sends(), self.closed.is_none()),
        ]
        .into_iter()
        .fold(None, Instant::earlier)
    }

    /// Runs the timers that are due at `now`. [`Connection::poll_transmit`] then returns the segments.
    pub(crate) fn on_timeout(&mut self, now: Instant) -> Aftermath {
        let due = |deadline: Option<Instant>| deadline.is_some_and(|at| at <= now);
        if due(self.user_limit()) {
            let reason =
                if self.state.is_opening() { CloseReason::HandshakeTimeout } else { CloseReason::TimedOut };
            self.give_up(reason);
            return self.aftermath(Urgency::BeforeApp, now);
        }
        self.tx.check_app_limited();
        if self.gentle.is_in_use() {
            self.with_gentle(|gentle, parts| gentle.on_timeout(parts, now));
        }
        if due(self.tx.reordering_timeout()) {
            self.on_reordering_timeout(now);
        }
        if let Some(reactive) = &mut self.reactive
            && due(reactive.deadline())
        {
            reactive.on_timeout(&self.tx);
            // RFC 8985 section 7.3: "re-arm the RTO timer" whether or not a probe leaves. If none does, the
            // timer still counts from the transmission of the first segment (Linux: the same).
            let base = self.tx.rtt.rto_base();
            match self.tx.scoreboard.head().filter(|_| !reactive.is_due()) {
                Some(head) => {
                    let at = head.sent_at + self.tx.rto.current(base);
                    self.tx.rto.fire_at(at.max(now + self.tx.rtt.granularity()));
                }
                None => self.tx.rto.restart(now, base),
            }
        }
        if due(self.tx.rto.deadline()) && self.probe_timeout().is_none() {
            self.on_retransmission_timeout(now);
        }
        if due(self.handshake.syn.copy.next_timeout()) {
            self.handshake.syn.copy = PlainCopy::Due;
        }
        if due(self.tx.window.next_timeout()) {
            self.on_persist_timeout(now);
        }
        if due(self.tx.nagle.cork_until) {
            self.tx.nagle.cork_until = None;
            self.tx.nagle.overridden = true;
        }
        if due(self.keepalive.as_ref().map(|keepalive| keepalive.next_timeout())) {
            self.on_keepalive_timeout(now);
        }
        if due(self.fin_wait_2_until) {
            self.end(CloseReason::Finished);
        }
        self.rx.ack.on_timeout(self.tx.timeout(), now);
        self.tx.paced = false;
        self.update_timers(now);
        self.aftermath(Urgency::BeforeApp, now)
    }

    pub(crate) fn probe_timeout(&self) -> Option<Instant> {
        self.reactive.as_ref().and_then(ProbeTimer::deadline)
    }

    /// Declares the segments lost whose reordering window has passed (RFC 8985 section 6.3).
    fn on_reordering_timeout(&mut self, now: Instant) {
        if self.gentle.active.is_some() {
            self.with_gentle(|gentle, parts| gentle.refresh_holds(parts));
        }
        let verdict = self.tx.rack.on_timeout(&self.tx.scoreboard, now);
        let loss = self.apply_loss_verdict(verdict, LossCause::Rack, now);
        if loss.newly_lost > 0 {
            self.tx.pass_losses(now);
            let undelivered =
                self.tx.scoreboard.outstanding().saturating_sub(self.tx.scoreboard.sacked_bytes());
            let was_recovering = self.tx.recovery.state() == CongestionState::Recovery;
            if self.tx.recovery.on_loss(self.tx.scoreboard.nxt()) == Episode::Entered {
                self.begin_reduction(CongestionCause::Loss, undelivered, now);
            }
            // In a recovery that has begun already, only acknowledgements open the window (Linux: the same).
            if !was_recovering {
                let pipe = self.tx.rate.pipe_with(self.tx.scoreboard.pipe());
                self.tx.rate.congestion.on_reordering_timeout(pipe);
            }
            self.tx.follow_rate(now);
        }
        self.path.conclude_flight(&self.counters, &self.handshake, &self.config, &mut self.tx, now);
    }

    /// Processes a retransmission timeout (RFC 6298 section 5.4 to 5.7).
    fn on_retransmission_timeout(&mut self, now: Instant) {
        if self.state.is_opening() {
            return self.on_handshake_timeout(now);
        }
        if self.tx.scoreboard.is_empty() {
            return self.tx.rto.disarm();
        }
        self.tx.timeouts_in_row += 1;
        self.counters.timeouts += 1;
        self.fast_open.on_timeout(self.tx.scoreboard.una(), self.tx.timeouts_in_row);
        if self.gentle.active.is_some() {
            self.with_gentle(|gentle, parts| gentle.on_retransmission_timeout(parts));
        }
        if self.is_given_up(self.tx.timeouts_in_row, now) {
            return self.give_up(CloseReason::TimedOut);
        }
        // RFC 2018 section 8: "after a retransmit timeout the data sender SHOULD turn off all of the SACKed
        // bits". The receiver has discarded data if SACK reported the first segment, which was never
        // acknowledged.
        let reneged = self.tx.scoreboard.head().is_some_and(|head| head.sacked);
        if reneged {
            self.counters.reneged += 1;
            self.tx.scoreboard.clear_sacked();
        }
        self.tx.rack.disarm();
        let (newly_lost, runs) = if self.handshake.agreed.sack && self.tx.uses_rack() && !reneged {
            let lost = self.tx.rack.on_rto(&self.tx.scoreboard, now);
            let newly_lost = lost.iter().map(|range| self.tx.scoreboard.mark_lost(*range)).sum();
            (newly_lost, self.path.count_loss_runs(&lost))
        } else {
            (self.tx.scoreboard.mark_all_lost(), 1)
        };
        self.count_loss(&LossOutcome { newly_lost, lost_again: 0 }, runs, LossCause::Rto);
        let first = self.tx.recovery.on_timeout(self.tx.scoreboard.nxt());
        if first && self.config.path_start {
            self.path.watch_timeout(&self.tx, now);
        }
        let max_ssthresh = self.path.retreat(&self.counters, &self.handshake, &self.config, &mut self.tx);
        let pipe = self.tx.rate.pipe_with(self.tx.scoreboard.pipe());
        self.tx.pass_losses(now);
        let last_sent = self.tx.last_sent;
        // If the path has delivered later data of other members, only this member has lost segments.
        let is_alone = self.tx.rate.others.is_some_and(|others| others.newest_delivered > last_sent);
        self.tx.timed_out_alone = is_alone && (first || self.tx.timed_out_alone);
        if !is_alone {
            self.tx.rate.congestion.on_rto(&RtoEvent { now, pipe, first, max_ssthresh });
            self.counters.reductions += u64::from(first);
            self.ecn.on_reduced();
        }
        self.tx.follow_rate(now);
        self.tx.back_off(self.config.thin_stream);
        self.tx.rto.arm(now, self.tx.rtt.rto_base());
        if self.tx.suspect_size_at_timeout(now) {
            self.shrink_segments();
        }
        self.counters.observe(Observation::Timeout { rto: self.tx.timeout().into() });
        self.counters.observe_recovery(&self.tx);
    }

    /// Returns the time at which the user timeout (RFC 5482) ends the connection; `None` before a
    /// retransmission timeout. The user timeout counts from `waiting_since`, or in SYN-SENT from the
    /// beginning.
    fn user_limit(&self) -> Option<Instant> {
        let limit = self.user_timeout.filter(|_| self.closed.is_none())?;
        let since = match self.state {
            State::SynSent => Some(self.handshake.opened).filter(|_| self.handshake.syn.timeouts > 0),
            State::SynReceived => None,
            _ => self.tx.waiting_since.filter(|_| self.tx.timeouts_in_row > 0),
        };
        since.map(|since| since + limit)
    }

    /// True if R2 of RFC 9293 section 3.8.3, or the user timeout of RFC 5482, is exceeded. `unanswered`:
    /// timeouts or probes in a row without an answer.
    fn is_given_up(&self, unanswered: u32, now: Instant) -> bool {
        if let Some(limit) = self.user_timeout {
            let waiting_since = self.tx.waiting_since.filter(|_| unanswered > 0);
            return waiting_since.is_some_and(|since| now.saturating_since(since) >= limit);
        }
        // A connection without an owner gives up sooner.
        let orphan = self.config.orphan_retries.filter(|_| self.released);
        unanswered > orphan.unwrap_or(self.config.retries)
    }

    /// Ends the connection silently, because the peer does not answer. The reason is the soft error reported
    /// since the last acknowledgement arrived, or else `timeout` (RFC 1122 section 4.2.3.9).
    pub(super) fn give_up(&mut self, timeout: CloseReason) {
        self.outbox.clear();
        self.end(self.soft_error.unwrap_or(timeout));
    }

    /// Processes the persist timer: the peer's window has been closed for an interval (RFC 9293 section
    /// 3.8.6.1).
    fn on_persist_timeout(&mut self, now: Instant) {
        if self.tx.usable_window() > 0 {
            self.tx.nagle.overridden = true;
            self.tx.window.disarm_persist();
            return;
        }
        // The peer of a connection without an owner may not keep it open by answers alone (RFC 6429). Linux
        // also waits until the interval of the probes is 120 s.
        let orphan = self.config.orphan_retries.filter(|_| self.released);
        let is_stalled = orphan.is_some_and(|limit| self.tx.window.persist_backoffs() >= limit);
        if is_stalled || self.is_given_up(self.tx.window.unanswered_probes(), now) {
            return self.give_up(CloseReason::TimedOut);
        }
        self.counters.window_probes += 1;
        self.outbox.push(Control::EmptyProbe);
        self.tx.window.on_persist(now, self.tx.rtt.rto_base());
        self.counters.observe(Observation::WindowProbe);
    }

    fn on_keepalive_timeout(&mut self, now: Instant) {
        let outstanding = !self.tx.scoreboard.is_empty() || self.tx.unsent() > 0;
        let user_timeout = self.user_timeout;
        let Some(keepalive) = &mut self.keepalive else { return };
        match keepalive.on_timeout(outstanding, user_timeout, now) {
            KeepaliveVerdict::Wait => {}
            KeepaliveVerdict::Probe => {
                self.outbox.push(Control::EmptyProbe);
                self.counters.observe(Observation::KeepaliveProbe);
            }
            KeepaliveVerdict::Dead => {
                self.outbox.push(Control::Abort);
                self.end(CloseReason::KeepaliveTimeout);
            }
        }
    }

    /// Starts and stops timers for the current state: outstanding data is watched by either the
    /// retransmission timer or the persist timer.
    pub(crate) fn update_timers(&mut self, now: Instant) {
        if self.closed.is_some() {
            return;
        }
        if !self.tx.scoreboard.is_empty() {
            if self.tx.rto.deadline().is_none() {
                self.tx.rto.arm(now, self.handshake.timer_base(&self.tx.rtt));
            }
            self.tx.window.disarm_persist();
            return;
        }
        self.tx.rto.disarm();
        let wants = self.tx.unsent() + u32::from(self.tx.fin_unsent());
        let window_is_the_limit = || self.tx.usable_window() < wants.min(self.tx.mss());
        if wants > 0 && self.state.sends() && window_is_the_limit() {
            self.tx.waiting_since.get_or_insert(now);
            self.tx.window.arm_persist(now, self.tx.rtt.rto_base());
        } else {
            self.tx.window.disarm_persist();
        }
    }
}

/// Action when the keepalive timer fires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KeepaliveVerdict {
    /// Nothing is due.
    Wait,
    /// Send a probe: an empty segment one below SND.UNA.
    Probe,
    /// Too many probes went unanswered.
    Dead,
}

/// The keepalive timer of a connection (RFC 9293 section 3.8.4); absent unless switched on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Keepalive {
    config: KeepaliveConfig,
    last_received: Instant,
    unanswered: u32,
    deadline: Instant,
}

impl Keepalive {
    /// Starts counting silence from `now`.
    pub(crate) fn new(config: KeepaliveConfig, now: Instant) -> Self {
        let config = KeepaliveConfig {
            idle: config.idle.max(KEEPALIVE_MIN),
            interval: config.interval.max(KEEPALIVE_MIN),
            count: config.count,
        };
        Keepalive { config, last_received: now, unanswered: 0, deadline: now + config.idle }
    }

    /// Records that an acceptable segment arrived.
    pub(crate) fn on_received(&mut self, now: Instant) {
        self.last_received = now;
        self.unanswered = 0;
        self.deadline = now + self.config.idle;
    }

    pub(crate) fn unanswered(&self) -> u32 {
        self.unanswered
    }

    pub(crate) fn next_timeout(&self) -> Instant {
        self.deadline
    }

    /// Processes the timer. While data is outstanding the retransmission timer watches the peer instead.
    pub(crate) fn on_timeout(
        &mut self,
        data_outstanding: bool,
        user_timeout: Option<Duration>,
        now: Instant,
    ) -> KeepaliveVerdict {
        if now < self.deadline {
            return KeepaliveVerdict::Wait;
        }
        if data_outstanding {
            self.deadline = now + self.config.idle;
            return KeepaliveVerdict::Wait;
        }
        let silent = now.saturating_since(self.last_received);
        let given_up = match user_timeout {
            Some(limit) => self.unanswered > 0 && silent >= limit,
            None => self.unanswered >= self.config.count,
        };
        if given_up {
            return KeepaliveVerdict::Dead;
        }
        self.unanswered += 1;
        self.deadline = now + self.config.interval;
        KeepaliveVerdict::Probe
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: KeepaliveConfig =
        KeepaliveConfig { idle: Duration::from_secs(10), interval: Duration::from_secs(2), count: 3 };

    #[test]
    fn unanswered_probes_end_the_connection() {
        let mut keepalive = Keepalive::new(CONFIG, Instant::ZERO);
        assert_eq!(keepalive.on_timeout(false, None, Instant::from_millis(9_999)), KeepaliveVerdict::Wait);
        for at in [10, 12, 14] {
            assert_eq!(
                keepalive.on_timeout(false, None, Instant::from_millis(at * 1000)),
                KeepaliveVerdict::Probe
            );
        }
        assert_eq!(keepalive.on_timeout(false, None, Instant::from_millis(16_000)), KeepaliveVerdict::Dead);
    }

    #[test]
    fn answer_restarts_the_keepalive_time() {
        let mut keepalive = Keepalive::new(CONFIG, Instant::ZERO);
        assert_eq!(keepalive.on_timeout(false, None, Instant::from_millis(10_000)), KeepaliveVerdict::Probe);
        keepalive.on_received(Instant::from_millis(10_100));
        assert_eq!(keepalive.next_timeout(), Instant::from_millis(20_100));
    }

    #[test]
    fn outstanding_data_is_watched_by_the_retransmission_timer() {
        let mut keepalive = Keepalive::new(CONFIG, Instant::ZERO);
        assert_eq!(keepalive.on_timeout(true, None, Instant::from_millis(10_000)), KeepaliveVerdict::Wait);
    }

    #[test]
    fn a_probe_is_never_due_again_at_once() {
        let none = KeepaliveConfig { idle: Duration::ZERO, interval: Duration::ZERO, count: 3 };
        let mut keepalive = Keepalive::new(none, Instant::ZERO);
        assert_eq!(keepalive.next_timeout(), Instant::ZERO + KEEPALIVE_MIN);
        let now = keepalive.next_timeout();
        assert_eq!(keepalive.on_timeout(false, None, now), KeepaliveVerdict::Probe);
        assert_eq!(keepalive.next_timeout(), now + KEEPALIVE_MIN);
        assert_eq!(keepalive.on_timeout(true, None, now + KEEPALIVE_MIN), KeepaliveVerdict::Wait);
        assert!(keepalive.next_timeout() > now + KEEPALIVE_MIN);
    }
}
