//! Accounting for a packet that left: scoreboard, timers, pacing, recovery, counters, probe timer.

use brisk_wire::{Flags, TcpHeader};

use crate::congestion::sample::Transmission;
use crate::connection::Connection;
use crate::connection::decision::{Change, Choice, Data};
use crate::connection::gentle::SentSegment;
use crate::connection::gentle::plain_copy::{PlainCopy, SYN_LEN};
use crate::connection::observation::Observation;
use crate::connection::outbox::Control;
use crate::connection::segment::{Built, Segment};
use crate::connection::state::State;
use crate::mechanism::DueParity;
use crate::mechanism::plan::Flight;
use crate::outcome::{CongestionState, Origin, PARITY_OPTION, Sent};
use crate::seq_ranges::SeqRange;
use crate::time::{Duration, Instant};

impl Connection {
    pub(crate) fn account(
        &mut self,
        choice: &Choice,
        segment: &Segment,
        built: Built,
        packet_len: usize,
        now: Instant,
    ) {
        match choice {
            Choice::Control(control) => {
                self.outbox.pop();
                match control {
                    Control::ChallengeAck => self.account_ack(&segment.header),
                    // The peer refuses an empty probe because of its sequence number, and so ignores its
                    // acknowledgement.
                    Control::EmptyProbe | Control::Reset(_) | Control::Abort => {
                        self.account_header(&segment.header);
                    }
                }
            }
            Choice::Syn(gentle) => {
                self.with_gentle(|of, parts| of.on_syn_sent(*gentle, parts));
                if let Some(shift) = segment.header.options.early_window {
                    self.rx.window.announce_early(shift);
                }
                self.account_syn(now);
            }
            Choice::SynCopy => self.account_syn_copy(now),
            Choice::AfterSyn(range) => self.account_after_syn(*range, now),
            Choice::Data(data) => self.account_data(data, segment, now),
            Choice::Copy(range) => {
                // No plan includes copies of acknowledgements.
                if !range.is_empty() {
                    let payload = range.len() - u32::from(self.tx.is_fin_in(*range));
                    self.tx.spend_redundancy(payload + self.header_len() as u32);
                }
                self.pass_sent_to_gentle(&SentSegment::Copy(*range), now);
            }
            Choice::Parity(parity) => self.account_parity(parity, segment, now),
            Choice::TailAck => {
                self.pass_sent_to_gentle(&SentSegment::TailAck, now);
                self.account_ack(&segment.header);
            }
            Choice::Ack { is_tail } => {
                self.account_ack(&segment.header);
                self.pass_sent_to_gentle(
                    &SentSegment::Ack { header: &segment.header, is_tail: *is_tail },
                    now,
                );
            }
        }
        self.counters.count_sent(built, packet_len, self.header_len());
        self.fast_open.count_sent(packet_len);
    }

    /// Passes a segment that left to the mechanisms.
    #[inline]
    pub(crate) fn pass_sent_to_gentle(&mut self, sent: &SentSegment<'_>, now: Instant) {
        if self.gentle.is_in_use() {
            self.with_gentle(|gentle, parts| gentle.on_sent(sent, parts, now));
        }
    }

    /// Applies a change that a decision requested.
    pub(crate) fn change(&mut self, change: Change, now: Instant) {
        match change {
            Change::DropCopy => self.gentle.drop_copy(self.tx.scoreboard.una()),
            Change::PaceCopy => {
                self.tx.set_paced(true);
                self.gentle.defer_copy();
            }
            Change::CloseGroup => self.gentle.close_group(),
            Change::TakeGroup => self.with_gentle(|gentle, parts| gentle.take_group(parts, now)),
            Change::DropParity => self.with_gentle(|gentle, parts| gentle.drop_parity(parts)),
            Change::PaceParity => self.tx.set_paced(true),
            Change::LimitLost { paced } => {
                self.tx.set_paced(paced);
                self.tx.send_limited = true;
            }
            Change::RestartWindow(window) => {
                self.tx.rate.congestion.on_idle_restart(now, window);
                self.tx.last_sent = now;
                self.path.reopen_start(&self.config, &mut self.tx);
            }
            Change::DecayWindow(window) => {
                self.tx.rate.congestion.on_idle_restart(now, window);
                self.tx.usage.on_growth(now);
            }
            Change::RaiseMtu => {
                if self.tx.mtu.raise_stale() {
                    self.adopt_mss();
                }
            }
            Change::SearchMtu => self.tx.mtu.search_again(now),
            Change::PlanFlight => {
                let (budget, headers) = (self.budget(now), self.header_len() as u32);
                let flight = self.tx.next_flight(&budget, self.payload_limit(), headers);
                let flight = Flight { delays_others: self.path.delays_others(), ..flight };
                self.with_gentle(|gentle, parts| gentle.plan_flight(flight, parts));
            }
            Change::LimitNew { paced } => {
                self.tx.set_paced(paced);
                self.tx.send_limited = true;
                self.tx.end_burst(true);
            }
            Change::EndBurst { corked } => {
                if corked {
                    self.tx.nagle.start_cork(self.tx.rtt.rto_base(), now);
                }
                self.tx.end_burst(false);
            }
        }
    }

