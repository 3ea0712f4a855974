//! Effects of an acknowledgement, part by part: round-trip time, losses, recovery and its undo, congestion
//! window, timers.
//!
//! *Redundancy* is data that leaves before a loss is known: parity segments (*Corrective*) and copies of
//! segments (*Proactive*). From parity or a copy the peer obtains lost data without a retransmission. This is
//! a *repair*, and the peer reports it with its acknowledgements. A *masked loss* is a loss that redundancy
//! or a tail loss probe repaired before loss detection found it. The window is still reduced.
//!
//! Loss detection is *held* while parity in flight may still repair a loss. A *flight* is the data of one
//! round trip. Connections that share the congestion window of a path are its *members* (`send/rate.rs`).

use brisk_wire::Flags;

use crate::congestion::sample::{AckSample, CongestionCause, CongestionEvent};
use crate::connection::gentle::parity::Unrepaired;
use crate::connection::gentle::{Conclusion, Gentle, Refuted};
use crate::connection::observation::Observation;
use crate::connection::sender::Undone;
use crate::connection::state::Input;
use crate::connection::{Connection, Events};
use crate::mechanism::ParityOff;
use crate::mechanism::signal::RepairReport;
use crate::outcome::{
    AckOutcome, Arrived, CongestionSignal, CongestionState, DsackOf, Episode, LossCause, LossOutcome, Origin,
    Reaction, UndoCause,
};
use crate::send::rack::RackVerdict;
use crate::send::scoreboard::AckInfo;
use crate::time::{Instant, Micros};

/// Minimum wait before the receiver is considered to have reneged.
const RENEGING_WAIT_MIN: Micros = Micros::from_millis(10);

