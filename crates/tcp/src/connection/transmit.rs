//! Selection of the next segment. `poll_transmit` selects, builds and accounts; the rest of this file only
//! selects.
//!
//! [`Connection::turns`] lists the kinds of segments that may be due, in their order. Each turn asks the
//! [`Budget`] how much may leave. The selection changes no state: it returns a [`Change`], which `account`
//! applies.

use alloc::vec::Vec;

use crate::connection::decision::{Change, Choice, Data, Step, Turn};
use crate::connection::fast_open::EarlyBudget;
use crate::connection::gentle::LeavingSyn;
use crate::connection::gentle::plain_copy::PlainCopy;
use crate::connection::gentle::proactive::CopiedRun;
use crate::connection::reactive::ProbeTimer;
use crate::connection::segment::Built;
use crate::connection::sender::{Sender, Sharing};
use crate::connection::state::State;
use crate::connection::{Connection, Env, MAX_PIECES};
use crate::outcome::Origin;
use crate::receive::Owed;
use crate::send::budget::Budget;
use crate::send::mtu::NextProbe;
use crate::send::push::BurstPush;
use crate::seq_ranges::SeqRange;
use crate::time::{Instant, Micros};

/// Length of new data that may leave, or the reason that nothing may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NewData {
    /// This many payload bytes, perhaps with the FIN.
    Send { len: u32, fin: bool },
    /// Nothing, because of pacing (`paced`) or the congestion window.
    CwndLimited { paced: bool },
    /// Nothing, because of the peer's window, Nagle's algorithm or the cork (`corked`).
    Blocked { corked: bool },
}

/// The order of [`Connection::turns`] in each situation.
mod order {
    use crate::connection::decision::Turn::{self, *};

    pub(super) const CONTROL: &[Turn] = &[Control];
    pub(super) const SYN: &[Turn] = &[Syn];
    pub(super) const SYN_SENT: &[Turn] = &[SynCopy, AfterSyn];
    pub(super) const SYN_ACK_COPY: &[Turn] = &[SynCopy];
    pub(super) const EARLY: &[Turn] = &[Parity, Copies, MtuProbe, New, ParityBehindBurst, Ack];
    pub(super) const EARLY_WITHOUT_PARITY: &[Turn] = &[Copies, MtuProbe, New, Ack];
    /// Nothing is lost, no probe is due, and neither Corrective nor Proactive has a segment to send.
    pub(super) const PLAIN: &[Turn] = &[MtuProbe, New, Ack];
    /// The usual order.
    pub(super) const ALL: &[Turn] =
        &[Failure, Copies, Lost, TailLossProbe, Parity, MtuProbe, New, ParityBehindBurst, Ack];
    /// F-RTO sends new data to detect a spurious timeout (RFC 5682).
    pub(super) const NEW_FIRST: &[Turn] =
        &[Failure, Copies, MtuProbe, New, Lost, TailLossProbe, Parity, ParityBehindBurst, Ack];
    /// Our FIN is acknowledged.
    pub(super) const ALL_SENT: &[Turn] = &[Failure, Copies, Ack];
}

impl Connection {
    /// Writes the next packet into `out`, if there is one to send: decide, build, account.
    pub(crate) fn poll_transmit(&mut self, now: Instant, env: &Env<'_>, out: &mut Vec<u8>) -> Option<Built> {
        let turns = self.turns(now);
        if turns.is_empty() {
            let sends = |turn: &Turn| matches!(self.decide(*turn, now, env), Step::Send(_));
            debug_assert!(!self.state.is_synchronized() || !order::ALL.iter().any(sends), "it has a turn");
            self.become_idle(now);
            return None;
        }
        self.transmit_in(turns, now, env, out)
    }

    /// Like [`Connection::poll_transmit`], for [turns](Connection::turns) that are not empty.
    pub(crate) fn transmit_in(
        &mut self,
        mut turns: &'static [Turn],
        now: Instant,
        env: &Env<'_>,
        out: &mut Vec<u8>,
    ) -> Option<Built> {
        (self.tx.paced, self.tx.send_limited) = (false, false);
        self.gentle.refresh_copies(self.tx.scoreboard.una());
        while let Some((&turn, later)) = turns.split_first() {
            match self.decide(turn, now, env) {
                Step::Send(choice) => {
                    let segment = self.build(&choice, now);
                    let built = self.emit(&segment, env, out);
                    self.account(&choice, &segment, built, out.len() + built.in_place_len(), now);
                    if !out.is_empty() {
                        return Some(built);
                    }
                    // A packet that cannot be built (no room for the header) counts as sent and lost.
                    turns = self.turns(now);
                }
                Step::Prepare(change) => self.change(change, now),
                Step::Skip(change) => {
                    if let Some(change) = change {
                        self.change(change, now);
                    }
                    turns = later;
                }
            }
        }
        self.update_timers(now);
        None
    }