    /// Records that nothing waits to be sent: no limit holds data back, and the burst is over.
    #[inline]
    pub(crate) fn become_idle(&mut self, now: Instant) {
        (self.tx.paced, self.tx.send_limited) = (false, false);
        if self.tx.rate.others.is_none() {
            self.tx.rate.pacer.end_wait();
        }
        if self.state.sends() && !self.tx.scoreboard.is_empty() {
            self.tx.end_burst(false);
        }
        self.update_timers(now);
    }

    /// Accounts for a segment that carries the owed acknowledgement. Parity, resets and empty probes do not
    /// carry it, because their receiver ignores the acknowledgement.
    #[inline]
    fn account_ack(&mut self, header: &TcpHeader) {
        self.account_header(header);
        self.rx.on_ack_sent();
    }

    #[inline]
    fn account_header(&mut self, header: &TcpHeader) {
        self.rx.on_window_sent(header.window);
        if header.options.fast_open.is_some() {
            self.fast_open.on_option_sent();
        }
    }

    /// Accounts for a SYN or SYN-ACK that this connection sent, or (with a SYN cookie) the stack.
    pub(crate) fn account_syn(&mut self, now: Instant) {
        let again = self.handshake.on_syn_sent(now);
        if again && self.state == State::SynSent {
            self.ecn.withdraw();
        }
        let origin = if again { Origin::Retransmit } else { Origin::New };
        let data = self.fast_open.syn_data(self.handshake.iss, &self.tx).len();
        let range = SeqRange::with_len(self.handshake.iss, 1 + data);
        let segment_size = data.max(1);
        self.tx.scoreboard.on_sent(&Sent { range, segment_size, origin, syn: true, fin: false, at: now });
        if again {
            self.counters.handshake_retransmits += 1;
        }
        self.rx.ack.on_ack_sent(self.rx.rcv_nxt());
        let later = if again { Duration::ZERO } else { self.start_copy(data, now) };
        let fast_wait = self.fast_open.client_mut().and_then(|client| client.on_syn_sent(data));
        let wait = fast_wait.map_or(self.handshake.timer_base(&self.tx.rtt), |wait| (wait + later).into());
        self.tx.rto.arm(now, wait);
    }

    /// Starts the wait for the copy after the first SYN or SYN-ACK left with `data` bytes. Returns how much
    /// later the timer of the SYN starts.
    fn start_copy(&mut self, data: u32, now: Instant) -> Duration {
        let insures = self.fast_open.insures_syn_data();
        if !insures {
            // A planner permits the copy only within the allowance and if it is useful.
            let again = data > 0 && self.fast_open.copied_syn_data(&self.config).is_some();
            let bytes = if again { SYN_LEN + data } else { SYN_LEN };
            let plain = data > 0 && !again;
            if !self.with_gentle(|gentle, parts| gentle.plans_syn_copy(bytes, plain, parts)) {
                self.handshake.syn.copy.cancel();
            }
        }
        if let (PlainCopy::After(wait), false) = (self.handshake.syn.copy, insures) {
            let gap = self.with_gentle(|gentle, parts| gentle.planned_syn_gap(parts));
            self.handshake.syn.copy = PlainCopy::After(wait.max(gap));
        }
        let later = self.handshake.syn.copy.start(now);
        if self.fast_open.opens_fast() { later } else { Duration::ZERO }
    }

    fn account_syn_copy(&mut self, now: Instant) {
        let data = if self.state == State::SynSent {
            self.fast_open.copied_syn_data(&self.config).unwrap_or(0)
        } else {
            0
        };
        self.handshake.syn.copy = PlainCopy::Left(now);
        self.tx.scoreboard.on_sent(&Sent {
            range: SeqRange::with_len(self.handshake.iss, 1 + data),
            segment_size: data.max(1),
            origin: Origin::Duplicate,
            syn: true,
            fin: false,
            at: now,
        });
        self.counters.syn_copies += 1;
    }

    pub(crate) fn account_after_syn(&mut self, range: SeqRange, now: Instant) {
        if let Some(client) = self.fast_open.client_mut() {
            client.on_after_syn_sent();
        }
        self.tx.scoreboard.on_sent(&Sent {
            range,
            segment_size: range.len(),
            origin: Origin::New,
            syn: false,
            fin: false,
            at: now,
        });
        self.tx.queue.on_sent(range.end);
        self.tx.last_sent = now;
        self.counters.data_after_syn += u64::from(range.len());
    }