impl Connection {
    /// Applies all effects of an acknowledgement, in six steps; each uses the results of the earlier ones.
    /// `ARCHITECTURE.md` ("A segment comes in") has the same numbers.
    pub(crate) fn acknowledge(&mut self, segment: &Arrived<'_>, now: Instant) {
        // 1. The send window takes SEG.WND. With nothing in flight, a data segment needs no later step.
        let window = &mut self.tx.window;
        let window_changed = match segment.flags.contains(Flags::SYN) {
            true => window.update_unscaled(segment.seq, segment.ack, segment.window),
            false => window.update(segment.seq, segment.ack, segment.window),
        }
        .is_change();
        // RFC 9293 section 3.10.7.4 ignores older acknowledgements: they left before the window probe
        // arrived.
        if self.tx.scoreboard.una().le(segment.ack) {
            self.tx.window.on_probe_answered();
            self.soft_error = None;
        }
        self.tx.nagle.on_ack();
        self.tx.count_answer_beyond_window(now);
        self.tx.queue.set_max_window(self.tx.window.max_snd_wnd());
        if !segment.payload.is_empty()
            && self.tx.scoreboard.is_empty()
            && segment.ack == self.tx.scoreboard.una()
            && segment.options.sack.is_empty()
            && self.tx.recovery.state() == CongestionState::Open
            && self.gentle.active.is_none()
            && !self.ecn.is_echo(segment.flags)
        {
            return;
        }

        // 2. The scoreboard returns an `AckOutcome`, and `Gentle` adds the peer's report of a repair. The
        // outcome gives a round-trip sample, and shows whether a reduction was spurious.
        self.tx.check_app_limited();
        let redundancy = self.tx.redundancy_in_flight();
        let reported = self.tx.scoreboard.highest_sacked();
        let mut ack = self.tx.scoreboard.on_ack(
            segment.ack,
            &segment.options.sack,
            AckInfo {
                now,
                ece: self.ecn.is_echo(segment.flags),
                window_changed,
                len: segment.len(),
                max_snd_wnd: self.tx.window.max_snd_wnd(),
                ts_echo_rtt: self.echo_rtt(segment, now),
            },
        );
        let mut originals = ack.delivered.iter().filter(|segment| !segment.retransmitted);
        if let Some(newest) = originals.next_back()
            && self.handshake.repeated_syn_ack_since(newest.sent_at)
        {
            // Perhaps the peer could acknowledge this data only after our repeated SYN-ACK. A sample from the
            // echoed timestamp is correct, because the timestamp is that of the SYN-ACK or of later data.
            ack.rtt = ack.echoed_rtt;
        }
        let watched = self.config.path_start || self.tx.rate.delivery.is_some();
        let losses = watched.then(|| self.all_losses());
        let report = if self.gentle.active.is_some() {
            let probe = self.probe_timeout();
            self.with_gentle(|gentle, parts| gentle.on_ack(segment, &mut ack, reported, probe, parts, now))
        } else {
            None
        };
        if self.gentle.unmarked.is_some() {
            self.with_gentle(|gentle, parts| gentle.on_ack_unmarked(&ack, parts, now));
        }
        // A DSACK for data that was sent twice shows that both transmissions arrived: the second one counts
        // as delivered too. A duplicate of data that was sent once comes from the network.
        let repeated = ack.dsack.filter(|dsack| dsack.of != DsackOf::NeverSentTwice);
        let repeated = repeated.map_or(0, |dsack| self.tx.segments_of(&dsack));
        let delivered = u64::from(ack.delivered_segments + repeated);
        self.counters.delivered_segments += delivered;
        if ack.ece {
            self.counters.delivered_segments_ce += delivered;
        }
        let repeated_bytes = ack.repeated_bytes();
        if let Some(delivery) = &mut self.tx.rate.delivery {
            delivery.count(&ack, repeated_bytes);
        }
        if ack.repaired {
            self.tx.pass_repairs(&ack, reported, now);
        }
        let queue_rtt = self.take_rtt_sample(&ack, watched, now);
        let has_sack = self.handshake.agreed.sack;
        if let Some(Undone { why, is_raised }) = self.tx.undo_spurious(&ack, has_sack, now) {
            if is_raised {
                self.ecn.on_undone();
            }
            self.counters.undos += 1;
            self.counters.observe(Observation::Undone { why });
            self.counters.observe_recovery(&self.tx);
        }

        // 3. Loss detection marks segments as lost. Losses that a mechanism has repaired reduce the window.
        let mut loss = self.detect_loss(&ack, now);
        if let Some(report) = report.as_ref().filter(|report| report.failed.is_some()) {
            self.mark_unrepaired(report, &ack, &mut loss, now);
        }
        self.answer_masked_losses(report.as_ref(), &ack, now);

        // 4. Recovery returns an `Episode`, the congestion controller gets an `AckSample`, and the pacer the
        // controller's rate.
        self.recover(&ack, &loss, redundancy, now);

        // 5. If SND.UNA has advanced, buffers, the retransmission timer and the state of our FIN change. The
        // acknowledgement also shows how large segments and flights may be on this path.
        let (full, options) = (self.tx.full_payload(), self.tx.option_len);
        if self.tx.mtu.on_delivered(&ack, full, options) {
            self.adopt_mss();
        }
        self.on_una_advanced(&ack, now);
        if let Some(losses) = losses
            && (self.path.flights.is_some() || ack.delivered_bytes > 0)
        {
            self.path.watch_flight(&ack, queue_rtt, losses, &self.tx, now);
            self.path.conclude_flight(&self.counters, &self.handshake, &self.config, &mut self.tx, now);
        }
        if loss.newly_lost > 0 {
            self.tx.doubt_size();
        }

        // 6. The probe timer restarts. Corrective and Proactive evaluate the report of a repair, and a DSACK
        // that may refute it.
        self.counters.count_probes(&ack, self.tx.rtt.min_rtt());
        if let Some(reactive) = &mut self.reactive {
            reactive.on_ack(&ack, &self.tx, now);
        }
        if let Some(report) = report.filter(|report| report.reported || ack.dsack.is_some()) {
            self.conclude_repairs(&report, &ack, now);
        }
    }

    /// Reduces the window for masked losses. Must run before the window grows and before an earlier reduction
    /// ends, so the new reduction starts from the window of these losses.
    fn answer_masked_losses(&mut self, report: Option<&RepairReport>, ack: &AckOutcome, now: Instant) {
        if let Some(signal) =
            self.reactive.as_mut().and_then(|reactive| reactive.repaired_loss(ack, &self.tx))
        {
            self.answer_masked_loss(signal, ack.undelivered_before, now);
        }
        if report.is_some_and(|report| report.repaired) {
            let by = self.with_gentle(|gentle, parts| gentle.on_masked_loss(parts));
            let signal = CongestionSignal { ack: ack.ack, by, reaction: Reaction::Proportional };
            let answered = self.counters.masked_losses;
            self.answer_masked_loss(signal, ack.undelivered_before, now);
            if self.counters.masked_losses == answered {
                self.path.count_unanswered_repair();
            }
        }
    }