    /// Returns the kinds of segments that may be due now, in the order in which [`Connection::decide`]
    /// decides on them. Empty: nothing is due.
    #[inline]
    pub(crate) fn turns(&self, now: Instant) -> &'static [Turn] {
        if !self.outbox.is_empty() {
            return order::CONTROL;
        }
        if !self.state.is_synchronized() {
            return self.opening_turns();
        }
        let has_new = self.tx.unsent() > 0 || self.tx.fin_unsent();
        let has_more = self.gentle.has_turn()
            || self.tx.scoreboard.has_lost()
            || self.reactive.as_ref().is_some_and(ProbeTimer::is_due);
        if !has_new && !has_more && !self.rx.ack.is_due(now) {
            &[]
        } else if !self.state.sends() {
            order::ALL_SENT
        } else if self.tx.recovery.prefers_new_data() {
            order::NEW_FIRST
        } else if has_more {
            order::ALL
        } else {
            order::PLAIN
        }
    }

    /// Returns the turns before the handshake is complete.
    fn opening_turns(&self) -> &'static [Turn] {
        match self.state {
            State::SynSent | State::SynReceived if self.handshake.syn.due => order::SYN,
            State::SynReceived if self.handshake.syn.copy == PlainCopy::Due => order::SYN_ACK_COPY,
            State::SynSent => order::SYN_SENT,
            State::SynReceived if self.fast_open.sends_early() => {
                match self.fast_open.affords_early(&self.tx, self.payload_limit(), self.header_len()) {
                    EarlyBudget::Nothing => &[],
                    EarlyBudget::Segment => order::EARLY_WITHOUT_PARITY,
                    EarlyBudget::Parity => order::EARLY,
                }
            }
            State::SynReceived => &[],
            State::Closed
            | State::Established
            | State::FinWait1
            | State::FinWait2
            | State::CloseWait
            | State::Closing
            | State::LastAck
            | State::TimeWait => &[],
        }
    }

    /// Decides whether a segment of this kind leaves now. Changes no state; the returned [`Change`] names the
    /// necessary change.
    fn decide(&self, turn: Turn, now: Instant, env: &Env<'_>) -> Step {
        match turn {
            Turn::Control => Step::send(self.outbox.first().map(Choice::Control)),
            Turn::Syn => {
                let syn = LeavingSyn {
                    again: self.handshake.syn.sent > 0,
                    answers: self.state == State::SynReceived,
                    timestamps: self.config.timestamps,
                };
                let others = || self.syn_options_with_fast_open(now);
                Step::Send(Choice::Syn(self.gentle.syn_option(syn, others)))
            }
            Turn::SynCopy => {
                Step::send((self.handshake.syn.copy == PlainCopy::Due).then_some(Choice::SynCopy))
            }
            Turn::AfterSyn => {
                let client = self.fast_open.client();
                Step::send(client.and_then(|client| client.next_after_syn(&self.tx)).map(Choice::AfterSyn))
            }
            Turn::Failure => Step::send(self.gentle.owes_failure().then_some(Choice::Ack { is_tail: false })),
            Turn::Copies => self.gentle.decide_copy(&self.tx, || self.budget(now), now),
            Turn::Lost if self.tx.scoreboard.has_lost() => {
                self.tx.decide_lost(self.payload_limit(), || self.budget(now))
            }
            Turn::Lost => Step::Skip(None),
            Turn::TailLossProbe if self.reactive.as_ref().is_some_and(ProbeTimer::is_due) => {
                Step::send(self.tx.choose_probe(self.payload_limit(), &self.budget(now)))
            }
            Turn::TailLossProbe => Step::Skip(None),
            Turn::Parity => self.decide_parity(now),
            Turn::MtuProbe => self.decide_mtu_probe(now),
            Turn::New => self.decide_new(now, env),
            Turn::ParityBehindBurst => {
                self.gentle.decide_open_group(&self.tx).unwrap_or_else(|| self.decide_parity(now))
            }
            Turn::Ack => Step::send(self.rx.ack.is_due(now).then_some(Choice::Ack { is_tail: false })),
        }
    }

    fn decide_parity(&self, now: Instant) -> Step {
        let (owes_ack, is_early) = (self.rx.ack.owed() != Owed::Nothing, self.state == State::SynReceived);
        let budget = || self.budget(now);
        self.gentle.decide_parity(&self.tx, &self.path.known, owes_ack, is_early, budget, now)
    }

    #[inline]
    pub(crate) fn budget(&self, now: Instant) -> Budget {
        let mut budget = self.tx.budget(now);
        budget.redundancy = budget.redundancy.saturating_sub(self.header_len() as u32);
        if self.state == State::SynReceived {
            let sent = self.tx.scoreboard.nxt().since(self.handshake.iss + 1);
            let unproven = self.fast_open.unproven_budget(sent, self.tx.mss());
            budget.peer = budget.peer.min(unproven.unwrap_or(u32::MAX));
        }
        budget
    }

    /// Selects a probe of the path MTU (RFC 4821): one segment larger than the MSS, made of new data. There
    /// is no probe while our own SACK blocks would make it larger than intended (as in Linux). After an idle
    /// time the reduction of the window precedes the probe, as it precedes all new data.
    fn decide_mtu_probe(&self, now: Instant) -> Step {
        if self.tx.unsent() == 0 && !self.tx.fin_unsent() {
            return Step::Skip(None);
        }
        if let Some(restart) = self.restart_after_idle(now) {
            return Step::Prepare(restart);
        }
        if self.tx.mtu.is_stale(now) {
            return Step::Prepare(Change::RaiseMtu);
        }
        if !self.tx.mtu.is_searching() || self.payload_limit() < self.tx.full_payload() {
            return Step::Skip(None);
        }
        let size = match self.tx.next_mtu_probe(now) {
            NextProbe::Wait => return Step::Skip(None),
            NextProbe::SearchAgain => return Step::Skip(Some(Change::SearchMtu)),
            NextProbe::Payload(size) => size,
        };
        let range = SeqRange::with_len(self.tx.scoreboard.nxt(), size);
        let budget = self.budget(now);
        if self.tx.queue.within_record(range) != range || size > budget.of(Origin::New) {
            return Step::Skip(None);
        }
        let burst = self.burst_with(range, &budget);
        Step::Send(Choice::Data(Data { mtu_probe: true, burst, ..Data::new(range, size, Origin::New) }))
    }

    /// Selects data that was never sent, as a run of segments that one header can describe.
    #[inline]
    fn decide_new(&self, now: Instant, env: &Env<'_>) -> Step {
        if self.tx.unsent() == 0 && !self.tx.fin_unsent() {
            // There is no more data, but `end_burst` must record how much of the window was used.
            let in_flight = !self.tx.scoreboard.is_empty();
            return Step::Skip(in_flight.then_some(Change::EndBurst { corked: false }));
        }
        if self.gentle.needs_plan(&self.tx) {
            return Step::Prepare(Change::PlanFlight);
        }
        let budget = self.budget(now);
        let mss = self.payload_limit();
        let (max, twice) = self.gso_size(mss, &budget, env, now);
        let urgent = self.urgent.pointer(self.tx.scoreboard.una()).is_some();
        match self.tx.new_data(&budget, mss, max, urgent, now) {
            NewData::Send { len, fin } => {
                let range = SeqRange::with_len(self.tx.scoreboard.nxt(), len + u32::from(fin));
                let burst = self.burst_with(SeqRange::with_len(range.start, len), &budget);
                let twice = twice && len > mss;
                Step::Send(Choice::Data(Data { fin, twice, burst, ..Data::new(range, mss, Origin::New) }))
            }
            NewData::CwndLimited { paced } => Step::Skip(Some(Change::LimitNew { paced })),
            NewData::Blocked { corked } => Step::Skip(Some(Change::EndBurst { corked })),
        }
    }

    /// Returns the burst that this new data extends; `None` if bursts do not end with PSH.
    #[inline]
    fn burst_with(&self, payload: SeqRange, budget: &Budget) -> Option<BurstPush> {
        self.config.push_bursts.then(|| self.tx.burst_with(payload, budget))
    }

    /// Returns the reduction of the window after an idle time; `None` if there is none. RFC 5681 section 4.1:
    /// "a TCP SHOULD set cwnd to no more than RW before beginning transmission if the TCP has not sent data
    /// in an interval exceeding the retransmission timeout". As in Linux the window halves for each timeout
    /// of silence until it is RW (RFC 2861 section 3.1). A window probe begins no transmission.
    #[inline]
    fn restart_after_idle(&self, now: Instant) -> Option<Change> {
        // A shared path can be busy although this member is idle.
        let is_member = self.tx.sharing == Sharing::Member;
        if !self.config.slow_start_after_idle || !self.tx.scoreboard.is_empty() || is_member {
            return None;
        }
        let rto = self.tx.timeout();
        let cwnd = self.tx.rate.congestion.cwnd();
        if self.tx.unsent() == 0 {
            // A FIN alone begins no transmission. If the window has not grown for a timeout, it was not fully
            // used. It then shrinks half of the way to the part that was used (RFC 2861 section 3.1; Linux:
            // tcp_cwnd_application_limited).
            let used = self.path.unasked_window(&self.config, self.tx.mss());
            let unused = Micros::between(self.tx.usage.grown_at(), now) >= rto && used < cwnd;
            return unused.then(|| Change::DecayWindow(cwnd.midpoint(used)));
        }
        let idle = Micros::between(self.tx.last_sent, now);
        if idle <= rto || self.tx.usable_window() == 0 {
            return None;
        }
        let halvings = (idle.0 - 1) / rto.0.max(1);
        let decayed = cwnd.checked_shr(halvings).unwrap_or(0);
        let unasked = self.path.unasked_window(&self.config, self.tx.mss());
        Some(Change::RestartWindow(decayed.max(unasked.min(cwnd))))
    }

    /// Returns the bytes that one transmission may hold, and whether the device sends each segment twice. The
    /// bytes are whole segments up to the limit of the device. A segment with an urgent pointer travels
    /// alone, since the pointer is relative to its own header.
    #[inline]
    fn gso_size(&self, mss: u32, budget: &Budget, env: &Env<'_>, now: Instant) -> (u32, bool) {
        if self.urgent.pointer(self.tx.scoreboard.nxt()).is_some()
            || (self.state == State::SynReceived && self.fast_open.limits_amplification())
            || self.gentle.plans_copies()
        {
            return (mss, false);
        }
        let run = (env.super_segment / mss * mss)
            .min(self.gentle.planned_run(self.tx.scoreboard.nxt(), mss))
            .max(mss);
        let run = if env.payload_in_place { self.tx.run_in_place(mss, run) } else { run };
        let twice = env.sends_twice && !self.ecn.is_active();
        match self.gentle.copied_run(&self.tx, mss, budget, twice, now) {
            CopiedRun::None => (run, false),
            CopiedRun::OneByOne => (mss, false),
            CopiedRun::Twice(bytes) => (run.min(bytes / mss * mss).max(mss), true),
        }
    }

    /// Returns the largest payload of a data segment now: the MSS less the options, or the planned size if
    /// smaller.
    pub(crate) fn payload_limit(&self) -> u32 {
        let fast_open = self.fast_open.option_len();
        let blocks =
            if self.rx.sack.is_empty() { 0 } else { self.rx.sack.count(self.sack_capacity()) as u32 };
        let sack = if blocks == 0 { 0 } else { 4 + 8 * blocks };
        let options = (sack + fast_open + self.gentle.option_len()).max(self.tx.option_reserve);
        let max = self.tx.mss().saturating_sub(options).min(self.tx.window.segment_bound());
        max.min(self.gentle.planned_segment(self.tx.scoreboard.nxt())).max(1)
    }
}