    fn account_data(&mut self, data: &Data, segment: &Segment, now: Instant) {
        if segment.header.flags.contains(Flags::CWR) {
            self.ecn.on_cwr_sent();
        }
        if let Some(burst) = data.burst {
            self.tx.burst_push = burst;
            if burst.pushes() {
                self.tx.queue.mark_burst(data.range.start + data.payload_len());
            }
        }
        let sent = Sent {
            range: data.range,
            segment_size: data.segment_size,
            origin: data.origin,
            syn: false,
            fin: data.fin,
            at: self.tx.stamp(data.range.end, now),
        };
        let was_empty = self.tx.scoreboard.is_empty();
        let from_idle = was_empty && self.tx.rate.others.is_none_or(|others| !others.is_outstanding);
        let pipe = self.tx.in_flight();
        let fresh = data.range.end.gt(self.tx.scoreboard.nxt());
        let mut app_limited = true;
        if let (Some(delivery), Some(snapshots)) = (&mut self.tx.rate.delivery, &mut self.tx.snapshots) {
            delivery.on_sent(snapshots, &sent, pipe, from_idle);
            app_limited = delivery.is_app_limited();
        }
        self.tx.scoreboard.on_sent(&sent);
        self.tx.recovery.on_sent(&sent);
        if data.origin == Origin::TailLossProbe && !fresh {
            self.tx.recovery.on_repeating_probe(data.range.len(), self.tx.scoreboard.nxt());
        }
        if was_empty {
            self.tx.detect_transfer_start(data.range.start, now);
            self.tx.waiting_since = Some(now);
        }
        // RFC 6675 section 6: the timer restarts when the first segment is retransmitted. Otherwise it would
        // fire for the original, which recovery has just replaced.
        let repairs_head = data.origin == Origin::Retransmit && data.range.start == self.tx.scoreboard.una();
        let in_recovery = self.tx.recovery.state() == CongestionState::Recovery;
        if data.origin == Origin::TailLossProbe || (repairs_head && in_recovery) {
            self.tx.rto.restart(now, self.tx.rtt.rto_base());
        } else {
            self.tx.rto.arm(now, self.tx.rtt.rto_base());
        }
        if from_idle {
            self.tx.rate.begin_flight();
        }
        self.tx.rate.on_sent(data.range.len(), now);
        self.tx.rate.congestion.on_sent(&Transmission {
            at: sent.at,
            len: data.range.len(),
            origin: data.origin,
            pipe,
            from_idle,
            app_limited,
        });
        if from_idle {
            self.tx.follow_rate(now);
        }
        self.tx.window.disarm_persist();
        self.tx.last_sent = now;
        // Data of a refused SYN does not count as a partial segment when it is sent again (Linux: the same).
        let (first, acked) = (self.handshake.iss + 1, self.counters.payload_bytes_acked);
        let was_refused =
            || self.fast_open.client().is_some_and(|client| client.was_on_syn(data.range, first, acked));
        let partial = !data.payload_len().is_multiple_of(data.segment_size) && !was_refused();
        if data.origin == Origin::TailLossProbe {
            self.counters.observe(Observation::ProbeSent { range: data.range, new_data: fresh });
        }
        if fresh {
            self.tx.nagle.on_sent(data.range.end, partial);
            self.tx.queue.on_sent(data.range.end);
        }
        if data.mtu_probe {
            self.tx.mtu.on_probe_sent(data.range, self.tx.option_len);
        }
        self.counters.count_data(data, fresh);
        self.rx.ack.on_data_sent(now);
        self.account_ack(&segment.header);
        self.counters.observe(Observation::Sent { range: data.range, origin: data.origin });
        let urgent = self.gentle.active.is_some() && self.urgent.pointer(data.range.start).is_some();
        self.pass_sent_to_gentle(&SentSegment::Data { data, header: &segment.header, fresh, urgent }, now);
        if let Some(reactive) = &mut self.reactive {
            reactive.on_sent(&sent, fresh, &self.tx, now);
        }
    }

    fn account_parity(&mut self, parity: &DueParity, segment: &Segment, now: Instant) {
        let wire = parity.wire();
        if segment.header.options.fast_open.is_some() {
            self.fast_open.on_option_sent();
        }
        self.tx.rate.on_sent(wire.len(), now);
        self.tx.on_redundancy(wire.len(), now);
        self.tx.spend_redundancy(wire.len() + PARITY_OPTION + self.header_len() as u32);
        self.counters.redundant_bytes += u64::from(wire.len());
        self.pass_sent_to_gentle(&SentSegment::Parity(parity, segment.header.options.gentle), now);
        self.counters.observe(Observation::Sent { range: wire, origin: Origin::Parity });
    }

    /// Returns the bytes of IP and TCP header of a plain data segment.
    #[inline]
    pub(crate) fn header_len(&self) -> usize {
        let ip = if self.tuple.is_ipv6() { 40 } else { 20 };
        ip + 20 + if self.handshake.agreed.timestamps { 12 } else { 0 }
    }
}