    /// Reduces the window for a masked loss, once per window. The reduction is undone only if the peer
    /// reports that none of the repaired data had been lost.
    pub(crate) fn answer_masked_loss(&mut self, signal: CongestionSignal, recover_fs: u32, now: Instant) {
        let CongestionSignal { ack, by, reaction } = signal;
        let (was, reducing) = (self.tx.recovery.state(), self.tx.recovery.reducing());
        let episode = self.tx.recovery.on_masked_loss(ack, self.tx.scoreboard.nxt());
        if episode != Episode::Entered {
            return;
        }
        if reducing {
            // The same acknowledgement ends the earlier reduction.
            self.end_reduction(was);
        }
        self.counters.masked_losses += 1;
        self.path.watch_losses(&[], &self.tx);
        self.with_gentle(Gentle::record_loss);
        self.counters.observe(Observation::MaskedLoss { by });
        self.begin_reduction(CongestionCause::Repaired(by), recover_fs, now);
        let at_once = match reaction {
            Reaction::AtOnce => true,
            // With nothing in flight PRR has no deliveries to count.
            Reaction::Proportional => self.tx.scoreboard.is_empty(),
        };
        if at_once {
            self.tx.recovery.leave_cwr();
            self.end_reduction(CongestionState::Cwr);
        }
    }

    pub(crate) fn echo_rtt(&self, segment: &Arrived<'_>, now: Instant) -> Option<Micros> {
        let timestamps = segment.options.timestamps.filter(|_| self.handshake.agreed.timestamps)?;
        self.rx.timestamps.rtt(timestamps.echo, self.handshake.opened, now)
    }

    /// Takes the round-trip sample, and returns it if it may show a queue. `watched`: the flights are
    /// observed for the path memory or the congestion controller (`path/flight.rs`).
    fn take_rtt_sample(&mut self, ack: &AckOutcome, watched: bool, now: Instant) -> Option<Micros> {
        let queue_rtt = if watched { self.path.watch_rtt(ack, &self.tx, now) } else { ack.rtt };
        if let Some(rtt) = ack.rtt {
            self.tx.rtt.on_sample(rtt, now);
            self.tx.rto.reset_backoff();
            if let Some(rtt) = queue_rtt {
                self.gentle.on_rtt(rtt, &self.tx.scoreboard, now);
            }
            if let Some(srtt) = self.tx.rtt.srtt() {
                self.counters.observe(Observation::RttSample { rtt: rtt.into(), srtt: srtt.into() });
            }
        }
        if let Some(dsack) = &ack.dsack {
            self.counters.dsacks += u64::from(self.tx.segments_of(dsack));
            self.counters.retransmits_spurious += u64::from(dsack.of == DsackOf::Retransmit);
        }
        queue_rtt
    }