/// Selection of data. `limit`: the payload of a segment with the present options.
impl Sender {
    /// Selects the first range that is declared lost.
    fn decide_lost(&self, limit: u32, budget: impl FnOnce() -> Budget) -> Step {
        if self.recovery.has_suspended_retransmissions() {
            return Step::Skip(None);
        }
        let Some(mut lost) = self.scoreboard.next_lost(limit) else { return Step::Skip(None) };
        // Beyond a window that the peer has shrunk, only the first segment is retransmitted (RFC 9293 section
        // 3.8.6).
        let una = self.scoreboard.una();
        let window = self.window.snd_wnd().saturating_sub(lost.start.since(una));
        if lost.start != una && window < lost.len() {
            let Some(within) = self.scoreboard.next_lost(limit.min(window)) else {
                return Step::Skip(None);
            };
            lost = within;
        }
        let range = self.queue.within_record(lost);
        let budget = budget();
        if let Some(range) = self.size_retest(&budget, limit) {
            // One segment larger than the MSS.
            let fin = self.is_fin_in(range);
            let again = Data::new(range, range.len(), Origin::Retransmit);
            return Step::Send(Choice::Data(Data { fin, mtu_probe: true, ..again }));
        }
        // A segment that the end of a record (MSG_EOR) cuts short is charged as a full one. Otherwise a
        // timeout would release a burst of many small records (Linux's window counts segments).
        let charged = if range.len() < lost.len() { range.len().max(self.mss()) } else { range.len() };
        if charged <= budget.of(Origin::Retransmit) {
            return Step::Send(self.again(range, limit, Origin::Retransmit));
        }
        Step::Skip(Some(Change::LimitLost { paced: budget.is_paced(charged) }))
    }

    /// Returns the choice to retransmit `range`.
    fn again(&self, range: SeqRange, limit: u32, origin: Origin) -> Choice {
        let fin = self.is_fin_in(range);
        Choice::Data(Data { fin, ..Data::new(range, limit, origin) })
    }

    /// Selects a tail loss probe: one segment of new data if the peer's window permits it, else the tail
    /// again.
    fn choose_probe(&self, limit: u32, budget: &Budget) -> Option<Choice> {
        let nxt = self.scoreboard.nxt();
        let segment_size = self.probe_limit(limit);
        let record = self.queue.record_end(nxt).map_or(u32::MAX, |end| end.since(nxt));
        let window = budget.of(Origin::TailLossProbe);
        let len = self.unsent().min(segment_size).min(window).min(record);
        if len > 0 {
            let fin = self.fin_unsent() && len == self.unsent() && len < window;
            let range = SeqRange::with_len(nxt, len + u32::from(fin));
            return Some(Choice::Data(Data { fin, ..Data::new(range, segment_size, Origin::TailLossProbe) }));
        }
        // If the tail is longer than a segment may be now, its last part is enough.
        let tail = self.scoreboard.tail()?;
        let surplus = tail.payload().saturating_sub(segment_size);
        let range = SeqRange::new(tail.range.start + surplus, tail.range.end);
        Some(self.again(range, limit, Origin::TailLossProbe))
    }