    /// Detects losses: with SACK by RACK, without SACK by duplicate acknowledgements.
    fn detect_loss(&mut self, ack: &AckOutcome, now: Instant) -> LossOutcome {
        // An acknowledgement that ends a recovery is processed as in state Open (Linux: the same).
        let in_recovery =
            self.tx.recovery.in_recovery() && self.tx.scoreboard.una().lt(self.tx.recovery.recovery_point());
        let (srtt, min_rtt) = (self.tx.rtt.srtt(), self.tx.rtt.min_rtt());
        if ack.reneged {
            // The retransmission timer fires soon, and shows whether the receiver has discarded data. Until
            // then no data is declared lost, but RACK still records reordering.
            self.tx.rack.on_ack(ack, &self.tx.scoreboard, srtt, min_rtt, in_recovery, now);
            return LossOutcome::default();
        }
        #[cfg(feature = "historical")]
        let counted = self.tx.count_losses(ack, self.handshake.agreed.sack, in_recovery, now);
        #[cfg(not(feature = "historical"))]
        let counted = None;
        if let Some((verdict, cause)) = counted {
            self.apply_loss_verdict(verdict, cause, now)
        } else if self.handshake.agreed.sack {
            self.tx.rack.on_ack(ack, &self.tx.scoreboard, srtt, min_rtt, in_recovery, now);
            let verdict = if self.tx.rack.has_advanced() || self.tx.scoreboard.is_empty() {
                self.tx.rack.detect(&self.tx.scoreboard, now)
            } else {
                if ack.advanced > 0 {
                    // The acknowledged data was only late. Segments that seem to be lost may be late too, so
                    // they wait for the probe timer or the RTO (Linux: the same).
                    self.tx.rack.disarm();
                }
                RackVerdict::default()
            };
            self.apply_loss_verdict(verdict, LossCause::Rack, now)
        } else if let Some((newly_lost, cause)) = self.tx.detect_by_duplicates(ack, self.config.dup_thresh) {
            let loss = LossOutcome { newly_lost, lost_again: 0 };
            self.count_loss(&loss, 1, cause);
            loss
        } else {
            LossOutcome::default()
        }
    }

    /// Marks the segments of the verdict as lost on the scoreboard, and counts them.
    pub(crate) fn apply_loss_verdict(
        &mut self,
        verdict: RackVerdict,
        cause: LossCause,
        now: Instant,
    ) -> LossOutcome {
        if verdict.lost.is_empty() {
            return LossOutcome::default();
        }
        let newly_lost = verdict.lost.iter().map(|range| self.tx.scoreboard.mark_lost(*range)).sum();
        // RFC 4821 section 7.6.2: if only an MTU probe is lost, its size was too large, and the loss is no
        // sign of congestion. Its data is sent again in segments of the proven size.
        if let Some(probe) = self.tx.mtu.probe_in_flight() {
            if verdict.lost.iter().all(|range| probe.covers(range)) {
                self.tx.mtu.on_probe_lost(now);
                self.tx.scoreboard.resplit(self.tx.mss());
                self.tx.recovery.on_too_big(self.tx.scoreboard.nxt());
                let loss = LossOutcome { newly_lost, lost_again: 0 };
                self.count_loss(&loss, 0, LossCause::TooBig);
                return loss;
            }
            if verdict.lost.iter().any(|range| probe.intersection(range).is_some()) {
                self.tx.mtu.abandon_probe();
            }
        }
        let runs = self.path.count_loss_runs(&verdict.lost);
        self.path.watch_losses(&verdict.lost, &self.tx);
        let loss = LossOutcome { newly_lost, lost_again: verdict.lost_again };
        self.count_loss(&loss, runs, cause);
        loss
    }

    /// Marks data as lost that the peer could not repair, if it left before the parity segment that covers
    /// it. On a path that is known to reorder, the reordering window must pass first.
    fn mark_unrepaired(
        &mut self,
        report: &RepairReport,
        ack: &AckOutcome,
        loss: &mut LossOutcome,
        now: Instant,
    ) {
        let unrepaired = self.with_gentle(|gentle, parts| gentle.on_failure(report, ack, parts, now));
        let Some(Unrepaired { verdict, hopeless }) = unrepaired else { return };
        let found = self.apply_loss_verdict(verdict, LossCause::Mechanism, now);
        loss.newly_lost += found.newly_lost;
        loss.lost_again += found.lost_again;
        if hopeless {
            self.with_gentle(|gentle, parts| gentle.stop_parity(ParityOff::Pattern, parts));
        }
    }

    /// Finishes the evaluation of the peer's repair report, after the window was reduced for it. If the
    /// acknowledgement number stays at a hole that the peer has repaired, a device on the path has not seen
    /// the data, so the data is sent again. If none of the repaired data had been lost, the reduction is
    /// undone.
    fn conclude_repairs(&mut self, report: &RepairReport, ack: &AckOutcome, now: Instant) {
        let Conclusion { newly_lost, refuted } =
            self.with_gentle(|gentle, parts| gentle.after_ack(report, ack, parts, now));
        self.count_loss(&LossOutcome { newly_lost, lost_again: 0 }, 0, LossCause::Mechanism);
        if refuted == Refuted::Nothing {
            return;
        }
        self.path.count_refuted();
        if refuted == Refuted::All && self.tx.recovery.undo_masked() {
            self.tx.scoreboard.unmark_lost();
            self.tx.rate.on_spurious(now);
            self.counters.undos += 1;
            self.counters.observe(Observation::Undone { why: UndoCause::Dsack });
            self.counters.observe_recovery(&self.tx);
        }
    }

    /// Counts segments that the algorithm `by` has declared lost, in `runs` runs of consecutive segments.
    pub(crate) fn count_loss(&mut self, loss: &LossOutcome, runs: u64, by: LossCause) {
        self.counters.loss_runs += runs;
        if loss.newly_lost > 0 {
            let too_big = by == LossCause::TooBig;
            let segments = if too_big { 0 } else { u64::from(loss.newly_lost.div_ceil(self.tx.mss())) };
            self.counters.segments_lost += segments;
            self.with_gentle(Gentle::record_loss);
            match by {
                LossCause::EarlyRetransmit => self.counters.early_retransmits += segments,
                LossCause::Fack => self.counters.fack_losses += segments,
                _ => {}
            }
            self.counters.lost_again_bytes += u64::from(loss.lost_again);
            self.counters.observe(Observation::LossDeclared { bytes: loss.newly_lost, by });
        }
    }

    /// Updates recovery state and congestion window. `redundancy`: bytes of redundancy in flight before the
    /// acknowledgement.
    fn recover(&mut self, ack: &AckOutcome, loss: &LossOutcome, redundancy: u32, now: Instant) {
        self.tx.pass_losses(now);
        let nxt = self.tx.scoreboard.nxt();
        let was = self.tx.recovery.state();
        // The peer repeats ECE until it receives CWR. If no data was outstanding, ECE is only repeated and is
        // no new mark (Linux: the same).
        if ack.ece && ack.una_before != nxt && self.tx.recovery.on_ecn(ack.ack, nxt) == Episode::Entered {
            self.begin_reduction(CongestionCause::Ecn, ack.undelivered_before, now);
        }
        let board = &self.tx.scoreboard;
        let lost_present = board.missing_segments() > 0;
        let episode = self.tx.recovery.on_ack(ack, loss, lost_present, || board.has_gaps(), nxt);
        if episode == Episode::Entered {
            if matches!(was, CongestionState::Recovery | CongestionState::Cwr) {
                // The next reduction starts from the window at which the previous reduction ends.
                self.end_reduction(was);
            }
            self.begin_reduction(CongestionCause::Loss, ack.undelivered_before, now);
        } else if episode == Episode::Exited {
            self.end_reduction(was);
        }
        // On a path with strong reordering, a new SACK shows that data has arrived rather than that other
        // data was lost (Linux: the same).
        let reordered =
            || self.tx.rack.reordering().span > self.config.dup_thresh.saturating_mul(self.tx.mss());
        let shows_progress = ack.advanced > 0 || (ack.newly_sacked > 0 && reordered());
        // RFC 5681 section 3.2: a full acknowledgement sets cwnd to ssthresh, and does not grow it in
        // addition.
        let ends_reduction =
            episode == Episode::Exited && matches!(was, CongestionState::Recovery | CongestionState::Cwr);
        let may_grow = shows_progress && !ends_reduction && !self.path.is_on_trust();
        let (state, cwnd_limited) = (self.tx.recovery.state(), self.tx.is_cwnd_limited());
        let min_rtt = self.tx.rtt.min_rtt();
        let oldest = self.tx.scoreboard.head().map(|head| head.first_sent_at);
        let counters = self.tx.rate.delivery.as_mut().zip(self.tx.snapshots.as_mut());
        let delivery = counters.map(|(delivery, snapshots)| delivery.sample(snapshots, ack, min_rtt, oldest));
        let repeated = ack.repeated_bytes();
        if let Some(others) = &mut self.tx.rate.others
            && let Some(newest) = ack.delivered.last()
        {
            others.newest_delivered = others.newest_delivered.max(newest.sent_at);
            others.has_delivered = true;
        }
        let pipe_before = self.tx.rate.pipe_with(ack.pipe_before) + redundancy;
        let pipe = self.tx.in_flight();
        self.tx.rate.congestion.on_ack(&AckSample {
            now,
            newly_acked: ack.delivered_bytes,
            repeated,
            newly_lost: loss.newly_lost,
            una_advanced: ack.advanced > 0,
            pipe_before,
            pipe,
            rtt: ack.rtt,
            srtt: self.tx.rtt.srtt(),
            min_rtt,
            una: self.tx.scoreboard.una(),
            nxt,
            state,
            episode,
            may_grow,
            cwnd_limited,
            delivery,
        });
        self.tx.follow_rate(now);
        let has_rate = self.tx.rate.delivery.is_some();
        if may_grow && (has_rate || !self.tx.recovery.lowers_window()) {
            self.tx.usage.on_growth(now);
            self.tx.grow_queue(ack.delivered_bytes, now);
        }
    }