    /// Shortens a run so that its payload can be sent in place, if at least a quarter of it remains.
    fn run_in_place(&self, mss: u32, run: u32) -> u32 {
        let pieces = self.queue.pieces(SeqRange::with_len(self.scoreboard.nxt(), run));
        if pieces.len() <= MAX_PIECES {
            return run;
        }
        let in_place = pieces.iter().take(MAX_PIECES).map(|piece| piece.len() as u32).sum::<u32>();
        if in_place >= run / 4 { (in_place / mss * mss).max(mss) } else { run }
    }

    /// Returns the new data that may leave now: segments of `mss` bytes, `max` bytes at most. A partial
    /// segment waits for the sender's silly window avoidance (RFC 9293 section 3.8.6.2.1) and Nagle's
    /// algorithm; `urgent` data does not wait for Nagle's algorithm (Linux: the same).
    #[inline]
    fn new_data(&self, budget: &Budget, mss: u32, max: u32, urgent: bool, now: Instant) -> NewData {
        let nxt = self.scoreboard.nxt();
        let record = self.queue.record_end(nxt);
        let unsent = record.map_or(self.unsent(), |end| end.since(nxt));
        let offered = unsent.min(budget.peer);
        let allowed = budget.of(Origin::New).min(max);
        if offered > allowed {
            let whole = allowed / mss * mss;
            return match whole {
                0 => NewData::CwndLimited { paced: budget.is_paced(mss) },
                len => NewData::Send { len, fin: false },
            };
        }
        let fin = record.is_none() && self.fin_unsent() && offered == unsent && offered < budget.peer;
        let partial = offered % mss;
        // The end of a record does not wait for more if another record follows (Linux: only the last segment
        // waits).
        let ends_record = record.is_some() && offered == unsent;
        let may_be_partial = || {
            if offered < unsent {
                // "(3) or if at least a fraction Fs of the maximum window can be sent"; Fs = 1/2.
                let half = self.window.max_snd_wnd() / 2;
                self.nagle.overridden || (budget.pipe == 0 && offered >= half && offered > 0)
            } else {
                urgent || self.nagle.allows_partial(self.scoreboard.una(), fin, now)
            }
        };
        if partial == 0 || ends_record || may_be_partial() {
            let sends = offered > 0 || fin;
            return if sends {
                NewData::Send { len: offered, fin }
            } else {
                NewData::Blocked { corked: false }
            };
        }
        match offered - partial {
            // Nagle's algorithm or the cork holds the rest back.
            0 => NewData::Blocked { corked: offered == unsent && self.nagle.is_corked() },
            len => NewData::Send { len, fin: false },
        }
    }
}