    /// Starts the window reduction of an episode that has been entered.
    pub(crate) fn begin_reduction(&mut self, cause: CongestionCause, undelivered_before: u32, now: Instant) {
        self.tx.timed_out_alone = false;
        self.ecn.on_reduced();
        let in_recovery = self.tx.recovery.state() == CongestionState::Recovery;
        if in_recovery {
            let resent = self.tx.scoreboard.resent().filter(|record| record.origin != Origin::TailLossProbe);
            let bytes = resent.map(|record| record.range.len()).sum();
            self.tx.recovery.on_entered_with_retransmissions(bytes);
        }
        let delivered_while_held = if in_recovery { self.gentle.delivered_while_held(&self.tx) } else { 0 };
        let max_ssthresh = self.path.retreat(&self.counters, &self.handshake, &self.config, &mut self.tx);
        if let Some(others) = &mut self.tx.rate.others {
            if cause == CongestionCause::Ecn {
                // The members of a path answer all ECN marks of one round trip with one reduction.
                if !others.may_answer_mark {
                    return self.counters.observe_recovery(&self.tx);
                }
                others.has_answered_mark = true;
            } else {
                others.has_lost = true;
            }
        }
        self.tx.rate.congestion.on_congestion(&CongestionEvent {
            now,
            cause,
            undelivered_before,
            delivered_while_held,
            max_ssthresh,
        });
        self.counters.reductions += 1;
        self.counters.recoveries += u64::from(in_recovery);
        self.counters.observe_recovery(&self.tx);
    }

    fn end_reduction(&mut self, was: CongestionState) {
        if self.tx.rate.others.is_none_or(|others| !others.is_recovering) {
            self.tx.rate.congestion.on_recovery_exit(was);
        }
        self.tx.rack.on_recovery_exit();
        self.counters.observe_recovery(&self.tx);
    }

    /// Processes the advance of SND.UNA: buffers, timers, our FIN.
    fn on_una_advanced(&mut self, ack: &AckOutcome, now: Instant) {
        if ack.advanced == 0 {
            return;
        }
        let una = self.tx.scoreboard.una();
        self.path.confirm(&mut self.tx);
        self.tx.update_pacing(now);
        self.counters.payload_bytes_acked += self.tx.release_acked(una);
        self.urgent.on_acked(una);
        self.tx.timeouts_in_row = 0;
        self.tx.waiting_since = (!self.tx.scoreboard.is_empty()).then_some(now);
        if self.tx.scoreboard.is_empty() {
            self.tx.rto.disarm();
        } else if ack.reneged {
            // Either the receiver has discarded data that it had reported (RFC 2018 section 8), or
            // acknowledgements were reordered. In the second case SND.UNA passes this data within half a
            // round trip (Linux: tcp_check_sack_reneging).
            let wait = self.tx.rtt.srtt().map_or(RENEGING_WAIT_MIN, |srtt| (srtt / 2).max(RENEGING_WAIT_MIN));
            self.tx.rto.fire_at(now + wait);
        } else {
            self.tx.rto.restart(now, self.tx.rtt.rto_base());
        }
        self.tx.mtu.on_progress();
        if self.tx.mtu.on_acked(una) {
            self.adopt_mss();
        }
        if self.tx.writer_waits && self.tx.queue.free() > 0 {
            self.tx.writer_waits = false;
            self.events.insert(Events::WRITABLE);
        }
        if self.tx.fin_acked() {
            self.advance_state(Input::FinAcked, now);
        }
    }
}
